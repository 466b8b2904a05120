//! Convolutions by panels of their kernels, which are packed apart: sums of products for any window, and what follows them.

use crate::{Array, Case, PLAIN, client, kind, run};

/// Pixels as they are, and windows that are copied: with strides, padding, dilation, several slices of a sum, and rests of panels and of blocks.
const CASES: [Case; 6] = [
    Case {
        name: "points",
        batch: 3,
        image: [13, 14],
        channels: [24, 40],
        kernel: [1, 1],
        low: [0, 0],
        high: [0, 0],
        ..PLAIN
    },
    Case {
        name: "one pixel of many channels",
        batch: 1,
        image: [1, 1],
        channels: [600, 7],
        kernel: [1, 1],
        low: [0, 0],
        high: [0, 0],
        ..PLAIN
    },
    Case {
        name: "points with strides",
        batch: 2,
        image: [9, 8],
        channels: [20, 17],
        kernel: [1, 1],
        strides: [2, 3],
        low: [0, 0],
        high: [0, 0],
        ..PLAIN
    },
    Case {
        name: "3x3",
        batch: 1,
        image: [7, 7],
        channels: [64, 64],
        ..PLAIN
    },
    Case {
        name: "3x3 with strides",
        batch: 2,
        image: [8, 7],
        channels: [40, 33],
        strides: [2, 2],
        low: [0, 1],
        high: [1, 1],
        ..PLAIN
    },
    Case {
        name: "5x2 spread",
        batch: 2,
        image: [11, 6],
        channels: [3, 16],
        kernel: [5, 2],
        dilation: [2, 3],
        low: [4, 0],
        high: [3, 2],
        ..PLAIN
    },
];

fn panels_of(case: &Case) -> i64 {
    let [height, width, inputs, outputs] = case.kernel_dims().try_into().unwrap();
    (outputs + 15).div_euclid(16) * 16 * height * width * inputs
}

/// The sum alone, with a bias, with a bias and a rectifier, and with a bias, another array and a rectifier with a ceiling; then the panels.
fn body(case: &Case, panels: i64, replicas: usize) -> String {
    let [x, w, y] =
        [case.x_dims(), case.kernel_dims(), case.y_dims()].map(|dims| kind(&dims, "f32"));
    let (b, p) = (
        kind(&case.kernel_dims()[3..], "f32"),
        kind(&[panels], "f32"),
    );
    let [height, width] = case.kernel;
    let attributes = format!(
        "{}, window = array<i64: {height}, {width}>, replicas = {replicas} : i64",
        case.attributes()
    );
    let call = |operands: &str, kinds: &str, relu: bool, ceiling: &str| {
        format!(
            "stablehlo.custom_call @phalanx.conv_by_panels(%a0, %p{operands}) {{api_version = 4 : i32, backend_config = {{{attributes}, ceiling = {ceiling} : f32, relu = {relu}}}}} : ({x}, {p}{kinds}) -> {y}"
        )
    };
    let biased = format!(", {b}");
    format!(
        "%p = stablehlo.custom_call @phalanx.conv_panels(%a1) {{api_version = 4 : i32, backend_config = {{replicas = {replicas} : i64}}}} : ({w}) -> {p}
        %y = {}
        %biased = {}
        %ramp = {}
        %sum = {}
        return %y, %biased, %ramp, %sum, %p : {y}, {y}, {y}, {y}, {p}",
        call("", "", false, "0.0"),
        call(", %a2", &biased, false, "0.0"),
        call(", %a2", &biased, true, "0.0"),
        call(", %a2, %a3", &format!("{biased}, {y}"), true, "2.0"),
    )
}

fn operands(case: &Case) -> [Array; 4] {
    [
        Array::gaussian(&case.x_dims(), 41),
        Array::gaussian(&case.kernel_dims(), 42),
        Array::gaussian(&case.kernel_dims()[3..], 43),
        Array::gaussian(&case.y_dims(), 44),
    ]
}

fn found(
    case: &Case,
    given: &[Array; 4],
    replicas: usize,
) -> Option<Result<Vec<Vec<f32>>, String>> {
    let (client, kernels) = client()?;
    if !kernels.support().tiles {
        return None;
    }
    let panels = panels_of(case);
    let shapes = [vec![case.y_dims(); 4], vec![vec![panels]]].concat();
    let body = body(case, panels, replicas);
    Some(run(client, &given.each_ref(), &shapes, &body))
}

/// The sums in f64, and for each the sum of its products' magnitudes.
fn sums(case: &Case, [x, w, ..]: &[Array; 4]) -> Vec<(f64, f64)> {
    let y = Array::zeros(&case.y_dims());
    let mut sums = vec![(0.0, 0.0); y.values.len()];
    case.products(|at_x, at_w, at_y| {
        let [x, w] = [x.values[x.at(at_x)], w.values[w.at(at_w)]].map(f64::from);
        let (sum, magnitude) = &mut sums[y.at(at_y)];
        *sum += x * w;
        *magnitude += (x * w).abs();
    });
    sums
}

#[test]
fn panels_give_the_sums_of_products_and_what_follows_them() {
    for case in CASES {
        let given = operands(&case);
        let Some(first) = found(&case, &given, 1) else {
            return;
        };
        let first = first.unwrap();
        for (found, (sum, magnitude)) in first[0].iter().zip(sums(&case, &given)) {
            let error = (f64::from(*found) - sum).abs();
            assert!(error <= 1e-6 * magnitude, "{}: {found} {sum}", case.name);
        }
        let outputs = given[2].values.len();
        for (index, &y) in first[0].iter().enumerate() {
            let biased = y + given[2].values[index % outputs];
            let sum = biased + given[3].values[index];
            let expected = [biased, biased.max(0.0), sum.clamp(0.0, 2.0)];
            let found = [&first[1], &first[2], &first[3]].map(|found| found[index]);
            assert_eq!(found, expected, "{} {index}", case.name);
        }
        for replicas in [1, 64] {
            let again = found(&case, &given, replicas).unwrap().unwrap();
            assert_eq!(again, first, "{} {replicas}", case.name);
        }
    }
}

#[test]
fn a_nan_is_where_the_sums_have_it() {
    for case in CASES {
        for operand in [0, 1] {
            let mut given = operands(&case);
            let middle = given[operand].values.len() / 2;
            given[operand].values[middle] = f32::NAN;
            let Some(found) = found(&case, &given, 1) else {
                return;
            };
            let found = found.unwrap();
            let expected = sums(&case, &given);
            assert!(expected.iter().any(|(sum, _)| sum.is_nan()));
            for found in &found[..4] {
                let mut pairs = found.iter().zip(&expected);
                let is_kept = pairs.all(|(found, (sum, _))| match operand {
                    0 => found.is_nan() == sum.is_nan(),
                    // A NaN of a kernel makes one of the zeros around x, too.
                    _ => found.is_nan() || !sum.is_nan(),
                });
                assert!(is_kept, "{} {operand}", case.name);
            }
        }
    }
}

#[test]
fn wrong_panels_are_refused() {
    let Some((client, kernels)) = client() else {
        return;
    };
    if !kernels.support().tiles {
        return;
    }
    let case = CASES[3];
    let (given, panels) = (operands(&case), panels_of(&case));
    let refused = |panels: i64, body: &str| {
        let shapes = [vec![case.y_dims(); 4], vec![vec![panels]]].concat();
        run(client, &given.each_ref(), &shapes, body).unwrap_err()
    };
    let error = refused(panels - 1, &body(&case, panels - 1, 1));
    assert!(
        error.contains("the panels of a kernel with 576 numbers for each of 64 channels"),
        "{error}"
    );
    let text = body(&case, panels, 1);
    let error = refused(
        panels,
        &text.replace("window = array<i64: 3, 3>", "window = array<i64: 3, 1>"),
    );
    assert!(error.contains("the window does not fit"), "{error}");
    let error = refused(panels, &text.replace("groups = 1", "groups = 2"));
    assert!(error.contains("channels and groups do not fit"), "{error}");
    let error = refused(panels, &text.replace("window = array<i64: 3, 3>, ", ""));
    assert!(error.contains("window"), "{error}");
}
