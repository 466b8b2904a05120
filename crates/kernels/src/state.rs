//! What runs operations: those made so far, by key, and what they need.

use std::collections::HashMap;

use crate::convolution::Key;
use crate::epilogue::Epilogue;
use crate::executor::DenormalsFlushed;
use crate::onednn::{OneDnn, Operation, Refused, Scratch};
use crate::sys::Api;
use crate::team::Team;
#[cfg(target_arch = "x86_64")]
use crate::{kernel_gradient, winograd};

/// Operations kept at most; programs have hundreds, so that more are of programs that are gone.
const MOST_OPERATIONS: usize = 4096;

/// What a lane owns. The operations come first: they are dropped before what they were made with.
pub(crate) struct State {
    operations: HashMap<Key, Operation>,
    pub(crate) scratch: Scratch,
    pub(crate) team: Team,
    onednn: OneDnn,
}

// SAFETY: oneDNN's objects may be used from any thread, by one at a time; what operations work in is the state's own.
unsafe impl Send for State {}

/// Most arguments of an operation.
const MOST_ARGUMENTS: usize = 8;

impl State {
    /// The state for operations of so many threads.
    ///
    /// # Errors
    /// oneDNN's own.
    pub(crate) fn new(api: &'static Api, threads: usize) -> Result<Self, Refused> {
        Ok(Self {
            operations: HashMap::new(),
            scratch: Scratch::default(),
            team: Team::new(api, threads),
            onednn: OneDnn::start(api)?,
        })
    }

    /// Makes the calling thread compute as XLA's do, with the threads of this state and no others.
    pub(crate) fn enter(&self) -> DenormalsFlushed {
        self.team.enter();
        DenormalsFlushed::new()
    }

    /// The operations made so far, in words.
    pub(crate) fn describe(&self) -> impl Iterator<Item = String> {
        let operations = self.operations.iter();
        operations.map(|(key, operation)| format!("{key:?}: {}", operation.describe()))
    }

    /// Runs the operation of a key, and what follows it: only for results of f32.
    ///
    /// # Errors
    /// oneDNN's own.
    pub(crate) fn run(
        &mut self,
        key: Key,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
        epilogue: Epilogue<'_>,
    ) -> Result<(), Refused> {
        let mut data = [(std::ptr::null_mut(), 0); MOST_ARGUMENTS];
        let count = inputs.len() + outputs.len();
        let (first, rest) = data.split_at_mut(inputs.len());
        for (slot, input) in first.iter_mut().zip(inputs) {
            *slot = (input.as_ptr().cast_mut(), input.len());
        }
        for (slot, output) in rest.iter_mut().zip(&mut *outputs) {
            *slot = (output.as_mut_ptr(), output.len());
        }
        #[cfg(target_arch = "x86_64")]
        if let [result] = &mut *outputs
            && winograd::suits(&key)
        {
            let operands: Vec<&[f32]> = inputs.iter().map(|input| floats(input)).collect();
            let (result, team) = (floats_mut(result), &self.team);
            winograd::run(&key, &operands, result, epilogue, team, &mut self.scratch);
            return Ok(());
        }
        #[cfg(target_arch = "x86_64")]
        if let ([x, dy], [dw]) = (inputs, &mut *outputs)
            && kernel_gradient::suits(&key, self.team.threads())
        {
            let (x, dy, dw) = (floats(x), floats(dy), floats_mut(dw));
            kernel_gradient::run(&key, x, dy, dw, &self.team, &mut self.scratch);
            return Ok(());
        }
        if !self.operations.contains_key(&key) {
            if self.operations.len() >= MOST_OPERATIONS {
                self.operations.clear();
            }
            self.operations.insert(key, key.operation(&self.onednn)?);
        }
        // SAFETY: the pointers are those of the slices, which are borrowed until this returns; the operation writes only to outputs.
        unsafe { self.operations[&key].run(&self.onednn, &data[..count], &mut self.scratch)? };
        match (epilogue, outputs) {
            (Epilogue::Identity, _) => {}
            (_, [result]) => epilogue.apply(floats_mut(result), &self.team),
            (_, _) => unreachable!("convolutions have one result"),
        }
        Ok(())
    }
}

/// # Panics
/// The bytes are not aligned, which those of XLA are.
#[cfg(target_arch = "x86_64")]
fn floats(bytes: &[u8]) -> &[f32] {
    // SAFETY: every pattern is a number.
    let (before, floats, after) = unsafe { bytes.align_to() };
    assert!(before.is_empty() && after.is_empty());
    floats
}

/// As [`floats`].
fn floats_mut(bytes: &mut [u8]) -> &mut [f32] {
    // SAFETY: every pattern is a number, and its bytes are bytes.
    let (before, floats, after) = unsafe { bytes.align_to_mut() };
    assert!(before.is_empty() && after.is_empty());
    floats
}
