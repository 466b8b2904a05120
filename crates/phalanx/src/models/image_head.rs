//! What follows the convolutions of an image model.

use serde::{Deserialize, Serialize};

use crate::config::{Family, Field, Kind};
use crate::nn::{
    Activation, Dense, Dropout, GlobalAveragePool2d, GlobalMaxPool2d, Input, Layer, Network, Node,
};
use crate::{Error, Result};

/// How the features of an image model without its classifier are summed up over the image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pooling {
    /// Not at all: the output is the last feature map `[height, width, channels]`.
    #[default]
    None,
    /// The mean of each channel.
    Average,
    /// The maximum of each channel.
    Max,
}

/// The settings that Keras' applications share, and the end of a network by them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ImageHead {
    #[serde(skip, default = "imagenet")]
    pub(super) input: Input,
    pub(super) classes: usize,
    pub(super) include_top: bool,
    pub(super) pooling: Pooling,
    pub(super) activation: Activation,
    /// Rate of the dropout before the classifier; none where it is 0.
    pub(super) dropout: f64,
}

/// The images of `ImageNet`, as most models take them.
fn imagenet() -> Input {
    Input::new([224, 224, 3])
}

impl ImageHead {
    /// Keras' defaults: ImageNet's images and classes, probabilities.
    pub(super) fn new() -> Self {
        Self {
            input: imagenet(),
            classes: 1000,
            include_top: true,
            pooling: Pooling::None,
            activation: Activation::Softmax,
            dropout: 0.0,
        }
    }

    /// Height, width and channels of the images.
    pub(super) fn image(&self, model: &str) -> Result<[usize; 3]> {
        let dims = self.input.dims();
        dims.try_into().map_err(|_| {
            Error::user(format!(
                "model `{model}` takes images: expected an input [height, width, channels], got {dims:?}"
            ))
        })
    }

    /// Adds pooling and classifier; `average` and `max` name the poolings.
    pub(super) fn end(&self, net: &mut Network, x: Node, average: &str, max: &str) -> Node {
        let average = GlobalAveragePool2d::new().named(average);
        match (self.include_top, self.pooling) {
            (false, Pooling::None) => return x,
            (false, Pooling::Average) => return net.add(average, &[x]),
            (false, Pooling::Max) => return net.add(GlobalMaxPool2d::new().named(max), &[x]),
            (true, _) => {}
        }
        let mut x = net.add(average, &[x]);
        if self.dropout != 0.0 {
            x = net.add(Dropout::new(self.dropout).named("dropout"), &[x]);
        }
        let classifier = Dense::new(self.classes).activation(self.activation);
        net.add(classifier.named("predictions"), &[x])
    }
}

/// Settings of every image model, beside its own: of its [`ImageHead`], then of its batch normalizations.
pub(super) const EVERY_IMAGE_MODEL: &[Field] = &[
    Field::optional("classes", Kind::SIZE, "number of classes"),
    Field::optional("include_top", Kind::Bool, "whether the classifier is there"),
    Field::optional(
        "pooling",
        Kind::OneOf(&["none", "average", "max"]),
        "how the features are pooled where there is no classifier",
    ),
    Field::optional(
        "activation",
        Kind::Component(Family::Activation),
        "activation of the classifier; `linear` for logits",
    ),
    Field::optional(
        "dropout",
        Kind::SHARE,
        "share that a dropout before the classifier sets to 0",
    ),
    Field::optional(
        "epsilon",
        Kind::AT_LEAST_ZERO,
        "what batch normalizations add to the variance",
    ),
    Field::optional(
        "momentum",
        Kind::SHARE,
        "share that moving statistics keep in each step",
    ),
    Field::optional(
        "synchronized",
        Kind::Bool,
        "whether the statistics are of all replicas together",
    ),
];

/// Builders of the settings in [`ImageHead`].
macro_rules! head_settings {
    () => {
        /// Sets the images, `[height, width, channels]`; 224 by 224 in three colours by default.
        ///
        /// Unlike Keras, sizes below 32 are accepted as long as every window fits.
        #[must_use]
        pub fn input(mut self, input: impl Into<crate::nn::Input>) -> Self {
            self.head.input = input.into();
            self
        }

        /// Sets the number of classes, ImageNet's 1000 by default.
        #[must_use]
        pub const fn classes(mut self, classes: usize) -> Self {
            self.head.classes = classes;
            self
        }

        /// Sets whether the classifier is there, as it is by default; without it, [`pooling`](Self::pooling) counts.
        #[must_use]
        pub const fn include_top(mut self, include_top: bool) -> Self {
            self.head.include_top = include_top;
            self
        }

        /// Sets how the features are pooled where there is no classifier; not at all by default.
        #[must_use]
        pub const fn pooling(mut self, pooling: super::Pooling) -> Self {
            self.head.pooling = pooling;
            self
        }

        /// Sets the classifier's activation: softmax by default, `Activation::Linear` for logits.
        #[must_use]
        pub fn activation(mut self, activation: impl Into<crate::nn::Activation>) -> Self {
            self.head.activation = activation.into();
            self
        }

        /// Sets the rate of a dropout before the classifier, none by default.
        #[must_use]
        pub const fn dropout(mut self, rate: f64) -> Self {
            self.head.dropout = rate;
            self
        }

        /// Sets the name of the model.
        #[must_use]
        pub fn named(mut self, name: impl Into<String>) -> Self {
            self.name = name.into();
            self
        }
    };
}
pub(super) use head_settings;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropout_that_makes_no_sense_is_refused() {
        let build = |dropout| {
            let head = ImageHead {
                classes: 2,
                dropout,
                ..ImageHead::new()
            };
            let mut net = Network::new();
            let x = net.input([4, 4, 3]);
            let y = head.end(&mut net, x, "average", "max");
            net.build(&[x], &[y])
        };
        for good in [0.0, 0.2] {
            build(good).unwrap();
        }
        for bad in [-0.2, f64::NAN] {
            let error = build(bad).unwrap_err().to_string();
            assert!(error.contains("dropout"), "{error}");
        }
    }
}
