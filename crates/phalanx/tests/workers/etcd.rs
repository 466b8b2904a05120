//! Workers that meet in a real etcd: each of them may die, and so may etcd.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use phalanx_cluster::launch::ReservedPorts;

use crate::recovery::{FOLDER, GO, begun, unbroken};

const LONG: Duration = Duration::from_secs(300);

/// An etcd and two workers, in a folder; all end with this.
struct Training {
    folder: PathBuf,
    /// In memory where there is such a folder: etcd waits for its disk, which on a busy machine takes longer than a lease.
    etcd_folder: PathBuf,
    ports: ReservedPorts,
    etcd: Option<Child>,
    workers: Vec<Child>,
}

impl Training {
    /// None where etcd is not installed.
    fn start(name: &str) -> Option<Self> {
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

    /// What both workers are left with at their end.
    fn outs(&mut self) -> [String; 2] {
        let mut workers = std::mem::take(&mut self.workers);
        self.until("the workers end", || {
            workers
                .iter_mut()
                .all(|worker| worker.try_wait().unwrap().is_some())
        });
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
