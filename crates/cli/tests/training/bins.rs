//! Bins of numbers, whose boundaries are found in the training rows.

use std::fs;

use serde_json::Value;

use crate::Folder;
use crate::inputs::test_line;
use crate::processes::value_of;

fn with_bins(name: &str) -> Folder {
    let folder = Folder::new(name, "sgd");
    let text = "data: {csv: a.csv, inputs: {x: [0], y: [1]}, test: {csv: t.csv}}\n\
        model:\n\
        - discretization: {inputs: x, num_bins: 4}\n\
        - embedding: {input_dim: 4, output_dim: 3}\n\
        - flatten: {name: vector}\n\
        - concatenate: {inputs: [vector, y]}\n\
        - dense: {units: 2, activation: softmax}\n\
        optimizer: {adam: {learning_rate: 0.05}}\nloss: sparse_categorical_crossentropy\n\
        fit: {epochs: 2, batch_size: 8, save_freq: epoch}\noutput: out\n";
    fs::write(folder.0.join("t.yaml"), text).unwrap();
    fs::copy(folder.0.join("a.csv"), folder.0.join("t.csv")).unwrap();
    folder
}

/// Found once, on all workers alike, and kept in the model and by the checkpoint.
#[test]
fn bins_stay_as_the_training_began_with_them() {
    let folder = with_bins("bins");
    let train = ["train", "t.yaml", "--progress", "plain"];
    let one = test_line(&folder.succeed(&train));
    let boundaries = |run: &str| folder.facts(run)["scaling"]["bins"][0]["boundaries"].clone();
    // 60 rows of the numbers 0 to 12, nearly as many of each.
    assert_eq!(boundaries("out"), serde_json::json!([2.0, 6.0, 9.0]));
    let model = fs::read(folder.0.join("out/model/model.json")).unwrap();
    let model: Value = serde_json::from_slice(&model).unwrap();
    let layers = model["model"]["layers"].as_array().unwrap();
    let layer = layers
        .iter()
        .find_map(|layer| layer.get("discretization"))
        .unwrap();
    assert_eq!(layer["bin_boundaries"], boundaries("out"));
    let evaluated = folder.succeed(&["evaluate", "out"]);
    assert_eq!(evaluated.trim_end().replace("evaluate", "test"), one);
    let workers = [
        "launch",
        "--workers",
        "2",
        "--",
        env!("CARGO_BIN_EXE_phalanx"),
    ];
    let several = folder.succeed(&[&workers[..], &train, &["--output", "two"]].concat());
    assert_eq!(boundaries("two"), boundaries("out"));
    let losses = [&one, &test_line(&several)].map(|line| value_of(line, "loss"));
    assert!((losses[0] - losses[1]).abs() < 2e-4, "{losses:?}");
    // Rows that came change nothing of it, and another number of bins is another training.
    let rows = fs::read_to_string(folder.0.join("a.csv")).unwrap();
    fs::write(folder.0.join("a.csv"), rows + &"90,1,1\n".repeat(60)).unwrap();
    let resume = ["train", "t.yaml", "--quiet", "--resume", "--epochs", "3"];
    folder.succeed(&resume);
    assert_eq!(boundaries("out"), boundaries("two"));
    let other = [&resume[..], &["--set", "model.0.discretization.num_bins=3"]].concat();
    folder.fail(
        &other,
        2,
        &[
            "no boundaries of 3 bins are known for this layer",
            "train without --resume",
        ],
    );
}
