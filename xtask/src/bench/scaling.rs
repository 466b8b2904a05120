//! `cargo xtask bench scaling` and `multiworker`: one replica on one processor and two on two, and ours beside other frameworks'. Two replicas
//! are in one process, or in a process each.
//!
//! Processors may share more than a program sees: caches, memory, the units of one core. So two programs of one replica each, which
//! exchange nothing, run at once, too: what they do is the most that two replicas could.
//!
//! Every replica has a batch of the same size. The programs take their turns as in `bench models`.

use std::fmt::Write;

use super::bench_run::BenchRun;
use super::peer::{self, Peer};
use super::peer_process::{Hello, Turn};
use super::score::Score;
use super::table::OURS;
use super::{build, machine, parse_options, start, write};
use crate::workspace::Workspace;

const REPLICAS: usize = 2;
/// The framework of two programs of ours that exchange nothing.
const APART: &str = "phalanx, two programs";

/// What is timed.
pub(super) struct ScalingCase {
    pub(super) model: &'static str,
    /// Of each replica.
    pub(super) batch: usize,
    pub(super) shown: &'static str,
    /// Steps of a turn: about a second, so that threads have found their processors for most of it.
    steps: usize,
}

pub(super) const WORKS: [ScalingCase; 4] = [
    ScalingCase {
        model: "mlp",
        batch: 64,
        shown: "MLP 784-128-10",
        steps: 2000,
    },
    ScalingCase {
        model: "mlp",
        batch: 512,
        shown: "MLP 784-128-10",
        steps: 300,
    },
    ScalingCase {
        model: "cnn",
        batch: 128,
        shown: "CNN, 28x28",
        steps: 12,
    },
    ScalingCase {
        model: "resnet50",
        batch: 8,
        shown: "ResNet-50, 224x224",
        steps: 1,
    },
];

/// Where two replicas run, and the programs that time them there.
struct Place {
    /// The family of programs.
    family: &'static str,
    command: &'static str,
    page: &'static str,
    title: &'static str,
    each: &'static str,
    /// Whether two programs that exchange nothing are timed beside two replicas.
    apart: bool,
}

/// Times replicas in one process.
pub(crate) fn scaling(arguments: &[&str]) -> Result<(), String> {
    let place = Place {
        family: "scaling",
        command: "scaling",
        page: "scaling.md",
        title: "Replicas",
        each: "Every replica has one processor",
        apart: true,
    };
    time_place(&place, arguments)
}

/// Times worker processes.
pub(crate) fn multiworker(arguments: &[&str]) -> Result<(), String> {
    let place = Place {
        family: "workers",
        command: "multiworker",
        page: "multiworker.md",
        title: "Workers",
        each: "Every worker is a process with one processor",
        apart: false,
    };
    time_place(&place, arguments)
}

/// Times ours and what the Pythons have; prints a table, and keeps it in `bench/results` if asked to.
fn time_place(place: &Place, arguments: &[&str]) -> Result<(), String> {
    let options = parse_options(arguments)?;
    let works = chosen(&options.only)?;
    let workspace = Workspace::load()?;
    build(&workspace)?;
    let peers = peer::all(&workspace, place.family, &options.pythons)?;
    let rounds = if options.quick { 2 } else { 5 };
    let mut text = String::new();
    for work in works {
        let found = table(
            work,
            &time_all(&workspace, work, &peers, rounds, place.apart),
        );
        println!("{found}");
        text += &format!("{found}\n");
    }
    if place.family == "workers" {
        let found = start::table(&workspace, &peers, rounds)?;
        println!("{found}");
        text += &format!("{found}\n");
    }
    if options.write {
        let machine = machine::description();
        let page = format!(
            "# {}\n\nWritten by `cargo xtask bench {} --write`: {machine}. {} and \
             a batch of the same size. Medians of {rounds} rounds, in which the programs take turns; a step's time is \
             that of its turn, at whose end the loss is on the host, divided by the turn's steps; a turn of each before the \
             first round does not count.\n\n{text}",
            place.title, place.command, place.each
        );
        write(&workspace, place.page, page.trim_end())?;
    }
    Ok(())
}

fn chosen(only: &[String]) -> Result<Vec<&'static ScalingCase>, String> {
    if let Some(unknown) = only
        .iter()
        .find(|name| WORKS.iter().all(|work| work.model != **name))
    {
        return Err(format!(
            "found no work {unknown:?}, expected mlp, cnn or resnet50"
        ));
    }
    let is_chosen =
        |work: &&ScalingCase| only.is_empty() || only.iter().any(|name| name == work.model);
    Ok(WORKS.iter().filter(is_chosen).collect())
}

impl ScalingCase {
    /// A program of this work after its first steps.
    pub(super) fn start(&self, workspace: &Workspace, peer: &Peer, replicas: usize) -> BenchRun {
        let (batch, replicas) = (self.batch.to_string(), replicas.to_string());
        BenchRun::start(workspace, peer, &[self.model, &batch, &replicas], "")
    }

    /// Programs of ours with one replica, each on a processor of its own, after their first steps.
    fn start_apart(&self, workspace: &Workspace, ours: &Peer) -> [BenchRun; REPLICAS] {
        let batch = self.batch.to_string();
        std::array::from_fn(|processor| {
            let arguments = [self.model, &batch, "1", &processor.to_string()];
            BenchRun::start(workspace, ours, &arguments, "")
        })
    }
}

/// Has programs take steps at once; the time of a step of one that does the work of all, if none failed.
fn time_at_once(runs: &mut [BenchRun], steps: usize) -> Option<f64> {
    let times: Vec<Option<f64>> = std::thread::scope(|scope| {
        let runs = runs.iter_mut();
        let threads: Vec<_> = runs
            .map(|run| scope.spawn(move || run.warm_up(steps)))
            .collect();
        let times = threads.into_iter().map(|thread| thread.join().ok()?);
        times.collect()
    });
    let rates: Option<Vec<f64>> = times.into_iter().map(|ms| Some(1.0 / ms?)).collect();
    let rates = rates?;
    Some(rates.len() as f64 / rates.iter().sum::<f64>())
}

/// All rounds of a work: each program's number of replicas and score, and two programs at once where they are asked for.
pub(super) fn time_all(
    workspace: &Workspace,
    work: &ScalingCase,
    peers: &[Peer],
    rounds: usize,
    apart: bool,
) -> Vec<(usize, Score)> {
    let run = |peer: &Peer, replicas: usize| {
        let mut run = work.start(workspace, peer, replicas);
        run.score.units = (work.batch * replicas) as f64;
        (replicas, run)
    };
    let ours = peers.iter().find(|one| one.name == OURS);
    let mut runs: Vec<(usize, BenchRun)> = ours.map(|ours| run(ours, 1)).into_iter().collect();
    runs.extend(peers.iter().map(|one| run(one, REPLICAS)));
    let mut pair = ours
        .filter(|_| apart)
        .map(|ours| work.start_apart(workspace, ours));
    let mut pair_score = Score::new(Hello {
        framework: APART.to_owned(),
        ..Hello::default()
    });
    pair_score.units = (work.batch * REPLICAS) as f64;
    for (_, run) in &mut runs {
        run.warm_up(work.steps);
    }
    let mut time_pair = || time_at_once(pair.as_mut()?, work.steps);
    time_pair();
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}: {}", work.shown);
        for (_, run) in &mut runs {
            run.time_steps(work.steps);
        }
        if let Some(median_ms) = time_pair() {
            let loss = f64::NAN;
            pair_score.add(&Turn { median_ms, loss });
        }
    }
    let finished = |(replicas, run): (usize, BenchRun)| (replicas, run.finish());
    let scores = runs.into_iter().map(finished);
    let pair_score = pair.map(|_| (REPLICAS, pair_score));
    scores.chain(pair_score).collect()
}

/// How many times the work of one replica ours does with all of them.
pub(super) fn gain(scores: &[(usize, Score)]) -> Option<f64> {
    Some(rate_of(scores, OURS, REPLICAS)? / rate_of(scores, OURS, 1)?)
}

/// How many times the work of one replica two programs do that exchange nothing.
pub(super) fn gain_apart(scores: &[(usize, Score)]) -> Option<f64> {
    Some(rate_of(scores, APART, REPLICAS)? / rate_of(scores, OURS, 1)?)
}

/// The scores of both replicas together; one replica alone, and two programs, are what they are compared with.
pub(super) fn of_replicas(scores: Vec<(usize, Score)>) -> Vec<Score> {
    let both = |(replicas, score): &(usize, Score)| *replicas > 1 && score.framework != APART;
    let scores = scores.into_iter().filter(both);
    scores.map(|(_, score)| score).collect()
}

fn rate_of(scores: &[(usize, Score)], framework: &str, count: usize) -> Option<f64> {
    let is_it =
        |(replicas, score): &&(usize, Score)| *replicas == count && score.framework == framework;
    scores.iter().find(is_it).and_then(|(_, score)| rate(score))
}

/// A row a program: a step, examples a second, and what is to be compared.
fn table(work: &ScalingCase, scores: &[(usize, Score)]) -> String {
    let mut text = format!(
        "## {}, batch {} for each replica, f32\n\n\
         | framework | replicas | step | rounds | examples | compared |\n|---|---:|---:|---:|---:|---:|\n",
        work.shown, work.batch
    );
    let is_ours = |score: &Score| [OURS, APART].contains(&score.framework.as_str());
    let one = rate_of(scores, OURS, 1);
    let two = rate_of(scores, OURS, REPLICAS);
    for (replicas, score) in scores {
        let compared = match (rate(score), one, two) {
            (Some(rate), Some(one), _) if is_ours(score) && *replicas > 1 => {
                format!("{:.2}x one replica", rate / one)
            }
            (Some(theirs), _, Some(two)) if !is_ours(score) => {
                format!("ours has {:.2}x", two / theirs)
            }
            _ => String::new(),
        };
        let (label, time) = (&score.label, score.time());
        // Writing to a string does not fail.
        let _ = writeln!(text, "| {label} | {replicas} | {time} | {compared} |");
    }
    text
}

/// Examples a second.
fn rate(score: &Score) -> Option<f64> {
    score.median_ms().map(|ms| score.units * 1e3 / ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn score(framework: &str, replicas: usize, median_ms: f64) -> (usize, Score) {
        let mut score = Score::new(Hello {
            framework: framework.into(),
            version: "1".into(),
            variant: String::new(),
        });
        score.add(&Turn {
            median_ms,
            loss: 1.0,
        });
        score.units = (64 * replicas) as f64;
        (replicas, score)
    }

    #[test]
    fn rates_count_the_examples_of_all_replicas() {
        let scores = [
            score(OURS, 1, 100.0),
            score(OURS, 2, 125.0),
            score("tf", 2, 250.0),
            score(APART, 2, 110.0),
        ];
        let text = table(&WORKS[0], &scores);
        assert_eq!(gain(&scores), Some(1.6));
        assert!(gain_apart(&scores).is_some_and(|gain| (gain - 2.0 / 1.1).abs() < 1e-9));
        assert!(text.contains("| 640 /s |  |"), "{text}");
        assert!(text.contains("| 1024 /s | 1.60x one replica |"), "{text}");
        assert!(text.contains("| 512 /s | ours has 2.00x |"), "{text}");
        assert!(text.contains("| 1164 /s | 1.82x one replica |"), "{text}");
        let labels: Vec<String> = of_replicas(scores.into())
            .into_iter()
            .map(|score| score.framework)
            .collect();
        assert_eq!(labels, [OURS, "tf"]);
    }

    #[test]
    fn works_are_chosen_by_model() {
        assert_eq!(chosen(&["mlp".to_owned()]).unwrap().len(), 2);
        assert!(chosen(&["vgg".to_owned()]).err().unwrap().contains("vgg"));
    }
}
