//! Fully connected layers, one after another.

use crate::Result;
use crate::nn::{Activation, Dense, Dropout, Flatten, Input, Model, Sequential};

/// A multilayer perceptron: the input flattened, hidden layers with an activation each, and a layer of outputs.
///
/// Layers are named as Keras names them: `flatten`, `dense`, `dropout`, `dense_1`, ..
///
/// ```
/// use phalanx::models::Mlp;
///
/// let model = Mlp::new([8, 8, 1], [64, 32], 10).dropout(0.2).build()?;
/// assert_eq!(model.layers(), ["flatten", "dense", "dropout", "dense_1", "dropout_1", "dense_2"]);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Mlp {
    name: String,
    input: Input,
    hidden: Vec<usize>,
    outputs: usize,
    activation: Activation,
    output_activation: Activation,
    dropout: f64,
}

impl Mlp {
    /// A perceptron of examples of these dims, with hidden layers of these sizes and some outputs, which are logits.
    #[must_use]
    pub fn new(input: impl Into<Input>, hidden: impl Into<Vec<usize>>, outputs: usize) -> Self {
        Self {
            name: "mlp".into(),
            input: input.into(),
            hidden: hidden.into(),
            outputs,
            activation: Activation::Relu,
            output_activation: Activation::Linear,
            dropout: 0.0,
        }
    }

    /// Sets the activation of the hidden layers, relu by default.
    #[must_use]
    pub fn activation(mut self, activation: impl Into<Activation>) -> Self {
        self.activation = activation.into();
        self
    }

    /// Sets the activation of the outputs, none by default.
    #[must_use]
    pub fn output_activation(mut self, activation: impl Into<Activation>) -> Self {
        self.output_activation = activation.into();
        self
    }

    /// Sets the rate of a dropout after each hidden layer, none by default.
    #[must_use]
    pub const fn dropout(mut self, rate: f64) -> Self {
        self.dropout = rate;
        self
    }

    /// Sets the name of the model.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// The model.
    ///
    /// # Errors
    /// When a layer has no units or the rate is not in 0..=1.
    pub fn build(&self) -> Result<Model> {
        let mut stack = Sequential::new(self.input.clone()).named(&self.name);
        if self.input.dims().len() != 1 {
            stack = stack.add(Flatten);
        }
        for &units in &self.hidden {
            stack = stack.add(Dense::new(units).activation(self.activation));
            if self.dropout != 0.0 {
                stack = stack.add(Dropout::new(self.dropout));
            }
        }
        let outputs = Dense::new(self.outputs).activation(self.output_activation);
        stack.add(outputs).build()
    }
}
