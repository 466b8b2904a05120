//! Batches: consecutive examples of a dataset, by index.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};

use super::agreement::{EXAMPLES, spread};
use super::buffer_pool::BufferPool;
use super::length_buckets::{self, BucketPlan};
use super::pad::Sequences;
use super::prefetch::PrefetchOptions;
use super::random_key::random_key;
use super::shard::{Sharding, WorkerPart};
use super::stage_stats::StageStats;
use super::stages::{Reindex, Repeat, Skip, Take};
use super::{AutoShardPolicy, Batch, ClassWeights, Dataset, HostTensor, Pad, Worker};
use crate::{Error, Result};

/// A dataset in batches: cheap to clone, immutable, and the same for the same epoch and index.
#[derive(Clone)]
pub struct Batches {
    pub(super) input: Dataset,
    size: usize,
    pub(super) drop_remainder: bool,
    pub(super) pad: Option<Pad>,
    /// Which examples are in which batch, where these are by length.
    pub(super) plan: Option<Arc<BucketPlan>>,
    stages: Vec<BatchStage>,
    /// How batches are made ahead, if somebody said so.
    pub(super) ahead: Option<PrefetchOptions>,
    pub(super) buffer_pool: Arc<BufferPool>,
    /// Bytes of the largest batch that was made ahead; 0 before the first.
    pub(super) largest: Arc<AtomicUsize>,
    /// A batch without rows but with the tensors of the others, once one was needed.
    no_rows: Arc<OnceLock<Batch>>,
    /// Which outputs are padded as sequences, once that was asked.
    sequences: Arc<OnceLock<Sequences>>,
    pub(super) sharding: Sharding,
    /// Whether some of the examples have weights, once that was asked.
    has_weights: Arc<OnceLock<bool>>,
    /// Number of examples of the epoch that come before these batches.
    pub(super) before: u64,
}

/// A function of a random key and a batch.
type MapBatch = dyn Fn(u64, Batch) -> Result<Batch> + Send + Sync;

/// A stage after `batch`.
#[derive(Clone)]
enum BatchStage {
    Reindex(Arc<dyn Reindex>),
    Map(u64, Arc<MapBatch>),
}

impl Batches {
    pub(super) fn new(input: Dataset, size: usize) -> Self {
        Self {
            input,
            size,
            drop_remainder: false,
            pad: None,
            plan: None,
            stages: Vec::new(),
            ahead: None,
            buffer_pool: Arc::default(),
            largest: Arc::default(),
            no_rows: Arc::default(),
            sequences: Arc::default(),
            sharding: Sharding::whole(),
            has_weights: Arc::default(),
            before: 0,
        }
    }

    pub(super) fn bucketed(self, plan: BucketPlan) -> Self {
        Self {
            plan: Some(Arc::new(plan)),
            ..self
        }
    }

    fn with(&self, stage: BatchStage) -> Self {
        let mut batches = self.clone();
        batches.stages.push(stage);
        batches.largest = Arc::default();
        batches
    }

    pub(super) fn reindexed(&self, reindex: impl Reindex) -> Self {
        self.with(BatchStage::Reindex(Arc::new(reindex)))
    }

    /// Without the last batch of the dataset when it has fewer examples than the others.
    #[must_use]
    pub fn drop_remainder(&self) -> Self {
        Self {
            drop_remainder: true,
            ..self.clone()
        }
    }

    /// Pads examples of different sizes to the longest of their batch (`tf.data`'s `padded_batch`).
    #[must_use]
    pub fn pad(&self, pad: Pad) -> Self {
        Self {
            pad: Some(pad),
            no_rows: Arc::default(),
            sequences: Arc::default(),
            ..self.clone()
        }
    }

    /// The first `count` batches, or all if there are fewer.
    #[must_use]
    pub fn take(&self, count: usize) -> Self {
        self.reindexed(Take(count))
    }

    /// All but the first `count` batches.
    #[must_use]
    pub fn skip(&self, count: usize) -> Self {
        self.reindexed(Skip(count))
    }

    /// The batches `count` times over; a shuffle in the dataset gives each repetition its own order.
    #[must_use]
    pub fn repeat(&self, count: usize) -> Self {
        self.reindexed(Repeat(Some(count)))
    }

    /// The batches over and over without end.
    #[must_use]
    pub fn repeat_forever(&self) -> Self {
        self.reindexed(Repeat(None))
    }

    /// A function applied to each batch; a panic inside becomes an error.
    #[must_use]
    pub fn map(&self, map: impl Fn(Batch) -> Result<Batch> + Send + Sync + 'static) -> Self {
        self.map_random(0, move |_, batch| map(batch))
    }

    /// A function applied to each batch with a random key, such as [`mix_up`](super::mix_up).
    ///
    /// The key is drawn from (seed, epoch, index of the batch as `batch` made it, before `take`, `skip` and `repeat`).
    #[must_use]
    pub fn map_random(
        &self,
        seed: u64,
        map: impl Fn(u64, Batch) -> Result<Batch> + Send + Sync + 'static,
    ) -> Self {
        self.with(BatchStage::Map(seed, Arc::new(map)))
    }

    /// The sample weights multiplied by a weight per class (Keras' `class_weight`); see [`ClassWeights`].
    #[must_use]
    pub fn class_weights(&self, weights: ClassWeights) -> Self {
        self.map(move |batch| weights.apply_to_batch(batch))
    }

    /// One worker's part of each batch: the parts of all workers in a step together are one of these batches.
    ///
    /// All workers have the same number of steps, known up front from the lengths; a worker that has no more examples
    /// gets batches without rows.
    ///
    /// # Errors
    /// When the worker's index is out of range, the policy is `File` and the data are not in files, or batches are by length and
    /// the policy is `File` or `Off`.
    pub fn shard(&self, worker: Worker, policy: AutoShardPolicy) -> Result<Self> {
        let policy = match &self.plan {
            Some(_) => length_buckets::policy(worker, policy)?,
            None => policy,
        };
        let sharding = Sharding::new(&self.input, worker, policy)?;
        Ok(Self {
            sharding,
            ..self.clone()
        })
    }

    /// How this worker's rows of batch `i` lie in the global batch; `None` where it reads whole batches.
    ///
    /// # Errors
    /// When `i` is past the end.
    pub(crate) fn worker_part(&self, epoch: u64, i: usize) -> Result<Option<WorkerPart>> {
        if self.sharding.worker.count == 1 {
            return Ok(None);
        }
        let (epoch, step) = self.locate(epoch, i)?;
        if let Some(plan) = &self.plan {
            return Ok(Some(self.bucketed_part(plan, epoch, step)));
        }
        let mut part = self.sharding.part(&self.input, self.size, step);
        let steps = self.len_before_stages();
        if self.sharding.is_divided_by_hand() && steps.is_some_and(|steps| step + 1 >= steps) {
            // A worker knows its own data alone. All have as many steps, so those before the last are full for all.
            part.is_even = false;
        }
        Ok(Some(part))
    }

    /// The most rows of a batch of all workers together. Who reads files of its own may have as many as in a full batch, however few
    /// examples there are.
    pub(super) fn most_rows_of_all(&self) -> usize {
        match self.sharding.is_by_position() {
            true => self.size.min(self.input.len().unwrap_or(usize::MAX).max(1)),
            false => self.size,
        }
    }

    /// The worker whose part of each batch these are.
    pub(crate) const fn worker(&self) -> Worker {
        self.sharding.worker
    }

    /// How the data are divided between workers: `File`, `Data` or `Off`.
    #[must_use]
    pub const fn shard_policy(&self) -> AutoShardPolicy {
        self.sharding.policy
    }

    /// A line for the user about how the data are sharded and why; nothing where there is no choice.
    #[must_use]
    pub fn shard_notice(&self) -> Option<&str> {
        self.sharding.notice.as_deref()
    }

    /// The examples of these batches one by one; the stages after `batch` are applied to whole batches.
    ///
    /// # Errors
    /// When a stage comes after `batch`, since it may change the rows, or the batches are padded or sharded.
    pub fn unbatch(&self) -> Result<Dataset> {
        if self.pad.is_some() || self.plan.is_some() {
            return Err(Error::user(
                "cannot unbatch padded batches, whose examples have their own lengths; pad behind the next batch",
            ));
        }
        if !self.stages.is_empty() || self.sharding.worker.count > 1 {
            return Err(Error::user(
                "cannot unbatch after stages of batches or sharding; put them behind the next batch",
            ));
        }
        let whole = self
            .input
            .len()
            .filter(|_| self.drop_remainder && self.size > 0);
        Ok(whole.map_or_else(
            || self.input.clone(),
            |len| self.input.take(len / self.size * self.size),
        ))
    }

    /// Makes up to `depth` batches ahead, on a thread that the iterator starts, however large they are
    /// ([`autotune`](Self::autotune) limits their size); with 0 each is made when it is asked for.
    ///
    /// All stages run on that thread, also those added after this call.
    #[must_use]
    pub fn prefetch(&self, depth: usize) -> Self {
        self.ahead(PrefetchOptions {
            depth,
            ..self.ahead.unwrap_or_default()
        })
    }

    /// Makes batches ahead on `threads` threads, each thread one batch at a time; their order stays the same.
    #[must_use]
    pub fn threads(&self, threads: usize) -> Self {
        self.ahead(PrefetchOptions {
            threads: threads.max(1),
            depth: self.ahead.unwrap_or_default().depth.max(threads),
            tuned: false,
        })
    }

    /// Makes batches ahead, with the number of threads and batches tuned to measured waiting times.
    ///
    /// At most one thread per processor, and at most 1 GiB of batches: until the first is made and its size known, no other is
    /// begun.
    #[must_use]
    pub fn autotune(&self) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        self.ahead(PrefetchOptions {
            threads,
            depth: 2 * threads,
            tuned: true,
        })
    }

    /// As a trainer reads them where nobody said how: [`autotune`](Self::autotune)d where examples are read, decoded or computed;
    /// arrays in memory are copied on the thread that trains, which takes less time than to wake another.
    pub(crate) fn read_ahead(&self) -> Self {
        let maps = self.stages.iter().any(|stage| stage.map().is_some());
        match self.ahead {
            None if maps || self.input.stage().computes() => self.autotune(),
            _ => self.clone(),
        }
    }

    fn ahead(&self, ahead: PrefetchOptions) -> Self {
        Self {
            ahead: Some(ahead),
            ..self.clone()
        }
    }

    /// Number of examples in a full batch; in the largest, where batches are by length.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size
    }

    /// The dataset that is batched.
    #[must_use]
    pub const fn dataset(&self) -> &Dataset {
        &self.input
    }

    /// Number of batches in an epoch, `None` when endless.
    #[must_use]
    pub fn len(&self) -> Option<usize> {
        let stages = self.stages.iter().filter_map(BatchStage::reindex);
        stages.fold(self.len_before_stages(), |len, stage| stage.len(len))
    }

    fn len_before_stages(&self) -> Option<usize> {
        if let Some(plan) = &self.plan {
            return Some(plan.len(self.drop_remainder));
        }
        self.sharding
            .steps(&self.input, self.size, self.drop_remainder)
    }

    /// Whether an epoch has no batch.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// Batch `i` of an epoch, made on this thread.
    ///
    /// # Errors
    /// When `i` is past the end, the batch size is 0, or a source or map stage fails or panics.
    pub fn get(&self, epoch: u64, i: usize) -> Result<Batch> {
        match self.len() {
            Some(len) if i >= len && self.size > 0 => Err(Error::User(format!(
                "batch {i} asked of {len}; ask for an index below {len}"
            ))),
            _ => self.make(epoch, i, &self.stage_stats()),
        }
    }

    pub(super) fn make(&self, epoch: u64, i: usize, stage_stats: &StageStats) -> Result<Batch> {
        let made = catch_unwind(AssertUnwindSafe(|| {
            self.make_or_panic(epoch, i, stage_stats)
        }));
        made.unwrap_or_else(|panic| {
            Err(Error::User(format!(
                "a source or map stage panicked in batch {i} of epoch {epoch}: {}; correct it, or let it return an error",
                panic_message(&*panic)
            )))
        })
    }

    fn make_or_panic(&self, epoch: u64, i: usize, stage_stats: &StageStats) -> Result<Batch> {
        let (input_epoch, input_index) = self.locate(epoch, i)?;
        let mut batch = stage_stats.stages[0].made(|| self.gather(input_epoch, input_index))?;
        batch.first = match &self.plan {
            Some(plan) => self.first_of(plan, input_epoch, input_index),
            None => self
                .before
                .saturating_add((i as u64).saturating_mul(self.size as u64)),
        };
        if batch.x.is_empty() {
            // All its examples were corrupt: maps have nothing to work on, and the step is left out.
            return Ok(batch);
        }
        let rows = batch.rows();
        let maps = self.stages.iter().filter_map(BatchStage::map);
        for ((seed, map), clock) in maps.zip(&stage_stats.stages[1..]) {
            // Each batch is at least an example, so that no other of the epoch has its number.
            let number = self.before.wrapping_add(input_index as u64);
            let key = random_key(seed, input_epoch, number);
            batch = match batch.stand_in() {
                Some(row) => map(key, row)?.without_rows(),
                None => clock.made(|| map(key, batch))?,
            };
        }
        if self.sharding.worker.count > 1 && batch.rows() != rows {
            // The others do not see it, and count on as many.
            return Err(Error::User(format!(
                "a map of batches made {} rows of {rows}, where workers divide batches among each other; filter or add examples before `batch`",
                batch.rows()
            )));
        }
        let may_lack_weights = self.sharding.worker.count > 1 && batch.weight.is_none();
        if may_lack_weights && self.has_weights() {
            // Another worker may have some, and all run one program.
            batch.weight = Some(HostTensor::new([rows], &vec![1.0f32; rows]));
        }
        Ok(batch)
    }

    /// The epoch and index, as `batch` made them, of batch `i` after all stages.
    pub(super) fn locate(&self, epoch: u64, i: usize) -> Result<(u64, usize)> {
        let stages: Vec<&dyn Reindex> =
            self.stages.iter().filter_map(BatchStage::reindex).collect();
        let mut lens = vec![self.len_before_stages()];
        for stage in &stages {
            lens.push(stage.len(lens[lens.len() - 1]));
        }
        let mut backwards = stages.iter().zip(lens).rev();
        backwards.try_fold((epoch, i), |(epoch, i), (stage, len)| {
            stage.locate(len, epoch, i)
        })
    }

    fn gather(&self, epoch: u64, i: usize) -> Result<Batch> {
        if self.size == 0 {
            return Err(Error::user(
                "batch size is 0, expected at least 1; choose the number of examples per step",
            ));
        }
        if let Some(plan) = &self.plan {
            return self.gather_bucketed(plan, epoch, i);
        }
        let (input, start, size) = self.sharding.locate(&self.input, self.size, i);
        let indices: Vec<usize> = (start..start.saturating_add(size)).collect();
        let batch = self.gathered(input, epoch, &indices)?;
        if batch.rows() == 0 && self.sharding.worker.count > 1 {
            return self.no_rows(epoch);
        }
        Ok(batch)
    }

    fn gathered(&self, input: &Dataset, epoch: u64, indices: &[usize]) -> Result<Batch> {
        match &self.pad {
            Some(pad) => {
                let pad = (pad, self.sequences());
                input.gather_padded(epoch, indices, pad, &self.buffer_pool)
            }
            None => input.gather(epoch, indices, &self.buffer_pool),
        }
    }

    /// Whether some of all workers' examples have weights, as far as that is known without reading all.
    pub(crate) fn has_weights(&self) -> bool {
        *self.has_weights.get_or_init(|| self.input.stage().weighs())
    }

    /// Which outputs are sequences, by a few examples of all workers' data.
    pub(super) fn sequences(&self) -> &Sequences {
        self.sequences.get_or_init(|| {
            let is_rounded = self.pad.is_some_and(|pad| pad.multiple > 1);
            let most = if is_rounded { EXAMPLES } else { 0 };
            let places = spread(self.input.coverage_window(), most);
            // Whoever trains on one that cannot be read is told why.
            let read = |i| {
                let read = || self.input.read_counting_skips(0, i, 0);
                let example = catch_unwind(AssertUnwindSafe(read));
                example.ok().and_then(Result::ok).flatten()
            };
            Sequences::of(&places.filter_map(read).collect::<Vec<_>>())
        })
    }

    /// A batch without rows but with the tensors of the others, made from the first example that is not corrupt.
    fn no_rows(&self, epoch: u64) -> Result<Batch> {
        if let Some(batch) = self.no_rows.get() {
            return Ok(batch.clone());
        }
        let mut found = None;
        for i in 0..self.input.coverage_window() {
            // Counts as 0 skips: the example is counted when it is read for its own batch.
            if let Some(example) = self.input.read_counting_skips(epoch, i, 0)? {
                let mut example = [example];
                if let Some(pad) = &self.pad {
                    pad.apply(&mut example, self.sequences())?;
                }
                found = Some(Batch::stack(&example)?);
                break;
            }
        }
        let batch = found.ok_or_else(all_corrupt)?;
        let batch = batch.without_rows();
        Ok(self.no_rows.get_or_init(|| batch).clone())
    }

    /// This many consecutive batches without rows prove that every example is corrupt.
    pub(crate) fn most_empty(&self) -> usize {
        // Twice, since a repetition whose last batch is not full shifts the batches after it.
        let batches = match &self.plan {
            Some(plan) => plan.len(false),
            None => self.input.coverage_window().div_ceil(self.size.max(1)),
        };
        batches.saturating_mul(2).saturating_add(1)
    }

    /// Whether a stage after `batch` changes the order or number of batches.
    pub(super) fn reorders(&self) -> bool {
        self.stages.iter().any(|stage| stage.reindex().is_some())
    }

    pub(super) fn stage_stats(&self) -> StageStats {
        StageStats::new(self.stages.iter().filter_map(BatchStage::map).count())
    }
}

impl BatchStage {
    fn reindex(&self) -> Option<&dyn Reindex> {
        match self {
            Self::Reindex(reindex) => Some(&**reindex),
            Self::Map(..) => None,
        }
    }

    fn map(&self) -> Option<(u64, &MapBatch)> {
        match self {
            Self::Reindex(_) => None,
            Self::Map(seed, map) => Some((*seed, &**map)),
        }
    }
}

impl fmt::Debug for Batches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.len() {
            Some(len) => write!(f, "{len} Batches of {}", self.size),
            None => write!(f, "endless Batches of {}", self.size),
        }
    }
}

pub(super) fn all_corrupt() -> Error {
    Error::user(
        "every example of the data is corrupt and left out; check the files, or remove skip_corrupt to see why",
    )
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::{Duration, Instant};

    use proptest::prelude::*;

    use super::*;

    fn count_to(len: usize) -> Dataset {
        let values: Vec<i32> = (0..len as i32).collect();
        Dataset::from_arrays(HostTensor::new([len], &values), Vec::new()).unwrap()
    }

    fn values(batch: &Batch) -> Vec<i32> {
        batch.x[0].values().unwrap()
    }

    fn all(batches: &Batches, epoch: u64, start: usize) -> Vec<Vec<i32>> {
        batches
            .iter(epoch, start)
            .map(|batch| values(&batch.unwrap()))
            .collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn an_epoch_holds_every_example_once(len in 0usize..200, size in 1usize..40, seed: u64, epoch: u64, depth in 0usize..3) {
            let batches = count_to(len).shuffle(seed).batch(size).prefetch(depth);
            let epoch = all(&batches, epoch, 0);
            prop_assert_eq!(Some(epoch.len()), batches.len());
            let mut seen = epoch.concat();
            seen.sort_unstable();
            prop_assert!(seen.into_iter().eq(0..len as i32));
        }

        #[test]
        fn any_start_gives_the_tail(len in 1usize..60, size in 1usize..9, start in 0usize..40, take in 0usize..40, depth in 0usize..2) {
            let batches = count_to(len).shuffle(9).repeat(2).batch(size).repeat(2).skip(1).take(take).prefetch(depth);
            let whole: Vec<Batch> = batches.iter(3, 0).map(Result::unwrap).collect();
            let tail: Vec<Batch> = batches.iter(3, start).map(Result::unwrap).collect();
            prop_assert_eq!(&whole[start.min(whole.len())..], &tail[..]);
        }
    }

    #[test]
    fn the_last_batch_is_ragged_or_dropped() {
        let batches = count_to(7).batch(3);
        assert_eq!(all(&batches, 0, 0), [vec![0, 1, 2], vec![3, 4, 5], vec![6]]);
        assert_eq!(batches.get(0, 2).unwrap().rows(), 1);
        let firsts: Vec<u64> = batches
            .iter(0, 1)
            .map(|batch| batch.unwrap().first)
            .collect();
        assert_eq!(firsts, [3, 6]);
        let full = batches.drop_remainder();
        assert_eq!(all(&full, 0, 0), [[0, 1, 2], [3, 4, 5]]);
        assert_eq!(all(&count_to(6).batch(3), 0, 0), [[0, 1, 2], [3, 4, 5]]);
        assert_eq!(count_to(2).batch(3).drop_remainder().len(), Some(0));
        assert_eq!(all(&count_to(2).batch(3).drop_remainder(), 0, 0).len(), 0);
        assert_eq!(
            all(&count_to(2).repeat_forever().batch(3).take(2), 0, 0),
            [[0, 1, 0], [1, 0, 1]]
        );
    }

    #[test]
    fn stages_apply_in_written_order() {
        let batches = count_to(6).batch(2);
        assert_eq!(
            all(&batches.skip(1).repeat(2), 0, 0),
            [[2, 3], [4, 5], [2, 3], [4, 5]]
        );
        assert_eq!(all(&batches.repeat(2).skip(4), 0, 0), [[2, 3], [4, 5]]);
        assert_eq!(all(&batches.repeat_forever().take(4), 0, 3), [[0, 1]]);
        assert_eq!(batches.repeat_forever().len(), None);
        let shuffled = count_to(60).shuffle(1).batch(30).repeat(2);
        let epoch = all(&shuffled, 0, 0);
        assert_ne!(epoch[..2], epoch[2..]);
        assert_ne!(epoch[2..], all(&shuffled, 1, 0)[..2]);
    }

    #[test]
    fn a_failing_or_panicking_stage_ends_the_epoch_with_an_error() {
        for depth in [0, 2] {
            let fails = count_to(9).batch(3).map(|batch| match batch.first {
                3 => Err(Error::user("no luck")),
                _ => Ok(batch),
            });
            let mut batches = fails.prefetch(depth).iter(0, 0);
            assert!(batches.next().unwrap().is_ok());
            assert_eq!(batches.next().unwrap().unwrap_err().to_string(), "no luck");
            assert!(batches.next().is_none());
            let panics = count_to(9)
                .map(|_| panic!("bad {}", 7))
                .batch(3)
                .prefetch(depth);
            let error = panics.iter(4, 1).next().unwrap().unwrap_err().to_string();
            assert!(
                error.contains("panicked in batch 1 of epoch 4: bad 7"),
                "{error}"
            );
        }
    }

    #[test]
    fn memory_bounds_how_far_is_made_ahead_from_the_first_batch_on() {
        let made = Arc::new(AtomicU64::new(0));
        let (while_first, counter) = (Arc::new(AtomicU64::new(0)), Arc::clone(&made));
        let first = Arc::clone(&while_first);
        let batches = count_to(100).batch(1).map(move |batch| {
            counter.fetch_add(1, Ordering::SeqCst);
            if batch.first == 0 {
                std::thread::sleep(Duration::from_millis(40));
                first.store(counter.load(Ordering::SeqCst), Ordering::SeqCst);
            }
            Ok(batch)
        });
        let ahead = PrefetchOptions {
            depth: 8,
            threads: 4,
            tuned: true,
        };
        let batches = batches.ahead(ahead);
        let made_after_two = |expected| {
            made.store(0, Ordering::SeqCst);
            let mut iter = batches.iter(0, 0);
            iter.by_ref().take(2).for_each(|batch| drop(batch.unwrap()));
            let start = Instant::now();
            while made.load(Ordering::SeqCst) < expected && start.elapsed().as_secs() < 10 {
                std::thread::sleep(Duration::from_millis(5));
            }
            std::thread::sleep(Duration::from_millis(30));
            assert_eq!(made.load(Ordering::SeqCst), expected);
        };
        made_after_two(10);
        assert_eq!(while_first.load(Ordering::SeqCst), 1, "of unknown size");
        // Batches of which there is room for two, and for none.
        for (bytes, expected) in [(super::super::prefetch::MAX_BYTES / 2, 4), (usize::MAX, 3)] {
            batches.largest.store(bytes, Ordering::SeqCst);
            made_after_two(expected);
        }
    }

    #[test]
    fn a_batch_size_of_zero_and_a_far_index_are_errors() {
        let batches = count_to(3).batch(0);
        let mut epoch = batches.prefetch(1).iter(0, 0);
        assert!(
            epoch
                .next()
                .unwrap()
                .unwrap_err()
                .to_string()
                .contains("batch size is 0")
        );
        assert!(epoch.next().is_none());
        assert!(
            batches
                .get(0, 0)
                .unwrap_err()
                .to_string()
                .contains("batch size is 0")
        );
        let error = count_to(3).batch(2).get(0, 2).unwrap_err().to_string();
        assert!(error.contains("batch 2 asked of 2"), "{error}");
    }

    #[test]
    fn examples_that_are_computed_are_read_ahead_where_nobody_said_how() {
        let x = HostTensor::new([4], &[0.0f32; 4]);
        let arrays = Dataset::from_arrays(x, Vec::new()).unwrap();
        let computed = arrays.map(Ok);
        let is_ahead =
            |batches: Batches| batches.read_ahead().ahead.is_some_and(|ahead| ahead.tuned);
        assert!(is_ahead(computed.batch(2)));
        assert!(is_ahead(arrays.batch(2).map(Ok)));
        assert!(is_ahead(computed.shuffle(1).repeat(2).take(4).batch(2)));
        assert!(!is_ahead(count_to(3).batch(2)));
        assert!(!is_ahead(arrays.shuffle(1).repeat(2).skip(1).batch(2)));
        assert!(!is_ahead(computed.batch(2).prefetch(0)));
        assert!(!is_ahead(computed.batch(2).threads(1)));
    }

    #[test]
    fn dropping_a_prefetching_iterator_ends_its_thread() {
        let made = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&made);
        let batches = count_to(4)
            .repeat_forever()
            .batch(2)
            .prefetch(3)
            .map(move |batch| {
                count.fetch_add(1, Ordering::SeqCst);
                Ok(batch)
            });
        let start = Instant::now();
        for read in [0, 1, 10] {
            let mut epoch = batches.iter(0, 0);
            assert_eq!(epoch.by_ref().take(read).count(), read);
            drop(epoch);
        }
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "{:?}",
            start.elapsed()
        );
        drop(batches);
        assert_eq!(Arc::strong_count(&made), 1, "the threads are gone");
        let most = 11 + 3 * (3 + 1);
        assert!(
            made.load(Ordering::SeqCst) <= most,
            "ran ahead by more than the depth: {made:?}"
        );
    }

    #[test]
    fn waiting_and_working_are_told_apart() {
        let nap = || std::thread::sleep(Duration::from_millis(100));
        let slow = count_to(4).batch(1).map(move |batch| {
            nap();
            Ok(batch)
        });
        let mut slow = slow.prefetch(1).iter(0, 0);
        assert_eq!(slow.by_ref().count(), 4);
        let [examples, map, prefetch, next] = slow.stage_times()[..] else {
            panic!("stages")
        };
        assert_eq!(
            [examples.stage, map.stage, prefetch.stage, next.stage],
            ["examples", "map", "prefetch", "next"]
        );
        assert_eq!((map.batches, prefetch.batches), (4, 4));
        assert!(map.busy >= Duration::from_millis(400) && examples.busy < map.busy);
        assert!(
            next.wait >= Duration::from_millis(150),
            "input-bound: {next:?}"
        );
        // Enough that a thread that begins late is waited for no longer.
        let mut fast = count_to(30).batch(1).prefetch(1).iter(0, 0);
        fast.by_ref().for_each(|_| nap());
        let [_, prefetch, next] = fast.stage_times()[..] else {
            panic!("stages")
        };
        assert!(
            prefetch.wait > next.wait,
            "consumer-bound: {prefetch:?} {next:?}"
        );
    }
}
