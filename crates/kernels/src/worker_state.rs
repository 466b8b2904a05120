//! The state of a worker: the operations made so far, and what they need.

use std::collections::HashMap;

#[cfg(target_arch = "x86_64")]
use phalanx_pjrt::Bf16;
use phalanx_pjrt::Element;

use crate::bf16_matmul::MatmulDesc;
#[cfg(target_arch = "x86_64")]
use crate::convolution::Algorithm;
use crate::convolution::ConvolutionDesc;
use crate::epilogue::Epilogue;
use crate::executor::FlushDenormals;
#[cfg(target_arch = "x86_64")]
use crate::onednn::DataType;
use crate::onednn::{OneDnn, OneDnnError};
use crate::openmp::ThreadTeam;
use crate::operation::Operation;
use crate::scratchpad::Scratchpad;
use crate::sys::Api;
#[cfg(target_arch = "x86_64")]
use crate::{depthwise, pointwise, simd_element::SimdElement, winograd};

/// Most operations that are kept. Programs have hundreds; more of them belong to programs that are gone.
const MAX_OPERATIONS: usize = 4096;

/// What an operation is made for.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum OperationKey {
    Convolution(ConvolutionDesc),
    Matmul(MatmulDesc),
}

impl std::fmt::Debug for OperationKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Convolution(key) => key.fmt(f),
            Self::Matmul(key) => key.fmt(f),
        }
    }
}

/// What a worker owns. The operations come first: they are dropped before the engine that they were made with.
pub(crate) struct WorkerState {
    operations: HashMap<OperationKey, Operation>,
    pub(crate) scratch: Scratchpad,
    pub(crate) team: ThreadTeam,
    onednn: OneDnn,
}

// SAFETY: oneDNN's objects may be used from any thread, by one at a time; what operations work in is the state's own.
unsafe impl Send for WorkerState {}

/// Most arguments of an operation.
const MAX_ARGUMENTS: usize = 8;

impl WorkerState {
    /// The state for operations of `threads` threads.
    ///
    /// # Errors
    /// oneDNN's own.
    pub(crate) fn new(api: &'static Api, threads: usize) -> Result<Self, OneDnnError> {
        Ok(Self {
            operations: HashMap::new(),
            scratch: Scratchpad::default(),
            team: ThreadTeam::new(api, threads),
            onednn: OneDnn::start(api)?,
        })
    }

    /// Makes the calling thread compute as XLA's threads do, with this state's number of OpenMP threads.
    pub(crate) fn enter(&self) -> FlushDenormals {
        self.team.bind_to_current_thread();
        FlushDenormals::new()
    }

    /// The operations made so far, in words.
    pub(crate) fn describe(&self) -> impl Iterator<Item = String> {
        let operations = self.operations.iter();
        operations.map(|(key, operation)| format!("{key:?}: {}", operation.describe()))
    }

    /// Runs an operation and its epilogue, which is for f32 results only.
    ///
    /// # Errors
    /// oneDNN's own.
    pub(crate) fn run(
        &mut self,
        key: ConvolutionDesc,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
        epilogue: Epilogue<'_>,
    ) -> Result<(), OneDnnError> {
        let algorithm = key.algorithm();
        #[cfg(target_arch = "x86_64")]
        if let ([result], Algorithm::Tiles | Algorithm::Product) = (&mut *outputs, algorithm) {
            let run = match key.elements() {
                [_, _, DataType::Bf16] => Self::run_ours::<Bf16, Bf16>,
                [DataType::Bf16, ..] => Self::run_ours::<Bf16, f32>,
                _ => Self::run_ours::<f32, f32>,
            };
            run(self, (key, algorithm), inputs, result, epilogue);
            return Ok(());
        }
        #[cfg(target_arch = "x86_64")]
        if let ([result], Algorithm::Depthwise) = (&mut *outputs, algorithm) {
            let operands = [0, 1].map(|index| elements(inputs[index]));
            let (result, scratch) = (elements_mut(result), &mut self.scratch);
            depthwise::kernel_gradient(&key, operands, result, &self.team, scratch);
            return Ok(());
        }
        let made = |onednn: &OneDnn| key.operation(algorithm, onednn);
        self.run_operation(OperationKey::Convolution(key), made, inputs, outputs)?;
        match (epilogue, outputs) {
            (Epilogue::Identity, _) => {}
            (_, [result]) => epilogue.apply(elements_mut(result), &self.team),
            (_, _) => unreachable!("convolutions have one result"),
        }
        Ok(())
    }

    /// Runs a convolution by our own loops, whose operands are of elements `T` and whose result is of `R`.
    #[cfg(target_arch = "x86_64")]
    fn run_ours<T: SimdElement, R: SimdElement>(
        &mut self,
        (key, algorithm): (ConvolutionDesc, Algorithm),
        inputs: &[&[u8]],
        result: &mut [u8],
        epilogue: Epilogue<'_>,
    ) {
        let operands = [0, 1].map(|index| elements(inputs[index]));
        let bias = inputs.get(2).map(|bias| elements::<T>(bias).iter());
        let bias: Option<Vec<f32>> = bias.map(|bias| bias.map(|number| number.wide()).collect());
        let ends = (bias.as_deref(), epilogue);
        let (result, team, scratch) = (elements_mut(result), &self.team, &mut self.scratch);
        if algorithm == Algorithm::Tiles {
            winograd::run::<T, R>(&key, operands, ends, result, team, scratch);
        } else {
            pointwise::run::<T, R>(&key, operands, ends, result, team, scratch);
        }
    }

    /// Multiplies matrices.
    ///
    /// # Errors
    /// oneDNN's own.
    pub(crate) fn run_matmul(
        &mut self,
        desc: MatmulDesc,
        inputs: [&[u8]; 2],
        output: &mut [u8],
    ) -> Result<(), OneDnnError> {
        let made = |onednn: &OneDnn| desc.operation(onednn);
        self.run_operation(OperationKey::Matmul(desc), made, &inputs, &mut [output])
    }

    /// Runs the operation of a key, which is made when there is none.
    fn run_operation(
        &mut self,
        key: OperationKey,
        made: impl FnOnce(&OneDnn) -> Result<Operation, OneDnnError>,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
    ) -> Result<(), OneDnnError> {
        let mut data = [(std::ptr::null_mut(), 0); MAX_ARGUMENTS];
        let count = inputs.len() + outputs.len();
        let (first, rest) = data.split_at_mut(inputs.len());
        for (slot, input) in first.iter_mut().zip(inputs) {
            *slot = (input.as_ptr().cast_mut(), input.len());
        }
        for (slot, output) in rest.iter_mut().zip(&mut *outputs) {
            *slot = (output.as_mut_ptr(), output.len());
        }
        if !self.operations.contains_key(&key) {
            if self.operations.len() >= MAX_OPERATIONS {
                self.operations.clear();
            }
            self.operations.insert(key, made(&self.onednn)?);
        }
        // SAFETY: the pointers are those of the slices, which are borrowed until this returns; the operation writes only to outputs.
        unsafe {
            let (team, data) = (&self.team, &data[..count]);
            self.operations[&key].run(&self.onednn, team, data, &mut self.scratch)
        }
    }
}

/// # Panics
/// The bytes are not aligned; XLA's buffers always are.
#[cfg(target_arch = "x86_64")]
fn elements<T: Element>(bytes: &[u8]) -> &[T] {
    // SAFETY: every pattern is a number.
    let (before, elements, after) = unsafe { bytes.align_to() };
    assert!(before.is_empty() && after.is_empty());
    elements
}

/// As [`elements`].
fn elements_mut<T: Element>(bytes: &mut [u8]) -> &mut [T] {
    // SAFETY: every pattern is a number, and its bytes are bytes.
    let (before, elements, after) = unsafe { bytes.align_to_mut() };
    assert!(before.is_empty() && after.is_empty());
    elements
}
