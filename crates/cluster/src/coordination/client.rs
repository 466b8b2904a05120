//! A worker's handle to the coordination service.

mod questions;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::event::Settings;
use super::link::{Incoming, Link, Next, Outgoing};
use super::message::{Reply, Request, millis};
use super::rendezvous;
use super::request::{JoinRequest, Roster, Timing};
use super::service::{Hosted, Service, spawn};
use super::{ClusterError, Failure, Missing};
use crate::{Address, Membership};

/// A worker's handle to the coordination service; clones share its connection. Once the last is dropped the connection ends, which
/// is a failure for the others unless [`leave`](Self::leave) came before.
#[derive(Clone)]
pub struct Coordinator(Arc<Handle>);

struct Handle {
    shared: Arc<Shared>,
    /// In worker 0, where it coordinates.
    hosted: Option<Hosted>,
    /// Ends when the connection has been read to its end.
    reading: Mutex<Receiver<()>>,
}

/// What the handle and its threads share.
struct Shared {
    outgoing: Outgoing,
    worker: usize,
    workers: usize,
    place: Place,
    generation: u64,
    timing: Timing,
    addresses: Option<Vec<Address>>,
    has_comers: bool,
    state: Mutex<Pending>,
}

/// Who coordinates: whose end the end of the service is.
#[derive(Clone, Copy)]
enum Place {
    FirstWorker,
    Launcher,
    /// All do, and this process' own part has ended.
    Etcd,
}

impl Place {
    const fn of(membership: &Membership) -> Self {
        match (
            membership.launcher.is_some(),
            membership.rendezvous.etcd.is_some(),
        ) {
            (true, _) => Self::Launcher,
            (false, true) => Self::Etcd,
            (false, false) => Self::FirstWorker,
        }
    }
}

type Answer = (Reply, Vec<u8>);
type Callback = Box<dyn FnOnce(&Failure) + Send>;

#[derive(Default)]
struct Pending {
    next: u64,
    waiting: BTreeMap<u64, Sender<Answer>>,
    failure: Option<Failure>,
    callbacks: Vec<Callback>,
    /// Whether the connection was ended on purpose.
    left: bool,
}

/// How long an answer may be on its way beyond the time for which the service lets a question wait.
pub(super) const ON_THE_WAY: Duration = Duration::from_secs(1);

impl Coordinator {
    /// Meets all other workers at the rendezvous of `membership`: worker 0 starts the service there, the others connect to it, in any
    /// order. Returns when all are there, with the addresses at which they listen for data.
    ///
    /// # Errors
    /// Not all came within the deadline (who, where, and why as far as is known), a worker is of another version or counts other
    /// workers, or worker 0 cannot listen.
    pub fn join(
        membership: &Membership,
        request: JoinRequest,
    ) -> Result<(Self, Roster), ClusterError> {
        rendezvous::join(membership, request)
    }

    /// Meets the others again in the generation after the one that has failed; `request` says how far this worker's training is.
    ///
    /// # Errors
    /// As for [`join`](Self::join); also when the others went on without this worker, whose place another process has.
    pub fn rejoin(
        &self,
        membership: &Membership,
        mut request: JoinRequest,
    ) -> Result<(Self, Roster), ClusterError> {
        request.generation = self.generation();
        let joined = rendezvous::rejoin(self.0.hosted.clone(), membership, request);
        // Its connection is of the generation before, and nobody is to wait for more of it.
        self.0.shared.lock().left = true;
        self.0.shared.outgoing.close();
        joined
    }

    /// Handles of `workers` workers in this process, which have all joined: to test what is built on it.
    ///
    /// # Panics
    /// The system refuses threads.
    #[must_use]
    pub fn in_memory(workers: usize) -> Vec<Self> {
        Self::in_memory_with(workers, Timing::default())
    }

    /// As [`in_memory`](Self::in_memory), with other times.
    ///
    /// # Panics
    /// The system refuses threads.
    #[must_use]
    pub fn in_memory_with(workers: usize, timing: Timing) -> Vec<Self> {
        let settings = Settings {
            workers,
            job: String::new(),
            version: String::new(),
            generation: 1,
            lease: timing.lease,
            join_within: None,
            recovery: None,
        };
        let service = Service::start(settings, None, Box::new(|_| ())).expect("a thread");
        let members = (0..workers)
            .map(|worker| Membership::new(workers, worker, Address::new("127.0.0.1", 1)));
        let data = SocketAddr::from(([127, 0, 0, 1], 1));
        let request = JoinRequest::new("", data).timing(timing);
        let introduce = |membership: Membership| {
            let link = rendezvous::introduce(service.connect(), &membership, &request, 0);
            (link, membership)
        };
        let links: Vec<_> = members.map(introduce).collect();
        let roster = Roster {
            generation: 1,
            addresses: vec![data; workers],
            workers: (0..workers).collect(),
            progress: vec![None; workers],
        };
        let start = |(link, membership): (Link, _)| {
            Self::start(link, &membership, &roster, timing, None).expect("threads")
        };
        links.into_iter().map(start).collect()
    }

    /// The handle of a worker that was welcomed, with its threads.
    pub(super) fn start(
        link: Link,
        membership: &Membership,
        roster: &Roster,
        timing: Timing,
        hosted: Option<Hosted>,
    ) -> Result<Self, ClusterError> {
        let shared = Arc::new(Shared {
            outgoing: link.outgoing,
            worker: membership.worker,
            workers: roster.addresses.len(),
            place: Place::of(membership),
            generation: roster.generation,
            timing,
            addresses: membership.addresses.clone(),
            has_comers: !roster.comers().is_empty(),
            state: Mutex::default(),
        });
        let reading = Arc::clone(&shared);
        let (at_end, ended) = channel::<()>();
        spawn("phalanx-coordination", move || {
            reading.read(link.incoming);
            drop(at_end);
        })?;
        let beating = Arc::downgrade(&shared);
        spawn("phalanx-heartbeat", move || {
            // The reader ends with the connection, and with it the last of what is shared.
            while let Some(shared) = beating.upgrade() {
                if shared
                    .outgoing
                    .send(Request::Heartbeat, Vec::new())
                    .is_err()
                {
                    break;
                }
                drop(shared);
                std::thread::sleep(timing.heartbeat);
            }
        })?;
        Ok(Self(Arc::new(Handle {
            shared,
            hosted,
            reading: Mutex::new(ended),
        })))
    }

    /// The number of this worker.
    #[must_use]
    pub fn worker(&self) -> usize {
        self.0.shared.worker
    }

    /// The number of workers.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.0.shared.workers
    }

    /// The number of this set of members, which grows when workers are replaced.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.0.shared.generation
    }

    /// Whether members of this generation have come new to what the others have begun. Where it ends, those are waited for as long as all
    /// were at first.
    #[must_use]
    pub fn has_comers(&self) -> bool {
        self.0.shared.has_comers
    }

    /// Waits until all workers have come to the barrier of this name, which may be used again afterwards.
    ///
    /// # Errors
    /// A worker failed, has left, or has not come within `deadline`: the error names it.
    pub fn barrier(&self, name: &str, deadline: Duration) -> Result<(), ClusterError> {
        self.exchange(name, Vec::new(), deadline).map(drop)
    }

    /// Gives bytes to all workers and waits for theirs: the bytes of each, by number. The name may be used again afterwards.
    ///
    /// # Errors
    /// A worker failed, has left, or has not come within `deadline`: the error names it. The bytes are too many.
    pub fn exchange(
        &self,
        name: &str,
        bytes: Vec<u8>,
        deadline: Duration,
    ) -> Result<Vec<Vec<u8>>, ClusterError> {
        let shared = &self.0.shared;
        shared.check_length(name, bytes.len(), self.workers())?;
        let request = |id| Request::Meet {
            id,
            name: name.into(),
            within_ms: millis(deadline),
        };
        match shared.ask(name, request, bytes, deadline)? {
            (Reply::Met { sizes, .. }, all) => Ok(cut(&sizes, &all)),
            (reply, _) => Err(shared.unhappy(name, reply, deadline)),
        }
    }

    /// Checks that all workers have the same text, such as the hash of their program, under a name such as `program`. A short text
    /// should also describe what it is of, since it is what the error shows.
    ///
    /// # Errors
    /// One has another than most (on a tie, than worker 0): all workers get the error that names it. A worker failed, has left, or has
    /// not come within `deadline`.
    pub fn agree_equal(
        &self,
        name: &str,
        value: &str,
        deadline: Duration,
    ) -> Result<(), ClusterError> {
        let all = self.exchange(&format!("agree on {name}"), value.into(), deadline)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let count = |value: &[u8]| all.iter().filter(|other| *other == value).count();
        // The last of equal maxima is returned, hence in reverse.
        let Some(expected) = all.iter().rev().max_by_key(|value| count(value)) else {
            return Ok(());
        };
        match all.iter().position(|value| value != expected) {
            None => Ok(()),
            Some(worker) => Err(ClusterError::Differs {
                name: name.into(),
                worker,
                expected: text(expected),
                got: text(&all[worker]),
            }),
        }
    }

    /// Keeps bytes under a key, for all workers; what was there is replaced.
    ///
    /// # Errors
    /// A worker failed; the bytes are too many.
    pub fn set(&self, key: &str, bytes: Vec<u8>) -> Result<(), ClusterError> {
        let shared = &self.0.shared;
        shared.check_length(key, bytes.len(), 1)?;
        let request = |id| Request::Set {
            id,
            key: key.into(),
        };
        let within = shared.done_within();
        match shared.ask(key, request, bytes, within)? {
            (Reply::Done { .. }, _) => Ok(()),
            (reply, _) => Err(shared.unhappy(key, reply, within)),
        }
    }

    /// The bytes of a key, waited for until a worker has set them.
    ///
    /// # Errors
    /// A worker failed, or nobody has set the key within `deadline`.
    pub fn get(&self, key: &str, deadline: Duration) -> Result<Vec<u8>, ClusterError> {
        self.get_unless(key, deadline, None)
    }

    /// As [`get`](Self::get); the flag `stop` ends the wait, as the deadline does, when it is found set.
    ///
    /// # Errors
    /// As for [`get`](Self::get); [`ClusterError::Late`] where the flag ended it.
    pub fn get_unless(
        &self,
        key: &str,
        deadline: Duration,
        stop: Option<&AtomicBool>,
    ) -> Result<Vec<u8>, ClusterError> {
        let request = |id| Request::Get {
            id,
            key: key.into(),
            within_ms: millis(deadline),
        };
        let shared = &self.0.shared;
        let within = (deadline, stop.map(|stop| (stop, Duration::ZERO)));
        match shared.ask_unless(key, request, Vec::new(), within)? {
            (Reply::Value { .. }, bytes) => Ok(bytes),
            (Reply::Late { .. }, _) => Err(ClusterError::NotSet {
                key: key.into(),
                within: deadline,
            }),
            (reply, _) => Err(shared.unhappy(key, reply, deadline)),
        }
    }

    /// Says whether workers may come to this generation, which ends it: at first they may not, and they do once all members admit them.
    /// Where an etcd is away for longer than the lease, the flag `stop` ends the wait when it is found set.
    ///
    /// # Errors
    /// A worker failed. One that has come is such a failure, with a next generation: after this has returned `Ok` for `false` none comes.
    /// [`ClusterError::Late`] where nobody has answered, or the flag ended the wait.
    pub fn admit(&self, comers: bool, stop: Option<&AtomicBool>) -> Result<(), ClusterError> {
        const NAME: &str = "whether others may come";
        let shared = &self.0.shared;
        let request = |id| Request::Admit { id, comers };
        let within = shared.done_within();
        let unless = stop.map(|stop| (stop, shared.timing.lease));
        match shared.ask_unless(NAME, request, Vec::new(), (within, unless))? {
            (Reply::Done { .. }, _) => Ok(()),
            (reply, _) => Err(shared.unhappy(NAME, reply, within)),
        }
    }

    /// Tells all workers that this one cannot go on, and why; returns when they are being told. Only the first failure counts.
    pub fn report_failure(&self, reason: impl Into<String>) {
        let reason = reason.into();
        self.0.shared.tell(Request::Fail { reason });
    }

    /// Tells all workers that this one has lost another, as its data connection says. What is heard of the other itself within a
    /// tenth of the lease comes before it: its own failure, or the failure that made it end.
    pub fn report_lost(&self, worker: usize, reason: impl Into<String>) {
        let reason = reason.into();
        self.0.shared.tell(Request::Lost { worker, reason });
    }

    /// The first failure, if there was one.
    #[must_use]
    pub fn first_failure(&self) -> Option<Failure> {
        self.0.shared.lock().failure.clone()
    }

    /// Calls `callback` once when a worker fails or is lost, from a thread of the coordinator, or at once if one has. It must not wait.
    pub fn on_failure(&self, callback: impl FnOnce(&Failure) + Send + 'static) {
        let mut state = self.0.shared.lock();
        match state.failure.clone() {
            None => state.callbacks.push(Box::new(callback)),
            Some(failure) => {
                drop(state);
                callback(&failure);
            }
        }
    }

    /// Says that this worker has done its work, and waits until all have, so that nobody takes the end of a process for its death.
    /// Afterwards the handle is of no more use.
    ///
    /// # Errors
    /// A worker failed, or has not left within `deadline`.
    pub fn leave(&self, deadline: Duration) -> Result<(), ClusterError> {
        const NAME: &str = "the end of the training";
        let shared = &self.0.shared;
        let within_ms = millis(deadline);
        let request = |id| Request::Leave { id, within_ms };
        let answer = shared.ask(NAME, request, Vec::new(), deadline);
        let done = match answer {
            Ok((Reply::Done { .. }, _)) => Ok(()),
            Ok((reply, _)) => Err(shared.unhappy(NAME, reply, deadline)),
            Err(error) => Err(error),
        };
        if done.is_ok() {
            self.0.close();
            if let Some(hosted) = &self.0.hosted {
                // The others close their connections as soon as they have read that all have left.
                hosted.service.wait_for_end(hosted.port, ON_THE_WAY);
            }
        }
        done
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.close();
    }
}

impl Handle {
    fn close(&self) {
        let before = std::mem::replace(&mut self.shared.lock().left, true);
        if before {
            return;
        }
        self.shared.outgoing.close();
        if self.hosted.is_some() {
            // The service has told the others by then, and this process may end.
            let reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = reading.recv_timeout(ON_THE_WAY);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The error that a reply is which is not the one that was hoped for.
    fn unhappy(&self, name: &str, reply: Reply, within: Duration) -> ClusterError {
        let name = name.to_owned();
        match reply {
            Reply::Late { missing, .. } => {
                let heard = |(worker, silence): (usize, u64)| {
                    let seconds = silence as f64 / 1e3;
                    self.missing(worker, format!("alive {seconds:.1} s ago"))
                };
                ClusterError::Late {
                    name,
                    missing: missing.into_iter().map(heard).collect(),
                    within,
                }
            }
            Reply::Left { worker, .. } => ClusterError::Left { worker, name },
            other => ClusterError::User(format!(
                "the coordinator answers {other:?} to {name:?}; start all workers with one version"
            )),
        }
    }

    fn missing(&self, worker: usize, why: String) -> Missing {
        let addresses = self.addresses.as_ref();
        Missing {
            worker,
            address: addresses.and_then(|addresses| addresses.get(worker).cloned()),
            why,
        }
    }

    /// Reads replies until the connection ends. A service of another process that is silent for the lease, or gone, is the failure of
    /// worker 0. Silence is counted in intervals that this thread was awake, so that a process that was stopped blames nobody. A service
    /// of this process lives as long as it: it is silent while it waits for an etcd, or has no processor.
    fn read(&self, mut incoming: Incoming) {
        let interval = self.timing.heartbeat;
        let is_elsewhere = matches!(incoming, Incoming::Tcp(_));
        let mut silence = Duration::ZERO;
        loop {
            match incoming.next(interval) {
                Next::Message(reply, bytes) => {
                    silence = Duration::ZERO;
                    self.take(reply, bytes);
                }
                Next::Silence => {
                    silence += interval;
                    if is_elsewhere && silence > self.timing.lease {
                        let text = format!(
                            "has not answered for {:.1} s: it is stopped, starved or cut off",
                            silence.as_secs_f64()
                        );
                        return self.lost(text);
                    }
                }
                Next::Closed(why) => return self.lost(format!("is gone: {why}")),
            }
            if self.lock().left {
                return;
            }
        }
    }

    fn take(&self, reply: Reply, bytes: Vec<u8>) {
        let id = match &reply {
            Reply::Failed(failure) => return self.fail(failure),
            Reply::Met { id, .. }
            | Reply::Done { id }
            | Reply::Value { id }
            | Reply::Late { id, .. }
            | Reply::Left { id, .. } => *id,
            Reply::Challenge { .. }
            | Reply::Pong
            | Reply::Refused(_)
            | Reply::Waiting { .. }
            | Reply::Lobby
            | Reply::Welcome { .. } => {
                return;
            }
        };
        if let Some(question) = self.lock().waiting.remove(&id) {
            // Whoever asked may have stopped waiting.
            let _ = question.send((reply, bytes));
        }
    }

    fn lost(&self, reason: String) {
        if self.lock().left {
            return;
        }
        let (worker, reason) = match self.place {
            Place::FirstWorker => (0, reason),
            Place::Launcher => (
                self.worker,
                format!("has lost the launcher, which coordinates: it {reason}"),
            ),
            Place::Etcd => (
                self.worker,
                format!("has lost its place among the workers that meet in etcd: {reason}"),
            ),
        };
        let next = None;
        self.fail(&Failure {
            worker,
            reason,
            next,
        });
        self.outgoing.close();
    }

    /// Takes in the first failure: whoever waits is answered, callbacks are called.
    fn fail(&self, failure: &Failure) {
        let mut state = self.lock();
        if state.failure.is_some() {
            return;
        }
        state.failure = Some(failure.clone());
        let waiting = std::mem::take(&mut state.waiting);
        let callbacks = std::mem::take(&mut state.callbacks);
        drop(state);
        for callback in callbacks {
            callback(failure);
        }
        for question in waiting.into_values() {
            let _ = question.send((Reply::Failed(failure.clone()), Vec::new()));
        }
    }
}

/// The parts of `all`, one after the other.
fn cut(sizes: &[usize], mut all: &[u8]) -> Vec<Vec<u8>> {
    let mut parts = Vec::with_capacity(sizes.len());
    for &size in sizes {
        let (part, rest) = all.split_at(size.min(all.len()));
        parts.push(part.to_vec());
        all = rest;
    }
    parts
}
