//! Workers and parameter servers train as one process does: the cases of the replica tests, with workers and servers as threads of
//! this process, over real connections.

mod agreement;
mod cached_rows;
mod callbacks;
#[allow(dead_code, reason = "the replica tests use all of it")]
#[path = "../replicas/cases.rs"]
mod cases;
mod custom_functions;
mod overlap;
mod own_parts;
mod prepared;
mod rates;
mod schedule;
mod stops;
mod streams;
mod wire;

use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use cases::Case;
use phalanx::checkpoint::TrainingState;
use phalanx::data::{Example, Stream, TrainingData};
use phalanx::engine::{Engine, EngineOptions};
use phalanx::fit::callbacks::{ModelCheckpoint, SaveFreq};
use phalanx::metrics::Auc;
use phalanx::models::{Recommender, RecommenderKind};
use phalanx::nn::Model;
use phalanx::optim::{Adagrad, Optimizer, Rule};
use phalanx::prelude::*;
use phalanx::strategy::{
    Address, Membership, MirroredStrategy, Mode, OneDeviceStrategy, ParameterServerOptions,
    ParameterServerStrategy, Partitioner,
};
use phalanx_cluster::launch::ReservedPorts;
use phalanx_cluster::{ClusterSpec, Task, TaskKind};
use phalanx_testkit::{Scratch, relative_difference as apart};

/// The bound of the strategies that train in one process.
const TOLERANCE: f64 = 1e-5;

/// The engine of a process that a thread stands for.
fn engine(process: usize) -> &'static Engine {
    static ENGINES: [OnceLock<Engine>; 6] = [const { OnceLock::new() }; 6];
    let options = EngineOptions {
        quick_compile: true,
        ..EngineOptions::default()
    };
    ENGINES[process].get_or_init(|| Engine::new(&options).unwrap())
}

/// A cluster of workers and servers on this machine, and their ports, which are nobody else's until they are dropped.
fn cluster(workers: usize, servers: usize) -> (ClusterSpec, ReservedPorts) {
    let tasks = (0..workers).map(|index| Task::new(TaskKind::Worker, index));
    let servers = (0..servers).map(|index| Task::new(TaskKind::ParameterServer, index));
    let ports = ReservedPorts::new(tasks.len() + servers.len(), None).unwrap();
    let places = tasks.chain(servers).zip(ports.of_workers());
    let cluster = places.fold(ClusterSpec::new(), |all, (task, port)| {
        all.with(task, Address::new("127.0.0.1", *port))
    });
    (cluster, ports)
}

fn member(cluster: &ClusterSpec, task: Task) -> Membership {
    let rendezvous = cluster.address(cluster.worker(0)).unwrap().clone();
    let mut member = Membership::new(cluster.workers(), task.index, rendezvous);
    member.task = task;
    member.cluster = Some(cluster.clone());
    member
}

/// What each of some workers returns that train with servers.
fn on_workers<T: Send>(
    size: (usize, usize),
    options: &ParameterServerOptions,
    work: impl Fn(ParameterServerStrategy) -> T + Sync,
) -> Vec<T> {
    on_cluster(size, options, work, |served| served.unwrap())
}

/// The same; `served` is called with how each server has ended.
fn on_cluster<T: Send>(
    size: (usize, usize),
    options: &ParameterServerOptions,
    work: impl Fn(ParameterServerStrategy) -> T + Sync,
    served: impl Fn(phalanx::Result<()>) + Sync,
) -> Vec<T> {
    on_routed(size, options, (ClusterSpec::clone, work), served)
}

/// The same; `route` gives the cluster as workers see it.
fn on_routed<T: Send>(
    (workers, servers): (usize, usize),
    options: &ParameterServerOptions,
    (route, work): (
        impl FnOnce(&ClusterSpec) -> ClusterSpec,
        impl Fn(ParameterServerStrategy) -> T + Sync,
    ),
    served: impl Fn(phalanx::Result<()>) + Sync,
) -> Vec<T> {
    // Engines are shared by the tests.
    static ENGINES_IN_USE: Mutex<()> = Mutex::new(());
    let _alone = ENGINES_IN_USE
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let (cluster, _ports) = &cluster(workers, servers);
    let routed = &route(cluster);
    let options = &options.clone().timeout(Duration::from_secs(300));
    thread::scope(|scope| {
        for index in 0..servers {
            let task = Task::new(TaskKind::ParameterServer, index);
            let served = &served;
            scope.spawn(move || {
                let (engine, membership) = (engine(workers + index), member(cluster, task));
                let ended = ParameterServerStrategy::serve(engine, &membership, options);
                served(ended);
            });
        }
        let start = |index: usize| {
            let work = &work;
            scope.spawn(move || {
                let membership = member(routed, Task::new(TaskKind::Worker, index));
                let strategy = ParameterServerStrategy::join(engine(index), &membership, options);
                work(strategy.unwrap())
            })
        };
        let running: Vec<_> = (0..workers).map(start).collect();
        running
            .into_iter()
            .map(|worker| worker.join().unwrap())
            .collect()
    })
}

/// What a training leaves.
#[derive(Debug, PartialEq)]
struct Outcome {
    variables: Vec<(String, Vec<f64>)>,
    logs: Vec<(String, f64)>,
    predicted: Vec<f64>,
}

fn train(strategy: &impl Strategy, case: &Case) -> Outcome {
    train_as(strategy, case, |_, fit| fit)
}

/// Trains with more settings, which may do something with the trainer first.
fn train_as(
    strategy: &impl Strategy,
    case: &Case,
    set: impl FnOnce(&mut Trainer, Fit) -> Fit,
) -> Outcome {
    train_on(strategy, case, &case.data.batch(case.batch), set)
}

/// Trains on other data than those it is tested with.
fn train_on(
    strategy: &impl Strategy,
    case: &Case,
    training: &dyn TrainingData,
    set: impl FnOnce(&mut Trainer, Fit) -> Fit,
) -> Outcome {
    let compiled = strategy.compile(case.model.clone(), case.compile.clone());
    let mut trainer = compiled.unwrap();
    let data = case.data.batch(case.batch);
    let fit = Fit::epochs(case.epochs)
        .progress(Progress::Silent)
        .validation(&data);
    let fit = set(&mut trainer, fit);
    let history = trainer.fit(training, fit).unwrap();
    let epochs = history.epochs.iter();
    let mut logs: Vec<Logs> = epochs.map(|epoch| epoch.logs.clone()).collect();
    logs.push(trainer.evaluate(&data).unwrap());
    let predicted = trainer.predict(&data).unwrap()[0].to_f64();
    let own = |(name, _): &(&str, f64)| !name.starts_with("staleness");
    let named = |logs: &Logs| -> Vec<_> {
        logs.iter()
            .filter(own)
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    };
    let variables = trainer.variables().unwrap().into_iter();
    Outcome {
        variables: variables
            .map(|(name, value)| (name, value.to_f64()))
            .collect(),
        logs: logs.iter().flat_map(named).collect(),
        predicted,
    }
}

fn compare(name: &str, tolerance: f64, one: &Outcome, other: &Outcome) {
    assert_eq!(one.variables.len(), other.variables.len());
    assert_eq!(
        one.logs.len(),
        other.logs.len(),
        "{:?} {:?}",
        one.logs,
        other.logs
    );
    for ((variable, a), (_, b)) in one.variables.iter().zip(&other.variables) {
        let apart = apart(a, b);
        assert!(apart <= tolerance, "{name}: {variable} is {apart:e} apart");
    }
    for ((log, a), (_, b)) in one.logs.iter().zip(&other.logs) {
        let bound = tolerance * a.abs().max(1.0);
        assert!((a - b).abs() <= bound, "{name}: {log} is {a} and {b}");
    }
    assert!(
        apart(&one.predicted, &other.predicted) <= 10.0 * tolerance,
        "{name}"
    );
}

fn sync() -> ParameterServerOptions {
    ParameterServerOptions::new().mode(Mode::Sync { backup_workers: 0 })
}

/// Rows that do not divide evenly: the last batch has one row, so that some workers have none.
fn ragged() -> Case {
    let mut case = cases::everything();
    // Penalties of outputs count by weights here.
    case.compile.loss = SparseCategoricalCrossentropy::from_logits().into();
    Case {
        data: cases::rows(17),
        batch: 8,
        epochs: 3,
        ..case
    }
}

/// The last batch has no example but of this class.
#[test]
fn a_class_that_is_left_out_counts_nothing_on_servers() {
    let case = || {
        let mut case = ragged();
        let layers = Sequential::new([6]).add(Dense::new(8).activation(tanh));
        case.model = layers.add(Dense::new(3)).build().unwrap();
        case.compile = classify(Sgd::new(0.1).momentum(0.9));
        let loss = SparseCategoricalCrossentropy::from_logits().ignore_class(1);
        case.compile.loss = loss.into();
        case
    };
    let one = train(&OneDeviceStrategy::on(engine(0)), &case());
    let all = on_workers((3, 2), &sync(), |strategy| train(&strategy, &case()));
    compare("without a class", TOLERANCE, &one, &all[0]);
}

#[test]
fn one_worker_trains_as_one_process_with_every_optimizer() {
    for kind in Rule::KINDS {
        let case = || {
            let mut case = ragged();
            let settings = serde_json::json!({"learning_rate": 0.01, "weight_decay": 0.01});
            case.compile.optimizer = Optimizer::from_config(kind, &settings).unwrap();
            case
        };
        let one = train(&OneDeviceStrategy::on(engine(0)), &case());
        let options = sync().partitioner(Partitioner::FixedShards { shards: 2 });
        let all = on_workers((1, 2), &options, |strategy| train(&strategy, &case()));
        compare(kind, 1e-6, &one, &all[0]);
    }
}

#[test]
fn workers_that_step_together_train_as_one_process() {
    let one = train(&OneDeviceStrategy::on(engine(0)), &ragged());
    for mode in [
        Mode::Sync { backup_workers: 0 },
        Mode::BoundedStaleness { steps: 0 },
    ] {
        let options = ParameterServerOptions::new().mode(mode);
        let all = on_workers((3, 2), &options, |strategy| train(&strategy, &ragged()));
        for other in &all {
            assert_eq!(other, &all[0], "workers have different bits");
        }
        compare(&mode.to_string(), TOLERANCE, &one, &all[0]);
    }
}

#[test]
fn gradients_are_clipped_by_the_norm_over_all_servers() {
    let adam = || Optimizer::from(Adam::new(0.01)).gradient_accumulation(2);
    for optimizer in [adam().global_clipnorm(0.05), adam().clipnorm(0.03)] {
        let case = || {
            let mut case = ragged();
            case.compile.optimizer = optimizer.clone();
            case
        };
        let one = train(&OneDeviceStrategy::on(engine(0)), &case());
        let options = sync().partitioner(Partitioner::FixedShards { shards: 2 });
        let all = on_workers((2, 2), &options, |strategy| train(&strategy, &case()));
        compare("sync", TOLERANCE, &one, &all[0]);
        let options = ParameterServerOptions::new();
        let all = on_workers((1, 2), &options, |strategy| train(&strategy, &case()));
        compare("async", TOLERANCE, &one, &all[0]);
    }
}

/// The means over an epoch hold each example once, whoever computed it, and the loss falls.
#[test]
fn workers_that_are_apart_train_on_each_example_once() {
    for mode in [Mode::Async, Mode::BoundedStaleness { steps: 1 }] {
        let case = || Case {
            epochs: 12,
            ..ragged()
        };
        let options = ParameterServerOptions::new().mode(mode);
        let all = on_workers((3, 1), &options, |strategy| train(&strategy, &case()));
        for other in &all {
            assert_eq!(other.logs, all[0].logs);
            assert_eq!(other.predicted, all[0].predicted);
        }
        let loss = |at: usize| {
            let losses = all[0].logs.iter().filter(|(name, _)| name == "loss");
            losses.map(|(_, value)| *value).nth(at).unwrap()
        };
        assert!(loss(11) < 0.8 * loss(0), "{mode}: {} {}", loss(0), loss(11));
    }
}

/// A folder of these tests.
fn scratch(name: &str) -> Scratch {
    Scratch::new(env!("CARGO_TARGET_TMPDIR"), &format!("servers-{name}"))
}

/// Epochs of three batches: checkpoints in the middle of one, of a callback and of the training, with which any number of workers and
/// servers and any other strategy goes on, to the weights of an unbroken training.
#[test]
fn a_checkpoint_within_an_epoch_goes_on_anywhere() {
    let folder = scratch("anywhere");
    let reference = train(&OneDeviceStrategy::on(engine(0)), &ragged());
    let pattern = folder.join("{epoch}-{batch}");
    let pattern = pattern.to_str().unwrap();
    on_workers((2, 1), &sync(), |strategy| {
        let every = || ModelCheckpoint::new(pattern).save_freq(SaveFreq::Batches(2));
        let all = train_as(&strategy, &ragged(), |_, fit| {
            fit.callback(every())
                .checkpoint(folder.join("own"))
                .save_freq(2)
        });
        compare("saved on the way", TOLERANCE, &reference, &all);
    });
    let names = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    let entries = std::fs::read_dir(&folder).unwrap();
    let mut written: Vec<_> = entries.map(|entry| names(&entry.unwrap().path())).collect();
    written.sort();
    // After the batches 2, 4, 6 and 8 of 9.
    assert_eq!(
        written,
        ["1-2", "2-1", "2-3", "3-2", "own", "own.1", "own.done"]
    );
    for name in ["1-2", "2-1", "2-3"] {
        let from = &folder.join(name);
        let one = go_on(&OneDeviceStrategy::on(engine(0)), from);
        compare(name, TOLERANCE, &reference, &one);
        let options = sync().partitioner(Partitioner::FixedShards { shards: 3 });
        for other in on_workers((1, 3), &options, |strategy| go_on(&strategy, from)) {
            compare(name, TOLERANCE, &reference, &other);
        }
    }
    let mirrored = MirroredStrategy::on(two_devices())
        .devices(["cpu:0", "cpu:1"])
        .unwrap();
    let from = &folder.join("2-1");
    compare("mirrored", TOLERANCE, &reference, &go_on(&mirrored, from));
    // Workers that are apart draw random numbers by the numbers of their batches.
    let apart = ParameterServerOptions::new();
    for other in on_workers((1, 1), &apart, |strategy| go_on(&strategy, from)) {
        compare("async", TOLERANCE, &reference, &other);
    }
    // And back: what one process wrote in the middle of an epoch.
    let back = folder.join("back");
    train_as(&OneDeviceStrategy::on(engine(0)), &ragged(), |_, fit| {
        let every = ModelCheckpoint::new(back.to_str().unwrap()).save_freq(SaveFreq::Batches(5));
        fit.callback(every)
    });
    for other in on_workers((3, 2), &sync(), |strategy| go_on(&strategy, &back)) {
        compare("back", TOLERANCE, &reference, &other);
    }
}

/// Goes on from a checkpoint to the end.
fn go_on(strategy: &impl Strategy, from: &Path) -> Outcome {
    train_as(strategy, &ragged(), |trainer, fit| {
        trainer.restore_checkpoint(from).unwrap();
        fit.resume()
    })
}

/// An engine of two devices.
fn two_devices() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    let options = EngineOptions {
        quick_compile: true,
        cpu_devices: 2,
        ..EngineOptions::default()
    };
    ENGINE.get_or_init(|| Engine::new(&options).unwrap())
}

/// Two tables, of which batches name few rows, some of them twice; labels follow both.
fn clicks(optimizer: Optimizer) -> Case {
    let model = Recommender::new(RecommenderKind::TwoTower, [300, 200])
        .width(4)
        .hidden([8])
        .build()
        .unwrap();
    let ids = |factor: usize, most: usize| {
        let ids: Vec<i32> = (0..22)
            .map(|i| (i * factor % 11 * (most / 11)) as i32)
            .collect();
        HostTensor::new([22], &ids)
    };
    let clicked: Vec<f32> = (0..22).map(|i| (i % 3 % 2) as f32).collect();
    let y = HostTensor::new([22, 1], &clicked);
    let compile = Compile {
        optimizer,
        loss: BinaryCrossentropy::from_logits().into(),
        seed: 7,
        ..Compile::default()
    };
    Case {
        model,
        data: Dataset::from_arrays(vec![ids(4, 300), ids(7, 200)], y).unwrap(),
        batch: 8,
        compile,
        epochs: 3,
        ..ragged()
    }
}

/// Rows alone travel, and every number is as if the tables were there as a whole.
#[test]
fn tables_by_their_rows_train_as_whole_ones() {
    let folder = scratch("tables");
    let optimizers: [(&str, Optimizer); 3] = [
        ("sgd", Sgd::new(4.0).into()),
        ("adagrad", Adagrad::new(0.3).into()),
        ("adam", Optimizer::from(Adam::new(0.05)).lazy()),
    ];
    for (name, optimizer) in optimizers {
        let case = || clicks(optimizer.clone());
        let one = train(&OneDeviceStrategy::on(engine(0)), &case());
        let first = case().model.init(7).unwrap();
        for ((variable, trained), first) in one.variables.iter().zip(&first) {
            if variable.ends_with("embeddings") {
                // A hundred times what may differ.
                let moved = apart(&first.to_f64(), trained);
                assert!(
                    moved > 100.0 * TOLERANCE,
                    "{name}: {variable} moved by {moved:e}"
                );
            }
        }
        let modes = [
            ((1, 2), Mode::Async),
            ((3, 2), Mode::Sync { backup_workers: 0 }),
        ];
        for (size, mode) in modes {
            let options = ParameterServerOptions::new().mode(mode).table_bytes(0);
            for other in on_workers(size, &options, |strategy| train(&strategy, &case())) {
                compare(name, TOLERANCE, &one, &other);
            }
        }
        // A checkpoint is of whole tables, whoever writes it.
        let by_rows = ParameterServerOptions::new().table_bytes(0);
        let path = &folder.join(name);
        let two_epochs = |_: &mut Trainer, fit: Fit| fit.checkpoint(path).steps_per_epoch(2);
        let first = train_as(&OneDeviceStrategy::on(engine(0)), &case(), two_epochs);
        let goes_on = |strategy: &ParameterServerStrategy| {
            let compiled = strategy.compile(case().model, case().compile);
            let mut trainer = compiled.unwrap();
            trainer.restore_checkpoint(path).unwrap();
            trainer.save_checkpoint(folder.join("again")).unwrap();
            trainer.predict(&case().data.batch(8)).unwrap()[0].to_f64()
        };
        for predicted in on_workers((2, 3), &by_rows, |strategy| goes_on(&strategy)) {
            let apart = apart(&first.predicted, &predicted);
            assert!(
                apart <= TOLERANCE,
                "{name}: predictions are {apart:e} apart"
            );
        }
        let states =
            [path.clone(), folder.join("again")].map(|path| TrainingState::load(path).unwrap());
        let [before, after] = states.map(|state| [state.variables(), state.slots()].concat());
        assert_eq!(
            before, after,
            "{name}: what is restored and saved is the same"
        );
    }
}

/// All modes with three workers, one of them with a backup worker.
const MODES: [Mode; 4] = [
    Mode::Async,
    Mode::BoundedStaleness { steps: 2 },
    Mode::Sync { backup_workers: 0 },
    Mode::Sync { backup_workers: 1 },
];

/// What the first of three workers gives that train and then evaluate.
fn tested(
    options: &ParameterServerOptions,
    (model, compile): (&Model, &Compile),
    (train, test): (&Batches, &Batches),
    epochs: usize,
) -> Logs {
    let all = on_workers((3, 2), options, |strategy| {
        let compiled = strategy.compile(model.clone(), compile.clone());
        let mut trainer = compiled.unwrap();
        let fit = Fit::epochs(epochs).progress(Progress::Silent);
        trainer.fit(train, fit).unwrap();
        trainer.evaluate(test).unwrap()
    });
    all.into_iter().next().unwrap()
}

fn rows_of_digits(wanted: impl Fn(usize) -> bool) -> Dataset {
    let digits = datasets::digits().unwrap();
    let rows = (0..digits.len().unwrap()).filter(|i| wanted(*i));
    let rows: Vec<Example> = rows.map(|i| digits.get(0, i).unwrap()).collect();
    let stream = Stream::new(move |_| rows.clone().into_iter().map(Ok));
    stream.collect(usize::MAX - 1).unwrap()
}

/// The accuracy on digits of three workers and two servers.
fn accuracy_on_digits(options: &ParameterServerOptions) -> f64 {
    // Each fifth row, not the last ones, which other people wrote: the accuracy there is hardly above what is asked for, and how near it
    // depends on which pushes came first.
    let (train, test) = (
        rows_of_digits(|i| i % 5 > 0),
        rows_of_digits(|i| i % 5 == 0),
    );
    let model = Sequential::new([8, 8, 1])
        .add(Rescaling::new(1.0 / 16.0))
        .add(Flatten)
        .add(Dense::new(64).activation(relu))
        .add(Dense::new(10));
    let model = model.build().unwrap();
    let compile = classify(Sgd::new(0.2).momentum(0.5));
    let data = (&train.shuffle(1).batch(24), &test.batch(100));
    let logs = tested(options, (&model, &compile), data, 10);
    logs.get("accuracy").unwrap()
}

#[test]
fn the_digits_are_learned_in_every_mode() {
    for mode in MODES {
        let accuracy = accuracy_on_digits(&ParameterServerOptions::new().mode(mode));
        println!("{mode}: accuracy {accuracy}");
        assert!(accuracy >= 0.90, "{mode}: accuracy {accuracy}");
    }
}

fn classify(optimizer: impl Into<Optimizer>) -> Compile {
    Compile {
        optimizer: optimizer.into(),
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        metrics: vec![Accuracy.into()],
        seed: 7,
        ..Compile::default()
    }
}

/// Two tables by their rows; the best AUC that there can be is 0.94, of which these epochs reach 0.84 to 0.88, by which pushes came first.
#[test]
fn a_recommender_finds_who_likes_what_in_every_mode() {
    let (train, test) = datasets::clicks(300, 100, 12_000, 5)
        .unwrap()
        .split_at(10_000)
        .unwrap();
    let model = Recommender::new(RecommenderKind::TwoTower, [300, 100])
        .width(8)
        .hidden([]);
    let model = model.build().unwrap();
    let compile = Compile {
        optimizer: Optimizer::from(Adam::new(0.02)).lazy(),
        loss: BinaryCrossentropy::from_logits().into(),
        metrics: vec![Auc::default().from_logits().into()],
        seed: 7,
        ..Compile::default()
    };
    for mode in MODES {
        let options = ParameterServerOptions::new().mode(mode).table_bytes(0);
        let data = (&train.shuffle(1).batch(96), &test.batch(500));
        let logs = tested(&options, (&model, &compile), data, 8);
        let auc = logs.get("auc").unwrap();
        println!("{mode}: AUC {auc}");
        assert!(auc >= 0.78, "{mode}: AUC {auc}");
    }
}
