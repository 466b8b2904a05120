//! The variables of the best epoch.

use phalanx_graph::HostTensor;

use super::history::{EpochLogs, Logs};
use crate::{Error, Result};

type Values = Vec<(String, HostTensor)>;

/// The best value of a log so far, and the variables that gave it.
pub(super) struct BestEpoch {
    pub(super) log: String,
    pub(super) found: Option<(f64, Values)>,
}

/// Logs that are better when they are larger, and those that are better when they are smaller, by a part of their name.
const RISE: [&str; 6] = ["accuracy", "auc", "precision", "recall", "f1", "equality"];
const FALL: [&str; 7] = [
    "loss",
    "error",
    "crossentropy",
    "huber",
    "divergence",
    "hinge",
    "poisson",
];

impl BestEpoch {
    /// The best epoch by a log of this training, or of its validation if there is one.
    pub(super) fn new(log: &str, logs: &Logs, validates: bool) -> Result<Self> {
        let mut known: Vec<String> = logs.iter().map(|(name, _)| name.to_owned()).collect();
        if validates {
            known.extend(logs.iter().map(|(name, _)| format!("val_{name}")));
        }
        if !known.iter().any(|name| name == log) {
            let hint = if validates {
                ""
            } else {
                "; those that begin with val_ need a validation"
            };
            return Err(Error::user(format!(
                "the best epoch was asked for by `{log}`, and the logs are {}; name one of them{hint}",
                known.join(", ")
            )));
        }
        let is_any = |parts: &[&str]| parts.iter().any(|part| log.contains(part));
        if !is_any(&RISE) && !is_any(&FALL) {
            return Err(Error::user(format!(
                "the best epoch was asked for by `{log}`, of which it is not known whether more is better; name it with `accuracy` or `loss` in the name, or use another log"
            )));
        }
        Ok(Self {
            log: log.to_owned(),
            found: None,
        })
    }

    /// Keeps the variables where the epoch is better than all before it; epochs without validation are passed over, and
    /// those whose log is not a number are worse than all others.
    pub(super) fn record(
        &mut self,
        epoch: &EpochLogs,
        values: impl FnOnce() -> Result<Values>,
    ) -> Result<()> {
        let Some(value) = epoch.logs.get(&self.log).filter(|value| !value.is_nan()) else {
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

    fn falls(&self) -> bool {
        FALL.iter().any(|part| self.log.contains(part))
    }

    pub(super) fn into_values(self) -> Option<Values> {
        self.found.map(|(_, values)| values)
    }
}
