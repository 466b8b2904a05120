//! Layers, activations, regularizers and initializers against Keras' numbers (`tests/golden/keras`), and what Keras
//! has no numbers for: masks, frozen layers, dropout, shared layers, penalties.

use std::sync::OnceLock;

use phalanx::engine::{CompileRequest, Engine};
use phalanx::nn::{
    Activation, BatchNorm, Conv2d, Cx, Dense, Dropout, Effects, Embedding, Flatten, Initializer,
    Input, Layer, MaxPool2d, Model, Network, Regularizer, Sequential, layer_from_config, relu,
};
use phalanx_graph::{DType, Graph, HostTensor, Shape, Tensor, gradients};
use phalanx_testkit::assert_close;
use serde_json::{Value, json};

fn engine() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| Engine::cpu().unwrap())
}

/// Many small checks in one program, which compiles faster than many programs.
#[derive(Default)]
struct Checks {
    graph: Graph,
    inputs: Vec<HostTensor>,
    outputs: Vec<(String, Tensor, HostTensor)>,
}

impl Checks {
    fn given(&mut self, value: &HostTensor) -> Tensor {
        self.inputs.push(value.clone());
        let name = format!("input {}", self.inputs.len());
        self.graph.parameter(&name, value.shape().clone())
    }

    fn expect(&mut self, name: String, got: &Tensor, expected: HostTensor) {
        assert_eq!(got.shape(), *expected.shape(), "{name}");
        self.outputs.push((name, got.clone(), expected));
    }

    /// Runs everything and compares within `relative` of each tensor's largest element.
    fn verify(self, relative: f64) {
        let named: Vec<(&str, &Tensor)> = self
            .outputs
            .iter()
            .map(|(name, got, _)| (name.as_str(), got))
            .collect();
        let results = execute(&self.graph, &named, &self.inputs);
        let mut wrong = Vec::new();
        for ((name, _, expected), got) in self.outputs.iter().zip(&results) {
            let (got, expected) = (got.to_f64(), expected.to_f64());
            let scale = expected
                .iter()
                .fold(1e-3, |scale: f64, x| scale.max(x.abs()));
            let pairs = got.iter().zip(&expected);
            let distance = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, |far: f64, x| {
                if x > far || x.is_nan() { x } else { far }
            });
            // A NaN is not within anything.
            if distance
                .partial_cmp(&(relative * scale))
                .is_none_or(std::cmp::Ordering::is_gt)
            {
                wrong.push(format!(
                    "{name}: off by {distance:e} of {scale}: got {got:?}, expected {expected:?}"
                ));
            }
        }
        let count = self.outputs.len();
        assert!(
            wrong.is_empty(),
            "{} of {count} differ:\n{}",
            wrong.len(),
            wrong.join("\n")
        );
    }
}

/// Compiles and runs a graph.
fn execute(graph: &Graph, outputs: &[(&str, &Tensor)], inputs: &[HostTensor]) -> Vec<HostTensor> {
    let program = graph.finish(outputs).unwrap();
    let compiled = engine()
        .compile(CompileRequest::new("test", &program))
        .unwrap();
    let buffers: Vec<_> = inputs
        .iter()
        .map(|input| engine().put(0, input).unwrap())
        .collect();
    let arguments: Vec<_> = buffers.iter().collect();
    let results = compiled.run(&[&arguments]).unwrap().0.swap_remove(0);
    let get = |(buffer, (_, output)): (_, &(&str, &Tensor))| {
        engine().get(buffer, &output.shape()).unwrap()
    };
    results.iter().zip(outputs).map(get).collect()
}

fn golden(file: &str) -> Vec<Value> {
    let path = format!(
        "{}/../../tests/golden/keras/{file}",
        env!("CARGO_MANIFEST_DIR")
    );
    let text = std::fs::read_to_string(path).unwrap();
    let mut value: Value = serde_json::from_str(&text).unwrap();
    serde_json::from_value(value["records"].take()).unwrap()
}

fn array(value: &Value) -> HostTensor {
    let dims: Vec<usize> = serde_json::from_value(value["shape"].clone()).unwrap();
    if value["dtype"] == "i32" {
        let data: Vec<i32> = serde_json::from_value(value["data"].clone()).unwrap();
        return HostTensor::new(dims, &data);
    }
    let data: Vec<f32> = serde_json::from_value(value["data"].clone()).unwrap();
    HostTensor::new(dims, &data)
}

fn arrays(value: &Value) -> Vec<HostTensor> {
    value.as_array().unwrap().iter().map(array).collect()
}

/// `[{"name", "value"}]`.
fn named(value: &Value) -> Vec<(String, HostTensor)> {
    let pair = |item: &Value| {
        (
            item["name"].as_str().unwrap().to_owned(),
            array(&item["value"]),
        )
    };
    value.as_array().unwrap().iter().map(pair).collect()
}

/// Our names of Keras' layers.
fn kind(keras: &str) -> &'static str {
    match keras {
        "Dense" => "dense",
        "Conv2D" => "conv2d",
        "DepthwiseConv2D" => "depthwise_conv2d",
        "MaxPooling2D" => "max_pool2d",
        "AveragePooling2D" => "average_pool2d",
        "GlobalMaxPooling2D" => "global_max_pool2d",
        "GlobalAveragePooling2D" => "global_average_pool2d",
        "Flatten" => "flatten",
        "Reshape" => "reshape",
        "Rescaling" => "rescaling",
        "ZeroPadding2D" => "zero_padding2d",
        "Add" => "add",
        "Concatenate" => "concatenate",
        "Embedding" => "embedding",
        "BatchNormalization" => "batch_norm",
        "LayerNormalization" => "layer_norm",
        other => panic!("no layer for Keras' {other}"),
    }
}

/// A model of one layer for inputs of these shapes.
fn model_of(record: &Value, inputs: &[HostTensor]) -> Model {
    let kind = kind(record["layer"].as_str().unwrap());
    let layer = layer_from_config(kind, &record["config"]).unwrap();
    let mut net = Network::new();
    let nodes: Vec<_> = inputs
        .iter()
        .map(|input| net.input(Input::new(&input.dims()[1..]).dtype(input.dtype())))
        .collect();
    let output = net.add(layer, &nodes);
    net.build(&nodes, &[output]).unwrap()
}

/// Adds a record's output, gradients and moving statistics.
fn check_layer(checks: &mut Checks, record: &Value) {
    let name = record["name"].as_str().unwrap();
    let values = arrays(&record["inputs"]);
    let model = model_of(record, &values);
    let weights = named(&record["weights"]);
    let ours: Vec<&str> = model
        .variables()
        .iter()
        .filter_map(|variable| variable.name.split('/').next_back())
        .collect();
    let theirs: Vec<&str> = weights.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(ours, theirs, "{name}");
    let inputs: Vec<Tensor> = values.iter().map(|value| checks.given(value)).collect();
    let variables: Vec<Tensor> = weights
        .iter()
        .map(|(_, value)| checks.given(value))
        .collect();
    let cotangent = checks.given(&array(&record["cotangent"]));
    let mut cx =
        Cx::new(&checks.graph, &model, &variables).with_training(record["training"] == true);
    let output = model.call(&mut cx, &inputs).swap_remove(0);
    let Effects { updates, .. } = cx.finish();
    checks.expect(format!("{name}: output"), &output, array(&record["output"]));

    let floats: Vec<&Tensor> = inputs
        .iter()
        .filter(|input| input.dtype().is_float())
        .collect();
    let specs = model.variables().iter().zip(&variables);
    let trained: Vec<&Tensor> = specs
        .filter(|(spec, _)| spec.trainable)
        .map(|(_, tensor)| tensor)
        .collect();
    let total = (&output * &cotangent).sum_all();
    let found = gradients(&total, &[floats.clone(), trained.clone()].concat());
    let wanted = arrays(&record["input_gradients"]).into_iter();
    let wanted: Vec<HostTensor> = wanted
        .chain(
            named(&record["weight_gradients"])
                .into_iter()
                .map(|(_, value)| value),
        )
        .collect();
    assert_eq!(found.len(), wanted.len(), "{name}");
    for (i, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        checks.expect(
            format!("{name}: gradient {i}"),
            found.as_ref().unwrap(),
            wanted,
        );
    }
    for (after, wanted) in named(&record["weights_after"]) {
        let index = theirs.iter().position(|&name| name == after).unwrap();
        let updated = updates
            .iter()
            .find(|(at, _)| *at == index)
            .map(|(_, tensor)| tensor);
        let is_training = record["training"] == true;
        assert_eq!(updated.is_some(), is_training, "{name}: update of {after}");
        checks.expect(
            format!("{name}: {after} after"),
            updated.unwrap_or(&variables[index]),
            wanted,
        );
    }
}

fn check_layers(wanted: impl Fn(&str) -> bool) {
    let mut checks = Checks::default();
    let records = golden("layers.json");
    let records = records
        .iter()
        .filter(|record| record["layer"].as_str().is_some_and(&wanted));
    let count = records
        .inspect(|record| check_layer(&mut checks, record))
        .count();
    assert!(count > 5, "only {count} records");
    checks.verify(1e-5);
}

#[test]
fn products_and_convolutions_are_keras() {
    check_layers(|layer| matches!(layer, "Dense" | "Conv2D" | "DepthwiseConv2D"));
}

#[test]
fn poolings_are_keras() {
    check_layers(|layer| layer.contains("Pooling"));
}

#[test]
fn other_layers_are_keras() {
    check_layers(|layer| {
        !layer.contains("Pooling") && !matches!(layer, "Dense" | "Conv2D" | "DepthwiseConv2D")
    });
}

#[test]
fn activations_are_keras() {
    let mut checks = Checks::default();
    let records = golden("layers.json");
    let records: Vec<&Value> = records
        .iter()
        .filter(|record| record["activation"].is_string())
        .collect();
    assert!(records.len() > 20);
    for record in records {
        let (name, keras) = (
            record["name"].as_str().unwrap(),
            record["activation"].as_str().unwrap(),
        );
        let config = &record["config"];
        let written = match keras {
            "gelu" if config["approximate"] == true => json!("gelu_tanh"),
            "gelu" => json!("gelu"),
            _ if config.as_object().is_some_and(serde_json::Map::is_empty) => json!(keras),
            _ => json!({ keras: config }),
        };
        let activation: Activation = serde_json::from_value(written).unwrap();
        let x = checks.given(&arrays(&record["inputs"])[0]);
        let cotangent = checks.given(&array(&record["cotangent"]));
        let y = activation.apply(&x);
        checks.expect(format!("{name}: output"), &y, array(&record["output"]));
        let found = gradients(&(&y * &cotangent).sum_all(), &[&x])
            .swap_remove(0)
            .unwrap();
        checks.expect(
            format!("{name}: gradient"),
            &found,
            arrays(&record["input_gradients"]).swap_remove(0),
        );
    }
    checks.verify(2e-6);
}

#[test]
fn regularizers_are_keras() {
    let mut checks = Checks::default();
    let records = golden("layers.json");
    let records: Vec<&Value> = records
        .iter()
        .filter(|record| record["regularizer"].is_string())
        .collect();
    assert_eq!(records.len(), 6);
    for record in records {
        let name = record["name"].as_str().unwrap();
        let written = match record["regularizer"].as_str().unwrap() {
            "L1" => "l1",
            "L2" => "l2",
            _ => "l1_l2",
        };
        let regularizer: Regularizer =
            serde_json::from_value(json!({ written: record["config"] })).unwrap();
        let weight = checks.given(&array(&record["weight"]));
        let penalty = regularizer.penalty(&weight);
        checks.expect(
            format!("{name}: penalty"),
            &penalty,
            HostTensor::scalar(record["penalty"].as_f64().unwrap() as f32),
        );
        let found = gradients(&penalty, &[&weight]).swap_remove(0).unwrap();
        checks.expect(
            format!("{name}: gradient"),
            &found,
            array(&record["gradient"]),
        );
    }
    checks.verify(1e-5);
}

fn moments(values: &[f64]) -> (f64, f64) {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / values.len() as f64;
    (mean, variance.sqrt())
}

/// Whether rows or columns, whichever are fewer, are orthogonal and of length `gain`.
fn check_orthogonal(name: &str, dims: &[usize], values: &[f64], gain: f64) {
    let columns = *dims.last().unwrap();
    let rows = values.len() / columns;
    let at = |row: usize, column: usize| values[row * columns + column];
    let (count, length) = (rows.min(columns), rows.max(columns));
    let vector = |i: usize, j: usize| if rows >= columns { at(j, i) } else { at(i, j) };
    for a in 0..count {
        for b in 0..count {
            let product: f64 = (0..length).map(|j| vector(a, j) * vector(b, j)).sum();
            let expected = if a == b { gain * gain } else { 0.0 };
            assert!(
                (product - expected).abs() < 1e-5,
                "{name}: {a} x {b} is {product}"
            );
        }
    }
}

#[test]
fn initializers_have_the_distributions_of_keras() {
    let records = golden("initializers.json");
    assert!(records.len() > 30);
    for record in &records {
        let name = record["name"].as_str().unwrap();
        let initializer: Initializer = serde_json::from_value(
            json!({ record["initializer"].as_str().unwrap(): record["config"] }),
        )
        .unwrap();
        let dims: Vec<usize> = serde_json::from_value(record["shape"].clone()).unwrap();
        // More draws than Keras made, so that moments are sharp: many variables of the shape.
        let count = 1 + 100_000 / dims.iter().product::<usize>();
        let values: Vec<f64> = (0..count)
            .flat_map(|i| {
                initializer
                    .values(&Shape::f32(dims.clone()), 11, &format!("layer_{i}/kernel"))
                    .to_f64()
            })
            .collect();
        let expected = &record["expected"];
        let number = |field: &str| expected[field].as_f64().unwrap();
        match expected["distribution"].as_str().unwrap() {
            "constant" => assert!(values.iter().all(|&x| x == number("value")), "{name}"),
            "orthogonal" => {
                let one = initializer
                    .values(&Shape::f32(dims.clone()), 11, "kernel")
                    .to_f64();
                check_orthogonal(name, &dims, &one, number("gain"));
            }
            "uniform" | "truncated_normal" => {
                let (low, high) = (number("low"), number("high"));
                let (mean, stddev) = moments(&values);
                let error = number("stddev") / (values.len() as f64).sqrt();
                assert!(
                    (mean - number("mean")).abs() < 5.0 * error,
                    "{name}: mean {mean}"
                );
                assert!(
                    (stddev - number("stddev")).abs() < 5.0 * error,
                    "{name}: deviation {stddev}"
                );
                let (least, most) = values
                    .iter()
                    .fold((f64::MAX, f64::MIN), |(l, m), &x| (l.min(x), m.max(x)));
                let margin = (high - low) * 0.01;
                assert!(
                    low - 1e-6 <= least && least < low + margin,
                    "{name}: least {least}"
                );
                assert!(
                    high - margin < most && most <= high + 1e-6,
                    "{name}: most {most}"
                );
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn normal_draws_have_normal_tails() {
    let initializer = Initializer::RandomNormal {
        mean: 1.0,
        stddev: 2.0,
    };
    let values = initializer.values(&Shape::f32([200_000]), 3, "x").to_f64();
    let (mean, stddev) = moments(&values);
    assert!(
        (mean - 1.0).abs() < 0.02 && (stddev - 2.0).abs() < 0.02,
        "{mean} {stddev}"
    );
    let beyond = |z: f64| {
        values.iter().filter(|&&x| (x - 1.0) / 2.0 > z).count() as f64 / values.len() as f64
    };
    assert!((beyond(1.0) - 0.158_655).abs() < 4e-3, "{}", beyond(1.0));
    assert!((beyond(2.0) - 0.022_750).abs() < 1.5e-3, "{}", beyond(2.0));
}

#[test]
fn first_values_depend_on_seed_and_path_alone() {
    let value =
        |seed, path: &str| Initializer::GlorotUniform.values(&Shape::f32([300, 300]), seed, path);
    assert_eq!(value(1, "a/kernel"), value(1, "a/kernel"));
    assert_ne!(value(1, "a/kernel"), value(2, "a/kernel"));
    assert_ne!(value(1, "a/kernel"), value(1, "b/kernel"));
    // Pinned, so that a seed gives the same model in every version.
    let first: Vec<f32> = value(1, "a/kernel").f32s()[..2].to_vec();
    assert_eq!(first, PINNED);
}

const PINNED: [f32; 2] = [0.039821066, -0.029870428];

/// The outputs and updates of a model in one mode.
fn call(
    model: &Model,
    variables: &[HostTensor],
    inputs: &[HostTensor],
    prepare: impl FnOnce(&Graph, Cx) -> Cx,
) -> (Vec<HostTensor>, Vec<(usize, HostTensor)>, f64) {
    let graph = Graph::new();
    let parameter = |value: &HostTensor| graph.parameter("input", value.shape().clone());
    let given: Vec<Tensor> = inputs.iter().map(parameter).collect();
    let bound: Vec<Tensor> = variables.iter().map(parameter).collect();
    let mut cx = prepare(&graph, Cx::new(&graph, model, &bound));
    let outputs = model.call(&mut cx, &given);
    let Effects {
        updates, losses, ..
    } = cx.finish();
    let loss = losses
        .iter()
        .fold(graph.scalar(DType::F32, 0.0), |sum, loss| sum + loss);
    let all: Vec<(&str, &Tensor)> = outputs
        .iter()
        .chain(updates.iter().map(|(_, tensor)| tensor))
        .chain([&loss])
        .map(|t| ("", t))
        .collect();
    let mut results = execute(&graph, &all, &[inputs, variables].concat());
    let loss = results.pop().unwrap().to_f64()[0];
    let changed = results.split_off(outputs.len());
    (
        results,
        updates
            .iter()
            .map(|(index, _)| *index)
            .zip(changed)
            .collect(),
        loss,
    )
}

fn ramp(dims: &[usize]) -> HostTensor {
    let count: usize = dims.iter().product();
    let values: Vec<f32> = (0..count).map(|i| (i as f32 * 0.37).sin()).collect();
    HostTensor::new(dims, &values)
}

#[test]
fn a_stack_of_layers_traces_compiles_and_runs() {
    let model = Sequential::new([8, 8, 1])
        .add(Conv2d::new(4, 3).activation(relu))
        .add(MaxPool2d::new(2))
        .add(Flatten)
        .add(Dropout::new(0.5))
        .add(Dense::new(10).activation(Activation::Softmax))
        .build()
        .unwrap();
    let names: Vec<&str> = model
        .variables()
        .iter()
        .map(|variable| variable.name.as_str())
        .collect();
    assert_eq!(
        names,
        ["conv2d/kernel", "conv2d/bias", "dense/kernel", "dense/bias"]
    );
    let (outputs, updates, _) = call(
        &model,
        &model.init(7).unwrap(),
        &[ramp(&[2, 8, 8, 1])],
        |_, cx| cx,
    );
    assert_eq!((outputs[0].dims(), updates.len()), ([2, 10].as_slice(), 0));
    for row in outputs[0].f32s().chunks(10) {
        assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-6);
    }
}

#[test]
fn rows_that_fill_up_a_batch_do_not_count_in_batch_norm() {
    let model = Sequential::new([2, 3])
        .add(BatchNorm::new().momentum(0.5))
        .build()
        .unwrap();
    let variables = model.init(0).unwrap();
    let training = |mask: Option<Vec<f32>>| {
        move |graph: &Graph, cx: Cx| {
            let cx = cx.with_training(true);
            match mask {
                Some(mask) => {
                    cx.with_example_mask(graph.constant(HostTensor::new([mask.len()], &mask)))
                }
                None => cx,
            }
        }
    };
    let short = ramp(&[3, 2, 3]);
    let (expected, moved, _) = call(
        &model,
        &variables,
        std::slice::from_ref(&short),
        training(None),
    );
    let mut bytes = short.pad_rows(5).f32s();
    bytes[18..].fill(f32::INFINITY);
    let padded = HostTensor::new([5, 2, 3], &bytes);
    let mask = vec![1.0, 1.0, 1.0, 0.0, 0.0];
    let (got, moved_padded, _) = call(
        &model,
        &variables,
        std::slice::from_ref(&padded),
        training(Some(mask)),
    );
    assert_same("outputs", &got[0].slice_rows(0, 3), &expected[0]);
    assert_eq!(moved.len(), 2);
    for ((index, a), (other, b)) in moved.iter().zip(&moved_padded) {
        assert_eq!(index, other);
        assert_same("moving statistics", a, b);
    }
    // A batch of no example at all leaves the moving statistics as they are.
    let (_, kept, _) = call(&model, &variables, &[short], training(Some(vec![0.0; 3])));
    assert_eq!(kept[0].1, variables[kept[0].0]);
    assert_eq!(kept[1].1, variables[kept[1].0]);
}

fn assert_same(what: &str, got: &HostTensor, expected: &HostTensor) {
    assert_eq!(got.shape(), expected.shape());
    assert_close(what, &got.to_f64(), &expected.to_f64(), 1e-5);
}

#[test]
fn a_frozen_batch_norm_runs_in_inference_mode() {
    let mut model = Sequential::new([3])
        .add(BatchNorm::new())
        .add(Dense::new(2))
        .build()
        .unwrap();
    let input = [ramp(&[4, 3])];
    let variables = model.init(0).unwrap();
    let train = |model: &Model| call(model, &variables, &input, |_, cx| cx.with_training(true));
    let (live, updates, _) = train(&model);
    assert_eq!(updates.len(), 2);
    model.freeze("batch_norm").unwrap();
    let flags: Vec<bool> = model
        .variables()
        .iter()
        .map(|variable| variable.trainable)
        .collect();
    assert_eq!(flags, [false, false, false, false, true, true]);
    let (frozen, updates, _) = train(&model);
    assert!(updates.is_empty());
    let (inference, ..) = call(&model, &variables, &input, |_, cx| cx);
    assert_eq!(frozen, inference);
    assert_ne!(frozen, live);
    model.unfreeze("batch_norm").unwrap();
    assert_eq!(train(&model).0, live);
}

#[test]
fn dropout_depends_on_the_row_of_the_example() {
    let model = Sequential::new([50])
        .add(Dropout::new(0.25))
        .add(Dropout::new(0.0))
        .build()
        .unwrap();
    let ones = HostTensor::full(Shape::f32([40, 50]), 1.0);
    let dropped = |input: &HostTensor, key: [u32; 2], first: u32| {
        let prepare = |graph: &Graph, cx: Cx| {
            let key = graph.constant(HostTensor::new([2], &key));
            let first = graph.constant(HostTensor::scalar(first));
            cx.with_training(true).with_random(key, first)
        };
        call(&model, &[], std::slice::from_ref(input), prepare)
            .0
            .swap_remove(0)
    };
    let whole = dropped(&ones, [1, 2], 100);
    let half = dropped(&ones.slice_rows(0, 20), [1, 2], 120);
    assert_eq!(whole.slice_rows(20, 40), half);
    assert_ne!(whole, dropped(&ones, [1, 3], 100));
    let values = whole.f32s();
    assert!(
        values
            .iter()
            .all(|&x| x == 0.0 || (x - 4.0 / 3.0).abs() < 1e-6)
    );
    let rate = values.iter().filter(|&&x| x == 0.0).count() as f64 / values.len() as f64;
    assert!((rate - 0.25).abs() < 0.05, "{rate}");
    let (kept, ..) = call(&model, &[], std::slice::from_ref(&ones), |_, cx| cx);
    assert_eq!(kept[0], ones);
}

#[test]
fn dropout_in_training_asks_for_a_key() {
    let model = Sequential::new([2]).add(Dropout::new(0.5)).build().unwrap();
    let graph = Graph::new();
    let x = graph.parameter("x", Shape::f32([1, 2]));
    let mut cx = Cx::new(&graph, &model, &[]).with_training(true);
    let _ = model.call(&mut cx, &[x]);
    let error = graph.error().unwrap().to_string();
    assert!(
        error.contains("needs random bits, but the caller gave no key, in dropout"),
        "{error}"
    );
}

#[test]
fn an_index_outside_the_table_gives_nan() {
    let table = Embedding::new(3, 2).embeddings_initializer(Initializer::Ones);
    for dtype in [DType::I32, DType::I64, DType::F32] {
        let input = Input::new([]).dtype(dtype);
        let model = Sequential::new(input).add(table.clone()).build().unwrap();
        let indices = HostTensor::new([4], &[0i32, 2, 3, -1]).convert(dtype);
        let (outputs, ..) = call(&model, &model.init(0).unwrap(), &[indices], |_, cx| cx);
        let rows = outputs[0].f32s();
        assert_eq!(rows[..4], [1.0; 4], "{dtype}");
        assert!(rows[4..].iter().all(|x| x.is_nan()), "{dtype} {rows:?}");
    }
}

#[test]
fn penalties_count_once_and_not_for_frozen_layers() {
    let penalized = Dense::new(2)
        .kernel_initializer(Initializer::Constant { value: 2.0 })
        .kernel_regularizer(Regularizer::L2 { l2: 0.5 })
        .bias_initializer(Initializer::Constant { value: -3.0 })
        .bias_regularizer(Regularizer::L1 { l1: 0.25 });
    let mut net = Network::new();
    let x = net.input([2]);
    let shared = net.layer(penalized.clone().named("shared"));
    let once = net.call(shared, &[x]);
    let twice = net.call(shared, &[once]);
    let mut model = net.build(&[x], &[once, twice]).unwrap();
    let variables = model.init(0).unwrap();
    let loss = |model: &Model, variables: &[HostTensor]| {
        call(model, variables, &[ramp(&[3, 2])], |_, cx| cx).2
    };
    assert!((loss(&model, &variables) - (0.5 * 16.0 + 0.25 * 6.0)).abs() < 1e-6);
    model.freeze("shared").unwrap();
    assert_eq!(loss(&model, &variables), 0.0);

    // The penalty of outputs is their sum divided by the examples.
    let ones = Dense::new(2)
        .kernel_initializer(Initializer::Zeros)
        .bias_initializer(Initializer::Ones);
    let active = ones.activity_regularizer(Regularizer::L1 { l1: 0.1 });
    let model = Sequential::new([2]).add(active).build().unwrap();
    let variables = model.init(0).unwrap();
    assert!((loss(&model, &variables) - 0.2).abs() < 1e-6);
    let masked = call(&model, &variables, &[ramp(&[3, 2])], |graph, cx| {
        cx.with_example_mask(graph.constant(HostTensor::new([3], &[1.0f32, 0.0, 0.0])))
    });
    assert!((masked.2 - 0.2).abs() < 1e-6);
}
