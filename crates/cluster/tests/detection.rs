//! How soon workers hear of one that was killed or stopped, or whose host is silent: processes of this test binary that wait for each
//! other.
//!
//! PHALANX_TEST_TRIALS does it more often than each test run. No time is a condition: what is measured is printed.

#[path = "../../../tests/tools/hosts.rs"]
mod hosts;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hosts::Hosts;
use phalanx_cluster::launch::ReservedPorts;
use phalanx_cluster::{Address, Coordinator, JoinRequest, Membership, Timing};

/// Where a worker writes; a process without it is no worker.
const FOLDER: &str = "PHALANX_TEST_DETECTION";
/// Its number, the number of workers, the port of the first, and the lease in seconds.
const PLACE: &str = "PHALANX_TEST_DETECTION_PLACE";
/// The host of the first worker, where they have hosts of their own.
const FIRST_HOST: &str = "PHALANX_TEST_DETECTION_HOST";
/// Twice the lease of trainings, in seconds: nobody else is to be taken for lost on a machine that has much to do.
const LEASE: usize = 10;
/// Groups that wait at the same time.
const AT_ONCE: usize = 10;
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
    let first = std::env::var(FIRST_HOST).unwrap_or_else(|_| "127.0.0.1".into());
    let membership = Membership::new(workers, worker, Address::new(&first, port as u16));
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
    hosts: Option<Hosts>,
    ports: ReservedPorts,
}

impl Group {
    /// Returns when all have met, each on its host if there are hosts.
    fn start(name: &str, workers: usize, lease: usize, hosts: Option<Hosts>) -> Self {
        let folder = format!("phalanx-detection-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let ports = ReservedPorts::new(1, None).unwrap();
        let mut group = Self {
            workers: Vec::new(),
            folder,
            hosts,
            ports,
        };
        let port = group.ports.of_workers()[0];
        for worker in 0..workers {
            let place = format!("{worker} {workers} {port} {lease}");
            group.workers.push(group.worker(worker, &place));
        }
        for worker in 0..workers {
            group.wait_for(&format!("{worker}.joined"));
        }
        group
    }

    fn worker(&self, worker: usize, place: &str) -> Child {
        let on = self.hosts.as_ref().map(|hosts| hosts.on(worker + 1));
        let mut words = on.unwrap_or_default();
        let program = std::env::current_exe().unwrap();
        words.push(program.to_str().unwrap().to_owned());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command.args(["--exact", "worker", "--nocapture"]);
        command.env(FOLDER, &self.folder).env(PLACE, place);
        if self.hosts.is_some() {
            command.env(FIRST_HOST, "h1");
        }
        let command = command.stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().unwrap()
    }

    /// What a file holds, once it is there.
    fn wait_for(&self, name: &str) -> String {
        let start = Instant::now();
        loop {
            if let Ok(text) = std::fs::read_to_string(self.folder.join(name)) {
                return text;
            }
            assert!(start.elapsed() < LONG, "{name} does not come");
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn signal(&self, worker: usize, signal: &str) {
        let process = self.workers[worker].id().to_string();
        let sent = Command::new("kill").args([signal, &process]).status();
        assert!(sent.unwrap().success());
    }

    /// Takes a host from the network, in one of three ways.
    fn silence(&self, lost: usize, how: &str) {
        let hosts = self.hosts.as_ref().unwrap();
        let host = (lost + 1).to_string();
        if how == "isolated" {
            return hosts.set(&["isolate", &host]);
        }
        for other in (1..=self.workers.len()).map(|other| other.to_string()) {
            match how {
                _ if other == host => {}
                "unheard" => hosts.set(&["oneway", &host, &other]),
                _ => hosts.set(&["oneway", &other, &host]),
            }
        }
    }

    /// How long after a moment each worker but this one heard of it; all must name it.
    fn heard(&self, lost: usize, since: Duration) -> Vec<Duration> {
        self.heard_of_one(&[lost], lost, since)
    }

    /// As `heard`, where any of these may be named.
    fn heard_of_one(&self, named: &[usize], lost: usize, since: Duration) -> Vec<Duration> {
        let others = (0..self.workers.len()).filter(|worker| *worker != lost);
        let heard = others.map(|worker| {
            let text = self.wait_for(&format!("{worker}.error"));
            let (at, error) = text.split_once(' ').unwrap();
            let is_named = |one: &usize| error.contains(&format!("worker {one}"));
            assert!(
                named.iter().any(is_named),
                "{lost} lost, {worker} says: {error}"
            );
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

/// The times of each trial, some of which wait at the same time.
fn at_once(trials: usize, trial: impl Fn(usize) -> Vec<Duration> + Sync) -> Vec<Vec<Duration>> {
    let numbers: Vec<usize> = (0..trials).collect();
    let mut times = Vec::new();
    for some in numbers.chunks(AT_ONCE) {
        thread::scope(|scope| {
            let start = |number: &usize| {
                let (number, trial) = (*number, &trial);
                scope.spawn(move || trial(number))
            };
            let running: Vec<_> = some.iter().map(start).collect();
            for one in running {
                times.push(one.join().unwrap());
            }
        });
    }
    times
}

#[test]
fn killed_workers_are_named_by_all_others() {
    let mut times = Vec::new();
    for trial in 0..trials(20) {
        let workers = 2 + trial % 3;
        let group = Group::start("kill", workers, 60, None);
        let lost = trial / 3 % workers;
        let killed = now();
        group.signal(lost, "-KILL");
        times.extend(group.heard(lost, killed));
    }
    tell("killed workers were named after", times);
}

#[test]
fn stopped_workers_are_named_by_all_others() {
    let times = at_once(trials(10), |trial| {
        let workers = 2 + trial % 3;
        let group = Group::start(&format!("stop-{trial}"), workers, LEASE, None);
        let lost = (1 + trial / 3) % workers;
        let stopped = now();
        group.signal(lost, "-STOP");
        group.heard(lost, stopped)
    });
    tell("stopped workers were named after", times.concat());
}

/// Nobody hears the host, or it hears nobody, or both.
#[test]
fn silent_hosts_are_named_by_all_others() {
    const WORKERS: usize = 4;
    const SILENCES: [&str; 3] = ["isolated", "unheard", "deaf"];
    let times = at_once(3 * trials(3), |trial| {
        // Those of this process that are there at the same time have letters of their own.
        let letter = b'a' + (trial % AT_ONCE) as u8;
        let Some(hosts) = Hosts::start(letter.into(), WORKERS) else {
            return Vec::new();
        };
        let silence = SILENCES[trial % 3];
        let group = Group::start(&format!("silent-{trial}"), WORKERS, LEASE, Some(hosts));
        let lost = (trial / 3 + trial % 3 + 1) % WORKERS;
        let silent = now();
        group.silence(lost, silence);
        // Who coordinates and hears nobody says so of one of the others, unless they are sooner: it does not answer.
        match (silence, lost) {
            ("deaf", 0) => group.heard_of_one(&[0, 1, 2, 3], lost, silent),
            _ => group.heard(lost, silent),
        }
    });
    if times.iter().any(Vec::is_empty) {
        return;
    }
    for (number, silence) in SILENCES.into_iter().enumerate() {
        let of_it: Vec<_> = times.iter().skip(number).step_by(3).cloned().collect();
        tell(&format!("{silence} hosts were named after"), of_it.concat());
    }
}
