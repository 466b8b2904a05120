//! Numbers from CSV text, plain or gzip.
//!
//! Read line by line and strictly: every field must be a finite number, every row as long as the first, and a quoted
//! field must close on its line, so that a file that was cut or mixed up is refused and not half understood.

use std::borrow::Cow;
use std::io::Read;

use phalanx_graph::HostTensor;

use super::Dataset;
use super::csv_lines::{CsvLines, shown};
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
    /// The dims of one example, whose product is the number of feature columns; empty for `[columns]`.
    pub features: Vec<usize>,
    /// The ASCII character between fields.
    pub delimiter: char,
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
            features: Vec::new(),
            delimiter: ',',
            max_rows: 100_000_000,
            max_columns: 1 << 18,
            max_bytes: 1 << 30,
        }
    }
}

/// Whether the first line of a CSV file names the columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// It does when it holds text and no number; a line with both is an error.
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

/// What the label column of a CSV file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelKind {
    /// Integers from 0, read as i32 (`3.0` counts as 3).
    Class,
    /// Numbers, read as f32.
    Value,
}

/// Reads CSV text, or gzip of it, into a dataset in memory: x f32 `[rows, features..]`, y i32 or f32 `[rows]`.
///
/// `name` is the file name in error messages. A byte-order mark, LF or CRLF line ends, blank lines, spaces around
/// numbers and quoted fields are accepted; quoted line breaks, missing values, NaN and infinity are not.
///
/// # Errors
/// [`Error::Data`] with the line, the column, the value found and what to do; [`Error::User`] for options that
/// contradict each other or the file; [`Error::Io`] when the reader fails.
pub fn parse_csv(reader: impl Read, name: &str, options: &CsvOptions) -> Result<Dataset> {
    let (_, mut arrays) = csv_arrays(reader, name, options)?;
    let y = arrays.split_off(1);
    Dataset::from_arrays(arrays, y)
}

/// The names of the columns, none where there is no header; then x, and y where there is a label.
pub(super) fn csv_arrays(
    reader: impl Read,
    name: &str,
    options: &CsvOptions,
) -> Result<(Vec<String>, Vec<HostTensor>)> {
    check_options(options)?;
    let mut lines = CsvLines::open(reader, name, options)?;
    let mut line = first_line(&mut lines)?;
    let fields = lines.fields(&line)?;
    let names = header(&lines, &fields, options.header)?;
    let mut table = CsvTable::new(&lines, &fields, names, options)?;
    if table.names.is_empty() {
        table.push(&lines, &fields)?;
    }
    while lines.read(&mut line)? {
        table.push(&lines, &lines.fields(&line)?)?;
    }
    table.finish(&lines)
}

fn first_line(lines: &mut CsvLines<'_>) -> Result<String> {
    let mut line = String::new();
    if lines.read(&mut line)? {
        return Ok(line);
    }
    Err(lines.error("found no line of text, expected rows of numbers; check that the file is the right one and complete"))
}

/// The columns that all files of one dataset must have, as named by the first file with a header.
#[derive(Clone, Debug, Default)]
pub struct CsvColumns(Option<(String, Vec<String>)>);

impl CsvColumns {
    /// Compares the columns of one more file; a file without a header is taken to have the same columns.
    pub(super) fn see(&mut self, file: &str, names: Vec<String>) -> Result<()> {
        let Some((first, expected)) = &self.0 else {
            self.0 = (!names.is_empty()).then(|| (file.to_owned(), names));
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
    if let (Header::No, LabelColumn::Name(name)) = (options.header, &options.label) {
        return Err(Error::User(format!(
            "csv label column is named {name:?} but the header is said to be absent; give the column's index, or a header"
        )));
    }
    Ok(())
}

/// The column names, empty when the first line is data.
fn header(lines: &CsvLines<'_>, fields: &[Cow<'_, str>], header: Header) -> Result<Vec<String>> {
    let is_text =
        |field: &&Cow<'_, str>| !field.trim().is_empty() && field.trim().parse::<f64>().is_err();
    let named = match header {
        Header::Yes => true,
        Header::No => false,
        Header::Auto => {
            let numbers = fields
                .iter()
                .filter(|field| field.trim().parse::<f64>().is_ok());
            match (fields.iter().position(|field| is_text(&field)), numbers.count()) {
                (Some(column), 1..) => return Err(lines.error_at(column, "", &format!(
                    "found {} in a first line that also holds numbers, expected names or numbers alone; \
                     correct the value, or say whether there is a header (header: yes or no)",
                    shown(&fields[column])
                ))),
                (text, _) => text.is_some(),
            }
        }
    };
    let names = fields.iter().map(|field| field.trim().to_owned());
    Ok(if named { names.collect() } else { Vec::new() })
}

/// The numbers read so far.
struct CsvTable<'a> {
    options: &'a CsvOptions,
    names: Vec<String>,
    columns: usize,
    label: Option<usize>,
    rows: usize,
    features: Vec<f32>,
    classes: Vec<i32>,
    values: Vec<f32>,
}

impl<'a> CsvTable<'a> {
    fn new(
        lines: &CsvLines<'_>,
        first: &[Cow<'_, str>],
        names: Vec<String>,
        options: &'a CsvOptions,
    ) -> Result<Self> {
        let columns = first.len();
        if columns > options.max_columns {
            return Err(lines.error(&format!(
                "found {columns} columns, expected at most {}; check the delimiter, or raise max_columns",
                options.max_columns
            )));
        }
        let label = label_column(lines, &names, columns, &options.label)?;
        let features = columns - usize::from(label.is_some());
        check_features(lines, features, options)?;
        Ok(Self {
            options,
            names,
            columns,
            label,
            rows: 0,
            features: Vec::new(),
            classes: Vec::new(),
            values: Vec::new(),
        })
    }

    fn push(&mut self, lines: &CsvLines<'_>, fields: &[Cow<'_, str>]) -> Result<()> {
        if fields.len() != self.columns {
            return Err(lines.error(&format!(
                "found {} columns, expected {} as in the first line; complete or remove the row",
                fields.len(),
                self.columns
            )));
        }
        if self.rows == self.options.max_rows {
            return Err(lines.error(&format!(
                "found more than {} rows; shorten the file, or raise max_rows",
                self.options.max_rows
            )));
        }
        self.rows += 1;
        for (column, field) in fields.iter().enumerate() {
            let read = match (self.label == Some(column), self.options.kind) {
                (false, _) => number(field).map(|value| self.features.push(value)),
                (true, LabelKind::Value) => number(field).map(|value| self.values.push(value)),
                (true, LabelKind::Class) => class(field).map(|class| self.classes.push(class)),
            };
            read.map_err(|message| {
                let name = self.names.get(column).map_or("", String::as_str);
                lines.error_at(column, name, &message)
            })?;
        }
        Ok(())
    }

    fn finish(self, lines: &CsvLines<'_>) -> Result<(Vec<String>, Vec<HostTensor>)> {
        if self.rows == 0 {
            return Err(lines.error("found a header and no row, expected rows of numbers; check that the file is complete"));
        }
        let rows = self.rows;
        let dims = match &self.options.features[..] {
            [] => vec![rows, self.features.len() / rows],
            features => [&[rows], features].concat(),
        };
        let y = match (self.label, self.options.kind) {
            (None, _) => None,
            (Some(_), LabelKind::Class) => Some(HostTensor::new([rows], &self.classes)),
            (Some(_), LabelKind::Value) => Some(HostTensor::new([rows], &self.values)),
        };
        let x = HostTensor::new(dims, &self.features);
        Ok((self.names, [x].into_iter().chain(y).collect()))
    }
}

fn label_column(
    lines: &CsvLines<'_>,
    names: &[String],
    columns: usize,
    label: &LabelColumn,
) -> Result<Option<usize>> {
    match label {
        LabelColumn::None => Ok(None),
        LabelColumn::Last => Ok(Some(columns - 1)),
        LabelColumn::Index(index) if *index < columns => Ok(Some(*index)),
        LabelColumn::Index(index) => Err(lines.error(&format!(
            "label column {index} (counted from 0) is not among the {columns} columns found; \
             choose an index below {columns}, or check the delimiter"
        ))),
        LabelColumn::Name(name) => named_column(lines, names, name).map(Some),
    }
}

fn named_column(lines: &CsvLines<'_>, names: &[String], name: &str) -> Result<usize> {
    let found: Vec<usize> = (0..names.len())
        .filter(|&column| names[column] == name)
        .collect();
    match (&found[..], names) {
        ([column], _) => Ok(*column),
        ([], []) => Err(lines.error(&format!(
            "label column is named {name:?} but the first line holds numbers; give the column's index, or add a header"
        ))),
        ([], _) => {
            let listed: Vec<String> = names.iter().take(10).map(|name| shown(name)).collect();
            let more = if names.len() > 10 { ", .." } else { "" };
            Err(lines.error(&format!(
                "found no column named {name:?}; choose the label among {}{more}",
                listed.join(", ")
            )))
        }
        ([first, second, ..], _) => Err(lines.error(&format!(
            "columns {} and {} are both named {name:?}; rename one, or give the label by index",
            first + 1,
            second + 1
        ))),
    }
}

fn check_features(lines: &CsvLines<'_>, columns: usize, options: &CsvOptions) -> Result<()> {
    let dims = &options.features;
    let product = dims
        .iter()
        .try_fold(1usize, |product, &dim| product.checked_mul(dim));
    if columns == 0 {
        return Err(lines.error(
            "found a single column, the label, and no feature; check the delimiter, or set the label column to none",
        ));
    }
    if !dims.is_empty() && product != Some(columns) {
        let needed = product.map_or_else(|| "too many".into(), |product| product.to_string());
        return Err(lines.error(&format!(
            "found {columns} feature columns, expected {needed} for dims {dims:?}; correct the dims, the label column or the delimiter"
        )));
    }
    Ok(())
}

fn number(field: &str) -> std::result::Result<f32, String> {
    let text = field.trim();
    match text.parse::<f32>() {
        Ok(value) if value.is_finite() => Ok(value),
        _ => Err(format!(
            "found {}, expected a number; {}",
            shown(field),
            advice(text)
        )),
    }
}

fn class(field: &str) -> std::result::Result<i32, String> {
    let text = field.trim();
    let value = text.parse::<f64>().unwrap_or(f64::NAN);
    if value.fract() == 0.0 && value >= 0.0 && value <= f64::from(i32::MAX) {
        return Ok(value as i32);
    }
    let advice = if value.is_finite() {
        "number the classes from 0, or read the label as a value (regression)"
    } else {
        advice(text)
    };
    Err(format!(
        "found {}, expected a class from 0 to {}; {advice}",
        shown(field),
        i32::MAX
    ))
}

/// What to do about a field that is no finite number.
fn advice(text: &str) -> &'static str {
    let is_number = |text: &str| text.parse::<f64>().is_ok();
    match text.to_ascii_lowercase().as_str() {
        "" => "fill in the missing value or remove the row",
        "nan" | "na" | "n/a" | "null" | "none" | "?" | "-nan" | "nil" => {
            "replace the missing value or remove the row"
        }
        "true" | "false" | "yes" | "no" => "write 1 and 0",
        lower if is_number(lower) => "bring the value into the range of f32 or remove the row",
        lower if lower.contains(',') && is_number(&lower.replace(',', ".")) => {
            "write decimals with a point"
        }
        lower if lower.contains(['\t', ';', '|', ',']) => "check the delimiter",
        lower if lower.contains('\0') => "check that the file is text in utf-8",
        _ => "correct the value, or encode text as numbers",
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use proptest::prelude::*;

    use super::*;

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
        let example = parse("1,2,3\n", &options).get(0, 0).unwrap();
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
