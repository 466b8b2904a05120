//! The workers of a job: who is there, who was lost, and who has left.

use std::time::Duration;

use crate::PsError;
use crate::control::{Control, ControlSettings};
use crate::phase::PartState;

#[derive(Clone, Debug)]
pub(crate) struct Member {
    incarnation: u64,
    heard: Duration,
    /// When its last connection ended, where its loss would end the job and it may be about to open another.
    ended: Option<Duration>,
    pub(crate) is_there: bool,
    has_left: bool,
}

/// How long workers may take to come before those that are there go on without them.
pub const JOIN_WITHIN: Duration = Duration::from_secs(300);
/// The same where the control was started again: who is alive connects at once, and who was lost before does not come.
const BACK_WITHIN: Duration = Duration::from_secs(10);
/// How long a worker whose loss ends the job may be without a connection: it closes one that does not answer before it opens the next.
const OPENED_WITHIN: Duration = Duration::from_secs(2);
/// A longer time between two looks at the clock is one in which nobody could be heard.
const LOOK_WITHIN: Duration = Duration::from_secs(1);

impl Control {
    /// A worker is there.
    ///
    /// # Errors
    /// It counts other workers or has other settings, or a later process of its number has taken its place.
    pub fn hello(
        &mut self,
        now: Duration,
        worker: usize,
        incarnation: u64,
        settings: &ControlSettings,
    ) -> Result<(), PsError> {
        if settings != self.settings() {
            return Err(PsError::User(format!(
                "worker {worker} is one of {settings}, and the job is of {}; start all with the same settings",
                self.settings()
            )));
        }
        if worker >= self.settings().workers {
            return Err(PsError::User(format!(
                "there is no worker {worker}: there are {}, counted from 0",
                self.settings().workers
            )));
        }
        self.started.get_or_insert(now);
        if self.has_left(worker, incarnation) {
            // Its heartbeat's was on the way while it said farewell, or it did not hear that this was heard.
            return Ok(());
        }
        let known = self.members.get(&worker);
        let (latest, was_there) = known.map_or((0, false), |m| (m.incarnation, m.is_there));
        if latest > incarnation {
            return Err(PsError::Lost(format!(
                "another process ({latest}) is worker {worker} now; this one ends"
            )));
        }
        if known.is_some() && latest != incarnation {
            match known.and_then(|member| member.ended) {
                // The process that could open another connection does not.
                Some(_) => self.lose(worker),
                None => self.take_back(worker),
            }
        }
        if !was_there {
            self.catch_up(worker);
        }
        let member = Member {
            incarnation,
            heard: now,
            ended: None,
            is_there: true,
            has_left: false,
        };
        self.members.insert(worker, member);
        self.has_chief_left &= worker != 0;
        Ok(())
    }

    /// Whether a worker's process has done its work and said so.
    #[must_use]
    pub fn has_left(&self, worker: usize, incarnation: u64) -> bool {
        let member = self.members.get(&worker);
        member.is_some_and(|member| member.has_left && member.incarnation == incarnation)
    }

    /// Something was heard of a worker. Whether its process is the one that counts.
    pub fn heard(&mut self, now: Duration, worker: usize, incarnation: u64) -> bool {
        let Some(member) = self.members.get_mut(&worker) else {
            return false;
        };
        if member.incarnation != incarnation {
            return false;
        }
        let comes_back = !member.is_there && !member.has_left;
        (member.heard, member.is_there) = (now, !member.has_left);
        member.ended = None;
        if comes_back {
            self.catch_up(worker);
        }
        true
    }

    /// A worker's process has no connection any more: it is gone. Where that would end the job, it has a moment to open another.
    pub fn gone(&mut self, now: Duration, worker: usize, incarnation: u64) {
        let is_final = self.is_final(worker);
        let is_it = |member: &&mut Member| member.incarnation == incarnation && !member.has_left;
        match self.members.get_mut(&worker).filter(is_it) {
            Some(member) if is_final => member.ended = Some(now),
            Some(_) => self.lose(worker),
            None => {}
        }
    }

    /// Whether the loss of a worker ends the job.
    const fn is_final(&self, worker: usize) -> bool {
        worker == 0 && !self.settings().goes_on_without_chief
    }

    /// Time went by: who was silent for longer than the lease is lost, or without a connection for too long, and so is work that takes
    /// longer than `work_within`.
    pub fn tick(&mut self, now: Duration, lease: Duration, work_within: Duration) {
        let gap = now.saturating_sub(self.looked.replace(now).unwrap_or(now));
        if gap > LOOK_WITHIN {
            for member in self.members.values_mut() {
                member.heard = now.min(member.heard + gap);
                member.ended = member.ended.map(|ended| now.min(ended + gap));
            }
        }
        let is_over = |since: Duration, within| now.saturating_sub(since) > within;
        let silent = self.members.iter().filter(|(_, member)| {
            let has_ended = member.ended.is_some_and(|at| is_over(at, OPENED_WITHIN));
            member.is_there && !member.has_left && (has_ended || is_over(member.heard, lease))
        });
        for worker in silent.map(|(worker, _)| *worker).collect::<Vec<_>>() {
            self.lose(worker);
        }
        if let Some(phase) = self.current() {
            let late = |since: Duration| is_over(since, work_within);
            let given = phase.given.iter();
            let late: Vec<u64> = given
                .filter(|(_, (_, since))| late(*since))
                .map(|(item, _)| *item)
                .collect();
            for item in late {
                phase.given.remove(&item);
            }
        }
    }

    fn lose(&mut self, worker: usize) {
        if let Some(member) = self.members.get_mut(&worker) {
            member.is_there = false;
        }
        self.take_back(worker);
        if self.is_final(worker) {
            self.fail(
                "worker 0, the chief,".into(),
                "it was lost; start the job again: it goes on from its last checkpoint".into(),
            );
        }
    }

    /// What a worker was given goes to others.
    fn take_back(&mut self, worker: usize) {
        self.tasks.lose(worker);
        if let Some(phase) = self.current() {
            phase.given.retain(|_, (by, _)| *by != worker);
            for part in &mut phase.parts {
                if *part == PartState::Given(worker) {
                    *part = PartState::Free;
                }
            }
        }
    }

    /// A worker's process ends in good order. Whether it is the one that counts; what it was given and has not done goes to others.
    pub fn leave(&mut self, worker: usize, incarnation: u64) -> bool {
        let member = self.members.get_mut(&worker);
        let Some(member) = member.filter(|member| member.incarnation == incarnation) else {
            return false;
        };
        (member.has_left, member.is_there) = (true, false);
        self.has_chief_left |= worker == 0;
        self.take_back(worker);
        true
    }

    /// Whether the first worker has done all its work, also when that was before a restart.
    pub(crate) const fn chief_has_left(&self) -> bool {
        self.has_chief_left
    }

    /// Whether workers have left in good order, the first one among them, and no other is there: only the first one writes files.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let mut members = self.members.values();
        self.has_chief_left
            && members.clone().any(|member| member.has_left)
            && members.all(|member| !member.is_there)
    }

    /// Whether each worker of the job has been there.
    #[must_use]
    pub fn all_have_come(&self) -> bool {
        self.members.len() >= self.settings().workers
    }

    /// Whether a worker is there or may still come.
    pub(crate) fn is_expected(&self, now: Duration, worker: usize) -> bool {
        match self.members.get(&worker) {
            Some(member) => member.is_there,
            None => {
                let since = self.started.unwrap_or(now);
                let within = match self.is_recovered {
                    true => BACK_WITHIN,
                    false => JOIN_WITHIN,
                };
                now.saturating_sub(since) < within
            }
        }
    }
}

#[cfg(test)]
#[path = "members_tests.rs"]
mod tests;
