//! Replicas on several devices do as one does with the whole batch.

mod accumulation;
mod cases;
mod errors;
mod execution;
#[path = "../four_devices/mod.rs"]
mod four_devices;
mod lazy;
mod narrow;
mod overflow;
mod pytorch;
mod spectral;
mod table;
mod ways;
mod whole_examples;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use four_devices::{careful_engine, engine, quick_engine};
use phalanx::data::{AutoShardPolicy, Batch, Worker};
use phalanx::fit::callbacks::{Lambda, from_config};
use phalanx::prelude::*;
use phalanx::schedules::RampUpExponentialDecay;
use phalanx_testkit::{Scratch, relative_difference as apart};
use ways::{Place, Way};

fn names(replicas: usize) -> Vec<String> {
    (0..replicas)
        .map(|device| format!("cpu:{device}"))
        .collect()
}

fn mirrored(replicas: usize) -> MirroredStrategy {
    MirroredStrategy::on(engine())
        .devices(names(replicas))
        .unwrap()
}

fn pairs(logs: &Logs) -> Vec<(String, f64)> {
    logs.iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

fn values(trainer: &Trainer) -> Vec<(String, Vec<f64>)> {
    let variables = trainer.variables().unwrap().into_iter();
    variables
        .map(|(name, value)| (name, value.to_f64()))
        .collect()
}

/// The bound.
const TOLERANCE: f64 = 1e-5;

fn batch(rows: usize) -> Batch {
    let data = cases::rows(rows).batch(rows);
    data.iter(0, 0).next().unwrap().unwrap()
}

#[test]
fn batches_smaller_than_the_replicas_leave_some_without_examples() {
    let case = cases::everything();
    let run = |strategy: &MirroredStrategy| {
        let mut trainer = strategy
            .compile(case.model.clone(), case.compile.clone())
            .unwrap();
        for rows in [2, 1, 3, 2] {
            trainer.train_on_batch(&batch(rows)).unwrap();
        }
        let logs = pairs(&trainer.test_on_batch(&batch(3)).unwrap());
        let predicted = trainer.predict_on_batch(&batch(1).x).unwrap();
        assert_eq!(predicted[0].dims(), [1, 3]);
        (values(&trainer), logs, predicted[0].to_f64())
    };
    let (one, many) = (run(&mirrored(1)), run(&mirrored(4)));
    for ((name, a), (_, b)) in one.0.iter().zip(&many.0) {
        assert!(apart(a, b) <= TOLERANCE, "{name}");
    }
    for ((name, a), (_, b)) in one.1.iter().zip(&many.1) {
        assert!((a - b).abs() <= TOLERANCE, "{name} {a} {b}");
    }
    assert!(apart(&one.2, &many.2) <= TOLERANCE);
}

/// Of batches of 10 this process has 5 rows, of which no replica and no micro-batch has as many as another; nobody has the others.
#[test]
fn data_that_are_sharded_by_hand_train_as_on_one_device() {
    check_sharded_by_hand(20, Worker::new(1, 2));
    // Of the last step, of one row, one of the workers has none.
    check_sharded_by_hand(11, Worker::new(0, 2));
    check_sharded_by_hand(11, Worker::new(1, 2));
}

fn check_sharded_by_hand(rows: usize, worker: Worker) {
    let part = cases::rows(rows).batch(10);
    let part = part.shard(worker, AutoShardPolicy::Data).unwrap();
    let train = |place| {
        let compile = Compile {
            optimizer: Sgd::new(0.5).into(),
            loss: SparseCategoricalCrossentropy::from_logits().into(),
            ..Compile::default()
        };
        let model = Sequential::new([6])
            .add(Dense::new(8).activation(tanh))
            .add(Dense::new(3));
        let strategy = Way::of(place).strategy(quick_engine(), 4, 0);
        let mut trainer = strategy.compile(model, compile).unwrap();
        let fit = Fit::epochs(2).progress(Progress::Silent);
        let history = trainer.fit(&part, fit).unwrap();
        let loss = history.epochs[1].logs.get("loss").unwrap();
        trainer.evaluate(&part).unwrap();
        let here = part.iter(0, 0).map(|batch| batch.unwrap().rows());
        let predicted = trainer.predict(&part).unwrap();
        assert_eq!(predicted[0].dims()[0], here.sum::<usize>(), "{place:?}");
        (values(&trainer), loss)
    };
    let (one, loss) = train(Place::OneDevice);
    for place in [
        Place::Mirrored(2),
        Place::Shares,
        Place::Mesh(2, 1),
        Place::Pipeline(2),
    ] {
        let (many, its_loss) = train(place);
        for ((name, a), (_, b)) in one.iter().zip(&many) {
            assert!(apart(a, b) <= TOLERANCE, "{place:?}: {name}");
        }
        assert!(
            (loss - its_loss).abs() <= TOLERANCE,
            "{place:?}: {its_loss}"
        );
    }
}

fn small() -> Trainer {
    let compile = Compile {
        optimizer: Sgd::new(0.5).into(),
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        ..Compile::default()
    };
    let model = Sequential::new([6]).add(Dense::new(3));
    let strategy = OneDeviceStrategy::on(quick_engine());
    strategy.compile(model, compile).unwrap()
}

/// Steps without a row here are no steps, also of what a checkpoint counts.
#[test]
fn a_training_on_divided_data_goes_on_as_if_it_had_not_ended() {
    let folder = Scratch::new(env!("CARGO_TARGET_TMPDIR"), "divided-by-hand");
    let path = folder.join("backup");
    // Of each second batch, which has one row, the other worker has it.
    let data = cases::rows(11).batch(10);
    let data = data.shard(Worker::new(1, 2), AutoShardPolicy::Data);
    let data = data.unwrap().repeat_forever();
    let fit = || Fit::epochs(1).steps_per_epoch(6).progress(Progress::Silent);
    let mut unbroken = small();
    unbroken.fit(&data, fit()).unwrap();
    assert_eq!(unbroken.iterations(), 6);
    let stop = Arc::new(AtomicBool::new(false));
    let asks = Arc::clone(&stop);
    let ask = Lambda::new().on_train_batch_begin(move |_, cx| {
        asks.fetch_or(cx.iterations() >= 2, Ordering::Relaxed);
        Ok(())
    });
    let mut first = small();
    let stopped = first.fit(
        &data,
        fit().checkpoint(&path).callback(ask).stop_when(&stop),
    );
    assert!(
        matches!(stopped, Err(phalanx::Error::Stopped(_))),
        "{stopped:?}"
    );
    assert_eq!(first.iterations(), 3);
    let mut second = small();
    second.restore_checkpoint(&path).unwrap();
    second.fit(&data, fit().resume()).unwrap();
    assert_eq!(second.iterations(), 6);
    assert_eq!(values(&second), values(&unbroken));
}

#[test]
fn a_worker_that_has_no_row_of_endless_data_is_told() {
    let data = cases::rows(1).batch(10);
    let data = data.shard(Worker::new(1, 2), AutoShardPolicy::Data);
    let data = data.unwrap().repeat_forever();
    let fit = Fit::epochs(1).steps_per_epoch(5).progress(Progress::Silent);
    let error = small().fit(&data, fit).unwrap_err().to_string();
    assert!(
        error.contains("worker 1 of 2 has no row of any batch"),
        "{error}"
    );
}

#[test]
fn a_model_moves_between_strategies() {
    let case = cases::everything();
    let folder = std::env::temp_dir().join(format!("phalanx-replicas-{}", std::process::id()));
    let data = case.data.batch(case.batch);
    let mut trainer = mirrored(3)
        .compile(case.model.clone(), case.compile.clone())
        .unwrap();
    trainer
        .fit(&data, Fit::epochs(1).progress(Progress::Silent))
        .unwrap();
    trainer.save(&folder).unwrap();
    let (live, predicted) = (
        trainer.evaluate(&data).unwrap(),
        trainer.predict(&data).unwrap(),
    );
    let saved = SavedModel::load(&folder).unwrap();
    let central = CentralStorageStrategy::on(engine())
        .compute_devices(names(2))
        .unwrap();
    let strategies: [Box<dyn Strategy>; 3] = [
        Box::new(OneDeviceStrategy::on(engine())),
        Box::new(mirrored(2)),
        Box::new(central),
    ];
    for strategy in strategies {
        let mut loaded = strategy
            .compile(saved.clone(), case.compile.clone())
            .unwrap();
        let tested = loaded.evaluate(&data).unwrap();
        for ((name, a), (_, b)) in pairs(&live).iter().zip(pairs(&tested)) {
            assert!((a - b).abs() <= TOLERANCE, "{name} {a} {b}");
        }
        let again = loaded.predict(&data).unwrap();
        assert!(apart(&predicted[0].to_f64(), &again[0].to_f64()) <= TOLERANCE);
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn moving_statistics_are_those_of_all_replicas() {
    let model = || {
        let model = Sequential::new([6])
            .add(BatchNorm::new().momentum(0.5))
            .add(Dense::new(3));
        model.build().unwrap()
    };
    let compile = || Compile {
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        ..Compile::default()
    };
    let batch = batch(7);
    let mut trainer = mirrored(2).compile(model(), compile()).unwrap();
    trainer.train_on_batch(&batch).unwrap();
    let x = batch.x[0].to_f64();
    // Four rows and three, each with a mean of its own, the mean of both by their rows.
    let mean = |from: usize, to: usize, channel: usize| {
        (from..to).map(|row| x[row * 6 + channel]).sum::<f64>() / (to - from) as f64
    };
    let (_, moving) = values(&trainer)
        .into_iter()
        .find(|(name, _)| name.ends_with("moving_mean"))
        .unwrap();
    for (channel, moving) in moving.iter().enumerate() {
        let expected = 0.5 * (4.0 * mean(0, 4, channel) + 3.0 * mean(4, 7, channel)) / 7.0;
        assert!((moving - expected).abs() < 1e-6, "{moving} {expected}");
    }
}

#[test]
fn devices_are_told_apart() {
    let message = |names: &[&str]| {
        let strategy = MirroredStrategy::on(engine()).devices(names);
        strategy.unwrap_err().to_string()
    };
    let all = "cpu:0, cpu:1, cpu:2, cpu:3";
    assert_eq!(
        message(&["CPU:0", "/device:CPU:0"]),
        format!("device `/device:CPU:0` is named twice; name each device once, of {all}")
    );
    assert_eq!(
        message(&["/gpu:1"]),
        format!("there is no device `/gpu:1`; there are {all}")
    );
    assert!(
        message(&["cpu:4"])
            .starts_with("there is no device `cpu:4`: the CPU can be divided into more")
    );
    assert!(message(&["printer"]).contains("expected a kind and a number, as in `cpu:0`"));
    assert_eq!(
        message(&[]),
        format!("no device is named; name some of {all}, or leave the list out to use all")
    );
    assert!(
        OneDeviceStrategy::device(engine(), "tpu:0")
            .unwrap_err()
            .to_string()
            .contains(all)
    );
    let central = CentralStorageStrategy::on(engine()).parameter_device("cpu:9");
    assert!(central.unwrap_err().to_string().contains(all));
    let shares = mirrored(2).shares(&[1, 2, 3]).unwrap_err().to_string();
    assert_eq!(
        shares,
        "there are 3 shares for 2 replicas; give one for each"
    );
}

#[test]
fn without_a_tpu_the_error_says_where_one_was_looked_for() {
    let error = TpuStrategy::new().unwrap_err().to_string();
    assert!(error.contains("tpu") && error.contains("looked"), "{error}");
}

#[test]
fn a_training_says_where_it_runs() {
    let line = |strategy: &dyn Strategy, rows| strategy.placement().describe(rows);
    assert_eq!(
        line(&OneDeviceStrategy::on(engine()), 32),
        "training on cpu:0: batch 32"
    );
    let two = line(&mirrored(2), 32);
    assert!(
        two.starts_with(
            "training on 2 replicas (cpu:0, cpu:1): global batch 32, 16 per replica; gradients by "
        ),
        "{two}"
    );
    let three = line(&mirrored(3), 32);
    assert!(
        three.contains("global batch 32, [11, 11, 10] per replica"),
        "{three}"
    );
    let central = line(&CentralStorageStrategy::on(engine()), 32);
    assert!(central.ends_with("variables on cpu:0"), "{central}");
}

#[test]
fn replicas_are_timed_one_by_one() {
    let case = cases::everything();
    let trainer = mirrored(2)
        .compile(case.model.clone(), case.compile.clone())
        .unwrap();
    let before = values(&trainer);
    let times = trainer.replica_times(&batch(7), 3).unwrap();
    let rows: Vec<usize> = times.replicas.iter().map(|time| time.rows).collect();
    assert_eq!(rows, [4, 3]);
    assert!(times.replicas.iter().all(|time| !time.median.is_zero()));
    assert_eq!(values(&trainer), before, "nothing is trained");
}

#[test]
fn a_schedule_that_grows_with_the_replicas_knows_them() {
    let rate = |replicas| {
        let compile = Compile {
            optimizer: Sgd::new(RampUpExponentialDecay::new(0.1, 1, 100)).into(),
            ..cases::everything().compile
        };
        // What brings variables back does not grow with the rate.
        let model = cases::everything_but(cases::Part::Constraints).model;
        let mut trainer = mirrored(replicas).compile(model, compile).unwrap();
        let before = values(&trainer);
        // The first at a rate of 0, and so from the same variables.
        trainer.train_on_batch(&batch(4)).unwrap();
        trainer.train_on_batch(&batch(4)).unwrap();
        // The step itself, whose schedule is part of the program; moving statistics do not follow the rate.
        let steps = before.into_iter().zip(values(&trainer));
        let steps = steps.filter(|((name, _), _)| !name.contains("moving"));
        let steps = steps.map(|((_, a), (_, b))| a.iter().zip(b).map(|(a, b)| b - a).collect());
        let steps: Vec<Vec<f64>> = steps.collect();
        (trainer.learning_rate().unwrap(), steps.concat())
    };
    let ((one, by_one), (four, by_four)) = (rate(1), rate(4));
    assert!((four - 4.0 * one).abs() < 1e-9, "{one} {four}");
    let expected: Vec<f64> = by_one.iter().map(|step| 4.0 * step).collect();
    assert!(
        expected.iter().any(|step| step.abs() > 1e-5),
        "{expected:?}"
    );
    assert!(apart(&expected, &by_four) < 1e-4);
}

/// As a schedule of the optimizer does.
#[test]
fn a_schedule_of_a_callback_knows_the_replicas() {
    let ramp = serde_json::json!({
        "kind": "ramp_up_exponential_decay", "max_learning_rate": 0.1, "ramp_up_steps": 2, "decay_steps": 3
    });
    let schedule = Schedule::from_value(&ramp).unwrap();
    // Shared by trainings of another size.
    let callbacks = ["epoch", "step"].map(|per| {
        let settings = serde_json::json!({"schedule": ramp, "per": per});
        (
            per,
            from_config("learning_rate_scheduler", &settings).unwrap(),
        )
    });
    for replicas in [2, 4] {
        for (per, callback) in &callbacks {
            let case = cases::everything();
            let compile = Compile {
                optimizer: Sgd::new(0.5).into(),
                ..case.compile
            };
            let mut trainer = mirrored(replicas).compile(case.model, compile).unwrap();
            let fit = Fit::epochs(3).progress(Progress::Silent);
            let fit = fit.callback(Arc::clone(callback));
            let rates = trainer.fit(&cases::rows(8).batch(4), fit).unwrap();
            let scaled = schedule.clone().for_replicas(replicas);
            for (epoch, rate) in rates.of("learning_rate").into_iter().enumerate() {
                let number = match *per {
                    "epoch" => epoch,
                    _ => 2 * epoch + 1,
                };
                let expected = scaled.value(number as u64);
                assert!(
                    (rate - expected).abs() < 1e-6,
                    "{per} {epoch}: {rate} {expected}"
                );
            }
        }
    }
}
