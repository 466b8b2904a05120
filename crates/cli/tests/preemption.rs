//! Trainings that are told to end, lose their machine, are killed, or run out of disk lose nothing that they said they have.
//!
//! PHALANX_TEST_TRIALS says how often, PHALANX_TEST_SEED where the random numbers begin.
#![cfg(unix)]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use phalanx::checkpoint::TrainingState;
use phalanx_cluster::launch::ReservedPorts;
use phalanx_testkit::{MetadataServer, Random, Scratch};
use rustix::process::{Pid, Signal, kill_process};

/// A folder with data and a `t.yaml`, removed at the end.
struct Folder(Scratch);

impl Folder {
    fn new(name: &str) -> Self {
        let path = Scratch::temporary(&format!("preemption-{name}"));
        let row = |i: u32| {
            let (x, y) = ((i * 7) % 13, (i * 5) % 11);
            format!("{x},{y},{}\n", u8::from(x > y))
        };
        fs::write(path.join("a.csv"), (0..40).map(row).collect::<String>()).unwrap();
        Self(path)
    }

    /// A training of some epochs of five steps.
    fn describe(&self, epochs: usize, settings: &str, more: &str) {
        let text = format!(
            "data: {{csv: a.csv, divide_by: 10}}\n\
             model: [{{dense: {{units: 8, activation: tanh}}}}, {{dropout: {{rate: 0.2}}}}, {{dense: {{units: 2, activation: softmax}}}}]\n\
             optimizer: {{adam: {{learning_rate: 0.05}}}}\nloss: sparse_categorical_crossentropy\nmetrics: [accuracy]\n\
             fit: {{epochs: {epochs}, batch_size: 8{settings}}}\noutput: out\n{more}"
        );
        fs::write(self.0.join("t.yaml"), text).unwrap();
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx"));
        command.args(arguments).current_dir(&self.0);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        command
    }

    fn succeed(&self, arguments: &[&str]) {
        let output = self.command(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", told(&output));
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.0.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// The results of all epochs, without what was measured.
    fn logs(&self, output: &str) -> Vec<serde_json::Value> {
        let text = String::from_utf8(self.read(&format!("{output}/history.jsonl"))).unwrap();
        let line = |line: &str| {
            let epoch: serde_json::Value = serde_json::from_str(line).unwrap();
            serde_json::json!([epoch["epoch"], epoch["steps"], epoch["logs"]])
        };
        text.lines().map(line).collect()
    }

    /// A training that ended is the unbroken one.
    fn check(&self) {
        let weights = "model/weights.safetensors";
        assert!(self.read(&format!("out/{weights}")) == self.read(&format!("whole/{weights}")));
        assert_eq!(self.logs("out"), self.logs("whole"));
    }
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

fn send(signal: &str, child: &Child) {
    // It may have ended.
    let id = child.id().to_string();
    let _ = Command::new("kill").args(["-s", signal, &id]).status();
}

/// The time that a training has to be gone once it is asked to end: a grace of 30 s, less 5 s.
const GRACE: Duration = Duration::from_secs(25);

/// Goes on with the training, asks it to end after a random time, and looks at what is there then. Whether it was at its end.
fn interrupt(folder: &Folder, random: &mut Random, span: Duration) -> bool {
    let mut command = folder.command(&["train", "t.yaml", "--resume"]);
    let child = command.spawn().unwrap();
    sleep(Duration::from_millis(
        random.below(span.as_millis() as u64 + 1),
    ));
    let kind = random.below(4);
    let signals: &[&str] = match kind {
        0 | 1 => &["TERM"],
        2 => &["TERM", "TERM"],
        _ => &["KILL"],
    };
    for signal in signals {
        send(signal, &child);
        sleep(Duration::from_millis(random.below(30)));
    }
    let asked = Instant::now();
    let output = child.wait_with_output().unwrap();
    let (gone, text) = (asked.elapsed(), told(&output));
    assert!(gone < GRACE, "{gone:?}: {text}");
    let path = folder.0.join("out/checkpoint");
    let saved = TrainingState::is_at(&path)
        .unwrap()
        .then(|| TrainingState::load_newest(&path).unwrap());
    if let Some((_, left_out)) = &saved {
        assert!(left_out.is_empty(), "{left_out:?}");
    }
    match output.status.code() {
        Some(0) => return true,
        // By the signal itself: killed, or before the program watched for signals.
        None => {}
        Some(code) => assert_eq!(code, 143, "{text}"),
    }
    if let Some((_, rest)) = text.split_once("stopped after step ") {
        let step: i64 = rest.split(';').next().unwrap().parse().unwrap();
        let (state, _) = saved.expect("a checkpoint");
        assert_eq!(state.iterations(), step, "{text}");
    }
    false
}

#[test]
fn a_training_that_is_asked_to_end_at_any_time_loses_no_step() {
    let folder = Folder::new("signals");
    folder.describe(60, ", save_freq: 3", "");
    let start = Instant::now();
    folder.succeed(&["train", "t.yaml", "--output", "whole"]);
    let span = start.elapsed();
    let mut random = Random::new(number("PHALANX_TEST_SEED", 1));
    let (mut trainings, trials) = (0, number("PHALANX_TEST_TRIALS", 20));
    for _ in 0..trials {
        if interrupt(&folder, &mut random, span) {
            folder.check();
            trainings += 1;
            fs::remove_dir_all(folder.0.join("out")).unwrap();
        }
    }
    folder.succeed(&["train", "t.yaml", "--resume"]);
    folder.check();
    println!("{trials} interruptions of {} trainings", trainings + 1);
}

const SERVER: &str = "PHALANX_METADATA_SERVER";

/// A port that was free a moment ago.
fn closed_port() -> (ReservedPorts, String) {
    let held = ReservedPorts::new(1, None).unwrap();
    let address = format!("127.0.0.1:{}", held.of_workers()[0]);
    (held, address)
}

/// The step after which a training says that it was stopped, which is the step of its checkpoint.
fn stopped_after(folder: &Folder, output: &Output) -> i64 {
    let text = told(output);
    assert_eq!(output.status.code(), Some(143), "{text}");
    let (_, rest) = text.split_once("stopped after step ").expect(&text);
    let step = rest.split(';').next().unwrap().parse().unwrap();
    let (state, _) = TrainingState::load_newest(folder.0.join("out/checkpoint")).unwrap();
    assert_eq!(state.iterations(), step, "{text}");
    step
}

#[test]
fn a_notice_of_each_cloud_ends_a_training_with_a_checkpoint_that_it_goes_on_from() {
    for cloud in ["gce", "aws", "azure"] {
        let (folder, server) = (Folder::new(cloud), MetadataServer::new());
        folder.describe(100_000, &format!(", preemption_notice: {cloud}"), "");
        let start = |more: &[&str]| {
            let mut command = folder.command(&[&["train", "t.yaml"], more].concat());
            command.env(SERVER, server.address()).spawn().unwrap()
        };
        let history = folder.0.join("out/history.jsonl");
        let epochs = || fs::read_to_string(&history).map_or(0, |text| text.lines().count());
        let mut child = start(&[]);
        // What is announced for other machines ends nothing, however often it is asked.
        wait_for("epochs of two seconds", &mut child, || epochs() >= 2);
        sleep(Duration::from_secs(2));
        assert_eq!(child.try_wait().unwrap(), None, "{cloud}");
        server.announce(true);
        let output = child.wait_with_output().unwrap();
        let step = stopped_after(&folder, &output);
        let announced = format!("is announced (`preemption_notice: {cloud}`)");
        assert!(told(&output).contains(&announced), "{}", told(&output));
        server.announce(false);
        let mut child = start(&["--resume"]);
        let before = epochs();
        wait_for("more epochs", &mut child, || epochs() >= before + 2);
        server.announce(true);
        assert!(stopped_after(&folder, &child.wait_with_output().unwrap()) > step);
    }
}

/// The second of two workers is asked to end, of a training that writes no other checkpoint; what both said.
fn ended_with_the_second(name: &str, ask: impl Fn(&Child, &MetadataServer)) -> [String; 2] {
    let (folder, server) = (Folder::new(name), MetadataServer::new());
    let (_held, none) = closed_port();
    folder.describe(100_000, ", preemption_notice: azure", "");
    let [mut first, second] = two_workers(&folder, [&none, server.address()]);
    let history = folder.0.join("out/history.jsonl");
    // The first makes it empty, before the second may have begun to watch for signals.
    let has_epochs = || fs::metadata(&history).is_ok_and(|file| file.len() > 0);
    wait_for("an epoch", &mut first, has_epochs);
    ask(&second, &server);
    let outputs = [first, second].map(|worker| worker.wait_with_output().unwrap());
    let steps = [0, 1].map(|index| stopped_after(&folder, &outputs[index]));
    assert_eq!(steps[0], steps[1]);
    outputs.map(|output| told(&output))
}

#[test]
fn a_notice_of_one_workers_machine_ends_all_workers_after_one_step() {
    let said = ended_with_the_second("notice", |_, server| server.announce(true));
    let announced = said.map(|said| said.contains("is announced"));
    assert_eq!(announced, [false, true]);
}

#[test]
fn a_notice_of_the_machine_of_any_parameter_server_ends_the_training_with_a_checkpoint() {
    let (folder, server) = (Folder::new("servers"), MetadataServer::new());
    let (_held, none) = closed_port();
    let more = "strategy: parameter_server\n";
    folder.describe(100_000, ", preemption_notice: gce", more);
    // Not the first one, which has the control.
    let kinds = [
        ("worker", &*none),
        ("worker", &none),
        ("ps", &none),
        ("ps", server.address()),
    ];
    let [mut first, second, control, other] = tasks(&folder, kinds);
    let history = folder.0.join("out/history.jsonl");
    let has_epochs = || fs::metadata(&history).is_ok_and(|file| file.len() > 0);
    wait_for("an epoch", &mut first, has_epochs);
    server.announce(true);
    let outputs = [first, second].map(|worker| worker.wait_with_output().unwrap());
    assert!(stopped_after(&folder, &outputs[0]) > 0);
    let code = outputs[1].status.code();
    assert_eq!(code, Some(143), "{}", told(&outputs[1]));
    // Whoever hears of it first asks the others.
    let said = outputs.each_ref().map(told).concat();
    assert!(
        said.contains("parameter server 1 is asked to end, or the end of its machine is announced"),
        "{said}"
    );
    for (server, code) in [(control, 0), (other, 143)] {
        let output = server.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{}", told(&output));
    }
}

#[test]
fn a_training_that_is_started_again_before_its_machine_has_ended_waits() {
    let (folder, server) = (Folder::new("again"), MetadataServer::new());
    folder.describe(2, "", "");
    folder.succeed(&["train", "t.yaml", "--output", "whole"]);
    folder.describe(2, ", preemption_notice: aws", "");
    server.announce(true);
    let mut command = folder.command(&["train", "t.yaml"]);
    let mut child = command.env(SERVER, server.address()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let waits = |line: &str| line.contains("waits 240 s for that to be taken back");
    assert!(lines.any(|line| waits(&line.unwrap())), "it does not wait");
    assert!(!folder.0.join("out").exists(), "it has begun");
    server.announce(false);
    let said: Vec<_> = lines.map(Result::unwrap).collect();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{said:?}");
    folder.check();
}

#[test]
fn a_machine_that_goes_ends_a_worker_before_the_others_have_waited_in_vain() {
    let (folder, server) = (Folder::new("vain"), MetadataServer::new());
    let strategy = "strategy: {multi_worker: {communication: {join_timeout: 2}}}\n";
    folder.describe(2, ", preemption_notice: gce", strategy);
    server.announce(true);
    let mut command = folder.command(&["train", "t.yaml"]);
    let output = command.env(SERVER, server.address()).output().unwrap();
    let said = told(&output);
    assert_eq!(output.status.code(), Some(143), "{said}");
    assert!(said.contains("still after 1.6 s, and nothing"), "{said}");
    assert!(!folder.0.join("out").exists(), "it has begun");
}

#[test]
fn a_signal_to_one_worker_ends_all_workers_after_one_step() {
    ended_with_the_second("signal", |second, _| send("TERM", second));
}

#[test]
fn a_metadata_server_that_is_silent_absent_or_another_neither_holds_up_nor_ends_a_training() {
    let folder = Folder::new("silent");
    folder.describe(2, "", "");
    folder.succeed(&["train", "t.yaml", "--output", "whole"]);
    let (_held, none) = closed_port();
    let page = "HTTP/1.1 200 OK\r\n\r\n<html>TRUE</html>";
    let servers = [
        ("silent", server_that_says(None), "timed out"),
        ("absent", none, "refused"),
        ("no HTTP", server_that_says(Some("TRUE")), "no HTTP"),
        ("a page", server_that_says(Some(page)), "not expected"),
    ];
    for cloud in ["gce", "aws", "azure"] {
        folder.describe(2, &format!(", preemption_notice: {cloud}"), "");
        for (name, server, why) in &servers {
            let mut command = folder.command(&["train", "t.yaml", "--overwrite"]);
            let start = Instant::now();
            let output = command.env(SERVER, server).output().unwrap();
            let (text, taken) = (told(&output), start.elapsed());
            assert_eq!(output.status.code(), Some(0), "{cloud}, {name}: {text}");
            assert!(
                taken < Duration::from_secs(60),
                "{cloud}, {name}: {taken:?}"
            );
            let warning = format!("`preemption_notice: {cloud}` does not answer (");
            // Microsoft's begins with the first question, and has two minutes.
            let warnings = usize::from(cloud != "azure");
            assert_eq!(
                text.matches(&warning).count(),
                warnings,
                "{cloud}, {name}: {text}"
            );
            assert!(
                warnings == 0 || text.contains(why),
                "{cloud}, {name}: {text}"
            );
            folder.check();
        }
    }
}

/// A server that says this to whoever connects and closes, or that says nothing and keeps who connects waiting.
fn server_that_says(answer: Option<&'static str>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    spawn(move || {
        let mut waiting = Vec::new();
        for stream in listener.incoming().flatten() {
            // What closes with a request unread resets the connection.
            let lines = BufReader::new(&stream).lines().map_while(Result::ok);
            lines.take_while(|line| !line.is_empty()).for_each(drop);
            match answer {
                Some(answer) => drop((&stream).write_all(answer.as_bytes())),
                None => waiting.push(stream),
            }
        }
    });
    address
}

/// Two workers of a training, each with its metadata server.
fn two_workers(folder: &Folder, servers: [&str; 2]) -> [Child; 2] {
    tasks(folder, [("worker", servers[0]), ("worker", servers[1])])
}

/// Tasks of a cluster by their kinds, each on a machine with its own metadata server.
fn tasks<const N: usize>(folder: &Folder, tasks: [(&str, &str); N]) -> [Child; N] {
    let ports = ReservedPorts::new(N, None).unwrap();
    let mut cluster: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let places = std::array::from_fn::<_, N, _>(|task| {
        let of_kind = cluster.entry(tasks[task].0).or_default();
        of_kind.push(format!("127.0.0.1:{}", ports.of_workers()[task]));
        of_kind.len() - 1
    });
    std::array::from_fn(|task| {
        let (kind, server) = tasks[task];
        let config = serde_json::json!({
            "cluster": cluster, "task": { "type": kind, "index": places[task] },
        });
        let mut command = folder.command(&["train", "t.yaml"]);
        command
            .env("TF_CONFIG", config.to_string())
            .env(SERVER, server);
        command.spawn().unwrap()
    })
}

/// Runs a script of `sh -e` where `disk` is a file system of its own, of 1 MB; none where that is not allowed.
fn on_small_disk(folder: &Folder, script: &str) -> Option<String> {
    fs::create_dir_all(folder.0.join("disk")).unwrap();
    let mount = "mount -t tmpfs -o size=1m none disk";
    let run = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-ec", script]);
        command
            .current_dir(&folder.0)
            .env("PHALANX", env!("CARGO_BIN_EXE_phalanx"));
        command.stdin(Stdio::null()).output()
    };
    if !run(mount).is_ok_and(|output| output.status.success()) {
        phalanx_testkit::skip("a small disk needs unshare, and to be allowed to mount");
        return None;
    }
    let output = run(&format!("{mount}\n{script}")).unwrap();
    let text = format!(
        "{}\n{}",
        told(&output),
        String::from_utf8_lossy(&output.stdout)
    );
    assert!(output.status.success(), "{text}");
    Some(text)
}

/// Fills the disk, and what others free of it, until the file `over` is there.
const FILL: &str = "fill() {
    while [ ! -e over ]; do head -c 4m /dev/zero >> disk/filler 2>/dev/null || true; sleep 0.005; done
}";

#[test]
fn a_full_disk_costs_the_checkpoint_that_is_being_written_and_no_other() {
    let folder = Folder::new("full");
    folder.describe(60, ", save_freq: 3", "");
    let start = Instant::now();
    folder.succeed(&["train", "t.yaml", "--output", "whole"]);
    let span = start.elapsed();
    let mut random = Random::new(number("PHALANX_TEST_SEED", 1));
    let (mut refused, trials) = (0, number("PHALANX_TEST_TRIALS", 5));
    for trial in 0..trials {
        // Also while it starts, and too late.
        let after = random.below(span.as_millis() as u64) as f64 / 1e3;
        let script = format!(
            "{FILL}
            rm -f over; (sleep {after}; fill) &
            code=0; \"$PHALANX\" train t.yaml --resume --output disk/out >told 2>&1 || code=$?
            touch over; wait; : >> disk/filler
            echo \"ended with $code\"
            if [ $code != 0 ]; then grep -q 'No space left' told || {{ cat told; exit 1; }}; fi
            if [ -e disk/out/checkpoint ]; then \"$PHALANX\" ckpt verify disk/out/checkpoint; fi
            rm disk/filler
            if [ $code != 0 ]; then \"$PHALANX\" train t.yaml --resume --output disk/out; fi
            rm -rf out; cp -r disk/out out"
        );
        let Some(text) = on_small_disk(&folder, &script) else {
            return;
        };
        assert!(
            text.contains("ended with 0") || text.contains("ended with 1"),
            "{trial}: {text}"
        );
        refused += u64::from(text.contains("ended with 1"));
        folder.check();
    }
    println!("{refused} of {trials} were refused");
}

#[test]
fn a_full_disk_of_logs_alone_ends_no_training() {
    let folder = Folder::new("logs");
    let more = "callbacks: [{csv_logger: {filename: FOLDER/log.csv}}]\n";
    folder.describe(200, ", save_freq: epoch", &more.replace("FOLDER", "."));
    folder.succeed(&["train", "t.yaml", "--output", "whole"]);
    let whole = folder.read("log.csv");
    folder.describe(
        200,
        ", save_freq: epoch, tensorboard: disk/events",
        &more.replace("FOLDER", "disk"),
    );
    // Rows of more than a page, which a file on a full disk has already.
    let script = format!(
        "{FILL}
        \"$PHALANX\" train t.yaml --epochs 1
        fill &
        \"$PHALANX\" train t.yaml --epochs 150 --resume
        touch over; wait; rm disk/filler
        \"$PHALANX\" train t.yaml --resume
        ls disk/events/train | wc -l; cp disk/log.csv log.csv"
    );
    let Some(text) = on_small_disk(&folder, &script) else {
        return;
    };
    assert!(
        text.contains("warning: nothing is written for TensorBoard"),
        "{text}"
    );
    assert!(
        text.contains("warning: csv_logger cannot write to `disk/log.csv`"),
        "{text}"
    );
    assert_eq!(
        String::from_utf8(folder.read("log.csv")).unwrap(),
        String::from_utf8(whole).unwrap()
    );
    folder.check();
}

/// Waits until something holds, while a process runs.
fn wait_for(what: &str, child: &mut Child, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert_eq!(child.try_wait().unwrap(), None, "it ended before {what}");
        assert!(start.elapsed() < Duration::from_secs(120), "{what}");
        sleep(Duration::from_millis(2));
    }
}

/// The first worker of a launch.
fn first_worker(launch: &Child) -> Pid {
    let id = launch.id();
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
    let is_first = |child: &&str| {
        let variables = fs::read(format!("/proc/{child}/environ")).unwrap_or_default();
        variables
            .split(|byte| *byte == 0)
            .any(|one| one == b"RANK=0")
    };
    let mut children = children.split_whitespace();
    let first = children.find(is_first).unwrap();
    Pid::from_raw(first.parse().unwrap()).unwrap()
}

/// A launch whose first worker is killed after two epochs: what it printed.
fn with_the_first_killed(folder: &Folder, launch: &[&str], train: &[&str]) -> String {
    let program = ["--", "phalanx", "train", "t.yaml"];
    let arguments = [&["launch", "--logs", "logs"], launch, &program, train].concat();
    let mut command = folder.command(&arguments);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let history = folder.0.join("out/history.jsonl");
    let epochs = || fs::read_to_string(&history).map_or(0, |text| text.lines().count());
    wait_for("two epochs", &mut child, || epochs() >= 2);
    let first = first_worker(&child);
    // At once: another process for it would take a while.
    kill_process(first, Signal::KILL).unwrap();
    let saved = |name: &str| folder.0.join("out").join(name).exists();
    while child.try_wait().unwrap().is_none() {
        assert!(
            saved("checkpoint") || saved("checkpoint.1"),
            "no checkpoint"
        );
        sleep(Duration::from_millis(1));
    }
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", told(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn another_process_goes_on_with_all_that_a_first_worker_had_begun() {
    const EPOCHS: usize = 120;
    let ways: [(&[&str], &[&str]); 3] = [
        (&["--workers", "2"], &[]),
        (&["--workers", "2", "--max-restarts", "1"], &["--overwrite"]),
        (&["--workers", "1..2", "--max-restarts", "0"], &[]),
    ];
    for (launch, train) in ways {
        let folder = Folder::new("first");
        let more = "callbacks: [{csv_logger: {filename: log.csv}}]\n";
        folder.describe(EPOCHS, ", save_freq: epoch", more);
        let printed = with_the_first_killed(&folder, launch, train);
        assert_eq!(folder.logs("out").len(), EPOCHS, "{launch:?} {train:?}");
        let rows = String::from_utf8(folder.read("log.csv")).unwrap();
        let epochs = rows.lines().skip(1).map(|row| row.split(',').next());
        let expected: Vec<String> = (0..EPOCHS).map(|epoch| epoch.to_string()).collect();
        assert!(epochs.flatten().eq(&expected), "{launch:?}: {rows}");
        let last = format!("epoch {EPOCHS}/{EPOCHS}: ");
        assert!(printed.contains(&last), "{launch:?}: {printed}");
        assert!(
            printed.contains("model: out/model"),
            "{launch:?}: {printed}"
        );
    }
}

#[test]
fn a_worker_that_is_asked_to_end_while_it_waits_for_another_saves_its_last_step() {
    let folder = Folder::new("waits");
    folder.describe(1000, ", save_freq: epoch", "");
    let [mut first, mut second] = two_workers(&folder, ["", ""]);
    let path = folder.0.join("out/checkpoint.1");
    wait_for("a checkpoint", &mut first, || path.exists());
    second.kill().unwrap();
    second.wait().unwrap();
    sleep(Duration::from_millis(200));
    send("TERM", &first);
    let asked = Instant::now();
    let output = first.wait_with_output().unwrap();
    let text = told(&output);
    assert!(asked.elapsed() < GRACE, "{text}");
    stopped_after(&folder, &output);
}
