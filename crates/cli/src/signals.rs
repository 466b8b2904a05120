//! Signals that end a training, but not in the middle of a step.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::flag;

use crate::failure::Exit;

/// The signals that end a training.
const ENDING: [(i32, Exit); 4] = [
    (SIGINT, Exit::Interrupted),
    (SIGTERM, Exit::Terminated),
    (SIGHUP, Exit::Terminated),
    // Slurm's `--signal=USR1@60`, some time before the end of a job.
    (SIGUSR1, Exit::Terminated),
];

/// How long after the first signal others are the same wish: Slurm signals the processes of a task, and the script that is one of them passes
/// the signal on.
const SAME: Duration = Duration::from_secs(1);
/// How often it is looked for the first.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Which signals have come since `watch`.
#[derive(Debug)]
pub(crate) struct Signals {
    /// Whether any has; a notice of a preemption sets it, too.
    pub(crate) stop: Arc<AtomicBool>,
    /// The last that has, 0 before.
    last: Arc<AtomicUsize>,
    /// Whether nobody asks for `stop` any more.
    over: Arc<AtomicBool>,
}

impl Signals {
    /// While this lives the first Ctrl-C, SIGTERM, SIGUSR1 or SIGHUP (the terminal was closed) is a wish, and one that comes a
    /// second later or more ends the program at once. A SIGHUP that the program was started to ignore, as by `nohup`, stays ignored.
    ///
    /// # Errors
    /// The system refuses a handler.
    pub(crate) fn watch() -> io::Result<Self> {
        let (stop, last, over) = (Arc::default(), Arc::default(), Arc::default());
        let hurried: Arc<AtomicBool> = Arc::default();
        let ignores_hangup = ignores_hangup();
        for (signal, exit) in ENDING {
            if signal == SIGHUP && ignores_hangup {
                continue;
            }
            flag::register_conditional_default(signal, Arc::clone(&over))?;
            flag::register_conditional_shutdown(signal, exit as i32, Arc::clone(&hurried))?;
            flag::register_usize(signal, Arc::clone(&last), signal as usize)?;
            flag::register(signal, Arc::clone(&stop))?;
        }
        let signals = Self { stop, last, over };
        signals.hurry_after_the_first(hurried)?;
        Ok(signals)
    }

    /// Sets a flag some time after the first signal. A notice of a preemption is none: where it came before, the system that goes down
    /// sends the first.
    fn hurry_after_the_first(&self, hurried: Arc<AtomicBool>) -> io::Result<()> {
        let (last, over) = (Arc::clone(&self.last), Arc::clone(&self.over));
        let wait = move || {
            while last.load(Ordering::Relaxed) == 0 {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                thread::sleep(LOOK_EVERY);
            }
            thread::sleep(SAME);
            hurried.store(true, Ordering::Relaxed);
        };
        let thread = thread::Builder::new().name("signals".to_owned());
        thread.spawn(wait).map(drop)
    }

    /// How the program ends by what has come.
    pub(crate) fn exit(&self) -> Exit {
        let last = self.last.load(Ordering::Relaxed);
        let found = ENDING.iter().find(|(signal, _)| *signal as usize == last);
        // Without one it was a notice of a preemption, or another process of this training that was asked to end.
        found.map_or(Exit::Terminated, |(_, exit)| *exit)
    }
}

/// Whether the program was started to ignore SIGHUP, as by `nohup`.
pub(crate) fn ignores_hangup() -> bool {
    ignored() & (1 << (SIGHUP - 1)) != 0
}

/// The signals that the program was started to ignore, a bit for each from 1 on; none where the system does not say.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_notice_of_a_preemption_is_no_first_signal() {
        let signals = Signals {
            stop: Arc::new(AtomicBool::new(true)),
            last: Arc::default(),
            over: Arc::default(),
        };
        let hurried: Arc<AtomicBool> = Arc::default();
        signals.hurry_after_the_first(Arc::clone(&hurried)).unwrap();
        thread::sleep(SAME + 4 * LOOK_EVERY);
        assert!(!hurried.load(Ordering::Relaxed), "a signal would end it");
        let start = Instant::now();
        signals.last.store(SIGTERM as usize, Ordering::Relaxed);
        while !hurried.load(Ordering::Relaxed) {
            assert!(start.elapsed() < Duration::from_secs(60), "none ends it");
            thread::sleep(LOOK_EVERY);
        }
        assert!(start.elapsed() >= SAME);
    }
}
