//! The model that a `train.yaml` describes.

use std::path::Path;

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
    let model = build(&config(&GOOD), &[8, 8, 1]).unwrap();
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
    let model = build(&config(&layers), &[64, 48, 3]).unwrap();
    let trainable = model.variables().iter().filter(|v| v.trainable);
    let trainable: Vec<&str> = trainable.map(|v| v.name.as_str()).collect();
    assert_eq!(trainable, ["dense/kernel", "dense/bias"]);
    assert_eq!(model.variables()[0].name, "base/Conv1/kernel");
    let problems = build(&config(&["flatten", "resnet50"]), &[8, 8, 1]).unwrap_err();
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
            "m.yaml:5:5: ",
        ),
    ];
    for (layers, features, place) in cases {
        let message = build(&config(layers), features).unwrap_err().to_string();
        assert!(
            message.starts_with(place) && message.contains("; "),
            "{message}"
        );
    }
}
