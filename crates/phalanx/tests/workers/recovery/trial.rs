//! What is done to whom, and when: a trial is a seed.

use std::time::Duration;

use phalanx_testkit::Random;

/// What is done to a worker, so long after the first one has begun to train.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fault {
    pub(super) after: Duration,
    pub(super) rank: usize,
    /// Stopped for so long, or killed.
    pub(super) stopped: Option<Duration>,
}

/// What a seed does to whom.
#[derive(Debug)]
pub(super) struct Trial {
    pub(super) workers: usize,
    pub(super) faults: Vec<Fault>,
}

impl Trial {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let workers = 2 + (seed % 3) as usize;
        let after = Duration::from_millis(random.below(1200));
        let rank = random.below(workers as u64) as usize;
        let other = (rank + 1 + random.below(workers as u64 - 1) as usize) % workers;
        let later = after + Duration::from_millis(20 + random.below(900));
        let kill = |after, rank| Fault {
            after,
            rank,
            stopped: None,
        };
        let stop = |seconds| Fault {
            after,
            rank,
            stopped: Some(Duration::from_secs(seconds)),
        };
        let faults = match seed / 3 % 8 {
            0 => vec![kill(after, rank)],
            1 => vec![kill(after, 0)],
            2 => vec![kill(after, rank), kill(after, other)],
            // Most likely while the others meet again.
            3 => vec![kill(after, rank), kill(later, other)],
            4 => vec![kill(after, rank), kill(later, rank)],
            5 => vec![stop(3)],
            // Longer than the lease.
            6 => vec![stop(8)],
            _ => vec![stop(30)],
        };
        Self { workers, faults }
    }
}

impl Trial {
    /// The longest time for which a worker is stopped.
    pub(super) fn stopped(&self) -> Duration {
        let stopped = self.faults.iter().filter_map(|fault| fault.stopped);
        stopped.max().unwrap_or_default()
    }
}

/// What a seed does to the network of some hosts, and for how long: shorter or longer than a lease.
#[derive(Debug)]
pub(crate) struct Outage {
    pub(crate) after: Duration,
    pub(crate) lasts: Duration,
    /// Verbs of `netns-hosts` with their words: what begins it and what ends it.
    pub(crate) begin: Vec<String>,
    pub(crate) end: Vec<String>,
}

impl Outage {
    pub(crate) fn new(seed: u64, hosts: u64) -> Self {
        let mut random = Random::new(seed);
        let after = Duration::from_millis(random.below(1500));
        let lasts = Duration::from_millis(200 + random.below(9000));
        let one = random.below(hosts);
        let other = (one + 1 + random.below(hosts - 1)) % hosts;
        let [one, other] = [one + 1, other + 1].map(|host| host.to_string());
        let mbit = (1 + random.below(5)).to_string();
        let heal = ["heal"].as_slice();
        let (begin, end): (&[&str], &[&str]) = match seed % 5 {
            0 => (&["isolate", &one], heal),
            1 => (&["oneway", &one, &other], heal),
            2 => (&["cut", &one, &other], heal),
            3 => (&["reset", &one, &other], heal),
            _ => (&["rate", &one, &mbit], &["rate", &one, "0"]),
        };
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        Self {
            after,
            lasts,
            begin: words(begin),
            end: words(end),
        }
    }
}

pub(super) const KILL_SECOND: Fault = Fault {
    after: Duration::from_millis(300),
    rank: 1,
    stopped: None,
};
