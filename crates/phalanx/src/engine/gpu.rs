//! The options with which a GPU plugin starts its devices.

use phalanx_pjrt::{OptionValue, Platform};

use crate::{Error, Result};

/// Which GPUs a process uses, and how it takes their memory; what is left out is the plugin's choice.
///
/// XLA's plugins take 75 % of the memory of every GPU at the start. Several processes on one GPU need a part each, or
/// `preallocate: Some(false)`, which takes memory as it is needed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuOptions {
    /// The GPUs to use, by their numbers in this machine; all by default.
    pub visible_devices: Option<Vec<u32>>,
    /// The share of a GPU's memory to take, above 0 and at most 1.
    pub memory_fraction: Option<f32>,
    /// Whether the memory is taken at the start; `false` lets it grow.
    pub preallocate: Option<bool>,
    /// How memory is divided.
    pub allocator: Option<GpuAllocator>,
}

/// How the memory of a GPU is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuAllocator {
    /// XLA's own, which joins free neighbours.
    Bfc,
    /// CUDA's asynchronous one.
    CudaAsync,
    /// The platform's, for each buffer by itself: slow, and gives memory back.
    Platform,
}

impl GpuOptions {
    /// The options of the plugin of a platform.
    ///
    /// # Errors
    /// When there are options and the platform has no GPUs, or an option makes no sense.
    pub(super) fn of_client(&self, platform: Platform) -> Result<Vec<(&'static str, OptionValue)>> {
        if *self == Self::default() {
            return Ok(Vec::new());
        }
        if !matches!(platform, Platform::Cuda | Platform::Rocm) {
            return Err(Error::User(format!(
                "there are options for GPUs, and the devices are of the platform {platform}; leave `EngineOptions::gpu` out"
            )));
        }
        self.check().map_err(Error::User)?;
        let visible = self.visible_devices.as_ref();
        let visible = visible.map(|devices| devices.iter().map(|&device| device.into()).collect());
        let allocator = self.allocator.map(|allocator| match allocator {
            GpuAllocator::Bfc => "bfc",
            GpuAllocator::CudaAsync => "cuda_async",
            GpuAllocator::Platform => "platform",
        });
        let options = [
            ("visible_devices", visible.map(OptionValue::Ints)),
            (
                "memory_fraction",
                self.memory_fraction.map(OptionValue::Float),
            ),
            ("preallocate", self.preallocate.map(OptionValue::Bool)),
            (
                "allocator",
                allocator.map(|name| OptionValue::Text(name.into())),
            ),
        ];
        let given = options.into_iter();
        Ok(given
            .filter_map(|(name, value)| Some((name, value?)))
            .collect())
    }

    fn check(&self) -> std::result::Result<(), String> {
        if let Some(fraction) = self.memory_fraction
            && !(fraction > 0.0 && fraction <= 1.0)
        {
            return Err(format!(
                "`memory_fraction` is {fraction}, expected a number above 0, up to 1; the plugins take 0.75 by themselves"
            ));
        }
        let Some(devices) = &self.visible_devices else {
            return Ok(());
        };
        let different: std::collections::BTreeSet<_> = devices.iter().collect();
        if devices.is_empty() || different.len() < devices.len() {
            return Err(format!(
                "`visible_devices` is {devices:?}, expected numbers of GPUs, each once; leave it out to use all"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_is_told_what_is_given() {
        let none = GpuOptions::default();
        assert_eq!(none.of_client(Platform::Cpu).unwrap(), []);
        assert_eq!(none.of_client(Platform::Cuda).unwrap(), []);
        let all = GpuOptions {
            visible_devices: Some(vec![2, 0]),
            memory_fraction: Some(0.4),
            preallocate: Some(false),
            allocator: Some(GpuAllocator::CudaAsync),
        };
        let expected = [
            ("visible_devices", OptionValue::Ints(vec![2, 0])),
            ("memory_fraction", OptionValue::Float(0.4)),
            ("preallocate", OptionValue::Bool(false)),
            ("allocator", OptionValue::Text("cuda_async".into())),
        ];
        for platform in [Platform::Cuda, Platform::Rocm] {
            assert_eq!(all.of_client(platform).unwrap(), expected);
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let told = |options: GpuOptions, platform: Platform, part: &str| {
            let error = options.of_client(platform).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        };
        let grows = GpuOptions {
            preallocate: Some(false),
            ..GpuOptions::default()
        };
        told(grows, Platform::Cpu, "leave `EngineOptions::gpu` out");
        for fraction in [0.0, -0.5, 1.5, f32::NAN, f32::INFINITY] {
            let options = GpuOptions {
                memory_fraction: Some(fraction),
                ..GpuOptions::default()
            };
            told(options, Platform::Cuda, "`memory_fraction` is");
        }
        for devices in [vec![], vec![1, 1]] {
            let options = GpuOptions {
                visible_devices: Some(devices),
                ..GpuOptions::default()
            };
            told(
                options,
                Platform::Cuda,
                "expected numbers of GPUs, each once",
            );
        }
    }
}
