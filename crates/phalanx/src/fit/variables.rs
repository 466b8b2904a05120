//! Values of a trainer's model, from files and into files.

use std::path::Path;

use phalanx_graph::HostTensor;

use super::Trainer;
use super::workers::on_chief;
use crate::Result;
use crate::import::{self, LoadReport, LoadWeights};
use crate::saved::SavedModel;
use crate::storage::foreign_ending::foreign_ending;

impl Trainer {
    /// Names and values of the model's variables, in its order.
    ///
    /// # Errors
    /// When the device fails.
    pub fn variables(&self) -> Result<Vec<(String, HostTensor)>> {
        self.compiled.variables()
    }

    /// Sets variables by name; the others stay.
    ///
    /// # Errors
    /// When the model has no variable of a name, or one of another shape; nothing is set then.
    pub fn set_variables(&mut self, values: &[(impl AsRef<str>, HostTensor)]) -> Result<()> {
        self.compiled.set_variables(values)?;
        self.replaced.last = None;
        Ok(())
    }

    /// The model with its present values, apart from the device.
    ///
    /// # Errors
    /// When the device fails, or a variable is infinite or not a number.
    pub fn saved_model(&self) -> Result<SavedModel> {
        let variables = self.variables()?;
        self.compiled.check_finite(&variables)?;
        let values = variables.into_iter().map(|(_, value)| value);
        SavedModel::new(self.compiled.setup.model.clone(), values.collect())
    }

    /// Writes the model and its present values to a directory, as [`SavedModel::save`] does.
    ///
    /// The optimizer's state is not in it: training goes on in the middle of a run from what
    /// [`save_checkpoint`](Self::save_checkpoint) writes. Where several processes train together all must call this, and the
    /// first of them writes.
    ///
    /// # Errors
    /// As for [`saved_model`](Self::saved_model) and [`SavedModel::save`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let model = self.saved_model()?;
        self.warn_of_ending(path.as_ref(), false);
        on_chief(self.placement(), "save", || model.save(path))
    }

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

    /// Writes the present values alone, as [`SavedModel::save_weights`] does. Where several processes train together all must call this,
    /// and the first of them writes.
    ///
    /// # Errors
    /// As for [`saved_model`](Self::saved_model) and [`SavedModel::save_weights`].
    pub fn save_weights(&self, path: impl AsRef<Path>) -> Result<()> {
        let model = self.saved_model()?;
        self.warn_of_ending(path.as_ref(), true);
        on_chief(self.placement(), "weights", || model.save_weights(&path))
    }

    /// A name that others cannot read by is no reason to lose what was trained.
    fn warn_of_ending(&self, path: &Path, is_file: bool) {
        if let Some(why) = foreign_ending(path, is_file) {
            self.engine().notice(&format!("warning: {why}"));
        }
    }
}
