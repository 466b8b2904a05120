//! Phalanx on one device: `bench-single mlp|cnn|fit_mlp BATCH BUDGET`, the protocol of `bench/peers/README.md`. `fit_mlp BATCH BUDGET N` trains
//! with N steps in one program.
//!
//! Its lines have one field more: `overhead_us`, the time of a step beyond its program's alone on the device.
#![forbid(unsafe_code)]

mod processors;
mod program;

use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use phalanx::data::Batch;
use phalanx::prelude::*;

const ROWS: usize = 60_000;
const CLASSES: u64 = 10;
/// Steps in a row when an epoch's are compared with the program alone.
const COMPARED: usize = 20;
/// How often they are.
const COMPARISONS: usize = 5;

/// How many processors every framework gets.
const THREADS: usize = 2;

fn main() -> ExitCode {
    program::exit(run())
}

fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let ([model, batch, budget, execution @ ..], true) = (&arguments[..], arguments.len() <= 4)
    else {
        return Err("usage: bench-single mlp|cnn|fit_mlp BATCH BUDGET [N]".into());
    };
    let execution = execution.first().map_or(Ok(1), |text| text.parse())?;
    let budget: Budget = budget.parse()?;
    processors::use_some(0, THREADS)?;
    match model.as_str() {
        "mlp" => steps(model, mlp(), &[784], (30, 20), batch.parse()?, budget),
        "cnn" => steps(model, cnn(), &[28, 28, 1], (3, 1), batch.parse()?, budget),
        "fit_mlp" => epochs(model, batch.parse()?, budget, execution),
        other => Err(format!("found model {other:?}, expected mlp, cnn or fit_mlp").into()),
    }
}

/// Whole steps on one batch, until the loss is on the host; `compared` steps in a row with the program alone.
fn steps(
    name: &str,
    model: Sequential,
    dims: &[usize],
    (warm_up, compared): (usize, usize),
    batch: usize,
    budget: Budget,
) -> Result<(), Box<dyn Error>> {
    let mut trainer = compiled(model, 1)?;
    let data: Batch = synthetic(batch, dims)?.batch(batch).get(0, 0)?;
    for _ in 0..warm_up {
        trainer.train_on_batch(&data)?;
    }
    let step = |trainer: &mut Trainer| -> Result<(), Box<dyn Error>> {
        Ok(trainer.train_on_batch(&data).map(drop)?)
    };
    let seconds = times(budget, || step(&mut trainer))?;
    let overhead = overhead(|| {
        let whole = median(&times(Budget::Calls(compared), || step(&mut trainer))?);
        Ok(whole - trainer.device_time(&data, compared)?.as_secs_f64())
    })?;
    emit(name, batch, "step", &seconds, overhead);
    Ok(())
}

/// Whole epochs of `fit` over shuffled rows, after one of warm-up, with this many steps in one program.
fn epochs(
    name: &str,
    batch: usize,
    budget: Budget,
    execution: usize,
) -> Result<(), Box<dyn Error>> {
    let mut trainer = compiled(mlp(), execution)?;
    // Steps run while the host makes the next batch, so copying rows needs no thread of its own.
    let batches = synthetic(ROWS, &[784])?.shuffle(1).batch(batch);
    let mut done = 0;
    let mut epoch = |trainer: &mut Trainer| -> Result<(), Box<dyn Error>> {
        let one = Fit::epochs(done + 1).initial_epoch(done);
        done += 1;
        trainer.fit(&batches, one.progress(Progress::Silent))?;
        Ok(())
    };
    epoch(&mut trainer)?;
    let seconds = times(budget, || epoch(&mut trainer))?;
    let first = batches.get(0, 0)?;
    let steps = ROWS.div_ceil(batch) as f64;
    let overhead = overhead(|| {
        let start = Instant::now();
        epoch(&mut trainer)?;
        let whole = start.elapsed().as_secs_f64() / steps;
        Ok(whole - trainer.device_time(&first, COMPARED)?.as_secs_f64())
    })?;
    emit(name, batch, "epoch", &seconds, overhead);
    Ok(())
}

/// The median of some differences, each between a whole step and its program alone, taken one right after the other:
/// on a machine with other work both are slow or fast together.
fn overhead(
    mut difference: impl FnMut() -> Result<f64, Box<dyn Error>>,
) -> Result<f64, Box<dyn Error>> {
    let differences: Result<Vec<f64>, _> = (0..COMPARISONS).map(|_| difference()).collect();
    Ok(median(&differences?))
}

fn compiled(model: Sequential, steps_per_execution: usize) -> phalanx::Result<Trainer> {
    let compile = Compile {
        optimizer: Sgd::new(0.01).momentum(0.9).into(),
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        steps_per_execution,
        ..Compile::default()
    };
    OneDeviceStrategy::new()?.compile(model, compile)
}

/// 784-128-relu-10.
fn mlp() -> Sequential {
    Sequential::new([784])
        .add(Dense::new(128).activation(relu))
        .add(Dense::new(10))
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

/// Rows of numbers with mean 0 and variance 1, and classes.
fn synthetic(rows: usize, dims: &[usize]) -> phalanx::Result<Dataset> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let count = rows * dims.iter().product::<usize>();
    let unit = |bits: u64| (bits >> 40) as f32 / (1u64 << 24) as f32;
    let values: Vec<f32> = (0..count)
        .map(|_| (unit(next()) - 0.5) * 12f32.sqrt())
        .collect();
    let classes: Vec<i32> = (0..rows).map(|_| (next() % CLASSES) as i32).collect();
    let x = HostTensor::new([&[rows], dims].concat(), &values);
    Dataset::from_arrays(x, HostTensor::new([rows], &classes))
}

/// How long to time: a number of calls, or seconds.
#[derive(Clone, Copy)]
enum Budget {
    Calls(usize),
    Seconds(f64),
}

impl std::str::FromStr for Budget {
    type Err = Box<dyn Error>;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text.strip_suffix('s') {
            Some(seconds) => Self::Seconds(seconds.parse()?),
            None => Self::Calls(text.parse()?),
        })
    }
}

/// Seconds of each call until the budget is spent, of three at least.
fn times(
    budget: Budget,
    mut once: impl FnMut() -> Result<(), Box<dyn Error>>,
) -> Result<Vec<f64>, Box<dyn Error>> {
    let mut seconds = Vec::new();
    let start = Instant::now();
    while seconds.len() < 3
        || match budget {
            Budget::Calls(calls) => seconds.len() < calls,
            Budget::Seconds(limit) => start.elapsed() < Duration::from_secs_f64(limit),
        }
    {
        let begin = Instant::now();
        once()?;
        seconds.push(begin.elapsed().as_secs_f64());
    }
    Ok(seconds)
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        f64::midpoint(sorted[middle - 1], sorted[middle])
    }
}

fn emit(model: &str, batch: usize, unit: &str, seconds: &[f64], overhead: f64) {
    let ms = |value: f64| (value * 1e7).round() / 1e4;
    let line = serde_json::json!({
        "name": format!("phalanx_{model}"),
        "median_ms": ms(median(seconds)),
        "min_ms": ms(seconds.iter().copied().fold(f64::INFINITY, f64::min)),
        "max_ms": ms(seconds.iter().copied().fold(0.0, f64::max)),
        "n": seconds.len(),
        "unit": unit,
        "framework": "phalanx",
        "version": env!("CARGO_PKG_VERSION"),
        "model": model,
        "batch": batch,
        "threads": THREADS,
        "overhead_us": (overhead * 1e7).round() / 10.0,
        "peak_mib": peak_mib(),
    });
    println!("{line}");
}

/// The most memory that this process has had, in MiB; none where the system does not say.
fn peak_mib() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib / 1024.0)
}
