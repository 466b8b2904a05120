//! Workers as processes: this test binary starts itself, with TF_CONFIG set for each.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use phalanx::engine::{Engine, EngineOptions};
use phalanx::prelude::*;
use phalanx::strategy::{CommunicationOptions, MultiWorkerMirroredStrategy, Transport};
use phalanx_cluster::launch::ReservedPorts;

use crate::{TOLERANCE, any_device, apart, cases};

/// Where a worker writes what it is left with; a process without it is no worker.
pub(crate) const OUT: &str = "PHALANX_TEST_WORKER_OUT";
pub(crate) const TRANSPORT: &str = "PHALANX_TEST_WORKER_TRANSPORT";
pub(crate) const EPOCHS: &str = "PHALANX_TEST_WORKER_EPOCHS";
/// Within how many seconds workers must have come.
const JOIN_WITHIN: &str = "PHALANX_TEST_WORKER_JOIN_WITHIN";
/// Ends only what hangs.
const LONG: Duration = Duration::from_secs(180);

/// The test that a worker's process runs; nothing where this is no such process.
#[test]
fn worker() {
    let Ok(out) = std::env::var(OUT) else { return };
    let out = match PathBuf::from(out) {
        // Launchers give all workers the same variables, and each its number.
        folder if folder.is_dir() => folder.join(format!("{}.out", rank_of_launcher())),
        file => file,
    };
    let trained = train_as_worker(&out);
    let text = match trained {
        Ok(values) => values,
        Err(error) => format!("error: {error}"),
    };
    std::fs::write(out, text).unwrap();
}

fn rank_of_launcher() -> String {
    let names = ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"];
    let mut ranks = names.iter().filter_map(|name| std::env::var(name).ok());
    ranks.next().unwrap()
}

fn train_as_worker(out: &Path) -> phalanx::Result<String> {
    let transport = match std::env::var(TRANSPORT).as_deref() {
        Ok("tcp") => Transport::Tcp,
        Ok("auto") => Transport::Auto,
        _ => Transport::SharedMemory,
    };
    let epochs: usize = std::env::var(EPOCHS).unwrap().parse().unwrap();
    let engine = Engine::new(&EngineOptions {
        quick_compile: true,
        ..any_device::options()
    })?;
    let join_within = std::env::var(JOIN_WITHIN).map_or(120, |text| text.parse().unwrap());
    let options = CommunicationOptions::new()
        .transport(transport)
        .join_timeout(Duration::from_secs(join_within))
        .timeout(Duration::from_secs(120))
        .recover_within(Duration::ZERO);
    let strategy = MultiWorkerMirroredStrategy::from_env_with(&engine, &options)?;
    let values = train(&strategy, epochs, || {
        // Others wait for this to know that training goes on.
        std::fs::write(out.with_extension("begun"), "").unwrap();
    })?;
    let lines = values
        .iter()
        .map(|(name, value)| format!("{name} {value:?}\n"));
    Ok(lines.collect())
}

/// The variables after some epochs; `begun` is called after the first.
pub(crate) fn train(
    strategy: &impl Strategy,
    epochs: usize,
    begun: impl FnOnce(),
) -> phalanx::Result<Vec<(String, Vec<f64>)>> {
    let case = cases::everything();
    let mut trainer = strategy.compile(case.model, case.compile)?;
    let data = case.data.batch(case.batch);
    let fit = |epochs| Fit::epochs(epochs).progress(Progress::Silent);
    trainer.fit(&data, fit(1))?;
    begun();
    trainer.fit(&data, fit(epochs).initial_epoch(1))?;
    let values = trainer.variables()?.into_iter();
    Ok(values.map(|(name, value)| (name, value.to_f64())).collect())
}

/// The processes of some workers; those that are left are ended.
pub(crate) struct Group {
    folder: PathBuf,
    workers: Vec<Child>,
    _ports: ReservedPorts,
}

impl Group {
    fn start(name: &str, workers: usize, transport: &str, epochs: usize) -> Self {
        Self::start_with(name, workers, transport, epochs, &[])
    }

    fn start_with(
        name: &str,
        workers: usize,
        transport: &str,
        epochs: usize,
        variables: &[(&str, &str)],
    ) -> Self {
        let epochs = epochs.to_string();
        let mut all = vec![(TRANSPORT, transport), (EPOCHS, epochs.as_str())];
        all.extend(variables);
        Self::run("processes::worker", name, workers, &all)
    }

    /// Processes that run this test, each with the path of its own file in [`OUT`].
    pub(crate) fn run(test: &str, name: &str, workers: usize, variables: &[(&str, &str)]) -> Self {
        let folder = std::env::temp_dir().join(format!("phalanx-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let ports = ReservedPorts::new(workers, None).unwrap();
        let addresses: Vec<String> = ports
            .of_workers()
            .iter()
            .map(|port| format!("\"127.0.0.1:{port}\""))
            .collect();
        let start = |index: usize| {
            let config = format!(
                r#"{{"cluster": {{"worker": [{}]}}, "task": {{"type": "worker", "index": {index}}}}}"#,
                addresses.join(", ")
            );
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", test, "--nocapture"])
                .env("TF_CONFIG", config)
                .env(OUT, folder.join(format!("{index}.out")))
                .envs(variables.iter().copied())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap()
        };
        Self {
            workers: (0..workers).map(start).collect(),
            folder,
            _ports: ports,
        }
    }

    /// What a worker wrote, once its process has ended.
    pub(crate) fn outcome(&mut self, worker: usize) -> String {
        let start = Instant::now();
        while self.workers[worker].try_wait().unwrap().is_none() {
            assert!(start.elapsed() < LONG, "worker {worker} does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
        std::fs::read_to_string(self.folder.join(format!("{worker}.out"))).unwrap_or_default()
    }

    fn wait_until_begun(&self) {
        let start = Instant::now();
        let begun = |worker| self.folder.join(format!("{worker}.begun")).exists();
        while !(0..self.workers.len()).all(begun) {
            assert!(start.elapsed() < LONG, "no worker trains");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for worker in &mut self.workers {
            // It may have ended.
            let _ = worker.kill();
            let _ = worker.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The variables that a worker wrote.
pub(crate) fn parsed(text: &str) -> Vec<(String, Vec<f64>)> {
    assert!(!text.is_empty() && !text.starts_with("error"), "{text}");
    let line = |line: &str| {
        let (name, values) = line.split_once(" [").unwrap();
        let values = values.trim_end_matches(']').split(", ");
        (
            name.to_owned(),
            values.map(|x| x.parse().unwrap()).collect(),
        )
    };
    text.lines().map(line).collect()
}

#[test]
fn two_processes_train_as_one_over_tcp_and_shared_memory() {
    let one = train(&OneDeviceStrategy::on(crate::engine(0, 1)), 2, || ()).unwrap();
    let mut before = None;
    for transport in ["tcp", "shm"] {
        let mut group = Group::start(transport, 2, transport, 2);
        let [a, b] = [0, 1].map(|worker| group.outcome(worker));
        assert_eq!(a, b, "workers have different bits");
        for ((name, ours), (_, theirs)) in one.iter().zip(parsed(&a)) {
            assert!(apart(ours, &theirs) <= TOLERANCE, "{name}");
        }
        let first = before.get_or_insert_with(|| a.clone());
        assert_eq!(*first, a, "tcp and shared memory give different bits");
    }
}

#[test]
fn a_killed_worker_is_named_by_the_other_soon() {
    let mut group = Group::start("killed", 2, "shm", 100_000);
    group.wait_until_begun();
    group.workers[1].kill().unwrap();
    let text = group.outcome(0);
    assert!(
        text.starts_with("error: worker 0 of 2 cannot go on: worker 1 "),
        "{text}"
    );
}

#[test]
fn a_stopped_worker_is_named_by_the_other_within_its_lease() {
    let mut group = Group::start("stopped", 2, "tcp", 100_000);
    group.wait_until_begun();
    let stop = |signal: &str, worker: &Child| {
        let sent = Command::new("kill")
            .args([signal, &worker.id().to_string()])
            .status();
        assert!(sent.unwrap().success());
    };
    stop("-STOP", &group.workers[1]);
    let text = group.outcome(0);
    assert!(
        text.starts_with("error: worker 0 of 2 cannot go on: worker 1 "),
        "{text}"
    );
    stop("-CONT", &group.workers[1]);
}

#[test]
fn a_missing_worker_is_named() {
    let mut group = Group::start_with("missing", 2, "tcp", 2, &[(JOIN_WITHIN, "5")]);
    group.workers[1].kill().unwrap();
    let text = group.outcome(0);
    assert!(text.contains("1 of 2 workers did not join"), "{text}");
    assert!(text.contains("worker 1"), "{text}");
}
