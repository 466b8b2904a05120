//! Steps that were begun and are not known to be done.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::Result;
use crate::engine::{Engine, PendingRun};

/// Programs begun and not known to be done, with the steps of each; few enough that batches do not pile up in memory.
#[derive(Default)]
pub(crate) struct InFlight(VecDeque<(Arc<PendingRun>, usize)>);

/// The largest number of steps in flight, each of which holds its batch in memory, unless the programs are fewer than the least.
pub(super) const MOST_IN_FLIGHT: usize = 8;
/// Programs that are enough to keep the device busy while the host wakes up and makes the next batches.
const LEAST_IN_FLIGHT: usize = 2;

impl InFlight {
    /// Adds a program of some steps; when they are too many, waits once for all but the last few: waking up costs more than a
    /// step's other work on the host.
    pub(crate) fn push(
        &mut self,
        engine: &Engine,
        done: impl Into<Arc<PendingRun>>,
        steps: usize,
    ) -> Result<()> {
        self.0.push_back((done.into(), steps));
        if self.steps() <= MOST_IN_FLIGHT {
            return Ok(());
        }
        self.wait_for(engine, self.0.len().saturating_sub(LEAST_IN_FLIGHT))
    }

    /// The steps of all of them.
    pub(crate) fn steps(&self) -> usize {
        self.0.iter().map(|(_, steps)| steps).sum()
    }

    /// Waits for all of them.
    pub(crate) fn finish(&mut self, engine: &Engine) -> Result<()> {
        self.wait_for(engine, self.0.len())
    }

    /// Waits for the first of them.
    fn wait_for(&mut self, engine: &Engine, programs: usize) -> Result<()> {
        let steps = self.0.iter().take(programs).map(|(_, steps)| steps).sum();
        let last = self.0.drain(..programs).next_back();
        last.map_or(Ok(()), |(done, _)| engine.wait(&done, steps))
    }
}
