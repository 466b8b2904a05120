//! Examples that count more or less, and padding.

use phalanx::data::Batch;
use phalanx::prelude::*;

use crate::case::Case;
use crate::judge::{First, Verdict, exact, state};
use crate::outcome::Outcome;
use crate::places::one;

/// A training by hand on batches of these places of the rows, each with its weight.
pub(crate) fn on_batches(batches: &[Batch]) -> impl Fn(&mut Trainer) -> phalanx::Result<Outcome> {
    let batches = batches.to_vec();
    move |trainer| {
        let mut outcome = Outcome::default();
        for (number, batch) in batches.iter().enumerate() {
            let logs = trainer.train_on_batch(batch)?;
            outcome.add_logs(&format!("batch {number}: "), &logs);
        }
        let found = state(trainer)?;
        outcome.numbers.extend(found.numbers);
        outcome.tensors.extend(found.tensors);
        Ok(outcome)
    }
}

/// The places of three batches, and weights for them.
pub(crate) fn weighted_batches(case: &Case<'_>, weights: &[f32]) -> Vec<(Vec<usize>, Vec<f32>)> {
    let rows = case.rows.y[0].rows();
    let mut random = case.draw.random("batches");
    let one = |_| {
        let places = weights.iter().map(|_| random.from(0, rows - 1)).collect();
        (places, weights.to_vec())
    };
    (0..3).map(one).collect()
}

pub(crate) fn batch(case: &Case<'_>, places: &[usize], weights: Option<Vec<f32>>) -> Batch {
    let mut rows = case.rows.chosen(places);
    rows.weights = weights.map(|weights| HostTensor::new([weights.len()], &weights));
    rows.batch()
}

pub(crate) fn zero_weights(case: &Case<'_>) -> phalanx::Result<Verdict> {
    let weighted = weighted_batches(case, &[1.0, 0.0, 2.0, 0.5, 0.0, 0.0, 1.5]);
    let left = weighted.iter().map(|(places, weights)| {
        let pairs = places
            .iter()
            .zip(weights)
            .filter(|(_, weight)| **weight != 0.0);
        let (places, weights): (Vec<usize>, Vec<f32>) = pairs.unzip();
        batch(case, &places, Some(weights))
    });
    let left: Vec<_> = left.collect();
    compared(case, &weighted, &left, "rows without weight left out")
}

pub(crate) fn repeated(case: &Case<'_>) -> phalanx::Result<Verdict> {
    let weighted = weighted_batches(case, &[1.0, 2.0, 1.0, 3.0]);
    let more = weighted.iter().map(|(places, weights)| {
        let pairs = places.iter().zip(weights);
        let places = pairs.flat_map(|(place, weight)| vec![*place; *weight as usize]);
        batch(case, &places.collect::<Vec<_>>(), None)
    });
    let more: Vec<_> = more.collect();
    compared(case, &weighted, &more, "rows repeated")
}

/// Batches with these weights, and others that must train the same.
fn compared(
    case: &Case<'_>,
    weighted: &[(Vec<usize>, Vec<f32>)],
    other: &[Batch],
    words: &str,
) -> phalanx::Result<Verdict> {
    let weighted = weighted.iter();
    let weighted = weighted.map(|(places, weights)| batch(case, places, Some(weights.clone())));
    let weighted: Vec<Batch> = weighted.collect();
    let other = case
        .trainer(&one())
        .and_then(|mut trainer| on_batches(other)(&mut trainer));
    First::new(case, on_batches(&weighted))?.judge(other, words)
}

/// Weights of classes are weights of examples, to the bit.
pub(crate) fn class_weights(case: &Case<'_>) -> phalanx::Result<Verdict> {
    let of_class = [2.0f32, 0.5, 0.0];
    let weights = ClassWeights::new((0..).zip(of_class))?;
    let run = |data: Dataset| {
        let mut trainer = case.trainer(&one())?;
        let history = trainer.fit(&data.batch(case.batch), case.fit()?)?;
        case.outcome(&mut trainer, &history)
    };
    let by_class = run(case.rows.dataset().class_weights(weights))?;
    let mut rows = case.rows.clone();
    let before = rows.weights.take();
    let labels = rows.y[0].to_f64();
    let before = before.map_or_else(|| vec![1.0; labels.len()], |before| before.f32s());
    let weights = labels.iter().zip(before);
    let weights = weights.map(|(label, before)| of_class[*label as usize] * before);
    let weights: Vec<f32> = weights.collect();
    rows.weights = Some(HostTensor::new([weights.len()], &weights));
    Ok(exact(&by_class, &run(rows.dataset())?))
}

/// More steps of padding change nothing.
pub(crate) fn padded(case: &Case<'_>) -> phalanx::Result<Verdict> {
    let draw = case.draw.padded(2);
    let longer = Case::drawn(&draw)?;
    let without_steps = |outcome: Outcome| outcome.only(|name| !name.starts_with("prediction"));
    let found = longer.trained(&one()).map(without_steps);
    let first = First::new(case, |trainer: &mut Trainer| {
        let history = trainer.fit(&case.batches, case.fit()?)?;
        case.outcome(trainer, &history).map(without_steps)
    })?;
    first.judge(found, "two more steps of padding")
}
