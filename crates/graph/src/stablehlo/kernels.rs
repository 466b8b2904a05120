//! Calls of the kernels registered beside a compiler's own, and what stands in for them elsewhere.
//!
//! The names and attributes here are a contract with whoever registers the kernels.

use super::host_lstm::host_lstm;
use super::writer::{Operand, Writer};
use super::{custom_call, lower_nodes};
use crate::cost::count;
use crate::kernel::image_forms;
use crate::op::{Attribute, ConvDims, CustomCall, Node, Op, Subgraph};
use crate::simplify::simplify_body;
use crate::{DType, FusedActivation, Kernel, Mask, Pool2d, Program, Shape};

/// Work of convolutions, in operations, from which a program gains from registered kernels more than they cost to load.
const WORTH_KERNELS: u64 = 100_000_000;
/// How much slower than others XLA:CPU's convolutions of many groups are, at least.
const GROUPED: u64 = 20;

impl Program {
    /// Whether registered kernels would make this program clearly faster on host processors.
    #[must_use]
    pub fn gains_from_kernels(&self) -> bool {
        kernel_work(&self.nodes, self.replicas) >= WORTH_KERNELS
    }
}

/// Operations that registered kernels would do.
fn kernel_work(nodes: &[Node], replicas: usize) -> u64 {
    let costs = count(nodes, replicas).nodes;
    let work = nodes.iter().zip(&costs).map(|(node, cost)| match &node.op {
        Op::Conv(dims)
        | Op::Kernel(
            Kernel::ConvInputGradient { dims, .. } | Kernel::ConvKernelGradient { dims, .. },
        ) if dims.feature_groups > 1 => cost.flops.saturating_mul(GROUPED),
        // These are no library's.
        Op::Kernel(Kernel::Lstm | Kernel::LstmGradient | Kernel::Gru | Kernel::GruGradient) => 0,
        Op::Conv(_) | Op::Kernel(_) => cost.flops,
        // Only programs that gain from kernels have such calls.
        Op::CustomCall(call) if call.target.starts_with("phalanx.conv") => WORTH_KERNELS,
        Op::Case(branches) => {
            let works = branches.iter();
            let works = works.map(|branch| kernel_work(&branch.nodes, replicas));
            works.max().unwrap_or(0)
        }
        Op::Scan(scan) => {
            kernel_work(&scan.body.nodes, replicas).saturating_mul(scan.length as u64)
        }
        // How often it turns is not known.
        Op::While { body, .. } => kernel_work(&body.nodes, replicas),
        _ => 0,
    });
    work.fold(0, u64::saturating_add)
}

/// A convolution by a registered kernel, when there is one for it.
pub(super) fn conv(
    w: &mut Writer,
    inputs: &[Operand],
    dims: &ConvDims,
    shape: &Shape,
) -> Option<Operand> {
    let shapes = [&inputs[0].shape, &inputs[1].shape, shape];
    if w.kernels.is_none() || !takes(shapes) {
        return None;
    }
    let outputs = std::slice::from_ref(shape);
    if dims.is_plain_2d(&inputs[1].shape.dims) {
        return Some(call(w, "phalanx.conv", inputs, outputs, window(dims)).swap_remove(0));
    }
    let shapes = shapes[..2].iter().map(|&shape| shape.clone());
    let parts = image_forms::conv(dims, &shapes.collect::<Vec<_>>(), shape, w.label.clone())?;
    Some(lower_parts(w, &parts, inputs).swap_remove(0))
}

fn lower_parts(w: &mut Writer, parts: &Subgraph, inputs: &[Operand]) -> Vec<Operand> {
    let parts = simplify_body(parts, w.replicas);
    lower_nodes(w, &parts.nodes, inputs, &parts.outputs)
}

/// An op with a kernel of its own: a call of the kernel, or what the op is made of.
pub(super) fn lower(
    w: &mut Writer,
    kernel: &Kernel,
    node: &Node,
    inputs: &[Operand],
) -> Vec<Operand> {
    if let Some(results) = host_lstm(w, kernel, node, inputs) {
        return results;
    }
    let registered = w.kernels.and_then(|_| registered(kernel, node, inputs));
    if let Some((target, attributes)) = registered {
        return call(w, target, inputs, &node.shapes, attributes);
    }
    let shapes: Vec<Shape> = inputs.iter().map(|input| input.shape.clone()).collect();
    let as_images = w.kernels.is_some() && shapes.iter().all(is_taken);
    let parts = as_images
        .then(|| image_forms::kernel(kernel, &shapes, &node.shapes[0], node.label.clone()))
        .flatten()
        .unwrap_or_else(|| kernel.decomposed(&shapes, node.label.clone()));
    lower_parts(w, &parts, inputs)
}

type Attributes = Vec<(String, Attribute)>;

/// The name and the attributes of the registered kernel for an op, when it takes these operands.
fn registered(
    kernel: &Kernel,
    node: &Node,
    inputs: &[Operand],
) -> Option<(&'static str, Attributes)> {
    let last = &inputs[inputs.len() - 1].shape;
    let shapes = [&inputs[0].shape, last, &node.shapes[0]];
    let second = &inputs[inputs.len().min(2) - 1].shape.dims;
    let (taken, target, attributes) = match kernel {
        Kernel::ConvInputGradient { dims, .. } => (
            takes_conv(dims, second, shapes),
            "phalanx.conv_input_gradient",
            window(dims),
        ),
        Kernel::ConvKernelGradient { dims, kernel } => (
            takes_conv(dims, kernel, shapes),
            "phalanx.conv_kernel_gradient",
            window(dims),
        ),
        Kernel::ConvBias { dims, activation } => (
            takes_conv(dims, second, shapes),
            "phalanx.conv",
            [window(dims), relu_attributes(*activation)].concat(),
        ),
        Kernel::BatchNorm {
            epsilon,
            activation,
        } => {
            let attributes = [relu_attributes(*activation), epsilon_of(*epsilon)].concat();
            (takes(shapes), "phalanx.batch_norm", attributes)
        }
        Kernel::BatchNormGradient { epsilon, mask } => {
            let activation = match mask {
                Mask::Beta(activation) => *activation,
                Mask::None | Mask::Output => FusedActivation::None,
            };
            let attributes = [vec![ceiling(activation)], epsilon_of(*epsilon)].concat();
            (takes(shapes), "phalanx.batch_norm_gradient", attributes)
        }
        Kernel::MaxPool2d(pool) => (takes_pool(pool, shapes), "phalanx.max_pool", pooling(pool)),
        Kernel::MaxPool2dGradient { pool, .. } => (
            takes_pool(pool, [last, last, &node.shapes[0]]),
            "phalanx.max_pool_gradient",
            pooling(pool),
        ),
        Kernel::Lstm | Kernel::LstmGradient | Kernel::Gru | Kernel::GruGradient => return None,
    };
    taken.then_some((target, attributes))
}

fn takes_conv(dims: &ConvDims, kernel: &[usize], shapes: [&Shape; 3]) -> bool {
    takes(shapes) && dims.is_plain_2d(kernel)
}

/// The place in a window is kept in one byte.
fn takes_pool(pool: &Pool2d, shapes: [&Shape; 3]) -> bool {
    takes(shapes) && pool.size[0] * pool.size[1] < 256
}

fn takes(shapes: [&Shape; 3]) -> bool {
    shapes.into_iter().all(is_taken)
}

fn is_taken(shape: &Shape) -> bool {
    !shape.is_empty() && matches!(shape.dtype, DType::F32 | DType::Bf16 | DType::F16)
}

pub(crate) fn window(dims: &ConvDims) -> Attributes {
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

fn pooling(pool: &Pool2d) -> Attributes {
    vec![
        ints("padding_high", signed(&pool.padding.map(|(_, high)| high))),
        ints("padding_low", signed(&pool.padding.map(|(low, _)| low))),
        ints("strides", signed(&pool.strides)),
        ints("window", signed(&pool.size)),
    ]
}

fn epsilon_of(epsilon: f64) -> Attributes {
    vec![("epsilon".to_owned(), Attribute::Float(epsilon as f32))]
}

/// What follows: whether negative numbers become 0, and the ceiling.
pub(crate) fn relu_attributes(activation: FusedActivation) -> Attributes {
    let relu = Attribute::Bool(activation != FusedActivation::None);
    vec![ceiling(activation), ("relu".to_owned(), relu)]
}

/// The ceiling of an activation, 0 where there is none.
fn ceiling(activation: FusedActivation) -> (String, Attribute) {
    let ceiling = match activation {
        FusedActivation::Clipped(ceiling) => ceiling as f32,
        FusedActivation::None | FusedActivation::Relu => 0.0,
    };
    ("ceiling".to_owned(), Attribute::Float(ceiling))
}

fn ints(name: &str, values: Vec<i64>) -> (String, Attribute) {
    (name.to_owned(), Attribute::Ints(values))
}

fn signed(values: &[usize]) -> Vec<i64> {
    values.iter().map(|&value| value as i64).collect()
}

/// Kernels of several devices run at once, each with its share of the processors.
pub(super) fn computing_at_once(w: &Writer) -> Option<(String, Attribute)> {
    let replicas = Attribute::Int(w.devices as i64);
    (w.devices > 1).then(|| ("replicas".to_owned(), replicas))
}

/// Calls a kernel, in f32 for the short floats that it does not take.
pub(super) fn call(
    w: &mut Writer,
    target: &str,
    inputs: &[Operand],
    outputs: &[Shape],
    mut attributes: Attributes,
) -> Vec<Operand> {
    attributes.extend(computing_at_once(w));
    attributes.sort_by(|(a, _), (b, _)| a.cmp(b));
    let normalizes = target.starts_with("phalanx.batch_norm");
    let taken = |shape: &Shape| match shape.dtype {
        DType::F16 => DType::F32,
        // A number for each channel.
        DType::Bf16 if normalizes && shape.rank() == 1 => DType::F32,
        other => other,
    };
    let inputs: Vec<Operand> = inputs
        .iter()
        .map(|x| w.convert(x, taken(&x.shape)))
        .collect();
    let wide = outputs.iter().map(|shape| shape.with_dtype(taken(shape)));
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
