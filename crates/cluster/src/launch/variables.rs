//! The variables of each worker: TF_CONFIG and torchrun's names, so that programs of others run too, and ours.

use std::net::SocketAddr;

use super::gpus::{VISIBLE, visible_gpus};
use super::ports::Reserved;
use super::{Launch, LaunchError};
use crate::{Address, ClusterSpec, TaskKind, tf_config};

/// What this process was told of its own place, which is not the workers'.
pub(super) const REMOVED: [&str; 3] = [
    "PHALANX_CLUSTER",
    "PHALANX_WORKERS",
    "TORCHELASTIC_USE_AGENT_STORE",
];

/// Names and values.
type EnvPairs = Vec<(String, String)>;

/// The variables of all workers, by number.
pub(super) fn of_workers(
    launch: &Launch,
    ports: &Reserved,
    coordinator: SocketAddr,
    secret: &str,
) -> Result<Vec<EnvPairs>, LaunchError> {
    let workers = launch.workers.get();
    let ports = ports.of_workers();
    let addresses = ports.iter().map(|&port| Address::new("127.0.0.1", port));
    let tasks = addresses.enumerate();
    // Nobody talks to an evaluator, and TensorFlow wants none in the cluster.
    let tasks = tasks
        .map(|(process, address)| (launch.task(process), address))
        .filter(|(task, _)| task.kind != TaskKind::Evaluator);
    let cluster = tasks.fold(ClusterSpec::new(), |all, (task, address)| {
        all.with(task, address)
    });
    let gpus = gpus_of_workers(launch)?;
    let of_worker = |rank: usize| {
        let task = launch.task(rank);
        let mut variables = vec![("TF_CONFIG".into(), tf_config::write(&cluster, task))];
        let mut set = |name: &str, value: String| variables.push((name.into(), value));
        if task.kind == TaskKind::Worker {
            for name in ["RANK", "LOCAL_RANK", "ROLE_RANK"] {
                set(name, rank.to_string());
            }
            for name in ["WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"] {
                set(name, workers.to_string());
            }
        }
        set("GROUP_RANK", "0".into());
        set("GROUP_WORLD_SIZE", "1".into());
        set("MASTER_ADDR", "127.0.0.1".into());
        set("MASTER_PORT", ports[0].to_string());
        set("TORCHELASTIC_RUN_ID", launch.job.clone());
        set("TORCHELASTIC_MAX_RESTARTS", launch.max_restarts.to_string());
        set("PHALANX_JOB_ID", launch.job.clone());
        set("PHALANX_RENDEZVOUS", coordinator.to_string());
        set("PHALANX_LAUNCHER_SECRET", secret.to_owned());
        let recover_within = launch.recover_within.as_secs_f64();
        set("PHALANX_RECOVER_WITHIN", recover_within.to_string());
        if launch.evaluator {
            set("PHALANX_EVALUATOR", "1".into());
        }
        // Python keeps what goes to a pipe for itself, and loses it when it is killed.
        set("PYTHONUNBUFFERED", "1".into());
        if let Some(devices) = launch.devices_per_worker {
            set("PHALANX_DEVICES_PER_WORKER", devices.to_string());
        }
        if let Some(gpus) = gpus.get(rank) {
            set(VISIBLE, gpus.join(","));
        }
        variables
    };
    Ok((0..launch.processes()).map(of_worker).collect())
}

/// The variables of a worker that was started again this number of times.
pub(super) fn of_restart(restarts: u32) -> [(&'static str, String); 2] {
    ["TORCHELASTIC_RESTART_COUNT", "PHALANX_RESTART_COUNT"].map(|name| (name, restarts.to_string()))
}

/// The GPUs of each worker; empty without GPUs, and where nobody asked for devices.
fn gpus_of_workers(launch: &Launch) -> Result<Vec<Vec<String>>, LaunchError> {
    let Some(devices) = launch.devices_per_worker else {
        return Ok(Vec::new());
    };
    let gpus = visible_gpus(std::env::var(VISIBLE).ok().as_deref());
    let (workers, devices) = (launch.workers.get(), devices.get());
    match gpus.len() {
        0 => Ok(Vec::new()),
        found if found < workers * devices => Err(LaunchError::Gpus {
            workers,
            devices,
            found,
        }),
        _ => Ok(gpus
            .chunks(devices)
            .take(workers)
            .map(<[_]>::to_vec)
            .collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Source, membership_from_env};
    use phalanx_proof::Secret;
    use std::num::NonZeroUsize;
    use std::time::Duration;

    #[test]
    fn what_is_set_is_read_as_one_membership_from_both_names() {
        let workers = NonZeroUsize::new(3).unwrap();
        let mut launch = Launch::new(vec!["x".into()], workers, "job", "logs");
        launch.recover_within = Duration::from_millis(2500);
        let ports = Reserved::new(3, None).unwrap();
        let coordinator = ([127, 0, 0, 1], 77).into();
        let all = of_workers(&launch, &ports, coordinator, "secret").unwrap();
        for (rank, variables) in all.into_iter().enumerate() {
            let choose = |source: Option<&str>| {
                let chosen = source.map(|source| ("PHALANX_CLUSTER".to_owned(), source.to_owned()));
                let all = variables.iter().cloned().chain(chosen).collect();
                membership_from_env(&all).unwrap().unwrap()
            };
            for source in [None, Some("torchrun")] {
                let membership = choose(source);
                assert_eq!((membership.worker, membership.workers), (rank, 3));
                assert_eq!(membership.rendezvous.address.port, 77);
                let launcher = membership.launcher.unwrap();
                assert_eq!(launcher.secret, Secret::new("secret"));
                assert_eq!(launcher.recover_within, Some(launch.recover_within));
                assert_eq!(membership.local.unwrap().rank, rank);
                assert_eq!(membership.job, "job");
            }
            assert_eq!(choose(None).source, Source::TfConfig);
        }
    }

    #[test]
    fn an_evaluator_knows_what_it_is_and_others_that_there_is_one() {
        let workers = NonZeroUsize::new(2).unwrap();
        let mut launch = Launch::new(vec!["x".into()], workers, "job", "logs");
        (launch.servers, launch.evaluator) = (1, true);
        let ports = Reserved::new(launch.processes(), None).unwrap();
        let coordinator = ([127, 0, 0, 1], 77).into();
        let all = of_workers(&launch, &ports, coordinator, "secret").unwrap();
        assert_eq!(launch.name(3), "evaluator-0");
        let tasks = ["worker:0", "worker:1", "ps:0", "evaluator:0"];
        assert_eq!(all.len(), tasks.len());
        for (variables, task) in all.into_iter().zip(tasks) {
            let variables = variables.into_iter().collect();
            let membership = membership_from_env(&variables).unwrap().unwrap();
            assert_eq!(membership.task.to_string(), task);
            assert_eq!(membership.cluster.unwrap().count(TaskKind::Evaluator), 0);
            assert_eq!(variables.get("PHALANX_EVALUATOR"), Some("1"));
        }
    }
}
