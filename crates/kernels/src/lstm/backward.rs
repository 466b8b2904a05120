//! The gradient of an LSTM's steps, from the last to the first, over some sequences of a batch.

use super::panels::{BlockWork, Rows, Sums, VECTORS, for_blocks, multiply, pack};
use super::{CallArrays, SequenceTask, Sizes};
use crate::lanes::{Lanes, tanh};
use crate::microkernel::SimdKernel;
use crate::scratchpad::AlignedFloats;
use crate::simd_row::SimdRow;

/// Arrays of `phalanx.lstm_gradient`.
#[derive(Clone, Copy)]
pub(super) struct BackwardArrays {
    /// The gradient by the states, `[batch, steps, units]`.
    pub(super) to_hs: *const f32,
    /// By the cells, of the same dims, where there is one.
    pub(super) to_cs: Option<*const f32>,
    /// First cells, `[batch, units]`.
    pub(super) c: *const f32,
    /// `[batch, steps, units]`.
    pub(super) cs: *const f32,
    /// `[batch, steps, 4 units]`, as is the next.
    pub(super) gates: *const f32,
    pub(super) to_x: *mut f32,
    /// `[batch, units]`, as is the next.
    pub(super) to_h: *mut f32,
    pub(super) to_c: *mut f32,
}

impl CallArrays for BackwardArrays {
    /// The transposed recurrent kernel in panels of four vectors of `lanes` units.
    fn panels(recurrent: &[f32], units: usize, lanes: usize) -> AlignedFloats {
        let width = VECTORS * lanes;
        pack(
            recurrent,
            [1, 4 * units],
            [units.div_ceil(width), 4 * units, width],
            |panel, at| Some(panel * width + at).filter(|&unit| unit < units),
        )
    }

    /// Gradients of gates, states and cells, the last two with room for whole panels.
    fn scratch_len(rows: usize, units: usize, lanes: usize) -> usize {
        rows * (4 * units + 2 * units.next_multiple_of(VECTORS * lanes))
    }
}

impl SimdKernel for SequenceTask<'_, BackwardArrays> {
    #[inline(always)]
    unsafe fn run<C: SimdRow>(self) {
        let Sizes { steps, units, .. } = self.sizes;
        let width = VECTORS * C::Vector::LEN;
        let padded = units.next_multiple_of(width);
        let (to_z, rest) = self.scratch.split_at_mut(self.rows.len() * 4 * units);
        let (to_state, to_cell) = rest.split_at_mut(self.rows.len() * padded);
        to_state.fill(0.0);
        to_cell.fill(0.0);
        let cells = CellGradients {
            arrays: self.arrays,
            sizes: self.sizes,
            first: self.rows.start,
            to_z: to_z.as_mut_ptr(),
            to_state: to_state.as_mut_ptr(),
            to_cell: to_cell.as_mut_ptr(),
            padded,
        };
        // SAFETY: the caller's promise; the scratch memory has these rows.
        unsafe {
            for step in (0..steps).rev() {
                for row in 0..self.rows.len() {
                    cells.differentiate::<C::Vector>(row, step);
                }
                let panels = self.panels.chunks_exact(4 * units * width);
                for (number, panel) in panels.enumerate() {
                    let product = StateProduct {
                        cells: &cells,
                        unit: number * width,
                        panel: panel.as_ptr(),
                    };
                    for_blocks::<C::Vector>(self.rows.len(), &product);
                }
            }
            for row in 0..self.rows.len() {
                cells.leave(row);
            }
        }
    }
}

/// The gradients that go from step to step.
struct CellGradients {
    arrays: BackwardArrays,
    sizes: Sizes,
    /// The sequence that is row 0.
    first: usize,
    /// By what the gates' functions are applied to, `[rows, 4 units]`.
    to_z: *mut f32,
    /// `[rows, padded]`, as is the next.
    to_state: *mut f32,
    to_cell: *mut f32,
    padded: usize,
}

impl CellGradients {
    /// One step of a row: from the gradients by its state and cells to those by its gates.
    ///
    /// # Safety
    /// The arrays and the scratch memory have this row.
    #[inline(always)]
    unsafe fn differentiate<V: Lanes>(&self, row: usize, step: usize) {
        for unit in (0..self.sizes.units).step_by(V::LEN) {
            // SAFETY: the caller's promise.
            unsafe { self.differentiate_units::<V>(row, step, unit) };
        }
    }

    /// # Safety
    /// As for [`CellGradients::differentiate`], of the units from `unit` on.
    #[inline(always)]
    unsafe fn differentiate_units<V: Lanes>(&self, row: usize, step: usize, unit: usize) {
        let Sizes { steps, units, .. } = self.sizes;
        let count = V::LEN.min(units - unit);
        let sequence = self.first + row;
        let place = sequence * steps + step;
        // SAFETY: the caller's promise; the scratch memory of states and cells has room for whole vectors, elsewhere `count` lanes
        // are touched.
        unsafe {
            let own = |from: *const f32| V::load_some(from.add(place * units + unit), count);
            let before = match step {
                0 => V::load_some(self.arrays.c.add(sequence * units + unit), count),
                _ => V::load_some(self.arrays.cs.add((place - 1) * units + unit), count),
            };
            let gates_at = place * 4 * units + unit;
            let gates = [0, 1, 2, 3]
                .map(|gate| V::load_some(self.arrays.gates.add(gates_at + gate * units), count));
            let [i, f, g, o] = gates;
            let one = i.like(1.0);
            let at = row * self.padded + unit;
            let to_h = own(self.arrays.to_hs).add(V::load(self.to_state.add(at)));
            let mut to_c = V::load(self.to_cell.add(at));
            if let Some(to_cs) = self.arrays.to_cs {
                to_c = to_c.add(own(to_cs));
            }
            let bounded = tanh(own(self.arrays.cs));
            let slope = one.sub(bounded.mul(bounded));
            let to_c = to_h.mul(o).mul_add(slope, to_c);
            let of_sigmoid = |y: V| y.mul(one.sub(y));
            let to_gates = [
                to_c.mul(g).mul(of_sigmoid(i)),
                to_c.mul(before).mul(of_sigmoid(f)),
                to_c.mul(i).mul(one.sub(g.mul(g))),
                to_h.mul(bounded).mul(of_sigmoid(o)),
            ];
            to_c.mul(f).store(self.to_cell.add(at));
            for (gate, values) in to_gates.into_iter().enumerate() {
                values.store_some(self.arrays.to_x.add(gates_at + gate * units), count);
                let to_z = self.to_z.add((row * 4 + gate) * units + unit);
                values.store_some(to_z, count);
            }
        }
    }

    /// Writes the gradients by a row's first state and cells.
    ///
    /// # Safety
    /// As for [`CellGradients::differentiate`].
    unsafe fn leave(&self, row: usize) {
        let units = self.sizes.units;
        let to = (self.first + row) * units;
        for (from, result) in [
            (self.to_state, self.arrays.to_h),
            (self.to_cell, self.arrays.to_c),
        ] {
            // SAFETY: the caller's promise.
            unsafe {
                let from = from.add(row * self.padded);
                std::ptr::copy_nonoverlapping(from, result.add(to), units);
            }
        }
    }
}

/// The product of the gates' gradients with the transposed kernel: the gradient by the state before, of the units of a panel.
struct StateProduct<'a> {
    cells: &'a CellGradients,
    unit: usize,
    panel: *const f32,
}

impl<V: Lanes> BlockWork<V> for StateProduct<'_> {
    #[inline(always)]
    unsafe fn block<const R: usize>(&self, first: usize) {
        let depth = 4 * self.cells.sizes.units;
        // SAFETY: the caller's promise.
        unsafe {
            let rows = Rows {
                at: self.cells.to_z.add(first * depth),
                stride: depth,
            };
            let sums: Sums<V, R, VECTORS> = multiply(rows, self.panel, depth);
            for (row, sums) in sums.into_iter().enumerate() {
                let at = (first + row) * self.cells.padded + self.unit;
                for (vector, sums) in sums.into_iter().enumerate() {
                    sums.store(self.cells.to_state.add(at + vector * V::LEN));
                }
            }
        }
    }
}
