//! `cargo xtask bench collectives`: all-reduces between processes of this machine, ours beside gloo's, TensorFlow's and MPI's.
//!
//! Every peer is a program `RANKS VARIANT` that prints a JSON line a size (`bench/peers/README.md`). They take turns, round by round.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use serde::Deserialize;

use super::peer::{self, Peer};
use super::table::median;
use super::{ROUND_LIMIT, build, machine, parse_options, write};
use crate::process::run;
use crate::workspace::Workspace;

const RANKS: [usize; 2] = [2, 4];

/// One way to all-reduce.
struct Way {
    /// As in the table's first column, with the version that it says.
    name: String,
    command: Box<dyn Fn(usize) -> Command>,
}

/// What a program says of one size.
#[derive(Deserialize)]
struct SizeTiming {
    version: String,
    bytes: usize,
    median_us: f64,
}

/// Medians of rounds, in microseconds, by size.
#[derive(Default)]
struct Times {
    version: String,
    rounds: BTreeMap<usize, Vec<f64>>,
    failure: Option<String>,
}

/// Times ours and what is installed; prints a table, and keeps it in `bench/results` if asked to.
pub(crate) fn collectives(arguments: &[&str]) -> Result<(), String> {
    let options = parse_options(arguments)?;
    let workspace = Workspace::load()?;
    build(&workspace)?;
    let ways = ways(&workspace, &options.pythons)?;
    let rounds = if options.quick { 1 } else { 5 };
    let mut text = String::new();
    for ranks in RANKS {
        let table = time_all(&workspace, &ways, ranks, rounds);
        println!("{table}");
        text += &format!("{table}\n");
    }
    if options.write {
        let machine = machine::description();
        let page = format!(
            "# Collectives\n\nWritten by `cargo xtask bench collectives --write`: {machine}. Sums of f32 in place, over processes of \
             this machine; where there are enough processors each rank has its own. Microseconds: medians of {rounds} rounds, in \
             which the programs take turns, of each round's median. In brackets how many times ours over the same transport it takes \
             (shared memory for MPI's own).\n\n{text}"
        );
        write(&workspace, "collectives.md", page.trim_end())?;
    }
    Ok(())
}

fn ways(workspace: &Workspace, pythons: &[String]) -> Result<Vec<Way>, String> {
    let mut ways = Vec::new();
    for peer in peer::all(workspace, "collectives", pythons)? {
        match peer.name {
            "phalanx" => {
                let program = workspace.root.join("target/release/bench-collectives");
                ways.push(ours(program.clone(), "shared"));
                ways.push(ours(program, "tcp"));
            }
            _ => ways.push(script(peer)),
        }
    }
    match mpi(workspace) {
        Ok(program) => ways.extend([
            mpirun(program.clone(), "shared", &[]),
            mpirun(
                program,
                "tcp",
                &[
                    "--mca",
                    "btl",
                    "tcp,self",
                    "--mca",
                    "btl_tcp_if_include",
                    "lo",
                ],
            ),
        ]),
        Err(reason) => eprintln!("mpi is left out: {reason}"),
    }
    Ok(ways)
}

fn ours(program: PathBuf, variant: &'static str) -> Way {
    Way {
        name: format!("phalanx {variant}"),
        command: Box::new(move |ranks| {
            let mut command = Command::new(&program);
            command.args([&ranks.to_string(), variant]);
            command
        }),
    }
}

fn script(peer: Peer) -> Way {
    Way {
        name: format!("{} tcp", peer.name),
        command: Box::new(move |ranks| {
            let mut command = peer.command();
            command.arg(ranks.to_string());
            command
        }),
    }
}

/// Compiles the program for MPI.
fn mpi(workspace: &Workspace) -> Result<PathBuf, String> {
    let program = workspace.root.join("target/bench-collectives-mpi");
    let mut command = Command::new("mpicc");
    command
        .arg("-O2")
        .arg(workspace.root.join("bench/peers/collectives.c"));
    command.arg("-o").arg(&program);
    run(&mut command, &workspace.log("bench-mpicc"), ROUND_LIMIT)?;
    Ok(program)
}

fn mpirun(program: PathBuf, variant: &'static str, options: &'static [&str]) -> Way {
    Way {
        name: format!("mpi {variant}"),
        command: Box::new(move |ranks| {
            let mut command = Command::new("mpirun");
            // It refuses to run as root, as which containers do.
            command.env("OMPI_ALLOW_RUN_AS_ROOT", "1");
            command.env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
            command.arg("--oversubscribe").args(options);
            command
                .args(["-n", &ranks.to_string()])
                .arg(&program)
                .arg(variant);
            command
        }),
    }
}

fn time_all(workspace: &Workspace, ways: &[Way], ranks: usize, rounds: usize) -> String {
    let mut all: Vec<Times> = ways.iter().map(|_| Times::default()).collect();
    for round in 1..=rounds {
        for (way, times) in ways.iter().zip(&mut all) {
            eprintln!("round {round} of {rounds}: {}, {ranks} ranks", way.name);
            let log = workspace.log(&format!("bench-{}", way.name.replace(' ', "-")));
            match run(&mut (way.command)(ranks), &log, ROUND_LIMIT) {
                Ok(output) => times.add(&output),
                Err(failure) => times.failure = Some(failure),
            }
        }
    }
    let named = ways.iter().map(|way| way.name.as_str());
    table(ranks, &named.zip(&all).collect::<Vec<_>>())
}

impl Times {
    fn add(&mut self, output: &str) {
        for line in output.lines().filter(|line| line.starts_with('{')) {
            match serde_json::from_str::<SizeTiming>(line) {
                Ok(line) => {
                    self.version = line.version;
                    self.rounds
                        .entry(line.bytes)
                        .or_default()
                        .push(line.median_us);
                }
                Err(error) => self.failure = Some(format!("{error} in {line}")),
            }
        }
    }

    fn median(&self, bytes: usize) -> Option<f64> {
        self.rounds.get(&bytes).map(|rounds| median(rounds))
    }
}

/// A row a way; sizes are the columns.
fn table(ranks: usize, all: &[(&str, &Times)]) -> String {
    let sizes: Vec<usize> = all.first().map_or(Vec::new(), |(_, times)| {
        times.rounds.keys().copied().collect()
    });
    let mut text = format!("## {ranks} processes\n\n| |");
    text.extend(sizes.iter().map(|&bytes| format!(" {} |", shown(bytes))));
    text += "\n|---|";
    text.extend(sizes.iter().map(|_| "---:|"));
    for (name, times) in all {
        let (framework, variant) = name.split_once(' ').unwrap_or((name, ""));
        text += &format!("\n| {framework} {}, {variant} |", times.version);
        let same = format!("phalanx {variant}");
        let ours = all
            .iter()
            .find(|(name, _)| *name == same)
            .map(|(_, times)| times);
        for &bytes in &sizes {
            text += &match (
                times.median(bytes),
                ours.and_then(|ours| ours.median(bytes)),
            ) {
                (Some(theirs), Some(ours)) if framework != "phalanx" => {
                    format!(" {theirs:.1} ({:.1}x) |", theirs / ours)
                }
                (Some(us), _) => format!(" {us:.1} |"),
                (None, _) => " failed |".into(),
            };
        }
        if let Some(failure) = &times.failure {
            eprintln!("{name}: {failure}");
        }
    }
    text + "\n"
}

fn shown(bytes: usize) -> String {
    match bytes {
        bytes if bytes >= 1 << 20 => format!("{} MB", bytes >> 20),
        bytes => format!("{} KB", bytes >> 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_median_and_the_ratio_to_ours() {
        let line =
            |us: f64| format!("{{\"version\": \"1\", \"bytes\": 1024, \"median_us\": {us}}}\n");
        let times = |rounds: &[f64]| {
            let mut times = Times::default();
            rounds.iter().for_each(|&us| times.add(&line(us)));
            times
        };
        let (ours, theirs) = (times(&[3.0, 1.0, 2.0]), times(&[9.0, 5.0, 1000.0]));
        let text = table(2, &[("phalanx tcp", &ours), ("mpi tcp", &theirs)]);
        assert!(text.contains("| phalanx 1, tcp | 2.0 |"), "{text}");
        assert!(text.contains("| mpi 1, tcp | 9.0 (4.5x) |"), "{text}");
    }
}
