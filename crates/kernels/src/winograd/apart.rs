//! Points of a kernel that are computed apart from the convolutions by them, so that many calls may use them.

use super::point_gemm::NR;
use super::tiles::{self, LANES, POINTS, point_stride};
use super::{Geometry, GivenKernel, OutputEpilogue, takes};
use crate::convolution::{ConvolutionDesc, Direction};
use crate::epilogue::Epilogue;
use crate::openmp::ThreadTeam;
use crate::scratchpad::Scratchpad;
use crate::simd;

/// Elements of the points of a kernel of these channels.
pub(crate) fn points_len([inputs, outputs]: [usize; 2]) -> usize {
    outputs.div_ceil(NR) * POINTS * point_stride(inputs)
}

/// Transforms a kernel `[3, 3, inputs, outputs]` to its points.
///
/// # Panics
/// The processor has no FMA, or a length does not match the channels: bugs of the caller.
pub(crate) fn transform_kernel(
    kernel: &[f32],
    channels: [usize; 2],
    points: &mut [f32],
    team: &ThreadTeam,
) {
    let [inputs, outputs] = channels;
    assert!(simd::has_fma() && inputs.is_multiple_of(LANES) && outputs.is_multiple_of(LANES));
    let lens = (kernel.len(), points.len());
    assert_eq!(lens, (9 * inputs * outputs, points_len(channels)));
    let panels = points.chunks_mut(POINTS * point_stride(inputs)).enumerate();
    team.for_each(panels, |(index, panel)| {
        // What lies between the planes of points is never read, but results must not vary.
        panel.fill(0.0);
        // SAFETY: the instructions are there, and the lengths were checked.
        unsafe { tiles::transform_kernel(kernel, false, channels, index, panel) };
    });
}

/// Computes y from x, the points of the kernel, and a bias where there are three operands: the same bits as [`run`](super::run).
///
/// # Panics
/// The convolution is not supported, or a length does not match its shape: bugs of the caller.
pub(crate) fn run_by_points(
    key: &ConvolutionDesc,
    operands: &[&[f32]],
    y: &mut [f32],
    activation: Epilogue<'_>,
    team: &ThreadTeam,
    scratch: &mut Scratchpad,
) {
    assert!(takes(key) && key.direction == Direction::Forward);
    let g = Geometry::new(key);
    let (x, points, bias) = (operands[0], operands[1], operands.get(2).copied());
    let pixels = |sides: [usize; 2]| g.images * sides[0] * sides[1];
    let lens = (x.len(), points.len(), y.len());
    let expected = (
        pixels(g.x) * g.inputs,
        points_len([g.inputs, g.outputs]),
        pixels(g.y) * g.outputs,
    );
    assert_eq!(lens, expected);
    assert!(bias.is_none_or(|bias| bias.len() == g.outputs) && activation.fits(y.len()));
    let epilogue = OutputEpilogue { bias, activation };
    let kernel = GivenKernel::Points(points);
    g.correlate(x, kernel, epilogue, y, team, scratch);
}
