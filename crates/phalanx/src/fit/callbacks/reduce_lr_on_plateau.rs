//! A learning rate that falls when a log no longer improves.

use serde::{Deserialize, Serialize};

use super::monitor::{MODE, MONITOR, Watched, improves};
use super::{Callback, CallbackContext, CallbackState, MonitorMode};
use crate::checkpoint::JsonFloat;
use crate::config::{Component, Described, Field, Kind, fraction, setters, write};
use crate::fit::progress::{logged_rate, short};
use crate::fit::{EpochLogs, Logs};
use crate::metrics::Better;
use crate::{Error, Result};

/// Multiplies the learning rate by a factor when a log has not improved for some epochs: Keras' `ReduceLROnPlateau`, decision
/// for decision. The optimizer must have a constant rate. The logs of each epoch get its `learning_rate`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReduceLrOnPlateau {
    monitor: String,
    factor: f64,
    patience: usize,
    mode: MonitorMode,
    min_delta: f64,
    cooldown: usize,
    min_lr: f64,
    #[serde(skip)]
    seen: Plateau,
    #[serde(skip)]
    better: Option<Better>,
}

/// What it has seen of a training.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Plateau {
    #[serde(default)]
    watched: Option<Watched>,
    wait: usize,
    cooldown: usize,
    best: Option<JsonFloat>,
}

impl Described for ReduceLrOnPlateau {
    const COMPONENT: Component = Component {
        name: "reduce_lr_on_plateau",
        doc: "multiplies the learning rate by a factor when a log has not improved for some epochs",
        fields: &[
            MONITOR,
            Field::optional("factor", Kind::DECAY, "what the rate is multiplied by"),
            Field::optional(
                "patience",
                Kind::COUNT,
                "epochs without improvement after which the rate falls",
            ),
            MODE,
            Field::optional(
                "min_delta",
                Kind::AT_LEAST_ZERO,
                "what a value must differ from the best by to count as better",
            ),
            Field::optional(
                "cooldown",
                Kind::COUNT,
                "epochs after a fall in which none counts as without improvement",
            ),
            Field::optional("min_lr", Kind::AT_LEAST_ZERO, "the least rate"),
        ],
    };
}

impl ReduceLrOnPlateau {
    /// Watches this log with Keras' settings: a tenth after ten epochs.
    #[must_use]
    pub fn new(monitor: impl Into<String>) -> Self {
        Self {
            monitor: monitor.into(),
            factor: 0.1,
            patience: 10,
            mode: MonitorMode::Auto,
            min_delta: 1e-4,
            cooldown: 0,
            min_lr: 0.0,
            seen: Plateau::default(),
            better: None,
        }
    }

    fn reduce(&self, cx: &mut CallbackContext<'_>) -> Result<bool> {
        let rate = cx.learning_rate()?;
        // Rates are f32 on the device.
        if rate as f32 <= self.min_lr as f32 {
            return Ok(false);
        }
        let reduced = (rate * self.factor).max(self.min_lr);
        cx.set_learning_rate(reduced)?;
        let (epoch, log) = (cx.epoch() + 1, &self.monitor);
        cx.notice(&format!(
            "note: the learning rate is reduced to {} after epoch {epoch}: `{log}` has not improved for {} epochs",
            short(reduced),
            self.seen.wait
        ));
        Ok(true)
    }
}

impl Default for ReduceLrOnPlateau {
    /// Watches `val_loss`.
    fn default() -> Self {
        Self::new("val_loss")
    }
}

setters!(ReduceLrOnPlateau {
    /// What the rate is multiplied by, below 1; 0.1 by default.
    factor: f64,
    /// Epochs without improvement after which the rate falls; 10 by default.
    patience: usize,
    /// Which values are better.
    mode: MonitorMode,
    /// What a value must differ from the best by to count as better; 1e-4 by default.
    min_delta: f64,
    /// Epochs after a fall in which none counts as without improvement.
    cooldown: usize,
    /// The least rate.
    min_lr: f64,
});

impl Callback for ReduceLrOnPlateau {
    fn kind(&self) -> &'static str {
        Self::COMPONENT.name
    }

    fn on_train_begin(&mut self, cx: &mut CallbackContext<'_>) -> Result<()> {
        fraction("factor", self.factor)
            .map_err(|why| Error::user(format!("{}: {why}", self.kind())))?;
        cx.check_rate_can_be_set(self.kind())?;
        let better = self.mode.better(self.kind(), &self.monitor, cx)?;
        let watched = Watched::new(&self.monitor, better);
        self.better = Some(better);
        self.seen = cx.restored()?.unwrap_or_default();
        if !watched.goes_on(self.seen.watched.as_ref(), self.kind(), cx) {
            self.seen = Plateau::default();
        }
        self.seen.watched = Some(watched);
        Ok(())
    }

    fn on_epoch_end(&mut self, done: &mut EpochLogs, cx: &mut CallbackContext<'_>) -> Result<()> {
        done.logs
            .set(Logs::LEARNING_RATE, logged_rate(cx.learning_rate()?));
        let Some(value) = cx.value_of(&done.logs, &self.monitor) else {
            return Ok(());
        };
        if self.seen.cooldown > 0 {
            self.seen.cooldown -= 1;
            self.seen.wait = 0;
        }
        let better = self.better.unwrap_or(Better::Lower);
        let best = self.seen.best.map(|JsonFloat(best)| best);
        if improves(better, value, self.min_delta, best) {
            self.seen.best = Some(JsonFloat(value));
            self.seen.wait = 0;
        } else if self.seen.cooldown == 0 {
            self.seen.wait += 1;
            if self.seen.wait >= self.patience && self.reduce(cx)? {
                self.seen.cooldown = self.cooldown;
                self.seen.wait = 0;
            }
        }
        Ok(())
    }

    fn state(&self) -> CallbackState {
        CallbackState {
            values: write(self.kind(), &self.seen),
            tensors: Vec::new(),
        }
    }
}
