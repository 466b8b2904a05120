//! `interleave`: blocks of several datasets in turn.
//!
//! Which input example `i` comes from follows from the lengths alone. In round `r` every input that still has examples gives
//! its next block; an input of `len` examples gives full blocks in rounds `0..len / block` and its rest in the round after.
//! So the set of inputs that take part, and how much each gives, changes in at most two rounds per input. The rounds between
//! two changes are a *stretch*, in which all rounds are alike: finding `i` is a binary search for its stretch, a division for
//! the round, and a walk over the inputs of that round. Interleaving a million files costs memory for the stretches, never
//! for the examples.

use super::{Location, Stage};
use crate::data::Dataset;
use crate::{Error, Result};

/// Blocks of each input in turn.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Interleaving {
    block: usize,
    stretches: Vec<Stretch>,
    len: usize,
}

/// Consecutive rounds in which the same inputs give a block each; in the last round of an input the block may be short.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stretch {
    /// The first output index.
    start: usize,
    /// The first round.
    round: usize,
    /// The inputs that take part, and how many examples each gives in a round.
    inputs: Vec<(usize, usize)>,
}

struct Interleaved {
    inputs: Vec<Dataset>,
    interleaving: Interleaving,
}

impl Dataset {
    /// One dataset of several of equal standing: blocks of `block` consecutive examples from each in turn, until
    /// the last has ended (`tf.data`'s `interleave` with all inputs in the cycle).
    ///
    /// # Errors
    /// When there is no input, one is endless, or `block` is 0.
    pub fn interleave(inputs: &[Self], block: usize) -> Result<Self> {
        let lens: Vec<_> = inputs.iter().map(Self::len).collect();
        Ok(Self::of(Interleaved {
            interleaving: Interleaving::new(&lens, block)?,
            inputs: inputs.to_vec(),
        }))
    }
}

impl Stage for Interleaved {
    fn inputs(&self) -> &[Dataset] {
        &self.inputs
    }

    fn len(&self) -> Option<usize> {
        Some(self.interleaving.len)
    }

    fn locate(&self, epoch: u64, i: usize) -> Result<Location> {
        let (input, index) = self.interleaving.locate(i);
        Ok(Location {
            input,
            epoch,
            index,
        })
    }

    /// All of it: the rest of a long input comes last.
    fn coverage_window(&self) -> usize {
        self.interleaving.len
    }
}

impl Interleaving {
    fn new(lens: &[Option<usize>], block: usize) -> Result<Self> {
        let lens: Option<Vec<usize>> = lens.iter().copied().collect();
        let (Some(lens), true) = (lens, block > 0) else {
            return Err(Error::user(
                "interleave needs datasets with an end and a block of at least 1 example; \
                 put repeat_forever after interleave",
            ));
        };
        if lens.is_empty() {
            return Err(Error::user("interleave of no dataset; give at least one"));
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
        Ok(Self {
            block,
            stretches,
            len: start,
        })
    }

    /// The input that output index `i` comes from, and the index there.
    fn locate(&self, i: usize) -> (usize, usize) {
        let at = self.stretches.partition_point(|stretch| stretch.start <= i) - 1;
        // A stretch without examples starts where the next one does.
        let stretch = &self.stretches[at];
        let each: usize = stretch.inputs.iter().map(|(_, n)| n).sum();
        let round = stretch.round + (i - stretch.start) / each;
        let mut rest = (i - stretch.start) % each;
        for &(input, gives) in &stretch.inputs {
            if rest < gives {
                return (input, round * self.block + rest);
            }
            rest -= gives;
        }
        unreachable!("the rest is less than what all inputs give")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(interleaving: &Interleaving) -> Vec<(usize, usize)> {
        (0..interleaving.len)
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
            prop_assert_eq!(all(&Interleaving::new(&some, block).unwrap()), blocks_by_hand(&lens, block));
        }
    }

    #[test]
    fn no_block_and_no_end_are_refused() {
        assert!(Interleaving::new(&[None], 1).is_err());
        assert!(Interleaving::new(&[Some(1)], 0).is_err());
    }
}
