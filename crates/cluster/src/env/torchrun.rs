//! The variables of torchrun, which many launchers set: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and their local ones.

use super::variables::{Reader, check_rank};
use super::{EnvError, Found, Said};
use crate::{Address, LocalRank, Membership, Rendezvous, Source};

pub(super) fn read(reader: &mut Reader<'_>) -> Result<Option<Found>, EnvError> {
    let rank = reader.number("RANK", "the number of this worker")?;
    let size = reader.number("WORLD_SIZE", "the number of workers")?;
    let (rank, size) = match (rank, size) {
        (Some(rank), Some(size)) => (rank, size),
        (Some(rank), None) => {
            return Err(EnvError::Missing {
                missing: "WORLD_SIZE".into(),
                because: format!("RANK={rank} is set"),
                next: "set WORLD_SIZE to the number of workers, or unset RANK".into(),
            });
        }
        (None, Some(size)) => {
            let text = format!("WORLD_SIZE={size} is passed over: RANK is not set");
            reader.note(text);
            return Ok(None);
        }
        (None, None) => return Ok(None),
    };
    let (worker, workers) = (Said::new("RANK", rank), Said::new("WORLD_SIZE", size));
    check_rank(&worker, rank, &workers, size)?;
    let mut membership =
        Membership::new(size, rank, Address::new("127.0.0.1", super::DEFAULT_PORT));
    membership.source = Source::Torchrun;
    membership.rendezvous = rendezvous(reader, size)?;
    membership.local = local(reader)?;
    let run = reader.text("TORCHELASTIC_RUN_ID", "torchrun's name of the job");
    run.unwrap_or_default().clone_into(&mut membership.job);
    Ok(Some(Found {
        membership,
        workers,
        worker,
        by_launcher: run.is_some() || reader.has("PHALANX_JOB_ID"),
    }))
}

/// Refuses to be the only worker where nothing says which one of several this process is: each of them would train alone.
pub(super) fn check_alone(reader: &mut Reader<'_>) -> Result<(), EnvError> {
    let size = reader.number("WORLD_SIZE", "the number of workers")?;
    match size.filter(|size| *size > 1) {
        None => Ok(()),
        Some(size) => Err(EnvError::Missing {
            missing: "RANK".into(),
            because: format!("WORLD_SIZE={size} is set"),
            next: "set RANK to the number of this worker, from 0, or unset WORLD_SIZE".into(),
        }),
    }
}

/// The address of the master. Under torchrun itself its agent listens at that port, so that worker 0 takes one of the next.
fn rendezvous(reader: &mut Reader<'_>, workers: usize) -> Result<Rendezvous, EnvError> {
    let Some(host) = reader.text("MASTER_ADDR", "the host of worker 0") else {
        if workers == 1 {
            return Ok(Rendezvous::at(Address::new(
                "127.0.0.1",
                super::DEFAULT_PORT,
            )));
        }
        return Err(EnvError::Missing {
            missing: "MASTER_ADDR".into(),
            because: format!("WORLD_SIZE={workers} workers must meet"),
            next: "set MASTER_ADDR to the host of worker 0 and MASTER_PORT to a free port there"
                .into(),
        });
    };
    let port = reader.port("MASTER_PORT", "the port at which workers meet")?;
    let port = port.unwrap_or(29_500);
    let agent = "whether torchrun's agent listens at MASTER_PORT";
    let agent = reader.text("TORCHELASTIC_USE_AGENT_STORE", agent);
    Ok(match agent {
        Some("True") => Rendezvous {
            address: Address::new(host, port.checked_add(1).unwrap_or(61_000)),
            spare_ports: super::SPARE_PORTS,
            etcd: None,
        },
        _ => Rendezvous::at(Address::new(host, port)),
    })
}

fn local(reader: &mut Reader<'_>) -> Result<Option<LocalRank>, EnvError> {
    let rank = reader.number("LOCAL_RANK", "the number of this process on its machine")?;
    let size = reader.number("LOCAL_WORLD_SIZE", "the processes of this machine")?;
    let (Some(rank), Some(size)) = (rank, size) else {
        return Ok(None);
    };
    let said = Said::new("LOCAL_RANK", rank);
    check_rank(&said, rank, &Said::new("LOCAL_WORLD_SIZE", size), size)?;
    Ok(Some(LocalRank { rank, size }))
}
