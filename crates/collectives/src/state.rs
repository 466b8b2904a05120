//! What all threads of a communicator share: its failure, who has left, whose turn it is, and how peers hear of a failure.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

use crate::error::CollectiveError;
use crate::sync::lock;
use crate::tickets::Turns;

/// How often who sleeps looks for a failure that came while it fell asleep.
pub(crate) const GLANCE: Duration = Duration::from_millis(10);

/// How long what a rank has sent before it left may be on its way.
const ARRIVES_WITHIN: Duration = Duration::from_secs(10);

/// Tells the other ranks.
pub(crate) trait Announce: Send + Sync {
    /// This rank has failed; also wakes this rank's own exchange.
    fn failed(&self, error: &CollectiveError);
    /// This rank waits for others, and will soon say for whom.
    fn waits(&self);
    /// This rank leaves after its last exchange.
    fn leaves(&self);
}

pub(crate) struct State {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) generation: u64,
    pub(crate) timeout: Duration,
    /// Where each rank listens, as text.
    pub(crate) addresses: Vec<String>,
    failure: OnceLock<CollectiveError>,
    failed: AtomicBool,
    left: Vec<AtomicBool>,
    /// When each rank last said that it waits itself.
    waits: Mutex<Vec<Option<Instant>>>,
    pub(crate) announce: OnceLock<Box<dyn Announce>>,
    pub(crate) turns: Mutex<Turns>,
    pub(crate) turned: Condvar,
}

impl State {
    pub(crate) fn new(
        rank: usize,
        addresses: Vec<String>,
        generation: u64,
        timeout: Duration,
    ) -> Self {
        Self {
            rank,
            size: addresses.len(),
            generation,
            timeout,
            left: addresses.iter().map(|_| AtomicBool::new(false)).collect(),
            waits: Mutex::new(vec![None; addresses.len()]),
            addresses,
            failure: OnceLock::new(),
            failed: AtomicBool::new(false),
            announce: OnceLock::new(),
            turns: Mutex::default(),
            turned: Condvar::new(),
        }
    }

    /// Keeps the first failure, tells everybody, and returns what is kept.
    pub(crate) fn fail(&self, error: CollectiveError) -> CollectiveError {
        if self.failure.set(error.clone()).is_ok() {
            self.failed.store(true, Ordering::SeqCst);
            if let Some(announce) = self.announce.get() {
                announce.failed(&error);
            }
            drop(lock(&self.turns));
            self.turned.notify_all();
        }
        self.failure.get().cloned().unwrap_or(error)
    }

    pub(crate) fn failure(&self) -> Option<CollectiveError> {
        if !self.failed.load(Ordering::Acquire) {
            return None;
        }
        self.failure.get().cloned()
    }

    pub(crate) fn check(&self) -> Result<(), CollectiveError> {
        self.failure().map_or(Ok(()), Err)
    }

    pub(crate) fn set_left(&self, rank: usize) {
        self.left[rank].store(true, Ordering::Release);
    }

    pub(crate) fn has_left(&self, rank: usize) -> bool {
        self.left[rank].load(Ordering::Acquire)
    }

    /// A rank has said that it waits itself.
    pub(crate) fn set_waits(&self, rank: usize) {
        lock(&self.waits)[rank] = Some(Instant::now());
    }

    /// The ranks that hold up all others, of the ones that are waited for: who waits itself is not the cause.
    ///
    /// A rank says that it waits a quarter of the timeout before it gives up. Has it said so half a timeout ago and not failed since, it
    /// has got on, and what it said counts no more.
    fn causes(&self, ranks: &[usize]) -> Vec<usize> {
        let waits = lock(&self.waits);
        let itself = |rank: usize| waits[rank].is_some_and(|at| at.elapsed() < self.timeout / 2);
        let causes = ranks.iter().copied().filter(|&rank| !itself(rank));
        causes.collect()
    }

    /// The loss of a rank.
    pub(crate) fn lost(&self, rank: usize, detail: impl Into<String>) -> CollectiveError {
        if self.has_left(rank) {
            return CollectiveError::Left { rank };
        }
        CollectiveError::PeerLost {
            rank,
            address: self.addresses[rank].clone(),
            detail: detail.into(),
        }
    }
}

/// A wait for other ranks in one exchange, with its deadline.
pub(crate) struct Wait<'a> {
    pub(crate) state: &'a State,
    pub(crate) header: &'a crate::frame::Header,
    /// What is waited for, as errors say.
    named: &'a crate::frame::Header,
    since: Cell<Instant>,
    /// Whether the others have heard that this rank waits.
    told: Cell<bool>,
}

impl<'a> Wait<'a> {
    pub(crate) fn new(state: &'a State, header: &'a crate::frame::Header) -> Self {
        Self {
            state,
            header,
            named: header,
            since: Cell::new(Instant::now()),
            told: Cell::new(false),
        }
    }

    /// A wait for messages that have a header of their own, and are a part of this exchange.
    pub(crate) fn for_part(&self, header: &'a crate::frame::Header) -> Self {
        Self {
            named: self.named,
            ..Self::new(self.state, header)
        }
    }

    /// Another rank has got on: the deadline moves.
    pub(crate) fn progress(&self) {
        self.since.set(Instant::now());
        self.told.set(false);
    }

    /// How long to sleep, or why to wait no more; the ranks are those waited for.
    ///
    /// A rank that waits may wait for one that waits too, for results that it cannot make or in the exchange before. So that both name
    /// the cause, each says that it waits when three quarters of the time are over, and blames nobody who has said so. Where it waits only
    /// for such ranks it waits a quarter longer: one of them knows whom they wait for, and says it at its own end.
    pub(crate) fn left(
        &self,
        mut ranks: impl FnMut() -> Vec<usize>,
    ) -> Result<Duration, CollectiveError> {
        self.state.check()?;
        let waited = self.since.get().elapsed();
        if waited >= ARRIVES_WITHIN
            && let Some(rank) = ranks().into_iter().find(|rank| self.state.has_left(*rank))
        {
            return Err(CollectiveError::Left { rank });
        }
        let limit = self.state.timeout;
        let left = |limit: Duration| limit.checked_sub(waited).filter(|left| !left.is_zero());
        if !self.told.get() {
            if let Some(left) = left(limit / 4 * 3) {
                return Ok(left);
            }
            self.tell();
        }
        if let Some(left) = left(limit) {
            return Ok(left);
        }
        let mut ranks = ranks();
        let causes = self.state.causes(&ranks);
        if !causes.is_empty() {
            ranks = causes;
        } else if let Some(left) = left(limit.saturating_add(limit / 4)) {
            return Ok(left);
        }
        Err(CollectiveError::Timeout {
            ranks,
            what: self.named.to_string(),
            seconds: waited.as_secs_f64(),
        })
    }

    fn tell(&self) {
        self.told.set(true);
        if let Some(announce) = self.state.announce.get() {
            announce.waits();
        }
    }

    /// An error if the other rank's header is not of this exchange.
    pub(crate) fn compare(
        &self,
        rank: usize,
        bytes: &[u8; crate::arena::HEADER],
    ) -> Result<crate::frame::Header, CollectiveError> {
        let decoded = crate::frame::Header::decode(bytes);
        let got = decoded.map_err(|detail| CollectiveError::Corrupt { rank, detail })?;
        if self.header.fits(&got) && got.from as usize == rank {
            return Ok(got);
        }
        Err(CollectiveError::Mismatch {
            rank,
            expected: self.header.to_string(),
            got: format!("{got} of rank {}", got.from),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_itself_is_not_the_cause() {
        let timeout = Duration::from_secs(600);
        let addresses = vec![String::new(); 3];
        let state = State::new(2, addresses, 0, timeout);
        assert_eq!(state.causes(&[0, 1]), [0, 1]);
        state.set_waits(0);
        assert_eq!(state.causes(&[0, 1]), [1]);
        state.set_waits(1);
        assert_eq!(state.causes(&[0, 1]), [0; 0]);
        // It has got on since.
        lock(&state.waits)[0] = Instant::now().checked_sub(timeout);
        assert_eq!(state.causes(&[0, 1]), [0]);
    }
}
