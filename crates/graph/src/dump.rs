//! Text of a program for people: one line per node.

use std::fmt::Write as _;
use std::panic::Location;

use crate::cost::{NodeCost, count};
use crate::op::{
    ConvDims, CustomCall, DotDims, Node, Op, PadDim, SliceDim, Subgraph, Value, Via, WindowDim,
};
use crate::{Kernel, Parameter, Program, Shape};

impl Program {
    /// The program as text that a person can read: one line per node with its shape, operands, static arguments,
    /// work, layer, and the place in the source where it was built; bodies of loops and branches are indented.
    ///
    /// ```text
    /// program of 1 replica: 3 parameters, 5 nodes, 6.40 kFLOP, 9.6 kB
    /// %0 = parameter f32[64,10] "x"
    /// %3 = dot f32[64,10] (%0, %1) contract [1]x[0]  // 6.40 kFLOP, 4.1 kB, dense, src/dense.rs:12
    /// return "loss" = %4 f32[]
    /// ```
    #[must_use]
    pub fn dump(&self) -> String {
        let total = self.cost().total;
        let replicas = if self.replicas == 1 {
            "replica"
        } else {
            "replicas"
        };
        let mut text = format!(
            "program of {} {replicas}{}: {} parameters, {} nodes{}\n",
            self.replicas,
            self.on_mesh(),
            self.parameters.len(),
            self.nodes.len(),
            self.summary(total)
        );
        let names: Vec<&str> = self
            .parameters
            .iter()
            .map(|p: &Parameter| p.name.as_str())
            .collect();
        let mut writer = Dump {
            text: &mut text,
            names: &names,
            replicas: self.replicas,
            depth: 0,
        };
        writer.nodes(&self.nodes);
        for (index, (name, value)) in self.outputs.iter().enumerate() {
            let donated = self.donated.iter().find(|(_, output)| *output == index);
            let donated = donated.map_or(String::new(), |(parameter, _)| {
                format!("  // in the memory of {:?}", names[*parameter])
            });
            let shape = self.shape(*value);
            writer.line(&format!(
                "return {name:?} = {} {shape}{donated}",
                self.reference(*value)
            ));
        }
        text
    }

    fn on_mesh(&self) -> String {
        let mesh = self.mesh.as_ref();
        mesh.map_or(String::new(), |mesh| format!(" on {mesh}"))
    }

    fn summary(&self, total: NodeCost) -> String {
        let work = work(total);
        if work.is_empty() {
            work
        } else {
            format!(", {work}")
        }
    }

    fn reference(&self, value: Value) -> String {
        reference(&self.nodes, value)
    }
}

struct Dump<'a> {
    text: &'a mut String,
    names: &'a [&'a str],
    replicas: usize,
    depth: usize,
}

impl Dump<'_> {
    fn line(&mut self, line: &str) {
        self.text.extend(std::iter::repeat_n("  ", self.depth));
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn nodes(&mut self, nodes: &[Node]) {
        let costs = count(nodes, self.replicas).nodes;
        for (index, (node, cost)) in nodes.iter().zip(costs).enumerate() {
            let line = self.node(nodes, index, node, cost);
            self.line(&line);
            match &node.op {
                Op::While { condition, body } => {
                    self.body("condition", condition);
                    self.body("body", body);
                }
                Op::Scan(scan) => self.body("body", &scan.body),
                Op::Case(branches) => {
                    for (number, branch) in branches.iter().enumerate() {
                        self.body(&format!("branch {number}"), branch);
                    }
                }
                _ => {}
            }
        }
    }

    fn body(&mut self, name: &str, body: &Subgraph) {
        self.depth += 1;
        self.line(&format!("{name}:"));
        self.depth += 1;
        let names = std::mem::take(&mut self.names);
        self.nodes(&body.nodes);
        self.names = names;
        let results: Vec<String> = body
            .outputs
            .iter()
            .map(|&value| reference(&body.nodes, value))
            .collect();
        self.line(&format!("return {}", results.join(", ")));
        self.depth -= 2;
    }

    fn node(&self, nodes: &[Node], index: usize, node: &Node, cost: NodeCost) -> String {
        let shapes: Vec<String> = node.shapes.iter().map(Shape::to_string).collect();
        let mut line = format!("%{index} = {}", node.op.name());
        if !shapes.is_empty() {
            let _ = write!(line, " {}", shapes.join(" "));
        }
        if !node.inputs.is_empty() {
            let inputs = node.inputs.iter().map(|&value| reference(nodes, value));
            let _ = write!(line, " ({})", inputs.collect::<Vec<_>>().join(", "));
        }
        let arguments = self.arguments(&node.op);
        if !arguments.is_empty() {
            let _ = write!(line, " {arguments}");
        }
        let remarks = remarks(node, cost);
        if !remarks.is_empty() {
            let _ = write!(line, "  // {remarks}");
        }
        line
    }

    /// The static arguments that the shapes do not tell.
    fn arguments(&self, op: &Op) -> String {
        match op {
            Op::Parameter(index) => match self.names.get(*index) {
                Some(name) => format!("{name:?}"),
                None => format!("{index}"),
            },
            Op::Constant(value) => format!("{value:?}")
                .split_once(' ')
                .map_or_else(String::new, |(_, numbers)| numbers.to_owned()),
            Op::Compare(op) => op.name().to_owned(),
            Op::Iota(dim) | Op::Concat(dim) | Op::Gather { dim } => format!("dim {dim}"),
            Op::ScatterAdd { dim } | Op::ScatterSet { dim } => format!("dim {dim}"),
            Op::AllGather { dim } | Op::ReduceScatter { dim } => format!("dim {dim}"),
            Op::Transpose(dims) | Op::Reverse(dims) => format!("dims {dims:?}"),
            Op::Broadcast { map, .. } if map.is_empty() => String::new(),
            Op::Broadcast { map, .. } => format!("dims {map:?}"),
            Op::Pad(pads) => joined(pads, pad),
            Op::Slice(slices) => format!("[{}]", joined(slices, range)),
            Op::Dot(dims) => dot(dims),
            Op::Conv(dims) => conv(dims),
            Op::Reduce { kind, dims } => format!("{} over {dims:?}", kind.name()),
            Op::ReduceWindow { kind, window } => {
                format!("{} over {}", kind.name(), joined(window, sliding))
            }
            Op::Scan(scan) => {
                let order = if scan.reverse { ", last first" } else { "" };
                format!(
                    "{} steps{order}, {} carried, {} read by rows",
                    scan.length, scan.carry, scan.xs
                )
            }
            Op::AllReduce { kind, via } => match via {
                Via::Native => kind.name().to_owned(),
                _ => format!("{} via {}", kind.name(), via.name()),
            },
            Op::AllToAll { split, concat } => format!("split {split} concat {concat}"),
            Op::CollectivePermute(pairs) => format!("{pairs:?}"),
            Op::Sharded(sharding) => sharding.to_string(),
            Op::Kernel(op) => kernel(op),
            Op::CustomCall(call) => custom(call),
            Op::Unary(_)
            | Op::Binary(_)
            | Op::Select
            | Op::Convert(_)
            | Op::Bitcast(_)
            | Op::StopGradient
            | Op::WithGradient(_)
            | Op::OptimizationBarrier
            | Op::Reshape(_)
            | Op::DynamicSlice(_)
            | Op::DynamicUpdateSlice
            | Op::ArgSort
            | Op::RandomBits(_)
            | Op::While { .. }
            | Op::Case(_)
            | Op::ReplicaId
            | Op::ExchangesSucceeded => String::new(),
        }
    }
}

impl Op {
    /// The lower-case name in dumps and cost tables.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Parameter(_) => "parameter",
            Self::Constant(_) => "constant",
            Self::Iota(_) => "iota",
            Self::Unary(op) => op.name(),
            Self::Binary(op) => op.name(),
            Self::Compare(_) => "compare",
            Self::Select => "select",
            Self::Convert(_) => "convert",
            Self::Bitcast(_) => "bitcast_convert",
            Self::StopGradient => "stop_gradient",
            Self::WithGradient(_) => "with_gradient",
            Self::OptimizationBarrier => "optimization_barrier",
            Self::Reshape(_) => "reshape",
            Self::Transpose(_) => "transpose",
            Self::Broadcast { .. } => "broadcast",
            Self::Reverse(_) => "reverse",
            Self::Pad(_) => "pad",
            Self::Slice(_) => "slice",
            Self::DynamicSlice(_) => "dynamic_slice",
            Self::DynamicUpdateSlice => "dynamic_update_slice",
            Self::Concat(_) => "concatenate",
            Self::Gather { .. } => "gather",
            Self::ScatterAdd { .. } => "scatter_add",
            Self::ScatterSet { .. } => "scatter_set",
            Self::ArgSort => "argsort",
            Self::Dot(_) => "dot",
            Self::Conv(_) => "convolution",
            Self::Reduce { .. } => "reduce",
            Self::ReduceWindow { .. } => "reduce_window",
            Self::RandomBits(_) => "random_bits",
            Self::While { .. } => "while",
            Self::Scan(_) => "scan",
            Self::Case(_) => "case",
            Self::AllReduce { .. } => "all_reduce",
            Self::AllGather { .. } => "all_gather",
            Self::ReduceScatter { .. } => "reduce_scatter",
            Self::AllToAll { .. } => "all_to_all",
            Self::CollectivePermute(_) => "collective_permute",
            Self::ReplicaId => "replica_id",
            Self::ExchangesSucceeded => "exchanges_succeeded",
            Self::Sharded(_) => "sharded",
            Self::Kernel(kernel) => kernel.name(),
            Self::CustomCall(_) => "custom_call",
        }
    }
}

/// `%4`, or `%4.1` for one of several results.
fn reference(nodes: &[Node], value: Value) -> String {
    if nodes[value.node].shapes.len() == 1 {
        return format!("%{}", value.node);
    }
    format!("%{}.{}", value.node, value.output)
}

fn remarks(node: &Node, cost: NodeCost) -> String {
    let mut remarks: Vec<String> = Vec::new();
    let work = work(cost);
    if !work.is_empty() {
        remarks.push(work);
    }
    remarks.extend(node.label.as_deref().map(str::to_owned));
    remarks.push(place(node.location));
    remarks.join(", ")
}

/// The last three parts of the file's path, and the line.
fn place(location: &Location) -> String {
    let mut parts: Vec<&str> = location.file().rsplit(['/', '\\']).take(3).collect();
    parts.reverse();
    format!("{}:{}", parts.join("/"), location.line())
}

/// `6.40 kFLOP, 4.10 kB`, of what is not zero.
fn work(cost: NodeCost) -> String {
    let parts = [(cost.flops, "FLOP"), (cost.bytes, "B")];
    let shown = parts.into_iter().filter(|(count, _)| *count > 0);
    let shown: Vec<String> = shown.map(|(count, unit)| scaled(count, unit)).collect();
    shown.join(", ")
}

/// A count with three digits and a decimal prefix.
fn scaled(count: u64, unit: &str) -> String {
    let mut value = count as f64;
    for prefix in ["", "k", "M", "G", "T", "P"] {
        if value < 999.5 {
            let digits = match value {
                _ if prefix.is_empty() => 0,
                v if v < 9.995 => 2,
                v if v < 99.95 => 1,
                _ => 0,
            };
            return format!("{value:.digits$} {prefix}{unit}");
        }
        value /= 1000.0;
    }
    format!("{value:.0} E{unit}")
}

fn joined<T>(items: &[T], text: impl Fn(&T) -> String) -> String {
    items.iter().map(text).collect::<Vec<_>>().join(", ")
}

fn pad(pad: &PadDim) -> String {
    match pad.interior {
        0 => format!("{}_{}", pad.low, pad.high),
        interior => format!("{}_{}_{interior}", pad.low, pad.high),
    }
}

fn range(slice: &SliceDim) -> String {
    match slice.stride {
        1 => format!("{}:{}", slice.start, slice.limit),
        stride => format!("{}:{}:{stride}", slice.start, slice.limit),
    }
}

fn sliding(window: &WindowDim) -> String {
    let mut text = window.size.to_string();
    let parts = [("stride", window.stride), ("dilation", window.dilation)];
    for (name, step) in parts {
        if step != 1 {
            let _ = write!(text, " {name} {step}");
        }
    }
    if (window.low, window.high) != (0, 0) {
        let _ = write!(text, " pad {}_{}", window.low, window.high);
    }
    text
}

fn dot(dims: &DotDims) -> String {
    let contract = format!("contract {:?}x{:?}", dims.lhs_contract, dims.rhs_contract);
    match dims.lhs_batch.as_slice() {
        [] => contract,
        batch => format!("{contract} batch {batch:?}x{:?}", dims.rhs_batch),
    }
}

fn conv(dims: &ConvDims) -> String {
    let ones = |list: &[usize]| list.iter().all(|&n| n == 1);
    let mut parts = Vec::new();
    for (name, list) in [
        ("stride", &dims.strides),
        ("input dilation", &dims.input_dilation),
        ("kernel dilation", &dims.kernel_dilation),
    ] {
        if !ones(list) {
            parts.push(format!("{name} {list:?}"));
        }
    }
    if dims.padding.iter().any(|edges| *edges != (0, 0)) {
        parts.push(format!(
            "pad {}",
            joined(&dims.padding, |(low, high)| format!("{low}_{high}"))
        ));
    }
    for (name, groups) in [
        ("groups", dims.feature_groups),
        ("batch groups", dims.batch_groups),
    ] {
        if groups != 1 {
            parts.push(format!("{name} {groups}"));
        }
    }
    parts.join(" ")
}

fn kernel(op: &Kernel) -> String {
    match op {
        Kernel::ConvInputGradient { dims, .. } | Kernel::ConvKernelGradient { dims, .. } => {
            conv(dims)
        }
        Kernel::ConvBias { dims, activation } => format!("{} {activation:?}", conv(dims)),
        Kernel::BatchNorm {
            epsilon,
            activation,
        } => format!("epsilon {epsilon} {activation:?}"),
        Kernel::BatchNormGradient { epsilon, mask } => format!("epsilon {epsilon} mask {mask:?}"),
        Kernel::MaxPool2d(pool) | Kernel::MaxPool2dGradient { pool, .. } => {
            joined(&pool.window(), sliding)
        }
        Kernel::Lstm | Kernel::LstmGradient | Kernel::Gru | Kernel::GruGradient => String::new(),
    }
}

fn custom(call: &CustomCall) -> String {
    let effect = if call.has_side_effect {
        ", has side effects"
    } else {
        ""
    };
    format!("{:?}{effect}", call.target)
}
