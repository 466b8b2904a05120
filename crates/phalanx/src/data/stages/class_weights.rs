//! `class_weights`: sample weights multiplied by a weight per class.

use std::collections::BTreeMap;
use std::slice::from_ref;

use phalanx_graph::{HostTensor, Shape};

use super::{Sharded, Stage};
use crate::data::buffer_pool::BufferPool;
use crate::data::{Batch, Dataset, Example, Worker};
use crate::{Error, Result};

/// A weight for each class, which multiplies the sample weight of its examples.
///
/// The class is the integer label, or the index of the greatest value of a one-hot label. A class that is not
/// listed has weight 1. Unlike Keras 3, which refuses both at once, sample weights and class weights multiply.
///
/// Labels of more dims are of steps or pixels, each of which [`Batches::class_weights`](crate::data::Batches::class_weights) weighs,
/// unlike Keras. The last dim is 1 where a number is a class, `[rows, height, width, 1]`, and else the number of classes. A row
/// of whole numbers, of any type, is one 1 and zeros, or zeros alone, which count as class 0 as in Keras; other shares are from 0 to 1. All else
/// is an error, such as labels `[rows, steps]`, of which Keras takes the step of the greatest number for the class.
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
    /// The sample weights multiplied by a weight per class (Keras' `class_weight`); see [`ClassWeights`]. Of labels of steps or pixels
    /// [`Batches::class_weights`](crate::data::Batches::class_weights) does it.
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
        check_one_each(only_label(&batch.y)?)?;
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

    /// Multiplies the sample weights of a batch by the weights of their classes: a weight for each row, or for each step or pixel of it
    /// where the labels or the weights of the batch are of these.
    ///
    /// # Errors
    /// When the batch has not exactly one output, that output is no class label, or the weights are of another number of rows or steps.
    pub fn apply_to_batch(&self, mut batch: Batch) -> Result<Batch> {
        let labels = only_label(&batch.y)?;
        let weights = self.of_labels(labels)?;
        batch.weight = Some(match &batch.weight {
            None => weights,
            Some(given) => multiplied(given, &weights)?,
        });
        Ok(batch)
    }

    /// Multiplies the weight of an example by the weight of its class.
    ///
    /// # Errors
    /// As [`apply_to_batch`](Self::apply_to_batch), or when the example has several labels.
    pub fn apply(&self, mut example: Example) -> Result<Example> {
        let label = only_label(&example.y)?;
        let row = [&[1], label.dims()].concat();
        let row = label.reshape(row).unwrap_or_else(|| label.clone());
        check_one_each(&row)?;
        example.weight = Some(example.weight.unwrap_or(1.0) * self.of_labels(&row)?.f32s()[0]);
        Ok(example)
    }

    /// The weights of labels `[rows, ..]`, without their last dim if they have more.
    fn of_labels(&self, labels: &HostTensor) -> Result<HostTensor> {
        let (width, dims) = match labels.dims() {
            [dims @ .., width] if !dims.is_empty() => (*width, dims),
            dims => (1, dims),
        };
        if let Some(class) = self.0.keys().find(|&&class| !is_within(class, width)) {
            return Err(Error::User(format!(
                "class {class} has a weight, and labels of {width} classes are from 0 to {}; correct or remove the weight",
                width.saturating_sub(1)
            )));
        }
        let values = labels.to_f64();
        let mut weights = Vec::with_capacity(values.len() / width.max(1));
        for label in values.chunks_exact(width.max(1)) {
            check_shares(label, labels.shape())?;
            let class = class_of_label(label);
            weights.push(self.0.get(&class).copied().unwrap_or(1.0));
        }
        Ok(HostTensor::new(dims, &weights))
    }
}

/// Refuses labels `[rows, ..]` of several classes for each row.
fn check_one_each(labels: &HostTensor) -> Result<()> {
    if labels.dims().len() <= 2 {
        return Ok(());
    }
    Err(Error::User(format!(
        "an example has one weight, and labels {} are a class for each of its steps or pixels; weigh whole batches, by `Batches::class_weights`",
        labels.shape()
    )))
}

/// Refuses a label of several numbers that are no shares of classes: where they are whole numbers one 1 and zeros, or zeros alone, which
/// fill up.
fn check_shares(label: &[f64], shape: &Shape) -> Result<()> {
    let is_share = |value: &f64| (-1e-3..=1.001).contains(value);
    let is_whole = label.iter().all(|value| value.fract() == 0.0);
    let is_one_hot = !is_whole || label.iter().sum::<f64>() <= 1.0;
    if label.len() == 1 || label.iter().all(is_share) && is_one_hot {
        return Ok(());
    }
    Err(Error::User(format!(
        "class weights need a class for each row, or of several numbers one that is 1 and zeros, or shares from 0 to 1, got labels {shape} with the row {label:?}; give classes of steps or pixels a last dim of 1, and else use sample weights"
    )))
}

/// Weights of samples, of steps or of pixels times others, of which each of the fewer dims counts for all that are behind it.
fn multiplied(given: &HostTensor, of_classes: &HostTensor) -> Result<HostTensor> {
    let (long, short) = match given.dims().len() < of_classes.dims().len() {
        true => (of_classes, given),
        false => (given, of_classes),
    };
    if !long.dims().starts_with(short.dims()) {
        return Err(Error::User(format!(
            "the batch has {} rows and weights {}, and its labels have classes {:?}, expected weights of each row or of each class; correct the weights",
            of_classes.rows(),
            given.shape(),
            of_classes.dims()
        )));
    }
    let each = (long.shape().len() / short.shape().len().max(1)).max(1);
    let (long_values, short_values) = (long.to_f64(), short.to_f64());
    let rows = long_values.chunks(each).zip(&short_values);
    let products =
        rows.flat_map(|(row, weight)| row.iter().map(move |value| (value * weight) as f32));
    Ok(HostTensor::new(
        long.dims(),
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
    use phalanx_graph::DType;

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
        let mut one = example(&[1.0], Some(3.0));
        one.y = vec![HostTensor::new([3], &[0.0f32, 0.0, 1.0])];
        assert_eq!(weights.apply(one).unwrap().weight, Some(1.5));
    }

    /// By Keras' rule, which it applies to one class for each example: the last dim is taken away.
    #[test]
    fn steps_and_pixels_have_weights_of_their_own() {
        let weights = ClassWeights::new([(0, 2.0), (1, 0.5)]).unwrap();
        let weighed = |y: HostTensor, weight: Option<HostTensor>| {
            let batch = Batch {
                x: Vec::new(),
                y: vec![y],
                weight,
                first: 0,
            };
            Ok::<_, Error>(weights.apply_to_batch(batch)?.weight.unwrap())
        };
        let pixels = HostTensor::new([2, 1, 2, 1], &[0i32, 1, 2, 0]);
        let got = weighed(pixels.clone(), None).unwrap();
        assert_eq!(
            (got.dims(), got.f32s()),
            (&[2, 1, 2][..], vec![2.0, 0.5, 1.0, 2.0])
        );
        let rows = HostTensor::new([2], &[1.0f32, 3.0]);
        let got = weighed(pixels.clone(), Some(rows)).unwrap();
        assert_eq!(
            (got.dims(), got.f32s()),
            (&[2, 1, 2][..], vec![2.0, 0.5, 3.0, 6.0])
        );
        let one_hot = HostTensor::new([1, 2, 2], &[0.0f32, 1.0, 1.0, 0.0]);
        let got = weighed(one_hot, None).unwrap();
        assert_eq!((got.dims(), got.f32s()), (&[1, 2][..], vec![0.5, 2.0]));
        let steps = HostTensor::new([1, 3], &[0i32, 1, 1]);
        let error = weighed(steps, None).unwrap_err().to_string();
        let expected = "one that is 1 and zeros, or shares from 0 to 1, got labels i32[1,3] with the row [0.0, 1.0, 1.0]; give classes of steps or pixels a last dim of 1";
        assert!(error.contains(expected), "{error}");
        assert!(weighed(HostTensor::new([1, 2], &[2.0f32, 0.0]), None).is_err());
        assert!(weighed(HostTensor::new([1, 3], &[0.0f32, 1.0, 1.0]), None).is_err());
        let data = Dataset::from_arrays(HostTensor::new([2], &[0.0f32; 2]), pixels).unwrap();
        let error = data
            .class_weights(weights.clone())
            .batch(2)
            .get(0, 0)
            .unwrap_err();
        assert!(
            error.to_string().contains("`Batches::class_weights`"),
            "{error}"
        );
    }

    /// Zeros alone, which fill up, are of class 0 in every type, as Keras' greatest value is the first of equal ones.
    #[test]
    fn shares_and_rows_that_fill_up_are_weighed() {
        let weights = ClassWeights::new([(0, 2.0), (1, 0.5)]).unwrap();
        let one_hot = HostTensor::new([2, 2], &[0i32, 1, 0, 0]);
        for dtype in [DType::I32, DType::U8, DType::Bool, DType::F32, DType::Bf16] {
            let weights = weights.of_labels(&one_hot.convert(dtype)).unwrap();
            assert_eq!(weights.f32s(), [0.5, 2.0], "{dtype}");
        }
        let soft = HostTensor::new([2, 2], &[0.25f32, 0.75, 0.9, 0.9]);
        assert_eq!(weights.of_labels(&soft).unwrap().f32s(), [0.5, 2.0]);
        for beyond in [-0.5f32, 1.5] {
            let error = weights.of_labels(&HostTensor::new([1, 2], &[beyond, 0.5]));
            assert!(
                error
                    .unwrap_err()
                    .to_string()
                    .contains("or shares from 0 to 1")
            );
        }
    }

    #[test]
    fn bad_class_weights_are_refused() {
        assert!(ClassWeights::new([(0, -1.0)]).is_err());
        assert!(ClassWeights::new([(0, f32::NAN)]).is_err());
        assert!(ClassWeights::new([(0, 1.0), (0, 2.0)]).is_err());
    }
}
