//! What happens to a job.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use phalanx_cluster::launch::How;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::State;
use crate::spec::JobName;

/// A job as it was submitted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Submitted {
    /// Its name, which no other job has had.
    pub name: JobName,
    /// The project that it was submitted to.
    pub project: String,
    /// AI Platform's `trainingInput`, as it was given.
    pub training_input: Json,
    /// Our keys, as they were given.
    pub phalanx: Json,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// The folder in which its tasks start.
    pub directory: PathBuf,
    /// The variables that its tasks start with.
    pub environment: BTreeMap<String, String>,
}

/// One event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// It was submitted; always the first event, and never a later one.
    Submitted {
        /// What was.
        job: Box<Submitted>,
    },
    /// There is room for it.
    Prepared,
    /// Its tasks are started once more.
    Attempt {
        /// From 1.
        number: u32,
        /// Why the one before did not do, if there was one.
        why: Option<String>,
    },
    /// Its tasks have started.
    Running,
    /// A scheduler outside has taken it, or one of its trials, or forgotten it.
    Handle {
        /// What it is called there.
        handle: Option<String>,
        /// The trial, in a search.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        trial: Option<u32>,
    },
    /// A task has started.
    TaskStarted {
        /// Its name.
        task: String,
        /// The attempt that it belongs to.
        attempt: u32,
        /// Where it runs.
        place: String,
    },
    /// A task has ended.
    TaskEnded {
        /// Its name.
        task: String,
        /// How.
        end: TaskEnd,
    },
    /// An attempt has failed.
    FirstFailure {
        /// By which task.
        failure: FirstFailure,
    },
    /// A trial has changed.
    Trial {
        /// The trial as it is now.
        trial: Trial,
    },
    /// It has ended as it should.
    Succeeded,
    /// It has failed.
    Failed {
        /// Why.
        why: String,
    },
    /// It is to end.
    Cancelling {
        /// Why.
        why: String,
    },
    /// It was cancelled once more: what is left of it ends at once.
    Hurried,
    /// All of its processes have gone.
    Cancelled,
    /// Its labels were replaced.
    Labelled {
        /// By these.
        labels: BTreeMap<String, String>,
    },
}

impl Event {
    /// The state that an event leads to, if it changes the state.
    #[must_use]
    pub const fn state(&self) -> Option<State> {
        match self {
            Self::Submitted { .. } => Some(State::Queued),
            Self::Prepared => Some(State::Preparing),
            Self::Running => Some(State::Running),
            Self::Succeeded => Some(State::Succeeded),
            Self::Failed { .. } => Some(State::Failed),
            Self::Cancelling { .. } => Some(State::Cancelling),
            Self::Cancelled => Some(State::Cancelled),
            _ => None,
        }
    }
}

/// How a task ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskEnd {
    /// Its exit code, unless a signal ended it.
    pub code: Option<u8>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Whether it had been told to end.
    pub told: bool,
}

impl TaskEnd {
    /// The end with an exit code.
    #[must_use]
    pub const fn code(code: u8) -> Self {
        Self {
            code: Some(code),
            signal: None,
            told: false,
        }
    }

    /// The end that a shell or an engine of containers tells by an exit code: 128 and the number of the signal that ended a process. 143 stays a
    /// code: a training ends with it that was told to end and saved.
    #[must_use]
    pub fn told_by_code(code: u8) -> Self {
        match code {
            143 => Self::code(code),
            129..=192 => Self {
                code: None,
                signal: Some(i32::from(code - 128)),
                told: false,
            },
            // What has no signal's number is a program's own code, such as 255.
            _ => Self::code(code),
        }
    }

    /// The end in the words of the supervisor of workers.
    #[must_use]
    pub fn how(self) -> How {
        match (self.code, self.signal) {
            (Some(code), _) => How::Code(code),
            (None, signal) => How::Signal(signal.unwrap_or(0)),
        }
    }

    /// Whether it failed by itself.
    #[must_use]
    pub fn failed(self) -> bool {
        self.code != Some(0) && !self.told
    }
}

impl fmt::Display for TaskEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.told && self.signal == Some(9) {
            return f.write_str("was told to end, and ended by SIGKILL when it had not in time");
        }
        self.how().fmt(f)
    }
}

/// The task whose failure made the others fail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstFailure {
    /// Its name.
    pub task: String,
    /// Its number among the workers; none for a parameter server or an evaluator.
    pub rank: Option<usize>,
    /// The attempt.
    pub attempt: u32,
    /// How it ended.
    pub end: TaskEnd,
    /// Its last lines, 20 at most.
    pub last_lines: Vec<String>,
    /// All of its output.
    pub log: PathBuf,
}

impl fmt::Display for FirstFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.task)?;
        if let Some(rank) = self.rank {
            write!(f, " (rank {rank})")?;
        }
        write!(f, " {}", self.end)
    }
}

/// A trial of a search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// From 1.
    pub number: u32,
    /// Values by parameter, as the program was given them.
    pub values: BTreeMap<String, String>,
    /// How it goes.
    pub state: TrialState,
    /// The last value of the metric, with its step.
    pub metric: Option<(i64, f64)>,
    /// All values of the metric, by step.
    pub metrics: Vec<(i64, f64)>,
    /// Milliseconds since 1970.
    pub started: u64,
    /// Of its end.
    pub ended: Option<u64>,
}

/// How a trial goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum TrialState {
    /// It runs.
    Running,
    /// It has ended with a value.
    Succeeded,
    /// It was worse than the others and was ended.
    Stopped,
    /// It has failed, or ended without a value, or the last one is not finite.
    Failed,
    /// It was ended with the search before its own end.
    Cancelled,
}

impl TrialState {
    /// AI Platform's name of it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Running => "RUNNING",
            Self::Succeeded | Self::Stopped => "SUCCEEDED",
            Self::Failed => "FAILED",
            Self::Cancelled => "CANCELLED",
        }
    }
}
