//! Models as descriptions: names, connections, JSON and what is wrong with it, the summary table.

mod mistakes;

use phalanx::Error;
use phalanx::nn::{
    Add, BatchNorm, Concatenate, Conv2d, Cx, Dense, Dropout, Embedding, Flatten,
    GlobalAveragePool2d, Initializer, Input, Layer, LayerNorm, MaxPool2d, Model, Network, Padding,
    Registry, Regularizer, Rescaling, Sequential, TimeDistributed, relu,
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
        "layers": [{"flatten": {"name": "flatten"}}, {"dropout": {"name": "half", "noise_shape": null, "rate": 0.5}}],
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

/// The halves of the features, or as many of them as it gives.
#[derive(Debug)]
struct Halves {
    gives: usize,
}

impl Layer for Halves {
    fn kind(&self) -> &'static str {
        "halves"
    }
    fn config(&self) -> Value {
        json!({})
    }
    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        self.call_many(cx, inputs).swap_remove(0)
    }
    fn outputs(&self) -> usize {
        2
    }
    fn call_many(&self, _: &mut Cx, inputs: &[Tensor]) -> Vec<Tensor> {
        let half = inputs[0].dim(1) / 2;
        let part = |first| inputs[0].slice_dim(1, first, first + half);
        [0, half, 0]
            .into_iter()
            .take(self.gives)
            .map(part)
            .collect()
    }
}

#[test]
fn layers_of_users_may_have_several_outputs() {
    let mut net = Network::new();
    let x = net.input([4]);
    let halves = net.layer(Halves { gives: 2 });
    let both = net.call_many(halves, &[x]);
    let wide = net.add(Dense::new(3), &both[1..]);
    let sum = net.add(Add, &both);
    let model = net.build(&[x], &[wide, sum, both[1]]).unwrap();
    let outputs = model.outputs();
    let dims: Vec<&[usize]> = outputs.iter().map(|shape| &shape.dims[..]).collect();
    assert_eq!(dims, [&[3][..], &[2], &[2]]);
    let config = model.config();
    assert_eq!(config["calls"][1]["inputs"], json!(["halves:0.1"]));
    assert_eq!(config["outputs"][2], "halves:0.1");
    for gives in [0, 1, 3] {
        let stack = Sequential::new([6]).add(Halves { gives });
        let error = stack.build().unwrap_err().to_string();
        let expected = "layer `halves`: it says that it has 2 outputs, at least 1, and gave";
        assert!(error.starts_with(expected), "{error}");
    }
    let steps = Sequential::new([5, 4]).add(TimeDistributed::new(Halves { gives: 2 }));
    let error = steps.build().unwrap_err().to_string();
    assert!(
        error.contains("`layer`: halves: it has 2 outputs"),
        "{error}"
    );
}

#[test]
fn mistakes_in_building_name_the_layer() {
    let message = |stack: Sequential| stack.build().unwrap_err().to_string();
    let unfit = message(Sequential::new([4]).add(Conv2d::new(1, 3)));
    let expected = "layer `conv2d`: expected images [batch, height, width, channels], got f32[batch,4]; reshape them first";
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
                // The longest have the names of all kinds of layers.
                Err(error) => assert!(error.to_string().len() < 2200, "{place} {value}: {error}"),
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
