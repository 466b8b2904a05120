//! How long two workers take from the start of their launcher to the end of the first step; a part of `cargo xtask bench multiworker`.

use std::fmt::Write;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Deserialize;

use super::peer::Peer;
use super::table::OURS;
use super::{BUILD_LIMIT, ROUND_LIMIT};
use crate::process::run;
use crate::workspace::Workspace;

const WORKERS: &str = "2";
const MODEL: [&str; 2] = ["mlp", "64"];

/// What the first worker says.
#[derive(Deserialize)]
struct FirstStep {
    framework: String,
    version: String,
    first_step_ms: f64,
}

/// What is known of a launcher.
#[derive(Default)]
struct Starts {
    label: String,
    seconds: Vec<f64>,
    failure: Option<String>,
}

/// A table of ours and the peers that have a launcher of their own. The first start of each does not count: it fills caches.
pub(super) fn table(
    workspace: &Workspace,
    peers: &[Peer],
    rounds: usize,
) -> Result<String, String> {
    let mut build = workspace.cargo();
    build.args([
        "build",
        "--release",
        "--locked",
        "--quiet",
        "--package",
        "phalanx-cli",
    ]);
    let log = workspace.log("bench-build-cli");
    run(&mut build, &log, BUILD_LIMIT)?;
    let known = |peer: &&Peer| [OURS, "torch"].contains(&peer.name);
    let mut all: Vec<(&Peer, Starts)> = peers
        .iter()
        .filter(known)
        .map(|peer| (peer, Starts::default()))
        .collect();
    for round in 0..=rounds {
        for (peer, starts) in &mut all {
            eprintln!("start {round} of {rounds}: {}", peer.name);
            match first_step(workspace, peer) {
                Ok((label, seconds)) => {
                    starts.label = label;
                    starts.seconds.extend((round > 0).then_some(seconds));
                }
                Err(failure) => starts.failure = Some(failure),
            }
        }
    }
    let named = all.iter().map(|(peer, starts)| (peer.name, starts));
    Ok(written(&named.collect::<Vec<_>>()))
}

/// The seconds from the start of the launcher to the end of the first step.
fn first_step(workspace: &Workspace, peer: &Peer) -> Result<(String, f64), String> {
    let log = workspace.log(&format!("bench-start-{}", peer.name));
    let mut command = launcher(workspace, peer);
    let start = SystemTime::now().duration_since(UNIX_EPOCH);
    let start = start.map_err(|error| error.to_string())?;
    let output = run(&mut command, &log, ROUND_LIMIT)?;
    let line = output
        .lines()
        .find_map(|line| line.find('{').map(|at| &line[at..]));
    let line = line.ok_or("no worker said when its first step was done")?;
    let said: FirstStep =
        serde_json::from_str(line).map_err(|error| format!("{error} in {line}"))?;
    let label = format!("{} {}", said.framework, said.version);
    Ok((label, said.first_step_ms / 1e3 - start.as_secs_f64()))
}

fn launcher(workspace: &Workspace, peer: &Peer) -> Command {
    let root = &workspace.root;
    if peer.name == OURS {
        let mut command = Command::new(root.join("target/release/phalanx"));
        command.args(["launch", "--workers", WORKERS, "--logs"]);
        command.arg(workspace.log("bench-start-workers")).arg("--");
        command
            .arg(root.join("target/release/bench-workers"))
            .args(MODEL)
            .arg("first");
        return command;
    }
    // Its Python, which has torchrun as a module.
    let mut command = Command::new(peer.command().get_program());
    command.args(["-m", "torch.distributed.run", "--nproc-per-node", WORKERS]);
    command.arg(root.join("bench/peers/start_torch.py"));
    command.args(MODEL).arg(WORKERS);
    command
}

/// A row a launcher.
fn written(all: &[(&str, &Starts)]) -> String {
    let mut text = format!(
        "## From the launch of {WORKERS} workers to the end of the first step, {} of batch {} for each, warm caches\n\n\
         | framework | seconds | compared |\n|---|---:|---:|\n",
        MODEL[0], MODEL[1]
    );
    let ours = all.iter().find(|(name, _)| *name == OURS);
    let ours = ours.and_then(|(_, starts)| starts.median());
    for (name, starts) in all {
        let compared = match (starts.median(), ours) {
            (Some(theirs), Some(ours)) if *name != OURS => {
                format!("ours takes {:.2}x of it", ours / theirs)
            }
            _ => String::new(),
        };
        let seconds = starts.median();
        let seconds = seconds.map_or("failed".to_owned(), |seconds| format!("{seconds:.2}"));
        let label = if starts.label.is_empty() {
            name
        } else {
            &*starts.label
        };
        // Writing to a string does not fail.
        let _ = writeln!(text, "| {label} | {seconds} | {compared} |");
        if let Some(failure) = &starts.failure {
            eprintln!("{name}: {failure}");
        }
    }
    text
}

impl Starts {
    fn median(&self) -> Option<f64> {
        let mut seconds = self.seconds.clone();
        seconds.sort_by(f64::total_cmp);
        seconds.get(seconds.len() / 2).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_median_and_what_ours_takes_of_it() {
        let starts = |label: &str, seconds: &[f64]| Starts {
            label: label.into(),
            seconds: seconds.to_vec(),
            failure: None,
        };
        let (ours, torch) = (
            starts("phalanx 1", &[0.9, 3.0, 1.0]),
            starts("torch 2", &[4.0]),
        );
        let text = written(&[
            (OURS, &ours),
            ("torch", &torch),
            ("jax", &Starts::default()),
        ]);
        assert!(text.contains("| phalanx 1 | 1.00 |  |"), "{text}");
        assert!(
            text.contains("| torch 2 | 4.00 | ours takes 0.25x of it |"),
            "{text}"
        );
        assert!(text.contains("| jax | failed |  |"), "{text}");
    }
}
