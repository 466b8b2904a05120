//! The stages of a dataset, one file each.
//!
//! | file | methods of [`Dataset`] |
//! |---|---|
//! | `arrays.rs` | `from_arrays`, `with_weights` |
//! | `custom_source.rs` | `from_source`, and every file format |
//! | `images.rs` | `from_images` |
//! | `shuffle.rs` | `shuffle` |
//! | `sample.rs` | `sample` |
//! | `take.rs` | `take`, `skip` |
//! | `repeat.rs` | `repeat`, `repeat_forever` |
//! | `epochs_of.rs` | `Batches::epochs_of` |
//! | `map.rs` | `map`, `map_random` |
//! | `filter.rs` | `filter`, and the files of one worker |
//! | `class_weights.rs` | `class_weights` |
//! | `interleave.rs` | `interleave` |
//! | `mix.rs` | `mix` |
//! | `zip.rs` | `zip` |
//! | `concatenate.rs` | `concatenate` |
//! | `cache.rs` | `cache` |
//! | `skip_corrupt.rs` | `skip_corrupt` |
//!
//! A new stage is a file with a struct, its [`Stage`], and the method of [`Dataset`] that adds it, plus a row here.
//! A stage that only changes which example is read implements [`Reindex`] instead, which is less.

mod arrays;
mod cache;
mod class_weights;
mod concatenate;
mod custom_source;
mod epochs_of;
mod filter;
mod images;
mod interleave;
mod map;
mod mix;
mod reindex;
mod repeat;
mod sample;
mod shuffle;
mod skip_corrupt;
mod take;
mod zip;

use phalanx_graph::HostTensor;

use super::agreement::of_place;
use super::batch_builder::BatchBuilder;
use super::buffer_pool::BufferPool;
use super::shard::NotShardable;
use super::{Batch, Dataset, Example, LostBytes, Worker};
use crate::Result;

pub use class_weights::ClassWeights;
pub(super) use filter::Subset;
pub(super) use reindex::Reindex;
pub(super) use repeat::Repeat;
pub(super) use shuffle::permute;
pub(super) use take::{Skip, Take};

/// Where a stage reads an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Location {
    /// Which of the stage's inputs.
    pub(super) input: usize,
    /// The epoch of that input.
    pub(super) epoch: u64,
    /// The index in that epoch.
    pub(super) index: usize,
}

/// The datasets that one worker reads, or why they cannot be told apart by file.
pub(super) type Sharded = std::result::Result<Dataset, NotShardable>;

/// One stage of a [`Dataset`]: which example of which input becomes example `i`, and what is done to it.
///
/// A stage has no state that reading changes (but for caches and counts), so any thread may read any index. The default
/// methods fit a stage with one input whose examples keep their places; `locate` is enough for one that moves
/// them.
pub(super) trait Stage: Send + Sync {
    /// The datasets that this stage reads; none for a source.
    fn inputs(&self) -> &[Dataset];

    /// Number of examples in an epoch; `None` is endless.
    fn len(&self) -> Option<usize> {
        self.inputs()[0].len()
    }

    /// Where example `i` of an epoch is read.
    fn locate(&self, epoch: u64, index: usize) -> Result<Location> {
        Ok(Location {
            input: 0,
            epoch,
            index,
        })
    }

    /// Example `i`, or nothing where it is corrupt and left out, which counts as `count` skipped.
    fn read(&self, epoch: u64, i: usize, count: u64) -> Result<Option<Example>> {
        let at = self.locate(epoch, i)?;
        self.inputs()[at.input].read_counting_skips(at.epoch, at.index, count)
    }

    /// The examples at `indices`, stacked, those left out missing.
    ///
    /// Must equal the examples one by one, which is the default; a stage that leaves examples as they are passes the
    /// request on ([`gather_located`]), so that it reaches the source in one piece.
    fn gather(&self, epoch: u64, indices: &[usize], pool: &BufferPool) -> Result<Batch> {
        gather_one_by_one(self, epoch, indices, pool)
    }

    /// Which example of the data example `i` is, as an epoch and a number: what randomness is drawn from, so that it does
    /// not depend on who reads the example in which order.
    ///
    /// By default the place in this stage's output. A stage that sharding by file goes through must pass on the identity of
    /// its input, since a worker's place differs.
    fn identity(&self, epoch: u64, i: usize) -> Result<(u64, u64)> {
        Ok((epoch, i as u64))
    }

    /// Adds where example `i` comes from to a checksum, down to the place in a source.
    fn origin(&self, sum: u32, epoch: u64, i: usize) -> Result<u32> {
        let at = self.locate(epoch, i)?;
        let sum = of_place(sum, 0, at.input);
        Ok(match self.inputs().get(at.input) {
            Some(input) => input.origin(sum, at.epoch, at.index),
            None => of_place(sum, at.epoch, at.index),
        })
    }

    /// A checksum of what the sources hold, as far as that is quickly read: what several processes compare.
    fn contents(&self) -> u32 {
        let inputs = self.inputs().iter().map(Dataset::contents);
        inputs.fold(0, |sum, input| sum.rotate_left(1) ^ input)
    }

    /// Window length guaranteed to contain every example at least once, at any offset of an endless output.
    fn coverage_window(&self) -> usize {
        let inputs = self.inputs().iter().map(Dataset::coverage_window);
        inputs.max().unwrap_or(usize::MAX)
    }

    /// Number of examples of each file, in order, for a source; empty where a file is no unit of the data.
    fn per_file(&self) -> Option<Vec<usize>> {
        None
    }

    /// The same stages over the files of one worker; not asked of a source that knows its files ([`per_file`](Self::per_file)).
    fn shard_by_file(&self, _worker: Worker) -> Sharded {
        Err(NotShardable::Unfit(
            "a filter, interleave, mix, zip or cache stage is over all files".into(),
        ))
    }

    /// How often a corrupt example was left out so far, here or before.
    fn skipped(&self) -> u64 {
        self.inputs().iter().map(Dataset::skipped).sum()
    }

    /// Whether corrupt examples are left out, here or before.
    fn skips_corrupt(&self) -> bool {
        self.inputs().iter().any(Dataset::skips_corrupt)
    }

    /// The bytes of files that were left out when they were opened.
    fn lost(&self) -> Vec<LostBytes> {
        self.inputs().iter().flat_map(Dataset::lost).collect()
    }

    /// Whether an example is more work than copying it, here or before: it is read, decoded, or given to a function.
    fn computes(&self) -> bool {
        self.inputs().iter().any(|input| input.stage().computes())
    }

    /// Whether examples have weights, here or before, as far as that is known without reading all: one is enough.
    fn weighs(&self) -> bool {
        self.inputs().iter().any(|input| input.stage().weighs())
    }

    /// Whether the order changes with the epoch, here or before.
    fn shuffles(&self) -> bool {
        self.inputs().iter().any(|input| input.stage().shuffles())
    }

    /// Whether examples come more than once, here or before.
    fn repeats(&self) -> bool {
        self.inputs().iter().any(|input| input.stage().repeats())
    }

    /// The same data with a weight for each example; `None` where they are not arrays in memory.
    fn with_weights(&self, _weights: &HostTensor) -> Option<Result<Dataset>> {
        None
    }
}

/// The examples at `indices`, read one by one and stacked.
fn gather_one_by_one<S: Stage + ?Sized>(
    stage: &S,
    epoch: u64,
    indices: &[usize],
    pool: &BufferPool,
) -> Result<Batch> {
    let mut batch = BatchBuilder::new(indices.len(), pool);
    for &i in indices {
        if let Some(example) = stage.read(epoch, i, 1)? {
            batch.push(&example)?;
        }
    }
    Ok(batch.finish())
}

/// The examples at `indices` straight from the input where all of them are in the same epoch of the same input, else one
/// by one.
fn gather_located<S: Stage + ?Sized>(
    stage: &S,
    epoch: u64,
    indices: &[usize],
    pool: &BufferPool,
) -> Result<Batch> {
    let mut located = Vec::with_capacity(indices.len());
    let mut origin = None;
    for &i in indices {
        let at = stage.locate(epoch, i)?;
        if *origin.get_or_insert((at.input, at.epoch)) != (at.input, at.epoch) {
            return gather_one_by_one(stage, epoch, indices, pool);
        }
        located.push(at.index);
    }
    let (input, epoch) = origin.unwrap_or((0, epoch));
    stage.inputs()[input].gather(epoch, &located, pool)
}
