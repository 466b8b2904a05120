//! Streams, of which every worker reads all and trains on its rows.

use phalanx::data::{Example, Stream};
use phalanx::fit::EpochLogs;
use phalanx::prelude::*;
use phalanx::strategy::MultiWorkerMirroredStrategy;
use phalanx::{Error, Result};
use phalanx_testkit::relative_difference as apart;

use super::cases::{self, Case};
use super::{TOLERANCE, engine, on_workers, ragged};

/// The examples of a dataset one after the other.
fn stream(data: &Dataset) -> Stream {
    let data = data.clone();
    Stream::new(move |epoch| {
        let data = data.clone();
        (0..data.len().unwrap()).map(move |i| data.get(epoch, i))
    })
}

/// The variables and the logs that a training leaves.
type Left = (Vec<Vec<f64>>, Vec<f64>);

fn train(strategy: &impl Strategy, case: Case, stream: &Stream) -> Result<Left> {
    let mut trainer = strategy.compile(case.model, case.compile)?;
    let fit = Fit::epochs(case.epochs).progress(Progress::Silent);
    let history = trainer.fit(&stream.batch(case.batch).prefetch(1), fit)?;
    let values = |epoch: &EpochLogs| {
        epoch
            .logs
            .iter()
            .map(|(_, value)| value)
            .collect::<Vec<_>>()
    };
    let logs = history.epochs.iter().flat_map(values).collect();
    let variables = trainer.variables()?.into_iter();
    Ok((variables.map(|(_, value)| value.to_f64()).collect(), logs))
}

fn train_ragged(strategy: &impl Strategy) -> Left {
    let case = ragged();
    let stream = stream(&case.data);
    train(strategy, case, &stream).unwrap()
}

#[test]
fn a_stream_trains_on_several_workers_as_in_one_process() {
    let one = train_ragged(&OneDeviceStrategy::on(engine(0, 1)));
    for (workers, devices) in [(2, 1), (3, 1), (2, 2)] {
        let all = on_workers(workers, devices, |strategy| train_ragged(&strategy));
        for other in &all {
            assert_eq!(other, &all[0], "workers have different bits");
            for (a, b) in one.0.iter().zip(&other.0) {
                assert!(apart(a, b) <= TOLERANCE, "{a:?} and {b:?}");
            }
            assert!(
                apart(&one.1, &other.1) <= TOLERANCE,
                "{one:?} and {other:?}"
            );
        }
    }
}

/// A stream that is another one on the second worker.
fn differing(strategy: &MultiWorkerMirroredStrategy, other: fn(Example) -> Example) -> String {
    let case = cases::everything();
    let same = strategy.is_chief();
    let stream =
        stream(&case.data).map(move |example| Ok(if same { example } else { other(example) }));
    train(strategy, case, &stream).unwrap_err().to_string()
}

#[test]
fn a_stream_that_differs_between_workers_is_told() {
    let errors = on_workers(2, 1, |strategy| {
        differing(&strategy, |example| Example {
            weight: Some(1.5),
            ..example
        })
    });
    for error in errors {
        assert!(
            error.contains(
                "what was read of the stream in an epoch differs between workers: worker"
            ),
            "{error}"
        );
    }
}

#[test]
fn a_stream_that_fails_on_one_worker_ends_the_others() {
    let errors = on_workers(2, 1, |strategy| {
        let case = cases::everything();
        let fails = !strategy.is_chief();
        let stream = stream(&case.data).map(move |example| match fails {
            true => Err(Error::User("no such file".into())),
            false => Ok(example),
        });
        train(&strategy, case, &stream).unwrap_err().to_string()
    });
    assert!(errors[0].contains("rank 1 ended"), "{errors:?}");
    assert!(errors[1].contains("no such file"), "{errors:?}");
}
