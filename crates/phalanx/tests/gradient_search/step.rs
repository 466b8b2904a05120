//! A training step of a network, as a trainer traces it, run by the compiler and by the interpreter.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use phalanx::engine::{CompileRequest, Engine, EngineOptions, KernelsMode};
use phalanx::nn::Model;
use phalanx::prelude::*;
use phalanx::replicas::BatchPartition;
use phalanx_graph::{DType, Program, Shape};
use phalanx_pjrt::{Buffer, ExecuteOptions};
use phalanx_testkit::{Array, Interpreter};

use crate::algorithms::by_algorithm;
use crate::any_device;
use crate::random::Random;
use crate::trial::Trial;

/// The rate of the one step of plain gradient descent: a power of two so large that what is left of a variable does not
/// round off the digits of its gradient.
const RATE: f64 = 1_048_576.0;

/// An array that a step replaces.
#[derive(Debug)]
pub(crate) struct Replaced {
    pub(crate) name: String,
    pub(crate) parameter: usize,
    output: usize,
    /// Whether it is trained: then its gradient is compared, else its new value.
    pub(crate) trained: bool,
    pub(crate) before: Vec<f64>,
}

/// A step with all that it is given.
pub(crate) struct Step {
    pub(crate) program: Program,
    /// What each replica gives it.
    pub(crate) inputs: Vec<Vec<HostTensor>>,
    pub(crate) replaced: Vec<Replaced>,
    /// The output with the sums: of the loss and of its weights, of the penalties and of the examples, ...
    pub(crate) tally: usize,
    /// Whether it is compiled in little time.
    quick: bool,
    /// How large errors of ops are, relative to their results.
    noise: f64,
}

/// What a step leaves: for each replica the gradient, or new value, of each array that it replaces.
pub(crate) type Left = Vec<Vec<Vec<f64>>>;

impl Step {
    pub(crate) fn new(model: &Model, trial: &Trial, precision: Policy) -> phalanx::Result<Self> {
        let compile = Compile {
            optimizer: Sgd::new(1.0).into(),
            loss: trial.loss(),
            precision,
            ..Compile::default()
        };
        let engine = engine(trial.replicas, true, true);
        let trainer = match trial.replicas {
            1 => OneDeviceStrategy::on(engine).compile(model.clone(), compile)?,
            _ => MirroredStrategy::on(engine).compile(model.clone(), compile)?,
        };
        let batch = trial.batch(model);
        let program = trainer.training_program(&batch)?;
        let partition = trainer.placement().partition(trial.rows, trial.rows);
        let tensors = batch.x.iter().chain(&batch.y).chain(&batch.weight);
        let tensors: Vec<&HostTensor> = tensors.collect();
        let inputs = (0..partition.replicas())
            .map(|replica| inputs(model, trial, &program, &tensors, &partition, replica))
            .collect::<Vec<_>>();
        let variables = model.variables();
        let mut replaced = Vec::new();
        let mut tally = 0;
        for &(parameter, output) in &program.donated {
            if program.parameters[parameter].name == "tally" {
                tally = output;
            }
            if let Some(variable) = variables.get(parameter) {
                replaced.push(Replaced {
                    name: variable.name.clone(),
                    parameter,
                    output,
                    trained: variable.trainable,
                    before: inputs[0][parameter].to_f64(),
                });
            }
        }
        Ok(Self {
            program,
            inputs,
            replaced,
            tally,
            // What LLVM does is not ours; an eighth is compiled as for real training.
            quick: !trial.seed.is_multiple_of(8),
            noise: match precision {
                // Some units of the last place of an f32.
                Policy::Float32 => (2f64).powi(-21),
                Policy::MixedBfloat16 | Policy::MixedFloat16 => (2f64).powi(-8),
            },
        })
    }

    /// The step as the compiler has it.
    pub(crate) fn compiled(&self, kernels: bool) -> phalanx::Result<Left> {
        let engine = engine(self.program.replicas, kernels, self.quick);
        let compiled = engine.compile(CompileRequest::new("gradient_search", &self.program))?;
        let lists = self.put(engine)?;
        let lists: Vec<Vec<_>> = lists.iter().map(|list| list.iter().collect()).collect();
        let lists: Vec<&[_]> = lists.iter().map(Vec::as_slice).collect();
        let (outputs, _) = compiled.run(&lists)?;
        self.left(engine, &outputs)
    }

    /// The step with this algorithm in all convolutions or products that it computes; none where there are none.
    pub(crate) fn by_algorithm(&self, algorithm: &str) -> Result<Option<Left>, String> {
        let text = |error: phalanx::Error| error.to_string();
        let engine = engine(self.program.replicas, true, true);
        let Some(compiled) = by_algorithm(self, engine, algorithm)? else {
            return Ok(None);
        };
        let lists = self.put(engine).map_err(text)?;
        let lists: Vec<Vec<_>> = lists.iter().map(|list| list.iter().collect()).collect();
        let lists: Vec<&[_]> = lists.iter().map(Vec::as_slice).collect();
        let run = compiled.execute(&lists, &ExecuteOptions::default());
        let outputs = run.map_err(|error| error.to_string())?.outputs;
        self.left(engine, &outputs).map(Some).map_err(text)
    }

    /// What the step is given, on each device.
    fn put(&self, engine: &Engine) -> phalanx::Result<Vec<Vec<Buffer>>> {
        let mut buffers = Vec::new();
        for (replica, inputs) in self.inputs.iter().enumerate() {
            let put = inputs.iter().map(|input| engine.put(replica, input));
            buffers.push(put.collect::<phalanx::Result<Vec<_>>>()?);
        }
        Ok(buffers)
    }

    /// What the outputs of each device say.
    fn left(&self, engine: &Engine, outputs: &[Vec<Buffer>]) -> phalanx::Result<Left> {
        let mut left = Vec::new();
        for outputs in outputs {
            let each = self.replaced.iter().map(|replaced| {
                let shape = &self.program.parameters[replaced.parameter].shape;
                let after = engine.get(&outputs[replaced.output], shape)?;
                Ok(replaced.result(&after.to_f64()))
            });
            left.push(each.collect::<phalanx::Result<Vec<_>>>()?);
        }
        Ok(left)
    }

    /// The step in f64, with noise of this seed in each op that rounds.
    pub(crate) fn interpreted(&self, noise: Option<u64>) -> Result<Left, String> {
        let mut interpreter = Interpreter::new(&self.program);
        if let Some(seed) = noise {
            interpreter = interpreter.with_noise(self.noise, seed);
        }
        let outputs: Vec<usize> = self.replaced.iter().map(|each| each.output).collect();
        let replicas = interpreter.run(&self.inputs, &outputs)?;
        let left = replicas.into_iter().map(|arrays| {
            let each = self.replaced.iter().zip(arrays);
            each.map(|(replaced, array)| match array {
                Array::Floats(after) => replaced.result(&after),
                Array::Ints(after) => after.iter().map(|&x| x as f64).collect(),
            })
            .collect()
        });
        Ok(left.collect())
    }

    /// Whether the loss in f64 is a number.
    pub(crate) fn loss_is_finite(&self) -> Result<bool, String> {
        let tallies = Interpreter::new(&self.program).run(&self.inputs, &[self.tally])?;
        let is_finite = |tally: &Vec<Array>| match &tally[0] {
            Array::Floats(sums) => sums[0].is_finite() && sums[2].is_finite(),
            Array::Ints(_) => false,
        };
        Ok(tallies.iter().all(is_finite))
    }

    /// The derivative of the loss along directions of variables, by the interpreter's forward mode.
    pub(crate) fn along(&self, directions: &[Option<Vec<f64>>]) -> Result<f64, String> {
        let tangents = self.inputs.iter().map(|inputs| {
            let mut tangents = vec![None; inputs.len()];
            for (replaced, direction) in self.replaced.iter().zip(directions) {
                tangents[replaced.parameter].clone_from(direction);
            }
            tangents
        });
        let tangents: Vec<_> = tangents.collect();
        let interpreter = Interpreter::new(&self.program);
        let tallies = interpreter.run_with_tangents(&self.inputs, &tangents, &[self.tally])?;
        let (mut slopes, mut weights) = ([0.0; 2], [0.0; 2]);
        for tally in &tallies {
            let Array::Floats(sums) = &tally[0].value else {
                return Err("the sums are not floats".into());
            };
            for (part, (slope, weight)) in slopes.iter_mut().zip(&mut weights).enumerate() {
                *weight += sums[2 * part + 1];
                *slope += tally[0].tangent.get(2 * part).copied().unwrap_or(0.0);
            }
        }
        // What has no weight adds nothing to the loss.
        let parts = slopes.iter().zip(&weights);
        let parts = parts.filter(|(_, weight)| **weight > 0.0);
        Ok(parts.map(|(slope, weight)| slope / weight).sum())
    }

    /// Floating-point operations of a replica.
    pub(crate) fn flops(&self) -> u64 {
        self.program.cost().total.flops
    }
}

impl Replaced {
    fn result(&self, after: &[f64]) -> Vec<f64> {
        if !self.trained {
            return after.to_vec();
        }
        let pairs = self.before.iter().zip(after);
        pairs
            .map(|(before, after)| (before - after) / RATE)
            .collect()
    }
}

/// What a replica gives the program.
fn inputs(
    model: &Model,
    trial: &Trial,
    program: &Program,
    tensors: &[&HostTensor],
    partition: &BatchPartition,
    replica: usize,
) -> Vec<HostTensor> {
    let variables = model.variables();
    let mut batch = tensors.iter();
    let parameters = program.parameters.iter().enumerate();
    let value = |(number, parameter): (usize, &phalanx_graph::Parameter)| {
        let shape = &parameter.shape;
        if let Some(variable) = variables.get(number) {
            return trial.variable(number, &variable.name, shape);
        }
        match parameter.name.as_str() {
            "learning_rate" => HostTensor::full(shape.clone(), RATE),
            "iterations" | "tally" => HostTensor::zeros(shape.clone()),
            "seed" => key(trial.seed, shape),
            "rows" => HostTensor::scalar(partition.rows(replica) as i32),
            "first_row" => HostTensor::scalar(partition.first_row(replica) as u32),
            _ => part(batch.next().unwrap(), partition, replica),
        }
    };
    parameters.map(value).collect()
}

fn key(seed: u64, shape: &Shape) -> HostTensor {
    assert_eq!(*shape, Shape::new(DType::U32, [2]));
    let bits = Random::of(seed, 4000).bits();
    HostTensor::new([2], &[(bits >> 32) as u32, bits as u32])
}

/// A replica's rows, filled up with the last of them as a trainer does.
fn part(tensor: &HostTensor, partition: &BatchPartition, replica: usize) -> HostTensor {
    let (start, count) = (partition.first_row(replica), partition.rows(replica));
    let start = start.min(tensor.rows() - 1);
    let given = tensor.slice_rows(start, start + count.max(1));
    let last = tensor.slice_rows(start + count.max(1) - 1, start + count.max(1));
    let mut bytes = given.bytes().to_vec();
    for _ in count.max(1)..partition.padded_rows() {
        bytes.extend_from_slice(last.bytes());
    }
    let mut shape = tensor.shape().clone();
    shape.dims[0] = partition.padded_rows();
    HostTensor::from_bytes(shape, &bytes).unwrap()
}

/// The engine of so many replicas, with or without kernels.
pub(crate) fn engine(replicas: usize, kernels: bool, quick: bool) -> &'static Engine {
    static ENGINES: [OnceLock<Engine>; 8] = [const { OnceLock::new() }; 8];
    let choices = [replicas > 1, kernels, quick].map(usize::from);
    let number = choices[0] * 4 + choices[1] * 2 + choices[2];
    ENGINES[number].get_or_init(|| {
        let options = EngineOptions {
            kernels: match kernels {
                true => KernelsMode::Always,
                false => KernelsMode::Off,
            },
            cpu_devices: if replicas > 1 { 3 } else { 1 },
            // Thousands of programs that nobody runs again.
            compile_cache: false,
            quick_compile: quick,
            // A step takes milliseconds; one that takes so long does not end, also where all else goes before the search.
            deadline: Duration::from_secs(600),
            // What takes long on a busy machine would say so.
            notice: Arc::new(|line| {
                if !line.starts_with("compiling ") {
                    eprintln!("{line}");
                }
            }),
            ..any_device::options()
        };
        Engine::new(&options).unwrap()
    })
}
