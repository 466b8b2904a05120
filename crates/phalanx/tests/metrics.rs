//! Every metric against Keras, after each of several updates.

mod oracle;

use oracle::{Batch, array, assert_close, name, snake_case};
use phalanx::metrics::{Accuracy, Metric};
use phalanx_graph::HostTensor;
use serde_json::Value;

const TOLERANCE: f64 = 2e-6;

#[test]
fn results_are_those_of_keras() {
    let records = oracle::records("metrics.json");
    assert!(records.len() >= 63, "{} records", records.len());
    let cases: Vec<(Metric, &Value)> = records
        .iter()
        .map(|record| (configured(record), record))
        .collect();
    compare(&cases);
}

/// `metrics=["accuracy"]` finds the accuracy that fits the shapes.
#[test]
fn accuracy_is_resolved_from_the_shapes() {
    let records = oracle::records("metrics.json");
    let chosen = [
        "BinaryAccuracy",
        "CategoricalAccuracy",
        "SparseCategoricalAccuracy",
    ];
    let cases: Vec<(Metric, &Value)> = records
        .iter()
        .filter(|record| chosen.contains(&record["metric"].as_str().unwrap()))
        .filter(|record| record["config"].as_object().unwrap().is_empty())
        .filter(|record| name(record) != "binary_accuracy_columns")
        .map(|record| (Accuracy.into(), record))
        .collect();
    assert!(cases.len() >= 8, "{} cases", cases.len());
    compare(&cases);
}

fn configured(record: &Value) -> Metric {
    let kind = match record["metric"].as_str().unwrap() {
        "AUC" => "auc".to_owned(),
        "Accuracy" => "equality".to_owned(),
        kind => snake_case(kind),
    };
    let shape = array(&record["updates"][0]["y_pred"]).unwrap();
    let metric = Metric::from_config(&kind, &record["config"]).unwrap();
    metric.bound(None, shape.shape())
}

fn compare(cases: &[(Metric, &Value)]) {
    let mut batch = Batch::default();
    for (metric, record) in cases {
        for update in updates(record) {
            trace(&mut batch, metric, update);
        }
    }
    let mut deltas = batch.run(&oracle::engine()).into_iter();
    for (metric, record) in cases {
        let specs = metric.state();
        let zeros = specs.iter().map(|spec| vec![0.0; spec.shape.len()]);
        let mut state: Vec<Vec<f64>> = zeros.collect();
        for (i, update) in updates(record).iter().enumerate() {
            for (state, delta) in state.iter_mut().zip(&mut deltas) {
                add(state, &delta.to_f64());
            }
            let what = format!("{}, update {i}", name(record));
            check(&what, metric, &state, &update["result"]);
        }
    }
    assert!(deltas.next().is_none());
}

fn updates(record: &Value) -> &[Value] {
    record["updates"].as_array().unwrap()
}

fn trace(batch: &mut Batch, metric: &Metric, update: &Value) {
    let y_pred = batch.input(array(&update["y_pred"]).unwrap());
    let y_true = array(&update["y_true"]).map_or_else(|| y_pred.clone(), |y| batch.input(y));
    let weight = array(&update["sample_weight"]).map(|weight| batch.input(weight));
    let deltas = metric.update(&y_true, &y_pred, weight.as_ref());
    let specs = metric.state();
    assert_eq!(deltas.len(), specs.len(), "{}", metric.name());
    for (delta, spec) in deltas.iter().zip(&specs) {
        assert_eq!(delta.shape(), spec.shape, "{} {}", metric.name(), spec.name);
        batch.output(delta);
    }
}

fn add(state: &mut [f64], delta: &[f64]) {
    for (sum, delta) in state.iter_mut().zip(delta) {
        *sum += delta;
    }
}

fn check(what: &str, metric: &Metric, state: &[Vec<f64>], expected: &Value) {
    let state: Vec<HostTensor> = state
        .iter()
        .zip(metric.state())
        .map(|(values, spec)| HostTensor::new(spec.shape.dims, values))
        .collect();
    let expected = array(expected).unwrap().to_f64();
    assert_close(what, &metric.values(&state), &expected, TOLERANCE);
    let mean = expected.iter().sum::<f64>() / expected.len() as f64;
    assert_close(what, &[metric.result(&state)], &[mean], TOLERANCE);
}
