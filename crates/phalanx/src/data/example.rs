//! One example, a batch of them, and the weights of classes.

use std::collections::BTreeMap;

use phalanx_graph::HostTensor;

use super::batch_builder::BatchBuilder;
use super::buffer_pool::BufferPool;
use crate::{Error, Result};

/// What a model learns from at once: inputs, outputs and a weight, none with a batch dim.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Example {
    /// The inputs of the model.
    pub x: Vec<HostTensor>,
    /// The outputs wanted; empty when there are none, as in prediction.
    pub y: Vec<HostTensor>,
    /// The sample weight in the loss; `None` counts as 1.
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

/// A weight for each class, which multiplies the sample weight of its examples.
///
/// The class is the integer label, or the index of the greatest value of a one-hot label. A class that is not
/// listed has weight 1. Unlike Keras 3, which refuses both at once, sample weights and class weights multiply.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassWeights(BTreeMap<i64, f32>);

impl ClassWeights {
    /// Weights by class.
    ///
    /// # Errors
    /// When a weight is negative or not finite, or a class is listed twice.
    pub fn new(weights: impl IntoIterator<Item = (i64, f32)>) -> Result<Self> {
        let mut by_class = BTreeMap::new();
        for (class, weight) in weights {
            if !(weight >= 0.0 && weight.is_finite()) {
                return Err(Error::User(format!(
                    "weight of class {class} is {weight}, expected a finite number from 0 up; correct the class weights"
                )));
            }
            if by_class.insert(class, weight).is_some() {
                return Err(Error::User(format!(
                    "class {class} has two weights, expected one; remove one of them"
                )));
            }
        }
        Ok(Self(by_class))
    }

    /// The batch with its sample weights multiplied by those of its classes.
    ///
    /// # Errors
    /// When the batch has not exactly one output, or that output is no class label (one number or one row per example).
    pub fn apply_to_batch(&self, mut batch: Batch) -> Result<Batch> {
        let labels = only_label(&batch.y)?;
        let rows = batch.rows();
        let mut weights = self.of_labels(labels, labels.dims().get(1..).unwrap_or(&[]), rows)?;
        if let Some(given) = &batch.weight {
            for (weight, given) in weights.iter_mut().zip(given.f32s()) {
                *weight *= given;
            }
        }
        batch.weight = Some(HostTensor::new([rows], &weights));
        Ok(batch)
    }

    /// The example with its weight multiplied by that of its class.
    ///
    /// # Errors
    /// As [`apply_to_batch`](Self::apply_to_batch).
    pub fn apply(&self, mut example: Example) -> Result<Example> {
        let label = only_label(&example.y)?;
        let weight = self.of_labels(label, label.dims(), 1)?[0];
        example.weight = Some(example.weight.unwrap_or(1.0) * weight);
        Ok(example)
    }

    fn of_labels(&self, labels: &HostTensor, dims: &[usize], rows: usize) -> Result<Vec<f32>> {
        if dims.len() > 1 {
            return Err(Error::User(format!(
                "class weights need one label per example, an integer or a one-hot row, got labels {}; \
                 use sample weights instead",
                labels.shape()
            )));
        }
        let values = labels.to_f64();
        let width = (values.len() / rows.max(1)).max(1);
        let classes = values.chunks_exact(width).map(class_of_label);
        Ok(classes
            .map(|class| self.0.get(&class).copied().unwrap_or(1.0))
            .collect())
    }
}

fn only_label(y: &[HostTensor]) -> Result<&HostTensor> {
    match y {
        [label] => Ok(label),
        _ => Err(Error::User(format!(
            "class weights need exactly one output, got {}; use sample weights instead",
            y.len()
        ))),
    }
}

/// The rounded number, or the index of the (first) greatest of several.
fn class_of_label(label: &[f64]) -> i64 {
    if let [class] = label {
        return class.round() as i64;
    }
    let greatest =
        (1..label.len()).fold(0, |best, i| if label[i] > label[best] { i } else { best });
    greatest as i64
}

#[cfg(test)]
mod tests {
    use phalanx_graph::Shape;

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

    #[test]
    fn class_weights_multiply_sample_weights() {
        let weights = ClassWeights::new([(0, 2.0), (2, 0.5)]).unwrap();
        let mut batch = Batch {
            x: Vec::new(),
            y: vec![HostTensor::new([3], &[0i32, 1, 2])],
            weight: Some(HostTensor::new([3], &[1.0f32, 3.0, 4.0])),
            first: 0,
        };
        let weighted = weights.apply_to_batch(batch.clone()).unwrap();
        assert_eq!(weighted.weight.unwrap().f32s(), [2.0, 3.0, 2.0]);
        let one_hot = [0.0f32, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0];
        batch.y = vec![HostTensor::new([3, 3], &one_hot)];
        batch.weight = None;
        let weighted = weights.apply_to_batch(batch.clone()).unwrap();
        assert_eq!(weighted.weight.unwrap().f32s(), [0.5, 2.0, 1.0]);
        batch.y = vec![HostTensor::zeros(Shape::f32([3, 2, 2]))];
        assert!(weights.apply_to_batch(batch).is_err());
        let mut one = example(&[1.0], Some(3.0));
        one.y = vec![HostTensor::new([3], &[0.0f32, 0.0, 1.0])];
        assert_eq!(weights.apply(one).unwrap().weight, Some(1.5));
    }

    #[test]
    fn bad_class_weights_are_refused() {
        assert!(ClassWeights::new([(0, -1.0)]).is_err());
        assert!(ClassWeights::new([(0, f32::NAN)]).is_err());
        assert!(ClassWeights::new([(0, 1.0), (0, 2.0)]).is_err());
    }
}
