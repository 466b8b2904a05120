//! Workers that are killed and stopped: the others go on with new ones in their place, and end where they would have ended anyway, to
//! the bit.
//!
//! Workers are processes of this test binary under the supervisor of `phalanx launch`. A trial is a seed: how many workers, when what
//! is done to whom. PHALANX_TEST_TRIALS runs more than the few of each test run, PHALANX_TEST_SEED one of them, and both those from it on.

mod full_disk;
mod late;
mod no_survivor;
mod own_loop;
mod run;
mod schedules;
mod soak;
mod trial;
mod two_fits;
mod unlaunched;

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use phalanx::checkpoint::TrainingState;
use phalanx::engine::{Engine, EngineOptions};
use phalanx::prelude::*;
use phalanx::strategy::{CommunicationOptions, MultiWorkerMirroredStrategy};
use phalanx_testkit::asked_number;

use self::trial::{Fault, KILL_SECOND};
use crate::{TOLERANCE, accumulation, any_device, apart, cases};

pub(crate) use self::run::{Run, begun};
pub(crate) use self::schedules::seeds;
pub(crate) use self::trial::Outage;

/// Where workers write; a process without it is no worker.
pub(crate) const FOLDER: &str = "PHALANX_TEST_RECOVERY";
/// The number of a worker that no launcher has started.
pub(crate) const RANK: &str = "PHALANX_TEST_RANK";
/// Seconds after which an exchange fails.
pub(crate) const TIMEOUT: &str = "PHALANX_TEST_TIMEOUT";
/// Seconds that workers without a launcher wait for one that was lost.
pub(crate) const RECOVER_WITHIN: &str = "PHALANX_TEST_RECOVER_WITHIN";
/// A file in the folder of a training. Before it is there, each example takes its time, so that nobody is killed too late.
pub(crate) const GO: &str = "go";
/// What each example takes until then, in milliseconds.
pub(crate) const PAUSE: &str = "PHALANX_TEST_PAUSE";
/// Where the first worker saves a checkpoint after each third step, from which all go on.
pub(crate) const CHECKPOINT: &str = "PHALANX_TEST_CHECKPOINT";
/// The number of epochs, and of examples.
pub(crate) const LENGTH: &str = "PHALANX_TEST_LENGTH";
/// Set where each worker is asked to stop when its last epoch is done.
pub(crate) const STOP_AT_END: &str = "PHALANX_TEST_STOP_AT_END";
/// The devices of each worker.
const DEVICES: &str = "PHALANX_TEST_DEVICES";
/// The examples before a worker says that it has begun.
const BEGUN_AFTER: &str = "PHALANX_TEST_BEGUN_AFTER";

/// The test that a worker's process runs; nothing where this is no such process.
#[test]
fn worker() {
    let Ok(folder) = std::env::var(FOLDER) else {
        return;
    };
    let rank = std::env::var(RANK).or_else(|_| std::env::var("RANK"));
    let rank = rank.unwrap();
    let out = Path::new(&folder).join(format!("{rank}.out"));
    late::before_meeting(Path::new(&folder));
    match train_as_worker(Path::new(&folder), &rank) {
        Ok(text) => std::fs::write(out, text).unwrap(),
        Err(error) => {
            eprintln!("worker {rank}: error: {error}");
            let is_of_disk = matches!(error, phalanx::Error::Io { .. });
            let ends_job = is_of_disk && std::env::var_os(CHECKPOINT).is_some();
            std::process::exit(match error {
                phalanx::Error::Stopped(_) => 143,
                _ if ends_job => 1,
                _ => 75,
            });
        }
    }
}

/// What a worker is left with: every variable, and the results of every epoch.
fn train_as_worker(folder: &Path, rank: &str) -> phalanx::Result<String> {
    let devices = std::env::var(DEVICES).map_or(1, |text| text.parse().unwrap());
    let engine = Engine::new(&EngineOptions {
        cpu_devices: devices,
        quick_compile: true,
        ..any_device::options()
    })?;
    let seconds = |name| std::env::var(name).map_or(120, |text| text.parse().unwrap());
    let within = seconds(RECOVER_WITHIN);
    let options = CommunicationOptions::new()
        .timeout(Duration::from_secs(seconds(TIMEOUT)))
        .recover_within(Duration::from_secs(within));
    let strategy = MultiWorkerMirroredStrategy::from_env_with(&engine, &options)?;
    let window = std::env::var(accumulation::WINDOW).ok();
    let case = match &window {
        Some(batches) => accumulation::windows_of(batches.parse().unwrap()),
        None => cases::everything(),
    };
    let own_loop = own_loop::begin(&strategy)?;
    let mut trainer = strategy.compile(case.model, case.compile)?;
    let begun = folder.join(format!("{rank}.{}.begun", std::process::id()));
    let go = folder.join(GO);
    let pause = std::env::var(PAUSE).map_or(40, |text| text.parse().unwrap());
    let pause = Duration::from_millis(pause);
    let late = std::env::var(BEGUN_AFTER).map_or(0, |text| text.parse().unwrap());
    let seen = AtomicUsize::new(0);
    let slow = move |example| {
        if seen.fetch_add(1, Ordering::Relaxed) == late {
            let _ = std::fs::write(&begun, "");
        }
        if !go.exists() {
            thread::sleep(pause);
        }
        Ok(example)
    };
    let Length { epochs, rows } = Length::of_this_worker();
    let fit = Fit::epochs(epochs).progress(Progress::Silent);
    let fit = saving(&mut trainer, stopping_at_end(fit, epochs))?;
    late::batch_by_hand(&mut trainer)?;
    no_survivor::perhaps_late(folder);
    two_fits::before_fit(folder, rank, 1);
    let history = match window {
        Some(_) => {
            let fit = fit.callback(accumulation::death(folder, rank));
            trainer.fit(&case.data.batch(case.batch), fit)?
        }
        None => {
            let data = cases::rows(rows).map(slow).shuffle(7).batch(case.batch);
            // Each example takes its time, however many processors there are.
            trainer.fit(&data.prefetch(0), fit)?
        }
    };
    let second = two_fits::train_again(folder, rank, &mut trainer)?;
    let history = second.unwrap_or(history);
    late::after_training(folder, &mut trainer)?;
    own_loop.map_or(Ok(()), |mut own_loop| own_loop())?;
    results(&history, &trainer)
}

/// Every number of the epochs, and of the variables.
fn results(history: &History, trainer: &Trainer) -> phalanx::Result<String> {
    let mut text = String::new();
    for epoch in &history.epochs {
        let logs: Vec<(&str, f64)> = epoch.logs.iter().collect();
        text.push_str(&format!("epoch {} {} {logs:?}\n", epoch.epoch, epoch.steps));
    }
    for (name, value) in trainer.variables()? {
        text.push_str(&format!("{name} {:?}\n", value.to_f64()));
    }
    Ok(text)
}

/// A training that saves checkpoints, where it is to, from the last one on.
fn saving(trainer: &mut Trainer, fit: Fit) -> phalanx::Result<Fit> {
    let Some(path) = std::env::var_os(CHECKPOINT) else {
        return Ok(fit);
    };
    if TrainingState::is_at(&path)? {
        trainer.restore_checkpoint(&path)?;
    }
    Ok(fit.checkpoint(path).save_freq(3).resume())
}

/// A training that is asked to stop when its last epoch is done, where it is to be.
fn stopping_at_end(fit: Fit, epochs: usize) -> Fit {
    if std::env::var_os(STOP_AT_END).is_none() {
        return fit;
    }
    let stop = Arc::new(AtomicBool::new(false));
    fit.stop_when(&stop).after_epoch(move |done| {
        stop.store(done.epoch + 1 == epochs, Ordering::Relaxed);
        Ok(())
    })
}

/// How long a worker trains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Length {
    epochs: usize,
    rows: usize,
}

/// 46 batches and one of a single row.
pub(crate) const USUAL: Length = Length {
    epochs: 5,
    rows: 323,
};
/// The same with 10 batches: where each step takes long.
pub(crate) const SHORT: Length = Length {
    epochs: 2,
    rows: 71,
};

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.epochs, self.rows)
    }
}

impl Length {
    fn of_this_worker() -> Self {
        let text = std::env::var(LENGTH).ok();
        let both = text.as_ref().and_then(|text| text.split_once(' '));
        both.map_or(USUAL, |(epochs, rows)| Self {
            epochs: epochs.parse().unwrap(),
            rows: rows.parse().unwrap(),
        })
    }
}

/// While it is held, no other test with many processes at the same time runs in this test run.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static HEAVY: Mutex<()> = Mutex::new(());
    HEAVY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a training of so many workers leaves to which nothing happens.
pub(crate) fn unbroken(workers: usize) -> String {
    unbroken_of(workers, USUAL)
}

/// The same of any length.
pub(crate) fn unbroken_of(workers: usize, length: Length) -> String {
    static ALL: Mutex<BTreeMap<(usize, Length), String>> = Mutex::new(BTreeMap::new());
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    let train = || {
        let mut run = Run::new(&format!("unbroken-{workers}-{}", length.rows));
        run.patience += Duration::from_millis((length.epochs * length.rows) as u64);
        let mut launch = run.launch(workers);
        launch
            .program
            .insert(1, format!("{LENGTH}={length}").into());
        let trained = run.train_with(launch, &[], "");
        let out = &trained.outs[0];
        assert!(trained.outs.iter().all(|other| other == out));
        // Batches have 7 examples.
        let steps = length.rows.div_ceil(7);
        let last = format!("epoch {} {steps}", length.epochs - 1);
        assert!(out.contains(&last), "{out}");
        out.clone()
    };
    all.entry((workers, length)).or_insert_with(train).clone()
}

/// Clocks of the machine that are set to another day while all train; times that are waited for are measured by another clock.
#[test]
fn clocks_that_are_set_change_nothing_and_evict_nobody() {
    let libraries = std::fs::read_dir("/usr/lib").unwrap().flatten();
    let libraries = libraries.map(|folder| folder.path().join("faketime/libfaketimeMT.so.1"));
    let Some(library) = libraries.into_iter().find(|library| library.exists()) else {
        phalanx_testkit::skip("no libfaketime; it is in Debian's package faketime");
        return;
    };
    let run = Run::new("clocks");
    let clock = run.folder.join("clock");
    std::fs::write(&clock, "+0").unwrap();
    let mut launch = run.launch(2);
    for (name, value) in [
        ("LD_PRELOAD", library.display().to_string()),
        ("FAKETIME_TIMESTAMP_FILE", clock.display().to_string()),
        ("FAKETIME_NO_CACHE", "1".into()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
    ] {
        launch.program.insert(1, format!("{name}={value}").into());
    }
    let running = run.start(launch);
    run.until("both train", || {
        running.is_finished() || ["0", "1"].iter().all(|rank| begun(&run.folder, rank) == 1)
    });
    for day in ["+1d", "-1d", "+600", "-600"] {
        // Read as a whole at each look at the clock.
        std::fs::write(run.folder.join("next"), day).unwrap();
        std::fs::rename(run.folder.join("next"), &clock).unwrap();
        thread::sleep(Duration::from_millis(500));
    }
    std::fs::write(run.folder.join(GO), "").unwrap();
    run.until("the end", || running.is_finished());
    let (outcome, said) = (running.join().unwrap(), run.lines.text());
    assert_eq!(outcome.exit_code(), 0, "{said}");
    assert!(!said.contains("goes on from step"), "{said}");
    let expected = unbroken(2);
    assert!(run.outs(2).iter().all(|out| *out == expected), "{said}");
}

/// A machine that has more to do than it can; nobody takes slowness for death. PHALANX_TEST_LOAD trains on so many times the examples.
#[test]
fn nobody_is_evicted_from_a_busy_machine() {
    let _alone = alone();
    let times = asked_number("PHALANX_TEST_LOAD").unwrap_or(1);
    let is_over = Arc::new(AtomicBool::new(false));
    let hogs: Vec<_> = (0..4)
        .map(|_| {
            let is_over = Arc::clone(&is_over);
            thread::spawn(move || while !is_over.load(Ordering::Relaxed) {})
        })
        .collect();
    let mut run = Run::new("busy");
    run.patience *= 2 * times as u32;
    let mut launch = run.launch(8);
    launch.program.insert(1, format!("{PAUSE}=1").into());
    let rows = USUAL.rows * times as usize;
    let length = Length { rows, ..USUAL };
    launch
        .program
        .insert(1, format!("{LENGTH}={length}").into());
    let trained = run.train_with(launch, &[], "");
    is_over.store(true, Ordering::Relaxed);
    for hog in hogs {
        hog.join().unwrap();
    }
    let said = trained.lines.text();
    assert!(!said.contains("goes on from step"), "{said}");
    assert!(
        trained
            .outs
            .iter()
            .all(|out| *out == trained.outs[0] && !out.is_empty())
    );
}

/// Steps take a millisecond here, so that many more would be begun than can be taken back if a loss were noticed late.
#[test]
fn a_loss_among_quick_steps_changes_nothing() {
    let train = |name, faults: &[Fault]| {
        let run = Run::new(name);
        let mut launch = run.launch(2);
        for variable in [(PAUSE, "0"), (LENGTH, "1 42001"), (BEGUN_AFTER, "2500")] {
            let (name, value) = variable;
            launch.program.insert(1, format!("{name}={value}").into());
        }
        run.train_with(launch, faults, "")
    };
    let expected = train("quick-unbroken", &[]).outs;
    assert_eq!(expected[0], expected[1]);
    let kill = Fault {
        after: Duration::ZERO,
        ..KILL_SECOND
    };
    let trained = train("quick", &[kill]);
    assert_eq!(trained.recoveries().len(), 1, "{}", trained.lines.text());
    assert_eq!(trained.outs, expected, "{}", trained.lines.text());
}

/// The numbers of what a worker wrote.
fn numbers(out: &str) -> Vec<f64> {
    let words = out.split(|c: char| !(c.is_ascii_digit() || "+-.e".contains(c)));
    let numbers: Vec<f64> = words.filter_map(|word| word.parse().ok()).collect();
    assert!(
        numbers.len() > 100 && numbers.iter().all(|x| x.is_finite()),
        "{out}"
    );
    numbers
}

#[test]
fn fewer_go_on_with_the_same_batches() {
    let run = Run::new("fewer");
    let mut launch = run.launch(3);
    launch.max_restarts = 0;
    launch.least_workers = NonZeroUsize::new(2).unwrap();
    let own_loop = format!("{}=1", own_loop::OWN_LOOP);
    launch.program.insert(1, own_loop.into());
    let trained = run.train_with(launch, &[KILL_SECOND], "of 2 workers goes on");
    assert_eq!(trained.outs[1], "", "{}", trained.lines.text());
    assert_eq!(trained.outs[0], trained.outs[2]);
    let (ours, theirs) = (numbers(&trained.outs[0]), numbers(&unbroken(3)));
    let apart = apart(&ours, &theirs);
    assert!(
        apart > 0.0 && apart <= TOLERANCE,
        "{apart:e} {}",
        trained.lines.text()
    );
}

/// The last one has the results of the epoch from all of its replicas.
#[test]
fn the_last_goes_on_with_all_of_its_devices() {
    let train = |name, faults: &[Fault], least: usize| {
        let run = Run::new(name);
        let mut launch = run.launch(2);
        launch.program.insert(1, format!("{DEVICES}=2").into());
        launch.max_restarts = 0;
        launch.least_workers = NonZeroUsize::new(least).unwrap();
        let awaited = if faults.is_empty() {
            ""
        } else {
            "of 1 workers goes on"
        };
        run.train_with(launch, faults, awaited)
    };
    let whole = train("two-of-two", &[], 2);
    let trained = train("one-of-two", &[KILL_SECOND], 1);
    let lines = trained.lines.text();
    let (ours, theirs) = (numbers(&trained.outs[0]), numbers(&whole.outs[0]));
    let apart = apart(&ours, &theirs);
    assert!(apart > 0.0 && apart <= TOLERANCE, "{apart:e} {lines}");
}

/// The others do not wait for the worker that was started again, and it takes part once it is there. Where it is there at once, they
/// never were fewer.
#[test]
fn more_take_part_when_they_come() {
    let run = Run::new("more");
    let mut launch = run.launch(2);
    launch.least_workers = NonZeroUsize::new(1).unwrap();
    launch.recover_within = Duration::from_millis(10);
    let trained = run.train_with(launch, &[KILL_SECOND], "of 2 workers goes on");
    let lines = trained.lines.text();
    assert!(lines.contains("of 2 workers goes on"), "{lines}");
    assert_eq!(trained.outs[0], trained.outs[1], "{lines}");
    let (ours, theirs) = (numbers(&trained.outs[0]), numbers(&unbroken(2)));
    assert!(apart(&ours, &theirs) <= TOLERANCE, "{lines}");
}
