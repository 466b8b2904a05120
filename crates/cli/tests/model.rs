//! The model that a `train.yaml` describes.

use std::path::Path;

use phalanx::DType;
use phalanx::nn::Input;
use phalanx_cli::config::{TrainConfig, parse};
use phalanx_cli::model::build;

fn config(layers: &[&str]) -> TrainConfig {
    let layers: String = layers
        .iter()
        .map(|layer| format!("  - {layer}\n"))
        .collect();
    let text = format!("data: {{csv: a.csv}}\noptimizer: adam\nloss: huber\nmodel:\n{layers}");
    parse(&text, Path::new("m.yaml")).unwrap_or_else(|problems| panic!("{problems}"))
}

const GOOD: [&str; 5] = [
    "conv2d: {filters: 4, kernel_size: 3, activation: relu}",
    "max_pool2d",
    "flatten",
    "dropout: {rate: 0.5}",
    "dense: {units: 10, name: digits}",
];

#[test]
fn layers_are_stacked_in_order() {
    let model = build(&config(&GOOD), &[Input::new([8, 8, 1])]).unwrap();
    let variables: Vec<String> = model
        .variables()
        .iter()
        .map(|v| format!("{} {:?}", v.name, v.shape.dims))
        .collect();
    let expected = [
        "conv2d/kernel [3, 3, 1, 4]",
        "conv2d/bias [4]",
        "digits/kernel [36, 10]",
        "digits/bias [10]",
    ];
    assert_eq!(variables, expected);
}

#[test]
fn whole_models_are_layers() {
    let layers = [
        "max_pool2d",
        "mobilenet_v2: {alpha: 0.1, include_top: false, pooling: average, trainable: false, name: base}",
        "dense: {units: 3}",
    ];
    let model = build(&config(&layers), &[Input::new([64, 48, 3])]).unwrap();
    let trainable = model.variables().iter().filter(|v| v.trainable);
    let trainable: Vec<&str> = trainable.map(|v| v.name.as_str()).collect();
    assert_eq!(trainable, ["dense/kernel", "dense/bias"]);
    assert_eq!(model.variables()[0].name, "base/Conv1/kernel");
    let problems = build(&config(&["flatten", "resnet50"]), &[Input::new([8, 8, 1])]).unwrap_err();
    let text = problems.to_string();
    assert!(
        text.contains("m.yaml:6:5") && text.contains("model `resnet50` takes images"),
        "{text}"
    );
    let wrong = "data: {csv: a}\noptimizer: adam\nloss: huber\nmodel: [resnet50: {clases: 2}]";
    let text = parse(wrong, Path::new("m.yaml")).unwrap_err().to_string();
    assert!(
        text.contains("resnet50: unknown field `clases`")
            && text.contains("did you mean `classes`?"),
        "{text}"
    );
}

#[test]
fn a_layer_that_does_not_fit_is_told_at_its_line() {
    let cases: [(&[&str], &[usize], &str); 5] = [
        (&GOOD, &[64], "m.yaml:5:5: "),
        (
            &[
                "flatten",
                "conv2d: {filters: 4, kernel_size: 3}",
                "dense: {units: 2}",
            ],
            &[8, 8, 1],
            "m.yaml:6:5: ",
        ),
        (
            &["max_pool2d", "max_pool2d", "max_pool2d", "max_pool2d"],
            &[8, 8, 1],
            "m.yaml:8:5: ",
        ),
        (
            &[
                "dense: {units: 2, name: a}",
                "flatten",
                "dense: {units: 2, name: a}",
            ],
            &[4],
            "m.yaml:7:",
        ),
        (
            &["reshape: {target_shape: [3, -1]}", "flatten"],
            &[4],
            "m.yaml:5:15: ",
        ),
    ];
    for (layers, features, place) in cases {
        let message = build(&config(layers), &[Input::new(features)])
            .unwrap_err()
            .to_string();
        assert!(
            message.starts_with(place) && message.contains("; "),
            "{message}"
        );
    }
}

/// Two inputs: an index and three numbers.
fn connected(layers: &[&str]) -> TrainConfig {
    let layers: String = layers
        .iter()
        .map(|layer| format!("  - {layer}\n"))
        .collect();
    let data = "{csv: a.csv, inputs: {user: user, about: [a, b, c]}}";
    let text = format!("data: {data}\noptimizer: adam\nloss: huber\nmodel:\n{layers}");
    parse(&text, Path::new("m.yaml")).unwrap_or_else(|problems| panic!("{problems}"))
}

fn user_and_about() -> [Input; 2] {
    let user = Input::new([]).dtype(DType::I32).named("user");
    [user, Input::new([3]).named("about")]
}

#[test]
fn layers_take_what_they_name() {
    let layers = [
        "embedding: {inputs: user, input_dim: 7, output_dim: 4, name: vector}",
        "dense: {inputs: about, units: 4, name: hidden}",
        "dense: {units: 4, name: deep}",
        "add: {inputs: [vector, deep, hidden]}",
        "dense: {units: 2}",
    ];
    let model = build(&connected(&layers), &user_and_about()).unwrap();
    let inputs: Vec<String> = model
        .inputs()
        .map(|(name, shape)| format!("{name} {} {:?}", shape.dtype, shape.dims))
        .collect();
    assert_eq!(inputs, ["user i32 []", "about f32 [3]"]);
    let calls = model.config()["calls"].clone();
    let expected = serde_json::json!([
        {"layer": "vector", "inputs": ["user"]},
        {"layer": "hidden", "inputs": ["about"]},
        {"layer": "deep", "inputs": ["hidden"]},
        {"layer": "add", "inputs": ["vector", "deep", "hidden"]},
        {"layer": "dense", "inputs": ["add"]},
    ]);
    assert_eq!(calls, expected);
    assert_eq!(model.outputs()[0].dims, [2]);
}

#[test]
fn a_branch_begins_at_the_only_input() {
    let layers = [
        "dense: {units: 3, name: hidden}",
        "add: {inputs: [input, hidden]}",
        "dense: {units: 1}",
    ];
    let model = build(&config(&layers), &[Input::new([3])]).unwrap();
    let calls = model.config()["calls"].clone();
    assert_eq!(calls[1]["inputs"], serde_json::json!(["input", "hidden"]));
    // A whole model on an input, and on a layer.
    let layers = [
        "zero_padding2d: {padding: 1, name: wide}",
        "mobilenet_v2: {alpha: 0.1, include_top: false, pooling: average, inputs: input, name: one}",
        "mobilenet_v2: {alpha: 0.1, include_top: false, pooling: average, inputs: wide, name: two}",
        "add: {inputs: [one, two]}",
    ];
    let model = build(&config(&layers), &[Input::new([32, 32, 3])]).unwrap();
    assert_eq!(
        model.config()["calls"][3]["inputs"],
        serde_json::json!(["one", "two"])
    );
}

#[test]
fn a_layer_that_does_not_fit_what_it_names_is_told_at_its_line() {
    let cases: [(&[&str], &str, &str); 3] = [
        (
            &[
                "embedding: {inputs: user, input_dim: 7, output_dim: 4, name: vector}",
                "dense: {inputs: about, units: 3, name: hidden}",
                "dot: {inputs: [vector, hidden]}",
                "dense: {units: 2}",
            ],
            "m.yaml:7:5: ",
            "[batch,4]",
        ),
        (
            &[
                "dense: {inputs: user, units: 3, name: a}",
                "dense: {inputs: about, units: 3, name: b}",
                "dot: {inputs: [a, b]}",
            ],
            "m.yaml:5:5: ",
            "expected floats, got i32[batch]; the input `user` is an index, as `embedding` takes it",
        ),
        (
            &[
                "embedding: {inputs: user, input_dim: 7, output_dim: 4, name: vector}",
                "dense: {inputs: [about, vector], units: 3}",
            ],
            "m.yaml:6:",
            "dense",
        ),
    ];
    for (layers, place, part) in cases {
        let error = build(&connected(layers), &user_and_about()).unwrap_err();
        let error = error.to_string();
        assert!(error.starts_with(place) && error.contains(part), "{error}");
    }
}
