//! What a training begins with: the keys `weights` and `fine_tune`.

use std::path::{Path, PathBuf};

use phalanx::config::{DefaultValue, Field, Kind};
use phalanx_yaml::Node;

use super::Located;
use super::paths;
use super::reader::{Reader, Section, list, text};
use super::sections::located;

/// The path of a file of weights.
pub(crate) const WEIGHTS: Kind = Kind::Worded(
    "the path of a file of weights or of the folder of a model",
    &Kind::Text,
);

/// `fine_tune` of the file.
pub(crate) const FINE_TUNE: &[Field] = &[
    Field::required(
        "weights",
        WEIGHTS,
        "a file of weights: what has the name and the shape of a variable is taken, other variables are initialized",
    )
    .example("runs/before/model/weights.safetensors"),
    Field::new(
        "freeze",
        Kind::Worded("a list of names of layers", &Kind::List(&Kind::Text, 1, 4096)),
        DefaultValue::Words("none"),
        "layers that are not trained, as the summary names them",
    )
    .example("[dense, dense_1]"),
];

/// What a training begins with in place of random values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirstWeights {
    /// The file.
    pub file: Located<PathBuf>,
    /// Whether variables that it does not have keep their random values.
    pub may_lack: bool,
    /// Layers that are not trained.
    pub frozen: Vec<Located<String>>,
}

impl Reader {
    /// The keys `weights` and `fine_tune`.
    pub(super) fn first_weights(
        &mut self,
        file: &Section<'_>,
        folder: &Path,
    ) -> Option<FirstWeights> {
        let path = |node: &Node| paths::path(node, folder);
        let whole = self.value(file, "weights", located(path));
        let Some(node) = file.node("fine_tune") else {
            return whole.map(|file| FirstWeights {
                file,
                may_lack: false,
                frozen: Vec::new(),
            });
        };
        let section = self.section(node, "fine_tune", FINE_TUNE)?;
        if let Some(Located { at, .. }) = whole {
            self.problem(
                at,
                "`weights` and `fine_tune` both say what the training begins with",
                "keep `weights` for all values of the model, or `fine_tune` for some",
            );
        }
        let weights = self.value(&section, "weights", located(path));
        let name = located(|node: &Node| text(node).map(str::to_owned));
        let names = |node: &Node| list(node)?.iter().map(&name).collect();
        let frozen = self.value(&section, "freeze", names).unwrap_or_default();
        Some(FirstWeights {
            file: weights?,
            may_lack: true,
            frozen,
        })
    }
}
