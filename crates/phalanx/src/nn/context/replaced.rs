//! Variables that a layer replaces before their update.

use phalanx_graph::Tensor;

use super::Cx;

impl Cx {
    /// The present value of a variable of the layer being called, by its path within it; none where it was not asked for yet.
    pub(in crate::nn) fn value_of(&self, name: &str) -> Option<Tensor> {
        let index = *self.values.by_path.get(&self.path_of(name))?;
        Some(self.values.slots[index].value.clone())
    }

    /// Replaces a variable of the layer being called, by its path within it, with what depends on variables alone: for the rest of the call, and
    /// for the update after it, which goes on from there. Gradients reach the variable as they are.
    #[track_caller]
    pub(in crate::nn) fn replace(&mut self, name: &str, value: &Tensor) {
        let Some(&index) = self.values.by_path.get(&self.path_of(name)) else {
            return;
        };
        let slot = &mut self.values.slots[index];
        slot.value = &slot.value + (value - &slot.value).stop_gradient();
        slot.updated = true;
    }
}
