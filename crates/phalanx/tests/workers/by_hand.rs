//! Batches that each worker gives by hand: what one of them gets wrong all hear of, and runs of all kinds come in one order.

use std::sync::Barrier;
use std::thread::sleep;
use std::time::{Duration, Instant};

use phalanx::Error;
use phalanx::data::Batch;
use phalanx::fit::callbacks::Lambda;
use phalanx::nn::{Cx, Layer};
use phalanx::prelude::*;
use phalanx::strategy::MultiWorkerMirroredStrategy;
use phalanx_graph::Tensor;
use phalanx_graph::op::ReduceOp;

use crate::{cases, on_workers};

/// Long enough for the other worker to have begun the exchange of its step.
const LATE: Duration = Duration::from_millis(200);
/// Others hear of an error within this, far below the timeout of exchanges.
const AT_ONCE: Duration = Duration::from_secs(30);

fn batch(first: usize, rows: usize) -> Batch {
    let data = cases::rows(first + rows).skip(first);
    data.batch(rows).get(0, 0).unwrap()
}

/// With a class that the model does not have.
fn bad_batch() -> Batch {
    let y = vec![HostTensor::new([4], &[0, 1, 2, 77])];
    Batch { y, ..batch(4, 4) }
}

fn trainer(strategy: &impl Strategy, model: Sequential) -> Trainer {
    let compile = Compile {
        optimizer: Sgd::new(0.5).into(),
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        ..Compile::default()
    };
    strategy.compile(model, compile).unwrap()
}

/// Large enough for steps that run while the host goes on.
fn network() -> Sequential {
    Sequential::new([6])
        .add(Dense::new(64).activation(tanh))
        .add(Dense::new(3))
}

fn values(trainer: &Trainer) -> Vec<f64> {
    let variables = trainer.variables().unwrap().into_iter();
    variables.flat_map(|(_, value)| value.to_f64()).collect()
}

/// Adds the sum of the outputs of all workers to each.
#[derive(Debug)]
struct AddsAll;

impl Layer for AddsAll {
    fn kind(&self) -> &'static str {
        "adds_all"
    }

    fn config(&self) -> serde_json::Value {
        serde_json::json!({})
    }

    fn call(&self, _: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let x = &inputs[0];
        x + x.sum(&[0, 1]).all_reduce(ReduceOp::Sum)
    }
}

#[test]
fn a_prediction_whose_exchange_fails_is_an_error() {
    let errors = on_workers(2, 1, |strategy| {
        let mut trainer = trainer(&strategy, network().add(AddsAll));
        strategy.is_chief().then(|| {
            let predicted = trainer.predict_on_batch(&batch(0, 4).x);
            predicted.unwrap_err().to_string()
        })
    });
    let error = errors[0].as_ref().unwrap();
    assert!(error.contains("rank 1 left the group"), "{error}");
}

/// Makes a call with a batch or data that are bad on one worker, which goes on after it, and returns what the other hears of it. The call
/// changes neither variables nor iterations of either.
fn heard_of(
    prepare: impl Fn(&mut Trainer) -> phalanx::Result<()> + Sync,
    call: impl Fn(&mut Trainer, bool) -> phalanx::Result<()> + Sync,
) -> [String; 2] {
    let both_are_done = Barrier::new(2);
    let state = |trainer: &Trainer| (values(trainer), trainer.iterations());
    let errors = on_workers(2, 1, |strategy| {
        let mut trainer = trainer(&strategy, network());
        let prepared = prepare(&mut trainer);
        let before = state(&trainer);
        let begun = Instant::now();
        let called = prepared.and_then(|()| call(&mut trainer, !strategy.is_chief()));
        // Before anything that may fail: the other waits here.
        both_are_done.wait();
        let error = called.unwrap_err();
        assert!(begun.elapsed() < AT_ONCE, "{error}");
        if strategy.is_chief() {
            assert!(matches!(error, Error::Cluster(_)), "{error:?}");
        }
        assert!(state(&trainer) == before, "something has changed: {error}");
        error.to_string()
    });
    errors.try_into().unwrap()
}

#[test]
fn a_worker_with_a_bad_batch_ends_the_calls_of_the_others() {
    type Call = fn(&mut Trainer, &Batch) -> phalanx::Result<Logs>;
    for call in [Trainer::train_on_batch as Call, Trainer::test_on_batch] {
        for is_compiled in [true, false] {
            let prepare = |trainer: &mut Trainer| match is_compiled {
                true => call(trainer, &batch(0, 4)).map(|_| ()),
                false => Ok(()),
            };
            let [other, own] = heard_of(prepare, |trainer, is_bad| {
                let batch = if is_bad { bad_batch() } else { batch(0, 4) };
                call(trainer, &batch).map(|_| ())
            });
            assert!(own.contains("class 77"), "{own}");
            assert!(other.contains("rank 1 ended") && other.contains("class 77"));
        }
    }
}

/// Four words in this number of rows.
fn words(rows: usize, last: i32) -> [HostTensor; 1] {
    [HostTensor::new([rows, 4 / rows], &[0, 1, 2, last])]
}

/// Predictions of these models wait for each other.
#[test]
fn a_worker_with_a_bad_batch_ends_the_predictions_of_the_others() {
    for (is_compiled, bad) in [true, false]
        .into_iter()
        .flat_map(|is_compiled| [words(2, 77), words(1, 3)].map(|bad| (is_compiled, bad)))
    {
        let both_are_done = Barrier::new(2);
        let errors = on_workers(2, 1, |strategy| {
            let model = Sequential::new([2]).add(Embedding::new(10, 4));
            let mut trainer = trainer(&strategy, model.add(Flatten).add(AddsAll));
            if is_compiled {
                let predicted = trainer.predict_on_batch(&words(2, 3));
                // Whoever is ahead would end the other's call, too. Before anything that may fail: the other waits here.
                both_are_done.wait();
                predicted.unwrap();
            }
            let begun = Instant::now();
            let good = words(2, 3);
            let predicted =
                trainer.predict_on_batch(if strategy.is_chief() { &good } else { &bad });
            both_are_done.wait();
            let error = predicted.unwrap_err().to_string();
            assert!(begun.elapsed() < AT_ONCE, "{error}");
            error
        });
        let wrong = match bad[0].rows() {
            2 => "77",
            _ => "but the batch has i32[1,4]",
        };
        assert!(errors[1].contains(wrong), "{errors:?}");
        let heard = errors[0].contains("rank 1 ended") && errors[0].contains(wrong);
        assert!(heard, "{errors:?}");
    }
}

/// Nobody waits for these, and the others may never call.
#[test]
fn a_bad_prediction_that_exchanges_nothing_ends_nothing() {
    let both_are_done = Barrier::new(2);
    let trained = on_workers(2, 1, |strategy| {
        let mut trainer = trainer(&strategy, network());
        let refused = match strategy.is_chief() {
            true => None,
            false => trainer.predict_on_batch(&words(1, 3)).err(),
        };
        both_are_done.wait();
        let trained = trainer.train_on_batch(&batch(0, 4));
        (refused.is_some(), trained.map(|_| ()))
    });
    let [(false, Ok(())), (true, Ok(()))] = &trained[..] else {
        panic!("{trained:?}");
    };
}

#[test]
fn a_worker_with_bad_data_ends_the_evaluations_of_the_others() {
    let nothing = |_: &mut Trainer| Ok(());
    let [other, own] = heard_of(nothing, |trainer, is_bad| {
        let data = cases::rows(16).map(move |example| match is_bad {
            false => Ok(example),
            true => Err(Error::User("no such file".into())),
        });
        trainer.evaluate(&data.batch(4)).map(|_| ())
    });
    assert!(own.contains("no such file"), "{own}");
    assert!(
        other.contains("rank 1 ended") && other.contains("no such file"),
        "{other}"
    );
}

/// The sum of the numbers of all replicas, which count from 1, by a custom loop.
fn sum_by_a_loop(strategy: &MultiWorkerMirroredStrategy) -> phalanx::Result<Vec<f64>> {
    let numbers = strategy.distribute_values_from_function(|context| {
        HostTensor::scalar(context.replica_id as f32 + 1.0)
    })?;
    let mut state = strategy.state(0)?;
    let mut add = strategy.function(|cx, number: Tensor| [cx.all_reduce(ReduceOp::Sum, &number)]);
    let [sum] = add.call(&mut state, &numbers)?;
    Ok(sum.value()?.to_f64())
}

/// The steps in flight of a `fit` have exchanges to make, too.
#[test]
fn a_loop_in_a_callback_comes_between_steps() {
    let left = on_workers(2, 1, |strategy| {
        let fitted = |has_loop: bool| {
            let layer = || Dense::new(1024).activation(tanh);
            let model = Sequential::new([6]).add(layer()).add(layer());
            let mut trainer = trainer(&strategy, model.add(Dense::new(3)));
            let strategy = strategy.clone();
            let loops = Lambda::new().on_train_batch_end(move |_, _| {
                if has_loop {
                    // One worker has begun the exchange of its step, and the other still computes.
                    sleep(if strategy.is_chief() {
                        LATE
                    } else {
                        Duration::ZERO
                    });
                    assert_eq!(sum_by_a_loop(&strategy)?, [3.0]);
                }
                Ok(())
            });
            let fit = Fit::epochs(1).progress(Progress::Silent).callback(loops);
            trainer.fit(&cases::rows(24).batch(6), fit).unwrap();
            values(&trainer)
        };
        (fitted(false), fitted(true))
    });
    for (alone, with) in &left {
        assert_eq!(alone, with);
    }
}

/// Programs for batches of either size are compiled, so that nothing else would tell.
#[test]
fn batches_of_unlike_numbers_of_rows_are_refused() {
    type Call = fn(&mut Trainer, &Batch) -> phalanx::Result<Logs>;
    for call in [Trainer::train_on_batch as Call, Trainer::test_on_batch] {
        let errors = on_workers(2, 1, |strategy| {
            let mut trainer = trainer(&strategy, network());
            for rows in [4, 6] {
                call(&mut trainer, &batch(0, rows)).unwrap();
            }
            let before = values(&trainer);
            let rows = 4 + 2 * strategy.worker();
            let error = call(&mut trainer, &batch(10, rows)).unwrap_err();
            assert_eq!(values(&trainer), before);
            // Nothing has begun, and all can go on.
            call(&mut trainer, &batch(0, 6)).unwrap();
            error.to_string()
        });
        for (worker, error) in errors.iter().enumerate() {
            let (own, other) = (4 + 2 * worker, 6 - 2 * worker);
            assert!(error.contains("differ"), "{error}");
            let said = [
                format!("worker {worker} has f32[{own},6]"),
                format!("worker {} has f32[{other},6]", 1 - worker),
            ];
            assert!(said.iter().all(|said| error.contains(said)), "{error}");
        }
    }
}
