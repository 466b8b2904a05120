//! A log that is watched, and which of its values are better.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::CallbackContext;
use crate::config::{Field, Kind};
use crate::metrics::Better;
use crate::{Error, Result};

/// Which values of a watched log are better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MonitorMode {
    /// As the loss or the metric says.
    #[default]
    Auto,
    /// The least.
    Min,
    /// The greatest.
    Max,
}

/// A log that is watched, and which of its values are better: what was seen of another tells nothing of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Watched {
    log: String,
    better: MonitorMode,
}

impl Watched {
    pub(super) fn new(log: &str, better: Better) -> Self {
        let better = match better {
            Better::Lower => MonitorMode::Min,
            Better::Higher => MonitorMode::Max,
        };
        Self {
            log: log.to_owned(),
            better,
        }
    }

    /// Whether a checkpoint remembers this log; a notice tells where it is another. Those of earlier versions do not say.
    pub(super) fn goes_on(
        &self,
        before: Option<&Self>,
        who: &str,
        cx: &CallbackContext<'_>,
    ) -> bool {
        let Some(before) = before.filter(|before| *before != self) else {
            return true;
        };
        cx.notice(&format!(
            "note: {who} watches {self}, and watched {before} before: it forgets the best value so far"
        ));
        false
    }
}

impl fmt::Display for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let better = match self.better {
            MonitorMode::Max => "most",
            MonitorMode::Min | MonitorMode::Auto => "least",
        };
        write!(f, "`{}` for the {better}", self.log)
    }
}

/// The setting of all that watch a log.
pub(super) const MODE: Field = Field::optional(
    "mode",
    Kind::OneOf(&["auto", "min", "max"]),
    "which values of the log are better: `min` the least, `max` the greatest, `auto` as its loss or metric says",
);

/// The setting of all that watch a log.
pub(super) const MONITOR: Field = Field::optional("monitor", Kind::Text, "the log that is watched");

impl MonitorMode {
    /// Which values of this log are better; `who` is the callback in errors.
    pub(super) fn better(self, who: &str, log: &str, cx: &CallbackContext<'_>) -> Result<Better> {
        match self {
            Self::Min => return Ok(Better::Lower),
            Self::Max => return Ok(Better::Higher),
            Self::Auto => {}
        }
        let known = cx.goals();
        let Some((_, better)) = known.iter().find(|(name, _)| name == log) else {
            return Err(unknown_log(who, log, &known, cx.validates()));
        };
        better.ok_or_else(|| {
            Error::user(format!(
                "{who} watches `{log}`, of which it is not known whether more is better; say so with `mode`, or with `Metric::better_when`"
            ))
        })
    }
}

/// The error of a log that no epoch has by itself: Keras warns in each epoch.
fn unknown_log(who: &str, log: &str, known: &[(String, Option<Better>)], validates: bool) -> Error {
    let names: Vec<&str> = known.iter().map(|(name, _)| &**name).collect();
    let hint = match validates {
        true => "",
        false => "; those that begin with val_ need a validation",
    };
    Error::user(format!(
        "{who} was given `{log}`, and the logs are {}; name one of them{hint}; of a log that a callback adds, say with `mode` which values are better",
        names.join(", ")
    ))
}

/// Whether a value is better than the reference by more than `min_delta`; every value is better than none.
///
/// Numbers are compared as f32, as Keras does: a change of exactly `min_delta` is then no improvement by the rounding of a
/// difference. What is not a number is better than nothing but no reference, and nothing is better than it.
pub(super) fn improves(better: Better, value: f64, min_delta: f64, reference: Option<f64>) -> bool {
    let Some(reference) = reference else {
        return true;
    };
    match better {
        Better::Lower => ((value + min_delta.abs()) as f32) < reference as f32,
        Better::Higher => ((value - min_delta.abs()) as f32) > reference as f32,
    }
}
