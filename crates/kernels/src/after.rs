//! What follows a convolution, element by element.

use crate::norm::{Ceiling, relu};
use crate::team::{Team, with_wide_vectors};

/// What becomes of a result.
#[derive(Debug, Clone, Copy)]
pub(crate) enum After<'a> {
    Nothing,
    /// A ReLU, and where it ends.
    Ramp(Ceiling),
    /// 0 where these, as many as the result has, are not positive.
    Where(&'a [f32]),
}

/// Elements that a thread takes at once.
const PART: usize = 1 << 14;

impl After<'_> {
    /// Does it to a whole result, in a pass of its own.
    ///
    /// # Panics
    /// There are not as many numbers to select by: a bug of the caller.
    pub(crate) fn apply(self, result: &mut [f32], team: &Team) {
        match self {
            After::Nothing => {}
            After::Ramp(ceiling) => {
                team.each(result.chunks_mut(PART), |part| clip(part, ceiling));
            }
            After::Where(by) => {
                assert_eq!(by.len(), result.len());
                let parts = result.chunks_mut(PART).zip(by.chunks(PART));
                team.each(parts, |(part, by)| select(part, by));
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
