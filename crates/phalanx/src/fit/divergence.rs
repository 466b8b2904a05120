//! Whether the processes that train together still have the same values.
//!
//! Sums are made in one order, so that equal values stay equal, to the bit. Where they do not (memory that flipped a bit, a process that
//! set its variables alone), nothing else would tell: each goes on with its own model. So once in a while all exchange a digest.

use std::time::Instant;

use phalanx_graph::HostTensor;

use super::compiled_model::CompiledModel;
use super::in_flight::InFlight;
use super::step_times::StepPart;
use crate::replicas::World;
use crate::{Error, Result};

/// The least number of steps between two comparisons, where nothing else is asked for.
const EVERY: u64 = 100;
/// A comparison is due when the steps since the last one took this many times as long as a comparison.
const WORTH: f64 = 200.0;
/// More steps are never between two.
const MOST_STEPS: u64 = 100_000;

/// The next comparison, which is due after the same step in every process.
#[derive(Default)]
pub(super) struct Comparison {
    due: i64,
    /// When the last one ended, and after which step.
    last: Option<(Instant, i64)>,
}

impl Comparison {
    fn is_due(&self, step: i64) -> bool {
        step >= self.due || self.last.is_some_and(|(_, last)| step < last)
    }

    /// The steps to the next one, for one that took from `begun` until now.
    fn steps_to_next(&self, step: i64, begun: Instant) -> u64 {
        let Some((at, last)) = self.last else {
            return EVERY;
        };
        let steps = step.saturating_sub(last).max(1) as f64;
        let each = begun.duration_since(at).as_secs_f64() / steps;
        let worth = begun.elapsed().as_secs_f64() * WORTH / each.max(1e-6);
        (worth as u64).clamp(EVERY, MOST_STEPS)
    }

    /// Ends the training where another process has other values; `every` is after how many steps they are compared, if not as
    /// often as it costs nothing.
    pub(super) fn compare_with_workers(
        &mut self,
        model: &mut CompiledModel,
        every: Option<u64>,
        flight: &mut InFlight,
    ) -> Result<()> {
        let Some(world) = model.placement.world().cloned() else {
            return Ok(());
        };
        if every == Some(0) || !self.is_due(model.iterations) {
            return Ok(());
        }
        flight.finish(model.placement.engine())?;
        world.check()?;
        model.clock.enter(StepPart::Exchange);
        let begun = Instant::now();
        let variables = model.variables()?;
        let digests: Vec<u64> = variables.iter().map(|(_, value)| of_value(value)).collect();
        let steps = every.unwrap_or_else(|| self.steps_to_next(model.iterations, begun));
        let own = [digest(&digests), steps].map(u64::to_le_bytes).concat();
        let all = world.all_gather(&own)?;
        if all.iter().any(|other| other[..8] != own[..8]) {
            let names = variables.iter().map(|(name, _)| name.as_str());
            return Err(difference(
                &world,
                model.iterations,
                &names.collect::<Vec<_>>(),
                &digests,
            )?);
        }
        // No two processes decide by their own clocks.
        let steps = all[0].get(8..16).and_then(|bytes| bytes.try_into().ok());
        let steps = steps.map_or(EVERY, u64::from_le_bytes).clamp(1, MOST_STEPS);
        *self = Self {
            due: model.iterations.saturating_add_unsigned(steps),
            last: Some((Instant::now(), model.iterations)),
        };
        model.clock.enter(StepPart::Callbacks);
        Ok(())
    }
}

/// The error that says which worker has other values of which variable; all are here, since all have seen that one has.
fn difference(world: &World, step: i64, names: &[&str], digests: &[u64]) -> Result<Error> {
    let own: Vec<u8> = digests
        .iter()
        .flat_map(|digest| digest.to_le_bytes())
        .collect();
    let all = world.all_gather(&own)?;
    for (index, name) in names.iter().enumerate() {
        let of = |worker: &Vec<u8>| worker.get(index * 8..index * 8 + 8).map(<[u8]>::to_vec);
        let values: Vec<_> = all.iter().map(of).collect();
        let count = |value: &_| values.iter().filter(|other| *other == value).count();
        // The last of equal maxima is returned, hence in reverse: of two, worker 0's counts.
        let expected = values.iter().rev().max_by_key(|value| count(value));
        let Some(other) = values.iter().position(|value| Some(value) != expected) else {
            continue;
        };
        let most = values.iter().position(|value| Some(value) == expected);
        return Ok(Error::Cluster(format!(
            "after step {step} worker {other} has other values of `{name}` than worker {}, so that the workers train different models: look at that machine's memory, and at what sets variables in one worker alone; then go on from the last checkpoint",
            most.unwrap_or_default()
        )));
    }
    Ok(Error::Bug(
        "workers have different digests of equal variables".into(),
    ))
}

fn of_value(value: &HostTensor) -> u64 {
    let mut words = value.bytes().chunks_exact(8);
    let mut lanes = [1, 2, 3, 4];
    let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
    let mut next = 0;
    for bytes in words.by_ref() {
        lanes[next] = mixed(lanes[next], word(bytes));
        next = (next + 1) % lanes.len();
    }
    let mut rest = [0; 8];
    let left = words.remainder();
    rest[..left.len()].copy_from_slice(left);
    mixed(digest(&lanes), u64::from_le_bytes(rest))
}

fn digest(words: &[u64]) -> u64 {
    words.iter().fold(0, |so_far, word| mixed(so_far, *word))
}

/// Takes in a word. Two that differ in one argument have different results: each operation can be undone.
const fn mixed(so_far: u64, word: u64) -> u64 {
    (so_far ^ word)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(29)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bit_counts() {
        for length in [0, 1, 7, 8, 9, 33, 64] {
            let bytes: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let of = |bytes: &[u8]| of_value(&HostTensor::new([bytes.len()], bytes));
            let expected = of(&bytes);
            for bit in 0..length * 8 {
                let mut flipped = bytes.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(of(&flipped), expected, "{length} bytes, bit {bit}");
            }
        }
    }

    #[test]
    fn comparisons_are_rarer_where_they_cost_more() {
        let mut comparison = Comparison::default();
        let begun = Instant::now();
        assert_eq!(comparison.steps_to_next(5, begun), EVERY);
        assert!(comparison.is_due(0));
        let long_ago = begun.checked_sub(std::time::Duration::from_secs(1000));
        comparison.last = long_ago.map(|at| (at, 0));
        // Ten seconds a step.
        assert_eq!(comparison.steps_to_next(100, begun), EVERY);
        comparison.due = 300;
        assert!(!comparison.is_due(299) && comparison.is_due(300));
    }
}
