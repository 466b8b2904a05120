//! Several workers train as one process does with the whole batches: the cases of the replica tests, with workers as threads of this
//! process, each with devices and variables of its own.

#[allow(dead_code, reason = "the replica tests use all of it")]
#[path = "../replicas/cases.rs"]
mod cases;

mod accumulation;
mod agreement;
mod by_hand;
mod callbacks;
mod custom_loops;
#[cfg(feature = "etcd")]
mod etcd;
mod gradients;
#[path = "../../../../tests/tools/hosts.rs"]
mod hosts;
mod keras;
mod launchers;
mod lengths;
mod networks;
#[path = "../oracle/mod.rs"]
mod oracle;
mod predictions;
mod processes;
mod recovery;
mod slow_workers;
mod streams;
mod takeover;
mod tutorials;

use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use cases::{Case, Part};
use oracle::any_device;
use phalanx::data::Example;
use phalanx::engine::{Engine, EngineOptions};
use phalanx::fit::{TensorBoard, UpdateFreq};
use phalanx::nn::{Cx, Layer};
use phalanx::prelude::*;
use phalanx::replicas::Reduction;
use phalanx::strategy::{Communicator, CommunicatorOptions, MultiWorkerMirroredStrategy};
use phalanx_graph::Tensor;
use phalanx_testkit::relative_difference as apart;

/// The bound of the strategies that train in one process.
const TOLERANCE: f64 = 1e-5;
/// Ends only what hangs: a worker may compile for long on a machine that does much else, while the others wait for it.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The engine of a worker, with this many devices: an exchange holds its device, so workers cannot share one.
fn engine(worker: usize, devices: usize) -> &'static Engine {
    static ENGINES: [OnceLock<Engine>; 8] = [const { OnceLock::new() }; 8];
    let options = EngineOptions {
        cpu_devices: devices,
        quick_compile: true,
        ..any_device::options()
    };
    ENGINES[worker * 2 + devices - 1].get_or_init(|| Engine::new(&options).unwrap())
}

/// What a training leaves.
#[derive(Debug, PartialEq)]
struct Outcome {
    variables: Vec<(String, Vec<f64>)>,
    logs: Vec<(String, f64)>,
    predicted: Vec<f64>,
}

fn train(strategy: &impl Strategy, case: &Case) -> Outcome {
    let compiled = strategy.compile(case.model.clone(), case.compile.clone());
    let mut trainer = compiled.unwrap();
    let data = case.data.batch(case.batch);
    let fit = Fit::epochs(case.epochs).progress(Progress::Silent);
    let history = trainer.fit(&data, fit).unwrap();
    let mut logs: Vec<Logs> = history
        .epochs
        .iter()
        .map(|epoch| epoch.logs.clone())
        .collect();
    let mut predicted = Vec::new();
    if !case.only_trains {
        logs.push(trainer.evaluate(&data).unwrap());
        predicted = trainer.predict(&data).unwrap()[0].to_f64();
    }
    let named = |logs: &Logs| -> Vec<_> {
        logs.iter()
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

/// What each of some workers is left with, which train the case together.
fn train_on(workers: usize, devices: usize, case: impl Fn() -> Case + Sync) -> Vec<Outcome> {
    on_workers(workers, devices, |strategy| {
        let case = case();
        let reduction = Reduction::new().bytes_per_pack(case.bytes_per_pack);
        train(&strategy.reduction(reduction), &case)
    })
}

/// What each of some workers returns.
fn on_workers<T: Send>(
    workers: usize,
    devices: usize,
    work: impl Fn(MultiWorkerMirroredStrategy) -> T + Sync,
) -> Vec<T> {
    on_engines(workers, |worker| engine(worker, devices), work)
}

/// The same on these engines.
fn on_engines<'e, T: Send>(
    workers: usize,
    engine: impl Fn(usize) -> &'e Engine + Sync,
    work: impl Fn(MultiWorkerMirroredStrategy) -> T + Sync,
) -> Vec<T> {
    // Engines are shared by the tests, and while one worker waits for another nobody else may use its device.
    static ENGINES_IN_USE: Mutex<()> = Mutex::new(());
    let _alone = ENGINES_IN_USE
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    in_group(workers, engine, work)
}

/// The same on engines that nobody else uses.
fn in_group<'e, T: Send>(
    workers: usize,
    engine: impl Fn(usize) -> &'e Engine + Sync,
    work: impl Fn(MultiWorkerMirroredStrategy) -> T + Sync,
) -> Vec<T> {
    let options = CommunicatorOptions {
        timeout: TIMEOUT,
        ..CommunicatorOptions::default()
    };
    let group = Communicator::in_memory(workers, &options).unwrap();
    thread::scope(|scope| {
        let start = |communicator: Communicator| {
            let (work, engine) = (&work, &engine);
            scope.spawn(move || {
                let engine = engine(communicator.rank());
                work(MultiWorkerMirroredStrategy::on(engine, communicator, TIMEOUT).unwrap())
            })
        };
        let running: Vec<_> = group.into_iter().map(start).collect();
        running
            .into_iter()
            .map(|worker| worker.join().unwrap())
            .collect()
    })
}

/// Trains a case in one process and by workers, and compares.
fn check(workers: usize, devices: usize, case: impl Fn() -> Case + Sync) {
    check_within(workers, devices, TOLERANCE, case);
}

fn check_within(workers: usize, devices: usize, tolerance: f64, case: impl Fn() -> Case + Sync) {
    let one = train(&OneDeviceStrategy::on(engine(0, 1)), &case());
    let all = train_on(workers, devices, &case);
    let name = case().name;
    for other in &all {
        assert_eq!(other, &all[0], "{name}: workers have different bits");
        for ((name, a), (_, b)) in one.variables.iter().zip(&other.variables) {
            let apart = apart(a, b);
            assert!(apart <= tolerance, "{name} is {apart:e} apart");
        }
        for ((name, a), (_, b)) in one.logs.iter().zip(&other.logs) {
            let bound = tolerance * a.abs().max(1.0);
            assert!((a - b).abs() <= bound, "{name} is {a} and {b}");
        }
        assert!(apart(&one.predicted, &other.predicted) <= 10.0 * tolerance);
    }
}

#[test]
fn two_workers_train_a_network_with_everything_as_one_process() {
    check(2, 1, cases::everything);
}

#[test]
fn two_workers_train_parts_that_the_program_defines_as_one_process() {
    check(2, 1, cases::own_case::own_parts);
}

#[test]
fn three_and_four_workers_and_two_by_two_replicas_do_too() {
    check(3, 1, cases::everything);
    check(4, 1, cases::everything);
    check(2, 2, cases::everything);
}

/// 17 rows in batches of 8: the last batch has one row, so that some workers have none.
fn ragged() -> Case {
    Case {
        data: cases::rows(17),
        batch: 8,
        epochs: 4,
        ..cases::everything()
    }
}

#[test]
fn a_last_batch_with_fewer_rows_than_workers_counts_each_row_once() {
    check(2, 1, ragged);
    check(3, 1, ragged);
}

/// The logarithm of its input, which has no derivative at 0.
#[derive(Debug)]
struct Logarithm;

impl Layer for Logarithm {
    fn kind(&self) -> &'static str {
        "logarithm"
    }

    fn config(&self) -> serde_json::Value {
        serde_json::json!({})
    }

    fn call(&self, _: &mut Cx, inputs: &[Tensor]) -> Tensor {
        inputs[0].log()
    }
}

/// Of the last batch, of one row, some workers have none, and rows of zeros would make their gradients no numbers.
fn logarithms() -> Case {
    let rows = cases::rows(17).map(|example| {
        let x: Vec<f32> = example.x[0].f32s().iter().map(|x| x + 1.5).collect();
        let x = vec![HostTensor::new([6], &x)];
        Ok(Example { x, ..example })
    });
    let model = Sequential::new([6]).add(Logarithm).add(Dense::new(3));
    let mut compile = cases::everything().compile;
    compile.optimizer = Sgd::new(0.1).into();
    Case {
        data: rows,
        model: model.build().unwrap(),
        compile,
        ..ragged()
    }
}

#[test]
fn losses_that_layers_add_count_by_examples() {
    check(2, 1, cases::added_losses);
    check(3, 1, cases::added_losses);
}

#[test]
fn a_worker_without_rows_computes_on_one_of_the_data() {
    check(2, 1, logarithms);
    check(3, 1, logarithms);
}

/// Five rows of one process and five of the other, which its replicas cannot divide, train as ten of one device do.
#[test]
fn batches_by_hand_draw_other_numbers_in_each_process() {
    let model = || {
        let model = Sequential::new([6]).add(Dropout::new(0.5));
        model.add(Dense::new(3))
    };
    let compile = || Compile {
        optimizer: Sgd::new(0.5).into(),
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        ..Compile::default()
    };
    let values = |trainer: &Trainer| -> Vec<f64> {
        let variables = trainer.variables().unwrap();
        variables
            .iter()
            .flat_map(|(_, value)| value.to_f64())
            .collect()
    };
    let batch = |first: usize, rows: usize| {
        let data = cases::rows(10).skip(first).take(rows);
        data.batch(rows).get(0, 0).unwrap()
    };
    let one = OneDeviceStrategy::on(engine(0, 1));
    let mut one = one.compile(model(), compile()).unwrap();
    one.train_on_batch(&batch(0, 10)).unwrap();
    let all = on_workers(2, 2, |strategy| {
        let worker = strategy.worker();
        let mut trainer = strategy.compile(model(), compile()).unwrap();
        trainer.train_on_batch(&batch(worker * 5, 5)).unwrap();
        values(&trainer)
    });
    for other in all {
        let apart = apart(&values(&one), &other);
        assert!(apart <= TOLERANCE, "{apart:e} apart");
    }
}

/// Of the rows of the first batch one worker has all that have weights.
fn partly_weighted() -> Case {
    let weights = HostTensor::new([3], &[0.5f32, 2.0, 1.5]);
    let weighted = cases::rows(3).with_weights(&weights).unwrap();
    Case {
        data: weighted.concatenate(&cases::rows(9)).unwrap(),
        batch: 6,
        epochs: 2,
        ..cases::everything()
    }
}

#[test]
fn weights_that_one_worker_alone_has_train_as_in_one_process() {
    check(2, 1, partly_weighted);
}

#[test]
fn half_precision_trains_as_in_one_process() {
    for precision in [Policy::MixedBfloat16, Policy::MixedFloat16] {
        let case = || {
            let mut case = ragged();
            case.compile.precision = precision;
            case
        };
        // What is rounded to 16 bits depends on the rows of a worker, in the last of these bits.
        check_within(2, 1, 2e-2, case);
    }
}

#[test]
fn convolutions_attention_and_embeddings_train_as_in_one_process() {
    check(2, 1, || cases::cnn_but(Part::None));
    check(3, 1, || cases::transformer_but(Part::None));
    check(2, 1, || cases::recommender_but(Part::None));
}

#[test]
fn a_worker_with_another_program_is_named_before_the_first_step() {
    let errors = on_workers(2, 1, |strategy| {
        let case = cases::everything();
        let mut compile = case.compile;
        if !strategy.is_chief() {
            compile.metrics.clear();
        }
        let mut trainer = strategy.compile(case.model, compile).unwrap();
        let fit = Fit::epochs(1).progress(Progress::Silent);
        let error = trainer.fit(&case.data.batch(case.batch), fit).unwrap_err();
        assert_eq!(trainer.iterations(), 0);
        error.to_string()
    });
    for (error, other) in errors.iter().zip(["worker 1 has", "worker 0 has"]) {
        assert!(error.contains("differs between workers"), "{error}");
        assert!(error.contains(other), "{error}");
    }
}

#[test]
fn several_steps_in_one_program_are_refused() {
    let errors = on_workers(2, 1, |strategy| {
        let case = cases::everything();
        let compile = Compile {
            steps_per_execution: 4,
            ..case.compile
        };
        let refused = strategy.compile(case.model, compile).unwrap_err();
        refused.to_string()
    });
    for error in errors {
        assert!(error.contains("in several processes"), "{error}");
    }
}

/// One bit of one variable of one worker is another. PHALANX_TEST_TRIALS flips more than the few of each test run.
#[test]
fn a_flipped_bit_is_found_and_named_within_the_steps_of_a_comparison() {
    let trials = std::env::var("PHALANX_TEST_TRIALS").map_or(5, |text| text.parse().unwrap());
    for trial in 0..trials {
        let workers = [2, 3, 3, 2, 3][trial % 5];
        let wrong = trial % workers;
        let errors = on_workers(workers, 1, |strategy| {
            let case = cases::everything();
            let worker = strategy.worker();
            let mut trainer = strategy.compile(case.model, case.compile).unwrap();
            let data = case.data.batch(case.batch);
            let fit = |epochs| {
                let fit = Fit::epochs(epochs).progress(Progress::Silent);
                fit.compare_workers(7)
            };
            trainer.fit(&data, fit(3)).unwrap();
            let (name, value) = trainer.variables().unwrap().remove(trial % 4);
            if worker == wrong {
                let mut values: Vec<f32> = value.to_f64().iter().map(|x| *x as f32).collect();
                let flipped = values[trial % values.len()].to_bits() ^ (1 << (trial * 5 % 29));
                let at = trial % values.len();
                values[at] = f32::from_bits(flipped);
                let value = HostTensor::new(value.dims(), &values);
                trainer.set_variables(&[(&name, value)]).unwrap();
            }
            let before = trainer.iterations();
            let error = trainer.fit(&data, fit(20).initial_epoch(3)).unwrap_err();
            let took = trainer.iterations() - before;
            assert!((1..=7).contains(&took), "found after {took} steps");
            (error.to_string(), name)
        });
        // Of two, the first one counts.
        let named = if workers == 2 { 1 } else { wrong };
        for (error, _) in &errors {
            let who = format!("worker {named} has other values of `");
            assert!(error.contains(&who), "{errors:?}");
        }
    }
}

#[test]
fn a_worker_with_bad_data_ends_the_others_at_once() {
    let errors = on_workers(2, 1, |strategy| {
        let case = cases::everything();
        let is_chief = strategy.is_chief();
        let mut trainer = strategy.compile(case.model, case.compile).unwrap();
        let data = case.data.map(move |example| match is_chief {
            true => Ok(example),
            false => Err(phalanx::Error::User("no such file".into())),
        });
        let fit = Fit::epochs(1).progress(Progress::Silent);
        let error = trainer.fit(&data.batch(case.batch), fit).unwrap_err();
        error.to_string()
    });
    assert!(
        errors[0].contains("rank 1 ended") && errors[0].contains("no such file"),
        "{errors:?}"
    );
    assert!(errors[1].contains("no such file"), "{errors:?}");
}

#[test]
fn one_trace_has_the_steps_of_all_workers() {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("workers-trace.json");
    let _ = std::fs::remove_file(&path);
    on_workers(2, 1, |strategy| {
        let case = cases::everything();
        let mut trainer = strategy.compile(case.model, case.compile).unwrap();
        let fit = Fit::epochs(3).progress(Progress::Silent).trace(&path, 1, 2);
        trainer.fit(&case.data.batch(case.batch), fit).unwrap();
    });
    let text = std::fs::read_to_string(&path).unwrap();
    let trace: serde_json::Value = serde_json::from_str(&text).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    for worker in 0..2 {
        let of = |track: u32, name: &str| {
            let spans = events.iter().filter(|event| {
                event["ph"] == "X" && event["pid"] == worker && event["tid"] == track
            });
            spans.filter(|event| event["name"] == name).count()
        };
        assert_eq!(of(1, "step"), 2, "{text}");
        assert_eq!(of(0, "input"), 2, "{text}");
        assert!(of(0, "transfer") >= 2 && of(0, "compute") >= 2, "{text}");
    }
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn the_first_worker_writes_the_event_files() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("workers-tensorboard");
    let _ = std::fs::remove_dir_all(&folder);
    let is_chief = on_workers(2, 1, |strategy| {
        let case = cases::everything();
        let is_chief = strategy.is_chief();
        let events = folder.join(if is_chief { "first" } else { "other" });
        let mut trainer = strategy.compile(case.model, case.compile).unwrap();
        let fit = Fit::epochs(1)
            .progress(Progress::Silent)
            .tensorboard(TensorBoard::new(events).update_freq(UpdateFreq::Steps(1)));
        trainer.fit(&case.data.batch(case.batch), fit).unwrap();
        is_chief
    });
    assert_eq!(is_chief, [true, false]);
    let files = std::fs::read_dir(folder.join("first/train")).unwrap();
    assert_eq!(files.count(), 1);
    let others: Vec<_> = std::fs::read_dir(folder.join("other"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(others, ["worker-1"]);
    assert!(folder.join("first/worker-0").exists());
    std::fs::remove_dir_all(&folder).unwrap();
}
