//! Numbers from CSV text, plain or gzip.
//!
//! Read row by row and strictly: every field must be a finite number, or `true` or `false` for 1 and 0, every row as long as the first, and a
//! quoted field must close, so that a file that was cut or mixed up is refused and not half understood.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::io::Read;

use phalanx_graph::HostTensor;

use super::csv_header::{header, is_value_too, may_be_header, names_columns};
use super::csv_labels::CsvLabel;
use super::csv_lines::{CsvLines, RowPlace, shown};
use super::csv_one_hot::{OneHotColumn, TextColumn};
use super::csv_table::CsvTable;
use super::{Batch, Dataset};
use crate::{Error, Result};

/// How to read a CSV file; the defaults fit a header that is detected and an integer class in the last column.
#[derive(Clone, Debug, PartialEq)]
pub struct CsvOptions {
    /// Whether the first line names the columns.
    pub header: Header,
    /// The column of the label.
    pub label: LabelColumn,
    /// The type of the label.
    pub kind: LabelKind,
    /// The column of the sample weights, finite numbers from 0 that are no feature; see [`Dataset::with_weights`].
    pub weight: Option<CsvColumn>,
    /// The names of the classes, where the label is a name or a number that is none from 0: the first is class 0. Empty where
    /// labels are the classes themselves.
    pub classes: Vec<String>,
    /// The labels of a model with several outputs, each an array of y after the one of `label`, which is [`LabelColumn::None`] where
    /// there is no other.
    pub labels: Vec<CsvLabel>,
    /// The columns of the features, in this order; empty for all but the label, in the order of the file.
    pub columns: Vec<CsvColumn>,
    /// Whether the column of the label may be among the features, and is where `columns` is empty: a series that is forecast from itself.
    pub label_is_feature: bool,
    /// Columns of names, of which each value becomes a feature of its own. A missing value is none of them.
    pub one_hot: Vec<OneHotColumn>,
    /// Columns of the features that are indices, whole numbers from 0: each is an input of its own, i32 `[rows]`, in this order
    /// and after the input of numbers, which is left out where no column is a number. A missing index can be dropped, not kept.
    pub indices: Vec<CsvColumn>,
    /// Columns of the features that are texts, such as reviews: each is an input of its own, i32 `[rows]`, in this order and after
    /// the inputs above. It holds where each text is in [`CsvColumns::texts`], which a
    /// [`TextVectorizer`](super::TextVectorizer) makes arrays of. A missing text is an empty one, whatever it is otherwise.
    pub texts: Vec<CsvColumn>,
    /// Columns of the features that name something, such as users or colours: each is an input of its own as one of `texts` is, after these, and
    /// [`CsvColumns::texts`] has its names without the spaces around them. What is missing is so as elsewhere, and an empty text where it is kept.
    pub categories: Vec<CsvColumn>,
    /// What is done about missing values: fields that are empty, or say `NA`, `nan`, `null`, `none` or `?`, and in a file of one column
    /// that is no text blank lines between others.
    pub missing: MissingValues,
    /// Lines at the start of the file that are not read.
    pub skip_rows: usize,
    /// The dims of one example, whose product is the number of feature columns; empty for `[columns]`.
    pub features: Vec<usize>,
    /// The ASCII character between fields.
    pub delimiter: char,
    /// What stands before the decimals of a number, `.` or `,`; a number in a column of names or texts is read with a point, too.
    pub decimal: char,
    /// The most rows accepted.
    pub max_rows: usize,
    /// The most columns accepted.
    pub max_columns: usize,
    /// The most bytes accepted, counted after decompression.
    pub max_bytes: u64,
}

impl Default for CsvOptions {
    fn default() -> Self {
        Self {
            header: Header::Auto,
            label: LabelColumn::Last,
            kind: LabelKind::Class,
            weight: None,
            classes: Vec::new(),
            labels: Vec::new(),
            columns: Vec::new(),
            label_is_feature: false,
            one_hot: Vec::new(),
            indices: Vec::new(),
            texts: Vec::new(),
            categories: Vec::new(),
            missing: MissingValues::Fail,
            skip_rows: 0,
            features: Vec::new(),
            delimiter: ',',
            decimal: '.',
            max_rows: 100_000_000,
            max_columns: 1 << 18,
            max_bytes: 1 << 30,
        }
    }
}

impl CsvOptions {
    /// The columns that are chosen, without labels.
    fn chosen(&self) -> impl Iterator<Item = &CsvColumn> {
        let one_hot = self.one_hot.iter().map(|one_hot| &one_hot.column);
        let others = self.indices.iter().chain(&self.texts);
        let others = others.chain(&self.categories).chain(&self.weight);
        self.columns.iter().chain(one_hot).chain(others)
    }

    /// Whether a column is chosen by this name.
    #[cfg(feature = "parquet")]
    pub(super) fn has_named(&self, name: &str) -> bool {
        let is_it = |column: &CsvColumn| matches!(column, CsvColumn::Name(own) if own == name);
        let mut labels = self.labels.iter().flat_map(|label| &label.columns);
        matches!(&self.label, LabelColumn::Name(label) if label == name)
            || labels.any(|label| label == name)
            || self.chosen().any(is_it)
    }

    /// Whether all columns that are used are chosen by their names, so that they may be in any place.
    fn is_by_name(&self) -> bool {
        let is_label_by_name = matches!(self.label, LabelColumn::Name(_) | LabelColumn::None);
        is_label_by_name
            && !self.columns.is_empty()
            && (self.chosen()).all(|column| matches!(column, CsvColumn::Name(_)))
    }

    /// Whether fields that say that a value is missing are no errors.
    pub(super) fn looks_for_missing(&self) -> bool {
        self.missing != MissingValues::Fail
    }
}

/// Whether the first line of a CSV file names the columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// It does when it holds text and no number. A line with both is an error, unless texts are allowed where they are and it does not seem
    /// to name columns all the same: with numbers that count them (`0,1,2,label`), beside labels that are numbers, or with a label that comes once
    /// where each other one comes again. Numbers alone are an error where three or more count up evenly (`2019,2020,2021`).
    /// `true` and `false` alone are the first example.
    Auto,
    /// It does.
    Yes,
    /// It holds the first example.
    No,
}

/// Which column of a CSV file is the label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LabelColumn {
    /// The last.
    Last,
    /// The column at an index, counted from 0.
    Index(usize),
    /// The column with a name in the header.
    Name(String),
    /// No column: all are features, as in prediction.
    None,
}

/// A column of a CSV file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CsvColumn {
    /// The column at an index, counted from 0.
    Index(usize),
    /// The column with a name in the header.
    Name(String),
}

/// What is done about missing values of a CSV file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissingValues {
    /// They are errors.
    #[default]
    Fail,
    /// Rows with one are left out.
    Drop,
    /// Features are NaN, for the caller to fill; rows without a label are left out.
    Keep,
}

/// What the label column of a CSV file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelKind {
    /// Integers from 0, read as i32 (`3.0` counts as 3).
    Class,
    /// Numbers, read as f32.
    Value,
}

/// Reads CSV text, or gzip of it, into a dataset in memory: x f32 `[rows, features..]`, then i32 `[rows]` for each column of
/// indices and of texts; y i32 or f32 `[rows]`, or as [`CsvLabel`] says; with a column of weights, these f32 `[rows]`.
///
/// `name` is the file name in error messages. A byte-order mark, LF or CRLF line ends, blank lines (of one column see
/// [`CsvOptions::missing`]), spaces around numbers, quoted fields with line breaks and quotes inside fields without quotes around them are accepted;
/// missing values, NaN and infinity are not.
///
/// # Errors
/// [`Error::Data`] with the line, the column, the value found and what to do; [`Error::User`] for options that
/// contradict each other or the file; [`Error::Io`] when the reader fails.
pub fn parse_csv(reader: impl Read, name: &str, options: &CsvOptions) -> Result<Dataset> {
    parse_csv_with(reader, name, options, &mut CsvColumns::default())
}

/// As [`parse_csv`], of the columns of the files that were read with the same `columns` before.
///
/// # Errors
/// As [`parse_csv`], and when the file has other columns, unless the options choose them by their names.
pub fn parse_csv_with(
    reader: impl Read,
    name: &str,
    options: &CsvOptions,
    columns: &mut CsvColumns,
) -> Result<Dataset> {
    let arrays = csv_arrays(reader, name, options)?;
    Dataset::from_batch(columns.add(arrays, name, options)?)
}

/// What a CSV file holds.
pub(super) struct CsvArrays {
    /// The names of the columns, none where there is no header.
    pub(super) names: Vec<String>,
    /// The rows, without their texts: the numbers, if there are any, then each column of indices.
    pub(super) rows: Batch,
    /// The texts of the rows, for each column of texts.
    pub(super) texts: Vec<Vec<String>>,
    /// The rows left out because a value is missing.
    pub(super) dropped: usize,
    /// For each feature its column, as errors call it.
    pub(super) feature_columns: Vec<String>,
    /// For each feature whether it is a value of a one-hot column.
    pub(super) one_hot: Vec<bool>,
}

pub(super) fn csv_arrays(reader: impl Read, name: &str, options: &CsvOptions) -> Result<CsvArrays> {
    let CsvStart {
        mut lines,
        mut line,
        names,
    } = CsvStart::read(reader, name, options)?;
    let fields = lines.fields(&line)?;
    let mut table = CsvTable::new(&lines, fields.len(), names, options)?;
    if table.names.is_empty() {
        table.push(&lines, &fields)?;
    }
    drop(fields);
    while lines.read(&mut line)? {
        // A value that is missing leaves nothing of its line; between texts there may be lines for the eye.
        if table.is_of_one_column() && options.texts.is_empty() {
            lines.at_blank_lines(|lines| table.push(lines, &[Cow::Borrowed("")]))?;
        }
        table.push(&lines, &lines.fields(&line)?)?;
    }
    table.finish(&lines)
}

/// The names of the columns, none where there is no header.
pub(super) fn read_header(
    reader: impl Read,
    name: &str,
    options: &CsvOptions,
) -> Result<Vec<String>> {
    CsvStart::read(reader, name, options).map(|start| start.names)
}

/// The number of columns.
pub(super) fn read_width(reader: impl Read, name: &str, options: &CsvOptions) -> Result<usize> {
    let start = CsvStart::read(reader, name, options)?;
    let fields = start.lines.fields(&start.line)?;
    Ok(fields.len())
}

/// Adds the texts in a column to `texts`; `false` where it is the label and the first one is a number.
pub(super) fn add_texts(
    reader: impl Read,
    name: &str,
    options: &CsvOptions,
    column: TextColumn<'_>,
    texts: &mut BTreeSet<String>,
) -> Result<bool> {
    let mut start = CsvStart::read(reader, name, options)?;
    let columns = start.lines.fields(&start.line)?.len();
    let Some(index) = column.index(&start.lines, &start.names, columns)? else {
        return Ok(false);
    };
    let named = start.doubtful_name(index, options);
    let mut is_left = start.names.is_empty() || start.lines.read(&mut start.line)?;
    let row = start.lines.fields(&start.line)?;
    let is_named = names_columns(&start.names, &row, index, options);
    drop(row);
    let is_asked = options.header == Header::Auto && start.names.is_empty();
    let (mut first, mut comes_again) = (None, false);
    let mut once = BTreeSet::new();
    while is_left {
        let fields = start.lines.fields(&start.line)?;
        let field = fields.get(index).map_or("", |field| field);
        if is_asked && !once.remove(field.trim()) && !texts.contains(field.trim()) {
            once.insert(field.trim().to_owned());
        }
        match &first {
            Some((first, _)) => comes_again |= field.trim() == first,
            None if is_asked => {
                let error = start.lines.error_at(index, "", &may_be_header(field));
                first = Some((field.trim().to_owned(), error));
            }
            None => {}
        }
        let added = column.add(field, options, texts).map_err(|message| {
            let name = start.names.get(index).map_or("", String::as_str);
            start.lines.error_at(index, name, &message)
        });
        if !added? {
            return Ok(false);
        }
        is_left = start.lines.read(&mut start.line)?;
    }
    if let Some((name, error)) = named
        && !is_named
        && texts.contains(&name)
    {
        return Err(error);
    }
    match first {
        // A name stands above its column once.
        Some((first, error)) if !comes_again && column.is_alone(&first, &once, texts) => Err(error),
        _ => Ok(column.are_whole(texts)),
    }
}

/// A file of which the header was read, or the first row where there is none.
struct CsvStart<'a> {
    lines: CsvLines<'a>,
    line: String,
    names: Vec<String>,
}

impl<'a> CsvStart<'a> {
    fn read(reader: impl Read + 'a, name: &'a str, options: &CsvOptions) -> Result<Self> {
        check_options(options)?;
        let mut lines = CsvLines::open(reader, name, options)?;
        let line = first_line(&mut lines, options.skip_rows)?;
        let fields = lines.fields(&line)?;
        let names = header(&lines, &fields, options)?;
        drop(fields);
        Ok(Self { lines, line, names })
    }

    /// The name of a column of texts, and the error if it is a text of the column, too.
    fn doubtful_name(&self, column: usize, options: &CsvOptions) -> Option<(String, Error)> {
        let name = self.names.get(column);
        let name = name.filter(|_| options.header == Header::Auto)?;
        let error = self.lines.error_at(column, "", &is_value_too(name));
        Some((name.clone(), error))
    }
}

fn first_line(lines: &mut CsvLines<'_>, skipped: usize) -> Result<String> {
    let mut line = String::new();
    lines.skip(skipped)?;
    if lines.read(&mut line)? {
        return Ok(line);
    }
    Err(lines.error("found no line of text, expected rows of numbers; check that the file is the right one and complete"))
}

/// The columns that all files of one dataset must have, as named by the first file with a header.
#[derive(Clone, Debug, Default)]
pub struct CsvColumns {
    first: Option<(String, Vec<String>)>,
    dropped: usize,
    feature_columns: Vec<String>,
    one_hot: Vec<bool>,
    texts: Vec<Vec<String>>,
}

impl CsvColumns {
    /// The names of the columns, none where no file so far has a header.
    #[must_use]
    pub fn names(&self) -> &[String] {
        self.first.as_ref().map_or(&[], |(_, names)| names)
    }

    /// The rows of all files so far that were left out because a value is missing.
    #[must_use]
    pub const fn dropped(&self) -> usize {
        self.dropped
    }

    /// For each feature of the last file its column, as errors call it: its name in quotes, or its position where the file has no header.
    #[must_use]
    pub fn of_features(&self) -> &[String] {
        &self.feature_columns
    }

    /// For each feature of the files so far whether it is a value of a one-hot column.
    #[must_use]
    pub fn one_hot(&self) -> &[bool] {
        &self.one_hot
    }

    /// The texts of all files so far, for each column of [`CsvOptions::texts`] and then of [`CsvOptions::categories`], in the order of their rows.
    #[must_use]
    pub fn texts(&self) -> &[Vec<String>] {
        &self.texts
    }

    /// The rows of one more file: the numbers, if there are any, then each column of indices, then each of texts.
    pub(super) fn add(
        &mut self,
        arrays: CsvArrays,
        name: &str,
        options: &CsvOptions,
    ) -> Result<Batch> {
        let CsvArrays {
            names,
            mut rows,
            texts,
            dropped,
            feature_columns,
            one_hot,
        } = arrays;
        self.dropped += dropped;
        self.feature_columns = feature_columns;
        self.one_hot = one_hot;
        if !options.is_by_name() {
            self.see(name, names)?;
        }
        self.texts.resize(texts.len(), Vec::new());
        for (all, texts) in self.texts.iter_mut().zip(texts) {
            let places = all.len()..all.len() + texts.len();
            let places: std::result::Result<Vec<i32>, _> = places.map(i32::try_from).collect();
            let too_many = |_| {
                Error::User(format!(
                    "{name} and the files before it have more texts than i32 counts; give fewer files"
                ))
            };
            let places = places.map_err(too_many)?;
            rows.x.push(HostTensor::new([texts.len()], &places));
            all.extend(texts);
        }
        Ok(rows)
    }

    /// Compares the columns of one more file; a file without a header is taken to have the same columns.
    fn see(&mut self, file: &str, names: Vec<String>) -> Result<()> {
        let Some((first, expected)) = &self.first else {
            self.first = (!names.is_empty()).then(|| (file.to_owned(), names));
            return Ok(());
        };
        if names.is_empty() || names == *expected {
            return Ok(());
        }
        let most = names.len().max(expected.len());
        let differs = (0..most).find(|&column| names.get(column) != expected.get(column));
        let column = differs.unwrap_or_default();
        let name = |names: &[String]| {
            names
                .get(column)
                .map_or("nothing".into(), |name| shown(name))
        };
        Err(Error::Data {
            source_name: file.to_owned(),
            place: format!("header, column {}", column + 1),
            message: format!(
                "found {}, expected {} as in {first}; give files of the same columns in the same order, or narrow the pattern",
                name(&names),
                name(expected)
            ),
        })
    }
}

fn check_options(options: &CsvOptions) -> Result<()> {
    let delimiter = options.delimiter;
    if !delimiter.is_ascii()
        || delimiter.is_ascii_alphanumeric()
        || "\"\r\n+-.\0".contains(delimiter)
    {
        return Err(Error::User(format!(
            "csv delimiter is {delimiter:?}, expected an ascii character that is in no number; use ',', ';', '|' or '\\t'"
        )));
    }
    let decimal = options.decimal;
    if !['.', ','].contains(&decimal) || decimal == delimiter {
        return Err(Error::User(format!(
            "csv decimals stand behind {decimal:?} and fields are parted by {delimiter:?}, expected '.' or ',' and another character; correct one of them"
        )));
    }
    if let (Header::No, LabelColumn::Name(name)) = (options.header, &options.label) {
        return Err(Error::User(format!(
            "csv label column is named {name:?} but the header is said to be absent; give the column's index, or a header"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use proptest::prelude::*;

    use super::*;
    use crate::data::csv_label_texts;

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn named(label: &str) -> CsvOptions {
        CsvOptions {
            label: LabelColumn::Name(label.into()),
            ..CsvOptions::default()
        }
    }

    fn parse(text: impl AsRef<[u8]>, options: &CsvOptions) -> Dataset {
        parse_csv(text.as_ref(), "t.csv", options).unwrap()
    }

    fn whole(dataset: &Dataset) -> (Vec<f32>, Vec<f64>) {
        let batch = dataset.batch(1000).get(0, 0).unwrap();
        (
            batch.x[0].f32s(),
            batch.y.first().map_or(Vec::new(), HostTensor::to_f64),
        )
    }

    #[test]
    fn the_accepted_forms_read_alike() {
        let default = CsvOptions::default();
        let semicolons = CsvOptions {
            delimiter: ';',
            ..default.clone()
        };
        let tabs = CsvOptions {
            delimiter: '\t',
            ..default.clone()
        };
        let first = CsvOptions {
            label: LabelColumn::Index(0),
            ..default.clone()
        };
        let yes = CsvOptions {
            header: Header::Yes,
            ..default.clone()
        };
        let cases: [(&[u8], &CsvOptions); 15] = [
            (b"1,2.5,0\n-3,4e1,1\n", &default),
            (b"1,2.5,0\n-3,4e1,1", &default),
            (b"1,2.5,0\r\n-3,4e1,1\r\n", &default),
            (b"\xef\xbb\xbfa,b,c\n1,2.5,0\n-3,4e1,1\n", &default),
            (b"a,b,c\n1,2.5,0\n-3,4e1,1\n", &default),
            (b",b,c\n1,2.5,0\n-3,4e1,1\n", &default),
            (b"0,1,2\n1,2.5,0\n-3,4e1,1\n", &yes),
            (b"\n1,2.5,0\n\n  \n-3,4e1,1\n\n\n", &default),
            (b" 1 , 2.5,0\n-3,+40,1.0 \n", &default),
            (b"\"1\",\"2.5\",\"0\"\n-3,\"4e1\",1\n", &default),
            (b"\"a,\"\"1\"\"\",b,c\n1,2.5,0\n-3,4e1,1\n", &default),
            (b"1;2.5;0\n-3;40;1\n", &semicolons),
            (b"1\t2.5\t0\n-3\t40\t1\n", &tabs),
            (b"0,1,2.5\n1,-3,40\n", &first),
            (b"c,a,b\n0,1,2.5\n1,-3,40\n", &named("c")),
        ];
        for (text, options) in cases {
            let expected = (vec![1.0, 2.5, -3.0, 40.0], vec![0.0, 1.0]);
            assert_eq!(
                whole(&parse(text, options)),
                expected,
                "{}",
                String::from_utf8_lossy(text)
            );
            assert_eq!(whole(&parse(gzip(text), options)), expected, "gzip");
        }
        let members = [gzip(b"1,2.5,0\n"), gzip(b"-3,40,1\n")].concat();
        assert_eq!(parse(members, &default).len(), Some(2));
    }

    #[test]
    fn options_choose_dims_and_types() {
        let options = CsvOptions {
            features: vec![2, 1],
            kind: LabelKind::Value,
            ..CsvOptions::default()
        };
        let example = parse("1,2,0.5\n", &options).get(0, 0).unwrap();
        assert_eq!(
            (example.x[0].dims(), &example.y[0]),
            (&[2, 1][..], &HostTensor::scalar(0.5f32))
        );
        let options = CsvOptions {
            label: LabelColumn::None,
            ..CsvOptions::default()
        };
        let example = parse("3,1,2\n", &options).get(0, 0).unwrap();
        assert_eq!((example.x[0].dims(), example.y.len()), (&[3][..], 0));
        let limits = CsvOptions {
            max_rows: 2,
            max_columns: 2,
            max_bytes: 8,
            ..CsvOptions::default()
        };
        assert_eq!(parse("1,0\n2,1\n", &limits).len(), Some(2));
    }

    #[test]
    fn a_column_of_indices_is_an_input_of_its_own() {
        let column = |name: &str| CsvColumn::Name(name.into());
        let options = CsvOptions {
            columns: vec![column("user"), column("price"), column("item")],
            indices: vec![column("item"), column("user")],
            ..CsvOptions::default()
        };
        let text = "item,price,user,y\n2147483647,0.5,16777217,1\n0,1.5,3.0,0\n";
        let batch = parse(text, &options).batch(2).get(0, 0).unwrap();
        assert_eq!(batch.x[0], HostTensor::new([2, 1], &[0.5f32, 1.5]));
        assert_eq!(batch.x[1], HostTensor::new([2], &[i32::MAX, 0]));
        assert_eq!(batch.x[2], HostTensor::new([2], &[16_777_217i32, 3]));
        assert_eq!(batch.y, [HostTensor::new([2], &[1i32, 0])]);
        // Without numbers there is no input of numbers.
        let only = CsvOptions {
            columns: vec![column("item")],
            indices: vec![column("item")],
            missing: MissingValues::Drop,
            ..CsvOptions::default()
        };
        let batch = parse("item,y\n,0\n4,1\n", &only)
            .batch(2)
            .get(0, 0)
            .unwrap();
        assert_eq!(batch.x, [HostTensor::new([1], &[4i32])]);
        let error = |options: &CsvOptions, text: &str| error_of(text, options);
        let twice = CsvOptions {
            indices: vec![column("item"), CsvColumn::Index(0)],
            ..only.clone()
        };
        assert!(error(&twice, "item,y\n4,1\n").contains("column 1 of the indices is named twice"));
        for field in ["-1", "0.5", "2147483648", "nan", "inf", "x"] {
            let message = error(&only, &format!("item,y\n{field},1\n"));
            let is_dropped = field == "nan" && message.contains("missing value");
            assert!(
                is_dropped || message.contains("expected an index"),
                "{message}"
            );
        }
    }

    fn of_texts(texts: &[&str]) -> CsvOptions {
        CsvOptions {
            texts: texts
                .iter()
                .map(|&name| CsvColumn::Name(name.into()))
                .collect(),
            ..CsvOptions::default()
        }
    }

    /// The texts of one file by the numbers that its rows have, and the labels.
    fn texts_of(text: impl AsRef<[u8]>, options: &CsvOptions) -> (Vec<Vec<String>>, Vec<f64>) {
        let mut columns = CsvColumns::default();
        let rows = parse_csv_with(text.as_ref(), "t.csv", options, &mut columns).unwrap();
        let batch = rows.batch(1000).get(0, 0).unwrap();
        let first = batch.x.len() - options.texts.len();
        let texts = columns.texts().iter().zip(&batch.x[first..]);
        let texts = texts.map(|(texts, places)| {
            let places = places.values::<i32>().unwrap().into_iter();
            places
                .map(|place| texts[usize::try_from(place).unwrap()].clone())
                .collect()
        });
        (texts.collect(), batch.y[0].to_f64())
    }

    #[test]
    fn texts_may_be_quoted_with_delimiters_quotes_and_line_breaks() {
        let options = of_texts(&["b"]);
        let text = "\u{feff}\"b\",y\r\n\" Well, \"\"so\"\"\r\n\r\n\n it\rgoes,\"\"\",1\r\nnone,0\r\n\n\"\"\"\",1\r\n\" \u{e9}\",0\n\" 5\",1";
        let expected = [
            " Well, \"so\"\r\n\r\n\n it\rgoes,\"",
            "none",
            "\"",
            " \u{e9}",
            " 5",
        ];
        for bytes in [text.as_bytes().to_vec(), gzip(text.as_bytes())] {
            let (texts, labels) = texts_of(bytes, &options);
            assert_eq!(texts, [expected]);
            assert_eq!(labels, [1.0, 0.0, 1.0, 0.0, 1.0]);
        }
        // Without a header: not everything is text.
        let by_index = CsvOptions {
            texts: vec![CsvColumn::Index(0)],
            ..CsvOptions::default()
        };
        assert_eq!(
            texts_of("fine,1\n\"a\nb\",0\n", &by_index).0,
            [["fine", "a\nb"]]
        );
        let marked = "\u{feff}\"a\nb\",1\n";
        assert_eq!(texts_of(marked, &by_index).0, [["a\nb"]]);
        // A quote that does not begin a field is a letter of it.
        let inches = "b,y\na 5\" screen,1\n 6\"\",0\n";
        assert_eq!(texts_of(inches, &options).0, [["a 5\" screen", " 6\"\""]]);
        // The names of columns may have line breaks as well, and lines that are skipped are lines.
        let skips = CsvOptions {
            skip_rows: 2,
            ..of_texts(&["b\nc"])
        };
        assert_eq!(texts_of("5\" wide\n\n\"b\nc\",y\nx,1\n", &skips).0, [["x"]]);
    }

    #[test]
    fn texts_are_inputs_after_numbers_and_indices_and_numbered_over_files() {
        let column = |name: &str| CsvColumn::Name(name.into());
        let options = CsvOptions {
            indices: vec![column("user")],
            ..of_texts(&["title", "body"])
        };
        let mut columns = CsvColumns::default();
        let mut read = |text: &str| {
            let rows = parse_csv_with(text.as_bytes(), "t.csv", &options, &mut columns).unwrap();
            rows.batch(9).get(0, 0).unwrap().x
        };
        let header = "body,price,user,title,y\n";
        let first = read(&format!("{header}b0,0.5,7,t0,1\nb1,1.5,8,t1,0\n"));
        assert_eq!(first[0], HostTensor::new([2, 1], &[0.5f32, 1.5]));
        assert_eq!(first[1], HostTensor::new([2], &[7i32, 8]));
        assert_eq!(
            first[2..],
            [
                HostTensor::new([2], &[0i32, 1]),
                HostTensor::new([2], &[0i32, 1])
            ]
        );
        let second = read(&format!("{header}b2,2,9,t2,1\n"));
        assert_eq!(
            second[2..],
            [HostTensor::new([1], &[2i32]), HostTensor::new([1], &[2i32])]
        );
        assert_eq!(columns.texts(), [["t0", "t1", "t2"], ["b0", "b1", "b2"]]);
    }

    #[test]
    fn an_empty_text_is_missing_and_no_other_is() {
        let text = "b,y\nnone,1\n  ,0\nNA,1\n\"\",0\n";
        let options = of_texts(&["b"]);
        let error = error_of(text, &options);
        let expected = "line 3, column 1 (\"b\"): found no text; write one, or leave such rows out (`missing: drop`)";
        assert!(error.contains(expected), "{error}");
        let of = |missing| CsvOptions {
            missing,
            ..options.clone()
        };
        let drops = of(MissingValues::Drop);
        assert_eq!(
            texts_of(text, &drops),
            (vec![vec!["none".into(), "NA".into()]], vec![1.0, 1.0])
        );
        // What was read of a row that is left out is left out too.
        let two = CsvOptions {
            missing: MissingValues::Drop,
            ..of_texts(&["a", "b"])
        };
        let (texts, labels) = texts_of("a,b,y\nA,B,\nC,,1\nD,E,2\n", &two);
        assert_eq!(
            (texts, labels),
            (vec![vec!["D".into()], vec!["E".into()]], vec![2.0])
        );
        let keeps = of(MissingValues::Keep);
        assert_eq!(texts_of(text, &keeps).0, [["none", "  ", "NA", ""]]);
    }

    #[test]
    fn categories_are_inputs_after_texts_without_spaces_and_may_be_missing() {
        let column = |name: &str| CsvColumn::Name(name.into());
        let of = |missing| CsvOptions {
            categories: vec![column("user"), column("item")],
            missing,
            ..of_texts(&["title"])
        };
        let text = "user,title,price,item,y\n u 1 ,a,0.5,7,1\n\"u,2\",b,1,,0\nNA,c,2,08,1\n";
        let read = |missing| {
            let mut columns = CsvColumns::default();
            let rows = parse_csv_with(text.as_bytes(), "t.csv", &of(missing), &mut columns);
            let batch = rows.unwrap().batch(9).get(0, 0).unwrap();
            (batch.x, columns.texts().to_vec(), columns.dropped())
        };
        let (x, texts, _) = read(MissingValues::Keep);
        assert_eq!(x[0], HostTensor::new([3, 1], &[0.5f32, 1.0, 2.0]));
        assert_eq!(
            x[1..],
            [(); 3].map(|()| HostTensor::new([3], &[0i32, 1, 2]))
        );
        let expected = [["a", "b", "c"], ["u 1", "u,2", ""], ["7", "", "08"]];
        assert_eq!(texts, expected);
        let (_, texts, dropped) = read(MissingValues::Drop);
        assert_eq!(
            (texts, dropped),
            (
                vec![vec!["a".into()], vec!["u 1".into()], vec!["7".into()]],
                2
            )
        );
        // Where nothing is looked for, an empty field alone is missing.
        let error = error_of(text, &of(MissingValues::Fail));
        let expected = "line 3, column 4 (\"item\"): found nothing that names something";
        assert!(error.contains(expected), "{error}");
        let named = text.replace("b,1,,", "b,1,none,");
        let mut columns = CsvColumns::default();
        let options = of(MissingValues::Fail);
        parse_csv_with(named.as_bytes(), "t.csv", &options, &mut columns).unwrap();
        assert_eq!(
            columns.texts()[1..],
            [["u 1", "u,2", "NA"], ["7", "none", "08"]]
        );
        let twice = CsvOptions {
            categories: vec![column("title")],
            ..of_texts(&["title"])
        };
        let error = error_of(text, &twice);
        assert!(
            error.contains("column 2 of the categories is named twice"),
            "{error}"
        );
    }

    #[test]
    fn names_in_a_first_line_are_no_names_of_columns() {
        let by_index = CsvOptions {
            label: LabelColumn::Index(1),
            categories: vec![CsvColumn::Index(0)],
            ..CsvOptions::default()
        };
        let mut columns = CsvColumns::default();
        parse_csv_with(&b"red,1\nblue,0\n"[..], "t.csv", &by_index, &mut columns).unwrap();
        assert_eq!(columns.texts(), [["red", "blue"]]);
    }

    #[test]
    fn a_blank_line_of_a_single_column_is_a_missing_value() {
        let of = |missing| CsvOptions {
            label: LabelColumn::None,
            missing,
            ..CsvOptions::default()
        };
        let read = |text: &str, missing| {
            let mut columns = CsvColumns::default();
            let data = parse_csv_with(text.as_bytes(), "t.csv", &of(missing), &mut columns);
            (whole(&data.unwrap()).0, columns.dropped())
        };
        let (text, keep) = ("x\n1\n\n3\n\n\n", MissingValues::Keep);
        let (kept, dropped) = read(text, keep);
        assert!(kept[1].is_nan() && kept.len() == 3 && dropped == 0);
        assert_eq!(read(text, MissingValues::Drop), (vec![1.0, 3.0], 1));
        assert_eq!(read("x,y\n1,2\n\n3,4\n", keep).0, [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(read("\n\n1\n3\n", keep).0, [1.0, 3.0]);
        let error = error_of(text, &of(MissingValues::Fail));
        assert!(error.contains("line 3, column 1 (\"x\")"), "{error}");
        let error = error_of("x\n1\n\nred\n", &of(MissingValues::Drop));
        assert!(error.contains("line 4, column 1"), "{error}");
        let texts = CsvOptions {
            texts: vec![CsvColumn::Name("x".into())],
            ..of(MissingValues::Fail)
        };
        let mut columns = CsvColumns::default();
        let text = "x\nred\n\nblue\n";
        parse_csv_with(text.as_bytes(), "t.csv", &texts, &mut columns).unwrap();
        assert_eq!(columns.texts(), [["red", "blue"]]);
    }

    fn one_hot(column: CsvColumn, values: &[&str]) -> OneHotColumn {
        OneHotColumn {
            column,
            values: values.iter().map(ToString::to_string).collect(),
        }
    }

    fn error_of(text: &str, options: &CsvOptions) -> String {
        let error = parse_csv(text.as_bytes(), "t.csv", options).unwrap_err();
        error.to_string()
    }

    /// As pandas writes an array with a column more: `DataFrame(x)`, `to_csv(index=False)`.
    #[test]
    fn names_that_are_positions_are_no_row() {
        let city = CsvColumn::Index(2);
        let one_hot = CsvOptions {
            one_hot: vec![one_hot(city.clone(), &["city", "Ulm"])],
            ..CsvOptions::default()
        };
        let [texts, categories] = [vec![city.clone()], vec![city]];
        let of_texts = CsvOptions {
            texts,
            ..CsvOptions::default()
        };
        let of_categories = CsvOptions {
            categories,
            ..CsvOptions::default()
        };
        for (options, first, rows) in [
            (CsvOptions::default(), "0,1,2,species", "5,3,1,setosa\n"),
            (one_hot, "0,1,city,3", "5,3,Ulm,1\n"),
            (of_texts, "0,1,review,3", "5,3,good,1\n"),
            (of_categories, "0,1,city,3,label", "5,3,Ulm,2,1\n"),
        ] {
            let text = format!("{first}\n{rows}");
            let error = error_of(&text, &options);
            let asks = "say whether there is a header (`header: true` or `header: false`)";
            assert!(
                error.starts_with("t.csv: line 1, column ") && error.contains(asks),
                "{error}"
            );
            let with = CsvOptions {
                header: Header::Yes,
                classes: vec!["1".into(), "setosa".into()],
                ..options
            };
            assert_eq!(parse(&text, &with).len(), Some(1));
        }
        // Few numbers may be a label or features.
        let of_texts = CsvOptions {
            label: LabelColumn::Index(0),
            texts: vec![CsvColumn::Index(1)],
            ..CsvOptions::default()
        };
        assert_eq!(texts_of("0,bad\n1,good\n", &of_texts).0, [["bad", "good"]]);
    }

    #[test]
    fn numbers_that_count_columns_are_asked_about() {
        let asks = "say whether there is a header (`header: true` or `header: false`)";
        let rows = "5,3,1,2\n4,1,0,3\n";
        for first in [
            "0,1,2,3",
            "1,2,3,4",
            "2019,2020,2021,2022",
            "400, 410,420,430",
            "2019,2020,2021,label",
        ] {
            let error = error_of(&format!("{first}\n{rows}"), &CsvOptions::default());
            assert!(
                error.starts_with("t.csv: line 1, column ") && error.contains(asks),
                "{error}"
            );
            for (header, expected) in [(Header::Yes, 2), (Header::No, 3)] {
                let options = CsvOptions {
                    header,
                    classes: ["2", "3", "4", "label", "2022", "430"]
                        .map(str::to_owned)
                        .to_vec(),
                    ..CsvOptions::default()
                };
                let read = parse(format!("{first}\n{rows}"), &options);
                assert_eq!(read.len(), Some(expected), "{first}");
            }
        }
        for first in [
            "3,2,1,0",
            "0,0,0,0",
            "1,2,4,5",
            "1,2,3.5,4",
            "-1,0,1,2",
            "0,1,0,1",
        ] {
            let read = parse(
                format!("{first}\n{rows}"),
                &CsvOptions {
                    kind: LabelKind::Value,
                    ..CsvOptions::default()
                },
            );
            assert_eq!(read.len(), Some(3), "{first}");
        }
        assert_eq!(parse("0,1\n2,3\n", &CsvOptions::default()).len(), Some(2));
    }

    #[test]
    fn flags_are_one_and_zero_and_no_names_of_columns() {
        let text = "True,false,1.5,TRUE\nFALSE,true,2,False\n";
        let expected = (vec![1.0, 0.0, 1.5, 0.0, 1.0, 2.0], vec![1.0, 0.0]);
        assert_eq!(whole(&parse(text, &CsvOptions::default())), expected);
        assert_eq!(
            parse("True,False\nFalse,True\n", &CsvOptions::default()).len(),
            Some(2)
        );
        let value = CsvOptions {
            kind: LabelKind::Value,
            ..CsvOptions::default()
        };
        assert_eq!(whole(&parse("a,b\n1,true\n", &value)).1, [1.0]);
        assert!(error_of("a,b\ntRue,1\n", &value).contains("found \"tRue\", expected a number"));
    }

    #[test]
    fn decimals_may_stand_behind_a_comma() {
        let options = CsvOptions {
            delimiter: ';',
            decimal: ',',
            one_hot: vec![one_hot(CsvColumn::Index(2), &["a,b", "1.5"])],
            kind: LabelKind::Value,
            ..CsvOptions::default()
        };
        let text = "-1,5;2;a,b;0,25\n\"+3,0e1\";4.5;1,5;,5\n";
        let expected = (
            vec![-1.5, 2.0, 1.0, 0.0, 30.0, 4.5, 0.0, 1.0],
            vec![0.25, 0.5],
        );
        assert_eq!(whole(&parse(text, &options)), expected);
        for (text, found) in [
            ("1;1,2,3;1,5;1\n", "1,2,3"),
            ("1;2,;1,5;1\n", "2,"),
            ("1;1.000,5;1,5;1\n", "1.000,5"),
        ] {
            let error = error_of(
                text,
                &CsvOptions {
                    header: Header::No,
                    ..options.clone()
                },
            );
            assert!(
                error.contains(&format!("column 2: found {found:?}, expected a number")),
                "{error}"
            );
        }
        for (delimiter, decimal) in [(',', ','), (';', '\'')] {
            let error = error_of(
                "1;2\n",
                &CsvOptions {
                    delimiter,
                    decimal,
                    ..CsvOptions::default()
                },
            );
            assert!(
                error.contains("expected '.' or ',' and another character"),
                "{error}"
            );
        }
    }

    #[test]
    fn columns_that_are_not_read_may_have_line_breaks_and_quotes() {
        let column = |name: &str| CsvColumn::Name(name.into());
        let options = CsvOptions {
            columns: vec![column("a"), column("c")],
            categories: vec![column("c")],
            ..CsvOptions::default()
        };
        let mut columns = CsvColumns::default();
        let text = "a,note,c,y\r\n1,\"so\r\nit, \"\"goes\"\"\",\"x\n1\",0\r\n2,5\" wide,y,1\r\n";
        let rows = parse_csv_with(text.as_bytes(), "t.csv", &options, &mut columns).unwrap();
        assert_eq!(
            rows.batch(9).get(0, 0).unwrap().x[0],
            HostTensor::new([2, 1], &[1.0f32, 2.0])
        );
        assert_eq!(columns.texts(), [["x\n1", "y"]]);
    }

    fn label_texts(text: &str, header: Header) -> Result<Option<Vec<String>>> {
        let path = crate::data::test_folder::create("label-texts").join("t.csv");
        std::fs::write(&path, text).unwrap();
        let options = CsvOptions {
            header,
            ..CsvOptions::default()
        };
        csv_label_texts([path], &options)
    }

    #[test]
    fn a_text_above_labels_that_are_numbers_is_no_class() {
        // Wavelengths, and a column that is named by its position.
        for text in ["400.5,410,label\n1,2,0\n3,4,1\n", "0,label\n1,0\n"] {
            let error = label_texts(text, Header::Auto).unwrap_err().to_string();
            assert!(error.contains("found \"label\" in a first line"), "{error}");
            assert_eq!(label_texts(text, Header::Yes).unwrap(), None);
            assert!(label_texts(text, Header::No).unwrap().is_some());
        }
        // Each class comes again, and the name alone does not.
        let text =
            "400.5,410,species\n1,2,setosa\n3,4,virginica\n5,4,virginica\n5,6,setosa\n7,6,setosa\n";
        let error = label_texts(text, Header::Auto).unwrap_err().to_string();
        assert!(
            error.contains("found \"species\" in a first line"),
            "{error}"
        );
        assert_eq!(
            label_texts(text, Header::Yes).unwrap().unwrap(),
            ["setosa", "virginica"]
        );
        // Texts alone are names, unless one is a class too.
        let text = "fine,good\nso so,bad\nfair,good\n";
        let error = label_texts(text, Header::Auto).unwrap_err().to_string();
        let expected =
            "t.csv: line 1, column 2: found \"good\", which is also a value in its column";
        assert!(error.contains(expected), "{error}");
        assert_eq!(
            label_texts(text, Header::No).unwrap().unwrap(),
            ["bad", "good"]
        );
        assert_eq!(
            label_texts(text, Header::Yes).unwrap().unwrap(),
            ["bad", "good"]
        );
        let texts = label_texts("400.5,410,a\n1,2,0\n3,4,b\n", Header::Auto).unwrap();
        assert_eq!(texts.unwrap(), ["0", "a", "b"]);
        let again = label_texts("5.1,410,other\n1,2,1\n6,2,2\n5,2, other\n", Header::Auto).unwrap();
        assert_eq!(again.unwrap(), ["1", "2", "other"]);
        let alone = label_texts("1,2,a\n3,4,a\n", Header::Auto).unwrap();
        assert_eq!(alone.unwrap(), ["a"]);
        let named = label_texts("x,y\n1,a\n2,0\n", Header::Auto).unwrap();
        assert_eq!(named.unwrap(), ["0", "a"]);
    }

    #[test]
    fn a_name_beside_one_above_numbers_may_be_a_class_too() {
        for text in [
            "free,spam\n0.1,spam\n0.2,ham\n",
            "free,spam\ntrue,spam\nfalse,ham\n",
        ] {
            assert_eq!(
                label_texts(text, Header::Auto).unwrap().unwrap(),
                ["ham", "spam"]
            );
        }
        // What stands for a missing number is no name.
        let error = label_texts("NA,spam\n0.1,spam\n0.2,ham\n", Header::Auto).unwrap_err();
        assert!(
            error.to_string().contains("\"spam\", which is also"),
            "{error}"
        );
    }

    #[test]
    fn a_one_hot_column_is_a_feature_for_each_value() {
        let name = |name: &str| CsvColumn::Name(name.into());
        let options = CsvOptions {
            one_hot: vec![one_hot(name("b"), &["red", "blue", "7"])],
            ..CsvOptions::default()
        };
        let text = "a,b,c\n1, blue ,0\n2,7,1\n3,\"red\",0\n";
        let expected = vec![1.0, 0.0, 1.0, 0.0, 2.0, 0.0, 0.0, 1.0, 3.0, 1.0, 0.0, 0.0];
        assert_eq!(
            whole(&parse(text, &options)),
            (expected, vec![0.0, 1.0, 0.0])
        );
        // Without a header, in another order.
        let by_index = CsvOptions {
            columns: vec![CsvColumn::Index(1), CsvColumn::Index(0)],
            one_hot: vec![one_hot(CsvColumn::Index(1), &["blue", "red"])],
            ..CsvOptions::default()
        };
        assert_eq!(whole(&parse("1,red,0\n", &by_index)).0, [0.0, 1.0, 1.0]);
        for field in ["green", "", "none", "nan", "Red"] {
            let text = format!("a,b,c\n1,red,0\n2,{field},1\n");
            let error = error_of(&text, &options);
            let expected = format!(
                "line 3, column 2 (\"b\"): found {field:?}, expected one of the values \"red\", \"blue\", \"7\""
            );
            assert!(error.contains(&expected), "{error}");
        }
        let keeps = CsvOptions {
            missing: MissingValues::Keep,
            ..options.clone()
        };
        assert_eq!(
            whole(&parse("a,b,c\n1,,0\n", &keeps)).0,
            [1.0, 0.0, 0.0, 0.0]
        );
        let drops = CsvOptions {
            missing: MissingValues::Drop,
            ..options.clone()
        };
        assert_eq!(whole(&parse("a,b,c\n1,NA,0\n2,7,1\n", &drops)).1, [1.0]);
    }

    #[test]
    fn a_one_hot_column_that_is_no_feature_is_named() {
        let name = |name: &str| CsvColumn::Name(name.into());
        for (column, expected) in [
            (
                name("x"),
                "found no column named \"x\"; choose the one-hot column among",
            ),
            (
                name("c"),
                "column \"c\" is one-hot and none of the features",
            ),
            (
                CsvColumn::Index(3),
                "one-hot column 3 (counted from 0) is not among the 3",
            ),
        ] {
            let options = CsvOptions {
                one_hot: vec![one_hot(column, &["0"])],
                ..CsvOptions::default()
            };
            let error = error_of("a,b,c\n1,2,0\n", &options);
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_plain_file_named_gz_and_a_failing_reader_are_errors() {
        let error = parse_csv(&b"1,0\n"[..], "t.csv.gz", &CsvOptions::default())
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("t.csv.gz: line 1: found no gzip data"),
            "{error}"
        );
        let error = Dataset::from_csv(".", &CsvOptions::default())
            .unwrap_err()
            .to_string();
        assert!(error.contains("cannot read ."), "{error}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn no_text_panics(text in "[0-9,.\"\r\nae; \u{feff}-]{0,60}", label in 0usize..4) {
            let options = CsvOptions { label: LabelColumn::Index(label), ..CsvOptions::default() };
            let _ = parse_csv(text.as_bytes(), "t.csv", &options);
        }

        #[test]
        fn texts_survive_the_round_trip(texts in proptest::collection::vec("[a\"\r\n,; \u{e9}]{0,12}x", 1..9)) {
            let rows = texts.iter().map(|text| format!("\"{}\",1\n", text.replace('"', "\"\"")));
            let file = format!("b,y\n{}", rows.collect::<String>());
            prop_assert_eq!(&texts_of(file, &of_texts(&["b"])).0, &[texts]);
        }

        #[test]
        fn no_text_with_line_breaks_panics(text in "[0-9,.\"\r\nae; \u{feff}-]{0,60}") {
            let options = CsvOptions { texts: vec![CsvColumn::Index(0)], ..CsvOptions::default() };
            let _ = parse_csv(text.as_bytes(), "t.csv", &options);
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = parse_csv(&bytes[..], "t.csv", &CsvOptions::default());
        }

        #[test]
        fn numbers_survive_the_round_trip(values in proptest::collection::vec(-1e30f32..1e30, 1..50)) {
            let text: String = values.iter().map(|value| format!("{value},1\n")).collect();
            prop_assert_eq!(whole(&parse(text, &CsvOptions::default())).0, values);
        }
    }
}
