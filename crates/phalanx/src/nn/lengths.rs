//! Inputs whose examples have any length: which layers can take them, and what they give.

use phalanx_graph::Shape;

use super::model::Model;
use super::variable::Variable;
use crate::{Error, Result};

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

    /// The shape of each output for examples of these dims, one an input: the dims of one example, without the batch.
    ///
    /// # Errors
    /// When a layer cannot take them.
    pub(crate) fn outputs_for(&self, inputs: &[&[usize]]) -> Result<Vec<Shape>> {
        let own = self.inputs.iter().map(|input| &input.shape.dims[..]);
        if own.eq(inputs.iter().copied()) {
            return Ok(self.outputs());
        }
        Ok(self.with_dims(inputs)?.outputs())
    }

    /// The model as it is for examples of these dims, one an input.
    fn with_dims(&self, inputs: &[&[usize]]) -> Result<Self> {
        let mut model = self.clone();
        for (input, &dims) in model.inputs.iter_mut().zip(inputs) {
            input.shape.dims = dims.to_vec();
        }
        model.trace()?;
        Ok(model)
    }

    /// Refuses inputs of any length where the length decides what variables there are: the model is built for another, one less
    /// where there is one, since tables of places are as long as the longest.
    pub(super) fn check_lengths(&self) -> Result<()> {
        let Some(name) = self.any_length() else {
            return Ok(());
        };
        let other = |length: usize| if length > 1 { length - 1 } else { 2 };
        let mut dims: Vec<Vec<usize>> = Vec::new();
        for input in &self.inputs {
            let mut own = input.shape.dims.clone();
            if let (true, Some(length)) = (input.any_length, own.first_mut()) {
                *length = other(*length);
            }
            dims.push(own);
        }
        let dims: Vec<&[usize]> = dims.iter().map(Vec::as_slice).collect();
        let remedy = "let a layer before it bring all lengths to one, such as `global_average_pooling1d`, or give the input one length";
        let shorter = self.with_dims(&dims).map_err(|error| {
            Error::User(format!(
                "input `{name}` of model `{}` has any length, but with examples of {dims:?}: {error}; {remedy}",
                self.name
            ))
        })?;
        let mut pairs = self.variables.iter().zip(&shorter.variables);
        let differs = |(own, other): &(&Variable, &Variable)| own.shape != other.shape;
        match pairs.find(differs) {
            None => Ok(()),
            Some((own, other)) => Err(Error::User(format!(
                "input `{name}` of model `{}` has any length, but variable `{}` depends on it: it is {}, and {} with examples of {dims:?}; {remedy}",
                self.name, own.name, own.shape, other.shape
            ))),
        }
    }
}
