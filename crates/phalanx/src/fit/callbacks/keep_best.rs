//! The variables of the best epoch, at the end of a training.

use serde::{Deserialize, Serialize};

use super::{Callback, CallbackContext, CallbackState};
use crate::checkpoint::{JsonFloat, NamedTensors};
use crate::config::write;
use crate::fit::EpochLogs;
use crate::metrics::Better;
use crate::{Error, Result};

/// Restores at the end the variables of the epoch with the best value of a log: what [`Fit::keep_best`](crate::fit::Fit::keep_best)
/// adds, before all other callbacks.
///
/// Epochs without the log are passed over, and those whose log is not a number are worse than all others. Where an epoch was validated by
/// the moving averages of the variables ([`SwapEmaWeights`](super::SwapEmaWeights)), these are what is restored.
#[derive(Clone, Debug, PartialEq)]
pub struct KeepBest {
    log: String,
    better: Option<Better>,
    found: Option<BestEpoch>,
    /// The first epoch that was compared, from 1, where training went on to it from a checkpoint that knew of none before.
    since: Option<usize>,
}

/// The best epoch so far.
#[derive(Clone, Debug, PartialEq)]
struct BestEpoch {
    /// Its number from 1; checkpoints of before have none.
    number: Option<usize>,
    value: f64,
    /// None where they were lost.
    variables: NamedTensors,
}

/// What a checkpoint keeps of it beside the variables.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BestValue {
    log: String,
    value: Option<JsonFloat>,
    #[serde(default)]
    epoch: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    since: Option<usize>,
}

impl KeepBest {
    /// Finds the best epoch by this log.
    #[must_use]
    pub fn new(log: impl Into<String>) -> Self {
        Self {
            log: log.into(),
            better: None,
            found: None,
            since: None,
        }
    }

    /// The best value so far.
    #[must_use]
    pub fn best(&self) -> Option<f64> {
        self.found.as_ref().map(|best| best.value)
    }

    /// Takes what the checkpoint that training goes on from has.
    fn restore(&mut self, cx: &CallbackContext<'_>) -> Result<()> {
        let restored: Option<BestValue> = cx.restored()?;
        let Some(BestValue {
            log,
            value,
            epoch,
            since,
        }) = restored
        else {
            self.found = None;
            self.since = (cx.epoch() > 0).then_some(cx.epoch() + 1);
            return Ok(());
        };
        if log != self.log {
            let other = &self.log;
            return Err(Error::user(format!(
                "the training to go on with keeps the best epoch by `{log}`, and this one by `{other}`; keep it by `{log}`"
            )));
        }
        self.since = since;
        self.found = value.map(|JsonFloat(value)| BestEpoch {
            number: epoch,
            value,
            variables: cx.restored_tensors().to_vec(),
        });
        Ok(())
    }
}

/// Which values of a log are better, by which the best is asked for, of these logs.
pub(in crate::fit) fn better_of(
    log: &str,
    known: &[(String, Option<Better>)],
    validates: bool,
) -> Result<Better> {
    let Some((_, better)) = known.iter().find(|(name, _)| name == log) else {
        let hint = match validates {
            true => "",
            false => "; those that begin with val_ need a validation",
        };
        let names: Vec<&str> = known.iter().map(|(name, _)| &**name).collect();
        return Err(Error::user(format!(
            "the best epoch was asked for by `{log}`, and the logs are {}; name one of them{hint}",
            names.join(", ")
        )));
    };
    better.ok_or_else(|| {
        Error::user(format!(
            "the best epoch was asked for by `{log}`, of which it is not known whether more is better; say so with `Metric::better_when`, or use another log"
        ))
    })
}

impl Callback for KeepBest {
    fn kind(&self) -> &'static str {
        "keep_best"
    }

    fn on_train_begin(&mut self, cx: &mut CallbackContext<'_>) -> Result<()> {
        self.better = Some(better_of(&self.log, &cx.goals(), cx.validates())?);
        self.restore(cx)
    }

    fn on_epoch_end(&mut self, done: &mut EpochLogs, cx: &mut CallbackContext<'_>) -> Result<()> {
        let Some(value) = done.logs.get(&self.log).filter(|value| !value.is_nan()) else {
            return Ok(());
        };
        let is_better = match (self.best(), self.better) {
            (None, _) => true,
            (Some(best), Some(Better::Higher)) => value > best,
            (Some(best), _) => value < best,
        };
        if is_better {
            self.found = Some(BestEpoch {
                number: Some(done.epoch + 1),
                value,
                variables: cx.validated_variables()?.unwrap_or_default(),
            });
        }
        Ok(())
    }

    fn on_train_end(&mut self, cx: &mut CallbackContext<'_>) -> Result<()> {
        let Some(best) = &self.found else {
            return Ok(());
        };
        let number = best.number.unwrap_or_default();
        if best.variables.is_empty() {
            cx.notice_lost_best(number, &self.log);
            return Ok(());
        }
        if let Some(number) = best.number {
            cx.notice_best(number, &self.log, self.since);
        }
        cx.set_variables(&best.variables)
    }

    fn state(&self) -> CallbackState {
        let best = BestValue {
            log: self.log.clone(),
            value: self.best().map(JsonFloat),
            epoch: self.found.as_ref().and_then(|best| best.number),
            since: self.since,
        };
        let variables = self.found.as_ref().map(|best| best.variables.clone());
        CallbackState {
            values: write(self.kind(), &best),
            tensors: variables.unwrap_or_default(),
        }
    }
}
