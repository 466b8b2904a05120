//! Sizes of dims that may be multiples of the batch: what two programs of different batches have in common.

/// The size of a dim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Size {
    /// This many, whatever the batch.
    Fixed(usize),
    /// So many times the examples of the batch.
    Batches(usize),
}

impl Size {
    pub(super) const ONE: Self = Self::Fixed(1);

    /// What is `sizes` where batches have `batches` examples; nothing where it is no multiple of these.
    ///
    /// Two batches are enough: with `a + k n` for the size, `a` is 0 if and only if both are the same multiple of different primes.
    pub(super) fn of(sizes: [usize; 2], batches: [usize; 2]) -> Option<Self> {
        let count = sizes[0] / batches[0];
        let is_multiple = sizes == batches.map(|batch| batch * count);
        match sizes[0] == sizes[1] {
            true => Some(Self::Fixed(sizes[0])),
            false => is_multiple.then_some(Self::Batches(count)),
        }
    }

    pub(super) fn fixed(self) -> Option<usize> {
        match self {
            Self::Fixed(size) => Some(size),
            Self::Batches(_) => None,
        }
    }

    /// The size of these dims as one; nothing where it grows with the square of the batch.
    pub(super) fn product(sizes: &[Self]) -> Option<Self> {
        let multiply = |product, &size: &Self| match (product, size) {
            (Self::Fixed(a), Self::Fixed(b)) => Some(Self::Fixed(a * b)),
            (Self::Fixed(a), Self::Batches(b)) | (Self::Batches(a), Self::Fixed(b)) => {
                Some(Self::Batches(a * b))
            }
            (Self::Batches(_), Self::Batches(_)) => None,
        };
        sizes.iter().try_fold(Self::ONE, multiply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_multiples_of_the_batch_or_none() {
        let of = |sizes| Size::of(sizes, [5, 7]);
        assert_eq!(of([6, 6]), Some(Size::Fixed(6)));
        assert_eq!(of([5, 5]), Some(Size::Fixed(5)));
        assert_eq!(of([15, 21]), Some(Size::Batches(3)));
        for sizes in [[25, 49], [6, 8], [10, 7], [5, 6], [0, 7]] {
            assert_eq!(of(sizes), None, "{sizes:?}");
        }
    }
}
