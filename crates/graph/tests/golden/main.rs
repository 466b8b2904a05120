//! The StableHLO text of small graphs, kept in `tests/golden/stablehlo` so that a change of what is compiled is seen.

#[path = "../support/golden.rs"]
mod golden;
mod products;
mod programs;
#[path = "../support/mod.rs"]
mod support;

use phalanx_graph::op::{DotDims, ReduceOp};
use phalanx_graph::{
    DType, Graph, HostAllReduce, KernelSupport, Lowering, Op, Platform, Program, Shape, Tensor,
    gradients,
};

const COMMAND: &str = "cargo test -p phalanx-graph --test golden";

use crate::programs::*;

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
        kernels: Some(KernelSupport { tiles: false }),
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
        kernels: Some(KernelSupport { tiles: false }),
        ..Lowering::new(Platform::Cpu, "beside")
    };
    let text = program.to_stablehlo(&lowering);
    assert!(
        text.contains("\"relu\" = false") && text.contains("stablehlo.maximum"),
        "{text}"
    );
}

/// A convolution's gradient is selected in its call where a value of f32 is positive; a value of 16 bits selects it afterwards.
#[test]
fn gradients_of_convolutions_are_selected_by_f32() {
    for (dtype, selections) in [(DType::F32, 0), (DType::Bf16, 1)] {
        let g = Graph::new();
        let (x, dy) = (f32s(&g, "x", &[2, 8, 8, 8]), f32s(&g, "dy", &[2, 8, 8, 16]));
        let kernel = f32s(&g, "kernel", &[3, 3, 8, 16]);
        let mask = g.parameter("mask", Shape::new(dtype, [2, 8, 8, 8]));
        let y = x.conv(&kernel, of_images(1)) * &dy;
        let slope = gradients(&y.sum_all(), &[&x]).remove(0).unwrap();
        let selected = mask
            .greater(&mask.like(0.0))
            .select(&slope, &slope.like(0.0));
        let program = g.finish(&[("selected", &selected)]).unwrap().simplified();
        let text = program.to_stablehlo(&Lowering {
            kernels: Some(KernelSupport { tiles: false }),
            ..Lowering::new(Platform::Cpu, "selected")
        });
        let found = text.matches("stablehlo.select").count();
        assert!(
            found == selections && text.contains("phalanx.conv"),
            "{text}"
        );
    }
}

/// What is added to a convolution with a bias goes into its call, unless that would be a pass more.
#[test]
fn residuals_of_convolutions_are_joined() {
    let text = |dtype, add: fn(&Tensor, [&Tensor; 2]) -> Vec<Tensor>| {
        let g = Graph::new();
        let images = |name, channels| g.parameter(name, Shape::new(dtype, [64, 8, 8, channels]));
        let (x, residual) = (images("x", 8), images("residual", 16));
        let kernel = g.parameter("kernel", Shape::new(dtype, [3, 3, 8, 16]));
        let bias = g.parameter("bias", Shape::new(dtype, [16]));
        let y = x.conv(&kernel, of_images(1));
        let y = &y + bias.broadcast_in(&y.dims(), &[3]);
        let results = add(&y, [&residual, &bias]);
        let outputs: Vec<_> = results.iter().map(|result| ("result", result)).collect();
        let lowering = Lowering {
            kernels: Some(KernelSupport { tiles: false }),
            ..Lowering::new(Platform::Cpu, "residuals")
        };
        let program = g.finish(&outputs).unwrap();
        program.simplified().to_stablehlo(&lowering)
    };
    let joined =
        |text: &str| !text.contains("stablehlo.add") && !text.contains("stablehlo.maximum");
    let sum = text(DType::F32, |y, [residual, _]| vec![residual + y]);
    assert!(joined(&sum), "{sum}");
    let ramp = text(DType::F32, |y, [residual, _]| {
        let sum = y + residual;
        vec![sum.maximum(&sum.like(0.0))]
    });
    assert!(joined(&ramp) && ramp.contains(r#""relu" = true"#), "{ramp}");
    // Another use; a ramp before; a vector that would be written out for each pixel; 16 bits, which the call would round before the sum.
    let used = text(DType::F32, |y, [residual, _]| vec![y + residual, y.tanh()]);
    let after = text(DType::F32, |y, [residual, _]| {
        vec![y.maximum(&y.like(0.0)) + residual]
    });
    let repeated = text(DType::F32, |y, [_, bias]| {
        vec![y + bias.exp().broadcast_in(&y.dims(), &[3])]
    });
    let short = text(DType::Bf16, |y, [residual, _]| vec![y + residual]);
    for text in [used, after, repeated, short] {
        assert!(!joined(&text), "{text}");
    }
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
        kernels: Some(KernelSupport { tiles: false }),
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
fn kernels_take_bf16() {
    let lowering = Lowering {
        kernels: Some(KernelSupport { tiles: false }),
        host_reductions: true,
        ..Lowering::new(Platform::Cpu, "kernels_bf16")
    };
    let text = bf16_kernels().simplified().to_stablehlo(&lowering);
    assert_eq!(golden::mismatch("kernels_bf16", &text, COMMAND), None);
    let images = |line: &&str| line.contains("convert") && line.contains("tensor<64x8x8");
    assert_eq!(text.lines().find(images), None);
    assert_eq!(text.matches("@\"phalanx.column_sums\"").count(), 1);
    let mut calls = text.lines().filter(|line| line.contains("@\"phalanx."));
    assert!(calls.all(|call| call.contains("bf16")), "{text}");
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
fn all_digits_of_f32_count_where_that_is_asked_for() {
    let text = |dtype, full_f32| {
        let g = Graph::new();
        let x = g.parameter("x", Shape::new(dtype, [1, 5, 5, 2]));
        let kernel = g.parameter("kernel", Shape::new(dtype, [3, 3, 2, 4]));
        let y = x.conv(&kernel, of_images(0)).reshape(&[9, 4]);
        let product = y.matmul(&y.transpose(&[1, 0]));
        let program = g.finish(&[("z", &product)]).unwrap();
        program.to_stablehlo(&Lowering {
            full_f32,
            ..Lowering::new(Platform::Cuda, "digits")
        })
    };
    let all = text(DType::F32, true);
    assert!(all.contains("precision = [HIGHEST, HIGHEST]"), "{all}");
    let of_convolution =
        "precision_config = [#stablehlo<precision HIGHEST>, #stablehlo<precision HIGHEST>]";
    assert!(all.contains(of_convolution), "{all}");
    for text in [text(DType::F32, false), text(DType::Bf16, true)] {
        assert!(!text.contains("HIGHEST"), "{text}");
        assert!(!text.contains("precision_config"), "{text}");
    }
}

#[test]
fn memories_are_calls_where_they_are_registered() {
    let calls = |dtype, registered| {
        let g = Graph::new();
        let given = |name, dims: &[usize]| g.parameter(name, Shape::new(dtype, dims));
        let x = given("x", &[2, 3, 8]);
        let (recurrent, bias) = (given("recurrent", &[2, 8]), given("bias", &[8]));
        let state = given("state", &[2, 2]);
        let loss = x.lstm(&recurrent, &bias, [&state, &state]).states.sum_all();
        let slope = gradients(&loss, &[&x]).remove(0).unwrap();
        let program = g.finish(&[("x", &slope)]).unwrap().simplified();
        assert_eq!(program.gains_from_host_lstm(), dtype == DType::F32);
        assert!(!program.gains_from_kernels());
        let text = program.to_stablehlo(&Lowering {
            host_lstm: registered,
            other_devices: 1,
            ..Lowering::new(Platform::Cpu, "calls")
        });
        let lines = text.lines().filter(|line| line.contains("phalanx.lstm"));
        let found = lines.clone().count();
        let shared = lines.filter(|line| line.contains(r#""replicas" = 2 : i64"#));
        assert_eq!(shared.count(), found);
        assert_eq!(text.contains("stablehlo.while"), found == 0, "{text}");
        found
    };
    assert_eq!(calls(DType::F32, true), 2);
    assert_eq!(calls(DType::F32, false), 0);
    assert_eq!(calls(DType::F64, true), 0);
}

#[test]
fn gated_units_are_calls_where_they_are_registered() {
    let calls = |dtype, registered| {
        let g = Graph::new();
        let given = |name, dims: &[usize]| g.parameter(name, Shape::new(dtype, dims));
        let (x, state) = (given("x", &[2, 3, 6]), given("state", &[2, 2]));
        let (recurrent, bias) = (given("recurrent", &[2, 6]), given("bias", &[6]));
        let loss = x.gru(&recurrent, &bias, &state).sum_all();
        let slope = gradients(&loss, &[&x]).remove(0).unwrap();
        let program = g.finish(&[("x", &slope)]).unwrap().simplified();
        assert_eq!(program.gains_from_host_lstm(), dtype == DType::F32);
        let text = program.to_stablehlo(&Lowering {
            host_lstm: registered,
            ..Lowering::new(Platform::Cpu, "calls")
        });
        let found = text
            .lines()
            .filter(|line| line.contains("phalanx.gru"))
            .count();
        assert_eq!(text.contains("stablehlo.while"), found == 0, "{text}");
        found
    };
    assert_eq!(calls(DType::F32, true), 2);
    assert_eq!(calls(DType::F32, false), 0);
    assert_eq!(calls(DType::F64, true), 0);
}

#[test]
fn rows_of_large_tables_are_calls_where_they_are_registered() {
    let calls = |dtype, dims: &[usize], dim, registered| {
        let g = Graph::new();
        let table = g.parameter("table", Shape::new(dtype, dims));
        let places = g.parameter("places", Shape::new(DType::I32, [16, 8]));
        let program = g.finish(&[("rows", &table.gather(&places, dim))]);
        let program = program.unwrap();
        let text = program.to_stablehlo(&Lowering {
            host_rows: registered,
            other_devices: 1,
            ..Lowering::new(Platform::Cpu, "rows")
        });
        let found = text.contains("phalanx.rows");
        assert_eq!(found, !text.contains("stablehlo.gather"), "{text}");
        assert_eq!(found, registered && program.gains_from_host_rows());
        assert_eq!(found, text.contains(r#""replicas" = 2 : i64"#), "{text}");
        found
    };
    let large: &[usize] = &[1 << 18, 16];
    assert!(calls(DType::F32, large, 0, true));
    assert!(calls(DType::Bf16, &[1 << 15, 8, 32], 0, true));
    assert!(!calls(DType::F32, large, 0, false));
    // A table in the caches, short rows, columns.
    assert!(!calls(DType::F32, &[1 << 12, 16], 0, true));
    assert!(!calls(DType::F32, &[1 << 20, 8], 0, true));
    assert!(!calls(DType::F32, &[16, 1 << 18], 1, true));
}

type Rows = fn(&Tensor, &Tensor) -> Tensor;

/// Whether rows of a table of these dims, at indices of these, are summed by a call.
fn sums_by_call(dims: &[usize], of_indices: [usize; 2], rows: Rows) -> bool {
    let g = Graph::new();
    let table = g.parameter("table", Shape::f32(dims.to_vec()));
    let indices = g.parameter("indices", Shape::new(DType::I32, of_indices));
    let program = g.finish(&[("sums", &rows(&table, &indices))]).unwrap();
    let text = program.to_stablehlo(&Lowering {
        host_rows: true,
        ..Lowering::new(Platform::Cpu, "sums")
    });
    let found = text.contains("phalanx.row_sums");
    assert_eq!(found, !text.contains("stablehlo.gather"), "{text}");
    assert!(!found || program.gains_from_host_rows());
    found
}

const TABLE: &[usize] = &[1000, 8];
const INDICES: [usize; 2] = [16, 128];

#[test]
fn sums_of_rows_are_calls_where_they_are_registered() {
    let mean: Rows = |table, indices| table.gather(indices, 0).mean(&[1]);
    assert!(sums_by_call(TABLE, INDICES, mean));
    assert!(sums_by_call(&[1000, 2, 4], INDICES, mean));
    assert!(sums_by_call(TABLE, INDICES, |table, indices| table
        .gather(indices, 0)
        .sum(&[0, 1])));
    // Few rows, short rows, few at all, a dim of the rows, dims apart.
    assert!(!sums_by_call(TABLE, [1024, 2], mean));
    assert!(!sums_by_call(&[1000, 4], INDICES, mean));
    assert!(!sums_by_call(TABLE, [16, 64], mean));
    assert!(!sums_by_call(TABLE, INDICES, |table, indices| table
        .gather(indices, 0)
        .sum(&[2])));
    assert!(!sums_by_call(TABLE, INDICES, |table, indices| table
        .gather(indices, 0)
        .sum(&[0])));
    assert!(!sums_by_call(TABLE, INDICES, |table, indices| table
        .gather(indices, 0)
        .max(&[1])));
    assert!(!sums_by_call(TABLE, INDICES, |table, indices| {
        let rows = table.gather(indices, 0);
        rows.sum(&[1]) + rows.max(&[1])
    }));
}

#[test]
fn sums_of_rows_that_are_checked_left_out_or_weighed_are_calls() {
    assert!(sums_by_call(TABLE, INDICES, |table, indices| checked(
        table, indices
    )
    .sum(&[1])));
    assert!(sums_by_call(TABLE, INDICES, |table, indices| {
        let rows = checked(table, indices);
        let kept = indices.greater(&indices.like(0.0));
        let kept = kept.broadcast_in(&rows.dims(), &[0, 1]);
        kept.select(&rows, &rows.zeros_like()).sum(&[1])
    }));
    assert!(sums_by_call(TABLE, INDICES, |table, indices| weighed(
        checked(table, indices),
        indices
    )
    .sum(&[1])));
    // Ones instead of rows, weights below the check, weights of columns.
    assert!(!sums_by_call(TABLE, INDICES, |table, indices| {
        let rows = table.gather(indices, 0);
        let kept = indices.greater(&indices.like(0.0));
        let kept = kept.broadcast_in(&rows.dims(), &[0, 1]);
        kept.select(&rows, &rows.like(1.0)).sum(&[1])
    }));
    assert!(!sums_by_call(TABLE, INDICES, |table, indices| {
        let rows = weighed(table.gather(indices, 0), indices);
        let kept = indices.greater(&indices.like(0.0));
        let kept = kept.broadcast_in(&rows.dims(), &[0, 1]);
        kept.select(&rows, &rows.zeros_like()).sum(&[1])
    }));
    assert!(!sums_by_call(TABLE, INDICES, |table, indices| {
        let rows = table.gather(indices, 0);
        let weights = table.sum(&[0]).broadcast_in(&rows.dims(), &[2]);
        (rows * weights).sum(&[1])
    }));
}

/// Rows of a table, NaN for an index past it.
fn checked(table: &Tensor, indices: &Tensor) -> Tensor {
    let rows = table.gather(indices, 0);
    let inside = indices.less(&indices.like(table.dim(0) as f64));
    let inside = inside.broadcast_in(&rows.dims(), &[0, 1]);
    inside.select(&rows, &rows.like(f64::NAN))
}

/// Each row multiplied with a number of its own.
fn weighed(rows: Tensor, indices: &Tensor) -> Tensor {
    let weights = indices
        .convert(DType::F32)
        .broadcast_in(&rows.dims(), &[0, 1]);
    rows * weights
}

#[test]
fn reductions_beside_16_bit_floats_are_calls_where_they_are_registered() {
    let calls = |dtype, dims: &[usize], reduced: &[usize], registered| {
        let g = Graph::new();
        let x = g.parameter("x", Shape::new(dtype, dims));
        let short = g.parameter("short", Shape::new(DType::Bf16, [2]));
        let outputs = [
            ("sum", &x.sum(reduced)),
            ("maximum", &x.max(reduced)),
            ("short", &(-&short)),
        ];
        let program = g.finish(&outputs).unwrap();
        let lowering = |host_reductions| Lowering {
            host_reductions,
            other_devices: 1,
            ..Lowering::new(Platform::Cpu, "reductions")
        };
        let text = program.to_stablehlo(&lowering(registered));
        let count = |what: &str| text.matches(what).count();
        let found = [count("phalanx.column_sums"), count("phalanx.row_reduction")];
        let all = found[0] + found[1];
        assert_eq!(count("stablehlo.reduce("), 2 - all, "{text}");
        assert_eq!(count(r#""replicas" = 2 : i64"#), all, "{text}");
        if registered {
            assert_eq!(program.gains_from_host_reductions(), all > 0, "{text}");
        }
        found
    };
    let sizes: &[usize] = &[8, 64, 4, 64];
    for dtype in [DType::F32, DType::Bf16, DType::F16] {
        // Columns have sums alone.
        assert_eq!(calls(dtype, sizes, &[0, 1], true), [1, 0]);
        assert_eq!(calls(dtype, sizes, &[3], true), [0, 2]);
        assert_eq!(calls(dtype, sizes, &[2, 3], true), [0, 2]);
        assert_eq!(calls(dtype, sizes, &[3], false), [0, 0]);
    }
    // Few rows, of which the long ones are the compiler's.
    assert_eq!(calls(DType::F32, &[2, 1 << 16], &[0], true), [1, 0]);
    assert_eq!(calls(DType::F32, &[2, 1 << 17], &[0], true), [0, 0]);
    assert_eq!(calls(DType::F32, &[32, 1 << 17], &[0], true), [1, 0]);
    // Dims in the middle, all of them, short rows, few elements, whole numbers and f64.
    assert_eq!(calls(DType::F32, sizes, &[1, 2], true), [0, 0]);
    assert_eq!(calls(DType::F32, sizes, &[0, 1, 2, 3], true), [0, 0]);
    assert_eq!(calls(DType::F32, &[4096, 16], &[1], true), [0, 0]);
    assert_eq!(calls(DType::F32, &[8, 64], &[1], true), [0, 0]);
    assert_eq!(calls(DType::I32, sizes, &[3], true), [0, 0]);
    assert_eq!(calls(DType::F64, sizes, &[3], true), [0, 0]);
    let g = Graph::new();
    let x = g.parameter("x", Shape::f32([256, 256]));
    let program = g.finish(&[("sums", &x.sum(&[0]))]).unwrap();
    assert!(!program.gains_from_host_reductions());
}

#[test]
fn an_lstm_of_16_bits_and_its_derivative_sum_in_32() {
    let g = Graph::new();
    let given = |name, dims: &[usize]| g.parameter(name, Shape::new(DType::Bf16, dims));
    let x = given("x", &[2, 3, 8]);
    let (recurrent, bias) = (given("recurrent", &[2, 8]), given("bias", &[8]));
    let state = given("state", &[2, 2]);
    let loss = x.lstm(&recurrent, &bias, [&state, &state]).states.sum_all();
    let found = gradients(&loss, &[&x, &recurrent, &state]);
    let named: Vec<_> = ["x", "recurrent", "state"]
        .into_iter()
        .zip(found.iter().flatten())
        .collect();
    assert_eq!(named.len(), 3);
    assert!(named.iter().all(|(_, slope)| slope.dtype() == DType::Bf16));
    let text = g.finish(&named).unwrap().simplified();
    let text = text.to_stablehlo(&Lowering {
        native_bf16_dot: true,
        ..Lowering::new(Platform::Cpu, "sums")
    });
    let dots = text.lines().filter(|line| line.contains("dot_general"));
    let wide = dots.clone().filter(|line| line.ends_with("f32>"));
    // The state by the kernel, back, and the gradient of the kernel.
    assert_eq!((dots.count(), wide.count()), (3, 3), "{text}");
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
