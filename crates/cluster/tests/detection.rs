//! How soon workers hear of one that was killed or stopped: processes of this test binary that wait for each other.
//!
//! PHALANX_TEST_TRIALS kills and stops more of them than the few of each test run. No time is a condition: what is measured is printed.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use phalanx_cluster::launch::ReservedPorts;
use phalanx_cluster::{Address, Coordinator, JoinRequest, Membership, Timing};

/// Where a worker writes; a process without it is no worker.
const FOLDER: &str = "PHALANX_TEST_DETECTION";
/// Its number, the number of workers, the port of the first, and the lease in seconds.
const PLACE: &str = "PHALANX_TEST_DETECTION_PLACE";
/// Ends only what hangs.
const LONG: Duration = Duration::from_secs(180);

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

/// The test that a worker's process runs; nothing where this is no such process.
#[test]
fn worker() {
    let Ok(folder) = std::env::var(FOLDER) else {
        return;
    };
    let place = std::env::var(PLACE).unwrap();
    let place: Vec<usize> = place.split(' ').map(|word| word.parse().unwrap()).collect();
    let [worker, workers, port, lease] = place[..] else {
        panic!("{place:?}");
    };
    let folder = Path::new(&folder);
    let membership = Membership::new(workers, worker, Address::new("127.0.0.1", port as u16));
    let request = JoinRequest::new("1", ([127, 0, 0, 1], 1000 + worker as u16).into());
    let timing = Timing {
        lease: Duration::from_secs(lease as u64),
        ..Timing::default()
    };
    let joined = Coordinator::join(&membership, request.deadline(LONG).timing(timing));
    let (coordinator, _) = joined.unwrap();
    write(&folder.join(format!("{worker}.joined")), "");
    // Nobody comes here twice.
    let error = coordinator.exchange(&format!("never {worker}"), Vec::new(), LONG);
    let text = format!("{} {}", now().as_nanos(), error.unwrap_err());
    write(&folder.join(format!("{worker}.error")), &text);
}

/// Written as a whole or not at all.
fn write(path: &Path, text: &str) {
    let unfinished = path.with_extension("unfinished");
    std::fs::write(&unfinished, text).unwrap();
    std::fs::rename(unfinished, path).unwrap();
}

/// Some workers that wait; they end with this.
struct Group {
    folder: PathBuf,
    workers: Vec<Child>,
    _ports: ReservedPorts,
}

impl Group {
    /// Returns when all have met.
    fn start(name: &str, workers: usize, lease: usize) -> Self {
        let folder = format!("phalanx-detection-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let ports = ReservedPorts::new(1, None).unwrap();
        let port = ports.of_workers()[0];
        let start = |worker: usize| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "worker", "--nocapture"])
                .env(FOLDER, &folder)
                .env(PLACE, format!("{worker} {workers} {port} {lease}"))
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap()
        };
        let group = Self {
            workers: (0..workers).map(start).collect(),
            folder,
            _ports: ports,
        };
        for worker in 0..workers {
            group.wait_for(&format!("{worker}.joined"));
        }
        group
    }

    /// What a file holds, once it is there.
    fn wait_for(&self, name: &str) -> String {
        let start = Instant::now();
        loop {
            if let Ok(text) = std::fs::read_to_string(self.folder.join(name)) {
                return text;
            }
            assert!(start.elapsed() < LONG, "{name} does not come");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn signal(&self, worker: usize, signal: &str) {
        let process = self.workers[worker].id().to_string();
        let sent = Command::new("kill").args([signal, &process]).status();
        assert!(sent.unwrap().success());
    }

    /// How long after a moment each worker but this one heard of it; all must name it.
    fn heard(&self, lost: usize, since: Duration) -> Vec<Duration> {
        let others = (0..self.workers.len()).filter(|worker| *worker != lost);
        let heard = others.map(|worker| {
            let text = self.wait_for(&format!("{worker}.error"));
            let (at, error) = text.split_once(' ').unwrap();
            assert!(error.contains(&format!("worker {lost}")), "{error}");
            Duration::from_nanos(at.parse().unwrap()).saturating_sub(since)
        });
        heard.collect()
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

fn trials(few: usize) -> usize {
    std::env::var("PHALANX_TEST_TRIALS").map_or(few, |text| text.parse().unwrap())
}

fn tell(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |share: usize| times[(times.len() - 1) * share / 100];
    let (median, most, last) = (at(50), at(99), at(100));
    eprintln!(
        "{what}: {} times, median {median:?}, 99% {most:?}, longest {last:?}",
        times.len()
    );
}

#[test]
fn killed_workers_are_named_by_all_others() {
    let mut times = Vec::new();
    for trial in 0..trials(20) {
        let workers = 2 + trial % 3;
        let group = Group::start("kill", workers, 60);
        let lost = trial / 3 % workers;
        let killed = now();
        group.signal(lost, "-KILL");
        times.extend(group.heard(lost, killed));
    }
    tell("killed workers were named after", times);
}

/// Twice the lease that trainings have: nobody else is to be taken for lost on a machine that has much to do.
#[test]
fn stopped_workers_are_named_by_all_others() {
    let mut times = Vec::new();
    for trial in 0..trials(1) {
        let workers = 2 + trial % 3;
        let group = Group::start("stop", workers, 10);
        let lost = (1 + trial / 3) % workers;
        let stopped = now();
        group.signal(lost, "-STOP");
        times.extend(group.heard(lost, stopped));
    }
    tell("stopped workers were named after", times);
}
