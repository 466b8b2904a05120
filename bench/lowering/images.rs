//! What image models are made of: convolutions and their gradients, batch normalization, pooling.

use phalanx_graph::op::{ConvDims, ConvSpec};
use phalanx_graph::{Graph, Pool2d, Shape, Tensor, gradients};

use crate::form::{Form, Row};

const BY_KERNEL: &str = "oneDNN's kernels keep images in the cache in blocks of channels; XLA:CPU's convolution does not";
const FEW_CHANNELS: &str = "our own loops keep a window of so few channels in registers and share the rows of an image between threads";
const ONE_BY_ONE: &str =
    "a product of matrices either way; oneDNN's keeps its packed kernel, and bias comes with it";
const DEPTHWISE: &str =
    "oneDNN has a loop for groups of one channel; XLA:CPU makes a convolution of each group";

/// Batch, image side, input and output channels, kernel side, stride, groups.
type Layer = [usize; 7];

const LAYERS: [(&str, &str, &str, Layer); 6] = [
    (
        "conv3x3",
        "convolution 3x3, 16x56x56x64 to 64",
        BY_KERNEL,
        [16, 56, 64, 64, 3, 1, 1],
    ),
    (
        "conv1x1",
        "convolution 1x1, 16x56x56x64 to 256",
        ONE_BY_ONE,
        [16, 56, 64, 256, 1, 1, 1],
    ),
    (
        "strided",
        "convolution 3x3/2, 16x56x56x128 to 128",
        BY_KERNEL,
        [16, 56, 128, 128, 3, 2, 1],
    ),
    (
        "three_channels",
        "convolution 7x7/2, 16x224x224x3 to 64",
        BY_KERNEL,
        [16, 224, 3, 64, 7, 2, 1],
    ),
    (
        "one_channel",
        "convolution 3x3, 128x28x28x1 to 32",
        FEW_CHANNELS,
        [128, 28, 1, 32, 3, 1, 1],
    ),
    (
        "depthwise",
        "depthwise convolution 3x3, 16x112x112x32",
        DEPTHWISE,
        [16, 112, 32, 32, 3, 1, 32],
    ),
];

#[derive(Clone, Copy, PartialEq)]
enum Direction {
    Forward,
    Input,
    Kernel,
}

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for (name, shown, why, layer) in LAYERS {
        let directions = [
            (Direction::Forward, "forward"),
            (Direction::Input, "input gradient"),
            (Direction::Kernel, "kernel gradient"),
        ];
        // That of an input of three channels or fewer, images, is never needed.
        let needed = directions.into_iter();
        let needed = needed.filter(|(way, _)| layer[2] > 3 || *way != Direction::Input);
        rows.extend(needed.map(|(way, called)| {
            let build = move |g: &Graph| vec![convolved(g, layer, way)];
            by_kernel(name, format!("{shown}, {called}"), why, build)
        }));
    }
    for gradient in [false, true] {
        rows.extend(
            [Behind::Nothing, Behind::Relu, Behind::Residual].map(|behind| norm(behind, gradient)),
        );
        rows.push(max_pool(gradient));
    }
    rows.push(pool_after_norm());
    rows.push(global_max());
    rows
}

/// What the library's kernels do, and the same without them.
fn by_kernel(
    name: &'static str,
    shown: String,
    why: &'static str,
    build: impl Fn(&Graph) -> Vec<Tensor> + Copy + 'static,
) -> Row {
    let forms = vec![Form::with_kernels("kernel", build), Form::new("XLA", build)];
    Row {
        name,
        shown,
        why,
        forms,
    }
}

fn convolved(
    g: &Graph,
    [batch, side, channels, filters, kernel, stride, groups]: Layer,
    direction: Direction,
) -> Tensor {
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
    let y = x.conv(&w, dims);
    match direction {
        Direction::Forward => y,
        Direction::Input => pulled_back(g, &y, &[&x]).remove(0),
        Direction::Kernel => pulled_back(g, &y, &[&w]).remove(0),
    }
}

/// What follows a batch normalization.
#[derive(Clone, Copy)]
enum Behind {
    Nothing,
    Relu,
    Residual,
}

/// In training, over images of a block of ResNet.
fn norm(behind: Behind, gradient: bool) -> Row {
    let build = move |g: &Graph| {
        let shape = Shape::f32([16, 56, 56, 256]);
        let parameter = |name: &str, shape: &Shape| g.parameter(name, shape.clone());
        let x = parameter("x", &shape);
        let [gamma, beta] = ["gamma", "beta"].map(|name| parameter(name, &Shape::f32([256])));
        let mut wrt = vec![&x, &gamma, &beta];
        let [y, mean, variance] = x.batch_norm(&gamma, &beta, 1e-3);
        let residual = parameter("residual", &shape);
        let y = match behind {
            Behind::Nothing => y,
            Behind::Relu => y.maximum(&y.like(0.0)),
            Behind::Residual => {
                wrt.push(&residual);
                let sum = &y + &residual;
                sum.maximum(&sum.like(0.0))
            }
        };
        let slopes = match gradient {
            true => pulled_back(g, &y, &wrt),
            false => Vec::new(),
        };
        [vec![y, mean, variance], slopes].concat()
    };
    let follows = match behind {
        Behind::Nothing => "",
        Behind::Relu => " with ReLU",
        Behind::Residual => " with residual and ReLU",
    };
    let also = if gradient { ", with gradient" } else { "" };
    by_kernel(
        "batch_norm",
        format!("batch normalization{follows}, 16x56x56x256{also}"),
        "two passes over the images, and what follows is done in the second; XLA:CPU makes a pass for each sum",
        build,
    )
}

fn max_pool(gradient: bool) -> Row {
    let build = move |g: &Graph| {
        let x = g.parameter("x", Shape::f32([16, 112, 112, 64]));
        let pool = Pool2d {
            size: [3, 3],
            strides: [2, 2],
            padding: [(0, 1), (0, 1)],
        };
        let y = x.max_pool2d(pool);
        let slope = match gradient {
            true => pulled_back(g, &y, &[&x]),
            false => Vec::new(),
        };
        [vec![y], slope].concat()
    };
    let also = if gradient { ", with gradient" } else { "" };
    by_kernel(
        "max_pool",
        format!("max pooling 3x3/2, 16x112x112x64{also}"),
        "the kernel remembers the place of each maximum in a byte, where XLA:CPU compares again; on this machine it gains nothing alone",
        build,
    )
}

fn pool_after_norm() -> Row {
    let build = |g: &Graph| {
        let x = g.parameter("x", Shape::f32([32, 56, 56, 32]));
        let [gamma, beta] = ["gamma", "beta"].map(|name| g.parameter(name, Shape::f32([32])));
        let [y, ..] = x.batch_norm(&gamma, &beta, 1e-3);
        let y = y.maximum(&y.like(0.0)).max_pool2d(Pool2d {
            size: [2, 2],
            strides: [2, 2],
            padding: [(0, 0); 2],
        });
        [vec![y.clone()], pulled_back(g, &y, &[&x, &gamma, &beta])].concat()
    };
    by_kernel(
        "pool_after_norm",
        "batch normalization, ReLU, max pooling 2x2, 32x56x56x32, with gradient".to_owned(),
        "places of the maxima are found once, whoever computes them",
        build,
    )
}

fn global_max() -> Row {
    let build = |g: &Graph| {
        let x = g.parameter("x", Shape::f32([64, 128, 256]));
        let y = x.tanh().max(&[1]);
        [vec![y.clone()], pulled_back(g, &y, &[&x])].concat()
    };
    Row {
        name: "global_max",
        shown: "tanh, maximum over the steps of 64x128x256, with gradient".to_owned(),
        why: "the derivative compares numbers of one tensor, kept for it",
        forms: vec![Form::new("XLA", build)],
    }
}

/// The gradients of the product of `y` with another input, as a layer above would send one.
fn pulled_back(g: &Graph, y: &Tensor, wrt: &[&Tensor]) -> Vec<Tensor> {
    let above = g.parameter("above", y.shape());
    let slopes = gradients(&(y * &above).sum_all(), wrt);
    slopes.into_iter().flatten().collect()
}
