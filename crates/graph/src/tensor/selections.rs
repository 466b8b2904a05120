//! Methods that select and put together parts of tensors.

use super::Tensor;
use crate::DType;

/// Parts.
impl Tensor {
    /// The `k` largest elements along the last dim, from the largest on, and their i32 places, `[.., k]` each; of equal ones the first.
    ///
    /// Of the elements alone there is a gradient. NaN is greater than all. Takes time proportional to `k`: for the experts of a mixture, not for
    /// a sort.
    #[must_use]
    #[track_caller]
    pub fn top_k(&self, k: usize) -> (Self, Self) {
        let last = self.rank().saturating_sub(1);
        let Some(size) = self.size_of(last, "top_k") else {
            return (self.clone(), self.clone());
        };
        if !self.dtype().is_float() || !(1..=size).contains(&k) {
            let message = format!(
                "expected floats and 1 to {size} of them, got {k} of {}",
                self.shape()
            );
            self.graph.fail("top_k", message);
            return (self.clone(), self.clone());
        }
        let x = self.stop_gradient().computed_once();
        let places = self.graph.iota(x.shape().with_dtype(DType::I32), last);
        let mut taken = places.zeros_like();
        let mut found = Vec::with_capacity(k);
        for _ in 0..k {
            let is_taken = taken.not_equal(&taken.like(0.0));
            let left = is_taken.select(&x.like(f64::NEG_INFINITY), &x);
            let best = left.max(&[last]).keep_dims(&[last]);
            // No number equals a NaN, which is the largest then; minus infinity is also what was taken.
            let is_best = left.equal(&best).or(&left.not_equal(&left));
            let none = places.like(size as f64);
            let best_places = is_best.select(&places, &none);
            let place = is_taken.select(&none, &best_places).min(&[last]);
            let here = place.one_hot(size, DType::I32);
            let is_place = here.not_equal(&here.like(0.0));
            let value = is_place.select(self, &self.zeros_like()).sum(&[last]);
            taken = &taken + &here;
            found.push((value, place));
        }
        let values: Vec<&Self> = found.iter().map(|(value, _)| value).collect();
        let places: Vec<&Self> = found.iter().map(|(_, place)| place).collect();
        (Self::stack(&values, last), Self::stack(&places, last))
    }

    /// Tensors of one shape next to each other along a new dim.
    ///
    /// # Panics
    /// When `parts` is empty: a bug of the caller.
    #[must_use]
    #[track_caller]
    pub fn stack(parts: &[&Self], dim: usize) -> Self {
        let parts: Vec<Self> = parts.iter().map(|part| part.keep_dims(&[dim])).collect();
        Self::concat(&parts.iter().collect::<Vec<_>>(), dim)
    }

    /// The elements moved by a number of places along `dim`; what leaves at the end comes in at the beginning.
    #[must_use]
    #[track_caller]
    pub fn roll(&self, by: i64, dim: usize) -> Self {
        let Some(size) = self.size_of(dim, "roll") else {
            return self.clone();
        };
        let first = size - by.rem_euclid(size as i64) as usize;
        if first == size {
            return self.clone();
        }
        let [end, start] = [
            self.slice_dim(dim, first, size),
            self.slice_dim(dim, 0, first),
        ];
        Self::concat(&[&end, &start], dim)
    }

    /// The mean of the squares of the distances from the mean over these dims, in f32 for 16-bit floats.
    #[must_use]
    #[track_caller]
    pub fn variance(&self, dims: &[usize]) -> Self {
        if !self.dtype().is_float() {
            let message = format!("expected floats, got {}", self.shape());
            self.graph.fail("variance", message);
            return self.clone();
        }
        let x = self.convert(self.wide());
        let apart = &x - x.mean(dims).keep_dims(dims);
        apart.square().mean(dims).convert(self.dtype())
    }

    /// The size of a dim, above 0; a mistake of the graph where there is none.
    #[track_caller]
    fn size_of(&self, dim: usize, what: &'static str) -> Option<usize> {
        let size = self.dims().get(dim).copied().filter(|&size| size > 0);
        if size.is_none() {
            let message = format!(
                "expected a dim with elements, got {dim} of {}",
                self.shape()
            );
            self.graph.fail(what, message);
        }
        size
    }
}
