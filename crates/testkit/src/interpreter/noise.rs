//! Errors of ops, as a rounding would make them but larger.

/// How large errors are; no errors where the size is 0.
#[derive(Clone, Copy)]
pub(super) struct Noise {
    pub(super) size: f64,
    pub(super) seed: u64,
}

impl Noise {
    pub(super) const NONE: Self = Self { size: 0.0, seed: 0 };

    pub(super) const fn is_on(&self) -> bool {
        self.size != 0.0
    }

    /// The value with an error relative to `scale`; the same for the same value and scale.
    pub(super) fn scaled(&self, value: f64, scale: f64) -> f64 {
        if !self.is_on() || !value.is_finite() || !scale.is_finite() {
            return value;
        }
        value + self.size * scale * self.unit(value.to_bits(), scale.to_bits())
    }

    /// The value with an error relative to itself.
    pub(super) fn relative(&self, value: f64) -> f64 {
        self.scaled(value, value.abs())
    }

    /// A sum with an error relative to itself, or to a quarter of its terms where they cancel.
    pub(super) fn sum(&self, value: f64, magnitude: f64) -> f64 {
        self.scaled(value, value.abs().max(magnitude / 4.0))
    }

    /// Errors of sums, given the sums of their terms' magnitudes.
    pub(super) fn sums(&self, values: &mut [f64], magnitudes: impl FnOnce() -> Vec<f64>) {
        if self.is_on() {
            for (value, magnitude) in values.iter_mut().zip(magnitudes()) {
                *value = self.sum(*value, magnitude);
            }
        }
    }

    /// A number in [-1, 1] that two words and the seed hash to.
    fn unit(&self, a: u64, b: u64) -> f64 {
        let hash = mixed(mixed(mixed(self.seed) ^ a) ^ b);
        (hash >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }
}

/// Steele, Lea and Flood's SplitMix64.
const fn mixed(word: u64) -> u64 {
    let z = word.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
