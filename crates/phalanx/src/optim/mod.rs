//! Optimizers: how gradients change variables, traced into the training step.
//!
//! An [`Optimizer`] is one update [`Rule`] and the [`Options`] every rule shares. A step goes
//! accumulate -> clip -> decay -> rule -> average, each stage mapping its slots to their next values.
//! Formulas follow Keras 3; each item documents where it differs.

mod adadelta;
mod adafactor;
mod adagrad;
mod adam;
mod adamax;
mod apply;
mod custom;
mod ftrl;
mod lamb;
mod lion;
mod moments;
mod muon;
mod nadam;
mod options;
mod rmsprop;
mod rule;
mod sgd;
mod touched_rows;

use phalanx_graph::{DType, Shape};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use adadelta::Adadelta;
pub use adafactor::Adafactor;
pub use adagrad::Adagrad;
pub use adam::{Adam, AdamW};
pub use adamax::Adamax;
pub use apply::Applied;
pub(crate) use apply::WindowPart;
pub use custom::CustomRule;
pub use ftrl::Ftrl;
pub use lamb::Lamb;
pub use lion::Lion;
pub use muon::Muon;
pub use nadam::Nadam;
pub use options::Options;
pub use rmsprop::RmsProp;
pub use rule::{Begun, Rule, Step, UpdateRule, Updated};
pub use sgd::Sgd;

use crate::Result;
use crate::config::{self, Component, Described, Entry, Field};
use crate::nn::{Constraint, Variable};
use crate::schedules::Schedule;

/// A variable to train.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamSpec {
    /// Its logical path: `dense/kernel`.
    pub name: String,
    /// Element type and dims.
    pub shape: Shape,
    /// What every update brings it back to.
    pub constraint: Option<Constraint>,
    /// The path of the variable of which this is a part, where one is cut.
    pub(crate) part_of: Option<String>,
}

impl ParamSpec {
    /// A variable that is kept to nothing.
    #[must_use]
    pub fn new(name: impl Into<String>, shape: Shape) -> Self {
        Self {
            name: name.into(),
            shape,
            constraint: None,
            part_of: None,
        }
    }

    /// The path by which settings name it.
    fn path(&self) -> &str {
        self.part_of.as_ref().unwrap_or(&self.name)
    }

    /// A variable of a model as its optimizer knows it.
    pub(crate) fn of(variable: &Variable) -> Self {
        Self {
            name: variable.name.clone(),
            shape: variable.shape.clone(),
            constraint: variable.constraint.clone(),
            part_of: None,
        }
    }

    /// Whether its elements are brought back each by itself, if at all.
    pub(crate) fn is_kept_by_elements(&self) -> bool {
        (self.constraint.as_ref()).is_none_or(Constraint::is_elementwise)
    }

    /// Whether it is the table of an embedding, or a server's part of one: what gradients have rows for. Layers name it so.
    fn is_table(&self) -> bool {
        let mut names = self.name.rsplit('/');
        let is_last = |name: Option<&str>| name == Some("embeddings");
        match names.next() {
            Some(part) if part.starts_with("part_") => is_last(names.next()),
            last => is_last(last),
        }
    }
}

/// A tensor that the optimizer carries from step to step.
#[derive(Clone, Debug, PartialEq)]
pub struct SlotSpec {
    /// A unique name: `dense/kernel/momentum`, or `learning_rate`.
    pub name: String,
    /// Element type and dims.
    pub shape: Shape,
    /// What every element is before the first step.
    pub fill: f64,
    /// The variable it belongs to, by position; `None` for a slot of the whole optimizer.
    pub param: Option<usize>,
}

/// An update rule with clipping, weight decay, gradient accumulation and averaging around it; made from
/// one of the structs of this module with `.into()`, or of a rule of your own by [`custom`](Self::custom).
///
/// # Examples
/// ```
/// use phalanx::optim::{Adam, Optimizer};
/// let optimizer = Optimizer::from(Adam::new(1e-3)).clipnorm(1.0).weight_decay(0.01);
/// optimizer.check()?;
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Optimizer {
    rule: Rule,
    options: Options,
    replicas: usize,
}

impl Optimizer {
    /// The slot that holds the learning rate when the schedule is constant: writing it changes the rate
    /// of the next step. With another schedule there is no such slot.
    pub const LEARNING_RATE: &'static str = "learning_rate";

    /// An optimizer of a rule and its options.
    #[must_use]
    pub const fn new(rule: Rule, options: Options) -> Self {
        Self {
            rule,
            options,
            replicas: 1,
        }
    }

    /// The optimizer of a rule, with the options that it has unless others are set.
    fn of(rule: Rule) -> Self {
        let options = Options::of(&rule);
        Self::new(rule, options)
    }

    /// What the optimizer carries for these variables: its scalar slots, then the slots of each variable.
    #[must_use]
    pub fn slots(&self, params: &[ParamSpec]) -> Vec<SlotSpec> {
        let own = self.own_slots().into_iter().map(|(name, fill)| SlotSpec {
            name: name.to_owned(),
            shape: Shape::scalar(DType::F32),
            fill,
            param: None,
        });
        let each = params.iter().enumerate().flat_map(|(index, param)| {
            let slots = self.param_slots().into_iter();
            let dims = |name: &'static str| match Options::SLOTS.contains(&name) {
                true => param.shape.dims.clone(),
                false => self.rule.inner().slot_dims(name, param),
            };
            slots.map(move |(name, fill)| SlotSpec {
                name: format!("{}/{name}", param.name),
                shape: Shape::new(param.shape.dtype, dims(name)),
                fill,
                param: Some(index),
            })
        });
        own.chain(each).collect()
    }

    /// Positions in [`slots`](Self::slots) of the variables' averages, in order of the variables; empty
    /// without [`ema`](Self::ema).
    #[must_use]
    pub fn average_slots(&self, params: &[ParamSpec]) -> Vec<usize> {
        if !self.options.use_ema {
            return Vec::new();
        }
        let (own, each) = (self.own_slots().len(), self.param_slots().len());
        (1..=params.len()).map(|n| own + n * each - 1).collect()
    }

    /// Positions in [`slots`](Self::slots) of what is accumulated of the variables' gradients, in order of the variables; empty
    /// without [`gradient_accumulation`](Self::gradient_accumulation).
    pub(crate) fn accumulated_slots(&self, params: &[ParamSpec]) -> Vec<usize> {
        if !self.options.accumulates() {
            return Vec::new();
        }
        let (own, each) = (self.own_slots().len(), self.param_slots().len());
        let behind = 1 + usize::from(self.options.use_ema);
        (1..=params.len())
            .map(|n| own + n * each - behind)
            .collect()
    }

    /// The rate over time.
    #[must_use]
    pub fn learning_rate(&self) -> Schedule {
        let schedule = self.rule.inner().learning_rate().clone();
        schedule.for_replicas(self.replicas)
    }

    /// The number of replicas that a schedule scales its maximum by.
    pub(crate) const fn replicas(&self) -> usize {
        self.replicas
    }

    /// The optimizer with the number of replicas that a schedule scales its maximum by.
    #[must_use]
    pub const fn for_replicas(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        self
    }

    /// What is done around the rule.
    #[must_use]
    pub const fn options(&self) -> &Options {
        &self.options
    }

    /// Whether every setting makes sense.
    ///
    /// # Errors
    /// [`Error::User`](crate::Error::User) naming the setting, what it must be and what it is.
    pub fn check(&self) -> Result<()> {
        let kind = self.kind();
        let named = |problem| crate::Error::user(format!("{kind}: {problem}"));
        self.rule.inner().learning_rate().check().map_err(|error| {
            let problem = match self.rule.inner().learning_rate() {
                Schedule::Constant(_) => error.to_string(),
                _ => format!("`learning_rate`: {error}"),
            };
            named(problem)
        })?;
        if let Rule::Custom(rule) = &self.rule {
            rule.check().map_err(named)?;
        }
        self.rule.inner().check().map_err(named)?;
        if self.options.lazy && !self.rule.inner().is_elementwise() {
            return Err(named(
                "`lazy` updates rows alone, and this rule needs whole variables; choose adam, or leave `lazy` out".to_owned(),
            ));
        }
        self.options.check().map_err(named)
    }

    /// Whether an element's update depends on that element's values alone, and rows or parts of the variable have their own of each slot.
    pub(crate) fn is_elementwise(&self, spec: &ParamSpec) -> bool {
        let slots = self.slots(std::slice::from_ref(spec));
        let mut own = slots.iter().filter(|slot| slot.param.is_some());
        self.rule.inner().is_elementwise() && own.all(|slot| slot.shape == spec.shape)
    }

    /// The name in logs and configurations; `adam` for AdamW too, which is Adam with weight decay.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        self.rule.inner().kind()
    }

    /// The settings of the rule and of the options, by their Keras names.
    #[must_use]
    pub fn config(&self) -> Value {
        let mut settings = match &self.rule {
            Rule::Custom(rule) => rule.config(),
            rule => rule.inner().config(),
        };
        if let (Value::Object(fields), Value::Object(options)) =
            (&mut settings, config::write(self.kind(), &self.options))
        {
            fields.extend(options);
        }
        settings
    }

    /// The optimizer of a kind ([`Rule::KINDS`]) and its settings, absent ones as Keras' defaults.
    ///
    /// # Errors
    /// An unknown kind or field (naming the nearest), or a value that makes no sense.
    pub fn from_config(kind: &str, fields: &Value) -> Result<Self> {
        let optimizer = Rule::from_config(kind, fields)?;
        optimizer.check()?;
        Ok(optimizer)
    }

    /// Name and fill of the slots of the whole optimizer.
    fn own_slots(&self) -> Vec<(&'static str, f64)> {
        let mut slots = Vec::new();
        if let Schedule::Constant(rate) = self.rule.inner().learning_rate() {
            slots.push((Self::LEARNING_RATE, *rate));
        }
        slots.extend(self.rule.inner().own_slots());
        slots
    }

    /// Name and fill of the slots of each variable.
    fn param_slots(&self) -> Vec<(&'static str, f64)> {
        let mut slots = self.rule.inner().slots();
        if self.options.accumulates() {
            slots.push((Options::SLOTS[0], 0.0));
        }
        if self.options.use_ema {
            slots.push((Options::SLOTS[1], 0.0));
        }
        slots
    }
}

/// A rule and the options it is configured with, in one JSON object.
#[derive(Clone, Serialize, Deserialize)]
struct OptimizerSettings<R> {
    #[serde(flatten)]
    rule: R,
    #[serde(flatten)]
    options: Options,
}

impl<R: Described> Described for OptimizerSettings<R> {
    const COMPONENT: Component = R::COMPONENT;
    const SHARED: &'static [Field] = options::EVERY_OPTIMIZER;
}

impl<R: Described + Into<Rule> + Clone + 'static> OptimizerSettings<R> {
    fn entry(rule: R) -> Entry<Optimizer> {
        let options = Options::of(&rule.clone().into());
        Entry::with(R::COMPONENT, Self { rule, options }, Self::optimizer)
    }

    fn optimizer(self) -> Optimizer {
        Optimizer::new(self.rule.into(), self.options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_graph::Graph;
    use serde_json::json;

    fn params() -> Vec<ParamSpec> {
        let param = |name: &str, dims: &[usize]| ParamSpec::new(name, Shape::f32(dims));
        vec![param("dense/kernel", &[3, 2]), param("dense/bias", &[2])]
    }

    #[test]
    fn adamw_is_adam_with_its_weight_decay() {
        let adamw = Optimizer::from(AdamW::new(0.1).weight_decay(0.02));
        assert_eq!(adamw.options().weight_decay, Some(0.02));
        assert_eq!(
            Optimizer::from(AdamW::new(0.1)).options().weight_decay,
            Some(0.004)
        );
    }

    #[test]
    fn configurations_round_trip() {
        let fields = json!({
            "learning_rate": {"kind": "cosine_decay", "initial_learning_rate": 0.1, "decay_steps": 9},
            "weight_decay": 0.1,
            "exclude_from_weight_decay": ["bias"],
            "gradient_accumulation_steps": 4,
            "use_ema": true,
            "ema_overwrite_frequency": 3,
            "global_clipnorm": 1.0,
        });
        for kind in Rule::KINDS {
            let optimizer = Optimizer::from_config(kind, &fields).unwrap();
            let again = Optimizer::from_config(optimizer.kind(), &optimizer.config()).unwrap();
            assert_eq!(format!("{optimizer:?}"), format!("{again:?}"));
        }
    }

    #[test]
    fn a_configured_optimizer_is_the_built_one() {
        let built: Optimizer = AdamW::new(0.01).weight_decay(0.1).beta_2(0.95).into();
        let built = built.learning_rate_factor("head", 10.0);
        let mut fields = json!({"learning_rate": 0.01, "weight_decay": 0.1, "beta_2": 0.95});
        fields["learning_rate_factors"] = json!({"head": 10.0});
        let read = Optimizer::from_config("adamw", &fields).unwrap();
        assert_eq!(format!("{built:?}"), format!("{read:?}"));
    }

    /// A kind, its settings as JSON, and what is said of them.
    const BAD_SETTINGS: [(&str, &str, &str); 11] = [
        ("adm", "{}", "unknown optimizer `adm`; did you mean `adam`?"),
        (
            "sgd",
            r#"{"momentun": 0.9}"#,
            "sgd: unknown field `momentun`; did you mean `momentum`?",
        ),
        (
            "sgd",
            r#"{"momentum": 1.0}"#,
            "sgd: `momentum` must be a number of at least 0 and below 1, got 1",
        ),
        (
            "sgd",
            r#"{"learning_rate": -1}"#,
            "sgd: `learning_rate` must be a number of at least 0, or a schedule, got -1",
        ),
        (
            "adam",
            r#"{"epsilon": 0}"#,
            "adam: `epsilon` must be a number above 0, got 0",
        ),
        (
            "ftrl",
            r#"{"learning_rate_power": 0.5}"#,
            "at most 0, got 0.5",
        ),
        (
            "lion",
            r#"{"clipnorm": 1, "clipvalue": 1}"#,
            "`clipnorm` and `clipvalue` exclude each other; keep one",
        ),
        (
            "lion",
            r#"{"gradient_accumulation_steps": 1}"#,
            "must be a whole number of at least 2, got 1",
        ),
        (
            "lion",
            r#"{"ema_overwrite_frequency": 2}"#,
            "needs `use_ema`; set it to true",
        ),
        (
            "lamb",
            r#"{"learning_rate": {"kind": "cosine"}}"#,
            "did you mean `cosine_decay`?",
        ),
        (
            "adagrad",
            "[1]",
            "adagrad: expected fields with values, got [1]",
        ),
    ];

    #[test]
    fn bad_settings_are_named() {
        for (kind, fields, expected) in BAD_SETTINGS {
            let fields = serde_json::from_str(fields).unwrap();
            let error = Optimizer::from_config(kind, &fields).unwrap_err();
            let message = error.to_string();
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn slots_are_named_by_their_variables() {
        let optimizer = Optimizer::from(Nadam::default()).ema(0.9);
        let slots = optimizer.slots(&params());
        let names: Vec<&str> = slots.iter().map(|slot| slot.name.as_str()).collect();
        let expected = [
            "learning_rate",
            "momentum_product",
            "dense/kernel/momentum",
            "dense/kernel/velocity",
            "dense/kernel/average",
            "dense/bias/momentum",
            "dense/bias/velocity",
            "dense/bias/average",
        ];
        assert_eq!(names, expected);
        assert_eq!(optimizer.average_slots(&params()), [4, 7]);
        assert_eq!((slots[1].fill, slots[2].fill), (1.0, 0.0));
        assert_eq!((slots[1].param, slots[7].param), (None, Some(1)));
    }

    #[test]
    fn variables_are_excluded_from_decay_by_text_and_by_predicate() {
        let optimizer = Optimizer::from(Sgd::default()).weight_decay(0.1);
        let decays = |optimizer: &Optimizer| -> Vec<bool> {
            params()
                .iter()
                .map(|param| optimizer.options.decays(param))
                .collect()
        };
        assert_eq!(decays(&optimizer), [true, true]);
        let named = optimizer.clone().exclude_from_weight_decay(["bias"]);
        assert_eq!(decays(&named), [true, false]);
        let within = optimizer.clone().exclude_from_weight_decay(["/"]);
        assert_eq!(decays(&within), [false, false]);
        let chosen = optimizer.exclude_from_weight_decay_if(|name| name.ends_with("kernel"));
        assert_eq!(decays(&chosen), [false, true]);
    }

    #[test]
    fn tensors_that_do_not_fit_are_the_graphs_error() {
        let graph = Graph::new();
        let iterations = graph.parameter("iterations", Shape::scalar(DType::I64));
        let params = params();
        let values: Vec<_> = params
            .iter()
            .map(|p| graph.parameter(&p.name, p.shape.clone()))
            .collect();
        let optimizer = Optimizer::from(Sgd::default());
        let _ = optimizer.apply(&params, &iterations, &values, &values, &[]);
        let error = graph.error().expect("an error").to_string();
        let expected = "expected 2 variables, 2 gradients and 1 slots, got 2, 2 and 0";
        assert!(error.contains(expected), "{error}");
    }
}
