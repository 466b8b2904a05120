//! Meetings of all workers, and keys that some set and others wait for.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Member, State};
use crate::coordination::event::{Action, Actions};
use crate::coordination::message::{Reply, millis};

/// Somebody who waits at a meeting.
#[derive(Debug, Clone)]
pub(super) struct Arrival {
    pub(super) id: u64,
    pub(super) bytes: Vec<u8>,
    pub(super) until: Duration,
}

/// Somebody who waits for a key.
#[derive(Debug, Clone)]
pub(super) struct KeyWaiter {
    pub(super) worker: usize,
    pub(super) id: u64,
    pub(super) key: String,
    pub(super) until: Duration,
}

/// Somebody who has left and waits for the others to.
#[derive(Debug, Clone)]
pub(super) struct Leaver {
    worker: usize,
    id: u64,
    until: Duration,
}

impl State {
    pub(super) fn meet(
        &mut self,
        worker: usize,
        name: &str,
        arrival: Arrival,
        actions: &mut Actions,
    ) {
        let gone = self
            .members
            .iter()
            .find(|(_, member)| member.left.is_some());
        if let Some((&gone, _)) = gone {
            let id = arrival.id;
            return self.reply(worker, Reply::Left { id, worker: gone }, actions);
        }
        let meeting = self.meetings.entry(name.into()).or_default();
        meeting.insert(worker, arrival);
        if meeting.len() < self.members.len() {
            return;
        }
        let arrivals = self.meetings.remove(name).unwrap_or_default();
        let sizes: Vec<_> = arrivals
            .values()
            .map(|arrival| arrival.bytes.len())
            .collect();
        let mut all = Vec::with_capacity(sizes.iter().sum());
        for arrival in arrivals.values() {
            all.extend_from_slice(&arrival.bytes);
        }
        for (worker, arrival) in arrivals {
            let sizes = sizes.clone();
            let reply = Reply::Met {
                id: arrival.id,
                sizes,
            };
            actions.0.push(Action {
                to: self.members[&worker].connection,
                reply,
                bytes: all.clone(),
            });
        }
    }

    pub(super) fn set(&mut self, key: String, bytes: Vec<u8>, actions: &mut Actions) {
        let (ready, waiting) = std::mem::take(&mut self.readers)
            .into_iter()
            .partition(|reader| reader.key == key);
        self.readers = waiting;
        self.values.insert(key, bytes);
        for reader in ready {
            self.get(reader, actions);
        }
    }

    pub(super) fn get(&mut self, reader: KeyWaiter, actions: &mut Actions) {
        match self.values.get(&reader.key) {
            Some(bytes) => actions.0.push(Action {
                to: self.members[&reader.worker].connection,
                reply: Reply::Value { id: reader.id },
                bytes: bytes.clone(),
            }),
            None => self.readers.push(reader),
        }
    }

    /// A meeting ends for all of its members when the first of them has waited long enough, so that all hear the same.
    pub(super) fn end_late_meetings(&mut self, now: Duration, actions: &mut Actions) {
        let late = |meeting: &BTreeMap<usize, Arrival>| {
            meeting.values().any(|arrival| arrival.until <= now)
        };
        let names = self.meetings.iter().filter(|(_, meeting)| late(meeting));
        let names: Vec<_> = names.map(|(name, _)| name.clone()).collect();
        for name in names {
            let meeting = self.meetings.remove(&name).unwrap_or_default();
            let absent = self
                .members
                .iter()
                .filter(|(worker, _)| !meeting.contains_key(worker));
            let missing = silences(now, absent);
            for (worker, arrival) in meeting {
                let reply = Reply::Late {
                    id: arrival.id,
                    missing: missing.clone(),
                };
                self.reply(worker, reply, actions);
            }
        }
    }

    /// Answers workers that have waited long enough for a key: nobody has set it.
    pub(super) fn end_late_readers(&mut self, now: Duration, actions: &mut Actions) {
        let (late, waiting) = std::mem::take(&mut self.readers)
            .into_iter()
            .partition(|reader: &KeyWaiter| reader.until <= now);
        self.readers = waiting;
        for reader in late {
            let reply = Reply::Late {
                id: reader.id,
                missing: Vec::new(),
            };
            self.reply(reader.worker, reply, actions);
        }
    }

    /// A worker has done its work: nobody waits for it at a meeting.
    pub(super) fn leave(&mut self, worker: usize, id: u64, until: Duration, actions: &mut Actions) {
        self.leavers.push(Leaver { worker, id, until });
        if let Some(member) = self.members.get_mut(&worker) {
            member.left = Some(id);
        }
        for (_, arrivals) in std::mem::take(&mut self.meetings) {
            for (waiting, arrival) in arrivals {
                let id = arrival.id;
                self.reply(waiting, Reply::Left { id, worker }, actions);
            }
        }
        if !self.is_over() {
            return;
        }
        for member in self.members.values() {
            if let Some(id) = member.left {
                actions.send(member.connection, Reply::Done { id });
            }
        }
    }
    /// Answers workers that have left and waited long enough for others to: with those that have not.
    pub(super) fn answer_late_leavers(&mut self, now: Duration, actions: &mut Actions) {
        let (late, waiting): (Vec<_>, Vec<_>) = std::mem::take(&mut self.leavers)
            .into_iter()
            .partition(|leaver| leaver.until <= now);
        self.leavers = waiting;
        for Leaver { worker, id, .. } in late {
            let at_work = self.members.iter();
            let at_work = at_work.filter(|(_, member)| member.left.is_none());
            let missing = silences(now, at_work);
            self.reply(worker, Reply::Late { id, missing }, actions);
        }
    }
}

/// For how many milliseconds nothing was heard of each of some members.
fn silences<'a>(
    now: Duration,
    members: impl Iterator<Item = (&'a usize, &'a Member)>,
) -> Vec<(usize, u64)> {
    let silence = |member: &Member| millis(now.saturating_sub(member.heard));
    members
        .map(|(worker, member)| (*worker, silence(member)))
        .collect()
}
