//! `cargo xtask bench input`: reading data, ours beside other frameworks'.
//!
//! Every peer is a program `WORK FOLDER SECONDS` that prints a JSON line for each of its ways to do the work
//! (`bench/peers/README.md`); each framework counts with its best way.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::peer::{self, Peer};
use super::{ROUND_LIMIT, build, machine, parse_options, write};
use crate::process::run;
use crate::workspace::Workspace;

const WORKS: [(&str, &str); 3] = [
    ("records_1k", "TFRecords of 1 KB, in batches of 256"),
    ("records_100k", "TFRecords of 100 KB, in batches of 32"),
    (
        "images",
        "JPEG 400x300, random crop to 224, flip, normalise, batch 32",
    ),
];
/// Until the data are written.
const MAKE_LIMIT: Duration = Duration::from_secs(300);

/// The best way of a framework: its name, and items a second.
struct Best {
    name: String,
    rate: f64,
}

/// Times ours and what the Pythons have; prints a table, and keeps it in `bench/results` if asked to.
pub(crate) fn input(arguments: &[&str]) -> Result<(), String> {
    let options = parse_options(arguments)?;
    let workspace = Workspace::load()?;
    build(&workspace)?;
    let peers = peer::all(&workspace, "input", &options.pythons)?;
    let folder = workspace.root.join("target/bench-input");
    make(&workspace, &peers, &folder)?;
    let seconds = if options.quick { "1" } else { "4" };
    let mut text = String::from(
        "| work | framework | items a second | ours is faster by |\n|---|---|---:|---:|\n",
    );
    for (work, shown) in WORKS {
        let mut ours = None;
        for peer in &peers {
            let output = time(&workspace, peer, &[work, &path(&folder), seconds])?;
            let Some(best) = best(&output)? else { continue };
            let ours = *ours.get_or_insert(best.rate);
            let factor = if best.rate == ours {
                String::new()
            } else {
                format!("{:.2}x", ours / best.rate)
            };
            text += &format!(
                "| {shown} | {} | {:.0} | {factor} |\n",
                best.name, best.rate
            );
        }
    }
    text += &alone(&workspace, &peers[0], &folder, seconds)?;
    println!("{text}");
    if options.write {
        let what = "Written by `cargo xtask bench input --write`";
        let machine = machine::description();
        let page = format!("# Reading data\n\n{what}: {machine}.\n\n{text}");
        write(&workspace, "input.md", &page)?;
    }
    Ok(())
}

/// The data that all read, once: records by us, images by TensorFlow.
fn make(workspace: &Workspace, peers: &[Peer], folder: &Path) -> Result<(), String> {
    std::fs::create_dir_all(folder)
        .map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    let has = |name: &str| folder.join(name).exists();
    for peer in peers {
        let is_needed = match peer.name {
            "phalanx" => !has("records_100k-00003-of-00004.tfrecord"),
            "tf" => !has("images"),
            _ => false,
        };
        if is_needed {
            let mut command = peer.command();
            command.args(["make", &path(folder)]);
            let log = workspace.log("bench-input-make");
            run(&mut command, &log, MAKE_LIMIT)?;
        }
    }
    if has("images") {
        return Ok(());
    }
    Err("found no images to read; give --python a Python with tensorflow, which writes them".into())
}

/// What only we do: whole images decoded, which is the limit of reading them, and memory.
fn alone(
    workspace: &Workspace,
    ours: &Peer,
    folder: &Path,
    seconds: &str,
) -> Result<String, String> {
    let decoded = time(workspace, ours, &["decode", &path(folder), seconds])?;
    let rate = best(&decoded)?.map_or(0.0, |best| best.rate);
    let mut text =
        format!("\nWhole images decoded on two threads and nothing else: {rate:.0} a second.\n\n");
    text += "| memory in use | after epoch | MiB |\n|---|---:|---:|\n";
    for line in lines(&time(workspace, ours, &["memory", &path(folder)])?)? {
        let of = line["of"].as_str().unwrap_or_default();
        text += &format!("| {of} | {} | {} |\n", line["epoch"], line["mib"]);
    }
    Ok(text)
}

fn time(workspace: &Workspace, peer: &Peer, arguments: &[&str]) -> Result<String, String> {
    let mut command: Command = peer.command();
    command.args(arguments);
    let log = workspace.log(&format!("bench-input-{}", peer.name));
    run(&mut command, &log, ROUND_LIMIT)
}

fn path(folder: &Path) -> String {
    folder.display().to_string()
}

/// The JSON lines among others.
fn lines(output: &str) -> Result<Vec<Value>, String> {
    let lines = output.lines().filter(|line| line.starts_with('{'));
    lines
        .map(|line| serde_json::from_str(line).map_err(|error| format!("{error} in {line}")))
        .collect()
}

/// The fastest of the ways that a framework was timed in.
fn best(output: &str) -> Result<Option<Best>, String> {
    let ways = lines(output)?.into_iter().map(|line| {
        let text = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
        let variant = match text("variant") {
            none if none.is_empty() => none,
            variant => format!(", {variant}"),
        };
        Best {
            name: format!("{} {}{variant}", text("framework"), text("version")),
            rate: line["items"].as_f64().unwrap_or(0.0) / line["seconds"].as_f64().unwrap_or(1.0),
        }
    });
    Ok(ways.max_by(|a, b| a.rate.total_cmp(&b.rate)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_way_counts() {
        let output = "noise\n\
            {\"framework\": \"f\", \"version\": \"1\", \"variant\": \"a\", \"items\": 10, \"seconds\": 2.0}\n\
            {\"framework\": \"f\", \"version\": \"1\", \"variant\": \"\", \"items\": 30, \"seconds\": 2.0}\n";
        let best = best(output).unwrap().unwrap();
        assert_eq!((best.name.as_str(), best.rate), ("f 1", 15.0));
        assert!(super::best("nothing").unwrap().is_none());
        assert!(lines("{").is_err());
    }
}
