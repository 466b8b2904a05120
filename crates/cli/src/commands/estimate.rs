//! `phalanx estimate train.yaml`.

use phalanx::data::Batch;
use phalanx::fit::{Estimate, LargestBatch};
use phalanx::nn::Model;
use phalanx_yaml::Bytes;
use serde_json::json;

use super::Context;
use super::buckets;
use super::session::{self, failed};
use crate::args::{EstimateArgs, Progress};
use crate::config::TrainConfig;
use crate::failure::{Exit, Failure};
use crate::{model, rows, texts};

/// Prints what a training step takes, without training, and without memory for the model.
pub(crate) fn run(context: &mut Context, args: &EstimateArgs) -> Result<(), Failure> {
    let mut config = session::config(&args.file, &args.set)?;
    if let Some(size) = args.batch_size {
        config.fit.batch_size = size.get();
        config.fit.is_per_replica = false;
    }
    let is_per_replica = config.fit.is_per_replica;
    buckets::fetch(context, &mut config)?;
    let rows = rows::load(&config).map_err(session::wrong)?;
    let model = model::of_data(&config, &rows.facts).map_err(session::wrong)?;
    let step = session::estimator(context, &mut config, model)?;
    let batch = first_batch(&config, step.model(), &rows)?;
    let estimate = step.estimate(&batch, config.fit.batch_size);
    let estimate = estimate.map_err(|error| failed(&error))?;
    let largest = args.memory.map(|memory| {
        let found = step.largest_batch(&batch, memory.0);
        found.map(|found| (memory, found))
    });
    let largest = largest.transpose().map_err(|error| failed(&error))?;
    let (parameters, precision) = (parameters(step.model()), config.precision.name());
    if context.global.progress == Progress::Json {
        let batch_size = config.fit.batch_size;
        let by_length = texts::by_length(&config, &rows.train, None);
        let batches = match by_length.map_err(|error| failed(&error))? {
            Some(batches) => batches.len(),
            None => rows.train.len().map(|rows| rows.div_ceil(batch_size)),
        };
        let mut event = event(parameters, precision, &estimate, largest.as_ref());
        event["per_replica"] = json!(is_per_replica);
        event["epochs"] = json!(config.fit.epochs);
        event["steps_per_epoch"] = json!(config.fit.steps_per_epoch);
        event["batches"] = json!(batches);
        return context.output.line(event);
    }
    context
        .output
        .line(text(parameters, precision, &estimate))?;
    match largest {
        Some((memory, found)) => context.output.line(fitting(memory, &found)),
        None => Ok(()),
    }
}

/// The first batch of the rows to train on.
pub(crate) fn first_batch(
    config: &TrainConfig,
    model: &Model,
    rows: &rows::Rows,
) -> Result<Batch, Failure> {
    let batches = session::measured(config, session::classes_of(model), &rows.train);
    let first = batches.iter(0, 0).next();
    let none = || Failure::new(Exit::Usage, "the data have no rows to train on");
    first.ok_or_else(none)?.map_err(|error| failed(&error))
}

/// Parameters in all, and those that are trained.
fn parameters(model: &Model) -> (usize, usize) {
    let count = |trained: bool| -> usize {
        let counted = model
            .variables()
            .iter()
            .filter(|variable| !trained || variable.trainable);
        counted.map(|variable| variable.shape.len()).sum()
    };
    (count(false), count(true))
}

fn text((all, trained): (usize, usize), precision: &str, estimate: &Estimate) -> String {
    let rows = estimate.rows;
    let per_example = scaled(estimate.flops as f64 / rows as f64);
    let bytes = |bytes: u64| Bytes(bytes).to_string();
    let lines = [
        (
            "parameters",
            grouped(all),
            format!("{} trained, {precision}", grouped(trained)),
        ),
        ("batch", grouped(rows), "examples a step".to_owned()),
        ("variables", bytes(estimate.variables), String::new()),
        ("optimizer", bytes(estimate.optimizer), String::new()),
        ("inputs", bytes(estimate.batch), String::new()),
        (
            "temporary",
            bytes(estimate.temporary),
            format!(
                "the outputs of all layers are {}",
                bytes(estimate.activations)
            ),
        ),
        (
            "memory",
            bytes(estimate.total),
            "on the device, all together".to_owned(),
        ),
        (
            "work",
            format!("{}FLOP", scaled(estimate.flops as f64)),
            format!("a step, {per_example}FLOP an example"),
        ),
    ];
    let line = |(name, value, remark): (&str, String, String)| {
        format!("{name:<14}{value:>13}  {remark}")
            .trim_end()
            .to_owned()
    };
    lines.map(line).join("\n")
}

fn fitting(memory: Bytes, found: &LargestBatch) -> String {
    let sizes: Vec<String> = found.compiled.iter().map(|&rows| grouped(rows)).collect();
    let sizes = sizes.join(", ");
    match &found.fits {
        Some(fits) => format!(
            "largest batch {:>13}  examples in {memory} take {} (steps of {sizes} examples were compiled)",
            grouped(fits.rows),
            Bytes(fits.total)
        ),
        None => format!(
            "largest batch          none  fits {memory}: the smallest step tried takes {} (steps of {sizes} examples were compiled)",
            Bytes(found.least)
        ),
    }
}

fn event(
    (all, trained): (usize, usize),
    precision: &str,
    estimate: &Estimate,
    largest: Option<&(Bytes, LargestBatch)>,
) -> serde_json::Value {
    let largest = largest.map(|(memory, found)| {
        json!({
            "memory": memory.0,
            "batch_size": found.fits.map(|fits| fits.rows),
            "total_bytes": found.fits.map(|fits| fits.total),
            "compiled": found.compiled,
        })
    });
    json!({
        "event": "estimate",
        "precision": precision,
        "parameters": all,
        "trained_parameters": trained,
        "batch_size": estimate.rows,
        "variable_bytes": estimate.variables,
        "optimizer_bytes": estimate.optimizer,
        "batch_bytes": estimate.batch,
        "activation_bytes": estimate.activations,
        "temporary_bytes": estimate.temporary,
        "total_bytes": estimate.total,
        "flops": estimate.flops,
        "largest": largest,
    })
}

/// Digits in threes: `1,234,567`.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.char_indices() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Three digits and a prefix of a thousand: `1.23 G`.
fn scaled(number: f64) -> String {
    let prefixes = ["", "k", "M", "G", "T", "P"];
    let mut value = number;
    let mut place = 0;
    while value >= 999.5 && place + 1 < prefixes.len() {
        value /= 1000.0;
        place += 1;
    }
    let decimals = match value {
        v if place == 0 || v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.decimals$} {}", prefixes[place])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!(grouped(7), "7");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(scaled(950.0), "950 ");
        assert_eq!(scaled(1_234.0), "1.23 k");
        assert_eq!(scaled(45.67e9), "45.7 G");
    }
}
