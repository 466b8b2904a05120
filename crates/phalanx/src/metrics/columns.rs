//! Predictions by the number of their columns, one for each class or output.

use phalanx_graph::{Shape, Tensor};

/// The last dim; 1 of predictions of one number each.
pub(super) fn columns(y_pred: &Shape) -> usize {
    match y_pred.dims.as_slice() {
        [] | [_] => 1,
        [.., columns] => *columns,
    }
}

/// Makes it the graph's error that predictions need another number than was `set`, or that none was: what it counts, and the setting.
#[track_caller]
pub(super) fn refuse_columns(
    op: &str,
    [what, setting]: [&str; 2],
    set: Option<usize>,
    needed: usize,
    y_pred: &Tensor,
) {
    let shape = y_pred.shape();
    let message = match set {
        Some(expected) => format!("y_pred {shape} has not the {expected} {what} that were set"),
        None => format!("the number of {what} is open; set `{setting}` to {needed}"),
    };
    y_pred.graph().fail(op, message);
}
