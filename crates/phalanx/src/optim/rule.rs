//! The update rules and what each of them answers.

use std::fmt::Debug;

use phalanx_graph::Tensor;
use serde_json::Value;

use super::{
    Adadelta, Adafactor, Adagrad, Adam, AdamW, Adamax, CustomRule, Ftrl, Lamb, Lion, Muon, Nadam,
    Optimizer, OptimizerSettings, Options, ParamSpec, RmsProp, Sgd,
};
use crate::Result;
use crate::config::{Component, Described, Description, Entry, Family};
use crate::schedules::Schedule;

/// An update rule.
#[derive(Clone, Debug, PartialEq)]
pub enum Rule {
    /// See [`Sgd`].
    Sgd(Sgd),
    /// See [`RmsProp`].
    RmsProp(RmsProp),
    /// See [`Adam`]; with weight decay, AdamW.
    Adam(Adam),
    /// See [`Adagrad`].
    Adagrad(Adagrad),
    /// See [`Adadelta`].
    Adadelta(Adadelta),
    /// See [`Adamax`].
    Adamax(Adamax),
    /// See [`Nadam`].
    Nadam(Nadam),
    /// See [`Ftrl`].
    Ftrl(Ftrl),
    /// See [`Lion`].
    Lion(Lion),
    /// See [`Lamb`].
    Lamb(Lamb),
    /// See [`Adafactor`].
    Adafactor(Adafactor),
    /// See [`Muon`].
    Muon(Muon),
    /// See [`Optimizer::custom`].
    Custom(CustomRule),
}

/// How a gradient changes a variable: slots, numbers computed once per step, and the update of one variable. A rule of your own, Keras'
/// `Optimizer` to derive from, becomes an optimizer by [`Optimizer::custom`].
///
/// A rule knows one variable and the gradient of the whole batch for it: clipping, weight decay, accumulation, averages and loss scales
/// are around it, and strategies have the slots where the variable is. A checkpoint has the slots by their names, for a program with the same
/// rule: a rule is not read from a file, and [parameter servers](crate::strategy::ParameterServerOptions::optimizer) are given it.
///
/// ```
#[doc = include_str!("example.md")]
/// # use phalanx::Tensor;
/// # use phalanx::schedules::Schedule;
/// # use phalanx::serde_json::{Value, json};
/// /// Follows the sign of the momentum (Bernstein et al. 2018).
/// #[derive(Debug)]
/// struct Signum {
///     learning_rate: Schedule,
///     momentum: f64,
/// }
///
/// impl UpdateRule for Signum {
///     fn kind(&self) -> &'static str {
///         "signum"
///     }
///     fn config(&self) -> Value {
///         json!({"momentum": self.momentum})
///     }
///     fn learning_rate(&self) -> &Schedule {
///         &self.learning_rate
///     }
///     fn slots(&self) -> Vec<(&'static str, f64)> {
///         vec![("momentum", 0.0)]
///     }
///     fn update(&self, _: &ParamSpec, scalars: &[Tensor], param: &Tensor, gradient: &Tensor, slots: &[Tensor]) -> Updated {
///         let momentum = &slots[0] * self.momentum + gradient * (1.0 - self.momentum);
///         Updated::new(param - momentum.sign() * &scalars[0], [momentum])
///     }
///     fn is_elementwise(&self) -> bool {
///         true
///     }
/// }
///
/// // The variable after each of three steps from 10 on `x * x / 2`.
/// let signum = Signum { learning_rate: 0.5.into(), momentum: 0.9 };
/// let x = descend(Optimizer::custom(signum).weight_decay(0.01))?;
/// println!("{x:.2?}");
/// assert_eq!(format!("{x:.2?}"), "[9.45, 8.90, 8.36]");
/// # Ok::<(), phalanx::Error>(())
/// ```
pub trait UpdateRule: Debug + Send + Sync {
    /// The name of the type in `snake_case`, which for a rule of your own none of [`Rule::KINDS`] is.
    fn kind(&self) -> &'static str;

    /// The settings, a JSON object: what a checkpoint, parameter servers and other workers compare. The learning rate may be left out.
    fn config(&self) -> Value;

    /// The rate over time.
    fn learning_rate(&self) -> &Schedule;

    /// Name and fill of the slots of each variable, of its element type.
    fn slots(&self) -> Vec<(&'static str, f64)>;

    /// The dims of one of its slots, for this variable; the variable's unless they are others.
    fn slot_dims(&self, _slot: &str, spec: &ParamSpec) -> Vec<usize> {
        spec.shape.dims.clone()
    }

    /// How much variables decay unless the optimizer says otherwise.
    fn weight_decay(&self) -> Option<f64> {
        None
    }

    /// How much a variable decays in place of what the options say, perhaps not at all.
    fn own_decay(&self, _spec: &ParamSpec) -> Option<Option<f64>> {
        None
    }

    /// Name and fill of f32 scalars of the whole optimizer.
    fn own_slots(&self) -> Vec<(&'static str, f64)> {
        Vec::new()
    }

    /// What is computed once per step and shared by all variables; by default the rate alone.
    fn begin(&self, step: &Step) -> Begun {
        Begun {
            scalars: vec![step.rate.clone()],
            own_slots: Vec::new(),
        }
    }

    /// The variable and its slots after the step, with the shapes that they had. `scalars` are what the step [began](Self::begin) with, in
    /// the type of the variable.
    ///
    /// Of a rule that is [elementwise](Self::is_elementwise) a parameter server may have a part of a variable, `dense/kernel/part_0`, or rows of
    /// a table. One device gives the rows of a table that the batch has, where the others [stay](Self::keeps_what_has_no_gradient) or the
    /// optimizer is [lazy](Optimizer::lazy): `spec.shape` is of the whole table then, and `param.dim(0)` the number of these rows.
    fn update(
        &self,
        spec: &ParamSpec,
        scalars: &[Tensor],
        param: &Tensor,
        gradient: &Tensor,
        slots: &[Tensor],
    ) -> Updated;

    /// Whether an element's update depends on that element's values alone, so that parameter servers may cut a variable, and rows of a table
    /// may be updated by themselves. Neither is done where a slot has other dims than its variable.
    fn is_elementwise(&self) -> bool {
        false
    }

    /// Whether an element whose gradient is 0 stays as it is, and its slots too. Rows of a table without a gradient are not computed then, if the
    /// rule is [elementwise](Self::is_elementwise).
    fn keeps_what_has_no_gradient(&self) -> bool {
        false
    }

    /// Whether every setting makes sense, the learning rate aside.
    ///
    /// # Errors
    /// A sentence with the field in backticks, what was expected and what was got.
    fn check(&self) -> std::result::Result<(), String> {
        Ok(())
    }
}

/// Where training stands: f32 scalars of the graph.
#[derive(Clone, Debug)]
pub struct Step {
    /// The learning rate.
    pub rate: Tensor,
    /// The number of this update, from 1.
    pub number: Tensor,
    /// [`UpdateRule::own_slots`].
    pub own_slots: Vec<Tensor>,
}

/// See [`UpdateRule::begin`].
#[derive(Clone, Debug)]
pub struct Begun {
    /// f32 scalars that [`UpdateRule::update`] is given.
    pub scalars: Vec<Tensor>,
    /// The next own slots, as many as there are.
    pub own_slots: Vec<Tensor>,
}

/// See [`UpdateRule::update`].
#[derive(Debug)]
pub struct Updated {
    /// The variable.
    pub param: Tensor,
    /// Its slots, in the order of [`UpdateRule::slots`].
    pub slots: Vec<Tensor>,
}

impl Step {
    /// `1 - kept^t`: what a mean that started at 0 holds of its full size in update `t`.
    #[must_use]
    pub fn correction(&self, kept: f64) -> Tensor {
        1.0 - self.number.like(kept).pow(&self.number)
    }
}

impl Begun {
    /// Scalars of a rule without own slots.
    #[must_use]
    pub fn with<const N: usize>(scalars: [Tensor; N]) -> Self {
        Self {
            scalars: scalars.into(),
            own_slots: Vec::new(),
        }
    }
}

impl Updated {
    /// The variable and its slots, in the order of [`UpdateRule::slots`].
    #[must_use]
    pub fn new<const N: usize>(param: Tensor, slots: [Tensor; N]) -> Self {
        Self {
            param,
            slots: slots.into(),
        }
    }
}

impl Rule {
    /// The kinds that [`Optimizer::from_config`] knows.
    pub const KINDS: [&'static str; 13] = [
        "sgd",
        "rmsprop",
        "adam",
        "adamw",
        "adagrad",
        "adadelta",
        "adamax",
        "nadam",
        "ftrl",
        "lion",
        "lamb",
        "adafactor",
        "muon",
    ];

    pub(super) fn from_config(kind: &str, fields: &Value) -> Result<Optimizer> {
        Entry::read(&Self::entries(), Family::Optimizer, kind, fields)
    }

    /// The optimizers with their settings and defaults.
    pub(crate) fn descriptions() -> Vec<Description> {
        Entry::descriptions(&Self::entries())
    }

    fn entries() -> Vec<Entry<Optimizer>> {
        vec![
            OptimizerSettings::entry(Sgd::default()),
            OptimizerSettings::entry(RmsProp::default()),
            OptimizerSettings::entry(Adam::default()),
            AdamW::entry(),
            OptimizerSettings::entry(Adagrad::default()),
            OptimizerSettings::entry(Adadelta::default()),
            OptimizerSettings::entry(Adamax::default()),
            OptimizerSettings::entry(Nadam::default()),
            OptimizerSettings::entry(Ftrl::default()),
            OptimizerSettings::entry(Lion::default()),
            OptimizerSettings::entry(Lamb::default()),
            OptimizerSettings::entry(Adafactor::default()),
            OptimizerSettings::entry(Muon::default()),
        ]
    }
}

impl AdamW {
    /// Adam, which decays weights by default.
    fn entry() -> Entry<Optimizer> {
        let component = Component {
            name: "adamw",
            doc: "`adam` with weight decay",
            fields: Adam::COMPONENT.fields,
        };
        let options = Options {
            weight_decay: Some(Self::WEIGHT_DECAY),
            ..Options::default()
        };
        let rule = Adam::default();
        Entry::with(
            component,
            OptimizerSettings { rule, options },
            OptimizerSettings::optimizer,
        )
    }
}

macro_rules! rules {
    ($($rule:ident),* $(,)?) => {
        impl Rule {
            pub(super) fn inner(&self) -> &dyn UpdateRule {
                match self {
                    $(Self::$rule(rule) => rule,)*
                    Self::Custom(rule) => rule.inner(),
                }
            }
        }

        $(impl From<$rule> for Rule {
            fn from(rule: $rule) -> Self {
                Self::$rule(rule)
            }
        }

        impl From<$rule> for Optimizer {
            fn from(rule: $rule) -> Self {
                Self::of(rule.into())
            }
        })*
    };
}
rules!(
    Sgd, RmsProp, Adam, Adagrad, Adadelta, Adamax, Nadam, Ftrl, Lion, Lamb, Adafactor, Muon,
);

/// Name and settings of a rule of this module.
macro_rules! described {
    () => {
        fn kind(&self) -> &'static str {
            <Self as crate::config::Described>::COMPONENT.name
        }

        fn config(&self) -> serde_json::Value {
            crate::config::write(self.kind(), self)
        }
    };
}
pub(super) use crate::config::setters;
pub(super) use described;

/// The tensors of [`UpdateRule::update`] by name, in the order of the rule's [`slots`](UpdateRule::slots) or of the scalars that
/// it [begins](UpdateRule::begin) with: `let [momentum, velocity] = named(slots)`.
pub(super) fn named<const N: usize>(tensors: &[Tensor]) -> [&Tensor; N] {
    assert_eq!(tensors.len(), N, "a rule is given what it has declared");
    std::array::from_fn(|index| &tensors[index])
}

/// `mean` moved towards `value` by `1 - kept` of their distance.
pub(super) fn moved(mean: &Tensor, value: &Tensor, kept: f64) -> Tensor {
    mean + (value - mean) * (1.0 - kept)
}

/// `kept * mean + (1 - kept) * value`: as [`moved`], rounded as the rules that are written this way.
pub(super) fn mixed(mean: &Tensor, value: &Tensor, kept: f64) -> Tensor {
    mean * kept + value * (1.0 - kept)
}
