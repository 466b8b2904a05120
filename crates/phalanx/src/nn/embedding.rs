//! Tables of vectors looked up by index.

use phalanx_graph::{DType, Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::layer::Layer;
use super::sizes::{check_size, one_input};
use super::{Constraint, Cx, Initializer, Regularizer, fields};
use crate::config::{self, Component, Described};

/// The settings of a table of vectors, of a layer that has one.
macro_rules! table_setters {
    () => {
        /// Sets where first values come from: uniform within 0.05 by default.
        #[must_use]
        pub const fn embeddings_initializer(mut self, initializer: Initializer) -> Self {
            self.embeddings_initializer = initializer;
            self
        }

        /// Sets a penalty on the table.
        #[must_use]
        pub const fn embeddings_regularizer(mut self, regularizer: Regularizer) -> Self {
            self.embeddings_regularizer = Some(regularizer);
            self
        }

        /// Sets what every update brings the table back to: all of it, also rows that no index named.
        #[must_use]
        pub fn embeddings_constraint(mut self, constraint: Constraint) -> Self {
            self.embeddings_constraint = Some(constraint);
            self
        }
    };
}
pub(super) use table_setters;

/// Row `i` of a table for each index `i`; kind `embedding`.
///
/// Variable: `embeddings` `[input_dim, output_dim]`. Indices are integers, or floats that are truncated. An index
/// that is negative or not below `input_dim` gives a row of NaN, so that the loss tells: programs cannot stop in
/// the middle, and Keras' answer depends on its backend (an error, zeros, or another row).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Embedding {
    input_dim: usize,
    output_dim: usize,
    embeddings_initializer: Initializer,
    embeddings_regularizer: Option<Regularizer>,
    embeddings_constraint: Option<Constraint>,
    mask_zero: bool,
}

impl Embedding {
    /// A table of `input_dim` rows of `output_dim` numbers.
    #[must_use]
    pub const fn new(input_dim: usize, output_dim: usize) -> Self {
        Self {
            input_dim,
            output_dim,
            embeddings_initializer: Initializer::embedding(),
            embeddings_regularizer: None,
            embeddings_constraint: None,
            mask_zero: false,
        }
    }

    table_setters!();

    /// Sets whether index 0 is padding, which layers after it and the loss leave out: see
    /// [`Cx::padding_mask`]. Indices must be `[batch, steps]`. Not by default.
    #[must_use]
    pub const fn mask_zero(mut self, mask_zero: bool) -> Self {
        self.mask_zero = mask_zero;
        self
    }
}

impl Embedding {
    /// Whether a batch takes nothing of the table but the rows that it names, by whatever number they have.
    pub(super) const fn looks_up_alone(&self) -> bool {
        !self.mask_zero && self.embeddings_regularizer.is_none()
    }

    /// The same with another number of rows.
    pub(super) const fn with_rows(mut self, rows: usize) -> Self {
        self.input_dim = rows;
        self
    }
}

impl Described for Embedding {
    const COMPONENT: Component = Component {
        name: "embedding",
        doc: "looks up a row of a table for each index",
        fields: &[
            fields::INPUT_DIM,
            fields::OUTPUT_DIM,
            fields::EMBEDDINGS_INITIALIZER,
            fields::EMBEDDINGS_REGULARIZER,
            fields::EMBEDDINGS_CONSTRAINT,
            fields::MASK_ZERO,
        ],
    };
}

impl Layer for Embedding {
    fn kind(&self) -> &'static str {
        "embedding"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    fn check_settings(&self) -> Result<(), String> {
        check_size("`input_dim`", self.input_dim)?;
        check_size("`output_dim`", self.output_dim)
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        let input = one_input(inputs)?;
        if input.dtype == DType::Bool {
            return Err(format!(
                "expected indices, got {input}; declare the input as i32"
            ));
        }
        if self.mask_zero && input.rank() != 2 {
            return Err(format!(
                "`mask_zero` needs indices [batch, steps], got {input}"
            ));
        }
        Ok(())
    }

    fn index_range(&self) -> Option<(usize, Option<i32>)> {
        Some((self.input_dim, None))
    }

    fn converts_inputs(&self) -> bool {
        false
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let shape = Shape::f32([self.input_dim, self.output_dim]);
        let limits = (
            self.embeddings_regularizer,
            self.embeddings_constraint.as_ref(),
        );
        let table = cx.limited("embeddings", shape, &self.embeddings_initializer, limits);
        look_up_steps(cx, &table, &inputs[0], self.mask_zero)
    }
}

/// As [`look_up`] in the layer's type; with `mask_zero` the index 0 is padding.
#[track_caller]
pub(super) fn look_up_steps(cx: &mut Cx, table: &Tensor, x: &Tensor, mask_zero: bool) -> Tensor {
    let output = look_up(table, x, cx.compute_dtype());
    if mask_zero {
        let index = whole(x);
        cx.set_padding_mask(&output, &index.not_equal(&index.like(0.0)));
    }
    output
}

/// Row `i` of a table `[rows, numbers]` for each index `i`, NaN where there is none, in an element type.
#[track_caller]
pub(super) fn look_up(table: &Tensor, x: &Tensor, dtype: DType) -> Tensor {
    let index = whole(x);
    let inside = index.greater_equal(&index.like(0.0));
    let inside = inside.and(&index.less(&index.like(table.dim(0) as f64)));
    let rows = table.gather(&index.convert(DType::I32), 0);
    let rows = rows.convert(dtype);
    let leading: Vec<usize> = (0..x.rank()).collect();
    inside
        .broadcast_in(&rows.dims(), &leading)
        .select(&rows, &rows.like(f64::NAN))
}

/// Indices as integers of enough bits.
#[track_caller]
pub(super) fn whole(x: &Tensor) -> Tensor {
    let wide = matches!(x.dtype(), DType::I64 | DType::U32 | DType::F64);
    x.convert(if wide { DType::I64 } else { DType::I32 })
}
