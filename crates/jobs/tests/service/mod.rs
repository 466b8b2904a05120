//! A folder of jobs with its daemon, for one test.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use phalanx_testkit::write_program;
use serde_json::Value as Json;

/// Nothing in these tests takes longer on a machine that is busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// A folder of jobs, removed at the end with its daemon and all of its processes.
pub(crate) struct Service {
    pub(crate) folder: PathBuf,
    cpus: u32,
    gpus: Option<&'static str>,
    program: PathBuf,
}

impl Service {
    pub(crate) fn new(name: &str) -> Self {
        Self::with_cpus(name, 64)
    }

    /// As if the machine had this many processors.
    pub(crate) fn with_cpus(name: &str, cpus: u32) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!(
            "phalanx-jobs-{name}-{}-{number}",
            std::process::id()
        ));
        fs::create_dir_all(&folder).unwrap();
        let program = env!("CARGO_BIN_EXE_phalanx-jobs").into();
        Self {
            folder,
            cpus,
            gpus: None,
            program,
        }
    }

    /// As if the machine had these GPUs.
    pub(crate) const fn with_gpus(mut self, gpus: &'static str) -> Self {
        self.gpus = Some(gpus);
        self
    }

    /// With a script in the place of `phalanx`.
    pub(crate) fn with_phalanx(mut self, script: &str) -> Self {
        let bin = self.folder.join("bin");
        fs::create_dir(&bin).unwrap();
        write_program(bin.join("phalanx"), &format!("#!/bin/sh\n{script}\n"));
        // By another process, for the same reason.
        let make = "ln \"$0\" phalanx-jobs 2>/dev/null || cp \"$0\" phalanx-jobs";
        let mut command = Command::new("sh");
        command.current_dir(&bin).args(["-c", make]);
        assert!(command.arg(&self.program).status().unwrap().success());
        self.program = bin.join("phalanx-jobs");
        self
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.folder.join("root")
    }

    /// Does something while the log of a job is as one on a disk that is full: a folder that cannot be written as a file.
    pub(crate) fn without_log(&self, name: &str, meanwhile: impl FnOnce()) {
        let job = self.root().join("jobs").join(name);
        let (log, aside) = (job.join("events.log"), job.join("aside"));
        fs::rename(&log, &aside).unwrap();
        fs::create_dir(&log).unwrap();
        meanwhile();
        fs::remove_dir(&log).unwrap();
        fs::rename(&aside, &log).unwrap();
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .current_dir(&self.folder)
            .env("PHALANX_JOBS_DIR", self.root())
            .env("PHALANX_JOBS_CPUS", self.cpus.to_string());
        if let Some(gpus) = self.gpus {
            command
                .env("PHALANX_JOBS_GPUS", gpus)
                .env_remove("CUDA_VISIBLE_DEVICES")
                .env_remove("CUDA_DEVICE_ORDER");
        }
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Output {
        self.command().args(args).output().unwrap()
    }

    /// Runs a command that succeeds; gives what it prints.
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a command that does not; gives its exit code and what it says.
    pub(crate) fn fails(&self, args: &[&str]) -> (i32, String) {
        let output = self.run(args);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{args:?}: {error}");
        (output.status.code().unwrap(), error)
    }

    /// Submits a job of a shell script, with options.
    pub(crate) fn script(&self, name: &str, options: &[&str], script: &str) {
        let start = ["submit", "training", name];
        let end = ["--", "sh", "-c", script];
        self.ok(&[&start, options, &end].concat());
    }

    pub(crate) fn job(&self, name: &str) -> Json {
        serde_json::from_str(&self.ok(&["describe", name, "--format", "json"])).unwrap()
    }

    /// Waits until `done` takes the job.
    pub(crate) fn until(&self, name: &str, done: impl Fn(&Json) -> bool) -> Json {
        let until = Instant::now() + PATIENCE;
        loop {
            let job = self.job(name);
            if done(&job) {
                return job;
            }
            assert!(Instant::now() < until, "{job:#}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits for the end of a job.
    pub(crate) fn end(&self, name: &str) -> Json {
        self.until(name, |job| job["endTime"].is_string())
    }

    /// Waits until a job has this state.
    pub(crate) fn state(&self, name: &str, state: &str) -> Json {
        self.until(name, |job| {
            assert!(job["state"] == state || job["endTime"].is_null(), "{job:#}");
            job["state"] == state
        })
    }

    /// The processes of all jobs, by what they have in PHALANX_JOB_DIR or in their words.
    pub(crate) fn processes(&self) -> Vec<String> {
        let folder = self.folder.display().to_string();
        let own = std::process::id().to_string();
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let of = |path: &Path| {
            let words = fs::read(path.join("cmdline")).ok()?;
            let environment = fs::read(path.join("environ")).unwrap_or_default();
            let both = [words.as_slice(), environment.as_slice()].concat();
            let ours = String::from_utf8_lossy(&both).contains(&folder);
            ours.then(|| format!("{} {}", path.display(), String::from_utf8_lossy(&words)))
        };
        entries
            .filter(|entry| entry.file_name().to_string_lossy().parse::<u32>().is_ok())
            .filter(|entry| entry.file_name().to_string_lossy() != own)
            .filter_map(|entry| of(&entry.path()))
            .collect()
    }

    /// The number of the daemon's process.
    pub(crate) fn daemon(&self) -> Option<i32> {
        let text = fs::read(self.root().join("daemon.json")).ok()?;
        let json: Json = serde_json::from_slice(&text).ok()?;
        json["pid"].as_i64().map(|pid| pid as i32)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let until = Instant::now() + Duration::from_secs(20);
        if !std::thread::panicking() {
            for job in fs::read_dir(self.root().join("jobs"))
                .into_iter()
                .flatten()
                .flatten()
            {
                let _ = self.run(&["cancel", &job.file_name().to_string_lossy()]);
            }
        }
        // Whatever is left is ended here: first the daemon, so that it starts nothing.
        while Instant::now() < until {
            let left = self.processes();
            if left.is_empty() {
                break;
            }
            for process in left {
                let number = process
                    .split(['/', ' '])
                    .nth(2)
                    .and_then(|number| number.parse().ok());
                if let Some(pid) = number.and_then(rustix::process::Pid::from_raw) {
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                }
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Where the daemon listens, and its token.
pub(crate) fn daemon(service: &Service) -> (String, String) {
    service.ok(&["list"]);
    let text = fs::read(service.root().join("daemon.json")).unwrap();
    let json: Json = serde_json::from_slice(&text).unwrap();
    let token = fs::read_to_string(service.root().join("token")).unwrap();
    (json["address"].as_str().unwrap().to_owned(), token)
}

/// The status of a request, and all of the answer.
pub(crate) fn ask(
    address: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut text =
        format!("{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: 0\r\n");
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    stream.write_all((text + "\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    (status.unwrap_or_else(|| panic!("{answer}")), answer)
}
