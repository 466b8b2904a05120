//! Phalanx on replicas with a processor each: `bench-scaling MODEL BATCH REPLICAS`, the turns of `bench/peers/README.md`.
//!
//! The batch is that of each replica; one replica runs on one device without a reduction.
#![forbid(unsafe_code)]

mod processors;
mod synthetic;
mod turns;

use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;

use phalanx::engine::EngineOptions;
use phalanx::prelude::*;

use synthetic::{IMAGE, classified, cnn, resnet50};
use turns::Turn;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, batch, replicas] = &arguments[..] else {
        return Err("usage: bench-scaling MODEL BATCH REPLICAS".into());
    };
    let replicas: usize = replicas.parse()?;
    processors::use_first(replicas)?;
    let rows = replicas * batch.parse::<usize>()?;
    let (mut trainer, data) = match model.as_str() {
        "mlp" => (compiled(mlp(), replicas)?, classified(rows, [784])?),
        "cnn" => (compiled(cnn(), replicas)?, classified(rows, [28, 28, 1])?),
        "resnet50" => (compiled(resnet50()?, replicas)?, classified(rows, IMAGE)?),
        other => {
            return Err(format!("found model {other:?}, expected mlp, cnn or resnet50").into());
        }
    };
    let batches = Dataset::from_arrays(data.x[0].clone(), data.y[0].clone())?;
    let batches = batches.batch(rows).repeat_forever();
    turns::serve(|steps| epoch(&mut trainer, &batches, steps))
}

/// An epoch of so many steps, whose results are on the host at its end: the time of all of them, divided.
fn epoch(trainer: &mut Trainer, batches: &Batches, steps: usize) -> phalanx::Result<Turn> {
    let fit = Fit::epochs(1)
        .steps_per_epoch(steps)
        .progress(Progress::Silent);
    let start = Instant::now();
    let history = trainer.fit(batches, fit)?;
    let step_ms = start.elapsed().as_secs_f64() * 1e3 / steps as f64;
    let last = history.epochs.last();
    let loss = last.and_then(|epoch| epoch.logs.get("loss"));
    let loss = loss.unwrap_or(f64::NAN);
    Ok(Turn { step_ms, loss })
}

fn compiled(model: impl IntoModel, replicas: usize) -> phalanx::Result<Trainer> {
    let compile = Compile {
        optimizer: Sgd::new(0.01).momentum(0.9).into(),
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        ..Compile::default()
    };
    let options = EngineOptions {
        cpu_devices: replicas,
        ..EngineOptions::default()
    };
    if replicas == 1 {
        return OneDeviceStrategy::with(&options)?.compile(model, compile);
    }
    MirroredStrategy::with(&options)?.compile(model, compile)
}

/// Two dense layers.
fn mlp() -> Sequential {
    Sequential::new([784])
        .add(Dense::new(128).activation(relu))
        .add(Dense::new(10))
}
