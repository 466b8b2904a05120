//! Every loss and its gradient against Keras, weighted and reduced in every way.

mod oracle;

use oracle::{Batch, array, name, snake_case};
use phalanx::losses::{Circle, Ctc, Hinge, Loss, LossReduction, SparseCategoricalCrossentropy};
use phalanx::metrics::Metric;
use phalanx_graph::{Graph, HostTensor, Shape, Tensor, gradients};
use phalanx_testkit::assert_close;
use serde_json::Value;

const TOLERANCE: f64 = 2e-6;

#[test]
fn losses_and_gradients_are_those_of_keras() {
    let engine = oracle::engine();
    let records = oracle::records("losses.json");
    assert!(records.len() >= 1100, "{} records", records.len());
    let mut batch = Batch::default();
    for record in &records {
        trace(&mut batch, record);
    }
    let results = batch.run(&engine);
    for (record, results) in records.iter().zip(results.chunks(2)) {
        check(record, "value", &results[0]);
        check(record, "gradient", &results[1]);
    }
}

/// The losses whose targets are numbers: integers are never NaN, and have dims of their own.
fn of_numbers() -> Vec<&'static str> {
    let kinds = Loss::KINDS.into_iter();
    kinds
        .filter(|kind| {
            let is_of_classes = kind.starts_with("sparse") || kind.contains("generalized");
            !is_of_classes && !["ctc", "circle"].contains(kind)
        })
        .collect()
}

/// The second example weighs nothing: its target may be anything, and the others' numbers stay.
#[test]
fn a_target_of_weight_zero_may_be_no_number() {
    let engine = oracle::engine();
    let mut batch = Batch::default();
    let weight = batch.shared(HostTensor::new([3], &[1.0f32, 0.0, 2.0]));
    let y_pred = batch.shared(HostTensor::new([3, 2], &[0.3f32, 0.6, 0.9, 0.2, 0.1, 0.8]));
    let kinds = of_numbers();
    for kind in &kinds {
        let loss = Loss::from_config(kind, &serde_json::json!({})).unwrap();
        for spoilt in [0.5, f32::NAN, f32::INFINITY] {
            let y_true = HostTensor::new([3, 2], &[0.0, 1.0, spoilt, 0.5, 1.0, 0.0]);
            let y_true = batch.shared(y_true);
            let value = loss.reduced(&y_true, &y_pred, Some(&weight), LossReduction::Sum);
            let gradient = gradients(&value, &[&y_pred]).swap_remove(0);
            batch.output(&value);
            batch.output(&gradient.unwrap());
        }
    }
    let results = batch.run(&engine);
    for (kind, results) in kinds.iter().zip(results.chunks(6)) {
        let [value, gradient] = [&results[0], &results[1]].map(HostTensor::to_f64);
        assert_eq!(gradient[2..4], [0.0; 2], "{kind}");
        assert!(gradient[0] != 0.0 && value[0].is_finite(), "{kind}");
        for spoilt in results[2..].chunks(2) {
            assert_close(kind, &spoilt[0].to_f64(), &value, 0.0);
            assert_close(kind, &spoilt[1].to_f64(), &gradient, 0.0);
        }
    }
}

/// As in Keras, which evens out a last dim of 1, each example is compared with its own prediction, in a metric too.
#[test]
fn a_function_has_targets_in_the_dims_of_predictions() {
    let mut batch = Batch::default();
    let squares = |y_true: &Tensor, y_pred: &Tensor| {
        let squares = (y_true.convert(y_pred.dtype()) - y_pred).square();
        squares.mean(&(1..squares.rank()).collect::<Vec<_>>())
    };
    let loss = Loss::custom("squares", squares);
    let dims: [[&[usize]; 2]; 5] = [
        [&[3, 1], &[3, 1]],
        [&[3], &[3, 1]],
        [&[3, 1], &[3]],
        [&[3, 1], &[3, 1, 1]],
        [&[3, 1, 1], &[3, 1]],
    ];
    for [targets, predictions] in dims {
        let y_true = batch.input(HostTensor::new(targets, &[1i32, 2, 4]));
        let y_pred = batch.input(HostTensor::new(predictions, &[0.5f32, 4.0, 1.0]));
        batch.output(&loss.per_example(&y_true, &y_pred));
        let [sum, count] = &Metric::custom("squares", squares).update(&y_true, &y_pred, None)[..]
        else {
            panic!("a sum and a count");
        };
        batch.output(&(sum / count.convert(sum.dtype())));
    }
    let results = batch.run(&oracle::engine());
    for (dims, results) in dims.iter().zip(results.chunks(2)) {
        assert_eq!(results[0].to_f64(), [0.25, 4.0, 9.0], "{dims:?}");
        assert_close("metric", &results[1].to_f64(), &[13.25 / 3.0], 1e-6);
    }
}

/// Of one rank it is meant: a prediction against several targets, each example against all of the batch.
#[test]
fn a_function_may_give_more_numbers_than_there_are_predictions() {
    let mut batch = Batch::default();
    let against_all = Loss::custom("against_all", |y_true, y_pred| {
        y_pred.matmul(&y_true.transpose(&[1, 0]))
    });
    let difference = Loss::custom("difference", |y_true, y_pred| y_true - y_pred);
    let y_true = batch.input(HostTensor::new([2, 1], &[1.0f32, 2.0]));
    let y_pred = batch.input(HostTensor::new([2, 1], &[3.0f32, 5.0]));
    batch.output(&against_all.per_example(&y_true, &y_pred));
    let several = batch.input(HostTensor::new([2, 3], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]));
    batch.output(&difference.per_example(&several, &y_pred));
    let results = batch.run(&oracle::engine());
    assert_eq!(results[0].to_f64(), [3.0, 6.0, 5.0, 10.0]);
    assert_eq!(results[1].to_f64(), [-2.0, -1.0, 0.0, -1.0, 0.0, 1.0]);
}

/// Targets `[rows, C]` less predictions `[rows, 1, C]` are numbers of each two examples, and no more than predictions.
#[test]
fn targets_that_meet_the_predictions_of_others_are_refused() {
    let loss = Loss::custom("own", |y_true, y_pred| {
        (y_true - y_pred).abs().mean(&[y_pred.rank() - 1])
    });
    let given = |y_true: &[usize], y_pred: &[usize]| {
        let graph = Graph::new();
        let y_true = graph.parameter("y_true", Shape::f32(y_true));
        let values = loss.per_example(&y_true, &graph.parameter("y_pred", Shape::f32(y_pred)));
        let dims = values.dims();
        graph
            .error()
            .map_or(Ok(dims), |error| Err(error.to_string()))
    };
    let broadcast = [2, 3, 5].map(|rows| (vec![rows, 5], vec![rows, 1, 5]));
    // As steps of the predictions.
    let steps = (vec![4, 3], vec![4, 4, 3]);
    for (y_true, y_pred) in broadcast.into_iter().chain([steps]) {
        let error = given(&y_true, &y_pred).unwrap_err();
        let expected = "expected a number for each example";
        assert!(error.contains(expected), "{error}");
    }
    // As many steps as rows, and targets that are the same for all steps.
    assert_eq!(given(&[4, 4, 3], &[4, 4, 3]), Ok(vec![4, 4]));
    assert_eq!(given(&[4, 1, 3], &[4, 4, 3]), Ok(vec![4, 4]));
}

/// Each target by itself: what a replica makes of its rows does not depend on the others'.
#[test]
fn a_hinge_takes_0_as_minus_1_beside_any_other_target() {
    let mut batch = Batch::default();
    let y_true = batch.input(HostTensor::new([3, 1], &[0.0f32, -1.0, 1.0]));
    let y_pred = batch.input(HostTensor::new([3, 1], &[0.25f32, 0.25, 0.25]));
    batch.output(&Loss::from(Hinge).per_example(&y_true, &y_pred));
    let losses = batch.run(&oracle::engine()).swap_remove(0).to_f64();
    assert_eq!(losses, [1.25, 1.25, 0.75]);
}

/// The second is alone in its class, and the last weighs nothing: neither counts in the mean, and the last is not compared with the others.
#[test]
fn examples_are_compared_with_those_that_count() {
    let mut batch = Batch::default();
    let loss = Loss::from(Circle::default().gamma(2.0));
    let rows = [[1.0f32, 0.0], [0.0, 1.0], [0.8, 0.6], [f32::NAN, 0.3]];
    for count in [4, 3] {
        let y_true = batch.shared(HostTensor::new([count], &[0i32, 7, 0, 7][..count]));
        let y_pred = HostTensor::new([count, 2], &rows.as_flattened()[..2 * count]);
        let y_pred = batch.shared(y_pred);
        let weight = HostTensor::new([count], &[1.0f32, 1.0, 3.0, 0.0][..count]);
        let weight = batch.shared(weight);
        let mean = LossReduction::SumOverBatchSize;
        let value = loss.reduced(&y_true, &y_pred, Some(&weight), mean);
        let gradient = gradients(&value, &[&y_pred]).swap_remove(0);
        batch.output(&value);
        batch.output(&gradient.unwrap());
    }
    let results = batch.run(&oracle::engine());
    let results: Vec<Vec<f64>> = results.iter().map(HostTensor::to_f64).collect();
    // Distances 0.2 of a class, and 1 and 0.4 of two.
    let of = |other: f64| {
        let same = (0.4 + 0.2) * (0.2 - 0.4);
        let sum = 2.0 * (same + (1.4 - other) * (0.6 - other));
        sum.exp().ln_1p()
    };
    let expected = (of(1.0) + 3.0 * of(0.4)) / 2.0;
    assert_close("mean", &results[0], &[expected], TOLERANCE);
    assert_close("mean of three", &results[2], &[expected], TOLERANCE);
    assert_eq!(results[1][6..], [0.0; 2]);
    assert_close("gradient", &results[1][..6], &results[3], TOLERANCE);
    assert!(
        results[3]
            .iter()
            .all(|slope| slope.is_finite() && *slope != 0.0)
    );
}

/// Targets and predictions of one number each may come without a second dimension.
#[test]
fn vectors_are_as_columns() {
    let mut batch = Batch::default();
    let weight = batch.shared(HostTensor::new([3], &[1.0f32, 0.25, 2.0]));
    let kinds = of_numbers();
    for kind in &kinds {
        let loss = Loss::from_config(kind, &serde_json::json!({})).unwrap();
        for dims in [&[3, 1][..], &[3]] {
            let y_true = batch.shared(HostTensor::new(dims, &[1.0f32, 0.0, 1.0]));
            let y_pred = batch.shared(HostTensor::new(dims, &[0.3f32, 0.6, 0.9]));
            let value = loss.reduced(&y_true, &y_pred, Some(&weight), LossReduction::Sum);
            let gradient = gradients(&value, &[&y_pred]).swap_remove(0);
            batch.output(&value);
            batch.output(&gradient.unwrap());
        }
    }
    let results = batch.run(&oracle::engine());
    for (kind, results) in kinds.iter().zip(results.chunks(4)) {
        let [value, gradient, of_vectors, gradient_of_vectors] = results else {
            panic!("four results of each loss");
        };
        assert_close(kind, &of_vectors.to_f64(), &value.to_f64(), TOLERANCE);
        let (found, expected) = (gradient_of_vectors.to_f64(), gradient.to_f64());
        assert_close(kind, &found, &expected, TOLERANCE);
    }
}

fn trace(batch: &mut Batch, record: &Value) {
    let (loss, reduction) = configured(record);
    let y_true = batch.shared(array(&record["y_true"]).unwrap());
    let y_pred = batch.shared(array(&record["y_pred"]).unwrap());
    let weight = array(&record["sample_weight"]).map(|weight| batch.shared(weight));
    let value = loss.reduced(&y_true, &y_pred, weight.as_ref(), reduction);
    let gradient = gradients(&value.sum_all(), &[&y_pred]).swap_remove(0);
    batch.output(&value);
    batch.output(&gradient.unwrap());
}

fn configured(record: &Value) -> (Loss, LossReduction) {
    let mut config = record["config"].clone();
    let reduction = config.as_object_mut().unwrap().remove("reduction").unwrap();
    let reduction = match reduction.as_str().unwrap() {
        "sum_over_batch_size" => LossReduction::SumOverBatchSize,
        "sum" => LossReduction::Sum,
        "mean_with_sample_weight" => LossReduction::MeanWithSampleWeight,
        "none" => LossReduction::None,
        other => panic!("reduction {other}"),
    };
    // All dims but the first, which Keras has to be given, is what ours do by themselves.
    let rank = array(&record["y_true"]).unwrap().dims().len();
    if config["axis"]
        .as_array()
        .is_some_and(|axis| axis.len() == rank - 1)
    {
        config.as_object_mut().unwrap().remove("axis");
    }
    let kind = match record["loss"].as_str().unwrap() {
        "KLDivergence" => "kl_divergence".to_owned(),
        "CTC" => "ctc".to_owned(),
        kind => snake_case(kind),
    };
    (Loss::from_config(&kind, &config).unwrap(), reduction)
}

fn check(record: &Value, field: &str, got: &HostTensor) {
    let expected = array(&record[field]).unwrap();
    let what = format!("{} {field}", name(record));
    assert_eq!(got.dims(), expected.dims(), "{what}");
    assert_close(&what, &got.to_f64(), &expected.to_f64(), TOLERANCE);
}

#[test]
fn a_class_that_is_not_there_gives_nan() {
    let mut batch = Batch::default();
    let y_true = batch.input(HostTensor::new([3], &[0_i32, 2, -1]));
    let y_pred = batch.input(HostTensor::new([3, 2], &[0.0_f32; 6]));
    let loss = Loss::from(SparseCategoricalCrossentropy::from_logits());
    batch.output(&loss.per_example(&y_true, &y_pred));
    let values = batch.run(&oracle::engine()).swap_remove(0).to_f64();
    assert_close("class 0 of 2", &values[..1], &[2.0_f64.ln()], TOLERANCE);
    assert!(values[1].is_nan() && values[2].is_nan(), "{values:?}");
}

/// Of so many classes the logit of one is gathered; the answer is that of few.
#[test]
fn many_classes_are_as_few() {
    const CLASSES: usize = 1500;
    let labels = [3_i32, 1499, 3];
    let value = |i: usize| ((i * 7919) % 1000) as f32 / 250.0 - 2.0;
    let logits: Vec<f32> = (0..3 * CLASSES).map(value).collect();
    let mut batch = Batch::default();
    let y_true = batch.input(HostTensor::new([3], &labels));
    let y_pred = batch.input(HostTensor::new([3, CLASSES], &logits));
    let loss = Loss::from(SparseCategoricalCrossentropy::from_logits());
    let losses = loss.per_example(&y_true, &y_pred);
    batch.output(&losses);
    batch.output(
        &gradients(&losses.sum_all(), &[&y_pred])
            .swap_remove(0)
            .unwrap(),
    );
    let results = batch.run(&oracle::engine());
    let (mut values, mut slopes) = (Vec::new(), Vec::new());
    for (row, &label) in logits.chunks(CLASSES).zip(&labels) {
        let total: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
        values.push(total.ln() - f64::from(row[label as usize]));
        slopes.extend(
            row.iter()
                .enumerate()
                .map(|(class, &x)| f64::from(x).exp() / total - f64::from(class == label as usize)),
        );
    }
    assert_close("losses", &results[0].to_f64(), &values, TOLERANCE);
    assert_close("gradients", &results[1].to_f64(), &slopes, TOLERANCE);
}

/// The probability of the labels by the ways through all steps, one at a time: repeated classes become one, and blanks are left out.
fn by_all_ways(logits: &[f64], classes: usize, labels: &[usize]) -> f64 {
    let steps = logits.len() / classes;
    let total = |step: &[f64]| step.iter().map(|x| x.exp()).sum::<f64>();
    let mut sum = 0.0;
    for way in 0..classes.pow(steps as u32) {
        let way: Vec<usize> = (0..steps as u32)
            .map(|step| way / classes.pow(step) % classes)
            .collect();
        let mut read = way.clone();
        read.dedup();
        read.retain(|&class| class != 0);
        if read == labels {
            let rows = logits.chunks(classes).zip(&way);
            sum += rows
                .map(|(row, &class)| row[class].exp() / total(row))
                .product::<f64>();
        }
    }
    sum
}

/// Losses and derivatives are those of all ways; where there is none, also by a class that is out of the question, the loss is infinite
/// and moves nothing.
#[test]
fn labels_are_as_likely_as_all_ways_to_them() {
    const CLASSES: usize = 3;
    let labels = [
        [1, 2, 0],
        [1, 1, 0],
        [2, 0, 0],
        [0, 0, 0],
        [2, 2, 2],
        [2, 0, 0],
    ];
    let value = |i: usize| ((i * 7919) % 1000) as f64 / 250.0 - 2.0;
    let mut logits: Vec<f64> = (0..6 * 4 * CLASSES).map(value).collect();
    for step in 0..4 {
        logits[(5 * 4 + step) * CLASSES + 2] = f64::NEG_INFINITY;
    }
    let mut batch = Batch::default();
    let given: Vec<f32> = logits.iter().map(|&x| x as f32).collect();
    let y_true = batch.input(HostTensor::new([6, 3], labels.as_flattened()));
    let y_pred = batch.input(HostTensor::new([6, 4, CLASSES], &given));
    let losses = Loss::from(Ctc).per_example(&y_true, &y_pred);
    let gradient = gradients(&losses.sum_all(), &[&y_pred]).swap_remove(0);
    batch.output(&losses);
    batch.output(&gradient.unwrap());
    let results = batch.run(&oracle::engine());
    let [found, slopes] = [&results[0], &results[1]].map(HostTensor::to_f64);
    for (row, labels) in labels.iter().enumerate() {
        let logits = &logits[row * 4 * CLASSES..][..4 * CLASSES];
        let slopes = &slopes[row * 4 * CLASSES..][..4 * CLASSES];
        let labels: Vec<usize> = labels
            .iter()
            .filter(|&&label| label > 0)
            .map(|&label| label as usize)
            .collect();
        let loss = |logits: &[f64]| -by_all_ways(logits, CLASSES, &labels).ln();
        if row > 3 {
            assert_eq!(found[row], f64::INFINITY, "{labels:?}");
            assert_eq!(slopes, [0.0; 4 * CLASSES], "{labels:?}");
            continue;
        }
        assert_close("loss", &found[row..=row], &[loss(logits)], TOLERANCE);
        let slope = |place: usize| {
            let moved = |by: f64| {
                let mut logits = logits.to_vec();
                logits[place] += by;
                loss(&logits)
            };
            (moved(1e-5) - moved(-1e-5)) / 2e-5
        };
        let expected: Vec<f64> = (0..4 * CLASSES).map(slope).collect();
        assert_close("gradient", slopes, &expected, TOLERANCE);
    }
}

#[test]
fn labels_that_are_no_class_give_nan() {
    let mut batch = Batch::default();
    let y_true = batch.input(HostTensor::new([3, 2], &[1_i32, 0, 1, 3, -1, 1]));
    let y_pred = batch.input(HostTensor::new([3, 2, 3], &[0.0_f32; 18]));
    batch.output(&Loss::from(Ctc).per_example(&y_true, &y_pred));
    let values = batch.run(&oracle::engine()).swap_remove(0).to_f64();
    assert!(values[0].is_finite(), "{values:?}");
    assert!(values[1].is_nan() && values[2].is_nan(), "{values:?}");
}
