//! The life of a job as a pure state machine: events in, state out; no clocks, no files.
//!
//! A job is QUEUED until there is room, PREPARING until its first task has started, RUNNING until it has ended by itself, and
//! CANCELLING from the wish to end it until all of its processes have gone.

mod event;
mod retry;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use event::{Event, FirstFailure, Submitted, TaskEnd, Trial, TrialState};
pub use retry::{Budget, Verdict, is_tried_again, verdict};

use crate::spec::JobName;

/// The states of a job, by AI Platform's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum State {
    /// It waits for room.
    Queued,
    /// Its tasks are about to start.
    Preparing,
    /// Its tasks have started.
    Running,
    /// It has ended as it should.
    Succeeded,
    /// It has failed.
    Failed,
    /// It is being ended.
    Cancelling,
    /// It was ended.
    Cancelled,
}

impl State {
    /// All states.
    pub const ALL: [Self; 7] = [
        Self::Queued,
        Self::Preparing,
        Self::Running,
        Self::Succeeded,
        Self::Failed,
        Self::Cancelling,
        Self::Cancelled,
    ];

    /// AI Platform's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queued => "QUEUED",
            Self::Preparing => "PREPARING",
            Self::Running => "RUNNING",
            Self::Succeeded => "SUCCEEDED",
            Self::Failed => "FAILED",
            Self::Cancelling => "CANCELLING",
            Self::Cancelled => "CANCELLED",
        }
    }

    /// Whether nothing changes any more.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled)
    }

    /// Whether the next state may be this one.
    #[must_use]
    pub const fn may_become(self, next: Self) -> bool {
        use State::{Cancelled, Cancelling, Failed, Preparing, Queued, Running, Succeeded};
        match self {
            Queued => matches!(next, Preparing | Cancelling | Failed),
            Preparing => matches!(next, Running | Cancelling | Failed),
            Running => matches!(next, Succeeded | Failed | Cancelling),
            Cancelling => matches!(next, Cancelled),
            Succeeded | Failed | Cancelled => false,
        }
    }
}

/// An event that cannot happen in a state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the job {job} is {}, and cannot become {}", from.name(), to.name())]
pub struct Refused {
    /// The job.
    pub job: JobName,
    /// Its state.
    pub from: State,
    /// What was wished.
    pub to: State,
}

/// All that is known of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Life {
    /// What was submitted.
    pub job: Submitted,
    /// The state.
    pub state: State,
    /// Milliseconds since 1970 of the submission.
    pub created: u64,
    /// Of the first start of its tasks.
    pub started: Option<u64>,
    /// Of the end.
    pub ended: Option<u64>,
    /// Why it has failed, or is being ended.
    pub error: Option<String>,
    /// Labels as they are now.
    pub labels: BTreeMap<String, String>,
    /// How often its tasks have been started, over all of its trials.
    pub attempt: u32,
    /// What the scheduler outside calls it.
    pub handle: Option<String>,
    /// What the scheduler outside calls its trials, those that it has.
    pub trial_handles: BTreeMap<u32, String>,
    /// Whether it is to end without any more time.
    pub hurried: bool,
    /// Tasks by name; a task of a trial has the trial's number before its own name, as in `3/worker-0`.
    pub tasks: BTreeMap<String, TaskLife>,
    /// Trials by number, from 1.
    pub trials: BTreeMap<u32, Trial>,
    /// The task that failed first, of the last failed attempt.
    pub failure: Option<FirstFailure>,
    /// The number of events so far.
    pub revision: u64,
}

/// A task of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskLife {
    /// The attempt that it belongs to.
    pub attempt: u32,
    /// Where it runs: a process's number, a node, a pod.
    pub place: String,
    /// Milliseconds since 1970.
    pub started: u64,
    /// How often it was started again by itself within the attempt, of an elastic job.
    #[serde(default)]
    pub restarts: u32,
    /// How it ended.
    pub end: Option<TaskEnd>,
}

impl Life {
    /// The life of a job that was submitted.
    #[must_use]
    pub fn new(at: u64, job: Submitted) -> Self {
        Self {
            labels: job.labels.clone(),
            job,
            state: State::Queued,
            created: at,
            started: None,
            ended: None,
            error: None,
            attempt: 0,
            handle: None,
            trial_handles: BTreeMap::new(),
            hurried: false,
            tasks: BTreeMap::new(),
            trials: BTreeMap::new(),
            failure: None,
            revision: 1,
        }
    }

    /// What follows from an event at a time in milliseconds since 1970.
    ///
    /// # Errors
    /// It cannot happen in this state; nothing is changed.
    pub fn apply(&mut self, at: u64, event: Event) -> Result<(), Refused> {
        // The clock may have been set back meanwhile, and nothing ends before it began.
        let at = at.max(self.started.unwrap_or(self.created));
        if let Some(next) = event.state() {
            if !self.state.may_become(next) {
                return Err(self.refused(next));
            }
            self.state = next;
            match next {
                State::Running => self.started = Some(at),
                next if next.is_final() => self.ended = Some(at),
                _ => {}
            }
        } else if self.state.is_final() && !matches!(event, Event::Labelled { .. }) {
            return Err(self.refused(State::Running));
        }
        self.revision += 1;
        self.note(at, event);
        Ok(())
    }

    fn refused(&self, to: State) -> Refused {
        Refused {
            job: self.job.name.clone(),
            from: self.state,
            to,
        }
    }

    fn note(&mut self, at: u64, event: Event) {
        match event {
            Event::Submitted { .. }
            | Event::Prepared
            | Event::Running
            | Event::Succeeded
            | Event::Cancelled => {}
            Event::Attempt { number, .. } => self.attempt = number,
            Event::Handle { handle, trial } => match (trial, handle) {
                (None, handle) => self.handle = handle,
                (Some(trial), Some(handle)) => drop(self.trial_handles.insert(trial, handle)),
                (Some(trial), None) => drop(self.trial_handles.remove(&trial)),
            },
            Event::Hurried => self.hurried = true,
            Event::TaskStarted {
                task,
                attempt,
                place,
            } => {
                let before = self.tasks.get(&task).filter(|old| old.attempt == attempt);
                let life = TaskLife {
                    attempt,
                    place,
                    started: at,
                    restarts: before.map_or(0, |old| old.restarts + 1),
                    end: None,
                };
                self.tasks.insert(task, life);
            }
            Event::TaskEnded { task, end } => {
                if let Some(life) = self.tasks.get_mut(&task) {
                    life.end = Some(end);
                }
            }
            Event::FirstFailure { failure } => self.failure = Some(failure),
            Event::Trial { trial } => {
                self.trials.insert(trial.number, trial);
            }
            Event::Cancelling { why } | Event::Failed { why } => self.error = Some(why),
            Event::Labelled { labels } => self.labels = labels,
        }
    }
}

#[cfg(test)]
mod tests;
