//! Symbols of a graph and the methods that build on them.

mod operators;
mod products;
mod rearrange;
mod selections;

use std::fmt;

use crate::grad::Pullback;
use crate::op::{BinaryOp, CompareOp, Op, ReduceOp, UnaryOp, Value, Via};
use crate::{DType, Graph, Shape, Sharding};

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

    /// The value, with a gradient of your own: TensorFlow's `custom_gradient`.
    ///
    /// `pullback` is given the cotangent of the value and the tensors `of` which it was made, and traces what each of these receives, with
    /// its dims; nothing flows on into the value by itself. What it traces is differentiated again for second derivatives. It is called
    /// wherever a derivative is taken, perhaps within a loop or for values that are computed again, so it goes by what it is given.
    /// A wrong number of tensors or other dims become the graph's error.
    ///
    /// ```
    /// use phalanx_graph::{Graph, Shape, Tensor, gradients};
    ///
    /// /// Rounds on the way there, and lets the gradient pass as it is: a straight-through estimator (Bengio et al. 2013).
    /// fn rounded(x: &Tensor) -> Tensor {
    ///     x.round().with_gradient(&[x], |cotangent, _| vec![cotangent.clone()])
    /// }
    ///
    /// /// `log(1 + e^x)`, whose derivative by itself would be infinite over infinite for a large `x`.
    /// fn softplus(x: &Tensor) -> Tensor {
    ///     x.exp().log1p().with_gradient(&[x], |cotangent, x| vec![cotangent * x[0].logistic()])
    /// }
    ///
    /// let g = Graph::new();
    /// let x = g.parameter("x", Shape::f32([3]));
    /// let loss = (rounded(&x) * softplus(&x)).sum_all();
    /// assert!(gradients(&loss, &[&x])[0].is_some());
    /// ```
    #[must_use]
    #[track_caller]
    pub fn with_gradient(
        &self,
        of: &[&Self],
        pullback: impl Fn(&Self, &[Self]) -> Vec<Self> + Send + Sync + 'static,
    ) -> Self {
        let inputs: Vec<&Self> = [&[self], of].concat();
        let op = Op::WithGradient(Pullback::new(pullback));
        self.graph.push(op, &inputs)
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

    /// The tensor, computed once however many uses it has: a compiler may compute a value twice and round it differently, which what is
    /// compared with a maximum of itself must not be.
    #[must_use]
    #[track_caller]
    pub fn computed_once(&self) -> Self {
        Self::optimization_barrier(&[self]).swap_remove(0)
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
