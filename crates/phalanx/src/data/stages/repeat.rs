//! `repeat`: the examples several times over, each repetition in an order of its own.

use super::Reindex;
use crate::Result;
use crate::data::Dataset;

/// The input `n` times in sequence, or without end.
#[derive(Clone, Copy)]
pub(in crate::data) struct Repeat(pub(in crate::data) Option<usize>);

impl Dataset {
    /// The examples `count` times over; a shuffle before it gives each repetition its own order.
    #[must_use]
    pub fn repeat(&self, count: usize) -> Self {
        self.reindexed(Repeat(Some(count)))
    }

    /// The examples over and over without end.
    #[must_use]
    pub fn repeat_forever(&self) -> Self {
        self.reindexed(Repeat(None))
    }
}

/// Repetition `r` of epoch `e` reads epoch `e * count + r` of the input (`e * 2^32 + r` when endless), so that no two
/// repetitions of a training run are shuffled alike.
impl Reindex for Repeat {
    fn len(&self, input: Option<usize>) -> Option<usize> {
        if input == Some(0) {
            return Some(0);
        }
        Some(input?.saturating_mul(self.0?))
    }

    fn locate(&self, input: Option<usize>, epoch: u64, i: usize) -> Result<(u64, usize)> {
        let Some(len @ 1..) = input else {
            return Ok((epoch, i));
        };
        let per_epoch = self.0.map_or(1 << 32, |count| count as u64);
        let repetition = (i / len) as u64;
        let input_epoch = epoch.wrapping_mul(per_epoch).wrapping_add(repetition);
        Ok((input_epoch, i % len))
    }

    /// Twice the input's: an example may stand at the start of one repetition and at the end of the next.
    fn coverage_window(&self, input: usize) -> usize {
        input.saturating_mul(2)
    }

    fn shards_by_file(&self) -> bool {
        true
    }

    fn repeats(&self) -> bool {
        true
    }
}
