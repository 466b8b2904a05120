//! Kernels of convolutions in the form that a registered kernel computes with, made once instead of in each call.
//!
//! Points of Winograd's tiles: a batch of few tiles takes a fifth of its time to transform 3x3 kernels. The points are four times as large
//! as the kernel, so larger batches, which gain little, keep their kernels.
//!
//! Panels of a product: 1x1 kernels, which are packed for the registers in each call otherwise, and all kernels where there are so few
//! pixels that reading points takes longer than the multiplications that they save. Panels have the size of the kernel.

use super::{Rebuilt, constant_nodes};
use crate::op::{Attribute, ConvDims, CustomCall, Node, Op, Value};
use crate::stablehlo::{relu_attributes, window};
use crate::{DType, FusedActivation, Kernel, KernelSupport, Program, Shape};

/// Side of a tile of the result.
const TILE: usize = 4;
/// Points of a tile.
const POINTS: usize = 36;
/// Output channels of a block of points, which has a row of padding, and of a panel.
const BLOCK: usize = 16;
/// Tiles of a batch up to which points are kept.
const MOST_TILES: usize = 256;
/// Pixels of a batch up to which kernels of any window are packed: as four tiles have.
const FEW_PIXELS: usize = 64;
/// Channels from which kernels are packed.
const LEAST_CHANNELS: usize = 16;
/// Numbers that are copied at most for the windows of all pixels, 16 MiB: the memory that a call works in stays.
const MOST_COPIED: usize = 1 << 22;

/// A form of a kernel.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    Points,
    Panels,
}

impl Form {
    /// The calls that make it, and that convolve with it.
    const fn targets(self) -> [&'static str; 2] {
        match self {
            Self::Points => ["phalanx.conv_points", "phalanx.conv_by_points"],
            Self::Panels => ["phalanx.conv_panels", "phalanx.conv_by_panels"],
        }
    }

    /// The form of the kernel of a convolution in f32 with this result, where one gains.
    fn of(dims: &ConvDims, kernel: &Shape, y: &Shape) -> Option<Self> {
        let f32s = [kernel, y].iter().all(|shape| shape.dtype == DType::F32);
        let is_image = kernel.rank() == 4 && dims.is_plain_2d(&kernel.dims);
        if !f32s || !is_image || dims.feature_groups != 1 {
            return None;
        }
        if has_panels(dims, kernel, y) {
            return Some(Self::Panels);
        }
        has_points(dims, kernel, y).then_some(Self::Points)
    }

    /// Numbers of it for a kernel.
    fn len(self, kernel: &[usize]) -> usize {
        let (inputs, blocks) = (kernel[2], kernel[3].div_ceil(BLOCK));
        match self {
            Self::Points => blocks * POINTS * (inputs + 1) * BLOCK,
            Self::Panels => blocks * BLOCK * kernel[0] * kernel[1] * inputs,
        }
    }
}

/// Whether a call makes a form of a kernel.
pub(super) fn is_made_by(call: &CustomCall) -> bool {
    let forms = [Form::Points, Form::Panels];
    forms.iter().any(|form| form.targets()[0] == call.target)
}

/// Whether a call convolves with one.
pub(super) fn is_used_by(call: &CustomCall) -> bool {
    let forms = [Form::Points, Form::Panels];
    forms.iter().any(|form| form.targets()[1] == call.target)
}

/// The program with calls by such forms for the convolutions that gain and whose kernels depend on the leading parameters alone.
pub(super) fn transformed(program: &Program, constant: usize, kernels: KernelSupport) -> Program {
    if !kernels.tiles {
        return program.clone();
    }
    let is_constant = constant_nodes(&program.nodes, constant);
    let mut nodes = Rebuilt::default();
    for node in &program.nodes {
        let taken = convolution(node).filter(|_| {
            let has_pixels = !program.shape(node.inputs[0]).is_empty();
            is_constant[node.inputs[1].node] && has_pixels
        });
        let kernel = taken.map(|_| program.shape(node.inputs[1]));
        let form = taken.zip(kernel).and_then(|((dims, activation), kernel)| {
            let form = Form::of(dims, kernel, &node.shapes[0])?;
            Some((form, kernel, dims, activation))
        });
        match form {
            None => nodes.keep(node),
            Some((form, kernel, dims, activation)) => {
                let mut attributes = attributes(dims, activation, program.devices());
                if form == Form::Panels {
                    let sides = kernel.dims[..2].iter().map(|&side| side as i64);
                    attributes.push(("window".to_owned(), Attribute::Ints(sides.collect())));
                }
                let result = write(&mut nodes, node, form, &kernel.dims, attributes);
                nodes.places.push(result);
            }
        }
    }
    nodes.into_program(program)
}

fn convolution(node: &Node) -> Option<(&ConvDims, FusedActivation)> {
    match &node.op {
        Op::Conv(dims) => Some((dims, FusedActivation::None)),
        Op::Kernel(Kernel::ConvBias { dims, activation }) => Some((dims, *activation)),
        _ => None,
    }
}

/// Whether points gain: tiles of which at most a third is wasted, and few.
fn has_points(dims: &ConvDims, kernel: &Shape, y: &Shape) -> bool {
    let whole_blocks = |&channels: &usize| channels >= 16 && channels.is_multiple_of(8);
    let [batch, rows, columns, _] = y.dims[..] else {
        return false;
    };
    let tiles = rows.div_ceil(TILE) * columns.div_ceil(TILE);
    kernel.dims[..2] == [3, 3]
        && dims.strides == [1, 1]
        && dims.kernel_dilation == [1, 1]
        && kernel.dims[2..].iter().all(whole_blocks)
        && tiles * POINTS <= 6 * rows * columns
        && (1..=MOST_TILES).contains(&(batch * tiles))
}

/// Whether panels gain. Windows of more than one place, and those that strides set apart, are copied in each call.
fn has_panels(dims: &ConvDims, kernel: &Shape, y: &Shape) -> bool {
    let pixels: usize = y.dims[..3].iter().product();
    let depth: usize = kernel.dims[..3].iter().product();
    let is_point = kernel.dims[..2] == [1, 1];
    let is_copied = !is_point || dims.strides != [1, 1];
    let channels = kernel.dims[2..].iter();
    pixels > 0
        && channels.min() >= Some(&LEAST_CHANNELS)
        && (is_point || pixels <= FEW_PIXELS)
        && (!is_copied || pixels.saturating_mul(depth) <= MOST_COPIED)
}

fn attributes(
    dims: &ConvDims,
    activation: FusedActivation,
    devices: usize,
) -> Vec<(String, Attribute)> {
    let mut attributes = [window(dims), relu_attributes(activation)].concat();
    if devices > 1 {
        attributes.push(("replicas".to_owned(), Attribute::Int(devices as i64)));
    }
    attributes.sort_by(|(a, _), (b, _)| a.cmp(b));
    attributes
}

fn write(
    nodes: &mut Rebuilt,
    node: &Node,
    form: Form,
    kernel: &[usize],
    attributes: Vec<(String, Attribute)>,
) -> Value {
    let shape = Shape::f32([form.len(kernel)]);
    let call = |target: &str, shape: &Shape, attributes: Vec<(String, Attribute)>| {
        Op::CustomCall(CustomCall {
            target: target.to_owned(),
            outputs: vec![shape.clone()],
            attributes,
            has_side_effect: false,
        })
    };
    let replicas = attributes.iter().filter(|(name, _)| name == "replicas");
    let [made_by, used_by] = form.targets();
    let make = call(made_by, &shape, replicas.cloned().collect());
    let mut operands: Vec<Value> = node.inputs.iter().map(|&value| nodes.at(value)).collect();
    operands[1] = nodes.add_like(node, make, vec![operands[1]], shape);
    let y = &node.shapes[0];
    nodes.add_like(node, call(used_by, y, attributes), operands, y.clone())
}
