//! One sequence of several: which input the next example comes from, by arithmetic.

use crate::{Error, Result};

/// The longest pattern of a weighted mix.
const MAX_PATTERN: u64 = 1 << 20;

/// How examples of several inputs follow one another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Interleaving {
    /// Blocks of each in turn.
    Blocks {
        block: usize,
        /// Stretches in which the same inputs take part.
        stretches: Vec<Stretch>,
        len: usize,
    },
    /// A pattern of inputs over and over: the input and how many times it was in the pattern before.
    Weighted {
        pattern: Vec<(usize, usize)>,
        weights: Vec<usize>,
        len: Option<usize>,
    },
}

/// Rounds in which the same inputs give a block each; the last round of an input may be short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stretch {
    /// The first output index.
    start: usize,
    /// The first round.
    round: usize,
    /// The inputs that take part, and how many examples each gives a round.
    inputs: Vec<(usize, usize)>,
}

impl Interleaving {
    pub(super) fn blocks(lens: &[Option<usize>], block: usize) -> Result<Self> {
        let lens: Option<Vec<usize>> = lens.iter().copied().collect();
        let (Some(lens), true) = (lens, block > 0) else {
            return Err(Error::user(
                "interleave needs datasets with an end and a block of at least 1 example; \
                 put repeat_forever after interleave",
            ));
        };
        if lens.is_empty() {
            return Err(no_inputs("interleave"));
        }
        // The rounds in which something changes: an input gives its last full block, or its rest.
        let mut changes: Vec<usize> = lens
            .iter()
            .flat_map(|len| [len / block, len / block + 1])
            .collect();
        changes.push(0);
        changes.sort_unstable();
        changes.dedup();
        let mut start = 0;
        let mut stretches = Vec::new();
        for (k, &round) in changes.iter().enumerate() {
            let gives = |len: usize| len.saturating_sub(round * block).min(block);
            let inputs: Vec<(usize, usize)> = lens
                .iter()
                .map(|&len| gives(len))
                .enumerate()
                .filter(|(_, n)| *n > 0)
                .collect();
            let each: usize = inputs.iter().map(|(_, n)| n).sum();
            let rounds = changes.get(k + 1).map_or(0, |next| next - round);
            stretches.push(Stretch {
                start,
                round,
                inputs,
            });
            start += each * rounds;
        }
        Ok(Self::Blocks {
            block,
            stretches,
            len: start,
        })
    }

    pub(super) fn weighted(inputs: &[(Option<usize>, u32)]) -> Result<Self> {
        if inputs.is_empty() {
            return Err(no_inputs("mix"));
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
        Ok(Self::Weighted {
            pattern,
            weights,
            len,
        })
    }

    /// Number of examples; `None` is endless.
    pub(super) fn len(&self) -> Option<usize> {
        match self {
            Self::Blocks { len, .. } => Some(*len),
            Self::Weighted { len, .. } => *len,
        }
    }

    /// Examples in a row among which there are so many of each input.
    pub(super) fn coverage_window(&self, inputs: &[usize]) -> usize {
        match self {
            Self::Blocks { len, .. } => *len,
            Self::Weighted {
                pattern, weights, ..
            } => {
                let patterns = inputs.iter().zip(weights).map(|(len, w)| len.div_ceil(*w));
                let most = patterns.max().unwrap_or(0).saturating_add(1);
                most.saturating_mul(pattern.len())
            }
        }
    }

    /// The input that output index `i` is of, and the index there.
    pub(super) fn locate(&self, i: usize) -> (usize, usize) {
        match self {
            Self::Blocks {
                block, stretches, ..
            } => {
                let at = stretches.partition_point(|stretch| stretch.start <= i) - 1;
                // A stretch without examples starts where the next one does.
                let stretch = &stretches[at];
                let each: usize = stretch.inputs.iter().map(|(_, n)| n).sum();
                let round = stretch.round + (i - stretch.start) / each;
                let mut rest = (i - stretch.start) % each;
                for &(input, gives) in &stretch.inputs {
                    if rest < gives {
                        return (input, round * block + rest);
                    }
                    rest -= gives;
                }
                unreachable!("the rest is less than what all inputs give")
            }
            Self::Weighted {
                pattern, weights, ..
            } => {
                let (input, before) = pattern[i % pattern.len()];
                (input, i / pattern.len() * weights[input] + before)
            }
        }
    }
}

/// Each input as often as it weighs, spread evenly: next is the one whose next multiple of total / weight is least.
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

fn no_inputs(stage: &str) -> Error {
    Error::User(format!("{stage} of no dataset; give at least one"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(interleaving: &Interleaving) -> Vec<(usize, usize)> {
        (0..interleaving.len().unwrap())
            .map(|i| interleaving.locate(i))
            .collect()
    }

    /// What `interleave` means, step by step.
    fn blocks_by_hand(lens: &[usize], block: usize) -> Vec<(usize, usize)> {
        let mut given = vec![0; lens.len()];
        let mut out = Vec::new();
        while out.len() < lens.iter().sum() {
            for (k, &len) in lens.iter().enumerate() {
                for _ in 0..block.min(len - given[k]) {
                    out.push((k, given[k]));
                    given[k] += 1;
                }
            }
        }
        out
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn blocks_follow_in_turn(lens in prop::collection::vec(0usize..30, 1..6), block in 1usize..7) {
            let some: Vec<_> = lens.iter().copied().map(Some).collect();
            prop_assert_eq!(all(&Interleaving::blocks(&some, block).unwrap()), blocks_by_hand(&lens, block));
        }

        #[test]
        fn a_mix_keeps_order_and_proportion(inputs in prop::collection::vec((0usize..50, 1u32..9), 1..5)) {
            let some: Vec<_> = inputs.iter().map(|&(len, weight)| (Some(len), weight)).collect();
            let mixed = all(&Interleaving::weighted(&some).unwrap());
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
        let mix = Interleaving::weighted(&[(None, 1), (Some(100), 3)]).unwrap();
        let first: Vec<usize> = (0..8).map(|i| mix.locate(i).0).collect();
        assert_eq!(first, [1, 0, 1, 1, 1, 0, 1, 1]);
        assert_eq!(mix.len(), Some(134));
        assert!(
            Interleaving::weighted(&[(None, 0)]).is_err() && Interleaving::weighted(&[]).is_err()
        );
        assert!(
            Interleaving::blocks(&[None], 1).is_err()
                && Interleaving::blocks(&[Some(1)], 0).is_err()
        );
    }
}
