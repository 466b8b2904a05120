//! The weights of examples, looked at on the host.

use super::batch::row_of;
use crate::data::Batch;
use crate::{Error, Result};

/// Refuses weights that are negative or no finite numbers: a loss is divided by their sum.
pub(super) fn check_weights(batch: &Batch) -> Result<()> {
    let Some(weights) = &batch.weight else {
        return Ok(());
    };
    let values = weights.f32s();
    let is_bad = |weight: &f32| !(*weight >= 0.0 && weight.is_finite());
    let Some(at) = values.iter().position(is_bad) else {
        return Ok(());
    };
    let row = batch.first + row_of(at, weights);
    Err(Error::user(format!(
        "the weight of example {row} of the epoch is {}, expected a finite number from 0 up; correct what makes the weights, 0 leaves an example out",
        values[at]
    )))
}

/// What is to be said of the weight of a batch of `size` examples or fewer that changes nothing.
pub(super) fn lone_weight_warning(batch: &Batch, size: usize) -> Option<&'static str> {
    let weights = batch.weight.as_ref().filter(|_| size == 1)?;
    let is_other = |weight: &f32| *weight != 0.0 && *weight != 1.0;
    (weights.dims() == [1] && weights.f32s().iter().all(is_other)).then_some(
        "each step has one example, and the loss is divided by the weights of its step, so that weights of examples and classes change nothing; give batches more examples",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::HostTensor;

    fn weighted(weights: &[f32]) -> Batch {
        Batch {
            x: vec![HostTensor::new([weights.len()], weights)],
            y: Vec::new(),
            weight: Some(HostTensor::new([weights.len()], weights)),
            first: 10,
        }
    }

    #[test]
    fn weights_are_finite_and_not_negative() {
        assert!(check_weights(&weighted(&[0.0, 2.0])).is_ok());
        for bad in [-1.0, f32::NAN, f32::INFINITY] {
            let error = check_weights(&weighted(&[1.0, bad])).unwrap_err();
            let error = error.to_string();
            let expected =
                format!("the weight of example 11 of the epoch is {bad}, expected a finite number");
            assert!(error.contains(&expected), "{error}");
        }
    }

    #[test]
    fn a_weight_that_is_alone_in_its_step_is_told() {
        let is_told = |weight, size| lone_weight_warning(&weighted(&[weight]), size).is_some();
        assert!(is_told(1000.0, 1));
        assert!(!is_told(1.0, 1) && !is_told(0.0, 1) && !is_told(1000.0, 8));
    }
}
