//! A worker that is lost before another has come to a training of the program.

use std::path::Path;

use phalanx::prelude::*;
use phalanx_testkit::asked_number;

use super::late::await_file;
use super::run::Run;
use super::{GO, LENGTH, SHORT, cases};

/// Set where workers train twice: the number of the training that the first one waits before for [`COME`].
const WAITS_BEFORE: &str = "PHALANX_TEST_WAITS_BEFORE";
/// Files in the folder of a training: that the first worker waits, and that it is to go on.
const WAITS: &str = "waits";
const COME: &str = "come";

/// What a worker does before a training.
pub(super) fn before_fit(folder: &Path, rank: &str, number: u64) {
    if rank == "0" && asked_number(WAITS_BEFORE) == Some(number) {
        std::fs::write(folder.join(WAITS), "").unwrap();
        await_file(folder, COME);
    }
}

/// The second training, where there is one.
pub(super) fn train_again(
    folder: &Path,
    rank: &str,
    trainer: &mut Trainer,
) -> phalanx::Result<Option<History>> {
    if asked_number(WAITS_BEFORE).is_none() {
        return Ok(None);
    }
    before_fit(folder, rank, 2);
    let case = cases::everything();
    let fit = Fit::epochs(2).progress(Progress::Silent);
    trainer.fit(&case.data.batch(case.batch), fit).map(Some)
}

/// What two workers leave, of which the second is killed while the first waits before this training.
fn outs(number: u64, is_killed: bool) -> Vec<String> {
    let run = Run::new(&format!("two-fits-{number}-{is_killed}"));
    let mut launch = run.launch(2);
    for variable in [
        format!("{WAITS_BEFORE}={number}"),
        format!("{LENGTH}={SHORT}"),
    ] {
        launch.program.insert(1, variable.into());
    }
    std::fs::write(run.folder.join(GO), "").unwrap();
    let running = run.start(launch);
    run.until("the first worker waits", || {
        running.is_finished() || run.folder.join(WAITS).exists()
    });
    if is_killed {
        assert!(run.signal(1, "-KILL"));
        run.until("the loss", || {
            running.is_finished() || run.lines().contains("is started again")
        });
    }
    std::fs::write(run.folder.join(COME), "").unwrap();
    run.until("the end", || running.is_finished());
    let (outcome, lines) = (running.join().unwrap(), run.lines());
    assert_eq!(outcome.exit_code(), 0, "{outcome:?} {lines}");
    assert_eq!(lines.contains("meet again"), is_killed, "{lines}");
    run.outs(2)
}

#[test]
fn a_loss_before_a_training_takes_nothing_from_it() {
    let unbroken = outs(2, false);
    assert!(unbroken[0].contains("epoch 1 4"), "{}", unbroken[0]);
    for number in [1, 2] {
        assert_eq!(outs(number, true), unbroken, "training {number}");
    }
}
