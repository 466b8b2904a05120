//! How a process meets the others: at the start, and again when one of them was lost.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use phalanx_cluster::{
    ClusterError, Coordinator, Failure, JoinRequest, Membership, Recovery, Roster,
};
use phalanx_collectives::{CollectiveError, Communicator, CommunicatorOptions};

use crate::{Error, Result};

/// How long a process whose exchange failed waits to hear who failed first, where it cannot say itself.
const HEARD_WITHIN: Duration = Duration::from_secs(1);
/// How long it waits for an answer to whom it lost: the coordinator may just be dying with that one, and where etcd coordinates it is the
/// end of a lease before another process tells the time.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(20);
/// How long a process whose calls are others than another's waits to hear which those are.
const TOLD_WITHIN: Duration = Duration::from_millis(500);
/// What to do where workers make other calls.
pub(super) const SAME_CALLS: &str = "all workers must call `fit`, `evaluate`, `predict`, `save` and `save_checkpoint` alike, with the same settings, as many batches and the same callbacks";
/// How much longer than the others wait for a replacement a process waits to hear that they do so no more.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);

/// The least time for processes that have met again to connect.
const CONNECTED_WITHIN: Duration = Duration::from_secs(30);
/// The generation of those that a training begins with.
const FIRST_GENERATION: u64 = 1;

/// What carries values between processes, and how long they wait for each other.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    /// What a group of the first generation is made with.
    pub(crate) group: CommunicatorOptions,
    pub(crate) recover_within: Duration,
    /// The least workers that go on when others are lost, where no launcher says it.
    pub(crate) least: usize,
}

/// The place of this process among others, and where it listens for them.
pub(crate) struct Rendezvous {
    membership: Membership,
    listener: TcpListener,
    link: Link,
}

/// One generation of processes as this one sees it.
pub(crate) struct Session {
    pub(crate) communicator: Communicator,
    /// Who watches the other processes; none where the group was made by hand.
    pub(crate) coordinator: Option<Coordinator>,
    pub(crate) roster: Option<Roster>,
}

impl Rendezvous {
    pub(crate) fn new(membership: &Membership, link: Link) -> Result<Self> {
        let listener = membership.data_listener().map_err(|error| {
            Error::Cluster(format!("cannot listen for data of other workers: {error}"))
        })?;
        Ok(Self {
            membership: membership.clone(),
            listener,
            link,
        })
    }

    /// The number of processes that the environment speaks of.
    pub(crate) const fn workers(&self) -> usize {
        self.membership.workers
    }

    /// Meets all others for the first and only time, where they have a group for data already.
    pub(crate) fn join_over(&self, communicator: Communicator) -> Result<Session> {
        let (coordinator, roster) = self.find(None)?;
        Ok(Session {
            communicator,
            coordinator: Some(coordinator),
            roster: Some(roster),
        })
    }

    fn find(&self, recovery: Option<Recovery>) -> Result<(Coordinator, Roster)> {
        let within = self.link.group.join_timeout;
        let request = self.request(None)?.deadline(within).recovery(recovery);
        Coordinator::join(&self.membership, request).map_err(joined)
    }

    /// Meets all others for the first time.
    pub(crate) fn join(&self) -> Result<Session> {
        let within = self.link.recover_within;
        let least = self.link.least;
        let recovery = (!within.is_zero()).then_some(Recovery { within, least });
        let (coordinator, roster) = self.find(recovery)?;
        match self.connect(coordinator, roster)? {
            Ok(session) => Ok(session),
            Err((coordinator, _)) => self.rejoin(&coordinator, None, None),
        }
    }

    /// Meets the others again; `progress` is how far the training of this process is. Whoever is lost meanwhile is waited for anew, until
    /// the flag `stop` is found set.
    pub(crate) fn rejoin(
        &self,
        coordinator: &Coordinator,
        progress: Option<u64>,
        stop: Option<&Arc<AtomicBool>>,
    ) -> Result<Session> {
        let mut coordinator = coordinator.clone();
        loop {
            let mut within = self.link.recover_within;
            if coordinator.has_comers() {
                within = within.max(self.link.group.join_timeout);
            }
            let within = within.saturating_add(ANSWERED_WITHIN);
            let request = self.request(progress)?.deadline(within);
            let request = request.stop_when(stop.cloned());
            let met = coordinator.rejoin(&self.membership, request);
            let (met, roster) = met.map_err(joined)?;
            match self.connect(met, roster)? {
                Ok(session) => return Ok(session),
                Err((failed, _)) => coordinator = failed,
            }
        }
    }

    /// Waits until all that come new to a training under way have come to the `fit` in which the others are, and says so where this
    /// is one of them. Before, a program may do what takes longer than an exchange of data may. The flag `stop` ends the wait.
    pub(super) fn await_comers(
        &self,
        coordinator: &Coordinator,
        roster: &Roster,
        stop: Option<&AtomicBool>,
    ) -> Result<()> {
        let key = |worker: usize| format!("worker {worker} has come to `fit`");
        let (own, comers) = (coordinator.worker(), roster.comers());
        if comers.contains(&own) {
            coordinator.set(&key(own), Vec::new()).map_err(joined)?;
        }
        let (start, within) = (Instant::now(), self.link.group.join_timeout);
        for worker in comers {
            let left = within.saturating_sub(start.elapsed());
            match coordinator.get_unless(&key(worker), left, stop) {
                Ok(_) => {}
                Err(ClusterError::NotSet { .. }) => {
                    return Err(report_late(coordinator, worker, within));
                }
                Err(error) => return Err(joined(error)),
            }
        }
        Ok(())
    }

    fn request(&self, progress: Option<u64>) -> Result<JoinRequest> {
        let address = self.listener.local_addr().map_err(|error| {
            Error::Cluster(format!("cannot find the address of a listener: {error}"))
        })?;
        let request = JoinRequest::new(env!("CARGO_PKG_VERSION"), address).progress(progress);
        Ok(match &self.link.group.secret {
            Some(secret) => request.secret(secret.clone()),
            None => request,
        })
    }

    /// How long the members of a generation may take to connect, once all have met.
    fn connect_within(&self, generation: u64) -> Duration {
        match generation {
            ..=FIRST_GENERATION => self.link.group.join_timeout,
            _ => self.link.recover_within.max(CONNECTED_WITHIN),
        }
    }

    /// Connects to the others of a roster for data. The inner error is of a generation that ended meanwhile and is followed by another.
    #[allow(clippy::type_complexity, reason = "used in two places right here")]
    fn connect(
        &self,
        coordinator: Coordinator,
        roster: Roster,
    ) -> Result<std::result::Result<Session, (Coordinator, Failure)>> {
        let cancel = Arc::new(AtomicBool::new(false));
        let cancelled = Arc::clone(&cancel);
        coordinator.on_failure(move |_| cancelled.store(true, Ordering::Release));
        let worker = self.membership.worker;
        let rank = roster.rank(worker).unwrap_or(worker);
        let connected = Communicator::connect(
            rank,
            &roster.addresses,
            &self.listener,
            &CommunicatorOptions {
                generation: roster.generation,
                cancel: Some(cancel),
                join_timeout: self.connect_within(roster.generation),
                ..self.link.group.clone()
            },
        );
        let error = match connected {
            Ok(communicator) => {
                return Ok(Ok(Session {
                    communicator,
                    coordinator: Some(coordinator),
                    roster: Some(roster),
                }));
            }
            Err(error) => error,
        };
        // All have just met, and one that was lost since would be known: the network between two of them is cut, and meeting again
        // would lead here for ever.
        let is_cut = roster.generation > FIRST_GENERATION
            && matches!(error, CollectiveError::Unreachable { .. });
        if !is_cut
            && let Some(failure) = first_failure(&coordinator, Some(&roster), &error)
            && failure.next.is_some()
        {
            return Ok(Err((coordinator, failure)));
        }
        coordinator.report_failure(error.to_string());
        Err(Error::Cluster(format!("worker {worker}: {error}")))
    }
}

/// Tells the others what this process does, and ends all where another does something else: they would do so again.
pub(super) fn compare_calls(
    coordinator: &Coordinator,
    roster: Option<&Roster>,
    call: &str,
    error: &CollectiveError,
) {
    let number = |rank: usize| roster.and_then(|roster| roster.workers.get(rank).copied());
    let key = |worker: usize| format!("the call of worker {worker}");
    let is_told_by_another = matches!(error, CollectiveError::Aborted { .. });
    if !is_told_by_another && !error.is_of_other_calls() {
        return;
    }
    let own = coordinator.worker();
    // Where the coordinator does not answer, the error names the exchanges.
    let _ = coordinator.set(&key(own), call.into());
    let [rank] = error.blamed()[..] else { return };
    let other = number(rank).unwrap_or(rank);
    let theirs = match error {
        CollectiveError::Left { .. } => Some("has done all of its work".to_owned()),
        CollectiveError::Mismatch { .. } => coordinator
            .get(&key(other), TOLD_WITHIN)
            .ok()
            .map(|call| String::from_utf8_lossy(&call).into_owned()),
        _ => return,
    };
    let calls = match theirs {
        Some(theirs) => format!("{call} where worker {other} {theirs}"),
        None => format!("makes other calls than worker {other}"),
    };
    coordinator.report_failure(format!("{calls} ({error}); {SAME_CALLS}"));
}

/// What the coordinator knows to be the first failure, if it hears of one.
pub(super) fn first_failure(
    coordinator: &Coordinator,
    roster: Option<&Roster>,
    error: &CollectiveError,
) -> Option<Failure> {
    let mut within = HEARD_WITHIN;
    if let [lost, ..] = error.blamed()[..] {
        let worker = roster.and_then(|roster| roster.workers.get(lost));
        match error.is_of_other_calls() {
            true => coordinator.report_failure(format!("{error}; {SAME_CALLS}")),
            false => coordinator.report_lost(*worker.unwrap_or(&lost), error.to_string()),
        }
        within = CONFIRMED_WITHIN;
    }
    heard_failure(coordinator, within)
}

/// Gives up a worker that comes new and does not get to where the others are; the error of this.
fn report_late(coordinator: &Coordinator, worker: usize, within: Duration) -> Error {
    let own = coordinator.worker();
    let why = format!(
        "it has not come to `fit` within {} s, where the others wait for it; let the program do less before `fit`, or raise `join_timeout`",
        within.as_secs_f64()
    );
    coordinator.report_lost(worker, why.as_str());
    heard_failure(coordinator, CONFIRMED_WITHIN);
    Error::Cluster(format!("worker {own} has lost worker {worker}: {why}"))
}

/// The first failure, if the coordinator hears of one in time.
fn heard_failure(coordinator: &Coordinator, within: Duration) -> Option<Failure> {
    let start = Instant::now();
    loop {
        let failure = coordinator.first_failure();
        if failure.is_some() || start.elapsed() > within {
            return failure;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The error of a process that did not find the others.
pub(super) fn joined(error: ClusterError) -> Error {
    match error {
        ClusterError::User(message) => Error::User(message),
        other => Error::Cluster(other.to_string()),
    }
}
