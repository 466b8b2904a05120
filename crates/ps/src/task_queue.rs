//! Functions that the first worker schedules and the others run: a state machine without clocks and connections.
//!
//! A task ends once. What a lost worker had goes to another, whose pushes have the numbers of the first one's; so each is applied
//! once. The first task that fails cancels all that nobody has begun, and what is scheduled until the first worker has heard of it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::PsError;
use crate::control::{Control, PhaseKind};

/// The most pushes of a task, each of which has a number of its own.
pub const PUSHES_OF_TASK: u64 = 1 << 16;
/// A task with which this many workers were lost has failed: the next one would be, too.
const MOST_LOSSES: usize = 4;

/// A function that a worker is to run; its arguments are the bytes with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// Its number.
    pub number: u64,
    /// The name of the function.
    pub function: String,
    /// The number of its first push.
    pub first_push: u64,
    /// No push below this number is ever made again.
    pub done_below: u64,
}

/// How a task ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskEnd {
    /// The function has returned; its result is the bytes.
    Done,
    /// The function has failed.
    Failed {
        /// In this worker.
        worker: usize,
        /// Why.
        reason: String,
    },
    /// These workers were lost while they ran it.
    WorkersLost(Vec<usize>),
    /// Another one had failed before it was begun.
    Cancelled,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct TaskState {
    function: String,
    first_push: u64,
    end: Option<TaskEnd>,
    /// Who runs it. After a restart nobody does, and whoever did may still say that it is done.
    #[serde(skip)]
    by: Option<usize>,
    /// Who was lost with it.
    #[serde(skip)]
    lost: Vec<usize>,
}

/// The tasks of a job that have not ended, or of whose end the first worker has not said that it knows.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TaskQueue {
    next: u64,
    tasks: BTreeMap<u64, TaskState>,
    #[serde(with = "crate::hex_bytes")]
    arguments: BTreeMap<u64, Vec<u8>>,
    #[serde(with = "crate::hex_bytes")]
    results: BTreeMap<u64, Vec<u8>>,
    has_failed: bool,
    is_open: bool,
    is_closed: bool,
}

impl TaskQueue {
    /// A process schedules from now on. What another before it has scheduled is dropped.
    pub fn open(&mut self) {
        *self = Self {
            next: self.next,
            is_open: true,
            ..Self::default()
        };
    }

    /// Whether a process schedules, or has scheduled.
    #[must_use]
    pub const fn was_opened(&self) -> bool {
        self.is_open
    }

    /// No more tasks will come.
    pub fn close(&mut self) {
        self.is_closed = true;
    }

    /// Whether no more tasks will come, and none is left.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_closed && self.tasks.values().all(|task| task.end.is_some())
    }

    /// The number of the next task.
    #[must_use]
    pub const fn next_number(&self) -> u64 {
        self.next
    }

    /// Whether a task has not ended.
    #[must_use]
    pub fn has_unfinished(&self) -> bool {
        self.tasks.values().any(|task| task.end.is_none())
    }

    /// Adds a task, unless it is there; `next_push` is the first number that no push has, and is moved on.
    ///
    /// # Errors
    /// Nobody has opened the queue, or a task before it is missing.
    pub fn schedule(
        &mut self,
        number: u64,
        function: &str,
        arguments: Vec<u8>,
        next_push: &mut u64,
    ) -> Result<(), PsError> {
        if number < self.next {
            return Ok(());
        }
        if !self.is_open || number > self.next {
            return Err(PsError::Protocol(format!(
                "task {number} is scheduled where task {} is the next one",
                self.next
            )));
        }
        let end = self.has_failed.then_some(TaskEnd::Cancelled);
        if end.is_none() {
            self.arguments.insert(number, arguments);
        }
        let task = TaskState {
            function: function.to_owned(),
            first_push: *next_push,
            end,
            by: None,
            lost: Vec::new(),
        };
        self.tasks.insert(number, task);
        self.next += 1;
        *next_push += PUSHES_OF_TASK;
        Ok(())
    }

    /// The task that a worker has, or else the first that nobody has, with its arguments.
    pub fn take(&mut self, worker: usize) -> Option<(Task, &[u8])> {
        let open = || self.tasks.iter().filter(|(_, task)| task.end.is_none());
        let own = open().find(|(_, task)| task.by == Some(worker));
        let found = own.or_else(|| open().find(|(_, task)| task.by.is_none()));
        let number = *found?.0;
        let mut first_pushes = open().map(|(_, task)| task.first_push);
        let done_below = first_pushes.next().unwrap_or(0);
        let task = self.tasks.get_mut(&number)?;
        task.by = Some(worker);
        let task = Task {
            number,
            function: task.function.clone(),
            first_push: task.first_push,
            done_below,
        };
        let arguments = self.arguments.get(&number).map_or(&[][..], Vec::as_slice);
        Some((task, arguments))
    }

    /// A worker has ended a task, with a result or a reason. Whether that is news: it is not where another has ended it before.
    pub fn finish(&mut self, worker: usize, number: u64, result: Result<Vec<u8>, String>) -> bool {
        self.finish_among(None, worker, number, result)
    }

    /// The same where it is known which tasks were begun, in ascending order, and not who had them.
    pub(crate) fn finish_among(
        &mut self,
        begun: Option<&[u64]>,
        worker: usize,
        number: u64,
        result: Result<Vec<u8>, String>,
    ) -> bool {
        match result {
            Ok(bytes) => {
                let is_news = self.end(number, TaskEnd::Done, begun);
                if is_news {
                    self.results.insert(number, bytes);
                }
                is_news
            }
            Err(reason) => self.end(number, TaskEnd::Failed { worker, reason }, begun),
        }
    }

    /// The tasks that somebody has begun and not ended, in ascending order.
    pub(crate) fn begun(&self) -> Vec<u64> {
        let begun = self.tasks.iter();
        let begun = begun.filter(|(_, task)| task.end.is_none() && task.by.is_some());
        begun.map(|(number, _)| *number).collect()
    }

    /// A worker is lost: others get what it had.
    pub fn lose(&mut self, worker: usize) {
        let mut hopeless = Vec::new();
        for (number, task) in &mut self.tasks {
            if task.end.is_none() && task.by == Some(worker) {
                task.by = None;
                task.lost.push(worker);
                if task.lost.len() >= MOST_LOSSES {
                    hopeless.push((*number, task.lost.clone()));
                }
            }
        }
        for (number, lost) in hopeless {
            self.end(number, TaskEnd::WorkersLost(lost), None);
        }
    }

    fn end(&mut self, number: u64, end: TaskEnd, begun: Option<&[u64]>) -> bool {
        let Some(task) = self.tasks.get_mut(&number) else {
            return false;
        };
        if task.end.is_some() {
            return false;
        }
        let fails = end != TaskEnd::Done;
        task.end = Some(end);
        self.arguments.remove(&number);
        if fails && !self.has_failed {
            self.has_failed = true;
            self.cancel(begun);
        }
        true
    }

    /// Ends what nobody has begun.
    fn cancel(&mut self, begun: Option<&[u64]>) {
        for (number, task) in &mut self.tasks {
            let is_begun = match begun {
                Some(begun) => begun.binary_search(number).is_ok(),
                None => task.by.is_some(),
            };
            if task.end.is_none() && !is_begun {
                task.end = Some(TaskEnd::Cancelled);
                self.arguments.remove(number);
            }
        }
    }

    /// What has ended, with results, of which the first worker has not said that it knows.
    pub fn ends(&self) -> impl Iterator<Item = (u64, &TaskEnd, &[u8])> {
        self.tasks.iter().filter_map(|(number, task)| {
            let result = self.results.get(number).map_or(&[][..], Vec::as_slice);
            Some((*number, task.end.as_ref()?, result))
        })
    }

    /// The first worker knows how these tasks have ended.
    pub fn acknowledge(&mut self, tasks: &[u64]) {
        for number in tasks {
            self.tasks.remove(number);
            self.arguments.remove(number);
            self.results.remove(number);
        }
    }

    /// The first worker knows that a task has failed: what it schedules from now on is run.
    pub fn clear_failure(&mut self) {
        self.has_failed = false;
    }
}

impl Control {
    /// The functions that the first worker schedules.
    #[must_use]
    pub const fn tasks(&self) -> &TaskQueue {
        &self.tasks
    }

    /// The same, to change them; only the first worker may but take and finish them.
    ///
    /// # Errors
    /// It is another worker.
    pub fn tasks_of_chief(&mut self, worker: usize) -> Result<&mut TaskQueue, PsError> {
        match worker {
            0 => Ok(&mut self.tasks),
            _ => Err(PsError::User(format!(
                "worker {worker} schedules functions, and only worker 0 does"
            ))),
        }
    }

    /// Adds a task.
    ///
    /// # Errors
    /// As [`TaskQueue::schedule`]; another worker schedules it than the first, or a training goes on.
    pub fn schedule(
        &mut self,
        worker: usize,
        number: u64,
        function: &str,
        arguments: Vec<u8>,
    ) -> Result<(), PsError> {
        self.tasks_of_chief(worker)?;
        if let Some(phase) = self.current()
            && phase.kind == PhaseKind::Train
        {
            return Err(PsError::User(format!(
                "`{function}` is scheduled while `fit` trains; do one after the other"
            )));
        }
        let next_push = &mut self.next_work;
        self.tasks.schedule(number, function, arguments, next_push)
    }

    /// The task that a worker is to run, with its arguments.
    pub fn take(&mut self, worker: usize) -> Option<(Task, &[u8])> {
        self.tasks.take(worker)
    }

    /// Whether no task will come any more.
    #[must_use]
    pub fn tasks_are_over(&self) -> bool {
        self.tasks.is_over() || self.chief_has_left()
    }

    /// A worker has ended a task. Whether that is news.
    pub fn finish(&mut self, worker: usize, number: u64, result: Result<Vec<u8>, String>) -> bool {
        self.tasks.finish(worker, number, result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scheduled(queue: &mut TaskQueue, count: u64) {
        let mut next_push = queue.next * PUSHES_OF_TASK;
        for _ in 0..count {
            let number = queue.next;
            queue
                .schedule(number, "f", vec![number as u8], &mut next_push)
                .unwrap();
        }
    }

    fn open(count: u64) -> TaskQueue {
        let mut queue = TaskQueue::default();
        queue.open();
        scheduled(&mut queue, count);
        queue
    }

    fn ends(queue: &TaskQueue) -> Vec<(u64, TaskEnd)> {
        let ends = queue.ends();
        ends.map(|(number, end, _)| (number, end.clone())).collect()
    }

    #[test]
    fn a_task_goes_to_one_worker_and_ends_once() {
        let mut queue = open(2);
        let (first, arguments) = queue.take(1).unwrap();
        assert_eq!((first.number, arguments), (0, &[0u8][..]));
        // The answer was lost, and it asks again.
        assert_eq!(queue.take(1).unwrap().0, first);
        let (second, _) = queue.take(2).unwrap();
        assert_eq!(second.number, 1);
        assert_eq!(queue.take(3), None);
        assert!(queue.finish(2, 1, Ok(vec![7])));
        assert!(!queue.finish(2, 1, Ok(vec![8])));
        assert!(!queue.finish(2, 1, Err("late".into())));
        let all: Vec<_> = queue.ends().collect();
        assert_eq!(all, [(1, &TaskEnd::Done, &[7u8][..])]);
        queue.acknowledge(&[1]);
        assert_eq!(ends(&queue), []);
        assert!(!queue.finish(2, 1, Ok(vec![9])) && !queue.is_over());
        queue.close();
        assert!(!queue.is_over());
        assert!(queue.finish(1, 0, Ok(Vec::new())) && queue.is_over());
    }

    #[test]
    fn a_lost_workers_task_keeps_the_numbers_of_its_pushes() {
        let mut queue = open(2);
        let before = queue.take(1).unwrap().0;
        queue.take(2).unwrap();
        queue.lose(1);
        let after = queue.take(3).unwrap().0;
        assert_eq!(after, before);
        // The lost one was only slow.
        assert!(queue.finish(1, before.number, Ok(vec![1])));
        assert!(!queue.finish(3, before.number, Ok(vec![2])));
        // What is done below counts all that may still push.
        scheduled(&mut queue, 1);
        let task = queue.take(3).unwrap().0;
        assert_eq!(
            (task.first_push, task.done_below),
            (2 * PUSHES_OF_TASK, PUSHES_OF_TASK)
        );
    }

    #[test]
    fn the_first_failure_cancels_what_nobody_has_begun() {
        let mut queue = open(4);
        queue.take(1).unwrap();
        queue.take(2).unwrap();
        assert!(queue.finish(1, 0, Err("no".into())));
        scheduled(&mut queue, 1);
        let failed = TaskEnd::Failed {
            worker: 1,
            reason: "no".into(),
        };
        let cancelled = |number| (number, TaskEnd::Cancelled);
        let expected = [(0, failed), cancelled(2), cancelled(3), cancelled(4)];
        assert_eq!(ends(&queue), expected);
        // What was begun ends as it ends.
        assert!(queue.finish(2, 1, Ok(Vec::new())));
        queue.acknowledge(&[0, 1, 2, 3, 4]);
        queue.clear_failure();
        scheduled(&mut queue, 1);
        assert_eq!(queue.take(1).unwrap().0.number, 5);
    }

    #[test]
    fn a_task_that_takes_one_worker_after_the_other_fails() {
        let mut queue = open(2);
        for worker in 1..=MOST_LOSSES {
            assert_eq!(queue.take(worker).unwrap().0.number, 0);
            queue.lose(worker);
        }
        let lost = TaskEnd::WorkersLost((1..=MOST_LOSSES).collect());
        assert_eq!(ends(&queue), [(0, lost), (1, TaskEnd::Cancelled)]);
    }

    #[test]
    fn a_process_that_schedules_anew_begins_with_an_empty_queue() {
        let mut queue = open(3);
        queue.take(1).unwrap();
        queue.open();
        assert_eq!(queue.take(1), None);
        assert_eq!(queue.next_number(), 3);
        assert!(!queue.finish(1, 0, Ok(Vec::new())));
        assert!(queue.schedule(4, "f", Vec::new(), &mut 0).is_err());
    }
}
