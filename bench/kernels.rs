//! Convolutions through oneDNN's kernels beside XLA's own, in GFLOP/s of forward, input gradient and kernel gradient, and batch
//! normalisations with a ReLU, in milliseconds: `kernels [PART OF A NAME]`.
//!
//! Both sides are whole programs of one op on all processors, run one after the other in turns; medians.
#![forbid(unsafe_code)]

mod program;

use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use phalanx::engine::{CompileRequest, Compiled, Engine, EngineOptions, KernelsMode};
use phalanx_graph::op::{ConvDims, ConvSpec};
use phalanx_graph::{DType, Graph, HostTensor, Program, Shape, Tensor, gradients};
use phalanx_kernels::Kernels;
use phalanx_pjrt::{Buffer, CompileOptions, ExecuteOptions, PluginSearch};

const RUNS: usize = 7;
const DEADLINE: Duration = Duration::from_secs(60);

/// Batch, image side, input and output channels, kernel side, stride, groups.
const LAYERS: [(&str, [usize; 7]); 17] = [
    ("cnn 26 3x3", [128, 26, 32, 64, 3, 1, 1]),
    ("cnn 28 3x3 of 1 channel", [128, 28, 1, 32, 3, 1, 1]),
    ("stem 224 7x7/2", [16, 224, 3, 64, 7, 2, 1]),
    ("56 3x3", [16, 56, 64, 64, 3, 1, 1]),
    ("56 1x1 up", [16, 56, 64, 256, 1, 1, 1]),
    ("56 1x1 down", [16, 56, 256, 64, 1, 1, 1]),
    ("28 3x3", [16, 28, 128, 128, 3, 1, 1]),
    ("28 1x1 up", [16, 28, 128, 512, 1, 1, 1]),
    ("14 3x3", [16, 14, 256, 256, 3, 1, 1]),
    ("14 1x1 up", [16, 14, 256, 1024, 1, 1, 1]),
    ("7 3x3", [16, 7, 512, 512, 3, 1, 1]),
    ("7 1x1 up", [16, 7, 512, 2048, 1, 1, 1]),
    ("56 3x3/2", [16, 56, 128, 128, 3, 2, 1]),
    ("56 1x1/2", [16, 56, 256, 512, 1, 2, 1]),
    ("112 depthwise", [16, 112, 32, 32, 3, 1, 32]),
    ("14 depthwise", [64, 14, 576, 576, 3, 1, 576]),
    ("14 1x1 narrow", [16, 14, 96, 576, 1, 1, 1]),
];

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    program::exit(run())
}

fn run() -> Outcome<()> {
    let wanted = std::env::args().nth(1).unwrap_or_default();
    let kernels = Kernels::find(&PluginSearch::from_process(), None)?;
    let hand_over = kernels.dispatch_seconds(2001) * 1e6;
    println!(
        "{}; a hand-over takes {hand_over:.1} us",
        kernels.describe()
    );
    println!(
        "{:<26} {:>14} {:>14} {:>14}",
        "onednn / xla, GFLOP/s", "forward", "input", "kernel"
    );
    let [ours, xla] = [KernelsMode::Auto, KernelsMode::Off].map(|kernels| {
        Engine::new(&EngineOptions {
            kernels,
            ..EngineOptions::default()
        })
    });
    let engines = [ours?, xla?];
    for (name, layer) in LAYERS.iter().filter(|(name, _)| name.contains(&wanted)) {
        let cells = [0, 1, 2].map(|direction| compare(&engines, layer, direction));
        let cells: Vec<String> = cells.into_iter().collect::<Outcome<_>>()?;
        println!("{name:<26} {}", cells.join(" "));
    }
    println!(
        "{:<26} {:>15} {:>15}",
        "ours / xla, ms", "forward", "and gradient"
    );
    for (name, dims) in NORMS.iter().filter(|(name, _)| name.contains(&wanted)) {
        let forward = compare_norms(&engines[1], &kernels, dims, false)?;
        let both = compare_norms(&engines[1], &kernels, dims, true)?;
        println!("{name:<26} {forward} {both}");
    }
    Ok(())
}

const NORMS: [(&str, [usize; 4]); 4] = [
    ("norm 112 32", [16, 112, 112, 32]),
    ("norm 56 256", [16, 56, 56, 256]),
    ("norm 14 256", [16, 14, 14, 256]),
    ("norm 7 2048", [16, 7, 7, 2048]),
];

/// Milliseconds of a normalisation with ReLU as a call of the kernels and as ops of XLA.
fn compare_norms(
    engine: &Engine,
    kernels: &Kernels,
    dims: &[usize; 4],
    gradient: bool,
) -> Outcome<String> {
    kernels.register(engine.client())?;
    let (program, shapes) = norm_program(dims, gradient);
    let xla = Side::new(engine, &program, &shapes)?;
    let options = CompileOptions::default();
    let called = engine
        .client()
        .compile(&norm_calls(dims, gradient), &options)?;
    let arguments: Vec<&Buffer> = xla.arguments.iter().collect();
    let call = || -> Outcome<f64> {
        let start = Instant::now();
        let run = called.execute(&[&arguments], &ExecuteOptions::default())?;
        for done in &run.done {
            done.wait(DEADLINE)?;
        }
        Ok(start.elapsed().as_secs_f64())
    };
    call()?;
    let mut seconds = [Vec::new(), Vec::new()];
    for _ in 0..RUNS {
        seconds[0].push(call()?);
        seconds[1].push(xla.run()?);
    }
    let [ours, xla] = &mut seconds;
    Ok(format!(
        "{:>6.2} / {:>6.2}",
        median(ours) * 1e3,
        median(xla) * 1e3
    ))
}

/// y, mean and variance, with the gradient also dx, dgamma and dbeta, of x, gamma, beta and dy.
fn norm_program(dims: &[usize; 4], gradient: bool) -> (Program, Vec<Shape>) {
    let graph = Graph::new();
    let parameter =
        |name: &str, dims: &[usize]| graph.parameter(name, Shape::new(DType::F32, dims));
    let (x, dy) = (parameter("x", dims), parameter("dy", dims));
    let (gamma, beta) = (
        parameter("gamma", &dims[3..]),
        parameter("beta", &dims[3..]),
    );
    let spread = |tensor: &Tensor| tensor.broadcast_in(dims, &[3]);
    let mean = x.mean(&[0, 1, 2]);
    let centred = &x - &spread(&mean);
    let variance = centred.square().mean(&[0, 1, 2]);
    let scale = &(&variance + 1e-3).rsqrt() * &gamma;
    let y = &(&centred * &spread(&scale)) + &spread(&beta);
    let y = y.maximum(&y.like(0.0));
    let mut outputs = vec![y.clone(), mean, variance];
    if gradient {
        let wrt = gradients(&(&y * &dy).sum_all(), &[&x, &gamma, &beta]);
        outputs.extend(wrt.into_iter().flatten());
    }
    let named: Vec<(&str, &Tensor)> = outputs.iter().map(|output| ("", output)).collect();
    let program = graph.finish(&named).expect("the layer builds");
    let shapes = program
        .parameters
        .iter()
        .map(|parameter| parameter.shape.clone());
    let shapes = shapes.collect();
    (program, shapes)
}

/// The same, as calls; parameters in the order of `norm_program`.
fn norm_calls(dims: &[usize; 4], gradient: bool) -> String {
    let [n, h, w, c] = dims;
    let (x, c) = (
        format!("tensor<{n}x{h}x{w}x{c}xf32>"),
        format!("tensor<{c}xf32>"),
    );
    let config = "{api_version = 4 : i32, backend_config = {ceiling = 0.0 : f32, epsilon = 0.001 : f32, relu = true}}";
    let forward = format!(
        "%y:3 = stablehlo.custom_call @phalanx.batch_norm(%x, %g, %b) {config} : ({x}, {c}, {c}) -> ({x}, {c}, {c})"
    );
    let (kinds, rest) = if gradient {
        let call = format!(
            "%d:3 = stablehlo.custom_call @phalanx.batch_norm_gradient(%dy, %x, %y#1, %y#2, %g, %b) {config} : ({x}, {x}, {c}, {c}, {c}, {c}) -> ({x}, {c}, {c})"
        );
        let kinds = format!("{x}, {c}, {c}, {x}, {c}, {c}");
        (
            kinds.clone(),
            format!("{call}\nreturn %y#0, %y#1, %y#2, %d#0, %d#1, %d#2 : {kinds}"),
        )
    } else {
        let kinds = format!("{x}, {c}, {c}");
        (kinds.clone(), format!("return %y#0, %y#1, %y#2 : {kinds}"))
    };
    format!(
        "func.func public @main(%x: {x}, %dy: {x}, %g: {c}, %b: {c}) -> ({kinds}) {{\n{forward}\n{rest}\n}}"
    )
}

fn median(seconds: &mut [f64]) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

/// GFLOP/s with and without kernels.
fn compare(engines: &[Engine; 2], layer: &[usize; 7], direction: usize) -> Outcome<String> {
    let (program, shapes, flops) = program(layer, direction);
    let sides: Vec<Side> = engines
        .iter()
        .map(|engine| Side::new(engine, &program, &shapes))
        .collect::<Outcome<_>>()?;
    let mut seconds = [Vec::new(), Vec::new()];
    for _ in 0..RUNS {
        for (side, seconds) in sides.iter().zip(&mut seconds) {
            seconds.push(side.run()?);
        }
    }
    let [ours, xla] = seconds.map(|mut seconds| flops / median(&mut seconds) / 1e9);
    Ok(format!("{ours:>6.0} / {xla:>5.0}"))
}

/// One convolution or one of its gradients, the shapes of its parameters, and its FLOPs.
fn program(layer: &[usize; 7], direction: usize) -> (Program, Vec<Shape>, f64) {
    let &[batch, image, input, output, side, stride, groups] = layer;
    let graph = Graph::new();
    let parameter =
        |name: &str, dims: [usize; 4]| graph.parameter(name, Shape::new(DType::F32, dims));
    let pad = (side / 2) as i64;
    let out = (image + 2 * (side / 2) - side) / stride + 1;
    let x = parameter("x", [batch, image, image, input]);
    let kernel = parameter("kernel", [side, side, input / groups, output]);
    let dims = ConvDims {
        input: ConvSpec::channels_last(2),
        kernel: ConvSpec::kernel(2),
        output: ConvSpec::channels_last(2),
        strides: vec![stride; 2],
        padding: vec![(pad, pad); 2],
        input_dilation: vec![1; 2],
        kernel_dilation: vec![1; 2],
        feature_groups: groups,
        batch_groups: 1,
    };
    let dy = parameter("dy", [batch, out, out, output]);
    let y = x.conv(&kernel, dims);
    let result = match direction {
        0 => y,
        // The derivative of this sum by y is dy, and y itself is not computed.
        _ => {
            let wrt = [&x, &kernel][direction - 1];
            let gradient = gradients(&(&y * &dy).sum_all(), &[wrt]).swap_remove(0);
            gradient.expect("the sum depends on it")
        }
    };
    let shapes = [&x, &kernel, &dy].map(Tensor::shape).to_vec();
    let program = graph
        .finish(&[("result", &result)])
        .expect("the layer builds");
    let products = batch * out * out * output * input / groups * side * side;
    (program, shapes, 2.0 * products as f64)
}

/// A compiled program with its arguments.
struct Side<'a> {
    engine: &'a Engine,
    compiled: Compiled,
    arguments: Vec<Buffer>,
}

impl<'a> Side<'a> {
    fn new(engine: &'a Engine, program: &Program, shapes: &[Shape]) -> Outcome<Self> {
        let compiled = engine.compile(CompileRequest::new("kernels", program))?;
        let arguments = shapes.iter().map(|shape| {
            let count: usize = shape.dims.iter().product();
            let value = |i: usize| (i * 7 % 31) as f32 / 16.0 - 1.0;
            let values: Vec<f32> = (0..count).map(value).collect();
            engine.put(0, &HostTensor::new(shape.dims.clone(), &values))
        });
        let arguments = arguments.collect::<Result<_, _>>()?;
        let side = Self {
            engine,
            compiled,
            arguments,
        };
        side.run()?;
        Ok(side)
    }

    /// Seconds of one run.
    fn run(&self) -> Outcome<f64> {
        let arguments: Vec<&Buffer> = self.arguments.iter().collect();
        let start = Instant::now();
        let (_results, done) = self.compiled.run(&[&arguments])?;
        self.engine.wait(&done, 1)?;
        Ok(start.elapsed().as_secs_f64())
    }
}
