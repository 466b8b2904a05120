//! Ops on repeated numbers, computed now: only those whose result is the same on every device.
//!
//! Left to the device are functions that are approximated there, results that are NaN (whose bits differ) or
//! subnormal (which devices may flush to zero), and integers that leave their range.

use super::Rewriter;
use crate::host::read_numbers;
use crate::op::{BinaryOp, CompareOp, Node, Op, UnaryOp};
use crate::{DType, HostTensor, Shape};

/// One element.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
enum Number {
    Float(f64),
    Int(i128),
    Bool(bool),
}

/// The number that every element of the node's result is.
pub(super) fn fold(rewriter: &Rewriter, node: &Node) -> Option<HostTensor> {
    let dtype = node.shapes.first()?.dtype;
    let input = |i: usize| node.inputs.get(i).and_then(|&value| rewriter.splat(value));
    let number = |i: usize| input(i).filter(|scalar| !is_subnormal(scalar)).map(read);
    match &node.op {
        Op::Constant(value) => repeated(value),
        Op::Reshape(_) | Op::Transpose(_) | Op::Reverse(_) | Op::Slice(_) | Op::DynamicSlice(_) => {
            input(0).cloned()
        }
        Op::Unary(op) => write(dtype, unary(*op, number(0)?)?),
        Op::Binary(op) => {
            let (a, b) = (number(0)?, number(1)?);
            write(dtype, binary(*op, a, b, dtype)?)
        }
        Op::Compare(op) => write(dtype, Number::Bool(compare(*op, number(0)?, number(1)?))),
        Op::Convert(_) => write(dtype, convert(number(0)?, dtype)?),
        Op::ReplicaId if rewriter.replicas == 1 => write(dtype, Number::Int(0)),
        Op::ExchangesSucceeded if rewriter.replicas == 1 => write(dtype, Number::Bool(true)),
        _ => None,
    }
}

/// The number that an array repeats; a scalar already stands for itself.
fn repeated(value: &HostTensor) -> Option<HostTensor> {
    let size = value.dtype().size();
    let mut elements = value.bytes().chunks_exact(size);
    let first = elements.next()?;
    let repeats = !value.dims().is_empty() && elements.all(|element| element == first);
    repeats.then(|| {
        let scalar = HostTensor::from_bytes(Shape::scalar(value.dtype()), first);
        scalar.expect("one element")
    })
}

fn read(scalar: &HostTensor) -> Number {
    let dtype = scalar.dtype();
    match dtype {
        DType::Bool => Number::Bool(scalar.bytes()[0] != 0),
        DType::I64 => {
            let values = scalar.values::<i64>().expect("an i64 tensor");
            Number::Int(values[0].into())
        }
        _ if dtype.is_integer() => Number::Int(read_numbers(dtype, scalar.bytes())[0] as i128),
        _ => Number::Float(read_numbers(dtype, scalar.bytes())[0]),
    }
}

/// The scalar, when the element type holds the number and every device agrees on it.
fn write(dtype: DType, number: Number) -> Option<HostTensor> {
    let shape = Shape::scalar(dtype);
    match number {
        Number::Bool(value) => (dtype == DType::Bool).then(|| HostTensor::scalar(value)),
        Number::Int(value) if dtype == DType::I64 => {
            i64::try_from(value).ok().map(HostTensor::scalar)
        }
        Number::Int(value) => {
            let scalar = HostTensor::full(shape, value as f64);
            (dtype.is_integer() && read(&scalar) == number).then_some(scalar)
        }
        Number::Float(value) => {
            let scalar = HostTensor::full(shape, value);
            (dtype.is_float() && !value.is_nan() && !is_subnormal(&scalar)).then_some(scalar)
        }
    }
}

fn is_subnormal(scalar: &HostTensor) -> bool {
    let smallest = match scalar.dtype() {
        DType::F64 => f64::MIN_POSITIVE,
        DType::F16 => half::f16::MIN_POSITIVE.to_f64(),
        _ => f32::MIN_POSITIVE.into(),
    };
    match read(scalar) {
        Number::Float(value) => value != 0.0 && value.abs() < smallest,
        Number::Int(_) | Number::Bool(_) => false,
    }
}

fn unary(op: UnaryOp, x: Number) -> Option<Number> {
    match (op, x) {
        (UnaryOp::Neg, Number::Float(x)) => Some(Number::Float(-x)),
        (UnaryOp::Neg, Number::Int(x)) => Some(Number::Int(-x)),
        (UnaryOp::Abs, Number::Float(x)) => Some(Number::Float(x.abs())),
        (UnaryOp::Abs, Number::Int(x)) => Some(Number::Int(x.abs())),
        (UnaryOp::Floor, Number::Float(x)) => Some(Number::Float(x.floor())),
        (UnaryOp::Ceil, Number::Float(x)) => Some(Number::Float(x.ceil())),
        (UnaryOp::Round, Number::Float(x)) => Some(Number::Float(x.round_ties_even())),
        (UnaryOp::IsFinite, Number::Float(x)) => Some(Number::Bool(x.is_finite())),
        (UnaryOp::Not, Number::Bool(x)) => Some(Number::Bool(!x)),
        _ => None,
    }
}

/// Sums, products and quotients are rounded in f64 first, which for operands of at most 24 bits changes nothing.
fn binary(op: BinaryOp, a: Number, b: Number, dtype: DType) -> Option<Number> {
    match (a, b) {
        (Number::Float(a), Number::Float(b)) => float_binary(op, a, b).map(Number::Float),
        (Number::Int(a), Number::Int(b)) => int_binary(op, a, b, dtype).map(Number::Int),
        (Number::Bool(a), Number::Bool(b)) => match op {
            BinaryOp::And | BinaryOp::Min => Some(Number::Bool(a && b)),
            BinaryOp::Or | BinaryOp::Max => Some(Number::Bool(a || b)),
            BinaryOp::Xor => Some(Number::Bool(a != b)),
            _ => None,
        },
        _ => None,
    }
}

fn float_binary(op: BinaryOp, a: f64, b: f64) -> Option<f64> {
    let nan = a.is_nan() || b.is_nan();
    // Which zero is the larger differs between devices.
    let ordered = !nan && (a != b || a.to_bits() == b.to_bits());
    match op {
        BinaryOp::Add => Some(a + b),
        BinaryOp::Sub => Some(a - b),
        BinaryOp::Mul => Some(a * b),
        BinaryOp::Div => Some(a / b),
        BinaryOp::Max if ordered => Some(a.max(b)),
        BinaryOp::Min if ordered => Some(a.min(b)),
        _ => None,
    }
}

fn int_binary(op: BinaryOp, a: i128, b: i128, dtype: DType) -> Option<i128> {
    let bits = 8 * dtype.size() as i128;
    match op {
        BinaryOp::Add => Some(a + b),
        BinaryOp::Sub => Some(a - b),
        BinaryOp::Mul => a.checked_mul(b),
        BinaryOp::Div if b != 0 => Some(a / b),
        BinaryOp::Rem if b != 0 => Some(a % b),
        BinaryOp::Max => Some(a.max(b)),
        BinaryOp::Min => Some(a.min(b)),
        BinaryOp::And => Some(a & b),
        BinaryOp::Or => Some(a | b),
        BinaryOp::Xor => Some(a ^ b),
        BinaryOp::ShiftRight if a >= 0 && (0..bits).contains(&b) => Some(a >> b),
        BinaryOp::ShiftLeft if a >= 0 && (0..bits).contains(&b) => a.checked_shl(b as u32),
        _ => None,
    }
}

fn compare(op: CompareOp, a: Number, b: Number) -> bool {
    match op {
        CompareOp::Eq => a == b,
        CompareOp::Ne => a != b,
        CompareOp::Lt => a < b,
        CompareOp::Le => a <= b,
        CompareOp::Gt => a > b,
        CompareOp::Ge => a >= b,
    }
}

/// Conversions that are exact or rounded once.
fn convert(x: Number, dtype: DType) -> Option<Number> {
    let exact_in_f64 = |x: i128| x.abs() <= 1 << f64::MANTISSA_DIGITS;
    match x {
        Number::Bool(x) if dtype == DType::Bool => Some(Number::Bool(x)),
        Number::Bool(x) if dtype.is_float() => Some(Number::Float(u8::from(x).into())),
        Number::Bool(x) => Some(Number::Int(x.into())),
        Number::Int(x) if dtype == DType::Bool => Some(Number::Bool(x != 0)),
        Number::Int(x) if dtype.is_float() => exact_in_f64(x).then_some(Number::Float(x as f64)),
        Number::Int(x) => Some(Number::Int(x)),
        Number::Float(x) if dtype == DType::Bool => Some(Number::Bool(x != 0.0)),
        Number::Float(x) if dtype.is_float() => Some(Number::Float(x)),
        Number::Float(x) => (x.abs() < 1e18).then_some(Number::Int(x as i128)),
    }
}
