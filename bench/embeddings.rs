//! Phalanx on a large table of embeddings: `bench-embeddings sgd|adagrad|adam ROWS`, the turns of `bench/peers/README.md`.
#![forbid(unsafe_code)]

mod processors;
mod program;
#[allow(dead_code, reason = "other programs train the models")]
mod synthetic;
mod turns;

use std::error::Error;
use std::process::ExitCode;

use phalanx::data::Batch;
use phalanx::nn::EmbeddingBag;
use phalanx::prelude::*;

use synthetic::numbers;

/// How many processors every framework gets.
const THREADS: usize = 2;
/// Numbers of a row of the table.
const WIDTH: usize = 64;
/// Examples of a batch, and rows of the table that each names.
const EXAMPLES: usize = 256;
const BAG: usize = 16;
/// So many batches take turns, so that few rows are still in a cache when they are named again.
const BATCHES: usize = 64;

fn main() -> ExitCode {
    program::exit(run())
}

fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, rows] = &arguments[..] else {
        return Err("usage: bench-embeddings sgd|adagrad|adam ROWS".into());
    };
    let (optimizer, rows) = (optimizer(name)?, rows.parse()?);
    processors::use_some(0, THREADS)?;
    let compile = Compile {
        optimizer,
        loss: BinaryCrossentropy::from_logits().into(),
        ..Compile::default()
    };
    let model = Sequential::new(Input::new([BAG]).dtype(DType::I32))
        .add(EmbeddingBag::new(rows, WIDTH))
        .add(Dense::new(1));
    let mut trainer = OneDeviceStrategy::new()?.compile(model, compile)?;
    let batches = batches(rows)?;
    let mut number = 0;
    let mut step = || {
        number += 1;
        let logs = trainer.train_on_batch(&batches[number % BATCHES])?;
        Ok(logs.get("loss").unwrap_or(f64::NAN))
    };
    turns::serve(|steps| turns::median(steps, &mut step))
}

/// What updates the rows that a batch names, and no others.
fn optimizer(name: &str) -> Result<Optimizer, String> {
    match name {
        "sgd" => Ok(Sgd::new(0.01).into()),
        "adagrad" => Ok(Adagrad::new(0.01).into()),
        // Keras' Adam moves rows on that have no gradient; PyTorch's SparseAdam does not, either.
        "adam" => Ok(Optimizer::from(Adam::new(0.001)).lazy()),
        other => Err(format!(
            "found optimizer {other:?}, expected sgd, adagrad or adam"
        )),
    }
}

/// Rows of the table at random, and whether the example is one or the other.
fn batches(rows: usize) -> phalanx::Result<Vec<Batch>> {
    let mut next = numbers();
    let mut batch = || {
        let ids: Vec<i32> = (0..EXAMPLES * BAG)
            .map(|_| (next() >> 16) as usize % rows)
            .map(|id| id as i32)
            .collect();
        let labels: Vec<f32> = (0..EXAMPLES).map(|_| (next() >> 40 & 1) as f32).collect();
        let x = HostTensor::new([EXAMPLES, BAG], &ids);
        let y = HostTensor::new([EXAMPLES, 1], &labels);
        Dataset::from_arrays(x, y)?.batch(EXAMPLES).get(0, 0)
    };
    (0..BATCHES).map(|_| batch()).collect()
}
