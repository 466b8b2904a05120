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
