//! `pad`: examples of different sizes made equal.

use phalanx_graph::{AlignedBytes, DType, HostTensor, Shape};

use super::Example;
use crate::{Error, Result};

/// How examples of different sizes become one batch (`tf.data`'s `padded_batch`): each dim is padded at its end to the
/// longest of the batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pad {
    /// What inputs are padded with.
    pub x: f64,
    /// What outputs are padded with.
    pub y: f64,
    /// Dims that differ are padded to a multiple of this, and the first dim of inputs and of outputs with a value for each of their
    /// steps, as some examples of the data tell them, even where it does not: a program is compiled for each length of a batch, so a larger number means fewer programs and
    /// more padding.
    pub multiple: usize,
}

impl Default for Pad {
    /// Zeros, to the longest.
    fn default() -> Self {
        Self {
            x: 0.0,
            y: 0.0,
            multiple: 1,
        }
    }
}

impl Pad {
    /// The examples with tensors of equal dims; `sequences` says which outputs may have a value for each step of an input.
    ///
    /// # Errors
    /// When two differ in the number, element type or number of dims of their tensors.
    pub(super) fn apply(&self, examples: &mut [Example], sequences: &Sequences) -> Result<()> {
        let x = DimRange::of_each(examples, "x", |example| &example.x)?;
        let y = DimRange::of_each(examples, "y", |example| &example.y)?;
        // The first dim of an input is the length of a sequence, and rounded up even where all lengths of this batch happen to
        // be equal. An output has it rounded with an input, as a label for each step; others, such as a class, are left alone.
        let lengths: Vec<usize> = x.iter().filter_map(DimRange::even_length).collect();
        let x: Vec<_> = x.iter().map(|range| self.dims(range, true)).collect();
        let in_step = |range: &DimRange| range.even_length().is_some_and(|l| lengths.contains(&l));
        let y = y.iter().enumerate();
        let y = y.map(|(t, range)| self.dims(range, sequences.has(t) && in_step(range)));
        let y: Vec<_> = y.collect();
        for example in examples {
            pad_all(&mut example.x, &x, self.x);
            pad_all(&mut example.y, &y, self.y);
        }
        Ok(())
    }

    /// The examples with tensors of these dims, inputs first.
    ///
    /// # Errors
    /// When a tensor has other dims than it can be padded to.
    pub(super) fn apply_to(&self, examples: &mut [Example], dims: &[Vec<usize>]) -> Result<()> {
        for example in examples {
            let tensors = example.x.iter().chain(&example.y);
            for (tensor, dims) in tensors.zip(dims) {
                let own = tensor.dims();
                if own.len() != dims.len() || own.iter().zip(dims).any(|(own, to)| own > to) {
                    return Err(Error::User(format!(
                        "an example has a tensor {}, to be padded to {dims:?}: it was shorter when its length was asked for; change lengths before, not by chance in each epoch",
                        tensor.shape()
                    )));
                }
            }
            let (x, y) = dims.split_at(example.x.len().min(dims.len()));
            pad_all(&mut example.x, x, self.x);
            pad_all(&mut example.y, y, self.y);
        }
        Ok(())
    }

    /// The longest dims, rounded up where they differ; the first too where it `is_length`.
    fn dims(&self, range: &DimRange, is_length: bool) -> Vec<usize> {
        let dims = range.longest.iter().zip(&range.shortest).enumerate();
        dims.map(|(k, (longest, shortest))| {
            if longest != shortest || k == 0 && is_length {
                longest.next_multiple_of(self.multiple.max(1))
            } else {
                *longest
            }
        })
        .collect()
    }
}

/// Which outputs have as many values as an input has steps, in each of some examples of the data. In one batch alone a one-hot class may
/// happen to be as long as all of its texts.
pub(super) struct Sequences(Vec<bool>);

impl Sequences {
    /// As these examples are.
    pub(super) fn of(examples: &[Example]) -> Self {
        let count = examples.iter().map(|example| example.y.len()).min();
        let length = |tensors: &[HostTensor], t: usize| tensors.get(t)?.dims().first().copied();
        let is_sequence = |t: usize| {
            let inputs = 0..examples.first().map_or(0, |example| example.x.len());
            inputs.into_iter().any(|k| {
                examples.iter().all(|example| {
                    let steps = length(&example.x, k);
                    steps.is_some() && steps == length(&example.y, t)
                })
            })
        };
        Self((0..count.unwrap_or(0)).map(is_sequence).collect())
    }

    /// Whether this output is one; none is known of data that cannot be read.
    fn has(&self, output: usize) -> bool {
        self.0.get(output).copied().unwrap_or(false)
    }
}

/// The smallest and largest sizes of the dims of one tensor of all examples.
struct DimRange {
    shortest: Vec<usize>,
    longest: Vec<usize>,
}

impl DimRange {
    /// Of each tensor that all examples have.
    fn of_each(
        examples: &[Example],
        name: &str,
        of: fn(&Example) -> &Vec<HostTensor>,
    ) -> Result<Vec<Self>> {
        let count = examples.iter().map(|e| of(e).len()).min().unwrap_or(0);
        let ranges = (0..count).map(|t| {
            let mut shapes = examples.iter().map(|example| of(example)[t].shape());
            Self::of(&mut shapes, &format!("{name}[{t}]"))
        });
        ranges.collect()
    }

    fn of(shapes: &mut dyn Iterator<Item = &Shape>, name: &str) -> Result<Self> {
        let Some(first) = shapes.next() else {
            return Err(Error::Bug("padding of a batch without examples".into()));
        };
        let mut range = Self {
            shortest: first.dims.clone(),
            longest: first.dims.clone(),
        };
        for shape in shapes {
            if shape.dims.len() != first.dims.len() || shape.dtype != first.dtype {
                return Err(Error::User(format!(
                    "examples of one batch differ: {name} is {first} in one and {shape} in another; padding makes dims longer, \
                     bring element type and number of dims into line in a map stage"
                )));
            }
            for (k, &dim) in shape.dims.iter().enumerate() {
                range.longest[k] = range.longest[k].max(dim);
                range.shortest[k] = range.shortest[k].min(dim);
            }
        }
        Ok(range)
    }

    /// The first dim, where all examples have the same.
    fn even_length(&self) -> Option<usize> {
        let first = self.longest.first().copied()?;
        (self.shortest.first() == Some(&first)).then_some(first)
    }
}

/// Tensors with these dims.
fn pad_all(tensors: &mut [HostTensor], dims: &[Vec<usize>], value: f64) {
    for (tensor, dims) in tensors.iter_mut().zip(dims) {
        if tensor.dims() != dims {
            *tensor = padded(tensor, dims, value);
        }
    }
}

/// The tensor at the start of a larger one.
fn padded(tensor: &HostTensor, dims: &[usize], value: f64) -> HostTensor {
    let mut bytes = filled(tensor.shape().dtype, dims, value);
    let size = tensor.shape().dtype.size();
    copy_into(
        bytes.as_mut_slice(),
        dims,
        tensor.bytes(),
        tensor.dims(),
        size,
    );
    HostTensor::from_aligned(Shape::new(tensor.shape().dtype, dims.to_vec()), bytes)
}

fn filled(dtype: DType, dims: &[usize], value: f64) -> AlignedBytes {
    let one = HostTensor::full(Shape::new(dtype, []), value);
    let count: usize = dims.iter().product();
    let mut bytes = AlignedBytes::zeroed(count * one.bytes().len());
    if one.bytes().iter().any(|&byte| byte != 0) {
        let values = bytes.as_mut_slice().chunks_exact_mut(one.bytes().len());
        values.for_each(|slot| slot.copy_from_slice(one.bytes()));
    }
    bytes
}

/// Copies an array of `from` dims to the start of one of `to` dims, of values of `size` bytes.
fn copy_into(out: &mut [u8], to: &[usize], bytes: &[u8], from: &[usize], size: usize) {
    let ([to_rows, to_rest @ ..], [from_rows, from_rest @ ..]) = (to, from) else {
        return out.copy_from_slice(bytes);
    };
    if from.contains(&0) {
        return;
    }
    if to_rest == from_rest {
        return out[..bytes.len()].copy_from_slice(bytes);
    }
    let rows = out.chunks_exact_mut(size * to_rest.iter().product::<usize>());
    let values = bytes.chunks_exact(size * from_rest.iter().product::<usize>());
    debug_assert!(to_rows >= from_rows, "padding makes dims longer");
    for (row, values) in rows.zip(values) {
        copy_into(row, to_rest, values, from_rest, size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Dataset, Source};

    /// Example i: i numbers, a matrix of i by i % 2, a label.
    struct Growing(usize);

    impl Source for Growing {
        fn len(&self) -> usize {
            self.0
        }

        fn get(&self, i: usize) -> Result<Example> {
            let numbers: Vec<i32> = (1..=i as i32).collect();
            Ok(Example {
                x: vec![
                    HostTensor::new([i], &numbers),
                    HostTensor::new([i, i % 2 + 1], &vec![1.0f32; i * (i % 2 + 1)]),
                ],
                y: vec![HostTensor::new([i], &numbers)],
                weight: None,
            })
        }
    }

    #[test]
    fn examples_grow_to_the_longest_of_their_batch() {
        let growing = Dataset::from_source(Growing(5));
        let refused = growing.batch(2).get(0, 0).unwrap_err().to_string();
        assert!(refused.contains("or pad the batches"), "{refused}");
        let pad = Pad {
            y: -1.0,
            ..Pad::default()
        };
        let batch = growing.batch(3).pad(pad).get(0, 0).unwrap();
        assert_eq!(batch.x[0], HostTensor::new([3, 2], &[0i32, 0, 1, 0, 1, 2]));
        assert_eq!(
            batch.y[0],
            HostTensor::new([3, 2], &[-1i32, -1, 1, -1, 1, 2])
        );
        let matrix = [
            0.0f32, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0,
        ];
        assert_eq!(batch.x[1], HostTensor::new([3, 2, 2], &matrix));
        let rounded = Pad { multiple: 4, ..pad };
        let dims = |i| {
            let batch = growing.batch(2).pad(rounded).get(0, i).unwrap();
            [batch.x[0].dims().to_vec(), batch.x[1].dims().to_vec()]
        };
        assert_eq!(dims(0), [vec![2, 4], vec![2, 4, 4]]);
        assert_eq!(dims(2), [vec![1, 4], vec![1, 4, 1]]);
    }

    /// Example i: a text of as many words, a class, a one-hot class, a label for each word.
    struct Texts(&'static [usize]);

    impl Source for Texts {
        fn len(&self) -> usize {
            self.0.len()
        }

        fn get(&self, i: usize) -> Result<Example> {
            let of = |length| HostTensor::zeros(Shape::f32([length]));
            Ok(Example {
                x: vec![of(self.0[i])],
                y: vec![of(1), of(3), of(self.0[i])],
                weight: None,
            })
        }
    }

    #[test]
    fn outputs_of_one_size_are_not_rounded() {
        let pad = Pad {
            multiple: 4,
            ..Pad::default()
        };
        for lengths in [&[2, 5][..], &[5, 5], &[5]] {
            let texts = Dataset::from_source(Texts(lengths)).batch(lengths.len());
            let batch = texts.pad(pad).get(0, 0).unwrap();
            let length = |tensor: &HostTensor| tensor.dims()[1];
            assert_eq!(length(&batch.x[0]), 8);
            let y: Vec<usize> = batch.y.iter().map(length).collect();
            assert_eq!(y, [1, 3, 8]);
        }
    }

    /// Of a batch alone it cannot be said: a class of three is as long as its texts.
    #[test]
    fn classes_as_long_as_all_texts_of_a_batch_stay_classes() {
        let pad = Pad {
            multiple: 4,
            ..Pad::default()
        };
        let texts = Dataset::from_source(Texts(&[3, 3, 7, 2])).batch(2).pad(pad);
        let whole = texts.get(0, 0).unwrap();
        let dims: Vec<&[usize]> = whole.y.iter().map(HostTensor::dims).collect();
        assert_eq!(dims, [&[2, 1][..], &[2, 3], &[2, 4]]);
        let worker = crate::data::Worker::new(1, 2);
        let sharded = texts.shard(worker, crate::data::AutoShardPolicy::Data);
        let part = sharded.unwrap().get(0, 0).unwrap();
        assert_eq!(part.y[1].dims(), [1, 3]);
    }

    #[test]
    fn what_padding_cannot_mend_is_refused() {
        let mixed = Dataset::from_source(Growing(2)).map(|mut example| {
            if example.x[0].rows() == 1 {
                example.x[0] = HostTensor::scalar(1i32);
            }
            Ok(example)
        });
        let error = mixed.batch(2).pad(Pad::default()).get(0, 0).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("x[0] is i32[0] in one and i32[] in another"),
            "{error}"
        );
    }
}
