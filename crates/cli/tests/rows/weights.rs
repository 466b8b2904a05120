//! The column of the weights of rows.

use phalanx::data::Dataset;
use phalanx_cli::rows_to_predict::to_predict;

use crate::Folder;

const H: &str = "a,w,y,b\n1,0.5,0,2\n3,2,1,4\n5,0,0,6\n7,1,1,8\n";

/// Of each row all numbers, the label and the weight.
fn whole(dataset: &Dataset) -> Vec<(Vec<f32>, f64, Option<f32>)> {
    let rows = 0..dataset.len().unwrap();
    let rows = rows.map(|row| dataset.get(0, row).unwrap());
    rows.map(|row| (row.x[0].f32s(), row.y[0].to_f64()[0], row.weight))
        .collect()
}

#[test]
fn weights_are_no_feature_and_stay_with_their_rows() {
    let folder = Folder::new("weights", &[("h.csv", H), ("i.csv", "a,w,y,b\n9,4,1,3\n")]);
    let all = [
        (vec![1.0, 2.0], 0.0, Some(0.5)),
        (vec![3.0, 4.0], 1.0, Some(2.0)),
        (vec![5.0, 6.0], 0.0, Some(0.0)),
        (vec![7.0, 8.0], 1.0, Some(1.0)),
    ];
    let data = "csv: h.csv, label: y, weight: w";
    let rows = folder.load(data, "shuffle: false").unwrap();
    assert_eq!(whole(&rows.train), all);
    assert_eq!(rows.facts.columns, ["a", "b"]);
    // In another order of the columns, of several files, scaled, and with parts drawn by the seed.
    let data = "csv: [h.csv, i.csv], label: y, weight: 1, columns: [b, a], standardize: true, test: {split: 0.4}";
    let rows = folder.load(data, "shuffle: false, validation: {split: 0.3}");
    let rows = rows.unwrap();
    let parts = [
        Some(&rows.train),
        rows.validation.as_ref(),
        rows.test.as_ref(),
    ];
    let weights = parts.into_iter().flatten().flat_map(whole);
    let mut weights: Vec<f32> = weights.filter_map(|(_, _, weight)| weight).collect();
    weights.sort_by(f32::total_cmp);
    assert_eq!(weights, [0.0, 0.5, 1.0, 2.0, 4.0]);
    // Weights of classes multiply them in training alone.
    let data = "csv: h.csv, label: y, weight: w, test: {last: 1}";
    let rows = folder
        .load(data, "shuffle: false, class_weight: {1: 3}")
        .unwrap();
    let weights: Vec<_> = whole(&rows.train)
        .into_iter()
        .map(|(.., weight)| weight)
        .collect();
    assert_eq!(weights, [Some(0.5), Some(6.0), Some(0.0)]);
    assert_eq!(whole(rows.test.as_ref().unwrap()), all[3..]);
}

#[test]
fn a_file_to_predict_needs_no_weights() {
    let files = [
        ("h.csv", H),
        ("named.csv", "b,a\n2,1\n"),
        ("p.csv", "1,0.5,0,2\n3,2,1,4\n"),
        ("bare.csv", "1,2\n"),
        ("wide.csv", "1,2,3\n"),
    ];
    let folder = Folder::new("weights-predict", &files);
    let predicted = |data: &str, file: &str| {
        let facts = folder.load(data, "").unwrap().facts;
        let rows = to_predict(&folder.csv(data), &facts, &folder.0.join(file));
        rows.map(|rows| {
            (
                rows.get(0, 0).unwrap().x[0].f32s(),
                rows.get(0, 0).unwrap().weight,
            )
        })
    };
    let named = "csv: h.csv, label: y, weight: w";
    assert_eq!(
        predicted(named, "named.csv").unwrap(),
        (vec![1.0, 2.0], None)
    );
    assert_eq!(predicted(named, "h.csv").unwrap(), (vec![1.0, 2.0], None));
    let bare = "csv: p.csv, label: 2, weight: 1";
    assert_eq!(predicted(bare, "p.csv").unwrap(), (vec![1.0, 2.0], None));
    assert_eq!(predicted(bare, "bare.csv").unwrap(), (vec![1.0, 2.0], None));
    let chosen = "csv: p.csv, label: 2, weight: 1, columns: [3, 0]";
    assert_eq!(
        predicted(chosen, "bare.csv").unwrap(),
        (vec![2.0, 1.0], None)
    );
    let error = predicted(bare, "wide.csv").unwrap_err().to_string();
    let expected =
        "wide.csv has 3 columns, and the files of the training 4 with the label and the weights";
    assert!(error.contains(expected), "{error}");
}

#[test]
fn what_is_no_weight_is_told_with_its_place() {
    let files = [
        ("h.csv", H),
        ("minus.csv", "a,w,y\n1,1,0\n2,-1,1\n"),
        ("gap.csv", "a,w,y\n1,,0\n2,3,1\n"),
    ];
    let folder = Folder::new("weights-wrong", &files);
    let told = [
        ("csv: h.csv, label: y, weight: W", "did you mean"),
        ("csv: h.csv, label: y, weight: 4", "choose an index below 4"),
        ("csv: a.csv, weight: w", "no names of columns"),
        (
            "csv: h.csv, weight: b",
            "the column of the weights is also the label",
        ),
        ("csv: h.csv, label: w, weight: w", "`label` names it"),
        (
            "csv: h.csv, label: y, weight: w, columns: [a, w]",
            "`columns` or `inputs` names it",
        ),
        (
            "csv: h.csv, label: y, weight: w, one_hot: [w]",
            "`one_hot` names it",
        ),
        (
            "csv: h.csv, label: y, weight: 1, columns: [a, w]",
            "the weights are also among the columns",
        ),
        (
            "csv: h.csv, label: 2, weight: w, header: false",
            "`header` is false",
        ),
        (
            "csv: minus.csv, weight: w",
            "line 3, column 2 (\"w\"): found \"-1\", expected a weight from 0 up",
        ),
        (
            "csv: gap.csv, weight: w",
            "line 2, column 2 (\"w\"): found \"\"",
        ),
    ];
    for (data, part) in told {
        let error = folder.load(data, "").unwrap_err();
        assert!(error.contains(part), "{data}: {error}");
    }
    let rows = folder
        .load("csv: gap.csv, weight: w, missing: mean", "shuffle: false")
        .unwrap();
    assert_eq!(whole(&rows.train), [(vec![2.0], 1.0, Some(3.0))]);
    assert_eq!(rows.dropped, 1);
}
