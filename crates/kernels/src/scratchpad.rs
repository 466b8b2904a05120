//! Memory whose vectors never lie across two lines of a cache: such vectors take two reads.

/// Alignment of scratch memory: a line of the cache, which is also the widest vector and what oneDNN prefers.
pub(crate) const ALIGNMENT: usize = 64;

/// Memory that operations use one after the other; it only grows.
#[derive(Default)]
pub(crate) struct Scratchpad(Vec<CacheLine>);

/// A cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct CacheLine(#[expect(dead_code, reason = "written through a pointer")] [u8; ALIGNMENT]);

impl Scratchpad {
    /// `count` numbers of unspecified values.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn floats(&mut self, count: usize) -> &mut [f32] {
        let start = self.at_least(count * size_of::<f32>());
        // SAFETY: as in `doubles`.
        unsafe { std::slice::from_raw_parts_mut(start.cast(), count) }
    }

    /// `count` numbers of unspecified values.
    pub(crate) fn doubles(&mut self, count: usize) -> &mut [f64] {
        let start = self.at_least(count * size_of::<f64>());
        // SAFETY: so many bytes are there, aligned, initialised, and borrowed with the scratchpad; each pattern is a number.
        unsafe { std::slice::from_raw_parts_mut(start.cast(), count) }
    }

    /// The start of at least `bytes` bytes.
    pub(crate) fn at_least(&mut self, bytes: usize) -> *mut u8 {
        let lines = bytes.div_ceil(ALIGNMENT);
        if self.0.len() < lines {
            // The contents are not kept. The old memory is freed first, so that both never exist at the same time.
            self.0 = Vec::new();
            self.0 = vec![CacheLine([0; ALIGNMENT]); lines];
        }
        self.0.as_mut_ptr().cast()
    }
}

/// Numbers whose first begins a line of the cache.
#[cfg(target_arch = "x86_64")]
pub(crate) struct AlignedFloats {
    lines: Vec<CacheLine>,
    count: usize,
}

#[cfg(target_arch = "x86_64")]
impl AlignedFloats {
    /// `count` zeros.
    pub(crate) fn zeros(count: usize) -> Self {
        let lines = (count * size_of::<f32>()).div_ceil(ALIGNMENT);
        Self {
            lines: vec![CacheLine([0; ALIGNMENT]); lines],
            count,
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl std::ops::Deref for AlignedFloats {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        // SAFETY: the lines have so many numbers, which were zeros at first; each pattern is a number.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.count) }
    }
}

#[cfg(target_arch = "x86_64")]
impl std::ops::DerefMut for AlignedFloats {
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as in `deref`.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.count) }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn floats_begin_a_line_of_the_cache() {
        for count in [0, 1, 15, 16, 17, 100_000] {
            let mut floats = AlignedFloats::zeros(count);
            assert_eq!(floats.as_ptr().addr() % ALIGNMENT, 0);
            assert_eq!(floats.len(), count);
            assert!(floats.iter().all(|&number| number == 0.0));
            floats.fill(1.0);
            assert_eq!(floats.iter().sum::<f32>(), count as f32);
            let mut scratch = Scratchpad::default();
            assert_eq!(scratch.floats(count).as_ptr().addr() % ALIGNMENT, 0);
        }
    }
}
