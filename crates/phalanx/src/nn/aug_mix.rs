//! Chains of changes of an image, mixed with it, in training.

use std::ops::Bound::Included;

use phalanx_graph::Tensor;
use serde::{Deserialize, Serialize};

use super::factor::{Factor, drawn};
use super::picture_layer::{
    RGB, VALUE_RANGE, check_values, picture_layer, to_each, value_range_setter,
};
use super::rand_augment::{WAYS, Ways, one_of};
use super::sizes::check_range;
use super::{Cx, Interpolation};
use crate::config::{Component, Described, Field, Kind};

/// Mixes each image with what several chains of changes make of it, in training alone; kind `aug_mix` (Hendrycks et al. 2020).
///
/// A change of a chain is one of the eleven ways of [`RandAugment`](super::RandAugment), of seven where `all_ops` is off, or none. The chains are mixed in
/// proportions of a Dirichlet distribution, and the image with them in one of a beta distribution, both of `alpha`; values are clipped to the range. Images
/// `[batch, height, width, 3]` of any element type become floats of the same dims, computed in f32. Each image has ways and proportions of its own, where
/// Keras draws them once for a batch, and the ways by Python's numbers, once where it traces a step. All ways are computed for each change of a chain. What is
/// drawn depends on the step's key, the layer and the number of the example, not on how a batch is divided over replicas.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AugMix {
    value_range: [f64; 2],
    num_chains: usize,
    chain_depth: usize,
    factor: Factor,
    alpha: f64,
    all_ops: bool,
    interpolation: Interpolation,
}

impl AugMix {
    /// Changes by up to this, or between two, 0.3 in Keras' default: three chains of up to three changes.
    #[must_use]
    pub fn new(factor: impl Into<Factor>) -> Self {
        Self {
            value_range: [0.0, 255.0],
            num_chains: 3,
            chain_depth: 3,
            factor: factor.into(),
            alpha: 1.0,
            all_ops: true,
            interpolation: Interpolation::Bilinear,
        }
    }

    /// Sets how many chains are mixed, 3 by default.
    #[must_use]
    pub const fn num_chains(mut self, num_chains: usize) -> Self {
        self.num_chains = num_chains;
        self
    }

    /// Sets how many changes a chain has at most, 3 by default.
    #[must_use]
    pub const fn chain_depth(mut self, chain_depth: usize) -> Self {
        self.chain_depth = chain_depth;
        self
    }

    /// Sets how even the proportions are, 1 by default: all are as likely; above, even ones are likelier, and below, uneven ones.
    #[must_use]
    pub const fn alpha(mut self, alpha: f64) -> Self {
        self.alpha = alpha;
        self
    }

    /// Sets whether brightness, colour, contrast and sharpness are changed, too, as they are by default.
    #[must_use]
    pub const fn all_ops(mut self, all_ops: bool) -> Self {
        self.all_ops = all_ops;
        self
    }

    /// Sets how the pixels in between are found where an image is turned or moved, bilinear by default.
    #[must_use]
    pub const fn interpolation(mut self, interpolation: Interpolation) -> Self {
        self.interpolation = interpolation;
        self
    }

    value_range_setter!();

    fn check_fields(&self) -> Result<(), String> {
        check_values(self.value_range)?;
        check_range("`num_chains`", self.num_chains as f64, 1.0..=100.0)?;
        check_range("`chain_depth`", self.chain_depth as f64, 0.0..=100.0)?;
        check_range("`alpha`", self.alpha, 1e-3..=1e6)?;
        self.factor.check("factor", 0.0..=1.0)
    }

    #[track_caller]
    fn mixed(&self, cx: &mut Cx, x: &Tensor) -> Tensor {
        let dims = x.dims();
        let (rows, chains) = (dims[0], self.num_chains);
        let to_chains = [&[rows, chains], &dims[1..]].concat();
        let copies = x.broadcast_in(&to_chains, &[0, 2, 3, 4]);
        let each = [&[rows * chains], &dims[1..]].concat();
        let changed =
            (0..self.chain_depth).fold(copies.reshape(&each), |x, _| self.changed_once(cx, &x));
        let weights = proportions(cx, [rows, chains], self.alpha);
        let weights = weights.broadcast_in(&to_chains, &[0, 1]);
        let changed = (changed.reshape(&to_chains) * weights).sum(&[1]);
        let share = proportions(cx, [rows, 2], self.alpha);
        let share = to_each(&share.slice_dim(1, 0, 1).reshape(&[rows]), x);
        let [least, most] = self.value_range;
        (&share * x + (1.0 - &share) * changed).clamp(least, most)
    }

    /// Each image changed by one of the ways, or by none.
    #[track_caller]
    fn changed_once(&self, cx: &mut Cx, x: &Tensor) -> Tensor {
        let ways = Ways {
            factor: self.factor,
            interpolation: self.interpolation,
            value_range: self.value_range,
        };
        let ways = ways.of(cx, x).into_iter().zip(IS_OF_SEVEN);
        let ways = ways.filter(|(_, is_of_seven)| self.all_ops || *is_of_seven);
        let ways: Vec<Tensor> = ways.map(|(way, _)| way).collect();
        let way = drawn(cx, x.dim(0), [0.0, ways.len() as f64 + 1.0]).floor();
        one_of(&way, x, &ways)
    }
}

/// Which of the ways there are without `all_ops`: not brightness, colour, contrast and sharpness.
const IS_OF_SEVEN: [bool; WAYS] = [
    true, true, true, false, false, false, false, true, true, true, true,
];

/// How often a draw for a proportion is tried again: it fails with a chance of at most 0.05 each time.
const TRIES: usize = 8;

/// Numbers of a Dirichlet distribution that is the same for all of them, which add up to 1 in each row.
#[track_caller]
fn proportions(cx: &mut Cx, [rows, count]: [usize; 2], alpha: f64) -> Tensor {
    // Of a gamma distribution (Marsaglia and Tsang 2000), of `alpha + 1`, in logarithms: those of a small `alpha` are no f32 numbers.
    let most = alpha + 2.0 / 3.0;
    let dims = [rows, count, TRIES];
    let normal = cx.normal(&dims);
    let cube_root = &normal * (1.0 / (9.0 * most).sqrt()) + 1.0;
    let is_positive = cube_root.greater(&cube_root.zeros_like());
    let one = cube_root.zeros_like() + 1.0;
    let cubed = is_positive.select(&cube_root, &one).log() * 3.0;
    let limit = normal.square() * 0.5 + (1.0 - cubed.exp() + &cubed) * most;
    let is_taken = (1.0 - cx.uniform(&dims))
        .log()
        .less(&limit)
        .and(&is_positive);
    let nothing = cubed.slice_dim(2, 0, 1).zeros_like();
    let taken = (0..TRIES).rev().fold(nothing, |later, at| {
        let [is_taken, cubed] = [&is_taken, &cubed].map(|all| all.slice_dim(2, at, at + 1));
        is_taken.select(&cubed, &later)
    });
    let down = (1.0 - cx.uniform(&dims[..2])).log() / alpha;
    (taken.reshape(&dims[..2]) + down).softmax(1)
}

impl Described for AugMix {
    const COMPONENT: Component = Component {
        name: "aug_mix",
        doc: "mixes each image with what several chains of changes make of it in training",
        fields: &[
            VALUE_RANGE,
            Field::optional(
                "num_chains",
                Kind::Whole(1, 100),
                "how many chains are mixed",
            ),
            Field::optional(
                "chain_depth",
                Kind::Whole(0, 100),
                "how many changes a chain has at most",
            ),
            Field::optional(
                "factor",
                Factor::KIND,
                "how much at most, or between which two",
            ),
            Field::optional(
                "alpha",
                Kind::Number(Included(1e-3), Included(1e6)),
                "how even the proportions are",
            ),
            Field::optional(
                "all_ops",
                Kind::Bool,
                "whether brightness, colour, contrast and sharpness are changed, too",
            ),
            Field::optional(
                "interpolation",
                Kind::OneOf(&["nearest", "bilinear"]),
                "how the pixels in between are found",
            ),
        ],
    };
}

picture_layer!(AugMix, "aug_mix", RGB, mixed);
