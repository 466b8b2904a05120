//! `cargo xtask bench embeddings`: steps that name few rows of a large table of embeddings, ours beside other frameworks'.
//!
//! A step should cost what its rows cost: each program runs with a small and with a large table, in turns. The large tables of several
//! programs do not fit in memory together, so programs follow each other.

use std::fmt::Write;

use super::bench_run::BenchRun;
use super::peer::Peer;
use super::score::Score;
use super::table::{OURS, milliseconds};
use super::{build, machine, parse_options, peer, write};
use crate::workspace::Workspace;

/// Rows of the two tables, for programs and for readers.
const ROWS: [(&str, &str); 2] = [("100000", "100,000"), ("10000000", "10,000,000")];

/// Optimizers, and for each framework its other variants.
const OPTIMIZERS: [&str; 3] = ["sgd", "adagrad", "adam"];
const VARIANTS: [(&str, &str); 1] = [("tf", "v1")];

/// About how long a turn takes.
const TURN_MS: f64 = 200.0;

/// What a program did with each of [`ROWS`].
type Pair = [Score; 2];

/// Times ours and what the Pythons have; prints a table, and keeps it in `bench/results` if asked to.
pub(crate) fn embeddings(arguments: &[&str]) -> Result<(), String> {
    let options = parse_options(arguments)?;
    if !options.only.is_empty() {
        return Err(
            "found --only, which `bench models` takes and `bench embeddings` does not".into(),
        );
    }
    let workspace = Workspace::load()?;
    build(&workspace)?;
    let peers = peer::all(&workspace, "embeddings", &options.pythons)?;
    let rounds = if options.quick { 5 } else { 11 };
    let mut text = String::new();
    for optimizer in OPTIMIZERS {
        let all: Vec<Pair> = peer::variants(&peers, &VARIANTS)
            .map(|(peer, variant)| time(&workspace, peer, optimizer, variant, rounds))
            .collect();
        let found = table(optimizer, &all);
        println!("{found}");
        text += &format!("{found}\n");
    }
    if options.write {
        let what = "Written by `cargo xtask bench embeddings --write`";
        let machine = machine::description();
        let page = format!(
            "# Large tables of embeddings\n\n{what}: {machine}.\nA step names 4096 rows at random, 16 for each of 256 examples, of a table 64 \
             wide; their means go through a dense layer of one unit. Every step has other rows, and ends when its loss is on the host. \
             Medians of {rounds} rounds, in which the two sizes of a program take turns; programs follow each other. Ours \
             and PyTorch's `SparseAdam` leave the rows alone that a step does not name, and so do all with SGD and Adagrad; TensorFlow has no \
             such Adam.\n\n{text}"
        );
        write(&workspace, "embeddings.md", page.trim_end())?;
    }
    Ok(())
}

/// All rounds of a program, with both tables.
fn time(workspace: &Workspace, peer: &Peer, optimizer: &str, variant: &str, rounds: usize) -> Pair {
    let mut runs =
        ROWS.map(|(rows, _)| BenchRun::start(workspace, peer, &[optimizer, rows], variant));
    let steps = runs.each_mut().map(|run| steps_of_turn(run.warm_up(10)));
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}: {} with {optimizer}", peer.name);
        for (run, steps) in runs.iter_mut().zip(steps) {
            run.time_steps(steps);
        }
    }
    runs.map(BenchRun::finish)
}

/// How many steps a turn of a program has that takes this long for one.
pub(super) fn steps_of_turn(step_ms: Option<f64>) -> usize {
    let most = 200.0;
    step_ms.map_or(1, |ms| (TURN_MS / ms).clamp(3.0, most) as usize)
}

/// A row a program: both steps, how much longer one with the larger table takes, how much faster ours is with that.
fn table(optimizer: &str, all: &[Pair]) -> String {
    let mut text = format!(
        "## {optimizer}\n\n| framework | {0} rows | {1} rows | the larger takes | ours is faster by | memory of the larger |\n\
         |---|---:|---:|---:|---:|---:|\n",
        ROWS[0].1, ROWS[1].1
    );
    let large = |pair: &Pair| pair[1].median_ms();
    let ours = all.iter().find(|pair| pair[1].framework == OURS);
    let ours = ours.and_then(large);
    for pair in all {
        let times = pair.each_ref().map(Score::median_ms);
        let shown = pair
            .each_ref()
            .map(|score| score.median_ms().map_or_else(|| score.why(), milliseconds));
        let times_as_long = |of: Option<f64>, than: Option<f64>| match (of, than) {
            (Some(of), Some(than)) => format!("{:.2}x", of / than),
            _ => String::new(),
        };
        let faster = match pair[1].framework.as_str() {
            OURS => String::new(),
            _ => times_as_long(times[1], ours),
        };
        let memory = pair[1]
            .peak_mib
            .map_or(String::new(), |mib| format!("{mib:.0} MiB"));
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {faster} | {memory} |",
            pair[1].label,
            shown[0],
            shown[1],
            times_as_long(times[1], times[0]),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::bench::peer_process::{Hello, PeerFailure, Turn};

    fn score(framework: &str, median_ms: Option<f64>) -> Score {
        let mut score = Score::new(Hello {
            framework: framework.into(),
            version: "1".into(),
            variant: String::new(),
        });
        match median_ms {
            Some(median_ms) => score.add(&Turn {
                median_ms,
                loss: 0.5,
            }),
            None => score.failure = Some(PeerFailure::TimedOut(Duration::from_secs(30))),
        }
        score
    }

    #[test]
    fn both_sizes_are_compared() {
        let of = |framework, small, large| [score(framework, small), score(framework, large)];
        let text = table(
            "sgd",
            &[
                of(OURS, Some(2.0), Some(2.5)),
                of("torch", Some(2.0), Some(5.0)),
                of("tf", Some(2.0), None),
            ],
        );
        assert!(
            text.contains("| 100,000 rows | 10,000,000 rows |"),
            "{text}"
        );
        assert!(
            text.contains("| phalanx 1 | 2.000 ms | 2.500 ms | 1.25x |  |  |"),
            "{text}"
        );
        assert!(
            text.contains("| torch 1 | 2.000 ms | 5.000 ms | 2.50x | 2.00x |  |"),
            "{text}"
        );
        assert!(
            text.contains("| tf 1 | 2.000 ms | > 30 s |  |  |  |"),
            "{text}"
        );
    }
}
