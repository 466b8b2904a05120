//! Layers by the name of their kind.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::activation::{CustomActivation, KNOWN, with_known};
use super::layer::{Layer, LayerSpec};
use super::model::NamedLayer;
use super::names::check_name;
use super::rnn_cell::{CELLS, OWN_CELLS, OwnCell};
use super::*;
use crate::config::{self, Described, Description};
use crate::{Error, Result};

/// Makes a layer of its settings; the name of the kind comes first, for errors.
type MakeLayer = Arc<dyn Fn(&str, &Value) -> Result<Arc<dyn Layer>> + Send + Sync>;

/// Describes a layer, when it is asked for: its defaults take a while to write.
type Describe = Arc<dyn Fn() -> Description + Send + Sync>;

/// The kinds of layers that can be read from JSON: ours, and those you add, with activations and cells of yours.
#[derive(Clone)]
pub struct Registry {
    kinds: Vec<(String, MakeLayer)>,
    activations: Vec<CustomActivation>,
    cells: Vec<OwnCell>,
    descriptions: Vec<Describe>,
}

/// The layer of a kind, `dense`, with settings as in JSON: `{"units": 10, "activation": "relu"}`.
///
/// Beside the layer's own settings there may be `name`, `trainable`, `training`, `precision`, `checkpointed` and `sharding`. `null` stands for no settings.
///
/// # Errors
/// Unknown kinds and settings, with the nearest valid name; missing or wrong settings.
pub fn layer_from_config(kind: &str, fields: &Value) -> Result<LayerSpec> {
    Registry::standard().layer(kind, kind, fields)
}

impl Registry {
    /// The layers of this library.
    #[must_use]
    pub fn standard() -> Self {
        let mut registry = Self {
            kinds: Vec::new(),
            activations: Vec::new(),
            cells: Vec::new(),
            descriptions: Vec::new(),
        };
        registry.add_layers_of_images();
        registry.add_layers_of_pixels();
        registry.add_layers_of_sequences();
        registry.add_layers_that_move_values();
        registry
    }

    /// Layers of vectors, images and volumes, normalizations and noise.
    fn add_layers_of_images(&mut self) {
        self.add_kind(Dense::new(1));
        self.add_kind(EinsumDense::new("ab,bc->ac", [Some(1)]));
        self.add_kind(Conv2d::new(1, 1));
        self.add_kind(DepthwiseConv1d::new(1));
        self.add_kind(DepthwiseConv2d::new(1));
        self.add_kind(SeparableConv1d::new(1, 1));
        self.add_kind(SeparableConv2d::new(1, 1));
        self.add_kind(Conv1dTranspose::new(1, 1));
        self.add_kind(Conv2dTranspose::new(1, 1));
        self.add_kind(Conv3dTranspose::new(1, 1));
        self.add_kind(Conv1d::new(1, 1));
        self.add_kind(Conv3d::new(1, 1));
        self.add_kind(MaxPool2d::new(2));
        self.add_kind(AveragePool2d::new(2));
        self.add_kind(MaxPool1d::new(2));
        self.add_kind(AveragePool1d::new(2));
        self.add_kind(MaxPool3d::new(2));
        self.add_kind(AveragePool3d::new(2));
        self.add_kind(AdaptiveMaxPool1d::new(1));
        self.add_kind(AdaptiveMaxPool2d::new(1));
        self.add_kind(AdaptiveMaxPool3d::new(1));
        self.add_kind(AdaptiveAveragePool1d::new(1));
        self.add_kind(AdaptiveAveragePool2d::new(1));
        self.add_kind(AdaptiveAveragePool3d::new(1));
        self.add_kind(GlobalMaxPool2d::new());
        self.add_kind(GlobalAveragePool2d::new());
        self.add_kind(GlobalMaxPool3d::new());
        self.add_kind(GlobalAveragePool3d::new());
        self.add_kind(BatchNorm::new());
        self.add_kind(LayerNorm::new());
        self.add_kind(GroupNorm::new());
        self.add_kind(UnitNorm::new());
        self.add_kind(RmsNorm::new());
        self.add_kind(SpectralNorm::new(Dense::new(1)));
        self.add_kind(Dropout::new(0.0));
        self.add_kind(SpatialDropout1d::new(0.0));
        self.add_kind(SpatialDropout2d::new(0.0));
        self.add_kind(SpatialDropout3d::new(0.0));
        self.add_kind(GaussianNoise::new(0.0));
        self.add_kind(GaussianDropout::new(0.0));
        self.add_kind(AlphaDropout::new(0.0));
        self.add_kind(StochasticDepth::new(0.0));
    }

    /// Layers that bring images to another size, and change them in training.
    fn add_layers_of_pixels(&mut self) {
        self.add_kind(Resizing::new(1, 1));
        self.add_kind(CenterCrop::new(1, 1));
        self.add_kind(RandomCrop::new(1, 1));
        self.add_kind(RandomFlip::default());
        self.add_kind(RandomRotation::new(0.0));
        self.add_kind(RandomTranslation::new(0.0, 0.0));
        self.add_kind(RandomShear::new(0.0, 0.0));
        self.add_kind(RandomZoom::new(0.0));
        self.add_kind(RandomPerspective::new(1.0));
        self.add_kind(RandomBrightness::new(0.0));
        self.add_kind(RandomContrast::new(0.0));
        self.add_kind(RandomHue::new(0.0));
        self.add_kind(RandomSaturation::new(0.0));
        self.add_kind(RandomColorDegeneration::new(0.0));
        self.add_kind(RandomSharpness::new(0.0));
        self.add_kind(RandomInvert::new(1.0));
        self.add_kind(RandomGrayscale::new(0.5));
        self.add_kind(AutoContrast::new([0.0, 255.0]));
        self.add_kind(RandomPosterization::new(1.0));
        self.add_kind(Solarization::new(0.0, 0.0));
        self.add_kind(Equalization::new([0.0, 255.0]));
        self.add_kind(RandomGaussianBlur::new(3, 1.0));
        self.add_kind(RandomErasing::new(1.0));
        self.add_kind(RandomColorJitter::new([0.0, 255.0]));
        self.add_kind(RandAugment::new(0.5));
        self.add_kind(AugMix::new(0.3));
        self.add_kind(RandomElasticTransform::default());
        self.add_kind(ContrastLimitedAdaptiveHistogramEqualization::default());
    }

    /// Layers of sequences, of tokens and of categories.
    fn add_layers_of_sequences(&mut self) {
        self.add_kind(Embedding::new(1, 1));
        self.add_kind(ReversibleEmbedding::new(1, 1));
        self.add_kind(Discretization::new([0.0]));
        self.add_kind(CategoryEncoding::new(1));
        self.add_kind(IntegerLookup::new([0]));
        self.add_kind(Hashing::new(1));
        self.add_kind(HashedCrossing::new(1));
        self.add_kind(StftSpectrogram::new(256));
        self.add_kind(MelSpectrogram::new(128));
        self.add_kind(MultiHeadAttention::new(1, 1));
        self.add_kind(GroupQueryAttention::new(1, 1, 1));
        self.add_kind(Attention::new());
        self.add_kind(AdditiveAttention::new());
        self.add_kind(PositionEmbedding::new(1));
        self.add_kind(EmbeddingBag::new(1, 1));
        self.add_kind(Dot::new());
        self.add_kind(Interaction);
        self.add_kind(Masking::new(0.0));
        self.add_kind(Lstm::new(1));
        self.add_kind(Gru::new(1));
        self.add_kind(SimpleRnn::new(1));
        self.add_kind(ConvLstm1d::new(1, 1));
        self.add_kind(ConvLstm2d::new(1, 1));
        self.add_kind(ConvLstm3d::new(1, 1));
        self.add_kind(Rnn::new(LstmCell::new(1)));
        self.add_kind(Bidirectional::new(Lstm::new(1)));
        self.add_kind(TimeDistributed::new(Dense::new(1)));
        self.add_kind(SinusoidalPosition::new());
        self.add_kind(GlobalAveragePool1d::new());
        self.add_kind(GlobalMaxPool1d::new());
    }

    /// Layers that move, scale or join values, and activations.
    fn add_layers_that_move_values(&mut self) {
        self.add_kind(Flatten);
        self.add_kind(Reshape::new([-1]));
        self.add_kind(Rescaling::new(1.0));
        self.add_kind(Preprocess::tf());
        self.add_kind(Normalization::new());
        self.add_kind(ZeroPadding1d::new(1));
        self.add_kind(ZeroPadding2d::new(1));
        self.add_kind(ZeroPadding3d::new(1));
        self.add_kind(Cropping1d::new(1));
        self.add_kind(Cropping2d::new(0));
        self.add_kind(Cropping3d::new(1));
        self.add_kind(UpSampling1d::new(2));
        self.add_kind(UpSampling2d::new(2));
        self.add_kind(UpSampling3d::new(2));
        self.add_kind(Permute::new([1]));
        self.add_kind(RepeatVector::new(1));
        self.add_kind(Add);
        self.add_kind(Subtract);
        self.add_kind(ScaledAdd::new(1.0));
        self.add_kind(Multiply);
        self.add_kind(Average);
        self.add_kind(Maximum);
        self.add_kind(Minimum);
        self.add_kind(Concatenate::new());
        self.add_kind(ActivationLayer::new(Activation::Linear));
        self.add_kind(PRelu::new());
        self.add_kind(LayerScale::default());
    }

    /// Adds a kind of your own, which must not be there yet.
    ///
    /// `make` gets the settings that your layer's [`config`](Layer::config) wrote.
    ///
    /// # Errors
    /// When the kind is there already.
    pub fn with<L: Layer + 'static>(
        mut self,
        kind: &str,
        make: impl Fn(&Value) -> Result<L> + Send + Sync + 'static,
    ) -> Result<Self> {
        if kind == MODEL_KIND || self.kinds.iter().any(|(known, _)| known == kind) {
            return Err(Error::user(format!(
                "there is a kind of layer `{kind}` already; give yours another name"
            )));
        }
        let make: MakeLayer = Arc::new(move |owner, fields| match make(fields) {
            Ok(layer) => Ok(Arc::new(layer)),
            Err(error) => Err(Error::user(format!("{owner}: {error}"))),
        });
        self.kinds.push((kind.to_owned(), make));
        Ok(self)
    }

    /// Adds an activation of your own, [`Activation::custom`], which files have by its name: Keras' `register_keras_serializable` of a function.
    ///
    /// ```
    /// use phalanx::nn::{Activation, Registry};
    /// let squared = Activation::custom("squared_relu", |x| x.maximum(&x.like(0.0)).square());
    /// let registry = Registry::standard().with_activation(squared)?;
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    ///
    /// # Errors
    /// When it is one of this library, or one of this name is there already.
    pub fn with_activation(mut self, activation: Activation) -> Result<Self> {
        let Activation::Custom(own) = activation else {
            return Err(Error::user(format!(
                "expected an activation of the program, got {activation:?}, which every registry has; add those that `Activation::custom` makes"
            )));
        };
        if self
            .activations
            .iter()
            .any(|known| known.name() == own.name())
        {
            return Err(Error::user(format!(
                "there is an activation `{}` already; give yours another name",
                own.name()
            )));
        }
        self.activations.push(own);
        Ok(self)
    }

    /// Adds a kind of cell of your own, for [`Rnn`], which must not be there yet.
    ///
    /// `make` gets the settings that your cell's [`config`](RnnCell::config) wrote.
    ///
    /// # Errors
    /// When the kind is there already.
    pub fn with_cell<C: RnnCell + 'static>(
        mut self,
        kind: &str,
        make: impl Fn(&Value) -> Result<C> + Send + Sync + 'static,
    ) -> Result<Self> {
        if CELLS.contains(&kind) || self.cells.iter().any(|known| known.kind == kind) {
            return Err(Error::user(format!(
                "there is a kind of cell `{kind}` already; give yours another name"
            )));
        }
        self.cells.push(OwnCell::new(kind, make));
        Ok(self)
    }

    /// The kinds, ours first.
    pub fn kinds(&self) -> impl Iterator<Item = &str> + Clone {
        self.kinds.iter().map(|(kind, _)| kind.as_str())
    }

    fn add_kind<L: Layer + Described + Clone + 'static>(&mut self, template: L) {
        let described = template.clone();
        let make: MakeLayer = Arc::new(move |owner, fields| {
            let layer: L = config::read(owner, &template, fields)?;
            Ok(Arc::new(layer))
        });
        self.kinds.push((L::COMPONENT.name.to_owned(), make));
        self.descriptions.push(Arc::new(move || {
            let mut description = Description::of(&described);
            description.settings.extend(every_layer_settings());
            description
        }));
    }

    /// The layers of this library with their settings and defaults.
    pub(crate) fn descriptions(&self) -> Vec<Description> {
        self.descriptions
            .iter()
            .map(|describe| describe())
            .collect()
    }

    /// The layer of a kind; `owner` is what errors call it.
    pub(super) fn layer(&self, owner: &str, kind: &str, fields: &Value) -> Result<LayerSpec> {
        let Some((_, make)) = self.kinds.iter().find(|(known, _)| known == kind) else {
            let known: Vec<&str> = self.kinds().collect();
            return Err(within(
                owner,
                kind,
                config::unknown_kind("layer", kind, &known),
            ));
        };
        let mut fields = fields.clone();
        let outer = fields.as_object_mut().map(Outer::take);
        let outer = outer.unwrap_or_default();
        let read = || with_known(&OWN_CELLS, &self.cells, || make(owner, &fields));
        let layer = with_known(&KNOWN, &self.activations, read)?;
        let checked = layer.check_settings();
        checked.map_err(|message| Error::user(format!("{owner}: {message}")))?;
        outer.apply(owner, LayerSpec::shared(layer))
    }
}

/// Lists the kinds.
impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.kinds()).finish()
    }
}

/// The kind under which a model stands for a layer.
pub(super) const MODEL_KIND: &str = "model";

/// A model as a layer, with the fields of every layer that are among its settings; `make` gets the others.
pub(crate) fn with_outer_fields(
    owner: &str,
    fields: &Value,
    make: impl FnOnce(&Value) -> Result<Model>,
) -> Result<LayerSpec> {
    let mut fields = fields.clone();
    let outer = fields.as_object_mut().map(Outer::take).unwrap_or_default();
    outer.apply(owner, make(&fields)?.into())
}

/// Puts the place before an error that does not have it yet.
fn within(owner: &str, kind: &str, error: Error) -> Error {
    match error {
        Error::User(message) if owner != kind => Error::user(format!("{owner}: {message}")),
        other => other,
    }
}

/// The fields that every layer has beside its own.
#[derive(Default)]
pub(super) struct Outer {
    name: Option<Value>,
    trainable: Option<Value>,
    training: Option<Value>,
    precision: Option<Value>,
    checkpointed: Option<Value>,
    sharding: Option<Value>,
}

impl Outer {
    /// The fields among the others.
    pub(super) fn of(fields: &Map<String, Value>) -> Self {
        let given = |field| fields.get(field).filter(|value| !value.is_null()).cloned();
        Self {
            name: given("name"),
            trainable: given("trainable"),
            training: given("training"),
            precision: given("precision"),
            checkpointed: given("checkpointed"),
            sharding: given("sharding"),
        }
    }

    /// Takes the fields out of the others.
    pub(super) fn take(fields: &mut Map<String, Value>) -> Self {
        let outer = Self::of(fields);
        fields.retain(|field, _| fields::EVERY_LAYER.iter().all(|every| every.name != field));
        outer
    }

    /// Writes the fields of a layer in a model.
    pub(super) fn put(
        fields: &mut Map<String, Value>,
        entry: &NamedLayer,
        trainable: bool,
        precision: Option<Policy>,
    ) {
        fields.insert("name".into(), entry.name.as_str().into());
        // What is so by default is left out, to keep files short.
        if !trainable {
            fields.insert("trainable".into(), false.into());
        }
        if !entry.training {
            fields.insert("training".into(), false.into());
        }
        if let Some(policy) = precision {
            fields.insert("precision".into(), policy.name().into());
        }
        if entry.checkpointed {
            fields.insert("checkpointed".into(), true.into());
        }
        if !entry.shardings.is_empty() {
            fields.insert("sharding".into(), sharding::write(&entry.shardings));
        }
    }

    /// Gives the layer its name, flags and policy.
    pub(super) fn apply(self, owner: &str, mut spec: LayerSpec) -> Result<LayerSpec> {
        if let Some(name) = self.name {
            let Some(text) = name.as_str() else {
                return Err(Error::user(format!(
                    "{owner}: `name`: expected text, got {name}"
                )));
            };
            check_name(text).map_err(|error| within(owner, "", error))?;
            spec = spec.named(text);
        }
        if let Some(trainable) = flag(owner, "trainable", self.trainable)? {
            spec = spec.trainable(trainable);
        }
        if let Some(training) = flag(owner, "training", self.training)? {
            spec = spec.training(training);
        }
        if let Some(checkpointed) = flag(owner, "checkpointed", self.checkpointed)? {
            spec.checkpointed = checkpointed;
        }
        if let Some(sharding) = &self.sharding {
            spec.shardings = sharding::read(owner, sharding)?;
        }
        if let Some(policy) = self.precision {
            let named = policy.as_str().map(Policy::from_name);
            let Some(Ok(policy)) = named else {
                let known = Policy::NAMES.join(", ");
                return Err(Error::user(format!(
                    "{owner}: `precision`: expected one of {known}, got {policy}"
                )));
            };
            spec = spec.precision(policy);
        }
        Ok(spec)
    }
}

fn flag(owner: &str, name: &str, value: Option<Value>) -> Result<Option<bool>> {
    match value {
        None => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(flag)),
        Some(other) => Err(Error::user(format!(
            "{owner}: `{name}`: expected true or false, got {other}"
        ))),
    }
}

#[cfg(test)]
#[path = "registry_tests.rs"]
mod tests;
