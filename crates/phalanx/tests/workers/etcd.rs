//! Workers that meet in a real etcd: each of them may die, and so may etcd.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use phalanx::checkpoint::TrainingState;
use phalanx_cluster::launch::ReservedPorts;

use crate::recovery::{CHECKPOINT, FOLDER, GO, STOP_AT_END, begun, unbroken};

const LONG: Duration = Duration::from_secs(300);

/// An etcd and two workers, in a folder; all end with this.
struct Training {
    folder: PathBuf,
    /// In memory where there is such a folder: etcd waits for its disk, which on a busy machine takes longer than a lease.
    etcd_folder: PathBuf,
    ports: ReservedPorts,
    etcd: Option<Child>,
    workers: Vec<Child>,
    /// More variables of the workers.
    variables: Vec<(&'static str, PathBuf)>,
}

impl Training {
    /// None where etcd is not installed.
    fn start(name: &str) -> Option<Self> {
        Self::start_with(name, |_| Vec::new())
    }

    /// The same with more variables of the workers, which may name the folder.
    fn start_with(
        name: &str,
        variables: impl Fn(&Path) -> Vec<(&'static str, PathBuf)>,
    ) -> Option<Self> {
        let folder = format!("phalanx-{name}-{}", std::process::id());
        let memory = Path::new("/dev/shm");
        let etcd_folder = match memory.is_dir() {
            true => memory.join(format!("{folder}-etcd")),
            false => std::env::temp_dir().join(format!("{folder}-etcd")),
        };
        let folder = std::env::temp_dir().join(folder);
        std::fs::create_dir_all(&folder).unwrap();
        let mut training = Self {
            ports: ReservedPorts::new(2, None).unwrap(),
            variables: variables(&folder),
            folder,
            etcd_folder,
            etcd: None,
            workers: Vec::new(),
        };
        if !training.start_etcd() {
            phalanx_testkit::skip("no etcd; it is in Debian's package etcd-server");
            return None;
        }
        training.workers = (0..2).map(|rank| training.worker(rank)).collect();
        Some(training)
    }

    fn start_etcd(&mut self) -> bool {
        let address = |of: usize| format!("http://127.0.0.1:{}", self.ports.of_workers()[of]);
        let [client, peer] = [0, 1].map(address);
        let mut command = Command::new("etcd");
        command.args(["--name", "e1", "--data-dir"]);
        command.arg(&self.etcd_folder);
        command.args(["--listen-client-urls", &client]);
        command.args(["--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer]);
        command.args(["--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &format!("e1={peer}")]);
        let started = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        self.etcd = started.ok();
        self.etcd.is_some()
    }

    fn worker(&self, rank: usize) -> Child {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "recovery::worker", "--nocapture"])
            .env(FOLDER, &self.folder)
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", "2")
            .env("MASTER_ADDR", "nowhere.invalid")
            .env("MASTER_PORT", "1")
            .env("PHALANX_JOB_ID", self.folder.file_name().unwrap())
            .env(
                "PHALANX_RENDEZVOUS",
                format!("etcd://127.0.0.1:{}", self.ports.of_workers()[0]),
            );
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        let said = std::fs::File::create(self.folder.join(format!("{rank}.err")));
        let command = command.stdout(Stdio::null()).stderr(said.unwrap());
        command.spawn().unwrap()
    }

    fn until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let start = Instant::now();
        while !holds() {
            assert!(start.elapsed() < LONG, "not yet: {what}: {}", self.said());
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn said(&self) -> String {
        let read = |rank| std::fs::read_to_string(self.folder.join(format!("{rank}.err")));
        [0, 1].map(|rank| read(rank).unwrap_or_default()).concat()
    }

    fn wait_until_begun(&self) {
        self.until("training begins", || {
            ["0", "1"].iter().all(|rank| begun(&self.folder, rank) == 1)
        });
    }

    /// Lets training go on as fast as it can.
    fn go(&self) {
        std::fs::write(self.folder.join(GO), "").unwrap();
    }

    /// How both workers have ended.
    fn codes(&mut self) -> Vec<Option<i32>> {
        let mut workers = std::mem::take(&mut self.workers);
        self.until("the workers end", || {
            workers
                .iter_mut()
                .all(|worker| worker.try_wait().unwrap().is_some())
        });
        let code = |worker: &mut Child| worker.wait().unwrap().code();
        workers.iter_mut().map(code).collect()
    }

    /// What both workers are left with at their end.
    fn outs(&mut self) -> [String; 2] {
        self.codes();
        let read = |rank| std::fs::read_to_string(self.folder.join(format!("{rank}.out")));
        [0, 1].map(|rank| read(rank).unwrap_or_else(|_| panic!("{}", self.said())))
    }
}

impl Drop for Training {
    fn drop(&mut self) {
        for child in self.workers.iter_mut().chain(&mut self.etcd) {
            // It may have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
        let _ = std::fs::remove_dir_all(&self.etcd_folder);
    }
}

#[test]
fn the_first_worker_may_die_where_etcd_coordinates() {
    let Some(mut training) = Training::start("chief") else {
        return;
    };
    training.wait_until_begun();
    training.workers[0].kill().unwrap();
    training.workers[0].wait().unwrap();
    training.workers[0] = training.worker(0);
    training.until("the new one trains", || begun(&training.folder, "0") == 2);
    training.go();
    let outs = training.outs();
    let expected = unbroken(2);
    assert!(training.said().contains("goes on"), "{}", training.said());
    assert!(
        outs.iter().all(|out| *out == expected),
        "{}",
        training.said()
    );
}

#[test]
fn a_training_goes_on_while_etcd_is_dead() {
    let Some(mut training) = Training::start("etcd") else {
        return;
    };
    training.wait_until_begun();
    let mut etcd = training.etcd.take().unwrap();
    etcd.kill().unwrap();
    etcd.wait().unwrap();
    thread::sleep(Duration::from_millis(500));
    assert!(training.start_etcd());
    training.go();
    let outs = training.outs();
    let expected = unbroken(2);
    assert!(
        outs.iter().all(|out| *out == expected),
        "{}",
        training.said()
    );
}

/// Workers that have made their last step wait for an etcd that is away for five minutes, but no longer than a lease once they are asked
/// to stop.
#[test]
fn workers_that_are_asked_to_stop_at_their_end_do_not_wait_for_etcd() {
    let variables = |folder: &Path| {
        vec![
            (STOP_AT_END, PathBuf::from("1")),
            (CHECKPOINT, folder.join("checkpoint")),
        ]
    };
    let Some(mut training) = Training::start_with("stopped", variables) else {
        return;
    };
    training.wait_until_begun();
    let mut etcd = training.etcd.take().unwrap();
    etcd.kill().unwrap();
    etcd.wait().unwrap();
    training.go();
    let path = training.folder.join("checkpoint");
    // 47 steps in each of 5 epochs; one in three is saved, the last of these 234.
    let step = || TrainingState::load(&path).map_or(0, |state| state.iterations());
    training.until("the last step but one is saved", || step() >= 234);
    let start = Instant::now();
    let codes = training.codes();
    assert!(start.elapsed() < LONG / 5, "{}", training.said());
    assert_eq!(codes, [Some(143), Some(143)], "{}", training.said());
    assert_eq!(step(), 235, "{}", training.said());
}

/// Longer than its lease in etcd.
const ASLEEP: Duration = Duration::from_secs(9);

#[test]
fn a_worker_that_slept_past_its_lease_takes_part_again() {
    let Some(mut training) = Training::start("asleep") else {
        return;
    };
    training.wait_until_begun();
    let signal = |name: &str| {
        let process = training.workers[1].id().to_string();
        let sent = Command::new("kill").args([name, &process]).status();
        assert!(sent.unwrap().success());
    };
    signal("-STOP");
    thread::sleep(ASLEEP);
    signal("-CONT");
    training.until("it takes part", || training.said().contains("goes on from"));
    training.go();
    let outs = training.outs();
    let expected = unbroken(2);
    assert!(
        outs.iter().all(|out| *out == expected),
        "{}",
        training.said()
    );
}
