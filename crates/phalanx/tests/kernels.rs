//! The engine with and without oneDNN's kernels: the same numbers, and programs that do not need them never ask for them.

#[path = "kernels/image_forms.rs"]
mod image_forms;
#[path = "kernels/rows.rs"]
mod rows;
#[path = "kernels/softmax.rs"]
mod softmax;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use phalanx::engine::{CompileRequest, Engine, EngineOptions, KernelsMode};
use phalanx_graph::op::{ConvDims, ConvSpec, DotDims};
use phalanx_graph::{
    Bf16Matmul, DType, Graph, HostMatmul, HostTensor, Lowering, Pool2d, Program, Shape, Tensor,
    gradients,
};
use phalanx_pjrt::{CompileOptions, ExecuteOptions, Platform};

const IMAGES: [usize; 4] = [8, 32, 32, 16];
const KERNEL: [usize; 4] = [3, 3, 16, 32];
/// The first results of the program; gradients follow.
const OUTPUTS: usize = 3;

/// A biased convolution, two normalizations with rectifiers, one with a residual, a pooling, and their gradients: enough work to
/// be worth the kernels.
fn program(images: [usize; 4]) -> (Program, Vec<Shape>) {
    program_in(DType::F32, images)
}

/// The same with arrays of this type; variables, what is said of channels and results are f32.
fn program_in(dtype: DType, images: [usize; 4]) -> (Program, Vec<Shape>) {
    let graph = Graph::new();
    let x = graph.parameter("x", Shape::new(DType::F32, images));
    let kernel = graph.parameter("kernel", Shape::new(DType::F32, KERNEL));
    let y = x.convert(dtype).conv(&kernel.convert(dtype), convolution());
    let channels = Shape::new(DType::F32, [KERNEL[3]]);
    let [bias, gamma, beta] = [0.1, 0.2, 0.3].map(|step| {
        let count = graph.iota(channels.clone(), 0);
        (count * step).sin() + 1.0
    });
    let y = &y + &bias.convert(dtype).broadcast_in(&y.dims(), &[3]);
    let [normal, ..] = y.batch_norm(&gamma, &beta, 0.001);
    let [normal, mean, variance] = normal.clamp(0.0, 2.0).batch_norm(&beta, &gamma, 0.001);
    let y = (normal + &y).maximum(&y.like(0.0));
    let pooled = y.max_pool2d(Pool2d {
        size: [2, 2],
        strides: [2, 2],
        padding: [(0, 0), (0, 0)],
    });
    let pooled = pooled.convert(DType::F32);
    let loss = pooled.square().sum_all();
    let wrt = gradients(&loss, &[&x, &kernel, &bias, &gamma, &beta]);
    let mut outputs = vec![pooled, mean, variance];
    outputs.extend(wrt.into_iter().map(Option::unwrap));
    finished(&graph, &outputs)
}

/// Two biased convolutions with rectifiers, poolings of windows apart and that overlap, and their gradients.
fn rectified() -> (Program, Vec<Shape>) {
    let graph = Graph::new();
    let x = graph.parameter("x", Shape::new(DType::F32, IMAGES));
    let kernel = graph.parameter("kernel", Shape::new(DType::F32, KERNEL));
    let second = graph
        .iota(Shape::new(DType::F32, [3 * 3 * 32 * 32]), 0)
        .sin();
    let second = second.reshape(&[3, 3, 32, 32]) * 0.1;
    let bias = graph.iota(Shape::new(DType::F32, [KERNEL[3]]), 0).sin();
    let biased = |x: &Tensor, kernel: &Tensor| {
        let y = x.conv(kernel, convolution());
        &y + bias.broadcast_in(&y.dims(), &[3])
    };
    let pool = |size: usize| Pool2d {
        size: [size; 2],
        strides: [2, 2],
        padding: [(0, 0); 2],
    };
    let y = biased(&x, &kernel);
    let y = biased(&y.maximum(&y.like(0.0)), &second);
    let overlapping = y.maximum(&y.like(0.0)).max_pool2d(pool(3));
    let y = biased(&x, &-&kernel).clamp(0.0, 2.0);
    let apart = y.max_pool2d(pool(2));
    // Elements that are 0 have a gradient, which must not pass.
    let loss = (&apart + 1.0).square().sum_all() + (&overlapping + 1.0).square().sum_all();
    let wrt = gradients(&loss, &[&x, &kernel, &second, &bias]);
    let mut outputs = vec![apart, overlapping, loss];
    outputs.extend(wrt.into_iter().map(Option::unwrap));
    finished(&graph, &outputs)
}

fn finished(graph: &Graph, outputs: &[Tensor]) -> (Program, Vec<Shape>) {
    let named: Vec<(&str, &Tensor)> = outputs.iter().map(|output| ("", output)).collect();
    let shapes = outputs.iter().map(Tensor::shape).collect();
    (graph.finish(&named).unwrap(), shapes)
}

fn convolution() -> ConvDims {
    ConvDims {
        input: ConvSpec::channels_last(2),
        kernel: ConvSpec::kernel(2),
        output: ConvSpec::channels_last(2),
        strides: vec![1, 1],
        padding: vec![(1, 1), (1, 1)],
        input_dilation: vec![1, 1],
        kernel_dilation: vec![1, 1],
        feature_groups: 1,
        batch_groups: 1,
    }
}

struct Session {
    engine: phalanx::Result<Engine>,
    notices: Arc<Mutex<Vec<String>>>,
}

fn session(kernels: KernelsMode) -> Session {
    let notices = Arc::<Mutex<Vec<String>>>::default();
    let theirs = Arc::clone(&notices);
    let engine = Engine::new(&EngineOptions {
        kernels,
        // From the second run of these tests on, programs with calls of the kernels are loaded.
        compile_cache: true,
        notice: Arc::new(move |line| {
            // What takes long on a busy machine says so.
            if !line.starts_with("compiling ") {
                theirs.lock().unwrap().push(line.to_owned());
            }
        }),
        ..EngineOptions::default()
    });
    Session { engine, notices }
}

/// Numbers between -1 and 1 that look random: of equal ones in a window of a maximum, rounding would choose.
fn values(dims: &[usize], seed: u32) -> HostTensor {
    let count: usize = dims.iter().product();
    let value = |i: usize| {
        let bits = (i as u32 ^ seed << 24).wrapping_mul(0x9e37_79b9);
        let bits = (bits ^ bits >> 15).wrapping_mul(0x85eb_ca6b);
        (bits ^ bits >> 13) as f32 / (1u32 << 31) as f32 - 1.0
    };
    HostTensor::new(dims, &(0..count).map(value).collect::<Vec<f32>>())
}

fn run(engine: &Engine, (program, shapes): (Program, Vec<Shape>)) -> Vec<HostTensor> {
    let compiled = engine
        .compile(CompileRequest::new("kernels", &program))
        .unwrap();
    let arguments = [values(&IMAGES, 1), values(&KERNEL, 2)].map(|x| engine.put(0, &x).unwrap());
    let arguments: Vec<_> = arguments.iter().collect();
    let results = compiled.run(&[&arguments]).unwrap().0.swap_remove(0);
    let results = results.iter().zip(&shapes);
    results
        .map(|(buffer, shape)| engine.get(buffer, shape).unwrap())
        .collect()
}

#[test]
fn results_are_the_same_with_and_without_kernels() {
    let (with, without) = (session(KernelsMode::Auto), session(KernelsMode::Off));
    let (with_engine, without_engine) = (
        with.engine.as_ref().unwrap(),
        without.engine.as_ref().unwrap(),
    );
    for made in [|| program(IMAGES), rectified] {
        assert_same(&run(with_engine, made()), &run(without_engine, made()));
    }
    let [found, expected] =
        [with_engine, without_engine].map(|engine| run(engine, program_in(DType::Bf16, IMAGES)));
    // Arrays of f32 are closer to the truth than both.
    let exact = run(without_engine, program(IMAGES));
    for (index, exact) in exact.iter().enumerate() {
        let [ours, xlas] = [&found, &expected].map(|results| apart(&results[index], exact));
        assert!(
            ours > 0.0 && ours <= 1.25 * xlas + 1e-3,
            "result {index} of bf16: {ours:e}, without kernels {xlas:e}"
        );
    }
    assert!(without.notices.lock().unwrap().is_empty());
    // Twice: what is known is not looked for again, and a notice is given once.
    run(with_engine, program(IMAGES));
    let notices = with.notices.lock().unwrap();
    let slower = notices.iter().filter(|line| line.contains("slower"));
    assert!(slower.count() <= 1, "{notices:?}");
}

/// Products and reductions of arrays of bf16, and what they are of f32, of which the calls take all.
fn products_and_reductions() -> (Program, Vec<Shape>) {
    let graph = Graph::new();
    let x = (graph.parameter("x", Shape::f32(IMAGES)) * 3.0).floor();
    let least = graph.parameter("kernel", Shape::f32(KERNEL));
    let least = least.min(&[0, 1, 2, 3]).floor();
    let (x, w) = (x.reshape(&[256, 512]), x.reshape(&[512, 256]));
    let w = &w * &least.broadcast_in(&w.dims(), &[]);
    let y = x.convert(DType::Bf16).matmul(&w.convert(DType::Bf16));
    let wide = y.convert(DType::F32);
    let outputs = [y.sum(&[0]), y.sum(&[1]), y.max(&[1]), wide.sum(&[0])];
    let wide = [wide.sum(&[1]), wide.max(&[1]), wide];
    let outputs: Vec<Tensor> = outputs
        .iter()
        .chain(&wide)
        .map(|output| output.convert(DType::F32))
        .collect();
    finished(&graph, &outputs)
}

#[test]
fn products_and_reductions_of_bf16_are_the_same_with_and_without_calls() {
    let (program, _) = products_and_reductions();
    assert!(program.gains_from_host_matmul(HostMatmul::WhereLarge, false));
    assert!(program.gains_from_host_reductions());
    // Sums of small whole numbers are exact in every order, and rounded once.
    let [with, without] = [KernelsMode::Auto, KernelsMode::Off]
        .map(|kernels| run(&session(kernels).engine.unwrap(), products_and_reductions()));
    assert_eq!(with, without);
}

/// The length of the difference, as a part of the length of what is expected.
fn apart(found: &HostTensor, expected: &HostTensor) -> f64 {
    let (found, expected) = (found.f32s(), expected.f32s());
    let length = |values: &mut dyn Iterator<Item = f32>| {
        values.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt()
    };
    let mut differences = found.iter().zip(expected.iter()).map(|(a, b)| a - b);
    length(&mut differences) / length(&mut expected.iter().copied())
}

fn assert_same(found: &[HostTensor], expected: &[HostTensor]) {
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let apart = apart(found, expected);
        let (found, expected) = (found.f32s(), expected.f32s());
        let differences = found.iter().zip(&expected).map(|(a, b)| a - b);
        // Of a quarter of a million elements one may fall on the other side of a rectifier, with all its gradient (2e-3).
        // Two convolutions by tiles round to 1.2e-6.
        let most = if index < OUTPUTS { 3e-6 } else { 5e-3 };
        assert!(apart <= most, "result {index}: {apart:e}");
        let scale = expected.iter().fold(1.0f32, |most, x| most.max(x.abs()));
        let furthest = differences.fold(0.0f32, |most, x| most.max(x.abs()));
        assert!(
            index >= OUTPUTS || furthest <= 1e-5 * scale,
            "result {index}: {furthest} of {scale}"
        );
    }
}

#[test]
fn openmp_is_told_to_sleep_before_the_plugin_starts() {
    session(KernelsMode::Auto).engine.unwrap();
    let told = |name| std::env::var_os(name).is_some();
    assert!(told("OMP_WAIT_POLICY") || told("GOMP_SPINCOUNT"));
}

#[test]
fn a_named_library_that_cannot_be_used_is_an_error_when_it_is_needed() {
    let named = session(KernelsMode::Path(PathBuf::from("/no/such/libdnnl.so.3")));
    let engine = named.engine.unwrap();
    let small = program([1, 4, 4, 16]).0;
    engine
        .compile(CompileRequest::new("small", &small))
        .unwrap();
    let error = engine
        .compile(CompileRequest::new("large", &program(IMAGES).0))
        .unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("/no/such/libdnnl.so.3 (the path that was given)"),
        "{error}"
    );
}

/// Dims of a product, and the shapes of its operands.
fn dot(
    [left, right]: [&[usize]; 2],
    batch: [&[usize]; 2],
    contract: [&[usize]; 2],
) -> ([Vec<usize>; 2], DotDims) {
    let dims = DotDims {
        lhs_batch: batch[0].to_vec(),
        rhs_batch: batch[1].to_vec(),
        lhs_contract: contract[0].to_vec(),
        rhs_contract: contract[1].to_vec(),
        dtype: DType::F32,
    };
    ([left.to_vec(), right.to_vec()], dims)
}

/// The program of a product of operands of an element type, as it is lowered, and the shape of its result, which is of f32.
fn product(
    shapes: &[Vec<usize>; 2],
    dims: &DotDims,
    operands: DType,
    lowering: &Lowering,
) -> (String, Shape) {
    let graph = Graph::new();
    let [x, y] = ["x", "y"].map(|name| {
        let dims = &shapes[usize::from(name == "y")];
        let x = graph.parameter(name, Shape::f32(dims.clone()));
        x.convert(operands)
    });
    let product = x.dot(&y, dims.clone());
    let shape = product.shape();
    let program = graph
        .finish(&[("product", &product.convert(DType::F32))])
        .unwrap();
    let text = program.simplified().to_stablehlo(lowering);
    (text, shape.with_dtype(DType::F32))
}

/// What such a program gives of integers.
fn run_product(
    engine: &Engine,
    shapes: &[Vec<usize>; 2],
    (text, shape): (String, Shape),
) -> HostTensor {
    let options = CompileOptions::default();
    let compiled = engine.client().compile(&text, &options).unwrap();
    let given = [0, 1].map(|side| engine.put(0, &integers(&shapes[side], side)).unwrap());
    let run = compiled.execute(&[&[&given[0], &given[1]]], &ExecuteOptions::default());
    let outputs = run.unwrap().outputs.remove(0);
    engine.get(&outputs[0], &shape).unwrap()
}

fn run_bf16_product(
    engine: &Engine,
    shapes: &[Vec<usize>; 2],
    dims: &DotDims,
    bf16_matmul: Bf16Matmul,
) -> HostTensor {
    let lowering = Lowering {
        bf16_matmul,
        ..Lowering::new(Platform::Cpu, "products")
    };
    let program = product(shapes, dims, DType::Bf16, &lowering);
    assert_eq!(
        program.0.contains("phalanx.bf16_product"),
        bf16_matmul == Bf16Matmul::Always
    );
    run_product(engine, shapes, program)
}

/// Products of matrices, each with its partner.
fn products_of_pairs() -> Vec<([Vec<usize>; 2], DotDims)> {
    let none: &[usize] = &[];
    vec![
        dot([&[64, 70], &[70, 65]], [none; 2], [&[1], &[0]]),
        dot([&[3, 64, 70], &[3, 70, 65]], [&[0], &[0]], [&[2], &[1]]),
        dot([&[3, 70, 64], &[3, 65, 70]], [&[0], &[0]], [&[1], &[2]]),
        // Heads: rows between each other's, on either side and in either direction.
        dot(
            [&[2, 66, 3, 65], &[2, 64, 3, 65]],
            [&[0, 2]; 2],
            [&[3], &[3]],
        ),
        dot(
            [&[2, 66, 3, 65], &[2, 66, 3, 64]],
            [&[0, 2]; 2],
            [&[1], &[1]],
        ),
        dot(
            [&[2, 3, 65, 66], &[2, 66, 3, 64]],
            [&[0, 1], &[0, 2]],
            [&[3], &[1]],
        ),
        dot(
            [&[2, 3, 66, 65], &[2, 66, 3, 64]],
            [&[0, 1], &[0, 2]],
            [&[2], &[1]],
        ),
        dot(
            [&[2, 64, 3, 66], &[2, 3, 66, 65]],
            [&[0, 2], &[0, 1]],
            [&[3], &[2]],
        ),
        // In another order than the matrices are in.
        dot([&[66, 3, 65], &[3, 65, 64]], [&[1], &[0]], [&[2], &[1]]),
        dot(
            [&[2, 3, 64, 66], &[3, 66, 65, 2]],
            [&[1, 0], &[0, 3]],
            [&[3], &[1]],
        ),
        dot(
            [&[2, 64, 8, 9], &[2, 8, 9, 64]],
            [&[0], &[0]],
            [&[2, 3], &[1, 2]],
        ),
        dot(
            [&[2, 64, 8, 9], &[2, 9, 8, 64]],
            [&[0], &[0]],
            [&[3, 2], &[1, 2]],
        ),
    ]
}

/// Of integers, as above: wherever the dims stand.
#[test]
fn products_of_f32_by_calls_are_those_of_the_compiler() {
    let session = session(KernelsMode::Always);
    let engine = session.engine.as_ref().unwrap();
    // This registers the calls, where the processor has them.
    let graph = Graph::new();
    let x = graph.parameter("x", Shape::f32([512, 512]));
    let large = graph.finish(&[("y", &x.matmul(&x))]).unwrap();
    engine
        .compile(CompileRequest::new("large", &large))
        .unwrap();
    if !has_products() {
        phalanx_testkit::skip("there are no products of f32 here");
        return;
    }
    for (shapes, dims) in products_of_pairs() {
        let [found, expected] = [HostMatmul::AlsoSmall, HostMatmul::Never].map(|host_matmul| {
            let lowering = Lowering {
                host_matmul,
                ..Lowering::new(Platform::Cpu, "products")
            };
            let program = product(&shapes, &dims, DType::F32, &lowering);
            let is_call = program.0.contains("phalanx.product");
            assert_eq!(is_call, host_matmul == HostMatmul::AlsoSmall, "{shapes:?}");
            run_product(engine, &shapes, program)
        });
        assert!(expected.f32s().iter().any(|value| *value != 0.0));
        assert_eq!(found.f32s(), expected.f32s(), "{shapes:?}, {dims:?}");
    }
}

/// Of small integers, whose sums are exact in every order: each product of dims, wherever they stand.
#[test]
fn products_of_bf16_by_calls_are_those_of_the_compiler() {
    let session = session(KernelsMode::Always);
    let engine = session.engine.as_ref().unwrap();
    // This registers the calls, where there is a library.
    let small = program([1, 4, 4, 16]).0;
    engine
        .compile(CompileRequest::new("small", &small))
        .unwrap();
    if !session.notices.lock().unwrap().is_empty() || !has_bf16_products() {
        phalanx_testkit::skip("there are no products of bf16 here");
        return;
    }
    let none: &[usize] = &[];
    let products = [
        dot([&[5, 7], &[7, 3]], [none; 2], [&[1], &[0]]),
        dot([&[7, 5], &[3, 7]], [none; 2], [&[0], &[1]]),
        dot([&[7], &[7, 3]], [none; 2], [&[0], &[0]]),
        dot([&[5], &[3]], [none; 2], [none; 2]),
        dot([&[4, 6, 5], &[4, 6, 3]], [none; 2], [&[0, 1], &[0, 1]]),
        dot([&[4, 6, 5], &[6, 4, 3]], [none; 2], [&[1, 0], &[0, 1]]),
        dot([&[4, 6, 5], &[3, 4, 2, 6]], [none; 2], [&[0, 1], &[1, 3]]),
        dot([&[2, 5, 7], &[2, 7, 3]], [&[0], &[0]], [&[2], &[1]]),
        dot([&[2, 7, 5], &[2, 3, 7]], [&[0], &[0]], [&[1], &[2]]),
        dot(
            [&[2, 9, 4, 5], &[2, 8, 4, 5]],
            [&[0, 2], &[0, 2]],
            [&[3], &[3]],
        ),
        dot(
            [&[2, 4, 9, 8], &[2, 8, 4, 5]],
            [&[0, 1], &[0, 2]],
            [&[3], &[1]],
        ),
        dot(
            [&[2, 4, 9, 8], &[4, 9, 5, 2]],
            [&[1, 0], &[0, 3]],
            [&[2], &[1]],
        ),
        dot([&[3, 4], &[4, 3]], [&[0, 1], &[1, 0]], [none; 2]),
    ];
    for (shapes, dims) in products {
        for dtype in [DType::F32, DType::Bf16] {
            let dims = DotDims {
                dtype,
                ..dims.clone()
            };
            let [found, expected] = [Bf16Matmul::Always, Bf16Matmul::Never]
                .map(|calls| run_bf16_product(engine, &shapes, &dims, calls));
            // As numbers: of a single product that is -0, one keeps the sign.
            assert_eq!(found.f32s(), expected.f32s(), "{shapes:?}, {dims:?}");
        }
    }
}

/// Integers from -2 to 2.
fn integers(dims: &[usize], seed: usize) -> HostTensor {
    let count: usize = dims.iter().product();
    let value = |i: usize| ((i + 11 * seed).wrapping_mul(0x9e37_79b9) >> 8) % 5;
    let values: Vec<f32> = (0..count).map(|i| value(i) as f32 - 2.0).collect();
    HostTensor::new(dims, &values)
}

/// Whether this processor has the instructions of our products.
fn has_products() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("avx2")
        && std::arch::is_x86_feature_detected!("fma");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Whether oneDNN multiplies bf16 on this processor, fast or not.
fn has_bf16_products() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("avx512bw")
        && std::arch::is_x86_feature_detected!("avx512dq")
        && std::arch::is_x86_feature_detected!("avx512vl");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// XLA:CPU refuses some of these at run time as they are.
#[test]
fn large_products_of_bf16_in_f32_run_wherever_their_dims_stand() {
    let session = session(KernelsMode::Off);
    let engine = session.engine.as_ref().unwrap();
    let products = [
        dot(
            [&[2, 3, 128, 96], &[2, 128, 3, 64]],
            [&[0, 1], &[0, 2]],
            [&[2], &[1]],
        ),
        dot(
            [&[2, 3, 128, 96], &[64, 3, 128, 2]],
            [&[0, 1], &[3, 1]],
            [&[2], &[2]],
        ),
        dot(
            [&[2, 3, 128, 96], &[3, 2, 64, 128]],
            [&[0, 1], &[1, 0]],
            [&[2], &[3]],
        ),
        dot(
            [&[2, 3, 96, 128], &[2, 128, 3, 64]],
            [&[0, 1], &[0, 2]],
            [&[3], &[1]],
        ),
        dot(
            [&[2, 128, 3, 64], &[2, 3, 128, 96]],
            [&[0, 2], &[0, 1]],
            [&[1], &[2]],
        ),
        dot([&[6, 128, 96], &[128, 6, 64]], [&[0], &[1]], [&[1], &[0]]),
    ];
    for (shapes, dims) in products {
        let [found, expected] = [DType::Bf16, DType::F32].map(|operands| {
            let lowering = Lowering::new(Platform::Cpu, "products");
            run_product(
                engine,
                &shapes,
                product(&shapes, &dims, operands, &lowering),
            )
        });
        assert_eq!(found.f32s(), expected.f32s(), "{shapes:?}, {dims:?}");
    }
}
