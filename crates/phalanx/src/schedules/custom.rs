//! Learning rates by a formula of the program.

use std::fmt::Debug;
use std::sync::Arc;

use phalanx_graph::{DType, Shape, Tensor};
use serde_json::Value;

use super::Schedule;

/// A learning rate over time by a formula of your own, Keras' `LearningRateSchedule` to derive from.
///
/// It is used wherever a [`Schedule`] is, and is plain data: the rate of a step follows from the number of the step alone, so a training that
/// goes on has the rates that it would have had. The formula is written twice, for the program of a step and for logs and callbacks, as
/// ours are; a training whose two formulas differ at a few of the first 10,000 steps is refused. It is not read from a file: a program that
/// goes on with a checkpoint makes it again, and [parameter servers](crate::strategy::ParameterServerOptions::optimizer) are given it.
///
/// ```
/// use phalanx::optim::{Optimizer, Sgd};
/// use phalanx::schedules::{LearningRateSchedule, Schedule};
/// use phalanx::serde_json::{Value, json};
/// use phalanx::{DType, Tensor};
///
/// /// Falls with the root of the step.
/// #[derive(Debug)]
/// struct InverseRoot {
///     first: f64,
/// }
///
/// impl LearningRateSchedule for InverseRoot {
///     fn kind(&self) -> &'static str {
///         "inverse_root"
///     }
///     fn config(&self) -> Value {
///         json!({"first": self.first})
///     }
///     fn value(&self, step: u64) -> f64 {
///         self.first / (1.0 + step as f64).sqrt()
///     }
///     fn trace(&self, step: &Tensor) -> Tensor {
///         self.first / (step.convert(DType::F32) + 1.0).sqrt()
///     }
/// }
///
/// let schedule = Schedule::from(InverseRoot { first: 0.1 });
/// assert_eq!(schedule.value(3), 0.05);
/// let optimizer = Optimizer::from(Sgd::new(schedule).momentum(0.9));
/// assert_eq!(optimizer.config()["learning_rate"]["kind"], "inverse_root");
/// ```
pub trait LearningRateSchedule: Debug + Send + Sync {
    /// The name of the type in `snake_case`, which none of [`Schedule::KINDS`] has.
    fn kind(&self) -> &'static str;

    /// The settings, a JSON object: what a checkpoint, parameter servers and other workers compare.
    fn config(&self) -> Value;

    /// The rate of any step from 0, computed on the host.
    fn value(&self, step: u64) -> f64;

    /// The same as an f32 scalar of a graph, from the i64 scalar of the step.
    fn trace(&self, step: &Tensor) -> Tensor;

    /// What is wrong with the settings.
    ///
    /// # Errors
    /// A sentence with the field in backticks, what was expected and what was got.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}

/// A [`LearningRateSchedule`] of the program; equal to another of the same kind with equal settings.
#[derive(Clone, Debug)]
pub struct CustomSchedule(pub(super) Arc<dyn LearningRateSchedule>);

impl PartialEq for CustomSchedule {
    fn eq(&self, other: &Self) -> bool {
        (self.0.kind(), self.0.config()) == (other.0.kind(), other.0.config())
    }
}

impl<S: LearningRateSchedule + 'static> From<S> for Schedule {
    fn from(schedule: S) -> Self {
        Self::Custom(CustomSchedule(Arc::new(schedule)))
    }
}

impl CustomSchedule {
    pub(super) fn check(&self) -> Result<(), String> {
        if Schedule::KINDS.contains(&self.0.kind()) {
            return Err(
                "there is a schedule of this kind already; call yours otherwise".to_owned(),
            );
        }
        if !self.0.config().is_object() {
            let got = self.0.config();
            return Err(format!(
                "`config` must give an object of settings, got {got}"
            ));
        }
        self.0.check()
    }

    /// The rate in a graph; what is no f32 scalar is the graph's error.
    #[track_caller]
    pub(super) fn trace(&self, step: &Tensor) -> Tensor {
        let (rate, scalar) = (self.0.trace(step), Shape::scalar(DType::F32));
        if rate.shape() != scalar {
            let message = format!("`trace` must give a rate {scalar}, got {}", rate.shape());
            step.graph().fail(self.0.kind(), message);
            return step.graph().full(&scalar, 0.0);
        }
        rate
    }
}
