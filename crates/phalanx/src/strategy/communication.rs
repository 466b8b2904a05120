//! What carries values between processes, and how long they wait for each other.

use std::time::Duration;

use phalanx_cluster::{Membership, Variables};
use phalanx_collectives::{Communicator, CommunicatorOptions, Mpi, MpiLaunch, Transport};
use phalanx_proof::Secret;

use crate::replicas::{Link, Reduction, WireFormat};
use crate::{Error, Result};

/// Which library carries values between processes: TensorFlow's option of this name, with MPI beside it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CommunicationImplementation {
    /// MPI where its launcher started the processes (`mpirun`, `srun --mpi`) and its library fits, else our own. A line at the start
    /// says which.
    #[default]
    Auto,
    /// Our own exchanges, over shared memory and TCP.
    Ring,
    /// The MPI library of the cluster. A lost process ends the job, which goes on from its last checkpoint.
    Mpi,
    /// NVIDIA's library between GPUs: refused, since values of several processes go through the host.
    Nccl,
}

/// What carries gradients between processes, and how long they wait for each other.
#[derive(Clone, Debug)]
pub struct CommunicationOptions {
    implementation: CommunicationImplementation,
    transport: Transport,
    pub(super) timeout: Duration,
    pub(super) join_timeout: Duration,
    recover_within: Duration,
    /// The least workers with which a training goes on; all of them where this is `None`.
    least: Option<usize>,
    pub(super) secret: Option<Secret>,
    pub(super) reduction: Option<Reduction>,
}

impl Default for CommunicationOptions {
    /// MPI where its launcher started the processes, else shared memory within a machine and TCP between machines; a minute for an
    /// exchange, five to find each other, one to find a worker again that was lost.
    fn default() -> Self {
        Self {
            implementation: CommunicationImplementation::Auto,
            transport: Transport::Auto,
            timeout: Duration::from_secs(60),
            join_timeout: Duration::from_secs(300),
            recover_within: Duration::from_secs(60),
            least: None,
            secret: None,
            reduction: None,
        }
    }
}

impl CommunicationOptions {
    /// The default.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets which library carries the values.
    #[must_use]
    pub const fn implementation(mut self, implementation: CommunicationImplementation) -> Self {
        self.implementation = implementation;
        self
    }

    /// Sets what carries the bytes of our own exchanges.
    #[must_use]
    pub const fn transport(mut self, transport: Transport) -> Self {
        self.transport = transport;
        self
    }

    /// Sets the longest that an exchange waits for other processes without getting a byte on. It must be longer than processes may
    /// be apart: the slowest step, or a compilation that one of them finds in its cache and another does not.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the longest that processes wait for all to be there.
    #[must_use]
    pub const fn join_timeout(mut self, timeout: Duration) -> Self {
        self.join_timeout = timeout;
        self
    }

    /// Sets how long the others wait within [`fit`](crate::fit::Trainer::fit) for a worker that was lost to be started again, before
    /// they end with an error; zero ends them at once. Workers of `phalanx launch` do what the launch says.
    #[must_use]
    pub const fn recover_within(mut self, within: Duration) -> Self {
        self.recover_within = within;
        self
    }

    /// Sets what processes prove to each other that they know, when they find each other and before they exchange data; MPI's
    /// exchanges themselves are as safe as its launcher makes them. Where nothing is set, it is what the file holds that
    /// PHALANX_SECRET_FILE names, as `phalanx jobs` sets it.
    #[must_use]
    pub fn secret(mut self, secret: impl Into<Vec<u8>>) -> Self {
        self.secret = Some(Secret::new(secret));
        self
    }

    /// Sets the least number of bytes in a pack of gradients, as [`Reduction::bytes_per_pack`].
    #[must_use]
    pub fn bytes_per_pack(mut self, bytes: usize) -> Self {
        self.reduction = Some(self.reduction.unwrap_or_default().bytes_per_pack(bytes));
        self
    }

    /// Sets the element type in which f32 gradients travel, as [`Reduction::wire`]; they are added in f32.
    #[must_use]
    pub fn wire_dtype(mut self, wire: WireFormat) -> Self {
        self.reduction = Some(self.reduction.unwrap_or_default().wire(wire));
        self
    }

    /// These options, with the job's secret where none is set and the least number of its workers, as its variables say.
    pub(super) fn of_job(&self, variables: &Variables) -> Result<Self> {
        const NAME: &str = "PHALANX_MIN_WORKERS";
        let mut options = self.clone();
        if options.secret.is_none() {
            options.secret = secret_of_job(variables)?;
        }
        if let Some(text) = variables.get(NAME) {
            let least = text.parse().ok().filter(|least| *least > 0);
            options.least = Some(least.ok_or_else(|| {
                Error::user(format!(
                    "{NAME} is {text:?}, expected a whole number of at least 1; correct it, or unset it to wait for all workers"
                ))
            })?);
        }
        Ok(options)
    }

    /// What a group is made with. The secret of a launcher proves what a program's own would.
    fn of_group(&self, membership: &Membership) -> CommunicatorOptions {
        let launchers = membership
            .launcher
            .as_ref()
            .map(|launcher| &launcher.secret);
        CommunicatorOptions {
            transport: self.transport,
            timeout: self.timeout,
            join_timeout: self.join_timeout,
            secret: self.secret.as_ref().or(launchers).cloned(),
            job: membership.job.clone(),
            generation: 1,
            ..CommunicatorOptions::default()
        }
    }

    /// How a process meets the others. It waits for as long as the service does, which a launcher decides that has it.
    pub(super) fn link(&self, membership: &Membership) -> Link {
        let launcher = membership.launcher.as_ref();
        let launchers = launcher.and_then(|launcher| launcher.recover_within);
        Link {
            group: self.of_group(membership),
            recover_within: launchers.unwrap_or(self.recover_within),
            least: self.least.unwrap_or(membership.workers),
        }
    }

    /// The group over MPI, where that is what carries the values; `notice` takes the line that says which library, or why
    /// none where it could have been one.
    pub(super) fn group_over_mpi(
        &self,
        membership: &Membership,
        notice: impl Fn(&str),
    ) -> Result<Option<Communicator>> {
        let Some(launch) = self.launch(membership, &Variables::of_process())? else {
            return Ok(None);
        };
        let mpi = match Mpi::start(&launch, self.join_timeout) {
            Ok(mpi) => mpi,
            Err(error) if self.implementation == CommunicationImplementation::Auto => {
                let variable = launch.variable;
                notice(&format!(
                    "warning: {variable} says that MPI started this process, and MPI is not used: {error}"
                ));
                return Ok(None);
            }
            Err(error) => return Err(Error::user(error.to_string())),
        };
        if membership.is_chief() {
            notice(&format!(
                "workers exchange by {}, since {} is set: a lost worker ends the job, which goes on from its last checkpoint",
                mpi.name(),
                launch.variable
            ));
        }
        let group = Communicator::over_mpi(mpi, &self.of_group(membership));
        group
            .map(Some)
            .map_err(|error| Error::Cluster(format!("worker {}: {error}", membership.worker)))
    }

    /// How MPI started this process, where MPI is what carries the values.
    fn launch(&self, membership: &Membership, variables: &Variables) -> Result<Option<MpiLaunch>> {
        let found = MpiLaunch::find(|name| variables.get(name).map(str::to_owned));
        let fits = |launch: &MpiLaunch| {
            launch.size == membership.workers && launch.rank == membership.worker
        };
        match self.implementation {
            CommunicationImplementation::Ring => Ok(None),
            CommunicationImplementation::Auto => Ok(found.filter(fits)),
            CommunicationImplementation::Nccl => Err(Error::user(
                "NCCL carries values between GPUs, and those of several processes go through the host; choose Auto, Ring or Mpi",
            )),
            CommunicationImplementation::Mpi => match found {
                Some(launch) if fits(&launch) => Ok(Some(launch)),
                Some(MpiLaunch {
                    rank,
                    size,
                    variable,
                    ..
                }) => Err(Error::user(format!(
                    "MPI counts this process as rank {rank} of {size} ({variable}), and this is {membership}: start the workers by one launcher, or choose Ring"
                ))),
                None => Err(Error::user(
                    "values are to travel by MPI, and no launcher of MPI started this process: start it by `mpirun` or `srun --mpi=pmix` (or pmi2), or choose Auto",
                )),
            },
        }
    }
}

/// The secret in the file that the job's variables name, if they do.
pub(super) fn secret_of_job(variables: &Variables) -> Result<Option<Secret>> {
    const NAME: &str = "PHALANX_SECRET_FILE";
    let Some(path) = variables.get(NAME) else {
        return Ok(None);
    };
    let secret = Secret::read(path.as_ref()).map_err(|error| {
        Error::user(format!(
            "cannot read the job's secret in {path}, which {NAME} names: {error}; give all processes the same file, or unset it"
        ))
    });
    secret.map(Some)
}

#[cfg(test)]
mod tests {
    use phalanx_cluster::Address;

    use std::fs;

    use super::*;

    fn launch(implementation: CommunicationImplementation, variables: &str) -> String {
        let pairs = variables.split_whitespace();
        let pairs = pairs.map(|pair| pair.split_once('=').unwrap());
        let variables = Variables::from_iter(pairs);
        let membership = Membership::new(2, 1, Address::new("n1", 1));
        let options = CommunicationOptions::new().implementation(implementation);
        match options.launch(&membership, &variables) {
            Ok(Some(launch)) => launch.variable.to_owned(),
            Ok(None) => "ring".into(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn the_least_workers_are_those_of_the_jobs_variable() {
        let membership = Membership::new(3, 1, Address::new("n1", 1));
        let least = |value: &str| {
            let variables = Variables::from_iter([("PHALANX_MIN_WORKERS", value)]);
            let options = CommunicationOptions::new().of_job(&variables);
            options
                .map(|options| options.link(&membership).least)
                .map_err(|error| error.to_string())
        };
        assert_eq!(least(""), Ok(3));
        assert_eq!(least("2"), Ok(2));
        for wrong in ["0", "two", "-1"] {
            let error = least(wrong).unwrap_err();
            assert!(
                error.contains("expected a whole number of at least 1"),
                "{error}"
            );
        }
    }

    #[test]
    fn the_jobs_secret_is_that_of_its_file_where_none_is_set() {
        let path = std::env::temp_dir().join(format!("phalanx-secret-{}", std::process::id()));
        let text = path.display().to_string();
        let variables = Variables::from_iter([("PHALANX_SECRET_FILE", text.as_str())]);
        let secret = |options: &CommunicationOptions, variables: &Variables| {
            let options = options.of_job(variables);
            options
                .map(|options| options.secret)
                .map_err(|error| error.to_string())
        };
        let plain = CommunicationOptions::new();
        let error = secret(&plain, &variables).unwrap_err();
        assert!(
            error.contains(&text) && error.contains("give all processes the same"),
            "{error}"
        );
        fs::write(&path, "\n").unwrap();
        assert!(secret(&plain, &variables).unwrap_err().contains("is empty"));
        fs::write(&path, "of the job\n").unwrap();
        assert_eq!(
            secret(&plain, &variables),
            Ok(Some(Secret::new("of the job")))
        );
        let own = plain.clone().secret("own");
        assert_eq!(secret(&own, &variables), Ok(Some(Secret::new("own"))));
        let none = Variables::from_iter([("A", "b")]);
        assert_eq!(secret(&plain, &none), Ok(None));
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn exchanges_are_proved_by_the_launchers_secret_where_none_is_set() {
        let mut membership = Membership::new(2, 0, "localhost:1".parse().unwrap());
        let of_group = |options: &CommunicationOptions, membership: &Membership| {
            options.link(membership).group.secret
        };
        let plain = CommunicationOptions::new();
        assert_eq!(of_group(&plain, &membership), None);
        let secret = Secret::new("launcher");
        membership.launcher = Some(phalanx_cluster::OutsideCoordinator {
            secret: secret.clone(),
            recover_within: None,
        });
        assert_eq!(of_group(&plain, &membership), Some(secret));
        assert_eq!(
            of_group(&plain.secret("own"), &membership),
            Some(Secret::new("own"))
        );
    }

    #[test]
    fn a_lost_worker_is_waited_for_as_the_launch_says_and_else_as_the_program_does() {
        let mut membership = Membership::new(2, 0, "localhost:1".parse().unwrap());
        let options = CommunicationOptions::new().recover_within(Duration::from_secs(1));
        let of = |membership: &Membership| options.link(membership).recover_within;
        assert_eq!(of(&membership), Duration::from_secs(1));
        membership.launcher = Some(phalanx_cluster::OutsideCoordinator {
            secret: Secret::new("launcher"),
            recover_within: Some(Duration::from_secs(120)),
        });
        assert_eq!(of(&membership), Duration::from_secs(120));
    }

    #[test]
    fn mpi_is_taken_where_its_launcher_counts_the_same_processes() {
        use CommunicationImplementation::{Auto, Mpi, Nccl, Ring};
        let open = "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1";
        let other = "OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=0";
        assert_eq!(launch(Auto, open), "OMPI_COMM_WORLD_SIZE");
        assert_eq!(launch(Mpi, open), "OMPI_COMM_WORLD_SIZE");
        assert_eq!(launch(Auto, "PMI_RANK=1 PMI_SIZE=2"), "PMI_RANK");
        for variables in [other, "", "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2"] {
            assert_eq!(launch(Auto, variables), "ring");
        }
        assert_eq!(launch(Ring, open), "ring");
        assert!(launch(Mpi, other).contains("rank 0 of 1"));
        assert!(launch(Mpi, "").contains("no launcher of MPI"));
        assert!(launch(Nccl, open).contains("GPUs"));
    }
}
