//! The rows that a `train.yaml` speaks of.

mod bins;
mod categories;
mod labels;
mod predicted;
mod texts;
mod weights;
mod windows;

use std::fs;

use phalanx::data::{Dataset, HostTensor};
use phalanx_cli::config::{Csv, Data, parse};
use phalanx_cli::data_facts::Facts;
use phalanx_cli::rows::{Rows, load};
use phalanx_cli::rows_to_predict::to_predict;
use phalanx_testkit::Scratch;

/// The rest of a file whose data have the inputs price, user and about.
const MODEL_OF_INPUTS: &str = "\
model:
- embedding: {inputs: user, input_dim: 9, output_dim: 2, name: vector}
- concatenate: {inputs: [price, vector, about]}
optimizer: sgd
loss: huber
";

/// A folder that is removed at the end.
struct Folder(Scratch);

impl Folder {
    /// With `a.csv` of ten rows `i, 2i, i % 3`, and what else is given.
    fn new(name: &str, files: &[(&str, &str)]) -> Self {
        let path = Scratch::temporary(&format!("rows-{name}"));
        let rows: String = (0..10)
            .map(|i| format!("{i},{},{}\n", 2 * i, i % 3))
            .collect();
        fs::write(path.join("a.csv"), rows).unwrap();
        for (name, text) in files {
            fs::write(path.join(name), text).unwrap();
        }
        Self(path)
    }

    fn load(&self, data: &str, fit: &str) -> Result<Rows, String> {
        self.load_for(rest_for(data), data, fit)
    }

    /// What a file says of these CSV data.
    fn csv(&self, data: &str) -> Csv {
        let text = format!("data: {{{data}}}\n{}", rest_for(data));
        let Data::Csv(csv) = parse(&text, &self.0.join("t.yaml")).unwrap().data else {
            panic!("no csv")
        };
        csv
    }

    /// With another rest of the file than its data and fit.
    fn load_for(&self, rest: &str, data: &str, fit: &str) -> Result<Rows, String> {
        let text = format!("data: {{{data}}}\n{rest}fit: {{{fit}}}\n");
        let config =
            parse(&text, &self.0.join("t.yaml")).map_err(|problems| problems.to_string())?;
        load(&config).map_err(|problems| problems.to_string())
    }
}

/// The rest of a file with these data.
fn rest_for(data: &str) -> &'static str {
    match data.contains("inputs:") {
        true => MODEL_OF_INPUTS,
        false => "model: [flatten]\noptimizer: sgd\nloss: huber\n",
    }
}

/// The first feature of each row.
fn firsts(dataset: &Dataset) -> Vec<f32> {
    let rows = 0..dataset.len().unwrap();
    rows.map(|i| dataset.get(0, i).unwrap().x[0].f32s()[0])
        .collect()
}

fn numbers(range: std::ops::Range<u8>) -> Vec<f32> {
    range.map(f32::from).collect()
}

#[test]
fn rows_are_split_in_the_order_of_the_file_and_only_training_is_shuffled() {
    let folder = Folder::new("split", &[]);
    let rows = folder
        .load(
            "csv: a.csv, test: {last: 3}",
            "shuffle: false, validation: {split: 0.3}",
        )
        .unwrap();
    assert_eq!(firsts(&rows.train), numbers(0..4));
    assert_eq!(rows.validation.as_ref().map(firsts), Some(numbers(4..7)));
    assert_eq!(rows.test.as_ref().map(firsts), Some(numbers(7..10)));
    assert_eq!(rows.facts.dims, [2]);
    let rows = folder
        .load("csv: a.csv, test: {first: 2}", "validation: test, seed: 5")
        .unwrap();
    let mut shuffled = firsts(&rows.train);
    assert_ne!(shuffled, numbers(2..10));
    shuffled.sort_by(f32::total_cmp);
    assert_eq!(shuffled, numbers(2..10));
    assert_eq!(rows.validation.as_ref().map(firsts), Some(numbers(0..2)));
}

#[test]
fn files_follow_one_another_and_features_are_divided_and_shaped() {
    let folder = Folder::new("files", &[("b.csv", "20,0,1\n"), ("t.csv", "40,4,0\n")]);
    let data = "csv: [a.csv, b.csv], divide_by: 4, features: [1, 2], test: {csv: t.csv}";
    let rows = folder
        .load(data, "shuffle: false, class_weight: {1: 3}")
        .unwrap();
    assert_eq!(
        (rows.train.len(), rows.facts.dims.as_slice()),
        (Some(11), &[1, 2][..])
    );
    let last = rows.train.get(0, 10).unwrap();
    assert_eq!(
        (last.x[0].f32s(), last.x[0].dims(), last.weight),
        (vec![5.0, 0.0], &[1, 2][..], Some(3.0))
    );
    assert_eq!(last.y[0].values::<i32>(), Some(vec![1]));
    assert_eq!(rows.test.as_ref().map(firsts), Some(vec![10.0]));
    let label = folder
        .load("csv: a.csv, label: 0, label_type: value", "shuffle: false")
        .unwrap();
    let third = label.train.get(0, 3).unwrap();
    assert_eq!(
        (third.x[0].f32s(), third.y[0].f32s()),
        (vec![6.0, 0.0], vec![3.0])
    );
}

#[test]
fn mistakes_are_told_at_their_line_with_what_to_do() {
    let folder = Folder::new(
        "wrong",
        &[
            ("wide.csv", "1,2,3,0\n"),
            ("bad.csv", "1,2,0\n1,x,0\n"),
            ("one.csv", "1,2,0\n"),
            ("named.csv", "a,b,label\n1,2,0\n"),
            ("turned.csv", "b,a,label\n1,2,0\n"),
        ],
    );
    let cases = [
        ("csv: nowhere.csv", "", ":1:13:", "correct the path"),
        ("csv: [a.csv, wide.csv]", "", ":1:21:", "same columns"),
        (
            "csv: [named.csv, turned.csv]",
            "",
            ":1:25:",
            "turned.csv: header, column 1: found \"b\", expected \"a\"",
        ),
        (
            "csv: named.csv, test: {csv: turned.csv}",
            "",
            ":1:36:",
            "header, column 1",
        ),
        ("csv: bad.csv", "", ":1:13:", "line 2, column 2"),
        (
            "csv: a.csv, label: price",
            "",
            ":1:13:",
            "give the column's index",
        ),
        ("csv: a.csv, features: [8, 8]", "", ":1:13:", "expected 64"),
        ("csv: a.csv, test: {last: 10}", "", ":1:26:", "below 10"),
        ("csv: a.csv, test: {first: 99}", "", ":1:26:", "below 10"),
        (
            "csv: a.csv, test: {csv: wide.csv}",
            "",
            ":1:32:",
            "same columns",
        ),
        (
            "csv: one.csv",
            "validation: {split: 0.5}",
            ":5:19:",
            "change the fraction",
        ),
        ("csv: .", "", ":1:13:", "correct"),
    ];
    for (data, fit, place, next) in cases {
        let message = folder.load(data, fit).unwrap_err();
        assert!(
            message.contains(place) && message.contains(next),
            "{data}: {message}"
        );
    }
}

/// Thirty rows of three named kinds, sorted; one of them lacks a number.
const FLOWERS: &str = "long,wide,kind\n";

fn flowers() -> String {
    let row = |i: u16| {
        let kind = ["rose", "aster", "lily"][usize::from(i / 10)];
        let wide = if i == 4 {
            "NA".into()
        } else {
            (i % 7).to_string()
        };
        format!("{i},{wide},{kind}\n")
    };
    FLOWERS.to_owned() + &(0..30).map(row).collect::<String>()
}

fn labels(dataset: &Dataset) -> Vec<i32> {
    let rows = 0..dataset.len().unwrap();
    rows.map(|i| dataset.get(0, i).unwrap().y[0].values::<i32>().unwrap()[0])
        .collect()
}

#[test]
fn texts_are_classes_in_the_order_of_the_alphabet_or_of_the_file() {
    let text = flowers();
    let headless = text.strip_prefix(FLOWERS).unwrap().to_owned();
    let folder = Folder::new("texts", &[("f.csv", &text), ("h.csv", &headless)]);
    let fit = "shuffle: false";
    let rows = folder.load("csv: f.csv, missing: drop", fit).unwrap();
    assert_eq!(rows.facts.classes, ["aster", "lily", "rose"]);
    assert_eq!(rows.facts.columns, ["long", "wide"]);
    assert_eq!(rows.facts.label.as_deref(), Some("kind"));
    assert_eq!(
        (rows.dropped, labels(&rows.train)[..2].to_vec()),
        (1, vec![2, 2])
    );
    let data = "missing: drop, classes: [rose, aster, lily]";
    let rows = folder.load(&format!("csv: f.csv, {data}"), fit).unwrap();
    let expected = [vec![0; 9], vec![1; 10], vec![2; 10]].concat();
    assert_eq!(labels(&rows.train), expected);
    let rows = folder.load(&format!("csv: h.csv, {data}"), fit).unwrap();
    assert_eq!(labels(&rows.train), expected);
    let wrong = folder.load("csv: f.csv, missing: drop, classes: [rose, aster]", fit);
    let wrong = wrong.unwrap_err();
    assert!(
        wrong.contains("\"lily\", expected one of the classes \"rose\", \"aster\""),
        "{wrong}"
    );
    // Labels that are numbers have names too: 2 is class 0.
    let rows = folder.load("csv: a.csv, classes: [2, 1, 0]", fit).unwrap();
    assert_eq!(labels(&rows.train)[..4], [2, 1, 0, 2]);
}

#[test]
fn columns_are_chosen_by_name_or_position_and_lines_skipped() {
    let text = format!("made by hand\n\n{}", flowers());
    let folder = Folder::new("columns", &[("f.csv", &text)]);
    let fit = "shuffle: false";
    let rows = folder.load(
        "csv: f.csv, skip_rows: 2, label: kind, columns: [long]",
        fit,
    );
    let rows = rows.unwrap();
    // The column with the missing value is not read.
    assert_eq!((rows.facts.dims, rows.train.len()), (vec![1], Some(30)));
    let rows = folder.load("csv: a.csv, columns: [1, 0]", fit).unwrap();
    assert_eq!(rows.train.get(0, 3).unwrap().x[0].f32s(), [6.0, 3.0]);
    for (columns, why) in [
        ("[1, 2]", "the label is also among the columns"),
        ("[7]", "column 7 (counted from 0) is not among the 3"),
        ("[price]", "give the column's index"),
    ] {
        let message = folder
            .load(&format!("csv: a.csv, columns: {columns}"), fit)
            .unwrap_err();
        assert!(message.contains(why), "{message}");
    }
}

#[test]
fn a_column_without_a_value_to_average_is_named() {
    // There is one in a row that is not trained on.
    let folder = Folder::new(
        "no_mean",
        &[
            ("h.csv", "a,b,y\n1,,0\n2,NA,1\n3,7,0\n"),
            ("plain.csv", "1,,0\n2,NA,1\n3,7,0\n"),
        ],
    );
    let load = |data: &str| folder.load(&format!("{data}, test: {{last: 1}}"), "shuffle: false");
    for (file, column) in [
        ("h.csv", "column \"b\""),
        ("plain.csv", "column 1 (counted from 0)"),
    ] {
        let message = load(&format!("csv: {file}, missing: mean")).unwrap_err();
        assert!(
            message.contains(column) && message.contains("missing: 0"),
            "{message}"
        );
        assert!(load(&format!("csv: {file}, missing: 0")).is_ok());
    }
    assert!(load("csv: h.csv, missing: mean, columns: [a]").is_ok());
}

#[test]
fn missing_values_are_filled_and_features_standardized_by_the_training_rows() {
    let folder = Folder::new(
        "fill",
        &[("m.csv", "1,2,0\n3,,1\n5,4,0\n?,100,1\n100,100,0\n")],
    );
    let load = |data: &str| {
        folder.load(
            &format!("csv: m.csv, test: {{last: 2}}, {data}"),
            "shuffle: false",
        )
    };
    let x = |dataset: &Dataset, i| dataset.get(0, i).unwrap().x[0].f32s();
    let message = load("divide_by: 2").unwrap_err();
    assert!(message.contains("fill in the missing value"), "{message}");
    let rows = load("missing: -1, divide_by: 2").unwrap();
    assert_eq!(x(&rows.train, 1), [1.5, -0.5]);
    let rows = load("missing: mean").unwrap();
    let test = rows.test.unwrap();
    // The means of the training rows: 3 of 1, 3, 5 and 3 of 2, 4.
    assert_eq!(
        (x(&rows.train, 1), x(&test, 0)),
        (vec![3.0, 3.0], vec![3.0, 100.0])
    );
    let rows = load("missing: mean, standardize: true").unwrap();
    let scale = (8.0f32 / 3.0).sqrt();
    let test = rows.test.unwrap();
    let found = [x(&rows.train, 0), x(&test, 1)].concat();
    let wide = (2.0f32 / 3.0).sqrt();
    for (found, expected) in
        found
            .iter()
            .zip([-2.0 / scale, -1.0 / wide, 97.0 / scale, 97.0 / wide])
    {
        assert!(
            (found - expected).abs() < 1e-4 * expected.abs(),
            "{found} {expected}"
        );
    }
    assert_eq!(
        folder
            .load("csv: m.csv, missing: drop", "")
            .unwrap()
            .train
            .len(),
        Some(3)
    );
}

#[test]
fn a_split_takes_its_share_of_each_class_by_the_seed() {
    let folder = Folder::new("stratified", &[("f.csv", &flowers())]);
    let load = |seed: u8| {
        let data = "csv: f.csv, missing: 0, test: {split: 0.2}";
        folder
            .load(data, &format!("seed: {seed}, shuffle: false"))
            .unwrap()
    };
    let rows = load(1);
    let test = rows.test.unwrap();
    assert_eq!(labels(&test), [2, 2, 0, 0, 1, 1]);
    let mut all = [firsts(&rows.train), firsts(&test)].concat();
    all.sort_by(f32::total_cmp);
    assert_eq!(all, numbers(0..30));
    assert_eq!(firsts(&load(1).test.unwrap()), firsts(&test));
    assert_ne!(firsts(&load(2).test.unwrap()), firsts(&test));
    let message = folder
        .load("csv: a.csv, test: {split: 0.01}", "")
        .unwrap_err();
    assert!(message.contains("leaves a part empty"), "{message}");
}

#[test]
fn values_of_one_hot_columns_are_features_and_kept() {
    let text = "id,colour,size,y\n1,red,2,no\n2,blue,4,yes\n3,green,6,no\n4,red,8,yes\n";
    let files = [
        ("h.csv", text),
        ("new.csv", "size,colour,id\n2,blue,9\n"),
        ("unseen.csv", "size,colour,id\n2,pink,9\n"),
    ];
    let folder = Folder::new("one-hot", &files);
    let data =
        "csv: h.csv, label: y, columns: [size, colour], one_hot: [colour], standardize: true";
    let rows = folder.load(data, "shuffle: false").unwrap();
    let row = |i| rows.train.get(0, i).unwrap().x[0].f32s();
    // Sizes 2, 4, 6, 8 have the mean 5 and the deviation sqrt(5); blue, green and red stay 0 and 1.
    let size = |size: f32| (size - 5.0) / 5.0f32.sqrt();
    assert_eq!(row(0), [size(2.0), 0.0, 0.0, 1.0]);
    assert_eq!(row(1), [size(4.0), 1.0, 0.0, 0.0]);
    assert_eq!(row(2), [size(6.0), 0.0, 1.0, 0.0]);
    let facts = &rows.facts;
    assert_eq!(facts.dims, [4]);
    let written = serde_json::to_string(facts).unwrap();
    let kept: Facts = serde_json::from_str(&written).unwrap();
    assert_eq!(&kept, facts);
    let csv = &folder.csv(data);
    let predicted = to_predict(csv, &kept, &folder.0.join("new.csv")).unwrap();
    let x = predicted.get(0, 0).unwrap().x[0].f32s();
    assert_eq!(x, [size(2.0), 1.0, 0.0, 0.0]);
    let error = to_predict(csv, &kept, &folder.0.join("unseen.csv")).unwrap_err();
    let expected = "column 2 (\"colour\"): found \"pink\", expected one of the values \"blue\", \"green\", \"red\"; correct the value, or train with rows that have it";
    assert!(error.to_string().contains(expected), "{error}");
}

#[test]
fn one_hot_columns_without_a_header_are_found_without_the_label_before_them() {
    let files = [("h.csv", "no,red,2\nyes,blue,4\n"), ("new.csv", "blue,3\n")];
    let folder = Folder::new("one-hot-index", &files);
    let data = "csv: h.csv, header: false, label: 0, one_hot: [1]";
    let rows = folder.load(data, "shuffle: false").unwrap();
    assert_eq!(rows.train.get(0, 0).unwrap().x[0].f32s(), [0.0, 1.0, 2.0]);
    let csv = &folder.csv(data);
    let predicted = to_predict(csv, &rows.facts, &folder.0.join("new.csv")).unwrap();
    assert_eq!(predicted.get(0, 0).unwrap().x[0].f32s(), [1.0, 0.0, 3.0]);
    let labelled = to_predict(csv, &rows.facts, &folder.0.join("h.csv")).unwrap();
    assert_eq!(labelled.get(0, 1).unwrap().x[0].f32s(), [1.0, 0.0, 4.0]);
}

#[test]
fn one_hot_columns_that_cannot_be_are_refused() {
    let many: String = (0..5000)
        .map(|i| format!("{i},name{i},{}\n", i % 2))
        .collect();
    let files = [
        ("h.csv", "a,b,c\n1,x,0\n2,y,1\n"),
        ("many.csv", many.as_str()),
        ("none.csv", "a,b,c\n1,,0\n2,,1\n"),
    ];
    let folder = Folder::new("one-hot-refused", &files);
    for (data, expected) in [
        (
            "csv: h.csv, one_hot: [d]",
            "found no column named \"d\"; choose the one-hot column among \"a\", \"b\", \"c\"",
        ),
        (
            "csv: h.csv, one_hot: [c]",
            "column \"c\" is one-hot and none of the features",
        ),
        (
            "csv: h.csv, one_hot: [b], divide_by: 2",
            "`divide_by` divides all features",
        ),
        (
            "csv: many.csv, one_hot: [1]",
            "found more than 4096 different texts in a one-hot column",
        ),
        (
            "csv: none.csv, one_hot: [b], missing: mean",
            "none.csv has a value in the one-hot column \"b\"; leave the column out, or name files with rows",
        ),
        (
            "csv: h.csv",
            "found \"x\", expected a number; correct the value, or name the column in `one_hot` if it holds names",
        ),
    ] {
        let error = folder.load(data, "").unwrap_err();
        assert!(error.contains(expected), "{data}: {error}");
    }
}

const INPUTS: &str =
    "label: y, inputs: {price: [price], user: user, about: [size, colour]}, one_hot: [colour]";

fn row(dataset: &Dataset, i: usize) -> Vec<HostTensor> {
    dataset.get(0, i).unwrap().x
}

/// The index of an example's user, its second input.
fn user(dataset: &Dataset, i: usize) -> Vec<i32> {
    row(dataset, i)[1].values().unwrap()
}

#[test]
fn inputs_are_arrays_of_their_columns_and_indices_stay_as_they_are() {
    let files = [
        (
            "h.csv",
            "size,user,colour,y,price\n2,16777217,red,0,1\n4,0,blue,1,2\n,3,blue,1,3\n6,5,red,0,6\n",
        ),
        ("new.csv", "colour,price,size,user\nblue,3,4,7\n"),
    ];
    let folder = Folder::new("inputs", &files);
    let data = format!("csv: h.csv, {INPUTS}, missing: mean, standardize: true");
    let rows = folder.load(&data, "shuffle: false").unwrap();
    let close = |found: &[f32], expected: &[f32]| {
        let mut pairs = found.iter().zip(expected);
        found.len() == expected.len() && pairs.all(|(a, b)| (a - b).abs() < 1e-6)
    };
    // More than f32 can hold.
    assert_eq!(user(&rows.train, 0), [16_777_217]);
    assert_eq!(user(&rows.train, 3), [5]);
    assert_eq!(row(&rows.train, 0)[1].dims(), [0usize; 0]);
    // Prices 1, 2, 3, 6; sizes 2, 4, 4 (the mean), 6. Blue and red are no numbers.
    let price = |price: f32| (price - 3.0) / 3.5f32.sqrt();
    let size = |size: f32| (size - 4.0) / 2.0f32.sqrt();
    for (i, (of_price, about)) in [
        (1.0, [size(2.0), 0.0, 1.0]),
        (2.0, [size(4.0), 1.0, 0.0]),
        (3.0, [size(4.0), 1.0, 0.0]),
        (6.0, [size(6.0), 0.0, 1.0]),
    ]
    .into_iter()
    .enumerate()
    {
        let x = row(&rows.train, i);
        assert!(close(&x[0].f32s(), &[price(of_price)]), "{x:?}");
        assert!(close(&x[2].f32s(), &about), "{x:?}");
    }
    let written = serde_json::to_string(&rows.facts).unwrap();
    let kept: Facts = serde_json::from_str(&written).unwrap();
    assert_eq!(kept, rows.facts);
    let csv = &folder.csv(&data);
    // By their names, in any order.
    let new = to_predict(csv, &kept, &folder.0.join("new.csv")).unwrap();
    assert_eq!(user(&new, 0), [7]);
    let x = row(&new, 0);
    assert!(close(&x[0].f32s(), &[price(3.0)]) && close(&x[2].f32s(), &[0.0, 1.0, 0.0]));
}

#[test]
fn indices_that_are_none_are_named_or_their_rows_left_out() {
    let files = [
        ("missing.csv", "size,user,colour,y,price\n2,,red,0,1\n"),
        ("half.csv", "size,user,colour,y,price\n2,1.5,red,0,1\n"),
        ("below.csv", "size,user,colour,y,price\n2,-1,red,0,1\n"),
        (
            "dropped.csv",
            "size,user,colour,y,price\n2,,red,0,1\n3,4,red,1,2\n",
        ),
    ];
    let folder = Folder::new("input-indices", &files);
    for (file, expected) in [
        (
            "missing",
            "column 2 (\"user\"): found \"\", expected an index, a whole number from 0 to 2147483647; fill in",
        ),
        ("half", "found \"1.5\", expected an index"),
        ("below", "found \"-1\", expected an index"),
    ] {
        let error = folder
            .load(&format!("csv: {file}.csv, {INPUTS}"), "")
            .unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    let left = folder
        .load(&format!("csv: dropped.csv, {INPUTS}, missing: drop"), "")
        .unwrap();
    assert_eq!((left.dropped, left.train.len()), (1, Some(1)));
    assert_eq!(user(&left.train, 0), [4]);
    assert_eq!(row(&left.train, 0)[0].f32s(), [2.0]);
}

#[test]
fn an_input_twice_under_two_names_of_its_column_is_refused() {
    let folder = Folder::new("input-twice", &[("h.csv", "a,b,y\n1,2,0\n")]);
    let error = folder.load("csv: h.csv, inputs: {price: [a], user: 0, about: [b]}", "");
    let error = error.unwrap_err();
    let expected = "the inputs have the column at position 0 (\"a\") twice; name it once";
    assert!(error.contains(expected), "{error}");
}
