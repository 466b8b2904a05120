//! A batch as symbols of a graph.

use std::cell::RefCell;
use std::vec::IntoIter;

use phalanx_graph::{DType, Graph, Shape, Tensor};

use super::outputs::of_rows;
use super::step_program::BatchShape;
use crate::replicas::MeshLayout;

/// One replica's part of a batch, as symbols of a graph.
#[derive(Clone)]
pub(super) struct BatchTensors {
    pub(super) x: Vec<Tensor>,
    pub(super) y: Vec<Tensor>,
    weight: Option<Tensor>,
    /// Where rows may be padding: how many are examples, which ones (1 or 0 each), and the position of the first in the
    /// whole batch.
    pub(super) rows: Option<Tensor>,
    pub(super) mask: Option<Tensor>,
    first: Option<Tensor>,
    /// The number of micro-batches of the batch that this one is of.
    pub(super) micro_batches: usize,
    /// Pairs of the weight of this micro-batch and of the parameter that holds the weight of all micro-batches.
    pub(super) wholes: RefCell<Vec<(Tensor, Tensor)>>,
    /// The sizes of the replicas' shares, each once, the largest first; empty where a share may have any size.
    pub(super) sizes: Vec<usize>,
    pub(super) global_weights: GlobalWeights,
}

/// How a replica gets the weight of all replicas' rows.
#[derive(Clone)]
pub(super) enum GlobalWeights {
    /// By an all-reduce of the weights of its own rows.
    AllReduced,
    /// Not yet: the weights of its own rows are recorded here, to be all-reduced ahead of branches.
    Recorded(RefCell<Vec<Tensor>>),
    /// They were all-reduced before, in the order in which they are asked for.
    Known(RefCell<IntoIter<Tensor>>),
}

impl BatchTensors {
    /// The parameters of a batch, sharded where the model lies on a mesh.
    pub(super) fn bind(
        graph: &Graph,
        batch: &BatchShape,
        mesh_layout: Option<&MeshLayout>,
    ) -> Self {
        let bind = |name: &'static str| {
            move |shape: &Shape| match mesh_layout {
                Some(mesh_layout) => {
                    let sharding = mesh_layout.of_batch(shape.rank());
                    graph.parameter_sharded(name, shape.clone(), &sharding)
                }
                None => graph.parameter(name, shape.clone()),
            }
        };
        let scalar = |name, dtype| {
            batch
                .filled
                .then(|| graph.parameter(name, Shape::scalar(dtype)))
        };
        let rows = scalar("rows", DType::I32);
        let first = scalar("first_row", DType::U32);
        let x: Vec<Tensor> = batch.x.iter().map(bind("x")).collect();
        let y = batch.y.iter().map(bind("y")).collect();
        let weight = batch.weight.as_ref().map(bind("weight"));
        let mask = rows.as_ref().map(|rows| {
            let each = x[0].dim(0);
            let row = graph.iota(Shape::new(DType::I32, [each]), 0);
            row.less(&rows.broadcast_to(&[each])).convert(DType::F32)
        });
        Self {
            x,
            y,
            weight,
            rows,
            mask,
            first,
            micro_batches: 1,
            wholes: RefCell::default(),
            sizes: batch.sizes.clone(),
            global_weights: GlobalWeights::AllReduced,
        }
    }

    /// The same batch, which records the weights of its rows.
    pub(super) fn recording_weights(&self) -> Self {
        Self {
            global_weights: GlobalWeights::Recorded(RefCell::default()),
            ..self.clone()
        }
    }

    /// The weights that were recorded.
    pub(super) fn recorded_weights(self) -> Vec<Tensor> {
        match self.global_weights {
            GlobalWeights::Recorded(kept) => kept.into_inner(),
            GlobalWeights::AllReduced | GlobalWeights::Known(_) => Vec::new(),
        }
    }

    /// Which of the sizes this replica's share has.
    pub(super) fn size_index(&self) -> Tensor {
        let first = self.x[0].graph().scalar(DType::I32, 0.0);
        let Some(rows) = &self.rows else { return first };
        self.sizes.iter().skip(1).fold(first, |number, &size| {
            let fits = rows.less_equal(&rows.like(size as f64));
            number + fits.convert(DType::I32)
        })
    }

    /// What a branch of the program takes from the batch.
    pub(super) fn tensors(&self) -> Vec<Tensor> {
        let arrays = self.x.iter().chain(&self.y).chain(&self.weight);
        arrays.chain(&self.first).cloned().collect()
    }

    /// The first `size` rows, all of them examples, of other tensors in the order of [`tensors`](Self::tensors).
    pub(super) fn first_rows(
        &self,
        size: usize,
        tensors: &mut impl Iterator<Item = Tensor>,
    ) -> Self {
        let cut = |tensor: Tensor| tensor.slice_dim(0, 0, size);
        Self {
            x: tensors.take(self.x.len()).map(cut).collect(),
            y: tensors.take(self.y.len()).map(cut).collect(),
            weight: self.weight.as_ref().and_then(|_| tensors.next()).map(cut),
            first: self.first.as_ref().and_then(|_| tensors.next()),
            rows: None,
            mask: None,
            sizes: Vec::new(),
            ..self.clone()
        }
    }

    pub(super) fn rows(&self) -> usize {
        self.x[0].dim(0)
    }

    /// The position in the whole batch of this replica's first row.
    pub(super) fn first_row(&self, graph: &Graph) -> Tensor {
        match &self.first {
            Some(first) => first.clone(),
            None if graph.replicas() == 1 => graph.scalar(DType::U32, 0.0),
            None => graph.replica_id() * self.rows() as f64,
        }
    }

    /// The weights of the rows, 0 for padding; `None` where all count as 1.
    pub(super) fn row_weights(&self) -> Option<Tensor> {
        match (&self.mask, &self.weight) {
            (Some(mask), Some(weight)) => Some(of_rows(mask, weight)),
            (Some(mask), None) => Some(mask.clone()),
            (None, weight) => weight.clone(),
        }
    }
}
