//! Gradients of a loss, their sum over replicas, and what optimizers and metrics do with them.

use std::panic::Location;

use phalanx_graph::op::ReduceOp;
use phalanx_graph::{DType, Shape, Tensor, Value, batch_jacobian, gradients, jacobian};

use super::ReplicaCx;
use crate::fit::LossScale;
use crate::nn::Policy;
use crate::optim::ParamSpec;
use crate::strategy::state::{MetricRef, OptimizerRef, StateId};

/// A loss and the line that asks for its gradients.
#[derive(Clone, Debug)]
pub(in crate::strategy) struct DifferentiatedLoss {
    pub(super) value: Value,
    /// Where its gradients were asked for.
    pub(in crate::strategy) place: &'static Location<'static>,
    /// What it was differentiated by.
    pub(super) variables: Vec<Value>,
}

/// The gradients of a loss with respect to the variables of an optimizer.
#[derive(Clone, Debug)]
pub struct Gradients {
    state_id: StateId,
    optimizer: usize,
    loss: DifferentiatedLoss,
    /// None where the loss does not depend on the variable, which stays.
    values: Vec<Option<Tensor>>,
    names: Vec<String>,
    /// The loss scale and what it has carried, to scale them with on their way.
    loss_scale: LossScale,
    slots: Vec<Tensor>,
}

impl Gradients {
    /// Names of the variables and their gradients, without those the loss does not depend on.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        let all = self.names.iter().zip(&self.values);
        all.filter_map(|(name, value)| Some((name.as_str(), value.as_ref()?)))
    }

    /// Applies a function of the name of the variable and its gradient to each gradient.
    #[must_use]
    pub fn map(&self, mut change: impl FnMut(&str, &Tensor) -> Tensor) -> Self {
        let all = self.names.iter().zip(&self.values);
        let values = all.map(|(name, value)| value.as_ref().map(|value| change(name, value)));
        Self {
            values: values.collect(),
            ..self.clone()
        }
    }

    fn some(&self) -> Vec<Tensor> {
        self.values.iter().flatten().cloned().collect()
    }
}

/// Learning.
impl ReplicaCx<'_> {
    /// This replica's gradients of a loss, before any all-reduce, with respect to the variables of an optimizer. They are
    /// the loss's own, whatever the loss scale.
    ///
    /// A warning names variables that the loss does not depend on; they stay as they are. It is a mistake when it depends on
    /// none: it was not computed from the models, or an optimizer has changed their variables since.
    #[must_use]
    #[track_caller]
    pub fn gradients(&mut self, loss: &Tensor, optimizer: &OptimizerRef) -> Gradients {
        let mut found = Gradients {
            state_id: optimizer.state_id.clone(),
            optimizer: optimizer.first,
            loss: DifferentiatedLoss {
                value: loss.value(),
                place: Location::caller(),
                variables: Vec::new(),
            },
            values: vec![None; optimizer.params.len()],
            names: optimizer
                .params
                .iter()
                .map(|(spec, _)| spec.name.clone())
                .collect(),
            loss_scale: optimizer.loss_scale.unwrap_or(LossScale::Off),
            slots: Vec::new(),
        };
        if !self.owns(
            &optimizer.state_id,
            &format!("the optimizer of {}", optimizer.models()),
        ) {
            return found;
        }
        let mut variables = Vec::with_capacity(optimizer.params.len());
        for (_, entry) in &*optimizer.params {
            variables.push(self.root(*entry));
        }
        let wanted: Vec<&Tensor> = variables.iter().collect();
        self.check_loss_scale(optimizer);
        let (scale, slots) = (found.loss_scale, self.scale_slots(optimizer));
        let unscaled = gradients(&scale.scaled(loss, &slots), &wanted).into_iter();
        found.values = unscaled
            .map(|gradient| scale.unscaled(gradient.into_iter().collect(), &slots).pop())
            .collect();
        found.slots = slots;
        found.loss.variables = variables.iter().map(Tensor::value).collect();
        let lost = found.names.iter().zip(&found.values);
        let lost: Vec<&String> = lost
            .filter(|(_, g)| g.is_none())
            .map(|(name, _)| name)
            .collect();
        if lost.len() == found.values.len() {
            let models = optimizer.models();
            self.graph.fail("gradients", format!(
                "the loss depends on no trainable variable of {models}: compute it from what `train` or `call` of this model gave in this function, before an optimizer is applied to it"
            ));
        }
        self.warnings.extend(lost.into_iter().map(|name| format!(
            "warning: the loss does not depend on variable `{name}`, so it is not trained; freeze its layer if that is meant"
        )));
        found
    }

    /// Half precision without a word about the loss scale would train on gradients that were rounded to 0.
    #[track_caller]
    fn check_loss_scale(&self, optimizer: &OptimizerRef) {
        if self.policy == Policy::MixedFloat16 && optimizer.loss_scale.is_none() {
            self.graph.fail("gradients", format!(
                "the function computes in half precision, where small gradients round to 0, and the optimizer of {} has no loss scale; add it with `add_optimizer_with` and `LossScale::DYNAMIC`, or `LossScale::Off` to go without",
                optimizer.models()
            ));
        }
    }

    /// The present values of what the loss scale carries from step to step.
    #[track_caller]
    fn scale_slots(&mut self, optimizer: &OptimizerRef) -> Vec<Tensor> {
        let entries = optimizer.scale_entries();
        let mut slots = Vec::with_capacity(entries.len());
        for entry in entries {
            slots.push(self.read(entry));
        }
        slots
    }

    /// Undoes what a step has changed of an optimizer's models since the step before it, where its gradients are not all finite, and
    /// moves on its scale.
    #[track_caller]
    fn skip_unless_finite(&mut self, optimizer: &OptimizerRef, gradients: &[Tensor]) {
        let slots = self.scale_slots(optimizer);
        let scale = optimizer.loss_scale.unwrap_or(LossScale::Off);
        let Some(check) = scale.finite_check(gradients, &[], &slots) else {
            return;
        };
        let caller = Location::caller();
        for entry in self.set_by(optimizer) {
            let before = self.settled.get(&entry);
            let before = before.unwrap_or(&self.originals[&entry]);
            let kept = check.finite.select(&self.values[&entry], before);
            self.write(entry, &kept, caller);
        }
        for (entry, value) in optimizer.scale_entries().zip(check.slots) {
            self.write(entry, &value, caller);
        }
    }

    /// The entries of an optimizer and its models, without the loss scale's, that were set.
    fn set_by(&self, optimizer: &OptimizerRef) -> Vec<usize> {
        let of_models = optimizer.models.iter().flat_map(|model| {
            let count = model.model.variables().len();
            model.first..model.first + count
        });
        let entries = of_models.chain(optimizer.first..optimizer.scale_entries().start);
        entries
            .filter(|entry| self.set.contains_key(entry))
            .collect()
    }

    /// The gradients of a loss with respect to any tensors it was computed from: inputs, say, or
    /// [`variables`](Self::variables).
    ///
    /// It is a mistake when the loss does not depend on one of them.
    #[must_use]
    #[track_caller]
    pub fn derivatives(&self, loss: &Tensor, wrt: &[&Tensor]) -> Vec<Tensor> {
        let found = gradients(loss, wrt);
        self.connected(("derivatives", "loss"), found, wrt, Tensor::dims)
    }

    /// The derivative of each element of `target` with respect to tensors that it was computed from, `[dims of the target.., dims of the
    /// tensor..]`, of this replica's rows: TensorFlow's `GradientTape.jacobian`. One loop of the program goes over the elements.
    ///
    /// It is a mistake when the target does not depend on one of them.
    #[must_use]
    #[track_caller]
    pub fn jacobian(&self, target: &Tensor, wrt: &[&Tensor]) -> Vec<Tensor> {
        let dims = |x: &Tensor| [target.dims(), x.dims()].concat();
        self.connected(("jacobian", "target"), jacobian(target, wrt), wrt, dims)
    }

    /// The derivative of each element of `target`, `[rows, ..]`, with respect to its own row of tensors, `[rows, ..]`: `[rows, other dims of
    /// the target.., other dims of the tensor..]`. TensorFlow's `GradientTape.batch_jacobian`, where no row depends on another row, which
    /// is not checked.
    ///
    /// It is a mistake when the target does not depend on one of them.
    #[must_use]
    #[track_caller]
    pub fn batch_jacobian(&self, target: &Tensor, wrt: &[&Tensor]) -> Vec<Tensor> {
        let found = batch_jacobian(target, wrt);
        let dims =
            |x: &Tensor| [&target.dims()[..], x.dims().get(1..).unwrap_or_default()].concat();
        self.connected(("batch_jacobian", "target"), found, wrt, dims)
    }

    /// Notes a tensor that has no derivative, and gives zeros of these dims in its place.
    #[track_caller]
    fn connected(
        &self,
        (name, what): (&'static str, &str),
        found: Vec<Option<Tensor>>,
        wrt: &[&Tensor],
        dims: impl Fn(&Tensor) -> Vec<usize>,
    ) -> Vec<Tensor> {
        let mut all = Vec::with_capacity(wrt.len());
        for (index, (found, tensor)) in found.into_iter().zip(wrt).enumerate() {
            if found.is_none() && self.graph.error().is_none() {
                let why = match tensor.dtype().is_float() {
                    true => "does not depend on it",
                    false => {
                        "cannot be differentiated with respect to a tensor that is not floating-point"
                    }
                };
                self.graph.fail(name, format!(
                    "the {what} {why}: tensor {index}, {}; compute the {what} from this very tensor",
                    tensor.shape()
                ));
            }
            all.push(found.unwrap_or_else(|| {
                let shape = Shape::new(tensor.dtype(), dims(tensor));
                tensor.graph().full(&shape, 0.0)
            }));
        }
        all
    }

    /// The sums over replicas of gradients, as the strategy reduces them. Where they travel narrowed they are scaled by the loss scale,
    /// which is for gradients that f16 would round to 0.
    ///
    /// It is a mistake where the loss is the same on all replicas: what was reduced to it is differentiated on each of them, and the sum is as many
    /// times its gradient as there are replicas; a warning tells of a term of which that holds. Ask for the gradients of
    /// [a share](Self::share) of it, or take their mean, which is its gradient too: `gradients.map(|_, own| cx.all_reduce_mean(own))`.
    #[must_use]
    #[track_caller]
    pub fn all_reduce_gradients(&mut self, gradients: &Gradients) -> Gradients {
        self.summed.push(gradients.loss.clone());
        let scale = match self.reduction.is_narrow() {
            true => gradients.loss_scale,
            false => LossScale::Off,
        };
        let own = gradients.some().into_iter();
        let own: Vec<Tensor> = own
            .map(|own| scale.scaled(&own, &gradients.slots))
            .collect();
        let sums = match self.replicas_in_sync() {
            // Of no effect, but a step without it is refused on one replica as on several.
            1 => own
                .iter()
                .map(|own| own.all_reduce(ReduceOp::Sum))
                .collect(),
            _ => self.reduction.sum(&own),
        };
        let mut sums = scale.unscaled(sums, &gradients.slots).into_iter();
        let values = gradients.values.iter();
        Gradients {
            values: values
                .map(|value| value.as_ref().and_then(|_| sums.next()))
                .collect(),
            ..gradients.clone()
        }
    }

    /// One step of an optimizer with gradients that are summed over replicas: clip, decay, update, average. With a dynamic
    /// loss scale ([`State::add_optimizer_with`](crate::strategy::State::add_optimizer_with)) a step whose gradients are not
    /// all finite changes nothing of its models.
    ///
    /// With variables on parameter servers the servers take the step when the function has ended: the function applies gradients
    /// once, and reads variables before.
    ///
    /// It is a mistake when the gradients belong to another optimizer, or differ between replicas.
    #[track_caller]
    pub fn apply(&mut self, optimizer: &OptimizerRef, gradients: &Gradients) {
        let models = optimizer.models();
        if !self.owns(&optimizer.state_id, &format!("the optimizer of {models}")) {
            return;
        }
        if !optimizer.state_id.is(&gradients.state_id) || optimizer.first != gradients.optimizer {
            let first = gradients.names.first().map_or("", String::as_str);
            return self.graph.fail("apply", format!(
                "the optimizer of {models} is given gradients that another asked for, of `{first}` and others; apply each optimizer to its own gradients"
            ));
        }
        if self.state.strategy.placement.servers().is_some() {
            return self.send(optimizer, &gradients.values);
        }
        let connected: Vec<usize> = (0..gradients.values.len())
            .filter(|&param| gradients.values[param].is_some())
            .collect();
        let slots = optimizer.optimizer.slots(&optimizer.specs());
        let kept: Vec<usize> = (0..slots.len())
            .filter(|&slot| slots[slot].param.is_none_or(|p| connected.contains(&p)))
            .collect();
        let (mut params, mut state) = (Vec::new(), Vec::new());
        for &param in &connected {
            params.push(self.read(optimizer.params[param].1));
        }
        for &slot in &kept {
            state.push(self.read(optimizer.first + 1 + slot));
        }
        let specs: Vec<ParamSpec> = connected
            .iter()
            .map(|&p| optimizer.params[p].0.clone())
            .collect();
        let iterations = self.read(optimizer.first);
        let given = gradients.some();
        let applied = optimizer
            .optimizer
            .apply(&specs, &iterations, &params, &given, &state);
        let caller = Location::caller();
        for (&param, value) in connected.iter().zip(applied.params) {
            self.write(optimizer.params[param].1, &value, caller);
        }
        for (&slot, value) in kept.iter().zip(applied.slots) {
            self.write(optimizer.first + 1 + slot, &value, caller);
        }
        self.average_others(optimizer, &connected, &iterations);
        self.write(optimizer.first, &(iterations + 1.0), caller);
        self.skip_unless_finite(optimizer, &given);
        for entry in self.set_by(optimizer) {
            self.settled.insert(entry, self.values[&entry].clone());
        }
    }

    /// Averages variables without a gradient in this step as it does the others, as Keras does.
    #[track_caller]
    fn average_others(&mut self, optimizer: &OptimizerRef, connected: &[usize], updates: &Tensor) {
        let averages = optimizer.optimizer.average_slots(&optimizer.specs());
        for (param, slot) in averages.into_iter().enumerate() {
            if !connected.contains(&param) {
                let (spec, entry) = &optimizer.params[param];
                let variable = self.read(*entry);
                let average = self.read(optimizer.first + 1 + slot);
                let before = (&variable, &average);
                let (value, next) =
                    (optimizer.optimizer).averaged_without_gradient(spec, updates, before);
                if value.value() != variable.value() {
                    self.write(*entry, &value, Location::caller());
                }
                self.write(optimizer.first + 1 + slot, &next, Location::caller());
            }
        }
    }

    /// Adds this replica's examples to the counts of a metric; rows that only fill up and padded steps
    /// ([`padding_mask`](Self::padding_mask) of `y_pred`) weigh nothing, as in `fit` and in Keras.
    #[track_caller]
    pub fn update_metric(
        &mut self,
        metric: &MetricRef,
        y_true: &Tensor,
        y_pred: &Tensor,
        weight: Option<&Tensor>,
    ) {
        let name = metric.metric.name();
        if !self.owns(&metric.state_id, &format!("metric `{name}`")) {
            return;
        }
        let weight = self.weight_of_examples(y_pred, weight);
        let weight = self.output(y_pred).weight(weight.as_ref());
        let added = metric.metric.update(y_true, y_pred, weight.as_ref());
        for (index, added) in added.iter().enumerate() {
            let entry = metric.first + index;
            let Some(expected) = self.state.entries.get(entry) else {
                continue;
            };
            if added.dims() != expected.shape.dims {
                let (expected, got) = (&expected.shape.dims, added.dims());
                return self.graph.fail("update_metric", format!(
                    "metric `{name}` counts {expected:?} numbers, but these predictions give {got:?}; bind the metric to their shape with `Metric::bound`"
                ));
            }
            let sum = self.read(entry) + added.convert(DType::F64);
            self.write(entry, &sum, Location::caller());
        }
    }
}
