//! A pod as processes of this machine, one after the other, and what the cluster tells of it.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Instant;

use phalanx_cluster::launch;
use serde_json::{Value as Json, json};

use super::{now, signal};
use rustix::process::Signal;

pub(super) struct Running {
    /// The Job that made it, until what follows from its end has been decided.
    pub(super) job: Option<String>,
    pub(super) labels: Json,
    pub(super) child: Child,
    /// While a container runs that is before the task's: the command of the task, and the log of that container.
    pub(super) before: Option<(Command, PathBuf)>,
    pub(super) log: PathBuf,
    /// When each line of it was first seen.
    pub(super) times: Vec<String>,
    pub(super) started: String,
    pub(super) ended: Option<(i32, String)>,
    pub(super) deadline: Option<Instant>,
    pub(super) lost: bool,
}

impl Running {
    /// Takes note of the end of a container: the task's follows that of one that was before it and ended well.
    pub(super) fn look(&mut self) {
        use std::os::unix::process::ExitStatusExt;
        if self.deadline.is_some_and(|at| Instant::now() >= at) {
            signal(&self.child, Signal::KILL);
        }
        if self.ended.is_some() {
            return;
        }
        let Ok(Some(end)) = self.child.try_wait() else {
            return;
        };
        if let (true, None, Some((mut task, _))) = (
            end.success(),
            self.deadline,
            self.before.take_if(|_| end.success()),
        ) {
            self.child = spawn(&mut task);
            self.started = now();
            return;
        }
        let code = end.code().unwrap_or_else(|| 128 + end.signal().unwrap());
        self.ended = Some((code, now()));
    }

    /// The status of its containers, and its phase.
    fn containers(&self) -> Json {
        let of = |name: &str, state: Json| json!([{"name": name, "state": state}]);
        let waits = || of("task", json!({"waiting": {"reason": "PodInitializing"}}));
        let runs = json!({"running": {"startedAt": self.started}});
        let Some((_, log)) = &self.before else {
            let state = match &self.ended {
                None => runs,
                Some((code, at)) => {
                    json!({"terminated": {"exitCode": code, "startedAt": self.started, "finishedAt": at}})
                }
            };
            return json!({"containerStatuses": of("task", state)});
        };
        let state = match &self.ended {
            None => runs,
            Some((code, at)) => {
                let message = fs::read_to_string(log).unwrap_or_default();
                json!({"terminated": {"exitCode": code, "reason": "Error", "message": message, "startedAt": self.started, "finishedAt": at}})
            }
        };
        json!({"initContainerStatuses": of("package", state), "containerStatuses": waits()})
    }

    pub(super) fn shown(&self, name: &str) -> Json {
        let metadata =
            json!({"name": name, "labels": self.labels, "creationTimestamp": self.started});
        if self.lost {
            let conditions = json!([{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}]);
            return json!({"metadata": metadata, "spec": {"nodeName": "node-1"}, "status": {"phase": "Failed", "conditions": conditions}});
        }
        let mut status = self.containers();
        status["phase"] = json!(match (&self.ended, &self.before) {
            (None, Some(_)) => "Pending",
            (None, None) => "Running",
            (Some((0, _)), None) => "Succeeded",
            _ => "Failed",
        });
        json!({"metadata": metadata, "spec": {"nodeName": "node-1"}, "status": status})
    }
}

/// Starts a container. Results are equal to the bit where the number of threads is: pods have the processors that tasks of this machine have.
pub(super) fn spawn(command: &mut Command) -> Child {
    let count = |name: &str| {
        let mut all = command.get_envs();
        let value = all.find(|(of, _)| *of == name)?.1?;
        value.to_str()?.parse().ok()
    };
    let shares = launch::processor_shares(count("WORLD_SIZE").unwrap_or(1));
    let own = shares.get(count("RANK").unwrap_or(0));
    let child = launch::on_processors(own, || command.spawn());
    child.unwrap_or_else(|error| panic!("{command:?}: {error}"))
}
