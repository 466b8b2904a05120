//! Batches by length train what batches of one length train, on one device and on replicas, also when the training was interrupted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use phalanx::data::{LengthBuckets, Pad};
use phalanx_testkit::Scratch;

use super::lengths::{Sentences, classifier, indices, two_devices};
use super::*;

/// Batches of 6, 4 and 3 sentences of up to 2, 4 and 7 words; the last of each has fewer.
fn buckets() -> LengthBuckets {
    let buckets = LengthBuckets::new([3, 5, 8], [6, 4, 3, 1]).unwrap();
    buckets.shuffle(5)
}

fn by_length(buckets: &LengthBuckets) -> Batches {
    let data = Dataset::from_source(Sentences);
    let made = data.bucket_by_sequence_length(|example| example.x[0].rows(), buckets);
    made.unwrap()
}

/// The same batches, all as long as the longest.
fn of_one_length() -> Batches {
    by_length(&buckets()).pad(Pad {
        multiple: 7,
        ..Pad::default()
    })
}

fn fit() -> Fit {
    Fit::epochs(3).progress(Progress::Silent)
}

type Outcome = (Vec<HostTensor>, Logs, Vec<f64>);

fn outcome(trainer: &mut Trainer, batches: &Batches) -> Outcome {
    let logs = trainer.evaluate(batches).unwrap();
    let predicted = trainer.predict(batches).unwrap()[0].to_f64();
    let values = trainer.variables().unwrap().into_iter();
    (values.map(|(_, value)| value).collect(), logs, predicted)
}

fn trained(strategy: &impl Strategy, input: Input, batches: &Batches) -> Outcome {
    let mut trainer = strategy.compile(classifier(input), tokens_loss()).unwrap();
    trainer.fit(batches, fit()).unwrap();
    outcome(&mut trainer, batches)
}

#[test]
fn batches_by_length_train_as_the_same_of_one_length() {
    let open = || indices(7).any_length();
    let one = OneDeviceStrategy::on(two_devices());
    let replicas = MirroredStrategy::on(two_devices());
    let central = CentralStorageStrategy::on(two_devices());
    let shares = MirroredStrategy::on(two_devices()).shares(&[1, 2]).unwrap();
    let (values, logs, predicted) = trained(&one, indices(7), &of_one_length());
    let to_boundary = by_length(&buckets().pad_to_boundary());
    for (name, found) in [
        ("one", trained(&one, open(), &by_length(&buckets()))),
        ("to the boundary", trained(&one, open(), &to_boundary)),
        (
            "replicas",
            trained(&replicas, open(), &by_length(&buckets())),
        ),
        (
            "replicas to the boundary",
            trained(&replicas, open(), &to_boundary),
        ),
        ("central", trained(&central, open(), &to_boundary)),
        ("shares", trained(&shares, open(), &to_boundary)),
    ] {
        for (value, expected) in found.0.iter().zip(&values) {
            assert_close(name, &value.to_f64(), &expected.to_f64(), 1e-5);
        }
        let (got, want) = (found.1["loss"], logs["loss"]);
        assert!((got - want).abs() < 1e-5, "{name}: {got} {want}");
        assert_close(name, &found.2, &predicted, 1e-5);
    }
}

#[test]
fn a_training_by_length_goes_on_at_any_batch() {
    let scratch = Scratch::new(env!("CARGO_TARGET_TMPDIR"), "resume-buckets");
    let path = scratch.join("checkpoint");
    let model = || classifier(indices(7).any_length());
    let batches = by_length(&buckets().pad_to_boundary());
    let strategy = OneDeviceStrategy::on(two_devices());
    let whole = trained(&strategy, indices(7).any_length(), &batches);
    let steps = batches.len().unwrap();
    for stop in [1, 4, steps, steps + 3] {
        let made = Arc::new(AtomicUsize::new(0));
        let limited =
            batches
                .prefetch(0)
                .map(move |batch| match made.fetch_add(1, Ordering::Relaxed) {
                    done if done < stop => Ok(batch),
                    _ => Err(phalanx::Error::User("pulled the plug".into())),
                });
        let mut first = strategy.compile(model(), tokens_loss()).unwrap();
        assert!(first.fit(&limited, fit()).is_err());
        first.save_checkpoint(&path).unwrap();
        let mut second = strategy.compile(model(), tokens_loss()).unwrap();
        second.restore_checkpoint(&path).unwrap();
        second.fit(&batches, fit().resume()).unwrap();
        assert_eq!(
            outcome(&mut second, &batches),
            whole,
            "after {stop} batches"
        );
    }
    let mut other = strategy.compile(model(), tokens_loss()).unwrap();
    let made = Arc::new(AtomicUsize::new(0));
    let limited =
        batches
            .prefetch(0)
            .map(move |batch| match made.fetch_add(1, Ordering::Relaxed) {
                0 => Ok(batch),
                _ => Err(phalanx::Error::User("pulled the plug".into())),
            });
    assert!(other.fit(&limited, fit()).is_err());
    let seed = by_length(&buckets().shuffle(6));
    let error = other.fit(&seed, fit().resume()).unwrap_err().to_string();
    assert!(error.contains("other batches by length"), "{error}");
}
