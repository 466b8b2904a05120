//! Transposed convolutions and convolutions of volumes, by kernels for plain convolutions of images, beside their meaning in f64.

use phalanx::engine::{CompileRequest, KernelsMode};
use phalanx_graph::op::{ConvDims, ConvSpec};
use phalanx_graph::{DType, Graph, HostTensor, KernelSupport, Lowering, Program, Shape, gradients};
use phalanx_pjrt::Platform;
use phalanx_testkit::{Array, Interpreter};

use super::session;

/// A convolution, channels last, of an input and a kernel of these dims.
struct Case {
    input: Vec<usize>,
    kernel: Vec<usize>,
    dims: ConvDims,
}

/// Spatial dims of the input and the kernel, strides, distances between elements of the input and of the kernel, and padding.
fn case<const N: usize>(
    [input, kernel, strides, apart, dilation]: [[usize; N]; 5],
    padding: [(i64, i64); N],
) -> Case {
    let dims = ConvDims {
        input: ConvSpec::channels_last(N),
        kernel: ConvSpec::kernel(N),
        output: ConvSpec::channels_last(N),
        strides: strides.to_vec(),
        padding: padding.to_vec(),
        input_dilation: apart.to_vec(),
        kernel_dilation: dilation.to_vec(),
        feature_groups: 1,
        batch_groups: 1,
    };
    Case {
        input: [&[2], &input[..], &[3]].concat(),
        kernel: [&kernel[..], &[3, 5]].concat(),
        dims,
    }
}

/// Sums of 12 numbers that are spread evenly: nearly normal.
fn normal(dims: &[usize], seed: u64) -> HostTensor {
    let mut state = seed;
    let mut even = || {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    let count: usize = dims.iter().product();
    let values = (0..count).map(|_| (0..12).map(|_| even()).sum::<f32>() - 6.0);
    HostTensor::new(dims, &values.collect::<Vec<_>>())
}

/// A convolution of arrays of this type, and its gradients by the input and the kernel; behind a rectifier where its cotangent passes one.
fn program(case: &Case, dtype: DType, is_rectified: bool) -> (Program, [Shape; 3]) {
    let graph = Graph::new();
    let parameter = |name: &str, dims: &[usize]| graph.parameter(name, Shape::new(dtype, dims));
    let (x, k) = (
        parameter("x", &case.input),
        parameter("kernel", &case.kernel),
    );
    let given = match is_rectified {
        true => x.maximum(&x.like(0.0)),
        false => x.clone(),
    };
    let y = given.conv(&k, case.dims.clone());
    let to_y = parameter("to_y", &y.dims());
    let found = gradients(&(&y * &to_y).sum_all(), &[&x, &k]);
    let outputs = [Some(y), found[0].clone(), found[1].clone()].map(Option::unwrap);
    let named = outputs.each_ref().map(|output| ("", output));
    let program = graph.finish(&named).unwrap().simplified();
    (program, outputs.map(|output| output.shape()))
}

/// Random values of this type for a program's parameters.
fn values(program: &Program, dtype: DType) -> Vec<HostTensor> {
    let given = program.parameters.iter().zip(7..);
    given
        .map(|(parameter, seed)| normal(&parameter.shape.dims, seed).convert(dtype))
        .collect()
}

fn interpreted(program: &Program, inputs: &[HostTensor]) -> Vec<Vec<f64>> {
    let results = Interpreter::new(program).run(&[inputs.to_vec()], &[0, 1, 2]);
    let floats = |array| match array {
        Array::Floats(values) => values,
        Array::Ints(values) => panic!("{values:?}"),
    };
    results.unwrap().remove(0).into_iter().map(floats).collect()
}

/// The results of two runs, which are the same.
fn compiled(
    program: &Program,
    shapes: &[Shape; 3],
    inputs: &[HostTensor],
    kernels: KernelsMode,
) -> Vec<Vec<f64>> {
    let engine = session(kernels).engine.unwrap();
    let compiled = engine
        .compile(CompileRequest::new("forms", program))
        .unwrap();
    let given: Vec<_> = inputs.iter().map(|x| engine.put(0, x).unwrap()).collect();
    let given: Vec<_> = given.iter().collect();
    let run = || -> Vec<HostTensor> {
        let results = compiled.run(&[&given]).unwrap().0.remove(0);
        let pairs = results.iter().zip(shapes);
        pairs
            .map(|(result, shape)| engine.get(result, shape).unwrap())
            .collect()
    };
    let results = run();
    // Not numbers, which are not equal, have bytes too.
    assert!(
        results
            .iter()
            .zip(run())
            .all(|(one, again)| one.bytes() == again.bytes()),
        "from run to run"
    );
    results.iter().map(HostTensor::to_f64).collect()
}

/// Half of the distance of neighbours, relative to the smaller.
fn rounding(dtype: DType) -> f64 {
    match dtype {
        DType::Bf16 => (2f64).powi(-8),
        DType::F16 => (2f64).powi(-11),
        _ => 0.0,
    }
}

fn check(case: &Case, is_called: bool) {
    check_in(case, DType::F32, is_called);
}

/// Whether all convolutions are calls, and right.
fn check_in(case: &Case, dtype: DType, is_called: bool) {
    let dims = &case.dims;
    let (program, shapes) = program(case, dtype, true);
    let lowering = Lowering {
        kernels: Some(KernelSupport { tiles: true }),
        ..Lowering::new(Platform::Cpu, "forms")
    };
    let text = program.to_stablehlo(&lowering);
    let is_written = text.contains("stablehlo.convolution");
    assert_eq!(!is_written, is_called, "{dims:?}\n{text}");
    check_results(dims, (&program, &shapes), dtype);
}

/// Whether results are right but for sums in f32 that are rounded once.
fn check_results(dims: &ConvDims, (program, shapes): (&Program, &[Shape; 3]), dtype: DType) {
    let inputs = values(program, dtype);
    let expected = interpreted(program, &inputs);
    let results = compiled(program, shapes, &inputs, KernelsMode::Always);
    for (index, (result, expected)) in results.iter().zip(&expected).enumerate() {
        let largest = expected.iter().fold(0.0f64, |most, x| most.max(x.abs()));
        assert!(largest > 1.0, "result {index} of {dims:?}");
        for (found, exact) in result.iter().zip(expected) {
            let apart = (found - exact).abs();
            assert!(
                apart <= 3e-6 * largest + rounding(dtype) * exact.abs(),
                "result {index} of {dims:?} in {dtype}: {found}, expected {exact}"
            );
        }
    }
}

/// Numbers that are infinite, or none, at a place of the input or of the cotangent are kept, with kernels and without, and spread no further.
fn check_not_finite(case: &Case, dtype: DType) {
    let (program, shapes) = program(case, dtype, false);
    for (at, number) in [
        (0, f32::NAN),
        (2, f32::NAN),
        (0, f32::INFINITY),
        (2, f32::NEG_INFINITY),
    ] {
        let mut inputs = values(&program, dtype);
        let mut numbers = inputs[at].convert(DType::F32).f32s().to_vec();
        let place = numbers.len() / 2;
        numbers[place] = number;
        inputs[at] = HostTensor::new(inputs[at].dims().to_vec(), &numbers).convert(dtype);
        let expected = interpreted(&program, &inputs);
        let of = |kernels| compiled(&program, &shapes, &inputs, kernels);
        let (with, without) = (of(KernelsMode::Always), of(KernelsMode::Off));
        for (index, exact) in expected.iter().enumerate() {
            let what = format!(
                "result {index} of {:?} in {dtype}, {number} in {at}",
                case.dims
            );
            for results in [&with, &without] {
                for (found, exact) in results[index].iter().zip(exact) {
                    // More of a kernel's gradient may be lost, where windows stand over padding.
                    let is_right =
                        found.is_finite() == exact.is_finite() || index == 2 && !found.is_finite();
                    assert!(is_right, "{what}: {found}, expected {exact}");
                }
            }
        }
    }
}

fn transposed() -> Vec<Case> {
    vec![
        case([[5, 6], [3, 3], [1, 1], [2, 2], [1, 1]], [(2, 1), (2, 1)]),
        case([[4, 5], [2, 2], [1, 1], [2, 2], [1, 1]], [(1, 1), (1, 1)]),
        case([[4, 3], [4, 5], [1, 1], [2, 3], [1, 1]], [(2, 2), (2, 3)]),
        case([[4, 6], [3, 2], [1, 1], [2, 1], [2, 3]], [(3, 2), (1, 2)]),
        // A sequence.
        case([[1, 9], [1, 4], [1, 1], [1, 3], [1, 1]], [(0, 0), (3, 2)]),
    ]
}

fn of_volumes() -> Vec<Case> {
    let one = [1, 1, 1];
    vec![
        case([[5, 6, 7], [3, 3, 3], one, one, one], [(1, 1); 3]),
        case(
            [[6, 5, 4], [2, 3, 1], [2, 1, 1], one, one],
            [(0, 1), (1, 1), (0, 0)],
        ),
        case(
            [[7, 6, 6], [3, 2, 3], [1, 2, 2], one, [2, 1, 1]],
            [(2, 1), (0, 0), (1, 0)],
        ),
        case(
            [[4, 5, 6], [1, 3, 3], [3, 1, 1], one, [1, 2, 2]],
            [(0, 0), (2, 2), (2, 2)],
        ),
        case([[3, 4, 3], [3, 3, 3], one, [2, 2, 2], one], [(2, 1); 3]),
        // Rows that no window meets.
        case([[5, 6, 8], [3, 3, 3], [2, 2, 2], one, one], [(0, 0); 3]),
    ]
}

#[test]
fn transposed_convolutions_are_calls_and_right() {
    for case in transposed() {
        check(&case, true);
    }
    // Elements that no window of the other convolution meets.
    check(
        &case([[4, 4], [2, 2], [1, 1], [3, 3], [1, 1]], [(1, 2), (1, 2)]),
        false,
    );
}

#[test]
fn convolutions_of_volumes_are_calls_and_right() {
    for case in of_volumes() {
        check(&case, true);
    }
}

/// A convolution, to which a bias and an array are added and which is rectified, and its gradients.
fn followed(case: &Case) -> (Program, [Shape; 3]) {
    let graph = Graph::new();
    let parameter = |name: &str, dims: &[usize]| graph.parameter(name, Shape::f32(dims));
    let (x, k) = (
        parameter("x", &case.input),
        parameter("kernel", &case.kernel),
    );
    let y = x.conv(&k, case.dims.clone());
    let bias = parameter("bias", &[5]).broadcast_in(&y.dims(), &[y.rank() - 1]);
    let sum = y + bias;
    let sum = &sum + parameter("added", &sum.dims());
    let y = sum.maximum(&sum.like(0.0));
    let to_y = parameter("to_y", &y.dims());
    let found = gradients(&(&y * &to_y).sum_all(), &[&x, &k]);
    let outputs = [Some(y), found[0].clone(), found[1].clone()].map(Option::unwrap);
    let named = outputs.each_ref().map(|output| ("", output));
    let program = graph.finish(&named).unwrap().simplified();
    (program, outputs.map(|output| output.shape()))
}

#[test]
fn what_follows_a_convolution_of_volumes_is_part_of_its_call() {
    let are_dense = |case: &Case| case.dims.input_dilation == [1, 1, 1];
    for case in of_volumes().into_iter().filter(are_dense) {
        let (program, shapes) = followed(&case);
        let lowering = Lowering {
            kernels: Some(KernelSupport { tiles: true }),
            ..Lowering::new(Platform::Cpu, "forms")
        };
        let text = program.to_stablehlo(&lowering);
        assert!(text.contains("\"relu\" = true"), "{text}");
        assert!(!text.contains("stablehlo.maximum"), "{text}");
        check_results(&case.dims, (&program, &shapes), DType::F32);
    }
}

#[test]
fn gradients_of_16_bits_are_rounded_once() {
    for case in transposed().iter().chain(&of_volumes()) {
        for dtype in [DType::Bf16, DType::F16] {
            check_in(case, dtype, true);
        }
    }
}

#[test]
fn what_is_not_finite_stays_where_it_is() {
    for case in transposed().iter().chain(&of_volumes()) {
        for dtype in [DType::F32, DType::Bf16] {
            check_not_finite(case, dtype);
        }
    }
}
