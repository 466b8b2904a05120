//! The network between the nodes: are sums right, how long do they take, and what gets lost.

use std::fs;
use std::time::{Duration, Instant};

use phalanx_collectives::{CollectiveError, Communicator, Element, ReduceOp};

use crate::doctor::Check;
use crate::machine::bytes;

/// Elements of a small all-reduce.
const SMALL: usize = 16;
/// Elements of one that fits into any queue on the way: 16 KiB.
const SHORT: usize = 4 << 10;
/// Elements of a large one: 16 MiB.
const LARGE: usize = 4 << 20;
const SMALL_ROUNDS: usize = 50;
const SHORT_ROUNDS: usize = 800;
const LARGE_ROUNDS: usize = 3;
/// What a network of 1 Gbit/s does, and not much less.
const SLOW: f64 = 80e6;
/// The share of lost segments that slows a connection down.
const LOSSY: f64 = 0.005;
/// Fewer segments say nothing about shares.
const ENOUGH_SEGMENTS: u64 = 500;

/// What the exchanges took.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Measured {
    /// Of a small all-reduce, in the middle.
    pub(crate) latency: Duration,
    /// Of the fastest large one.
    pub(crate) large: Duration,
    /// The segments of TCP of sums that fit into the queues on the way. Large ones fill a queue until it drops some, on a good network too.
    pub(crate) segments: Segments,
}

/// Sums over all workers, small ones and then large ones.
///
/// # Errors
/// What is wrong with the network.
pub(crate) fn network(communicator: &Communicator) -> Result<Measured, Check> {
    let mut small = Vec::new();
    for _ in 0..SMALL_ROUNDS {
        small.push(round(communicator, SMALL).map_err(|error| failed(&error, None))?);
    }
    small.sort();
    let latency = small[small.len() / 2];
    let before = Segments::now();
    for _ in 0..SHORT_ROUNDS {
        round(communicator, SHORT).map_err(|error| failed(&error, Some(latency)))?;
    }
    let segments = Segments::now().since(before);
    let mut large = Duration::MAX;
    for _ in 0..LARGE_ROUNDS {
        let took = round(communicator, LARGE).map_err(|error| failed(&error, Some(latency)))?;
        large = large.min(took);
    }
    Ok(Measured {
        latency,
        large,
        segments,
    })
}

enum Wrong {
    Exchange(CollectiveError),
    Sum { at: usize, expected: f32, got: f32 },
}

/// One all-reduce whose sums are known.
fn round(communicator: &Communicator, elements: usize) -> Result<Duration, Wrong> {
    let value = |rank: usize, at: usize| (rank + 1) as f32 * ((at % 97) as f32 + 1.0);
    let own = (0..elements).flat_map(|at| value(communicator.rank(), at).to_le_bytes());
    let mut data: Vec<u8> = own.collect();
    let start = Instant::now();
    let done = communicator.all_reduce(&mut data, Element::F32, ReduceOp::Sum);
    let took = start.elapsed();
    done.map_err(Wrong::Exchange)?;
    let ranks = (communicator.size() * (communicator.size() + 1) / 2) as f32;
    for (at, got) in data.chunks_exact(4).enumerate() {
        let got = f32::from_le_bytes([got[0], got[1], got[2], got[3]]);
        let expected = ranks * ((at % 97) as f32 + 1.0);
        if got != expected {
            return Err(Wrong::Sum { at, expected, got });
        }
    }
    Ok(took)
}

fn failed(wrong: &Wrong, small_ones: Option<Duration>) -> Check {
    const NAME: &str = "all-reduce";
    match (wrong, small_ones) {
        (Wrong::Sum { at, expected, got }, _) => Check::fail(
            NAME,
            format!("element {at} of a sum is {got}, not {expected}"),
            "this is an error of the network's hardware, of memory or of phalanx: check the memory of the machines, then report it",
        ),
        (Wrong::Exchange(error), Some(_)) => Check::fail(
            NAME,
            format!(
                "sums of 64 bytes pass, sums of {} do not: {error}",
                bytes(4 * LARGE as u64)
            ),
            "compare the MTU of the interfaces and of what is between them (ip link; ping -M do -s 1472), and look for lost packets",
        ),
        (Wrong::Exchange(error), None) => Check::fail(
            NAME,
            error.to_string(),
            "look at that worker's machine and at the network in between",
        ),
    }
}

/// What Linux counts of the segments of all TCP connections of this machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Segments {
    pub(crate) sent: u64,
    /// Those that were sent again.
    pub(crate) again: u64,
    /// Those that had come twice, as the other side says: they were late and not lost.
    pub(crate) twice: u64,
}

impl Segments {
    /// Since the machine's start.
    fn now() -> Self {
        let read = |name: &str| fs::read_to_string(name).unwrap_or_default();
        Self::counted(&read("/proc/net/snmp"), &read("/proc/net/netstat"))
    }

    fn counted(snmp: &str, netstat: &str) -> Self {
        Self {
            sent: counter(snmp, "Tcp:", "OutSegs"),
            again: counter(snmp, "Tcp:", "RetransSegs"),
            twice: counter(netstat, "TcpExt:", "TCPDSACKRecv"),
        }
    }

    fn since(self, before: Self) -> Self {
        Self {
            sent: self.sent.saturating_sub(before.sent),
            again: self.again.saturating_sub(before.again),
            twice: self.twice.saturating_sub(before.twice),
        }
    }

    fn lost(self) -> u64 {
        self.again.saturating_sub(self.twice)
    }
}

/// A counter of one of the tables of `/proc/net`: a line of names, then one of numbers. 0 where there is none.
fn counter(text: &str, table: &str, wanted: &str) -> u64 {
    let mut lines = text.lines().filter(|line| line.starts_with(table));
    let (names, values) = (
        lines.next().unwrap_or_default(),
        lines.next().unwrap_or_default(),
    );
    let at = names.split_whitespace().position(|name| name == wanted);
    let value = at.and_then(|at| values.split_whitespace().nth(at));
    value.and_then(|value| value.parse().ok()).unwrap_or(0)
}

/// Judges the figures of a group of this many workers.
pub(crate) fn of_measured(measured: &Measured, workers: usize) -> Vec<Check> {
    let share = 2.0 * (workers as f64 - 1.0) / workers as f64;
    let rate = 4.0 * LARGE as f64 * share / measured.large.as_secs_f64().max(1e-9);
    let found = format!(
        "sums of {workers} workers are right; 64 bytes in {:.0} us, {} in {:.1} ms ({:.0} MB/s each way)",
        measured.latency.as_secs_f64() * 1e6,
        bytes(4 * LARGE as u64),
        measured.large.as_secs_f64() * 1e3,
        rate / 1e6
    );
    let mut checks = vec![match rate < SLOW {
        true => Check::warn(
            "all-reduce",
            found,
            "expect slow steps: less than a network of 1 Gbit/s gives; look for another interface, a slow switch, or traffic of others",
        ),
        false => Check::ok("all-reduce", found),
    }];
    let Segments { sent, again, .. } = measured.segments;
    let lost = measured.segments.lost() as f64 / sent.max(1) as f64;
    if sent + again >= ENOUGH_SEGMENTS && lost > LOSSY {
        checks.push(Check::warn(
            "loss",
            format!("{:.1} % of {sent} segments were lost", 100.0 * lost),
            "look at cables, switches and the counters of the interfaces (ip -s link), and compare their MTU",
        ));
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;

    const SNMP: &str = "Ip: Forwarding DefaultTTL\nIp: 1 64\nTcp: RtoAlgorithm InSegs OutSegs RetransSegs\nTcp: 1 20 1000 30\n";
    const NETSTAT: &str = "TcpExt: SyncookiesSent TCPDSACKRecv\nTcpExt: 5 7\n";

    fn segments(sent: u64, again: u64, twice: u64) -> Segments {
        Segments { sent, again, twice }
    }

    #[test]
    fn segments_are_read_by_their_names() {
        assert_eq!(Segments::counted(SNMP, NETSTAT), segments(1000, 30, 7));
        assert_eq!(Segments::counted("", ""), Segments::default());
        assert_eq!(
            Segments::counted("Tcp: OutSegs\nTcp: x\n", SNMP),
            Segments::default()
        );
    }

    #[test]
    fn slow_and_lossy_networks_are_told_from_good_ones() {
        let good = Measured {
            latency: Duration::from_micros(20),
            large: Duration::from_millis(20),
            segments: segments(10_000, 2, 0),
        };
        assert!(
            of_measured(&good, 2)
                .iter()
                .all(|check| check.state == State::Ok)
        );
        let slow = Measured {
            large: Duration::from_secs(5),
            ..good.clone()
        };
        assert!(matches!(of_measured(&slow, 2)[0].state, State::Warn(_)));
        let lossy = Measured {
            segments: segments(10_000, 120, 20),
            ..good.clone()
        };
        let [_, loss] = &of_measured(&lossy, 2)[..] else {
            panic!()
        };
        assert!(loss.found.starts_with("1.0 % of 10000"), "{loss}");
        for fine in [segments(100, 10, 0), segments(10_000, 120, 118)] {
            let measured = Measured {
                segments: fine,
                ..good.clone()
            };
            assert_eq!(of_measured(&measured, 2).len(), 1, "{fine:?}");
        }
    }

    #[test]
    fn sums_of_threads_are_right_and_measured() {
        let group = Communicator::in_memory(3, &Default::default()).unwrap();
        std::thread::scope(|scope| {
            for communicator in group {
                scope.spawn(move || {
                    let measured = network(&communicator).map_err(|check| check.to_string());
                    assert!(measured.unwrap().large > Duration::ZERO);
                });
            }
        });
    }
}
