//! `take` and `skip`: the start of a dataset, and what is left without it.

use super::Reindex;
use crate::Result;
use crate::data::Dataset;

/// The first `n` examples.
#[derive(Clone, Copy)]
pub(in crate::data) struct Take(pub(in crate::data) usize);

/// All but the first `n` examples.
#[derive(Clone, Copy)]
pub(in crate::data) struct Skip(pub(in crate::data) usize);

impl Dataset {
    /// The first `count` examples, or all if there are fewer.
    #[must_use]
    pub fn take(&self, count: usize) -> Self {
        self.reindexed(Take(count))
    }

    /// All but the first `count` examples.
    #[must_use]
    pub fn skip(&self, count: usize) -> Self {
        self.reindexed(Skip(count))
    }
}

impl Reindex for Take {
    fn len(&self, input: Option<usize>) -> Option<usize> {
        Some(input.map_or(self.0, |len| len.min(self.0)))
    }

    fn locate(&self, _input: Option<usize>, epoch: u64, i: usize) -> Result<(u64, usize)> {
        Ok((epoch, i))
    }
}

impl Reindex for Skip {
    fn len(&self, input: Option<usize>) -> Option<usize> {
        input.map(|len| len.saturating_sub(self.0))
    }

    fn locate(&self, _input: Option<usize>, epoch: u64, i: usize) -> Result<(u64, usize)> {
        Ok((epoch, i.saturating_add(self.0)))
    }
}
