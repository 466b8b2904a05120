//! Which elements a rank reduces.

use std::ops::Range;

/// Shares begin at multiples of this number of elements: a cache line of the widest.
const LINE: usize = 64;

/// The elements of an array that a rank reduces: as even as whole lines allow, in the order of ranks.
#[must_use]
pub fn share(elements: usize, ranks: usize, rank: usize) -> Range<usize> {
    let each = elements.div_ceil(ranks).next_multiple_of(LINE);
    (each * rank).min(elements)..(each * (rank + 1)).min(elements)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_all_elements_once() {
        for elements in [0, 1, 63, 64, 65, 1000, 4096, 4099] {
            for ranks in 1..6 {
                let mut next = 0;
                for rank in 0..ranks {
                    let share = share(elements, ranks, rank);
                    assert_eq!(share.start, next, "{elements} {ranks}");
                    next = share.end;
                }
                assert_eq!(next, elements);
            }
        }
    }
}
