//! Two ways to train that must give the same.

use phalanx::prelude::*;
use serde_json::json;

use crate::case::Case;
use crate::judge::{
    BOUND, First, Verdict, exact, fitted, has_any, is_within, quiet, skipped, state,
};
use crate::outcome::Outcome;
use crate::places::{self, one};
use crate::{loops, saves, stops, weights};

/// Two ways, by a function that tries both.
pub(crate) struct Relation {
    pub(crate) name: &'static str,
    /// The features that it does not hold for.
    pub(crate) without: &'static [&'static str],
    pub(crate) check: fn(&Case<'_>) -> phalanx::Result<Verdict>,
}

macro_rules! relation {
    ($name:literal, $check:path, $($without:literal),*) => {
        Relation { name: $name, without: &[$($without),*], check: $check }
    };
}

/// All of them. What is drawn for each place in a batch, or taken from the whole of it, is not the same in other batches.
#[rustfmt::skip]
pub(crate) const RELATIONS: [Relation; 21] = [
    relation!("replicas", replicas, "statistics of a replica", "two steps an execution"),
    relation!("divided", divided, "statistics of a replica", "two steps an execution", "spectral norm"),
    relation!("executions", executions, "statistics of a replica", "two steps an execution", "central storage"),
    relation!("checkpointed", checkpointed,),
    relation!("resumed", stops::resumed, "central storage"),
    relation!("interrupted", stops::interrupted, "two steps an execution"),
    relation!("moved", stops::moved, "statistics of a replica", "two steps an execution"),
    relation!("accumulated", accumulated, "dropout", "noise", "batch normalization", "dropout of a recurrent layer",
        "sample weights", "weights of steps", "class weights", "another loss", "classes of steps", "schedule", "scheduler",
        "loss scale", "half precision", "accumulation", "spectral norm", "lazy"),
    relation!("tested", tested,),
    relation!("by hand", by_hand, "two steps an execution"),
    // The next training begins with the averages.
    relation!("continued", stops::continued, "averages"),
    relation!("gone on", stops::gone_on_behind,),
    relation!("zero weights", weights::zero_weights, "dropout", "noise", "batch normalization", "dropout of a recurrent layer",
        "penalty of outputs", "metrics"),
    relation!("repeated", weights::repeated, "dropout", "noise", "batch normalization", "dropout of a recurrent layer",
        "penalty of outputs", "metrics"),
    relation!("class weights", weights::class_weights, "class weights", "weights of steps", "any target", "classes of steps",
        "two outputs"),
    relation!("saved", saves::saved,),
    relation!("frozen", frozen,),
    relation!("thawed", thawed, "statistics of a replica", "two steps an execution"),
    relation!("watched", watched, "validation", "falling rate", "early stopping", "best epoch is kept", "loss scale",
        "half precision", "averages overwrite", "lazy"),
    relation!("by a loop", loops::by_a_loop, "loss weights", "class weights", "two outputs", "loss scale", "half precision",
        "weights of steps", "another loss", "padding", "statistics of a replica", "two steps an execution"),
    relation!("padded", weights::padded, "dropout", "noise", "batch normalization", "dropout of a recurrent layer",
        "inputs without steps", "penalty of outputs", "all steps count"),
];

fn replicas(case: &Case<'_>) -> phalanx::Result<Verdict> {
    let (strategy, words) = places::replicas(case.draw)?;
    fitted(case)?.judge(case.trained(&strategy), &words)
}

fn divided(case: &Case<'_>) -> phalanx::Result<Verdict> {
    let (strategy, words) = places::divided(case.draw)?;
    fitted(case)?.judge(case.trained(&strategy), &words)
}

fn executions(case: &Case<'_>) -> phalanx::Result<Verdict> {
    let steps = case.draw.random("execution").from(2, 3);
    let compile = Compile {
        steps_per_execution: steps,
        ..case.compile.clone()
    };
    let (strategy, words) = match case.draw.has("executions on replicas", 0.3) {
        true => places::replicas(case.draw)?,
        false => (one(), "one device".into()),
    };
    let other = case.trained_as(&strategy, case.model.clone(), compile);
    fitted(case)?.judge(other, &format!("{steps} steps an execution on {words}"))
}

fn checkpointed(case: &Case<'_>) -> phalanx::Result<Verdict> {
    let mut model = case.model.clone();
    let mut random = case.draw.random("checkpointed layers");
    let count = model.set_checkpointed_where(|_| random.chance(0.6));
    if count == 0 {
        return skipped("no layer was chosen");
    }
    let other = case.trained_as(&one(), model, case.compile.clone());
    fitted(case)?.judge(other, "layers computed again")
}

/// One update from several batches is one from all their rows.
fn accumulated(case: &Case<'_>) -> phalanx::Result<Verdict> {
    let parts = case.draw.random("parts").from(2, 3);
    let small = case.draw.random("part").from(1, 2);
    let rows: Vec<usize> = (0..2 * parts * small).collect();
    let available = case.rows.y[0].rows();
    if rows.len() > available {
        return skipped("too few rows");
    }
    let data = case.rows.chosen(&rows).dataset();
    let run = |trainer: &mut Trainer, rows: usize| {
        let history = trainer.fit(&data.batch(rows), case.fit()?)?;
        let outcome = case.outcome(trainer, &history)?;
        let counts = ["steps", "iterations", "accumulated_gradient"];
        Ok(outcome.only(|name| !counts.iter().any(|count| name.contains(count))))
    };
    let mut settings = case.compile.optimizer.config();
    settings["gradient_accumulation_steps"] = json!(parts);
    let optimizer = Optimizer::from_config(case.compile.optimizer.kind(), &settings)?;
    let compile = Compile {
        optimizer,
        ..case.compile.clone()
    };
    let other = one().compile(case.model.clone(), compile);
    let other = other.and_then(|mut trainer| run(&mut trainer, small));
    let first = First::new(case, |trainer: &mut Trainer| run(trainer, small * parts))?;
    first.judge(other, &format!("{parts} parts of {small}"))
}

/// Tests say the same by batches of any size, behind a `fit` as in its last validation, and of a copy.
fn tested(case: &Case<'_>) -> phalanx::Result<Verdict> {
    let mut trainer = case.trainer(&one())?;
    trainer.evaluate(&case.held_out)?;
    let history = trainer.fit(&case.batches, case.fit()?)?;
    let logs = trainer.evaluate(&case.held_out)?;
    let replaced = ["early stopping", "averages", "best epoch is kept"];
    if let Some(last) = history.last().filter(|_| !has_any(case.draw, &replaced)) {
        for (name, value) in logs.iter() {
            let validated = last.get(&format!("val_{name}"));
            if validated.is_some_and(|of| of.to_bits() != value.to_bits()) {
                let what = format!("{name} is {value}, and was {validated:?} as validated");
                return Ok(Verdict::Wrong(what));
            }
        }
    }
    let by = |trainer: &mut Trainer, data: &Batches| {
        let mut outcome = Outcome::default();
        outcome.add_tests(trainer, data)?;
        Ok::<_, phalanx::Error>(outcome)
    };
    let expected = by(&mut trainer, &case.held_out)?;
    let mut copy = one().compile(trainer.saved_model()?, case.compile.clone())?;
    let verdict = exact(&expected, &by(&mut copy, &case.held_out)?);
    if matches!(verdict, Verdict::Wrong(_)) {
        return Ok(verdict);
    }
    let rows = &case.rows_held_out;
    let other = rows.batches(&rows.dataset(), case.batch - 1);
    let bound = match case.compile.precision {
        Policy::Float32 => BOUND,
        _ => 2e-2,
    };
    let apart = expected.apart(&by(&mut trainer, &other)?);
    let apart = apart.unwrap_or_else(|what| vec![(what, f64::INFINITY)]);
    let wrong = apart.iter().find(|(_, apart)| !is_within(*apart, bound));
    Ok(wrong.map_or(Verdict::Right(0.0), |(what, apart)| {
        Verdict::Wrong(format!("by other batches {what} is {apart:e} apart"))
    }))
}

/// Steps by `train_on_batch`.
fn by_hand(case: &Case<'_>) -> phalanx::Result<Verdict> {
    let mut trainer = case.trainer(&one())?;
    let begin = trainer.training_state()?;
    trainer.fit(&case.batches, quiet(case.epochs))?;
    let expected = state(&trainer)?;
    trainer.set_training_state(&begin)?;
    for epoch in 0..case.epochs {
        for batch in case.batches.iter(epoch as u64, 0) {
            trainer.train_on_batch(&batch?)?;
            if case.draw.has("state is set again", 0.3) {
                let state = trainer.training_state()?;
                trainer.set_training_state(&state)?;
            }
        }
    }
    Ok(exact(&expected, &state(&trainer)?))
}

/// A frozen layer is as it was, and the others are trained as if its rate were 0.
fn frozen(case: &Case<'_>) -> phalanx::Result<Verdict> {
    let mut layers = case.model.layers();
    let trained = |prefix: &str| {
        let mut variables = case.model.variables().iter();
        variables.any(|variable| variable.trainable && variable.name.starts_with(prefix))
    };
    layers.retain(|path| trained(&format!("{path}/")));
    if layers.len() < 2 {
        return skipped("nothing else is trained");
    }
    let path = &layers[case.draw.random("frozen").from(0, layers.len() - 1)];
    let prefix = format!("{path}/");
    let is_of_layer = |name: &str| name.starts_with(&prefix);
    let run = |trainer: &mut Trainer| {
        trainer.fit(&case.batches, quiet(case.epochs))?;
        state(trainer)
    };
    let mut model = case.model.clone();
    model.freeze(path)?;
    let mut trainer = one().compile(model, case.compile.clone())?;
    let before = trainer.variables()?;
    let found = run(&mut trainer)?;
    let kept = |name: &str| is_of_layer(name) && before.iter().any(|(of, _)| of == name);
    for (name, value) in found.tensors.iter().filter(|(name, _)| kept(name)) {
        let (_, begin) = before.iter().find(|(of, _)| of == name).unwrap();
        if begin != value {
            return Ok(Verdict::Wrong(format!("{name} is frozen and has changed")));
        }
    }
    let optimizer = &case.compile.optimizer;
    let mut settings = optimizer.config();
    let differs = [
        "batch normalization",
        "spectral norm",
        "constraint of a kernel",
    ];
    if has_any(case.draw, &differs) || !settings["global_clipnorm"].is_null() {
        return Ok(Verdict::Right(0.0));
    }
    settings["learning_rate_factors"][prefix.as_str()] = json!(0.0);
    let compile = Compile {
        optimizer: Optimizer::from_config(optimizer.kind(), &settings)?,
        ..case.compile.clone()
    };
    let mut still = Case::drawn(case.draw)?;
    still.compile = compile;
    let others = |outcome: Outcome| outcome.only(|name| !name.contains(&prefix));
    let first = First::new(&still, |trainer: &mut Trainer| run(trainer).map(others))?;
    first.judge(Ok(others(found)), &format!("{path} is frozen"))
}

/// Layers that are frozen and thawed in a training, by replicas as by one device.
fn thawed(case: &Case<'_>) -> phalanx::Result<Verdict> {
    let layers = case.model.layers();
    let path = &layers[case.draw.random("frozen").from(0, layers.len() - 1)];
    let run = |trainer: &mut Trainer| {
        trainer.unfreeze(path)?;
        for number in 0..6 {
            let epoch = number / 2;
            let batch = case.batches.get(epoch, number as usize % 2);
            match number {
                2 => trainer.freeze(path)?,
                4 => trainer.unfreeze(path)?,
                _ => {}
            }
            trainer.train_on_batch(&batch?)?;
        }
        state(trainer)
    };
    let (strategy, words) = places::replicas(case.draw)?;
    let other = case.trainer(&strategy);
    let other = other.and_then(|mut trainer| run(&mut trainer));
    First::new(case, run)?.judge(other, &words)
}

/// What only watches a training, or multiplies the loss by a power of two, changes no variable.
fn watched(case: &Case<'_>) -> phalanx::Result<Verdict> {
    let watching = [
        "metrics",
        "weighted metrics",
        "averages",
        "averages are validated",
    ];
    let draw = case.draw.less(&watching);
    let mut alone = Case::drawn(&draw)?;
    alone.compile.loss_scale = LossScale::Fixed(64.0);
    let run = |trainer: &mut Trainer, case: &Case<'_>| {
        trainer.fit(&case.batches, case.fit()?)?;
        Ok(state(trainer)?.only(|name| !name.contains("average")))
    };
    let other = alone.trainer(&one());
    let other = other.and_then(|mut trainer| run(&mut trainer, &alone));
    let first = First::new(case, |trainer: &mut Trainer| run(trainer, case))?;
    first.judge(other, "without what watches")
}
