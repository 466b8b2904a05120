//! `map`: a function applied to each example, with or without randomness.

use std::slice::from_ref;
use std::sync::Arc;

use super::{Sharded, Stage};
use crate::Result;
use crate::data::random_key::random_key;
use crate::data::{Dataset, Example, Worker};

/// A function of a random key and an example.
type MapExample = dyn Fn(u64, Example) -> Result<Example> + Send + Sync;

struct Map {
    input: Dataset,
    seed: u64,
    map: Arc<MapExample>,
}

impl Dataset {
    /// A function applied to each example; a panic inside becomes an error of the batch.
    #[must_use]
    pub fn map(&self, map: impl Fn(Example) -> Result<Example> + Send + Sync + 'static) -> Self {
        self.map_random(0, move |_, example| map(example))
    }

    /// A function applied to each example with a random key that is drawn from (seed, epoch, example).
    ///
    /// The same example gets the same key whatever its place in the order, and whatever batch, thread or worker makes it.
    /// After a filter, a shuffle or sharding by file, "example" means the example of the source; after `sample`, `interleave`,
    /// `mix`, `zip` and `cache` it means the place in their output, which no worker changes.
    #[must_use]
    pub fn map_random(
        &self,
        seed: u64,
        map: impl Fn(u64, Example) -> Result<Example> + Send + Sync + 'static,
    ) -> Self {
        let (input, map) = (self.clone(), Arc::new(map));
        Self::of(Map { input, seed, map })
    }
}

impl Stage for Map {
    fn inputs(&self) -> &[Dataset] {
        from_ref(&self.input)
    }

    fn computes(&self) -> bool {
        true
    }

    fn read(&self, epoch: u64, i: usize, count: u64) -> Result<Option<Example>> {
        let (key_epoch, id) = self.input.identity(epoch, i)?;
        let key = random_key(self.seed, key_epoch, id);
        self.input
            .read_counting_skips(epoch, i, count)?
            .map(|example| (self.map)(key, example))
            .transpose()
    }

    fn identity(&self, epoch: u64, i: usize) -> Result<(u64, u64)> {
        self.input.identity(epoch, i)
    }

    fn shard_by_file(&self, worker: Worker) -> Sharded {
        let input = self.input.shard_by_file(worker)?;
        let (seed, map) = (self.seed, self.map.clone());
        Ok(Dataset::of(Self { input, seed, map }))
    }
}
