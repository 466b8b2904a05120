//! The processes that train together, and how their replicas exchange values.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use phalanx_cluster::{Coordinator, Failure, Roster};
use phalanx_collectives::{CollectiveError, Communicator, Element, ReduceOp};
use phalanx_graph::{AlignedBytes, HostTensor};
use phalanx_kernels::{Exchange, ExchangeBinding};

use super::RunOrder;
use super::exchange::CommunicatorExchange;
use super::regroup::{Rendezvous, SAME_CALLS, Session, compare_calls, first_failure, joined};
use super::wait_meter::WaitMeter;
use crate::engine::Engine;
use crate::{Error, Result};

/// How much longer than the communicator a program waits for an exchange: for replicas of its own process, and for the
/// exchanges before it.
const DEADLINE_FACTOR: u32 = 12;
/// What to do about programs that differ.
pub(crate) const SAME_PROGRAM: &str =
    "run the same program with the same settings, data and version on all workers";
/// How long a process at its end waits for the others to get there.
const LEFT_WITHIN: Duration = Duration::from_secs(60);

/// The processes that train together, of which this is one.
///
/// Each has as many replicas, and runs the same programs in the same order. Calls that exchange values from the host are made when
/// no program runs, by all processes in the same order.
///
/// When one is lost the others meet again ([`meet_again`](Self::meet_again)), with a new process in its place. That one runs the
/// program from its beginning: until it has come to where the others are it *catches up*, and takes part in nothing.
pub(crate) struct World {
    session: Mutex<Session>,
    /// The kind of the devices.
    platform: &'static str,
    local_replicas: usize,
    timeout: Duration,
    binding: ExchangeBinding,
    /// What this process has waited for the others in its life.
    waits: WaitMeter,
    /// How this process meets the others again; none where the group was made by hand.
    rendezvous: Option<Rendezvous>,
    is_catching_up: AtomicBool,
    /// Whether this process has failed to meet the others again, which is final.
    is_left_behind: AtomicBool,
    /// The number of trainings that this process has begun.
    fits: AtomicU64,
    /// The runs of trainers and custom training loops.
    runs: RunOrder,
    /// What this process does, as errors say it.
    call: Mutex<&'static str>,
}

impl World {
    /// The world of a session, for programs of this engine on this many of its devices.
    pub(crate) fn new(
        engine: &Engine,
        session: Session,
        rendezvous: Option<Rendezvous>,
        timeout: Duration,
        local_replicas: usize,
    ) -> Result<Arc<Self>> {
        let exchange = watched(&session, local_replicas, timeout);
        let binding = ExchangeBinding::new(engine.client(), exchange, local_replicas);
        let binding = binding.map_err(Error::device)?;
        let world = Self {
            waits: WaitMeter::of_programs(binding.waits()),
            binding,
            session: Mutex::new(session),
            platform: engine.platform_name(),
            local_replicas,
            timeout,
            rendezvous,
            is_catching_up: AtomicBool::new(false),
            is_left_behind: AtomicBool::new(false),
            fits: AtomicU64::new(0),
            runs: RunOrder::default(),
            call: Mutex::new("runs the program outside of `fit`"),
        };
        world.greet()?;
        Ok(Arc::new(world))
    }

    /// What processes tell each other when they have met.
    fn greet(&self) -> Result<()> {
        self.is_catching_up.store(false, Ordering::Release);
        let devices = [
            ("the kind of devices", self.platform.to_owned()),
            ("the number of devices", self.local_replicas.to_string()),
        ];
        let devices = devices.map(|(what, value)| (what.to_owned(), value));
        self.agree_on(&devices, SAME_PROGRAM)?;
        let is_behind = {
            let session = self.session();
            let own = session.coordinator.as_ref().map(Coordinator::worker);
            let comers = session.roster.as_ref().map(Roster::comers);
            own.is_some_and(|own| comers.is_some_and(|comers| comers.contains(&own)))
        };
        self.is_catching_up.store(is_behind, Ordering::Release);
        Ok(())
    }

    /// Waits until those that have come new are in this `fit`, too, as this process is now. The flag `stop` ends the wait of a process
    /// that is not new, which then ends without the others.
    pub(crate) fn await_comers(&self, stop: Option<&Arc<AtomicBool>>) -> Result<()> {
        let (coordinator, roster) = {
            let session = self.session();
            (session.coordinator.clone(), session.roster.clone())
        };
        let (Some(rendezvous), Some(coordinator), Some(roster)) =
            (&self.rendezvous, coordinator, roster)
        else {
            return Ok(());
        };
        let stop = stop.filter(|_| !self.is_catching_up()).map(Arc::as_ref);
        let waited = rendezvous.await_comers(&coordinator, &roster, stop);
        self.or_leave_behind(waited, stop, "for others to come to `fit`")
    }

    /// Says whether others may come, upon which the exchanges of this generation fail: only where this process goes on after that. At
    /// first they may not, and they may while all processes say so. Once this has returned `Ok` for `false` none comes. The flag `stop`
    /// ends the wait for an etcd that is away, and this process then ends without the others.
    pub(crate) fn admit(&self, comers: bool, stop: Option<&Arc<AtomicBool>>) -> Result<()> {
        let (Some(_), Some(coordinator)) = (&self.rendezvous, self.coordinator()) else {
            return Ok(());
        };
        let stop = stop.map(Arc::as_ref);
        let admitted = coordinator.admit(comers, stop).map_err(joined);
        self.or_leave_behind(admitted, stop, "for its coordinator")
    }

    /// After a wait that the flag `stop` may have ended: this process goes on without the others then, who hear of it.
    fn or_leave_behind(
        &self,
        waited: Result<()>,
        stop: Option<&AtomicBool>,
        whom: &str,
    ) -> Result<()> {
        if waited.is_err() && stop.is_some_and(|stop| stop.load(Ordering::Acquire)) {
            self.is_left_behind.store(true, Ordering::Release);
            self.communicator()
                .abort(&format!("was stopped while it waited {whom}"));
        }
        waited
    }

    fn session(&self) -> MutexGuard<'_, Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn communicator(&self) -> Communicator {
        self.session().communicator.clone()
    }

    fn coordinator(&self) -> Option<Coordinator> {
        self.session().coordinator.clone()
    }

    /// The number of processes.
    pub(crate) fn workers(&self) -> usize {
        self.session().communicator.size()
    }

    /// The number of processes that the training was begun with.
    pub(crate) fn planned_workers(&self) -> usize {
        let rendezvous = self.rendezvous.as_ref();
        rendezvous.map_or_else(|| self.workers(), Rendezvous::workers)
    }

    /// The number of this process.
    pub(crate) fn worker(&self) -> usize {
        self.session().communicator.rank()
    }

    /// The number of the set of processes, which grows when one is lost or comes.
    pub(crate) fn generation(&self) -> u64 {
        self.session().communicator.generation()
    }

    /// Whether this process writes files and reports progress for all.
    pub(crate) fn is_chief(&self) -> bool {
        self.worker() == 0
    }

    /// Whether this process has come to a training under way, and is not where the others are.
    pub(crate) fn is_catching_up(&self) -> bool {
        self.is_catching_up.load(Ordering::Acquire)
    }

    /// This process has met the others again, and is still not where they are.
    pub(crate) fn goes_on_catching_up(&self) {
        self.is_catching_up.store(true, Ordering::Release);
    }

    /// This process is where the others are.
    pub(crate) fn has_caught_up(&self) {
        self.is_catching_up.store(false, Ordering::Release);
    }

    /// Whether this process has given up to meet the others again: what it writes from now on, it writes alone.
    pub(crate) fn is_left_behind(&self) -> bool {
        self.is_left_behind.load(Ordering::Acquire)
    }

    /// The runs of trainers and custom training loops, which the host's exchanges wait for.
    pub(crate) const fn runs(&self) -> &RunOrder {
        &self.runs
    }

    /// Counts a training that this process begins, from 1.
    pub(crate) fn begin_fit(&self) -> u64 {
        self.fits.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// The process whose training all go on with, and how far that is; none at the start.
    pub(crate) fn source(&self) -> Option<(usize, u64)> {
        let session = self.session();
        let roster = session.roster.as_ref()?;
        let source = roster.source()?;
        Some((source, roster.progress[source]?))
    }

    /// The number of replicas in each process.
    pub(crate) const fn local_replicas(&self) -> usize {
        self.local_replicas
    }

    /// The slot of the exchange by which runs of programs reach the other processes.
    pub(crate) const fn slot(&self) -> u32 {
        self.binding.slot()
    }

    /// How long all replicas of this process have waited within their programs for values of other processes.
    pub(crate) fn exchange_wait(&self) -> Duration {
        self.waits.of_programs_alone()
    }

    /// What this process has waited for the others, in its programs and between them.
    pub(crate) const fn waits(&self) -> &WaitMeter {
        &self.waits
    }

    /// A process by its number, with the address at which the others reach it where that is known.
    pub(crate) fn name_of(&self, rank: usize) -> (usize, Option<SocketAddr>) {
        let session = self.session();
        match &session.roster {
            Some(roster) => (
                roster.workers.get(rank).copied().unwrap_or(rank),
                roster.addresses.get(rank).copied(),
            ),
            None => (rank, None),
        }
    }

    /// An error when an exchange has failed: who is to blame, and why.
    pub(crate) fn check(&self) -> Result<()> {
        match self.communicator().failure() {
            Some(failure) => Err(self.explain(&failure)),
            None => Ok(()),
        }
    }

    /// Tells the others that this process cannot go on, and why; their exchanges fail at once.
    pub(crate) fn abort(&self, reason: &str) {
        let communicator = self.communicator();
        if communicator.failure().is_none() {
            if let Some(coordinator) = self.coordinator() {
                coordinator.report_failure(reason);
            }
            communicator.abort(reason);
        }
    }

    /// Tells the others of an error that they do not have, so that they do not wait for this process.
    pub(crate) fn or_fail<T>(&self, result: Result<T>) -> Result<T> {
        let has_others = self.workers() > 1 && !self.is_catching_up();
        result.inspect_err(|error| {
            if has_others {
                self.abort(&error.to_string());
            }
        })
    }

    /// The loss of a process that the others go on after, if that is what an error comes from.
    pub(crate) fn recoverable(&self, error: &Error) -> Option<Failure> {
        self.rendezvous.as_ref()?;
        if self.is_left_behind() {
            return None;
        }
        let failure = self.coordinator()?.first_failure()?;
        let is_of_cluster = matches!(error, Error::Cluster(_));
        (is_of_cluster && failure.next.is_some()).then_some(failure)
    }

    /// Meets the others in the next generation, where all say how far their training is. No program may be running. The flag `stop` ends
    /// the wait for them.
    pub(crate) fn meet_again(
        &self,
        progress: Option<u64>,
        stop: Option<&Arc<AtomicBool>>,
    ) -> Result<()> {
        let (Some(rendezvous), Some(coordinator)) = (&self.rendezvous, self.coordinator()) else {
            return Err(Error::Bug("a group made by hand meets once".into()));
        };
        let met = rendezvous.rejoin(&coordinator, progress, stop);
        self.is_left_behind.store(met.is_err(), Ordering::Release);
        let session = met?;
        let exchange = watched(&session, self.local_replicas, self.timeout);
        self.binding.replace(exchange);
        *self.session() = session;
        self.greet()
    }

    /// Refuses what all processes do together where this one does not take part: its exchanges would be taken for others.
    pub(crate) fn check_takes_part(&self) -> Result<()> {
        if !self.is_catching_up() {
            return Ok(());
        }
        Err(Error::user(
            "this process has come to a training that goes on, and takes part in it from `fit` on; train on single batches, evaluate and predict after that",
        ))
    }

    /// The bytes of every process, in order.
    pub(crate) fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.check_takes_part()?;
        self.runs.finish()?;
        let communicator = self.communicator();
        let all = (self.waits).while_waiting(|| communicator.all_gather(bytes, Element::U8));
        all.map_err(|error| self.explain(&error))
    }

    /// Rows of numbers of every process, in order; every process gives as many rows of the same length.
    pub(crate) fn all_gather_rows(&self, rows: &[Vec<f64>]) -> Result<Vec<Vec<f64>>> {
        let length = rows.first().map_or(0, Vec::len).max(1);
        let bytes: Vec<u8> = rows
            .iter()
            .flatten()
            .flat_map(|x| x.to_le_bytes())
            .collect();
        let all = self.all_gather(&bytes)?;
        let number = |bytes: &[u8]| bytes.try_into().map_or(f64::NAN, f64::from_le_bytes);
        let numbers: Vec<f64> = all.concat().chunks(8).map(number).collect();
        Ok(numbers.chunks(length).map(<[f64]>::to_vec).collect())
    }

    /// Adds up numbers of every process, each in place of its own.
    pub(crate) fn sum(&self, numbers: &mut [f64]) -> Result<()> {
        self.runs.finish()?;
        let mut bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        let communicator = self.communicator();
        let sum = || communicator.all_reduce(&mut bytes, Element::F64, ReduceOp::Sum);
        let added = self.waits.while_waiting(sum);
        added.map_err(|error| self.explain(&error))?;
        let number = |bytes: &[u8]| bytes.try_into().map_or(f64::NAN, f64::from_le_bytes);
        let sums = bytes.chunks(8).map(number);
        numbers.iter_mut().zip(sums).for_each(|(x, sum)| *x = sum);
        Ok(())
    }

    /// Waits until every process has come.
    pub(crate) fn barrier(&self) -> Result<()> {
        if self.is_catching_up() {
            return Ok(());
        }
        self.runs.finish()?;
        let communicator = self.communicator();
        let come = self.waits.while_waiting(|| communicator.barrier());
        come.map_err(|error| self.explain(&error))
    }

    /// Replaces tensors by the first process' tensors.
    pub(crate) fn broadcast(&self, tensors: &mut [HostTensor]) -> Result<()> {
        if self.is_catching_up() {
            return Ok(());
        }
        for tensor in tensors {
            let mut bytes = AlignedBytes::zeroed(tensor.bytes().len());
            bytes.as_mut_slice().copy_from_slice(tensor.bytes());
            self.broadcast_bytes(0, bytes.as_mut_slice())?;
            *tensor = HostTensor::from_aligned(tensor.shape().clone(), bytes);
        }
        Ok(())
    }

    /// Replaces bytes by another process' bytes.
    fn broadcast_bytes(&self, from: usize, bytes: &mut [u8]) -> Result<()> {
        self.runs.finish()?;
        let communicator = self.communicator();
        let sent = (self.waits).while_waiting(|| communicator.broadcast(from, bytes));
        sent.map_err(|error| self.explain(&error))
    }

    /// The bytes of one process, for all; what others give is left.
    pub(crate) fn broadcast_from(&self, from: usize, mut bytes: Vec<u8>) -> Result<Vec<u8>> {
        let mut length = (bytes.len() as u64).to_le_bytes();
        self.broadcast_bytes(from, &mut length)?;
        let length = u64::from_le_bytes(length);
        bytes.resize(usize::try_from(length).unwrap_or(usize::MAX), 0);
        self.broadcast_bytes(from, &mut bytes)?;
        Ok(bytes)
    }

    /// Refuses to go on unless every process has the same value; `what` names it in the error.
    pub(crate) fn agree(&self, what: &str, value: &str) -> Result<()> {
        self.agree_on(&[(what.to_owned(), value.to_owned())], SAME_PROGRAM)
    }

    /// Refuses to go on unless every process has the same values, in the order in which they are compared, each with its name in the
    /// error; `advice` is what to do then.
    pub(crate) fn agree_on(&self, facts: &[(String, String)], advice: &str) -> Result<()> {
        if self.is_catching_up() {
            return Ok(());
        }
        let bug = |error: serde_json::Error| Error::Bug(format!("facts of a worker: {error}"));
        let own = serde_json::to_vec(facts).map_err(bug)?;
        let all = self.all_gather(&own)?;
        let Some(other) = all.iter().position(|other| *other != own) else {
            return Ok(());
        };
        let theirs: Vec<(String, String)> = serde_json::from_slice(&all[other]).map_err(bug)?;
        let (what, ours) = (facts.iter().enumerate())
            .find(|(at, fact)| theirs.get(*at) != Some(fact))
            .map_or(("a list", "fewer"), |(_, (what, ours))| (what, ours));
        let theirs = theirs.iter().find(|(name, _)| name == what);
        let theirs = theirs.map_or("none", |(_, value)| value);
        Err(differs(
            what,
            (self.worker(), ours),
            (other, theirs),
            advice,
        ))
    }

    /// Begins a call, such as `writes a checkpoint`, by which errors of exchanges name it until it is dropped.
    pub(crate) fn enter(&self, call: &'static str) -> CallWithOthers<'_> {
        CallWithOthers {
            world: self,
            before: self.set_call(call),
        }
    }

    /// Makes exchanges as a part of a call.
    pub(crate) fn during<T>(
        &self,
        call: &'static str,
        exchange: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let _call = self.enter(call);
        exchange()
    }

    fn set_call(&self, call: &'static str) -> &'static str {
        let mut current = self.call.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *current, call)
    }

    /// The error of a failed exchange: what its coordinator knows to be the first failure, if it hears of one.
    fn explain(&self, error: &CollectiveError) -> Error {
        let (worker, workers) = (self.worker(), self.workers());
        let here = format!("worker {worker} of {workers} cannot go on");
        let (coordinator, roster) = {
            let session = self.session();
            (session.coordinator.clone(), session.roster.clone())
        };
        let call = *self.call.lock().unwrap_or_else(PoisonError::into_inner);
        let failure = coordinator.and_then(|coordinator| {
            compare_calls(&coordinator, roster.as_ref(), call, error);
            first_failure(&coordinator, roster.as_ref(), error)
        });
        let text = match &failure {
            Some(failure) => format!("{here}: {failure}"),
            None => format!("{here}: {error}"),
        };
        // Trying again leads to the same.
        match error.is_of_other_calls() || text.contains(SAME_CALLS) {
            true => Error::User(text),
            false => Error::Cluster(text),
        }
    }
}

/// What a process does with others, until it is dropped.
pub(crate) struct CallWithOthers<'w> {
    world: &'w World,
    before: &'static str,
}

impl Drop for CallWithOthers<'_> {
    fn drop(&mut self) {
        self.world.set_call(self.before);
    }
}

/// The error that two processes have something else which must be equal. Trying again does not help.
pub(crate) fn differs(
    what: &str,
    (here, ours): (usize, &str),
    (other, theirs): (usize, &str),
    advice: &str,
) -> Error {
    Error::User(format!(
        "{what} differs between workers: worker {here} has {ours}, worker {other} has {theirs}; {advice}"
    ))
}

/// The exchange of a session, which fails as soon as its coordinator hears of a failure.
fn watched(session: &Session, local_replicas: usize, timeout: Duration) -> Arc<dyn Exchange> {
    if let Some(coordinator) = &session.coordinator {
        let communicator = session.communicator.clone();
        coordinator.on_failure(move |failure| communicator.abort(&failure.to_string()));
    }
    Arc::new(CommunicatorExchange {
        communicator: session.communicator.clone(),
        local_replicas,
        deadline: timeout.saturating_mul(DEADLINE_FACTOR),
    })
}

impl Drop for World {
    /// Leaves the others in good order; where something failed there is nothing to wait for.
    fn drop(&mut self) {
        // What the device does at its end, the training does not need.
        let _ = self.runs.finish();
        let Some(coordinator) = self.coordinator() else {
            return;
        };
        // Whoever has more to exchange waits in vain.
        self.communicator().leave();
        let is_failing = std::thread::panicking() || self.communicator().failure().is_some();
        if !is_failing && coordinator.first_failure().is_none() {
            // What the others do at their end is no failure of this process' training.
            let _ = coordinator.leave(LEFT_WITHIN);
        }
    }
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "worker {} of {}", self.worker(), self.workers())
    }
}
