//! Phalanx on whole models: `bench-models MODEL BATCH`, the turns of `bench/peers/README.md`.
#![forbid(unsafe_code)]

mod processors;
mod synthetic;
mod turns;

use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;

use phalanx::data::Batch;
use phalanx::models::{MobileNetV2, TransformerEncoder};
use phalanx::prelude::*;

use synthetic::{CLASSES, IMAGE, classified, cnn, numbers, resnet50};
use turns::Turn;

/// How many processors every framework gets.
const THREADS: usize = 2;
/// Steps of a sequence of recurrent models.
const STEPS: usize = 100;

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
    let [model, batch] = &arguments[..] else {
        return Err("usage: bench-models MODEL BATCH".into());
    };
    processors::use_some(0, THREADS)?;
    let batch = batch.parse()?;
    let sgd = || Sgd::new(0.01).momentum(0.9);
    let of_images = |policy| compiled(resnet50()?, sgd(), policy);
    let (mut trainer, data) = match model.as_str() {
        "resnet50" => (of_images(Policy::Float32)?, classified(batch, IMAGE)?),
        "resnet50_bf16" => (of_images(Policy::MixedBfloat16)?, classified(batch, IMAGE)?),
        "mobilenet_v2" => (
            compiled(mobilenet_v2()?, sgd(), Policy::Float32)?,
            classified(batch, IMAGE)?,
        ),
        "cnn" => (
            compiled(cnn(), sgd(), Policy::Float32)?,
            classified(batch, [28, 28, 1])?,
        ),
        "transformer" => {
            let settings = TransformerEncoder::default();
            let (vocabulary, length) = (settings.vocabulary, settings.length);
            (
                compiled(settings.build()?, Adam::new(1e-3), Policy::Float32)?,
                tokens(batch, length, vocabulary)?,
            )
        }
        other => match recurrent(other) {
            Some((model, units)) => (
                compiled(model, sgd(), Policy::Float32)?,
                classified(batch, [STEPS, units])?,
            ),
            None => {
                let known = "resnet50, resnet50_bf16, mobilenet_v2, cnn, transformer, lstm_UNITS or gru_UNITS";
                return Err(format!("found model {other:?}, expected {known}").into());
            }
        },
    };
    turns::serve(|steps| median(&mut trainer, &data, steps))
}

/// The median of steps that each end when their loss is on the host.
fn median(trainer: &mut Trainer, data: &Batch, steps: usize) -> phalanx::Result<Turn> {
    let mut in_ms = Vec::with_capacity(steps);
    let mut loss = f64::NAN;
    for _ in 0..steps {
        let start = Instant::now();
        let logs = trainer.train_on_batch(data)?;
        in_ms.push(start.elapsed().as_secs_f64() * 1e3);
        loss = logs.get("loss").unwrap_or(f64::NAN);
    }
    in_ms.sort_by(f64::total_cmp);
    let step_ms = in_ms[in_ms.len() / 2];
    Ok(Turn { step_ms, loss })
}

fn compiled(
    model: impl IntoModel,
    optimizer: impl Into<Optimizer>,
    precision: Policy,
) -> phalanx::Result<Trainer> {
    let compile = Compile {
        optimizer: optimizer.into(),
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        precision,
        ..Compile::default()
    };
    OneDeviceStrategy::new()?.compile(model, compile)
}

/// A recurrent layer over a sequence, then classes of its last state; and its units, of which each step has as many features.
fn recurrent(name: &str) -> Option<(Sequential, usize)> {
    let (kind, units) = name.split_once('_')?;
    let units = units.parse().ok()?;
    let first = Sequential::new([STEPS, units]);
    let model = match kind {
        "lstm" => first.add(Lstm::new(units)),
        "gru" => first.add(Gru::new(units)),
        _ => return None,
    };
    Some((model.add(Dense::new(CLASSES as usize)), units))
}

fn mobilenet_v2() -> phalanx::Result<Model> {
    MobileNetV2::new()
        .activation(Activation::Linear)
        .classes(CLASSES as usize)
        .build()
}

/// A batch of tokens and, for each, the one to be predicted.
fn tokens(batch: usize, length: usize, vocabulary: usize) -> phalanx::Result<Batch> {
    let mut next = numbers();
    let mut some = || {
        let count = batch * length;
        let tokens = (0..count).map(|_| (next() % vocabulary as u64) as i32);
        HostTensor::new([batch, length], &tokens.collect::<Vec<_>>())
    };
    let rows = Dataset::from_arrays(some(), some())?;
    rows.batch(batch).get(0, 0)
}
