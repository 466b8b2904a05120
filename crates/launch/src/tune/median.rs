//! Whether a trial is worse than the median of the others, by AI Platform's rule: at some step its best value so far is worse than the
//! median of the averages that the trials which have ended had up to that step.

use crate::lifecycle::{Trial, TrialState};
use crate::spec::Goal;

/// Fewer trials than this say nothing of what is usual.
const FEWEST: usize = 3;

pub(super) fn is_worse(goal: Goal, own: &[(i64, f64)], trials: &[Trial]) -> bool {
    let Some((step, _)) = own.last() else {
        return false;
    };
    let sign = if goal == Goal::Maximize { 1.0 } else { -1.0 };
    let average = |trial: &Trial| {
        let until: Vec<f64> = trial
            .metrics
            .iter()
            .filter(|(at, _)| at <= step)
            .map(|(_, value)| sign * value)
            .collect();
        (!until.is_empty()).then(|| until.iter().sum::<f64>() / until.len() as f64)
    };
    let ended = trials
        .iter()
        .filter(|trial| trial.state == TrialState::Succeeded);
    let mut averages: Vec<f64> = ended.filter_map(average).collect();
    if averages.len() < FEWEST {
        return false;
    }
    averages.sort_by(f64::total_cmp);
    let (low, high) = (
        averages[(averages.len() - 1) / 2],
        averages[averages.len() / 2],
    );
    let best = own
        .iter()
        .map(|(_, value)| sign * value)
        .fold(f64::NEG_INFINITY, f64::max);
    best < f64::midpoint(low, high)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn a_trial_worse_than_the_median_at_its_step_ends() {
        let trial = |values: &[f64]| Trial {
            number: 1,
            values: BTreeMap::new(),
            state: TrialState::Succeeded,
            metric: None,
            metrics: values
                .iter()
                .enumerate()
                .map(|(at, value)| (at as i64 + 1, *value))
                .collect(),
            started: 0,
            ended: None,
        };
        // Averages up to the second step: 0.3, 0.5, 0.7.
        let others = [
            trial(&[0.2, 0.4, 0.9]),
            trial(&[0.4, 0.6, 0.9]),
            trial(&[0.6, 0.8, 0.9]),
        ];
        let up = |own: &[(i64, f64)]| is_worse(Goal::Maximize, own, &others);
        assert!(up(&[(1, 0.1), (2, 0.49)]));
        assert!(!up(&[(1, 0.1), (2, 0.51)]));
        assert!(!up(&[(1, 0.51), (2, 0.1)]), "its best counts");
        assert!(!up(&[]));
        assert!(!is_worse(Goal::Maximize, &[(2, 0.0)], &others[..2]));
        assert!(is_worse(Goal::Minimize, &[(2, 0.51)], &others));
        assert!(!is_worse(Goal::Minimize, &[(2, 0.49)], &others));
    }
}
