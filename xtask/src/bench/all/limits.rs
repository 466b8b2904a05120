//! `cargo xtask bench limits`: what this machine could do at best, and the part of it that each workload reaches.
//!
//! Rates and bandwidths are measured by `bench/limits.c`; what a step computes and has to move is counted by `bench-models --cost`; its time
//! is in the table that `bench all --write` wrote for this processor.

use std::process::Command;
use std::time::Duration;

use serde::Deserialize;

use super::super::table::milliseconds;
use super::super::{ROUND_LIMIT, build, machine, parse_options};
use super::bars::Processor;
use super::page::{Page, WORKLOADS, with_section};
use super::{Timed, Workload, chosen, workloads};
use crate::process::run;
use crate::workspace::Workspace;

const PAGE: &str = "bench/limits.md";
const COMPILE_LIMIT: Duration = Duration::from_secs(120);
/// A part below this has a reason.
const ENOUGH: f64 = 0.6;
/// Rows of an epoch of `fit`.
const ROWS: f64 = 60_000.0;

const TITLE: &str = "# How far from the machine's limit\n\n\
Written by `cargo xtask bench limits --write`. *Limit*: the longer of the time that the step's products take at the measured rate, and of the time that its \
bytes take at the measured rate of copying, with as many threads as the workload has. FLOPs are counted from our own graph, also those that a kernel \
saves (tiles of 3x3 convolutions have fewer products than they count for). Bytes are the least: variables and what the optimizer carries read and \
written, each layer's output written and read once (forward: variables, batch and outputs). *Part*: the limit, divided by the time in \
[all.md](results/all.md).\n";

/// Why a workload stays below the part that is enough, by the begin of its name.
const REASONS: [(&str, &str); 9] = [
    (
        "resnet50",
        "normalisations, ReLU, additions and pooling move each activation several times, the bytes here count once each way",
    ),
    (
        "replicas_resnet50",
        "as ResNet-50 on one device, and the sum of 94 MB of gradients",
    ),
    (
        "mobilenet_v2",
        "a depthwise convolution has 9 products for each number that it reads: it and the normalisations move activations, several times",
    ),
    (
        "cnn",
        "the first convolution has 9 products for each number that it writes, and pooling and ReLU have none",
    ),
    (
        "replicas_cnn",
        "as the CNN on one device, and the sum of gradients",
    ),
    (
        "transformer",
        "attention's products are narrow (64 columns), and softmax, normalisations and the classes' cross-entropy have few products for their bytes",
    ),
    (
        "mlp",
        "one thread computes a step, of the two that the limit counts; updates pass through the outer caches, and batches come from the host",
    ),
    (
        "lstm",
        "a hundred products follow each other, each small, with its gates between",
    ),
    (
        "gru",
        "a hundred products follow each other, each small, with its gates between; they are XLA's",
    ),
];
/// Of predictions and evaluations.
const FORWARD: &str = "normalisations, ReLU and outputs move activations, whose bytes are not counted here; a small batch has few rows for a product";

/// A line of `bench/limits.c`.
#[derive(Deserialize)]
struct Rate {
    what: String,
    by: String,
    threads: usize,
    /// In GFLOP/s or GB/s.
    rate: f64,
}

/// What `bench-models --cost` counts.
#[derive(Deserialize)]
struct Cost {
    flops: f64,
    bytes: f64,
}

/// Measures, counts and divides; prints the tables, and keeps them in `bench/limits.md` if asked to.
pub(crate) fn limits(arguments: &[&str]) -> Result<(), String> {
    let options = parse_options(arguments)?;
    if options.write && !options.only.is_empty() {
        return Err(
            "found --write and --only, expected one: the page has all workloads that were timed"
                .into(),
        );
    }
    let processor = Processor::of_this_machine();
    let workloads = chosen(workloads(&processor), &options.only)?;
    let workspace = Workspace::load()?;
    build(&workspace)?;
    let rates = measure(&workspace, options.quick)?;
    let page = Page::read(&workspace, &WORKLOADS, &processor)?;
    let mut text = rate_table(&rates);
    text += "\n| workload | GFLOP | MB at least | products | bytes | limit | ours | part | why not more |\n|---|---:|---:|---:|---:|---:|---:|---:|---|\n";
    for workload in &workloads {
        if let Some(ours) = page.milliseconds(&workload.shown) {
            let cost = cost(&workspace, workload)?;
            text += &row(workload, &cost, &rates, ours);
        }
    }
    println!("{text}");
    if options.write {
        let path = workspace.root.join(PAGE);
        let old = std::fs::read_to_string(&path).unwrap_or_default();
        let section = format!(
            "## {}\n\n{}\n\n{text}",
            processor.family,
            machine::description()
        );
        std::fs::write(&path, with_section(TITLE, &old, &section))
            .map_err(|error| format!("cannot write {PAGE}: {error}"))?;
    }
    Ok(())
}

/// Compiles and runs `bench/limits.c`.
fn measure(workspace: &Workspace, quick: bool) -> Result<Vec<Rate>, String> {
    let program = workspace.root.join("target/limits");
    let source = workspace.root.join("bench/limits.c");
    let mut compiler = Command::new("cc");
    compiler
        .args(["-O3", "-pthread"])
        .arg(source)
        .arg("-o")
        .arg(&program);
    run(&mut compiler, &workspace.log("limits-cc"), COMPILE_LIMIT)?;
    let mut measured = Command::new(&program);
    measured.arg(if quick { "0.5" } else { "3" });
    let output = run(&mut measured, &workspace.log("limits"), ROUND_LIMIT)?;
    let read = |line| serde_json::from_str(line).map_err(|error| format!("{error} in {line}"));
    output.lines().map(read).collect()
}

fn rate_table(rates: &[Rate]) -> String {
    let mut text = String::from("| measured | by | 1 thread | 2 threads |\n|---|---|---:|---:|\n");
    for one in rates.iter().filter(|one| one.threads == 1) {
        let (what, unit) = match one.what.as_str() {
            "read" => ("bytes read", "GB/s"),
            "copy" => ("bytes read and written", "GB/s"),
            other => (other, "GFLOP/s"),
        };
        let two = rate(rates, &one.what, 2);
        let two = two.map_or(String::new(), |two| format!("{two:.0} {unit}"));
        text += &format!("| {what} | {} | {:.0} {unit} | {two} |\n", one.by, one.rate);
    }
    text
}

fn rate(rates: &[Rate], what: &str, threads: usize) -> Option<f64> {
    let mut found = rates.iter();
    found
        .find(|one| one.what == what && one.threads == threads)
        .map(|one| one.rate)
}

/// What all steps of a workload compute and move.
fn cost(workspace: &Workspace, workload: &Workload) -> Result<Cost, String> {
    let (model, batch, pass, times) = match &workload.timed {
        Timed::Model(work) => (work.model, work.batch.to_owned(), work.pass(), 1.0),
        Timed::Single(_, work) => {
            let batch: f64 = work.batch.parse().unwrap_or(f64::NAN);
            let steps = match work.model {
                "fit_mlp" => (ROWS / batch).ceil(),
                _ => 1.0,
            };
            ("mlp", work.batch.to_owned(), "train", steps)
        }
        Timed::Replicas(work) => (work.model, work.batch.to_string(), "train", 2.0),
    };
    let mut command = Command::new(workspace.root.join("target/release/bench-models"));
    command.args([model, &batch, "--cost", pass]);
    let output = run(&mut command, &workspace.log("bench-cost"), ROUND_LIMIT)?;
    let line = output.lines().find(|line| line.starts_with('{'));
    let line = line.ok_or_else(|| format!("found no cost of {} in:\n{output}", workload.name))?;
    let one: Cost = serde_json::from_str(line).map_err(|error| format!("{error} in {line}"))?;
    Ok(Cost {
        flops: one.flops * times,
        bytes: one.bytes * times,
    })
}

fn row(workload: &Workload, cost: &Cost, rates: &[Rate], ours: f64) -> String {
    let element = match workload.name.ends_with("_bf16") {
        true => "bf16",
        false => "f32",
    };
    // Products of bf16 are made in f32 where there are no instructions for bf16, or slower ones; with one processor two threads are one.
    let best = |what: &str| rate(rates, what, 2).or_else(|| rate(rates, what, 1));
    let both = [best(element), best("f32")].into_iter().flatten();
    let products = both.fold(f64::NAN, f64::max);
    let of_products = cost.flops / products / 1e6;
    let of_bytes = cost.bytes / best("copy").unwrap_or(f64::NAN) / 1e6;
    let limit = of_products.max(of_bytes);
    let part = limit / ours;
    let reason = match part >= ENOUGH {
        true => "",
        false => reason(&workload.name),
    };
    format!(
        "| {} | {:.3} | {:.1} | {} | {} | {} | {} | {:.0} % | {reason} |\n",
        workload.shown,
        cost.flops / 1e9,
        cost.bytes / 1e6,
        milliseconds(of_products),
        milliseconds(of_bytes),
        milliseconds(limit),
        milliseconds(ours),
        part * 100.0
    )
}

fn reason(name: &str) -> &'static str {
    if name.starts_with("predict_") || name.starts_with("evaluate_") {
        return FORWARD;
    }
    // An epoch and replicas of the MLP are its steps.
    let of_steps = name
        .trim_start_matches("fit_")
        .trim_start_matches("replicas_");
    let find = |name: &str| REASONS.iter().find(|(begin, _)| name.starts_with(begin));
    let found = find(name).or_else(|| find(of_steps));
    found.map_or("not known", |(_, reason)| reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates() -> Vec<Rate> {
        let rate = |what: &str, threads, rate| Rate {
            what: what.into(),
            by: "X".into(),
            threads,
            rate,
        };
        vec![
            rate("f32", 1, 100.0),
            rate("f32", 2, 200.0),
            rate("copy", 1, 10.0),
            rate("copy", 2, 20.0),
        ]
    }

    fn named(name: &str) -> Workload {
        let all = workloads(&Processor::default());
        chosen(all, &[name.to_owned()]).unwrap().swap_remove(0)
    }

    #[test]
    fn the_longer_of_products_and_bytes_is_the_limit() {
        let cost = Cost {
            flops: 2e11,
            bytes: 1e9,
        };
        let found = row(&named("resnet50"), &cost, &rates(), 2000.0);
        assert!(
            found.contains(
                "| 200.000 | 1000.0 | 1000 ms | 50.0 ms | 1000 ms | 2000 ms | 50 % | normalisations"
            ),
            "{found}"
        );
        let without_bf16 = row(&named("resnet50_bf16"), &cost, &rates(), 1250.0);
        assert!(
            without_bf16.contains("| 1250 ms | 80 % |  |"),
            "{without_bf16}"
        );
        let moved = Cost {
            flops: 0.0,
            bytes: 20e9,
        };
        let found = row(&named("cnn"), &moved, &rates(), 1000.0);
        assert!(
            found.contains("| 1000 ms | 1000 ms | 1000 ms | 100 % |"),
            "{found}"
        );
    }

    #[test]
    fn every_workload_has_a_reason() {
        for workload in workloads(&Processor::default()) {
            assert_ne!(reason(&workload.name), "not known", "{}", workload.name);
        }
    }
}
