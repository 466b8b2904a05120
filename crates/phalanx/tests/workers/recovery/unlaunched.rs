//! Workers that no launcher has started: the first one coordinates, and whoever started a worker starts it again with the same variables.

use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use phalanx_cluster::launch::ReservedPorts;
use phalanx_testkit::{Random, asked_number};

use super::run::{Run, begun};
use super::{FOLDER, GO, RANK, alone, unbroken};

/// Trainings that wait at the same time.
const AT_ONCE: usize = 5;

/// Two workers, of whom more processes may be started; all end with this.
struct Unlaunched {
    run: Run,
    ports: ReservedPorts,
    started: Vec<Child>,
}

impl Unlaunched {
    /// Returns when both train.
    fn start(name: &str) -> Self {
        let mut all = Self {
            run: Run::new(name),
            ports: ReservedPorts::new(2, None).unwrap(),
            started: Vec::new(),
        };
        all.again(0);
        all.again(1);
        all.run.until("both train", || {
            ["0", "1"]
                .iter()
                .all(|rank| begun(&all.run.folder, rank) == 1)
        });
        all
    }

    /// Starts a process of a worker.
    fn again(&mut self, index: usize) {
        let ports = self.ports.of_workers().iter();
        let addresses: Vec<_> = ports.map(|port| format!("127.0.0.1:{port}")).collect();
        let config = format!(
            r#"{{"cluster": {{"worker": {addresses:?}}}, "task": {{"type": "worker", "index": {index}}}}}"#
        );
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "recovery::worker", "--nocapture"]);
        command
            .env("TF_CONFIG", config)
            .env(FOLDER, &self.run.folder);
        command.env(RANK, index.to_string());
        let command = command.stdout(Stdio::null()).stderr(Stdio::null());
        self.started.push(command.spawn().unwrap());
    }

    /// Waits for the end of a process; its exit code.
    fn ended(&mut self, process: usize) -> Option<i32> {
        let (run, child) = (&self.run, &mut self.started[process]);
        let mut status = None;
        run.until("a process ends", || {
            status = child.try_wait().unwrap();
            status.is_some()
        });
        status.and_then(|status| status.code())
    }

    /// Waits until the replacement of the second worker trains, or has ended; it is started again, as a scheduler does, while it is
    /// refused because the others still hear the one before.
    fn wait_for_replacement(&mut self) {
        let start = Instant::now();
        while self.is_refused() {
            assert!(start.elapsed() < self.run.patience, "refused for too long");
            self.again(1);
        }
    }

    /// Waits until the process that was started last trains or has ended; whether it has ended with 75.
    fn is_refused(&mut self) -> bool {
        let (run, last) = (&self.run, self.started.last_mut().unwrap());
        let mut ended = None;
        run.until("the new one trains", || {
            ended = last.try_wait().unwrap();
            ended.is_some() || begun(&run.folder, "1") >= 2
        });
        ended.is_some_and(|status| status.code() == Some(75))
    }

    /// Lets the first process and the one that was started last train to their end, which is that of the unbroken run.
    fn end(mut self) {
        std::fs::write(self.run.folder.join(GO), "").unwrap();
        let last = self.started.len() - 1;
        assert_eq!(self.ended(0), Some(0));
        assert_eq!(self.ended(last), Some(0));
        let (outs, expected) = (self.run.outs(2), unbroken(2));
        assert!(outs.iter().all(|out| *out == expected), "{outs:?}");
    }
}

impl Drop for Unlaunched {
    fn drop(&mut self) {
        for child in &mut self.started {
            // It may have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn a_worker_that_its_scheduler_starts_again_takes_its_place() {
    let mut all = Unlaunched::start("scheduler");
    all.started[1].kill().unwrap();
    all.started[1].wait().unwrap();
    all.again(1);
    all.wait_for_replacement();
    all.end();
}

/// A worker is stopped for longer than its lease, and goes on when another process has its place.
fn comes_back(trial: usize) {
    let mut all = Unlaunched::start(&format!("zombie-{trial}"));
    let later = Random::new(trial as u64).below(1000);
    thread::sleep(Duration::from_millis(later));
    let signal = |all: &Unlaunched, signal: &str| {
        let process = all.started[1].id().to_string();
        let sent = Command::new("kill").args([signal, &process]).status();
        assert!(sent.unwrap().success());
    };
    signal(&all, "-STOP");
    all.again(1);
    all.wait_for_replacement();
    signal(&all, "-CONT");
    assert_eq!(all.ended(1), Some(75), "trial {trial}");
    all.end();
}

/// PHALANX_TEST_TRIALS stops more than the few of each test run, PHALANX_TEST_SEED says where they begin.
#[test]
fn workers_that_come_back_when_their_places_are_taken_change_nothing() {
    let _alone = alone();
    let trials = asked_number("PHALANX_TEST_TRIALS").unwrap_or(5) as usize;
    unbroken(2);
    let first = asked_number("PHALANX_TEST_SEED").unwrap_or(0) as usize;
    let numbers: Vec<usize> = (first..first + trials).collect();
    for some in numbers.chunks(AT_ONCE) {
        thread::scope(|scope| {
            for trial in some {
                scope.spawn(|| comes_back(*trial));
            }
        });
    }
}
