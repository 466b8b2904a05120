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

pub(super) const KILL_SECOND: Fault = Fault {
    after: Duration::from_millis(300),
    rank: 1,
    stopped: None,
};
