//! What a step leaves by Keras in f64, where `PHALANX_FUZZ_KERAS` is the path of a Python that has it: the model is written as an archive,
//! which Keras loads, so that neither a layer nor a loss of ours is in what ours are compared with.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use phalanx::nn::Model;
use phalanx::saved::SavedModel;
use phalanx_graph::HostTensor;
use serde_json::{Value, json};

use crate::jax::tensor;
use crate::python::Script;
use crate::step::Step;
use crate::trial::{Source, Trial};

static KERAS: Script = Script {
    variable: "PHALANX_FUZZ_KERAS",
    file: "keras_gradients.py",
    running: Mutex::new(None),
};
/// What Keras and TensorFlow say of what they cannot do: distances that differ, on a CPU; a layer of two ranks; masks of one
/// feature before a batch normalization; an operation on masks with
/// the name of a layer, which stops Keras' own archives, too.
const CANNOT: [&str; 4] = [
    "only supports equal length strides",
    "is incompatible with the layer: expected",
    "tuple index out of range",
    "\\\"concatenate\\\" is used 2 times",
];

static COMPARED: AtomicU64 = AtomicU64::new(0);

/// How many steps were compared with Keras so far.
pub(crate) fn compared() -> u64 {
    COMPARED.load(Ordering::Relaxed)
}

/// Whether networks are compared with Keras, and with nothing else: many more can be tried so.
pub(crate) fn is_given() -> bool {
    KERAS.is_given()
}

/// What the step leaves, in the order of the arrays that it replaces; `None` where Keras cannot do the step, or does it otherwise on purpose.
pub(crate) fn left(
    model: &Model,
    step: &Step,
    trial: &Trial,
) -> Option<Result<Vec<Vec<f64>>, String>> {
    if trial.replicas > 1 || differs(model, trial) {
        return None;
    }
    let values = step.inputs[0].iter().take(model.variables().len());
    let saved = SavedModel::new(model.clone(), values.cloned().collect()).ok()?;
    let path = archive();
    saved.save_keras(&path).ok()?;
    COMPARED.fetch_add(1, Ordering::Relaxed);
    let answer = KERAS.ask(&request(model, step, trial, &path));
    let _ = std::fs::remove_file(path);
    let cannot = match &answer {
        // A mean over no step at all is 0 here.
        Ok(left) => left.iter().flatten().any(|number| !number.is_finite()),
        Err(error) => CANNOT.iter().any(|what| error.contains(what)),
    };
    (!cannot).then_some(answer)
}

fn archive() -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("phalanx-search-{}-{number}.keras", std::process::id());
    std::env::temp_dir().join(name)
}

/// Whether the model draws random numbers, or has what differs from Keras.
fn differs(model: &Model, trial: &Trial) -> bool {
    let config = model.config();
    let text = config.to_string();
    let has = |settings: &[&str]| settings.iter().any(|setting| text.contains(setting));
    let is_random = has(&["\"rate\":0.3", "\"dropout\":0.3"]);
    // With TensorFlow, Keras takes a bias of dims [heads, 1] for one of steps, where there are as many of these.
    let is_narrow = has(&["\"key_dim\":1,", "\"value_dim\":1}"]);
    // On purpose, as the documentation of the layers says.
    let is_turned = has(&["\"go_backwards\":true"]) || has_states(&config);
    let batch = trial.batch(model).x;
    let padded = trial.sources.iter().zip(&batch);
    let padded: Vec<_> = padded.filter(|(source, _)| is_padded(**source)).collect();
    let is_nothing = |x: &HostTensor| x.to_f64().iter().all(|&number| number == 0.0);
    is_random
        || is_narrow
        || is_turned && !padded.is_empty()
        || padded.iter().any(|(_, x)| is_nothing(x))
}

/// Whether a recurrent layer is given first states.
fn has_states(config: &Value) -> bool {
    let mut calls = config["calls"].as_array().into_iter().flatten();
    calls.any(|call| {
        let name = call["layer"].as_str().unwrap_or_default();
        let is_recurrent = ["lstm", "gru", "simple_rnn"]
            .iter()
            .any(|kind| name.starts_with(kind));
        is_recurrent
            && call["inputs"]
                .as_array()
                .is_some_and(|inputs| inputs.len() > 1)
    })
}

fn is_padded(source: Source) -> bool {
    matches!(source, Source::Padded | Source::Tokens { padded: true, .. })
}

fn request(model: &Model, step: &Step, trial: &Trial, path: &std::path::Path) -> Value {
    let batch = trial.batch(model);
    let tensors = |list: &[HostTensor]| -> Vec<Value> { list.iter().map(tensor).collect() };
    let replaced = step.replaced.iter();
    let replaced =
        replaced.map(|replaced| json!({"before": replaced.before, "trained": replaced.trained}));
    json!({
        "archive": path,
        "x": tensors(&batch.x),
        "y": tensor(&batch.y[0]),
        "weight": batch.weight.as_ref().map(tensor),
        "loss": format!("{:?}", trial.aim),
        "replaced": replaced.collect::<Vec<_>>(),
    })
}
