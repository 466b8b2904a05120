//! The notice that a program is being compiled.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use super::Notice;

/// A program that compiles faster gets no notice.
const NOTICE_DELAY: Duration = Duration::from_secs(1);

/// Compiles, and notifies the user if that takes long.
pub(super) fn notice_if_slow<T>(
    notice: &Notice,
    name: &str,
    is_kept: bool,
    compile: impl FnOnce() -> T,
) -> T {
    let program = match name {
        "train_step" => "the training step",
        "train_steps" => "the training steps that are one program",
        "inner_step" => "the training step that adds to a window of accumulated batches",
        "test_step" => "the evaluation step",
        "predict_step" => "the prediction",
        "replica_step" => "the step of a replica by itself, to find stragglers",
        other => other,
    };
    let kept = if is_kept {
        " (for the first time with this model and batch size; it is kept for later)"
    } else {
        ""
    };
    let line = format!("compiling {program}{kept} ..");
    notice_after(NOTICE_DELAY, notice, line, compile)
}

/// Sends a notice if `work` takes longer than `delay`.
fn notice_after<T>(delay: Duration, notice: &Notice, line: String, work: impl FnOnce() -> T) -> T {
    let (done, waiting) = mpsc::channel::<()>();
    let notice = Arc::clone(notice);
    let teller = thread::spawn(move || {
        if waiting.recv_timeout(delay) == Err(RecvTimeoutError::Timeout) {
            notice(&line);
        }
    });
    let result = work();
    drop(done);
    // A notice that panics costs its line, not the training.
    let _ = teller.join();
    result
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn only_what_takes_long_is_told() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&lines);
        let notice: Notice = Arc::new(move |line| kept.lock().unwrap().push(line.to_owned()));
        let (short, long) = (Duration::from_millis(5), Duration::from_secs(60));
        let quick = notice_after(long, &notice, "quick".into(), || 1);
        let wait_for_line = || {
            while lines.lock().unwrap().is_empty() {
                thread::sleep(Duration::from_millis(1));
            }
            2
        };
        let slow = notice_after(short, &notice, "slow".into(), wait_for_line);
        assert_eq!((quick, slow), (1, 2));
        assert_eq!(*lines.lock().unwrap(), ["slow"]);
    }
}
