//! What the programs of replicas and of workers train, and a turn of it.

use std::error::Error;
use std::time::Instant;

use phalanx::prelude::*;

use crate::synthetic::{IMAGE, classified, cnn, mlp, resnet50};
use crate::turns::Turn;

/// The model of a name on the devices of a strategy, and endless global batches of this number of rows.
pub(crate) fn prepare(
    strategy: &impl Strategy,
    model: &str,
    rows: usize,
) -> Result<(Trainer, Batches), Box<dyn Error>> {
    let (trainer, data) = match model {
        "mlp" => (compiled(strategy, mlp())?, classified(rows, [784])?),
        "cnn" => (compiled(strategy, cnn())?, classified(rows, [28, 28, 1])?),
        "resnet50" => (compiled(strategy, resnet50()?)?, classified(rows, IMAGE)?),
        other => {
            return Err(format!("found model {other:?}, expected mlp, cnn or resnet50").into());
        }
    };
    let batches = Dataset::from_arrays(data.x[0].clone(), data.y[0].clone())?;
    Ok((trainer, batches.batch(rows).repeat_forever()))
}

/// An epoch of this number of steps, whose results are on the host at its end: the time of all of them, divided.
pub(crate) fn epoch(
    trainer: &mut Trainer,
    batches: &Batches,
    steps: usize,
) -> phalanx::Result<Turn> {
    let fit = Fit::epochs(1)
        .steps_per_epoch(steps)
        .progress(Progress::Silent);
    let start = Instant::now();
    let history = trainer.fit(batches, fit)?;
    let step_ms = start.elapsed().as_secs_f64() * 1e3 / steps as f64;
    let last = history.epochs.last();
    let loss = last.and_then(|epoch| epoch.logs.get("loss"));
    let loss = loss.unwrap_or(f64::NAN);
    Ok(Turn { step_ms, loss })
}

fn compiled(strategy: &impl Strategy, model: impl IntoModel) -> phalanx::Result<Trainer> {
    let compile = Compile {
        optimizer: Sgd::new(0.01).momentum(0.9).into(),
        loss: SparseCategoricalCrossentropy::from_logits().into(),
        ..Compile::default()
    };
    strategy.compile(model, compile)
}
