//! `cargo xtask bench all` (see `all`), `breadth`, `models`, `scaling`, `input`, `checkpoints`, `collectives`, `embeddings`, `jobs`, `parameter-servers`, `recovery` (see there) and `cargo xtask bench single`: whole steps and epochs on one device, ours beside other frameworks'.
//!
//! Every peer is a program `MODEL BATCH BUDGET` that prints a JSON line a result (`bench/peers/README.md`). They take
//! turns, round by round, so that a machine that grows slow is slow for all; a result is the median of its rounds' medians.

mod all;
mod bench_run;
mod checkpoints;
mod collectives;
mod embeddings;
mod input;
mod jobs;
mod machine;
mod models;
mod peer;
mod peer_process;
mod recovery;
mod scaling;
mod score;
mod servers;
mod start;
mod table;

pub(crate) use all::{all, breadth, limits, profile};
pub(crate) use checkpoints::checkpoints;
pub(crate) use collectives::collectives;
pub(crate) use embeddings::embeddings;
pub(crate) use input::input;
pub(crate) use jobs::jobs;
pub(crate) use models::models;
pub(crate) use recovery::recovery;
pub(crate) use scaling::{multiworker, scaling};
pub(crate) use servers::parameter_servers;

use std::time::Duration;

use crate::process::run;
use crate::workspace::Workspace;
use peer::Peer;
use table::Results;

const BUILD_LIMIT: Duration = Duration::from_secs(30 * 60);
/// A round of one peer, with the time to start and to compile.
const ROUND_LIMIT: Duration = Duration::from_secs(600);

/// What is timed.
struct StepBench {
    model: &'static str,
    batch: &'static str,
    shown: &'static str,
    /// Steps or epochs a round, or seconds; `None` leaves the work out of a quick run.
    quick: Option<&'static str>,
    budget: &'static str,
}

const SINGLE: [StepBench; 3] = [
    StepBench {
        model: "mlp",
        batch: "64",
        shown: "a step of an MLP 784-128-10, batch 64",
        quick: Some("1s"),
        budget: "5s",
    },
    StepBench {
        model: "fit_mlp",
        batch: "128",
        shown: "an epoch of it over 60,000 rows, batch 128",
        quick: Some("3"),
        budget: "5",
    },
    StepBench {
        model: "cnn",
        batch: "64",
        shown: "a step of a CNN on 28x28x1, batch 64",
        quick: None,
        budget: "8s",
    },
];

impl StepBench {
    /// What a round gets; `None` where the work is left out.
    const fn budget(&self, quick: bool) -> Option<&'static str> {
        if quick { self.quick } else { Some(self.budget) }
    }
}

/// Options of the command line.
#[derive(Debug, Default, PartialEq)]
struct Options {
    pythons: Vec<String>,
    quick: bool,
    write: bool,
    /// The only works to time, by name; all when there are none.
    only: Vec<String>,
}

/// Times ours and what the Pythons have; prints a table, and keeps it in `bench/results` if asked to.
pub(crate) fn single(arguments: &[&str]) -> Result<(), String> {
    let options = parse_options(arguments)?;
    if !options.only.is_empty() {
        return Err("found --only, which `bench models` takes and `bench single` does not".into());
    }
    let workspace = Workspace::load()?;
    build(&workspace)?;
    let peers = peer::all(&workspace, "single", &options.pythons)?;
    let mut results = Results::default();
    let rounds = if options.quick { 2 } else { 5 };
    for round in 1..=rounds {
        for (index, work) in SINGLE.iter().enumerate() {
            let Some(budget) = work.budget(options.quick) else {
                continue;
            };
            for peer in &peers {
                eprintln!("round {round} of {rounds}: {}, {}", peer.name, work.shown);
                let output = time(&workspace, peer, work, budget)?;
                results.add(index, &output)?;
            }
        }
    }
    let table = results.table(&SINGLE.map(|work| work.shown));
    println!("{table}");
    if options.write {
        let what = "Written by `cargo xtask bench single --write`";
        let machine = machine::description();
        let page = format!("# One device\n\n{what}: {machine}.\n\n{table}");
        write(&workspace, "single.md", &page)?;
    }
    Ok(())
}

/// Keeps a page of results.
fn write(workspace: &Workspace, name: &str, page: &str) -> Result<(), String> {
    let folder = workspace.root.join("bench/results");
    std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::write(folder.join(name), page))
        .map_err(|error| format!("cannot write bench/results/{name}: {error}"))
}

fn parse_options(arguments: &[&str]) -> Result<Options, String> {
    let mut options = Options::default();
    let mut words = arguments.iter();
    while let Some(&word) = words.next() {
        match word {
            "--quick" => options.quick = true,
            "--write" => options.write = true,
            "--python" => {
                let path = words
                    .next()
                    .ok_or("--python needs the path of a Python with torch, tensorflow or jax")?;
                options.pythons.push((*path).to_owned());
            }
            "--only" => {
                let name = words.next().ok_or("--only needs the name of a work")?;
                options.only.push((*name).to_owned());
            }
            word => {
                return Err(format!(
                    "found {word:?}, expected --python PATH, --only NAME, --quick or --write"
                ));
            }
        }
    }
    Ok(options)
}

fn build(workspace: &Workspace) -> Result<(), String> {
    let mut command = workspace.cargo();
    command.args([
        "build",
        "--release",
        "--locked",
        "--quiet",
        "--package",
        "phalanx-bench",
    ]);
    run(&mut command, &workspace.log("bench-build"), BUILD_LIMIT).map(|_| ())
}

fn time(
    workspace: &Workspace,
    peer: &Peer,
    work: &StepBench,
    budget: &str,
) -> Result<String, String> {
    let mut command = peer.command();
    command.args([work.model, work.batch, budget]);
    run(
        &mut command,
        &workspace.log(&format!("bench-{}", peer.name)),
        ROUND_LIMIT,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read() {
        let found = parse_options(&["--python", "/a", "--quick", "--python", "/b"]).unwrap();
        assert_eq!(
            (found.pythons.len(), found.quick, found.write),
            (2, true, false)
        );
        assert_eq!(parse_options(&["--only", "cnn"]).unwrap().only, ["cnn"]);
        assert!(parse_options(&["--only"]).unwrap_err().contains("the name"));
        assert!(
            parse_options(&["--python"])
                .unwrap_err()
                .contains("needs the path")
        );
        assert!(parse_options(&["--fast"]).unwrap_err().contains("--quick"));
    }
}
