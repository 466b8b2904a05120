//! Whole training: against Keras' curves, and against what must not make a difference.

mod added_losses;
#[path = "../any_device/mod.rs"]
mod any_device;
mod curves;
mod data;
mod mistakes;
mod results;
mod steps;
mod targets;

use std::sync::{Arc, Mutex, OnceLock};

use phalanx::data::Batch;
use phalanx::engine::{Engine, EngineOptions};
use phalanx::prelude::*;

fn notices() -> &'static Arc<Mutex<Vec<String>>> {
    static NOTICES: OnceLock<Arc<Mutex<Vec<String>>>> = OnceLock::new();
    NOTICES.get_or_init(Arc::default)
}

fn strategy() -> OneDeviceStrategy {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    let engine = ENGINE.get_or_init(|| {
        Engine::new(&EngineOptions {
            notice: Arc::new(|line| notices().lock().unwrap().push(line.to_owned())),
            ..any_device::options()
        })
        .unwrap()
    });
    OneDeviceStrategy::on(engine)
}

/// `rows` examples of 6 numbers in 3 classes, from a formula.
fn arrays(rows: usize) -> (HostTensor, HostTensor) {
    let x: Vec<f32> = (0..rows * 6)
        .map(|i| ((i * 37 + i / 6 * 11) % 29) as f32 / 14.5 - 1.0)
        .collect();
    let y: Vec<i32> = (0..rows).map(|i| (i * i % 7 % 3) as i32).collect();
    (HostTensor::new([rows, 6], &x), HostTensor::new([rows], &y))
}

fn dataset(rows: usize) -> Dataset {
    let (x, y) = arrays(rows);
    Dataset::from_arrays(x, y).unwrap()
}

fn batch(rows: usize, weights: Option<&[f32]>) -> Batch {
    let (x, y) = arrays(rows);
    Batch {
        x: vec![x],
        y: vec![y],
        weight: weights.map(|weights| HostTensor::new([rows], weights)),
        first: 0,
    }
}

fn mlp() -> Sequential {
    Sequential::new([6])
        .add(Dense::new(5).activation(tanh))
        .add(Dense::new(3))
}

fn sgd(rate: f64) -> Compile {
    Compile {
        optimizer: Sgd::new(rate).momentum(0.9).into(),
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        metrics: vec![Accuracy.into()],
        ..Compile::default()
    }
}

fn trainer(model: impl IntoModel, compile: Compile) -> Trainer {
    strategy().compile(model, compile).unwrap()
}

fn silent(epochs: usize) -> Fit {
    Fit::epochs(epochs).progress(Progress::Silent)
}

fn values(trainer: &Trainer) -> Vec<f32> {
    let variables = trainer.variables().unwrap();
    variables
        .iter()
        .flat_map(|(_, value)| value.f32s())
        .collect()
}

#[track_caller]
fn message<T>(result: phalanx::Result<T>) -> String {
    match result {
        Ok(_) => panic!("expected an error"),
        Err(error) => error.to_string(),
    }
}
