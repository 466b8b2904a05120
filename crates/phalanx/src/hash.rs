//! Bits that follow from others and pass for random, the same on every machine and in every version.

/// What the counter of SplitMix64 grows by.
pub(crate) const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The number that SplitMix64 (Steele, Lea and Flood 2014) gives at this place of its counter: a bijection.
pub(crate) const fn splitmix64(counter: u64) -> u64 {
    mixed(counter.wrapping_add(GOLDEN))
}

/// The finalizer of SplitMix64.
pub(crate) const fn mixed(bits: u64) -> u64 {
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// Bits as a number from 0 to below 1: 53 of them are the fraction of an f64.
pub(crate) const fn fraction(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// FNV-1a of bytes in 64 bits (Fowler, Noll and Vo).
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_authors() {
        // The first of Vigna's splitmix64.c from 1234567.
        let counters = [1_234_567, 1_234_567u64.wrapping_add(GOLDEN)];
        let numbers = counters.map(splitmix64);
        assert_eq!(
            numbers,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]
        );
        // Of the test vectors of FNV's page.
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
