//! Shapes: an element type and the size of each dim.

use std::fmt;

use crate::DType;

/// The element type and dims of a tensor, dims row-major (last varies fastest).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Element type.
    pub dtype: DType,
    /// Size of each dim; empty for a scalar.
    pub dims: Vec<usize>,
}

impl Shape {
    /// A shape of the given element type and dims.
    #[must_use]
    pub fn new(dtype: DType, dims: impl Into<Vec<usize>>) -> Self {
        Self {
            dtype,
            dims: dims.into(),
        }
    }

    /// An f32 shape.
    #[must_use]
    pub fn f32(dims: impl Into<Vec<usize>>) -> Self {
        Self::new(DType::F32, dims)
    }

    /// The shape of a single element.
    #[must_use]
    pub const fn scalar(dtype: DType) -> Self {
        Self {
            dtype,
            dims: Vec::new(),
        }
    }

    /// Number of dims.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// Number of elements; stops at the largest `usize`.
    #[must_use]
    pub fn len(&self) -> usize {
        let product = |count: usize, &dim: &usize| count.saturating_mul(dim);
        self.dims.iter().fold(1, product)
    }

    /// Whether some dim is zero.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Size in bytes of the dense array; stops at the largest `usize`.
    #[must_use]
    pub fn byte_len(&self) -> usize {
        self.len().saturating_mul(self.dtype.size())
    }

    /// Size in bytes, or `None` when it does not fit a `usize`: for shapes read from outside.
    #[must_use]
    pub fn checked_byte_len(&self) -> Option<usize> {
        self.dims
            .iter()
            .try_fold(self.dtype.size(), |size, &dim| size.checked_mul(dim))
    }

    /// The same dims with another element type.
    #[must_use]
    pub fn with_dtype(&self, dtype: DType) -> Self {
        Self::new(dtype, self.dims.clone())
    }

    /// The StableHLO type: `tensor<64x10xf32>`.
    #[must_use]
    pub fn stablehlo(&self) -> String {
        let mut text = String::from("tensor<");
        for dim in &self.dims {
            text.push_str(&dim.to_string());
            text.push('x');
        }
        text.push_str(self.dtype.stablehlo());
        text.push('>');
        text
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.dtype)?;
        for (i, dim) in self.dims.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            write!(f, "{comma}{dim}")?;
        }
        f.write_str("]")
    }
}
