//! The only worker that has the state is lost before it has given it to the one that came in another's place.

use std::path::Path;
use std::thread;
use std::time::Duration;

use phalanx_testkit::asked_number;

use super::run::{Run, begun};
use super::{GO, unbroken};

/// How long a worker takes between meeting the others and its training, in milliseconds.
const LATE: &str = "PHALANX_TEST_LATE";

/// Says that it has met the others, and waits, where that is asked for.
pub(super) fn perhaps_late(folder: &Path) {
    if let Some(milliseconds) = asked_number(LATE) {
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
    launch.program.insert(1, format!("{LATE}=2000").into());
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
