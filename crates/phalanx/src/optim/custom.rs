//! Update rules of the program.

use std::sync::Arc;

use phalanx_graph::Tensor;
use serde_json::Value;

use super::rule::{Begun, UpdateRule, Updated};
use super::{Optimizer, Options, Rule, options};
use crate::schedules::Schedule;

/// An [`UpdateRule`] of the program; equal to another of the same kind with equal settings.
#[derive(Clone, Debug)]
pub struct CustomRule(Arc<dyn UpdateRule>);

impl PartialEq for CustomRule {
    fn eq(&self, other: &Self) -> bool {
        (self.0.kind(), self.config()) == (other.0.kind(), other.config())
    }
}

impl Optimizer {
    /// An optimizer of a rule of your own: see [`UpdateRule`].
    #[must_use]
    pub fn custom(rule: impl UpdateRule + 'static) -> Self {
        Self::of(Rule::Custom(CustomRule(Arc::new(rule))))
    }

    /// Whether the rule or its schedule is of the program, which alone can make it.
    pub(crate) fn is_custom(&self) -> bool {
        let schedule = self.rule.inner().learning_rate();
        matches!(self.rule, Rule::Custom(_)) || matches!(schedule, Schedule::Custom(_))
    }
}

impl CustomRule {
    pub(super) fn inner(&self) -> &dyn UpdateRule {
        &*self.0
    }

    /// The settings, the learning rate among them.
    pub(super) fn config(&self) -> Value {
        let mut settings = self.0.config();
        if let Value::Object(fields) = &mut settings {
            let rate = options::LEARNING_RATE.name.to_owned();
            fields.insert(rate, self.0.learning_rate().config());
        }
        settings
    }

    /// Whether names and settings can stand beside ours.
    pub(super) fn check(&self) -> Result<(), String> {
        if Rule::KINDS.contains(&self.0.kind()) {
            return Err("there is an optimizer of this kind already; call yours otherwise".into());
        }
        let settings = self.0.config();
        let Value::Object(fields) = &settings else {
            return Err(format!(
                "`config` must give an object of settings, got {settings}"
            ));
        };
        let shared = options::EVERY_OPTIMIZER.iter();
        if let Some(field) = shared
            .map(|field| field.name)
            .find(|name| fields.contains_key(*name))
        {
            return Err(format!(
                "`config` has the setting `{field}`, which every optimizer has; call yours otherwise"
            ));
        }
        check_names(&self.0.slots(), &Options::SLOTS)?;
        // The last two are a loss scale's.
        let taken = [Optimizer::LEARNING_RATE, "loss_scale", "skipped_steps"];
        check_names(&self.0.own_slots(), &taken)
    }
}

/// Refuses slots that could not be told apart in a checkpoint.
fn check_names(slots: &[(&'static str, f64)], taken: &[&str]) -> Result<(), String> {
    for (index, (name, _)) in slots.iter().enumerate() {
        let is_twice = slots[..index].iter().any(|(before, _)| before == name);
        if is_twice || taken.contains(name) {
            return Err(format!("there are two slots `{name}`; call one otherwise"));
        }
        if name.is_empty() || name.contains('/') {
            return Err(format!("a slot must have a name without `/`, got `{name}`"));
        }
    }
    Ok(())
}

impl Begun {
    /// What a rule has begun with, or the graph's error where its own slots are others than before.
    #[track_caller]
    pub(super) fn checked(self, kind: &str, own_slots: &[Tensor]) -> Self {
        if is_alike(&self.own_slots, own_slots) {
            return self;
        }
        if let Some(slot) = own_slots.first().or_else(|| self.scalars.first()) {
            let message = "`begin` must give as many own slots as there are, f32 scalars";
            slot.graph().fail(kind, message.to_owned());
        }
        Self {
            own_slots: own_slots.to_vec(),
            ..self
        }
    }
}

impl Updated {
    /// What a rule has made, or the graph's error where its shapes are others than before.
    #[track_caller]
    pub(super) fn checked(self, kind: &str, param: &Tensor, slots: &[Tensor]) -> Self {
        if self.param.shape() == param.shape() && is_alike(&self.slots, slots) {
            return self;
        }
        let shapes = |param: &Tensor, slots: &[Tensor]| {
            let slots: Vec<String> = slots.iter().map(|slot| slot.shape().to_string()).collect();
            format!(
                "the variable {} and the slots [{}]",
                param.shape(),
                slots.join(", ")
            )
        };
        let (expected, got) = (shapes(param, slots), shapes(&self.param, &self.slots));
        let message = format!("`update` must give {expected}, got {got}");
        param.graph().fail(kind, message);
        Self {
            param: param.clone(),
            slots: slots.to_vec(),
        }
    }
}

fn is_alike(new: &[Tensor], old: &[Tensor]) -> bool {
    let shapes = new
        .iter()
        .zip(old)
        .all(|(new, old)| new.shape() == old.shape());
    new.len() == old.len() && shapes
}
