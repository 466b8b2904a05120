//! Generations of workers with simulated workers, network, clocks and supervisor: thousands of seeds, each a training with delays, cut
//! connections, partitions, deaths, stops, restarts, slow clocks and workers that are given up. A step stands for an exchange of data: who
//! hears that all have come has made it, and who hears of a failure first has not.
//!
//! PHALANX_SIMULATION_SEEDS sets how many seeds are run, PHALANX_SIMULATION_SEED runs one of them again.

mod random;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::SocketAddr;
use std::time::Duration;

use phalanx_cluster::Failure;
use phalanx_cluster::coordination::{
    Action, Coordination, Event, Hello, Recovery, Refusal, Reply, Request, Seat, Settings,
};

use self::random::{Random, mix};

const LEASE: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(100);
const HEARTBEAT: Duration = Duration::from_millis(200);
const WITHIN: Duration = Duration::from_secs(6);
const STEPS: u64 = 12;
const SEEDS: u64 = 1000;

/// What is on its way. Processes are named by a number of their own, which a restart does not reuse.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Coming {
    Tick,
    Start(usize),
    Act(usize),
    Heartbeat(usize),
    Kill(usize),
    Stop(usize, u64),
    Continue(usize),
    Cut(usize, u64),
    Heal(usize),
    GiveUp(usize),
    ToService(usize, u64, usize),
    Closed(u64),
    ToWorker(usize, u64, usize),
}

/// A process of a worker.
#[derive(Debug, Clone, Default)]
struct Process {
    worker: usize,
    connection: u64,
    /// The generation that it is a member of; 0 while it joins.
    member_of: u64,
    /// The one before.
    last: u64,
    /// Steps made, and what they add up to: the same for all who made the same.
    steps: Option<(u64, u64)>,
    asked: Option<u64>,
    /// Whether it has made all steps, and others come no more.
    is_closed: bool,
    roster: Vec<usize>,
    /// Its clock goes slower by so many percent.
    slow: u64,
    dead: bool,
    stopped: bool,
    is_cut: bool,
    done: bool,
    /// What came while it was stopped.
    pending: Vec<Coming>,
    to_service: Duration,
    to_worker: Duration,
}

struct Simulation {
    random: Random,
    now: Duration,
    queue: BinaryHeap<Reverse<(Duration, u64, Coming)>>,
    sequence: u64,
    service: Coordination,
    settings: Settings,
    processes: Vec<Process>,
    /// Whose each connection is.
    owner: BTreeMap<u64, usize>,
    requests: Vec<(Request, Vec<u8>)>,
    replies: Vec<(Reply, Vec<u8>)>,
    restarts: Vec<u64>,
    rosters: BTreeMap<u64, Vec<Seat>>,
    /// The most steps that the furthest member of a generation could say it had made, for the next one.
    seen: BTreeMap<&'static str, u64>,
    trace: u64,
    final_failure: bool,
    faults: bool,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let most = 1 + random.below(4) as usize;
        let least = 1 + random.below(most as u64) as usize;
        let settings = Settings {
            workers: most,
            job: "j".into(),
            version: String::new(),
            generation: 1,
            lease: LEASE,
            join_within: None,
            recovery: Some(Recovery {
                within: WITHIN,
                least,
            }),
        };
        let mut simulation = Self {
            faults: !random.chance(8),
            random,
            now: Duration::ZERO,
            queue: BinaryHeap::new(),
            sequence: 0,
            service: Coordination::new(settings.clone()),
            settings,
            processes: Vec::new(),
            owner: BTreeMap::new(),
            requests: Vec::new(),
            replies: Vec::new(),
            restarts: vec![0; most],
            rosters: BTreeMap::new(),
            seen: BTreeMap::new(),
            trace: 0,
            final_failure: false,
        };
        simulation.at(Duration::ZERO, Coming::Tick);
        for worker in 0..most {
            let at = simulation.random.millis(1500);
            simulation.spawn(worker, at);
        }
        simulation
    }

    fn at(&mut self, time: Duration, coming: Coming) {
        self.sequence += 1;
        self.queue.push(Reverse((time, self.sequence, coming)));
    }

    fn note(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    /// A process that starts at some time, and what will happen to it.
    fn spawn(&mut self, worker: usize, at: Duration) {
        let number = self.processes.len();
        let slow = self.random.below(40);
        self.processes.push(Process {
            worker,
            slow,
            ..Process::default()
        });
        self.at(at, Coming::Start(number));
        if !self.faults || self.processes.len() > 14 {
            return;
        }
        let when = at + self.random.millis(4500);
        match self.random.below(9) {
            0 | 1 => self.at(when, Coming::Kill(number)),
            2 => {
                let millis = self.random.below(4000);
                self.at(when, Coming::Stop(number, millis));
            }
            3 => {
                let millis = self.random.below(2500);
                self.at(when, Coming::Cut(number, millis));
            }
            _ => {}
        }
    }

    fn run(&mut self) {
        let end = Duration::from_secs(150);
        while let Some(Reverse((time, _, coming))) = self.queue.pop() {
            if time > end {
                break;
            }
            self.now = time;
            let text = format!("{time:?} {coming:?}");
            self.trace = text
                .bytes()
                .fold(self.trace, |hash, byte| mix(hash ^ u64::from(byte)));
            self.take(coming);
        }
        let waits = |process: &&Process| !process.dead && !process.done && !process.stopped;
        let waiting: Vec<&Process> = self.processes.iter().filter(waits).collect();
        assert!(waiting.is_empty(), "somebody waits for ever: {waiting:?}");
        let ends: Vec<_> = self
            .processes
            .iter()
            .filter(|process| process.done)
            .collect();
        let expected = (0..STEPS).fold(0, |state, step| mix(state ^ step));
        for end in &ends {
            assert_eq!(end.steps, Some((STEPS, expected)), "another end");
        }
        if !self.faults {
            assert_eq!(
                ends.len(),
                self.settings.workers,
                "nothing happened to them"
            );
            assert_eq!(self.service.generation(), 1);
        }
        if !ends.is_empty() {
            self.note("finished");
        }
    }

    fn take(&mut self, coming: Coming) {
        let of = match &coming {
            Coming::Act(number) | Coming::Heartbeat(number) | Coming::ToWorker(number, ..) => {
                Some(*number)
            }
            _ => None,
        };
        if let Some(number) = of {
            let process = &mut self.processes[number];
            if process.dead || process.done {
                return;
            }
            if process.stopped {
                return process.pending.push(coming);
            }
        }
        match coming {
            Coming::Tick => {
                self.at(self.now + TICK, Coming::Tick);
                self.serve(Event::Tick);
            }
            Coming::Start(number) if !self.processes[number].dead => self.join(number),
            Coming::Start(_) => {}
            Coming::Act(number) => self.act(number),
            Coming::Heartbeat(number) => self.heartbeat(number),
            Coming::GiveUp(worker) => self.serve(Event::Gone { worker }),
            Coming::Closed(connection) => {
                let why = "its connection was closed".into();
                self.serve(Event::Closed { connection, why });
            }
            Coming::ToService(number, ..) | Coming::ToWorker(number, ..)
                if self.processes[number].is_cut =>
            {
                // TCP sends it again.
                self.at(self.now + TICK, coming);
            }
            Coming::ToService(_, connection, request) => {
                let (request, bytes) = self.requests[request].clone();
                self.serve(Event::Message {
                    connection,
                    from: None,
                    request,
                    bytes,
                });
            }
            Coming::ToWorker(number, connection, reply) => {
                if self.processes[number].connection == connection {
                    let (reply, bytes) = self.replies[reply].clone();
                    self.receive(number, reply, &bytes);
                }
            }
            fault => self.suffer(fault),
        }
    }

    /// What is done to processes.
    fn suffer(&mut self, fault: Coming) {
        match fault {
            Coming::Kill(number) => self.die(number, true),
            Coming::Stop(number, millis) => {
                self.processes[number].stopped = true;
                let later = self.now + Duration::from_millis(millis);
                self.at(later, Coming::Continue(number));
            }
            Coming::Continue(number) => {
                self.processes[number].stopped = false;
                let pending = std::mem::take(&mut self.processes[number].pending);
                for coming in pending {
                    self.at(self.now, coming);
                }
            }
            Coming::Cut(number, millis) => {
                self.processes[number].is_cut = true;
                let later = self.now + Duration::from_millis(millis);
                self.at(later, Coming::Heal(number));
            }
            Coming::Heal(number) => self.processes[number].is_cut = false,
            other => unreachable!("{other:?} is done to nobody"),
        }
    }

    fn serve(&mut self, event: Event) {
        let actions = self.service.on(self.now, event);
        for Action { to, reply, bytes } in actions {
            let Some(&number) = self.owner.get(&to) else {
                continue;
            };
            self.replies.push((reply, bytes));
            let delay = self.random.millis(40);
            let process = &mut self.processes[number];
            let arrives = process.to_worker.max(self.now + delay);
            process.to_worker = arrives;
            self.at(
                arrives,
                Coming::ToWorker(number, to, self.replies.len() - 1),
            );
        }
        // The supervisor ends what the others went on without.
        for lost in self.service.take_lost() {
            let number = lost.group as usize;
            if self
                .processes
                .get(number)
                .is_some_and(|process| !process.dead)
            {
                self.note("evicted");
                self.die(number, true);
            }
        }
        let _ = self.service.take_news();
        if self.service.failure().is_some() {
            self.final_failure = true;
        }
    }

    fn send(&mut self, number: usize, request: Request, bytes: Vec<u8>) {
        self.requests.push((request, bytes));
        let delay = self.random.millis(40);
        let process = &mut self.processes[number];
        let arrives = process.to_service.max(self.now + delay);
        process.to_service = arrives;
        let coming = Coming::ToService(number, process.connection, self.requests.len() - 1);
        self.at(arrives, coming);
    }

    /// The end of a connection reaches the service after all that was sent on it.
    fn close(&mut self, number: usize) {
        let process = &self.processes[number];
        let (connection, arrives) = (process.connection, process.to_service.max(self.now));
        self.at(arrives, Coming::Closed(connection));
    }

    fn die(&mut self, number: usize, may_return: bool) {
        if self.processes[number].dead || self.processes[number].done {
            return;
        }
        self.processes[number].dead = true;
        self.close(number);
        let worker = self.processes[number].worker;
        if may_return && self.restarts[worker] < 2 && !self.random.chance(5) {
            self.restarts[worker] += 1;
            let at = self.now + self.random.millis(2500);
            self.spawn(worker, at);
        } else if !self.random.chance(3) {
            let at = self.now + self.random.millis(200);
            self.at(at, Coming::GiveUp(worker));
            // Somebody starts it by hand, though nobody waits for it any more.
            if self.random.chance(2) && self.processes.len() < 14 {
                let at = at + self.random.millis(4000);
                self.spawn(worker, at);
            }
        }
    }

    /// Says hello on a new connection.
    fn join(&mut self, number: usize) {
        let connection = self.owner.len() as u64 + 1;
        self.owner.insert(connection, number);
        let process = &mut self.processes[number];
        process.connection = connection;
        (process.member_of, process.asked, process.is_closed) = (0, None, false);
        let hello = Hello {
            job: "j".into(),
            version: "v".into(),
            worker: process.worker,
            workers: self.settings.workers,
            incarnation: number as u64,
            nonce: 0,
            data_address: SocketAddr::from(([127, 0, 0, 1], number as u16)),
            generation: process.last,
            progress: process.steps.map(|(steps, _)| steps),
            within_ms: 20_000,
            group: number as i32,
        };
        self.send(number, Request::Hello(hello), Vec::new());
        self.at(self.now, Coming::Heartbeat(number));
    }

    fn heartbeat(&mut self, number: usize) {
        self.send(number, Request::Heartbeat, Vec::new());
        let slow = 100 + self.processes[number].slow;
        self.at(
            self.now + HEARTBEAT * slow as u32 / 100,
            Coming::Heartbeat(number),
        );
    }

    /// The next step, or the end.
    fn act(&mut self, number: usize) {
        let process = &self.processes[number];
        if process.member_of == 0 || process.asked.is_some() {
            return;
        }
        let steps = process.steps.map_or(0, |(steps, _)| steps);
        let id = self.requests.len() as u64;
        self.processes[number].asked = Some(id);
        if steps == STEPS {
            let end = match self.processes[number].is_closed {
                true => Request::Leave {
                    id,
                    within_ms: u64::MAX,
                },
                false => Request::Admit { id, comers: false },
            };
            return self.send(number, end, Vec::new());
        }
        let bytes = [self.processes[number].member_of, steps]
            .map(u64::to_le_bytes)
            .concat();
        let (name, within_ms) = ("step".into(), 60_000);
        self.send(
            number,
            Request::Meet {
                id,
                name,
                within_ms,
            },
            bytes,
        );
    }

    fn receive(&mut self, number: usize, reply: Reply, bytes: &[u8]) {
        match reply {
            Reply::Welcome {
                generation, seats, ..
            } => self.welcome(number, generation, &seats),
            Reply::Met { id, sizes } => {
                let process = &mut self.processes[number];
                assert_eq!(process.asked.take(), Some(id), "an answer to nothing");
                let (steps, state) = process.steps.unwrap_or_default();
                let own = [process.member_of, steps].map(u64::to_le_bytes).concat();
                assert_eq!(
                    sizes.len(),
                    process.roster.len(),
                    "not all of the generation"
                );
                let all = bytes.chunks(16).all(|part| part == own);
                assert!(all, "a step of another generation or of others' steps");
                process.steps = Some((steps + 1, mix(state ^ steps)));
                let pause = self.random.millis(250);
                self.at(self.now + pause, Coming::Act(number));
            }
            Reply::Done { id } if self.processes[number].asked == Some(id) => self.done(number),
            Reply::Failed(failure) => self.failed(number, &failure),
            Reply::Refused(refusal) => {
                match refusal {
                    Refusal::Stale { generation, .. } => {
                        assert!(generation > self.processes[number].last);
                        self.note("stale");
                    }
                    Refusal::Taken { .. } => self.note("taken"),
                    other => panic!("{other:?}"),
                }
                self.die(number, true);
            }
            Reply::Late { .. } | Reply::Left { .. } => self.die(number, true),
            _ => {}
        }
    }

    /// What was asked for at the end is done: first that nobody comes any more, then that it leaves.
    fn done(&mut self, number: usize) {
        let process = &mut self.processes[number];
        if process.is_closed {
            process.done = true;
            return self.close(number);
        }
        (process.is_closed, process.asked) = (true, None);
        let pause = self.random.millis(1500);
        self.at(self.now + pause, Coming::Act(number));
    }

    fn failed(&mut self, number: usize, failure: &Failure) {
        let has_come = failure.reason.contains("has come");
        assert!(
            !has_come || !self.processes[number].is_closed,
            "{failure} when it was closed"
        );
        // Those that have joined the next generation may hear of the end of that before they are welcomed.
        if failure.next.is_some() {
            self.close(number);
            self.note("recovered");
            let process = &mut self.processes[number];
            process.last = process.last.max(process.member_of);
            self.join(number);
        } else {
            self.note("failed");
            self.die(number, false);
        }
    }

    fn welcome(&mut self, number: usize, generation: u64, seats: &[Seat]) {
        let of_generation = self
            .rosters
            .entry(generation)
            .or_insert_with(|| seats.to_vec());
        assert_eq!(*of_generation, seats, "two rosters of a generation");
        let workers: Vec<usize> = seats.iter().map(|seat| seat.worker).collect();
        assert!(workers.is_sorted() && workers.contains(&self.processes[number].worker));
        let least = self.settings.recovery.unwrap().least;
        assert!(
            (least..=self.settings.workers).contains(&workers.len()),
            "{workers:?}"
        );
        assert!(
            generation > self.processes[number].last,
            "an old generation"
        );
        // The state of the furthest is sent to all; the simulation has it at hand.
        let furthest = seats.iter().filter_map(|seat| seat.progress).max();
        let own = self.processes[number].steps.map(|(steps, _)| steps);
        assert!(own <= furthest, "a step that was made is lost");
        let taken =
            furthest.map(|steps| (steps, (0..steps).fold(0, |state, step| mix(state ^ step))));
        if workers.len() < self.settings.workers {
            self.note("fewer");
        }
        let before = self
            .rosters
            .get(&(generation - 1))
            .map_or(usize::MAX, Vec::len);
        if workers.len() > before {
            self.note("more");
        }
        let process = &mut self.processes[number];
        process.steps = Some(taken.unwrap_or_default());
        (process.member_of, process.roster) = (generation, workers);
        let admit = Request::Admit {
            id: self.requests.len() as u64,
            comers: true,
        };
        self.send(number, admit, Vec::new());
        let pause = self.random.millis(250);
        self.at(self.now + pause, Coming::Act(number));
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn no_step_is_lost_no_generation_mixes_and_nobody_waits_for_ever() {
    let mut seen: BTreeMap<&str, u64> = BTreeMap::new();
    let seeds = match number("PHALANX_SIMULATION_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("PHALANX_SIMULATION_SEEDS").unwrap_or(SEEDS),
    };
    let many = seeds.end - seeds.start >= SEEDS;
    for seed in seeds {
        let run = std::panic::catch_unwind(|| {
            let mut simulation = Simulation::new(seed);
            simulation.run();
            simulation
        });
        let simulation = run.unwrap_or_else(|_| panic!("seed {seed}"));
        for what in simulation.seen.keys() {
            *seen.entry(what).or_default() += 1;
        }
    }
    eprintln!("{seen:?}");
    for what in [
        "finished",
        "recovered",
        "evicted",
        "fewer",
        "more",
        "failed",
    ] {
        // All of it happens, or the simulation tests nothing.
        assert!(
            !many || seen.get(what).is_some_and(|count| *count > 5),
            "{what}: {seen:?}"
        );
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    let trace = |seed| {
        let mut simulation = Simulation::new(seed);
        simulation.run();
        simulation.trace
    };
    for seed in 0..50 {
        assert_eq!(trace(seed), trace(seed));
    }
}
