//! Folding of what follows a convolution, a number for each channel, into its kernel and its bias.

use std::collections::HashMap;

use super::{Rebuilt, constant_nodes};
use crate::op::{BinaryOp, ConvDims, Node, Op, Value};
use crate::{DType, Program, Shape};

/// What is done to each channel of a convolution's result.
struct Fold<'a> {
    convolution: &'a Node,
    dims: &'a ConvDims,
    /// Additions, subtractions and multiplications, with a vector of a number for each channel.
    steps: Vec<(BinaryOp, Value)>,
}

/// The same function, where convolutions in f32 take such additions and multiplications along, if there is a multiplication and no other use of
/// a value between, and if all vectors and the kernel depend on the leading parameters alone.
pub(super) fn folded(program: &Program, constant: usize) -> Program {
    let finder = Finder::new(program, constant);
    let convolutions = 0..program.nodes.len();
    let folds: HashMap<usize, Fold<'_>> = convolutions.filter_map(|at| finder.fold(at)).collect();
    let mut nodes = Rebuilt::default();
    for (index, node) in program.nodes.iter().enumerate() {
        match folds.get(&index) {
            Some(fold) => {
                let result = fold.write(&mut nodes, program);
                nodes.places.push(result);
            }
            None => nodes.keep(node),
        }
    }
    nodes.into_program(program).simplified()
}

/// Looks for what can be folded.
struct Finder<'a> {
    program: &'a Program,
    is_constant: Vec<bool>,
    /// The nodes that use each node; a node twice where it does so twice.
    users: Vec<Vec<usize>>,
    is_output: Vec<bool>,
}

impl<'a> Finder<'a> {
    fn new(program: &'a Program, constant: usize) -> Self {
        let count = program.nodes.len();
        let (mut users, mut is_output) = (vec![Vec::new(); count], vec![false; count]);
        for (index, node) in program.nodes.iter().enumerate() {
            let inputs = node.inputs.iter();
            inputs.for_each(|input| users[input.node].push(index));
        }
        let outputs = program.outputs.iter();
        outputs.for_each(|(_, value)| is_output[value.node] = true);
        Self {
            is_constant: constant_nodes(&program.nodes, constant),
            program,
            users,
            is_output,
        }
    }

    /// What follows a convolution, and the last node of it.
    fn fold(&self, index: usize) -> Option<(usize, Fold<'a>)> {
        let convolution = &self.program.nodes[index];
        let Op::Conv(dims) = &convolution.op else {
            return None;
        };
        let kernel = convolution.inputs[1];
        let in_f32 = convolution.shapes[0].dtype == DType::F32
            && self.program.shape(kernel).dtype == DType::F32;
        if !in_f32 || !self.is_constant[kernel.node] || dims.batch_groups > 1 {
            return None;
        }
        let (mut last, mut steps) = (index, Vec::new());
        while let Some((user, step)) = self.next(last, dims.output.feature) {
            (last, _) = (user, steps.push(step));
        }
        let scales = steps.iter().any(|(op, _)| *op == BinaryOp::Mul);
        scales.then_some((
            last,
            Fold {
                convolution,
                dims,
                steps,
            },
        ))
    }

    /// The only use of a node, where it adds or multiplies a number for each channel.
    fn next(&self, index: usize, channel: usize) -> Option<(usize, (BinaryOp, Value))> {
        let [user] = self.users[index][..] else {
            return None;
        };
        let node = &self.program.nodes[user];
        let Op::Binary(op @ (BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul)) = node.op else {
            return None;
        };
        let other = match node.inputs[..] {
            [first, other] if first.node == index => other,
            [other, _] if op != BinaryOp::Sub => other,
            _ => return None,
        };
        let spread = &self.program.nodes[other.node];
        let Op::Broadcast { map, .. } = &spread.op else {
            return None;
        };
        let fits = *map == [channel] && self.is_constant[other.node] && !self.is_output[index];
        let vector = *spread.inputs.first()?;
        let channels = node.shapes[0].dims[channel];
        let is_whole = self.program.shape(vector).dims == [channels];
        (fits && is_whole).then_some((user, (op, vector)))
    }
}

impl Fold<'_> {
    /// Writes `x * (kernel * scale) + shift`.
    fn write(&self, nodes: &mut Rebuilt, program: &Program) -> Value {
        let like = self.convolution;
        let vector = Shape::f32([like.shapes[0].dims[self.dims.output.feature]]);
        let (mut scale, mut shift): (Option<Value>, Option<Value>) = (None, None);
        for &(op, number) in &self.steps {
            let number = nodes.at(number);
            let mut combined = |with: Option<Value>, op| {
                with.map(|with| {
                    nodes.add_like(like, Op::Binary(op), vec![with, number], vector.clone())
                })
            };
            match op {
                BinaryOp::Mul => {
                    scale = Some(combined(scale, op).unwrap_or(number));
                    shift = combined(shift, op);
                }
                BinaryOp::Sub if shift.is_none() => {
                    let negated = Op::Unary(crate::op::UnaryOp::Neg);
                    shift = Some(nodes.add_like(like, negated, vec![number], vector.clone()));
                }
                _ => shift = Some(combined(shift, op).unwrap_or(number)),
            }
        }
        let [x, kernel] = [like.inputs[0], like.inputs[1]].map(|value| nodes.at(value));
        let mut spread = |vector: Value, shape: &Shape, channel| {
            let (dims, map) = (shape.dims.clone(), vec![channel]);
            let op = Op::Broadcast { dims, map };
            nodes.add_like(like, op, vec![vector], shape.clone())
        };
        let (of_kernel, of_y) = (
            program.shape(like.inputs[1]).clone(),
            like.shapes[0].clone(),
        );
        let scale = scale.map(|scale| spread(scale, &of_kernel, self.dims.kernel.batch));
        let shift = shift.map(|shift| spread(shift, &of_y, self.dims.output.feature));
        let with = |nodes: &mut Rebuilt, op, value, with: Option<Value>, shape: Shape| match with {
            Some(with) => nodes.add_like(like, Op::Binary(op), vec![value, with], shape),
            None => value,
        };
        let kernel = with(nodes, BinaryOp::Mul, kernel, scale, of_kernel);
        let y = nodes.add_like(like, like.op.clone(), vec![x, kernel], of_y.clone());
        with(nodes, BinaryOp::Add, y, shift, of_y)
    }
}
