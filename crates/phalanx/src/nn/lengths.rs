//! Inputs whose examples have any length or size: which models can take them.

use super::input::NamedInput;
use super::model::Model;
use super::variable::Variable;
use crate::{Error, Result};

/// What a user can do about a dim that decides what variables there are.
const REMEDY: &str = "let a layer before it bring all to one, such as `global_average_pooling1d`, or give the input fixed dims";

impl Model {
    /// The most of the first dims that are open in an input; 0 where all are fixed.
    pub(crate) fn open_dims(&self) -> usize {
        let open = self.inputs.iter().map(|input| input.open);
        open.max().unwrap_or(0)
    }

    /// An input whose examples may have any length or size, in words, if there is one: ``input `x` has any length``.
    pub(crate) fn open_input(&self) -> Option<String> {
        let said =
            |input: &NamedInput| Some(format!("input `{}` has {}", input.name, input.any()?));
        self.inputs.iter().find_map(said)
    }

    /// Whether input `index` takes examples of these dims.
    pub(crate) fn takes(&self, index: usize, dims: &[usize]) -> bool {
        self.inputs[index].takes(dims)
    }

    /// Refuses open dims of inputs that decide what variables there are.
    ///
    /// The model is built for several others: one less, half and one (tables of places are as long as the longest, and strides
    /// may round neighbours to the same), or longer ones: twice as long, what divides it still does. Those that a layer is too large for say
    /// nothing, but one must do.
    pub(super) fn check_lengths(&self) -> Result<()> {
        let Some(open) = self.open_input() else {
            return Ok(());
        };
        let others: [fn(usize) -> usize; 5] = [
            |n| n - 1,
            |n| n / 2,
            |_| 1,
            |n| n + 1,
            |n| n.saturating_mul(2),
        ];
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
                    "model `{}`: {open}, but variable `{}` depends on it: it is {}, and {} with another; {REMEDY}",
                    self.name, own.name, own.shape, shape.shape
                )));
            }
        }
        match problem {
            Some(error) if !fits => Err(Error::User(format!(
                "model `{}`: {open}, but no other was found to do: {error}; {REMEDY}",
                self.name
            ))),
            _ => Ok(()),
        }
    }

    /// The model for examples of other open dims; nothing where one would be 0 or what it is.
    fn with_lengths(&self, other: fn(usize) -> usize) -> Option<Result<Self>> {
        let mut model = self.clone();
        for input in &mut model.inputs {
            for dim in input.shape.dims.iter_mut().take(input.open) {
                let changed = other(*dim);
                if changed == 0 || changed == *dim {
                    return None;
                }
                *dim = changed;
            }
        }
        Some(model.trace().map(|()| model))
    }
}
