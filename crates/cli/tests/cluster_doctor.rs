//! `phalanx doctor --cluster` finds what is wrong with a cluster: each fault is made, and a line on one of the nodes says who and what.

#[path = "../../../tests/tools/hosts.rs"]
mod hosts;

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use hosts::Hosts;
use phalanx_cluster::launch::ReservedPorts;
use phalanx_cluster::{Address, Coordinator, JoinRequest, Membership};

/// Processes of the doctor, whose machine is this one or a network namespace of it.
struct Nodes {
    folder: PathBuf,
    ports: ReservedPorts,
    running: Vec<Child>,
    /// How long the nodes look for each other.
    within: u32,
}

/// Long enough for all to start, on a machine that does much else.
const COME: u32 = 100;
/// The same where the nodes wait for all of it.
const MEET: u32 = 60;

impl Nodes {
    fn new(name: &str, within: u32) -> Self {
        let folder = format!("phalanx-doctor-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        std::fs::create_dir_all(&folder).unwrap();
        Self {
            folder,
            ports: ReservedPorts::new(3, None).unwrap(),
            running: Vec::new(),
            within,
        }
    }

    fn port(&self, of: usize) -> u16 {
        self.ports.of_workers()[of]
    }

    /// Starts a node with these variables and options.
    fn start(&mut self, variables: &[(&str, String)], options: &[&str]) -> &mut Self {
        self.start_on(Vec::new(), variables, options)
    }

    /// As `start`, by a program that starts what stands behind it.
    fn start_on(
        &mut self,
        mut words: Vec<String>,
        variables: &[(&str, String)],
        options: &[&str],
    ) -> &mut Self {
        words.push(env!("CARGO_BIN_EXE_phalanx").into());
        words.extend(["doctor", "--cluster", "--within"].map(String::from));
        words.push(self.within.to_string());
        words.extend(options.iter().map(|option| (*option).to_owned()));
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .current_dir(&self.folder)
            .env_clear();
        command
            .env("HOME", &self.folder)
            .env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("TMPDIR", &self.folder);
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        let command = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        self.running.push(command.spawn().unwrap());
        self
    }

    /// Starts a node that torchrun's variables speak of.
    fn ranked(&mut self, rank: usize, size: usize, options: &[&str]) -> &mut Self {
        let variables = ranked(rank, size, self.port(0));
        self.start(&variables, options)
    }

    /// What the nodes have printed, and that these fail and the others do not.
    fn end(mut self, failing: &[usize]) -> String {
        let running = std::mem::take(&mut self.running);
        let outputs = running
            .into_iter()
            .map(|child| child.wait_with_output().unwrap());
        let mut said = String::new();
        for (node, output) in outputs.enumerate() {
            let out = String::from_utf8_lossy(&output.stdout).into_owned();
            let err = String::from_utf8_lossy(&output.stderr);
            let expected = if failing.contains(&node) { 3 } else { 0 };
            assert_eq!(
                output.status.code(),
                Some(expected),
                "node {node}:\n{out}{err}"
            );
            said.push_str(&out);
        }
        said
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for child in &mut self.running {
            // It may have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn ranked(rank: usize, size: usize, port: u16) -> Vec<(&'static str, String)> {
    vec![
        ("RANK", rank.to_string()),
        ("WORLD_SIZE", size.to_string()),
        ("MASTER_ADDR", "127.0.0.1".into()),
        ("MASTER_PORT", port.to_string()),
    ]
}

fn tf_config(addresses: &[String], index: usize) -> (&'static str, String) {
    let config = format!(
        r#"{{"cluster": {{"worker": {addresses:?}}}, "task": {{"type": "worker", "index": {index}}}}}"#
    );
    ("TF_CONFIG", config)
}

/// Each part stands in what was said.
fn has(said: &str, parts: &[&str]) {
    for part in parts {
        assert!(said.contains(part), "no {part:?} in\n{said}");
    }
}

#[test]
fn nothing_is_said_against_a_good_cluster() {
    let mut nodes = Nodes::new("good", COME);
    let shared = nodes.folder.join("data").display().to_string();
    std::fs::create_dir_all(&shared).unwrap();
    for rank in 0..3 {
        nodes.ranked(rank, 3, &["--shared", &shared]);
    }
    let said = nodes.end(&[]);
    has(
        &said,
        &[
            "ok    workers     all 3 have come",
            "ok    clock       all agree",
            "sums of 3 workers are right",
            "data is the same for all",
        ],
    );
    assert!(!said.contains("fail"), "{said}");
}

#[test]
fn a_name_that_nobody_knows_is_found() {
    let mut nodes = Nodes::new("name", 2);
    let addresses = [
        "no-such-host.invalid:2222".to_owned(),
        format!("127.0.0.1:{}", nodes.port(1)),
    ];
    nodes.start(&[tf_config(&addresses, 1)], &[]);
    has(
        &nodes.end(&[0]),
        &[
            "fail  names",
            "worker 0's host \"no-such-host.invalid\"",
            "/etc/hosts",
        ],
    );
}

#[test]
fn a_port_that_is_taken_is_found() {
    let mut nodes = Nodes::new("port", 2);
    let taken = TcpListener::bind(("127.0.0.1", nodes.port(0))).unwrap();
    nodes.ranked(0, 2, &[]);
    let port = nodes.port(0);
    has(
        &nodes.end(&[0]),
        &[
            "fail  ports",
            &format!("worker 0 cannot listen at 127.0.0.1:{port}"),
            "ss -ltnp",
        ],
    );
    drop(taken);
}

#[test]
fn another_version_is_found() {
    let mut nodes = Nodes::new("version", COME);
    let membership = Membership::new(2, 1, Address::new("127.0.0.1", nodes.port(0)));
    nodes.ranked(0, 2, &[]);
    let data = TcpListener::bind("127.0.0.1:0").unwrap();
    let request = JoinRequest::new("0.0.0-other", data.local_addr().unwrap());
    Coordinator::join(&membership, request).err().unwrap();
    has(
        &nodes.end(&[0]),
        &[
            "fail  workers",
            "worker 1 has version 0.0.0-other",
            "install the same on all",
        ],
    );
}

#[test]
fn another_training_file_is_found() {
    let mut nodes = Nodes::new("file", COME);
    let files = ["a", "b"].map(|name| nodes.folder.join(name));
    for (file, text) in files.iter().zip(["epochs: 1", "epochs: 2"]) {
        std::fs::create_dir_all(file).unwrap();
        std::fs::write(file.join("train.yaml"), text).unwrap();
    }
    let port = nodes.port(0);
    for (rank, file) in files.iter().enumerate() {
        let shell = format!("cd {} && exec \"$0\" \"$@\"", file.display());
        let variables = ranked(rank, 2, port);
        let on = [String::from("sh"), "-c".into(), shell];
        nodes.start_on(on.to_vec(), &variables, &["--same", "train.yaml"]);
    }
    has(
        &nodes.end(&[0, 1]),
        &[
            "fail  versions",
            "worker 1 (",
            "has another train.yaml: expected",
        ],
    );
}

/// A second node with this secret, or with none.
fn second_secret(name: &str, second: Option<&str>, why: &str) {
    let mut nodes = Nodes::new(name, MEET);
    for secret in ["a", "b"] {
        std::fs::write(nodes.folder.join(secret), secret).unwrap();
    }
    nodes.ranked(0, 2, &["--secret-file", "a"]);
    match second {
        Some(second) => nodes.ranked(1, 2, &["--secret-file", second]),
        None => nodes.ranked(1, 2, &[]),
    };
    has(&nodes.end(&[0, 1]), &["fail  workers", why]);
}

fn two_with_one_number() {
    let mut nodes = Nodes::new("number", MEET);
    nodes.ranked(0, 3, &[]).ranked(1, 3, &[]).ranked(1, 3, &[]);
    has(
        &nodes.end(&[0, 1, 2]),
        &[
            "another process is worker 1, which listens for data at 127.0.0.1:",
            "give each a number of its own",
        ],
    );
}

/// The nodes wait for all of their time, so all of this is done at once.
#[test]
fn another_secret_and_none_and_two_workers_with_one_number_are_found() {
    thread::scope(|scope| {
        scope.spawn(|| second_secret("secret", Some("b"), "it may have another secret"));
        let none = "it has a secret and this worker none";
        scope.spawn(move || second_secret("no-secret", None, none));
        scope.spawn(two_with_one_number);
    });
}

#[test]
fn a_worker_that_is_missing_is_found() {
    let mut nodes = Nodes::new("missing", 3);
    let addresses = [0, 1].map(|of| format!("127.0.0.1:{}", nodes.port(of)));
    nodes.start(&[tf_config(&addresses, 0)], &[]);
    let who = format!(
        "worker 1 at {}: it has not connected, and connection refused",
        addresses[1]
    );
    has(
        &nodes.end(&[0]),
        &["fail  workers", "1 of 2 workers did not join", &who],
    );
}

#[test]
fn another_number_of_workers_is_found() {
    let mut nodes = Nodes::new("size", COME);
    nodes.ranked(0, 2, &[]).ranked(1, 3, &[]);
    let said = nodes.end(&[0, 1]);
    has(
        &said,
        &["worker 1 counts 3 workers, the coordinator counts 2"],
    );
}

/// What a node says of itself whose clock is an hour ahead.
#[test]
fn a_clock_that_is_wrong_is_found() {
    let mut nodes = Nodes::new("clock", COME);
    let membership = Membership::new(2, 1, Address::new("127.0.0.1", nodes.port(0)));
    nodes.ranked(0, 2, &[]);
    let data = TcpListener::bind("127.0.0.1:0").unwrap();
    let request = JoinRequest::new(env!("CARGO_PKG_VERSION"), data.local_addr().unwrap());
    let (other, _) = Coordinator::join(&membership, request).unwrap();
    let long = Duration::from_secs(COME.into());
    for meeting in ["a name", "files are written", "files are seen", "the time"] {
        other.exchange(meeting, Vec::new(), long).unwrap();
    }
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let facts = serde_json::json!({
        "host": "slow-clock", "clock": now.as_secs_f64() + 3600.0, "equal": {}, "shared": {}
    });
    other
        .exchange("facts", facts.to_string().into_bytes(), long)
        .unwrap();
    other.report_failure("has seen enough");
    has(
        &nodes.end(&[0]),
        &[
            "fail  clock",
            "worker 1 (slow-clock) is 3",
            "ahead of the others",
            "NTP",
        ],
    );
}

#[test]
fn two_tasks_at_one_address_are_found() {
    let mut nodes = Nodes::new("twice", 2);
    let address = format!("127.0.0.1:{}", nodes.port(0));
    nodes.start(&[tf_config(&[address.clone(), address.clone()], 0)], &[]);
    has(&nodes.end(&[0]), &["fail  environment", &address]);
}

#[test]
fn variables_that_contradict_each_other_are_found() {
    let mut nodes = Nodes::new("stale", 2);
    let addresses = [0, 1, 2].map(|of| format!("127.0.0.1:{}", nodes.port(of)));
    let mut variables = ranked(0, 2, nodes.port(0));
    variables.push(tf_config(&addresses, 0));
    nodes.start(&variables, &[]);
    has(
        &nodes.end(&[0]),
        &["fail  environment", "TF_CONFIG", "WORLD_SIZE=2"],
    );
}

#[test]
fn no_cluster_and_a_folder_that_takes_no_files_are_found() {
    let mut nodes = Nodes::new("alone", 2);
    nodes.start(&[], &[]);
    has(
        &nodes.end(&[0]),
        &["no variable of this process speaks of a cluster"],
    );
    let mut nodes = Nodes::new("folder", COME);
    let mut variables = ranked(0, 2, nodes.port(0));
    // The file system of processes takes no files.
    variables.push(("TMPDIR", "/proc/self/nothing".into()));
    nodes.start(&variables, &[]).ranked(1, 2, &[]);
    has(
        &nodes.end(&[0]),
        &["fail  temporary   /proc/self/nothing does not take a file"],
    );
}

#[test]
fn a_folder_that_is_not_shared_is_found() {
    let mut nodes = Nodes::new("shared", COME);
    let port = nodes.port(0);
    for rank in 0..2 {
        let own = nodes.folder.join(rank.to_string());
        std::fs::create_dir_all(own.join("data")).unwrap();
        let shell = format!("cd {} && exec \"$0\" \"$@\"", own.display());
        nodes.start_on(
            vec!["sh".into(), "-c".into(), shell],
            &ranked(rank, 2, port),
            &["--shared", "data"],
        );
    }
    has(
        &nodes.end(&[0, 1]),
        &["in data these do not see what worker 0 has written: worker 1 ("],
    );
}

/// What two doctors say between whose hosts there are these faults; `kind` is a letter of their own.
fn between(kind: char, faults: &[&[&str]], within: u32, failing: &[usize]) -> Option<String> {
    let hosts = Hosts::start(kind, 2)?;
    for fault in faults {
        hosts.set(fault);
    }
    let mut nodes = Nodes::new(&format!("hosts-{kind}"), within);
    let addresses = ["h1:4000".to_owned(), "h2:4001".to_owned()];
    for rank in 0..2 {
        nodes.start_on(hosts.on(rank + 1), &[tf_config(&addresses, rank)], &[]);
    }
    Some(nodes.end(failing))
}

fn good_network() {
    let Some(good) = between('g', &[], COME, &[]) else {
        return;
    };
    has(&good, &["known: h1, h2", "sums of 2 workers are right"]);
    // A busy machine may be slow in truth, and its queues drop some; what is judged so is a test of the figures alone.
    assert!(!good.contains("fail "), "{good}");
}

/// All at once, each between hosts of its own.
#[test]
fn firewalls_loss_and_slow_networks_between_hosts_are_found() {
    let says = |kind, fault: &[&str], within, failing: &[usize], parts: &[&str]| {
        if let Some(said) = between(kind, &[fault], within, failing) {
            has(&said, parts);
        }
    };
    let lost = ["warn  loss", "segments were lost"];
    let slow = ["warn  all-reduce", "expect slow steps"];
    let closed = [
        "fail  data ports",
        "could not be reached within",
        "open the ports between the machines",
    ];
    let cut = ["fail  workers", "a firewall, or the machine is down"];
    thread::scope(|scope| {
        scope.spawn(good_network);
        scope.spawn(|| says('l', &["loss", "2", "5"], COME, &[], &lost));
        scope.spawn(|| says('r', &["rate", "1", "50"], COME, &[], &slow));
        scope.spawn(|| says('o', &["only", "1", "4000"], MEET, &[0, 1], &closed));
        scope.spawn(|| says('c', &["cut", "1", "2"], 4, &[0, 1], &cut));
    });
}
