//! `phalanx train` in jobs of a real Slurm with two nodes on this machine.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

const TOOL: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/tools/slurm-two-nodes"
);
const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/slurm.sbatch");
/// Nothing in these tests takes so long unless it hangs.
const LONG: Duration = Duration::from_secs(300);

/// A script of a shell that stands for another program.
fn write_script(path: &Path, text: &str) {
    phalanx_testkit::write_program(path, &format!("#!/bin/sh\n{text}\n"));
}

/// With programs in the place of Slurm's, whose `srun` runs two tasks that end with these codes and then itself with the higher one.
#[test]
fn a_job_in_which_one_has_failed_for_good_is_not_requeued() {
    let folder = std::env::temp_dir().join(format!("phalanx-codes-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let srun = "while [ \"${1#-}\" != \"$1\" ]; do shift; done
most=0; for code in $CODES; do
CODE=$code \"$@\" || { code=$?; [ $code -le $most ] || most=$code; }; done; exit $most";
    write_script(&folder.join("srun"), srun);
    write_script(&folder.join("scontrol"), "echo \"$@\" >>requeued");
    write_script(&folder.join("phalanx"), "echo \"$@\" >>tasks; exit $CODE");
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let ended = |codes: &str| {
        let mut job = Command::new("bash");
        job.args([EXAMPLE, "a file.yaml"]).current_dir(&folder);
        job.env("PATH", &path).env("CODES", codes);
        job.env("SLURM_SUBMIT_DIR", &folder)
            .env("SLURM_JOB_ID", "7");
        let code = job.status().unwrap().code().unwrap();
        let requeued = std::fs::remove_file(folder.join("requeued")).is_ok();
        (code, requeued)
    };
    assert_eq!(ended("0 0"), (0, false));
    assert_eq!(ended("75 2"), (2, false));
    assert_eq!(ended("1 75"), (1, false));
    assert_eq!(ended("75 137"), (137, false));
    // What was left before is of no other start.
    std::fs::write(folder.join("slurm-7.failed"), "2").unwrap();
    assert_eq!(ended("75 75"), (75, true));
    assert_eq!(ended("143 143"), (143, true));
    let tasks = std::fs::read_to_string(folder.join("tasks")).unwrap();
    let task = "train a file.yaml --resume\n";
    assert_eq!(tasks, task.repeat(12));
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A cluster, and a folder for its jobs; both end with this.
struct Slurm(PathBuf);

impl Slurm {
    /// None where its packages are not there, or this user may not start it.
    fn start() -> Option<Self> {
        let is_there = |program: &&str| {
            let folders = ["/usr/sbin", "/usr/bin", "/usr/local/bin"];
            let mut files = folders.iter().map(|folder| Path::new(folder).join(program));
            files.any(|file| file.exists())
        };
        let programs = ["slurmctld", "slurmd", "srun", "munged"];
        if let Some(program) = programs.iter().find(|program| !is_there(program)) {
            phalanx_testkit::skip(format_args!(
                "no {program}; it is in Debian's packages slurm-wlm and munge"
            ));
            return None;
        }
        let folder = std::env::temp_dir().join(format!("phalanx-requeue-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let started = Command::new(TOOL).arg("start").arg(&folder).output();
        let said = String::from_utf8_lossy(&started.as_ref().unwrap().stderr).into_owned();
        if said.contains("needs root") || said.contains("unshare failed") {
            phalanx_testkit::skip(format_args!("{said}"));
            return None;
        }
        assert!(started.unwrap().status.success(), "{said}");
        Some(Self(folder))
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Output {
        let own = Path::new(env!("CARGO_BIN_EXE_phalanx")).parent().unwrap();
        let path = format!("{}:{}", own.display(), std::env::var("PATH").unwrap());
        let mut command = Command::new(program);
        command
            .args(arguments)
            .current_dir(&self.0)
            .env("SLURM_CONF", self.0.join("slurm.conf"))
            .env("PATH", path);
        command.output().unwrap()
    }

    fn says(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.command(program, arguments);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.join(name)).unwrap_or_default()
    }

    fn until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let start = Instant::now();
        while !holds() {
            let log = self.log("job.log");
            assert!(start.elapsed() < LONG, "not yet: {what}; the job:\n{log}");
            thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        // What they say of their end is no test's.
        let _ = Command::new(TOOL).arg("stop").arg(&self.0).output();
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A training of some seconds.
fn write_training(folder: &Path) {
    let row = |index: usize| {
        let value = |column: usize| ((index * 37 + column * 11) % 101) as f64 / 50.0 - 1.0;
        let features: Vec<String> = (0..4).map(|c| value(c).to_string()).collect();
        format!("{},{}\n", features.join(","), index % 3)
    };
    std::fs::write(
        folder.join("rows.csv"),
        (0..512).map(row).collect::<String>(),
    )
    .unwrap();
    let file = "data:
  csv: rows.csv
  header: false
model:
  - dense: {units: 32, activation: relu}
  - dropout: {rate: 0.2}
  - dense: {units: 3, activation: softmax}
optimizer: {adam: {learning_rate: 0.01}}
loss: sparse_categorical_crossentropy
fit:
  epochs: 160
  batch_size: 16
  seed: 7
  save_freq: epoch
";
    std::fs::write(folder.join("train.yaml"), file).unwrap();
}

/// Whether no node has anything to do.
fn is_idle(slurm: &Slurm) -> bool {
    let states = slurm.says("sinfo", &["-h", "-o", "%T"]);
    let mut states = states.split_whitespace().peekable();
    states.peek().is_some() && states.all(|state| state == "idle")
}

/// Starts a requeued job without the two minutes that Slurm would wait.
fn start_again(slurm: &Slurm, job: &str) {
    // Of the first run nothing may be left: what still ends would be taken for the end of the next.
    slurm.until("its nodes are free", || is_idle(slurm));
    // A node takes a job that starts in the second in which it was ended for the one that was ended, and refuses it ("already killed").
    thread::sleep(Duration::from_secs(2));
    let id = format!("JobId={job}");
    slurm.until("it starts again", || {
        let _ = slurm.command("scontrol", &["update", &id, "StartTime=now"]);
        !state_of(slurm, job).contains("PENDING")
    });
}

/// What the queue says of a job, which it may not have any more.
fn state_of(slurm: &Slurm, job: &str) -> String {
    slurm.says("squeue", &["-h", "-j", job, "-o", "%T"])
}

#[test]
fn a_requeued_job_ends_with_the_weights_of_an_unbroken_one() {
    let Some(slurm) = Slurm::start() else { return };
    write_training(&slurm.0);
    let nodes = ["--nodes=2", "--ntasks-per-node=1"];
    let train = ["phalanx", "train", "train.yaml", "--output", "whole"];
    let whole = slurm.command("srun", &[&nodes[..], &train].concat());
    let said = String::from_utf8_lossy(&whole.stderr);
    assert!(whole.status.success(), "{said}");
    assert!(
        said.contains("2 workers") || String::from_utf8_lossy(&whole.stdout).contains("2 workers")
    );

    let job = [
        "--parsable",
        "--output=job.log",
        EXAMPLE,
        "train.yaml",
        "--output",
        "broken",
    ];
    let job = slurm.says("sbatch", &job).trim().to_owned();
    assert!(!job.is_empty(), "sbatch says no job");
    let epochs = || slurm.log("broken/history.jsonl").lines().count();
    slurm.until("it has trained some epochs", || epochs() >= 5);
    let state = || state_of(&slurm, &job);
    assert!(
        slurm
            .command("scontrol", &["requeue", &job])
            .status
            .success()
    );
    slurm.until("it is in the queue again", || state().contains("PENDING"));
    assert!(epochs() < 160, "it was done before it was interrupted");
    start_again(&slurm, &job);
    let shown = || slurm.says("scontrol", &["show", "job", &job, "-o"]);
    slurm.until("it ends", || {
        let ends = ["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"];
        let shown = shown();
        ends.iter()
            .any(|end| shown.contains(&format!("JobState={end} ")))
    });
    let (log, shown) = (slurm.log("job.log"), shown());
    assert!(
        shown.contains("JobState=COMPLETED") && shown.contains("Restarts=1"),
        "{shown}\n{log}"
    );
    let weights = |run: &str| {
        let file = slurm.0.join(run).join("model/weights.safetensors");
        std::fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}\n{log}", file.display()))
    };
    assert!(
        weights("whole") == weights("broken"),
        "other weights:\n{log}"
    );
}
