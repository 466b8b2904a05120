//! Rows to predict, and files whose columns are chosen by name or by position.

use phalanx_cli::data_facts::Facts;
use phalanx_cli::rows_to_predict::to_predict;

use crate::Folder;

#[test]
fn rows_to_predict_come_with_and_without_the_label() {
    let folder = Folder::new(
        "predict",
        &[("plain.csv", "4,8\n"), ("wide.csv", "1,2,3,4\n")],
    );
    let data = folder.csv("csv: a.csv, label: 0, divide_by: 2");
    let mut facts = Facts {
        dims: vec![2, 1],
        ..Facts::default()
    };
    facts.scaling.divide_by = 2.0;
    let rows = |name: &str| to_predict(&data, &facts, &folder.0.join(name));
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
            .contains("wide.csv has 4 columns, and the files of the training 3 with the label")
    );
}

/// What is predicted for a training of `h.csv` with these data, of each row all numbers.
fn predicted(folder: &Folder, data: &str, file: &str) -> Result<Vec<Vec<f32>>, String> {
    let rows = folder.load(data, "shuffle: false")?;
    let found = to_predict(&folder.csv(data), &rows.facts, &folder.0.join(file));
    let found = found.map_err(|error| error.to_string())?;
    let rows = 0..found.len().unwrap();
    Ok(rows
        .map(|row| found.get(0, row).unwrap().x[0].f32s())
        .collect())
}

#[test]
fn each_row_to_predict_has_a_prediction_from_its_own_columns() {
    let files = [
        ("h.csv", "1,4,5,6\n0,1,2,3\n,7,8,9\n"),
        ("bare.csv", "1,2,3\n4,5,6\n"),
        ("gap.csv", "0,1,2,3\n1,,5,6\n"),
        ("unlabelled.csv", ",1,2,3\n,4,5,6\n"),
        ("wide.csv", "1,2,3,4,5\n"),
    ];
    let folder = Folder::new("predicted", &files);
    let all = "csv: h.csv, label: 0, missing: drop";
    let whole = [vec![1.0, 2.0, 3.0], vec![4.0, 5.0, 6.0]];
    assert_eq!(predicted(&folder, all, "bare.csv").unwrap(), whole);
    // A row to predict needs no label, and one that a training would leave out is no row less.
    assert_eq!(predicted(&folder, all, "unlabelled.csv").unwrap(), whole);
    let error = predicted(&folder, all, "gap.csv").unwrap_err();
    assert!(error.contains("gap.csv: line 2, column 2"), "{error}");
    let some = "csv: h.csv, label: 0, missing: drop, columns: [3, 1]";
    let chosen = [vec![3.0, 1.0], vec![6.0, 4.0]];
    assert_eq!(predicted(&folder, some, "bare.csv").unwrap(), chosen);
    assert_eq!(predicted(&folder, some, "unlabelled.csv").unwrap(), chosen);
    let error = predicted(&folder, some, "wide.csv").unwrap_err();
    assert!(
        error.contains("wide.csv has 5 columns, and the files of the training 4"),
        "{error}"
    );
}

#[test]
fn columns_chosen_by_name_may_be_in_another_order_in_the_next_file() {
    let files = [
        ("h1.csv", "id,size,colour,y\n7,1.5,red,0\n8,2.5,blue,1\n"),
        ("h2.csv", "size,colour,y,id\n3.5,blue,1,9\n"),
    ];
    let folder = Folder::new("by-name", &files);
    let data = "csv: [h1.csv, h2.csv], columns: [size, colour], one_hot: [colour]";
    let rows = folder.load(data, "shuffle: false").unwrap();
    let batch = rows.train.batch(3).get(0, 0).unwrap();
    let expected = [1.5, 0.0, 1.0, 2.5, 1.0, 0.0, 3.5, 1.0, 0.0];
    assert_eq!(batch.x[0].f32s(), expected);
    assert_eq!(batch.y[0].to_f64(), [0.0, 1.0, 1.0]);
}

#[test]
fn the_label_is_no_feature_wherever_the_training_had_it() {
    let files = [
        ("twice.csv", "y,x,x\n0,1,2\n1,3,4\n"),
        ("bare-twice.csv", "1,2\n3,4\n"),
        ("turned.csv", "x,y,x\n1,0,2\n"),
        ("cut.csv", "y,x\n0,1\n"),
        ("first.csv", "y,a,b\n0,1,2\n1,3,4\n"),
        ("plain.csv", "0,5,6\n"),
        ("second.csv", "a,y,b,c\n1,0,2,3\n4,1,5,6\n"),
        ("bare.csv", "7,8,9\n"),
    ];
    let folder = Folder::new("label-place", &files);
    // Two features of one name, which are chosen by their positions.
    let twice = "csv: twice.csv, label: y";
    let expected = [vec![1.0, 2.0], vec![3.0, 4.0]];
    assert_eq!(predicted(&folder, twice, "twice.csv").unwrap(), expected);
    assert_eq!(
        predicted(&folder, twice, "bare-twice.csv").unwrap(),
        expected
    );
    for (file, place) in [("turned.csv", 1), ("cut.csv", 0)] {
        let error = predicted(&folder, twice, file).unwrap_err();
        let told = format!("{file} has the label in column {place}");
        assert!(error.contains(&told), "{error}");
    }
    let first = "csv: first.csv, label: y";
    assert_eq!(
        predicted(&folder, first, "plain.csv").unwrap(),
        [[5.0, 6.0]]
    );
    let second = "csv: second.csv, label: y, columns: [0, 2]";
    assert_eq!(
        predicted(&folder, second, "bare.csv").unwrap(),
        [[7.0, 8.0]]
    );
}

#[test]
fn numbers_that_count_columns_are_a_row_where_the_training_had_no_such_names() {
    let files = [
        ("bare.csv", "5,3,1,0\n4,2,0,1\n"),
        ("named.csv", "a,b,c,y\n5,3,1,0\n4,2,0,1\n"),
        ("years.csv", "2019,2020,2021,2022\n5,3,1,0\n4,2,0,1\n"),
        ("new.csv", "1,2,3\n7,8,9\n"),
        ("new-years.csv", "2021,2019,2020\n1,2,3\n"),
    ];
    let folder = Folder::new("counted", &files);
    for data in ["csv: bare.csv", "csv: named.csv"] {
        let expected = [[1.0, 2.0, 3.0], [7.0, 8.0, 9.0]];
        assert_eq!(
            predicted(&folder, data, "new.csv").unwrap(),
            expected,
            "{data}"
        );
    }
    let error = folder.load("csv: years.csv", "").unwrap_err().to_string();
    assert!(error.contains("say whether there is a header"), "{error}");
    let rows = predicted(&folder, "csv: years.csv, header: true", "new-years.csv");
    assert_eq!(rows.unwrap(), [[2.0, 3.0, 1.0]]);
}

#[test]
fn a_feature_without_a_name_is_told() {
    let files = [
        ("index.csv", ",a,y\n0,5,0\n1,4,1\n"),
        ("plain.csv", "i,a,y\n0,5,0\n1,4,1\n"),
    ];
    let folder = Folder::new("unnamed", &files);
    let warnings = |data: &str| folder.load(data, "").unwrap().warnings;
    let told = warnings("csv: index.csv");
    assert!(
        told.len() == 1 && told[0].starts_with("feature 0 of ") && told[0].contains("index=False"),
        "{told:?}"
    );
    for data in [
        "csv: index.csv, columns: [a]",
        "csv: index.csv, columns: [0, 1]",
        "csv: plain.csv",
    ] {
        assert_eq!(warnings(data), [""; 0], "{data}");
    }
}

#[test]
fn a_label_that_its_training_did_not_keep_is_not_guessed() {
    let files = [
        ("first.csv", "y,a,b\n0,1,2\n1,3,4\n"),
        ("plain.csv", "0,5,6\n"),
        ("bare.csv", "5,6\n"),
    ];
    let folder = Folder::new("label-unknown", &files);
    let data = "csv: first.csv, label: y";
    let mut facts = folder.load(data, "").unwrap().facts;
    if let Some(layout) = &mut facts.layout {
        layout.label = None;
    }
    let predicted = |file: &str| {
        let rows = to_predict(&folder.csv(data), &facts, &folder.0.join(file));
        rows.map(|rows| rows.get(0, 0).unwrap().x[0].f32s())
    };
    let error = predicted("plain.csv").unwrap_err().to_string();
    assert!(
        error.contains("did not keep which of its columns is the label"),
        "{error}"
    );
    assert_eq!(predicted("bare.csv").unwrap(), [5.0, 6.0]);
    assert_eq!(predicted("first.csv").unwrap(), [1.0, 2.0]);
}

#[test]
fn labels_that_are_texts_make_no_header_of_the_first_row() {
    let files = [
        ("iris.csv", "5,3,rose\n4,2,lily\n"),
        ("bare.csv", "7,8\n"),
        ("answers.csv", "no,red,2\nyes,blue,4\n"),
        ("values.csv", "1.5,red,2\n2.5,blue,4\n"),
        ("colours.csv", "blue,3\n"),
    ];
    let folder = Folder::new("label-texts", &files);
    let iris = "csv: iris.csv";
    let whole = [[5.0, 3.0], [4.0, 2.0]];
    assert_eq!(predicted(&folder, iris, "iris.csv").unwrap(), whole);
    assert_eq!(predicted(&folder, iris, "bare.csv").unwrap(), [[7.0, 8.0]]);
    for data in [
        "csv: answers.csv, label: 0, one_hot: [1]",
        "csv: values.csv, label: 0, label_type: value, one_hot: [1]",
    ] {
        let colours = predicted(&folder, data, "colours.csv").unwrap();
        assert_eq!(colours, [[1.0, 0.0, 3.0]], "{data}");
    }
    let answers = "csv: answers.csv, label: 0, one_hot: [1]";
    let rows = predicted(&folder, answers, "answers.csv").unwrap();
    assert_eq!(rows, [[0.0, 1.0, 2.0], [1.0, 0.0, 4.0]]);
}
