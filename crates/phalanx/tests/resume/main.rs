//! Checkpoints: a training that was interrupted goes on as if it had not been, on the same devices or on others.

mod files;
#[path = "../four_devices/mod.rs"]
mod four_devices;
mod misfits;
#[path = "../replicas/own.rs"]
mod own;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use four_devices::engine;
use phalanx::Error;
use phalanx::checkpoint::TrainingState;
use phalanx::data::Example;
use phalanx::fit::callbacks::Lambda;
use phalanx::prelude::*;
use phalanx_testkit::{Scratch, relative_difference as apart};

/// A folder of these tests.
fn scratch(name: &str) -> Scratch {
    Scratch::new(env!("CARGO_TARGET_TMPDIR"), &format!("resume-{name}"))
}

fn names(devices: usize) -> Vec<String> {
    (0..devices).map(|device| format!("cpu:{device}")).collect()
}

fn one() -> Box<dyn Strategy> {
    Box::new(OneDeviceStrategy::on(engine()))
}

fn mirrored(replicas: usize) -> Box<dyn Strategy> {
    let strategy = MirroredStrategy::on(engine());
    Box::new(strategy.devices(names(replicas)).unwrap())
}

fn central(replicas: usize) -> Box<dyn Strategy> {
    let strategy = CentralStorageStrategy::on(engine()).parameter_device("cpu:3");
    Box::new(strategy.unwrap().compute_devices(names(replicas)).unwrap())
}

fn pipeline() -> Box<dyn Strategy> {
    Box::new(PipelineStrategy::on(engine(), 2, 1).unwrap())
}

fn mesh() -> Box<dyn Strategy> {
    let mesh = Mesh::new([("data", 2), ("model", 2)]);
    Box::new(MeshStrategy::on(engine(), &mesh).unwrap())
}

/// Moving statistics, random numbers, and a kernel that a mesh cuts.
fn model() -> Model {
    let columns: Sharding = [None, Some("model")].into();
    // The normalization takes a bias off again: its slots would be nothing but rounding.
    let wide = Dense::new(8).activation(tanh).use_bias(false);
    let stack = Sequential::new([4])
        .add(wide.sharded("kernel", columns))
        .add(BatchNorm::new().synchronized(true).momentum(0.7))
        .add(Dropout::new(0.25))
        .add(Dense::new(3));
    stack.build().unwrap()
}

fn compile() -> Compile {
    Compile {
        optimizer: Optimizer::from(Adam::new(CosineDecay::new(0.05, 9)))
            .ema(0.8)
            .gradient_accumulation(2),
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        metrics: vec![Accuracy.into()],
        seed: 11,
        ..Compile::default()
    }
}

/// Twenty rows in batches of six, the last of two; in a new order in every epoch, and changed at random.
const ROWS: usize = 20;
const STEPS: usize = 4;
const EPOCHS: usize = 3;

fn rows() -> Dataset {
    let x: Vec<f32> = (0..ROWS * 4).map(|i| (i as f32 * 0.37).sin()).collect();
    let y: Vec<i32> = (0..ROWS).map(|i| (i * i % 3) as i32).collect();
    let rows = Dataset::from_arrays(HostTensor::new([ROWS, 4], &x), HostTensor::new([ROWS], &y));
    rows.unwrap()
        .shuffle(5)
        .map_random(9, |key, mut example: Example| {
            let noise = (key % 1000) as f32 * 1e-4;
            let x: Vec<f32> = example.x[0].values::<f32>().unwrap();
            let x: Vec<f32> = x.iter().map(|x| x + noise).collect();
            example.x[0] = HostTensor::new([4], &x);
            Ok(example)
        })
}

fn batches() -> Batches {
    rows().batch(6)
}

/// The batches of so many steps, of whatever epoch, and then an error.
fn batches_of(steps: usize) -> Batches {
    let left = Arc::new(AtomicUsize::new(steps / STEPS * ROWS + steps % STEPS * 6));
    let limited = rows().map(move |example| {
        let take = |left: usize| left.checked_sub(1);
        match left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(_) => Ok(example),
            Err(_) => Err(Error::User("pulled the plug".into())),
        }
    });
    limited.batch(6).prefetch(0)
}

fn quiet() -> Fit {
    Fit::epochs(EPOCHS).progress(Progress::Silent)
}

/// Its number, its steps, its logs to the bit.
type Epoch = (usize, usize, Vec<(String, u64)>);

/// Everything but times.
#[derive(Debug, PartialEq)]
struct Outcome {
    values: Vec<(String, HostTensor)>,
    iterations: i64,
    epochs: Vec<Epoch>,
    predicted: HostTensor,
}

fn outcome(mut trainer: Trainer, history: &History) -> Outcome {
    let state = trainer.training_state().unwrap();
    let epochs = history.epochs.iter().map(|epoch| {
        let logs = epoch.logs.iter();
        let logs = logs.map(|(name, value)| (name.to_owned(), value.to_bits()));
        (epoch.epoch, epoch.steps, logs.collect())
    });
    Outcome {
        values: [state.variables(), state.slots()].concat(),
        iterations: state.iterations(),
        epochs: epochs.collect(),
        predicted: trainer.predict(&batches()).unwrap().remove(0),
    }
}

fn unbroken(strategy: &impl Strategy, compile: &Compile, fit: &Fit) -> Outcome {
    let mut trainer = strategy.compile(model(), compile.clone()).unwrap();
    let history = trainer.fit(&batches(), fit.clone()).unwrap();
    outcome(trainer, &history)
}

/// A `fit` whose data end in an error after so many steps.
fn broken_off(trainer: &mut Trainer, fit: Fit, steps: usize) {
    let error = trainer.fit(&batches_of(steps), fit).unwrap_err();
    assert!(error.to_string().contains("pulled the plug"), "{error}");
}

/// The same, interrupted after so many steps.
fn resumed(
    strategy: &impl Strategy,
    compile: &Compile,
    fit: &Fit,
    steps: usize,
    path: &Path,
) -> Outcome {
    let mut trainer = strategy.compile(model(), compile.clone()).unwrap();
    broken_off(&mut trainer, fit.clone(), steps);
    trainer.save_checkpoint(path).unwrap();
    drop(trainer);
    // Another seed: that of the checkpoint counts.
    let other = Compile {
        seed: 99,
        ..compile.clone()
    };
    let mut trainer = strategy.compile(model(), other).unwrap();
    trainer.restore_checkpoint(path).unwrap();
    let history = trainer.fit(&batches(), fit.clone().resume()).unwrap();
    outcome(trainer, &history)
}

/// Half precision with a scale that overflows at first, and grows again soon.
fn half_precision() -> Compile {
    Compile {
        precision: Policy::MixedFloat16,
        loss_scale: LossScale::Dynamic {
            initial: 2f64.powi(22),
            growth_steps: 3,
        },
        ..compile()
    }
}

/// An update rule, a schedule and a metric of the program.
fn own_parts() -> Compile {
    Compile {
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        ..own::compile()
    }
}

type Case = (
    &'static str,
    Box<dyn Strategy>,
    Compile,
    Fit,
    &'static [usize],
);

#[test]
fn what_goes_on_at_any_step_is_the_same_to_the_bit() {
    let scratch = scratch("bits");
    let path = scratch.join("checkpoint");
    let validated = quiet().validation(&batches());
    let best = Compile {
        optimizer: Adam::new(0.05).into(),
        ..compile()
    };
    let own_by_halves = Compile {
        optimizer: own_parts().optimizer,
        metrics: own_parts().metrics,
        ..half_precision()
    };
    let cases: [Case; 7] = [
        ("one device", one(), compile(), validated.clone(), &[1, 7]),
        ("half precision", one(), half_precision(), quiet(), &[3]),
        (
            "the best epoch",
            one(),
            best,
            validated.keep_best("val_loss"),
            &[9],
        ),
        ("two replicas", mirrored(2), half_precision(), quiet(), &[5]),
        ("central storage", central(2), compile(), quiet(), &[6]),
        ("own parts", one(), own_parts(), quiet(), &[5]),
        (
            "own parts by halves",
            mirrored(2),
            own_by_halves,
            quiet(),
            &[2],
        ),
    ];
    for (name, strategy, compile, fit, steps) in cases {
        let whole = unbroken(&strategy, &compile, &fit);
        if name == "half precision" {
            let skipped = whole
                .values
                .iter()
                .find(|(name, _)| name == "skipped_steps");
            assert!(skipped.unwrap().1.to_f64()[0] >= 1.0, "no step was skipped");
        }
        for &steps in steps {
            let again = resumed(&strategy, &compile, &fit, steps, &path);
            assert_eq!(whole, again, "{name}, interrupted after step {steps}");
        }
    }
}

/// The batches of all epochs, which set a flag when a step takes its batch.
fn batches_that_stop(step: usize, flag: &Arc<AtomicBool>) -> Batches {
    let (taken, flag) = (AtomicUsize::new(0), Arc::clone(flag));
    let stopping = batches().map(move |batch| {
        if taken.fetch_add(1, Ordering::Relaxed) + 1 == step {
            flag.store(true, Ordering::Relaxed);
        }
        Ok(batch)
    });
    stopping.prefetch(0)
}

#[test]
fn a_training_that_is_stopped_has_a_checkpoint_of_that_step() {
    let scratch = scratch("stop");
    let path = scratch.join("checkpoint");
    let whole = unbroken(&one(), &compile(), &quiet());
    // In the middle of an epoch, after its last step, and before the first.
    for step in [2, STEPS, STEPS + 1, 0] {
        TrainingState::remove(&path).unwrap();
        let mut trainer = one().compile(model(), compile()).unwrap();
        let flag = Arc::new(AtomicBool::new(step == 0));
        let fit = quiet().checkpoint(&path).stop_when(&flag);
        let error = trainer.fit(&batches_that_stop(step, &flag), fit.clone());
        let error = error.unwrap_err();
        let expected = format!("stopped after step {step}, in epoch");
        assert!(matches!(error, Error::Stopped(_)), "{error}");
        assert!(error.to_string().contains(&expected), "{error}");
        let mut trainer = one().compile(model(), compile()).unwrap();
        trainer.restore_checkpoint(&path).unwrap();
        assert_eq!(trainer.iterations(), step as i64);
        flag.store(false, Ordering::Relaxed);
        let history = trainer.fit(&batches(), fit.resume()).unwrap();
        assert_eq!(whole, outcome(trainer, &history), "step {step}");
    }
}

#[test]
fn a_training_that_is_stopped_in_a_validation_goes_on_with_it() {
    let scratch = scratch("stop-validation");
    let path = scratch.join("checkpoint");
    let whole = unbroken(&one(), &compile(), &quiet().validation(&batches()));
    let flag = Arc::new(AtomicBool::new(false));
    let validation = batches_that_stop(2, &flag);
    let mut trainer = one().compile(model(), compile()).unwrap();
    let fit = quiet().checkpoint(&path).stop_when(&flag);
    let error = trainer.fit(&batches(), fit.validation(&validation));
    let error = error.unwrap_err().to_string();
    let expected = format!("stopped after step {STEPS}, in epoch 1;");
    assert!(error.contains(&expected), "{error}");
    let mut trainer = one().compile(model(), compile()).unwrap();
    trainer.restore_checkpoint(&path).unwrap();
    let fit = quiet().validation(&batches()).resume();
    let history = trainer.fit(&batches(), fit).unwrap();
    assert_eq!(whole, outcome(trainer, &history));
}

#[test]
fn a_training_moves_from_strategy_to_strategy() {
    let scratch = scratch("moves");
    let path = scratch.join("checkpoint");
    let whole = unbroken(&one(), &compile(), &quiet());
    let strategies = [
        one(),
        mirrored(2),
        mirrored(4),
        central(2),
        pipeline(),
        mesh(),
    ];
    let mut last = None;
    // Two steps on each: in the middle and at the end of epochs.
    for (place, strategy) in strategies.iter().enumerate() {
        let mut trainer = strategy.compile(model(), compile()).unwrap();
        let mut fit = quiet();
        if place > 0 {
            trainer.restore_checkpoint(&path).unwrap();
            fit = fit.resume();
        }
        if place + 1 == strategies.len() {
            let history = trainer.fit(&batches(), fit).unwrap();
            last = Some(outcome(trainer, &history));
            break;
        }
        // What the epoch has read already is not read again.
        let batches = batches_from(2 * place, 2);
        let error = trainer.fit(&batches, fit).unwrap_err();
        assert!(error.to_string().contains("pulled the plug"), "{error}");
        trainer.save_checkpoint(&path).unwrap();
    }
    let last = last.unwrap();
    assert_eq!(whole.iterations, last.iterations);
    for ((name, a), (other, b)) in whole.values.iter().zip(&last.values) {
        assert_eq!(name, other);
        let apart = apart(&a.to_f64(), &b.to_f64());
        assert!(apart <= 1e-5, "`{name}` is {apart:e} apart");
    }
    assert!(apart(&whole.predicted.to_f64(), &last.predicted.to_f64()) <= 1e-4);
    for (a, b) in whole.epochs.iter().zip(&last.epochs) {
        assert_eq!((a.0, a.1), (b.0, b.1));
        for ((name, a), (_, b)) in a.2.iter().zip(&b.2) {
            let (a, b) = (f64::from_bits(*a), f64::from_bits(*b));
            assert!((a - b).abs() <= 1e-5 * a.abs().max(1.0), "{name}: {a} {b}");
        }
    }
}

/// As [`batches_of`], for steps after others.
fn batches_from(before: usize, steps: usize) -> Batches {
    let rows = |steps: usize| steps / STEPS * ROWS + steps % STEPS * 6;
    let count = rows(before + steps) - rows(before);
    let left = Arc::new(AtomicUsize::new(count));
    let limited = self::rows().map(move |example| {
        let take = |left: usize| left.checked_sub(1);
        match left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(_) => Ok(example),
            Err(_) => Err(Error::User("pulled the plug".into())),
        }
    });
    limited.batch(6).prefetch(0)
}

#[test]
fn fit_writes_checkpoints_on_the_way() {
    let scratch = scratch("fit");
    let path = scratch.join("runs/checkpoint");
    let strategy = one();
    let whole = unbroken(&strategy, &compile(), &quiet());
    let mut trainer = strategy.compile(model(), compile()).unwrap();
    let fit = quiet().checkpoint(&path).save_freq(2);
    broken_off(&mut trainer, fit.clone(), 7);
    // The last before the error, at step 2 of the second epoch; the seventh is done again.
    let state = TrainingState::load(&path).unwrap();
    assert_eq!(
        (state.iterations(), state.position().epoch, state.seed()),
        (6, 1, 11)
    );
    let mut trainer = strategy.compile(model(), compile()).unwrap();
    trainer.restore_checkpoint(&path).unwrap();
    let history = trainer.fit(&batches(), fit.clone().resume()).unwrap();
    assert_eq!(outcome(trainer, &history), whole);
    // The training was done when this was written, but for its end.
    let mut trainer = strategy.compile(model(), compile()).unwrap();
    trainer.restore_checkpoint(&path).unwrap();
    assert_eq!(trainer.position().epoch, EPOCHS as u64);
    let history = trainer.fit(&batches(), fit.resume()).unwrap();
    assert_eq!(outcome(trainer, &history), whole);
    // The weights of a checkpoint are a file as any other.
    let mut model = strategy.compile(model(), compile()).unwrap();
    let weights = path.join("weights.safetensors");
    let report = model.load_weights(weights, phalanx::import::LoadWeights::default());
    report.unwrap();
    let saved = TrainingState::load(&path).unwrap();
    assert_eq!(model.variables().unwrap().len(), saved.variables().len());
    for (name, value) in saved.variables() {
        let set = model.variables().unwrap();
        let (_, set) = set.iter().find(|(other, _)| other == name).unwrap();
        assert_eq!(set, value, "{name}");
    }
}

#[test]
fn the_same_trainer_goes_on_after_an_error() {
    let strategy = one();
    let whole = unbroken(&strategy, &compile(), &quiet());
    let mut trainer = strategy.compile(model(), compile()).unwrap();
    broken_off(&mut trainer, quiet(), 6);
    refuses_a_batch(&mut trainer);
    let history = trainer.fit(&batches(), quiet().resume()).unwrap();
    assert_eq!(outcome(trainer, &history), whole);
}

fn refuses_a_batch(trainer: &mut Trainer) {
    let mut batch = batches().iter(0, 0).next().unwrap().unwrap();
    batch.y.clear();
    trainer.train_on_batch(&batch).unwrap_err();
}

/// Averages and the best epoch's variables are in the place of the last step's then, which a later `fit` goes on from.
#[test]
fn what_fails_after_the_last_step_leaves_it_to_go_on_from() {
    let best = |fit: Fit| fit.validation(&batches()).keep_best("val_loss");
    let last = Compile {
        optimizer: Adam::new(0.05).into(),
        ..compile()
    };
    let cases = [(compile(), false, false), (last, true, true)];
    for (compile, keeps_best, fails) in cases {
        let of = |fit| if keeps_best { best(fit) } else { fit };
        let whole = unbroken(&one(), &compile, &of(quiet()));
        let mut trainer = one().compile(model(), compile).unwrap();
        let failing = Lambda::new().on_train_end(move |_| match fails {
            true => Err(Error::User("a full disk".into())),
            false => Ok(()),
        });
        let shorter = of(Fit::epochs(EPOCHS - 1).progress(Progress::Silent));
        let ended = trainer.fit(&batches(), shorter.callback(failing));
        assert_eq!(ended.is_err(), fails);
        refuses_a_batch(&mut trainer);
        let history = trainer.fit(&batches(), of(quiet()).resume()).unwrap();
        assert_eq!(outcome(trainer, &history), whole, "{keeps_best}");
    }
}

/// The end of a `fit` puts the averages or the best epoch's variables in the place of the last step's; going on begins with
/// those of the last step, on the same trainer as from a checkpoint that is written then.
#[test]
fn a_training_that_was_done_goes_on_as_if_it_had_not_ended() {
    let scratch = scratch("done");
    let path = scratch.join("checkpoint");
    let best = quiet().validation(&batches()).keep_best("val_loss");
    for fit in [quiet(), best] {
        let whole = unbroken(&one(), &compile(), &fit);
        let shorter = Fit::epochs(EPOCHS - 1).progress(Progress::Silent);
        let shorter = match fit.clone() {
            _ if path.exists() => shorter.validation(&batches()).keep_best("val_loss"),
            _ => shorter,
        };
        let mut trainer = one().compile(model(), compile()).unwrap();
        trainer.fit(&batches(), shorter).unwrap();
        trainer.save_checkpoint(&path).unwrap();
        trainer.fit(&batches(), fit.clone().resume()).unwrap();
        // Nothing is left to do, and nothing changes.
        let history = trainer.fit(&batches(), fit.clone().resume()).unwrap();
        assert_eq!(outcome(trainer, &history), whole);
        let mut trainer = one().compile(model(), compile()).unwrap();
        trainer.restore_checkpoint(&path).unwrap();
        let history = trainer.fit(&batches(), fit.resume()).unwrap();
        assert_eq!(outcome(trainer, &history), whole);
    }
}

#[test]
fn an_epoch_whose_validation_failed_keeps_its_results() {
    let strategy = one();
    let fit = quiet().validation(&batches());
    let whole = unbroken(&strategy, &compile(), &fit);
    let mut trainer = strategy.compile(model(), compile()).unwrap();
    // All of one validation, and a part of the next.
    let failing = quiet().validation(&batches_of(STEPS + 1));
    let error = trainer.fit(&batches(), failing).unwrap_err().to_string();
    assert!(error.contains("pulled the plug"), "{error}");
    let history = trainer.fit(&batches(), fit.resume()).unwrap();
    assert_eq!(outcome(trainer, &history), whole);
}
