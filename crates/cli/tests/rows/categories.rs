//! Columns of names.

use std::fs;

use phalanx::data::{Dataset, HostTensor};
use phalanx_cli::config::{Data, parse};
use phalanx_cli::data_facts::Facts;
use phalanx_cli::rows_to_predict::to_predict;

use crate::{Folder, row};

const CLICKS: &str =
    "user,city,price,y\n u1 ,Rome,1,0\nu2,Oslo,2,1\nu1,Oslo,3,0\nu3,,4,1\nu2,Bonn,5,0\n";

const MODEL: &str = "model:\n\
    - embedding: {inputs: who, input_dim: 9, output_dim: 2, name: a}\n\
    - embedding: {inputs: where, input_dim: 4, output_dim: 2, name: b}\n\
    - concatenate: {inputs: [about, a, b]}\n\
    optimizer: sgd\nloss: huber\n";

const DATA: &str = "csv: c.csv, missing: 0, inputs: {who: user, about: [price], where: city}, \
    category: [{column: city}, {column: user, vocabulary: 3}], test: {last: 1}";

fn example(who: i32, price: f32, place: i32) -> [HostTensor; 3] {
    [
        HostTensor::scalar(who),
        HostTensor::new([1], &[price]),
        HostTensor::scalar(place),
    ]
}

fn all(dataset: &Dataset) -> Vec<Vec<HostTensor>> {
    let rows = 0..dataset.len().unwrap();
    rows.map(|i| row(dataset, i)).collect()
}

#[test]
fn names_have_the_numbers_of_the_training_rows() {
    let folder = Folder::new("names", &[("c.csv", CLICKS)]);
    let rows = folder.load_for(MODEL, DATA, "shuffle: false").unwrap();
    let kept: Vec<_> = rows
        .facts
        .categories
        .iter()
        .map(|own| &own.values)
        .collect();
    assert_eq!(kept, [&["Oslo", "Rome"][..], &["u1"]]);
    let expected = [
        example(2, 1.0, 3),
        example(1, 2.0, 2),
        example(2, 3.0, 2),
        example(1, 4.0, 0),
    ];
    assert_eq!(all(&rows.train), expected);
    assert_eq!(all(&rows.test.unwrap()), [example(1, 5.0, 1)]);
    // Rows without a name can be left out; rare names have no number.
    let drops = DATA.replace("missing: 0", "missing: drop");
    let drops = drops.replace("column: city", "column: city, min_count: 2");
    let rows = folder.load_for(MODEL, &drops, "shuffle: false").unwrap();
    assert_eq!(
        (rows.dropped, &rows.facts.categories[0].values),
        (1, &vec!["Oslo".to_owned()])
    );
    assert_eq!(all(&rows.train)[0], example(2, 1.0, 1));
    let error = folder.load_for(MODEL, &DATA.replace("missing: 0, ", ""), "");
    let expected = "line 5, column 2 (\"city\"): found nothing that names something; fill it in";
    let error = error.unwrap_err();
    assert!(error.contains(expected), "{error}");
    // A table for which there are too many names.
    let small = MODEL.replace("input_dim: 4", "input_dim: 3");
    let error = folder.load_for(&small, DATA, "").unwrap_err();
    let expected = "`input_dim` is 3, and the names of city have the numbers 0 to 3: 2 names, 0 for missing ones and 1 for unknown ones; write `input_dim: 4`, or `vocabulary: 3` in `category`";
    assert!(error.ends_with(expected), "{error}");
    let hot = small.replace(
        "embedding: {inputs: where, input_dim: 3, output_dim: 2",
        "category_encoding: {inputs: where, num_tokens: 3, output_mode: one_hot",
    );
    let error = folder.load_for(&hot, DATA, "").unwrap_err();
    let expected = expected.replace("input_dim", "num_tokens");
    assert!(error.ends_with(&expected), "{error}");
    let wrong = DATA
        .replace("column: city", "column: cit")
        .replace("where: city", "where: cit");
    let error = folder.load_for(MODEL, &wrong, "").unwrap_err();
    assert!(
        error.contains("c.csv has no column \"cit\" of categories; did you mean `city`?"),
        "{error}"
    );
}

/// Of Keras' `Hashing(3)`, A and C are in 1, B is in 0.
#[test]
fn names_are_put_in_bins() {
    let text = "user,city,price,y\nA,,1,0\nB,x,2,1\nC,x,3,0\n";
    let folder = Folder::new("names-hashed", &[("c.csv", text)]);
    let hashed = DATA.replace("vocabulary: 3", "hash: 4");
    let rows = folder.load_for(MODEL, &hashed, "shuffle: false").unwrap();
    assert_eq!(all(&rows.train), [example(2, 1.0, 0), example(1, 2.0, 2)]);
    assert_eq!(all(&rows.test.unwrap()), [example(2, 3.0, 2)]);
    let small = MODEL.replace("input_dim: 9", "input_dim: 3");
    let error = folder.load_for(&small, &hashed, "").unwrap_err();
    let expected = "`input_dim` is 3, and `hash: 4` in `category` gives the names of user the numbers 0 to 3; write `input_dim: 4`, or a smaller `hash`";
    assert!(error.ends_with(expected), "{error}");
}

/// Rows of a file as a model that was trained with these data takes them.
fn predicted(
    folder: &Folder,
    data: &str,
    facts: &Facts,
    file: &str,
) -> Result<Vec<Vec<HostTensor>>, String> {
    let text = format!("data: {{{data}}}\n{MODEL}");
    let Data::Csv(csv) = parse(&text, &folder.0.join("t.yaml")).unwrap().data else {
        panic!("no csv")
    };
    let rows = to_predict(&csv, facts, &folder.0.join(file));
    rows.map(|rows| all(&rows))
        .map_err(|error| error.to_string())
}

#[test]
fn rows_to_predict_have_the_names_of_the_training() {
    let files = [
        ("c.csv", CLICKS),
        ("new.csv", "city,id,user,price\nRome,1,u1,7\nParis,2,,8\n"),
        ("bare.csv", "u1,Oslo,7,0\nu9,Rome,8,1\n"),
    ];
    let folder = Folder::new("names-predict", &files);
    let facts = folder.load_for(MODEL, DATA, "").unwrap().facts;
    let predict =
        |of: &str, facts: &Facts, file: &str| predicted(&folder, of, facts, file).unwrap();
    let expected = [example(2, 7.0, 3), example(0, 8.0, 1)];
    assert_eq!(predict(DATA, &facts, "new.csv"), expected);
    let kept = serde_json::to_string(&facts).unwrap();
    assert_eq!(serde_json::from_str::<Facts>(&kept).unwrap(), facts);
    // By positions, with and without the label.
    let bare = "csv: bare.csv, inputs: {who: 0, about: [2], where: 1}, category: [{column: 0}, {column: 1}]";
    let facts = folder.load_for(MODEL, bare, "").unwrap().facts;
    let expected = [example(3, 7.0, 3), example(2, 8.0, 2)];
    assert_eq!(
        predict(bare, &facts, "bare.csv"),
        [example(3, 7.0, 3), example(2, 8.0, 2)]
    );
    fs::write(folder.0.join("only.csv"), "u1,Oslo,7\nu9,Rome,8\n").unwrap();
    assert_eq!(predict(bare, &facts, "only.csv"), expected);
}

#[test]
fn a_row_to_predict_whose_name_a_training_would_leave_out_is_refused() {
    let files = [
        ("c.csv", CLICKS),
        ("gap.csv", "city,user,price\nRome,u1,7\nRome, NA ,8\n"),
        ("whole.csv", "city,user,price\nRome,u1,7\nRome,u9,8\n"),
    ];
    let folder = Folder::new("names-missing", &files);
    let predict = |missing: &str, facts: &Facts, file: &str| {
        let data = DATA.replace("missing: 0", missing);
        predicted(&folder, &data, facts, file)
    };
    let drops = DATA.replace("missing: 0", "missing: drop");
    let facts = folder.load_for(MODEL, &drops, "").unwrap().facts;
    let error = predict("missing: drop", &facts, "gap.csv").unwrap_err();
    let told = "gap.csv has a missing value in row 2 of user, and the training left such rows out";
    assert!(error.contains(told), "{error}");
    let whole = predict("missing: drop", &facts, "whole.csv").unwrap();
    assert_eq!(whole.len(), 2);
    // Where a training takes it as a name, it is one that is not known.
    assert_eq!(predict("missing: fail", &facts, "gap.csv").unwrap(), whole);
}
