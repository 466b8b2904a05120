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
    /// An array of the result's length is added, then come the ReLU and its ceiling, where there is one.
    Add(&'a [f32], Option<Ceiling>),
    /// 0 where the elements of this array, which has the result's length, are not positive.
    SelectPositive(&'a [f32]),
}

/// Elements of one task of a thread.
const CHUNK: usize = 1 << 14;

impl Epilogue<'_> {
    /// Applies it to a whole result, in a pass of its own.
    ///
    /// # Panics
    /// Its array has another length: a bug of the caller.
    pub(crate) fn apply(self, result: &mut [f32], team: &ThreadTeam) {
        assert!(self.fits(result.len()));
        if !matches!(self, Epilogue::Identity) {
            let chunks = result.chunks_mut(CHUNK).enumerate();
            team.for_each(chunks, |(index, chunk)| {
                self.apply_from(index * CHUNK, chunk);
            });
        }
    }

    /// Whether its array, where it has one, has this length.
    pub(crate) fn fits(self, len: usize) -> bool {
        match self {
            Epilogue::Identity | Epilogue::Relu(_) => true,
            Epilogue::Add(array, _) | Epilogue::SelectPositive(array) => array.len() == len,
        }
    }

    /// Applies it to the elements of a result from a position on, while they are in the caches.
    ///
    /// # Panics
    /// Its array ends before they do: a bug of the caller.
    pub(crate) fn apply_from(self, position: usize, values: &mut [f32]) {
        match self {
            Epilogue::Identity => {}
            Epilogue::Relu(ceiling) => clip(values, ceiling),
            Epilogue::Add(array, ceiling) => {
                let array = &array[position..][..values.len()];
                match ceiling {
                    Some(ceiling) => add_and_clip(values, array, ceiling),
                    None => add(values, array),
                }
            }
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
    fn add(values: &mut [f32], array: &[f32]) {
        for (value, &other) in values.iter_mut().zip(array) {
            *value += other;
        }
    }
}

compiled_for_wide_vectors! {
    fn add_and_clip(values: &mut [f32], array: &[f32], ceiling: Ceiling) {
        for (value, &other) in values.iter_mut().zip(array) {
            *value = relu(*value + other, ceiling);
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
