//! `phalanx ckpt ls | verify | prune | export | diff`.

use std::cmp::Reverse;
use std::fs;
use std::path::{Path, PathBuf};

use phalanx::checkpoint::TrainingState;
use serde_json::{Value, json};

use super::Context;
use super::session::failed;
use crate::args::CheckpointCommand;
use crate::failure::{Exit, Failure};
use crate::files::{FILE, check_target};
use crate::record;
use crate::run_folder::is_model;

/// Runs one of the commands on checkpoints.
pub(crate) fn run(context: &mut Context, what: &CheckpointCommand) -> Result<(), Failure> {
    match what {
        CheckpointCommand::Ls { path } => list(context, path),
        CheckpointCommand::Verify { path } => verify(context, path),
        CheckpointCommand::Prune { path, keep } => prune(context, path, keep.get()),
        CheckpointCommand::Export { path, file } => export(context, path, file),
        CheckpointCommand::Diff { one, other } => diff(context, one, other),
    }
}

/// The checkpoint at a path and the older ones beside it, or those in a folder, the newest first.
fn all(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    let inside = inside(path);
    if !inside.is_empty() {
        return Ok(inside);
    }
    if let Some(other) = other_than_checkpoint(path) {
        return Err(other);
    }
    let all = TrainingState::all_at(path).map_err(|error| failed(&error))?;
    if all.is_empty() {
        let message = format!("there is no checkpoint at {}", path.display());
        return Err(Failure::new(Exit::Usage, message)
            .next("give the directory of a checkpoint, such as `runs/digits/checkpoint`, or its URL, such as `s3://my-bucket/runs/digits`"));
    }
    Ok(all)
}

/// What to say of a folder that a training wrote and that is no checkpoint.
fn other_than_checkpoint(path: &Path) -> Option<Failure> {
    let has = |name: &str| path.join(name).is_file();
    let (what, next) = if has("checkpoint.json") {
        return None;
    } else if is_model(path) {
        (
            "a model",
            "give the directory of a checkpoint, such as `runs/digits/checkpoint`",
        )
    } else if has(record::NAME) {
        (
            "the folder of a training that wrote no checkpoint",
            "write them with `save_freq` in `fit`, or `phalanx train --resume`",
        )
    } else {
        return None;
    };
    let message = format!("there is no checkpoint at {}: it is {what}", path.display());
    Some(Failure::new(Exit::Usage, message).next(next))
}

/// The checkpoints in a folder of this machine that is none itself, as `model_checkpoint` leaves them there by epoch: those that cannot
/// be read first, then the newest.
fn inside(path: &Path) -> Vec<PathBuf> {
    let is_one = |path: &Path| path.join("checkpoint.json").is_file();
    if is_one(path) {
        return Vec::new();
    }
    let inside = fs::read_dir(path).into_iter().flatten().flatten();
    let mut inside: Vec<PathBuf> = inside.map(|entry| entry.path()).collect();
    inside.retain(|path| is_one(path));
    // Names say nothing of the order, and copies have other times.
    inside.sort_by_cached_key(|path| {
        let step = TrainingState::load(path).map_or(i64::MAX, |state| state.iterations());
        (Reverse(step), path.clone())
    });
    inside
}

/// What a checkpoint is, or what is wrong with it.
fn described(path: &Path) -> (String, Value, bool) {
    let shown = path.display();
    match TrainingState::load(path) {
        Ok(state) => {
            let (step, epoch) = (state.iterations(), state.position().epoch);
            let values: usize = state
                .variables()
                .iter()
                .map(|(_, value)| value.shape().len())
                .sum();
            let line = format!(
                "{shown}: step {step}, {} done, {values} values in {}, seed {}, by {}",
                counted(epoch, "epoch"),
                counted(state.variables().len() as u64, "variable"),
                state.seed(),
                counted(state.workers() as u64, "worker")
            );
            let json = json!({"path": path, "step": step, "epochs": epoch, "values": values, "seed": state.seed(),
                "workers": state.workers(), "generation": state.generation()});
            (line, json, true)
        }
        Err(error) => {
            let json = json!({"path": path, "error": error.to_string()});
            (format!("{shown}: damaged: {error}"), json, false)
        }
    }
}

/// A number of things: `1 epoch`, `2 epochs`.
fn counted(count: u64, of: &str) -> String {
    format!("{count} {of}{}", if count == 1 { "" } else { "s" })
}

fn list(context: &mut Context, path: &Path) -> Result<(), Failure> {
    for path in all(path)? {
        let (line, json, _) = described(&path);
        context.print(&line, &json)?;
    }
    Ok(())
}

fn verify(context: &mut Context, path: &Path) -> Result<(), Failure> {
    let mut damaged = 0;
    let all = all(path)?;
    for path in &all {
        let (line, json, is_whole) = described(path);
        context.print(&line, &json)?;
        damaged += usize::from(!is_whole);
    }
    if damaged == 0 {
        return Ok(());
    }
    let message = format!(
        "{damaged} of {} damaged",
        counted(all.len() as u64, "checkpoint")
    );
    let next =
        "training goes on from the newest that is whole; remove the others, or copy them again";
    Err(Failure::new(Exit::Failed, message).next(next))
}

/// Removes what is older than the newest `keep` that are whole. Damaged ones do not count, so that a whole one is always left.
fn prune(context: &mut Context, path: &Path, keep: usize) -> Result<(), Failure> {
    let mut whole = 0;
    for path in all(path)? {
        if whole == keep {
            TrainingState::remove(&path).map_err(|error| failed(&error))?;
            let line = format!("removed {}", path.display());
            context.print(&line, &json!({"removed": path}))?;
        } else if let (line, json, false) = described(&path) {
            context.print(&format!("{line}; it stays"), &json)?;
        } else {
            whole += 1;
        }
    }
    Ok(())
}

/// The checkpoint at a path, or the newest whole one in a folder of them, of which it is said which one that is.
fn one_at(path: &Path) -> Result<PathBuf, Failure> {
    let inside = inside(path);
    let newest = inside.iter().find(|path| TrainingState::load(path).is_ok());
    let Some(newest) = newest else {
        return match (inside.first(), other_than_checkpoint(path)) {
            // The error says what is wrong with it.
            (Some(first), _) => Ok(first.clone()),
            (None, Some(other)) => Err(other),
            (None, None) => Ok(path.to_owned()),
        };
    };
    crate::output::notice(format_args!(
        "note: {} is the newest whole checkpoint in {}",
        newest.display(),
        path.display()
    ));
    Ok(newest.clone())
}

fn export(context: &mut Context, path: &Path, file: &Path) -> Result<(), Failure> {
    let path = &one_at(path)?;
    check_target(file, std::slice::from_ref(path), FILE)?;
    let (state, left_out) = TrainingState::load_newest(path).map_err(|error| failed(&error))?;
    if !left_out.is_empty() {
        crate::output::notice(format_args!("warning: {}", left_out.join("; ")));
    }
    state.save_weights(file).map_err(|error| failed(&error))?;
    let line = format!(
        "the variables after step {} are in {}",
        state.iterations(),
        file.display()
    );
    context.print(
        &line,
        &json!({"exported": file, "step": state.iterations()}),
    )
}

/// Where two checkpoints differ: ends with 1 if they do.
fn diff(context: &mut Context, one: &Path, other: &Path) -> Result<(), Failure> {
    let load = |path: &Path| TrainingState::load(one_at(path)?).map_err(|error| failed(&error));
    let (one, other) = (load(one)?, load(other)?);
    let mut differences = 0;
    if one.iterations() != other.iterations() {
        differences += 1;
        let line = format!("step: {} and {}", one.iterations(), other.iterations());
        context.print(
            &line,
            &json!({"step": [one.iterations(), other.iterations()]}),
        )?;
    }
    for (these, those) in [
        (one.variables(), other.variables()),
        (one.slots(), other.slots()),
    ] {
        for (name, value) in these {
            let found = those.iter().find(|(other, _)| other == name);
            let what = match found {
                None => Some("is in the first alone".to_owned()),
                Some((_, other)) if other.shape() != value.shape() => {
                    Some(format!("is {} and {}", value.shape(), other.shape()))
                }
                Some((_, other)) if other == value => None,
                Some((_, other)) => {
                    let pairs = value.to_f64().into_iter().zip(other.to_f64());
                    let most = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                    Some(format!("differs by up to {most:e}"))
                }
            };
            if let Some(what) = what {
                differences += 1;
                context.print(
                    &format!("{name}: {what}"),
                    &json!({"name": name, "difference": what}),
                )?;
            }
        }
        for (name, _) in those
            .iter()
            .filter(|(name, _)| these.iter().all(|(own, _)| own != name))
        {
            differences += 1;
            let what = "is in the second alone";
            context.print(
                &format!("{name}: {what}"),
                &json!({"name": name, "difference": what}),
            )?;
        }
    }
    match differences {
        0 => context.print("equal", &json!({"equal": true})),
        count => Err(Failure::new(Exit::Failed, counted(count, "difference"))),
    }
}
