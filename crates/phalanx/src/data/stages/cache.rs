//! `cache`: examples kept in memory once they were read.

use std::slice::from_ref;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Stage;
use crate::data::{Dataset, Example};
use crate::{Error, Result};

struct Cache {
    input: Dataset,
    /// Each example once it was read; `None` inside where it is corrupt.
    examples: Vec<OnceLock<Option<Example>>>,
    /// How often an example was asked for that is known to be corrupt.
    skipped: AtomicU64,
}

impl Dataset {
    /// Examples kept in memory once they were read, as they are in epoch 0.
    ///
    /// Put random stages after it: what comes before is the same in every epoch from here on.
    ///
    /// # Errors
    /// When the dataset is endless.
    pub fn cache(&self) -> Result<Self> {
        let Some(len) = self.len() else {
            return Err(Error::user(
                "cannot cache an endless dataset; put cache before repeat_forever",
            ));
        };
        Ok(Self::of(Cache {
            input: self.clone(),
            examples: (0..len).map(|_| OnceLock::new()).collect(),
            skipped: AtomicU64::new(0),
        }))
    }
}

impl Stage for Cache {
    fn inputs(&self) -> &[Dataset] {
        from_ref(&self.input)
    }

    fn len(&self) -> Option<usize> {
        Some(self.examples.len())
    }

    fn read(&self, _epoch: u64, i: usize, count: u64) -> Result<Option<Example>> {
        if let Some(example) = self.examples[i].get() {
            let count = if example.is_none() { count } else { 0 };
            self.skipped.fetch_add(count, Ordering::Relaxed);
            return Ok(example.clone());
        }
        let example = self.input.read_counting_skips(0, i, count)?;
        Ok(self.examples[i].get_or_init(|| example).clone())
    }

    fn skipped(&self) -> u64 {
        self.skipped.load(Ordering::Relaxed) + self.input.skipped()
    }
}
