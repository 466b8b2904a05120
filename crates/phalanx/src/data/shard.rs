//! Which examples a worker reads: by file, by position in the global batch, or all.
//!
//! By position, a worker reads its slice of every global batch, so that a step has the same examples for any number of workers,
//! but every worker opens every file. By file, a worker reads whole files, and the stages before `batch` are built a second time
//! over them ([`Dataset::shard_by_file`]); a stage that counts examples across files (`take`, `cache`, ..) makes that
//! impossible. Files go to workers largest first, each to the worker with the fewest examples so far. Both ways keep the
//! invariant that every example is read by exactly one worker once per epoch.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::global_batch::{consumed, slice_of, steps};
use super::stages::{Sharded, Subset};
use super::{Dataset, Worker};
use crate::{Error, Result};

/// How the data are divided between workers (`tf.data`'s `AutoShardPolicy`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AutoShardPolicy {
    /// By file where there are enough files and the stages allow it, else by position. Never an error.
    #[default]
    Auto,
    /// Whole files to each worker, balanced by their numbers of examples; by position, with a notice, where there are
    /// fewer files than workers (TensorFlow fails there).
    File,
    /// Each worker takes its slice of every global batch: the same examples in a step for any number of workers.
    Data,
    /// Each worker reads everything that it has: the same data, or its own part where the user has divided them. All need as many batches.
    Off,
}

impl fmt::Display for AutoShardPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::File => "file",
            Self::Data => "data",
            Self::Off => "off",
        })
    }
}

/// Which examples a worker reads, after the policy was decided.
#[derive(Clone)]
pub(super) struct Sharding {
    pub(super) worker: Worker,
    /// `File`, `Data` or `Off`.
    pub(super) policy: AutoShardPolicy,
    pub(super) notice: Option<String>,
    /// A dataset for each worker; empty where all read slices of the same one.
    per_worker: Vec<Dataset>,
}

/// How a worker's rows lie in the global batch of a step; every worker finds the same `is_even`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerPart {
    /// The number of rows that workers before this one have in the step.
    pub first_row: usize,
    /// Whether the step is a full batch of which all replicas of all workers have equally many rows.
    pub is_even: bool,
}

impl Sharding {
    /// One worker that reads everything.
    pub(super) const fn whole() -> Self {
        Self {
            worker: Worker {
                index: 0,
                count: 1,
                replicas: 1,
            },
            policy: AutoShardPolicy::Data,
            notice: None,
            per_worker: Vec::new(),
        }
    }

    pub(super) fn new(input: &Dataset, worker: Worker, policy: AutoShardPolicy) -> Result<Self> {
        worker.check()?;
        let by_position = |notice| Self {
            worker,
            policy: AutoShardPolicy::Data,
            notice,
            per_worker: Vec::new(),
        };
        let per_worker = match policy {
            AutoShardPolicy::Data => return Ok(by_position(None)),
            AutoShardPolicy::Auto if worker.count == 1 => return Ok(by_position(None)),
            AutoShardPolicy::Off => vec![input.clone(); worker.count],
            AutoShardPolicy::Auto | AutoShardPolicy::File => match file_shards(input, worker) {
                Ok(per_worker) => per_worker,
                Err(NotShardable::Unfit(reason)) if policy == AutoShardPolicy::File => {
                    return Err(Error::User(format!(
                        "cannot shard by file: {reason}; choose auto or data"
                    )));
                }
                Err(NotShardable::Unfit(reason) | NotShardable::TooFew(reason)) => {
                    return Ok(by_position(Some(format!("sharding by position: {reason}"))));
                }
            },
        };
        let (policy, notice) = match policy {
            AutoShardPolicy::Off => (AutoShardPolicy::Off, None),
            _ => (
                AutoShardPolicy::File,
                Some(format!("sharding by file between {} workers", worker.count)),
            ),
        };
        Ok(Self {
            worker,
            policy,
            notice,
            per_worker,
        })
    }

    /// Whether each worker reads all of the data that it has.
    pub(super) fn is_divided_by_hand(&self) -> bool {
        self.policy == AutoShardPolicy::Off && self.worker.count > 1
    }

    /// Whether workers read consecutive rows of the same batches.
    pub(super) const fn is_by_position(&self) -> bool {
        self.per_worker.is_empty()
    }

    /// Number of steps of an epoch, the same for every worker; `None` is endless.
    pub(super) fn steps(
        &self,
        input: &Dataset,
        batch: usize,
        drop_remainder: bool,
    ) -> Option<usize> {
        if batch == 0 {
            return Some(0);
        }
        if self.per_worker.is_empty() {
            let len = input.len()?;
            return Some(if drop_remainder {
                len / batch
            } else {
                len.div_ceil(batch)
            });
        }
        let of = |(w, worker_data): (usize, &Dataset)| {
            let worker = Worker {
                index: w,
                ..self.worker
            };
            Some(steps(worker, batch, worker_data.len()?, drop_remainder))
        };
        let each: Option<Vec<usize>> = self.per_worker.iter().enumerate().map(of).collect();
        let each = each?.into_iter();
        if drop_remainder {
            each.min()
        } else {
            each.max()
        }
    }

    /// Where this worker reads in a step: the dataset, the first index and the number of examples.
    pub(super) fn locate<'a>(
        &'a self,
        input: &'a Dataset,
        batch: usize,
        step: usize,
    ) -> (&'a Dataset, usize, usize) {
        let Some(worker_data) = self.per_worker.get(self.worker.index) else {
            let start = step.saturating_mul(batch);
            let rows = input
                .len()
                .map_or(batch, |len| len.saturating_sub(start).min(batch));
            let (offset, size) = slice_of(self.worker, rows, step);
            return (input, start.saturating_add(offset), size);
        };
        let start = consumed(self.worker, batch, step);
        let size = consumed(self.worker, batch, step.saturating_add(1)) - start;
        let left = worker_data
            .len()
            .map_or(size, |len| len.saturating_sub(start));
        (worker_data, start, size.min(left))
    }

    /// How the rows of a step lie on the workers.
    pub(super) fn part(&self, input: &Dataset, batch: usize, step: usize) -> WorkerPart {
        let rows = |index| {
            let worker = Worker {
                index,
                ..self.worker
            };
            let of_worker = Self {
                worker,
                ..self.clone()
            };
            of_worker.locate(input, batch, step).2
        };
        let before = (0..self.worker.index).map(rows).sum();
        let all = self.worker.count * self.worker.replicas;
        let each = batch / all * self.worker.replicas;
        WorkerPart {
            first_row: before,
            is_even: batch.is_multiple_of(all)
                && (0..self.worker.count).all(|index| rows(index) == each),
        }
    }

    /// The examples that no worker has read after `steps` steps, in a fixed order.
    pub(super) fn rest(&self, input: &Dataset, batch: usize, steps: usize) -> Result<Dataset> {
        let read = |w| {
            consumed(
                Worker {
                    index: w,
                    ..self.worker
                },
                batch,
                steps,
            )
        };
        match self.policy {
            AutoShardPolicy::File => {}
            // Each worker reads everything, and they may be at different examples.
            AutoShardPolicy::Off => {
                let Worker {
                    count, replicas, ..
                } = self.worker;
                return Ok(input.skip(all_have_read(count, replicas, batch, steps)));
            }
            _ => return Ok(input.skip(steps.saturating_mul(batch))),
        }
        let tails = self
            .per_worker
            .iter()
            .enumerate()
            .map(|(w, worker_data)| worker_data.skip(read(w)));
        let all = tails.map(Ok).reduce(|all, tail| all?.concatenate(&tail?));
        all.unwrap_or_else(|| Ok(input.clone()))
    }
}

/// Number of examples that all workers have read after `steps` steps, where each reads everything.
pub(super) fn all_have_read(count: usize, replicas: usize, batch: usize, steps: usize) -> usize {
    // The list of sizes has the larger ones first, so the worker that had the end of the list most often has read least.
    let least = Worker {
        index: (count - steps % count) % count,
        count,
        replicas,
    };
    consumed(least, batch, steps)
}

/// Why the data cannot be sharded by file.
pub(super) enum NotShardable {
    /// The data or their stages cannot be divided by file.
    Unfit(String),
    TooFew(String),
}

/// The data in the files of each worker.
fn file_shards(input: &Dataset, worker: Worker) -> std::result::Result<Vec<Dataset>, NotShardable> {
    (0..worker.count)
        .map(|index| input.shard_by_file(Worker { index, ..worker }))
        .collect()
}

/// The examples in the files of one worker.
pub(super) fn whole_files(input: &Dataset, files: &[usize], worker: Worker) -> Sharded {
    let workers = worker.count;
    match files.len() {
        0 => Err(NotShardable::Unfit(
            "the data are not in files of several examples".into(),
        )),
        few if few < workers => Err(NotShardable::TooFew(format!(
            "there are {few} files for {workers} workers"
        ))),
        _ => Ok(input.subset(files_of(files, worker.index, workers))),
    }
}

/// The examples in a worker's files, in the order of the files.
///
/// The largest file is assigned first, each to the worker with the fewest examples so far.
fn files_of(files: &[usize], worker: usize, workers: usize) -> Subset {
    let mut by_size: Vec<usize> = (0..files.len()).collect();
    by_size.sort_by_key(|&file| (std::cmp::Reverse(files[file]), file));
    let mut loads = vec![(0, 0); workers];
    let mut owner = vec![0; files.len()];
    for file in by_size {
        // Files count too, so that empty ones are spread.
        let least = (0..workers).min_by_key(|&w| loads[w]).expect("a worker");
        loads[least] = (loads[least].0 + files[file], loads[least].1 + 1);
        owner[file] = least;
    }
    let (mut subset, mut first) = (Subset::default(), 0);
    for (&count, owner) in files.iter().zip(owner) {
        if owner == worker {
            subset.push(first..first + count);
        }
        first += count;
    }
    subset
}
