//! Convolutions through oneDNN's kernels beside XLA's own, in GFLOP/s of forward, input gradient and kernel gradient:
//! `kernels [PART OF A NAME]`.
//!
//! Both sides are whole programs of one op on all processors, run one after the other in turns; medians.
#![forbid(unsafe_code)]

use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;

use phalanx::engine::{Compiled, Engine, EngineOptions, KernelsMode};
use phalanx_graph::op::{ConvDims, ConvSpec};
use phalanx_graph::{DType, Graph, HostTensor, Program, Shape, Tensor, gradients};
use phalanx_kernels::Kernels;
use phalanx_pjrt::{Buffer, Places};

const RUNS: usize = 7;

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
    ("14 depthwise", [16, 14, 576, 576, 3, 1, 576]),
    ("14 1x1 narrow", [16, 14, 96, 576, 1, 1, 1]),
];

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Outcome<()> {
    let wanted = std::env::args().nth(1).unwrap_or_default();
    let kernels = Kernels::find(&Places::of_process(), None)?;
    let hand_over = kernels.hand_over_seconds(2001) * 1e6;
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
    Ok(())
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
    let rate = |seconds: &mut Vec<f64>| {
        seconds.sort_by(f64::total_cmp);
        flops / seconds[seconds.len() / 2] / 1e9
    };
    let [ours, xla] = &mut seconds;
    Ok(format!("{:>6.0} / {:>5.0}", rate(ours), rate(xla)))
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
        let compiled = engine.compile("kernels", program)?;
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
