//! The steps of an LSTM over some sequences of a batch.

use super::panels::{BlockWork, Rows, Sums, VECTORS, for_blocks, multiply, pack};
use super::{CallArrays, SequenceTask, Sizes};
use crate::lanes::{Lanes, sigmoid, tanh};
use crate::microkernel::SimdKernel;
use crate::scratchpad::AlignedFloats;
use crate::simd_row::SimdRow;

/// Arrays of `phalanx.lstm`.
#[derive(Clone, Copy)]
pub(super) struct ForwardArrays {
    /// `[batch, steps, 4 units]`.
    pub(super) x: *const f32,
    /// `[4 units]`.
    pub(super) bias: *const f32,
    /// `[batch, units]`, as is `c`.
    pub(super) h: *const f32,
    pub(super) c: *const f32,
    /// `[batch, steps, units]`, as are `cs`.
    pub(super) hs: *mut f32,
    pub(super) cs: *mut f32,
    /// `[batch, steps, 4 units]`.
    pub(super) gates: *mut f32,
}

impl CallArrays for ForwardArrays {
    /// The recurrent kernel in panels of `lanes` units, each with the columns of the four gates side by side.
    fn panels(recurrent: &[f32], units: usize, lanes: usize) -> AlignedFloats {
        let count = units.div_ceil(lanes);
        pack(
            recurrent,
            [4 * units, 1],
            [count, units, VECTORS * lanes],
            |panel, at| {
                let (gate, unit) = (at / lanes, panel * lanes + at % lanes);
                (unit < units).then_some(gate * units + unit)
            },
        )
    }

    /// Two states and the cells, with room for whole vectors.
    fn scratch_len(rows: usize, units: usize, lanes: usize) -> usize {
        3 * rows * units.next_multiple_of(lanes)
    }
}

impl SimdKernel for SequenceTask<'_, ForwardArrays> {
    #[inline(always)]
    unsafe fn run<C: SimdRow>(self) {
        let Sizes { steps, units, .. } = self.sizes;
        let lanes = C::Vector::LEN;
        let padded = units.next_multiple_of(lanes);
        let size = self.rows.len() * padded;
        let (mut state, rest) = self.scratch.split_at_mut(size);
        let (mut next, cells) = rest.split_at_mut(size);
        for (place, row) in self.rows.clone().enumerate() {
            for (from, to) in [(self.arrays.h, &mut *state), (self.arrays.c, &mut *cells)] {
                let to = &mut to[place * padded..][..units];
                // SAFETY: the caller's promise; the row has so many numbers.
                unsafe {
                    std::ptr::copy_nonoverlapping(from.add(row * units), to.as_mut_ptr(), units);
                }
            }
        }
        for step in 0..steps {
            for (number, panel) in self
                .panels
                .chunks_exact(units * VECTORS * lanes)
                .enumerate()
            {
                let cells = CellStep {
                    arrays: self.arrays,
                    sizes: self.sizes,
                    first: self.rows.start,
                    step,
                    unit: number * lanes,
                    panel: panel.as_ptr(),
                    state: state.as_ptr(),
                    next: next.as_mut_ptr(),
                    cells: cells.as_mut_ptr(),
                    padded,
                };
                // SAFETY: the caller's promise; the scratch memory has these rows.
                unsafe { for_blocks::<C::Vector>(self.rows.len(), &cells) };
            }
            std::mem::swap(&mut state, &mut next);
        }
    }
}

/// A vector of units at one step, for all rows of the work.
struct CellStep {
    arrays: ForwardArrays,
    sizes: Sizes,
    /// The sequence that is row 0.
    first: usize,
    step: usize,
    unit: usize,
    panel: *const f32,
    /// `[rows, padded]`, as are the next two.
    state: *const f32,
    next: *mut f32,
    cells: *mut f32,
    padded: usize,
}

impl<V: Lanes> BlockWork<V> for CellStep {
    #[inline(always)]
    unsafe fn block<const R: usize>(&self, first: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let rows = Rows {
                at: self.state.add(first * self.padded),
                stride: self.padded,
            };
            let sums: Sums<V, R, VECTORS> = multiply(rows, self.panel, self.sizes.units);
            for (row, sums) in sums.into_iter().enumerate() {
                self.finish(first + row, sums);
            }
        }
    }
}

impl CellStep {
    /// From the products of a row to its gates, cells and state.
    ///
    /// # Safety
    /// The arrays and the scratch memory have this row.
    #[inline(always)]
    unsafe fn finish<V: Lanes>(&self, row: usize, sums: [V; VECTORS]) {
        let units = self.sizes.units;
        let count = V::LEN.min(units - self.unit);
        let place = (self.first + row) * self.sizes.steps + self.step;
        // SAFETY: the caller's promise; the scratch memory has room for whole vectors, elsewhere `count` lanes are touched.
        unsafe {
            let gates_at = place * 4 * units + self.unit;
            let z = |gate: usize| {
                let x = V::load_some(self.arrays.x.add(gates_at + gate * units), count);
                let bias = self.arrays.bias.add(gate * units + self.unit);
                sums[gate].add(x.add(V::load_some(bias, count)))
            };
            let [i, f, g, o] = [sigmoid(z(0)), sigmoid(z(1)), tanh(z(2)), sigmoid(z(3))];
            let at = row * self.padded + self.unit;
            let c = f.mul_add(V::load(self.cells.add(at)), i.mul(g));
            let h = o.mul(tanh(c));
            c.store(self.cells.add(at));
            h.store(self.next.add(at));
            c.store_some(self.arrays.cs.add(place * units + self.unit), count);
            h.store_some(self.arrays.hs.add(place * units + self.unit), count);
            for (gate, values) in [i, f, g, o].into_iter().enumerate() {
                values.store_some(self.arrays.gates.add(gates_at + gate * units), count);
            }
        }
    }
}
