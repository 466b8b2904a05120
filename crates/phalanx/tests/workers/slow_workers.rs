//! A worker that keeps the others waiting is named, whatever it is that makes it slow.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::Duration;

use phalanx::engine::{Engine, EngineOptions};
use phalanx::fit::Watch;
use phalanx::fit::callbacks::Lambda;
use phalanx::prelude::*;
use phalanx::strategy::{CommunicationOptions, MultiWorkerMirroredStrategy, Transport};

use crate::accumulation::windows_of;
use crate::processes::{Group, OUT};
use crate::{any_device, cases, on_workers};

/// The worker that becomes slow, in a process that trains for the first test of this file; none where nobody does.
const SLOW: &str = "PHALANX_TEST_SLOW_WORKER";
/// The number of epochs of such a process.
const LONG: &str = "PHALANX_TEST_SLOW_EPOCHS";
/// How many batches it reads before.
const SLOW_FROM: usize = 20;
/// And when it is fast again.
const SLOW_UNTIL: usize = 45;
/// Steps of an epoch.
const STEPS: usize = 20;
const EPOCHS: usize = 8;
/// Far more than a step takes, also on a machine that does much else.
const DELAY: Duration = Duration::from_millis(360);
/// What each worker takes for a batch at least: the slow one takes ten times that, and a vote is held every 12 steps at least.
const USUAL: Duration = Duration::from_millis(40);

/// The test that a worker's process runs; nothing where this is no such process.
#[test]
fn worker() {
    let Ok(out) = std::env::var(OUT) else { return };
    let text = train_unevenly().unwrap_or_else(|error| format!("error: {error}"));
    std::fs::write(Path::new(&out), text).unwrap();
}

/// Notices of slow workers, each with the number of steps made before, and the workers that the logs of each epoch name.
fn train_unevenly() -> phalanx::Result<String> {
    let made = Arc::new(AtomicUsize::new(0));
    let told = Arc::new(Mutex::new(Vec::new()));
    let (steps, lines) = (Arc::clone(&made), Arc::clone(&told));
    let notice = move |line: &str| {
        if line.contains("keeps the others waiting") {
            let step = steps.load(Ordering::Relaxed);
            lines.lock().unwrap().push(format!("{step} {line}"));
        }
    };
    let engine = Engine::new(&EngineOptions {
        quick_compile: true,
        notice: Arc::new(notice),
        ..any_device::options()
    })?;
    let options = CommunicationOptions::new()
        .transport(Transport::Tcp)
        .timeout(Duration::from_secs(120));
    let strategy = MultiWorkerMirroredStrategy::from_env_with(&engine, &options)?;
    let setting = |name: &str| std::env::var(name).ok().map(|text| text.parse().unwrap());
    let is_slow = setting(SLOW) == Some(strategy.worker());
    let (is_long, read) = (setting(LONG).is_some(), AtomicUsize::new(0));
    let case = cases::everything();
    let data = cases::rows(8 * STEPS).batch(8).map(move |batch| {
        let number = read.fetch_add(1, Ordering::Relaxed);
        if !is_long {
            sleep(USUAL);
        }
        if is_slow && (SLOW_FROM..SLOW_UNTIL).contains(&number) {
            sleep(DELAY);
        }
        Ok(batch)
    });
    let count = Lambda::new().on_train_batch_end(move |_, _| {
        made.fetch_add(1, Ordering::Relaxed);
        Ok(())
    });
    let mut trainer = strategy.compile(case.model, case.compile)?;
    let fit = Fit::epochs(setting(LONG).unwrap_or(EPOCHS)).progress(Progress::Silent);
    let history = trainer.fit(&data.prefetch(0), fit.callback(count))?;
    let mut lines = told.lock().unwrap().clone();
    if is_long {
        let seconds: f64 = history.epochs.iter().map(|epoch| epoch.seconds).sum();
        return Ok(format!(
            "{lines:?} in {} steps, {seconds:.2} s",
            trainer.iterations()
        ));
    }
    lines.extend(history.epochs.iter().map(|epoch| {
        let slow = epoch.slow_workers.iter().map(|slow| slow.worker);
        format!("{:?}", slow.collect::<Vec<_>>())
    }));
    Ok(lines.join("\n"))
}

/// PHALANX_TEST_TRIALS asks for more than one, of 2, 3 and 4 workers, each of which is the slow one in turn.
#[test]
fn a_worker_that_becomes_slow_is_named_within_20_steps_and_when_it_keeps_up_again() {
    let trials = std::env::var("PHALANX_TEST_TRIALS").map_or(1, |text| text.parse().unwrap());
    for trial in 0..trials {
        let workers = 2 + trial % 3;
        let slow = (trial + 1) % workers;
        let trial = || is_named_in_time(slow, workers);
        // What else the machine does may make another one slow, or the slow one for longer: hardly five times in a row.
        if (0..4).all(|_| std::panic::catch_unwind(trial).is_err()) {
            trial();
        }
    }
}

fn is_named_in_time(slow: usize, workers: usize) {
    let number = slow.to_string();
    let mut group = Group::run("slow_workers::worker", "slow", workers, &[(SLOW, &number)]);
    let names = format!("worker {slow} of {workers} (127.0.0.1:");
    for worker in 0..workers {
        let text = group.outcome(worker);
        let mut lines: Vec<&str> = text.lines().collect();
        let epochs = lines.split_off(lines.len() - EPOCHS);
        let named = format!("[{slow}]");
        assert_eq!(epochs[..3], ["[]", &named, &named], "{text}");
        assert_eq!(epochs[EPOCHS - 1], "[]", "{text}");
        if worker != 0 && worker != slow {
            assert!(lines.is_empty(), "{text}");
            continue;
        }
        let [late, in_time] = lines[..] else {
            panic!("{text}")
        };
        let (step, late) = late.split_once(' ').unwrap();
        let step: usize = step.parse().unwrap();
        println!("named after {} steps", step - SLOW_FROM);
        assert!((SLOW_FROM + 3..=SLOW_FROM + 20).contains(&step), "{text}");
        assert!(late.starts_with(&format!("warning: {names}")), "{text}");
        let in_time = in_time.split_once(' ').unwrap().1;
        assert!(in_time.starts_with(&format!("note: {names}")), "{text}");
    }
}

/// PHALANX_TEST_EVEN asks for it, by a number of epochs: what else a machine does may well make one worker slower than another.
#[test]
fn an_even_training_names_nobody() {
    let Ok(epochs) = std::env::var("PHALANX_TEST_EVEN") else {
        return;
    };
    for workers in [2, 3, 4] {
        let long = [(LONG, epochs.as_str())];
        let mut group = Group::run("slow_workers::worker", "even", workers, &long);
        let texts: Vec<String> = (0..workers).map(|worker| group.outcome(worker)).collect();
        println!("{texts:?}");
        assert!(
            texts.iter().all(|text| text.starts_with("[] in ")),
            "{texts:?}"
        );
    }
}

/// Values by their names.
type Variables = Vec<(String, HostTensor)>;

/// The first of three workers is slow by a callback, and adds up gradients of three batches: who is named in each epoch, and what is left.
fn trained(delay: Duration, watch: Watch) -> Vec<(Vec<usize>, Variables)> {
    on_workers(3, 1, |strategy| {
        let case = windows_of(3);
        let is_chief = strategy.is_chief();
        let wait = Lambda::new().on_train_batch_end(move |_, _| {
            if is_chief {
                sleep(delay);
            }
            Ok(())
        });
        let mut trainer = strategy.compile(case.model, case.compile).unwrap();
        let fit = Fit::epochs(case.epochs).progress(Progress::Silent);
        let fit = fit.watch_replicas(watch).callback(wait);
        let history = trainer.fit(&case.data.batch(case.batch), fit).unwrap();
        let slow = history.epochs.iter().flat_map(|epoch| &epoch.slow_workers);
        let named = slow.map(|slow| slow.worker).collect();
        (named, trainer.variables().unwrap())
    })
}

#[test]
fn a_slow_callback_counts_and_the_watch_changes_no_bit() {
    let even = trained(Duration::ZERO, Watch::Never);
    let slow = trained(DELAY, Watch::Auto);
    for ((none, variables), (named, others)) in even.iter().zip(&slow) {
        assert_eq!(none, &[0; 0]);
        assert!(
            !named.is_empty() && named.iter().all(|&worker| worker == 0),
            "{named:?}"
        );
        assert_eq!(variables, others);
    }
    let unwatched = trained(DELAY, Watch::Never);
    assert!(unwatched.iter().all(|(named, _)| named.is_empty()));
}
