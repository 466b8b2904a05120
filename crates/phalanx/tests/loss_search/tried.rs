//! What ours make of a case, beside what Keras answers.

use phalanx::losses::{BinaryCrossentropy, CategoricalCrossentropy, Loss, LossReduction};
use phalanx::metrics::{Accuracy, Metric};
use phalanx_graph::{HostTensor, gradients};
use serde_json::Value;

use crate::inputs::{Inputs, numbers};

/// Keras has constants of f32 in `log_cosh`, and results of f32 in `mean_io_u`.
const TOLERANCE: f64 = 1e-6;

/// Fails with what differs.
pub(crate) fn compare(case: &Value) -> Result<(), String> {
    match case["case"].as_str().unwrap() {
        "loss" => compare_loss(case),
        _ => compare_metric(case),
    }
}

fn compare_loss(case: &Value) -> Result<(), String> {
    let loss = Loss::from_config(case["kind"].as_str().unwrap(), &case["config"]);
    let loss = loss.map_err(|error| error.to_string())?;
    let inputs = Inputs::new(case);
    let (y_true, y_pred) = (&inputs.y_true, &inputs.y_pred);
    let value = loss.reduced(y_true, y_pred, inputs.weight.as_ref(), reduction(case));
    let gradient = gradients(&value.sum_all(), &[y_pred]).swap_remove(0);
    let gradient = gradient.ok_or("no gradient")?;
    let found = inputs.run(&[value, gradient])?;
    differ("value", &found[0], &case["value"])?;
    differ("gradient", &found[1], &case["gradient"])
}

fn reduction(case: &Value) -> LossReduction {
    match case["reduction"].as_str().unwrap() {
        "sum_over_batch_size" => LossReduction::SumOverBatchSize,
        "sum" => LossReduction::Sum,
        "mean_with_sample_weight" => LossReduction::MeanWithSampleWeight,
        _ => LossReduction::None,
    }
}

fn compare_metric(case: &Value) -> Result<(), String> {
    let metric = Metric::from_config(case["kind"].as_str().unwrap(), &case["config"]);
    let mut metrics = vec![metric.map_err(|error| error.to_string())?];
    if case["is_accuracy"] == true {
        metrics.push(Accuracy.into());
    }
    metrics
        .into_iter()
        .try_for_each(|metric| compare_updates(metric, case))
}

/// Compares the result after each batch.
fn compare_updates(mut metric: Metric, case: &Value) -> Result<(), String> {
    let loss: Option<Loss> = match case["link"].as_str() {
        Some("sigmoid") => Some(BinaryCrossentropy::from_logits().into()),
        Some(_) => Some(CategoricalCrossentropy::from_logits().into()),
        None => None,
    };
    let mut state: Vec<Vec<f64>> = Vec::new();
    for (i, update) in case["updates"].as_array().unwrap().iter().enumerate() {
        let inputs = Inputs::new(update);
        metric = metric.bound(loss.as_ref(), &inputs.y_pred.shape());
        let deltas = metric.update(&inputs.y_true, &inputs.y_pred, inputs.weight.as_ref());
        let deltas = inputs.run(&deltas)?;
        match i {
            0 => state = deltas,
            _ => add(&mut state, &deltas),
        }
        let arrays = state.iter().zip(metric.state());
        let arrays: Vec<HostTensor> = arrays
            .map(|(values, spec)| HostTensor::new(spec.shape.dims, values))
            .collect();
        let what = format!("{} after batch {i}", metric.name());
        differ(&what, &metric.values(&arrays), &update["result"])?;
    }
    Ok(())
}

fn add(state: &mut [Vec<f64>], deltas: &[Vec<f64>]) {
    for (sums, deltas) in state.iter_mut().zip(deltas) {
        for (sum, delta) in sums.iter_mut().zip(deltas) {
            *sum += delta;
        }
    }
}

/// Fails where a number is not the expected one; what is null is not compared.
fn differ(what: &str, found: &[f64], expected: &Value) -> Result<(), String> {
    let expected = numbers(expected);
    let is_close = |(&found, &expected): (&f64, &f64)| {
        expected.is_nan() || (found - expected).abs() <= TOLERANCE * expected.abs().max(1.0)
    };
    if found.len() == expected.len() && found.iter().zip(&expected).all(is_close) {
        return Ok(());
    }
    Err(format!("{what}: found {found:?}, Keras has {expected:?}"))
}
