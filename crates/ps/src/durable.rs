//! The state machines of a server with their logs: what changes them is kept before it is answered.

use std::sync::Arc;

use crate::PsError;
use crate::control::{Control, Results};
use crate::log::{Durability, Found, Log};
use crate::message::{Frame, Pulled, Reply, Request};
use crate::pushes::{Shards, Values};
use crate::server::ServerOptions;

#[derive(Default)]
pub(crate) struct ControlState {
    pub(crate) control: Option<Control>,
    pub(crate) log: Option<Log>,
    /// The bytes of its last snapshot.
    snapshot: u64,
}

pub(crate) struct ShardState {
    pub(crate) shards: Shards,
    pub(crate) values: Box<dyn Values>,
    pub(crate) log: Option<Log>,
}

impl ControlState {
    pub(crate) fn recover(
        &mut self,
        folder: &std::path::Path,
        durability: Durability,
    ) -> Result<(), PsError> {
        let (log, found): (_, Found<()>) = Log::open(&folder.join("control"), durability)?;
        if let Some((_, bytes)) = found.snapshot {
            let control = serde_json::from_slice(&bytes).map_err(|error| {
                PsError::Protocol(format!(
                    "{}: a snapshot that is not understood: {error}; remove the folder to begin anew",
                    folder.join("control").display()
                ))
            })?;
            self.control = Some(control);
            self.snapshot = bytes.len() as u64;
        }
        for Frame { message, bytes } in found.requests {
            let worker = message.worker;
            if let (Request::Hello(hello), None) = (&message.request, &self.control) {
                self.control = Some(Control::new(hello.settings.clone()));
            } else if let Some(control) = &mut self.control {
                // What was refused then is refused again.
                let _ = change(control, worker, &message.request, bytes);
            }
        }
        if let Some(control) = &mut self.control {
            control.catch_up_all();
        }
        self.log = Some(log);
        Ok(())
    }

    /// Does what a worker asks that changes the control. It is kept before it counts: what a worker was told of survives.
    pub(crate) fn settle(
        &mut self,
        worker: usize,
        request: &Request,
        bytes: Vec<u8>,
        options: &ServerOptions,
    ) -> Result<(), PsError> {
        let known = |state: &mut Option<Control>| state.as_mut().map(Control::end_of_begun);
        let request = &match request {
            Request::Stop => Request::StopAt {
                end: known(&mut self.control).flatten(),
            },
            other => other.clone(),
        };
        self.keep(worker, request, &bytes, options)?;
        change(self.known()?, worker, request, bytes)
    }

    /// The control of a job that somebody has joined.
    pub(crate) fn known(&mut self) -> Result<&mut Control, PsError> {
        let unknown = || PsError::Protocol("nobody has joined the job".into());
        self.control.as_mut().ok_or_else(unknown)
    }

    pub(crate) fn keep(
        &mut self,
        worker: usize,
        request: &Request,
        bytes: &[u8],
        options: &ServerOptions,
    ) -> Result<(), PsError> {
        self.snapshot_if_due(options)?;
        match &mut self.log {
            Some(log) => log.append(worker, request, bytes),
            None => Ok(()),
        }
    }

    /// Keeps the state in place of what led to it, before the next request is added.
    fn snapshot_if_due(&mut self, options: &ServerOptions) -> Result<(), PsError> {
        let (Some(log), Some(control)) = (&mut self.log, &self.control) else {
            return Ok(());
        };
        if log.bytes < options.control_snapshot_bytes.max(2 * self.snapshot) {
            return Ok(());
        }
        let state = serde_json::to_vec(&control.at_rest())
            .map_err(|error| PsError::Protocol(format!("cannot write a snapshot: {error}")))?;
        self.snapshot = state.len() as u64;
        log.snapshot(&(), &state)
    }
}

/// A request that changes the state of the control and is kept.
fn change(
    control: &mut Control,
    worker: usize,
    request: &Request,
    bytes: Vec<u8>,
) -> Result<(), PsError> {
    match request {
        Request::Enter {
            phase,
            kind,
            start,
            end,
        } => control.enter(worker, phase, *kind, *start..*end)?,
        Request::Done {
            phase,
            work,
            weight,
            rows,
            staleness,
        } => {
            let results = Results {
                weight: *weight,
                rows: *rows,
                staleness: *staleness,
                bytes,
            };
            control.done(worker, phase, *work, results)?;
        }
        Request::NoMore { phase, item } => control.no_more(phase, *item)?,
        Request::OpenTasks => control.tasks_of_chief(worker)?.open(),
        Request::Schedule { task, function } => control.schedule(worker, *task, function, bytes)?,
        Request::Finish { task, failure } => {
            let result = failure.clone().map_or(Ok(bytes), Err);
            control.finish(worker, *task, result);
        }
        Request::Acknowledge {
            tasks,
            clears_failure,
        } => {
            let queue = control.tasks_of_chief(worker)?;
            queue.acknowledge(tasks);
            if *clears_failure {
                queue.clear_failure();
            }
        }
        Request::CloseTasks => control.tasks_of_chief(worker)?.close(),
        Request::Put { key } => control.put(key.clone(), bytes),
        Request::Stop => control.stop(None),
        Request::StopAt { end } => control.stop(*end),
        Request::Fail { reason } => control.fail(format!("worker {worker}"), reason.clone()),
        _ => {}
    }
    Ok(())
}

impl ShardState {
    pub(crate) fn new(values: Box<dyn Values>) -> Self {
        Self {
            shards: Shards::default(),
            values,
            log: None,
        }
    }

    pub(crate) fn recover(
        &mut self,
        folder: &std::path::Path,
        durability: Durability,
    ) -> Result<(), PsError> {
        let (log, found): (_, Found<(Shards, Vec<u64>)>) =
            Log::open(&folder.join("shards"), durability)?;
        if let Some(((shards, lengths), bytes)) = found.snapshot {
            self.shards = shards;
            let mut rest = &bytes[..];
            let mut take = |length: u64| {
                let (part, others) = rest.split_at((length as usize).min(rest.len()));
                rest = others;
                part.to_vec()
            };
            let mut parts: Vec<Vec<u8>> = lengths.iter().map(|&length| take(length)).collect();
            let values = parts.pop().unwrap_or_default();
            self.shards.set_staged_bytes(parts.into_iter());
            self.values.load(&values).map_err(PsError::Values)?;
        }
        for Frame { message, bytes } in found.requests {
            self.change(message.worker, &message.request, &bytes)?;
        }
        self.log = Some(log);
        Ok(())
    }

    /// A request that changes the values or what is kept of pushes. Whether it did, and the reply.
    fn change(
        &mut self,
        worker: usize,
        request: &Request,
        bytes: &[u8],
    ) -> Result<(bool, Reply, Vec<u8>), PsError> {
        let values = &mut *self.values;
        let pushed = |outcome: crate::PushOutcome| {
            let reply = Reply::Pushed {
                version: outcome.version,
                duplicate: outcome.duplicate,
                applied_at: outcome.applied_at,
            };
            (!outcome.duplicate, reply, Vec::new())
        };
        Ok(match request {
            Request::Hello(hello) => {
                self.shards.hello(worker, hello.incarnation);
                (true, Reply::Done, Vec::new())
            }
            Request::Create { description } => {
                let created = self.shards.create(description, bytes, values)?;
                (created, Reply::Done, Vec::new())
            }
            Request::Push { key, what, factors } => {
                let factors = factors.as_deref();
                pushed(self.shards.push(key, what, bytes, factors, values)?)
            }
            Request::Apply { key, factors } => {
                pushed(self.shards.apply(key, factors.as_deref(), values)?)
            }
            Request::Stage { key, version, what } => {
                let duplicate = self.shards.stage(key, *version, what, bytes.to_vec())?;
                let squares = match (version, duplicate) {
                    (None, false) => values.squares(what, bytes).map_err(PsError::Values)?,
                    _ => Vec::new(),
                };
                let reply = Reply::Staged { squares, duplicate };
                (!duplicate, reply, Vec::new())
            }
            Request::Pull {
                commit: Some(commit),
                ..
            } => {
                let applied = self.shards.commit(commit, values)?;
                (applied, Reply::Done, Vec::new())
            }
            Request::Squares { version, parts } => {
                let (is_news, squares) = self.shards.squares(*version, parts, values)?;
                (is_news, Reply::Squares(squares), Vec::new())
            }
            Request::Act { what } => {
                let answer = self.shards.act(what, bytes, values)?;
                (true, Reply::Done, answer)
            }
            _ => (false, Reply::Done, Vec::new()),
        })
    }

    pub(crate) fn handle(
        &mut self,
        worker: usize,
        request: &Request,
        bytes: &[u8],
        options: &ServerOptions,
    ) -> Result<(Reply, Arc<Vec<u8>>), PsError> {
        let (changed, reply, answer) = self.change(worker, request, bytes)?;
        if let (true, Some(log)) = (changed, &mut self.log) {
            // Before the reply: what a worker was told of survives.
            log.append(worker, request, bytes)?;
        }
        self.snapshot_if_due(options)?;
        match request {
            Request::Pull { have, what, .. } => self.pull(*have, what, bytes),
            _ => Ok((reply, Arc::new(answer))),
        }
    }

    fn pull(
        &mut self,
        have: Option<(u64, u64)>,
        what: &str,
        wanted: &[u8],
    ) -> Result<(Reply, Arc<Vec<u8>>), PsError> {
        if !self.shards.has_values() {
            let waiting_for = "the first worker, which brings the first values".into();
            return Ok((Reply::NotYet { waiting_for }, Arc::default()));
        }
        let (version, revision) = self.shards.stamp();
        let unchanged = have == Some((version, revision));
        let bytes = match unchanged {
            true => Arc::default(),
            false => self.values.pull(what, wanted).map_err(PsError::Values)?,
        };
        let pulled = Pulled {
            version,
            revision,
            unchanged,
        };
        Ok((Reply::Values(pulled), bytes))
    }

    fn snapshot_if_due(&mut self, options: &ServerOptions) -> Result<(), PsError> {
        let Some(log) = &mut self.log else {
            return Ok(());
        };
        if log.bytes < options.snapshot_bytes {
            return Ok(());
        }
        let values = self.values.save().map_err(PsError::Values)?;
        let mut lengths = Vec::new();
        let mut bytes = Vec::new();
        for part in self.shards.staged_bytes().chain([&values[..]]) {
            lengths.push(part.len() as u64);
            bytes.extend_from_slice(part);
        }
        log.snapshot(&(&self.shards, lengths), &bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{ControlSettings, PhaseKind};
    use crate::message::Hello;
    use crate::{Clock, Grant, Mode, Work};
    use std::time::Duration;

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
            let first = Request::Hello(Hello {
                job: String::new(),
                version: String::new(),
                worker: 0,
                incarnation: 1,
                settings: settings.clone(),
            });
            state.keep(0, &first, &[], &options).unwrap();
            state.control = Some(Control::new(settings.clone()));
            Self {
                state,
                settings,
                options,
                folder,
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

        fn come(&mut self, worker: usize) {
            let settings = self.settings.clone();
            let control = self.control();
            control.hello(Duration::ZERO, worker, 1, &settings).unwrap();
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
            let enter = Request::Enter {
                phase: "phase".into(),
                kind: PhaseKind::Train,
                start: 0,
                end: 10,
            };
            recorded.say(0, &enter, Vec::new());
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
            let over = recorded
                .control()
                .next(Duration::ZERO, 0, "phase", &[])
                .unwrap();
            let Grant::Over(over) = over else {
                panic!("{mode}: {over:?}");
            };
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
            let enter = Request::Enter {
                phase: "phase".into(),
                kind: PhaseKind::Train,
                start: 0,
                end: 1000,
            };
            recorded.say(0, &enter, Vec::new());
            // One worker is at 100 when another comes, which is lost when it is at 105.
            recorded.come(0);
            let _ = (0..100).map(|_| recorded.work(0)).last();
            recorded.come(1);
            let mut clocks = [100, 100, 0];
            for worker in [0, 1].into_iter().cycle().take(10) {
                clocks[worker] = recorded.work(worker).own;
            }
            recorded.control().gone(0, 1);
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
}
