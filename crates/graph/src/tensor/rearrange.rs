//! Methods that give the same elements other places.

use super::Tensor;
use crate::op::{Op, PadDim, SliceDim};
use crate::{DType, Shape};

/// Rearrangement.
impl Tensor {
    /// The same elements under other dims.
    #[must_use]
    #[track_caller]
    pub fn reshape(&self, dims: &[usize]) -> Self {
        if self.dims() == dims {
            return self.clone();
        }
        self.graph.push(Op::Reshape(dims.to_vec()), &[self])
    }

    /// The same values as another tensor of the graph, which [`Tensor::value`] tells apart; the program has nothing of it.
    #[must_use]
    #[track_caller]
    pub fn copied(&self) -> Self {
        self.graph.push(Op::Reshape(self.dims()), &[self])
    }

    /// Dim `i` of the result is dim `perm[i]` of this.
    #[must_use]
    #[track_caller]
    pub fn transpose(&self, perm: &[usize]) -> Self {
        self.graph.push(Op::Transpose(perm.to_vec()), &[self])
    }

    /// Repeats this tensor to `dims`, its dims aligned at the last, as NumPy does.
    #[must_use]
    #[track_caller]
    pub fn broadcast_to(&self, dims: &[usize]) -> Self {
        let own = self.dims();
        if own == dims {
            return self.clone();
        }
        let missing = dims.len().saturating_sub(own.len());
        self.broadcast_in(dims, &(missing..missing + own.len()).collect::<Vec<_>>())
    }

    /// Repeats this tensor to `dims`, its dim `i` becoming dim `map[i]`.
    #[must_use]
    #[track_caller]
    pub fn broadcast_in(&self, dims: &[usize], map: &[usize]) -> Self {
        let (dims, map) = (dims.to_vec(), map.to_vec());
        self.graph.push(Op::Broadcast { dims, map }, &[self])
    }

    /// Reversed along dims.
    #[must_use]
    #[track_caller]
    pub fn reverse(&self, dims: &[usize]) -> Self {
        self.graph.push(Op::Reverse(dims.to_vec()), &[self])
    }

    /// Padded with a number; negative edges cut.
    #[must_use]
    #[track_caller]
    pub fn pad(&self, pads: &[PadDim], value: f64) -> Self {
        let value = self.like(value);
        self.graph.push(Op::Pad(pads.to_vec()), &[self, &value])
    }

    /// Elements `start..limit` by `stride` of each dim.
    #[must_use]
    #[track_caller]
    pub fn slice(&self, slices: &[SliceDim]) -> Self {
        self.graph.push(Op::Slice(slices.to_vec()), &[self])
    }

    /// Elements `start..limit` of one dim.
    #[must_use]
    #[track_caller]
    pub fn slice_dim(&self, dim: usize, start: usize, limit: usize) -> Self {
        let whole = |&size: &usize| SliceDim {
            start: 0,
            limit: size,
            stride: 1,
        };
        let _ = self.dim(dim);
        let mut slices: Vec<SliceDim> = self.dims().iter().map(whole).collect();
        if let Some(slice) = slices.get_mut(dim) {
            (slice.start, slice.limit) = (start, limit);
        }
        self.slice(&slices)
    }

    /// A slice of `sizes` at i32 scalar `starts`, clamped so that it fits.
    #[must_use]
    #[track_caller]
    pub fn dynamic_slice(&self, starts: &[&Self], sizes: &[usize]) -> Self {
        let inputs = [&[self], starts].concat();
        self.graph.push(Op::DynamicSlice(sizes.to_vec()), &inputs)
    }

    /// This tensor with `update` written at i32 scalar `starts`, clamped so that it fits.
    #[must_use]
    #[track_caller]
    pub fn dynamic_update_slice(&self, update: &Self, starts: &[&Self]) -> Self {
        let inputs = [&[self, update], starts].concat();
        self.graph.push(Op::DynamicUpdateSlice, &inputs)
    }

    /// Tensors joined along `dim`.
    ///
    /// # Panics
    /// When `parts` is empty: a bug of the caller.
    #[must_use]
    #[track_caller]
    pub fn concat(parts: &[&Self], dim: usize) -> Self {
        parts[0].graph.push(Op::Concat(dim), parts)
    }

    /// Rows of this table picked along `dim` by i32 indices of any rank; out of range clamps.
    #[must_use]
    #[track_caller]
    pub fn gather(&self, indices: &Self, dim: usize) -> Self {
        self.graph.push(Op::Gather { dim }, &[self, indices])
    }

    /// This tensor with `updates` added at i32 indices along `dim`; out of range is dropped.
    #[must_use]
    #[track_caller]
    pub fn scatter_add(&self, indices: &Self, updates: &Self, dim: usize) -> Self {
        let inputs = [self, indices, updates];
        self.graph.push(Op::ScatterAdd { dim }, &inputs)
    }

    /// This tensor with rows along `dim` replaced by `updates` at i32 indices; out of range is dropped. An index that is in range
    /// may be there only once: which of two would win is not defined.
    #[must_use]
    #[track_caller]
    pub fn scatter_set(&self, indices: &Self, updates: &Self, dim: usize) -> Self {
        let inputs = [self, indices, updates];
        self.graph.push(Op::ScatterSet { dim }, &inputs)
    }

    /// The i32 places of the elements of this integer vector in ascending order; equal elements keep their order.
    #[must_use]
    #[track_caller]
    pub fn argsort(&self) -> Self {
        self.graph.push(Op::ArgSort, &[self])
    }

    /// 1 where the element of a new last dim equals this index, else 0: `[.., classes]`.
    #[must_use]
    #[track_caller]
    pub fn one_hot(&self, classes: usize, dtype: DType) -> Self {
        // In these types not every class has a number.
        let wide = match self.dtype() {
            DType::U8 | DType::Bool => self.convert(DType::I32),
            DType::F16 | DType::Bf16 => self.convert(DType::F32),
            _ => self.clone(),
        };
        let mut dims = wide.dims();
        dims.push(classes);
        let counts = Shape::new(wide.dtype(), dims.clone());
        let counts = self.graph.iota(counts, dims.len() - 1);
        let map: Vec<usize> = (0..dims.len() - 1).collect();
        wide.broadcast_in(&dims, &map).equal(&counts).convert(dtype)
    }
}
