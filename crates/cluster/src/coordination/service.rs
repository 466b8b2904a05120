//! The coordination service, inside worker 0 or the launcher: one thread owns the state and writes replies, one for each connection reads.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use phalanx_proof::{Seal, Secret, Side, draw};

use super::client::ON_THE_WAY;
use super::event::{Action, Connection, Event, Settings};
use super::generations::{Coordination, Lost};
use super::link::{Frames, Incoming, Link, Next, Outgoing, Sealed, seal};
use super::message::{Hello, Reply, Request, encode};
use super::{ClusterError, Failure};

/// Hears what happens to the workers.
pub(super) type Tell = Box<dyn FnMut(&str) + Send>;

/// The service of a process that coordinates, and where others reach it.
#[derive(Clone)]
pub(super) struct Hosted {
    pub(super) service: Service,
    pub(super) port: Option<SocketAddr>,
}

/// What the launcher sees of a service.
#[derive(Debug, Clone, Default)]
pub(super) struct Status {
    /// Workers that were lost, in order, one for each generation that ended.
    pub(super) lost: Vec<Lost>,
    /// What ended the training.
    pub(super) failure: Option<Failure>,
    /// Whether all workers have joined once.
    pub(super) has_met: bool,
}

/// What reaches the thread that owns the state.
pub(super) enum Input {
    Opened {
        connection: Connection,
        replies: Replies,
    },
    Message {
        connection: Connection,
        from: Option<IpAddr>,
        request: Request,
        bytes: Vec<u8>,
    },
    Closed {
        connection: Connection,
        why: String,
    },
    Gone {
        worker: usize,
    },
    Unproven {
        from: IpAddr,
    },
    /// An entry of the log in etcd, in its order.
    #[cfg(feature = "etcd")]
    Written {
        key: String,
        value: Vec<u8>,
    },
    /// What must be changed before etcd shows its log to this process again.
    #[cfg(feature = "etcd")]
    Unreadable {
        why: String,
    },
    /// Nobody tells the time of the job in etcd.
    #[cfg(feature = "etcd")]
    ClockIsFree,
}

/// Where replies of a connection go.
pub(super) enum Replies {
    Memory(Sender<(Reply, Vec<u8>)>),
    Tcp(Sealed),
}

/// A running service. It ends by itself once all of its connections are closed.
#[derive(Clone)]
pub(super) struct Service {
    inputs: Sender<Input>,
    next_connection: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
    status: Arc<Mutex<Status>>,
    lease: Duration,
    secret: Option<Secret>,
}

/// More connections at a time are no workers.
const MOST_CONNECTIONS: usize = 16_384;
/// A worker that takes none of a reply for this time holds up all others, and is cut off.
const WRITE_WITHIN: Duration = Duration::from_millis(500);
/// More refusals of strangers tell nothing more.
const MOST_STRANGERS: usize = 100;
/// Whoever connects says hello at once.
const HELLO_WITHIN: Duration = Duration::from_secs(10);

impl Service {
    /// Starts a service without connections.
    pub(super) fn start(
        settings: Settings,
        secret: Option<Secret>,
        tell: Tell,
    ) -> Result<Self, ClusterError> {
        let lease = settings.lease;
        Self::run(lease, secret, move |to, inputs, status| {
            // It ends when nobody can send it anything.
            drop(to);
            serve(settings, inputs, status, tell);
        })
    }

    /// A service of this process' connections alone, whose state is in etcd.
    #[cfg(feature = "etcd")]
    pub(super) fn of_run(run: super::etcd::Run, tell: Tell) -> Result<Self, ClusterError> {
        let lease = run.settings().lease;
        Self::run(lease, None, move |to, inputs, status| {
            // Without its threads it ends, which its connections hear.
            let _ = run.serve(&to, inputs, status, tell);
        })
    }

    /// A service whose thread does `serve` until that ends, which is given both ends of the inputs and where it tells what happens.
    fn run(
        lease: Duration,
        secret: Option<Secret>,
        serve: impl FnOnce(Sender<Input>, &Receiver<Input>, &Mutex<Status>) + Send + 'static,
    ) -> Result<Self, ClusterError> {
        let (inputs, received) = channel();
        let service = Self {
            inputs,
            next_connection: Arc::default(),
            ended: Arc::default(),
            status: Arc::default(),
            lease,
            secret,
        };
        let (to, status) = (service.inputs.clone(), Arc::clone(&service.status));
        let ended = Arc::clone(&service.ended);
        spawn("phalanx-coordinator", move || {
            serve(to, &received, &status);
            ended.store(true, Ordering::Release);
        })?;
        Ok(service)
    }

    /// A connection from within this process.
    pub(super) fn connect(&self) -> Link {
        let (replies, incoming) = channel();
        let connection = self.open(Replies::Memory(replies));
        Link {
            outgoing: Outgoing::Memory {
                connection,
                to: self.inputs.clone(),
            },
            incoming: Incoming::Memory(incoming),
        }
    }

    /// Serves connections of other processes from now on, until the service has ended.
    pub(super) fn listen(&self, listener: TcpListener) -> Result<(), ClusterError> {
        let service = self.clone();
        let open = Arc::new(AtomicUsize::new(0));
        spawn("phalanx-coordinator-accept", move || {
            // Ends by the connection that `wake` makes.
            for stream in listener.incoming() {
                if service.ended.load(Ordering::Acquire) {
                    break;
                }
                match stream {
                    Ok(stream) => service.accept(stream, &open),
                    // Out of file descriptors, or gone before it was accepted.
                    Err(_) => thread::sleep(Duration::from_millis(100)),
                }
            }
        })
    }

    /// Says that a worker will not be started again.
    pub(super) fn give_up(&self, worker: usize) {
        let _ = self.inputs.send(Input::Gone { worker });
    }

    /// What has happened so far.
    pub(super) fn status(&self) -> Status {
        let status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        status.clone()
    }

    /// Waits until the service has ended and frees its port; both for no longer than `within`.
    pub(super) fn wait_for_end(&self, port: Option<SocketAddr>, within: Duration) {
        let until = Instant::now() + within;
        while !self.ended.load(Ordering::Acquire) && Instant::now() < until {
            thread::sleep(Duration::from_millis(2));
        }
        if let Some(port) = port {
            let _ = TcpStream::connect_timeout(&port, WRITE_WITHIN);
        }
    }

    fn open(&self, replies: Replies) -> Connection {
        let connection = self.next_connection.fetch_add(1, Ordering::Relaxed);
        // Once the service has ended nobody reads, and the other side sees that its replies have ended.
        let _ = self.inputs.send(Input::Opened {
            connection,
            replies,
        });
        connection
    }

    fn accept(&self, stream: TcpStream, open: &Arc<AtomicUsize>) {
        if open.load(Ordering::Relaxed) >= MOST_CONNECTIONS || prepare(&stream).is_err() {
            return;
        }
        let Ok(replies) = stream.try_clone() else {
            return;
        };
        open.fetch_add(1, Ordering::Relaxed);
        let (service, reading) = (self.clone(), Arc::clone(open));
        let spawned = spawn("phalanx-coordinator-read", move || {
            service.read(stream, replies);
            reading.fetch_sub(1, Ordering::Relaxed);
        });
        if spawned.is_err() {
            open.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Reads a connection to its end.
    fn read(&self, stream: TcpStream, stream_back: TcpStream) {
        let peer = stream.peer_addr().ok();
        let from = peer.map(|address| address.ip());
        let mut frames = Frames::of_stranger(stream);
        let Some((hello, seal)) = self.greet(&mut frames, &stream_back) else {
            if let (Some(_), Some(from)) = (&self.secret, from) {
                let _ = self.inputs.send(Input::Unproven { from });
            }
            return;
        };
        let request = Request::Hello(hello);
        let replies = Sealed {
            stream: stream_back,
            seal,
        };
        let connection = self.open(Replies::Tcp(replies));
        let mut next = Next::Message(request, Vec::new());
        let why = loop {
            match next {
                Next::Message(request, bytes) => {
                    let _ = self.inputs.send(Input::Message {
                        connection,
                        from,
                        request,
                        bytes,
                    });
                }
                Next::Silence => break "nothing came any more".into(),
                Next::Closed(why) => break why,
            }
            // Members are found silent by the state; this ends those that never became one.
            next = frames.next(self.lease.saturating_mul(8));
        };
        let _ = self.inputs.send(Input::Closed { connection, why });
    }
}

impl Service {
    /// Challenges whoever connected, and reads its hello; with what replies to it are sealed. `None` if it does not know the secret.
    fn greet(&self, frames: &mut Frames, mut stream: &TcpStream) -> Option<(Hello, Option<Seal>)> {
        let secret = self.secret.as_ref();
        let challenge = Reply::Challenge {
            nonce: u128::from_le_bytes(draw().ok()?),
            sealed: secret.is_some(),
        };
        let Reply::Challenge { nonce, .. } = challenge else {
            return None;
        };
        stream.write_all(&encode(&challenge, &[]).ok()?).ok()?;
        let Next::Message(Request::Hello(hello), bytes) = frames.next(HELLO_WITHIN) else {
            return None;
        };
        let of = |side| seal(secret, side, nonce, hello.nonce);
        // A hello is written by nobody but `encode`, so that it is the same again.
        let frame = encode(&Request::Hello(hello.clone()), &bytes).ok()?;
        let holds = frames.seal_from(of(Side::Connecting), &frame);
        holds.then(|| (hello.clone(), of(Side::Accepting)))
    }
}

/// Small messages must not wait for each other, and none for ever.
pub(super) fn prepare(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(WRITE_WITHIN))
}

/// Starts a thread with a name.
pub(super) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), ClusterError> {
    let thread = thread::Builder::new().name(name.into()).spawn(body);
    let refused = |error| {
        ClusterError::User(format!(
            "cannot start the thread {name}: {error}; raise the limit of processes (ulimit -u)"
        ))
    };
    thread.map(drop).map_err(refused)
}

/// Owns the state until all connections that were opened are closed.
fn serve(settings: Settings, inputs: &Receiver<Input>, status: &Mutex<Status>, mut tell: Tell) {
    let tick = tick(settings.lease);
    let mut state = Coordination::new(settings);
    let mut connections = BTreeMap::new();
    let mut strangers = 0;
    let start = Instant::now();
    loop {
        // Ends after what its end leads to was sent: whoever sees the end may end this process.
        let mut ending = None;
        let event = match inputs.recv_timeout(tick) {
            Ok(Input::Opened {
                connection,
                replies,
            }) => {
                connections.insert(connection, replies);
                continue;
            }
            Ok(Input::Message {
                connection,
                from,
                request,
                bytes,
            }) => Event::Message {
                connection,
                from,
                request,
                bytes,
            },
            Ok(Input::Closed { connection, why }) => {
                ending = connections.remove(&connection);
                Event::Closed { connection, why }
            }
            Ok(Input::Unproven { from }) => {
                if strangers < MOST_STRANGERS {
                    strangers += 1;
                    tell(&format!(
                        "coordination: a connection from {from} was refused: it does not know the job's secret"
                    ));
                }
                continue;
            }
            Ok(Input::Gone { worker }) => Event::Gone { worker },
            // Of a service whose state is in etcd, which this one is not.
            #[cfg(feature = "etcd")]
            Ok(Input::Written { .. } | Input::Unreadable { .. } | Input::ClockIsFree) => continue,
            Err(RecvTimeoutError::Timeout) => Event::Tick,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let actions = state.on(start.elapsed(), event);
        perform(actions, &mut connections);
        note(&mut state, status, &mut tell);
        if ending.is_some() && connections.is_empty() {
            return;
        }
    }
}

/// How often a service looks at the time: who is late hears of it before it stops waiting for an answer, also where the lease is long.
pub(super) fn tick(lease: Duration) -> Duration {
    (lease / 10).min(ON_THE_WAY / 2)
}

/// Tells who was refused, and leaves for others to see who was lost.
pub(super) fn note(state: &mut Coordination, status: &Mutex<Status>, tell: &mut Tell) {
    for news in state.take_news() {
        tell(&format!("coordination: {news}"));
    }
    let mut status = status.lock().unwrap_or_else(PoisonError::into_inner);
    status.lost.extend(state.take_lost());
    status.failure = state.failure().cloned();
    status.has_met = state.has_met();
}

/// Sends replies, those to this process last: it may end as soon as it has its own.
fn perform(actions: Vec<Action>, connections: &mut BTreeMap<Connection, Replies>) {
    let is_memory =
        |action: &Action| matches!(connections.get(&action.to), Some(Replies::Memory(_)));
    let (here, elsewhere): (Vec<_>, Vec<_>) = actions.into_iter().partition(is_memory);
    for Action { to, reply, bytes } in elsewhere.into_iter().chain(here) {
        match connections.get_mut(&to) {
            Some(Replies::Memory(replies)) => {
                let _ = replies.send((reply, bytes));
            }
            Some(Replies::Tcp(sealed)) => match encode(&reply, &bytes) {
                Ok(frame) => sealed.write(frame),
                Err(_) => sealed.close(),
            },
            None => {}
        }
    }
}
