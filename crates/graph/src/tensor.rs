//! Symbols of a graph and the methods that build on them.

mod operators;

use std::fmt;

use crate::op::{
    BinaryOp, CompareOp, ConvDims, DotDims, Op, PadDim, ReduceOp, SliceDim, UnaryOp, Value, Via,
    WindowDim,
};
use crate::{DType, FusedActivation, Graph, Kernel, Pool2d, Shape, Sharding};

/// A value of a graph: a symbol, not numbers.
#[derive(Clone)]
pub struct Tensor {
    graph: Graph,
    value: Value,
}

macro_rules! unary_methods {
    ($($(#[$doc:meta])* $name:ident => $op:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[must_use]
        #[track_caller]
        pub fn $name(&self) -> Self {
            self.graph.push(Op::Unary(UnaryOp::$op), &[self])
        }
    )*};
}

macro_rules! binary_methods {
    ($($(#[$doc:meta])* $name:ident => $op:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[must_use]
        #[track_caller]
        pub fn $name(&self, other: &Self) -> Self {
            self.binary(BinaryOp::$op, other)
        }
    )*};
}

macro_rules! compare_methods {
    ($($(#[$doc:meta])* $name:ident => $op:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[must_use]
        #[track_caller]
        pub fn $name(&self, other: &Self) -> Self {
            let (a, b) = self.broadcast_pair(other);
            self.graph.push(Op::Compare(CompareOp::$op), &[&a, &b])
        }
    )*};
}

/// Elementwise functions.
impl Tensor {
    unary_methods! {
        /// `|x|`.
        abs => Abs,
        /// -1, 0 or 1.
        sign => Sign,
        /// `e^x`.
        exp => Exp,
        /// `e^x - 1`, exact near 0.
        expm1 => Expm1,
        /// Natural logarithm.
        log => Log,
        /// `log(1 + x)`, exact near 0.
        log1p => Log1p,
        /// Square root.
        sqrt => Sqrt,
        /// `1 / sqrt(x)`.
        rsqrt => Rsqrt,
        /// Hyperbolic tangent.
        tanh => Tanh,
        /// `1 / (1 + e^-x)`.
        logistic => Logistic,
        /// The error function.
        erf => Erf,
        /// Sine.
        sin => Sin,
        /// Cosine.
        cos => Cos,
        /// Largest integer not above; no gradient.
        floor => Floor,
        /// Smallest integer not below; no gradient.
        ceil => Ceil,
        /// Nearest integer, ties to even; no gradient.
        round => Round,
        /// Logical or bitwise complement.
        not => Not,
        /// Whether each element is neither NaN nor infinite.
        is_finite => IsFinite,
    }

    binary_methods! {
        /// `self ^ other`.
        pow => Pow,
        /// The larger of each pair.
        maximum => Max,
        /// The smaller of each pair.
        minimum => Min,
        /// Remainder with the sign of `self`.
        remainder => Rem,
        /// Logical or bitwise and.
        and => And,
        /// Logical or bitwise or.
        or => Or,
        /// Logical or bitwise exclusive or.
        xor => Xor,
        /// Bits shifted towards the high end.
        shift_left => ShiftLeft,
        /// Bits shifted towards the low end, zeros in.
        shift_right => ShiftRight,
    }

    compare_methods! {
        /// `self == other`.
        equal => Eq,
        /// `self != other`.
        not_equal => Ne,
        /// `self < other`.
        less => Lt,
        /// `self <= other`.
        less_equal => Le,
        /// `self > other`.
        greater => Gt,
        /// `self >= other`.
        greater_equal => Ge,
    }

    /// `x * x`.
    #[must_use]
    #[track_caller]
    pub fn square(&self) -> Self {
        self.binary(BinaryOp::Mul, self)
    }

    /// Each element between `low` and `high`.
    #[must_use]
    #[track_caller]
    pub fn clamp(&self, low: f64, high: f64) -> Self {
        self.maximum(&self.like(low)).minimum(&self.like(high))
    }

    /// `on_true` where this condition holds, else `on_false`; all broadcast together.
    #[must_use]
    #[track_caller]
    pub fn select(&self, on_true: &Self, on_false: &Self) -> Self {
        let (a, b) = on_true.broadcast_pair(on_false);
        let (condition, a) = self.broadcast_pair(&a);
        let b = b.broadcast_to(&a.dims());
        self.graph.push(Op::Select, &[&condition, &a, &b])
    }

    /// Each element as another type; the tensor itself when the type is the same already.
    #[must_use]
    #[track_caller]
    pub fn convert(&self, dtype: DType) -> Self {
        if self.dtype() == dtype {
            return self.clone();
        }
        self.graph.push(Op::Convert(dtype), &[self])
    }

    /// The same bits as another type of the same size.
    #[must_use]
    #[track_caller]
    pub fn bitcast(&self, dtype: DType) -> Self {
        self.graph.push(Op::Bitcast(dtype), &[self])
    }

    /// The value, through which no gradient flows.
    #[must_use]
    #[track_caller]
    pub fn stop_gradient(&self) -> Self {
        self.graph.push(Op::StopGradient, &[self])
    }

    /// The tensors themselves, none of which is used before all are computed, and through which no compiler looks: what
    /// is computed from them twice is not joined with what is computed from the originals.
    #[must_use]
    #[track_caller]
    pub fn optimization_barrier(tensors: &[&Self]) -> Vec<Self> {
        let Some(first) = tensors.first() else {
            return Vec::new();
        };
        first.graph.push_many(Op::OptimizationBarrier, tensors)
    }

    /// A scalar of this tensor's element type.
    #[must_use]
    #[track_caller]
    pub fn like(&self, value: f64) -> Self {
        self.graph.scalar(self.dtype(), value)
    }

    /// Zeros of this tensor's shape.
    #[must_use]
    #[track_caller]
    pub fn zeros_like(&self) -> Self {
        self.graph.full(&self.shape(), 0.0)
    }

    #[track_caller]
    pub(crate) fn binary(&self, op: BinaryOp, other: &Self) -> Self {
        let (a, b) = self.broadcast_pair(other);
        self.graph.push(Op::Binary(op), &[&a, &b])
    }

    #[track_caller]
    fn broadcast_pair(&self, other: &Self) -> (Self, Self) {
        let (a, b) = (self.dims(), other.dims());
        if a == b {
            return (self.clone(), other.clone());
        }
        match broadcast_dims(&a, &b) {
            Some(dims) => (self.broadcast_to(&dims), other.broadcast_to(&dims)),
            None => {
                let (a, b) = (self.shape(), other.shape());
                let message =
                    format!("{a} and {b} do not broadcast: trailing dims must be equal or 1");
                self.graph.fail("broadcast", message);
                (self.clone(), self.clone())
            }
        }
    }
}

/// Dims that both broadcast to, aligned at the last dim, as NumPy does.
fn broadcast_dims(a: &[usize], b: &[usize]) -> Option<Vec<usize>> {
    let rank = a.len().max(b.len());
    let at = |dims: &[usize], i: usize| {
        let missing = rank - dims.len();
        if i < missing { 1 } else { dims[i - missing] }
    };
    (0..rank)
        .map(|i| match (at(a, i), at(b, i)) {
            (x, y) if x == y || y == 1 => Some(x),
            (1, y) => Some(y),
            _ => None,
        })
        .collect()
}

/// Rearrangement.
impl Tensor {
    /// The same elements under other dims.
    #[must_use]
    #[track_caller]
    pub fn reshape(&self, dims: &[usize]) -> Self {
        if self.dims() == dims {
            return self.clone();
        }
        self.graph.push(Op::Reshape(dims.to_vec()), &[self])
    }

    /// The same values as another tensor of the graph, which [`Tensor::value`] tells apart; the program has nothing of it.
    #[must_use]
    #[track_caller]
    pub fn copied(&self) -> Self {
        self.graph.push(Op::Reshape(self.dims()), &[self])
    }

    /// Dim `i` of the result is dim `perm[i]` of this.
    #[must_use]
    #[track_caller]
    pub fn transpose(&self, perm: &[usize]) -> Self {
        self.graph.push(Op::Transpose(perm.to_vec()), &[self])
    }

    /// Repeats this tensor to `dims`, its dims aligned at the last, as NumPy does.
    #[must_use]
    #[track_caller]
    pub fn broadcast_to(&self, dims: &[usize]) -> Self {
        let own = self.dims();
        if own == dims {
            return self.clone();
        }
        let missing = dims.len().saturating_sub(own.len());
        self.broadcast_in(dims, &(missing..missing + own.len()).collect::<Vec<_>>())
    }

    /// Repeats this tensor to `dims`, its dim `i` becoming dim `map[i]`.
    #[must_use]
    #[track_caller]
    pub fn broadcast_in(&self, dims: &[usize], map: &[usize]) -> Self {
        let (dims, map) = (dims.to_vec(), map.to_vec());
        self.graph.push(Op::Broadcast { dims, map }, &[self])
    }

    /// Reversed along dims.
    #[must_use]
    #[track_caller]
    pub fn reverse(&self, dims: &[usize]) -> Self {
        self.graph.push(Op::Reverse(dims.to_vec()), &[self])
    }

    /// Padded with a number; negative edges cut.
    #[must_use]
    #[track_caller]
    pub fn pad(&self, pads: &[PadDim], value: f64) -> Self {
        let value = self.like(value);
        self.graph.push(Op::Pad(pads.to_vec()), &[self, &value])
    }

    /// Elements `start..limit` by `stride` of each dim.
    #[must_use]
    #[track_caller]
    pub fn slice(&self, slices: &[SliceDim]) -> Self {
        self.graph.push(Op::Slice(slices.to_vec()), &[self])
    }

    /// Elements `start..limit` of one dim.
    #[must_use]
    #[track_caller]
    pub fn slice_dim(&self, dim: usize, start: usize, limit: usize) -> Self {
        let whole = |&size: &usize| SliceDim {
            start: 0,
            limit: size,
            stride: 1,
        };
        let _ = self.dim(dim);
        let mut slices: Vec<SliceDim> = self.dims().iter().map(whole).collect();
        if let Some(slice) = slices.get_mut(dim) {
            (slice.start, slice.limit) = (start, limit);
        }
        self.slice(&slices)
    }

    /// A slice of `sizes` at i32 scalar `starts`, clamped so that it fits.
    #[must_use]
    #[track_caller]
    pub fn dynamic_slice(&self, starts: &[&Self], sizes: &[usize]) -> Self {
        let inputs = [&[self], starts].concat();
        self.graph.push(Op::DynamicSlice(sizes.to_vec()), &inputs)
    }

    /// This tensor with `update` written at i32 scalar `starts`, clamped so that it fits.
    #[must_use]
    #[track_caller]
    pub fn dynamic_update_slice(&self, update: &Self, starts: &[&Self]) -> Self {
        let inputs = [&[self, update], starts].concat();
        self.graph.push(Op::DynamicUpdateSlice, &inputs)
    }

    /// Tensors joined along `dim`.
    ///
    /// # Panics
    /// When `parts` is empty: a bug of the caller.
    #[must_use]
    #[track_caller]
    pub fn concat(parts: &[&Self], dim: usize) -> Self {
        parts[0].graph.push(Op::Concat(dim), parts)
    }

    /// Rows of this table picked along `dim` by i32 indices of any rank; out of range clamps.
    #[must_use]
    #[track_caller]
    pub fn gather(&self, indices: &Self, dim: usize) -> Self {
        self.graph.push(Op::Gather { dim }, &[self, indices])
    }

    /// This tensor with `updates` added at i32 indices along `dim`; out of range is dropped.
    #[must_use]
    #[track_caller]
    pub fn scatter_add(&self, indices: &Self, updates: &Self, dim: usize) -> Self {
        let inputs = [self, indices, updates];
        self.graph.push(Op::ScatterAdd { dim }, &inputs)
    }

    /// This tensor with rows along `dim` replaced by `updates` at i32 indices; out of range is dropped. An index that is in range
    /// may be there only once: which of two would win is not defined.
    #[must_use]
    #[track_caller]
    pub fn scatter_set(&self, indices: &Self, updates: &Self, dim: usize) -> Self {
        let inputs = [self, indices, updates];
        self.graph.push(Op::ScatterSet { dim }, &inputs)
    }

    /// The i32 places of the elements of this integer vector in ascending order; equal elements keep their order.
    #[must_use]
    #[track_caller]
    pub fn argsort(&self) -> Self {
        self.graph.push(Op::ArgSort, &[self])
    }

    /// 1 where the element of a new last dim equals this index, else 0: `[.., classes]`.
    #[must_use]
    #[track_caller]
    pub fn one_hot(&self, classes: usize, dtype: DType) -> Self {
        // In these types not every class has a number.
        let wide = match self.dtype() {
            DType::U8 | DType::Bool => self.convert(DType::I32),
            DType::F16 | DType::Bf16 => self.convert(DType::F32),
            _ => self.clone(),
        };
        let mut dims = wide.dims();
        dims.push(classes);
        let counts = Shape::new(wide.dtype(), dims.clone());
        let counts = self.graph.iota(counts, dims.len() - 1);
        let map: Vec<usize> = (0..dims.len() - 1).collect();
        wide.broadcast_in(&dims, &map).equal(&counts).convert(dtype)
    }
}

/// Products and reductions.
impl Tensor {
    /// The element type in which sums of this tensor's elements are taken.
    fn wide(&self) -> DType {
        match self.dtype() {
            DType::F16 | DType::Bf16 => DType::F32,
            own => own,
        }
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
    /// Of 16-bit floats `gamma` and `beta` may be f32: then mean and variance are too, and all is computed in f32.
    #[must_use]
    #[track_caller]
    pub fn batch_norm(&self, gamma: &Self, beta: &Self, epsilon: f64) -> [Self; 3] {
        let activation = FusedActivation::None;
        let op = Op::Kernel(Kernel::BatchNorm {
            epsilon,
            activation,
        });
        let results = self.graph.push_many(op, &[self, gamma, beta]);
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

    /// Mean over dims; 16-bit floats are added in f32 and rounded once.
    #[must_use]
    #[track_caller]
    pub fn mean(&self, dims: &[usize]) -> Self {
        let own = self.shape();
        let named = (0..own.rank()).filter(|dim| dims.contains(dim));
        let count: f64 = named.map(|dim| own.dims[dim] as f64).product();
        let total = self.convert(self.wide()).sum(dims);
        (&total / total.like(count)).convert(own.dtype)
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

    /// Index of the first largest element along `dim`, i32.
    #[must_use]
    #[track_caller]
    pub fn argmax(&self, dim: usize) -> Self {
        let shape = self.shape().with_dtype(DType::I32);
        let size = shape.dims.get(dim).copied().unwrap_or(1);
        let best = self.max(&[dim]).keep_dims(&[dim]);
        let places = self.graph.iota(shape, dim);
        let none = places.like(size as f64);
        // `<` and not `==`: where the largest is NaN, which equals nothing, the result is still an index.
        self.less(&best).select(&none, &places).min(&[dim])
    }

    /// `log(sum(exp(x)))` along `dim`, shifted by the largest element; in f32 for 16-bit floats.
    #[must_use]
    #[track_caller]
    pub fn logsumexp(&self, dim: usize) -> Self {
        let x = self.convert(self.wide());
        let largest = x.max(&[dim]).stop_gradient();
        // Infinities are not subtracted from themselves: no terms give -inf.
        let shift = largest.is_finite().select(&largest, &largest.like(0.0));
        let shifted = x - &shift.keep_dims(&[dim]);
        (shifted.exp().sum(&[dim]).log() + shift).convert(self.dtype())
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

/// Communication between the replicas of a program.
impl Tensor {
    /// Combination of every replica's tensor: see [`Graph::all_reduce`] for several at once.
    #[must_use]
    #[track_caller]
    pub fn all_reduce(&self, kind: ReduceOp) -> Self {
        let via = Via::Native;
        self.graph.push(Op::AllReduce { kind, via }, &[self])
    }

    /// The mean over replicas of a floating-point tensor: see [`Graph::all_mean`] for several at once.
    #[must_use]
    #[track_caller]
    pub fn all_mean(&self) -> Self {
        self.graph.all_mean(&[self], Via::Native).swap_remove(0)
    }

    /// Every replica's tensor, joined along `dim` in replica order.
    #[must_use]
    #[track_caller]
    pub fn all_gather(&self, dim: usize) -> Self {
        self.graph.push(Op::AllGather { dim }, &[self])
    }

    /// The sum over replicas, of which replica `i` keeps slice `i` of `dim`.
    #[must_use]
    #[track_caller]
    pub fn reduce_scatter(&self, dim: usize) -> Self {
        self.graph.push(Op::ReduceScatter { dim }, &[self])
    }

    /// Slices of dim `split`, slice `i` sent to replica `i`; the received ones joined along `concat`.
    #[must_use]
    #[track_caller]
    pub fn all_to_all(&self, split: usize, concat: usize) -> Self {
        self.graph.push(Op::AllToAll { split, concat }, &[self])
    }

    /// The tensor of the replica that sends here, by `(source, target)` pairs; zeros without one.
    #[must_use]
    #[track_caller]
    pub fn collective_permute(&self, pairs: &[(usize, usize)]) -> Self {
        self.graph
            .push(Op::CollectivePermute(pairs.to_vec()), &[self])
    }
}

/// Division among the devices of a mesh.
impl Tensor {
    /// The same values, cut over the program's mesh as `sharding` says, and so are the gradients; without a mesh the tensor itself.
    ///
    /// The compiler finds a way for all tensors in between, and puts in the communication that is needed.
    #[must_use]
    #[track_caller]
    pub fn sharded(&self, sharding: &Sharding) -> Self {
        let Some(mesh) = self.graph.mesh() else {
            return self.clone();
        };
        if let Err(message) = sharding.check(&self.shape(), &mesh) {
            self.graph.fail("sharded", message);
            return self.clone();
        }
        self.graph.push(Op::Sharded(sharding.clone()), &[self])
    }
}

/// What a symbol is.
impl Tensor {
    pub(crate) const fn new(graph: Graph, value: Value) -> Self {
        Self { graph, value }
    }

    /// The graph it belongs to.
    #[must_use]
    pub const fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Its place in the graph.
    #[must_use]
    pub const fn value(&self) -> Value {
        self.value
    }

    /// Element type and dims.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.graph.shape_of(self.value)
    }

    /// Element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.shape().dtype
    }

    /// Size of each dim.
    #[must_use]
    pub fn dims(&self) -> Vec<usize> {
        self.shape().dims
    }

    /// Number of dims.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.shape().rank()
    }

    /// Size of one dim; a dim that is not there is recorded as a mistake and counts as 1.
    #[must_use]
    #[track_caller]
    pub fn dim(&self, dim: usize) -> usize {
        let shape = self.shape();
        if let Some(&size) = shape.dims.get(dim) {
            return size;
        }
        self.graph.fail(
            "dim",
            format!("dim {dim} of {shape}, which has rank {}", shape.rank()),
        );
        1
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{} {}", self.value.node, self.shape())
    }
}
