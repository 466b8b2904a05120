//! The steps of a `fit`, written as a function of replicas.

use phalanx::ReduceOp;
use phalanx::losses::Loss;
use phalanx::prelude::*;

use crate::case::Case;
use crate::judge::{First, Verdict, quiet};
use crate::outcome::Outcome;
use crate::places::{self, one};

/// A loop of one's own trains as `fit` does.
pub(crate) fn by_a_loop(case: &Case<'_>) -> phalanx::Result<Verdict> {
    let (strategy, words) = match case.draw.has("loop on replicas", 0.4) {
        true => places::replicas(case.draw)?,
        false => (one(), "one device".into()),
    };
    let first = First::new(case, |trainer: &mut Trainer| {
        trainer.fit(&case.batches, quiet(case.epochs))?;
        let mut outcome = Outcome::default();
        let variables = trainer.training_state()?;
        for (number, (_, value)) in variables.variables().iter().enumerate() {
            let name = &case.model.variables()[number].name;
            outcome.tensors.push((name.clone(), value.clone()));
        }
        Ok(outcome)
    })?;
    first.judge(looped(case, &strategy), &words)
}

fn looped(case: &Case<'_>, strategy: &impl Strategy) -> phalanx::Result<Outcome> {
    let mut state = strategy.state(case.compile.seed)?;
    let model = state.add_model("model", case.model.clone())?;
    let optimizer = state.add_optimizer(case.compile.optimizer.clone(), &[&model])?;
    let settings = case.compile.loss_settings(&[])?;
    let (kind, fields) = settings["loss"].as_object().unwrap().iter().next().unwrap();
    let loss = Loss::from_config(kind, fields)?;
    let mut step = strategy.function(|cx, batch: Inputs| {
        let outputs = cx.train(&model, &batch.x);
        let losses = loss.per_example(&batch.y[0], &outputs[0]);
        let loss = cx.mean(&losses, batch.weight.as_ref()) + cx.penalties(&model);
        let gradients = cx.gradients(&loss, &optimizer);
        let gradients = cx.all_reduce_gradients(&gradients);
        cx.apply(&optimizer, &gradients);
        [cx.all_reduce(ReduceOp::Sum, &loss)]
    });
    let data = strategy.distribute_dataset(&case.batches);
    for epoch in 0..case.epochs {
        for batch in data.epoch(epoch as u64) {
            step.call(&mut state, &batch?)?;
        }
    }
    let mut outcome = Outcome::default();
    for (number, (_, value)) in state.variables(&model)?.into_iter().enumerate() {
        let name = &case.model.variables()[number].name;
        outcome.tensors.push((name.clone(), value));
    }
    Ok(outcome)
}
