//! Where variables lie: cut along their first dim by a partitioner, and placed by bytes.

use serde::{Deserialize, Serialize};

use crate::PsError;

/// How variables are cut into shards, along their first dim, as TensorFlow's partitioners do.
///
/// Shards are consecutive rows, and their sizes differ by one at most: 13 rows in 5 shards are 3, 3, 3, 2, 2. Scalars are never cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Partitioner {
    /// Each variable is whole.
    #[default]
    Whole,
    /// As many shards, or as many as there are rows (`FixedShardsPartitioner`).
    FixedShards {
        /// Number of shards.
        shards: usize,
    },
    /// As many shards of at least a number of bytes as there can be (`MinSizePartitioner`).
    MinSize {
        /// The least bytes of a shard; TensorFlow's default is 256 KiB.
        min_shard_bytes: usize,
        /// The most shards.
        max_shards: usize,
    },
    /// As few shards of at most a number of bytes as there can be (`MaxSizePartitioner`).
    MaxSize {
        /// The most bytes of a shard; a row that is larger is a shard.
        max_shard_bytes: usize,
        /// The most shards, if there is a bound.
        max_shards: Option<usize>,
    },
}

impl Partitioner {
    /// Whether its numbers make sense.
    ///
    /// # Errors
    /// A number of shards or bytes is 0.
    pub fn check(&self) -> Result<(), PsError> {
        let numbers: &[(&str, usize)] = match self {
            Self::Whole => &[],
            Self::FixedShards { shards } => &[("shards", *shards)],
            Self::MinSize {
                min_shard_bytes,
                max_shards,
            } => &[
                ("min_shard_bytes", *min_shard_bytes),
                ("max_shards", *max_shards),
            ],
            Self::MaxSize {
                max_shard_bytes,
                max_shards,
            } => &[
                ("max_shard_bytes", *max_shard_bytes),
                ("max_shards", max_shards.unwrap_or(1)),
            ],
        };
        match numbers.iter().find(|(_, number)| *number == 0) {
            Some((name, _)) => Err(PsError::User(format!(
                "`{name}` of the partitioner is 0, expected at least 1"
            ))),
            None => Ok(()),
        }
    }

    /// The number of shards of a variable of these dims.
    #[must_use]
    pub fn shards(&self, dims: &[usize], element_bytes: usize) -> usize {
        let Some(&rows) = dims.first() else { return 1 };
        let bytes = dims.iter().product::<usize>() * element_bytes;
        let shards = match *self {
            Self::Whole => 1,
            Self::FixedShards { shards } => shards,
            Self::MinSize {
                min_shard_bytes,
                max_shards,
            } => max_shards.min(bytes.div_ceil(min_shard_bytes.max(1))),
            Self::MaxSize {
                max_shard_bytes,
                max_shards,
            } => {
                let row = (bytes / rows.max(1)).max(1);
                let rows_of_one = (max_shard_bytes / row).max(1);
                rows.div_ceil(rows_of_one)
                    .min(max_shards.unwrap_or(usize::MAX))
            }
        };
        shards.min(rows).max(1)
    }
}

/// What is known of a variable before it is placed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VariableSpec {
    /// Its dims.
    pub dims: Vec<usize>,
    /// Bytes of an element.
    pub element_bytes: usize,
    /// How many arrays of its size lie beside it: what the optimizer carries for it.
    pub slots: usize,
    /// Whether it may be cut.
    pub can_be_cut: bool,
}

/// Consecutive rows of a variable on a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// The variable, by its position.
    pub variable: usize,
    /// Its number among the shards of its variable.
    pub part: usize,
    /// The first row.
    pub first_row: usize,
    /// Number of rows; 1 of a scalar.
    pub rows: usize,
    /// The server.
    pub server: usize,
}

/// Places variables on servers: the largest shard first, each on the server with the fewest bytes so far, slots counted. Equal
/// inputs give equal places in every process. The result is in the order of variables and parts.
#[must_use]
pub fn place(variables: &[VariableSpec], partitioner: &Partitioner, servers: usize) -> Vec<Shard> {
    let mut shards = Vec::new();
    for (variable, spec) in variables.iter().enumerate() {
        let rows = spec.dims.first().copied().unwrap_or(1);
        let count = match spec.can_be_cut {
            true => partitioner.shards(&spec.dims, spec.element_bytes),
            false => 1,
        };
        let (each, larger) = (rows / count, rows % count);
        let mut first_row = 0;
        for part in 0..count {
            let rows = each + usize::from(part < larger);
            shards.push(Shard {
                variable,
                part,
                first_row,
                rows,
                server: 0,
            });
            first_row += rows;
        }
    }
    let bytes = |shard: &Shard| {
        let spec = &variables[shard.variable];
        let row: usize = spec.dims.iter().skip(1).product();
        row * shard.rows * spec.element_bytes * (1 + spec.slots)
    };
    let mut order: Vec<usize> = (0..shards.len()).collect();
    // The sort is stable: equal shards stay in their order.
    order.sort_by_key(|&at| std::cmp::Reverse(bytes(&shards[at])));
    let mut load = vec![0; servers.max(1)];
    for at in order {
        let least = (0..load.len()).min_by_key(|&server| load[server]);
        let server = least.unwrap_or(0);
        load[server] += bytes(&shards[at]);
        shards[at].server = server;
    }
    shards
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(dims: &[usize]) -> VariableSpec {
        VariableSpec {
            dims: dims.to_vec(),
            element_bytes: 4,
            slots: 1,
            can_be_cut: true,
        }
    }

    #[test]
    fn shards_are_those_of_tensorflow() {
        let fixed = Partitioner::FixedShards { shards: 5 };
        let rows: Vec<_> = place(&[spec(&[13, 2])], &fixed, 2)
            .iter()
            .map(|shard| (shard.first_row, shard.rows))
            .collect();
        assert_eq!(rows, [(0, 3), (3, 3), (6, 3), (9, 2), (11, 2)]);
        assert_eq!(fixed.shards(&[3, 7], 4), 3);
        assert_eq!(fixed.shards(&[], 4), 1);
        // 1000 rows of 16 bytes: 16000 bytes.
        let min = |min_shard_bytes, max_shards| Partitioner::MinSize {
            min_shard_bytes,
            max_shards,
        };
        assert_eq!(min(256 << 10, 1).shards(&[1000, 4], 4), 1);
        assert_eq!(min(5000, 100).shards(&[1000, 4], 4), 4);
        assert_eq!(min(5000, 2).shards(&[1000, 4], 4), 2);
        assert_eq!(min(1, 10_000).shards(&[1000, 4], 4), 1000);
        let max = |max_shard_bytes, max_shards| Partitioner::MaxSize {
            max_shard_bytes,
            max_shards,
        };
        // 5000 bytes hold 312 rows, so four shards.
        assert_eq!(max(5000, None).shards(&[1000, 4], 4), 4);
        assert_eq!(max(5000, Some(3)).shards(&[1000, 4], 4), 3);
        assert_eq!(max(1, None).shards(&[1000, 4], 4), 1000);
    }

    #[test]
    fn servers_get_equal_bytes() {
        let variables: Vec<_> = [784 * 64, 64, 64 * 64, 64, 64 * 10, 10]
            .map(|len| spec(&[len]))
            .to_vec();
        let load = |partitioner: &Partitioner| {
            let mut load = [0; 2];
            for shard in place(&variables, partitioner, 2) {
                load[shard.server] += shard.rows;
            }
            load
        };
        assert_eq!(
            load(&Partitioner::Whole),
            [784 * 64, 64 * 64 + 64 * 10 + 138]
        );
        let cut = load(&Partitioner::FixedShards { shards: 2 });
        assert!(cut[0].abs_diff(cut[1]) <= 64, "{cut:?}");
        assert!(Partitioner::FixedShards { shards: 0 }.check().is_err());
    }
}
