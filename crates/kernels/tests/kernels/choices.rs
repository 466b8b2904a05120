//! Convolutions by each algorithm that a program may name, against sums in f64.

use phalanx_testkit::assert_relatively_close;

use crate::short_floats::{assert_rounded, rounded};
use crate::tiles::TILES;
use crate::{Array, Case, PLAIN, client, run};

/// A kernel of one place, with rests at the edges of blocks of 6 rows and 16 columns, and more pixels than a slice of a sum.
const POINTWISE: Case = Case {
    name: "1x1",
    batch: 3,
    image: [11, 13],
    channels: [37, 70],
    kernel: [1, 1],
    low: [0, 0],
    high: [0, 0],
    ..PLAIN
};

/// One whose algorithms are the rule's for large products, where the processor has AVX-512.
const LARGE: Case = Case {
    name: "large 1x1",
    batch: 2,
    image: [14, 15],
    channels: [64, 70],
    ..POINTWISE
};

const STRIDED: Case = Case {
    name: "strided",
    strides: [2, 2],
    image: [9, 8],
    ..PLAIN
};

const GROUPED: Case = Case {
    name: "grouped",
    groups: 4,
    ..PLAIN
};

/// Kernels of one channel each: with a whole task and a rest, more columns than registers have sums for, strides and gaps, ...
const DEPTHWISE: Case = Case {
    name: "depthwise 5x5",
    batch: 3,
    image: [9, 11],
    channels: [77, 77],
    kernel: [5, 5],
    low: [2, 2],
    high: [2, 2],
    groups: 77,
    ..PLAIN
};

/// ... or fewer channels than a vector has lanes, ...
const NARROW: Case = Case {
    name: "depthwise 3x7 with strides",
    image: [13, 8],
    channels: [5, 5],
    kernel: [3, 7],
    strides: [2, 3],
    low: [1, 4],
    high: [0, 3],
    groups: 5,
    ..DEPTHWISE
};

/// ... or rows that are shorter than the kernel.
const WIDE: Case = Case {
    name: "depthwise 2x9 with gaps",
    image: [12, 6],
    channels: [40, 40],
    kernel: [2, 9],
    dilation: [3, 2],
    low: [2, 9],
    high: [1, 8],
    groups: 40,
    ..DEPTHWISE
};

/// Of bf16 these three are wrong by oneDNN 3.2's instructions for bf16: forward with AMX where a step has as many columns as the kernel, ...
const PATCHES: Case = Case {
    name: "patches of 2x2",
    image: [14, 14],
    channels: [48, 96],
    kernel: [2, 2],
    strides: [2, 2],
    low: [0, 0],
    high: [0, 0],
    ..PLAIN
};

/// ... the kernel gradient of one channel at a time with gaps, from 29 columns on, ...
const DILATED: Case = Case {
    name: "depthwise with gaps",
    image: [33, 33],
    channels: [32, 32],
    dilation: [2, 2],
    low: [2, 2],
    high: [2, 2],
    groups: 32,
    ..PLAIN
};

/// ... and that of places of the kernel that meet nothing but padding.
const COLUMN: Case = Case {
    name: "a kernel wider than the image",
    image: [4, 1],
    channels: [64, 64],
    strides: [2, 2],
    ..PLAIN
};

/// The configuration of a call with an algorithm, or with none that is named.
fn config(case: &Case, name: &str, more: &str) -> String {
    let algorithm = match name {
        "" => String::new(),
        name => format!(", algorithm = \"{name}\""),
    };
    let attributes = case.attributes();
    format!("{{api_version = 4 : i32, backend_config = {{{attributes}{algorithm}{more}}}}}")
}

/// A program of the three calls with an algorithm each, of x, the kernel, dy and a bias; the results are y, dx, dw, y with a rectifier,
/// dx where x is positive, and y and dy added, with a rectifier and without.
fn body(case: &Case, names: [&str; 3]) -> String {
    let [x, w, y] =
        [case.x_dims(), case.kernel_dims(), case.y_dims()].map(|dims| crate::kind(&dims, "f32"));
    let b = crate::kind(&case.kernel_dims()[3..], "f32");
    let config = |index: usize, more: &str| config(case, names[index], more);
    format!(
        "%y = stablehlo.custom_call @phalanx.conv(%a0, %a1, %a3) {} : ({x}, {w}, {b}) -> {y}
        %dx = stablehlo.custom_call @phalanx.conv_input_gradient(%a2, %a1) {} : ({y}, {w}) -> {x}
        %dw = stablehlo.custom_call @phalanx.conv_kernel_gradient(%a0, %a2) {} : ({x}, {y}) -> {w}
        %ramp = stablehlo.custom_call @phalanx.conv(%a0, %a1, %a3) {} : ({x}, {w}, {b}) -> {y}
        %cut = stablehlo.custom_call @phalanx.conv_input_gradient(%a2, %a1, %a0) {} : ({y}, {w}, {x}) -> {x}
        %ramp_of_sum = stablehlo.custom_call @phalanx.conv(%a0, %a1, %a3, %a2) {} : ({x}, {w}, {b}, {y}) -> {y}
        %sum = stablehlo.custom_call @phalanx.conv(%a0, %a1, %a3, %a2) {} : ({x}, {w}, {b}, {y}) -> {y}
        return %y, %dx, %dw, %ramp, %cut, %ramp_of_sum, %sum : {y}, {x}, {w}, {y}, {x}, {y}, {y}",
        config(0, ""),
        config(1, ""),
        config(2, ""),
        config(0, ", relu = true, ceiling = 0.0 : f32"),
        config(1, ""),
        config(0, ", relu = true, ceiling = 1.5 : f32"),
        config(0, ", relu = false, ceiling = 0.0 : f32")
    )
}

fn shapes(case: &Case) -> [Vec<i64>; 7] {
    let (y, x) = (case.y_dims(), case.x_dims());
    let all = [&y, &x, &case.kernel_dims(), &y, &x, &y, &y];
    all.map(Clone::clone)
}

/// y with the bias, dx and dw, summed in f64.
fn expected(case: &Case, [x, w, dy, bias]: [&Array; 4]) -> [Vec<f32>; 3] {
    let channels = bias.values.len();
    let y = (0..dy.values.len()).map(|at| f64::from(bias.values[at % channels]));
    let (mut y, mut dx, mut dw) = (
        y.collect::<Vec<_>>(),
        vec![0.0; x.values.len()],
        vec![0.0; w.values.len()],
    );
    case.products(|at_x, at_w, at_y| {
        let (at_x, at_w, at_y) = (x.at(at_x), w.at(at_w), dy.at(at_y));
        let of = |array: &Array, at: usize| f64::from(array.values[at]);
        y[at_y] += of(x, at_x) * of(w, at_w);
        dx[at_x] += of(dy, at_y) * of(w, at_w);
        dw[at_w] += of(dy, at_y) * of(x, at_x);
    });
    [y, dx, dw].map(|values| values.into_iter().map(|value| value as f32).collect())
}

fn operands(case: &Case) -> [Array; 4] {
    [
        Array::gaussian(&case.x_dims(), 11),
        Array::gaussian(&case.kernel_dims(), 12),
        Array::gaussian(&case.y_dims(), 13),
        Array::gaussian(&case.kernel_dims()[3..], 14),
    ]
}

/// The names that compute the forward convolution, the input gradient and the kernel gradient of a case; no name leaves it to the rule.
fn names_of(case: &Case) -> [&'static [&'static str]; 3] {
    match case.kernel {
        [1, 1] => [
            &["", "plain", "blocked", "product"],
            &["", "plain", "blocked", "product"],
            &["", "plain", "matmul", "product"],
        ],
        _ if case.groups > 1 => [&["", "plain"], &["", "plain"], &["", "plain", "depthwise"]],
        _ => [&["", "plain", "blocked", "tiles"]; 3],
    }
}

#[test]
fn every_algorithm_computes_the_same_and_the_same_bits_again() {
    let Some((client, _)) = client() else { return };
    for case in [POINTWISE, LARGE, TILES, DEPTHWISE, NARROW, WIDE] {
        let arrays = operands(&case);
        let given = arrays.each_ref();
        let expected = expected(&case, given);
        let shapes = shapes(&case);
        let names = names_of(&case);
        for round in 0..names.iter().map(|names| names.len()).max().unwrap() {
            let names = names.map(|names| names[round % names.len()]);
            let body = body(&case, names);
            let found = run(client, &given, &shapes, &body).unwrap();
            assert_eq!(run(client, &given, &shapes, &body).unwrap(), found);
            let ramp: Vec<f32> = found[0].iter().map(|y| y.max(0.0)).collect();
            assert_eq!(found[3], ramp, "{}, {}", case.name, names[0]);
            let cut = found[1].iter().zip(&given[0].values);
            let cut: Vec<f32> = cut
                .map(|(dx, x)| if *x > 0.0 { *dx } else { 0.0 })
                .collect();
            assert_eq!(found[4], cut, "{}, {}", case.name, names[1]);
            let sum = found[0].iter().zip(&given[2].values);
            let sum: Vec<f32> = sum.map(|(y, dy)| y + dy).collect();
            assert_eq!(found[6], sum, "{}, {}", case.name, names[0]);
            let ramp: Vec<f32> = sum.iter().map(|sum| sum.clamp(0.0, 1.5)).collect();
            assert_eq!(found[5], ramp, "{}, {}", case.name, names[0]);
            for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let name = format!("{}, {index}, {}", case.name, names[index]);
                let largest = expected.iter().map(|value| f64::from(value.abs()));
                let scale = largest.fold(1.0, f64::max);
                assert_relatively_close(&name, found, expected, 1e-5, scale);
            }
        }
    }
}

#[test]
fn no_algorithm_hides_a_nan() {
    let Some((client, _)) = client() else { return };
    for case in [POINTWISE, LARGE, TILES, DEPTHWISE, NARROW, WIDE] {
        let mut arrays = operands(&case);
        arrays[0].values[5] = f32::NAN;
        arrays[2].values[7] = f32::NAN;
        let shapes = shapes(&case);
        let names = names_of(&case);
        for round in 0..names.iter().map(|names| names.len()).max().unwrap() {
            let names = names.map(|names| names[round % names.len()]);
            let found = run(client, &arrays.each_ref(), &shapes, &body(&case, names)).unwrap();
            for (found, name) in found.iter().zip(names) {
                let hidden = found.iter().all(|value| !value.is_nan());
                assert!(!hidden, "{}, {name}", case.name);
            }
        }
    }
}

#[test]
fn an_algorithm_that_does_not_compute_a_convolution_is_refused() {
    let Some((client, _)) = client() else { return };
    for (case, names) in [
        (POINTWISE, ["tiles", "plain", "plain"]),
        (POINTWISE, ["plain", "matmul", "plain"]),
        (TILES, ["plain", "plain", "product"]),
        (TILES, ["plain", "plain", "fastest"]),
        (TILES, ["plain", "plain", "depthwise"]),
        (DEPTHWISE, ["plain", "depthwise", "plain"]),
    ] {
        let arrays = operands(&case);
        let shapes = shapes(&case);
        let error = run(client, &arrays.each_ref(), &shapes, &body(&case, names)).unwrap_err();
        let says = ["does not compute this", "must be one of plain, blocked"];
        assert!(says.iter().any(|says| error.contains(says)), "{error}");
    }
}

/// The three calls on arrays of bf16 with an algorithm each; the results are y, dx, dw, and dw in f32.
fn body_in_bf16(case: &Case, names: [&str; 3]) -> String {
    let kinds = |element| {
        let [x, w, y] = [case.x_dims(), case.kernel_dims(), case.y_dims()];
        let b = w[3..].to_vec();
        [x, w, y, b].map(|dims| crate::kind(&dims, element))
    };
    let ([x, w, y, b], [x16, w16, y16, b16]) = (kinds("f32"), kinds("bf16"));
    let [forward, of_x, of_w] = names.map(|name| config(case, name, ""));
    format!(
        "%x = stablehlo.convert %a0 : ({x}) -> {x16}
        %w = stablehlo.convert %a1 : ({w}) -> {w16}
        %dy = stablehlo.convert %a2 : ({y}) -> {y16}
        %b = stablehlo.convert %a3 : ({b}) -> {b16}
        %y16 = stablehlo.custom_call @phalanx.conv(%x, %w, %b) {forward} : ({x16}, {w16}, {b16}) -> {y16}
        %dx16 = stablehlo.custom_call @phalanx.conv_input_gradient(%dy, %w) {of_x} : ({y16}, {w16}) -> {x16}
        %dw16 = stablehlo.custom_call @phalanx.conv_kernel_gradient(%x, %dy) {of_w} : ({x16}, {y16}) -> {w16}
        %wide = stablehlo.custom_call @phalanx.conv_kernel_gradient(%x, %dy) {of_w} : ({x16}, {y16}) -> {w}
        %y = stablehlo.convert %y16 : ({y16}) -> {y}
        %dx = stablehlo.convert %dx16 : ({x16}) -> {x}
        %dw = stablehlo.convert %dw16 : ({w16}) -> {w}
        return %y, %dx, %dw, %wide : {y}, {x}, {w}, {w}"
    )
}

fn shapes_in_bf16(case: &Case) -> [Vec<i64>; 4] {
    let kernel = case.kernel_dims();
    [case.y_dims(), case.x_dims(), kernel.clone(), kernel]
}

/// Cases of bf16 with the names that compute them: the widths of oneDNN's blocks and the rests of ours, strides, and groups.
fn bf16_cases(is_native: bool) -> Vec<(Case, [Vec<&'static str>; 3])> {
    let named = |case: &Case| {
        let mut names = names_of(case).map(<[&str]>::to_vec);
        if !is_native {
            names[2].retain(|&name| name != "matmul");
        }
        names
    };
    let mut cases: Vec<_> = [POINTWISE, LARGE, TILES]
        .map(|case| (case, named(&case)))
        .into();
    for case in [PLAIN, STRIDED, GROUPED, PATCHES, DILATED, COLUMN] {
        cases.push((case, [(); 3].map(|()| vec!["", "plain"])));
    }
    cases
}

/// The sums of products of bf16 are f32's, rounded once.
#[test]
fn convolutions_of_bf16_are_those_of_f64_by_every_algorithm() {
    let Some((client, kernels)) = client() else {
        return;
    };
    for (case, names) in bf16_cases(kernels.support().bf16) {
        let arrays = operands(&case).map(rounded);
        let given = arrays.each_ref();
        let [y, dx, dw] = expected(&case, given);
        let expected = [&y, &dx, &dw];
        let shapes = shapes_in_bf16(&case);
        for round in 0..names.iter().map(Vec::len).max().unwrap() {
            let names = [0, 1, 2].map(|call| names[call][round % names[call].len()]);
            let body = body_in_bf16(&case, names);
            let found = run(client, &given, &shapes, &body).unwrap();
            assert_eq!(run(client, &given, &shapes, &body).unwrap(), found);
            for (index, expected) in expected.into_iter().enumerate() {
                let name = format!("{}, {index}, {}", case.name, names[index]);
                assert_rounded(&name, &found[index], expected);
            }
            let wide = found[3].iter().zip(&dw).map(|(a, b)| (a - b).abs());
            let largest = dw.iter().fold(1.0, |most: f32, x| most.max(x.abs()));
            assert!(wide.fold(0.0, f32::max) < 2e-5 * largest, "{}", case.name);
        }
    }
}

#[test]
fn no_algorithm_hides_a_nan_of_bf16() {
    let Some((client, kernels)) = client() else {
        return;
    };
    for (case, names) in bf16_cases(kernels.support().bf16) {
        let mut arrays = operands(&case);
        (arrays[0].values[5], arrays[2].values[7]) = (f32::NAN, f32::NAN);
        let shapes = shapes_in_bf16(&case);
        for round in 0..names.iter().map(Vec::len).max().unwrap() {
            let names = [0, 1, 2].map(|call| names[call][round % names[call].len()]);
            let body = body_in_bf16(&case, names);
            let found = run(client, &arrays.each_ref(), &shapes, &body).unwrap();
            for found in found {
                let hidden = found.iter().all(|value| !value.is_nan());
                assert!(!hidden, "{}, {names:?}", case.name);
            }
        }
    }
}
