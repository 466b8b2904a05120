//! One replica in stages, one after another.

/// One replica in stages, each on a device of its own, that a batch goes through in parts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Stages {
    /// The first layer of each stage but the first, where the user says so.
    pub(crate) starts: Option<Vec<String>>,
    /// Into how many parts a batch of training is cut.
    pub(crate) micro_batches: usize,
}
