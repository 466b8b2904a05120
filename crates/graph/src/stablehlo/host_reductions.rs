//! Reductions of columns and rows on host processors, as calls of `phalanx.column_sums` and `phalanx.row_reduction`.
//!
//! Programs with 16-bit floats have them: the compiler's library of reductions reads their operands as other bits (decision 17), so that its
//! own loops are left, which are slow.

use super::kernels::call;
use super::writer::{Operand, Writer};
use crate::op::{Attribute, Node, Op, ReduceOp, any_node};
use crate::{DType, Program, Shape};

/// Elements from which a reduction lasts longer than a call of it.
const MIN_ELEMENTS: usize = 1 << 14;
/// Numbers of a row from which the call's partial results are filled.
const MIN_COLUMNS: usize = 32;

/// Rows of a column from which the call divides its work among threads, and columns up to which it need not: few long rows are left to the compiler.
const MIN_ROWS: usize = 32;
const MAX_COLUMNS_OF_FEW_ROWS: usize = 1 << 16;

/// What a reduction is of a matrix.
#[derive(Clone, Copy)]
enum Matrix {
    /// Each column is summed.
    Columns([usize; 2]),
    /// Each row is summed, or its maximum found.
    Rows([usize; 2]),
}

impl Program {
    /// Whether a reduction of this program is a call, where these are.
    #[must_use]
    pub fn gains_from_host_reductions(&self) -> bool {
        let is_short = |_: &[Node], node: &Node| {
            let mut shapes = node.shapes.iter();
            shapes.any(|shape| matches!(shape.dtype, DType::Bf16 | DType::F16))
        };
        let gains = |nodes: &[Node], node: &Node| match &node.op {
            Op::Reduce { kind, dims } => {
                let x = node.inputs[0];
                matrix(*kind, &nodes[x.node].shapes[x.output], dims).is_some()
            }
            _ => false,
        };
        self.mesh.is_none() && any_node(&self.nodes, &is_short) && any_node(&self.nodes, &gains)
    }
}

/// The reduction by a call, where there is one and it gains.
pub(super) fn host_reduction(
    w: &mut Writer,
    kind: ReduceOp,
    x: &Operand,
    dims: &[usize],
) -> Option<Operand> {
    let matrix = matrix(kind, &x.shape, dims).filter(|_| w.host_reductions)?;
    let kept = (0..x.shape.rank()).filter(|dim| !dims.contains(dim));
    let kept: Vec<usize> = kept.map(|dim| x.shape.dims[dim]).collect();
    let (target, sizes, count, attributes) = match matrix {
        Matrix::Columns(sizes) => ("phalanx.column_sums", sizes, sizes[1], Vec::new()),
        Matrix::Rows(sizes) => {
            let maximum = Attribute::Bool(kind == ReduceOp::Max);
            let attributes = vec![("maximum".to_owned(), maximum)];
            ("phalanx.row_reduction", sizes, sizes[0], attributes)
        }
    };
    let matrix = w.reshape(x, &sizes);
    let outputs = [Shape::new(x.shape.dtype, [count])];
    let result = call(w, target, &[matrix], &outputs, attributes).swap_remove(0);
    Some(w.reshape(&result, &kept))
}

fn matrix(kind: ReduceOp, x: &Shape, dims: &[usize]) -> Option<Matrix> {
    let is_float = matches!(x.dtype, DType::F32 | DType::Bf16 | DType::F16);
    let reduced: usize = dims.iter().map(|&dim| x.dims[dim]).product();
    if !is_float || x.len() < MIN_ELEMENTS || reduced == 0 {
        return None;
    }
    let kept = x.len() / reduced;
    let follow = |first: usize| dims.iter().copied().eq(first..first + dims.len());
    let some_are_kept = dims.len() < x.rank();
    let gains_by_columns = reduced >= MIN_ROWS || kept <= MAX_COLUMNS_OF_FEW_ROWS;
    match kind {
        ReduceOp::Sum if some_are_kept && follow(0) && gains_by_columns => {
            Some(Matrix::Columns([reduced, kept]))
        }
        ReduceOp::Sum | ReduceOp::Max
            if some_are_kept && follow(x.rank() - dims.len()) && reduced >= MIN_COLUMNS =>
        {
            Some(Matrix::Rows([kept, reduced]))
        }
        _ => None,
    }
}
