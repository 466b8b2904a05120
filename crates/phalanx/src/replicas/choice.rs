//! Which devices to start, as people write it.

use std::str::FromStr;

use phalanx_pjrt::Platform;

use super::devices::parsed;
use super::select_devices;
use crate::engine::{Engine, EngineOptions};
use crate::{Error, Result};

/// Which devices to start, as people write it: `cpu:4` divides the CPU into 4, `gpu` or `tpu` are all there are,
/// `gpu:0,gpu:2` are those two, and `cpu:0,cpu:1` the CPU in two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceChoice {
    text: String,
    platform: Platform,
    cpu_devices: usize,
    names: Vec<String>,
}

/// More parts of a CPU than this are taken for a mistake.
pub(crate) const MOST_CPU_DEVICES: usize = 1024;

impl DeviceChoice {
    /// Whose plugin drives them.
    #[must_use]
    pub const fn platform(&self) -> Platform {
        self.platform
    }

    /// `options` for an engine that has them.
    #[must_use]
    pub fn options(&self, options: EngineOptions) -> EngineOptions {
        EngineOptions {
            platform: self.platform,
            cpu_devices: self.cpu_devices,
            ..options
        }
    }

    /// Their positions in an engine.
    ///
    /// # Errors
    /// When it has not all of them; the error lists those it has.
    pub fn of(&self, engine: &Engine) -> Result<Vec<usize>> {
        if self.names.is_empty() {
            return Ok((0..engine.devices()).collect());
        }
        select_devices(engine, &self.names)
    }
}

impl FromStr for DeviceChoice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = |why: String| {
            Error::user(format!(
                "devices `{text}`: {why}; write `cpu:4` for the CPU in 4 parts, `gpu` for all GPUs, or names as in `gpu:0,gpu:1`"
            ))
        };
        let names: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
        let mut found = Vec::new();
        for name in &names {
            found.push(parsed(name).ok_or_else(|| wrong(format!("`{name}` is no device")))?);
        }
        let kind = found[0].0;
        if found.iter().any(|(other, _)| *other != kind) {
            return Err(wrong("devices of two kinds do not train together".into()));
        }
        let highest = found.iter().map(|(_, number)| *number).max().unwrap_or(0);
        // `cpu:0` is a name: there is no dividing into 0.
        let is_count = kind == "cpu" && names.len() == 1 && highest > 0;
        let cpu_devices = match kind {
            "cpu" if is_count => highest,
            "cpu" => highest.saturating_add(1),
            _ => 1,
        };
        if kind == "cpu" && !(1..=MOST_CPU_DEVICES).contains(&cpu_devices) {
            return Err(wrong(format!(
                "the CPU can be divided into 1 to {MOST_CPU_DEVICES}"
            )));
        }
        let is_rocm = names[0].to_ascii_lowercase().contains("rocm");
        let all = names.len() == 1 && (is_count || !names[0].contains(':'));
        Ok(Self {
            text: text.to_owned(),
            platform: match kind {
                "cpu" => Platform::Cpu,
                "tpu" => Platform::Tpu,
                _ if is_rocm => Platform::Rocm,
                _ => Platform::Cuda,
            },
            cpu_devices,
            names: if all { Vec::new() } else { names },
        })
    }
}

impl std::fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.text.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_divides_the_cpu_and_names_choose() {
        let read = |text: &str| {
            let choice: DeviceChoice = text.parse().unwrap();
            (choice.platform, choice.cpu_devices, choice.names.len())
        };
        assert_eq!(read("cpu:4"), (Platform::Cpu, 4, 0));
        assert_eq!(read("cpu"), (Platform::Cpu, 1, 0));
        assert_eq!(read("/cpu:0"), (Platform::Cpu, 1, 1));
        assert_eq!(read("CPU:0, cpu:3"), (Platform::Cpu, 4, 2));
        assert_eq!(read("gpu"), (Platform::Cuda, 1, 0));
        assert_eq!(read("gpu:1"), (Platform::Cuda, 1, 1));
        assert_eq!(read("rocm"), (Platform::Rocm, 1, 0));
        assert_eq!(read("tpu"), (Platform::Tpu, 1, 0));
    }

    #[test]
    fn what_is_no_choice_is_refused_with_what_to_write() {
        for (text, why) in [
            ("", "`` is no device"),
            ("cpu:100000", "divided into 1 to 1024"),
            ("cpu:1,gpu:0", "devices of two kinds"),
            ("gpu:x", "`gpu:x` is no device"),
        ] {
            let error = text.parse::<DeviceChoice>().unwrap_err().to_string();
            assert!(
                error.contains(why) && error.contains("write `cpu:4`"),
                "{error}"
            );
        }
    }
}
