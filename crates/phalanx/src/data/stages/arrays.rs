//! `from_arrays`: arrays in memory, gathered without a copy where rows follow one another.

use phalanx_graph::{HOST_ALIGNMENT, HostTensor, Shape};

use super::{Sharded, Stage};
use crate::data::agreement::of_rows;
use crate::data::buffer_pool::BufferPool;
use crate::data::shard::NotShardable;
use crate::data::{Batch, Dataset, Example, Worker};
use crate::{Error, Result};

/// Arrays in memory, examples along the first dim.
struct Arrays {
    x: Vec<HostTensor>,
    y: Vec<HostTensor>,
    weight: Option<HostTensor>,
    rows: usize,
    buffer_pool: BufferPool,
}

impl Dataset {
    /// Arrays in memory: inputs and outputs with examples along the first dim, one tensor or several each.
    ///
    /// The outputs may be an empty `Vec`. The bytes are shared, not copied.
    ///
    /// # Errors
    /// When there is no input, or the arrays differ in their first dim.
    pub fn from_arrays(
        x: impl Into<Vec<HostTensor>>,
        y: impl Into<Vec<HostTensor>>,
    ) -> Result<Self> {
        Ok(Self::of(Arrays::new(x.into(), y.into())?))
    }

    /// The rows of a batch as arrays in memory, with its weights.
    ///
    /// # Errors
    /// As [`from_arrays`](Self::from_arrays) and [`with_weights`](Self::with_weights); weights of steps do not fit.
    pub fn from_batch(batch: Batch) -> Result<Self> {
        let rows = Self::from_arrays(batch.x, batch.y)?;
        match &batch.weight {
            None => Ok(rows),
            Some(weight) => rows.with_weights(weight),
        }
    }

    /// The same arrays with a weight per example, a float tensor `[examples]`.
    ///
    /// # Errors
    /// When this dataset is not fresh from arrays or CSV, or the weights do not fit it.
    pub fn with_weights(&self, weights: &HostTensor) -> Result<Self> {
        self.stage().with_weights(weights).unwrap_or_else(|| {
            Err(Error::user(
                "sample weights belong to arrays; call with_weights right after from_arrays or from_csv, \
                 or set the weight of each example in a map stage",
            ))
        })
    }
}

impl Arrays {
    fn new(x: Vec<HostTensor>, y: Vec<HostTensor>) -> Result<Self> {
        let Some(rows) = x.first().map(HostTensor::rows) else {
            return Err(Error::user(
                "a dataset needs at least one input array, got none; pass x",
            ));
        };
        for (name, tensors) in [("x", &x), ("y", &y)] {
            for (t, tensor) in tensors.iter().enumerate() {
                check_rows(&format!("{name}[{t}]"), tensor, rows)?;
            }
        }
        let (weight, buffer_pool) = (None, BufferPool::default());
        Ok(Self {
            x,
            y,
            weight,
            rows,
            buffer_pool,
        })
    }

    fn weighted(&self, weight: &HostTensor) -> Result<Self> {
        if !(weight.dims() == [self.rows] && weight.dtype().is_float()) {
            return Err(Error::User(format!(
                "sample weights are {}, expected f32[{}], one number per example; reshape or convert them",
                weight.shape(),
                self.rows
            )));
        }
        let weight = weight.convert(phalanx_graph::DType::F32);
        if let Some(i) = weight
            .f32s()
            .iter()
            .position(|w| !(*w >= 0.0 && w.is_finite()))
        {
            return Err(Error::User(format!(
                "sample weight of example {i} is {}, expected a finite number from 0 up; correct it, 0 leaves an example out",
                weight.f32s()[i]
            )));
        }
        Ok(Self {
            x: self.x.clone(),
            y: self.y.clone(),
            weight: Some(weight),
            rows: self.rows,
            buffer_pool: BufferPool::default(),
        })
    }

    fn get(&self, i: usize) -> Result<Example> {
        self.check_index(i)?;
        let row = |tensor: &HostTensor| row(tensor, i);
        Ok(Example {
            x: self.x.iter().map(row).collect(),
            y: self.y.iter().map(row).collect(),
            weight: self.weight.as_ref().map(|weight| row(weight).f32s()[0]),
        })
    }

    fn gather_rows(&self, indices: &[usize]) -> Result<Batch> {
        indices.iter().try_for_each(|&i| self.check_index(i))?;
        let rows = |tensor: &HostTensor| gather_rows(tensor, indices, &self.buffer_pool);
        Ok(Batch {
            x: self.x.iter().map(rows).collect(),
            y: self.y.iter().map(rows).collect(),
            weight: self.weight.as_ref().map(rows),
            first: 0,
        })
    }

    fn check_index(&self, i: usize) -> Result<()> {
        if i < self.rows {
            return Ok(());
        }
        let rows = self.rows;
        Err(Error::User(format!(
            "example {i} asked of {rows}; ask for an index below {rows}"
        )))
    }
}

fn check_rows(name: &str, tensor: &HostTensor, rows: usize) -> Result<()> {
    let shape = tensor.shape();
    let message = if tensor.dims().is_empty() {
        format!(
            "{name} is the scalar {shape}, expected an array with examples along the first dim; reshape it"
        )
    } else if tensor.rows() != rows {
        format!(
            "{name} is {shape}, {} examples, but x[0] has {rows}; give every array the same first dim",
            tensor.rows()
        )
    } else if tensor.row_bytes() == 0 {
        format!(
            "{name} is {shape}, which holds no value per example; leave it out or give its dims a size"
        )
    } else {
        return Ok(());
    };
    Err(Error::User(message))
}

impl Stage for Arrays {
    fn inputs(&self) -> &[Dataset] {
        &[]
    }

    fn len(&self) -> Option<usize> {
        Some(self.rows)
    }

    fn weighs(&self) -> bool {
        self.weight.is_some()
    }

    fn read(&self, _epoch: u64, i: usize, _count: u64) -> Result<Option<Example>> {
        self.get(i).map(Some)
    }

    fn gather(&self, _epoch: u64, indices: &[usize], _pool: &BufferPool) -> Result<Batch> {
        self.gather_rows(indices)
    }

    fn contents(&self) -> u32 {
        let tensors = self.x.iter().chain(&self.y).chain(&self.weight);
        tensors.fold(0, |sum, tensor| {
            of_rows(sum, tensor.bytes(), tensor.row_bytes())
        })
    }

    fn shard_by_file(&self, _worker: Worker) -> Sharded {
        Err(NotShardable::Unfit("the data are in memory".into()))
    }

    fn with_weights(&self, weights: &HostTensor) -> Option<Result<Dataset>> {
        Some(self.weighted(weights).map(Dataset::of))
    }
}

fn row(tensor: &HostTensor, i: usize) -> HostTensor {
    let dims = tensor.dims()[1..].to_vec();
    tensor.slice_rows(i, i + 1).reshape(dims).expect("one row")
}

fn gather_rows(tensor: &HostTensor, indices: &[usize], buffer_pool: &BufferPool) -> HostTensor {
    // Rows that cannot share the tensor's bytes are copied into memory that was used before.
    if let [first, .., last] = *indices
        && (first * tensor.row_bytes()).is_multiple_of(HOST_ALIGNMENT)
        && indices.windows(2).all(|pair| pair[0] + 1 == pair[1])
    {
        return tensor.slice_rows(first, last + 1);
    }
    let row = tensor.row_bytes();
    let mut bytes = buffer_pool.take(row * indices.len());
    let rows = bytes.as_mut_slice().chunks_exact_mut(row);
    for (slot, &i) in rows.zip(indices) {
        slot.copy_from_slice(&tensor.bytes()[i * row..][..row]);
    }
    let dims = [&[indices.len()], &tensor.dims()[1..]].concat();
    let gathered = HostTensor::from_aligned(Shape::new(tensor.dtype(), dims), bytes);
    buffer_pool.lend(&gathered);
    gathered
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrays() -> Arrays {
        let x = HostTensor::new([3, 2], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let arrays = Arrays::new(vec![x], vec![HostTensor::new([3], &[7i32, 8, 9])]).unwrap();
        arrays
            .weighted(&HostTensor::new([3], &[0.0f32, 1.0, 2.0]))
            .unwrap()
    }

    #[test]
    fn the_fast_gather_equals_stacked_examples() {
        let arrays = arrays();
        let indices = [2, 0, 0, 1];
        let examples: Vec<_> = indices.iter().map(|&i| arrays.get(i).unwrap()).collect();
        assert_eq!(
            arrays.gather_rows(&indices).unwrap(),
            Batch::stack(&examples).unwrap()
        );
        assert_eq!(arrays.get(1).unwrap().y[0], HostTensor::scalar(8i32));
        assert_eq!(arrays.get(2).unwrap().weight, Some(2.0));
        assert!(arrays.get(3).is_err() && arrays.gather_rows(&[0, 3]).is_err());
    }

    #[test]
    fn buffers_are_used_again_only_when_free() {
        let values: Vec<f32> = (0..40_000).map(|v| v as f32).collect();
        let arrays = Arrays::new(vec![HostTensor::new([4, 10_000], &values)], Vec::new()).unwrap();
        let shared = arrays.gather_rows(&[0, 1]).unwrap();
        let rows = arrays.x[0].bytes().as_ptr();
        assert_eq!(
            shared.x[0].bytes().as_ptr(),
            rows,
            "rows in order are not copied"
        );
        assert_eq!(shared, arrays.gather_rows(&[0, 1]).unwrap());
        let held = arrays.gather_rows(&[1, 0]).unwrap();
        let copy = HostTensor::from_bytes(held.x[0].shape().clone(), held.x[0].bytes()).unwrap();
        let address = arrays.gather_rows(&[3, 2]).unwrap().x[0].bytes().as_ptr();
        let again = arrays.gather_rows(&[1, 1]).unwrap();
        assert_eq!(
            again.x[0].bytes().as_ptr(),
            address,
            "a freed buffer is used again"
        );
        assert_eq!(held.x[0], copy, "a held buffer is left alone");
    }

    #[test]
    fn arrays_that_do_not_fit_are_refused() {
        let x = HostTensor::new([2, 1], &[1.0f32, 2.0]);
        let cases = [
            (vec![], vec![], "at least one input"),
            (
                vec![HostTensor::scalar(1.0f32)],
                vec![],
                "x[0] is the scalar f32[]",
            ),
            (
                vec![x.clone()],
                vec![HostTensor::new([3], &[1i32; 3])],
                "y[0] is i32[3], 3 examples, but x[0] has 2",
            ),
            (
                vec![HostTensor::zeros(Shape::f32([2, 0]))],
                vec![],
                "no value per example",
            ),
        ];
        for (inputs, outputs, expected) in cases {
            let error = Arrays::new(inputs, outputs)
                .err()
                .expect(expected)
                .to_string();
            assert!(error.contains(expected), "{error}");
        }
        let arrays = Arrays::new(vec![x], Vec::new()).unwrap();
        for weights in [
            HostTensor::new([2], &[1i32, 1]),
            HostTensor::new([1], &[1.0f32]),
            HostTensor::new([2], &[1.0f32, -1.0]),
        ] {
            assert!(arrays.weighted(&weights).is_err());
        }
    }
}
