//! A stack of layers.

use phalanx_graph::HostTensor;

use super::input::Input;
use super::layer::LayerSpec;
use super::model::{IntoModel, Model, Plan};
use crate::Result;

/// A model of layers that each take the output of the one before.
///
/// ```
/// use phalanx::nn::{Conv2d, Dense, Flatten, Layer, MaxPool2d, Padding, Sequential, relu};
///
/// let model = Sequential::new([8, 8, 1])
///     .add(Conv2d::new(16, 3).padding(Padding::Same).activation(relu))
///     .add(MaxPool2d::new(2))
///     .add(Flatten)
///     .add(Dense::new(10).named("digits"))
///     .build()?;
/// assert_eq!(model.outputs()[0].dims, [10]);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Sequential {
    name: String,
    input: Input,
    layers: Vec<LayerSpec>,
}

impl Sequential {
    /// An empty stack for examples of these dims (the batch is not among them), or for an [`Input`].
    #[must_use]
    pub fn new(input: impl Into<Input>) -> Self {
        Self {
            name: "sequential".into(),
            input: input.into(),
            layers: Vec::new(),
        }
    }

    /// Sets the name of the model.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Puts a layer, or a model with one input and one output, on top.
    #[must_use]
    #[allow(
        clippy::should_implement_trait,
        reason = "Keras' name; nothing is summed"
    )]
    pub fn add(mut self, layer: impl Into<LayerSpec>) -> Self {
        self.layers.push(layer.into());
        self
    }

    /// The model.
    ///
    /// # Errors
    /// When a layer does not accept the output of the one before, or two layers have one name.
    pub fn build(self) -> Result<Model> {
        Model::build(Plan::stack(self.name, self.input, self.layers))
    }
}

impl IntoModel for Sequential {
    fn into_parts(self) -> Result<(Model, Option<Vec<HostTensor>>)> {
        Ok((self.build()?, None))
    }
}
