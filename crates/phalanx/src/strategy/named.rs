//! Strategies as training files write them.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{CentralStorageStrategy, MirroredStrategy, OneDeviceStrategy, Strategy};
use crate::engine::{Engine, EngineOptions};
use crate::replicas::{DeviceChoice, Reduction};
use crate::{Result, config};

/// A strategy as a training file writes it: a name and settings, and the devices that it is for.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedStrategy {
    kind: Kind,
    devices: Option<DeviceChoice>,
    settings: Settings,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    OneDevice,
    Mirrored,
    CentralStorage,
}

/// As they are written; `None` where nothing is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Settings {
    devices: Option<String>,
    parameter_device: Option<String>,
    reduction: Value,
    shares: Option<Vec<u32>>,
    verify_every: Option<u64>,
}

/// One device when one is there, else all of them mirrored.
impl Default for NamedStrategy {
    fn default() -> Self {
        Self {
            kind: Kind::Mirrored,
            devices: None,
            settings: Settings::default(),
        }
    }
}

impl NamedStrategy {
    /// The names of strategies.
    pub const KINDS: [&'static str; 3] = ["one_device", "mirrored", "central_storage"];

    /// The strategy of this name with these settings: `devices` (see [`DeviceChoice`]), `reduction` (see
    /// [`Reduction::from_config`]), `shares` (a number for each replica), `verify_every` (a number of steps) and, of
    /// `central_storage`, `parameter_device`.
    ///
    /// # Errors
    /// An unknown name or setting (naming the nearest), or a value that makes no sense.
    pub fn from_config(kind: &str, fields: &Value) -> Result<Self> {
        let known = match kind {
            "one_device" => Kind::OneDevice,
            "mirrored" => Kind::Mirrored,
            "central_storage" => Kind::CentralStorage,
            _ => return Err(config::unknown_kind("strategy", kind, &Self::KINDS)),
        };
        let settings: Settings = config::read(kind, &Settings::default(), &[], fields)?;
        let refused = |name: &str, is_there: bool| {
            let message = format!("{kind}: `{name}` does not apply to this strategy; leave it out");
            if is_there {
                Err(crate::Error::user(message))
            } else {
                Ok(())
            }
        };
        if known != Kind::CentralStorage {
            refused("parameter_device", settings.parameter_device.is_some())?;
        }
        if known == Kind::OneDevice {
            refused("reduction", !settings.reduction.is_null())?;
            refused("shares", settings.shares.is_some())?;
        }
        if known != Kind::Mirrored {
            refused("verify_every", settings.verify_every.is_some())?;
        }
        Reduction::from_config(&settings.reduction)?;
        let devices = settings.devices.as_deref().map(str::parse);
        Ok(Self {
            kind: known,
            devices: devices.transpose()?,
            settings,
        })
    }

    /// The same on these devices, whatever the settings say.
    #[must_use]
    pub fn on_devices(mut self, devices: DeviceChoice) -> Self {
        self.devices = Some(devices);
        self
    }

    /// The devices it is for, if it says so.
    #[must_use]
    pub const fn devices(&self) -> Option<&DeviceChoice> {
        self.devices.as_ref()
    }

    /// Starts the devices and what uses them.
    ///
    /// # Errors
    /// When the devices do not start (see [`Engine::new`]), one that is named is not there, or shares do not fit them.
    pub fn start(&self, options: EngineOptions) -> Result<Box<dyn Strategy>> {
        let options = match &self.devices {
            Some(devices) => devices.options(options),
            None => options,
        };
        let engine = Engine::new(&options)?;
        let devices = match &self.devices {
            Some(devices) => devices.of(&engine)?,
            None => (0..engine.devices()).collect(),
        };
        let names: Vec<String> = devices.iter().map(|&d| engine.device_name(d)).collect();
        let reduction = Reduction::from_config(&self.settings.reduction)?;
        Ok(match self.kind {
            Kind::OneDevice if names.len() > 1 => {
                return Err(crate::Error::user(format!(
                    "`one_device` trains on one device, and `devices` are {}; name one, or use `mirrored`",
                    names.join(", ")
                )));
            }
            Kind::OneDevice => Box::new(OneDeviceStrategy::device(&engine, &names[0])?),
            Kind::Mirrored => {
                let mut strategy = MirroredStrategy::on(&engine)
                    .devices(names)?
                    .reduction(reduction)
                    .verify_every(self.settings.verify_every.unwrap_or(0));
                if let Some(shares) = &self.settings.shares {
                    strategy = strategy.shares(shares)?;
                }
                Box::new(strategy)
            }
            Kind::CentralStorage => {
                let mut strategy = CentralStorageStrategy::on(&engine)
                    .compute_devices(names)?
                    .reduction(reduction);
                if let Some(device) = &self.settings.parameter_device {
                    strategy = strategy.parameter_device(device)?;
                }
                if let Some(shares) = &self.settings.shares {
                    strategy = strategy.shares(shares)?;
                }
                Box::new(strategy)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn settings_that_make_no_sense_are_named() {
        let message = |kind, fields| {
            let read = NamedStrategy::from_config(kind, &fields);
            read.unwrap_err().to_string()
        };
        for (kind, fields, expected) in [
            (
                "mirored",
                json!({}),
                "unknown strategy `mirored`; did you mean `mirrored`?",
            ),
            (
                "mirrored",
                json!({"device": "cpu:2"}),
                "mirrored: unknown field `device`; did you mean `devices`?",
            ),
            (
                "mirrored",
                json!({"devices": "disk:1"}),
                "devices `disk:1`: `disk:1` is no device",
            ),
            (
                "one_device",
                json!({"shares": [1, 2]}),
                "one_device: `shares` does not apply to this strategy",
            ),
            (
                "mirrored",
                json!({"parameter_device": "cpu:0"}),
                "mirrored: `parameter_device` does not apply",
            ),
        ] {
            let found = message(kind, fields);
            assert!(found.contains(expected), "{found}");
        }
    }
}
