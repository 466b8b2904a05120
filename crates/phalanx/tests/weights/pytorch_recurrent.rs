//! PyTorch's recurrent modules, each of which has the tensors of several layers: `make_recurrent.py` has the models.

use phalanx::import::LoadWeights;
use phalanx::nn::{
    Bidirectional, Dense, Gru, IntoModel, Layer, LayerSpec, Lstm, Sequential, SimpleRnn,
};
use phalanx::saved::SavedModel;
use phalanx_graph::HostTensor;
use phalanx_testkit::assert_close;
use serde_json::Value;

use crate::{answer, fresh, golden, load, read_json};

fn file(name: &str) -> String {
    format!("torch/recurrent/{name}.safetensors")
}

/// Compares what a model answers.
#[track_caller]
fn compare(name: &str, saved: &SavedModel) {
    let golden = &read_json("torch/recurrent.json")[name];
    let numbers = |value: &Value| -> Vec<f64> { serde_json::from_value(value.clone()).unwrap() };
    let input = numbers(&golden["input"]).into_iter();
    let input: Vec<f32> = input.map(|x| x as f32).collect();
    let got = answer(saved, HostTensor::new([2, 5, 3], &input));
    assert_close(name, &got, &numbers(&golden["output"]), 1e-5);
}

/// Reads PyTorch's weights of this name, and compares what the model answers.
#[track_caller]
fn check(name: &str, model: impl IntoModel) {
    let mut saved = fresh(model);
    let report = load(&mut saved, &file(name)).unwrap();
    assert!(
        report.is_complete() && report.unexpected.is_empty(),
        "{name}: {report}"
    );
    compare(name, &saved);
}

/// Layers after each other, called as those of PyTorch's module `rnn`, and a dense one.
fn stack(layers: impl IntoIterator<Item = LayerSpec>) -> Sequential {
    let layers = layers.into_iter().enumerate();
    let layers = layers.map(|(number, layer)| match number {
        0 => layer.named("rnn"),
        _ => layer.named(format!("rnn_{number}")),
    });
    let stack = layers.fold(Sequential::new([5, 3]), Sequential::add);
    stack.add(Dense::new(2).named("out"))
}

#[test]
fn lstms_of_several_layers_are_read() {
    let layer = Lstm::new(4);
    check(
        "lstm",
        stack([layer.clone().return_sequences(true).into(), layer.into()]),
    );
}

#[test]
fn grus_of_several_layers_are_read() {
    let layers = vec![Gru::new(4).return_sequences(true).into(); 3];
    check("gru", stack(layers));
}

#[test]
fn plain_layers_are_read() {
    let layer = SimpleRnn::new(4);
    check(
        "rnn",
        stack([layer.clone().return_sequences(true).into(), layer.into()]),
    );
}

#[test]
fn both_directions_are_read() {
    let every = Bidirectional::new(Lstm::new(4).return_sequences(true));
    let last = Bidirectional::new(Lstm::new(4));
    check("lstm_both_ways", stack([every.into(), last.into()]));
    let gru = Bidirectional::new(Gru::new(4).return_sequences(true));
    check("gru_both_ways", stack([gru.into()]));
}

#[test]
fn layers_without_biases_are_read() {
    check(
        "without_biases",
        stack([Gru::new(4).use_bias(false).into()]),
    );
    let refused = load(
        &mut fresh(stack([Gru::new(4).into()])),
        &file("without_biases"),
    );
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("not in the file: `rnn/bias`"), "{refused}");
}

#[test]
fn cells_are_read() {
    let cells = Sequential::new([5, 3])
        .add(Lstm::new(4).return_sequences(true).named("first"))
        .add(Gru::new(5).named("second"));
    check("cells", cells);
}

#[test]
fn the_state_of_a_module_alone_is_read() {
    let layers = || {
        let layer = Lstm::new(4);
        let every = layer.clone().return_sequences(true);
        [every, layer].map(|layer| Bidirectional::new(layer).into())
    };
    let module: Sequential = layers()
        .into_iter()
        .fold(Sequential::new([5, 3]), Sequential::add);
    let mut alone = fresh(module);
    let report = load(&mut alone, &file("alone")).unwrap();
    assert_eq!(
        report.to_string(),
        "12 of 12 variables have values, by order"
    );
    let mut whole = fresh(stack(layers()));
    load(&mut whole, &file("lstm_both_ways")).unwrap();
    assert_eq!(alone.values()[..], whole.values()[..12]);
}

/// What the refusal of a file for this layer says, even where what does not fit may be left out.
#[track_caller]
fn refusal(name: &str, layer: impl Into<LayerSpec>, skip_mismatch: bool) -> String {
    let options = LoadWeights {
        skip_mismatch,
        ..LoadWeights::default()
    };
    let mut saved = fresh(stack([layer.into()]));
    let refused = saved.load_weights(golden(&file(name)), options);
    refused.unwrap_err().to_string()
}

#[test]
fn gates_that_pytorch_has_otherwise_are_refused() {
    for skip_mismatch in [false, true] {
        let gru = || Gru::new(4).reset_after(false);
        let refused = refusal("without_biases", gru().use_bias(false), skip_mismatch);
        assert!(
            refused.contains("layer `rnn`") && refused.contains("`reset_after`"),
            "{refused}"
        );
        let gru = Bidirectional::new(gru().return_sequences(true));
        let refused = refusal("gru_both_ways", gru, skip_mismatch);
        assert!(refused.contains("`reset_after`"), "{refused}");
    }
}

#[test]
fn what_does_not_fit_is_said() {
    let refused = refusal("projected", Lstm::new(4), false);
    assert!(
        refused.contains("`rnn.weight_hr_l0` is a projection") && refused.contains("proj_size"),
        "{refused}"
    );
    let refused = refusal("without_biases", Lstm::new(4).use_bias(false), false);
    assert!(
        refused.contains("`rnn/kernel` needs f32[16,3], `rnn.weight_ih_l0` is f32[12,3]"),
        "{refused}"
    );
    // Both biases of layers that the model has not.
    let refused = refusal("gru", Gru::new(5), false);
    assert!(refused.contains("`rnn.bias_hh_l1`"), "{refused}");
}
