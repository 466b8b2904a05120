//! Batches divided over replicas and put on their devices, one step ahead.

use std::fmt;

use phalanx_graph::HostTensor;

use super::distributed_batch::DistributedBatch;
use super::handle::StrategyHandle;
use crate::data::{Batch, BatchIter, Batches, Position, Worker};
use crate::{Error, Result};

/// Batches that are divided over the replicas as they are read; see
/// [`distribute_dataset`](super::CustomTraining::distribute_dataset).
#[derive(Clone)]
pub struct DistributedDataset {
    strategy: StrategyHandle,
    origin: Origin,
    /// Why this process has no part of the data.
    refused: Option<String>,
}

#[derive(Clone)]
enum Origin {
    /// Global batches.
    Global(Batches),
    /// Batches of one replica each, dealt out in turn.
    Dealt(Batches),
    /// Batches of one replica each, from a pipeline of its own.
    Own(Vec<Batches>),
}

/// From which pipelines the replicas get their batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pipelines {
    /// One for the whole process, whose batches are dealt out to its replicas in turn (TensorFlow's `PER_WORKER`).
    #[default]
    PerWorker,
    /// One for each replica (TensorFlow's `PER_REPLICA`).
    PerReplica,
}

/// What a function that makes an input pipeline gets: TensorFlow's `InputContext`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InputContext {
    /// The number of pipelines, which is the number of shards of the data.
    pub num_input_pipelines: usize,
    /// Which of them this is, from 0.
    pub input_pipeline_id: usize,
    /// Replicas that train together.
    pub num_replicas_in_sync: usize,
}

impl InputContext {
    /// Examples per replica and step, of a global batch.
    ///
    /// # Errors
    /// When the global batch does not divide by the number of replicas.
    pub fn per_replica_batch_size(&self, global_batch_size: usize) -> Result<usize> {
        let replicas = self.num_replicas_in_sync;
        if global_batch_size.is_multiple_of(replicas) && global_batch_size > 0 {
            return Ok(global_batch_size / replicas);
        }
        Err(Error::user(format!(
            "a global batch of {global_batch_size} does not divide by {replicas} replicas; choose a multiple of {replicas}, or use `distribute_dataset`, which fills up the parts"
        )))
    }
}

impl DistributedDataset {
    pub(super) fn global(strategy: &StrategyHandle, batches: &Batches) -> Self {
        let own = strategy.world().map(|world| {
            batches.sharded_for(Worker {
                index: world.worker(),
                count: world.workers(),
                replicas: world.local_replicas(),
            })
        });
        let (batches, refused) = match own {
            None => (batches.clone(), None),
            Some(Ok(own)) => (own, None),
            Some(Err(error)) => (batches.clone(), Some(error.to_string())),
        };
        Self {
            strategy: strategy.clone(),
            origin: Origin::Global(batches),
            refused,
        }
    }

    pub(super) fn from_function(
        strategy: &StrategyHandle,
        pipelines: Pipelines,
        mut pipeline: impl FnMut(InputContext) -> Result<Batches>,
    ) -> Result<Self> {
        let own = match pipelines {
            Pipelines::PerWorker => 1,
            Pipelines::PerReplica => strategy.local_replicas(),
        };
        let world = strategy.world();
        let (worker, workers) = world.map_or((0, 1), |world| (world.worker(), world.workers()));
        let context = |input_pipeline_id| InputContext {
            num_input_pipelines: workers * own,
            input_pipeline_id,
            num_replicas_in_sync: strategy.replicas(),
        };
        let batches: Vec<Batches> = (worker * own..(worker + 1) * own)
            .map(|id| pipeline(context(id)))
            .collect::<Result<_>>()?;
        if let Some((one, other)) = duplicate_pipelines(&batches)? {
            strategy.placement.engine().notice(&format!(
                "warning: input pipelines {one} and {other} begin with the same batch, so replicas train on the same examples; shard by `input_pipeline_id`, or shuffle each pipeline with a seed of its own"
            ));
        }
        let origin = match pipelines {
            Pipelines::PerWorker => Origin::Dealt(batches[0].clone()),
            Pipelines::PerReplica => Origin::Own(batches),
        };
        Ok(Self {
            strategy: strategy.clone(),
            origin,
            refused: None,
        })
    }

    /// Number of steps in an epoch of this process' data, `None` when endless.
    #[must_use]
    pub fn steps(&self) -> Option<usize> {
        match &self.origin {
            Origin::Global(batches) => batches.len(),
            Origin::Dealt(batches) => Some(batches.len()?.div_ceil(self.strategy.local_replicas())),
            Origin::Own(pipelines) => {
                let steps: Option<Vec<usize>> = pipelines.iter().map(Batches::len).collect();
                steps?.into_iter().max()
            }
        }
    }

    /// The steps of an epoch. The batch of the next step is on the devices before this one is handed out.
    #[must_use]
    pub fn epoch(&self, epoch: u64) -> DistributedIter {
        let readers = self.pipelines().iter().map(|own| own.iter(epoch, 0));
        self.iter_of(readers.collect())
    }

    /// The rest of an epoch: its steps after those that were handed out at the [position](DistributedIter::position), on
    /// this strategy or another. Where each replica has a pipeline of its own, they must be as many as before.
    ///
    /// # Errors
    /// When the position is of other data or has impossible numbers; see [`Batches::iter_at`].
    pub fn epoch_from(&self, position: &Position) -> Result<DistributedIter> {
        let pipelines = self.pipelines();
        let readers: Vec<BatchIter> = match (pipelines, &*position.segments) {
            ([one], _) => vec![one.iter_at(position)?],
            // Each pipeline counts its own batches, and all have read as many.
            (own, [] | [_]) => {
                let start = position.segments.first().map_or(0, |segment| segment.steps);
                let own = own.iter();
                own.map(|own| own.iter(position.epoch, start)).collect()
            }
            _ => {
                return Err(Error::user(
                    "the position is of one pipeline that was divided in several ways, and here each replica has its own; start at the next epoch",
                ));
            }
        };
        Ok(self.iter_of(readers))
    }

    fn pipelines(&self) -> &[Batches] {
        match &self.origin {
            Origin::Global(batches) | Origin::Dealt(batches) => std::slice::from_ref(batches),
            Origin::Own(pipelines) => pipelines,
        }
    }

    fn iter_of(&self, readers: Vec<BatchIter>) -> DistributedIter {
        let sizes = self.pipelines().iter().map(Batches::size);
        let position = furthest(&readers);
        let read = position.segments.last().map_or(0, |last| last.steps);
        let read = match self.origin {
            Origin::Dealt(_) => read.div_ceil(self.strategy.local_replicas()),
            Origin::Global(_) | Origin::Own(_) => read,
        };
        let skips_corrupt = |batches: &Batches| batches.dataset().skips_corrupt();
        DistributedIter {
            strategy: self.strategy.clone(),
            position,
            readers,
            global: matches!(self.origin, Origin::Global(_)),
            skips_corrupt: self.pipelines().iter().any(skips_corrupt),
            size: sizes.max().unwrap_or(1),
            left: self.steps().map(|steps| steps.saturating_sub(read)),
            before: None,
            ahead: None,
            started: false,
            refused: self.refused.clone(),
        }
    }
}

/// The position of the pipeline that has read most: some may have ended.
fn furthest(readers: &[BatchIter]) -> Position {
    let positions = readers.iter().map(BatchIter::position);
    let steps = |position: &Position| position.segments.last().map_or(0, |last| last.steps);
    positions.max_by_key(steps).unwrap_or_default()
}

/// Two pipelines whose first batches are the same.
fn duplicate_pipelines(pipelines: &[Batches]) -> Result<Option<(usize, usize)>> {
    if pipelines.len() < 2 {
        return Ok(None);
    }
    let first = |batches: &Batches| match batches.is_empty() {
        true => Ok(None),
        false => batches.get(0, 0).map(Some),
    };
    let firsts: Vec<Option<Batch>> = pipelines.iter().map(first).collect::<Result<_>>()?;
    let pairs = (0..firsts.len()).flat_map(|b| (0..b).map(move |a| (a, b)));
    let same = |&(a, b): &(usize, usize)| {
        let (Some(a), Some(b)) = (&firsts[a], &firsts[b]) else {
            return false;
        };
        let bytes = |batch: &Batch| -> Vec<HostTensor> {
            batch.x.iter().chain(&batch.y).cloned().collect()
        };
        bytes(a) == bytes(b)
    };
    let mut pairs = pairs;
    Ok(pairs.find(same))
}

/// The steps of one epoch, in order; see [`DistributedDataset::epoch`].
pub struct DistributedIter {
    strategy: StrategyHandle,
    readers: Vec<BatchIter>,
    /// Whether a batch is one for all replicas.
    global: bool,
    /// Whether batches may have fewer rows than their places say.
    skips_corrupt: bool,
    /// ExampleRows of a full batch.
    size: usize,
    /// The steps to come, `None` when endless; of several processes with pipelines of their own, the steps of the longest.
    left: Option<usize>,
    /// A batch of the step before, where several processes have pipelines of their own.
    before: Option<Batch>,
    /// The position after the steps that were handed out.
    position: Position,
    /// The next step, and the position after it.
    ahead: Option<(Result<DistributedBatch>, Position)>,
    started: bool,
    refused: Option<String>,
}

impl DistributedIter {
    /// The position after the steps that were handed out: what [`DistributedDataset::epoch_from`] goes on from, and
    /// [`State::training_state_at`](super::State::training_state_at) keeps.
    #[must_use]
    pub const fn position(&self) -> &Position {
        &self.position
    }

    fn read_ahead(&mut self) {
        let next = self.read();
        self.ahead = next.map(|batch| (batch, furthest(&self.readers)));
    }

    fn read(&mut self) -> Option<Result<DistributedBatch>> {
        if self.global {
            let batch = self.readers[0].next()?;
            return Some(batch.and_then(|batch| self.split(batch)));
        }
        let is_shared = self.strategy.world().is_some();
        if is_shared && self.left == Some(0) {
            return None;
        }
        let replicas = self.strategy.local_replicas();
        let readers = self.readers.len();
        let next = |replica: usize| self.readers[replica % readers].next().transpose();
        let batches: Result<Vec<Option<Batch>>> = (0..replicas).map(next).collect();
        match batches {
            Ok(batches) if !is_shared && batches.iter().all(Option::is_none) => None,
            Ok(batches) => {
                self.left = self.left.map(|left| left.saturating_sub(1));
                let before = self.before.as_ref();
                let made =
                    DistributedBatch::of_batches(&self.strategy, &batches, before, self.size);
                if is_shared {
                    self.before = batches.into_iter().flatten().next().or(self.before.take());
                }
                Some(made)
            }
            Err(error) => Some(Err(error)),
        }
    }

    fn split(&self, mut batch: Batch) -> Result<DistributedBatch> {
        let Some(mut part) = self.readers[0].worker_part()? else {
            return DistributedBatch::split(&self.strategy, &batch, self.size);
        };
        part.is_even &= !self.skips_corrupt;
        batch.first += part.first_row as u64;
        DistributedBatch::of_worker(&self.strategy, &batch, self.size, part)
    }

    /// What processes with pipelines of their own agree on before the first step: how many steps there are, and how many rows in
    /// the arrays of a replica.
    fn agree(&mut self) -> Result<()> {
        if let Some(refused) = self.refused.take() {
            return Err(Error::User(refused));
        }
        let world = match self.strategy.world() {
            Some(world) if !self.global => world,
            _ => return Ok(()),
        };
        let endless = f64::INFINITY;
        let left = self.left.map_or(endless, |left| left as f64);
        let of_all = world.all_gather_rows(&[vec![left, self.size as f64]])?;
        let most = |column: usize| of_all.iter().map(|row| row[column]).fold(0.0, f64::max);
        self.left = Some(most(0))
            .filter(|left| *left < endless)
            .map(|left| left as usize);
        self.size = most(1) as usize;
        Ok(())
    }
}

impl Iterator for DistributedIter {
    type Item = Result<DistributedBatch>;

    fn next(&mut self) -> Option<Result<DistributedBatch>> {
        if !self.started {
            self.started = true;
            let agreed = self.agree();
            if let Err(error) = self.strategy.or_fail_together(agreed) {
                return Some(Err(error));
            }
            self.read_ahead();
        }
        let (now, position) = self.ahead.take()?;
        let now = self.strategy.or_fail_together(now);
        if now.is_ok() {
            self.position = position;
            self.read_ahead();
        }
        Some(now)
    }
}

impl fmt::Debug for DistributedDataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} steps on {}", self.steps(), self.strategy)
    }
}

impl fmt::Debug for DistributedIter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DistributedIter on {}", self.strategy)
    }
}
