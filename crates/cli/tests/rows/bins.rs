//! Bins of numbers, whose boundaries are found in the training rows.

use std::path::Path;

use serde_json::Value;

use super::*;

fn model(num_bins: u64) -> String {
    format!(
        "model: [{{discretization: {{num_bins: {num_bins}, output_mode: one_hot}}}}]\noptimizer: sgd\nloss: huber\n"
    )
}

/// The boundaries of `Discretization.adapt`, of all rows but those that are held out.
#[test]
fn boundaries_are_those_that_keras_finds_in_the_training_rows() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/keras");
    let golden = fs::read(golden.join("categories.json")).unwrap();
    let golden: Value = serde_json::from_slice(&golden).unwrap();
    let records = golden["records"].as_array().unwrap().iter();
    let mut count = 0;
    for record in records.filter(|record| record["num_bins"].is_number()) {
        let values = record["values"]["data"].as_array().unwrap();
        let rows = values.iter().map(|value| format!("{value},0\n"));
        let held: String = (0..5).map(|i| format!("{}.5,0\n", 1000 + i)).collect();
        let text = rows.collect::<String>() + &held;
        let folder = Folder::new("bins", &[("v.csv", &text)]);
        let bins = record["num_bins"].as_u64().unwrap();
        let rows = folder.load_for(
            &model(bins),
            "csv: v.csv, header: false, test: {last: 5}",
            "",
        );
        let found = rows.unwrap().facts.scaling.bins;
        assert_eq!((found.len(), found[0].layer), (1, 0));
        let expected = record["bin_boundaries"]["data"].as_array().unwrap();
        let expected: Vec<f64> = expected
            .iter()
            .map(|value| value.as_f64().unwrap())
            .collect();
        let name = record["name"].as_str().unwrap();
        phalanx_testkit::assert_close(name, &found[0].boundaries, &expected, 1e-6);
        count += 1;
    }
    assert!(count > 10, "{count}");
}

#[test]
fn bins_that_cannot_be_are_refused_at_their_line() {
    let folder = Folder::new("bins-refused", &[]);
    for (layers, told) in [
        (
            "[{discretization: {num_bins: 1}}]",
            "`num_bins` of layer \"discretization\" is 1, expected a whole number from 2 to 65536",
        ),
        (
            "[{discretization: {num_bins: 4, bin_boundaries: [1]}}]",
            "`num_bins` finds the boundaries of bins, and `bin_boundaries` is there too",
        ),
        (
            "[{dense: {units: 2}}, {discretization: {num_bins: 4}}]",
            "this layer takes what another one gives",
        ),
        (
            "[{discretization: {num_bins: 100}}]",
            "100 bins of 20 values",
        ),
        ("[{discretization: {bins: 4}}]", "unknown field `bins`"),
    ] {
        let rest = format!("model: {layers}\noptimizer: sgd\nloss: huber\n");
        let said = folder.load_for(&rest, "csv: a.csv", "").unwrap_err();
        assert!(said.contains(told) && said.contains("t.yaml:2:"), "{said}");
    }
}
