//! `cargo xtask bench parameter-servers`: a slow worker among three in each mode, and, beside TensorFlow's ParameterServerStrategy where
//! a Python given has it, steps a second and the time to the first step.

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Options, build, machine, parse_options, write};
use crate::process::run;
use crate::workspace::Workspace;

const LIMIT: Duration = Duration::from_secs(300);
/// The time of a row where workers are to be compared, whatever else the machine does.
const ROW_MS: f64 = 2.0;
/// The same where each worker has a share of a processor, and that share in percent: less than a processor for all workers and the server.
const ROW_MS_OF_SHARE: f64 = 1.0;
const SHARE: f64 = 20.0;

/// A training of the table of slow workers.
struct Slowed {
    name: &'static str,
    mode: &'static str,
    backup_workers: u32,
    workers: u32,
    slowed: u32,
    /// What it is compared with, by position, and how much of that it is to keep.
    compared: Option<(usize, f64)>,
}

const fn slowed(name: &'static str, mode: &'static str, workers: u32, slowed: u32) -> Slowed {
    Slowed {
        name,
        mode,
        backup_workers: 0,
        workers,
        slowed,
        compared: None,
    }
}

const SLOWED: [Slowed; 6] = [
    slowed("async, two workers alone", "async", 2, 1),
    Slowed {
        compared: Some((0, 0.8)),
        ..slowed("async, a third worker 10 times slower", "async", 3, 10)
    },
    Slowed {
        backup_workers: 1,
        ..slowed(
            "sync with a backup worker, three equal workers",
            "sync",
            3,
            1,
        )
    },
    Slowed {
        backup_workers: 1,
        compared: Some((2, 0.85)),
        ..slowed(
            "sync with a backup worker, one 10 times slower",
            "sync",
            3,
            10,
        )
    },
    slowed("sync, three equal workers", "sync", 3, 1),
    Slowed {
        compared: Some((4, 0.0)),
        ..slowed("sync, one 10 times slower", "sync", 3, 10)
    },
];

/// The trainings of the picture, by their positions, and their names there.
const CURVES: [(usize, &str); 3] = [(1, "async"), (3, "sync, 1 backup"), (5, "sync")];

/// Runs all and prints tables; `--write` keeps them and the picture.
pub(crate) fn parameter_servers(arguments: &[&str]) -> Result<(), String> {
    let options = parse_options(arguments)?;
    let workspace = Workspace::load()?;
    build(&workspace)?;
    let (mut page, curves) = slow_workers(&workspace, &options)?;
    for python in &options.pythons {
        page.push_str(&beside_tensorflow(&workspace, python, options.quick)?);
    }
    println!("{page}");
    if options.write {
        let what = "Written by `cargo xtask bench parameter-servers --write`";
        let machine = machine::description();
        let page = format!(
            "# Parameter servers\n\n{what}: {machine}, load {}.\n\n{page}",
            load()
        );
        write(&workspace, "parameter-servers.md", &page)?;
        let svg = ours(&workspace, &json!({ "plot": curves }), "plot")?;
        let path = workspace.root.join("docs/stragglers.svg");
        std::fs::write(&path, svg).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or("unknown").to_owned()
}

/// What `bench-servers` prints for a plan.
fn ours(workspace: &Workspace, plan: &Value, log: &str) -> Result<String, String> {
    let program = workspace.root.join("target/release/bench-servers");
    let mut command = Command::new(program);
    let log = workspace.log(&format!("bench-servers-{log}"));
    run(command.arg(plan.to_string()), &log, LIMIT)
}

fn result(output: &str) -> Result<Value, String> {
    let line = output.lines().rfind(|line| line.starts_with('{'));
    let line = line.ok_or_else(|| format!("found no result in {output}"))?;
    serde_json::from_str(line).map_err(|error| format!("cannot read {line}: {error}"))
}

/// Steps a second, without the first epoch, in which programs are compiled.
fn rate(result: &Value) -> Result<f64, String> {
    let wrong = || format!("found no epochs in {result}");
    let epochs = result["epochs"].as_array().ok_or_else(wrong)?;
    let end = |epoch: &Value| epoch["end"].as_f64();
    let (first, last) = (epochs.first(), epochs.last());
    let (first, last) = (first.and_then(end), last.and_then(end));
    let steps: u64 = epochs
        .iter()
        .skip(1)
        .filter_map(|e| e["steps"].as_u64())
        .sum();
    match (first, last) {
        (Some(first), Some(last)) if last > first => Ok(steps as f64 / (last - first)),
        _ => Err(wrong()),
    }
}

/// The table of slow workers, and the losses of the picture.
fn slow_workers(workspace: &Workspace, options: &Options) -> Result<(String, Value), String> {
    let mut page = String::from("## A slow worker\n");
    let mut results = Vec::new();
    for share in [None, Some(SHARE)] {
        let (table, found) = slow_workers_by(workspace, options, share)?;
        page.push_str(&table);
        results = found;
    }
    // The picture is by the quota, which holds whatever else the machine does.
    let curve =
        |(at, name): &(usize, &str)| json!({"name": name, "epochs": results[*at]["epochs"]});
    let curves: Vec<Value> = CURVES.iter().map(curve).collect();
    Ok((page, Value::Array(curves)))
}

/// One table of slow workers, by a share of a processor or by the time of rows, and what was found.
fn slow_workers_by(
    workspace: &Workspace,
    options: &Options,
    share: Option<f64>,
) -> Result<(String, Vec<Value>), String> {
    let row_ms = share.map_or(ROW_MS, |_| ROW_MS_OF_SHARE);
    let (mut table, mut rates, mut results) = (String::new(), Vec::new(), Vec::new());
    for (at, work) in SLOWED.iter().enumerate() {
        eprintln!("{}", work.name);
        let plan = json!({
            "model": "digits", "mode": work.mode, "backup_workers": work.backup_workers,
            "workers": work.workers, "slowed": work.slowed, "batch": 12, "row_ms": row_ms,
            "epochs": if options.quick { 2 } else { 5 }, "quota": share,
        });
        let how = share.map_or("time", |_| "quota");
        let found = result(&ours(workspace, &plan, &format!("{how}-{at}"))?)?;
        let own = rate(&found)?;
        let compared = match work.compared {
            Some((with, least)) => {
                let ratio: f64 = own / rates[with];
                let asked = match least {
                    least if least > 0.0 => format!(", {least} asked"),
                    _ => String::new(),
                };
                format!("{ratio:.2} of `{}`{asked}", SLOWED[with].name)
            }
            None => String::new(),
        };
        table.push_str(&format!("| {} | {own:.1} | {compared} |\n", work.name));
        rates.push(own);
        results.push(found);
    }
    Ok((described(share, &results) + &table, results))
}

/// What is before a table: how workers were slowed.
fn described(share: Option<f64>, results: &[Value]) -> String {
    let is_by_quota = results.iter().all(|found| found["slowed_by"] == "quota");
    let how = match share {
        Some(share) if is_by_quota => format!(
            "By a CPU quota: each worker has {share} % of a processor, one that is slow {} %, by control groups of Linux; a row of a batch is {ROW_MS_OF_SHARE} ms of a processor",
            share / 10.0
        ),
        Some(_) => format!(
            "A CPU quota cannot be set on this machine. Each row takes {ROW_MS_OF_SHARE} ms, and ten times as long one that is slow"
        ),
        None => format!(
            "By time: each row of a batch takes a worker {ROW_MS} ms beside the step itself, and {} ms one that is slow, so that workers do not share processors",
            10.0 * ROW_MS
        ),
    };
    let load = load();
    format!(
        "\n{how}. The digits, batch 12; load {load}.\n\n| training | steps a second | compared |\n|---|---:|---|\n"
    )
}

/// Ours and TensorFlow's in the same turns: two workers, one server.
fn beside_tensorflow(workspace: &Workspace, python: &str, quick: bool) -> Result<String, String> {
    let mut table = String::from(
        "\n## Beside TensorFlow's ParameterServerStrategy\n\nTwo workers, one server, async, batch 128 for each worker, SGD; the recommender has two tables of a million rows of 32.\n\n| model | | steps a second | start to first step | load |\n|---|---|---:|---:|---:|\n",
    );
    let script = workspace.root.join("bench/peers/servers_tf.py");
    for model in ["mlp", "recommender"] {
        let mut found: [Vec<(f64, f64)>; 3] = [Vec::new(), Vec::new(), Vec::new()];
        for round in 0..if quick { 1 } else { 3 } {
            eprintln!("round {}: {model}", round + 1);
            for (at, overlap) in [false, true].into_iter().enumerate() {
                let plan =
                    json!({"model": model, "mode": "async", "epochs": 5, "overlap": overlap});
                let own = result(&ours(workspace, &plan, model)?)?;
                let first = own["first_step"].as_f64().ok_or("found no first step")?;
                found[at].push((rate(&own)?, first));
            }
            let mut command = Command::new(python);
            command.arg(&script).arg(model);
            let log = workspace.log("bench-servers-tf");
            let theirs = result(&run(&mut command, &log, LIMIT)?)?;
            let number = |name: &str| theirs[name].as_f64().ok_or(format!("found no {name}"));
            found[2].push((number("steps_per_second")?, number("first_step")?));
        }
        let middle = |of: &[(f64, f64)], get: fn(&(f64, f64)) -> f64| {
            super::table::median(&of.iter().map(get).collect::<Vec<_>>())
        };
        let mut medians = Vec::new();
        for (name, of) in ["phalanx", "phalanx, `overlap`", "tensorflow"]
            .iter()
            .zip(&found)
        {
            let (rate, first) = (middle(of, |x| x.0), middle(of, |x| x.1));
            let load = load();
            // With `overlap` the second batch is asked for before the first is pushed, which tells nothing of the first step.
            let shown = match name.contains("overlap") {
                true => String::new(),
                false => format!("{first:.2} s"),
            };
            table.push_str(&format!(
                "| {model} | {name} | {rate:.0} | {shown} | {load} |\n"
            ));
            medians.push((rate, first));
        }
        let (rate, first) = (medians[0].0 / medians[2].0, medians[0].1 / medians[2].1);
        table.push_str(&format!("| {model} | ratio | {rate:.2} | {first:.2} | |\n"));
    }
    Ok(table)
}
