//! What follows a convolution, element by element.

use crate::norm::{Ceiling, relu};
use crate::team::{Team, with_wide_vectors};

/// What is done to each element of a convolution's result before it is stored.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Epilogue<'a> {
    Identity,
    /// A ReLU, and where it ends.
    Relu(Ceiling),
    /// 0 where these, as many as the result has, are not positive.
    SelectPositive(&'a [f32]),
}

/// Elements of one task of a thread.
const CHUNK: usize = 1 << 14;

impl Epilogue<'_> {
    /// Applies it to a whole result, in a pass of its own.
    ///
    /// # Panics
    /// There are not as many numbers to select by: a bug of the caller.
    pub(crate) fn apply(self, result: &mut [f32], team: &Team) {
        match self {
            Epilogue::Identity => {}
            Epilogue::Relu(ceiling) => {
                team.each(result.chunks_mut(CHUNK), |chunk| clip(chunk, ceiling));
            }
            Epilogue::SelectPositive(by) => {
                assert_eq!(by.len(), result.len());
                let chunks = result.chunks_mut(CHUNK).zip(by.chunks(CHUNK));
                team.each(chunks, |(chunk, by)| select(chunk, by));
            }
        }
    }
}

with_wide_vectors! {
    fn clip(values: &mut [f32], ceiling: Ceiling) {
        for value in values {
            *value = relu(*value, ceiling);
        }
    }
}

with_wide_vectors! {
    fn select(values: &mut [f32], by: &[f32]) {
        for (value, &by) in values.iter_mut().zip(by) {
            *value = if by > 0.0 { *value } else { 0.0 };
        }
    }
}
