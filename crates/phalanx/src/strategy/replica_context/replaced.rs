//! Variables that layers replace before their update.

use std::panic::Location;

use phalanx_graph::Tensor;

use super::ReplicaCx;
use crate::strategy::state::ModelRef;

impl ReplicaCx<'_> {
    /// Sets what the layers of a model changed in a call: their state, as all replicas go on with it, and variables before their update.
    #[track_caller]
    pub(super) fn take_updates(
        &mut self,
        model: &ModelRef,
        updates: Vec<(usize, Tensor)>,
        of_batch: bool,
    ) {
        let specs = model.model.variables();
        let is_state = |(index, _): &(usize, Tensor)| specs[*index].state;
        let (own, replaced): (Vec<_>, Vec<_>) = updates.into_iter().partition(is_state);
        let (indices, values): (Vec<usize>, Vec<Tensor>) = own.into_iter().unzip();
        let caller = Location::caller();
        for (index, value) in indices.iter().zip(self.agreed(&values, of_batch)) {
            self.write(model.first + index, &value, caller);
        }
        for (index, value) in replaced {
            self.replace(model.first + index, value, caller);
        }
    }

    /// Replaces a variable before its update, which gradients reach through the new value.
    #[track_caller]
    pub(super) fn replace(
        &mut self,
        entry: usize,
        value: Tensor,
        from: &'static Location<'static>,
    ) {
        if self.state.strategy.placement.servers().is_some() {
            let name = &self.state.entries[entry].name;
            let message = format!(
                "variable `{name}` is normalized by its layer before each update, which parameter servers do not do; use `mirrored`, or leave `spectral_norm` out"
            );
            return self.graph.fail("train", message);
        }
        let root = self.root(entry);
        self.put(entry, value, from);
        self.roots.insert(entry, root);
    }

    /// What the value of an entry is differentiated by: itself, or what layers have replaced since it was set.
    #[track_caller]
    pub(super) fn root(&mut self, entry: usize) -> Tensor {
        match self.roots.get(&entry) {
            Some(root) => root.clone(),
            None => self.read(entry),
        }
    }

    /// The same for the variables of a model, which have these values.
    pub(super) fn roots(&self, model: &ModelRef, values: &[Tensor]) -> Vec<Tensor> {
        let roots = values.iter().enumerate().map(|(index, value)| {
            let replaced = self.roots.get(&(model.first + index));
            replaced.unwrap_or(value).clone()
        });
        roots.collect()
    }
}
