//! A worker's session with the servers: whole variables on this side, shards and bytes on the other.

mod agreement;
mod pulls;
mod tasks;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use phalanx_graph::HostTensor;
use phalanx_ps::{
    Client, Commit, Grant, Mode, Partitioner, Phase, PhaseKind, PushKey, Reply, Request, Work,
};

use self::pulls::Pull;
pub(crate) use self::pulls::{PulledRows, PulledValues};
use super::explained;
use super::layout::{Pushed, Rest, StateLayout};
use super::narrow::Wire;
use super::row_cache::{CacheOptions, RowCache};
use crate::bytes::counted;
use crate::engine::Notice;

use crate::{Error, Result};

/// How long one question for work waits at the server.
const ASK_WITHIN: Duration = Duration::from_secs(2);
/// After how long a worker says whom it waits for.
const SAY_AFTER: Duration = Duration::from_secs(10);

/// A worker's session with the servers of its job.
pub(crate) struct Servers {
    client: Client,
    mode: Mode,
    exchange: ExchangeOptions,
    /// The longest that this worker waits for others.
    patience: Duration,
    notice: Notice,
    layout: Mutex<Option<Arc<StateLayout>>>,
    pulled: Mutex<Pull>,
    /// The last step that was taken together, which servers may not have heard of.
    commit: Mutex<Option<Commit>>,
    counts: Mutex<BTreeMap<String, u64>>,
    /// The phase that this process entered last.
    entered: Mutex<Option<String>>,
    row_cache: Mutex<RowCache>,
    /// See [`first_step`](Self::first_step).
    first_step: OnceLock<i64>,
}

/// How variables lie on servers, and when they travel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExchangeOptions {
    pub(crate) partitioner: Partitioner,
    /// Tables of at least this number of bytes are kept by their rows.
    pub(crate) table_bytes: usize,
    /// Whether a worker pushes and pulls while it computes.
    pub(crate) overlaps: bool,
    /// As what f32 travels between a server and a step.
    pub(crate) wire: Wire,
    /// Which rows of tables a worker keeps.
    pub(crate) cache: CacheOptions,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unexpected(reply: &Reply) -> Error {
    Error::Cluster(format!(
        "a parameter server gave an answer that does not fit: {reply:?}"
    ))
}

impl Servers {
    pub(crate) fn new(
        client: Client,
        exchange: ExchangeOptions,
        patience: Duration,
        notice: Notice,
    ) -> Arc<Self> {
        Arc::new(Self {
            mode: client.hello().settings.mode,
            client,
            exchange,
            patience,
            notice,
            layout: Mutex::default(),
            pulled: Mutex::default(),
            commit: Mutex::default(),
            counts: Mutex::default(),
            entered: Mutex::default(),
            row_cache: Mutex::default(),
            first_step: OnceLock::new(),
        })
    }

    /// Whether this worker writes files, sets values and shows progress.
    pub(crate) fn is_chief(&self) -> bool {
        self.client.worker() == 0
    }

    /// Whether this worker is the first of a job that was not begun before.
    pub(crate) fn begins_job(&self) -> bool {
        self.is_chief() && !self.client.had_values()
    }

    /// The number of this worker.
    pub(crate) fn worker(&self) -> usize {
        self.client.worker()
    }

    /// The number of workers.
    pub(crate) fn workers(&self) -> usize {
        self.client.hello().settings.workers
    }

    pub(crate) const fn mode(&self) -> Mode {
        self.mode
    }

    /// What the user reads when training starts.
    pub(crate) fn describe(&self) -> String {
        let (workers, servers) = (self.workers(), self.client.servers());
        format!(
            "{} with variables on {}, {}",
            counted(workers, "worker"),
            counted(servers, "parameter server"),
            self.mode
        )
    }

    /// Places the arrays, and gives the servers their first values unless they have some.
    ///
    /// Once only: servers would go on with the values, the slots and the updates of the model before.
    pub(crate) fn create(
        &self,
        layout: impl FnOnce(&Partitioner, usize) -> StateLayout,
        state: &[HostTensor],
    ) -> Result<()> {
        if locked(&self.layout).is_some() {
            return Err(Error::user(
                "a model is on the parameter servers already, and they hold one model a job; go on with its trainer or state, or train the next model in another job",
            ));
        }
        let layout = Arc::new(layout(&self.exchange.partitioner, self.client.servers()));
        *locked(&self.layout) = Some(Arc::clone(&layout));
        let held = format!("{:?}", layout.held);
        let facts = vec![("what the servers hold".to_owned(), held)];
        self.agree_on("placing the variables", &facts)?;
        if !self.is_chief() || self.client.had_values() {
            return Ok(());
        }
        let descriptions = layout.held.iter().map(serde_json::to_string);
        let descriptions: std::result::Result<Vec<String>, _> = descriptions.collect();
        let descriptions = descriptions.map_err(|error| Error::Bug(error.to_string()))?;
        self.ask_all(|server| {
            let description = descriptions[server].clone();
            let request = Request::Create { description };
            (request, layout.state_of(server, state))
        })?;
        Ok(())
    }

    fn check_patience(&self, start: Instant, whom: &[usize], why: &str) -> Result<()> {
        let waited = start.elapsed();
        let whom: Vec<String> = whom.iter().map(ToString::to_string).collect();
        let line = format!(
            "worker {} waits for worker {}: {why}",
            self.worker(),
            whom.join(", ")
        );
        if waited > self.patience {
            self.client.give_up();
            return Err(Error::Cluster(format!(
                "{line}; that took longer than {} seconds: look at their logs, and start the job again",
                self.patience.as_secs()
            )));
        }
        let before = waited.saturating_sub(ASK_WITHIN).as_secs() / SAY_AFTER.as_secs();
        if waited.as_secs() / SAY_AFTER.as_secs() > before {
            (self.notice)(&format!("{line} ({} s)", waited.as_secs()));
        }
        Ok(())
    }

    /// How often this was asked for before.
    pub(crate) fn count(&self, what: &str) -> u64 {
        let mut counts = locked(&self.counts);
        let count = counts.entry(what.to_owned()).or_insert(0);
        *count += 1;
        *count - 1
    }

    fn layout(&self) -> Result<Arc<StateLayout>> {
        let layout = locked(&self.layout).clone();
        layout.ok_or_else(|| Error::Bug("servers before a model was compiled".into()))
    }

    fn ask(&self, request: &Request, bytes: &[u8]) -> Result<(Reply, Vec<u8>)> {
        self.client.ask(request, bytes).map_err(explained)
    }

    fn ask_all(
        &self,
        request: impl Fn(usize) -> (Request, Vec<u8>) + Sync,
    ) -> Result<Vec<(Reply, Vec<u8>)>> {
        self.client.ask_all(request).map_err(explained)
    }

    /// Waits no longer than a few seconds for a server once this flag is set.
    pub(crate) fn stop_when(&self, flag: &Arc<AtomicBool>) {
        self.client.stop_when(flag);
    }

    /// Whether this process goes through what the job has done before it: the servers know better than it what the values are.
    pub(crate) fn is_behind(&self) -> Result<bool> {
        if !self.client.had_values() {
            return Ok(false);
        }
        let (reply, _) = self.ask(&Request::LastPhase, &[])?;
        let Reply::LastPhase(last) = reply else {
            return Err(unexpected(&reply));
        };
        Ok(last != *locked(&self.entered))
    }

    /// Sets the whole state; only the first worker does, and one that came back not before it is where the job is.
    pub(crate) fn set_state(&self, state: &[HostTensor]) -> Result<()> {
        if !self.is_chief() || self.is_behind()? {
            return Ok(());
        }
        let layout = self.layout()?;
        let rows = layout.rows_of(state);
        self.ask_all(|server| {
            let what = "set_state".into();
            let mut bytes = layout.state_of(server, state);
            bytes.extend_from_slice(&rows[server]);
            (Request::Act { what }, bytes)
        })?;
        Ok(())
    }

    /// How variables lie on servers, and when they travel.
    pub(crate) const fn exchange(&self) -> ExchangeOptions {
        self.exchange
    }

    /// Goes on with a phase.
    pub(crate) fn enter(
        &self,
        phase: &str,
        kind: PhaseKind,
        items: std::ops::Range<u64>,
    ) -> Result<()> {
        // Between phases values may be set.
        locked(&self.row_cache).clear();
        let request = Request::Enter {
            phase: phase.to_owned(),
            kind,
            start: items.start,
            end: items.end,
        };
        self.ask(&request, &[])?;
        *locked(&self.entered) = Some(phase.to_owned());
        Ok(())
    }

    /// A piece of work of a phase, or what the phase was.
    pub(crate) fn next(&self, phase: &str) -> Result<std::result::Result<Work, Phase>> {
        let start = Instant::now();
        loop {
            match self.granted(phase, ASK_WITHIN, Vec::new())? {
                Grant::Work(work) => return Ok(Ok(work)),
                Grant::Over(over) => return Ok(Err(over)),
                Grant::Wait { waiting_for, why } => {
                    self.check_patience(start, &waiting_for, &why)?;
                }
            }
        }
    }

    /// A piece of work of a phase beside one that this worker has not done, if there is one at once.
    pub(crate) fn next_beside(
        &self,
        phase: &str,
        has: &Work,
    ) -> Result<Option<std::result::Result<Work, Phase>>> {
        Ok(match self.granted(phase, Duration::ZERO, vec![has.id])? {
            Grant::Work(work) => Some(Ok(work)),
            Grant::Over(over) => Some(Err(over)),
            Grant::Wait { .. } => None,
        })
    }

    fn granted(&self, phase: &str, within: Duration, has: Vec<u64>) -> Result<Grant> {
        let request = Request::Next {
            phase: phase.to_owned(),
            within_ms: within.as_millis() as u64,
            has,
        };
        let (reply, _) = self.ask(&request, &[])?;
        let Reply::Grant(grant) = reply else {
            return Err(unexpected(&reply));
        };
        match &*grant {
            Grant::Work(work) => locked(&self.commit).clone_from(&work.commit),
            Grant::Over(over) => locked(&self.commit).clone_from(&over.commit),
            Grant::Wait { .. } => {}
        }
        Ok(*grant)
    }

    /// Pushes the gradient of a piece of work to all servers; by how many updates of others it was behind.
    pub(crate) fn push(
        &self,
        work: &Work,
        values: &PulledValues,
        pushed: &Pushed<'_>,
    ) -> Result<u64> {
        let layout = self.layout()?;
        let key = PushKey {
            work: work.id,
            worker: self.worker(),
            incarnation: self.client.hello().incarnation,
            done_below: work.done_below,
        };
        let is_together = self.mode.backup_workers().is_some();
        let spec = |server: usize| {
            let (spec, bytes) = layout.gradient_of(server, pushed, self.exchange.wire);
            (serde_json::to_string(&spec).unwrap_or_default(), bytes)
        };
        let mut staleness = 0;
        if is_together || layout.clips() {
            let version = is_together.then_some(work.version);
            let answers = self.ask_all(|server| {
                let (what, bytes) = spec(server);
                (Request::Stage { key, version, what }, bytes)
            })?;
            if !is_together {
                let squares = answers.into_iter().map(|(reply, _)| match reply {
                    Reply::Staged { squares, .. } => Ok(squares),
                    other => Err(unexpected(&other)),
                });
                let squares: Vec<Vec<f64>> = squares.collect::<Result<_>>()?;
                let factors = layout.factors(&squares);
                let answers = self.ask_all(|server| {
                    let factors = Some(factors[server].clone());
                    (Request::Apply { key, factors }, Vec::new())
                })?;
                staleness = staleness_of(&answers, values)?;
            }
        } else {
            let answers = self.ask_all(|server| {
                let (what, bytes) = spec(server);
                let factors = None;
                (Request::Push { key, what, factors }, bytes)
            })?;
            staleness = staleness_of(&answers, values)?;
        }
        Ok(staleness)
    }

    /// The data of a phase end after this number of batches.
    pub(crate) fn no_more(&self, phase: &str, count: u64) -> Result<()> {
        let (phase, item) = (phase.to_owned(), count);
        self.ask(&Request::NoMore { phase, item }, &[]).map(drop)
    }

    /// A piece of work is done.
    pub(crate) fn done(
        &self,
        phase: &str,
        work: &Work,
        (weight, rows): (f64, f64),
        staleness: u64,
        bytes: &[u8],
    ) -> Result<()> {
        let request = Request::Done {
            phase: phase.to_owned(),
            work: work.id,
            weight,
            rows,
            staleness,
        };
        self.ask(&request, bytes).map(drop)
    }

    /// The bytes that each item of a phase left.
    pub(crate) fn items(&self, phase: &str, count: u64) -> Result<Vec<Vec<u8>>> {
        let mut all = Vec::new();
        while (all.len() as u64) < count {
            let from = all.len() as u64;
            let request = Request::Items {
                phase: phase.to_owned(),
                from,
            };
            let (reply, bytes) = self.ask(&request, &[])?;
            let Reply::Bytes { items } = &reply else {
                return Err(unexpected(&reply));
            };
            if items.is_empty() {
                return Err(unexpected(&reply));
            }
            let mut rest = Rest(&bytes);
            for (_, length) in items {
                all.push(rest.take(*length as usize)?.to_vec());
            }
        }
        Ok(all)
    }

    /// All workers are to stop after the work that they have begun.
    pub(crate) fn stop(&self) -> Result<()> {
        self.ask(&Request::Stop, &[]).map(drop)
    }

    /// Tells the servers of an error with which the job cannot go on. What they said themselves, or could not be told, ends this worker
    /// before its work is done, and the job may go on without it.
    pub(crate) fn or_fail<T>(&self, result: Result<T>) -> Result<T> {
        match &result {
            Ok(_) | Err(Error::Stopped(_)) => {}
            Err(Error::Cluster(_)) => self.client.give_up(),
            Err(error) => self.client.fail(&error.to_string()),
        }
        result
    }
}

/// By how many updates of others a push was behind, at the first server.
fn staleness_of(answers: &[(Reply, Vec<u8>)], values: &PulledValues) -> Result<u64> {
    match answers.first() {
        Some((Reply::Pushed { applied_at, .. }, _)) => {
            let pulled = values.versions.first().copied().unwrap_or(0);
            Ok(applied_at.saturating_sub(pulled))
        }
        Some((other, _)) => Err(unexpected(other)),
        None => Ok(0),
    }
}

impl Drop for Servers {
    /// Leaves in good order; a worker that fails has said so before, or is lost.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.client.leave();
        }
    }
}

impl std::fmt::Debug for Servers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.describe())
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
