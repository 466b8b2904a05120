//! `filter`: some of the examples, in their order; also the files of one worker.

use std::ops::Range;
use std::slice::from_ref;

use super::{Location, Stage, gather_located};
use crate::data::buffer_pool::BufferPool;
use crate::data::formats::locate;
use crate::data::{Batch, Dataset, Example};
use crate::{Error, Result};

struct Filtered {
    input: Dataset,
    subset: Subset,
}

impl Dataset {
    /// The examples that `keep` is true for, found now by reading all of them once.
    ///
    /// Unlike `tf.data` the length is known, so what comes after can be shuffled, split and sharded as ever.
    ///
    /// # Errors
    /// When an example cannot be read, or the dataset is shuffled, repeated or endless: filter first.
    pub fn filter(&self, keep: impl Fn(&Example) -> bool) -> Result<Self> {
        let moves = self.stage().shuffles() || self.stage().repeats();
        let (Some(len), false) = (self.len(), moves) else {
            return Err(Error::user(
                "cannot filter a shuffled or repeated dataset: which examples stay must not depend on the epoch; \
                 filter first, then shuffle and repeat",
            ));
        };
        let mut subset = Subset::default();
        for i in 0..len {
            if self.read(0, i)?.is_some_and(|example| keep(&example)) {
                subset.push(i..i + 1);
            }
        }
        Ok(self.subset(subset))
    }

    /// The examples of a subset of the indices.
    pub(in crate::data) fn subset(&self, subset: Subset) -> Self {
        let input = self.clone();
        Self::of(Filtered { input, subset })
    }
}

impl Stage for Filtered {
    fn inputs(&self) -> &[Dataset] {
        from_ref(&self.input)
    }

    fn len(&self) -> Option<usize> {
        Some(self.subset.len())
    }

    fn locate(&self, epoch: u64, i: usize) -> Result<Location> {
        Ok(Location {
            input: 0,
            epoch,
            index: self.subset.locate(i),
        })
    }

    fn gather(&self, epoch: u64, indices: &[usize], pool: &BufferPool) -> Result<Batch> {
        gather_located(self, epoch, indices, pool)
    }

    fn identity(&self, epoch: u64, i: usize) -> Result<(u64, u64)> {
        self.input.identity(epoch, self.subset.locate(i))
    }
}

/// Ranges of indices that follow one another in the output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::data) struct Subset {
    starts: Vec<usize>,
    /// Indices before each range.
    firsts: Vec<usize>,
    len: usize,
}

impl Subset {
    /// Adds a range, which is joined with the last where it continues it.
    pub(in crate::data) fn push(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        let last = self.starts.last().zip(self.firsts.last());
        let continues =
            last.is_some_and(|(start, first)| start + (self.len - first) == range.start);
        if !continues {
            self.starts.push(range.start);
            self.firsts.push(self.len);
        }
        self.len += range.len();
    }

    pub(in crate::data) const fn len(&self) -> usize {
        self.len
    }

    /// The index of the input that output index `i` reads.
    pub(in crate::data) fn locate(&self, i: usize) -> usize {
        let (range, offset) = locate(&self.firsts, i);
        self.starts[range] + offset
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_follow_one_another() {
        let mut subset = Subset::default();
        for range in [3..5, 5..6, 9..9, 0..1, 8..10] {
            subset.push(range);
        }
        let all: Vec<usize> = (0..subset.len()).map(|i| subset.locate(i)).collect();
        assert_eq!(all, [3, 4, 5, 0, 8, 9]);
        assert_eq!(subset.starts, [3, 0, 8]);
    }
}
