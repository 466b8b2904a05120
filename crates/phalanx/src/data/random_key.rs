//! Random numbers that follow from where an example is, so that no generator has a state.

use crate::hash::splitmix64;

/// A random number for the example at `i` of an epoch, the same for any worker, thread and order.
pub(super) fn random_key(seed: u64, epoch: u64, i: u64) -> u64 {
    splitmix64(splitmix64(splitmix64(seed).wrapping_add(epoch)).wrapping_add(i))
}
