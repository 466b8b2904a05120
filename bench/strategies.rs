//! What ways of dividing one model's work over two CPU devices save: `bench-strategies [shares|pipeline]`, as markdown.
//!
//! *Shares*: replicas with unequal parts of a batch, on processors that are equally fast, and with another program on one of
//! them. *Pipeline*: a model in two stages, by micro-batches, beside one device. A device has one thread; variants run in
//! turns, and a number is the median of its turns.
#![forbid(unsafe_code)]

mod processors;
#[allow(dead_code, reason = "other programs train the other models")]
mod synthetic;

use std::error::Error;
use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use phalanx::data::Batch;
use phalanx::engine::{Engine, EngineOptions};
use phalanx::prelude::*;

use synthetic::{classified, cnn};

const DEVICES: usize = 2;
const ROUNDS: usize = 5;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    processors::use_first(DEVICES)?;
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

/// Equal parts and others of one batch.
fn shares(engine: &Engine) -> Outcome<()> {
    let batch = classified(128, [28, 28, 1])?;
    println!("| processors | examples | each replica's part | step |\n|---|---:|---:|---:|");
    let mut trainers = Vec::new();
    for shares in [[1, 1], [1, 3], [1, 2]] {
        let strategy = MirroredStrategy::on(engine).shares(&shares)?;
        trainers.push(strategy.compile(cnn(), compile())?);
    }
    share_rows("equal", &mut trainers[..2], &batch)?;
    let busy = Busy::on_first()?;
    let times = trainers[0].replica_times(&batch, 5)?;
    share_rows("another program on the first", &mut trainers, &batch)?;
    busy.stop();
    println!("\nSlowed, equal parts:\n\n{times}");
    Ok(())
}

fn share_rows(processors: &str, trainers: &mut [Trainer], batch: &Batch) -> Outcome<()> {
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
        println!(
            "| {processors} | {rows:?} | {} | {} |",
            parts.join(", "),
            ms(median(steps))
        );
    }
    Ok(())
}

/// Another program on the first processor, of which a replica's thread gets a half.
struct Busy {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Busy {
    fn on_first() -> Outcome<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let thread = Builder::new().spawn(move || {
            let mut number = 1u64;
            // Without its own processor it would run on whichever is free.
            if processors::use_first(1).is_ok() {
                while !over.load(Ordering::Relaxed) {
                    number = black_box(number.wrapping_mul(3));
                }
            }
        })?;
        Ok(Self { is_over, thread })
    }

    fn stop(self) {
        self.is_over.store(true, Ordering::Relaxed);
        // It has nothing to tell, even of a panic.
        let _ = self.thread.join();
    }
}

/// A model in two stages by micro-batches.
fn pipeline(engine: &Engine) -> Outcome<()> {
    let batch = classified(64, [28, 28, 32])?;
    let one = OneDeviceStrategy::on(engine).compile(stack(), compile())?;
    let mut trainers = vec![("one device".to_owned(), one)];
    for parts in [1, 2, 4, 8] {
        let strategy = PipelineStrategy::on(engine, DEVICES, parts)?.starting_at(["second"]);
        let name = format!("{DEVICES} stages, {parts} micro-batches");
        trainers.push((name, strategy.compile(stack(), compile())?));
    }
    let mut steps: Vec<Vec<Duration>> = vec![Vec::new(); trainers.len()];
    for _ in 0..ROUNDS {
        for ((_, trainer), steps) in trainers.iter_mut().zip(&mut steps) {
            steps.push(trainer.device_time(&batch, 2)?);
        }
    }
    println!("| | step | beside one device | 2m / (m + 1) |\n|---|---:|---:|---:|");
    let alone = median(&mut steps[0]);
    for (place, ((name, _), steps)) in trainers.iter().zip(&mut steps).enumerate() {
        let step = median(steps);
        let bound = match place {
            0 => String::new(),
            place => {
                let parts = f64::from(1 << (place - 1));
                format!("{:.2}x", 2.0 * parts / (parts + 1.0))
            }
        };
        let gain = alone.as_secs_f64() / step.as_secs_f64();
        println!("| {name} | {} | {gain:.2}x | {bound} |", ms(step));
    }
    Ok(())
}

/// Six convolutions alike, and little behind them.
fn stack() -> Sequential {
    let conv = |name: &str| {
        let conv = Conv2d::new(32, 3).padding(Padding::Same);
        conv.activation(relu).named(name)
    };
    [
        "first", "first_2", "first_3", "second", "second_2", "second_3",
    ]
    .into_iter()
    .fold(Sequential::new([28, 28, 32]), |model, name| {
        model.add(conv(name))
    })
    .add(GlobalAveragePool2d::new())
    .add(Dense::new(10))
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
