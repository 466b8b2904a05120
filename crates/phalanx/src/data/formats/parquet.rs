//! Parquet files of numbers: columns made features and label, any row by index.
//!
//! The format is Apache's (`parquet.thrift`), decoded by the crate `parquet`. What a file announces is checked against
//! limits before it is decoded, and a panic of the decoder is an error. Compression with snappy or none.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use phalanx_graph::HostTensor;

use super::files::{InputFile, files_matching, firsts, locate, past_the_end};
use super::parquet_column::{Cell, CellLocation, cells, data};
use super::parquet_file::{ParquetFile, RowGroup};
use crate::Result;
use crate::data::{Batch, Example, LabelColumn, LabelKind, Source};

/// How Parquet files are read; the defaults fit an integer class in the last column and all others as features.
#[derive(Clone, Debug, PartialEq)]
pub struct ParquetOptions {
    /// The names of the feature columns, in the order of the features; empty for all but the label. Columns at the end that pandas keeps an
    /// index without a name in (`__index_level_0__`) are no columns unless they are named here or as the label.
    pub columns: Vec<String>,
    /// The column of the label.
    pub label: LabelColumn,
    /// The type of the label.
    pub kind: LabelKind,
    /// The most rows accepted, all files together.
    pub max_rows: usize,
    /// The most columns accepted in a file.
    pub max_columns: usize,
    /// The most bytes of a row group, in the file and, four for each number, decoded.
    pub max_row_group_bytes: u64,
    /// The most bytes of a page of a column, after decompression.
    pub max_page_bytes: u64,
    /// The most bytes of decoded row groups that are kept; the one used last always is.
    pub cache_bytes: u64,
}

impl Default for ParquetOptions {
    fn default() -> Self {
        Self {
            columns: Vec::new(),
            label: LabelColumn::Last,
            kind: LabelKind::Class,
            max_rows: 100_000_000,
            max_columns: 1 << 16,
            max_row_group_bytes: 1 << 30,
            max_page_bytes: 1 << 26,
            cache_bytes: 1 << 28,
        }
    }
}

/// The rows of Parquet files, one file after the other: x f32 `[columns]`, y i32 or f32 `[]`.
///
/// ColumnValues are flags, integers and floats; nulls, NaN and infinity are refused. A row group is decoded whole when one of
/// its rows is asked for and kept while there is room; rows drawn from more row groups than fit are decoded again and again:
/// give `cache_bytes` for all of them, or shuffle within a window.
pub struct Parquet {
    files: Vec<ParquetFile>,
    groups: Vec<RowGroup>,
    /// Rows before each row group.
    firsts: Vec<usize>,
    len: usize,
    options: ParquetOptions,
    /// Row groups used last, the last one first.
    kept: Mutex<VecDeque<(usize, Arc<DecodedRows>)>>,
}

/// A row group, decoded.
struct DecodedRows {
    /// Row by row.
    x: Vec<f32>,
    columns: usize,
    y: Labels,
}

enum Labels {
    None,
    Classes(Vec<i32>),
    Values(Vec<f32>),
}

impl Parquet {
    /// Opens the files that a pattern names and reads what they say of themselves.
    ///
    /// # Errors
    /// As [`files_matching`]; [`Error::Data`](crate::Error::Data) naming file, row group and column where a file is no Parquet file, is larger
    /// than the options allow, or has other columns than they name; [`Error::Io`](crate::Error::Io) when it cannot be read.
    pub fn open(pattern: &str, options: &ParquetOptions) -> Result<Self> {
        Self::of(files_matching(pattern)?, options)
    }

    fn of(paths: Vec<PathBuf>, options: &ParquetOptions) -> Result<Self> {
        let files = InputFile::open_all(paths)?.into_iter();
        let files: Vec<ParquetFile> = files
            .map(|file| ParquetFile::new(file, options))
            .collect::<Result<_>>()?;
        for file in &files[1..] {
            file.check_as(&files[0])?;
        }
        let groups: Vec<RowGroup> = files
            .iter()
            .enumerate()
            .flat_map(|(at, file)| file.groups(at))
            .collect();
        let len = groups
            .iter()
            .fold(0usize, |sum, group| sum.saturating_add(group.rows));
        if len == 0 || len > options.max_rows {
            let found = format!(
                "found {len} rows, expected 1 to {}; check the file, or raise max_rows",
                options.max_rows
            );
            return Err(data(&files[0].file.name(), "footer".into(), &found));
        }
        Ok(Self {
            firsts: firsts(groups.iter().map(|group| group.rows)),
            files,
            groups,
            len,
            options: options.clone(),
            kept: Mutex::default(),
        })
    }

    /// The names of the feature columns, in the order of the features.
    #[must_use]
    pub fn columns(&self) -> Vec<&str> {
        let file = &self.files[0];
        file.features
            .iter()
            .map(|&at| file.column(at).name())
            .collect()
    }

    /// The name of the column of the label, if there is one.
    #[must_use]
    pub fn label(&self) -> Option<&str> {
        let file = &self.files[0];
        file.label.map(|at| file.column(at).name())
    }

    /// The row group of a row and the index in it.
    fn locate(&self, i: usize) -> Result<(usize, usize)> {
        if i >= self.len {
            return Err(past_the_end("row", i, self.len));
        }
        Ok(locate(&self.firsts, i))
    }

    /// Decoding is done outside the lock: two threads may decode the same group, and none waits for another's.
    fn group(&self, group: usize) -> Result<Arc<DecodedRows>> {
        if let Some(rows) = self.kept_group(group) {
            return Ok(rows);
        }
        let rows = Arc::new(self.decode(&self.groups[group])?);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if !kept.iter().any(|(at, _)| *at == group) {
            kept.push_front((group, Arc::clone(&rows)));
        }
        let mut bytes: u64 = kept.iter().map(|(_, rows)| rows.bytes()).sum();
        while kept.len() > 1 && bytes > self.options.cache_bytes {
            bytes -= kept.pop_back().map_or(0, |(_, rows)| rows.bytes());
        }
        Ok(rows)
    }

    fn kept_group(&self, group: usize) -> Option<Arc<DecodedRows>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().position(|(at, _)| *at == group)?;
        let found = kept.remove(at)?;
        let rows = Arc::clone(&found.1);
        kept.push_front(found);
        Some(rows)
    }

    fn decode(&self, group: &RowGroup) -> Result<DecodedRows> {
        let file = &self.files[group.file];
        let columns = file.features.len();
        let mut x = vec![0.0; group.rows * columns];
        for (c, &column) in file.features.iter().enumerate() {
            let cell_location = file.cell_location(group.index, column);
            for (row, cell) in self.cells(group, column)?.into_iter().enumerate() {
                x[row * columns + c] = value(cell, row, &cell_location)?;
            }
        }
        let y = match (file.label, self.options.kind) {
            (None, _) => Labels::None,
            (Some(column), LabelKind::Class) => Labels::Classes(self.labels(group, column, class)?),
            (Some(column), LabelKind::Value) => Labels::Values(self.labels(group, column, value)?),
        };
        Ok(DecodedRows { x, columns, y })
    }

    fn labels<T>(
        &self,
        group: &RowGroup,
        column: usize,
        label: impl Fn(Cell, usize, &CellLocation<'_>) -> Result<T>,
    ) -> Result<Vec<T>> {
        let cell_location = self.files[group.file].cell_location(group.index, column);
        let cells = self.cells(group, column)?.into_iter().enumerate();
        cells
            .map(|(row, cell)| label(cell, row, &cell_location))
            .collect()
    }

    fn cells(&self, group: &RowGroup, column: usize) -> Result<Vec<Cell>> {
        let file = &self.files[group.file];
        let pages = file.pages(group.index, column, self.options.max_page_bytes)?;
        let chunk = file.metadata.row_group(group.index).column(column);
        let cell_location = file.cell_location(group.index, column);
        cells(pages, chunk, group.rows, &cell_location)
    }
}

impl Source for Parquet {
    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, i: usize) -> Result<Example> {
        let (group, row) = self.locate(i)?;
        let rows = self.group(group)?;
        let x = vec![HostTensor::new([rows.columns], rows.x(row))];
        let y = match &rows.y {
            Labels::None => Vec::new(),
            Labels::Classes(labels) => vec![HostTensor::scalar(labels[row])],
            Labels::Values(labels) => vec![HostTensor::scalar(labels[row])],
        };
        let weight = None;
        Ok(Example { x, y, weight })
    }

    /// Row group by row group, so that each is decoded once, in any order of the indices.
    fn gather(&self, indices: &[usize]) -> Result<Batch> {
        let columns = self.files[0].features.len();
        let mut x = vec![0.0; indices.len() * columns];
        let (mut classes, mut values) = (vec![0; indices.len()], vec![0.0; indices.len()]);
        let mut order: Vec<usize> = (0..indices.len()).collect();
        order.sort_unstable_by_key(|&at| indices[at]);
        let mut current = None;
        for at in order {
            let (group, row) = self.locate(indices[at])?;
            let rows = match current.take() {
                Some((of, rows)) if of == group => rows,
                _ => self.group(group)?,
            };
            x[at * columns..][..columns].copy_from_slice(rows.x(row));
            match &rows.y {
                Labels::None => {}
                Labels::Classes(labels) => classes[at] = labels[row],
                Labels::Values(labels) => values[at] = labels[row],
            }
            current = Some((group, rows));
        }
        let y = match (self.files[0].label, self.options.kind) {
            (None, _) => Vec::new(),
            (Some(_), LabelKind::Class) => vec![HostTensor::new([indices.len()], &classes)],
            (Some(_), LabelKind::Value) => vec![HostTensor::new([indices.len()], &values)],
        };
        let x = vec![HostTensor::new([indices.len(), columns], &x)];
        let (weight, first) = (None, 0);
        Ok(Batch {
            x,
            y,
            weight,
            first,
        })
    }

    fn per_file(&self) -> Vec<usize> {
        let mut counts = vec![0; self.files.len()];
        for group in &self.groups {
            counts[group.file] += group.rows;
        }
        counts
    }
}

impl DecodedRows {
    fn x(&self, row: usize) -> &[f32] {
        &self.x[row * self.columns..][..self.columns]
    }

    const fn bytes(&self) -> u64 {
        4 * self.x.len() as u64
    }
}

fn value(cell: Cell, row: usize, cell_location: &CellLocation<'_>) -> Result<f32> {
    let value = cell.value();
    if value.is_finite() {
        return Ok(value);
    }
    Err(cell_location.error_of_row(
        row,
        &format!("found {value}, expected a finite number of 32 bits; correct the value, or leave the column out"),
    ))
}

fn class(cell: Cell, row: usize, cell_location: &CellLocation<'_>) -> Result<i32> {
    cell.class().ok_or_else(|| {
        cell_location.error_of_row(
            row,
            &format!(
                "found {}, expected a class from 0 to {}; number the classes from 0, or read the label as a value (regression)",
                cell.value(),
                i32::MAX
            ),
        )
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use proptest::prelude::*;

    use super::super::parquet_file::TAIL;
    use super::*;

    const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/parquet/");
    const ROWS: usize = 70;

    fn open(name: &str, options: &ParquetOptions) -> Result<Parquet> {
        Parquet::open(&format!("{GOLDEN}{name}.parquet"), options)
    }

    /// Row i as `make_parquet.py` makes it.
    fn row(i: usize) -> Vec<f32> {
        let n = i as f64;
        let row = [
            f64::from(i.is_multiple_of(3)),
            n - 35.0,
            65535.0 - n,
            (n - 30.0) * 1000.0,
            4_294_967_296.0 - 256.0 * (n + 1.0),
            (n - 3.0) * 8_589_934_592.0,
            n / 7.0,
            n / 4.0 - 9.0,
            (i % 5) as f64 * 0.5,
        ];
        row.map(|value| value as f32).to_vec()
    }

    fn expected(i: usize) -> Example {
        Example {
            x: vec![HostTensor::new([9], &row(i))],
            y: vec![HostTensor::scalar((i % 4) as i32)],
            weight: None,
        }
    }

    fn all(source: &Parquet) -> Result<Vec<Example>> {
        (0..source.len()).map(|i| source.get(i)).collect()
    }

    #[test]
    fn numbers_of_every_type_are_what_pyarrow_wrote() {
        let golden: Vec<Example> = (0..ROWS).map(expected).collect();
        for name in ["numbers", "numbers_v2"] {
            let source = open(name, &ParquetOptions::default()).unwrap();
            assert_eq!(
                source
                    .groups
                    .iter()
                    .map(|group| group.rows)
                    .collect::<Vec<_>>(),
                [40, 30]
            );
            assert_eq!(
                (all(&source).unwrap(), source.per_file()),
                (golden.clone(), vec![ROWS])
            );
        }
        let both = open("numbers*", &ParquetOptions::default()).unwrap();
        assert_eq!(
            (both.per_file(), both.get(ROWS + 41).unwrap()),
            (vec![ROWS; 2], expected(41))
        );
        let some = ParquetOptions {
            columns: vec!["double".into(), "flag".into()],
            label: LabelColumn::Name("float".into()),
            kind: LabelKind::Value,
            ..ParquetOptions::default()
        };
        let some = open("numbers", &some).unwrap();
        let example = some.get(45).unwrap();
        assert_eq!(some.columns(), ["double", "flag"]);
        assert_eq!(example.x, [HostTensor::new([2], &[2.25f32, 1.0])]);
        assert_eq!(example.y, [HostTensor::scalar(45.0f32 / 7.0)]);
    }

    /// As of tables.
    #[test]
    fn an_index_without_a_name_is_no_column_unless_it_is_named() {
        let source = open("index", &ParquetOptions::default()).unwrap();
        assert_eq!(
            (source.columns(), source.label()),
            (vec!["a", "b"], Some("label"))
        );
        let named = ParquetOptions {
            columns: vec!["__index_level_1__".into()],
            label: LabelColumn::Name("__index_level_0__".into()),
            ..ParquetOptions::default()
        };
        let rows = all(&open("index", &named).unwrap()).unwrap();
        let labels: Vec<f64> = rows.iter().flat_map(|row| row.y[0].to_f64()).collect();
        assert_eq!(labels, [7.0, 9.0, 8.0]);
        assert_eq!(rows[2].x[0].f32s(), [2.0]);
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let default = ParquetOptions::default;
        let label = |name: &str| ParquetOptions {
            label: LabelColumn::Name(name.into()),
            ..default()
        };
        let numbers: [(ParquetOptions, &str); 4] = [
            (
                label("lable"),
                "footer: found no column named \"lable\"; choose among \"flag\"",
            ),
            (
                label("byte"),
                "row group 0, column `byte`, row 0 of the group: found -35, expected a class",
            ),
            (
                label("float"),
                "column `float`, row 1 of the group: found 0.14285715, expected a class",
            ),
            (
                ParquetOptions {
                    label: LabelColumn::Index(10),
                    ..default()
                },
                "label column 10",
            ),
        ];
        for (options, expected) in numbers {
            check_error(&options, expected);
        }
    }

    #[test]
    fn what_is_beyond_a_limit_is_named() {
        let default = ParquetOptions::default;
        let limits: [(ParquetOptions, &str); 6] = [
            (
                ParquetOptions {
                    max_rows: 69,
                    ..default()
                },
                "found 70 rows, expected 1 to 69",
            ),
            (
                ParquetOptions {
                    max_columns: 9,
                    ..default()
                },
                "found 10 columns, expected 1 to 9",
            ),
            (
                ParquetOptions {
                    columns: vec!["byte".into()],
                    label: LabelColumn::Name("byte".into()),
                    ..default()
                },
                "the label is also among the columns of the features",
            ),
            (
                ParquetOptions {
                    columns: vec!["byte".into(), "byte".into()],
                    ..default()
                },
                "\"byte\" is among the columns of the features twice",
            ),
            (
                ParquetOptions {
                    max_row_group_bytes: 1599,
                    ..default()
                },
                "row group 0: found 40 rows",
            ),
            (
                ParquetOptions {
                    max_page_bytes: 100,
                    ..default()
                },
                "column `byte`: found a page of 170 bytes, expected at most 100",
            ),
        ];
        for (options, expected) in limits {
            check_error(&options, expected);
        }
    }

    fn check_error(options: &ParquetOptions, expected: &str) {
        let error = error_of("numbers", options);
        assert!(
            error.contains("numbers.parquet: ") && error.contains(expected),
            "{error}"
        );
    }

    fn error_of(name: &str, options: &ParquetOptions) -> String {
        let read = open(name, options).and_then(|source| all(&source));
        read.unwrap_err().to_string()
    }

    #[test]
    fn columns_of_texts_and_nulls_are_named() {
        let default = ParquetOptions::default;
        let text = error_of("nulls", &default());
        assert!(
            text.contains("column `text`: found BYTE_ARRAY (String), expected flags"),
            "{text}"
        );
        let columns = vec!["x".into()];
        let null = error_of(
            "nulls",
            &ParquetOptions {
                columns,
                ..default()
            },
        );
        let expected =
            "row group 1, column `x`, row 1 of the group: found null, expected a number; fill in";
        assert!(null.contains(expected), "{null}");
    }

    /// What the bytes hold, if anything.
    fn read(path: &Path, bytes: &[u8]) -> Result<Vec<Example>> {
        fs::write(path, bytes).unwrap();
        all(&Parquet::of(
            vec![path.to_owned()],
            &ParquetOptions::default(),
        )?)
    }

    #[test]
    fn files_that_were_cut_are_refused() {
        let path = crate::data::test_folder::create("parquet-cut").join("cut.parquet");
        let whole = fs::read(format!("{GOLDEN}numbers.parquet")).unwrap();
        for end in (0..whole.len()).step_by(11) {
            let error = read(&path, &whole[..end]).unwrap_err().to_string();
            assert!(error.contains("cut.parquet: footer: found"), "{error}");
        }
        for start in (4..whole.len()).step_by(97) {
            assert!(read(&path, &whole[start..]).is_err(), "{start}");
        }
    }

    /// Pages have checksums. A footer has none: there a flip of the type of a column may give other values.
    #[test]
    fn flipped_bits_of_pages_are_found_or_change_nothing() {
        let path = crate::data::test_folder::create("parquet-flip").join("flip.parquet");
        for name in ["numbers", "numbers_v2"] {
            let mut bytes = fs::read(format!("{GOLDEN}{name}.parquet")).unwrap();
            let tail = bytes.len() - TAIL as usize;
            let size: [u8; 4] = bytes[tail..][..4].try_into().unwrap();
            let footer = tail - u32::from_le_bytes(size) as usize;
            let golden = read(&path, &bytes).unwrap();
            let (mut found, mut changed) = (0, Vec::new());
            for bit in (0..bytes.len() * 8).step_by(101) {
                bytes[bit / 8] ^= 1 << (bit % 8);
                match read(&path, &bytes) {
                    Ok(values) if values == golden => {}
                    Ok(_) => changed.push(bit / 8),
                    Err(_) => found += 1,
                }
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            changed.retain(|&byte| byte < footer);
            assert_eq!((changed, found > 150), (Vec::new(), true), "{name} {found}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn rows_in_any_order_are_the_rows_in_their_order(
            indices in prop::collection::vec(0..ROWS, 1..50),
            cache_bytes in prop_oneof![Just(0), Just(1 << 20)],
        ) {
            let source = open("numbers", &ParquetOptions { cache_bytes, ..ParquetOptions::default() }).unwrap();
            let each: Vec<Example> = indices.iter().map(|&i| expected(i)).collect();
            prop_assert_eq!(source.gather(&indices).unwrap(), Batch::stack(&each).unwrap());
            for &i in &indices {
                prop_assert_eq!(source.get(i).unwrap(), expected(i));
            }
        }
    }
}
