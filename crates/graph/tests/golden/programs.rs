//! The programs whose text is kept.

use phalanx_graph::op::{ConvDims, ConvSpec, ReduceOp, Via, WindowDim};
use phalanx_graph::{
    DType, Graph, HostTensor, Mesh, Pool2d, Program, Shape, Sharding, Tensor, gradients,
};

/// Two exchanges that do not depend on each other.
pub(crate) fn sums(second: ReduceOp) -> Program {
    let g = Graph::with_replicas(2);
    let (a, b, c) = (
        f32s(&g, "a", &[3]),
        f32s(&g, "b", &[]),
        f32s(&g, "c", &[2, 4]),
    );
    let first = g.all_reduce(&[&a, &b], ReduceOp::Sum, Via::Native);
    let second = c.all_reduce(second);
    let outputs = [("a", &first[0]), ("b", &first[1]), ("c", &second)];
    g.finish(&outputs).unwrap()
}

pub(crate) fn f32s(g: &Graph, name: &str, dims: &[usize]) -> Tensor {
    g.parameter(name, Shape::f32(dims))
}

/// Column-parallel, then row-parallel: the batch over one axis, the hidden features over the other.
pub(crate) fn sharded_gradient() -> Program {
    let g = Graph::with_mesh(&Mesh::new([("data", 2), ("model", 2)]));
    let (columns, rows) = (
        Sharding::new([None, Some("model")]),
        Sharding::rows("model", 2),
    );
    let x = g.parameter_sharded("x", Shape::f32([8, 4]), &Sharding::rows("data", 2));
    let kernel = g.parameter_sharded("kernel", Shape::f32([4, 6]), &columns);
    let out = g.parameter_sharded("out", Shape::f32([6, 3]), &rows);
    let hidden = x.matmul(&kernel).tanh();
    let hidden = hidden.sharded(&Sharding::new([Some("data"), Some("model")]));
    let loss = hidden.matmul(&out).square().mean_all();
    let slope = gradients(&loss, &[&kernel]).remove(0).unwrap();
    let next = (&kernel - slope * 0.1).sharded(&columns).sharded(&columns);
    let mut program = g.finish(&[("kernel", &next), ("loss", &loss)]).unwrap();
    program.donated = vec![(1, 0)];
    program
}

/// A convolution of images in steps of 1, with so much padding on every side.
pub(crate) fn of_images(padding: usize) -> ConvDims {
    let padding = padding as i64;
    ConvDims {
        input: ConvSpec::channels_last(2),
        kernel: ConvSpec::kernel(2),
        output: ConvSpec::channels_last(2),
        strides: vec![1; 2],
        padding: vec![(padding, padding); 2],
        input_dilation: vec![1; 2],
        kernel_dilation: vec![1; 2],
        feature_groups: 1,
        batch_groups: 1,
    }
}

/// A program of the loss and its gradients.
pub(crate) fn with_gradients(g: &Graph, loss: &Tensor, wrt: &[(&str, &Tensor)]) -> Program {
    let tensors: Vec<&Tensor> = wrt.iter().map(|(_, tensor)| *tensor).collect();
    let found: Vec<Tensor> = gradients(loss, &tensors)
        .into_iter()
        .map(Option::unwrap)
        .collect();
    let mut outputs = vec![("loss", loss)];
    outputs.extend(
        wrt.iter()
            .zip(&found)
            .map(|((name, _), gradient)| (*name, gradient)),
    );
    g.finish(&outputs).unwrap()
}

pub(crate) fn elementwise_broadcast() -> Program {
    let g = Graph::new();
    let (x, bias) = (f32s(&g, "x", &[4, 3]), f32s(&g, "bias", &[3]));
    let column = f32s(&g, "column", &[4, 1]);
    let shifted = g.labelled("shift", || (&x + &bias).maximum(&x.like(0.0)));
    let y = (shifted * &column).tanh() * 0.5;
    let y = x.greater(&column).select(&y, &(y.exp() - 1.0));
    let mut program = g
        .finish(&[("y", &y), ("largest", &y.max(&[0, 1]))])
        .unwrap();
    program.donated = vec![(0, 0)];
    program
}

pub(crate) fn dense_gradient() -> Program {
    let g = Graph::new();
    let (x, kernel, bias) = (
        f32s(&g, "x", &[8, 5]),
        f32s(&g, "dense/kernel", &[5, 3]),
        f32s(&g, "dense/bias", &[3]),
    );
    let y = g.labelled("dense", || {
        (x.matmul(&kernel) + &bias).maximum(&x.like(0.0))
    });
    let loss = y.square().mean_all();
    with_gradients(
        &g,
        &loss,
        &[("dense/kernel", &kernel), ("dense/bias", &bias)],
    )
}

pub(crate) fn conv_dims(
    strides: [usize; 2],
    padding: [(i64, i64); 2],
    feature_groups: usize,
) -> ConvDims {
    ConvDims {
        input: ConvSpec::channels_last(2),
        kernel: ConvSpec::kernel(2),
        output: ConvSpec::channels_last(2),
        strides: strides.to_vec(),
        padding: padding.to_vec(),
        input_dilation: vec![1; 2],
        kernel_dilation: vec![1; 2],
        feature_groups,
        batch_groups: 1,
    }
}

pub(crate) fn conv_gradient() -> Program {
    let g = Graph::new();
    let (x, kernel) = (
        f32s(&g, "x", &[2, 7, 6, 4]),
        f32s(&g, "conv/kernel", &[3, 3, 2, 6]),
    );
    let y = g.labelled("conv", || {
        x.conv(&kernel, conv_dims([2, 2], [(1, 1), (0, 1)], 2))
    });
    with_gradients(
        &g,
        &y.square().sum_all(),
        &[("x", &x), ("conv/kernel", &kernel)],
    )
}

pub(crate) fn pointwise_conv_gradient() -> Program {
    let g = Graph::new();
    let (x, kernel) = (
        f32s(&g, "x", &[2, 4, 4, 3]),
        f32s(&g, "conv/kernel", &[1, 1, 3, 5]),
    );
    let y = g.labelled("conv", || {
        x.conv(&kernel, conv_dims([2, 1], [(0, 0); 2], 1))
    });
    with_gradients(
        &g,
        &y.square().sum_all(),
        &[("x", &x), ("conv/kernel", &kernel)],
    )
}

pub(crate) fn max_pool_gradient() -> Program {
    let g = Graph::new();
    let x = f32s(&g, "x", &[2, 5, 5, 3]);
    let side = WindowDim {
        size: 2,
        stride: 2,
        ..WindowDim::identity()
    };
    let window = [WindowDim::identity(), side, side, WindowDim::identity()];
    let y = g.labelled("pool", || x.reduce_window(ReduceOp::Max, &window));
    with_gradients(&g, &y.square().sum_all(), &[("x", &x)])
}

pub(crate) fn embedding_gradient() -> Program {
    let g = Graph::new();
    let table = f32s(&g, "embedding/table", &[100, 8]);
    let ids = g.parameter("ids", Shape::new(DType::I32, [4, 6]));
    let rows = g.labelled("embedding", || table.gather(&ids, 0));
    with_gradients(
        &g,
        &rows.mean(&[1]).square().sum_all(),
        &[("embedding/table", &table)],
    )
}

pub(crate) fn while_loop() -> Program {
    let g = Graph::new();
    let (x, limit) = (f32s(&g, "x", &[3]), f32s(&g, "limit", &[]));
    let steps = g.scalar(DType::I32, 0.0);
    let results = g.while_loop(
        &[&x, &steps, &limit],
        |c| c[0].square().sum_all().less(&c[2]),
        |c| vec![&c[0] * 2.0, &c[1] + 1.0, c[2].clone()],
    );
    g.finish(&[("x", &results[0]), ("steps", &results[1])])
        .unwrap()
}

pub(crate) fn case() -> Program {
    let g = Graph::new();
    let (x, index) = (
        f32s(&g, "x", &[6, 2]),
        g.parameter("index", Shape::scalar(DType::I32)),
    );
    let results = g.labelled("parts", || {
        g.case(&index, &[&x], 2, |number, given| {
            let rows = given[0].slice_dim(0, 0, 6 - 2 * number);
            vec![rows.exp().sum(&[0]), given[0].clone()]
        })
    });
    g.finish(&[("sum", &results[0]), ("x", &results[1])])
        .unwrap()
}

pub(crate) fn scan_gradient() -> Program {
    let g = Graph::new();
    let (x, state, kernel) = (
        f32s(&g, "x", &[6, 2, 3]),
        f32s(&g, "state", &[2, 4]),
        f32s(&g, "rnn/kernel", &[7, 4]),
    );
    let (last, _) = g.labelled("rnn", || {
        g.scan(6, &[&state], &[&x], &[&kernel], |carry, row, constant| {
            let both = Tensor::concat(&[&row[0], &carry[0]], 1);
            (vec![both.matmul(&constant[0]).tanh()], Vec::new())
        })
    });
    with_gradients(
        &g,
        &last[0].sum_all(),
        &[("rnn/kernel", &kernel), ("state", &state)],
    )
}

pub(crate) fn all_reduce() -> Program {
    let g = Graph::with_replicas(2);
    let (x, count) = (
        f32s(&g, "gradient", &[4, 3]),
        g.parameter("count", Shape::new(DType::I32, [])),
    );
    let total = x.all_reduce(ReduceOp::Sum) / count.all_reduce(ReduceOp::Sum).convert(DType::F32);
    let own = x.reduce_scatter(0);
    let outputs = [
        ("mean", &total),
        ("own rows", &own),
        ("all rows", &own.all_gather(0)),
        ("next", &x.collective_permute(&[(0, 1), (1, 0)])),
        ("replica", &g.replica_id()),
    ];
    g.finish(&outputs).unwrap()
}

/// Two tensors summed in each way, by replicas that make two groups.
pub(crate) fn all_reduce_ways() -> Program {
    let g = Graph::with_replicas(4);
    let (a, b) = (f32s(&g, "a", &[2, 3]), f32s(&g, "b", &[]));
    let ways = [Via::Native, Via::OneDevice, Via::Hierarchical];
    let sums =
        ways.map(|via| g.labelled(via.name(), || g.all_reduce(&[&a, &b], ReduceOp::Sum, via)));
    let outputs: Vec<_> = sums.iter().flatten().map(|sum| ("sum", sum)).collect();
    g.finish(&outputs).unwrap()
}

pub(crate) fn dropout_bits() -> Program {
    let g = Graph::new();
    let x = f32s(&g, "x", &[4, 6]);
    let key = g.parameter("key", Shape::new(DType::U32, [2]));
    let row = g.parameter("first row", Shape::new(DType::U32, []));
    let bits = g.labelled("dropout", || g.random_bits(&key, &row, &[4, 6]));
    let keep = bits.less(&bits.like(0.75 * 4_294_967_296.0));
    let y = keep.select(&(&x / 0.75), &x.zeros_like());
    g.finish(&[("y", &y)]).unwrap()
}

/// A grouped convolution of bf16 images, a pool, a biased convolution and a batch normalization with what follows,
/// which have kernels of their own, and a 1d convolution, which has not.
pub(crate) fn kernels() -> Program {
    let g = Graph::new();
    let x = g.parameter("x", Shape::new(DType::Bf16, [2, 9, 9, 4]));
    let (kernel, line) = (
        g.parameter("kernel", Shape::new(DType::Bf16, [3, 3, 2, 6])),
        f32s(&g, "line", &[3, 6, 2]),
    );
    let dims = |spatial: usize, groups| ConvDims {
        input: ConvSpec::channels_last(spatial),
        kernel: ConvSpec::kernel(spatial),
        output: ConvSpec::channels_last(spatial),
        strides: vec![2; spatial],
        padding: vec![(0, 1); spatial],
        input_dilation: vec![1; spatial],
        kernel_dilation: vec![1; spatial],
        feature_groups: groups,
        batch_groups: 1,
    };
    let pool = Pool2d {
        size: [3, 2],
        strides: [2, 1],
        padding: [(1, 0), (0, 1)],
    };
    let (gamma, beta) = (f32s(&g, "gamma", &[6]), f32s(&g, "beta", &[6]));
    let y = x
        .conv(&kernel, dims(2, 2))
        .max_pool2d(pool)
        .convert(DType::F32);
    let bias = f32s(&g, "bias", &[6]);
    let pointwise = f32s(&g, "pointwise", &[1, 1, 6, 6]);
    let biased = y.conv(
        &pointwise,
        ConvDims {
            strides: vec![1; 2],
            padding: vec![(0, 0); 2],
            ..dims(2, 1)
        },
    );
    let biased = (biased + bias.broadcast_in(&y.dims(), &[3])).maximum(&y.like(0.0));
    let [clipped, ..] = biased.batch_norm(&gamma, &beta, 0.001);
    let [normal, ..] = clipped.clamp(0.0, 6.0).batch_norm(&gamma, &beta, 0.002);
    let y = (&y + &normal).maximum(&y.like(0.0));
    let rows = y.convert(DType::F32).reshape(&[2, 8, 6]);
    let loss = rows.conv(&line, dims(1, 1)).square().sum_all();
    with_gradients(
        &g,
        &loss,
        &[("x", &x), ("kernel", &kernel), ("line", &line)],
    )
}

/// Two biased convolutions, with a ReLU and a ReLU6, and a pool of the latter, and their gradients: the ReLUs are parts of calls
/// both ways, but for the ceiling's selection.
pub(crate) fn rectified() -> Program {
    let g = Graph::new();
    let x = f32s(&g, "x", &[2, 8, 8, 4]);
    let kernels = [
        f32s(&g, "first", &[3, 3, 4, 6]),
        f32s(&g, "second", &[3, 3, 6, 6]),
    ];
    let bias = f32s(&g, "bias", &[6]);
    let dims = of_images(0);
    let biased = |x: &Tensor, kernel: &Tensor| {
        let y = x.conv(kernel, dims.clone());
        &y + bias.broadcast_in(&y.dims(), &[3])
    };
    let y = biased(&x, &kernels[0]);
    let y = y.maximum(&y.like(0.0));
    let y = biased(&y, &kernels[1]).clamp(0.0, 6.0).max_pool2d(Pool2d {
        size: [2, 2],
        strides: [2, 2],
        padding: [(0, 0); 2],
    });
    let [first, second] = &kernels;
    let wrt = [("first", first), ("second", second), ("bias", &bias)];
    with_gradients(&g, &y.square().sum_all(), &wrt)
}

/// A biased convolution, a batch normalization with a rectifier and a pool of bf16, and their gradients, under a mixed policy.
pub(crate) fn bf16_kernels() -> Program {
    let g = Graph::new();
    let bf16 = |name: &str, dims: &[usize]| g.parameter(name, Shape::new(DType::Bf16, dims));
    let (x, kernel) = (bf16("x", &[64, 8, 8, 4]), bf16("kernel", &[3, 3, 4, 6]));
    let (bias, gamma, beta) = (
        bf16("bias", &[6]),
        f32s(&g, "gamma", &[6]),
        f32s(&g, "beta", &[6]),
    );
    let y = x.conv(&kernel, of_images(1));
    let y = &y + &bias.broadcast_in(&y.dims(), &[3]);
    let [y, ..] = y.batch_norm(&gamma, &beta, 0.001);
    let y = y.maximum(&y.like(0.0));
    // Here its gradient is a sum; before a normalization it is 0.
    let y = (&y + &bias.broadcast_in(&y.dims(), &[3])).max_pool2d(Pool2d {
        size: [2, 2],
        strides: [2, 2],
        padding: [(0, 0); 2],
    });
    let loss = y.square().sum_all();
    let wrt = [("kernel", &kernel), ("bias", &bias), ("gamma", &gamma)];
    with_gradients(&g, &loss, &wrt)
}

pub(crate) fn softmax_cross_entropy() -> Program {
    let g = Graph::new();
    let logits = f32s(&g, "logits", &[8, 10]);
    let labels = g.parameter("labels", Shape::new(DType::I32, [8]));
    let weight = f32s(&g, "weight", &[8]);
    let chosen = logits.log_softmax(1) * labels.one_hot(10, DType::F32);
    let loss = (-chosen.sum(&[1]) * &weight).sum_all() / weight.sum_all();
    with_gradients(&g, &loss, &[("logits", &logits)])
}

pub(crate) fn mixed_bf16() -> Program {
    let g = Graph::new();
    let (x, kernel) = (f32s(&g, "x", &[8, 5]), f32s(&g, "dense/kernel", &[5, 3]));
    let narrow = |tensor: &Tensor| tensor.convert(DType::Bf16);
    let y = g.labelled("dense", || narrow(&x).matmul(&narrow(&kernel)).logistic());
    let loss =
        y.convert(DType::F32).square().mean_all() + y.sum(&[0]).convert(DType::F32).sum_all();
    with_gradients(&g, &loss, &[("dense/kernel", &kernel)])
}

pub(crate) fn literals() -> Program {
    let g = Graph::new();
    let numbers = [
        0.1f32,
        -0.0,
        1e-30,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        16_777_216.0,
        f32::MIN_POSITIVE,
    ];
    let bytes: Vec<u8> = (0..=255).collect();
    let many: Vec<f64> = (0..65).map(|i| f64::from(i) / 64.0).collect();
    let constants: Vec<Tensor> = [
        HostTensor::new([2, 4], &numbers),
        HostTensor::scalar(f64::NAN),
        HostTensor::new([2], &[i64::MIN, i64::MAX]),
        HostTensor::new([2, 128], &bytes),
        HostTensor::new([65], &many),
        HostTensor::new([5], &many[..5]).convert(DType::Bf16),
        HostTensor::new([3], &[true, false, true]),
        HostTensor::full(Shape::new(DType::F16, [1000]), 0.1),
        HostTensor::zeros(Shape::f32([0, 3])),
    ]
    .map(|value| g.constant(value))
    .to_vec();
    let named: Vec<(&str, &Tensor)> = constants.iter().map(|tensor| ("literal", tensor)).collect();
    g.finish(&named).unwrap()
}
