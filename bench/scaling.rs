//! Phalanx on replicas with a processor each: `bench-scaling MODEL BATCH REPLICAS [SKIPPED]`, the turns of `bench/peers/README.md`.
//!
//! The batch is per replica; one replica runs on one device without a reduction. The first processors may be left to another program.
#![forbid(unsafe_code)]

mod processors;
mod program;
mod replica_training;
mod synthetic;
mod turns;

use std::error::Error;
use std::process::ExitCode;

use phalanx::engine::EngineOptions;
use phalanx::prelude::*;

use replica_training::{epoch, prepare};

fn main() -> ExitCode {
    program::exit(run())
}

fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, batch, replicas, skipped @ ..] = &arguments[..] else {
        return Err("usage: bench-scaling MODEL BATCH REPLICAS [SKIPPED]".into());
    };
    let replicas: usize = replicas.parse()?;
    let skipped = skipped.first().map_or(Ok(0), |skipped| skipped.parse())?;
    processors::use_some(skipped, replicas)?;
    let rows = replicas * batch.parse::<usize>()?;
    let options = EngineOptions {
        cpu_devices: replicas,
        ..EngineOptions::default()
    };
    let strategy: Box<dyn Strategy> = match replicas {
        1 => Box::new(OneDeviceStrategy::with(&options)?),
        _ => Box::new(MirroredStrategy::with(&options)?),
    };
    let (mut trainer, batches) = prepare(&strategy, model, rows)?;
    turns::serve(|steps| epoch(&mut trainer, &batches, steps))
}
