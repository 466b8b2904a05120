//! Examples stacked into a batch, one after the other.

use phalanx_graph::{AlignedBytes, HostTensor, Shape};

use super::buffer_pool::BufferPool;
use super::{Batch, Example};
use crate::{Error, Result};

/// A batch under construction: each example is copied into its row as it comes, while it is in the processor's cache.
pub(super) struct BatchBuilder<'a> {
    rows: usize,
    filled: usize,
    x: Vec<Column>,
    y: Vec<Column>,
    weights: Option<Vec<f32>>,
    buffer_pool: &'a BufferPool,
}

/// A tensor of the batch.
struct Column {
    shape: Shape,
    bytes: AlignedBytes,
}

impl<'a> BatchBuilder<'a> {
    /// A batch of at most `rows` examples, in memory from `buffer_pool`.
    pub(super) const fn new(rows: usize, buffer_pool: &'a BufferPool) -> Self {
        Self {
            rows,
            filled: 0,
            x: Vec::new(),
            y: Vec::new(),
            weights: None,
            buffer_pool,
        }
    }

    /// Adds an example.
    ///
    /// # Errors
    /// When its tensors differ from the first example's in number, element type or dims.
    pub(super) fn push(&mut self, example: &Example) -> Result<()> {
        if self.filled == 0 {
            let column = |tensor: &HostTensor| Column {
                shape: tensor.shape().clone(),
                bytes: self.buffer_pool.take(tensor.bytes().len() * self.rows),
            };
            self.x = example.x.iter().map(column).collect();
            self.y = example.y.iter().map(column).collect();
        }
        fill("x", &mut self.x, &example.x, self.filled)?;
        fill("y", &mut self.y, &example.y, self.filled)?;
        if example.weight.is_some() && self.weights.is_none() {
            self.weights = Some(vec![1.0; self.filled]);
        }
        if let Some(weights) = &mut self.weights {
            weights.push(example.weight.unwrap_or(1.0));
        }
        self.filled += 1;
        Ok(())
    }

    /// The examples so far; where only some have a weight the others have 1.
    pub(super) fn finish(self) -> Batch {
        let (rows, filled, buffer_pool) = (self.rows, self.filled, self.buffer_pool);
        let tensors = |columns: Vec<Column>| {
            let whole = columns
                .into_iter()
                .map(|column| column.tensor(rows, filled, buffer_pool));
            whole.collect()
        };
        Batch {
            x: tensors(self.x),
            y: tensors(self.y),
            weight: self
                .weights
                .map(|weights| HostTensor::new([filled], &weights)),
            first: 0,
        }
    }
}

impl Column {
    fn tensor(self, rows: usize, filled: usize, buffer_pool: &BufferPool) -> HostTensor {
        let dims: Vec<usize> = [&[rows], &self.shape.dims[..]].concat();
        let tensor = HostTensor::from_aligned(Shape::new(self.shape.dtype, dims), self.bytes);
        buffer_pool.lend(&tensor);
        if filled < rows {
            return tensor.slice_rows(0, filled);
        }
        tensor
    }
}

fn fill(name: &str, columns: &mut [Column], tensors: &[HostTensor], row: usize) -> Result<()> {
    if columns.len() != tensors.len() {
        return Err(Error::User(format!(
            "examples of one batch differ: one has {} tensors in {name}, another {}; \
             give every example the same tensors in its source or map stage",
            columns.len(),
            tensors.len()
        )));
    }
    for (t, (column, tensor)) in columns.iter_mut().zip(tensors).enumerate() {
        if tensor.shape() != &column.shape {
            return Err(Error::User(format!(
                "examples of one batch differ: {name}[{t}] is {} in one and {} in another; \
                 bring them to one shape in a map stage, or pad the batches",
                column.shape,
                tensor.shape()
            )));
        }
        let len = tensor.bytes().len();
        column.bytes.as_mut_slice()[row * len..][..len].copy_from_slice(tensor.bytes());
    }
    Ok(())
}
