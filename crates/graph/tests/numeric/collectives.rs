use phalanx_graph::op::ReduceOp;
use phalanx_graph::{DType, Graph, HostTensor, Shape};

use crate::cases::{Array, close, sample};
use crate::support;

fn f32s(dims: &[usize], values: &[f32]) -> HostTensor {
    HostTensor::new(dims, values)
}

#[test]
fn every_reduction_between_two_replicas() {
    let kinds = [
        (ReduceOp::Sum, [4.0, 2.0, -4.0]),
        (ReduceOp::Prod, [3.0, -8.0, 4.0]),
        (ReduceOp::Max, [3.0, 4.0, -2.0]),
        (ReduceOp::Min, [1.0, -2.0, -2.0]),
    ];
    let inputs = [[1.0, 4.0, -2.0], [3.0, -2.0, -2.0]];
    let types = [
        DType::F32,
        DType::F64,
        DType::Bf16,
        DType::F16,
        DType::I32,
        DType::I64,
    ];
    let g = Graph::with_replicas(2);
    let mut outputs = Vec::new();
    for (index, dtype) in types.into_iter().enumerate() {
        let x = g.parameter(&format!("x{index}"), Shape::new(dtype, [3]));
        outputs.extend(kinds.map(|(kind, values)| (x.all_reduce(kind), values.to_vec())));
    }
    let truth = g.parameter("truth", Shape::new(DType::Bool, [3]));
    outputs.push((truth.all_reduce(ReduceOp::And), vec![0.0, 1.0, 0.0]));
    outputs.push((truth.all_reduce(ReduceOp::Or), vec![1.0, 1.0, 0.0]));
    let named: Vec<_> = outputs
        .iter()
        .map(|(tensor, _)| ("reduced", tensor))
        .collect();
    let program = g.finish(&named).unwrap();
    let lists = [0, 1].map(|replica: usize| {
        let mut list: Vec<HostTensor> = types
            .map(|dtype| HostTensor::new([3], &inputs[replica]).convert(dtype))
            .to_vec();
        list.push(HostTensor::new([3], &[replica == 0, true, false]));
        list
    });
    for results in support::run_replicas(&program, &lists) {
        for (result, (tensor, expected)) in results.iter().zip(&outputs) {
            assert_eq!(*result.shape(), tensor.shape());
            assert_eq!(result.to_f64(), *expected, "{tensor:?}");
        }
    }
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
    let [a, b] = &arrays;
    let results = support::run_replicas(&program, &inputs.clone().map(|x| vec![x]));
    for (replica, results) in results.iter().enumerate() {
        let own = &arrays[replica];
        let sum = |row: usize, column: usize| a.at(&[row, column]) + b.at(&[row, column]);
        let expected = [
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
        ];
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
