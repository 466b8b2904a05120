//! `cargo xtask bench checkpoints`: 100 MB saved and restored, ours beside other frameworks', and what saving behind the training costs it.
//!
//! Every peer is a program `FOLDER SAVES` that prints a JSON line for each work of each of its ways (`bench/peers/README.md`). They take
//! turns, round by round.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use super::peer::{self, Peer};
use super::table::{OURS, median};
use super::{ROUND_LIMIT, build, machine, parse_options, write};
use crate::process::run;
use crate::workspace::Workspace;

/// Saves of a program in a round.
const SAVES: &str = "5";
/// Steps of an epoch in whose middle a checkpoint is written.
const STEPS: &str = "20";

/// What a program says of one work.
#[derive(Deserialize)]
struct WorkTiming {
    framework: String,
    version: String,
    variant: String,
    work: String,
    median_ms: f64,
}

/// Medians of rounds in milliseconds, by name of the way and work, in order of first appearance.
#[derive(Default)]
struct Timings {
    names: Vec<String>,
    rounds: BTreeMap<(String, String), Vec<f64>>,
}

/// Times ours and what the Pythons have; prints a table, and keeps it in `bench/results` if asked to.
pub(crate) fn checkpoints(arguments: &[&str]) -> Result<(), String> {
    let options = parse_options(arguments)?;
    let workspace = Workspace::load()?;
    build(&workspace)?;
    let peers = peer::all(&workspace, "checkpoints", &options.pythons)?;
    let folder = workspace.root.join("target/bench-checkpoints");
    let cannot = |error| format!("cannot make {}: {error}", folder.display());
    std::fs::create_dir_all(&folder).map_err(cannot)?;
    let rounds = if options.quick { 1 } else { 5 };
    let mut timings = Timings::default();
    for round in 1..=rounds {
        for peer in &peers {
            eprintln!("round {round} of {rounds}: {}", peer.name);
            timings.add(&time(&workspace, peer, &folder, &[SAVES])?)?;
        }
    }
    let mut behind = Timings::default();
    for peer in peers.iter().filter(|peer| peer.name == OURS) {
        for _ in 0..rounds {
            behind.add(&time(&workspace, peer, &folder, &["behind", STEPS])?)?;
        }
    }
    let text = format!("{}\n{}", timings.table(), behind.cost());
    println!("{text}");
    if options.write {
        let machine = machine::description();
        let page = format!(
            "# Checkpoints\n\nWritten by `cargo xtask bench checkpoints --write`: {machine}. 160 variables of 395 x 395, 100 MB of f32, into a \
             folder of this machine's disk; a save is over when every file is on disk, and what it replaces is removed untimed. Medians of {rounds} rounds, in which the \
             programs take turns, of each round's median.\n\n{text}"
        );
        write(&workspace, "checkpoints.md", page.trim_end())?;
    }
    Ok(())
}

fn time(
    workspace: &Workspace,
    peer: &Peer,
    folder: &Path,
    arguments: &[&str],
) -> Result<String, String> {
    let mut command = peer.command();
    command.arg(folder).args(arguments);
    let log = workspace.log(&format!("bench-checkpoints-{}", peer.name));
    run(&mut command, &log, ROUND_LIMIT)
}

impl Timings {
    fn add(&mut self, output: &str) -> Result<(), String> {
        for line in output.lines().filter(|line| line.starts_with('{')) {
            let found: WorkTiming =
                serde_json::from_str(line).map_err(|error| format!("{error} in {line}"))?;
            let name = format!("{} {} {}", found.framework, found.version, found.variant);
            let name = name.trim_end().to_owned();
            if !self.names.contains(&name) {
                self.names.push(name.clone());
            }
            let key = (name, found.work);
            self.rounds.entry(key).or_default().push(found.median_ms);
        }
        Ok(())
    }

    fn median(&self, name: &str, work: &str) -> Option<f64> {
        let key = (name.to_owned(), work.to_owned());
        self.rounds.get(&key).map(|rounds| median(rounds))
    }

    /// A row a way; in brackets how many times ours it takes.
    fn table(&self) -> String {
        let mut text = String::from("| | save, ms | restore, ms |\n|---|---:|---:|\n");
        let ours = self.names.iter().find(|name| name.starts_with(OURS));
        for name in &self.names {
            let shown = |work: &str| {
                let theirs = self.median(name, work);
                let ours = ours.and_then(|ours| self.median(ours, work));
                match (theirs, ours) {
                    (Some(theirs), Some(ours)) if !name.starts_with(OURS) => {
                        format!("{theirs:.0} ({:.2}x)", theirs / ours)
                    }
                    (Some(ms), _) => format!("{ms:.0}"),
                    (None, _) => "failed".into(),
                }
            };
            text += &format!("| {name} | {} | {} |\n", shown("save"), shown("restore"));
        }
        text
    }

    /// What saving behind the training costs, in sentences; nothing where ours did not run.
    fn cost(&self) -> String {
        let of = |work: &str| {
            let ours = self.names.first()?;
            self.median(ours, work)
        };
        let (Some(blocked), Some(copy), Some(with), Some(without)) = (
            of("blocked"),
            of("copy"),
            of("steps with a save"),
            of("steps without"),
        ) else {
            return String::new();
        };
        let cost = with - without;
        let so = match cost >= 1.0 {
            true => format!(
                "so a checkpoint costs {cost:.0} ms: 2 % of the time where one is written every {:.0} s",
                cost / 20.0
            ),
            false => "which is no difference that shows".to_owned(),
        };
        format!(
            "Behind the training a save keeps the steps waiting for {blocked:.1} ms; a copy of 100 MB in memory takes {copy:.1} ms. The same \
             steps take {with:.0} ms with a save written beside them and {without:.0} without, {so}.\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_medians_and_ratios_to_ours() {
        let line = |framework: &str, work: &str, ms: f64| {
            format!(
                "{{\"framework\": \"{framework}\", \"version\": \"1\", \"variant\": \"\", \"work\": \"{work}\", \"median_ms\": {ms}}}\n"
            )
        };
        let mut timings = Timings::default();
        for ms in [10.0, 30.0, 20.0] {
            timings.add(&line(OURS, "save", ms)).unwrap();
        }
        timings.add(&line("tf", "save", 50.0)).unwrap();
        let text = timings.table();
        assert!(text.contains("| phalanx 1 | 20 | failed |"), "{text}");
        assert!(text.contains("| tf 1 | 50 (2.50x) | failed |"), "{text}");
        assert_eq!(timings.cost(), "");
        for (work, ms) in [
            ("blocked", 30.0),
            ("copy", 10.0),
            ("steps with a save", 900.0),
            ("steps without", 800.0),
        ] {
            timings.add(&line(OURS, work, ms)).unwrap();
        }
        assert!(
            timings.cost().contains("costs 100 ms"),
            "{}",
            timings.cost()
        );
    }
}
