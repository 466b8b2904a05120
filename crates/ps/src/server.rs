//! A server: connections, threads and clocks around [`Control`] and [`Shards`].

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use std::{fmt, fs};

use phalanx_proof::Secret;

use crate::PsError;
use crate::connection::Connection;
use crate::durable::{ControlState, ShardState};
use crate::log::{Broken, Durability, Log, claim};
use crate::message::Reply;
use crate::pushes::Values;

/// How a server is run.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// What tells the job from others.
    pub job: String,
    /// The version of the program.
    pub version: String,
    /// The number of this server; the first one has the control.
    pub server: usize,
    /// Where what was acknowledged is kept until the job ends. The state of another job is refused.
    pub folder: Option<PathBuf>,
    /// What survives what.
    pub durability: Durability,
    /// How long a worker may be silent, three seconds at least: it says each second that it is alive.
    pub lease: Duration,
    /// A connection that is silent for longer is closed; a worker opens another.
    pub idle_within: Duration,
    /// How long a batch may be with a worker before another gets it.
    pub work_within: Duration,
    /// How long the server waits for workers when there are none.
    pub alone_within: Duration,
    /// The bytes of the log after which a snapshot is written; it grows to the size of its last snapshot at least.
    pub snapshot_bytes: u64,
    /// The same of the log of the control; it grows to twice its last snapshot at least.
    pub control_snapshot_bytes: u64,
    /// What workers must prove to know.
    pub secret: Option<Secret>,
    /// Set when this server is about to end, as its machine or by a signal: workers hear of it by their next heartbeat, and stop. Without
    /// workers it ends by itself then.
    pub ending: Option<Arc<AtomicBool>>,
    /// Where it is said who was refused.
    pub tell: Tell,
}

/// A function for lines that a person reads.
#[derive(Clone)]
pub struct Tell(pub Arc<dyn Fn(&str) + Send + Sync>);

impl fmt::Debug for Tell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tell")
    }
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            job: String::new(),
            version: String::new(),
            server: 0,
            folder: None,
            durability: Durability::Process,
            lease: Duration::from_secs(10),
            idle_within: Duration::from_secs(120),
            work_within: Duration::from_secs(600),
            alone_within: Duration::from_secs(300),
            snapshot_bytes: 256 << 20,
            control_snapshot_bytes: 16 << 20,
            secret: None,
            ending: None,
            tell: Tell(Arc::new(|line| eprintln!("{line}"))),
        }
    }
}

impl ServerOptions {
    /// The answer to a worker that says that it is alive.
    pub(crate) fn of_heartbeat(&self) -> Reply {
        match self.is_ending() {
            true => Reply::Ending,
            false => Reply::Done,
        }
    }

    fn is_ending(&self) -> bool {
        let ending = self.ending.as_ref();
        ending.is_some_and(|ending| ending.load(Ordering::Relaxed))
    }

    /// The folder of what was acknowledged, if it is kept.
    fn kept_in(&self) -> Option<&Path> {
        let folder = self.folder.as_deref();
        folder.filter(|_| self.durability != Durability::None)
    }
}

/// How often the server looks at its clock and at who connects.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// The shortest lease.
const LEAST_LEASE: Duration = Duration::from_secs(3);
/// Connections at a time; more are closed as they come.
const MOST_CONNECTIONS: usize = 16_384;
/// How long workers may take to hear that the job has failed, or to connect again before it is over.
const HEARD_WITHIN: Duration = Duration::from_secs(2);
/// How long a worker that has not come yet may take when the others have done all work: it is about to connect, and hears of it.
const LATE_WITHIN: Duration = Duration::from_secs(10);

/// A server of a job, until the job ends.
pub struct Server {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) options: ServerOptions,
    pub(crate) start: Instant,
    pub(crate) control: Mutex<ControlState>,
    pub(crate) changed: Condvar,
    pub(crate) shards: Mutex<ShardState>,
    pub(crate) connections: Mutex<Connections>,
    /// Threads that answer a connection.
    answering: AtomicUsize,
    pub(crate) ends: AtomicBool,
    /// Of each log.
    broken: Vec<Broken>,
    /// When it was seen that the job has failed.
    failed: OnceLock<Instant>,
    /// For how many times ten seconds it was said that there are no workers.
    said: AtomicU64,
}

/// Who is connected, and who has left in good order.
#[derive(Default)]
pub(crate) struct Connections {
    pub(crate) open: BTreeMap<usize, usize>,
    pub(crate) has_left: BTreeMap<usize, bool>,
    pub(crate) last: Option<Instant>,
}

impl Server {
    /// A server whose updates are computed by `values`. What a server of the same job before it has kept in the folder is taken up.
    ///
    /// # Errors
    /// The folder cannot be read or written, or holds the state of another job; the lease is too short.
    pub fn new(options: ServerOptions, values: Box<dyn Values>) -> Result<Self, PsError> {
        if options.lease < LEAST_LEASE {
            return Err(PsError::User(format!(
                "a lease of {:?} is shorter than what a worker on a busy machine may be silent; give it {LEAST_LEASE:?} or more",
                options.lease
            )));
        }
        let mut control = ControlState::default();
        let mut shards = ShardState::new(values);
        if let Some(folder) = options.kept_in() {
            claim(folder, &options.job, options.durability)?;
            control.recover(folder, options.durability)?;
            shards.recover(folder, options.durability)?;
        }
        let logs = control.log.iter().chain(&shards.log);
        let shared = Shared {
            broken: logs.map(Log::broken).collect(),
            options,
            start: Instant::now(),
            control: Mutex::new(control),
            changed: Condvar::new(),
            shards: Mutex::new(shards),
            connections: Mutex::default(),
            answering: AtomicUsize::new(0),
            ends: AtomicBool::new(false),
            failed: OnceLock::new(),
            said: AtomicU64::new(0),
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// Serves until the job ends. Nothing is kept of a job that will not go on.
    ///
    /// # Errors
    /// The job failed, or nobody came; the listener fails.
    pub fn run(&self, listener: &TcpListener) -> Result<(), PsError> {
        let ended = self.serve(listener);
        self.shared.ends.store(true, Ordering::Relaxed);
        self.shared.changed.notify_all();
        if ended.is_ok() || self.shared.was_failed() {
            self.shared.forget();
        }
        ended
    }

    fn serve(&self, listener: &TcpListener) -> Result<(), PsError> {
        let broken = |error: std::io::Error| PsError::Lost(format!("cannot listen: {error}"));
        listener.set_nonblocking(true).map_err(broken)?;
        loop {
            match listener.accept() {
                Ok((stream, _)) => self.answer(stream),
                Err(error) if is_passing(&error) => {}
                // Nobody waits, or there are no descriptors for whoever does: that of a stranger is free soon.
                Err(_) => {
                    if let Some(ended) = self.shared.look() {
                        return ended;
                    }
                    thread::sleep(LOOK_EVERY);
                }
            }
        }
    }

    /// Answers a connection on a thread of its own. Where there are too many, or there is no thread for it, it is closed: workers come
    /// again.
    fn answer(&self, stream: TcpStream) {
        let answering = &self.shared.answering;
        if answering.fetch_add(1, Ordering::Relaxed) >= MOST_CONNECTIONS {
            answering.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let shared = Arc::clone(&self.shared);
        let body = move || {
            Connection::new(&shared, stream).run();
            shared.answering.fetch_sub(1, Ordering::Relaxed);
        };
        let thread = thread::Builder::new().name("parameter-server".into());
        if thread.spawn(body).is_err() {
            answering.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Whether an error is of one connection that came and went.
fn is_passing(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Interrupted | ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset
    )
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(crate) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Whether the job has failed in a way in which it would again: by what a worker has said, or since the program that scheduled
    /// functions is lost, which begins anew and schedules them all.
    fn was_failed(&self) -> bool {
        let state = locked(&self.control);
        let control = state.control.as_ref();
        control.is_some_and(|control| {
            control.was_failed() || control.failure().is_some() && control.tasks().was_opened()
        })
    }

    /// Removes what was kept, so that the next job does not find it.
    fn forget(&self) {
        let Some(folder) = self.options.kept_in() else {
            return;
        };
        if let Err(error) = fs::remove_dir_all(folder) {
            let (server, shown) = (self.options.server, folder.display());
            (self.options.tell.0)(&format!(
                "warning: parameter server {server} cannot remove its state in {shown}: {error}; remove it before the next job"
            ));
        }
    }

    /// Says every ten seconds that workers are waited for while there are none.
    fn say_alone(&self, is_alone: bool, since: Duration) {
        let tens = if is_alone { since.as_secs() / 10 } else { 0 };
        if self.said.swap(tens, Ordering::Relaxed) < tens {
            (self.options.tell.0)(&format!(
                "parameter server {} waits for workers ({} s)",
                self.options.server,
                since.as_secs()
            ));
        }
    }

    /// Why the server must end and come back, if it must.
    pub(crate) fn broken(&self) -> Option<&String> {
        self.broken.iter().find_map(|broken| broken.get())
    }

    /// Whether the job has ended.
    fn look(&self) -> Option<Result<(), PsError>> {
        if let Some(why) = self.broken() {
            return Some(Err(PsError::Lost(why.clone())));
        }
        let mut state = locked(&self.control);
        let (mut failure, mut is_over, mut all_came) = (None, false, false);
        let mut chief_has_left = false;
        if let Some(control) = &mut state.control {
            if self.options.server == 0 {
                control.tick(self.now(), self.options.lease, self.options.work_within);
            }
            failure = control.failure().cloned();
            is_over = control.is_over();
            chief_has_left = control.chief_has_left();
            all_came = control.all_have_come();
            self.changed.notify_all();
        }
        drop(state);
        let connections = locked(&self.connections);
        let nobody = connections.open.values().all(|open| *open == 0);
        let since = connections.last.unwrap_or(self.start).elapsed();
        let all_left = connections
            .open
            .keys()
            .all(|worker| connections.has_left.get(worker).copied().unwrap_or(false));
        let any_left = connections.has_left.values().any(|left| *left);
        if let Some((who, why)) = failure {
            let failed_for = self.failed.get_or_init(Instant::now).elapsed();
            let have_heard = nobody || failed_for > HEARD_WITHIN;
            return have_heard.then_some(Err(PsError::Failed { who, why }));
        }
        let is_over = match self.options.server {
            0 => is_over && nobody,
            _ => any_left && chief_has_left && nobody && (all_left || since > HEARD_WITHIN),
        };
        if is_over && (all_came || since > LATE_WITHIN) {
            return Some(Ok(()));
        }
        if nobody && since > HEARD_WITHIN && self.options.is_ending() {
            return Some(Err(PsError::Stopped));
        }
        self.say_alone(nobody, since);
        (nobody && since > self.options.alone_within).then(|| {
            Err(PsError::Lost(format!(
                "no worker was there for {} seconds; start the job again",
                since.as_secs()
            )))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{PushKey, Request};
    use crate::pushes::tests::Bytes;
    use crate::{Control, ControlSettings, Mode};

    /// However long nobody has come or gone before, and however often somebody does later.
    #[test]
    fn how_long_workers_may_take_to_hear_of_a_failure_counts_from_the_failure() {
        let long = HEARD_WITHIN * 2;
        let ended = |since_last: Duration, since_failure: Option<Duration>| {
            let server = Server::new(ServerOptions::default(), Box::new(Bytes)).unwrap();
            let shared = &server.shared;
            let mut control = Control::new(ControlSettings {
                workers: 1,
                mode: Mode::Async,
                goes_on_without_chief: false,
            });
            control.fail("worker 0".into(), "its data".into());
            locked(&shared.control).control = Some(control);
            let mut connections = locked(&shared.connections);
            connections.open.insert(0, 1);
            connections.last = Instant::now().checked_sub(since_last);
            drop(connections);
            if let Some(since) = since_failure {
                let at = Instant::now().checked_sub(since).unwrap();
                shared.failed.set(at).unwrap();
            }
            shared.look()
        };
        let waits = ended(long, None);
        assert!(waits.is_none(), "{waits:?}");
        let over = ended(Duration::ZERO, Some(long));
        assert!(
            matches!(over, Some(Err(PsError::Failed { .. }))),
            "{over:?}"
        );
    }

    /// The gradient is applied before it is kept: asked again, the server must not say that it has it.
    #[test]
    fn a_server_whose_push_is_not_kept_ends_without_its_state_being_removed() {
        let folder = crate::log::tests::folder("push");
        let options = ServerOptions {
            folder: Some(folder.clone()),
            ..ServerOptions::default()
        };
        let server = Server::new(options.clone(), Box::new(Bytes)).unwrap();
        let push = Request::Push {
            key: PushKey {
                work: 0,
                worker: 0,
                incarnation: 1,
                done_below: 0,
            },
            what: String::new(),
            factors: None,
        };
        let mut shards = locked(&server.shared.shards);
        if let Some(log) = &mut shards.log {
            log.fail();
        }
        for _ in 0..2 {
            let answer = shards.handle(0, &push, &[], &options);
            assert!(answer.is_err(), "{answer:?}");
        }
        drop(shards);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ended = server.run(&listener);
        assert!(matches!(ended, Err(PsError::Lost(_))), "{ended:?}");
        assert!(folder.join("shards").exists());
        let again = Server::new(options, Box::new(Bytes)).unwrap();
        assert_eq!(locked(&again.shared.shards).shards.version(), 0);
        fs::remove_dir_all(&folder).unwrap();
    }
}
