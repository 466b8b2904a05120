//! The variables of the best epoch.

use phalanx_graph::HostTensor;

use super::history::EpochLogs;
use crate::{Error, Result};

type Values = Vec<(String, HostTensor)>;

/// The best value of a log so far, and the variables that gave it.
pub(super) struct Best<'a> {
    log: &'a str,
    found: Option<(f64, Values)>,
}

impl<'a> Best<'a> {
    pub(super) const fn new(log: &'a str) -> Self {
        Self { log, found: None }
    }

    /// Keeps the variables where the epoch is better than all before it; epochs without validation are passed over.
    pub(super) fn see(
        &mut self,
        epoch: &EpochLogs,
        values: impl FnOnce() -> Result<Values>,
    ) -> Result<()> {
        let Some(value) = epoch.logs.get(self.log) else {
            let known: Vec<&str> = epoch.logs.iter().map(|(name, _)| name).collect();
            if known.iter().any(|name| name.starts_with("val_")) || !self.log.starts_with("val_") {
                return Err(Error::user(format!(
                    "the best epoch was asked for by `{}`, and the logs are {}; name one of them",
                    self.log,
                    known.join(", ")
                )));
            }
            return Ok(());
        };
        let better = match &self.found {
            None => true,
            Some((best, _)) if self.falls() => value < *best,
            Some((best, _)) => value > *best,
        };
        if better {
            self.found = Some((value, values()?));
        }
        Ok(())
    }

    /// Whether less is better.
    fn falls(&self) -> bool {
        ["loss", "error", "crossentropy"]
            .iter()
            .any(|word| self.log.contains(word))
    }

    pub(super) fn into_values(self) -> Option<Values> {
        self.found.map(|(_, values)| values)
    }
}
