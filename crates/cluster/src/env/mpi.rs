//! The variables of MPI's launchers: Open MPI's mpirun (OMPI_), MPICH's and Intel's mpiexec (PMI_), PMIx.
//!
//! They tell ranks, but not where rank 0 runs: on one machine that is here, elsewhere rank 0 tells it by MPI, unless MASTER_ADDR or
//! PHALANX_RENDEZVOUS say it.

use super::variables::{Reader, check_rank};
use super::{EnvError, Found, SPARE_PORTS, Said, port_of_job};
use crate::{Address, LocalRank, Membership, Rendezvous, Source};

/// A launcher's names for rank and size, over all and within a machine, and a variable that only it sets.
struct Launcher {
    rank: &'static str,
    size: &'static str,
    local_rank: &'static str,
    local_size: &'static str,
    /// The variables that name the job.
    job: &'static [&'static str],
    /// Set by the launcher itself and not by a scheduler's PMI server.
    mark: &'static str,
}

const LAUNCHERS: [Launcher; 2] = [
    Launcher {
        rank: "OMPI_COMM_WORLD_RANK",
        size: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
        job: &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"],
        mark: "OMPI_COMM_WORLD_SIZE",
    },
    Launcher {
        rank: "PMI_RANK",
        size: "PMI_SIZE",
        local_rank: "MPI_LOCALRANKID",
        local_size: "MPI_LOCALNRANKS",
        job: &["PMI_JOBID", "PMI_PORT"],
        mark: "MPI_LOCALNRANKS",
    },
];

pub(super) fn read(reader: &mut Reader<'_>) -> Result<Option<Found>, EnvError> {
    let launcher = LAUNCHERS.iter().find(|launcher| reader.has(launcher.rank));
    let Some(launcher) = launcher else {
        if reader.has("PMIX_RANK") {
            reader.note("PMIX_RANK is passed over: without OMPI_COMM_WORLD_SIZE nothing tells the number of workers".into());
        }
        return Ok(None);
    };
    let rank = reader.first_number(&[launcher.rank], "the number of this worker")?;
    let size = reader.first_number(&[launcher.size], "the number of workers")?;
    let (Some((worker, rank)), Some((workers, size))) = (rank, size) else {
        return Err(EnvError::Missing {
            missing: launcher.size.into(),
            because: format!("{} is set", launcher.rank),
            next: "let the launcher set both".into(),
        });
    };
    check_rank(&worker, rank, &workers, size)?;
    same_rank(reader, &worker, rank)?;
    let mut membership = Membership::new(size, rank, Address::new("127.0.0.1", 1));
    membership.source = Source::Mpi;
    membership.local = local(reader, launcher)?;
    let job = launcher
        .job
        .iter()
        .find_map(|name| reader.text(name, "the launcher's name of the job"));
    job.unwrap_or_default().clone_into(&mut membership.job);
    membership.rendezvous = rendezvous(reader, &membership)?;
    Ok(Some(Found {
        membership,
        workers,
        worker,
        by_launcher: reader.has(launcher.mark),
    }))
}

/// PMIx counts the same processes.
fn same_rank(reader: &mut Reader<'_>, worker: &Said, rank: usize) -> Result<(), EnvError> {
    match reader.first_number(&["PMIX_RANK"], "the number of this worker, as PMIx counts")? {
        Some((said, other)) if other != rank => Err(EnvError::Contradiction {
            first: Box::new(worker.clone()),
            second: Box::new(said),
            why: format!("this is worker {rank} or {other}"),
            next: "start the workers by one launcher: an outer one's variables were kept".into(),
        }),
        _ => Ok(()),
    }
}

fn local(reader: &mut Reader<'_>, launcher: &Launcher) -> Result<Option<LocalRank>, EnvError> {
    let rank = reader.first_number(
        &[launcher.local_rank],
        "the number of this process on its machine",
    )?;
    let size = reader.first_number(&[launcher.local_size], "the processes of this machine")?;
    let (Some((said, rank)), Some((of, size))) = (rank, size) else {
        return Ok(None);
    };
    check_rank(&said, rank, &of, size)?;
    Ok(Some(LocalRank { rank, size }))
}

fn rendezvous(reader: &mut Reader<'_>, membership: &Membership) -> Result<Rendezvous, EnvError> {
    let host = reader.text("MASTER_ADDR", "the host of worker 0");
    let port = reader.port("MASTER_PORT", "the port at which workers meet")?;
    let all_here = membership.workers == 1
        || membership
            .local
            .is_some_and(|local| local.size == membership.workers);
    let host = match host {
        Some(host) => host,
        None if all_here || reader.has("PHALANX_RENDEZVOUS") => "127.0.0.1",
        // Rank 0 tells the others, by MPI itself.
        None => "",
    };
    Ok(match port {
        Some(port) => Rendezvous::at(Address::new(host, port)),
        None => Rendezvous {
            address: Address::new(host, port_of_job(&membership.job)),
            spare_ports: SPARE_PORTS - 1,
            etcd: None,
        },
    })
}
