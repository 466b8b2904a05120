//! `Records`: what every file format with random access implements, and the source that parses its items.

use std::fmt;

use super::TfRecords;
use crate::data::batch_builder::BatchBuilder;
use crate::data::buffer_pool::BufferPool;
use crate::data::{Batch, Example, Source};
use crate::{Error, Result};

/// Items of files in their raw form, by index, from any thread; a parser makes examples of them.
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
    fn place(&self, i: usize) -> RecordLocation;

    /// The bytes of files that were left out when they were opened.
    fn lost(&self) -> Vec<LostBytes> {
        Vec::new()
    }
}

/// Bytes of a file that are left out because nothing says where the next item in them starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostBytes {
    /// The file.
    pub file: String,
    /// The first of the bytes.
    pub offset: u64,
    /// Their number: all up to the end of the file, or of what could be unpacked of a compressed one.
    pub bytes: u64,
    /// What is wrong at the first of them.
    pub reason: String,
}

impl fmt::Display for LostBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            file,
            offset,
            bytes,
            reason,
        } = self;
        let what = match bytes {
            // A compressed file that breaks off between two records.
            0 => format!("what follows byte {offset} is"),
            bytes => format!("the {bytes} bytes from byte {offset} on are"),
        };
        write!(f, "{file}: {what} left out: {reason}")
    }
}

/// Where an item is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordLocation {
    /// The file.
    pub file: String,
    /// Where in it: `record 3 at byte 48`.
    pub place: String,
}

/// What is done about corrupt data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CorruptPolicy {
    /// Fail with an error that names file, offset and reason.
    #[default]
    Fail,
    /// Leave them out and count them.
    Skip,
}

/// Records made examples by a parser.
pub(in crate::data) struct ParsedRecords<R, F> {
    records: R,
    parse: F,
    buffer_pool: BufferPool,
}

impl<R, F> ParsedRecords<R, F> {
    pub(in crate::data) fn new(records: R, parse: F) -> Self {
        let buffer_pool = BufferPool::default();
        Self {
            records,
            parse,
            buffer_pool,
        }
    }
}

impl<R, F> Source for ParsedRecords<R, F>
where
    R: Records,
    F: Fn(R::Item) -> Result<Example> + Send + Sync + 'static,
{
    fn len(&self) -> usize {
        self.records.len()
    }

    fn get(&self, i: usize) -> Result<Example> {
        (self.parse)(self.records.get(i)?).map_err(|error| placed(&self.records, i, error))
    }

    fn gather(&self, indices: &[usize]) -> Result<Batch> {
        let items = self.records.get_each(indices).into_iter();
        let mut stack = BatchBuilder::new(indices.len(), &self.buffer_pool);
        for (&i, item) in indices.iter().zip(items) {
            let parsed = (self.parse)(item?).map_err(|error| placed(&self.records, i, error));
            stack.push(&parsed?)?;
        }
        Ok(stack.finish())
    }

    fn per_file(&self) -> Vec<usize> {
        self.records.per_file()
    }

    fn lost(&self) -> Vec<LostBytes> {
        self.records.lost()
    }
}

/// TFRecord files made examples by a parser that borrows the bytes.
pub(in crate::data) struct ParsedTfRecords<F> {
    records: TfRecords,
    parse: F,
    buffer_pool: BufferPool,
}

impl<F: Fn(&[u8]) -> Result<Example>> ParsedTfRecords<F> {
    pub(in crate::data) fn new(records: TfRecords, parse: F) -> Self {
        let buffer_pool = BufferPool::default();
        Self {
            records,
            parse,
            buffer_pool,
        }
    }

    /// Calls `visit` with the example of each record.
    fn visit(&self, indices: &[usize], mut visit: impl FnMut(Example) -> Result<()>) -> Result<()> {
        self.records.visit(indices, |k, record| {
            let parsed = (self.parse)(record?);
            visit(parsed.map_err(|error| placed(&self.records, indices[k], error))?)
        })
    }
}

impl<F: Fn(&[u8]) -> Result<Example> + Send + Sync + 'static> Source for ParsedTfRecords<F> {
    fn len(&self) -> usize {
        self.records.len()
    }

    fn get(&self, i: usize) -> Result<Example> {
        let mut found = Example::default();
        self.visit(&[i], |example| {
            found = example;
            Ok(())
        })?;
        Ok(found)
    }

    fn gather(&self, indices: &[usize]) -> Result<Batch> {
        let mut stack = BatchBuilder::new(indices.len(), &self.buffer_pool);
        self.visit(indices, |example| stack.push(&example))?;
        Ok(stack.finish())
    }

    fn per_file(&self) -> Vec<usize> {
        self.records.per_file()
    }

    fn lost(&self) -> Vec<LostBytes> {
        self.records.lost()
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
