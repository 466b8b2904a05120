//! `bench-collectives RANKS VARIANT` (`shared` or `tcp`): all-reduces between processes, for `cargo xtask bench collectives`.
//!
//! It starts the other ranks itself. Rank 0 prints a line of JSON a size (`bench/peers/README.md`).

#![forbid(unsafe_code)]

use std::error::Error;
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command};
use std::time::Instant;

use phalanx_collectives::{Communicator, CommunicatorOptions, Element, ReduceOp, Transport};
use serde_json::json;

/// Bytes, and the number of all-reduces of this size.
const SIZES: [(usize, usize); 5] = [
    (1 << 10, 2000),
    (64 << 10, 500),
    (1 << 20, 100),
    (16 << 20, 10),
    (100 << 20, 4),
];

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [ranks, transport] => first(ranks.parse()?, transport),
        [transport, rank, addresses @ ..] => {
            let addresses = addresses.iter().map(|address| address.parse());
            let addresses: Vec<SocketAddr> = addresses.collect::<Result<_, _>>()?;
            let rank = rank.parse()?;
            let listener = TcpListener::bind(addresses[rank])?;
            time_all(&connect(rank, &addresses, &listener, transport)?, transport)
        }
        _ => Err("expected RANKS and TRANSPORT".into()),
    }
}

/// Rank 0, which starts the others.
fn first(ranks: usize, transport: &str) -> Outcome<()> {
    let listeners: Vec<TcpListener> = (0..ranks)
        .map(|_| TcpListener::bind("127.0.0.1:0"))
        .collect::<Result<_, _>>()?;
    let addresses: Vec<SocketAddr> = listeners
        .iter()
        .map(TcpListener::local_addr)
        .collect::<Result<_, _>>()?;
    let mut listeners = listeners.into_iter();
    let listener = listeners.next().ok_or("expected at least one rank")?;
    drop(listeners);
    let others: Vec<Child> = (1..ranks)
        .map(|rank| {
            let mut command = Command::new(std::env::current_exe()?);
            command.args([transport, &rank.to_string()]);
            command
                .args(addresses.iter().map(SocketAddr::to_string))
                .spawn()
        })
        .collect::<Result<_, _>>()?;
    let communicator = connect(0, &addresses, &listener, transport)?;
    time_all(&communicator, transport)?;
    for mut other in others {
        other.wait()?;
    }
    Ok(())
}

fn connect(
    rank: usize,
    addresses: &[SocketAddr],
    listener: &TcpListener,
    transport: &str,
) -> Outcome<Communicator> {
    pin(rank, addresses.len())?;
    let transport = match transport {
        "shared" => Transport::SharedMemory,
        "tcp" => Transport::Tcp,
        other => return Err(format!("found transport {other:?}, expected shared or tcp").into()),
    };
    let options = CommunicatorOptions {
        transport,
        ..CommunicatorOptions::default()
    };
    Ok(Communicator::connect(rank, addresses, listener, &options)?)
}

/// Keeps a rank to a processor of its own, where there are enough, as the peers' launchers do.
fn pin(rank: usize, ranks: usize) -> Outcome<()> {
    let mine = rustix::thread::sched_getaffinity(None)?;
    let mut allowed =
        (0..rustix::thread::CpuSet::MAX_CPU).filter(|&processor| mine.is_set(processor));
    if allowed.clone().count() < ranks {
        return Ok(());
    }
    let mut own = rustix::thread::CpuSet::new();
    own.set(
        allowed
            .nth(rank)
            .ok_or("expected a processor for each rank")?,
    );
    Ok(rustix::thread::sched_setaffinity(None, &own)?)
}

/// Every size; rank 0 says what came out.
fn time_all(communicator: &Communicator, variant: &str) -> Outcome<()> {
    for (bytes, count) in SIZES {
        let us = time(communicator, bytes, count)?;
        if communicator.rank() == 0 {
            let version = env!("CARGO_PKG_VERSION");
            println!(
                "{}",
                json!({"framework": "phalanx", "version": version, "variant": variant, "bytes": bytes, "median_us": us})
            );
        }
    }
    Ok(())
}

/// The median time of an all-reduce, in microseconds. A first one does not count.
fn time(communicator: &Communicator, bytes: usize, count: usize) -> Outcome<f64> {
    let mut buffer = communicator.buffer(bytes);
    buffer.fill(0);
    let mut times = Vec::new();
    for step in 0..=count {
        let start = Instant::now();
        communicator.all_reduce_buffer(&mut buffer, Element::F32, ReduceOp::Sum)?;
        if step > 0 {
            times.push(start.elapsed().as_secs_f64() * 1e6);
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}
