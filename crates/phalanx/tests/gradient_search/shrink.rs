//! Makes a network with a wrong gradient smaller, as long as one stays wrong.

use serde_json::Value;

use crate::compare::{Verdict, verdict};
use crate::network::Spec;
use crate::trial::{Aim, Weights};

/// So many networks are tried at most.
const TRIES: usize = 80;

/// The smallest network found that fails, too, and what is wrong with it.
pub(crate) fn shrunk(spec: &Spec, what: &str) -> (Spec, String) {
    let (mut best, mut told) = (spec.clone(), what.to_owned());
    let mut left = TRIES;
    while let Some(found) = smaller(&best, &mut left) {
        (best, told) = found;
    }
    (best, told)
}

/// The first of the smaller networks that fails, too, within so many tries.
fn smaller(spec: &Spec, left: &mut usize) -> Option<(Spec, String)> {
    for candidate in candidates(spec) {
        let Ok(model) = candidate.model() else {
            continue;
        };
        *left = left.checked_sub(1)?;
        if let Verdict::Wrong(what) = verdict(&model, &candidate.trial) {
            return Some((candidate, what));
        }
    }
    None
}

/// Smaller networks, the smallest first.
fn candidates(spec: &Spec) -> Vec<Spec> {
    let mut smaller = Vec::new();
    // The network up to an earlier use.
    for count in 1..spec.uses.len() {
        let mut cut = spec.clone();
        cut.uses.truncate(count);
        smaller.extend(cut.pruned());
    }
    // Without one use, of which the first input goes on in its place.
    let first = spec.inputs.len();
    for number in 0..spec.uses.len() {
        let replaced = spec.uses[number].inputs[0];
        let mut less = spec.clone();
        less.uses.remove(number);
        for used in &mut less.uses {
            for input in &mut used.inputs {
                *input = match *input {
                    value if value == first + number => replaced,
                    value if value > first + number => value - 1,
                    value => value,
                };
            }
        }
        if !less.uses.is_empty() {
            smaller.extend(less.pruned());
        }
    }
    smaller.extend(simpler_trials(spec));
    for input in 0..spec.inputs.len() {
        for dim in 0..spec.inputs[input].len() {
            let size = spec.inputs[input][dim];
            for less in [1, size / 2, size - 1]
                .into_iter()
                .filter(|&less| less > 0 && less < size)
            {
                let mut small = spec.clone();
                small.inputs[input][dim] = less;
                smaller.push(small);
            }
        }
    }
    smaller.extend(simpler_settings(spec));
    smaller
}

fn simpler_trials(spec: &Spec) -> Vec<Spec> {
    let mut simpler = Vec::new();
    let mut with = |change: &dyn Fn(&mut Spec)| {
        let mut changed = spec.clone();
        change(&mut changed);
        if changed != *spec {
            simpler.push(changed);
        }
    };
    with(&|spec| spec.trial.replicas = 1);
    with(&|spec| spec.trial.weights = Weights::None);
    with(&|spec| spec.trial.aim = Aim::Squares);
    with(&|spec| spec.trial.rows = 1);
    with(&|spec| spec.trial.rows = spec.trial.rows.div_ceil(2));
    with(&|spec| spec.trial.rows = (spec.trial.rows - 1).max(1));
    simpler
}

/// Each setting left out, so that it has its default, and each number halved.
fn simpler_settings(spec: &Spec) -> Vec<Spec> {
    let mut simpler = Vec::new();
    for (number, layer) in spec.layers.iter().enumerate() {
        let Some(fields) = layer.settings.as_object() else {
            continue;
        };
        for (name, value) in fields {
            let mut without = spec.clone();
            if let Some(fields) = without.layers[number].settings.as_object_mut() {
                fields.remove(name);
            }
            simpler.push(without);
            if let Some(size) = value.as_u64().filter(|&size| size > 1) {
                for less in [1, size / 2] {
                    let mut small = spec.clone();
                    small.layers[number].settings[name] = Value::from(less);
                    simpler.push(small);
                }
            }
        }
    }
    simpler
}
