//! Random schedules of faults, each from a seed.

use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use phalanx_testkit::asked_number;

use super::run::Run;
use super::trial::Trial;
use super::unbroken;

/// The schedules of each test run: each kind with each number of workers.
const USUAL: u64 = 24;
/// Trainings with kills compute all the time.
const KILLS_AT_ONCE: usize = 1;
/// Trainings with stops wait most of the time.
const STOPS_AT_ONCE: usize = 3;

/// The seeds that are asked for, or so many of each test run.
pub(crate) fn seeds(usual: u64) -> Vec<u64> {
    let first = asked_number("PHALANX_TEST_SEED");
    let trials = asked_number("PHALANX_TEST_TRIALS");
    let usual = if first.is_some() { 1 } else { usual };
    let first = first.unwrap_or(0);
    (first..first + trials.unwrap_or(usual)).collect()
}

/// Trains under the faults of a seed, and as if there were none. Returns how long each recovery took.
fn try_seed(seed: u64, shows_lines: bool) -> Vec<Duration> {
    let trial = Trial::new(seed);
    let trained = Run::new(&format!("trial-{seed}")).train(trial.workers, &trial.faults);
    let expected = unbroken(trial.workers);
    let lines = trained.lines.text();
    for (rank, out) in trained.outs.iter().enumerate() {
        assert_eq!(
            *out, expected,
            "seed {seed} {trial:?} worker {rank}\n{lines}"
        );
    }
    let recovered = trained.recoveries();
    eprintln!("seed {seed}: {trial:?}: recovered in {recovered:?}");
    if shows_lines {
        eprintln!("{lines}");
    }
    recovered
}

#[test]
fn killed_and_stopped_workers_change_nothing() {
    let seeds = seeds(USUAL);
    // Such a seed may stop a worker and kill none.
    let is_alone = seeds.len() == 1;
    let (mut stops, kills): (Vec<u64>, Vec<u64>) = seeds
        .into_iter()
        .partition(|seed| Trial::new(*seed).stopped() > Duration::ZERO);
    // The longest ones are taken first, from the end.
    stops.sort_by_key(|seed| Trial::new(*seed).stopped());
    let times = Mutex::new(Vec::new());
    let lanes = [(kills, KILLS_AT_ONCE), (stops, STOPS_AT_ONCE)];
    let lanes = lanes.map(|(seeds, at_once)| (Mutex::new(seeds), at_once));
    let next = |seeds: &Mutex<Vec<u64>>| {
        let mut seeds = seeds.lock().unwrap_or_else(PoisonError::into_inner);
        seeds.pop()
    };
    thread::scope(|scope| {
        for (seeds, at_once) in &lanes {
            for _ in 0..*at_once {
                scope.spawn(|| {
                    while let Some(seed) = next(seeds) {
                        let recovered = try_seed(seed, is_alone);
                        let mut times = times.lock().unwrap_or_else(PoisonError::into_inner);
                        times.extend(recovered);
                    }
                });
            }
        }
    });
    let mut times = times.into_inner().unwrap();
    times.sort();
    assert!(is_alone || !times.is_empty(), "no kill hit a training");
    eprintln!(
        "{} recoveries, median {:?}, longest {:?}",
        times.len(),
        times.get(times.len() / 2),
        times.last()
    );
}
