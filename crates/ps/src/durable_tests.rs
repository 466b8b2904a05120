//! Tests of what a server keeps.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::control::{ControlSettings, Phase, PhaseKind};
use crate::message::{Hello, PushKey};
use crate::pushes::tests::Bytes;
use crate::{Clock, Grant, Mode, TaskEnd, Work};

fn folder(name: &str) -> std::path::PathBuf {
    let name = format!("phalanx-ps-kept-{}-{name}", std::process::id());
    std::env::temp_dir().join(name)
}

fn bytes_of(folder: &std::path::Path) -> u64 {
    let files = std::fs::read_dir(folder.join("control")).unwrap();
    files
        .map(|file| file.unwrap().metadata().unwrap().len())
        .sum()
}

/// A control of three workers and its folder, which is kept small by snapshots.
struct Recorded {
    state: ControlState,
    settings: ControlSettings,
    options: ServerOptions,
    folder: std::path::PathBuf,
}

impl Recorded {
    fn new(test: &str, mode: Mode) -> Self {
        let settings = ControlSettings {
            workers: 3,
            mode,
            goes_on_without_chief: true,
        };
        let folder = folder(&format!("{test}-{mode}").replace(' ', "-"));
        let _ = std::fs::remove_dir_all(&folder);
        let options = ServerOptions {
            control_snapshot_bytes: 2000,
            ..ServerOptions::default()
        };
        let mut state = ControlState::default();
        state.recover(&folder, Durability::Process).unwrap();
        state.control = Some(Control::new(settings.clone()));
        let mut recorded = Self {
            state,
            settings,
            options,
            folder,
        };
        let first = Request::Hello(recorded.hello(1));
        let kept = recorded.state.keep(0, &first, &[], &recorded.options);
        kept.unwrap();
        recorded
    }

    /// The first worker's.
    fn hello(&self, incarnation: u64) -> Hello {
        Hello {
            job: String::new(),
            version: String::new(),
            worker: 0,
            incarnation,
            settings: self.settings.clone(),
        }
    }

    fn control(&mut self) -> &mut Control {
        self.state.control.as_mut().unwrap()
    }

    /// Another process takes the place of this one, with what is on disk.
    fn restart(&mut self) {
        self.state = ControlState::default();
        let durability = Durability::Process;
        self.state.recover(&self.folder, durability).unwrap();
    }

    fn say(&mut self, worker: usize, request: &Request, bytes: Vec<u8>) {
        let settled = self.state.settle(worker, request, bytes, &self.options);
        settled.unwrap();
    }

    /// The first worker enters the training phase `phase` of this number of items.
    fn begin(&mut self, items: u64) {
        let enter = Request::Enter {
            phase: "phase".into(),
            kind: PhaseKind::Train,
            start: 0,
            end: items,
        };
        self.say(0, &enter, Vec::new());
    }

    /// What has become of the phase `phase`, which is over.
    fn over(&mut self) -> Phase {
        let grant = self.control().next(Duration::ZERO, 0, "phase", &[]);
        let Ok(Grant::Over(over)) = grant else {
            panic!("{grant:?}");
        };
        over
    }

    fn come(&mut self, worker: usize) {
        let hello = Hello {
            worker,
            ..self.hello(1)
        };
        self.greet(&hello);
    }

    fn greet(&mut self, hello: &Hello) {
        let greeted = (self.state).hello(Duration::ZERO, hello, &self.options);
        greeted.unwrap();
    }

    /// The first worker leaves.
    fn leave(&mut self, incarnation: u64) {
        assert!(self.control().leave(0, incarnation));
        let kept = (self.state).keep(0, &Request::Leave, &[], &self.options);
        kept.unwrap();
    }

    /// The piece of work of the phase `phase` that a worker is given.
    fn given(&mut self, worker: usize) -> Work {
        let grant = self.control().next(Duration::ZERO, worker, "phase", &[]);
        let Ok(Grant::Work(work)) = grant else {
            panic!("worker {worker}: {grant:?}");
        };
        work
    }

    fn done(&mut self, worker: usize, work: &Work) {
        let done = Request::Done {
            phase: "phase".into(),
            work: work.id,
            weight: 1.0,
            rows: 1.0,
            staleness: 0,
        };
        self.say(worker, &done, f64::to_le_bytes(1.0).to_vec());
    }

    /// Is given a piece of work and does it; the clock with it.
    fn work(&mut self, worker: usize) -> Clock {
        let work = self.given(worker);
        self.done(worker, &work);
        work.clock.unwrap()
    }

    /// All enter a phase; `rounds` pieces of work go to each.
    fn phase(&mut self, epoch: u64, rounds: usize, is_last: bool) {
        let kinds = [PhaseKind::Train, PhaseKind::Sum, PhaseKind::Collect];
        let phase = format!("phase {epoch}");
        for worker in 0..3 {
            self.come(worker);
            let enter = Request::Enter {
                phase: phase.clone(),
                kind: kinds[(epoch % 3) as usize],
                start: 0,
                end: 4,
            };
            self.say(worker, &enter, Vec::new());
        }
        let put = Request::Put { key: phase.clone() };
        self.say(0, &put, vec![epoch as u8; 3]);
        for worker in (0..3).cycle().take(3 * rounds) {
            let grant = self.control().next(Duration::ZERO, worker, &phase, &[]);
            let Grant::Work(work) = grant.unwrap() else {
                continue;
            };
            let done = Request::Done {
                phase: phase.clone(),
                work: work.id,
                weight: 1.5,
                rows: 2.0,
                staleness: work.item,
            };
            if !is_last || worker > 0 {
                self.say(worker, &done, f64::to_le_bytes(0.1).to_vec());
            }
        }
    }
}

/// A control that was asked to stop while all workers had work, and ended before any of it was done: it counts what they push, so
/// that it is not trained on again.
#[test]
fn a_control_that_was_to_stop_and_comes_back_counts_what_was_begun() {
    for mode in [Mode::Async, Mode::Sync { backup_workers: 0 }] {
        let mut recorded = Recorded::new("stop", mode);
        recorded.begin(10);
        let mut given = Vec::new();
        for worker in 0..3 {
            recorded.come(worker);
            given.push(recorded.given(worker));
        }
        // Each worker is asked to stop, and says so.
        for worker in 0..3 {
            recorded.say(worker, &Request::Stop, Vec::new());
        }
        recorded.restart();
        for (worker, work) in given.iter().enumerate() {
            recorded.done(worker, work);
        }
        let over = recorded.over();
        let items = 1 + given.iter().map(|work| work.item).max().unwrap();
        assert_eq!((over.end, over.stopped), (items, true), "{mode}");
        assert_eq!(over.sums, [3.0], "{mode}: what was pushed counts");
        std::fs::remove_dir_all(&recorded.folder).unwrap();
    }
}

/// A worker that came late is as far as the others, and stays so when another process takes the control's place: whichever worker
/// comes first, nobody waits for what was done before, and no clock falls back.
#[test]
fn no_clock_falls_back_when_a_control_comes_back() {
    for first in 0..3 {
        let mut recorded = Recorded::new("clocks", Mode::BoundedStaleness { steps: 3 });
        recorded.options.control_snapshot_bytes = u64::MAX;
        recorded.begin(1000);
        // One worker is at 100 when another comes, which is lost when it is at 105.
        recorded.come(0);
        let _ = (0..100).map(|_| recorded.work(0)).last();
        recorded.come(1);
        let mut clocks = [100, 100, 0];
        for worker in [0, 1].into_iter().cycle().take(10) {
            clocks[worker] = recorded.work(worker).own;
        }
        recorded.control().gone(Duration::ZERO, 0, 1);
        (0..40).for_each(|_| clocks[1] = recorded.work(1).own);
        assert_eq!(clocks, [104, 144, 0]);
        for _ in 0..2 {
            recorded.restart();
            for worker in (first..3).chain(0..first) {
                recorded.come(worker);
                let clock = recorded.work(worker);
                assert!(clock.own >= clocks[worker], "{clock:?} {clocks:?}");
                assert!(clock.slowest >= 144, "{clock:?}");
                clocks[worker] = clock.own;
            }
        }
        std::fs::remove_dir_all(&recorded.folder).unwrap();
    }
}

/// A job that was asked to stop, was killed before it had, and is started again under its name.
#[test]
fn a_job_that_is_started_again_goes_on_after_a_stop() {
    for mode in [Mode::Async, Mode::Sync { backup_workers: 2 }] {
        let mut recorded = Recorded::new("goes-on", mode);
        recorded.begin(10);
        recorded.come(0);
        recorded.given(0);
        recorded.say(0, &Request::Stop, Vec::new());
        let hello = recorded.hello(2);
        let options = recorded.options.clone();
        let is_new = |state: &mut ControlState| state.chief_is_new(&hello, &options).unwrap();
        is_new(&mut recorded.state);
        assert!(recorded.control().is_stopping, "the control was there");
        // Asked again after a restart, it stops all the same.
        let mut again = Recorded::new("stops", mode);
        again.begin(10);
        again.come(0);
        again.restart();
        again.say(0, &Request::Stop, Vec::new());
        is_new(&mut again.state);
        assert!(again.control().is_stopping, "asked since it came back");
        std::fs::remove_dir_all(&again.folder).unwrap();
        recorded.restart();
        is_new(&mut recorded.state);
        recorded.restart();
        recorded.come(0);
        for _ in 0..10 {
            recorded.work(0);
        }
        let over = recorded.over();
        assert_eq!((over.end, over.stopped), (10, false), "{mode}");
        std::fs::remove_dir_all(&recorded.folder).unwrap();
    }
}

/// As before, where all that was begun had ended: only the first worker had not come so far as to leave.
#[test]
fn a_job_that_had_stopped_goes_on_where_it_is_started_again() {
    for mode in [Mode::Async, Mode::Sync { backup_workers: 2 }] {
        let mut recorded = Recorded::new("had-stopped", mode);
        recorded.begin(10);
        recorded.come(0);
        let given = recorded.given(0);
        recorded.say(0, &Request::Stop, Vec::new());
        recorded.done(0, &given);
        let over = recorded.over();
        assert_eq!((over.end, over.stopped), (1, true), "{mode}");
        // A worker that comes back meanwhile is told the same.
        recorded.begin(10);
        assert!(recorded.over().stopped, "{mode}");
        recorded.restart();
        // Another that comes back sooner waits for the first worker, which may be there to go on.
        let waits = |recorded: &mut Recorded| {
            let grant = recorded.control().next(Duration::ZERO, 1, "phase", &[]);
            matches!(grant.unwrap(), Grant::Wait { waiting_for, .. } if waiting_for == [0])
        };
        recorded.come(1);
        assert!(waits(&mut recorded), "{mode}");
        recorded.control().chief_is_back();
        assert!(!waits(&mut recorded), "{mode}: it is there to stop");
        recorded.restart();
        let (hello, options) = (recorded.hello(2), recorded.options.clone());
        recorded.state.chief_is_new(&hello, &options).unwrap();
        recorded.come(1);
        assert!(waits(&mut recorded), "{mode}");
        recorded.begin(10);
        assert!(!waits(&mut recorded), "{mode}");
        recorded.restart();
        recorded.come(0);
        recorded.begin(10);
        for _ in 0..9 {
            recorded.work(0);
        }
        let over = recorded.over();
        assert_eq!((over.end, over.stopped), (10, false), "{mode}");
        assert_eq!(over.sums, [10.0], "{mode}: nothing is done twice");
        std::fs::remove_dir_all(&recorded.folder).unwrap();
    }
}

#[test]
fn a_control_that_comes_back_knows_that_the_first_worker_has_left() {
    let mut recorded = Recorded::new("left", Mode::Async);
    recorded.come(0);
    recorded.leave(1);
    recorded.restart();
    assert!(recorded.control().chief_has_left());
    recorded.come(0);
    assert!(!recorded.control().chief_has_left());
    recorded.restart();
    assert!(!recorded.control().chief_has_left(), "it has come again");
    // Where the control was there all the time, another process does not undo a stop.
    recorded.come(0);
    recorded.say(0, &Request::Stop, Vec::new());
    recorded.leave(1);
    let hello = recorded.hello(2);
    recorded.greet(&hello);
    recorded.restart();
    assert!(!recorded.control().chief_has_left());
    assert!(recorded.control().is_stopping);
    // As a log of an earlier version has it.
    recorded.greet(&hello);
    recorded.leave(2);
    let next = Request::Hello(recorded.hello(3));
    let kept = (recorded.state).keep(0, &next, &[], &recorded.options);
    kept.unwrap();
    recorded.restart();
    assert!(!recorded.control().chief_has_left());
    std::fs::remove_dir_all(&recorded.folder).unwrap();
}

/// A log of an earlier version of the program, whose requests to stop had no end.
#[test]
fn a_request_to_stop_of_an_older_log_is_read() {
    let read: Request = serde_json::from_str("\"stop\"").unwrap();
    let mut control = Control::new(ControlSettings {
        workers: 1,
        mode: Mode::Async,
        goes_on_without_chief: true,
    });
    control.enter(0, "phase", PhaseKind::Train, 0..10).unwrap();
    change(&mut control, 0, &read, Vec::new()).unwrap();
    let over = control.next(Duration::ZERO, 0, "phase", &[]).unwrap();
    assert!(
        matches!(&over, Grant::Over(phase) if phase.stopped),
        "{over:?}"
    );
}

/// As above, but the control ends before it is asked to stop, and workers who have all that they can have did not tell the next one.
#[test]
fn a_control_that_comes_back_and_is_to_stop_counts_what_was_begun() {
    let mut recorded = Recorded::new("stop-after", Mode::Async);
    recorded.begin(10);
    let mut given: Vec<(usize, Work)> = Vec::new();
    for worker in 0..3 {
        recorded.come(worker);
        let first = recorded.given(worker);
        let control = recorded.control();
        let second = control.next(Duration::ZERO, worker, "phase", &[first.id]);
        let Ok(Grant::Work(second)) = second else {
            panic!("{second:?}");
        };
        given.extend([(worker, first), (worker, second)]);
    }
    recorded.restart();
    recorded.say(0, &Request::Stop, Vec::new());
    // What is kept of the stop is what it was.
    recorded.restart();
    for (worker, work) in &given {
        recorded.done(*worker, work);
    }
    let over = recorded.over();
    assert_eq!((over.end, over.stopped), (6, true));
    assert_eq!(over.sums, [6.0], "what was pushed counts");
    std::fs::remove_dir_all(&recorded.folder).unwrap();
}

/// Phases of all kinds by workers who are apart or step together; what is on disk gives the same control, and stays small.
#[test]
fn the_control_comes_back_from_a_snapshot_and_the_log_after_it() {
    for mode in [Mode::Async, Mode::Sync { backup_workers: 1 }] {
        let mut recorded = Recorded::new("snapshots", mode);
        let mut longest = 0;
        for epoch in 0..39 {
            recorded.phase(epoch, 5, false);
            longest = longest.max(bytes_of(&recorded.folder));
        }
        // Of the last phase some work is left with workers.
        recorded.phase(39, 1, true);
        longest = longest.max(bytes_of(&recorded.folder));
        let Recorded { state, folder, .. } = recorded;
        let mut live = state.control.unwrap().at_rest();
        live.catch_up_all();
        let live = serde_json::to_string(&live).unwrap();
        let mut again = ControlState::default();
        again.recover(&folder, Durability::Process).unwrap();
        assert!(again.snapshot > 0, "no snapshot was written");
        let back = serde_json::to_string(&again.control.unwrap().at_rest()).unwrap();
        assert_eq!(back, live, "{mode}");
        // A snapshot and a log that is cut at twice its size, and what is written between two looks.
        assert!(
            longest < 3 * again.snapshot + 6000,
            "{longest} {}",
            again.snapshot
        );
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

/// What was begun when a function failed ends as it ends, also when another process takes the control's place before that.
#[test]
fn a_control_that_comes_back_does_not_cancel_what_was_begun() {
    let mut recorded = Recorded::new("tasks", Mode::Async);
    recorded.say(0, &Request::OpenTasks, Vec::new());
    for task in 0..3 {
        let function = "f".into();
        recorded.say(0, &Request::Schedule { task, function }, Vec::new());
    }
    for worker in 1..3 {
        recorded.come(worker);
        recorded.control().take(worker).unwrap();
    }
    let finish = |task, failure: Option<&str>| Request::Finish {
        task,
        failure: failure.map(Into::into),
        begun: None,
    };
    let ends = |recorded: &mut Recorded| -> Vec<(u64, TaskEnd)> {
        let ends = recorded.control().tasks().ends();
        ends.map(|(number, end, _)| (number, end.clone())).collect()
    };
    recorded.say(1, &finish(0, Some("no")), Vec::new());
    let before = ends(&mut recorded);
    assert_eq!(before.len(), 2, "{before:?}");
    recorded.restart();
    assert_eq!(ends(&mut recorded), before);
    recorded.say(2, &finish(1, None), vec![7]);
    recorded.restart();
    assert_eq!(ends(&mut recorded)[1], (1, TaskEnd::Done));
    std::fs::remove_dir_all(&recorded.folder).unwrap();
    // As a log of an earlier version has it.
    let old = r#"{"finish":{"task":1,"failure":"no"}}"#;
    assert_eq!(
        serde_json::from_str::<Request>(old).unwrap(),
        finish(1, Some("no"))
    );
}

/// Shards that are kept in a folder.
fn kept(folder: &std::path::Path) -> ShardState {
    let mut state = ShardState::new(Box::new(Bytes));
    state.recover(folder, Durability::Process).unwrap();
    state
}

const fn key(worker: usize) -> PushKey {
    PushKey {
        work: 7,
        worker,
        incarnation: 1,
        done_below: 0,
    }
}

/// A large model would be written again and again: its log grows as large as the snapshot that it replaces.
#[test]
fn the_log_of_shards_grows_to_the_size_of_their_snapshot() {
    let folder = folder("shards");
    let _ = std::fs::remove_dir_all(&folder);
    let options = ServerOptions {
        snapshot_bytes: 1000,
        ..ServerOptions::default()
    };
    let act = Request::Act {
        what: String::new(),
    };
    let staged = Request::Stage {
        key: key(0),
        version: Some(0),
        what: String::new(),
    };
    let mut state = kept(&folder);
    // The snapshot has the gradient that waits.
    state.handle(0, &staged, &[1; 50_000], &options).unwrap();
    let bytes = |state: &ShardState| state.log.as_ref().unwrap().bytes;
    assert_eq!(bytes(&state), 0, "no snapshot was written");
    for _ in 0..2 {
        let before = bytes(&state);
        state.handle(0, &act, &[1; 20_000], &options).unwrap();
        assert!(bytes(&state) > before, "a snapshot was written too soon");
        state = kept(&folder);
    }
    state.handle(0, &act, &[1; 20_000], &options).unwrap();
    assert_eq!(bytes(&state), 0);
    std::fs::remove_dir_all(&folder).unwrap();
}

/// On a disk that is full nothing can replace the log, which has all that was asked: a worker is answered as before.
#[test]
fn a_snapshot_that_fails_refuses_nothing_and_is_tried_again() {
    let folder = folder("no-room");
    let told = Arc::new(AtomicUsize::new(0));
    let lines = Arc::clone(&told);
    let counted = move |_: &str| _ = lines.fetch_add(1, Ordering::Relaxed);
    let options = ServerOptions {
        snapshot_bytes: 1000,
        control_snapshot_bytes: 1000,
        tell: crate::Tell(Arc::new(counted)),
        ..ServerOptions::default()
    };
    let told = |number: usize| assert_eq!(told.load(Ordering::Relaxed), number);
    let act = Request::Act { what: "".into() };
    let mut state = kept(&folder);
    let blocked = folder.join("shards/snapshot.new");
    std::fs::create_dir(&blocked).unwrap();
    let bytes = |state: &ShardState| state.log.as_ref().unwrap().bytes;
    for (number, length) in [(1, 1000), (1, 10), (2, 1000)] {
        let before = bytes(&state);
        state.handle(0, &act, &vec![1; length], &options).unwrap();
        assert!(bytes(&state) > before && !folder.join("shards/log-1").exists());
        told(number);
    }
    std::fs::remove_dir(blocked).unwrap();
    state.handle(0, &act, &[1; 1000], &options).unwrap();
    assert_eq!(bytes(&state), 0, "no snapshot was written");
    let mut recorded = Recorded::new("no-room", Mode::Async);
    std::fs::create_dir(recorded.folder.join("control/snapshot.new")).unwrap();
    recorded.options = options;
    let put = Request::Put { key: "k".into() };
    for number in [2, 3] {
        recorded.say(0, &put, vec![1; 1000]);
        told(number);
    }
    std::fs::remove_dir_all(&folder).unwrap();
    std::fs::remove_dir_all(&recorded.folder).unwrap();
}

/// A worker was lost between the first server and the second: who takes its batch clips by the norm over both.
#[test]
fn norms_of_what_was_applied_are_there_for_who_pushes_it_again() {
    let folder = folder("norms");
    let _ = std::fs::remove_dir_all(&folder);
    let options = ServerOptions::default();
    let stage = |worker| Request::Stage {
        key: key(worker),
        version: None,
        what: String::new(),
    };
    let staged = |state: &mut ShardState, worker| {
        let (reply, _) = state
            .handle(worker, &stage(worker), &[1; 3], &options)
            .unwrap();
        let Reply::Staged { squares, duplicate } = reply else {
            panic!("{reply:?}");
        };
        (squares, duplicate)
    };
    let mut state = kept(&folder);
    assert_eq!(staged(&mut state, 0), (vec![3.0], false));
    let apply = Request::Apply {
        key: key(0),
        factors: None,
    };
    state.handle(0, &apply, &[], &options).unwrap();
    for _ in 0..2 {
        assert_eq!(staged(&mut state, 1), (vec![3.0], true));
        state = kept(&folder);
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
