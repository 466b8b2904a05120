//! Who is waited for before a generation begins, and how long.

use std::collections::BTreeSet;
use std::time::Duration;

use super::super::event::{Actions, Connection};
use super::{REPORT_EVERY, State};

impl State {
    /// The connections of those that have come new to what others have begun, and are not the one that was lost.
    pub(super) fn comers_left(&self) -> BTreeSet<Connection> {
        let lost = self.failure.as_ref().map(|failure| failure.worker);
        if self
            .members
            .values()
            .all(|member| member.progress.is_none())
        {
            return BTreeSet::new();
        }
        let mut left = BTreeSet::new();
        for (worker, member) in &self.members {
            if member.progress.is_none() && Some(*worker) != lost {
                left.insert(member.connection);
            }
        }
        left
    }

    /// How long workers may take to join.
    fn joins_within(&self) -> Duration {
        match self.comers.is_empty() {
            true => self.join_within,
            false => self.join_within.max(self.first_within),
        }
    }

    /// Whether this number of workers can train without the others.
    fn are_enough(&self, workers: usize) -> bool {
        let recovery = self.settings.recovery;
        recovery.is_some_and(|recovery| workers >= recovery.least.max(1))
    }

    /// A worker will not come back: the others need not wait for it, and have no use for each other if they are too few.
    ///
    /// Who starts the processes may know of its end before its connection ends, which then decides what follows.
    pub(super) fn give_up(&mut self, now: Duration, worker: usize, actions: &mut Actions) {
        self.gone.insert(worker);
        if !self.members.contains_key(&worker) {
            self.go_without(now, actions);
        }
    }

    /// Begins when all are there who can be, or ends when they are too few.
    pub(super) fn go_without(&mut self, now: Duration, actions: &mut Actions) {
        if let Some(gone) = self.too_few_without() {
            return self.fail(gone, "is gone and is not started again".into(), actions);
        }
        if !self.complete && self.missing().is_empty() && !self.members.is_empty() {
            self.welcome(now, actions);
        }
    }

    /// A worker that is gone where those that are here or may come are too few without it.
    fn too_few_without(&self) -> Option<usize> {
        let is_gone = |worker: &&usize| !self.members.contains_key(worker);
        let gone: Vec<usize> = self.gone.iter().filter(is_gone).copied().collect();
        let left = self.settings.workers - gone.len();
        gone.first().copied().filter(|_| !self.are_enough(left))
    }

    fn tell_who_is_missing(&self, actions: &mut Actions) {
        for member in self.members.values() {
            actions.send(member.connection, self.waiting());
        }
    }

    pub(super) fn time_of_joining(&mut self, now: Duration, actions: &mut Actions) {
        let within = self.joins_within();
        if now >= self.opened.saturating_add(within) && !self.members.is_empty() {
            let missing = self.missing();
            self.tell_who_is_missing(actions);
            if self.are_enough(self.members.len()) {
                self.gone.extend(missing);
                return self.welcome(now, actions);
            }
            let reason = format!("did not join within {} s", within.as_secs_f64());
            return self.fail(missing.first().copied().unwrap_or(0), reason, actions);
        }
        if now >= self.next_report {
            self.next_report = now + REPORT_EVERY;
            self.tell_who_is_missing(actions);
        }
    }
}
