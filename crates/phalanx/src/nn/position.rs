//! Where in its sequence each vector stands.

use phalanx_graph::{DType, HostTensor, Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::layer::Layer;
use super::sizes::{check_size, one_float};
use super::{Cx, Initializer, fields};
use crate::config::{self, Component, Described, Field, Kind};

/// Adds a learned vector to each place of a sequence: `x + embeddings[..length]`; kind `position_embedding`.
///
/// Variable: `embeddings` `[sequence_length, features]`. Input: `[batch, length, features]`, no longer than
/// `sequence_length`. Not in Keras itself; `KerasHub`'s layer of this name gives the vectors without adding them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PositionEmbedding {
    sequence_length: usize,
    initializer: Initializer,
}

impl PositionEmbedding {
    /// Vectors for sequences of at most `sequence_length`.
    #[must_use]
    pub const fn new(sequence_length: usize) -> Self {
        Self {
            sequence_length,
            initializer: Initializer::GlorotUniform,
        }
    }

    /// Sets where first values come from; Glorot's uniform by default.
    #[must_use]
    pub const fn initializer(mut self, initializer: Initializer) -> Self {
        self.initializer = initializer;
        self
    }
}

impl Described for PositionEmbedding {
    const COMPONENT: Component = Component {
        name: "position_embedding",
        doc: "adds a learned vector to each position of a sequence",
        fields: &[
            Field::required(
                "sequence_length",
                Kind::SIZE,
                "length of the longest sequence",
            )
            .example("128"),
            fields::initializer("initializer", "first values of the vectors"),
        ],
    };
}

impl Layer for PositionEmbedding {
    fn kind(&self) -> &'static str {
        "position_embedding"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    fn check_settings(&self) -> Result<(), String> {
        check_size("`sequence_length`", self.sequence_length)
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        let input = one_sequence(inputs)?;
        if input.dims[1] <= self.sequence_length {
            return Ok(());
        }
        let (length, known) = (input.dims[1], self.sequence_length);
        Err(format!(
            "expected sequences of at most {known}, got {length}; raise `sequence_length` or cut them"
        ))
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let x = &inputs[0];
        let shape = Shape::new(x.dtype(), [self.sequence_length, x.dim(2)]);
        let table = cx.variable("embeddings", shape, &self.initializer);
        x + table.slice_dim(0, 0, x.dim(1))
    }

    fn keeps_mask(&self) -> bool {
        true
    }
}

/// Adds waves of geometrically growing lengths to the places of a sequence (Vaswani et al. 2017, 3.5); kind
/// `sinusoidal_position`.
///
/// Feature `2i` of place `p` gets `sin(p / max_wavelength^(2i / features))`, feature `2i + 1` the cosine. Input:
/// `[batch, length, features]`. Not in Keras itself; `KerasHub`'s `SinePositionEncoding` has the same numbers and does
/// not add them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SinusoidalPosition {
    max_wavelength: f64,
}

impl SinusoidalPosition {
    /// Waves up to 2 pi times 10000, as in the paper.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            max_wavelength: 10_000.0,
        }
    }

    /// Sets the longest wave, in units of 2 pi.
    #[must_use]
    pub const fn max_wavelength(mut self, max_wavelength: f64) -> Self {
        self.max_wavelength = max_wavelength;
        self
    }

    /// How fast the angle of each feature grows from place to place.
    fn rates(&self, features: usize) -> Vec<f32> {
        let exponent = |feature: usize| (feature / 2 * 2) as f64 / features as f64;
        let rate = |feature: usize| self.max_wavelength.powf(-exponent(feature)) as f32;
        (0..features).map(rate).collect()
    }
}

/// More features than this are taken for a mistake: their rates are part of the program.
const MOST_FEATURES: usize = 1 << 16;

impl Default for SinusoidalPosition {
    fn default() -> Self {
        Self::new()
    }
}

impl Described for SinusoidalPosition {
    const COMPONENT: Component = Component {
        name: "sinusoidal_position",
        doc: "adds sine and cosine waves to the positions of a sequence",
        fields: &[Field::optional(
            "max_wavelength",
            Kind::ABOVE_ZERO,
            "length of the longest wave",
        )],
    };
}

impl Layer for SinusoidalPosition {
    fn kind(&self) -> &'static str {
        "sinusoidal_position"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    fn check_settings(&self) -> Result<(), String> {
        if self.max_wavelength.is_finite() && self.max_wavelength > 0.0 {
            return Ok(());
        }
        let got = self.max_wavelength;
        Err(format!(
            "`max_wavelength` must be a number above 0, got {got}"
        ))
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        let input = one_sequence(inputs)?;
        if input.dims[2] <= MOST_FEATURES {
            return Ok(());
        }
        Err(format!(
            "expected at most {MOST_FEATURES} features, got {input}"
        ))
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let (x, graph) = (&inputs[0], cx.graph());
        let (length, features) = (x.dim(1), x.dim(2));
        let rates = graph.constant(HostTensor::new([features], &self.rates(features)));
        let angles = graph.iota(Shape::f32([length, features]), 0) * rates;
        let feature = graph.iota(Shape::new(DType::I32, [features]), 0);
        let is_even = feature.and(&feature.like(1.0)).equal(&feature.like(0.0));
        let waves = is_even.select(&angles.sin(), &angles.cos());
        x + waves.convert(x.dtype())
    }

    fn keeps_mask(&self) -> bool {
        true
    }
}

/// The one input of a layer: floats `[batch, length, features]`.
pub(super) fn one_sequence(inputs: &[Shape]) -> Result<&Shape, String> {
    let input = one_float(inputs)?;
    if input.rank() == 3 {
        return Ok(input);
    }
    Err(format!(
        "expected sequences [batch, length, features], got {input}; embed or reshape them first"
    ))
}
