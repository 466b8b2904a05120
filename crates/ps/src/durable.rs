//! The state machines of a server with their logs: what changes them is kept before it is answered.

use std::sync::Arc;
use std::time::Duration;

use crate::PsError;
use crate::control::{Control, Results};
use crate::log::{Durability, Found, Log};
use crate::message::{Frame, Hello, Pulled, Reply, Request};
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
    /// The bytes of its last snapshot.
    snapshot: u64,
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
            control.recovered();
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
            Request::Finish {
                task,
                failure: Some(why),
                ..
            } => Request::Finish {
                task: *task,
                failure: Some(why.clone()),
                begun: self.control.as_ref().map(|control| control.tasks().begun()),
            },
            other => other.clone(),
        };
        self.keep(worker, request, &bytes, options)?;
        change(self.known()?, worker, request, bytes)
    }

    /// A worker is there. Where the first one is again after it had left, that is kept, or another control that comes back would say that
    /// it has ended.
    pub(crate) fn hello(
        &mut self,
        now: Duration,
        hello: &Hello,
        options: &ServerOptions,
    ) -> Result<(), PsError> {
        let control = self.known()?;
        let had_left = control.has_chief_left;
        control.hello(now, hello.worker, hello.incarnation, &hello.settings)?;
        if !had_left || control.has_chief_left {
            return Ok(());
        }
        // Not its hello, after which a job that was asked to stop goes on.
        let kept = self.keep(hello.worker, &Request::Heartbeat, &[], options);
        // Whoever comes next keeps it.
        self.known()?.has_chief_left = kept.is_err();
        kept
    }

    /// A process that was not there before is the first worker now, which its kept [`Request::Hello`] says; the first of a log made the
    /// control. Where the job was asked to stop before this control came back, it was
    /// started again to go on.
    pub(crate) fn chief_is_new(
        &mut self,
        hello: &Hello,
        options: &ServerOptions,
    ) -> Result<(), PsError> {
        if !self.known()?.was_to_stop {
            return Ok(());
        }
        let request = Request::Hello(hello.clone());
        self.settle(hello.worker, &request, Vec::new(), options)
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
        let after = options.control_snapshot_bytes.max(2 * self.snapshot);
        log.snapshot_if_due(after, &options.tell, |log| {
            let state = serde_json::to_vec(&control.at_rest());
            let unwritten = |error| PsError::Protocol(format!("cannot write a snapshot: {error}"));
            let state = state.map_err(unwritten)?;
            log.snapshot(&(), &state)?;
            self.snapshot = state.len() as u64;
            Ok(())
        })
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
        Request::Finish {
            task,
            failure,
            begun,
        } => {
            let result = failure.clone().map_or(Ok(bytes), Err);
            (control.tasks).finish_among(begun.as_deref(), worker, *task, result);
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
        Request::Fail { reason } => control.fail_by(worker, reason.clone()),
        Request::Hello(_) => control.go_on(),
        Request::Leave | Request::Heartbeat => control.has_chief_left = *request == Request::Leave,
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
            snapshot: 0,
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
            self.snapshot = bytes.len() as u64;
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
                let squares = match version {
                    Some(_) => Vec::new(),
                    None => self.norms(key.work, duplicate, (what, bytes))?,
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

    /// The squared norms of a gradient that is a step by itself: of what was applied, where one of its piece of work was.
    fn norms(
        &mut self,
        work: u64,
        was_applied: bool,
        (what, bytes): (&str, &[u8]),
    ) -> Result<Vec<f64>, PsError> {
        if was_applied {
            return Ok(self.shards.norms(work));
        }
        let squares = self.values.squares(what, bytes);
        let squares = squares.map_err(PsError::Values)?;
        self.shards.keep_norms(work, &squares);
        Ok(squares)
    }

    pub(crate) fn handle(
        &mut self,
        worker: usize,
        request: &Request,
        bytes: &[u8],
        options: &ServerOptions,
    ) -> Result<(Reply, Arc<Vec<u8>>), PsError> {
        // What is not kept must not be acknowledged, nor counted as done before.
        self.log.as_ref().map_or(Ok(()), Log::check)?;
        let (changed, reply, answer) = self.change(worker, request, bytes)?;
        if let (true, Some(log)) = (changed, &mut self.log) {
            // Before the reply: what a worker was told of survives.
            let kept = log.append(worker, request, bytes);
            // The values are changed already.
            kept.inspect_err(|error| log.give_up(error))?;
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
        let after = options.snapshot_bytes.max(self.snapshot);
        log.snapshot_if_due(after, &options.tell, |log| {
            let values = self.values.save().map_err(PsError::Values)?;
            let (mut lengths, mut bytes) = (Vec::new(), Vec::new());
            for part in self.shards.staged_bytes().chain([&values[..]]) {
                lengths.push(part.len() as u64);
                bytes.extend_from_slice(part);
            }
            log.snapshot(&(&self.shards, lengths), &bytes)?;
            self.snapshot = bytes.len() as u64;
            Ok(())
        })
    }
}

#[cfg(test)]
#[path = "durable_tests.rs"]
mod tests;
