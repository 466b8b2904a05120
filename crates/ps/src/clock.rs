//! How far workers are, and how far they may be apart.

use serde::{Deserialize, Serialize};

use crate::Mode;
use crate::control::{Control, PhaseKind};

/// How far a worker is that is given a piece of work, in pieces of work that were done since the job began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    /// By this worker, with those that it has and has not done.
    pub own: u64,
    /// By the slowest worker that is there.
    pub slowest: u64,
}

impl Control {
    /// The workers that one must wait for since it is too far ahead of them, or will be when it has done what it has.
    pub(crate) fn ahead_of(&self, worker: usize, kind: PhaseKind, has: u64) -> Vec<usize> {
        let Mode::BoundedStaleness { steps } = self.settings().mode else {
            return Vec::new();
        };
        if kind != PhaseKind::Train {
            return Vec::new();
        }
        let clock = |worker: &usize| self.clocks.get(worker).copied().unwrap_or(0);
        let there = self.members.iter().filter(|(_, member)| member.is_there);
        let behind = there.filter(|(other, _)| clock(other) + steps < clock(&worker) + has);
        behind.map(|(other, _)| *other).collect()
    }

    /// How many pieces of work a worker has done more than the slowest that is there.
    #[must_use]
    pub fn lead(&self, worker: usize) -> u64 {
        let clock = self.clock_of(worker, 0);
        clock.own.saturating_sub(clock.slowest)
    }

    pub(crate) fn clock_of(&self, worker: usize, has: u64) -> Clock {
        let clock = |worker: &usize| self.clocks.get(worker).copied().unwrap_or(0);
        let there = self.members.iter().filter(|(_, member)| member.is_there);
        let least = there.map(|(other, _)| clock(other)).min();
        let own = clock(&worker);
        Clock {
            own: own + has,
            slowest: least.unwrap_or(own),
        }
    }
}
