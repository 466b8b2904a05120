//! The steps of gated recurrent units over some sequences of a batch.

use super::{GATES, load_gates, store_gates};
use crate::lanes::{Lanes, sigmoid, tanh};
use crate::lstm::panels::{BlockWork, Rows, Sums, for_blocks, multiply, pack};
use crate::lstm::{CallArrays, SequenceTask, Sizes};
use crate::microkernel::SimdKernel;
use crate::scratchpad::AlignedFloats;
use crate::simd_row::SimdRow;

/// Arrays of `phalanx.gru`.
#[derive(Clone, Copy)]
pub(super) struct GruArrays {
    /// `[batch, steps, 3 units]`.
    pub(super) x: *const f32,
    /// `[3 units]`.
    pub(super) bias: *const f32,
    /// `[batch, units]`.
    pub(super) h: *const f32,
    /// `[batch, steps, units]`.
    pub(super) hs: *mut f32,
    /// `[batch, steps, 4 units]`.
    pub(super) gates: *mut f32,
}

impl CallArrays for GruArrays {
    /// The recurrent kernel in panels of `lanes` units, each with the columns of the three gates side by side.
    fn panels(recurrent: &[f32], units: usize, lanes: usize) -> AlignedFloats {
        let count = units.div_ceil(lanes);
        pack(
            recurrent,
            [GATES * units, 1],
            [count, units, GATES * lanes],
            |panel, at| {
                let (gate, unit) = (at / lanes, panel * lanes + at % lanes);
                (unit < units).then_some(gate * units + unit)
            },
        )
    }

    /// Two states, with room for whole vectors.
    fn scratch_len(rows: usize, units: usize, lanes: usize) -> usize {
        2 * rows * units.next_multiple_of(lanes)
    }
}

impl SimdKernel for SequenceTask<'_, GruArrays> {
    #[inline(always)]
    unsafe fn run<C: SimdRow>(self) {
        let Sizes { steps, units, .. } = self.sizes;
        let lanes = C::Vector::LEN;
        let padded = units.next_multiple_of(lanes);
        let (mut state, mut next) = self.scratch.split_at_mut(self.rows.len() * padded);
        for (place, row) in self.rows.clone().enumerate() {
            let to = &mut state[place * padded..][..units];
            // SAFETY: the caller's promise; the row has so many numbers.
            unsafe {
                let from = self.arrays.h.add(row * units);
                std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), units);
            }
        }
        for step in 0..steps {
            let panels = self.panels.chunks_exact(units * GATES * lanes);
            for (number, panel) in panels.enumerate() {
                let part = GruStep {
                    arrays: self.arrays,
                    sizes: self.sizes,
                    first: self.rows.start,
                    step,
                    unit: number * lanes,
                    panel: panel.as_ptr(),
                    state: state.as_ptr(),
                    next: next.as_mut_ptr(),
                    padded,
                };
                // SAFETY: the caller's promise; the scratch memory has these rows.
                unsafe { for_blocks::<C::Vector>(self.rows.len(), &part) };
            }
            std::mem::swap(&mut state, &mut next);
        }
    }
}

/// A vector of units at one step, for all rows of the work.
struct GruStep {
    arrays: GruArrays,
    sizes: Sizes,
    /// The sequence that is row 0.
    first: usize,
    step: usize,
    unit: usize,
    panel: *const f32,
    /// `[rows, padded]`, as is the next.
    state: *const f32,
    next: *mut f32,
    padded: usize,
}

impl<V: Lanes> BlockWork<V> for GruStep {
    #[inline(always)]
    unsafe fn block<const R: usize>(&self, first: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let rows = Rows {
                at: self.state.add(first * self.padded),
                stride: self.padded,
            };
            let sums: Sums<V, R, GATES> = multiply(rows, self.panel, self.sizes.units);
            for (row, sums) in sums.into_iter().enumerate() {
                self.finish(first + row, sums);
            }
        }
    }
}

impl GruStep {
    /// From the products of a row to its gates and state.
    ///
    /// # Safety
    /// The arrays and the scratch memory have this row.
    #[inline(always)]
    unsafe fn finish<V: Lanes>(&self, row: usize, sums: [V; GATES]) {
        let units = self.sizes.units;
        let count = V::LEN.min(units - self.unit);
        let place = (self.first + row) * self.sizes.steps + self.step;
        // SAFETY: the caller's promise; the scratch memory has room for whole vectors, elsewhere `count` lanes are touched.
        unsafe {
            let from = self.arrays.x.add(place * GATES * units + self.unit);
            let x: [V; GATES] = load_gates(from, units, count);
            let bias: [V; GATES] = load_gates(self.arrays.bias.add(self.unit), units, count);
            let z = sigmoid(x[0].add(sums[0].add(bias[0])));
            let r = sigmoid(x[1].add(sums[1].add(bias[1])));
            let inner = sums[2].add(bias[2]);
            let g = tanh(r.mul_add(inner, x[2]));
            let at = row * self.padded + self.unit;
            let h = z.mul_add(V::load(self.state.add(at)), z.like(1.0).sub(z).mul(g));
            h.store(self.next.add(at));
            h.store_some(self.arrays.hs.add(place * units + self.unit), count);
            let to = self.arrays.gates.add(place * 4 * units + self.unit);
            store_gates([z, r, g, inner], to, units, count);
        }
    }
}
