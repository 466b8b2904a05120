//! What a replica computes on its rows of a batch, in arrays of as many rows where parts are unequal.
//!
//! All replicas run one program, and what it is given has one shape: parts of a batch are filled up to the largest. So that
//! a replica with fewer rows also computes less, forward and backward pass stand in a branch for each size of a part, which
//! takes its rows out of the arrays and computes on these alone; its results are of the same shapes for any size. Replicas
//! in other branches must not be waited for: the weight of all replicas' rows is found before the branches, gradients are
//! added behind. Where layers exchange values themselves, as those of synchronized batch normalization do, there are no
//! branches, and rows that only fill up weigh nothing.

use phalanx_graph::op::{PadDim, ReduceOp};
use phalanx_graph::{DType, HostTensor, Scattered, Shape, Tensor, gradients};

use super::given::{Given, Totals};
use super::outputs::Output;
use super::step::{BatchShape, Setup};
use super::tally::Judged;
use crate::nn::{Cx, Effects};

/// What a pass over rows takes beside them.
pub(super) struct Held {
    pub(super) variables: Vec<Tensor>,
    /// Of the loss scale.
    pub(super) scale: Vec<Tensor>,
    /// Of the random numbers of a training step.
    pub(super) key: Option<Tensor>,
}

/// What rows say of the variables, before replicas tell each other.
pub(super) struct Learned {
    pub(super) judged: Judged,
    /// Positions, among the trained variables, of those that the loss depends on.
    pub(super) connected: Vec<usize>,
    /// Their gradients, of the scaled loss.
    pub(super) gradients: Vec<Tensor>,
    /// State of layers.
    pub(super) updates: Vec<(usize, Tensor)>,
}

impl Setup {
    /// The setup for replicas of unequal shares.
    pub(super) fn with_shares(mut self, has_shares: bool) -> Self {
        self.has_shares = has_shares;
        self.by_size = has_shares && self.exchange_of_layers().is_none();
        self
    }

    /// What the user should know of how unequal shares are computed.
    pub(super) fn warning_of_shares(&self) -> Option<String> {
        let exchange = (self.has_shares && !self.by_size).then(|| self.exchange_of_layers())??;
        Some(format!(
            "layers of `{}` exchange values between replicas ({exchange}, as for synchronized batch normalization), so each replica computes on as many rows as the largest share has, and smaller shares save no time",
            self.model.name()
        ))
    }

    /// The first op in a forward pass that waits for other replicas.
    fn exchange_of_layers(&self) -> Option<&'static str> {
        let graph = self.graph();
        let rows = |(_, shape): (_, Shape)| Shape::new(shape.dtype, [&[2], &*shape.dims].concat());
        let batch = BatchShape {
            x: self.model.inputs().map(rows).collect(),
            y: Vec::new(),
            weight: None,
            filled: true,
            sizes: Vec::new(),
        };
        let held = Held {
            variables: self.bind_variables(&graph),
            scale: Vec::new(),
            key: Some(graph.constant(HostTensor::zeros(Shape::new(DType::U32, [2])))),
        };
        self.forward(&held, &Given::bind(&graph, &batch, None));
        graph.communication()
    }

    /// Forward and backward pass.
    pub(super) fn learned(&self, held: &Held, given: &Given) -> Learned {
        let Some(totals) = self.totals(held, given) else {
            return self.learn(held, given);
        };
        let mut sparse: Option<Vec<Option<Scattered>>> = None;
        let learn = |held: &Held, given: &Given| self.learn(held, given);
        let (learned, results) = by_size(held, given, totals, learn, |learned| {
            let rows = || {
                let gradients = learned.gradients.iter();
                gradients.map(|g| self.reduction.rows_of(g)).collect()
            };
            learned.tensors(sparse.get_or_insert_with(rows))
        });
        learned.with(results, &sparse.unwrap_or_default())
    }

    /// Forward pass, loss and metrics of a test.
    pub(super) fn judged(&self, held: &Held, given: &Given) -> Judged {
        let judge = |held: &Held, given: &Given| {
            let (outputs, effects) = self.forward(held, given);
            self.judge(&outputs, given, &effects)
        };
        let Some(totals) = self.totals(held, given) else {
            return judge(held, given);
        };
        let (judged, results) = by_size(held, given, totals, judge, Judged::tensors);
        judged.with(&mut results.into_iter())
    }

    /// The outputs of the model; behind those of its rows a smaller part has zeros.
    pub(super) fn predicted(&self, held: &Held, given: &Given) -> Vec<Tensor> {
        let predict = |held: &Held, given: &Given| {
            let (outputs, _) = self.forward(held, given);
            let outputs = outputs.iter();
            outputs
                .map(|output| self.cut_as_batch(&output.value))
                .collect()
        };
        if given.sizes.is_empty() {
            return predict(held, given);
        }
        let filled = |outputs: &Vec<Tensor>| {
            let outputs = outputs.iter();
            outputs.map(|y| lengthened(y, 0, given.rows())).collect()
        };
        by_size(held, given, Vec::new(), predict, filled).1
    }

    fn forward(&self, held: &Held, given: &Given) -> (Vec<Output>, Effects) {
        let graph = given.x[0].graph();
        let mut cx = Cx::new(graph, &self.model, &held.variables)
            .with_policy(self.precision)
            .with_micro_batches(given.micro_batches);
        if let Some(key) = &held.key {
            let first = given.first_row(graph);
            cx = cx.with_training(true).with_random(key.clone(), first);
        }
        if let Some(mask) = &given.mask {
            cx = cx.with_example_mask(mask.clone());
        }
        let outputs = Output::all(&mut cx, &self.model, &self.inputs(given));
        let effects = cx.finish();
        given.wholes.borrow_mut().extend(effects.wholes.clone());
        (outputs, effects)
    }

    fn learn(&self, held: &Held, given: &Given) -> Learned {
        let (outputs, effects) = self.forward(held, given);
        let judged = self.judge(&outputs, given, &effects);
        let trained = self.trained.iter().map(|&index| &held.variables[index]);
        let trained: Vec<&Tensor> = trained.collect();
        let gradients = gradients(&self.loss_scale.scaled(&judged.loss, &held.scale), &trained);
        let is_connected = |param: &usize| gradients[*param].is_some();
        Learned {
            connected: (0..trained.len()).filter(is_connected).collect(),
            gradients: gradients.into_iter().flatten().collect(),
            updates: effects.updates,
            judged,
        }
    }

    /// The weights of all replicas' rows, in the order in which the loss asks for them; none where it is to ask the other
    /// replicas itself, as parts may be of any size, or something else in the pass exchanges values.
    fn totals(&self, held: &Held, given: &Given) -> Option<Vec<Tensor>> {
        if given.sizes.is_empty() {
            return None;
        }
        // What of this is not a weight is left out of the program.
        let kept = given.keeping_weights();
        let (outputs, effects) = self.forward(held, &kept);
        self.judge(&outputs, &kept, &effects);
        if kept.x[0].graph().communication().is_some() {
            return None;
        }
        let own = kept.kept_weights().into_iter();
        Some(own.map(|own| own.all_reduce(ReduceOp::Sum)).collect())
    }
}

/// What `compute` makes of this replica's rows: a branch for each size of a part, whose results `tensors` lists. Returns what
/// the branch of the largest made, whose tensors are not to be used, and what stands for them.
fn by_size<T>(
    held: &Held,
    given: &Given,
    totals: Vec<Tensor>,
    compute: impl Fn(&Held, &Given) -> T,
    mut tensors: impl FnMut(&T) -> Vec<Tensor>,
) -> (T, Vec<Tensor>) {
    let graph = given.x[0].graph();
    let inputs = [held.tensors(), given.tensors(), totals].concat();
    let inputs: Vec<&Tensor> = inputs.iter().collect();
    let mut largest = None;
    let count = given.sizes.len();
    let results = graph.case(&given.size_number(), &inputs, count, |number, values| {
        let mut values = values.iter().cloned();
        let held = held.with(&mut values);
        let mut given = given.of_size(given.sizes[number], &mut values);
        given.totals = Totals::Known(values.collect::<Vec<_>>().into_iter().into());
        let made = compute(&held, &given);
        let results = tensors(&made);
        largest.get_or_insert(made);
        results
    });
    (largest.expect("a part has a size"), results)
}

impl Held {
    /// Of a test, or a prediction.
    pub(super) fn variables(variables: &[Tensor]) -> Self {
        Self {
            variables: variables.to_vec(),
            scale: Vec::new(),
            key: None,
        }
    }

    fn tensors(&self) -> Vec<Tensor> {
        let all = self.variables.iter().chain(&self.scale).chain(&self.key);
        all.cloned().collect()
    }

    /// The same of other tensors, in the order of [`tensors`](Self::tensors).
    fn with(&self, tensors: &mut impl Iterator<Item = Tensor>) -> Self {
        Self {
            variables: tensors.take(self.variables.len()).collect(),
            scale: tensors.take(self.scale.len()).collect(),
            key: self.key.as_ref().and_then(|_| tensors.next()),
        }
    }
}

impl Learned {
    /// All tensors; those gradients that are rows as their indices and rows, as many as the largest part has.
    fn tensors(&self, sparse: &[Option<Scattered>]) -> Vec<Tensor> {
        let mut tensors = self.judged.tensors();
        tensors.extend(self.updates.iter().map(|(_, value)| value.clone()));
        for (gradient, most) in self.gradients.iter().zip(sparse) {
            match most.as_ref().zip(gradient.scattered()) {
                Some((most, own)) => {
                    let count = most.indices.dim(0);
                    tensors.push(lengthened(&own.indices, 0, count));
                    tensors.push(lengthened(&own.rows, own.dim, count));
                }
                None => tensors.push(gradient.clone()),
            }
        }
        tensors
    }

    /// The same of other tensors, in the order of [`tensors`](Self::tensors).
    fn with(self, tensors: Vec<Tensor>, sparse: &[Option<Scattered>]) -> Self {
        let mut tensors = tensors.into_iter();
        let judged = self.judged.with(&mut tensors);
        let updates = self.updates.iter().zip(tensors.by_ref());
        let updates = updates.map(|((index, _), value)| (*index, value)).collect();
        let mut next = || tensors.next().expect("as many results as tensors");
        let gradients = self.gradients.iter().zip(sparse).map(|(gradient, rows)| {
            let Some(rows) = rows else { return next() };
            let made = Scattered {
                indices: next(),
                rows: next(),
                ..rows.clone()
            };
            made.dense().reshape(&gradient.dims())
        });
        Self {
            gradients: gradients.collect(),
            connected: self.connected,
            judged,
            updates,
        }
    }
}

/// A tensor with zeros behind it along a dim.
fn lengthened(tensor: &Tensor, dim: usize, size: usize) -> Tensor {
    let more = size - tensor.dim(dim);
    if more == 0 {
        return tensor.clone();
    }
    let mut pads = vec![PadDim::default(); tensor.rank()];
    pads[dim].high = more as i64;
    tensor.pad(&pads, 0.0)
}
