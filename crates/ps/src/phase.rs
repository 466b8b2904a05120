//! A phase: which of its items are done, with whom the others are, and the results so far.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::PsError;
use crate::control::{Control, Phase, PhaseKind, Results};
use crate::message::{Commit, Part};

/// The most items of a phase whose end is not known when it begins.
const MOST_ITEMS: u64 = 1 << 40;

/// The most pieces of work that a worker has at once: one that it ends, and one that it begins meanwhile.
const MOST_IN_HAND: usize = 2;

/// A part of the step that is under way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum PartState {
    Free,
    #[serde(skip)]
    Given(usize),
    Done {
        #[serde(with = "crate::numbers")]
        weight: f64,
        #[serde(with = "crate::numbers")]
        rows: f64,
        #[serde(with = "crate::numbers")]
        sums: Vec<f64>,
    },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PhaseState {
    pub(crate) kind: PhaseKind,
    /// As the first worker that entered it said.
    pub(crate) start: u64,
    pub(crate) given_end: u64,
    /// The end, which is sooner where the training is stopped.
    pub(crate) end: u64,
    /// The end before it was stopped, where it was.
    #[serde(default)]
    end_before_stop: Option<u64>,
    /// The number of the first piece of work.
    pub(crate) base: u64,
    pub(crate) parts_of_item: u64,
    /// The first item that was not handed out yet, or the step that is under way.
    pub(crate) next: u64,
    /// All items below are done; `done` has those above that are.
    pub(crate) done_below: u64,
    pub(crate) done: BTreeSet<u64>,
    /// Items that somebody works on, and since when.
    #[serde(skip)]
    pub(crate) given: BTreeMap<u64, (usize, Duration)>,
    /// Workers may have items below this from a control before this one, which kept only what was done.
    #[serde(skip)]
    pub(crate) begun_below: u64,
    pub(crate) parts: Vec<PartState>,
    pub(crate) results: Phase,
    pub(crate) staleness: BTreeMap<u64, u64>,
    #[serde(with = "crate::hex_bytes")]
    pub(crate) items: BTreeMap<u64, Vec<u8>>,
    pub(crate) is_over: bool,
}

impl PhaseState {
    /// A phase of items whose pieces of work are numbered from `base` on; in parts where workers step together.
    pub(crate) fn new(
        kind: PhaseKind,
        items: std::ops::Range<u64>,
        base: u64,
        parts: Option<usize>,
    ) -> Self {
        Self {
            kind,
            start: items.start,
            given_end: items.end,
            end: items
                .end
                .clamp(items.start, items.start.saturating_add(MOST_ITEMS)),
            end_before_stop: None,
            base,
            parts_of_item: parts.unwrap_or(1) as u64,
            next: items.start,
            done_below: items.start,
            done: BTreeSet::new(),
            given: BTreeMap::new(),
            begun_below: items.start,
            parts: vec![PartState::Free; parts.unwrap_or(0)],
            results: Phase::default(),
            staleness: BTreeMap::new(),
            items: BTreeMap::new(),
            is_over: false,
        }
    }

    pub(crate) fn id(&self, item: u64, part: usize) -> u64 {
        self.base + (item - self.start) * self.parts_of_item + part as u64
    }

    pub(crate) fn item_of(&self, work: u64) -> Option<(u64, usize)> {
        let at = work.checked_sub(self.base)?;
        let item = self.start + at / self.parts_of_item;
        (item < self.given_end).then_some((item, (at % self.parts_of_item) as usize))
    }

    /// The number after the last item that was handed out, or may have been before the control was started again.
    pub(crate) fn end_of_begun(&self) -> u64 {
        let begun = self.parts.iter().any(|part| *part != PartState::Free);
        let known = self.next + u64::from(begun);
        known.max(self.begun_below).min(self.end)
    }

    /// Ends a training after what was handed out, which is up to `end` where a control was started again.
    pub(crate) fn stop(&mut self, end: Option<u64>) {
        if self.kind != PhaseKind::Train {
            return;
        }
        let end = end.unwrap_or_else(|| self.end_of_begun());
        if end < self.end {
            self.results.stopped = true;
            self.end_before_stop.get_or_insert(self.end);
            self.end = end;
        }
        self.end_if_done();
    }

    /// Goes on to the end that it had before it was stopped.
    pub(crate) fn go_on(&mut self) {
        if let Some(end) = self.end_before_stop.take() {
            (self.end, self.results.stopped, self.is_over) = (end, false, false);
            self.end_if_done();
        }
    }

    /// Ends where the data do, but not before what is done.
    fn end_before(&mut self, item: u64) {
        let is_done = |part: &PartState| matches!(part, PartState::Done { .. });
        let begun = match self.done.last() {
            Some(last) => last + 1,
            None => self.done_below + u64::from(self.parts.iter().any(is_done)),
        };
        let end = item.max(begun);
        self.end = self.end.min(end);
        self.end_before_stop = self.end_before_stop.map(|before| before.min(end));
        self.next = self.next.min(self.end);
        self.given.retain(|given, _| *given < item);
        self.end_if_done();
    }

    /// The lowest item that nobody has, or whom to wait for.
    pub(crate) fn next_item(
        &mut self,
        now: Duration,
        worker: usize,
        has: &[u64],
        ahead_of: &[usize],
    ) -> Result<(u64, usize), (Vec<usize>, String)> {
        let has = self.take_note(now, worker, has);
        if !ahead_of.is_empty() {
            // What it was given goes to the others, who may have nothing else to do.
            (self.given).retain(|item, (by, _)| *by != worker || has.contains(item));
            let why = "they are the slowest, and this worker is as far ahead as it may be";
            return Err((ahead_of.to_vec(), why.into()));
        }
        let mut own = self.given.iter();
        let own = own.find(|(item, (by, _))| *by == worker && !has.contains(item));
        if let Some((&item, _)) = own {
            // The answer was lost.
            return Ok((item, 0));
        }
        let is_free = |item: &u64| {
            !(self.done.contains(item) || self.given.contains_key(item) || has.contains(item))
        };
        let lost = (self.done_below..self.next).find(is_free);
        let item = lost.or((self.next < self.end).then_some(self.next));
        let Some(item) = item else {
            let whom: Vec<usize> = self.given.values().map(|(by, _)| *by).collect();
            return Err((whom, "the last batches of the phase are with them".into()));
        };
        self.next = self.next.max(item + 1);
        self.given.insert(item, (worker, now));
        Ok((item, 0))
    }

    /// The items that a worker has: given to it, also where that was forgotten in a restart.
    fn take_note(&mut self, now: Duration, worker: usize, has: &[u64]) -> Vec<u64> {
        let items = has.iter().filter_map(|work| self.item_of(*work));
        let items: Vec<u64> = items.map(|(item, _)| item).collect();
        for &item in &items {
            if item >= self.done_below && item < self.end && !self.done.contains(&item) {
                self.given.entry(item).or_insert((worker, now));
                self.next = self.next.max(item + 1);
            }
        }
        items
    }

    /// A part of the step that is under way: a worker's own, or of a worker that is not there.
    pub(crate) fn next_part(
        &mut self,
        worker: usize,
        is_expected: &BTreeMap<usize, bool>,
    ) -> Result<(u64, usize), (Vec<usize>, String)> {
        let is_free = |part: usize| self.parts[part] == PartState::Free;
        let again = self
            .parts
            .iter()
            .position(|part| *part == PartState::Given(worker));
        let orphan = |part: &usize| is_free(*part) && !is_expected.get(part).unwrap_or(&false);
        let own = (worker < self.parts.len() && is_free(worker)).then_some(worker);
        let found = again.or(own).or_else(|| (0..self.parts.len()).find(orphan));
        let Some(part) = found else {
            let missing = self
                .parts
                .iter()
                .enumerate()
                .filter_map(|(part, state)| match state {
                    PartState::Free => Some(part),
                    PartState::Given(by) => Some(*by),
                    PartState::Done { .. } => None,
                });
            let why = "their parts of the step are missing";
            return Err((missing.collect(), why.into()));
        };
        self.parts[part] = PartState::Given(worker);
        Ok((self.next, part))
    }

    pub(crate) fn item_done(&mut self, item: u64, results: Results) -> bool {
        if item < self.done_below || item >= self.end.max(self.next) || !self.done.insert(item) {
            return false;
        }
        self.given.remove(&item);
        self.next = self.next.max(item + 1);
        while self.done.remove(&self.done_below) {
            self.done_below += 1;
        }
        match self.kind {
            PhaseKind::Collect => {
                self.items.insert(item, results.bytes);
            }
            PhaseKind::Sum | PhaseKind::Train => {
                add(&mut self.results.sums, &numbers(&results.bytes));
            }
        }
        if self.kind == PhaseKind::Train {
            *self.staleness.entry(results.staleness).or_insert(0) += 1;
        }
        self.end_if_done();
        true
    }

    pub(crate) fn part_done(&mut self, item: u64, part: usize, results: &Results) -> bool {
        if item != self.next || matches!(self.parts[part], PartState::Done { .. }) {
            return false;
        }
        self.parts[part] = PartState::Done {
            weight: results.weight,
            rows: results.rows,
            sums: numbers(&results.bytes),
        };
        true
    }

    /// Ends the step that is under way: what it is made of.
    pub(crate) fn commit(&mut self, version: u64) -> Commit {
        let item = self.next;
        let count = self.parts.len();
        let states = std::mem::replace(&mut self.parts, vec![PartState::Free; count]);
        let mut parts = Vec::with_capacity(count);
        for (part, state) in states.into_iter().enumerate() {
            if let PartState::Done { weight, rows, sums } = state {
                add(&mut self.results.sums, &sums);
                let work = self.id(item, part);
                parts.push(Part { work, weight, rows });
            }
        }
        self.results.dropped += (count - parts.len()) as u64;
        *self.staleness.entry(0).or_insert(0) += parts.len() as u64;
        self.next += 1;
        self.done_below = self.next;
        self.end_if_done();
        Commit {
            version,
            parts,
            factors: None,
        }
    }

    pub(crate) fn end_if_done(&mut self) {
        if self.done_below < self.end {
            return;
        }
        self.is_over = true;
        self.results.end = self.end;
        self.results.items = self.items.len() as u64;
        self.results.staleness = self.staleness.iter().map(|(by, n)| (*by, *n)).collect();
    }
}

impl Control {
    /// This control was made of what another kept: workers may have items that it does not know of.
    ///
    /// The next item is handed out when all before it are with workers or done, so none is further than what they can have.
    /// Where workers step together, the part of a step that did not count is not applied either.
    pub fn recovered(&mut self) {
        self.is_recovered = true;
        self.was_to_stop = self.is_stopping;
        self.awaits_chief = true;
        let in_hand = (MOST_IN_HAND * self.settings().workers) as u64;
        if let Some(phase) = self.current()
            && phase.parts.is_empty()
        {
            phase.begun_below = phase.next.saturating_add(in_hand);
        }
    }

    /// Whether a phase that had stopped goes on when the first worker, which has not come back to it, does.
    pub(crate) fn may_go_on(&self, name: &str) -> bool {
        let is_stopped = |phase: &PhaseState| phase.end_before_stop.is_some();
        self.awaits_chief
            && !self.chief_has_left()
            && self.last_phase() == Some(name)
            && self.phases.get(name).is_some_and(is_stopped)
    }

    /// The first worker's process is one that there was before. What has stopped stays so, unless that process came to go on.
    pub(crate) const fn chief_is_back(&mut self) {
        self.awaits_chief = self.is_started_again;
    }

    /// The job was started again after it was asked to stop.
    pub(crate) fn go_on(&mut self) {
        (self.is_stopping, self.was_to_stop) = (false, false);
        (self.is_started_again, self.awaits_chief) = (true, true);
        self.has_chief_left = false;
        if let Some(phase) = self.current() {
            phase.go_on();
        }
    }

    /// Refuses a worker that would have more pieces of work than a stop after a restart counts with.
    pub(crate) fn check_in_hand(worker: usize, has: &[u64]) -> Result<(), PsError> {
        if has.len() < MOST_IN_HAND {
            return Ok(());
        }
        Err(PsError::Protocol(format!(
            "worker {worker} has {} pieces of work and asks for another; it may have {MOST_IN_HAND} at once, so it ends one first",
            has.len()
        )))
    }

    /// The data of a phase have no such item, nor any after it: a worker has read to their end.
    ///
    /// # Errors
    /// There is no such phase.
    pub fn no_more(&mut self, name: &str, item: u64) -> Result<(), PsError> {
        let unknown = || PsError::Protocol(format!("nobody has entered the phase `{name}`"));
        let phase = self.phases.get_mut(name).ok_or_else(unknown)?;
        if phase.is_over {
            return Ok(());
        }
        let after = phase.id(phase.end, 0);
        phase.end_before(item);
        // Nothing is pushed under the numbers of items that there are not, so that the next phase counts as one process would.
        if phase.kind == PhaseKind::Train && self.next_work == after {
            self.next_work = phase.id(phase.end, 0);
        }
        Ok(())
    }
}

fn numbers(bytes: &[u8]) -> Vec<f64> {
    let number = |bytes: &[u8]| bytes.try_into().map_or(f64::NAN, f64::from_le_bytes);
    bytes.chunks(8).map(number).collect()
}

/// Adds numbers to sums; the first are the sums.
fn add(sums: &mut Vec<f64>, more: &[f64]) {
    if sums.is_empty() {
        sums.extend_from_slice(more);
        return;
    }
    for (sum, more) in sums.iter_mut().zip(more) {
        *sum += more;
    }
}
