//! Models by name, with the architectures, layer names and numbers of parameters of Keras' applications.
//!
//! Each is settings with [`build`](ResNet50::build), or given as they are to a strategy's `compile`. What comes out is
//! a plain [`Model`]: a layer of another model, frozen or not, where that is wanted.
//!
//! ```
//! use phalanx::models::{FineTune, MobileNetV2, Pooling};
//!
//! let mut base = MobileNetV2::new().input([32, 32, 3]).alpha(0.35).include_top(false).build()?;
//! base.set_trainable(false);
//! let mut model = FineTune::new(base).build()?;
//! assert_eq!(model.outputs()[0].dims, [1]);
//! model.unfreeze("mobilenet_v2")?;
//! # Ok::<(), phalanx::Error>(())
//! ```

mod batch_norm_settings;
mod beam_search;
mod fine_tune;
mod image_head;
mod mlp;
mod mobilenet_v2;
mod nmt;
mod recommender;
mod resnet50;
mod transformer;
mod translator;

pub use beam_search::{BeamSearch, Hypothesis};
pub use fine_tune::FineTune;
pub use image_head::Pooling;
pub use mlp::Mlp;
pub use mobilenet_v2::MobileNetV2;
pub use nmt::TransformerNmt;
pub use recommender::{Recommender, RecommenderKind};
pub use resnet50::ResNet50;
pub use transformer::{EncoderHead, PositionEncoding, TransformerEncoder};
pub use translator::Translator;

use phalanx_graph::DType;
use serde_json::Value;

use crate::Result;
use crate::config::{self, Described, Description};
use crate::nn::{Input, LayerSpec, Model};

/// The kinds of model that [`layer_from_config`] accepts.
pub const KINDS: [&str; 2] = ["mobilenet_v2", "resnet50"];

/// A model of a kind as a layer, for examples of these dims, with settings as in JSON: `{"alpha": 0.35}`.
///
/// The settings are the fields of the model's type and the settings that every layer has, such as `trainable`. The dims are no
/// setting, since a stack of layers knows them.
///
/// # Errors
/// Unknown kinds and settings, with the nearest valid name; settings and dims that do not fit.
pub fn layer_from_config(kind: &str, settings: &Value, input: &[usize]) -> Result<LayerSpec> {
    let input = Input::new(input).dtype(DType::F32);
    crate::nn::with_outer_fields(kind, settings, |settings| match kind {
        "mobilenet_v2" => {
            let model = config::read(kind, &MobileNetV2::new(), settings)?;
            model.input(input).named(kind).build()
        }
        "resnet50" => {
            let model = config::read(kind, &ResNet50::new(), settings)?;
            model.input(input).named(kind).build()
        }
        _ => Err(config::unknown_kind("model", kind, &KINDS)),
    })
}

/// The models that [`layer_from_config`] knows, with their settings and defaults.
pub(crate) fn descriptions() -> Vec<Description> {
    vec![described(&MobileNetV2::new()), described(&ResNet50::new())]
}

fn described<T: Described>(template: &T) -> Description {
    let mut description = Description::of(template);
    description
        .settings
        .extend(crate::nn::every_layer_settings());
    description
}

/// What every model of this module has beside its own settings: a way to be compiled as it is.
macro_rules! into_model {
    ($($model:ty),*) => {
        $(impl crate::nn::IntoModel for $model {
            fn into_parts(
                self,
            ) -> Result<(Model, Option<Vec<phalanx_graph::HostTensor>>)> {
                Ok((self.build()?, None))
            }
        })*
    };
}
into_model!(
    FineTune,
    Mlp,
    MobileNetV2,
    Recommender,
    ResNet50,
    TransformerEncoder,
    TransformerNmt
);
