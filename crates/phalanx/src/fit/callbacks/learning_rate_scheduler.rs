//! A learning rate that the program decides.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Callback, CallbackContext, CallbackState};
use crate::config::{Component, Described, Family, Field, Kind, write};
use crate::fit::EpochLogs;
use crate::fit::progress::logged_rate;
use crate::schedules::Schedule;
use crate::{Error, Result};

/// Sets the learning rate before each epoch or before each step: Keras' `LearningRateScheduler`, which knows epochs alone. The
/// optimizer must have a constant rate, which this replaces. The logs of each epoch get its `learning_rate`.
///
/// A [`Schedule`] given to the optimizer is computed on the device; this one is asked on the host.
#[derive(Clone)]
pub struct LearningRateScheduler {
    source: RateSource,
    set: Option<LastEpoch>,
    /// Batches trained on before the epoch that runs, once its first batch has begun.
    before_epoch: Option<u64>,
}

/// The last epoch whose rate was set: what a checkpoint keeps, so that an epoch that is gone on with has the rate it began with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LastEpoch {
    epoch: usize,
}

#[derive(Clone)]
enum RateSource {
    Epoch(Arc<dyn Fn(usize, f64) -> f64 + Send + Sync>),
    Step(Arc<dyn Fn(u64) -> f64 + Send + Sync>),
}

/// The settings in a training file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ScheduleSettings {
    schedule: Schedule,
    per: Per,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Per {
    Epoch,
    Step,
}

impl Described for ScheduleSettings {
    const COMPONENT: Component = Component {
        name: "learning_rate_scheduler",
        doc: "sets the learning rate of an optimizer with a constant rate before each epoch or step",
        fields: &[
            Field::required(
                "schedule",
                Kind::Component(Family::Schedule),
                "the rate as a schedule",
            )
            .example("{kind: exponential_decay, initial_learning_rate: 0.1, decay_steps: 10, decay_rate: 0.5}"),
            Field::optional(
                "per",
                Kind::OneOf(&["epoch", "step"]),
                "what the schedule counts, from 0",
            ),
        ],
    };
}

impl Default for ScheduleSettings {
    fn default() -> Self {
        Self {
            schedule: Schedule::Constant(0.001),
            per: Per::Epoch,
        }
    }
}

impl From<ScheduleSettings> for LearningRateScheduler {
    fn from(settings: ScheduleSettings) -> Self {
        let schedule = settings.schedule;
        match settings.per {
            Per::Epoch => Self::per_epoch(move |epoch, _| schedule.value(epoch as u64)),
            Per::Step => Self::per_step(move |step| schedule.value(step)),
        }
    }
}

impl LearningRateScheduler {
    /// Before each epoch, by its number from 0 and the rate before it. Once for each epoch, also where it is gone on with.
    #[must_use]
    pub fn per_epoch(rate: impl Fn(usize, f64) -> f64 + Send + Sync + 'static) -> Self {
        Self::of(RateSource::Epoch(Arc::new(rate)))
    }

    /// Before each step, by its number from 0 in all epochs; steps that a loss scale skips are counted. Waits for the device before
    /// the first step of an epoch alone. Steps that would be [one program](crate::fit::Compile::steps_per_execution) are one each. Not
    /// for parameter servers, whose workers train on several batches at once.
    #[must_use]
    pub fn per_step(rate: impl Fn(u64) -> f64 + Send + Sync + 'static) -> Self {
        Self::of(RateSource::Step(Arc::new(rate)))
    }

    const fn of(source: RateSource) -> Self {
        Self {
            source,
            set: None,
            before_epoch: None,
        }
    }
}

impl fmt::Debug for LearningRateScheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.source {
            RateSource::Epoch(_) => "LearningRateScheduler per epoch",
            RateSource::Step(_) => "LearningRateScheduler per step",
        })
    }
}

impl Callback for LearningRateScheduler {
    fn kind(&self) -> &'static str {
        ScheduleSettings::COMPONENT.name
    }

    fn on_train_begin(&mut self, cx: &mut CallbackContext<'_>) -> Result<()> {
        cx.check_rate_can_be_set(self.kind())?;
        if matches!(self.source, RateSource::Step(_)) && cx.training.has_servers() {
            return Err(Error::user(format!(
                "{} sets the rate of each step, and workers of parameter servers train on several batches at once; give the optimizer a schedule, or set a rate for each epoch",
                self.kind()
            )));
        }
        self.set = cx.restored()?;
        Ok(())
    }

    fn on_epoch_begin(&mut self, epoch: usize, cx: &mut CallbackContext<'_>) -> Result<()> {
        self.before_epoch = None;
        let RateSource::Epoch(rate) = &self.source else {
            return Ok(());
        };
        let now = Some(LastEpoch { epoch });
        if self.set != now {
            cx.set_learning_rate(rate(epoch, cx.learning_rate()?))?;
            self.set = now;
        }
        Ok(())
    }

    /// The number of a step is where it is in its epoch, added to what came before: skipped steps are known to the device alone, and
    /// rates are not to depend on when it is asked.
    fn on_train_batch_begin(&mut self, batch: usize, cx: &mut CallbackContext<'_>) -> Result<()> {
        let RateSource::Step(rate) = &self.source else {
            return Ok(());
        };
        let before = match self.before_epoch {
            Some(before) => before,
            None => (cx.training.counted_batches()?.unsigned_abs()).saturating_sub(batch as u64),
        };
        self.before_epoch = Some(before);
        cx.set_learning_rate(rate(before + batch as u64))
    }

    fn batches_until_due(&self) -> Option<usize> {
        matches!(self.source, RateSource::Step(_)).then_some(1)
    }

    fn on_epoch_end(&mut self, done: &mut EpochLogs, cx: &mut CallbackContext<'_>) -> Result<()> {
        done.logs
            .set("learning_rate", logged_rate(cx.learning_rate()?));
        Ok(())
    }

    fn state(&self) -> CallbackState {
        let values = self.set.map(|set| write(self.kind(), &set));
        CallbackState {
            values: values.unwrap_or_default(),
            tensors: Vec::new(),
        }
    }
}
