//! Models inside models: the dims of their inputs follow what they are called with.

use super::layer::Body;
use super::model::{Model, Results};
use crate::Result;

impl Model {
    /// Gives models inside whose inputs have open dims the ones of the values that they are first called with.
    pub(super) fn fit_inside(&mut self, results: &Results) -> Result<()> {
        let mut fitted = vec![false; self.layers.len()];
        for call in &self.calls {
            let Body::Model(inner) = &mut self.layers[call.layer].body else {
                continue;
            };
            if std::mem::replace(&mut fitted[call.layer], true) {
                continue;
            }
            let mut differs = false;
            for (input, place) in inner.inputs.iter_mut().zip(&call.inputs) {
                let dims = results.0[place.node][place.output].shape().dims;
                differs |= input.shape.dims != dims[1..];
                input.shape.dims = dims[1..].to_vec();
            }
            if differs {
                inner.trace()?;
            }
        }
        Ok(())
    }

    /// Has models inside take examples of any dims.
    pub(super) fn open_inside(&mut self) {
        for inner in self.inner_models() {
            for input in &mut inner.inputs {
                input.open = input.shape.rank();
            }
            inner.open_inside();
        }
    }

    /// Has models inside take what they do in `other`, of the same layers.
    pub(super) fn close_inside(&mut self, other: &Self) {
        let bodies = other.layers.iter().map(|layer| &layer.body);
        for (layer, body) in self.layers.iter_mut().zip(bodies) {
            if let (Body::Model(inner), Body::Model(other)) = (&mut layer.body, body) {
                let inputs = inner.inputs.iter_mut().zip(&other.inputs);
                inputs.for_each(|(input, other)| input.open = other.open);
                inner.close_inside(other);
            }
        }
    }

    fn inner_models(&mut self) -> impl Iterator<Item = &mut Self> {
        let bodies = self.layers.iter_mut().map(|layer| &mut layer.body);
        bodies.filter_map(|body| match body {
            Body::Model(model) => Some(&mut **model),
            Body::Layer { .. } => None,
        })
    }
}
