//! Functions that the first worker schedules: what they return, how they fail, and that what they push counts once although workers
//! die. A worker dies here as its thread panics: its connections close, and it has said nothing.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar};

use phalanx::data::{AutoShardPolicy, Batch, Worker};
use phalanx::strategy::{
    ClusterCoordinator, RemoteValue, ScheduleError, TaskContext, TaskFunction,
};

use super::*;

/// A door that opens once.
#[derive(Clone, Default)]
pub(crate) struct Door(Arc<(Mutex<bool>, Condvar)>);

impl Door {
    pub(crate) fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    /// Waits until it is open.
    pub(crate) fn pass(&self) {
        let is_open = self.0.0.lock().unwrap();
        let limit = Duration::from_secs(300);
        let waited = self.0.1.wait_timeout_while(is_open, limit, |open| !*open);
        assert!(*waited.unwrap().0, "the door stays closed");
    }
}

/// A model of one weight, from 0 on, which each step raises by exactly 1, whatever its value: so it counts steps.
fn counter(strategy: &impl Strategy) -> Trainer {
    let weight = Dense::new(1)
        .use_bias(false)
        .kernel_initializer(Initializer::Zeros);
    let model = Sequential::new([1]).add(weight).build().unwrap();
    let compile = Compile {
        optimizer: Sgd::new(1.0).into(),
        loss: MeanAbsoluteError.into(),
        ..Compile::default()
    };
    strategy.compile(model, compile).unwrap()
}

pub(crate) fn one_row() -> Batch {
    let ones = HostTensor::new([1, 1], &[1.0f32]);
    let far = HostTensor::new([1, 1], &[1e6f32]);
    Batch {
        x: vec![ones],
        y: vec![far],
        weight: None,
        first: 0,
    }
}

/// How many steps a counter has made: one batch is evaluated, with what the servers have.
fn counted(trainer: &mut Trainer) -> f64 {
    let data = Dataset::from_arrays(one_row().x, Vec::new()).unwrap();
    trainer.predict(&data.batch(1)).unwrap()[0].to_f64()[0]
}

/// Two steps; worker 1 dies in its first call, after one of them.
fn two_steps(
    strategy: &ParameterServerStrategy,
    door: &Door,
) -> (ClusterCoordinator<Trainer>, TaskFunction<(), usize>) {
    let mut cluster = ClusterCoordinator::new(strategy, counter(strategy)).unwrap();
    let door = door.clone();
    let train = move |cx: &mut TaskContext<'_>, trainer: &mut Trainer, ()| {
        if cx.worker() == 2 {
            door.pass();
        }
        cx.train(trainer, &one_row())?;
        if cx.worker() == 1 {
            door.open();
            panic!("worker 1 is killed");
        }
        cx.train(trainer, &one_row())?;
        Ok(cx.worker())
    };
    let train = cluster.function("train", train).unwrap();
    (cluster, train)
}

/// What a worker's work gives; nothing where it dies, with all that it has.
pub(crate) fn unless_killed<T>(work: impl FnOnce() -> Option<T>) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).ok().flatten()
}

#[test]
fn what_a_killed_worker_has_pushed_counts_once() {
    for servers in [1, 2] {
        let door = Door::default();
        let options = ParameterServerOptions::new();
        let results = on_workers((3, servers), &options, |strategy| {
            let door = door.clone();
            unless_killed(move || {
                let strategy = strategy;
                let (mut cluster, train) = two_steps(&strategy, &door);
                if !cluster.start().unwrap() {
                    return None;
                }
                let values = (0..6).map(|_| cluster.schedule(&train, &()).unwrap());
                let values: Vec<RemoteValue<usize>> = values.collect();
                cluster.join().unwrap();
                assert!(cluster.done().unwrap());
                assert!(values.iter().all(RemoteValue::is_done));
                let by = values.iter().map(|value| value.fetch().unwrap());
                assert_eq!(by.collect::<Vec<_>>(), [2; 6]);
                Some(counted(cluster.state_mut()))
            })
        });
        assert_eq!(results, [Some(12.0), None, None], "{servers} servers");
    }
}

#[test]
fn a_function_that_kills_its_workers_is_given_up() {
    let results = on_workers((5, 1), &ParameterServerOptions::new(), |strategy| {
        unless_killed(move || {
            let strategy = strategy;
            let mut cluster = ClusterCoordinator::new(&strategy, ()).unwrap();
            let kill = |_: &mut TaskContext<'_>, (): &mut (), ()| -> phalanx::Result<()> {
                panic!("this worker is killed")
            };
            let kill = cluster.function("kill", kill).unwrap();
            if !cluster.start().unwrap() {
                return None;
            }
            let value = cluster.schedule(&kill, &()).unwrap();
            match (value.fetch(), cluster.join()) {
                (
                    Err(ScheduleError::WorkersLost { workers, .. }),
                    Err(ScheduleError::WorkersLost { function, .. }),
                ) => Some((function, workers)),
                other => panic!("{other:?}"),
            }
        })
    });
    let (function, mut lost) = results.into_iter().next().flatten().unwrap();
    lost.sort_unstable();
    assert_eq!((function.as_str(), &lost[..]), ("kill", &[1, 2, 3, 4][..]));
}

/// Whether it is the failure of the third call of `half`.
fn is_the_failure(error: ScheduleError) -> bool {
    match error {
        ScheduleError::Failed {
            function,
            worker,
            reason,
        } => (function, worker, reason) == ("half".into(), 1, "three is odd".into()),
        other => panic!("{other:?}"),
    }
}

/// The halves of the numbers before 3 are there, 3 has failed, and what comes after it was cancelled.
fn check_halves(values: &[RemoteValue<(f64, u64)>]) {
    for (number, value) in values.iter().enumerate() {
        match value.fetch() {
            Ok(half) => {
                assert!(number < 3, "{number}");
                assert_eq!(half, (number as f64 / 2.0, number as u64 + 1));
            }
            Err(ScheduleError::Cancelled { .. }) => assert!(number > 3, "{number}"),
            Err(error) => {
                assert_eq!(number, 3);
                assert!(is_the_failure(error));
            }
        }
    }
}

/// One worker runs ten functions in their order, of which the fourth fails; it begins when all are scheduled.
#[test]
fn the_first_failure_cancels_the_rest_and_is_told_once() {
    let door = Door::default();
    on_workers((2, 1), &ParameterServerOptions::new(), |strategy| {
        let mut cluster = ClusterCoordinator::new(&strategy, 0u64).unwrap();
        let of_worker = door.clone();
        let half = move |_: &mut TaskContext<'_>, calls: &mut u64, number: i64| {
            of_worker.pass();
            *calls += 1;
            match number {
                3 => Err(phalanx::Error::User("three is odd".into())),
                _ => Ok((number as f64 / 2.0, *calls)),
            }
        };
        let half = cluster.function("half", half).unwrap();
        let root = cluster
            .function("root", |_, _, x: f64| Ok(x.sqrt()))
            .unwrap();
        if !cluster.start().unwrap() {
            // Ten but the six that were cancelled, and one.
            assert_eq!(*cluster.state(), 5);
            return;
        }
        let values = (0..10i64).map(|number| cluster.schedule(&half, &number).unwrap());
        let values: Vec<_> = values.collect();
        assert!(!cluster.done().unwrap() && !values[0].is_done());
        door.open();
        assert!(is_the_failure(cluster.join().unwrap_err()));
        // Told once, and each value keeps its own end.
        cluster.join().unwrap();
        for _ in 0..2 {
            check_halves(&values);
        }
        // And it goes on.
        let again = cluster.schedule(&half, &8).unwrap();
        assert_eq!(again.fetch().unwrap(), (4.0, 5));
        assert_eq!(cluster.schedule(&root, &9.0).unwrap().fetch().unwrap(), 3.0);
        // JSON has no NaN.
        let nan = cluster.schedule(&root, &-1.0).unwrap();
        let error = nan.fetch().unwrap_err().to_string();
        assert!(
            error.contains("the result of `root` cannot be read"),
            "{error}"
        );
        assert!(cluster.done().unwrap());
    });
}

#[test]
fn each_worker_reads_its_own_data_in_their_order() {
    let rows = |context: phalanx::strategy::InputContext| {
        assert_eq!(context.num_input_pipelines, 2);
        let first = 100.0 * context.input_pipeline_id as f32;
        let numbers: Vec<f32> = (0..3).map(|i| first + i as f32).collect();
        Ok(Dataset::from_arrays(HostTensor::new([3], &numbers), Vec::new())?.batch(2))
    };
    let results = on_workers((3, 1), &ParameterServerOptions::new(), |strategy| {
        let mut cluster = ClusterCoordinator::new(&strategy, ()).unwrap();
        let data = cluster.per_worker_dataset(rows);
        let next = move |cx: &mut TaskContext<'_>, (): &mut (), ()| {
            let batch = cx.next_batch(&data)?;
            Ok((cx.call(), cx.worker(), batch.x[0].f32s()))
        };
        let next = cluster.function("next", next).unwrap();
        if !cluster.start().unwrap() {
            return Vec::new();
        }
        let values = (0..12).map(|_| cluster.schedule(&next, &()).unwrap());
        let values: Vec<_> = values.collect();
        let read = values.iter().map(|value| value.fetch().unwrap());
        read.collect()
    });
    let calls: Vec<u64> = results[0].iter().map(|(call, ..)| *call).collect();
    assert_eq!(calls, (0..12).collect::<Vec<u64>>());
    for worker in [1, 2] {
        let first = 100.0 * (worker - 1) as f32;
        // An epoch of two batches, again and again.
        let expected = [vec![first, first + 1.0], vec![first + 2.0]];
        let own = results[0].iter().filter(|(_, by, _)| *by == worker);
        for (number, (_, _, batch)) in own.enumerate() {
            assert_eq!(*batch, expected[number % 2]);
        }
    }
}

/// Of the last of three batches this part has no row.
#[test]
fn batches_without_rows_are_passed_over() {
    let part = |_| {
        let numbers: Vec<f32> = (0..5).map(|i| i as f32).collect();
        let data = Dataset::from_arrays(HostTensor::new([5], &numbers), Vec::new())?;
        let (worker, policy) = (Worker::new(1, 2), AutoShardPolicy::Data);
        data.batch(2).shard(worker, policy)
    };
    let results = on_workers((2, 1), &ParameterServerOptions::new(), |strategy| {
        let mut cluster = ClusterCoordinator::new(&strategy, ()).unwrap();
        let data = cluster.per_worker_dataset(part);
        let next = move |cx: &mut TaskContext<'_>, (): &mut (), ()| {
            let read = (0..4).map(|_| Ok(cx.next_batch(&data)?.x[0].f32s()));
            read.collect::<phalanx::Result<Vec<Vec<f32>>>>()
        };
        let next = cluster.function("next", next).unwrap();
        if !cluster.start().unwrap() {
            return Vec::new();
        }
        cluster.schedule(&next, &()).unwrap().fetch().unwrap()
    });
    assert_eq!(results[0], [[1.0], [3.0], [1.0], [3.0]]);
}

/// One worker that makes the steps of a loop of one process.
#[test]
fn steps_of_scheduled_functions_are_those_of_a_loop() {
    let case = || Case {
        batch: 8,
        ..cases::everything()
    };
    let batches = |case: &Case| {
        let epochs = 0..2u64;
        let data = case.data.batch(case.batch);
        let all =
            epochs.flat_map(|epoch| data.iter(epoch, 0).map(Result::unwrap).collect::<Vec<_>>());
        all.collect::<Vec<Batch>>()
    };
    let one = {
        let case = case();
        let strategy = OneDeviceStrategy::on(engine(0));
        let mut trainer = strategy
            .compile(case.model.clone(), case.compile.clone())
            .unwrap();
        let losses = batches(&case).into_iter();
        let losses =
            losses.map(|batch| trainer.train_on_batch(&batch).unwrap().get("loss").unwrap());
        let losses: Vec<f64> = losses.collect();
        (losses, trainer.variables().unwrap())
    };
    let options = ParameterServerOptions::new().partitioner(Partitioner::FixedShards { shards: 2 });
    let all = on_workers((2, 2), &options, |strategy| {
        let case = case();
        let trainer = strategy
            .compile(case.model.clone(), case.compile.clone())
            .unwrap();
        let mut cluster = ClusterCoordinator::new(&strategy, trainer).unwrap();
        let data = batches(&case);
        // In one function, since random numbers follow the number of a push, and here that is the number of a step.
        let steps = move |cx: &mut TaskContext<'_>, trainer: &mut Trainer, count: usize| {
            let logs = data[..count].iter().map(|batch| cx.train(trainer, batch));
            logs.map(|logs| Ok(logs?.get("loss"))).collect()
        };
        let steps: TaskFunction<usize, Vec<Option<f64>>> =
            cluster.function("steps", steps).unwrap();
        if !cluster.start().unwrap() {
            return None;
        }
        let losses = cluster.schedule(&steps, &one.0.len()).unwrap().fetch();
        let losses: Vec<f64> = losses.unwrap().into_iter().flatten().collect();
        Some((losses, cluster.state_mut().variables().unwrap()))
    });
    let (losses, variables) = all.into_iter().next().flatten().unwrap();
    assert!(
        one.0.len() > 3 && apart(&one.0, &losses) <= TOLERANCE,
        "{:?} {losses:?}",
        one.0
    );
    for ((name, a), (_, b)) in one.1.iter().zip(&variables) {
        let apart = apart(&a.to_f64(), &b.to_f64());
        assert!(apart <= TOLERANCE, "{name} is {apart:e} apart");
    }
}

#[test]
fn what_a_coordinator_cannot_do_it_refuses() {
    let refused = |options: ParameterServerOptions, workers: usize| {
        let all = on_workers((workers, 1), &options, |strategy| {
            ClusterCoordinator::new(&strategy, ())
                .unwrap_err()
                .to_string()
        });
        all.into_iter().next().unwrap()
    };
    assert!(refused(sync(), 2).contains("use that one"));
    assert!(refused(ParameterServerOptions::new(), 1).contains("start 2 or more"));
    let without = ParameterServerOptions::new().go_on_without_chief();
    assert!(refused(without, 2).contains("leave `go_on_without_chief` out"));
    let (door, built) = (Door::default(), Door::default());
    let work = |strategy: ParameterServerStrategy| {
        let mut cluster = ClusterCoordinator::new(&strategy, counter(&strategy)).unwrap();
        // The refusal below ends the job, in which worker 1 could build nothing any more.
        if strategy.is_chief() {
            built.pass();
        } else {
            built.open();
        }
        let of_worker = door.clone();
        let wait = move |_: &mut TaskContext<'_>, _: &mut Trainer, ()| {
            of_worker.pass();
            Ok(())
        };
        let wait = cluster.function("wait", wait).unwrap();
        let twice = cluster.function("wait", |_, _, ()| Ok(())).unwrap_err();
        assert!(
            twice.to_string().contains("`wait` is there already"),
            "{twice}"
        );
        assert!(
            cluster
                .schedule(&wait, &())
                .unwrap_err()
                .to_string()
                .contains("after `start`")
        );
        match cluster.start() {
            Ok(is_chief) => assert!(is_chief),
            Err(error) => {
                assert!(error.to_string().contains("join them first"), "{error}");
                return;
            }
        }
        cluster.schedule(&wait, &()).unwrap();
        // A training of all workers, one of which is busy.
        let row = one_row();
        let data = Dataset::from_arrays(row.x, row.y).unwrap().batch(1);
        let fit = Fit::epochs(1).progress(Progress::Silent);
        let error = cluster.state_mut().fit(&data, fit).unwrap_err();
        assert!(matches!(error, phalanx::Error::User(_)), "{error}");
        assert!(error.to_string().contains("join them first"), "{error}");
        door.open();
    };
    let ended = |served: phalanx::Result<()>| assert!(served.is_err());
    on_cluster((2, 1), &ParameterServerOptions::new(), work, ended);
}
