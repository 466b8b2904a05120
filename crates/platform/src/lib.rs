//! The kinds of device that programs are compiled for, their names, and where their plugins come from.

#![forbid(unsafe_code)]

use std::fmt;
use std::str::FromStr;

/// A kind of device that XLA compiles for, through a PJRT plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Platform {
    /// Host processors.
    Cpu,
    /// NVIDIA GPUs.
    Cuda,
    /// AMD GPUs.
    Rocm,
    /// Google TPUs.
    Tpu,
    /// Intel GPUs.
    Oneapi,
}

impl Platform {
    /// All platforms, in the order in which they are listed.
    pub const ALL: [Self; 5] = [Self::Cpu, Self::Cuda, Self::Rocm, Self::Tpu, Self::Oneapi];

    /// The name, such as `cuda`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
            Self::Rocm => "rocm",
            Self::Tpu => "tpu",
            Self::Oneapi => "oneapi",
        }
    }

    /// The environment variable that names this platform's plugin, such as `PHALANX_PJRT_CUDA`.
    #[must_use]
    pub fn variable(self) -> String {
        format!("PHALANX_PJRT_{}", self.name().to_uppercase())
    }

    /// The command that installs this platform's plugin.
    #[must_use]
    pub fn install_command(self) -> &'static str {
        match self {
            Self::Cpu => "phalanx plugin install cpu",
            Self::Cuda => "pip install 'jax[cuda13]'",
            Self::Rocm => "pip install jax-rocm7-pjrt",
            Self::Tpu => "pip install libtpu",
            Self::Oneapi => "pip install jax-oneapi-pjrt",
        }
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Platform {
    type Err = UnknownPlatform;

    /// Accepts the names of [`Platform::ALL`], and `gpu` for `cuda`.
    fn from_str(text: &str) -> Result<Self, UnknownPlatform> {
        let lower = text.to_lowercase();
        let name = if lower == "gpu" { "cuda" } else { &lower };
        Self::ALL
            .into_iter()
            .find(|platform| platform.name() == name)
            .ok_or_else(|| UnknownPlatform(text.into()))
    }
}

/// A platform name that is none of ours.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown platform `{0}`; use one of cpu, cuda, rocm, tpu, oneapi")]
pub struct UnknownPlatform(pub String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn platform_names_parse() {
        assert_eq!("GPU".parse(), Ok(Platform::Cuda));
        assert_eq!("tpu".parse(), Ok(Platform::Tpu));
        assert!(
            "metal"
                .parse::<Platform>()
                .unwrap_err()
                .to_string()
                .contains("cpu, cuda")
        );
    }
}
