//! Derivatives of maxima: which element won is found once, and no compiler computes it again.

mod support;

use std::collections::BTreeMap;

use phalanx_graph::op::{Op, ReduceOp, WindowDim};
use phalanx_graph::{
    CompilerOption, DType, Graph, HostTensor, Platform, Pool2d, Program, Shape, Tensor,
    compiler_options, gradients,
};
use phalanx_pjrt::{CompileOptions, OverrideValue};

fn window(size: usize, stride: usize) -> WindowDim {
    WindowDim {
        size,
        stride,
        ..WindowDim::identity()
    }
}

/// The gradient of `sum(r f(x))`.
fn gradient(dims: &[usize], f: impl Fn(&Tensor) -> Tensor) -> Program {
    let graph = Graph::new();
    let x = graph.parameter("x", Shape::f32(dims));
    let y = f(&x);
    let r = graph.parameter("r", y.shape());
    let slope = gradients(&(y * r).sum_all(), &[&x]).remove(0).unwrap();
    graph.finish(&[("slope", &slope)]).unwrap().simplified()
}

/// What the compiler makes of a program.
fn optimized(program: &Program) -> String {
    let text = support::text(program);
    let folder = std::env::temp_dir().join(format!("phalanx-winners-{}", std::process::id()));
    let value = |option| match option {
        CompilerOption::Switch(on) => OverrideValue::Bool(on),
        CompilerOption::Text(text) => OverrideValue::Text(text.to_owned()),
    };
    let options = compiler_options(Platform::Cpu, &text).into_iter();
    let mut overrides: BTreeMap<String, OverrideValue> = options
        .map(|(name, option)| (name.to_owned(), value(option)))
        .collect();
    let dump = OverrideValue::Text(folder.to_str().unwrap().to_owned());
    overrides.insert("xla_dump_to".to_owned(), dump);
    overrides.insert("xla_dump_hlo_as_text".to_owned(), OverrideValue::Bool(true));
    let options = CompileOptions {
        overrides,
        ..CompileOptions::default()
    };
    support::client().compile(&text, &options).unwrap();
    let files = std::fs::read_dir(&folder).unwrap().map(Result::unwrap);
    let last = |name: &str| name.ends_with("cpu_after_optimizations.txt");
    let file = files
        .into_iter()
        .find(|file| last(file.file_name().to_str().unwrap()))
        .expect("the plugin writes what it made of the program");
    let text = std::fs::read_to_string(file.path()).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    text
}

/// The plugin takes names of passes that it does not know without a word: what it writes of its work tells.
#[test]
fn barriers_last_through_the_compiler() {
    let dims = [window(1, 1), window(2, 2)];
    let pooled = gradient(&[4, 8], |x| x.tanh().reduce_window(ReduceOp::Max, &dims));
    assert!(optimized(&pooled).contains("opt-barrier("));
}

type Function<'a> = &'a dyn Fn(&Tensor) -> Tensor;

/// A compiler may compute a value twice and round it differently, so floats are compared for equality only where both
/// sides are made of one tensor behind a barrier, and by nothing that rounds.
#[test]
fn no_derivative_asks_whether_floats_are_equal() {
    let pool = Pool2d {
        size: [3, 2],
        strides: [2, 2],
        padding: [(1, 1), (0, 0)],
    };
    let windows = [window(1, 1), window(3, 1), window(2, 2), window(1, 1)];
    let kinds: [(&str, Function); 8] = [
        ("max", &|x| x.max(&[1, 2])),
        ("min", &|x| x.reduce(ReduceOp::Min, &[1])),
        ("product", &|x| x.reduce(ReduceOp::Prod, &[2])),
        ("max_pool2d", &|x| x.max_pool2d(pool)),
        ("windows", &|x| x.reduce_window(ReduceOp::Max, &windows)),
        ("smallest", &|x| x.reduce_window(ReduceOp::Min, &windows)),
        ("clip", &|x| x.clamp(0.0, 6.0)),
        ("maximum", &|x| x.maximum(&x.reverse(&[1]))),
    ];
    for (name, f) in kinds {
        let text = support::text(&gradient(&[2, 6, 6, 3], |x| f(&x.tanh())));
        for node in text.lines().filter(|line| line.contains("compare EQ")) {
            let floats = node.contains("xf32>, ");
            assert!(!floats || is_fixed(&text, node), "{name}: {node}");
        }
    }
}

/// Were a value computed for the maximum and again for the comparison with it, all elements of a row could be smaller.
#[test]
fn the_place_of_the_largest_is_found_in_what_was_compared() {
    let graph = Graph::new();
    let x = graph.parameter("x", Shape::f32([2, 6, 3]));
    let place = x.tanh().argmax(1);
    let program = graph.finish(&[("place", &place)]).unwrap().simplified();
    let text = support::text(&program);
    let mut compared = text.lines().filter(|line| line.contains("compare LT"));
    assert!(
        compared.any(|line| line.contains("xf32>, ") && is_fixed(&text, line)),
        "{text}"
    );
}

/// Whether what a line compares comes from a barrier by nothing that rounds, or is a value and itself: whether it is NaN.
fn is_fixed(text: &str, line: &str) -> bool {
    const EXACT: [&str; 10] = [
        "stablehlo.broadcast_in_dim",
        "stablehlo.reduce(",
        "stablehlo.slice",
        "stablehlo.pad",
        "stablehlo.select",
        "stablehlo.constant",
        "stablehlo.compare",
        "stablehlo.convert",
        "stablehlo.not",
        "stablehlo.and",
    ];
    let of = |line: &str| -> Vec<String> {
        let operands = line.split(" = ").nth(1).unwrap_or_default();
        let words = operands.split(|c: char| !(c.is_alphanumeric() || c == '%' || c == '_'));
        words
            .filter(|word| word.starts_with('%'))
            .map(str::to_owned)
            .collect()
    };
    let mut open = of(line);
    if open[0] == open[1] {
        return true;
    }
    while let Some(name) = open.pop() {
        let Some(line) = text
            .lines()
            .find(|line| line.trim_start().starts_with(&format!("{name} =")))
        else {
            return false;
        };
        if line.contains("stablehlo.optimization_barrier") {
            continue;
        }
        if !EXACT.iter().any(|op| line.contains(op)) {
            return false;
        }
        open.extend(of(line));
    }
    true
}

#[test]
fn the_gradient_of_a_pooling_needs_places_and_cotangents_alone() {
    let pool = Pool2d {
        size: [2, 2],
        strides: [2, 2],
        padding: [(0, 0); 2],
    };
    let program = gradient(&[1, 4, 4, 2], |x| x.max_pool2d(pool));
    let gradient = program.nodes.iter().find(
        |node| matches!(&node.op, Op::Kernel(kernel) if kernel.name() == "max_pool_gradient"),
    );
    assert_eq!(gradient.unwrap().inputs.len(), 2);
}

/// A NaN is the largest of its window, and takes its gradient: what is wrong shows where it is.
#[test]
fn the_first_nan_of_a_window_takes_its_gradient() {
    let x = [1.0, f32::NAN, 3.0, f32::NAN, 5.0, 6.0, 6.0, -1.0];
    let windows = gradient(&[8], |x| x.reduce_window(ReduceOp::Max, &[window(4, 4)]));
    let given = [
        HostTensor::new([8], &x),
        HostTensor::new([2], &[10.0f32, 20.0]),
    ];
    let slope = support::run(&windows, &given).remove(0).f32s();
    assert_eq!(slope, [0.0, 10.0, 0.0, 0.0, 0.0, 20.0, 0.0, 0.0]);
}

/// The elements that are not 0, with their places.
fn not_zero(slope: Vec<f32>) -> Vec<(usize, f32)> {
    let all = slope.into_iter().enumerate();
    all.filter(|(_, g)| *g != 0.0).collect()
}

/// Places of windows with more than 256 elements do not fit into a byte.
#[test]
fn windows_of_any_size_have_a_winner() {
    let pool = Pool2d {
        size: [17, 18],
        strides: [17, 18],
        padding: [(0, 0); 2],
    };
    let program = gradient(&[1, 17, 36, 1], |x| x.max_pool2d(pool));
    let mut x = vec![0.0f32; 17 * 36];
    (x[16 * 36 + 17], x[16 * 36 + 35]) = (1.0, 2.0);
    let x = HostTensor::new([1, 17, 36, 1], &x);
    let r = HostTensor::new([1, 1, 2, 1], &[3.0f32, 4.0]);
    let slope = support::run(&program, &[x, r]).remove(0).f32s();
    assert_eq!(not_zero(slope), [(16 * 36 + 17, 3.0), (16 * 36 + 35, 4.0)]);
}

/// A window of many places that lie side by side takes a few ops, and its winner is the one that is found place after place.
#[test]
fn large_windows_side_by_side_take_few_ops() {
    for kind in [ReduceOp::Max, ReduceOp::Min] {
        let large = [window(100, 100)];
        let program = gradient(&[250], |x| x.reduce_window(kind, &large));
        assert!(program.nodes.len() < 60, "{} ops", program.nodes.len());
        let mut x: Vec<f32> = (0..250_u16).map(|i| f32::from(i * 37 % 101)).collect();
        let best = |row: &[f32]| match kind {
            ReduceOp::Min => row.iter().copied().fold(f32::INFINITY, f32::min),
            _ => row.iter().copied().fold(f32::NEG_INFINITY, f32::max),
        };
        // In the first window two are equal, in the second two are NaN.
        (x[80], x[90]) = (best(&x[..100]), best(&x[..100]));
        (x[130], x[170]) = (f32::NAN, f32::NAN);
        let first = x
            .iter()
            .position(|value| *value == best(&x[..100]))
            .unwrap();
        let given = [
            HostTensor::new([250], &x),
            HostTensor::new([2], &[10.0f32, 20.0]),
        ];
        let slope = support::run(&program, &given).remove(0).f32s();
        assert_eq!(not_zero(slope), [(first, 10.0), (130, 20.0)]);
    }
}

/// Images without rows have no windows, and nothing to learn from.
#[test]
fn images_without_rows_have_empty_gradients() {
    let pool = Pool2d {
        size: [2, 2],
        strides: [2, 2],
        padding: [(0, 0); 2],
    };
    let program = gradient(&[2, 0, 4, 3], |x| x.max_pool2d(pool));
    let given = [
        HostTensor::new([2, 0, 4, 3], &[0.0f32; 0]),
        HostTensor::new([2, 0, 2, 3], &[0.0f32; 0]),
    ];
    let slope = support::run(&program, &given).remove(0);
    assert_eq!(slope.dims(), [2, 0, 4, 3]);
}

#[test]
fn windows_that_no_program_can_hold_are_refused() {
    let refused = |size: [usize; 2], strides: [usize; 2], padding: [(usize, usize); 2]| {
        let graph = Graph::new();
        let x = graph.parameter("x", Shape::f32([1, 300, 300, 1]));
        let pool = Pool2d {
            size,
            strides,
            padding,
        };
        let y = x.max_pool2d(pool);
        let error = graph
            .finish(&[("y", &y)])
            .err()
            .map(|error| error.to_string());
        error.is_some_and(|error| error.contains("expected at most 4096 places"))
    };
    let none = [(0, 0); 2];
    assert!(refused([100, 100], [1, 1], none));
    assert!(!refused([100, 100], [100, 100], none));
    assert!(!refused([64, 64], [1, 1], none));
    let far = 1_000_000_000;
    assert!(refused(
        [far, far],
        [far, far],
        [(far / 2, far / 2 - 300); 2]
    ));
}

/// More windows than bf16 can count have one winner, whose cotangents are all counted.
#[test]
fn many_windows_of_16_bits_add_up_at_one_winner() {
    let (count, size) = (900, 300);
    let graph = Graph::new();
    let x = graph.parameter("x", Shape::new(DType::Bf16, [count]));
    let y = x.reduce_window(ReduceOp::Max, &[window(size, 1)]);
    let slope = gradients(&y.sum_all(), &[&x]).remove(0).unwrap();
    let program = graph.finish(&[("slope", &slope)]).unwrap().simplified();
    let mut values = vec![0.0_f32; count];
    values[450] = 1.0;
    let x = HostTensor::new([count], &values).convert(DType::Bf16);
    let slope = support::run(&program, &[x]).remove(0).to_f64();
    assert_eq!(slope[450], size as f64);
    assert_eq!(slope.iter().sum::<f64>(), (count - size + 1) as f64);
}
