//! What a worker brings when it joins, and what it learns.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use phalanx_proof::Secret;

use super::event::Recovery;
use super::message::Seat;

/// How long all may take to join, by default.
pub(super) const JOIN_WITHIN: Duration = Duration::from_secs(300);

/// How often workers say that they are alive, and how long they may be silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// The time between two heartbeats.
    pub heartbeat: Duration,
    /// A worker that is silent for longer is lost. The lease of worker 0 counts for all.
    pub lease: Duration,
}

impl Default for Timing {
    /// A heartbeat each half second, a lease of 5 seconds.
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_millis(500),
            lease: Duration::from_secs(5),
        }
    }
}

/// What a worker brings when it joins.
pub struct JoinRequest {
    /// The version of its program: all must have the same.
    pub version: String,
    /// Where it listens for data of other workers, such as
    /// [`Membership::data_listener`](crate::Membership::data_listener) is bound to. An unspecified IP address stands
    /// for the one at which the coordinator sees it.
    pub data_address: SocketAddr,
    /// How long all may take to join; 5 minutes by default.
    pub deadline: Duration,
    /// Heartbeats and the lease.
    pub timing: Timing,
    /// What happens when a worker is lost, where worker 0 coordinates: nothing by default, which ends the training of all.
    pub recovery: Option<Recovery>,
    /// How far this worker's training is; none where it has not begun.
    pub progress: Option<u64>,
    /// The generation that it was a member of last; 0 of none.
    pub(super) generation: u64,
    pub(super) secret: Option<Secret>,
    pub(super) on_waiting: Box<dyn FnMut(&str) + Send>,
    pub(super) stop: Option<Arc<AtomicBool>>,
}

impl JoinRequest {
    /// What a worker of this version brings which listens for data at this address.
    #[must_use]
    pub fn new(version: impl Into<String>, data_address: SocketAddr) -> Self {
        Self {
            version: version.into(),
            data_address,
            deadline: JOIN_WITHIN,
            timing: Timing::default(),
            recovery: None,
            progress: None,
            generation: 0,
            secret: None,
            on_waiting: Box::new(|line| eprintln!("{line}")),
            stop: None,
        }
    }

    /// Sets a flag that ends the wait for the others, as the deadline does, when it is found set.
    #[must_use]
    pub fn stop_when(mut self, flag: Option<Arc<AtomicBool>>) -> Self {
        self.stop = flag;
        self
    }

    /// Sets how long all may take to join.
    #[must_use]
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets heartbeats and the lease.
    #[must_use]
    pub const fn timing(mut self, timing: Timing) -> Self {
        self.timing = timing;
        self
    }

    /// Sets what all workers prove to each other that they know: every message then carries a proof. It can be read by others.
    #[must_use]
    pub fn secret(mut self, secret: Secret) -> Self {
        self.secret = Some(secret);
        self
    }

    /// Sets what happens when a worker is lost, where worker 0 coordinates.
    #[must_use]
    pub const fn recovery(mut self, recovery: Option<Recovery>) -> Self {
        self.recovery = recovery;
        self
    }

    /// Sets how far this worker's training is.
    #[must_use]
    pub const fn progress(mut self, progress: Option<u64>) -> Self {
        self.progress = progress;
        self
    }

    /// Sets where a line goes every 10 seconds that says who is missing and why; standard error by default.
    #[must_use]
    pub fn on_waiting(mut self, tell: impl FnMut(&str) + Send + 'static) -> Self {
        self.on_waiting = Box::new(tell);
        self
    }
}

/// All members of a generation. Their *ranks* in it follow from the order of their numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roster {
    /// The number of this set of members.
    pub generation: u64,
    /// Where each listens for data, by rank.
    pub addresses: Vec<SocketAddr>,
    /// The number with which each joined, by rank; the same as the rank while nobody is missing.
    pub workers: Vec<usize>,
    /// How far the training of each is, by rank; none of those that have not begun.
    pub progress: Vec<Option<u64>>,
}

impl Roster {
    pub(super) fn new(generation: u64, seats: &[Seat]) -> Self {
        Self {
            generation,
            addresses: seats.iter().map(|seat| seat.address).collect(),
            workers: seats.iter().map(|seat| seat.worker).collect(),
            progress: seats.iter().map(|seat| seat.progress).collect(),
        }
    }

    /// The rank of the worker with this number.
    #[must_use]
    pub fn rank(&self, worker: usize) -> Option<usize> {
        self.workers.iter().position(|other| *other == worker)
    }

    /// The rank whose training all go on with: of those that are furthest the first; none where nobody has begun.
    #[must_use]
    pub fn source(&self) -> Option<usize> {
        let furthest = self.progress.iter().flatten().max()?;
        let is_there = |progress: &Option<u64>| progress.as_ref() == Some(furthest);
        self.progress.iter().position(is_there)
    }

    /// The numbers of those that come new to a training which others have begun.
    #[must_use]
    pub fn comers(&self) -> Vec<usize> {
        if self.source().is_none() {
            return Vec::new();
        }
        let both = self.workers.iter().zip(&self.progress);
        let new = both.filter(|(_, progress)| progress.is_none());
        new.map(|(worker, _)| *worker).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comers_are_those_that_others_have_begun_without() {
        let comers = |progress: [Option<u64>; 3]| {
            let roster = Roster {
                generation: 2,
                addresses: Vec::new(),
                workers: vec![0, 2, 3],
                progress: progress.to_vec(),
            };
            roster.comers()
        };
        assert_eq!(comers([Some(4), None, None]), [2, 3]);
        assert_eq!(comers([None, Some(1), Some(0)]), [0]);
        assert!(comers([None; 3]).is_empty());
        assert!(comers([Some(0); 3]).is_empty());
    }
}
