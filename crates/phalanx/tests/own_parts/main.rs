//! Update rules, schedules, metrics and cells that a program defines: as Keras' that derive from its classes, by `fit`, by hand and in evaluation.

mod activations;
mod cell_uses;
mod cells;
mod counted;
mod mistakes;
#[path = "../oracle/mod.rs"]
mod oracle;
#[allow(dead_code, reason = "the tests of strategies use all of it")]
#[path = "../replicas/own.rs"]
mod own;
mod rows;

use std::sync::OnceLock;

use oracle::{array, name};
use own::{InverseRoot, SoftSign, within};
use phalanx::engine::{Engine, EngineOptions};
use phalanx::fit::callbacks::EarlyStopping;
use phalanx::prelude::*;
use phalanx_testkit::assert_close;
use serde_json::Value;

const TOLERANCE: f64 = 5e-6;

fn engine() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    let options = EngineOptions {
        cpu_devices: 2,
        ..EngineOptions::default()
    };
    ENGINE.get_or_init(|| Engine::new(&options).unwrap())
}

fn mirrored() -> MirroredStrategy {
    MirroredStrategy::on(engine())
}

fn model() -> Model {
    let layers = Sequential::new([3]).add(Dense::new(4).activation(tanh));
    layers.add(Dense::new(1)).build().unwrap()
}

/// The optimizer of a record, by Keras' names of what is around the rule.
fn optimizer(record: &Value) -> Optimizer {
    let rate = &record["rate"];
    let rate = match rate.as_f64() {
        Some(rate) => Schedule::from(rate),
        None => Schedule::from(InverseRoot {
            first: rate["first"].as_f64().unwrap(),
            steps: rate["steps"].as_u64().unwrap(),
        }),
    };
    let optimizer = Optimizer::custom(SoftSign::new(rate));
    let option = |name: &str| record["options"][name].as_f64();
    type Set = fn(Optimizer, f64) -> Optimizer;
    let options: [(&str, Set); 5] = [
        ("global_clipnorm", Optimizer::global_clipnorm),
        ("clipnorm", Optimizer::clipnorm),
        ("weight_decay", Optimizer::weight_decay),
        ("ema_momentum", Optimizer::ema),
        ("gradient_accumulation_steps", |optimizer, steps| {
            optimizer.gradient_accumulation(steps as u64)
        }),
    ];
    options.iter().fold(optimizer, |made, (name, set)| {
        option(name).map_or(made.clone(), |value| set(made.clone(), value))
    })
}

fn compile(optimizer: Optimizer) -> Compile {
    Compile {
        optimizer,
        loss: MeanSquaredError.into(),
        metrics: vec![within().into()],
        weighted_metrics: vec![within().named("weighted").into()],
        ..Compile::default()
    }
}

fn data(record: &Value) -> Dataset {
    let [x, y, weights] = ["x", "y", "weights"].map(|part| array(&record[part]).unwrap());
    let data = Dataset::from_arrays(x, y).unwrap();
    data.with_weights(&weights).unwrap()
}

fn set_initial(trainer: &mut Trainer, record: &Value) {
    let names = trainer.model().variables().iter();
    let names: Vec<String> = names.map(|variable| variable.name.clone()).collect();
    let initial = record["initial"].as_array().unwrap().iter();
    let initial = names.into_iter().zip(initial.map(|it| array(it).unwrap()));
    trainer.set_variables(&initial.collect::<Vec<_>>()).unwrap();
}

fn quiet(epochs: usize) -> Fit {
    Fit::epochs(epochs).progress(Progress::Silent)
}

/// Steps alone, steps that are one program, and replicas: each after Keras' training.
#[test]
fn trainings_are_those_of_keras() {
    let records = oracle::records("own_parts.json");
    assert_eq!(records.len(), 4);
    for record in &records {
        let steps = Compile {
            steps_per_execution: 2,
            ..compile(optimizer(record))
        };
        let one = OneDeviceStrategy::on(engine());
        follow(record, one.compile(model(), steps).unwrap());
        let compile = compile(optimizer(record));
        follow(record, mirrored().compile(model(), compile).unwrap());
    }
}

fn follow(record: &Value, mut trainer: Trainer) {
    set_initial(&mut trainer, record);
    let numbers = |value: &Value| -> Vec<f64> { serde_json::from_value(value.clone()).unwrap() };
    let batches = data(record).batch(6);
    let history = trainer.fit(&batches, quiet(3)).unwrap();
    let what = |part: &str| format!("{}, {part}", name(record));
    for log in ["loss", "within", "weighted"] {
        let got = history
            .epochs
            .iter()
            .map(|epoch| epoch.logs.get(log).unwrap());
        let (got, expected) = (got.collect::<Vec<_>>(), numbers(&record["logs"][log]));
        assert_close(&what(log), &got, &expected, TOLERANCE);
    }
    let rate = numbers(&record["rates"])[2];
    assert_close(
        &what("rate"),
        &[trainer.learning_rate().unwrap()],
        &[rate],
        1e-6,
    );
    let variables = trainer.variables().unwrap();
    for ((variable, got), expected) in variables.iter().zip(record["final"].as_array().unwrap()) {
        let expected = array(expected).unwrap();
        assert_close(
            &what(variable),
            &got.to_f64(),
            &expected.to_f64(),
            TOLERANCE,
        );
    }
}

/// A loop by hand on two replicas, whose last batch has fewer rows than there are replicas' parts, is what `fit` does on one device.
#[test]
fn loops_by_hand_are_what_fit_does() {
    let record = &oracle::records("own_parts.json")[0];
    let rows = Dataset::from_arrays(array(&record["x"]).unwrap(), array(&record["y"]).unwrap());
    let batches = rows.unwrap().batch(5);
    let strategy = mirrored();
    let mut state = strategy.state(0).unwrap();
    let net = state.add_model("net", model()).unwrap();
    let rule = state.add_optimizer(optimizer(record), &[&net]).unwrap();
    let metric = state.add_metric(within()).unwrap();
    let loss = Loss::from(MeanSquaredError);
    let mut step = strategy.function(|cx, batch: Inputs| {
        let predicted = cx.train(&net, &batch.x).remove(0);
        let losses = loss.per_example(&batch.y[0], &predicted);
        let loss = cx.mean(&losses, None);
        let gradients = cx.gradients(&loss, &rule);
        let gradients = cx.all_reduce_gradients(&gradients);
        cx.apply(&rule, &gradients);
        cx.update_metric(&metric, &batch.y[0], &predicted, None);
        []
    });
    for epoch in 0..2 {
        state.reset(&metric).unwrap();
        for batch in strategy.distribute_dataset(&batches).epoch(epoch) {
            let [] = step.call(&mut state, &batch.unwrap()).unwrap();
        }
    }
    let one = OneDeviceStrategy::on(engine());
    let mut trainer = one.compile(model(), compile(optimizer(record))).unwrap();
    let history = trainer.fit(&batches, quiet(2)).unwrap();
    let logged = history.epochs[1].logs.get("within").unwrap();
    assert_close(
        "within",
        &[state.result(&metric).unwrap()],
        &[logged],
        1e-12,
    );
    for ((name, by_hand), (_, fitted)) in
        (state.variables(&net).unwrap().iter()).zip(trainer.variables().unwrap())
    {
        assert_close(name, &by_hand.to_f64(), &fitted.to_f64(), TOLERANCE);
    }
}

/// An evaluation counts each example once however batches are cut, callbacks watch the metric by its name, and a checkpoint has the slots by theirs.
#[test]
fn results_have_names_and_do_not_depend_on_batches() {
    let record = &oracle::records("own_parts.json")[1];
    let one = OneDeviceStrategy::on(engine());
    let mut trainer = one.compile(model(), compile(optimizer(record))).unwrap();
    let data = data(record);
    let results: Vec<Logs> = [18, 7]
        .map(|rows| trainer.evaluate(&data.batch(rows)).unwrap())
        .into();
    for log in ["within", "weighted"] {
        let [whole, cut] = [0, 1].map(|at| results[at].get(log).unwrap());
        assert!(whole > 0.0);
        assert_close(log, &[cut], &[whole], 1e-12);
    }
    assert_ne!(results[0].get("within"), results[0].get("weighted"));
    let stop = EarlyStopping::new("within").patience(0).min_delta(2.0);
    let history = trainer
        .fit(&data.batch(6), quiet(5).callback(stop))
        .unwrap();
    assert_eq!(history.epochs.len(), 2, "the metric never gets better by 2");
    let state = trainer.training_state().unwrap();
    let slots: Vec<&str> = state
        .slots()
        .iter()
        .map(|(name, _)| name.as_str())
        .collect();
    let expected = [
        "learning_rate",
        "power",
        "dense/kernel/mean",
        "dense/bias/mean",
    ];
    assert_eq!(slots[..4], expected);
}
