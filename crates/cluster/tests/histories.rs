//! What workers see of shared keys and barriers can be explained by one order of all operations (linearizability), found by the search
//! of Wing and Gong: the operation that comes next is one that began before any other had ended.
//!
//! PHALANX_HISTORIES sets how many histories there are.

#[allow(dead_code, reason = "generations use all of it")]
#[path = "generations/random.rs"]
mod random;

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use phalanx_cluster::launch::ReservedPorts;
use phalanx_cluster::{Address, Coordinator, JoinRequest, Membership};

use self::random::Random;

/// Nothing takes so long unless it hangs.
const LONG: Duration = Duration::from_secs(120);
const WORKERS: usize = 4;
/// Operations of each worker.
const OPERATIONS: usize = 6;

/// What a worker did with the key, from when to when.
#[derive(Debug, Clone, Copy)]
struct Operation {
    begun: Instant,
    ended: Instant,
    kind: Kind,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Set(u8),
    Got(u8),
}

/// Whether there is an order of all operations in which each read gives what was written last, and none comes before one that
/// had ended when it began.
fn is_linearizable(operations: &[Operation], first: u8) -> bool {
    assert!(operations.len() <= 64);
    let mut seen = HashSet::new();
    search(operations, 0, first, &mut seen)
}

fn search(all: &[Operation], done: u64, value: u8, seen: &mut HashSet<(u64, u8)>) -> bool {
    if done.count_ones() as usize == all.len() {
        return true;
    }
    if !seen.insert((done, value)) {
        return false;
    }
    let left = || (0..all.len()).filter(|at| done >> at & 1 == 0);
    let Some(first_end) = left().map(|at| all[at].ended).min() else {
        return true;
    };
    left().filter(|at| all[*at].begun <= first_end).any(|at| {
        let after = match all[at].kind {
            Kind::Set(new) => new,
            Kind::Got(got) if got == value => value,
            Kind::Got(_) => return false,
        };
        search(all, done | 1 << at, after, seen)
    })
}

/// Workers that have joined over TCP.
fn joined() -> Vec<Coordinator> {
    let ports = ReservedPorts::new(1, None).unwrap();
    let port = ports.of_workers()[0];
    let join = |worker| {
        thread::spawn(move || {
            let membership = Membership::new(WORKERS, worker, Address::new("127.0.0.1", port));
            let data: SocketAddr = ([127, 0, 0, 1], 1000 + worker as u16).into();
            let request = JoinRequest::new("1.0", data).deadline(LONG);
            Coordinator::join(&membership, request).unwrap().0
        })
    };
    let threads: Vec<_> = (0..WORKERS).map(join).collect();
    threads
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .collect()
}

/// What one worker does in a history; the times at which it came to the barrier at the end and left it.
fn act(coordinator: &Coordinator, start: &Barrier, history: u64) -> (Vec<Operation>, [Instant; 2]) {
    let key = format!("history {history}");
    let worker = coordinator.worker();
    let mut random = Random(history * WORKERS as u64 + worker as u64);
    start.wait();
    let operation = |number: usize| {
        let begun = Instant::now();
        let kind = match random.below(2) {
            0 => {
                let value = (1 + worker * OPERATIONS + number) as u8;
                coordinator.set(&key, vec![value]).unwrap();
                Kind::Set(value)
            }
            _ => Kind::Got(coordinator.get(&key, LONG).unwrap()[0]),
        };
        Operation {
            begun,
            ended: Instant::now(),
            kind,
        }
    };
    let operations = (0..OPERATIONS).map(operation).collect();
    let come = Instant::now();
    coordinator.barrier(&key, LONG).unwrap();
    (operations, [come, Instant::now()])
}

#[test]
fn keys_and_barriers_are_linearizable() {
    let histories = std::env::var("PHALANX_HISTORIES").map_or(20, |text| text.parse().unwrap());
    let coordinators = joined();
    for history in 0..histories {
        coordinators[0]
            .set(&format!("history {history}"), vec![0])
            .unwrap();
        let start = Arc::new(Barrier::new(WORKERS));
        let acted: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = coordinators
                .iter()
                .map(|coordinator| {
                    let start = Arc::clone(&start);
                    scope.spawn(move || act(coordinator, &start, history))
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        let last_come = acted.iter().map(|(_, [come, _])| *come).max().unwrap();
        let first_left = acted.iter().map(|(_, [_, left])| *left).min().unwrap();
        assert!(
            last_come <= first_left,
            "history {history}: a barrier was left early"
        );
        let operations: Vec<_> = acted
            .into_iter()
            .flat_map(|(operations, _)| operations)
            .collect();
        assert!(
            is_linearizable(&operations, 0),
            "history {history}: {operations:#?}"
        );
    }
    let leaving: Vec<_> = coordinators
        .into_iter()
        .map(|coordinator| thread::spawn(move || coordinator.leave(LONG)))
        .collect();
    for thread in leaving {
        thread.join().unwrap().unwrap();
    }
}

#[test]
fn the_search_tells_right_histories_from_wrong_ones() {
    let zero = Instant::now();
    let at = |begun: u64, ended: u64, kind| Operation {
        begun: zero + Duration::from_millis(begun),
        ended: zero + Duration::from_millis(ended),
        kind,
    };
    // A read beside a write may give either value.
    for got in [0, 1] {
        assert!(is_linearizable(
            &[at(0, 10, Kind::Set(1)), at(5, 6, Kind::Got(got))],
            0
        ));
    }
    // Afterwards it may not give the old one, nor one that was never written.
    for got in [0, 7] {
        assert!(!is_linearizable(
            &[at(0, 10, Kind::Set(1)), at(11, 12, Kind::Got(got))],
            0
        ));
    }
    // Once one has read the new value, a later read does not give the old one.
    let split = [
        at(0, 100, Kind::Set(1)),
        at(10, 20, Kind::Got(1)),
        at(30, 40, Kind::Got(0)),
    ];
    assert!(!is_linearizable(&split, 0));
}
