//! The random numbers of one example.

use crate::hash::{GOLDEN, splitmix64};

/// A random generator seeded by a key: SplitMix64 (Steele, Lea and Flood 2014).
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) const fn new(key: u64) -> Self {
        Self(key)
    }

    const fn next(&mut self) -> u64 {
        let number = splitmix64(self.0);
        self.0 = self.0.wrapping_add(GOLDEN);
        number
    }

    /// From 0 up to but not 1.
    pub(crate) fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }

    pub(crate) fn between(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * self.unit()
    }

    /// From 0 up to but not `end`, which is not 0.
    pub(crate) const fn below(&mut self, end: usize) -> usize {
        ((self.next() as u128 * end as u128) >> 64) as usize
    }

    /// A share from the Beta(alpha, alpha) distribution, by Jöhnk's method.
    pub(crate) fn share(&mut self, alpha: f32) -> f32 {
        for _ in 0..10_000 {
            let (a, b) = (self.unit().powf(1.0 / alpha), self.unit().powf(1.0 / alpha));
            if a + b > 0.0 && a + b <= 1.0 {
                return a / (a + b);
            }
        }
        0.5
    }
}
