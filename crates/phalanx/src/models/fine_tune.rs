//! A pretrained model with a new head.

use crate::nn::{
    Activation, Dense, Dropout, GlobalAveragePool2d, Layer, LayerSpec, Model, Sequential,
};
use crate::{Error, Result};

/// A pretrained base with a new head: pooling, a hidden layer of 512, a dropout of 0.5, and logits.
///
/// The base is a layer under its own name; freeze it with [`Model::set_trainable`] before it is given, or with
/// [`Model::freeze`] afterwards. Frozen, its batch normalizations use the moving statistics even in training. The head's
/// layers are `global_average_pooling2d` (left out where the base pools), `hidden`, `dropout` and `logits`.
#[derive(Clone, Debug)]
pub struct FineTune {
    base: Model,
    hidden: usize,
    dropout: f64,
    outputs: usize,
    activation: Activation,
}

impl FineTune {
    /// The head on a base: one logit, as for two classes.
    #[must_use]
    pub const fn new(base: Model) -> Self {
        Self {
            base,
            hidden: 512,
            dropout: 0.5,
            outputs: 1,
            activation: Activation::Linear,
        }
    }

    /// Sets the size of the hidden layer, 512 by default; 0 for none.
    #[must_use]
    pub const fn hidden(mut self, units: usize) -> Self {
        self.hidden = units;
        self
    }

    /// Sets the rate of the dropout, 0.5 by default; 0 for none.
    #[must_use]
    pub const fn dropout(mut self, rate: f64) -> Self {
        self.dropout = rate;
        self
    }

    /// Sets the number of outputs, 1 by default.
    #[must_use]
    pub const fn outputs(mut self, outputs: usize) -> Self {
        self.outputs = outputs;
        self
    }

    /// Sets the activation of the outputs, none by default.
    #[must_use]
    pub fn activation(mut self, activation: impl Into<Activation>) -> Self {
        self.activation = activation.into();
        self
    }

    /// The model.
    ///
    /// # Errors
    /// When the base has several inputs or outputs, or its output is neither `[height, width, channels]` nor
    /// `[features]`.
    pub fn build(&self) -> Result<Model> {
        let name = self.base.name();
        let inputs: Vec<_> = self.base.inputs().collect();
        let outputs = self.base.outputs();
        let ([(_, input)], [features]) = (&inputs[..], &outputs[..]) else {
            return Err(Error::user(format!(
                "a base has one input and one output; model `{name}` has {} and {}",
                inputs.len(),
                outputs.len()
            )));
        };
        let input = crate::nn::Input::new(input.dims.clone()).dtype(input.dtype);
        let input = input.open_dims(self.base.open_dims());
        let base = LayerSpec::from(self.base.clone()).named(name);
        let mut stack = Sequential::new(input).named("fine_tune").add(base);
        match features.rank() {
            1 => {}
            3 => {
                stack = stack.add(GlobalAveragePool2d::new().named("global_average_pooling2d"));
            }
            _ => {
                return Err(Error::user(format!(
                    "a base gives [height, width, channels] or [features]; model `{name}` gives {features}"
                )));
            }
        }
        if self.hidden > 0 {
            let hidden = Dense::new(self.hidden).activation(Activation::Relu);
            stack = stack.add(hidden.named("hidden"));
        }
        if self.dropout != 0.0 {
            stack = stack.add(Dropout::new(self.dropout).named("dropout"));
        }
        let logits = Dense::new(self.outputs).activation(self.activation);
        stack.add(logits.named("logits")).build()
    }
}
