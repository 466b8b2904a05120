//! Ranks as processes, of which one is killed, frozen or ends.
//!
//! The test program starts itself: with `RANK` set, `a_rank` is one rank, and does nothing otherwise.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use phalanx_cluster::launch::ReservedPorts;
use phalanx_collectives::{Communicator, CommunicatorOptions, Element, ReduceOp, Transport};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};

const RANKS: usize = 3;
const VICTIM: usize = 1;
/// A quarter of it is how long ranks have to hear who else waits.
const TIMEOUT: Duration = Duration::from_secs(8);
/// Well over what anything here takes, and below what a test runner waits.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn a_rank() {
    let Ok(rank) = std::env::var("RANK") else {
        return;
    };
    let rank: usize = rank.parse().unwrap();
    let addresses = std::env::var("ADDRESSES").unwrap();
    let addresses: Vec<SocketAddr> = addresses.split(' ').map(|a| a.parse().unwrap()).collect();
    let transport = match std::env::var("TRANSPORT").unwrap().as_str() {
        "tcp" => Transport::Tcp,
        "limited" => {
            let current = Some(1 << 20);
            let maximum = getrlimit(Resource::Fsize).maximum;
            setrlimit(Resource::Fsize, Rlimit { current, maximum }).unwrap();
            Transport::Auto
        }
        _ => Transport::SharedMemory,
    };
    let options = CommunicatorOptions {
        transport,
        timeout: TIMEOUT,
        ..CommunicatorOptions::default()
    };
    let listener = TcpListener::bind(addresses[rank]).unwrap();
    let communicator = Communicator::connect(rank, &addresses, &listener, &options).unwrap();
    let mut buffer = communicator.buffer(4 * 100_000);
    for step in 0.. {
        buffer.fill(0);
        let done = communicator.all_reduce_buffer(&mut buffer, Element::F32, ReduceOp::Sum);
        if let Err(error) = done {
            println!("\nerror {:?} {error}", error.blamed());
            return;
        }
        if step == 20 {
            println!("\nready");
        }
    }
}

struct Group {
    ranks: Vec<(Child, BufReader<ChildStdout>)>,
    _ports: ReservedPorts,
}

impl Drop for Group {
    fn drop(&mut self) {
        for (child, _) in &mut self.ranks {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Group {
    fn start(transport: &str) -> Self {
        let ports = ReservedPorts::new(RANKS, None).unwrap();
        let addresses = ports.of_workers().iter();
        let addresses: Vec<String> = addresses.map(|port| format!("127.0.0.1:{port}")).collect();
        let rank = |rank: usize| {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "a_rank", "--nocapture"])
                .env("RANK", rank.to_string())
                .env("ADDRESSES", addresses.join(" "))
                .env("TRANSPORT", transport)
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let out = BufReader::new(child.stdout.take().unwrap());
            (child, out)
        };
        Self {
            ranks: (0..RANKS).map(rank).collect(),
            _ports: ports,
        }
    }

    /// The rest of the next line of a rank that begins so.
    fn line(&mut self, rank: usize, start: &str) -> String {
        let mut lines = (&mut self.ranks[rank].1).lines().map(Result::unwrap);
        let line = lines.find(|line| line.starts_with(start));
        line.unwrap_or_else(|| panic!("rank {rank} ended without {start:?}"))
    }

    fn signal(&self, rank: usize, signal: Signal) {
        kill_process(Pid::from_child(&self.ranks[rank].0), signal).unwrap();
    }
}

#[test]
fn survivors_of_a_killed_rank_name_it_at_once() {
    for transport in ["shared", "tcp"] {
        let mut group = Group::start(transport);
        (0..RANKS).for_each(|rank| drop(group.line(rank, "ready")));
        group.signal(VICTIM, Signal::KILL);
        for rank in [0, 2] {
            let error = group.line(rank, "error");
            assert!(error.starts_with("error [1]"), "{transport} {error}");
            assert!(
                !error.contains("waited"),
                "found by the deadline only: {transport} {error}"
            );
        }
    }
}

#[test]
fn survivors_of_a_frozen_rank_name_it_after_the_timeout_and_it_hears_of_it() {
    for transport in ["shared", "tcp"] {
        let mut group = Group::start(transport);
        (0..RANKS).for_each(|rank| drop(group.line(rank, "ready")));
        group.signal(VICTIM, Signal::STOP);
        let start = Instant::now();
        for rank in [0, 2] {
            let error = group.line(rank, "error");
            assert!(error.starts_with("error [1]"), "{transport} {error}");
            assert!(
                error.contains(" s for rank 1 in all-reduce of 400000 bytes"),
                "{transport} {error}"
            );
        }
        let waited = start.elapsed();
        assert!(
            waited + Duration::from_millis(50) > TIMEOUT && waited < LONG,
            "{waited:?}"
        );
        group.signal(VICTIM, Signal::CONT);
        group.line(VICTIM, "error");
    }
}

/// Shared memory is a file, longer than any that these may have.
#[test]
fn ranks_that_may_have_no_long_files_exchange_over_connections() {
    let mut group = Group::start("limited");
    (0..RANKS).for_each(|rank| drop(group.line(rank, "ready")));
}
