//! A copy of the model on each device of each process.

use std::time::Duration;

use phalanx_cluster::{Membership, TaskKind, Variables, membership_from_env};
use phalanx_collectives::{Communicator, Element};
use phalanx_proof::draw_hex;

use super::{CommunicationOptions, Strategy};
use crate::engine::{Engine, EngineOptions};
use crate::replicas::{Placement, Reduction, Rendezvous, Session, World};
use crate::{Error, Result};

/// Trains copies of the model on the devices of several processes, on one machine or many, which add their gradients after each
/// step.
///
/// Every process runs the same program: it compiles the model and calls `fit`, `evaluate`, `save` as the others do. Batches are
/// global: each process reads its part of every batch. Results equal one process with the whole batches. The first process, the chief,
/// gives the variables their first values, writes files and shows progress. Custom training loops run in
/// all processes ([`CustomTraining`](super::CustomTraining)); meshes and pipelines stay within one process.
#[derive(Clone, Debug)]
pub struct MultiWorkerMirroredStrategy(Placement);

impl MultiWorkerMirroredStrategy {
    /// The processes that the environment describes (TF_CONFIG, torchrun's variables, Slurm, Kubernetes or MPI), each with the CPU as
    /// one device, or as many as PHALANX_DEVICES_PER_WORKER says; this process alone where the environment describes none.
    ///
    /// # Errors
    /// As for [`from_env_with`](Self::from_env_with).
    pub fn from_env() -> Result<Self> {
        let options = EngineOptions::default();
        let engine = Engine::new(&EngineOptions {
            cpu_devices: devices_per_worker()?.unwrap_or(options.cpu_devices),
            ..options
        })?;
        Self::from_env_with(&engine, &CommunicationOptions::default())
    }

    /// The processes that the environment describes, each with the devices of its engine. Returns when all are there. NVIDIA's GPUs are taken,
    /// whose values are copied to the host, exchanged there and copied back; it has not been tried on one, which a notice says.
    ///
    /// # Errors
    /// [`Error::User`] when the environment contradicts itself, this process is a task that does not train, or one of several whose
    /// engine has other devices than CPUs and NVIDIA's GPUs;
    /// [`Error::Cluster`] when a process is missing, gone, of another version or with another kind or number of devices.
    pub fn from_env_with(engine: &Engine, options: &CommunicationOptions) -> Result<Self> {
        Self::from_env_on(Placement::all(engine), options)
    }

    /// The same with some devices of an engine alone.
    pub(super) fn from_env_on(
        placement: Placement,
        options: &CommunicationOptions,
    ) -> Result<Self> {
        match among_others(&Variables::of_process())? {
            Some(membership) => Self::join_on(placement, &membership, options),
            None => Ok(Self(placement)),
        }
    }

    /// This place among several processes. Returns when all are there.
    ///
    /// # Errors
    /// As for [`from_env_with`](Self::from_env_with).
    pub fn join(
        engine: &Engine,
        membership: &Membership,
        options: &CommunicationOptions,
    ) -> Result<Self> {
        Self::join_on(Placement::all(engine), membership, options)
    }

    fn join_on(
        placement: Placement,
        membership: &Membership,
        options: &CommunicationOptions,
    ) -> Result<Self> {
        let engine = &placement.engine().clone();
        if membership.workers > 1 {
            // Before the others wait for this process.
            check_platform(engine.client().platform())?;
            if engine.platform_name() == "gpu" {
                engine.notice(UNTRIED);
            }
        }
        let options = &options.of_job(&Variables::of_process())?;
        let mpi = options.group_over_mpi(membership, |line| engine.notice(line))?;
        let membership = &match &mpi {
            Some(group) => told_over(group, membership)?,
            None => membership.clone(),
        };
        let rendezvous = Rendezvous::new(membership, options.link(membership))?;
        // MPI ends all processes with the first that is lost.
        let (session, rendezvous) = match mpi {
            Some(group) => (rendezvous.join_over(group)?, None),
            None => (rendezvous.join()?, Some(rendezvous)),
        };
        if membership.is_chief() {
            engine.notice(&session.communicator.algorithms().to_string());
        }
        let strategy = Self::in_group(placement, session, rendezvous, options.timeout)?;
        Ok(match &options.reduction {
            Some(reduction) => strategy.reduction(reduction.clone()),
            None => strategy,
        })
    }

    /// All devices of this process' engine, and the devices of the other processes of a group that was made by hand.
    ///
    /// `timeout` is the deadline of an exchange that the communicator was made with. All processes call this at the same time.
    ///
    /// # Errors
    /// [`Error::Cluster`] when another process is gone, too late, or has another number of devices.
    pub fn on(engine: &Engine, communicator: Communicator, timeout: Duration) -> Result<Self> {
        let session = Session {
            communicator,
            coordinator: None,
            roster: None,
        };
        Self::in_group(Placement::all(engine), session, None, timeout)
    }

    fn in_group(
        placement: Placement,
        session: Session,
        rendezvous: Option<Rendezvous>,
        timeout: Duration,
    ) -> Result<Self> {
        if session.communicator.size() == 1 && rendezvous.is_none() {
            return Ok(Self(placement));
        }
        let engine = placement.engine();
        check_platform(engine.client().platform())?;
        let local_replicas = placement.local_replicas();
        let world = World::new(engine, session, rendezvous, timeout, local_replicas)?;
        Ok(Self(placement.in_world(world)))
    }

    /// With this way of adding gradients; packs leave while the backward pass goes on, so several small ones hide more than one
    /// large one.
    #[must_use]
    pub fn reduction(self, reduction: Reduction) -> Self {
        Self(self.0.with_reduction(reduction))
    }

    /// Number of this process among those that train together.
    #[must_use]
    pub fn worker(&self) -> usize {
        self.0.world().map_or(0, |world| world.worker())
    }

    /// Whether this process writes files and shows progress.
    #[must_use]
    pub fn is_chief(&self) -> bool {
        self.worker() == 0
    }
}

impl Strategy for MultiWorkerMirroredStrategy {
    fn placement(&self) -> &Placement {
        &self.0
    }
}

/// What is said of several processes with GPUs.
const UNTRIED: &str = "warning: several processes with GPUs, which exchange gradients through the host, were never tried on one: compare the losses with those of one process";

/// Refuses devices whose programs cannot wait for values of other processes.
fn check_platform(platform: &str) -> Result<()> {
    if ["cpu", "cuda"].contains(&platform) {
        return Ok(());
    }
    Err(Error::user(format!(
        "replicas of several processes exchange values of CPUs and of NVIDIA's GPUs only, and this engine is of platform `{platform}`; use MirroredStrategy on the devices of one process"
    )))
}

/// The place among several workers that variables describe; none where there is one worker, or they describe nothing.
fn among_others(variables: &Variables) -> Result<Option<Membership>> {
    let found = membership_from_env(variables);
    let found = found.map_err(|error| Error::user(error.to_string()))?;
    if let Some(other) = found.as_ref().filter(|found| !found.task.kind.trains()) {
        let advice = match other.task.kind {
            TaskKind::ParameterServer => {
                "train with `parameter_server` (`ParameterServerStrategy`), or start workers alone (`phalanx launch` without `--ps`)"
            }
            _ => "start this program in the tasks of kinds chief and worker alone",
        };
        return Err(Error::user(format!(
            "this process is {} of its cluster, and a strategy that keeps its variables in the workers has no use for it; {advice}",
            other.task
        )));
    }
    Ok(found.filter(|membership| membership.workers > 1))
}

/// The number of parts that the CPU is divided into in each process, where the environment says so.
pub(super) fn devices_per_worker() -> Result<Option<usize>> {
    const NAME: &str = "PHALANX_DEVICES_PER_WORKER";
    let variables = Variables::of_process();
    let Some(text) = variables.get(NAME) else {
        return Ok(None);
    };
    match text.parse() {
        Ok(count @ 1..) => Ok(Some(count)),
        _ => Err(Error::user(format!(
            "{NAME} is `{text}`, expected a number of devices of at least 1"
        ))),
    }
}

/// The membership with what rank 0 tells the others over MPI where the launcher's variables do not say it: where they meet, and a name that
/// no other job has, which may have the same port.
fn told_over(group: &Communicator, membership: &Membership) -> Result<Membership> {
    let job = draw_hex::<16>().map_err(|error| Error::Cluster(error.to_string()))?;
    let own = format!("{job} {}", phalanx_cluster::own_host());
    let told = group.all_gather(own.as_bytes(), Element::U8);
    let told = told.map_err(|error| Error::Cluster(error.to_string()))?;
    let told = String::from_utf8_lossy(&told[0]).into_owned();
    let (job, host) = told.split_once(' ').unwrap_or_default();
    let mut membership = membership.clone();
    if !membership.rendezvous.is_known() {
        host.clone_into(&mut membership.rendezvous.address.host);
    }
    if membership.job.is_empty() {
        job.clone_into(&mut membership.job);
    }
    Ok(membership)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use phalanx_collectives::CommunicatorOptions;
    use phalanx_graph::op::ReduceOp;
    use phalanx_graph::{HostTensor, Tensor};

    use super::super::CustomTraining;
    use super::*;

    #[test]
    fn a_job_of_mpi_without_a_name_gets_one_that_no_other_has() {
        let variables = [("PMI_RANK", "0"), ("PMI_SIZE", "2")].into_iter().collect();
        let unnamed = membership_from_env(&variables).unwrap().unwrap();
        assert_eq!(
            (unnamed.job.as_str(), unnamed.rendezvous.is_known()),
            ("", false)
        );
        let mut named = unnamed.clone();
        named.job = "7".into();
        named.rendezvous.address.host = "node1".into();
        let told = |membership: &Membership| {
            let group = Communicator::in_memory(2, &CommunicatorOptions::default()).unwrap();
            thread::scope(|scope| {
                let told = |rank| scope.spawn(move || told_over(&rank, membership).unwrap());
                let all: Vec<_> = group.into_iter().map(told).collect();
                let mut all: Vec<_> = all.into_iter().map(|one| one.join().unwrap()).collect();
                assert_eq!(all[0], all[1]);
                all.remove(0)
            })
        };
        assert_eq!(told(&named), named);
        let (one, other) = (told(&unnamed), told(&unnamed));
        assert!(one.rendezvous.is_known());
        assert!(!one.job.is_empty() && one.job != other.job);
    }

    /// Each process trains on its second device.
    #[test]
    fn processes_train_on_the_devices_that_are_named() {
        let timeout = Duration::from_secs(120);
        let options = CommunicatorOptions {
            timeout,
            ..CommunicatorOptions::default()
        };
        let sum = |communicator: Communicator| {
            let engine = Engine::new(&EngineOptions {
                cpu_devices: 2,
                quick_compile: true,
                ..EngineOptions::default()
            })?;
            let session = Session {
                communicator,
                coordinator: None,
                roster: None,
            };
            let placement = Placement::on(&engine, &[1])?;
            let strategy =
                MultiWorkerMirroredStrategy::in_group(placement, session, None, timeout)?;
            assert_eq!(strategy.placement().replicas(), 2);
            let mut state = strategy.state(0)?;
            let mut add = strategy.function(|cx, x: Tensor| [cx.all_reduce(ReduceOp::Sum, &x)]);
            let number = strategy.distribute_values_from_function(|context| {
                HostTensor::scalar(1.0 + context.replica_id as f32)
            })?;
            let [sum] = add.call(&mut state, &number)?;
            Ok::<_, Error>(sum.value()?.f32s())
        };
        let group = Communicator::in_memory(2, &options).unwrap();
        let sums: Vec<Vec<f32>> = thread::scope(|scope| {
            let running: Vec<_> = group
                .into_iter()
                .map(|communicator| scope.spawn(|| sum(communicator).unwrap()))
                .collect();
            let sums = running.into_iter().map(|worker| worker.join().unwrap());
            sums.collect()
        });
        assert_eq!(sums, [[3.0], [3.0]]);
    }

    #[test]
    fn devices_that_cannot_wait_for_others_are_refused() {
        let error = check_platform("tpu").unwrap_err().to_string();
        assert!(error.contains("of platform `tpu`"), "{error}");
        check_platform("cpu").unwrap();
        check_platform("cuda").unwrap();
    }

    #[test]
    fn a_task_that_does_not_train_is_refused_beside_one_worker_too() {
        let place = |kind: &str| {
            let config = format!(
                r#"{{"cluster": {{"worker": ["a:1"]}}, "task": {{"type": "{kind}", "index": 0}}}}"#
            );
            let variables = [("TF_CONFIG".to_owned(), config)];
            among_others(&variables.into_iter().collect())
        };
        assert!(place("worker").unwrap().is_none());
        let error = place("evaluator").unwrap_err().to_string();
        assert!(error.contains("evaluator:0 of its cluster"), "{error}");
    }
}
