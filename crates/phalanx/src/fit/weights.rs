//! Values of a trainer's model from files, and into files.

use std::path::Path;

use super::Trainer;
use crate::Result;
use crate::import::{self, LoadReport, LoadWeights};
#[cfg(doc)]
use crate::saved::SavedModel;

impl Trainer {
    /// Takes values from a file of weights of ours, of Keras or of PyTorch; see [`import`].
    ///
    /// The optimizer's state stays as it is.
    ///
    /// # Errors
    /// When the file cannot be read, a variable finds no value of its shape in it and `skip_mismatch` is not set, or the
    /// device fails; nothing is changed then.
    pub fn load_weights(
        &mut self,
        path: impl AsRef<Path>,
        options: LoadWeights,
    ) -> Result<LoadReport> {
        let (values, report) = import::load(self.model(), path.as_ref(), options)?;
        let variables = self.model().variables();
        let named = values.into_iter();
        let named = named.map(|(index, value)| (variables[index].name.clone(), value));
        let named: Vec<_> = named.collect();
        self.set_variables(&named)?;
        Ok(report)
    }

    /// Writes the present values alone, as [`SavedModel::save_weights`] does.
    ///
    /// # Errors
    /// When the device fails; otherwise as for [`SavedModel::save_weights`].
    pub fn save_weights(&self, path: impl AsRef<Path>) -> Result<()> {
        self.saved_model()?.save_weights(path)
    }
}
