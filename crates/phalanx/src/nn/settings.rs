//! Settings that several layers have as one part of theirs, with their builders.

use phalanx_graph::{Shape, Tensor};
use serde::{Deserialize, Serialize};

use super::{Activation, Constraint, Cx, Initializer, Regularizer, fields};
use crate::config::{Field, joined};

/// A kernel and a bias: their first values, penalties and constraints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct WeightRules {
    pub(super) kernel_initializer: Initializer,
    pub(super) bias_initializer: Initializer,
    pub(super) kernel_regularizer: Option<Regularizer>,
    pub(super) bias_regularizer: Option<Regularizer>,
    pub(super) kernel_constraint: Option<Constraint>,
    pub(super) bias_constraint: Option<Constraint>,
}

impl WeightRules {
    pub(super) const FIELDS: &[Field] = &[
        fields::KERNEL_INITIALIZER,
        fields::BIAS_INITIALIZER,
        fields::KERNEL_REGULARIZER,
        fields::BIAS_REGULARIZER,
        fields::KERNEL_CONSTRAINT,
        fields::BIAS_CONSTRAINT,
    ];

    /// Keras' defaults.
    pub(super) const fn new() -> Self {
        Self {
            kernel_initializer: Initializer::GlorotUniform,
            bias_initializer: Initializer::Zeros,
            kernel_regularizer: None,
            bias_regularizer: None,
            kernel_constraint: None,
            bias_constraint: None,
        }
    }

    /// The kernel, as the variable of this name, with these first values.
    #[track_caller]
    pub(super) fn kernel_from(
        &self,
        cx: &mut Cx,
        name: &str,
        shape: Shape,
        initializer: &Initializer,
    ) -> Tensor {
        let limits = (self.kernel_regularizer, self.kernel_constraint.as_ref());
        cx.limited(name, shape, initializer, limits)
    }

    /// The bias, as the variable of this name.
    #[track_caller]
    pub(super) fn bias(&self, cx: &mut Cx, name: &str, shape: Shape) -> Tensor {
        let limits = (self.bias_regularizer, self.bias_constraint.as_ref());
        cx.limited(name, shape, &self.bias_initializer, limits)
    }
}

/// A kernel, and a bias if there is one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct WeightSettings {
    pub(super) use_bias: bool,
    #[serde(flatten)]
    pub(super) rules: WeightRules,
}

impl WeightSettings {
    pub(super) const FIELDS: &[Field] = joined!(&[fields::USE_BIAS], WeightRules::FIELDS);

    /// Keras' defaults.
    pub(super) const fn new() -> Self {
        Self {
            use_bias: true,
            rules: WeightRules::new(),
        }
    }

    /// The kernel, as the variable of this name.
    #[track_caller]
    pub(super) fn kernel(&self, cx: &mut Cx, name: &str, shape: Shape) -> Tensor {
        let first = &self.rules.kernel_initializer;
        self.rules.kernel_from(cx, name, shape, first)
    }

    /// The bias, as the variable of this name; `None` without one.
    #[track_caller]
    pub(super) fn bias(&self, cx: &mut Cx, name: &str, shape: Shape) -> Option<Tensor> {
        self.use_bias.then(|| self.rules.bias(cx, name, shape))
    }
}

/// A kernel, a bias, and an activation after them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct KernelSettings {
    pub(super) activation: Activation,
    #[serde(flatten)]
    pub(super) weights: WeightSettings,
    pub(super) activity_regularizer: Option<Regularizer>,
}

impl KernelSettings {
    pub(super) const FIELDS: &[Field] = joined!(
        &[fields::ACTIVATION],
        WeightSettings::FIELDS,
        &[fields::ACTIVITY_REGULARIZER],
    );

    /// Keras' defaults.
    pub(super) const fn new() -> Self {
        Self {
            activation: Activation::Linear,
            weights: WeightSettings::new(),
            activity_regularizer: None,
        }
    }

    /// The variable `kernel`.
    #[track_caller]
    pub(super) fn kernel(&self, cx: &mut Cx, shape: Shape) -> Tensor {
        self.weights.kernel(cx, "kernel", shape)
    }

    /// Adds the bias and applies the activation.
    #[track_caller]
    pub(super) fn finish(&self, cx: &mut Cx, y: Tensor, outputs: usize) -> Tensor {
        let shape = Shape::new(y.dtype(), [outputs]);
        match self.weights.bias(cx, "bias", shape) {
            Some(bias) => self.activation.apply(&(y + bias)),
            None => self.activation.apply(&y),
        }
    }
}

/// Builders of a layer's [`WeightSettings`], which are its field named here.
macro_rules! weight_settings {
    ($($settings:ident).+) => {
        /// Sets whether a bias is added, as it is by default.
        #[must_use]
        pub const fn use_bias(mut self, use_bias: bool) -> Self {
            self.$($settings).+.use_bias = use_bias;
            self
        }

        crate::nn::settings::weight_rules!($($settings).+.rules);
    };
}
pub(super) use weight_settings;

/// Builders of a layer's [`WeightRules`], which are its field named here.
macro_rules! weight_rules {
    ($($settings:ident).+) => {
        /// Sets the first values of the kernel.
        #[must_use]
        pub const fn kernel_initializer(mut self, initializer: Initializer) -> Self {
            self.$($settings).+.kernel_initializer = initializer;
            self
        }

        /// Sets the first values of the bias.
        #[must_use]
        pub const fn bias_initializer(mut self, initializer: Initializer) -> Self {
            self.$($settings).+.bias_initializer = initializer;
            self
        }

        /// Sets a penalty on the kernel.
        #[must_use]
        pub const fn kernel_regularizer(mut self, regularizer: Regularizer) -> Self {
            self.$($settings).+.kernel_regularizer = Some(regularizer);
            self
        }

        /// Sets a penalty on the bias.
        #[must_use]
        pub const fn bias_regularizer(mut self, regularizer: Regularizer) -> Self {
            self.$($settings).+.bias_regularizer = Some(regularizer);
            self
        }

        /// Sets what every update brings the kernel back to.
        #[must_use]
        pub fn kernel_constraint(mut self, constraint: Constraint) -> Self {
            self.$($settings).+.kernel_constraint = Some(constraint);
            self
        }

        /// Sets what every update brings the bias back to.
        #[must_use]
        pub fn bias_constraint(mut self, constraint: Constraint) -> Self {
            self.$($settings).+.bias_constraint = Some(constraint);
            self
        }
    };
}
pub(super) use weight_rules;

/// Builders of a layer's [`KernelSettings`], which are its field `settings`.
macro_rules! kernel_settings {
    () => {
        /// Sets the function applied last.
        #[must_use]
        pub fn activation(mut self, activation: impl Into<Activation>) -> Self {
            self.settings.activation = activation.into();
            self
        }

        crate::nn::settings::weight_settings!(settings.weights);

        /// Sets a penalty on the output, divided by the number of examples.
        #[must_use]
        pub const fn activity_regularizer(mut self, regularizer: Regularizer) -> Self {
            self.settings.activity_regularizer = Some(regularizer);
            self
        }
    };
}
pub(super) use kernel_settings;

/// What a layer says of its output, by the [`KernelSettings`] in its field `settings`.
macro_rules! kernel_output {
    () => {
        fn activation(&self) -> Option<Activation> {
            Some(self.settings.activation)
        }

        fn activity_regularizer(&self) -> Option<Regularizer> {
            self.settings.activity_regularizer
        }
    };
}
pub(super) use kernel_output;
