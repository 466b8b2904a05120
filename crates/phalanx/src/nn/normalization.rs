//! Normalization by statistics that are known before training.

use phalanx_graph::{DType, HostTensor, Shape, Tensor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::layer::Layer;
use super::norm::Axes;
use super::precision::widened;
use super::preprocess::as_float;
use super::sizes::{check_range, one_input};
use super::{Cx, Initializer};
use crate::Error;
use crate::config::{self, Component, Described, Field, Kind};

/// `(x - mean) / max(sqrt(variance), 1e-7)` with a mean and a variance of the data for each element of some dims, as f32 when the
/// input is of integers; kind `normalization`.
///
/// Mean and variance are settings, or else variables that training leaves as they are: `mean` and `variance` of the kept dims, first 0
/// and 1, and `count`, an i64 that only Keras' files have, of which EfficientNet's hold all three. Fields and defaults are Keras';
/// [`adapt`](Self::adapt) makes another layer of the data, and [`statistics`](Self::statistics) takes what is known of them. Unlike
/// Keras, variances below 0 are refused, and the batch is no axis.
///
/// ```
/// use phalanx::nn::{Normalization, Sequential};
/// use phalanx_graph::HostTensor;
///
/// let rows = HostTensor::new([3, 2], &[1.0f32, 30.0, 2.0, 20.0, 3.0, 10.0]);
/// let adapted = Normalization::new().adapt(&rows)?;
/// let (mean, variance) = (HostTensor::new([2], &[2.0f64, 20.0]), HostTensor::new([2], &[2.0 / 3.0, 200.0 / 3.0]));
/// assert_eq!(adapted, Normalization::new().statistics(&mean, &variance));
/// let model = Sequential::new([2]).add(adapted).build()?;
/// assert!(model.variables().is_empty());
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Normalization {
    axis: Axes,
    mean: Option<Numbers>,
    variance: Option<Numbers>,
    invert: bool,
}

/// Keras' least deviation.
const LEAST_DEVIATION: f64 = 1e-7;

/// Keras' defaults: statistics of each element of the last dim, which are variables.
impl Default for Normalization {
    fn default() -> Self {
        Self {
            axis: Axes(vec![-1]),
            mean: None,
            variance: None,
            invert: false,
        }
    }
}

impl Normalization {
    /// A layer with Keras' defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the dims whose elements have statistics of their own, the last by default; none is Keras' `axis=None`: one mean for all.
    #[must_use]
    pub fn axes(mut self, axes: impl Into<Vec<i64>>) -> Self {
        self.axis = Axes(axes.into());
        self
    }

    /// Sets mean and variance, of floats: numbers, or arrays of as many dims as there are axes, or of fewer, the last ones; a dim may be
    /// 1.
    #[must_use]
    pub fn statistics(mut self, mean: &HostTensor, variance: &HostTensor) -> Self {
        let [mean, variance] = [mean, variance].map(|array| Numbers {
            dims: array.dims().to_vec(),
            values: array.to_f64(),
        });
        (self.mean, self.variance) = (Some(mean), Some(variance));
        self
    }

    /// Sets mean and variance to the mean and variance of data `[rows, ..]`, the training examples alone, over all dims but the axes:
    /// Keras' `adapt`.
    ///
    /// # Errors
    /// When an axis is none of the data's, or there is no number, or one that is not finite.
    pub fn adapt(self, data: &HostTensor) -> crate::Result<Self> {
        let kept = self.kept(data.dims().len());
        let kept = kept.map_err(|message| Error::user(format!("cannot adapt: {message}")))?;
        let values = data.to_f64();
        if values.is_empty() || values.iter().any(|value| !value.is_finite()) {
            return Err(Error::user(format!(
                "cannot adapt to the data {}: expected finite numbers, one at least; leave out or fill what is missing",
                data.shape()
            )));
        }
        let sizes: Vec<usize> = kept.iter().map(|&dim| data.dims()[dim]).collect();
        let cells = cells(data.dims(), &kept);
        let mean = means(&values, &cells, sizes.iter().product());
        let squares = values.iter().zip(&cells);
        let squares: Vec<f64> = squares
            .map(|(value, &cell)| (value - mean[cell]).powi(2))
            .collect();
        let variance = means(&squares, &cells, mean.len());
        let [mean, variance] =
            [mean, variance].map(|values| HostTensor::new(sizes.clone(), &values));
        Ok(self.statistics(&mean, &variance))
    }

    /// Sets whether the layer undoes what it would do otherwise: `x max(sqrt(variance), 1e-7) + mean`.
    #[must_use]
    pub const fn invert(mut self, invert: bool) -> Self {
        self.invert = invert;
        self
    }

    /// The dims with statistics of their own, ascending, of an input of this rank.
    fn kept(&self, rank: usize) -> Result<Vec<usize>, String> {
        match self.axis.0.is_empty() {
            true => Ok(Vec::new()),
            false => self.axis.dims(rank),
        }
    }

    /// Mean and variance of the kept dims, which have these sizes.
    #[track_caller]
    fn mean_and_variance(&self, cx: &mut Cx, sizes: &Shape) -> [Tensor; 2] {
        if let (Some(mean), Some(variance)) = (&self.mean, &self.variance) {
            return [mean, variance].map(|numbers| numbers.stretched(cx, sizes));
        }
        let mean = cx.state("mean", sizes.clone(), &Initializer::Zeros);
        let variance = cx.state("variance", sizes.clone(), &Initializer::Ones);
        let _ = cx.state("count", Shape::new(DType::I64, []), &Initializer::Zeros);
        [mean, variance]
    }
}

/// For each element of an array of these dims the number of its place in the kept ones.
fn cells(dims: &[usize], kept: &[usize]) -> Vec<usize> {
    let inner = |dim: usize| dims[dim + 1..].iter().product::<usize>();
    let kept: Vec<[usize; 2]> = kept.iter().map(|&dim| [dims[dim], inner(dim)]).collect();
    let cell = |at: usize| {
        let places = kept.iter();
        places.fold(0, |cell, [size, inner]| cell * size + at / inner % size)
    };
    (0..dims.iter().product()).map(cell).collect()
}

/// The mean of the values of each cell.
fn means(values: &[f64], cells: &[usize], count: usize) -> Vec<f64> {
    let mut sums = vec![0.0; count];
    for (value, &cell) in values.iter().zip(cells) {
        sums[cell] += value;
    }
    let each = values.len() / count;
    sums.iter().map(|sum| sum / each as f64).collect()
}

/// A number, or an array of them: in JSON and YAML lists in lists.
#[derive(Clone, Debug, PartialEq)]
struct Numbers {
    dims: Vec<usize>,
    values: Vec<f64>,
}

#[derive(Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a number, or lists of numbers in lists of one length"
)]
enum Nested {
    Number(f64),
    List(Vec<Self>),
}

impl Numbers {
    fn of(nested: &Nested) -> Option<Self> {
        let list = match nested {
            Nested::Number(number) => {
                return Some(Self {
                    dims: Vec::new(),
                    values: vec![*number],
                });
            }
            Nested::List(list) => list,
        };
        let parts: Vec<Self> = list.iter().map(Self::of).collect::<Option<_>>()?;
        let first = &parts.first()?.dims;
        let is_even = parts.iter().all(|part| part.dims == *first);
        is_even.then(|| Self {
            dims: [&[parts.len()], &first[..]].concat(),
            values: parts.iter().flat_map(|part| part.values.clone()).collect(),
        })
    }

    fn nested(dims: &[usize], values: &[f64]) -> Nested {
        let Some((&size, inner)) = dims.split_first() else {
            return Nested::Number(values.first().copied().unwrap_or_default());
        };
        let parts = values.chunks((values.len() / size.max(1)).max(1));
        Nested::List(parts.map(|part| Self::nested(inner, part)).collect())
    }

    /// Checks that all numbers of a setting called `what` are at least this.
    fn check(&self, what: &str, least: f64) -> Result<(), String> {
        let mut values = self.values.iter();
        values.try_for_each(|&value| check_range(what, value, least..=f64::MAX))
    }

    /// Checks that the numbers are, or stretch to, one for each element of dims of these sizes.
    fn check_stretches(&self, sizes: &[usize]) -> Result<(), String> {
        let dims = &self.dims;
        let mut last = dims.iter().rev().zip(sizes.iter().rev());
        if last.all(|(&dim, &size)| dim == size || dim == 1) {
            return Ok(());
        }
        Err(format!(
            "`mean` and `variance` have dims {dims:?}, but the dims of `axis` have sizes {sizes:?}"
        ))
    }

    /// One number for each element of dims of these sizes.
    #[track_caller]
    fn stretched(&self, cx: &Cx, sizes: &Shape) -> Tensor {
        let array = HostTensor::new(self.dims.clone(), &self.values);
        let array = cx.graph().constant(array.convert(sizes.dtype));
        let first = sizes.rank() - self.dims.len();
        // What a dim of 1 stands for is the same everywhere.
        let dims = self.dims.iter().enumerate().filter(|(_, dim)| **dim > 1);
        let (map, narrow): (Vec<usize>, Vec<usize>) =
            dims.map(|(at, &dim)| (first + at, dim)).unzip();
        array.reshape(&narrow).broadcast_in(&sizes.dims, &map)
    }
}

impl Serialize for Numbers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::nested(&self.dims, &self.values).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Numbers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let nested = Nested::deserialize(deserializer)?;
        let wrong = "expected lists in a list to have one length, above 0";
        Self::of(&nested).ok_or_else(|| serde::de::Error::custom(wrong))
    }
}

/// [`Numbers`] of at most four dims, as volumes with channels have.
const NUMBERS: Kind = Kind::Worded(
    "a number, or a list of numbers or of such lists",
    &Kind::Either(&[
        Kind::REAL,
        LIST,
        Kind::List(&LIST, 1, usize::MAX),
        Kind::List(&Kind::List(&LIST, 1, usize::MAX), 1, usize::MAX),
        Kind::List(
            &Kind::List(&Kind::List(&LIST, 1, usize::MAX), 1, usize::MAX),
            1,
            usize::MAX,
        ),
    ]),
);
const LIST: Kind = Kind::List(&Kind::REAL, 1, usize::MAX);

impl Described for Normalization {
    const COMPONENT: Component = Component {
        name: "normalization",
        doc: "subtracts the mean of the data and divides by their deviation",
        fields: &[
            Field::optional(
                "axis",
                Kind::Worded(
                    "a dimension or a list of them: -1 or [1, 2]",
                    &Kind::Either(&[Kind::INTEGER, Kind::List(&Kind::INTEGER, 0, usize::MAX)]),
                ),
                "the dimensions whose elements have statistics of their own, counted from the end when negative; `[]`: one mean for all",
            ),
            Field::optional("mean", NUMBERS, "mean of the data; a variable, without it"),
            Field::optional("variance", NUMBERS, "variance of the data"),
            Field::optional(
                "invert",
                Kind::Bool,
                "whether the layer multiplies by the deviation and adds the mean",
            ),
        ],
    };
}

impl Layer for Normalization {
    fn kind(&self) -> &'static str {
        "normalization"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    fn check_settings(&self) -> Result<(), String> {
        let (mean, variance) = match (&self.mean, &self.variance) {
            (None, None) => return Ok(()),
            (Some(mean), Some(variance)) => (mean, variance),
            _ => return Err("`mean` and `variance` must be given together, or neither".into()),
        };
        if mean.dims != variance.dims {
            return Err(format!(
                "`mean` and `variance` must have the same dims, got {:?} and {:?}",
                mean.dims, variance.dims
            ));
        }
        if mean.dims.len() > self.axis.0.len() {
            return Err(format!(
                "`mean` must have at most a dim for each `axis`, got dims {:?} for {:?}",
                mean.dims, self.axis.0
            ));
        }
        mean.check("`mean`", f64::MIN)?;
        variance.check("`variance`", 0.0)
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        let input = one_input(inputs)?;
        let sizes = self.kept(input.rank())?.into_iter();
        let sizes: Vec<usize> = sizes.map(|dim| input.dims[dim]).collect();
        self.mean
            .iter()
            .try_for_each(|mean| mean.check_stretches(&sizes))
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let dims = match self.kept(inputs[0].rank()) {
            Ok(dims) => dims,
            Err(message) => return cx.fail(message),
        };
        let given = as_float(&inputs[0]);
        let x = widened(&given);
        let sizes: Vec<usize> = dims.iter().map(|&dim| x.dim(dim)).collect();
        let [mean, variance] = self.mean_and_variance(cx, &Shape::new(x.dtype(), sizes));
        let deviation = variance.sqrt();
        let deviation = deviation.maximum(&deviation.like(LEAST_DEVIATION));
        let [mean, deviation] = [mean, deviation].map(|y| y.broadcast_in(&x.dims(), &dims));
        let y = match self.invert {
            true => mean + x * deviation,
            false => (x - mean) / deviation,
        };
        y.convert(given.dtype())
    }

    fn keeps_mask(&self) -> bool {
        true
    }
}
