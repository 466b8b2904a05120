//! Rows of CSV files as they are written, to look at: of files that have columns of texts or names, or a label that is no class.

use phalanx::data::{
    CsvColumn, CsvColumns, CsvOptions, Dataset, LabelColumn, MissingValues, csv_header,
    csv_is_missing, files_matching, parquet_fields,
};
use phalanx::{Error, Result};

/// How CSV files are read of which no training file says anything: with a class in the last column, and of any size, as trainings read them.
pub(crate) fn csv_options() -> CsvOptions {
    CsvOptions {
        max_bytes: u64::MAX,
        ..CsvOptions::default()
    }
}

/// The rows of files that have a header.
pub(crate) struct CsvFields {
    names: Vec<String>,
    /// The fields of each column.
    columns: Vec<Vec<String>>,
    are_texts: Vec<bool>,
}

impl CsvFields {
    /// The rows, if a column holds texts or names, or the label in the last column is a number that is no class; `None` where
    /// something else is in the way of reading numbers, such as a field of text in a column of numbers.
    pub(crate) fn read(data: &str) -> Option<Self> {
        let names = csv_header(data, &csv_options()).ok()?;
        let options = CsvOptions {
            label: LabelColumn::None,
            texts: (0..names.len()).map(CsvColumn::Index).collect(),
            missing: MissingValues::Keep,
            ..csv_options()
        };
        let mut read = CsvColumns::default();
        Dataset::from_csv_with(data, &options, &mut read).ok()?;
        let columns = read.texts().to_vec();
        let are_texts = columns.iter().map(|fields| is_text(fields));
        let are_texts = are_texts.collect::<Option<Vec<bool>>>()?;
        let is_class = |field: &String| field.trim().parse::<u32>().is_ok();
        let is_value = !columns.last()?.iter().all(is_class);
        let is_shown = are_texts.contains(&true) || is_value && !has_missing(&columns);
        is_shown.then_some(Self {
            names,
            columns,
            are_texts,
        })
    }

    /// The rows of Parquet files, whatever their columns hold.
    pub(crate) fn of_parquet(data: &str) -> Result<Self> {
        let mut all: Option<(Vec<String>, Vec<Vec<String>>)> = None;
        for file in files_matching(data)? {
            let (names, columns) = parquet_fields(&file, u64::MAX)?;
            match &mut all {
                None => all = Some((names, columns)),
                Some((first, before)) if *first == names => {
                    let pairs = before.iter_mut().zip(columns);
                    pairs.for_each(|(before, column)| before.extend(column));
                }
                Some((first, _)) => {
                    return Err(Error::User(format!(
                        "{} has the columns {}, and the files before it {}; look at them one by one",
                        file.display(),
                        names.join(", "),
                        first.join(", ")
                    )));
                }
            }
        }
        let (names, columns) = all.unwrap_or_default();
        let are_texts = columns.iter().map(|fields| is_text(fields).unwrap_or(true));
        Ok(Self {
            are_texts: are_texts.collect(),
            names,
            columns,
        })
    }

    /// How many rows there are.
    pub(crate) fn len(&self) -> usize {
        self.columns.first().map_or(0, Vec::len)
    }

    /// The number of bytes in a row.
    pub(crate) fn bytes(&self, row: usize) -> u64 {
        let fields = self.columns.iter().filter_map(|column| column.get(row));
        fields.map(|field| field.len() as u64).sum()
    }

    /// The fields of a row under their names, of columns of texts in quotes and `shortened`.
    pub(crate) fn row(&self, row: usize, shortened: impl Fn(&str) -> String) -> String {
        let columns = self.columns.iter().zip(&self.are_texts);
        let fields = self.names.iter().zip(columns);
        let fields = fields.map(|(name, (column, is_text))| {
            let field = &column[row];
            match (csv_is_missing(field), is_text) {
                (true, _) => format!("{name}: missing"),
                (false, true) => format!("{name}: {:?}", shortened(field)),
                (false, false) => format!("{name}: {}", field.trim()),
            }
        });
        fields.collect::<Vec<_>>().join(", ")
    }
}

/// Whether a column holds texts: its first field that is there is no number. `None` where one of numbers holds something else.
fn is_text(fields: &[String]) -> Option<bool> {
    let is_number = |field: &&String| field.trim().parse::<f64>().is_ok_and(f64::is_finite);
    let mut there = fields.iter().filter(|field| !csv_is_missing(field));
    match there.next() {
        Some(first) if is_number(&first) => there.all(|field| is_number(&field)).then_some(false),
        first => Some(first.is_some()),
    }
}

fn has_missing(columns: &[Vec<String>]) -> bool {
    columns.iter().flatten().any(|field| csv_is_missing(field))
}
