//! Penalties on weights and outputs.

use std::collections::HashSet;

use phalanx_graph::{DType, Shape, Tensor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Cx;
use super::sizes::{check_range, described_variants, named_variant};
use crate::config::{Component, Description, Field, Kind};

/// A penalty added to the loss, as Keras defines it.
///
/// In JSON and YAML: the name, `l2`, or the name with its settings, `{"l2": {"l2": 0.0001}}`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", rename_all = "snake_case", deny_unknown_fields)]
pub enum Regularizer {
    /// `l1 sum(|x|)`.
    L1 {
        /// Factor, 0.01 by default.
        #[serde(default = "default_factor")]
        l1: f64,
    },
    /// `l2 sum(x^2)`.
    L2 {
        /// Factor, 0.01 by default.
        #[serde(default = "default_factor")]
        l2: f64,
    },
    /// `l1 sum(|x|) + l2 sum(x^2)`.
    L1L2 {
        /// Factor of the absolute values, 0 by default.
        #[serde(default)]
        l1: f64,
        /// Factor of the squares, 0 by default.
        #[serde(default)]
        l2: f64,
    },
    /// `factor` times the mean of the absolute cosines between two rows, or two columns, of a matrix. Of weights alone: of outputs, of which each
    /// replica has a part of the rows, it is refused, unlike in Keras.
    Orthogonal {
        /// Factor, 0.01 by default.
        #[serde(default = "default_factor")]
        factor: f64,
        /// Which vectors are to be orthogonal, rows by default.
        #[serde(default)]
        mode: OrthogonalVectors,
    },
}

/// Which vectors of a matrix [`Regularizer::Orthogonal`] compares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OrthogonalVectors {
    /// Its rows.
    #[default]
    Rows,
    /// Its columns.
    Columns,
}

const fn default_factor() -> f64 {
    0.01
}

impl Regularizer {
    /// The penalty of every element together, a scalar.
    #[must_use]
    #[track_caller]
    pub fn penalty(self, x: &Tensor) -> Tensor {
        let absolute = |factor: f64| x.abs().sum_all() * factor;
        let squared = |factor: f64| x.square().sum_all() * factor;
        match self {
            Self::L1 { l1 } => absolute(l1),
            Self::L2 { l2 } => squared(l2),
            Self::L1L2 { l1, l2 } => absolute(l1) + squared(l2),
            Self::Orthogonal { factor, mode } => cosines(x, mode) * factor,
        }
    }

    /// What is wrong with its factors.
    pub(super) fn check(self) -> Result<(), String> {
        let (l1, l2) = match self {
            Self::L1 { l1 } => (l1, 0.0),
            Self::L2 { l2 } => (0.0, l2),
            Self::L1L2 { l1, l2 } => (l1, l2),
            Self::Orthogonal { factor, .. } => {
                return check_range("the factor", factor, 0.0..f64::INFINITY);
            }
        };
        check_range("the factor l1", l1, 0.0..f64::INFINITY)?;
        check_range("the factor l2", l2, 0.0..f64::INFINITY)
    }

    /// Refuses a penalty that is no sum over examples: for a batch it is not the sum over its parts on replicas.
    fn check_of_outputs(self) -> Result<(), String> {
        match self {
            Self::Orthogonal { .. } => Err(
                "its `activity_regularizer` is `orthogonal`, which compares examples with each other, so that replicas would not train as one; expected l1, l2 or l1_l2".into(),
            ),
            _ => Ok(()),
        }
    }
}

/// The mean of the absolute cosines between two rows, or two columns, of a matrix.
#[track_caller]
fn cosines(x: &Tensor, mode: OrthogonalVectors) -> Tensor {
    if x.rank() != 2 {
        let message = format!(
            "an orthogonal regularizer is for matrices, got {}; choose another penalty",
            x.shape()
        );
        x.graph().fail("regularizer", message);
        return x.sum_all();
    }
    let rows = match mode {
        OrthogonalVectors::Rows => x.clone(),
        OrthogonalVectors::Columns => x.transpose(&[1, 0]),
    };
    // As Keras has it, a row of zeros stays one.
    let squares = rows.square().sum(&[1]);
    let lengths = squares.maximum(&squares.like(1e-12)).sqrt();
    let rows = &rows / lengths.broadcast_in(&rows.dims(), &[0]);
    let count = rows.dim(0);
    let products = rows.matmul(&rows.transpose(&[1, 0]));
    let at = |dim: usize| x.graph().iota(Shape::new(DType::I32, [count; 2]), dim);
    let apart = at(0).less(&at(1)).select(&products, &products.zeros_like());
    let pairs = (count * count.saturating_sub(1) / 2).max(1);
    apart.abs().sum_all() / pairs as f64
}

/// Regularizers by name.
const REGULARIZERS: &[Component] = &[
    Component {
        name: "l1",
        doc: "`l1 sum(|x|)`",
        fields: &[Field::optional("l1", Kind::AT_LEAST_ZERO, "factor")],
    },
    Component {
        name: "l2",
        doc: "`l2 sum(x^2)`",
        fields: &[Field::optional("l2", Kind::AT_LEAST_ZERO, "factor")],
    },
    Component {
        name: "l1_l2",
        doc: "`l1 sum(|x|) + l2 sum(x^2)`",
        fields: &[
            Field::optional("l1", Kind::AT_LEAST_ZERO, "factor of the absolute values"),
            Field::optional("l2", Kind::AT_LEAST_ZERO, "factor of the squares"),
        ],
    },
    Component {
        name: "orthogonal",
        doc: "`factor` times the mean of the absolute cosines between two rows, or two columns, of a matrix",
        fields: &[
            Field::optional("factor", Kind::AT_LEAST_ZERO, "factor"),
            Field::optional(
                "mode",
                Kind::OneOf(&["rows", "columns"]),
                "which vectors are to be orthogonal",
            ),
        ],
    },
];

impl Regularizer {
    /// The names with their settings and defaults.
    pub(crate) fn descriptions() -> Vec<Description> {
        described_variants::<Self>(REGULARIZERS)
    }
}

impl Serialize for Regularizer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for Regularizer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = named_variant(deserializer, "regularizer", REGULARIZERS)?;
        Self::deserialize(value).map_err(serde::de::Error::custom)
    }
}

/// Penalties, also over several calls of a model.
impl Cx {
    /// Leaves out the penalties of variables that another call of the model has added.
    pub(crate) fn with_penalized(mut self, penalized: HashSet<String>) -> Self {
        self.penalized = penalized;
        self
    }

    /// The variables whose penalties were added, in this call or before.
    pub(crate) fn penalized(&self) -> HashSet<String> {
        self.penalized.clone()
    }

    /// Keras' rule: the penalty of the outputs divided by the number of examples, in f32.
    ///
    /// A replica or micro-batch divides by its own, and counts by them.
    #[track_caller]
    pub(super) fn penalize_activity(&mut self, regularizer: Regularizer, output: &Tensor) {
        let checked = regularizer.check();
        if let Err(message) = checked.and_then(|()| regularizer.check_of_outputs()) {
            self.graph().fail("layer", message);
            return;
        }
        let (output, examples) = self.only_examples(output);
        self.losses.push(regularizer.penalty(&output) / examples);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::{Dense, Sequential};

    #[test]
    fn examples_are_not_compared_by_a_penalty_on_outputs() {
        let orthogonal = Regularizer::Orthogonal {
            factor: 0.1,
            mode: OrthogonalVectors::Rows,
        };
        let build = |dense: Dense| Sequential::new([3]).add(dense).build();
        build(Dense::new(2).kernel_regularizer(orthogonal)).unwrap();
        let refused = build(Dense::new(2).activity_regularizer(orthogonal));
        let refused = refused.unwrap_err().to_string();
        assert!(
            refused.contains("`activity_regularizer` is `orthogonal`"),
            "{refused}"
        );
    }
}
