//! Models by name, with the architectures, layer names and numbers of parameters of Keras' applications.
//!
//! Each is settings with [`build`](ResNet50::build), or given as they are to a strategy's `compile`. What comes out is
//! a plain [`Model`](crate::nn::Model): a layer of another model, frozen or not, where that is wanted.
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

mod beam;
mod fine_tune;
mod head;
mod mlp;
mod mobilenet_v2;
mod nmt;
mod recommender;
mod resnet50;
mod transformer;
mod translator;

pub use beam::{BeamSearch, Hypothesis};
pub use fine_tune::FineTune;
pub use head::Pooling;
pub use mlp::Mlp;
pub use mobilenet_v2::MobileNetV2;
pub use nmt::TransformerNmt;
pub use recommender::{Interest, Recommender};
pub use resnet50::ResNet50;
pub use transformer::{Head, Positions, TransformerEncoder};
pub use translator::Translator;

/// What every model of this module has beside its own settings: a way to be compiled as it is.
macro_rules! into_model {
    ($($model:ty),*) => {
        $(impl crate::nn::IntoModel for $model {
            fn into_parts(
                self,
            ) -> crate::Result<(crate::nn::Model, Option<Vec<phalanx_graph::HostTensor>>)> {
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
