//! `phalanx evaluate --follow`, and the evaluator of `phalanx launch --evaluator`: checkpoints are evaluated as a training writes them.

use std::thread;
use std::time::{Duration, Instant, SystemTime};

use phalanx::Error;
use phalanx::data::Dataset;
use phalanx::fit::{Follow, Followed};
use phalanx_cluster::Variables;
use serde_json::json;

use super::Context;
use super::buckets;
use super::session::{Session, alone, failed};
use super::train::data_and_model;
use super::trained_model::{Used, used};
use crate::args::{FollowArgs, Progress, UseArgs};
use crate::config::TrainConfig;
use crate::failure::{Exit, Failure};
use crate::record::{self, Record};
use crate::run_folder::RunFolder;
use crate::signals::Signals;

/// How often a training that has not begun is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Follows a training that another command began.
pub(crate) fn run(context: &mut Context, of: &UseArgs, how: &FollowArgs) -> Result<(), Failure> {
    let within = Duration::from_secs(how.wait.into());
    let mut used = begun(of, within)?;
    used.fetch(context)?;
    let (session, rows) = used.to_follow(context)?;
    let folder = RunFolder::of_config(&used.config);
    let best = how.best.as_deref().unwrap_or(best_log(&used.config));
    let mut follow = Follow::new(folder.checkpoint())
        .within(within)
        .summaries(folder.path().join("evaluation"))
        .best(best, best_of(&folder).model());
    if how.each {
        follow = follow.each();
    }
    let record = used.record().map(|record| (record, best_of(&folder)));
    until_done(context, session, &rows, (follow, record))
}

/// The log by which a training keeps its best epoch, as an evaluation has it.
fn best_log(config: &TrainConfig) -> &str {
    let log = config.fit.keep_best.as_ref().map(|log| &log.value[..]);
    log.map_or("loss", |log| log.strip_prefix("val_").unwrap_or(log))
}

/// The folder of the best model, which is used as the folder of a training is.
fn best_of(folder: &RunFolder) -> RunFolder {
    RunFolder::of(&folder.path().join("best"))
}

/// The training, once it has said what it is.
fn begun(of: &UseArgs, within: Duration) -> Result<Used, Failure> {
    let args = UseArgs {
        checkpoint: true,
        ..of.clone()
    };
    let folder = of.output.as_ref().unwrap_or(&of.file);
    let start = Instant::now();
    let is_file = of.file.is_file() && of.output.is_none();
    while !is_file && !folder.join(record::NAME).is_file() && start.elapsed() < within {
        thread::sleep(LOOK_EVERY);
    }
    used(&args)
}

/// Follows the training that the other processes of this launch begin.
pub(crate) fn beside(
    context: &mut Context,
    config: &mut TrainConfig,
    resume: bool,
) -> Result<(), Failure> {
    let now = SystemTime::now();
    buckets::fetch(context, config)?;
    let config = &*config;
    let folder = RunFolder::of_config(config);
    let restarts = Variables::of_process();
    let restarts = restarts.get("PHALANX_RESTART_COUNT");
    let goes_on = resume || restarts.is_some_and(|count| count != "0");
    let (rows, model) = data_and_model(context, config, goes_on.then_some(&folder))?;
    let session = Session::start(context, &alone(config.clone()), model)?;
    let file = config.origin.display();
    let record = context.record(config, &rows.facts);
    let rows = rows.test.or(rows.validation).ok_or_else(|| {
        let message = format!("{file} has no test rows and no validation rows to evaluate");
        let example = config.data.test_example();
        Failure::new(Exit::Usage, message).next(format!(
            "add `test: {example}` to data, or launch without --evaluator"
        ))
    })?;
    let mut follow = Follow::new(folder.checkpoint())
        .each()
        .summaries(folder.path().join("evaluation"))
        .best(best_log(config), best_of(&folder).model());
    if !goes_on {
        // What a training before left there is not of this one.
        follow = follow.since(now);
    }
    let record = (&record, best_of(&folder));
    until_done(context, session, &rows, (follow, Some(record)))
}

fn until_done(
    context: &mut Context,
    mut session: Session,
    rows: &Dataset,
    (follow, record): (Follow, Option<(&Record, RunFolder)>),
) -> Result<(), Failure> {
    let signals = Signals::watch().map_err(|error| Failure::of(Exit::Failed, &error))?;
    let batches = session.batches(rows)?;
    let follow = follow.stop_when(&signals.stop);
    let mut shown = Ok(());
    let followed = session.trainer.follow(&batches, &follow, |followed| {
        if followed.is_best
            && shown.is_ok()
            && let Some((record, folder)) = &record
        {
            shown = record.write(&folder.model());
        }
        if shown.is_ok() {
            shown = show(context, followed);
        }
        Ok(())
    });
    shown?;
    followed.map_err(|error| match error {
        Error::Stopped(message) => {
            Failure::new(signals.exit(), message).next("follow again to go on")
        }
        other => failed(&other),
    })
}

fn show(context: &mut Context, followed: &Followed) -> Result<(), Failure> {
    let Followed {
        step,
        epochs,
        logs,
        is_best,
        ..
    } = followed;
    match context.global.progress {
        Progress::Json => context.output.line(json!({
            "event": "evaluate", "step": step, "epochs": epochs, "best": is_best, "logs": logs.to_json(),
        })),
        _ => {
            let best = if *is_best { " (the best so far)" } else { "" };
            let line = format_args!("step {step}, epoch {epochs}: {logs}{best}").to_string();
            context.output.line(line)
        }
    }
}
