//! Trainings that stop and go on.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use phalanx::Error;
use phalanx::fit::SaveBehind;
use phalanx::fit::callbacks::Lambda;
use phalanx::prelude::*;
use phalanx_testkit::Scratch;

use crate::case::Case;
use crate::judge::{Verdict, exact, fitted, has_any, quiet, skipped};
use crate::outcome::Outcome;
use crate::places::{self, one};

/// Stops behind a step of the whole training, and returns the checkpoint; `None` where there were fewer steps.
pub(crate) fn stopped(
    case: &Case<'_>,
    strategy: &impl Strategy,
    path: &Path,
) -> phalanx::Result<Option<()>> {
    let steps = case.batches.len().unwrap_or(1) * case.epochs;
    let last = case.draw.random("stop").from(1, steps) as i64;
    let flag = Arc::new(AtomicBool::new(false));
    let asks = Arc::clone(&flag);
    let ask = Lambda::new().on_train_batch_end(move |_, cx| {
        asks.fetch_or(cx.iterations() >= last, Ordering::Relaxed);
        Ok(())
    });
    let mut trainer = case.trainer(strategy)?;
    match trainer.fit(&case.batches, case.fit()?.callback(ask).stop_when(&flag)) {
        Err(Error::Stopped(_)) => {}
        Err(error) => return Err(error),
        Ok(_) => return Ok(None),
    }
    trainer.save_checkpoint(path)?;
    Ok(Some(()))
}

pub(crate) fn gone_on(
    case: &Case<'_>,
    strategy: &impl Strategy,
    path: &Path,
) -> phalanx::Result<Outcome> {
    let compile = Compile {
        seed: 12345,
        ..case.compile.clone()
    };
    let mut trainer = strategy.compile(case.model.clone(), compile)?;
    trainer.restore_checkpoint(path)?;
    let history = trainer.fit(&case.batches, case.fit()?.resume())?;
    case.outcome(&mut trainer, &history)
}

pub(crate) fn scratch() -> Scratch {
    Scratch::temporary("training-search")
}

pub(crate) fn resumed(case: &Case<'_>) -> phalanx::Result<Verdict> {
    let folder = scratch();
    let path = folder.join("checkpoint");
    let (strategy, _) = match case.draw.has("stopped on replicas", 0.3) {
        true => places::replicas(case.draw)?,
        false => (one(), String::new()),
    };
    let unbroken = case.trained(&strategy)?;
    if stopped(case, &strategy, &path)?.is_none() {
        return skipped("it ends before it is stopped");
    }
    let found = gone_on(case, &strategy, &path)?;
    let has_window =
        has_any(case.draw, &["accumulation"]) && has_any(case.draw, &["stopped on replicas"]);
    if has_window || case.compile.steps_per_execution > 1 {
        // A checkpoint has the sum of what replicas have in a window, whose numbers are then added in another order. Which steps
        // are one program depends on where it stopped.
        return fitted(case)?.judge(Ok(found), "stopped");
    }
    Ok(exact(&unbroken, &found))
}

/// Broken off by an error behind a checkpoint of the training itself.
pub(crate) fn interrupted(case: &Case<'_>) -> phalanx::Result<Verdict> {
    let folder = scratch();
    let path = folder.join("checkpoint");
    let unbroken = case.trained(&one())?;
    let mut random = case.draw.random("interruption");
    let steps = case.batches.len().unwrap_or(1);
    let last = random.from(1, steps * case.epochs) as i64;
    let fails = Lambda::new().on_train_batch_end(move |_, cx| match cx.iterations() >= last {
        true => Err(Error::User("pulled the plug".into())),
        false => Ok(()),
    });
    let fit = |mut fit: Fit| {
        if case.draw.has("written behind", 0.5) {
            fit = fit.save_behind(SaveBehind::Wait);
        }
        fit.checkpoint(&path)
            .save_freq(random.clone().from(1, steps))
    };
    let mut trainer = case.trainer(&one())?;
    match trainer.fit(&case.batches, fit(case.fit()?.callback(fails))) {
        Err(error) if error.to_string().contains("pulled the plug") => {}
        Err(error) => return Err(error),
        Ok(_) => return skipped("it ends before it is interrupted"),
    }
    drop(trainer);
    let mut trainer = case.trainer(&one())?;
    trainer.restore_checkpoint(&path)?;
    let history = trainer.fit(&case.batches, fit(case.fit()?).resume())?;
    Ok(exact(&unbroken, &case.outcome(&mut trainer, &history)?))
}

/// From one device to several, or back.
pub(crate) fn moved(case: &Case<'_>) -> phalanx::Result<Verdict> {
    let folder = scratch();
    let path = folder.join("checkpoint");
    let (there, words) = places::replicas(case.draw)?;
    let is_away = case.draw.random("direction").chance(0.5);
    let (first, second) = if is_away {
        (one(), there)
    } else {
        (there, one())
    };
    match stopped(case, &first, &path) {
        Ok(Some(())) => {}
        Ok(None) => return skipped("it ends before it is stopped"),
        Err(error) => return Ok(Verdict::Refused(format!("{words}: {error}"))),
    }
    fitted(case)?.judge(gone_on(case, &second, &path), &words)
}

/// Two fits in a row.
pub(crate) fn continued(case: &Case<'_>) -> phalanx::Result<Verdict> {
    let mut trainer = case.trainer(&one())?;
    let begin = trainer.training_state()?;
    let run = |trainer: &mut Trainer, first: usize, epochs: usize| {
        let fit = quiet(epochs).initial_epoch(first);
        let history = trainer.fit(&case.batches, fit.validation(&case.held_out))?;
        let mut outcome = Outcome::default();
        outcome.add_history(&history);
        Ok::<_, Error>(outcome)
    };
    let mut expected = run(&mut trainer, 0, case.epochs)?;
    expected.add_state(&trainer)?;
    trainer.set_training_state(&begin)?;
    let mut found = run(&mut trainer, 0, 1)?;
    // What only looks at the training changes nothing.
    trainer.evaluate(&case.held_out)?;
    trainer.predict(&case.held_out)?;
    let rest = run(&mut trainer, 1, case.epochs)?;
    found.numbers.extend(rest.numbers);
    found.add_state(&trainer)?;
    Ok(exact(&expected, &found))
}

/// A `fit` of one epoch, and another that goes on behind it.
pub(crate) fn gone_on_behind(case: &Case<'_>) -> phalanx::Result<Verdict> {
    let expected = case.trained(&one())?;
    let mut trainer = case.trainer(&one())?;
    let mut first = case.fit()?;
    first = first.callback(Lambda::new().on_epoch_end(|_, cx| {
        cx.stop("to go on");
        Ok(())
    }));
    trainer.fit(&case.batches, first)?;
    let history = trainer.fit(&case.batches, case.fit()?.resume())?;
    Ok(exact(&expected, &case.outcome(&mut trainer, &history)?))
}
