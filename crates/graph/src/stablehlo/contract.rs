//! Matrix products and convolutions.

use super::bf16_matmul::MatricesView;
use super::prefers_dots;
use super::writer::{Operand, Writer, signature};
use crate::op::{ConvDims, ConvSpec, DotDims, PadDim, SliceDim};
use crate::{DType, Shape};

/// A product whose accumulation and result have the element type of `dims`.
pub(super) fn dot(
    w: &mut Writer,
    lhs: &Operand,
    rhs: &Operand,
    dims: &DotDims,
    shape: &Shape,
) -> Operand {
    if let Some(product) = super::bf16_matmul::bf16_matmul(w, lhs, rhs, dims, shape) {
        return product;
    }
    if let Some(product) = super::host_matmul::host_matmul(w, [lhs, rhs], None, dims, shape) {
        return product;
    }
    let (from, to) = (lhs.shape.dtype, shape.dtype);
    if w.widens_bf16 && from == DType::Bf16 && matches!(to, DType::Bf16 | DType::F32) {
        let [lhs, rhs] = [lhs, rhs].map(|operand| w.convert(operand, DType::F32));
        let wide = dot(w, &lhs, &rhs, dims, &shape.with_dtype(DType::F32));
        return if to == DType::F32 {
            wide
        } else {
            w.convert(&wide, to)
        };
    }
    if prefers_dots(w.platform)
        && let Some(flat) = flat_contraction(lhs, rhs, dims)
    {
        let (lhs, rhs) = (w.reshape(lhs, &flat[0]), w.reshape(rhs, &flat[1]));
        let dims = DotDims {
            lhs_contract: vec![0],
            rhs_contract: vec![0],
            ..dims.clone()
        };
        return dot(w, &lhs, &rhs, &dims, shape);
    }
    if prefers_dots(w.platform) && is_refused(lhs, rhs, dims, shape) {
        return dot_of_ordered(w, lhs, rhs, dims, shape);
    }
    if from == shape.dtype || is_library_form(from, shape.dtype) {
        return dot_general(w, lhs, rhs, dims, shape);
    }
    if shape.dtype.size() < from.size() {
        let wide = dot_general(w, lhs, rhs, dims, &shape.with_dtype(from));
        return w.convert(&wide, shape.dtype);
    }
    let (lhs, rhs) = (w.convert(lhs, shape.dtype), w.convert(rhs, shape.dtype));
    dot_general(w, &lhs, &rhs, dims, shape)
}

/// The dims of both operands with all the leading ones, which are contracted, as one: the gradient of a kernel from a batch of
/// sequences, say.
///
/// XLA:CPU transposes an operand with several contracted dims, and computes again in strides whatever made it; a matrix it
/// hands to the matrix library as it is. 16-bit matrices are the other way around: the library wants them transposed.
fn flat_contraction(lhs: &Operand, rhs: &Operand, dims: &DotDims) -> Option<[Vec<usize>; 2]> {
    let count = dims.lhs_contract.len();
    let leading: Vec<usize> = (0..count).collect();
    let both_lead = dims.lhs_contract == leading && dims.rhs_contract == leading;
    if count < 2 || !both_lead || !dims.lhs_batch.is_empty() || lhs.shape.dtype.size() < 4 {
        return None;
    }
    let flat = |shape: &Shape| {
        let rows = shape.dims[..count].iter().product();
        [&[rows], &shape.dims[count..]].concat()
    };
    Some([flat(&lhs.shape), flat(&rhs.shape)])
}

/// As the device likes: NVIDIA's GPUs have 10 bits of a fraction for operands of f32, TPUs 7.
const DEFAULT: &str = "DEFAULT";

/// How many digits of the operands count.
fn precision(w: &Writer, operand: &Operand) -> &'static str {
    match w.full_f32 && operand.shape.dtype == DType::F32 {
        true => "HIGHEST",
        false => DEFAULT,
    }
}

/// Whether matrix libraries take these operands and accumulate in this wider result.
fn is_library_form(from: DType, to: DType) -> bool {
    matches!(from, DType::Bf16 | DType::F16) && to == DType::F32
}

/// Whether XLA:CPU compiles this product and then refuses to run it, with "BF16 x BF16 = F32": of large matrices in batches, where those on the left
/// are behind each other and transposed, and those on the right are not behind each other.
fn is_refused(lhs: &Operand, rhs: &Operand, dims: &DotDims, shape: &Shape) -> bool {
    let leads = |dims: &[usize]| dims.iter().copied().eq(0..dims.len());
    (lhs.shape.dtype, rhs.shape.dtype, shape.dtype) == (DType::Bf16, DType::Bf16, DType::F32)
        && leads(&dims.lhs_batch)
        && dims
            .lhs_contract
            .iter()
            .any(|&dim| dim + 1 < lhs.shape.rank())
        && !leads(&dims.rhs_batch)
}

/// The product of operands whose dims are brought into order before: batch dims, as one, then one that stays and one that is summed over.
fn dot_of_ordered(
    w: &mut Writer,
    lhs: &Operand,
    rhs: &Operand,
    dims: &DotDims,
    shape: &Shape,
) -> Operand {
    let left = MatricesView::new(&lhs.shape, &dims.lhs_batch, &dims.lhs_contract);
    let right = MatricesView::new(&rhs.shape, &dims.rhs_batch, &dims.rhs_contract);
    let matrices = DotDims {
        lhs_batch: vec![0],
        rhs_batch: vec![0],
        lhs_contract: vec![if left.depth_is_last { 2 } else { 1 }],
        rhs_contract: vec![if right.depth_is_last { 2 } else { 1 }],
        dtype: dims.dtype,
    };
    let result = Shape::new(shape.dtype, [left.batch, left.count, right.count]);
    let (lhs, rhs) = (left.of(w, lhs), right.of(w, rhs));
    let product = dot_general(w, &lhs, &rhs, &matrices, &result);
    w.reshape(&product, &shape.dims)
}

fn dot_general(
    w: &mut Writer,
    lhs: &Operand,
    rhs: &Operand,
    dims: &DotDims,
    shape: &Shape,
) -> Operand {
    let batching = match dims.lhs_batch.as_slice() {
        [] => String::new(),
        batch => format!(", batching_dims = {batch:?} x {:?}", dims.rhs_batch),
    };
    let precision = precision(w, lhs);
    let attributes = format!(
        "contracting_dims = {:?} x {:?}, precision = [{precision}, {precision}]",
        dims.lhs_contract, dims.rhs_contract
    );
    let text = format!(
        "stablehlo.dot_general {}, {}{batching}, {attributes} : {}",
        lhs.name,
        rhs.name,
        signature(&[lhs.clone(), rhs.clone()], std::slice::from_ref(shape))
    );
    w.line(shape, &text)
}

pub(super) fn conv(
    w: &mut Writer,
    input: &Operand,
    kernel: &Operand,
    dims: &ConvDims,
    shape: &Shape,
) -> Operand {
    if prefers_dots(w.platform)
        && let Some(plan) = plan_product(&input.shape, &kernel.shape, dims, shape)
    {
        return product(w, input, kernel, dims, &plan, shape);
    }
    let (input, padding) = cut(w, input, dims);
    let padding: Vec<String> = padding.iter().map(|(l, h)| format!("[{l}, {h}]")).collect();
    let digits = match precision(w, &input) {
        DEFAULT => String::new(),
        precision => {
            let each = format!("#stablehlo<precision {precision}>");
            format!(", precision_config = [{each}, {each}]")
        }
    };
    let text = format!(
        "stablehlo.convolution({}, {}) dim_numbers = {}x{}->{}, window = {{stride = {:?}, pad = [{}], lhs_dilate = {:?}, rhs_dilate = {:?}}} {{batch_group_count = {} : i64, feature_group_count = {} : i64{digits}}} : {}",
        input.name,
        kernel.name,
        layout(&dims.input, 'b', 'f'),
        layout(&dims.kernel, 'o', 'i'),
        layout(&dims.output, 'b', 'f'),
        dims.strides,
        padding.join(", "),
        dims.input_dilation,
        dims.kernel_dilation,
        dims.batch_groups,
        dims.feature_groups,
        signature(
            &[input.clone(), kernel.clone()],
            std::slice::from_ref(shape)
        )
    );
    w.line(shape, &text)
}

/// The input without what negative padding cuts off, and the padding that is left, none of it negative.
///
/// The convolution of XLA:CPU reads outside of the input when padding is negative.
fn cut(w: &mut Writer, input: &Operand, dims: &ConvDims) -> (Operand, Vec<(i64, i64)>) {
    let whole = |&size: &usize| SliceDim {
        start: 0,
        limit: size,
        stride: 1,
    };
    let mut slices: Vec<SliceDim> = input.shape.dims.iter().map(whole).collect();
    let mut padding = dims.padding.clone();
    for (i, pad) in padding.iter_mut().enumerate() {
        let place = dims.input.spatial[i];
        let size = input.shape.dims[place];
        (slices[place], *pad) = cut_dim(size, dims.input_dilation[i], *pad);
    }
    (super::slice(w, input, &slices), padding)
}

/// Elements stand at multiples of `dilation`; those outside of the padded range go, and the range's edges stay.
fn cut_dim(size: usize, dilation: usize, (low, high): (i64, i64)) -> (SliceDim, (i64, i64)) {
    let length = if size == 0 {
        0
    } else {
        (size - 1) * dilation + 1
    };
    let (begin, end) = (-low, length as i64 + high);
    let element = |place: i64| (place.max(0) as usize).div_ceil(dilation).min(size);
    let (start, limit) = (element(begin), element(end));
    let slice = |start, limit| SliceDim {
        start,
        limit,
        stride: 1,
    };
    if start >= limit {
        return (slice(0, 0), (end - begin, 0));
    }
    let (first, last) = (start * dilation, (limit - 1) * dilation);
    (
        slice(start, limit),
        (first as i64 - begin, end - last as i64 - 1),
    )
}

/// `[b, 0, 1, f]`.
fn layout(spec: &ConvSpec, batch: char, feature: char) -> String {
    let mut places = vec![String::new(); spec.spatial.len() + 2];
    places[spec.batch] = batch.to_string();
    places[spec.feature] = feature.to_string();
    for (index, &place) in spec.spatial.iter().enumerate() {
        places[place] = index.to_string();
    }
    format!("[{}]", places.join(", "))
}

/// What a spatial dim is in the product that a convolution amounts to.
#[derive(Clone, Copy)]
enum Spatial {
    /// The kernel has one element: the dim stays, after a slice of the input, or before padding of the result.
    Kept { slice: SliceDim, pad: PadDim },
    /// The output has one element: the dim is summed over.
    Summed { slice: SliceDim },
}

/// How a convolution is a matrix product, if it is one: 1x1 kernels, their two gradients, and kernels as large as the image.
fn plan_product(
    input: &Shape,
    kernel: &Shape,
    dims: &ConvDims,
    out: &Shape,
) -> Option<Vec<Spatial>> {
    if dims.feature_groups != 1 || dims.batch_groups != 1 || input.is_empty() || out.is_empty() {
        return None;
    }
    let place = |i: usize| {
        let size = input.dims[dims.input.spatial[i]];
        let window = kernel.dims[dims.kernel.spatial[i]];
        let result = out.dims[dims.output.spatial[i]];
        plan_spatial(dims, i, [size, window, result])
    };
    (0..dims.strides.len()).map(place).collect()
}

fn plan_spatial(dims: &ConvDims, i: usize, sizes: [usize; 3]) -> Option<Spatial> {
    let [size, window, result] = sizes;
    let (low, high) = dims.padding[i];
    let only_cuts = low == 0 && high <= 0 && dims.input_dilation[i] == 1;
    let every = |count: usize, stride: usize| SliceDim {
        start: 0,
        limit: (count - 1) * stride + 1,
        stride,
    };
    if window == 1 && dims.strides[i] == 1 {
        let interior = dims.input_dilation[i] - 1;
        let pad = PadDim {
            low,
            high,
            interior,
        };
        return Some(Spatial::Kept {
            slice: every(size, 1),
            pad,
        });
    }
    if window == 1 && only_cuts {
        let slice = every(result, dims.strides[i]);
        return Some(Spatial::Kept {
            slice,
            pad: PadDim::default(),
        });
    }
    if result == 1 && window > 1 && only_cuts {
        return Some(Spatial::Summed {
            slice: every(window, dims.kernel_dilation[i]),
        });
    }
    None
}

fn product(
    w: &mut Writer,
    input: &Operand,
    kernel: &Operand,
    dims: &ConvDims,
    plan: &[Spatial],
    shape: &Shape,
) -> Operand {
    let whole = |&size: &usize| SliceDim {
        start: 0,
        limit: size,
        stride: 1,
    };
    let mut slices: Vec<SliceDim> = input.shape.dims.iter().map(whole).collect();
    let mut lhs_contract = vec![dims.input.feature];
    let mut rhs_contract = vec![dims.kernel.feature];
    for (i, spatial) in plan.iter().enumerate() {
        let (Spatial::Kept { slice, .. } | Spatial::Summed { slice }) = spatial;
        slices[dims.input.spatial[i]] = *slice;
        if matches!(spatial, Spatial::Summed { .. }) {
            lhs_contract.push(dims.input.spatial[i]);
            rhs_contract.push(dims.kernel.spatial[i]);
        }
    }
    let lhs = super::slice(w, input, &slices);
    let (rhs, rhs_contract) = drop_unit_dims(w, kernel, dims, rhs_contract);
    let dot_dims = DotDims {
        lhs_batch: Vec::new(),
        rhs_batch: Vec::new(),
        lhs_contract,
        rhs_contract,
        dtype: shape.dtype,
    };
    let mut free: Vec<usize> = (0..lhs.shape.rank())
        .filter(|dim| !dot_dims.lhs_contract.contains(dim))
        .collect();
    let mut sizes: Vec<usize> = free.iter().map(|&dim| lhs.shape.dims[dim]).collect();
    sizes.push(kernel.shape.dims[dims.kernel.batch]);
    let flat = dot_general(w, &lhs, &rhs, &dot_dims, &Shape::new(shape.dtype, sizes));
    // Where each dim of the product goes in the output; `usize::MAX` stands for the output feature.
    free.push(usize::MAX);
    arrange(w, &flat, &free, dims, plan, shape)
}

/// The kernel without the spatial dims of one element, whose place in the product is the input's.
fn drop_unit_dims(
    w: &mut Writer,
    kernel: &Operand,
    dims: &ConvDims,
    contract: Vec<usize>,
) -> (Operand, Vec<usize>) {
    let kept: Vec<usize> = (0..kernel.shape.rank())
        .filter(|dim| *dim == dims.kernel.batch || contract.contains(dim))
        .collect();
    let sizes: Vec<usize> = kept.iter().map(|&dim| kernel.shape.dims[dim]).collect();
    let position = |dim: usize| kept.iter().position(|&kept| kept == dim);
    let contract = contract.into_iter().filter_map(position).collect();
    (w.reshape(kernel, &sizes), contract)
}

/// Transposes the product to the output's layout, puts dims of one element back, and pads.
fn arrange(
    w: &mut Writer,
    flat: &Operand,
    sources: &[usize],
    dims: &ConvDims,
    plan: &[Spatial],
    shape: &Shape,
) -> Operand {
    let destination = |&source: &usize| match source {
        usize::MAX => dims.output.feature,
        dim if dim == dims.input.batch => dims.output.batch,
        dim => {
            let spatial = dims.input.spatial.iter().position(|&place| place == dim);
            dims.output.spatial[spatial.expect("a spatial dim")]
        }
    };
    let places: Vec<usize> = sources.iter().map(destination).collect();
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_by_key(|&index| places[index]);
    let ordered = w.transpose(flat, &order);
    let mut full = vec![1; shape.rank()];
    for (index, &size) in order.iter().zip(&ordered.shape.dims) {
        full[places[*index]] = size;
    }
    let ordered = w.reshape(&ordered, &full);
    let mut pads = vec![PadDim::default(); shape.rank()];
    for (i, spatial) in plan.iter().enumerate() {
        if let Spatial::Kept { pad, .. } = spatial {
            pads[dims.output.spatial[i]] = *pad;
        }
    }
    if pads.iter().all(|pad| *pad == PadDim::default()) {
        return ordered;
    }
    let zero = w.full(&Shape::scalar(shape.dtype), 0.0);
    super::pad(w, &ordered, &zero, &pads, shape)
}
