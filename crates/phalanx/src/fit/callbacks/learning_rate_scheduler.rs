//! A learning rate that the program decides.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Callback, CallbackContext, CallbackState};
use crate::config::{Component, Described, Family, Field, Kind, write};
use crate::fit::progress::logged_rate;
use crate::fit::{EpochLogs, Logs};
use crate::schedules::Schedule;
use crate::{Error, Result};

/// Sets the learning rate before each epoch or before each step: Keras' `LearningRateScheduler`, which knows epochs alone. The
/// optimizer must have a constant rate, which this replaces. The logs of each epoch get its `learning_rate`.
///
/// A [`Schedule`] given to the optimizer is computed on the device; this one is asked on the host.
#[derive(Clone)]
pub struct LearningRateScheduler {
    source: RateSource,
    set: Option<ScheduledEpoch>,
    /// Batches of the epoch trained on in this `fit` and before.
    trained: usize,
}

/// What a checkpoint keeps: the last epoch whose rate was set, so that one that is gone on with has the rate it began with; of rates of steps
/// the epoch that runs, or comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScheduledEpoch {
    epoch: usize,
    /// The number of its first step, of rates of steps: the device counts none that a rollback has undone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    first_step: Option<u64>,
}

#[derive(Clone)]
enum RateSource {
    Epoch(Arc<dyn Fn(usize, f64) -> f64 + Send + Sync>),
    Step(Arc<dyn Fn(u64) -> f64 + Send + Sync>),
    /// As it was given, and for the replicas of the training.
    Schedule {
        given: Schedule,
        scaled: Schedule,
        per: Per,
    },
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
        Self::of(RateSource::Schedule {
            scaled: settings.schedule.clone(),
            given: settings.schedule,
            per: settings.per,
        })
    }
}

impl LearningRateScheduler {
    /// Before each epoch, by its number from 0 and the rate before it. Once for each epoch, also where it is gone on with.
    #[must_use]
    pub fn per_epoch(rate: impl Fn(usize, f64) -> f64 + Send + Sync + 'static) -> Self {
        Self::of(RateSource::Epoch(Arc::new(rate)))
    }

    /// Before each step, by its number from 0 in all epochs; steps that a loss scale skips and those that a rollback undoes are counted.
    /// Waits for the device before the first step of the training alone. Steps that would be
    /// [one program](crate::fit::Compile::steps_per_execution) are one each. Not for parameter servers, whose workers train on several
    /// batches at once.
    #[must_use]
    pub fn per_step(rate: impl Fn(u64) -> f64 + Send + Sync + 'static) -> Self {
        Self::of(RateSource::Step(Arc::new(rate)))
    }

    const fn of(source: RateSource) -> Self {
        Self {
            source,
            set: None,
            trained: 0,
        }
    }

    const fn is_per_step(&self) -> bool {
        match self.source {
            RateSource::Epoch(_) => false,
            RateSource::Step(_) => true,
            RateSource::Schedule { per, .. } => matches!(per, Per::Step),
        }
    }
}

impl fmt::Debug for LearningRateScheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.is_per_step() {
            false => "LearningRateScheduler per epoch",
            true => "LearningRateScheduler per step",
        })
    }
}

impl Callback for LearningRateScheduler {
    fn kind(&self) -> &'static str {
        ScheduleSettings::COMPONENT.name
    }

    fn on_train_begin(&mut self, cx: &mut CallbackContext<'_>) -> Result<()> {
        cx.check_rate_can_be_set(self.kind())?;
        if self.is_per_step() && cx.training.has_servers() {
            return Err(Error::user(format!(
                "{} sets the rate of each step, and workers of parameter servers train on several batches at once; give the optimizer a schedule, or set a rate for each epoch",
                self.kind()
            )));
        }
        if let RateSource::Schedule { given, scaled, .. } = &mut self.source {
            *scaled = given.clone().for_replicas(cx.training.planned_replicas());
        }
        self.set = cx.restored()?;
        Ok(())
    }

    fn on_epoch_begin(&mut self, epoch: usize, cx: &mut CallbackContext<'_>) -> Result<()> {
        self.trained = cx.steps_before();
        if self.set.is_some_and(|set| set.epoch == epoch) {
            return Ok(());
        }
        let rate = match &self.source {
            RateSource::Epoch(rate) => rate(epoch, cx.learning_rate()?),
            RateSource::Schedule {
                scaled,
                per: Per::Epoch,
                ..
            } => scaled.value(epoch as u64),
            RateSource::Step(_) | RateSource::Schedule { .. } => return Ok(()),
        };
        cx.set_learning_rate(rate)?;
        self.set = Some(ScheduledEpoch {
            epoch,
            first_step: None,
        });
        Ok(())
    }

    /// The number of a step is where it is in its epoch, added to what came before: what was skipped and undone the host does not see at
    /// once, and rates are not to depend on when the device is asked.
    fn on_train_batch_begin(&mut self, batch: usize, cx: &mut CallbackContext<'_>) -> Result<()> {
        if !self.is_per_step() {
            return Ok(());
        }
        let (epoch, number) = (cx.epoch(), batch as u64);
        let set = self.set.filter(|set| set.epoch == epoch);
        let first = match set.and_then(|set| set.first_step) {
            Some(first) => first,
            None => (cx.training.counted_batches()?.unsigned_abs()).saturating_sub(number),
        };
        self.set = Some(ScheduledEpoch {
            epoch,
            first_step: Some(first),
        });
        self.trained = batch + 1;
        match &self.source {
            RateSource::Step(rate) => cx.set_learning_rate(rate(first + number)),
            RateSource::Schedule { scaled, .. } => {
                cx.set_learning_rate(scaled.value(first + number))
            }
            RateSource::Epoch(_) => Ok(()),
        }
    }

    fn batches_until_due(&self) -> Option<usize> {
        self.is_per_step().then_some(1)
    }

    fn on_epoch_end(&mut self, done: &mut EpochLogs, cx: &mut CallbackContext<'_>) -> Result<()> {
        if let Some(ScheduledEpoch {
            epoch,
            first_step: Some(first),
        }) = &mut self.set
            && *epoch == done.epoch
        {
            *epoch += 1;
            *first += self.trained as u64;
        }
        done.logs
            .set(Logs::LEARNING_RATE, logged_rate(cx.learning_rate()?));
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
