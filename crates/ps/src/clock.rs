//! How far workers are, and how far they may be apart.

use serde::{Deserialize, Serialize};

use crate::Mode;
use crate::control::{Control, PhaseKind};

/// How far a worker is that is given a piece of work, in pieces of work that were done since the job began. Who comes late begins with
/// the slowest, and after a restart of the control all begin with one number; a clock never falls back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    /// By this worker, with those that it has and has not done.
    pub own: u64,
    /// By the slowest worker that is there.
    pub slowest: u64,
}

impl Control {
    /// A worker has done a piece of work.
    pub(crate) fn count(&mut self, worker: usize) {
        *self.clocks.entry(worker).or_insert(0) += 1;
        self.all_done += 1;
    }

    /// Nobody waits for what a worker did not do before it came, or came back.
    pub(crate) fn catch_up(&mut self, worker: usize) {
        let others = self.members.iter();
        let others = others.filter(|(other, member)| **other != worker && member.is_there);
        let clocks = others.filter_map(|(other, _)| self.clocks.get(other));
        let least = clocks.min().copied().unwrap_or(0);
        let clock = self.clocks.entry(worker).or_insert(0);
        *clock = least.max(*clock);
    }

    /// Brings the clocks of all workers to one number, for a control that comes back: its log has what workers did and not which of
    /// them came late. No clock falls back, since none was above the number of all pieces of work.
    pub fn catch_up_all(&mut self) {
        let most = self.clocks.values().copied().max().unwrap_or(0);
        self.all_done = self.all_done.max(most);
        let all = (0..self.settings().workers).map(|worker| (worker, self.all_done));
        self.clocks = all.collect();
    }

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
