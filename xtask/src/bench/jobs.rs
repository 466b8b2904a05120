//! `cargo xtask bench jobs`: how long a submitted job of two workers waits for its first step, with a warm compile cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use super::{machine, write};
use crate::process::run;
use crate::workspace::Workspace;

const LIMIT: Duration = Duration::from_secs(300);
const BUILD_LIMIT: Duration = Duration::from_secs(60 * 60);
const DAY_MS: u64 = 24 * 3600 * 1000;
/// AI Platform's file of two tasks, whose program trains one step an epoch: the line of the first epoch marks the first step.
const CONFIG: &str = "trainingInput: {scaleTier: CUSTOM, masterType: n1-standard-4, workerType: n1-standard-4, workerCount: 1}
phalanx: {program: examples/digits.yaml}
";

/// What of a job's way to its first step is timed.
const TIMED: [&str; 4] = [
    "the command returns",
    "queued to the start of both tasks",
    "queued to the first line of the training",
    "queued to the end of the first step",
];

/// Times jobs with a service that runs, and with one that the command starts; `--write` keeps the table.
pub(crate) fn jobs(arguments: &[&str]) -> Result<(), String> {
    let workspace = Workspace::load()?;
    let (mut programs, mut rounds, mut keep) = (None, 9, false);
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match *argument {
            "--bin" => programs = rest.next().map(PathBuf::from),
            "--quick" => rounds = 3,
            "--write" => keep = true,
            other => return Err(format!("bench jobs has no argument {other:?}")),
        }
    }
    let programs = match programs {
        Some(folder) => fs::canonicalize(&folder).map_err(|error| told(&folder, &error))?,
        None => build(&workspace)?,
    };
    let bench = Bench::new(&workspace, &programs)?;
    let _ = bench.time("warm", 0)?;
    let mut page =
        String::from("| | service runs | service starts with the job |\n|---|---|---|\n");
    let all = |root: fn(usize) -> String| -> Result<Vec<_>, String> {
        (1..=rounds)
            .map(|round| bench.time(&root(round), round))
            .collect()
    };
    let (warm, cold) = (
        all(|_| "warm".into())?,
        all(|round| format!("cold-{round}"))?,
    );
    for (at, what) in TIMED.into_iter().enumerate() {
        page += &format!(
            "| {what} | {} | {} |\n",
            spread(&warm, at),
            spread(&cold, at)
        );
    }
    page += &format!(
        "\nMilliseconds: median (least to most) of {rounds} jobs of the digits on two workers, load {}.\n",
        load()
    );
    println!("{page}");
    bench.end();
    if keep {
        let by = "Written by `cargo xtask bench jobs --write`";
        let page = format!(
            "# From submission to the first step\n\n{by}: {}.\n\n{page}",
            machine::description()
        );
        write(&workspace, "jobs.md", &page)?;
    }
    Ok(())
}

fn told(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}

fn build(workspace: &Workspace) -> Result<PathBuf, String> {
    let mut command = workspace.cargo();
    command.args([
        "build",
        "--release",
        "-p",
        "phalanx-cli",
        "-p",
        "phalanx-jobs",
    ]);
    run(&mut command, &workspace.log("bench-build"), BUILD_LIMIT)?;
    Ok(workspace.root.join("target/release"))
}

fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or("unknown").to_owned()
}

fn spread(rounds: &[[u64; 4]], at: usize) -> String {
    let mut all: Vec<u64> = rounds.iter().map(|round| round[at]).collect();
    all.sort_unstable();
    format!(
        "{} ({} to {})",
        all[all.len() / 2],
        all[0],
        all[all.len() - 1]
    )
}

/// A folder with the job file and all that it names.
struct Bench<'a> {
    workspace: &'a Workspace,
    program: PathBuf,
    folder: PathBuf,
}

impl<'a> Bench<'a> {
    fn new(workspace: &'a Workspace, programs: &Path) -> Result<Self, String> {
        let folder = workspace
            .root
            .join(format!("target/bench-jobs-{}", std::process::id()));
        for file in ["examples/digits.yaml", "crates/phalanx/data/digits.csv.gz"] {
            let to = folder.join(file);
            let made = fs::create_dir_all(to.parent().unwrap_or(&folder));
            let copied = made.and_then(|()| fs::copy(workspace.root.join(file), &to));
            copied.map_err(|error| told(&to, &error))?;
        }
        let file = folder.join("examples/digits.yaml");
        let text = fs::read_to_string(&file).map_err(|error| told(&file, &error))?;
        let without = text.lines().filter(|line| !line.contains("validation:"));
        let text: String = without.map(|line| format!("{line}\n")).collect();
        fs::write(&file, text).map_err(|error| told(&file, &error))?;
        fs::write(folder.join("config.yaml"), CONFIG).map_err(|error| told(&folder, &error))?;
        let program = programs.join("phalanx");
        Ok(Self {
            workspace,
            program,
            folder,
        })
    }

    fn run(&self, root: &str, words: &[&str]) -> Result<String, String> {
        let mut command = Command::new(&self.program);
        command.arg("jobs").args(words).current_dir(&self.folder);
        command.env("PHALANX_JOBS_DIR", self.folder.join(root));
        run(&mut command, &self.workspace.log("bench-jobs"), LIMIT)
    }

    /// Milliseconds of one job, as [`TIMED`] has them.
    fn time(&self, root: &str, round: usize) -> Result<[u64; 4], String> {
        let name = format!("demo_{}_{round}", root.replace('-', "_"));
        let began = SystemTime::now();
        let submit = ["submit", "training", &name, "--config", "config.yaml", "--"];
        self.run(
            root,
            &[&submit[..], &["--epochs", "3", "--steps-per-epoch", "1"]].concat(),
        )?;
        let returned = began.elapsed().unwrap_or_default().as_millis() as u64;
        self.run(root, &["wait", &name])?;
        let job = self.run(root, &["describe", &name, "--format", "json"])?;
        let job: Value = serde_json::from_str(&job).map_err(|error| format!("{error} in {job}"))?;
        let logs = self.run(root, &["logs", &name, "--format", "json"])?;
        let since = began.duration_since(UNIX_EPOCH).unwrap_or_default();
        let began = since.as_millis() as u64 % DAY_MS;
        let after = |time: Option<u64>| {
            let time = time.ok_or_else(|| format!("{job:#}\n{logs}"))?;
            Ok::<_, String>((time + DAY_MS - began) % DAY_MS)
        };
        let line = |start: &str| {
            let all = logs
                .lines()
                .filter_map(|line| serde_json::from_str(line).ok());
            let mut of = all.filter(|line: &Value| {
                line["message"]
                    .as_str()
                    .is_some_and(|m| m.starts_with(start))
            });
            of.next().and_then(|line| of_day(&line["time"]))
        };
        let queued = after(of_day(&job["createTime"]))?;
        let since = |time: Option<u64>| after(time).map(|time| time - queued.min(time));
        Ok([
            returned,
            since(of_day(&job["startTime"]))?,
            since(line("data:"))?,
            since(line("epoch 1/3"))?,
        ])
    }

    /// Ends the services and removes the folder.
    fn end(&self) {
        for root in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let text = fs::read_to_string(root.path().join("daemon.json")).unwrap_or_default();
            let pid = serde_json::from_str::<Value>(&text)
                .ok()
                .and_then(|json| json["pid"].as_u64());
            if let Some(pid) = pid {
                let _ = Command::new("kill").arg(pid.to_string()).status();
            }
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Milliseconds since midnight of a time as RFC 3339 writes it.
fn of_day(time: &Value) -> Option<u64> {
    let clock = time.as_str()?.split_once('T')?.1.strip_suffix('Z')?;
    let mut parts = clock.split([':', '.']).map(|part| part.parse::<u64>().ok());
    let mut next = || parts.next().flatten();
    Some(((next()? * 60 + next()?) * 60 + next()?) * 1000 + next()?)
}
