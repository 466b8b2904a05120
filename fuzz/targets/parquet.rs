//! Parquet files: the footer when they are opened, and every row group when its rows are read, as numbers and as a table of texts.
#![no_main]

use libfuzzer_sys::fuzz_target;
use phalanx::Error;
use phalanx::data::{CsvColumn, CsvColumns, CsvOptions, Dataset, LabelColumn, LabelKind, Parquet, ParquetOptions, Source, csv_header};

fuzz_target!(init: leave_panics_of_the_library(), |input: &[u8]| {
    let path = std::env::temp_dir().join(format!("phalanx-fuzz-{}.parquet", std::process::id()));
    std::fs::write(&path, input).expect("a file in the temporary folder");
    check_table(&path);
    // The length chooses the label.
    let label = if input.len().is_multiple_of(2) { LabelColumn::Last } else { LabelColumn::None };
    let kind = if input.len() % 4 < 2 { LabelKind::Class } else { LabelKind::Value };
    let options = ParquetOptions {
        label,
        kind,
        max_rows: 10_000,
        max_columns: 100,
        max_row_group_bytes: 1 << 20,
        max_page_bytes: 1 << 18,
        cache_bytes: 1 << 20,
        ..ParquetOptions::default()
    };
    let source = match Parquet::open(&path.to_string_lossy(), &options) {
        Ok(source) => source,
        Err(error) => return check(error),
    };
    let rows = source.len();
    assert!(rows > 0 && rows <= 10_000 && source.per_file() == [rows]);
    let all: Vec<usize> = (0..rows).rev().collect();
    match source.gather(&all) {
        Ok(batch) => {
            assert!(batch.x[0].dims() == [rows, source.columns().len()]);
            assert!(batch.x[0].to_f64().iter().all(|value| value.is_finite()));
            let last = source.get(rows - 1).expect("what can be read together can be read alone");
            assert!(last.x[0].bytes() == batch.x[0].slice_rows(0, 1).bytes());
        }
        Err(error) => check(error),
    }
});

/// As a table whose first column is texts and whose second one is names.
fn check_table(path: &std::path::Path) {
    let limits = CsvOptions { max_rows: 10_000, max_columns: 100, max_bytes: 1 << 20, ..CsvOptions::default() };
    let width = match csv_header(path, &limits) {
        Ok(names) => names.len(),
        Err(error) => return check(error),
    };
    let options = CsvOptions {
        label: LabelColumn::None,
        columns: (0..width.min(2)).map(CsvColumn::Index).collect(),
        texts: vec![CsvColumn::Index(0)],
        categories: (1..width.min(2)).map(CsvColumn::Index).collect(),
        ..limits
    };
    let mut columns = CsvColumns::default();
    match Dataset::from_csv_with(path, &options, &mut columns) {
        Ok(rows) => {
            let rows = rows.len().expect("rows in memory");
            assert!(rows > 0 && rows <= 10_000);
            assert!(columns.texts().iter().all(|texts| texts.len() == rows));
            assert!(columns.texts().iter().flatten().map(String::len).sum::<usize>() <= 1 << 20);
        }
        Err(error) => check(error),
    }
}

/// The reader turns panics of the Parquet library into errors; without this they would end the fuzzer before.
fn leave_panics_of_the_library() {
    let end = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let is_of_library = panic.location().is_some_and(|at| at.file().contains("registry"));
        if !is_of_library {
            end(panic);
        }
    }));
}

fn check(error: Error) {
    match error {
        Error::Data { source_name, message, .. } => {
            assert!(source_name.ends_with(".parquet"), "{source_name}: {message}");
            assert!(message.contains("; "), "no next action: {message}");
        }
        error => panic!("expected an error of the data, got {error}"),
    }
}
