//! Forecasts of a time series.

use std::fs;

use crate::Folder;
use crate::inputs::test_line;
use crate::processes::value_of;

/// Two waves, of which each next value is a sum of the last ones.
fn with_series(name: &str) -> Folder {
    let folder = Folder::new(name, "sgd");
    let wave = |t: usize| (t as f64 * 0.3).sin() + 0.5 * (t as f64 * 0.7).cos();
    let row = |t: usize| format!("day {t},{:.6},{}\n", wave(t), t % 7);
    let rows: String = (0..160).map(row).collect();
    fs::write(
        folder.0.join("a.csv"),
        format!("time,level,weekday\n{rows}"),
    )
    .unwrap();
    let text = "data: {csv: a.csv, label: level, label_type: value, columns: [level, weekday], divide_by: 2, window: {sequence_length: 8}, test: {last: 40}}\n\
        model: [flatten, {dense: {units: 1, name: forecast}}]\n\
        optimizer: {adam: {learning_rate: 0.02}}\nloss: mean_squared_error\nmetrics: [mae]\n\
        fit: {epochs: 150, batch_size: 16, save_freq: epoch}\noutput: out\n";
    fs::write(folder.0.join("t.yaml"), text).unwrap();
    folder
}

#[test]
fn a_series_is_forecast_alike_alone_on_replicas_and_after_a_pause() {
    let folder = with_series("windows");
    let text = folder.succeed(&["train", "t.yaml", "--progress", "plain"]);
    assert!(
        text.contains("112 examples to train on, 32 to test; each of [8, 2]"),
        "{text}"
    );
    let one = test_line(&text);
    // The mean of the series is about 0.7 off its values, and the value before about 0.2.
    assert!(value_of(&one, "mean_absolute_error") < 0.01, "{one}");
    let evaluated = folder.succeed(&["evaluate", "out"]);
    assert_eq!(evaluated.trim_end().replace("evaluate", "test"), one);
    let half = ["train", "t.yaml", "--output", "half", "--progress", "plain"];
    folder.succeed(&[&half[..], &["--epochs", "75"]].concat());
    let resumed = test_line(&folder.succeed(&[&half[..], &["--resume"]].concat()));
    assert_eq!(resumed, one);
    let replicas = [
        "--output",
        "two",
        "--set",
        "strategy={mirrored: {devices: \"cpu:2\"}}",
    ];
    let two = [&["train", "t.yaml", "--progress", "plain"][..], &replicas].concat();
    let two = test_line(&folder.succeed(&two));
    let apart = value_of(&two, "loss") - value_of(&one, "loss");
    assert!(apart.abs() < 1e-5, "{one} {two}");
    // What comes after the last row is the last forecast.
    let rows = fs::read_to_string(folder.0.join("a.csv")).unwrap();
    let known: Vec<&str> = rows.lines().take(101).collect();
    fs::write(folder.0.join("new.csv"), known.join("\n") + "\n").unwrap();
    let predicted = folder.succeed(&["predict", "out", "new.csv"]);
    let values: Vec<f64> = predicted
        .lines()
        .skip(1)
        .map(|line| line.parse().unwrap())
        .collect();
    assert_eq!(values.len(), 100 - 8 + 1);
    for (place, value) in values.iter().enumerate() {
        let row = rows.lines().nth(1 + place + 8).unwrap();
        let level: f64 = row.split(',').nth(1).unwrap().parse().unwrap();
        assert!((value - level).abs() < 0.02, "{place}: {value} {level}");
    }
}

#[test]
fn several_values_are_forecast_at_once() {
    let folder = with_series("windows-horizon");
    let text = fs::read_to_string(folder.0.join("t.yaml")).unwrap();
    let text = text.replace("{sequence_length: 8}", "{sequence_length: 8, horizon: 3}");
    fs::write(folder.0.join("t.yaml"), &text).unwrap();
    let narrow = ["train", "t.yaml", "--quiet", "--output", "narrow"];
    folder.fail(&narrow, 2, &["give the last layer the dims of the targets"]);
    fs::write(
        folder.0.join("t.yaml"),
        text.replace("units: 1,", "units: 3,"),
    )
    .unwrap();
    let text = folder.succeed(&["train", "t.yaml", "--progress", "plain"]);
    let line = test_line(&text);
    assert!(value_of(&line, "mean_absolute_error") < 0.01, "{line}");
    let predicted = folder.succeed(&["predict", "out", "a.csv"]);
    assert_eq!(predicted.lines().next(), Some("score_0,score_1,score_2"));
    assert_eq!(predicted.lines().count(), 1 + 160 - 8 + 1);
}

#[test]
fn a_test_of_several_files_is_one_series() {
    let folder = with_series("windows-files");
    let rows = fs::read_to_string(folder.0.join("a.csv")).unwrap();
    let lines: Vec<&str> = rows.lines().collect();
    for (name, range) in [("b.csv", 101..125), ("c.csv", 125..161)] {
        let part = lines[range].join("\n");
        fs::write(folder.0.join(name), format!("{}\n{part}\n", lines[0])).unwrap();
    }
    let path = folder.0.join("t.yaml");
    let text = fs::read_to_string(&path).unwrap();
    let several = text.replace("{last: 40}", "{csv: [b.csv, c.csv]}");
    fs::write(&path, several.replace("epochs: 150", "epochs: 1")).unwrap();
    let one = test_line(&folder.succeed(&["train", "t.yaml", "--progress", "plain"]));
    let evaluated = folder.succeed(&["evaluate", "out"]);
    assert_eq!(evaluated.trim_end().replace("evaluate", "test"), one);
    // What is said to be added is taken.
    fs::write(&path, text.replace(", test: {last: 40}", "")).unwrap();
    folder.succeed(&["train", "t.yaml", "--quiet", "--overwrite", "--epochs", "1"]);
    folder.fail(
        &["evaluate", "out"],
        2,
        &["add `test: {last: 100}` to data"],
    );
}
