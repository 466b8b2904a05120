//! Transposed convolutions and convolutions of volumes, by kernels for plain convolutions of images, beside their meaning in f64.

use phalanx::engine::{CompileRequest, KernelsMode};
use phalanx_graph::op::{ConvDims, ConvSpec};
use phalanx_graph::{Graph, HostTensor, KernelSupport, Lowering, Shape, gradients};
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

/// The result of a convolution behind a rectifier, and the gradients by its input and its kernel; whether all convolutions are calls.
fn check(case: &Case, is_called: bool) {
    let Case {
        input,
        kernel,
        dims,
    } = case;
    let graph = Graph::new();
    let x = graph.parameter("x", Shape::f32(input.clone()));
    let k = graph.parameter("kernel", Shape::f32(kernel.clone()));
    let y = x.maximum(&x.like(0.0)).conv(&k, dims.clone());
    let to_y = graph.parameter("to_y", y.shape());
    let found = gradients(&(&y * &to_y).sum_all(), &[&x, &k]);
    let outputs = [Some(y), found[0].clone(), found[1].clone()].map(Option::unwrap);
    let named = outputs.each_ref().map(|output| ("", output));
    let program = graph.finish(&named).unwrap().simplified();
    let lowering = Lowering {
        kernels: Some(KernelSupport { tiles: true }),
        ..Lowering::new(Platform::Cpu, "forms")
    };
    let text = program.to_stablehlo(&lowering);
    let is_written = text.contains("stablehlo.convolution");
    assert_eq!(!is_written, is_called, "{dims:?}\n{text}");
    let shapes = [input, kernel, &outputs[0].dims()];
    let inputs = [0, 1, 2].map(|i| normal(shapes[i], 7 + i as u64));
    let expected = Interpreter::new(&program)
        .run(&[inputs.to_vec()], &[0, 1, 2])
        .unwrap()
        .remove(0);
    let engine = session(KernelsMode::Always).engine.unwrap();
    let compiled = engine
        .compile(CompileRequest::new("forms", &program))
        .unwrap();
    let given = inputs.each_ref().map(|x| engine.put(0, x).unwrap());
    let given: Vec<_> = given.iter().collect();
    let run = || -> Vec<HostTensor> {
        let results = compiled.run(&[&given]).unwrap().0.remove(0);
        let pairs = results.iter().zip(&outputs);
        pairs
            .map(|(result, output)| engine.get(result, &output.shape()).unwrap())
            .collect()
    };
    let results = run();
    assert_eq!(results, run(), "from run to run: {dims:?}");
    for (index, (result, expected)) in results.iter().zip(&expected).enumerate() {
        let Array::Floats(expected) = expected else {
            panic!("result {index} of {dims:?} is no float");
        };
        let largest = expected.iter().fold(0.0f64, |most, x| most.max(x.abs()));
        assert!(largest > 1.0, "result {index} of {dims:?}");
        for (found, exact) in result.f32s().iter().zip(expected) {
            let apart = (f64::from(*found) - exact).abs();
            assert!(
                apart <= 3e-6 * largest,
                "result {index} of {dims:?}: {found}, expected {exact}"
            );
        }
    }
}

#[test]
fn transposed_convolutions_are_calls_and_right() {
    for case in [
        case([[5, 6], [3, 3], [1, 1], [2, 2], [1, 1]], [(2, 1), (2, 1)]),
        case([[4, 5], [2, 2], [1, 1], [2, 2], [1, 1]], [(1, 1), (1, 1)]),
        case([[4, 3], [4, 5], [1, 1], [2, 3], [1, 1]], [(2, 2), (2, 3)]),
        case([[4, 6], [3, 2], [1, 1], [2, 1], [2, 3]], [(3, 2), (1, 2)]),
        // A sequence.
        case([[1, 9], [1, 4], [1, 1], [1, 3], [1, 1]], [(0, 0), (3, 2)]),
    ] {
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
    let one = [1, 1, 1];
    for case in [
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
    ] {
        check(&case, true);
    }
}
