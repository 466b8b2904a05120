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
    /// Dims that differ are padded to a multiple of this: a program is compiled for each length of a batch, so a
    /// larger number means fewer programs and more padding.
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
    /// The examples with tensors of equal dims.
    ///
    /// # Errors
    /// When two differ in the number, element type or number of dims of their tensors.
    pub(super) fn apply(&self, examples: &mut [Example]) -> Result<()> {
        self.apply_to(examples, "x", self.x, |example| &mut example.x)?;
        self.apply_to(examples, "y", self.y, |example| &mut example.y)
    }

    fn apply_to(
        &self,
        examples: &mut [Example],
        name: &str,
        value: f64,
        of: fn(&mut Example) -> &mut Vec<HostTensor>,
    ) -> Result<()> {
        let count = examples.iter_mut().map(|e| of(e).len()).min().unwrap_or(0);
        for t in 0..count {
            let mut tensors: Vec<&mut HostTensor> =
                examples.iter_mut().map(|e| &mut of(e)[t]).collect();
            let dims = self.dims(&tensors, &format!("{name}[{t}]"))?;
            for tensor in &mut tensors {
                if tensor.dims() != dims {
                    **tensor = padded(tensor, &dims, value);
                }
            }
        }
        Ok(())
    }

    /// The dims of all: the longest, rounded up where they differ.
    fn dims(&self, tensors: &[&mut HostTensor], name: &str) -> Result<Vec<usize>> {
        let first = tensors[0].shape();
        let mut longest = first.dims.clone();
        let mut shortest = first.dims.clone();
        for tensor in tensors {
            let shape = tensor.shape();
            if shape.dims.len() != first.dims.len() || shape.dtype != first.dtype {
                return Err(Error::User(format!(
                    "examples of one batch differ: {name} is {first} in one and {shape} in another; padding makes dims longer, \
                     bring element type and number of dims into line in a map stage"
                )));
            }
            for (k, &dim) in shape.dims.iter().enumerate() {
                longest[k] = longest[k].max(dim);
                shortest[k] = shortest[k].min(dim);
            }
        }
        // The first dim, the length of a sequence, is rounded up even where all lengths of this batch happen to be equal.
        let rounded = |(k, dim): (usize, &mut usize)| {
            if k == 0 || shortest[k] != *dim {
                *dim = dim.next_multiple_of(self.multiple.max(1));
            }
        };
        longest.iter_mut().enumerate().for_each(rounded);
        Ok(longest)
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
