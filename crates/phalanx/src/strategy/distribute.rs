//! Batches divided over replicas and put on their devices, one step ahead.

use std::fmt;

use phalanx_graph::HostTensor;

use super::distributed_batch::DistributedBatch;
use super::handle::StrategyHandle;
use crate::data::{AutoShardPolicy, Batch, BatchIter, Batches, Position, Segment, Worker};
use crate::{Error, Result};

/// Batches that are divided over the replicas as they are read; see
/// [`distribute_dataset`](super::CustomTraining::distribute_dataset).
#[derive(Clone)]
pub struct DistributedDataset {
    strategy: StrategyHandle,
    origin: Origin,
}

#[derive(Clone)]
enum Origin {
    /// Global batches, of which each of several processes reads its part.
    Global(Box<Batches>),
    /// Batches of one replica each: from a pipeline of each replica, or from one that deals them out in turn. They were made for this
    /// place among processes.
    Own(Vec<Batches>, WorkerPlace),
}

/// The number of a process, and how many there are.
type WorkerPlace = (usize, usize);

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
        Self {
            strategy: strategy.clone(),
            origin: Origin::Global(Box::new(batches.clone())),
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
        let place = strategy.place();
        let (worker, workers) = place;
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
        Ok(Self {
            strategy: strategy.clone(),
            origin: Origin::Own(batches, place),
        })
    }

    /// Number of steps in an epoch of this process' data, `None` when endless.
    #[must_use]
    pub fn steps(&self) -> Option<usize> {
        let own = self.pipelines();
        let own = own.unwrap_or_else(|_| self.origin.batches().to_vec());
        self.steps_after(&own, 0)
    }

    /// The steps of an epoch. The batch of the next step is on the devices before this one is handed out.
    #[must_use]
    pub fn epoch(&self, epoch: u64) -> DistributedIter {
        let begin = Position::start(epoch);
        let begun = self.epoch_from(&begin);
        begun.unwrap_or_else(|error| DistributedIter::refused(&self.strategy, &begin, error))
    }

    /// The rest of an epoch: its steps after those that were handed out at the [position](DistributedIter::position), on
    /// this strategy or another. The pipelines of a function must be as many as before.
    ///
    /// # Errors
    /// When the position is of other data or has impossible numbers; see [`Batches::iter_at`].
    pub fn epoch_from(&self, position: &Position) -> Result<DistributedIter> {
        let pipelines = match self.pipelines() {
            Ok(pipelines) => pipelines,
            Err(error) => return Ok(DistributedIter::refused(&self.strategy, position, error)),
        };
        let is_global = matches!(self.origin, Origin::Global(_));
        let counted = match is_global {
            true => 1,
            false => pipelines.len() * self.strategy.place().1,
        };
        if !is_global {
            check_pipelines(position, &pipelines[0], counted)?;
        }
        let (readers, read) = match (&*pipelines, counted) {
            ([one], 1) => (vec![one.iter_at(position)?], 0),
            _ => {
                let read = position.segments.first().map_or(0, |segment| segment.steps);
                let readers = pipelines.iter().map(|own| after(own, position.epoch, read));
                let readers = readers.collect::<Result<_>>();
                // Others may be able to read theirs.
                (self.strategy.placement.or_fail_together(readers)?, read)
            }
        };
        let skips_corrupt = |batches: &Batches| batches.dataset().skips_corrupt();
        let mut iter = DistributedIter {
            strategy: self.strategy.clone(),
            place: self.strategy.place(),
            position: position.clone(),
            readers,
            is_global,
            skips_corrupt: pipelines.iter().any(skips_corrupt),
            size: pipelines.iter().map(Batches::size).max().unwrap_or(1),
            is_weighted: false,
            left: self.steps_after(&pipelines, read),
            pipelines,
            counted,
            read,
            before: None,
            ahead: None,
            started: false,
            refused: None,
        };
        iter.position = iter.reached();
        Ok(iter)
    }

    /// The pipelines that this process reads now: others may have come and gone since the data were made.
    fn pipelines(&self) -> Result<Vec<Batches>> {
        match &self.origin {
            Origin::Global(batches) => {
                let own = match self.strategy.placement.world() {
                    None => Batches::clone(batches),
                    Some(world) => batches.sharded_for(Worker {
                        index: world.worker(),
                        count: world.workers(),
                        replicas: world.local_replicas(),
                    })?,
                };
                Ok(vec![own])
            }
            Origin::Own(pipelines, made_for) => {
                let advice = "make them again with `distribute_datasets_from_function`";
                check_place(*made_for, &self.strategy, advice)?;
                Ok(pipelines.clone())
            }
        }
    }

    /// The steps after these batches of each of the pipelines.
    fn steps_after(&self, pipelines: &[Batches], read: usize) -> Option<usize> {
        let each = match self.origin {
            Origin::Global(_) => 1,
            Origin::Own(..) => self.strategy.local_replicas() / pipelines.len(),
        };
        let left = |own: &Batches| Some(own.len()?.saturating_sub(read).div_ceil(each));
        let left: Option<Vec<usize>> = pipelines.iter().map(left).collect();
        left?.into_iter().max()
    }
}

impl Origin {
    /// As they were given.
    fn batches(&self) -> &[Batches] {
        match self {
            Self::Global(batches) => std::slice::from_ref(batches),
            Self::Own(pipelines, _) => pipelines,
        }
    }
}

/// Refuses data that were made for another place among processes.
fn check_place(made_for: WorkerPlace, strategy: &StrategyHandle, advice: &str) -> Result<()> {
    let now = strategy.place();
    if made_for == now {
        return Ok(());
    }
    let text = |(worker, workers): WorkerPlace| format!("worker {worker} of {workers}");
    Err(Error::user(format!(
        "the data were made for {}, and this process has become {}; {advice}",
        text(made_for),
        text(now)
    )))
}

/// Refuses the position of another number of pipelines than `count`, of which `own` is one.
fn check_pipelines(position: &Position, own: &Batches, count: usize) -> Result<()> {
    let of_several = |segment: &Segment| segment.policy == AutoShardPolicy::Off;
    let before = match &*position.segments {
        [] => return Ok(()),
        [one] if of_several(one) => one.workers,
        _ => 1,
    };
    // One pipeline may be divided by hand.
    if before == count || count == 1 && before == own.worker().count {
        return Ok(());
    }
    Err(Error::user(format!(
        "the position is of {before} input pipelines, and here there are {count}; make as many, or start at the next epoch"
    )))
}

/// The batches of a pipeline after this number of them.
fn after(own: &Batches, epoch: u64, read: usize) -> Result<BatchIter> {
    if !own.dataset().skips_corrupt() {
        return Ok(own.iter(epoch, read));
    }
    // A batch that was left out has a place, too.
    let mut iter = own.iter(epoch, 0);
    for batch in iter.by_ref().take(read) {
        batch?;
    }
    Ok(iter)
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
    place: WorkerPlace,
    pipelines: Vec<Batches>,
    readers: Vec<BatchIter>,
    /// Whether a batch is one for all replicas.
    is_global: bool,
    /// The pipelines of all processes, of which each gives as many batches to a step.
    counted: usize,
    /// The batches that each of several has given, or would have if it had not ended.
    read: usize,
    /// Whether batches may have fewer rows than their places say.
    skips_corrupt: bool,
    /// ExampleRows of a full batch.
    size: usize,
    /// Whether batches have weights, of a process or of another.
    is_weighted: bool,
    /// The steps to come, `None` when endless; of several processes with pipelines of their own, the steps of the longest.
    left: Option<usize>,
    /// A batch of a step before, where several processes have pipelines of their own.
    before: Option<Batch>,
    /// The position after the steps that were handed out.
    position: Position,
    /// The next step, and the position after it.
    ahead: Option<(Result<DistributedBatch>, Position)>,
    started: bool,
    /// Why this process has no part of the data.
    refused: Option<Error>,
}

impl DistributedIter {
    /// One that gives this error.
    fn refused(strategy: &StrategyHandle, position: &Position, error: Error) -> Self {
        Self {
            strategy: strategy.clone(),
            place: strategy.place(),
            pipelines: Vec::new(),
            readers: Vec::new(),
            is_global: false,
            counted: 0,
            read: 0,
            skips_corrupt: false,
            size: 0,
            is_weighted: false,
            left: None,
            before: None,
            position: position.clone(),
            ahead: None,
            started: false,
            refused: Some(error),
        }
    }

    /// The position after the steps that were handed out: what [`DistributedDataset::epoch_from`] goes on from, and
    /// [`State::training_state_at`](super::State::training_state_at) keeps.
    #[must_use]
    pub const fn position(&self) -> &Position {
        &self.position
    }

    /// The position after the steps that were read, which all processes have alike. Some of several pipelines may have ended.
    fn reached(&self) -> Position {
        if let ([one], 1) = (&*self.readers, self.counted) {
            return one.position();
        }
        let segment = Segment {
            policy: AutoShardPolicy::Off,
            workers: self.counted,
            replicas: 1,
            batch: self.size,
            steps: self.read,
            left_out: 0,
            buckets: None,
        };
        Position {
            epoch: self.position.epoch,
            segments: vec![segment],
        }
    }

    fn read_ahead(&mut self) {
        let next = self.read();
        self.ahead = next.map(|batch| (batch, self.reached()));
    }

    fn read(&mut self) -> Option<Result<DistributedBatch>> {
        let advice = "begin the rest of the epoch with `epoch_from`";
        if let Err(error) = check_place(self.place, &self.strategy, advice) {
            return Some(Err(error));
        }
        if self.is_global {
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
                self.read += replicas / readers;
                Some(self.divided(batches))
            }
            Err(error) => Some(Err(error)),
        }
    }

    /// A batch for each replica that has one.
    fn divided(&mut self, batches: Vec<Option<Batch>>) -> Result<DistributedBatch> {
        if self.before.is_none() && batches.iter().all(Option::is_none) {
            self.before = self.first_batch()?;
        }
        let (before, all) = (self.before.as_ref(), (self.size, self.is_weighted));
        let made = DistributedBatch::of_batches(&self.strategy, &batches, before, all)?;
        if self.strategy.world().is_some() {
            let mut all = batches.into_iter().flatten();
            let some = all.find(|batch| batch.rows() > 0);
            self.before = some.or(self.before.take());
        }
        Ok(made)
    }

    /// The first batch that a pipeline of this process has in the epoch, which it may have handed out long ago.
    fn first_batch(&self) -> Result<Option<Batch>> {
        let epoch = self.position.epoch;
        let mut firsts = self.pipelines.iter();
        let first = firsts.find_map(|own| own.prefetch(0).iter(epoch, 0).next());
        first.transpose()
    }

    fn split(&self, mut batch: Batch) -> Result<DistributedBatch> {
        let full = self.readers[0].full_rows().unwrap_or(self.size);
        let Some(mut part) = self.readers[0].worker_part()? else {
            return DistributedBatch::split(&self.strategy, &batch, full);
        };
        part.is_even &= !self.skips_corrupt;
        batch.first += part.first_row as u64;
        DistributedBatch::of_worker(&self.strategy, &batch, full, part)
    }

    /// What processes with pipelines of their own agree on before the first step: how many steps there are, how many rows in the arrays of
    /// a replica, and whether examples have weights, since all run one program.
    fn agree(&mut self) -> Result<()> {
        if let Some(refused) = self.refused.take() {
            return Err(refused);
        }
        let world = match self.strategy.world() {
            Some(world) if !self.is_global => world,
            _ => return Ok(()),
        };
        let endless = f64::INFINITY;
        let left = self.left.map_or(endless, |left| left as f64);
        let weighs = f64::from(self.pipelines.iter().any(Batches::has_weights));
        let of_all = world.all_gather_rows(&[vec![left, self.size as f64, weighs]])?;
        let most = |column: usize| of_all.iter().map(|row| row[column]).fold(0.0, f64::max);
        self.left = Some(most(0))
            .filter(|left| *left < endless)
            .map(|left| left as usize);
        self.size = most(1) as usize;
        self.is_weighted = most(2) > 0.0;
        Ok(())
    }
}

impl Iterator for DistributedIter {
    type Item = Result<DistributedBatch>;

    fn next(&mut self) -> Option<Result<DistributedBatch>> {
        if !self.started {
            self.started = true;
            let agreed = self.agree();
            if let Err(error) = self.strategy.placement.or_fail_together(agreed) {
                return Some(Err(error));
            }
            self.read_ahead();
        }
        let (now, position) = self.ahead.take()?;
        let now = self.strategy.placement.or_fail_together(now);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Engine;
    use crate::replicas::Placement;

    #[test]
    fn pipelines_of_another_place_are_refused() {
        let engine = Engine::cpu().unwrap();
        let here = StrategyHandle::new("one", Placement::first(&engine));
        check_place((0, 1), &here, "").unwrap();
        let error = check_place((2, 4), &here, "make them again").unwrap_err();
        let expected =
            "made for worker 2 of 4, and this process has become worker 0 of 1; make them again";
        assert!(error.to_string().contains(expected), "{error}");
    }
}
