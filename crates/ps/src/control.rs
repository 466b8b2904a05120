//! Who does which piece of work and when: a state machine of requests and times in, answers out.
//!
//! The work of a job goes in *phases*, which all workers go through in one order: an epoch of training, an evaluation, a prediction.
//! A phase has items, which are batches. In most modes the control hands out whole items, the lowest first, and what a lost worker
//! had goes to another; so each item is done once, and a slow worker gets fewer. Where workers step together an item is a step of one
//! part for each worker, and the next step begins when enough parts of it are there.
//!
//! A worker that comes later goes through the phases that are over in no time: it is answered with their results.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Clock;
use crate::members::Member;
use crate::message::Commit;
use crate::phase::{PartState, PhaseState};
use crate::task_queue::TaskQueue;
use crate::{Mode, PsError};

/// How a job is run; equal in all its workers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlSettings {
    /// The number of workers.
    pub workers: usize,
    /// How far they may be apart.
    pub mode: Mode,
    /// Whether the others go on when the first worker is lost, until the next thing that only it does.
    pub goes_on_without_chief: bool,
}

impl ControlSettings {
    /// Whether the numbers make sense together.
    ///
    /// # Errors
    /// There are no workers, or as many backup workers.
    pub fn check(&self) -> Result<(), PsError> {
        let backup = self.mode.backup_workers().unwrap_or(0);
        if self.workers == 0 || backup >= self.workers {
            return Err(PsError::User(format!(
                "there are {} workers, {backup} of them backup workers; at least one must be none",
                self.workers
            )));
        }
        Ok(())
    }
}

impl fmt::Display for ControlSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let without = match self.goes_on_without_chief {
            true => " that go on without the first one",
            false => "",
        };
        write!(f, "{} workers, {}{without}", self.workers, self.mode)
    }
}

/// What a phase is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PhaseKind {
    /// Its work updates the variables; results are numbers that are added up.
    Train,
    /// Results are numbers that are added up.
    Sum,
    /// Each item leaves its own bytes.
    Collect,
}

/// A piece of work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// Its number in the job.
    pub id: u64,
    /// The item.
    pub item: u64,
    /// Which part of the item.
    pub part: usize,
    /// Of how many.
    pub parts: usize,
    /// No piece of work below this number is ever done again.
    pub done_below: u64,
    /// The number of steps that were taken together before it.
    pub version: u64,
    /// The last of these steps.
    pub commit: Option<Commit>,
    /// How far the worker is; none where nobody counts.
    pub clock: Option<Clock>,
}

/// What a phase was.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// The number after the last item that was done.
    pub end: u64,
    /// Whether it ended before its last item since somebody asked for it.
    pub stopped: bool,
    /// The sums of the results.
    #[serde(with = "crate::numbers")]
    pub sums: Vec<f64>,
    /// Number of items whose bytes are kept.
    pub items: u64,
    /// Parts that came too late for their step, or never.
    pub dropped: u64,
    /// By how many updates of others a push was behind, and how many pushes were.
    pub staleness: Vec<(u64, u64)>,
    /// The last step that was taken together.
    pub commit: Option<Commit>,
}

/// What a worker is to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grant {
    /// This piece of work.
    Work(Work),
    /// To ask again: these workers are waited for.
    Wait {
        /// Workers by number.
        waiting_for: Vec<usize>,
        /// Why, for a person.
        why: String,
    },
    /// To go on: the phase is over.
    Over(Phase),
}

/// The results of a piece of work that is done.
#[derive(Clone, Debug, PartialEq)]
pub struct Results {
    /// The weight of its examples in the loss.
    pub weight: f64,
    /// The number of its examples.
    pub rows: f64,
    /// How many updates of others were made between its pull and its push.
    pub staleness: u64,
    /// What it leaves.
    pub bytes: Vec<u8>,
}

/// The state of the control.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Control {
    settings: ControlSettings,
    /// Phases in their order; all but the last are over.
    order: Vec<String>,
    pub(crate) phases: BTreeMap<String, PhaseState>,
    pub(crate) next_work: u64,
    #[serde(default)]
    pub(crate) tasks: TaskQueue,
    /// Steps taken together since the beginning, and the last of them.
    version: u64,
    commit: Option<Commit>,
    /// Pieces of work that each worker has done, or need not do since it came late.
    pub(crate) clocks: BTreeMap<usize, u64>,
    /// Pieces of work that all workers together have done; no clock is above it.
    #[serde(default)]
    pub(crate) all_done: u64,
    #[serde(with = "crate::hex_bytes")]
    values: BTreeMap<String, Vec<u8>>,
    pub(crate) is_stopping: bool,
    failure: Option<(String, String)>,
    /// Whether a worker has said so, rather than been lost.
    #[serde(default)]
    was_failed: bool,
    /// Whether the first worker has left in good order.
    #[serde(default)]
    pub(crate) has_chief_left: bool,
    /// Whether the job was started again after a stop, and no process of the first worker has come to the last phase since.
    #[serde(default)]
    pub(crate) is_started_again: bool,
    #[serde(skip)]
    pub(crate) members: BTreeMap<usize, Member>,
    /// When somebody came first.
    #[serde(skip)]
    pub(crate) started: Option<Duration>,
    /// When the clock was looked at last.
    #[serde(skip)]
    pub(crate) looked: Option<Duration>,
    /// Whether it was made of what another has kept.
    #[serde(skip)]
    pub(crate) is_recovered: bool,
    /// Whether it was asked to stop before it was started again.
    #[serde(skip)]
    pub(crate) was_to_stop: bool,
    /// Whether the first worker's process may be a new one that has not come to the last phase since this was started again.
    #[serde(skip)]
    pub(crate) awaits_chief: bool,
}

impl Control {
    /// A job that nobody has joined.
    #[must_use]
    pub fn new(settings: ControlSettings) -> Self {
        Self {
            settings,
            order: Vec::new(),
            phases: BTreeMap::new(),
            next_work: 0,
            tasks: TaskQueue::default(),
            version: 0,
            commit: None,
            clocks: BTreeMap::new(),
            all_done: 0,
            values: BTreeMap::new(),
            is_stopping: false,
            failure: None,
            was_failed: false,
            has_chief_left: false,
            is_started_again: false,
            members: BTreeMap::new(),
            started: None,
            looked: None,
            is_recovered: false,
            was_to_stop: false,
            awaits_chief: false,
        }
    }

    /// What a snapshot keeps of it: what workers have in their hands is handed out again, as after a restart.
    pub(crate) fn at_rest(&self) -> Self {
        let mut control = self.clone();
        for phase in control.phases.values_mut() {
            for part in &mut phase.parts {
                if matches!(part, PartState::Given(_)) {
                    *part = PartState::Free;
                }
            }
        }
        control
    }

    /// How the job is run.
    #[must_use]
    pub const fn settings(&self) -> &ControlSettings {
        &self.settings
    }

    /// The job cannot go on.
    pub fn fail(&mut self, who: String, why: String) {
        self.failure.get_or_insert((who, why));
    }

    /// A worker says that the job cannot go on.
    pub(crate) fn fail_by(&mut self, worker: usize, why: String) {
        self.fail(format!("worker {worker}"), why);
        self.was_failed = true;
    }

    /// Whether a worker has said that the job cannot go on.
    pub(crate) const fn was_failed(&self) -> bool {
        self.was_failed
    }

    /// Who ended the job, and why.
    #[must_use]
    pub const fn failure(&self) -> Option<&(String, String)> {
        self.failure.as_ref()
    }

    /// Keeps bytes under a key that has none.
    pub fn put(&mut self, key: String, bytes: Vec<u8>) {
        self.values.entry(key).or_insert(bytes);
    }

    /// The bytes of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&[u8]> {
        self.values.get(key).map(Vec::as_slice)
    }

    /// All are to stop after the work that they have begun: up to `end`, which is where the control stood when it was asked to.
    pub fn stop(&mut self, end: Option<u64>) {
        self.is_stopping = true;
        if let Some(phase) = self.current() {
            phase.stop(end);
        }
    }

    /// The number after the last item of the present phase that was handed out, or may have been before a restart.
    #[must_use]
    pub fn end_of_begun(&mut self) -> Option<u64> {
        self.current().map(|phase| phase.end_of_begun())
    }

    /// The phase that was begun last; it may be over.
    #[must_use]
    pub fn last_phase(&self) -> Option<&str> {
        self.order.last().map(String::as_str)
    }

    /// The phase that is not over.
    pub(crate) fn current(&mut self) -> Option<&mut PhaseState> {
        let phase = self.phases.get_mut(self.order.last()?)?;
        (!phase.is_over).then_some(phase)
    }

    /// A worker goes on with a phase, which the first worker begins.
    ///
    /// # Errors
    /// Another phase is going on, or the phase has other items: workers run different programs.
    pub fn enter(
        &mut self,
        worker: usize,
        name: &str,
        kind: PhaseKind,
        items: std::ops::Range<u64>,
    ) -> Result<(), PsError> {
        let is_last = self.last_phase() == Some(name);
        if worker == 0 && (is_last || !self.phases.contains_key(name)) {
            (self.awaits_chief, self.is_started_again) = (false, false);
        }
        if let Some(phase) = self.phases.get_mut(name) {
            let known = (phase.kind, phase.start, phase.given_end);
            if known == (kind, items.start, items.end) {
                if is_last && worker == 0 && !self.is_stopping {
                    // Where the job had stopped here, it was started again to go on.
                    phase.go_on();
                }
                return Ok(());
            }
            return Err(PsError::User(format!(
                "worker {worker} has items {items:?} in the phase `{name}`, others have {}..{}; start all with the same program, settings and data",
                phase.start, phase.given_end
            )));
        }
        if worker != 0 {
            // What the first worker does before, the others see the results of.
            return Ok(());
        }
        if kind == PhaseKind::Train && self.tasks.has_unfinished() {
            return Err(PsError::User(format!(
                "`{name}` begins while functions run that were scheduled; join them first"
            )));
        }
        if self.current().is_some() {
            let at = self.order.last().cloned().unwrap_or_default();
            return Err(PsError::User(format!(
                "worker {worker} is at `{name}`, others are at `{at}`; start all with the same program and settings"
            )));
        }
        let together = kind == PhaseKind::Train && self.settings.mode.backup_workers().is_some();
        let parts = together.then_some(self.settings.workers);
        let mut phase = PhaseState::new(kind, items, self.next_work, parts);
        // Numbers of what is pushed are never used again, and count batches as one process would.
        if kind == PhaseKind::Train {
            self.next_work = phase.id(phase.end, 0);
        }
        if self.is_stopping && kind == PhaseKind::Train {
            phase.stop(None);
        }
        phase.end_if_done();
        self.order.push(name.to_owned());
        self.phases.insert(name.to_owned(), phase);
        Ok(())
    }

    /// What a worker is to do in a phase that it has entered, beside the pieces of work that it has and has not done.
    ///
    /// # Errors
    /// The first worker has ended without it, or the worker has two pieces of work already.
    pub fn next(
        &mut self,
        now: Duration,
        worker: usize,
        name: &str,
        has: &[u64],
    ) -> Result<Grant, PsError> {
        Self::check_in_hand(worker, has)?;
        let (version, commit) = (self.version, self.commit.clone());
        let unknown = || PsError::Protocol(format!("nobody has entered the phase `{name}`"));
        let Some(phase) = self.phases.get(name) else {
            if self.chief_has_left() {
                return Err(PsError::Lost(format!(
                    "the first worker has ended, and worker {worker} is at `{name}`; start all with the same program and settings"
                )));
            }
            return Ok(Grant::Wait {
                waiting_for: vec![0],
                why: format!("it has not begun `{name}`"),
            });
        };
        if phase.is_over {
            if worker != 0 && self.may_go_on(name) {
                return Ok(Grant::Wait {
                    waiting_for: vec![0],
                    why: format!("`{name}` had stopped, and goes on where it does"),
                });
            }
            return Ok(Grant::Over(Phase {
                commit,
                ..phase.results.clone()
            }));
        }
        let ahead_of = self.ahead_of(worker, phase.kind, has.len() as u64);
        let clock = self.clock_of(worker, has.len() as u64);
        let others: BTreeMap<usize, bool> = (0..self.settings.workers)
            .map(|other| (other, self.is_expected(now, other)))
            .collect();
        let phase = self.phases.get_mut(name).ok_or_else(unknown)?;
        let piece = match phase.parts.is_empty() {
            true => phase.next_item(now, worker, has, &ahead_of),
            false => phase.next_part(worker, &others),
        };
        Ok(match piece {
            Ok((item, part)) => Grant::Work(Work {
                id: phase.id(item, part),
                item,
                part,
                parts: phase.parts_of_item as usize,
                done_below: phase.id(phase.done_below, 0),
                version,
                commit,
                clock: Some(clock),
            }),
            Err((waiting_for, why)) => Grant::Wait { waiting_for, why },
        })
    }

    /// A piece of work is done. Whether that is news.
    ///
    /// # Errors
    /// There is no such piece of work.
    pub fn done(
        &mut self,
        worker: usize,
        name: &str,
        work: u64,
        results: Results,
    ) -> Result<bool, PsError> {
        let unknown = || {
            PsError::Protocol(format!(
                "there is no piece of work {work} in the phase `{name}`"
            ))
        };
        let phase = self.phases.get_mut(name).ok_or_else(unknown)?;
        let (item, part) = phase.item_of(work).ok_or_else(unknown)?;
        if phase.is_over {
            return Ok(false);
        }
        if phase.parts.is_empty() {
            let is_news = phase.item_done(item, results);
            if is_news && phase.kind == PhaseKind::Train {
                self.count(worker);
            }
            return Ok(is_news);
        }
        if !phase.part_done(item, part, &results) {
            return Ok(false);
        }
        let backup = self.settings.mode.backup_workers().unwrap_or(0);
        let done = |part: &&PartState| matches!(part, PartState::Done { .. });
        if phase.parts.iter().filter(done).count() + backup >= phase.parts.len() {
            self.commit = Some(phase.commit(self.version));
            self.version += 1;
        }
        self.count(worker);
        Ok(true)
    }

    /// What the items of a phase left, from one on: numbers and bytes.
    #[must_use]
    pub fn items(&self, name: &str, from: u64) -> Vec<(u64, &[u8])> {
        let items = self
            .phases
            .get(name)
            .into_iter()
            .flat_map(|phase| phase.items.range(from..));
        items.map(|(item, bytes)| (*item, &bytes[..])).collect()
    }
}
