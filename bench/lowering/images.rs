//! What image models are made of: convolutions and their gradients, pooling.

use phalanx_graph::op::{ConvDims, ConvSpec};
use phalanx_graph::{Graph, Pool2d, Shape, Tensor, gradients};

use crate::form::{Form, Row};

const BY_KERNEL: &str = "oneDNN's kernels keep images in the cache in blocks of channels; XLA:CPU's convolution does not";

/// Batch, image side, input and output channels, kernel side, stride, groups.
type Layer = [usize; 7];

pub(crate) fn rows() -> Vec<Row> {
    let layers: [(&str, &str, Layer); 6] = [
        (
            "conv3x3",
            "convolution 3x3, 16x56x56x64 to 64, with both gradients",
            [16, 56, 64, 64, 3, 1, 1],
        ),
        (
            "conv1x1",
            "convolution 1x1, 16x56x56x64 to 256, with both gradients",
            [16, 56, 64, 256, 1, 1, 1],
        ),
        (
            "strided",
            "convolution 3x3/2, 16x56x56x128 to 128, with both gradients",
            [16, 56, 128, 128, 3, 2, 1],
        ),
        (
            "three_channels",
            "convolution 7x7/2, 16x224x224x3 to 64, kernel gradient",
            [16, 224, 3, 64, 7, 2, 1],
        ),
        (
            "one_channel",
            "convolution 3x3, 128x28x28x1 to 32, kernel gradient",
            [128, 28, 1, 32, 3, 1, 1],
        ),
        (
            "depthwise",
            "depthwise convolution 3x3, 16x112x112x32, with both gradients",
            [16, 112, 32, 32, 3, 1, 32],
        ),
    ];
    let mut rows: Vec<Row> = layers
        .into_iter()
        .map(|(name, shown, layer)| convolution(name, shown, layer))
        .collect();
    rows.push(max_pool());
    rows
}

fn convolution(name: &'static str, shown: &'static str, layer: Layer) -> Row {
    let build = move |g: &Graph| convolved(g, layer);
    Row {
        name,
        shown,
        why: BY_KERNEL,
        forms: vec![Form::with_kernels("oneDNN", build), Form::new("XLA", build)],
    }
}

/// The output and the gradients: that of an input of three channels or fewer, images, is never needed.
fn convolved(
    g: &Graph,
    [batch, side, channels, filters, kernel, stride, groups]: Layer,
) -> Vec<Tensor> {
    let pad = (kernel as i64 - 1) / 2;
    let x = g.parameter("x", Shape::f32([batch, side, side, channels]));
    let w = g.parameter(
        "w",
        Shape::f32([kernel, kernel, channels / groups, filters]),
    );
    let dims = ConvDims {
        input: ConvSpec::channels_last(2),
        kernel: ConvSpec::kernel(2),
        output: ConvSpec::channels_last(2),
        strides: vec![stride; 2],
        padding: vec![(pad, pad); 2],
        input_dilation: vec![1; 2],
        kernel_dilation: vec![1; 2],
        feature_groups: groups,
        batch_groups: 1,
    };
    let wrt: &[&Tensor] = if channels > 3 { &[&w, &x] } else { &[&w] };
    with_gradients(g, x.conv(&w, dims), wrt)
}

fn max_pool() -> Row {
    let build = |g: &Graph| {
        let x = g.parameter("x", Shape::f32([16, 112, 112, 64]));
        let pool = Pool2d {
            size: [3, 3],
            strides: [2, 2],
            padding: [(0, 1), (0, 1)],
        };
        with_gradients(g, x.max_pool2d(pool), &[&x])
    };
    Row {
        name: "max_pool",
        shown: "max pooling 3x3/2, 16x112x112x64, with gradient",
        why: "the kernel remembers the place of each maximum in a byte; without it each window is compared again",
        forms: vec![Form::with_kernels("oneDNN", build), Form::new("XLA", build)],
    }
}

/// The output and the gradients of its product with another input, as a layer above would send one.
fn with_gradients(g: &Graph, y: Tensor, wrt: &[&Tensor]) -> Vec<Tensor> {
    let above = g.parameter("above", y.shape());
    let slopes = gradients(&(&y * &above).sum_all(), wrt);
    std::iter::once(y)
        .chain(slopes.into_iter().flatten())
        .collect()
}
