//! Generations of workers, one after the other, as a state machine.
//!
//! A generation ends with its first failure. Where a worker was lost the next one begins at once: its members are the members of the
//! one before that come again, on new connections, and replacements, under the numbers of the lost ones. A worker that still speaks
//! on a connection of an ended generation gets its failure as the answer and nothing else: in this way a worker that slept learns that
//! the others went on without it.
//!
//! A worker that comes to a generation which runs without it ends that generation, too, so it waits in the *lobby* until all members admit
//! it: only where they can go on from in the next generation, which is in `fit` and nowhere else.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use super::Failure;
use super::event::{Action, Connection, Event, Settings};
use super::message::{Hello, Reply, Request};
use super::state::{REPORT_EVERY, State};

/// The coordination of a training.
#[derive(Debug, Clone)]
pub struct Coordination {
    current: State,
    /// Connections of ended generations, with their ends.
    past: BTreeMap<Connection, Failure>,
    /// Workers that take part as soon as the current generation has had some time and admits them.
    lobby: BTreeMap<Connection, (Option<IpAddr>, Hello)>,
    /// When those in the lobby hear next that they are.
    next_report: Duration,
    lease: Duration,
    elastic: bool,
    lost: Vec<Lost>,
}

/// A worker that was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// Its number, and what happened to it.
    pub failure: Failure,
    /// Its process group; 0 where it is not known.
    pub group: i32,
}

impl Coordination {
    /// A service that nobody has joined; its time begins at zero.
    #[must_use]
    pub const fn new(settings: Settings) -> Self {
        Self {
            lease: settings.lease,
            elastic: settings.recovery.is_some(),
            current: State::new(settings),
            past: BTreeMap::new(),
            lobby: BTreeMap::new(),
            next_report: Duration::ZERO,
            lost: Vec::new(),
        }
    }

    /// Whether all workers have joined and left again.
    #[cfg(feature = "etcd")]
    pub(super) fn is_over(&self) -> bool {
        self.current.is_over()
    }

    /// Takes in what happened at `now` and says what is to be sent. Must be called with [`Event::Tick`] several times a lease.
    pub fn on(&mut self, now: Duration, event: Event) -> Vec<Action> {
        let mut actions = match event {
            Event::Message {
                connection,
                ref request,
                ..
            } if self.past.contains_key(&connection) => self.answer_past(connection, request),
            Event::Message {
                connection,
                from,
                request: Request::Hello(hello),
                ..
            } if self.may_grow_for(&hello) => {
                self.lobby.insert(connection, (from, hello));
                vec![in_lobby(connection)]
            }
            Event::Closed { connection, .. } if !self.current.has(connection) => {
                self.past.remove(&connection);
                self.lobby.remove(&connection);
                self.current.closed_before(now, connection);
                Vec::new()
            }
            event => self.current.on(now, event),
        };
        actions.extend(self.let_in(now));
        actions.extend(self.go_on(now));
        actions.extend(self.send_away());
        actions.extend(self.tell_lobby(now));
        actions
    }

    /// Whether all workers have joined once.
    pub(super) const fn has_met(&self) -> bool {
        self.current.has_met()
    }

    /// The failure that ended the training, if one did.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        self.current.failure()
    }

    /// The number of the current generation.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.current.generation()
    }

    /// Workers that were lost since this was asked last, one for each generation that ended.
    pub fn take_lost(&mut self) -> Vec<Lost> {
        std::mem::take(&mut self.lost)
    }

    /// Who was refused since this was asked last, and why.
    pub fn take_news(&mut self) -> Vec<String> {
        self.current.take_news()
    }

    fn answer_past(&self, connection: Connection, request: &Request) -> Vec<Action> {
        let reply = match (request, self.past.get(&connection)) {
            (Request::Heartbeat, _) => Reply::Pong,
            (_, Some(failure)) => Reply::Failed(failure.clone()),
            (_, None) => return Vec::new(),
        };
        vec![Action {
            to: connection,
            reply,
            bytes: Vec::new(),
        }]
    }

    /// Whether a worker comes to a generation that runs without it.
    fn may_grow_for(&self, hello: &Hello) -> bool {
        self.elastic
            && self.current.is_complete()
            && self.current.failure().is_none()
            && self.current.has_room_for(hello)
    }

    /// Ends the current generation for those who wait to take part, where all members admit them, and once it has lasted for a lease: a
    /// worker that comes and goes must not keep the others from their work.
    fn let_in(&mut self, now: Duration) -> Vec<Action> {
        if self.current.is_ending() {
            return Vec::new();
        }
        let is_time = now.saturating_sub(self.current.opened()) >= self.lease;
        let Some((_, hello)) = self.lobby.values().next() else {
            return Vec::new();
        };
        let is_running = self.current.is_complete() && self.current.failure().is_none();
        if !is_time || !is_running || !self.current.admits() {
            return Vec::new();
        }
        let worker = hello.worker;
        self.current.grow(worker)
    }

    /// Lets those who wait know now and then that somebody is there.
    fn tell_lobby(&mut self, now: Duration) -> Vec<Action> {
        if now < self.next_report {
            return Vec::new();
        }
        self.next_report = now + REPORT_EVERY;
        self.lobby.keys().copied().map(in_lobby).collect()
    }

    /// Answers those who wait for a next generation that does not come: the training has failed, or workers have done their work.
    fn send_away(&mut self) -> Vec<Action> {
        let failure = self.current.failure().cloned();
        if failure.is_none() && !self.current.is_ending() {
            return Vec::new();
        }
        let answer = |(to, (_, hello)): (Connection, (Option<IpAddr>, Hello))| Action {
            to,
            reply: Reply::Failed(failure.clone().unwrap_or_else(|| Failure {
                worker: hello.worker,
                reason: "has come when others had done their work".into(),
                next: None,
            })),
            bytes: Vec::new(),
        };
        std::mem::take(&mut self.lobby)
            .into_iter()
            .map(answer)
            .collect()
    }

    /// Begins the next generation where the current one ended with one to come.
    fn go_on(&mut self, now: Duration) -> Vec<Action> {
        let Some(failure) = self
            .current
            .failure()
            .filter(|failure| failure.next.is_some())
        else {
            return Vec::new();
        };
        let failure = failure.clone();
        let ended = self.current.connections();
        self.past
            .extend(ended.map(|connection| (connection, failure.clone())));
        let mut comers = self.lobby.values();
        if !comers.any(|(_, hello)| hello.worker == failure.worker) {
            let group = self.current.group_of(failure.worker);
            self.lost.push(Lost { failure, group });
        }
        self.current = self.current.next(now);
        let mut actions = Vec::new();
        for (connection, (from, hello)) in std::mem::take(&mut self.lobby) {
            self.current.wait_for(hello.worker);
            let request = Request::Hello(hello);
            let bytes = Vec::new();
            actions.extend(self.current.on(
                now,
                Event::Message {
                    connection,
                    from,
                    request,
                    bytes,
                },
            ));
        }
        actions
    }
}

const fn in_lobby(to: Connection) -> Action {
    Action {
        to,
        reply: Reply::Lobby,
        bytes: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::super::event::Recovery;
    use super::*;

    const FIRST_WITHIN: Duration = Duration::from_secs(300);
    const WITHIN: Duration = Duration::from_secs(60);

    fn comes(
        all: &mut Coordination,
        second: u64,
        connection: Connection,
        worker: usize,
        progress: Option<u64>,
    ) {
        let hello = Hello {
            job: String::new(),
            version: String::new(),
            worker,
            workers: 3,
            incarnation: 0,
            nonce: 0,
            data_address: SocketAddr::from(([127, 0, 0, 1], 1)),
            generation: 0,
            progress,
            within_ms: FIRST_WITHIN.as_millis() as u64,
            group: 0,
        };
        let event = Event::Message {
            connection,
            from: None,
            request: Request::Hello(hello),
            bytes: Vec::new(),
        };
        all.on(seconds(second), event);
    }

    /// Three workers of which one was lost and has come new, and another is lost before the new one gets to `fit`, after a minute: the
    /// connection of the new one is 5.
    fn second_loss() -> Coordination {
        let mut all = Coordination::new(Settings {
            workers: 3,
            job: String::new(),
            version: String::new(),
            generation: 1,
            lease: Duration::MAX,
            join_within: None,
            recovery: Some(Recovery {
                within: WITHIN,
                least: 3,
            }),
        });
        let why = String::new;
        for worker in 0..3 {
            comes(&mut all, 0, worker as u64, worker, None);
        }
        all.on(
            seconds(1),
            Event::Closed {
                connection: 2,
                why: why(),
            },
        );
        comes(&mut all, 2, 3, 0, Some(7));
        comes(&mut all, 2, 4, 1, Some(7));
        comes(&mut all, 2, 5, 2, None);
        assert_eq!((all.generation(), all.current.is_complete()), (2, true));
        all.on(
            seconds(60),
            Event::Closed {
                connection: 4,
                why: why(),
            },
        );
        comes(&mut all, 61, 6, 0, Some(7));
        comes(&mut all, 61, 7, 1, None);
        all.on(seconds(61) + WITHIN, Event::Tick);
        assert_eq!((all.generation(), all.failure()), (3, None));
        all
    }

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_second_loss_waits_for_who_has_not_come_to_fit_as_long_as_at_first() {
        let mut all = second_loss();
        comes(&mut all, 200, 8, 2, None);
        assert!(all.current.is_complete());
        let mut all = second_loss();
        all.on(seconds(60) + FIRST_WITHIN, Event::Tick);
        let failure = all.failure().unwrap();
        assert_eq!(
            (failure.worker, &*failure.reason),
            (2, "did not join within 300 s")
        );
    }

    #[test]
    fn a_replacement_of_who_is_gone_too_has_the_usual_time() {
        let mut all = second_loss();
        let why = String::new();
        all.on(seconds(130), Event::Closed { connection: 5, why });
        all.on(seconds(129) + WITHIN, Event::Tick);
        assert_eq!(all.failure(), None);
        all.on(seconds(130) + WITHIN, Event::Tick);
        assert_eq!(all.failure().unwrap().reason, "did not join within 60 s");
    }
}
