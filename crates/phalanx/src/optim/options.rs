//! What is done around every update rule: clipping, weight decay, accumulation, averaging.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use phalanx_graph::Tensor;
use serde::{Deserialize, Serialize};

use super::{Optimizer, ParamSpec, Rule};
use crate::Error;
use crate::config::{self, Family, Field, Kind};

/// Settings that every optimizer shares, by their Keras names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Options {
    /// Largest L2 norm of the gradient of each variable.
    pub clipnorm: Option<f64>,
    /// Largest size of each element of the gradients.
    pub clipvalue: Option<f64>,
    /// Largest L2 norm of all gradients together.
    pub global_clipnorm: Option<f64>,
    /// Fraction of each variable, times the learning rate, taken off before each update.
    pub weight_decay: Option<f64>,
    /// Variables whose path contains one of these texts do not decay.
    pub exclude_from_weight_decay: Vec<String>,
    /// What the learning rate is multiplied by for variables whose path contains one of these texts; of several, by all.
    pub learning_rate_factors: BTreeMap<String, f64>,
    /// How many batches' gradients are averaged into one update.
    pub gradient_accumulation_steps: Option<u64>,
    /// Whether an exponential moving average of each variable is kept.
    pub use_ema: bool,
    /// The part of the average that each step keeps.
    pub ema_momentum: f64,
    /// The variables become their averages every this many updates.
    pub ema_overwrite_frequency: Option<u64>,
    /// Whether a step leaves rows of embeddings alone that have no gradient in it, where the rule by itself would move them:
    /// their moments do not fade and they do not decay. Embeddings are variables with the name `embeddings`, as our layers call their
    /// tables; variables of any other name are updated whole. TensorFlow Addons' `LazyAdam`, which goes by the gradients of a
    /// replica; Keras has no such setting.
    pub lazy: bool,
    /// Further variables that do not decay; not written to configurations.
    #[serde(skip)]
    pub(super) excluded: Option<Excluded>,
}

/// A number, or none where there is one by default.
pub(super) const OR_NONE: Kind = Kind::Either(&[Kind::AT_LEAST_ZERO, Kind::Null]);

/// Settings of every optimizer, beside its own.
pub(super) const EVERY_OPTIMIZER: &[Field] = &[
    Field::optional(
        "clipnorm",
        Kind::ABOVE_ZERO,
        "largest norm of the gradient of each variable",
    ),
    Field::optional(
        "clipvalue",
        Kind::ABOVE_ZERO,
        "largest absolute value of a gradient's elements",
    ),
    Field::optional(
        "global_clipnorm",
        Kind::ABOVE_ZERO,
        "largest norm of all gradients together",
    ),
    Field::optional(
        "weight_decay",
        OR_NONE,
        "share of each variable, times the learning rate, that a step takes off; 0.004 of `adamw` unless it is given",
    ),
    Field::optional(
        "exclude_from_weight_decay",
        Kind::TEXTS,
        "variables whose path contains one of these texts do not decay",
    )
    .example("[bias]"),
    Field::optional(
        "learning_rate_factors",
        Kind::Map(&Kind::AT_LEAST_ZERO),
        "what the rate is multiplied by for variables whose path contains one of these texts",
    )
    .example("{dense_1: 10}"),
    Field::optional(
        "gradient_accumulation_steps",
        Kind::Whole(2, i64::MAX),
        "number of batches whose gradients are averaged into one update",
    ),
    Field::optional(
        "use_ema",
        Kind::Bool,
        "whether a moving average of each variable is kept",
    ),
    Field::optional(
        "ema_momentum",
        Kind::DECAY,
        "share that the average keeps in each update",
    ),
    Field::optional(
        "ema_overwrite_frequency",
        Kind::POSITIVE,
        "number of updates after which the variables become their averages",
    ),
    Field::optional(
        "lazy",
        Kind::Bool,
        "whether rows of embeddings that have no gradient in a step stay as they are, moments too; a step then costs what its rows cost",
    ),
];

/// `learning_rate`.
pub(super) const LEARNING_RATE: Field = Field::optional(
    "learning_rate",
    Kind::Either(&[Kind::AT_LEAST_ZERO, Kind::Component(Family::Schedule)]),
    "step size: a number, or a schedule that changes it over time",
);

/// A predicate over paths of variables.
#[derive(Clone)]
pub(super) struct Excluded(Arc<dyn Fn(&str) -> bool + Send + Sync>);

impl Default for Options {
    /// Nothing around the rule.
    fn default() -> Self {
        Self {
            clipnorm: None,
            clipvalue: None,
            global_clipnorm: None,
            weight_decay: None,
            exclude_from_weight_decay: Vec::new(),
            learning_rate_factors: BTreeMap::new(),
            gradient_accumulation_steps: None,
            use_ema: false,
            ema_momentum: 0.99,
            ema_overwrite_frequency: None,
            lazy: false,
            excluded: None,
        }
    }
}

/// What is done around the rule; the setters are methods of the optimizer.
impl Optimizer {
    /// Scales the gradient of each variable down to this L2 norm.
    #[must_use]
    pub fn clipnorm(self, norm: f64) -> Self {
        self.with(|options| options.clipnorm = Some(norm))
    }

    /// Clips each element of the gradients to `-value..value`.
    #[must_use]
    pub fn clipvalue(self, value: f64) -> Self {
        self.with(|options| options.clipvalue = Some(value))
    }

    /// Scales all gradients down together to this L2 norm.
    #[must_use]
    pub fn global_clipnorm(self, norm: f64) -> Self {
        self.with(|options| options.global_clipnorm = Some(norm))
    }

    /// Takes `rate * learning_rate` of each variable off it before each update (decoupled decay).
    #[must_use]
    pub fn weight_decay(self, rate: f64) -> Self {
        self.with(|options| options.weight_decay = Some(rate))
    }

    /// Keeps variables whose path contains one of these texts from decaying.
    ///
    /// Keras looks for them, as regular expressions, in the last part of the path only.
    #[must_use]
    pub fn exclude_from_weight_decay<T: Into<String>>(
        self,
        texts: impl IntoIterator<Item = T>,
    ) -> Self {
        let texts: Vec<String> = texts.into_iter().map(Into::into).collect();
        self.with(|options| options.exclude_from_weight_decay.extend(texts))
    }

    /// Keeps variables whose path the predicate holds for from decaying; lost in configurations.
    #[must_use]
    pub fn exclude_from_weight_decay_if(
        self,
        excluded: impl Fn(&str) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.with(|options| options.excluded = Some(Excluded(Arc::new(excluded))))
    }

    /// Multiplies the learning rate by `factor` for variables whose path contains this text, and so their decay: PyTorch's groups of
    /// parameters with rates of their own. A variable that several texts are in has the product of their factors. Not in Keras.
    #[must_use]
    pub fn learning_rate_factor(self, text: impl Into<String>, factor: f64) -> Self {
        let text = text.into();
        self.with(|options| {
            options.learning_rate_factors.insert(text, factor);
        })
    }

    /// Averages the gradients of this many batches (at least 2) into one update.
    ///
    /// Slots and variables keep still in between. Bias corrections count updates, schedules batches. Replicas and
    /// worker processes exchange their sums once an update, unless a loss scale skips steps.
    #[must_use]
    pub fn gradient_accumulation(self, steps: u64) -> Self {
        self.with(|options| options.gradient_accumulation_steps = Some(steps))
    }

    /// Keeps an average of each variable: `momentum * average + (1 - momentum) * variable`, from the
    /// variables after the first update on. With [accumulated](Self::gradient_accumulation) gradients Keras averages in every batch.
    #[must_use]
    pub fn ema(self, momentum: f64) -> Self {
        self.with(|options| (options.use_ema, options.ema_momentum) = (true, momentum))
    }

    /// Replaces the variables by their averages every `updates` updates.
    #[must_use]
    pub fn ema_overwrite_frequency(self, updates: u64) -> Self {
        self.with(|options| options.ema_overwrite_frequency = Some(updates))
    }

    /// Leaves rows of embeddings alone that have no gradient in a step: see [`Options::lazy`].
    ///
    /// SGD without momentum and Adagrad do so in any case, since it is what they compute.
    #[must_use]
    pub fn lazy(self) -> Self {
        self.with(|options| options.lazy = true)
    }

    /// Refuses a text of the factors that is in none of these paths of variables.
    pub(crate) fn check_factors(&self, paths: &[&str]) -> crate::Result<()> {
        let mut texts = self.options.learning_rate_factors.keys();
        let Some(text) = texts.find(|text| !paths.iter().any(|path| path.contains(text.as_str())))
        else {
            return Ok(());
        };
        let some = paths[..paths.len().min(4)].join("`, `");
        Err(Error::user(format!(
            "{}: `learning_rate_factors` has `{text}`, which is in the path of no variable; write a part of a path, such as of `{some}`",
            self.kind()
        )))
    }

    /// The same without clipping by norms: for whoever clips the gradients before.
    pub(crate) fn without_norm_clipping(self) -> Self {
        self.with(|options| (options.clipnorm, options.global_clipnorm) = (None, None))
    }

    fn with(mut self, set: impl FnOnce(&mut Options)) -> Self {
        set(&mut self.options);
        self
    }
}

impl Options {
    /// What a variable has slots of, beside the rule's: its accumulated gradient and its average.
    pub(super) const SLOTS: [&str; 2] = ["accumulated_gradient", "average"];

    pub(super) const fn accumulates(&self) -> bool {
        self.gradient_accumulation_steps.is_some()
    }

    pub(super) fn check(&self) -> Result<(), String> {
        let clips = [
            ("clipnorm", self.clipnorm),
            ("clipvalue", self.clipvalue),
            ("global_clipnorm", self.global_clipnorm),
        ];
        let set = clips.iter().filter(|(_, limit)| limit.is_some());
        let set: Vec<&str> = set.map(|(name, _)| *name).collect();
        if set.len() > 1 {
            let names = set.join("` and `");
            return Err(format!("`{names}` exclude each other; keep one"));
        }
        for (name, limit) in clips {
            limit.map_or(Ok(()), |limit| config::above_zero(name, limit))?;
        }
        if let Some(rate) = self.weight_decay {
            config::at_least_zero("weight_decay", rate)?;
        }
        for (text, factor) in &self.learning_rate_factors {
            config::at_least_zero(&format!("learning_rate_factors` of `{text}"), *factor)?;
        }
        if let Some(steps @ 0..2) = self.gradient_accumulation_steps {
            return Err(format!(
                "`gradient_accumulation_steps` must be at least 2, got {steps}; leave it out to update at every batch"
            ));
        }
        if self.lazy && (self.use_ema || self.accumulates()) {
            return Err(
                "`lazy` leaves rows alone, which `use_ema` and `gradient_accumulation_steps` change in every step; leave one out"
                    .to_owned(),
            );
        }
        config::fraction("ema_momentum", self.ema_momentum)?;
        match (self.ema_overwrite_frequency, self.use_ema) {
            (Some(0), _) => Err("`ema_overwrite_frequency` must be at least 1, got 0".to_owned()),
            (Some(_), false) => {
                Err("`ema_overwrite_frequency` needs `use_ema`; set it to true".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// The defaults of a rule.
    pub(super) fn of(rule: &Rule) -> Self {
        Self {
            weight_decay: rule.inner().weight_decay(),
            ..Self::default()
        }
    }

    pub(crate) fn decays(&self, param: &ParamSpec) -> bool {
        let texts = &self.exclude_from_weight_decay;
        let named = texts
            .iter()
            .any(|text| param.path().contains(text.as_str()));
        let excluded = self.excluded.as_ref();
        !named && !excluded.is_some_and(|Excluded(holds)| holds(&param.name))
    }

    /// What the learning rate of a variable is multiplied by.
    pub(super) fn rate_factor(&self, spec: &ParamSpec) -> f64 {
        let factors = self.learning_rate_factors.iter();
        let own = factors.filter(|(text, _)| spec.path().contains(text.as_str()));
        own.map(|(_, factor)| *factor).product()
    }

    pub(super) fn clip(&self, gradients: Vec<Tensor>) -> Vec<Tensor> {
        if let Some(limit) = self.clipvalue {
            return gradients.iter().map(|g| g.clamp(-limit, limit)).collect();
        }
        if let Some(limit) = self.clipnorm {
            return gradients
                .iter()
                .map(|g| g * shrink_or_spoil(&g.square().sum_all().sqrt(), limit))
                .collect();
        }
        match self.global_clipnorm {
            Some(limit) => clip_together(&gradients, limit),
            None => gradients,
        }
    }
}

/// The factor that takes a vector of this norm down to `limit`.
fn shrink(norm: &Tensor, limit: f64) -> Tensor {
    limit / norm.maximum(&norm.like(limit))
}

/// The same; an infinite norm makes the gradients NaN, as in Keras, so that it is seen: they would become 0 without a word.
fn shrink_or_spoil(norm: &Tensor, limit: f64) -> Tensor {
    shrink(norm, limit) + norm * 0.0
}

fn clip_together(gradients: &[Tensor], limit: f64) -> Vec<Tensor> {
    let squares = gradients.iter().map(|g| g.square().sum_all());
    let Some(total) = squares.reduce(|sum, square| sum + square) else {
        return Vec::new();
    };
    let factor = shrink_or_spoil(&total.sqrt(), limit);
    gradients.iter().map(|g| g * &factor).collect()
}

impl fmt::Debug for Excluded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a predicate")
    }
}

impl PartialEq for Excluded {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
