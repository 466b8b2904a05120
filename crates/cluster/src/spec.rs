//! The tasks of a cluster.

use std::collections::BTreeMap;
use std::fmt;

use crate::Address;

/// What a task does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TaskKind {
    /// A worker that also saves and logs; it comes before the others.
    Chief,
    /// Trains.
    Worker,
    /// Holds variables for workers that train asynchronously.
    ParameterServer,
    /// Evaluates checkpoints beside the training.
    Evaluator,
}

impl TaskKind {
    /// All kinds, in the order in which they are listed.
    pub const ALL: [Self; 4] = [
        Self::Chief,
        Self::Worker,
        Self::ParameterServer,
        Self::Evaluator,
    ];

    /// The name that TF_CONFIG has for it: `chief`, `worker`, `ps` or `evaluator`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Chief => "chief",
            Self::Worker => "worker",
            Self::ParameterServer => "ps",
            Self::Evaluator => "evaluator",
        }
    }

    /// The kind of a name that TF_CONFIG has for it.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether such a task is one of the workers, as the chief is.
    #[must_use]
    pub const fn trains(self) -> bool {
        matches!(self, Self::Chief | Self::Worker)
    }
}

impl fmt::Display for TaskKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One task: its kind, and its number within that kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Task {
    /// What it does.
    pub kind: TaskKind,
    /// Its number within its kind, from 0.
    pub index: usize,
}

impl Task {
    /// The task of a kind and a number.
    #[must_use]
    pub const fn new(kind: TaskKind, index: usize) -> Self {
        Self { kind, index }
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind, self.index)
    }
}

/// All tasks of a cluster with their addresses. Numbers of a kind may have gaps, as in TF_CONFIGs that tell a task only about
/// those that it talks to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterSpec {
    tasks: BTreeMap<Task, Address>,
}

impl ClusterSpec {
    /// A cluster without tasks.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A cluster of workers with these addresses, in order.
    #[must_use]
    pub fn of_workers(addresses: impl IntoIterator<Item = Address>) -> Self {
        let numbered = addresses.into_iter().enumerate();
        let task = |(index, address)| (Task::new(TaskKind::Worker, index), address);
        Self {
            tasks: numbered.map(task).collect(),
        }
    }

    /// The cluster with one more task; the address of a task that was there is replaced.
    #[must_use]
    pub fn with(mut self, task: Task, address: Address) -> Self {
        self.tasks.insert(task, address);
        self
    }

    /// Whether there are no tasks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// All tasks with their addresses: the chief, workers, parameter servers, evaluators, each by number.
    pub fn tasks(&self) -> impl Iterator<Item = (Task, &Address)> {
        self.tasks.iter().map(|(task, address)| (*task, address))
    }

    /// The tasks of a kind, by number.
    pub fn of_kind(&self, kind: TaskKind) -> impl Iterator<Item = (usize, &Address)> {
        let first = Task::new(kind, 0);
        let last = Task::new(kind, usize::MAX);
        let range = self.tasks.range(first..=last);
        range.map(|(task, address)| (task.index, address))
    }

    /// The number of tasks of a kind: one more than the highest, so that gaps count.
    #[must_use]
    pub fn count(&self, kind: TaskKind) -> usize {
        self.of_kind(kind).last().map_or(0, |(index, _)| index + 1)
    }

    /// The address of a task.
    #[must_use]
    pub fn address(&self, task: Task) -> Option<&Address> {
        self.tasks.get(&task)
    }

    /// The number of workers, the chief among them.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.count(TaskKind::Chief) + self.count(TaskKind::Worker)
    }

    /// The task that is worker number `worker`: the chief is the first, where there is one.
    #[must_use]
    pub fn worker(&self, worker: usize) -> Task {
        match worker.checked_sub(self.count(TaskKind::Chief)) {
            Some(index) => Task::new(TaskKind::Worker, index),
            None => Task::new(TaskKind::Chief, worker),
        }
    }

    /// The number among the workers of a task that trains; `None` for others.
    #[must_use]
    pub fn worker_number(&self, task: Task) -> Option<usize> {
        match task.kind {
            TaskKind::Chief => Some(task.index),
            TaskKind::Worker => Some(self.count(TaskKind::Chief) + task.index),
            TaskKind::ParameterServer | TaskKind::Evaluator => None,
        }
    }

    /// The addresses of all workers in order; `None` if one has none.
    #[must_use]
    pub fn worker_addresses(&self) -> Option<Vec<Address>> {
        (0..self.workers())
            .map(|worker| self.address(self.worker(worker)).cloned())
            .collect()
    }
}
