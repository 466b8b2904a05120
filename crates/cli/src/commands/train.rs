//! `phalanx train train.yaml`.

use std::path::PathBuf;

use phalanx::Error;
use phalanx::fit::{Fit, History, Logs};
use serde_json::json;

use super::Context;
use super::session::{self, Session, failed};
use crate::args::TrainArgs;
use crate::config::TrainConfig;
use crate::failure::Failure;
use crate::rows::{self, Rows};
use crate::run_folder::RunFolder;
use crate::{args, model};

/// Trains, tests, and saves the model and the logs.
pub(crate) fn run(context: &mut Context, args: &TrainArgs) -> Result<(), Failure> {
    let mut config = session::config(&args.file)?;
    overrule(&mut config, args);
    let rows = rows::load(&config).map_err(session::wrong)?;
    let model = model::build(&config, &rows.features).map_err(session::wrong)?;
    // Before the training, which may be long.
    let folder = RunFolder::create(&config.output)?;
    if context.global.shows_text() {
        context.output.line(model.summary())?;
    }
    let mut session = Session::start(context, &config, model)?;
    let history = fit(context, &mut session, &rows, args)?;
    let tested = test(&mut session, &rows)?;
    session.save(&folder)?;
    folder.write_history(&history)?;
    folder.write_test(tested.as_ref())?;
    report(context, &folder, tested.as_ref())
}

fn overrule(config: &mut TrainConfig, args: &TrainArgs) {
    if let Some(epochs) = args.epochs {
        config.fit.epochs = epochs.get();
    }
    if let Some(output) = &args.output {
        config.output = PathBuf::from(output);
    }
}

fn fit(
    context: &Context,
    session: &mut Session,
    rows: &Rows,
    args: &TrainArgs,
) -> Result<History, Failure> {
    let mut fit = Fit::epochs(session.config.fit.epochs).progress(context.global.fit_progress());
    if let Some(steps) = args.steps_per_epoch {
        fit = fit.steps_per_epoch(steps.get());
    }
    if let Some(log) = &session.config.fit.keep_best {
        fit = fit.keep_best(&log.value);
    }
    if let Some(validation) = &rows.validation {
        fit = fit.validation(&session.batches(validation));
    }
    let train = session.to_train(&rows.train);
    session
        .trainer
        .fit(&train, fit)
        .map_err(|error| failed(&error))
}

fn test(session: &mut Session, rows: &Rows) -> Result<Option<Logs>, Failure> {
    let Some(test) = &rows.test else {
        return Ok(None);
    };
    let batches = session.batches(test);
    let logs = session
        .trainer
        .evaluate(&batches)
        .map_err(|error| failed(&error))?;
    if logs.get("loss").is_some_and(|loss| !loss.is_finite()) {
        let diverged = "the loss on the test rows is infinite or not a number, so the model is not saved: the last step of the training went too far; try a lower learning rate or gradient clipping (`clipnorm`)";
        return Err(failed(&Error::Training(diverged.into())));
    }
    Ok(Some(logs))
}

fn report(context: &mut Context, folder: &RunFolder, tested: Option<&Logs>) -> Result<(), Failure> {
    if let Some(logs) = tested {
        context.result("test", logs)?;
    }
    let (model, logs) = (folder.model(), folder.path());
    if context.global.progress == args::Progress::Json {
        let saved = json!({"event": "saved", "model": model, "logs": logs});
        return context.output.line(saved);
    }
    context
        .output
        .line(format_args!("model: {}", model.display()))?;
    context
        .output
        .line(format_args!("logs:  {}", logs.display()))
}
