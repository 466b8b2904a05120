//! Derivatives of what is done to images: pools, batch normalisations, convolutions.

use phalanx_graph::Pool2d;
use phalanx_graph::op::{ConvDims, ConvSpec, ReduceOp, WindowDim};
use phalanx_graph::{HostTensor, Tensor};

use crate::support::compile;
use crate::{check, program, run, scrambled};

pub(crate) fn conv_dims(strides: [usize; 2], padding: [(i64, i64); 2]) -> ConvDims {
    ConvDims {
        input: ConvSpec::channels_last(2),
        kernel: ConvSpec::kernel(2),
        output: ConvSpec::channels_last(2),
        strides: strides.to_vec(),
        padding: padding.to_vec(),
        input_dilation: vec![1, 1],
        kernel_dilation: vec![1, 1],
        feature_groups: 1,
        batch_groups: 1,
    }
}

#[test]
fn pools() {
    let pool = |size, strides, padding| Pool2d {
        size,
        strides,
        padding,
    };
    for pool in [
        pool([2, 2], [2, 2], [(0, 0), (0, 0)]),
        pool([3, 2], [1, 2], [(1, 1), (0, 1)]),
    ] {
        check("max_pool2d", &[scrambled(&[2, 5, 6, 2])], &|x| {
            x[0].max_pool2d(pool).square()
        });
    }
    // Many places, side by side: with a rest that is in no window, and with padding.
    for (pool, dims) in [
        (pool([9, 8], [9, 8], [(0, 0), (0, 0)]), [1, 20, 17, 2]),
        (pool([9, 8], [9, 8], [(3, 2), (1, 0)]), [2, 13, 15, 1]),
        (pool([1, 70], [1, 70], [(0, 0), (0, 0)]), [1, 2, 75, 2]),
    ] {
        check("max_pool2d side by side", &[scrambled(&dims)], &|x| {
            x[0].max_pool2d(pool).square()
        });
    }
}

#[test]
fn batch_norms() {
    let inputs = [scrambled(&[3, 2, 4]), scrambled(&[4]), scrambled(&[4])];
    check("batch_norm", &inputs, &|x| {
        let [y, ..] = x[0].batch_norm(&x[1], &x[2], 0.1);
        y.sin()
    });
    check("batch_norm and its statistics", &inputs, &|x| {
        let [y, mean, variance] = x[0].batch_norm(&x[1], &x[2], 0.1);
        y.sin().sum(&[0, 1]) * mean.exp() + variance.square()
    });
}

/// `x + bias`, normalized, and what was normalized.
fn biased(x: &[Tensor]) -> [Tensor; 2] {
    let sum = &x[0] + x[3].broadcast_in(&x[0].dims(), &[2]);
    let [y, ..] = sum.batch_norm(&x[1], &x[2], 0.1);
    [y.sin(), sum]
}

#[test]
fn biases_before_batch_norms() {
    let vector = || scrambled(&[4]);
    let inputs = [scrambled(&[3, 2, 4]), vector(), vector(), vector()];
    check("bias", &inputs, &|x| biased(x)[0].clone());
    check("bias that is not only normalized", &inputs, &|x| {
        let [y, sum] = biased(x);
        y + sum.cos()
    });
    check(
        "scalar bias",
        &[scrambled(&[3, 4]), vector(), vector(), scrambled(&[])],
        &|x| {
            let sum = &x[0] + x[3].broadcast_in(&x[0].dims(), &[]);
            let [y, ..] = sum.batch_norm(&x[1], &x[2], 0.1);
            y.sin()
        },
    );
}

/// A bias before a normalization stays where it is, and an activation that is not a number reaches its gradient.
#[test]
fn gradients_of_biases_before_batch_norms_are_exact() {
    let of_bias = |x: HostTensor| {
        let inputs = [x, scrambled(&[4]), scrambled(&[4]), scrambled(&[4])];
        let program = program(&inputs, &|x| biased(x)[0].clone());
        run(&compile(&program), &inputs)[4].to_f64()
    };
    assert_eq!(of_bias(scrambled(&[3, 2, 4])), [0.0; 4]);
    let mut values = scrambled(&[3, 2, 4]).to_f64();
    values[5] = f64::NAN;
    let found = of_bias(HostTensor::new([3, 2, 4], &values));
    let is_nan: Vec<bool> = found.iter().map(|gradient| gradient.is_nan()).collect();
    assert_eq!(is_nan, [false, true, false, false], "{found:?}");
}

fn check_conv(name: &str, x: &[usize], kernel: &[usize], dims: &ConvDims) {
    check(name, &[scrambled(x), scrambled(kernel)], &|x| {
        x[0].conv(&x[1], dims.clone())
    });
}

#[test]
fn convolutions() {
    let case = |name, x, k, strides, padding| check_conv(name, x, k, &conv_dims(strides, padding));
    let (none, one) = ([(0, 0); 2], [(1, 1); 2]);
    case("valid", &[2, 4, 5, 2], &[3, 2, 2, 3], [1, 1], none);
    case("same", &[1, 4, 3, 2], &[3, 3, 2, 2], [1, 1], one);
    case("1x1", &[2, 3, 3, 2], &[1, 1, 2, 3], [1, 1], none);
    case("1x1 strided", &[1, 5, 4, 2], &[1, 1, 2, 2], [2, 2], none);
    case(
        "strided",
        &[1, 6, 5, 2],
        &[3, 2, 2, 2],
        [2, 3],
        [(1, 0), (0, 2)],
    );
    case(
        "negative padding",
        &[1, 6, 5, 1],
        &[2, 2, 1, 2],
        [1, 2],
        [(-1, 0), (0, -1)],
    );
}

#[test]
fn convolutions_with_dilation_and_groups() {
    let valid = conv_dims([1, 1], [(0, 0), (0, 0)]);
    let same = conv_dims([1, 1], [(1, 1), (1, 1)]);
    check_conv(
        "kernel dilation",
        &[1, 6, 7, 1],
        &[2, 3, 1, 2],
        &ConvDims {
            kernel_dilation: vec![3, 2],
            ..same.clone()
        },
    );
    check_conv(
        "input dilation",
        &[1, 3, 3, 2],
        &[3, 2, 2, 1],
        &ConvDims {
            input_dilation: vec![2, 3],
            ..same.clone()
        },
    );
    check_conv(
        "groups",
        &[2, 4, 4, 4],
        &[2, 2, 2, 6],
        &ConvDims {
            feature_groups: 2,
            ..valid.clone()
        },
    );
    check_conv(
        "depthwise",
        &[1, 5, 4, 3],
        &[3, 3, 1, 6],
        &ConvDims {
            feature_groups: 3,
            strides: vec![2, 1],
            ..same.clone()
        },
    );
    check_conv(
        "batch groups",
        &[4, 4, 3, 2],
        &[2, 2, 2, 4],
        &ConvDims {
            batch_groups: 2,
            ..valid
        },
    );
}

#[test]
fn convolutions_of_lines_in_any_layout() {
    let line = ConvDims {
        input: ConvSpec {
            batch: 1,
            feature: 0,
            spatial: vec![2],
        },
        kernel: ConvSpec {
            batch: 0,
            feature: 2,
            spatial: vec![1],
        },
        output: ConvSpec {
            batch: 2,
            feature: 1,
            spatial: vec![0],
        },
        strides: vec![2],
        padding: vec![(1, 2)],
        input_dilation: vec![1],
        kernel_dilation: vec![2],
        feature_groups: 1,
        batch_groups: 1,
    };
    check_conv("one dim, odd layouts", &[2, 3, 7], &[4, 3, 2], &line);
}

/// Depth, height and width: nothing here is of images alone.
#[test]
fn convolutions_and_pools_of_volumes() {
    let volume = ConvDims {
        input: ConvSpec::channels_last(3),
        kernel: ConvSpec::kernel(3),
        output: ConvSpec::channels_last(3),
        strides: vec![1, 2, 1],
        padding: vec![(1, 0), (0, 1), (1, 1)],
        input_dilation: vec![1, 1, 1],
        kernel_dilation: vec![1, 1, 2],
        feature_groups: 1,
        batch_groups: 1,
    };
    let x = [2, 3, 4, 3, 2];
    check_conv("volumes", &x, &[2, 3, 2, 2, 3], &volume);
    let groups = ConvDims {
        feature_groups: 2,
        ..volume
    };
    check_conv("groups of volumes", &x, &[2, 2, 2, 1, 4], &groups);
    let window: Vec<WindowDim> = [(1, 1), (2, 1), (2, 2), (3, 1), (1, 1)]
        .into_iter()
        .map(|(size, stride)| WindowDim {
            size,
            stride,
            high: size / 3,
            ..WindowDim::identity()
        })
        .collect();
    for kind in [ReduceOp::Sum, ReduceOp::Max] {
        check("pools of volumes", &[scrambled(&x)], &|x| {
            x[0].reduce_window(kind, &window).square()
        });
    }
}
