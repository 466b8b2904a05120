use half::{bf16, f16};
use phalanx_graph::{DType, HostTensor, Tensor, gradients};

use crate::cases::{Array, Cases};

const FLOATS: [(DType, f64); 4] = [
    (DType::F32, 4e-6),
    (DType::F64, 1e-13),
    (DType::F16, 2e-3),
    (DType::Bf16, 1.6e-2),
];

const VALUES: [f64; 20] = [
    0.0,
    -0.0,
    0.5,
    -0.5,
    1.0,
    -1.0,
    1.5,
    2.5,
    -2.5,
    -3.25,
    0.0625,
    3.0,
    -7.0,
    9.0,
    20.0,
    -20.0,
    100.0,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
];

type Unary = (&'static str, fn(&Tensor) -> Tensor, fn(f64) -> f64);

const UNARY: [Unary; 18] = [
    ("neg", |x| -x, |x| -x),
    ("abs", Tensor::abs, f64::abs),
    ("sign", Tensor::sign, sign),
    ("exp", Tensor::exp, f64::exp),
    ("expm1", Tensor::expm1, f64::exp_m1),
    ("log", Tensor::log, f64::ln),
    ("log1p", Tensor::log1p, f64::ln_1p),
    ("sqrt", Tensor::sqrt, f64::sqrt),
    ("rsqrt", Tensor::rsqrt, |x| 1.0 / x.sqrt()),
    ("tanh", Tensor::tanh, f64::tanh),
    ("logistic", Tensor::logistic, |x| 1.0 / (1.0 + (-x).exp())),
    ("erf", Tensor::erf, erf),
    ("sin", Tensor::sin, f64::sin),
    ("cos", Tensor::cos, f64::cos),
    ("floor", Tensor::floor, f64::floor),
    ("ceil", Tensor::ceil, f64::ceil),
    ("round", Tensor::round, f64::round_ties_even),
    ("square", Tensor::square, |x| x * x),
];

fn sign(x: f64) -> f64 {
    if x > 0.0 {
        1.0
    } else if x < 0.0 {
        -1.0
    } else {
        x
    }
}

/// `2/sqrt(pi) e^(-x^2) sum 2^n x^(2n+1) / (2n+1)!!`: all terms of one sign, so nothing cancels.
fn erf(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..400 {
        term *= 2.0 * x * x / f64::from(2 * n + 1);
        sum += term;
    }
    2.0 / std::f64::consts::PI.sqrt() * (-x * x).exp() * sum
}

/// The largest finite number of a type, beyond which a result is infinite.
fn limit(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => f64::from(f16::MAX),
        DType::Bf16 => f64::from(bf16::MAX),
        DType::F32 => f64::from(f32::MAX),
        _ => f64::MAX,
    }
}

fn in_range(dtype: DType, value: f64) -> f64 {
    if value.abs() > limit(dtype) {
        f64::INFINITY.copysign(value)
    } else {
        value
    }
}

#[test]
fn functions_of_one_float() {
    let mut cases = Cases::new();
    for (dtype, tolerance) in FLOATS {
        let host = HostTensor::new([VALUES.len()], &VALUES).convert(dtype);
        let (x, values) = (cases.input(&host), Array::from(&host));
        for (name, build, reference) in UNARY {
            let expected = values.map(|x| in_range(dtype, reference(x)));
            cases.near(&format!("{name} {dtype}"), &build(&x), expected, tolerance);
        }
        let finite = values.map(|x| f64::from(u8::from(x.is_finite())));
        cases.exact(&format!("is_finite {dtype}"), &x.is_finite(), finite);
        let clamped = values.map(|x| if x.is_nan() { x } else { x.clamp(-1.0, 2.0) });
        cases.exact(&format!("clamp {dtype}"), &x.clamp(-1.0, 2.0), clamped);
    }
    cases.check();
}

#[test]
fn small_arguments_keep_their_precision() {
    let mut cases = Cases::new();
    let tiny = [1e-6f32, -1e-6, 3e-5, 1e-4];
    let x = cases.list(&[4], &tiny);
    let scaled = |f: fn(f64) -> f64| Array::build(&[4], |i| 1e6 * f(f64::from(tiny[i[0]])));
    cases.near("expm1", &(x.expm1() * 1e6), scaled(f64::exp_m1), 2e-6);
    cases.near("log1p", &(x.log1p() * 1e6), scaled(f64::ln_1p), 2e-6);
    cases.near("tanh", &(x.tanh() * 1e6), scaled(f64::tanh), 2e-6);
    cases.near("erf", &(x.erf() * 1e6), scaled(erf), 2e-6);
    cases.check();
}

type Binary = (
    &'static str,
    fn(&Tensor, &Tensor) -> Tensor,
    fn(f64, f64) -> f64,
);

const BINARY: [Binary; 8] = [
    ("add", |a, b| a + b, |a, b| a + b),
    ("sub", |a, b| a - b, |a, b| a - b),
    ("mul", |a, b| a * b, |a, b| a * b),
    ("div", |a, b| a / b, |a, b| a / b),
    ("pow", Tensor::pow, f64::powf),
    ("rem", Tensor::remainder, |a, b| a % b),
    ("max", Tensor::maximum, |a, b| {
        if a.is_nan() || b.is_nan() {
            f64::NAN
        } else {
            a.max(b)
        }
    }),
    ("min", Tensor::minimum, |a, b| {
        if a.is_nan() || b.is_nan() {
            f64::NAN
        } else {
            a.min(b)
        }
    }),
];

type Comparison = (
    &'static str,
    fn(&Tensor, &Tensor) -> Tensor,
    fn(f64, f64) -> bool,
);

const COMPARE: [Comparison; 6] = [
    ("eq", Tensor::equal, |a, b| a == b),
    ("ne", Tensor::not_equal, |a, b| a != b),
    ("lt", Tensor::less, |a, b| a < b),
    ("le", Tensor::less_equal, |a, b| a <= b),
    ("gt", Tensor::greater, |a, b| a > b),
    ("ge", Tensor::greater_equal, |a, b| a >= b),
];

#[test]
fn functions_of_two_floats() {
    let mut cases = Cases::new();
    let n = VALUES.len();
    for (dtype, tolerance) in FLOATS {
        let column = HostTensor::new([n, 1], &VALUES).convert(dtype);
        let row = HostTensor::new([1, n], &VALUES).convert(dtype);
        let (a, b) = (cases.input(&column), cases.input(&row));
        let (left, right) = (Array::from(&column), Array::from(&row));
        let pairs = |f: &dyn Fn(f64, f64) -> f64| {
            Array::build(&[n, n], |i| f(left.at(&[i[0], 0]), right.at(&[0, i[1]])))
        };
        for (name, build, reference) in BINARY {
            let expected = pairs(&|a, b| in_range(dtype, reference(a, b)));
            cases.near(
                &format!("{name} {dtype}"),
                &build(&a, &b),
                expected,
                tolerance,
            );
        }
        for (name, build, reference) in COMPARE {
            let expected = pairs(&|a, b| f64::from(u8::from(reference(a, b))));
            cases.exact(&format!("{name} {dtype}"), &build(&a, &b), expected);
        }
        let picked = pairs(&|a, b| if a < b { a } else { b });
        cases.exact(
            &format!("select {dtype}"),
            &a.less(&b).select(&a, &b),
            picked,
        );
    }
    cases.check();
}

#[test]
fn integers_wrap_truncate_and_shift() {
    let mut cases = Cases::new();
    let a = [7i32, -7, 7, -7, i32::MIN, 5, i32::MAX, 0];
    let b = [2i32, 2, -2, -2, -1, 0, 1, 3];
    let (x, y) = (cases.list(&[8], &a), cases.list(&[8], &b));
    let expect = |f: fn(i32, i32) -> i32| Array::build(&[8], |i| f64::from(f(a[i[0]], b[i[0]])));
    cases.exact("add", &(&x + &y), expect(i32::wrapping_add));
    cases.exact("sub", &(&x - &y), expect(i32::wrapping_sub));
    cases.exact("mul", &(&x * &y), expect(i32::wrapping_mul));
    cases.exact(
        "div",
        &(&x / &y),
        expect(|a, b| if b == 0 { -1 } else { a.wrapping_div(b) }),
    );
    cases.exact(
        "rem",
        &(&x % &y),
        expect(|a, b| if b == 0 { a } else { a.wrapping_rem(b) }),
    );
    cases.exact("max", &x.maximum(&y), expect(i32::max));
    cases.exact("neg", &-&x, expect(|a, _| a.wrapping_neg()));
    cases.exact("abs", &x.abs(), expect(|a, _| a.wrapping_abs()));
    cases.exact("sign", &x.sign(), expect(|a, _| a.signum()));
    cases.exact("and", &x.and(&y), expect(|a, b| a & b));
    cases.exact("or", &x.or(&y), expect(|a, b| a | b));
    cases.exact("xor", &x.xor(&y), expect(|a, b| a ^ b));
    cases.exact("not", &x.not(), expect(|a, _| !a));
    let by = [0i32, 1, 4, 31, 31, 32, 33, 1];
    let counts = cases.list(&[8], &by);
    let shifted = |f: fn(u32, u32) -> Option<u32>| {
        Array::build(&[8], |i| {
            f64::from(
                f(a[i[0]].cast_unsigned(), by[i[0]].cast_unsigned())
                    .unwrap_or(0)
                    .cast_signed(),
            )
        })
    };
    cases.exact("shl", &x.shift_left(&counts), shifted(u32::checked_shl));
    cases.exact("shr", &x.shift_right(&counts), shifted(u32::checked_shr));
    for (name, build, reference) in COMPARE {
        let expected = Array::build(&[8], |i| {
            f64::from(u8::from(reference(a[i[0]].into(), b[i[0]].into())))
        });
        cases.exact(name, &build(&x, &y), expected);
    }
    cases.check();
}

#[test]
fn unsigned_wide_and_truth_values() {
    let mut cases = Cases::new();
    let (a, b) = ([0u32, 1, u32::MAX, 0x8000_0000], [1u32, 0, 2, u32::MAX]);
    let (x, y) = (cases.list(&[4], &a), cases.list(&[4], &b));
    let expect = |f: fn(u32, u32) -> u32| Array::build(&[4], |i| f64::from(f(a[i[0]], b[i[0]])));
    cases.exact("u32 add", &(&x + &y), expect(u32::wrapping_add));
    cases.exact(
        "u32 div",
        &(&x / &y),
        expect(|a, b| a.checked_div(b).unwrap_or(u32::MAX)),
    );
    cases.exact("u32 max", &x.maximum(&y), expect(u32::max));
    cases.exact("u32 less", &x.less(&y), expect(|a, b| u32::from(a < b)));
    cases.exact("u32 abs", &x.abs(), expect(|a, _| a));
    cases.exact("u32 sign", &x.sign(), expect(|a, _| a.min(1)));
    cases.exact("u32 neg", &-&x, expect(|a, _| a.wrapping_neg()));
    cases.exact(
        "u32 shr",
        &x.shift_right(&x.like(31.0)),
        expect(|a, _| a >> 31),
    );
    let big = cases.list(&[2], &[1i64 << 40, -(1 << 40)]);
    cases.exact(
        "i64 sub",
        &(&big - 1.0),
        Array::new(&[2], &[1_099_511_627_775.0, -1_099_511_627_777.0]),
    );
    let bytes = cases.list(&[2], &[250u8, 3]);
    cases.exact("u8 add", &(&bytes + 10.0), Array::new(&[2], &[4.0, 13.0]));
    let (p, q) = (
        cases.list(&[4], &[true, true, false, false]),
        cases.list(&[4], &[true, false, true, false]),
    );
    cases.exact(
        "bool and",
        &p.and(&q),
        Array::new(&[4], &[1.0, 0.0, 0.0, 0.0]),
    );
    cases.exact(
        "bool or",
        &p.or(&q),
        Array::new(&[4], &[1.0, 1.0, 1.0, 0.0]),
    );
    cases.exact(
        "bool xor",
        &p.xor(&q),
        Array::new(&[4], &[0.0, 1.0, 1.0, 0.0]),
    );
    cases.exact(
        "bool not",
        &p.not(),
        Array::new(&[4], &[0.0, 0.0, 1.0, 1.0]),
    );
    cases.exact(
        "bool eq",
        &p.equal(&q),
        Array::new(&[4], &[1.0, 0.0, 0.0, 1.0]),
    );
    cases.check();
}

#[test]
fn conversions() {
    let mut cases = Cases::new();
    let list = |values: &[f64]| Array::new(&[values.len()], values);
    let x = cases.list(&[6], &[3.9f32, -3.9, 0.0, -0.0, 1e10, f32::NAN]);
    cases.exact(
        "f32 to i32",
        &x.convert(DType::I32),
        list(&[3.0, -3.0, 0.0, 0.0, 2_147_483_647.0, 0.0]),
    );
    cases.exact(
        "f32 to bool",
        &x.convert(DType::Bool),
        list(&[1.0, 1.0, 0.0, 0.0, 1.0, 1.0]),
    );
    let y = cases.list(&[4], &[1.0f32, 257.0 / 256.0, 129.0 / 128.0, 3.0e38]);
    cases.exact(
        "f32 to bf16",
        &y.convert(DType::Bf16),
        list(&[1.0, 1.0, 1.007_812_5, f64::from(bf16::from_f32(3.0e38))]),
    );
    cases.exact(
        "f32 to f16",
        &y.convert(DType::F16),
        list(&[1.0, 1.003_906_25, 1.007_812_5, f64::INFINITY]),
    );
    let doubles = cases.list(&[2], &[0.1f64, 1e300]);
    cases.exact(
        "f64 to f32",
        &doubles.convert(DType::F32),
        list(&[f64::from(0.1f32), f64::INFINITY]),
    );
    cases.check();
}

#[test]
fn conversions_of_integers() {
    let mut cases = Cases::new();
    let list = |values: &[f64]| Array::new(&[values.len()], values);
    let ints = cases.list(&[3], &[300i32, -1, i32::MAX]);
    cases.exact(
        "i32 to u8",
        &ints.convert(DType::U8),
        list(&[44.0, 255.0, 255.0]),
    );
    cases.exact(
        "i32 to f32",
        &ints.convert(DType::F32),
        list(&[300.0, -1.0, 2_147_483_648.0]),
    );
    cases.exact(
        "i32 to i64",
        &ints.convert(DType::I64),
        list(&[300.0, -1.0, 2_147_483_647.0]),
    );
    cases.exact(
        "i32 to u32",
        &ints.convert(DType::U32),
        list(&[300.0, 4_294_967_295.0, 2_147_483_647.0]),
    );
    let wide = cases.list(&[2], &[(1i64 << 32) + 5, -1]);
    cases.exact("i64 to i32", &wide.convert(DType::I32), list(&[5.0, -1.0]));
    let unsigned = cases.list(&[2], &[u32::MAX, 7]);
    cases.exact(
        "u32 to f64",
        &unsigned.convert(DType::F64),
        list(&[4_294_967_295.0, 7.0]),
    );
    cases.exact(
        "u32 to f32",
        &unsigned.convert(DType::F32),
        list(&[4_294_967_296.0, 7.0]),
    );
    cases.check();
}

#[test]
fn conversions_of_truth_values_and_of_bits() {
    let mut cases = Cases::new();
    let list = |values: &[f64]| Array::new(&[values.len()], values);
    let truth = cases.list(&[2], &[true, false]);
    cases.exact("bool to f32", &truth.convert(DType::F32), list(&[1.0, 0.0]));
    cases.exact("bool to i32", &truth.convert(DType::I32), list(&[1.0, 0.0]));
    cases.exact("bool as u8", &truth.bitcast(DType::U8), list(&[1.0, 0.0]));
    let bits = cases.list(&[2], &[0x3F80_0000u32, 0xFF80_0000]);
    cases.exact(
        "u32 as f32",
        &bits.bitcast(DType::F32),
        list(&[1.0, f64::NEG_INFINITY]),
    );
    cases.exact(
        "u32 as i32",
        &bits.bitcast(DType::I32),
        list(&[1_065_353_216.0, -8_388_608.0]),
    );
    let half = cases.list(&[1], &[f16::from_f32(1.0)]);
    cases.exact(
        "f16 as bf16",
        &half.bitcast(DType::Bf16),
        list(&[f64::from(bf16::from_bits(0x3C00))]),
    );
    cases.check();
}

#[test]
fn literals_of_every_type_arrive_bit_for_bit() {
    let mut cases = Cases::new();
    let floats = [
        0.1,
        -0.0,
        1e-30,
        f64::INFINITY,
        f64::NAN,
        1.0 / 3.0,
        6.5e4,
        -7.0,
    ];
    for dtype in DType::ALL {
        for count in [1, 8, 96] {
            let values: Vec<f64> = (0..count)
                .map(|i| {
                    if dtype.is_float() {
                        floats[i % 8]
                    } else {
                        (i % 3) as f64
                    }
                })
                .collect();
            let host = HostTensor::new([values.len()], &values).convert(dtype);
            let literal = cases.graph.constant(host.clone());
            cases.exact(&format!("{dtype} x {count}"), &literal, Array::from(&host));
        }
        let empty = HostTensor::new([0, 3], &[0.0f64; 0]).convert(dtype);
        let literal = cases.graph.constant(empty.clone());
        cases.exact(&format!("{dtype} empty"), &literal, Array::from(&empty));
    }
    let wide = HostTensor::new([2], &[i64::MIN, i64::MAX]);
    let literal = cases.graph.constant(wide.clone());
    let same = cases.input(&wide).equal(&literal);
    cases.exact("i64 limits", &same, Array::new(&[2], &[1.0, 1.0]));
    cases.check();
}

/// The quotient of 1 and the f32 next to 0.1 is rounded to 10, and the remainder is by 9.
#[test]
fn the_slope_of_a_remainder_is_the_quotient_that_was_taken() {
    let mut cases = Cases::new();
    let [a, b] = [1.0f32, 0.1].map(|number| cases.list(&[], &[number]));
    let slope = gradients(&a.remainder(&b), &[&b]).remove(0).unwrap();
    cases.exact("1 and 0.1", &slope, Array::scalar(-9.0));
    cases.check();
}
