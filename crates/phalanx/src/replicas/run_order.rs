//! The order of runs that exchange values with other processes.
//!
//! All processes make their exchanges in one order. Two runs of which neither takes what the other gives could compute at the same
//! time, and their exchanges would mix differently in each process; nor may the host exchange anything while a run does. This keeps
//! the order, of the steps of trainers and the runs of custom training loops.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Result;
use crate::engine::{Engine, PendingRun};

/// The last run that was begun and may still exchange values.
#[derive(Default)]
pub(crate) struct RunOrder(Mutex<Option<LastRun>>);

struct LastRun {
    engine: Engine,
    run: Arc<PendingRun>,
    /// The runs that may not be done either, and itself.
    runs: usize,
    /// The state whose arrays it replaces.
    state: Arc<()>,
    replaced: Vec<usize>,
}

impl RunOrder {
    fn last(&self) -> MutexGuard<'_, Option<LastRun>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the last run, unless the next one takes some of the arrays that it replaces, and so begins after it by itself.
    pub(crate) fn before(&self, state: &Arc<()>, taken: &[usize]) -> Result<()> {
        let follows = self.last().as_ref().is_some_and(|last| {
            Arc::ptr_eq(&last.state, state)
                && last.replaced.iter().any(|entry| taken.contains(entry))
        });
        if follows { Ok(()) } else { self.finish() }
    }

    /// Notes a run that was begun on an engine, the last of `runs` that may not be done, and which arrays of a state it replaces.
    pub(crate) fn begun(
        &self,
        engine: &Engine,
        (run, runs): (&Arc<PendingRun>, usize),
        state: &Arc<()>,
        replaced: &[usize],
    ) {
        *self.last() = Some(LastRun {
            engine: engine.clone(),
            run: Arc::clone(run),
            runs,
            state: Arc::clone(state),
            replaced: replaced.to_vec(),
        });
    }

    /// Waits for the last run.
    pub(crate) fn finish(&self) -> Result<()> {
        let last = self.last().take();
        last.map_or(Ok(()), |last| last.engine.wait(&last.run, last.runs))
    }
}
