//! Trainings that are interrupted at random points and begun again end with the bits of an unbroken one, and have trained on each
//! example once in each epoch: in one process, by two workers, and with central storage.
//!
//! PHALANX_TEST_TRIALS says how many interruptions there are of each, PHALANX_TEST_SEED where their random numbers begin.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use std::{fs, thread};

use phalanx::checkpoint::TrainingState;
use phalanx::engine::{Engine, EngineOptions};
use phalanx::fit::callbacks::{BackupAndRestore, Lambda, SaveFreq};
use phalanx::prelude::*;
use phalanx::strategy::{
    CentralStorageStrategy, Communicator, CommunicatorOptions, MultiWorkerMirroredStrategy,
};
use phalanx_testkit::Random;

/// Batches of six, the last of five.
const ROWS: usize = 23;
const BATCH: usize = 6;
const STEPS: u64 = 4;
const EPOCHS: usize = 3;
const TIMEOUT: Duration = Duration::from_secs(60);

/// Where a training runs.
#[derive(Clone, Copy, Debug)]
enum Place {
    OneProcess,
    TwoWorkers,
    CentralStorage,
}

fn engine(number: usize) -> &'static Engine {
    static ENGINES: [OnceLock<Engine>; 2] = [const { OnceLock::new() }; 2];
    let options = EngineOptions {
        cpu_devices: 2,
        quick_compile: true,
        ..EngineOptions::default()
    };
    ENGINES[number].get_or_init(|| Engine::new(&options).unwrap())
}

/// How a training is interrupted.
#[derive(Clone, Copy, Debug)]
enum Fault {
    None,
    /// After this step, before its checkpoint is written.
    CrashBeforeSave(i64),
    /// The same, after it.
    CrashAfterSave(i64),
    /// It is asked to stop.
    Stop(i64),
    /// After so many examples were read, by their source.
    Data(usize),
}

impl Fault {
    fn random(random: &mut Random) -> Self {
        let step = 1 + random.below(STEPS * EPOCHS as u64 - 1) as i64;
        match random.below(4) {
            0 => Self::CrashBeforeSave(step),
            1 => Self::CrashAfterSave(step),
            2 => Self::Stop(step),
            _ => Self::Data(random.below((ROWS * EPOCHS) as u64) as usize),
        }
    }
}

/// Rows with their number in the first feature, in a new order in every epoch; they fail where the fault says so.
fn data(fault: Fault) -> Batches {
    let mut x: Vec<f32> = (0..ROWS * 4).map(|i| (i as f32 * 0.37).sin()).collect();
    for row in 0..ROWS {
        x[row * 4] = row as f32 / 32.0;
    }
    let y: Vec<i32> = (0..ROWS).map(|row| (row * row % 3) as i32).collect();
    let rows = Dataset::from_arrays(HostTensor::new([ROWS, 4], &x), HostTensor::new([ROWS], &y));
    let read = AtomicUsize::new(0);
    let failing = rows.unwrap().shuffle(5).map(move |example| {
        let number = read.fetch_add(1, Ordering::Relaxed);
        match fault {
            Fault::Data(at) if number == at => {
                Err(phalanx::Error::User("pulled the plug".to_owned()))
            }
            _ => Ok(example),
        }
    });
    failing.batch(BATCH).prefetch(0)
}

fn trainer(strategy: &impl Strategy) -> Trainer {
    let model = Sequential::new([4])
        .add(Dense::new(8).activation(tanh))
        .add(BatchNorm::new().momentum(0.7))
        .add(Dropout::new(0.25))
        .add(Dense::new(3));
    let compile = Compile {
        optimizer: Adam::new(CosineDecay::new(0.05, 9)).into(),
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        metrics: vec![Accuracy.into()],
        seed: 11,
        ..Compile::default()
    };
    strategy.compile(model.build().unwrap(), compile).unwrap()
}

/// The examples that a worker has trained on in a step, counted from 1 over all epochs.
type Step = (i64, usize, Vec<usize>);

/// What a training leaves: the state, and the logs of each epoch to the bit.
#[derive(Debug, PartialEq)]
struct Outcome {
    variables: Vec<(String, HostTensor)>,
    slots: Vec<(String, HostTensor)>,
    iterations: i64,
    logs: Vec<(usize, Vec<(String, u64)>)>,
}

fn outcome(trainer: &Trainer) -> Outcome {
    let state = trainer.training_state().unwrap();
    let of_epoch = |epoch: &phalanx::fit::EpochLogs| {
        let logs = epoch.logs.iter();
        let logs = logs.map(|(name, value)| (name.to_owned(), value.to_bits()));
        (epoch.steps, logs.collect())
    };
    Outcome {
        variables: state.variables().to_vec(),
        slots: state.slots().to_vec(),
        iterations: state.iterations(),
        logs: trainer.history().epochs.iter().map(of_epoch).collect(),
    }
}

/// One run of a training, as one of its workers.
struct Attempt<'a> {
    backup: &'a Path,
    save_freq: usize,
    fault: Fault,
    /// The worker that the fault happens to.
    faulty: usize,
    steps: &'a Mutex<Vec<Step>>,
}

impl Attempt<'_> {
    fn run(&self, strategy: &impl Strategy, worker: usize) -> phalanx::Result<Outcome> {
        let fault = match worker == self.faulty {
            true => self.fault,
            false => Fault::None,
        };
        let seen = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&seen);
        let note = Lambda::new().on_train_batch_end(move |_, cx| {
            let batch = cx.batch().expect("a batch").x[0].to_f64();
            let ids = batch.chunks(4).map(|row| (row[0] * 32.0) as usize);
            let step: Step = (cx.iterations(), cx.epoch(), ids.collect());
            noted.lock().unwrap().push(step);
            Ok(())
        });
        let stop = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&stop);
        let crash = |at| {
            Lambda::new().on_train_batch_end(move |_, cx| match cx.iterations() == at {
                true => Err(phalanx::Error::Training("a crash".to_owned())),
                false => Ok(()),
            })
        };
        let ask = |at| {
            Lambda::new().on_train_batch_begin(move |_, cx| {
                asked.fetch_or(cx.iterations() + 1 >= at, Ordering::Relaxed);
                Ok(())
            })
        };
        let backup =
            BackupAndRestore::new(self.backup).save_freq(SaveFreq::Batches(self.save_freq));
        let fit = Fit::epochs(EPOCHS)
            .progress(Progress::Silent)
            .stop_when(&stop);
        let fit = match fault {
            Fault::CrashBeforeSave(at) => fit.callback(note).callback(crash(at)).callback(backup),
            Fault::CrashAfterSave(at) => fit.callback(backup).callback(note).callback(crash(at)),
            Fault::Stop(at) => fit.callback(note).callback(ask(at)).callback(backup),
            Fault::Data(_) | Fault::None => fit.callback(note).callback(backup),
        };
        let mut trainer = trainer(strategy);
        let trained = trainer.fit(&data(fault), fit);
        self.steps.lock().unwrap().append(&mut seen.lock().unwrap());
        trained.map(|_| outcome(&trainer))
    }

    fn at(&self, place: Place) -> Vec<phalanx::Result<Outcome>> {
        match place {
            Place::OneProcess => vec![self.run(&OneDeviceStrategy::on(engine(0)), 0)],
            Place::CentralStorage => vec![self.run(&CentralStorageStrategy::on(engine(0)), 0)],
            Place::TwoWorkers => {
                let options = CommunicatorOptions {
                    timeout: TIMEOUT,
                    ..CommunicatorOptions::default()
                };
                let group = Communicator::in_memory(2, &options).unwrap();
                thread::scope(|scope| {
                    let start = |communicator: Communicator| {
                        scope.spawn(move || {
                            let worker = communicator.rank();
                            let engine = engine(worker);
                            let strategy =
                                MultiWorkerMirroredStrategy::on(engine, communicator, TIMEOUT);
                            self.run(&strategy.unwrap(), worker)
                        })
                    };
                    let running: Vec<_> = group.into_iter().map(start).collect();
                    let ended = running.into_iter().map(|worker| worker.join().unwrap());
                    ended.collect()
                })
            }
        }
    }
}

/// Each example once in each epoch.
fn check_once(steps: &[Step]) {
    let mut counts: BTreeMap<(usize, usize), usize> = BTreeMap::new();
    for (_, epoch, ids) in steps {
        for id in ids {
            *counts.entry((*epoch, *id)).or_default() += 1;
        }
    }
    assert_eq!(counts.len(), EPOCHS * ROWS, "{counts:?}");
    assert!(counts.values().all(|count| *count == 1), "{counts:?}");
}

/// A training, interrupted up to four times; how often it was.
fn trial(place: Place, seed: u64, folder: &Path, whole: &[Outcome]) -> usize {
    let mut random = Random::new(seed);
    let backup = folder.join(seed.to_string());
    let steps = Mutex::new(Vec::new());
    let faults = 1 + random.below(4);
    for number in 0..=faults {
        let fault = match number < faults {
            true => Fault::random(&mut random),
            false => Fault::None,
        };
        let attempt = Attempt {
            backup: &backup,
            save_freq: 1 + random.below(5) as usize,
            fault,
            faulty: random.below(2) as usize * usize::from(matches!(place, Place::TwoWorkers)),
            steps: &steps,
        };
        let ended = attempt.at(place);
        if let Ok(outcomes) = ended.into_iter().collect::<phalanx::Result<Vec<Outcome>>>() {
            check_once(&steps.lock().unwrap());
            assert_eq!(outcomes, whole, "{place:?}, seed {seed}, {fault:?}");
            return number as usize;
        }
        assert!(number < faults, "{place:?}, seed {seed}: it does not end");
        // What was trained after the checkpoint is lost.
        let state = TrainingState::is_at(&backup)
            .unwrap()
            .then(|| TrainingState::load_newest(&backup));
        let committed = state.map_or(0, |state| state.unwrap().0.iterations());
        steps
            .lock()
            .unwrap()
            .retain(|(step, ..)| *step <= committed);
    }
    unreachable!("the last attempt ends the training or the test")
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

#[test]
fn interruptions_at_random_points_change_no_bit_and_lose_no_example() {
    let wanted = number("PHALANX_TEST_TRIALS", 6) as usize;
    let first = number("PHALANX_TEST_SEED", 1);
    for place in [Place::OneProcess, Place::TwoWorkers, Place::CentralStorage] {
        let folder: PathBuf =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("interruptions-{place:?}"));
        let _ = fs::remove_dir_all(&folder);
        let steps = Mutex::new(Vec::new());
        let attempt = Attempt {
            backup: &folder.join("whole"),
            save_freq: usize::MAX,
            fault: Fault::None,
            faulty: 0,
            steps: &steps,
        };
        let whole = attempt.at(place);
        let whole: Vec<Outcome> = whole.into_iter().map(Result::unwrap).collect();
        check_once(&steps.lock().unwrap());
        assert_eq!(whole[0].iterations, STEPS as i64 * EPOCHS as i64);
        let (mut interrupted, mut trainings) = (0, 0);
        for seed in first.. {
            interrupted += trial(place, seed, &folder, &whole);
            trainings += 1;
            if interrupted >= wanted {
                break;
            }
        }
        println!("{place:?}: {interrupted} interruptions of {trainings} trainings");
        let _ = fs::remove_dir_all(&folder);
    }
}
