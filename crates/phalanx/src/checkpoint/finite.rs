//! Values that are infinite or not numbers, which no checkpoint is replaced by.

use phalanx_graph::{DType, HostTensor};

use super::TrainingState;
use crate::{Error, Result};

/// Refuses a state with values that are not numbers, and slots of the optimizer count, too: from an infinite one the training goes
/// on to NaN within steps.
pub(crate) fn check_state(state: &TrainingState) -> Result<()> {
    let mut values = state.variables.iter().chain(&state.slots);
    let found = values.find(|(_, value)| !is_finite(value));
    found.map_or(Ok(()), |(name, _)| {
        Err(divergence_error_of(name, state.iterations()))
    })
}

/// The error of a variable; a custom training loop counts no steps.
pub(crate) fn divergence_error_of(name: &str, steps: i64) -> Error {
    let after = match steps {
        0 => String::new(),
        steps => format!(" after {steps} steps"),
    };
    Error::Training(format!(
        "`{name}` has values that are infinite or not numbers{after}, and what was learned is lost with it; try a lower learning rate or gradient clipping (`clipnorm`), and check the data for values that are not numbers; a checkpoint written before stays as it was"
    ))
}

/// Whether all of a tensor's floating-point values are finite.
pub(crate) fn is_finite(value: &HostTensor) -> bool {
    /// As many numbers are looked at without a branch, several at a time.
    const BLOCK: usize = 1024;
    /// What the exponent of infinities and of what is no number has.
    const NOT_FINITE: u32 = 0x7f80_0000;
    if value.dtype() != DType::F32 {
        return !value.dtype().is_float() || value.to_f64().iter().all(|x| x.is_finite());
    }
    let is_not = |number: &[u8; 4]| u32::from_le_bytes(*number) & NOT_FINITE == NOT_FINITE;
    let (numbers, _) = value.bytes().as_chunks::<4>();
    let mut blocks = numbers.chunks(BLOCK);
    blocks.all(|block| {
        !block
            .iter()
            .fold(false, |found, number| found | is_not(number))
    })
}

#[cfg(test)]
mod tests {
    use phalanx_testkit::Scratch;

    use super::*;

    #[test]
    fn values_that_are_not_numbers_replace_no_checkpoint() {
        let folder = Scratch::temporary("not-numbers");
        let path = folder.join("checkpoint");
        let state = |value: f32| {
            let values = vec![("w".to_owned(), HostTensor::new([2], &[1.0, value]))];
            TrainingState::of_values(values, 1, 1)
        };
        let kept = state(2.0);
        kept.save(&path).unwrap();
        for value in [f32::NAN, f32::INFINITY] {
            let error = state(value).save(&path).unwrap_err().to_string();
            assert!(
                error.starts_with("`w` has values that are infinite or not numbers, and"),
                "{error}"
            );
            assert_eq!(TrainingState::load(&path).unwrap(), kept);
        }
        assert_eq!(folder.names(), ["checkpoint"]);
    }
}
