//! A worker's replica of the coordination: what it writes to the log, and what it makes of it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::super::Failure;
use super::super::event::{Action, Connection, Event};
use super::super::generations::Coordination;
use super::super::message::{Reply, Request};
use super::super::service::{Input, Replies, Status, Tell, note, tick};
use super::entry::{self, Happened};
use super::{CLOCK, HOLDER, NoAnswer, RETRY, Run};

/// One connection of this process.
struct Own {
    /// The number that all know it by; none until etcd has given it one.
    number: Option<Connection>,
    replies: Replies,
    /// The worker that it is of, once it has said so.
    worker: usize,
    /// Entries written.
    written: u64,
    /// Whether it says nothing any more, and waits to read why.
    is_silent: bool,
}

/// What is to be written, in order.
enum Unwritten {
    Open {
        connection: u64,
    },
    Say {
        connection: u64,
        request: Request,
        bytes: Vec<u8>,
    },
    Close {
        connection: u64,
        why: String,
    },
}

pub(super) struct Replica {
    run: Run,
    state: Coordination,
    /// Connections that said hello and have not ended, of all processes.
    opened: BTreeSet<Connection>,
    now: Duration,
    /// What the time of the job was, as far as this process knew, and when that was by its own clock.
    time: Duration,
    since: Instant,
    /// By the number within this process.
    own: BTreeMap<u64, Own>,
    pending: VecDeque<Unwritten>,
    holds_clock: bool,
    ticks: u64,
    next_claim: Instant,
}

impl Replica {
    pub(super) fn new(run: Run) -> Self {
        Self {
            state: Coordination::new(run.settings.clone()),
            time: run.time,
            run,
            opened: BTreeSet::new(),
            now: Duration::ZERO,
            since: Instant::now(),
            own: BTreeMap::new(),
            pending: VecDeque::new(),
            holds_clock: false,
            ticks: 0,
            next_claim: Instant::now(),
        }
    }

    pub(super) fn serve(
        &mut self,
        inputs: &Receiver<Input>,
        status: &Mutex<Status>,
        mut tell: Tell,
    ) {
        let tick = tick(self.run.settings.lease);
        let mut next_tick = Instant::now();
        loop {
            let left = next_tick.saturating_duration_since(Instant::now());
            let left = if self.pending.is_empty() {
                left
            } else {
                left.min(RETRY)
            };
            match inputs.recv_timeout(left) {
                Ok(input) => {
                    if self.take(input) {
                        return self.finish();
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.write_pending();
            if Instant::now() >= next_tick {
                next_tick = Instant::now() + tick;
                // What fails now is tried again at the next tick.
                let _ = self.tick();
            }
            note(&mut self.state, status, &mut tell);
        }
    }

    /// Takes in what reached this process; whether its last connection has ended.
    fn take(&mut self, input: Input) -> bool {
        match input {
            Input::Opened {
                connection,
                replies,
            } => {
                let own = Own {
                    number: None,
                    replies,
                    worker: 0,
                    written: 0,
                    is_silent: false,
                };
                self.own.insert(connection, own);
                self.pending.push_back(Unwritten::Open { connection });
            }
            // That this process lives is what its lease says.
            Input::Message {
                connection,
                request: Request::Heartbeat,
                ..
            } => self.deliver(connection, Reply::Pong, Vec::new()),
            Input::Message {
                connection,
                request,
                bytes,
                ..
            } => {
                if let (Request::Hello(hello), Some(own)) =
                    (&request, self.own.get_mut(&connection))
                {
                    own.worker = hello.worker;
                }
                self.pending.push_back(Unwritten::Say {
                    connection,
                    request,
                    bytes,
                });
            }
            Input::Closed { connection, why } => {
                self.pending.push_back(Unwritten::Close { connection, why });
                self.write_pending();
                self.own.remove(&connection);
                return self.own.is_empty();
            }
            Input::Written { key, value } => self.apply(&key, &value),
            Input::Unreadable { why } => self.give_up(&why),
            Input::ClockIsFree => self.next_claim = Instant::now(),
            // Only a service that others connect to has these.
            Input::Gone { .. } | Input::Unproven { .. } => {}
        }
        false
    }

    fn deliver(&self, connection: u64, reply: Reply, bytes: Vec<u8>) {
        if let Some(Own {
            replies: Replies::Memory(to),
            ..
        }) = self.own.get(&connection)
        {
            let _ = to.send((reply, bytes));
        }
    }

    fn apply(&mut self, key: &str, value: &[u8]) {
        let Some(happened) = entry::read(value, key, self.run.secret.as_ref()) else {
            return;
        };
        self.now = self.now.max(happened.at);
        if self.now > self.time() {
            (self.time, self.since) = (self.now, Instant::now());
        }
        let actions = apply(&mut self.state, &mut self.opened, self.now, happened.event);
        for Action { to, reply, bytes } in actions {
            let mut own = self.own.iter();
            let own = own.find(|(_, own)| own.number == Some(to));
            if let Some((&connection, _)) = own {
                self.deliver(connection, reply, bytes);
            }
        }
    }

    /// The time of the job, as far as this process knows it.
    fn time(&self) -> Duration {
        self.time + self.since.elapsed()
    }

    fn write_pending(&mut self) {
        while let Some(first) = self.pending.front() {
            let done = match first {
                Unwritten::Open { connection } => self.open(*connection),
                Unwritten::Say {
                    connection,
                    request,
                    bytes,
                } => {
                    let (request, bytes) = (request.clone(), bytes.clone());
                    self.say(*connection, request, bytes)
                }
                Unwritten::Close { connection, why } => self.close(*connection, why.clone()),
            };
            if let Err(no_answer) = done {
                if no_answer.lasts() {
                    self.give_up(&no_answer.why);
                }
                return;
            }
            self.pending.pop_front();
        }
    }

    /// Ends the part of this process, as trying again is in vain.
    fn give_up(&mut self, why: &str) {
        self.pending.clear();
        for (&connection, own) in &self.own {
            let failure = Failure {
                worker: own.worker,
                reason: format!("cannot use etcd any more: {why}"),
                next: None,
            };
            self.deliver(connection, Reply::Failed(failure), Vec::new());
        }
    }

    fn open(&mut self, connection: u64) -> Result<(), NoAnswer> {
        if !self.own.contains_key(&connection) {
            return Ok(());
        }
        let (etcd, lease) = (&self.run.etcd, self.run.lease());
        // The key cannot have the number, which is the revision of its writing, so it is written first.
        let place = format!("place/{lease}/{connection}");
        let number = etcd.transact(&[], &[etcd.put(&place, b"", lease)])?;
        let number = number.unwrap_or(0);
        let conditions = [
            etcd.is_of("run", self.run.began),
            etcd.is_of(&place, number),
        ];
        let member = etcd.put(&format!("member/{number}"), b"", lease);
        match etcd.transact(&conditions, &[member])? {
            Some(_) => {
                if let Some(own) = self.own.get_mut(&connection) {
                    own.number = Some(number as u64);
                }
            }
            // The reader sees that its replies have ended.
            None => drop(self.own.remove(&connection)),
        }
        Ok(())
    }

    fn say(&mut self, connection: u64, request: Request, bytes: Vec<u8>) -> Result<(), NoAnswer> {
        let at = self.time();
        let Some(own) = self.own.get_mut(&connection) else {
            return Ok(());
        };
        let Some(number) = own.number.filter(|_| !own.is_silent) else {
            return Ok(());
        };
        own.written += 1;
        let (key, member) = (
            format!("log/{number}/{}", own.written),
            format!("member/{number}"),
        );
        let event = Event::Message {
            connection: number,
            from: None,
            request,
            bytes,
        };
        let written = self.append(&key, Some(&member), &Happened { at, event });
        match written {
            Ok(true) => {}
            // Its lease is over. The log says what follows from that; it has not been read so far.
            Ok(false) if self.is_of_run()? => {
                if let Some(own) = self.own.get_mut(&connection) {
                    own.is_silent = true;
                }
            }
            // Its run is.
            Ok(false) => drop(self.own.remove(&connection)),
            Err(_) => {
                if let Some(own) = self.own.get_mut(&connection) {
                    own.written -= 1;
                }
            }
        }
        written.map(drop)
    }

    /// Whether the run that this process is in is the job's.
    fn is_of_run(&self) -> Result<bool, NoAnswer> {
        let run = self.run.etcd.get("run")?;
        Ok(run.is_some_and(|run| run.revision == self.run.began))
    }

    fn close(&mut self, connection: u64, why: String) -> Result<(), NoAnswer> {
        let number = self.own.get(&connection).and_then(|own| own.number);
        match number {
            Some(number) => self.end(number, why).map(drop),
            None => Ok(()),
        }
    }

    /// Writes that a connection ended, once.
    fn end(&self, connection: Connection, why: String) -> Result<bool, NoAnswer> {
        let event = Event::Closed { connection, why };
        let at = self.time();
        self.append(
            &format!("log/end/{connection}"),
            None,
            &Happened { at, event },
        )
    }

    /// Appends to the log; false where the run is another, or the member is gone. What was written before is not written again.
    fn append(
        &self,
        key: &str,
        member: Option<&str>,
        happened: &Happened,
    ) -> Result<bool, NoAnswer> {
        let etcd = &self.run.etcd;
        let Some(value) = entry::write(happened, key, self.run.secret.as_ref()) else {
            return Ok(true);
        };
        let mut conditions = vec![etcd.is_of("run", self.run.began), etcd.is_of(key, 0)];
        if let Some(member) = member {
            conditions.push(etcd.is_there(member));
        }
        let put = etcd.put(key, &value, 0);
        if etcd.transact(&conditions, &[put])?.is_some() {
            return Ok(true);
        }
        // An answer that was lost: it is there.
        Ok(etcd.get(key)?.is_some())
    }

    fn tick(&mut self) -> Result<(), NoAnswer> {
        if Instant::now() >= self.next_claim {
            self.next_claim = Instant::now() + self.run.settings.lease / 2;
            match self.holds_clock {
                true => self.tell_time()?,
                false => self.claim_clock()?,
            }
        }
        if !self.holds_clock {
            return Ok(());
        }
        let at = self.time();
        let (mut state, mut opened) = (self.state.clone(), self.opened.clone());
        if !apply(&mut state, &mut opened, at, Event::Tick).is_empty() {
            self.ticks += 1;
            let key = format!("log/tick/{}/{}", self.run.lease(), self.ticks);
            let event = Event::Tick;
            self.holds_clock = self.append(&key, Some(HOLDER), &Happened { at, event })?;
        }
        let members = self.run.etcd.list("member/", 0, true)?.entries;
        let members: BTreeSet<Connection> = members
            .iter()
            .filter_map(|entry| entry.key.strip_prefix("member/")?.parse().ok())
            .collect();
        for gone in self
            .opened
            .difference(&members)
            .copied()
            .collect::<Vec<_>>()
        {
            self.end(gone, "its process is gone, or cut off from etcd".into())?;
        }
        Ok(())
    }

    /// Takes the clock if nobody has it, and goes on with the time it was.
    fn claim_clock(&mut self) -> Result<(), NoAnswer> {
        let etcd = &self.run.etcd;
        let holder = etcd.put(HOLDER, b"", self.run.lease());
        let taken = etcd.transact(&[etcd.is_of(HOLDER, 0)], &[holder])?;
        self.holds_clock = taken.is_some();
        Ok(())
    }

    /// For workers that come later.
    fn tell_time(&self) -> Result<(), NoAnswer> {
        let (etcd, time) = (&self.run.etcd, self.time().as_millis() as u64);
        let put = etcd.put(CLOCK, &time.to_le_bytes(), 0);
        etcd.transact(&[etcd.is_there(HOLDER)], &[put]).map(drop)
    }

    /// Ends the lease of this process; the last one leaves nothing behind.
    pub(super) fn clean_up(&self) {
        let etcd = &self.run.etcd;
        // Where etcd does not answer, the lease ends by itself, and who comes next begins another run.
        let _ = etcd.revoke(self.run.lease());
        if etcd
            .list("process/", 0, true)
            .is_ok_and(|left| left.entries.is_empty())
        {
            let all = ["log/", "member/", "clock/", "run"].map(|start| etcd.delete(start));
            let _ = etcd.transact(&[etcd.is_of("run", self.run.began)], &all);
        }
    }

    fn finish(&mut self) {
        self.write_pending();
    }
}

/// Applies what happened, after a sign of life of every open connection: whether one lives is what etcd's leases say.
pub(super) fn apply(
    state: &mut Coordination,
    opened: &mut BTreeSet<Connection>,
    now: Duration,
    event: Event,
) -> Vec<Action> {
    let mut actions = Vec::new();
    for &connection in opened.iter() {
        let heartbeat = Event::Message {
            connection,
            from: None,
            request: Request::Heartbeat,
            bytes: Vec::new(),
        };
        actions.extend(state.on(now, heartbeat));
    }
    match &event {
        Event::Message {
            connection,
            request: Request::Hello(_),
            ..
        } => drop(opened.insert(*connection)),
        Event::Closed { connection, .. } => drop(opened.remove(connection)),
        _ => {}
    }
    actions.extend(state.on(now, event));
    actions.retain(|action| action.reply != Reply::Pong);
    actions
}
