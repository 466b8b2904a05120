//! Uneven shares: replicas that get more rows than others, by their speed.
//!
//! All replicas run one program, whose arrays have one shape: the rows of the largest share. A replica with a smaller
//! share must nevertheless compute less, or its share would save no time. So forward and backward pass stand in a
//! branch for each size of a share (`Graph::case`). A branch slices its rows off the arrays, computes on these alone,
//! and returns results whose shapes do not depend on the size.
//!
//! Invariant: no branch communicates. A replica that waited inside one branch for a replica in another would wait
//! forever. The weight of all replicas' rows is therefore summed before the branches, and gradients are reduced behind
//! them. Where layers communicate themselves, as synchronized batch normalization does, there are no branches: every
//! replica computes on padded arrays, and the padding weighs nothing.

use phalanx_graph::op::{PadDim, ReduceOp};
use phalanx_graph::{DType, HostTensor, Scattered, Shape, Tensor};

use super::batch_tensors::{BatchTensors, GlobalWeights};
use super::forward_backward::{ForwardPass, LocalGradients, StepInputs};
use super::setup::Setup;
use super::step_program::BatchShape;
use crate::replicas::Reduction;

/// How the rows of a batch are divided over the replicas, and what a smaller share saves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shares {
    /// As many rows for each replica.
    Equal,
    /// More rows for some; the program has a branch for each size.
    Branched,
    /// More rows for some; all compute on padded arrays, for layers communicate.
    Padded,
}

impl Setup {
    /// The setup for shares that are uneven or not.
    pub(super) fn with_shares(mut self, uneven: bool) -> Self {
        self.shares = match (
            uneven,
            uneven && ForwardPass::new(&self).layer_communication().is_none(),
        ) {
            (false, _) => Shares::Equal,
            (true, true) => Shares::Branched,
            (true, false) => Shares::Padded,
        };
        self
    }

    /// Whether a program may have a branch for each size of a share.
    pub(super) fn branches_by_size(&self) -> bool {
        self.shares == Shares::Branched
    }

    /// What the user should know where smaller shares save no time.
    pub(super) fn uneven_shares_warning(&self) -> Option<String> {
        let exchange = (self.shares == Shares::Padded)
            .then(|| ForwardPass::new(self).layer_communication())??;
        Some(format!(
            "layers of `{}` exchange values between replicas ({exchange}, as for synchronized batch normalization), so each replica computes on as many rows as the largest share has, and smaller shares save no time",
            self.model.name()
        ))
    }
}

impl ForwardPass<'_> {
    /// The first op of the forward pass by which layers communicate, if they do.
    pub(super) fn layer_communication(&self) -> Option<&'static str> {
        let graph = self.setup().graph();
        let rows = |(_, shape): (_, Shape)| Shape::new(shape.dtype, [&[2], &*shape.dims].concat());
        let shape = BatchShape {
            x: self.setup().model.inputs().map(rows).collect(),
            y: Vec::new(),
            weight: None,
            filled: true,
            sizes: Vec::new(),
        };
        let inputs = StepInputs {
            variables: self.setup().state.bind_variables(&graph),
            scale: Vec::new(),
            key: Some(graph.constant(HostTensor::zeros(Shape::new(DType::U32, [2])))),
        };
        graph.communication_of(|| {
            self.forward(&inputs, &BatchTensors::bind(&graph, &shape, None));
        })
    }

    /// The weights of all replicas' rows, in the order in which the loss asks for them, all-reduced ahead of branches.
    /// None where there are no branches: shares may be of any size, or something in the pass communicates.
    pub(super) fn reduced_weights(
        &self,
        inputs: &StepInputs,
        batch: &BatchTensors,
    ) -> Option<Vec<Tensor>> {
        if batch.sizes.is_empty() {
            return None;
        }
        // A trial pass records the weights; whatever else it traces is dead code.
        let recording = batch.recording_weights();
        let trial = || {
            let (outputs, effects) = self.forward(inputs, &recording);
            self.loss_and_metrics(&outputs, &recording, &effects);
        };
        if recording.x[0].graph().communication_of(trial).is_some() {
            return None;
        }
        let own = recording.recorded_weights().into_iter();
        Some(own.map(|own| own.all_reduce(ReduceOp::Sum)).collect())
    }
}

/// Computes on this replica's rows in a branch for each size of a share; `tensors` lists the results of a branch.
///
/// Returns what the branch of the largest share made, whose tensors belong to that branch and must not be used, and the
/// results that stand for them outside.
pub(super) fn branch_by_size<T>(
    inputs: &StepInputs,
    batch: &BatchTensors,
    weights: Vec<Tensor>,
    compute: impl Fn(&StepInputs, &BatchTensors) -> T,
    mut tensors: impl FnMut(&T) -> Vec<Tensor>,
) -> (T, Vec<Tensor>) {
    let graph = batch.x[0].graph();
    let operands = [inputs.tensors(), batch.tensors(), weights].concat();
    let operands: Vec<&Tensor> = operands.iter().collect();
    let mut largest = None;
    let count = batch.sizes.len();
    let results = graph.case(&batch.size_index(), &operands, count, |index, values| {
        let mut values = values.iter().cloned();
        let inputs = inputs.with(&mut values);
        let mut batch = batch.first_rows(batch.sizes[index], &mut values);
        batch.global_weights = GlobalWeights::Known(values.collect::<Vec<_>>().into_iter().into());
        let made = compute(&inputs, &batch);
        let results = tensors(&made);
        largest.get_or_insert(made);
        results
    });
    (largest.expect("a share has a size"), results)
}

impl StepInputs {
    fn tensors(&self) -> Vec<Tensor> {
        let all = self.variables.iter().chain(&self.scale).chain(&self.key);
        all.cloned().collect()
    }

    /// The same with other tensors, in the order of [`tensors`](Self::tensors).
    fn with(&self, tensors: &mut impl Iterator<Item = Tensor>) -> Self {
        Self {
            variables: tensors.take(self.variables.len()).collect(),
            scale: tensors.take(self.scale.len()).collect(),
            key: self.key.as_ref().and_then(|_| tensors.next()),
        }
    }
}

impl LocalGradients {
    /// The gradients computed in a branch for each size of a share.
    pub(super) fn by_size(
        reduction: &Reduction,
        inputs: &StepInputs,
        batch: &BatchTensors,
        weights: Vec<Tensor>,
        differentiate: impl Fn(&StepInputs, &BatchTensors) -> Self,
    ) -> Self {
        // The largest share comes first, so it decides which gradients leave the branches as rows, and how many.
        let mut sparse: Option<Vec<Option<Scattered>>> = None;
        let tensors = |local: &Self| {
            let rows = || {
                let gradients = local.gradients.iter();
                gradients.map(|g| reduction.rows_of(g)).collect()
            };
            local.tensors(sparse.get_or_insert_with(rows))
        };
        let (local, results) = branch_by_size(inputs, batch, weights, differentiate, tensors);
        local.with(results, &sparse.unwrap_or_default())
    }

    /// All tensors; sparse gradients as (indices, rows), padded to the rows of the largest share.
    fn tensors(&self, sparse: &[Option<Scattered>]) -> Vec<Tensor> {
        let mut tensors = self.loss_and_metrics.tensors();
        tensors.extend(self.updates.iter().map(|(_, value)| value.clone()));
        for (gradient, most) in self.gradients.iter().zip(sparse) {
            match most.as_ref().zip(gradient.scattered()) {
                Some((most, own)) => {
                    let count = most.indices.dim(0);
                    tensors.push(padded_to(&own.indices, 0, count));
                    tensors.push(padded_to(&own.rows, own.dim, count));
                }
                None => tensors.push(gradient.clone()),
            }
        }
        tensors
    }

    /// The same with other tensors, in the order of [`tensors`](Self::tensors).
    fn with(self, tensors: Vec<Tensor>, sparse: &[Option<Scattered>]) -> Self {
        let mut tensors = tensors.into_iter();
        let loss_and_metrics = self.loss_and_metrics.with(&mut tensors);
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
            loss_and_metrics,
            updates,
        }
    }
}

/// A tensor followed by zeros along a dim, up to `size`.
pub(super) fn padded_to(tensor: &Tensor, dim: usize, size: usize) -> Tensor {
    let more = size - tensor.dim(dim);
    if more == 0 {
        return tensor.clone();
    }
    let mut pads = vec![PadDim::default(); tensor.rank()];
    pads[dim].high = more as i64;
    tensor.pad(&pads, 0.0)
}

#[cfg(test)]
mod tests {
    use crate::optim::WindowPart;
    use phalanx_graph::op::{Op, Subgraph};
    use phalanx_graph::{NodeCost, Program};

    use super::*;
    use crate::data::Dataset;
    use crate::engine::{Engine, EngineOptions};
    use crate::fit::step_program::StepBuilder;
    use crate::fit::{Compile, Fit, Progress, Trainer};
    use crate::losses::SparseCategoricalCrossentropy;
    use crate::metrics::Accuracy;
    use crate::nn::{
        BatchNorm, Dense, Dropout, Embedding, GlobalAveragePool1d, Input, Model, Regularizer,
        Sequential, relu,
    };
    use crate::optim::Sgd;
    use crate::replicas::{Placement, Reduction};

    fn compile() -> Compile {
        Compile {
            // A bias before a normalization has no gradient but rounding, which rules that divide by its size would show.
            optimizer: Sgd::new(0.1).momentum(0.9).into(),
            loss: SparseCategoricalCrossentropy::from_logits().into(),
            metrics: vec![Accuracy.into()],
            ..Compile::default()
        }
    }

    fn dense(norm: BatchNorm) -> Model {
        let l2 = Regularizer::L2 { l2: 0.01 };
        let first = Dense::new(32).kernel_regularizer(l2);
        Sequential::new([16])
            .add(first.activity_regularizer(l2))
            .add(norm)
            .add(Dropout::new(0.5))
            .add(Dense::new(3))
            .build()
            .unwrap()
    }

    /// Words that some rows have fewer of, with an embedding that is used in no other way.
    fn words() -> Model {
        let embedding = Embedding::new(500, 8).mask_zero(true);
        Sequential::new(Input::new([6]).dtype(DType::I32))
            .add(embedding)
            .add(GlobalAveragePool1d::new())
            .add(Dense::new(8).activation(relu))
            .add(Dense::new(3))
            .build()
            .unwrap()
    }

    fn setup(model: Model) -> Setup {
        let setup = Setup::new(model, compile(), 2, Reduction::default()).unwrap();
        setup.with_shares(true)
    }

    fn batch(setup: &Setup, sizes: &[usize]) -> BatchShape {
        let row = |(_, shape): (_, Shape)| Shape::new(shape.dtype, [&[12], &*shape.dims].concat());
        BatchShape {
            x: setup.model.inputs().map(row).collect(),
            y: vec![Shape::new(DType::I32, [12])],
            weight: Some(Shape::f32([12])),
            filled: true,
            sizes: sizes.to_vec(),
        }
    }

    fn branches(program: &Program) -> Vec<&Subgraph> {
        let nodes = program.nodes.iter();
        let found = nodes.filter_map(|node| match &node.op {
            Op::Case(branches) => Some(branches.iter().map(|branch| &**branch)),
            _ => None,
        });
        found.flatten().collect()
    }

    #[test]
    fn a_smaller_part_computes_on_fewer_rows() {
        let setup = setup(dense(BatchNorm::new()));
        assert!(setup.branches_by_size() && setup.uneven_shares_warning().is_none());
        let batch = batch(&setup, &[12, 4]);
        let programs = [
            StepBuilder::new(&setup)
                .train_steps(&batch, &[WindowPart::Counted])
                .unwrap()
                .program
                .simplified(),
            StepBuilder::new(&setup)
                .test_step(&batch)
                .unwrap()
                .program
                .simplified(),
            StepBuilder::new(&setup)
                .predict_step(&batch)
                .unwrap()
                .program
                .simplified(),
        ];
        for program in &programs {
            let branches = branches(program);
            let products = |branch: &Subgraph| {
                let mut alone = program.clone();
                alone.nodes.clone_from(&branch.nodes);
                let costs = alone.cost().nodes;
                let dots = branch.nodes.iter().zip(&costs);
                let dots = dots.filter(|(node, _)| matches!(node.op, Op::Dot(_)));
                dots.map(|(_, cost): (_, &NodeCost)| cost.flops)
                    .sum::<u64>()
            };
            assert_eq!(branches.len(), 2);
            assert_eq!(products(branches[0]), 3 * products(branches[1]));
            let outside = program.nodes.iter();
            assert!(!outside.clone().any(|node| matches!(node.op, Op::Dot(_))));
        }
        assert!(
            branches(
                &StepBuilder::new(&setup)
                    .train_steps(&batch_of_any(&setup), &[WindowPart::Counted])
                    .unwrap()
                    .program
            )
            .is_empty()
        );
    }

    #[test]
    fn each_step_of_an_execution_has_branches() {
        let setup = setup(dense(BatchNorm::new()));
        let parts = [WindowPart::Counted; 3];
        let steps = StepBuilder::new(&setup)
            .train_steps(&batch(&setup, &[12, 4]), &parts)
            .unwrap();
        assert_eq!(branches(&steps.program.simplified()).len(), 3 * 2);
    }

    fn batch_of_any(setup: &Setup) -> BatchShape {
        batch(setup, &[])
    }

    #[test]
    fn layers_that_exchange_values_are_told_and_stand_in_no_branch() {
        let setup = setup(dense(BatchNorm::new().synchronized(true)));
        assert!(!setup.branches_by_size());
        let warning = setup.uneven_shares_warning().unwrap();
        assert!(warning.contains("all_gather"), "{warning}");
        // Nor when somebody asks for sizes all the same.
        let step = StepBuilder::new(&setup)
            .train_steps(&batch(&setup, &[12, 4]), &[WindowPart::Counted])
            .unwrap();
        assert!(branches(&step.program).is_empty());
    }

    #[test]
    fn gradients_of_tables_stay_rows() {
        let setup = setup(words());
        let step = StepBuilder::new(&setup)
            .train_steps(&batch(&setup, &[6, 2]), &[WindowPart::Counted])
            .unwrap();
        let exchange = step.exchange.unwrap();
        assert!(exchange.contains("1 as rows"), "{exchange}");
        // The table itself leaves no branch.
        for branch in branches(&step.program) {
            let table = |value: &phalanx_graph::Value| branch.shape(*value).dims == [500, 8];
            assert!(!branch.outputs.iter().any(table));
        }
    }

    /// What a training leaves, with and without branches.
    fn trained(placement: &Placement, model: &Model, data: &Dataset, by_size: bool) -> Vec<f64> {
        let mut trainer = Trainer::new(placement, model.clone(), None, compile()).unwrap();
        assert!(trainer.compiled.setup.branches_by_size());
        if !by_size {
            trainer.compiled.setup.shares = Shares::Padded;
        }
        let batches = data.batch(8);
        let fit = Fit::epochs(2).progress(Progress::Silent);
        let history = trainer.fit(&batches, fit).unwrap();
        let mut numbers: Vec<f64> = Vec::new();
        for epoch in &history.epochs {
            numbers.extend(epoch.logs.iter().map(|(_, value)| value));
        }
        let tested = trainer.evaluate(&batches).unwrap();
        numbers.extend(tested.iter().map(|(_, value)| value));
        numbers.extend(trainer.predict(&batches).unwrap()[0].to_f64());
        for (_, value) in trainer.variables().unwrap() {
            numbers.extend(value.to_f64());
        }
        numbers
    }

    #[test]
    fn branches_give_what_arrays_that_are_filled_up_do() {
        let options = EngineOptions {
            cpu_devices: 2,
            ..EngineOptions::default()
        };
        let engine = Engine::new(&options).unwrap();
        let placement = Placement::all(&engine).with_shares(&[1, 3]).unwrap();
        let rows = 8 + 8 + 5;
        let labels: Vec<i32> = (0..rows).map(|row| row % 3).collect();
        let weights: Vec<f32> = (0..rows).map(|row| (row % 4) as f32 * 0.5).collect();
        let features: Vec<f32> = (0..rows * 16).map(|i| (i as f32 * 0.7).sin()).collect();
        let tokens: Vec<i32> = (0..rows * 6)
            .map(|i| if i % 6 > i / 6 % 6 { 0 } else { i * 37 % 500 })
            .collect();
        let count = rows as usize;
        let data = |x: HostTensor| {
            let y = HostTensor::new([count], &labels);
            let weights = HostTensor::new([count], &weights);
            Dataset::from_arrays(x, y).unwrap().with_weights(&weights)
        };
        let cases = [
            (
                dense(BatchNorm::new()),
                HostTensor::new([count, 16], &features),
            ),
            (words(), HostTensor::new([count, 6], &tokens)),
        ];
        for (model, x) in cases {
            let data = data(x).unwrap();
            let by_size = trained(&placement, &model, &data, true);
            let filled = trained(&placement, &model, &data, false);
            assert_eq!(by_size.len(), filled.len());
            for (place, (a, b)) in by_size.iter().zip(&filled).enumerate() {
                assert!(
                    (a - b).abs() <= 1e-5 * b.abs().max(1.0),
                    "{place}: {a} and {b}"
                );
            }
        }
    }
}
