//! Numbers that look random, and are the same for the same seed.

/// A generator of numbers (splitmix64) from a seed.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The generator of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number, from 0 to below `bound`.
    ///
    /// # Panics
    /// When `bound` is 0.
    pub const fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first numbers of the published generator for the seed 1234567.
    #[test]
    fn numbers_are_those_of_splitmix64() {
        let mut random = Random::new(1_234_567);
        let first = [random.below(u64::MAX), random.below(u64::MAX)];
        assert_eq!(
            first,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]
        );
    }
}
