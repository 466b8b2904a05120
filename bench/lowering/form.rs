//! Forms of a piece of work, and how long they take.

use std::time::Instant;

use phalanx::engine::{CompileRequest, Engine, EngineOptions, KernelsMode};
use phalanx_graph::{DType, Graph, HostTensor, Program, Tensor};

/// Rounds, in which the forms take turns.
const ROUNDS: usize = 9;

/// A piece of work.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) shown: String,
    /// Why the first form was chosen.
    pub(crate) why: &'static str,
    pub(crate) forms: Vec<Form>,
}

/// Adds the work to a graph; its results.
type Build = Box<dyn Fn(&Graph) -> Vec<Tensor>>;

/// A way to do it.
pub(crate) struct Form {
    pub(crate) label: &'static str,
    /// Whether the engine may call registered kernels.
    pub(crate) kernels: bool,
    pub(crate) build: Build,
}

impl Form {
    /// A form that the compiler's own code computes.
    pub(crate) fn new(
        label: &'static str,
        build: impl Fn(&Graph) -> Vec<Tensor> + 'static,
    ) -> Self {
        let build = Box::new(build);
        Self {
            label,
            kernels: false,
            build,
        }
    }

    /// A form that may call registered kernels.
    pub(crate) fn with_kernels(
        label: &'static str,
        build: impl Fn(&Graph) -> Vec<Tensor> + 'static,
    ) -> Self {
        Self {
            kernels: true,
            ..Self::new(label, build)
        }
    }
}

/// Engines with and without kernels.
pub(crate) struct Timer {
    plain: Engine,
    with_kernels: Engine,
}

impl Timer {
    pub(crate) fn new() -> phalanx::Result<Self> {
        let without = EngineOptions {
            kernels: KernelsMode::Off,
            ..EngineOptions::default()
        };
        Ok(Self {
            plain: Engine::new(&without)?,
            with_kernels: Engine::cpu()?,
        })
    }

    /// Milliseconds of each form: medians of rounds.
    pub(crate) fn time(&self, row: &Row) -> Result<Vec<f64>, Box<dyn std::error::Error>> {
        let mut forms = Vec::new();
        for form in &row.forms {
            let engine = if form.kernels {
                &self.with_kernels
            } else {
                &self.plain
            };
            let program = program(form)?;
            let compiled = engine.compile(CompileRequest::new(row.name, &program))?;
            let inputs: Result<Vec<_>, _> = arguments(&program)
                .iter()
                .map(|value| engine.put(0, value))
                .collect();
            forms.push((engine, compiled, inputs?, Vec::new()));
        }
        for round in 0..=ROUNDS {
            for (engine, compiled, inputs, times) in &mut forms {
                let inputs: Vec<_> = inputs.iter().collect();
                let start = Instant::now();
                let (_outputs, done) = compiled.run(&[&inputs])?;
                engine.wait(&done, 1)?;
                // The first round warms up.
                if round > 0 {
                    times.push(start.elapsed().as_secs_f64() * 1e3);
                }
            }
        }
        Ok(forms.into_iter().map(|(.., times)| median(times)).collect())
    }
}

fn program(form: &Form) -> Result<Program, phalanx_graph::GraphError> {
    let graph = Graph::new();
    let outputs = (form.build)(&graph);
    let names: Vec<String> = (0..outputs.len())
        .map(|index| format!("output_{index}"))
        .collect();
    let outputs: Vec<(&str, &Tensor)> = names.iter().map(String::as_str).zip(&outputs).collect();
    graph.finish(&outputs)
}

/// Floats of some size, and indices below 8000.
fn arguments(program: &Program) -> Vec<HostTensor> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let shapes = program.parameters.iter().map(|parameter| &parameter.shape);
    shapes
        .map(|shape| {
            let count: usize = shape.dims.iter().product();
            if shape.dtype == DType::I32 {
                let values: Vec<i32> = (0..count).map(|_| (next() % 8000) as i32).collect();
                return HostTensor::new(shape.dims.clone(), &values);
            }
            let unit = |bits: u64| (bits >> 40) as f32 / (1u64 << 24) as f32;
            let values: Vec<f32> = (0..count).map(|_| unit(next()) * 2.0 - 1.0).collect();
            HostTensor::new(shape.dims.clone(), &values)
        })
        .collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
