//! The processes of workers: started, watched, told to end.

use std::process::Command;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use rustix::thread::CpuSet;

use super::logs::{Logs, Stream};
use super::outcome::{Ended, How, MISTAKE, Outcome, TRY_AGAIN, first_failure};
use super::process_group::ProcessGroup;
use super::{Launch, LaunchError, Stop};
use crate::TaskKind;
use crate::coordination::Host;

/// How often ends and signals are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How long after the first signal others are the same wish: schedulers and terminals that close send several.
const SAME: Duration = Duration::from_secs(1);
/// How long output may come after a process has ended.
const OUTPUT_WITHIN: Duration = Duration::from_secs(1);

pub(super) struct Workers<'a> {
    launch: &'a Launch,
    logs: Logs,
    tell: Box<dyn FnMut(&str) + Send>,
    host: Host,
    /// The processors of each worker.
    cores: Vec<CpuSet>,
    /// The command of a worker that was started again this number of times.
    command: &'a dyn Fn(usize, u32) -> Command,
    restarts: Vec<u32>,
    /// How many of the workers that were lost were looked at.
    lost: usize,
    running: Vec<Running>,
    ended: Vec<Ended>,
    start: Instant,
    /// When the first worker failed.
    failed: Option<Instant>,
    /// When the workers were told to end.
    told: Option<Instant>,
    /// By which exit code they were if by a signal from outside, and when that came.
    stopped: Option<(u8, Instant)>,
}

struct Running {
    rank: usize,
    process: ProcessGroup,
}

impl<'a> Workers<'a> {
    pub(super) fn new(
        launch: &'a Launch,
        logs: Logs,
        host: Host,
        cores: Vec<CpuSet>,
        command: &'a dyn Fn(usize, u32) -> Command,
    ) -> Self {
        Self {
            launch,
            tell: Box::new(logs.teller()),
            logs,
            host,
            cores,
            command,
            restarts: vec![0; launch.processes()],
            lost: 0,
            running: Vec::new(),
            ended: Vec::new(),
            start: Instant::now(),
            failed: None,
            told: None,
            stopped: None,
        }
    }

    /// Starts a worker on its processors.
    pub(super) fn start(&mut self, rank: usize) -> Result<(), LaunchError> {
        let mut command = (self.command)(rank, self.restarts[rank]);
        let started = ProcessGroup::start(&mut command, self.cores.get(rank));
        let (process, (out, err)) = started.map_err(|source| LaunchError::Program {
            program: self.launch.program[0].to_string_lossy().into_owned(),
            source,
        })?;
        self.running.push(Running { rank, process });
        self.show_first();
        self.logs.follow(rank, Stream::Out, out)?;
        self.logs.follow(rank, Stream::Err, err)
    }

    /// Waits for the end of all workers.
    pub(super) fn watch(mut self, stop: &Stop) -> Outcome {
        loop {
            self.pass_on(stop);
            self.collect();
            self.end_lost();
            if self.running.is_empty() {
                break;
            }
            self.press();
            thread::sleep(LOOK_EVERY);
        }
        self.logs.finish(OUTPUT_WITHIN);
        let first = first_failure(&self.ended).map(|ended| ended.rank);
        Outcome {
            last_lines: first
                .map(|rank| self.logs.last_lines(rank))
                .unwrap_or_default(),
            log: first.map(|rank| self.logs.path(rank, Stream::Err)),
            ended: self.ended,
            stopped: self.stopped.map(|(code, _)| code),
        }
    }

    /// Ends all workers at once.
    pub(super) fn kill(&mut self) {
        self.signal(Signal::KILL);
        for mut running in self.running.drain(..) {
            running.process.kill();
        }
    }

    /// Passes a signal on; another ends all at once. That a terminal was closed is no wish for haste.
    fn pass_on(&mut self, stop: &Stop) {
        for (flag, signal, code) in [
            (&stop.interrupt, Signal::INT, 130),
            (&stop.terminate, Signal::TERM, 143),
            (&stop.hangup, Signal::HUP, 143),
            (&stop.user, Signal::USR1, 143),
        ] {
            if !flag.swap(false, Ordering::Relaxed) {
                continue;
            }
            match self.stopped {
                None => self.signal(signal),
                Some((_, at)) if signal == Signal::HUP || at.elapsed() < SAME => continue,
                Some(_) => self.signal(Signal::KILL),
            }
            self.stopped = Some((code, Instant::now()));
            self.told.get_or_insert_with(Instant::now);
        }
    }

    /// Takes note of those that have ended, and ends what they left behind.
    fn collect(&mut self) {
        let (start, told) = (self.start, self.told.is_some());
        let mut at = 0;
        while at < self.running.len() {
            let Some(status) = self.running[at].process.end() else {
                at += 1;
                continue;
            };
            let how = How::of(status);
            let rank = self.running.remove(at).rank;
            let ended = Ended {
                rank,
                how,
                after: start.elapsed(),
                told,
                absorbed: !told && self.goes_on_without(rank, how),
            };
            self.ended.push(ended);
        }
        if self.failed.is_none() && self.is_training_lost() {
            self.failed = Some(Instant::now());
        }
    }

    /// Whether a process has failed that the training cannot do without.
    fn is_training_lost(&self) -> bool {
        let needed = |ended: &&Ended| self.launch.task(ended.rank).kind != TaskKind::Evaluator;
        let ended: Vec<Ended> = self.ended.iter().filter(needed).cloned().collect();
        first_failure(&ended).is_some()
    }

    /// Whether the training goes on after the end of a worker: another process is started in its place, or there are enough others.
    fn goes_on_without(&mut self, rank: usize, how: How) -> bool {
        if how == How::Code(0) || self.host.failure().is_some() {
            return false;
        }
        let may_try_again = how.exit_code() == TRY_AGAIN;
        let is_ready = !self.launch.restarts_once_met || self.host.has_met();
        if may_try_again && is_ready && self.restarts[rank] < self.launch.max_restarts {
            self.restarts[rank] += 1;
            let (number, most) = (self.restarts[rank], self.launch.max_restarts);
            (self.tell)(&format!(
                "{} {how} and is started again ({number} of {most})",
                self.launch.task(rank)
            ));
            self.logs.finish_worker(rank, OUTPUT_WITHIN);
            return self.start(rank).is_ok();
        }
        let task = self.launch.task(rank);
        if task.kind == TaskKind::Evaluator {
            (self.tell)(&format!("{task} {how}; the training goes on without it"));
            // What it got wrong is told at the end; that it was lost costs the training nothing.
            return may_try_again;
        }
        let is_worker = task.kind.trains();
        // Who has ended well has gone on to the end.
        let well = self.ended.iter().filter(|ended| ended.how == How::Code(0));
        let others = self.running.iter().map(|running| running.rank);
        let others = others.chain(well.map(|ended| ended.rank));
        let others = others
            .filter(|rank| self.launch.task(*rank).kind.trains())
            .count();
        // What a worker of parameter servers does, the others do without it; only the first one also saves.
        let least = match self.launch.servers {
            0 => self.launch.least_workers.get(),
            _ => 1,
        };
        if self.launch.servers == 0 && is_worker {
            self.host.give_up(rank);
        }
        let can_lose = is_worker && (self.launch.servers == 0 || rank > 0);
        let goes_on = may_try_again && can_lose && others >= least;
        if goes_on {
            (self.tell)(&format!("{task} {how}; {others} go on"));
            self.show_first();
        }
        goes_on
    }

    /// Shows the output of the first of the workers that are there, which is the one that reports.
    fn show_first(&self) {
        let ranks = self.running.iter().map(|running| running.rank);
        let first = ranks.filter(|rank| self.launch.task(*rank).kind.trains());
        if let Some(first) = first.min() {
            self.logs.set_chief(first);
        }
    }

    /// Ends processes that the others went on without, such as one that was stopped for too long: another takes its place.
    fn end_lost(&mut self) {
        let lost = self.host.lost();
        for lost in lost.iter().skip(self.lost) {
            let is_it = |running: &&Running| running.process.id() == lost.group;
            if let Some(running) = self.running.iter().find(is_it) {
                (self.tell)(&format!("{}", lost.failure));
                // It is collected next.
                running.process.signal(Signal::KILL);
            }
        }
        self.lost = lost.len();
    }

    /// After a failure: time to hear of it, then SIGTERM, then SIGKILL.
    fn press(&mut self) {
        let Launch { stop_grace, .. } = self.launch;
        let grace = &self.grace();
        if self.told.is_none() && self.failed.is_some_and(|failed| failed.elapsed() >= *grace) {
            self.signal(Signal::TERM);
            self.told = Some(Instant::now());
        }
        if self.told.is_some_and(|told| told.elapsed() >= *stop_grace) {
            self.signal(Signal::KILL);
        }
    }

    /// How long the others may take to hear of the first failure. A mistake of the user is nothing that they could hear of: each finds
    /// it by itself, or waits for one that has.
    fn grace(&self) -> Duration {
        let first = first_failure(&self.ended).map(|ended| ended.how);
        match first {
            Some(How::Code(MISTAKE)) => self.launch.grace.min(Duration::from_secs(1)),
            _ => self.launch.grace,
        }
    }

    fn signal(&self, signal: Signal) {
        for running in &self.running {
            running.process.signal(signal);
        }
    }
}
