use phalanx_graph::op::{ReduceOp, Via};
use phalanx_graph::{DType, Graph, HostTensor, Shape, Tensor, gradients};

use crate::cases::{Array, close, sample};
use crate::support;

fn f32s(dims: &[usize], values: &[f32]) -> HostTensor {
    HostTensor::new(dims, values)
}

const VIAS: [Via; 3] = [Via::Native, Via::OneDevice, Via::Hierarchical];

/// Dims of the tensors reduced together: none divides by every number of replicas, one has no elements.
const DIMS: [&[usize]; 4] = [&[], &[3], &[2, 5], &[0, 4]];

/// Small numbers, exact in every element type whatever is done to them.
fn number(replica: usize, tensor: usize, element: usize) -> f64 {
    [1.0, -2.0, 2.0, 3.0, -1.0][(replica * 3 + tensor + element * 7) % 5]
}

fn combined(kind: ReduceOp, values: impl Iterator<Item = f64>) -> f64 {
    let combine = |a: f64, b: f64| match kind {
        ReduceOp::Sum => a + b,
        ReduceOp::Prod => a * b,
        ReduceOp::Max => a.max(b),
        ReduceOp::Min => a.min(b),
        ReduceOp::And => f64::from(a != 0.0 && b != 0.0),
        ReduceOp::Or => f64::from(a != 0.0 || b != 0.0),
    };
    values.reduce(combine).unwrap()
}

/// What each element type is reduced by.
fn kinds(dtype: DType) -> &'static [ReduceOp] {
    match dtype {
        DType::Bool => &[ReduceOp::And, ReduceOp::Or, ReduceOp::Max, ReduceOp::Min],
        _ => &[ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min],
    }
}

/// The number of an element of a tensor of a replica, of an element type.
fn value(dtype: DType, [replica, tensor, element]: [usize; 3]) -> f64 {
    let number = number(replica, tensor, element);
    match dtype {
        DType::Bool => f64::from(number > 0.0),
        DType::U8 | DType::U32 => number + 4.0,
        _ => number,
    }
}

/// The elements of a reduction over replicas.
fn reduced(dtype: DType, kind: ReduceOp, replicas: usize, tensor: usize) -> Vec<f64> {
    let count: usize = DIMS[tensor].iter().product();
    let each = |element| {
        let all = (0..replicas).map(|replica| value(dtype, [replica, tensor, element]));
        let exact = combined(kind, all);
        if dtype == DType::U8 {
            exact % 256.0
        } else {
            exact
        }
    };
    (0..count).map(each).collect()
}

/// A parameter for each of the dims, with its values on each replica.
fn parameters(g: &Graph, dtype: DType, lists: &mut [Vec<HostTensor>]) -> Vec<Tensor> {
    let parameter = |(tensor, dims): (usize, &&[usize])| {
        let count: usize = dims.iter().product();
        for (replica, list) in lists.iter_mut().enumerate() {
            let own = (0..count).map(|element| value(dtype, [replica, tensor, element]));
            let own: Vec<f64> = own.collect();
            list.push(HostTensor::new(*dims, &own).convert(dtype));
        }
        g.parameter(&format!("{dtype}{tensor}"), Shape::new(dtype, *dims))
    };
    DIMS.iter().enumerate().map(parameter).collect()
}

#[test]
fn every_reduction_by_every_way_between_replicas() {
    for replicas in 2..=4 {
        let g = Graph::with_replicas(replicas);
        let mut lists = vec![Vec::new(); replicas];
        let mut outputs: Vec<(String, Tensor, Vec<f64>)> = Vec::new();
        // All element types once: compiling them takes seconds.
        let some = [DType::F32, DType::I32, DType::Bool];
        let types: &[DType] = if replicas == 3 { &DType::ALL } else { &some };
        for &dtype in types {
            let inputs = parameters(&g, dtype, &mut lists);
            let given: Vec<&Tensor> = inputs.iter().collect();
            let ways = kinds(dtype)
                .iter()
                .flat_map(|kind| VIAS.map(|via| (*kind, via)));
            for (kind, via) in ways {
                for (tensor, result) in g.all_reduce(&given, kind, via).into_iter().enumerate() {
                    let expected = reduced(dtype, kind, replicas, tensor);
                    outputs.push((format!("{kind:?} {via:?}"), result, expected));
                }
            }
        }
        let named: Vec<_> = outputs
            .iter()
            .map(|(name, x, _)| (name.as_str(), x))
            .collect();
        let program = g.finish(&named).unwrap();
        for (replica, results) in support::run_replicas(&program, &lists).iter().enumerate() {
            for (result, (name, tensor, expected)) in results.iter().zip(&outputs) {
                assert_eq!(*result.shape(), tensor.shape());
                assert_eq!(
                    result.to_f64(),
                    *expected,
                    "{name} of {:?} on replica {replica} of {replicas}",
                    tensor.shape()
                );
            }
        }
    }
}

/// Several element types in one reduction, means among them.
#[test]
fn a_variadic_reduction_mixes_element_types() {
    let g = Graph::with_replicas(3);
    let a = g.parameter("a", Shape::f32([2]));
    let n = g.parameter("n", Shape::new(DType::I32, [2]));
    let b = g.parameter("b", Shape::f32([1]));
    for via in VIAS {
        let mut found = g.all_reduce(&[&a, &n, &b], ReduceOp::Sum, via);
        found.extend(g.all_mean(&[&a, &b], via));
        found.push(a.all_mean());
        let named: Vec<_> = found.iter().map(|tensor| ("sum", tensor)).collect();
        let program = g.finish(&named).unwrap();
        let lists = [1.0f32, 2.0, 6.0].map(|x| {
            let ints = HostTensor::new([2], &[x as i32, 7]);
            vec![f32s(&[2], &[x, 0.5]), ints, f32s(&[1], &[-x])]
        });
        let expected: [&[f64]; 6] = [
            &[9.0, 1.5],
            &[9.0, 21.0],
            &[-9.0],
            &[3.0, 0.5],
            &[-3.0],
            &[3.0, 0.5],
        ];
        for results in support::run_replicas(&program, &lists) {
            let got: Vec<Vec<f64>> = results.iter().map(HostTensor::to_f64).collect();
            assert_eq!(got, expected, "{via:?}");
        }
    }
}

/// Three groups and two, of sizes that do not divide what is summed.
#[test]
fn groups_of_replicas_sum_across_themselves() {
    for replicas in [5, 6, 8] {
        let g = Graph::with_replicas(replicas);
        let x = g.parameter("x", Shape::f32([7]));
        let sums = VIAS.map(|via| g.all_reduce(&[&x], ReduceOp::Sum, via).swap_remove(0));
        let named: Vec<_> = sums.iter().map(|sum| ("sum", sum)).collect();
        let value = |replica: usize, i: usize| ((replica + 1) * (i + 1)) as f32;
        let lists: Vec<Vec<HostTensor>> = (0..replicas)
            .map(|replica| {
                vec![f32s(
                    &[7],
                    &[0, 1, 2, 3, 4, 5, 6].map(|i| value(replica, i)),
                )]
            })
            .collect();
        let expected = [0, 1, 2, 3, 4, 5, 6]
            .map(|i| (0..replicas).map(|r| f64::from(value(r, i))).sum::<f64>());
        for results in support::run_replicas(&g.finish(&named).unwrap(), &lists) {
            for (result, via) in results.iter().zip(VIAS) {
                assert_eq!(result.to_f64(), expected, "{via:?} between {replicas}");
            }
        }
    }
}

/// Sums of floats whose bits depend on the order: the same on every replica, in every run, and in the order of
/// replicas where that is promised.
#[test]
fn sums_have_the_same_bits_on_every_replica_and_in_every_run() {
    const LENGTH: usize = 50_001;
    for replicas in 2..=4 {
        let g = Graph::with_replicas(replicas);
        let x = g.parameter("x", Shape::f32([LENGTH]));
        let sums = VIAS.map(|via| g.all_reduce(&[&x], ReduceOp::Sum, via).swap_remove(0));
        let named: Vec<_> = sums.iter().map(|sum| ("sum", sum)).collect();
        let executable = support::compile(&g.finish(&named).unwrap());
        let values = |replica: usize| -> Vec<f32> {
            let value = |i: usize| (((i * 7919 + replica * 104_729) % 9973) as f32).sqrt() - 50.0;
            (0..LENGTH).map(value).collect()
        };
        let lists: Vec<Vec<HostTensor>> = (0..replicas)
            .map(|replica| vec![f32s(&[LENGTH], &values(replica))])
            .collect();
        let mut in_order = values(0);
        for replica in 1..replicas {
            for (sum, x) in in_order.iter_mut().zip(values(replica)) {
                *sum += x;
            }
        }
        let in_order = f32s(&[LENGTH], &in_order);
        let first = support::execute(&executable, &lists).swap_remove(0);
        for run in 0..10 {
            for (replica, results) in support::execute(&executable, &lists).iter().enumerate() {
                for (via, (result, first)) in VIAS.iter().zip(results.iter().zip(&first)) {
                    let place = format!("{via:?}, run {run}, replica {replica} of {replicas}");
                    assert!(result == first, "{place} differs from the first run");
                    let ordered = *via != Via::Hierarchical || replicas < 4;
                    assert!(!ordered || *result == in_order, "{place}: not in order");
                }
            }
        }
    }
}

/// What a replica of two has of each exchange of `replicas_exchange_slices`.
fn exchanged(arrays: &[Array; 2], replica: usize) -> [Array; 10] {
    let [a, b] = arrays;
    let own = &arrays[replica];
    let sum = |row: usize, column: usize| a.at(&[row, column]) + b.at(&[row, column]);
    [
        Array::build(&[8, 2], |i| arrays[i[0] / 4].at(&[i[0] % 4, i[1]])),
        Array::build(&[4, 4], |i| arrays[i[1] / 2].at(&[i[0], i[1] % 2])),
        Array::build(&[2, 2], |i| sum(i[0] + 2 * replica, i[1])),
        Array::build(&[4, 1], |i| sum(i[0], replica)),
        Array::build(&[2, 4], |i| {
            arrays[i[1] / 2].at(&[i[0] + 2 * replica, i[1] % 2])
        }),
        Array::build(&[8, 1], |i| arrays[i[0] / 4].at(&[i[0] % 4, replica])),
        arrays[1 - replica].clone(),
        if replica == 1 {
            a.clone()
        } else {
            own.map(|_| 0.0)
        },
        own.map(|_| 0.0),
        Array::scalar(replica as f64),
    ]
}

#[test]
fn replicas_exchange_slices() {
    let g = Graph::with_replicas(2);
    let x = g.parameter("x", Shape::f32([4, 2]));
    let outputs = [
        ("gather 0", x.all_gather(0)),
        ("gather 1", x.all_gather(1)),
        ("scatter 0", x.reduce_scatter(0)),
        ("scatter 1", x.reduce_scatter(1)),
        ("to all 0 1", x.all_to_all(0, 1)),
        ("to all 1 0", x.all_to_all(1, 0)),
        ("swap", x.collective_permute(&[(0, 1), (1, 0)])),
        ("send", x.collective_permute(&[(0, 1)])),
        ("silence", x.collective_permute(&[])),
        ("id", g.replica_id().convert(DType::F32)),
    ];
    let named: Vec<_> = outputs
        .iter()
        .map(|(name, tensor)| (*name, tensor))
        .collect();
    let program = g.finish(&named).unwrap();
    let inputs = [
        sample(DType::F32, &[4, 2], 1),
        sample(DType::F32, &[4, 2], 2),
    ];
    let arrays = [Array::from(&inputs[0]), Array::from(&inputs[1])];
    let results = support::run_replicas(&program, &inputs.clone().map(|x| vec![x]));
    for (replica, results) in results.iter().enumerate() {
        let expected = exchanged(&arrays, replica);
        for ((name, tensor), (result, expected)) in
            outputs.iter().zip(results.iter().zip(&expected))
        {
            assert_eq!(*result.shape(), tensor.shape(), "{name}");
            let got = Array::from(result);
            let same = got
                .values
                .iter()
                .zip(&expected.values)
                .all(|(&x, &y)| close(x, y, 1e-6));
            assert!(
                got.dims == expected.dims && same,
                "{name} of replica {replica}: got {got:?}, expected {expected:?}"
            );
        }
    }
}

/// The sum is beyond what f16 holds, the mean is not.
#[test]
fn means_of_f16_do_not_overflow() {
    let g = Graph::with_replicas(2);
    let x = g.parameter("x", Shape::new(DType::F16, [2]));
    let mut means = VIAS
        .map(|via| g.all_mean(&[&x], via).swap_remove(0))
        .to_vec();
    means.push(x.all_mean());
    let named: Vec<_> = means.iter().map(|mean| ("mean", mean)).collect();
    let program = g.finish(&named).unwrap();
    let lists = [[40_000.0, 65_504.0], [40_000.0, 65_504.0]];
    let lists = lists.map(|x| vec![HostTensor::new([2], &x).convert(DType::F16)]);
    for results in support::run_replicas(&program, &lists) {
        for mean in results {
            assert_eq!(mean, lists[0][0]);
        }
    }
}

/// Sums that 16 bits lose a part of at each step, rounded once.
#[test]
fn scattered_sums_of_16_bits_are_rounded_once() {
    for (dtype, large, expected) in [(DType::Bf16, 256.0, 260.0), (DType::F16, 2048.0, 2052.0)] {
        let g = Graph::with_replicas(4);
        let x = g.parameter("x", Shape::new(dtype, [4, 8]));
        let gathered =
            (x.all_gather(1) * &g.parameter("g", Shape::new(dtype, [4, 32]))).convert(DType::F32);
        let gradient = gradients(&gathered.sum_all(), &[&x]).remove(0).unwrap();
        let outputs = [x.reduce_scatter(0), x.reduce_scatter(1), gradient];
        let named: Vec<_> = outputs.iter().map(|y| ("y", y)).collect();
        let program = g.finish(&named).unwrap();
        let lists: Vec<Vec<HostTensor>> = (0..4)
            .map(|replica| {
                // 256 + 1 + 1 + 1 is 259, half way to 260; one by one they would be lost.
                let value = |i: usize| if replica == i % 4 { large } else { 1.0 };
                let of = |dims: &[usize]| {
                    let count: usize = dims.iter().product();
                    let values: Vec<f64> = (0..count).map(value).collect();
                    HostTensor::new(dims, &values).convert(dtype)
                };
                vec![of(&[4, 8]), of(&[4, 32])]
            })
            .collect();
        for results in support::run_replicas(&program, &lists) {
            for (result, y) in results.iter().zip(&outputs) {
                assert_eq!(result.dims(), y.dims());
                assert_eq!(
                    result.to_f64(),
                    vec![expected; result.dims().iter().product()],
                    "{dtype}"
                );
            }
        }
    }
}

/// Which slice goes where, of 16 bits, along a dim that is not the first.
#[test]
fn scattered_sums_of_16_bits_are_in_their_places() {
    let g = Graph::with_replicas(2);
    let x = g.parameter("x", Shape::new(DType::Bf16, [2, 4, 3]));
    let empty = g.parameter("empty", Shape::new(DType::Bf16, [2, 0]));
    let outputs = [
        x.reduce_scatter(0),
        x.reduce_scatter(1),
        empty.reduce_scatter(0),
    ];
    let named: Vec<_> = outputs.iter().map(|y| ("y", y)).collect();
    let program = g.finish(&named).unwrap();
    let lists = [1, 2].map(|seed| {
        let empty = HostTensor::zeros(Shape::new(DType::Bf16, [2, 0]));
        vec![sample(DType::Bf16, &[2, 4, 3], seed), empty]
    });
    let [a, b] = [0, 1].map(|replica| Array::from(&lists[replica][0]));
    let sum = |at: [usize; 3]| a.at(&at) + b.at(&at);
    for (replica, results) in support::run_replicas(&program, &lists).iter().enumerate() {
        let first = Array::build(&[1, 4, 3], |i| sum([replica, i[1], i[2]]));
        let second = Array::build(&[2, 2, 3], |i| sum([i[0], i[1] + 2 * replica, i[2]]));
        for (result, expected) in results.iter().zip([first, second]) {
            assert_eq!(result.dims(), expected.dims);
            assert_eq!(result.to_f64(), expected.values);
        }
        assert_eq!(results[2].dims(), [1, 0]);
    }
}

#[test]
fn a_lone_replica_keeps_its_tensor() {
    let g = Graph::new();
    let x = g.parameter("x", Shape::f32([2, 2]));
    let id = g.replica_id();
    let outputs = [
        x.all_reduce(ReduceOp::Sum),
        x.all_gather(0),
        x.reduce_scatter(1),
        x.all_to_all(0, 1),
        x.collective_permute(&[(0, 0)]),
    ];
    let mut named: Vec<_> = outputs.iter().map(|tensor| ("same", tensor)).collect();
    let silence = x.collective_permute(&[]);
    named.extend([("silence", &silence), ("id", &id)]);
    let program = g.finish(&named).unwrap();
    let value = f32s(&[2, 2], &[1.0, 2.0, 3.0, 4.0]);
    let results = support::run(&program, std::slice::from_ref(&value));
    assert!(results[..5].iter().all(|result| *result == value));
    assert_eq!(results[5].to_f64(), [0.0; 4]);
    assert_eq!(results[6].to_f64(), [0.0]);
}
