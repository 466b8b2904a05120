//! Parquet files as tables: each row as the fields that a CSV file of the same values has.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::Path;

use super::ParquetOptions;
use super::files::InputFile;
use super::parquet_column::{data, fields};
use super::parquet_file::{ParquetFile, RowGroup};
use crate::data::CsvOptions;
use crate::data::csv::CsvArrays;
use crate::data::csv_lines::RowPlace;
use crate::data::csv_one_hot::TextColumn;
use crate::data::csv_table::CsvTable;
use crate::{Error, Result};

/// A file whose columns are numbers and texts.
pub(in crate::data) struct ParquetTable {
    file: ParquetFile,
}

/// Where a row stands: none of them, or one of a row group.
struct ParquetRow<'a> {
    file: &'a ParquetFile,
    /// The row group and the row in it.
    at: Option<(usize, usize)>,
}

impl ParquetTable {
    pub(in crate::data) fn open(path: &Path) -> Result<Self> {
        let opened = InputFile::open_all(vec![path.to_owned()])?.pop();
        let opened = opened.ok_or_else(|| Error::Bug("a path without a file".into()))?;
        let file = ParquetFile::opened(opened, &ParquetOptions::default())?;
        Ok(Self { file })
    }

    /// The names of the columns, without an index that the options do not name.
    pub(in crate::data) fn names(&self, options: &CsvOptions) -> Vec<String> {
        self.file.names(|name| options.has_named(name))
    }

    const fn no_row(&self) -> ParquetRow<'_> {
        ParquetRow {
            file: &self.file,
            at: None,
        }
    }

    /// The rows.
    ///
    /// # Errors
    /// [`Error::Data`] naming row group, column and row where a value is not what the options say of its column, texts among them that are no UTF-8
    /// or more than `max_bytes`; where flags or floats are texts or names; or where the file cannot be decoded.
    pub(in crate::data) fn arrays(mut self, options: &CsvOptions) -> Result<CsvArrays> {
        let names = self.names(options);
        let width = names.len();
        let mut table = CsvTable::new(&self.no_row(), width, names, options)?;
        self.file.choose(table.used(), &ParquetOptions::default())?;
        self.file.check_names(table.texts_and_names())?;
        self.each_row(options.max_bytes, |row, fields| {
            table.push(row, &fields[..width]).map(|()| true)
        })?;
        table.finish(&self.no_row())
    }

    /// Adds the texts in a column to `texts`; `false` where it is the label and the first one is a number.
    pub(in crate::data) fn add_texts(
        mut self,
        options: &CsvOptions,
        column: TextColumn<'_>,
        texts: &mut BTreeSet<String>,
    ) -> Result<bool> {
        let names = self.names(options);
        let Some(index) = column.index(&self.no_row(), &names, names.len())? else {
            return Ok(false);
        };
        self.file.choose(vec![index], &ParquetOptions::default())?;
        if let TextColumn::Feature(_) = column {
            self.file.check_names([index])?;
        }
        let mut are_texts = true;
        self.each_row(options.max_bytes, |row, fields| {
            let added = column.add(&fields[index], options, texts);
            are_texts = added.map_err(|message| row.error_at(index, &names[index], &message))?;
            Ok(are_texts)
        })?;
        Ok(are_texts && column.are_whole(texts))
    }

    /// The names of all columns and the fields of each; where one holds no numbers or texts, the fields say what it holds.
    pub(in crate::data) fn fields_to_show(
        mut self,
        max_bytes: u64,
    ) -> Result<(Vec<String>, Vec<Vec<String>>)> {
        let names = self.file.names(|_| true);
        let kinds = (0..names.len()).map(|column| self.file.other_kind(column));
        let kinds: Vec<Option<String>> = kinds.collect();
        let readable = (0..names.len()).filter(|&column| kinds[column].is_none());
        self.file
            .choose(readable.collect(), &ParquetOptions::default())?;
        let mut columns = vec![Vec::new(); names.len()];
        self.each_row(max_bytes, |_, fields| {
            for ((column, kind), field) in columns.iter_mut().zip(&kinds).zip(fields) {
                column.push(kind.clone().unwrap_or_else(|| field.to_string()));
            }
            Ok(true)
        })?;
        Ok((names, columns))
    }

    /// Gives each row to `each` until that says `false`; fields of columns that are not chosen are empty.
    fn each_row(
        &self,
        max_bytes: u64,
        mut each: impl FnMut(&ParquetRow<'_>, &[Cow<'_, str>]) -> Result<bool>,
    ) -> Result<()> {
        let (chosen, mut left) = (&self.file.features, max_bytes);
        let schema = self.file.metadata.file_metadata().schema_descr();
        let width = schema.num_columns();
        for group in self.file.groups(0) {
            let mut columns = Vec::with_capacity(chosen.len());
            for &column in chosen {
                let values = self.fields(&group, column, left)?;
                let read: usize = values.iter().map(String::len).sum();
                left = left.saturating_sub(read as u64);
                columns.push(values);
            }
            let mut fields = vec![Cow::Borrowed(""); width];
            for row in 0..group.rows {
                for (&column, values) in chosen.iter().zip(&columns) {
                    fields[column] = Cow::Borrowed(&values[row]);
                }
                let at = Some((group.index, row));
                let file = &self.file;
                if !each(&ParquetRow { file, at }, &fields)? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// The fields of a column in a row group; they have at most `max_bytes`.
    fn fields(&self, group: &RowGroup, column: usize, max_bytes: u64) -> Result<Vec<String>> {
        let max_page_bytes = ParquetOptions::default().max_page_bytes;
        let pages = self.file.pages(group.index, column, max_page_bytes)?;
        let chunk = self.file.metadata.row_group(group.index).column(column);
        let location = self.file.cell_location(group.index, column);
        fields(pages, chunk, (group.rows, max_bytes), &location)
    }
}

impl RowPlace for ParquetRow<'_> {
    fn error(&self, message: &str) -> Error {
        let place = match self.at {
            None => "footer".to_owned(),
            Some((group, row)) => format!("row group {group}, row {row} of the group"),
        };
        data(&self.file.file.name(), place, message)
    }

    fn error_at(&self, column: usize, _: &str, message: &str) -> Error {
        match self.at {
            None => self.error(message),
            Some((group, row)) => {
                let location = self.file.cell_location(group, column);
                location.error_of_row(row, message)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::parquet_file::TAIL;
    use super::*;
    use crate::data::{
        Batch, CsvColumn, CsvColumns, Dataset, LabelColumn, MissingValues, OneHotColumn,
        csv_header, csv_label_texts, csv_values, csv_width,
    };

    const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/parquet/");

    fn options() -> CsvOptions {
        let column = |name: &str| CsvColumn::Name(name.into());
        CsvOptions {
            label: LabelColumn::Name("kind".into()),
            classes: ["axolotl", "cat", "dog"].map(str::to_owned).to_vec(),
            columns: ["price", "review", "shop", "city", "size"]
                .map(column)
                .to_vec(),
            texts: vec![column("review")],
            categories: vec![column("city")],
            indices: vec![column("shop")],
            ..CsvOptions::default()
        }
    }

    /// The rows, and the texts of each column of texts and categories.
    fn read(path: &str, options: &CsvOptions) -> Result<(Batch, Vec<Vec<String>>)> {
        let mut columns = CsvColumns::default();
        let rows = Dataset::from_csv_with(path, options, &mut columns)?;
        let batch = rows.batch(rows.len().unwrap_or(1)).get(0, 0)?;
        Ok((batch, columns.texts().to_vec()))
    }

    fn golden(name: &str, options: &CsvOptions) -> Result<(Batch, Vec<Vec<String>>)> {
        read(&format!("{GOLDEN}{name}"), options)
    }

    fn error_of(name: &str, options: &CsvOptions) -> String {
        golden(name, options).unwrap_err().to_string()
    }

    #[test]
    fn tables_have_the_values_of_the_csv_of_the_same_data() {
        let expected = golden("texts.csv", &options()).unwrap();
        assert_eq!(
            (expected.0.rows(), &*expected.1[0][1]),
            (30, "two\nlines 1")
        );
        for name in ["texts.parquet", "texts_plain.parquet", "texts.p[a]rquet"] {
            assert_eq!(golden(name, &options()).unwrap(), expected, "{name}");
        }
        let (label, city) = (options(), CsvColumn::Name("city".into()));
        for (file, plain) in [
            ("texts.parquet", "texts.csv"),
            ("texts_plain.parquet", "texts.csv"),
        ] {
            let [file, plain] = [file, plain].map(|name| [format!("{GOLDEN}{name}")]);
            let classes = csv_label_texts(&file, &label).unwrap();
            assert_eq!(classes, Some(label.classes.clone()));
            assert_eq!(
                csv_values(&file, &label, &city).unwrap(),
                csv_values(&plain, &label, &city).unwrap()
            );
        }
        let numbers = CsvOptions {
            label: LabelColumn::Name("shop".into()),
            ..options()
        };
        assert_eq!(
            csv_label_texts([format!("{GOLDEN}texts.parquet")], &numbers).unwrap(),
            None
        );
    }

    /// pandas keeps the index of a shuffled table in columns behind the others.
    #[test]
    fn an_index_without_a_name_is_no_column_unless_it_is_named() {
        let (batch, _) = golden("index.parquet", &CsvOptions::default()).unwrap();
        assert_eq!(batch.x[0].f32s(), [0.5, 3.0, 1.5, 4.0, 2.5, 5.0]);
        assert_eq!(batch.y[0].to_f64(), [2.0, 0.0, 1.0]);
        let path = format!("{GOLDEN}index.parquet");
        let header = csv_header(&path, &CsvOptions::default()).unwrap();
        assert_eq!(header, ["a", "b", "label"]);
        assert_eq!(csv_width(&path, &CsvOptions::default()).unwrap(), 3);
        let column = |name: &str| CsvColumn::Name(name.into());
        let named = CsvOptions {
            label: LabelColumn::Name("label".into()),
            columns: ["a", "__index_level_0__"].map(column).to_vec(),
            ..CsvOptions::default()
        };
        let (batch, _) = golden("index.parquet", &named).unwrap();
        assert_eq!(batch.x[0].f32s(), [0.5, 7.0, 1.5, 9.0, 2.5, 8.0]);
        let weighted = CsvOptions {
            weight: Some(column("__index_level_1__")),
            label: LabelColumn::Name("label".into()),
            columns: vec![column("a")],
            ..CsvOptions::default()
        };
        let (batch, _) = golden("index.parquet", &weighted).unwrap();
        assert_eq!(batch.weight.unwrap().f32s(), [1.0, 1.0, 2.0]);
    }

    #[test]
    fn nulls_are_missing_values() {
        for missing in [MissingValues::Drop, MissingValues::Keep] {
            let options = CsvOptions {
                missing,
                ..options()
            };
            let [table, plain] = ["texts_nulls.parquet", "texts_nulls.csv"]
                .map(|name| golden(name, &options).unwrap());
            let bits = |batch: &Batch| {
                batch
                    .x
                    .iter()
                    .map(|x| x.bytes().to_vec())
                    .collect::<Vec<_>>()
            };
            assert_eq!(
                (bits(&table.0), &table.0.y, &table.1),
                (bits(&plain.0), &plain.0.y, &plain.1)
            );
        }
        let without = |names: &[&str]| CsvOptions {
            columns: names
                .iter()
                .map(|&name| CsvColumn::Name(name.into()))
                .collect(),
            texts: options()
                .texts
                .into_iter()
                .filter(|_| names.contains(&"review"))
                .collect(),
            categories: options()
                .categories
                .into_iter()
                .filter(|_| names.contains(&"city"))
                .collect(),
            indices: Vec::new(),
            ..options()
        };
        for (column, row, found) in [
            ("review", 1, "no text"),
            ("city", 3, "nothing that names"),
            ("price", 0, "\"\""),
        ] {
            let error = error_of("texts_nulls.parquet", &without(&[column]));
            let group = if column == "price" { 2 } else { 1 };
            let place = format!(
                "texts_nulls.parquet: row group {group}, column `{column}`, row {row} of the group: found {found}"
            );
            assert!(error.contains(&place), "{error}");
        }
    }

    #[test]
    fn what_is_no_table_of_texts_is_named() {
        let of_review = |columns: &[&str]| CsvOptions {
            columns: columns
                .iter()
                .map(|&name| CsvColumn::Name(name.into()))
                .collect(),
            texts: vec![CsvColumn::Name("review".into())],
            ..CsvOptions::default()
        };
        let cases = [
            (
                "texts_delta.parquet",
                of_review(&["review"]),
                "column `review`: found texts in the encoding 7, expected plain ones",
            ),
            (
                "texts_bytes.parquet",
                of_review(&["review"]),
                "column `review`, row 2 of the group: found bytes that are no UTF-8",
            ),
            (
                "texts.parquet",
                of_review(&["reviews"]),
                "footer: found no column named \"reviews\"; choose the column among",
            ),
            (
                "texts.parquet",
                CsvOptions {
                    classes: Vec::new(),
                    ..options()
                },
                "column `kind`, row 0 of the group: found \"cat\", expected a class",
            ),
            (
                "texts.parquet",
                CsvOptions {
                    max_bytes: 500,
                    ..options()
                },
                "bytes of texts, expected at most",
            ),
            (
                "texts.parquet",
                CsvOptions {
                    max_rows: 29,
                    ..options()
                },
                "row group 1, row 9 of the group: found more than 29 rows",
            ),
        ];
        for (name, options, expected) in cases {
            let error = error_of(name, &options);
            assert!(error.contains(expected), "{error}");
        }
    }

    /// Other programs write flags and floats in CSV files with other letters.
    #[test]
    fn flags_and_floats_are_no_names() {
        let column = |name: &str| CsvColumn::Name(name.into());
        let of = |name: &str| CsvOptions {
            label: LabelColumn::Name("label".into()),
            columns: vec![column(name)],
            ..CsvOptions::default()
        };
        for (name, kind) in [
            ("flag", "BOOLEAN"),
            ("float", "FLOAT"),
            ("double", "DOUBLE"),
        ] {
            let one_hot = OneHotColumn {
                column: column(name),
                values: vec!["1".into()],
            };
            let [texts, categories] = [vec![column(name)], vec![column(name)]];
            for options in [
                CsvOptions { texts, ..of(name) },
                CsvOptions {
                    categories,
                    ..of(name)
                },
                CsvOptions {
                    one_hot: vec![one_hot],
                    ..of(name)
                },
            ] {
                let error = error_of("numbers.parquet", &options);
                let told = format!(
                    "numbers.parquet: column `{name}`: found {kind}, expected texts or integers where values are texts or names"
                );
                assert!(error.contains(&told), "{error}");
            }
            let files = [format!("{GOLDEN}numbers.parquet")];
            let error = csv_values(&files, &of(name), &column(name)).unwrap_err();
            assert!(error.to_string().contains("write it as a text"), "{error}");
            // As numbers they are what they are in CSV files.
            golden("numbers.parquet", &of(name)).unwrap();
        }
        let integers = CsvOptions {
            categories: vec![column("int")],
            ..of("int")
        };
        assert_eq!(
            golden("numbers.parquet", &integers).unwrap().1[0][0],
            "-30000"
        );
    }

    /// A table has no settings of the limits of files of numbers.
    #[test]
    fn limits_without_a_setting_are_not_to_be_raised() {
        let open = || ParquetTable::open(Path::new(&format!("{GOLDEN}texts.parquet"))).unwrap();
        let few = ParquetOptions {
            max_row_group_bytes: 100,
            ..ParquetOptions::default()
        };
        let mut table = open();
        let groups = table.file.choose(vec![0, 2], &few).unwrap_err().to_string();
        table
            .file
            .choose(vec![2], &ParquetOptions::default())
            .unwrap();
        let pages = table.file.pages(0, 2, 10).err().unwrap().to_string();
        for (error, told) in [
            (groups, "write smaller row groups, or name fewer columns"),
            (pages, "check the file, or write smaller pages"),
        ] {
            assert!(error.contains(told) && !error.contains("raise"), "{error}");
        }
    }

    /// Pages have checksums; a footer has none.
    #[test]
    fn damaged_tables_are_refused_or_what_they_were() {
        let path = crate::data::test_folder::create("parquet-texts").join("t.parquet");
        let read = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            read(&path.to_string_lossy(), &options())
        };
        for name in ["texts.parquet", "texts_plain.parquet"] {
            let mut bytes = fs::read(format!("{GOLDEN}{name}")).unwrap();
            let whole = read(&bytes).unwrap();
            for end in (0..bytes.len()).step_by(13) {
                assert!(read(&bytes[..end]).is_err(), "{end}");
            }
            let tail = bytes.len() - TAIL as usize;
            let size: [u8; 4] = bytes[tail..][..4].try_into().unwrap();
            let footer = tail - u32::from_le_bytes(size) as usize;
            let (mut found, mut changed) = (0, Vec::new());
            for bit in (0..bytes.len() * 8).step_by(97) {
                bytes[bit / 8] ^= 1 << (bit % 8);
                match read(&bytes) {
                    Ok(values) if values == whole => {}
                    Ok(_) => changed.push(bit / 8),
                    Err(_) => found += 1,
                }
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            changed.retain(|&byte| byte < footer);
            assert_eq!((changed, found > 100), (Vec::new(), true), "{name} {found}");
        }
    }
}
