//! What workers were given otherwise than the others is named before the first step, and whoever makes other calls does not wait.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use phalanx::data::{AutoShardPolicy, Dataset, Worker};
use phalanx::fit::callbacks::EarlyStopping;
use phalanx::prelude::*;
use phalanx::strategy::MultiWorkerMirroredStrategy;

use super::{cases, on_workers};

/// Trains on the data and with the settings that a worker makes, and returns the error and the steps made.
fn refused(
    strategy: &MultiWorkerMirroredStrategy,
    make: impl Fn(Dataset, Fit, bool) -> (Dataset, Fit),
) -> (String, i64) {
    let case = cases::everything();
    let mut trainer = strategy.compile(case.model, case.compile).unwrap();
    let fit = Fit::epochs(1).progress(Progress::Silent);
    let (data, fit) = make(case.data, fit, strategy.is_chief());
    let error = trainer.fit(&data.batch(case.batch), fit).unwrap_err();
    (error.to_string(), trainer.iterations())
}

type Make = fn(Dataset, Fit, bool) -> (Dataset, Fit);

#[test]
fn data_and_settings_that_differ_are_named_before_the_first_step() {
    let cases: [(&str, Make); 6] = [
        (
            "the order of the training examples",
            |data, fit, is_chief| (data.shuffle(if is_chief { 3 } else { 4 }), fit),
        ),
        ("the number of training examples", |data, fit, is_chief| {
            (data.take(if is_chief { 24 } else { 23 }), fit)
        }),
        (
            "the order of the training examples",
            |data, fit, is_chief| {
                // Rows that a user has divided.
                (data.skip(if is_chief { 0 } else { 12 }).take(12), fit)
            },
        ),
        (
            "the checkpoint of `fit`",
            |data, fit, is_chief| match is_chief {
                true => (data, fit.checkpoint("never/written")),
                false => (data, fit),
            },
        ),
        ("the validation", |data, fit, is_chief| match is_chief {
            true => (data.clone(), fit.validation(&data.batch(8))),
            false => (data, fit),
        }),
        (
            "the list of callbacks",
            |data, fit, is_chief| match is_chief {
                true => (data, fit),
                false => (data, fit.callback(EarlyStopping::new("loss"))),
            },
        ),
    ];
    for (what, make) in cases {
        let told = on_workers(2, 1, |strategy| refused(&strategy, make));
        for (error, steps) in told {
            let expected = format!("{what} differs between workers: worker ");
            assert!(error.contains(&expected), "{what}: {error}");
            assert_eq!(steps, 0);
        }
    }
}

#[test]
fn data_divided_by_hand_are_read_once_where_they_are_given_as_such() {
    let read = Mutex::new(Vec::new());
    on_workers(2, 1, |strategy| {
        let case = cases::everything();
        let mut trainer = strategy.compile(case.model, case.compile).unwrap();
        let rank = strategy.worker();
        // The last batch of the second is not full.
        let own = case.data.skip(12 * rank).take(12 - 2 * rank);
        let few = own.batch(32);
        let own = own.batch(8);
        let own = own
            .shard(Worker::new(rank, 2), AutoShardPolicy::Off)
            .unwrap();
        let fit = Fit::epochs(1).progress(Progress::Silent);
        trainer.fit(&own, fit).unwrap();
        let few = few.shard(Worker::new(rank, 2), AutoShardPolicy::Off);
        trainer.evaluate(&few.unwrap()).unwrap();
        let all = own.iter(0, 0).map(|batch| batch.unwrap().x[0].to_f64());
        read.lock().unwrap().extend(all.flatten());
    });
    let whole = cases::everything().data.batch(22).get(0, 0).unwrap();
    let sorted = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values
    };
    let read = read.into_inner().unwrap();
    assert_eq!(sorted(read), sorted(whole.x[0].to_f64()));
}

/// A map that leaves rows out would have the others count on rows that are not there.
#[test]
fn maps_of_batches_keep_the_rows_of_workers() {
    let told = on_workers(2, 2, |strategy| {
        let case = cases::everything();
        let mut trainer = strategy.compile(case.model, case.compile).unwrap();
        let fewer = case.data.batch(8).map(|mut batch| {
            let rows = batch.rows() - 1;
            for tensor in batch
                .x
                .iter_mut()
                .chain(&mut batch.y)
                .chain(&mut batch.weight)
            {
                let dims = [&[rows], &tensor.dims()[1..]].concat();
                let bytes = tensor.bytes().len() / (rows + 1) * rows;
                let shape = Shape::new(tensor.dtype(), dims);
                *tensor = HostTensor::from_bytes(shape, &tensor.bytes()[..bytes]).unwrap();
            }
            Ok(batch)
        });
        let fit = Fit::epochs(1).progress(Progress::Silent);
        trainer.fit(&fewer, fit).unwrap_err().to_string()
    });
    assert!(
        told.iter().any(|error| error.contains("made 3 rows of 4")),
        "{told:?}"
    );
}

#[test]
fn whoever_saves_alone_after_the_others_have_ended_does_not_wait_for_them() {
    let folder = std::env::temp_dir().join(format!("phalanx-alone-{}", std::process::id()));
    let errors = on_workers(2, 1, |strategy| {
        let case = cases::everything();
        let mut trainer = strategy.compile(case.model, case.compile).unwrap();
        let fit = Fit::epochs(1).progress(Progress::Silent);
        trainer.fit(&case.data.batch(case.batch), fit).unwrap();
        let begun = Instant::now();
        let saved = strategy.is_chief().then(|| trainer.save(&folder));
        assert!(begun.elapsed() < Duration::from_secs(20));
        saved.map(|saved| saved.unwrap_err().to_string())
    });
    std::fs::remove_dir_all(&folder).unwrap();
    let error = errors[0].as_ref().unwrap();
    assert!(error.contains("rank 1 left the group"), "{error}");
}
