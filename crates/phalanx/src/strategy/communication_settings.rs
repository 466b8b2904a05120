//! What a training file says of how processes communicate.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::communication::{CommunicationImplementation, CommunicationOptions};
use crate::config::{self, Component, Described, Field, Kind};
use crate::{Error, Result};

/// As it is written; times in seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct CommunicationSettings {
    implementation: Implementation,
    timeout: f64,
    join_timeout: f64,
    recover_within: f64,
}

/// [`CommunicationImplementation`] as it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Implementation {
    Auto,
    Ring,
    Mpi,
    Nccl,
}

impl Default for CommunicationSettings {
    fn default() -> Self {
        Self {
            implementation: Implementation::Auto,
            timeout: 60.0,
            join_timeout: 300.0,
            recover_within: 60.0,
        }
    }
}

impl Described for CommunicationSettings {
    const COMPONENT: Component = Component {
        name: "communication",
        doc: "how processes communicate",
        fields: &[
            Field::optional(
                "implementation",
                Kind::OneOf(&["auto", "ring", "mpi", "nccl"]),
                "what carries values: `auto` is MPI where its launcher started the processes, else `ring`, our own exchanges",
            ),
            Field::optional(
                "timeout",
                Kind::ABOVE_ZERO,
                "the longest that an exchange waits for another process, in seconds: longer than they may be apart",
            ),
            Field::optional(
                "join_timeout",
                Kind::ABOVE_ZERO,
                "the longest that processes wait for all to be there, in seconds",
            ),
            Field::optional(
                "recover_within",
                Kind::AT_LEAST_ZERO,
                "how long the others wait for a worker that was lost, in seconds; 0 ends them at once. `phalanx launch` has an option of its own",
            ),
        ],
    };
}

impl CommunicationSettings {
    /// The settings that [`options`](Self::options) reads.
    pub(super) const FIELDS: &'static [Field] = Self::COMPONENT.fields;

    /// The defaults of all.
    pub(super) fn defaults() -> Value {
        config::write("communication", &Self::default())
    }

    /// The options with these fields, others as by default.
    pub(super) fn options(fields: &Value) -> Result<CommunicationOptions> {
        let read: Self = config::read("communication", &Self::default(), fields)?;
        let seconds = |name: &str, seconds: f64| {
            Duration::try_from_secs_f64(seconds).map_err(|why| {
                Error::user(format!(
                    "communication: `{name}` is {seconds} seconds: {why}; give a smaller number"
                ))
            })
        };
        Ok(CommunicationOptions::new()
            .implementation(match read.implementation {
                Implementation::Auto => CommunicationImplementation::Auto,
                Implementation::Ring => CommunicationImplementation::Ring,
                Implementation::Mpi => CommunicationImplementation::Mpi,
                Implementation::Nccl => CommunicationImplementation::Nccl,
            })
            .timeout(seconds("timeout", read.timeout)?)
            .join_timeout(seconds("join_timeout", read.join_timeout)?)
            .recover_within(seconds("recover_within", read.recover_within)?))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_defaults_are_those_of_the_options() {
        let read = |fields| format!("{:?}", CommunicationSettings::options(&fields).unwrap());
        let default = format!("{:?}", CommunicationOptions::default());
        assert_eq!(read(Value::Null), default);
        assert_eq!(read(CommunicationSettings::defaults()), default);
        let all = json!({ "implementation": "ring", "timeout": 1.5, "join_timeout": 2, "recover_within": 0 });
        let expected = CommunicationOptions::new()
            .implementation(CommunicationImplementation::Ring)
            .timeout(Duration::from_millis(1500))
            .join_timeout(Duration::from_secs(2))
            .recover_within(Duration::ZERO);
        assert_eq!(read(all), format!("{expected:?}"));
    }

    #[test]
    fn each_mistake_is_named() {
        for (fields, said) in [
            (json!({ "timeout": 0 }), "timeout"),
            (json!({ "timeout": 1e30 }), "smaller number"),
            (json!({ "implementation": "gloo" }), "implementation"),
            (json!({ "wire": "bf16" }), "wire"),
        ] {
            let error = CommunicationSettings::options(&fields).unwrap_err();
            assert!(error.to_string().contains(said), "{error}");
        }
    }
}
