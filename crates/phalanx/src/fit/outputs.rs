//! The outputs of a model with their padding masks.

use phalanx_graph::{DType, Tensor};

use crate::losses::{aligned_if_it_fits, aligned_weight};
use crate::nn::{Cx, Model};

/// An output of the model with its padding mask.
pub(crate) struct Output {
    pub(crate) value: Tensor,
    pub(crate) mask: Option<Tensor>,
}

impl Output {
    pub(super) fn all(cx: &mut Cx, model: &Model, inputs: &[Tensor]) -> Vec<Self> {
        let values = model.call(cx, inputs).into_iter();
        let masked = values.map(|value| Self {
            mask: cx.padding_mask(&value),
            value,
        });
        masked.collect()
    }

    /// The weight of each example or, where some steps are padding, of each step; padding weighs nothing.
    pub(crate) fn weight(&self, weight: Option<&Tensor>) -> Option<Tensor> {
        let Some(mask) = &self.mask else {
            return weight.cloned();
        };
        let mask = mask.convert(DType::F32);
        Some(match weight {
            Some(weight) if weight.rank() == 1 => of_rows(weight, &mask),
            // Weights may have a last dim of 1, or one more than steps have.
            Some(weight) => match aligned_if_it_fits(&mask, weight) {
                Some(weight) => mask * weight,
                None => aligned_weight(weight, &mask).map_or(mask, |mask| weight * mask),
            },
            None => mask,
        })
    }
}

/// `values` times the number of each row.
pub(super) fn of_rows(rows: &Tensor, values: &Tensor) -> Tensor {
    values * rows.broadcast_in(&values.dims(), &[0])
}
