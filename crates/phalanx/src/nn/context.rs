//! The context of a call: where layers get variables, modes and random bits from.

mod random;
mod replaced;

use std::collections::{HashMap, HashSet};

use phalanx_graph::{DType, Graph, Shape, Tensor, Value};

use super::layer::{Layer, check_outputs};
use super::masks::{rows_to_each, settle_masks};
use super::precision::widened;
use super::sizes::check_dims;
use super::{Initializer, Model, Policy, Regularizer, Variable};
use random::RandomKeys;

/// The context of one call of a model in one graph.
///
/// The caller makes it with [`new`](Self::new), calls [`Model::call`], and takes what the call left with
/// [`finish`](Self::finish).
pub struct Cx {
    graph: Graph,
    values: VariableTable,
    training: bool,
    policy: Policy,
    random: Option<RandomKeys>,
    pub(super) example_mask: Option<Tensor>,
    /// The same, whatever steps count.
    pub(super) examples: Option<Tensor>,
    padding_masks: HashMap<Value, Tensor>,
    batch_size: usize,
    frames: Vec<LayerCall>,
    calls: usize,
    pub(super) penalized: HashSet<String>,
    pub(super) losses: Vec<Tensor>,
}

/// What a call leaves beside its outputs.
#[derive(Clone, Debug, Default)]
pub struct Effects {
    /// New values of state, and of variables that a layer replaced before their update, by position in [`Model::variables`].
    pub updates: Vec<(usize, Tensor)>,
    /// Scalars to add to the loss: penalties and what layers added. Of several parts of a batch each counts by its examples.
    pub losses: Vec<Tensor>,
}

/// The variables of a call: by path, their specification, present value, and whether the call changed it.
struct VariableTable {
    slots: Vec<Slot>,
    by_path: HashMap<String, usize>,
    /// Whether unknown paths are added (the pass that finds a model's variables) or mistakes.
    recording: bool,
}

struct Slot {
    spec: Variable,
    value: Tensor,
    updated: bool,
}

/// A layer being called.
struct LayerCall {
    path: String,
    trainable: bool,
    policy: Policy,
    used: HashSet<String>,
}

/// More calls of layers than this in one model are taken for a mistake: models in models multiply.
pub(super) const MAX_CALLS: usize = 10_000;

/// For whoever calls a model.
impl Cx {
    /// A context that binds `variables`, in the order of [`Model::variables`], in inference mode without randomness.
    ///
    /// A wrong number or shape of variables is recorded as a mistake of the graph.
    #[must_use]
    #[track_caller]
    pub fn new(graph: &Graph, model: &Model, variables: &[Tensor]) -> Self {
        let mut cx = Self::empty(graph, false);
        let specs = model.variables();
        if specs.len() != variables.len() {
            let (expected, got) = (specs.len(), variables.len());
            cx.graph
                .fail("model", format!("expected {expected} variables, got {got}"));
        }
        for (spec, value) in specs.iter().zip(variables) {
            if value.shape() != spec.shape {
                let (name, expected, got) = (&spec.name, &spec.shape, value.shape());
                cx.graph.fail(
                    "model",
                    format!("variable `{name}`: expected {expected}, got {got}"),
                );
            }
            cx.values.add(spec.clone(), value.clone());
        }
        cx
    }

    /// A context that finds out which variables are asked for.
    pub(super) fn recording(graph: &Graph) -> Self {
        Self::empty(graph, true)
    }

    fn empty(graph: &Graph, recording: bool) -> Self {
        Self {
            graph: graph.clone(),
            values: VariableTable {
                slots: Vec::new(),
                by_path: HashMap::new(),
                recording,
            },
            training: false,
            policy: Policy::Float32,
            random: None,
            example_mask: None,
            examples: None,
            padding_masks: HashMap::new(),
            batch_size: 1,
            frames: Vec::new(),
            calls: 0,
            penalized: HashSet::new(),
            losses: Vec::new(),
        }
    }

    /// Sets whether layers behave as in training: dropout drops, batch normalization uses the batch's statistics.
    #[must_use]
    pub fn with_training(mut self, training: bool) -> Self {
        self.training = training;
        self
    }

    /// Sets in which element types layers compute that have no policy of their own.
    #[must_use]
    pub const fn with_policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Says which rows are examples: `[batch]`, zero (or false) for rows that only fill up the batch.
    #[must_use]
    pub fn with_example_mask(mut self, mask: Tensor) -> Self {
        self.examples = Some(mask.clone());
        self.example_mask = Some(mask);
        self
    }

    /// The updates and losses of the calls made.
    #[must_use]
    pub fn finish(self) -> Effects {
        let slots = self.values.slots.into_iter().enumerate();
        let updates = slots.filter(|(_, slot)| slot.updated);
        Effects {
            updates: updates.map(|(index, slot)| (index, slot.value)).collect(),
            losses: self.losses,
        }
    }

    pub(super) fn into_variables(self) -> Vec<Variable> {
        self.values
            .slots
            .into_iter()
            .map(|slot| slot.spec)
            .collect()
    }
}

/// For layers.
impl Cx {
    /// The graph being built.
    #[must_use]
    pub const fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Whether this call is part of training.
    #[must_use]
    pub const fn training(&self) -> bool {
        self.training
    }

    /// Whether the layer being called is trainable: not frozen.
    #[must_use]
    pub fn trainable(&self) -> bool {
        self.frames.last().is_none_or(|frame| frame.trainable)
    }

    /// What the layer being called computes in: its inputs have this type, unless they are integers or f64.
    #[must_use]
    pub fn compute_dtype(&self) -> DType {
        self.policy().compute_dtype()
    }

    /// Rows of the batch on this replica, with those that only fill it up.
    #[must_use]
    pub const fn batch_size(&self) -> usize {
        self.batch_size
    }

    /// Which rows are examples, `[batch]`, zero for padding; `None` when all are.
    #[must_use]
    pub const fn example_mask(&self) -> Option<&Tensor> {
        self.example_mask.as_ref()
    }

    /// Which steps of a tensor `[batch, steps, ..]` are not padding, `bool[batch, steps]`; `None` when all are.
    ///
    /// Made by [`Embedding::mask_zero`](super::Embedding::mask_zero) or [`set_padding_mask`](Self::set_padding_mask),
    /// it travels with the tensor through layers that [keep](Layer::keeps_mask) it, is used by attention, recurrent
    /// layers and poolings, and takes padding out of losses and metrics: Keras' implicit mask.
    #[must_use]
    pub fn padding_mask(&self, tensor: &Tensor) -> Option<Tensor> {
        self.padding_masks.get(&tensor.value()).cloned()
    }

    /// Says which steps of a tensor `[batch, steps, ..]` are not padding: `bool[batch, steps]`.
    #[track_caller]
    pub fn set_padding_mask(&mut self, tensor: &Tensor, mask: &Tensor) {
        let (own, given) = (tensor.shape(), mask.shape());
        if given.dtype != DType::Bool || given.rank() != 2 || !own.dims.starts_with(&given.dims) {
            let message =
                format!("a padding mask of {own} must be a bool for each step, got {given}");
            return self.graph.fail("padding mask", message);
        }
        self.padding_masks.insert(tensor.value(), mask.clone());
    }

    /// The path of the layer being called, as in `backbone/conv2d`.
    #[must_use]
    pub fn path(&self) -> &str {
        self.frames.last().map_or("", |frame| &frame.path)
    }

    /// A variable that training changes, in the element type of `shape`: asked for in a 16-bit float, it is f32 and
    /// converted for this use.
    #[must_use]
    #[track_caller]
    pub fn variable(&mut self, name: &str, shape: Shape, initializer: &Initializer) -> Tensor {
        self.regularized(name, shape, initializer, None)
    }

    /// A variable that training changes, with a penalty on its values, which counts once however often a shared
    /// layer is called, and not while the layer is frozen.
    #[must_use]
    #[track_caller]
    pub fn regularized(
        &mut self,
        name: &str,
        shape: Shape,
        initializer: &Initializer,
        regularizer: Option<Regularizer>,
    ) -> Tensor {
        let trainable = self.trainable();
        let dtype = shape.dtype;
        let value = self.lookup(name, shape, initializer, false);
        if let Some(regularizer) = regularizer {
            if let Err(message) = regularizer.check() {
                return self.fail(message);
            }
            if trainable && self.penalized.insert(self.path_of(name)) {
                self.losses.push(regularizer.penalty(&value));
            }
        }
        value.convert(dtype)
    }

    /// A variable that only [`update`](Self::update) changes, such as a moving mean.
    ///
    /// Returns the value of the last update, if this call made one already.
    #[must_use]
    #[track_caller]
    pub fn state(&mut self, name: &str, shape: Shape, initial: &Initializer) -> Tensor {
        let dtype = shape.dtype;
        self.lookup(name, shape, initial, true).convert(dtype)
    }

    /// Sets the next value of [`state`](Self::state) of this layer.
    #[track_caller]
    pub fn update(&mut self, name: &str, value: &Tensor) {
        let path = self.path_of(name);
        let found = self.values.by_path.get(&path).copied();
        let Some(slot) = found.map(|index| &mut self.values.slots[index]) else {
            let message = format!("update of `{path}`, which is not state of this layer");
            return self.graph.fail("update", message);
        };
        let value = match value.dtype() {
            dtype if dtype.is_float() && dtype.wide() == slot.spec.shape.dtype => widened(value),
            _ => value.clone(),
        };
        if !slot.spec.state || slot.spec.shape != value.shape() {
            let (state, expected, got) = (slot.spec.state, &slot.spec.shape, value.shape());
            let message =
                format!("update of `{path}` (state: {state}): expected {expected}, got {got}");
            return self.graph.fail("update", message);
        }
        slot.value = value;
        slot.updated = true;
    }

    /// Adds to the loss a scalar, or of a number for each row, `[rows]`, the mean over the examples.
    ///
    /// Replicas and micro-batches count by their examples, so the loss is the same however a batch is divided, if a scalar is a mean over
    /// examples or does not depend on them. Give numbers of examples row by row: their mean leaves out rows that only fill up
    /// a batch, which a mean of your own has to do by the [`example_mask`](Self::example_mask). Keras takes scalars alone.
    #[track_caller]
    pub fn add_loss(&mut self, loss: &Tensor) {
        let rows = self.batch_size;
        let is_of_rows = |own| own == rows || rows_to_each(own, rows).is_some();
        match loss.dims()[..] {
            _ if !loss.dtype().is_float() => {}
            [] => return self.losses.push(loss.clone()),
            [own] if is_of_rows(own) => {
                let (kept, examples) = self.only_examples(loss);
                return self.losses.push(kept.sum_all() / examples);
            }
            _ => {}
        }
        let message = format!(
            "expected a floating-point scalar, or a number for each of {rows} rows, got {}; take the mean over other dims before",
            loss.shape()
        );
        self.graph.fail("add_loss", message);
    }

    /// Records a mistake of the layer being called; the result stands in for a tensor so that building goes on.
    #[must_use]
    #[track_caller]
    pub fn fail(&self, message: String) -> Tensor {
        self.graph.fail("layer", message);
        self.graph.scalar(DType::F32, 0.0)
    }

    /// Calls a layer inside a layer: its variables are found under `name`. The output is in [`compute_dtype`](Self::compute_dtype).
    #[must_use]
    #[track_caller]
    pub fn layer(&mut self, name: &str, layer: &dyn Layer, inputs: &[Tensor]) -> Tensor {
        let (trainable, policy) = (self.trainable(), self.policy());
        let outputs = self.apply(name, layer, trainable, policy, inputs);
        self.autocast(&outputs[0])
    }

    /// Calls a layer of a model: its outputs, at least one.
    #[track_caller]
    pub(super) fn apply(
        &mut self,
        name: &str,
        layer: &dyn Layer,
        trainable: bool,
        policy: Policy,
        inputs: &[Tensor],
    ) -> Vec<Tensor> {
        let stand_ins = |cx: &Self, message| vec![cx.fail(message); layer.outputs().max(1)];
        self.inside(name, trainable, policy, |cx| {
            let inputs = match layer.converts_inputs() {
                true => inputs.iter().map(|input| cx.autocast(input)).collect(),
                false => inputs.to_vec(),
            };
            let shapes: Vec<Shape> = inputs.iter().map(Tensor::shape).collect();
            if let Err(message) = layer.check_settings().and_then(|()| layer.check(&shapes)) {
                return stand_ins(cx, message);
            }
            let masks: Vec<Option<Tensor>> = inputs.iter().map(|x| cx.padding_mask(x)).collect();
            let mut outputs = layer.call_many(cx, &inputs);
            if let Err(message) = check_outputs(layer, &outputs) {
                return stand_ins(cx, message);
            }
            settle_masks(cx, layer.keeps_mask(), (&inputs, &masks), &mut outputs);
            if let Some(regularizer) = layer.activity_regularizer() {
                cx.penalize_activity(regularizer, &outputs[0]);
            }
            outputs
        })
    }

    /// Runs `call` as in training only where that is so already and `training` says so, too.
    #[track_caller]
    pub(super) fn while_training<T>(
        &mut self,
        training: bool,
        call: impl FnOnce(&mut Self) -> T,
    ) -> T {
        let before = self.training;
        self.training &= training;
        let result = call(self);
        self.training = before;
        result
    }

    /// Runs `call` under the path of a layer or a model.
    #[track_caller]
    pub(super) fn inside<T>(
        &mut self,
        name: &str,
        trainable: bool,
        policy: Policy,
        call: impl FnOnce(&mut Self) -> T,
    ) -> T {
        self.calls += 1;
        if self.calls > MAX_CALLS {
            let message = format!("more than {MAX_CALLS} calls of layers in one model");
            self.graph.fail("model", message);
        }
        let path = self.path_of(name);
        let used = HashSet::new();
        self.frames.push(LayerCall {
            path,
            trainable,
            policy,
            used,
        });
        let graph = self.graph.clone();
        let result = graph.labelled(name, || call(self));
        self.frames.pop();
        result
    }

    /// The policy of the layer being called.
    pub(super) fn policy(&self) -> Policy {
        self.frames.last().map_or(self.policy, |frame| frame.policy)
    }

    /// Floats in the type that is computed in. Under f32 an f64 stays what it is: gradient checks compute in it.
    #[track_caller]
    fn autocast(&mut self, tensor: &Tensor) -> Tensor {
        match (tensor.dtype(), self.compute_dtype()) {
            (DType::F64, DType::F32) => tensor.clone(),
            (from, to) if from.is_float() => self.converted(tensor, to),
            _ => tensor.clone(),
        }
    }

    /// The tensor in another type, with its padding mask.
    #[track_caller]
    pub(super) fn converted(&mut self, tensor: &Tensor, dtype: DType) -> Tensor {
        let converted = tensor.convert(dtype);
        self.pass_mask(tensor, &converted);
        converted
    }

    /// Gives an output the padding mask of an input, where the layer has not given it one itself.
    #[track_caller]
    pub(super) fn pass_mask(&mut self, input: &Tensor, output: &Tensor) {
        if self.padding_mask(output).is_some() {
            return;
        }
        if let Some(mask) = self.padding_mask(input) {
            self.set_padding_mask(output, &mask);
        }
    }

    pub(super) fn set_batch_size(&mut self, rows: usize) {
        self.batch_size = rows;
        if let Some(random) = &mut self.random {
            random.rows.get_or_insert(rows);
        }
    }

    fn path_of(&self, name: &str) -> String {
        match self.path() {
            "" => name.to_owned(),
            path => format!("{path}/{name}"),
        }
    }

    /// A variable of the layer being called, by its own name.
    pub(super) fn variable_spec(&mut self, name: &str) -> Option<&mut Variable> {
        let index = *self.values.by_path.get(&self.path_of(name))?;
        Some(&mut self.values.slots[index].spec)
    }

    #[track_caller]
    fn lookup(
        &mut self,
        name: &str,
        mut shape: Shape,
        initializer: &Initializer,
        state: bool,
    ) -> Tensor {
        let path = self.path_of(name);
        shape.dtype = shape.dtype.wide();
        let spec = Variable {
            name: path.clone(),
            shape,
            initializer: *initializer,
            trainable: !state && self.trainable(),
            state,
            constraint: None,
            sharding: None,
        };
        if let Some(frame) = self.frames.last_mut()
            && !frame.used.insert(name.to_owned())
        {
            return self.fail(format!("asks twice for a variable `{name}`"));
        }
        match self.values.by_path.get(&path) {
            Some(&index) => self.bound(index, &spec),
            None if self.values.recording => self.record(spec),
            None => self.fail(format!(
                "asks for a variable `{path}` that it did not ask for when the model was built"
            )),
        }
    }

    #[track_caller]
    fn bound(&self, index: usize, asked: &Variable) -> Tensor {
        let slot = &self.values.slots[index];
        let (is, got) = (&slot.spec.shape, &asked.shape);
        let same_type = is.dtype == got.dtype || is.dtype.is_float() && got.dtype.is_float();
        if is.dims == got.dims && same_type && slot.spec.state == asked.state {
            return slot.value.clone();
        }
        let path = &asked.name;
        self.fail(format!(
            "its variable `{path}` is {is}, but this use needs {got}; layers that share variables need inputs of one shape"
        ))
    }

    #[track_caller]
    fn record(&mut self, spec: Variable) -> Tensor {
        let checks = check_dims(&format!("variable `{}`", spec.name), &spec.shape.dims)
            .and_then(|()| spec.initializer.check())
            .and_then(|()| spec.initializer.check_rank(&spec.shape.dims));
        if let Err(message) = checks {
            return self.fail(message);
        }
        let value = self.graph.parameter(&spec.name, spec.shape.clone());
        self.values.add(spec, value.clone());
        value
    }
}

impl VariableTable {
    fn add(&mut self, spec: Variable, value: Tensor) {
        self.by_path.insert(spec.name.clone(), self.slots.len());
        let updated = false;
        self.slots.push(Slot {
            spec,
            value,
            updated,
        });
    }
}
