//! Normalizations.

use phalanx_graph::{Shape, Tensor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::layer::Layer;
use super::precision::widened;
use super::sizes::{check_range, feature_dim, one_float};
use super::{Constraint, Cx, Initializer, Regularizer, fields};
use crate::config::{self, Component, Described, Field, Kind, joined};

/// `gamma (x - mean) / sqrt(variance + epsilon) + beta` per channel; kind `batch_norm` (Ioffe and Szegedy 2015).
///
/// In training the statistics are taken over the batch's examples on this replica, or on all of them when the layer is
/// [`synchronized`](BatchNorm::synchronized), and the moving ones become `momentum moving + (1 - momentum) batch`;
/// otherwise, and when the layer is frozen, they are the moving ones. As in Keras the variance is the population's, in
/// both; rows that only fill up a batch do not count. The moving statistics of replicas are averaged in each step, by
/// their examples, so that a model evaluates before it is saved as it does after; Keras saves the statistics of one replica.
/// Variables: `gamma`, `beta`, and the state `moving_mean` and `moving_variance`, each `[channels]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchNorm {
    axis: i64,
    momentum: f64,
    epsilon: f64,
    center: bool,
    scale: bool,
    beta_initializer: Initializer,
    gamma_initializer: Initializer,
    moving_mean_initializer: Initializer,
    moving_variance_initializer: Initializer,
    beta_regularizer: Option<Regularizer>,
    gamma_regularizer: Option<Regularizer>,
    beta_constraint: Option<Constraint>,
    gamma_constraint: Option<Constraint>,
    /// Files written before it was there have none.
    #[serde(default)]
    synchronized: bool,
}

/// Keras' defaults: the last dim, momentum 0.99, epsilon 0.001.
impl Default for BatchNorm {
    fn default() -> Self {
        Self {
            axis: -1,
            momentum: 0.99,
            epsilon: 1e-3,
            center: true,
            scale: true,
            beta_initializer: Initializer::Zeros,
            gamma_initializer: Initializer::Ones,
            moving_mean_initializer: Initializer::Zeros,
            moving_variance_initializer: Initializer::Ones,
            beta_regularizer: None,
            gamma_regularizer: None,
            beta_constraint: None,
            gamma_constraint: None,
            synchronized: false,
        }
    }
}

/// Builders of layers that scale and shift what they normalized.
macro_rules! affine_settings {
    () => {
        /// Sets what is added to the variance, 0.001 by default.
        #[must_use]
        pub const fn epsilon(mut self, epsilon: f64) -> Self {
            self.epsilon = epsilon;
            self
        }

        /// Sets whether `beta` is added.
        #[must_use]
        pub const fn center(mut self, center: bool) -> Self {
            self.center = center;
            self
        }

        /// Sets whether the result is multiplied by `gamma`.
        #[must_use]
        pub const fn scale(mut self, scale: bool) -> Self {
            self.scale = scale;
            self
        }

        /// Sets the first values of `gamma`, ones by default.
        #[must_use]
        pub const fn gamma_initializer(mut self, initializer: Initializer) -> Self {
            self.gamma_initializer = initializer;
            self
        }

        /// Sets the first values of `beta`, zeros by default.
        #[must_use]
        pub const fn beta_initializer(mut self, initializer: Initializer) -> Self {
            self.beta_initializer = initializer;
            self
        }

        /// Sets a penalty on `gamma`.
        #[must_use]
        pub const fn gamma_regularizer(mut self, regularizer: Regularizer) -> Self {
            self.gamma_regularizer = Some(regularizer);
            self
        }

        /// Sets a penalty on `beta`.
        #[must_use]
        pub const fn beta_regularizer(mut self, regularizer: Regularizer) -> Self {
            self.beta_regularizer = Some(regularizer);
            self
        }

        /// Sets what every update brings `gamma` back to.
        #[must_use]
        pub fn gamma_constraint(mut self, constraint: Constraint) -> Self {
            self.gamma_constraint = Some(constraint);
            self
        }

        /// Sets what every update brings `beta` back to.
        #[must_use]
        pub fn beta_constraint(mut self, constraint: Constraint) -> Self {
            self.beta_constraint = Some(constraint);
            self
        }

        /// `gamma` and `beta` of this shape, those that are wanted.
        #[track_caller]
        fn affine(&self, cx: &mut Cx, shape: &Shape) -> (Option<Tensor>, Option<Tensor>) {
            let mut ask =
                |name, initializer, limits| cx.limited(name, shape.clone(), initializer, limits);
            let limits = (self.gamma_regularizer, self.gamma_constraint.as_ref());
            let gamma = (self.scale).then(|| ask("gamma", &self.gamma_initializer, limits));
            let limits = (self.beta_regularizer, self.beta_constraint.as_ref());
            let beta = (self.center).then(|| ask("beta", &self.beta_initializer, limits));
            (gamma, beta)
        }
    };
}
pub(super) use affine_settings;

/// The settings that have these builders, of layers without statistics of the batch.
pub(super) const AFFINE: &[Field] = &[
    fields::EPSILON,
    fields::CENTER,
    fields::SCALE,
    fields::BETA_INITIALIZER,
    fields::GAMMA_INITIALIZER,
    fields::BETA_REGULARIZER,
    fields::GAMMA_REGULARIZER,
    fields::BETA_CONSTRAINT,
    fields::GAMMA_CONSTRAINT,
];

/// What was normalized, times `gamma` and with `beta` added, where these are wanted, which have these dims of it.
#[track_caller]
pub(super) fn scaled_and_shifted(
    normal: Tensor,
    dims: &[usize],
    (gamma, beta): (Option<Tensor>, Option<Tensor>),
) -> Tensor {
    let all = normal.dims();
    let spread = |tensor: Tensor| tensor.broadcast_in(&all, dims);
    let scaled = match gamma {
        Some(gamma) => normal * spread(gamma),
        None => normal,
    };
    match beta {
        Some(beta) => scaled + spread(beta),
        None => scaled,
    }
}

impl BatchNorm {
    /// A layer with Keras' defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the dim of the channels, the last by default.
    #[must_use]
    pub const fn axis(mut self, axis: i64) -> Self {
        self.axis = axis;
        self
    }

    /// Sets how much of the moving statistics stays in each step, 0.99 by default.
    #[must_use]
    pub const fn momentum(mut self, momentum: f64) -> Self {
        self.momentum = momentum;
        self
    }

    /// Sets whether the statistics are taken over the examples of all replicas, so that the results do not depend on the number
    /// of replicas; worth its communication when each replica has few examples, 16 say.
    ///
    /// Each replica's count, mean and sum of squared deviations are gathered in one exchange and merged (Chan et al.
    /// 1979), which keeps the digits that Keras' mean of squares minus squared mean loses.
    #[must_use]
    pub const fn synchronized(mut self, synchronized: bool) -> Self {
        self.synchronized = synchronized;
        self
    }

    affine_settings!();

    /// Sets the moving statistics' next values, which stay what they are when the batch had no example.
    #[track_caller]
    fn move_towards(
        &self,
        cx: &mut Cx,
        moving: &[Tensor; 2],
        batch: [&Tensor; 2],
        count: Option<&Tensor>,
    ) {
        for ((name, moving), batch) in ["moving_mean", "moving_variance"]
            .into_iter()
            .zip(moving)
            .zip(batch)
        {
            let next = moving * self.momentum + batch.stop_gradient() * (1.0 - self.momentum);
            let next = match count {
                Some(count) => count.greater(&count.like(0.0)).select(&next, moving),
                None => next,
            };
            cx.update(name, &next);
        }
    }

    #[track_caller]
    fn normalized(
        &self,
        x: &Tensor,
        channel: usize,
        [mean, variance]: [&Tensor; 2],
        gamma: Option<Tensor>,
        beta: Option<Tensor>,
    ) -> Tensor {
        let spread = |tensor: &Tensor| tensor.broadcast_in(&x.dims(), &[channel]);
        let inverse = (variance + self.epsilon).rsqrt();
        let factor = gamma.map_or_else(|| inverse.clone(), |gamma| &inverse * gamma);
        let scaled = (x - &spread(mean)) * spread(&factor);
        beta.map_or_else(|| scaled.clone(), |beta| &scaled + &spread(&beta))
    }
}

impl Described for BatchNorm {
    const COMPONENT: Component = Component {
        name: "batch_norm",
        doc: "normalization of each channel over the batch",
        fields: &[
            fields::AXIS,
            Field::optional(
                "momentum",
                Kind::SHARE,
                "share that the moving statistics keep in each step",
            ),
            fields::EPSILON,
            fields::CENTER,
            fields::SCALE,
            fields::BETA_INITIALIZER,
            fields::GAMMA_INITIALIZER,
            fields::initializer("moving_mean_initializer", "first moving mean"),
            fields::initializer("moving_variance_initializer", "first moving variance"),
            fields::BETA_REGULARIZER,
            fields::GAMMA_REGULARIZER,
            fields::BETA_CONSTRAINT,
            fields::GAMMA_CONSTRAINT,
            Field::optional(
                "synchronized",
                Kind::Bool,
                "whether the statistics are of all replicas together",
            ),
        ],
    };
}

impl Layer for BatchNorm {
    fn kind(&self) -> &'static str {
        "batch_norm"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    fn check_settings(&self) -> Result<(), String> {
        check_range("`momentum`", self.momentum, 0.0..=1.0)?;
        check_range("`epsilon`", self.epsilon, 0.0..f64::INFINITY)
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        feature_dim(self.axis, one_float(inputs)?.rank()).map(|_| ())
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let channel = match feature_dim(self.axis, inputs[0].rank()) {
            Ok(dim) => dim,
            Err(message) => return cx.fail(message),
        };
        let x = widened(&inputs[0]);
        let shape = Shape::new(x.dtype(), [x.dim(channel)]);
        let (gamma, beta) = self.affine(cx, &shape);
        let moving = [
            cx.state("moving_mean", shape.clone(), &self.moving_mean_initializer),
            cx.state(
                "moving_variance",
                shape.clone(),
                &self.moving_variance_initializer,
            ),
        ];
        let own = cx.training() && cx.trainable();
        let shared = self.synchronized && cx.graph().replicas() > 1;
        let counts = own.then(|| counted(cx, &inputs[0])).flatten();
        let fused = own && !shared && channel + 1 == x.rank() && counts.is_none();
        let normal = if fused {
            let or = |given: Option<Tensor>, value| {
                given.unwrap_or_else(|| cx.graph().full(&shape, value))
            };
            let (gamma, beta) = (or(gamma, 1.0), or(beta, 0.0));
            let [y, mean, variance] = inputs[0].batch_norm(&gamma, &beta, self.epsilon);
            self.move_towards(cx, &moving, [&mean, &variance], None);
            y
        } else if own {
            let local = Moments::of(&x, channel, counts.as_ref());
            let batch = if shared {
                local.merged(&x, channel)
            } else {
                local
            };
            let statistics = [&batch.mean, &batch.variance];
            self.move_towards(cx, &moving, statistics, batch.count.as_ref());
            self.normalized(&x, channel, statistics, gamma, beta)
        } else {
            let [mean, variance] = &moving;
            self.normalized(&x, channel, [mean, variance], gamma, beta)
        };
        normal.convert(inputs[0].dtype())
    }

    fn mixes_examples(&self) -> bool {
        true
    }

    fn keeps_mask(&self) -> bool {
        true
    }
}

/// Which elements of a tensor count, a bool for each: true for examples, and for steps that are not padding; `None` when all
/// do.
#[track_caller]
fn counted(cx: &Cx, x: &Tensor) -> Option<Tensor> {
    let rows = cx.row_mask(x);
    let steps = cx.padding_mask(x);
    let rows = rows.map(|rows| rows.broadcast_in(&x.dims(), &[0]));
    let steps = steps.map(|steps| steps.broadcast_in(&x.dims(), &[0, 1]));
    match (rows, steps) {
        (Some(rows), Some(steps)) => Some(rows.and(&steps)),
        (rows, steps) => rows.or(steps),
    }
}

/// Mean and population variance of each channel over the examples of a batch.
struct Moments {
    mean: Tensor,
    variance: Tensor,
    /// How many elements of each channel counted, where some do not.
    count: Option<Tensor>,
}

impl Moments {
    /// The moments of the elements that count.
    #[track_caller]
    fn of(x: &Tensor, channel: usize, counts: Option<&Tensor>) -> Self {
        let others: Vec<usize> = (0..x.rank()).filter(|&dim| dim != channel).collect();
        let spread = |tensor: &Tensor| tensor.broadcast_in(&x.dims(), &[channel]);
        let count = counts.map(|counts| counts.convert(x.dtype()).sum(&others));
        let average = |tensor: &Tensor| match (counts, &count) {
            (Some(counts), Some(count)) => {
                let kept = counts.select(tensor, &tensor.zeros_like());
                kept.sum(&others) / count.maximum(&count.like(1.0))
            }
            _ => tensor.mean(&others),
        };
        let mean = average(x);
        let variance = average(&(x - &spread(&mean)).square());
        Self {
            mean,
            variance,
            count,
        }
    }

    /// The moments of the examples of all replicas, from the moments of this one.
    #[track_caller]
    fn merged(&self, x: &Tensor, channel: usize) -> Self {
        let channels = x.dim(channel);
        let own = (x.shape().len() / channels) as f64;
        let own = self.count.clone().unwrap_or_else(|| self.mean.like(own));
        let own = own.broadcast_to(&[channels]);
        let parts = Tensor::concat(&[&own, &self.mean, &self.variance], 0);
        let all = parts.reshape(&[1, 3 * channels]).all_gather(0);
        let replicas = all.dim(0);
        let part = |index: usize| all.slice_dim(1, index * channels, (index + 1) * channels);
        let (counts, means, variances) = (part(0), part(1), part(2));
        let count = counts.sum(&[0]);
        let each = |tensor: &Tensor| tensor.broadcast_in(&[replicas, channels], &[1]);
        let weights = counts / each(&count.maximum(&count.like(1.0)));
        let mean = (&weights * &means).sum(&[0]);
        let apart = (means - each(&mean)).square();
        let variance = (weights * (variances + apart)).sum(&[0]);
        Self {
            mean,
            variance,
            count: self.count.as_ref().map(|_| count),
        }
    }
}

/// `gamma (x - mean) / sqrt(variance + epsilon) + beta` with the statistics of each example; kind `layer_norm`
/// (Ba et al. 2016).
///
/// Variables: `gamma` and `beta` of the normalized dims. Epsilon is Keras' 0.001, not PyTorch's 0.00001.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerNorm {
    axis: Axes,
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

/// Dims, written as one number when there is one.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Axes(pub(super) Vec<i64>);

/// `axis` of a layer that normalizes over several dims.
pub(super) const AXES: Field = Field::optional(
    "axis",
    Kind::Worded(
        "a dimension or a list of them: -1 or [1, 2]",
        &Kind::Either(&[Kind::INTEGER, Kind::List(&Kind::INTEGER, 0, usize::MAX)]),
    ),
    "the dimensions that are normalized, counted from the end when negative",
);

impl Axes {
    /// The dims of an input of this rank, ascending.
    pub(super) fn dims(&self, rank: usize) -> Result<Vec<usize>, String> {
        let axes = &self.0;
        let dims = axes.iter().map(|&axis| feature_dim(axis, rank));
        let mut dims = dims.collect::<Result<Vec<_>, _>>()?;
        dims.sort_unstable();
        dims.dedup();
        if dims.len() < axes.len() || dims.is_empty() {
            return Err(format!(
                "`axis` must name one dim or more, each once, got {axes:?}"
            ));
        }
        Ok(dims)
    }
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a dim or a list of dims: -1 or [1, 2]")]
enum AxesForm {
    One(i64),
    Many(Vec<i64>),
}

impl Serialize for Axes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [one] => one.serialize(serializer),
            many => many.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Axes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(match AxesForm::deserialize(deserializer)? {
            AxesForm::One(axis) => vec![axis],
            AxesForm::Many(axes) => axes,
        }))
    }
}

/// Keras' defaults: the last dim, epsilon 0.001.
impl Default for LayerNorm {
    fn default() -> Self {
        Self {
            axis: Axes(vec![-1]),
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

impl LayerNorm {
    /// A layer with Keras' defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the dims that are normalized together, the last by default.
    #[must_use]
    pub fn axes(mut self, axes: impl Into<Vec<i64>>) -> Self {
        self.axis = Axes(axes.into());
        self
    }

    affine_settings!();
}

impl Described for LayerNorm {
    const COMPONENT: Component = Component {
        name: "layer_norm",
        doc: "normalization of each example over its features",
        fields: joined!(&[AXES], AFFINE),
    };
}

impl Layer for LayerNorm {
    fn kind(&self) -> &'static str {
        "layer_norm"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    fn check_settings(&self) -> Result<(), String> {
        check_range("`epsilon`", self.epsilon, 0.0..f64::INFINITY)
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
        let sizes: Vec<usize> = dims.iter().map(|&dim| x.dim(dim)).collect();
        let affine = self.affine(cx, &Shape::new(x.dtype(), sizes));
        let centred = &x - &x.mean(&dims).keep_dims(&dims);
        let variance = centred.square().mean(&dims).keep_dims(&dims);
        let normal = centred * (variance + self.epsilon).rsqrt();
        scaled_and_shifted(normal, &dims, affine).convert(inputs[0].dtype())
    }

    fn keeps_mask(&self) -> bool {
        true
    }
}
