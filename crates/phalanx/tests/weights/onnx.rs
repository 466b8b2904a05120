//! ONNX models: onnxruntime answers as `predict` does, for any batch, by the Python packages `onnx` and `onnxruntime` of `python3`, or of the
//! interpreter that `PHALANX_TEST_PYTHON` names; without them that test says so and passes. What is written does not change: the nodes of some
//! models are compared with `tests/golden/onnx`, where they came after onnxruntime had answered.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use phalanx::fit::OnnxOptions;
use phalanx::models::{MobileNetV2, TransformerEncoder};
use phalanx::nn::{Cx, Dense, Layer, LayerSpec, Model, Policy, Sequential};
use phalanx::saved::SavedModel;
use phalanx_graph::op::CustomCall;
use phalanx_graph::{DType, HostTensor, Shape, Tensor};
use phalanx_summary::{Fields, Wire};
use phalanx_testkit::{Scratch, assert_close, skip};
use serde_json::{Value, json};

use super::archives::{filled, models};
use super::oracle::{array, name, records, uniform};
use super::stablehlo::{bytes, pixels, predicted};

/// The rows of a batch of two, again and again.
fn rows(x: &HostTensor, count: usize) -> HostTensor {
    let row = |index: usize| x.slice_rows(index % 2, index % 2 + 1).bytes().to_vec();
    let bytes: Vec<u8> = (0..count).flat_map(row).collect();
    let shape = Shape::new(x.dtype(), [&[count], &x.dims()[1..]].concat());
    HostTensor::from_bytes(shape, &bytes).unwrap()
}

pub(super) fn written(x: &HostTensor) -> Value {
    json!({"dtype": x.dtype().name(), "shape": x.dims(), "data": x.to_f64()})
}

pub(super) fn numbers(name: &str, dims: &[usize]) -> HostTensor {
    let values = uniform(name, dims.iter().product());
    HostTensor::new(dims, &values.map(|u| u as f32).collect::<Vec<_>>())
}

/// Two rows of numbers for each input of a model.
fn two_rows(model: &Model) -> Vec<HostTensor> {
    let one = |(name, shape): (&str, Shape)| numbers(name, &[&[2], &shape.dims[..]].concat());
    model.inputs().map(one).collect()
}

/// Writes a model for any batch, and what it is to be asked.
pub(super) fn save(saved: &SavedModel, folder: &Path, name: &str, calls: &[Vec<Value>]) {
    let path = folder.join(format!("{name}.onnx"));
    saved.save_onnx(&path, &OnnxOptions::default()).unwrap();
    fs::write(path.with_extension("json"), json!(calls).to_string()).unwrap();
}

/// Models with every kind of layer, and of the literature, and batches of two.
fn all() -> Vec<(Model, Vec<HostTensor>)> {
    let mobile = MobileNetV2::new().input([32, 32, 3]).alpha(0.1).classes(3);
    let mut record = records("transformer.json").into_iter();
    let record = record.find(|record| name(record) == "encoder_plain");
    let record = record.unwrap();
    let encoder: TransformerEncoder = serde_json::from_value(record["settings"].clone()).unwrap();
    let mobile = mobile.build().unwrap();
    let mut all = models();
    all.push((mobile.clone(), two_rows(&mobile)));
    let ids = array(&record["inputs"][0]).unwrap();
    all.push((encoder.build().unwrap(), vec![rows(&ids, 2)]));
    all.push((pixels(), vec![bytes(2)]));
    all.push((convolutions(), two_rows(&convolutions())));
    let ids = HostTensor::new([2, 6], &[3i32, 8, 1, 0, 0, 0, 1, 2, 3, 4, 5, 6]);
    all.push((sentences(), vec![ids]));
    all
}

/// The command that asks onnxruntime about the models in a folder.
fn asking(folder: &Path) -> Command {
    let python = std::env::var("PHALANX_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let mut command = Command::new(python);
    command
        .arg(super::golden("onnx/answers.py"))
        .arg(folder)
        .stdin(Stdio::null());
    command
}

/// What onnxruntime says of the models in a folder; none, with a word about it, where it is not installed.
pub(super) fn answers(folder: &Path) -> Option<Value> {
    let output = asking(folder).output().ok();
    let Some(output) = output.filter(|output| output.status.code() != Some(3)) else {
        skip(
            "Python 3.10 with the packages `onnx` 1.13 and `onnxruntime` 1.14 is missing, or newer ones",
        );
        return None;
    };
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

#[test]
fn packages_that_are_too_old_are_as_good_as_none() {
    for (onnx, onnxruntime) in [("1.12.0", "1.32.0"), ("1.23.2", "1.13.1")] {
        let packages = Scratch::temporary("onnx-packages");
        for (name, version) in [("onnx", onnx), ("onnxruntime", onnxruntime), ("numpy", "2")] {
            let text = format!("__version__ = \"{version}\"\n");
            fs::write(packages.join(format!("{name}.py")), text).unwrap();
        }
        let none = Scratch::temporary("onnx-none");
        let output = asking(&none).env("PYTHONPATH", &*packages).output();
        let Ok(output) = output else {
            skip("there is no Python");
            return;
        };
        assert_eq!(output.status.code(), Some(3), "{onnx}, {onnxruntime}");
    }
}

const SIZES: [usize; 3] = [2, 1, 5];

/// What Keras answers a batch of two, where that is known, else what `predict` does, which another test compares with Keras.
fn expected(model: &Model, inputs: &[HostTensor], golden: &[Value]) -> Vec<HostTensor> {
    let record = golden.iter().find(|record| name(record) == model.name());
    let Some(record) = record else {
        return predicted(&filled(model), Policy::Float32, inputs);
    };
    let outputs = record["outputs"].as_array().unwrap().iter();
    outputs.map(|output| array(output).unwrap()).collect()
}

#[test]
fn onnxruntime_answers_as_keras_and_predict_do_for_any_batch() {
    let folder = Scratch::temporary("onnx-answers");
    let golden = records("archives.json");
    let all = all();
    for (model, inputs) in &all {
        let call = |count| inputs.iter().map(|x| written(&rows(x, count))).collect();
        save(&filled(model), &folder, model.name(), &SIZES.map(call));
    }
    let Some(answers) = answers(&folder) else {
        return;
    };
    for (model, inputs) in &all {
        let answers = &answers[model.name()];
        check_ports(model, answers);
        let expected = expected(model, inputs, &golden);
        for (&size, answer) in SIZES.iter().zip(answers["answers"].as_array().unwrap()) {
            for (number, expected) in expected.iter().enumerate() {
                let expected = rows(expected, size);
                assert_eq!(answer[number]["shape"], json!(expected.dims()));
                let what = format!("{} of {size}", model.name());
                assert_close(&what, &got(&answer[number]), &expected.to_f64(), 1e-5);
            }
        }
    }
}

pub(super) fn got(answer: &Value) -> Vec<f64> {
    let data = answer["data"].as_array().unwrap().iter();
    data.map(|x| x.as_f64().unwrap_or(f64::NAN)).collect()
}

/// Inputs and outputs have the model's names, and an open first dim.
fn check_ports(model: &Model, answers: &Value) {
    let open = |dims: &[usize]| {
        let dims = dims.iter().map(|&dim| json!(dim));
        std::iter::once(json!("batch"))
            .chain(dims)
            .collect::<Value>()
    };
    let inputs = model.inputs();
    let inputs: Value = inputs
        .map(|(name, shape)| json!([name, open(&shape.dims)]))
        .collect();
    assert_eq!(answers["inputs"], inputs);
    let outputs = model.output_names().into_iter().zip(model.outputs());
    let outputs: Value = outputs
        .map(|(name, shape)| json!([name, open(&shape.dims)]))
        .collect();
    assert_eq!(answers["outputs"], outputs);
}

const TYPES: [(u64, &str); 6] = [
    (1, "f32"),
    (2, "u8"),
    (6, "i32"),
    (7, "i64"),
    (9, "bool"),
    (11, "f64"),
];

fn dtype(code: u64) -> &'static str {
    let known = TYPES.iter().find(|(other, _)| *other == code);
    known.unwrap_or_else(|| panic!("element type {code}")).1
}

/// The fields of this number, in order.
fn all_of(message: &[u8], number: u64) -> impl Iterator<Item = Wire<'_>> {
    let fields = Fields::of(message).filter(move |(other, _)| *other == number);
    fields.map(|(_, value)| value)
}

fn texts(message: &[u8], number: u64) -> String {
    let texts: Vec<String> = all_of(message, number).map(Wire::text).collect();
    texts.join(", ")
}

fn bytes_of(message: &[u8], number: u64) -> &[u8] {
    Fields::last(message, number).map_or(&[], Wire::bytes)
}

fn integer(message: &[u8], number: u64) -> u64 {
    Fields::last(message, number).map_or(0, Wire::integer)
}

/// `name: f32[batch,3]`.
fn port(message: &[u8]) -> String {
    let tensor = bytes_of(bytes_of(message, 2), 1);
    let dim = |dim: Wire| match Fields::last(dim.bytes(), 2) {
        Some(name) => name.text(),
        None => integer(dim.bytes(), 1).to_string(),
    };
    let dims: Vec<String> = all_of(bytes_of(tensor, 2), 1).map(dim).collect();
    let dtype = dtype(integer(tensor, 1));
    format!("{}: {dtype}[{}]", texts(message, 1), dims.join(","))
}

/// A literal or a weight; the value where it is short.
fn tensor(message: &[u8]) -> String {
    let dims: Vec<usize> = all_of(message, 1)
        .map(|dim| dim.integer() as usize)
        .collect();
    let dtype = DType::from_name(dtype(integer(message, 2))).unwrap();
    let shape = Shape::new(dtype, dims);
    let value = HostTensor::from_bytes(shape.clone(), bytes_of(message, 9)).unwrap();
    let value = match shape.len() {
        0..=8 => format!(" = {:?}", value.to_f64()),
        _ => String::new(),
    };
    format!("{}: {shape}{value}", texts(message, 8))
}

fn attribute(message: &[u8], indent: &str) -> String {
    let name = texts(message, 1);
    match integer(message, 20) {
        2 => format!(" {name}={}", integer(message, 3) as i64),
        7 => {
            let values = all_of(message, 8).map(|value| value.integer() as i64);
            format!(" {name}={:?}", values.collect::<Vec<_>>())
        }
        _ => format!(
            " {name}=\n{}",
            graph(bytes_of(message, 6), &format!("{indent}    "))
        ),
    }
}

/// A graph as lines: inputs, weights, nodes, outputs.
fn graph(message: &[u8], indent: &str) -> String {
    let mut lines = Vec::new();
    lines.extend(all_of(message, 11).map(|input| format!("input {}", port(input.bytes()))));
    lines.extend(all_of(message, 5).map(|weight| format!("weight {}", tensor(weight.bytes()))));
    for node in all_of(message, 1).map(Wire::bytes) {
        let attributes: String = all_of(node, 5)
            .map(|one| attribute(one.bytes(), indent))
            .collect();
        let (outputs, op, inputs) = (texts(node, 2), texts(node, 4), texts(node, 1));
        lines.push(format!("{outputs} = {op}({inputs}){attributes}"));
    }
    lines.extend(all_of(message, 12).map(|output| format!("output {}", port(output.bytes()))));
    let lines: Vec<String> = lines.iter().map(|line| format!("{indent}{line}")).collect();
    lines.join("\n")
}

fn convolutions() -> Model {
    let config = json!({"name": "convolutions", "input": {"name": "image", "shape": [8, 8, 1], "dtype": "f32"}, "layers": [
        {"rescaling": {"scale": 0.0625}},
        {"conv2d": {"filters": 4, "kernel_size": 3, "padding": "same", "use_bias": false}},
        {"batch_norm": null},
        {"activation": {"activation": "relu"}},
        {"max_pool2d": {"pool_size": 2}},
        {"depthwise_conv2d": {"kernel_size": 3}},
        {"average_pool2d": {"pool_size": 2}},
        {"flatten": null},
        {"dense": {"units": 3, "activation": "softmax"}}
    ]});
    Model::from_config(&config).unwrap()
}

fn sentences() -> Model {
    let config = json!({"name": "sentences", "input": {"name": "ids", "shape": [6], "dtype": "i32"}, "layers": [
        {"embedding": {"input_dim": 9, "output_dim": 4, "mask_zero": true}},
        {"gru": {"units": 3, "return_sequences": true}},
        {"lstm": {"units": 3}},
        {"dense": {"units": 1, "activation": "sigmoid"}}
    ]});
    Model::from_config(&config).unwrap()
}

/// `PHALANX_UPDATE_EXPECTED=1` writes the files anew: then see that onnxruntime answers, by the first test here.
#[test]
fn models_are_written_as_onnxruntime_has_read_them() {
    let folder = Scratch::temporary("onnx-nodes");
    for model in [pixels(), convolutions(), sentences()] {
        let path = folder.join("m.onnx");
        let saved = filled(&model);
        saved.save_onnx(&path, &OnnxOptions::default()).unwrap();
        let bytes = fs::read(&path).unwrap();
        let opset = bytes_of(&bytes, 8);
        assert_eq!(
            (integer(&bytes, 1), texts(opset, 1), integer(opset, 2)),
            (8, String::new(), 18)
        );
        let text = graph(bytes_of(&bytes, 7), "") + "\n";
        let expected = super::golden(&format!("onnx/{}.txt", model.name()));
        if std::env::var_os("PHALANX_UPDATE_EXPECTED").is_some() {
            fs::write(&expected, &text).unwrap();
        }
        let expected = fs::read_to_string(&expected).unwrap();
        assert_eq!(text, expected, "{}", model.name());
        check_weights(&saved, &bytes);
    }
}

/// Every variable is there under its name.
fn check_weights(saved: &SavedModel, bytes: &[u8]) {
    let tensors: Vec<&[u8]> = all_of(bytes_of(bytes, 7), 5).map(Wire::bytes).collect();
    for (variable, value) in saved.model().variables().iter().zip(saved.values()) {
        let found = tensors
            .iter()
            .find(|tensor| texts(tensor, 8) == variable.name);
        assert!(
            bytes_of(found.unwrap(), 9) == value.bytes(),
            "{}",
            variable.name
        );
    }
}

/// A layer of a program that does something with rows of numbers.
#[derive(Debug)]
pub(super) struct Own(pub(super) fn(&Tensor) -> Tensor);

impl Layer for Own {
    fn kind(&self) -> &'static str {
        "own"
    }

    fn config(&self) -> Value {
        json!({})
    }

    fn call(&self, _: &mut Cx, inputs: &[Tensor]) -> Tensor {
        (self.0)(&inputs[0])
    }
}

fn own(does: fn(&Tensor) -> Tensor) -> SavedModel {
    let stack = Sequential::new([4]).add(LayerSpec::from(Own(does)).named("mine"));
    filled(&stack.add(Dense::new(1).named("last")).build().unwrap())
}

/// Rows less the mean of all rows.
fn centred(x: &Tensor) -> Tensor {
    x - x.mean(&[0]).broadcast_in(&x.dims(), &[1])
}

/// Each row with its neighbour: what there is of a batch is split in two.
fn in_pairs(x: &Tensor) -> Tensor {
    let pairs = x.slice_dim(0, 0, x.dim(0) / 2);
    Tensor::concat(&[&pairs, &x.slice_dim(0, x.dim(0) / 2, x.dim(0))], 0)
}

/// Rows less the mean of the first two, which a batch of one does not have.
fn from_first_two(x: &Tensor) -> Tensor {
    let mean = x.slice_dim(0, 0, x.dim(0).min(2)).mean(&[0]);
    x - mean.broadcast_in(&x.dims(), &[1])
}

/// In the order of the first numbers.
fn sorted(x: &Tensor) -> Tensor {
    let order = x
        .slice_dim(1, 0, 1)
        .reshape(&[x.dim(0)])
        .convert(DType::I32)
        .argsort();
    x.gather(&order, 0)
}

fn by_kernel(x: &Tensor) -> Tensor {
    let call = CustomCall {
        target: "own.kernel".to_owned(),
        outputs: vec![x.shape()],
        attributes: Vec::new(),
        has_side_effect: false,
    };
    x.graph().custom_call(call, &[x]).remove(0)
}

#[test]
fn what_onnx_cannot_say_is_refused_and_nothing_is_written() {
    let folder = Scratch::temporary("onnx-refused");
    let refused = |saved: &SavedModel, file: &str, batch_size: Option<usize>, says: &[&str]| {
        let error = saved.save_onnx(folder.join(file), &OnnxOptions { batch_size });
        let error = error.unwrap_err().to_string();
        for part in says {
            assert!(error.contains(part), "{error}");
        }
        assert_eq!(fs::read_dir(&*folder).unwrap().count(), 0, "{file}");
    };
    let plain = filled(&pixels());
    refused(
        &plain,
        "m.mlir",
        None,
        &["does not end in .onnx", "`digits.onnx`"],
    );
    refused(
        &plain,
        "m.onnx",
        Some(0),
        &["`batch_size` is 0", "1 or more"],
    );
    let says = ["calls the kernel `own.kernel`", "methods of `Tensor`"];
    refused(&own(by_kernel), "m.onnx", None, &says);
    let says = [
        "`mine`, op `argsort`",
        "ONNX has no op for it",
        "`NAME.mlir`",
    ];
    refused(&own(sorted), "m.onnx", Some(2), &says);
    for does in [centred, in_pairs, from_first_two] {
        let says = [
            "`mine`",
            "nor a multiple of it",
            "`--batch-size`",
            "`OnnxOptions::batch_size`",
        ];
        refused(&own(does), "m.onnx", None, &says);
    }
    let half = LayerSpec::from(Dense::new(2)).precision(Policy::MixedFloat16);
    let half = Sequential::new([3])
        .add(half.named("half"))
        .build()
        .unwrap();
    let says = ["`half` is of f16", "precision `float32`", "`NAME.mlir`"];
    refused(&filled(&half), "m.onnx", None, &says);
    fs::create_dir(folder.join("m.onnx")).unwrap();
    let error = plain.save_onnx(folder.join("m.onnx"), &OnnxOptions::default());
    assert!(error.unwrap_err().to_string().contains("is a directory"));
}

#[test]
fn what_is_bound_to_its_batch_is_written_for_one_of_that_size() {
    let folder = Scratch::temporary("onnx-bound");
    let options = OnnxOptions {
        batch_size: Some(2),
    };
    let x = numbers("bound", &[2, 4]);
    for (name, does) in [
        ("centred", centred as fn(&Tensor) -> Tensor),
        ("in_pairs", in_pairs),
        ("from_first_two", from_first_two),
    ] {
        let path = folder.join(format!("{name}.onnx"));
        own(does).save_onnx(&path, &options).unwrap();
        let graph = fs::read(&path).unwrap();
        let input = Fields::last(bytes_of(&graph, 7), 11).unwrap();
        assert_eq!(port(input.bytes()), "input: f32[2,4]");
        fs::write(
            path.with_extension("json"),
            json!([[written(&x)]]).to_string(),
        )
        .unwrap();
    }
    let Some(answers) = answers(&folder) else {
        return;
    };
    for (name, does) in [
        ("centred", centred as fn(&Tensor) -> Tensor),
        ("in_pairs", in_pairs),
        ("from_first_two", from_first_two),
    ] {
        let expected = predicted(&own(does), Policy::Float32, std::slice::from_ref(&x));
        let got = got(&answers[name]["answers"][0][0]);
        assert_close(name, &got, &expected[0].to_f64(), 1e-5);
    }
}
