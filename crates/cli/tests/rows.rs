//! The rows that a `train.yaml` speaks of.

use std::fs;
use std::path::PathBuf;

use phalanx::data::Dataset;
use phalanx_cli::config::{Data, parse};
use phalanx_cli::rows::{Rows, load, to_predict};

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    /// With `a.csv` of ten rows `i, 2i, i % 3`, and what else is given.
    fn new(name: &str, files: &[(&str, &str)]) -> Self {
        let path = std::env::temp_dir().join(format!("phalanx-rows-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
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
        let rest = "model: [flatten]\noptimizer: sgd\nloss: huber\n";
        let text = format!("data: {{{data}}}\n{rest}fit: {{{fit}}}\n");
        let config =
            parse(&text, &self.0.join("t.yaml")).map_err(|problems| problems.to_string())?;
        load(&config).map_err(|problems| problems.to_string())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
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
    assert_eq!(rows.features, [2]);
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
        (rows.train.len(), rows.features.as_slice()),
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

#[test]
fn rows_to_predict_come_with_and_without_the_label() {
    let folder = Folder::new(
        "predict",
        &[("plain.csv", "4,8\n"), ("wide.csv", "1,2,3,4\n")],
    );
    let text = "data: {csv: a.csv, label: 0, divide_by: 2}\nmodel: [flatten]\noptimizer: sgd\nloss: huber\n";
    let Data::Csv(data) = parse(text, &folder.0.join("t.yaml")).unwrap().data else {
        panic!("data are images")
    };
    let rows = |name: &str| to_predict(&data, &folder.0.join(name), &[2, 1]);
    let plain = rows("plain.csv").unwrap().get(0, 0).unwrap();
    assert_eq!(
        (plain.x[0].f32s(), plain.x[0].dims()),
        (vec![2.0, 4.0], &[2, 1][..])
    );
    let labelled = rows("a.csv").unwrap().get(0, 4).unwrap();
    assert_eq!(labelled.x[0].f32s(), [4.0, 0.5]);
    assert!(
        rows("wide.csv")
            .unwrap_err()
            .to_string()
            .contains("found 3 feature columns, expected 2")
    );
}
