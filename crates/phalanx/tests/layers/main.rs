//! Layers, activations, regularizers and initializers against Keras' numbers (`tests/golden/keras`), and what Keras
//! has no numbers for: masks, frozen layers, dropout, shared layers, penalties.

mod activations;
#[path = "../any_device/mod.rs"]
mod any_device;
mod categories;
mod convolutions;
mod differences;
mod equations;
mod initializers;
mod modes;
mod normalizations;
mod pictures;
mod signals;
mod tied;
mod time_distributed;
mod tones;
mod types;
mod volumes;

use std::sync::OnceLock;

use phalanx::engine::{CompileRequest, Engine};
use phalanx::nn::{
    Activation, Conv2d, Cx, Dense, Dropout, Effects, Embedding, Flatten, Initializer, Input, Layer,
    MaxPool2d, Model, Network, Regularizer, Sequential, layer_from_config, relu,
};
use phalanx_graph::{DType, Graph, HostTensor, Platform, Tensor, gradients};
use phalanx_testkit::test_platform;
use serde_json::{Value, json};

fn engine() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| Engine::new(&any_device::options()).unwrap())
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
    if value["dtype"] == "i64" {
        let data: Vec<i64> = serde_json::from_value(value["data"].clone()).unwrap();
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
        "DepthwiseConv1D" => "depthwise_conv1d",
        "SeparableConv1D" => "separable_conv1d",
        "DepthwiseConv2D" => "depthwise_conv2d",
        "SeparableConv2D" => "separable_conv2d",
        "Conv2DTranspose" => "conv2d_transpose",
        "Conv1DTranspose" => "conv1d_transpose",
        "Conv3DTranspose" => "conv3d_transpose",
        "Conv1D" => "conv1d",
        "Conv3D" => "conv3d",
        "MaxPooling3D" => "max_pool3d",
        "AveragePooling3D" => "average_pool3d",
        "GlobalMaxPooling3D" => "global_max_pool3d",
        "GlobalAveragePooling3D" => "global_average_pool3d",
        "MaxPooling1D" => "max_pool1d",
        "AveragePooling1D" => "average_pool1d",
        "UpSampling1D" => "up_sampling1d",
        "UpSampling2D" => "up_sampling2d",
        "UpSampling3D" => "up_sampling3d",
        "Permute" => "permute",
        "RepeatVector" => "repeat_vector",
        "Multiply" => "multiply",
        "Average" => "average",
        "Maximum" => "maximum",
        "Minimum" => "minimum",
        "Subtract" => "subtract",
        "MaxPooling2D" => "max_pool2d",
        "AveragePooling2D" => "average_pool2d",
        "GlobalMaxPooling2D" => "global_max_pool2d",
        "GlobalAveragePooling2D" => "global_average_pool2d",
        "Flatten" => "flatten",
        "Reshape" => "reshape",
        "Rescaling" => "rescaling",
        "ZeroPadding1D" => "zero_padding1d",
        "ZeroPadding2D" => "zero_padding2d",
        "ZeroPadding3D" => "zero_padding3d",
        "Cropping1D" => "cropping1d",
        "Cropping2D" => "cropping2d",
        "Cropping3D" => "cropping3d",
        "Add" => "add",
        "Concatenate" => "concatenate",
        "Embedding" => "embedding",
        "BatchNormalization" => "batch_norm",
        "LayerNormalization" => "layer_norm",
        "GroupNormalization" => "group_norm",
        "UnitNormalization" => "unit_norm",
        "RMSNormalization" => "rms_norm",
        "Normalization" => "normalization",
        "PReLU" => "p_relu",
        "EinsumDense" => "einsum_dense",
        "TimeDistributed" => "time_distributed",
        "LSTM" => "lstm",
        "GRU" => "gru",
        "Bidirectional" => "bidirectional",
        other => kind_in_branches(other),
    }
}

/// Of layers at the end of residual branches, of signals, and of poolings to a number of windows.
fn kind_in_branches(keras: &str) -> &'static str {
    match keras {
        "STFTSpectrogram" => "stft_spectrogram",
        "MelSpectrogram" => "mel_spectrogram",
        "AdaptiveMaxPooling1D" => "adaptive_max_pool1d",
        "AdaptiveMaxPooling2D" => "adaptive_max_pool2d",
        "AdaptiveMaxPooling3D" => "adaptive_max_pool3d",
        "AdaptiveAveragePooling1D" => "adaptive_average_pool1d",
        "AdaptiveAveragePooling2D" => "adaptive_average_pool2d",
        "AdaptiveAveragePooling3D" => "adaptive_average_pool3d",
        "LayerScale" => "layer_scale",
        "StochasticDepth" => "stochastic_depth",
        "CustomScaleLayer" => "scaled_add",
        other => panic!("no layer for Keras' {other}"),
    }
}

/// Settings with our names of the layers in them.
fn of_ours(config: &Value) -> Value {
    let mut config = config.clone();
    // Which the layer sees for itself.
    config
        .as_object_mut()
        .map(|config| config.remove("projection_dim"));
    let inner = config["layer"].as_object().into_iter().flatten().next();
    if let Some((keras, settings)) = inner {
        config["layer"] = json!({kind(keras): of_ours(settings)});
    }
    config
}

/// A model of one layer for inputs of these shapes.
fn model_of(record: &Value, inputs: &[HostTensor]) -> Model {
    let kind = kind(record["layer"].as_str().unwrap());
    let layer = layer_from_config(kind, &of_ours(&record["config"])).unwrap();
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
    if record["mask"].is_object() {
        let mask = checks.given(&array(&record["mask"]));
        cx.set_padding_mask(&inputs[0], &mask.not_equal(&mask.zeros_like()));
    }
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
    check_updates(checks, record, &theirs, &updates, &variables);
}

/// Adds the moving statistics after a call, which change in training alone.
fn check_updates(
    checks: &mut Checks,
    record: &Value,
    theirs: &[&str],
    updates: &[(usize, Tensor)],
    variables: &[Tensor],
) {
    let name = record["name"].as_str().unwrap();
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

fn is_product(layer: &str) -> bool {
    matches!(
        layer,
        "Dense" | "EinsumDense" | "Conv2D" | "DepthwiseConv2D"
    )
}

#[test]
fn products_and_convolutions_are_keras() {
    check_layers(is_product);
}

#[test]
fn poolings_are_keras() {
    check_layers(|layer| layer.contains("Pooling") && !layer.ends_with("3D"));
}

#[test]
fn layers_of_volumes_are_keras() {
    check_layers(|layer| layer.ends_with("3D"));
}

#[test]
fn other_layers_are_keras() {
    check_layers(|layer| {
        let is_tried = layer.contains("Pooling") || layer.ends_with("3D");
        !is_tried && !is_product(layer)
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
    // XLA computes exponentials of GPUs with a digit less.
    checks.verify(if test_platform() == Platform::Cpu {
        2e-6
    } else {
        8e-6
    });
}

#[test]
fn regularizers_are_keras() {
    let mut checks = Checks::default();
    let records = golden("layers.json");
    let records: Vec<&Value> = records
        .iter()
        .filter(|record| record["regularizer"].is_string())
        .collect();
    assert_eq!(records.len(), 8);
    for record in records {
        let name = record["name"].as_str().unwrap();
        let written = match record["regularizer"].as_str().unwrap() {
            "L1" => "l1",
            "L2" => "l2",
            "OrthogonalRegularizer" => "orthogonal",
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
