//! The first worker's side of functions that it schedules: their results, when they come, and what went wrong.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use phalanx_ps::TaskEnd;
use serde::de::DeserializeOwned;

use crate::servers::Servers;
use crate::{Error, Result};

/// How long one question for ends waits at the server.
const ASK_WITHIN: Duration = Duration::from_secs(2);

/// Why a scheduled function has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// It returned an error.
    #[error("the function `{function}` failed in worker {worker}: {reason}")]
    Failed {
        /// The name of the function.
        function: String,
        /// The worker that ran it.
        worker: usize,
        /// The error.
        reason: String,
    },
    /// Workers were lost one after the other while they ran it, so that it is not given to another.
    #[error(
        "the workers {workers:?} were lost while they ran `{function}`, which is not given to another; look at their logs"
    )]
    WorkersLost {
        /// The name of the function.
        function: String,
        /// The workers, in their order.
        workers: Vec<usize>,
    },
    /// Another function had failed before it was begun.
    #[error("`{function}` was not begun, since another function had failed")]
    Cancelled {
        /// The name of the function.
        function: String,
    },
    /// The job cannot go on, or the coordinator was used in a wrong way.
    #[error(transparent)]
    Job(#[from] Error),
}

impl From<ScheduleError> for Error {
    fn from(error: ScheduleError) -> Self {
        let message = error.to_string();
        match error {
            ScheduleError::Job(error) => error,
            ScheduleError::Failed { .. } => Self::Training(message),
            ScheduleError::WorkersLost { .. } => Self::Cluster(message),
            ScheduleError::Cancelled { .. } => Self::Stopped(message),
        }
    }
}

/// The side of the first worker.
pub(super) struct Chief {
    pub(super) servers: Arc<Servers>,
    pub(super) pending: Mutex<Pending>,
}

#[derive(Default)]
pub(super) struct Pending {
    pub(super) next: u64,
    pub(super) outstanding: BTreeMap<u64, Arc<EndSlot>>,
    /// The first function that has failed, of which nobody was told.
    pub(super) error: Option<ScheduleError>,
}

/// Where the end of a task is put.
pub(super) struct EndSlot {
    pub(super) function: String,
    pub(super) end: Mutex<Option<(TaskEnd, Vec<u8>)>>,
}

impl Chief {
    pub(super) fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hears of ends, waiting this long for the first; whether there were any.
    pub(super) fn hear(&self, pending: &mut Pending, within: Duration) -> Result<bool> {
        if pending.outstanding.is_empty() {
            return Ok(false);
        }
        let ends = self.servers.ends(within)?;
        let mut heard = Vec::with_capacity(ends.len());
        for (number, end, result) in ends {
            heard.push(number);
            let Some(slot) = pending.outstanding.remove(&number) else {
                continue;
            };
            if matches!(end, TaskEnd::Failed { .. } | TaskEnd::WorkersLost(_)) {
                let error = || failure_of(&end, &slot.function);
                pending.error = pending.error.take().or_else(error);
            }
            *locked(&slot.end) = Some((end, result));
        }
        if heard.is_empty() {
            return Ok(false);
        }
        self.servers.acknowledge(heard, false)?;
        Ok(true)
    }

    /// Waits for ends; an error when there are none for too long.
    pub(super) fn wait(&self, pending: &mut Pending, since: &mut Instant) -> Result<()> {
        match self.hear(pending, ASK_WITHIN)? {
            true => *since = Instant::now(),
            false => self.servers.check_tasks(*since)?,
        }
        Ok(())
    }

    /// Tells of the first function that has failed, once nothing runs any more that was scheduled before.
    pub(super) fn raise(&self, pending: &mut Pending) -> std::result::Result<(), ScheduleError> {
        if pending.error.is_none() {
            return Ok(());
        }
        let mut since = Instant::now();
        while !pending.outstanding.is_empty() {
            self.wait(pending, &mut since)?;
        }
        self.servers.acknowledge(Vec::new(), true)?;
        match pending.error.take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

/// Why a task has no result; nothing where it has one.
fn failure_of(end: &TaskEnd, function: &str) -> Option<ScheduleError> {
    let function = function.to_owned();
    match end {
        TaskEnd::Done => None,
        TaskEnd::Failed { worker, reason } => Some(ScheduleError::Failed {
            function,
            worker: *worker,
            reason: reason.clone(),
        }),
        TaskEnd::WorkersLost(workers) => Some(ScheduleError::WorkersLost {
            function,
            workers: workers.clone(),
        }),
        TaskEnd::Cancelled => Some(ScheduleError::Cancelled { function }),
    }
}

/// What a function that was scheduled will have returned.
pub struct RemoteValue<R> {
    pub(super) chief: Arc<Chief>,
    pub(super) slot: Arc<EndSlot>,
    pub(super) marker: PhantomData<fn() -> R>,
}

impl<R> std::fmt::Debug for RemoteValue<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let end = locked(&self.slot.end);
        let end = end.as_ref().map(|(end, _)| end);
        write!(f, "RemoteValue of {}: {end:?}", self.slot.function)
    }
}

impl<R: DeserializeOwned> RemoteValue<R> {
    /// Waits until the function has ended, and returns its result; as often as wanted.
    ///
    /// # Errors
    /// Why the function has none: each time, whether or not the coordinator has told of it. The job has failed.
    pub fn fetch(&self) -> std::result::Result<R, ScheduleError> {
        let mut since = Instant::now();
        loop {
            // Others that wait may have heard of this one's end.
            let mut pending = self.chief.pending();
            if let Some((end, result)) = &*locked(&self.slot.end) {
                return match failure_of(end, &self.slot.function) {
                    Some(error) => Err(error),
                    None => read(&self.slot.function, result),
                };
            }
            self.chief.wait(&mut pending, &mut since)?;
        }
    }

    /// Whether it is known that the function has ended.
    #[must_use]
    pub fn is_done(&self) -> bool {
        locked(&self.slot.end).is_some()
    }
}

fn read<R: DeserializeOwned>(
    function: &str,
    bytes: &[u8],
) -> std::result::Result<R, ScheduleError> {
    serde_json::from_slice(bytes).map_err(|error| {
        ScheduleError::Job(Error::user(format!(
            "the result of `{function}` cannot be read: {error}; numbers must be finite: return an Option where they may not be"
        )))
    })
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
