//! Columns of texts.

use std::fs;

use phalanx::data::{Dataset, HostTensor};
use phalanx_cli::data_facts::Facts;
use phalanx_cli::rows_to_predict::to_predict;

use crate::{Folder, labels, row};

/// The numbers of the words of each row, in an input.
fn words(dataset: &Dataset, input: usize) -> Vec<Vec<i32>> {
    let rows = 0..dataset.len().unwrap();
    rows.map(|i| row(dataset, i)[input].values().unwrap())
        .collect()
}

const REVIEWS: &str = "review,y\n\"b, a\nb!\",0\n\"A \"\"C\"\"\",1\nc d,0\nzz a a a,1\nyy b,0\n";

#[test]
fn words_are_those_of_the_training_rows_alone() {
    let folder = Folder::new("words", &[("r.csv", REVIEWS)]);
    let rows = folder
        .load(
            "csv: r.csv, text: {column: review, length: 3}, test: {last: 1}",
            "validation: {split: 0.25}, shuffle: false",
        )
        .unwrap();
    // Twice each and once, equally frequent ones from the end of the alphabet.
    let kept = rows.facts.texts[0].vectorizer.vocabulary().unwrap();
    assert_eq!(kept.keys(), ["c", "b", "a", "d"]);
    assert_eq!(words(&rows.train, 0), [[3, 4, 3], [4, 2, 0], [2, 5, 0]]);
    assert_eq!(words(&rows.plain, 0), words(&rows.train, 0));
    assert_eq!(words(&rows.validation.unwrap(), 0), [[1, 4, 4]]);
    assert_eq!(words(&rows.test.unwrap(), 0), [[1, 3, 0]]);
    assert_eq!(labels(&rows.train), [0, 1, 0]);
    // As many as there is room for, each letter, and several files.
    let other = "review,y\nz z z,0\n";
    fs::write(folder.0.join("s.csv"), other).unwrap();
    let rows = folder.load(
        "csv: [s.csv, r.csv], text: {column: review, length: 5, vocabulary: 3, split: character, standardize: lower}",
        "shuffle: false",
    );
    let rows = rows.unwrap();
    assert_eq!(
        rows.facts.texts[0].vectorizer.vocabulary().unwrap().keys(),
        [" "]
    );
    let first = [[1, 2, 1, 2, 1], [1, 1, 2, 1, 1], [1, 2, 1, 1, 1]];
    assert_eq!(words(&rows.train, 0)[..3], first);
    let small =
        "model: [{embedding: {input_dim: 2, output_dim: 1}}]\noptimizer: sgd\nloss: huber\n";
    let data = "csv: r.csv, text: {column: review, length: 5, split: character}";
    let error = folder.load_for(small, data, "").unwrap_err();
    let told = "`input_dim` is 2, and the characters of review have the numbers 0 to 9: 8 characters, 0 for padding and 1 for unknown ones; write `input_dim: 10`";
    assert!(error.ends_with(told), "{error}");
}

/// As Hugging Face's tokenizers numbers them (`make_tokenizers.py`).
#[test]
fn subwords_are_those_of_a_tokenizer() {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/tokenizers");
    let ids = fs::read_to_string(format!("{golden}/ids.json")).unwrap();
    let ids: serde_json::Value = serde_json::from_str(&ids).unwrap();
    let texts = [1, 4, 5].map(|at| ids["texts"][at].as_str().unwrap());
    let row = |(text, class): (&str, i32)| format!("\"{text}\",{class}\n");
    let rows: String = texts.into_iter().zip(0..).map(row).collect();
    let folder = Folder::new("subwords", &[("r.csv", &format!("review,y\n{rows}"))]);
    for (file, place) in [("bpe.json", 1), ("wordpiece.json", 4)] {
        let data =
            format!("csv: r.csv, text: {{column: review, length: 12, tokenizer: {golden}/{file}}}");
        let rows = folder.load(&data, "shuffle: false").unwrap();
        let expected: Vec<Vec<i32>> =
            serde_json::from_value(ids["rows"][place]["ids"].clone()).unwrap();
        let expected = [1, 4, 5].map(|at| expected[at].clone());
        assert_eq!(words(&rows.train, 0), expected, "{file}");
        assert_eq!(rows.facts.texts[0].vectorizer.vocabulary(), None);
    }
    let data = format!(
        "csv: r.csv, text: {{column: review, length: 2, tokenizer: {golden}/wordpiece.json}}"
    );
    let error = folder.load(&data, "").unwrap_err();
    assert!(
        error.contains("found 2 tokens around each text, which a length of 2 has no room for"),
        "{error}"
    );
    let small =
        "model: [{embedding: {input_dim: 9, output_dim: 1}}]\noptimizer: sgd\nloss: huber\n";
    let error = folder
        .load_for(small, &data.replace("length: 2", "length: 9"), "")
        .unwrap_err();
    let told = "`input_dim` is 9, and the subwords of review have the numbers 0 to 199, as the tokenizer gives them; write `input_dim: 200`";
    assert!(error.ends_with(told), "{error}");
}

#[test]
fn texts_stand_beside_numbers_and_indices() {
    let text = "user,title,price,review,y\n7,\"x, y\",1,good,0\n8,x,3,bad bad,1\n";
    let folder = Folder::new("words-inputs", &[("r.csv", text)]);
    let data = "csv: r.csv, standardize: true, inputs: {body: review, about: [price], user: user, head: title}, \
        text: [{column: title, length: 2}, {column: review, length: 1}]";
    let model = "model:\n\
        - embedding: {inputs: body, input_dim: 4, output_dim: 2, name: a}\n\
        - embedding: {inputs: user, input_dim: 9, output_dim: 2, name: b}\n\
        - embedding: {inputs: head, input_dim: 4, output_dim: 2, name: c}\n\
        - global_average_pool1d: {inputs: a, name: d}\n\
        - global_average_pool1d: {inputs: c, name: e}\n\
        - concatenate: {inputs: [about, b, d, e]}\n\
        optimizer: sgd\nloss: huber\n";
    let rows = folder.load_for(model, data, "shuffle: false").unwrap();
    let example = |i| row(&rows.train, i);
    let expected = |body: i32, price: f32, user: i32, head: [i32; 2]| {
        [
            HostTensor::new([1], &[body]),
            HostTensor::new([1], &[price]),
            HostTensor::scalar(user),
            HostTensor::new([2], &head),
        ]
    };
    // Of the body are `bad`, `good`, of the title `x`, `y`.
    assert_eq!(example(0), expected(3, -1.0, 7, [2, 3]));
    assert_eq!(example(1), expected(2, 1.0, 8, [2, 0]));
    // A table for which there are too many words.
    let small = model.replace(
        "input_dim: 4, output_dim: 2, name: c",
        "input_dim: 3, output_dim: 2, name: c",
    );
    let error = folder.load_for(&small, data, "").unwrap_err();
    let expected = "t.yaml:5:29: `input_dim` is 3, and the words of title have the numbers 0 to 3: 2 words, 0 for padding and 1 for unknown ones; write `input_dim: 4`, or `vocabulary: 3` in `text`";
    assert!(error.ends_with(expected), "{error}");
    // Indices are none of the words' business.
    let other = model.replace("input_dim: 9", "input_dim: 1");
    assert!(folder.load_for(&other, data, "").is_ok());
}

#[test]
fn rows_to_predict_have_the_words_of_the_training() {
    let files = [
        ("r.csv", REVIEWS),
        ("new.csv", "id,review\n1,\"d\nnew\"\n2,!\n"),
        ("labelled.csv", "y,review\n0,d c\n"),
        ("bare.csv", "zz a,1\n"),
        ("empty.csv", "review\n\" \"\n"),
    ];
    let folder = Folder::new("words-predict", &files);
    let data = "csv: r.csv, text: {column: review, length: 3}";
    let facts = folder.load(data, "").unwrap().facts;
    let predict = |data: &str, facts: &Facts, file: &str| {
        let rows = to_predict(&folder.csv(data), facts, &folder.0.join(file));
        rows.map(|rows| words(&rows, 0))
            .map_err(|error| error.to_string())
    };
    let kept = facts.texts[0].vectorizer.vocabulary().unwrap();
    assert_eq!(kept.keys(), ["a", "b", "c", "zz", "yy", "d"]);
    assert_eq!(
        predict(data, &facts, "new.csv").unwrap(),
        [[7, 1, 0], [0, 0, 0]]
    );
    assert_eq!(predict(data, &facts, "labelled.csv").unwrap(), [[7, 4, 0]]);
    let error = predict(data, &facts, "bare.csv").unwrap_err();
    assert!(
        error.contains("bare.csv: line 1: found no column named \"review\""),
        "{error}"
    );
    let error = predict(data, &facts, "empty.csv").unwrap_err();
    assert!(
        error.contains("empty.csv: line 2, column 1 (\"review\"): found no text"),
        "{error}"
    );
    let keeps = format!("{data}, missing: 0");
    assert_eq!(predict(&keeps, &facts, "empty.csv").unwrap(), [[0, 0, 0]]);
    // By the position, where the files have no names.
    let data = "csv: bare.csv, text: {column: 0, length: 3}";
    let facts = folder.load(data, "").unwrap().facts;
    assert_eq!(predict(data, &facts, "bare.csv").unwrap(), [[2, 3, 0]]);
    // All of a file may be texts: whether it has a header is as in the training.
    fs::write(folder.0.join("only.csv"), "zz\na a\n").unwrap();
    assert_eq!(
        predict(data, &facts, "only.csv").unwrap(),
        [[2, 0, 0], [3, 3, 0]]
    );
    // What is kept is what was found.
    let kept = serde_json::to_string(&facts).unwrap();
    assert_eq!(serde_json::from_str::<Facts>(&kept).unwrap(), facts);
}

/// Data, and where and how they are refused.
const REFUSED: [(&str, [&str; 2]); 7] = [
    (
        "csv: r.csv, text: {column: reviews, length: 3}",
        [
            "t.yaml:1:35: ",
            "r.csv has no column \"reviews\" of texts; did you mean `review`?",
        ],
    ),
    (
        "header: false, csv: bare.csv, text: {column: review, length: 3}",
        [
            "t.yaml:1:53: ",
            "bare.csv has no names of columns; give the position of the column, from 0",
        ],
    ),
    (
        "csv: r.csv, text: {column: 2, length: 3}",
        [
            "t.yaml:1:13: ",
            "column 2 (counted from 0) is not among the 2 columns",
        ],
    ),
    (
        "csv: signs.csv, text: {column: review, length: 3}",
        [
            "t.yaml:1:39: ",
            "the training rows: none of 2 texts has a word; check that these are the right texts, or keep punctuation",
        ],
    ),
    (
        "csv: open.csv, text: {column: review, length: 3}",
        [
            "t.yaml:1:13: ",
            "open.csv: line 3: found a quote that is not closed before the end of the text",
        ],
    ),
    (
        "csv: latin.csv, text: {column: review, length: 3}",
        [
            "t.yaml:1:13: ",
            "latin.csv: line 2: found byte 0xe9 at position 4, expected utf-8 text; save the file as utf-8",
        ],
    ),
    (
        "csv: r.csv, text: {column: 1, length: 3}",
        [
            "t.yaml:1:13: ",
            "the label is also among the columns of the features",
        ],
    ),
];

#[test]
fn texts_that_cannot_be_are_refused_at_their_line() {
    let files = [
        ("r.csv", REVIEWS),
        ("bare.csv", "zz a,1\n"),
        ("signs.csv", "review,y\n?!,1\n...,0\n"),
        ("open.csv", "review,y\na,0\n\"b,1\nc,0\n"),
        ("latin.csv", ""),
    ];
    let folder = Folder::new("words-refused", &files);
    fs::write(folder.0.join("latin.csv"), b"review,y\ncaf\xe9,1\n").unwrap();
    for (data, expected) in REFUSED {
        let error = folder.load(data, "").unwrap_err();
        for part in expected {
            assert!(error.contains(part), "no {part:?} in {error}");
        }
    }
}
