//! Custom training loops in several processes: as one process on the whole batches.

use phalanx::checkpoint::TrainingState;
use phalanx::data::Batch;
use phalanx::prelude::*;
use phalanx::strategy::{
    DistributedDataset, InputContext, MultiWorkerMirroredStrategy, Pipelines, ValueKind,
};
use phalanx_graph::op::ReduceOp;
use phalanx_graph::{DType, Tensor};

use crate::{TOLERANCE, apart, engine, on_workers};

/// What a loop leaves: named lists of numbers.
type Left = Vec<(String, Vec<f64>)>;

fn rows(count: usize) -> Dataset {
    let weight: Vec<f32> = (0..count).map(|i| 0.5 + (i % 4) as f32).collect();
    let weight = HostTensor::new([count], &weight);
    unweighted(count).with_weights(&weight).unwrap()
}

/// The same without weights.
fn unweighted(count: usize) -> Dataset {
    let x: Vec<f32> = (0..count * 4).map(|i| (i as f32 * 0.37).sin()).collect();
    let y: Vec<i32> = (0..count).map(|i| (i % 3) as i32).collect();
    let x = HostTensor::new([count, 4], &x);
    let y = HostTensor::new([count], &y);
    Dataset::from_arrays(x, y).unwrap()
}

fn network() -> Sequential {
    Sequential::new([4])
        .add(Dense::new(8).activation(relu))
        .add(BatchNorm::new().synchronized(true))
        .add(Dropout::new(0.3))
        .add(Dense::new(3))
}

/// A loop over data of 17 rows, with dropout, weights and synchronized batch normalization, and a second function between
/// the steps that shares no array with them.
fn train(strategy: &impl Strategy) -> phalanx::Result<Left> {
    let data = strategy.distribute_dataset(&rows(17).shuffle(3).batch(8));
    train_on(strategy, &data)
}

fn train_on(strategy: &impl Strategy, data: &DistributedDataset) -> phalanx::Result<Left> {
    let mut state = strategy.state(11)?;
    let model = state.add_model("net", network())?;
    let optimizer = state.add_optimizer(Adam::new(0.01), &[&model])?;
    let metric = state.add_metric(Accuracy)?;
    let seen = state.add_value("seen", &HostTensor::scalar(0.0f64), ValueKind::Sum)?;
    let mut other = strategy.state(5)?;
    let turns = other.add_value("turns", &HostTensor::scalar(0.0f32), ValueKind::Replicated)?;
    let loss = Loss::from(SparseCategoricalCrossentropy::from_logits());
    let mut step = strategy.function(|cx, batch: Inputs| {
        let y = cx.train(&model, &batch.x);
        let each = loss.per_example(&batch.y[0], &y[0]);
        let mean = cx.mean(&each, batch.weight.as_ref());
        let gradients = cx.gradients(&mean, &optimizer);
        let gradients = cx.all_reduce_gradients(&gradients);
        cx.apply(&optimizer, &gradients);
        cx.update_metric(&metric, &batch.y[0], &y[0], batch.weight.as_ref());
        let more = cx.value(&seen) + cx.examples().convert(DType::F64);
        cx.set_value(&seen, &more);
        [mean, cx.per_example(&each)]
    });
    let mut turn = strategy.function(|cx, ()| {
        let ones = cx.graph().scalar(DType::F32, 1.0);
        let sum = cx.all_reduce(ReduceOp::Sum, &ones);
        let next = cx.value(&turns) + &sum;
        cx.set_value(&turns, &next);
        []
    });
    let mut left = Left::new();
    for epoch in 0..4 {
        for batch in data.epoch(epoch) {
            let [mean, each] = step.call(&mut state, &batch?)?;
            turn.call(&mut other, &())?;
            if epoch == 3 {
                let mean = strategy.reduce(Reduce::Sum, &mean, None)?;
                left.push(("loss".into(), mean.to_f64()));
                left.push(("each".into(), strategy.gather(&each, 0)?.to_f64()));
            }
        }
        left.push(("accuracy".into(), vec![state.result(&metric)?]));
        state.reset(&metric)?;
    }
    let variables = state.variables(&model)?.into_iter();
    left.extend(variables.map(|(name, value)| (name, value.to_f64())));
    left.push(("seen".into(), state.value(&seen)?.to_f64()));
    left.push(("turns".into(), other.value(&turns)?.to_f64()));
    state.finish()?;
    Ok(left)
}

/// The same numbers, but for `turns`, which counts replicas; those of an example whatever their order.
fn check(one: &Left, all: &[Left], replicas: f64) {
    for other in all {
        assert_eq!(other, &all[0], "workers have different bits");
        assert_eq!(one.len(), other.len());
        for ((name, a), (_, b)) in one.iter().zip(other) {
            let (mut a, mut b) = (a.clone(), b.clone());
            match &name[..] {
                "turns" => a.iter_mut().for_each(|turns| *turns *= replicas),
                // A worker's share of a batch is not always the same slice.
                "each" => [&mut a, &mut b]
                    .into_iter()
                    .for_each(|each| each.sort_by(f64::total_cmp)),
                _ => {}
            }
            let apart = apart(&a, &b);
            assert!(
                apart <= TOLERANCE,
                "{name} is {apart:e} apart: {a:?} and {b:?}"
            );
        }
    }
}

#[test]
fn a_loop_in_several_processes_leaves_what_it_does_in_one() {
    let one = train(&OneDeviceStrategy::on(engine(0, 1))).unwrap();
    for (workers, devices) in [(2, 1), (3, 1), (2, 2)] {
        let all = on_workers(workers, devices, |strategy| train(&strategy).unwrap());
        check(&one, &all, (workers * devices) as f64);
    }
}

/// Each example is compared with those of all replicas, and what the gradient of all becomes is punished.
fn exchanging(strategy: &impl Strategy) -> phalanx::Result<Left> {
    let mut state = strategy.state(3)?;
    let model = state.add_model("line", Sequential::new([4]).add(Dense::new(3)))?;
    let sgd = state.add_optimizer(Sgd::new(0.1), &[&model])?;
    let circle = Loss::from(Circle::default().gamma(1.0));
    let mut step = strategy.function(|cx, batch: Inputs| {
        let y = cx.train(&model, &batch.x).remove(0);
        let counts = cx.all_gather(&cx.example_mask(), 0);
        let all = cx.all_gather(&y, 0).transpose(&[1, 0]);
        let alike = (y.matmul(&all).tanh() * counts).sum(&[1]);
        let loss = cx.mean(&alike, None) + cx.loss(&circle, &batch.y[0], &y.tanh(), None);
        let variables = cx.variables(&model);
        let own = cx.derivatives(&loss, &variables.iter().collect::<Vec<_>>());
        let slopes = own.iter().map(|own| cx.all_reduce(ReduceOp::Sum, own));
        let steepness = slopes.map(|slope| slope.square().sum_all());
        let steepness = steepness.reduce(|all, next| all + next).unwrap();
        let loss = loss + cx.share(&(steepness * 0.01));
        let gradients = cx.gradients(&loss, &sgd);
        let gradients = cx.all_reduce_gradients(&gradients);
        cx.apply(&sgd, &gradients);
        [loss]
    });
    let mut left = Left::new();
    for batch in strategy.distribute_dataset(&rows(11).batch(4)).epoch(0) {
        let [loss] = step.call(&mut state, &batch?)?;
        let loss = strategy.reduce(Reduce::Sum, &loss, None)?;
        left.push(("loss".into(), loss.to_f64()));
    }
    let variables = state.variables(&model)?.into_iter();
    left.extend(variables.map(|(name, value)| (name, value.to_f64())));
    Ok(left)
}

#[test]
fn what_processes_exchange_is_differentiated() {
    let one = exchanging(&OneDeviceStrategy::on(engine(0, 1))).unwrap();
    for (workers, devices) in [(2, 1), (2, 2)] {
        let all = on_workers(workers, devices, |strategy| exchanging(&strategy).unwrap());
        check(&one, &all, 1.0);
    }
}

/// A pipeline for each replica, of which the second has fewer examples.
fn pipeline(context: InputContext) -> phalanx::Result<Batches> {
    pipeline_of(&rows(17), context)
}

fn pipeline_of(data: &Dataset, context: InputContext) -> phalanx::Result<Batches> {
    assert_eq!(
        (context.num_input_pipelines, context.num_replicas_in_sync),
        (2, 2)
    );
    let own = data.skip(context.input_pipeline_id * 10).take(10);
    Ok(own.batch(context.per_replica_batch_size(6)?))
}

#[test]
fn pipelines_of_each_process_train_as_those_of_replicas_of_one() {
    let train = |strategy: &MultiWorkerMirroredStrategy, pipelines| {
        let data = strategy.distribute_datasets_from_function(pipelines, pipeline)?;
        without_dropout(strategy, &data)
    };
    let mirrored = MirroredStrategy::on(engine(0, 2));
    let data = mirrored.distribute_datasets_from_function(Pipelines::PerReplica, pipeline);
    let one = without_dropout(&mirrored, &data.unwrap()).unwrap();
    for pipelines in [Pipelines::PerWorker, Pipelines::PerReplica] {
        let all = on_workers(2, 1, |strategy| train(&strategy, pipelines).unwrap());
        check(&one, &all, 1.0);
    }
}

/// The same where the examples of the second pipeline alone have weights.
#[test]
fn weights_of_one_process_alone_train_as_those_of_a_replica_of_one() {
    let weighted = |context: InputContext| {
        let data = [unweighted, rows][context.input_pipeline_id](17);
        pipeline_of(&data, context)
    };
    let mirrored = MirroredStrategy::on(engine(0, 2));
    let data = mirrored.distribute_datasets_from_function(Pipelines::PerReplica, weighted);
    let one = without_dropout(&mirrored, &data.unwrap()).unwrap();
    let all = on_workers(2, 1, |strategy| {
        let data = strategy.distribute_datasets_from_function(Pipelines::PerWorker, weighted);
        without_dropout(&strategy, &data.unwrap()).unwrap()
    });
    check(&one, &all, 1.0);
}

/// The numbers of rows that only fill up differ, and with them what dropout draws.
fn without_dropout(strategy: &impl Strategy, data: &DistributedDataset) -> phalanx::Result<Left> {
    let mut state = strategy.state(3)?;
    let model = state.add_model("line", Sequential::new([4]).add(Dense::new(3)))?;
    let sgd = state.add_optimizer(Sgd::new(0.1), &[&model])?;
    let loss = Loss::from(SparseCategoricalCrossentropy::from_logits());
    let mut step = strategy.function(|cx, batch: Inputs| {
        let y = cx.train(&model, &batch.x);
        let loss = cx.mean(&loss.per_example(&batch.y[0], &y[0]), batch.weight.as_ref());
        let gradients = cx.gradients(&loss, &sgd);
        let gradients = cx.all_reduce_gradients(&gradients);
        cx.apply(&sgd, &gradients);
        [loss]
    });
    let mut steps = 0.0;
    for epoch in 0..3 {
        for batch in data.epoch(epoch) {
            step.call(&mut state, &batch?)?;
            steps += 1.0;
        }
    }
    let mut left: Left = vec![("steps".into(), vec![steps])];
    let variables = state.variables(&model)?.into_iter();
    left.extend(variables.map(|(name, value)| (name, value.to_f64())));
    Ok(left)
}

/// Numbers of rows and batch sizes of the pipelines of two processes.
type Sizes = [(usize, usize); 2];

/// Steps of an epoch, at most as many, from a state on where there is one: the state after them, and how many there were.
fn stepped(
    strategy: &MultiWorkerMirroredStrategy,
    sizes: Sizes,
    from: Option<&TrainingState>,
    most: usize,
) -> phalanx::Result<(TrainingState, usize)> {
    let own = |context: InputContext| {
        let (count, batch) = sizes[context.input_pipeline_id];
        let first = 20 * context.input_pipeline_id;
        Ok(rows(40).skip(first).take(count).batch(batch))
    };
    let data = strategy.distribute_datasets_from_function(Pipelines::PerWorker, own)?;
    let mut state = strategy.state(3)?;
    let model = state.add_model("line", Sequential::new([4]).add(Dense::new(3)))?;
    let sgd = state.add_optimizer(Sgd::new(0.1).momentum(0.9), &[&model])?;
    let loss = Loss::from(SparseCategoricalCrossentropy::from_logits());
    let mut step = strategy.function(|cx, batch: Inputs| {
        let y = cx.train(&model, &batch.x);
        let loss = cx.mean(&loss.per_example(&batch.y[0], &y[0]), None);
        let gradients = cx.gradients(&loss, &sgd);
        let gradients = cx.all_reduce_gradients(&gradients);
        cx.apply(&sgd, &gradients);
        []
    });
    let mut epoch = match from {
        None => data.epoch(0),
        Some(from) => {
            state.set_training_state(from)?;
            data.epoch_from(from.position())?
        }
    };
    let mut steps = 0;
    while steps < most
        && let Some(batch) = epoch.next()
    {
        let [] = step.call(&mut state, &batch?)?;
        steps += 1;
    }
    Ok((state.training_state_at(epoch.position())?, steps))
}

/// All go on from what the first one has saved, although their pipelines have other lengths.
#[test]
fn a_loop_over_own_pipelines_goes_on_as_if_it_had_not_ended() {
    let cases: [(Sizes, usize, usize); 4] = [
        // The other's pipeline has ended.
        ([(10, 3), (7, 3)], 1, 3),
        // The first one's has.
        ([(7, 3), (14, 3)], 1, 4),
        ([(8, 4), (7, 2)], 1, 2),
        // Batches are dealt to two replicas each.
        ([(10, 2), (5, 2)], 2, 2),
    ];
    for (sizes, devices, at) in cases {
        let run = |from, most| {
            on_workers(2, devices, |strategy| {
                stepped(&strategy, sizes, from, most).unwrap()
            })
        };
        let (whole, begun) = (run(None, usize::MAX), run(None, at));
        let ended = run(Some(&begun[0].0), usize::MAX);
        for (worker, (whole, ended)) in whole.iter().zip(&ended).enumerate() {
            assert_eq!(at + ended.1, whole.1, "{sizes:?}");
            let (whole, ended) = (&whole.0, &ended.0);
            assert_eq!(whole.variables(), ended.variables(), "{sizes:?}: {worker}");
            assert_eq!(whole.position(), ended.position());
            assert_eq!(begun[worker].0.position(), begun[0].0.position());
        }
    }
}

#[test]
fn a_batch_that_all_are_given_is_divided_between_them() {
    let outputs = |strategy: &dyn Fn(&Batch) -> phalanx::Result<Vec<f64>>| {
        let batch = rows(7).batch(7).get(0, 0).unwrap();
        strategy(&batch).unwrap()
    };
    fn doubled(strategy: &impl Strategy, batch: &Batch) -> phalanx::Result<Vec<f64>> {
        let mut state = strategy.state(0)?;
        let mut double =
            strategy.function(|cx, batch: Inputs| [cx.per_example(&(&batch.x[0] * 2.0))]);
        let batch = strategy.distribute_batch(batch)?;
        let [doubled] = double.call(&mut state, &batch)?;
        Ok(strategy.gather(&doubled, 0)?.to_f64())
    }
    let one = outputs(&|batch| doubled(&OneDeviceStrategy::on(engine(0, 1)), batch));
    assert_eq!(one.len(), 28);
    for all in [2, 3].map(|workers| {
        on_workers(workers, 1, |strategy| {
            outputs(&|batch| doubled(&strategy, batch))
        })
    }) {
        assert!(all.iter().all(|other| *other == one), "{all:?}");
    }
}

#[test]
fn the_values_of_the_first_process_are_everybodys() {
    let all = on_workers(2, 1, |strategy| {
        let own = strategy.worker() as f32;
        let mut state = strategy.state(1).unwrap();
        let value = HostTensor::new([1], &[5.0 + own]);
        let same = state
            .add_value("same", &value, ValueKind::Replicated)
            .unwrap();
        let sum = state.add_value("sum", &value, ValueKind::Sum).unwrap();
        let mean = state.add_value("mean", &value, ValueKind::Mean).unwrap();
        let first = state.add_value("first", &value, ValueKind::First).unwrap();
        let numbered = strategy.distribute_values_from_function(|context| {
            HostTensor::scalar(context.replica_id as f32 + 1.0)
        });
        let mut add = strategy.function(|cx, number: Tensor| {
            for value in [&sum, &mean, &first] {
                let next = cx.value(value) + number.reshape(&[1]);
                cx.set_value(value, &next);
            }
            []
        });
        add.call(&mut state, &numbered.unwrap()).unwrap();
        let read = |value| state.value(value).unwrap().to_f64()[0];
        [&same, &sum, &mean, &first].map(read)
    });
    // 5; 5 + 0 + 1 + 2; the mean of 6 and 7; 5 + 1.
    assert!(
        all.iter().all(|values| *values == [5.0, 8.0, 6.5, 6.0]),
        "{all:?}"
    );
}

#[test]
fn a_process_that_has_something_else_is_named() {
    let errors = on_workers(2, 1, |strategy| {
        let seed = strategy.state(strategy.worker() as u64).unwrap_err();
        let mut state = strategy.state(0).unwrap();
        let value = HostTensor::scalar(1.0f32);
        let value = state
            .add_value("value", &value, ValueKind::Replicated)
            .unwrap();
        let factor = 1.0 + strategy.worker() as f64;
        let mut step = strategy.function(|cx, ()| {
            let next = cx.value(&value) * factor;
            cx.set_value(&value, &next);
            []
        });
        let function = step.call(&mut state, &()).unwrap_err();
        [seed.to_string(), function.to_string()]
    });
    for (of_worker, other) in errors.iter().zip(["worker 1 has", "worker 0 has"]) {
        for (error, what) in of_worker.iter().zip(["the seed of a state", "a function"]) {
            assert!(
                error.contains(what) && error.contains("differs between workers"),
                "{error}"
            );
            assert!(error.contains(other), "{error}");
        }
    }
}

#[test]
fn a_process_that_ends_or_has_bad_data_ends_the_loop_of_the_others() {
    for has_bad_data in [false, true] {
        let errors = on_workers(3, 1, |strategy| {
            let is_bad = strategy.worker() == 1;
            let data = rows(60).map(move |example| match is_bad && has_bad_data {
                false => Ok(example),
                true => Err(phalanx::Error::User("no such file".into())),
            });
            let data = strategy.distribute_dataset(&data.batch(6));
            let mut state = strategy.state(3).unwrap();
            let sum = state.add_value("sum", &HostTensor::scalar(0.0f32), ValueKind::Replicated);
            let sum = sum.unwrap();
            let mut step = strategy.function(|cx, batch: Inputs| {
                let more = cx.all_reduce(ReduceOp::Sum, &batch.x[0].sum_all());
                let next = cx.value(&sum) + &more;
                cx.set_value(&sum, &next);
                []
            });
            for (number, batch) in data.epoch(0).enumerate() {
                if is_bad && number == 3 {
                    break;
                }
                let made = batch.and_then(|batch| step.call(&mut state, &batch).map(|[]| ()));
                if let Err(error) = made {
                    return error.to_string();
                }
            }
            let read = state.value(&sum);
            read.map_or_else(|error| error.to_string(), |_| "went on".into())
        });
        for worker in [0, 2] {
            let error = &errors[worker];
            assert!(
                error.contains("rank 1") || error.contains("worker 1"),
                "{errors:?}"
            );
            assert_eq!(error.contains("no such file"), has_bad_data, "{errors:?}");
        }
    }
}
