//! Kernels for XLA programs on the CPU: oneDNN's, and some of our own.
//!
//! Programs reach them as custom calls; XLA's own convolutions have half their speed or less. oneDNN is loaded at run time and is
//! optional: a program without these calls computes the same results. Activations are `[batch, height, width, channels]`, kernels
//! `[height, width, input channels / groups, output channels]`, both dense; this is the contract with the writer of the program
//! (each pair is of 64-bit integers, `dilation` of 1 is dense, padding is not negative):
//!
//! | call | operands -> results | attributes |
//! |---|---|---|
//! | `phalanx.conv` | x, kernel, optionally a bias `[outputs]`, after a bias optionally an array like y to add -> y | `strides`, `dilation`, `padding_low`, `padding_high`, `groups`; optionally `relu`, and where it is true its `ceiling` |
//! | `phalanx.conv_input_gradient` | dy, kernel, optionally an array like x -> dx, 0 where that array is not positive | as `phalanx.conv`, without `relu` |
//! | `phalanx.conv_kernel_gradient` | x, dy -> dkernel | the same; strides of a 1x1 kernel are 1, its x is sliced before |
//!
//! A `ceiling` of 0 stands for none, in all calls that have one. What follows a convolution (bias, array, ReLU) is of f32.
//!
//! The three may have `algorithm`, a text: `plain`, `blocked` or `matmul` of oneDNN's, `product`, `tiles` or `depthwise` of ours, where these compute it;
//! a rule chooses where it is absent.
//!
//! | call | operands -> results | attributes |
//! |---|---|---|
//! | `phalanx.conv_points` | kernel `[3, 3, inputs, outputs]` -> its points, `[panels * 36 * (inputs + 1) * 16]` with `outputs / 16` panels, rounded up | |
//! | `phalanx.conv_by_points` | x, points, optionally what follows a convolution -> y | as `phalanx.conv` has them |
//! | `phalanx.conv_panels` | kernel -> its panels, `[panels * 16 * height * width * inputs]` with `outputs / 16` panels, rounded up | |
//! | `phalanx.conv_by_panels` | x, panels, optionally what follows a convolution -> y | as `phalanx.conv` has them, `window` (height and width of the kernel) |
//!
//! All four are of f32 with groups of 1, and there only where [`Support::tiles`] says so. Those of points have 16 channels or more, multiples
//! of 8, and strides and dilation of 1.
//! Points and panels depend on the kernel alone, so that a program may compute them once for many calls.
//!
//! | call | operands -> results | attributes |
//! |---|---|---|
//! | `phalanx.max_pool` | x -> y, place (`ui8`, as many as y) | `window` (at most 256 elements), `strides`, `padding_low`, `padding_high` |
//! | `phalanx.max_pool_gradient` | place, dy -> dx | the same |
//!
//! The largest of a window with a NaN is the NaN, of padding alone -inf.
//!
//! | call | operands -> results | attributes |
//! |---|---|---|
//! | `phalanx.batch_norm` | x `[.., channels]`, gamma, beta (`[channels]`), optionally an array like x to add -> y, mean, variance | `epsilon`, `relu`, and where it is true its `ceiling` |
//! | `phalanx.batch_norm_gradient` | dy, x, mean, variance, gamma -> dx, dgamma, dbeta | `epsilon` |
//! | the same, of one with ReLU | dy, x, mean, variance, gamma, beta -> dx, dgamma, dbeta | `epsilon`, `ceiling` |
//! | the same, of one with addition and ReLU | dy, x, mean, variance, gamma, y -> dx, dgamma, dbeta, gradient of what was added | `epsilon` |
//! | `phalanx.bf16_product` | `[batch, rows, depth]`, `[batch, depth, columns]` in bf16 -> `[batch, rows, columns]` in bf16 or f32, summed in f32 | `left_transposed`, `right_transposed`: of operands given as `[batch, depth, rows]`, `[batch, columns, depth]` |
//!
//! Each may also have `replicas`, an integer: the number of replicas of its program that compute at the same time, 1 if absent. Each
//! gets its share of the processors.
//!
//! | call | operands -> results | attributes |
//! |---|---|---|
//! | `phalanx.sum` | number of the replica (`ui32` scalar), arrays -> the number, the sums of all replicas' arrays | `replicas`, `number` (of the call in its program), `patience_seconds` |
//!
//! It needs no library ([`register_all_reduce`]). All replicas make the same calls in the same order, which the number of the replica, handed
//! from call to call, ensures.
//!
//! | call | operands -> results | attributes |
//! |---|---|---|
//! | `phalanx.product` | `[rows, depth]`, `[depth, columns]` -> `[rows, columns]` | `left_transposed`, `right_transposed`: of operands given as `[depth, rows]`, `[columns, depth]`; `replicas` as above |
//! | the same, of several pairs | `[matrices, rows, depth]` or `[matrices, rows, heads, depth]`, the right operand likewise -> `[matrices * heads, rows, columns]` | the same |
//! | either with a bias | in f32: also `[columns]`, which is added to each row | the same |
//!
//! It needs no library either ([`register_matmul`]). Operands are f32, and so is the result, or bf16 with a result in bf16 or f32; sums are f32.
//!
//! | call | operands -> results | attributes |
//! |---|---|---|
//! | `phalanx.column_sums` | x `[.., columns]` -> sums over all dimensions but the last | `replicas` as above |
//! | `phalanx.row_reduction` | x `[.., columns]` -> sums over the last dimension, or maxima (`[..]`) | `maximum`; `replicas` as above |
//!
//! Both take f32 or bf16 and give the same. They need no library either ([`register_reductions`]).
//!
//! | call | operands -> results | attributes |
//! |---|---|---|
//! | `phalanx.softmax` | x `[.., columns]` in f32 -> exponentials of x less the largest number of its row, their sums, the largest numbers (`[..]`) | `replicas` as above |
//!
//! It needs no library either ([`register_softmax`]).
//!
//! | call | operands -> results | attributes |
//! |---|---|---|
//! | `phalanx.rows` | table `[rows, ..]`, indices (`i32`) -> the rows, the dims of the indices first; the nearest row for an index out of range | `replicas` as above |
//! | `phalanx.row_sums` | table `[rows, columns]` in f32, indices `[sums, rows of each]` (`i32`), optionally weights like them -> `[sums, columns]`; an index below 0 leaves its row out, one past the table is a row of NaN | the same |
//!
//! They need no library either ([`register_rows`]).
//!
//! | call | operands -> results | attributes |
//! |---|---|---|
//! | `phalanx.lstm` | x `[batch, steps, 4 units]`, recurrent kernel `[units, 4 units]`, bias `[4 units]`, first state and cells (`[batch, units]`) -> states, cells (`[batch, steps, units]`), gates (like x) | `replicas` as above |
//! | `phalanx.lstm_gradient` | gradient by the states, recurrent kernel, first cells, cells, gates, optionally the gradient by the cells -> gradients by x, by the first state, by the first cells | the same |
//! | `phalanx.gru` | x `[batch, steps, 3 units]`, recurrent kernel `[units, 3 units]`, recurrent bias `[3 units]`, first state `[batch, units]` -> states `[batch, steps, units]`, gates `[batch, steps, 4 units]` | the same |
//! | `phalanx.gru_gradient` | gradient by the states, recurrent kernel, first state, states, gates -> gradients by x, by the product of the states (both like x), by the first state | the same |
//!
//! Columns of an LSTM's x, kernel and gates belong to the input, forget, cell and output gate, in this order; of a GRU's to the update and the reset gate and
//! the candidate, and behind the gates is what the reset gate multiplies. They need no library either ([`register_lstm`]).
//!
//! | call | operands -> results | attributes |
//! |---|---|---|
//! | `phalanx.exchange_start` | number of the replica in its process (`ui32`), handle of the exchange started before (`i64`), arrays -> handle | `replicas` (of the process), `op` (`add`, `maximum`, `minimum`, `and`, `or`, `gather`) |
//! | `phalanx.exchange_done` | number of the replica, handle, handle of the last exchange started, what the exchange before gave (`i1`) unless it is the first -> whether it succeeded (`i1`), arrays | `replicas` |
//! | `phalanx.first_replica` | nothing -> number of the process' first replica (`ui32`) | |
//!
//! They reach the [`Exchange`] ([`ExchangeBinding`]) that the run's launch id names ([`launch_id`]). A gather takes one array and gives the arrays of all replicas.
//!
//! Elements are f32 or bf16. What has one number a channel (gamma, beta, mean,
//! variance and their gradients) is f32; a sum of columns has the type of x. All loops of ours compute in f32 and round once.
//!
//! Everything exported is safe.

mod all_reduce;
mod amx;
mod batch_norm;
mod bf16_matmul;
mod bf16_rate;
mod convolution;
#[cfg(target_arch = "x86_64")]
mod convolution_panels;
#[cfg(target_arch = "x86_64")]
mod convolution_points;
#[cfg(all(test, target_arch = "x86_64"))]
mod counts;
#[cfg(target_arch = "x86_64")]
mod depthwise;
mod epilogue;
mod exchange;
mod executor;
#[cfg(target_arch = "x86_64")]
mod gemm;
#[cfg(target_arch = "x86_64")]
mod gru;
mod handlers;
mod kernels;
#[cfg(target_arch = "x86_64")]
mod lanes;
mod library;
#[cfg(target_arch = "x86_64")]
mod lstm;
#[cfg(target_arch = "x86_64")]
mod matmul;
mod max_pool;
#[cfg(target_arch = "x86_64")]
mod microkernel;
mod onednn;
mod openmp;
mod operation;
#[cfg(target_arch = "x86_64")]
mod pointwise;
mod reductions;
mod row_sums;
mod rows;
mod scratchpad;
mod shared_tasks;
mod simd;
#[cfg(target_arch = "x86_64")]
mod simd_element;
#[cfg(target_arch = "x86_64")]
mod simd_row;
#[cfg(target_arch = "x86_64")]
mod softmax;
mod stored;
mod sync;
mod sys;
#[cfg(target_arch = "x86_64")]
mod winograd;
mod worker_pool;
mod worker_state;

pub use all_reduce::register_all_reduce;
pub use amx::AmxFeatures;
pub use bf16_rate::has_fast_bf16;
pub use exchange::{
    Exchange, ExchangeBinding, ExchangeDone, ExchangeMemory, ExchangeOp, ExchangeRequest, launch_id,
};
pub use kernels::{Kernels, Support};
pub use library::{INSTALL_COMMAND, KernelError, LIBRARY_VARIABLE, ONEDNN, set_openmp_wait_policy};
#[cfg(target_arch = "x86_64")]
pub use lstm::register_lstm;
#[cfg(target_arch = "x86_64")]
pub use matmul::register_matmul;
pub use reductions::register_reductions;
pub use rows::register_rows;
pub use simd::{WideWork, with_wide_vectors};
#[cfg(target_arch = "x86_64")]
pub use softmax::register_softmax;

/// Refuses: `phalanx.product` is for x86-64.
///
/// # Errors
/// Always.
#[cfg(not(target_arch = "x86_64"))]
pub fn register_matmul(_: &phalanx_pjrt::Client) -> Result<(), KernelError> {
    Err(KernelError::Register {
        reason: "products are for x86-64 processors".to_owned(),
    })
}

/// Refuses: `phalanx.softmax` is for x86-64.
///
/// # Errors
/// Always.
#[cfg(not(target_arch = "x86_64"))]
pub fn register_softmax(_: &phalanx_pjrt::Client) -> Result<(), KernelError> {
    Err(KernelError::Register {
        reason: "softmax is for x86-64 processors".to_owned(),
    })
}

/// Refuses: `phalanx.lstm` is for x86-64.
///
/// # Errors
/// Always.
#[cfg(not(target_arch = "x86_64"))]
pub fn register_lstm(_: &phalanx_pjrt::Client) -> Result<(), KernelError> {
    Err(KernelError::Register {
        reason: "recurrent layers are for x86-64 processors".to_owned(),
    })
}
