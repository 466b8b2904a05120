//! Functions of single elements.

use phalanx_graph::DType;
use phalanx_graph::op::{BinaryOp, CompareOp, UnaryOp};

use super::noise::Noise;
use super::numbers::{range, width, wrap};
use super::{Array, Dual, Operand};

pub(super) fn unary(op: UnaryOp, [x]: &[Operand; 1], noise: &Noise) -> Result<Dual, String> {
    let values = match x.value {
        Array::Floats(values) => values,
        Array::Ints(values) => {
            let dtype = x.shape.dtype;
            let each = values.iter().map(|&value| int_unary(op, dtype, value));
            return Ok(Dual::ints(each.collect::<Result<_, _>>()?));
        }
    };
    if op == UnaryOp::IsFinite {
        let finite = |x: &f64| i64::from(x.is_finite());
        return Ok(Dual::ints(values.iter().map(finite).collect()));
    }
    let exact = is_exact(op);
    let each = values.iter().map(|&x| match float_unary(op, x) {
        y if exact => y,
        y => noise.relative(y),
    });
    let along = |tangent: &[f64]| {
        let pairs = values.iter().zip(tangent);
        pairs.map(|(&x, &t)| slope(op, x) * t).collect()
    };
    let smooth = x.slope().filter(|_| !is_flat(op));
    Ok(Dual::floats(each.collect(), smooth.map(along)))
}

const fn is_exact(op: UnaryOp) -> bool {
    matches!(op, UnaryOp::Neg | UnaryOp::Abs) || is_flat(op)
}

/// Whether the derivative is 0.
const fn is_flat(op: UnaryOp) -> bool {
    matches!(
        op,
        UnaryOp::Sign | UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round
    )
}

fn float_unary(op: UnaryOp, x: f64) -> f64 {
    match op {
        UnaryOp::Neg => -x,
        UnaryOp::Abs => x.abs(),
        UnaryOp::Sign => sign(x),
        UnaryOp::Exp => x.exp(),
        UnaryOp::Expm1 => x.exp_m1(),
        UnaryOp::Log => x.ln(),
        UnaryOp::Log1p => x.ln_1p(),
        UnaryOp::Sqrt => x.sqrt(),
        UnaryOp::Rsqrt => 1.0 / x.sqrt(),
        UnaryOp::Tanh => x.tanh(),
        UnaryOp::Logistic => 1.0 / (1.0 + (-x).exp()),
        UnaryOp::Erf => erf(x),
        UnaryOp::Sin => x.sin(),
        UnaryOp::Cos => x.cos(),
        UnaryOp::Floor => x.floor(),
        UnaryOp::Ceil => x.ceil(),
        UnaryOp::Round => x.round_ties_even(),
        // Not of floats, by inference.
        UnaryOp::Not | UnaryOp::IsFinite => f64::NAN,
    }
}

/// The derivative at `x`.
fn slope(op: UnaryOp, x: f64) -> f64 {
    match op {
        UnaryOp::Neg => -1.0,
        UnaryOp::Abs => sign(x),
        UnaryOp::Exp | UnaryOp::Expm1 => x.exp(),
        UnaryOp::Log => 1.0 / x,
        UnaryOp::Log1p => 1.0 / (1.0 + x),
        UnaryOp::Sqrt => 0.5 / x.sqrt(),
        UnaryOp::Rsqrt => -0.5 / (x * x.sqrt()),
        UnaryOp::Tanh => x.cosh().powi(-2),
        UnaryOp::Logistic => {
            let small = (-x.abs()).exp();
            small / ((1.0 + small) * (1.0 + small))
        }
        UnaryOp::Erf => std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp(),
        UnaryOp::Sin => x.cos(),
        UnaryOp::Cos => -x.sin(),
        UnaryOp::Sign | UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round => 0.0,
        UnaryOp::Not | UnaryOp::IsFinite => 0.0,
    }
}

/// -1, 1, or the zero or NaN itself.
fn sign(x: f64) -> f64 {
    if x > 0.0 {
        1.0
    } else if x < 0.0 {
        -1.0
    } else {
        x
    }
}

/// Abramowitz and Stegun 7.1.6: terms of one sign, so nothing cancels; 1 to all digits beyond 6.
fn erf(x: f64) -> f64 {
    if x.is_nan() || x == 0.0 {
        return x;
    }
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut term, mut sum, mut n) = (x, x, 1.0);
    while term.abs() > sum.abs() * 1e-18 {
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
        n += 1.0;
    }
    std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum
}

fn int_unary(op: UnaryOp, dtype: DType, x: i64) -> Result<i64, String> {
    Ok(match op {
        UnaryOp::Neg => wrap(dtype, x.wrapping_neg()),
        UnaryOp::Abs => wrap(dtype, x.wrapping_abs()),
        UnaryOp::Sign => x.signum(),
        UnaryOp::Not => wrap(dtype, !x),
        _ => return Err(format!("not a function of {dtype}")),
    })
}

pub(super) fn binary(op: BinaryOp, [a, b]: &[Operand; 2], noise: &Noise) -> Result<Dual, String> {
    let dtype = a.shape.dtype;
    if !dtype.is_float() {
        let pairs = a.ints()?.iter().zip(b.ints()?);
        let each = pairs.map(|(&a, &b)| int_binary(op, dtype, a, b));
        return Ok(Dual::ints(each.collect::<Result<_, _>>()?));
    }
    let (left, right) = (a.floats()?, b.floats()?);
    let pairs = left.iter().zip(right);
    let values = pairs.map(|(&a, &b)| erring(op, a, b, float_binary(op, a, b), noise));
    let part = |tangent: Option<&[f64]>, slope: fn(BinaryOp, f64, f64) -> f64| {
        let pairs = left.iter().zip(right).zip(tangent?);
        let each = pairs.map(|((&a, &b), &t)| slope(op, a, b) * t);
        Some(each.collect::<Vec<f64>>())
    };
    let tangent = plus(part(a.slope(), slope_first), part(b.slope(), slope_second));
    Ok(Dual::floats(values.collect(), tangent))
}

/// The sum of two tangents, either of which may be zero.
pub(super) fn plus(a: Option<Vec<f64>>, b: Option<Vec<f64>>) -> Option<Vec<f64>> {
    match (a, b) {
        (Some(mut a), Some(b)) => {
            a.iter_mut().zip(b).for_each(|(a, b)| *a += b);
            Some(a)
        }
        (a, b) => a.or(b),
    }
}

/// The result with its error; a result that is 0 or one of the operands was not rounded.
fn erring(op: BinaryOp, a: f64, b: f64, y: f64, noise: &Noise) -> f64 {
    if y == a || y == b || y == 0.0 {
        return y;
    }
    match op {
        BinaryOp::Add | BinaryOp::Sub => noise.scaled(y, a.abs().max(b.abs())),
        BinaryOp::Mul | BinaryOp::Div | BinaryOp::Pow => noise.relative(y),
        _ => y,
    }
}

fn float_binary(op: BinaryOp, a: f64, b: f64) -> f64 {
    match op {
        BinaryOp::Add => a + b,
        BinaryOp::Sub => a - b,
        BinaryOp::Mul => a * b,
        BinaryOp::Div => a / b,
        BinaryOp::Pow => a.powf(b),
        BinaryOp::Rem => a % b,
        BinaryOp::Max => larger(a, b),
        BinaryOp::Min => -larger(-a, -b),
        // Not of floats, by inference.
        BinaryOp::And | BinaryOp::Or | BinaryOp::Xor => f64::NAN,
        BinaryOp::ShiftLeft | BinaryOp::ShiftRight => f64::NAN,
    }
}

/// The larger number; NaN where either is.
pub(super) fn larger(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() {
        f64::NAN
    } else {
        a.max(b)
    }
}

/// The derivative by the first operand.
fn slope_first(op: BinaryOp, a: f64, b: f64) -> f64 {
    match op {
        BinaryOp::Add | BinaryOp::Sub | BinaryOp::Rem => 1.0,
        BinaryOp::Mul => b,
        BinaryOp::Div => 1.0 / b,
        BinaryOp::Pow if b == 0.0 => 0.0,
        BinaryOp::Pow => b * a.powf(b - 1.0),
        BinaryOp::Max => f64::from(a > b),
        BinaryOp::Min => f64::from(a < b),
        _ => 0.0,
    }
}

/// The derivative by the second operand, to which ties of `maximum` and `minimum` go.
fn slope_second(op: BinaryOp, a: f64, b: f64) -> f64 {
    match op {
        BinaryOp::Add => 1.0,
        BinaryOp::Sub => -1.0,
        BinaryOp::Mul => a,
        BinaryOp::Div => -a / (b * b),
        BinaryOp::Pow if a > 0.0 => a.powf(b) * a.ln(),
        BinaryOp::Pow => 0.0,
        BinaryOp::Rem => -(a / b).trunc(),
        BinaryOp::Max => 1.0 - f64::from(a > b),
        BinaryOp::Min => 1.0 - f64::from(a < b),
        _ => 0.0,
    }
}

fn int_binary(op: BinaryOp, dtype: DType, a: i64, b: i64) -> Result<i64, String> {
    let (low, high) = range(dtype);
    let fits = (0..width(dtype)).contains(&b);
    let result = match op {
        BinaryOp::Add => a.wrapping_add(b),
        BinaryOp::Sub => a.wrapping_sub(b),
        BinaryOp::Mul => a.wrapping_mul(b),
        BinaryOp::Div if b == 0 => -1,
        BinaryOp::Div => a.wrapping_div(b),
        BinaryOp::Rem if b == 0 => a,
        BinaryOp::Rem => a.wrapping_rem(b),
        BinaryOp::Pow => power(a, b),
        BinaryOp::Max => a.max(b),
        BinaryOp::Min => a.min(b),
        BinaryOp::And => a & b,
        BinaryOp::Or => a | b,
        BinaryOp::Xor => a ^ b,
        BinaryOp::ShiftLeft | BinaryOp::ShiftRight if !fits => 0,
        BinaryOp::ShiftLeft => a << b,
        BinaryOp::ShiftRight if low == i64::MIN => (a.cast_unsigned() >> b).cast_signed(),
        // The bits of a negative number, without the sign's extension.
        BinaryOp::ShiftRight => (a & (high.wrapping_sub(low))) >> b,
    };
    Ok(wrap(dtype, result))
}

/// By squaring; 1 over a whole number is 0 but for 1 and -1.
fn power(base: i64, exponent: i64) -> i64 {
    if exponent < 0 {
        return match base {
            1 => 1,
            -1 if exponent % 2 == 0 => 1,
            -1 => -1,
            _ => 0,
        };
    }
    let (mut base, mut exponent, mut result) = (base, exponent, 1i64);
    while exponent > 0 {
        if exponent % 2 == 1 {
            result = result.wrapping_mul(base);
        }
        base = base.wrapping_mul(base);
        exponent /= 2;
    }
    result
}

pub(super) fn compare(op: CompareOp, [a, b]: &[Operand; 2]) -> Result<Dual, String> {
    fn each<T: PartialOrd>(op: CompareOp, a: &[T], b: &[T]) -> Dual {
        let holds = |(a, b): (&T, &T)| match op {
            CompareOp::Eq => a == b,
            CompareOp::Ne => a != b,
            CompareOp::Lt => a < b,
            CompareOp::Le => a <= b,
            CompareOp::Gt => a > b,
            CompareOp::Ge => a >= b,
        };
        Dual::ints(a.iter().zip(b).map(|pair| i64::from(holds(pair))).collect())
    }
    if a.shape.dtype.is_float() {
        return Ok(each(op, a.floats()?, b.floats()?));
    }
    Ok(each(op, a.ints()?, b.ints()?))
}

pub(super) fn select([condition, a, b]: &[Operand; 3]) -> Result<Dual, String> {
    let holds = condition.ints()?;
    fn each<T: Copy>(holds: &[i64], a: &[T], b: &[T]) -> Vec<T> {
        let pairs = holds.iter().zip(a.iter().zip(b));
        pairs
            .map(|(&holds, (&a, &b))| if holds != 0 { a } else { b })
            .collect()
    }
    if !a.shape.dtype.is_float() {
        return Ok(Dual::ints(each(holds, a.ints()?, b.ints()?)));
    }
    let values = each(holds, a.floats()?, b.floats()?);
    if a.slope().is_none() && b.slope().is_none() {
        return Ok(Dual::floats(values, None));
    }
    let zeros = vec![0.0; holds.len()];
    let tangents = [a, b].map(|x| x.slope().unwrap_or(&zeros));
    let tangent = each(holds, tangents[0], tangents[1]);
    Ok(Dual::floats(values, Some(tangent)))
}
