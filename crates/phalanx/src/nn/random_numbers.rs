//! Random numbers of tensors of random bits.

use phalanx_graph::{DType, Tensor};

/// f32 numbers evenly distributed over [0, 1), of u32 bits.
#[track_caller]
pub(crate) fn uniform_numbers(bits: &Tensor) -> Tensor {
    let high = bits.shift_right(&bits.like(8.0));
    high.convert(DType::F32) * (1.0 / f64::from(1u32 << 24))
}

/// f32 numbers normally distributed with mean 0 and variance 1, of two tensors of u32 bits (Box and Muller 1958).
///
/// They are computed once, and whatever follows reads them: LLVM took many minutes where XLA:CPU fused them into the transposed copy
/// of a masked input with which convolutions of volumes begin.
#[track_caller]
pub(crate) fn normal_numbers([radius, turn]: [&Tensor; 2]) -> Tensor {
    // The first is above 0, so its logarithm is a number.
    let radius = 1.0 - uniform_numbers(radius);
    let turn = uniform_numbers(turn) * std::f64::consts::TAU;
    let normals = (radius.log() * -2.0).sqrt() * turn.cos();
    Tensor::optimization_barrier(&[&normals]).swap_remove(0)
}
