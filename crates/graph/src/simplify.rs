//! Simplification: what can be left out of a program without changing one bit of what it computes.
//!
//! One pass in order, for operands are simple by the time they are used: constants folded, identities taken
//! out, equal expressions joined; then what no output needs is dropped. Rewrites of floats are those that are
//! exact in IEEE arithmetic: `x * 1` goes, `x + 0` stays (it turns -0 into 0).

mod fold;
mod fuse;
mod rules;

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::op::{BinaryOp, Node, Op, ScanDims, Subgraph, Value};
use crate::{HostTensor, Parameter, Program, Shape};

impl Program {
    /// The same function in fewer nodes: parameters, names of outputs and donations stay as they are.
    ///
    /// Of equal expressions the first keeps its label.
    #[must_use]
    pub fn simplified(&self) -> Self {
        let outputs: Vec<Value> = self.outputs.iter().map(|(_, value)| *value).collect();
        let (nodes, values) = simplify(&self.nodes, &outputs, self.replicas);
        let mut places = vec![0; self.parameters.len()];
        for (place, node) in nodes.iter().enumerate() {
            if let Op::Parameter(index) = node.op {
                places[index] = place;
            }
        }
        let placed = |(parameter, &node): (&Parameter, &usize)| Parameter {
            node,
            ..parameter.clone()
        };
        let named = self.outputs.iter().zip(values);
        Self {
            parameters: self.parameters.iter().zip(&places).map(placed).collect(),
            outputs: named
                .map(|((name, _), value)| (name.clone(), value))
                .collect(),
            nodes,
            replicas: self.replicas,
            workers: self.workers,
            mesh: self.mesh.clone(),
            output_shardings: self.output_shardings.clone(),
            donated: self.donated.clone(),
        }
    }
}

fn simplify(nodes: &[Node], outputs: &[Value], replicas: usize) -> (Vec<Node>, Vec<Value>) {
    let live = live(nodes, outputs);
    let mut rewriter = Rewriter::new(replicas);
    let mut places: Vec<Vec<Value>> = Vec::with_capacity(nodes.len());
    for (node, live) in nodes.iter().zip(live) {
        let new = match live {
            true => rewriter.rewrite(node, &places),
            false => Vec::new(),
        };
        places.push(new);
    }
    let outputs: Vec<Value> = outputs
        .iter()
        .map(|value| places[value.node][value.output])
        .collect();
    compact(rewriter.nodes, &outputs)
}

pub(crate) fn simplify_body(body: &Subgraph, replicas: usize) -> Arc<Subgraph> {
    let (nodes, outputs) = simplify(&body.nodes, &body.outputs, replicas);
    Arc::new(Subgraph {
        nodes,
        parameters: body.parameters.clone(),
        outputs,
    })
}

/// Which nodes are needed: parameters, those with side effects, and what outputs come from.
fn live(nodes: &[Node], outputs: &[Value]) -> Vec<bool> {
    let mut live: Vec<bool> = nodes.iter().map(|node| is_root(&node.op)).collect();
    for value in outputs {
        live[value.node] = true;
    }
    for index in (0..nodes.len()).rev() {
        if live[index] {
            for input in &nodes[index].inputs {
                live[input.node] = true;
            }
        }
    }
    live
}

/// Whether a node is needed though nothing uses it: a parameter, or what has a side effect.
pub(crate) fn is_root(op: &Op) -> bool {
    let inside = |body: &Subgraph| {
        let effect = |node: &Node| !matches!(node.op, Op::Parameter(_)) && is_root(&node.op);
        body.nodes.iter().any(effect)
    };
    match op {
        Op::Parameter(_) => true,
        Op::CustomCall(call) => call.has_side_effect,
        op => op.bodies().into_iter().any(inside),
    }
}

/// Drops the nodes that rewriting left without a use.
fn compact(nodes: Vec<Node>, outputs: &[Value]) -> (Vec<Node>, Vec<Value>) {
    let live = live(&nodes, outputs);
    let mut places = vec![0; nodes.len()];
    let mut kept: Vec<Node> = Vec::with_capacity(nodes.len());
    for (index, mut node) in nodes.into_iter().enumerate() {
        if live[index] {
            places[index] = kept.len();
            for input in &mut node.inputs {
                input.node = places[input.node];
            }
            kept.push(node);
        }
    }
    let moved = |value: &Value| Value {
        node: places[value.node],
        output: value.output,
    };
    (kept, outputs.iter().map(moved).collect())
}

/// What became of a node.
enum Rewrite {
    /// Another value is the same.
    Is(Value),
    /// A repeated number is the same.
    Splat(HostTensor),
    /// Another op on these operands is the same.
    Op(Box<Op>, Vec<Value>),
}

/// The new nodes, and where to find those that equal a given one.
struct Rewriter {
    nodes: Vec<Node>,
    known: HashMap<u64, Vec<usize>>,
    replicas: usize,
}

impl Rewriter {
    fn new(replicas: usize) -> Self {
        Self {
            nodes: Vec::new(),
            known: HashMap::new(),
            replicas,
        }
    }

    fn shape(&self, value: Value) -> &Shape {
        &self.nodes[value.node].shapes[value.output]
    }

    fn op(&self, value: Value) -> &Op {
        &self.nodes[value.node].op
    }

    /// The scalar that a value repeats.
    fn splat(&self, value: Value) -> Option<&HostTensor> {
        match self.op(value) {
            Op::Constant(number) if number.dims().is_empty() => Some(number),
            Op::Broadcast { .. } => match self.op(self.nodes[value.node].inputs[0]) {
                Op::Constant(number) if number.dims().is_empty() => Some(number),
                _ => None,
            },
            _ => None,
        }
    }

    /// The values that stand for a node's results.
    fn rewrite(&mut self, old: &Node, places: &[Vec<Value>]) -> Vec<Value> {
        let moved = |value: &Value| places[value.node][value.output];
        let mut node = Node {
            op: self.with_simple_bodies(&old.op),
            inputs: old.inputs.iter().map(moved).collect(),
            ..old.clone()
        };
        if node.shapes.len() != 1 {
            return self.rewrite_many(node);
        }
        // Each rule brings a node closer to its operands, so this ends; the bound guards against our own mistakes.
        for _ in 0..8 {
            match self.rule(&node) {
                Some(Rewrite::Is(value)) => return vec![value],
                Some(Rewrite::Splat(number)) => return vec![self.emit_splat(number, &node)],
                Some(Rewrite::Op(op, inputs)) => (node.op, node.inputs) = (*op, inputs),
                None => break,
            }
        }
        let index = self.emit(node);
        vec![Value {
            node: index,
            output: 0,
        }]
    }

    fn rule(&self, node: &Node) -> Option<Rewrite> {
        let folded = fold::fold(self, node).map(Rewrite::Splat);
        folded.or_else(|| rules::simpler(self, node))
    }

    fn rewrite_many(&mut self, node: Node) -> Vec<Value> {
        if matches!(node.op, Op::AllReduce { .. }) && self.replicas == 1 {
            return node.inputs;
        }
        let count = node.shapes.len();
        let index = self.emit(node);
        let value = |output| Value {
            node: index,
            output,
        };
        (0..count).map(value).collect()
    }

    fn with_simple_bodies(&self, op: &Op) -> Op {
        match op {
            Op::While { condition, body } => Op::While {
                condition: simplify_body(condition, self.replicas),
                body: simplify_body(body, self.replicas),
            },
            Op::Scan(scan) => Op::Scan(ScanDims {
                body: simplify_body(&scan.body, self.replicas),
                ..scan.clone()
            }),
            Op::Case(branches) => {
                let simple = |branch: &Arc<Subgraph>| simplify_body(branch, self.replicas);
                Op::Case(branches.iter().map(simple).collect())
            }
            other => other.clone(),
        }
    }

    /// A repeated number in the place of `node`.
    fn emit_splat(&mut self, number: HostTensor, node: &Node) -> Value {
        let shape = node.shapes[0].clone();
        let scalar = Node {
            shapes: vec![Shape::scalar(shape.dtype)],
            op: Op::Constant(number),
            inputs: Vec::new(),
            ..node.clone()
        };
        let scalar = Value {
            node: self.emit(scalar),
            output: 0,
        };
        if shape.dims.is_empty() {
            return scalar;
        }
        let repeated = Node {
            op: Op::Broadcast {
                dims: shape.dims.clone(),
                map: Vec::new(),
            },
            inputs: vec![scalar],
            ..node.clone()
        };
        Value {
            node: self.emit(repeated),
            output: 0,
        }
    }

    /// Appends a node, unless there is an equal one.
    fn emit(&mut self, node: Node) -> usize {
        let is_own = matches!(node.op, Op::OptimizationBarrier | Op::ExchangesSucceeded);
        if is_own || is_root(&node.op) {
            self.nodes.push(node);
            return self.nodes.len() - 1;
        }
        let found = self.find(&node).or_else(|| self.find(&swapped(&node)?));
        found.unwrap_or_else(|| {
            self.known
                .entry(key(&node))
                .or_default()
                .push(self.nodes.len());
            self.nodes.push(node);
            self.nodes.len() - 1
        })
    }

    fn find(&self, node: &Node) -> Option<usize> {
        let candidates = self.known.get(&key(node))?;
        let equal = |index: &&usize| {
            let other = &self.nodes[**index];
            other.inputs == node.inputs && other.shapes == node.shapes && other.op == node.op
        };
        candidates.iter().find(equal).copied()
    }
}

/// The node with its operands in the other order, where that is the same.
fn swapped(node: &Node) -> Option<Node> {
    use BinaryOp::{Add, And, Mul, Or, Xor};
    let Op::Binary(Add | Mul | And | Or | Xor) = node.op else {
        return None;
    };
    let mut node = node.clone();
    node.inputs.reverse();
    Some(node)
}

/// A number that equal nodes share; few others do.
fn key(node: &Node) -> u64 {
    let mut hasher = DefaultHasher::new();
    node.op.name().hash(&mut hasher);
    node.inputs.hash(&mut hasher);
    node.shapes.hash(&mut hasher);
    if let Op::Constant(value) = &node.op {
        let bytes = value.bytes();
        bytes[..bytes.len().min(64)].hash(&mut hasher);
    }
    hasher.finish()
}
