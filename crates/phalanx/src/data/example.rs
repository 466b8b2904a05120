//! One example, and a batch of them.

use phalanx_graph::HostTensor;

use super::batch_builder::BatchBuilder;
use super::buffer_pool::BufferPool;
use crate::Result;

/// What a model learns from at once: inputs, outputs and a weight, none with a batch dim.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Example {
    /// The inputs of the model.
    pub x: Vec<HostTensor>,
    /// The outputs wanted; empty when there are none, as in prediction.
    pub y: Vec<HostTensor>,
    /// The sample weight in the loss; `None` counts as 1. With several processes a map gives one to all examples or to none.
    pub weight: Option<f32>,
}

impl Example {
    /// Bytes of all tensors.
    #[must_use]
    pub fn byte_len(&self) -> usize {
        let tensors = self.x.iter().chain(&self.y);
        tensors.map(|tensor| tensor.bytes().len()).sum()
    }
}

/// Consecutive examples stacked along a new first dim.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// The inputs, each `[rows, ..]`.
    pub x: Vec<HostTensor>,
    /// The outputs wanted, each `[rows, ..]`; empty when there are none.
    pub y: Vec<HostTensor>,
    /// The sample weights, f32 `[rows]`, or `[rows, steps]` for losses of each step; `None` counts as all 1.
    pub weight: Option<HostTensor>,
    /// Position of the first example in the epoch: index of the batch times the batch size.
    pub first: u64,
}

impl Batch {
    /// Number of examples.
    #[must_use]
    pub fn rows(&self) -> usize {
        let mut tensors = self.x.iter().chain(&self.y).chain(&self.weight);
        tensors.next().map_or(0, HostTensor::rows)
    }

    /// Bytes of all tensors.
    #[must_use]
    pub fn byte_len(&self) -> usize {
        let tensors = self.x.iter().chain(&self.y).chain(&self.weight);
        tensors.map(|tensor| tensor.bytes().len()).sum()
    }

    /// A batch without rows but with the tensors of this one, whose first row stands in where a program needs some.
    pub(super) fn without_rows(&self) -> Self {
        let none = HostTensor::without_rows;
        Self {
            x: self.x.iter().map(none).collect(),
            y: self.y.iter().map(none).collect(),
            weight: self.weight.as_ref().map(none),
            first: self.first,
        }
    }

    /// The row that stands in where a batch [`without_rows`](Self::without_rows) has none.
    pub(super) fn stand_in(&self) -> Option<Self> {
        let row = |tensors: &[HostTensor]| -> Option<Vec<HostTensor>> {
            tensors.iter().map(HostTensor::stand_in).collect()
        };
        let weight = self.weight.as_ref().map(HostTensor::stand_in);
        Some(Self {
            x: row(&self.x)?,
            y: row(&self.y)?,
            weight: weight.map_or(Some(None), |row| row.map(Some))?,
            first: self.first,
        })
    }

    /// Stacks examples of equal shapes; where only some have a weight the others get 1.
    ///
    /// # Errors
    /// When the number, element type or dims of the tensors differ between examples.
    pub fn stack(examples: &[Example]) -> Result<Self> {
        let buffer_pool = BufferPool::default();
        let mut stack = BatchBuilder::new(examples.len(), &buffer_pool);
        for example in examples {
            stack.push(example)?;
        }
        Ok(stack.finish())
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    fn example(x: &[f32], weight: Option<f32>) -> Example {
        Example {
            x: vec![HostTensor::new([x.len()], x)],
            y: vec![HostTensor::scalar(1i32)],
            weight,
        }
    }

    #[test]
    fn examples_stack_and_missing_weights_are_one() {
        let batch =
            Batch::stack(&[example(&[1.0, 2.0], None), example(&[3.0, 4.0], Some(0.5))]).unwrap();
        assert_eq!(
            batch.x[0],
            HostTensor::new([2, 2], &[1.0f32, 2.0, 3.0, 4.0])
        );
        assert_eq!(batch.y[0], HostTensor::new([2], &[1i32, 1]));
        assert_eq!(batch.weight.unwrap().f32s(), [1.0, 0.5]);
    }

    #[test]
    fn unequal_examples_are_refused() {
        let error = Batch::stack(&[example(&[1.0], None), example(&[1.0, 2.0], None)]).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("x[0] is f32[1] in one and f32[2]"),
            "{error}"
        );
        let mut other = example(&[1.0], None);
        other.y.clear();
        let error = Batch::stack(&[example(&[1.0], None), other]).unwrap_err();
        assert!(
            error.to_string().contains("1 tensors in y, another 0"),
            "{error}"
        );
    }
}
