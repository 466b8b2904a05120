//! The search.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::compare::{Verdict, verdict};
use crate::generate::network;
use crate::jax;
use crate::keras;
use crate::network::Spec;
use crate::shrink::shrunk;
use phalanx_testkit::{asked_number, search_seed};

/// Of so many networks one may be a near-tie, where noise in the last places makes as much of a difference.
const NEAR_TIES: f64 = 0.05;
/// So many networks are counted before that is judged.
const ENOUGH: u64 = 50;

/// Draws networks until the time is over: that of `PHALANX_FUZZ_MINUTES`, else ten seconds.
/// The seed is `PHALANX_FUZZ_SEED`, else a new one.
#[test]
fn search() {
    let search = Search::of_environment();
    println!("seed {}", search.seed);
    std::thread::scope(|scope| {
        for _ in 0..search.threads {
            scope.spawn(|| search.run());
        }
    });
    let counts = search.counts.lock().unwrap();
    if jax::compared() > 0 {
        println!("{} compared with JAX", jax::compared());
    }
    if keras::compared() > 0 {
        println!("{} compared with Keras", keras::compared());
    }
    println!(
        "{counts:?} in {:.0} s",
        search.start.elapsed().as_secs_f64()
    );
    let (seed, wrong) = (search.seed, &counts.wrong);
    assert!(
        wrong.is_empty(),
        "seed {seed}: networks {wrong:?} have wrong gradients"
    );
    let ties = counts.near_ties as f64 / counts.networks.max(1) as f64;
    assert!(
        counts.networks < ENOUGH || ties <= NEAR_TIES,
        "too many near-ties to tell: {counts:?}"
    );
}

/// What is counted.
#[derive(Debug, Default)]
struct Counts {
    networks: u64,
    near_ties: u64,
    skipped: u64,
    /// The largest relative difference of a gradient that is right.
    worst: f64,
    /// Numbers of networks with a wrong gradient.
    wrong: Vec<u64>,
}

/// A search that several threads do.
struct Search {
    seed: u64,
    threads: u64,
    budget: Duration,
    /// Whether it goes on behind a wrong gradient: `PHALANX_FUZZ_GO_ON`.
    goes_on: bool,
    /// Whether every network has a line: `PHALANX_FUZZ_LOG`.
    tells_all: bool,
    start: Instant,
    next: AtomicU64,
    is_over: AtomicBool,
    counts: Mutex<Counts>,
}

impl Search {
    fn of_environment() -> Self {
        let is_set = |variable| std::env::var_os(variable).is_some();
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let seconds = asked_number("PHALANX_FUZZ_MINUTES").map_or(10, |minutes| minutes * 60);
        Self {
            seed: search_seed(),
            threads: asked_number("PHALANX_FUZZ_THREADS").unwrap_or(processors as u64),
            budget: Duration::from_secs(seconds),
            goes_on: is_set("PHALANX_FUZZ_GO_ON"),
            tells_all: is_set("PHALANX_FUZZ_LOG"),
            start: Instant::now(),
            next: AtomicU64::new(asked_number("PHALANX_FUZZ_FIRST").unwrap_or(0)),
            is_over: AtomicBool::new(false),
            counts: Mutex::default(),
        }
    }

    /// What one thread does.
    fn run(&self) {
        while self.start.elapsed() < self.budget && !self.is_over.load(Ordering::Relaxed) {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let spec = network(self.seed, number);
            let begun = Instant::now();
            let verdict = match spec.model() {
                Ok(model) => verdict(&model, &spec.trial),
                Err(error) => Verdict::Skipped(error.to_string()),
            };
            let seconds = begun.elapsed().as_secs_f64();
            let told = format!(
                "seed {} network {number} {seconds:.1} s {}",
                self.seed,
                spec.line()
            );
            self.count(&verdict, &told);
            if let Verdict::Wrong(what) = verdict {
                self.wrong(number, &spec, &told, &what);
            }
        }
    }

    /// Prints a wrong network and the smallest like it.
    fn wrong(&self, number: u64, spec: &Spec, told: &str, what: &str) {
        self.is_over.fetch_or(!self.goes_on, Ordering::Relaxed);
        println!("WRONG {told}: {what}");
        // What does not end is not tried again: it still runs.
        let (small, what) = match what.contains("no answer in time") {
            true => (spec.clone(), what.to_owned()),
            false => shrunk(spec, what),
        };
        let test = small.test(&format!("seed_{}_network_{number}", self.seed));
        println!("SHRUNK {what}\n{test}");
        self.counts.lock().unwrap().wrong.push(number);
    }

    fn count(&self, verdict: &Verdict, told: &str) {
        let mut counts = self.counts.lock().unwrap();
        if !matches!(verdict, Verdict::Skipped(_)) {
            counts.networks += 1;
        }
        match verdict {
            Verdict::Right(difference) => {
                counts.worst = counts.worst.max(*difference);
                self.tell(|| format!("{told} {difference:.1e}"));
            }
            Verdict::NearTie(what) => {
                counts.near_ties += 1;
                println!("near-tie {told}: {what}");
            }
            Verdict::Skipped(why) => {
                counts.skipped += 1;
                self.tell(|| format!("skipped {told}: {why}"));
            }
            Verdict::Wrong(_) => {}
        }
        if counts.networks.is_multiple_of(100) {
            println!("{counts:?} in {:.0} s", self.start.elapsed().as_secs_f64());
        }
    }

    fn tell(&self, line: impl FnOnce() -> String) {
        if self.tells_all {
            println!("{}", line());
        }
    }
}
