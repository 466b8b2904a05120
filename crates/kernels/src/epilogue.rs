//! What follows a convolution, element by element.

use crate::batch_norm::{Ceiling, relu};
use crate::openmp::ThreadTeam;
use crate::simd::compiled_for_wide_vectors;

/// What is done to each element of a convolution's result before it is stored.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Epilogue<'a> {
    Identity,
    /// A ReLU with its ceiling.
    Relu(Ceiling),
    /// 0 where the elements of this array, which has the result's length, are not positive.
    SelectPositive(&'a [f32]),
}

/// Elements of one task of a thread.
const CHUNK: usize = 1 << 14;

impl Epilogue<'_> {
    /// Applies it to a whole result, in a pass of its own.
    ///
    /// # Panics
    /// The array to select by has another length: a bug of the caller.
    pub(crate) fn apply(self, result: &mut [f32], team: &ThreadTeam) {
        match self {
            Epilogue::Identity => {}
            Epilogue::Relu(ceiling) => {
                team.for_each(result.chunks_mut(CHUNK), |chunk| clip(chunk, ceiling));
            }
            Epilogue::SelectPositive(by) => {
                assert_eq!(by.len(), result.len());
                let chunks = result.chunks_mut(CHUNK).zip(by.chunks(CHUNK));
                team.for_each(chunks, |(chunk, by)| select(chunk, by));
            }
        }
    }

    /// Applies it to the elements of a result from a position on, while they are in the caches.
    ///
    /// # Panics
    /// The array to select by ends before they do: a bug of the caller.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        allow(dead_code, reason = "only products for its vectors use it")
    )]
    pub(crate) fn apply_from(self, position: usize, values: &mut [f32]) {
        match self {
            Epilogue::Identity => {}
            Epilogue::Relu(ceiling) => clip(values, ceiling),
            Epilogue::SelectPositive(by) => select(values, &by[position..][..values.len()]),
        }
    }
}

compiled_for_wide_vectors! {
    fn clip(values: &mut [f32], ceiling: Ceiling) {
        for value in values {
            *value = relu(*value, ceiling);
        }
    }
}

compiled_for_wide_vectors! {
    fn select(values: &mut [f32], by: &[f32]) {
        for (value, &by) in values.iter_mut().zip(by) {
            *value = if by > 0.0 { *value } else { 0.0 };
        }
    }
}
