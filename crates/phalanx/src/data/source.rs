//! Where examples come from.

use super::{Batch, Example, LostBytes};
use crate::Result;

/// A finite collection of examples that can be read in any order, from any thread.
pub trait Source: Send + Sync + 'static {
    /// Number of examples; must not change.
    fn len(&self) -> usize;

    /// Whether there is no example.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Example `i`, always the same for the same `i`.
    ///
    /// # Errors
    /// When it cannot be read; the error should name the place and what to do.
    fn get(&self, i: usize) -> Result<Example>;

    /// The examples at `indices`, in that order, stacked.
    ///
    /// # Errors
    /// When one cannot be read, or their shapes differ.
    fn gather(&self, indices: &[usize]) -> Result<Batch> {
        let examples: Vec<Example> = indices
            .iter()
            .map(|&i| self.get(i))
            .collect::<Result<_>>()?;
        Batch::stack(&examples)
    }

    /// Number of examples of each file, in order, for sharding by file; empty where a file is no unit of the data.
    fn per_file(&self) -> Vec<usize> {
        Vec::new()
    }

    /// The bytes of files that were left out when they were opened.
    fn lost(&self) -> Vec<LostBytes> {
        Vec::new()
    }
}
