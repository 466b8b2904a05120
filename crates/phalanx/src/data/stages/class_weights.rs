//! `class_weights`: sample weights multiplied by a weight per class.

use std::collections::BTreeMap;
use std::slice::from_ref;

use phalanx_graph::HostTensor;

use super::{Sharded, Stage};
use crate::data::buffer_pool::BufferPool;
use crate::data::{Batch, Dataset, Example, Worker};
use crate::{Error, Result};

/// A weight for each class, which multiplies the sample weight of its examples.
///
/// The class is the integer label, or the index of the greatest value of a one-hot label. A class that is not
/// listed has weight 1. Unlike Keras 3, which refuses both at once, sample weights and class weights multiply.
///
/// The loss of a step is divided by the weights of its batch, as in PyTorch, where Keras divides by the number of examples: weights
/// tell the examples of a batch apart, least in small batches, and with one example a step they change nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassWeights(BTreeMap<i64, f32>);

struct ClassWeighted {
    input: Dataset,
    weights: ClassWeights,
}

impl Dataset {
    /// The sample weights multiplied by a weight per class (Keras' `class_weight`); see [`ClassWeights`].
    #[must_use]
    pub fn class_weights(&self, weights: ClassWeights) -> Self {
        let input = self.clone();
        Self::of(ClassWeighted { input, weights })
    }
}

impl Stage for ClassWeighted {
    fn inputs(&self) -> &[Dataset] {
        from_ref(&self.input)
    }

    fn read(&self, epoch: u64, i: usize, count: u64) -> Result<Option<Example>> {
        self.input
            .read_counting_skips(epoch, i, count)?
            .map(|example| self.weights.apply(example))
            .transpose()
    }

    fn gather(&self, epoch: u64, indices: &[usize], pool: &BufferPool) -> Result<Batch> {
        let batch = self.input.gather(epoch, indices, pool)?;
        if batch.x.is_empty() {
            // All of its examples were left out.
            return Ok(batch);
        }
        self.weights.apply_to_batch(batch)
    }

    fn weighs(&self) -> bool {
        true
    }

    fn identity(&self, epoch: u64, i: usize) -> Result<(u64, u64)> {
        self.input.identity(epoch, i)
    }

    fn shard_by_file(&self, worker: Worker) -> Sharded {
        let input = self.input.shard_by_file(worker)?;
        Ok(input.class_weights(self.weights.clone()))
    }
}

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

    /// Multiplies the sample weights of a batch by the weights of their classes, of weights of steps `[rows, steps]` each of a row.
    ///
    /// # Errors
    /// When the batch has not exactly one output, or that output is no class label (one number or one row per example), or the
    /// weights are of another number of rows.
    pub fn apply_to_batch(&self, mut batch: Batch) -> Result<Batch> {
        let labels = only_label(&batch.y)?;
        let rows = batch.rows();
        let weights = self.of_labels(labels, labels.dims().get(1..).unwrap_or(&[]), rows)?;
        batch.weight = Some(match &batch.weight {
            None => HostTensor::new([rows], &weights),
            Some(given) => multiplied(given, &weights)?,
        });
        Ok(batch)
    }

    /// Multiplies the weight of an example by the weight of its class.
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
        if let Some(class) = self.0.keys().find(|&&class| !is_within(class, width)) {
            return Err(Error::User(format!(
                "class {class} has a weight, and labels of {width} classes are from 0 to {}; correct or remove the weight",
                width - 1
            )));
        }
        let classes = values.chunks_exact(width).map(class_of_label);
        Ok(classes
            .map(|class| self.0.get(&class).copied().unwrap_or(1.0))
            .collect())
    }
}

/// Weights of samples, or of the steps of each row, times a number for each row.
fn multiplied(given: &HostTensor, of_rows: &[f32]) -> Result<HostTensor> {
    if given.dims().first() != Some(&of_rows.len()) {
        return Err(Error::User(format!(
            "the batch has {} rows and weights {}, expected weights of each row; correct the weights",
            of_rows.len(),
            given.shape()
        )));
    }
    let values = given.to_f64();
    let each = (values.len() / of_rows.len().max(1)).max(1);
    let rows = values.chunks(each).zip(of_rows);
    let products =
        rows.flat_map(|(row, weight)| row.iter().map(move |value| *value as f32 * weight));
    Ok(HostTensor::new(
        given.dims(),
        &products.collect::<Vec<f32>>(),
    ))
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

/// Whether a one-hot label of this width can be of the class; of a label of one number the width is 1 and says nothing.
fn is_within(class: i64, width: usize) -> bool {
    width == 1 || usize::try_from(class).is_ok_and(|class| class < width)
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
    fn a_batch_of_corrupt_examples_alone_is_empty() {
        let labels = HostTensor::new([3], &[1i32, 1, 1]);
        let rows = Dataset::from_arrays(HostTensor::new([3, 1], &[0.0f32, 1.0, 2.0]), labels);
        let data = rows.unwrap().map(|example| match example.x[0].to_f64()[0] {
            1.0 => Err(Error::Data {
                source_name: "f".into(),
                place: "byte 0".into(),
                message: "no".into(),
            }),
            _ => Ok(example),
        });
        let weights = ClassWeights::new([(1, 2.0)]).unwrap();
        let data = data.skip_corrupt().class_weights(weights);
        assert!(data.batch(1).get(0, 1).unwrap().x.is_empty());
        assert_eq!(data.batch(3).get(0, 0).unwrap().rows(), 2);
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
        batch.weight = Some(HostTensor::new([3, 2], &[1.0f32, 3.0, 4.0, 0.0, 2.0, 6.0]));
        let weighted = weights
            .apply_to_batch(batch.clone())
            .unwrap()
            .weight
            .unwrap();
        assert_eq!(weighted.dims(), [3, 2]);
        assert_eq!(weighted.f32s(), [2.0, 6.0, 4.0, 0.0, 1.0, 3.0]);
        batch.weight = Some(HostTensor::new([2], &[1.0f32, 3.0]));
        let error = weights
            .apply_to_batch(batch.clone())
            .unwrap_err()
            .to_string();
        assert!(error.contains("3 rows and weights f32[2]"), "{error}");
        let one_hot = [0.0f32, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0];
        batch.y = vec![HostTensor::new([3, 3], &one_hot)];
        batch.weight = None;
        let weighted = weights.apply_to_batch(batch.clone()).unwrap();
        assert_eq!(weighted.weight.unwrap().f32s(), [0.5, 2.0, 1.0]);
        let absent = ClassWeights::new([(0, 2.0), (3, 0.5)]).unwrap();
        let error = absent.apply_to_batch(batch.clone()).unwrap_err();
        let expected = "class 3 has a weight, and labels of 3 classes are from 0 to 2; correct or remove the weight";
        assert_eq!(error.to_string(), expected);
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
