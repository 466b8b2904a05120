//! The end of a training that no longer improves.

use serde::{Deserialize, Serialize};

use super::monitor::{MODE, MONITOR, Watched, improves};
use super::{Callback, CallbackContext, CallbackState, MonitorMode};
use crate::Result;
use crate::checkpoint::{JsonFloat, NamedTensors};
use crate::config::{Component, Described, Field, Kind, setters, write};
use crate::fit::EpochLogs;
use crate::metrics::Better;

/// Ends the training when a log has not improved for some epochs: Keras' `EarlyStopping`, decision for decision.
///
/// Where Keras warns in each epoch that there is no such log, a log that no epoch can have is an error at the start; epochs
/// without it, such as those without validation, do not count. What it remembers is part of a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EarlyStopping {
    monitor: String,
    min_delta: f64,
    patience: usize,
    mode: MonitorMode,
    baseline: Option<f64>,
    restore_best_weights: bool,
    start_from_epoch: usize,
    #[serde(skip)]
    seen: Patience,
    #[serde(skip)]
    better: Option<Better>,
    /// Empty where they were lost.
    #[serde(skip)]
    best_weights: Option<NamedTensors>,
}

/// What it has seen of a training.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Patience {
    #[serde(default)]
    watched: Option<Watched>,
    wait: usize,
    best: Option<JsonFloat>,
    best_epoch: usize,
    stopped_epoch: Option<usize>,
    /// The first epoch that was compared, from 1, where others were before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    since: Option<usize>,
}

impl Described for EarlyStopping {
    const COMPONENT: Component = Component {
        name: "early_stopping",
        doc: "ends the training when a log has not improved for some epochs",
        fields: &[
            MONITOR,
            Field::optional(
                "min_delta",
                Kind::AT_LEAST_ZERO,
                "what a value must differ from the best by to count as better",
            ),
            Field::optional(
                "patience",
                Kind::COUNT,
                "epochs without improvement after which training ends",
            ),
            MODE,
            Field::optional(
                "baseline",
                Kind::REAL,
                "a value that must be improved on, else the epochs count as without improvement",
            ),
            Field::optional(
                "restore_best_weights",
                Kind::Bool,
                "whether the model gets the variables of the best epoch at the end, also of a training that was not ended early",
            ),
            Field::optional(
                "start_from_epoch",
                Kind::COUNT,
                "the first epoch that counts, from 0",
            ),
        ],
    };
}

impl EarlyStopping {
    /// Watches this log with Keras' settings: no patience, and no restoring.
    #[must_use]
    pub fn new(monitor: impl Into<String>) -> Self {
        Self {
            monitor: monitor.into(),
            min_delta: 0.0,
            patience: 0,
            mode: MonitorMode::Auto,
            baseline: None,
            restore_best_weights: false,
            start_from_epoch: 0,
            seen: Patience::default(),
            better: None,
            best_weights: None,
        }
    }

    /// A value that must be improved on: until then epochs count as without improvement.
    #[must_use]
    pub const fn baseline(mut self, baseline: f64) -> Self {
        self.baseline = Some(baseline);
        self
    }

    /// The epoch, from 0, after which training was ended, if it was.
    #[must_use]
    pub const fn stopped_epoch(&self) -> Option<usize> {
        self.seen.stopped_epoch
    }

    /// The epoch, from 0, with the best value.
    #[must_use]
    pub const fn best_epoch(&self) -> usize {
        self.seen.best_epoch
    }

    /// The best value.
    #[must_use]
    pub fn best(&self) -> Option<f64> {
        self.seen.best.map(|JsonFloat(best)| best)
    }

    fn is_better(&self, value: f64, reference: Option<f64>) -> bool {
        let better = self.better.unwrap_or(Better::Lower);
        improves(better, value, self.min_delta, reference)
    }

    /// Takes note of a value; whether the training is to end.
    fn record(&mut self, epoch: usize, value: f64, cx: &CallbackContext<'_>) -> Result<bool> {
        let keeps = self.restore_best_weights;
        if keeps && self.best_weights.is_none() {
            self.best_weights = Some(cx.variables_after_epoch()?.unwrap_or_default());
            self.seen.best_epoch = epoch;
        }
        self.seen.wait += 1;
        if !self.is_better(value, self.best()) {
            return Ok(self.seen.wait >= self.patience && epoch > 0);
        }
        self.seen.best = Some(JsonFloat(value));
        self.seen.best_epoch = epoch;
        if keeps {
            self.best_weights = Some(cx.variables_after_epoch()?.unwrap_or_default());
        }
        if self.baseline.is_none() || self.is_better(value, self.baseline) {
            self.seen.wait = 0;
        }
        Ok(false)
    }
}

impl Default for EarlyStopping {
    /// Watches `val_loss`.
    fn default() -> Self {
        Self::new("val_loss")
    }
}

setters!(EarlyStopping {
    /// What a value must differ from the best by to count as better; 0 by default.
    min_delta: f64,
    /// Epochs without improvement after which training ends; 0 by default.
    patience: usize,
    /// Which values are better.
    mode: MonitorMode,
    /// Whether the model gets the variables of the best epoch at the end, also of a training that was not ended early.
    restore_best_weights: bool,
    /// The first epoch that counts, from 0.
    start_from_epoch: usize,
});

impl Callback for EarlyStopping {
    fn kind(&self) -> &'static str {
        Self::COMPONENT.name
    }

    fn on_train_begin(&mut self, cx: &mut CallbackContext<'_>) -> Result<()> {
        let better = self.mode.better(self.kind(), &self.monitor, cx)?;
        let watched = Watched::new(&self.monitor, better);
        self.better = Some(better);
        let first = cx.epoch().max(self.start_from_epoch);
        let begun = Patience {
            since: (first > 0).then_some(first + 1),
            ..Patience::default()
        };
        self.seen = cx.restored()?.unwrap_or_else(|| begun.clone());
        let mut weights = cx.restored_tensors();
        if !watched.goes_on(self.seen.watched.as_ref(), self.kind(), cx) {
            (self.seen, weights) = (begun, &[]);
        }
        self.seen.watched = Some(watched);
        // None where the best epoch is known and its variables are not: others are not the best.
        let keeps = self.restore_best_weights && (self.seen.best.is_some() || !weights.is_empty());
        self.best_weights = keeps.then(|| weights.to_vec());
        Ok(())
    }

    fn on_epoch_begin(&mut self, _: usize, cx: &mut CallbackContext<'_>) -> Result<()> {
        if let Some(epoch) = self.seen.stopped_epoch {
            cx.stop(format!("it was ended early after epoch {}", epoch + 1));
        }
        Ok(())
    }

    fn on_epoch_end(&mut self, done: &mut EpochLogs, cx: &mut CallbackContext<'_>) -> Result<()> {
        let Some(value) = cx.value_of(&done.logs, &self.monitor) else {
            return Ok(());
        };
        if done.epoch < self.start_from_epoch || !self.record(done.epoch, value, cx)? {
            return Ok(());
        }
        self.seen.stopped_epoch = Some(done.epoch);
        let (log, best) = (&self.monitor, self.best().unwrap_or(f64::NAN));
        cx.stop(format!(
            "`{log}` has not improved on {best:.5} of epoch {} for {} epochs",
            self.seen.best_epoch + 1,
            self.seen.wait
        ));
        Ok(())
    }

    fn on_train_end(&mut self, cx: &mut CallbackContext<'_>) -> Result<()> {
        let Some(weights) = &self.best_weights else {
            return Ok(());
        };
        let epoch = self.seen.best_epoch + 1;
        if weights.is_empty() {
            cx.notice_lost_best(epoch, &self.monitor);
            return Ok(());
        }
        cx.notice_best(epoch, &self.monitor, self.seen.since);
        cx.set_variables(weights)
    }

    fn state(&self) -> CallbackState {
        CallbackState {
            values: write(self.kind(), &self.seen),
            tensors: self.best_weights.clone().unwrap_or_default(),
        }
    }
}
