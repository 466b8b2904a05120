//! The StableHLO text of small graphs, kept in `tests/golden/stablehlo` so that a change of what is compiled is seen.

#[path = "support/golden.rs"]
mod golden;
mod support;

use phalanx_graph::op::{ConvDims, ConvSpec, DotDims, ReduceOp, Via, WindowDim};
use phalanx_graph::{
    DType, Graph, HostAllReduce, HostTensor, KernelSupport, Lowering, Mesh, Op, Platform, Pool2d,
    Program, Shape, Sharding, Tensor, gradients,
};

const COMMAND: &str = "cargo test -p phalanx-graph --test golden";

type Build = fn() -> Program;

/// Name of the file and of the module, and the graph. A whole training step belongs to the crate that builds it.
const CASES: [(&str, Build); 15] = [
    ("elementwise_broadcast", elementwise_broadcast),
    ("dense_gradient", dense_gradient),
    ("conv_gradient", conv_gradient),
    ("pointwise_conv_gradient", pointwise_conv_gradient),
    ("max_pool_gradient", max_pool_gradient),
    ("embedding_gradient", embedding_gradient),
    ("while_loop", while_loop),
    ("scan_gradient", scan_gradient),
    ("case", case),
    ("all_reduce", all_reduce),
    ("all_reduce_ways", all_reduce_ways),
    ("dropout_bits", dropout_bits),
    ("softmax_cross_entropy", softmax_cross_entropy),
    ("mixed_bf16", mixed_bf16),
    ("literals", literals),
];

fn text(name: &str, program: &Program) -> String {
    program
        .simplified()
        .to_stablehlo(&Lowering::new(Platform::Cpu, name))
}

#[test]
fn the_text_is_as_it_was() {
    let wrong: Vec<String> = CASES
        .iter()
        .filter_map(|(name, build)| golden::mismatch(name, &text(name, &build()), COMMAND))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn kernels_are_called_where_they_are() {
    let lowering = Lowering {
        kernels: Some(KernelSupport { bf16: false }),
        ..Lowering::new(Platform::Cpu, "kernels")
    };
    let programs: [(&str, Build); 2] = [("kernels", kernels), ("rectified", rectified)];
    for (name, build) in programs {
        let text = build().simplified().to_stablehlo(&lowering);
        assert_eq!(golden::mismatch(name, &text, COMMAND), None);
    }
}

/// A value that goes into a ReLU and, by one operand, into something else.
#[test]
fn a_rectifier_beside_another_use_is_not_joined() {
    let graph = Graph::new();
    let x = f32s(&graph, "x", &[2, 4, 4, 3]);
    let [gamma, beta] = ["gamma", "beta"].map(|name| f32s(&graph, name, &[3]));
    let [y, ..] = x.batch_norm(&gamma, &beta, 1e-3);
    let outputs = [("relu", &y.maximum(&y.like(0.0))), ("tanh", &y.tanh())];
    let program = graph.finish(&outputs).unwrap().simplified();
    let lowering = Lowering {
        kernels: Some(KernelSupport { bf16: false }),
        ..Lowering::new(Platform::Cpu, "beside")
    };
    let text = program.to_stablehlo(&lowering);
    assert!(
        text.contains("\"relu\" = false") && text.contains("stablehlo.maximum"),
        "{text}"
    );
}

#[test]
fn kernels_are_called_in_branches_by_as_many_as_compute_at_once() {
    let g = Graph::new();
    let (x, kernel, bias) = (
        f32s(&g, "x", &[128, 32, 32, 8]),
        f32s(&g, "kernel", &[3, 3, 8, 8]),
        f32s(&g, "bias", &[8]),
    );
    let given = [&x, &kernel, &bias];
    let dims = of_images(1);
    let index = g.parameter("index", Shape::scalar(DType::I32));
    let sums = g.case(&index, &given, 2, |number, given| {
        let rows = given[0].slice_dim(0, 0, 128 >> number);
        let y = rows.conv(&given[1], dims.clone());
        vec![(&y + given[2].broadcast_in(&y.dims(), &[3])).sum_all()]
    });
    let program = g.finish(&[("sum", &sums[0])]).unwrap().simplified();
    assert!(program.gains_from_kernels());
    let lowering = Lowering {
        kernels: Some(KernelSupport { bf16: false }),
        other_devices: 2,
        ..Lowering::new(Platform::Cpu, "branches")
    };
    let text = program.to_stablehlo(&lowering);
    // With the bias, which needs no pass of its own.
    let calls = |line: &&str| line.contains("@\"phalanx.conv\"") && line.contains("%arg2");
    let calls: Vec<&str> = text.lines().filter(calls).collect();
    assert_eq!(calls.len(), 2, "{text}");
    assert!(calls.iter().all(|call| call.contains("\"replicas\" = 3")));
    assert!(!text.contains("broadcast_in_dim"), "{text}");
}

/// Run by the tests of replicas.
#[test]
fn sums_are_calls_in_one_order() {
    let lowering = Lowering {
        host_all_reduce: Some(HostAllReduce {
            timeout_seconds: 60,
        }),
        ..Lowering::new(Platform::Cpu, "sums")
    };
    let text = sums(ReduceOp::Sum).simplified().to_stablehlo(&lowering);
    assert_eq!(golden::mismatch("sums", &text, COMMAND), None);
    for program in [sums(ReduceOp::Max), all_reduce(), scan_gradient()] {
        assert!(
            !program
                .simplified()
                .to_stablehlo(&lowering)
                .contains("@phalanx")
        );
    }
}

/// Two exchanges that do not depend on each other.
fn sums(second: ReduceOp) -> Program {
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

/// Compiled by the tests of the engine, which have as many devices.
#[test]
fn a_mesh_is_told_to_the_partitioner() {
    let text = text("sharded_gradient", &sharded_gradient());
    assert_eq!(golden::mismatch("sharded_gradient", &text, COMMAND), None);
}

#[test]
fn gradients_and_simplification_keep_constraints() {
    let program = sharded_gradient().simplified();
    let constrained = |op: &Op| matches!(op, Op::Sharded(_));
    let count = program.nodes.iter().filter(|node| constrained(&node.op));
    // That of the hidden layer and its gradient, and that of the kernel's update.
    assert_eq!(count.count(), 3, "{}", program.dump());
}

#[test]
fn only_convolutions_take_bf16() {
    let lowering = Lowering {
        kernels: Some(KernelSupport { bf16: true }),
        ..Lowering::new(Platform::Cpu, "kernels_bf16")
    };
    let text = bf16_kernels().simplified().to_stablehlo(&lowering);
    assert_eq!(golden::mismatch("kernels_bf16", &text, COMMAND), None);
    let calls = text.lines().filter(|line| line.contains("@phalanx."));
    for call in calls {
        let convolves = call.contains("@phalanx.conv");
        assert_eq!(call.contains("bf16"), convolves, "{call}");
    }
}

#[test]
fn the_compiler_takes_it() {
    for (name, build) in CASES {
        let program = build();
        support::compile_text(&text(name, &program), program.replicas);
    }
}

#[test]
fn a_difference_is_shown() {
    let shown = golden::diff("a\nb\nc\nd\ne\nf", "a\nb\nc\nD\ne\nf\ng");
    assert_eq!(
        shown,
        "   2   b\n   3   c\n   4 - d\n   5 + D\n   5   e\n   6   f\n   7 + g"
    );
}

#[test]
fn a_missing_file_says_how_to_write_it() {
    if std::env::var_os("PHALANX_UPDATE_GOLDEN").is_none() {
        let told = golden::mismatch("no_such_file", "", COMMAND).unwrap();
        assert!(
            told.contains("PHALANX_UPDATE_GOLDEN=1 cargo test"),
            "{told}"
        );
    }
}

fn f32s(g: &Graph, name: &str, dims: &[usize]) -> Tensor {
    g.parameter(name, Shape::f32(dims))
}

/// Column-parallel, then row-parallel: the batch over one axis, the hidden features over the other.
fn sharded_gradient() -> Program {
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
fn of_images(padding: usize) -> ConvDims {
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
fn with_gradients(g: &Graph, loss: &Tensor, wrt: &[(&str, &Tensor)]) -> Program {
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

fn elementwise_broadcast() -> Program {
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

fn dense_gradient() -> Program {
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

fn conv_dims(strides: [usize; 2], padding: [(i64, i64); 2], feature_groups: usize) -> ConvDims {
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

fn conv_gradient() -> Program {
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

fn pointwise_conv_gradient() -> Program {
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

fn max_pool_gradient() -> Program {
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

fn embedding_gradient() -> Program {
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

fn while_loop() -> Program {
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

fn case() -> Program {
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

fn scan_gradient() -> Program {
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

fn all_reduce() -> Program {
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
fn all_reduce_ways() -> Program {
    let g = Graph::with_replicas(4);
    let (a, b) = (f32s(&g, "a", &[2, 3]), f32s(&g, "b", &[]));
    let ways = [Via::Native, Via::OneDevice, Via::Hierarchical];
    let sums =
        ways.map(|via| g.labelled(via.name(), || g.all_reduce(&[&a, &b], ReduceOp::Sum, via)));
    let outputs: Vec<_> = sums.iter().flatten().map(|sum| ("sum", sum)).collect();
    g.finish(&outputs).unwrap()
}

fn dropout_bits() -> Program {
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
fn kernels() -> Program {
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
fn rectified() -> Program {
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

/// A convolution, a batch normalization with a rectifier and a pool of bf16, and their gradients.
fn bf16_kernels() -> Program {
    let g = Graph::new();
    let bf16 = |name: &str, dims: &[usize]| g.parameter(name, Shape::new(DType::Bf16, dims));
    let (x, kernel) = (bf16("x", &[2, 8, 8, 4]), bf16("kernel", &[3, 3, 4, 6]));
    let (gamma, beta) = (bf16("gamma", &[6]), bf16("beta", &[6]));
    let dims = of_images(1);
    let [y, ..] = x.conv(&kernel, dims).batch_norm(&gamma, &beta, 0.001);
    let y = y.maximum(&y.like(0.0)).max_pool2d(Pool2d {
        size: [2, 2],
        strides: [2, 2],
        padding: [(0, 0); 2],
    });
    let loss = y.square().sum_all();
    with_gradients(&g, &loss, &[("kernel", &kernel), ("gamma", &gamma)])
}

fn softmax_cross_entropy() -> Program {
    let g = Graph::new();
    let logits = f32s(&g, "logits", &[8, 10]);
    let labels = g.parameter("labels", Shape::new(DType::I32, [8]));
    let weight = f32s(&g, "weight", &[8]);
    let chosen = logits.log_softmax(1) * labels.one_hot(10, DType::F32);
    let loss = (-chosen.sum(&[1]) * &weight).sum_all() / weight.sum_all();
    with_gradients(&g, &loss, &[("logits", &logits)])
}

fn mixed_bf16() -> Program {
    let g = Graph::new();
    let (x, kernel) = (f32s(&g, "x", &[8, 5]), f32s(&g, "dense/kernel", &[5, 3]));
    let narrow = |tensor: &Tensor| tensor.convert(DType::Bf16);
    let y = g.labelled("dense", || narrow(&x).matmul(&narrow(&kernel)).logistic());
    let loss =
        y.convert(DType::F32).square().mean_all() + y.sum(&[0]).convert(DType::F32).sum_all();
    with_gradients(&g, &loss, &[("dense/kernel", &kernel)])
}

fn literals() -> Program {
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

/// On the CPU two contracted dims at the front become one, but in 16-bit floats.
#[test]
fn products_over_sequences_are_matrices() {
    let text = |dtype| {
        let g = Graph::new();
        let x = g.parameter("x", Shape::new(dtype, [2, 3, 4]));
        let y = g.parameter("y", Shape::new(dtype, [2, 3, 5]));
        let dims = DotDims {
            lhs_batch: vec![],
            rhs_batch: vec![],
            lhs_contract: vec![0, 1],
            rhs_contract: vec![0, 1],
            dtype: DType::F32,
        };
        let program = g.finish(&[("z", &x.dot(&y, dims))]).unwrap();
        program.to_stablehlo(&Lowering::new(Platform::Cpu, "products"))
    };
    assert!(text(DType::F32).contains("contracting_dims = [0] x [0]"));
    assert!(text(DType::Bf16).contains("contracting_dims = [0, 1] x [0, 1]"));
}

#[test]
fn large_products_are_calls_where_they_are_registered() {
    let calls = |dtype, rows: usize, products| {
        let g = Graph::new();
        let x = g.parameter("x", Shape::new(dtype, [rows, 128, 256]));
        let w = g.parameter("w", Shape::new(dtype, [256, 4, 64]));
        let dims = DotDims {
            lhs_batch: vec![],
            rhs_batch: vec![],
            lhs_contract: vec![2],
            rhs_contract: vec![0],
            dtype,
        };
        let y = x.dot(&w, dims);
        let loss = y.square().mean_all();
        let slopes: Vec<_> = gradients(&loss, &[&x, &w]).into_iter().flatten().collect();
        let program = g.finish(&[("x", &slopes[0]), ("w", &slopes[1])]).unwrap();
        let program = program.simplified();
        let lowering = Lowering {
            host_matmul: products,
            ..Lowering::new(Platform::Cpu, "calls")
        };
        let text = program.to_stablehlo(&lowering);
        let found = text.matches("phalanx.product").count();
        assert_eq!(
            found > 0,
            products && program.gains_from_host_matmul(),
            "{text}"
        );
        // Each takes its share of the threads where two devices compute at once.
        let beside = Lowering {
            other_devices: 1,
            ..lowering
        };
        let shares = program.to_stablehlo(&beside);
        let shares = shares
            .lines()
            .filter(|line| line.contains("phalanx.product"));
        let shares = shares.filter(|line| line.contains(r#""replicas" = 2 : i64"#));
        assert_eq!(shares.count(), found);
        assert!(!text.contains(r#""replicas" ="#));
        found
    };
    assert_eq!(calls(DType::F32, 16, true), 3);
    assert_eq!(calls(DType::F32, 16, false), 0);
    assert_eq!(calls(DType::F32, 1, true), 0);
    assert_eq!(calls(DType::Bf16, 16, true), 0);
}

#[test]
fn products_of_bf16_are_widened_where_no_instruction_makes_them() {
    let program = mixed_bf16().simplified();
    let products = |native_bf16_dot| {
        let lowering = Lowering {
            native_bf16_dot,
            ..Lowering::new(Platform::Cpu, "widened")
        };
        let text = program.to_stablehlo(&lowering);
        let dots = text.lines().filter(|line| line.contains("dot_general"));
        let dots: Vec<bool> = dots.map(|line| line.contains("bf16")).collect();
        assert!(!dots.is_empty(), "{text}");
        dots
    };
    assert!(products(true).contains(&true));
    assert!(!products(false).contains(&true));
}
