//! Which rows of a global batch each replica gets.

use std::collections::BTreeSet;

use crate::{Error, Result};

/// Which rows of a global batch each replica computes: consecutive ones, in the order of the replicas.
///
/// Equal devices get as many rows as TensorFlow's rebatch gives them: `rows / R` each, and one more for the first
/// `rows % R`. All replicas run one program, so arrays have the rows of the largest part, and smaller parts are padded.
/// Padding weighs nothing; where the program is made for fixed sizes it is sliced off before anything is computed. With
/// fewer rows than replicas some replicas have no example.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BatchPartition {
    /// The first row of each replica, then the number of rows.
    starts: Vec<usize>,
    /// The rows of the arrays of each replica, with padding.
    padded_rows: usize,
    /// Whether the program is made for parts of these sizes alone.
    is_sized: bool,
    /// The number of rows that other processes have before these.
    before: usize,
}

impl BatchPartition {
    /// `rows` over `replicas` equal ones.
    #[must_use]
    pub fn equal(rows: usize, replicas: usize) -> Self {
        let replicas = replicas.max(1);
        let (each, more) = (rows / replicas, rows % replicas);
        Self::from_rows((0..replicas).map(|replica| each + usize::from(replica < more)))
    }

    /// `rows` in proportion to the shares of the replicas: the end of each part is rounded, so that no part is off by more
    /// than a row.
    ///
    /// # Errors
    /// When there is no share, or all of them are 0.
    pub fn weighted(rows: usize, shares: &[u32]) -> Result<Self> {
        let total: u64 = shares.iter().map(|&share| u64::from(share)).sum();
        if total == 0 {
            return Err(Error::user(format!(
                "the shares of the replicas are {shares:?}; expected a number for each, and not all of them 0"
            )));
        }
        let mut sum = 0;
        let mut before = 0;
        let counts = shares.iter().map(|&share| {
            sum += u64::from(share);
            let end = ((rows as u64 * sum * 2 + total) / (total * 2)) as usize;
            let count = end - before;
            before = end;
            count
        });
        Ok(Self::from_rows(counts))
    }

    /// This number of rows for each replica.
    pub(crate) fn from_rows(counts: impl Iterator<Item = usize>) -> Self {
        let mut starts = vec![0];
        let mut each = 1;
        for count in counts {
            starts.push(starts[starts.len() - 1] + count);
            each = each.max(count);
        }
        Self {
            starts,
            padded_rows: each,
            is_sized: false,
            before: 0,
        }
    }

    /// The same, for a program that is made for parts of these sizes alone.
    #[must_use]
    pub(crate) const fn sized(mut self) -> Self {
        self.is_sized = true;
        self
    }

    /// The sizes that the program is made for, each once, the largest first; empty where parts may have any size, or a
    /// part has no example.
    pub(crate) fn sizes(&self) -> Vec<usize> {
        let counts = (0..self.replicas()).map(|replica| self.rows(replica));
        let sizes: BTreeSet<usize> = counts.collect();
        match self.is_sized && !sizes.contains(&0) {
            true => sizes.into_iter().rev().collect(),
            false => Vec::new(),
        }
    }

    /// The same parts in arrays of at least `rows` rows.
    #[must_use]
    pub fn padded_to(mut self, each: usize) -> Self {
        self.padded_rows = self.padded_rows.max(each);
        self
    }

    /// The same parts of a global batch of which other processes have this many rows before.
    #[must_use]
    pub(crate) const fn after(mut self, rows: usize) -> Self {
        self.before = rows;
        self
    }

    /// The position of a replica's first row in the global batch of all processes.
    pub(crate) fn global_first_row(&self, replica: usize) -> usize {
        self.before + self.first_row(replica)
    }

    /// The number of replicas.
    #[must_use]
    pub fn replicas(&self) -> usize {
        self.starts.len() - 1
    }

    /// The rows of the arrays of each replica, with padding.
    #[must_use]
    pub const fn padded_rows(&self) -> usize {
        self.padded_rows
    }

    /// The first row of a replica in the global batch.
    #[must_use]
    pub fn first_row(&self, replica: usize) -> usize {
        self.starts[replica]
    }

    /// The number of rows of a replica, without padding.
    #[must_use]
    pub fn rows(&self, replica: usize) -> usize {
        self.starts[replica + 1] - self.starts[replica]
    }

    /// Whether no replica's arrays are padded.
    #[must_use]
    pub fn is_even(&self) -> bool {
        (0..self.replicas()).all(|replica| self.rows(replica) == self.padded_rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(partition: &BatchPartition) -> Vec<usize> {
        (0..partition.replicas())
            .map(|r| partition.rows(r))
            .collect()
    }

    #[test]
    fn equal_parts_differ_by_one_at_most() {
        assert_eq!(counts(&BatchPartition::equal(7, 4)), [2, 2, 2, 1]);
        assert_eq!(counts(&BatchPartition::equal(8, 4)), [2, 2, 2, 2]);
        assert_eq!(counts(&BatchPartition::equal(2, 4)), [1, 1, 0, 0]);
        assert_eq!(BatchPartition::equal(7, 4).padded_rows(), 2);
        assert_eq!(BatchPartition::equal(0, 2).padded_rows(), 1);
        assert!(BatchPartition::equal(8, 4).is_even() && !BatchPartition::equal(7, 4).is_even());
        assert!(!BatchPartition::equal(8, 4).padded_to(3).is_even());
        assert_eq!(BatchPartition::equal(7, 4).first_row(3), 6);
        let later = BatchPartition::equal(7, 4).after(10);
        assert_eq!((later.first_row(3), later.global_first_row(3)), (6, 16));
    }

    #[test]
    fn shares_are_met_as_nearly_as_rows_allow() {
        assert_eq!(
            counts(&BatchPartition::weighted(12, &[2, 1, 1]).unwrap()),
            [6, 3, 3]
        );
        assert_eq!(
            counts(&BatchPartition::weighted(10, &[1, 0, 2]).unwrap()),
            [3, 0, 7]
        );
        // A half is rounded up.
        assert_eq!(
            counts(&BatchPartition::weighted(5, &[1, 1]).unwrap()),
            [3, 2]
        );
        for rows in 0..40 {
            for shares in [&[1, 1, 1][..], &[3, 2], &[5, 1, 4, 7]] {
                let partition = BatchPartition::weighted(rows, shares).unwrap();
                assert_eq!(counts(&partition).iter().sum::<usize>(), rows);
                let total: u32 = shares.iter().sum();
                for (count, &share) in counts(&partition).into_iter().zip(shares) {
                    let exact = rows as f64 * f64::from(share) / f64::from(total);
                    assert!((count as f64 - exact).abs() <= 1.0, "{rows} {shares:?}");
                }
            }
        }
    }

    #[test]
    fn sizes_are_those_of_parts_with_examples() {
        let partition = BatchPartition::weighted(12, &[1, 2, 1, 2]).unwrap();
        assert!(partition.sizes().is_empty());
        assert_eq!(partition.sized().sizes(), [4, 2]);
        let none = BatchPartition::weighted(12, &[1, 0, 2]).unwrap();
        assert!(none.sized().sizes().is_empty());
    }

    #[test]
    fn shares_of_nothing_are_refused() {
        for shares in [&[][..], &[0, 0]] {
            let error = BatchPartition::weighted(4, shares).unwrap_err().to_string();
            assert!(error.contains("expected a number for each"), "{error}");
        }
    }
}
