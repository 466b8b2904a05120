//! In which element types a model computes.

use phalanx_graph::{DType, Tensor};

use crate::{Error, Result, config};

/// In which element types a model computes: Keras' dtype policies.
///
/// Under a mixed policy layers compute in a 16-bit float: their inputs and the variables they use are converted on the
/// way in. The variables themselves, what the optimizer keeps, the statistics of normalizations, softmax, the outputs
/// of the model, losses and metrics stay f32, and so do the gradients that change the variables. Unlike Keras the
/// outputs of the model are f32 whatever its last layer is, and there is no global policy: it is a setting of
/// [`Compile`](crate::fit::Compile), which [`LayerSpec::precision`](super::LayerSpec::precision) overrules for a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// All in f32; `float32`.
    #[default]
    Float32,
    /// bfloat16: half the memory, the range of f32; `mixed_bfloat16`.
    MixedBfloat16,
    /// IEEE half precision, whose small range asks for a [loss scale](crate::fit::LossScale); `mixed_float16`.
    MixedFloat16,
}

impl Policy {
    /// The names, as Keras has them.
    pub const NAMES: [&'static str; 3] = ["float32", "mixed_bfloat16", "mixed_float16"];

    /// What layers compute in.
    #[must_use]
    pub const fn compute_dtype(self) -> DType {
        match self {
            Self::Float32 => DType::F32,
            Self::MixedBfloat16 => DType::Bf16,
            Self::MixedFloat16 => DType::F16,
        }
    }

    /// The name in configurations.
    #[must_use]
    pub const fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    /// The policy of a [name](Self::NAMES).
    ///
    /// # Errors
    /// When there is none of this name; the error has the nearest.
    pub fn from_name(name: &str) -> Result<Self> {
        match name {
            "float32" => Ok(Self::Float32),
            "mixed_bfloat16" => Ok(Self::MixedBfloat16),
            "mixed_float16" => Ok(Self::MixedFloat16),
            _ => Err(Error::user(format!(
                "unknown precision `{name}`; {}",
                config::suggest(name, Self::NAMES.into_iter())
            ))),
        }
    }
}

/// The tensor with 16-bit floats as f32: what variables and statistics are kept in.
#[track_caller]
pub(super) fn widened(x: &Tensor) -> Tensor {
    x.convert(x.dtype().wide())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back() {
        for name in Policy::NAMES {
            assert_eq!(Policy::from_name(name).unwrap().name(), name);
        }
        let error = Policy::from_name("mixed_bfloat").unwrap_err().to_string();
        assert!(error.contains("did you mean `mixed_bfloat16`?"), "{error}");
    }
}
