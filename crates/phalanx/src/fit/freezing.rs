//! Which layers a trainer trains.

use super::Trainer;
use crate::Result;

impl Trainer {
    /// Freezes a layer, or all layers of a model inside, by path; see [`set_trainable_where`](Self::set_trainable_where).
    ///
    /// # Errors
    /// When nothing has that path (the error names the nearest), or the device fails.
    pub fn freeze(&mut self, path: &str) -> Result<()> {
        self.compiled.update_trainable(|model| model.freeze(path))
    }

    /// Unfreezes a layer, or all layers of a model inside, by path; see
    /// [`set_trainable_where`](Self::set_trainable_where).
    ///
    /// # Errors
    /// When nothing has that path (the error names the nearest), or the device fails.
    pub fn unfreeze(&mut self, path: &str) -> Result<()> {
        self.compiled.update_trainable(|model| model.unfreeze(path))
    }

    /// Freezes or unfreezes the layers whose path a predicate accepts; returns how many.
    ///
    /// The next step trains what is trainable then, without another `compile`, which Keras needs and without which it
    /// silently goes on as before. What the optimizer carries for variables that are trained before and after stays; for
    /// those that become trainable it begins anew. Iterations go on, so that rules that correct for the start of their
    /// averages (Adam) do not do so for the newcomers, whose first steps are larger: lower the rate, as is usual then.
    ///
    /// # Errors
    /// When the device fails.
    pub fn set_trainable_where(
        &mut self,
        trainable: bool,
        accepts: impl FnMut(&str) -> bool,
    ) -> Result<usize> {
        self.compiled
            .update_trainable(|model| Ok(model.set_trainable_where(trainable, accepts)))
    }
}
