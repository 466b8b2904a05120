//! Gradients that a program gives: see [`Tensor::with_gradient`].

use std::fmt;
use std::sync::Arc;

use super::{Gradients, Step};
use crate::Tensor;

/// What each of some tensors receives, from the cotangent of what was made of them and the tensors; equal to itself and its clones alone.
#[derive(Clone)]
pub struct Pullback(Arc<PullbackFunction>);

type PullbackFunction = dyn Fn(&Tensor, &[Tensor]) -> Vec<Tensor> + Send + Sync;

impl Pullback {
    pub(crate) fn new(
        function: impl Fn(&Tensor, &[Tensor]) -> Vec<Tensor> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(function))
    }

    /// Nothing for the value, and something for each tensor that it was made of.
    pub(super) fn of(&self, step: &Step) -> Gradients {
        let of: Vec<Tensor> = (1..step.node.inputs.len()).map(|i| step.input(i)).collect();
        let found = (self.0)(&step.cotangent(0), &of);
        let dims = |tensors: &[Tensor]| tensors.iter().map(Tensor::dims).collect::<Vec<_>>();
        let (expected, got) = (dims(&of), dims(&found));
        if expected != got {
            return Err(format!(
                "the function of `with_gradient` must give tensors of the dims {expected:?}, one for each that the value was made of, got {got:?}"
            ));
        }
        let found = found.iter().zip(&of);
        let found = found.map(|(gradient, x)| Some(gradient.convert(x.dtype())));
        Ok(std::iter::once(None).chain(found).collect())
    }
}

impl fmt::Debug for Pullback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a function of the program")
    }
}

impl PartialEq for Pullback {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
