//! Matrix products and convolutions.

use phalanx_graph::op::{ConvDims, ConvSpec, DotDims};
use phalanx_graph::{DType, HostTensor, Shape};

use super::message::NodeArgument;
use super::rearrange::{dilated, edged, reverse};
use super::size::Size;
use super::writer::{OnnxValue, OnnxWriter, fixed};
use crate::Result;

/// A product by `MatMul`: as it is where both sides have the order that this takes, else of sides brought into it.
pub(super) fn dot(
    w: &mut OnnxWriter,
    x: &OnnxValue,
    y: &OnnxValue,
    dot: &DotDims,
    dims: Vec<Size>,
) -> Result<OnnxValue> {
    let [x, y] = [x, y].map(|side| w.full(side));
    let [x, y] = [x, y].map(|side| w.convert(&side, dot.dtype));
    let is_plain = dot.lhs_batch.is_empty()
        && y.dims.len() == 2
        && dot.lhs_contract == [x.dims.len() - 1]
        && x.dims.len() > 1;
    if is_plain {
        let turned = w.transpose(&y, &[dot.rhs_contract[0], 1 - dot.rhs_contract[0]]);
        let name = w.node("MatMul", &[&x.name, &turned.name], &[]);
        return Ok(OnnxValue::new(name, dot.dtype, dims));
    }
    let (left, right) = (
        Matrices::new(w, &x, &dot.lhs_batch, &dot.lhs_contract, false)?,
        Matrices::new(w, &y, &dot.rhs_batch, &dot.rhs_contract, true)?,
    );
    let mut flat = left.batch;
    flat.extend([left.kept, right.kept]);
    let name = w.node("MatMul", &[&left.name, &right.name], &[]);
    let product = OnnxValue::new(name, dot.dtype, flat);
    Ok(w.reshape(&product, &dims))
}

/// A side of a product as `[batch.., kept, summed]`, or `[batch.., summed, kept]`.
struct Matrices {
    name: String,
    batch: Vec<Size>,
    kept: Size,
}

impl Matrices {
    fn new(
        w: &mut OnnxWriter,
        x: &OnnxValue,
        batch: &[usize],
        summed: &[usize],
        kept_last: bool,
    ) -> Result<Self> {
        let kept = (0..x.dims.len()).filter(|dim| !batch.contains(dim) && !summed.contains(dim));
        let kept: Vec<usize> = kept.collect();
        let order = match kept_last {
            true => [batch, summed, &kept].concat(),
            false => [batch, &kept, summed].concat(),
        };
        let turned = w.transpose(x, &order);
        let sizes = |places: &[usize]| places.iter().map(|&dim| x.dims[dim]).collect::<Vec<_>>();
        let flat = [&kept[..], summed].map(|places| Size::product(&sizes(places)));
        let [Some(count), Some(depth)] = flat else {
            return Err(w.bound_to_batch("the size of a matrix"));
        };
        let batch = sizes(batch);
        let mut dims = batch.clone();
        dims.extend(match kept_last {
            true => [depth, count],
            false => [count, depth],
        });
        Ok(Self {
            name: w.reshape(&turned, &dims).name,
            batch,
            kept: count,
        })
    }
}

/// Where the dims of ONNX's `[batch, feature, spatial..]` are.
fn order(spec: &ConvSpec) -> Vec<usize> {
    [&[spec.batch, spec.feature][..], &spec.spatial].concat()
}

/// What undoes [`order`].
fn back(spec: &ConvSpec) -> Vec<usize> {
    let order = order(spec);
    let place = |dim: usize| order.iter().position(|&other| other == dim).unwrap_or(dim);
    (0..order.len()).map(place).collect()
}

pub(super) fn conv(
    w: &mut OnnxWriter,
    x: &OnnxValue,
    kernel: &OnnxValue,
    conv: &ConvDims,
    dims: &[Size],
) -> Result<OnnxValue> {
    if conv.batch_groups > 1 {
        return Err(w.refused("it convolves groups of examples apart, as gradients do"));
    }
    let [x, kernel] = [x, kernel].map(|side| w.full(side));
    let (x, kernel) = (
        w.transpose(&x, &order(&conv.input)),
        w.transpose(&kernel, &order(&conv.kernel)),
    );
    let ordered: Vec<Size> = order(&conv.output).iter().map(|&dim| dims[dim]).collect();
    let result = match transposed(&kernel, conv) {
        Some(pads) => conv_transpose(w, &x, &kernel, conv, &pads),
        None => plain_conv(w, &x, &kernel, conv)?,
    };
    let result = OnnxValue::new(result, x.dtype, ordered);
    Ok(w.transpose(&result, &back(&conv.output)))
}

/// A convolution of inputs that have their zeros between elements already, and edges where these are cut.
fn plain_conv(
    w: &mut OnnxWriter,
    x: &OnnxValue,
    kernel: &OnnxValue,
    conv: &ConvDims,
) -> Result<String> {
    let zero = w.constant(&HostTensor::zeros(Shape::scalar(x.dtype)));
    let mut x = x.clone();
    for (i, &dilation) in conv.input_dilation.iter().enumerate() {
        x = dilated(w, &x, 2 + i, dilation - 1, &zero)?;
    }
    let is_cut = conv.padding.iter().any(|&(low, high)| low < 0 || high < 0);
    let mut padding = conv.padding.clone();
    if is_cut {
        let edges = padding.iter().map(|&(low, high)| [low, high]);
        let edges: Vec<[i64; 2]> = [[0, 0], [0, 0]].into_iter().chain(edges).collect();
        x = edged(w, &x, &edges, &zero, &[]);
        padding.fill((0, 0));
    }
    let arguments = [
        ("strides", NodeArgument::ints(conv.strides.iter().copied())),
        ("pads", pads(&padding)),
        (
            "dilations",
            NodeArgument::ints(conv.kernel_dilation.iter().copied()),
        ),
        ("group", NodeArgument::Int(conv.feature_groups as i64)),
    ];
    Ok(w.node("Conv", &[&x.name, &kernel.name], &arguments))
}

fn pads(padding: &[(i64, i64)]) -> NodeArgument {
    let low = padding.iter().map(|pad| pad.0);
    NodeArgument::Ints(low.chain(padding.iter().map(|pad| pad.1)).collect())
}

/// The padding of the `ConvTranspose` that is this convolution, with what it has at the end besides; nothing where there is none.
///
/// With zeros between elements of the input, a convolution by a kernel of span `k` and padding `p` is the transpose of one with these zeros
/// for strides, the kernel reversed and padding `k - 1 - p`.
fn transposed(kernel: &OnnxValue, conv: &ConvDims) -> Option<Vec<(i64, i64)>> {
    let spans = fixed(&kernel.dims[2..])?;
    let spans = spans.iter().zip(&conv.kernel_dilation);
    let around = spans
        .zip(&conv.padding)
        .map(|((&size, &dilation), &(low, high))| {
            let span = (dilation * (size - 1)) as i64;
            (span - low, span - high)
        });
    let around: Vec<(i64, i64)> = around.collect();
    let mut edges = around.iter().zip(&conv.input_dilation);
    let fits = edges.all(|(&(low, high), &stride)| low >= 0 && -high < stride as i64);
    let is_transposed = conv.input_dilation.iter().any(|&dilation| dilation > 1)
        && conv.strides.iter().all(|&stride| stride == 1)
        && conv.feature_groups == 1;
    (fits && is_transposed).then_some(around)
}

fn conv_transpose(
    w: &mut OnnxWriter,
    x: &OnnxValue,
    kernel: &OnnxValue,
    conv: &ConvDims,
    around: &[(i64, i64)],
) -> String {
    let spatial: Vec<usize> = (2..kernel.dims.len()).collect();
    let reversed = reverse(w, kernel, &spatial);
    let turned = w.transpose(&reversed, &[&[1, 0], &spatial[..]].concat());
    let within: Vec<(i64, i64)> = around
        .iter()
        .map(|&(low, high)| (low, high.max(0)))
        .collect();
    let beyond = around.iter().map(|&(_, high)| (-high).max(0));
    let arguments = [
        (
            "strides",
            NodeArgument::ints(conv.input_dilation.iter().copied()),
        ),
        ("pads", pads(&within)),
        (
            "dilations",
            NodeArgument::ints(conv.kernel_dilation.iter().copied()),
        ),
        ("output_padding", NodeArgument::Ints(beyond.collect())),
    ];
    w.node("ConvTranspose", &[&x.name, &turned.name], &arguments)
}

/// Element types in which there are convolutions and poolings.
pub(super) const fn is_pooled(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F64)
}
