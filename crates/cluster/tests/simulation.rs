//! The coordination service's state machine with simulated workers, network and clock: thousands of seeds, each a training with
//! delays, deaths, stops, slow workers and pauses of the service itself. What must hold is checked after every event.

#[allow(dead_code, reason = "generations use all of it")]
#[path = "generations/random.rs"]
mod random;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::net::SocketAddr;
use std::time::Duration;

use phalanx_cluster::Failure;
use phalanx_cluster::coordination::{Action, Event, Hello, Reply, Request, Settings, State};

use self::random::Random;

const LEASE: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(100);
const HEARTBEAT: Duration = Duration::from_millis(200);
/// Slower than any answer that is on its way.
const WAITS: Duration = Duration::from_secs(4);
const SEEDS: u64 = 1000;

/// What is on its way.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Coming {
    Tick,
    /// A worker does its next step.
    Act(usize),
    Heartbeat(usize),
    Die(usize),
    Stop(usize),
    ToService(usize, Sent),
    ToWorker(usize, Received),
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Sent {
    Hello,
    Heartbeat,
    Meet(u64, String, Vec<u8>),
    Set(u64, String, Vec<u8>),
    Get(u64, String),
    Leave(u64),
    Closed,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Received {
    Welcome,
    Met(u64, Vec<u8>),
    Done(u64),
    Value(u64, Vec<u8>),
    Late(u64),
    Left(u64),
    Failed(usize, String),
    Other,
}

/// What a worker does one after the other, the same for all.
#[derive(Debug, Clone, Copy)]
enum Op {
    Meet,
    SetOrGet,
}

#[derive(Debug, Default, Clone)]
struct Worker {
    welcomed: bool,
    step: usize,
    /// The question that waits for an answer, since when, and what a meeting must bring.
    asked: Option<(u64, Duration)>,
    questions: u64,
    gone: bool,
    stopped: bool,
    finished: bool,
    /// When the last message each way arrives: the network keeps the order.
    to_service: Duration,
    to_worker: Duration,
}

struct Simulation {
    random: Random,
    now: Duration,
    queue: BinaryHeap<Reverse<(Duration, u64, Coming)>>,
    sequence: u64,
    state: State,
    /// Until when the service sleeps; what comes waits.
    asleep: Duration,
    workers: Vec<Worker>,
    ops: Vec<Op>,
    /// Workers with a fault of their own, or that ended because of what they were told.
    blamable: BTreeSet<usize>,
    failure: Option<(usize, String)>,
    slow: Option<usize>,
    /// A worker that does fewer steps than the others.
    short: Option<usize>,
    trace: Vec<String>,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let count = 1 + random.below(5) as usize;
        let state = State::new(Settings {
            workers: count,
            job: "j".into(),
            version: "v".into(),
            generation: 1,
            lease: LEASE,
            join_within: Some(Duration::from_secs(60)),
            recovery: None,
        });
        let ops = (0..random.below(8)).map(|_| {
            if random.below(2) == 0 {
                Op::Meet
            } else {
                Op::SetOrGet
            }
        });
        let ops = ops.collect();
        let mut simulation = Self {
            random,
            now: Duration::ZERO,
            queue: BinaryHeap::new(),
            sequence: 0,
            state,
            asleep: Duration::ZERO,
            workers: vec![Worker::default(); count],
            ops,
            blamable: BTreeSet::new(),
            failure: None,
            slow: None,
            short: None,
            trace: Vec::new(),
        };
        simulation.start();
        simulation
    }

    /// The first events: everybody starts some time, and in two thirds of the seeds something goes wrong.
    fn start(&mut self) {
        self.at(Duration::ZERO, Coming::Tick);
        for worker in 0..self.workers.len() {
            let start = self.random.millis(2000);
            self.at(start, Coming::Act(worker));
        }
        let victim = self.random.below(self.workers.len() as u64) as usize;
        let when = self.random.millis(6000);
        match self.random.below(6) {
            0 => self.at(when, Coming::Die(victim)),
            1 => self.at(when, Coming::Stop(victim)),
            2 => self.slow = Some(victim),
            4 => {
                self.short = Some(victim);
                self.blamable.insert(victim);
            }
            3 => self.asleep = when + Duration::from_secs(3),
            _ => {}
        }
    }

    fn at(&mut self, time: Duration, coming: Coming) {
        self.sequence += 1;
        self.queue.push(Reverse((time, self.sequence, coming)));
    }

    fn send(&mut self, worker: usize, sent: Sent) {
        let arrives = self.workers[worker]
            .to_service
            .max(self.now + self.random.millis(50));
        self.workers[worker].to_service = arrives;
        self.at(arrives, Coming::ToService(worker, sent));
    }

    /// Runs to the end; nothing may be left waiting.
    fn run(&mut self) {
        let end = Duration::from_secs(90);
        while let Some(Reverse((time, _, coming))) = self.queue.pop() {
            if time > end {
                break;
            }
            self.now = time;
            self.trace.push(format!("{time:?} {coming:?}"));
            self.take(coming);
            self.check_waiting();
        }
        let all_over = self
            .workers
            .iter()
            .all(|worker| worker.gone || worker.finished || worker.stopped);
        assert!(all_over, "somebody waits for ever: {:?}", self.workers);
        if self.blamable.is_empty() {
            assert_eq!(self.failure, None);
            assert!(
                self.workers.iter().all(|worker| worker.finished),
                "{:?}",
                self.workers
            );
        }
    }

    fn take(&mut self, coming: Coming) {
        match coming {
            Coming::Tick => {
                self.at(self.now + TICK, Coming::Tick);
                // A service that sleeps does not tick; what comes to it waits.
                if self.now >= self.asleep || self.asleep > self.now + Duration::from_secs(3) {
                    self.service(Event::Tick);
                }
            }
            Coming::Act(worker) => self.act(worker),
            Coming::Heartbeat(worker) => {
                let Worker {
                    gone,
                    stopped,
                    finished,
                    ..
                } = self.workers[worker];
                if !gone && !stopped && !finished {
                    self.send(worker, Sent::Heartbeat);
                    self.at(self.now + HEARTBEAT, Coming::Heartbeat(worker));
                }
            }
            Coming::Die(worker) => {
                self.blamable.insert(worker);
                self.go(worker);
            }
            Coming::Stop(worker) => {
                self.blamable.insert(worker);
                self.workers[worker].stopped = true;
            }
            Coming::ToService(worker, sent) => {
                let sleeps =
                    self.now < self.asleep && self.asleep <= self.now + Duration::from_secs(3);
                match sleeps {
                    true => self.at(self.asleep, Coming::ToService(worker, sent)),
                    false => self.service(event(worker, self.workers.len(), sent)),
                }
            }
            Coming::ToWorker(worker, received) => self.receive(worker, received),
        }
    }

    fn service(&mut self, event: Event) {
        for Action { to, reply, bytes } in self.state.on(self.now, event) {
            if let Reply::Failed(Failure { worker, reason, .. }) = &reply {
                let this = (*worker, reason.clone());
                let first = self.failure.get_or_insert_with(|| this.clone());
                assert_eq!(*first, this, "two first failures");
            }
            let worker = to as usize;
            let arrives = self.workers[worker]
                .to_worker
                .max(self.now + self.random.millis(50));
            self.workers[worker].to_worker = arrives;
            self.at(arrives, Coming::ToWorker(worker, received(reply, bytes)));
        }
    }

    /// How many steps a worker does.
    fn steps(&self, worker: usize) -> usize {
        match self.short == Some(worker) {
            true => self.ops.len() / 2,
            false => self.ops.len(),
        }
    }

    fn go(&mut self, worker: usize) {
        if !self.workers[worker].gone {
            self.workers[worker].gone = true;
            self.send(worker, Sent::Closed);
        }
    }

    fn act(&mut self, worker: usize) {
        let Worker {
            gone,
            stopped,
            welcomed,
            step,
            ..
        } = self.workers[worker];
        if gone || stopped {
            return;
        }
        if !welcomed {
            self.send(worker, Sent::Hello);
            self.at(self.now, Coming::Heartbeat(worker));
            return;
        }
        let id = self.workers[worker].questions;
        self.workers[worker].questions += 1;
        self.workers[worker].asked = Some((id, self.now));
        let key = format!("k{step}");
        let sent = match self.ops.get(step).filter(|_| step < self.steps(worker)) {
            // Two names in turns: names are used again.
            Some(Op::Meet) => {
                Sent::Meet(id, format!("m{}", step % 2), vec![step as u8, worker as u8])
            }
            Some(Op::SetOrGet) if worker == step % self.workers.len() => {
                Sent::Set(id, key, vec![step as u8])
            }
            Some(Op::SetOrGet) => Sent::Get(id, key),
            None => Sent::Leave(id),
        };
        self.send(worker, sent);
    }

    fn receive(&mut self, worker: usize, received: Received) {
        if self.workers[worker].gone || self.workers[worker].stopped {
            return;
        }
        let step = self.workers[worker].step;
        let answered =
            |id: u64| assert_eq!(self.workers[worker].asked.map(|(asked, _)| asked), Some(id));
        match received {
            Received::Other => return,
            Received::Welcome => {
                assert!(!self.workers[worker].welcomed, "welcomed twice");
                self.workers[worker].welcomed = true;
            }
            Received::Met(id, bytes) => {
                answered(id);
                let all = (0..self.workers.len()).flat_map(|other| [step as u8, other as u8]);
                assert_eq!(bytes, all.collect::<Vec<_>>(), "another meeting");
                self.workers[worker].step += 1;
            }
            Received::Value(id, bytes) => {
                answered(id);
                assert_eq!(bytes, [step as u8]);
                self.workers[worker].step += 1;
            }
            Received::Done(id) => {
                answered(id);
                if step == self.steps(worker) {
                    self.workers[worker].finished = true;
                    self.workers[worker].asked = None;
                    return self.send(worker, Sent::Closed);
                }
                self.workers[worker].step += 1;
            }
            // A worker that hears of trouble ends, which may be what others hear of next.
            Received::Late(id) | Received::Left(id) => {
                answered(id);
                assert!(
                    self.slow.is_some() || !self.blamable.is_empty(),
                    "nobody was late"
                );
                self.blamable.insert(worker);
                return self.go(worker);
            }
            Received::Failed(of, reason) => {
                assert!(
                    self.blamable.contains(&of),
                    "worker {of} is blamed: {reason}"
                );
                return self.go(worker);
            }
        }
        self.workers[worker].asked = None;
        self.go_on(worker);
    }

    /// A worker does its next step in a while.
    fn go_on(&mut self, worker: usize) {
        let pause = match self.slow == Some(worker) && self.random.below(3) == 0 {
            true => {
                self.blamable.insert(worker);
                WAITS * 2
            }
            false => self.random.millis(300),
        };
        self.at(self.now + pause, Coming::Act(worker));
    }

    /// Whoever asked is answered before too long.
    fn check_waiting(&self) {
        let longest = WAITS + LEASE + Duration::from_secs(4);
        for (number, worker) in self.workers.iter().enumerate() {
            let Some((_, since)) = worker.asked else {
                continue;
            };
            let over = worker.gone || worker.stopped;
            // To leave is to wait for the slowest.
            let leaving =
                worker.step == self.steps(number) && (self.slow.is_some() || self.short.is_some());
            assert!(
                over || leaving || self.now < since + longest,
                "worker {number} hangs"
            );
        }
    }
}

fn event(worker: usize, workers: usize, sent: Sent) -> Event {
    let within_ms = WAITS.as_millis() as u64;
    let (request, bytes) = match sent {
        Sent::Closed => {
            return Event::Closed {
                connection: worker as u64,
                why: "its connection was closed".into(),
            };
        }
        Sent::Hello => {
            let hello = Hello {
                job: "j".into(),
                version: "v".into(),
                worker,
                workers,
                incarnation: worker as u64,
                nonce: 0,
                generation: 0,
                progress: None,
                within_ms: 0,
                group: 0,
                data_address: SocketAddr::from(([127, 0, 0, 1], worker as u16)),
            };
            (Request::Hello(hello), Vec::new())
        }
        Sent::Heartbeat => (Request::Heartbeat, Vec::new()),
        Sent::Meet(id, name, bytes) => (
            Request::Meet {
                id,
                name,
                within_ms,
            },
            bytes,
        ),
        Sent::Set(id, key, bytes) => (Request::Set { id, key }, bytes),
        Sent::Get(id, key) => (Request::Get { id, key, within_ms }, Vec::new()),
        Sent::Leave(id) => (
            Request::Leave {
                id,
                within_ms: u64::MAX,
            },
            Vec::new(),
        ),
    };
    Event::Message {
        connection: worker as u64,
        from: None,
        request,
        bytes,
    }
}

fn received(reply: Reply, bytes: Vec<u8>) -> Received {
    match reply {
        Reply::Welcome { .. } => Received::Welcome,
        Reply::Met { id, .. } => Received::Met(id, bytes),
        Reply::Done { id } => Received::Done(id),
        Reply::Value { id } => Received::Value(id, bytes),
        Reply::Late { id, .. } => Received::Late(id),
        Reply::Left { id, .. } => Received::Left(id),
        Reply::Failed(Failure { worker, reason, .. }) => Received::Failed(worker, reason),
        Reply::Challenge { .. }
        | Reply::Refused(_)
        | Reply::Waiting { .. }
        | Reply::Lobby
        | Reply::Pong => Received::Other,
    }
}

#[test]
fn nobody_waits_for_ever_nobody_is_blamed_wrongly_and_all_hear_the_same() {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for seed in 0..SEEDS {
        let run = std::panic::catch_unwind(|| {
            let mut simulation = Simulation::new(seed);
            simulation.run();
            simulation
        });
        let simulation = run.unwrap_or_else(|_| panic!("seed {seed}"));
        let finished = simulation.workers.iter().all(|worker| worker.finished);
        let what = match (simulation.failure.is_some(), finished) {
            (true, _) => "failed",
            (false, true) => "finished",
            (false, false) => "ended",
        };
        *seen.entry(what).or_default() += 1;
    }
    // Both happen, or the simulation tests nothing.
    assert!(seen["failed"] > 100 && seen["finished"] > 100, "{seen:?}");
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in 0..50 {
        let trace = || {
            let mut simulation = Simulation::new(seed);
            simulation.run();
            simulation.trace
        };
        assert_eq!(trace(), trace());
    }
}
