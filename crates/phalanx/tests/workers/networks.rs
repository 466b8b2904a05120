//! Four workers on four hosts, whose network fails in each way that networks do: they end with the bits of the unbroken run, or with
//! errors that name who is not heard; nobody waits for ever.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::hosts::Hosts;
use crate::recovery::{
    FOLDER, GO, LENGTH, Length, Outage, PAUSE, RANK, RECOVER_WITHIN, SHORT, TIMEOUT, USUAL, alone,
    begun, seeds, unbroken_of,
};

/// Longer than anything takes unless it hangs.
const LONG: Duration = Duration::from_secs(300);
const WORKERS: usize = 4;
const PAUSE_EACH: Duration = Duration::from_millis(40);
/// Longer than the lease of a worker.
const OUTAGE: Duration = Duration::from_secs(7);

/// A worker on each host.
struct Training {
    hosts: Hosts,
    folder: PathBuf,
    workers: Vec<Child>,
    /// Seconds that workers wait for one that was lost, and for each other in an exchange.
    patience: u32,
    length: Length,
    /// What each example takes until the training may go on.
    pause: Duration,
}

impl Training {
    /// None where namespaces cannot be made.
    fn start(kind: char, patience: u32) -> Option<Self> {
        let hosts = Hosts::start(kind, WORKERS)?;
        Some(Self::on(hosts, kind, patience, USUAL, PAUSE_EACH))
    }

    /// On hosts whose network is as it will be.
    fn on(hosts: Hosts, kind: char, patience: u32, length: Length, pause: Duration) -> Self {
        let folder = format!("phalanx-hosts-{kind}-{}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        std::fs::create_dir_all(&folder).unwrap();
        let mut training = Self {
            hosts,
            folder,
            workers: Vec::new(),
            patience,
            length,
            pause,
        };
        training.workers = (0..WORKERS).map(|rank| training.worker(rank)).collect();
        training
    }

    fn worker(&self, rank: usize) -> Child {
        let addresses: Vec<String> = (1..=WORKERS).map(|host| format!("h{host}:4000")).collect();
        let config = format!(
            r#"{{"cluster": {{"worker": {addresses:?}}}, "task": {{"type": "worker", "index": {rank}}}}}"#
        );
        let words = self.hosts.on(rank + 1);
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .arg(std::env::current_exe().unwrap());
        command.args(["--exact", "recovery::worker", "--nocapture"]);
        command.env("TF_CONFIG", config).env(FOLDER, &self.folder);
        command.env(RANK, rank.to_string());
        command.env(LENGTH, self.length.to_string());
        command.env(PAUSE, self.pause.as_millis().to_string());
        for limit in [RECOVER_WITHIN, TIMEOUT] {
            command.env(limit, self.patience.to_string());
        }
        let mut said = std::fs::File::options();
        let said = said.create(true).append(true);
        let said = said.open(self.folder.join(format!("{rank}.err")));
        command
            .stdout(Stdio::null())
            .stderr(said.unwrap())
            .spawn()
            .unwrap()
    }

    fn said_by(&self, rank: usize) -> String {
        let read = std::fs::read_to_string(self.folder.join(format!("{rank}.err")));
        read.unwrap_or_default()
    }

    fn said(&self) -> String {
        (0..WORKERS).map(|rank| self.said_by(rank)).collect()
    }

    fn until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let start = Instant::now();
        while !holds() {
            assert!(start.elapsed() < LONG, "not yet: {what}: {}", self.said());
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn wait_until_begun(&self) {
        self.until("all train", || {
            (0..WORKERS).all(|rank| begun(&self.folder, &rank.to_string()) >= 1)
        });
    }

    fn go(&self) {
        std::fs::write(self.folder.join(GO), "").unwrap();
    }

    /// Starts workers again that have ended with 75, as a scheduler does, until all have ended with success.
    fn end(mut self) -> (String, Vec<String>) {
        let mut workers = std::mem::take(&mut self.workers);
        let mut restarts = 0;
        self.until("all end", || {
            let mut all = true;
            for (rank, worker) in workers.iter_mut().enumerate() {
                match worker.try_wait().unwrap() {
                    None => all = false,
                    Some(status) if status.success() => {}
                    Some(status) => {
                        assert_eq!(status.code(), Some(75), "{}", self.said());
                        assert!(restarts < 8, "{}", self.said());
                        restarts += 1;
                        *worker = self.worker(rank);
                        all = false;
                    }
                }
            }
            all
        });
        let read = |rank| std::fs::read_to_string(self.folder.join(format!("{rank}.out")));
        let outs = (0..WORKERS).map(|rank| read(rank).unwrap()).collect();
        (self.said(), outs)
    }

    /// Has the network fail for longer than a lease, in mid-training, and ends with the bits of the unbroken run.
    fn survives(self, faults: &[&[&str]]) {
        self.wait_until_begun();
        for fault in faults {
            self.hosts.set(fault);
        }
        thread::sleep(OUTAGE);
        self.hosts.set(&["heal"]);
        self.go();
        self.ends_equal();
    }

    /// Ends with the bits of the unbroken run; what the workers have said.
    fn ends_equal(self) -> String {
        let expected = unbroken_of(WORKERS, self.length);
        let (said, outs) = self.end();
        for (rank, out) in outs.iter().enumerate() {
            assert_eq!(*out, expected, "worker {rank}: {said}");
        }
        said
    }
}

impl Drop for Training {
    fn drop(&mut self) {
        for worker in &mut self.workers {
            // It may have ended.
            let _ = worker.kill();
            let _ = worker.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// From the first step on packets are lost or late, or lines are slow; what the workers have said.
fn is_patient(kind: char, length: Length, fault: [&str; 2]) -> Option<String> {
    let hosts = Hosts::start(kind, WORKERS)?;
    let hurt = |host| hosts.try_set(&[fault[0], host, fault[1]]);
    if !["1", "2", "3", "4"].into_iter().all(hurt) {
        return None;
    }
    let training = Training::on(hosts, kind, 120, length, PAUSE_EACH);
    training.go();
    Some(training.ends_equal())
}

/// All of this is waited for at once.
#[test]
fn lost_and_late_packets_and_slow_lines_change_nothing() {
    let _alone = alone();
    let evicts_nobody = |kind, length, fault| {
        let said = is_patient(kind, length, fault).unwrap_or_default();
        assert!(!said.contains("goes on from step"), "{said}");
    };
    thread::scope(|scope| {
        scope.spawn(|| evicts_nobody('l', USUAL, ["loss", "1"]));
        scope.spawn(|| evicts_nobody('r', USUAL, ["rate", "50"]));
        scope.spawn(|| evicts_nobody('d', SHORT, ["delay", "200"]));
        // Somebody may lose so many packets that its lease ends, and takes its place again.
        scope.spawn(|| is_patient('m', SHORT, ["loss", "5"]));
    });
}

/// TCP has computed its checksum before, so that only ours can find it.
#[test]
fn a_changed_byte_between_two_hosts_is_found_and_never_summed() {
    let _alone = alone();
    let Some(hosts) = Hosts::start('b', WORKERS) else {
        return;
    };
    // They go on only when it is found.
    let training = Training::on(hosts, 'b', 120, USUAL, Duration::from_millis(500));
    training.wait_until_begun();
    let mut changed: Option<Instant> = None;
    let mut can = true;
    training.until("the damage is found", || {
        // It may have been in a packet that had come before.
        if changed.is_none_or(|at| at.elapsed() > Duration::from_secs(20)) {
            can = training.hosts.try_set(&["corrupt", "2", "3"]);
            changed = Some(Instant::now());
        }
        !can || training.said().contains("what rank 1 sent is damaged")
    });
    training.go();
    let said = training.ends_equal();
    assert!(!can || said.contains("goes on from step"), "{said}");
}

/// A host that nobody hears loses its place and takes it again. All of this is waited for at once.
#[test]
fn hosts_that_are_silent_deaf_to_one_or_reset_for_a_while_change_nothing() {
    let _alone = alone();
    let survives = |kind, fault: &[&str]| {
        if let Some(training) = Training::start(kind, 120) {
            training.survives(&[fault]);
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| survives('i', &["isolate", "4"]));
        scope.spawn(|| survives('o', &["oneway", "1", "3"]));
        scope.spawn(|| survives('x', &["reset", "2", "3"]));
    });
}

/// Whatever happens to the network when a seed says so, and for how long. PHALANX_TEST_TRIALS runs more than the few of each test run,
/// PHALANX_TEST_SEED one of them, and both many from it on.
#[test]
fn networks_that_fail_at_any_moment_change_nothing() {
    let _alone = alone();
    let seeds = seeds(5);
    let kinds = ['p', 'q', 's', 't', 'u'];
    let try_seed = |seed: u64, kind| {
        let Some(training) = Training::start(kind, 120) else {
            return;
        };
        let outage = Outage::new(seed, WORKERS as u64);
        training.wait_until_begun();
        thread::sleep(outage.after);
        let set = |words: &[String]| {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            training.hosts.set(&words);
        };
        set(&outage.begin);
        thread::sleep(outage.lasts);
        set(&outage.end);
        training.go();
        let said = training.ends_equal();
        let recoveries = said.matches("goes on from step").count();
        eprintln!("seed {seed}: {outage:?}: workers went on {recoveries} times");
    };
    for some in seeds.chunks(kinds.len()) {
        thread::scope(|scope| {
            for (seed, kind) in some.iter().zip(kinds) {
                scope.spawn(move || try_seed(*seed, kind));
            }
        });
    }
}

/// The others hear both, who do not hear each other.
#[test]
fn a_cut_between_two_hosts_ends_all_with_an_error_that_names_one_of_them() {
    let _alone = alone();
    let Some(mut training) = Training::start('c', 20) else {
        return;
    };
    training.wait_until_begun();
    training.hosts.set(&["cut", "2", "3"]);
    training.go();
    let mut workers = std::mem::take(&mut training.workers);
    training.until("all end", || {
        workers
            .iter_mut()
            .all(|worker| worker.try_wait().unwrap().is_some())
    });
    for (rank, worker) in workers.iter_mut().enumerate() {
        let status = worker.wait().unwrap();
        let said = training.said_by(rank);
        assert_eq!(status.code(), Some(75), "{said}");
        assert!(
            said.contains("worker 1 ") || said.contains("worker 2 "),
            "{said}"
        );
    }
}
