//! Trainings that are told to end, killed, or run out of disk lose nothing that they said they have.
//!
//! PHALANX_TEST_TRIALS says how often, PHALANX_TEST_SEED where the random numbers begin.
#![cfg(unix)]

use std::fs;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use phalanx::checkpoint::TrainingState;
use phalanx_testkit::{Random, Scratch};

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
