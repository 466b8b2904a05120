//! The calls of 3x3 convolutions whose kernels are transformed apart: `phalanx.conv_points`, `phalanx.conv_by_points`.

use phalanx_pjrt::{CustomCallError, CustomCallFrame, ElementType};

use crate::convolution::Algorithm;
use crate::handlers::{TensorDesc, convolve_by_form, image, invalid, replicas, worker_error};
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
    let is_right =
        |found: (ElementType, &[i64]), kernel: &TensorDesc| expect_points(found, channels(kernel)?);
    let tiles = ([3, 3], Some(Algorithm::Tiles));
    convolve_by_form(
        kernels,
        call,
        tiles,
        is_right,
        |key, operands, y, epilogue, state| {
            let (team, scratch) = (&state.team, &mut state.scratch);
            winograd::run_by_points(key, operands, y, epilogue, team, scratch);
        },
    )
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
