//! `from_source` and `from_records`: examples of a user's own source or of a file format.

use super::Stage;
use crate::Result;
use crate::data::agreement::{of_example, of_some, some_weighs};
use crate::data::buffer_pool::BufferPool;
use crate::data::formats::ParsedRecords;
use crate::data::{Batch, Dataset, Example, LostBytes, Records, Source};

struct CustomSource<S>(S);

impl Dataset {
    /// A user's own source.
    #[must_use]
    pub fn from_source(source: impl Source) -> Self {
        Self::of(CustomSource(source))
    }

    /// The items of a format, each made an example by `parse`.
    ///
    /// An error of `parse` about the item gets the file and the place of the item.
    #[must_use]
    pub fn from_records<R: Records>(
        records: R,
        parse: impl Fn(R::Item) -> Result<Example> + Send + Sync + 'static,
    ) -> Self {
        Self::from_source(ParsedRecords::new(records, parse))
    }
}

impl<S: Source> Stage for CustomSource<S> {
    fn inputs(&self) -> &[Dataset] {
        &[]
    }

    fn computes(&self) -> bool {
        true
    }

    fn len(&self) -> Option<usize> {
        Some(self.0.len())
    }

    fn read(&self, _epoch: u64, i: usize, _count: u64) -> Result<Option<Example>> {
        self.0.get(i).map(Some)
    }

    fn gather(&self, _epoch: u64, indices: &[usize], _pool: &BufferPool) -> Result<Batch> {
        self.0.gather(indices)
    }

    fn weighs(&self) -> bool {
        some_weighs(self.0.len(), |i| self.0.get(i))
    }

    fn contents(&self) -> u32 {
        of_some(self.0.len(), |sum, i| Ok(of_example(sum, &self.0.get(i)?)))
    }

    fn per_file(&self) -> Option<Vec<usize>> {
        Some(self.0.per_file())
    }

    fn lost(&self) -> Vec<LostBytes> {
        self.0.lost()
    }
}
