//! The values of the next trial, from the trials so far. There is no other state: a search that was interrupted goes on.

use std::collections::{BTreeMap, BTreeSet};

use super::gaussian::{Random, best_place};
use super::space;
use crate::lifecycle::{Trial, TrialState};
use crate::spec::{Algorithm, Goal, Hyperparameters, Parameter};

/// Trials that a model needs before it says more than chance.
const AT_RANDOM: usize = 8;

/// More combinations than this are not looked through for one that was not tried: chance finds it.
const MOST_COMBINATIONS: usize = 1 << 12;

/// The values of trial number `number` (from 1); `None` when all of a grid was tried.
pub(super) fn next(
    search: &Hyperparameters,
    trials: &[Trial],
    number: u32,
    seed: u64,
) -> Option<BTreeMap<String, String>> {
    // Values that were tried before teach nothing, where there are others.
    let tried =
        |values: &BTreeMap<String, String>| trials.iter().any(|trial| trial.values == *values);
    if search.algorithm == Algorithm::Grid {
        // By what was tried and not by the number: trials of a search before count, too.
        let tried: BTreeSet<_> = trials.iter().map(|trial| &trial.values).collect();
        let lists = lists(search)?;
        let mut grid = (0..).map_while(|at| of_grid(search, &lists, at));
        return grid.find(|values| !tried.contains(values));
    }
    let mut last = None;
    for again in 0..8 {
        let seed = seed ^ u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (again << 40);
        let algorithm = if again < 4 {
            search.algorithm
        } else {
            Algorithm::Random
        };
        let values = sampled(search, algorithm, trials, seed);
        if !tried(&values) {
            return Some(values);
        }
        last = Some(values);
    }
    untried(search, trials, seed ^ u64::from(number)).or(last)
}

/// A combination that was not tried, of a search that has few enough to look through.
fn untried(
    search: &Hyperparameters,
    trials: &[Trial],
    seed: u64,
) -> Option<BTreeMap<String, String>> {
    let lists = lists(search)?;
    let mut counts = lists.iter().map(Vec::len);
    let count = counts.try_fold(1, usize::checked_mul)?;
    if count > MOST_COMBINATIONS {
        return None;
    }
    let first = (Random(seed).uniform() * count as f64) as usize;
    let combinations = (0..count).map(|at| (first + at) % count);
    let mut combinations = combinations.filter_map(|at| of_grid(search, &lists, at));
    combinations.find(|values| trials.iter().all(|trial| trial.values != *values))
}

/// The values of each parameter, where all have finitely many.
fn lists(search: &Hyperparameters) -> Option<Vec<Vec<String>>> {
    search.params.iter().map(space::values).collect()
}

/// The combinations of `lists`, of which the values of the last parameter change first; `None` after the last of them.
fn of_grid(
    search: &Hyperparameters,
    lists: &[Vec<String>],
    at: usize,
) -> Option<BTreeMap<String, String>> {
    let mut rest = at;
    let mut chosen = BTreeMap::new();
    for (param, values) in search.params.iter().zip(lists).rev() {
        chosen.insert(param.name.clone(), values[rest % values.len()].clone());
        rest /= values.len();
    }
    (rest == 0).then_some(chosen)
}

fn sampled(
    search: &Hyperparameters,
    algorithm: Algorithm,
    trials: &[Trial],
    seed: u64,
) -> BTreeMap<String, String> {
    let mut random = Random(seed);
    let known = if algorithm == Algorithm::Bayesian {
        known(search, trials)
    } else {
        Vec::new()
    };
    let modelled = (known.len() >= AT_RANDOM)
        .then(|| best_place(known, &mut random))
        .flatten();
    let place =
        modelled.unwrap_or_else(|| search.params.iter().map(|_| random.uniform()).collect());
    let value =
        |(param, place): (&Parameter, &f64)| (param.name.clone(), space::value(param, *place));
    search.params.iter().zip(&place).map(value).collect()
}

/// Where trials were, and what they cost: small is good. Trials that run count as the mean, so that the next one goes elsewhere; trials
/// that failed as the worst.
fn known(search: &Hyperparameters, trials: &[Trial]) -> Vec<(Vec<f64>, f64)> {
    let sign = if search.goal == Goal::Maximize {
        -1.0
    } else {
        1.0
    };
    let cost = |trial: &Trial| {
        trial
            .metric
            .map(|(_, value)| sign * value)
            .filter(|cost| cost.is_finite())
    };
    let costs: Vec<f64> = trials
        .iter()
        .filter(|trial| !matches!(trial.state, TrialState::Running | TrialState::Cancelled))
        .filter_map(cost)
        .collect();
    if costs.is_empty() {
        return Vec::new();
    }
    let mean = costs.iter().sum::<f64>() / costs.len() as f64;
    let worst = costs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let told = |trial: &Trial| {
        let places = search
            .params
            .iter()
            .map(|param| space::place(param, trial.values.get(&param.name)?));
        let places: Option<Vec<f64>> = places.collect();
        let cost = match trial.state {
            TrialState::Running | TrialState::Cancelled => mean,
            TrialState::Failed => worst,
            TrialState::Succeeded | TrialState::Stopped => cost(trial).unwrap_or(worst),
        };
        Some((places?, cost))
    };
    trials.iter().filter_map(told).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{ParameterKind, Scale};

    fn search(algorithm: Algorithm, params: Vec<(&str, ParameterKind)>) -> Hyperparameters {
        Hyperparameters {
            goal: Goal::Minimize,
            metric: "loss".into(),
            max_trials: 30,
            max_parallel: 1,
            max_failed: 0,
            early_stopping: false,
            algorithm,
            resume: None,
            params: params
                .into_iter()
                .map(|(name, kind)| Parameter {
                    name: name.into(),
                    kind,
                })
                .collect(),
        }
    }

    fn trial(number: u32, values: BTreeMap<String, String>, value: f64) -> Trial {
        Trial {
            number,
            values,
            state: TrialState::Succeeded,
            metric: Some((1, value)),
            metrics: Vec::new(),
            started: 0,
            ended: Some(1),
        }
    }

    /// A bowl whose least value lies at a learning rate of 0.01, 48 units and a dropout of 0.3; the region around it where the value is at
    /// most 0.005 is some thousandth of all.
    fn bowl(values: &BTreeMap<String, String>) -> f64 {
        let number = |name: &str| values[name].parse::<f64>().unwrap();
        let rate = (number("rate") / 0.01).log10() / 3.0;
        let units = (number("units") - 48.0) / 120.0;
        let drop = number("drop") - 0.3;
        rate * rate + units * units + drop * drop
    }

    fn bowl_search(algorithm: Algorithm) -> Hyperparameters {
        search(
            algorithm,
            vec![
                (
                    "rate",
                    ParameterKind::Double {
                        min: 1e-5,
                        max: 1.0,
                        scale: Scale::Log,
                    },
                ),
                (
                    "units",
                    ParameterKind::Integer {
                        min: 8,
                        max: 128,
                        scale: Scale::Linear,
                    },
                ),
                (
                    "drop",
                    ParameterKind::Double {
                        min: 0.0,
                        max: 0.9,
                        scale: Scale::Linear,
                    },
                ),
            ],
        )
    }

    /// The seeds of 20 whose best of 30 trials is at most `within`.
    fn found(algorithm: Algorithm, within: f64) -> usize {
        let search = bowl_search(algorithm);
        let best = |seed: u64| {
            let mut trials = Vec::new();
            for number in 1..=30 {
                let values = next(&search, &trials, number, seed).unwrap();
                let value = bowl(&values);
                trials.push(trial(number, values, value));
            }
            let values = trials.iter().filter_map(|trial| trial.metric);
            values.map(|(_, value)| value).fold(f64::INFINITY, f64::min)
        };
        (0..20).filter(|seed| best(*seed) <= within).count()
    }

    #[test]
    fn the_best_region_is_found_in_30_trials() {
        let (model, chance) = (
            found(Algorithm::Bayesian, 0.005),
            found(Algorithm::Random, 0.005),
        );
        assert!(model >= 18, "{model} of 20 seeds; by chance {chance}");
        assert!(chance <= 2, "chance finds it, too: {chance} of 20 seeds");
    }

    #[test]
    fn a_grid_has_every_combination_once() {
        let lists = vec![
            (
                "a",
                ParameterKind::Categorical(vec!["x".into(), "y".into()]),
            ),
            (
                "b",
                ParameterKind::Integer {
                    min: -1,
                    max: 1,
                    scale: Scale::Linear,
                },
            ),
            ("c", ParameterKind::Discrete(vec![0.5, 2.0])),
        ];
        let search = search(Algorithm::Grid, lists);
        let mut trials: Vec<Trial> = Vec::new();
        // As of a search that goes on from another: the numbers do, too.
        for number in 31..=42 {
            let values = next(&search, &trials, number, 0).unwrap();
            trials.push(trial(number, values, 0.0));
        }
        let distinct: BTreeSet<_> = trials.iter().map(|trial| &trial.values).collect();
        assert_eq!(distinct.len(), 12);
        assert_eq!(next(&search, &trials, 43, 0), None);
        // Another may have tried only some of them.
        let missing = trials.remove(7).values;
        assert_eq!(next(&search, &trials, 43, 0), Some(missing));
        let first = [("a", "x"), ("b", "-1"), ("c", "0.5")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(trials[0].values, BTreeMap::from(first));
    }

    #[test]
    fn few_combinations_are_all_tried_before_one_is_tried_again() {
        let discrete = ParameterKind::Discrete(vec![1.0, 2.0, 3.0]);
        let letters = ParameterKind::Categorical(vec!["x".into(), "y".into()]);
        for algorithm in [Algorithm::Bayesian, Algorithm::Random] {
            let lists = vec![("a", discrete.clone()), ("b", letters.clone())];
            let search = search(algorithm, lists);
            for seed in 0..50 {
                let mut trials: Vec<Trial> = Vec::new();
                for number in 1..=6 {
                    let values = next(&search, &trials, number, seed).unwrap();
                    let is_new = trials.iter().all(|trial| trial.values != values);
                    assert!(is_new, "seed {seed}, trial {number}: {values:?}");
                    trials.push(trial(number, values, 0.0));
                }
                assert!(next(&search, &trials, 7, seed).is_some());
            }
        }
    }

    #[test]
    fn trials_at_the_same_time_differ() {
        let search = bowl_search(Algorithm::Bayesian);
        let mut trials: Vec<Trial> = Vec::new();
        for number in 1..=12 {
            let values = next(&search, &trials, number, 1).unwrap();
            let value = bowl(&values);
            trials.push(trial(number, values, value));
        }
        for number in 13..=16 {
            let values = next(&search, &trials, number, 1).unwrap();
            assert!(trials.iter().all(|trial| trial.values != values));
            trials.push(Trial {
                state: TrialState::Running,
                metric: None,
                ended: None,
                ..trial(number, values, 0.0)
            });
        }
        assert_eq!(next(&search, &trials, 17, 1), next(&search, &trials, 17, 1));
    }
}
