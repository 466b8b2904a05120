//! What a network is tried with: batch, loss, replicas, random values.

use phalanx::data::{Batch, HostTensor};
use phalanx::nn::Model;
use phalanx::prelude::*;
use phalanx_graph::{DType, Shape};

use crate::random::Random;

/// Where the examples of an input come from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Source {
    /// Normal numbers.
    Floats,
    /// The same, of which the last steps of some sequences are zeros.
    Padded,
    /// Integers from 0 to below this; with padding the last steps of some sequences are 0, and no others are.
    Tokens { below: usize, padded: bool },
}

impl Source {
    pub(crate) const fn dtype(self) -> DType {
        match self {
            Self::Tokens { .. } => DType::I32,
            Self::Floats | Self::Padded => DType::F32,
        }
    }

    fn tensor(self, dims: &[usize], random: &mut Random) -> HostTensor {
        let count = dims.iter().product();
        let steps = dims.get(1).copied().unwrap_or(1);
        // How many steps of each row are not padding; now and then none is.
        let mut lengths = || (0..dims[0]).map(|_| random.from(0, steps)).collect();
        let lengths: Vec<usize> = match self {
            Self::Floats | Self::Tokens { padded: false, .. } => vec![steps; dims[0]],
            _ => lengths(),
        };
        let row: usize = dims[1..].iter().product();
        let is_kept = |place: usize| place % row / (row / steps) < lengths[place / row];
        match self {
            Self::Tokens { below, padded } => {
                let least = usize::from(padded && below > 1);
                let tokens = (0..count).map(|place| match is_kept(place) {
                    true => random.from(least, below - 1) as i32,
                    false => 0,
                });
                HostTensor::new(dims, &tokens.collect::<Vec<i32>>())
            }
            Self::Floats | Self::Padded => {
                let numbers = (0..count).map(|place| match is_kept(place) {
                    true => random.normal() as f32,
                    false => 0.0,
                });
                HostTensor::new(dims, &numbers.collect::<Vec<f32>>())
            }
        }
    }
}

/// The loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Aim {
    /// Mean squares of the differences from random targets.
    Squares,
    /// Mean absolute differences.
    Differences,
    /// Huber's.
    Huber,
    /// Cross-entropy of random distributions.
    Distributions,
    /// Cross-entropy of random classes.
    Classes,
    /// Cross-entropy of random answers, yes or no.
    Answers,
    /// Connectionist temporal classification, of random labels that fit into the steps.
    Labels,
}

/// Weights of the examples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Weights {
    /// All alike.
    None,
    /// Random, a fifth of them 0.
    Random,
}

/// What a network is tried with.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Trial {
    pub(crate) sources: Vec<Source>,
    pub(crate) rows: usize,
    pub(crate) replicas: usize,
    pub(crate) aim: Aim,
    pub(crate) weights: Weights,
    /// What values of variables, inputs and targets follow from.
    pub(crate) seed: u64,
}

impl Trial {
    /// It as Rust.
    pub(crate) fn code(&self) -> String {
        let sources: Vec<String> = (self.sources.iter())
            .map(|source| format!("Source::{source:?}"))
            .collect();
        format!(
            "Trial {{ sources: vec![{}], rows: {}, replicas: {}, aim: Aim::{:?}, weights: Weights::{:?}, seed: {} }}",
            sources.join(", "),
            self.rows,
            self.replicas,
            self.aim,
            self.weights,
            self.seed
        )
    }

    pub(crate) fn loss(&self) -> Losses {
        match self.aim {
            Aim::Squares => MeanSquaredError.into(),
            Aim::Differences => MeanAbsoluteError.into(),
            Aim::Huber => Huber::default().into(),
            Aim::Distributions => CategoricalCrossentropy::from_logits()
                .label_smoothing(0.1)
                .into(),
            Aim::Classes => SparseCategoricalCrossentropy::from_logits().into(),
            Aim::Answers => BinaryCrossentropy::from_logits().into(),
            Aim::Labels => Ctc.into(),
        }
    }

    /// The batch of all replicas.
    pub(crate) fn batch(&self, model: &Model) -> Batch {
        let batched = |dims: &[usize]| [&[self.rows], dims].concat();
        let inputs = model.inputs().zip(&self.sources).enumerate();
        let x = inputs.map(|(number, ((_, shape), source))| {
            let mut random = Random::of(self.seed, 1000 + number as u64);
            source.tensor(&batched(&shape.dims), &mut random)
        });
        Batch {
            x: x.collect(),
            y: vec![self.target(&batched(&model.outputs()[0].dims))],
            weight: self.weight(),
            first: 0,
        }
    }

    fn target(&self, dims: &[usize]) -> HostTensor {
        let mut random = Random::of(self.seed, 2000);
        let count = dims.iter().product();
        match self.aim {
            Aim::Squares | Aim::Differences | Aim::Huber => floats(dims, &random.normals(count)),
            Aim::Distributions => {
                let classes = dims.last().copied().unwrap_or(1);
                let mut numbers: Vec<f64> = (0..count).map(|_| 0.05 + random.unit()).collect();
                for numbers in numbers.chunks_mut(classes) {
                    let sum: f64 = numbers.iter().sum();
                    numbers.iter_mut().for_each(|x| *x /= sum);
                }
                floats(dims, &numbers)
            }
            Aim::Answers => {
                let answers = (0..count).map(|_| random.from(0, 1) as f64);
                floats(dims, &answers.collect::<Vec<f64>>())
            }
            Aim::Labels => {
                let (most, classes) = (dims[1].div_ceil(2), dims[2]);
                let labels = (0..dims[0]).flat_map(|_| {
                    let used = random.from(0, most);
                    let label = |place| match place < used {
                        true => random.from(1, classes - 1) as i32,
                        false => 0,
                    };
                    (0..most).map(label).collect::<Vec<i32>>()
                });
                HostTensor::new([dims[0], most], &labels.collect::<Vec<i32>>())
            }
            Aim::Classes => {
                let (classes, dims) = dims.split_last().unwrap();
                let labels = (0..count / classes).map(|_| random.from(0, classes - 1) as i32);
                HostTensor::new(dims, &labels.collect::<Vec<i32>>())
            }
        }
    }

    fn weight(&self) -> Option<HostTensor> {
        if self.weights == Weights::None {
            return None;
        }
        let mut random = Random::of(self.seed, 3000);
        let weights = (0..self.rows).map(|row| match row > 0 && random.chance(0.2) {
            true => 0.0,
            false => 0.1 + random.unit(),
        });
        Some(floats(&[self.rows], &weights.collect::<Vec<f64>>()))
    }

    /// Random values of a variable: those of real layers begin as zeros and ones, which hide much.
    pub(crate) fn variable(&self, number: usize, name: &str, shape: &Shape) -> HostTensor {
        let mut random = Random::of(self.seed, number as u64);
        let values = random.normals(shape.len());
        let last = name.rsplit('/').next().unwrap_or(name);
        let fan_in: usize = shape.dims[..shape.rank().saturating_sub(1)]
            .iter()
            .product();
        let (mean, spread) = match last {
            "gamma" => (1.0, 0.5),
            "beta" | "bias" | "moving_mean" | "mean" => (0.0, 0.5),
            "moving_variance" | "variance" => (1.0, 0.2),
            // By which Keras' variable is found.
            "count" => (0.0, 1e5),
            "embeddings" => (0.0, 1.0),
            _ => (0.0, 1.2 / (fan_in.max(1) as f64).sqrt()),
        };
        let values = values.iter().map(|value| mean + spread * value);
        let values = values.map(|value| match last {
            "moving_variance" | "variance" => value.abs() + 0.1,
            _ => value,
        });
        floats(&shape.dims, &values.collect::<Vec<f64>>()).convert(shape.dtype)
    }
}

pub(crate) fn floats(dims: &[usize], values: &[f64]) -> HostTensor {
    let values: Vec<f32> = values.iter().map(|&value| value as f32).collect();
    HostTensor::new(dims, &values)
}
