//! Stages that only change which index is read: arithmetic shared by datasets and batches.

use crate::{Error, Result};

/// A change of order or length.
#[derive(Clone, Copy, Debug)]
pub(super) enum Order {
    /// All of the input, permuted by (seed, epoch).
    Shuffle(u64),
    /// The first so many.
    Take(usize),
    /// All but the first so many.
    Skip(usize),
    /// So many times in sequence, or without end.
    Repeat(Option<usize>),
}

impl Order {
    /// The length of the output from that of the input; `None` is endless.
    pub(super) fn len(self, input: Option<usize>) -> Option<usize> {
        match self {
            Self::Shuffle(_) => input,
            Self::Take(count) => Some(input.map_or(count, |len| len.min(count))),
            Self::Skip(count) => input.map(|len| len.saturating_sub(count)),
            Self::Repeat(_) if input == Some(0) => Some(0),
            Self::Repeat(count) => Some(input?.saturating_mul(count?)),
        }
    }

    /// The epoch and index of the input that output index `i` of `epoch` reads.
    ///
    /// Repetition r of epoch e is epoch e * count + r of the input, so that no two repetitions of a run are
    /// shuffled alike; of an endless repetition it is e * 2^32 + r.
    pub(super) fn locate(self, input: Option<usize>, epoch: u64, i: usize) -> Result<(u64, usize)> {
        match self {
            Self::Shuffle(seed) => match input {
                Some(len) => Ok((epoch, permute(len as u64, seed, epoch, i as u64) as usize)),
                None => Err(Error::user(
                    "cannot shuffle an endless dataset: its order is a permutation of all examples; \
                     put shuffle before repeat_forever",
                )),
            },
            Self::Take(_) => Ok((epoch, i)),
            Self::Skip(count) => Ok((epoch, i.saturating_add(count))),
            Self::Repeat(count) => Ok(match input {
                None | Some(0) => (epoch, i),
                Some(len) => {
                    let per_epoch = count.map_or(1 << 32, |count| count as u64);
                    let repetition = (i / len) as u64;
                    (
                        epoch.wrapping_mul(per_epoch).wrapping_add(repetition),
                        i % len,
                    )
                }
            }),
        }
    }
}

/// Number of pairs of Feistel rounds.
const ROUND_PAIRS: u64 = 4;
/// The least bits of the network: with fewer, the orders of 5 items are not uniform over seeds (tested).
const MIN_BITS: u32 = 8;

/// Where index `i` of `0..len` goes under the permutation of (seed, epoch), in constant time and memory.
///
/// A Feistel network over the least power of two from `len`, walked until it lands below `len` (fewer than two
/// steps on average from 128 on, at most 2^8 / `len` below).
pub(super) fn permute(len: u64, seed: u64, epoch: u64, i: u64) -> u64 {
    assert!(i < len, "index {i} of {len}");
    if len == 1 {
        return 0;
    }
    let key = mix(mix(seed).wrapping_add(epoch));
    let bits = (u64::BITS - (len - 1).leading_zeros()).max(MIN_BITS);
    let mut at = i;
    loop {
        at = feistel(at, bits, key);
        if at < len {
            return at;
        }
    }
}

/// A random number for the example at `i` of an epoch.
pub(super) fn key_of(seed: u64, epoch: u64, i: u64) -> u64 {
    mix(mix(mix(seed).wrapping_add(epoch)).wrapping_add(i))
}

/// A bijection of `0..2^bits`: each half in turn is changed by a keyed hash of the other.
fn feistel(value: u64, bits: u32, key: u64) -> u64 {
    let low_bits = bits / 2;
    let low_mask = (1u64 << low_bits) - 1;
    let high_mask = (1u64 << (bits - low_bits)) - 1;
    let (mut high, mut low) = (value >> low_bits, value & low_mask);
    for round in 0..ROUND_PAIRS {
        let round_key = key.wrapping_add(mix(2 * round + 1));
        high ^= mix(low ^ round_key) & high_mask;
        low ^= mix(high.wrapping_add(!round_key)) & low_mask;
    }
    (high << low_bits) | low
}

/// The output function of SplitMix64 (Steele, Lea and Flood 2014).
fn mix(value: u64) -> u64 {
    let z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
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
