//! `phalanx trace train.yaml`.

use phalanx::fit::Fit;

use super::Context;
use super::buckets;
use super::session::{self, Session, failed};
use crate::args::TraceArgs;
use crate::failure::{Exit, Failure};
use crate::files::{check_target, read_by_training};
use crate::{model, rows};

/// Trains for some steps and writes where their time went, of all workers.
pub(crate) fn run(context: &mut Context, args: &TraceArgs) -> Result<(), Failure> {
    context.find_workers()?;
    if context.is_evaluator {
        // It takes no steps, and the file is the first worker's.
        return Ok(());
    }
    if context.is_server() {
        let message = "a parameter server takes no steps to trace";
        return Err(Failure::new(Exit::Usage, message).next("launch `phalanx trace` without --ps"));
    }
    let mut config = session::config(&args.file, &args.set)?;
    check_target(&args.output, &read_by_training(&config), "--output")?;
    buckets::fetch(context, &mut config)?;
    let rows = rows::load(&config).map_err(session::wrong)?;
    let model = model::of_data(&config, &rows.facts).map_err(session::wrong)?;
    let mut session = Session::start(context, &config, model)?;
    let (after, steps) = (args.after.get(), args.steps.get());
    let train = session.to_train(&rows.train)?;
    let length = train.len().unwrap_or(usize::MAX).max(1);
    // A trace begins and ends after whole executions.
    let execution = config.fit.steps_per_execution;
    let all = after
        .saturating_add(steps)
        .saturating_add(2 * execution.saturating_sub(1));
    let train = match length > all {
        true => train.epochs_of(all),
        false => train,
    };
    // As many whole epochs as have these steps.
    let fit = Fit::epochs(all.div_ceil(length))
        .progress(context.global.fit_progress())
        .trace(&args.output, after, steps);
    session
        .trainer
        .fit(&train, fit)
        .map_err(|error| failed(&error))?;
    context.output.line(format_args!(
        "trace: {} (open it in https://ui.perfetto.dev or chrome://tracing)",
        args.output.display()
    ))
}
