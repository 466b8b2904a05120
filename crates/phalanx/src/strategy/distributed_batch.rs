//! A batch divided over replicas, and which of its rows are examples.

use std::sync::Arc;

use phalanx_graph::{HostTensor, Shape};

use super::handle::StrategyHandle;
use super::per_replica::PerReplica;
use crate::data::{Batch, WorkerPart};
use crate::fit::filled;
use crate::replicas::BatchPartition;
use crate::{Error, Result};

/// A batch whose rows are divided over the replicas, each part on its replica's device.
#[derive(Clone, Debug)]
pub struct DistributedBatch {
    pub(super) x: Vec<PerReplica>,
    pub(super) y: Vec<PerReplica>,
    pub(super) weight: Option<PerReplica>,
    pub(super) rows: Arc<ExampleRows>,
    /// Position of the first example in the epoch.
    pub first: u64,
}

/// Which rows of a distributed batch are examples.
#[derive(Debug)]
pub(super) struct ExampleRows {
    /// ExampleRows of the arrays of each replica.
    pub(super) each: usize,
    /// How many of them are examples, for each replica.
    pub(super) counts: Vec<usize>,
    /// The counts, and the number in the step of each replica's first row, on the devices; where all rows are examples,
    /// programs do without.
    pub(super) filled: Option<[PerReplica; 2]>,
}

impl DistributedBatch {
    /// Number of examples, of all replicas of this process together.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows.counts.iter().sum()
    }

    /// Number of examples of each replica of this process.
    #[must_use]
    pub fn rows_per_replica(&self) -> &[usize] {
        &self.rows.counts
    }

    pub(super) fn check_strategy(&self, strategy: &StrategyHandle) -> Result<()> {
        let tensors = self.x.iter().chain(&self.y).chain(&self.weight);
        let mut tensors = tensors.take(1);
        tensors.try_for_each(|tensor| tensor.check_strategy("a batch", strategy))
    }

    /// Divides a global batch, of which a full one has `full` rows.
    pub(super) fn split(strategy: &StrategyHandle, batch: &Batch, full: usize) -> Result<Self> {
        check_rows(batch)?;
        check_some_rows(batch)?;
        let division = Division::of(strategy.placement.partition(batch.rows(), full));
        Self::divided(strategy, batch, 0, &division)
    }

    /// Divides a batch that every process is given.
    pub(super) fn of_whole(strategy: &StrategyHandle, batch: &Batch) -> Result<Self> {
        if strategy.world().is_none() {
            return Self::split(strategy, batch, batch.rows());
        }
        check_rows(batch)?;
        check_some_rows(batch)?;
        let whole = BatchPartition::equal(batch.rows(), strategy.replicas());
        let (first, own) = (strategy.first_replica(), strategy.local_replicas());
        let counts = (first..first + own).map(|replica| whole.rows(replica));
        let before = whole.first_row(first);
        let partition = BatchPartition::from_rows(counts).padded_to(whole.padded_rows());
        let division = Division {
            partition: partition.after(before),
            fills_up: !whole.is_even(),
        };
        Self::divided(strategy, batch, before, &division)
    }

    /// Divides this process' part of a global batch, of which a full one has `full` rows.
    ///
    /// Where a process trains alone, on data that are sharded by hand, its part is all there is.
    pub(super) fn of_worker(
        strategy: &StrategyHandle,
        batch: &Batch,
        full: usize,
        part: WorkerPart,
    ) -> Result<Self> {
        check_rows(batch)?;
        let placement = &strategy.placement;
        if strategy.world().is_none() {
            let division = Division::of(placement.partition(batch.rows(), full));
            return Self::divided(strategy, batch, 0, &division);
        }
        let partition = placement.worker_partition(batch.rows(), full, part.is_even);
        let division = Division {
            partition: partition.after(part.first_row),
            fills_up: !part.is_even,
        };
        Self::divided(strategy, batch, 0, &division)
    }

    /// The rows of a batch from `start` on, divided.
    fn divided(
        strategy: &StrategyHandle,
        batch: &Batch,
        start: usize,
        division: &Division,
    ) -> Result<Self> {
        let partition = &division.partition;
        let replicas = 0..partition.replicas();
        let parts: Vec<RowRange<'_>> = replicas
            .map(|replica| RowRange {
                batch,
                start: start + partition.first_row(replica),
                count: partition.rows(replica),
            })
            .collect();
        Self::of_parts(strategy, &parts, division, (batch.first, false))
    }

    /// A batch for each replica; where one has none, or one without rows, rows of another stand in, or of `before`, a batch of an
    /// earlier step. `is_weighted`: it has weights although these batches may have none.
    pub(super) fn of_batches(
        strategy: &StrategyHandle,
        batches: &[Option<Batch>],
        before: Option<&Batch>,
        (full, is_weighted): (usize, bool),
    ) -> Result<Self> {
        let all = || batches.iter().flatten();
        let with_rows = all().find(|batch| batch.rows() > 0);
        // The shape of a row is enough.
        let some = with_rows.or(before).or_else(|| all().next());
        let some = some.ok_or_else(|| {
            Error::user("an input pipeline of this process has no batch at all, and the other processes train; give every pipeline examples, or train on fewer replicas")
        })?;
        for batch in all() {
            check_rows(batch)?;
            check_alike(some, batch)?;
        }
        let parts = batches.iter().map(|batch| RowRange {
            batch: batch.as_ref().filter(|own| own.rows() > 0).unwrap_or(some),
            start: 0,
            count: batch.as_ref().map_or(0, Batch::rows),
        });
        let parts: Vec<RowRange<'_>> = parts.collect();
        let partition = BatchPartition::from_rows(parts.iter().map(|part| part.count));
        let division = match strategy.world() {
            None if partition.is_even() => Division::of(partition),
            None => Division::of(partition.padded_to(full)),
            // How many rows others have is not known here: places of rows that only fill up have numbers too.
            Some(_) => Division {
                partition: partition
                    .padded_to(full)
                    .after(strategy.first_replica() * full),
                fills_up: true,
            },
        };
        Self::of_parts(strategy, &parts, &division, (some.first, is_weighted))
    }

    fn of_parts(
        strategy: &StrategyHandle,
        parts: &[RowRange<'_>],
        division: &Division,
        (first, is_weighted): (u64, bool),
    ) -> Result<Self> {
        let each = division.partition.padded_rows();
        let put = |tensor: &dyn Fn(&Batch) -> HostTensor| {
            let part =
                |part: &RowRange<'_>| filled(&tensor(part.batch), part.start, part.count, each);
            let values = parts.iter().map(part);
            PerReplica::put(strategy, &values.collect::<Vec<_>>(), false)
        };
        let batch = parts[0].batch;
        let x = (0..batch.x.len()).map(|i| put(&|batch| batch.x[i].clone()));
        let y = (0..batch.y.len()).map(|i| put(&|batch| batch.y[i].clone()));
        let has_weights = parts.iter().any(|part| part.batch.weight.is_some());
        let weight = (is_weighted || has_weights).then(|| put(&|batch| weights(batch)));
        Ok(Self {
            x: x.collect::<Result<_>>()?,
            y: y.collect::<Result<_>>()?,
            weight: weight.transpose()?,
            rows: Arc::new(ExampleRows::new(strategy, division)?),
            first,
        })
    }
}

impl ExampleRows {
    /// Whether the same rows are examples, or all are.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let none_fills = self.filled.is_none() && other.filled.is_none();
        none_fills || (self.each == other.each && self.counts == other.counts)
    }

    fn new(strategy: &StrategyHandle, division: &Division) -> Result<Self> {
        let partition = &division.partition;
        let replicas = 0..partition.replicas();
        let counts: Vec<usize> = replicas
            .clone()
            .map(|replica| partition.rows(replica))
            .collect();
        let filled = division.fills_up.then(|| {
            let number = |n: &usize| HostTensor::scalar(*n as u32);
            let starts: Vec<usize> = replicas
                .map(|replica| partition.global_first_row(replica))
                .collect();
            let put = |numbers: &[usize]| {
                let numbers: Vec<HostTensor> = numbers.iter().map(number).collect();
                PerReplica::put(strategy, &numbers, false)
            };
            Ok::<_, Error>([put(&counts)?, put(&starts)?])
        });
        Ok(Self {
            each: partition.padded_rows(),
            filled: filled.transpose()?,
            counts,
        })
    }
}

/// How many rows each replica of this process gets.
struct Division {
    partition: BatchPartition,
    /// Whether programs get to know which rows are examples; all processes find the same.
    fills_up: bool,
}

impl Division {
    /// In one process.
    fn of(partition: BatchPartition) -> Self {
        Self {
            fills_up: !partition.is_even(),
            partition,
        }
    }
}

/// What a replica gets: some rows of a batch.
struct RowRange<'a> {
    batch: &'a Batch,
    start: usize,
    count: usize,
}

/// The weights of a batch, 1 where it has none.
fn weights(batch: &Batch) -> HostTensor {
    batch
        .weight
        .clone()
        .unwrap_or_else(|| HostTensor::full(Shape::f32([batch.rows()]), 1.0))
}

fn check_rows(batch: &Batch) -> Result<()> {
    let rows = batch.rows();
    let named = |name: &str, tensors: &[HostTensor]| {
        let wrong = tensors.iter().find(|t| t.dims().first() != Some(&rows));
        let wrong = wrong.map(|t| format!("{name} is {}", t.shape()));
        wrong.map_or(Ok(()), |wrong| {
            Err(Error::user(format!(
                "a batch cannot be divided over replicas: it has {rows} rows, but {wrong}; every tensor needs the examples as its first dim"
            )))
        })
    };
    named("x", &batch.x)?;
    named("y", &batch.y)?;
    named("the weight", batch.weight.as_slice())
}

/// Refuses a batch without rows, which only a part of one may be.
fn check_some_rows(batch: &Batch) -> Result<()> {
    if batch.rows() > 0 {
        return Ok(());
    }
    Err(Error::user(
        "a batch cannot be divided over replicas: it has no rows; leave it out",
    ))
}

/// Refuses batches of one step whose examples differ in shape.
fn check_alike(one: &Batch, other: &Batch) -> Result<()> {
    let examples = |tensors: &[HostTensor]| -> Vec<Shape> {
        let example = |t: &HostTensor| Shape::new(t.dtype(), &t.dims()[1..]);
        tensors.iter().map(example).collect()
    };
    let (here, there) = (
        (examples(&one.x), examples(&one.y)),
        (examples(&other.x), examples(&other.y)),
    );
    if here == there {
        return Ok(());
    }
    let text = |(x, y): &(Vec<Shape>, Vec<Shape>)| {
        let list = |shapes: &[Shape]| {
            let shapes: Vec<String> = shapes.iter().map(ToString::to_string).collect();
            shapes.join(", ")
        };
        format!("x {}, y {}", list(x), list(y))
    };
    Err(Error::user(format!(
        "the batches of one step differ: one has examples of {}, another of {}; give all replicas examples of one shape",
        text(&here),
        text(&there)
    )))
}
