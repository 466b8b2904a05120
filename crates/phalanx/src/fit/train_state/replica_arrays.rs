//! The arrays of the replicas, and what has been made of them alone.

use std::ops::{Deref, DerefMut};

use phalanx_pjrt::Buffer;

/// Programs whose values are kept at most: of full batches and of a smaller last one.
const MOST_PREPARED: usize = 2;

/// A list of arrays for each replica, and values that programs have made of these arrays alone.
///
/// Invariant: whoever can change an array has dropped those values, for they are dropped by every access that can.
#[derive(Default)]
pub(super) struct ReplicaArrays {
    lists: Vec<Vec<Buffer>>,
    /// By the program that made them, of each replica; the oldest first.
    prepared: Vec<(u64, Vec<Vec<Buffer>>)>,
}

impl ReplicaArrays {
    /// What a program has made of the arrays as they are.
    pub(super) fn prepared(&self, program: u64) -> Option<&[Vec<Buffer>]> {
        let mut all = self.prepared.iter();
        let found = all.find(|(maker, _)| *maker == program);
        found.map(|(_, values)| values.as_slice())
    }

    /// Keeps what a program has made of the arrays, until one changes or newer programs take its place.
    pub(super) fn keep_prepared(&mut self, program: u64, values: Vec<Vec<Buffer>>) {
        if self.prepared.len() == MOST_PREPARED {
            self.prepared.remove(0);
        }
        self.prepared.push((program, values));
    }
}

impl Deref for ReplicaArrays {
    type Target = Vec<Vec<Buffer>>;

    fn deref(&self) -> &Self::Target {
        &self.lists
    }
}

impl DerefMut for ReplicaArrays {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.prepared.clear();
        &mut self.lists
    }
}
