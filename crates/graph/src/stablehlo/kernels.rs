//! Calls of the kernels registered beside a compiler's own, and what stands in for them elsewhere.
//!
//! The names and attributes here are a contract with whoever registers the kernels.

use super::writer::{Operand, Writer};
use super::{custom_call, lower_nodes};
use crate::op::{Attribute, ConvDims, CustomCall, Node};
use crate::simplify::simplify_body;
use crate::{DType, Kernel, Mask, Pool2d, Program, Ramp, Shape};

/// Work in convolutions, in operations, from which a program gains from registered kernels more than they cost to load.
const WORTH_KERNELS: u64 = 100_000_000;

impl Program {
    /// Whether registered kernels would make this program clearly faster on host processors.
    #[must_use]
    pub fn wants_kernels(&self) -> bool {
        let cost = self.cost();
        let of_kernels = self.nodes.iter().zip(&cost.nodes);
        let of_kernels = of_kernels
            .filter(|(node, _)| matches!(node.op, crate::Op::Conv(_) | crate::Op::Kernel(_)));
        of_kernels.map(|(_, cost)| cost.flops).sum::<u64>() >= WORTH_KERNELS
    }
}

/// A convolution by a registered kernel, when there is one for it.
pub(super) fn conv(
    w: &mut Writer,
    inputs: &[Operand],
    dims: &ConvDims,
    shape: &Shape,
) -> Option<Operand> {
    let shapes = [&inputs[0].shape, &inputs[1].shape, shape];
    (w.kernels.is_some() && takes_conv(dims, &inputs[1].shape.dims, shapes)).then(|| {
        let outputs = std::slice::from_ref(shape);
        call(w, "phalanx.conv", inputs, outputs, window(dims)).swap_remove(0)
    })
}

/// An op with a kernel of its own: a call of the kernel, or what the op is made of.
pub(super) fn lower(
    w: &mut Writer,
    kernel: &Kernel,
    node: &Node,
    inputs: &[Operand],
) -> Vec<Operand> {
    let outputs = &node.shapes;
    if w.kernels.is_some() {
        let shapes = [
            &inputs[0].shape,
            &inputs[inputs.len() - 1].shape,
            &outputs[0],
        ];
        match kernel {
            Kernel::ConvInputGradient { dims, .. }
                if takes_conv(dims, &inputs[1].shape.dims, shapes) =>
            {
                return call(
                    w,
                    "phalanx.conv_input_gradient",
                    inputs,
                    outputs,
                    window(dims),
                );
            }
            Kernel::ConvKernelGradient { dims, kernel } if takes_conv(dims, kernel, shapes) => {
                return call(
                    w,
                    "phalanx.conv_kernel_gradient",
                    inputs,
                    outputs,
                    window(dims),
                );
            }
            Kernel::ConvBias(dims) if takes_conv(dims, &inputs[1].shape.dims, shapes) => {
                return call(w, "phalanx.conv", inputs, outputs, window(dims));
            }
            Kernel::BatchNorm { epsilon, ramp } if takes(shapes) => {
                let attributes = [ramped(*ramp), epsilon_of(*epsilon)].concat();
                return call(w, "phalanx.batch_norm", inputs, outputs, attributes);
            }
            Kernel::BatchNormGradient { epsilon, mask } if takes(shapes) => {
                let ceiling = match mask {
                    Mask::Beta(ramp) => ceiling(*ramp),
                    Mask::None | Mask::Output => ceiling(Ramp::None),
                };
                let attributes = [vec![ceiling], epsilon_of(*epsilon)].concat();
                return call(
                    w,
                    "phalanx.batch_norm_gradient",
                    inputs,
                    outputs,
                    attributes,
                );
            }
            Kernel::MaxPool2d(pool) if takes_pool(pool, shapes) => {
                return call(w, "phalanx.max_pool", inputs, outputs, pooling(pool));
            }
            Kernel::MaxPool2dGradient(pool) if takes_pool(pool, shapes) => {
                return call(
                    w,
                    "phalanx.max_pool_gradient",
                    &inputs[2..],
                    outputs,
                    pooling(pool),
                );
            }
            _ => {}
        }
    }
    let shapes: Vec<Shape> = inputs.iter().map(|input| input.shape.clone()).collect();
    let parts = simplify_body(&kernel.decomposed(&shapes, node.label.clone()), w.replicas);
    lower_nodes(w, &parts.nodes, inputs, &parts.outputs)
}

fn takes_conv(dims: &ConvDims, kernel: &[usize], shapes: [&Shape; 3]) -> bool {
    takes(shapes) && dims.is_plain_2d(kernel)
}

/// The place in a window is told in one byte.
fn takes_pool(pool: &Pool2d, shapes: [&Shape; 3]) -> bool {
    takes(shapes) && pool.size[0] * pool.size[1] < 256
}

fn takes(shapes: [&Shape; 3]) -> bool {
    let float = |dtype| matches!(dtype, DType::F32 | DType::Bf16 | DType::F16);
    shapes
        .iter()
        .all(|shape| !shape.is_empty() && float(shape.dtype))
}

fn window(dims: &ConvDims) -> Vec<(String, Attribute)> {
    let low = dims.padding.iter().map(|&(low, _)| low);
    let high = dims.padding.iter().map(|&(_, high)| high);
    vec![
        ints("dilation", signed(&dims.kernel_dilation)),
        (
            "groups".to_owned(),
            Attribute::Int(dims.feature_groups as i64),
        ),
        ints("padding_high", high.collect()),
        ints("padding_low", low.collect()),
        ints("strides", signed(&dims.strides)),
    ]
}

fn pooling(pool: &Pool2d) -> Vec<(String, Attribute)> {
    vec![
        ints("padding_high", signed(&pool.padding.map(|(_, high)| high))),
        ints("padding_low", signed(&pool.padding.map(|(low, _)| low))),
        ints("strides", signed(&pool.strides)),
        ints("window", signed(&pool.size)),
    ]
}

fn epsilon_of(epsilon: f64) -> Vec<(String, Attribute)> {
    vec![("epsilon".to_owned(), Attribute::Float(epsilon as f32))]
}

/// What follows: whether negative numbers become 0, and the ceiling.
fn ramped(ramp: Ramp) -> Vec<(String, Attribute)> {
    let relu = Attribute::Bool(ramp != Ramp::None);
    vec![ceiling(ramp), ("relu".to_owned(), relu)]
}

/// The largest number of a ramp, 0 where there is none.
fn ceiling(ramp: Ramp) -> (String, Attribute) {
    let ceiling = match ramp {
        Ramp::Clipped(ceiling) => ceiling as f32,
        Ramp::None | Ramp::Relu => 0.0,
    };
    ("ceiling".to_owned(), Attribute::Float(ceiling))
}

fn ints(name: &str, values: Vec<i64>) -> (String, Attribute) {
    (name.to_owned(), Attribute::Ints(values))
}

fn signed(values: &[usize]) -> Vec<i64> {
    values.iter().map(|&value| value as i64).collect()
}

/// Calls a kernel, in f32 for the short floats that it does not take.
fn call(
    w: &mut Writer,
    target: &str,
    inputs: &[Operand],
    outputs: &[Shape],
    mut attributes: Vec<(String, Attribute)>,
) -> Vec<Operand> {
    attributes.sort_by(|(a, _), (b, _)| a.cmp(b));
    let bf16 = w.kernels.is_some_and(|support| support.bf16);
    let taken = |dtype: DType| match dtype {
        DType::F16 => DType::F32,
        DType::Bf16 if !bf16 => DType::F32,
        other => other,
    };
    let inputs: Vec<Operand> = inputs
        .iter()
        .map(|x| w.convert(x, taken(x.shape.dtype)))
        .collect();
    let wide = outputs
        .iter()
        .map(|shape| shape.with_dtype(taken(shape.dtype)));
    let call = CustomCall {
        target: target.to_owned(),
        outputs: wide.collect(),
        attributes,
        has_side_effect: false,
    };
    let results = custom_call(w, &call, &inputs);
    let narrow = results.iter().zip(outputs);
    narrow
        .map(|(result, shape)| w.convert(result, shape.dtype))
        .collect()
}
