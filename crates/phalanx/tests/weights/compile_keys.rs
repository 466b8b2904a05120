//! Every argument of Keras' optimizers, schedules, losses and metrics as its files note it (`make_compile_keys.py`): read with its meaning, or refused by its name.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use phalanx::fit::Compile;
use phalanx::losses::{Loss, LossReduction};
use phalanx::metrics::Metric;
use phalanx::optim::{Optimizer, ParamSpec, SlotSpec};
use phalanx_graph::{HostTensor, Tensor};
use phalanx_testkit::Scratch;
use serde_json::{Value, json};

use super::oracle::{Batch, array, arrays, engine, name, records};
use super::{golden, read_json};

/// What there is not here, with what is said of it.
const REFUSED: &str = "keras/compile_keys_refused.txt";

/// What is read with another meaning than there: averages of Keras 2 begin with the first values; its early RMSprop and Adagrad add epsilon to a
/// root, and here as in Keras 3 it stands under it; overlaps are of a whole batch there; and a metric counts a 0 for each target of its
/// `ignore_class`.
const OTHERWISE: [&str; 3] = [
    "2.optimizer.legacy.RMSprop",
    "2.optimizer.legacy.Adagrad.epsilon",
    "metric.SparseCategoricalCrossentropy.ignore_class",
];

/// A record, and what is read of it.
type Read<'a> = (&'a Value, Compile);

#[test]
fn each_argument_of_a_compilation_is_read_as_in_keras_or_refused() {
    let all = records("compile_keys.json");
    let folder = Scratch::temporary("compile_keys");
    let file = folder.join("m.json");
    let mut described = read_json("keras/compiled/plain.json");
    let (given, noted) = all.split_last().unwrap();
    assert!(noted.len() > 700, "{} records", noted.len());
    let (mut found, mut refused, mut wrong) = (Vec::new(), String::new(), Vec::new());
    for record in noted {
        match [0, 1].map(|form| read(record, form, &mut described, &file)) {
            [Err(message), _] | [_, Err(message)] => {
                refused += &refusal(record, &message, &mut wrong);
            }
            [Ok(_), _]
                if !["after", "values", "value"]
                    .iter()
                    .any(|of| record.get(of).is_some()) =>
            {
                refused += &format!(
                    "{}: read, and Keras itself computes nothing of it\n",
                    name(record)
                );
            }
            [Ok(archived), Ok(in_h5)] => {
                if format!("{archived:?}") != format!("{in_h5:?}") {
                    wrong.push(format!("{}: {archived:?}, of HDF5 {in_h5:?}", name(record)));
                }
                found.push((record, archived));
            }
        }
    }
    let of = |families: &[&str]| {
        let reads = found.iter();
        let reads = reads.filter(|(record, _)| families.iter().any(|of| record["family"] == **of));
        reads.collect::<Vec<&Read<'_>>>()
    };
    check_optimizers(&of(&["optimizer"]), given, &mut wrong);
    check_schedules(&of(&["schedule"]), &mut wrong);
    check_answers(&of(&["loss", "metric"]), given, &mut wrong);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    if std::env::var_os("PHALANX_UPDATE_EXPECTED").is_some() {
        std::fs::write(golden(REFUSED), &refused).unwrap();
    }
    assert_eq!(refused, std::fs::read_to_string(golden(REFUSED)).unwrap());
}

/// What is read of what an archive notes, or an HDF5 file.
fn read(
    record: &Value,
    form: usize,
    described: &mut Value,
    file: &Path,
) -> Result<Compile, String> {
    let noted = match record["noted"].get(form) {
        Some(noted) => noted.clone(),
        None => bare(&record["noted"][0]),
    };
    let sgd = json!({"class_name": "SGD", "config": {}});
    let optimizer = ["optimizer", "optimizer_config"][form];
    described["compile_config"] = match record["family"].as_str().unwrap() {
        "loss" => json!({"optimizer": sgd, "loss": noted}),
        "metric" => json!({"optimizer": sgd, "loss": "mse", "metrics": noted}),
        _ => json!({optimizer: noted, "loss": "mse"}),
    };
    std::fs::write(file, described.to_string()).unwrap();
    Compile::of_keras(file).map_err(|error| error.to_string())
}

/// What is noted without the modules of classes, as HDF5 files have it.
fn bare(noted: &Value) -> Value {
    match noted {
        Value::Object(fields) => {
            let fields = fields.iter();
            let kept = fields.filter(|(key, _)| !["module", "registered_name"].contains(&&***key));
            kept.map(|(key, value)| (key.clone(), bare(value)))
                .collect()
        }
        Value::Array(items) => items.iter().map(bare).collect(),
        other => other.clone(),
    }
}

/// The line of a refusal, which names the class or the argument.
fn refusal(record: &Value, message: &str, wrong: &mut Vec<String>) -> String {
    let name = name(record);
    let (_, what) = message.split_once("compile_config: ").unwrap();
    let (what, _) = what
        .split_once("; name the optimizer, the loss and")
        .unwrap();
    let mut parts = name.split('.').skip(2);
    if !parts.any(|part| what.to_lowercase().contains(&part.to_lowercase())) {
        wrong.push(format!("{name}: the refusal does not name it: {what}"));
    }
    format!("{name}: {what}\n")
}

/// Whether it has another meaning here.
fn is_otherwise(name: &str) -> bool {
    let is_average = name.starts_with("2.") && name.ends_with(".ema_overwrite_frequency.2");
    let mut overlaps = ["dice", "tversky"].iter();
    let is_overlap = overlaps.any(|loss| name.to_lowercase().contains(loss));
    is_average
        || is_overlap && !name.contains(".axis")
        || OTHERWISE.iter().any(|part| name.contains(part))
}

/// Compares numbers, or says that they differ.
fn compare(record: &Value, got: &[f64], expected: &[f64], wrong: &mut Vec<String>) {
    let name = name(record);
    let is_close =
        |(got, expected): (&f64, &f64)| (got - expected).abs() <= 5e-6 * (1.0 + expected.abs());
    let is_same = got.len() == expected.len() && got.iter().zip(expected).all(is_close);
    if !is_same && !is_otherwise(name) {
        wrong.push(format!("{name}: {got:?}, in Keras {expected:?}"));
    }
}

/// Steps of all optimizers with the same gradients, of those that are read alike once.
fn check_optimizers(reads: &[&Read<'_>], given: &Value, wrong: &mut Vec<String>) {
    let mut distinct: BTreeMap<String, (&Optimizer, Vec<&Value>)> = BTreeMap::new();
    for (record, compile) in reads {
        let optimizer = &compile.optimizer;
        let key = format!("{} {}", optimizer.kind(), optimizer.config());
        let alike = distinct.entry(key).or_insert((optimizer, Vec::new()));
        alike.1.push(record);
    }
    let optimizers: Vec<&Optimizer> = distinct.values().map(|(optimizer, _)| *optimizer).collect();
    let after = after_steps(&optimizers, given);
    for ((_, records), after) in distinct.values().zip(after) {
        for record in records {
            for (got, expected) in after.iter().zip(arrays(&record["after"])) {
                compare(record, &got.to_f64(), &expected.to_f64(), wrong);
            }
        }
    }
}

/// The variables after all steps, by optimizer.
fn after_steps(optimizers: &[&Optimizer], given: &Value) -> Vec<Vec<HostTensor>> {
    let initial = arrays(&given["initial"]);
    let names = given["layers"].as_array().unwrap().iter().zip(&initial);
    let spec = |(name, x): (&Value, &HostTensor)| {
        ParamSpec::new(name.as_str().unwrap(), x.shape().clone())
    };
    let params: Vec<ParamSpec> = names.map(spec).collect();
    let mut batch = Batch::default();
    let iterations = batch.input(HostTensor::scalar(0_i64));
    let gradients: Vec<Tensor> = initial.iter().map(|x| batch.input(x.clone())).collect();
    let first = 1 + gradients.len();
    let mut places: Vec<Range<usize>> = Vec::new();
    for optimizer in optimizers {
        let values: Vec<Tensor> = initial.iter().map(|x| batch.input(x.clone())).collect();
        let fill = |slot: SlotSpec| HostTensor::full(slot.shape, slot.fill);
        let slots = optimizer
            .slots(&params)
            .into_iter()
            .map(|slot| batch.input(fill(slot)));
        let slots: Vec<Tensor> = slots.collect();
        let applied = optimizer.apply(&params, &iterations, &values, &gradients, &slots);
        let next = applied.params.iter().chain(&applied.slots);
        next.for_each(|next| batch.output(next));
        let start = places.last().map_or(first, |place| place.end);
        places.push(start..start + values.len() + slots.len());
    }
    let engine = engine();
    let mut program = batch.compile(&engine);
    for (step, gradients) in given["gradients"].as_array().unwrap().iter().enumerate() {
        program.inputs[0] = HostTensor::scalar(step as i64);
        program.inputs[1..first].clone_from_slice(&arrays(gradients));
        let next = program.run(&engine);
        program.inputs[first..].clone_from_slice(&next);
    }
    let variables = |place: Range<usize>| program.inputs[place][..params.len()].to_vec();
    places.into_iter().map(variables).collect()
}

fn check_schedules(reads: &[&Read<'_>], wrong: &mut Vec<String>) {
    for (record, compile) in reads {
        let rate = compile.optimizer.learning_rate();
        let expected = record["values"].as_array().unwrap().iter();
        let expected: Vec<f64> = expected.map(|value| value.as_f64().unwrap()).collect();
        let got: Vec<f64> = (0..expected.len())
            .map(|step| rate.value(step as u64))
            .collect();
        compare(record, &got, &expected, wrong);
    }
}

/// Values of losses and metrics, in one program.
fn check_answers(reads: &[&Read<'_>], given: &Value, wrong: &mut Vec<String>) {
    let (mut batch, mut traced) = (Batch::default(), Vec::new());
    for (record, compile) in reads {
        let pair = &given["pairs"][record["pair"].as_u64().unwrap() as usize];
        let pair = [0, 1].map(|at| batch.shared(array(&pair[at]).unwrap()));
        let settings = compile.loss_settings(&[]).unwrap();
        let (metric, outputs) = match record["family"] == "loss" {
            true => (None, vec![loss(&settings["loss"], &pair)]),
            false => metric(&settings["metrics"][0], &pair),
        };
        outputs.iter().for_each(|output| batch.output(output));
        traced.push((record, metric, outputs.len()));
    }
    let mut results = batch.run(&engine()).into_iter();
    for (record, metric, count) in traced {
        let state: Vec<HostTensor> = results.by_ref().take(count).collect();
        let got = metric.map_or_else(|| state[0].to_f64()[0], |metric| metric.result(&state));
        compare(record, &[got], &[record["value"].as_f64().unwrap()], wrong);
    }
}

fn loss(named: &Value, [y_true, y_pred]: &[Tensor; 2]) -> Tensor {
    let loss = component(named, Loss::from_config);
    loss.reduced(y_true, y_pred, None, LossReduction::SumOverBatchSize)
}

fn metric(named: &Value, [y_true, y_pred]: &[Tensor; 2]) -> (Option<Metric>, Vec<Tensor>) {
    let metric = component(named, Metric::from_config).bound(None, &y_pred.shape());
    let state = metric.update(y_true, y_pred, None);
    (Some(metric), state)
}

/// The component of `{kind: settings}`.
fn component<T>(named: &Value, read: impl Fn(&str, &Value) -> phalanx::Result<T>) -> T {
    let (kind, settings) = named.as_object().unwrap().iter().next().unwrap();
    read(kind, settings).unwrap()
}
