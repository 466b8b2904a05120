//! Inputs of models.

use phalanx_graph::{DType, Shape};

/// An input of a model: a name, the dims of one example, and the element type.
#[derive(Clone, Debug, PartialEq)]
pub struct Input {
    pub(super) name: Option<String>,
    pub(super) dims: Vec<usize>,
    pub(super) dtype: DType,
    pub(super) any_length: bool,
}

impl Input {
    /// An f32 input whose examples have these dims (the batch is not among them).
    #[must_use]
    pub fn new(dims: impl Into<Vec<usize>>) -> Self {
        Self {
            name: None,
            dims: dims.into(),
            dtype: DType::F32,
            any_length: false,
        }
    }

    /// Examples of other lengths too: their first dim may be any, and the one given is what the model is built and shown with, best
    /// the longest. A batch has one length ([`Batches::pad`](crate::data::Batches::pad)), and a program is compiled for each.
    ///
    /// Keras' `Input(shape=(None, ..))`, but for the length that is shown. The layers must have the same variables for every length,
    /// and training is on one device or on replicas of one process.
    #[must_use]
    pub const fn any_length(mut self) -> Self {
        self.any_length = true;
        self
    }

    /// Sets the element type: i32 for the indices of an embedding, u8 for raw images.
    #[must_use]
    pub const fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = dtype;
        self
    }

    /// The dims of an example.
    #[must_use]
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// The name, if it was given one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Sets the name; `input`, `input_1` and so on by default.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }
}

impl<const N: usize> From<[usize; N]> for Input {
    fn from(dims: [usize; N]) -> Self {
        Self::new(dims)
    }
}

impl From<Vec<usize>> for Input {
    fn from(dims: Vec<usize>) -> Self {
        Self::new(dims)
    }
}

impl From<&[usize]> for Input {
    fn from(dims: &[usize]) -> Self {
        Self::new(dims)
    }
}

/// A model input whose name is settled.
#[derive(Clone, Debug)]
pub(super) struct NamedInput {
    pub(super) name: String,
    pub(super) shape: Shape,
    /// Whether the first dim of an example may be another.
    pub(super) any_length: bool,
}

impl NamedInput {
    /// Whether an example may have these dims.
    pub(super) fn takes(&self, dims: &[usize]) -> bool {
        let own = &self.shape.dims[..];
        match (own, dims) {
            ([_, own @ ..], [length, dims @ ..]) if self.any_length => *length > 0 && own == dims,
            _ => own == dims,
        }
    }
}
