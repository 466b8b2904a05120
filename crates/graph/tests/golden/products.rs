//! Which products, and what else is made of rows, are calls.

use phalanx_graph::op::DotDims;
use phalanx_graph::{
    Bf16Matmul, DType, Graph, HostMatmul, Lowering, Platform, Program, Shape, Tensor, gradients,
};

/// A product in a branch or in a loop.
fn inner_product(dtype: DType, in_loop: bool) -> Program {
    let g = Graph::new();
    let x = g.parameter("x", Shape::new(dtype, [1024, 256]));
    let w = g.parameter("w", Shape::new(dtype, [256, 256]));
    let results = if in_loop {
        let turn = |x: &[Tensor], _: &[Tensor], w: &[Tensor]| (vec![x[0].matmul(&w[0])], vec![]);
        g.scan(3, &[&x], &[], &[&w], turn).0
    } else {
        let index = g.parameter("index", Shape::scalar(DType::I32));
        g.case(&index, &[&x, &w], 2, |_, given| {
            vec![given[0].matmul(&given[1])]
        })
    };
    g.finish(&[("x", &results[0])]).unwrap()
}

#[test]
fn products_in_branches_and_loops_are_calls_too() {
    for in_loop in [false, true] {
        let program = inner_product(DType::F32, in_loop);
        let lowering = Lowering {
            host_matmul: HostMatmul::WhereLarge,
            ..Lowering::new(Platform::Cpu, "calls")
        };
        assert!(program.gains_from_host_matmul(HostMatmul::WhereLarge, true));
        assert!(program.to_stablehlo(&lowering).contains("phalanx.product"));
        let program = inner_product(DType::Bf16, in_loop);
        let lowering = Lowering {
            bf16_matmul: Bf16Matmul::WhereLarge,
            ..Lowering::new(Platform::Cpu, "calls")
        };
        assert!(program.gains_from_bf16_matmul());
        assert!(
            program
                .to_stablehlo(&lowering)
                .contains("phalanx.bf16_product")
        );
    }
}

#[test]
fn products_are_calls_where_they_are_registered() {
    let calls = |dtype, rows: usize, products: HostMatmul| {
        let g = Graph::new();
        let x = g.parameter("x", Shape::new(dtype, [rows, 128, 256]));
        let w = g.parameter("w", Shape::new(dtype, [256, 4, 64]));
        let dims = DotDims {
            dtype,
            ..heads_of_last()
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
            program.gains_from_host_matmul(products, true),
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
    assert_eq!(calls(DType::F32, 16, HostMatmul::WhereLarge), 3);
    assert_eq!(calls(DType::F32, 16, HostMatmul::AlsoSmall), 3);
    assert_eq!(calls(DType::F32, 16, HostMatmul::Never), 0);
    assert_eq!(calls(DType::F32, 1, HostMatmul::WhereLarge), 0);
    assert_eq!(calls(DType::F32, 1, HostMatmul::AlsoSmall), 3);
    assert_eq!(calls(DType::Bf16, 16, HostMatmul::AlsoSmall), 0);
}

/// A sum of a product and something else, and a program with it.
fn sum_with(add: impl Fn(&Graph, &Tensor) -> Tensor, is_returned: bool) -> Program {
    let g = Graph::new();
    let x = g.parameter("x", Shape::f32([16, 128, 256]));
    let w = g.parameter("w", Shape::f32([256, 4, 64]));
    let product = x.dot(&w, heads_of_last());
    let sum = add(&g, &product);
    let results = [("sum", &sum), ("product", &product)];
    g.finish(&results[..1 + usize::from(is_returned)]).unwrap()
}

/// `[batch, tokens, inputs]` by `[inputs, heads, size]`.
fn heads_of_last() -> DotDims {
    DotDims {
        lhs_batch: vec![],
        rhs_batch: vec![],
        lhs_contract: vec![2],
        rhs_contract: vec![0],
        dtype: DType::F32,
    }
}

#[test]
fn the_bias_of_columns_is_added_by_the_call_of_the_product() {
    let biased = |program: &Program, host_matmul| {
        let text = program.to_stablehlo(&Lowering {
            host_matmul,
            ..Lowering::new(Platform::Cpu, "biased")
        });
        let operands = "tensor<2048x256xf32>, tensor<256x256xf32>, tensor<256xf32>";
        let call = text.lines().any(|line| line.contains(operands));
        assert_eq!(call, !text.contains("stablehlo.add"), "{text}");
        call
    };
    let bias = |g: &Graph| g.parameter("bias", Shape::f32([4, 64]));
    let spread = |bias: &Tensor| bias.broadcast_in(&[16, 128, 4, 64], &[2, 3]);
    let after = sum_with(|g, product| product + spread(&bias(g)), false);
    let before = sum_with(|g, product| spread(&bias(g)) + product, false);
    assert!(biased(&after, HostMatmul::WhereLarge));
    assert!(biased(&before, HostMatmul::AlsoSmall));
    assert!(!biased(&after, HostMatmul::Never));
    // The product itself is needed.
    let returned = sum_with(|g, product| product + spread(&bias(g)), true);
    assert!(!biased(&returned, HostMatmul::WhereLarge));
    let twice = sum_with(|g, product| (product + spread(&bias(g))) * product, false);
    assert!(!biased(&twice, HostMatmul::WhereLarge));
    // What is added is no bias of columns.
    let residual = sum_with(
        |g, product| product + g.parameter("residual", product.shape()),
        false,
    );
    assert!(!biased(&residual, HostMatmul::WhereLarge));
    let of_sizes = sum_with(
        |g, product| {
            let sizes = g.parameter("sizes", Shape::f32([64]));
            product + sizes.broadcast_in(&product.dims(), &[3])
        },
        false,
    );
    assert!(!biased(&of_sizes, HostMatmul::WhereLarge));
    let of_rows = sum_with(
        |g, product| {
            let rows = g.parameter("rows", Shape::f32([16, 128]));
            product + rows.broadcast_in(&product.dims(), &[0, 1])
        },
        false,
    );
    assert!(!biased(&of_rows, HostMatmul::WhereLarge));
}

#[test]
fn products_of_heads_are_calls_that_leave_their_operands_in_place() {
    let g = Graph::new();
    let given = |name, tokens| g.parameter(name, Shape::f32([16, tokens, 4, 64]));
    let (queries, keys) = (given("queries", 128), given("keys", 96));
    let dims = DotDims {
        lhs_batch: vec![0, 2],
        rhs_batch: vec![0, 2],
        lhs_contract: vec![3],
        rhs_contract: vec![3],
        dtype: DType::F32,
    };
    let scores = queries.dot(&keys, dims);
    let loss = scores.square().mean_all();
    let slopes: Vec<_> = gradients(&loss, &[&queries, &keys])
        .into_iter()
        .flatten()
        .collect();
    let program = g.finish(&[("queries", &slopes[0]), ("keys", &slopes[1])]);
    let program = program.unwrap().simplified();
    assert!(program.gains_from_host_matmul(HostMatmul::WhereLarge, true));
    let text = program.to_stablehlo(&Lowering {
        host_matmul: HostMatmul::WhereLarge,
        ..Lowering::new(Platform::Cpu, "heads")
    });
    let calls: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("phalanx.product"))
        .collect();
    assert_eq!(calls.len(), 3, "{text}");
    let [q, k] = [128, 96].map(|tokens| format!("tensor<16x{tokens}x4x64xf32>"));
    assert!(
        calls[0].contains(&format!("({q}, {k}) -> (tensor<64x128x96xf32>)")),
        "{text}"
    );
    assert!(
        calls
            .iter()
            .any(|call| call.contains(&format!("(tensor<64x128x96xf32>, {k})"))),
        "{text}"
    );
    assert!(
        calls.iter().any(|call| call.contains(&format!(
            "tensor<64x128x96xf32>, {q}) -> (tensor<64x96x64xf32>)"
        ))),
        "{text}"
    );
}

/// A biased product, its two gradients, products of a batch of pairs whose batch dims stand apart, and their gradients.
fn products_of_bf16(rows: usize, operands: DType, result: DType) -> Program {
    let g = Graph::new();
    let x = g.parameter("x", Shape::new(operands, [rows, 128, 256]));
    let w = g.parameter("w", Shape::new(operands, [256, 4, 64]));
    let dims = |batch: &[usize], lhs: &[usize], rhs: &[usize]| DotDims {
        lhs_batch: batch.to_vec(),
        rhs_batch: batch.to_vec(),
        lhs_contract: lhs.to_vec(),
        rhs_contract: rhs.to_vec(),
        dtype: result,
    };
    let y = x.dot(&w, dims(&[], &[2], &[0])).convert(operands);
    let scores = y.dot(&y.tanh(), dims(&[0, 2], &[3], &[3]));
    let loss = scores.convert(DType::F32).square().mean_all();
    let slopes: Vec<_> = gradients(&loss, &[&x, &w]).into_iter().flatten().collect();
    let program = g.finish(&[("x", &slopes[0]), ("w", &slopes[1])]).unwrap();
    program.simplified()
}

#[test]
fn products_of_bf16_are_calls_of_f32s_where_those_are_as_fast() {
    let calls = |native_bf16_dot| {
        let program = products_of_bf16(16, DType::Bf16, DType::Bf16);
        let text = program.to_stablehlo(&Lowering {
            native_bf16_dot,
            host_matmul: HostMatmul::WhereLarge,
            ..Lowering::new(Platform::Cpu, "calls")
        });
        let found = text.matches("phalanx.product").count();
        let gains = program.gains_from_host_matmul(HostMatmul::WhereLarge, native_bf16_dot);
        assert_eq!(gains, found > 0, "{text}");
        // Nothing is widened for them.
        let products = text.lines().filter(|line| line.contains("phalanx.product"));
        assert!(
            products.clone().all(|line| !line.contains("f32>")),
            "{text}"
        );
        found
    };
    assert_eq!((calls(false), calls(true)), (6, 0));
}

#[test]
fn products_of_bf16_are_calls_where_they_gain() {
    let calls = |rows, operands, result, bf16_matmul| {
        let program = products_of_bf16(rows, operands, result);
        let lowering = Lowering {
            bf16_matmul,
            ..Lowering::new(Platform::Cpu, "calls")
        };
        let text = program.to_stablehlo(&lowering);
        let count = |text: &str, what| text.lines().filter(|line| line.contains(what)).count();
        let found = count(&text, "phalanx.bf16_product");
        if bf16_matmul == Bf16Matmul::WhereLarge {
            assert_eq!(found > 0, program.gains_from_bf16_matmul(), "{text}");
        }
        // Each takes its share of the threads where two devices compute at once; instructions for bf16 make no difference.
        let beside = program.to_stablehlo(&Lowering {
            other_devices: 1,
            native_bf16_dot: false,
            ..lowering
        });
        assert_eq!(count(&beside, "phalanx.bf16_product"), found);
        assert_eq!(count(&beside, r#""replicas" = 2 : i64"#), found);
        (found, count(&text, "dot_general"))
    };
    let (bf16, f32) = (DType::Bf16, DType::F32);
    let all = |result| calls(16, bf16, result, Bf16Matmul::Always);
    // Of the three pairs of products that gradients are, all.
    assert_eq!((all(bf16), all(f32)), ((6, 0), (6, 0)));
    let large = |rows| calls(rows, bf16, bf16, Bf16Matmul::WhereLarge);
    assert_eq!((large(16), large(1)), ((6, 0), (0, 6)));
    assert_eq!(calls(16, bf16, bf16, Bf16Matmul::Never), (0, 6));
    for operands in [f32, DType::F16] {
        assert_eq!(calls(16, operands, f32, Bf16Matmul::Always), (0, 6));
    }
}

/// Something of rows, and what a program of it has of softmax: the calls, and the maxima that are the compiler's.
fn softmaxes(dims: &[usize], of: impl Fn(&Tensor) -> Tensor, registered: bool) -> [usize; 2] {
    let g = Graph::new();
    let x = g.parameter("x", Shape::f32(dims));
    let y = of(&x);
    let slopes = gradients(&y.square().mean_all(), &[&x]);
    let slope = slopes.into_iter().flatten().next().unwrap();
    let program = g.finish(&[("y", &y), ("slope", &slope)]).unwrap();
    let program = program.simplified();
    let text = program.to_stablehlo(&Lowering {
        host_softmax: registered,
        other_devices: 1,
        ..Lowering::new(Platform::Cpu, "softmax")
    });
    let calls = text.matches("phalanx.softmax").count();
    assert_eq!(
        calls > 0,
        registered && program.gains_from_host_softmax(),
        "{text}"
    );
    assert_eq!(calls, text.matches(r#""replicas" = 2 : i64"#).count());
    [calls, text.matches("stablehlo.maximum").count()]
}

#[test]
fn the_parts_of_softmax_are_one_call_where_it_is_registered() {
    let dims: &[usize] = &[8, 64, 128];
    assert_eq!(softmaxes(dims, |x| x.softmax(2), true), [1, 0]);
    assert_eq!(softmaxes(dims, |x| x.log_softmax(2), true), [1, 0]);
    let twice = |x: &Tensor| (x * 2.0).softmax(2) + x.log_softmax(2);
    assert_eq!(softmaxes(dims, twice, true), [2, 0]);
    assert_eq!(softmaxes(dims, |x| x.softmax(2), false), [0, 1]);
    // Of columns, of few numbers, of short rows.
    assert_eq!(softmaxes(dims, |x| x.softmax(1), true), [0, 1]);
    assert_eq!(softmaxes(&[8, 4, 128], |x| x.softmax(2), true), [0, 1]);
    assert_eq!(softmaxes(&[4096, 32], |x| x.softmax(1), true), [0, 1]);
    // The maximum of something else.
    let other = |x: &Tensor| {
        let largest = (x * 2.0).max(&[2]).keep_dims(&[2]);
        (x - &largest).exp().sum(&[2])
    };
    assert_eq!(softmaxes(dims, other, true)[0], 0);
    // A difference from the difference.
    let twice = |x: &Tensor| {
        let largest = x.max(&[2]).keep_dims(&[2]);
        (x - (x - &largest)).exp().sum(&[2])
    };
    assert_eq!(softmaxes(dims, twice, true)[0], 0);
}
