//! Inputs of models.

use phalanx_graph::{DType, Shape};

/// An input of a model: a name, the dims of one example, and the element type.
#[derive(Clone, Debug, PartialEq)]
pub struct Input {
    pub(super) name: Option<String>,
    pub(super) dims: Vec<usize>,
    pub(super) dtype: DType,
    /// How many of the first dims may be others.
    pub(super) open: usize,
}

impl Input {
    /// An f32 input whose examples have these dims (the batch is not among them).
    #[must_use]
    pub fn new(dims: impl Into<Vec<usize>>) -> Self {
        Self {
            name: None,
            dims: dims.into(),
            dtype: DType::F32,
            open: 0,
        }
    }

    /// Examples of other lengths too: their first dim may be any, and the one given is what the model is built and shown with, best
    /// the longest. A batch has one length ([`Batches::pad`](crate::data::Batches::pad)), and a program is compiled for each.
    ///
    /// Keras' `Input(shape=(None, ..))`, but for the length that is shown. The layers must have the same variables for every length,
    /// and training is on one device or on replicas of one process.
    #[must_use]
    pub const fn any_length(self) -> Self {
        self.open_dims(1)
    }

    /// Examples whose first `count` dims may be others than the ones given: 2 for images of any height and width. What
    /// [`any_length`](Self::any_length) says of a length holds for each of them.
    ///
    /// Keras' `Input(shape=(None, None, ..))`, but for the dims that are shown.
    #[must_use]
    pub const fn open_dims(mut self, count: usize) -> Self {
        self.open = count;
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
    /// How many of the first dims of an example may be others.
    pub(super) open: usize,
}

impl NamedInput {
    /// Whether an example may have these dims.
    pub(super) fn takes(&self, dims: &[usize]) -> bool {
        let own = &self.shape.dims;
        let open = self.open.min(own.len());
        own.len() == dims.len() && own[open..] == dims[open..] && !dims[..open].contains(&0)
    }

    /// What examples have any of, in words: `any length` or `any size`; nothing where all dims are fixed.
    pub(super) const fn any(&self) -> Option<&'static str> {
        match self.open {
            0 => None,
            1 => Some("any length"),
            _ => Some("any size"),
        }
    }
}
