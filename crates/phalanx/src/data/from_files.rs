//! Datasets of the file formats.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use phalanx_graph::DType;

use super::Batch;
use super::concat_files::concat_rows;
use super::csv_one_hot::TextColumn;
use super::csv_table::is_missing;
use super::formats::{ParsedTfRecords, files_of};
use super::table_file::TableFile;
use super::{
    Cifar, CorruptPolicy, CsvColumn, CsvColumns, CsvOptions, Dataset, Example, Features,
    FixedRecords, SequenceExample, TfRecordOptions, TfRecords, read_idx,
};
use crate::{Error, Result};

/// The most bytes of values of an IDX file.
const MAX_IDX_BYTES: u64 = 1 << 32;

/// The names of the columns of a CSV or Parquet file, of the first where a pattern names several; none where it has no header.
///
/// # Errors
/// As [`Dataset::from_csv`], as far as the first line goes.
pub fn csv_header(path: impl AsRef<Path>, options: &CsvOptions) -> Result<Vec<String>> {
    let path = first_of(path.as_ref())?;
    TableFile::open(&path)?.header(&path.to_string_lossy(), options)
}

/// The first file that a pattern names.
fn first_of(pattern: &Path) -> Result<PathBuf> {
    let first = files_of(pattern)?.into_iter().next();
    first.ok_or_else(|| Error::Bug("a pattern without files".into()))
}

/// The names of the columns of a Parquet file and the fields of each as people read them, nulls empty; where a column holds neither numbers nor
/// texts, such as lists and times, its fields say what it holds.
///
/// # Errors
/// When the file cannot be read, or the fields have more than `max_bytes`.
#[cfg(feature = "parquet")]
pub fn parquet_fields(
    path: impl AsRef<Path>,
    max_bytes: u64,
) -> Result<(Vec<String>, Vec<Vec<String>>)> {
    super::formats::ParquetTable::open(path.as_ref())?.fields_to_show(max_bytes)
}

/// How many columns a CSV or Parquet file has, by its first line or footer.
///
/// # Errors
/// As [`csv_header`].
pub fn csv_width(path: impl AsRef<Path>, options: &CsvOptions) -> Result<usize> {
    let path = first_of(path.as_ref())?;
    TableFile::open(&path)?.width(&path.to_string_lossy(), options)
}

/// Whether a field of a CSV file says that its value is missing: it is empty, or says `NA`, `nan`, `n/a`, `null`, `none`, `nil` or `?`.
#[must_use]
pub fn csv_is_missing(field: &str) -> bool {
    is_missing(field.trim())
}

/// The different texts in the label columns of CSV files, sorted; nothing where a file begins with a number as label.
///
/// # Errors
/// As [`Dataset::from_csv`], as far as labels go; when there are more than 65,536.
pub fn csv_label_texts<P: AsRef<Path>>(
    paths: impl IntoIterator<Item = P>,
    options: &CsvOptions,
) -> Result<Option<Vec<String>>> {
    texts_in(paths, options, TextColumn::Label(&options.label))
}

/// The different values of a column of CSV files, sorted: what a [`OneHotColumn`](super::OneHotColumn) needs.
///
/// # Errors
/// As [`Dataset::from_csv`], as far as the column goes; when there are none, or more than 4,096.
pub fn csv_values<P: AsRef<Path>>(
    paths: impl IntoIterator<Item = P>,
    options: &CsvOptions,
    column: &CsvColumn,
) -> Result<Vec<String>> {
    let paths: Vec<P> = paths.into_iter().collect();
    let values = texts_in(&paths, options, TextColumn::Feature(column))?.unwrap_or_default();
    if values.is_empty() {
        let column = match column {
            CsvColumn::Name(name) => format!("{name:?}"),
            CsvColumn::Index(index) => index.to_string(),
        };
        let files: Vec<_> = paths
            .iter()
            .map(|path| path.as_ref().to_string_lossy())
            .collect();
        return Err(Error::User(format!(
            "no row of {} has a value in the one-hot column {column}; leave the column out, or name files with rows that have one",
            files.join(", ")
        )));
    }
    Ok(values)
}

fn texts_in<P: AsRef<Path>>(
    paths: impl IntoIterator<Item = P>,
    options: &CsvOptions,
    column: TextColumn<'_>,
) -> Result<Option<Vec<String>>> {
    let mut texts = BTreeSet::new();
    for path in paths {
        for path in files_of(path.as_ref())? {
            let (file, name) = (TableFile::open(&path)?, path.to_string_lossy());
            if !file.add_texts(&name, options, column, &mut texts)? {
                return Ok(None);
            }
        }
    }
    Ok(Some(texts.into_iter().collect()))
}

impl Dataset {
    /// CSV files by path or pattern, plain or compressed with gzip, read into memory one after the other.
    ///
    /// With the feature `parquet` also Parquet files of numbers and of texts in UTF-8 (plain or by a dictionary), whose columns have names and whose nulls
    /// are missing values; pandas' index without a name (`__index_level_0__`) is no column of them unless the options name it. Of the options,
    /// what is about lines of text says nothing of them. Files of numbers that memory has no room for are
    /// read by [`from_parquet`](Self::from_parquet).
    ///
    /// # Errors
    /// When a pattern names no file, a file cannot be read or has other columns than the first or in another order, the files have more rows
    /// together than the options allow, or as [`parse_csv`](super::parse_csv).
    pub fn from_csv(path: impl AsRef<Path>, options: &CsvOptions) -> Result<Self> {
        Self::from_csv_with(path, options, &mut CsvColumns::default())
    }

    /// As [`from_csv`](Self::from_csv), of the columns of the files that were read with the same `columns` before.
    ///
    /// # Errors
    /// As [`from_csv`](Self::from_csv).
    pub fn from_csv_with(
        path: impl AsRef<Path>,
        options: &CsvOptions,
        columns: &mut CsvColumns,
    ) -> Result<Self> {
        let (mut parts, mut rows, mut inputs, mut outputs) = (Vec::new(), 0, 1, 0);
        for path in files_of(path.as_ref())? {
            let name = path.to_string_lossy().into_owned();
            let arrays = TableFile::open(&path)?.arrays(&name, options)?;
            let Batch { x, y, weight, .. } = columns.add(arrays, &name, options)?;
            rows += x[0].rows();
            (inputs, outputs) = (x.len(), y.len());
            if rows > options.max_rows {
                return Err(Error::User(format!(
                    "{name} and the files before it have more than {} rows; narrow the pattern, or raise max_rows",
                    options.max_rows
                )));
            }
            parts.push((name, x.into_iter().chain(y).chain(weight).collect()));
        }
        let mut x = concat_rows(parts)?;
        let mut y = x.split_off(inputs);
        let weight = y.split_off(outputs).pop();
        Self::from_batch(Batch {
            x,
            y,
            weight,
            first: 0,
        })
    }

    /// TFRecord files by pattern, each record made an example by `parse`.
    ///
    /// # Errors
    /// As [`TfRecords::open`].
    pub fn from_tfrecords(
        pattern: &str,
        options: &TfRecordOptions,
        parse: impl Fn(&[u8]) -> Result<Example> + Send + Sync + 'static,
    ) -> Result<Self> {
        let records = TfRecords::open(pattern, options)?;
        let dataset = Self::from_source(ParsedTfRecords::new(records, parse));
        Ok(match options.corrupt {
            CorruptPolicy::Fail => dataset,
            CorruptPolicy::Skip => dataset.skip_corrupt(),
        })
    }

    /// TFRecord files of `tf.train.Example` by pattern, the features of each made an example by `parse`.
    ///
    /// # Errors
    /// As [`TfRecords::open`].
    pub fn from_tf_examples(
        pattern: &str,
        options: &TfRecordOptions,
        parse: impl Fn(&Features) -> Result<Example> + Send + Sync + 'static,
    ) -> Result<Self> {
        Self::from_tfrecords(pattern, options, move |bytes| {
            parse(&Features::parse(bytes)?)
        })
    }

    /// TFRecord files of `tf.train.SequenceExample`, or of `tf.train.Example`, by pattern, each made an example by `parse`.
    ///
    /// # Errors
    /// As [`TfRecords::open`].
    pub fn from_tf_sequence_examples(
        pattern: &str,
        options: &TfRecordOptions,
        parse: impl Fn(&SequenceExample) -> Result<Example> + Send + Sync + 'static,
    ) -> Result<Self> {
        Self::from_tfrecords(pattern, options, move |bytes| {
            parse(&SequenceExample::parse(bytes)?)
        })
    }

    /// Parquet files of numbers by pattern: x f32 `[columns]`, y i32 or f32 `[]`.
    ///
    /// # Errors
    /// As [`Parquet::open`](super::Parquet::open).
    #[cfg(feature = "parquet")]
    pub fn from_parquet(pattern: &str, options: &super::ParquetOptions) -> Result<Self> {
        Ok(Self::from_source(super::Parquet::open(pattern, options)?))
    }

    /// MNIST's files, plain or gzip: x u8 `[28, 28]`, y i32 `[]`; any two IDX files with equal numbers of rows work, by path or pattern.
    ///
    /// # Errors
    /// As [`read_idx`], or when images and labels differ in number.
    pub fn from_idx(images: impl AsRef<Path>, labels: impl AsRef<Path>) -> Result<Self> {
        let labels = read_idx(labels, MAX_IDX_BYTES)?;
        if labels.dtype().is_float() {
            let is_no_class = |(_, label): &(usize, f64)| f64::from(*label as i32) != *label;
            let mut numbers = labels.to_f64().into_iter().enumerate();
            if let Some((at, label)) = numbers.find(is_no_class) {
                return Err(Error::User(format!(
                    "label {at} of the IDX file is {label}, expected the number of a class; give a file of whole numbers"
                )));
            }
        }
        let labels = labels.convert(DType::I32);
        Self::from_arrays(read_idx(images, MAX_IDX_BYTES)?, labels)
    }

    /// The files of CIFAR's binary version by pattern: x u8 `[32, 32, 3]`, y i32 `[]`.
    ///
    /// # Errors
    /// As [`FixedRecords::open`].
    pub fn from_cifar(pattern: &str, version: Cifar) -> Result<Self> {
        let records = FixedRecords::open(pattern, version.record())?;
        Ok(Self::from_records(records, move |record: Vec<u8>| {
            version.parse(&record)
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use phalanx_graph::HostTensor;

    use super::super::{TfRecordWriter, test_folder};
    use super::*;

    fn label(features: &Features) -> Result<Example> {
        let label = features.ints("label", 1)?[0];
        Ok(Example {
            x: vec![HostTensor::scalar(label)],
            ..Example::default()
        })
    }

    #[test]
    fn an_error_of_a_parser_has_file_record_and_feature() {
        let path = test_folder::create("parser").join("x.tfrecord");
        let mut writer = TfRecordWriter::create(&path).unwrap();
        for i in 0..6 {
            let name = if i % 3 == 1 { "lable" } else { "label" };
            writer
                .write(&Features::new().with_ints(name, vec![i]).to_bytes())
                .unwrap();
        }
        writer.finish().unwrap();
        let open = |corrupt| {
            let options = TfRecordOptions {
                corrupt,
                ..TfRecordOptions::default()
            };
            Dataset::from_tf_examples(&path.to_string_lossy(), &options, label).unwrap()
        };
        let failing = open(CorruptPolicy::Fail).batch(6);
        let error = failing.get(0, 0).unwrap_err().to_string();
        assert!(
            error.contains("x.tfrecord: record 1 at byte 34, feature `label`: there is none"),
            "{error}"
        );
        let skipping = open(CorruptPolicy::Skip);
        let batches = skipping.shuffle(1).batch(3);
        let mut kept: Vec<i64> = batches
            .iter(0, 0)
            .flat_map(|batch| batch.unwrap().x[0].values().unwrap())
            .collect();
        kept.sort_unstable();
        assert_eq!((kept, skipping.skipped()), (vec![0, 2, 3, 5], 2));
        fs::remove_file(path).unwrap();
    }
}
