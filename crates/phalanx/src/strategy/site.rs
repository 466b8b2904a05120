//! Whose values are whose.

use std::fmt;

use crate::replicas::Placement;
use crate::{Error, Result};

/// The strategy that a value belongs to: its name, and where its replicas are.
#[derive(Clone, Debug)]
pub(super) struct Site {
    strategy: &'static str,
    pub(super) placement: Placement,
}

impl Site {
    pub(super) const fn new(strategy: &'static str, placement: Placement) -> Self {
        Self {
            strategy,
            placement,
        }
    }

    pub(super) fn replicas(&self) -> usize {
        self.placement.replicas()
    }

    /// Refuses a value of a strategy with other devices.
    pub(super) fn check(&self, what: &str, of: &Self) -> Result<()> {
        if self.placement.is_same(&of.placement) {
            return Ok(());
        }
        Err(Error::user(format!(
            "cannot use {what} of `{of}` in `{self}`: values of one strategy are on its own devices; make both with one strategy, or read the value back and distribute it again"
        )))
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices = (0..self.replicas()).map(|replica| self.placement.device_name(replica));
        let devices: Vec<String> = devices.collect();
        write!(f, "{} on {}", self.strategy, devices.join(", "))
    }
}
