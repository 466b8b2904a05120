//! Malformed CSV: each text is refused with the place, what was found, and what to do, and never with a panic.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use phalanx::Error;
use phalanx::data::{
    CsvColumn, CsvOptions, Dataset, Header, LabelColumn, LabelKind, MissingValues, parse_csv,
};

const NAME: &str = "t.csv";

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

/// Bytes, options, and what the error must name: the place, the finding and the next action.
type Malformed = (Vec<u8>, CsvOptions, &'static [&'static str]);

fn default() -> CsvOptions {
    CsvOptions::default()
}

fn regression() -> CsvOptions {
    CsvOptions {
        kind: LabelKind::Value,
        ..default()
    }
}

fn header(header: Header) -> CsvOptions {
    CsvOptions {
        header,
        ..default()
    }
}

fn index(index: usize) -> CsvOptions {
    CsvOptions {
        label: LabelColumn::Index(index),
        ..default()
    }
}

fn dims(features: &[usize]) -> CsvOptions {
    CsvOptions {
        features: features.to_vec(),
        ..default()
    }
}

fn delimiter(delimiter: char) -> CsvOptions {
    CsvOptions {
        delimiter,
        ..default()
    }
}

fn rows(max_rows: usize) -> CsvOptions {
    CsvOptions {
        max_rows,
        ..default()
    }
}

fn columns(max_columns: usize) -> CsvOptions {
    CsvOptions {
        max_columns,
        ..default()
    }
}

fn bytes(max_bytes: u64) -> CsvOptions {
    CsvOptions {
        max_bytes,
        ..default()
    }
}

fn b(text: &str) -> Vec<u8> {
    text.as_bytes().to_vec()
}

/// Rows that differ in length, and values that are no numbers or classes: one case a line, as in the tables below.
#[rustfmt::skip]
fn rows_and_values() -> Vec<Malformed> {
    vec![
        (b(""), default(), &["line 1", "no line of text", "check that the file"]),
        (b("\n\n\n"), default(), &["line 4", "no line of text", "check"]),
        (b("\u{feff}"), default(), &["line 2", "no line of text", "check"]),
        (gzip(b""), default(), &["line 1", "no line of text", "check"]),
        (b("a,b,c\n"), default(), &["line 2", "header and no row", "complete"]),
        (b("1,2,0\n"), header(Header::Yes), &["line 2", "header and no row", "complete"]),
        (b("1,2,0\n3,4\n"), default(), &["line 2", "2 columns, expected 3", "complete or remove"]),
        (b("1,2,0\n3,4,5,1\n"), default(), &["line 2", "4 columns, expected 3", "remove the row"]),
        (b("1,2,0\n\n\n3,4\n"), default(), &["line 4", "2 columns, expected 3", "remove the row"]),
        (b("1,2,0\n3,4,1,\n"), default(), &["line 2", "4 columns, expected 3", "remove"]),
        (b("a,b\n1,2,0\n"), default(), &["line 2", "3 columns, expected 2", "remove"]),
        (b("1,2,0\n3,x,1\n"), default(), &["line 2, column 2", "\"x\", expected a number", "correct the value"]),
        (b("a,b,c\n3,x,1\n"), default(), &["line 2, column 2 (\"b\")", "\"x\"", "correct the value"]),
        (b("1,2,0\n3,,1\n"), default(), &["line 2, column 2", "\"\"", "missing value"]),
        (b("1,2,0\n3,  ,1\n"), default(), &["line 2, column 2", "\"  \"", "missing value"]),
        (b("1,,0\n"), default(), &["line 1, column 2", "missing value"]),
        (b("1,2,0\n3,NaN,1\n"), default(), &["line 2, column 2", "\"NaN\"", "missing value"]),
        (b("1,2,0\nnan,4,1\n"), default(), &["line 2, column 1", "\"nan\"", "missing value"]),
        (b("1,2,0\n3,-nan,1\n"), default(), &["line 2, column 2", "missing value"]),
        (b("1,2,0\n3,NA,1\n"), default(), &["line 2, column 2", "\"NA\"", "replace the missing value"]),
        (b("1,2,0\n3,?,1\n"), default(), &["line 2, column 2", "\"?\"", "replace the missing value"]),
        (b("1,2,0\n3,null,1\n"), default(), &["line 2, column 2", "\"null\"", "replace the missing value"]),
        (b("1,2,0\n3,inf,1\n"), default(), &["line 2, column 2", "\"inf\"", "range of f32"]),
        (b("1,2,0\n-Infinity,3,1\n"), default(), &["line 2, column 1", "range of f32"]),
        (b("1,2,0\n1e39,3,1\n"), default(), &["line 2, column 1", "\"1e39\"", "range of f32"]),
        (b("1,2,0\n1e999999999999,3,1\n"), default(), &["line 2, column 1", "range of f32"]),
        (b("a;b;y\n1;2;0\n"), named("y"), &["line 1", "no column named \"y\", but a single one, \"a;b;y\"", "delimiter: \";\""]),
        (b("1,2,0\nyes,3,1\n"), default(), &["line 2, column 1", "\"yes\"", "write 1 and 0"]),
        (b("1;2;0\n1,5;3;1\n"), delimiter(';'), &["line 2, column 1", "\"1,5\"", "decimals with a point"]),
        (b("1,2,0\n0x10,3,1\n"), default(), &["line 2, column 1", "\"0x10\"", "correct the value"]),
        (b("1,2,0\n1_000,3,1\n"), default(), &["line 2, column 1", "\"1_000\"", "correct the value"]),
        (b("1,2,0\n1 000,3,1\n"), default(), &["line 2, column 1", "\"1 000\"", "correct the value"]),
        (b("1,2,0\n$5,3,1\n"), default(), &["line 2, column 1", "\"$5\"", "correct the value"]),
        (b("1,2,0\n5%,3,1\n"), default(), &["line 2, column 1", "\"5%\"", "correct the value"]),
        (b("1,2,0\n--5,3,1\n"), default(), &["line 2, column 1", "\"--5\"", "correct the value"]),
        (b("1,2,0\n1.2.3,3,1\n"), default(), &["line 2, column 1", "\"1.2.3\"", "correct the value"]),
        (b("1,2,0\n2026-11-21,3,1\n"), default(), &["line 2, column 1", "correct the value"]),
        (b("1,2,0\n3,4,cat\n"), default(), &["line 2, column 3", "\"cat\", expected a class", "encode text as numbers"]),
        (b("1,2,0\n3,4,-1\n"), default(), &["line 2, column 3", "\"-1\", expected a class from 0", "regression"]),
        (b("1,2,0\n3,4,0.5\n"), default(), &["line 2, column 3", "\"0.5\"", "number the classes from 0"]),
        (b("1,2,0\n3,4,3000000000\n"), default(), &["line 2, column 3", "2147483647", "number the classes"]),
        (b("1,2,0\n3,4,\n"), default(), &["line 2, column 3", "expected a class", "missing value"]),
        (b("1,2,0\n3,4,nan\n"), default(), &["line 2, column 3", "expected a class", "missing value"]),
        (b("1,2,0\n3,4,nan\n"), regression(), &["line 2, column 3", "expected a number", "missing value"]),
        (b("1,2,0\n3,4,inf\n"), regression(), &["line 2, column 3", "\"inf\"", "range of f32"]),
    ]
}

/// Texts that do not agree with the options, or go beyond their limits.
#[rustfmt::skip]
fn options_and_limits() -> Vec<Malformed> {
    let long = [b"1,".repeat(100_000), b"0\n".to_vec()].concat();
    vec![
        (b("1,x,0\n3,4,1\n"), default(), &["line 1, column 2", "\"x\" in a first line", "whether there is a header"]),
        (b("a,b,c\n3,4,1\n"), header(Header::No), &["line 1, column 1", "\"a\"", "correct the value"]),
        (b("1\n2\n"), default(), &["line 1", "single column", "check the delimiter"]),
        (b("1;2;0\n"), default(), &["line 1", "single column", "check the delimiter"]),
        (b("1\t2\t0\n"), default(), &["line 1", "single column", "check the delimiter"]),
        (b("1 2,0 3,0\n1,2,0\n"), default(), &["line 1", "", "header"]),
        (b("1,2,0\n1;2,3,0\n"), default(), &["line 2, column 1", "\"1;2\"", "check the delimiter"]),
        (b("a,b,c\n1,2,0\n"), named("label"), &["line 1", "no column named \"label\"", "\"a\", \"b\", \"c\""]),
        (b("a,b,a\n1,2,0\n"), named("a"), &["line 1", "columns 1 and 3", "rename one"]),
        (b("1,2,0\n"), named("a"), &["line 1", "named \"a\"", "give the column's index"]),
        (b("1,2,0\n"), CsvOptions { header: Header::No, ..named("a") }, &["named \"a\"", "absent", "or a header"]),
        (b("1,2,0\n"), index(3), &["line 1", "label column 3", "index below 3"]),
        (b("1,2,0\n"), dims(&[3]), &["line 1", "2 feature columns, expected 3", "correct the dims"]),
        (b("1,2,0\n"), dims(&[0]), &["line 1", "2 feature columns, expected 0", "correct the dims"]),
        (b("1,2,0\n"), dims(&[usize::MAX, 4]), &["line 1", "expected too many", "correct the dims"]),
        (b("1,2,0\n"), delimiter('"'), &["delimiter is '\"'", "use ','"]),
        (b("1,2,0\n"), delimiter('5'), &["delimiter is '5'", "use ','"]),
        (b("1,2,0\n"), delimiter('é'), &["delimiter is 'é'", "use ','"]),
        (b("1,2,0\n"), delimiter('\n'), &["delimiter is '\\n'", "use ','"]),
        (b("1,0\n2,0\n3,0\n"), rows(2), &["line 3", "more than 2 rows", "raise max_rows"]),
        (b("1,0\n"), rows(0), &["line 1", "more than 0 rows", "raise max_rows"]),
        (b("1,2,3,0\n"), columns(3), &["line 1", "4 columns, expected at most 3", "raise max_columns"]),
        (b("1,2,0\n3,4,0\n"), bytes(8), &["line 2", "more than 8 bytes", "raise max_bytes"]),
        (b("1,2,0\n"), bytes(0), &["line 1", "more than 0 bytes", "raise max_bytes"]),
        (long, columns(4), &["line 1", "line of more than 65536 bytes", "check the line ends"]),
        (gzip(&b"1,0\n".repeat(1 << 20)), bytes(1 << 20), &["line 262145", "more than 1048576 bytes", "raise max_bytes"]),
        (gzip(&vec![b'1'; 1 << 26]), default(), &["line 1", "line of more than", "check the line ends"]),
        (gzip(&vec![b'\n'; 1 << 20]), bytes(1000), &["line 1001", "more than 1000 bytes", "raise max_bytes"]),
    ]
}

/// Quotes, line ends, encodings, and damaged gzip.
#[rustfmt::skip]
fn quotes_and_bytes() -> Vec<Malformed> {
    let good = gzip(b"1,2,0\n3,4,1\n5,6,0\n");
    let mut flipped = good.clone();
    flipped[10] = 7;
    let mut bad_crc = good.clone();
    let at = bad_crc.len() - 6;
    bad_crc[at] ^= 1;
    vec![
        (b("1,2,0\n\"3,4,1\n5,6,0\n"), default(), &["line 2", "not closed before the end of the text", "close it"]),
        (b("1,2,0\n3,4,\"1"), default(), &["line 2", "not closed before the end of the text", "close it"]),
        (b("1,2,0\n\"3\"4,5,1\n"), default(), &["line 2, column 1", "after a closing quote", "remove the text"]),
        (b("1,2,0\n3,4\"5,1\n"), default(), &["line 2, column 2", "\"4\\\"5\", expected a number", "correct the value"]),
        (b("1,2,0\n\"\",4,1\n"), default(), &["line 2, column 1", "missing value"]),
        (b("1,2,0\n\"a\"\"b\",4,1\n"), default(), &["line 2, column 1", "a\\\"b", "correct the value"]),
        (b("1,2,0\r3,4,1\r"), default(), &["line 1", "carriage return", "convert the line ends"]),
        (b("a\r1\r,0\n"), default(), &["line 1", "carriage return", "convert the line ends"]),
        (b("1,2,0\n3\r4,5,1\n"), default(), &["line 2", "carriage return", "convert the line ends"]),
        (b("1,2,0\n3,\0,1\n"), default(), &["line 2, column 2", "\"\\0\"", "text in utf-8"]),
        (b"1,2,0\n3,\xff,1\n".to_vec(), default(), &["line 2", "byte 0xff at position 3", "save the file as utf-8"]),
        (b"caf\xe9,b,c\n1,2,0\n".to_vec(), default(), &["line 1", "byte 0xe9 at position 4", "utf-8"]),
        (b"\xff\xfe1\0,\x002\0\n\0".to_vec(), default(), &["line 1", "utf-16", "save the file as utf-8"]),
        (b"\xfe\xff\x001\0,\x002\0\n".to_vec(), default(), &["line 1", "utf-16", "save the file as utf-8"]),
        (b"\x89PNG\r\n\x1a\n".to_vec(), default(), &["line 1", "byte 0x89", "utf-8"]),
        (good[..good.len() - 1].to_vec(), default(), &["line 4", "end too early", "download the file again"]),
        (good[..good.len() / 2].to_vec(), default(), &["line ", "end too early", "download the file again"]),
        (good[..5].to_vec(), default(), &["line 1", "end too early", "download the file again"]),
        (good[..2].to_vec(), default(), &["line 1", "end too early", "download the file again"]),
        (bad_crc, default(), &["line 4", "gzip data are damaged", "download the file again"]),
        (flipped, default(), &["line ", "gzip data are damaged", "download the file again"]),
        ([&good[..], b"garbage"].concat(), default(), &["line 4", "gzip data", "again"]),
        (b"\x1f\x8b\x08\xffxxxxxxxxxxxx".to_vec(), default(), &["line 1", "gzip data", "again"]),
    ]
}

fn of_texts(texts: &[CsvColumn]) -> CsvOptions {
    CsvOptions {
        texts: texts.to_vec(),
        ..default()
    }
}

/// Columns of texts, of which the column `b` is one: their quotes may have line breaks.
#[rustfmt::skip]
fn texts() -> Vec<Malformed> {
    let column = |name: &str| CsvColumn::Name(name.into());
    let text = || of_texts(&[column("b")]);
    let narrow = CsvOptions { max_columns: 1024, ..text() };
    let drops = CsvOptions { missing: MissingValues::Drop, ..text() };
    let index_too = CsvOptions { indices: vec![column("b")], ..text() };
    let unused = CsvOptions { columns: vec![column("a")], ..text() };
    let long = format!("b,y\n\"{}\",1\n", "a\n".repeat(1 << 15));
    vec![
        (b("b,y\nx,1\n\"so\non,0\n"), text(), &["line 3", "not closed before the end of the text", "close it"]),
        (b("b,y\n\""), text(), &["line 2", "not closed before the end of the text", "close it"]),
        (b("\"b,y\nx,1\n"), text(), &["line 1", "not closed before the end of the text", "close it"]),
        (b("b,y\n\"so\non\"x,0\n\"\",1\n"), text(), &["line 2, column 1", "text after a closing quote", "remove the text"]),
        (b("b,y\nx\"y\nz\",0\n"), text(), &["line 2", "1 columns, expected 2", "remove the row"]),
        (b("b,y\n\"a\nb\",1\nc\rd,1\n"), text(), &["line 4", "carriage return inside the line", "convert the line ends"]),
        (b("b,y\n\"a\nb\",1,2\n"), text(), &["line 2", "3 columns, expected 2", "remove the row"]),
        (b("b,y\n\"a\nb\",x\n"), text(), &["line 2, column 2", "\"x\", expected a class", "encode text as numbers"]),
        (b("b,y\n\"a\n\nb\",1\nc,\n"), text(), &["line 5, column 2 (\"y\")", "missing value"]),
        (b("b,y\nx,1\n  ,0\n"), text(), &["line 3, column 1 (\"b\")", "found no text", "leave such rows out"]),
        (b("b,y\n\"\",1\n ,0\n"), drops, &["line 4", "each of the 2 rows has a missing value", "fill the values"]),
        (b"b,y\n\"a\n\xff\",1\n".to_vec(), text(), &["line 2", "byte 0xff at position 4, expected utf-8", "save the file as utf-8"]),
        (b"\xff\xfeb,y\n".to_vec(), text(), &["line 1", "utf-16", "save the file as utf-8"]),
        (b(&long), narrow, &["line 2", "a quote that is not closed within 65536 bytes", "close it"]),
        (b("b,y\nx,1\n"), of_texts(&[CsvColumn::Index(0), column("b")]), &["line 1", "column 1 of the texts is named twice", "name it once"]),
        (b("b,y\n1,1\n"), index_too, &["line 1", "an index or one-hot too", "name it once"]),
        (b("a,b,y\n1,x,1\n"), unused, &["line 1", "column \"b\" is text and none of the features", "add it to the columns"]),
        (b("a,y\n1,1\n"), text(), &["line 1", "no column named \"b\"", "choose the text column among"]),
        (b("b,y\nx,1\n"), of_texts(&[CsvColumn::Index(2)]), &["line 1", "text column 2 (counted from 0)", "below 2"]),
    ]
}

fn malformed() -> Vec<Malformed> {
    [
        rows_and_values(),
        options_and_limits(),
        quotes_and_bytes(),
        texts(),
    ]
    .concat()
}

/// What is wrong with the error of a text, or with its being read.
fn objection(text: &[u8], options: &CsvOptions, expected: &[&str]) -> Option<String> {
    let error = match parse_csv(text, NAME, options) {
        Ok(dataset) => return Some(format!("was accepted: {dataset:?}")),
        Err(error) => error,
    };
    let message = error.to_string();
    let placed = match error {
        Error::Data { place, .. } => {
            message.starts_with(&format!("{NAME}: line ")) && place.starts_with("line ")
        }
        Error::User(_) => message.starts_with("csv "),
        _ => false,
    };
    let (_, action) = message.rsplit_once("; ").unwrap_or_default();
    let lacking = expected.iter().find(|part| !message.contains(**part));
    match (placed, action.len() > 10, lacking) {
        (false, ..) => Some(format!("{message:?} names no place")),
        (_, false, _) => Some(format!("{message:?} says nothing to do")),
        (.., Some(part)) => Some(format!("{message:?} lacks {part:?}")),
        (true, true, None) => None,
    }
}

#[test]
fn malformed_text_is_refused_with_place_and_next_action() {
    let cases = malformed();
    assert!(cases.len() >= 90, "{} cases", cases.len());
    let objections: Vec<String> = cases
        .iter()
        .filter_map(|(text, options, expected)| {
            let shown: String = String::from_utf8_lossy(text).chars().take(60).collect();
            let objection = objection(text, options, expected)?;
            Some(format!("{shown:?}: {objection}"))
        })
        .collect();
    assert!(objections.is_empty(), "{}", objections.join("\n"));
}

#[test]
fn every_cut_of_a_gzip_file_is_refused() {
    let whole = gzip(b"1,2,0\n3,4,1\n5,6,0\n");
    for length in 2..whole.len() {
        let expected = ["line ", "end too early", "download the file again"];
        let objection = objection(&whole[..length], &CsvOptions::default(), &expected);
        assert_eq!(objection, None, "{length} bytes");
    }
}

#[test]
fn a_file_that_is_cut_inside_of_a_text_is_refused() {
    let text = "b,y\n\"One,\n\"\"two\"\"\n\",1\n";
    let (start, end) = (text.find("\"One").unwrap() + 1, text.rfind('"').unwrap());
    let options = of_texts(&[CsvColumn::Name("b".into())]);
    for cut in start..=end {
        let read = parse_csv(&text.as_bytes()[..cut], NAME, &options);
        // A quote at the end might close the field, whose row then lacks its label.
        let error = read.unwrap_err().to_string();
        let is_told =
            error.contains("not closed before") || error.contains("1 columns, expected 2");
        assert!(is_told && error.contains("line 2"), "{cut}: {error}");
    }
    assert_eq!(
        parse_csv(text.as_bytes(), NAME, &options).unwrap().len(),
        Some(1)
    );
}

#[test]
fn a_changed_byte_is_refused_or_changes_nothing() {
    let text = b"1,2,0\n3,4,1\n5,6,0\n";
    let whole = gzip(text);
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << bit;
            // Flags, time and the like are in the header: some change nothing.
            if let Ok(dataset) = parse_csv(&bytes[..], NAME, &CsvOptions::default()) {
                assert_eq!(dataset.len(), Some(3), "bit {bit} of byte {at}");
            }
        }
    }
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let folder = std::env::temp_dir().join(format!("phalanx-malformed-csv-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("rows.csv");
    std::fs::write(&path, "1,2,0\n3,x,1\n").unwrap();
    let options = CsvOptions::default();
    let bad = Dataset::from_csv(&path, &options).unwrap_err().to_string();
    let place = format!("{}: line 2, column 2: ", path.display());
    assert!(bad.starts_with(&place), "{bad}");
    let absent = folder.join("absent.csv");
    let missing = Dataset::from_csv(&absent, &options)
        .unwrap_err()
        .to_string();
    let opened = format!("cannot open {}: ", absent.display());
    assert!(missing.starts_with(&opened), "{missing}");
    let directory = Dataset::from_csv(&folder, &options)
        .unwrap_err()
        .to_string();
    let read = format!("cannot read {}: ", folder.display());
    assert!(directory.starts_with(&read), "{directory}");
    std::fs::remove_dir_all(&folder).unwrap();
}
