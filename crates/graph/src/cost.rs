//! How much a program computes and moves: counted from shapes, not measured.

use std::ops::AddAssign;

use crate::Kernel;
use crate::op::{ConvDims, DotDims, Node, Op, Subgraph, Via, WindowDim, any_node};
use crate::{Program, Shape};

/// Work of one run of a program on one replica.
///
/// What a node counts, per element of its result unless said otherwise:
/// - functions, arithmetic, comparisons and selections, of floats and integers alike: 1 FLOP;
/// - dot and convolution: 2 per product. A convolution counts products of real input elements, not products with
///   padding or with the gaps of dilation;
/// - reductions: one less than the elements combined; scatter-add and all-reduce: 1 per element added;
/// - conversions, movements, random bits and custom calls: none.
///
/// Bytes are operands read plus results written by each node, as if nothing were fused; slices, gathers and
/// updates count the part they touch; parameters, constants and other views of the same bytes count none.
/// A scan counts its body once per step, a while loop once, a case the branch of most operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Sum over nodes.
    pub total: NodeCost,
    /// One for each node of the program.
    pub nodes: Vec<NodeCost>,
}

/// Work of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeCost {
    /// Floating-point operations (integer ones too); stops at the largest u64.
    pub flops: u64,
    /// Bytes read and written; stops at the largest u64.
    pub bytes: u64,
}

impl AddAssign for NodeCost {
    fn add_assign(&mut self, other: Self) {
        self.flops = self.flops.saturating_add(other.flops);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

impl NodeCost {
    const fn times(self, count: u64) -> Self {
        Self {
            flops: self.flops.saturating_mul(count),
            bytes: self.bytes.saturating_mul(count),
        }
    }
}

impl Program {
    /// FLOPs and bytes of each node and in total: see [`Cost`] for what counts.
    #[must_use]
    pub fn cost(&self) -> Cost {
        count(&self.nodes, self.replicas)
    }

    /// Whether a loop that ends by a condition is in it, at any depth: its cost is counted as if it turned once.
    #[must_use]
    pub fn has_open_loops(&self) -> bool {
        any_node(&self.nodes, &|_, node| matches!(node.op, Op::While { .. }))
    }
}

/// The cost of nodes that run once.
pub(crate) fn count(nodes: &[Node], replicas: usize) -> Cost {
    let mut total = NodeCost::default();
    let mut costs = Vec::with_capacity(nodes.len());
    for node in nodes {
        let shape = |i: usize| {
            let value = node.inputs[i];
            &nodes[value.node].shapes[value.output]
        };
        let inputs: Vec<&Shape> = (0..node.inputs.len()).map(shape).collect();
        let cost = node_cost(&node.op, &inputs, &node.shapes, replicas);
        total += cost;
        costs.push(cost);
    }
    Cost {
        total,
        nodes: costs,
    }
}

fn body_cost(body: &Subgraph, replicas: usize) -> NodeCost {
    count(&body.nodes, replicas).total
}

fn node_cost(op: &Op, inputs: &[&Shape], outputs: &[Shape], replicas: usize) -> NodeCost {
    match op {
        Op::While { condition, body } => {
            let mut once = body_cost(condition, replicas);
            once += body_cost(body, replicas);
            once
        }
        Op::Scan(scan) => body_cost(&scan.body, replicas).times(scan.length as u64),
        Op::Case(branches) => {
            let costs = branches.iter().map(|branch| body_cost(branch, replicas));
            costs
                .max_by_key(|cost| (cost.flops, cost.bytes))
                .unwrap_or_default()
        }
        _ => NodeCost {
            flops: flops(op, inputs, outputs, replicas),
            bytes: bytes(op, inputs, outputs, replicas),
        },
    }
}

fn flops(op: &Op, inputs: &[&Shape], outputs: &[Shape], replicas: usize) -> u64 {
    let result = || outputs.first().map_or(0, elements);
    match op {
        Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Select => result(),
        Op::ScatterAdd { .. } => elements(inputs[2]),
        Op::Dot(dims) => dot_flops(inputs[0], dims, result()),
        Op::Conv(dims) => conv_flops(inputs[0], inputs[1], &outputs[0], dims),
        Op::Kernel(kernel) => kernel_flops(kernel, inputs, outputs),
        Op::Reduce { .. } => elements(inputs[0]).saturating_sub(result()),
        Op::ReduceWindow { window, .. } => window_flops(window, result()),
        Op::AllReduce { .. } | Op::ReduceScatter { .. } if replicas == 1 => 0,
        Op::AllReduce { .. } | Op::ReduceScatter { .. } => {
            let once: u64 = inputs.iter().map(|x| elements(x)).sum();
            once.saturating_mul(trips(op, replicas))
        }
        Op::Parameter(_)
        | Op::Constant(_)
        | Op::Iota(_)
        | Op::Convert(_)
        | Op::Bitcast(_)
        | Op::StopGradient
        | Op::WithGradient(_)
        | Op::OptimizationBarrier
        | Op::Reshape(_)
        | Op::Transpose(_)
        | Op::Broadcast { .. }
        | Op::Reverse(_)
        | Op::Pad(_)
        | Op::Slice(_)
        | Op::DynamicSlice(_)
        | Op::DynamicUpdateSlice
        | Op::Concat(_)
        | Op::Gather { .. }
        | Op::ScatterSet { .. }
        | Op::ArgSort
        | Op::RandomBits(_)
        | Op::While { .. }
        | Op::Scan(_)
        | Op::Case(_)
        | Op::AllGather { .. }
        | Op::AllToAll { .. }
        | Op::CollectivePermute(_)
        | Op::ReplicaId
        | Op::ExchangesSucceeded
        | Op::Sharded(_)
        | Op::CustomCall(_) => 0,
    }
}

fn elements(shape: &Shape) -> u64 {
    shape.len() as u64
}

fn product(factors: impl IntoIterator<Item = u64>) -> u64 {
    factors.into_iter().fold(1, u64::saturating_mul)
}

/// A product and a sum per element of the result and of the contracted dims.
fn dot_flops(lhs: &Shape, dims: &DotDims, result: u64) -> u64 {
    let contracted = dims.lhs_contract.iter().map(|&dim| lhs.dims[dim] as u64);
    product([2, result, product(contracted)])
}

fn conv_flops(input: &Shape, kernel: &Shape, output: &Shape, dims: &ConvDims) -> u64 {
    let meetings = (0..dims.strides.len()).map(|i| {
        let size = input.dims[dims.input.spatial[i]];
        let window = kernel.dims[dims.kernel.spatial[i]];
        let places = output.dims[dims.output.spatial[i]];
        meetings(dims, i, [size, window, places])
    });
    product([
        2,
        output.dims[dims.output.batch] as u64,
        output.dims[dims.output.feature] as u64,
        kernel.dims[dims.kernel.feature] as u64,
        product(meetings),
    ])
}

/// Both gradients of a convolution have its products and sums.
fn kernel_flops(kernel: &Kernel, inputs: &[&Shape], outputs: &[Shape]) -> u64 {
    match kernel {
        Kernel::ConvInputGradient { dims, .. } => {
            conv_flops(&outputs[0], inputs[1], inputs[0], dims)
        }
        Kernel::ConvKernelGradient { dims, .. } => {
            conv_flops(inputs[0], &outputs[0], inputs[1], dims)
        }
        Kernel::ConvBias { dims, .. } => conv_flops(inputs[0], inputs[1], &outputs[0], dims)
            .saturating_add(elements(&outputs[0])),
        // Two sums of squares and products, then a scale and a shift.
        Kernel::BatchNorm { .. } => elements(&outputs[0]).saturating_mul(6),
        Kernel::BatchNormGradient { .. } => elements(&outputs[0]).saturating_mul(9),
        Kernel::MaxPool2d(pool) => window_flops(&pool.window(), elements(&outputs[0])),
        Kernel::MaxPool2dGradient { .. } => elements(inputs[1]),
        // A product of each step's states, or of the gradients of its gates, with the recurrent kernel.
        Kernel::Lstm | Kernel::Gru => recurrent_flops(inputs[0], inputs[1]),
        Kernel::LstmGradient | Kernel::GruGradient => recurrent_flops(&outputs[0], inputs[1]),
    }
}

/// Of gates and a recurrent kernel; the functions of a gate and its derivative are about ten operations.
fn recurrent_flops(gates: &Shape, recurrent: &Shape) -> u64 {
    let units = recurrent.dims[0] as u64;
    elements(gates).saturating_mul(units.saturating_mul(2).saturating_add(10))
}

/// How often a kernel element meets an input element along a spatial dim, over all places of the output.
fn meetings(dims: &ConvDims, i: usize, [size, window, places]: [usize; 3]) -> u64 {
    let (low, dilation) = (dims.padding[i].0, dims.input_dilation[i] as i64);
    let meets = |place: usize, tap: usize| {
        let at = (place * dims.strides[i] + tap * dims.kernel_dilation[i]) as i64 - low;
        at >= 0 && at % dilation == 0 && at / dilation < size as i64
    };
    let met = |place: usize| (0..window).filter(|&tap| meets(place, tap)).count() as u64;
    (0..places).map(met).sum()
}

fn window_flops(window: &[WindowDim], result: u64) -> u64 {
    let taps = product(window.iter().map(|dim| dim.size as u64));
    result.saturating_mul(taps.saturating_sub(1))
}

fn bytes(op: &Op, inputs: &[&Shape], outputs: &[Shape], replicas: usize) -> u64 {
    let size = |shape: &Shape| shape.byte_len() as u64;
    let read = || inputs.iter().map(|shape| size(shape)).sum::<u64>();
    let written = || outputs.iter().map(size).sum::<u64>();
    let moved = || read().saturating_add(written());
    match op {
        Op::Parameter(_)
        | Op::Constant(_)
        | Op::Bitcast(_)
        | Op::StopGradient
        | Op::WithGradient(_)
        | Op::OptimizationBarrier
        | Op::Reshape(_)
        | Op::ReplicaId
        | Op::ExchangesSucceeded
        | Op::Sharded(_)
        | Op::While { .. }
        | Op::Scan(_)
        | Op::Case(_) => 0,
        Op::AllReduce { .. }
        | Op::AllGather { .. }
        | Op::ReduceScatter { .. }
        | Op::AllToAll { .. }
        | Op::CollectivePermute(_)
            if replicas == 1 =>
        {
            0
        }
        Op::Slice(_) | Op::DynamicSlice(_) => 2 * written(),
        Op::Gather { .. } => size(inputs[1]) + 2 * written(),
        Op::DynamicUpdateSlice => 2 * size(inputs[1]),
        // The updates are read, and the places they go to read and written.
        Op::ScatterAdd { .. } => size(inputs[1]) + 3 * size(inputs[2]),
        Op::ScatterSet { .. } => size(inputs[1]) + 2 * size(inputs[2]),
        Op::Iota(_)
        | Op::ArgSort
        | Op::Unary(_)
        | Op::Binary(_)
        | Op::Compare(_)
        | Op::Select
        | Op::Convert(_)
        | Op::Transpose(_)
        | Op::Broadcast { .. }
        | Op::Reverse(_)
        | Op::Pad(_)
        | Op::Concat(_)
        | Op::Dot(_)
        | Op::Conv(_)
        | Op::Kernel(_)
        | Op::Reduce { .. }
        | Op::ReduceWindow { .. }
        | Op::RandomBits(_)
        | Op::AllGather { .. }
        | Op::ReduceScatter { .. }
        | Op::AllToAll { .. }
        | Op::CollectivePermute(_)
        | Op::CustomCall(_) => moved(),
        Op::AllReduce { .. } => moved().saturating_mul(trips(op, replicas)),
    }
}

/// How often an operand passes the busiest replica: that which combines alone takes each of the others'.
const fn trips(op: &Op, replicas: usize) -> u64 {
    match op {
        Op::AllReduce {
            via: Via::OneDevice,
            ..
        } => replicas as u64 - 1,
        _ => 1,
    }
}
