//! Values of replicas, and their reduction on the host.

use std::sync::Arc;

use phalanx_graph::{AlignedBytes, DType, HostTensor, Shape};
use phalanx_pjrt::Buffer;

use super::all_workers::of_all_replicas;
use super::distributed_batch::ExampleRows;
use super::handle::StrategyHandle;
use crate::{Error, Result};

/// A value on the device of each replica: a result of a [`Function`](super::Function), or an argument for one; clones
/// share it.
#[derive(Clone)]
pub struct PerReplica {
    strategy: StrategyHandle,
    parts: Arc<[ReplicaBuffer]>,
    same: bool,
    first_dim: FirstDim,
    /// The runs after which it is there.
    runs: usize,
}

/// What one replica has.
pub(super) struct ReplicaBuffer {
    pub(super) buffer: Buffer,
    pub(super) shape: Shape,
}

/// What the first dim of a value is.
#[derive(Clone)]
pub(super) enum FirstDim {
    /// No batch, or one that fills the arrays.
    Other,
    /// A batch, with rows that may only fill up.
    Examples(Arc<ExampleRows>),
    /// As long as the arrays of a batch with rows that only fill up: the function did not say of its result of this
    /// number whether it is one.
    Unsaid(Arc<ExampleRows>, usize),
}

/// The replica that a value is made for; see
/// [`distribute_values_from_function`](super::CustomTraining::distribute_values_from_function).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueContext {
    /// The replica's number, from 0.
    pub replica_id: usize,
    /// How many there are.
    pub num_replicas_in_sync: usize,
}

/// How the values of replicas become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduce {
    /// The sum.
    Sum,
    /// The sum divided by how many there are: rows, where it is over dim 0.
    Mean,
    /// The smallest.
    Min,
    /// The largest.
    Max,
    /// Whether all are true.
    And,
}

impl PerReplica {
    pub(super) fn new(
        strategy: &StrategyHandle,
        parts: Vec<ReplicaBuffer>,
        same: bool,
        first_dim: FirstDim,
    ) -> Self {
        Self {
            strategy: strategy.clone(),
            parts: parts.into(),
            same,
            first_dim,
            runs: 1,
        }
    }

    /// The same, made by the last of some runs.
    pub(super) fn after(self, runs: usize) -> Self {
        Self { runs, ..self }
    }

    /// A host's value on the device of each replica.
    pub(super) fn put(
        strategy: &StrategyHandle,
        values: &[HostTensor],
        same: bool,
    ) -> Result<Self> {
        strategy.check_replicas()?;
        let placement = &strategy.placement;
        let put = |(value, &device): (&HostTensor, &usize)| {
            Ok(ReplicaBuffer {
                buffer: placement.engine().put(device, value)?,
                shape: value.shape().clone(),
            })
        };
        let parts = values.iter().zip(placement.devices()).map(put);
        let parts = parts.collect::<Result<_>>()?;
        Ok(Self::new(strategy, parts, same, FirstDim::Other))
    }

    pub(super) fn buffer(&self, replica: usize) -> &Buffer {
        &self.parts[replica].buffer
    }

    pub(super) const fn is_replicated(&self) -> bool {
        self.same
    }

    /// The rows of the batch that its first dim is.
    pub(super) const fn rows(&self) -> Option<&Arc<ExampleRows>> {
        match &self.first_dim {
            FirstDim::Examples(rows) => Some(rows),
            FirstDim::Other | FirstDim::Unsaid(..) => None,
        }
    }

    /// What the function has to say of its first dim before it is used.
    pub(super) fn unsaid(&self) -> Option<String> {
        let FirstDim::Unsaid(rows, result) = &self.first_dim else {
            return None;
        };
        let (each, counts) = (rows.each, &rows.counts);
        Some(format!(
            "result {result} of the function has {each} rows on each replica, as the arrays of the batch, of which only {counts:?} are examples and the others fill up; return `cx.per_example(&result)` where its rows are examples, and those others are left out, or `cx.per_replica(&result)` where its first dim is something else"
        ))
    }

    /// The shape that all replicas have, rows that only fill up included.
    pub(super) fn common_shape(&self, name: &str) -> Result<&Shape> {
        let first = &self.parts[0].shape;
        let other = self.parts.iter().position(|part| part.shape != *first);
        let Some(replica) = other else {
            return Ok(first);
        };
        Err(Error::user(format!(
            "{name} is {first} on replica 0 and {} on replica {replica}; replicas run one program: give all of them one shape, or distribute a batch, which is filled up",
            self.parts[replica].shape
        )))
    }

    pub(super) fn check_strategy(&self, what: &str, strategy: &StrategyHandle) -> Result<()> {
        strategy.check(what, &self.strategy)
    }

    /// The value, where it is the same on all replicas: what no replica's own part of the batch went into, or what was
    /// reduced or gathered since.
    ///
    /// # Errors
    /// When it is not; when the device fails.
    pub fn value(&self) -> Result<HostTensor> {
        if self.same || self.strategy.replicas() == 1 {
            return self.read(0);
        }
        Err(Error::user(
            "the value differs between replicas; all-reduce it in the function, or use `reduce`, `gather` or `local_results`",
        ))
    }

    /// The value of each replica of this process, in their order, without rows that only fill up the batch.
    ///
    /// # Errors
    /// When the value has as many rows as arrays of a batch that is filled up, and the function did not say whether they
    /// are [examples](super::ReplicaCx::per_example) or [not](super::ReplicaCx::per_replica); when the device fails.
    pub fn local_results(&self) -> Result<Vec<HostTensor>> {
        if let Some(why) = self.unsaid() {
            return Err(Error::user(why));
        }
        (0..self.parts.len())
            .map(|replica| self.read(replica))
            .collect()
    }

    fn read(&self, replica: usize) -> Result<HostTensor> {
        let part = &self.parts[replica];
        let engine = self.strategy.placement.engine();
        let whole = engine.get_of(&part.buffer, &part.shape, self.runs)?;
        // A program whose exchange failed goes on with zeros.
        if let Some(world) = self.strategy.world() {
            world.check()?;
        }
        Ok(match &self.first_dim {
            FirstDim::Examples(rows) if rows.counts[replica] < whole.rows() => {
                whole.slice_rows(0, rows.counts[replica])
            }
            _ => whole,
        })
    }

    /// Reduces the values of all replicas to one; over a dim of them too, with the size of that dim as the divisor of a
    /// mean, so that rows count equally however they are divided.
    pub(super) fn reduce(
        &self,
        strategy: &StrategyHandle,
        how: Reduce,
        dim: Option<usize>,
    ) -> Result<HostTensor> {
        self.check_strategy("a value", strategy)?;
        let values = of_all_replicas(strategy, self.local_results()?)?;
        check_reducible(&values[0], how, dim)?;
        check_equal_dims(&values, dim, "reduced")?;
        Ok(reduced(&values, how, dim))
    }

    /// The values of all replicas joined along a dim, in their order.
    pub(super) fn gather(&self, strategy: &StrategyHandle, dim: usize) -> Result<HostTensor> {
        self.check_strategy("a value", strategy)?;
        let values = of_all_replicas(strategy, self.local_results()?)?;
        let shape = values[0].shape();
        if shape.rank() == 0 {
            return Err(Error::user(format!(
                "cannot gather: each replica has {shape}, which has no dim to join along; reduce it, or give it a dim in the function with `reshape(&[1])`"
            )));
        }
        check_dim(shape, dim, "gather")?;
        check_equal_dims(&values, Some(dim), "gathered")?;
        Ok(joined(&values, dim))
    }
}

impl std::fmt::Debug for PerReplica {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shapes: Vec<String> = self.parts.iter().map(|p| p.shape.to_string()).collect();
        write!(f, "PerReplica {} of {}", shapes.join(", "), self.strategy)
    }
}

fn check_reducible(value: &HostTensor, how: Reduce, dim: Option<usize>) -> Result<()> {
    let (shape, dtype) = (value.shape(), value.dtype());
    if let Some(dim) = dim {
        check_dim(shape, dim, "reduce")?;
    }
    let wrong = match how {
        Reduce::And if dtype != DType::Bool => "`And` is of truth values",
        Reduce::Sum | Reduce::Min | Reduce::Max if dtype == DType::Bool => {
            "truth values are reduced by `And`"
        }
        Reduce::Mean if !dtype.is_float() => "a mean is of floating-point numbers",
        _ => return Ok(()),
    };
    Err(Error::user(format!(
        "cannot reduce {shape} by {how:?}: {wrong}; convert it in the function, or choose another reduction"
    )))
}

fn check_dim(shape: &Shape, dim: usize, doing: &str) -> Result<()> {
    if dim < shape.rank() {
        return Ok(());
    }
    Err(Error::user(format!(
        "cannot {doing} along dim {dim}: each replica has {shape}, of rank {}; dims are counted from 0",
        shape.rank()
    )))
}

/// Refuses values that differ in their rank, or in a dim other than `but`.
fn check_equal_dims(values: &[HostTensor], but: Option<usize>, doing: &str) -> Result<()> {
    let fixed = |value: &HostTensor| {
        let mut dims = value.dims().to_vec();
        if let Some(dim) = but.and_then(|dim| dims.get_mut(dim)) {
            *dim = 0;
        }
        (value.dtype(), dims)
    };
    let first = fixed(&values[0]);
    let Some(replica) = values.iter().position(|value| fixed(value) != first) else {
        return Ok(());
    };
    let (one, other) = (values[0].shape(), values[replica].shape());
    let rule = match but {
        Some(dim) => format!("all dims but dim {dim} must be equal"),
        None => "all must be equal, unless a dim is named to go over, as in `Some(0)`".to_owned(),
    };
    Err(Error::user(format!(
        "values of different shapes cannot be {doing}: replica 0 has {one}, replica {replica} has {other}; {rule}"
    )))
}

/// Values as blocks: `[outer, along, inner]`, `along` counting what is reduced or joined.
struct Blocks {
    outer: usize,
    inner: usize,
}

impl Blocks {
    fn of(shape: &Shape, dim: Option<usize>) -> Self {
        let Some(dim) = dim else {
            let inner = shape.len();
            return Self { outer: 1, inner };
        };
        Self {
            outer: shape.dims[..dim].iter().product(),
            inner: shape.dims[dim + 1..].iter().product(),
        }
    }
}

pub(super) fn reduced(values: &[HostTensor], how: Reduce, dim: Option<usize>) -> HostTensor {
    let mut shape = values[0].shape().clone();
    let count: usize = match dim {
        Some(dim) => values.iter().map(|value| value.dims()[dim]).sum(),
        None => values.len(),
    };
    let blocks = Blocks::of(&shape, dim);
    if let Some(dim) = dim {
        shape.dims.remove(dim);
    }
    let dtype = shape.dtype;
    if dtype.is_integer() {
        let values: Vec<Vec<i64>> = values.iter().map(integers).collect();
        let (first, combine): (i64, fn(i64, i64) -> i64) = match how {
            Reduce::Min => (i64::MAX, i64::min),
            Reduce::Max => (i64::MIN, i64::max),
            _ => (0, i64::wrapping_add),
        };
        let sums = combined(&values, &blocks, first, combine);
        return HostTensor::new(shape.dims, &sums).convert(dtype);
    }
    let values: Vec<Vec<f64>> = values.iter().map(HostTensor::to_f64).collect();
    let (first, combine): (f64, fn(f64, f64) -> f64) = match how {
        Reduce::Min => (f64::INFINITY, smaller),
        Reduce::Max => (f64::NEG_INFINITY, |a, b| -smaller(-a, -b)),
        Reduce::And => (1.0, smaller),
        Reduce::Sum | Reduce::Mean => (0.0, |a, b| a + b),
    };
    let mut sums = combined(&values, &blocks, first, combine);
    if how == Reduce::Mean {
        sums.iter_mut().for_each(|sum| *sum /= count as f64);
    }
    HostTensor::new(shape.dims, &sums).convert(dtype)
}

/// The smaller of two; what is not a number stays so.
fn smaller(a: f64, b: f64) -> f64 {
    if a.is_nan() || a < b { a } else { b }
}

fn integers(value: &HostTensor) -> Vec<i64> {
    match value.values::<i64>() {
        Some(values) => values,
        // Others of at most 32 bits are exact in between.
        None => value.to_f64().into_iter().map(|x| x as i64).collect(),
    }
}

fn combined<T: Copy>(values: &[Vec<T>], blocks: &Blocks, first: T, f: fn(T, T) -> T) -> Vec<T> {
    let (outer, inner) = (blocks.outer, blocks.inner);
    let mut results = vec![first; outer * inner];
    for value in values {
        let block = value.len() / outer.max(1);
        for (o, result) in results.chunks_exact_mut(inner.max(1)).enumerate() {
            for row in value[o * block..][..block].chunks_exact(inner.max(1)) {
                for (slot, &x) in result.iter_mut().zip(row) {
                    *slot = f(*slot, x);
                }
            }
        }
    }
    results
}

fn joined(values: &[HostTensor], dim: usize) -> HostTensor {
    let mut shape = values[0].shape().clone();
    shape.dims[dim] = values.iter().map(|value| value.dims()[dim]).sum();
    let outer = Blocks::of(&shape, Some(dim)).outer;
    let mut bytes = AlignedBytes::zeroed(shape.byte_len());
    let mut at = 0;
    for o in 0..outer {
        for value in values {
            let block = value.bytes().len() / outer.max(1);
            let from = &value.bytes()[o * block..][..block];
            bytes.as_mut_slice()[at..][..block].copy_from_slice(from);
            at += block;
        }
    }
    HostTensor::from_aligned(shape, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn f32s(dims: &[usize], values: &[f32]) -> HostTensor {
        HostTensor::new(dims, values)
    }

    #[test]
    fn a_mean_over_rows_divides_by_all_rows() {
        let values = [f32s(&[2, 1], &[1.0, 2.0]), f32s(&[1, 1], &[6.0])];
        assert_eq!(reduced(&values, Reduce::Mean, Some(0)).f32s(), [3.0]);
        let values = [f32s(&[2], &[1.0, 2.0]), f32s(&[2], &[5.0, 0.0])];
        assert_eq!(reduced(&values, Reduce::Mean, None).f32s(), [3.0, 1.0]);
        assert_eq!(reduced(&values, Reduce::Mean, Some(0)).f32s(), [2.0]);
    }

    #[test]
    fn each_reduction_is_what_it_says() {
        let values = [f32s(&[1, 2], &[1.0, -2.0]), f32s(&[1, 2], &[3.0, f32::NAN])];
        let number = |how| reduced(&values, how, Some(1)).f32s();
        assert!(number(Reduce::Sum)[0].is_nan());
        assert!(number(Reduce::Min)[0].is_nan() && number(Reduce::Max)[0].is_nan());
        let first = |how| reduced(&values[..1], how, Some(1)).f32s();
        assert_eq!(first(Reduce::Min), [-2.0]);
        assert_eq!(first(Reduce::Max), [1.0]);
        let big = i64::MAX - 1;
        let longs = [HostTensor::new([1], &[big]), HostTensor::new([1], &[1i64])];
        let sum = reduced(&longs, Reduce::Sum, None);
        assert_eq!(sum.values::<i64>().unwrap(), [i64::MAX]);
        let truths = [
            HostTensor::new([2], &[true, true]),
            HostTensor::new([2], &[true, false]),
        ];
        let all = reduced(&truths, Reduce::And, None);
        assert_eq!(all.values::<bool>().unwrap(), [true, false]);
    }

    #[test]
    fn values_are_joined_along_any_dim() {
        let values = [
            f32s(&[2, 1], &[1.0, 4.0]),
            f32s(&[2, 2], &[2.0, 3.0, 5.0, 6.0]),
        ];
        let whole = joined(&values, 1);
        assert_eq!(whole.dims(), [2, 3]);
        assert_eq!(whole.f32s(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let none = [f32s(&[0, 2], &[]), f32s(&[1, 2], &[7.0, 8.0])];
        assert_eq!(joined(&none, 0).dims(), [1, 2]);
    }
}
