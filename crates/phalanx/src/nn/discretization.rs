//! Numbers as the bins that they fall into.

use phalanx_graph::{DType, HostTensor, Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Cx;
use super::category_encoding::{CategoryOutput, OUTPUT_MODE};
use super::layer::Layer;
use super::sizes::{check_range, one_input};
use super::sorted_table::count_before;
use crate::config::{self, Component, Described, Field, Kind};
use crate::{Error, Result};

/// The bin of each number, how many boundaries are not above it; kind `discretization`.
///
/// With n boundaries there are n + 1 bins, 0 to n: below the first boundary, from each one up to the next, from the last one on. NaN is in the
/// last. Numbers and boundaries are compared as f32. The output is i32 of the input's dims, or vectors as [`CategoryOutput`] says. Keras'
/// `Discretization`; instead of its `adapt`, give [`quantiles`](Self::quantiles) of the data.
///
/// ```
/// use phalanx::nn::{Discretization, Embedding, Sequential};
///
/// let ages = Discretization::new([18.0, 30.0, 50.0]);
/// let model = Sequential::new([]).add(ages).add(Embedding::new(4, 8)).build()?;
/// assert_eq!(model.variables()[0].shape.dims, [4, 8]);
/// assert_eq!(Discretization::quantiles([1.0, 2.0, 3.0, 4.0], 2)?, Discretization::new([2.0]));
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Discretization {
    bin_boundaries: Vec<f64>,
    output_mode: CategoryOutput,
}

impl Discretization {
    /// Bins between boundaries in ascending order.
    #[must_use]
    pub fn new(bin_boundaries: impl Into<Vec<f64>>) -> Self {
        Self {
            bin_boundaries: bin_boundaries.into(),
            output_mode: CategoryOutput::Int,
        }
    }

    /// `num_bins` bins with as many of these values in each as can be.
    ///
    /// The boundaries are the quantiles `k / num_bins` of all values, interpolated between them, where the value i of n in ascending order, from 1,
    /// is the quantile `i / n`. Keras' `num_bins` and `adapt` with an `epsilon` below `1 / n`: with a larger one, such as its default of 0.01, it
    /// takes these of a summary.
    ///
    /// # Errors
    /// Fewer than 2 bins, fewer values than bins, or a value that is not finite.
    pub fn quantiles(values: impl IntoIterator<Item = f32>, num_bins: usize) -> Result<Self> {
        let mut values: Vec<f32> = values.into_iter().collect();
        if num_bins < 2 || values.len() < num_bins {
            return Err(Error::User(format!(
                "{num_bins} bins of {} values: choose 2 bins or more, and give at least as many values",
                values.len()
            )));
        }
        if let Some(value) = values.iter().find(|value| !value.is_finite()) {
            return Err(Error::User(format!(
                "found the value {value} among those to find bins of, expected finite numbers; leave it out"
            )));
        }
        values.sort_unstable_by(f32::total_cmp);
        let quantiles = Quantiles::of(&values);
        let share = 1.0 / num_bins as f64;
        let boundaries = (0..num_bins - 1).map(|bin| quantiles.at(share + bin as f64 * share));
        Ok(Self::new(boundaries.collect::<Vec<f64>>()))
    }

    /// Sets what becomes of the bins: their numbers by default.
    #[must_use]
    pub const fn output_mode(mut self, mode: CategoryOutput) -> Self {
        self.output_mode = mode;
        self
    }
}

/// Ascending values, and the share of them that are not above each, rounded as Keras has it.
struct Quantiles<'a> {
    values: &'a [f32],
    shares: Vec<f64>,
}

impl<'a> Quantiles<'a> {
    fn of(values: &'a [f32]) -> Self {
        let all = values.len() as f32;
        let shares = (1..=values.len()).map(|place| f64::from(place as f32 / all));
        let shares = shares.collect();
        Self { values, shares }
    }

    /// The quantile of a share, an f32.
    fn at(&self, share: f64) -> f64 {
        let above = self.shares.partition_point(|&other| other <= share);
        let value = |place: usize| f64::from(self.values[place]);
        let quantile = match above.checked_sub(1) {
            None => value(0),
            Some(below) if above == self.values.len() => value(below),
            Some(below) => {
                let from = self.shares[below];
                let slope = (value(above) - value(below)) / (self.shares[above] - from);
                value(below) + slope * (share - from)
            }
        };
        f64::from(quantile as f32)
    }
}

impl Described for Discretization {
    const COMPONENT: Component = Component {
        name: "discretization",
        doc: "the number of the bin that each number falls into",
        fields: &[
            Field::required(
                "bin_boundaries",
                Kind::List(&Kind::REAL, 1, usize::MAX),
                "where one bin ends and the next begins, in ascending order",
            )
            .example("[18, 30, 50]"),
            OUTPUT_MODE.doc(
                "`int`: numbers of bins; `one_hot`: a vector for each number; `multi_hot`: one for all numbers of an example; `count`: how often each bin is there",
            ),
        ],
    };
}

impl Layer for Discretization {
    fn kind(&self) -> &'static str {
        "discretization"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    fn check_settings(&self) -> std::result::Result<(), String> {
        let boundaries = &self.bin_boundaries;
        if boundaries.is_empty() {
            return Err("`bin_boundaries` must have a number, got none".into());
        }
        let most = f64::from(f32::MAX);
        let mut each = boundaries.iter();
        each.try_for_each(|&value| check_range("`bin_boundaries`", value, -most..=most))?;
        match boundaries.windows(2).find(|pair| pair[0] > pair[1]) {
            None => Ok(()),
            Some(pair) => Err(format!(
                "`bin_boundaries` must be in ascending order, got {} before {}",
                pair[0], pair[1]
            )),
        }
    }

    fn check(&self, inputs: &[Shape]) -> std::result::Result<(), String> {
        self.output_mode.check(one_input(inputs)?)
    }

    /// A number is not rounded across a boundary.
    fn converts_inputs(&self) -> bool {
        false
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let x = inputs[0].convert(DType::F32);
        let boundaries: Vec<f32> = self.bin_boundaries.iter().map(|&at| at as f32).collect();
        let boundaries = HostTensor::new([boundaries.len()], &boundaries);
        // NaN is below nothing.
        let bin = count_before(&boundaries, &x, |boundary, x| x.less(boundary).not());
        let bins = boundaries.rows() + 1;
        self.output_mode.of(&bin, bins, cx.compute_dtype())
    }
}
