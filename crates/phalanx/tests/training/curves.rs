//! The losses, weights and outputs of Keras' trainings.

use std::path::Path;

use phalanx::data::Batch;
use phalanx::prelude::*;
use phalanx_testkit::assert_close;
use serde_json::Value;

use crate::trainer;

fn golden(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/golden/keras")
        .join(name);
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn tensor(value: &Value) -> HostTensor {
    let dims: Vec<usize> = serde_json::from_value(value["shape"].clone()).unwrap();
    let data: Vec<f32> = serde_json::from_value(value["data"].clone()).unwrap();
    HostTensor::new(dims, &data)
}

/// Ours by position: both list kernels before biases, and gamma, beta, mean, variance.
fn set_initial(trainer: &mut Trainer, golden: &Value) {
    let names: Vec<String> = trainer
        .model()
        .variables()
        .iter()
        .map(|v| v.name.clone())
        .collect();
    let weights = golden["initial_weights"].as_array().unwrap();
    assert_eq!(names.len(), weights.len());
    let given = names
        .into_iter()
        .zip(weights)
        .map(|(name, weight)| (name, tensor(&weight["value"])));
    trainer.set_variables(&given.collect::<Vec<_>>()).unwrap();
}

fn data(golden: &Value) -> (Vec<f32>, Vec<i32>) {
    let dims: Vec<usize> = serde_json::from_value(golden["input_shape"].clone()).unwrap();
    let row = dims.iter().product::<usize>();
    let x = |i: usize, j: usize| {
        (((i * 7919 + j * 104_729 + i * j * 613) % 1000) as f64 / 1000.0 - 0.5) as f32
    };
    let x: Vec<f32> = (0..64 * row).map(|at| x(at / row, at % row)).collect();
    let y: Vec<i32> = (0..64).map(|i| (i * i + 3 * i + i / 7) % 5).collect();
    let sum: f64 = x.iter().map(|&x| f64::from(x)).sum();
    assert!((sum - golden["input_sum"].as_f64().unwrap()).abs() < 1e-6);
    assert_eq!(serde_json::to_value(&y).unwrap(), golden["labels"]);
    (x, y)
}

fn follow(name: &str, model: Sequential, optimizer: Optimizer, dims: &[usize]) {
    let golden = golden(name);
    let mut trainer = trainer(
        model,
        Compile {
            optimizer,
            loss: SparseCategoricalCrossentropy::from_logits().into(),
            ..Compile::default()
        },
    );
    set_initial(&mut trainer, &golden);
    let (x, y) = data(&golden);
    let row = x.len() / 64;
    let losses: Vec<f64> = serde_json::from_value(golden["losses"].clone()).unwrap();
    for (step, expected) in losses.iter().enumerate() {
        let start = step * 16 % 64;
        let batch = Batch {
            x: vec![HostTensor::new(
                [&[16], dims].concat(),
                &x[start * row..(start + 16) * row],
            )],
            y: vec![HostTensor::new([16], &y[start..start + 16])],
            weight: None,
            first: 0,
        };
        let loss = trainer.train_on_batch(&batch).unwrap()["loss"];
        assert!(
            (loss - expected).abs() <= 1e-4 * expected,
            "step {step}: {loss} is not {expected}"
        );
    }
    let weights = golden["final_weights"].as_array().unwrap();
    for ((name, value), expected) in trainer.variables().unwrap().iter().zip(weights) {
        let expected = tensor(&expected["value"]).f32s();
        println!("{name}");
        assert_close("values", &value.f32s(), &expected, 1e-3);
    }
    let first = HostTensor::new([&[4], dims].concat(), &x[..4 * row]);
    let logits = trainer.predict_on_batch(&[first]).unwrap();
    assert_close(
        "values",
        &logits[0].f32s(),
        &tensor(&golden["final_logits"]).f32s(),
        1e-3,
    );
}

#[test]
fn an_mlp_follows_keras_for_50_steps() {
    let model = Sequential::new([20])
        .add(Dense::new(16).activation(relu))
        .add(Dense::new(5));
    follow(
        "curve_mlp.json",
        model,
        Sgd::new(0.1).momentum(0.9).into(),
        &[20],
    );
}

#[test]
fn a_cnn_with_batch_normalization_follows_keras_for_50_steps() {
    let model = Sequential::new([8, 8, 1])
        .add(Conv2d::new(4, 3).padding(Padding::Same).use_bias(false))
        .add(BatchNorm::new())
        .add(ActivationLayer::new(relu))
        .add(MaxPool2d::new(2))
        .add(Flatten)
        .add(Dense::new(5));
    follow("curve_cnn.json", model, Adam::new(1e-3).into(), &[8, 8, 1]);
}
