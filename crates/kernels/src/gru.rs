//! All steps of gated recurrent units in one call, and of their gradient: `phalanx.gru` and `phalanx.gru_gradient`.
//!
//! Threads, panels and blocks of rows are the LSTM's ([`crate::lstm`]); a panel has the columns of three gates.

mod backward;
mod forward;

use phalanx_pjrt::{CustomCallError, CustomCallFrame};

use self::backward::GruBackArrays;
use self::forward::GruArrays;
use crate::handlers::{expect_dims, invalid};
use crate::lanes::Lanes;
use crate::lstm::{Sizes, run};

/// Number of gates with columns of the kernel: update, reset, candidate.
const GATES: usize = 3;

/// Dims of x and of the recurrent kernel.
fn wide_dims(sizes: Sizes) -> Result<[Vec<i64>; 2], CustomCallError> {
    let columns = sizes.units.checked_mul(GATES);
    let columns = columns.ok_or_else(|| invalid(format!("too many units: {sizes:?}")))?;
    let [batch, steps, units, columns] =
        [sizes.batch, sizes.steps, sizes.units, columns].map(|size| size as i64);
    Ok([vec![batch, steps, columns], vec![units, columns]])
}

/// Operands: x, the recurrent kernel, its bias, the first state. Results: states, and gates of all steps.
pub(crate) fn gru(call: &mut CustomCallFrame<'_>) -> Result<(), CustomCallError> {
    let sizes = Sizes::of(call.result_shape(0)?.1)?;
    let [state, _, gates] = sizes.dims()?;
    let [x, of_kernel] = wide_dims(sizes)?;
    expect_dims(call.operand_shape(0)?.1, &x)?;
    expect_dims(call.operand_shape(1)?.1, &of_kernel)?;
    expect_dims(call.operand_shape(2)?.1, &of_kernel[1..])?;
    expect_dims(call.operand_shape(3)?.1, &state)?;
    expect_dims(call.result_shape(1)?.1, &gates)?;
    let recurrent: &[f32] = call.operand(1)?;
    let arrays = GruArrays {
        x: call.operand::<f32>(0)?.as_ptr(),
        bias: call.operand::<f32>(2)?.as_ptr(),
        h: call.operand::<f32>(3)?.as_ptr(),
        hs: call.result::<f32>(0)?.as_mut_ptr(),
        gates: call.result::<f32>(1)?.as_mut_ptr(),
    };
    if sizes.is_empty() {
        return Ok(());
    }
    run(call, sizes, recurrent, arrays)
}

/// Operands: the gradient by the states, the recurrent kernel, the first state, all states, all gates. Results: the gradients by x, by
/// the states' products with the kernel, and by the first state.
pub(crate) fn gru_gradient(call: &mut CustomCallFrame<'_>) -> Result<(), CustomCallError> {
    let sizes = Sizes::of(call.operand_shape(0)?.1)?;
    let [state, sequence, gates] = sizes.dims()?;
    let [x, of_kernel] = wide_dims(sizes)?;
    expect_dims(call.operand_shape(1)?.1, &of_kernel)?;
    expect_dims(call.operand_shape(2)?.1, &state)?;
    expect_dims(call.operand_shape(3)?.1, &sequence)?;
    expect_dims(call.operand_shape(4)?.1, &gates)?;
    expect_dims(call.result_shape(0)?.1, &x)?;
    expect_dims(call.result_shape(1)?.1, &x)?;
    expect_dims(call.result_shape(2)?.1, &state)?;
    let recurrent: &[f32] = call.operand(1)?;
    let to_h = call.result::<f32>(2)?;
    if sizes.is_empty() {
        to_h.fill(0.0);
        return Ok(());
    }
    let arrays = GruBackArrays {
        to_hs: call.operand::<f32>(0)?.as_ptr(),
        h: call.operand::<f32>(2)?.as_ptr(),
        hs: call.operand::<f32>(3)?.as_ptr(),
        gates: call.operand::<f32>(4)?.as_ptr(),
        to_x: call.result::<f32>(0)?.as_mut_ptr(),
        to_products: call.result::<f32>(1)?.as_mut_ptr(),
        to_h: to_h.as_mut_ptr(),
    };
    run(call, sizes, recurrent, arrays)
}

/// Vectors that are `units` numbers apart, one of each gate; a closure would not be compiled for the vectors where it is not inlined.
///
/// # Safety
/// The instructions are there, and `count` numbers of each.
#[inline(always)]
unsafe fn load_gates<V: Lanes, const N: usize>(
    from: *const f32,
    units: usize,
    count: usize,
) -> [V; N] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut gates = [V::splat(0.0); N];
        for (gate, values) in gates.iter_mut().enumerate() {
            *values = V::load_some(from.add(gate * units), count);
        }
        gates
    }
}

/// # Safety
/// As for [`load_gates`].
#[inline(always)]
unsafe fn store_gates<V: Lanes, const N: usize>(
    gates: [V; N],
    to: *mut f32,
    units: usize,
    count: usize,
) {
    for (gate, values) in gates.into_iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { values.store_some(to.add(gate * units), count) };
    }
}

/// `y (1 - y)`, the derivative of a sigmoid that is `y`.
#[inline(always)]
fn slope_of_sigmoid<V: Lanes>(y: V) -> V {
    y.mul(y.like(1.0).sub(y))
}

#[cfg(test)]
mod tests;
