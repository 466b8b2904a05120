//! Inputs whose examples have any length: which models can take them.

use super::model::Model;
use super::variable::Variable;
use crate::{Error, Result};

/// What a user can do about a length that decides what variables there are.
const REMEDY: &str = "let a layer before it bring all lengths to one, such as `global_average_pooling1d`, or give the input one length";

impl Model {
    /// The name of an input whose examples may have any length, if there is one.
    pub(crate) fn any_length(&self) -> Option<&str> {
        let mut inputs = self.inputs.iter();
        let input = inputs.find(|input| input.any_length)?;
        Some(&input.name)
    }

    /// Whether input `index` takes examples of these dims.
    pub(crate) fn takes(&self, index: usize, dims: &[usize]) -> bool {
        self.inputs[index].takes(dims)
    }

    /// Refuses inputs of any length where the length decides what variables there are.
    ///
    /// The model is built for several other lengths: one less, half and one (tables of places are as long as the longest, and strides
    /// may round neighbours to the same), or a longer one. Those that a layer is too large for say nothing, but one must do.
    pub(super) fn check_lengths(&self) -> Result<()> {
        let Some(name) = self.any_length() else {
            return Ok(());
        };
        let others: [fn(usize) -> usize; 4] = [|n| n - 1, |n| n / 2, |_| 1, |n| n + 1];
        let (mut fits, mut problem) = (false, None);
        for other in others {
            let model = match self.with_lengths(other) {
                None => continue,
                Some(Ok(model)) => model,
                Some(Err(error)) => {
                    problem = problem.or(Some(error));
                    continue;
                }
            };
            fits = true;
            let mut pairs = self.variables.iter().zip(&model.variables);
            let differs = |(own, other): &(&Variable, &Variable)| own.shape != other.shape;
            if let Some((own, shape)) = pairs.find(differs) {
                return Err(Error::User(format!(
                    "input `{name}` of model `{}` has any length, but variable `{}` depends on it: it is {}, and {} with another; {REMEDY}",
                    self.name, own.name, own.shape, shape.shape
                )));
            }
        }
        match problem {
            Some(error) if !fits => Err(Error::User(format!(
                "input `{name}` of model `{}` has any length, but no other was found to do: {error}; {REMEDY}",
                self.name
            ))),
            _ => Ok(()),
        }
    }

    /// The model for examples of other lengths; nothing where one would be 0 or what it is.
    fn with_lengths(&self, other: fn(usize) -> usize) -> Option<Result<Self>> {
        let mut model = self.clone();
        for input in model.inputs.iter_mut().filter(|input| input.any_length) {
            let length = input.shape.dims.first_mut()?;
            let changed = other(*length);
            if changed == 0 || changed == *length {
                return None;
            }
            *length = changed;
        }
        Some(model.trace().map(|()| model))
    }
}
