//! Methods that multiply and reduce.

use super::Tensor;
use crate::op::{BinaryOp, ConvDims, DotDims, Op, PadDim, ReduceOp, WindowDim};
use crate::{DType, FusedActivation, Kernel, Pool2d};

/// Products and reductions.
impl Tensor {
    /// The element type in which sums of this tensor's elements are taken.
    pub(crate) fn wide(&self) -> DType {
        self.dtype().wide()
    }

    /// General matrix product.
    #[must_use]
    #[track_caller]
    pub fn dot(&self, other: &Self, dims: DotDims) -> Self {
        self.graph.push(Op::Dot(dims), &[self, other])
    }

    /// `[.., n, k] x [k, m]`, or `[.., n, k] x [.., k, m]` with equal leading dims; products of 16-bit floats are
    /// summed in f32 and rounded once.
    #[must_use]
    #[track_caller]
    pub fn matmul(&self, other: &Self) -> Self {
        let (rank, other_rank) = (self.rank(), other.rank());
        if rank == 0 || other_rank < 2 {
            let (a, b) = (self.shape(), other.shape());
            let message = format!("expected [.., n, k] x [.., k, m], got {a} and {b}");
            self.graph.fail("matmul", message);
            return self.clone();
        }
        let batch: Vec<usize> = (0..other_rank - 2).collect();
        self.dot(
            other,
            DotDims {
                lhs_batch: batch.clone(),
                rhs_batch: batch,
                lhs_contract: vec![rank - 1],
                rhs_contract: vec![other_rank - 2],
                dtype: self.wide(),
            },
        )
        .convert(self.dtype())
    }

    /// Convolution with a kernel.
    #[must_use]
    #[track_caller]
    pub fn conv(&self, kernel: &Self, dims: ConvDims) -> Self {
        self.graph.push(Op::Conv(dims), &[self, kernel])
    }

    /// The largest element of each window of images `[batch, height, width, channels]`.
    ///
    /// The gradient goes to the first of equal elements.
    #[must_use]
    #[track_caller]
    pub fn max_pool2d(&self, pool: Pool2d) -> Self {
        let op = Op::Kernel(Kernel::MaxPool2d(pool));
        self.graph.push_many(op, &[self]).swap_remove(0)
    }

    /// `gamma (x - mean) / sqrt(variance + epsilon) + beta` over all dims but the last, with the mean and population
    /// variance of each channel, which follow the result.
    ///
    /// For 16-bit floats mean and variance are f32, as `gamma` and `beta` may be, and all is computed in f32.
    #[must_use]
    #[track_caller]
    pub fn batch_norm(&self, gamma: &Self, beta: &Self, epsilon: f64) -> [Self; 3] {
        let activation = FusedActivation::None;
        let op = Op::Kernel(Kernel::BatchNorm {
            epsilon,
            activation,
        });
        // The gradient is of the statistics that are given back: rounded to 16 bits they would be others.
        let (gamma, beta) = (gamma.convert(gamma.wide()), beta.convert(beta.wide()));
        let results = self.graph.push_many(op, &[self, &gamma, &beta]);
        let result = |at: usize| results.get(at).unwrap_or(self).clone();
        [result(0), result(1), result(2)]
    }

    /// Combination over dims, which disappear.
    #[must_use]
    #[track_caller]
    pub fn reduce(&self, kind: ReduceOp, dims: &[usize]) -> Self {
        if dims.is_empty() {
            return self.clone();
        }
        let mut dims = dims.to_vec();
        dims.sort_unstable();
        dims.dedup();
        // The derivative compares the elements with their maximum: both must be made of one tensor that is computed once (decision
        // 29). Where no derivative is taken nothing is printed for it.
        let fixed = match kind {
            ReduceOp::Max | ReduceOp::Min => Self::optimization_barrier(&[self]).swap_remove(0),
            _ => self.clone(),
        };
        self.graph.push(Op::Reduce { kind, dims }, &[&fixed])
    }

    /// Sum over dims.
    #[must_use]
    #[track_caller]
    pub fn sum(&self, dims: &[usize]) -> Self {
        self.reduce(ReduceOp::Sum, dims)
    }

    /// Sum of every element.
    #[must_use]
    #[track_caller]
    pub fn sum_all(&self) -> Self {
        self.sum(&(0..self.rank()).collect::<Vec<_>>())
    }

    /// Mean over dims; 16-bit floats are added in f32 and rounded once. Integers are added in i64 and divided as such, towards 0.
    #[must_use]
    #[track_caller]
    pub fn mean(&self, dims: &[usize]) -> Self {
        let own = self.shape();
        let named = (0..own.rank()).filter(|dim| dims.contains(dim));
        let count: f64 = named.map(|dim| own.dims[dim] as f64).product();
        let wide = match own.dtype.is_integer() {
            true => DType::I64,
            false => self.wide(),
        };
        let total = self.convert(wide).sum(dims);
        (&total / count).convert(own.dtype)
    }

    /// Mean of every element.
    #[must_use]
    #[track_caller]
    pub fn mean_all(&self) -> Self {
        self.mean(&(0..self.rank()).collect::<Vec<_>>())
    }

    /// Largest over dims; the gradient is shared by equal elements.
    #[must_use]
    #[track_caller]
    pub fn max(&self, dims: &[usize]) -> Self {
        self.reduce(ReduceOp::Max, dims)
    }

    /// Smallest over dims.
    #[must_use]
    #[track_caller]
    pub fn min(&self, dims: &[usize]) -> Self {
        self.reduce(ReduceOp::Min, dims)
    }

    /// A reduced tensor with its dims put back at size 1, to broadcast against the one it came from.
    #[must_use]
    #[track_caller]
    pub fn keep_dims(&self, dims: &[usize]) -> Self {
        let mut kept = self.dims();
        let mut dims = dims.to_vec();
        dims.sort_unstable();
        for dim in dims {
            kept.insert(dim.min(kept.len()), 1);
        }
        self.reshape(&kept)
    }

    /// Of each element the sum with all before it along `dim`: Keras' `cumsum`. 16-bit floats are added in f32 and rounded once.
    #[must_use]
    #[track_caller]
    pub fn cumsum(&self, dim: usize) -> Self {
        self.cumulated("cumsum", (BinaryOp::Add, 0.0), dim)
    }

    /// Of each element the product with all before it along `dim`: Keras' `cumprod`. 16-bit floats are multiplied in f32 and rounded once.
    /// Derivatives are right where elements are 0, too.
    #[must_use]
    #[track_caller]
    pub fn cumprod(&self, dim: usize) -> Self {
        self.cumulated("cumprod", (BinaryOp::Mul, 1.0), dim)
    }

    /// Distances double, so the logarithm of the length is the number of additions, where a window for each element would have their square.
    #[track_caller]
    fn cumulated(&self, name: &'static str, (op, neutral): (BinaryOp, f64), dim: usize) -> Self {
        let Some(&size) = self.dims().get(dim) else {
            let message = format!("expected a dim of {}, got {dim}", self.shape());
            self.graph.fail(name, message);
            return self.clone();
        };
        let mut pads = vec![PadDim::default(); self.rank()];
        let mut all = self.convert(self.wide());
        let mut by = 1;
        while by < size {
            (pads[dim].low, pads[dim].high) = (by as i64, -(by as i64));
            all = all.binary(op, &all.pad(&pads, neutral));
            by *= 2;
        }
        all.convert(self.dtype())
    }

    /// Index of the first largest element along `dim`, i32.
    #[must_use]
    #[track_caller]
    pub fn argmax(&self, dim: usize) -> Self {
        let shape = self.shape().with_dtype(DType::I32);
        let size = shape.dims.get(dim).copied().unwrap_or(1);
        // Were it computed for the maximum and again for the comparison, all could be below the maximum.
        let x = self.computed_once();
        let best = x.max(&[dim]).keep_dims(&[dim]);
        let places = self.graph.iota(shape, dim);
        let none = places.like(size as f64);
        // `<` and not `==`: where the largest is NaN, which equals nothing, the result is still an index.
        x.less(&best).select(&none, &places).min(&[dim])
    }

    /// `log(sum(exp(x)))` along `dim`, shifted by the largest element; in f32 for 16-bit floats. No terms, all -inf, give -inf, with a
    /// gradient of 0.
    #[must_use]
    #[track_caller]
    pub fn logsumexp(&self, dim: usize) -> Self {
        let x = self.convert(self.wide());
        let largest = x.max(&[dim]).stop_gradient();
        // Infinities are not subtracted from themselves.
        let shift = largest.is_finite().select(&largest, &largest.like(0.0));
        let shifted = x - &shift.keep_dims(&[dim]);
        let sum = shifted.exp().sum(&[dim]);
        // The derivative of the logarithm of 0 is infinite.
        let is_empty = largest.equal(&largest.like(f64::NEG_INFINITY));
        let log = is_empty.select(&sum.like(1.0), &sum).log();
        is_empty
            .select(&largest, &(log + shift))
            .convert(self.dtype())
    }

    /// `x - logsumexp(x)` along `dim`; in f32 for 16-bit floats.
    #[must_use]
    #[track_caller]
    pub fn log_softmax(&self, dim: usize) -> Self {
        let x = self.convert(self.wide());
        let shift = x.max(&[dim]).stop_gradient().keep_dims(&[dim]);
        let shifted = x - &shift;
        let total = shifted.exp().sum(&[dim]).log();
        (shifted - total.keep_dims(&[dim])).convert(self.dtype())
    }

    /// `exp(x) / sum(exp(x))` along `dim`; in f32 for 16-bit floats.
    #[must_use]
    #[track_caller]
    pub fn softmax(&self, dim: usize) -> Self {
        let x = self.convert(self.wide());
        let shift = x.max(&[dim]).stop_gradient().keep_dims(&[dim]);
        let weights = (x - &shift).exp();
        let total = weights.sum(&[dim]).keep_dims(&[dim]);
        (weights / total).convert(self.dtype())
    }

    /// Combination over sliding windows, one [`WindowDim`] per dim.
    #[must_use]
    #[track_caller]
    pub fn reduce_window(&self, kind: ReduceOp, window: &[WindowDim]) -> Self {
        let window = window.to_vec();
        self.graph.push(Op::ReduceWindow { kind, window }, &[self])
    }
}
