//! The loss scale of training in half precision: gradients that would round to 0 are made larger for the way back.

use phalanx_graph::op::ReduceOp;
use phalanx_graph::{DType, Shape, Tensor};

use crate::nn::Policy;
use crate::optim::SlotSpec;
use crate::{Error, Result};

/// What the loss is multiplied by before the derivatives are taken, and gradients divided by after.
///
/// With a dynamic scale a step whose gradients are not all finite is skipped: it changes neither variables nor slots
/// nor iterations, and, unlike in Keras, neither moving statistics nor the results of the epoch, into which the batch
/// would bring its infinities. The scale is then halved, to no less than 1; after `growth_steps` good steps in a row it
/// is doubled. The logs of a training have the scale as `loss_scale` and the number of skipped steps since the
/// beginning as `skipped_steps`. A step that is not finite with a scale of 1 is an error: halving has not helped.
/// Where every step of an epoch was skipped, its losses are NaN.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum LossScale {
    /// [`DYNAMIC`](Self::DYNAMIC) under [`Policy::MixedFloat16`], otherwise off, as in Keras.
    #[default]
    Auto,
    /// Never scaled.
    Off,
    /// A number for all steps, of which none is skipped.
    Fixed(f64),
    /// Never scaled, and a step whose loss or gradients are not all finite is skipped as with a dynamic scale, however many follow
    /// each other. The logs have `skipped_steps`. In a loop of your own the gradients alone are asked.
    SkipNonFinite,
    /// A scale that follows the gradients.
    Dynamic {
        /// The first scale.
        initial: f64,
        /// Good steps in a row after which the scale is doubled.
        growth_steps: u32,
    },
}

/// The scale never falls below this: Keras has no bound.
pub(super) const FLOOR: f64 = 1.0;
/// Nor does it rise above this, the last power of 2 but one that an f32 holds.
const CEILING: f64 = 8.507_059_173_023_462e37;

impl LossScale {
    /// The name of the scale in logs, and of its slot.
    pub(crate) const SCALE: &'static str = "loss_scale";
    /// The name of the number of skipped steps in logs, and of its slot.
    pub(crate) const SKIPPED_STEPS: &'static str = "skipped_steps";

    /// Keras' dynamic scale: 2^15 at first, doubled after 2000 good steps.
    pub const DYNAMIC: Self = Self::Dynamic {
        initial: 32768.0,
        growth_steps: 2000,
    };

    /// The scale under a policy, `Auto` no more.
    pub(super) fn under(self, policy: Policy) -> Self {
        match (self, policy) {
            (Self::Auto, Policy::MixedFloat16) => Self::DYNAMIC,
            (Self::Auto, _) => Self::Off,
            (chosen, _) => chosen,
        }
    }

    pub(crate) fn check(self) -> Result<()> {
        let (scale, growth_steps) = match self {
            Self::Auto | Self::Off | Self::SkipNonFinite => return Ok(()),
            Self::Fixed(scale) => (scale, 1),
            Self::Dynamic {
                initial,
                growth_steps,
            } => (initial, growth_steps),
        };
        if !(FLOOR..=CEILING).contains(&scale) {
            return Err(Error::user(format!(
                "the loss scale is {scale}, expected a number from 1 to 2^126; 32768 is usual"
            )));
        }
        if growth_steps == 0 {
            return Err(Error::user(
                "`growth_steps` of the loss scale is 0, expected 1 or more; 2000 is usual",
            ));
        }
        Ok(())
    }

    /// What a dynamic scale carries from step to step: the scale, good steps since it changed, steps skipped.
    pub(crate) fn slots(self) -> Vec<SlotSpec> {
        let slot = |name: &str, dtype, fill| SlotSpec {
            name: name.to_owned(),
            shape: Shape::scalar(dtype),
            fill,
            param: None,
        };
        let skipped = slot(Self::SKIPPED_STEPS, DType::I64, 0.0);
        match self {
            Self::Dynamic { initial, .. } => vec![
                slot(Self::SCALE, DType::F32, initial),
                slot("loss_scale/good_steps", DType::I64, 0.0),
                skipped,
            ],
            Self::SkipNonFinite => vec![skipped],
            Self::Auto | Self::Off | Self::Fixed(_) => Vec::new(),
        }
    }

    /// The loss as derivatives are taken of it, or gradients of the loss as gradients of that.
    #[track_caller]
    pub(crate) fn scaled(self, loss: &Tensor, slots: &[Tensor]) -> Tensor {
        match self.now(loss, slots) {
            Some(scale) => loss.map_gradient(|part| part * &scale),
            None => loss.clone(),
        }
    }

    /// The gradients of the loss, from the gradients of the scaled loss.
    #[track_caller]
    pub(crate) fn unscaled(self, gradients: Vec<Tensor>, slots: &[Tensor]) -> Vec<Tensor> {
        let divided = |gradient: Tensor| match self.now(&gradient, slots) {
            Some(scale) => gradient.map_gradient(|part| part * (1.0 / &scale)),
            None => gradient,
        };
        gradients.into_iter().map(divided).collect()
    }

    /// Whether a step may be skipped.
    pub(super) const fn is_dynamic(self) -> bool {
        matches!(self, Self::Dynamic { .. } | Self::SkipNonFinite)
    }

    /// Refuses a scale that may skip steps, which parameter servers do not.
    pub(crate) fn check_on_servers(self) -> Result<()> {
        match self {
            Self::Auto | Self::Off | Self::Fixed(_) => Ok(()),
            Self::Dynamic { .. } => Err(Error::user(
                "parameter servers keep no dynamic loss scale; use `LossScale::Fixed`, or compute in bfloat16, which needs none",
            )),
            Self::SkipNonFinite => Err(Error::user(
                "parameter servers skip no step whose gradients are not finite, which `LossScale::SkipNonFinite` asks for; leave it out: a loss that is not finite ends the training",
            )),
        }
    }

    /// One replica's gradients, of which one is not a number where a step is to be skipped for the replica's loss: all replicas find
    /// it in their sums, without an exchange of its own.
    #[track_caller]
    pub(super) fn marked(self, mut gradients: Vec<Tensor>, loss: &Tensor) -> Vec<Tensor> {
        if let (Self::SkipNonFinite, Some(last)) = (self, gradients.last_mut()) {
            let finite = loss.is_finite();
            *last = last.map_gradient(|part| finite.select(part, &part.like(f64::NAN)));
        }
        gradients
    }

    /// Whether a step counts: its gradients are checked, or `known` says of parts of them whether they are finite. `None`
    /// where no step is ever skipped.
    #[track_caller]
    pub(crate) fn finite_check(
        self,
        gradients: &[Tensor],
        known: &[Tensor],
        slots: &[Tensor],
    ) -> Option<FiniteCheck> {
        if !self.is_dynamic() {
            return None;
        }
        let finite = match known {
            [] => all_finite(gradients)?,
            [first, rest @ ..] => rest.iter().fold(first.clone(), |a, b| a.and(b)),
        };
        if let (Self::SkipNonFinite, [skipped]) = (self, slots) {
            return Some(FiniteCheck {
                is_lost: finite.and(&finite.not()),
                slots: vec![finite.select(skipped, &(skipped + 1.0))],
                finite,
            });
        }
        let (Self::Dynamic { growth_steps, .. }, [scale, good, skipped]) = (self, slots) else {
            return None;
        };
        // A checkpoint may have counted more, with another setting.
        let grows = good.greater_equal(&good.like(f64::from(growth_steps - 1)));
        let grown = (scale * 2.0).minimum(&scale.like(CEILING));
        let halved = (scale * 0.5).maximum(&scale.like(FLOOR));
        let zero = good.like(0.0);
        let slots = vec![
            finite.select(&grows.select(&grown, scale), &halved),
            finite.select(&grows.select(&zero, &(good + 1.0)), &zero),
            finite.select(skipped, &(skipped + 1.0)),
        ];
        let at_floor = scale.less_equal(&scale.like(FLOOR));
        Some(FiniteCheck {
            is_lost: at_floor.and(&finite.not()),
            finite,
            slots,
        })
    }

    /// The scale in the type of a tensor.
    fn now(self, of: &Tensor, slots: &[Tensor]) -> Option<Tensor> {
        match self {
            Self::Auto | Self::Off | Self::SkipNonFinite => None,
            Self::Fixed(scale) => Some(of.like(scale)),
            Self::Dynamic { .. } => slots.first().map(|scale| scale.convert(of.dtype())),
        }
    }
}

/// Whether a step counts; `Bool` scalars.
pub(crate) struct FiniteCheck {
    /// Whether all gradients are finite.
    pub(crate) finite: Tensor,
    /// Whether they are not finite even with the smallest scale: the training has diverged.
    pub(super) is_lost: Tensor,
    /// The next slots.
    pub(crate) slots: Vec<Tensor>,
}

/// Whether all gradients are finite, which scaling does not change; `None` without gradients. Of gradients that are rows the
/// rows are asked: their sums are finite unless they exceed the range of f32 by being added up.
#[track_caller]
pub(super) fn all_finite(gradients: &[Tensor]) -> Option<Tensor> {
    let finite = |gradient: &Tensor| {
        let rows = gradient.scattered().map(|found| found.rows);
        let gradient = rows.as_ref().unwrap_or(gradient);
        let dims: Vec<usize> = (0..gradient.rank()).collect();
        gradient.is_finite().reduce(ReduceOp::And, &dims)
    };
    gradients.iter().map(finite).reduce(|a, b| a.and(&b))
}
