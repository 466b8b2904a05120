//! What servers know a worker to be alive by.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::{CONNECT_WITHIN, ClientOptions, Hold, Line, News, hasty};
use crate::PsError;
use crate::message::{Reply, Request};
use crate::server::locked;

/// How often a worker says that it is alive.
const BEAT_EVERY: Duration = Duration::from_secs(1);

/// Says to a server that this worker is alive, whatever else it asks.
pub(super) struct Heartbeat {
    stop: Arc<(Mutex<bool>, Condvar)>,
    hold: Hold,
    thread: JoinHandle<()>,
}

impl Heartbeat {
    /// Begins to say it. `lines` are the connections that wait for the server's answers: where it is silent for as long as it may be away,
    /// they are ended, since a machine that has vanished ends none.
    pub(super) fn start(
        server: usize,
        options: &ClientOptions,
        (news, lines): (&Arc<News>, Vec<Hold>),
    ) -> Result<Self, PsError> {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let (theirs, options) = (Arc::clone(&stop), hasty(options, CONNECT_WITHIN));
        let news = Arc::clone(news);
        let is_over = AtomicBool::new(false);
        let mut line = Line::to(server, &news);
        let hold = line.hold.clone();
        let body = move || {
            let mut heard = Instant::now();
            while !is_over.load(Ordering::Relaxed) {
                // Whether the server is there is found by who asks it.
                let beat = line.try_ask(&options, &Request::Heartbeat, &[], Duration::ZERO);
                if let Ok((Reply::Failed { who, why }, _)) = &beat {
                    locked(&news.failure).get_or_insert((who.clone(), why.clone()));
                }
                if matches!(beat, Ok((Reply::Ending, _))) && news.ask_to_stop() {
                    (options.tell.0)(&format!(
                        "parameter server {server} is asked to end, or the end of its machine is announced: the training ends after the work that is begun, with a checkpoint"
                    ));
                }
                if beat.is_ok() {
                    heard = Instant::now();
                } else if heard.elapsed() > options.server_within {
                    lines.iter().for_each(Hold::shut_down);
                    heard = Instant::now();
                }
                let stopped = locked(&theirs.0);
                let waited = theirs
                    .1
                    .wait_timeout_while(stopped, BEAT_EVERY, |stop| !*stop);
                is_over.store(
                    *waited.unwrap_or_else(PoisonError::into_inner).0,
                    Ordering::Relaxed,
                );
            }
        };
        let thread = thread::Builder::new().name("parameter-heartbeat".into());
        let thread = thread
            .spawn(body)
            .map_err(|error| PsError::Lost(format!("cannot start a thread: {error}")))?;
        Ok(Self { stop, hold, thread })
    }

    /// It says no more from now on.
    pub(super) fn stop(&self) {
        let (stop, wake) = &*self.stop;
        *locked(stop) = true;
        wake.notify_all();
        self.hold.shut_down();
    }

    /// Waits until its thread has ended.
    pub(super) fn join(self) {
        let _ = self.thread.join();
    }
}
