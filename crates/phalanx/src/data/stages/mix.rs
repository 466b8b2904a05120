//! `mix`: several datasets in proportion to weights.
//!
//! The output repeats a pattern as long as the sum of the weights, in which each input stands as often as it weighs, spread
//! evenly: with weights 1 and 3 it is `1 0 1 1`. So the input of example `i` is entry `i % total` of the pattern, and its
//! index there is the number of examples that the input gave in earlier patterns (`i / total * weight`) plus its place within
//! this one. Unlike the random choice of `tf.data`, proportions are exact over every pattern.

use super::{Location, Stage};
use crate::data::Dataset;
use crate::{Error, Result};

/// The longest pattern, which is held in memory.
const MAX_PATTERN: u64 = 1 << 20;

/// A pattern of inputs over and over.
#[derive(Clone, Debug, PartialEq, Eq)]
struct MixPattern {
    /// The input, and how many times it was in the pattern before.
    pattern: Vec<(usize, usize)>,
    weights: Vec<usize>,
    len: Option<usize>,
}

struct Mixed {
    inputs: Vec<Dataset>,
    mix: MixPattern,
}

impl Dataset {
    /// Several datasets mixed in proportion to whole weights, spread evenly, until one of them has no more
    /// (`tf.data`'s `sample_from_datasets` with `stop_on_empty_dataset`, but without chance).
    ///
    /// Put `repeat_forever` on a dataset that is to be read more than once per epoch, and `shuffle` before it.
    ///
    /// # Errors
    /// When there is no input, or a weight is 0 or very large.
    pub fn mix(inputs: &[(Self, u32)]) -> Result<Self> {
        let weighted: Vec<_> = inputs
            .iter()
            .map(|(input, weight)| (input.len(), *weight))
            .collect();
        Ok(Self::of(Mixed {
            mix: MixPattern::new(&weighted)?,
            inputs: inputs.iter().map(|(input, _)| input.clone()).collect(),
        }))
    }
}

impl Stage for Mixed {
    fn inputs(&self) -> &[Dataset] {
        &self.inputs
    }

    fn len(&self) -> Option<usize> {
        self.mix.len
    }

    fn locate(&self, epoch: u64, i: usize) -> Result<Location> {
        let (input, index) = self.mix.locate(i);
        Ok(Location {
            input,
            epoch,
            index,
        })
    }

    fn coverage_window(&self) -> usize {
        let inputs: Vec<usize> = self.inputs.iter().map(Dataset::coverage_window).collect();
        self.mix.coverage_window(&inputs)
    }
}

impl MixPattern {
    fn new(inputs: &[(Option<usize>, u32)]) -> Result<Self> {
        if inputs.is_empty() {
            return Err(Error::user("mix of no dataset; give at least one"));
        }
        let total: u64 = inputs.iter().map(|(_, weight)| u64::from(*weight)).sum();
        if inputs.iter().any(|(_, weight)| *weight == 0) || total > MAX_PATTERN {
            return Err(Error::User(format!(
                "mix has weights with a zero among them or a sum of {total}, expected weights from 1 up and a sum of at most \
                 {MAX_PATTERN}; leave out what has no weight, divide the weights by a common factor"
            )));
        }
        let weights: Vec<usize> = inputs.iter().map(|(_, weight)| *weight as usize).collect();
        let pattern = spread(&weights);
        let ends = inputs
            .iter()
            .enumerate()
            .filter_map(|(k, (len, _))| Some(end(&pattern, &weights, k, (*len)?)));
        let len = ends.min();
        Ok(Self {
            pattern,
            weights,
            len,
        })
    }

    /// Window length guaranteed to contain as many examples of each input as `inputs` says.
    fn coverage_window(&self, inputs: &[usize]) -> usize {
        let patterns = inputs
            .iter()
            .zip(&self.weights)
            .map(|(len, weight)| len.div_ceil(*weight));
        // One more, since the window may begin within a pattern.
        let patterns = patterns.max().unwrap_or(0).saturating_add(1);
        patterns.saturating_mul(self.pattern.len())
    }

    /// The input that output index `i` comes from, and the index there.
    fn locate(&self, i: usize) -> (usize, usize) {
        let (input, before) = self.pattern[i % self.pattern.len()];
        (input, i / self.pattern.len() * self.weights[input] + before)
    }
}

/// Each input as often as it weighs, spread evenly: an input of weight `w` is due in the middle of each of `w` equal parts
/// of the pattern, and the input that is due first is next.
fn spread(weights: &[usize]) -> Vec<(usize, usize)> {
    let total: usize = weights.iter().sum();
    let mut given = vec![0; weights.len()];
    let next = |given: &[usize]| {
        // (2 n + 1) / (2 w) is the middle of the nth of w equal parts.
        let due = |k: &usize| ((2 * given[*k] + 1) as f64 / weights[*k] as f64, *k);
        let open = (0..weights.len()).filter(|&k| given[k] < weights[k]);
        open.min_by(|a, b| due(a).partial_cmp(&due(b)).expect("weights are not 0"))
    };
    let mut pattern = Vec::with_capacity(total);
    while let Some(k) = next(&given) {
        pattern.push((k, given[k]));
        given[k] += 1;
    }
    pattern
}

/// The output index at which input `k` would be asked for more than its `len` examples.
fn end(pattern: &[(usize, usize)], weights: &[usize], k: usize, len: usize) -> usize {
    let (rounds, rest) = (len / weights[k], len % weights[k]);
    let at = pattern
        .iter()
        .position(|&(input, before)| input == k && before == rest);
    rounds * pattern.len() + at.expect("each input is in the pattern as often as it weighs")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(mix: &MixPattern) -> Vec<(usize, usize)> {
        (0..mix.len.unwrap()).map(|i| mix.locate(i)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn a_mix_keeps_order_and_proportion(inputs in prop::collection::vec((0usize..50, 1u32..9), 1..5)) {
            let some: Vec<_> = inputs.iter().map(|&(len, weight)| (Some(len), weight)).collect();
            let mixed = all(&MixPattern::new(&some).unwrap());
            let total: u32 = inputs.iter().map(|(_, weight)| weight).sum();
            for (k, &(len, weight)) in inputs.iter().enumerate() {
                let own: Vec<usize> = mixed.iter().filter(|(input, _)| *input == k).map(|(_, i)| *i).collect();
                prop_assert!(own.len() <= len && own.iter().copied().eq(0..own.len()));
                let share = mixed.len() as f64 * f64::from(weight) / f64::from(total);
                prop_assert!((own.len() as f64 - share).abs() <= f64::from(weight).max(1.0) + 1e-9, "{} of {share}", own.len());
            }
        }
    }

    #[test]
    fn a_mix_is_pinned() {
        let mix = MixPattern::new(&[(None, 1), (Some(100), 3)]).unwrap();
        let first: Vec<usize> = (0..8).map(|i| mix.locate(i).0).collect();
        assert_eq!(first, [1, 0, 1, 1, 1, 0, 1, 1]);
        assert_eq!(mix.len, Some(134));
        assert!(MixPattern::new(&[(None, 0)]).is_err() && MixPattern::new(&[]).is_err());
    }
}
