//! The order in which the exchanges of a rank run: by ticket, one at a time.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use crate::arena::Buffer;
use crate::communicator::{Done, Gathered};
use crate::element::Element;
use crate::error::CollectiveError;
use crate::frame::Call;
use crate::state::State;
use crate::sync::lock;

/// How many times the timeout a call waits until the calls before it have been started on this rank: between two starts a program
/// computes, which takes what it takes.
const TURN_TIMEOUTS: u32 = 10;

/// An exchange that waits for its turn.
pub(crate) struct Job {
    pub(crate) call: Call,
    pub(crate) element: Element,
    pub(crate) buffer: Buffer,
    pub(crate) answer: Answer,
}

pub(crate) enum Answer {
    Array(Done),
    Arrays(Gathered),
}

impl Answer {
    pub(crate) fn failed(self, error: CollectiveError) {
        match self {
            Self::Array(done) => done(Err(error)),
            Self::Arrays(done) => done(Err(error)),
        }
    }
}

/// Which exchange comes next.
#[derive(Default)]
pub(crate) struct Turns {
    /// The first ticket that nobody has reserved.
    pub(crate) reserved: u64,
    /// The ticket whose exchange runs or comes next.
    pub(crate) turn: u64,
    pub(crate) running: bool,
    /// Threads that wait on `State::turned`.
    pub(crate) waiting: usize,
    pub(crate) closing: bool,
    pub(crate) pending: BTreeMap<u64, Job>,
}

impl State {
    /// Wakes those who wait for a turn.
    pub(crate) fn wake(&self, turns: &Turns) {
        if turns.waiting > 0 {
            self.turned.notify_all();
        }
    }

    /// Waits until it is this ticket's turn, and takes it.
    pub(crate) fn enter(&self, ticket: u64) -> Result<(), CollectiveError> {
        let mut turns = lock(&self.turns);
        let mut since = (turns.turn, Instant::now());
        loop {
            self.check()?;
            if turns.turn == ticket && !turns.running {
                turns.running = true;
                return Ok(());
            }
            if since.0 != turns.turn {
                since = (turns.turn, Instant::now());
            }
            let waited = since.1.elapsed();
            let limit = self.timeout.saturating_mul(TURN_TIMEOUTS);
            let Some(left) = limit.checked_sub(waited) else {
                return Err(self.never_started(turns.turn, waited));
            };
            turns.waiting += 1;
            let woken = self.turned.wait_timeout(turns, left);
            turns = woken.unwrap_or_else(PoisonError::into_inner).0;
            turns.waiting -= 1;
        }
    }

    fn never_started(&self, ticket: u64, waited: Duration) -> CollectiveError {
        CollectiveError::Timeout {
            ranks: vec![self.rank],
            what: format!("ticket {ticket}, which was reserved and never started on this rank"),
            seconds: waited.as_secs_f64(),
        }
    }

    /// Ends the turn.
    pub(crate) fn leave(&self) {
        let mut turns = lock(&self.turns);
        turns.turn += 1;
        turns.running = false;
        self.wake(&turns);
    }

    /// The next exchange that was handed over, when its turn has come; `None` when there will be none.
    pub(crate) fn next_job(&self) -> Option<(u64, Job)> {
        let mut turns = lock(&self.turns);
        let mut since = (turns.turn, Instant::now());
        loop {
            if turns.closing || self.failure().is_some() {
                return None;
            }
            let turn = turns.turn;
            if !turns.running
                && let Some(job) = turns.pending.remove(&turn)
            {
                turns.running = true;
                return Some((turn, job));
            }
            if since.0 != turn || turns.pending.is_empty() || turns.running {
                since = (turn, Instant::now());
            }
            let waited = since.1.elapsed();
            let limit = self.timeout.saturating_mul(TURN_TIMEOUTS);
            let Some(left) = limit.checked_sub(waited) else {
                drop(turns);
                self.fail(self.never_started(turn, waited));
                return None;
            };
            turns.waiting += 1;
            let woken = self.turned.wait_timeout(turns, left);
            turns = woken.unwrap_or_else(PoisonError::into_inner).0;
            turns.waiting -= 1;
        }
    }

    pub(crate) fn drain(&self) -> impl Iterator<Item = Job> + use<> {
        let pending: BTreeMap<u64, Job> = std::mem::take(&mut lock(&self.turns).pending);
        pending.into_values()
    }
}
