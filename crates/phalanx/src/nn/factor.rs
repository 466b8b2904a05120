//! Numbers that are drawn for each example.

use phalanx_graph::Tensor;
use serde::{Deserialize, Serialize};

use super::Cx;
use super::sizes::check_range;
use crate::config::Kind;

/// How much is drawn at random: up to a number either way, or between two.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a number, or two: 0.2 or [0.1, 0.2]")]
pub enum Factor {
    /// As much either way, or for some layers from 0 on.
    UpTo(f64),
    /// From the first to the second.
    Between([f64; 2]),
}

impl From<f64> for Factor {
    fn from(most: f64) -> Self {
        Self::UpTo(most)
    }
}

impl From<[f64; 2]> for Factor {
    fn from(ends: [f64; 2]) -> Self {
        Self::Between(ends)
    }
}

impl Factor {
    /// The kind of the setting.
    pub(super) const KIND: Kind = Kind::Worded(
        "a number, or two: 0.2 or [0.1, 0.2]",
        &Kind::Either(&[Kind::REAL, Kind::List(&Kind::REAL, 2, 2)]),
    );

    /// The least and the most.
    pub(super) const fn ends(self) -> [f64; 2] {
        match self {
            Self::UpTo(most) => [-most, most],
            Self::Between(ends) => ends,
        }
    }

    /// The same where one number is the most, and 0 the least.
    pub(super) const fn above_zero(self) -> [f64; 2] {
        match self {
            Self::UpTo(most) => [0.0, most],
            Self::Between(ends) => ends,
        }
    }

    pub(super) fn check(
        self,
        field: &str,
        range: std::ops::RangeInclusive<f64>,
    ) -> Result<(), String> {
        let ends = self.above_zero();
        let field = format!("`{field}`");
        ends.iter()
            .try_for_each(|&end| check_range(&field, end, range.clone()))?;
        match ends[0] <= ends[1] {
            true => Ok(()),
            false => Err(format!(
                "{field} must be a number of at least 0, or two in ascending order, got {self}"
            )),
        }
    }
}

/// As JSON has it.
impl std::fmt::Display for Factor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::UpTo(most) => write!(f, "{most}"),
            Self::Between(ends) => write!(f, "{ends:?}"),
        }
    }
}

/// One f32 for each of `rows`, evenly distributed from one number to another: `[rows]`.
#[track_caller]
pub(super) fn drawn(cx: &mut Cx, rows: usize, [least, most]: [f64; 2]) -> Tensor {
    cx.uniform(&[rows]) * (most - least) + least
}
