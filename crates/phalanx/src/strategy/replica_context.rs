//! The context of a function while it is traced: what one replica does.

mod learning;
mod penalties;
mod replaced;
mod row_order;
mod sending;
mod shares;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::panic::Location;

use phalanx_graph::op::ReduceOp;
use phalanx_graph::{DType, Graph, HostTensor, Shape, Tensor, Value};

use super::state::{DRAWS, ModelRef, SEED, State, StateId, ValueKind, ValueRef, foreign};
use crate::fit::step_key;
use crate::nn::{Cx, Policy, normal_numbers, uniform_numbers};
use crate::replicas::Reduction;

use learning::DifferentiatedLoss;
pub use learning::Gradients;
use penalties::Penalties;
use row_order::RowOrder;
use sending::AppliedGradients;
pub(super) use sending::SentShapes;
pub(super) use shares::Wholes;

/// What a replica of a [`Function`](super::Function) works with: its number, its part of the batch, the state, and the
/// other replicas.
///
/// Building does not return `Result`: the first mistake is kept, with the line of your source, and returned by the
/// call of the function. State reads as it was last set in the same function: a model called after
/// [`apply`](Self::apply) has the new variables. As in Keras these are values, and no gradient goes on into what set them: not from a
/// generator's loss, say, through the update of the critic that judges it.
pub struct ReplicaCx<'a> {
    pub(super) graph: Graph,
    pub(super) state: &'a State,
    policy: Policy,
    /// The function's, which may be another than the state's.
    reduction: &'a Reduction,
    rows: Option<BatchRows>,
    /// The present values of the state's entries that were read, and those at the beginning.
    values: BTreeMap<usize, Tensor>,
    originals: BTreeMap<usize, Tensor>,
    /// The values of entries after the last step of an optimizer that may change them, which a skipped step goes back to.
    settled: BTreeMap<usize, Tensor>,
    /// What entries are differentiated by that layers have replaced since they were set.
    roots: BTreeMap<usize, Tensor>,
    /// The entries read, in the order of the program's parameters.
    pub(super) bound: Vec<usize>,
    /// The entries set, and where.
    pub(super) set: BTreeMap<usize, &'static Location<'static>>,
    /// Of which results the first dim is the batch, and of which it is not.
    per_example: HashMap<Value, bool>,
    padding_masks: HashMap<Value, Tensor>,
    /// Of the models, by their first variables.
    penalties: HashMap<usize, Penalties>,
    row_orders: HashMap<Value, RowOrder>,
    random: Option<RandomStream>,
    /// The losses whose gradients are summed over replicas.
    pub(super) summed: Vec<DifferentiatedLoss>,
    /// What is a replica's share of what all replicas have.
    shares: RefCell<HashSet<Value>>,
    /// What parameter servers are to apply.
    sent: Option<AppliedGradients>,
    pub(super) warnings: Vec<String>,
}

/// Separates the further random keys of a step from its first.
const OTHER_KEYS: u32 = 0x9E37_79B9;

/// The rows of the batch on one replica.
pub(super) struct BatchRows {
    pub(super) each: usize,
    /// How many are examples, and the number in the step of the first, where rows may only fill up.
    pub(super) filled: Option<[Tensor; 2]>,
}

struct RandomStream {
    key: Tensor,
    uses: u32,
}

/// The replica and its part of the batch.
impl<'a> ReplicaCx<'a> {
    pub(super) fn new(
        graph: &Graph,
        state: &'a State,
        (policy, reduction): (Policy, &'a Reduction),
        rows: Option<BatchRows>,
    ) -> Self {
        Self {
            graph: graph.clone(),
            state,
            policy,
            reduction,
            rows,
            values: BTreeMap::new(),
            originals: BTreeMap::new(),
            settled: BTreeMap::new(),
            roots: BTreeMap::new(),
            bound: Vec::new(),
            set: BTreeMap::new(),
            per_example: HashMap::new(),
            padding_masks: HashMap::new(),
            penalties: HashMap::new(),
            row_orders: HashMap::new(),
            random: None,
            summed: Vec::new(),
            shares: RefCell::default(),
            sent: None,
            warnings: Vec::new(),
        }
    }

    /// The graph that the function is traced into.
    #[must_use]
    pub const fn graph(&self) -> &Graph {
        &self.graph
    }

    /// This replica's number, from 0: a u32 scalar.
    #[must_use]
    #[track_caller]
    pub fn replica_id(&self) -> Tensor {
        self.graph.replica_id()
    }

    /// Replicas that run the function together.
    #[must_use]
    pub fn replicas_in_sync(&self) -> usize {
        self.graph.replicas()
    }

    /// Rows of this replica's arrays of the batch, with those that only fill them up; 0 without a batch.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows.as_ref().map_or(0, |rows| rows.each)
    }

    /// Which rows are examples: f32 `[rows]`, 0 for those that only fill up.
    #[must_use]
    #[track_caller]
    pub fn example_mask(&self) -> Tensor {
        let rows = self.rows();
        self.mask()
            .unwrap_or_else(|| self.graph.full(&Shape::f32([rows]), 1.0))
    }

    /// How many rows of this replica are examples: an f32 scalar.
    #[must_use]
    #[track_caller]
    pub fn examples(&self) -> Tensor {
        match self.rows.as_ref().and_then(|rows| rows.filled.as_ref()) {
            Some([count, _]) => count.convert(DType::F32),
            None => self.graph.scalar(DType::F32, self.rows() as f64),
        }
    }

    /// The mask, where there are rows that may be none.
    #[track_caller]
    fn mask(&self) -> Option<Tensor> {
        let rows = self.rows.as_ref()?;
        let [count, _] = rows.filled.as_ref()?;
        let row = self.graph.iota(Shape::new(DType::U32, [rows.each]), 0);
        let count = count.broadcast_to(&[rows.each]);
        Some(row.less(&count).convert(DType::F32))
    }

    /// The number in the step of the first of `rows` rows of this replica. Rows that are not the batch's are as many on each
    /// replica, however the batch is divided.
    #[track_caller]
    fn first_row(&self, rows: usize) -> Tensor {
        let batch = self.rows.as_ref().filter(|batch| batch.each == rows);
        match batch.and_then(|batch| batch.filled.as_ref()) {
            Some([_, first]) => first.clone(),
            None => self.graph.replica_id() * rows as f64,
        }
    }

    /// The weight of values; rows that only fill up weigh nothing.
    #[track_caller]
    fn weight_of_examples(&self, values: &Tensor, weight: Option<&Tensor>) -> Option<Tensor> {
        self.check_row_order(values);
        match (self.mask_of(values), weight) {
            (Some(mask), Some(weight)) => {
                let mask = mask.convert(weight.dtype());
                Some(weight * mask.broadcast_in(&weight.dims(), &[0]))
            }
            (mask, weight) => mask.or_else(|| weight.cloned()),
        }
    }

    /// Marks the first dim of a result as the batch: the host gets it without padding, and so does a function that it is
    /// passed to.
    ///
    /// Only the first dim can be the batch: a result that was transposed, reshaped or gathered keeps its padding. It is a
    /// mistake to mark a tensor both so and [`per_replica`](Self::per_replica).
    #[must_use]
    #[track_caller]
    pub fn per_example(&mut self, result: &Tensor) -> Tensor {
        if result.rank() == 0 || result.dim(0) != self.rows() {
            let (rows, got) = (self.rows(), result.shape());
            let message = format!("expected a row for each of {rows} of the batch, got {got}");
            self.graph.fail("per_example", message);
        }
        self.say("per_example", result, true);
        result.clone()
    }

    /// Marks the first dim of a result as something other than the batch, though it may be as long: the host gets all of it.
    #[must_use]
    #[track_caller]
    pub fn per_replica(&mut self, result: &Tensor) -> Tensor {
        self.say("per_replica", result, false);
        result.clone()
    }

    #[track_caller]
    fn say(&mut self, by: &str, result: &Tensor, is_batch: bool) {
        let before = self.per_example.insert(result.value(), is_batch);
        if before == Some(!is_batch) {
            let message = format!(
                "tensor {} is marked both `per_example` and `per_replica`; mark it once, or mark a second tensor, as in `&result * 1.0`",
                result.shape()
            );
            self.graph.fail(by, message);
        }
    }

    /// Whether the first dim of a result is the batch; `None` where it may be and is filled up, and nothing is said.
    pub(super) fn is_per_example(&self, result: &Tensor, same: bool) -> Option<bool> {
        let said = self.per_example.get(&result.value()).copied();
        let rows = self.rows.as_ref();
        let filled = rows.is_some_and(|rows| rows.filled.is_some());
        let may_be = !same && filled && result.rank() > 0 && result.dim(0) == self.rows();
        said.or_else(|| (!may_be).then_some(false))
    }
}

/// Models.
impl ReplicaCx<'_> {
    /// The outputs of a model as in prediction: no dropout, moving statistics.
    #[must_use]
    #[track_caller]
    pub fn call(&mut self, model: &ModelRef, x: &[Tensor]) -> Vec<Tensor> {
        self.run(model, x, false)
    }

    /// The outputs of a model as in training. Moving statistics become the statistics of all replicas' examples at once.
    #[must_use]
    #[track_caller]
    pub fn train(&mut self, model: &ModelRef, x: &[Tensor]) -> Vec<Tensor> {
        self.run(model, x, true)
    }

    /// The present values of a model's variables, in its order.
    #[must_use]
    #[track_caller]
    pub fn variables(&mut self, model: &ModelRef) -> Vec<Tensor> {
        if !self.owns(&model.state_id, &format!("model `{}`", model.name)) {
            let shapes = model.model.variables().iter();
            let stand_ins = shapes.map(|variable| self.graph.full(&variable.shape, 0.0));
            return stand_ins.collect();
        }
        let entries = model.first..model.first + model.model.variables().len();
        let mut values = Vec::with_capacity(entries.len());
        // No closure: it would be the caller that the nodes remember.
        for entry in entries {
            values.push(self.read(entry));
        }
        values
    }

    /// Which steps of an output of a model `[batch, steps, ..]` are not padding, where some may be; as
    /// [`Cx::padding_mask`].
    #[must_use]
    pub fn padding_mask(&self, output: &Tensor) -> Option<Tensor> {
        self.padding_masks.get(&output.value()).cloned()
    }

    #[track_caller]
    fn run(&mut self, model: &ModelRef, x: &[Tensor], training: bool) -> Vec<Tensor> {
        let variables = self.variables(model);
        let mut penalties = match training {
            true => {
                let roots = self.roots(model, &variables);
                self.take_penalties(model, &roots)
            }
            false => Penalties::default(),
        };
        let mut cx = Cx::new(&self.graph, &model.model, &variables)
            .with_training(training)
            .with_penalized(std::mem::take(&mut penalties.penalized))
            .with_policy(self.policy);
        let rows = x.first().filter(|x| x.rank() > 0).map_or(0, |x| x.dim(0));
        let mask = x.first().and_then(|x| self.mask_of(x));
        let of_batch = rows == self.rows() || mask.is_some();
        if training {
            let first = self.first_row(rows);
            cx = cx.with_random(self.random_key(), first);
        }
        if let Some(mask) = &mask {
            cx = cx.with_example_mask(mask.clone());
        }
        let dtypes = model.model.inputs().map(|(_, shape)| shape.dtype);
        let dtypes: Vec<DType> = dtypes.collect();
        let mut inputs = Vec::with_capacity(x.len());
        for (index, x) in x.iter().enumerate() {
            let dtype = dtypes.get(index).copied();
            let input = x.convert(dtype.unwrap_or(x.dtype()));
            // What another model said of its output.
            if let Some(mask) = self.padding_masks.get(&x.value()) {
                cx.set_padding_mask(&input, mask);
            }
            inputs.push(input);
        }
        let outputs = model.model.call(&mut cx, &inputs);
        for output in &outputs {
            let mask = cx.padding_mask(output);
            self.padding_masks
                .extend(mask.map(|mask| (output.value(), mask)));
        }
        let penalized = cx.penalized();
        let effects = cx.finish();
        if training {
            self.take_updates(model, effects.updates, of_batch);
            penalties.penalized = penalized;
            let share = self.share_of(&effects.losses, mask.as_ref());
            penalties.added.extend(share);
            self.penalties.insert(model.first, penalties);
        }
        outputs
    }

    /// State of layers as all replicas go on with it: means by the examples of each, the largest of integers.
    #[track_caller]
    fn agreed(&self, values: &[Tensor], of_batch: bool) -> Vec<Tensor> {
        if self.replicas_in_sync() == 1 {
            // So that it is checked as a program of several replicas is.
            let same = values.iter().map(|value| value.all_reduce(ReduceOp::Max));
            return same.collect();
        }
        let rows = self.rows.as_ref().filter(|_| of_batch);
        let filled = rows.is_some_and(|rows| rows.filled.is_some());
        let weight = filled.then(|| self.examples());
        self.reduction.agreed(values, weight.as_ref())
    }
}

/// Your own values, and random numbers.
impl ReplicaCx<'_> {
    /// The present value; of a sum or mean, this replica's part.
    #[must_use]
    #[track_caller]
    pub fn value(&mut self, value: &ValueRef) -> Tensor {
        if !self.owns(&value.state_id, "a value") {
            return self.graph.scalar(DType::F32, 0.0);
        }
        self.read(value.entry)
    }

    /// Sets a value; it is a mistake to set a replicated one to what differs between replicas.
    #[track_caller]
    pub fn set_value(&mut self, value: &ValueRef, to: &Tensor) {
        if !self.owns(&value.state_id, "a value") {
            return;
        }
        self.read(value.entry);
        self.write(value.entry, to, Location::caller());
    }

    /// Sets the variables of a model, in its order: to the averages of another's, say.
    #[track_caller]
    pub fn set_variables(&mut self, model: &ModelRef, to: &[Tensor]) {
        let variables = self.variables(model);
        if variables.len() != to.len() {
            return self.graph.fail(
                "set_variables",
                format!(
                    "model `{}` has {} variables, got {} values; give one for each",
                    model.name,
                    variables.len(),
                    to.len()
                ),
            );
        }
        if self.graph.error().is_none() {
            for (index, value) in to.iter().enumerate() {
                self.write(model.first + index, value, Location::caller());
            }
        }
    }

    /// Random u32 numbers `[rows, dims..]`, new ones in each step and at each call: a row's depend on the number of its
    /// example in the step, not on how the batch is divided.
    ///
    /// `rows` counts the rows of this replica: [`rows`](Self::rows) for a batch. Any other number of rows is independent of the
    /// batch: each replica draws as many, and no two the same.
    #[must_use]
    #[track_caller]
    pub fn random_bits(&mut self, rows: usize, dims: &[usize]) -> Tensor {
        let key = self.random_key();
        let first = self.first_row(rows);
        self.graph
            .random_bits(&key, &first, &[&[rows], dims].concat())
    }

    /// Random f32 numbers `[rows, dims..]`, evenly distributed over [0, 1); see [`random_bits`](Self::random_bits).
    #[must_use]
    #[track_caller]
    pub fn uniform(&mut self, rows: usize, dims: &[usize]) -> Tensor {
        uniform_numbers(&self.random_bits(rows, dims))
    }

    /// Random f32 numbers `[rows, dims..]`, normally distributed with variance 1; see
    /// [`random_bits`](Self::random_bits).
    #[must_use]
    #[track_caller]
    pub fn normal(&mut self, rows: usize, dims: &[usize]) -> Tensor {
        let [one, other] = [(); 2].map(|()| self.random_bits(rows, dims));
        normal_numbers([&one, &other])
    }

    /// A key that was not used before; the first of a step is the same as in `fit`.
    #[track_caller]
    fn random_key(&mut self) -> Tensor {
        let Some(RandomStream { key, uses }) = self.random.take() else {
            let key = self.step_key();
            let first = key.clone();
            self.random = Some(RandomStream { key, uses: 1 });
            return first;
        };
        let number = self.graph.constant(HostTensor::scalar(uses));
        let other = key.xor(&key.like(f64::from(OTHER_KEYS)));
        let fresh = self.graph.random_bits(&other, &number, &[1, 2]);
        let uses = uses + 1;
        self.random = Some(RandomStream { key, uses });
        fresh.reshape(&[2])
    }

    /// The key of a step: a hash of the seed and the number of steps that drew before.
    #[track_caller]
    fn step_key(&mut self) -> Tensor {
        let (seed, draws) = (self.read(SEED), self.read(DRAWS));
        self.write(DRAWS, &(&draws + 1.0), Location::caller());
        step_key(&self.graph, &seed, &draws)
    }
}

/// The other replicas.
impl ReplicaCx<'_> {
    /// Combines the tensors of all replicas; each gets the result. Of the kinds only the sum has a gradient: the sum.
    #[must_use]
    #[track_caller]
    pub fn all_reduce(&self, kind: ReduceOp, tensor: &Tensor) -> Tensor {
        tensor.all_reduce(kind)
    }

    /// The mean over replicas: of what each has, without regard to how many examples it has.
    #[must_use]
    #[track_caller]
    pub fn all_reduce_mean(&self, tensor: &Tensor) -> Tensor {
        tensor.all_mean()
    }

    /// The tensors of all replicas joined along a dim, in their order, with rows that only fill up
    /// ([`example_mask`](Self::example_mask) gathered likewise tells which).
    #[must_use]
    #[track_caller]
    pub fn all_gather(&self, tensor: &Tensor, dim: usize) -> Tensor {
        if tensor.rank() == 0 {
            let message = "a scalar has no dim to gather along; reduce it, or reshape it to `[1]`";
            self.graph.fail("all_gather", message.into());
            return tensor.clone();
        }
        tensor.all_gather(dim)
    }
}

/// Entries of the state.
impl ReplicaCx<'_> {
    #[track_caller]
    fn owns(&self, state_id: &StateId, what: &str) -> bool {
        let own = self.state.state_id.is(state_id);
        if !own {
            self.graph
                .fail("state", foreign(what, &self.state.strategy));
        }
        own
    }

    /// The present value of an entry.
    #[track_caller]
    fn read(&mut self, entry: usize) -> Tensor {
        self.check_not_sent(entry);
        if let Some(value) = self.values.get(&entry) {
            return value.clone();
        }
        let spec = &self.state.entries[entry];
        let value = self.graph.parameter(&spec.name, spec.shape.clone());
        self.values.insert(entry, value.clone());
        self.originals.insert(entry, value.clone());
        self.bound.push(entry);
        value
    }

    /// Sets an entry that was read, to a value alone: gradients of what is computed from it do not go on into how it was computed, as in
    /// Keras.
    #[track_caller]
    fn write(&mut self, entry: usize, value: &Tensor, from: &'static Location<'static>) {
        self.put(entry, value.stop_gradient(), from);
    }

    /// Sets an entry that was read, to a value that gradients go through.
    #[track_caller]
    fn put(&mut self, entry: usize, value: Tensor, from: &'static Location<'static>) {
        let spec = &self.state.entries[entry];
        if value.shape() != spec.shape {
            let (name, expected, got) = (&spec.name, &spec.shape, value.shape());
            let message = format!("`{name}` is {expected}, got {got}");
            return self.graph.fail("state", message);
        }
        self.roots.remove(&entry);
        self.values.insert(entry, value);
        self.set.insert(entry, from);
    }

    /// The entries that were set, with their values.
    fn changed(&self) -> Vec<(usize, Tensor)> {
        let set = self.set.keys();
        set.map(|&entry| (entry, self.values[&entry].clone()))
            .collect()
    }

    /// The entries that were set, with values that stay as they were where an exchange with another process has failed.
    #[track_caller]
    pub(super) fn committed(&self) -> Vec<(usize, Tensor)> {
        let changed = self.changed();
        if self.state.strategy.world().is_none() || self.graph.error().is_some() {
            return changed;
        }
        let succeeded = self.graph.exchanges_succeeded();
        let both = changed
            .iter()
            .map(|(entry, new)| (new, &self.originals[entry]));
        let both: Vec<(&Tensor, &Tensor)> = both.collect();
        let kept = self.graph.all_or_nothing(&succeeded, &both);
        let entries = changed.iter().map(|(entry, _)| *entry);
        entries.zip(kept).collect()
    }

    pub(super) fn must_be_replicated(&self, entry: usize) -> bool {
        self.state.entries[entry].kind == ValueKind::Replicated
    }
}
