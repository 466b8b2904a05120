//! Phalanx on whole models: `bench-models MODEL BATCH [--work predict|evaluate]`, the turns of `bench/peers/README.md`.
//!
//! `bench-models MODEL BATCH --cost train|forward` says what a step, or the forward pass, computes and has to move at least, and runs neither.
#![forbid(unsafe_code)]

mod processors;
mod program;
mod synthetic;
mod turns;

use std::error::Error;
use std::process::ExitCode;

use phalanx::data::Batch;
use phalanx::models::{MobileNetV2, TransformerEncoder};
use phalanx::nn::Cx;
use phalanx::prelude::*;
use phalanx_graph::{Graph, Shape, Tensor};

use synthetic::{CLASSES, IMAGE, classified, cnn, mlp, numbers, resnet50};

/// How many processors every framework gets.
const THREADS: usize = 2;
/// Steps of a sequence of recurrent models.
const STEPS: usize = 100;

fn main() -> ExitCode {
    program::exit(run())
}

fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (model, batch, work) = match words[..] {
        [model, batch] => (model, batch, Work::Train),
        [model, batch, "--work", work] => (model, batch, work.parse()?),
        [model, batch, "--cost", pass] => return cost(model, batch.parse()?, pass),
        _ => {
            return Err(
                "usage: bench-models MODEL BATCH [--work predict|evaluate | --cost train|forward]"
                    .into(),
            );
        }
    };
    processors::use_some(0, THREADS)?;
    let (mut trainer, data) = trained(model, batch.parse()?)?;
    turns::serve(|steps| turns::median(steps, || step(&mut trainer, &data, work)))
}

/// Prints the floating-point operations, and the least bytes that go to memory or come from it: variables and what the optimizer carries
/// read and written, activations written and read again on the way back; forward the variables, the batch and the outputs.
fn cost(model: &str, batch: usize, pass: &str) -> Result<(), Box<dyn Error>> {
    let (trainer, data) = trained(model, batch)?;
    let (flops, bytes) = match pass {
        "train" => {
            let step = trainer.estimate(&data, batch)?;
            let carried = step.variables + step.optimizer + step.activations;
            (step.flops, 2 * carried + step.batch)
        }
        "forward" => forward_cost(trainer.model(), &data)?,
        other => return Err(format!("found pass {other:?}, expected train or forward").into()),
    };
    println!("{}", serde_json::json!({"flops": flops, "bytes": bytes}));
    Ok(())
}

fn forward_cost(model: &Model, data: &Batch) -> Result<(u64, u64), Box<dyn Error>> {
    let graph = Graph::new();
    let parameter = |name: &str, shape: &Shape| graph.parameter(name, shape.clone());
    let variables = model.variables().iter();
    let variables: Vec<Tensor> = variables
        .map(|variable| parameter(&variable.name, &variable.shape))
        .collect();
    let inputs: Vec<Tensor> = data.x.iter().map(|x| parameter("x", x.shape())).collect();
    let outputs = model.call(&mut Cx::new(&graph, model, &variables), &inputs);
    let moved = variables.iter().chain(&inputs).chain(&outputs);
    let bytes: usize = moved.map(|tensor| tensor.shape().byte_len()).sum();
    let named: Vec<(&str, &Tensor)> = outputs.iter().map(|output| ("", output)).collect();
    let program = graph.finish(&named)?;
    Ok((program.simplified().cost().total.flops, bytes as u64))
}

/// What a step does.
#[derive(Clone, Copy)]
enum Work {
    /// Forward, backward, update.
    Train,
    /// The outputs, on the host.
    Predict,
    /// The loss.
    Evaluate,
}

impl std::str::FromStr for Work {
    type Err = Box<dyn Error>;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "predict" => Ok(Self::Predict),
            "evaluate" => Ok(Self::Evaluate),
            other => Err(format!("found work {other:?}, expected predict or evaluate").into()),
        }
    }
}

/// The model of a name, ready to train, and its batch.
fn trained(model: &str, batch: usize) -> Result<(Trainer, Batch), Box<dyn Error>> {
    let sgd = || Sgd::new(0.01).momentum(0.9);
    let (model, policy) = match model.strip_suffix("_bf16") {
        Some(model) => (model, Policy::MixedBfloat16),
        None => (model, Policy::Float32),
    };
    Ok(match model {
        "resnet50" => (
            compiled(resnet50()?, sgd(), policy)?,
            classified(batch, IMAGE)?,
        ),
        "mobilenet_v2" => (
            compiled(mobilenet_v2()?, sgd(), policy)?,
            classified(batch, IMAGE)?,
        ),
        "mlp" => (compiled(mlp(), sgd(), policy)?, classified(batch, [784])?),
        "cnn" => (
            compiled(cnn(), sgd(), policy)?,
            classified(batch, [28, 28, 1])?,
        ),
        "transformer" => {
            let settings = TransformerEncoder::default();
            let (vocabulary, length) = (settings.vocabulary, settings.length);
            (
                compiled(settings.build()?, Adam::new(1e-3), policy)?,
                tokens(batch, length, vocabulary)?,
            )
        }
        other => match recurrent(other) {
            Some((model, units)) => (
                compiled(model, sgd(), policy)?,
                classified(batch, [STEPS, units])?,
            ),
            None => {
                let known = "resnet50, mobilenet_v2, mlp, cnn, transformer, lstm_UNITS or gru_UNITS, each also with _bf16";
                return Err(format!("found model {other:?}, expected {known}").into());
            }
        },
    })
}

/// One step, which ends when its loss, or the outputs, are on the host. For outputs the first number stands for a loss.
fn step(trainer: &mut Trainer, data: &Batch, work: Work) -> phalanx::Result<f64> {
    let logs = match work {
        Work::Train => trainer.train_on_batch(data)?,
        Work::Evaluate => trainer.test_on_batch(data)?,
        Work::Predict => {
            let outputs = trainer.predict_on_batch(&data.x)?;
            let first = outputs[0].bytes().first_chunk();
            return Ok(first.map_or(f64::NAN, |&first| f32::from_le_bytes(first).into()));
        }
    };
    Ok(logs.get("loss").unwrap_or(f64::NAN))
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
