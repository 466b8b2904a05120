//! One optimizer step, graph to graph: accumulate, clip, decay, update, average.

use phalanx_graph::{DType, Tensor};

use super::rule::{Begun, Step};
use super::touched_rows::{TouchedRows, rows_with_gradient};
use super::{Optimizer, ParamSpec};
use crate::schedules::Schedule;

/// Everything an optimizer step changes.
#[derive(Clone, Debug)]
pub struct Applied {
    /// The next value of each variable.
    pub params: Vec<Tensor>,
    /// The next value of each slot, in the order of [`Optimizer::slots`].
    pub slots: Vec<Tensor>,
}

/// One variable on its way through the stages.
struct Item<'a> {
    spec: &'a ParamSpec,
    param: Tensor,
    gradient: Tensor,
    slots: Vec<Tensor>,
    accumulated: Option<Tensor>,
    average: Option<Tensor>,
    updates: Updates,
}

/// What a step changes of a variable and its slots.
enum Updates {
    Whole,
    /// Some rows alone; the gradient is theirs.
    Rows(TouchedRows),
    /// All is computed, and rows without a gradient stay as they are: whether an element's row has one.
    Where(Tensor),
}

/// Which batch of a window of accumulated ones a step is for. Without accumulation every step is `Counted`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WindowPart {
    /// The program finds out by its count of batches.
    Counted,
    /// Not the last one: its gradients are added to those before it.
    Inner,
    /// The last one; the gradients that are given are the sums of the window, and the accumulated ones start again.
    Last,
}

/// The counts of a step: i64 and `Bool` scalars.
struct Clock {
    /// Updates done before this batch.
    updates: Tensor,
    /// Whether this batch ends in an update; `None` when each does.
    is_update: Option<Tensor>,
    part: WindowPart,
}

impl Optimizer {
    /// Traces one step: variables and slots after it, from those before it and the gradients.
    ///
    /// `specs`, `params` and `gradients` are in one order, `slots` in the order of [`slots`](Self::slots).
    /// `iterations` is the i64 scalar of batches seen, from 0; gradients are already reduced over the
    /// replicas. Bad settings and wrong numbers of tensors become the graph's error.
    #[must_use]
    #[track_caller]
    pub fn apply(
        &self,
        specs: &[ParamSpec],
        iterations: &Tensor,
        params: &[Tensor],
        gradients: &[Tensor],
        slots: &[Tensor],
    ) -> Applied {
        self.apply_scaled(specs, iterations, params, gradients, (slots, None))
    }

    /// As [`apply`](Self::apply), with a factor for each gradient where others have found out by how much it is to be clipped.
    #[track_caller]
    pub(crate) fn apply_scaled(
        &self,
        specs: &[ParamSpec],
        iterations: &Tensor,
        params: &[Tensor],
        gradients: &[Tensor],
        (slots, factors): (&[Tensor], Option<&[Tensor]>),
    ) -> Applied {
        let step = (WindowPart::Counted, iterations);
        self.traced(specs, step, params, gradients, (slots, factors))
    }

    /// As [`apply`](Self::apply), in a step of which the caller knows which part of a window of accumulated batches it is.
    #[track_caller]
    pub(crate) fn apply_in_window(
        &self,
        specs: &[ParamSpec],
        step: (WindowPart, &Tensor),
        params: &[Tensor],
        gradients: &[Tensor],
        slots: &[Tensor],
    ) -> Applied {
        self.traced(specs, step, params, gradients, (slots, None))
    }

    #[track_caller]
    fn traced(
        &self,
        specs: &[ParamSpec],
        (part, iterations): (WindowPart, &Tensor),
        params: &[Tensor],
        gradients: &[Tensor],
        (slots, factors): (&[Tensor], Option<&[Tensor]>),
    ) -> Applied {
        if let Err(problem) = self.check_inputs(specs, params, gradients, slots) {
            iterations.graph().fail(self.kind(), problem);
            return Applied {
                params: params.to_vec(),
                slots: slots.to_vec(),
            };
        }
        let (own, each) = slots.split_at(self.own_slots().len());
        let clock = self.clock(part, iterations);
        let rate = self.rate(iterations, own);
        let rule_slots = &own[own.len() - self.rule.inner().own_slots().len()..];
        let step = Step {
            rate,
            number: clock.updates.convert(DType::F32) + 1.0,
            own_slots: rule_slots.to_vec(),
        };
        let begun = self.begun(&step);
        let mut items = self.items(specs, params, gradients, each);
        self.accumulate(&mut items, &clock);
        if clock.part != WindowPart::Inner {
            self.clip(&mut items, factors);
            self.decay_and_update(&mut items, &step, &clock, &begun);
        }
        self.average(&mut items, &clock);
        let own_after = own_slots_after(own, rule_slots, &begun, &clock);
        collect(own_after, items)
    }

    fn check_inputs(
        &self,
        specs: &[ParamSpec],
        params: &[Tensor],
        gradients: &[Tensor],
        slots: &[Tensor],
    ) -> Result<(), String> {
        self.check().map_err(|error| error.to_string())?;
        let count = specs.len();
        let expected = self.slots(specs).len();
        if (params.len(), gradients.len(), slots.len()) != (count, count, expected) {
            return Err(format!(
                "expected {count} variables, {count} gradients and {expected} slots, got {}, {} and {}",
                params.len(),
                gradients.len(),
                slots.len()
            ));
        }
        let tensors = params.iter().zip(gradients).zip(specs);
        for ((param, gradient), spec) in tensors {
            if param.shape() != spec.shape || gradient.dims() != spec.shape.dims {
                return Err(format!(
                    "variable `{}` is {}, got the variable {} and the gradient {}",
                    spec.name,
                    spec.shape,
                    param.shape(),
                    gradient.shape()
                ));
            }
            if self.is_lazy(spec) && !self.is_elementwise(spec) {
                return Err(format!(
                    "`lazy` updates rows alone, and a slot of `{}` has other dims than its {:?}; leave `lazy` out",
                    spec.name, spec.shape.dims
                ));
            }
        }
        Ok(())
    }

    fn clock(&self, part: WindowPart, iterations: &Tensor) -> Clock {
        match self.options.gradient_accumulation_steps {
            None => Clock {
                updates: iterations.clone(),
                is_update: None,
                part,
            },
            Some(steps) => {
                let next = iterations + 1.0;
                let remainder = next.remainder(&next.like(steps as f64));
                Clock {
                    updates: iterations / steps as f64,
                    is_update: Some(remainder.equal(&next.like(0.0))),
                    part,
                }
            }
        }
    }

    fn rate(&self, iterations: &Tensor, own: &[Tensor]) -> Tensor {
        match self.learning_rate() {
            Schedule::Constant(_) => own[0].clone(),
            schedule => schedule.trace(iterations),
        }
    }

    fn items<'a>(
        &self,
        specs: &'a [ParamSpec],
        params: &[Tensor],
        gradients: &[Tensor],
        slots: &[Tensor],
    ) -> Vec<Item<'a>> {
        let each = self.param_slots().len();
        let tensors = specs.iter().zip(params).zip(gradients);
        let items = tensors.enumerate().map(|(i, ((spec, param), gradient))| {
            let mut slots = slots[i * each..(i + 1) * each].to_vec();
            let average = self.options.use_ema.then(|| slots.pop()).flatten();
            let accumulated = self.options.accumulates().then(|| slots.pop()).flatten();
            let gradient = gradient.convert(param.dtype());
            let updates = self.updates(spec, &gradient);
            Item {
                spec,
                param: param.clone(),
                gradient: match &updates {
                    Updates::Rows(rows) => rows.gradient.clone(),
                    Updates::Whole | Updates::Where(_) => gradient,
                },
                slots,
                accumulated,
                average,
                updates,
            }
        });
        items.collect()
    }

    /// Whether some rows of a table can be updated by themselves: nothing else changes, and nothing else is looked at.
    pub(crate) fn is_by_rows(&self, spec: &ParamSpec) -> bool {
        let clips = self.options.clipnorm.is_some() || self.options.global_clipnorm.is_some();
        self.updates_rows(spec) && self.is_elementwise(spec) && spec.constraint.is_none() && !clips
    }

    /// Whether rows without a gradient are left alone, be it that the rule would not change them.
    fn updates_rows(&self, spec: &ParamSpec) -> bool {
        let decays = self.options.weight_decay.is_some() && self.options.decays(spec);
        let keeps = self.rule.inner().keeps_what_has_no_gradient();
        let changes_nothing = self.is_elementwise(spec) && keeps && !decays;
        let changes_all = self.options.use_ema || self.options.accumulates();
        self.is_lazy(spec) || (changes_nothing && !changes_all)
    }

    /// Whether a step leaves rows alone that the rule would move. The name says so, since gradients come as rows or whole as the
    /// strategy has it.
    fn is_lazy(&self, spec: &ParamSpec) -> bool {
        self.options.lazy && spec.is_table()
    }

    /// What a step with this gradient changes. Whether rows are updated by themselves depends on the sizes of table and batch, and on how
    /// gradients came here; which rows a lazy step leaves alone must not.
    fn updates(&self, spec: &ParamSpec, gradient: &Tensor) -> Updates {
        let is_lazy = self.is_lazy(spec);
        let rows = self.updates_rows(spec).then(|| TouchedRows::of(gradient));
        match rows.flatten() {
            // Of a gradient that comes whole rows are along the first dim.
            Some(rows) if rows.dim == 0 || !is_lazy => Updates::Rows(rows),
            _ if is_lazy => Updates::Where(rows_with_gradient(gradient, 0)),
            _ => Updates::Whole,
        }
    }

    /// Averages the gradients of the accumulated batches; sums start again after an update.
    fn accumulate(&self, items: &mut [Item<'_>], clock: &Clock) {
        let (Some(steps), Some(is_update)) =
            (self.options.gradient_accumulation_steps, &clock.is_update)
        else {
            return;
        };
        for item in items {
            let Some(accumulated) = &mut item.accumulated else {
                continue;
            };
            let sum = match clock.part {
                WindowPart::Last => item.gradient.clone(),
                WindowPart::Inner | WindowPart::Counted => &item.gradient + &*accumulated,
            };
            *accumulated = match clock.part {
                WindowPart::Counted => is_update.select(&sum.like(0.0), &sum),
                WindowPart::Inner => sum.clone(),
                WindowPart::Last => sum.zeros_like(),
            };
            item.gradient = sum / steps as f64;
        }
    }

    fn clip(&self, items: &mut [Item<'_>], factors: Option<&[Tensor]>) {
        let gradients: Vec<Tensor> = items.iter().map(|item| item.gradient.clone()).collect();
        let clipped = match factors {
            Some(factors) => {
                let scaled = gradients.iter().zip(factors);
                scaled.map(|(gradient, factor)| gradient * factor).collect()
            }
            None => self.options.clip(gradients),
        };
        for (item, gradient) in items.iter_mut().zip(clipped) {
            item.gradient = gradient;
        }
    }

    fn begun(&self, step: &Step) -> Begun {
        let begun = self.rule.inner().begin(step);
        begun.checked(self.kind(), &step.own_slots)
    }

    /// The rate of a variable, and what a step at this rate begins with.
    fn at_own_rate(&self, spec: &ParamSpec, step: &Step, begun: &Begun) -> (Tensor, Begun) {
        let factor = self.options.rate_factor(spec);
        if factor == 1.0 {
            return (step.rate.clone(), begun.clone());
        }
        let step = Step {
            rate: &step.rate * factor,
            ..step.clone()
        };
        let begun = self.begun(&step);
        (step.rate, begun)
    }

    fn decay_and_update(&self, items: &mut [Item<'_>], step: &Step, clock: &Clock, begun: &Begun) {
        for item in items {
            let (rate, begun) = self.at_own_rate(item.spec, step, begun);
            let kept_of = |decay: f64| 1.0 - &rate * decay;
            let kept = self.options.weight_decay.map(kept_of);
            let dtype = item.param.dtype();
            let (param, slots) = item.updated();
            let kept = match self.rule.inner().own_decay(item.spec) {
                Some(own) => own.map(kept_of),
                None => kept,
            };
            let decayed = match kept {
                Some(kept) if self.options.decays(item.spec) => param * kept.convert(dtype),
                _ => param,
            };
            let scalars: Vec<Tensor> = begun.scalars.iter().map(|s| s.convert(dtype)).collect();
            let updated = self
                .rule
                .inner()
                .update(item.spec, &scalars, &decayed, &item.gradient, &slots)
                .checked(self.kind(), &decayed, &slots);
            let updated_param = item.replaced(&updated.param, &item.param);
            let updated_param = constrained(item.spec, &updated_param);
            item.param = clock.choose(&updated_param, &item.param);
            let slots = updated.slots.iter().zip(&item.slots);
            item.slots = slots
                .map(|(new, old)| clock.choose(&item.replaced(new, old), old))
                .collect();
        }
    }

    /// Averages the variables that have a gradient in this step.
    fn average(&self, items: &mut [Item<'_>], clock: &Clock) {
        if !self.options.use_ema {
            return;
        }
        for item in items {
            let Some(average) = &item.average else {
                continue;
            };
            let (param, average) = self.averaged(item.spec, clock, (&item.param, average));
            (item.param, item.average) = (param, Some(average));
        }
    }

    /// A variable that has no gradient in this step, and its average, after it: Keras averages all variables in each. `iterations` are as
    /// for [`apply`](Self::apply).
    #[track_caller]
    pub(crate) fn averaged_without_gradient(
        &self,
        spec: &ParamSpec,
        iterations: &Tensor,
        before: (&Tensor, &Tensor),
    ) -> (Tensor, Tensor) {
        let clock = self.clock(WindowPart::Counted, iterations);
        self.averaged(spec, &clock, before)
    }

    /// A variable after its update and its average, averaged, and overwritten where that is due.
    ///
    /// Keras keeps nothing of the averages while no update is counted, so they start as the variables. Within a window of accumulated
    /// batches averages and variables keep still, where Keras averages and overwrites in every batch.
    fn averaged(
        &self,
        spec: &ParamSpec,
        clock: &Clock,
        (param, average): (&Tensor, &Tensor),
    ) -> (Tensor, Tensor) {
        let started = has_begun(&clock.updates);
        let momentum = started.convert(DType::F32) * self.options.ema_momentum;
        let momentum = momentum.convert(param.dtype());
        let next = &momentum * average + (1.0 - &momentum) * param;
        // Averages are never without a value: before the first update they are the variables.
        let next = match &clock.is_update {
            Some(_) => started.select(&clock.choose(&next, average), &next),
            None => next,
        };
        let Some(frequency) = self.options.ema_overwrite_frequency else {
            return (param.clone(), next);
        };
        let number = &clock.updates + 1.0;
        let is_due = number.remainder(&number.like(frequency as f64));
        let is_due = is_due.equal(&number.like(0.0));
        let overwritten = is_due.select(&constrained(spec, &next), param);
        (clock.choose(&overwritten, param), next)
    }
}

/// Whether there was an update.
fn has_begun(updates: &Tensor) -> Tensor {
    updates.not_equal(&updates.like(0.0))
}

/// A variable brought back to what it is kept to.
fn constrained(spec: &ParamSpec, param: &Tensor) -> Tensor {
    match &spec.constraint {
        Some(constraint) => constraint.apply(param),
        None => param.clone(),
    }
}

impl Item<'_> {
    /// What a rule updates: the variable and its slots, or the rows of them that have a gradient.
    fn updated(&self) -> (Tensor, Vec<Tensor>) {
        let part = |whole: &Tensor| match &self.updates {
            Updates::Rows(rows) => rows.take(whole),
            Updates::Whole | Updates::Where(_) => whole.clone(),
        };
        (part(&self.param), self.slots.iter().map(part).collect())
    }

    /// The whole after an update of it, or of its rows.
    fn replaced(&self, new: &Tensor, old: &Tensor) -> Tensor {
        match &self.updates {
            Updates::Rows(rows) => rows.put(old, new),
            Updates::Where(touched) => touched.select(new, old),
            Updates::Whole => new.clone(),
        }
    }
}

impl Clock {
    /// `new` in a step that updates, else `old`; where both are the same, that itself, by which an update that there is not is known.
    fn choose(&self, new: &Tensor, old: &Tensor) -> Tensor {
        if new.value() == old.value() {
            return old.clone();
        }
        match (self.part, &self.is_update) {
            (WindowPart::Inner, _) => old.clone(),
            (WindowPart::Counted, Some(is_update)) => is_update.select(new, old),
            (WindowPart::Counted, None) | (WindowPart::Last, _) => new.clone(),
        }
    }
}

fn own_slots_after(
    own: &[Tensor],
    rule_slots: &[Tensor],
    begun: &Begun,
    clock: &Clock,
) -> Vec<Tensor> {
    let kept = own.len() - rule_slots.len();
    let changed = begun.own_slots.iter().zip(rule_slots);
    let changed = changed.map(|(new, old)| clock.choose(new, old));
    own[..kept].iter().cloned().chain(changed).collect()
}

fn collect(own: Vec<Tensor>, items: Vec<Item<'_>>) -> Applied {
    let (mut params, mut slots) = (Vec::with_capacity(items.len()), own);
    for item in items {
        params.push(item.param);
        slots.extend(item.slots);
        slots.extend(item.accumulated);
        slots.extend(item.average);
    }
    Applied { params, slots }
}
