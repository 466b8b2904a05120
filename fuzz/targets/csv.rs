//! The CSV reader: the first byte chooses options, the rest is the file, plain or gzip.
#![no_main]

use libfuzzer_sys::fuzz_target;
use phalanx::Error;
use phalanx::data::{
    CsvColumn, CsvColumns, CsvOptions, Header, LabelColumn, LabelKind, TextOptions, TextVectorizer,
    parse_csv_with,
};

fuzz_target!(|input: &[u8]| {
    let Some((&choice, file)) = input.split_first() else {
        return;
    };
    let (options, mut columns) = (options(choice), CsvColumns::default());
    match parse_csv_with(file, "f.csv", &options, &mut columns) {
        Ok(dataset) => {
            let rows = dataset.len().expect("a dataset in memory has a length");
            assert!(rows > 0, "a dataset without rows was accepted");
            let last = dataset.get(0, rows - 1).expect("every row that was read can be taken");
            assert!(last.x[0].to_f64().iter().all(|value| value.is_finite()));
            assert_eq!(columns.texts().len(), options.texts.len());
            for texts in columns.texts() {
                assert_eq!(texts.len(), rows, "a text for each row");
                words(texts);
            }
        }
        Err(Error::Data { source_name, place, message }) => {
            assert!(source_name == "f.csv" && place.starts_with("line "), "{place}: {message}");
            assert!(message.contains("; "), "no next action: {message}");
        }
        Err(Error::User(message)) => assert!(message.contains("; "), "no next action: {message}"),
        Err(error) => panic!("expected an error of the data or the options, got {error}"),
    }
});

/// Words of texts that were read have the same numbers again.
fn words(texts: &[String]) {
    let Ok(made) = TextVectorizer::adapt(texts, TextOptions::new(3)) else {
        return;
    };
    let words = made.vocabulary().keys().to_vec();
    let again = TextVectorizer::new(words, *made.options()).expect("words that were found");
    let encoded = again.encode(texts).expect("few texts");
    assert_eq!(encoded, made.encode(texts).expect("few texts"));
    assert_eq!(encoded.dims(), [texts.len(), 3]);
}

fn options(choice: u8) -> CsvOptions {
    CsvOptions {
        header: [Header::Auto, Header::Yes, Header::No][usize::from(choice % 3)],
        label: match choice / 3 % 4 {
            0 => LabelColumn::Last,
            1 => LabelColumn::None,
            2 => LabelColumn::Index(1),
            _ => LabelColumn::Name("b".into()),
        },
        kind: if (choice / 12).is_multiple_of(2) { LabelKind::Class } else { LabelKind::Value },
        features: if (choice / 24).is_multiple_of(2) { Vec::new() } else { vec![2, 1] },
        delimiter: [',', ';', '\t', '"'][usize::from(choice / 48 % 4)],
        // The first column, in what the choices above leave.
        texts: (choice >= 192).then_some(CsvColumn::Index(0)).into_iter().collect(),
        max_rows: 10_000,
        max_columns: 1000,
        max_bytes: 1 << 20,
        ..CsvOptions::default()
    }
}
