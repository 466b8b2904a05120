//! Normalizations of each example by itself: in groups of channels, and to length 1.

use phalanx_graph::{Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::layer::Layer;
use super::norm::{AFFINE, AXES, Axes, affine_settings};
use super::precision::widened;
use super::sizes::{check_range, feature_dim, one_float};
use super::{Constraint, Cx, Initializer, Regularizer, fields};
use crate::config::{self, Component, Described, Field, Kind, joined};

/// Groups that stand for one to each channel.
const INSTANCE: i64 = -1;

/// `gamma (x - mean) / sqrt(variance + epsilon) + beta` with the statistics of each example's groups of channels; kind
/// `group_norm` (Wu and He 2018).
///
/// `[batch, .., channels]` to the same: mean and population variance are taken over all dims of an example but the groups, so that neither
/// the batch nor how it is divided matters. They and the result are computed in f32 under a mixed policy. Variables: `gamma` and
/// `beta`, `[channels]`. Fields and defaults are Keras', 32 groups and epsilon 0.001; PyTorch's epsilon is
/// 0.00001. Steps that are padding count as any other, and the output has the mask of the input, as in Keras.
///
/// ```
/// use phalanx::nn::{Conv2d, GroupNorm, Sequential};
///
/// let model = Sequential::new([8, 8, 3])
///     .add(Conv2d::new(16, 3))
///     .add(GroupNorm::new().groups(4))
///     .build()?;
/// assert_eq!(model.outputs()[0].dims, [6, 6, 16]);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupNorm {
    groups: i64,
    axis: i64,
    epsilon: f64,
    center: bool,
    scale: bool,
    beta_initializer: Initializer,
    gamma_initializer: Initializer,
    beta_regularizer: Option<Regularizer>,
    gamma_regularizer: Option<Regularizer>,
    beta_constraint: Option<Constraint>,
    gamma_constraint: Option<Constraint>,
}

/// Keras' defaults: 32 groups of the last dim, epsilon 0.001.
impl Default for GroupNorm {
    fn default() -> Self {
        Self {
            groups: 32,
            axis: -1,
            epsilon: 1e-3,
            center: true,
            scale: true,
            beta_initializer: Initializer::Zeros,
            gamma_initializer: Initializer::Ones,
            beta_regularizer: None,
            gamma_regularizer: None,
            beta_constraint: None,
            gamma_constraint: None,
        }
    }
}

impl GroupNorm {
    /// A layer with Keras' defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A layer with a group for each channel: instance normalization (Ulyanov et al. 2016).
    #[must_use]
    pub fn instance() -> Self {
        Self::default().groups(INSTANCE)
    }

    /// Sets into how many groups the channels are divided, 32 by default; -1 for as many as there are channels.
    ///
    /// They must divide the channels: building a model says so where they do not.
    #[must_use]
    pub const fn groups(mut self, groups: i64) -> Self {
        self.groups = groups;
        self
    }

    /// Sets the dim of the channels, the last by default.
    #[must_use]
    pub const fn axis(mut self, axis: i64) -> Self {
        self.axis = axis;
        self
    }

    affine_settings!();

    /// Dim and number of the channels of inputs of these dims, and how many groups they make.
    fn channels(&self, dims: &[usize]) -> Result<(usize, usize, usize), String> {
        let dim = feature_dim(self.axis, dims.len())?;
        let channels = dims[dim];
        let groups = match usize::try_from(self.groups) {
            Ok(groups) => groups,
            Err(_) => channels,
        };
        if groups == 0 || groups > channels || !channels.is_multiple_of(groups) {
            return Err(format!(
                "`groups` must divide the channels of the input, got {groups} and {channels}; choose a divisor, or -1 for a group to each channel"
            ));
        }
        Ok((dim, channels, groups))
    }
}

/// The mean of its group for each channel of each example, `[batch, channels]` to the same. That is symmetric, and so its own gradient.
///
/// Either is computed once: loops over all places would look for each element's group.
fn group_means(x: &Tensor, groups: usize) -> Tensor {
    let dims = x.dims();
    let divided = [dims[0], groups, dims[1] / groups];
    let means = x.reshape(&divided).mean(&[2]);
    let means = means.broadcast_in(&divided, &[0, 1]).reshape(&dims);
    let gradient = move |cotangent: &Tensor, _: &[Tensor]| vec![group_means(cotangent, groups)];
    means.computed_once().with_gradient(&[x], gradient)
}

impl Described for GroupNorm {
    const COMPONENT: Component = Component {
        name: "group_norm",
        doc: "normalization of each example over groups of its channels",
        fields: joined!(
            &[
                Field::optional(
                    "groups",
                    Kind::Worded(
                        "a whole number above 0, or -1",
                        &Kind::Either(&[Kind::SIZE, Kind::Whole(INSTANCE, INSTANCE)]),
                    ),
                    "number of groups, which divides the channels; -1 for a group to each channel",
                ),
                fields::AXIS,
            ],
            AFFINE,
        ),
    };
}

impl Layer for GroupNorm {
    fn kind(&self) -> &'static str {
        "group_norm"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    fn check_settings(&self) -> Result<(), String> {
        if self.groups < 1 && self.groups != INSTANCE {
            let got = self.groups;
            return Err(format!(
                "`groups` must be a whole number above 0, or -1, got {got}"
            ));
        }
        check_range("`epsilon`", self.epsilon, 0.0..f64::INFINITY)
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        self.channels(&one_float(inputs)?.dims).map(|_| ())
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let x = widened(&inputs[0]);
        let dims = x.dims();
        let (channel, channels, groups) = match self.channels(&dims) {
            Ok(found) => found,
            Err(message) => return cx.fail(message),
        };
        let (gamma, beta) = self.affine(cx, &Shape::new(x.dtype(), [channels]));
        let others = (1..dims.len()).filter(|&dim| dim != channel);
        let others: Vec<usize> = others.collect();
        let each = [dims[0], channels];
        let mean = |x: &Tensor| group_means(&x.mean(&others), groups);
        let spread = |x: &Tensor| x.broadcast_in(&dims, &[0, channel]);
        let of_channels = |x: Tensor| x.broadcast_in(&each, &[1]);
        let average = mean(&x);
        // The mean as a constant. What is left of it is 0 and has its derivatives, which are sums of each channel.
        let shift = average.stop_gradient();
        let left = &average - &shift;
        let apart = &x - spread(&shift);
        let variance = mean(&apart.square()) - left.square();
        let inverse = (variance + self.epsilon).rsqrt();
        let scale = match gamma {
            Some(gamma) => inverse * of_channels(gamma),
            None => inverse,
        };
        let offset = match beta {
            Some(beta) => of_channels(beta) - left * &scale,
            None => -(left * &scale),
        };
        let [scale, offset] = [scale, offset].map(|x| spread(&x.computed_once()));
        (apart * scale + offset).convert(inputs[0].dtype())
    }

    fn keeps_mask(&self) -> bool {
        true
    }
}

/// The square of the smallest length that is divided by, Keras' 1e-12.
const LEAST_SQUARE: f64 = 1e-24;

/// Each example divided by its length, the root of the sum of squares over some dims; kind `unit_norm`.
///
/// `[batch, ..]` to the same. Under a mixed policy lengths are computed in f32: an f16 overflows at the square of 256. What is no longer
/// than 1e-12 becomes 0 and has the gradient 0, where Keras multiplies both by 1e12. The output has the
/// mask of the input.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnitNorm {
    axis: Axes,
}

/// Keras' default: the last dim.
impl Default for UnitNorm {
    fn default() -> Self {
        Self {
            axis: Axes(vec![-1]),
        }
    }
}

impl UnitNorm {
    /// A layer with Keras' default.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the dims over which the length is taken, the last by default.
    #[must_use]
    pub fn axes(mut self, axes: impl Into<Vec<i64>>) -> Self {
        self.axis = Axes(axes.into());
        self
    }
}

impl Described for UnitNorm {
    const COMPONENT: Component = Component {
        name: "unit_norm",
        doc: "each example divided by its length",
        fields: &[AXES],
    };
}

impl Layer for UnitNorm {
    fn kind(&self) -> &'static str {
        "unit_norm"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        self.axis.dims(one_float(inputs)?.rank()).map(|_| ())
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let dims = match self.axis.dims(inputs[0].rank()) {
            Ok(dims) => dims,
            Err(message) => return cx.fail(message),
        };
        let x = widened(&inputs[0]);
        let square = x.square().sum(&dims).keep_dims(&dims);
        let least = square.like(LEAST_SQUARE);
        let inverse = square.maximum(&least).rsqrt();
        let inverse = square
            .greater(&least)
            .select(&inverse, &square.zeros_like());
        (x * inverse).convert(inputs[0].dtype())
    }

    fn keeps_mask(&self) -> bool {
        true
    }
}
