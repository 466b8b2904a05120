//! Runs of programs on the state, in the one order that all processes have for exchanges.

use std::sync::Arc;

use phalanx_pjrt::Buffer;

use super::{TrainState, slices};
use crate::Result;
use crate::engine::{Compiled, PendingRun};
use crate::fit::in_flight::MOST_IN_FLIGHT;

/// Which run before it a run follows from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fit) enum RunOf {
    /// The training step before, which replaces what it takes.
    Training,
    /// The test step before, whose totals it goes on with.
    Test,
    /// None.
    Nothing,
}

impl TrainState {
    /// Begins a program with a list of arguments for each replica. Where it exchanges values with other processes it comes after all
    /// runs that do, of whatever trainer or loop.
    pub(in crate::fit) fn run(
        &self,
        compiled: &Compiled,
        lists: &[Vec<&Buffer>],
        of: RunOf,
    ) -> Result<(Vec<Vec<Buffer>>, Arc<PendingRun>)> {
        let world = self.placement.world().filter(|_| compiled.exchanges());
        let replaced: &[usize] = match of {
            RunOf::Nothing => &[],
            RunOf::Training | RunOf::Test => &[of as usize],
        };
        if let Some(world) = world {
            world.runs().before(&self.id, replaced)?;
        }
        let (outputs, done) = compiled.run(&slices(lists))?;
        let done = Arc::new(done);
        if let Some(world) = world {
            let run = (&done, MOST_IN_FLIGHT + 1);
            (world.runs()).begun(self.placement.engine(), run, &self.id, replaced);
        }
        Ok((outputs, done))
    }
}
