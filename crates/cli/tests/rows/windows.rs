//! Rows that are a time series, in windows.

use phalanx::data::Dataset;
use phalanx_cli::rows::labelled;
use phalanx_cli::rows_to_predict::to_predict;

use crate::Folder;

/// The first row's number of each window, and its labels, where column `t` counts rows and the label is 10 times as much.
fn made(dataset: &Dataset) -> Vec<(f32, Vec<f32>)> {
    let of = |i| {
        let example = dataset.get(0, i).unwrap();
        let labels = example.y.iter().flat_map(phalanx::data::HostTensor::to_f64);
        (example.x[0].f32s()[0], labels.map(|y| y as f32).collect())
    };
    (0..dataset.len().unwrap()).map(of).collect()
}

/// Rows `t, 10 t, name`.
fn series(rows: usize) -> String {
    let rows = (0..rows).map(|t| format!("{t},{},x{t}\n", 10 * t));
    format!("t,y,name\n{}", rows.collect::<String>())
}

const DATA: &str = "csv: s.csv, label: y, label_type: value, columns: [t, y]";

#[test]
fn parts_are_held_out_as_rows_before_windows_are_made() {
    let folder = Folder::new("windows", &[("s.csv", &*series(20))]);
    let data = format!("{DATA}, window: {{sequence_length: 3}}, test: {{last: 6}}");
    let fit = "validation: {split: 0.3}, shuffle: false";
    let rows = folder.load(&data, fit).unwrap();
    assert_eq!(rows.facts.dims, [2]);
    assert_eq!(rows.facts.model_inputs().len(), 1);
    let example = rows.train.get(0, 1).unwrap();
    assert_eq!(example.x[0].dims(), [3, 2]);
    assert_eq!(example.x[0].f32s(), [1.0, 10.0, 2.0, 20.0, 3.0, 30.0]);
    // Of the rows 0 to 8, 9 to 13 and 14 to 19.
    let train: Vec<_> = (0..6u8)
        .map(|t| (f32::from(t), vec![f32::from(t + 3) * 10.0]))
        .collect();
    assert_eq!(made(&rows.train), train);
    let validation = made(&rows.validation.unwrap());
    assert_eq!(validation, [(9.0, vec![120.0]), (10.0, vec![130.0])]);
    let test = made(&rows.test.unwrap());
    assert_eq!(
        test,
        [
            (14.0, vec![170.0]),
            (15.0, vec![180.0]),
            (16.0, vec![190.0])
        ]
    );
    let shuffled = folder.load(&data, "seed: 3").unwrap();
    let mut order = made(&shuffled.train);
    assert_ne!(order, made(&shuffled.plain));
    order.sort_by(|a, b| a.0.total_cmp(&b.0));
    assert_eq!(order, made(&shuffled.plain));
}

#[test]
fn the_label_is_a_feature_and_scaling_is_of_the_rows_to_train_on() {
    let text = "t,y\n0,0\n1,2\n2,4\n3,6\n100,100\n";
    let folder = Folder::new("windows-scaled", &[("s.csv", text)]);
    let data = "csv: s.csv, label: y, label_type: value, standardize: true, window: {sequence_length: 2}, test: {last: 1}";
    // Too few to test on.
    let error = folder.load(data, "").unwrap_err();
    assert!(
        error.contains("the test rows: a window and its labels reach over 3 rows, and there are 1"),
        "{error}"
    );
    let rows = folder
        .load(
            &data.replace(", test: {last: 1}", ", missing: 0"),
            "shuffle: false",
        )
        .unwrap();
    assert_eq!(rows.facts.columns, ["t", "y"]);
    let data = data.replace(", test: {last: 1}", "");
    let rows_held = folder.load(&data, "shuffle: false, validation: {split: 0.2}");
    assert!(rows_held.unwrap_err().contains("the validation rows: "));
    let more = format!("{text}101,100\n102,100\n");
    std::fs::write(folder.0.join("s.csv"), more).unwrap();
    let rows_held = folder
        .load(&data, "shuffle: false, validation: {split: 0.42}")
        .unwrap();
    let (mean, deviation) = rows_held.facts.scaling.standard.clone().unwrap();
    assert_eq!((mean, deviation[1]), (vec![1.5, 3.0], 5.0f32.sqrt()));
    let example = rows_held.train.get(0, 1).unwrap();
    // Features are scaled, labels are not.
    assert_eq!(example.y[0].f32s(), [6.0]);
    assert!((example.x[0].f32s()[1] - (2.0 - 3.0) / 5.0f32.sqrt()).abs() < 1e-6);
    drop(rows);
}

#[test]
fn every_window_is_forecast_from_whatever_the_stride() {
    let (old, new) = (series(20), series(6));
    let files = [
        ("s.csv", &*old),
        ("new.csv", &*new),
        ("bare.csv", "1,10\n2,20\n3,30\n"),
        ("short.csv", "name,y,t\nx,2,1\nx,2,1\n"),
    ];
    let folder = Folder::new("windows-new", &files);
    let data =
        format!("{DATA}, window: {{sequence_length: 3, sequence_stride: 4, horizon: 2, ahead: 2}}");
    let rows = folder.load(&data, "shuffle: false").unwrap();
    let labels = |t: f32| vec![(t + 4.0) * 10.0, (t + 5.0) * 10.0];
    let expected: Vec<_> = [0.0, 4.0, 8.0, 12.0].map(|t| (t, labels(t))).into();
    assert_eq!(made(&rows.train), expected);
    let predict = |file: &str| to_predict(&folder.csv(&data), &rows.facts, &folder.0.join(file));
    let firsts = made(&predict("new.csv").unwrap())
        .into_iter()
        .map(|(first, labels)| {
            assert!(labels.is_empty());
            first
        });
    assert_eq!(firsts.collect::<Vec<f32>>(), [0.0, 1.0, 2.0, 3.0]);
    assert!(predict("bare.csv").is_err(), "no names of columns");
    let short = predict("short.csv").unwrap_err().to_string();
    assert!(short.contains("no window of 3 steps"), "{short}");
    // Without names of columns they are chosen by their positions.
    let folder = Folder::new(
        "windows-bare",
        &[
            ("p.csv", "1,10\n2,20\n3,30\n4,40\n"),
            ("q.csv", "5,50\n6,60\n"),
            ("w.csv", "5,50,1\n6,60,1\n"),
        ],
    );
    let data = "csv: p.csv, label_type: value, window: {sequence_length: 2}";
    let rows = folder.load(data, "shuffle: false").unwrap();
    assert_eq!(made(&rows.train), [(1.0, vec![30.0]), (2.0, vec![40.0])]);
    let new = to_predict(&folder.csv(data), &rows.facts, &folder.0.join("q.csv")).unwrap();
    assert_eq!(new.get(0, 0).unwrap().x[0].f32s(), [5.0, 50.0, 6.0, 60.0]);
    let wide = to_predict(&folder.csv(data), &rows.facts, &folder.0.join("w.csv"));
    let wide = wide.unwrap_err().to_string();
    assert!(
        wide.contains("has 3 columns, and the files of the training 2"),
        "{wide}"
    );
}

#[test]
fn a_series_with_gaps_or_too_few_rows_is_refused_at_its_line() {
    let short = series(5);
    let files = [
        ("s.csv", &*short),
        ("gap.csv", "t,y\n0,0\n1,\n2,20\n3,30\n"),
    ];
    let folder = Folder::new("windows-refused", &files);
    let window = "window: {sequence_length: 2}";
    for (data, expected) in [
        (
            format!("{DATA}, window: {{sequence_length: 5}}"),
            "t.yaml:1:74: the training rows: a window and its labels reach over 6 rows, and there are 5",
        ),
        (
            format!("csv: gap.csv, label: y, label_type: value, missing: mean, {window}"),
            "1 rows of the series have no label",
        ),
    ] {
        let error = folder.load(&data, "").unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    // To evaluate on too, where windows over the gap would have wrong labels.
    let data = format!("csv: s.csv, label: y, label_type: value, missing: mean, {window}");
    let data = format!("{data}, columns: [t, y]");
    let rows = folder.load(&data, "").unwrap();
    let new = labelled(&folder.csv(&data), &rows.facts, &folder.0.join("gap.csv"));
    let error = new.unwrap_err().to_string();
    for part in ["gap.csv: 1 rows of the series have no label", "fill in"] {
        assert!(error.contains(part), "{error}");
    }
}
