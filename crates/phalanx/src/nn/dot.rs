//! Products of vectors, and of the steps of sequences.

use phalanx_graph::op::DotDims;
use phalanx_graph::{DType, HostTensor, Shape, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Cx;
use super::layer::Layer;
use super::precision::widened;
use crate::config::{self, Component, Described, Field, Kind};

/// The products of two values of each example along an axis of each; kind `dot`.
///
/// Inputs: two of `[batch, ..]`, of floats. Output: the dims of the first and then of the second that are no axis, as in
/// `[batch, queries, keys]` of `[batch, queries, features]` and `[batch, keys, features]`; of two vectors `[batch, 1]`. With `normalize` each
/// vector along the axis is divided by its length, at least 1e-7, as Keras does. The output has no padding mask.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dot {
    axes: [i64; 2],
    normalize: bool,
}

impl Default for Dot {
    fn default() -> Self {
        Self::new()
    }
}

/// The products of every two of several vectors of each example (DLRM, Naumov et al. 2019); kind `interaction`.
///
/// Inputs: `n` of `[batch, features]`. Output: `[batch, n (n - 1) / 2]`, in the order (0, 1), (0, 2), (1, 2), (0, 3)
/// and so on. Not in Keras.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Interaction;

impl Dot {
    /// The plain product along the last axes.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            axes: [-1, -1],
            normalize: false,
        }
    }

    /// Sets the axis of the first input and the second's; the batch is 0, and the last one, which is taken by default, -1.
    #[must_use]
    pub const fn axes(mut self, axes: [i64; 2]) -> Self {
        self.axes = axes;
        self
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
        doc: "the products of two values of each example along an axis of each",
        fields: &[
            Field::optional(
                "axes",
                Kind::List(&Kind::Whole(-MOST_DIMS, MOST_DIMS), 2, 2),
                "the axis of the first input and the second's; the batch is 0",
            )
            .example("[2, 2]"),
            Field::optional(
                "normalize",
                Kind::Bool,
                "whether it is the cosine of their angle",
            ),
        ],
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
        let [first, second] = inputs else {
            return Err(format!("expected 2 inputs, got {}", inputs.len()));
        };
        let mut sizes = inputs.iter().zip(self.axes).map(|(input, axis)| {
            let axis = axis_of(axis, input.rank());
            let axis = axis.filter(|_| input.dtype.is_float());
            axis.map(|axis| input.dims[axis]).ok_or_else(|| {
                let [one, other] = self.axes;
                format!("expected floats [batch, ..] with the axes {one} and {other}, got {first} and {second}")
            })
        });
        let (one, other) = (sizes.next().transpose()?, sizes.next().transpose()?);
        if one != other || first.dtype != second.dtype {
            return Err(format!(
                "expected as many numbers along the axes {:?}, got {first} and {second}",
                self.axes
            ));
        }
        Ok(())
    }

    fn call(&self, _cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let axis = |at: usize| axis_of(self.axes[at], inputs[at].rank()).unwrap_or(1);
        let axes = [axis(0), axis(1)];
        let values = inputs
            .iter()
            .zip(axes)
            .map(|(x, axis)| match self.normalize {
                true => unit(&widened(x), axis),
                false => widened(x),
            });
        let values: Vec<Tensor> = values.collect();
        let product = match (inputs[0].rank(), inputs[1].rank()) {
            (2, 2) => (&values[0] * &values[1]).sum(&[1]).keep_dims(&[1]),
            _ => values[0].dot(
                &values[1],
                DotDims {
                    lhs_batch: vec![0],
                    rhs_batch: vec![0],
                    lhs_contract: vec![axes[0]],
                    rhs_contract: vec![axes[1]],
                    dtype: values[0].dtype(),
                },
            ),
        };
        product.convert(inputs[0].dtype())
    }
}

/// More dims have values in no model.
const MOST_DIMS: i64 = 16;

/// The place of an axis behind the batch.
fn axis_of(axis: i64, rank: usize) -> Option<usize> {
    let rank = rank as i64;
    let axis = if axis < 0 { axis + rank } else { axis };
    (0 < axis && axis < rank).then_some(axis as usize)
}

/// Keras' `normalize`: divided by the root of the sum of squares along the axis, which counts as 1e-14 at least.
#[track_caller]
fn unit(x: &Tensor, axis: usize) -> Tensor {
    let squares = x.square().sum(&[axis]).keep_dims(&[axis]);
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
