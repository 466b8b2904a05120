//! `phalanx launch` and `phalanx env` as a user meets them.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use phalanx_testkit::Scratch;

/// Nothing in these tests takes so long unless it hangs.
const LONG: Duration = Duration::from_secs(60);

fn folder(name: &str) -> Scratch {
    Scratch::temporary(&format!("launch-{name}"))
}

fn phalanx(home: &Path) -> Command {
    // A test that runs under `nohup` ignores SIGHUP, and so would the launch.
    let mut command = Command::new("/usr/bin/env");
    command
        .args([
            "--default-signal=INT,TERM,HUP,USR1",
            env!("CARGO_BIN_EXE_phalanx"),
        ])
        .env_clear()
        .env("HOME", home)
        .env("PATH", "/usr/bin:/bin");
    command.current_dir(home).stdin(Stdio::null());
    command
}

/// A launch of shells that run a script.
fn launch(home: &Path, options: &[&str], script: &str) -> Command {
    let mut command = phalanx(home);
    command
        .arg("launch")
        .args(options)
        .args(["--", "/bin/sh", "-c", script]);
    command
}

fn expect(output: &Output, code: i32, stdout: &[&str], stderr: &[&str]) {
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert_eq!(output.status.code(), Some(code), "{out}\n{err}");
    for part in stdout {
        assert!(out.contains(part), "no {part:?} in\n{out}");
    }
    for part in stderr {
        assert!(err.contains(part), "no {part:?} in\n{err}");
    }
}

/// Waits until something holds.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < LONG, "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn workers_know_their_place_and_their_logs_are_kept() {
    let home = folder("place");
    let mut command = phalanx(&home);
    let arguments = [
        "launch",
        "--workers",
        "2",
        "--logs",
        "logs",
        "--tee",
        "--",
        "phalanx",
        "env",
    ];
    let output = command.args(arguments).output().unwrap();
    let place = |rank: usize| format!("worker {rank} of 2 (TF_CONFIG), coordinated at 127.0.0.1:");
    let shown: Vec<_> = (0..2)
        .map(|rank| format!("[worker{rank}] {}", place(rank)))
        .collect();
    expect(
        &output,
        0,
        &[&shown[0], &shown[1]],
        &["launch: 2 workers, logs in logs"],
    );
    for rank in 0..2 {
        let log = home.join(format!("logs/worker-{rank}.out"));
        assert!(
            std::fs::read_to_string(log)
                .unwrap()
                .starts_with(&place(rank))
        );
    }
}

#[test]
fn the_first_failure_is_summarised_and_its_exit_code_kept() {
    let home = folder("failure");
    let script = "[ $RANK = 1 ] && echo no data here >&2 && exit 3; sleep 0.2; exit 75";
    let output = launch(&home, &["--workers", "2", "--logs", "l"], script)
        .output()
        .unwrap();
    let summary = "error: worker 1 of 2 ended with exit code 3 after";
    expect(
        &output,
        3,
        &[],
        &[
            summary,
            "its last lines:\n    no data here",
            "all of its output is in l/worker-1.err",
        ],
    );

    let killed = launch(
        &home,
        &["--workers", "2"],
        "[ $RANK = 0 ] && kill -9 $$; sleep 0.2; exit 75",
    );
    expect(
        &{ killed }.output().unwrap(),
        75,
        &[],
        &[
            "worker 0 of 2 was ended by SIGKILL",
            "start all workers again",
        ],
    );
}

#[test]
fn wrong_usage_ends_with_2() {
    let home = folder("usage");
    expect(
        &launch(&home, &["--workers", "2", "--ranks", "2"], "")
            .output()
            .unwrap(),
        2,
        &[],
        &["workers 0 to 1"],
    );
    expect(
        &launch(&home, &["--workers", "0"], "").output().unwrap(),
        2,
        &[],
        &["0"],
    );
    for many in ["99999999", "2..10001"] {
        let refused = launch(&home, &["--workers", many], "").output();
        let says = ["more than one machine starts; expected at most 10000"];
        expect(&refused.unwrap(), 2, &[], &says);
    }
    let nothing = phalanx(&home)
        .args(["launch", "--workers", "2", "--", "/no/such"])
        .output()
        .unwrap();
    expect(&nothing, 2, &[], &["cannot start /no/such"]);
}

/// The processes that have a variable with this value.
fn processes_with(variable: &str) -> usize {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let has_it = |path: PathBuf| {
        let variables = std::fs::read(path.join("environ")).unwrap_or_default();
        variables
            .split(|byte| *byte == 0)
            .any(|one| one == variable.as_bytes())
    };
    all.filter(|folder| has_it(folder.path())).count()
}

/// Starts a launch whose workers and their children sleep, once all of them are there: each worker writes a line to `up` when it is ready.
fn sleeping(home: &Path, name: &str, script: &str) -> (Child, String) {
    let mark = format!("PHALANX_TEST_MARK={}-{name}", std::process::id());
    let (variable, value) = mark.split_once('=').unwrap();
    let up = home.join("up");
    let _ = std::fs::remove_file(&up);
    let mut command = launch(home, &["--workers", "2"], script);
    let child = command
        .env(variable, value)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // The launch and its guard, two shells, their two children that leave their group.
    until("all to start", || {
        let ready = std::fs::read_to_string(&up).is_ok_and(|text| text.lines().count() == 2);
        ready && processes_with(&mark) >= 6
    });
    (child, mark)
}

/// Nothing outlives a launch that was killed, not even what left its group and session.
#[test]
fn a_killed_launch_leaves_nothing_behind() {
    let home = folder("killed");
    for trial in 0..3 {
        let (mut child, mark) = sleeping(
            &home,
            &format!("killed-{trial}"),
            "trap '' TERM; setsid sleep 1000 & echo up >> up; sleep 1000; sleep 1000",
        );
        child.kill().unwrap();
        child.wait().unwrap();
        until("all to end", || processes_with(&mark) == 0);
    }
}

#[test]
fn a_signal_is_passed_on_to_the_workers() {
    let home = folder("signal");
    for signal in ["TERM", "HUP", "USR1"] {
        let script = format!(
            "trap 'echo {signal} >> told; exit 143' {signal}; setsid sleep 1000 & echo up >> up; while :; do sleep 0.05; done"
        );
        let (mut child, mark) = sleeping(&home, signal, &script);
        let pid = child.id().to_string();
        Command::new("/bin/kill")
            .args([&format!("-{signal}"), &pid])
            .status()
            .unwrap();
        let mut ended = None;
        until("the launch to end", || {
            ended = child.try_wait().unwrap();
            ended.is_some()
        });
        assert_eq!(ended.unwrap().code(), Some(143), "{signal}");
        assert_eq!(processes_with(&mark), 0, "{signal}");
        let told = std::fs::read_to_string(home.join("told")).unwrap();
        assert_eq!(told.matches(signal).count(), 2, "{told}");
    }
}

#[test]
fn env_says_what_was_read_and_what_follows() {
    let home = folder("env");
    let env = |arguments: &[&str], variables: &[(&str, &str)]| {
        let mut command = phalanx(&home);
        command
            .arg("env")
            .args(arguments)
            .envs(variables.iter().copied());
        command.output().unwrap()
    };
    expect(&env(&[], &[]), 0, &["the only worker"], &[]);
    let torchrun = [
        ("RANK", "1"),
        ("WORLD_SIZE", "2"),
        ("MASTER_ADDR", "n0"),
        ("MASTER_PORT", "4000"),
    ];
    expect(
        &env(&[], &torchrun),
        0,
        &["worker 1 of 2 (torchrun's variables), coordinated at n0:4000"],
        &[],
    );
    let lines = [
        "  RANK=1\n      the number of this worker",
        "this process is worker 1 of 2",
    ];
    expect(&env(&["--explain"], &torchrun), 0, &lines, &[]);
    let json = [
        r#""worker":1"#,
        r#""rendezvous":"n0:4000""#,
        r#""source":"torchrun""#,
    ];
    expect(&env(&["--progress", "json"], &torchrun), 0, &json, &[]);
    let wrong = [("RANK", "2"), ("WORLD_SIZE", "2")];
    let error = "error: RANK=2 and WORLD_SIZE=2 contradict each other: numbers go from 0 to 1";
    expect(&env(&["--explain"], &wrong), 2, &["RANK=2"], &[error]);
}

#[test]
fn an_evaluator_leaves_the_trace_to_the_workers_and_a_server_has_none() {
    let home = folder("trace");
    let trace = |kind: &str| {
        let cluster = r#"{"cluster": {"chief": ["127.0.0.1:9"], "ps": ["127.0.0.1:10"]}"#;
        let config = format!(r#"{cluster}, "task": {{"type": "{kind}", "index": 0}}}}"#);
        let mut command = phalanx(&home);
        // Nothing reads the file.
        command
            .args(["trace", "none.yaml"])
            .env("TF_CONFIG", config);
        command.output().unwrap()
    };
    expect(&trace("evaluator"), 0, &[], &[]);
    expect(
        &trace("ps"),
        2,
        &[],
        &["a parameter server takes no steps to trace"],
    );
    expect(&trace("chief"), 2, &[], &["none.yaml"]);
}
