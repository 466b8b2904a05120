//! Derivatives along a direction against central differences, for every op that has one.

use std::collections::BTreeSet;

use phalanx_graph::op::{
    ConvDims, ConvSpec, DotDims, Node, PadDim, ReduceOp, SliceDim, Via, WindowDim,
};
use phalanx_graph::{DType, HostTensor, Op, Pool2d, Program, Shape, Tensor};
use phalanx_testkit::{Array, Dual, Interpreter, assert_close};

use crate::{f64s, lone, replicated, sample, scrambled};

const STEP: f64 = 1e-5;
const TOLERANCE: f64 = 1e-8;

/// Compares the derivatives of all outputs along one direction of all float parameters.
pub(crate) fn check(name: &str, program: &Program, inputs: &[Vec<HostTensor>]) {
    let all: Vec<usize> = (0..program.outputs.len()).collect();
    let interpreter = Interpreter::new(program);
    let tangents: Vec<Vec<Option<Vec<f64>>>> = inputs
        .iter()
        .enumerate()
        .map(|(replica, list)| {
            let direction = |(i, input): (usize, &HostTensor)| {
                let count = input.shape().len();
                input
                    .dtype()
                    .is_float()
                    .then(|| scrambled(count, 3 * i + replica + 2))
            };
            list.iter().enumerate().map(direction).collect()
        })
        .collect();
    let moved = |by: f64| {
        let moved = inputs.iter().zip(&tangents).map(|(list, tangents)| {
            let pairs = list.iter().zip(tangents);
            pairs
                .map(|(input, tangent)| shifted(input, tangent.as_deref(), by))
                .collect()
        });
        let moved: Vec<Vec<Array>> = moved.collect();
        interpreter.run_arrays(&moved, &all).unwrap()
    };
    let (above, below) = (moved(STEP), moved(-STEP));
    let found = interpreter
        .run_with_tangents(inputs, &tangents, &all)
        .unwrap();
    for (replica, found) in found.iter().enumerate() {
        for (place, dual) in found.iter().enumerate() {
            let name = format!("{name}, output {place} of replica {replica}");
            compare(&name, dual, &above[replica][place], &below[replica][place]);
        }
    }
}

fn shifted(input: &HostTensor, tangent: Option<&[f64]>, by: f64) -> Array {
    match (Array::from(input), tangent) {
        (Array::Floats(values), Some(tangent)) => {
            let pairs = values.iter().zip(tangent);
            Array::Floats(pairs.map(|(x, t)| x + by * t).collect())
        }
        (array, _) => array,
    }
}

fn compare(name: &str, dual: &Dual, above: &Array, below: &Array) {
    let Array::Floats(values) = &dual.value else {
        assert!(dual.tangent.is_empty(), "{name}: a derivative of integers");
        return;
    };
    let pairs = above.to_f64().into_iter().zip(below.to_f64());
    let expected: Vec<f64> = pairs.map(|(a, b)| (a - b) / (2.0 * STEP)).collect();
    let got = match dual.tangent.is_empty() {
        true => vec![0.0; values.len()],
        false => dual.tangent.clone(),
    };
    assert_close(name, &got, &expected, TOLERANCE);
}

/// A name, the dims of f64 parameters, and what is made of them.
type Row = (&'static str, Vec<Vec<usize>>, fn(&[Tensor]) -> Vec<Tensor>);

fn row_program(row: &Row, replicas: usize) -> (Program, Vec<Vec<HostTensor>>) {
    let (_, dims, build) = row;
    let shapes: Vec<Shape> = dims.iter().map(|dims| f64s(dims.clone())).collect();
    let of_replica = |replica: usize| {
        let inputs = dims.iter().enumerate();
        inputs
            .map(|(i, dims)| sample(dims, i + 2 * replica))
            .collect()
    };
    let inputs = (0..replicas).map(of_replica).collect();
    (replicated(replicas, &shapes, build), inputs)
}

/// Another tensor of the same dims, which has no derivative.
fn fixed(x: &Tensor) -> Tensor {
    x.graph().constant(sample(&x.dims(), 7))
}

/// Integers of a graph.
fn ints(x: &Tensor, dims: &[usize], values: &[i32]) -> Tensor {
    x.graph().constant(HostTensor::new(dims, values))
}

fn start(x: &Tensor, value: i32) -> Tensor {
    ints(x, &[], &[value])
}

fn window(size: usize, stride: usize, dilation: usize, low: usize) -> WindowDim {
    WindowDim {
        size,
        stride,
        dilation,
        low,
        high: low,
    }
}

fn elementwise() -> Vec<Row> {
    vec![
        ("smooth", vec![vec![7]], |x| {
            let x = &x[0];
            vec![
                -x,
                x.exp(),
                x.expm1(),
                x.tanh(),
                x.logistic(),
                x.erf(),
                x.sin(),
                x.cos(),
            ]
        }),
        ("of positive numbers", vec![vec![7]], |x| {
            let x = &(&x[0] + 2.5);
            vec![
                x.log(),
                x.log1p(),
                x.sqrt(),
                x.rsqrt(),
                x.abs(),
                (x - 2.5).abs(),
            ]
        }),
        ("flat", vec![vec![7]], |x| {
            let x = &x[0];
            vec![
                x.sign(),
                x.floor(),
                x.ceil(),
                x.round(),
                x.is_finite().convert(DType::F64),
            ]
        }),
    ]
}

fn of_two_and_random() -> Vec<Row> {
    vec![
        ("of two", vec![vec![7], vec![7]], |x| {
            let (a, b) = (&x[0], &x[1]);
            let base = &(a + 2.5);
            vec![
                a + b,
                a - b,
                a * b,
                b / base,
                base.pow(b),
                base.remainder(b),
                a.maximum(b),
                a.minimum(b),
            ]
        }),
        ("chosen", vec![vec![7], vec![7]], |x| {
            let (a, b) = (&x[0], &x[1]);
            let less = a.less(b);
            vec![
                less.select(a, b),
                less.select(a, &fixed(b)),
                a.convert(DType::F32) * 2.0,
                a.convert(DType::I32).convert(DType::F64),
                less.convert(DType::F64),
            ]
        }),
        ("random", vec![vec![3]], |x| {
            let key = x[0].graph().constant(HostTensor::new([2], &[1u32, 2]));
            let row = x[0].graph().constant(HostTensor::scalar(0u32));
            let bits = x[0].graph().random_bits(&key, &row, &[3]);
            vec![
                bits.shift_right(&bits.like(20.0))
                    .bitcast(DType::I32)
                    .convert(DType::F64)
                    * &x[0],
            ]
        }),
    ]
}

fn moving() -> Vec<Row> {
    let whole = vec![vec![3, 4]];
    let two = vec![vec![3, 4], vec![2, 2]];
    vec![
        ("shape", whole.clone(), |x| {
            let x = &x[0];
            let barrier = Tensor::optimization_barrier(&[x, &(x * 2.0)]);
            vec![
                x.reshape(&[2, 6]),
                x.transpose(&[1, 0]),
                x.broadcast_in(&[2, 3, 4], &[1, 2]),
                x.slice_dim(1, 0, 1).broadcast_to(&[3, 4]),
                x.reverse(&[0]),
                barrier[1].clone(),
            ]
        }),
        ("cut", whole, |x| {
            let x = &x[0];
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
            vec![
                x.pad(&[pad(1, -1, 2), pad(-1, 2, 0)], 3.0),
                x.slice(&[slice(0, 3, 2), slice(1, 4, 1)]),
                x.dynamic_slice(&[&start(x, 1), &start(x, 9)], &[2, 2]),
            ]
        }),
        ("joined", two, |x| {
            let (a, b) = (&x[0], &x[1]);
            let starts = [&start(a, 0), &start(a, 2)];
            vec![
                Tensor::concat(&[a, &fixed(a), &(a * 2.0)], 1),
                a.dynamic_update_slice(b, &starts),
                fixed(a).dynamic_update_slice(b, &starts),
                a.dynamic_update_slice(&fixed(b), &starts),
            ]
        }),
        ("indexed", vec![vec![3, 4], vec![3, 2, 2]], |x| {
            let (table, updates) = (&x[0], &x[1]);
            let indices = ints(table, &[2, 2], &[1, -1, 9, 1]);
            vec![
                table.gather(&indices, 1),
                table.scatter_add(&indices, updates, 1),
                fixed(table).scatter_add(&indices, updates, 1),
                table.scatter_add(&indices, &fixed(updates), 1),
            ]
        }),
    ]
}

fn contracted() -> Vec<Row> {
    vec![
        ("dot", vec![vec![3, 2, 4], vec![2, 4, 5]], |x| {
            let dims = DotDims {
                lhs_batch: vec![1],
                rhs_batch: vec![0],
                lhs_contract: vec![2],
                rhs_contract: vec![1],
                dtype: DType::F64,
            };
            vec![
                x[0].dot(&x[1], dims.clone()),
                fixed(&x[0]).dot(&x[1], dims.clone()),
                x[0].dot(&fixed(&x[1]), dims),
            ]
        }),
        (
            "convolution",
            vec![vec![2, 5, 4, 4], vec![3, 2, 2, 6]],
            |x| vec![x[0].conv(&x[1], convolution(2, 1))],
        ),
        (
            "convolution of groups of the batch",
            vec![vec![4, 5, 4, 2], vec![3, 2, 2, 6]],
            |x| vec![x[0].conv(&x[1], convolution(1, 2))],
        ),
        ("reductions", vec![vec![3, 4, 2]], |x| {
            let x = &x[0];
            let kinds = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min];
            kinds.map(|kind| x.reduce(kind, &[0, 2])).to_vec()
        }),
        ("windows", vec![vec![6, 5]], |x| {
            let kinds = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min];
            let windows = [window(2, 2, 1, 0), window(3, 1, 2, 2)];
            kinds
                .map(|kind| x[0].reduce_window(kind, &windows))
                .to_vec()
        }),
        ("maximum pooling", vec![vec![2, 5, 4, 3]], |x| {
            let pool = Pool2d {
                size: [3, 2],
                strides: [2, 1],
                padding: [(1, 1), (0, 1)],
            };
            vec![x[0].max_pool2d(pool)]
        }),
        (
            "batch normalisation",
            vec![vec![2, 3, 4], vec![4], vec![4]],
            |x| x[0].batch_norm(&x[1], &x[2], 1e-3).to_vec(),
        ),
    ]
}

/// Two spatial dims, everything about them different.
pub(crate) fn convolution(feature_groups: usize, batch_groups: usize) -> ConvDims {
    ConvDims {
        input: ConvSpec::channels_last(2),
        kernel: ConvSpec::kernel(2),
        output: ConvSpec {
            batch: 1,
            feature: 0,
            spatial: vec![3, 2],
        },
        strides: vec![2, 1],
        padding: vec![(1, 2), (0, -1)],
        input_dilation: vec![1, 2],
        kernel_dilation: vec![2, 1],
        feature_groups,
        batch_groups,
    }
}

fn looped() -> Vec<Row> {
    let given = vec![vec![2], vec![4, 2], vec![]];
    vec![
        ("scan", given.clone(), |x| {
            let g = x[0].graph();
            let (last, rows) = g.scan(4, &[&x[0]], &[&x[1]], &[&x[2]], |carry, row, constant| {
                let next = (&carry[0] * constant[0].broadcast_to(&[2]) + &row[0]).tanh();
                (vec![next.clone()], vec![next.sin(), fixed(&row[0])])
            });
            [last, rows].concat()
        }),
        // At the first step the carried value has no derivative yet.
        ("scan from a constant", given.clone(), |x| {
            let g = x[0].graph();
            let zero = x[0].zeros_like();
            let (last, rows) = g.scan(4, &[&zero], &[&x[1]], &[&x[0]], |carry, row, constant| {
                let next = &carry[0] * &constant[0] + &row[0];
                (vec![next], vec![carry[0].clone()])
            });
            [last, rows].concat()
        }),
        ("while and case", given, |x| {
            let g = x[0].graph();
            let small = |v: &[Tensor]| v[0].square().sum_all().less(&v[1].like(30.0));
            let grown = g.while_loop(&[&x[0], &x[2]], small, |v| vec![&v[0] * 1.5, v[1].clone()]);
            let index = start(&x[0], 1);
            let one = g.case(&index, &[&x[0]], 2, |i, v| vec![v[0].sin() * i as f64]);
            vec![grown[0].clone(), one[0].clone()]
        }),
    ]
}

fn exchanged() -> Vec<Row> {
    vec![
        ("exchanges", vec![vec![4, 2]], |x| {
            let x = &x[0];
            let sums = [Via::Native, Via::OneDevice, Via::Hierarchical]
                .map(|via| x.graph().all_reduce(&[x, &fixed(x)], ReduceOp::Sum, via));
            let mut made = sums.concat();
            made.extend([
                x.all_gather(1),
                x.reduce_scatter(0),
                x.all_to_all(0, 1),
                x.collective_permute(&[(1, 0)]),
                x * x
                    .graph()
                    .replica_id()
                    .convert(DType::F64)
                    .broadcast_to(&[4, 2]),
            ]);
            made
        }),
        ("sums in a loop", vec![vec![3]], |x| {
            let (last, _) = x[0].graph().scan(3, &[&x[0]], &[], &[], |carry, _, _| {
                (
                    vec![(carry[0].all_reduce(ReduceOp::Sum) * 0.3).tanh()],
                    vec![],
                )
            });
            last
        }),
    ]
}

fn table() -> Vec<(Row, usize)> {
    let alone = [
        elementwise(),
        of_two_and_random(),
        moving(),
        contracted(),
        looped(),
    ]
    .concat();
    let alone = alone.into_iter().map(|row| (row, 1));
    alone
        .chain(exchanged().into_iter().map(|row| (row, 2)))
        .collect()
}

#[test]
fn every_op_against_differences() {
    for (row, replicas) in table() {
        let (program, inputs) = row_program(&row, replicas);
        check(row.0, &program, &inputs);
    }
}

/// Which no method of tensors builds.
#[test]
fn the_value_of_padding_has_a_derivative() {
    let pad = PadDim {
        low: 1,
        high: 2,
        interior: 1,
    };
    let program = lone(Op::Pad(vec![pad]), &[f64s([3]), f64s([])], &[f64s([8])]);
    check("pad", &program, &[vec![sample(&[3], 0), sample(&[], 1)]]);
}

/// Names of ops, those within loops and branches too.
fn names(nodes: &[Node], found: &mut BTreeSet<&'static str>) {
    for node in nodes {
        found.insert(node.op.name());
        match &node.op {
            Op::Scan(scan) => names(&scan.body.nodes, found),
            Op::While { body, .. } => names(&body.nodes, found),
            _ => {}
        }
    }
}

#[test]
fn the_table_has_every_op_that_a_graph_is_built_of() {
    let mut found = BTreeSet::new();
    for (row, replicas) in table() {
        names(&row_program(&row, replicas).0.nodes, &mut found);
    }
    let expected = "abs add all_gather all_reduce all_to_all batch_norm bitcast_convert broadcast case ceil \
        collective_permute compare concatenate constant convert convolution cosine divide dot dynamic_slice \
        dynamic_update_slice erf exponential exponential_minus_one floor gather is_finite log log_plus_one logistic \
        max_pool maximum minimum multiply negate optimization_barrier pad parameter power random_bits reduce \
        reduce_scatter reduce_window remainder replica_id reshape reverse round_nearest_even rsqrt scan scatter_add \
        select shift_right_logical sign sine slice sqrt subtract tanh transpose while";
    let missing: Vec<&str> = expected
        .split_whitespace()
        .filter(|name| !found.contains(name))
        .collect();
    assert!(missing.is_empty(), "no row has {missing:?}");
}
