//! Nodes that are one of their operands, or a simpler node.

use super::{Rewrite, Rewriter};
use crate::op::{BinaryOp, Node, Op, PadDim, UnaryOp, Value};
use crate::{DType, HostTensor, Shape};

/// What the node is, if that is simpler.
pub(super) fn simpler(r: &Rewriter, node: &Node) -> Option<Rewrite> {
    let x = *node.inputs.first()?;
    let own = r.shape(x);
    let shape = node.shapes.first()?;
    let same_dims = own.dims == shape.dims;
    let pass = |holds: bool| holds.then_some(Rewrite::Is(x));
    match &node.op {
        Op::StopGradient | Op::WithGradient(_) => Some(Rewrite::Is(x)),
        Op::Sharded(_) => pass(*r.op(x) == node.op),
        Op::Unary(op) => unary(r, *op, x),
        Op::Binary(op) => binary(r, *op, x, node.inputs[1]),
        Op::Select => select(r, node),
        Op::Convert(dtype) => convert(r, x, *dtype),
        Op::Bitcast(dtype) => pass(own.dtype == *dtype),
        Op::Reshape(dims) => pass(same_dims).or_else(|| reshape(r, x, dims)),
        Op::Transpose(perm) => pass(is_ascending(perm)).or_else(|| transpose(r, x, perm)),
        Op::Broadcast { dims, map } => pass(same_dims).or_else(|| broadcast(r, x, dims, map)),
        Op::Reverse(dims) => pass(dims.iter().all(|&dim| own.dims[dim] == 1)),
        Op::Pad(pads) => pass(pads.iter().all(|pad| *pad == PadDim::default())),
        Op::Slice(_) | Op::DynamicSlice(_) => pass(same_dims),
        Op::DynamicUpdateSlice => update(r, node),
        Op::Concat(dim) => concat(r, node, *dim),
        Op::Reduce { dims, .. } => pass(dims.is_empty()),
        Op::AllReduce { .. }
        | Op::AllGather { .. }
        | Op::ReduceScatter { .. }
        | Op::AllToAll { .. } => pass(r.replicas == 1),
        Op::CollectivePermute(pairs) => pass(r.replicas == 1 && !pairs.is_empty()),
        _ => None,
    }
}

fn is_ascending(perm: &[usize]) -> bool {
    perm.windows(2).all(|pair| pair[0] < pair[1])
}

fn input(r: &Rewriter, value: Value) -> Value {
    r.nodes[value.node].inputs[0]
}

fn unary(r: &Rewriter, op: UnaryOp, x: Value) -> Option<Rewrite> {
    let undone = matches!(op, UnaryOp::Neg | UnaryOp::Not);
    let again = undone
        || matches!(
            op,
            UnaryOp::Abs | UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round
        );
    let repeated = *r.op(x) == Op::Unary(op) && again;
    repeated.then(|| Rewrite::Is(if undone { input(r, x) } else { x }))
}

fn binary(r: &Rewriter, op: BinaryOp, a: Value, b: Value) -> Option<Rewrite> {
    use BinaryOp::{Add, And, Div, Max, Min, Mul, Or, ShiftLeft, ShiftRight, Sub, Xor};
    let is = |value: Value, number: f64| r.splat(value).is_some_and(|s| equals(s, number));
    let float = r.shape(a).dtype.is_float();
    // Only the zero that is neutral: -0 + x is x, but 0 + -0 is 0.
    let zero = if float && op == Add { -0.0 } else { 0.0 };
    let (neutral, both_sides) = match op {
        Add => (zero, true),
        Sub => (zero, false),
        Mul => (1.0, true),
        Div => (1.0, false),
        Or | Xor => (0.0, true),
        ShiftLeft | ShiftRight => (0.0, false),
        And | Max | Min if a == b => return Some(Rewrite::Is(a)),
        _ => return None,
    };
    match op {
        _ if is(b, neutral) => Some(Rewrite::Is(a)),
        _ if both_sides && is(a, neutral) => Some(Rewrite::Is(b)),
        Or if a == b => Some(Rewrite::Is(a)),
        Mul if !float && is(b, 0.0) => Some(Rewrite::Is(b)),
        Mul if !float && is(a, 0.0) => Some(Rewrite::Is(a)),
        _ => None,
    }
}

/// Equal bit for bit: 0 is not -0.
fn equals(scalar: &HostTensor, number: f64) -> bool {
    *scalar == HostTensor::full(Shape::scalar(scalar.dtype()), number)
}

fn select(r: &Rewriter, node: &Node) -> Option<Rewrite> {
    let [condition, on_true, on_false] = node.inputs[..] else {
        return None;
    };
    if on_true == on_false {
        return Some(Rewrite::Is(on_true));
    }
    let holds = r.splat(condition)?.bytes()[0] != 0;
    Some(Rewrite::Is(if holds { on_true } else { on_false }))
}

fn convert(r: &Rewriter, x: Value, dtype: DType) -> Option<Rewrite> {
    let between = r.shape(x).dtype;
    if between == dtype {
        return Some(Rewrite::Is(x));
    }
    let Op::Convert(_) = r.op(x) else {
        return None;
    };
    let first = input(r, x);
    let from = r.shape(first).dtype;
    // An integer that the last type does not hold wraps, and saturates where it comes by a float.
    let saturates = between.is_float() && from.is_integer() && dtype.is_integer();
    let is_kept = from == dtype || holds_exactly(dtype, from) || !saturates;
    if !holds_exactly(between, from) || !is_kept {
        return None;
    }
    match from == dtype {
        true => Some(Rewrite::Is(first)),
        false => Some(Rewrite::Op(Box::new(Op::Convert(dtype)), vec![first])),
    }
}

/// Whether every number of type `from` is a number of type `wide`.
fn holds_exactly(wide: DType, from: DType) -> bool {
    use DType::{Bf16, Bool, F16, F32, F64, I32, I64, U8, U32};
    match from {
        Bool => true,
        U8 => matches!(wide, I32 | I64 | U32 | F16 | F32 | F64),
        Bf16 | F16 => matches!(wide, F32 | F64),
        F32 => wide == F64,
        I32 | U32 => matches!(wide, I64 | F64),
        F64 | I64 => false,
    }
}

fn reshape(r: &Rewriter, x: Value, dims: &[usize]) -> Option<Rewrite> {
    let Op::Reshape(_) = r.op(x) else {
        return None;
    };
    Some(Rewrite::Op(
        Box::new(Op::Reshape(dims.to_vec())),
        vec![input(r, x)],
    ))
}

fn transpose(r: &Rewriter, x: Value, perm: &[usize]) -> Option<Rewrite> {
    let Op::Transpose(first) = r.op(x) else {
        return None;
    };
    let both = perm.iter().map(|&dim| first[dim]).collect();
    Some(Rewrite::Op(
        Box::new(Op::Transpose(both)),
        vec![input(r, x)],
    ))
}

fn broadcast(r: &Rewriter, x: Value, dims: &[usize], map: &[usize]) -> Option<Rewrite> {
    let inner = match r.op(x) {
        Op::Broadcast { map, .. } => map.clone(),
        Op::Reshape(_) => inserted(&r.shape(input(r, x)).dims, &r.shape(x).dims)?,
        _ => return None,
    };
    let op = Op::Broadcast {
        dims: dims.to_vec(),
        map: inner.iter().map(|&dim| map[dim]).collect(),
    };
    Some(Rewrite::Op(Box::new(op), vec![input(r, x)]))
}

/// Where each dim went, when a reshape only inserts dims of size 1.
fn inserted(from: &[usize], to: &[usize]) -> Option<Vec<usize>> {
    let mut places = Vec::with_capacity(from.len());
    for (place, &size) in to.iter().enumerate() {
        if from.get(places.len()) == Some(&size) {
            places.push(place);
        } else if size != 1 {
            return None;
        }
    }
    (places.len() == from.len()).then_some(places)
}

/// An update of the whole: its start is clamped to 0.
fn update(r: &Rewriter, node: &Node) -> Option<Rewrite> {
    let (base, update) = (node.inputs[0], node.inputs[1]);
    (r.shape(base) == r.shape(update)).then_some(Rewrite::Is(update))
}

fn concat(r: &Rewriter, node: &Node, dim: usize) -> Option<Rewrite> {
    let filled = |value: &Value| r.shape(*value).dims[dim] > 0;
    let parts: Vec<Value> = node.inputs.iter().copied().filter(filled).collect();
    match parts.as_slice() {
        [] => Some(Rewrite::Is(node.inputs[0])),
        [one] => Some(Rewrite::Is(*one)),
        _ if parts.len() < node.inputs.len() => Some(Rewrite::Op(Box::new(Op::Concat(dim)), parts)),
        _ => None,
    }
}
