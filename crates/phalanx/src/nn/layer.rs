//! What a layer is, and its place in a model.

use std::fmt::Debug;
use std::sync::Arc;

use phalanx_graph::{Shape, Sharding, Tensor};
use serde_json::Value;

use super::sharding::Shardings;
use super::sizes::check_dims;
use super::{Activation, Cx, Model, Policy};

/// A function of tensors with variables.
///
/// A layer holds its settings alone: variables come from the [`Cx`] it is called with, so a layer is plain data,
/// can be shared between models and threads, and is written to JSON by [`config`](Self::config). Your own layers
/// are used as ours are; [add](super::Registry::with) them to a registry to read them back from JSON.
///
/// ```
/// use phalanx::nn::{Cx, Initializer, Layer, Sequential};
/// use phalanx_graph::{Shape, Tensor};
///
/// #[derive(Debug)]
/// struct Scale;
///
/// impl Layer for Scale {
///     fn kind(&self) -> &'static str {
///         "scale"
///     }
///     fn config(&self) -> serde_json::Value {
///         serde_json::json!({})
///     }
///     fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
///         let factor = cx.variable("factor", Shape::f32([]), &Initializer::Ones);
///         &inputs[0] * factor
///     }
/// }
///
/// let model = Sequential::new([3]).add(Scale).build()?;
/// assert_eq!(model.variables()[0].name, "scale/factor");
/// # Ok::<(), phalanx::Error>(())
/// ```
pub trait Layer: Debug + Send + Sync {
    /// The name of the type in `snake_case`: in JSON, in YAML, and the start of automatic names.
    fn kind(&self) -> &'static str;

    /// The settings, from which the [`Registry`](super::Registry) makes the layer again.
    fn config(&self) -> Value;

    /// The output for `inputs` whose first dim is the batch, as graph nodes.
    ///
    /// Mistakes are recorded with [`Cx::fail`]. The same variables must be asked for whatever the mode.
    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor;

    /// How many outputs a call has: one, but for layers such as a recurrent one that gives its states, too.
    fn outputs(&self) -> usize {
        1
    }

    /// All outputs, as many as [`outputs`](Self::outputs) says; the first is what [`call`](Self::call) gives.
    fn call_many(&self, cx: &mut Cx, inputs: &[Tensor]) -> Vec<Tensor> {
        vec![self.call(cx, inputs)]
    }

    /// What is wrong with the settings, whatever the inputs; asked before [`check`](Self::check).
    ///
    /// # Errors
    /// A sentence with the field in backticks, what was expected and what was got.
    fn check_settings(&self) -> Result<(), String> {
        Ok(())
    }

    /// What is wrong with inputs of these shapes; asked before each [`call`](Self::call).
    ///
    /// # Errors
    /// A sentence with what was expected and what was got.
    fn check(&self, _inputs: &[Shape]) -> Result<(), String> {
        Ok(())
    }

    /// Whether floats it is given are converted to what the model computes in, which is not done to indices.
    fn converts_inputs(&self) -> bool {
        true
    }

    /// The activation that makes the output, when there is one: to tell logits from probabilities.
    fn activation(&self) -> Option<Activation> {
        None
    }

    /// Where inputs are indices, how many there are: each is at least 0 and below this, or it is the second number, if
    /// there is one, which stands for nothing.
    fn index_range(&self) -> Option<(usize, Option<i32>)> {
        None
    }

    /// The penalty on the first output, added to the losses divided by the batch size, as Keras does.
    fn activity_regularizer(&self) -> Option<super::Regularizer> {
        None
    }

    /// Whether what becomes of an example in training depends on the others of its batch, as in batch normalization.
    fn mixes_examples(&self) -> bool {
        false
    }

    /// The layer inside that this one applies, whose variables are found under `layer`, where there is one.
    fn wrapped(&self) -> Option<&dyn Layer> {
        None
    }

    /// Whether the first output has the padding mask of the first input: for layers that treat each step by itself.
    ///
    /// Otherwise the output has the mask that [`call`](Self::call) gave it, or none.
    fn keeps_mask(&self) -> bool {
        false
    }

    /// The layer under a name of its own instead of an automatic one.
    fn named(self, name: impl Into<String>) -> LayerSpec
    where
        Self: Sized + 'static,
    {
        LayerSpec::from(self).named(name)
    }

    /// The layer with a variable of it cut over a mesh of devices: see [`LayerSpec::sharded`].
    fn sharded(self, variable: &str, sharding: impl Into<Sharding>) -> LayerSpec
    where
        Self: Sized + 'static,
    {
        LayerSpec::from(self).sharded(variable, sharding)
    }
}

/// Refuses outputs of a call that are others than the layer says, or too large.
pub(super) fn check_outputs(layer: &dyn Layer, outputs: &[Tensor]) -> Result<(), String> {
    let expected = layer.outputs();
    if outputs.is_empty() || outputs.len() != expected {
        let got = outputs.len();
        return Err(format!(
            "it says that it has {expected} outputs, at least 1, and gave {got}"
        ));
    }
    let mut dims = outputs.iter().map(Tensor::dims);
    dims.try_for_each(|dims| check_dims("the output", &dims))
}

/// A layer or a model as it is added to a model: with a name, perhaps, and a `trainable` flag.
#[derive(Clone, Debug)]
pub struct LayerSpec {
    pub(super) name: Option<String>,
    pub(super) body: Body,
    /// Whether it behaves in training as it does then.
    pub(super) training: bool,
    /// Whether derivatives compute again what is inside.
    pub(super) checkpointed: bool,
    /// How variables inside are cut over a mesh.
    pub(super) shardings: Shardings,
}

/// What is applied: a layer, or a model as a layer.
#[derive(Clone, Debug)]
pub(super) enum Body {
    Layer {
        layer: Arc<dyn Layer>,
        trainable: bool,
        /// Its own policy, when it has one.
        precision: Option<Policy>,
    },
    Model(Box<Model>),
}

impl LayerSpec {
    pub(super) fn shared(layer: Arc<dyn Layer>) -> Self {
        let body = Body::Layer {
            layer,
            trainable: true,
            precision: None,
        };
        Self {
            name: None,
            body,
            training: true,
            checkpointed: false,
            shardings: Shardings::new(),
        }
    }

    /// Sets the name, which must be unique in the model and hold no `/`.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets whether training changes its variables; on a model, the variables of all its layers.
    #[must_use]
    pub fn trainable(mut self, trainable: bool) -> Self {
        self.body.set_trainable(trainable);
        self
    }

    /// Sets whether it behaves in training as it does then, which is the default: `false` lets dropouts pass everything and batch
    /// normalizations use their moving statistics and leave them, while variables are trained all the same.
    ///
    /// What `base(x, training=False)` says in Keras 2: a model whose variables are trained on few examples keeps the statistics of many.
    /// Keras 3 takes no notice of it where a functional model is trained.
    #[must_use]
    pub const fn training(mut self, training: bool) -> Self {
        self.training = training;
        self
    }

    /// Sets in which element types it computes, whatever the model does; on a model, all its layers.
    ///
    /// Keras' `dtype="float32"` for a layer that needs the precision.
    #[must_use]
    pub fn precision(mut self, policy: Policy) -> Self {
        self.body.set_precision(policy);
        self
    }

    /// Lets a training step compute again on the way back what is inside, from the inputs, instead of keeping it:
    /// less memory for more work, about a third more where all of a model is.
    ///
    /// It pays for a model of several layers, a block: of a lone layer little more than the inputs was kept anyway.
    #[must_use]
    pub const fn checkpointed(mut self) -> Self {
        self.checkpointed = true;
        self
    }

    /// Sets how one of its variables is cut where a [`MeshStrategy`](crate::strategy::MeshStrategy) trains the model: for
    /// each dim the name of an axis of the mesh, or none. Other strategies, and axes of size 1, leave it whole.
    ///
    /// Of two dense layers in a row the first kernel is best cut by columns and the second by rows: what is between
    /// them then stays in parts, and the devices exchange one sum. Biases, slots of the optimizer and intermediate
    /// values follow. It is written with the architecture, not with the values.
    ///
    /// ```
    /// use phalanx::nn::{Dense, Layer, Sequential, relu};
    ///
    /// let model = Sequential::new([64])
    ///     .add(Dense::new(256).activation(relu).sharded("kernel", [None, Some("model")]))
    ///     .add(Dense::new(10).sharded("kernel", [Some("model"), None]))
    ///     .build()?;
    /// assert_eq!(model.variables()[0].sharding.as_ref().unwrap().to_string(), "[_, model]");
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    #[must_use]
    pub fn sharded(mut self, variable: &str, sharding: impl Into<Sharding>) -> Self {
        self.shardings.insert(variable.to_owned(), sharding.into());
        self
    }

    /// The kind of the layer; `model` for a model.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        self.body.kind()
    }

    /// The settings of the layer.
    #[must_use]
    pub fn config(&self) -> Value {
        match &self.body {
            Body::Layer { layer, .. } => layer.config(),
            Body::Model(model) => model.config(),
        }
    }
}

impl Body {
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Layer { layer, .. } => layer.kind(),
            Self::Model(_) => "model",
        }
    }

    /// How many outputs a call has.
    pub(super) fn outputs(&self) -> usize {
        match self {
            Self::Layer { layer, .. } => layer.outputs(),
            Self::Model(model) => model.outputs.len(),
        }
    }

    /// A model as a layer goes by the name of the layer.
    pub(super) fn renamed(mut self, name: &str) -> Self {
        if let Self::Model(model) = &mut self {
            name.clone_into(&mut model.name);
        }
        self
    }

    pub(super) fn set_trainable(&mut self, value: bool) {
        match self {
            Self::Layer { trainable, .. } => *trainable = value,
            Self::Model(model) => model.set_trainable(value),
        }
    }

    pub(super) fn set_precision(&mut self, policy: Policy) {
        match self {
            Self::Layer { precision, .. } => *precision = Some(policy),
            Self::Model(model) => {
                let layers = model.layers.iter_mut();
                layers.for_each(|entry| entry.body.set_precision(policy));
            }
        }
    }
}

impl<L: Layer + 'static> From<L> for LayerSpec {
    fn from(layer: L) -> Self {
        Self::shared(Arc::new(layer))
    }
}

impl From<Model> for LayerSpec {
    fn from(model: Model) -> Self {
        Self {
            name: None,
            body: Body::Model(Box::new(model)),
            training: true,
            checkpointed: false,
            shardings: Shardings::new(),
        }
    }
}
