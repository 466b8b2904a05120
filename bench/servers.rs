//! Phalanx with parameter servers, each process by itself: `bench-servers '{"model": "digits", "mode": "async", ..}'`.
//!
//! The first process starts the others, with TF_CONFIG and the same settings, and prints a JSON line: the seconds from its start to
//! the end of the first step, and of each epoch its end in seconds and its loss. `{"plot": [..]}` draws them. `row_ms` lets data take that long a row, as work on
//! processors of each worker's own would; the last worker's rows take `slowed` times as long.
#![forbid(unsafe_code)]

#[allow(dead_code, reason = "other benchmarks use the rest")]
mod synthetic;

use std::error::Error;
use std::net::TcpListener;
use std::process::{Child, Command, ExitCode};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use phalanx::datasets;
use phalanx::engine::{Engine, EngineOptions};
use phalanx::models::{Recommender, RecommenderKind};
use phalanx::nn::Model;
use phalanx::prelude::*;
use phalanx::strategy::{Mode, ParameterServerOptions, ParameterServerStrategy};
use phalanx_summary::{Chart, Curve, svg};
use serde_json::{Value, json};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// What is asked for.
struct Plan {
    model: String,
    mode: Mode,
    overlap: bool,
    workers: usize,
    servers: usize,
    batch: usize,
    epochs: usize,
    row: Duration,
    slowed: u32,
}

impl Plan {
    fn read(value: &Value) -> Result<Self, Box<dyn Error>> {
        let number = |name: &str, default: u64| value[name].as_u64().unwrap_or(default);
        let backup_workers = number("backup_workers", 0) as usize;
        Ok(Self {
            model: value["model"].as_str().ok_or("no `model`")?.to_owned(),
            mode: match value["mode"].as_str() {
                Some("async") => Mode::Async,
                Some("sync") => Mode::Sync { backup_workers },
                other => return Err(format!("`mode` is {other:?}, expected async or sync").into()),
            },
            overlap: value["overlap"].as_bool().unwrap_or(false),
            workers: number("workers", 2) as usize,
            servers: number("servers", 1) as usize,
            batch: number("batch", 128) as usize,
            epochs: number("epochs", 5) as usize,
            row: Duration::from_secs_f64(value["row_ms"].as_f64().unwrap_or(0.0) / 1000.0),
            slowed: number("slowed", 1) as u32,
        })
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [text, begun @ ..] = &arguments[..] else {
        return Err("usage: bench-servers PLAN".into());
    };
    let value: Value = serde_json::from_str(text)?;
    if let Some(runs) = value["plot"].as_array() {
        println!("{}", picture(runs));
        return Ok(());
    }
    let plan = Plan::read(&value)?;
    let Some(begun) = begun.first() else {
        return start_all(&plan, text);
    };
    let begun = UNIX_EPOCH + Duration::from_secs_f64(begun.parse()?);
    let options = ParameterServerOptions::new().mode(plan.mode);
    let options = match plan.overlap {
        true => options.overlap(),
        false => options,
    };
    let engine = Engine::new(&EngineOptions::default())?;
    let Some(strategy) = ParameterServerStrategy::from_env_with(&engine, &options)? else {
        return Ok(());
    };
    train(&plan, &strategy, begun)
}

/// Starts the processes and waits for their end; this one is none of them.
fn start_all(plan: &Plan, text: &str) -> Result<(), Box<dyn Error>> {
    let begun = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
    let listen = |_| TcpListener::bind("127.0.0.1:0");
    let ports = (0..plan.workers + plan.servers).map(listen);
    let ports: Vec<TcpListener> = ports.collect::<Result<_, _>>()?;
    let address = |listener: &TcpListener| Ok(listener.local_addr()?.to_string());
    let addresses: Vec<String> = ports.iter().map(address).collect::<std::io::Result<_>>()?;
    let (workers, servers) = addresses.split_at(plan.workers);
    drop(ports);
    let start = |kind: &str, index: usize| -> std::io::Result<Child> {
        let config = json!({
            "cluster": {"worker": workers, "ps": servers},
            "task": {"type": kind, "index": index},
        });
        Command::new(std::env::current_exe()?)
            .args([text, &begun.to_string()])
            .env("TF_CONFIG", config.to_string())
            .spawn()
    };
    let mut all = Vec::new();
    for server in 0..plan.servers {
        all.push(start("ps", server)?);
    }
    for worker in 0..plan.workers {
        all.push(start("worker", worker)?);
    }
    for mut process in all {
        if !process.wait()?.success() {
            return Err("a process failed".into());
        }
    }
    Ok(())
}

fn train(
    plan: &Plan,
    strategy: &ParameterServerStrategy,
    begun: SystemTime,
) -> Result<(), Box<dyn Error>> {
    let config: Value = serde_json::from_str(&std::env::var("TF_CONFIG")?)?;
    let is_last = config["task"]["index"].as_u64() == Some(plan.workers as u64 - 1);
    let row = match is_last {
        true => plan.row * plan.slowed,
        false => plan.row,
    };
    let first_step = Arc::new(Mutex::new(None));
    let seen = Arc::clone(&first_step);
    let (model, compile, rows) = work(&plan.model)?;
    let batches = rows.batch(plan.batch).map(move |batch| {
        // The second batch of a worker is asked for when the first was pushed.
        let mut seen = seen
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        *seen = match *seen {
            None => Some(None),
            Some(None) => Some(Some(SystemTime::now())),
            done => done,
        };
        drop(seen);
        if !row.is_zero() {
            std::thread::sleep(row * batch.rows() as u32);
        }
        Ok(batch)
    });
    let start = Instant::now();
    let epochs = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&epochs);
    let fit = Fit::epochs(plan.epochs)
        .progress(Progress::Silent)
        .after_epoch(move |epoch| {
            let mut noted = noted
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            let loss = epoch.logs.get("loss");
            noted.push(
                json!({"end": start.elapsed().as_secs_f64(), "steps": epoch.steps, "loss": loss}),
            );
            Ok(())
        });
    let mut trainer = strategy.compile(model, compile)?;
    trainer.fit(&batches, fit)?;
    if strategy.is_chief() {
        let first = first_step
            .lock()
            .map_err(|_| "a thread panicked")?
            .flatten();
        let first = first.and_then(|at| at.duration_since(begun).ok());
        let epochs = epochs.lock().map_err(|_| "a thread panicked")?;
        let first = first.map(|first| first.as_secs_f64());
        println!("{}", json!({"first_step": first, "epochs": *epochs}));
    }
    Ok(())
}

/// The losses of trainings over time, as SVG.
fn picture(runs: &[Value]) -> String {
    let point = |epoch: &Value| Some((epoch["end"].as_f64()?, epoch["loss"].as_f64()?));
    let curve = |(group, run): (usize, &Value)| Curve {
        name: run["name"].as_str().unwrap_or_default().to_owned(),
        points: run["epochs"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(point)
            .collect(),
        group,
        is_dashed: false,
    };
    svg(&[Chart {
        title: "loss, one of three workers 10 times slower".into(),
        axis: "seconds".into(),
        curves: runs.iter().enumerate().map(curve).collect(),
    }])
}

/// A model, its settings and its data.
fn work(name: &str) -> Result<(Model, Compile, Dataset), Box<dyn Error>> {
    let mut next = synthetic::numbers();
    let sgd = |loss: Losses, rate: f64| Compile {
        optimizer: Sgd::new(rate).into(),
        loss,
        seed: 7,
        ..Compile::default()
    };
    let classes = || Losses::from(SparseCategoricalCrossentropy::from_logits());
    match name {
        // What the curves are of.
        "digits" => {
            let model = Sequential::new([8, 8, 1])
                .add(Flatten)
                .add(Dense::new(64).activation(relu))
                .add(Dense::new(10));
            Ok((
                model.build()?,
                sgd(classes(), 0.05),
                datasets::digits()?.take(1440),
            ))
        }
        "mlp" => {
            let model = Sequential::new([784])
                .add(Dense::new(128).activation(relu))
                .add(Dense::new(10));
            let batch = synthetic::classified(128, [784])?;
            let rows = Dataset::from_arrays(batch.x[0].clone(), batch.y[0].clone())?.repeat(400);
            Ok((model.build()?, sgd(classes(), 0.01), rows))
        }
        "recommender" => {
            let tables = [1_000_000, 1_000_000];
            let model = Recommender::new(RecommenderKind::TwoTower, tables)
                .width(32)
                .hidden([64])
                .build()?;
            let count = 128 * 64;
            let mut ids =
                || -> Vec<i32> { (0..count).map(|_| (next() % 1_000_000) as i32).collect() };
            let x = [ids(), ids()].map(|ids| HostTensor::new([count], &ids));
            let clicked: Vec<f32> = (0..count).map(|i| (i % 2) as f32).collect();
            let y = HostTensor::new([count, 1], &clicked);
            let rows = Dataset::from_arrays(x.to_vec(), y)?.repeat(6);
            Ok((
                model,
                sgd(BinaryCrossentropy::from_logits().into(), 0.01),
                rows,
            ))
        }
        other => Err(format!("no model `{other}`; expected digits, mlp or recommender").into()),
    }
}
