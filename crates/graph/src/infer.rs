//! Shape inference: what each op makes of its operands, and what is wrong with them.

mod contract;
mod loops;

use self::contract::{conv, dot, reduce_window};
pub(crate) use self::loops::communication;
use self::loops::{case, check_silent, scan_loop, while_loop};
use crate::grad::window::{check_places, place_dtype};
use crate::kernel::{gru, lstm};
use crate::op::{BinaryOp, ConvDims, Op, PadDim, ReduceOp, SliceDim, UnaryOp};
use crate::{DType, Kernel, Mask, Pool2d, Shape};

type Inferred = Result<Vec<Shape>, String>;

/// The largest stride, dilation, interior padding and edge: beyond any array, and sums of a few of them are numbers.
const MOST_STEPS: u64 = 1 << 40;

/// The shapes of an op's outputs, or what is wrong with its operands; `replicas` run the program together.
pub(crate) fn infer(op: &Op, inputs: &[&Shape], replicas: usize) -> Inferred {
    let shapes = infer_unchecked(op, inputs, replicas)?;
    shapes.iter().try_for_each(check_size)?;
    Ok(shapes)
}

/// Whether the size of an array in bytes is a number that the machine and the compiler can hold.
///
/// A dim of size 0 counts as 1: it makes no dim beside it legal.
pub(crate) fn check_size(shape: &Shape) -> Result<(), String> {
    let grow = |size: i64, &dim: &usize| size.checked_mul(i64::try_from(dim.max(1)).ok()?);
    match shape.dims.iter().try_fold(shape.dtype.size() as i64, grow) {
        Some(_) => Ok(()),
        None => Err(format!("{shape} has more bytes than can be counted")),
    }
}

fn infer_unchecked(op: &Op, inputs: &[&Shape], replicas: usize) -> Inferred {
    let one = |shape: Shape| Ok(vec![shape]);
    match op {
        Op::Parameter(_) => Err("parameters are declared, not inferred".into()),
        Op::Constant(value) => one(value.shape().clone()),
        Op::Iota(_) => Err("iota is declared, not inferred".into()),
        Op::Unary(op) => one(unary(*op, operand(inputs, 0)?)?),
        Op::Binary(op) => one(binary(*op, same(inputs)?)?),
        Op::Compare(_) => one(same(inputs)?.with_dtype(DType::Bool)),
        Op::Select => one(select(inputs)?),
        Op::Convert(dtype) => one(operand(inputs, 0)?.with_dtype(*dtype)),
        Op::Bitcast(dtype) => one(bitcast(operand(inputs, 0)?, *dtype)?),
        Op::StopGradient | Op::WithGradient(_) | Op::Sharded(_) => one(operand(inputs, 0)?.clone()),
        Op::OptimizationBarrier => Ok(inputs.iter().map(|&shape| shape.clone()).collect()),
        Op::Reshape(dims) => one(reshape(operand(inputs, 0)?, dims)?),
        Op::Transpose(perm) => one(transpose(operand(inputs, 0)?, perm)?),
        Op::Broadcast { dims, map } => one(broadcast(operand(inputs, 0)?, dims, map)?),
        Op::Reverse(dims) => one(reverse(operand(inputs, 0)?, dims)?),
        Op::Pad(pads) => one(pad(inputs, pads)?),
        Op::Slice(slices) => one(slice(operand(inputs, 0)?, slices)?),
        Op::DynamicSlice(sizes) => one(dynamic_slice(inputs, sizes)?),
        Op::DynamicUpdateSlice => one(dynamic_update(inputs)?),
        Op::Concat(dim) => one(concat(inputs, *dim)?),
        Op::Gather { dim } => one(gather(inputs, *dim)?),
        Op::ScatterAdd { dim } | Op::ScatterSet { dim } => one(scatter(inputs, *dim)?),
        Op::ArgSort => one(argsort(operand(inputs, 0)?)?),
        Op::Dot(dims) => one(dot(inputs, dims)?),
        Op::Conv(dims) => one(conv(inputs, dims)?),
        Op::Reduce { kind, dims } => one(reduce(*kind, operand(inputs, 0)?, dims)?),
        Op::ReduceWindow { kind, window } => {
            one(reduce_window(*kind, operand(inputs, 0)?, window)?)
        }
        Op::RandomBits(dims) => one(random_bits(inputs, dims)?),
        Op::While { condition, body } => {
            check_silent(condition, body, replicas)?;
            while_loop(inputs, condition, body)
        }
        Op::Scan(scan) => scan_loop(inputs, scan),
        Op::Case(branches) => case(inputs, branches, replicas),
        Op::AllReduce { kind, .. } => all_reduce(*kind, inputs),
        Op::AllGather { dim } => one(scale_dim(operand(inputs, 0)?, *dim, replicas, 1)?),
        Op::ReduceScatter { dim } => {
            check_combines(ReduceOp::Sum, operand(inputs, 0)?)?;
            one(scale_dim(operand(inputs, 0)?, *dim, 1, replicas)?)
        }
        Op::AllToAll { split, concat } => {
            let cut = scale_dim(operand(inputs, 0)?, *split, 1, replicas)?;
            one(scale_dim(&cut, *concat, replicas, 1)?)
        }
        Op::CollectivePermute(pairs) => one(permute(operand(inputs, 0)?, pairs, replicas)?),
        Op::Kernel(op) => kernel(op, inputs),
        Op::ReplicaId => one(Shape::scalar(DType::U32)),
        Op::ExchangesSucceeded => one(Shape::scalar(DType::Bool)),
        Op::CustomCall(call) => Ok(call.outputs.clone()),
    }
}

fn conv_bias(dims: &ConvDims, inputs: &[&Shape]) -> Result<Shape, String> {
    let first = operand(inputs, 0)?;
    let output = conv(&[first, operand(inputs, 1)?], dims)?;
    let channels = output.dims[dims.output.feature];
    check_channels(operand(inputs, 2)?, first.dtype, channels)?;
    if let Some(residual) = inputs.get(3) {
        same(&[&output, residual])?;
    }
    Ok(output)
}

fn kernel(op: &Kernel, inputs: &[&Shape]) -> Inferred {
    let first = operand(inputs, 0)?;
    match op {
        Kernel::ConvInputGradient { dims, input } => {
            let kernel = operand(inputs, 1)?;
            let input = Shape::new(kernel.dtype, input.clone());
            check_cotangent(first, &conv(&[&input, kernel], dims)?)?;
            if let Some(by) = inputs.get(2) {
                same(&[&input, by])?;
            }
            Ok(vec![input])
        }
        Kernel::ConvKernelGradient { dims, kernel } => {
            let kernel = Shape::new(first.dtype, kernel.clone());
            check_cotangent(operand(inputs, 1)?, &conv(&[first, &kernel], dims)?)?;
            Ok(vec![kernel])
        }
        Kernel::ConvBias { dims, .. } => Ok(vec![conv_bias(dims, inputs)?]),
        Kernel::BatchNorm { .. } => {
            let channels = check_normal(first)?;
            let dtype = first.dtype.wide();
            for at in 1..3 {
                check_channels(operand(inputs, at)?, dtype, channels)?;
            }
            if let Some(residual) = inputs.get(3) {
                same(&[first, residual])?;
            }
            let statistic = Shape::new(dtype, [channels]);
            Ok(vec![first.clone(), statistic.clone(), statistic])
        }
        Kernel::BatchNormGradient { mask, .. } => {
            let x = same(inputs)?;
            let channels = check_normal(x)?;
            let of_channels = if matches!(mask, Mask::Beta(_)) { 6 } else { 5 };
            let dtype = x.dtype.wide();
            for at in 2..of_channels {
                check_channels(operand(inputs, at)?, dtype, channels)?;
            }
            let statistic = Shape::new(dtype, [channels]);
            let mut found = vec![x.clone(), statistic.clone(), statistic];
            if *mask == Mask::Output {
                found.push(same(&[x, operand(inputs, 5)?])?.clone());
            }
            Ok(found)
        }
        Kernel::MaxPool2d(pool) => {
            let largest = max_pool(first, pool)?;
            let place = largest.with_dtype(place_dtype(&pool.window()));
            Ok(vec![largest, place])
        }
        Kernel::MaxPool2dGradient { pool, input } => max_pool_gradient(inputs, pool, input),
        Kernel::Lstm => lstm::infer(inputs),
        Kernel::LstmGradient => lstm::infer_gradient(inputs),
        Kernel::Gru => gru::infer(inputs),
        Kernel::GruGradient => gru::infer_gradient(inputs),
    }
}

/// The input of a pooling, from the places and the cotangents of its windows.
fn max_pool_gradient(inputs: &[&Shape], pool: &Pool2d, input: &[usize]) -> Inferred {
    let (found, cotangent) = (operand(inputs, 0)?, operand(inputs, 1)?);
    let x = Shape::new(cotangent.dtype, input);
    check_cotangent(cotangent, &max_pool(&x, pool)?)?;
    let place = cotangent.with_dtype(place_dtype(&pool.window()));
    if *found != place {
        return Err(format!("expected the places {place}, got {found}"));
    }
    Ok(vec![x])
}

/// The number of channels of what can be normalized over all dims but the last.
fn check_normal(shape: &Shape) -> Result<usize, String> {
    match shape.dims.last() {
        Some(&channels) if shape.rank() > 1 && shape.dtype.is_float() => Ok(channels),
        _ => wrong_type(shape, "floats of rank 2 or more"),
    }
}

fn check_channels(got: &Shape, dtype: DType, channels: usize) -> Result<(), String> {
    let expected = Shape::new(dtype, [channels]);
    if *got == expected {
        return Ok(());
    }
    Err(format!(
        "expected a number for each channel, {expected}, got {got}"
    ))
}

fn check_cotangent(got: &Shape, expected: &Shape) -> Result<(), String> {
    if got == expected {
        return Ok(());
    }
    Err(format!("expected a cotangent {expected}, got {got}"))
}

fn max_pool(shape: &Shape, pool: &Pool2d) -> Result<Shape, String> {
    let window = pool.window();
    let largest = reduce_window(ReduceOp::Max, shape, &window)?;
    check_places(&window, &shape.dims)?;
    Ok(largest)
}

fn operand<'a>(inputs: &[&'a Shape], index: usize) -> Result<&'a Shape, String> {
    let found = inputs.get(index).copied();
    found.ok_or_else(|| format!("needs operand {index}, got {} operands", inputs.len()))
}

fn check_dim(shape: &Shape, dim: usize) -> Result<usize, String> {
    let size = shape.dims.get(dim).copied();
    size.ok_or_else(|| format!("dim {dim} of {shape}, which has rank {}", shape.rank()))
}

fn same<'a>(inputs: &[&'a Shape]) -> Result<&'a Shape, String> {
    let (a, b) = (operand(inputs, 0)?, operand(inputs, 1)?);
    if a == b {
        return Ok(a);
    }
    Err(format!("expected operands of one shape, got {a} and {b}"))
}

/// The sum, or an error when it cannot be counted.
fn sum<const N: usize>(terms: [usize; N]) -> Result<usize, String> {
    let total = terms.into_iter().try_fold(0usize, usize::checked_add);
    total.ok_or_else(|| format!("{terms:?} add up to more than can be counted"))
}

fn product<const N: usize>(factors: [usize; N]) -> Result<usize, String> {
    let total = factors.into_iter().try_fold(1usize, usize::checked_mul);
    total.ok_or_else(|| format!("{factors:?} multiply to more than can be counted"))
}

fn check_distinct(dims: &[usize], what: &str) -> Result<(), String> {
    match dims
        .iter()
        .enumerate()
        .find(|(i, dim)| dims[..*i].contains(dim))
    {
        None => Ok(()),
        Some((_, dim)) => Err(format!("{what} name dim {dim} twice: {dims:?}")),
    }
}

fn wrong_type<T>(shape: &Shape, expected: &str) -> Result<T, String> {
    Err(format!("expected {expected}, got {shape}; convert first"))
}

fn binary(op: BinaryOp, shape: &Shape) -> Result<Shape, String> {
    let dtype = shape.dtype;
    let (fits, expected) = match op {
        BinaryOp::Max | BinaryOp::Min => (true, ""),
        BinaryOp::And | BinaryOp::Or | BinaryOp::Xor => {
            (!dtype.is_float(), "integers or truth values")
        }
        BinaryOp::ShiftLeft | BinaryOp::ShiftRight => (dtype.is_integer(), "integers"),
        BinaryOp::Add
        | BinaryOp::Sub
        | BinaryOp::Mul
        | BinaryOp::Div
        | BinaryOp::Pow
        | BinaryOp::Rem => (dtype != DType::Bool, "numbers"),
    };
    if fits {
        return Ok(shape.clone());
    }
    wrong_type(shape, expected)
}

/// Whether a combining function takes these elements.
fn check_combines(kind: ReduceOp, shape: &Shape) -> Result<(), String> {
    match kind {
        ReduceOp::Sum | ReduceOp::Prod if shape.dtype == DType::Bool => {
            wrong_type(shape, "numbers")
        }
        ReduceOp::And | ReduceOp::Or if shape.dtype.is_float() => {
            wrong_type(shape, "integers or truth values")
        }
        _ => Ok(()),
    }
}

/// Communication libraries have no bitwise combinations.
fn all_reduce(kind: ReduceOp, inputs: &[&Shape]) -> Inferred {
    operand(inputs, 0)?;
    for shape in inputs {
        check_combines(kind, shape)?;
        if matches!(kind, ReduceOp::And | ReduceOp::Or) && shape.dtype != DType::Bool {
            return wrong_type(shape, "truth values");
        }
    }
    Ok(inputs.iter().map(|&shape| shape.clone()).collect())
}

fn unary(op: UnaryOp, shape: &Shape) -> Result<Shape, String> {
    let dtype = shape.dtype;
    let fits = match op {
        UnaryOp::Neg | UnaryOp::Abs | UnaryOp::Sign => dtype != DType::Bool,
        UnaryOp::Not => dtype.is_integer() || dtype == DType::Bool,
        UnaryOp::IsFinite => {
            return if dtype.is_float() {
                Ok(shape.with_dtype(DType::Bool))
            } else {
                Err(format!("expected floats, got {shape}; convert first"))
            };
        }
        _ => dtype.is_float(),
    };
    if fits {
        return Ok(shape.clone());
    }
    Err(format!(
        "{shape} is of the wrong element type; convert first"
    ))
}

fn select(inputs: &[&Shape]) -> Result<Shape, String> {
    let condition = operand(inputs, 0)?;
    let value = same(&inputs[1..])?;
    if *condition == value.with_dtype(DType::Bool) {
        return Ok(value.clone());
    }
    Err(format!(
        "expected a condition of {}, got {condition}",
        value.with_dtype(DType::Bool)
    ))
}

fn bitcast(shape: &Shape, dtype: DType) -> Result<Shape, String> {
    if shape.dtype.size() == dtype.size() {
        return Ok(shape.with_dtype(dtype));
    }
    Err(format!("{shape} and {dtype} differ in element size"))
}

fn reshape(shape: &Shape, dims: &[usize]) -> Result<Shape, String> {
    let new = Shape::new(shape.dtype, dims);
    check_size(&new)?;
    if new.len() == shape.len() {
        return Ok(new);
    }
    Err(format!(
        "{shape} has {} elements, {new} has {}",
        shape.len(),
        new.len()
    ))
}

fn transpose(shape: &Shape, perm: &[usize]) -> Result<Shape, String> {
    let mut sorted = perm.to_vec();
    sorted.sort_unstable();
    if sorted != (0..shape.rank()).collect::<Vec<_>>() {
        return Err(format!(
            "{perm:?} is no order of the {} dims of {shape}",
            shape.rank()
        ));
    }
    let dims: Vec<usize> = perm.iter().map(|&dim| shape.dims[dim]).collect();
    Ok(Shape::new(shape.dtype, dims))
}

fn broadcast(shape: &Shape, dims: &[usize], map: &[usize]) -> Result<Shape, String> {
    let ascending = map.windows(2).all(|pair| pair[0] < pair[1]);
    let fits = map.len() == shape.rank()
        && ascending
        && map
            .iter()
            .zip(&shape.dims)
            .all(|(&to, &size)| dims.get(to).is_some_and(|&out| size == out || size == 1));
    if fits {
        return Ok(Shape::new(shape.dtype, dims));
    }
    Err(format!(
        "{shape} does not broadcast to {dims:?} by way of dims {map:?}"
    ))
}

fn reverse(shape: &Shape, dims: &[usize]) -> Result<Shape, String> {
    for &dim in dims {
        check_dim(shape, dim)?;
    }
    check_distinct(dims, "the reversed dims")?;
    Ok(shape.clone())
}

fn check_rank<T>(shape: &Shape, per_dim: &[T], what: &str) -> Result<(), String> {
    if per_dim.len() == shape.rank() {
        return Ok(());
    }
    let (got, rank) = (per_dim.len(), shape.rank());
    Err(format!("expected {rank} {what} for {shape}, got {got}"))
}

fn check_steps(steps: impl IntoIterator<Item = u64>) -> Result<(), String> {
    match steps.into_iter().find(|&step| step > MOST_STEPS) {
        None => Ok(()),
        Some(step) => Err(format!(
            "expected strides, dilations and paddings of at most {MOST_STEPS}, got {step}"
        )),
    }
}

fn pad(inputs: &[&Shape], pads: &[PadDim]) -> Result<Shape, String> {
    let (shape, value) = (operand(inputs, 0)?, operand(inputs, 1)?);
    check_rank(shape, pads, "paddings")?;
    if *value != Shape::scalar(shape.dtype) {
        return Err(format!(
            "expected a scalar {} as padding, got {value}",
            shape.dtype
        ));
    }
    for pad in pads {
        check_steps([
            pad.interior as u64,
            pad.low.unsigned_abs(),
            pad.high.unsigned_abs(),
        ])?;
    }
    let sizes = shape.dims.iter().zip(pads).map(|(&size, pad)| {
        let inner = sum([size, product([size.saturating_sub(1), pad.interior])?])?;
        let padded = inner as i128 + i128::from(pad.low) + i128::from(pad.high);
        usize::try_from(padded).map_err(|_| format!("padding {pad:?} leaves {padded} of {size}"))
    });
    Ok(Shape::new(
        shape.dtype,
        sizes.collect::<Result<Vec<_>, _>>()?,
    ))
}

fn slice(shape: &Shape, slices: &[SliceDim]) -> Result<Shape, String> {
    check_rank(shape, slices, "slices")?;
    let sizes = shape.dims.iter().zip(slices).map(|(&size, slice)| {
        if slice.start > slice.limit || slice.limit > size || slice.stride == 0 {
            let (start, limit, stride) = (slice.start, slice.limit, slice.stride);
            return Err(format!(
                "{start}..{limit} by {stride} is no range of the {size} elements of a dim of {shape}"
            ));
        }
        check_steps([slice.stride as u64])?;
        Ok((slice.limit - slice.start).div_ceil(slice.stride))
    });
    Ok(Shape::new(
        shape.dtype,
        sizes.collect::<Result<Vec<_>, _>>()?,
    ))
}

fn check_starts(shape: &Shape, starts: &[&Shape]) -> Result<(), String> {
    check_rank(shape, starts, "start indices")?;
    let scalar = Shape::scalar(DType::I32);
    match starts.iter().find(|&&start| *start != scalar) {
        None => Ok(()),
        Some(start) => Err(format!("expected i32 scalars as starts, got {start}")),
    }
}

fn dynamic_slice(inputs: &[&Shape], sizes: &[usize]) -> Result<Shape, String> {
    let shape = operand(inputs, 0)?;
    check_starts(shape, &inputs[1..])?;
    check_rank(shape, sizes, "slice sizes")?;
    if sizes.iter().zip(&shape.dims).any(|(size, dim)| size > dim) {
        return Err(format!("a slice of {sizes:?} is larger than {shape}"));
    }
    Ok(Shape::new(shape.dtype, sizes))
}

fn dynamic_update(inputs: &[&Shape]) -> Result<Shape, String> {
    let (shape, update) = (operand(inputs, 0)?, operand(inputs, 1)?);
    check_starts(shape, &inputs[2..])?;
    let fits = update.dtype == shape.dtype
        && update.rank() == shape.rank()
        && update
            .dims
            .iter()
            .zip(&shape.dims)
            .all(|(new, old)| new <= old);
    if fits {
        return Ok(shape.clone());
    }
    Err(format!("an update of {update} does not fit {shape}"))
}

fn concat(inputs: &[&Shape], dim: usize) -> Result<Shape, String> {
    let first = operand(inputs, 0)?;
    check_dim(first, dim)?;
    let mut result = first.clone();
    for other in &inputs[1..] {
        let mut expected = first.clone();
        expected.dims[dim] = check_dim(other, dim)?;
        if **other != expected {
            return Err(format!("{first} and {other} differ outside dim {dim}"));
        }
        result.dims[dim] = sum([result.dims[dim], other.dims[dim]])?;
    }
    Ok(result)
}

fn gathered(table: &Shape, indices: &Shape, dim: usize) -> Result<Shape, String> {
    check_dim(table, dim)?;
    if indices.dtype != DType::I32 {
        return Err(format!(
            "expected i32 indices, got {indices}; convert first"
        ));
    }
    let mut dims = table.dims[..dim].to_vec();
    dims.extend(&indices.dims);
    dims.extend(&table.dims[dim + 1..]);
    Ok(Shape::new(table.dtype, dims))
}

fn gather(inputs: &[&Shape], dim: usize) -> Result<Shape, String> {
    gathered(operand(inputs, 0)?, operand(inputs, 1)?, dim)
}

fn scatter(inputs: &[&Shape], dim: usize) -> Result<Shape, String> {
    let (base, updates) = (operand(inputs, 0)?, operand(inputs, 2)?);
    let expected = gathered(base, operand(inputs, 1)?, dim)?;
    if *updates == expected {
        return Ok(base.clone());
    }
    Err(format!("expected updates of {expected}, got {updates}"))
}

fn argsort(shape: &Shape) -> Result<Shape, String> {
    if shape.rank() == 1 && shape.dtype.is_integer() {
        return Ok(shape.with_dtype(DType::I32));
    }
    Err(format!("expected a vector of integers, got {shape}"))
}

fn reduce(kind: ReduceOp, shape: &Shape, dims: &[usize]) -> Result<Shape, String> {
    check_combines(kind, shape)?;
    for &dim in dims {
        check_dim(shape, dim)?;
    }
    let kept = (0..shape.rank()).filter(|dim| !dims.contains(dim));
    let sizes: Vec<usize> = kept.map(|dim| shape.dims[dim]).collect();
    Ok(Shape::new(shape.dtype, sizes))
}

fn random_bits(inputs: &[&Shape], dims: &[usize]) -> Result<Shape, String> {
    let (key, row) = (operand(inputs, 0)?, operand(inputs, 1)?);
    let inner = dims.iter().skip(1).try_fold(1u32, |size, &dim| {
        u32::try_from(dim)
            .ok()
            .and_then(|dim| size.checked_mul(dim))
    });
    if inner.is_none() {
        return Err(format!(
            "a row of {dims:?} has more elements than a u32 counts"
        ));
    }
    if *key == Shape::new(DType::U32, [2]) && *row == Shape::scalar(DType::U32) {
        return Ok(Shape::new(DType::U32, dims));
    }
    Err(format!(
        "expected a key u32[2] and a row u32[], got {key} and {row}"
    ))
}

fn scale_dim(shape: &Shape, dim: usize, times: usize, over: usize) -> Result<Shape, String> {
    let size = check_dim(shape, dim)?;
    if size % over != 0 {
        return Err(format!(
            "dim {dim} of {shape} does not divide by {over} replicas"
        ));
    }
    let mut result = shape.clone();
    result.dims[dim] = product([size / over, times])?;
    Ok(result)
}

fn permute(shape: &Shape, pairs: &[(usize, usize)], replicas: usize) -> Result<Shape, String> {
    let (from, to): (Vec<usize>, Vec<usize>) = pairs.iter().copied().unzip();
    check_once(&from, "sends")?;
    check_once(&to, "receives")?;
    match pairs.iter().find(|(from, to)| *from.max(to) >= replicas) {
        None => Ok(shape.clone()),
        Some(pair) => Err(format!("{pair:?} names a replica outside 0..{replicas}")),
    }
}

fn check_once(replicas: &[usize], verb: &str) -> Result<(), String> {
    let mut places = replicas.iter().enumerate();
    match places.find(|(i, replica)| replicas[..*i].contains(replica)) {
        None => Ok(()),
        Some((_, replica)) => Err(format!("replica {replica} {verb} twice")),
    }
}
