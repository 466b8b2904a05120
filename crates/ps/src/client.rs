//! A worker's side: connections to all servers, which are opened again when they break.

mod heartbeat;

use std::io;
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use phalanx_proof::{Secret, Side};

use self::heartbeat::Heartbeat;
use crate::PsError;
use crate::message::{FrameProblem, Hello, Reply, Request};
use crate::server::{Tell, locked};
use crate::wire::{Wire, draw_number};

/// How a worker finds its servers.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The servers, `host:port`, in their order; the first one has the control.
    pub servers: Vec<String>,
    /// Who this is.
    pub hello: Hello,
    /// How long servers may take to come at the start.
    pub join_within: Duration,
    /// How long one may be away later: as long as it takes to start it again. One that has come back may be away as long again, while
    /// the request was sent first less than [`answer_within`](Self::answer_within) ago.
    pub server_within: Duration,
    /// The same once this worker was asked to stop ([`Client::stop_when`]).
    pub stop_within: Duration,
    /// How long an answer may take once a request was sent.
    pub answer_within: Duration,
    /// What servers must prove to know, as this worker does.
    pub secret: Option<Secret>,
    /// Where it is said which server is waited for.
    pub tell: Tell,
}

/// How long one attempt to connect may take, and the answer to a heartbeat.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// How long the answer to a farewell may take.
const LEAVE_WITHIN: Duration = Duration::from_secs(30);
/// The time between two attempts.
const RETRY_EVERY: Duration = Duration::from_millis(100);
/// After how long it is said which server is waited for.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// A worker's connections to the servers of its job.
pub struct Client {
    options: ClientOptions,
    /// To each server for values, and one more to the first for the control.
    values: Vec<Mutex<Line>>,
    control: Mutex<Line>,
    beats: Mutex<Vec<Heartbeat>>,
    has_values: bool,
    news: Arc<News>,
}

/// Why a server is waited for no longer.
struct News {
    /// Of each server whether it was seen to have values: one that comes back without them has lost them.
    held: Vec<AtomicBool>,
    /// Who ended the job and why, as the heartbeat has heard it: a server that has ended with the job cannot say so any more.
    failure: Mutex<Option<(String, String)>>,
    /// Set when this worker is to stop.
    stop: Mutex<Option<Arc<AtomicBool>>>,
    /// Whether this worker ends before its work is done.
    has_given_up: AtomicBool,
}

impl News {
    fn of(servers: usize) -> Arc<Self> {
        Arc::new(Self {
            held: (0..servers).map(|_| AtomicBool::new(false)).collect(),
            failure: Mutex::default(),
            stop: Mutex::default(),
            has_given_up: AtomicBool::new(false),
        })
    }

    /// Asks this worker to stop, if it can be; whether nobody had asked before.
    fn ask_to_stop(&self) -> bool {
        let stop = locked(&self.stop);
        stop.as_ref()
            .is_some_and(|stop| !stop.swap(true, Ordering::Relaxed))
    }

    fn is_to_stop(&self) -> bool {
        let stop = locked(&self.stop);
        stop.as_ref()
            .is_some_and(|stop| stop.load(Ordering::Relaxed))
    }
}

/// A connection that may have to be opened again.
struct Line {
    server: usize,
    wire: Option<Wire>,
    hold: Hold,
    welcome: bool,
    news: Arc<News>,
}

/// A hold on the connection of a line, by which another thread ends what the line waits for.
#[derive(Clone, Default)]
struct Hold(Arc<Mutex<Option<TcpStream>>>);

impl Hold {
    fn shut_down(&self) {
        if let Some(stream) = &*locked(&self.0) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Client {
    /// Connects to all servers; returns when all are there.
    ///
    /// # Errors
    /// One is not there in time, or refuses this worker.
    pub fn connect(options: ClientOptions) -> Result<Self, PsError> {
        let news = News::of(options.servers.len());
        let line = |server| Mutex::new(Line::to(server, &news));
        let mut client = Self {
            values: (0..options.servers.len()).map(line).collect(),
            control: line(0),
            beats: Mutex::default(),
            has_values: true,
            news,
            options,
        };
        let within = client.options.join_within;
        let mut have_values = Vec::new();
        for server in &client.values {
            let mut line = locked(server);
            line.open(&client.options, Instant::now() + within)?;
            have_values.push(line.welcome);
        }
        client.has_values = have_values.iter().all(|has| *has);
        client.check_values(&have_values)?;
        locked(&client.control).open(&client.options, Instant::now() + within)?;
        let beat = |server| {
            let control = (server == 0).then_some(&client.control);
            let lines = control.into_iter().chain([&client.values[server]]);
            let holds = lines.map(|line| locked(line).hold.clone()).collect();
            Heartbeat::start(server, &client.options, (&client.news, holds))
        };
        let beats = (0..client.servers()).map(beat).collect::<Result<_, _>>()?;
        client.beats = Mutex::new(beats);
        Ok(client)
    }

    /// Refuses servers of which some have kept what the others have not: a new job would go on with a part of an old one.
    fn check_values(&self, have_values: &[bool]) -> Result<(), PsError> {
        let old = have_values.iter().position(|has| *has);
        let new = have_values.iter().position(|has| !*has);
        match (self.worker(), old, new) {
            // Others may come while the first one brings the values.
            (0, Some(old), Some(new)) => Err(PsError::User(format!(
                "parameter server {old} has kept values of a job before, and parameter server {new} has none; remove the folders of all servers to begin anew"
            ))),
            _ => Ok(()),
        }
    }

    /// Waits no longer than [`ClientOptions::stop_within`] for a server once this flag is set.
    pub fn stop_when(&self, flag: &Arc<AtomicBool>) {
        *locked(&self.news.stop) = Some(Arc::clone(flag));
    }

    /// The number of servers.
    #[must_use]
    pub const fn servers(&self) -> usize {
        self.values.len()
    }

    /// The number of this worker.
    #[must_use]
    pub const fn worker(&self) -> usize {
        self.options.hello.worker
    }

    /// Who this is.
    #[must_use]
    pub const fn hello(&self) -> &Hello {
        &self.options.hello
    }

    /// Whether all servers had values when this worker came: the job goes on, and is not begun.
    #[must_use]
    pub const fn had_values(&self) -> bool {
        self.has_values
    }

    /// Asks the control.
    ///
    /// # Errors
    /// It refuses, has failed, or is away for too long.
    pub fn ask(&self, request: &Request, bytes: &[u8]) -> Result<(Reply, Vec<u8>), PsError> {
        let answer = locked(&self.control).ask(&self.options, request, bytes);
        if answer.is_ok() {
            // A program may go on after an error.
            self.news.has_given_up.store(false, Ordering::Relaxed);
        }
        answer
    }

    /// Asks a server about its values. Requests may be sent again when a connection breaks, so they must be those that a server
    /// counts once.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub fn ask_server(
        &self,
        server: usize,
        request: &Request,
        bytes: &[u8],
    ) -> Result<(Reply, Vec<u8>), PsError> {
        locked(&self.values[server]).ask(&self.options, request, bytes)
    }

    /// Asks all servers at the same time; `request` makes what each is asked. The answers are in the order of the servers.
    ///
    /// # Errors
    /// As [`ask`](Self::ask), the first of them.
    pub fn ask_all(
        &self,
        request: impl Fn(usize) -> (Request, Vec<u8>) + Sync,
    ) -> Result<Vec<(Reply, Vec<u8>)>, PsError> {
        let one = |server| {
            let (request, bytes) = request(server);
            self.ask_server(server, &request, &bytes)
        };
        if self.servers() == 1 {
            return Ok(vec![one(0)?]);
        }
        thread::scope(|scope| {
            let asked = (0..self.servers()).map(|server| scope.spawn(move || one(server)));
            let asked: Vec<_> = asked.collect();
            let ended = |_| PsError::Lost("a request ended early".into());
            let answers = asked
                .into_iter()
                .map(|answer| answer.join().map_err(ended)?);
            answers.collect()
        })
    }

    /// This worker waits no longer for a server or for others, and its work is not done: servers lose it when it ends, unless the
    /// control answers it again before that.
    pub fn give_up(&self) {
        self.news.has_given_up.store(true, Ordering::Relaxed);
    }

    /// Says to all servers that this worker has done its work, unless it has given up; what goes wrong then is no failure of the work.
    pub fn leave(&self) {
        if self.news.has_given_up.load(Ordering::Relaxed) {
            self.stop_beats();
            return;
        }
        // A server may have closed this connection, and loses a worker whose last one ends: that of the beats.
        self.tell_all(&Request::Heartbeat);
        self.stop_beats();
        self.tell_all(&Request::Leave);
    }

    /// Tells each server something, the first one last; what goes wrong then is no matter, and a server that does not answer is
    /// not waited for.
    fn tell_all(&self, request: &Request) {
        let options = hasty(&self.options, LEAVE_WITHIN);
        for server in (1..self.servers()).chain([0]) {
            let mut line = locked(&self.values[server]);
            if let Some(wire) = &mut line.wire {
                let _ = wire.trust(options.answer_within);
            }
            let _ = line.try_ask(&options, request, &[], CONNECT_WITHIN);
        }
    }

    /// Says to all servers that the job cannot go on.
    pub fn fail(&self, reason: &str) {
        let reason = reason.to_owned();
        self.tell_all(&Request::Fail { reason });
    }
}

impl Client {
    fn stop_beats(&self) {
        let beats = std::mem::take(&mut *locked(&self.beats));
        beats.iter().for_each(Heartbeat::stop);
        beats.into_iter().for_each(Heartbeat::join);
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.stop_beats();
    }
}

impl Line {
    fn to(server: usize, news: &Arc<News>) -> Self {
        Self {
            server,
            wire: None,
            hold: Hold::default(),
            welcome: false,
            news: Arc::clone(news),
        }
    }

    fn close(&mut self) {
        self.wire = None;
        *locked(&self.hold.0) = None;
    }

    /// Connects until it works. Whether the server was away before.
    fn open(&mut self, options: &ClientOptions, mut until: Instant) -> Result<bool, PsError> {
        let (start, mut said, mut is_to_stop) = (Instant::now(), Duration::ZERO, false);
        let mut was_away = false;
        loop {
            let why = match self.try_open(options) {
                Ok(()) => return self.check_values().map(|()| was_away),
                Err(PsError::Lost(why)) => why,
                Err(error) => return Err(error),
            };
            was_away = true;
            if let Some((who, why)) = locked(&self.news.failure).clone() {
                return Err(PsError::Failed { who, why });
            }
            if !is_to_stop && self.news.is_to_stop() {
                is_to_stop = true;
                until = until.min(Instant::now() + options.stop_within);
            }
            if Instant::now() >= until {
                return Err(self.out_of_reach(options, &why, is_to_stop));
            }
            let waited = start.elapsed();
            if waited >= said + SAY_EVERY {
                said = waited;
                (options.tell.0)(&format!(
                    "worker {} waits for parameter server {} at {}: {why} ({} s)",
                    options.hello.worker,
                    self.server,
                    options.servers[self.server],
                    waited.as_secs()
                ));
            }
            thread::sleep(RETRY_EVERY);
        }
    }

    /// Refuses a server that had values and comes without.
    fn check_values(&mut self) -> Result<(), PsError> {
        let held = &self.news.held[self.server];
        let had_values = held.fetch_or(self.welcome, Ordering::Relaxed);
        if !had_values || self.welcome {
            return Ok(());
        }
        self.close();
        Err(PsError::Lost(format!(
            "parameter server {} was started again without what it held; give it a folder that survives it, or start the job again",
            self.server
        )))
    }

    /// The error that the server is not reached.
    fn out_of_reach(&self, options: &ClientOptions, why: &str, is_to_stop: bool) -> PsError {
        let (server, address) = (self.server, &options.servers[self.server]);
        let (asked, next) = match is_to_stop {
            true => (
                "was asked to stop and ",
                "nothing is saved of what was trained since the last checkpoint; start the job again to go on from there",
            ),
            false => ("", "look whether it runs, and start the job again"),
        };
        PsError::Lost(format!(
            "worker {} {asked}does not reach parameter server {server} at {address}: {why}; {next}",
            options.hello.worker
        ))
    }

    fn try_open(&mut self, options: &ClientOptions) -> Result<(), PsError> {
        let lost = |error: io::Error| PsError::Lost(error.to_string());
        let address = &options.servers[self.server];
        let stream = connect(address).map_err(lost)?;
        stream.set_nodelay(true).map_err(lost)?;
        let within = Some(options.answer_within);
        stream.set_read_timeout(within).map_err(lost)?;
        stream.set_write_timeout(within).map_err(lost)?;
        *locked(&self.hold.0) = Some(stream.try_clone().map_err(lost)?);
        self.wire = Some(Wire::new(stream));
        let welcomed = self.knock(options).and_then(|()| {
            let hello = Request::Hello(options.hello.clone());
            self.exchange(&hello, &[])
        });
        match welcomed {
            Ok((Reply::Welcome { has_values, .. }, _)) => {
                self.welcome = has_values;
                if let Some(wire) = &mut self.wire {
                    wire.trust(options.answer_within).map_err(lost)?;
                }
                Ok(())
            }
            Ok((Reply::Refused { why, is_user }, _)) => {
                self.close();
                Err(match is_user {
                    true => PsError::User(why),
                    false => PsError::Protocol(self.refused(&why)),
                })
            }
            Ok((other, _)) => Err(unexpected(&other)),
            Err(PsError::Protocol(why)) => Err(PsError::User(format!(
                "parameter server {} at {address}: {why}",
                self.server
            ))),
            Err(error) => {
                self.close();
                Err(PsError::Lost(error.to_string()))
            }
        }
    }

    fn refused(&self, why: &str) -> String {
        format!("parameter server {} refuses: {why}", self.server)
    }

    /// Tells the server a random number and hears of another: what follows is proved with both, where there is a secret.
    fn knock(&mut self, options: &ClientOptions) -> Result<(), PsError> {
        let own = draw_number()?;
        let has_secret = options.secret.is_some();
        let nonce = format!("{own:032x}");
        let knock = Request::Knock { nonce, has_secret };
        let (reply, _) = self.exchange(&knock, &[])?;
        let Reply::Challenge {
            nonce,
            has_secret: theirs,
        } = &reply
        else {
            return Err(unexpected(&reply));
        };
        let nonce = u128::from_str_radix(nonce, 16).map_err(|_| unexpected(&reply))?;
        match (has_secret, *theirs) {
            (true, false) => {
                let why = "it has no secret and this worker one; give all the same";
                return Err(PsError::Protocol(why.into()));
            }
            (false, true) => {
                let why = "it has a secret and this worker none; give all the same";
                return Err(PsError::Protocol(why.into()));
            }
            _ => {}
        }
        if let Some(wire) = &mut self.wire {
            wire.seal(options.secret.as_ref(), Side::Connecting, nonce, own);
        }
        Ok(())
    }

    /// Asks, and opens the connection again where it breaks.
    fn ask(
        &mut self,
        options: &ClientOptions,
        request: &Request,
        bytes: &[u8],
    ) -> Result<(Reply, Vec<u8>), PsError> {
        let answer = self.try_ask(options, request, bytes, options.server_within);
        let (reply, bytes) = answer.inspect_err(|_| {
            self.news.has_given_up.store(true, Ordering::Relaxed);
        })?;
        let is_created = matches!((request, &reply), (Request::Create { .. }, Reply::Done));
        if is_created || matches!(reply, Reply::Values(_)) {
            self.news.held[self.server].store(true, Ordering::Relaxed);
        }
        match reply {
            Reply::Failed { who, why } => Err(PsError::Failed { who, why }),
            Reply::Stopped => Err(PsError::Stopped),
            Reply::Refused { why, is_user: true } => Err(PsError::User(why)),
            Reply::Refused { why, .. } => Err(PsError::Lost(self.refused(&why))),
            reply => Ok((reply, bytes)),
        }
    }

    /// Asks until there is an answer; `within` is how long the server may be away, from when that is seen. That counts anew where it was
    /// away, has welcomed this worker and is gone again, but no server has longer than an answer may take by going again and again.
    fn try_ask(
        &mut self,
        options: &ClientOptions,
        request: &Request,
        bytes: &[u8],
        within: Duration,
    ) -> Result<(Reply, Vec<u8>), PsError> {
        let (sent, mut until) = (Instant::now(), None);
        loop {
            let mut was_away = false;
            if self.wire.is_none() {
                let until = *until.get_or_insert_with(|| Instant::now() + within);
                was_away = self.open(options, until)?;
            }
            match self.exchange(request, bytes) {
                Ok(answer) => return Ok(answer),
                Err(why) => {
                    self.close();
                    let now = Instant::now();
                    if was_away && !self.news.is_to_stop() {
                        let left = options.answer_within.saturating_sub(sent.elapsed());
                        until = until.max(Some(now + within.min(left)));
                    }
                    if now >= *until.get_or_insert(now + within) {
                        return Err(PsError::Lost(format!(
                            "parameter server {} does not answer: {why}; start the job again",
                            self.server
                        )));
                    }
                    thread::sleep(Duration::from_millis(1));
                }
            }
        }
    }

    fn exchange(&mut self, request: &Request, bytes: &[u8]) -> Result<(Reply, Vec<u8>), PsError> {
        let wire = self.wire.as_mut();
        let wire = wire.ok_or_else(|| PsError::Lost("it is not connected".into()))?;
        wire.send(request, bytes)?;
        match wire.receive::<Reply>() {
            Ok(Some(frame)) => Ok((frame.message, frame.bytes)),
            Ok(None) => Err(PsError::Lost("it closed the connection".into())),
            Err(FrameProblem::Unproved) => {
                Err(PsError::Protocol(FrameProblem::Unproved.to_string()))
            }
            Err(why) => Err(PsError::Lost(why.to_string())),
        }
    }
}

/// The same where an answer needs no work.
fn hasty(options: &ClientOptions, within: Duration) -> ClientOptions {
    ClientOptions {
        answer_within: options.answer_within.min(within),
        ..options.clone()
    }
}

/// Connects to the first address of a name that answers.
fn connect(address: &str) -> io::Result<TcpStream> {
    let mut failed = io::Error::other("its name has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_WITHIN) {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// The error of an answer to something else.
pub(crate) fn unexpected(reply: &Reply) -> PsError {
    PsError::Protocol(format!(
        "an answer that does not fit the question: {reply:?}"
    ))
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
