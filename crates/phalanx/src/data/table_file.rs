//! A file of a table: CSV text, or Parquet, which its name or its first bytes tell.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::CsvOptions;
use super::csv::{CsvArrays, add_texts, csv_arrays, read_header, read_width};
use super::csv_one_hot::TextColumn;
#[cfg(feature = "parquet")]
use super::formats::ParquetTable;
use super::formats::io;
#[cfg(not(feature = "parquet"))]
use crate::Error;
use crate::Result;

/// Parquet's magic bytes, and how the first header in the file goes on.
const PARQUET: &[u8] = b"PAR1\x15";

/// A table that is read from its start.
pub(super) enum TableFile {
    Csv(File),
    #[cfg(feature = "parquet")]
    Parquet(Box<ParquetTable>),
}

impl TableFile {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|source| io(path, "open", source))?;
        let mut start = [0; PARQUET.len()];
        // Of a pipe there is no other reader that could look.
        let is_parquet = file.read_exact_at(&mut start, 0).is_ok() && start == PARQUET;
        match is_parquet || path.extension().is_some_and(|end| end == "parquet") {
            true => Self::parquet(path),
            false => Ok(Self::Csv(file)),
        }
    }

    #[cfg(feature = "parquet")]
    fn parquet(path: &Path) -> Result<Self> {
        Ok(Self::Parquet(Box::new(ParquetTable::open(path)?)))
    }

    #[cfg(not(feature = "parquet"))]
    fn parquet(path: &Path) -> Result<Self> {
        Err(Error::User(format!(
            "{} is a Parquet file, which this program cannot read; build it with the feature `parquet`, or give the table as CSV",
            path.display()
        )))
    }

    /// The rows.
    pub(super) fn arrays(self, name: &str, options: &CsvOptions) -> Result<CsvArrays> {
        match self {
            Self::Csv(file) => csv_arrays(file, name, options),
            #[cfg(feature = "parquet")]
            Self::Parquet(table) => table.arrays(options),
        }
    }

    /// The names of the columns, none where there is no header.
    pub(super) fn header(self, name: &str, options: &CsvOptions) -> Result<Vec<String>> {
        match self {
            Self::Csv(file) => read_header(file, name, options),
            #[cfg(feature = "parquet")]
            Self::Parquet(table) => Ok(table.names(options)),
        }
    }

    /// The number of columns.
    pub(super) fn width(self, name: &str, options: &CsvOptions) -> Result<usize> {
        match self {
            Self::Csv(file) => read_width(file, name, options),
            #[cfg(feature = "parquet")]
            Self::Parquet(table) => Ok(table.names(options).len()),
        }
    }

    /// Adds the texts in a column to `texts`; `false` where it is the label and the first one is a number.
    pub(super) fn add_texts(
        self,
        name: &str,
        options: &CsvOptions,
        column: TextColumn<'_>,
        texts: &mut BTreeSet<String>,
    ) -> Result<bool> {
        match self {
            Self::Csv(file) => add_texts(file, name, options, column, texts),
            #[cfg(feature = "parquet")]
            Self::Parquet(table) => table.add_texts(options, column, texts),
        }
    }
}
