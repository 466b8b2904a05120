//! Functions of single elements.

use phalanx_graph::DType;
use phalanx_graph::op::{BinaryOp, CompareOp, UnaryOp};

use super::message::{NodeArgument, code};
use super::size::Size;
use super::writer::{OnnxValue, OnnxWriter};

/// Functions that ONNX does not have are made of others.
pub(super) fn unary(w: &mut OnnxWriter, op: UnaryOp, x: &OnnxValue) -> OnnxValue {
    let dtype = x.dtype;
    if is_unsigned(dtype) {
        let wide = w.convert(x, DType::I64);
        let result = unary(w, op, &wide);
        return w.convert(&result, dtype);
    }
    let own = match op {
        UnaryOp::Neg => "Neg",
        UnaryOp::Abs => "Abs",
        UnaryOp::Sign => "Sign",
        UnaryOp::Exp => "Exp",
        UnaryOp::Log => "Log",
        UnaryOp::Sqrt => "Sqrt",
        UnaryOp::Tanh => "Tanh",
        UnaryOp::Logistic => "Sigmoid",
        UnaryOp::Erf => "Erf",
        UnaryOp::Sin => "Sin",
        UnaryOp::Cos => "Cos",
        UnaryOp::Floor => "Floor",
        UnaryOp::Ceil => "Ceil",
        UnaryOp::Round => "Round",
        UnaryOp::Not if dtype == DType::Bool => "Not",
        UnaryOp::Not => "BitwiseNot",
        UnaryOp::Rsqrt => {
            let root = w.node("Sqrt", &[&x.name], &[]);
            return x.renamed(w.node("Reciprocal", &[&root], &[]), dtype);
        }
        UnaryOp::Expm1 => return x.renamed(expm1(w, x), dtype),
        UnaryOp::Log1p => return x.renamed(log1p(w, x), dtype),
        UnaryOp::IsFinite => {
            let size = w.node("Abs", &[&x.name], &[]);
            let infinity = w.scalar(dtype, f64::INFINITY);
            return x.renamed(w.node("Less", &[&size, &infinity], &[]), DType::Bool);
        }
    };
    x.renamed(w.node(own, &[&x.name], &[]), dtype)
}

/// `tanh(x / 2) (exp(x) + 1)`, which is `exp(x) - 1` and keeps the digits of an `x` near 0.
fn expm1(w: &mut OnnxWriter, x: &OnnxValue) -> String {
    let [half, one] = [0.5, 1.0].map(|number| w.scalar(x.dtype, number));
    let half = w.node("Mul", &[&x.name, &half], &[]);
    let tanh = w.node("Tanh", &[&half], &[]);
    let exponential = w.node("Exp", &[&x.name], &[]);
    let sum = w.node("Add", &[&exponential, &one], &[]);
    w.node("Mul", &[&tanh, &sum], &[])
}

/// `2 atanh(x / (2 + x))`, which is `log(1 + x)` and keeps the digits of an `x` near 0; further away as it is written.
fn log1p(w: &mut OnnxWriter, x: &OnnxValue) -> String {
    let [half, one, two] = [0.5, 1.0, 2.0].map(|number| w.scalar(x.dtype, number));
    let sum = w.node("Add", &[&x.name, &two], &[]);
    let ratio = w.node("Div", &[&x.name, &sum], &[]);
    let angle = w.node("Atanh", &[&ratio], &[]);
    let near = w.node("Mul", &[&angle, &two], &[]);
    let sum = w.node("Add", &[&x.name, &one], &[]);
    let far = w.node("Log", &[&sum], &[]);
    let size = w.node("Abs", &[&x.name], &[]);
    let is_near = w.node("Less", &[&size, &half], &[]);
    w.node("Where", &[&is_near, &near, &far], &[])
}

/// The dims that results have: as ONNX repeats elements.
fn broadcast(inputs: &[OnnxValue]) -> Vec<Size> {
    let rank = inputs.iter().map(|input| input.stored.len()).max();
    let mut stored = vec![Size::ONE; rank.unwrap_or(0)];
    for input in inputs {
        let start = stored.len() - input.stored.len();
        for (size, &own) in stored[start..].iter_mut().zip(&input.stored) {
            if own != Size::ONE {
                *size = own;
            }
        }
    }
    stored
}

/// A node of values with the same dims.
fn joined(
    w: &mut OnnxWriter,
    op: &str,
    inputs: &[OnnxValue],
    dtype: DType,
    dims: Vec<Size>,
) -> OnnxValue {
    let names: Vec<&str> = inputs.iter().map(|input| &*input.name).collect();
    // The remainder of C, with the sign of what is divided.
    let arguments = match op {
        "Mod" => vec![("fmod", NodeArgument::Int(1))],
        _ => Vec::new(),
    };
    OnnxValue {
        name: w.node(op, &names, &arguments),
        dtype,
        dims,
        stored: broadcast(inputs),
    }
}

const fn is_unsigned(dtype: DType) -> bool {
    matches!(dtype, DType::U8 | DType::U32)
}

/// The same in an element type that onnxruntime computes in: unsigned numbers in i64, which holds all of them and whose last bits are theirs.
fn computed(w: &mut OnnxWriter, inputs: &[OnnxValue]) -> Vec<OnnxValue> {
    let to = |x: &OnnxValue| match is_unsigned(x.dtype) {
        true => DType::I64,
        false => x.dtype,
    };
    inputs.iter().map(|x| w.convert(x, to(x))).collect()
}

pub(super) fn binary(
    w: &mut OnnxWriter,
    op: BinaryOp,
    inputs: &[OnnxValue],
    dims: Vec<Size>,
) -> OnnxValue {
    let dtype = inputs[0].dtype;
    let is_bool = dtype == DType::Bool;
    let own = match op {
        BinaryOp::Max | BinaryOp::Or if is_bool => "Or",
        BinaryOp::Min | BinaryOp::And if is_bool => "And",
        BinaryOp::Xor if is_bool => "Xor",
        BinaryOp::And => "BitwiseAnd",
        BinaryOp::Or => "BitwiseOr",
        BinaryOp::Xor => "BitwiseXor",
        BinaryOp::Add => "Add",
        BinaryOp::Sub => "Sub",
        BinaryOp::Mul => "Mul",
        BinaryOp::Div => "Div",
        BinaryOp::Pow => "Pow",
        BinaryOp::Rem if dtype.is_float() => "Mod",
        BinaryOp::Rem => {
            let inputs = computed(w, inputs);
            let result = whole_remainder(w, &inputs, dims);
            return w.convert(&result, dtype);
        }
        BinaryOp::Max => "Max",
        BinaryOp::Min => "Min",
        BinaryOp::ShiftLeft => return shifted(w, "LEFT", inputs, dims),
        BinaryOp::ShiftRight => return shifted(w, "RIGHT", inputs, dims),
    };
    let inputs = computed(w, inputs);
    let result = joined(w, own, &inputs, inputs[0].dtype, dims);
    w.convert(&result, dtype)
}

/// `x - x / y * y` in whole numbers: `Mod` went by f64 in old versions of onnxruntime (1.15.1), and fails where `y` is 0.
///
/// The sign of `y` makes no difference, and without it no quotient is too large; 0 leaves `x`, as XLA does, where `Div` fails.
fn whole_remainder(w: &mut OnnxWriter, inputs: &[OnnxValue], dims: Vec<Size>) -> OnnxValue {
    let [x, y] = [&*inputs[0].name, &inputs[1].name];
    let dtype = inputs[0].dtype;
    let [zero, one] = [0.0, 1.0].map(|number| w.scalar(dtype, number));
    let size = w.node("Abs", &[y], &[]);
    let is_zero = w.node("Equal", &[&size, &zero], &[]);
    let divisor = w.node("Where", &[&is_zero, &one, &size], &[]);
    let quotient = w.node("Div", &[x, &divisor], &[]);
    let multiple = w.node("Mul", &[&quotient, &size], &[]);
    OnnxValue {
        name: w.node("Sub", &[x, &multiple], &[]),
        dtype,
        dims,
        stored: broadcast(inputs),
    }
}

/// ONNX shifts unsigned bits alone: others are taken for these, and back.
fn shifted(
    w: &mut OnnxWriter,
    direction: &'static str,
    inputs: &[OnnxValue],
    dims: Vec<Size>,
) -> OnnxValue {
    const UINT64: u64 = 13;
    let dtype = inputs[0].dtype;
    let unsigned = match dtype {
        DType::I32 => code(DType::U32),
        DType::I64 => UINT64,
        own => code(own),
    };
    let cast = |w: &mut OnnxWriter, name: &str, to: u64| match is_unsigned(dtype) {
        true => name.to_owned(),
        false => w.node("Cast", &[name], &[("to", NodeArgument::Int(to as i64))]),
    };
    let [x, by] = [0, 1].map(|side| cast(w, &inputs[side].name, unsigned));
    let direction = ("direction", NodeArgument::Text(direction));
    let bits = w.node("BitShift", &[&x, &by], &[direction]);
    OnnxValue {
        name: cast(w, &bits, code(dtype)),
        dtype,
        dims,
        stored: broadcast(inputs),
    }
}

pub(super) fn compare(
    w: &mut OnnxWriter,
    op: CompareOp,
    inputs: &[OnnxValue],
    dims: Vec<Size>,
) -> OnnxValue {
    let own = match op {
        CompareOp::Eq | CompareOp::Ne => "Equal",
        CompareOp::Lt => "Less",
        CompareOp::Le => "LessOrEqual",
        CompareOp::Gt => "Greater",
        CompareOp::Ge => "GreaterOrEqual",
    };
    let mut inputs = computed(w, inputs);
    if inputs[0].dtype == DType::Bool && own != "Equal" {
        inputs = inputs.iter().map(|x| w.convert(x, DType::I32)).collect();
    }
    let result = joined(w, own, &inputs, DType::Bool, dims);
    match op {
        CompareOp::Ne => unary(w, UnaryOp::Not, &result),
        _ => result,
    }
}

/// Truth values are chosen as numbers: ONNX runtimes have no `Where` for them.
pub(super) fn select(w: &mut OnnxWriter, inputs: &[OnnxValue], dims: Vec<Size>) -> OnnxValue {
    let dtype = inputs[1].dtype;
    let mut chosen = computed(w, &inputs[1..]);
    if dtype == DType::Bool {
        chosen = chosen.iter().map(|x| w.convert(x, DType::I32)).collect();
    }
    let to = chosen[0].dtype;
    chosen.insert(0, inputs[0].clone());
    let result = joined(w, "Where", &chosen, to, dims);
    w.convert(&result, dtype)
}
