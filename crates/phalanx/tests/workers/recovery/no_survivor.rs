//! Workers that come in another's place and take long to get to `fit`, also when the only one that has the state is lost meanwhile.

use std::path::Path;
use std::thread;
use std::time::Duration;

use phalanx_testkit::asked_number;

use super::run::{Run, begun};
use super::{GO, TIMEOUT, unbroken};

/// How long a worker takes between meeting the others and its training, in milliseconds.
const LATE: &str = "PHALANX_TEST_LATE";

/// A file in the folder of a training with such a time, for workers that come after it was written.
const LATE_COMER: &str = "late";

/// Says that it has met the others, and waits, where that is asked for.
pub(super) fn perhaps_late(folder: &Path) {
    let of_comers = std::fs::read_to_string(folder.join(LATE_COMER)).ok();
    let of_comers = of_comers.map(|text| text.parse().unwrap());
    if let Some(milliseconds) = asked_number(LATE).or(of_comers) {
        std::fs::write(folder.join(format!("{}.met", std::process::id())), "").unwrap();
        thread::sleep(Duration::from_millis(milliseconds));
    }
}

/// Worker 0 comes again, has left out what all do before `fit`, and finds nobody to take the state from: both begin anew, in one place.
#[test]
fn workers_begin_anew_when_the_last_one_with_the_state_is_lost() {
    let expected = unbroken(2);
    let run = Run::new("no-survivor");
    let mut launch = run.launch(2);
    launch.program.insert(1, format!("{LATE}=10000").into());
    let running = run.start(launch);
    run.until("both train", || begun(&run.folder, "") == 2);
    assert!(run.signal(0, "-KILL"));
    let have_met = || {
        let files = std::fs::read_dir(&run.folder).unwrap().flatten();
        let names = files.map(|file| file.file_name().into_string().unwrap());
        names.filter(|name| name.ends_with(".met")).count()
    };
    run.until("worker 0 has come again", || have_met() == 3);
    assert!(run.signal(1, "-KILL"));
    std::fs::write(run.folder.join(GO), "").unwrap();
    run.until("the end", || running.is_finished());
    let (outcome, lines) = (running.join().unwrap(), run.lines());
    assert_eq!(outcome.exit_code(), 0, "{outcome:?} {lines}");
    assert!(lines.contains("worker 0: worker 1 is gone"), "{lines}");
    assert_eq!(run.outs(2), [expected.clone(), expected], "{lines}");
}

/// What a replacement does before `fit` takes longer than an exchange may: the others wait for it, and start it no second time. An
/// exchange may take far longer than to compile the model, which each does in `fit`.
#[test]
fn a_replacement_may_take_longer_to_fit_than_an_exchange() {
    let expected = unbroken(2);
    let run = Run::new("late-comer");
    let mut launch = run.launch(2);
    launch.program.insert(1, format!("{TIMEOUT}=25").into());
    let running = run.start(launch);
    run.until("both train", || begun(&run.folder, "") == 2);
    std::fs::write(run.folder.join(LATE_COMER), "35000").unwrap();
    assert!(run.signal(1, "-KILL"));
    std::fs::write(run.folder.join(GO), "").unwrap();
    run.until("the end", || running.is_finished());
    let (outcome, lines) = (running.join().unwrap(), run.lines());
    assert_eq!(outcome.exit_code(), 0, "{outcome:?} {lines}");
    assert_eq!(begun(&run.folder, "1"), 2, "started again: {lines}");
    assert!(
        lines.contains("generation 2 of 2 workers goes on"),
        "{lines}"
    );
    assert_eq!(run.outs(2), [expected.clone(), expected], "{lines}");
}
