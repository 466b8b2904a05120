//! Phalanx with parameter servers, each process by itself: `bench-servers '{"model": "digits", "mode": "async", ..}'`.
//!
//! The first process starts the others, with TF_CONFIG and the same settings, and prints a JSON line: the seconds from its start to
//! the end of the first step, and of each epoch its end in seconds and its loss. `{"plot": [..]}` draws them. `row_ms` lets data take that long a row, as work on
//! processors of each worker's own would; the last worker's rows take `slowed` times as long. With `quota`, a percentage, rows take that
//! much time of a processor, and from its second batch on each worker has this share of one, the last worker a share that is
//! `slowed` times smaller; where this system lets nobody set shares, they take the time as without.
#![forbid(unsafe_code)]

mod program;
mod quota;
#[allow(dead_code, reason = "other benchmarks use the rest")]
mod synthetic;

use std::error::Error;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use phalanx::datasets;
use phalanx::engine::{Engine, EngineOptions};
use phalanx::models::{Recommender, RecommenderKind};
use phalanx::nn::Model;
use phalanx::prelude::*;
use phalanx::strategy::{Mode, ParameterServerOptions};
use phalanx_summary::{Chart, Curve, svg};
use quota::Quota;
use serde_json::{Value, json};

fn main() -> ExitCode {
    program::exit(run())
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
    /// The percentage of a processor that a worker has.
    quota: Option<f64>,
}

/// Where a worker finds its group, and how much arithmetic a millisecond is.
const GROUP: &str = "PHALANX_BENCH_GROUP";
const ROUNDS: &str = "PHALANX_BENCH_ROUNDS";

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
            quota: value["quota"].as_f64(),
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
    let groups = groups(plan);
    let rounds = rounds_per_millisecond().to_string();
    let start = |kind: &str, index: usize| -> std::io::Result<Child> {
        let config = json!({
            "cluster": {"worker": workers, "ps": servers},
            "task": {"type": kind, "index": index},
        });
        let mut command = Command::new(std::env::current_exe()?);
        if let ("worker", Some(group)) = (kind, groups.get(index)) {
            command.env(GROUP, group.folder()).env(ROUNDS, &rounds);
        }
        command
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

/// A group for each worker with its share of a processor; none where they are not asked for or cannot be made.
fn groups(plan: &Plan) -> Vec<Quota> {
    let Some(percent) = plan.quota else {
        return Vec::new();
    };
    let group = |worker: usize| {
        let slowed = match worker + 1 == plan.workers {
            true => f64::from(plan.slowed),
            false => 1.0,
        };
        let name = format!("phalanx-bench-{}-{worker}", std::process::id());
        Quota::new(&name, percent / slowed)
    };
    let groups: std::io::Result<Vec<Quota>> = (0..plan.workers).map(group).collect();
    groups.unwrap_or_else(|error| {
        eprintln!("shares of processors cannot be set: {error}; rows take time instead");
        Vec::new()
    })
}

/// Arithmetic of some rounds.
fn compute(rounds: u64) {
    let mut number = 1u64;
    for round in 0..rounds {
        number = std::hint::black_box(number.wrapping_mul(6_364_136_223_846_793_005) ^ round);
    }
}

/// The rounds of a millisecond of a processor that nobody else takes: by the shortest of some trials.
fn rounds_per_millisecond() -> u64 {
    const ROUNDS: u64 = 100_000;
    let trial = |_| {
        let start = Instant::now();
        compute(ROUNDS);
        start.elapsed()
    };
    let shortest = (0..200).map(trial).min().unwrap_or_default();
    (ROUNDS as f64 / shortest.as_secs_f64().max(1e-9) / 1000.0) as u64
}

/// How long data take for their rows.
enum Pace {
    /// Each row takes this time.
    Time(Duration),
    /// Each row is this number of rounds of arithmetic, on a share of a processor from the second batch on.
    Share { group: PathBuf, rounds: u64 },
}

impl Pace {
    fn new(plan: &Plan, is_last: bool) -> Result<Self, Box<dyn Error>> {
        if let Some(group) = std::env::var_os(GROUP) {
            let rounds: u64 = std::env::var(ROUNDS)?.parse()?;
            let rounds = rounds as f64 * plan.row.as_secs_f64() * 1000.0;
            return Ok(Self::Share {
                group: group.into(),
                rounds: rounds as u64,
            });
        }
        Ok(Self::Time(match is_last {
            true => plan.row * plan.slowed,
            false => plan.row,
        }))
    }

    /// Takes the time of the rows of a batch, by its number.
    fn take(&self, batch: usize, rows: usize) -> std::io::Result<()> {
        match self {
            Self::Time(row) if row.is_zero() => {}
            Self::Time(row) => std::thread::sleep(*row * rows as u32),
            Self::Share { group, rounds } => {
                // What the first step is made of is compiled by then.
                if batch == 1 {
                    Quota::join(group)?;
                }
                compute(rounds * rows as u64);
            }
        }
        Ok(())
    }

    const fn name(&self) -> &'static str {
        match self {
            Self::Time(_) => "time",
            Self::Share { .. } => "quota",
        }
    }
}

/// Keeps the time of the second call: the second batch of a worker is asked for when the first was pushed.
fn note_second(seen: &Mutex<Option<Option<SystemTime>>>) {
    let mut seen = seen
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    *seen = match *seen {
        None => Some(None),
        Some(None) => Some(Some(SystemTime::now())),
        done => done,
    };
}

fn train(
    plan: &Plan,
    strategy: &ParameterServerStrategy,
    begun: SystemTime,
) -> Result<(), Box<dyn Error>> {
    let config: Value = serde_json::from_str(&std::env::var("TF_CONFIG")?)?;
    let is_last = config["task"]["index"].as_u64() == Some(plan.workers as u64 - 1);
    let pace = Pace::new(plan, is_last)?;
    let slowed_by = pace.name();
    let count = AtomicUsize::new(0);
    let first_step = Arc::new(Mutex::new(None));
    let seen = Arc::clone(&first_step);
    let (model, compile, rows) = work(&plan.model)?;
    let batches = rows.batch(plan.batch).map(move |batch| {
        note_second(&seen);
        let number = count.fetch_add(1, Ordering::Relaxed);
        let taken = pace.take(number, batch.rows());
        taken.map_err(|error| phalanx::Error::User(format!("a share of a processor: {error}")))?;
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
        println!(
            "{}",
            json!({"first_step": first, "epochs": *epochs, "slowed_by": slowed_by})
        );
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
