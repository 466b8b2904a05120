//! One column of one row group of a Parquet file, decoded with the `parquet` crate within bounds.

use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use flate2::Crc;
use parquet::basic::{ConvertedType, Type};
use parquet::column::page::PageReader;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use parquet::data_type::{ByteArray, DataType};
use parquet::errors::{ParquetError, Result as Decoded};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::reader::{ChunkReader, Length, SerializedPageReader};

use super::thrift::{PageHeader, page_header};
use crate::{Error, Result};

/// A number as the file holds it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Cell {
    Int(i64),
    Uint(u64),
    Single(f32),
    Double(f64),
}

impl Cell {
    pub(super) const fn value(self) -> f32 {
        match self {
            Self::Int(value) => value as f32,
            Self::Uint(value) => value as f32,
            Self::Single(value) => value,
            Self::Double(value) => value as f32,
        }
    }

    /// The number as text, a float with its point.
    fn field(self) -> String {
        match self {
            Self::Int(value) => value.to_string(),
            Self::Uint(value) => value.to_string(),
            Self::Single(value) => format!("{value:?}"),
            Self::Double(value) => format!("{value:?}"),
        }
    }

    /// The class that the number stands for.
    pub(super) fn class(self) -> Option<i32> {
        let whole = |value: f64| {
            (value.fract() == 0.0 && value >= 0.0 && value <= f64::from(i32::MAX))
                .then_some(value as i32)
        };
        match self {
            Self::Int(value) => value.try_into().ok().filter(|&class: &i32| class >= 0),
            Self::Uint(value) => value.try_into().ok(),
            Self::Single(value) => whole(value.into()),
            Self::Double(value) => whole(value),
        }
    }
}

/// What messages name.
pub(super) struct CellLocation<'a> {
    pub(super) file: String,
    pub(super) group: usize,
    pub(super) column: &'a str,
}

impl CellLocation<'_> {
    pub(super) fn error(&self, message: &str) -> Error {
        let place = format!("row group {}, column `{}`", self.group, self.column);
        data(&self.file, place, message)
    }

    pub(super) fn error_of_row(&self, row: usize, message: &str) -> Error {
        let place = format!(
            "row group {}, column `{}`, row {row} of the group",
            self.group, self.column
        );
        data(&self.file, place, message)
    }
}

pub(super) fn data(file: &str, place: String, message: &str) -> Error {
    Error::Data {
        source_name: file.to_owned(),
        place,
        message: message.to_owned(),
    }
}

/// Calls the decoder; the message tells why it gave up, also where it panics.
pub(super) fn decoded<T>(decode: impl FnOnce() -> Decoded<T>) -> std::result::Result<T, String> {
    let outcome = catch_unwind(AssertUnwindSafe(decode));
    let reason = match outcome {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "its decoder panicked".to_owned(),
    };
    Err(format!(
        "found bytes that cannot be decoded ({reason}), expected parquet as its writers make it; copy or write the file again"
    ))
}

/// The most bytes of a page.
#[derive(Clone, Copy)]
pub(super) struct PageLimit {
    pub(super) bytes: u64,
    /// What to do if the file is as it should be.
    pub(super) otherwise: &'static str,
}

/// The bytes of a column in a row group.
pub(super) struct ColumnChunk {
    start: u64,
    bytes: Bytes,
}

impl ColumnChunk {
    /// Bytes that lie at `start` of the file, whose pages announce at most the bytes of `limit` each and are as their checksums say.
    ///
    /// # Errors
    /// A message where they do not.
    pub(super) fn new(
        bytes: Vec<u8>,
        start: u64,
        limit: PageLimit,
    ) -> std::result::Result<Self, String> {
        Self::checked(bytes, start, limit, |_| Ok(()))
    }

    /// The same of a column of texts, which are encoded in ways that cannot be many times longer than their pages before they are counted.
    ///
    /// # Errors
    /// As [`new`](Self::new), and for another encoding.
    pub(super) fn of_texts(
        bytes: Vec<u8>,
        start: u64,
        limit: PageLimit,
    ) -> std::result::Result<Self, String> {
        Self::checked(bytes, start, limit, check_encoding)
    }

    fn checked(
        bytes: Vec<u8>,
        start: u64,
        limit: PageLimit,
        check: impl Fn(&PageHeader) -> std::result::Result<(), String>,
    ) -> std::result::Result<Self, String> {
        let mut at = 0;
        while at < bytes.len() {
            let place = start + at as u64;
            let head = page_header(&bytes[at..]).ok_or_else(|| {
                format!("found no header of a page at byte {place}; copy or write the file again")
            })?;
            let body = at + head.len;
            let rest = (bytes.len() - body) as u64;
            if head.compressed > rest {
                let found = head.compressed;
                return Err(format!(
                    "found a page of {found} bytes at byte {place}, expected at most the {rest} that are left of the column; copy or write the file again"
                ));
            }
            at = body + head.compressed as usize;
            check_page(&head, &bytes[body..at], limit)
                .and_then(|()| check(&head))
                .map_err(|message| format!("found {message} (page at byte {place})"))?;
        }
        let bytes = bytes.into();
        Ok(Self { start, bytes })
    }

    fn at(&self, start: u64) -> Decoded<usize> {
        let at = start
            .checked_sub(self.start)
            .filter(|&at| at <= self.bytes.len() as u64);
        at.map(|at| at as usize)
            .ok_or_else(|| ParquetError::EOF("outside the column".into()))
    }
}

/// Plain values and values of a dictionary (`Encoding` of `parquet.thrift`).
fn check_encoding(head: &PageHeader) -> std::result::Result<(), String> {
    match head.encoding {
        None | Some(0 | 2 | 8) => Ok(()),
        Some(other) => Err(format!(
            "texts in the encoding {other}, expected plain ones (0) or a dictionary's (2, 8); write the file with one of these"
        )),
    }
}

fn check_page(
    head: &PageHeader,
    bytes: &[u8],
    limit: PageLimit,
) -> std::result::Result<(), String> {
    let size = head.uncompressed.max(head.compressed);
    if size > limit.bytes {
        return Err(format!(
            "a page of {size} bytes, expected at most {}; check the file, or {}",
            limit.bytes, limit.otherwise
        ));
    }
    if head.dictionary > head.uncompressed {
        return Err(format!(
            "a dictionary of {} values in {} bytes, expected no more values than bytes; copy or write the file again",
            head.dictionary, head.uncompressed
        ));
    }
    let mut crc = Crc::new();
    crc.update(bytes);
    match head.crc {
        Some(expected) if expected != crc.sum() => Err(format!(
            "the checksum {:08x}, expected {expected:08x}; copy or write the file again",
            crc.sum()
        )),
        _ => Ok(()),
    }
}

impl Length for ColumnChunk {
    fn len(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

impl ChunkReader for ColumnChunk {
    type T = Cursor<Bytes>;

    fn get_read(&self, start: u64) -> Decoded<Self::T> {
        let at = self.at(start)?;
        Ok(Cursor::new(self.bytes.slice(at..)))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Decoded<Bytes> {
        let at = self.at(start)?;
        let end = at
            .checked_add(length)
            .filter(|&end| end <= self.bytes.len());
        end.map(|end| self.bytes.slice(at..end))
            .ok_or_else(|| ParquetError::EOF("past the end of the column".into()))
    }
}

/// The values of a column, one for each of `rows` rows.
///
/// # Errors
/// Naming the row where there is no value, or the column where it cannot be decoded or has another number of values.
pub(super) fn cells(
    chunk: ColumnChunk,
    column: &ColumnChunkMetaData,
    rows: usize,
    cell_location: &CellLocation<'_>,
) -> Result<Vec<Cell>> {
    let found = decoded(|| {
        let pages = SerializedPageReader::new(Arc::new(chunk), column, rows, None)?;
        read(column, Box::new(pages), rows)
    });
    let (cells, levels) = found.map_err(|message| cell_location.error(&message))?;
    let full = column.column_descr().max_def_level();
    if let Some(row) = levels.iter().position(|&level| level < full) {
        return Err(cell_location.error_of_row(
            row,
            "found null, expected a number; fill in or drop missing values before the file is written, say what is done about them (`missing: mean` or `drop` of a training file), or leave the column out",
        ));
    }
    check_count(cells.len(), rows, cell_location)?;
    Ok(cells)
}

/// The fields of a column as a CSV file of the same values has them, one for each of `rows` rows: texts as they are, flags as 1 and 0, and empty
/// ones for nulls.
///
/// # Errors
/// As [`cells`], and where texts are no UTF-8 or have more than `max_bytes`.
pub(super) fn fields(
    chunk: ColumnChunk,
    column: &ColumnChunkMetaData,
    (rows, max_bytes): (usize, u64),
    at: &CellLocation<'_>,
) -> Result<Vec<String>> {
    let is_text = column.column_type() == Type::BYTE_ARRAY;
    let found = decoded(|| {
        let pages = SerializedPageReader::new(Arc::new(chunk), column, rows, None)?;
        match is_text {
            true => texts(column, Box::new(pages), rows)
                .map(|(values, levels)| (ColumnFields::Texts(values), levels)),
            false => read(column, Box::new(pages), rows)
                .map(|(values, levels)| (ColumnFields::Numbers(values), levels)),
        }
    });
    let (values, levels) = found.map_err(|message| at.error(&message))?;
    let full = column.column_descr().max_def_level();
    let is_there: Vec<bool> = match full {
        0 => vec![true; values.len()],
        _ => levels.iter().map(|&level| level == full).collect(),
    };
    check_count(is_there.len(), rows, at)?;
    values.into_fields(&is_there, max_bytes, at)
}

fn check_count(found: usize, rows: usize, at: &CellLocation<'_>) -> Result<()> {
    if found == rows {
        return Ok(());
    }
    let found = if found > rows { "more" } else { "fewer" };
    Err(at.error(&format!(
        "found {found} than the {rows} values that the file announces; copy or write the file again"
    )))
}

/// What is there of a column, without its nulls.
enum ColumnFields {
    Numbers(Vec<Cell>),
    /// Parts of the pages and dictionaries, not copied.
    Texts(Vec<ByteArray>),
}

impl ColumnFields {
    const fn len(&self) -> usize {
        match self {
            Self::Numbers(cells) => cells.len(),
            Self::Texts(texts) => texts.len(),
        }
    }

    /// With empty fields where nothing is there.
    fn into_fields(
        self,
        is_there: &[bool],
        max_bytes: u64,
        at: &CellLocation<'_>,
    ) -> Result<Vec<String>> {
        match self {
            Self::Numbers(cells) => spread(cells, is_there, at, |cell, _| Ok(cell.field())),
            Self::Texts(texts) => {
                let bytes: u64 = texts.iter().map(|text| text.len() as u64).sum();
                if bytes > max_bytes {
                    return Err(at.error(&format!(
                        "found {bytes} bytes of texts, expected at most {max_bytes}; shorten the file, or raise max_bytes"
                    )));
                }
                spread(texts, is_there, at, |text, row| {
                    let text = std::str::from_utf8(text.data()).map(str::to_owned);
                    text.map_err(|_| {
                        let message = "found bytes that are no UTF-8, expected a text; write texts in UTF-8, or leave the column out";
                        at.error_of_row(row, message)
                    })
                })
            }
        }
    }
}

/// A field for each row.
fn spread<T>(
    values: Vec<T>,
    is_there: &[bool],
    at: &CellLocation<'_>,
    field: impl Fn(T, usize) -> Result<String>,
) -> Result<Vec<String>> {
    let mut values = values.into_iter();
    let too_few =
        || at.error("found fewer values than rows that have one; copy or write the file again");
    let fields = is_there
        .iter()
        .enumerate()
        .map(|(row, is_there)| match is_there {
            true => field(values.next().ok_or_else(too_few)?, row),
            false => Ok(String::new()),
        });
    fields.collect()
}

/// What is there of a column, and the definition levels of its rows.
type ColumnValues<T> = (Vec<T>, Vec<i16>);

fn texts(
    column: &ColumnChunkMetaData,
    pages: Box<dyn PageReader>,
    rows: usize,
) -> Decoded<ColumnValues<ByteArray>> {
    match get_column_reader(column.column_descr_ptr(), pages) {
        ColumnReader::ByteArrayColumnReader(reader) => each(reader, rows, ByteArray::clone),
        _ => Err(ParquetError::General("no column of texts".into())),
    }
}

fn read(
    column: &ColumnChunkMetaData,
    pages: Box<dyn PageReader>,
    rows: usize,
) -> Decoded<ColumnValues<Cell>> {
    let descr = column.column_descr_ptr();
    let unsigned = matches!(
        descr.converted_type(),
        ConvertedType::UINT_8
            | ConvertedType::UINT_16
            | ConvertedType::UINT_32
            | ConvertedType::UINT_64
    );
    match get_column_reader(descr, pages) {
        ColumnReader::BoolColumnReader(reader) => each(reader, rows, |&v| Cell::Int(v.into())),
        ColumnReader::Int32ColumnReader(reader) if unsigned => {
            each(reader, rows, |&v| Cell::Uint((v as u32).into()))
        }
        ColumnReader::Int32ColumnReader(reader) => each(reader, rows, |&v| Cell::Int(v.into())),
        ColumnReader::Int64ColumnReader(reader) if unsigned => {
            each(reader, rows, |&v| Cell::Uint(v as u64))
        }
        ColumnReader::Int64ColumnReader(reader) => each(reader, rows, |&v| Cell::Int(v)),
        ColumnReader::FloatColumnReader(reader) => each(reader, rows, |&v| Cell::Single(v)),
        ColumnReader::DoubleColumnReader(reader) => each(reader, rows, |&v| Cell::Double(v)),
        _ => Err(ParquetError::General("no column of numbers".into())),
    }
}

/// The values and definition levels of at most a row more than `rows`, which is one too many.
fn each<T: DataType, C>(
    mut reader: ColumnReaderImpl<T>,
    rows: usize,
    cell: impl Fn(&T::T) -> C,
) -> Decoded<ColumnValues<C>> {
    let (mut values, mut levels, mut read) = (Vec::new(), Vec::new(), 0);
    while read <= rows {
        let (records, _, _) =
            reader.read_records(rows + 1 - read, Some(&mut levels), None, &mut values)?;
        if records == 0 {
            break;
        }
        read += records;
    }
    Ok((values.iter().map(cell).collect(), levels))
}
