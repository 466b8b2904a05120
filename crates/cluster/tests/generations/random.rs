//! Numbers that look random, and are the same for the same seed.

use std::time::Duration;

/// A generator of numbers (splitmix64).
pub(super) struct Random(pub(super) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
    pub(super) fn millis(&mut self, bound: u64) -> Duration {
        Duration::from_millis(self.below(bound))
    }
    pub(super) fn chance(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }
}

pub(super) fn mix(number: u64) -> u64 {
    let mut mixed = number;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
