//! Identifies which strategy owns a value.

use std::fmt;
use std::sync::Arc;

use crate::replicas::{Layout, Placement, World};
use crate::{Error, Result};

/// The strategy that a value belongs to: its name, and where its replicas are.
#[derive(Clone, Debug)]
pub(super) struct StrategyHandle {
    strategy: &'static str,
    pub(super) placement: Placement,
}

impl StrategyHandle {
    pub(super) const fn new(strategy: &'static str, placement: Placement) -> Self {
        Self {
            strategy,
            placement,
        }
    }

    /// The number of replicas of all processes.
    pub(super) fn replicas(&self) -> usize {
        self.placement.replicas()
    }

    /// The number of replicas of this process.
    pub(super) const fn local_replicas(&self) -> usize {
        self.placement.local_replicas()
    }

    /// The number of this process' first replica, counted over all processes.
    pub(super) fn first_replica(&self) -> usize {
        let world = self.world();
        world.map_or(0, |world| world.worker() * self.local_replicas())
    }

    /// The processes that train together, where there are several.
    pub(super) fn world(&self) -> Option<&Arc<World>> {
        let world = self.placement.world();
        world.filter(|world| world.workers() > 1)
    }

    /// The number of this process, and how many train together.
    pub(super) fn place(&self) -> (usize, usize) {
        let world = self.world();
        world.map_or((0, 1), |world| (world.worker(), world.workers()))
    }

    /// Refuses a strategy without replicas, one model divided over a mesh or in stages, and a process that comes later than others.
    pub(super) fn check_replicas(&self) -> Result<()> {
        if self.world().is_some_and(|world| world.is_catching_up()) {
            return Err(Error::Cluster(
                "this process has come in the place of one that was lost, and the others are in the middle of a training loop of their own, which no process can enter; end all of them, and let the loop go on from a checkpoint (`State::set_training_state`)".to_owned(),
            ));
        }
        let how = match self.placement.layout() {
            Layout::Replicated | Layout::ParameterDevice(_) => return Ok(()),
            Layout::Sharded(_) => "divides one model over a mesh",
            Layout::Pipelined(_) => "has one model in stages",
        };
        Err(Error::user(format!(
            "custom training loops run on replicas, and `{self}` {how}; use another strategy, or `compile` and `fit`"
        )))
    }

    /// Refuses a value of a strategy with other devices.
    pub(super) fn check(&self, what: &str, of: &Self) -> Result<()> {
        if self.placement.has_same_devices(&of.placement) {
            return Ok(());
        }
        Err(Error::user(format!(
            "cannot use {what} of `{of}` in `{self}`: values of one strategy are on its own devices; make both with one strategy, or read the value back and distribute it again"
        )))
    }
}

impl fmt::Display for StrategyHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (engine, devices) = (self.placement.engine(), self.placement.devices().iter());
        let devices: Vec<String> = devices.map(|&device| engine.device_name(device)).collect();
        write!(f, "{} on {}", self.strategy, devices.join(", "))
    }
}
