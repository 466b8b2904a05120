//! A worker that comes again when the others are not in `fit`.

use std::num::NonZeroUsize;
use std::path::Path;
use std::thread;
use std::time::Duration;

use phalanx::prelude::*;
use phalanx_testkit::asked_number;

use super::run::{Run, begun};
use super::trial::{Fault, KILL_SECOND};
use super::{GO, LENGTH, SHORT, cases, numbers};

/// Set where a worker does more after `fit`: it says so, waits for [`LEAVE`], and evaluates.
const DOES_MORE: &str = "PHALANX_TEST_DOES_MORE";
/// Files in the folder of a training: that those that start wait for [`COME`], and that the others are done.
const LATER: &str = "later";
const COME: &str = "come";
const LEAVE: &str = "leave";

pub(super) fn await_file(folder: &Path, name: &str) {
    while !folder.join(name).exists() {
        thread::sleep(Duration::from_millis(20));
    }
}

pub(super) fn before_meeting(folder: &Path) {
    if folder.join(LATER).exists() {
        await_file(folder, COME);
    }
}

pub(super) fn after_training(folder: &Path, trainer: &mut Trainer) -> phalanx::Result<()> {
    if asked_number(DOES_MORE).is_none() {
        return Ok(());
    }
    std::fs::write(folder.join("trained"), "").unwrap();
    await_file(folder, LEAVE);
    let case = cases::everything();
    trainer.evaluate(&case.data.batch(case.batch)).map(drop)
}

/// Set where workers train on a batch by hand before `fit`.
const BY_HAND: &str = "PHALANX_TEST_BY_HAND";
const REFUSED: &str = "takes part in it from `fit` on";

/// Trains on a batch by hand; who comes when the others are past it goes on without.
pub(super) fn batch_by_hand(trainer: &mut Trainer) -> phalanx::Result<()> {
    if asked_number(BY_HAND).is_none() {
        return Ok(());
    }
    let batch = cases::rows(4).batch(4).get(0, 0)?;
    match trainer.train_on_batch(&batch) {
        Err(error) if error.to_string().contains(REFUSED) => eprintln!("{error}"),
        trained => drop(trained?),
    }
    Ok(())
}

/// Its step would exchange gradients with whatever the others exchange then.
#[test]
fn one_that_comes_late_makes_no_step_by_hand() {
    let train = |name, faults: &[Fault]| {
        let run = Run::new(name);
        let mut launch = run.launch(2);
        for variable in [format!("{BY_HAND}=1"), format!("{LENGTH}={SHORT}")] {
            launch.program.insert(1, variable.into());
        }
        run.train_with(launch, faults, "")
    };
    let unbroken = train("by-hand", &[]);
    assert!(!unbroken.lines.text().contains(REFUSED));
    let trained = train("by-hand-late", &[KILL_SECOND]);
    let lines = trained.lines.text();
    assert!(lines.contains(REFUSED), "{lines}");
    assert_eq!(trained.outs, unbroken.outs, "{lines}");
}

/// The worker that is left has trained, and evaluates: that another one comes does not end it.
#[test]
fn one_that_comes_after_the_training_does_not_end_the_others() {
    let run = Run::new("late");
    let mut launch = run.launch(2);
    launch.program.insert(1, format!("{DOES_MORE}=1").into());
    launch.least_workers = NonZeroUsize::new(1).unwrap();
    launch.recover_within = Duration::from_millis(10);
    launch.max_restarts = 1;
    let running = run.start(launch);
    run.until("both train", || begun(&run.folder, "") == 2);
    std::fs::write(run.folder.join(LATER), "").unwrap();
    assert!(run.signal(1, "-KILL"));
    std::fs::write(run.folder.join(GO), "").unwrap();
    run.until("one has trained", || {
        running.is_finished() || run.folder.join("trained").exists()
    });
    std::fs::write(run.folder.join(COME), "").unwrap();
    // It says so after longer than the lease, after which a worker that comes was let in.
    run.until("it waits", || {
        running.is_finished() || run.lines().contains("for the others to let it in")
    });
    std::fs::write(run.folder.join(LEAVE), "").unwrap();
    run.until("the end", || running.is_finished());
    let (outcome, lines) = (running.join().unwrap(), run.lines());
    assert!(lines.contains("others had done their work"), "{lines}");
    assert!(!numbers(&run.outs(1)[0]).is_empty(), "{lines}");
    assert_eq!(outcome.exit_code(), 0, "{outcome:?} {lines}");
}
