//! A learning rate that the program decides.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Callback, CallbackContext, CallbackState};
use crate::Result;
use crate::config::{Component, Described, Family, Field, Kind, write};
use crate::fit::EpochLogs;
use crate::fit::progress::logged_rate;
use crate::schedules::Schedule;

/// Sets the learning rate before each epoch or before each step: Keras' `LearningRateScheduler`, which knows epochs alone. The
/// optimizer must have a constant rate, which this replaces. The logs of each epoch get its `learning_rate`.
///
/// A [`Schedule`] given to the optimizer is computed on the device; this one is asked on the host.
#[derive(Clone)]
pub struct LearningRateScheduler {
    source: RateSource,
    set: Option<LastEpoch>,
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

    /// Before each step, by its number from 0 in all epochs. Does not wait for the device.
    #[must_use]
    pub fn per_step(rate: impl Fn(u64) -> f64 + Send + Sync + 'static) -> Self {
        Self::of(RateSource::Step(Arc::new(rate)))
    }

    const fn of(source: RateSource) -> Self {
        Self { source, set: None }
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
        self.set = cx.restored()?;
        Ok(())
    }

    fn on_epoch_begin(&mut self, epoch: usize, cx: &mut CallbackContext<'_>) -> Result<()> {
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

    fn on_train_batch_begin(&mut self, _: usize, cx: &mut CallbackContext<'_>) -> Result<()> {
        match &self.source {
            RateSource::Epoch(_) => Ok(()),
            RateSource::Step(rate) => cx.set_learning_rate(rate(cx.iterations().unsigned_abs())),
        }
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
