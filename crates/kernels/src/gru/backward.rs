//! The gradient of the steps of gated recurrent units, from the last to the first, over some sequences of a batch.

use super::{GATES, load_gates, slope_of_sigmoid, store_gates};
use crate::lanes::Lanes;
use crate::lstm::panels::{BlockWork, Rows, Sums, VECTORS, for_blocks, multiply, pack};
use crate::lstm::{CallArrays, SequenceTask, Sizes};
use crate::microkernel::SimdKernel;
use crate::scratchpad::AlignedFloats;
use crate::simd_row::SimdRow;

/// Arrays of `phalanx.gru_gradient`.
#[derive(Clone, Copy)]
pub(super) struct GruBackArrays {
    /// The gradient by the states, `[batch, steps, units]`.
    pub(super) to_hs: *const f32,
    /// The first state, `[batch, units]`.
    pub(super) h: *const f32,
    /// `[batch, steps, units]`.
    pub(super) hs: *const f32,
    /// `[batch, steps, 4 units]`.
    pub(super) gates: *const f32,
    /// `[batch, steps, 3 units]`, as is the next.
    pub(super) to_x: *mut f32,
    pub(super) to_products: *mut f32,
    /// `[batch, units]`.
    pub(super) to_h: *mut f32,
}

impl CallArrays for GruBackArrays {
    /// The transposed recurrent kernel in panels of four vectors of `lanes` units.
    fn panels(recurrent: &[f32], units: usize, lanes: usize) -> AlignedFloats {
        let width = VECTORS * lanes;
        pack(
            recurrent,
            [1, GATES * units],
            [units.div_ceil(width), GATES * units, width],
            |panel, at| Some(panel * width + at).filter(|&unit| unit < units),
        )
    }

    /// Gradients of states, with room for whole panels.
    fn scratch_len(rows: usize, units: usize, lanes: usize) -> usize {
        rows * units.next_multiple_of(VECTORS * lanes)
    }
}

impl SimdKernel for SequenceTask<'_, GruBackArrays> {
    #[inline(always)]
    unsafe fn run<C: SimdRow>(self) {
        let Sizes { steps, units, .. } = self.sizes;
        let width = VECTORS * C::Vector::LEN;
        self.scratch.fill(0.0);
        let gradients = GruGradients {
            arrays: self.arrays,
            sizes: self.sizes,
            first: self.rows.start,
            to_state: self.scratch.as_mut_ptr(),
            padded: units.next_multiple_of(width),
        };
        // SAFETY: the caller's promise; the scratch memory has these rows.
        unsafe {
            for step in (0..steps).rev() {
                for row in 0..self.rows.len() {
                    for unit in (0..units).step_by(C::Vector::LEN) {
                        gradients.differentiate::<C::Vector>(row, step, unit);
                    }
                }
                let panels = self.panels.chunks_exact(GATES * units * width);
                for (number, panel) in panels.enumerate() {
                    let product = GruProduct {
                        gradients: &gradients,
                        step,
                        unit: number * width,
                        panel: panel.as_ptr(),
                    };
                    for_blocks::<C::Vector>(self.rows.len(), &product);
                }
            }
            for row in 0..self.rows.len() {
                let from = gradients.to_state.add(row * gradients.padded);
                let to = self.arrays.to_h.add((self.rows.start + row) * units);
                std::ptr::copy_nonoverlapping(from, to, units);
            }
        }
    }
}

/// The gradients that go from step to step.
struct GruGradients {
    arrays: GruBackArrays,
    sizes: Sizes,
    /// The sequence that is row 0.
    first: usize,
    /// `[rows, padded]`.
    to_state: *mut f32,
    padded: usize,
}

impl GruGradients {
    /// One step of a row, of the units from `unit` on: from the gradient by its state to those by its gates, and what the update gate
    /// passes to the state before.
    ///
    /// # Safety
    /// The arrays and the scratch memory have this row.
    #[inline(always)]
    unsafe fn differentiate<V: Lanes>(&self, row: usize, step: usize, unit: usize) {
        let Sizes { steps, units, .. } = self.sizes;
        let count = V::LEN.min(units - unit);
        let sequence = self.first + row;
        let place = sequence * steps + step;
        // SAFETY: the caller's promise; the scratch memory has room for whole vectors, elsewhere `count` lanes are touched.
        unsafe {
            let before = match step {
                0 => V::load_some(self.arrays.h.add(sequence * units + unit), count),
                _ => V::load_some(self.arrays.hs.add((place - 1) * units + unit), count),
            };
            let gates = self.arrays.gates.add(place * 4 * units + unit);
            let [z, r, g, inner]: [V; 4] = load_gates(gates, units, count);
            let one = z.like(1.0);
            let carried = self.to_state.add(row * self.padded + unit);
            let own = V::load_some(self.arrays.to_hs.add(place * units + unit), count);
            let to_h = own.add(V::load(carried));
            to_h.mul(z).store(carried);
            let to_z = to_h.mul(before.sub(g)).mul(slope_of_sigmoid(z));
            let to_g = to_h.mul(one.sub(z)).mul(one.sub(g.mul(g)));
            let to_r = to_g.mul(inner).mul(slope_of_sigmoid(r));
            let at = place * GATES * units + unit;
            store_gates([to_z, to_r, to_g], self.arrays.to_x.add(at), units, count);
            let to_products = self.arrays.to_products.add(at);
            store_gates([to_z, to_r, to_g.mul(r)], to_products, units, count);
        }
    }
}

/// The product of a step's gradients with the transposed kernel, added to the gradient by the state before, of the units of a panel.
struct GruProduct<'a> {
    gradients: &'a GruGradients,
    step: usize,
    unit: usize,
    panel: *const f32,
}

impl<V: Lanes> BlockWork<V> for GruProduct<'_> {
    #[inline(always)]
    unsafe fn block<const R: usize>(&self, first: usize) {
        let all = self.gradients;
        let Sizes { steps, units, .. } = all.sizes;
        let depth = GATES * units;
        // SAFETY: the caller's promise.
        unsafe {
            let place = (all.first + first) * steps + self.step;
            let rows = Rows {
                at: all.arrays.to_products.add(place * depth),
                stride: steps * depth,
            };
            let sums: Sums<V, R, VECTORS> = multiply(rows, self.panel, depth);
            for (row, sums) in sums.into_iter().enumerate() {
                let at = (first + row) * all.padded + self.unit;
                for (vector, sums) in sums.into_iter().enumerate() {
                    let to = all.to_state.add(at + vector * V::LEN);
                    sums.add(V::load(to)).store(to);
                }
            }
        }
    }
}
