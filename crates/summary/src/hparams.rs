//! What TensorBoard's HParams tab shows: the settings of trainings beside their results.

use crate::message::Message;

/// The plugin of TensorBoard.
pub(crate) const PLUGIN: &str = "hparams";

/// A setting of a training.
#[derive(Clone, Debug, PartialEq)]
pub enum HParam {
    /// A number.
    Number(f64),
    /// A word.
    Text(String),
    /// Yes or no.
    Flag(bool),
}

/// A number that trainings are compared by: a tag, and the run below the folder of the training that has it, such as `validation`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HParamMetric {
    /// The tag of a scalar, such as `epoch_loss`.
    pub tag: String,
    /// The run within the folder of the session; empty for the folder itself.
    pub run: String,
    /// The name that is shown; the tag where it is empty.
    pub shown: String,
}

/// How a training ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionStatus {
    /// It did all it was asked for.
    Succeeded,
    /// An error ended it.
    Failed,
    /// It did not end.
    Running,
}

/// `DataType` of the plugin.
const fn data_type(value: &HParam) -> u64 {
    match value {
        HParam::Text(_) => 1,
        HParam::Flag(_) => 2,
        HParam::Number(_) => 3,
    }
}

/// An `Experiment`: which settings there are, and what to compare by.
pub(crate) fn experiment(
    created: f64,
    settings: &[(&str, HParam)],
    metrics: &[HParamMetric],
) -> Vec<u8> {
    Message::of(|data| {
        data.message(2, |experiment| {
            experiment.double(3, created);
            for (name, value) in settings {
                experiment.message(4, |info| {
                    info.text(1, name);
                    info.integer(4, data_type(value));
                });
            }
            for metric in metrics {
                experiment.message(5, |info| {
                    info.message(1, |name| {
                        name.text_if_any(1, &metric.run);
                        name.text(2, &metric.tag);
                    });
                    info.text_if_any(3, &metric.shown);
                });
            }
        });
    })
}

/// A `SessionStartInfo`: the settings of a training.
pub(crate) fn session_start(started: f64, group: &str, settings: &[(&str, HParam)]) -> Vec<u8> {
    Message::of(|data| {
        data.message(3, |info| {
            for (name, value) in settings {
                info.message(1, |entry| {
                    entry.text(1, name);
                    entry.message(2, |to| google_value(to, value));
                });
            }
            info.text(4, group);
            info.double(5, started);
        });
    })
}

/// A `SessionEndInfo`.
pub(crate) fn session_end(ended: f64, status: SessionStatus) -> Vec<u8> {
    let status = match status {
        SessionStatus::Succeeded => 1,
        SessionStatus::Failed => 2,
        SessionStatus::Running => 3,
    };
    Message::of(|data| {
        data.message(4, |info| {
            info.integer(1, status);
            info.double(2, ended);
        });
    })
}

/// A `google.protobuf.Value`.
fn google_value(to: &mut Message, value: &HParam) {
    match value {
        HParam::Number(number) => to.double(2, *number),
        HParam::Text(text) => to.text(3, text),
        HParam::Flag(flag) => to.integer(4, u64::from(*flag)),
    }
}
