//! Convolutions and their gradients, by oneDNN and by tiles, against plain loops and XLA.

use std::time::{Duration, Instant};

use phalanx_kernels::Kernels;

use crate::tiles::{TILES, forward_and_back};
use crate::{Array, Case, LONG, PLAIN, assert_close, client, kind, run};

const CASES: [Case; 31] = [
    PLAIN,
    Case {
        name: "odd sizes, odd channels",
        image: [7, 5],
        channels: [5, 7],
        ..PLAIN
    },
    Case {
        name: "no padding",
        low: [0, 0],
        high: [0, 0],
        ..PLAIN
    },
    Case {
        name: "stride 2, same as keras pads",
        strides: [2, 2],
        low: [0, 0],
        ..PLAIN
    },
    Case {
        name: "stride 2 with a rest",
        image: [9, 8],
        strides: [2, 2],
        low: [0, 0],
        high: [0, 0],
        ..PLAIN
    },
    Case {
        name: "strides 2 and 3, asymmetric padding",
        image: [11, 13],
        strides: [2, 3],
        low: [2, 0],
        high: [1, 2],
        ..PLAIN
    },
    Case {
        name: "dilation 2 and 3",
        image: [12, 13],
        dilation: [2, 3],
        low: [2, 3],
        high: [2, 3],
        ..PLAIN
    },
    Case {
        name: "1x1",
        kernel: [1, 1],
        low: [0, 0],
        high: [0, 0],
        channels: [32, 64],
        ..PLAIN
    },
    Case {
        name: "1x1 stride 2",
        kernel: [1, 1],
        low: [0, 0],
        high: [0, 0],
        strides: [2, 2],
        channels: [16, 24],
        ..PLAIN
    },
    Case {
        name: "1 channel",
        channels: [1, 32],
        image: [12, 12],
        ..PLAIN
    },
    Case {
        name: "3 channels, 7x7 stride 2",
        channels: [3, 16],
        image: [18, 18],
        kernel: [7, 7],
        strides: [2, 2],
        low: [3, 3],
        high: [3, 3],
        ..PLAIN
    },
    Case {
        name: "one output channel",
        channels: [16, 1],
        ..PLAIN
    },
    Case {
        name: "kernel as large as the image",
        image: [6, 6],
        kernel: [6, 6],
        low: [0, 0],
        high: [0, 0],
        ..PLAIN
    },
    Case {
        name: "batch 1, 5x3",
        batch: 1,
        kernel: [5, 3],
        low: [2, 1],
        high: [2, 1],
        ..PLAIN
    },
    Case {
        name: "4 groups",
        channels: [16, 32],
        groups: 4,
        ..PLAIN
    },
    Case {
        name: "depthwise",
        channels: [24, 24],
        groups: 24,
        ..PLAIN
    },
    Case {
        name: "depthwise, multiplier 3",
        channels: [8, 24],
        groups: 8,
        ..PLAIN
    },
    Case {
        name: "depthwise stride 2, odd",
        channels: [13, 13],
        image: [9, 7],
        groups: 13,
        strides: [2, 2],
        low: [0, 0],
        ..PLAIN
    },
    Case {
        name: "kernel gradient in blocks",
        batch: 1,
        image: [4, 14],
        channels: [64, 72],
        kernel: [2, 1],
        low: [0, 0],
        high: [1, 0],
        ..PLAIN
    },
    Case {
        name: "1x1 with padding",
        kernel: [1, 1],
        channels: [16, 24],
        ..PLAIN
    },
    Case {
        name: "cut blocks of 16 and 30",
        channels: [16, 30],
        image: [7, 9],
        ..PLAIN
    },
    Case {
        name: "blocks, strides 2 and 3, asymmetric padding",
        channels: [17, 16],
        image: [9, 6],
        strides: [2, 3],
        low: [2, 0],
        high: [0, 1],
        ..PLAIN
    },
    Case {
        name: "blocks, dilation 2, several images in a chunk",
        batch: 5,
        channels: [24, 16],
        image: [5, 5],
        dilation: [2, 2],
        low: [2, 2],
        high: [2, 2],
        ..PLAIN
    },
    Case {
        name: "blocks, rows in chunks",
        batch: 1,
        channels: [18, 16],
        image: [3, 130],
        kernel: [2, 3],
        low: [0, 1],
        high: [1, 1],
        ..PLAIN
    },
    Case {
        name: "tiles, cut off, blocks of 8 and 24",
        batch: 3,
        channels: [24, 40],
        image: [11, 14],
        ..PLAIN
    },
    Case {
        name: "tiles, asymmetric padding",
        channels: [32, 16],
        image: [9, 10],
        low: [0, 2],
        high: [2, 1],
        ..PLAIN
    },
    Case {
        name: "tiles, one row",
        batch: 1,
        channels: [16, 24],
        image: [1, 70],
        ..PLAIN
    },
    Case {
        name: "tiles, one pixel of y",
        batch: 7,
        channels: [48, 16],
        image: [3, 3],
        low: [0, 0],
        high: [0, 0],
        ..PLAIN
    },
    Case {
        name: "tiles in many blocks",
        batch: 5,
        channels: [16, 16],
        image: [27, 30],
        ..PLAIN
    },
    Case {
        name: "tiles, a large kernel",
        batch: 1,
        channels: [176, 184],
        image: [2, 3],
        ..PLAIN
    },
    Case {
        name: "a large kernel",
        batch: 1,
        channels: [368, 368],
        image: [2, 2],
        kernel: [2, 1],
        low: [0, 0],
        high: [0, 0],
        ..PLAIN
    },
];

#[test]
fn convolutions_equal_plain_loops_and_xla() {
    let Some((client, kernels)) = client() else {
        return;
    };
    for case in CASES {
        let x = Array::noise(&case.x_dims(), 1);
        let w = Array::noise(&case.kernel_dims(), 2);
        let dy = Array::noise(&case.y_dims(), 3);
        let (mut y, mut dx, mut dw) = (
            Array::zeros(&dy.dims),
            Array::zeros(&x.dims),
            Array::zeros(&w.dims),
        );
        case.products(|at_x, at_w, at_y| {
            let (at_x, at_w, at_y) = (x.at(at_x), w.at(at_w), y.at(at_y));
            y.values[at_y] += x.values[at_x] * w.values[at_w];
            dx.values[at_x] += dy.values[at_y] * w.values[at_w];
            dw.values[at_w] += dy.values[at_y] * x.values[at_x];
        });
        let channels = case.channels[1] as usize;
        let biased = y.values.iter().enumerate();
        let biased: Vec<f32> = biased.map(|(i, y)| y + (i % channels) as f32).collect();
        // The second call finds the operation made; the third has a thread.
        for replicas in [1, 1, 64] {
            let body = case.body_of_one_of(replicas);
            let found = run(client, &[&x, &w, &dy], &case.results(), &body).unwrap();
            let name = |what: &str| format!("{}: {what}", case.name);
            assert_close(&name("y"), &found[0], &y.values);
            assert_close(&name("dx"), &found[1], &dx.values);
            assert_close(&name("dw"), &found[2], &dw.values);
            assert_close(&name("y against xla"), &found[0], &found[3]);
            assert_close(&name("y with a bias"), &found[4], &biased);
            let of_y =
                |ramp: fn(f32) -> f32| found[4].iter().map(|&y| ramp(y)).collect::<Vec<f32>>();
            assert_eq!(found[5], of_y(|y| y.max(0.0)), "{}", name("rectified"));
            assert_eq!(found[6], of_y(|y| y.clamp(0.0, 3.0)), "{}", name("clipped"));
            let of_dx = found[1].iter().zip(&x.values);
            let selected = of_dx.map(|(&dx, &x)| if x > 0.0 { dx } else { 0.0 });
            assert_eq!(
                found[7],
                selected.collect::<Vec<f32>>(),
                "{}",
                name("selected")
            );
        }
    }
    expect_operations(kernels, |made| made.len() >= 2 * CASES.len());
}

/// Those of an operation that runs at the moment, for another test, are not told.
fn expect_operations(kernels: &Kernels, expected: impl Fn(&[String]) -> bool) {
    let start = Instant::now();
    while !expected(&kernels.operations()) {
        assert!(start.elapsed() < LONG, "{:#?}", kernels.operations());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Too large for plain loops.
#[test]
fn the_kernel_gradient_of_a_large_1x1_equals_xlas_product() {
    let Some((client, kernels)) = client() else {
        return;
    };
    let case = Case {
        batch: 11,
        image: [10, 10],
        channels: [256, 512],
        kernel: [1, 1],
        low: [0, 0],
        high: [0, 0],
        ..PLAIN
    };
    let (x, dy) = (
        Array::noise(&case.x_dims(), 6),
        Array::noise(&case.y_dims(), 7),
    );
    let (x_kind, dy_kind, w) = (x.kind(), dy.kind(), kind(&case.kernel_dims(), "f32"));
    let body = format!(
        "%dw = stablehlo.custom_call @phalanx.conv_kernel_gradient(%a0, %a1) {{api_version = 4 : i32, backend_config = {{{}}}}} : ({x_kind}, {dy_kind}) -> {w}
        %p = stablehlo.dot_general %a0, %a1, contracting_dims = [0, 1, 2] x [0, 1, 2] : ({x_kind}, {dy_kind}) -> tensor<256x512xf32>
        %own = stablehlo.reshape %p : (tensor<256x512xf32>) -> {w}
        return %dw, %own : {w}, {w}",
        case.attributes()
    );
    let shapes = [case.kernel_dims(), case.kernel_dims()];
    let found = run(client, &[&x, &dy], &shapes, &body).unwrap();
    assert_close("dw", &found[0], &found[1]);
    // By oneDNN with all arrays reordered, or as a product with none.
    let made = |line: &String| {
        let rule = ["(3 reordered)", "(0 reordered)"];
        line.contains("[11, 10, 10, 256]") && rule.iter().any(|rule| line.contains(rule))
    };
    expect_operations(kernels, |operations| operations.iter().any(made));
}

#[test]
fn a_nan_is_not_hidden_by_what_follows_a_convolution() {
    let Some((client, _)) = client() else { return };
    for case in [PLAIN, TILES] {
        let mut x = Array::noise(&case.x_dims(), 27);
        x.values[100] = f32::NAN;
        let (w, dy) = (
            Array::noise(&case.kernel_dims(), 28),
            Array::noise(&case.y_dims(), 29),
        );
        let found = forward_and_back(client, case, [&x, &w, &dy]);
        let [biased, rectified, clipped] = [4, 5, 6].map(|result| {
            let nans = found[result].iter().map(|value| value.is_nan());
            nans.collect::<Vec<bool>>()
        });
        assert!(biased.contains(&true), "{}", case.name);
        assert_eq!([&rectified, &clipped], [&biased, &biased], "{}", case.name);
        // NaN is not positive.
        assert_eq!(found[7][100], 0.0, "{}", case.name);
    }
}

/// Shapes that no model of the literature has: few channels, long and narrow images, strides that differ and end with the image.
#[test]
fn small_convolutions_of_any_shape_equal_plain_loops() {
    let Some((client, _)) = client() else { return };
    let mut wrong = Vec::new();
    for round in 0..120 {
        let case = any_case(round);
        let x = Array::noise(&case.x_dims(), 1);
        let w = Array::noise(&case.kernel_dims(), 2);
        let dy = Array::noise(&case.y_dims(), 3);
        let mut expected = [&dy, &x, &w].map(|like| Array::zeros(&like.dims));
        case.products(|at_x, at_w, at_y| {
            let (at_x, at_w, at_y) = (x.at(at_x), w.at(at_w), dy.at(at_y));
            expected[0].values[at_y] += x.values[at_x] * w.values[at_w];
            expected[1].values[at_x] += dy.values[at_y] * w.values[at_w];
            expected[2].values[at_w] += dy.values[at_y] * x.values[at_x];
        });
        let found = run(client, &[&x, &w, &dy], &case.results(), &case.body()).unwrap();
        for ((what, found), expected) in ["y", "dx", "dw"].iter().zip(&found).zip(&expected) {
            let mut pairs = found.iter().zip(&expected.values);
            if !pairs.all(|(found, expected)| (found - expected).abs() <= 1e-3) {
                wrong.push(format!("{what} of {case:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong: {wrong:#?}", wrong.len());
}

fn any_case(round: u64) -> Case {
    let mut state = round.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut draw = |from: i64, to: i64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        from + ((state >> 33) % (to - from + 1) as u64) as i64
    };
    let groups = [1, 1, 1, 2, 4][draw(0, 4) as usize];
    let batch = draw(1, 3);
    let mut pair = |from, to| [draw(from, to), draw(from, to)];
    let (kernel, strides, outputs) = (pair(1, 3), pair(1, 4), pair(1, 12));
    let kernel = if round.is_multiple_of(2) {
        [1, 1]
    } else {
        kernel
    };
    let (channels, dilation, tail) = (pair(1, 9), pair(1, 2), pair(0, 1));
    let image = [0, 1].map(|side| {
        let reach = (kernel[side] - 1) * dilation[side] + 1;
        let last = if tail[side] == 0 {
            reach
        } else {
            reach.max(strides[side])
        };
        (outputs[side] - 1) * strides[side] + last
    });
    Case {
        name: "any",
        batch,
        image,
        channels: channels.map(|channels| channels * groups),
        kernel,
        strides,
        dilation,
        low: [0, 0],
        high: [0, 0],
        groups,
    }
}
