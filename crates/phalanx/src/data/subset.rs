//! Some of the indices of a dataset, in their order.

use std::ops::Range;

use super::formats::locate;

/// Ranges of indices that follow one another in the output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Subset {
    starts: Vec<usize>,
    /// Indices before each range.
    firsts: Vec<usize>,
    len: usize,
}

impl Subset {
    /// Adds a range, which is joined with the last where it continues it.
    pub(super) fn push(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        let last = self.starts.last().zip(self.firsts.last());
        let continues =
            last.is_some_and(|(start, first)| start + (self.len - first) == range.start);
        if !continues {
            self.starts.push(range.start);
            self.firsts.push(self.len);
        }
        self.len += range.len();
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// The index of the input that output index `i` reads.
    pub(super) fn locate(&self, i: usize) -> usize {
        let (range, offset) = locate(&self.firsts, i);
        self.starts[range] + offset
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_follow_one_another() {
        let mut subset = Subset::default();
        for range in [3..5, 5..6, 9..9, 0..1, 8..10] {
            subset.push(range);
        }
        let all: Vec<usize> = (0..subset.len()).map(|i| subset.locate(i)).collect();
        assert_eq!(all, [3, 4, 5, 0, 8, 9]);
        assert_eq!(subset.starts, [3, 0, 8]);
    }
}
