//! Which algorithm an exchange uses.

use std::fmt;

use crate::options::Algorithm;

/// The algorithm of all-reduces by size, for a group: the first row whose limit is not exceeded. All ranks have the same.
#[derive(Clone, Debug, PartialEq)]
pub struct AlgorithmTable {
    /// What the rows are for, as people read it.
    group: String,
    /// The longest array in bytes, and what is done.
    rows: Vec<(usize, Algorithm)>,
}

/// The layout of a group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Layout {
    pub(crate) ranks: usize,
    /// Whether all ranks share memory.
    pub(crate) shared: bool,
    /// Machines with equally many consecutive ranks that share memory; equal to `ranks` where none do.
    pub(crate) machines: usize,
}

/// Up to this many machines a rank sends its shares to all others; beyond it, only to its neighbours.
const PAIRWISE_MACHINES: usize = 16;
/// Over TCP, everything to everybody is fewer bytes on the way than this for each rank.
const DIRECT_BYTES: usize = 64 << 10;

impl AlgorithmTable {
    pub(crate) fn new(layout: Layout, forced: Algorithm) -> Self {
        let Layout {
            ranks,
            shared,
            machines,
        } = layout;
        let group = if shared {
            format!("{ranks} ranks in shared memory")
        } else if machines < ranks {
            format!("{ranks} ranks on {machines} machines, shared memory within them")
        } else {
            format!("{ranks} ranks over TCP")
        };
        let rows = match forced {
            Algorithm::Auto | Algorithm::Library => Self::measured(layout),
            forced => vec![(usize::MAX, forced)],
        };
        Self { group, rows }
    }

    /// Small arrays travel with their headers. Large ones are reduced in our order over messages, which has the bits of other
    /// transports and is faster than what the libraries do without waiting in a call; over many ranks, by the library's trees.
    pub(crate) fn of_mpi(library: &str, ranks: usize, forced: Algorithm) -> Self {
        let large = match forced {
            Algorithm::Auto if ranks > PAIRWISE_MACHINES => Algorithm::Library,
            Algorithm::Library => Algorithm::Library,
            _ => Algorithm::Pairwise,
        };
        Self {
            group: format!("{ranks} ranks by {library}"),
            rows: vec![(crate::mpi::INLINE, Algorithm::Direct), (usize::MAX, large)],
        }
    }

    fn measured(layout: Layout) -> Vec<(usize, Algorithm)> {
        if layout.shared {
            return vec![
                (crate::arena::SLOT, Algorithm::Direct),
                (usize::MAX, Algorithm::Pairwise),
            ];
        }
        let large = if layout.machines < layout.ranks || layout.machines > PAIRWISE_MACHINES {
            Algorithm::Ring
        } else {
            Algorithm::Pairwise
        };
        let direct = DIRECT_BYTES / layout.ranks.max(2) * 2;
        vec![(direct, Algorithm::Direct), (usize::MAX, large)]
    }

    /// The algorithm for an all-reduce of this number of bytes.
    #[must_use]
    pub fn choose(&self, bytes: usize) -> Algorithm {
        let row = self.rows.iter().find(|(limit, _)| bytes <= *limit);
        row.map_or(Algorithm::Pairwise, |(_, algorithm)| *algorithm)
    }
}

impl fmt::Display for AlgorithmTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "all-reduce over {}:", self.group)?;
        for (limit, algorithm) in &self.rows {
            let name = match algorithm {
                Algorithm::Auto => "auto",
                Algorithm::Direct => "direct",
                Algorithm::Pairwise => "pairwise",
                Algorithm::Ring => "ring",
                Algorithm::Library => "the library's",
            };
            match *limit {
                usize::MAX => write!(f, " {name}")?,
                limit => write!(f, " {name} up to {limit} bytes, then")?,
            }
        }
        Ok(())
    }
}
