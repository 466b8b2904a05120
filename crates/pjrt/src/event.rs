//! Events: completion of something the plugin does in the background.

use std::ffi::c_void;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::client::ClientInner;
use crate::error::{PjrtError, StatusCode};
use crate::plugin::Api;
use crate::sys::{self, Args};

/// Completion of a transfer or an execution.
pub struct Event {
    client: Arc<ClientInner>,
    raw: *mut sys::Event,
    /// Whether who waits looks for the end before it sleeps.
    ends_soon: bool,
}

// SAFETY: PJRT events may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// # Safety
    /// `raw` is a live event of the client's plugin that nobody else destroys.
    pub(crate) unsafe fn from_raw(client: Arc<ClientInner>, raw: *mut sys::Event) -> Self {
        Self {
            client,
            raw,
            ends_soon: false,
        }
    }

    /// The same, of work that [`ExecuteOptions::ends_soon`](crate::ExecuteOptions::ends_soon) says so of.
    pub(crate) fn ending_soon(mut self, ends_soon: bool) -> Self {
        self.ends_soon = ends_soon;
        self
    }

    /// Whether the work is done (or has failed).
    ///
    /// # Errors
    /// The plugin's own.
    pub fn is_ready(&self) -> Result<bool, PjrtError> {
        let mut args = sys::EventIsReady {
            event: self.raw,
            ..Args::empty()
        };
        // SAFETY: the event is live.
        unsafe { self.api().call(&mut args)? };
        Ok(args.is_ready)
    }

    /// Waits until the work is done.
    ///
    /// # Errors
    /// The error of the work itself, or `DeadlineExceeded` after `timeout`; the work goes on in that case.
    pub fn wait(&self, timeout: Duration) -> Result<(), PjrtError> {
        Self::wait_all(std::slice::from_ref(self), timeout)
    }

    /// Waits until all of these are done, or one has failed: the others may wait for its work.
    ///
    /// # Errors
    /// The first error of the work itself, or `DeadlineExceeded` after `timeout`; the work goes on in that case.
    pub fn wait_all(events: &[Self], timeout: Duration) -> Result<(), PjrtError> {
        let start = Instant::now();
        for (done, event) in events.iter().enumerate() {
            if !event.is_found_ready(timeout)? {
                let left = timeout.saturating_sub(start.elapsed());
                return Self::wait_asleep(&events[done..], left);
            }
            event.outcome()?;
        }
        Ok(())
    }

    /// Whether the work is done, which is looked for where it ends soon.
    fn is_found_ready(&self, timeout: Duration) -> Result<bool, PjrtError> {
        Ok(self.is_ready()?
            || (self.ends_soon && self.client.look.finds(timeout, || self.is_ready())?))
    }

    fn wait_asleep(events: &[Self], timeout: Duration) -> Result<(), PjrtError> {
        let signal = Arc::new(Signal::of(events.len()));
        for event in events {
            let theirs = Arc::clone(&signal);
            event.on_ready(move |result| theirs.set(result))?;
        }
        signal.wait(timeout)
    }

    /// Calls `callback` with the outcome when the work is done: immediately on this thread if it is done already, otherwise on a thread of the plugin,
    /// where it must return quickly and must not block. A panic in it ends the process.
    ///
    /// # Errors
    /// The plugin refused to register the callback; it is not called then.
    pub fn on_ready(
        &self,
        callback: impl FnOnce(Result<(), PjrtError>) + Send + 'static,
    ) -> Result<(), PjrtError> {
        // SAFETY: the event is live.
        unsafe { on_ready(self.api(), self.raw, callback) }
    }

    /// The error of work that is done.
    fn outcome(&self) -> Result<(), PjrtError> {
        // SAFETY: the event is live.
        unsafe {
            self.api().call(&mut sys::EventError {
                event: self.raw,
                ..Args::empty()
            })
        }
    }

    fn api(&self) -> Api {
        self.client.api
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: we own the event; registered callbacks outlive it.
        unsafe {
            self.api().destroy(sys::EventDestroy {
                event: self.raw,
                ..Args::empty()
            });
        };
    }
}

impl std::fmt::Debug for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Event")
            .field("ready", &self.is_ready())
            .finish()
    }
}

/// Registers a callback on a raw event.
///
/// # Safety
/// `event` is a live event of `api`.
pub(crate) unsafe fn on_ready<F: FnOnce(Result<(), PjrtError>) + Send + 'static>(
    api: Api,
    event: *mut sys::Event,
    callback: F,
) -> Result<(), PjrtError> {
    let boxed = Box::into_raw(Box::new((api, callback)));
    let mut args = sys::EventOnReady {
        event,
        callback: Some(run::<F>),
        user_arg: boxed.cast(),
        ..Args::empty()
    };
    // SAFETY: the event is live; `run` gets the box exactly once.
    let result = unsafe { api.call(&mut args) };
    if result.is_err() {
        // SAFETY: a refused registration never calls back, so the box is still ours.
        drop(unsafe { Box::from_raw(boxed) });
    }
    result
}

/// The C side of [`on_ready`]; unwinding out of it aborts the process.
unsafe extern "C" fn run<F: FnOnce(Result<(), PjrtError>) + Send + 'static>(
    error: *mut sys::Error,
    user: *mut c_void,
) {
    // SAFETY: `user` is the box made in `on_ready`, given to us once.
    let (api, callback) = *unsafe { Box::from_raw(user.cast::<(Api, F)>()) };
    let result = if error.is_null() {
        Ok(())
    } else {
        // SAFETY: a non-null error is ours to destroy.
        Err(unsafe { api.take_error(error, "PJRT_Event_OnReady") })
    };
    callback(result);
}

/// The results of some works, with a deadline on waiting for them.
struct Signal {
    /// How many are not there, or the first error.
    missing: Mutex<Result<usize, PjrtError>>,
    changed: Condvar,
}

impl Signal {
    const fn of(works: usize) -> Self {
        Self {
            missing: Mutex::new(Ok(works)),
            changed: Condvar::new(),
        }
    }

    fn set(&self, result: Result<(), PjrtError>) {
        let mut missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        match (&mut *missing, result) {
            (Ok(works), Ok(())) => *works -= 1,
            (Ok(_), Err(error)) => *missing = Err(error),
            (Err(_), _) => {}
        }
        self.changed.notify_all();
    }

    fn wait(&self, timeout: Duration) -> Result<(), PjrtError> {
        let start = Instant::now();
        let mut missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match &*missing {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) => return Err(error.clone()),
            }
            let Some(left) = timeout
                .checked_sub(start.elapsed())
                .filter(|left| !left.is_zero())
            else {
                let message = format!(
                    "the work was not done after {:.3} s; it goes on in the background",
                    timeout.as_secs_f64()
                );
                return Err(PjrtError::new(
                    "PJRT_Event_Await",
                    StatusCode::DeadlineExceeded,
                    message,
                ));
            };
            missing = self
                .changed
                .wait_timeout(missing, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_error_ends_the_wait_for_all() {
        let error = |message: &str| PjrtError::new("run", StatusCode::Internal, message);
        let soon = Duration::from_millis(1);
        let signal = Signal::of(3);
        signal.set(Ok(()));
        assert!(signal.wait(soon).unwrap_err().is_timeout());
        signal.set(Err(error("first")));
        signal.set(Err(error("second")));
        let told = signal.wait(Duration::from_secs(600)).unwrap_err();
        assert!(told.to_string().contains("first"), "{told}");
        let signal = Signal::of(2);
        signal.set(Ok(()));
        signal.set(Ok(()));
        assert!(signal.wait(soon).is_ok());
    }
}
