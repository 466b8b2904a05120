//! Models that are ready to train, with the layers, settings and numbers of parameters of their originals.

mod transformer;

pub use transformer::{Head, Positions, TransformerEncoder, transformer_encoder};
