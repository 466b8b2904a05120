//! Maximum poolings and their gradients.

use crate::{Array, Case, PLAIN, assert_close, client, kind, run};

/// A pooling, by the fields of a convolution: `kernel` is the window.
pub(crate) const POOLS: [Case; 6] = [
    Case {
        name: "2x2 stride 2",
        kernel: [2, 2],
        strides: [2, 2],
        low: [0, 0],
        high: [0, 0],
        channels: [16, 16],
        ..PLAIN
    },
    Case {
        name: "2x2 stride 2, odd sizes",
        image: [7, 5],
        kernel: [2, 2],
        strides: [2, 2],
        low: [0, 0],
        high: [0, 0],
        channels: [5, 5],
        ..PLAIN
    },
    Case {
        name: "3x3 stride 2, padded below",
        kernel: [3, 3],
        strides: [2, 2],
        low: [0, 0],
        channels: [9, 9],
        ..PLAIN
    },
    Case {
        name: "3x3 stride 1",
        channels: [32, 32],
        ..PLAIN
    },
    Case {
        name: "1 channel, 3x2 strides 1 and 2",
        image: [9, 9],
        kernel: [3, 2],
        strides: [1, 2],
        low: [1, 0],
        high: [1, 1],
        channels: [1, 1],
        ..PLAIN
    },
    Case {
        name: "the whole image",
        image: [6, 6],
        kernel: [6, 6],
        low: [0, 0],
        high: [0, 0],
        channels: [3, 3],
        ..PLAIN
    },
];

pub(crate) fn pooling_body(case: &Case) -> String {
    let (x, y) = (kind(&case.x_dims(), "f32"), kind(&case.y_dims(), "f32"));
    let place = kind(&case.y_dims(), "ui8");
    let pair =
        |name: &str, values: [i64; 2]| format!("{name} = array<i64: {}, {}>", values[0], values[1]);
    let config = [
        pair("window", case.kernel),
        pair("strides", case.strides),
        pair("padding_low", case.low),
        pair("padding_high", case.high),
    ]
    .join(", ");
    let config = format!("{{api_version = 4 : i32, backend_config = {{{config}}}}}");
    format!(
        "%y:2 = stablehlo.custom_call @phalanx.max_pool(%a0) {config} : ({x}) -> ({y}, {place})
        %dx = stablehlo.custom_call @phalanx.max_pool_gradient(%y#1, %a1) {config} : ({place}, {y}) -> {x}
        return %y#0, %dx : {y}, {x}"
    )
}

#[test]
fn poolings_equal_plain_loops() {
    let Some((client, _)) = client() else { return };
    for case in POOLS {
        let x = Array::noise(&case.x_dims(), 4);
        let dy = Array::noise(&case.y_dims(), 5);
        // The first of several equal maxima has the gradient, as in Keras.
        let mut best = vec![None; dy.values.len()];
        let depthwise = Case {
            groups: case.channels[0],
            ..case
        };
        depthwise.products(|at_x, _, at_y| {
            let (at_x, best) = (x.at(at_x), &mut best[dy.at(at_y)]);
            if best.is_none_or(|place: usize| x.values[at_x] > x.values[place]) {
                *best = Some(at_x);
            }
        });
        let best: Vec<usize> = best.into_iter().map(Option::unwrap).collect();
        let y: Vec<f32> = best.iter().map(|&place| x.values[place]).collect();
        let mut dx = Array::zeros(&x.dims);
        best.iter()
            .zip(&dy.values)
            .for_each(|(&place, dy)| dx.values[place] += dy);
        let shapes = [case.y_dims(), case.x_dims()];
        let found = run(client, &[&x, &dy], &shapes, &pooling_body(&case)).unwrap();
        assert_close(&format!("{}: y", case.name), &found[0], &y);
        assert_close(&format!("{}: dx", case.name), &found[1], &dx.values);
    }
}

/// The largest by XLA itself, of the first argument; to be put before the return.
fn xlas_pooling(case: &Case) -> String {
    let (x, y) = (kind(&case.x_dims(), "f32"), kind(&case.y_dims(), "f32"));
    let ([h, w], [down, right]) = (case.kernel, case.strides);
    let ([top, left], [bottom, end]) = (case.low, case.high);
    format!(
        "%least = stablehlo.constant dense<0xFF800000> : tensor<f32>
        %own = \"stablehlo.reduce_window\"(%a0, %least) ({{
        ^bb0(%p: tensor<f32>, %q: tensor<f32>):
            %m = stablehlo.maximum %p, %q : tensor<f32>
            stablehlo.return %m : tensor<f32>
        }}) {{window_dimensions = array<i64: 1, {h}, {w}, 1>, window_strides = array<i64: 1, {down}, {right}, 1>,
            padding = dense<[[0, 0], [{top}, {bottom}], [{left}, {end}], [0, 0]]> : tensor<4x2xi64>}} : ({x}, tensor<f32>) -> {y}
        return %own, "
    )
}

/// Windows that lie in the padding, and an image that is one window.
const EDGES: [Case; 2] = [
    Case {
        name: "windows in the padding",
        kernel: [2, 2],
        strides: [2, 2],
        low: [2, 3],
        high: [3, 2],
        channels: [19, 19],
        ..PLAIN
    },
    Case {
        name: "one window",
        batch: 1,
        image: [2, 2],
        channels: [1, 1],
        ..POOLS[0]
    },
];

#[test]
fn poolings_keep_nan_and_the_infinities() {
    let Some((client, _)) = client() else { return };
    for case in POOLS.into_iter().chain(EDGES) {
        let x = not_finite(&case);
        let dy = Array::noise(&case.y_dims(), 16);
        let y_kind = kind(&case.y_dims(), "f32");
        let body = pooling_body(&case);
        let (calls, results) = body.split_once("return ").unwrap();
        let (names, kinds) = results.split_once(" : ").unwrap();
        let body = format!("{calls}{}{names} : {y_kind}, {kinds}", xlas_pooling(&case));
        let shapes = [case.y_dims(), case.y_dims(), case.x_dims()];
        let found = run(client, &[&x, &dy], &shapes, &body).unwrap();
        let best = largest_or_nan(&case, &x, &dy);
        for (i, best) in best.iter().enumerate() {
            let expected = best.map_or(f32::NEG_INFINITY, |place| x.values[place]);
            let (own, y) = (found[0][i], found[1][i]);
            let same = |a: f32, b: f32| a == b || a.is_nan() && b.is_nan();
            assert!(same(y, expected), "{}: {i}: {y}, not {expected}", case.name);
            // Compiled without options, XLA's own maximum loses NaN.
            let comparable = !expected.is_nan();
            assert!(
                !comparable || same(y, own),
                "{}: {i}: {y}, xla {own}",
                case.name
            );
        }
        let mut dx = Array::zeros(&x.dims);
        let search = best.iter().zip(&dy.values);
        for (place, dy) in search.filter_map(|(place, dy)| place.map(|place| (place, dy))) {
            dx.values[place] += dy;
        }
        assert_close(&format!("{}: dx", case.name), &found[2], &dx.values);
    }
}

/// An image with NaN and both infinities.
fn not_finite(case: &Case) -> Array {
    let mut x = Array::noise(&case.x_dims(), 15);
    for (i, x) in x.values.iter_mut().enumerate() {
        match i * 7 / 5 % 11 {
            1 => *x = f32::NAN,
            2..6 => *x = f32::NEG_INFINITY,
            6 => *x = f32::INFINITY,
            _ => {}
        }
    }
    if case.name == "one window" {
        x.values = vec![1.0, f32::NAN, 2.0, 3.0];
    }
    x
}

/// Where in x the result of each window is: at its first NaN, else at the first of the largest.
fn largest_or_nan(case: &Case, x: &Array, dy: &Array) -> Vec<Option<usize>> {
    let mut best = vec![None; dy.values.len()];
    let depthwise = Case {
        groups: case.channels[0],
        ..*case
    };
    depthwise.products(|at_x, _, at_y| {
        let (at_x, best) = (x.at(at_x), &mut best[dy.at(at_y)]);
        let value = x.values[at_x];
        let larger = |held: f32| value > held || value.is_nan() && !held.is_nan();
        if best.is_none_or(|place: usize| larger(x.values[place])) {
            *best = Some(at_x);
        }
    });
    best
}
