//! Targets of `docs/reliability.json` whose counts are numbers of trials: PHALANX_TEST_TRIALS asks for more than CI takes.

#![cfg(target_os = "linux")]

mod pods;
mod service;

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use pods::Cluster;
use rustix::process::{Pid, Signal, kill_process};
use service::{PATIENCE, Service};

fn trials(few: usize) -> usize {
    let given = std::env::var("PHALANX_TEST_TRIALS").ok();
    given.and_then(|trials| trials.parse().ok()).unwrap_or(few)
}

/// A task that does not hear of SIGTERM, with a grandchild that has left its group.
const STUBBORN: &str = "trap '' TERM; setsid sh -c \"trap '' TERM; while :; do sleep 1; done\" & sh -c 'trap \"\" TERM; while :; do sleep 1; done' & echo up; wait";

/// How many processes each job of a folder has, those of its supervisor not among them; only those of the first attempt, if that is asked for.
fn left(service: &Service, only_first: bool) -> BTreeMap<String, usize> {
    let root = format!("PWD={}", service.folder.display());
    let mut all = BTreeMap::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        let words = || environment.split(|byte| *byte == 0);
        let has = |text: &str| words().any(|word| word == text.as_bytes());
        let name = words().find_map(|word| word.strip_prefix(b"CLOUD_ML_JOB_ID="));
        if let Some(name) = name
            && has(&root)
            && (!only_first || has("PHALANX_GENERATION=1"))
        {
            let name = String::from_utf8(name.to_vec()).unwrap();
            *all.entry(name).or_insert(0) += 1;
        }
    }
    all
}

/// How long it takes from a time of each job until it has no process. A process that begins a program has no environment for a moment: two looks
/// must agree.
fn until_gone(service: &Service, since: &BTreeMap<String, Instant>, first: bool) -> Vec<Duration> {
    let (begun, mut gone, mut looks) = (Instant::now(), BTreeMap::new(), 0);
    while looks < 2 {
        let left = left(service, first);
        for (name, since) in since {
            if left.contains_key(name) {
                gone.remove(name);
            } else {
                gone.entry(name).or_insert_with(|| since.elapsed());
            }
        }
        looks = if gone.len() == since.len() {
            looks + 1
        } else {
            0
        };
        assert!(begun.elapsed() < PATIENCE, "{left:?} are left");
        std::thread::sleep(Duration::from_millis(20));
    }
    gone.into_values().collect()
}

fn told(name: &str, mut times: Vec<Duration>) {
    times.sort();
    println!(
        "{name}: {} trials, median {:?}, longest {:?}",
        times.len(),
        times[times.len() / 2],
        times[times.len() - 1]
    );
}

/// The supervisors of jobs.
fn supervisors(service: &Service, names: &[String]) -> Vec<Pid> {
    let processes = service.processes();
    let of = |name: &String| {
        let end = format!("{name}\0");
        let is_it = |line: &&String| line.contains("supervise") && line.ends_with(&end);
        let line = processes.iter().find(is_it).expect("a supervisor");
        Pid::from_raw(line.split(['/', ' ']).nth(2).unwrap().parse().unwrap()).unwrap()
    };
    names.iter().map(of).collect()
}

/// Waits until so many tasks of each job have started.
fn until_up(service: &Service, names: &[String], tasks: usize) {
    for name in names {
        let up = || service.ok(&["logs", name]).matches("up").count();
        service.until(name, |_| up() == tasks);
    }
}

#[test]
fn no_process_is_left_after_a_cancel_and_after_the_supervisors_end() {
    // Jobs wait most of the time: side by side twenty take little longer than one.
    let service = Service::with_cpus("orphans", 400);
    let (mut cancelled, mut killed) = (Vec::new(), Vec::new());
    let all: Vec<usize> = (0..trials(20)).collect();
    for round in all.chunks(20) {
        let names: Vec<String> = round.iter().map(|number| format!("job{number}")).collect();
        for name in &names {
            service.script(name, &["--workers", "2"], STUBBORN);
        }
        until_up(&service, &names, 2);
        let until = Instant::now() + PATIENCE;
        loop {
            let running = left(&service, false);
            let all = |name: &String| running.get(name).is_some_and(|count| *count >= 6);
            if names.iter().all(all) {
                break;
            }
            assert!(Instant::now() < until, "{running:?}");
        }
        let kill = |(name, pid): (&String, Pid)| {
            kill_process(pid, Signal::KILL).unwrap();
            (name.clone(), Instant::now())
        };
        let supervisors = supervisors(&service, &names);
        let since = names.iter().zip(supervisors).map(kill).collect();
        killed.extend(until_gone(&service, &since, true));
        // The next supervisor starts the tasks once more.
        until_up(&service, &names, 4);
        let cancel = |name: &String| {
            let since = Instant::now();
            // They do not hear of the first.
            service.ok(&["cancel", name]);
            service.ok(&["cancel", name]);
            (name.clone(), since)
        };
        let since = names.iter().map(cancel).collect();
        cancelled.extend(until_gone(&service, &since, false));
        for name in &names {
            assert_eq!(service.end(name)["state"], "CANCELLED");
        }
    }
    told(
        "SIGKILL of the supervisor until no process of the attempt",
        killed,
    );
    told("cancel until no process of the job", cancelled);
}

/// Holds the port that TF_CONFIG has for its task for a while.
const HOLDS: &str = "import json, os, socket, time
config = json.loads(os.environ['TF_CONFIG'])
task = config['task']
host, port = config['cluster'][task['type']][task['index']].rsplit(':', 1)
with socket.create_server((host, int(port))):
    time.sleep(0.5)
";

#[test]
fn fifty_jobs_at_once_have_ports_of_their_own() {
    if std::process::Command::new("python3")
        .arg("--version")
        .output()
        .is_err()
    {
        phalanx_testkit::skip("install python3");
        return;
    }
    let _taken = [2222, 29500, 6006].map(|port| TcpListener::bind(("127.0.0.1", port)));
    let service = Service::with_cpus("ports", 400);
    let rounds = trials(1);
    for round in 0..rounds {
        let names: Vec<String> = (0..if rounds > 1 { 50 } else { 10 })
            .map(|number| format!("r{round}_{number}"))
            .collect();
        for name in &names {
            service.ok(&[
                "submit",
                "training",
                name,
                "--workers",
                "2",
                "--",
                "python3",
                "-c",
                HOLDS,
            ]);
        }
        for name in &names {
            let job = service.end(name);
            assert_eq!(
                job["state"],
                "SUCCEEDED",
                "{job:#}\n{}",
                service.ok(&["logs", name])
            );
        }
    }
}

/// Texts that a shell, YAML, JSON or Kubernetes could take for something else, and random ones.
fn odd_texts(count: usize) -> Vec<String> {
    let pieces = [
        "$(touch executed)",
        "`touch executed`",
        "$HOME",
        "$(PATH)",
        "$$(PATH)",
        "${A}",
        "\"",
        "'",
        "\\",
        "\n",
        "\r",
        "\t",
        ";",
        "&",
        "|",
        "#",
        "%s",
        "*",
        "~",
        "--",
        "{{.}}",
        "!",
        "<",
        ">",
        "é",
        "😀",
        "\u{1}",
        "\u{7f}",
        " ",
        "yes",
        "null",
        "0x1",
        ": ",
        "- ",
        "touch executed",
    ];
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut draw = |below: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let text = |_| {
        let mut text = String::new();
        for _ in 0..draw(8) {
            match draw(3) {
                0 => text.push(char::from_u32(1 + draw(0x2fff) as u32).unwrap_or('x')),
                _ => text.push_str(pieces[draw(pieces.len())]),
            }
        }
        text
    };
    (0..count).map(text).collect()
}

const WRITES: &str = "printf '%s\\0' \"$@\" > \"got-$CLOUD_ML_JOB_ID\"";

fn check_arguments(service: &Service, name: &str, texts: &[String]) {
    let job = service.end(name);
    assert_eq!(job["state"], "SUCCEEDED", "{job:#}");
    let got = fs::read(service.folder.join(format!("got-{name}"))).unwrap();
    let expected: Vec<u8> = texts
        .iter()
        .flat_map(|text| text.bytes().chain([0]))
        .collect();
    assert!(got == expected, "{name}: other arguments arrived");
    assert!(
        !service.folder.join("executed").exists(),
        "an argument was executed"
    );
}

#[test]
fn arguments_reach_processes_and_pods_unchanged() {
    let service = Service::new("arguments");
    let cluster = Cluster::new(&service.folder);
    let config = cluster.config(&service.folder);
    fs::write(
        service.folder.join("job.yaml"),
        "phalanx: {kubernetes: {image: img, claim: folder}}\n",
    )
    .unwrap();
    // 500 for each trial.
    let all = odd_texts(500 * trials(1));
    for (number, texts) in all.chunks(500).enumerate() {
        for to in ["local", "kubernetes"] {
            let name = format!("{to}{number}");
            let start = [
                "submit", "training", &name, "--to", to, "--config", "job.yaml", "--", "sh", "-c",
                WRITES, "sh",
            ];
            let mut command = service.command();
            command.env("KUBECONFIG", &config).args(start).args(texts);
            let output = command.output().unwrap();
            assert!(
                output.status.success(),
                "{}",
                String::from_utf8_lossy(&output.stderr)
            );
            check_arguments(&service, &name, texts);
        }
    }
}
