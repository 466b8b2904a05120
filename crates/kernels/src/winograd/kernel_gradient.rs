//! The gradient of the kernel: points of x and of dy, multiplied and summed over the tiles, then transformed to 3x3.

use super::point_gemm::PointGemmGradient;
use super::position::TilePosition;
use super::tiles::{self, POINTS, TILE_OUTPUT, point_stride};
use super::{Blocking, Geometry, Share};
use crate::microkernel::Isa;
use crate::openmp::{OutputPointer, ThreadTeam};
use crate::scratchpad::Scratchpad;
use crate::simd_element::SimdElement;

impl Geometry {
    /// Computes dw from x and dy.
    pub(super) fn kernel_gradient<T: SimdElement, R: SimdElement>(
        self,
        [x, dy]: [&[T]; 2],
        dw: &mut [R],
        team: &ThreadTeam,
        scratch: &mut Scratchpad,
    ) {
        let blocking = Blocking::new(self, team.threads());
        let (size, own) = (blocking.group * blocking.panel(), blocking.points_len());
        let dw = OutputPointer(dw.as_mut_ptr());
        let channels = [self.inputs, self.outputs];
        let floats = scratch.floats(self.zeros() + (size + own) * team.threads());
        let (zeros, buffers) = self.split_zeros(floats);
        if blocking.by_channels {
            return blocking.by_groups(buffers, size + own, team, |panels, buffer| {
                let (sums, buffer) = buffer.split_at_mut(size);
                let share = (0..self.tiles(), panels.clone());
                // SAFETY: the lengths were checked; `run` found the instructions.
                unsafe { blocking.accumulate([x, dy], zeros, share, buffer, sums) };
                for (index, sums) in panels.zip(sums.chunks(blocking.panel())) {
                    // SAFETY: each panel has output channels of its own.
                    unsafe { tiles::store_kernel_gradient(sums, channels, index, dw) };
                }
            });
        }
        let parts = buffers.chunks_mut(size + own).enumerate();
        team.for_each(parts, |(index, buffer)| {
            let (sums, buffer) = buffer.split_at_mut(size);
            let share = (self.share(index, team.threads()), 0..self.panels());
            // SAFETY: as above.
            unsafe { blocking.accumulate([x, dy], zeros, share, buffer, sums) };
        });
        let (sums, others) = buffers.split_at_mut(size + own);
        let others = &*others;
        let panels = sums[..size].chunks_mut(blocking.panel()).enumerate();
        team.for_each(panels, |(index, sums)| {
            for other in others.chunks(size + own) {
                let pairs = sums.iter_mut().zip(&other[index * blocking.panel()..]);
                pairs.for_each(|(sum, other)| *sum += other);
            }
            // SAFETY: as above.
            unsafe { tiles::store_kernel_gradient(sums, channels, index, dw) };
        });
    }
}

impl Blocking {
    /// Sums the products of the points of x and dy over the tiles: `[panel][point][input][16]`.
    ///
    /// # Safety
    /// AVX2 and FMA are there; the lengths fit the geometry.
    unsafe fn accumulate<T: SimdElement>(
        &self,
        [x, dy]: [&[T]; 2],
        zeros: &[f32],
        (tiles, panels): Share,
        buffer: &mut [f32],
        sums: &mut [f32],
    ) {
        let (x_points, y_points) = buffer.split_at_mut(POINTS * self.point_stride[0]);
        let (point_stride, isa) = (point_stride(self.g.inputs), Isa::best_available());
        sums.fill(0.0);
        for first in tiles.clone().step_by(self.block) {
            let count = self.block.min(tiles.end - first);
            // SAFETY: the caller's promise; rows, planes and panels lie inside of their arrays.
            unsafe {
                self.transform_input(x, zeros, first, count, x_points);
                for i in 0..count {
                    let place = TilePosition::new(&self.g, TILE_OUTPUT, first + i);
                    let pixels = place.pixels_of_y(&self.g, TILE_OUTPUT, dy, zeros);
                    let to = y_points.as_mut_ptr().add(i * self.row[1]);
                    tiles::transform_output_gradient(
                        &pixels,
                        self.channels(&panels),
                        to,
                        self.point_stride[1],
                    );
                }
                for point in 0..POINTS {
                    let [x_row, y_row] = self.row;
                    isa.run(PointGemmGradient {
                        x: x_points.as_ptr().add(point * self.point_stride[0]),
                        x_row,
                        y: y_points.as_ptr().add(point * self.point_stride[1]),
                        y_row,
                        count,
                        panels: panels.len(),
                        sums: sums.as_mut_ptr().add(point * point_stride),
                        sums_panel: self.panel(),
                        inputs: self.g.inputs,
                    });
                }
            }
        }
    }
}
