//! What ways of dividing one model's work over two CPU devices save: `bench-strategies [shares|pipeline]`, as markdown.
//!
//! *Shares*: replicas with unequal parts of a batch, on devices that are equally fast, and with one that has more to do for
//! each example. *Pipeline*: a model in two stages, by micro-batches, beside one device. A device has one thread; variants run in
//! turns, and a number is the median of its turns.
#![forbid(unsafe_code)]

mod processors;
mod program;
#[allow(dead_code, reason = "other programs train the other models")]
mod synthetic;

use std::error::Error;
use std::process::{Command, ExitCode};
use std::time::Duration;

use phalanx::data::Batch;
use phalanx::engine::{Engine, EngineOptions};
use phalanx::nn::{Cx, Layer};
use phalanx::prelude::*;
use phalanx_graph::{DType, Tensor};

use synthetic::{classified, cnn, cnn_behind};

const DEVICES: usize = 2;
const ROUNDS: usize = 3;
/// Micro-batches.
const PARTS: [usize; 4] = [1, 2, 4, 8];

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    program::exit(run())
}

fn run() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, model] = &arguments[..]
        && first == "alone"
    {
        return alone(model);
    }
    processors::use_some(0, DEVICES)?;
    let engine = Engine::new(&EngineOptions {
        cpu_devices: DEVICES,
        ..EngineOptions::default()
    })?;
    let names: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match names[..] {
        [] => {
            shares(&engine)?;
            pipeline(&engine)
        }
        ["shares"] => shares(&engine),
        ["pipeline"] => pipeline(&engine),
        _ => Err("usage: bench-strategies [shares|pipeline]".into()),
    }
}

/// Equal parts and others of one batch, on devices that are equally fast, and with one that does twice the work.
fn shares(engine: &Engine) -> Outcome<()> {
    let batch = classified(128, [28, 28, 1])?;
    println!("| devices | examples | each replica's part | step |\n|---|---:|---:|---:|");
    let compiled = |shares: [u32; 2], layers: Sequential| {
        let strategy = MirroredStrategy::on(engine).shares(&shares)?;
        strategy.compile(layers, compile())
    };
    let mut alike = [compiled([1, 1], cnn())?, compiled([1, 3], cnn())?];
    share_rows("alike", &mut alike, &batch)?;
    let batch = marked(&batch);
    let mut equal = compiled([1, 1], slow_on_second())?;
    equal.device_time(&batch, 3)?;
    let times = equal.replica_times(&batch, 5)?;
    let told = times.shares().and_then(|shares| shares.try_into().ok());
    let mut unlike = vec![equal];
    if let Some(shares) = told {
        unlike.push(compiled(shares, slow_on_second())?);
    }
    share_rows("second slow", &mut unlike, &batch)?;
    println!("\nSecond slow, equal parts:\n\n{times}");
    Ok(())
}

fn share_rows(devices: &str, trainers: &mut [Trainer], batch: &Batch) -> Outcome<()> {
    let mut steps: Vec<Vec<Duration>> = vec![Vec::new(); trainers.len()];
    for _ in 0..ROUNDS {
        for (trainer, steps) in trainers.iter_mut().zip(&mut steps) {
            steps.push(trainer.device_time(batch, 3)?);
        }
    }
    for (trainer, steps) in trainers.iter().zip(&mut steps) {
        let times = trainer.replica_times(batch, 5)?;
        let rows: Vec<usize> = times.replicas.iter().map(|time| time.rows).collect();
        let parts: Vec<String> = times.replicas.iter().map(|time| ms(time.median)).collect();
        let (parts, step) = (parts.join(", "), ms(median(steps)));
        println!("| {devices} | {rows:?} | {parts} | {step} |");
    }
    Ok(())
}

/// The model with more work for each example on the replica that has the last, whose device is so as slow as if it were
/// another.
fn slow_on_second() -> Sequential {
    cnn_behind(Sequential::new([28, 28, 1]).add(Slow))
}

/// A number that no other example has.
const LAST: f32 = 10.0;

/// The batch, whose last example is known by its first number.
fn marked(batch: &Batch) -> Batch {
    let x = &batch.x[0];
    let mut values = x.f32s().to_vec();
    let last = values.len() - values.len() / x.rows();
    values[last] = LAST;
    Batch {
        x: vec![HostTensor::new(x.dims(), &values)],
        ..batch.clone()
    }
}

/// Its inputs, where the last example is among them after work of which nothing is left.
#[derive(Debug)]
struct Slow;

impl Layer for Slow {
    fn kind(&self) -> &'static str {
        "slow"
    }

    fn config(&self) -> serde_json::Value {
        serde_json::json!({})
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let x = &inputs[0];
        let rows = x.reshape(&[x.dim(0), 784]);
        let last = rows.slice_dim(0, x.dim(0) - 1, x.dim(0));
        let first = last.slice_dim(1, 0, 1).reshape(&[]);
        let is_slow = first.equal(&first.like(f64::from(LAST)));
        let nothing = cx
            .graph()
            .case(&is_slow.convert(DType::I32), &[&rows], 2, worked);
        x.minimum(&x.like(2.0)) + nothing[0].stop_gradient()
    }
}

/// Zero, in branch 1 after a loop over the rows that one thread computes.
fn worked(branch: usize, given: &[Tensor]) -> Vec<Tensor> {
    let rows = &given[0];
    let turn = |x: &[Tensor], _: &[Tensor], _: &[Tensor]| (vec![x[0].tanh()], Vec::new());
    let (last, _) = rows.graph().scan(4000 * branch, &[rows], &[], &[], turn);
    vec![last[0].sum_all() * 0.0]
}

/// Models in two stages by micro-batches, beside one processor without stages.
fn pipeline(engine: &Engine) -> Outcome<()> {
    for model in ["convolutions", "dense"] {
        let (_, batch) = stack(model)?;
        let mut trainers = Vec::new();
        for parts in PARTS {
            let strategy = PipelineStrategy::on(engine, DEVICES, parts)?.starting_at(["fourth"]);
            trainers.push(strategy.compile(stack(model)?.0, compile())?);
        }
        let mut alone = Vec::new();
        let mut steps: Vec<Vec<Duration>> = vec![Vec::new(); trainers.len()];
        for _ in 0..ROUNDS {
            alone.push(alone_elsewhere(model)?);
            for (trainer, steps) in trainers.iter_mut().zip(&mut steps) {
                steps.push(trainer.device_time(&batch, 3)?);
            }
        }
        println!("\n| {model} | step | beside one | 2m / (m + 1) |\n|---|---:|---:|---:|");
        let alone = median(&mut alone);
        println!("| one stage, one processor | {} | 1.00x | |", ms(alone));
        for (parts, steps) in PARTS.iter().zip(&mut steps) {
            let step = median(steps);
            let gain = alone.as_secs_f64() / step.as_secs_f64();
            let bound = 2.0 * *parts as f64 / (parts + 1) as f64;
            let step = ms(step);
            println!(
                "| {DEVICES} stages, {parts} micro-batches | {step} | {gain:.2}x | {bound:.2}x |"
            );
        }
    }
    Ok(())
}

/// A step without stages in a process with one processor.
fn alone_elsewhere(model: &str) -> Outcome<Duration> {
    let program = std::env::current_exe()?;
    let output = Command::new(program).args(["alone", model]).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let seconds = text.trim().parse();
    Ok(Duration::from_secs_f64(seconds.map_err(|_| {
        format!("one processor: {}", String::from_utf8_lossy(&output.stderr))
    })?))
}

/// What [`alone_elsewhere`] reads: seconds.
fn alone(model: &str) -> Outcome<()> {
    processors::use_some(0, 1)?;
    let (model, batch) = stack(model)?;
    let strategy = OneDeviceStrategy::with(&EngineOptions::default())?;
    let step = strategy.compile(model, compile())?.device_time(&batch, 3)?;
    println!("{}", step.as_secs_f64());
    Ok(())
}

/// Six layers alike, little behind them, and a batch.
fn stack(kind: &str) -> Outcome<(Sequential, Batch)> {
    let names = ["first", "second", "third", "fourth", "fifth", "sixth"].into_iter();
    Ok(match kind {
        "convolutions" => {
            let conv = |name| {
                let conv = Conv2d::new(32, 3).padding(Padding::Same);
                conv.activation(relu).named(name)
            };
            let input = Sequential::new([28, 28, 32]);
            let model = names.fold(input, |model, name| model.add(conv(name)));
            let model = model.add(GlobalAveragePool2d::new()).add(Dense::new(10));
            (model, classified(64, [28, 28, 32])?)
        }
        "dense" => {
            let dense = |name| Dense::new(512).activation(relu).named(name);
            let input = Sequential::new([512]);
            let model = names.fold(input, |model, name| model.add(dense(name)));
            (model.add(Dense::new(10)), classified(1024, [512])?)
        }
        other => return Err(format!("found model {other:?}").into()),
    })
}

fn compile() -> Compile {
    Compile {
        optimizer: Sgd::new(0.01).momentum(0.9).into(),
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        ..Compile::default()
    }
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn ms(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}
