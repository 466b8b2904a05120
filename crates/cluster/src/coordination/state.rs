//! One generation of workers as a state machine: times and events in, replies out. It knows no sockets, threads or clocks.
//!
//! Workers join until all are there; from then on each must be heard of within the lease. A *meeting* is a place where all workers
//! come with some bytes and go on with everybody's: a barrier is one without bytes. The first failure ends the generation: whoever
//! waits is answered with it, and whoever asks later, too. What comes after a generation is not decided here
//! ([`Coordination`](super::Coordination)).

mod barriers;
mod joining;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use self::barriers::{Arrival, KeyWaiter, Leaver};
use super::Failure;
use super::event::{Action, Actions, Connection, Event, Settings};
use super::message::{Hello, Refusal, Reply, Request, Seat, millis};

#[derive(Debug, Clone)]
struct Member {
    connection: Connection,
    incarnation: u64,
    data_address: SocketAddr,
    heard: Duration,
    /// How far its training is.
    progress: Option<u64>,
    group: i32,
    /// Whether others may come, as far as it is concerned.
    admits: bool,
    /// The question that its leaving was, once it has left.
    left: Option<u64>,
}

/// The state of the service.
#[derive(Debug, Clone)]
pub struct State {
    settings: Settings,
    /// When its workers could begin to join (the first of all: when it came), and how long they may.
    opened: Duration,
    join_within: Duration,
    /// The same of the first generation, in which a program may do what takes long before it joins.
    first_within: Duration,
    /// Connections of the generation before by members that had come new to a training which others had begun. Each hears of the end of
    /// that generation when it gets to where the others were, which may take as long as at first.
    comers: BTreeSet<Connection>,
    /// Workers that nobody waits for.
    gone: BTreeSet<usize>,
    members: BTreeMap<usize, Member>,
    /// Whether all have joined.
    complete: bool,
    /// Whether all have joined this generation or one before: from then on one that cannot take part is refused alone.
    has_met: bool,
    meetings: BTreeMap<String, BTreeMap<usize, Arrival>>,
    values: BTreeMap<String, Vec<u8>>,
    readers: Vec<KeyWaiter>,
    leavers: Vec<Leaver>,
    failure: Option<Failure>,
    /// What a worker said of another, which counts unless something is heard of that one itself before the time.
    suspicion: Option<(Duration, Failure)>,
    notes: Vec<String>,
    /// Notes that nobody was told.
    news: Vec<String>,
    last_event: Duration,
    next_report: Duration,
}

/// How often workers that have joined hear who is missing.
pub(super) const REPORT_EVERY: Duration = Duration::from_millis(500);
/// More notes about strangers tell nothing more.
const MOST_NOTES: usize = 8;

impl State {
    /// A service that nobody has joined; its time begins at zero.
    #[must_use]
    pub const fn new(settings: Settings) -> Self {
        Self {
            opened: Duration::ZERO,
            join_within: Duration::MAX,
            first_within: Duration::MAX,
            comers: BTreeSet::new(),
            gone: BTreeSet::new(),
            settings,
            members: BTreeMap::new(),
            complete: false,
            has_met: false,
            meetings: BTreeMap::new(),
            values: BTreeMap::new(),
            readers: Vec::new(),
            leavers: Vec::new(),
            failure: None,
            suspicion: None,
            notes: Vec::new(),
            news: Vec::new(),
            last_event: Duration::ZERO,
            next_report: Duration::ZERO,
        }
    }

    /// The generation after this one, which workers may join from `now` on.
    pub(super) fn next(&self, now: Duration) -> Self {
        let mut settings = self.settings.clone();
        settings.generation += 1;
        let within = settings.recovery.map(|recovery| recovery.within);
        Self {
            opened: now,
            join_within: within.unwrap_or(self.join_within),
            first_within: self.first_within,
            comers: self.comers_left(),
            gone: self.gone.clone(),
            has_met: self.has_met,
            last_event: now,
            next_report: now,
            ..Self::new(settings)
        }
    }

    /// A connection of an ended generation is closed: its process is gone, or has said hello on another. From then on a replacement has
    /// the usual time.
    pub(super) fn closed_before(&mut self, now: Duration, connection: Connection) {
        if self.comers.remove(&connection) && self.comers.is_empty() {
            self.opened = now;
        }
    }

    /// Takes in what happened at `now` and says what is to be sent. Must be called with [`Event::Tick`] several times a lease.
    pub fn on(&mut self, now: Duration, event: Event) -> Vec<Action> {
        self.forgive_own_pause(now);
        let mut actions = Actions(Vec::new());
        match event {
            Event::Message {
                connection,
                from,
                request: Request::Hello(hello),
                ..
            } => self.hello(now, connection, from, &hello, &mut actions),
            Event::Message {
                connection,
                request,
                bytes,
                ..
            } => {
                if let Some(worker) = self.worker_of(connection) {
                    self.request(now, worker, request, bytes, &mut actions);
                }
            }
            Event::Closed { connection, why } => self.closed(now, connection, &why, &mut actions),
            Event::Gone { worker } => self.give_up(now, worker, &mut actions),
            Event::Tick => {}
        }
        self.time(now, &mut actions);
        actions.0
    }

    /// The first failure.
    #[must_use]
    pub const fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// The number of this generation.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.settings.generation
    }

    /// Whether all have joined once, now or before.
    pub(super) const fn has_met(&self) -> bool {
        self.has_met
    }

    /// Whether all have joined.
    pub(super) const fn is_complete(&self) -> bool {
        self.complete
    }

    /// Whether all members go on when another worker comes.
    pub(super) fn admits(&self) -> bool {
        self.members.values().all(|member| member.admits)
    }

    /// When workers could begin to join.
    pub(super) const fn opened(&self) -> Duration {
        self.opened
    }

    /// The process group of a member; 0 where it is not known.
    pub(super) fn group_of(&self, worker: usize) -> i32 {
        self.members.get(&worker).map_or(0, |member| member.group)
    }

    /// The members' connections.
    pub(super) fn connections(&self) -> impl Iterator<Item = Connection> + '_ {
        self.members.values().map(|member| member.connection)
    }

    /// Whether this connection is a member's.
    pub(super) fn has(&self, connection: Connection) -> bool {
        self.worker_of(connection).is_some()
    }

    /// Whether a worker that comes now would be one more than there are, and not another with the number of one that is there.
    pub(super) fn has_room_for(&self, hello: &Hello) -> bool {
        hello.job == self.settings.job
            && hello.worker < self.settings.workers
            && !self.members.contains_key(&hello.worker)
            && self.difference(hello).is_none()
    }

    /// What was noted about strangers since it was asked last.
    pub(super) fn take_news(&mut self) -> Vec<String> {
        std::mem::take(&mut self.news)
    }

    /// Takes over who is waited for no more.
    pub(super) fn wait_for(&mut self, worker: usize) {
        self.gone.remove(&worker);
    }

    /// Ends this generation since another worker has come.
    pub(super) fn grow(&mut self, worker: usize) -> Vec<Action> {
        let mut actions = Actions(Vec::new());
        self.lose(
            worker,
            "has come and takes part from here on".into(),
            &mut actions,
        );
        actions.0
    }

    /// Whether a worker has done its work and left.
    pub(super) fn is_ending(&self) -> bool {
        self.members.values().any(|member| member.left.is_some())
    }

    /// Whether all workers have joined and left again.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.complete && self.members.values().all(|member| member.left.is_some())
    }

    /// A service that slept (a stopped process, a suspended machine) has heard nobody meanwhile, and blames nobody for it.
    fn forgive_own_pause(&mut self, now: Duration) {
        let pause = now.saturating_sub(self.last_event);
        if pause > self.settings.lease / 2 {
            for member in self.members.values_mut() {
                member.heard += pause;
            }
        }
        self.last_event = now;
    }

    fn worker_of(&self, connection: Connection) -> Option<usize> {
        let mut members = self.members.iter();
        let found = members.find(|(_, member)| member.connection == connection);
        found.map(|(worker, _)| *worker)
    }

    fn hello(
        &mut self,
        now: Duration,
        connection: Connection,
        from: Option<IpAddr>,
        hello: &Hello,
        actions: &mut Actions,
    ) {
        if let Some(refusal) = self.refusal(hello) {
            self.note(hello, from, &refusal);
            actions.send(connection, Reply::Refused(refusal));
            return;
        }
        if self.settings.version.is_empty() {
            self.settings.version.clone_from(&hello.version);
        }
        if let Some(failure) = &self.failure {
            actions.send(connection, Reply::Failed(failure.clone()));
            return;
        }
        if !self.has_met && self.members.is_empty() {
            // Before, nobody waited: a program may do what takes long before it joins.
            let within = Duration::from_millis(hello.within_ms);
            self.opened = now;
            self.join_within = self.settings.join_within.unwrap_or(within);
            self.first_within = self.join_within;
        }
        let mut data_address = hello.data_address;
        if let (true, Some(from)) = (data_address.ip().is_unspecified(), from) {
            data_address.set_ip(from);
        }
        let member = Member {
            connection,
            incarnation: hello.incarnation,
            data_address,
            heard: now,
            progress: hello.progress,
            group: hello.group,
            admits: false,
            left: None,
        };
        self.gone.remove(&hello.worker);
        self.members.insert(hello.worker, member);
        if let Some(reason) = self.difference(hello) {
            self.fail(hello.worker, reason, actions);
        } else if self.missing().is_empty() {
            self.go_without(now, actions);
        } else {
            actions.send(connection, self.waiting());
        }
    }

    fn refusal(&self, hello: &Hello) -> Option<Refusal> {
        let Settings { workers, job, .. } = &self.settings;
        if hello.job != *job {
            return Some(Refusal::OtherJob { job: job.clone() });
        }
        if hello.worker >= *workers {
            return Some(Refusal::NoSuchWorker { workers: *workers });
        }
        let taken = self.members.get(&hello.worker);
        // Before all are there a worker that lost its connection may connect again.
        let taken = taken.filter(|member| self.complete || member.incarnation != hello.incarnation);
        let Some(taken) = taken else {
            // Those who have trained together go on without it.
            let differs = self.difference(hello).filter(|_| self.has_met);
            return differs.map(|how| Refusal::Differs { how });
        };
        let (by, generation) = (taken.data_address, self.settings.generation);
        Some(match hello.generation {
            0 => Refusal::Taken { by },
            _ => Refusal::Stale { by, generation },
        })
    }

    fn note(&mut self, hello: &Hello, from: Option<IpAddr>, refusal: &Refusal) {
        let from = from.map_or_else(|| "this process".into(), |from| from.to_string());
        let why = match refusal {
            Refusal::OtherJob { job } => format!("of job {:?}, not {job:?}", hello.job),
            Refusal::Taken { by } => format!("while the one at {by} is there"),
            Refusal::Stale { by, generation } => format!(
                "of generation {}, whose place the one at {by} has in generation {generation}",
                hello.generation
            ),
            Refusal::NoSuchWorker { workers } => format!("of {workers}, counted from 0"),
            Refusal::Differs { how } => format!("that {how}"),
        };
        let note = format!(
            "worker {} from {from} was refused: it is one {why}",
            hello.worker
        );
        if !self.notes.contains(&note) && self.notes.len() < MOST_NOTES {
            self.news.push(note.clone());
            self.notes.push(note);
        }
    }

    /// The workers that are waited for.
    fn missing(&self) -> Vec<usize> {
        let is_missing =
            |worker: &usize| !self.members.contains_key(worker) && !self.gone.contains(worker);
        (0..self.settings.workers).filter(is_missing).collect()
    }

    /// What a worker has other than the rest, where that can never work.
    fn difference(&self, hello: &Hello) -> Option<String> {
        let Settings {
            workers, version, ..
        } = &self.settings;
        if hello.workers != *workers {
            return Some(format!(
                "counts {} workers, the coordinator counts {workers}: give both the same cluster",
                hello.workers
            ));
        }
        (hello.version != *version).then(|| {
            format!(
                "has version {}, the others have {version}: install the same on all",
                hello.version
            )
        })
    }

    fn waiting(&self) -> Reply {
        Reply::Waiting {
            missing: self.missing(),
            notes: self.notes.clone(),
        }
    }

    fn welcome(&mut self, now: Duration, actions: &mut Actions) {
        self.complete = true;
        self.has_met = true;
        let seat = |(&worker, member): (&usize, &Member)| Seat {
            worker,
            address: member.data_address,
            progress: member.progress,
        };
        let seats: Vec<Seat> = self.members.iter().map(seat).collect();
        for member in self.members.values_mut() {
            member.heard = now;
            let reply = Reply::Welcome {
                generation: self.settings.generation,
                seats: seats.clone(),
                lease_ms: millis(self.settings.lease),
            };
            actions.send(member.connection, reply);
        }
    }

    fn request(
        &mut self,
        now: Duration,
        worker: usize,
        request: Request,
        bytes: Vec<u8>,
        actions: &mut Actions,
    ) {
        let Some(member) = self.members.get_mut(&worker) else {
            return;
        };
        member.heard = now;
        let connection = member.connection;
        if request == Request::Heartbeat {
            return actions.send(connection, Reply::Pong);
        }
        if !self.complete {
            return;
        }
        if let Some(failure) = &self.failure {
            return actions.send(connection, Reply::Failed(failure.clone()));
        }
        let until = |within_ms| now.saturating_add(Duration::from_millis(within_ms));
        match request {
            Request::Hello(_) | Request::Heartbeat => {}
            Request::Meet {
                id,
                name,
                within_ms,
            } => {
                let until = until(within_ms);
                self.meet(worker, &name, Arrival { id, bytes, until }, actions);
            }
            Request::Set { id, key } => {
                actions.send(connection, Reply::Done { id });
                self.set(key, bytes, actions);
            }
            Request::Get { id, key, within_ms } => {
                let until = until(within_ms);
                let reader = KeyWaiter {
                    worker,
                    id,
                    key,
                    until,
                };
                self.get(reader, actions);
            }
            Request::Admit { id, comers } => {
                member.admits = comers;
                actions.send(connection, Reply::Done { id });
            }
            Request::Fail { reason } => self.fail(worker, reason, actions),
            Request::Lost {
                worker: lost,
                reason,
            } => self.suspect(now, worker, lost, &reason),
            Request::Leave { id, within_ms } => self.leave(worker, id, until(within_ms), actions),
        }
    }

    /// Another worker lost this one: often it is dead, which is about to be heard of it itself and then counts, and sometimes it
    /// only ended because of a third.
    fn suspect(&mut self, now: Duration, by: usize, lost: usize, reason: &str) {
        let failure = Failure {
            worker: lost,
            reason: format!("was lost by worker {by}: {reason}"),
            next: None,
        };
        if self.suspicion.is_none() && lost < self.settings.workers {
            self.suspicion = Some((now + self.settings.lease / 10, failure));
        }
    }

    fn closed(&mut self, now: Duration, connection: Connection, why: &str, actions: &mut Actions) {
        let Some(worker) = self.worker_of(connection) else {
            return;
        };
        if !self.complete {
            self.members.remove(&worker);
            if self.gone.contains(&worker) {
                self.go_without(now, actions);
            }
        } else if self.members[&worker].left.is_none() {
            let reason = format!("is gone: {why}");
            self.lose(worker, reason, actions);
        }
    }

    /// What follows from the time alone.
    fn time(&mut self, now: Duration, actions: &mut Actions) {
        if self.failure.is_some() {
            return;
        }
        if !self.complete {
            return self.time_of_joining(now, actions);
        }
        if let Some((_, failure)) = self.suspicion.take_if(|(until, _)| *until <= now) {
            return self.lose(failure.worker, failure.reason, actions);
        }
        let lease = self.settings.lease;
        let silent = |member: &Member| now.saturating_sub(member.heard) > lease;
        let mut members = self.members.iter();
        let silent = members.find(|(_, member)| member.left.is_none() && silent(member));
        if let Some((&worker, member)) = silent {
            let silence = now.saturating_sub(member.heard).as_secs_f64();
            let reason = format!(
                "has not been heard of for {silence:.1} s (the lease is {} s): it is stopped, starved or cut off",
                lease.as_secs_f64()
            );
            return self.lose(worker, reason, actions);
        }
        self.end_late_meetings(now, actions);
        self.end_late_readers(now, actions);
        self.answer_late_leavers(now, actions);
    }

    /// A worker is lost: the others may go on without it in the next generation, unless one has done its work already and will not
    /// take part in that.
    fn lose(&mut self, worker: usize, reason: String, actions: &mut Actions) {
        let goes_on = self.settings.recovery.is_some() && !self.is_ending();
        let next = goes_on.then_some(self.settings.generation + 1);
        self.end(worker, reason, next, actions);
    }

    /// A worker cannot go on, and would not when it was started again.
    fn fail(&mut self, worker: usize, reason: String, actions: &mut Actions) {
        self.end(worker, reason, None, actions);
    }

    fn end(&mut self, worker: usize, reason: String, next: Option<u64>, actions: &mut Actions) {
        if self.failure.is_some() {
            return;
        }
        let failure = Failure {
            worker,
            reason,
            next,
        };
        for member in self.members.values() {
            actions.send(member.connection, Reply::Failed(failure.clone()));
        }
        self.failure = Some(failure);
        self.meetings.clear();
        self.readers.clear();
    }

    fn reply(&self, worker: usize, reply: Reply, actions: &mut Actions) {
        if let Some(member) = self.members.get(&worker) {
            actions.send(member.connection, reply);
        }
    }
}
