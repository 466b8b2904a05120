//! A Parquet file as opened: its footer, checked against limits before anything of it is decoded.

use parquet::basic::{Compression, ConvertedType, LogicalType, Type};
use parquet::file::metadata::{
    ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData,
};
use parquet::schema::types::ColumnDescriptor;

use super::ParquetOptions;
use super::files::InputFile;
use super::parquet_column::{CellLocation, ColumnChunk, PageLimit, data, decoded};
use super::thrift::schema_depth;
use crate::Result;
use crate::data::LabelColumn;
use crate::data::csv_table::first_names;

/// The most bytes of a footer.
const MAX_FOOTER: u64 = 1 << 24;
/// The most levels of groups in a schema.
const MAX_LEVELS: usize = 16;
/// Bytes at the end of a file: the length of the footer and the magic bytes.
pub(super) const TAIL: u64 = 8;
const MAGIC: &[u8] = b"PAR1";

pub(super) struct ParquetFile {
    pub(super) file: InputFile,
    pub(super) metadata: ParquetMetaData,
    pub(super) features: Vec<usize>,
    pub(super) label: Option<usize>,
    holds: Holds,
}

pub(super) struct RowGroup {
    pub(super) file: usize,
    /// Of the file.
    pub(super) index: usize,
    pub(super) rows: usize,
}

impl ParquetFile {
    /// With the columns of numbers that the options name.
    pub(super) fn new(file: InputFile, options: &ParquetOptions) -> Result<Self> {
        let mut opened = Self::opened(file, options)?;
        let is_named = |name: &str| {
            let is_label = matches!(&options.label, LabelColumn::Name(label) if label == name);
            is_label || options.columns.iter().any(|column| column == name)
        };
        let (features, label) = chosen(&opened.names(is_named), options)
            .map_err(|message| data(&opened.file.name(), "footer".into(), &message))?;
        (opened.features, opened.label) = (features, label);
        opened.check(options)?;
        Ok(opened)
    }

    /// Without columns.
    pub(super) fn opened(file: InputFile, options: &ParquetOptions) -> Result<Self> {
        let bytes = footer(&file)?;
        let wrong = |message: String| data(&file.name(), "footer".into(), &message);
        let metadata = decoded(|| ParquetMetaDataReader::decode_metadata(&bytes)).map_err(wrong)?;
        let columns = metadata.file_metadata().schema_descr().num_columns();
        if columns == 0 || columns > options.max_columns {
            return Err(wrong(format!(
                "found {columns} columns, expected 1 to {}; check the file, or raise max_columns",
                options.max_columns
            )));
        }
        Ok(Self {
            file,
            metadata,
            features: Vec::new(),
            label: None,
            holds: Holds::Numbers,
        })
    }

    /// Chooses columns of numbers and texts.
    pub(super) fn choose(&mut self, columns: Vec<usize>, options: &ParquetOptions) -> Result<()> {
        (self.features, self.holds) = (columns, Holds::NumbersAndTexts);
        self.check(options)
    }

    /// Refuses flags and floats among columns whose values are texts or names: a CSV file may have `True` for 1 and `1e-05` for `1e-5`, which
    /// would be other names.
    pub(super) fn check_names(&self, columns: impl IntoIterator<Item = usize>) -> Result<()> {
        for column in columns {
            let column = self.column(column);
            let kind = column.physical_type();
            if matches!(kind, Type::BOOLEAN | Type::FLOAT | Type::DOUBLE) {
                let place = format!("column `{}`", column.name());
                let message = format!(
                    "found {kind}, expected texts or integers where values are texts or names; write it as a text or an integer"
                );
                return Err(data(&self.file.name(), place, &message));
            }
        }
        Ok(())
    }

    /// The names of the columns, without those at the end in which pandas keeps an index that has no name, unless they are named.
    pub(super) fn names(&self, is_named: impl Fn(&str) -> bool) -> Vec<String> {
        let columns = self.metadata.file_metadata().schema_descr().columns();
        let names = columns.iter().map(|column| column.path().string());
        let mut names: Vec<String> = names.collect();
        let is_left_out = |name: &String| is_index(name) && !is_named(name);
        let last = names.iter().rposition(|name| !is_left_out(name));
        names.truncate(last.map_or(names.len(), |last| last + 1));
        names
    }

    /// The bytes of a column in a row group.
    pub(super) fn pages(
        &self,
        group: usize,
        column: usize,
        max_page_bytes: u64,
    ) -> Result<ColumnChunk> {
        let location = self.cell_location(group, column);
        let chunk = self.metadata.row_group(group).column(column);
        let (start, len) =
            range(chunk, self.file.len()).map_err(|message| location.error(&message))?;
        let mut bytes = vec![0; len as usize];
        self.file.read_at(&mut bytes, start)?;
        let limit = PageLimit {
            bytes: max_page_bytes,
            otherwise: match self.holds {
                Holds::Numbers => "raise max_page_bytes",
                Holds::NumbersAndTexts => "write smaller pages",
            },
        };
        let pages = match is_text(self.column(column)) {
            true => ColumnChunk::of_texts(bytes, start, limit),
            false => ColumnChunk::new(bytes, start, limit),
        };
        pages.map_err(|message| location.error(&message))
    }

    pub(super) fn column(&self, at: usize) -> &ColumnDescriptor {
        self.metadata.file_metadata().schema_descr().columns()[at].as_ref()
    }

    /// What a column holds, where it is neither a number nor a text in each row.
    pub(super) fn other_kind(&self, at: usize) -> Option<String> {
        let column = self.column(at);
        let checked = check_type(column, Holds::NumbersAndTexts);
        checked.is_err().then(|| kind_of(column))
    }

    fn wanted(&self) -> impl Iterator<Item = usize> + '_ {
        self.features.iter().copied().chain(self.label)
    }

    pub(super) fn cell_location(&self, group: usize, column: usize) -> CellLocation<'_> {
        CellLocation {
            file: self.file.name(),
            group,
            column: self.column(column).name(),
        }
    }

    pub(super) fn groups(&self, file: usize) -> impl Iterator<Item = RowGroup> + '_ {
        let groups = self.metadata.row_groups().iter().enumerate();
        groups.map(move |(index, group)| RowGroup {
            file,
            index,
            rows: group.num_rows() as usize,
        })
    }

    /// Types of the columns, and sizes of the row groups.
    fn check(&self, options: &ParquetOptions) -> Result<()> {
        for column in self.wanted() {
            let column = self.column(column);
            check_type(column, self.holds).map_err(|message| {
                data(
                    &self.file.name(),
                    format!("column `{}`", column.name()),
                    &message,
                )
            })?;
        }
        let groups = self.metadata.row_groups();
        for (index, group) in groups.iter().enumerate() {
            self.check_group(group, index, options)?;
        }
        let (found, expected) = (
            groups
                .iter()
                .map(|group| i128::from(group.num_rows()))
                .sum::<i128>(),
            i128::from(self.metadata.file_metadata().num_rows()),
        );
        if found != expected {
            let message = format!(
                "found {found} rows in the row groups, expected {expected} as the file announces; copy or write the file again"
            );
            return Err(data(&self.file.name(), "footer".into(), &message));
        }
        Ok(())
    }

    fn check_group(
        &self,
        group: &RowGroupMetaData,
        index: usize,
        options: &ParquetOptions,
    ) -> Result<()> {
        let mut bytes = 0u64;
        for column in self.wanted() {
            let cell_location = self.cell_location(index, column);
            let chunk = group.column(column);
            let range = range(chunk, self.file.len()).and_then(|range| {
                check_compression(chunk)?;
                Ok(range)
            });
            let (_, len) = range.map_err(|message| cell_location.error(&message))?;
            bytes += len;
        }
        let rows = u64::try_from(group.num_rows()).unwrap_or(u64::MAX);
        let of_row = self.wanted().map(|column| cell_bytes(self.column(column)));
        let decoded = rows.saturating_mul(of_row.sum());
        let most = options.max_row_group_bytes;
        if bytes.max(decoded) > most {
            let otherwise = match self.holds {
                Holds::Numbers => "name fewer columns, or raise max_row_group_bytes",
                Holds::NumbersAndTexts => "or name fewer columns",
            };
            let message = format!(
                "found {} rows, {bytes} bytes in the file and {decoded} decoded, expected at most {most}; \
                 write smaller row groups, {otherwise}",
                group.num_rows()
            );
            return Err(data(
                &self.file.name(),
                format!("row group {index}"),
                &message,
            ));
        }
        Ok(())
    }

    /// Files are read together if their columns have the same names.
    pub(super) fn check_as(&self, first: &Self) -> Result<()> {
        let names = |file: &Self| -> Vec<String> {
            file.wanted()
                .map(|at| file.column(at).name().to_owned())
                .collect()
        };
        if names(self) == names(first) {
            return Ok(());
        }
        let message = format!(
            "found columns that differ from the columns of {}; name the columns, or leave the file out",
            first.file.name()
        );
        Err(data(&self.file.name(), "footer".into(), &message))
    }
}

/// The bytes of the footer, whose schema is not nested deeper than its decoder can bear.
fn footer(file: &InputFile) -> Result<Vec<u8>> {
    let len = file.len();
    let wrong = |message: &str| data(&file.name(), "footer".into(), message);
    if len < TAIL + MAGIC.len() as u64 {
        return Err(wrong(&format!(
            "found a file of {len} bytes, expected a parquet file, of 12 or more; check the file"
        )));
    }
    let mut tail = [0; TAIL as usize];
    file.read_at(&mut tail, len - TAIL)?;
    let (size, magic) = tail.split_at(4);
    if magic != MAGIC {
        return Err(wrong(&format!(
            "found {magic:02x?} at the end of the file, expected PAR1; check that this is a parquet file, and complete"
        )));
    }
    let size = u64::from(u32::from_le_bytes(size.try_into().expect("4 bytes")));
    let most = MAX_FOOTER.min(len - TAIL - MAGIC.len() as u64);
    if size > most {
        return Err(wrong(&format!(
            "found a footer of {size} bytes, expected at most {most}; copy or write the file again"
        )));
    }
    let mut bytes = vec![0; size as usize];
    file.read_at(&mut bytes, len - TAIL - size)?;
    match schema_depth(&bytes) {
        Some(..=MAX_LEVELS) => Ok(bytes),
        Some(levels) => Err(wrong(&format!(
            "found {levels} levels of groups, expected at most {MAX_LEVELS}; write the numbers as columns of their own"
        ))),
        None => Err(wrong(
            "found bytes that are no footer, expected one of parquet; copy or write the file again",
        )),
    }
}

/// Whether it is a name as pandas gives it to a level of an index without one.
fn is_index(name: &str) -> bool {
    let level = name.strip_prefix("__index_level_");
    let level = level.and_then(|level| level.strip_suffix("__"));
    level.is_some_and(|level| level.parse::<u8>().is_ok())
}

type ParquetResult<T> = std::result::Result<T, String>;

/// Feature columns and label column.
fn chosen(
    names: &[String],
    options: &ParquetOptions,
) -> ParquetResult<(Vec<usize>, Option<usize>)> {
    let label = match &options.label {
        LabelColumn::None => None,
        LabelColumn::Last => Some(names.len() - 1),
        LabelColumn::Index(index) if *index < names.len() => Some(*index),
        LabelColumn::Index(index) => {
            return Err(format!(
                "label column {index} (counted from 0) is not among the {} columns found; choose a lower index",
                names.len()
            ));
        }
        LabelColumn::Name(name) => Some(named(names, name)?),
    };
    let features: Vec<usize> = if options.columns.is_empty() {
        (0..names.len()).filter(|&at| label != Some(at)).collect()
    } else {
        let columns = options.columns.iter();
        columns
            .map(|name| named(names, name))
            .collect::<ParquetResult<_>>()?
    };
    if label.is_some_and(|label| features.contains(&label)) {
        return Err(
            "the label is also among the columns of the features; leave it out of them".into(),
        );
    }
    if let Some(at) = (1..features.len()).find(|&at| features[..at].contains(&features[at])) {
        return Err(format!(
            "column {:?} is among the columns of the features twice; name it once",
            names[features[at]]
        ));
    }
    if features.is_empty() {
        return Err(
            "found a single column, the label, and no feature; set the label column to none".into(),
        );
    }
    Ok((features, label))
}

fn named(names: &[String], name: &str) -> ParquetResult<usize> {
    let found: Vec<usize> = (0..names.len()).filter(|&at| names[at] == name).collect();
    match found[..] {
        [at] => Ok(at),
        [] => Err(format!(
            "found no column named {name:?}; choose among {}",
            first_names(names)
        )),
        _ => Err(format!(
            "found {} columns named {name:?}, expected one; rename the others",
            found.len()
        )),
    }
}

/// What columns may hold. Tables, which may have texts, have no settings of the limits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holds {
    Numbers,
    NumbersAndTexts,
}

/// Whether a column is one of texts, or of bytes that may be texts.
pub(super) fn is_text(column: &ColumnDescriptor) -> bool {
    column.physical_type() == Type::BYTE_ARRAY
        && matches!(
            column.logical_type_ref(),
            None | Some(LogicalType::String | LogicalType::Enum | LogicalType::Json)
        )
        && matches!(
            column.converted_type(),
            ConvertedType::NONE | ConvertedType::UTF8 | ConvertedType::ENUM | ConvertedType::JSON
        )
}

/// Bytes of a value in memory; what a text has beside them is counted where it is decoded.
fn cell_bytes(column: &ColumnDescriptor) -> u64 {
    match is_text(column) {
        true => size_of::<String>() as u64,
        false => 4,
    }
}

/// A column is one of what it may hold, one in each row.
fn check_type(column: &ColumnDescriptor, holds: Holds) -> ParquetResult<()> {
    let number = matches!(
        column.physical_type(),
        Type::BOOLEAN | Type::INT32 | Type::INT64 | Type::FLOAT | Type::DOUBLE
    );
    let plain = matches!(
        column.logical_type_ref(),
        None | Some(LogicalType::Integer { .. })
    ) && matches!(
        column.converted_type(),
        ConvertedType::NONE
            | ConvertedType::INT_8
            | ConvertedType::INT_16
            | ConvertedType::INT_32
            | ConvertedType::INT_64
            | ConvertedType::UINT_8
            | ConvertedType::UINT_16
            | ConvertedType::UINT_32
            | ConvertedType::UINT_64
    );
    let text = holds == Holds::NumbersAndTexts && is_text(column);
    let is_one = column.max_rep_level() == 0 && column.path().parts().len() == 1;
    if (number && plain || text) && is_one {
        return Ok(());
    }
    let (expected, next) = match holds {
        Holds::Numbers if is_text(column) => (
            "flags, integers or floats",
            "name the columns to read, convert it, or have texts read as of CSV files (`classes` of labels, `text`, `category`, `one_hot`)",
        ),
        Holds::Numbers => (
            "flags, integers or floats",
            "name the columns to read, or convert it",
        ),
        Holds::NumbersAndTexts => (
            "flags, integers, floats or texts",
            "name the columns to read, or convert it",
        ),
    };
    Err(format!(
        "found {}, expected {expected}, one in each row; {next}",
        kind_of(column)
    ))
}

/// The name of a type, without its settings.
fn name_of(logical: &LogicalType) -> String {
    let whole = format!("{logical:?}");
    let name = whole.chars().take_while(|c| c.is_alphanumeric());
    name.collect()
}

/// What a column holds, in the words of the format.
fn kind_of(column: &ColumnDescriptor) -> String {
    let meaning = match (column.logical_type_ref(), column.converted_type()) {
        (Some(logical), _) => format!(" ({})", name_of(logical)),
        (None, ConvertedType::NONE) => String::new(),
        (None, converted) => format!(" ({converted})"),
    };
    let nested = if column.path().parts().len() == 1 {
        ""
    } else {
        " within a group"
    };
    format!("{}{meaning}{nested}", column.physical_type())
}

fn check_compression(chunk: &ColumnChunkMetaData) -> ParquetResult<()> {
    match chunk.compression() {
        Compression::UNCOMPRESSED | Compression::SNAPPY => Ok(()),
        other => Err(format!(
            "found compression {other}, expected snappy or none; write the file with snappy"
        )),
    }
}

/// Where the bytes of a column in a row group start, and how many they are.
fn range(chunk: &ColumnChunkMetaData, file_len: u64) -> ParquetResult<(u64, u64)> {
    let start = chunk
        .dictionary_page_offset()
        .unwrap_or(chunk.data_page_offset());
    let len = chunk.compressed_size();
    let range = u64::try_from(start).ok().zip(u64::try_from(len).ok());
    let inside = range.filter(|(start, len)| {
        *start >= MAGIC.len() as u64
            && start
                .checked_add(*len)
                .is_some_and(|end| end <= file_len - TAIL)
    });
    inside.ok_or_else(|| {
        format!("found {len} bytes from byte {start}, expected them inside the file of {file_len} bytes; copy or write the file again")
    })
}
