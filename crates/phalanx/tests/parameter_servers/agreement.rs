//! Workers that train something else than the first one are refused, with an error that names what differs; a first worker that was
//! lost goes on in another process.

use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use phalanx::fit::callbacks::{EarlyStopping, ModelCheckpoint, SaveFreq};
use phalanx::prelude::*;
use phalanx::strategy::{Mode, ParameterServerOptions, ParameterServerStrategy};
use phalanx::{Error, Result};
use phalanx_cluster::ClusterSpec;

use super::{engine, member, on_cluster, on_routed, on_workers, ragged, scratch};

fn together() -> ParameterServerOptions {
    ParameterServerOptions::new().mode(Mode::Sync { backup_workers: 0 })
}

/// A training of one worker.
struct Training {
    model: Sequential,
    compile: Compile,
    rows: usize,
    first: f32,
    batch: usize,
    fit: Fit,
    resumes: Option<PathBuf>,
}

impl Training {
    fn new() -> Self {
        Self {
            model: network(Activation::Relu, 0.5),
            compile: Compile {
                optimizer: Sgd::new(0.1).into(),
                loss: MeanSquaredError.into(),
                seed: 7,
                ..Compile::default()
            },
            rows: 8,
            first: 0.0,
            batch: 4,
            fit: Fit::epochs(1),
            resumes: None,
        }
    }

    fn run(self, strategy: &ParameterServerStrategy) -> Result<History> {
        let values: Vec<f32> = (0..self.rows * 2)
            .map(|i| self.first + i as f32 / 10.0)
            .collect();
        let x = HostTensor::new([self.rows, 2], &values);
        let y = HostTensor::new([self.rows, 1], &values[..self.rows]);
        let data = Dataset::from_arrays([x], [y])?.batch(self.batch);
        let mut trainer = strategy.compile(self.model.build()?, self.compile)?;
        if let Some(path) = &self.resumes {
            trainer.restore_checkpoint(path)?;
        }
        trainer.fit(&data, self.fit)
    }
}

/// What one of the workers does otherwise.
type Change = fn(&mut Training);

fn network(activation: Activation, rate: f64) -> Sequential {
    Sequential::new([2])
        .add(Dense::new(3).activation(activation))
        .add(Dropout::new(rate))
        .add(Dense::new(1))
}

/// What the second of two workers is told, whose training was changed.
fn refused(change: Change) -> String {
    let ends = on_cluster(
        (2, 1),
        &together(),
        |strategy| {
            let mut training = Training::new();
            if !strategy.is_chief() {
                change(&mut training);
            }
            let ended = training.run(&strategy);
            (strategy.is_chief(), ended)
        },
        // What a worker finds in `fit` ends the job.
        drop,
    );
    let mut others = ends.into_iter().filter(|(is_chief, _)| !is_chief);
    match others.next() {
        Some((_, Err(Error::User(message)))) => message,
        Some((_, other)) => panic!("{other:?}"),
        None => panic!("there is one worker"),
    }
}

#[test]
fn a_worker_with_another_program_is_refused_by_the_name_of_what_differs() {
    let cases: [(&str, Change); 10] = [
        ("layer 0 of the model", |t| {
            t.model = network(Activation::Tanh, 0.5);
        }),
        ("layer 1 of the model", |t| {
            t.model = network(Activation::Relu, 0.25);
        }),
        ("the loss of output 0", |t| {
            t.compile.loss = Huber::new(1.0).into();
        }),
        ("the precision", |t| {
            t.compile.precision = Policy::MixedBfloat16;
        }),
        ("the seed", |t| t.compile.seed = 8),
        ("the number of training examples", |t| t.rows = 6),
        ("what is in the training examples", |t| t.first = 1.0),
        ("the size of training batches", |t| t.batch = 2),
        ("the number of epochs", |t| t.fit = Fit::epochs(2)),
        ("`data_settings`", |t| {
            t.fit = Fit::epochs(1).data_settings("other");
        }),
    ];
    for (what, change) in cases {
        let message = refused(change);
        assert!(
            message.starts_with(&format!("{what} differs between workers: worker 1 has ")),
            "{message}"
        );
    }
}

#[test]
fn statistics_of_all_rows_are_refused_where_each_worker_has_a_part() {
    let normalized = || {
        let mut training = Training::new();
        training.model = Sequential::new([2])
            .add(BatchNorm::new().synchronized(true))
            .add(Dense::new(1));
        training
    };
    let ends = |options: &ParameterServerOptions| {
        on_cluster(
            (2, 1),
            options,
            |strategy| normalized().run(&strategy),
            drop,
        )
    };
    for ended in ends(&together()) {
        let message = ended.unwrap_err().to_string();
        assert!(
            message.contains("`batch_norm` is `synchronized`"),
            "{message}"
        );
    }
    // Each has all rows of its batches.
    for ended in ends(&ParameterServerOptions::new()) {
        ended.unwrap();
    }
}

#[test]
fn a_first_worker_that_was_lost_has_each_epoch_once() {
    let folder = scratch("lost-chief");
    let path = folder.join("checkpoint");
    let seen = OnceLock::new();
    let route = |cluster: &ClusterSpec| seen.get_or_init(|| cluster.clone()).clone();
    let options = ParameterServerOptions::new().go_on_without_chief();
    let training = |fit: Fit| Training {
        fit: fit.checkpoint(&path),
        ..Training::new()
    };
    let work = |strategy: ParameterServerStrategy| {
        // After the third epoch and before its checkpoint.
        let fit = Fit::epochs(4).after_epoch(|done| match done.epoch {
            2 => resume_unwind(Box::new("this process is lost")),
            _ => Ok(()),
        });
        let first = training(fit);
        let lost = thread::scope(|scope| scope.spawn(move || first.run(&strategy)).join());
        assert!(lost.is_err());
        let cluster = seen.get().unwrap();
        let place = member(cluster, cluster.worker(0));
        let strategy = ParameterServerStrategy::join(engine(0), &place, &options).unwrap();
        let again = Training {
            resumes: Some(path.clone()),
            ..training(Fit::epochs(4).resume())
        };
        let history = again.run(&strategy).unwrap();
        let epochs = history.epochs.iter().map(|done| (done.epoch, done.steps));
        assert_eq!(epochs.collect::<Vec<_>>(), [(0, 2), (1, 2), (2, 2), (3, 2)]);
    };
    on_routed((1, 1), &options, (route, work), |served| served.unwrap());
}

/// A callback that replaces a checkpoint after some batches.
fn every(batches: usize, path: &Path) -> ModelCheckpoint {
    ModelCheckpoint::new(path.display().to_string()).save_freq(SaveFreq::Batches(batches))
}

/// Epochs of three batches, with callbacks that count batches and epochs.
fn counted(folder: &Path, epochs: usize) -> Training {
    let patient = EarlyStopping::new("loss").min_delta(1e9).patience(3);
    let fit = Fit::epochs(epochs).progress(Progress::Silent);
    Training {
        rows: 12,
        fit: fit
            .callback(every(2, &folder.join("every")))
            .callback(patient),
        ..Training::new()
    }
}

/// The job goes on within an epoch. A process that comes back with a later checkpoint ends its epochs at the same batches, with the same
/// results, and the training where it would have ended.
#[test]
fn a_process_that_comes_back_begins_with_what_the_job_began_with() {
    let folder = scratch("begun-within");
    let (begun, path) = (folder.join("begun"), folder.join("checkpoint"));
    let options = ParameterServerOptions::new().go_on_without_chief();
    on_workers((1, 1), &options, |strategy| {
        let mut before = counted(&folder, 2);
        // The second batch of an epoch.
        before.fit = before.fit.callback(every(5, &begun));
        before.run(&strategy).unwrap();
    });
    let seen = OnceLock::new();
    let route = |cluster: &ClusterSpec| seen.get_or_init(|| cluster.clone()).clone();
    let goes_on = |from: &Path| {
        let mut training = counted(&folder, 6);
        training.fit = training.fit.checkpoint(&path).resume();
        training.resumes = Some(from.to_owned());
        training
    };
    let loss = Arc::new(Mutex::new(None));
    let work = |strategy: ParameterServerStrategy| {
        let (mut first, of_first) = (goes_on(&begun), Arc::clone(&loss));
        first.fit = first.fit.after_epoch(move |done| {
            match done.epoch {
                1 => *of_first.lock().unwrap() = done.logs.get("loss"),
                _ => resume_unwind(Box::new("this process is lost")),
            }
            Ok(())
        });
        let lost = thread::scope(|scope| scope.spawn(move || first.run(&strategy)).join());
        assert!(lost.is_err());
        let cluster = seen.get().unwrap();
        let place = member(cluster, cluster.worker(0));
        let strategy = ParameterServerStrategy::join(engine(0), &place, &options).unwrap();
        goes_on(&path).run(&strategy).unwrap().epochs
    };
    let ended = on_routed((1, 1), &options, (route, work), |served| served.unwrap());
    let epochs: Vec<usize> = ended[0].iter().map(|done| done.epoch).collect();
    assert_eq!(epochs, [0, 1, 2, 3], "three epochs after the best");
    let again = ended[0][1].logs.get("loss");
    assert!(again.is_some());
    assert_eq!(again, *loss.lock().unwrap());
}

/// Data of two batches that the second of two workers cannot read; the first one waits for it with its own.
fn broken_data(is_chief: bool, is_read: &Arc<AtomicBool>) -> Batches {
    let x = HostTensor::new([8, 2], &[0.5f32; 16]);
    let data = Dataset::from_arrays([x], [HostTensor::new([8, 1], &[0.5f32; 8])]);
    let is_read = Arc::clone(is_read);
    let read = move |example| {
        if !is_chief {
            is_read.store(true, Ordering::Relaxed);
            return Err(Error::User("the disk is gone".into()));
        }
        for _ in 0..1000 {
            if !is_read.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(10));
            }
        }
        Ok(example)
    };
    data.unwrap().map(read).batch(4)
}

/// As in a training: the others do not wait for it, nor go on with what it could not read.
#[test]
fn a_worker_that_fails_in_an_evaluation_or_a_prediction_ends_the_job() {
    for predicts in [false, true] {
        let is_read = Arc::default();
        let ends = on_cluster(
            (2, 1),
            &ParameterServerOptions::new(),
            |strategy| {
                let is_chief = strategy.is_chief();
                let training = Training::new();
                let model = training.model.build().unwrap();
                let mut trainer = strategy.compile(model, training.compile).unwrap();
                let data = broken_data(is_chief, &is_read);
                let ended = match predicts {
                    true => trainer.predict(&data).map(drop),
                    false => trainer.evaluate(&data).map(drop),
                };
                (is_chief, ended.map_err(|error| error.to_string()))
            },
            |served| assert!(served.is_err(), "{served:?}"),
        );
        for (is_chief, ended) in ends {
            let error = ended.unwrap_err();
            assert!(error.contains("the disk is gone"), "{error}");
            assert_eq!(
                error.contains("worker 1 ended the job"),
                is_chief,
                "{error}"
            );
        }
    }
}

#[test]
fn loss_scales_that_skip_steps_are_refused() {
    on_workers((1, 1), &together(), |strategy| {
        let shown = format!("{strategy:?}");
        let counts = "1 worker with variables on 1 parameter server, synchronous";
        assert!(shown.contains(counts), "{shown}");
        for (loss_scale, what) in [
            (LossScale::DYNAMIC, "keep no dynamic loss scale"),
            (LossScale::SkipNonFinite, "skip no step"),
        ] {
            let case = ragged();
            let compile = Compile {
                loss_scale,
                ..case.compile
            };
            let error = strategy.compile(case.model, compile).unwrap_err();
            assert!(error.to_string().contains(what), "{error}");
        }
    });
}
