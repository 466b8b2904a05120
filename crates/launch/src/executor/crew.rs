//! The workers of an elastic job on this machine: coordinated from here, so that each may be lost, and started again one by one.

use std::time::Duration;

use phalanx_cluster::coordination::{Host, Settings};
use phalanx_cluster::launch::TRY_AGAIN;
use phalanx_cluster::{ClusterSpec, Recovery, Timing};
use phalanx_proof::{Secret, draw_hex};

use super::variables::Variables;
use crate::lifecycle::TaskEnd;
use crate::spec::Spec;

/// How long the others wait for one that was started again.
const RECOVER_WITHIN: Duration = Duration::from_secs(60);

/// Says how a job's workers go on when some are lost.
pub(super) struct Crew {
    host: Host,
    secret: String,
    /// The least workers with which the training goes on.
    least: usize,
    most_restarts: u32,
    /// How often each task was started again, by place in the plan.
    restarts: Vec<u32>,
    /// How many of the workers that the others went on without were looked at.
    seen: usize,
}

/// What follows from the end of a worker.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Another is started in its place: the number of restarts so far, and the most.
    Again(u32, u32),
    /// These others go on without it.
    Without(usize),
    /// The training cannot go on.
    Over,
}

impl Crew {
    /// The crew of an elastic job; `None` for others. `tell` hears what the coordination says.
    pub(super) fn new(
        spec: &Spec,
        run: &str,
        cluster: &ClusterSpec,
        tell: impl FnMut(&str) + Send + 'static,
    ) -> Result<Option<Self>, String> {
        let Some((least, _)) = spec.ours.elastic else {
            return Ok(None);
        };
        let workers = cluster.worker_addresses().map_or(0, |all| all.len());
        let settings = Settings {
            workers,
            job: run.to_owned(),
            version: String::new(),
            generation: 1,
            lease: Timing::default().lease,
            join_within: None,
            recovery: Some(Recovery {
                within: RECOVER_WITHIN,
                least,
            }),
        };
        let cannot = |why: String| format!("cannot coordinate the workers: {why}");
        let secret = draw_hex::<32>().map_err(|error| cannot(error.to_string()))?;
        let host = Host::start(settings, Some(Secret::new(secret.clone())), tell)
            .map_err(|error| cannot(error.to_string()))?;
        Ok(Some(Self {
            host,
            secret,
            least,
            most_restarts: spec.ours.restarts,
            restarts: vec![0; spec.tasks()],
            seen: 0,
        }))
    }

    /// What a worker needs to know beside what every task does. `before` is how often all tasks were started before: a worker that is started
    /// for the first time after that is one that was started again, and has a checkpoint to go on from.
    pub(super) fn variables(&self, at: usize, before: u32) -> Variables {
        let restarts = before.saturating_add(self.restarts[at]).to_string();
        [
            ("PHALANX_RENDEZVOUS", self.host.address().to_string()),
            ("PHALANX_LAUNCHER_SECRET", self.secret.clone()),
            (
                "PHALANX_RECOVER_WITHIN",
                RECOVER_WITHIN.as_secs().to_string(),
            ),
            ("PHALANX_RESTART_COUNT", restarts.clone()),
            ("TORCHELASTIC_RESTART_COUNT", restarts),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    /// What follows from the end of a worker while `others` run or have ended well.
    pub(super) fn lost(&mut self, at: usize, worker: usize, end: TaskEnd, others: usize) -> Next {
        let may_try_again = end.failed() && end.how().exit_code() == TRY_AGAIN;
        if !may_try_again || self.host.failure().is_some() {
            return Next::Over;
        }
        if self.restarts[at] < self.most_restarts {
            self.restarts[at] += 1;
            return Next::Again(self.restarts[at], self.most_restarts);
        }
        self.host.give_up(worker);
        match others >= self.least {
            true => Next::Without(others),
            false => Next::Over,
        }
    }

    /// The process groups of workers that the others went on without, such as one that was stopped for too long, and why.
    pub(super) fn left_behind(&mut self) -> Vec<(i32, String)> {
        let lost = self.host.lost();
        let new = lost.iter().skip(self.seen);
        let found = new.map(|lost| (lost.group, lost.failure.to_string()));
        let found = found.collect();
        self.seen = lost.len();
        found
    }
}
