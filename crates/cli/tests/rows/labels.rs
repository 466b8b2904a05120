//! The labels of several outputs.

use super::*;

const REST: &str = "model: [{dense: {units: 2, name: kind}}, {dense: {units: 1, inputs: kind, name: size}}]\noptimizer: sgd\nloss: {kind: mse, size: mse}\n";

/// The arrays of labels of all rows.
fn labels(dataset: &Dataset) -> Vec<HostTensor> {
    dataset.batch(100).get(0, 0).unwrap().y
}

const ROWS: &str =
    "x,name,width,y,length\n1,b,0.5,2,10\n3,a,-1,4,20\n5,,1,6,30\n7,b,,8,40\n9,c,2,0,50\n";

#[test]
fn each_output_has_its_columns_and_no_feature_is_one_of_them() {
    let folder = Folder::new("labels", &[("l.csv", ROWS)]);
    let data =
        "csv: l.csv, labels: {kind: name, size: [length, width]}, missing: drop, test: {last: 1}";
    let rows = folder.load_for(REST, data, "").unwrap();
    assert_eq!(rows.facts.columns, ["x", "y"]);
    assert_eq!(firsts(&rows.plain), [1.0, 3.0]);
    let found = labels(&rows.plain);
    assert_eq!(found[0], HostTensor::new([2], &[1, 0]));
    assert_eq!(
        found[1],
        HostTensor::new([2, 2], &[10.0f32, 0.5, 20.0, -1.0])
    );
    assert_eq!(rows.dropped, 2);
    let classes: Vec<_> = rows
        .facts
        .labels
        .iter()
        .map(|label| label.classes.clone())
        .collect();
    assert_eq!(
        classes,
        [vec!["a".to_owned(), "b".into(), "c".into()], vec![]]
    );
    // Numbers from 0 are classes as they stand there.
    let data = "csv: l.csv, labels: {kind: y, size: [x]}, columns: [length]";
    let rows = folder.load_for(REST, data, "").unwrap();
    assert_eq!(
        labels(&rows.plain)[0],
        HostTensor::new([5], &[2, 4, 6, 8, 0])
    );
    assert_eq!(labels(&rows.plain)[1].dims(), [5, 1]);
}

/// Such features have no names to be found by.
#[test]
fn features_of_one_name_are_predicted_by_their_positions() {
    let files = [
        ("d.csv", "x,name,x,v,w\n1,b,2,0.5,1\n3,a,4,1.5,2\n"),
        ("few.csv", "x,x\n1,2\n"),
    ];
    let folder = Folder::new("labels-positions", &files);
    let data = "csv: d.csv, labels: {kind: name, size: [v]}, weight: w";
    let facts = folder.load_for(REST, data, "").unwrap().facts;
    let rest = parse(
        &format!("data: {{{data}}}\n{REST}"),
        &folder.0.join("t.yaml"),
    );
    let Data::Csv(csv) = rest.unwrap().data else {
        panic!("no csv")
    };
    let rows = to_predict(&csv, &facts, &folder.0.join("d.csv")).unwrap();
    assert_eq!(rows.get(0, 1).unwrap().x[0].f32s(), [3.0, 4.0]);
    let error = to_predict(&csv, &facts, &folder.0.join("few.csv")).unwrap_err();
    let told = "few.csv has 2 columns, and the files of the training 5 with the labels, found by their positions as two features have one name";
    assert!(error.to_string().contains(told), "{error}");
}

#[test]
fn columns_that_cannot_be_labels_are_refused() {
    let folder = Folder::new("labels-refused", &[("l.csv", ROWS)]);
    for (data, told) in [
        (
            "csv: l.csv, labels: {kind: name, size: [length, name]}",
            "t.yaml:",
        ),
        (
            "csv: l.csv, labels: {kind: width, size: [x]}, columns: [y]",
            "expected a class",
        ),
        (
            "csv: l.csv, labels: {kind: y, size: [x]}, columns: [x]",
            "the label is also among the columns of the features",
        ),
        (
            "csv: l.csv, labels: {kind: y, size: [x]}, weight: x, columns: [length]",
            "the column of the weights is also the label",
        ),
        (
            "csv: a.csv, labels: {kind: y, size: [x]}",
            "has no column \"y\" of labels",
        ),
        (
            "csv: l.csv, header: false, labels: {kind: y, size: [x]}",
            "`labels` names columns, and `header` is false",
        ),
    ] {
        let said = folder.load_for(REST, data, "").unwrap_err();
        assert!(said.contains(told), "{said}");
    }
}
