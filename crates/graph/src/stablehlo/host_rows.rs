//! Rows of large tables on host processors, as calls of `phalanx.rows`.

use super::custom_call;
use super::kernels::computing_at_once;
use super::writer::{Operand, Writer};
use crate::op::{CustomCall, Node, Op, any_node};
use crate::{Program, Shape};

/// Bytes of a table that is not in the caches: then the compiler's loop waits for the memory at nearly every row.
const LARGE: usize = 16 << 20;
/// Rows from which a call gains more than it costs.
const MIN_ROWS: usize = 64;
/// Bytes of a row: shorter ones are of a line that another row may have brought, and of longer ones the processor fetches the rest by itself.
const ROW: std::ops::RangeInclusive<usize> = 64..=8192;

impl Program {
    /// Whether this program takes rows of a large table, as calls of `phalanx.rows` do, or sums rows, as calls of `phalanx.row_sums` do.
    #[must_use]
    pub fn gains_from_host_rows(&self) -> bool {
        let takes_rows = |nodes: &[Node], node: &Node| match node.op {
            Op::Gather { dim } => {
                let table = node.inputs[0];
                gains(
                    &nodes[table.node].shapes[table.output],
                    &node.shapes[0],
                    dim,
                )
            }
            _ => false,
        };
        self.mesh.is_none() && (any_node(&self.nodes, &takes_rows) || self.gains_from_row_sums())
    }
}

/// Whether whole rows are taken of a table that is large enough.
fn gains(table: &Shape, rows: &Shape, dim: usize) -> bool {
    let row = table.dims.iter().skip(1).product::<usize>() * table.dtype.size();
    dim == 0 && table.byte_len() >= LARGE && ROW.contains(&row) && rows.byte_len() >= MIN_ROWS * row
}

/// The rows by a call, where there is one and it gains.
pub(super) fn host_rows(
    w: &mut Writer,
    inputs: &[Operand],
    dim: usize,
    shape: &Shape,
) -> Option<Operand> {
    if !w.host_rows || !gains(&inputs[0].shape, shape, dim) {
        return None;
    }
    let call = CustomCall {
        target: "phalanx.rows".to_owned(),
        outputs: vec![shape.clone()],
        attributes: computing_at_once(w).into_iter().collect(),
        has_side_effect: false,
    };
    Some(custom_call(w, &call, inputs).swap_remove(0))
}
