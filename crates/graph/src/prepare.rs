//! Programs that run many times between two changes of their parameters, divided: what depends on these parameters alone is
//! computed once.
//!
//! For convolutions, in three steps. What a convolution's result is multiplied by and what is added to it, a number for each channel,
//! goes into its kernel and its bias ([`fold`]): a normalization by moving statistics is no pass of its own then. Kernels of small batches
//! get the form that is fastest to compute with ([`forms`]). Then the operands that are the same each time are cut off.

mod fold;
mod forms;

use std::collections::HashMap;

use crate::op::{Node, Op, Value};
use crate::{Kernel, KernelSupport, Parameter, Program, Sharding};

/// A program divided by how often its parts must run.
#[derive(Clone, Debug, PartialEq)]
pub struct Prepared {
    /// From the leading parameters of the program to values made of them alone, to be run when these parameters have changed.
    pub once: Program,
    /// The program, whose last parameters are the outputs of `once`, in their order. It must not donate the leading ones.
    pub each_time: Program,
}

impl Program {
    /// This program for leading parameters, `constant` of them, that change seldom, on a device with registered kernels; nothing
    /// where no convolution gains.
    ///
    /// Results differ from the program's own by rounding. Where a normalization's scale is infinite, what was infinite may be NaN.
    #[must_use]
    pub fn prepared(&self, constant: usize, kernels: KernelSupport) -> Option<Prepared> {
        if self.mesh.is_some() {
            return None;
        }
        let folded = fold::folded(&self.simplified(), constant);
        let whole = forms::transformed(&folded.fused(), constant, kernels);
        let cut = cut(&whole.nodes, constant);
        (!cut.is_empty()).then(|| Prepared {
            once: once(&whole, constant, &cut),
            each_time: each_time(&whole, &cut),
        })
    }
}

/// Of each node, whether it depends on the leading parameters alone, and is the same for the same values.
fn constant_nodes(nodes: &[Node], constant: usize) -> Vec<bool> {
    let mut known: Vec<bool> = Vec::with_capacity(nodes.len());
    for node in nodes {
        let is_pure = match &node.op {
            Op::Parameter(index) => *index < constant,
            Op::CustomCall(call) => forms::is_made_by(call),
            Op::Constant(_)
            | Op::Iota(_)
            | Op::Unary(_)
            | Op::Binary(_)
            | Op::Compare(_)
            | Op::Select
            | Op::Convert(_)
            | Op::Bitcast(_)
            | Op::Reshape(_)
            | Op::Transpose(_)
            | Op::Broadcast { .. }
            | Op::Reverse(_)
            | Op::Pad(_)
            | Op::Slice(_)
            | Op::Concat(_)
            | Op::Dot(_)
            | Op::Reduce { .. } => true,
            _ => false,
        };
        known.push(is_pure && node.inputs.iter().all(|input| known[input.node]));
    }
    known
}

/// The kernels and biases of convolutions that are computed from the leading parameters, each once.
fn cut(nodes: &[Node], constant: usize) -> Vec<Value> {
    let known = constant_nodes(nodes, constant);
    let mut cut = Vec::new();
    for node in nodes {
        let convolves = match &node.op {
            Op::Conv(_) | Op::Kernel(Kernel::ConvBias { .. }) => true,
            Op::CustomCall(call) => forms::is_used_by(call),
            _ => false,
        };
        let operands = node.inputs.iter().skip(1).filter(|_| convolves);
        for &value in operands.filter(|value| known[value.node]) {
            let is_given = matches!(nodes[value.node].op, Op::Parameter(_) | Op::Constant(_));
            if !is_given && !cut.contains(&value) {
                cut.push(value);
            }
        }
    }
    cut
}

/// The program of the values that are cut off.
fn once(whole: &Program, constant: usize, cut: &[Value]) -> Program {
    let mut needed = vec![false; whole.nodes.len()];
    cut.iter().for_each(|value| needed[value.node] = true);
    for index in (0..needed.len()).rev() {
        let node = &whole.nodes[index];
        needed[index] |= matches!(node.op, Op::Parameter(index) if index < constant);
        if needed[index] {
            let inputs = node.inputs.iter();
            inputs.for_each(|input| needed[input.node] = true);
        }
    }
    let mut nodes = Rebuilt::default();
    for (index, node) in whole.nodes.iter().enumerate() {
        match needed[index] {
            true => nodes.keep(node),
            false => nodes.skip(),
        }
    }
    let outputs = cut.iter().map(|value| ("prepared".to_owned(), *value));
    let whole_on_each = |value: &Value| Sharding::replicated(whole.shape(*value).rank());
    let part = Program {
        parameters: whole.parameters[..constant].to_vec(),
        outputs: outputs.collect(),
        output_shardings: cut.iter().map(whole_on_each).collect(),
        donated: Vec::new(),
        ..whole.clone()
    };
    nodes.into_program(&part)
}

/// The program without what is cut off, which are parameters.
fn each_time(whole: &Program, cut: &[Value]) -> Program {
    let given = whole.parameters.len();
    let mut nodes = Rebuilt::default();
    let mut parameters = whole.parameters.clone();
    let mut instead = HashMap::new();
    for (index, &value) in cut.iter().enumerate() {
        let shape = whole.shape(value).clone();
        let node = Node {
            op: Op::Parameter(given + index),
            inputs: Vec::new(),
            shapes: vec![shape.clone()],
            ..whole.nodes[value.node].clone()
        };
        parameters.push(Parameter {
            name: format!("prepared {index}"),
            shape,
            node: index,
            sharding: None,
        });
        instead.insert(value.node, nodes.add(node));
    }
    for (index, node) in whole.nodes.iter().enumerate() {
        match instead.get(&index) {
            Some(&value) => nodes.places.push(value),
            None => nodes.keep(node),
        }
    }
    let program = Program {
        parameters,
        ..whole.clone()
    };
    nodes.into_program(&program).simplified()
}

/// The nodes of a program written anew, and where each old one is among them. What is replaced has one result.
#[derive(Default)]
struct Rebuilt {
    nodes: Vec<Node>,
    places: Vec<Value>,
}

impl Rebuilt {
    /// Adds a node whose operands are new ones.
    fn add(&mut self, node: Node) -> Value {
        self.nodes.push(node);
        Value {
            node: self.nodes.len() - 1,
            output: 0,
        }
    }

    /// Adds a node like another, at its place in the source.
    fn add_like(&mut self, like: &Node, op: Op, inputs: Vec<Value>, shape: crate::Shape) -> Value {
        self.add(Node {
            op,
            inputs,
            shapes: vec![shape],
            ..like.clone()
        })
    }

    /// Where an old value is.
    fn at(&self, old: Value) -> Value {
        Value {
            node: self.places[old.node].node,
            ..old
        }
    }

    /// The next old node stays.
    fn keep(&mut self, old: &Node) {
        let inputs = old.inputs.iter().map(|&input| self.at(input)).collect();
        let place = self.add(Node {
            inputs,
            ..old.clone()
        });
        self.places.push(place);
    }

    /// Nothing needs the next old node.
    fn skip(&mut self) {
        self.places.push(Value {
            node: usize::MAX,
            output: 0,
        });
    }

    /// The program with these nodes for its own.
    fn into_program(self, old: &Program) -> Program {
        let mut parameters = old.parameters.clone();
        for (place, node) in self.nodes.iter().enumerate() {
            if let Op::Parameter(index) = node.op {
                parameters[index].node = place;
            }
        }
        let outputs = old.outputs.iter();
        let outputs = outputs.map(|(name, value)| (name.clone(), self.at(*value)));
        Program {
            outputs: outputs.collect(),
            parameters,
            nodes: self.nodes,
            ..old.clone()
        }
    }
}
