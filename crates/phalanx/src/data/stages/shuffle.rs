//! `shuffle`: a random order without a buffer, by a keyed permutation of the indices.
//!
//! `tf.data` shuffles by holding a buffer of examples and drawing from it, which costs memory, is only as random as the
//! buffer is large, and must be refilled to resume. Here example `i` of the output is example `permute(i)` of the input, and
//! `permute` is a bijection of `0..len` chosen by (seed, epoch). It is computed in constant time and memory, so any worker
//! can read any index, and resuming needs no state.
//!
//! The bijection is a Feistel network: an index is split into a high and a low half of its bits, and each half in
//! turn is combined by exclusive or with a keyed hash of the other. Every round can be undone, whatever the hash, so the
//! network maps `0..2^bits` onto itself. Where the result is not below `len` the network is applied again ("cycle
//! walking"): following a cycle of a bijection from an index below `len` leads back below `len`, and no two indices arrive at
//! the same one.

use super::Reindex;
use crate::data::Dataset;
use crate::hash::splitmix64;
use crate::{Error, Result};

/// All of the input, permuted by (seed, epoch).
#[derive(Clone, Copy)]
struct Shuffle(u64);

impl Dataset {
    /// All examples in an order drawn from (seed, epoch): a full permutation, new in every epoch.
    ///
    /// Unlike `tf.data` there is no buffer size: the order is as random for sorted files, and takes no memory.
    /// Reading an endless dataset through it is an error: shuffle before `repeat_forever`.
    #[must_use]
    pub fn shuffle(&self, seed: u64) -> Self {
        self.reindexed(Shuffle(seed))
    }
}

impl Reindex for Shuffle {
    fn len(&self, input: Option<usize>) -> Option<usize> {
        input
    }

    fn locate(&self, input: Option<usize>, epoch: u64, i: usize) -> Result<(u64, usize)> {
        match input {
            Some(len) => Ok((epoch, permute(len as u64, self.0, epoch, i as u64) as usize)),
            None => Err(Error::user(
                "cannot shuffle an endless dataset: its order is a permutation of all examples; \
                 put shuffle before repeat_forever",
            )),
        }
    }

    fn shards_by_file(&self) -> bool {
        true
    }

    fn shuffles(&self) -> bool {
        true
    }
}

/// Number of pairs of Feistel rounds.
const ROUND_PAIRS: u64 = 4;
/// The fewest bits of the network: with fewer, the orders of 5 items are not uniform over seeds (tested).
const MIN_BITS: u32 = 8;

/// Where index `i` of `0..len` goes under the permutation of (seed, epoch).
///
/// The network has the fewest bits that hold `len`, so that cycle walking takes fewer than two steps on average from 128
/// examples on, and at most 2^8 / `len` below.
pub(in crate::data) fn permute(len: u64, seed: u64, epoch: u64, i: u64) -> u64 {
    assert!(i < len, "index {i} of {len}");
    if len == 1 {
        return 0;
    }
    let key = splitmix64(splitmix64(seed).wrapping_add(epoch));
    let bits = (u64::BITS - (len - 1).leading_zeros()).max(MIN_BITS);
    let mut at = i;
    loop {
        at = feistel(at, bits, key);
        if at < len {
            return at;
        }
    }
}

/// A bijection of `0..2^bits`: each half in turn is changed by a keyed hash of the other.
fn feistel(value: u64, bits: u32, key: u64) -> u64 {
    let low_bits = bits / 2;
    let low_mask = (1u64 << low_bits) - 1;
    let high_mask = (1u64 << (bits - low_bits)) - 1;
    let (mut high, mut low) = (value >> low_bits, value & low_mask);
    for round in 0..ROUND_PAIRS {
        let round_key = key.wrapping_add(splitmix64(2 * round + 1));
        high ^= splitmix64(low ^ round_key) & high_mask;
        low ^= splitmix64(high.wrapping_add(!round_key)) & low_mask;
    }
    (high << low_bits) | low
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn order(len: u64, seed: u64, epoch: u64) -> Vec<u64> {
        (0..len).map(|i| permute(len, seed, epoch, i)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn every_length_and_seed_gives_a_bijection(len in 1u64..3000, seed: u64, epoch: u64) {
            let mut seen = order(len, seed, epoch);
            seen.sort_unstable();
            prop_assert!(seen.into_iter().eq(0..len));
        }

        #[test]
        fn huge_lengths_stay_in_range(len in 1u64..=u64::MAX, seed: u64, i: u64) {
            prop_assert!(permute(len, seed, 0, i % len) < len);
        }
    }

    #[test]
    fn small_lengths_give_bijections() {
        for len in 1..70 {
            let mut seen = order(len, 7, 3);
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..len), "{len}");
        }
    }

    /// Pinned: a change here changes the order of every user's data.
    #[test]
    fn the_order_is_pinned() {
        assert_eq!(order(10, 42, 0), [7, 0, 6, 1, 3, 4, 5, 8, 9, 2]);
        assert_eq!(order(10, 42, 1), [9, 1, 8, 0, 3, 5, 7, 2, 4, 6]);
        assert_eq!(permute(60_000, 0, 0, 0), 32099);
    }

    #[test]
    fn orders_are_near_uniform_over_seeds_and_epochs() {
        for (len, orders) in [(2, 2.0), (3, 6.0), (4, 24.0), (5, 120.0)] {
            let mut counts: HashMap<Vec<u64>, f64> = HashMap::new();
            let draws = 24_000;
            for draw in 0..draws {
                *counts
                    .entry(order(len, draw / 100, draw % 100))
                    .or_default() += 1.0;
            }
            assert_eq!(counts.len() as f64, orders, "orders of {len}");
            let expected = draws as f64 / orders;
            let chi_squared: f64 = counts
                .values()
                .map(|n| (n - expected).powi(2) / expected)
                .sum();
            let freedom = orders - 1.0;
            assert!(
                chi_squared < freedom + 5.0 * (2.0 * freedom).sqrt(),
                "{len}: {chi_squared}"
            );
        }
    }

    #[test]
    fn positions_do_not_depend_on_neighbours() {
        let len = 1000.0;
        let order: Vec<f64> = order(1000, 1, 0).into_iter().map(|i| i as f64).collect();
        let step: f64 = order.windows(2).map(|w| (w[1] - w[0]).abs()).sum::<f64>() / 999.0;
        assert!(
            (step - len / 3.0).abs() < 30.0,
            "mean step {step}, of a random order {}",
            len / 3.0
        );
    }
}
