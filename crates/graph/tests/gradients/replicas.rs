//! Derivatives of what replicas exchange: of the sum of the losses of all.

use phalanx_graph::op::{Node, ReduceOp, Via};
use phalanx_graph::{DType, Graph, HostTensor, Shape, Tensor, gradients};

use crate::support::{compile, execute};
use crate::{STEP, TOLERANCE, loss, scrambled, with_element, with_offset};

/// A function of a tensor on every replica, by the number of replicas it is tried with.
type Exchange = (&'static str, &'static [usize], fn(&Tensor) -> Tensor);

const EXCHANGES: [Exchange; 9] = [
    ("all_reduce", &[2, 3], |x| {
        x.all_reduce(ReduceOp::Sum).square()
    }),
    ("one device", &[3], |x| several(x, Via::OneDevice)),
    ("hierarchical", &[3, 4], |x| several(x, Via::Hierarchical)),
    ("mean", &[3], |x| x.all_mean().square()),
    ("rows of a scan", &[2], |x| {
        let zero = x.graph().full(&Shape::new(DType::F64, [2]), 0.0);
        let step = |c: &[Tensor], r: &[Tensor], _: &[Tensor]| {
            let sum = (&c[0] + &r[0]).tanh().all_reduce(ReduceOp::Sum);
            (vec![&sum + &r[0]], vec![sum.square()])
        };
        let (carry, rows) = x.graph().scan(6, &[&zero], &[x], &[], step);
        &rows[0] * carry[0].broadcast_to(&[6, 2])
    }),
    ("all_gather", &[2], |x| x.all_gather(0).square()),
    ("reduce_scatter", &[2], |x| x.reduce_scatter(0).square()),
    ("all_to_all", &[2], |x| x.all_to_all(0, 1).square()),
    ("collective_permute", &[2], |x| {
        x.collective_permute(&[(0, 1)]).square()
    }),
];

/// Two of the results are used, each of a function of `x`; the third is not.
fn several(x: &Tensor, via: Via) -> Tensor {
    let (row, cube) = (x.slice_dim(0, 0, 1), x.square() * x);
    let sums = x.graph().all_reduce(&[x, &row, &cube], ReduceOp::Sum, via);
    sums[1].square() * &sums[2]
}

#[test]
fn collectives_differentiate_the_sum_over_replicas() {
    for (name, counts, op) in EXCHANGES {
        for &replicas in counts {
            check_exchange(name, replicas, op);
        }
    }
}

fn check_exchange(name: &str, replicas: usize, op: fn(&Tensor) -> Tensor) {
    const DIMS: [usize; 2] = [6, 2];
    let graph = Graph::with_replicas(replicas);
    let x = graph.parameter("x", Shape::new(DType::F64, DIMS));
    // Weights differ between replicas, so that mixing them up shows.
    let replica = graph.replica_id().convert(DType::F64) + 1.0;
    let result = op(&x) * replica;
    let loss = loss(std::slice::from_ref(&result), &|x| x[0].clone());
    let gradient = gradients(&loss, &[&x]).remove(0).expect("connected");
    let outputs = [("loss", &loss), ("g", &gradient)];
    let executable = compile(&graph.finish(&outputs).expect("builds"));
    let inputs: Vec<HostTensor> = (0..replicas)
        .map(|replica| with_offset(&scrambled(&DIMS), 0.1 * replica as f64))
        .collect();
    let run = |inputs: &[HostTensor]| {
        let lists: Vec<Vec<HostTensor>> = inputs.iter().map(|x| vec![x.clone()]).collect();
        execute(&executable, &lists)
    };
    let total = |inputs: &[HostTensor]| -> f64 {
        let losses = run(inputs);
        losses.iter().map(|results| results[0].to_f64()[0]).sum()
    };
    for (replica, found) in run(&inputs).iter().enumerate() {
        for (at, &got) in found[1].to_f64().iter().enumerate() {
            let mut moved = inputs.clone();
            moved[replica] = with_element(&inputs[replica], at, STEP);
            let above = total(&moved);
            moved[replica] = with_element(&inputs[replica], at, -STEP);
            let expected = (above - total(&moved)) / (2.0 * STEP);
            assert!(
                (got - expected).abs() <= 5.0 * TOLERANCE * (1.0 + expected.abs()),
                "{name} on replica {replica} of {replicas}[{at}]: expected {expected}, got {got}"
            );
        }
    }
}

/// The way back of an exchange is one exchange, the same way.
#[test]
fn the_gradient_of_a_variadic_sum_is_one_variadic_sum() {
    let graph = Graph::with_replicas(2);
    let x = graph.parameter("x", Shape::f32([6, 2]));
    let result = several(&x, Via::Hierarchical);
    let gradient = gradients(&result.sum_all(), &[&x]).remove(0);
    let outputs = [("g", &gradient.expect("connected"))];
    let program = graph.finish(&outputs).expect("builds");
    let is_sum = |node: &&Node| node.op.name() == "all_reduce";
    let sums: Vec<&Node> = program.nodes.iter().filter(is_sum).collect();
    let sizes: Vec<usize> = sums.iter().map(|node| node.inputs.len()).collect();
    assert_eq!(sizes, [3, 2], "{}", program.dump());
    assert_eq!(sums[0].op, sums[1].op);
    let text = program.dump();
    assert!(text.contains("add via hierarchical"), "{text}");
}
