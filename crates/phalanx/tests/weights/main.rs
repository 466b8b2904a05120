//! Weights of Keras and PyTorch: files that they wrote, read into models of ours that answer the same; and what we write for others.

mod archive_models;
mod archives;
mod compile_keys;
mod keras_compiled;
mod keras_models;
mod onnx;
mod onnx_ops;
#[path = "../oracle/mod.rs"]
mod oracle;
mod pytorch;
mod pytorch_orders;
mod pytorch_recurrent;
mod refused;
mod stablehlo;

use std::path::PathBuf;
use std::slice::from_ref;
use std::sync::atomic::{AtomicUsize, Ordering};

use oracle::{Batch, array, formula_value, name, records};
use phalanx::Result;
use phalanx::import::{LoadReport, LoadWeights, Matching};
use phalanx::models::{FineTune, MobileNetV2, TransformerEncoder};
use phalanx::nn::{
    Activation, Add, BatchNorm, Bidirectional, Conv2d, Cx, Dense, DepthwiseConv2d, Dropout,
    Flatten, Gru, IntoModel, Layer, LayerNorm, LayerSpec, Lstm, MergeMode, Model,
    MultiHeadAttention, Network, Sequential, SimpleRnn, relu,
};
use phalanx::saved::SavedModel;
use phalanx_graph::HostTensor;
use phalanx_testkit::assert_close;
use proptest::prelude::*;
use serde_json::Value;

fn golden(file: &str) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
    root.join(file)
}

fn read_json(file: &str) -> Value {
    serde_json::from_slice(&std::fs::read(golden(file)).unwrap()).unwrap()
}

fn fresh(model: impl IntoModel) -> SavedModel {
    let (model, _) = model.into_parts().unwrap();
    let values = model.init(1).unwrap();
    SavedModel::new(model, values).unwrap()
}

fn load(saved: &mut SavedModel, file: &str) -> Result<LoadReport> {
    saved.load_weights(golden(file), LoadWeights::default())
}

/// The model of `make_weights.py`, its layers called by a function of Keras' names.
fn tiny(name: impl Fn(&str) -> String) -> Model {
    let inner = Sequential::new([3, 3, 4])
        .add(
            DepthwiseConv2d::new(2)
                .depth_multiplier(2)
                .named(name("dw")),
        )
        .add(LayerNorm::new().named(name("ln")));
    Sequential::new([7, 7, 2])
        .add(Conv2d::new(4, 3).strides(2).named(name("stem")))
        .add(BatchNorm::new().named(name("bn")))
        .add(LayerSpec::from(relu_layer()).named(name("relu")))
        .add(LayerSpec::from(inner.build().unwrap()).named(name("inner")))
        .add(Dropout::new(0.5).named(name("drop")))
        .add(Flatten)
        .add(Dense::new(5).activation(relu).named(name("hidden")))
        .add(Dense::new(3).named(name("out")))
        .build()
        .unwrap()
}

fn relu_layer() -> phalanx::nn::ActivationLayer {
    phalanx::nn::ActivationLayer::new(Activation::Relu)
}

fn answer(saved: &SavedModel, x: HostTensor) -> Vec<f64> {
    answers(saved, vec![x])
}

/// The first output for these inputs.
fn answers(saved: &SavedModel, inputs: Vec<HostTensor>) -> Vec<f64> {
    let mut case = Batch::default();
    let inputs: Vec<_> = inputs.into_iter().map(|x| case.input(x)).collect();
    let values = saved.values().iter().cloned();
    let values: Vec<_> = values.map(|value| case.input(value)).collect();
    let outputs = saved
        .model()
        .call(&mut Cx::new(&case.graph, saved.model(), &values), &inputs);
    case.output(&outputs[0]);
    case.run(&oracle::engine())[0].to_f64()
}

/// Every value is what the formula gives for its name, exactly.
fn check_values(saved: &SavedModel, name: impl Fn(&str) -> String) {
    for (variable, value) in saved.model().variables().iter().zip(saved.values()) {
        let mut parts: Vec<&str> = variable.name.rsplitn(3, '/').take(2).collect();
        parts.reverse();
        let expected = formula_value(&name(&parts.join("/")), &variable.shape.dims);
        assert!(*value == expected, "{}", variable.name);
    }
}

#[test]
fn files_of_keras_are_read_by_names() {
    for file in ["tiny.weights.h5", "tiny.keras", "tiny.h5"] {
        let mut saved = fresh(tiny(str::to_owned));
        let report = load(&mut saved, &format!("keras/weights/{file}")).unwrap();
        assert_eq!(
            report.to_string(),
            "14 of 14 variables have values, by name",
            "{file}"
        );
        assert_eq!(report.unexpected, Vec::<String>::new());
        check_values(&saved, str::to_owned);
    }
}

#[test]
fn files_of_keras_are_read_by_order() {
    let mut saved = fresh(tiny(|name| format!("my_{name}")));
    for file in ["tiny.weights.h5", "tiny.keras", "tiny.h5"] {
        let report = load(&mut saved, &format!("keras/weights/{file}")).unwrap();
        assert_eq!(
            report.to_string(),
            "14 of 14 variables have values, by order",
            "{file}"
        );
        check_values(&saved, |name| name.replace("my_", ""));
    }
    let golden = read_json("keras/weights/tiny.json");
    let got = answer(&saved, array(&golden["input"]).unwrap());
    assert_close(
        "tiny",
        &got,
        &array(&golden["output"]).unwrap().to_f64(),
        1e-5,
    );
    let names = LoadWeights {
        matching: Matching::Names,
        ..LoadWeights::default()
    };
    let refused = saved
        .load_weights(golden_path("tiny.keras"), names)
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("0 of 14 variables have values; 14 not in the file: `my_stem/kernel`"),
        "{refused}"
    );
}

fn golden_path(file: &str) -> PathBuf {
    golden("keras/weights").join(file)
}

#[test]
fn mobilenet_v2_of_keras_is_read() {
    let small = || MobileNetV2::new().input([32, 32, 3]).alpha(0.01).classes(2);
    let mut saved = fresh(small());
    let report = load(&mut saved, "keras/weights/mobilenet_v2.keras").unwrap();
    assert!(
        report.is_complete() && report.unexpected.is_empty(),
        "{report}"
    );
    check_values(&saved, str::to_owned);

    // As the base of another model: by the last part of the names; the head has no values in the file.
    let base = small().include_top(false).build().unwrap();
    let mut tuned = fresh(FineTune::new(base));
    let refused = load(&mut tuned, "keras/weights/mobilenet_v2.keras")
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("4 not in the file: `hidden/kernel`, `hidden/bias`"),
        "{refused}"
    );
    assert!(
        refused.ends_with("or set `skip_mismatch` to load what fits"),
        "{refused}"
    );
    let skip = LoadWeights {
        skip_mismatch: true,
        ..LoadWeights::default()
    };
    let report = tuned
        .load_weights(golden_path("mobilenet_v2.keras"), skip)
        .unwrap();
    assert_eq!(
        (
            report.matched.len(),
            report.missing.len(),
            report.unexpected.len()
        ),
        (260, 4, 2)
    );

    // Other classes: all but the last layer.
    let mut other = fresh(small().classes(3));
    let refused = load(&mut other, "keras/weights/mobilenet_v2.keras")
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("2 do not fit: `predictions/kernel` needs f32[1280,3]"),
        "{refused}"
    );
    let report = other
        .load_weights(golden_path("mobilenet_v2.keras"), skip)
        .unwrap();
    assert_eq!((report.matched.len(), report.mismatched.len()), (260, 2));
}

#[test]
fn a_transformer_of_keras_is_read() {
    let record = records("transformer.json")
        .into_iter()
        .find(|record| name(record) == "encoder_plain");
    let record = record.unwrap();
    let settings: TransformerEncoder = serde_json::from_value(record["settings"].clone()).unwrap();
    let mut saved = fresh(settings.build());
    let report = load(&mut saved, "keras/weights/transformer.weights.h5").unwrap();
    assert!(
        report.is_complete() && report.unexpected.is_empty(),
        "{report}"
    );
    let got = answer(&saved, array(&record["inputs"][0]).unwrap());
    assert_close(
        "encoder",
        &got,
        &array(&record["output"]).unwrap().to_f64(),
        1e-4,
    );
}

/// The model `branches` of `make_weights.py`, its layers called by a function of what they are, or automatically.
fn branches(name: Option<fn(&str) -> String>) -> Model {
    let named = |layer: LayerSpec, what: &str| match name {
        Some(name) => layer.named(name(what)),
        None => layer,
    };
    let dense = |what: &str, activation: Activation| {
        named(Dense::new(6).activation(activation).into(), what)
    };
    let mut network = Network::new();
    let x = network.input([5, 6]);
    let attention = named(MultiHeadAttention::new(2, 4).into(), "attention");
    let attended = network.add(attention, &[x]);
    let y = network.add(Add, &[x, attended]);
    let y = network.add(named(LayerNorm::new().into(), "norm"), &[y]);
    let short = network.add(dense("short", Activation::Relu), &[y]);
    let long = network.add(dense("long", Activation::Relu), &[y]);
    let long = network.add(dense("longer", Activation::Sigmoid), &[long]);
    let sum = network.add(Add, &[short, long]);
    let out = network.add(dense("head", Activation::Tanh), &[sum]);
    network.build(&[x], &[out]).unwrap()
}

/// Keras keeps what its functional interface built under another class than a stack, and a chain of ours may be either.
#[test]
fn functional_stacks_of_keras_are_read_however_ours_are_built() {
    let golden = read_json("keras/weights/functional_stacks.json");
    let expected = array(&golden["output"]).unwrap().to_f64();
    let stack = |width: usize, inner: Vec<Model>| {
        let first = Sequential::new([6]).add(Dense::new(width).activation(phalanx::nn::tanh));
        let all = inner.into_iter().fold(first, Sequential::add);
        all.add(Dense::new(6)).build().unwrap()
    };
    let base = || {
        let inner = ["a", "b"].map(|_| stack(4, Vec::new()));
        stack(6, inner.into())
    };
    let mut network = Network::new();
    let x = network.input([6]);
    let y = network.add(base(), &[x]);
    let y = network.add(Dense::new(2), &[y]);
    let by_network = network.build(&[x], &[y]).unwrap();
    let by_stack = Sequential::new([6]).add(base()).add(Dense::new(2));
    for model in [by_network, by_stack.build().unwrap()] {
        let mut saved = fresh(model);
        let report = load(&mut saved, "keras/weights/functional_stacks.weights.h5").unwrap();
        let expected_report = "14 of 14 variables have values, by order";
        assert_eq!(report.to_string(), expected_report);
        let got = answer(&saved, array(&golden["input"]).unwrap());
        assert_close("functional stacks", &got, &expected, 1e-5);
    }
}

/// Keras numbers names as layers are created, and reads its own files in the order of the layers.
#[test]
fn automatic_names_of_keras_do_not_win_over_the_order_of_layers() {
    let golden = read_json("keras/weights/branches.json");
    let expected = array(&golden["output"]).unwrap().to_f64();
    for file in ["branches.weights.h5", "branches.h5"] {
        for name in [
            None,
            Some((|what| format!("my_{what}")) as fn(&str) -> String),
        ] {
            let mut saved = fresh(branches(name));
            let report = load(&mut saved, &format!("keras/weights/{file}")).unwrap();
            assert_eq!(
                report.to_string(),
                "18 of 18 variables have values, by order",
                "{file}"
            );
            let got = answer(&saved, array(&golden["input"]).unwrap());
            assert_close(file, &got, &expected, 1e-5);
        }
    }
}

#[test]
fn variables_of_bfloat16_are_read() {
    let mut saved = fresh(Sequential::new([3]).add(Dense::new(2).named("out")));
    load(&mut saved, "keras/weights/bfloat16.weights.h5").unwrap();
    let values: Vec<Vec<f64>> = saved.values().iter().map(HostTensor::to_f64).collect();
    let expected = [vec![0.25, 0.5, 0.75, 1.0, 1.25, 1.5], vec![-1.0, 2.0]];
    assert_eq!(values, expected);
}

/// The model `recurrent` of `make_weights.py`.
fn recurrent(name: impl Fn(&str) -> String) -> Sequential {
    let lstm = || Lstm::new(3).return_sequences(true);
    let gru = |units| Gru::new(units).return_sequences(true);
    Sequential::new([5, 4])
        .add(Bidirectional::new(lstm().dropout(0.5)).named(name("both")))
        .add(gru(4).named(name("after")))
        .add(gru(3).reset_after(false).named(name("before")))
        .add(
            Bidirectional::new(gru(2))
                .merge_mode(MergeMode::Sum)
                .named(name("added")),
        )
        .add(lstm().named(name("memory")))
        .add(Bidirectional::new(SimpleRnn::new(2)).named(name("ends")))
        .add(Dense::new(2).named(name("out")))
}

#[test]
fn recurrent_layers_of_keras_are_read() {
    let golden = read_json("keras/weights/recurrent.json");
    let mut case = Batch::default();
    let x = case.input(array(&golden["input"]).unwrap());
    let mine = |name: &str| format!("my_{name}");
    for file in ["recurrent.weights.h5", "recurrent.h5"] {
        for (model, matching) in [
            (recurrent(str::to_owned), Matching::Names),
            (recurrent(mine), Matching::Order),
        ] {
            let mut saved = fresh(model);
            let options = LoadWeights {
                matching,
                ..LoadWeights::default()
            };
            let report = saved.load_weights(golden_path(file), options).unwrap();
            assert!(report.unexpected.is_empty(), "{file}: {report}");
            let values = saved.values().iter().cloned();
            let values: Vec<_> = values.map(|value| case.shared(value)).collect();
            let model = saved.model();
            let y = model.call(&mut Cx::new(&case.graph, model, &values), from_ref(&x));
            case.output(&y[0]);
        }
    }
    let expected = array(&golden["output"]).unwrap().to_f64();
    for got in case.run(&oracle::engine()) {
        assert_close("recurrent", &got.to_f64(), &expected, 1e-5);
    }
}

#[test]
fn our_own_weights_come_back() {
    let folder = std::env::temp_dir().join(format!("phalanx-weights-{}", std::process::id()));
    let path = folder.join("tiny.safetensors");
    let first = fresh(tiny(str::to_owned));
    first.save_weights(&path).unwrap();
    first.save_weights(&path).unwrap();
    let model = tiny(str::to_owned);
    let zeros = model
        .variables()
        .iter()
        .map(|v| HostTensor::zeros(v.shape.clone()));
    let mut again = SavedModel::new(model.clone(), zeros.collect()).unwrap();
    again.load_weights(&path, LoadWeights::default()).unwrap();
    assert_eq!(again.values(), first.values());
    let left = std::fs::read_dir(&folder).unwrap().count();
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(left, 1, "nothing but the file stays");
}

/// The contents of the file of a model's weights.
fn file_of(saved: &SavedModel) -> Vec<u8> {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let process = std::process::id();
    let path = std::env::temp_dir().join(format!("phalanx-{process}-{number}.safetensors"));
    saved.save_weights(&path).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    bytes
}

/// The model with zeros for values.
fn zeroed(model: &Model) -> SavedModel {
    let zeros = model.variables().iter();
    let zeros = zeros.map(|variable| HostTensor::zeros(variable.shape.clone()));
    SavedModel::new(model.clone(), zeros.collect()).unwrap()
}

/// Layers of equal shapes.
fn alike(names: &[&str]) -> Model {
    let layers = names.iter().map(|name| Dense::new(4).named(*name));
    let stack = layers.fold(Sequential::new([4]), Sequential::add);
    stack.build().unwrap()
}

#[test]
fn layers_whose_names_begin_alike_are_kept_apart() {
    let model = alike(&["conv1", "conv1_bn", "conv1_bn_2", "conv10", "conv"]);
    let (first, mut second) = (fresh(model.clone()), zeroed(&model));
    let bytes = file_of(&first);
    second
        .load_weights_from("w", &bytes, LoadWeights::default())
        .unwrap();
    assert_eq!(second.values(), first.values());
}

#[test]
fn the_order_of_layers_is_in_our_files() {
    let first = fresh(alike(&["dense", "a", "dense_1"]));
    let bytes = file_of(&first);
    let other = alike(&["x", "y", "z"]);
    let mut second = zeroed(&other);
    let mut load = |bytes: &[u8]| second.load_weights_from("w", bytes, LoadWeights::default());
    let report = load(&bytes).unwrap();
    assert_eq!(report.to_string(), "6 of 6 variables have values, by order");
    // The same without the note, as any other program may write it: names say nothing then.
    let note = br#"{"layers":"[\"dense\",\"a\",\"dense_1\"]"}"#;
    let place = bytes.windows(note.len()).position(|part| part == note);
    let place = place.expect("the file has the note");
    for other in [
        br#"{"layers":"[\"dense\",\"a\",\"dense\"]"}"#.as_slice(),
        br#"{"other":"[\"dense\",\"a\",\"dense_1\"]"}"#,
        br#"{"layers":"a dense, and more"}"#,
    ] {
        let mut unnoted = bytes.clone();
        let padded = other.iter().copied().chain(std::iter::repeat(b' '));
        let range = place..place + note.len();
        unnoted.splice(range, padded.take(note.len()));
        let error = load(&unnoted).unwrap_err().to_string();
        assert!(error.contains("0 of 6 variables have values"), "{error}");
    }
    assert_eq!(second.values(), first.values());
}

/// What a random model is made of.
#[derive(Clone, Debug)]
enum Part {
    Dense(usize),
    Norm,
    Recurrent(usize),
    Both(usize),
    Nested(Vec<Self>),
}

fn parts() -> impl Strategy<Value = Vec<Part>> {
    let leaf = prop_oneof![
        (1..4usize).prop_map(Part::Dense),
        Just(Part::Norm),
        (1..4usize).prop_map(Part::Recurrent),
        (1..3usize).prop_map(Part::Both),
    ];
    let part = leaf.prop_recursive(2, 8, 3, |inner| {
        proptest::collection::vec(inner, 1..4).prop_map(Part::Nested)
    });
    proptest::collection::vec(part, 1..6)
}

/// A model of sequences of `width` features; its layers are called by `name`, which is given numbers.
fn random(parts: &[Part], width: usize, name: &dyn Fn(usize) -> String) -> Model {
    let stack = Sequential::new([3, width]);
    let mut width = width;
    let layers = parts.iter().enumerate();
    let stack = layers.fold(stack, |stack, (number, part)| {
        let layer: LayerSpec = match part {
            Part::Dense(units) => Dense::new(*units).into(),
            Part::Norm => BatchNorm::new().into(),
            Part::Recurrent(units) => Gru::new(*units).return_sequences(true).into(),
            Part::Both(units) => {
                Bidirectional::new(SimpleRnn::new(*units).return_sequences(true)).into()
            }
            Part::Nested(parts) => random(parts, width, name).into(),
        };
        let layer = layer.named(name(number));
        let built = Sequential::new([3, width]).add(layer.clone());
        width = built.build().unwrap().outputs()[0].dims[1];
        stack.add(layer)
    });
    stack.build().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn weights_come_back_by_name_and_by_order(parts in parts(), turn in 0..7usize) {
        // Names in an order that is not that of numbers.
        let first = fresh(random(&parts, 2, &|number| format!("l{}", (number + turn) * 3 % 7)));
        let bytes = file_of(&first);
        let same = first.model().clone();
        let other = random(&parts, 2, &|number| format!("other_{number}"));
        for (model, matching) in [(same, Matching::Auto), (other, Matching::Order)] {
            let mut second = zeroed(&model);
            let options = LoadWeights { matching, ..LoadWeights::default() };
            let report = second.load_weights_from("w", &bytes, options).unwrap();
            prop_assert!(report.unexpected.is_empty());
            prop_assert_eq!(second.values(), first.values());
        }
    }
}
