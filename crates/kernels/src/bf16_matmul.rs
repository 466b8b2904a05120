//! oneDNN's matrix multiplication, and the custom call `phalanx.bf16_product` of matrices of bf16.
//!
//! Sums are f32 whatever the result is, which is rounded once. An element is summed in one order, whatever the number of threads.

use std::ptr::null_mut;

use phalanx_pjrt::{CustomCallError, CustomCallFrame, ElementType};

use crate::handlers::{flag, invalid, refusal, replicas, worker_error};
use crate::kernels::Kernels;
use crate::onednn::{DataType, MemoryDesc, OneDnn, Result};
use crate::operation::{ArgumentKind, CallersLayout, Operation};
use crate::sys::argument;

/// Products of matrices, as many as the batch has, each `[rows, depth]` by `[depth, columns]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct MatmulDesc {
    pub(crate) batch: i64,
    pub(crate) rows: i64,
    pub(crate) columns: i64,
    pub(crate) depth: i64,
    /// Whether the left matrices lie in memory as `[depth, rows]`.
    pub(crate) left_transposed: bool,
    /// Whether the right matrices lie in memory as `[columns, depth]`.
    pub(crate) right_transposed: bool,
    /// Element types of the left and the right matrices and of the results.
    pub(crate) elements: [DataType; 3],
}

/// oneDNN divides the sums of one product among threads, in slices of at least this depth ...
const DIVISIBLE_DEPTH: i64 = 1024;
/// ... from two times 8 threads on, in parts that depend on their number.
const MOST_THREADS_UNDIVIDED: usize = 15;

impl MatmulDesc {
    fn of(call: &CustomCallFrame<'_>) -> std::result::Result<Self, CustomCallError> {
        let (left, left_dims) = matrices(call.operand_shape(0)?)?;
        let (right, right_dims) = matrices(call.operand_shape(1)?)?;
        let (result, dims) = matrices(call.result_shape(0)?)?;
        let left_transposed = flag(call, "left_transposed")?;
        let right_transposed = flag(call, "right_transposed")?;
        let turned = |turned: bool, [batch, a, b]: [i64; 3]| match turned {
            true => [batch, b, a],
            false => [batch, a, b],
        };
        let [batch, rows, depth] = turned(left_transposed, left_dims);
        let right_turned = turned(right_transposed, right_dims);
        let columns = right_turned[2];
        if right_turned != [batch, depth, columns] || dims != [batch, rows, columns] {
            return Err(invalid(format!(
                "a product of {left_dims:?} (transposed: {left_transposed}) and {right_dims:?} (transposed: {right_transposed}) is not {dims:?}"
            )));
        }
        if [left, right] != [DataType::Bf16; 2] {
            return Err(invalid(format!(
                "operands must be bf16, got {left:?} and {right:?}"
            )));
        }
        Ok(Self {
            batch,
            rows,
            columns,
            depth,
            left_transposed,
            right_transposed,
            elements: [left, right, result],
        })
    }

    /// Most threads that compute it in the same bits as one does.
    pub(crate) const fn most_threads(&self) -> usize {
        match self.batch == 1 && self.depth > DIVISIBLE_DEPTH {
            true => MOST_THREADS_UNDIVIDED,
            false => usize::MAX,
        }
    }

    /// oneDNN's operation for it.
    pub(crate) fn operation(&self, onednn: &OneDnn) -> Result<Operation> {
        let Self {
            rows,
            columns,
            depth,
            ..
        } = *self;
        let [left, right, result] = self.elements;
        let layout = |element, dims, transposed| {
            let layout = self.layout(onednn, element, dims, transposed)?;
            Ok(CallersLayout {
                layout,
                in_f32: None,
            })
        };
        let left = layout(left, [rows, depth], self.left_transposed)?;
        let right = layout(right, [depth, columns], self.right_transposed)?;
        let result = layout(result, [rows, columns], false)?;
        let no_bias = null_mut();
        // SAFETY: live layouts, no bias.
        let primitive_desc = unsafe {
            onednn.primitive_desc("plan a product", |out, engine, attributes| {
                let [left, right, result] =
                    [&left, &right, &result].map(|callers| callers.layout.handle());
                (onednn.api.matmul)(out, engine, left, right, no_bias, result, attributes)
            })?
        };
        let arguments = [
            (argument::SRC, ArgumentKind::Input, &left),
            (argument::WEIGHTS, ArgumentKind::Input, &right),
            (argument::DST, ArgumentKind::Output, &result),
        ];
        Operation::new(onednn, &primitive_desc, &arguments)
    }

    fn layout(
        &self,
        onednn: &OneDnn,
        element: DataType,
        [rows, columns]: [i64; 2],
        transposed: bool,
    ) -> Result<MemoryDesc> {
        let [down, right] = match transposed {
            true => [1, rows],
            false => [columns, 1],
        };
        match self.batch {
            1 => onednn.strided(element, &[rows, columns], &[down, right]),
            batch => {
                let strides = [rows * columns, down, right];
                onednn.strided(element, &[batch, rows, columns], &strides)
            }
        }
    }
}

/// Operands: the left matrices, `[batch, rows, depth]` or `[batch, depth, rows]`, and the right ones, `[batch, depth, columns]` or
/// `[batch, columns, depth]`.
pub(crate) fn bf16_product(
    kernels: &Kernels,
    call: &mut CustomCallFrame<'_>,
) -> std::result::Result<(), CustomCallError> {
    let desc = MatmulDesc::of(call)?;
    let inputs = [call.operand_bytes(0)?, call.operand_bytes(1)?];
    let output = call.result_bytes(0)?;
    if inputs.iter().any(|input| input.is_empty()) || output.is_empty() {
        // A sum of nothing is 0.
        output.fill(0);
        return Ok(());
    }
    kernels
        .matmul(replicas(call)?, desc, inputs, output)
        .map_err(|why| worker_error(&why))?
        .map_err(|refused| refusal(&refused, &desc))
}

fn matrices(
    (element, dims): (ElementType, &[i64]),
) -> std::result::Result<(DataType, [i64; 3]), CustomCallError> {
    let element = match element {
        ElementType::F32 => DataType::F32,
        ElementType::Bf16 => DataType::Bf16,
        other => {
            return Err(invalid(format!(
                "elements must be bf16, of a result f32 or bf16, got {other}"
            )));
        }
    };
    let dims = dims.try_into().map_err(|_| {
        invalid(format!(
            "a batch of matrices must have 3 dimensions, got {dims:?}"
        ))
    })?;
    Ok((element, dims))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deep_sums_of_one_product_are_not_divided() {
        let most = |batch, depth| {
            let desc = MatmulDesc {
                batch,
                rows: 256,
                columns: 1024,
                depth,
                left_transposed: true,
                right_transposed: false,
                elements: [DataType::Bf16; 3],
            };
            desc.most_threads()
        };
        assert_eq!(most(1, 1024), usize::MAX);
        assert_eq!(most(1, 1025), 15);
        assert_eq!(most(2, 2048), usize::MAX);
    }
}
