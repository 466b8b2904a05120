//! Programs cut into pieces that run one after another, each on a device of its own.

use std::collections::{BTreeSet, HashMap};

use crate::op::{Node, Op, Value};
use crate::{Parameter, Program, Sharding};

/// A part of a program that is a program itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// What runs.
    pub program: Program,
    /// What its parameters are in the whole program: parameters of it, or results of earlier pieces.
    pub inputs: Vec<Value>,
    /// What its outputs are: all that later pieces or the caller need.
    pub outputs: Vec<Value>,
}

impl Program {
    /// Cuts the program into `count` pieces, none of which needs a later one.
    ///
    /// `earliest` says for each node the first piece that it may be in; it is in that one, or in the latest of its operands.
    /// Numbers that are written in the program, and repetitions of them, are made where they are needed. An output that is
    /// a parameter is in no piece's outputs.
    #[must_use]
    pub fn pieces(&self, count: usize, earliest: impl Fn(usize, &Node) -> usize) -> Vec<Piece> {
        let places = self.places(count, earliest);
        let mut wanted: HashMap<Value, usize> = HashMap::new();
        for (index, node) in self.nodes.iter().enumerate() {
            for input in &node.inputs {
                let last = wanted.entry(*input).or_default();
                *last = (*last).max(places[index].unwrap_or(0));
            }
        }
        for (_, value) in &self.outputs {
            wanted.insert(*value, usize::MAX);
        }
        let piece = |piece| self.piece(piece, &places, &wanted);
        (0..count).map(piece).collect()
    }

    /// The piece of each node; none for parameters and what is made where it is needed.
    fn places(&self, count: usize, earliest: impl Fn(usize, &Node) -> usize) -> Vec<Option<usize>> {
        let kept: BTreeSet<usize> = self.outputs.iter().map(|(_, value)| value.node).collect();
        let mut places: Vec<Option<usize>> = Vec::with_capacity(self.nodes.len());
        for (index, node) in self.nodes.iter().enumerate() {
            let of_inputs = node.inputs.iter().filter_map(|input| places[input.node]);
            let latest = of_inputs.max();
            let is_parameter =
                |input: &Value| matches!(self.nodes[input.node].op, Op::Parameter(_));
            let is_written = match &node.op {
                Op::Constant(_) | Op::Iota(_) => true,
                Op::Broadcast { .. } => latest.is_none() && !node.inputs.iter().any(is_parameter),
                _ => false,
            };
            places.push(match &node.op {
                Op::Parameter(_) => None,
                _ if is_written && !kept.contains(&index) => None,
                _ => {
                    let first = earliest(index, node).min(count.saturating_sub(1));
                    Some(first.max(latest.unwrap_or(0)))
                }
            });
        }
        places
    }

    fn piece(
        &self,
        piece: usize,
        places: &[Option<usize>],
        wanted: &HashMap<Value, usize>,
    ) -> Piece {
        let mut made: BTreeSet<usize> = (0..self.nodes.len())
            .filter(|&index| places[index] == Some(piece))
            .collect();
        let mut inputs: BTreeSet<(usize, usize)> = BTreeSet::new();
        let mut open: Vec<usize> = made.iter().copied().collect();
        while let Some(index) = open.pop() {
            for input in &self.nodes[index].inputs {
                let is_parameter = matches!(self.nodes[input.node].op, Op::Parameter(_));
                match places[input.node] {
                    Some(place) if place == piece => {}
                    None if !is_parameter => {
                        if made.insert(input.node) {
                            open.push(input.node);
                        }
                    }
                    _ => {
                        inputs.insert((input.node, input.output));
                    }
                }
            }
        }
        let inputs = inputs.into_iter();
        let inputs: Vec<Value> = inputs
            .map(|(node, output)| Value { node, output })
            .collect();
        let own = made.iter().filter(|&&index| places[index].is_some());
        let outputs = own.flat_map(|&node| {
            let results = 0..self.nodes[node].shapes.len();
            results.map(move |output| Value { node, output })
        });
        let is_wanted = |value: &Value| wanted.get(value).is_some_and(|&last| last > piece);
        let outputs: Vec<Value> = outputs.filter(is_wanted).collect();
        let program = self.part(&made, &inputs, &outputs);
        Piece {
            program,
            inputs,
            outputs,
        }
    }

    /// The program of some nodes, with these values as parameters.
    fn part(&self, made: &BTreeSet<usize>, inputs: &[Value], outputs: &[Value]) -> Self {
        let mut nodes: Vec<Node> = Vec::new();
        let mut parameters = Vec::new();
        let mut moved: HashMap<Value, Value> = HashMap::new();
        for (index, value) in inputs.iter().enumerate() {
            let shape = self.shape(*value).clone();
            let source = &self.nodes[value.node];
            let name = match source.op {
                Op::Parameter(parameter) => self.parameters[parameter].name.clone(),
                _ => format!("%{}", value.node),
            };
            nodes.push(Node {
                op: Op::Parameter(index),
                inputs: Vec::new(),
                shapes: vec![shape.clone()],
                ..source.clone()
            });
            parameters.push(Parameter {
                name,
                shape,
                node: index,
                sharding: None,
            });
            moved.insert(*value, at(index, 0));
        }
        for &index in made {
            let mut node = self.nodes[index].clone();
            for input in &mut node.inputs {
                *input = moved[input];
            }
            let place = nodes.len();
            moved.extend((0..node.shapes.len()).map(|out| (at(index, out), at(place, out))));
            nodes.push(node);
        }
        let named = |value: &Value| (format!("%{}", value.node), moved[value]);
        let rank = |value: &Value| Sharding::replicated(self.shape(*value).rank());
        Self {
            nodes,
            parameters,
            outputs: outputs.iter().map(named).collect(),
            output_shardings: outputs.iter().map(rank).collect(),
            donated: Vec::new(),
            ..self.clone()
        }
    }

    /// The nodes that some outputs, by their positions, are made of.
    #[must_use]
    pub fn ancestors(&self, outputs: impl IntoIterator<Item = usize>) -> Vec<bool> {
        let mut found = vec![false; self.nodes.len()];
        for output in outputs {
            found[self.outputs[output].1.node] = true;
        }
        for index in (0..self.nodes.len()).rev() {
            if found[index] {
                for input in &self.nodes[index].inputs {
                    found[input.node] = true;
                }
            }
        }
        found
    }
}

const fn at(node: usize, output: usize) -> Value {
    Value { node, output }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Graph, Shape, gradients};

    #[test]
    fn pieces_need_earlier_ones_alone() {
        let g = Graph::new();
        let x = g.parameter("x", Shape::f32([4, 3]));
        let a = g.parameter("a", Shape::f32([3, 3]));
        let b = g.parameter("b", Shape::f32([3, 2]));
        let hidden = g.labelled("first", || x.matmul(&a).tanh());
        let loss = g.labelled("second", || hidden.matmul(&b).square().mean_all());
        let slopes = gradients(&loss, &[&a, &b]);
        let [da, db] = [0, 1].map(|index| slopes[index].clone().unwrap());
        let outputs = [("loss", &loss), ("da", &da), ("db", &db), ("a", &a)];
        let program = g.finish(&outputs).unwrap().simplified();
        let forward = program.ancestors([0]);
        let pieces = program.pieces(4, |index, node| {
            match (node.label.as_deref(), forward[index]) {
                (Some("second"), true) => 1,
                (Some("first"), false) => 3,
                (_, true) => 0,
                (_, false) => 2,
            }
        });
        let mut known: BTreeSet<usize> = program.parameters.iter().map(|p| p.node).collect();
        for piece in &pieces {
            assert!(piece.inputs.iter().all(|input| known.contains(&input.node)));
            known.extend(piece.outputs.iter().map(|output| output.node));
        }
        for (_, value) in &program.outputs {
            assert!(known.contains(&value.node));
        }
        let names = |piece: &Piece| {
            let names = piece.program.parameters.iter().map(|p| p.name.clone());
            names
                .filter(|name| !name.starts_with('%'))
                .collect::<Vec<_>>()
        };
        let named: Vec<Vec<String>> = pieces.iter().map(names).collect();
        assert_eq!(named, [vec!["x", "a"], vec!["b"], vec!["b"], vec!["x"]]);
    }
}
