//! Signals that end a training, but not in the middle of a step.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::failure::Exit;

/// Which signals have come since `watch`.
#[derive(Debug)]
pub(crate) struct Signals {
    /// Whether any has.
    pub(crate) stop: Arc<AtomicBool>,
    terminated: Arc<AtomicBool>,
    /// Whether nobody asks for `stop` any more.
    over: Arc<AtomicBool>,
}

impl Signals {
    /// While this lives the first Ctrl-C or SIGTERM is a wish, and the second ends the program at once.
    ///
    /// # Errors
    /// The system refuses a handler.
    pub(crate) fn watch() -> io::Result<Self> {
        let (stop, terminated, over) = (Arc::default(), Arc::default(), Arc::default());
        for (signal, exit) in [(SIGINT, Exit::Interrupted), (SIGTERM, Exit::Terminated)] {
            flag::register_conditional_default(signal, Arc::clone(&over))?;
            // Before the one that sets the flag: a handler that came after it would end the program at the first signal.
            flag::register_conditional_shutdown(signal, exit as i32, Arc::clone(&stop))?;
            flag::register(signal, Arc::clone(&stop))?;
        }
        flag::register(SIGTERM, Arc::clone(&terminated))?;
        Ok(Self {
            stop,
            terminated,
            over,
        })
    }

    /// How the program ends by what has come.
    pub(crate) fn exit(&self) -> Exit {
        match self.terminated.load(Ordering::Relaxed) {
            true => Exit::Terminated,
            false => Exit::Interrupted,
        }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}
