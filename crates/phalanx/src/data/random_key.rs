//! Random numbers that follow from where an example is, so that no generator has a state.

/// A random number for the example at `i` of an epoch, the same for any worker, thread and order.
pub(super) fn random_key(seed: u64, epoch: u64, i: u64) -> u64 {
    splitmix64(splitmix64(splitmix64(seed).wrapping_add(epoch)).wrapping_add(i))
}

/// The output function of SplitMix64 (Steele, Lea and Flood 2014): a bijection whose results pass for random.
pub(super) fn splitmix64(value: u64) -> u64 {
    let z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
