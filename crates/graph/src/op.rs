//! The closed set of primitives.
//!
//! A new op is a variant here and an arm each in `infer.rs`, `grad`, `stablehlo.rs`, `cost.rs` and `dump.rs`;
//! the compiler lists what is missing, for no match over [`Op`] has a wildcard arm there.

use std::panic::Location;
use std::sync::Arc;

use crate::grad::Pullback;
use crate::{DType, HostTensor, Kernel, Shape, Sharding};

/// One output of one node of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value {
    /// Index of the node.
    pub node: usize,
    /// Which of its outputs.
    pub output: usize,
}

/// A primitive and its static arguments.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// An input of the program: its position.
    Parameter(usize),
    /// A literal; a scalar prints as one, larger arrays as dense literals.
    Constant(HostTensor),
    /// Counts 0, 1, .. along one dim.
    Iota(usize),
    /// An elementwise function of one tensor.
    Unary(UnaryOp),
    /// An elementwise function of two tensors of the same shape.
    Binary(BinaryOp),
    /// An elementwise comparison, to `Bool`.
    Compare(CompareOp),
    /// `select(condition, on_true, on_false)` elementwise.
    Select,
    /// Conversion of each element to another type.
    Convert(DType),
    /// The same bits under another type of the same size.
    Bitcast(DType),
    /// The value itself; no gradient flows through.
    StopGradient,
    /// `with_gradient(y, x..)`: the value `y`, whose cotangent goes to each `x` by a function of the program, and not on into `y`.
    WithGradient(Pullback),
    /// The values themselves, none of which is used before all are there, and through which no compiler looks.
    OptimizationBarrier,
    /// The same elements under other dims.
    Reshape(Vec<usize>),
    /// Dim `i` of the output is dim `perm[i]` of the input.
    Transpose(Vec<usize>),
    /// Dim `i` of the input becomes dim `map[i]` of the output; other dims repeat.
    Broadcast {
        /// Output dims.
        dims: Vec<usize>,
        /// Where each input dim goes, ascending.
        map: Vec<usize>,
    },
    /// Reversal along dims.
    Reverse(Vec<usize>),
    /// `pad(x, value)`: edges (negative cuts) and interior padding per dim.
    Pad(Vec<PadDim>),
    /// `x[start..limit; stride]` per dim.
    Slice(Vec<SliceDim>),
    /// `dynamic_slice(x, starts..)`: one i32 scalar per dim, clamped so that the slice fits.
    DynamicSlice(Vec<usize>),
    /// `dynamic_update_slice(x, update, starts..)`.
    DynamicUpdateSlice,
    /// Concatenation along a dim.
    Concat(usize),
    /// `gather(table, indices)`: `indices` (i32, any rank) pick along `dim`; out of range clamps.
    Gather {
        /// The indexed dim of the table.
        dim: usize,
    },
    /// `scatter_add(base, indices, updates)`: the transpose of gather; out of range is dropped.
    ScatterAdd {
        /// The indexed dim of the base.
        dim: usize,
    },
    /// `scatter_set(base, indices, updates)`: `base` with rows replaced; out of range is dropped. No index may be there twice.
    ScatterSet {
        /// The indexed dim of the base.
        dim: usize,
    },
    /// `argsort(x)` of an integer vector: the i32 places of its elements in ascending order, equal ones in their own order.
    ArgSort,
    /// General matrix product: batch dims first, then free dims of each side.
    Dot(DotDims),
    /// Convolution of any number of spatial dims.
    Conv(ConvDims),
    /// Reduction over dims, which disappear.
    Reduce {
        /// The combining function.
        kind: ReduceOp,
        /// The dims reduced, ascending.
        dims: Vec<usize>,
    },
    /// Reduction over sliding windows.
    ReduceWindow {
        /// The combining function.
        kind: ReduceOp,
        /// Window of every dim.
        window: Vec<WindowDim>,
    },
    /// `random_bits(key: u32[2], row: u32)`: u32 counters hashed with Threefry-2x32; element
    /// `(i, j..)` depends only on the key, `row + i` and the flat index of `j..`.
    RandomBits(Vec<usize>),
    /// Loop while a condition on the carried values holds; forward only.
    While {
        /// From the carried values to one `Bool` scalar.
        condition: Arc<Subgraph>,
        /// From the carried values to the next ones.
        body: Arc<Subgraph>,
    },
    /// A loop of known length over rows of inputs: see [`ScanDims`].
    Scan(ScanDims),
    /// `case(index: i32, inputs..)`: what one of several graphs makes of the inputs, the last one for an index that is none
    /// of them; forward only.
    Case(Vec<Arc<Subgraph>>),
    /// Reduction over the replicas of the program, variadic.
    AllReduce {
        /// The combining function.
        kind: ReduceOp,
        /// How it is brought about.
        via: Via,
    },
    /// Concatenation of every replica's tensor along a dim.
    AllGather {
        /// The dim concatenated along.
        dim: usize,
    },
    /// Sum over replicas of which each keeps its own slice of a dim.
    ReduceScatter {
        /// The dim cut.
        dim: usize,
    },
    /// Slices of `split` exchanged between replicas and concatenated along `concat`.
    AllToAll {
        /// The dim cut into one slice per replica.
        split: usize,
        /// The dim the received slices are joined along.
        concat: usize,
    },
    /// Replica `source` sends its tensor to `target`; replicas without a source get zeros.
    CollectivePermute(Vec<(usize, usize)>),
    /// This replica's number, a u32 scalar.
    ReplicaId,
    /// Whether every exchange with other processes before this op succeeded, a bool scalar.
    ExchangesSucceeded,
    /// The same values, cut this way over the program's mesh.
    Sharded(Sharding),
    /// An op that some devices have a kernel for.
    Kernel(Kernel),
    /// A kernel registered with the engine under a name.
    CustomCall(CustomCall),
}

/// Elementwise functions of one tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the functions")]
pub enum UnaryOp {
    Neg,
    Abs,
    Sign,
    Exp,
    Expm1,
    Log,
    Log1p,
    Sqrt,
    Rsqrt,
    Tanh,
    Logistic,
    Erf,
    Sin,
    Cos,
    Floor,
    Ceil,
    /// To the nearest integer, ties to even.
    Round,
    /// Logical or bitwise complement.
    Not,
    /// Whether the element is neither NaN nor infinite, to `Bool`.
    IsFinite,
}

/// Elementwise functions of two tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the functions")]
pub enum BinaryOp {
    Add,
    Sub,
    Mul,
    Div,
    Pow,
    Rem,
    Max,
    Min,
    /// Logical or bitwise.
    And,
    /// Logical or bitwise.
    Or,
    /// Logical or bitwise.
    Xor,
    ShiftLeft,
    /// Shifts in zeros.
    ShiftRight,
}

/// Elementwise comparisons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the comparisons")]
pub enum CompareOp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

/// Combining functions of reductions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the functions")]
pub enum ReduceOp {
    Sum,
    Prod,
    Max,
    Min,
    And,
    Or,
}

/// How an all-reduce is brought about: the same result up to the order in which floats are added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Via {
    /// The all-reduce of the device's own library (NCCL on NVIDIA GPUs).
    #[default]
    Native,
    /// Every tensor goes to replica 0, which combines them in the order of replicas and sends the result to each.
    OneDevice,
    /// Replicas in groups: each keeps its part of what its group combines, combines it with the same part of the other
    /// groups, and gathers the parts of its group.
    Hierarchical,
}

/// Padding of one dim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PadDim {
    /// Elements added before (cut when negative).
    pub low: i64,
    /// Elements added after (cut when negative).
    pub high: i64,
    /// Elements added between neighbours.
    pub interior: usize,
}

/// Slice of one dim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SliceDim {
    /// First index taken.
    pub start: usize,
    /// End, exclusive.
    pub limit: usize,
    /// Distance between taken indices.
    pub stride: usize,
}

/// Sliding window of one dim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WindowDim {
    /// Window size.
    pub size: usize,
    /// Distance between windows.
    pub stride: usize,
    /// Distance between elements of a window.
    pub dilation: usize,
    /// Padding before.
    pub low: usize,
    /// Padding after.
    pub high: usize,
}

impl WindowDim {
    /// A window of one element: the dim is kept as it is.
    #[must_use]
    pub const fn identity() -> Self {
        Self {
            size: 1,
            stride: 1,
            dilation: 1,
            low: 0,
            high: 0,
        }
    }
}

/// Dims of a dot: see [`Op::Dot`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DotDims {
    /// Batch dims of the left side.
    pub lhs_batch: Vec<usize>,
    /// Batch dims of the right side.
    pub rhs_batch: Vec<usize>,
    /// Contracted dims of the left side.
    pub lhs_contract: Vec<usize>,
    /// Contracted dims of the right side.
    pub rhs_contract: Vec<usize>,
    /// Element type of the result: accumulation happens in it.
    pub dtype: DType,
}

/// Positions of batch (or output feature), feature (or input feature) and spatial dims.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ConvSpec {
    /// Batch dim of inputs and outputs; output-feature dim of kernels.
    pub batch: usize,
    /// Feature dim of inputs and outputs; input-feature dim of kernels.
    pub feature: usize,
    /// Spatial dims in order.
    pub spatial: Vec<usize>,
}

impl ConvSpec {
    /// `[batch, spatial.., feature]`: NHWC for two spatial dims.
    #[must_use]
    pub fn channels_last(spatial: usize) -> Self {
        Self {
            batch: 0,
            feature: spatial + 1,
            spatial: (1..=spatial).collect(),
        }
    }

    /// `[spatial.., input feature, output feature]`: HWIO for two spatial dims.
    #[must_use]
    pub fn kernel(spatial: usize) -> Self {
        Self {
            batch: spatial + 1,
            feature: spatial,
            spatial: (0..spatial).collect(),
        }
    }
}

/// Window and dims of a convolution.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ConvDims {
    /// Layout of the input.
    pub input: ConvSpec,
    /// Layout of the kernel.
    pub kernel: ConvSpec,
    /// Layout of the output.
    pub output: ConvSpec,
    /// Stride per spatial dim.
    pub strides: Vec<usize>,
    /// Low and high padding per spatial dim, negative cuts.
    pub padding: Vec<(i64, i64)>,
    /// Zeros between input elements, plus one, per spatial dim.
    pub input_dilation: Vec<usize>,
    /// Zeros between kernel elements, plus one, per spatial dim.
    pub kernel_dilation: Vec<usize>,
    /// Groups of input features convolved apart.
    pub feature_groups: usize,
    /// Groups of the batch convolved apart (arises in weight gradients of grouped convolutions).
    pub batch_groups: usize,
}

/// A loop of known length.
///
/// Inputs: `carry` values, then `xs` tensors whose first dim is `length`, then `constants`.
/// The body maps `(carry.., rows of xs.., constants..)` to `(next carry.., rows of ys..)`.
/// Outputs: the last carry, then each `y` stacked to `[length, ..]`.
#[derive(Clone, Debug, PartialEq)]
pub struct ScanDims {
    /// The step.
    pub body: Arc<Subgraph>,
    /// Number of steps.
    pub length: usize,
    /// Number of carried values.
    pub carry: usize,
    /// Number of tensors read a row at a time.
    pub xs: usize,
    /// Whether rows are visited last to first (outputs keep their row).
    pub reverse: bool,
}

/// A call of a registered kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct CustomCall {
    /// The registered name.
    pub target: String,
    /// Shapes of the results.
    pub outputs: Vec<Shape>,
    /// Named static arguments, sorted by name.
    pub attributes: Vec<(String, Attribute)>,
    /// Whether the call must happen even when its results are unused.
    pub has_side_effect: bool,
}

/// A static argument of a [`CustomCall`].
#[derive(Clone, Debug, PartialEq)]
pub enum Attribute {
    /// A 64-bit integer.
    Int(i64),
    /// A 32-bit float.
    Float(f32),
    /// A truth value.
    Bool(bool),
    /// A string.
    Text(String),
    /// Integers.
    Ints(Vec<i64>),
}

/// A graph inside a graph: the body of a loop, or a branch. It captures nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Subgraph {
    /// Nodes in topological order; parameters are numbered from 0.
    pub nodes: Vec<Node>,
    /// Shapes of the parameters.
    pub parameters: Vec<Shape>,
    /// Results.
    pub outputs: Vec<Value>,
}

impl Op {
    /// The graphs inside this op: of a loop, or of each branch.
    #[must_use]
    pub(crate) fn bodies(&self) -> Vec<&Subgraph> {
        match self {
            Self::While { condition, body } => vec![condition, body],
            Self::Scan(scan) => vec![&scan.body],
            Self::Case(branches) => branches.iter().map(AsRef::as_ref).collect(),
            _ => Vec::new(),
        }
    }
}

/// Whether a node is found among these, or in a body of theirs, by a function of a node and those it is among.
pub(crate) fn any_node(nodes: &[Node], found: &dyn Fn(&[Node], &Node) -> bool) -> bool {
    nodes.iter().any(|node| {
        let mut bodies = node.op.bodies().into_iter();
        found(nodes, node) || bodies.any(|body| any_node(&body.nodes, found))
    })
}

/// The names of the kernels that these nodes call, or nodes in bodies of theirs.
pub(crate) fn custom_calls(nodes: &[Node]) -> Vec<&str> {
    let calls = nodes.iter().flat_map(|node| match &node.op {
        Op::CustomCall(call) => vec![call.target.as_str()],
        op => {
            let bodies = op.bodies().into_iter();
            bodies.flat_map(|body| custom_calls(&body.nodes)).collect()
        }
    });
    calls.collect()
}

impl Subgraph {
    /// Shape of a value of this graph.
    #[must_use]
    pub fn shape(&self, value: Value) -> &Shape {
        &self.nodes[value.node].shapes[value.output]
    }
}

/// An op applied to values.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The primitive.
    pub op: Op,
    /// Its operands.
    pub inputs: Vec<Value>,
    /// Shape of each output.
    pub shapes: Vec<Shape>,
    /// Which layer the node belongs to.
    pub label: Option<Arc<str>>,
    /// Where in the source it was built.
    pub location: &'static Location<'static>,
}

impl UnaryOp {
    /// The lower-case name in dumps; StableHLO's where it has the op.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Neg => "negate",
            Self::Abs => "abs",
            Self::Sign => "sign",
            Self::Exp => "exponential",
            Self::Expm1 => "exponential_minus_one",
            Self::Log => "log",
            Self::Log1p => "log_plus_one",
            Self::Sqrt => "sqrt",
            Self::Rsqrt => "rsqrt",
            Self::Tanh => "tanh",
            Self::Logistic => "logistic",
            Self::Erf => "erf",
            Self::Sin => "sine",
            Self::Cos => "cosine",
            Self::Floor => "floor",
            Self::Ceil => "ceil",
            Self::Round => "round_nearest_even",
            Self::Not => "not",
            Self::IsFinite => "is_finite",
        }
    }
}

impl BinaryOp {
    /// The StableHLO name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Sub => "subtract",
            Self::Mul => "multiply",
            Self::Div => "divide",
            Self::Pow => "power",
            Self::Rem => "remainder",
            Self::Max => "maximum",
            Self::Min => "minimum",
            Self::And => "and",
            Self::Or => "or",
            Self::Xor => "xor",
            Self::ShiftLeft => "shift_left",
            Self::ShiftRight => "shift_right_logical",
        }
    }
}

impl CompareOp {
    /// The StableHLO comparison direction.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Eq => "EQ",
            Self::Ne => "NE",
            Self::Lt => "LT",
            Self::Le => "LE",
            Self::Gt => "GT",
            Self::Ge => "GE",
        }
    }
}

impl ReduceOp {
    /// The StableHLO name of the combining function.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "add",
            Self::Prod => "multiply",
            Self::Max => "maximum",
            Self::Min => "minimum",
            Self::And => "and",
            Self::Or => "or",
        }
    }

    /// The value that changes nothing, for elements of `dtype`.
    #[must_use]
    pub fn identity(self, dtype: DType) -> HostTensor {
        let value = match self {
            Self::Sum | Self::Or | Self::And => 0.0,
            Self::Prod => 1.0,
            Self::Max => f64::NEG_INFINITY,
            Self::Min => f64::INFINITY,
        };
        if dtype == DType::Bool {
            let truth = matches!(self, Self::And | Self::Min | Self::Prod);
            return HostTensor::scalar(truth);
        }
        if self == Self::And {
            let ones = vec![0xFF; dtype.size()];
            let all = HostTensor::from_bytes(Shape::scalar(dtype), &ones);
            return all.expect("one element");
        }
        HostTensor::full(Shape::scalar(dtype), value)
    }
}

impl Via {
    /// The lower-case name in dumps and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::OneDevice => "one device",
            Self::Hierarchical => "hierarchical",
        }
    }
}
