//! Every metric against Keras, after each of several updates.

mod oracle;

use oracle::{Batch, array, name, snake_case};
use phalanx::losses::{BinaryCrossentropy, CategoricalCrossentropy};
use phalanx::metrics::{
    Accuracy, Auc, BinaryAccuracy, F1Score, MeanIou, Metric, MetricStateSpec, PearsonCorrelation,
    Precision, R2Average, R2Score, Recall, RootMeanSquaredError, SparseCategoricalAccuracy,
    SparseTopKCategoricalAccuracy, StatefulMetric,
};
use phalanx_graph::{DType, HostTensor, Shape, Tensor};
use phalanx_testkit::assert_close;
use serde_json::Value;

const TOLERANCE: f64 = 2e-6;

#[test]
fn results_are_those_of_keras() {
    let records = oracle::records("metrics.json");
    assert!(records.len() >= 150, "{} records", records.len());
    let cases: Vec<(Metric, &Value)> = records
        .iter()
        .map(|record| (configured(record), record))
        .collect();
    compare(&cases);
}

/// The sum of squared errors.
#[derive(Debug)]
struct Squares;

impl StatefulMetric for Squares {
    fn kind(&self) -> &'static str {
        "squares"
    }

    fn state(&self) -> Vec<MetricStateSpec> {
        let shape = Shape::scalar(DType::F64);
        vec![MetricStateSpec { name: "sum", shape }]
    }

    fn update(&self, y_true: &Tensor, y_pred: &Tensor, _: Option<&Tensor>) -> Vec<Tensor> {
        vec![(y_true.convert(y_pred.dtype()) - y_pred).square().sum_all()]
    }

    fn result(&self, state: &[Vec<f64>]) -> f64 {
        state[0][0]
    }
}

/// As a function of the program: each example is compared with its own prediction.
#[test]
fn a_metric_of_the_program_has_targets_in_the_dims_of_predictions() {
    let mut batch = Batch::default();
    let dims: [[&[usize]; 2]; 3] = [[&[3], &[3, 1]], [&[3, 1], &[3]], [&[3, 1], &[3, 1, 1]]];
    for [targets, predictions] in dims {
        let y_true = batch.input(HostTensor::new(targets, &[1i32, 2, 4]));
        let y_pred = batch.input(HostTensor::new(predictions, &[0.5f32, 4.0, 1.0]));
        batch.output(&Metric::from(Squares).update(&y_true, &y_pred, None)[0]);
    }
    for (sum, dims) in batch.run(&oracle::engine()).iter().zip(dims) {
        assert_eq!(sum.to_f64(), [13.25], "{dims:?}");
    }
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

/// A metric with targets, predictions, weights and the result by hand.
type Rare = (Metric, HostTensor, HostTensor, Option<[f32; 2]>, f64);

fn f32s(dims: &[usize], values: &[f32]) -> HostTensor {
    HostTensor::new(dims, values)
}

fn classes(values: &[i32]) -> HostTensor {
    HostTensor::new([values.len()], values)
}

fn rare_scores() -> [Rare; 4] {
    let logits = Metric::from(Accuracy).bound(
        Some(&BinaryCrossentropy::from_logits().into()),
        f32s(&[4, 1], &[0.0; 4]).shape(),
    );
    let scores = f32s(&[3, 2], &[0.1, 0.9, 0.8, 0.2, f32::NAN, f32::NAN]);
    [
        // 0.3 is a logit for yes.
        (
            logits,
            f32s(&[4, 1], &[1.0, 1.0, 0.0, 0.0]),
            f32s(&[4, 1], &[0.3, 2.0, -0.1, 0.1]),
            None,
            0.75,
        ),
        // A row of zeros has no answer.
        (
            F1Score::default().classes(2).into(),
            f32s(&[2, 2], &[1.0, 0.0, 0.0, 1.0]),
            f32s(&[2, 2], &[0.0, 0.0, 0.1, 0.9]),
            None,
            0.5,
        ),
        // Classes that are not there are wrong, scores that are no numbers in no top.
        (
            SparseCategoricalAccuracy.into(),
            classes(&[1, 2, 1]),
            scores.clone(),
            None,
            1.0 / 3.0,
        ),
        (
            SparseTopKCategoricalAccuracy::new(2).into(),
            classes(&[0, -1, 0]),
            scores,
            None,
            1.0 / 3.0,
        ),
    ]
}

/// Probabilities of logits: of a yes, or of classes.
fn logits() -> Vec<Rare> {
    let y_true = f32s(&[4, 1], &[1.0, 1.0, 0.0, 0.0]);
    let y_pred = f32s(&[4, 1], &[0.3, 2.0, -0.1, 0.1]);
    let loss = BinaryCrossentropy::from_logits().into();
    let binary = |metric: Metric| metric.bound(Some(&loss), y_pred.shape());
    let of_binary = [
        (binary(Precision::default().into()), 2.0 / 3.0),
        (binary(Recall::default().into()), 1.0),
        (binary(BinaryAccuracy::default().into()), 0.75),
        // The probability of 2 is 0.88; a threshold of logits is compared with them.
        (binary(Recall::at([0.6]).into()), 0.5),
        (binary(Recall::at([1.0]).into()), 0.5),
        (binary(Precision::at([0.0]).into()), 2.0 / 3.0),
        (binary(Auc::default().into()), 1.0),
        (Precision::default().from_logits().into(), 2.0 / 3.0),
        (Recall::at([0.6]).from_logits().into(), 0.5),
        (BinaryAccuracy::new(0.6).from_logits().into(), 0.75),
    ];
    // The probabilities of both are 1 in f32.
    let sure = (
        Metric::from(Precision::at([0.5]).top_k(1).from_logits()),
        f32s(&[1, 2], &[0.0, 1.0]),
        f32s(&[1, 2], &[18.0, 25.0]),
        None,
        1.0,
    );
    let one_hot = f32s(&[2, 3], &[1.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
    // The softmax of the first row is 0.67, 0.24 and 0.09; the second is certain of the last class.
    let scores = f32s(&[2, 3], &[2.0, 1.0, 0.0, 0.0, 1.0, 9.0]);
    let loss = CategoricalCrossentropy::from_logits().into();
    let classes = |metric: Metric| metric.bound(Some(&loss), scores.shape());
    let of_classes = [
        (classes(Precision::default().into()), 0.5),
        (classes(Recall::default().into()), 0.5),
        (classes(F1Score::default().threshold(0.5).into()), 1.0 / 3.0),
    ];
    let of_binary = of_binary
        .into_iter()
        .map(|(metric, result)| (metric, y_true.clone(), y_pred.clone(), None, result));
    let of_classes = of_classes
        .into_iter()
        .map(|(metric, result)| (metric, one_hot.clone(), scores.clone(), None, result));
    of_binary.chain(of_classes).chain([sure]).collect()
}

fn rare_thresholds_and_weights() -> [Rare; 4] {
    let auc = Metric::from(Auc::default().thresholds([0.25, 0.5, 0.75]));
    [
        // A score at the threshold is a no; an infinite one is in no top.
        (
            BinaryAccuracy::default().into(),
            f32s(&[2, 1], &[0.0, 0.0]),
            f32s(&[2, 1], &[0.5, 0.4]),
            None,
            1.0,
        ),
        (
            SparseTopKCategoricalAccuracy::new(1).into(),
            classes(&[0, 0]),
            f32s(&[2, 2], &[f32::INFINITY, 0.1, 0.9, 0.1]),
            None,
            0.5,
        ),
        // Rows of weight 0 are as if they were not there.
        (
            SparseCategoricalAccuracy.into(),
            classes(&[1, 1]),
            f32s(&[2, 2], &[0.1, 0.9, 0.9, 0.1]),
            Some([1.0, 0.0]),
            1.0,
        ),
        // Thresholds of one's own: three points of the curve are (0, 1/2), (0, 1/2), (1/2, 1).
        (
            auc,
            f32s(&[4], &[1.0, 1.0, 0.0, 0.0]),
            f32s(&[4], &[0.9, 0.3, 0.4, 0.25]),
            None,
            0.75 * 0.5 + 0.5,
        ),
    ]
}

/// A single output is the probability of class 1 of two, as Keras' `BinaryIoU` has it.
fn regions_of_one_output() -> Vec<Rare> {
    let iou = || Metric::from(MeanIou::default());
    let of = |y_pred: &HostTensor| iou().bound(None, y_pred.shape());
    let y_true = f32s(&[4, 1], &[0.0, 1.0, 0.0, 1.0]);
    let y_pred = f32s(&[4, 1], &[0.1, 0.2, 0.4, 0.5]);
    let logits = f32s(&[4, 1], &[-2.0, -1.0, -0.1, 0.0]);
    let loss = BinaryCrossentropy::from_logits().into();
    let of_logits = iou().bound(Some(&loss), logits.shape());
    // Two pictures of two places; the second has no weight.
    let pictures = f32s(&[2, 1, 2, 1], &[0.1, 0.9, 0.9, 0.9]);
    let none = f32s(&[2, 1], &[0.1, 0.2]);
    // Classes 0 and 1: two of three places, one of two.
    let mean = f64::midpoint(2.0 / 3.0, 0.5);
    vec![
        (of(&y_pred), y_true.clone(), y_pred, None, mean),
        (of_logits, y_true, logits, None, mean),
        (
            of(&pictures),
            HostTensor::new([2, 1, 2], &[0i32, 1, 0, 0]),
            pictures,
            Some([1.0, 0.0]),
            1.0,
        ),
        (of(&none), f32s(&[2, 1], &[1.0, 1.0]), none, None, 0.0),
    ]
}

/// Numbers far from 0, and equal ones.
fn rare_regressions() -> [Rare; 6] {
    let far = [1e6f32, 1e6 + 1.0, 1e6 + 2.0, 1e6 + 3.0];
    let near = [1e6f32, 1e6 + 1.0, 1e6 + 2.0, 1e6 + 2.0];
    let column = |values: &[f32]| f32s(&[values.len(), 1], values);
    let of_column = |score: R2Score| Metric::from(score).bound(None, f32s(&[1, 1], &[0.0]).shape());
    let r2 = || of_column(R2Score::default());
    let by_variance = of_column(R2Score::default().average(R2Average::VarianceWeightedAverage));
    let rows = |value: f32| f32s(&[2, 10], &[value; 20]);
    [
        // Their means need not be these numbers in f32.
        (PearsonCorrelation.into(), rows(0.1), rows(0.7), None, 0.0),
        // Their variance is 5, of which sums in f32 would have nothing left.
        (r2(), column(&far), column(&near), None, 0.8),
        // Equal targets are explained by exact predictions alone.
        (r2(), column(&[0.1; 3]), column(&[0.1; 3]), None, 1.0),
        (r2(), column(&[0.1; 3]), column(&[0.1, 0.2, 0.1]), None, 0.0),
        (by_variance, column(&[0.1; 3]), column(&[0.1; 3]), None, 1.0),
        (
            RootMeanSquaredError.into(),
            column(&[1.0, 0.0]),
            column(&[4.0, 5.0]),
            Some([1.0, 0.0]),
            3.0,
        ),
    ]
}

/// What the records do not hold.
#[test]
fn rare_inputs_count_as_documented() {
    let cases = [
        &rare_scores()[..],
        &rare_thresholds_and_weights(),
        &rare_regressions(),
    ]
    .concat();
    let cases = [cases, logits(), regions_of_one_output()].concat();
    let mut batch = Batch::default();
    for (metric, y_true, y_pred, weight, _) in &cases {
        let (y_true, y_pred) = (batch.input(y_true.clone()), batch.input(y_pred.clone()));
        let weight = weight.map(|weight: [f32; 2]| batch.input(HostTensor::new([2], &weight)));
        for delta in metric.update(&y_true, &y_pred, weight.as_ref()) {
            batch.output(&delta);
        }
    }
    let mut deltas = batch.run(&oracle::engine()).into_iter();
    for (metric, .., expected) in cases {
        let state: Vec<HostTensor> = deltas.by_ref().take(metric.state().len()).collect();
        assert_close(
            metric.name(),
            &[metric.result(&state)],
            &[expected],
            TOLERANCE,
        );
    }
}

/// An example of weight 0 counts nothing, whatever its target and its prediction are.
#[test]
fn what_has_no_weight_may_be_no_number() {
    let weight = HostTensor::new([3], &[1.0f32, 0.0, 2.0]);
    let mut batch = Batch::default();
    let mut metrics = Vec::new();
    // Of labels and steps, which have dims of their own.
    let kinds = Metric::KINDS.into_iter().filter(|kind| *kind != "ctc");
    for kind in kinds {
        let is_sparse =
            kind.starts_with("sparse") || kind.contains("generalized") || kind == "circle";
        let settings = match kind.split_once("_at_") {
            Some((_, bound)) => serde_json::json!({bound: 0.5}),
            None => serde_json::json!({}),
        };
        let metric = Metric::from_config(kind, &settings).unwrap();
        for [target, score] in [[0.0, 0.5], [f32::NAN, 0.5], [0.0, f32::NAN]] {
            let y_pred = HostTensor::new([3, 2], &[0.3, 0.6, score, 0.2, 0.1, 0.8]);
            let y_true = match is_sparse {
                true => HostTensor::new([3], &[1i32, 0, 1]),
                false => HostTensor::new([3, 2], &[0.0, 1.0, target, 0.5, 1.0, 0.0]),
            };
            let metric = metric.clone().bound(None, y_pred.shape());
            let inputs = [y_true, y_pred, weight.clone()].map(|value| batch.shared(value));
            for delta in metric.update(&inputs[0], &inputs[1], Some(&inputs[2])) {
                batch.output(&delta);
            }
            metrics.push(metric);
        }
    }
    let mut deltas = batch.run(&oracle::engine()).into_iter();
    let results: Vec<f64> = (metrics.iter())
        .map(|metric| {
            let state: Vec<HostTensor> = deltas.by_ref().take(metric.state().len()).collect();
            metric.result(&state)
        })
        .collect();
    for (metric, results) in metrics.chunks(3).zip(results.chunks(3)) {
        let what = metric[0].name();
        assert!(results[0].is_finite(), "{what}");
        assert_close(what, &results[1..], &[results[0]; 2], 0.0);
    }
}

fn configured(record: &Value) -> Metric {
    let kind = match record["metric"].as_str().unwrap() {
        "AUC" => "auc".to_owned(),
        "Accuracy" => "equality".to_owned(),
        "MeanIoU" | "OneHotMeanIoU" | "IoU" | "OneHotIoU" => "mean_io_u".to_owned(),
        "BinaryIoU" => "binary_io_u".to_owned(),
        "FBetaScore" => "fbeta_score".to_owned(),
        kind => snake_case(kind),
    };
    let mut config = record["config"].clone();
    // Ours tells by the dims whether targets are rows, and takes scores.
    for field in ["sparse_y_true", "sparse_y_pred"] {
        config.as_object_mut().unwrap().remove(field);
    }
    let shape = array(&record["updates"][0]["y_pred"]).unwrap();
    let metric = Metric::from_config(&kind, &config).unwrap();
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
