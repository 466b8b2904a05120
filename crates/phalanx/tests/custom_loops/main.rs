//! Training loops of one's own: functions of replicas, values, distributed data, and what is said of mistakes.

mod averages;
mod batches;
mod descent;
mod keras;
mod mistakes;
#[path = "../oracle/mod.rs"]
mod oracle;
mod own_layers;
mod pipelines;
mod ports;
mod spectral;
mod torch;
mod torch_layers;
mod torch_models;
mod torch_programs;
mod torch_sequences;
mod trained;
mod values;
mod whole_losses;

use std::sync::{Arc, Mutex, OnceLock};

use phalanx::Result;
use phalanx::data::Batch;
use phalanx::engine::{Engine, EngineOptions};
use phalanx::prelude::*;
use phalanx_testkit::assert_relatively_close;

/// What engines have told.
static NOTICES: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn engine() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| {
        Engine::new(&EngineOptions {
            cpu_devices: 3,
            quick_compile: phalanx_testkit::is_quick_commit(env!("CARGO_CRATE_NAME")),
            notice: Arc::new(|line| NOTICES.lock().unwrap().push(line.to_owned())),
            ..EngineOptions::default()
        })
        .unwrap()
    })
}

fn told(text: &str) -> bool {
    NOTICES
        .lock()
        .unwrap()
        .iter()
        .any(|line| line.contains(text))
}

fn mirrored(replicas: usize) -> MirroredStrategy {
    let names = (0..replicas).map(|device| format!("cpu:{device}"));
    MirroredStrategy::on(engine()).devices(names).unwrap()
}

fn rows(count: usize) -> Dataset {
    let x: Vec<f32> = (0..count * 4).map(|i| (i as f32 * 0.37).sin()).collect();
    let y: Vec<i32> = (0..count).map(|i| (i % 3) as i32).collect();
    let (x, y) = (
        HostTensor::new([count, 4], &x),
        HostTensor::new([count], &y),
    );
    Dataset::from_arrays(x, y).unwrap()
}

/// A batch of one column of numbers.
fn column(values: &[f32]) -> Batch {
    Batch {
        x: vec![HostTensor::new([values.len(), 1], values)],
        y: Vec::new(),
        weight: None,
        first: 0,
    }
}

fn mlp() -> Sequential {
    Sequential::new([4])
        .add(
            Dense::new(8)
                .activation(relu)
                .kernel_regularizer(Regularizer::L2 { l2: 0.01 }),
        )
        .add(BatchNorm::new().synchronized(true))
        .add(Dropout::new(0.25))
        .add(Dense::new(3))
}

fn cross_entropy() -> Loss {
    SparseCategoricalCrossentropy::from_logits().into()
}

fn optimizer() -> Optimizer {
    Optimizer::from(Adam::new(0.01)).global_clipnorm(0.5)
}

/// Fails where `b` is further from `a` than this share of it, or of 0.01 where it is smaller.
fn assert_near(what: &str, a: &[f64], b: &[f64], tolerance: f64) {
    assert_relatively_close(what, b, a, tolerance, 1e-2);
}

/// The text of the error of a call.
fn text<T>(result: Result<T>) -> String {
    match result {
        Ok(_) => panic!("expected an error"),
        Err(error) => error.to_string(),
    }
}

/// Fails unless an error has all of these words.
fn assert_says<T>(result: Result<T>, words: &[&str]) {
    let text = text(result);
    for word in words {
        assert!(text.contains(word), "`{word}` is missing in: {text}");
    }
}
