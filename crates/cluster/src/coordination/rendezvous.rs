//! Rendezvous: worker 0 listens, the others look for it, in any order and for a bounded time.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use phalanx_proof::{Side, draw};
use rustix::process::getpgrp;

use super::client::Coordinator;
use super::event::Settings;
use super::link::{Frames, Incoming, Link, Next, Outgoing, Sealed, seal};
use super::message::{Hello, Refusal, Reply, Request, millis};
use super::report::{IN_LOBBY, Report, dial, reach};
use super::request::{JoinRequest, Roster, Timing};
use super::service::{Hosted, Service, prepare};
use super::{ClusterError, Missing};
use crate::{EtcdCluster, Membership, listen};

/// How waiting for all ended, if not in an error.
enum Waited {
    Welcome(Roster, Timing),
    /// The connection ended before all were there.
    Closed(String),
}

pub(super) fn join(
    membership: &Membership,
    mut request: JoinRequest,
) -> Result<(Coordinator, Roster), ClusterError> {
    if !membership.task.kind.trains() {
        return Err(ClusterError::User(format!(
            "{} does not train: only the chief and workers join",
            membership.task
        )));
    }
    if !membership.rendezvous.is_known() {
        return Err(ClusterError::User(
            "MPI's launcher does not tell where rank 0 runs, and without MPI's library rank 0 cannot tell the others; pass it on: mpirun -x MASTER_ADDR=HOST (mpiexec -env MASTER_ADDR HOST), the host of rank 0".into(),
        ));
    }
    if let Some(launcher) = &membership.launcher {
        request.secret = Some(launcher.secret.clone());
    }
    let tell = std::mem::replace(&mut request.on_waiting, Box::new(|_| ()));
    let mut report = Report::new(membership, (request.deadline, request.stop.clone()), tell);
    match (&membership.rendezvous.etcd, membership.worker) {
        (Some(cluster), _) => meet_in_etcd(cluster, membership, &request, &mut report),
        (None, 0) if membership.launcher.is_none() => {
            let service = host(membership, &request, &mut report)?;
            enter_own(service, membership, &request, &mut report)
        }
        _ => look_for_host(membership, &request, &mut report),
    }
}

/// Joins the generation after the one of a handle, whose service goes on where it is in this process.
pub(super) fn rejoin(
    hosted: Option<Hosted>,
    membership: &Membership,
    mut request: JoinRequest,
) -> Result<(Coordinator, Roster), ClusterError> {
    if let Some(launcher) = &membership.launcher {
        request.secret = Some(launcher.secret.clone());
    }
    let tell = std::mem::replace(&mut request.on_waiting, Box::new(|_| ()));
    let mut report = Report::new(membership, (request.deadline, request.stop.clone()), tell);
    match hosted {
        Some(hosted) => enter_own(hosted, membership, &request, &mut report),
        None => look_for_host(membership, &request, &mut report),
    }
}

/// Worker 0: starts the service.
fn host(
    membership: &Membership,
    request: &JoinRequest,
    report: &mut Report,
) -> Result<Hosted, ClusterError> {
    let settings = settings(membership, request);
    let tell = Box::new(|line: &str| eprintln!("{line}"));
    let service = Service::start(settings, request.secret.clone(), tell)?;
    let mut port = None;
    if membership.workers > 1 {
        let listener = bind(membership, request.deadline, report)?;
        port = listener.local_addr().ok().map(listen::as_seen_from_here);
        service.listen(listener)?;
    }
    Ok(Hosted { service, port })
}

fn settings(membership: &Membership, request: &JoinRequest) -> Settings {
    Settings {
        workers: membership.workers,
        job: membership.job.clone(),
        version: request.version.clone(),
        generation: 1,
        lease: request.timing.lease,
        join_within: Some(request.deadline),
        recovery: request.recovery,
    }
}

/// Worker 0 joins its own service as the others do.
fn enter_own(
    hosted: Hosted,
    membership: &Membership,
    request: &JoinRequest,
    report: &mut Report,
) -> Result<(Coordinator, Roster), ClusterError> {
    let mut link = introduce(hosted.service.connect(), membership, request, 0);
    match wait_for_all(None, &mut link.incoming, membership, request, report)? {
        Waited::Welcome(roster, timing) => {
            let coordinator = Coordinator::start(link, membership, &roster, timing, Some(hosted))?;
            Ok((coordinator, roster))
        }
        Waited::Closed(why) => Err(ClusterError::User(format!(
            "the coordination service ended: {why}"
        ))),
    }
}

/// Every worker is a part of the service where etcd keeps its state; tries again where etcd, or a run that ends, has no place yet.
#[cfg(feature = "etcd")]
fn meet_in_etcd(
    cluster: &EtcdCluster,
    membership: &Membership,
    request: &JoinRequest,
    report: &mut Report,
) -> Result<(Coordinator, Roster), ClusterError> {
    let settings = settings(membership, request);
    loop {
        let entered = super::etcd::Run::enter(cluster, &settings, request.secret.clone());
        let why = match entered {
            Err(no_answer) => no_answer.later(membership.worker)?,
            Ok(run) => match enter_run(run, membership, request, report)? {
                Ok(joined) => return Ok(joined),
                Err(why) => why,
            },
        };
        if report.left().is_zero() {
            return Err(ClusterError::Refused {
                worker: membership.worker,
                at: membership.rendezvous.to_string(),
                why,
            });
        }
        report.perhaps(|| format!("the run of this job in etcd: {why}"));
        thread::sleep(Duration::from_millis(200).min(report.left()));
    }
}

#[cfg(not(feature = "etcd"))]
fn meet_in_etcd(
    _cluster: &EtcdCluster,
    membership: &Membership,
    _request: &JoinRequest,
    _report: &mut Report,
) -> Result<(Coordinator, Roster), ClusterError> {
    Err(ClusterError::User(format!(
        "workers are to meet in {}, and this program was built without it; build it with the feature `etcd`",
        membership.rendezvous
    )))
}

/// Takes part in a run; the inner error is why it has no place for this worker yet.
#[cfg(feature = "etcd")]
fn enter_run(
    run: super::etcd::Run,
    membership: &Membership,
    request: &JoinRequest,
    report: &mut Report,
) -> Result<Result<(Coordinator, Roster), String>, ClusterError> {
    let tell = Box::new(|line: &str| eprintln!("{line}"));
    let service = Service::of_run(run, tell)?;
    let hosted = Hosted {
        service,
        port: None,
    };
    let mut link = introduce(hosted.service.connect(), membership, request, 0);
    let first = loop {
        match link.incoming.next(Duration::from_millis(200)) {
            Next::Message(Reply::Pong, _) | Next::Silence if !report.left().is_zero() => {}
            Next::Message(reply, _) => break reply,
            Next::Silence => return Ok(Err("etcd does not answer".into())),
            Next::Closed(why) => return Ok(Err(why)),
        }
    };
    let again = match first {
        Reply::Refused(ref refusal) => match judge(refusal, membership) {
            Knock::Unheard(why) | Knock::Again(why) | Knock::Taken(why) => Some(why),
            Knock::Never(why) => {
                link.outgoing.close();
                return Err(refused(membership, &membership.rendezvous.address, why));
            }
        },
        Reply::Failed(ref failure) => Some(format!("the run before ended: {failure}")),
        _ => None,
    };
    if let Some(why) = again {
        link.outgoing.close();
        return Ok(Err(why));
    }
    match wait_for_all(Some(first), &mut link.incoming, membership, request, report)? {
        Waited::Welcome(roster, timing) => {
            let coordinator = Coordinator::start(link, membership, &roster, timing, Some(hosted))?;
            Ok(Ok((coordinator, roster)))
        }
        Waited::Closed(why) => Ok(Err(why)),
    }
}

/// Listens at the rendezvous or the first spare port that is free. A port may still be held by the process that this one replaces.
fn bind(
    membership: &Membership,
    deadline: Duration,
    report: &mut Report,
) -> Result<TcpListener, ClusterError> {
    const PATIENCE: Duration = Duration::from_secs(10);
    let until = Instant::now() + deadline.min(PATIENCE);
    loop {
        let mut why = String::new();
        for address in membership.rendezvous.addresses() {
            match listen::bind(&address) {
                Ok(listener) => return Ok(listener),
                Err(error) => why = error.to_string(),
            }
        }
        if Instant::now() >= until {
            return Err(ClusterError::CannotListen {
                at: membership.rendezvous.to_string(),
                why,
            });
        }
        report.perhaps(|| format!("cannot listen at {}: {why}", membership.rendezvous));
        thread::sleep(Duration::from_millis(200));
    }
}

/// Every other worker: tries all places where worker 0 may be, again and again.
fn look_for_host(
    membership: &Membership,
    request: &JoinRequest,
    report: &mut Report,
) -> Result<(Coordinator, Roster), ClusterError> {
    let (mut taken, mut heard, mut pause) = (None, None, Duration::from_millis(20));
    loop {
        let mut whys = Vec::new();
        for address in membership.rendezvous.addresses() {
            match knock(&address, membership, request, report.left()) {
                Ok(taken) => match enter(taken, membership, request, report)? {
                    Ok(joined) => return Ok(joined),
                    Err(why) => whys.push(why),
                },
                Err(Knock::Unheard(why)) => whys.push(why),
                Err(Knock::Again(why)) => {
                    heard = Some(why.clone());
                    whys.push(why);
                }
                Err(Knock::Taken(why)) => {
                    let since = *taken.get_or_insert_with(Instant::now);
                    if since.elapsed() > request.timing.lease * 2 {
                        return Err(refused(membership, &address, why));
                    }
                    whys.push(why);
                }
                Err(Knock::Never(why)) => return Err(refused(membership, &address, why)),
            }
        }
        whys.dedup();
        let mut why = whys.join("; ");
        if report.left().is_zero() {
            // Who waited there may have given up a little earlier, having said more than that nobody is there.
            if let Some(heard) = heard.filter(|heard| !why.contains(heard)) {
                why = format!("{why}; before that: {heard}");
            }
            return Err(not_joined(membership, request, vec![(0, why)]));
        }
        report.perhaps(|| {
            format!(
                "{} at {}: {why}",
                coordinator_of(membership),
                membership.rendezvous
            )
        });
        thread::sleep(pause.min(report.left()));
        pause = (pause * 2).min(Duration::from_millis(500));
    }
}

/// Waits for the others on a connection; the inner error is why the connection ended before.
fn enter(
    taken: Taken,
    membership: &Membership,
    request: &JoinRequest,
    report: &mut Report,
) -> Result<Result<(Coordinator, Roster), String>, ClusterError> {
    let Taken {
        mut link,
        first,
        peer,
    } = taken;
    match wait_for_all(Some(first), &mut link.incoming, membership, request, report)? {
        Waited::Welcome(mut roster, timing) => {
            if let Some(first) = roster.addresses.first_mut() {
                listen::fill_in(first, peer);
            }
            let coordinator = Coordinator::start(link, membership, &roster, timing, None)?;
            Ok(Ok((coordinator, roster)))
        }
        Waited::Closed(why) => Ok(Err(why)),
    }
}

/// Why a place where worker 0 may be did not take this worker.
enum Knock {
    /// Perhaps later: nobody is there, or nobody who says a word.
    Unheard(String),
    /// Perhaps later.
    Again(String),
    /// Perhaps later, if the other process with this number ends.
    Taken(String),
    Never(String),
}

/// A connection to a service that took this worker.
struct Taken {
    link: Link,
    /// What the service said first.
    first: Reply,
    /// The IP address of worker 0.
    peer: std::net::IpAddr,
}

/// Connects and says hello.
fn knock(
    address: &crate::Address,
    membership: &Membership,
    request: &JoinRequest,
    left: Duration,
) -> Result<Taken, Knock> {
    const ANSWER_WITHIN: Duration = Duration::from_secs(5);
    let within = left.min(ANSWER_WITHIN).max(Duration::from_millis(100));
    let stream = dial(address, within).map_err(Knock::Unheard)?;
    let failed = |error: std::io::Error| Knock::Again(error.to_string());
    prepare(&stream).map_err(failed)?;
    let peer = stream.peer_addr().map_err(failed)?.ip();
    let mut frames = Frames::new(stream.try_clone().map_err(failed)?);
    let service = challenge(&mut frames, request, within)?;
    let worker = u128::from_le_bytes(draw().map_err(failed)?);
    let of = |side| seal(request.secret.as_ref(), side, service, worker);
    frames.seal = of(Side::Accepting);
    let sealed = Sealed {
        stream,
        seal: of(Side::Connecting),
    };
    let link = Link {
        outgoing: Outgoing::Tcp(Arc::new(Mutex::new(sealed))),
        incoming: Incoming::Tcp(Box::new(frames)),
    };
    let mut link = introduce(link, membership, request, worker);
    match link.incoming.next(within) {
        Next::Message(Reply::Refused(refusal), _) => Err(judge(&refusal, membership)),
        Next::Message(first, _) => Ok(Taken { link, first, peer }),
        Next::Silence => Err(Knock::Again(format!(
            "it does not answer within {} s",
            within.as_secs_f64()
        ))),
        Next::Closed(_) if request.secret.is_some() => Err(Knock::Again(
            "it ended the connection: it may have another secret".into(),
        )),
        Next::Closed(why) => Err(Knock::Again(why)),
    }
}

/// The number that the service drew, if both have a secret or both have none.
fn challenge(frames: &mut Frames, request: &JoinRequest, within: Duration) -> Result<u128, Knock> {
    match frames.next(within) {
        Next::Message(Reply::Challenge { nonce, sealed }, _) => match (sealed, &request.secret) {
            (true, None) => Err(Knock::Never(
                "it has a secret and this worker none: give all the same".into(),
            )),
            (false, Some(_)) => Err(Knock::Never(
                "it has no secret and this worker one: give all the same".into(),
            )),
            _ => Ok(nonce),
        },
        Next::Message(..) => Err(Knock::Again(
            "it speaks before it is asked: another version?".into(),
        )),
        Next::Silence => Err(Knock::Unheard(format!(
            "it does not answer within {} s",
            within.as_secs_f64()
        ))),
        Next::Closed(why) => Err(Knock::Unheard(why)),
    }
}

fn judge(refusal: &Refusal, membership: &Membership) -> Knock {
    match refusal {
        Refusal::OtherJob { job } => Knock::Again(format!(
            "the coordinator there is of job {job:?}, this worker of {:?}: another training has the port, or the workers' lists of each other differ",
            membership.job
        )),
        Refusal::Taken { by } => Knock::Taken(format!(
            "another process is worker {}, which listens for data at {by}: give each a number of its own",
            membership.worker
        )),
        Refusal::Stale { by, generation } => Knock::Never(format!(
            "the others went on without it: in generation {generation} the process that listens for data at {by} has its place"
        )),
        Refusal::NoSuchWorker { workers } => Knock::Never(format!(
            "it knows {workers} workers, this one counts {}: give both the same cluster",
            membership.workers
        )),
        Refusal::Differs { how } => Knock::Never(format!("it {how}; the others go on without it")),
    }
}

fn refused(membership: &Membership, address: &crate::Address, why: String) -> ClusterError {
    ClusterError::Refused {
        worker: membership.worker,
        at: address.to_string(),
        why,
    }
}

/// Says hello on a connection.
pub(super) fn introduce(
    link: Link,
    membership: &Membership,
    request: &JoinRequest,
    nonce: u128,
) -> Link {
    let hello = Hello {
        job: membership.job.clone(),
        version: request.version.clone(),
        worker: membership.worker,
        workers: membership.workers,
        incarnation: incarnation(),
        nonce,
        data_address: request.data_address,
        generation: request.generation,
        progress: request.progress,
        within_ms: millis(request.deadline),
        group: getpgrp().as_raw_nonzero().get(),
    };
    // If it cannot be sent, no answer comes.
    let _ = link.outgoing.send(Request::Hello(hello), Vec::new());
    link
}

/// Waits until all have joined, and tells now and then who is missing.
fn wait_for_all(
    mut first: Option<Reply>,
    incoming: &mut Incoming,
    membership: &Membership,
    request: &JoinRequest,
    report: &mut Report,
) -> Result<Waited, ClusterError> {
    let mut missing = Vec::new();
    let mut notes = Vec::new();
    let mut is_in_lobby = false;
    // The service says at the deadline that somebody is missing; a worker that it does not tell is told by its own clock.
    let grace = request.timing.lease.min(Duration::from_secs(1));
    let nobody = |missing: &[usize]| not_joined(membership, request, reasons(missing, membership));
    loop {
        let next = match first.take() {
            Some(reply) => Next::Message(reply, Vec::new()),
            None => incoming.next(Duration::from_millis(200)),
        };
        match next {
            Next::Message(
                Reply::Waiting {
                    missing: now,
                    notes: said,
                },
                _,
            ) => (missing, notes, is_in_lobby) = (now, said, false),
            Next::Message(Reply::Lobby, _) => is_in_lobby = true,
            Next::Message(Reply::Failed(_), _) if report.left() < grace && !missing.is_empty() => {
                return Err(nobody(&missing));
            }
            Next::Message(Reply::Failed(failure), _) => {
                return Err(ClusterError::Failed { failure });
            }
            Next::Message(reply, _) => {
                if let Some((roster, timing)) = welcome(reply, membership, request) {
                    return Ok(Waited::Welcome(roster, timing));
                }
            }
            Next::Silence => {}
            Next::Closed(why) => return Ok(Waited::Closed(why)),
        }
        if report.overdue() > grace {
            return Err(match is_in_lobby {
                true => not_let_in(membership, request),
                false => nobody(&missing),
            });
        }
        report.perhaps(|| {
            if is_in_lobby {
                return IN_LOBBY.into();
            }
            let all = reasons(&missing, membership).into_iter();
            let all = all.map(|(worker, why)| named(membership, worker, why).to_string());
            let lines: Vec<_> = all.chain(notes.iter().cloned()).collect();
            lines.join("; ")
        });
    }
}

fn not_let_in(membership: &Membership, request: &JoinRequest) -> ClusterError {
    let within = request.deadline.as_secs_f64();
    let why = format!(
        "the others train without this worker and have not let it in within {within} s: they do so only while all of them are in `fit`"
    );
    refused(membership, &membership.rendezvous.address, why)
}

/// The roster that a reply brings, if it is one of as many workers as there should be.
fn welcome(
    reply: Reply,
    membership: &Membership,
    request: &JoinRequest,
) -> Option<(Roster, Timing)> {
    let Reply::Welcome {
        generation,
        seats,
        lease_ms,
    } = reply
    else {
        return None;
    };
    let lease = Duration::from_millis(lease_ms);
    let timing = Timing {
        heartbeat: request.timing.heartbeat.min(lease / 4),
        lease,
    };
    let roster = Roster::new(generation, &seats);
    roster.rank(membership.worker)?;
    Some((roster, timing))
}

/// Who coordinates.
fn coordinator_of(membership: &Membership) -> &'static str {
    match membership.launcher {
        Some(_) => "the launcher",
        None => "worker 0",
    }
}

/// What can be found out about workers that have not come.
fn reasons(missing: &[usize], membership: &Membership) -> Vec<(usize, String)> {
    // Looking takes time, and the first few tell enough.
    const LOOK_AT: usize = 4;
    let address = |worker: usize| membership.addresses.as_ref()?.get(worker);
    let why = |(at, &worker): (usize, &usize)| match address(worker) {
        Some(address) if at < LOOK_AT => (worker, reach(address)),
        _ => (worker, "it has not connected".into()),
    };
    missing.iter().enumerate().map(why).collect()
}

fn named(membership: &Membership, worker: usize, why: String) -> Missing {
    let addresses = membership.addresses.as_ref();
    Missing {
        worker,
        address: addresses.and_then(|addresses| addresses.get(worker).cloned()),
        why,
    }
}

fn not_joined(
    membership: &Membership,
    request: &JoinRequest,
    missing: Vec<(usize, String)>,
) -> ClusterError {
    let missing = missing.into_iter().map(|(worker, why)| {
        let mut missing = named(membership, worker, why);
        if worker == 0 {
            missing.address = Some(membership.rendezvous.address.clone());
        }
        missing
    });
    ClusterError::NotJoined {
        workers: membership.workers,
        missing: missing.collect(),
        within: request.deadline,
    }
}

/// A number that no other process has, from the randomness that hash maps are seeded with.
fn incarnation() -> u64 {
    RandomState::new().build_hasher().finish()
}
