//! What variables are kept to while they are trained.

use phalanx_graph::{Shape, Tensor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::norm::Axes;
use super::sizes::{check_range, described_variants, named_variant};
use super::{Cx, Initializer, Regularizer};
use crate::config::{Component, Description, Field, Kind};

/// What Keras divides with beside norms.
const EPSILON: f64 = 1e-7;

/// What a variable is brought back to after every update of the optimizer, as Keras defines it.
///
/// Norms are Euclidean, over the dims `axis` of the variable, counted from the end when negative: the first alone by default, so that in
/// a kernel `[inputs, units]` each unit's weights have one; `[0, 1, 2]` in a kernel of images. Where the optimizer keeps averages, they
/// are taken of what it was brought back to; Keras' are taken before. Within a window of accumulated batches it keeps still, where Keras
/// brings it back in every batch. A variable that is not trained is left as it is.
///
/// In JSON and YAML: the name, `max_norm`, or the name with its settings, `{"max_norm": {"max_value": 3}}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", rename_all = "snake_case", deny_unknown_fields)]
pub enum Constraint {
    /// `w clip(norm, 0, max_value) / (norm + 1e-7)`.
    MaxNorm {
        /// The longest norm, 2 by default.
        #[serde(default = "two")]
        max_value: f64,
        /// The dims of a norm.
        #[serde(default = "first_dim", with = "axes")]
        axis: Vec<i64>,
    },
    /// `w (rate clip(norm, min_value, max_value) + (1 - rate) norm) / (norm + 1e-7)`.
    MinMaxNorm {
        /// The shortest norm, 0 by default.
        #[serde(default)]
        min_value: f64,
        /// The longest norm, 1 by default.
        #[serde(default = "one")]
        max_value: f64,
        /// How far towards these bounds an update goes, from 0 to 1, 1 by default.
        #[serde(default = "one")]
        rate: f64,
        /// The dims of a norm.
        #[serde(default = "first_dim", with = "axes")]
        axis: Vec<i64>,
    },
    /// `max(w, 0)`.
    NonNeg,
    /// `w / (norm + 1e-7)`.
    UnitNorm {
        /// The dims of a norm.
        #[serde(default = "first_dim", with = "axes")]
        axis: Vec<i64>,
    },
}

const fn one() -> f64 {
    1.0
}

const fn two() -> f64 {
    2.0
}

fn first_dim() -> Vec<i64> {
    vec![0]
}

impl Constraint {
    /// Norms over the first dim of at most this.
    #[must_use]
    pub fn max_norm(max_value: f64) -> Self {
        Self::MaxNorm {
            max_value,
            axis: first_dim(),
        }
    }

    /// Norms over the first dim of 1.
    #[must_use]
    pub fn unit_norm() -> Self {
        Self::UnitNorm { axis: first_dim() }
    }

    /// The same with norms over these dims.
    #[must_use]
    pub fn along(mut self, dims: impl Into<Vec<i64>>) -> Self {
        match &mut self {
            Self::MaxNorm { axis, .. }
            | Self::MinMaxNorm { axis, .. }
            | Self::UnitNorm { axis } => *axis = dims.into(),
            Self::NonNeg => {}
        }
        self
    }

    /// The variable as it is brought back; as it is where an axis is none of its dims.
    #[must_use]
    #[track_caller]
    pub fn apply(&self, w: &Tensor) -> Tensor {
        let Some(dims) = self.dims(w.rank()).ok().flatten() else {
            return match self {
                Self::NonNeg => w.maximum(&w.zeros_like()),
                _ => w.clone(),
            };
        };
        let norm = w.square().sum(&dims).sqrt().keep_dims(&dims);
        let wanted = match self {
            Self::MaxNorm { max_value, .. } => norm.clamp(0.0, *max_value),
            Self::MinMaxNorm {
                min_value,
                max_value,
                rate,
                ..
            } => norm.clamp(*min_value, *max_value) * *rate + &norm * (1.0 - rate),
            Self::UnitNorm { .. } | Self::NonNeg => norm.like(1.0),
        };
        w * (wanted / (norm + EPSILON))
    }

    /// Whether an element is brought back by itself, whatever the others are.
    pub(crate) const fn is_elementwise(&self) -> bool {
        matches!(self, Self::NonNeg)
    }

    /// What is wrong with its settings for a variable of this rank.
    pub(super) fn check(&self, rank: usize) -> Result<(), String> {
        let positive = 0.0..f64::INFINITY;
        match self {
            Self::MaxNorm { max_value, .. } => check_range("`max_value`", *max_value, positive)?,
            Self::MinMaxNorm {
                min_value,
                max_value,
                rate,
                ..
            } => {
                check_range("`max_value`", *max_value, positive)?;
                check_range("`min_value`", *min_value, 0.0..=*max_value)?;
                check_range("`rate`", *rate, 0.0..=1.0)?;
            }
            Self::UnitNorm { .. } | Self::NonNeg => {}
        }
        self.dims(rank).map(|_| ())
    }

    /// The dims of norms, ascending; `None` without norms.
    fn dims(&self, rank: usize) -> Result<Option<Vec<usize>>, String> {
        match self {
            Self::MaxNorm { axis, .. }
            | Self::MinMaxNorm { axis, .. }
            | Self::UnitNorm { axis } => dims(axis, rank).map(Some),
            Self::NonNeg => Ok(None),
        }
    }
}

fn dims(axis: &[i64], rank: usize) -> Result<Vec<usize>, String> {
    let own = i64::try_from(rank).unwrap_or(i64::MAX);
    let dim = |&axis: &i64| usize::try_from(if axis < 0 { axis + own } else { axis }).ok();
    let dims: Option<Vec<usize>> = axis.iter().map(dim).collect();
    let mut dims = dims.unwrap_or_default();
    dims.sort_unstable();
    dims.dedup();
    if dims.is_empty() || dims.len() < axis.len() || dims.iter().any(|&dim| dim >= rank) {
        return Err(format!(
            "`axis` must name dims of a variable of {rank}, each once, got {axis:?}"
        ));
    }
    Ok(dims)
}

/// Dims, written as one number when there is one.
mod axes {
    use super::{Axes, Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(axes: &[i64], serializer: S) -> Result<S::Ok, S::Error> {
        Axes(axes.to_vec()).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<i64>, D::Error> {
        Axes::deserialize(deserializer).map(|axes| axes.0)
    }
}

const AXIS: Field = Field::optional(
    "axis",
    Kind::Worded(
        "a dimension or a list of them: 0 or [0, 1, 2]",
        &Kind::Either(&[Kind::INTEGER, Kind::List(&Kind::INTEGER, 1, usize::MAX)]),
    ),
    "the dimensions of a norm, counted from the end when negative",
);
const MAX_VALUE: Field = Field::optional("max_value", Kind::AT_LEAST_ZERO, "the longest norm");

/// Constraints by name.
const CONSTRAINTS: &[Component] = &[
    Component {
        name: "max_norm",
        doc: "norms up to `max_value`",
        fields: &[MAX_VALUE, AXIS],
    },
    Component {
        name: "min_max_norm",
        doc: "norms from `min_value` to `max_value`",
        fields: &[
            Field::optional("min_value", Kind::AT_LEAST_ZERO, "the shortest norm"),
            MAX_VALUE,
            Field::optional(
                "rate",
                Kind::SHARE,
                "how far towards these bounds an update goes",
            ),
            AXIS,
        ],
    },
    Component {
        name: "non_neg",
        doc: "`max(w, 0)`",
        fields: &[],
    },
    Component {
        name: "unit_norm",
        doc: "norms of 1",
        fields: &[AXIS],
    },
];

impl Constraint {
    /// The names with their settings and defaults.
    pub(crate) fn descriptions() -> Vec<Description> {
        described_variants::<Self>(CONSTRAINTS)
    }
}

impl Cx {
    /// A variable that training changes, with a [penalty](Self::regularized) on its values and a [constraint](Self::constrain).
    #[track_caller]
    pub(super) fn limited(
        &mut self,
        name: &str,
        shape: Shape,
        initializer: &Initializer,
        (penalty, constraint): (Option<Regularizer>, Option<&Constraint>),
    ) -> Tensor {
        let value = self.regularized(name, shape, initializer, penalty);
        self.constrain(name, constraint);
        value
    }

    /// Keeps a variable of this layer, which it has asked for, to a constraint: every update of an optimizer ends with it.
    #[track_caller]
    pub fn constrain<'a>(&mut self, name: &str, to: impl Into<Option<&'a Constraint>>) {
        let Some(constraint) = to.into() else {
            return;
        };
        let problem = match self.variable_spec(name) {
            None => "it is no variable of this layer".to_owned(),
            Some(variable) => match constraint.check(variable.shape.rank()) {
                Ok(()) => {
                    variable.constraint = Some(constraint.clone());
                    return;
                }
                Err(problem) => problem,
            },
        };
        let message = format!("constraint of `{}/{name}`: {problem}", self.path());
        self.graph().fail("constraint", message);
    }
}

impl Serialize for Constraint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for Constraint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = named_variant(deserializer, "constraint", CONSTRAINTS)?;
        Self::deserialize(value).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{Dense, Sequential};
    use super::*;

    #[test]
    fn it_is_written_as_it_is_read() {
        for (written, read) in [
            (json!("non_neg"), Constraint::NonNeg),
            (
                json!({"max_norm": {"max_value": 3.0, "axis": [0, 1]}}),
                Constraint::max_norm(3.0).along([0, 1]),
            ),
            (json!({"unit_norm": {"axis": 0}}), Constraint::unit_norm()),
        ] {
            assert_eq!(serde_json::to_value(&read).unwrap(), written);
            let back: Constraint = serde_json::from_value(written).unwrap();
            assert_eq!(back, read);
        }
        let short: Constraint = serde_json::from_value(json!("max_norm")).unwrap();
        assert_eq!(short, Constraint::max_norm(2.0));
    }

    #[test]
    fn settings_that_fit_no_variable_are_refused() {
        let between = |min_value, max_value| Constraint::MinMaxNorm {
            min_value,
            max_value,
            rate: 1.0,
            axis: vec![0],
        };
        for (constraint, expected) in [
            (
                Constraint::max_norm(1.0).along([2]),
                "constraint of `dense/kernel`: `axis` must name dims of a variable of 2, each once, got [2]",
            ),
            (
                Constraint::unit_norm().along([0, -2]),
                "each once, got [0, -2]",
            ),
            (Constraint::unit_norm().along([]), "each once, got []"),
            (
                Constraint::unit_norm().along([-3, 0]),
                "each once, got [-3, 0]",
            ),
            (
                Constraint::max_norm(-1.0),
                "`max_value` must be in 0.0..inf, got -1",
            ),
            (
                Constraint::max_norm(f64::NAN),
                "`max_value` must be in 0.0..inf, got NaN",
            ),
            (between(2.0, 1.0), "`min_value` must be in 0.0..=1.0, got 2"),
        ] {
            let layer = Dense::new(2).kernel_constraint(constraint);
            let refused = Sequential::new([3]).add(layer).build().unwrap_err();
            let refused = refused.to_string();
            assert!(refused.contains(expected), "{refused}");
        }
    }
}
