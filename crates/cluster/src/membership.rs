//! Which worker of how many a process is, and where it meets the others.

use std::fmt;
use std::time::Duration;

use phalanx_proof::Secret;

use crate::{Address, ClusterSpec, EtcdCluster, Task, TaskKind};

/// What told a process its place in the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// The caller.
    Explicit,
    /// The variable TF_CONFIG.
    TfConfig,
    /// RANK, WORLD_SIZE and the other variables of torchrun.
    Torchrun,
    /// The variables of a step of Slurm.
    Slurm,
    /// The variables of a pod of Kubernetes.
    Kubernetes,
    /// The variables of mpirun, mpiexec or of a PMI server.
    Mpi,
}

impl Source {
    /// The name by which PHALANX_CLUSTER chooses it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Explicit => "explicit",
            Self::TfConfig => "tf_config",
            Self::Torchrun => "torchrun",
            Self::Slurm => "slurm",
            Self::Kubernetes => "kubernetes",
            Self::Mpi => "mpi",
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Explicit => "the program",
            Self::TfConfig => "TF_CONFIG",
            Self::Torchrun => "torchrun's variables",
            Self::Slurm => "Slurm",
            Self::Kubernetes => "Kubernetes",
            Self::Mpi => "MPI's launcher",
        })
    }
}

/// Where the coordination service of worker 0 listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendezvous {
    /// The host of worker 0 and the first port to try.
    pub address: Address,
    /// How many ports after the first may be taken instead, where the first was calculated and another program may have it.
    pub spare_ports: u16,
    /// The etcd cluster that coordinates instead of worker 0, if one does. The address is its first member.
    pub etcd: Option<EtcdCluster>,
}

impl Rendezvous {
    /// A rendezvous at exactly one port.
    #[must_use]
    pub const fn at(address: Address) -> Self {
        Self {
            address,
            spare_ports: 0,
            etcd: None,
        }
    }

    /// An etcd cluster.
    #[must_use]
    pub fn at_etcd(cluster: EtcdCluster) -> Self {
        let first = Self::at(cluster.members()[0].clone());
        Self {
            etcd: Some(cluster),
            ..first
        }
    }

    /// Whether it says where: MPI's launchers do not tell where rank 0 runs, and rank 0 tells the others.
    #[must_use]
    pub const fn is_known(&self) -> bool {
        !self.address.host.is_empty()
    }

    /// All addresses to try, in order.
    pub fn addresses(&self) -> impl Iterator<Item = Address> + '_ {
        let last = self.address.port.saturating_add(self.spare_ports);
        (self.address.port..=last).map(|port| Address::new(self.address.host.clone(), port))
    }
}

impl fmt::Display for Rendezvous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.etcd.is_some() {
            return write!(f, "etcd at {}", self.address);
        }
        match self.is_known() {
            true => write!(f, "{}", self.address)?,
            false => write!(f, "port {} of rank 0's host", self.address.port)?,
        }
        match self.spare_ports {
            0 => Ok(()),
            spare => write!(f, " (or one of the next {spare} ports)"),
        }
    }
}

/// A launcher that coordinates the workers that it started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutsideCoordinator {
    /// What the launcher and its workers prove to each other that they know.
    pub secret: Secret,
    /// How long its service waits for a worker that was lost, where it says so.
    pub recover_within: Option<Duration>,
}

/// The place of a process among the processes of its machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalRank {
    /// Its number among them, from 0.
    pub rank: usize,
    /// How many there are.
    pub size: usize,
}

/// The place of this process in a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Membership {
    /// What told it.
    pub source: Source,
    /// What this process is.
    pub task: Task,
    /// The number of workers, the chief among them.
    pub workers: usize,
    /// The number of this worker: the chief is 0. For a task that does not train, its number within its kind.
    pub worker: usize,
    /// Where worker 0 coordinates, or who started it.
    pub rendezvous: Rendezvous,
    /// Who coordinates, if not worker 0.
    pub launcher: Option<OutsideCoordinator>,
    /// The addresses of all workers, where they are known in advance.
    pub addresses: Option<Vec<Address>>,
    /// All tasks, where TF_CONFIG told them.
    pub cluster: Option<ClusterSpec>,
    /// The place among the processes of this machine, where it is known.
    pub local: Option<LocalRank>,
    /// What tells this job from others that may use the same ports.
    pub job: String,
}

impl Membership {
    /// Worker number `worker` of `workers`, which meet at `rendezvous`.
    #[must_use]
    pub fn new(workers: usize, worker: usize, rendezvous: Address) -> Self {
        Self {
            source: Source::Explicit,
            task: Task::new(TaskKind::Worker, worker),
            workers,
            worker,
            rendezvous: Rendezvous::at(rendezvous),
            launcher: None,
            addresses: None,
            cluster: None,
            local: None,
            job: String::new(),
        }
    }

    /// Whether this is the worker that saves and logs.
    #[must_use]
    pub const fn is_chief(&self) -> bool {
        self.task.kind.trains() && self.worker == 0
    }
}

impl fmt::Display for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            task,
            workers,
            worker,
            source,
            rendezvous,
            ..
        } = self;
        match task.kind.trains() {
            true => write!(f, "worker {worker} of {workers}")?,
            false => write!(f, "{task} beside {workers} workers")?,
        }
        write!(f, " ({source}), coordinated at {rendezvous}")
    }
}
