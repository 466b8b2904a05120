//! How many examples of each global batch a worker takes, in closed form.
//!
//! A batch is split over `R = workers * replicas` replicas. Where `R` does not divide it, some replicas take one example
//! more. If these were always the first replicas, the first worker would run ahead of the others, and data sharded by file
//! would end unevenly. So the sizes rotate: in each step the list of sizes (larger ones first) is handed out beginning with the
//! next worker, as TensorFlow does. Two invariants follow, which the tests check and [`position`](super::position) relies on:
//! the sizes of one step add up to the batch, and over `workers` consecutive steps every worker takes exactly one batch. The
//! second makes [`consumed`] a division and a remainder instead of a sum over all steps so far.

use std::fmt;

use crate::{Error, Result};

/// One of the workers that train together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worker {
    /// Its rank, from 0.
    pub index: usize,
    /// Number of workers.
    pub count: usize,
    /// Replicas of each worker.
    pub replicas: usize,
}

impl fmt::Display for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { index, count, .. } = self;
        write!(
            f,
            "worker {index} of {count} with replicas: {}",
            self.replicas
        )
    }
}

impl Worker {
    /// Worker `index` of `count` with one replica each.
    #[must_use]
    pub const fn new(index: usize, count: usize) -> Self {
        Self {
            index,
            count,
            replicas: 1,
        }
    }

    pub(super) fn check(self) -> Result<()> {
        if self.index < self.count && self.replicas > 0 {
            return Ok(());
        }
        Err(Error::User(format!(
            "worker {} of {} with {} replicas; expected an index below the number of workers, and a replica",
            self.index, self.count, self.replicas
        )))
    }
}

/// The batch sizes of a worker's replicas, one per replica and step, repeating after `workers` steps.
///
/// Each is the floor or the ceiling of `batch / (workers * replicas)`, rotated by worker, so that the sizes of one step add up
/// to the global batch of `batch` examples (TensorFlow's `batch_sizes_for_worker`).
#[must_use]
pub fn batch_sizes(worker: Worker, batch: usize) -> Vec<usize> {
    let all = worker.count * worker.replicas;
    let (floor, more) = (batch / all, batch % all);
    let size = |replica: usize| floor + usize::from(replica < more);
    (0..all)
        .map(|k| size((k + worker.index * worker.replicas) % all))
        .collect()
}

/// Number of examples that the first `replicas` entries of the list of sizes have together.
fn of_first(worker: Worker, batch: usize, replicas: usize) -> usize {
    let all = worker.count * worker.replicas;
    batch / all * replicas + replicas.min(batch % all)
}

/// Number of examples that a worker takes in `steps` steps from step `first` on, fewer steps than there are workers: in each
/// step it has the entries of the list that the next worker had in the step before.
fn in_steps(worker: Worker, batch: usize, first: usize, steps: usize) -> usize {
    let Worker {
        index,
        count,
        replicas,
    } = worker;
    let start = (first + index) % count;
    let end = start + steps;
    let before = |worker_index: usize| of_first(worker, batch, worker_index * replicas);
    if end <= count {
        return before(end) - before(start);
    }
    before(count) - before(start) + before(end - count)
}

/// Number of examples that a worker takes of a full batch in a step.
fn size_in_step(worker: Worker, batch: usize, step: usize) -> usize {
    in_steps(worker, batch, step % worker.count, 1)
}

/// Number of examples that a worker has taken before a step: one batch every `count` steps, and the steps since.
pub(super) fn consumed(worker: Worker, batch: usize, step: usize) -> usize {
    (step / worker.count)
        .saturating_mul(batch)
        .saturating_add(in_steps(worker, batch, 0, step % worker.count))
}

/// The worker's slice of a batch of `rows` rows: its start and its size.
pub(super) fn slice_of(worker: Worker, rows: usize, step: usize) -> (usize, usize) {
    let size = |index| size_in_step(Worker { index, ..worker }, rows, step);
    ((0..worker.index).map(size).sum(), size(worker.index))
}

/// Number of steps in which a worker reads its own `len` examples, with or without the last step that is not full.
pub(super) fn steps(worker: Worker, batch: usize, len: usize, drop_remainder: bool) -> usize {
    let mut step = len / batch * worker.count;
    if drop_remainder {
        while consumed(worker, batch, step + 1) <= len {
            step += 1;
        }
        return step;
    }
    while consumed(worker, batch, step) < len {
        step += 1;
    }
    // A worker may get nothing in some steps; those at the end are not needed.
    while step > 0 && consumed(worker, batch, step - 1) >= len {
        step -= 1;
    }
    step
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The worked example: global batches of 7, two workers of two replicas.
    #[test]
    fn seven_examples_over_two_workers_of_two() {
        let worker = |index| Worker {
            index,
            count: 2,
            replicas: 2,
        };
        assert_eq!(batch_sizes(worker(0), 7), [2, 2, 2, 1]);
        assert_eq!(batch_sizes(worker(1), 7), [2, 1, 2, 2]);
        let cut = |index| {
            let mut at = 0;
            let sizes = batch_sizes(worker(index), 7);
            let take = |size| {
                at += size;
                (at - size..at).collect::<Vec<_>>()
            };
            sizes.into_iter().map(take).collect::<Vec<_>>()
        };
        assert_eq!(cut(0), [vec![0, 1], vec![2, 3], vec![4, 5], vec![6]]);
        assert_eq!(cut(1), [vec![0, 1], vec![2], vec![3, 4], vec![5, 6]]);
        // Steps of both workers: 4 + 3, then 3 + 4.
        let in_steps = |index| [0, 1, 2].map(|step| size_in_step(worker(index), 7, step));
        assert_eq!((in_steps(0), in_steps(1)), ([4, 3, 4], [3, 4, 3]));
        assert_eq!(
            [0, 1, 2, 3].map(|step| consumed(worker(1), 7, step)),
            [0, 3, 7, 10]
        );
        assert_eq!(
            [slice_of(worker(0), 7, 1), slice_of(worker(1), 7, 1)],
            [(0, 3), (3, 4)]
        );
    }

    #[test]
    fn what_a_worker_takes_is_what_its_replicas_take() {
        for (count, replicas, batch) in [(1, 1, 5), (3, 2, 64), (4, 3, 5), (2, 8, 3), (5, 2, 13)] {
            for index in 0..count {
                let worker = Worker {
                    index,
                    count,
                    replicas,
                };
                let sizes = batch_sizes(worker, batch);
                let mut taken = 0;
                for step in 0..2 * count {
                    assert_eq!(consumed(worker, batch, step), taken);
                    let first = step % count * replicas;
                    let size: usize = sizes[first..first + replicas].iter().sum();
                    assert_eq!(size_in_step(worker, batch, step), size);
                    taken += size;
                }
            }
        }
    }

    #[test]
    fn every_step_adds_up_to_the_batch() {
        for (count, replicas, batch) in [(1, 1, 5), (3, 1, 7), (3, 2, 64), (4, 3, 5), (2, 8, 3)] {
            for step in 0..9 {
                let sizes = (0..count).map(|index| {
                    size_in_step(
                        Worker {
                            index,
                            count,
                            replicas,
                        },
                        batch,
                        step,
                    )
                });
                assert_eq!(sizes.sum::<usize>(), batch);
            }
        }
    }

    #[test]
    fn steps_cover_the_examples() {
        for index in 0..3 {
            let worker = Worker {
                index,
                count: 3,
                replicas: 2,
            };
            for (batch, len) in [(7, 0), (7, 1), (7, 20), (2, 9), (64, 64), (1, 5)] {
                let all = steps(worker, batch, len, false);
                assert!(consumed(worker, batch, all) >= len, "{batch} {len}");
                assert!(len == 0 || consumed(worker, batch, all - 1) < len);
                let full = steps(worker, batch, len, true);
                assert!(
                    consumed(worker, batch, full) <= len && consumed(worker, batch, full + 1) > len
                );
            }
        }
    }
}
