//! Every op at least once, compared with the interpreter in f64 as all programs of this binary are.
//!
//! Ops that only derivatives and fusion make are written as nodes, in the variants that devices with kernels see.

use std::collections::BTreeSet;
use std::panic::Location;

use phalanx_graph::op::{
    BinaryOp, CompareOp, ConvDims, ConvSpec, Node, PadDim, ReduceOp, SliceDim, Subgraph, UnaryOp,
    Via, WindowDim,
};
use phalanx_graph::{
    DType, FusedActivation, Graph, HostTensor, Kernel, Mask, Mesh, Op, Pool2d, Program, Shape,
    Sharding, Tensor, Value,
};

use crate::cases::sample;
use crate::support;

/// The names of an enum's variants, and which of them a value is: where a variant is missing this does not compile.
macro_rules! variants {
    ($all:ident, $name:ident: $type:ident { $($variant:ident)* }) => {
        const $all: &[&str] = &[$(stringify!($variant)),*];
        const fn $name(value: &$type) -> &'static str {
            match value {
                $($type::$variant { .. } => stringify!($variant)),*
            }
        }
    };
}
variants!(OPS, op_name: Op {
    Parameter Constant Iota Unary Binary Compare Select Convert Bitcast StopGradient WithGradient OptimizationBarrier Reshape Transpose
    Broadcast Reverse Pad Slice DynamicSlice DynamicUpdateSlice Concat Gather ScatterAdd ScatterSet ArgSort Dot Conv Reduce ReduceWindow
    RandomBits While Scan Case AllReduce AllGather ReduceScatter AllToAll CollectivePermute ReplicaId
    ExchangesSucceeded Sharded Kernel
    CustomCall
});
variants!(UNARY, unary_name: UnaryOp {
    Neg Abs Sign Exp Expm1 Log Log1p Sqrt Rsqrt Tanh Logistic Erf Sin Cos Floor Ceil Round Not IsFinite
});
variants!(BINARY, binary_name: BinaryOp {
    Add Sub Mul Div Pow Rem Max Min And Or Xor ShiftLeft ShiftRight
});
variants!(COMPARE, compare_name: CompareOp { Eq Ne Lt Le Gt Ge });
variants!(REDUCE, reduce_name: ReduceOp { Sum Prod Max Min And Or });
variants!(KERNELS, kernel_name: Kernel {
    ConvInputGradient ConvKernelGradient ConvBias BatchNorm BatchNormGradient MaxPool2d MaxPool2dGradient
    Lstm LstmGradient Gru GruGradient
});

type Names = BTreeSet<(&'static str, &'static str)>;

fn names(nodes: &[Node], found: &mut Names) {
    for node in nodes {
        found.insert(("op", op_name(&node.op)));
        let mut within = |body: &Subgraph| names(&body.nodes, found);
        let more = match &node.op {
            Op::Unary(op) => ("unary", unary_name(op)),
            Op::Binary(op) => ("binary", binary_name(op)),
            Op::Compare(op) => ("compare", compare_name(op)),
            Op::Reduce { kind, .. } => ("reduce", reduce_name(kind)),
            Op::ReduceWindow { kind, .. } => ("reduce window", reduce_name(kind)),
            Op::AllReduce { kind, .. } => ("all reduce", reduce_name(kind)),
            Op::Kernel(kernel) => ("kernel", kernel_name(kernel)),
            Op::Scan(scan) => {
                within(&scan.body);
                continue;
            }
            Op::While { condition, body } => {
                within(condition);
                within(body);
                continue;
            }
            Op::Case(branches) => {
                branches.iter().for_each(|branch| within(branch));
                continue;
            }
            _ => continue,
        };
        found.insert(more);
    }
}

/// A program under construction and its inputs, of one replica.
struct Draft {
    graph: Graph,
    inputs: Vec<HostTensor>,
    made: Vec<Tensor>,
}

impl Draft {
    fn new() -> Self {
        Self {
            graph: Graph::new(),
            inputs: Vec::new(),
            made: Vec::new(),
        }
    }

    fn input(&mut self, value: HostTensor) -> Tensor {
        let name = format!("in{}", self.inputs.len());
        let tensor = self.graph.parameter(&name, value.shape().clone());
        self.inputs.push(value);
        tensor
    }

    fn sample(&mut self, dtype: DType, dims: &[usize]) -> Tensor {
        self.input(sample(dtype, dims, self.inputs.len() as u32 + 1))
    }

    fn program(&self) -> Program {
        let named: Vec<(&str, &Tensor)> = self.made.iter().map(|tensor| ("out", tensor)).collect();
        self.graph.finish(&named).unwrap()
    }
}

fn functions(draft: &mut Draft, dtype: DType) {
    let (x, y) = (draft.sample(dtype, &[3, 4]), draft.sample(dtype, &[3, 4]));
    let base = x.abs() + 0.25;
    let by = (&y * 2.0).floor() + 0.5;
    draft.made.extend([
        -&x,
        x.abs(),
        x.sign(),
        x.exp(),
        x.expm1(),
        base.log(),
        base.log1p(),
        base.sqrt(),
        base.rsqrt(),
        x.tanh(),
        x.logistic(),
        x.erf(),
        x.sin(),
        x.cos(),
        x.floor(),
        x.ceil(),
        x.round(),
        x.is_finite(),
        &x + &y,
        &x - &y,
        &x * &y,
        &x / &by,
        base.pow(&y),
        x.remainder(&by),
        x.maximum(&y),
        x.minimum(&y),
        x.equal(&y),
        x.not_equal(&y),
        x.less(&y),
        x.less_equal(&y),
        x.greater(&y),
        x.greater_equal(&y),
        x.less(&y).select(&x, &y),
        x.convert(DType::I32),
        x.convert(DType::Bool),
        x.stop_gradient(),
        (&x * &y).with_gradient(&[&x], |cotangent, _| vec![cotangent.clone()]),
    ]);
    draft.made.extend(Tensor::optimization_barrier(&[&x, &y]));
}

fn functions_of_integers(draft: &mut Draft) {
    let a = draft.input(HostTensor::new([5], &[7i32, -7, i32::MIN, 12, i32::MAX]));
    let b = draft.input(HostTensor::new([5], &[2i32, 3, 31, 0, 33]));
    let p = draft.input(HostTensor::new([2, 2], &[true, false, true, true]));
    let bits = draft.input(HostTensor::new([2], &[0x7F80_0001u32, 0xC020_0000]));
    let key = draft.input(HostTensor::new([2], &[3u32, 4]));
    let row = draft.input(HostTensor::scalar(5u32));
    let random = draft.graph.random_bits(&key, &row, &[3, 5]);
    let (low, high) = (
        random.and(&random.like(65535.0)),
        random.shift_right(&random.like(16.0)),
    );
    draft.made.extend([
        &a + &b,
        &a * &b,
        &a / &b,
        &a % &b,
        a.pow(&b.maximum(&b.like(1.0))),
        a.and(&b),
        a.or(&b),
        a.xor(&b),
        a.not(),
        a.shift_left(&b),
        a.shift_right(&b),
        a.abs(),
        a.convert(DType::U8),
        bits.bitcast(DType::F32),
        p.reduce(ReduceOp::And, &[0]),
        p.reduce(ReduceOp::Or, &[1]),
        a.reduce(ReduceOp::And, &[0]),
        a.reduce(ReduceOp::Or, &[0]),
        low,
        high,
        draft.graph.iota(Shape::new(DType::U8, [2, 300]), 1),
        draft.graph.iota(Shape::f32([2, 3]), 0),
    ]);
    let window = [WindowDim::identity(), window(2, 1, 1, 1)];
    for kind in [ReduceOp::And, ReduceOp::Or] {
        draft.made.push(p.reduce_window(kind, &window));
    }
}

const fn window(size: usize, stride: usize, dilation: usize, low: usize) -> WindowDim {
    WindowDim {
        size,
        stride,
        dilation,
        low,
        high: low,
    }
}

fn movements(draft: &mut Draft, dtype: DType) {
    let x = draft.sample(dtype, &[3, 4]);
    let small = draft.sample(dtype, &[2, 2]);
    let updates = draft.sample(dtype, &[3, 2, 2]);
    let indices = draft.input(HostTensor::new([2, 2], &[1i32, -1, 9, 1]));
    let apart = draft.input(HostTensor::new([2, 2], &[1i32, -1, 9, 3]));
    let order = draft.input(HostTensor::new([5], &[7i32, -2, 7, 0, -2]));
    let (low, high) = (
        draft.input(HostTensor::scalar(-1i32)),
        draft.input(HostTensor::scalar(9i32)),
    );
    let pad = |low, high, interior| PadDim {
        low,
        high,
        interior,
    };
    let slice = |start, limit, stride| SliceDim {
        start,
        limit,
        stride,
    };
    draft.made.extend([
        x.reshape(&[2, 6]),
        x.transpose(&[1, 0]),
        x.broadcast_in(&[3, 2, 4], &[0, 2]),
        x.reverse(&[1]),
        x.pad(&[pad(1, -1, 2), pad(-1, 2, 0)], 0.5),
        x.slice(&[slice(0, 3, 2), slice(1, 4, 1)]),
        x.dynamic_slice(&[&low, &high], &[2, 2]),
        x.dynamic_update_slice(&small, &[&high, &low]),
        Tensor::concat(&[&x, &x], 0),
        x.gather(&indices, 1),
        x.scatter_add(&indices, &updates, 1),
        x.scatter_set(&apart, &updates, 1),
        order.argsort(),
    ]);
}

fn convolution() -> ConvDims {
    ConvDims {
        input: ConvSpec::channels_last(2),
        kernel: ConvSpec::kernel(2),
        output: ConvSpec::channels_last(2),
        strides: vec![2, 1],
        padding: vec![(1, 2), (0, 1)],
        input_dilation: vec![1, 1],
        kernel_dilation: vec![1, 2],
        feature_groups: 2,
        batch_groups: 1,
    }
}

fn contractions(draft: &mut Draft, dtype: DType) {
    let (x, y) = (draft.sample(dtype, &[3, 4]), draft.sample(dtype, &[4, 5]));
    let images = draft.sample(dtype, &[2, 5, 4, 4]);
    let kernel = draft.sample(dtype, &[3, 2, 2, 6]);
    draft.made.push(x.matmul(&y));
    draft.made.push(images.conv(&kernel, convolution()));
    let windows = [window(2, 2, 1, 1), window(3, 1, 1, 1)];
    for kind in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min] {
        draft.made.push(x.reduce(kind, &[1]));
        draft.made.push(x.reduce_window(kind, &windows));
    }
}

fn loops(draft: &mut Draft) {
    let (x, rows) = (
        draft.sample(DType::F32, &[2]),
        draft.sample(DType::F32, &[4, 2]),
    );
    let index = draft.input(HostTensor::scalar(7i32));
    let g = draft.graph.clone();
    let (last, each) = g.scan(4, &[&x], &[&rows], &[], |carry, row, _| {
        let next = &carry[0] * 0.5 + &row[0];
        (vec![next], vec![carry[0].clone()])
    });
    let small = |v: &[Tensor]| v[0].max(&[0]).less(&v[1]);
    let grow = |v: &[Tensor]| vec![&v[0] * 2.0, v[1].clone()];
    let limit = rows.max(&[0, 1]) + 64.0;
    let grown = g.while_loop(&[&(&x + 3.0), &limit], small, grow);
    let branch = g.case(&index, &[&x], 3, |i, v| vec![&v[0] * (i as f64 + 1.0)]);
    draft.made.extend([last, each, grown, branch].concat());
}

/// Everything that a graph of one replica is built of; other float types are the other tables'.
fn built() -> Draft {
    let mut draft = Draft::new();
    functions(&mut draft, DType::F32);
    movements(&mut draft, DType::F32);
    contractions(&mut draft, DType::F32);
    functions_of_integers(&mut draft);
    loops(&mut draft);
    draft
}

fn exchanges() -> (Program, Vec<Vec<HostTensor>>) {
    let g = Graph::with_replicas(2);
    let x = g.parameter("x", Shape::f32([4, 2]));
    let p = g.parameter("p", Shape::new(DType::Bool, [3]));
    let kinds = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min];
    let mut made: Vec<Tensor> = kinds.map(|kind| x.all_reduce(kind)).to_vec();
    for via in [Via::OneDevice, Via::Hierarchical] {
        made.extend(g.all_reduce(&[&x, &(&x * 2.0)], ReduceOp::Sum, via));
    }
    made.extend([
        p.all_reduce(ReduceOp::And),
        p.all_reduce(ReduceOp::Or),
        x.all_gather(1),
        x.reduce_scatter(0),
        x.all_to_all(0, 1),
        x.collective_permute(&[(1, 0)]),
        g.replica_id(),
        g.exchanges_succeeded(),
    ]);
    let named: Vec<(&str, &Tensor)> = made.iter().map(|tensor| ("out", tensor)).collect();
    let truth = |bits: [bool; 3]| HostTensor::new([3], &bits);
    let inputs = vec![
        vec![sample(DType::F32, &[4, 2], 1), truth([true, true, false])],
        vec![sample(DType::F32, &[4, 2], 2), truth([true, false, false])],
    ];
    (g.finish(&named).unwrap(), inputs)
}

/// A mesh of one device, on which nothing is cut.
fn sharded() -> Program {
    let g = Graph::with_mesh(&Mesh::new([("data", 1)]));
    let x = g.parameter("x", Shape::f32([4, 2]));
    let cut = x.sharded(&Sharding::rows("data", 2)) * 2.0;
    g.finish(&[("cut", &cut)]).unwrap()
}

/// Kernels as nodes over the parameters of a program.
struct Kernels {
    program: Program,
    inputs: Vec<HostTensor>,
}

impl Kernels {
    fn of(shapes: &[Shape]) -> Self {
        let g = Graph::new();
        let parameter = |(i, shape): (usize, &Shape)| g.parameter(&format!("in{i}"), shape.clone());
        let given: Vec<Tensor> = shapes.iter().enumerate().map(parameter).collect();
        let named: Vec<(&str, &Tensor)> = given.iter().map(|tensor| ("in", tensor)).collect();
        let inputs = shapes.iter().enumerate();
        Self {
            inputs: inputs
                .map(|(i, shape)| sample(shape.dtype, &shape.dims, i as u32 + 1))
                .collect(),
            program: g.finish(&named).unwrap(),
        }
    }

    /// The parameter at a place.
    fn given(&self, place: usize) -> Value {
        Value {
            node: self.program.parameters[place].node,
            output: 0,
        }
    }

    /// A kernel, whose results are outputs; its node.
    fn push(&mut self, kernel: Kernel, inputs: &[Value], outputs: &[&Shape]) -> usize {
        let (program, name) = (&mut self.program, format!("{kernel:?}"));
        let node = program.nodes.len();
        program.nodes.push(Node {
            op: Op::Kernel(kernel),
            inputs: inputs.to_vec(),
            shapes: outputs.iter().map(|&shape| shape.clone()).collect(),
            label: None,
            location: Location::caller(),
        });
        for (output, shape) in outputs.iter().enumerate() {
            let cut = Sharding::replicated(shape.rank());
            program.outputs.push((name.clone(), Value { node, output }));
            program.output_shardings.push(cut);
        }
        node
    }
}

const ACTIVATIONS: [FusedActivation; 3] = [
    FusedActivation::None,
    FusedActivation::Relu,
    FusedActivation::Clipped(0.75),
];

fn convolutions(dtype: DType) -> Kernels {
    let shape = |dims: &[usize]| Shape::new(dtype, dims);
    let (x, k) = (shape(&[2, 5, 4, 4]), shape(&[3, 2, 2, 6]));
    let (y, bias) = (shape(&[2, 3, 3, 6]), shape(&[6]));
    let mut all = Kernels::of(&[x.clone(), k.clone(), y.clone(), bias]);
    let given = [0, 1, 2, 3].map(|place| all.given(place));
    let (dims, input) = (convolution(), x.dims.clone());
    let to_input = Kernel::ConvInputGradient { dims, input };
    all.push(to_input.clone(), &[given[2], given[1]], &[&x]);
    all.push(to_input, &[given[2], given[1], given[0]], &[&x]);
    let (dims, kernel) = (convolution(), k.dims.clone());
    let to_kernel = Kernel::ConvKernelGradient { dims, kernel };
    all.push(to_kernel, &[given[0], given[2]], &[&k]);
    for activation in ACTIVATIONS {
        let dims = convolution();
        let biased = Kernel::ConvBias { dims, activation };
        all.push(biased.clone(), &[given[0], given[1], given[3]], &[&y]);
        all.push(biased, &[given[0], given[1], given[3], given[2]], &[&y]);
    }
    all
}

/// Values that are equal in many windows.
fn poolings(dtype: DType) -> Kernels {
    let pool = Pool2d {
        size: [3, 2],
        strides: [2, 1],
        padding: [(1, 1), (0, 1)],
    };
    let x = Shape::new(dtype, [2, 5, 4, 4]);
    let y = Shape::new(dtype, [2, 3, 4, 4]);
    let place = y.with_dtype(DType::U8);
    let mut all = Kernels::of(&[x.clone(), y.clone()]);
    let node = all.push(Kernel::MaxPool2d(pool), &[all.given(0)], &[&y, &place]);
    let (found, input) = (Value { node, output: 1 }, x.dims.clone());
    let gradient = Kernel::MaxPool2dGradient { pool, input };
    all.push(gradient, &[found, all.given(1)], &[&x]);
    all
}

fn normalisations(dtype: DType) -> Kernels {
    const EPSILON: f64 = 1e-3;
    let kept = match dtype {
        DType::Bf16 | DType::F16 => DType::F32,
        own => own,
    };
    let (x, channel) = (Shape::new(dtype, [2, 3, 4]), Shape::new(kept, [4]));
    let results = [&x, &channel, &channel, &x];
    let shapes = [&x, &channel, &channel, &x];
    let mut all = Kernels::of(&shapes.map(Clone::clone));
    let [first, gamma, beta, other] = [0, 1, 2, 3].map(|place| all.given(place));
    let epsilon = EPSILON;
    for activation in ACTIVATIONS {
        let kernel = Kernel::BatchNorm {
            epsilon,
            activation,
        };
        all.push(kernel.clone(), &[first, gamma, beta], &results[..3]);
        let node = all.push(kernel, &[first, gamma, beta, other], &results[..3]);
        let [y, mean, variance] = [0, 1, 2].map(|output| Value { node, output });
        let plain = [other, first, mean, variance, gamma];
        let beta = (Mask::Beta(activation), [&plain[..], &[beta]].concat(), 3);
        let output = (Mask::Output, [&plain[..], &[y]].concat(), 4);
        let masked = if activation == FusedActivation::None {
            vec![(Mask::None, plain.to_vec(), 3)]
        } else {
            vec![beta, output]
        };
        for (mask, inputs, count) in masked {
            let kernel = Kernel::BatchNormGradient { epsilon, mask };
            all.push(kernel, &inputs, &results[..count]);
        }
    }
    all
}

fn memories(dtype: DType) -> Kernels {
    let shape = |dims: &[usize]| Shape::new(dtype, dims);
    let (x, recurrent, bias) = (shape(&[2, 3, 8]), shape(&[2, 8]), shape(&[8]));
    let (state, sequence) = (shape(&[2, 2]), shape(&[2, 3, 2]));
    let shapes = [&x, &recurrent, &bias, &state, &state, &sequence, &sequence];
    let mut all = Kernels::of(&shapes.map(Clone::clone));
    let given = [0, 1, 2, 3, 4, 5, 6].map(|place| all.given(place));
    let node = all.push(Kernel::Lstm, &given[..5], &[&sequence, &sequence, &x]);
    let [cells, gates] = [1, 2].map(|output| Value { node, output });
    let known = [given[5], given[1], given[4], cells, gates];
    let results = [&x, &state, &state];
    all.push(Kernel::LstmGradient, &known, &results);
    let known = [&known[..], &[given[6]]].concat();
    all.push(Kernel::LstmGradient, &known, &results);
    all
}

fn gated_units(dtype: DType) -> Kernels {
    let shape = |dims: &[usize]| Shape::new(dtype, dims);
    let (x, recurrent, bias) = (shape(&[2, 3, 6]), shape(&[2, 6]), shape(&[6]));
    let (state, sequence) = (shape(&[2, 2]), shape(&[2, 3, 2]));
    let mut all = Kernels::of(&[&x, &recurrent, &bias, &state, &sequence].map(Clone::clone));
    let given = [0, 1, 2, 3, 4].map(|place| all.given(place));
    let node = all.push(Kernel::Gru, &given[..4], &[&sequence, &shape(&[2, 3, 8])]);
    let [states, gates] = [0, 1].map(|output| Value { node, output });
    let known = [given[4], given[1], given[3], states, gates];
    all.push(Kernel::GruGradient, &known, &[&x, &x, &state]);
    all
}

/// One test, for what is covered is what was run.
#[test]
fn every_op_computes_what_the_interpreter_finds() {
    let mut found = Names::new();
    let draft = built();
    let mut alone = vec![(draft.program(), draft.inputs)];
    let kernels = [
        convolutions,
        poolings,
        normalisations,
        memories,
        gated_units,
    ]
    .map(|make| make(DType::F64));
    alone.extend(kernels.map(|kernels| (kernels.program, kernels.inputs)));
    alone.push((sharded(), vec![sample(DType::F32, &[4, 2], 1)]));
    for (program, inputs) in &alone {
        names(&program.nodes, &mut found);
        support::run(program, inputs);
    }
    let (program, inputs) = exchanges();
    names(&program.nodes, &mut found);
    support::run_replicas(&program, &inputs);
    let all = [
        ("op", OPS),
        ("unary", UNARY),
        ("binary", BINARY),
        ("compare", COMPARE),
        ("reduce", REDUCE),
        ("reduce window", REDUCE),
        ("all reduce", REDUCE),
        ("kernel", KERNELS),
    ];
    let named = |(kind, names): (&'static str, &'static [&'static str])| {
        names.iter().map(move |&name| (kind, name))
    };
    // What a custom call does is its engine's to say.
    let expected = all.into_iter().flat_map(named);
    let missing: Vec<_> = expected
        .filter(|name| *name != ("op", "CustomCall") && !found.contains(name))
        .collect();
    assert!(missing.is_empty(), "no program here has {missing:?}");
}
