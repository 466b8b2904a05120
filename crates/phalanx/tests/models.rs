//! Models as descriptions: names, connections, JSON and what is wrong with it, the summary table.

use phalanx::Error;
use phalanx::nn::{
    Add, BatchNorm, Concatenate, Conv2d, Cx, Dense, Dropout, Embedding, Flatten,
    GlobalAveragePool2d, Initializer, Input, Layer, LayerNorm, MaxPool2d, Model, Network, Padding,
    Registry, Regularizer, Rescaling, Sequential, relu,
};
use phalanx_graph::{DType, Graph, Shape, Tensor};
use serde_json::{Value, json};

/// The names of the variables.
fn variables(model: &Model) -> Vec<&str> {
    model
        .variables()
        .iter()
        .map(|variable| variable.name.as_str())
        .collect()
}

fn stack() -> Model {
    Sequential::new([8, 8, 1])
        .named("digits")
        .add(Rescaling::new(0.0625))
        .add(Conv2d::new(16, 3).padding(Padding::Same).use_bias(false))
        .add(BatchNorm::new())
        .add(phalanx::nn::ActivationLayer::new(relu))
        .add(MaxPool2d::new(2))
        .add(
            Conv2d::new(32, 3)
                .activation(relu)
                .kernel_regularizer(Regularizer::L2 { l2: 1e-4 })
                .named("head"),
        )
        .add(GlobalAveragePool2d::new())
        .add(Dropout::new(0.5))
        .add(
            Dense::new(10).kernel_initializer(Initializer::TruncatedNormal {
                mean: 0.0,
                stddev: 0.02,
            }),
        )
        .build()
        .unwrap()
}

/// Two inputs, two outputs, a shared layer, and a model of two outputs inside, used twice.
fn graph() -> Model {
    let mut inner = Network::new();
    let x = inner.input([4]);
    let a = inner.add(Dense::new(4), &[x]);
    let b = inner.add(LayerNorm::new(), &[a]);
    let inner = inner.build(&[x], &[a, b]).unwrap();

    let mut net = Network::new().named("two");
    let words = net.input(Input::new([3]).dtype(DType::I32).named("words"));
    let numbers = net.input(Input::new([4]).named("numbers"));
    let embedded = net.add(Embedding::new(100, 4), &[words]);
    let flat = net.add(Flatten, &[embedded]);
    let block = net.layer(phalanx::nn::LayerSpec::from(inner).named("block"));
    let first = net.call_many(block, &[numbers]);
    let second = net.call_many(block, &[first[1]]);
    let sum = net.add(Add, &[first[0], second[1]]);
    let joined = net.add(Concatenate::new(), &[sum, flat]);
    let head = net.layer(Dense::new(2).named("head"));
    let output = net.call(head, &[joined]);
    let frozen = net.add(
        phalanx::nn::LayerSpec::from(Dense::new(16)).trainable(false),
        &[sum],
    );
    let other = net.call(head, &[frozen]);
    net.build(&[words, numbers], &[output, other, second[0]])
        .unwrap()
}

#[test]
fn names_count_as_in_keras() {
    let model = Sequential::new([4])
        .add(Dense::new(4))
        .add(Dense::new(4))
        .add(Dense::new(4))
        .build()
        .unwrap();
    let expected = [
        "dense/kernel",
        "dense/bias",
        "dense_1/kernel",
        "dense_1/bias",
        "dense_2/kernel",
        "dense_2/bias",
    ];
    assert_eq!(variables(&model), expected);
    // Counting starts anew in each model: names do not depend on what was made before.
    let outer = Sequential::new([4])
        .add(model.clone())
        .add(model.clone())
        .add(Dense::new(1))
        .build()
        .unwrap();
    assert_eq!(variables(&outer)[6], "sequential_1/dense/kernel");
    assert_eq!(variables(&outer)[12], "dense/kernel");
    assert_eq!(outer.layers()[3], "sequential_1/dense");
}

#[test]
fn shared_layers_have_one_set_of_variables() {
    let model = graph();
    let expected = [
        "embedding/embeddings",
        "block/dense/kernel",
        "block/dense/bias",
        "block/layer_norm/gamma",
        "block/layer_norm/beta",
        "head/kernel",
        "head/bias",
        "dense/kernel",
        "dense/bias",
    ];
    assert_eq!(variables(&model), expected);
    let frozen: Vec<&str> = model
        .variables()
        .iter()
        .filter(|variable| !variable.trainable)
        .map(|variable| variable.name.as_str())
        .collect();
    assert_eq!(frozen, ["dense/kernel", "dense/bias"]);
    let shapes: Vec<String> = model.outputs().iter().map(ToString::to_string).collect();
    assert_eq!(shapes, ["f32[2]", "f32[2]", "f32[4]"]);
    let inputs: Vec<String> = model
        .inputs()
        .map(|(name, shape)| format!("{name} {shape}"))
        .collect();
    assert_eq!(inputs, ["words i32[3]", "numbers f32[4]"]);
}

#[test]
fn freezing_a_model_inside_freezes_its_layers() {
    let mut model = graph();
    model.freeze("block").unwrap();
    let frozen = |model: &Model| {
        model
            .variables()
            .iter()
            .filter(|variable| !variable.trainable)
            .count()
    };
    assert_eq!(frozen(&model), 6);
    model.unfreeze("block/dense").unwrap();
    assert_eq!(frozen(&model), 4);
    model.set_trainable(true);
    assert_eq!(frozen(&model), 0);
    let error = model.freeze("blok").unwrap_err().to_string();
    assert!(
        error.starts_with("model `two` has no layer `blok`; "),
        "{error}"
    );
}

#[test]
fn json_makes_the_same_model_again() {
    for model in [stack(), graph(), Sequential::new([2]).build().unwrap()] {
        let config = model.config();
        let text = serde_json::to_string(&config).unwrap();
        let again = Model::from_config(&serde_json::from_str(&text).unwrap()).unwrap();
        assert_eq!(again.config(), config);
        assert_eq!(again.variables(), model.variables());
        assert_eq!(again.outputs(), model.outputs());
        assert_eq!(program(&again), program(&model));
    }
}

/// What a model computes.
fn program(model: &Model) -> phalanx_graph::Program {
    let graph = Graph::new();
    let batch = |shape: &Shape| Shape::new(shape.dtype, [&[5], shape.dims.as_slice()].concat());
    let inputs: Vec<Tensor> = model
        .inputs()
        .map(|(name, shape)| graph.parameter(name, batch(&shape)))
        .collect();
    let bound: Vec<Tensor> = model
        .variables()
        .iter()
        .map(|variable| graph.parameter(&variable.name, variable.shape.clone()))
        .collect();
    let outputs = model.call(&mut Cx::new(&graph, model, &bound), &inputs);
    let named: Vec<(&str, &Tensor)> = outputs.iter().map(|output| ("output", output)).collect();
    graph.finish(&named).unwrap()
}

#[test]
fn json_is_short_for_stacks() {
    let model = Sequential::new([2])
        .add(Flatten)
        .add(Dropout::new(0.5).named("half"))
        .build()
        .unwrap();
    let expected = json!({
        "name": "sequential",
        "input": {"name": "input", "shape": [2], "dtype": "f32"},
        "layers": [{"flatten": {"name": "flatten"}}, {"dropout": {"name": "half", "rate": 0.5}}],
    });
    assert_eq!(model.config(), expected);
    let least = json!({"input": {"shape": [2]}, "layers": ["flatten", {"dense": {"units": 3}}]});
    assert_eq!(
        variables(&Model::from_config(&least).unwrap()),
        ["dense/kernel", "dense/bias"]
    );
}

#[derive(Debug)]
struct Scale {
    by: f64,
}

impl Layer for Scale {
    fn kind(&self) -> &'static str {
        "scale"
    }
    fn config(&self) -> Value {
        json!({"by": self.by})
    }
    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let inner = cx.layer("inner", &Dense::new(2), inputs);
        let seen = cx.state("seen", Shape::f32([]), &Initializer::Zeros);
        cx.update("seen", &(&seen + 1.0));
        inner * cx.variable("factor", Shape::f32([]), &Initializer::Ones) * self.by
    }
}

#[test]
fn layers_of_users_are_saved_read_and_nested() {
    let model = Sequential::new([3]).add(Scale { by: 2.0 }).build().unwrap();
    let expected = [
        "scale/inner/kernel",
        "scale/inner/bias",
        "scale/seen",
        "scale/factor",
    ];
    assert_eq!(variables(&model), expected);
    let error = Model::from_config(&model.config()).unwrap_err().to_string();
    assert!(
        error.starts_with("layers[0].scale: unknown layer `scale`; "),
        "{error}"
    );
    let registry = Registry::standard().with("scale", |fields| {
        let by = fields["by"]
            .as_f64()
            .ok_or_else(|| Error::User("`by`: expected a number".into()))?;
        Ok(Scale { by })
    });
    let registry = registry.unwrap();
    let again = Model::from_config_with(&model.config(), &registry).unwrap();
    assert_eq!(again.config(), model.config());
    let bad = json!({"input": {"shape": [3]}, "layers": [{"scale": {}}]});
    let error = Model::from_config_with(&bad, &registry)
        .unwrap_err()
        .to_string();
    assert_eq!(error, "layers[0].scale: `by`: expected a number");
    assert!(
        Registry::standard()
            .with("dense", |_| Ok(Scale { by: 1.0 }))
            .is_err()
    );
}

fn refusal(config: &Value) -> String {
    Model::from_config(config).unwrap_err().to_string()
}

fn stack_of(layers: &Value) -> Value {
    json!({"input": {"name": "x", "shape": [4]}, "layers": layers})
}

#[test]
fn mistakes_in_json_are_told_with_their_place() {
    let dense = json!([{"dense": {"name": "d", "units": 4}}]);
    let functional = |calls: Value, outputs: Value| json!({"inputs": [{"name": "x", "shape": [4]}], "layers": dense, "calls": calls, "outputs": outputs});
    let cases = [
        (json!(3), "model: expected fields with values, got 3"),
        (json!({}), "layers: is missing; add it"),
        (
            json!({"input": {"shape": [4]}, "layer": []}),
            "model: unknown field `layer`; did you mean `layers`?",
        ),
        (
            json!({"input": {"shape": [4]}, "layers": {}}),
            "layers: expected a list, got an object of 0 fields",
        ),
        (
            json!({"input": {"shape": [-4]}, "layers": []}),
            "input.shape[0]: expected a positive whole number, got -4",
        ),
        (
            json!({"input": {"shape": "4"}, "layers": []}),
            "input.shape: expected a list, got \"4\"",
        ),
        (
            json!({"input": {"shape": [4], "dtype": "float"}, "layers": []}),
            "input.dtype: unknown type `float`; known are f32, bf16, f16, f64, i32, i64, u32, u8, bool",
        ),
        (
            stack_of(&json!([{"dens": {}}])),
            "layers[0].dens: unknown layer `dens`; did you mean `dense`?",
        ),
        (
            stack_of(&json!([{"dense": {}}])),
            "layers[0].dense: field `units` is missing; add it",
        ),
        (
            stack_of(&json!([{"dense": {"units": 1, "units_": 1}}])),
            "layers[0].dense: unknown field `units_`; did you mean `units`?",
        ),
        (
            stack_of(&json!([7])),
            "layers[0]: expected a layer such as {\"dense\": {\"units\": 10}}, got 7",
        ),
        (
            stack_of(&json!([{"conv2d": {"filters": 1, "kernel_size": 3}}])),
            "layer `conv2d`: expected images [batch, height, width, channels], got f32[2,4]; reshape them first",
        ),
        (
            stack_of(&json!([{"model": stack_of(&json!([{"dense": {"units": 0}}]))}])),
            "layers[0].model.layers[0].dense: `units` must be a whole number from 1 to 2147483647, got 0",
        ),
        (
            functional(json!([{"layer": "e", "inputs": ["x"]}]), json!(["d"])),
            "calls[0].layer: no layer is named `e`; did you mean `d`?",
        ),
        (
            functional(json!([{"layer": "d", "inputs": ["d"]}]), json!(["d"])),
            "calls[0].inputs[0]: `d` is used before the call that makes it; put calls in order, a model has no cycles",
        ),
        (
            functional(json!([{"layer": "d", "inputs": ["x"]}]), json!(["d:1"])),
            "outputs[0]: `d:1` is no input and no result of an earlier call; did you mean `d`?",
        ),
        (
            functional(json!([{"layer": "d", "inputs": ["x"]}]), json!(["d:0.1"])),
            "outputs[0]: `d:0.1` is no value: it has 1 outputs, counted from 0",
        ),
        (
            functional(json!([]), json!("x")),
            "outputs: expected a list, got \"x\"",
        ),
        (
            functional(json!([]), json!([])),
            "model `functional` has no outputs; name one or more",
        ),
    ];
    for (config, expected) in cases {
        assert_eq!(refusal(&config), expected, "{config}");
    }
}

#[test]
fn hostile_json_is_refused_without_memory_or_panic() {
    let huge = u64::MAX;
    let mut nested = stack_of(&json!([]));
    for _ in 0..40 {
        nested = stack_of(&json!([{ "model": nested }]));
    }
    // Ten models each using the one inside ten times.
    let mut bomb = stack_of(&json!([{"dense": {"units": 4, "name": "d"}}]));
    for _ in 0..10 {
        let calls: Vec<Value> = (0..10)
            .map(|i| match i {
                0 => json!({"layer": "m", "inputs": ["x"]}),
                1 => json!({"layer": "m", "inputs": ["m"]}),
                _ => json!({"layer": "m", "inputs": [format!("m:{}", i - 1)]}),
            })
            .collect();
        bomb["name"] = json!("m");
        bomb = json!({"inputs": [{"name": "x", "shape": [4]}], "layers": [{ "model": bomb }], "calls": calls, "outputs": ["m:9"]});
    }
    let image = |layer: Value| json!({"input": {"shape": [8, 8, 3]}, "layers": [layer]});
    let cases = [
        (stack_of(&json!([{"dense": {"units": huge}}])), "units"),
        (
            stack_of(
                &json!([{"dense": {"units": 2_000_000_000u64}}, {"dense": {"units": 2_000_000_000u64}}]),
            ),
            "elements",
        ),
        (
            json!({"input": {"shape": [huge]}, "layers": []}),
            "must be between",
        ),
        (
            json!({"input": {"shape": [2_000_000_000u64, 2_000_000_000u64]}, "layers": ["flatten"]}),
            "elements",
        ),
        (
            json!({"input": {"shape": vec![1; 60]}, "layers": []}),
            "dims",
        ),
        (
            image(json!({"conv2d": {"filters": 3, "kernel_size": 3, "dilation_rate": huge}})),
            "`dilation_rate`",
        ),
        (
            image(
                json!({"conv2d": {"filters": 3, "kernel_size": 3, "dilation_rate": 2_000_000_000u64}}),
            ),
            "span",
        ),
        (
            image(json!({"conv2d": {"filters": 3, "kernel_size": 3, "strides": 0}})),
            "`strides`",
        ),
        (
            image(json!({"conv2d": {"filters": 3, "kernel_size": 3, "groups": 0}})),
            "`groups`",
        ),
        (
            image(json!({"conv2d": {"filters": 3, "kernel_size": 9}})),
            "does not fit",
        ),
        (
            image(json!({"conv2d": {"filters": 4, "kernel_size": 3, "groups": 2}})),
            "must divide the channels",
        ),
        (
            image(
                json!({"depthwise_conv2d": {"kernel_size": 3, "depth_multiplier": 2_000_000_000u64}}),
            ),
            "channels",
        ),
        (
            image(json!({"zero_padding2d": {"padding": huge}})),
            "`padding`",
        ),
        (
            image(json!({"zero_padding2d": {"padding": 2_000_000_000u64}})),
            "zero_padding2d",
        ),
        (
            image(json!({"reshape": {"target_shape": [i64::MIN]}})),
            "`target_shape`",
        ),
        (
            image(json!({"reshape": {"target_shape": [4_611_686_018_427_387_904i64, 4, -1]}})),
            "cannot make",
        ),
        (image(json!({"batch_norm": {"axis": i64::MIN}})), "axis"),
        (image(json!({"layer_norm": {"axis": [1, 1]}})), "`axis`"),
        (image(json!({"layer_norm": {"epsilon": -1}})), "`epsilon`"),
        (
            image(json!({"embedding": {"input_dim": huge, "output_dim": 1}})),
            "`input_dim`",
        ),
        (
            image(json!({"dense": {"units": 1, "name": "a/b"}})),
            "is no name",
        ),
        (
            image(
                json!({"dense": {"units": 1, "kernel_initializer": {"truncated_normal": {"stddev": -1}}}}),
            ),
            "stddev",
        ),
        (
            image(json!({"dense": {"units": 1, "kernel_regularizer": "l3"}})),
            "did you mean",
        ),
        (
            stack_of(&json!(vec!["flatten"; 20_000])),
            "more than 10000 layers",
        ),
        (nested, "nested more than"),
        (bomb, "more than 10000 calls"),
        (
            stack_of(
                &json!([{"dense": {"units": 1, "name": "d"}}, {"dense": {"units": 1, "name": "d"}}]),
            ),
            "named `d`",
        ),
        (stack_of(&json!([{"add": {}}])), "2 inputs or more"),
    ];
    for (config, part) in cases {
        let message = refusal(&config);
        assert!(
            message.contains(part) && message.len() < 600,
            "{message}: lacks {part}"
        );
    }
}

#[test]
fn mistakes_in_building_name_the_layer() {
    let message = |stack: Sequential| stack.build().unwrap_err().to_string();
    let unfit = message(Sequential::new([4]).add(Conv2d::new(1, 3)));
    let expected = "layer `conv2d`: expected images [batch, height, width, channels], got f32[2,4]; reshape them first";
    assert_eq!(unfit, expected);
    let twice = message(
        Sequential::new([4])
            .add(Flatten.named("a"))
            .add(Flatten.named("a")),
    );
    assert!(
        twice.starts_with("two layers or inputs are named `a`"),
        "{twice}"
    );
    let mut net = Network::new();
    let (x, y) = (net.input([2]), net.input(Input::new([2]).named("y")));
    let sum = net.add(Add, &[x, y]);
    let error = net.build(&[x], &[sum]).unwrap_err().to_string();
    assert_eq!(
        error,
        "an output depends on input 1 (y), which is not among the model's inputs"
    );
    assert!(net.build(&[sum], &[sum]).is_err());
    assert!(net.build(&[x, x], &[x]).is_err());
}

#[test]
fn the_summary_shows_layers_shapes_and_totals() {
    let mut model = stack();
    model.freeze("head").unwrap();
    assert_eq!(model.summary(), include_str!("summary_stack.txt"));
    assert_eq!(graph().summary(), include_str!("summary_graph.txt"));
}

/// JSON pointers of every value inside.
fn pointers(value: &Value, here: &str, found: &mut Vec<String>) {
    found.push(here.to_owned());
    match value {
        Value::Array(items) => {
            for (i, item) in items.iter().enumerate() {
                pointers(item, &format!("{here}/{i}"), found);
            }
        }
        Value::Object(fields) => {
            for (name, item) in fields {
                pointers(item, &format!("{here}/{name}"), found);
            }
        }
        _ => {}
    }
}

#[test]
fn any_value_in_any_place_of_json_is_read_or_refused() {
    let strange = [
        json!(null),
        json!(true),
        json!(0),
        json!(-1),
        json!(1.5),
        json!(1e308),
        json!(2_147_483_647),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(""),
        json!("d:1.2"),
        json!([]),
        json!({}),
        json!([[1, 2], [3, 4]]),
        json!({"l2": {"l2": 1e308}}),
        json!([2_147_483_647, 2_147_483_647, 2_147_483_647]),
    ];
    let mut read = 0;
    for model in [stack(), graph()] {
        let config = model.config();
        let mut places = Vec::new();
        pointers(&config, "", &mut places);
        for (place, value) in places
            .iter()
            .flat_map(|place| strange.iter().map(move |value| (place, value)))
        {
            let mut changed = config.clone();
            *changed.pointer_mut(place).unwrap() = value.clone();
            match Model::from_config(&changed) {
                Ok(model) => {
                    read += 1;
                    let again = Model::from_config(&model.config()).unwrap();
                    assert_eq!(again.config(), model.config(), "{place} {value}");
                }
                Err(error) => assert!(error.to_string().len() < 700, "{place} {value}: {error}"),
            }
        }
    }
    // Some changes are harmless, most are not.
    assert!((100..1000).contains(&read), "{read}");
}

#[test]
fn networks_refuse_names_that_their_file_cannot_hold() {
    for name in ["a.b", "a:0"] {
        let mut network = Network::new();
        let x = network.input([2]);
        let left = network.add(Dense::new(2).named(name), &[x]);
        let sum = network.add(Add, &[x, left]);
        let error = network.build(&[x], &[sum]).unwrap_err().to_string();
        assert!(
            error.contains(name) && error.contains("choose another name"),
            "{error}"
        );
    }
}
