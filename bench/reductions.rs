//! All-reduces between two CPU replicas, in milliseconds: each way and wire by size, then packs of many tensors, alone and
//! behind the layers that make them, with and without XLA's pass that makes one of all: `bench-reductions`, as markdown.
//!
//! Variants of a row run in turns; medians of whole runs, from the start to the end of both replicas.
#![forbid(unsafe_code)]

mod program;

use std::collections::BTreeMap;
use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use phalanx::engine::{Engine, EngineOptions};
use phalanx_graph::op::{ReduceOp, Via};
use phalanx_graph::{
    CompilerOption, DType, Graph, HostTensor, Lowering, Platform, Program, Shape, Tensor,
    compiler_options, gradients,
};
use phalanx_pjrt::{Buffer, CompileOptions, Executable, ExecuteOptions, OverrideValue};

const REPLICAS: usize = 2;
const DEADLINE: Duration = Duration::from_secs(60);

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    program::exit(run())
}

fn run() -> Outcome<()> {
    let engine = Engine::new(&EngineOptions {
        cpu_devices: REPLICAS,
        ..EngineOptions::default()
    })?;
    sizes(&engine)?;
    packs(&engine)?;
    rows(&engine)
}

fn sizes(engine: &Engine) -> Outcome<()> {
    println!(
        "| f32 bytes of one tensor | native | one device | hierarchical | bf16 wire | f16 wire |"
    );
    println!("|---|---:|---:|---:|---:|---:|");
    let sizes = [
        ("1 kB", 1e3),
        ("32 kB", 32e3),
        ("1 MB", 1e6),
        ("10 MB", 1e7),
        ("100 MB", 1e8),
    ];
    for (name, bytes) in sizes {
        let dims = [vec![bytes as usize / 4]];
        let ways = [
            (Via::Native, DType::F32),
            (Via::OneDevice, DType::F32),
            (Via::Hierarchical, DType::F32),
            (Via::Native, DType::Bf16),
            (Via::Native, DType::F16),
        ];
        let sides = ways.map(|(via, wire)| {
            let sum = |x: &[Tensor]| narrow_sum(x, via, wire);
            Side::new(engine, &program(&dims, &sum), &dims, true)
        });
        row(name, sides, if bytes < 5e7 { 41 } else { 9 })?;
    }
    Ok(())
}

fn narrow_sum(x: &[Tensor], via: Via, wire: DType) -> Vec<Tensor> {
    let sent: Vec<Tensor> = x.iter().map(|x| x.convert(wire)).collect();
    let sums = x[0]
        .graph()
        .all_reduce(&sent.iter().collect::<Vec<_>>(), ReduceOp::Sum, via);
    sums.iter().map(|sum| sum.convert(DType::F32)).collect()
}

/// One exchange of tensors in packs of this number.
fn in_packs(x: &[Tensor], each: usize) -> Vec<Tensor> {
    x.chunks(each)
        .flat_map(|pack| narrow_sum(pack, Via::Native, DType::F32))
        .collect()
}

/// One exchange of tensors laid end to end.
fn joined(x: &[Tensor]) -> Vec<Tensor> {
    let flat: Vec<Tensor> = x.iter().map(|x| x.reshape(&[x.shape().len()])).collect();
    let sum = Tensor::concat(&flat.iter().collect::<Vec<_>>(), 0).all_reduce(ReduceOp::Sum);
    let mut start = 0;
    let cut = |x: &Tensor| {
        let part = sum.slice_dim(0, start, start + x.shape().len());
        start += x.shape().len();
        part.reshape(&x.dims())
    };
    x.iter().map(cut).collect()
}

type Packing = fn(&[Tensor]) -> Vec<Tensor>;

/// The ways of sending many tensors: in one exchange, laid end to end, in four packs, each alone.
const PACKINGS: [(&str, Packing); 4] = [
    ("one variadic", |x| in_packs(x, x.len())),
    ("concatenated", joined),
    ("4 packs", |x| in_packs(x, x.len().div_ceil(4))),
    ("each alone", |x| in_packs(x, 1)),
];

fn packs(engine: &Engine) -> Outcome<()> {
    println!(
        "\n| gradients | merged by XLA | {} |",
        PACKINGS.map(|(name, _)| name).join(" | ")
    );
    println!("|---|---|---:|---:|---:|---:|");
    let small = vec![vec![64, 64]; 64];
    let large = vec![vec![625, 640]; 64];
    for (name, dims) in [("64 of 16 kB", small), ("64 of 1.6 MB", large)] {
        for merged in [true, false] {
            let sides =
                PACKINGS.map(|(_, sum)| Side::new(engine, &program(&dims, &sum), &dims, merged));
            row(&format!("{name} | {merged}"), sides, 9)?;
        }
    }
    let layers = vec![vec![768, 768]; 12];
    for (name, batch) in [
        ("12 layers 768x768, batch 64", 64),
        ("12 layers 768x768, batch 256", 256),
    ] {
        for merged in [true, false] {
            let sides = PACKINGS.map(|(_, sum)| {
                let backward = |x: &[Tensor]| sum(&slopes(x, batch));
                Side::new(engine, &program(&layers, &backward), &layers, merged)
            });
            row(&format!("{name} | {merged}"), sides, 9)?;
        }
    }
    Ok(())
}

/// The gradients of a stack of dense layers.
fn slopes(kernels: &[Tensor], batch: usize) -> Vec<Tensor> {
    let graph = kernels[0].graph();
    let size = kernels[0].dim(0);
    let mut x = graph.iota(Shape::f32([batch, size]), 1) * 1e-3;
    for kernel in kernels {
        x = x.matmul(kernel).tanh();
    }
    let wrt: Vec<&Tensor> = kernels.iter().collect();
    gradients(&x.sum_all(), &wrt)
        .into_iter()
        .flatten()
        .collect()
}

/// A table of embeddings, of which each replica has rows.
fn rows(engine: &Engine) -> Outcome<()> {
    println!("\n| gradient of a table of 50,000 x 64 | as rows | as a whole |");
    println!("|---|---:|---:|");
    for count in [256, 4096, 16384] {
        let dims = [vec![count, 64]];
        let make = |x: &[Tensor], as_rows: bool| {
            let graph = x[0].graph();
            let ids = graph.iota(Shape::new(DType::I32, [count]), 0) * 3.0;
            let (ids, rows) = match as_rows {
                true => (ids.all_gather(0), x[0].all_gather(0)),
                false => (ids, x[0].clone()),
            };
            let zeros = graph.full(&Shape::f32([50_000, 64]), 0.0);
            let whole = zeros.scatter_add(&ids, &rows, 0);
            vec![if as_rows {
                whole
            } else {
                whole.all_reduce(ReduceOp::Sum)
            }]
        };
        let sides = [true, false].map(|as_rows| {
            let made = program(&dims, &|x: &[Tensor]| make(x, as_rows));
            Side::new(engine, &made, &dims, true)
        });
        row(&format!("{count} rows"), sides, 9)?;
    }
    Ok(())
}

fn program(dims: &[Vec<usize>], make: &dyn Fn(&[Tensor]) -> Vec<Tensor>) -> Program {
    let graph = Graph::with_replicas(REPLICAS);
    let x = dims
        .iter()
        .map(|dims| graph.parameter("x", Shape::f32(dims.as_slice())));
    let results = make(&x.collect::<Vec<_>>());
    let outputs: Vec<(&str, &Tensor)> = results.iter().map(|result| ("sum", result)).collect();
    graph.finish(&outputs).expect("the sums build").simplified()
}

/// A compiled variant and its arguments.
struct Side {
    executable: Executable,
    arguments: Vec<Vec<Buffer>>,
}

impl Side {
    fn new(engine: &Engine, program: &Program, dims: &[Vec<usize>], merged: bool) -> Outcome<Self> {
        let text = program.to_stablehlo(&Lowering::new(Platform::Cpu, "reductions"));
        let mut overrides = BTreeMap::new();
        for (name, value) in compiler_options(Platform::Cpu, &text) {
            let value = match value {
                CompilerOption::Switch(on) => OverrideValue::Bool(on),
                CompilerOption::Text(text) => OverrideValue::Text(text.to_owned()),
            };
            overrides.insert(name.to_owned(), value);
        }
        if !merged {
            let pass = OverrideValue::Text("cpu-all-reduce-combiner".to_owned());
            overrides.insert("xla_disable_hlo_passes".to_owned(), pass);
        }
        let options = CompileOptions {
            replicas: REPLICAS,
            overrides,
            ..CompileOptions::default()
        };
        let put = |device: usize| -> Outcome<Vec<Buffer>> {
            let tensor = |dims: &Vec<usize>| {
                let values = vec![0.01f32 * (device + 1) as f32; dims.iter().product()];
                Ok(engine.put(device, &HostTensor::new(dims.as_slice(), &values))?)
            };
            dims.iter().map(tensor).collect()
        };
        Ok(Self {
            executable: engine.client().compile(&text, &options)?,
            arguments: (0..REPLICAS).map(put).collect::<Outcome<_>>()?,
        })
    }

    fn run(&self) -> Outcome<f64> {
        let lists: Vec<Vec<&Buffer>> = self
            .arguments
            .iter()
            .map(|list| list.iter().collect())
            .collect();
        let arguments: Vec<&[&Buffer]> = lists.iter().map(Vec::as_slice).collect();
        let start = Instant::now();
        let run = self
            .executable
            .execute(&arguments, &ExecuteOptions::default())?;
        for done in &run.done {
            done.wait(DEADLINE)?;
        }
        Ok(start.elapsed().as_secs_f64() * 1e3)
    }
}

fn row<const N: usize>(name: &str, sides: [Outcome<Side>; N], runs: usize) -> Outcome<()> {
    let sides: Vec<Side> = sides.into_iter().collect::<Outcome<_>>()?;
    let mut times = vec![Vec::new(); N];
    for turn in 0..=runs {
        for (side, times) in sides.iter().zip(&mut times) {
            let time = side.run()?;
            if turn > 0 {
                times.push(time);
            }
        }
    }
    let cells: Vec<String> = times
        .iter_mut()
        .map(|times| format!("{:.3}", median(times)))
        .collect();
    println!("| {name} | {} |", cells.join(" | "));
    Ok(())
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
