//! What is done where a loss is not a number.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::{Callback, CallbackContext};
use crate::config::{Component, Described, Field, Kind, setters};
use crate::data::Batch;
use crate::{Error, Result};

/// Looks for a loss that is infinite or not a number, and says of which step it is and which tensor was the first: Keras'
/// `TerminateOnNaN`, which looks after each step and says the batch.
///
/// The device notes the step, so looking every few steps ([`every`](Self::every)) finds it as well and lets the device run on. It looks
/// before the results of an epoch are read and before a checkpoint is written, too. Without this callback such a loss is an error, as it
/// always is on parameter servers, whose workers do not step together.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TerminateOnNan {
    policy: NanPolicy,
    every: usize,
    snapshot_every: usize,
    most_rollbacks: usize,
    #[serde(skip)]
    recent: VecDeque<(i64, Batch)>,
    #[serde(skip)]
    rollbacks: usize,
}

/// What is done where a loss is not a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NanPolicy {
    /// The training ends, with the validation and the end of the epoch, as in Keras.
    #[default]
    Halt,
    /// The training goes on from the last state that was good, with the data that follow.
    Rollback,
    /// A step with such gradients changes nothing; needs
    /// [`LossScale::SkipNonFinite`](crate::fit::LossScale::SkipNonFinite) or a dynamic loss scale in
    /// [`Compile`](crate::fit::Compile).
    Skip,
}

impl Described for TerminateOnNan {
    const COMPONENT: Component = Component {
        name: "terminate_on_nan",
        doc: "what is done where a loss is infinite or not a number. Not with parameter servers",
        fields: &[
            Field::optional(
                "policy",
                Kind::OneOf(&["halt", "rollback", "skip"]),
                "`halt` ends the training; `rollback` goes on from the last good state with the data that follow; `skip` leaves such steps without effect",
            ),
            Field::optional(
                "every",
                Kind::POSITIVE,
                "steps between two looks, each of which waits for the device",
            ),
            Field::optional(
                "snapshot_every",
                Kind::POSITIVE,
                "steps between two states that `rollback` may go back to",
            ),
            Field::optional(
                "most_rollbacks",
                Kind::POSITIVE,
                "how often `rollback` goes back before the training is an error",
            ),
        ],
    };
}

impl TerminateOnNan {
    /// Ends the training, and looks after each step, as Keras does.
    #[must_use]
    pub fn new() -> Self {
        Self {
            policy: NanPolicy::Halt,
            every: 1,
            snapshot_every: 100,
            most_rollbacks: 3,
            recent: VecDeque::new(),
            rollbacks: 0,
        }
    }

    /// Looks, and acts where a step was not a number.
    fn look(&mut self, cx: &mut CallbackContext<'_>) -> Result<()> {
        if cx.is_state_lost() {
            return Ok(());
        }
        let Some(step) = cx.first_bad_step()? else {
            return Ok(());
        };
        let mut recent = self.recent.iter();
        let batch = recent.find(|(number, _)| number.unsigned_abs() == step + 1);
        let bad = cx.first_bad_tensor(batch.map(|(_, batch)| batch))?;
        let what =
            format!("the loss of step {step} (counted from 0) is infinite or not a number; {bad}");
        if self.policy != NanPolicy::Rollback {
            cx.halt(what);
            return Ok(());
        }
        self.rollbacks += 1;
        if self.rollbacks > self.most_rollbacks {
            let most = self.most_rollbacks;
            return Err(Error::Training(format!(
                "{what}, after {most} rollbacks; try a lower learning rate or gradient clipping (`clipnorm`), and look at these data"
            )));
        }
        cx.notice(&format!(
            "warning: {what}; going back to the last good state"
        ));
        self.recent.clear();
        cx.roll_back();
        Ok(())
    }
}

impl Default for TerminateOnNan {
    fn default() -> Self {
        Self::new()
    }
}

/// The most batches that are kept to find what in them is not a number.
const MOST_BATCHES: usize = 8;

setters!(TerminateOnNan {
    /// What is done.
    policy: NanPolicy,
    /// Steps between two looks, each of which waits for the device; 1 by default. What it finds says which number of the batch is bad where
    /// the batch is one of the last 8, and the last of those that are one program.
    every: usize,
    /// Steps between two states that [`NanPolicy::Rollback`] may go back to, each a copy of everything on the host; 100 by
    /// default, and the start of each epoch.
    snapshot_every: usize,
    /// How often [`NanPolicy::Rollback`] goes back before the training is an error; 3 by default.
    most_rollbacks: usize,
});

impl Callback for TerminateOnNan {
    fn kind(&self) -> &'static str {
        Self::COMPONENT.name
    }

    fn on_train_begin(&mut self, cx: &mut CallbackContext<'_>) -> Result<()> {
        if self.every == 0 || self.snapshot_every == 0 {
            return Err(Error::user(format!(
                "{}: `every` and `snapshot_every` must be at least 1, got 0",
                self.kind()
            )));
        }
        if cx.training.has_servers() {
            return Err(Error::user(format!(
                "{} looks at the loss of each step, and workers of parameter servers do not step together: there a loss that is not a number ends the training with an error; leave it out",
                self.kind()
            )));
        }
        self.recent.clear();
        self.rollbacks = 0;
        cx.watch_bad_steps(self.policy == NanPolicy::Skip)
    }

    fn on_epoch_begin(&mut self, _: usize, cx: &mut CallbackContext<'_>) -> Result<()> {
        if self.policy == NanPolicy::Rollback {
            cx.take_snapshot();
        }
        Ok(())
    }

    fn on_train_batch_end(&mut self, batch: usize, cx: &mut CallbackContext<'_>) -> Result<()> {
        if let Some(batch) = cx.batch() {
            self.recent.push_back((cx.iterations(), batch.clone()));
            if self.recent.len() > self.every.min(MOST_BATCHES) {
                self.recent.pop_front();
            }
        }
        let (done, steps) = (batch + 1, cx.execution_steps());
        let has_passed = |every: usize| done / every > done.saturating_sub(steps) / every;
        let copies = self.policy == NanPolicy::Rollback && has_passed(self.snapshot_every);
        // No copy is taken of what was not looked at.
        if has_passed(self.every) || copies {
            self.look(cx)?;
        }
        if copies {
            cx.take_snapshot();
        }
        Ok(())
    }

    fn on_steps_done(&mut self, cx: &mut CallbackContext<'_>) -> Result<()> {
        self.look(cx)
    }
}
