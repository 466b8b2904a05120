//! Products of vectors.

use phalanx_graph::{DType, HostTensor, Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Cx;
use super::layer::Layer;
use super::precision::widened;
use crate::config::{self, Component, Described, Field, Kind};

/// The product of two vectors of each example; kind `dot`.
///
/// Inputs: two of `[batch, features]`. Output: `[batch, 1]`. With `normalize` it is the cosine of their angle, each
/// vector divided by its length, at least 1e-7, as Keras does; Keras' other axes are not taken.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dot {
    normalize: bool,
}

/// The products of every two of several vectors of each example (DLRM, Naumov et al. 2019); kind `interaction`.
///
/// Inputs: `n` of `[batch, features]`. Output: `[batch, n (n - 1) / 2]`, in the order (0, 1), (0, 2), (1, 2), (0, 3)
/// and so on. Not in Keras.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Interaction;

impl Dot {
    /// The plain product.
    #[must_use]
    pub const fn new() -> Self {
        Self { normalize: false }
    }

    /// Sets whether vectors are divided by their lengths first; not by default.
    #[must_use]
    pub const fn normalize(mut self, normalize: bool) -> Self {
        self.normalize = normalize;
        self
    }
}

impl Described for Dot {
    const COMPONENT: Component = Component {
        name: "dot",
        doc: "the product of two vectors of each example",
        fields: &[Field::optional(
            "normalize",
            Kind::Bool,
            "whether it is the cosine of their angle",
        )],
    };
}

impl Layer for Dot {
    fn kind(&self) -> &'static str {
        "dot"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        match inputs {
            [_, _] => check_vectors(inputs),
            _ => Err(format!("expected 2 inputs, got {}", inputs.len())),
        }
    }

    fn call(&self, _cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let vectors = inputs.iter().map(|x| match self.normalize {
            true => unit(&widened(x)),
            false => widened(x),
        });
        let vectors: Vec<Tensor> = vectors.collect();
        let product = (&vectors[0] * &vectors[1]).sum(&[1]).keep_dims(&[1]);
        product.convert(inputs[0].dtype())
    }
}

/// Keras' `normalize`: divided by the root of the sum of squares, which counts as 1e-14 at least.
#[track_caller]
fn unit(x: &Tensor) -> Tensor {
    let squares = x.square().sum(&[1]).keep_dims(&[1]);
    x * squares.maximum(&squares.like(1e-14)).rsqrt()
}

/// More vectors than this are taken for a mistake: the numbers of their pairs are part of the program.
const MOST_VECTORS: usize = 1000;

impl Described for Interaction {
    const COMPONENT: Component = Component {
        name: "interaction",
        doc: "the products of every pair of vectors of each example",
        fields: &[],
    };
}

impl Layer for Interaction {
    fn kind(&self) -> &'static str {
        "interaction"
    }

    fn config(&self) -> Value {
        config::write(self.kind(), self)
    }

    fn check(&self, inputs: &[Shape]) -> Result<(), String> {
        match inputs {
            _ if !(2..=MOST_VECTORS).contains(&inputs.len()) => Err(format!(
                "expected 2 to {MOST_VECTORS} inputs, got {}",
                inputs.len()
            )),
            _ => check_vectors(inputs),
        }
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let rows: Vec<Tensor> = inputs.iter().map(|x| x.keep_dims(&[1])).collect();
        let stack = Tensor::concat(&rows.iter().collect::<Vec<_>>(), 1);
        let products = stack.matmul(&stack.transpose(&[0, 2, 1]));
        let count = inputs.len();
        let flat = products.reshape(&[stack.dim(0), count * count]);
        let pairs = (0..count).flat_map(|row| (0..row).map(move |column| row * count + column));
        let pairs: Vec<i32> = pairs
            .filter_map(|place| i32::try_from(place).ok())
            .collect();
        let pairs = cx.graph().constant(HostTensor::new([pairs.len()], &pairs));
        flat.gather(&pairs.convert(DType::I32), 1)
    }
}

fn check_vectors(inputs: &[Shape]) -> Result<(), String> {
    let first = &inputs[0];
    if first.rank() != 2 || !first.dtype.is_float() {
        return Err(format!("expected floats [batch, features], got {first}"));
    }
    match inputs.iter().find(|&input| input != first) {
        Some(other) => Err(format!(
            "expected vectors of one size, got {first} and {other}"
        )),
        None => Ok(()),
    }
}
