//! `phalanx train train.yaml --smoke`: whether a training begins, goes on, and ends.

use std::fs;
use std::path::PathBuf;

use phalanx::fit::{History, Logs};
use serde_json::json;

use super::Context;
use super::train::train;
use crate::args::{Progress, TrainArgs};
use crate::config::{Located, Position, SaveFreq, TrainConfig};
use crate::failure::{Exit, Failure};

/// Steps that are trained: the second one starts from what the first one has left.
const STEPS: usize = 2;

/// Two steps, a batch of the validation, a checkpoint and the model, in a folder of its own that is removed again. Callbacks are left out,
/// whose files are elsewhere.
pub(super) fn run(
    context: &mut Context,
    config: TrainConfig,
    args: &TrainArgs,
) -> Result<(), Failure> {
    let folder = std::env::temp_dir().join(format!("phalanx-smoke-{}", std::process::id()));
    let validates = config.fit.validation.is_some();
    let shown = config.origin.display().to_string();
    let trained = train(context, shortened(config, folder.clone()), args).map(drop);
    let removed = match fs::remove_dir_all(&folder) {
        Err(error) if folder.exists() => Err(Failure::new(
            Exit::Failed,
            format!("cannot remove {}: {error}", folder.display()),
        )
        .next("remove it")),
        _ => Ok(()),
    };
    trained.and(removed)?;
    if context.global.progress == Progress::Json {
        let smoke = json!({"event": "smoke", "steps": STEPS, "validated": validates});
        return context.output.line(smoke);
    }
    let validated = if validates {
        "validated on a batch, "
    } else {
        ""
    };
    context.output.line(format_args!(
        "smoke: {shown} is sound: {STEPS} steps were trained, {validated}a checkpoint and the model written and removed again"
    ))
}

/// Refuses results that are no numbers, in place of the test.
pub(super) fn check(history: &History) -> Result<Option<Logs>, Failure> {
    let mut logs = history.last().into_iter().flat_map(Logs::iter);
    let Some((name, value)) = logs.find(|(_, value)| !value.is_finite()) else {
        return Ok(None);
    };
    let message = format!("`{name}` is {value} after {STEPS} steps");
    let next = "try a lower learning rate or gradient clipping (`clipnorm`), and look at the values of the rows";
    Err(Failure::new(Exit::Failed, message).next(next))
}

fn shortened(mut config: TrainConfig, folder: PathBuf) -> TrainConfig {
    let fit = &mut config.fit;
    (fit.epochs, fit.steps_per_epoch) = (1, Some(STEPS));
    fit.steps_per_execution = fit.steps_per_execution.min(STEPS);
    fit.save_freq = Some(SaveFreq::Epoch);
    fit.tensorboard = None;
    let one = Located {
        value: 1,
        at: Position::START,
    };
    fit.validation_freq = one;
    fit.validation_steps = fit.validation.is_some().then_some(one);
    config.callbacks.clear();
    config.output = folder;
    config.checkpoint = None;
    config
}
