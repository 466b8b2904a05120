//! What every format with random access gives, and the source that parses it.

use crate::data::{Batch, Example, Source};
use crate::{Error, Result};

/// Items of files in the form the files hold them, by index, from any thread: what a parser makes examples of.
///
/// [`Source`] is the same for data that are examples already.
pub trait Records: Send + Sync + 'static {
    /// What the files hold: bytes, a line, a table of features.
    type Item;

    /// Number of items; does not change.
    fn len(&self) -> usize;

    /// Whether there is no item.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Item `i`, always the same for the same `i`.
    ///
    /// # Errors
    /// [`Error::Data`] naming file, offset and reason where the bytes are corrupt; [`Error::Io`] where they cannot be read.
    fn get(&self, i: usize) -> Result<Self::Item>;

    /// The items at `indices`, in that order; neighbours may be read together.
    fn get_each(&self, indices: &[usize]) -> Vec<Result<Self::Item>> {
        indices.iter().map(|&i| self.get(i)).collect()
    }

    /// Number of items of each file, in order, for sharding by file; empty where a file is no unit of the data.
    fn per_file(&self) -> Vec<usize> {
        Vec::new()
    }

    /// Where item `i` is, for messages.
    fn place(&self, i: usize) -> Place;
}

/// Where an item is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub file: String,
    /// Where in it: `record 3 at byte 48`.
    pub place: String,
}

/// What is done about data that are not what their place needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Corrupt {
    /// An error that names file, offset and reason.
    #[default]
    Fail,
    /// They are left out and counted.
    Skip,
}

/// Records made examples by a parser.
pub(in crate::data) struct Parsed<R, F> {
    pub(in crate::data) records: R,
    pub(in crate::data) parse: F,
}

impl<R, F> Parsed<R, F>
where
    R: Records,
    F: Fn(R::Item) -> Result<Example> + Send + Sync + 'static,
{
    fn parsed(&self, i: usize, item: Result<R::Item>) -> Result<Example> {
        (self.parse)(item?).map_err(|error| self.placed(i, error))
    }

    /// An error of the parser, which sees the item alone, with the file and place of the item.
    fn placed(&self, i: usize, error: Error) -> Error {
        placed(&self.records, i, error)
    }
}

/// An error about item `i` alone, with its file and place.
pub(in crate::data) fn placed<R: Records + ?Sized>(records: &R, i: usize, error: Error) -> Error {
    match error {
        Error::Data {
            source_name,
            place,
            message,
        } if source_name.is_empty() => {
            let at = records.place(i);
            Error::Data {
                source_name: at.file,
                place: format!("{}, {place}", at.place),
                message,
            }
        }
        error => error,
    }
}

impl<R, F> Source for Parsed<R, F>
where
    R: Records,
    F: Fn(R::Item) -> Result<Example> + Send + Sync + 'static,
{
    fn len(&self) -> usize {
        self.records.len()
    }

    fn get(&self, i: usize) -> Result<Example> {
        self.parsed(i, self.records.get(i))
    }

    fn gather(&self, indices: &[usize]) -> Result<Batch> {
        let items = self.records.get_each(indices).into_iter();
        let examples: Vec<Example> = indices
            .iter()
            .zip(items)
            .map(|(&i, item)| self.parsed(i, item))
            .collect::<Result<_>>()?;
        Batch::stack(&examples)
    }

    fn per_file(&self) -> Vec<usize> {
        self.records.per_file()
    }
}
