//! Which layers of a model are trained, and which are computed again.

use super::Model;
use super::layer::Body;
use crate::config::suggest;
use crate::{Error, Result};

/// Flags of layers.
impl Model {
    /// Whether training changes anything: whether some variable is trainable.
    #[must_use]
    pub fn is_trainable(&self) -> bool {
        self.variables.iter().any(|variable| variable.trainable)
    }

    /// Freezes or unfreezes every layer.
    pub fn set_trainable(&mut self, trainable: bool) {
        self.set_trainable_where(trainable, |_| true);
    }

    /// Freezes or unfreezes the layers whose path a predicate accepts; returns how many.
    ///
    /// A frozen layer keeps its variables, has no weight penalties, and batch normalization in it uses the moving
    /// statistics even in training, as in Keras. Compile again for a change to take effect.
    pub fn set_trainable_where(
        &mut self,
        trainable: bool,
        mut accepts: impl FnMut(&str) -> bool,
    ) -> usize {
        let changed = self.set_flags("", trainable, &mut accepts);
        self.refresh_flags();
        changed
    }

    /// Freezes a layer, or all layers of a model inside, by path.
    ///
    /// # Errors
    /// When nothing has that path; the error names the nearest.
    pub fn freeze(&mut self, path: &str) -> Result<()> {
        self.set_trainable_at(path, false)
    }

    /// Unfreezes a layer, or all layers of a model inside, by path.
    ///
    /// # Errors
    /// When nothing has that path; the error names the nearest.
    pub fn unfreeze(&mut self, path: &str) -> Result<()> {
        self.set_trainable_at(path, true)
    }

    /// Sets which layers, and models as layers, are [checkpointed](super::LayerSpec::checkpointed), by their path; returns how
    /// many there are of them.
    pub fn set_checkpointed_where(&mut self, mut accepts: impl FnMut(&str) -> bool) -> usize {
        self.set_checkpointed("", &mut accepts)
    }

    fn set_trainable_at(&mut self, path: &str, trainable: bool) -> Result<()> {
        let inside = format!("{path}/");
        let count = self.set_trainable_where(trainable, |layer| {
            layer == path || layer.starts_with(&inside)
        });
        if count > 0 {
            return Ok(());
        }
        let (name, layers) = (&self.name, self.layers());
        let hint = suggest(path, layers.iter().map(String::as_str));
        Err(Error::user(format!(
            "model `{name}` has no layer `{path}`; {hint}"
        )))
    }

    fn set_flags(
        &mut self,
        prefix: &str,
        value: bool,
        accepts: &mut dyn FnMut(&str) -> bool,
    ) -> usize {
        let mut changed = 0;
        for entry in &mut self.layers {
            let path = format!("{prefix}{}", entry.name);
            match &mut entry.body {
                Body::Layer { trainable, .. } if accepts(&path) => {
                    *trainable = value;
                    changed += 1;
                }
                Body::Layer { .. } => {}
                Body::Model(model) => {
                    changed += model.set_flags(&format!("{path}/"), value, accepts);
                    model.refresh_flags();
                }
            }
        }
        changed
    }

    fn set_checkpointed(&mut self, prefix: &str, accepts: &mut dyn FnMut(&str) -> bool) -> usize {
        let mut count = 0;
        for entry in &mut self.layers {
            let path = format!("{prefix}{}", entry.name);
            entry.checkpointed = accepts(&path);
            count += usize::from(entry.checkpointed);
            if let Body::Model(model) = &mut entry.body {
                count += model.set_checkpointed(&format!("{path}/"), accepts);
            }
        }
        count
    }

    /// Brings the variables' flags in line with their layers'.
    fn refresh_flags(&mut self) {
        let mut frozen = Vec::new();
        self.visit("", &mut |path, trainable| {
            if !trainable {
                frozen.push(format!("{path}/"));
            }
        });
        for variable in &mut self.variables {
            let is_frozen = frozen
                .iter()
                .any(|path| variable.name.starts_with(path.as_str()));
            variable.trainable = !variable.state && !is_frozen;
        }
    }

    /// The names of its layers, without layers of nested models, in the order in which they are first called.
    pub(crate) fn layer_order(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for call in &self.calls {
            let name = &self.layers[call.layer].name;
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        names
    }

    /// Shows `see` the path and flag of every layer.
    pub(super) fn visit(&self, prefix: &str, see: &mut dyn FnMut(&str, bool)) {
        for entry in &self.layers {
            let path = format!("{prefix}{}", entry.name);
            match &entry.body {
                Body::Layer { trainable, .. } => see(&path, *trainable),
                Body::Model(model) => model.visit(&format!("{path}/"), see),
            }
        }
    }
}
