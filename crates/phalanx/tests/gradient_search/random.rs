//! Random numbers that follow from a seed alone.

/// Steele and others' SplitMix64.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// A stream of its own for one of many uses of a seed.
    pub(crate) fn of(seed: u64, stream: u64) -> Self {
        let mut mixed = Self(stream.wrapping_mul(0xd1b5_4a32_d192_ed03));
        Self(seed ^ mixed.bits())
    }

    pub(crate) const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform between 0 and 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform from `low` to `high`, both among them.
    pub(crate) fn from(&mut self, low: usize, high: usize) -> usize {
        low + (self.bits() % (high - low + 1) as u64) as usize
    }

    /// Sizes of every order alike: as often 1 to 3 as 10 to 30.
    pub(crate) fn size(&mut self, most: usize) -> usize {
        let size = (most as f64 + 1.0).powf(self.unit());
        (size as usize).clamp(1, most)
    }

    pub(crate) fn chance(&mut self, of_one: f64) -> bool {
        self.unit() < of_one
    }

    pub(crate) fn of_list<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.from(0, list.len() - 1)]
    }

    /// Box and Muller's normal numbers.
    pub(crate) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    pub(crate) fn normals(&mut self, count: usize) -> Vec<f64> {
        (0..count).map(|_| self.normal()).collect()
    }
}
