//! Phalanx on whole models: `bench-models MODEL BATCH`, the turns of `bench/peers/README.md`.
#![forbid(unsafe_code)]

mod processors;

use std::error::Error;
use std::io::BufRead;
use std::process::ExitCode;
use std::time::Instant;

use phalanx::data::Batch;
use phalanx::models::{MobileNetV2, ResNet50, TransformerEncoder};
use phalanx::prelude::*;

const CLASSES: u64 = 10;
const IMAGE: [usize; 3] = [224, 224, 3];

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
    processors::use_first()?;
    let batch = batch.parse()?;
    let sgd = || Sgd::new(0.01).momentum(0.9);
    let of_images = |policy| compiled(resnet50()?, sgd(), policy);
    let (trainer, data) = match model.as_str() {
        "resnet50" => (of_images(Policy::Float32)?, images(batch, IMAGE)?),
        "resnet50_bf16" => (of_images(Policy::MixedBfloat16)?, images(batch, IMAGE)?),
        "mobilenet_v2" => (
            compiled(mobilenet_v2()?, sgd(), Policy::Float32)?,
            images(batch, IMAGE)?,
        ),
        "cnn" => (
            compiled(cnn(), sgd(), Policy::Float32)?,
            images(batch, [28, 28, 1])?,
        ),
        "transformer" => {
            let settings = TransformerEncoder::default();
            let (vocabulary, length) = (settings.vocabulary, settings.length);
            (
                compiled(settings.build()?, Adam::new(1e-3), Policy::Float32)?,
                tokens(batch, length, vocabulary)?,
            )
        }
        other => {
            let known = "resnet50, resnet50_bf16, mobilenet_v2, cnn or transformer";
            return Err(format!("found model {other:?}, expected {known}").into());
        }
    };
    serve(trainer, &data)
}

/// Says that it is ready; then, for each line of input with a number, takes so many steps and says how long they took.
fn serve(mut trainer: Trainer, data: &Batch) -> Result<(), Box<dyn Error>> {
    let version = env!("CARGO_PKG_VERSION");
    println!(
        "{}",
        serde_json::json!({"framework": "phalanx", "version": version, "variant": ""})
    );
    for line in std::io::stdin().lock().lines() {
        let steps: usize = line?.trim().parse()?;
        let mut in_ms = Vec::with_capacity(steps);
        let mut loss = f64::NAN;
        for _ in 0..steps {
            let start = Instant::now();
            let logs = trainer.train_on_batch(data)?;
            in_ms.push(start.elapsed().as_secs_f64() * 1e3);
            loss = logs.get("loss").unwrap_or(f64::NAN);
        }
        println!(
            "{}",
            serde_json::json!({"median_ms": median(&mut in_ms), "n": steps, "loss": loss})
        );
    }
    Ok(())
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

fn resnet50() -> phalanx::Result<Model> {
    ResNet50::new()
        .activation(Activation::Linear)
        .classes(CLASSES as usize)
        .build()
}

fn mobilenet_v2() -> phalanx::Result<Model> {
    MobileNetV2::new()
        .activation(Activation::Linear)
        .classes(CLASSES as usize)
        .build()
}

/// Two convolutions, pooling, two dense layers.
fn cnn() -> Sequential {
    Sequential::new([28, 28, 1])
        .add(Conv2d::new(32, 3).activation(relu))
        .add(Conv2d::new(64, 3).activation(relu))
        .add(MaxPool2d::new(2))
        .add(Flatten)
        .add(Dense::new(128).activation(relu))
        .add(Dense::new(10))
}

/// A batch of numbers with mean 0 and variance 1, and classes.
fn images(batch: usize, dims: [usize; 3]) -> phalanx::Result<Batch> {
    let mut next = numbers();
    let count = batch * dims.iter().product::<usize>();
    let unit = |bits: u64| (bits >> 40) as f32 / (1u64 << 24) as f32;
    let values: Vec<f32> = (0..count)
        .map(|_| (unit(next()) - 0.5) * 12f32.sqrt())
        .collect();
    let classes: Vec<i32> = (0..batch).map(|_| (next() % CLASSES) as i32).collect();
    let x = HostTensor::new([&[batch], &dims[..]].concat(), &values);
    let rows = Dataset::from_arrays(x, HostTensor::new([batch], &classes))?;
    rows.batch(batch).get(0, 0)
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

/// Numbers that look random.
fn numbers() -> impl FnMut() -> u64 {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

/// The middle value, the upper of two.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
