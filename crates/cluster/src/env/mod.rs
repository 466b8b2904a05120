//! Environments: what launchers and schedulers tell a process by variables, a file each, in order of precedence.
//!
//! TF_CONFIG, torchrun's names, Slurm, Kubernetes, MPI: the first that is there decides, and a later one that says something else
//! about the same processes is a contradiction, which is an error. A scheduler that only started the launcher (Slurm around
//! mpirun or torchrun) speaks of other processes and is not compared.

mod error;
mod etcd;
mod explain;
pub mod host_list;
mod kubernetes;
mod mpi;
mod slurm;
pub mod tf_config;
mod torchrun;
mod variables;

pub use error::{EnvError, Said};
pub use explain::{Explanation, explain};
pub use variables::{Variable, Variables, may_have_password};

use phalanx_proof::Secret;

use crate::{ClusterSpec, Membership, OutsideCoordinator, Source};
use variables::Reader;

/// The port of a coordination service where nothing says another, as in TensorFlow's examples.
const DEFAULT_PORT: u16 = 2222;

/// What a source said, and how it stands to others.
struct Found {
    membership: Membership,
    /// The variable that told the number of workers.
    workers: Said,
    /// The variable that told which worker this is.
    worker: Said,
    /// Whether a launcher inside a scheduler's allocation started this very process, so that the scheduler's variables speak of
    /// the launcher.
    by_launcher: bool,
}

type Read = fn(&mut Reader<'_>) -> Result<Option<Found>, EnvError>;

/// The sources in order of precedence.
const SOURCES: [(Source, Read); 5] = [
    (Source::TfConfig, tf_config::read),
    (Source::Torchrun, torchrun::read),
    (Source::Slurm, slurm::read),
    (Source::Kubernetes, kubernetes::read),
    (Source::Mpi, mpi::read),
];

/// Which worker of how many this process is by its variables; `None` without a cluster: one worker.
///
/// # Errors
/// A variable holds what it must not, one is missing, or two contradict each other.
pub fn membership_from_env(variables: &Variables) -> Result<Option<Membership>, EnvError> {
    explain(variables).outcome
}

/// Reads all sources and decides between them. What was read and what was passed over is left in `reader`.
fn decide(reader: &mut Reader<'_>) -> Result<Option<Membership>, EnvError> {
    let Some(found) = choose(reader)? else {
        return Ok(None);
    };
    let mut membership = found.membership;
    if let Some(rendezvous) = reader.rendezvous()? {
        membership.rendezvous = rendezvous;
    }
    if let Some(secret) = reader.silent("PHALANX_LAUNCHER_SECRET") {
        membership.launcher = Some(OutsideCoordinator {
            secret: Secret::new(secret),
            recover_within: reader.seconds(
                "PHALANX_RECOVER_WITHIN",
                "how many seconds a worker that was lost is waited for",
            )?,
        });
    }
    if let Some(job) = reader.text("PHALANX_JOB_ID", "what tells this job from others") {
        job.clone_into(&mut membership.job);
    }
    Ok(Some(membership))
}

/// The source that counts: the one that PHALANX_CLUSTER names, or the first that is there and is not contradicted.
fn choose(reader: &mut Reader<'_>) -> Result<Option<Found>, EnvError> {
    if let Some(name) = reader.text("PHALANX_CLUSTER", "the source that counts") {
        return named(reader, name);
    }
    let mut all = Vec::new();
    for (source, read) in SOURCES {
        match reader.of(source, read) {
            Ok(found) => all.extend(found),
            // What decides must be right; what comes after it is only compared.
            Err(error) if all.is_empty() => return Err(error),
            Err(error) => reader.note(format!("{source} is not compared: {error}")),
        }
    }
    let first = all.iter().position(|found| !steps_back(found, &all));
    let Some(first) = first else {
        return torchrun::check_alone(reader).map(|()| None);
    };
    let winner = all.swap_remove(first);
    for other in &all {
        if let Some(error) = contradiction(&winner, other) {
            return Err(error);
        }
    }
    Ok(Some(winner))
}

fn named(reader: &mut Reader<'_>, name: &str) -> Result<Option<Found>, EnvError> {
    if name == "none" {
        return Ok(None);
    }
    let Some((source, read)) = SOURCES
        .into_iter()
        .find(|(source, _)| source.name() == name)
    else {
        return Err(EnvError::Value {
            variable: "PHALANX_CLUSTER",
            place: String::new(),
            got: format!("{name:?}"),
            expected: "tf_config, torchrun, slurm, kubernetes, mpi or none".into(),
            next: "set one of them, or unset it to take the first that is there".into(),
        });
    };
    let found = reader.of(source, read)?;
    found.map(Some).ok_or_else(|| EnvError::Missing {
        missing: format!("what {source} tells"),
        because: format!("PHALANX_CLUSTER is {name:?}"),
        next: format!("start the process by {source}, or unset PHALANX_CLUSTER"),
    })
}

/// Whether a scheduler's variables speak of mpirun and not of this process, which mpirun started.
fn steps_back(found: &Found, all: &[Found]) -> bool {
    found.membership.source != Source::Mpi
        && is_outer(found)
        && all
            .iter()
            .any(|other| other.membership.source == Source::Mpi && other.by_launcher)
}

/// Whether a source may speak of a launcher that it started, and not of this process.
fn is_outer(found: &Found) -> bool {
    matches!(
        found.membership.source,
        Source::Slurm | Source::Kubernetes | Source::Mpi
    )
}

/// The error that two sources are, which should speak of the same processes; `None` if they agree or need not.
fn contradiction(winner: &Found, other: &Found) -> Option<EnvError> {
    let (ours, theirs) = (&winner.membership, &other.membership);
    // A step of one task is how a launcher is started; a cluster with tasks that do not train has more tasks than workers.
    let speaks_of_another = winner.by_launcher && is_outer(other)
        || theirs.workers == 1
        || !ours.task.kind.trains()
        || !theirs.task.kind.trains()
        || has_other_tasks(ours);
    if speaks_of_another {
        return None;
    }
    let (first, second, why) = if ours.workers != theirs.workers {
        let why = format!("{} workers or {}", ours.workers, theirs.workers);
        (&winner.workers, &other.workers, why)
    } else if ours.worker != theirs.worker {
        let why = format!("this is worker {} or {}", ours.worker, theirs.worker);
        (&winner.worker, &other.worker, why)
    } else {
        return None;
    };
    Some(EnvError::Contradiction {
        first: Box::new(first.clone()),
        second: Box::new(second.clone()),
        why,
        next: format!(
            "unset one, or choose with PHALANX_CLUSTER={} or {}",
            ours.source.name(),
            theirs.source.name()
        ),
    })
}

fn has_other_tasks(membership: &Membership) -> bool {
    let tasks = membership.cluster.iter().flat_map(ClusterSpec::tasks);
    tasks.into_iter().any(|(task, _)| !task.kind.trains())
}

/// The first of ports that a number of a job stands for: above those that systems hand out by themselves.
fn port_of_job(job: &str) -> u16 {
    61_000 + (hash(job.as_bytes()) % 560) as u16 * SPARE_PORTS
}

/// FNV-1a: the same everywhere and always, neighbouring numbers of jobs far apart.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Ports that a job may try after the calculated one.
const SPARE_PORTS: u16 = 8;
