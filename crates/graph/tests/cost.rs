//! Work counted by hand, and the text that shows it.

use phalanx_graph::op::{ConvDims, ConvSpec, DotDims, ReduceOp, Via, WindowDim};
use phalanx_graph::{DType, Graph, HostTensor, NodeCost, Shape, Tensor};

/// FLOPs and bytes of the last node of a graph.
fn last(graph: &Graph, result: &Tensor) -> (u64, u64) {
    let cost = graph.finish(&[("result", result)]).unwrap().cost();
    let NodeCost { flops, bytes } = cost.nodes[result.value().node];
    (flops, bytes)
}

fn input(graph: &Graph, dims: &[usize]) -> Tensor {
    graph.parameter("input", Shape::f32(dims))
}

#[test]
fn loops_without_a_known_end_are_found_at_any_depth() {
    let found = |inner: bool, outer: bool| {
        let g = Graph::new();
        let x = input(&g, &[4]);
        let repeated = |x: &Tensor| {
            let end = |c: &[Tensor]| c[0].sum_all().less(&c[0].like(9.0).sum_all());
            let graph = x.graph();
            graph
                .while_loop(&[x], end, |c| vec![&c[0] + 1.0])
                .swap_remove(0)
        };
        let (carried, _) = g.scan(3, &[&x], &[], &[], |carry, _, _| {
            let next = match inner {
                true => repeated(&carry[0]),
                false => &carry[0] + 1.0,
            };
            (vec![next], vec![])
        });
        let last = match outer {
            true => repeated(&carried[0]),
            false => carried[0].clone(),
        };
        g.finish(&[("last", &last)]).unwrap().has_open_loops()
    };
    assert!(!found(false, false));
    assert!(found(true, false) && found(false, true));
}

#[test]
fn elementwise_and_movements() {
    let g = Graph::new();
    let (x, y) = (input(&g, &[3, 4]), input(&g, &[3, 4]));
    assert_eq!(last(&g, &(&x + &y)), (12, 3 * 48));
    assert_eq!(last(&g, &x.exp()), (12, 2 * 48));
    assert_eq!(last(&g, &x.less(&y)), (12, 2 * 48 + 12));
    assert_eq!(last(&g, &x.convert(DType::F64)), (0, 48 + 96));
    assert_eq!(last(&g, &x.reshape(&[12])), (0, 0));
    assert_eq!(last(&g, &x.transpose(&[1, 0])), (0, 96));
    assert_eq!(last(&g, &x.slice_dim(0, 1, 2)), (0, 32));
    assert_eq!(last(&g, &g.iota(Shape::new(DType::I32, [5]), 0)), (0, 20));
    assert_eq!(last(&g, &x), (0, 0));
}

#[test]
fn products_count_two_per_pair() {
    let g = Graph::new();
    let (a, b) = (input(&g, &[64, 784]), input(&g, &[784, 10]));
    let flops = 2 * 64 * 784 * 10;
    assert_eq!(
        last(&g, &a.matmul(&b)),
        (flops, 4 * (64 * 784 + 784 * 10 + 640))
    );
    let (a, b) = (input(&g, &[5, 2, 3]), input(&g, &[5, 3, 4]));
    assert_eq!(last(&g, &a.matmul(&b)).0, 2 * 5 * 2 * 3 * 4);
    let dims = DotDims {
        lhs_batch: vec![],
        rhs_batch: vec![],
        lhs_contract: vec![0, 2],
        rhs_contract: vec![0, 1],
        dtype: DType::F32,
    };
    assert_eq!(last(&g, &a.dot(&b, dims)).0, 2 * (2 * 4) * (5 * 3));
}

fn conv(strides: [usize; 2], padding: [(i64, i64); 2], groups: usize) -> ConvDims {
    ConvDims {
        input: ConvSpec::channels_last(2),
        kernel: ConvSpec::kernel(2),
        output: ConvSpec::channels_last(2),
        strides: strides.to_vec(),
        padding: padding.to_vec(),
        input_dilation: vec![1; 2],
        kernel_dilation: vec![1; 2],
        feature_groups: groups,
        batch_groups: 1,
    }
}

#[test]
fn convolutions_count_real_elements() {
    let g = Graph::new();
    let x = input(&g, &[2, 5, 5, 4]);
    let k = input(&g, &[3, 3, 4, 8]);
    // Without padding every place sees 9 x 4 elements.
    let (flops, bytes) = last(&g, &x.conv(&k, conv([1, 1], [(0, 0); 2], 1)));
    assert_eq!(flops, 2 * (2 * 3 * 3 * 8) * (9 * 4));
    assert_eq!(bytes, 4 * (2 * 25 * 4 + 9 * 4 * 8 + 2 * 9 * 8));
    // Stride 2: 2 x 2 places.
    assert_eq!(
        last(&g, &x.conv(&k, conv([2, 2], [(0, 0); 2], 1))).0,
        2 * (2 * 2 * 2 * 8) * (9 * 4)
    );
    // Padded by 1: along a dim the 5 places see 2, 3, 3, 3, 2 elements.
    assert_eq!(
        last(&g, &x.conv(&k, conv([1, 1], [(1, 1); 2], 1))).0,
        2 * (2 * 8 * 4) * (13 * 13)
    );
    // Padded by 1 with stride 2: the 3 places see 2, 3, 2 elements.
    let strided = x.conv(&k, conv([2, 2], [(1, 1); 2], 1));
    assert_eq!(last(&g, &strided).0, 2 * (2 * 8 * 4) * (7 * 7));
    // Two groups: each output sees 2 of the 4 features.
    let k = input(&g, &[3, 3, 2, 8]);
    assert_eq!(
        last(&g, &x.conv(&k, conv([1, 1], [(0, 0); 2], 2))).0,
        2 * (2 * 3 * 3 * 8) * (9 * 2)
    );
    // Zeros between input elements are not counted: 1 x 3 taps over x0x0x0x0x (9 long), 7 places: 3 or 4 of 3.
    let k = input(&g, &[1, 3, 4, 8]);
    let dilated = ConvDims {
        input_dilation: vec![1, 2],
        ..conv([1, 1], [(0, 0); 2], 1)
    };
    assert_eq!(
        last(&g, &x.conv(&k, dilated)).0,
        2 * (2 * 8 * 4) * (5 * (2 + 1 + 2 + 1 + 2 + 1 + 2))
    );
}

#[test]
fn reductions_windows_and_indices() {
    let g = Graph::new();
    let x = input(&g, &[4, 6]);
    assert_eq!(last(&g, &x.sum(&[1])), (4 * 5, 4 * (24 + 4)));
    let window = [
        WindowDim::identity(),
        WindowDim {
            size: 3,
            stride: 3,
            ..WindowDim::identity()
        },
    ];
    assert_eq!(
        last(&g, &x.reduce_window(ReduceOp::Max, &window)),
        (4 * 2 * 2, 4 * (24 + 8))
    );
    let at = g.parameter("at", Shape::new(DType::I32, [5]));
    let rows = x.gather(&at, 0);
    assert_eq!(last(&g, &rows), (0, 20 + 2 * 120));
    assert_eq!(last(&g, &x.scatter_add(&at, &rows, 0)), (30, 20 + 3 * 120));
    let start = g.scalar(DType::I32, 1.0);
    let update = input(&g, &[1, 6]);
    assert_eq!(
        last(&g, &x.dynamic_update_slice(&update, &[&start, &start])),
        (0, 2 * 24)
    );
}

#[test]
fn loops_count_their_bodies_and_replicas_their_sums() {
    let g = Graph::new();
    let x = input(&g, &[7, 3]);
    let zero = g.full(&Shape::f32([3]), 0.0);
    let (total, _) = g.scan(7, &[&zero], &[&x], &[], |carry, row, _| {
        (vec![&carry[0] + &row[0]], vec![])
    });
    assert_eq!(last(&g, &total[0]), (7 * 3, 7 * 36));
    let repeated = g.while_loop(
        &[&zero],
        |c| c[0].sum_all().less(&c[0].like(9.0).reshape(&[])),
        |c| vec![&c[0] + &c[0]],
    );
    assert_eq!(last(&g, &repeated[0]).0, 2 + 1 + 3);
    let chosen = g.case(&g.scalar(DType::I32, 0.0), &[&zero], 3, |number, x| {
        vec![match number {
            1 => (&x[0] + &x[0]).square(),
            _ => -&x[0],
        }]
    });
    assert_eq!(last(&g, &chosen[0]), (6, 36 + 36));
    let g = Graph::with_replicas(4);
    let x = input(&g, &[8]);
    assert_eq!(last(&g, &x.all_reduce(ReduceOp::Sum)), (8, 64));
    let sum = g.all_reduce(&[&x], ReduceOp::Sum, Via::OneDevice);
    assert_eq!(last(&g, &sum[0]), (3 * 8, 3 * 64));
    let lone = Graph::new();
    let x = input(&lone, &[8]);
    assert_eq!(last(&lone, &x.all_reduce(ReduceOp::Sum)), (0, 0));
}

#[test]
fn totals_are_sums_and_do_not_wrap() {
    let g = Graph::new();
    let x = input(&g, &[3, 4]);
    let y = (&x + &x).sum_all();
    let cost = g.finish(&[("y", &y)]).unwrap().cost();
    assert_eq!(
        cost.total,
        NodeCost {
            flops: 12 + 11,
            bytes: 3 * 48 + 48 + 4
        }
    );
    let (a, b) = (
        input(&g, &[1 << 30, 1 << 25]),
        input(&g, &[1 << 25, 1 << 30]),
    );
    assert_eq!(last(&g, &a.matmul(&b)).0, u64::MAX);
}

#[test]
fn the_dump_reads_well() {
    let g = Graph::new();
    let x = g.parameter("x", Shape::f32([64, 784]));
    let kernel = g.parameter("dense/kernel", Shape::f32([784, 10]));
    let y = g.labelled("dense", || {
        x.matmul(&kernel) + g.constant(HostTensor::new([10], &[0.5f32; 10]))
    });
    let (last, _) = g.scan(64, &[&y.sum(&[0])], &[&y], &[], |carry, row, _| {
        (vec![carry[0].maximum(&row[0])], vec![])
    });
    let mut program = g.finish(&[("y", &y), ("last", &last[0])]).unwrap();
    program.donated = vec![(1, 0)];
    let text = program.dump();
    let here = "graph/tests/cost.rs:";
    let lines: Vec<String> = text
        .lines()
        .map(|line| match line.split_once(here) {
            Some((start, end)) => format!(
                "{start}HERE{}",
                end.trim_start_matches(|c: char| c.is_ascii_digit())
            ),
            None => line.to_owned(),
        })
        .collect();
    let expected = [
        "program of 1 replica: 2 parameters, 8 nodes, 1.01 MFLOP, 255 kB",
        "%0 = parameter f32[64,784] \"x\"  // HERE",
        "%1 = parameter f32[784,10] \"dense/kernel\"  // HERE",
        "%2 = dot f32[64,10] (%0, %1) contract [1]x[0]  // 1.00 MFLOP, 235 kB, dense, HERE",
        "%3 = constant f32[10] [0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5], ..  // dense, HERE",
        "%4 = broadcast f32[64,10] (%3) dims [1]  // 2.60 kB, dense, HERE",
        "%5 = add f32[64,10] (%2, %4)  // 640 FLOP, 7.68 kB, dense, HERE",
        "%6 = reduce f32[10] (%5) add over [0]  // 630 FLOP, 2.60 kB, HERE",
        "%7 = scan f32[10] (%6, %5) 64 steps, 1 carried, 1 read by rows  // 640 FLOP, 7.68 kB, HERE",
        "  body:",
        "    %0 = parameter f32[10] 0  // HERE",
        "    %1 = parameter f32[10] 1  // HERE",
        "    %2 = maximum f32[10] (%0, %1)  // 10 FLOP, 120 B, HERE",
        "    return %2",
        "return \"y\" = %5 f32[64,10]  // in the memory of \"dense/kernel\"",
        "return \"last\" = %7 f32[10]",
    ];
    assert_eq!(lines, expected, "\n{text}");
}
