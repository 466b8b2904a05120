//! First values.

use phalanx::nn::{Conv2d, Initializer, MultiHeadAttention, Network, Sequential};
use phalanx_graph::Shape;
use serde_json::{Value, json};

use crate::golden;

fn moments(values: &[f64]) -> (f64, f64) {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / values.len() as f64;
    (mean, variance.sqrt())
}

fn read(record: &Value) -> Initializer {
    let named = json!({ record["initializer"].as_str().unwrap(): record["config"] });
    serde_json::from_value(named).unwrap()
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
fn an_identity_is_on_the_diagonal_of_a_matrix() {
    let start = Initializer::Identity { gain: 0.5 };
    let values = start.values(&Shape::f32([2, 3]), 0, "dense/kernel");
    assert_eq!(values.f32s(), [0.5, 0.0, 0.0, 0.0, 0.5, 0.0]);
    let model = Sequential::new([2, 3, 1]).add(Conv2d::new(1, 1).kernel_initializer(start));
    let told = model.build().unwrap_err().to_string();
    assert!(
        told.contains("an identity initializer needs 2 dims, got [1, 1, 1, 1]"),
        "{told}"
    );
}

#[test]
fn initializers_have_the_distributions_of_keras() {
    let records = golden("initializers.json");
    assert!(records.len() > 30);
    for record in &records {
        let name = record["name"].as_str().unwrap();
        let initializer = read(record);
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
            _ => check_draws(name, &values, expected),
        }
    }
}

/// The least, the most, the mean and the deviation of many draws.
fn check_draws(name: &str, values: &[f64], expected: &Value) {
    let number = |field: &str| expected[field].as_f64().unwrap();
    let kind = expected["distribution"].as_str().unwrap();
    assert!(
        ["uniform", "truncated_normal", "normal"].contains(&kind),
        "{name}: {kind}"
    );
    let (low, high) = (number("low"), number("high"));
    let (mean, stddev) = moments(values);
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
    // Of a normal few draws come near five deviations.
    let margin = (high - low) * if kind == "normal" { 0.2 } else { 0.01 };
    assert!(
        (kind == "normal" || low - 1e-6 <= least) && least < low + margin,
        "{name}: least {least}"
    );
    assert!(
        high - margin < most && (kind == "normal" || most <= high + 1e-6),
        "{name}: most {most}"
    );
}

#[test]
fn kernels_of_attention_start_as_in_keras() {
    let records = golden("attention_starts.json");
    assert_eq!(records.len(), 32);
    for record in &records {
        let name = record["name"].as_str().unwrap();
        let initializer = read(record);
        let layer = MultiHeadAttention::new(4, 8).value_dim(6).output_shape(10);
        let mut network = Network::new();
        let inputs = [[5, 24], [7, 12], [7, 20]].map(|dims| network.input(dims));
        let y = network.add(layer.kernel_initializer(initializer), &inputs);
        let model = network.build(&inputs, &[y]).unwrap();
        let path = format!(
            "multi_head_attention/{}/kernel",
            record["kernel"].as_str().unwrap()
        );
        let mut variables = model.variables().iter();
        let at = variables.position(|variable| variable.name == path);
        let draw = |seed| model.init(seed).unwrap()[at.unwrap()].clone();
        assert_eq!(json!(draw(0).dims()), record["shape"], "{name}");
        let values: Vec<f64> = (0..200).flat_map(|seed| draw(seed).to_f64()).collect();
        check_draws(name, &values, &record["expected"]);
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
