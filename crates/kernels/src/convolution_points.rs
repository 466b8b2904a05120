//! The calls of 3x3 convolutions whose kernels are transformed apart: `phalanx.conv_points`, `phalanx.conv_by_points`.

use phalanx_pjrt::{CustomCallError, CustomCallFrame, ElementType};

use crate::convolution::{Algorithm, ConvolutionDesc, Direction};
use crate::handlers::{
    TensorDesc, expect_dims, forward_epilogue, has_relu, image, invalid, pair, replicas,
    worker_error,
};
use crate::kernels::Kernels;
use crate::onednn::DataType;
use crate::winograd;
use crate::worker_state::WorkerState;

/// From a kernel to its points.
///
/// # Errors
/// The kernel is none of 3x3 in f32 with channels in eights, or the result has another length than its points.
pub(crate) fn transform(
    kernels: &Kernels,
    call: &mut CustomCallFrame<'_>,
) -> Result<(), CustomCallError> {
    let kernel = image(call.operand_shape(0)?)?;
    let channels = channels(&kernel)?;
    expect_points(call.result_shape(0)?, channels)?;
    let (from, to) = (call.operand::<f32>(0)?, call.result::<f32>(0)?);
    let run = |state: &mut WorkerState| winograd::transform_kernel(from, channels, to, &state.team);
    kernels
        .on_worker(replicas(call)?, run)
        .map_err(|why| worker_error(&why))
}

/// A convolution by the points of its kernel.
///
/// # Errors
/// It is none that tiles compute, or dimensions do not fit each other.
pub(crate) fn convolve(
    kernels: &Kernels,
    call: &mut CustomCallFrame<'_>,
) -> Result<(), CustomCallError> {
    let (x, y) = (
        image(call.operand_shape(0)?)?,
        image(call.result_shape(0)?)?,
    );
    let kernel = TensorDesc {
        element: DataType::F32,
        dims: [3, 3, x.dims[3], y.dims[3]],
    };
    let has_bias = call.operands() > 2;
    let key = ConvolutionDesc {
        direction: Direction::Forward,
        x,
        kernel,
        y,
        strides: pair(call, "strides")?,
        dilation: pair(call, "dilation")?,
        padding_low: pair(call, "padding_low")?,
        padding_high: pair(call, "padding_high")?,
        groups: call.int("groups")?,
        bias: has_bias,
        chosen: Some(Algorithm::Tiles),
    };
    key.check().map_err(invalid)?;
    expect_points(call.operand_shape(1)?, channels(&kernel)?)?;
    if has_bias {
        expect_dims(call.operand_shape(2)?.1, &kernel.dims[3..])?;
    }
    let epilogue = forward_epilogue(call, &y, has_relu(call)?)?;
    let operands: Vec<&[f32]> = (0..call.operands().min(3))
        .map(|index| call.operand(index))
        .collect::<Result<_, _>>()?;
    let result = call.result::<f32>(0)?;
    if result.is_empty() {
        return Ok(());
    }
    let run = |state: &mut WorkerState| {
        let (team, scratch) = (&state.team, &mut state.scratch);
        winograd::run_by_points(&key, &operands, result, epilogue, team, scratch);
    };
    kernels
        .on_worker(replicas(call)?, run)
        .map_err(|why| worker_error(&why))
}

/// Input and output channels of a kernel that has points.
fn channels(kernel: &TensorDesc) -> Result<[usize; 2], CustomCallError> {
    let fits = |&count: &i64| count >= 16 && count % 8 == 0;
    match kernel.dims {
        [3, 3, inputs, outputs]
            if kernel.element == DataType::F32 && [inputs, outputs].iter().all(fits) =>
        {
            Ok([inputs, outputs].map(|count| usize::try_from(count).unwrap_or(0)))
        }
        _ => Err(invalid(format!(
            "points are of f32 kernels [3, 3, inputs, outputs] with 16 channels or more, multiples of 8, got {kernel:?}"
        ))),
    }
}

fn expect_points(
    (element, dims): (ElementType, &[i64]),
    channels: [usize; 2],
) -> Result<(), CustomCallError> {
    let expected = winograd::points_len(channels) as i64;
    if element == ElementType::F32 && dims == [expected] {
        return Ok(());
    }
    Err(invalid(format!(
        "the points of a kernel of {channels:?} channels must be f32 [{expected}], got {element} {dims:?}"
    )))
}
