//! Phalanx on replicas with a processor each: `bench-scaling MODEL BATCH REPLICAS`, the turns of `bench/peers/README.md`.
//!
//! The batch is that of each replica; one replica runs on one device without a reduction.
#![forbid(unsafe_code)]

mod processors;
mod synthetic;
mod turns;

use std::error::Error;
use std::process::ExitCode;

use phalanx::engine::EngineOptions;
use phalanx::prelude::*;

use synthetic::{IMAGE, classified, cnn, resnet50};

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
    let (trainer, data) = match model.as_str() {
        "mlp" => (compiled(mlp(), replicas)?, classified(rows, [784])?),
        "cnn" => (compiled(cnn(), replicas)?, classified(rows, [28, 28, 1])?),
        "resnet50" => (compiled(resnet50()?, replicas)?, classified(rows, IMAGE)?),
        other => {
            return Err(format!("found model {other:?}, expected mlp, cnn or resnet50").into());
        }
    };
    turns::serve(trainer, &data)
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
