//! Transformation of 3x3 kernels to the points of Winograd's tiles by a registered kernel, once instead of in each call.
//!
//! A batch of few tiles takes a fifth of its time for it. The points are four times as large as the kernel, so larger batches, which gain
//! little, keep their kernels.

use super::{Rebuilt, constant_nodes};
use crate::op::{Attribute, ConvDims, CustomCall, Node, Op, Value};
use crate::stablehlo::{relu_attributes, window};
use crate::{DType, FusedActivation, Kernel, KernelSupport, Program, Shape};

/// The call from a kernel to its points.
pub(super) const TRANSFORM: &str = "phalanx.conv_points";
/// The call of a convolution by points of its kernel.
pub(super) const CONVOLUTION: &str = "phalanx.conv_by_points";

/// Side of a tile of the result.
const TILE: usize = 4;
/// Points of a tile.
const POINTS: usize = 36;
/// Output channels of a block of points, which has a row of padding.
const BLOCK: usize = 16;
/// Tiles of a batch up to which points are kept.
const MOST_TILES: usize = 256;

/// The program with calls by points for the convolutions in f32 that gain and whose kernels depend on the leading parameters alone.
pub(super) fn transformed(program: &Program, constant: usize, kernels: KernelSupport) -> Program {
    if !kernels.tiles {
        return program.clone();
    }
    let is_constant = constant_nodes(&program.nodes, constant);
    let mut nodes = Rebuilt::default();
    for node in &program.nodes {
        let taken = convolution(node).filter(|(dims, _)| {
            let kernel = node.inputs[1];
            let has_pixels = !program.shape(node.inputs[0]).is_empty();
            is_constant[kernel.node]
                && has_pixels
                && takes(dims, program.shape(kernel), &node.shapes[0])
        });
        match taken {
            None => nodes.keep(node),
            Some((dims, activation)) => {
                let kernel = &program.shape(node.inputs[1]).dims;
                let attributes = attributes(dims, activation, program.devices());
                let result = write(&mut nodes, node, [kernel[2], kernel[3]], attributes);
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

/// Whether the registered kernel computes it, by tiles of which at most a third is wasted, and few.
fn takes(dims: &ConvDims, kernel: &Shape, y: &Shape) -> bool {
    let f32s = [kernel, y].iter().all(|shape| shape.dtype == DType::F32);
    if !f32s || kernel.rank() != 4 || !dims.is_plain_2d(&kernel.dims) {
        return false;
    }
    let whole_blocks = |&channels: &usize| channels >= 16 && channels.is_multiple_of(8);
    let [batch, rows, columns, _] = y.dims[..] else {
        return false;
    };
    let tiles = rows.div_ceil(TILE) * columns.div_ceil(TILE);
    kernel.dims[..2] == [3, 3]
        && dims.strides == [1, 1]
        && dims.kernel_dilation == [1, 1]
        && dims.feature_groups == 1
        && kernel.dims[2..].iter().all(whole_blocks)
        && tiles * POINTS <= 6 * rows * columns
        && (1..=MOST_TILES).contains(&(batch * tiles))
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
    [inputs, outputs]: [usize; 2],
    attributes: Vec<(String, Attribute)>,
) -> Value {
    let shape = Shape::f32([outputs.div_ceil(BLOCK) * POINTS * (inputs + 1) * BLOCK]);
    let call = |target: &str, shape: &Shape, attributes: Vec<(String, Attribute)>| {
        Op::CustomCall(CustomCall {
            target: target.to_owned(),
            outputs: vec![shape.clone()],
            attributes,
            has_side_effect: false,
        })
    };
    let replicas = attributes.iter().filter(|(name, _)| name == "replicas");
    let transform = call(TRANSFORM, &shape, replicas.cloned().collect());
    let mut operands: Vec<Value> = node.inputs.iter().map(|&value| nodes.at(value)).collect();
    operands[1] = nodes.add_like(node, transform, vec![operands[1]], shape);
    let y = &node.shapes[0];
    nodes.add_like(node, call(CONVOLUTION, y, attributes), operands, y.clone())
}
