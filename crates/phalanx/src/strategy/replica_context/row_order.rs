//! Tensors with several rows to each row of the batch.

use phalanx_graph::Tensor;

use super::ReplicaCx;
use crate::nn::{mask_of_rows, rows_to_each};

/// Which rows of such a tensor are of one row of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowOrder {
    /// Those next to each other.
    Folded,
    /// Each follows the others by as many rows as the batch has.
    Concatenated,
}

impl ReplicaCx<'_> {
    /// Marks rows of which those next to each other are of one row of the batch, as steps that were folded into rows are: where their row
    /// only fills up, they weigh nothing.
    #[must_use]
    #[track_caller]
    pub fn folded(&mut self, tensor: &Tensor) -> Tensor {
        self.order_rows(tensor, "folded", RowOrder::Folded)
    }

    /// Marks rows that are the batch's more than once, one time after the other, as `Tensor::concat(&[&made, &real], 0)` has them: where
    /// their row only fills up, they weigh nothing, also in the statistics of a model that is given them.
    #[must_use]
    #[track_caller]
    pub fn concatenated(&mut self, tensor: &Tensor) -> Tensor {
        self.order_rows(tensor, "concatenated", RowOrder::Concatenated)
    }

    #[track_caller]
    fn order_rows(&mut self, tensor: &Tensor, by: &str, order: RowOrder) -> Tensor {
        let (rows, got) = (self.rows(), tensor.shape());
        if got.rank() == 0 || rows == 0 || !got.dims[0].is_multiple_of(rows) {
            let message = format!("expected a multiple of the batch's {rows} rows, got {got}");
            self.graph.fail(by, message);
        }
        self.row_orders.insert(tensor.value(), order);
        tensor.clone()
    }

    /// Which rows of values are examples, where some may not be: of the batch, or of a tensor that was marked.
    #[track_caller]
    pub(super) fn mask_of(&self, values: &Tensor) -> Option<Tensor> {
        let mask = self.mask()?;
        let rows = values.dims().first().copied().unwrap_or(0);
        if rows == self.rows() {
            return Some(mask);
        }
        let many = rows_to_each(rows, self.rows())?;
        match self.row_orders.get(&values.value())? {
            RowOrder::Folded => Some(mask_of_rows(&mask, rows)),
            RowOrder::Concatenated => Some(Tensor::concat(&vec![&mask; many], 0)),
        }
    }

    /// Refuses rows of which it is not known where those are that only fill up.
    #[track_caller]
    pub(super) fn check_row_order(&self, values: &Tensor) {
        let (rows, each) = (values.dims().first().copied().unwrap_or(0), self.rows());
        let filled = self.rows.as_ref().is_some_and(|rows| rows.filled.is_some());
        let is_known = self.row_orders.contains_key(&values.value());
        if filled && !is_known && rows_to_each(rows, each).is_some() {
            self.graph.fail("mean", format!(
                "the values have {rows} rows and the batch has {each} here, some of which may only fill up; mark the values `cx.folded` where the rows of an example are next to each other, as its steps are, or `cx.concatenated` where the batch follows itself"
            ));
        }
    }
}
