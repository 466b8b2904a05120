//! The closed set of update rules and what each of them answers.

use phalanx_graph::Tensor;
use serde_json::Value;

use super::{
    Adadelta, Adafactor, Adagrad, Adam, AdamW, Adamax, Ftrl, Lamb, Lion, Muon, Nadam, Optimizer,
    OptimizerSettings, Options, ParamSpec, RmsProp, Sgd,
};
use crate::Result;
use crate::config::{self, Component, Described, Description, Entry, Family};
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
}

/// What a rule answers: its slots, numbers computed once per step, and the update of one variable.
pub(super) trait UpdateRule {
    /// The rate over time.
    fn learning_rate(&self) -> &Schedule;

    /// Name and fill of the slots of each variable.
    fn slots(&self) -> Vec<(&'static str, f64)>;

    /// The dims of one of its slots, for this variable.
    fn slot_dims(&self, _slot: &str, spec: &ParamSpec) -> Vec<usize> {
        spec.shape.dims.clone()
    }

    /// How much variables decay by default.
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

    /// What is computed once per step and shared by all variables.
    fn begin(&self, step: &Step) -> Begun {
        Begun {
            scalars: vec![step.rate.clone()],
            own_slots: Vec::new(),
        }
    }

    /// The variable and its slots after the step.
    fn update(
        &self,
        scalars: &[Tensor],
        param: &Tensor,
        gradient: &Tensor,
        slots: &[Tensor],
    ) -> Updated;

    /// Whether an element's update depends on that element's values alone, so that rows may be updated by themselves.
    fn is_elementwise(&self) -> bool {
        true
    }

    /// Whether an element whose gradient is 0 stays as it is, and its slots too.
    fn keeps_what_has_no_gradient(&self) -> bool {
        false
    }

    /// Whether every setting makes sense, the learning rate aside.
    fn check(&self) -> std::result::Result<(), String>;
}

/// Where training stands: f32 scalars of the graph.
pub(super) struct Step {
    /// The learning rate.
    pub(super) rate: Tensor,
    /// The number of this update, from 1.
    pub(super) number: Tensor,
    /// [`UpdateRule::own_slots`].
    pub(super) own_slots: Vec<Tensor>,
}

/// See [`UpdateRule::begin`].
pub(super) struct Begun {
    /// What [`UpdateRule::update`] is given.
    pub(super) scalars: Vec<Tensor>,
    /// The next own slots.
    pub(super) own_slots: Vec<Tensor>,
}

/// See [`UpdateRule::update`].
pub(super) struct Updated {
    pub(super) param: Tensor,
    pub(super) slots: Vec<Tensor>,
}

impl Step {
    /// `1 - kept^t`: what a mean that started at 0 holds of its full size in update `t`.
    pub(super) fn correction(&self, kept: f64) -> Tensor {
        1.0 - self.number.like(kept).pow(&self.number)
    }
}

impl Begun {
    /// Scalars of a rule without own slots.
    pub(super) fn with<const N: usize>(scalars: [Tensor; N]) -> Self {
        Self {
            scalars: scalars.into(),
            own_slots: Vec::new(),
        }
    }
}

impl Updated {
    pub(super) fn new<const N: usize>(param: Tensor, slots: [Tensor; N]) -> Self {
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
    ($($rule:ident $kind:literal),* $(,)?) => {
        impl Rule {
            pub(super) const fn kind(&self) -> &'static str {
                match self { $(Self::$rule(_) => $kind),* }
            }

            pub(super) fn inner(&self) -> &dyn UpdateRule {
                match self { $(Self::$rule(rule) => rule),* }
            }

            pub(super) fn config(&self, options: &Options) -> Value {
                let options = options.clone();
                match self {
                    $(Self::$rule(rule) => {
                        config::write($kind, &OptimizerSettings { rule: rule.clone(), options })
                    })*
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
                let rule = Rule::from(rule);
                let options = Options::of(&rule);
                Self::new(rule, options)
            }
        })*
    };
}
rules!(
    Sgd "sgd",
    RmsProp "rmsprop",
    Adam "adam",
    Adagrad "adagrad",
    Adadelta "adadelta",
    Adamax "adamax",
    Nadam "nadam",
    Ftrl "ftrl",
    Lion "lion",
    Lamb "lamb",
    Adafactor "adafactor",
    Muon "muon",
);

pub(super) use crate::config::setters;

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
