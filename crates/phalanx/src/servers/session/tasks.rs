//! Functions that the first worker schedules and the others run.

use std::time::{Duration, Instant};

use phalanx_ps::{Reply, Request, Task, TaskEnd};

use super::super::layout::Rest;
use super::{ASK_WITHIN, Servers, unexpected};
use crate::Result;

/// The number of a task, how it ended, and its result.
pub(crate) type Ended = (u64, TaskEnd, Vec<u8>);

impl Servers {
    /// This process schedules tasks from now on; the number of the first.
    pub(crate) fn open_tasks(&self) -> Result<u64> {
        // All know then that nobody can go on without this process.
        self.ask_all(|_| (Request::OpenTasks, Vec::new()))?;
        Ok(self.ended(Duration::ZERO)?.0)
    }

    /// Adds a task.
    pub(crate) fn schedule(&self, task: u64, function: &str, arguments: &[u8]) -> Result<()> {
        let function = function.to_owned();
        let request = Request::Schedule { task, function };
        self.ask(&request, arguments).map(drop)
    }

    /// A task with its arguments, or nothing where no more will come. That the first worker is there is watched by the server: without
    /// it the job has failed, and this ends.
    pub(crate) fn take_task(&self) -> Result<Option<(Task, Vec<u8>)>> {
        let within_ms = ASK_WITHIN.as_millis() as u64;
        loop {
            match self.ask(&Request::Take { within_ms }, &[])? {
                (Reply::Task(task), arguments) => return Ok(Some((task, arguments))),
                (Reply::TasksOver, _) => return Ok(None),
                (Reply::NotYet { .. }, _) => {}
                (other, _) => return Err(unexpected(&other)),
            }
        }
    }

    /// A task has ended, with a result or a reason.
    pub(crate) fn finish_task(
        &self,
        task: u64,
        result: std::result::Result<Vec<u8>, String>,
    ) -> Result<()> {
        let (bytes, failure) = match result {
            Ok(bytes) => (bytes, None),
            Err(reason) => (Vec::new(), Some(reason)),
        };
        let request = Request::Finish {
            task,
            failure,
            begun: None,
        };
        self.ask(&request, &bytes).map(drop)
    }

    /// Which tasks have ended; waits this long, and no longer than a question does, for the first.
    pub(crate) fn ends(&self, within: Duration) -> Result<Vec<Ended>> {
        Ok(self.ended(within.min(ASK_WITHIN))?.1)
    }

    fn ended(&self, within: Duration) -> Result<(u64, Vec<Ended>)> {
        let within_ms = within.as_millis() as u64;
        let (reply, bytes) = self.ask(&Request::Ends { within_ms }, &[])?;
        let Reply::Ends { next, ends } = reply else {
            return Err(unexpected(&reply));
        };
        let mut rest = Rest(&bytes);
        let mut all = Vec::with_capacity(ends.len());
        for (number, end, length) in ends {
            let result = rest.take(length as usize)?.to_vec();
            all.push((number, end, result));
        }
        Ok((next, all))
    }

    /// It is known how these tasks have ended, and whether what is scheduled after a failure is to be run.
    pub(crate) fn acknowledge(&self, tasks: Vec<u64>, clears_failure: bool) -> Result<()> {
        let request = Request::Acknowledge {
            tasks,
            clears_failure,
        };
        self.ask(&request, &[]).map(drop)
    }

    /// No more tasks will come.
    pub(crate) fn close_tasks(&self) -> Result<()> {
        self.ask(&Request::CloseTasks, &[]).map(drop)
    }

    /// An error when no task has ended for longer than this worker waits for others.
    pub(crate) fn check_tasks(&self, since: Instant) -> Result<()> {
        let others: Vec<usize> = (1..self.workers()).collect();
        self.check_patience(since, &others, "no function that they run has ended")
    }

    /// Whether the others go on without the first worker.
    pub(crate) fn goes_on_without_chief(&self) -> bool {
        self.client.hello().settings.goes_on_without_chief
    }
}
