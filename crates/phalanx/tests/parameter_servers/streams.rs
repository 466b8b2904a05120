//! Data that can only be read in order: each worker reads all of them, and trains on the batches that it is given.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use phalanx::data::StreamBatches;
use phalanx::fit::EpochLogs;

use super::*;

/// The rows of a dataset as a stream, in another order in each epoch, in batches of 8.
fn stream_of(data: &Dataset) -> StreamBatches {
    shuffled(data, 3)
}

fn shuffled(data: &Dataset, seed: u64) -> StreamBatches {
    let count = data.len().unwrap();
    let rows: Vec<Example> = (0..count).map(|i| data.get(0, i).unwrap()).collect();
    let stream = Stream::new(move |_| rows.clone().into_iter().map(Ok));
    stream.shuffle(5, seed).batch(8).prefetch(1)
}

/// A training on a stream of as many rows.
fn case(rows: usize) -> Case {
    Case {
        data: cases::rows(rows),
        ..ragged()
    }
}

/// Epochs of three batches, the last of which has one row, and of two full ones: where they end is found by reading.
#[test]
fn a_stream_trains_as_in_one_process() {
    for rows in [17, 16] {
        let case = || case(rows);
        let stream = || stream_of(&case().data);
        let one = OneDeviceStrategy::on(engine(0));
        let one = train_on(&one, &case(), &stream(), |_, fit| fit);
        let modes = [
            (1, Mode::Async),
            (1, Mode::Sync { backup_workers: 0 }),
            (3, Mode::Sync { backup_workers: 0 }),
            (3, Mode::BoundedStaleness { steps: 0 }),
        ];
        for (workers, mode) in modes {
            let options = ParameterServerOptions::new().mode(mode);
            let all = on_workers((workers, 2), &options, |strategy| {
                train_on(&strategy, &case(), &stream(), |_, fit| fit)
            });
            for other in &all {
                compare(&mode.to_string(), TOLERANCE, &one, other);
            }
        }
    }
}

/// The sums of an epoch hold each batch once, whoever was given it.
#[test]
fn workers_that_are_apart_train_on_each_batch_of_a_stream_once() {
    for mode in [Mode::Async, Mode::BoundedStaleness { steps: 1 }] {
        let options = ParameterServerOptions::new().mode(mode);
        let case = || Case {
            epochs: 12,
            ..case(33)
        };
        let all = on_workers((3, 1), &options, |strategy| {
            let counted = Arc::new(AtomicUsize::new(0));
            let seen = Arc::clone(&counted);
            let count_steps = move |epoch: &EpochLogs| {
                seen.fetch_add(epoch.steps, Ordering::Relaxed);
                Ok(())
            };
            let data = stream_of(&case().data);
            let outcome = train_on(&strategy, &case(), &data, |_, fit| {
                fit.after_epoch(count_steps)
            });
            (outcome, counted.load(Ordering::Relaxed))
        });
        for (other, steps) in &all {
            assert_eq!(other.logs, all[0].0.logs);
            assert_eq!(*steps, 12 * 5);
        }
        let losses = all[0].0.logs.iter().filter(|(name, _)| name == "loss");
        let losses: Vec<f64> = losses.map(|(_, value)| *value).collect();
        assert!(losses[11] < 0.8 * losses[0], "{mode}: {losses:?}");
    }
}

/// A checkpoint in the middle of an epoch, with which one process and other workers go on.
#[test]
fn a_training_goes_on_within_an_epoch_of_a_stream() {
    let folder = scratch("stream");
    let stream = || stream_of(&case(17).data);
    let one = OneDeviceStrategy::on(engine(0));
    let reference = train_on(&one, &case(17), &stream(), |_, fit| fit);
    let pattern = folder.join("{epoch}-{batch}");
    let pattern = pattern.to_str().unwrap();
    on_workers((2, 1), &sync(), |strategy| {
        let every = ModelCheckpoint::new(pattern).save_freq(SaveFreq::Batches(2));
        let all = train_on(&strategy, &case(17), &stream(), |_, fit| {
            fit.callback(every)
        });
        compare("saved on the way", TOLERANCE, &reference, &all);
    });
    for name in ["1-2", "2-1"] {
        let from = &folder.join(name);
        let go_on = |trainer: &mut Trainer, fit: Fit| {
            trainer.restore_checkpoint(from).unwrap();
            fit.resume()
        };
        let other = train_on(&one, &case(17), &stream(), go_on);
        compare(name, TOLERANCE, &reference, &other);
        let all = on_workers((3, 2), &sync(), |strategy| {
            train_on(&strategy, &case(17), &stream(), go_on)
        });
        for other in &all {
            compare(name, TOLERANCE, &reference, other);
        }
    }
}

/// A stream that is another in one of the workers: shorter, longer, or of the same rows in another order.
#[test]
fn workers_with_other_streams_are_refused() {
    for (rows, seed) in [(16, 3), (25, 3), (17, 4)] {
        let errors = on_cluster(
            (2, 2),
            &sync(),
            |strategy| {
                let (rows, seed) = if strategy.is_chief() {
                    (17, 3)
                } else {
                    (rows, seed)
                };
                let case = case(rows);
                let compiled = strategy.compile(case.model.clone(), case.compile.clone());
                let fit = Fit::epochs(2).progress(Progress::Silent);
                let trained = compiled.unwrap().fit(&shuffled(&case.data, seed), fit);
                trained.unwrap_err().to_string()
            },
            |served| assert!(served.is_err(), "the job has failed"),
        );
        let is_named = errors.iter().any(|error| error.contains("others"));
        assert!(is_named, "{rows} {seed}: {errors:?}");
    }
}
