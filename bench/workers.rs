//! Phalanx as worker processes with a processor each: `bench-workers MODEL BATCH WORKERS`, the turns of `bench/peers/README.md`.
//!
//! The batch is per worker; one worker trains alone. The first starts the others, with their number and the port of the
//! rendezvous as further arguments, and hands them every line that it reads. `bench-workers MODEL BATCH first` is a worker of any launcher, of
//! which the first says when the first step was done (`first_step_ms`, since 1970). `bench-workers MODEL BATCH recovery FOLDER` is one that
//! trains until it is ended; the file of its rank gets a line a step: its process, the number of the step, and when it was done.
#![forbid(unsafe_code)]

mod processors;
mod program;
mod replica_training;
mod synthetic;
mod turns;

use std::error::Error;
use std::fs::File;
use std::io::Write;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use phalanx::engine::{Engine, EngineOptions};
use phalanx::fit::callbacks::Lambda;
use phalanx::prelude::*;
use phalanx::replicas::Reduction;
use phalanx::strategy::{
    Address, CommunicationOptions, Membership, MultiWorkerMirroredStrategy, Transport,
};

use replica_training::{epoch, prepare};

/// More steps than are ever made.
const ENDLESS: usize = 1 << 40;

fn main() -> ExitCode {
    program::exit(run())
}

fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, batch, workers, place @ ..] = &arguments[..] else {
        return Err("usage: bench-workers MODEL BATCH WORKERS".into());
    };
    if workers == "first" {
        return first_step(model, batch.parse()?);
    }
    if let ("recovery", [folder]) = (&**workers, place) {
        return all_steps(model, batch.parse()?, Path::new(folder));
    }
    let count: usize = workers.parse()?;
    let (worker, port) = match place {
        [worker, port] => (worker.parse()?, port.parse()?),
        _ => (0, TcpListener::bind("127.0.0.1:0")?.local_addr()?.port()),
    };
    let mut others: Vec<Child> = Vec::new();
    if worker == 0 {
        for other in 1..count {
            others.push(start([model, batch, workers], other, port)?);
        }
    }
    processors::use_some(worker, 1)?;
    let engine = Engine::new(&EngineOptions::default())?;
    let strategy: Box<dyn Strategy> = match count {
        1 => Box::new(OneDeviceStrategy::on(&engine)),
        _ => {
            let place = Membership::new(count, worker, Address::new("127.0.0.1", port));
            let transport = match std::env::var("BENCH_TRANSPORT").as_deref() {
                Ok("tcp") => Transport::Tcp,
                _ => Transport::Auto,
            };
            let options = CommunicationOptions::new().transport(transport);
            let strategy = MultiWorkerMirroredStrategy::join(&engine, &place, &options)?;
            let bytes = std::env::var("BENCH_BYTES_PER_PACK").ok();
            let bytes = bytes.map_or(Ok(32 << 20), |bytes| bytes.parse())?;
            Box::new(strategy.reduction(Reduction::new().bytes_per_pack(bytes)))
        }
    };
    let (mut trainer, batches) = prepare(&strategy, model, count * batch.parse::<usize>()?)?;
    let served = turns::serve(|steps| {
        for other in &mut others {
            let pipe = other.stdin.as_mut();
            let told = pipe.map_or(Ok(()), |pipe| writeln!(pipe, "{steps}"));
            told.map_err(|error| phalanx::Error::Cluster(error.to_string()))?;
        }
        epoch(&mut trainer, &batches, steps)
    });
    // The others end with their input, and all leave together.
    for other in &mut others {
        drop(other.stdin.take());
    }
    drop((trainer, strategy));
    for mut other in others {
        other.wait()?;
    }
    served
}

/// Makes one step as a worker of a launcher.
fn first_step(model: &str, batch: usize) -> Result<(), Box<dyn Error>> {
    let strategy = MultiWorkerMirroredStrategy::from_env()?;
    let rows = strategy.placement().workers() * batch;
    let (mut trainer, batches) = prepare(&strategy, model, rows)?;
    let turn = epoch(&mut trainer, &batches, 1)?;
    let done = SystemTime::now().duration_since(UNIX_EPOCH)?;
    if strategy.is_chief() {
        let line = serde_json::json!({
            "framework": "phalanx", "version": env!("CARGO_PKG_VERSION"),
            "first_step_ms": done.as_secs_f64() * 1e3, "loss": turn.loss,
        });
        println!("{line}");
    }
    Ok(())
}

/// Trains without an end as a worker of a launcher.
fn all_steps(model: &str, batch: usize, folder: &Path) -> Result<(), Box<dyn Error>> {
    let strategy = MultiWorkerMirroredStrategy::from_env()?;
    let rows = strategy.placement().workers() * batch;
    let (mut trainer, batches) = prepare(&strategy, model, rows)?;
    let path = folder.join(strategy.worker().to_string());
    let mut file = File::options().create(true).append(true).open(path)?;
    let process = std::process::id();
    let note = Lambda::new().on_train_batch_end(move |_, cx| {
        // They are there when the step is done for good.
        cx.logs()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(f64::NAN, |now| now.as_secs_f64());
        let line = format!("{process} {} {now}\n", cx.iterations());
        let written = file.write_all(line.as_bytes());
        written.map_err(|error| phalanx::Error::Training(error.to_string()))
    });
    let fit = Fit::epochs(1).steps_per_epoch(ENDLESS).callback(note);
    trainer.fit(&batches, fit.progress(Progress::Silent))?;
    Ok(())
}

/// Starts another worker, which serves the same turns and says nothing.
fn start(arguments: [&String; 3], worker: usize, port: u16) -> std::io::Result<Child> {
    Command::new(std::env::current_exe()?)
        .args(arguments)
        .args([worker.to_string(), port.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
}
