//! Kernels against the same made of plain ops, and their tangents.

use phalanx_graph::{
    DType, FusedActivation, HostTensor, Kernel, Mask, Op, Pool2d, Shape, Tensor, gradients,
};
use phalanx_testkit::{Array, Interpreter, assert_close};

use crate::tangents::{check, convolution};
use crate::{f64s, lone, program, run, sample};

const EPSILON: f64 = 1e-3;

fn inputs(shapes: &[Shape]) -> Vec<HostTensor> {
    let each = shapes.iter().enumerate();
    each.map(|(i, shape)| sample(&shape.dims, i)).collect()
}

/// Compares a kernel with what plain ops make of the same inputs.
#[track_caller]
fn same(
    name: &str,
    kernel: Kernel,
    shapes: &[Shape],
    plain: impl FnOnce(&[Tensor]) -> Vec<Tensor>,
) {
    let plain = program(shapes, plain);
    let outputs: Vec<Shape> = plain
        .outputs
        .iter()
        .map(|(_, value)| plain.shape(*value).clone())
        .collect();
    let kernel = lone(Op::Kernel(kernel), shapes, &outputs);
    let inputs = inputs(shapes);
    let (got, expected) = (run(&kernel, &inputs), run(&plain, &inputs));
    for (got, expected) in got.iter().zip(&expected) {
        assert_close(name, &got.to_f64(), &expected.to_f64(), 1e-12);
    }
}

fn ramped(activation: FusedActivation, y: &Tensor) -> Tensor {
    match activation {
        FusedActivation::None => y.clone(),
        FusedActivation::Relu => y.maximum(&y.like(0.0)),
        FusedActivation::Clipped(ceiling) => y.clamp(0.0, ceiling),
    }
}

/// Mean, variance and the normalized `x`, of its last dim.
fn normal(x: &Tensor) -> [Tensor; 3] {
    let last = x.rank() - 1;
    let others: Vec<usize> = (0..last).collect();
    let mean = x.mean(&others);
    let centred = x - mean.broadcast_in(&x.dims(), &[last]);
    let variance = centred.square().mean(&others);
    let inverse = (&variance + EPSILON).rsqrt();
    [
        mean,
        variance,
        centred * inverse.broadcast_in(&x.dims(), &[last]),
    ]
}

const ACTIVATIONS: [FusedActivation; 3] = [
    FusedActivation::None,
    FusedActivation::Relu,
    FusedActivation::Clipped(0.8),
];

#[test]
fn normalisations_of_every_kind() {
    for (activation, residual) in ACTIVATIONS
        .into_iter()
        .flat_map(|activation| [(activation, false), (activation, true)])
    {
        let kernel = Kernel::BatchNorm {
            epsilon: EPSILON,
            activation,
        };
        let mut shapes = vec![f64s([3, 2, 4]), f64s([4]), f64s([4])];
        shapes.extend(residual.then(|| f64s([3, 2, 4])));
        let name = format!("{kernel:?}, residual: {residual}");
        let outputs = [f64s([3, 2, 4]), f64s([4]), f64s([4])];
        let alone = lone(Op::Kernel(kernel.clone()), &shapes, &outputs);
        check(&name, &alone, &[inputs(&shapes)]);
        same(&name, kernel, &shapes, |x| {
            let [mean, variance, z] = normal(&x[0]);
            let spread = |x: &Tensor| x.broadcast_in(&[3, 2, 4], &[2]);
            let y = z * spread(&x[1]) + spread(&x[2]);
            let y = x.get(3).map_or_else(|| y.clone(), |residual| &y + residual);
            vec![ramped(activation, &y), mean, variance]
        });
    }
}

/// Given x, gamma, beta, the residual and a cotangent: the gradients by all but the last, then mean, variance and result.
fn normalisation_and_gradients(mask: Mask, v: &[Tensor]) -> Vec<Tensor> {
    let [mean, variance, z] = normal(&v[0]);
    let spread = |x: &Tensor| x.broadcast_in(&[3, 2, 4], &[2]);
    let y = z * spread(&v[1]) + spread(&v[2]);
    let y = match mask {
        Mask::None => y,
        Mask::Beta(activation) => ramped(activation, &y),
        Mask::Output => ramped(FusedActivation::Relu, &(y + &v[3])),
    };
    let wrt = if mask == Mask::Output { 4 } else { 3 };
    let wrt: Vec<&Tensor> = v[..wrt].iter().collect();
    let found = gradients(&(&y * &v[4]).sum_all(), &wrt);
    let found = found.into_iter().map(|gradient| gradient.unwrap());
    found.chain([mean, variance, y]).collect()
}

/// The gradients of a normalisation, by the derivatives of plain ops.
#[test]
fn gradients_of_normalisations() {
    let masks = [
        Mask::None,
        Mask::Beta(FusedActivation::Relu),
        Mask::Beta(FusedActivation::Clipped(0.8)),
        Mask::Output,
    ];
    let (images, channel) = (f64s([3, 2, 4]), f64s([4]));
    for mask in masks {
        let shapes = [&images, &channel, &channel, &images, &images].map(Clone::clone);
        let plain = program(&shapes, |v| normalisation_and_gradients(mask, v));
        let given = inputs(&shapes);
        let mut expected = run(&plain, &given);
        let tail = expected.split_off(expected.len() - 3);
        let host = |x: &Array, shape: &Shape| HostTensor::new(shape.dims.clone(), &x.to_f64());
        let mut operands = vec![
            given[4].clone(),
            given[0].clone(),
            host(&tail[0], &channel),
            host(&tail[1], &channel),
            given[1].clone(),
        ];
        match mask {
            Mask::None => {}
            Mask::Beta(_) => operands.push(given[2].clone()),
            Mask::Output => operands.push(host(&tail[2], &images)),
        }
        let shapes: Vec<Shape> = operands.iter().map(|x| x.shape().clone()).collect();
        let outputs = [&images, &channel, &channel, &images].map(Clone::clone);
        let kernel = Kernel::BatchNormGradient {
            epsilon: EPSILON,
            mask,
        };
        let alone = lone(Op::Kernel(kernel), &shapes, &outputs[..expected.len()]);
        let found = run(&alone, &operands);
        if mask == Mask::Output {
            // A rectified value is 0 where the mask jumps.
            operands[5] = given[3].clone();
        }
        check(&format!("{mask:?}"), &alone, &[operands]);
        for (found, expected) in found.iter().zip(&expected) {
            assert_close(
                &format!("{mask:?}"),
                &found.to_f64(),
                &expected.to_f64(),
                1e-12,
            );
        }
    }
}

#[test]
fn convolutions_with_a_bias_a_residual_and_a_ramp() {
    let (x, kernel) = (f64s([2, 5, 4, 4]), f64s([3, 2, 2, 6]));
    for (activation, added) in ACTIVATIONS
        .iter()
        .flat_map(|&one| [(one, false), (one, true)])
    {
        let dims = convolution(2, 1);
        let op = Kernel::ConvBias {
            dims: dims.clone(),
            activation,
        };
        let given = [x.clone(), kernel.clone()];
        let y = program(&given, |v| vec![v[0].conv(&v[1], dims.clone())]);
        let y = y.shape(y.outputs[0].1).clone();
        let mut shapes = vec![x.clone(), kernel.clone(), f64s([6])];
        shapes.extend(added.then_some(y));
        let plain = |v: &[Tensor]| {
            let y = v[0].conv(&v[1], dims.clone());
            let biased = &y + v[2].broadcast_in(&y.dims(), &[0]);
            let sum = v
                .get(3)
                .map_or_else(|| biased.clone(), |more| &biased + more);
            vec![ramped(activation, &sum)]
        };
        let output = program(&shapes, plain);
        let output = output.shape(output.outputs[0].1).clone();
        let alone = lone(Op::Kernel(op.clone()), &shapes, &[output]);
        check(&format!("{activation:?}"), &alone, &[inputs(&shapes)]);
        same(&format!("{activation:?}"), op, &shapes, plain);
    }
}

/// `sum(conv(x, k) g)` is linear in each: the gradients are what makes it the same sum.
#[test]
fn gradients_of_convolutions_are_adjoint_to_them() {
    let (x, k) = (f64s([2, 5, 4, 4]), f64s([3, 2, 2, 6]));
    let dims = convolution(2, 1);
    let forward = program(&[x.clone(), k.clone()], |v| {
        vec![v[0].conv(&v[1], dims.clone())]
    });
    let y = forward.shape(forward.outputs[0].1).clone();
    let given = inputs(&[x.clone(), k.clone(), y.clone()]);
    let product = |a: &Array, b: &HostTensor| -> f64 {
        a.to_f64().iter().zip(b.to_f64()).map(|(a, b)| a * b).sum()
    };
    let expected = product(&run(&forward, &given[..2])[0], &given[2]);
    let to_input = Kernel::ConvInputGradient {
        dims: dims.clone(),
        input: x.dims.clone(),
    };
    let to_kernel = Kernel::ConvKernelGradient {
        dims,
        kernel: k.dims.clone(),
    };
    let rows = [
        (to_input.clone(), [2, 1], 0, &x),
        (to_kernel, [0, 2], 1, &k),
    ];
    for (kernel, [a, b], other, shape) in rows {
        let operands = [given[a].clone(), given[b].clone()];
        let shapes = operands.clone().map(|x| x.shape().clone());
        let name = kernel.name();
        let alone = lone(Op::Kernel(kernel), &shapes, std::slice::from_ref(shape));
        let found = product(&run(&alone, &operands)[0], &given[other]);
        assert_close(name, &[found], &[expected], 1e-12);
        check(name, &alone, &[operands.to_vec()]);
    }
    // Selected by where something is positive.
    let operands = [given[2].clone(), given[1].clone(), given[0].clone()];
    let shapes = operands.clone().map(|x| x.shape().clone());
    let whole = lone(
        Op::Kernel(to_input.clone()),
        &shapes[..2],
        std::slice::from_ref(&x),
    );
    let masked = lone(Op::Kernel(to_input), &shapes, std::slice::from_ref(&x));
    let whole = run(&whole, &operands[..2])[0].to_f64();
    let by = given[0].to_f64();
    let expected = whole
        .iter()
        .zip(by)
        .map(|(&g, by)| if by > 0.0 { g } else { 0.0 });
    assert_close(
        "masked",
        &run(&masked, &operands)[0].to_f64(),
        &expected.collect::<Vec<_>>(),
        0.0,
    );
    check("masked", &masked, &[operands.to_vec()]);
}

/// The same made of plain ops, step by step: states, cells and gates.
fn plain_lstm(x: &[Tensor]) -> Vec<Tensor> {
    let units = x[3].dim(1);
    let (mut h, mut c) = (x[3].clone(), x[4].clone());
    let mut rows = [Vec::new(), Vec::new(), Vec::new()];
    for step in 0..x[0].dim(1) {
        let row = x[0].slice_dim(1, step, step + 1);
        let row = row.reshape(&[x[0].dim(0), 4 * units]);
        let z = row + h.matmul(&x[1]) + &x[2];
        let cut = |gate: usize| z.slice_dim(1, gate * units, (gate + 1) * units);
        let [i, f, o] = [0, 1, 3].map(|gate| cut(gate).logistic());
        let g = cut(2).tanh();
        c = &f * &c + &i * &g;
        h = &o * c.tanh();
        let gates = Tensor::concat(&[&i, &f, &g, &o], 1);
        for (rows, row) in rows.iter_mut().zip([h.clone(), c.clone(), gates]) {
            rows.push(row.reshape(&[row.dim(0), 1, row.dim(1)]));
        }
    }
    let joined = |rows: &Vec<Tensor>| Tensor::concat(&rows.iter().collect::<Vec<_>>(), 1);
    rows.iter().map(joined).collect()
}

fn lstm_shapes() -> [Shape; 7] {
    let (state, sequence) = (f64s([2, 2]), f64s([2, 3, 2]));
    let x = f64s([2, 3, 8]);
    let other = sequence.clone();
    [
        x,
        f64s([2, 8]),
        f64s([8]),
        state.clone(),
        state,
        sequence,
        other,
    ]
}

#[test]
fn memories_and_their_gradients() {
    let shapes = lstm_shapes();
    let outputs = [shapes[5].clone(), shapes[5].clone(), shapes[0].clone()];
    let alone = lone(Op::Kernel(Kernel::Lstm), &shapes[..5], &outputs);
    check("lstm", &alone, &[inputs(&shapes[..5])]);
    same("lstm", Kernel::Lstm, &shapes[..5], plain_lstm);
    for with_cells in [false, true] {
        let plain = program(&shapes, |v| {
            let made = plain_lstm(&v[..5]);
            let mut loss = (&made[0] * &v[5]).sum_all();
            if with_cells {
                loss = loss + (&made[1] * &v[6]).sum_all();
            }
            let wrt = [&v[0], &v[3], &v[4]];
            let found = gradients(&loss, &wrt).into_iter().map(Option::unwrap);
            found.chain(made[1..].iter().cloned()).collect()
        });
        let given = inputs(&shapes);
        let mut expected = run(&plain, &given);
        let tail = expected.split_off(3);
        let host = |x: &Array, shape: &Shape| HostTensor::new(shape.dims.clone(), &x.to_f64());
        let mut operands = vec![
            given[5].clone(),
            given[1].clone(),
            given[4].clone(),
            host(&tail[0], &shapes[5]),
            host(&tail[1], &shapes[0]),
        ];
        operands.extend(with_cells.then(|| given[6].clone()));
        let kinds: Vec<Shape> = operands.iter().map(|x| x.shape().clone()).collect();
        let results = [shapes[0].clone(), shapes[3].clone(), shapes[3].clone()];
        let alone = lone(Op::Kernel(Kernel::LstmGradient), &kinds, &results);
        for (found, expected) in run(&alone, &operands).iter().zip(&expected) {
            assert_close("gradient", &found.to_f64(), &expected.to_f64(), 1e-12);
        }
        check("gradient", &alone, &[operands]);
    }
}

/// Gated recurrent units made of plain ops, step by step: states and gates.
fn plain_gru(x: &[Tensor]) -> Vec<Tensor> {
    let units = x[3].dim(1);
    let mut h = x[3].clone();
    let mut rows = [Vec::new(), Vec::new()];
    for step in 0..x[0].dim(1) {
        let row = x[0].slice_dim(1, step, step + 1);
        let row = row.reshape(&[x[0].dim(0), 3 * units]);
        let product = h.matmul(&x[1]) + &x[2];
        let cut = |of: &Tensor, gate: usize| of.slice_dim(1, gate * units, (gate + 1) * units);
        let [z, r] = [0, 1].map(|gate| (cut(&row, gate) + cut(&product, gate)).logistic());
        let inner = cut(&product, 2);
        let g = (cut(&row, 2) + &r * &inner).tanh();
        h = &g + &z * (&h - &g);
        let gates = Tensor::concat(&[&z, &r, &g, &inner], 1);
        for (rows, row) in rows.iter_mut().zip([h.clone(), gates]) {
            rows.push(row.reshape(&[row.dim(0), 1, row.dim(1)]));
        }
    }
    let joined = |rows: &Vec<Tensor>| Tensor::concat(&rows.iter().collect::<Vec<_>>(), 1);
    rows.iter().map(joined).collect()
}

#[test]
fn gated_units_and_their_gradients() {
    let (x, state, sequence) = (f64s([2, 3, 6]), f64s([2, 2]), f64s([2, 3, 2]));
    let gates = f64s([2, 3, 8]);
    let shapes = [
        x.clone(),
        f64s([2, 6]),
        f64s([6]),
        state.clone(),
        sequence.clone(),
    ];
    let outputs = [sequence.clone(), gates.clone()];
    let alone = lone(Op::Kernel(Kernel::Gru), &shapes[..4], &outputs);
    check("gru", &alone, &[inputs(&shapes[..4])]);
    same("gru", Kernel::Gru, &shapes[..4], plain_gru);
    let plain = program(&shapes, |v| {
        let made = plain_gru(&v[..4]);
        let loss = (&made[0] * &v[4]).sum_all();
        // By the bias: the sum of those by the products.
        let found = gradients(&loss, &[&v[0], &v[2], &v[3]]).into_iter();
        found.map(Option::unwrap).chain(made).collect()
    });
    let given = inputs(&shapes);
    let expected = run(&plain, &given);
    let host = |x: &Array, shape: &Shape| HostTensor::new(shape.dims.clone(), &x.to_f64());
    let operands = vec![
        given[4].clone(),
        given[1].clone(),
        given[3].clone(),
        host(&expected[3], &sequence),
        host(&expected[4], &gates),
    ];
    let kinds: Vec<Shape> = operands.iter().map(|x| x.shape().clone()).collect();
    let results = [x.clone(), x, state];
    let alone = lone(Op::Kernel(Kernel::GruGradient), &kinds, &results);
    let found: Vec<Vec<f64>> = run(&alone, &operands).iter().map(Array::to_f64).collect();
    let column = |at: usize| found[1].iter().skip(at).step_by(6).sum::<f64>();
    let sums: Vec<f64> = (0..6).map(column).collect();
    for (found, expected) in [&found[0], &sums, &found[2]].into_iter().zip(&expected) {
        assert_close("gradient", found, &expected.to_f64(), 1e-12);
    }
    check("gradient", &alone, &[operands]);
}

/// Windows that overlap, with equal elements in them.
#[test]
fn pooling_gives_the_cotangent_to_the_first_of_equal_elements() {
    let pool = Pool2d {
        size: [2, 2],
        strides: [1, 1],
        padding: [(0, 0), (1, 0)],
    };
    let x = HostTensor::new([1, 2, 3, 1], &[1.0f64, 2.0, 2.0, 3.0, 2.0, 1.0]);
    let shape = x.shape().clone();
    let y = f64s([1, 1, 3, 1]);
    let place = Shape::new(DType::U8, [1, 1, 3, 1]);
    let pooling = lone(
        Op::Kernel(Kernel::MaxPool2d(pool)),
        std::slice::from_ref(&shape),
        &[y.clone(), place.clone()],
    );
    let pooled = run(&pooling, std::slice::from_ref(&x));
    assert_eq!(pooled[0].to_f64(), [3.0, 3.0, 2.0]);
    assert_eq!(pooled[1].to_f64(), [3.0, 2.0, 0.0]);
    let input = shape.dims.clone();
    let gradient = lone(
        Op::Kernel(Kernel::MaxPool2dGradient { pool, input }),
        &[place, y],
        &[shape],
    );
    let g = HostTensor::new([1, 1, 3, 1], &[10.0f64, 100.0, 1000.0]);
    let operands = [HostTensor::new([1, 1, 3, 1], &[3u8, 2, 0]), g];
    let found = run(&gradient, &operands)[0].to_f64();
    assert_eq!(found, [0.0, 1000.0, 0.0, 110.0, 0.0, 0.0]);
    let along = vec![vec![None, Some(vec![1.0, 2.0, 4.0])]];
    let found = Interpreter::new(&gradient).run_with_tangents(&[operands.to_vec()], &along, &[0]);
    assert_eq!(found.unwrap()[0][0].tangent, [0.0, 4.0, 0.0, 3.0, 0.0, 0.0]);
}
