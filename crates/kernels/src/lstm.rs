//! All steps of an LSTM in one call, and of its gradient, for processors with AVX2 or AVX-512: `phalanx.lstm` and
//! `phalanx.lstm_gradient`.
//!
//! As a loop of the program each step is a handful of operations, which XLA's threads hand to each other, and a product whose right
//! matrix is packed anew. Here the recurrent kernel is packed once a call, and each thread takes some sequences of the batch through all
//! steps by itself: sequences do not depend on each other. What follows the product of a step is computed while its sums are in
//! registers. The gradient of the recurrent kernel is a product over all steps, which the program makes behind the call.

mod backward;
mod forward;
pub(crate) mod panels;

use std::ops::Range;

use phalanx_pjrt::{Client, CustomCallError, CustomCallFrame};

use self::backward::BackwardArrays;
use self::forward::ForwardArrays;
use self::panels::part;
use crate::gru::{gru, gru_gradient};
use crate::handlers::{expect_dims, invalid, register, replicas};
use crate::library::KernelError;
use crate::microkernel::{Isa, SimdKernel};
use crate::scratchpad::AlignedFloats;
use crate::shared_tasks::{self, SharedWork};
use crate::simd;

/// Most sequences that a task takes: their states stay in the second cache beside a panel.
const MAX_ROWS: usize = 64;

/// Sizes of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sizes {
    pub(crate) batch: usize,
    pub(crate) steps: usize,
    pub(crate) units: usize,
}

/// Registers `phalanx.lstm`, `phalanx.gru` and their gradients with this client's plugin for the rest of the process; does nothing when they are
/// registered already.
///
/// # Errors
/// The processor lacks AVX2 or FMA, or the plugin has no custom calls.
pub fn register_lstm(client: &Client) -> Result<(), KernelError> {
    if !simd::has_fma() {
        let reason = "recurrent layers are for processors with avx2 and fma".to_owned();
        return Err(KernelError::Register { reason });
    }
    register(client, "phalanx.lstm", lstm)?;
    register(client, "phalanx.lstm_gradient", lstm_gradient)?;
    register(client, "phalanx.gru", gru)?;
    register(client, "phalanx.gru_gradient", gru_gradient)
}

/// Operands: x, the recurrent kernel, the bias, first state and cells. Results: states, cells and gates of all steps.
fn lstm(call: &mut CustomCallFrame<'_>) -> Result<(), CustomCallError> {
    let sizes = Sizes::of(call.result_shape(0)?.1)?;
    let [state, sequence, gates] = sizes.dims()?;
    let of_kernel = kernel_dims(sizes);
    expect_dims(call.operand_shape(0)?.1, &gates)?;
    expect_dims(call.operand_shape(1)?.1, &of_kernel)?;
    expect_dims(call.operand_shape(2)?.1, &of_kernel[1..])?;
    expect_dims(call.operand_shape(3)?.1, &state)?;
    expect_dims(call.operand_shape(4)?.1, &state)?;
    expect_dims(call.result_shape(1)?.1, &sequence)?;
    expect_dims(call.result_shape(2)?.1, &gates)?;
    let recurrent: &[f32] = call.operand(1)?;
    let arrays = ForwardArrays {
        x: call.operand::<f32>(0)?.as_ptr(),
        bias: call.operand::<f32>(2)?.as_ptr(),
        h: call.operand::<f32>(3)?.as_ptr(),
        c: call.operand::<f32>(4)?.as_ptr(),
        hs: call.result::<f32>(0)?.as_mut_ptr(),
        cs: call.result::<f32>(1)?.as_mut_ptr(),
        gates: call.result::<f32>(2)?.as_mut_ptr(),
    };
    if sizes.is_empty() {
        return Ok(());
    }
    run(call, sizes, recurrent, arrays)
}

/// Operands: the gradient by the states, the recurrent kernel, first cells, all cells, all gates, and perhaps the gradient by the cells.
/// Results: the gradients by x, by the first state and by the first cells.
fn lstm_gradient(call: &mut CustomCallFrame<'_>) -> Result<(), CustomCallError> {
    let sizes = Sizes::of(call.operand_shape(0)?.1)?;
    let [state, sequence, gates] = sizes.dims()?;
    expect_dims(call.operand_shape(1)?.1, &kernel_dims(sizes))?;
    expect_dims(call.operand_shape(2)?.1, &state)?;
    expect_dims(call.operand_shape(3)?.1, &sequence)?;
    expect_dims(call.operand_shape(4)?.1, &gates)?;
    let to_cs = (call.operands() > 5).then(|| call.operand::<f32>(5));
    if to_cs.is_some() {
        expect_dims(call.operand_shape(5)?.1, &sequence)?;
    }
    expect_dims(call.result_shape(0)?.1, &gates)?;
    expect_dims(call.result_shape(1)?.1, &state)?;
    expect_dims(call.result_shape(2)?.1, &state)?;
    let recurrent: &[f32] = call.operand(1)?;
    let (to_h, to_c) = (call.result::<f32>(1)?, call.result::<f32>(2)?);
    if sizes.is_empty() {
        to_h.fill(0.0);
        to_c.fill(0.0);
        return Ok(());
    }
    let arrays = BackwardArrays {
        to_hs: call.operand::<f32>(0)?.as_ptr(),
        to_cs: to_cs.transpose()?.map(<[f32]>::as_ptr),
        c: call.operand::<f32>(2)?.as_ptr(),
        cs: call.operand::<f32>(3)?.as_ptr(),
        gates: call.operand::<f32>(4)?.as_ptr(),
        to_x: call.result::<f32>(0)?.as_mut_ptr(),
        to_h: to_h.as_mut_ptr(),
        to_c: to_c.as_mut_ptr(),
    };
    run(call, sizes, recurrent, arrays)
}

impl Sizes {
    /// Of an array of all states.
    pub(crate) fn of(dims: &[i64]) -> Result<Self, CustomCallError> {
        let size = |dim: i64| usize::try_from(dim).unwrap_or(0);
        match *dims {
            [batch, steps, units] => Ok(Self {
                batch: size(batch),
                steps: size(steps),
                units: size(units),
            }),
            _ => Err(invalid(format!(
                "states must have 3 dimensions, got {dims:?}"
            ))),
        }
    }

    pub(crate) fn is_empty(self) -> bool {
        self.batch == 0 || self.steps == 0 || self.units == 0
    }

    /// Dims of a state, of the states and of the gates of all steps.
    pub(crate) fn dims(self) -> Result<[Vec<i64>; 3], CustomCallError> {
        let columns = self.units.checked_mul(4);
        let columns = columns.ok_or_else(|| invalid(format!("too many units: {self:?}")))?;
        let [batch, steps, units, columns] =
            [self.batch, self.steps, self.units, columns].map(|size| size as i64);
        Ok([
            vec![batch, units],
            vec![batch, steps, units],
            vec![batch, steps, columns],
        ])
    }
}

fn kernel_dims(sizes: Sizes) -> [i64; 2] {
    [sizes.units as i64, 4 * sizes.units as i64]
}

/// The arrays of a call.
pub(crate) trait CallArrays: Copy + 'static {
    /// The packed kernel, for vectors of `lanes` lanes.
    fn panels(recurrent: &[f32], units: usize, lanes: usize) -> AlignedFloats;

    /// Length of the scratch memory for `rows` sequences.
    fn scratch_len(rows: usize, units: usize, lanes: usize) -> usize;
}

/// All steps of the sequences `rows`, which one thread takes.
pub(crate) struct SequenceTask<'a, A> {
    pub(crate) arrays: A,
    pub(crate) sizes: Sizes,
    pub(crate) rows: Range<usize>,
    pub(crate) panels: &'a [f32],
    pub(crate) scratch: &'a mut [f32],
}

/// A call, computed by several threads.
pub(crate) struct Sequences<A> {
    isa: Isa,
    arrays: A,
    sizes: Sizes,
    panels: AlignedFloats,
    parts: usize,
}

// SAFETY: the arrays are used between the beginning and the end of a task, and the call, which keeps them alive, ends after the last task;
// each sequence is of one task, which one thread computes.
unsafe impl<A: CallArrays> Send for Sequences<A> {}
// SAFETY: as above.
unsafe impl<A: CallArrays> Sync for Sequences<A> {}

impl<A: CallArrays> Sequences<A> {
    pub(crate) fn new(
        isa: Isa,
        threads: usize,
        sizes: Sizes,
        recurrent: &[f32],
        arrays: A,
    ) -> Self {
        let parts = sizes.batch.div_ceil(MAX_ROWS).next_multiple_of(threads);
        Self {
            isa,
            arrays,
            sizes,
            panels: A::panels(recurrent, sizes.units, isa.lanes()),
            parts: parts.min(sizes.batch),
        }
    }
}

impl<A: CallArrays> SharedWork for Sequences<A>
where
    for<'a> SequenceTask<'a, A>: SimdKernel,
{
    type Scratch = AlignedFloats;

    fn tasks(&self) -> usize {
        self.parts
    }

    fn begin(&self) -> AlignedFloats {
        let rows = self.sizes.batch.div_ceil(self.parts);
        AlignedFloats::zeros(A::scratch_len(rows, self.sizes.units, self.isa.lanes()))
    }

    fn compute(&self, task: usize, scratch: &mut AlignedFloats) {
        let rows = part(self.sizes.batch, self.parts, task);
        let size = A::scratch_len(rows.len(), self.sizes.units, self.isa.lanes());
        let steps = SequenceTask {
            arrays: self.arrays,
            sizes: self.sizes,
            rows,
            panels: &self.panels,
            scratch: &mut scratch[..size],
        };
        // SAFETY: the processor has the instructions, or the call would not have been registered. The task is not done, so that the call
        // waits for it and keeps the arrays, whose sizes were checked; no other thread has these sequences.
        unsafe { self.isa.run(steps) };
    }

    fn end(&self, _: AlignedFloats) {}
}

pub(crate) fn run<A: CallArrays>(
    call: &CustomCallFrame<'_>,
    sizes: Sizes,
    recurrent: &[f32],
    arrays: A,
) -> Result<(), CustomCallError>
where
    for<'a> SequenceTask<'a, A>: SimdKernel,
{
    let threads = (call.threads() / replicas(call)?).max(1);
    let isa = Isa::best_available();
    let work = Sequences::new(isa, threads, sizes, recurrent, arrays);
    shared_tasks::run(call, threads, work);
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests;
