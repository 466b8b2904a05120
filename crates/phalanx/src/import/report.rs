//! The report of a load: which variables found a value in the file.

use std::fmt;

use phalanx_graph::Shape;

use super::shown;
use super::torch_recurrent::OUTPUT_PROJECTION;

/// Which variables found a value in a file of weights.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadReport {
    /// How layers of the file were paired with the model's.
    pub paired: PairedBy,
    /// Variables with the tensor of the file whose value they have now; of two biases in PyTorch the first.
    pub matched: Vec<(String, String)>,
    /// Variables that the file has no tensor for, or that are in a layer of another number of variables.
    pub missing: Vec<String>,
    /// Tensors of the file that the model has no variable for, or that are in such a layer.
    pub unexpected: Vec<String>,
    /// Those of them without which a model answers otherwise than the file's: of layers that were paired, and of all others where layers
    /// were paired by their order among all.
    pub left_over: Vec<String>,
    /// Layers with another number of variables than in a file of Keras, which goes by their order: none of them has a value.
    pub miscounted: Vec<VariableCounts>,
    /// Variables for which the file has a tensor that does not fit.
    pub mismatched: Vec<Mismatch>,
}

/// The rule that paired layers of the file with layers of the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PairedBy {
    /// Their names.
    #[default]
    Name,
    /// A table of another library's names.
    Map,
    /// Their order.
    Order,
}

/// `by name`, `by map`, `by order`.
impl fmt::Display for PairedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Name => "by name",
            Self::Map => "by map",
            Self::Order => "by order",
        })
    }
}

/// A variable and a tensor of another shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Mismatch {
    /// The variable.
    pub variable: String,
    /// The tensor in the file.
    pub tensor: String,
    /// What the variable needs, in the layout of the file.
    pub expected: Shape,
    /// What the tensor is.
    pub got: Shape,
}

/// How many variables a layer has, here and in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VariableCounts {
    /// The layer.
    pub layer: String,
    /// In the model.
    pub expected: usize,
    /// In the file.
    pub got: usize,
}

impl LoadReport {
    /// Whether every variable has a value from the file, and the layers of these nothing more in it.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.mismatched.is_empty() && self.left_over.is_empty()
    }

    /// Why the file was refused, and what to do.
    pub(super) fn refusal(&self) -> String {
        if self.matched.is_empty() {
            return format!(
                "no variable of the model has a value in it: {self}; give the file of this model, or of one that shares layers with it"
            );
        }
        let mut unexpected = self.unexpected.iter();
        if let Some(name) = unexpected.find(|name| name.contains(OUTPUT_PROJECTION)) {
            let name = shown(name);
            return format!(
                "`{name}` is a projection of an LSTM's outputs, `proj_size` in PyTorch, which no layer of ours has: {self}; train PyTorch's model \
                 without it, or set `skip_mismatch` to load what fits"
            );
        }
        format!(
            "the model and the file differ: {self}; build the model that was saved, or set `skip_mismatch` to load what fits"
        )
    }
}

/// Counts, how layers were paired, and the first few names of each kind.
impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.matched.len() + self.missing.len() + self.mismatched.len();
        write!(f, "{} of {all} variables have values", self.matched.len())?;
        if !self.matched.is_empty() {
            write!(f, ", {}", self.paired)?;
        }
        let mismatched = self.mismatched.iter().map(|mismatch| {
            let Mismatch {
                variable,
                tensor,
                expected,
                got,
            } = mismatch;
            let tensor = shown(tensor);
            format!("`{variable}` needs {expected}, `{tensor}` is {got}")
        });
        listed(f, "do not fit", mismatched)?;
        let miscounted = self.miscounted.iter().map(|counts| {
            let (layer, expected, got) = (shown(&counts.layer), counts.expected, counts.got);
            format!("`{layer}` has {expected} variables, in the file {got}")
        });
        listed(f, "layers do not fit", miscounted)?;
        let quoted = |name: &String| format!("`{}`", shown(name));
        listed(f, "not in the file", self.missing.iter().map(quoted))?;
        listed(f, "not in the model", self.unexpected.iter().map(quoted))
    }
}

fn listed(
    f: &mut fmt::Formatter<'_>,
    what: &str,
    items: impl ExactSizeIterator<Item = String>,
) -> fmt::Result {
    const SHOWN: usize = 5;
    let count = items.len();
    if count == 0 {
        return Ok(());
    }
    let first: Vec<String> = items.take(SHOWN).collect();
    write!(f, "; {count} {what}: {}", first.join(", "))?;
    match count.saturating_sub(SHOWN) {
        0 => Ok(()),
        more => write!(f, " and {more} more"),
    }
}
