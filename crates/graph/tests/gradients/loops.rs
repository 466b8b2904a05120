//! Derivatives of loops, and how many products are left in them.

use phalanx_graph::op::{Node, Op};
use phalanx_graph::{DType, Graph, HostTensor, Program, Shape, Tensor, gradients};

use crate::{check, ints, program, scrambled};

#[test]
fn scans() {
    let inputs = [scrambled(&[2]), scrambled(&[3, 2]), scrambled(&[2, 2])];
    check("scan", &inputs, &|x| {
        let (last, rows) = x[0]
            .graph()
            .scan(3, &[&x[0]], &[&x[1]], &[&x[2]], |carry, row, w| {
                let mixed = carry[0].reshape(&[1, 2]).matmul(&w[0]).reshape(&[2]);
                let next = (mixed + &row[0]).tanh();
                let y = &next * &carry[0];
                (vec![next], vec![y])
            });
        Tensor::concat(&[&last[0].square(), &rows[0].reshape(&[6])], 0)
    });
    check(
        "scan with a counter",
        &[scrambled(&[2]), ints(&[], &[1])],
        &|x| {
            let (last, _) = x[0]
                .graph()
                .scan(3, &[&x[0], &x[1]], &[], &[], |carry, _, _| {
                    let scale = carry[1].convert(DType::F64);
                    (vec![&carry[0] * scale, &carry[1] + 1.0], vec![])
                });
            last[0].square()
        },
    );
    check(
        "scan, only the rows used",
        &[scrambled(&[]), scrambled(&[4])],
        &|x| {
            let (_, rows) = x[0]
                .graph()
                .scan(4, &[&x[0]], &[&x[1]], &[], |carry, row, _| {
                    let next = &carry[0] * &row[0];
                    (vec![next.clone()], vec![next.sin()])
                });
            rows[0].clone()
        },
    );
    check("scan with kept products", &KEPT.map(scrambled), &kept);
    let inputs = [
        scrambled(&[2, 3]),
        scrambled(&[4, 2, 3]),
        scrambled(&[3, 3]),
    ];
    check("scan, a constant in two products", &inputs, &|x| {
        twice(x, false)
    });
    let none = [
        scrambled(&[2, 3]),
        scrambled(&[0, 2, 3]),
        scrambled(&[3, 3]),
    ];
    check("scan without steps", &none, &|x| twice(x, false));
    check("scan, a constant in a product and a sum", &inputs, &|x| {
        twice(x, true)
    });
}

/// Of a carry that leads nowhere no derivative is asked, which would be 0 times infinity here.
#[test]
fn carries_that_lead_nowhere_have_no_part_in_a_gradient() {
    let zero = HostTensor::zeros(Shape::scalar(DType::F64));
    let inputs = [scrambled(&[]), scrambled(&[]), zero];
    check("scan, a carry that leads nowhere", &inputs, &|x| {
        let graph = x[0].graph();
        let (last, _) = graph.scan(3, &[&x[0], &x[1]], &[], &[&x[2]], |carry, _, w| {
            (vec![&carry[0] + &w[0], w[0].sqrt()], vec![])
        });
        last[0].clone()
    });
    // It leads to the loss by another carry, a step later each.
    check(
        "scan, a carry of carries",
        &[scrambled(&[]), scrambled(&[])],
        &|x| {
            let zero = x[0].like(0.0);
            let start = [&zero, &x[0], &x[1]];
            let (last, _) = x[0].graph().scan(4, &start, &[], &[], |carry, _, _| {
                let next = [&carry[0] + &carry[1], carry[2].sin(), &carry[2] * 1.5];
                (next.to_vec(), vec![])
            });
            last[0].clone()
        },
    );
    let graph = Graph::new();
    let x = graph.parameter("x", Shape::scalar(DType::F64));
    let (last, _) = graph.scan(3, &[&x, &x], &[], &[], |carry, _, _| {
        let grown = carry[1].graph().while_loop(
            &[&carry[1]],
            |v| v[0].less(&v[0].like(9.0)),
            |v| vec![&v[0] * 2.0],
        );
        (vec![carry[0].sin(), grown[0].clone()], vec![])
    });
    assert!(gradients(&last[0], &[&x])[0].is_some());
    assert!(graph.error().is_none(), "{:?}", graph.error());
}

/// Products long enough to be kept for the way back, one of which feeds the other, and a bias.
pub(crate) const KEPT: [&[usize]; 4] = [&[2, 8], &[3, 2, 8], &[8, 9], &[9]];

pub(crate) fn kept(x: &[Tensor]) -> Tensor {
    let given = [&x[2], &x[3]];
    let (last, rows) = x[0]
        .graph()
        .scan(3, &[&x[0]], &[&x[1]], &given, |carry, row, fixed| {
            let inner = ((&carry[0] + &row[0]) * 0.3).matmul(&fixed[0]) + &fixed[1];
            let outer = (inner.sin() * 0.3).matmul(&fixed[0].transpose(&[1, 0]));
            (vec![(&outer + &row[0]).tanh()], vec![outer])
        });
    last[0].square() + rows[0].sum(&[0])
}

/// `w` in a product with the carry and one with a row, and perhaps where no product is.
pub(crate) fn twice(x: &[Tensor], alone: bool) -> Tensor {
    let steps = x[1].dim(0);
    let (last, rows) = x[0]
        .graph()
        .scan(steps, &[&x[0]], &[&x[1]], &[&x[2]], |carry, row, w| {
            let mixed = carry[0].matmul(&w[0]) + row[0].matmul(&w[0].transpose(&[1, 0]));
            let mixed = if alone {
                mixed + w[0].sum(&[0]).sin()
            } else {
                mixed
            };
            let next = (mixed * 0.3).tanh();
            (vec![next.clone()], vec![next])
        });
    last[0].square() + rows[0].sum(&[0])
}

/// The products of matrices in the bodies of a program's last loop, and behind it.
fn products_of_last_loop(program: &Program) -> (usize, usize) {
    let count = |nodes: &[Node]| {
        let is_dot = |node: &&Node| matches!(node.op, Op::Dot(_));
        nodes.iter().filter(is_dot).count()
    };
    let mut loops = program.nodes.iter().filter_map(|node| match &node.op {
        Op::Scan(scan) => Some(count(&scan.body.nodes)),
        _ => None,
    });
    (loops.next_back().expect("a loop"), count(&program.nodes))
}

#[test]
fn few_products_stay_in_the_reverse_loop() {
    let inputs = KEPT.map(scrambled);
    let simple = program(&inputs, &kept).simplified();
    assert_eq!(products_of_last_loop(&simple), (2, 2));
    // Rows that weigh more than the constant: the sum is carried.
    let large = [
        scrambled(&[64, 2]),
        scrambled(&[3, 64, 2]),
        scrambled(&[2, 2]),
    ];
    let simple = program(&large, &|x| {
        let (last, _) = x[0]
            .graph()
            .scan(3, &[&x[0]], &[&x[1]], &[&x[2]], |carry, row, w| {
                (
                    vec![(carry[0].sin().matmul(&w[0]) + &row[0]).tanh()],
                    vec![],
                )
            });
        last[0].clone()
    });
    let simple = simple.simplified();
    assert_eq!(products_of_last_loop(&simple), (3, 0));
}
