//! Runs the nodes of a graph in order, on some replicas in step.

use std::rc::Rc;

use phalanx_graph::op::Node;
use phalanx_graph::{Op, Shape, Value};

use super::noise::Noise;
use super::{
    Array, Dual, Operand, Outcome, Tensors, collectives, contract, convolution, elementwise,
    kernels, loops, moving, numbers, random, window,
};

/// What is the same for all nodes of a run.
#[derive(Clone, Copy)]
pub(super) struct Machine {
    pub(super) noise: Noise,
    pub(super) replicas: usize,
}

/// Which nodes of a graph are computed, in which order, and when each is no longer needed.
pub(super) struct Plan<'a> {
    nodes: &'a [Node],
    outputs: &'a [Value],
    order: Vec<usize>,
    /// For each node the last one that uses it.
    last: Vec<usize>,
}

/// What nodes have made so far: for each node, for each replica.
type Memory = Vec<Vec<Tensors>>;

impl<'a> Plan<'a> {
    pub(super) fn new(nodes: &'a [Node], outputs: &'a [Value]) -> Self {
        let mut last = vec![0; nodes.len()];
        for place in outputs
            .iter()
            .filter_map(|value| nodes.get(value.node).map(|_| value.node))
        {
            last[place] = usize::MAX;
        }
        let mut order = Vec::new();
        for (index, node) in nodes.iter().enumerate().rev() {
            if last[index] == 0 {
                continue;
            }
            order.push(index);
            for input in node.inputs.iter().filter(|input| input.node < index) {
                last[input.node] = last[input.node].max(index);
            }
        }
        order.reverse();
        Self {
            nodes,
            outputs,
            order,
            last,
        }
    }
}

impl Machine {
    /// The outputs of a graph on each of the replicas `ranks`, from the arguments of each.
    pub(super) fn run(
        &self,
        plan: &Plan,
        arguments: &[Tensors],
        ranks: &[usize],
    ) -> Result<Vec<Tensors>, String> {
        let mut memory: Memory = vec![Vec::new(); plan.nodes.len()];
        for &index in &plan.order {
            let node = &plan.nodes[index];
            let results = self.results(plan, node, &memory, arguments, ranks);
            memory[index] = results.map_err(|message| at(plan.nodes, node, &message))?;
            for input in &node.inputs {
                if plan.last[input.node] == index {
                    memory[input.node].clear();
                }
            }
        }
        let all = 0..ranks.len();
        all.map(|place| fetch(&memory, place, plan.outputs))
            .collect()
    }

    fn results(
        &self,
        plan: &Plan,
        node: &Node,
        memory: &Memory,
        arguments: &[Tensors],
        ranks: &[usize],
    ) -> Result<Vec<Tensors>, String> {
        if let Op::Parameter(position) = node.op {
            let argument = |list: &Tensors| list.get(position).map(|dual| vec![Rc::clone(dual)]);
            let found: Option<Vec<Tensors>> = arguments.iter().map(argument).collect();
            return found.ok_or_else(|| "no such argument".into());
        }
        let places = 0..ranks.len();
        let inputs = places.map(|place| fetch(memory, place, &node.inputs));
        let inputs: Vec<Tensors> = inputs.collect::<Result<_, _>>()?;
        match &node.op {
            Op::Scan(dims) => return loops::scan(self, dims, &inputs, ranks),
            Op::While { condition, body } => {
                return loops::repeat(self, condition, body, &inputs, ranks);
            }
            Op::Case(branches) => return loops::case(self, branches, &inputs, ranks),
            _ => {}
        }
        let shapes: Vec<&Shape> = shapes_of(plan.nodes, &node.inputs).collect();
        let operands: Vec<Vec<Operand>> = inputs
            .iter()
            .map(|list| list.iter().zip(&shapes).map(Operand::new).collect())
            .collect();
        if collectives::is_one(&node.op) {
            if ranks.len() != self.replicas {
                return Err("replicas exchange something where they need not meet".into());
            }
            return Ok(own(collectives::eval(self, node, &operands)?));
        }
        let each = inputs.iter().zip(&operands).zip(ranks);
        each.map(|((list, operands), &rank)| {
            if let Some(same) = unchanged(&node.op, list) {
                return Ok(same);
            }
            let made = self.eval(node, operands, rank)?;
            Ok(made.into_iter().map(Rc::new).collect())
        })
        .collect()
    }

    /// An op of one replica.
    fn eval(&self, node: &Node, x: &[Operand], rank: usize) -> Outcome {
        let noise = &self.noise;
        let [shape, ..] = node.shapes.as_slice() else {
            return Err("it has no outputs".into());
        };
        let one = |found: Result<Dual, String>| found.map(|dual| vec![dual]);
        match &node.op {
            Op::Constant(value) => Ok(vec![Dual::from(Array::from(value))]),
            Op::Iota(dim) => Ok(vec![moving::iota(shape, *dim)]),
            Op::ReplicaId => Ok(vec![Dual::from(Array::Ints(vec![rank as i64]))]),
            // The interpreter has all replicas in one process.
            Op::ExchangesSucceeded => Ok(vec![Dual::from(Array::Ints(vec![1]))]),
            Op::Unary(op) => one(elementwise::unary(*op, &take(x)?, noise)),
            Op::Binary(op) => one(elementwise::binary(*op, &take(x)?, noise)),
            Op::Compare(op) => one(elementwise::compare(*op, &take(x)?)),
            Op::Select => one(elementwise::select(&take(x)?)),
            Op::Convert(dtype) => one(Ok(numbers::convert(&take::<1>(x)?[0], *dtype))),
            Op::Bitcast(dtype) => one(numbers::bitcast(&take::<1>(x)?[0], *dtype)),
            Op::StopGradient => Ok(vec![Dual::from(take::<1>(x)?[0].value.clone())]),
            Op::RandomBits(dims) => one(random::bits(dims, &take(x)?)),
            Op::ScatterSet { dim } => one(moving::scatter_set(*dim, &take(x)?)),
            Op::ArgSort => one(moving::argsort(&take(x)?)),
            Op::ScatterAdd { dim } => one(moving::scatter_add(*dim, &take(x)?, noise)),
            Op::Dot(dims) => one(contract::dot(dims, &take(x)?, noise)),
            Op::Conv(dims) => one(convolution::conv(dims, &take(x)?, shape, noise)),
            Op::Reduce { kind, dims } => one(window::reduce(*kind, dims, &take(x)?, noise)),
            Op::ReduceWindow { kind, window } => one(window::reduce_window(
                *kind,
                window,
                &take(x)?,
                shape,
                noise,
            )),
            Op::Kernel(kernel) => kernels::eval(kernel, x, &node.shapes, noise),
            Op::CustomCall(call) => Err(format!("`{}` is code of its own", call.target)),
            op => one(moving::eval(op, x, shape)),
        }
    }
}

/// The operands, when there are as many as expected.
pub(super) fn take<'a, const N: usize>(x: &[Operand<'a>]) -> Result<[Operand<'a>; N], String> {
    x.try_into()
        .map_err(|_| format!("expected {N} operands, got {}", x.len()))
}

/// The operands themselves, of ops that change none.
fn unchanged(op: &Op, inputs: &Tensors) -> Option<Tensors> {
    match op {
        Op::OptimizationBarrier | Op::Sharded(_) | Op::Reshape(_) => Some(inputs.clone()),
        // The value's own derivative, from which a gradient that a program defines may differ on purpose; those of layers do not.
        Op::WithGradient(_) => Some(inputs[..1].to_vec()),
        Op::StopGradient if inputs.iter().all(|x| x.tangent.is_empty()) => Some(inputs.clone()),
        _ => None,
    }
}

fn own(found: Vec<Vec<Dual>>) -> Vec<Tensors> {
    let shared = |list: Vec<Dual>| list.into_iter().map(Rc::new).collect();
    found.into_iter().map(shared).collect()
}

fn fetch(memory: &Memory, place: usize, values: &[Value]) -> Result<Tensors, String> {
    let one = |value: &Value| {
        let found = memory.get(value.node)?.get(place)?.get(value.output)?;
        Some(Rc::clone(found))
    };
    let all: Option<Tensors> = values.iter().map(one).collect();
    all.ok_or_else(|| "it uses what no earlier node makes".into())
}

fn shapes_of<'a>(nodes: &'a [Node], values: &'a [Value]) -> impl Iterator<Item = &'a Shape> {
    values
        .iter()
        .filter_map(|value| nodes.get(value.node)?.shapes.get(value.output))
}

/// An error with the op, its label and its shapes.
fn at(nodes: &[Node], node: &Node, message: &str) -> String {
    let listed = |shapes: Vec<String>| shapes.join(", ");
    let given = listed(
        shapes_of(nodes, &node.inputs)
            .map(Shape::to_string)
            .collect(),
    );
    let made = listed(node.shapes.iter().map(Shape::to_string).collect());
    let label = node.label.as_ref();
    let label = label.map_or(String::new(), |label| format!(" in {label}"));
    format!(
        "{}{label} of ({given}) to ({made}): {message}",
        node.op.name()
    )
}

impl<'a> Operand<'a> {
    fn new((dual, shape): (&'a Rc<Dual>, &&'a Shape)) -> Self {
        Self {
            shape,
            value: &dual.value,
            tangent: &dual.tangent,
        }
    }

    /// The elements of a float operand.
    pub(super) fn floats(&self) -> Result<&'a [f64], String> {
        match self.value {
            Array::Floats(values) => Ok(values),
            Array::Ints(_) => Err(format!("expected floats, got {}", self.shape)),
        }
    }

    /// The elements of an integer or boolean operand.
    pub(super) fn ints(&self) -> Result<&'a [i64], String> {
        match self.value {
            Array::Ints(values) => Ok(values),
            Array::Floats(_) => Err(format!("expected integers, got {}", self.shape)),
        }
    }

    /// The tangent, where it is not zero.
    pub(super) fn slope(&self) -> Option<&'a [f64]> {
        (!self.tangent.is_empty()).then_some(self.tangent)
    }
}
