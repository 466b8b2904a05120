//! What a step leaves by Keras in f64, where `PHALANX_FUZZ_KERAS` is the path of a Python that has it: the model is written as an archive,
//! which Keras loads, so that neither a layer nor a loss of ours is in what ours are compared with.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use phalanx::nn::{Cx, Model};
use phalanx::saved::SavedModel;
use phalanx_graph::{Graph, HostTensor, Tensor};
use phalanx_testkit::{Array, Interpreter};
use serde_json::{Value, json};

use crate::jax::tensor;
use crate::python::Script;
use crate::step::Step;
use crate::trial::{Aim, Source, Trial};

static KERAS: Script = Script {
    variable: "PHALANX_FUZZ_KERAS",
    file: "keras_gradients.py",
    running: Mutex::new(None),
};
/// What Keras and TensorFlow say of what they cannot do: distances that differ, on a CPU; a layer of two ranks; masks of one
/// feature before a batch normalization; an operation on masks with
/// the name of a layer, which stops Keras' own archives, too; pools of volumes in f64; means of windows wider than their input;
/// sums that it takes for those with a bias.
const CANNOT: [&str; 8] = [
    "only supports equal length strides",
    "is incompatible with the layer: expected",
    "tuple index out of range",
    "\\\"concatenate\\\" is used 2 times",
    "Op<name=MaxPool3D;",
    "AvgPool3D[T=DT_DOUBLE,",
    "a pool is wider than its input",
    "Keras adds along another axis",
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

/// What Keras finds.
pub(crate) struct Found {
    /// What the model predicts.
    pub(crate) prediction: Vec<f64>,
    /// What the step leaves, in the order of the arrays that it replaces; none where it draws random numbers.
    pub(crate) left: Option<Vec<Vec<f64>>>,
}

/// What Keras finds; `None` where it cannot do what the model does, or does it otherwise on purpose.
pub(crate) fn found(model: &Model, step: &Step, trial: &Trial) -> Option<Result<Found, String>> {
    if trial.replicas > 1 || differs(model, trial) {
        return None;
    }
    let saved = SavedModel::new(model.clone(), values(model, step)).ok()?;
    let path = archive();
    saved.save_keras(&path).ok()?;
    COMPARED.fetch_add(1, Ordering::Relaxed);
    let again = path.with_extension("again.keras");
    let answer = KERAS.ask(&request(model, step, trial, [&path, &again]));
    let answer = answer.and_then(|left| {
        let read = read_back(&again, model, step, trial);
        let read = read.map_err(|error| format!("what Keras saved: {error}"));
        read.map(|()| left)
    });
    for path in [path, again] {
        let _ = std::fs::remove_file(path);
    }
    let cannot = match &answer {
        // A mean over no step at all is 0 here.
        Ok(left) => left.iter().flatten().any(|number| !number.is_finite()),
        Err(error) => CANNOT.iter().any(|what| error.contains(what)),
    };
    let split = |mut lists: Vec<Vec<f64>>| {
        let prediction = lists.pop().unwrap_or_default();
        let left = (!lists.is_empty()).then_some(lists);
        Found { prediction, left }
    };
    (!cannot).then_some(answer.map(split))
}

fn values(model: &Model, step: &Step) -> Vec<HostTensor> {
    let values = step.inputs[0].iter().take(model.variables().len());
    values.cloned().collect()
}

/// What the model predicts in f64.
pub(crate) fn prediction(model: &Model, step: &Step, trial: &Trial) -> Result<Vec<f64>, String> {
    predicted(model, values(model, step), trial)
}

fn predicted(model: &Model, values: Vec<HostTensor>, trial: &Trial) -> Result<Vec<f64>, String> {
    let graph = Graph::default();
    let mut given = Vec::new();
    let mut parameter = |value: HostTensor| {
        let tensor = graph.parameter(&format!("x{}", given.len()), value.shape().clone());
        given.push(value);
        tensor
    };
    let variables: Vec<Tensor> = values.into_iter().map(&mut parameter).collect();
    let inputs: Vec<Tensor> = trial
        .batch(model)
        .x
        .into_iter()
        .map(&mut parameter)
        .collect();
    let outputs = model.call(&mut Cx::new(&graph, model, &variables), &inputs);
    let program = graph
        .finish(&[("y", &outputs[0])])
        .map_err(|error| error.to_string())?;
    match Interpreter::new(&program)
        .run(&[given], &[0])?
        .swap_remove(0)
        .swap_remove(0)
    {
        Array::Floats(prediction) => Ok(prediction),
        Array::Ints(_) => Err("the prediction is no floats".into()),
    }
}

fn archive() -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("phalanx-search-{}-{number}.keras", std::process::id());
    std::env::temp_dir().join(name)
}

/// Whether training the model draws random numbers.
fn is_random(config: &str) -> bool {
    let settings = [
        "rate",
        "drop_path_rate",
        "dropout",
        "recurrent_dropout",
        "stddev",
    ];
    let is_drawn = |setting: &&str| config.contains(&format!("\"{setting}\":0.3"));
    settings.iter().any(is_drawn)
        || ["{\"random_", "{\"solarization"]
            .iter()
            .any(|kind| config.contains(kind))
}

/// Whether the model has what differs from Keras.
fn differs(model: &Model, trial: &Trial) -> bool {
    let config = model.config();
    let text = config.to_string();
    let has = |settings: &[&str]| settings.iter().any(|setting| text.contains(setting));
    // On purpose, as the documentation of the layers says. Of a normalization of steps, a step may be padding in all sequences.
    let is_turned = has(&["\"go_backwards\":true", "\"axis\":1,"]) || has_states(&config);
    let is_stepwise = has(&["{\"time_distributed\":"]);
    let is_penalized = is_stepwise && has(&["\"activity_regularizer\":{"]);
    let is_normalized = is_stepwise && has(&["{\"batch_norm\":"]);
    let batch = trial.batch(model).x;
    let padded = trial.sources.iter().zip(&batch);
    let padded: Vec<_> = padded.filter(|(source, _)| is_padded(**source)).collect();
    let is_nothing = |x: &HostTensor| x.to_f64().iter().all(|&number| number == 0.0);
    // Of a row whose keys are all padding, Keras' attention answers 0 where it has dropout, and their mean where it has none.
    let is_dropped = has(&["\"dropout\":0.3"]) && has(&["multi_head_attention"]);
    // The kernel is another one before it is updated, which is taken for the gradient here.
    let is_set = has(&["{\"spectral_norm\":"]);
    // Which Keras computes in f32.
    let is_ctc = trial.aim == Aim::Labels;
    is_ctc
        || is_set
        || is_penalized
        || is_dropped && !padded.is_empty()
        || (is_turned || is_normalized) && !padded.is_empty()
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

/// Compares the model with what is read of a file that Keras wrote of it.
fn read_back(path: &Path, model: &Model, step: &Step, trial: &Trial) -> Result<(), String> {
    let read = SavedModel::load_keras(path).map_err(|error| error.to_string())?;
    let expected = predicted(model, values(model, step), trial)?;
    let got = predicted(read.model(), read.values().to_vec(), trial)?;
    let pairs = || got.iter().zip(&expected);
    let are_close = |(got, expected): (&f64, &f64)| {
        (got - expected).abs() <= 1e-5 * (1.0 + expected.abs()) || got.is_nan() && expected.is_nan()
    };
    if got.len() == expected.len() && pairs().all(are_close) {
        return Ok(());
    }
    Err(format!("it predicts {got:?}, expected {expected:?}"))
}

fn request(model: &Model, step: &Step, trial: &Trial, [path, again]: [&Path; 2]) -> Value {
    let batch = trial.batch(model);
    let tensors = |list: &[HostTensor]| -> Vec<Value> { list.iter().map(tensor).collect() };
    let replaced = step.replaced.iter();
    let replaced =
        replaced.map(|replaced| json!({"before": replaced.before, "trained": replaced.trained}));
    json!({
        "archive": path,
        "again": again,
        "x": tensors(&batch.x),
        "y": tensor(&batch.y[0]),
        "weight": batch.weight.as_ref().map(tensor),
        "trains": !is_random(&model.config().to_string()),
        "loss": format!("{:?}", trial.aim),
        "replaced": replaced.collect::<Vec<_>>(),
    })
}
