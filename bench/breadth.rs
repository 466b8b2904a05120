//! Phalanx on a model of a file of Keras: `bench-breadth FILE.keras train|predict`, the turns of `bench/peers/README.md`.
#![forbid(unsafe_code)]

mod processors;
mod program;
#[allow(dead_code, reason = "other programs train the models")]
mod synthetic;
mod turns;

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

use phalanx::data::Batch;
use phalanx::prelude::*;
use phalanx::saved::SavedModel;
use serde_json::Value;

/// How many processors every framework gets.
const THREADS: usize = 2;

/// What trains a model and on what, from the file beside the model's.
struct Case {
    batch: usize,
    loss: String,
    optimizer: String,
    inputs: Vec<Input>,
}

/// The dims of an example, and for tokens their number and whether there is padding.
type Input = (Vec<usize>, Option<(u64, bool)>);

fn main() -> ExitCode {
    program::exit(run())
}

fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, work] = &arguments[..] else {
        return Err("usage: bench-breadth FILE.keras train|predict".into());
    };
    processors::use_some(0, THREADS)?;
    let case = Case::read(&Path::new(file).with_extension("json"))?;
    let model = SavedModel::load_keras(file)?;
    let output = model.model().outputs()[0].dims.clone();
    let data = case.data(&output);
    let compile = Compile {
        optimizer: case.optimizer()?,
        loss: case.loss()?.into(),
        ..Compile::default()
    };
    let mut trainer = OneDeviceStrategy::new()?.compile(model, compile)?;
    let is_training = work == "train";
    let mut step = || {
        if is_training {
            let logs = trainer.train_on_batch(&data)?;
            return Ok(logs.get("loss").unwrap_or(f64::NAN));
        }
        let outputs = trainer.predict_on_batch(&data.x)?;
        let first = outputs[0].bytes().first_chunk();
        Ok(first.map_or(f64::NAN, |&first| f32::from_le_bytes(first).into()))
    };
    turns::serve(|steps| turns::median(steps, &mut step))
}

impl Case {
    fn read(path: &Path) -> Result<Self, Box<dyn Error>> {
        let found: Value = serde_json::from_str(&std::fs::read_to_string(path)?)?;
        let text = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
        let inputs = found["inputs"].as_array().ok_or("inputs is no list")?;
        let input = |input: &Value| {
            let dims = serde_json::from_value(input["dims"].clone())?;
            let is_padded = input["padded"] == true;
            let tokens = input["below"].as_u64().map(|below| (below, is_padded));
            Ok((dims, tokens))
        };
        let inputs: Result<Vec<_>, serde_json::Error> = inputs.iter().map(input).collect();
        Ok(Self {
            batch: serde_json::from_value(found["batch"].clone())?,
            loss: text("loss"),
            optimizer: text("optimizer"),
            inputs: inputs?,
        })
    }

    fn loss(&self) -> Result<Loss, String> {
        match self.loss.as_str() {
            "classes" => Ok(SparseCategoricalCrossentropy::from_logits().into()),
            "binary" => Ok(BinaryCrossentropy::from_logits().into()),
            "squares" => Ok(MeanSquaredError.into()),
            other => Err(format!(
                "found loss {other:?}, expected classes, binary or squares"
            )),
        }
    }

    fn optimizer(&self) -> Result<Optimizer, String> {
        match self.optimizer.as_str() {
            "adam" => Ok(Adam::new(1e-3).into()),
            "adamw" => Ok(AdamW::new(1e-3).into()),
            "sgd" => Ok(Sgd::new(0.01).momentum(0.9).into()),
            other => Err(format!(
                "found optimizer {other:?}, expected adam, adamw or sgd"
            )),
        }
    }

    /// The batch of all steps.
    fn data(&self, output: &[usize]) -> Batch {
        let mut next = synthetic::numbers();
        let inputs = self.inputs.iter();
        let x = inputs.map(|(dims, tokens)| {
            let dims = [&[self.batch], &dims[..]].concat();
            match tokens {
                None => normal(dims, &mut next),
                Some((below, is_padded)) => some_tokens(dims, *below, *is_padded, &mut next),
            }
        });
        Batch {
            x: x.collect(),
            y: vec![self.target(output, &mut next)],
            weight: None,
            first: 0,
        }
    }

    fn target(&self, output: &[usize], next: &mut impl FnMut() -> u64) -> HostTensor {
        let mut dims = [&[self.batch], output].concat();
        let mut below = |count: u64| (next() >> 16) % count;
        match self.loss.as_str() {
            "classes" => {
                let classes = dims.pop().unwrap_or(1) as u64;
                let count: usize = dims.iter().product();
                let drawn: Vec<i32> = (0..count).map(|_| below(classes) as i32).collect();
                HostTensor::new(dims, &drawn)
            }
            "binary" => {
                let count: usize = dims.iter().product();
                let drawn: Vec<f32> = (0..count).map(|_| below(2) as f32).collect();
                HostTensor::new(dims, &drawn)
            }
            _ => normal(dims, next),
        }
    }
}

/// Tokens from 1; with padding, zeros behind the length of each row, half of the steps at least.
fn some_tokens(
    dims: Vec<usize>,
    below: u64,
    is_padded: bool,
    next: &mut impl FnMut() -> u64,
) -> HostTensor {
    let (count, steps): (usize, usize) = (dims.iter().product(), dims[1]);
    let mut token = |place: usize| {
        let (row, step) = (place / steps, place % steps);
        let length = steps / 2 + row * 7 % (steps - steps / 2 + 1);
        let token = 1 + (next() >> 16) % (below - 1);
        if is_padded && step >= length {
            0
        } else {
            token as i32
        }
    };
    let tokens: Vec<i32> = (0..count).map(&mut token).collect();
    HostTensor::new(dims, &tokens)
}

/// Sums of six numbers, with mean 0 and variance 1.
fn normal(dims: Vec<usize>, next: &mut impl FnMut() -> u64) -> HostTensor {
    let count: usize = dims.iter().product();
    let mut unit = || (next() >> 40) as f32 / (1u64 << 24) as f32;
    let mut one = || ((0..6).map(|_| unit()).sum::<f32>() - 3.0) * 2f32.sqrt();
    let values: Vec<f32> = (0..count).map(|_| one()).collect();
    HostTensor::new(dims, &values)
}
