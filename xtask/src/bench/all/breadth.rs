//! `cargo xtask bench breadth`: training steps and predictions of small models of many kinds, ours beside other frameworks'.
//!
//! Keras writes the models (`bench/peers/breadth_models.py`) for the time of the run. Ours and TensorFlow load its files; PyTorch's are
//! written by hand. With `--write` each row goes into the table of this machine's processor as soon as it is there; others stay.

use std::path::Path;
use std::process::Command;

use serde::Deserialize;

use super::super::bench_run::BenchRun;
use super::super::embeddings::steps_of_turn;
use super::super::peer::{self, Peer};
use super::super::{ROUND_LIMIT, build, machine, parse_options};
use super::bars::Processor;
use super::page::{Page, Sheet};
use super::row::{self, Measured};
use crate::process::run;
use crate::workspace::Workspace;

/// Other ways to run a framework: its name, and the variant's.
const VARIANTS: [(&str, &str); 2] = [("torch", "compiled"), ("tf", "xla")];

const PAGE: Sheet = Sheet {
    path: "bench/results/breadth.md",
    title: "# Models of many kinds\n\n\
Written by `cargo xtask bench breadth --write`; `--only NAME` renews rows one after another. Small models as Keras writes them, which ours and TensorFlow load \
from its file and PyTorch has by hand ([bench/peers](../peers/README.md)). Medians of rounds in which the programs take turns, as in `bench models`; of each \
peer the fastest variant counts: PyTorch eager (channels-last) and compiled, TensorFlow as a graph and with XLA. `1.55x` means that ours is 1.55 times as fast. \
Each row says how loaded the machine was: the load of the last minute before it, with what it runs itself.\n\n",
    header: "\
| model | training step: Phalanx | PyTorch | TensorFlow | prediction: Phalanx | PyTorch | TensorFlow | rounds, load |
|---|---:|---:|---:|---:|---:|---:|---|
",
    in_readme: false,
};

/// A line of the script that writes the models.
#[derive(Deserialize)]
struct Written {
    /// Where the model is.
    file: String,
    shown: String,
}

/// Times ours and what the Pythons have, model by model; an error at the end names the models of which a program failed.
pub(crate) fn breadth(arguments: &[&str]) -> Result<(), String> {
    let options = parse_options(arguments)?;
    let workspace = Workspace::load()?;
    build(&workspace)?;
    let peers = peer::all(&workspace, "breadth", &options.pythons)?;
    let folder = workspace.root.join("target/bench-breadth");
    let models = write_models(&workspace, &peers, &folder, &options.only)?;
    let mut page = Page::read(&workspace, &PAGE, &Processor::of_this_machine())?;
    let rounds = if options.quick { 2 } else { 5 };
    let mut incomplete = Vec::new();
    for model in &models {
        let load = machine::load().unwrap_or_default();
        let works = ["train", "predict"].map(|work| time(&workspace, &peers, model, work, rounds));
        let row = text(&model.shown, &works, &format!("{rounds}, {load}"));
        println!("{row}");
        if !works.iter().all(Measured::is_complete) {
            incomplete.push(model.shown.as_str());
        }
        for measured in &works {
            page.add(&row, &measured.scores);
        }
        if options.write {
            page.write(&workspace)?;
        }
    }
    std::fs::remove_dir_all(&folder)
        .map_err(|error| format!("cannot remove {}: {error}", folder.display()))?;
    match incomplete.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "programs failed at {}; see target/xtask/bench-*.log",
            incomplete.join("; ")
        )),
    }
}

/// Has Keras write the models, or those named.
fn write_models(
    workspace: &Workspace,
    peers: &[Peer],
    folder: &Path,
    only: &[String],
) -> Result<Vec<Written>, String> {
    let keras = peers.iter().find(|peer| peer.name == "tf").ok_or(
        "found no Python with tensorflow, which writes the models; name one with --python PATH",
    )?;
    let mut command = Command::new(&keras.program);
    let script = workspace.root.join("bench/peers/breadth_models.py");
    command.arg(script).arg(folder).args(only);
    let output = run(&mut command, &workspace.log("bench-breadth"), ROUND_LIMIT)?;
    parse_models(&output)
}

fn parse_models(output: &str) -> Result<Vec<Written>, String> {
    let lines = output.lines().filter(|line| line.starts_with('{'));
    let read =
        |line| serde_json::from_str(line).map_err(|why| format!("cannot read {line}: {why}"));
    lines.map(read).collect()
}

/// All rounds of a work on a model.
fn time(
    workspace: &Workspace,
    peers: &[Peer],
    model: &Written,
    work: &str,
    rounds: usize,
) -> Measured {
    let mut runs: Vec<(BenchRun, usize)> = peer::variants(peers, &VARIANTS)
        .map(|(peer, variant)| {
            let mut run = BenchRun::start(workspace, peer, &[&model.file, work], variant);
            let steps = steps_of_turn(run.warm_up(1));
            // Short steps take a while to reach their pace.
            run.warm_up(steps);
            (run, steps)
        })
        .collect();
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}: {work}, {}", model.shown);
        for (run, steps) in &mut runs {
            run.time_steps(*steps);
        }
    }
    Measured {
        scores: runs.into_iter().map(|(run, _)| run.finish()).collect(),
        ..Measured::default()
    }
}

fn text(shown: &str, works: &[Measured], rounds: &str) -> String {
    let cells = |measured: &Measured| {
        let peers = ["torch", "tf"].map(|framework| row::peer(measured, framework));
        format!("{} | {}", row::ours(measured), peers.join(" | "))
    };
    let cells: Vec<String> = works.iter().map(cells).collect();
    format!("| {shown} | {} | {rounds} |", cells.join(" | "))
}

#[cfg(test)]
mod tests {
    use super::super::super::peer_process::{Hello, Turn};
    use super::super::super::score::Score;
    use super::*;

    fn measured(all: &[(&str, &str, f64)]) -> Measured {
        let score = |&(framework, variant, median_ms): &(&str, &str, f64)| {
            let mut score = Score::new(Hello {
                framework: framework.into(),
                version: "1".into(),
                variant: variant.into(),
            });
            let loss = 0.5;
            score.add(&Turn { median_ms, loss });
            score
        };
        Measured {
            scores: all.iter().map(score).collect(),
            ..Measured::default()
        }
    }

    #[test]
    fn a_row_has_the_best_variant_of_each_peer_in_both_works() {
        let train = measured(&[
            ("phalanx", "", 2.0),
            ("torch", "", 5.0),
            ("torch", "compiled", 4.0),
            ("tf", "", 1.0),
            ("tf", "xla", 3.0),
        ]);
        let predict = measured(&[("phalanx", "", 1.0), ("tf", "xla", 1.5)]);
        let found = text("a: A, batch 8", &[train, predict], "5, 0.1");
        let ours = "| a: A, batch 8 | 2.000 ms | 4.000 ms compiled, 2.00x | 1.000 ms, 0.50x ";
        let rest = "| 1.000 ms |  | 1.500 ms xla, 1.50x | 5, 0.1 |";
        assert_eq!(found, format!("{ours}{rest}"));
    }

    #[test]
    fn models_are_read_from_the_lines_of_the_script() {
        let found = parse_models("noise\n{\"file\": \"/a.keras\", \"shown\": \"a\"}\n").unwrap();
        assert_eq!((found[0].file.as_str(), found.len()), ("/a.keras", 1));
        let bad = parse_models("{\"file\": 1}").err().unwrap();
        assert!(bad.contains("cannot read {\"file\": 1}"), "{bad}");
    }
}
