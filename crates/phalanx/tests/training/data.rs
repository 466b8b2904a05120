//! The data of a training: where it goes on, streams, examples that are corrupt, waits.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use phalanx::Error;
use phalanx::data::{
    AutoShardPolicy, CorruptPolicy, Example, IndexCache, LengthBuckets, Position, Segment, Stream,
    TfRecordOptions, Worker, write_tfrecord,
};
use phalanx::fit::callbacks::Lambda;
use phalanx::prelude::*;
use phalanx_graph::Platform;
use phalanx_testkit::test_platform;

use crate::{arrays, dataset, mlp, notices, sgd, silent, strategy, trainer, values};

/// Counts the examples that are read of a dataset.
fn labels_seen(data: &Dataset) -> (Dataset, Arc<Mutex<Vec<i64>>>) {
    let seen: Arc<Mutex<Vec<i64>>> = Arc::default();
    let log = Arc::clone(&seen);
    let data = data.map(move |example| {
        log.lock().unwrap().push(example.y[0].to_f64()[0] as i64);
        Ok(example)
    });
    (data, seen)
}

/// Reads twenty examples, and fails once, at the third batch of the second epoch.
fn failing_once() -> Dataset {
    let failing = Arc::new(Mutex::new(Some(8)));
    dataset(20).shuffle(3).map(move |example| {
        let mut left = failing.lock().unwrap();
        match left.as_mut() {
            Some(0) => *left = None,
            Some(count) => {
                *count -= 1;
                return Ok(example);
            }
            None => return Ok(example),
        }
        Err(Error::User("once".into()))
    })
}

/// A training whose first step is at a position.
fn trained(data: &Dataset, fit: Fit) -> Trainer {
    let mut trainer = strategy().compile(mlp(), sgd(0.1)).unwrap();
    let fit = fit.progress(Progress::Silent);
    trainer.fit(&data.batch(4), fit).unwrap();
    trainer
}

#[test]
fn training_goes_on_within_an_epoch() {
    let expected = trained(&dataset(20).shuffle(3), Fit::epochs(2));
    assert_eq!(*expected.position(), Position::start(2));
    let data = failing_once();
    let mut trainer = strategy().compile(mlp(), sgd(0.1)).unwrap();
    let quiet = |fit: Fit| fit.progress(Progress::Silent);
    // Read in their order, each when it is asked for.
    let data = data.batch(4).prefetch(0);
    let failed = trainer.fit(&data, quiet(Fit::epochs(2)));
    assert_eq!(failed.unwrap_err().to_string(), "once");
    let position = trainer.position().clone();
    assert_eq!((position.epoch, position.segments[0].steps), (0, 2));
    let history = trainer
        .fit(&data, quiet(Fit::epochs(2).position(position)))
        .unwrap();
    let steps: Vec<usize> = history.epochs.iter().map(|epoch| epoch.steps).collect();
    assert_eq!(steps, [3, 5]);
    assert_eq!(trainer.variables().unwrap(), expected.variables().unwrap());
}

#[test]
fn what_was_read_of_an_epoch_is_not_read_again() {
    let (data, seen) = labels_seen(&dataset(20).shuffle(3));
    let position = Position {
        epoch: 1,
        segments: vec![Segment {
            policy: AutoShardPolicy::Data,
            workers: 1,
            replicas: 1,
            batch: 4,
            steps: 3,
            left_out: 0,
            buckets: None,
        }],
    };
    trained(&data, Fit::epochs(2).position(position));
    assert_eq!(seen.lock().unwrap().len(), 8);
}

/// Two epochs of five steps are one of ten, of data that have three and of data without end.
#[test]
fn epochs_of_some_steps_go_on_where_the_one_before_ended() {
    let trained = |batches: &Batches, fit: Fit| {
        let mut trainer = trainer(mlp(), sgd(0.1));
        trainer.fit(batches, fit).unwrap();
        assert_eq!(trainer.iterations(), 10);
        values(&trainer)
    };
    let three = dataset(24).shuffle(5).batch(8);
    let endless = three.repeat_forever();
    let once = trained(&endless.epochs_of(10), silent(1));
    assert_eq!(trained(&endless.epochs_of(5), silent(2)), once);
    assert_eq!(trained(&three.epochs_of(5), silent(2)), once);
    assert_eq!(trained(&three.epochs_of(2), silent(5)), once);
    // Without it the second epoch begins with the first batch again.
    assert_ne!(trained(&endless, silent(2).steps_per_epoch(5)), once);
}

#[test]
fn a_stream_trains_like_its_examples() {
    let data = dataset(10);
    let (rows, examples) = (data.clone(), data.batch(4));
    let stream = Stream::new(move |_| {
        let rows = rows.clone();
        (0..10).map(move |i| rows.get(0, i))
    });
    let quiet = |fit: Fit| fit.progress(Progress::Silent);
    let mut ours = strategy().compile(mlp(), sgd(0.1)).unwrap();
    let history = ours
        .fit(&stream.batch(4).prefetch(2), quiet(Fit::epochs(2)))
        .unwrap();
    let mut expected = strategy().compile(mlp(), sgd(0.1)).unwrap();
    expected.fit(&examples, quiet(Fit::epochs(2))).unwrap();
    assert_eq!(ours.variables().unwrap(), expected.variables().unwrap());
    let epoch = &history.epochs[1];
    assert_eq!((epoch.steps, epoch.input.stages[0].examples), (3, 10));
    let fit = quiet(Fit::epochs(1).steps_per_epoch(2));
    let history = ours.fit(&stream.batch(4), fit).unwrap();
    assert_eq!(history.epochs[0].steps, 2);
}

#[test]
fn steps_without_rows_and_corrupt_examples_are_no_harm() {
    let quiet = Fit::epochs(1).progress(Progress::Silent);
    // The last step of 5 rows is of the first worker.
    let data = dataset(5).batch(4);
    let part = data
        .shard(Worker::new(1, 2), AutoShardPolicy::Data)
        .unwrap();
    let mut trainer = strategy().compile(mlp(), sgd(0.1)).unwrap();
    let history = trainer.fit(&part, quiet.clone()).unwrap();
    assert_eq!(history.epochs[0].steps, 2);
    assert!(history.epochs[0].logs["loss"].is_finite());
    let corrupt = dataset(8).map(|example| match example.y[0].to_f64()[0] as i64 {
        1 => Err(Error::Data {
            source_name: "f".into(),
            place: "byte 0".into(),
            message: "no".into(),
        }),
        _ => Ok(example),
    });
    let ones = (0..8).filter(|i| i * i % 7 % 3 == 1).count() as u64;
    let history = trainer
        .fit(&corrupt.skip_corrupt().batch(4), quiet)
        .unwrap();
    assert_eq!(history.epochs[0].input.skipped, ones);
}

/// Examples of which those of these numbers are corrupt.
fn with_corrupt(rows: usize, corrupt: &'static [usize]) -> Dataset {
    let (x, y) = arrays(rows);
    let numbers: Vec<i32> = (0..rows as i32).collect();
    let all = Dataset::from_arrays(vec![x, HostTensor::new([rows], &numbers)], y).unwrap();
    all.map(|mut example| {
        let number = example.x.remove(1).to_f64()[0] as usize;
        if corrupt.contains(&number) {
            return Err(Error::Data {
                source_name: "f".into(),
                place: format!("example {number}"),
                message: "no".into(),
            });
        }
        Ok(example)
    })
}

#[test]
fn an_epoch_or_a_validation_of_nothing_is_an_error() {
    let mut trainer = strategy().compile(mlp(), sgd(0.1)).unwrap();
    let told = |error: Error, part: &str| {
        let error = error.to_string();
        assert!(error.contains(part), "{error}");
    };
    let none = with_corrupt(4, &[0, 1, 2, 3]).skip_corrupt();
    told(
        trainer.fit(&none.batch(2), silent(1)).unwrap_err(),
        "trained on nothing: all of its 4 examples are corrupt",
    );
    let endless = none.repeat_forever().batch(2).prefetch(2);
    told(
        trainer
            .fit(&endless, silent(1).steps_per_epoch(3))
            .unwrap_err(),
        "every example of the data is corrupt",
    );
    let stream = Stream::new(|_| std::iter::empty());
    told(
        trainer.fit(&stream.batch(2), silent(1)).unwrap_err(),
        "trained on nothing: the data have no example",
    );
    let weightless = dataset(4)
        .with_weights(&HostTensor::new([4], &[0f32; 4]))
        .unwrap();
    told(
        trainer.fit(&weightless.batch(2), silent(1)).unwrap_err(),
        "no example of its 2 steps has a weight",
    );
    let good = dataset(4).batch(2);
    let fit = silent(1).validation(&none.batch(2)).keep_best("val_loss");
    told(
        trainer.fit(&good, fit).unwrap_err(),
        "cannot evaluate: no example has a weight above 0, and 4 are corrupt",
    );
    assert!(trainer.evaluate(&weightless.batch(4)).is_err());
    assert!(trainer.fit(&good, silent(1)).is_ok());
}

#[test]
fn batches_left_out_are_no_steps_of_an_epoch_that_goes_on() {
    let data = with_corrupt(8, &[2, 3]).skip_corrupt().repeat_forever();
    let batches = data.batch(2);
    let mut trainer = strategy().compile(mlp(), sgd(0.1)).unwrap();
    let fit = silent(1).steps_per_epoch(5);
    let whole = trainer.fit(&batches, fit.clone()).unwrap();
    assert_eq!(whole.epochs[0].steps, 5);
    let mut iter = batches.iter(0, 0);
    assert_eq!(iter.by_ref().take(2).count(), 2, "the first and the third");
    let rest = trainer.fit(&batches, fit.position(iter.position()));
    assert_eq!(rest.unwrap().epochs[0].steps, 3);
}

/// How many notices have all of these.
fn told(parts: &[&str]) -> usize {
    let notices = notices().lock().unwrap();
    let has_all = |line: &&String| parts.iter().all(|part| line.contains(part));
    notices.iter().filter(has_all).count()
}

#[test]
fn epochs_that_are_not_what_was_asked_for_are_told() {
    let mut trainer = strategy().compile(mlp(), sgd(0.1)).unwrap();
    let rows = dataset(10);
    let stream = Stream::new(move |_| {
        let rows = rows.clone();
        (0..10).map(move |i| rows.get(0, i))
    });
    let fit = || silent(2).steps_per_epoch(9);
    trainer.fit(&stream.batch(4), fit()).unwrap();
    let short = ["ended after 3 batches", "steps_per_epoch is 9"];
    assert_eq!(told(&short), 1, "of two such epochs");
    let endless = dataset(10).repeat_forever().batch(4);
    trainer.fit(&endless, fit()).unwrap();
    let anew = ["begins the endless data anew", "first 9 batches"];
    assert_eq!((told(&short), told(&anew)), (1, 1));
}

/// The loss of a step is divided by its weights.
#[test]
fn weights_that_change_nothing_are_told_and_negative_ones_refused() {
    let weighing = |weight: f32| {
        dataset(4).map(move |mut example: Example| {
            example.weight = Some(weight);
            Ok(example)
        })
    };
    let mut trainer = strategy().compile(mlp(), sgd(0.1)).unwrap();
    let alone = ["each step has one example", "change nothing"];
    trainer.fit(&weighing(3.0).batch(4), silent(1)).unwrap();
    trainer.fit(&weighing(1.0).batch(1), silent(1)).unwrap();
    assert_eq!(told(&alone), 0);
    trainer.fit(&weighing(3.0).batch(1), silent(2)).unwrap();
    assert_eq!(told(&alone), 1);
    let negative = weighing(-2.0).batch(4);
    let refused = "the weight of example 0 of the epoch is -2, expected a finite number from 0 up";
    for error in [
        trainer.fit(&negative, silent(1)).unwrap_err(),
        trainer.evaluate(&negative).unwrap_err(),
    ] {
        assert!(error.to_string().contains(refused), "{error}");
    }
}

#[test]
fn why_a_callback_ends_a_training_is_told() {
    let mut trainer = strategy().compile(mlp(), sgd(0.1)).unwrap();
    let stop = Lambda::new().on_epoch_end(|done, cx| {
        if done.epoch == 1 {
            cx.stop("two epochs are enough for this test");
        }
        Ok(())
    });
    let fit = silent(5).callback(stop);
    trainer.fit(&dataset(4).batch(4), fit).unwrap();
    let why = "note: the training ends after 2 of 5 epochs: two epochs are enough for this test";
    assert_eq!(told(&[why]), 1);
}

#[test]
fn corrupt_examples_in_no_bucket_are_counted_in_each_epoch() {
    let data = with_corrupt(20, &[1, 4, 6]).skip_corrupt();
    let buckets = LengthBuckets::new([9], [4, 4]).unwrap();
    let by_length = |data: &Dataset| data.bucket_by_sequence_length(|_| 6, &buckets).unwrap();
    let batches = by_length(&data);
    let mut trainer = trainer(mlp(), sgd(0.1));
    let fit = silent(2).validation(&batches);
    let history = trainer.fit(&batches, fit).unwrap();
    for epoch in &history.epochs {
        let counts = (epoch.input.skipped, epoch.input.validation_skipped);
        assert_eq!(counts, (3, 3));
    }
}

#[test]
fn corrupt_examples_leave_one_program_and_what_the_others_teach() {
    // A loss is traced once for each program.
    let programs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&programs);
    let loss = Loss::custom("counted", move |y_true, y_pred| {
        counted.fetch_add(1, Ordering::Relaxed);
        Loss::from(SparseCategoricalCrossentropy::from_logits()).per_example(y_true, y_pred)
    });
    let compile = Compile {
        loss: loss.into(),
        ..sgd(0.1)
    };
    // Rows of the batches: 3, 2, 4, 1, 4.
    let data = with_corrupt(20, &[1, 4, 6, 12, 13, 15]).skip_corrupt();
    let batches = data.batch(4);
    let mut ours = trainer(mlp(), compile);
    let fit = silent(1).validation(&batches);
    let history = ours.fit(&batches, fit).unwrap();
    assert_eq!(
        programs.load(Ordering::Relaxed),
        3,
        "training on full batches and on filled ones, and validation"
    );
    let input = &history.epochs[0].input;
    assert_eq!((input.skipped, input.validation_skipped), (6, 6));
    let mut expected = trainer(mlp(), sgd(0.1));
    for i in 0..5 {
        expected
            .train_on_batch(&batches.get(0, i).unwrap())
            .unwrap();
    }
    let values = |trainer: &Trainer| -> Vec<f64> {
        let variables = trainer.variables().unwrap();
        variables
            .iter()
            .flat_map(|(_, value)| value.to_f64())
            .collect()
    };
    let (ours_values, expected) = (values(&ours), values(&expected));
    assert!(
        phalanx_testkit::largest_difference(&ours_values, &expected) < 1e-6,
        "{ours_values:?}, expected {expected:?}"
    );
    ours.evaluate(&batches).unwrap();
    ours.predict(&batches).unwrap();
    assert_eq!(told(&["6 corrupt examples left out of the evaluation"]), 1);
    assert_eq!(told(&["6 corrupt examples left out of the prediction"]), 1);
}

#[test]
fn what_is_behind_a_corrupt_length_is_told() {
    let path = std::env::temp_dir().join(format!("phalanx-lost-{}.tfrecord", std::process::id()));
    let mut bytes = Vec::new();
    for i in 0..8u8 {
        write_tfrecord(&mut bytes, &[i; 20]).unwrap();
    }
    // Records of 36 bytes: the length of record 5.
    bytes[5 * 36] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let open = |corrupt| {
        let options = TfRecordOptions {
            corrupt,
            index: IndexCache::Off,
            ..TfRecordOptions::default()
        };
        Dataset::from_tfrecords(&path.to_string_lossy(), &options, |record| {
            let x: Vec<f32> = record[..6].iter().map(|&byte| f32::from(byte)).collect();
            Ok(Example {
                x: vec![HostTensor::new([6], &x)],
                y: vec![HostTensor::scalar(i32::from(record[0] % 3))],
                weight: None,
            })
        })
    };
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    let error = open(CorruptPolicy::Fail).unwrap_err().to_string();
    assert!(
        error.contains(&name)
            && error.contains("at byte 180: corrupt record: the checksum of the length"),
        "{error}"
    );
    let data = open(CorruptPolicy::Skip).unwrap().batch(5);
    let mut ours = trainer(mlp(), sgd(0.1));
    let lost = format!(
        "{name}: the 108 bytes from byte 180 on are left out: corrupt record: the checksum of the length"
    );
    let history = ours.fit(&data, silent(2).validation(&data)).unwrap();
    assert_eq!(history.epochs[0].input.lost_bytes, 108);
    assert_eq!(told(&[&lost]), 2, "of training and of validation");
    ours.evaluate(&data).unwrap();
    assert_eq!(told(&[&lost]), 3);
    std::fs::remove_file(path).unwrap();
}

/// Batches that take this long to read, each when it is asked for.
fn slow(rows: usize, batch: usize, milliseconds: u64) -> Batches {
    let slow = dataset(rows).batch(batch).map(move |batch| {
        std::thread::sleep(Duration::from_millis(milliseconds));
        Ok(batch)
    });
    slow.prefetch(0)
}

#[test]
fn waiting_counts_while_the_device_has_nothing_to_do() {
    // Seconds that devices waited, and that the loop did.
    let waited = |trainer: &mut Trainer, data: &Batches| {
        trainer.fit(data, silent(1)).unwrap();
        let epoch = trainer.fit(data, silent(1)).unwrap().epochs.remove(0);
        let next = epoch.input.stages.last().unwrap().wait.as_secs_f64();
        (epoch.input.bottleneck.waited * epoch.seconds, next)
    };
    let mut fast = trainer(mlp(), sgd(0.1));
    let (devices, host) = waited(&mut fast, &slow(32, 4, 25));
    assert!(
        devices > 0.5 * host && host >= 0.2,
        "a slow source: {devices} of {host} s"
    );
    if test_platform() != Platform::Cpu {
        // No step of this size is slow there.
        return;
    }
    let wide = Sequential::new([6])
        .add(Dense::new(2048).activation(tanh))
        .add(Dense::new(2048).activation(tanh))
        .add(Dense::new(3));
    let mut heavy = trainer(wide, sgd(1e-4));
    let steps = 12;
    let at_once = dataset(steps * 128).batch(128);
    let mut epoch = || heavy.fit(&at_once, silent(1)).unwrap().epochs.remove(0);
    epoch();
    // Half of a step, which is as long as the machine makes it when it does nothing else.
    let least = (0..3).map(|_| epoch().seconds).fold(f64::MAX, f64::min);
    let pause = (least * 1e3 / steps as f64 / 2.0).max(1.0) as u64;
    let (devices, host) = waited(&mut heavy, &slow(steps * 128, 128, pause));
    assert!(
        devices < 0.5 * host && host >= 1e-3 * (steps as u64 * pause) as f64,
        "a slow step: {devices} of {host} s"
    );
}
