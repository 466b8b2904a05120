//! The examples of a training.

use phalanx::data::Batch;
use phalanx::prelude::*;

use crate::draw::Draw;
use crate::random::Random;

/// What an input is fed with.
#[derive(Clone, Debug)]
pub(crate) enum Feed {
    /// Numbers of these dims for each example.
    Numbers(Vec<usize>),
    /// From 1 to [`STEPS`] ids below the bound, and zeros behind them up to so many steps.
    Ids(usize, usize),
    /// Steps of so many features, as many as of ids.
    Frames(usize, usize),
}

/// The steps of a sequence without padding, at most.
pub(crate) const STEPS: usize = 4;

/// What an output is compared with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Target {
    /// One of so many classes.
    Class(usize),
    /// A class for each of so many steps, 0 behind the first [`STEPS`].
    Classes(usize, usize),
    /// The same as ones and zeros.
    OneHot(usize),
    /// 0 or 1.
    Binary,
    /// So many numbers.
    Numbers(usize),
}

/// Examples in memory.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    pub(crate) x: Vec<HostTensor>,
    pub(crate) y: Vec<HostTensor>,
    pub(crate) weights: Option<HostTensor>,
}

impl Feed {
    pub(crate) fn input(&self) -> Input {
        match self {
            Self::Numbers(dims) => Input::new(dims.clone()),
            Self::Ids(steps, _) => Input::new([*steps]).dtype(DType::I32),
            Self::Frames(steps, width) => Input::new([*steps, *width]),
        }
    }

    fn values(&self, rows: usize, random: &mut Random) -> HostTensor {
        match self {
            Self::Numbers(dims) => {
                let dims = [&[rows], &dims[..]].concat();
                let count = dims.iter().product();
                HostTensor::new(dims, &normals(count, random))
            }
            Self::Ids(steps, bound) => {
                let mut ids = Vec::new();
                for _ in 0..rows {
                    let used = random.from(1, STEPS);
                    ids.extend((0..*steps).map(|step| match step < used {
                        true => random.from(1, bound - 1) as i32,
                        false => 0,
                    }));
                }
                HostTensor::new([rows, *steps], &ids)
            }
            Self::Frames(steps, width) => {
                let mut numbers = Vec::new();
                for _ in 0..rows {
                    let used = random.from(1, STEPS);
                    numbers.extend(normals(used * width, random));
                    numbers.extend(vec![0.0; (steps - used) * width]);
                }
                HostTensor::new([rows, *steps, *width], &numbers)
            }
        }
    }
}

fn normals(count: usize, random: &mut Random) -> Vec<f32> {
    (0..count).map(|_| random.normal() as f32).collect()
}

impl Target {
    fn values(self, rows: usize, random: &mut Random) -> HostTensor {
        match self {
            Self::Class(classes) => {
                let of = (0..rows).map(|_| random.from(0, classes - 1) as i32);
                HostTensor::new([rows], &of.collect::<Vec<_>>())
            }
            Self::Classes(steps, classes) => {
                let of = (0..rows * steps).map(|place| match place % steps < STEPS {
                    true => random.from(0, classes - 1) as i32,
                    false => 0,
                });
                HostTensor::new([rows, steps], &of.collect::<Vec<_>>())
            }
            Self::OneHot(classes) => {
                let mut ones = vec![0.0f32; rows * classes];
                for row in 0..rows {
                    ones[row * classes + random.from(0, classes - 1)] = 1.0;
                }
                HostTensor::new([rows, classes], &ones)
            }
            Self::Binary => {
                let of = (0..rows).map(|_| random.from(0, 1) as f32);
                HostTensor::new([rows, 1], &of.collect::<Vec<_>>())
            }
            Self::Numbers(width) => HostTensor::new([rows, width], &normals(rows * width, random)),
        }
    }
}

impl Rows {
    /// So many examples, the same ones for the same choice.
    pub(crate) fn drawn(
        draw: &Draw,
        choice: &str,
        rows: usize,
        feeds: &[Feed],
        targets: &[Target],
    ) -> Self {
        let mut random = draw.random(choice);
        let x = feeds.iter().map(|feed| feed.values(rows, &mut random));
        let x = x.collect();
        let y = targets.iter().map(|of| of.values(rows, &mut random));
        let y = y.collect();
        let mut weight = |is_real| match is_real {
            true => random.of_list(&[0.0f32, 0.5, 1.0, 2.0, 3.0]),
            false => 1.0,
        };
        let weights = match *targets {
            [Target::Classes(steps, _)] if draw.has("weights of steps", 0.25) => {
                let weights = (0..rows * steps).map(|place| weight(place % steps < STEPS));
                let weights: Vec<f32> = weights.collect();
                Some(HostTensor::new([rows, steps], &weights))
            }
            _ if draw.has("sample weights", 0.4) => {
                let weights: Vec<f32> = (0..rows).map(|_| weight(true)).collect();
                Some(HostTensor::new([rows], &weights))
            }
            _ => None,
        };
        Self { x, y, weights }
    }

    /// The examples in their order; weights of steps travel as an input.
    pub(crate) fn dataset(&self) -> Dataset {
        let mut batch = self.batch();
        if self.has_weights_of_steps() {
            batch.x.extend(batch.weight.take());
        }
        Dataset::from_batch(batch).unwrap()
    }

    /// Batches of these examples, as a dataset has them.
    pub(crate) fn batches(&self, data: &Dataset, size: usize) -> Batches {
        self.with_weights(data.batch(size))
    }

    /// Such batches, with their weights in place.
    pub(crate) fn with_weights(&self, batches: Batches) -> Batches {
        match self.has_weights_of_steps() {
            true => batches.map(|mut batch| {
                batch.weight = batch.x.pop();
                Ok(batch)
            }),
            false => batches,
        }
    }

    fn has_weights_of_steps(&self) -> bool {
        let weights = self.weights.as_ref();
        weights.is_some_and(|weights| weights.dims().len() == 2)
    }

    pub(crate) fn batch(&self) -> Batch {
        Batch {
            x: self.x.clone(),
            y: self.y.clone(),
            weight: self.weights.clone(),
            first: 0,
        }
    }

    /// The examples at these places.
    pub(crate) fn chosen(&self, places: &[usize]) -> Self {
        let of = |tensor: &HostTensor| {
            let dims = [&[places.len()], &tensor.dims()[1..]].concat();
            let numbers = tensor.to_f64();
            let width = tensor.dims()[1..].iter().product::<usize>();
            let rows = places
                .iter()
                .flat_map(|row| &numbers[row * width..][..width]);
            let rows: Vec<f64> = rows.copied().collect();
            HostTensor::from_f64(Shape::new(tensor.dtype(), dims), &rows)
        };
        Self {
            x: self.x.iter().map(of).collect(),
            y: self.y.iter().map(of).collect(),
            weights: self.weights.as_ref().map(of),
        }
    }
}
