//! Reading a dataset: one example, or those of a batch straight from the source where no stage needs single ones.

use std::sync::atomic::Ordering;

use super::batch_builder::BatchBuilder;
use super::buffer_pool::BufferPool;
use super::dataset::{Dataset, Node};
use super::order::{Order, key_of};
use super::{Batch, Example, Pad, Source};
use crate::{Error, Result};

/// Tells the examples of the second of two datasets from those of the first.
const SECOND: u64 = 1;

impl Dataset {
    /// Example `i`, or nothing where it is corrupt and left out.
    pub(super) fn read(&self, epoch: u64, i: usize) -> Result<Option<Example>> {
        self.read_counting_skips(epoch, i, 1)
    }

    /// As [`read`](Self::read); one that is left out counts as `count` skipped.
    pub(super) fn read_counting_skips(
        &self,
        epoch: u64,
        i: usize,
        count: u64,
    ) -> Result<Option<Example>> {
        match self.node() {
            Node::Arrays(arrays) => arrays.get(i).map(Some),
            Node::Source(source) => source.get(i).map(Some),
            Node::Images(images) => images.get(epoch, i).map(Some),
            Node::Ordered { input, order } => {
                let (epoch, i) = order.locate(input.len(), epoch, i)?;
                input.read_counting_skips(epoch, i, count)
            }
            Node::Map { input, seed, map } => {
                let (key_epoch, id) = input.identity(epoch, i)?;
                let key = key_of(*seed, key_epoch, id);
                input
                    .read_counting_skips(epoch, i, count)?
                    .map(|example| map(key, example))
                    .transpose()
            }
            Node::ClassWeights { input, weights } => input
                .read_counting_skips(epoch, i, count)?
                .map(|example| weights.apply(example))
                .transpose(),
            Node::Subset { input, subset } => {
                input.read_counting_skips(epoch, subset.locate(i), count)
            }
            Node::Interleaved {
                inputs,
                interleaving,
            } => {
                let (input, i) = interleaving.locate(i);
                inputs[input].read_counting_skips(epoch, i, count)
            }
            Node::Zip { inputs } => read_zipped(inputs, epoch, i, count),
            Node::Cached {
                input,
                examples,
                skipped,
            } => {
                if let Some(example) = examples[i].get() {
                    let count = if example.is_none() { count } else { 0 };
                    skipped.fetch_add(count, Ordering::Relaxed);
                    return Ok(example.clone());
                }
                let example = input.read_counting_skips(0, i, count)?;
                Ok(examples[i].get_or_init(|| example).clone())
            }
            Node::SkipCorrupt { input, skipped } => {
                match input.read_counting_skips(epoch, i, count) {
                    Err(Error::Data { .. }) => {
                        skipped.fetch_add(count, Ordering::Relaxed);
                        Ok(None)
                    }
                    read => read,
                }
            }
            Node::Concatenate {
                first,
                first_len,
                second,
            } => match i.checked_sub(*first_len) {
                None => first.read_counting_skips(epoch, i, count),
                Some(i) => second.read_counting_skips(epoch, i, count),
            },
        }
    }

    /// Which example `i` of an epoch is, whoever reads it in whatever order: an epoch of the source and a number.
    fn identity(&self, epoch: u64, i: usize) -> Result<(u64, u64)> {
        match self.node() {
            Node::Ordered { input, order } => {
                let (epoch, i) = order.locate(input.len(), epoch, i)?;
                input.identity(epoch, i)
            }
            Node::Map { input, .. }
            | Node::ClassWeights { input, .. }
            | Node::SkipCorrupt { input, .. } => input.identity(epoch, i),
            Node::Subset { input, subset } => input.identity(epoch, subset.locate(i)),
            Node::Concatenate {
                first,
                first_len,
                second,
            } => match i.checked_sub(*first_len) {
                None => first.identity(epoch, i),
                Some(i) => {
                    let (epoch, id) = second.identity(epoch, i)?;
                    // Another number than that of the same example of the first.
                    Ok((epoch, key_of(SECOND, 0, id)))
                }
            },
            // A source numbers its examples. The others are never cut into files, so a place in them is of one example.
            Node::Arrays(_)
            | Node::Source(_)
            | Node::Images(_)
            | Node::Interleaved { .. }
            | Node::Zip { .. }
            | Node::Cached { .. } => Ok((epoch, i as u64)),
        }
    }

    /// The examples at `indices` of an epoch, stacked: straight from the source where no stage needs single examples.
    pub(super) fn gather(
        &self,
        epoch: u64,
        indices: &[usize],
        buffer_pool: &BufferPool,
    ) -> Result<Batch> {
        match self.node() {
            Node::Arrays(arrays) => arrays.gather(indices),
            Node::Source(source) => source.gather(indices),
            Node::Images(images) => images.gather(epoch, indices),
            Node::Ordered { input, order } => {
                self.gather_ordered(input, *order, epoch, indices, buffer_pool)
            }
            Node::Map { .. }
            | Node::Interleaved { .. }
            | Node::Zip { .. }
            | Node::Cached { .. } => self.gather_one_by_one(epoch, indices, buffer_pool),
            Node::Subset { input, subset } => {
                let indices: Vec<usize> = indices.iter().map(|&i| subset.locate(i)).collect();
                input.gather(epoch, &indices, buffer_pool)
            }
            Node::SkipCorrupt { input, .. } => match input.gather(epoch, indices, buffer_pool) {
                Err(Error::Data { .. }) => self.gather_one_by_one(epoch, indices, buffer_pool),
                gathered => gathered,
            },
            Node::ClassWeights { input, weights } => {
                weights.apply_to_batch(input.gather(epoch, indices, buffer_pool)?)
            }
            Node::Concatenate {
                first,
                first_len,
                second,
            } => {
                if indices.iter().all(|i| i < first_len) {
                    first.gather(epoch, indices, buffer_pool)
                } else if indices.iter().all(|i| i >= first_len) {
                    let indices: Vec<usize> = indices.iter().map(|i| i - first_len).collect();
                    second.gather(epoch, &indices, buffer_pool)
                } else {
                    self.gather_one_by_one(epoch, indices, buffer_pool)
                }
            }
        }
    }

    fn gather_ordered(
        &self,
        input: &Self,
        order: Order,
        epoch: u64,
        indices: &[usize],
        buffer_pool: &BufferPool,
    ) -> Result<Batch> {
        let len = input.len();
        let located: Vec<(u64, usize)> = indices
            .iter()
            .map(|&i| order.locate(len, epoch, i))
            .collect::<Result<_>>()?;
        let inner_epoch = located.first().map_or(epoch, |(epoch, _)| *epoch);
        if located.iter().any(|(epoch, _)| *epoch != inner_epoch) {
            return self.gather_one_by_one(epoch, indices, buffer_pool);
        }
        let indices: Vec<usize> = located.into_iter().map(|(_, i)| i).collect();
        input.gather(inner_epoch, &indices, buffer_pool)
    }

    fn gather_one_by_one(
        &self,
        epoch: u64,
        indices: &[usize],
        buffer_pool: &BufferPool,
    ) -> Result<Batch> {
        let mut stack = BatchBuilder::new(indices.len(), buffer_pool);
        for &i in indices {
            if let Some(example) = self.read(epoch, i)? {
                stack.push(&example)?;
            }
        }
        Ok(stack.finish())
    }

    /// The examples at `indices` of an epoch, padded and stacked.
    pub(super) fn gather_padded(
        &self,
        epoch: u64,
        indices: &[usize],
        pad: &Pad,
        buffer_pool: &BufferPool,
    ) -> Result<Batch> {
        let read = indices
            .iter()
            .filter_map(|&i| self.read(epoch, i).transpose());
        let mut examples: Vec<Example> = read.collect::<Result<_>>()?;
        pad.apply(&mut examples)?;
        let mut stack = BatchBuilder::new(examples.len(), buffer_pool);
        examples
            .iter()
            .try_for_each(|example| stack.push(example))?;
        Ok(stack.finish())
    }
}

fn read_zipped(inputs: &[Dataset], epoch: u64, i: usize, count: u64) -> Result<Option<Example>> {
    let mut whole = Example::default();
    for input in inputs {
        let Some(example) = input.read_counting_skips(epoch, i, count)? else {
            return Ok(None);
        };
        whole.x.extend(example.x);
        whole.y.extend(example.y);
        whole.weight = match (whole.weight, example.weight) {
            (Some(a), Some(b)) => Some(a * b),
            (a, b) => a.or(b),
        };
    }
    Ok(Some(whole))
}
