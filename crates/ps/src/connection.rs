//! A connection of a worker, answered on a thread of its own.

use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use phalanx_proof::Side;

use crate::PsError;
use crate::control::{Control, Grant};
use crate::durable::ControlState;
use crate::message::{FrameProblem, Hello, Reply, Request};
use crate::server::{Shared, locked};
use crate::wire::{Wire, draw_number};

/// A reply, and the bytes that follow it.
type Answer = (Reply, Vec<u8>);

/// How long somebody may take to say who he is, and to prove it.
const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// The most bytes of a reply of several parts, each of which may have more.
const MOST: usize = 64 << 20;
/// The most tasks whose ends go into one reply.
const MOST_ENDS: usize = 4096;
/// The longest that a reply is on its way.
const SEND_WITHIN: Duration = Duration::from_secs(60);

/// A connection of a worker.
pub(crate) struct Connection {
    shared: Arc<Shared>,
    wire: Wire,
    peer: String,
    hello: Option<Hello>,
    /// Whether the two have told each other their random numbers.
    has_knocked: bool,
}

impl Connection {
    pub(crate) fn new(shared: &Arc<Shared>, stream: TcpStream) -> Self {
        let peer = stream.peer_addr();
        Self {
            shared: Arc::clone(shared),
            peer: peer.map_or_else(|_| "somebody".into(), |peer| peer.to_string()),
            wire: Wire::new(stream),
            hello: None,
            has_knocked: false,
        }
    }

    /// Answers until one side ends the connection.
    pub(crate) fn run(&mut self) {
        self.answer();
        self.closed();
    }

    fn answer(&mut self) {
        if self.wire.prepare(HELLO_WITHIN, SEND_WITHIN).is_err() {
            return;
        }
        while !self.shared.ends.load(Ordering::Relaxed) {
            let frame = match self.wire.receive::<Request>() {
                Ok(Some(frame)) => frame,
                Err(FrameProblem::Unproved) => {
                    self.refuse("it has another secret");
                    return;
                }
                Ok(None) | Err(_) => return,
            };
            if let Request::Knock { nonce, has_secret } = &frame.message {
                if self.knock(nonce, *has_secret).is_err() {
                    return;
                }
                continue;
            }
            let leaves = frame.message == Request::Leave;
            let (reply, bytes) = self
                .handle(&frame.message, frame.bytes)
                .unwrap_or_else(|error| (refusal(error), Arc::default()));
            // Without an answer the worker asks whoever comes in the place of this server.
            if self.shared.broken().is_some() || self.wire.send(&reply, &bytes).is_err() || leaves {
                return;
            }
        }
    }

    /// Tells a worker a random number for another: what follows is proved with both, where there is a secret.
    fn knock(&mut self, nonce: &str, has_secret: bool) -> Result<(), PsError> {
        let secret = self.shared.options.secret.clone();
        let (theirs, own) = (u128::from_str_radix(nonce, 16), draw_number()?);
        let reply = Reply::Challenge {
            nonce: format!("{own:032x}"),
            has_secret: secret.is_some(),
        };
        self.wire.send(&reply, &[])?;
        let Ok(theirs) = theirs else {
            return Err(PsError::Protocol("a knock without a number".into()));
        };
        if secret.is_some() != has_secret {
            let why = match has_secret {
                true => "it has a secret and this server none",
                false => "it has no secret and this server one",
            };
            self.refuse(why);
            return Err(PsError::Protocol(why.into()));
        }
        self.wire
            .seal(secret.as_ref(), Side::Accepting, own, theirs);
        self.has_knocked = true;
        Ok(())
    }

    /// Tells somebody who does not belong here, and the log.
    fn refuse(&mut self, why: &str) {
        let (server, peer) = (self.shared.options.server, &self.peer);
        let line = format!("parameter server {server} refuses {peer}: {why}");
        (self.shared.options.tell.0)(&line);
        let refused = Reply::Refused {
            why: line,
            is_user: true,
        };
        let _ = self.wire.send(&refused, &[]);
    }

    fn handle(
        &mut self,
        request: &Request,
        bytes: Vec<u8>,
    ) -> Result<(Reply, Arc<Vec<u8>>), PsError> {
        if let Request::Hello(hello) = request {
            if !self.has_knocked {
                return Err(PsError::Protocol(
                    "the first message must be a knock".into(),
                ));
            }
            return self.hello(hello).map(|reply| (reply, Arc::default()));
        }
        let Some(hello) = &self.hello else {
            return Err(PsError::Protocol(
                "the first message must be a hello".into(),
            ));
        };
        let (worker, incarnation) = (hello.worker, hello.incarnation);
        if is_of_shards(request) {
            let mut state = locked(&self.shared.shards);
            return state.handle(worker, request, &bytes, &self.shared.options);
        }
        let (reply, bytes) = self.of_control((worker, incarnation), request, bytes)?;
        Ok((reply, Arc::new(bytes)))
    }

    /// The control's answer to a process of a worker.
    fn of_control(
        &self,
        (worker, incarnation): (usize, u64),
        request: &Request,
        bytes: Vec<u8>,
    ) -> Result<Answer, PsError> {
        let now = self.shared.now();
        let mut state = locked(&self.shared.control);
        let control = state.known()?;
        if !control.heard(now, worker, incarnation) && *request != Request::Leave {
            return Err(PsError::Lost(format!(
                "another process is worker {worker} now; this one ends"
            )));
        }
        if let Some((who, why)) = control.failure().cloned() {
            return Ok((Reply::Failed { who, why }, Vec::new()));
        }
        match request {
            Request::Next {
                phase,
                within_ms,
                has,
            } => self.next(state, worker, (phase, has), *within_ms),
            Request::Get { key, within_ms } => self.get(state, key, *within_ms),
            Request::Take { within_ms } => self.take(state, worker, *within_ms),
            Request::Ends { within_ms } => self.ends(state, *within_ms),
            Request::Items { phase, from } => Ok(items(control, phase, *from)),
            Request::LastPhase => {
                let last = control.last_phase().map(str::to_owned);
                Ok((Reply::LastPhase(last), Vec::new()))
            }
            Request::Leave => {
                let counts = control.leave(worker, incarnation);
                if counts && worker == 0 {
                    // A server that comes back is not to wait for it.
                    state.keep(worker, request, &[], &self.shared.options)?;
                }
                self.shared.changed.notify_all();
                drop(state);
                if counts {
                    let mut connections = locked(&self.shared.connections);
                    connections.has_left.insert(worker, true);
                }
                Ok((Reply::Done, Vec::new()))
            }
            Request::Heartbeat => Ok((self.shared.options.of_heartbeat(), Vec::new())),
            _ => {
                state.settle(worker, request, bytes, &self.shared.options)?;
                self.shared.changed.notify_all();
                Ok((Reply::Done, Vec::new()))
            }
        }
    }

    fn hello(&mut self, hello: &Hello) -> Result<Reply, PsError> {
        let options = &self.shared.options;
        if (&hello.job, &hello.version) != (&options.job, &options.version) {
            return Err(PsError::User(format!(
                "worker {} is of job `{}` and version {}, this server of `{}` and {}; start all with the same cluster and program",
                hello.worker, hello.job, hello.version, options.job, options.version
            )));
        }
        let now = self.shared.now();
        let mut state = locked(&self.shared.control);
        if state.control.is_none() {
            hello.settings.check()?;
            state.keep(hello.worker, &Request::Hello(hello.clone()), &[], options)?;
            state.control = Some(Control::new(hello.settings.clone()));
        }
        state.hello(now, hello, options)?;
        let control = state.known()?;
        let has_left = control.has_left(hello.worker, hello.incarnation);
        self.shared.changed.notify_all();
        drop(state);
        let shards = locked(&self.shared.shards);
        let is_new = shards.shards.is_new(hello.worker, hello.incarnation);
        drop(shards);
        if hello.worker == 0 {
            let mut state = locked(&self.shared.control);
            match is_new {
                true => state.chief_is_new(hello, options)?,
                false => state.known()?.chief_is_back(),
            }
            drop(state);
            self.shared.changed.notify_all();
        }
        // After the control, which would take a process that the shards know for one that was there before.
        let mut shards = locked(&self.shared.shards);
        let request = Request::Hello(hello.clone());
        shards.handle(hello.worker, &request, &[], options)?;
        let has_values = shards.shards.has_values();
        drop(shards);
        if self.hello.is_none() {
            let mut connections = locked(&self.shared.connections);
            *connections.open.entry(hello.worker).or_insert(0) += 1;
            if !has_left {
                connections.has_left.remove(&hello.worker);
            }
            connections.last = Some(Instant::now());
        }
        self.hello = Some(hello.clone());
        let lost = |error: std::io::Error| PsError::Lost(error.to_string());
        self.wire.trust(options.idle_within).map_err(lost)?;
        Ok(Reply::Welcome {
            has_values,
            lease_ms: options.lease.as_millis() as u64,
        })
    }

    /// A piece of work, waited for.
    fn next(
        &self,
        state: MutexGuard<'_, ControlState>,
        worker: usize,
        (phase, has): (&str, &[u64]),
        within_ms: u64,
    ) -> Result<Answer, PsError> {
        self.wait_for(state, within_ms, |control, is_over| {
            let grant = control.next(self.shared.now(), worker, phase, has)?;
            let waits = matches!(grant, Grant::Wait { .. }) && !is_over;
            Ok((!waits).then(|| (Reply::Grant(Box::new(grant)), Vec::new())))
        })
    }

    /// A task, waited for.
    fn take(
        &self,
        state: MutexGuard<'_, ControlState>,
        worker: usize,
        within_ms: u64,
    ) -> Result<Answer, PsError> {
        self.wait_for(state, within_ms, |control, is_over| {
            if let Some((task, arguments)) = control.take(worker) {
                let arguments = arguments.to_vec();
                return Ok(Some((Reply::Task(task), arguments)));
            }
            if control.tasks_are_over() {
                return Ok(Some((Reply::TasksOver, Vec::new())));
            }
            Ok(is_over.then(|| not_yet("a task, which the first worker schedules".into())))
        })
    }

    /// How tasks have ended; the first is waited for.
    fn ends(&self, state: MutexGuard<'_, ControlState>, within_ms: u64) -> Result<Answer, PsError> {
        self.wait_for(state, within_ms, |control, is_over| {
            let answer = ends_of(control);
            let has_ends = matches!(&answer.0, Reply::Ends { ends, .. } if !ends.is_empty());
            Ok((is_over || has_ends).then_some(answer))
        })
    }

    fn get(
        &self,
        state: MutexGuard<'_, ControlState>,
        key: &str,
        within_ms: u64,
    ) -> Result<Answer, PsError> {
        self.wait_for(state, within_ms, |control, is_over| {
            if let Some(bytes) = control.get(key) {
                return Ok(Some((Reply::Done, bytes.to_vec())));
            }
            Ok(is_over.then(|| not_yet(format!("`{key}`, which the first worker puts"))))
        })
    }

    /// What `look` finds, which is called again whenever something has changed; it must answer when the time is over, which its second
    /// argument says. The failure of the job is the answer to everybody.
    fn wait_for(
        &self,
        mut state: MutexGuard<'_, ControlState>,
        within_ms: u64,
        look: impl Fn(&mut Control, bool) -> Result<Option<Answer>, PsError>,
    ) -> Result<Answer, PsError> {
        let until = Instant::now() + Duration::from_millis(within_ms);
        loop {
            let control = state.known()?;
            if let Some((who, why)) = control.failure().cloned() {
                return Ok((Reply::Failed { who, why }, Vec::new()));
            }
            let left = until.saturating_duration_since(Instant::now());
            if let Some(answer) = look(control, left.is_zero())? {
                return Ok(answer);
            }
            state = self.wait(state, left);
        }
    }

    fn wait<'a>(
        &self,
        state: MutexGuard<'a, ControlState>,
        within: Duration,
    ) -> MutexGuard<'a, ControlState> {
        let waited = self.shared.changed.wait_timeout(state, within);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// The connection is gone; a worker without any is, too.
    fn closed(&self) {
        let Some(hello) = &self.hello else { return };
        let mut connections = locked(&self.shared.connections);
        let open = connections.open.entry(hello.worker).or_insert(1);
        *open = open.saturating_sub(1);
        let none_left = *open == 0;
        connections.last = Some(Instant::now());
        drop(connections);
        if none_left && let Some(control) = &mut locked(&self.shared.control).control {
            control.gone(self.shared.now(), hello.worker, hello.incarnation);
            self.shared.changed.notify_all();
        }
    }
}

const fn not_yet(waiting_for: String) -> Answer {
    (Reply::NotYet { waiting_for }, Vec::new())
}

const fn is_of_shards(request: &Request) -> bool {
    matches!(
        request,
        Request::Create { .. }
            | Request::Pull { .. }
            | Request::Push { .. }
            | Request::Stage { .. }
            | Request::Apply { .. }
            | Request::Squares { .. }
            | Request::Act { .. }
    )
}

/// How tasks have ended, as many as go into a message of some size.
fn ends_of(control: &Control) -> Answer {
    let (mut ends, mut bytes) = (Vec::new(), Vec::new());
    for (number, end, result) in control.tasks().ends() {
        if !ends.is_empty() && bytes.len() + result.len() > MOST || ends.len() == MOST_ENDS {
            break;
        }
        ends.push((number, end.clone(), result.len() as u64));
        bytes.extend_from_slice(result);
    }
    let next = control.tasks().next_number();
    (Reply::Ends { next, ends }, bytes)
}

/// The bytes that items left, as many as go into a message of some size.
fn items(control: &Control, phase: &str, from: u64) -> Answer {
    let (mut sizes, mut bytes) = (Vec::new(), Vec::new());
    for (item, left) in control.items(phase, from) {
        if !sizes.is_empty() && bytes.len() + left.len() > MOST {
            break;
        }
        sizes.push((item, left.len() as u64));
        bytes.extend_from_slice(left);
    }
    (Reply::Bytes { items: sizes }, bytes)
}

fn refusal(error: PsError) -> Reply {
    match error {
        PsError::Failed { who, why } => Reply::Failed { who, why },
        PsError::Stopped => Reply::Stopped,
        other => Reply::Refused {
            is_user: matches!(other, PsError::User(_)),
            why: other.to_string(),
        },
    }
}
