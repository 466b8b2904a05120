//! Gradients of gradients: the product of the Hessian of a network and a direction, as penalties of gradients have it, beside the derivative of
//! the gradient by the interpreter's forward mode, and what the compiler makes of it, with kernels.

use phalanx::engine::CompileRequest;
use phalanx::nn::Cx;
use phalanx_graph::{DType, Graph, HostTensor, Program, Shape, Tensor, gradients};
use phalanx_testkit::{Array, Interpreter, asked_number, largest_difference, search_seed};
use serde_json::{Value, json};

use crate::compare::{NEGLIGIBLE, largest};
use crate::derivatives::{FAMILIES, network};
use crate::network::Spec;
use crate::random::Random;
use crate::step::engine;
use crate::trial::{Aim, Source, Trial, Weights, floats};

/// So many networks of each family are drawn, or as many as `PHALANX_FUZZ_ROUNDS` says.
const ROUNDS: u64 = 2;
/// How far a derivative may be, relative to what is added: constants of a program are rounded to f32.
const ALONG: f64 = 1e-5;
/// How far the compiler's may be, relative to the largest.
const TOLERANCE: f64 = 2e-4;

/// A program that gives the slope of a gradient along a direction, and the gradient of that.
struct Curvature {
    program: Program,
    inputs: Vec<HostTensor>,
    /// The parameters by which it is differentiated.
    places: Vec<usize>,
}

impl Curvature {
    fn of(spec: &Spec) -> Result<Self, String> {
        let text = |error: phalanx::Error| error.to_string();
        let (model, trial) = (spec.model().map_err(text)?, &spec.trial);
        let (graph, mut inputs) = (Graph::new(), Vec::new());
        let mut parameter = |value: HostTensor| {
            let tensor = graph.parameter(&format!("p{}", inputs.len()), value.shape().clone());
            inputs.push(value);
            tensor
        };
        let variables = model.variables();
        let values = variables.iter().enumerate();
        let given: Vec<Tensor> = values
            .map(|(number, variable)| trial.variable(number, &variable.name, &variable.shape))
            .chain(trial.batch(&model).x)
            .map(&mut parameter)
            .collect();
        let random = [HostTensor::new([2], &[5u32, 7]), HostTensor::scalar(0u32)];
        let [key, first_row] = random.map(&mut parameter);
        let (own, x) = given.split_at(variables.len());
        let cx = Cx::new(&graph, &model, own).with_training(true);
        let y = model.call(&mut cx.with_random(key, first_row), x);
        let is_trained = |place: &usize| variables.get(*place).is_none_or(|own| own.trainable);
        let mut places: Vec<usize> = (0..given.len()).filter(is_trained).collect();
        places.retain(|&place| given[place].dtype().is_float());
        let wrt: Vec<&Tensor> = places.iter().map(|&place| &given[place]).collect();
        let slopes = gradients(&y[0].square().sum_all(), &wrt);
        let mut along = graph.scalar(DType::F32, 0.0);
        for (number, slope) in slopes.into_iter().enumerate() {
            if let Some(slope) = slope {
                let direction = normal(&slope.shape(), trial.seed, number as u64);
                along = along + (slope * parameter(direction)).sum_all();
            }
        }
        let second = gradients(&along, &wrt).into_iter().zip(&wrt);
        let second = second.map(|(found, x)| found.unwrap_or_else(|| x.zeros_like()));
        let outputs: Vec<Tensor> = std::iter::once(along).chain(second).collect();
        let outputs: Vec<_> = outputs.iter().map(|output| ("", output)).collect();
        let program = graph.finish(&outputs).map_err(|error| error.to_string())?;
        Ok(Self {
            program,
            inputs,
            places,
        })
    }

    fn interpreted(&self) -> Result<Vec<Vec<f64>>, String> {
        let outputs: Vec<usize> = (0..=self.places.len()).collect();
        let run = Interpreter::new(&self.program).run(std::slice::from_ref(&self.inputs), &outputs);
        let numbers = |array| match array {
            Array::Floats(numbers) => numbers,
            Array::Ints(numbers) => panic!("{numbers:?}"),
        };
        Ok(run?.remove(0).into_iter().map(numbers).collect())
    }

    /// Whether the gradients are the derivative of the slope.
    fn is_derivative(&self, seed: u64) -> Result<(), String> {
        let found = self.interpreted()?;
        if !found[0][0].is_finite() {
            return Ok(());
        }
        let mut tangents = vec![None; self.inputs.len()];
        let (mut sum, mut size) = (0.0, 0.0);
        for (&place, gradient) in self.places.iter().zip(&found[1..]) {
            let direction = Random::of(seed, 6000 + place as u64).normals(gradient.len());
            for (slope, step) in gradient.iter().zip(&direction) {
                sum += slope * step;
                size += (slope * step).abs();
            }
            tangents[place] = Some(direction);
        }
        let run = Interpreter::new(&self.program).run_with_tangents(
            std::slice::from_ref(&self.inputs),
            &[tangents],
            &[0],
        );
        let exact = run?[0][0].tangent.first().copied().unwrap_or(0.0);
        // What is 0 is so but for rounding.
        match (sum - exact).abs() <= ALONG * size.max(found[0][0].abs() * 1e-3) {
            true => Ok(()),
            false => Err(format!("{sum:e} along a direction, right is {exact:e}")),
        }
    }

    /// Whether the compiler's are those in f64.
    fn is_compiled_right(&self) -> Result<(), String> {
        let exact = self.interpreted()?;
        let engine = engine(1, true, true);
        let request = CompileRequest::new("second", &self.program);
        let text = |error: phalanx::Error| error.to_string();
        let compiled = engine.compile(request).map_err(text)?;
        let put = self.inputs.iter().map(|input| engine.put(0, input));
        let given: Vec<_> = put.collect::<phalanx::Result<_>>().map_err(text)?;
        let given: Vec<_> = given.iter().collect();
        let results = compiled.run(&[&given]).map_err(text)?.0.remove(0);
        let most = exact[1..]
            .iter()
            .fold(0.0f64, |most, x| most.max(largest(x)));
        for (number, &place) in self.places.iter().enumerate() {
            let shape = self.inputs[place].shape();
            let found = engine.get(&results[number + 1], shape).map_err(text)?;
            let exact = &exact[number + 1];
            let apart = largest_difference(exact, &found.to_f64());
            // Some are 0 but for rounding.
            let scale = largest(exact).max(NEGLIGIBLE * most);
            if apart > TOLERANCE * scale {
                return Err(format!(
                    "that by parameter {place} differs by {apart:e} of {scale:e}"
                ));
            }
        }
        Ok(())
    }
}

fn normal(shape: &Shape, seed: u64, number: u64) -> HostTensor {
    let numbers = Random::of(seed, 7000 + number).normals(shape.len());
    floats(&shape.dims, &numbers)
}

#[test]
fn second_derivatives_of_each_layer_are_derivatives() {
    let rounds = asked_number("PHALANX_FUZZ_ROUNDS").unwrap_or(ROUNDS);
    let seed = search_seed();
    println!("seed {seed}");
    let (mut tried, mut wrong) = (0, Vec::new());
    for round in 0..rounds {
        for (number, family) in FAMILIES.into_iter().enumerate() {
            let mut random = Random::of(seed, round * 100 + number as u64);
            let Some(spec) = (0..50).find_map(|_| network(&mut random, family)) else {
                continue;
            };
            tried += 1;
            let checked = Curvature::of(&spec).and_then(|of| of.is_derivative(spec.trial.seed));
            if let Err(what) = checked {
                wrong.push(format!("{what}\n{}", spec.line()));
            }
        }
    }
    let (wrong, count) = (wrong.join("\n"), wrong.len());
    assert!(count == 0, "seed {seed}, {count} of {tried}:\n{wrong}");
    assert!(tried >= rounds * 10, "only {tried} networks");
}

/// A layer between one with variables and one that makes a vector of two numbers.
fn around(dims: &[usize], kind: &'static str, settings: Value) -> Spec {
    let trial = Trial {
        sources: vec![Source::Floats],
        rows: 3,
        replicas: 1,
        aim: Aim::Squares,
        weights: Weights::None,
        seed: 11,
    };
    let mut spec = Spec {
        inputs: vec![dims.to_vec()],
        layers: Vec::new(),
        uses: Vec::new(),
        trial,
    };
    let features = dims[dims.len() - 1];
    let layers = [
        ("dense", json!({"units": features, "activation": "tanh"})),
        (kind, settings),
        ("flatten", json!({})),
        ("dense", json!({"units": 2})),
    ];
    for (at, (kind, settings)) in layers.into_iter().enumerate() {
        let layer = crate::layers::layer(kind, settings);
        (spec, _) = spec.with(layer, &[at]).unwrap();
    }
    spec
}

#[test]
fn compiled_second_derivatives_are_right() {
    let window = json!({"filters": 3, "kernel_size": 3, "strides": 2, "padding": "same"});
    let relu = json!({"filters": 4, "kernel_size": 2, "activation": "relu"});
    let image: &[usize] = &[6, 5, 3];
    let (volume, sequence): (&[usize], &[usize]) = (&[4, 5, 4, 2], &[5, 4]);
    let epsilon = json!({"epsilon": 0.1});
    for (dims, kind, settings) in [
        (image, "conv2d", relu.clone()),
        (image, "conv2d_transpose", window.clone()),
        (image, "batch_norm", epsilon.clone()),
        (image, "group_norm", json!({"groups": 3, "epsilon": 0.1})),
        (image, "max_pool2d", json!({"pool_size": 2})),
        (image, "adaptive_average_pool2d", json!({"output_size": 4})),
        (
            image,
            "conv_lstm1d",
            json!({"filters": 2, "kernel_size": 2}),
        ),
        (volume, "conv3d", window.clone()),
        (volume, "conv3d", relu),
        (volume, "conv3d_transpose", window),
        (
            sequence,
            "separable_conv1d",
            json!({"filters": 3, "kernel_size": 2}),
        ),
        (sequence, "lstm", json!({"units": 3})),
        (sequence, "gru", json!({"units": 3})),
        (sequence, "layer_norm", epsilon.clone()),
        (sequence, "rms_norm", epsilon),
        (
            sequence,
            "multi_head_attention",
            json!({"num_heads": 2, "key_dim": 3}),
        ),
        (sequence, "additive_attention", json!({})),
    ] {
        let checked = Curvature::of(&around(dims, kind, settings)).and_then(|of| {
            of.is_derivative(3)?;
            of.is_compiled_right()
        });
        checked.unwrap_or_else(|what| panic!("{kind}: {what}"));
    }
}
