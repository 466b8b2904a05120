//! Steps that were begun and are not known to be done.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::Result;
use crate::engine::{Engine, PendingRun};

/// Steps begun and not known to be done; few enough that batches do not pile up in memory.
#[derive(Default)]
pub(crate) struct InFlight(VecDeque<Arc<PendingRun>>);

/// The largest number of steps in flight, each of which holds its batch in memory.
const MOST_IN_FLIGHT: usize = 8;
/// Enough to keep the device busy while the host wakes up and makes the next batch.
const LEAST_IN_FLIGHT: usize = 2;

impl InFlight {
    /// Adds a step; when they are too many, waits once for all but the last few: waking up costs more than a step's
    /// other work on the host.
    pub(crate) fn push(&mut self, engine: &Engine, done: impl Into<Arc<PendingRun>>) -> Result<()> {
        self.0.push_back(done.into());
        if self.0.len() <= MOST_IN_FLIGHT {
            return Ok(());
        }
        self.wait_for(engine, self.0.len() - LEAST_IN_FLIGHT)
    }

    /// Waits for all of them.
    pub(crate) fn finish(&mut self, engine: &Engine) -> Result<()> {
        self.wait_for(engine, self.0.len())
    }

    fn wait_for(&mut self, engine: &Engine, count: usize) -> Result<()> {
        let last = self.0.drain(..count).next_back();
        last.map_or(Ok(()), |done| engine.wait(&done, count))
    }
}
