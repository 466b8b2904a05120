//! Batches from the host: checked against the model, padded, put on the device.

use phalanx_graph::{AlignedBytes, DType, HostTensor, Shape};
use phalanx_pjrt::Buffer;

use super::step::{BatchShape, Setup};
use crate::data::Batch;
use crate::engine::Engine;
use crate::{Error, Result};

impl BatchShape {
    /// The shapes of a batch that trains or tests a model.
    ///
    /// # Errors
    /// When inputs or targets are too few or too many, have other dims than the model's, or differ in their rows.
    pub(super) fn of(setup: &Setup, batch: &Batch) -> Result<Self> {
        let inputs = Self::of_inputs(setup, &batch.x)?;
        let rows = batch.rows();
        if batch.y.len() != setup.targets.len() {
            return Err(Error::user(format!(
                "a batch has {} targets (y), but {} outputs of the model have a loss or a metric; give one for each",
                batch.y.len(),
                setup.targets.len()
            )));
        }
        if let Some(y) = batch.y.iter().find(|y| y.dims().first() != Some(&rows)) {
            return Err(Error::user(format!(
                "a batch has {rows} rows in x, but y is {}; give one for each example",
                y.shape()
            )));
        }
        if let Some(weight) = &batch.weight
            && (weight.dtype() != DType::F32 || weight.dims().first() != Some(&rows))
        {
            return Err(Error::user(format!(
                "the weights of a batch of {rows} rows are {}, expected f32[{rows}]; give a number for each example, or for each of its steps",
                weight.shape()
            )));
        }
        Ok(Self {
            y: shapes(&batch.y),
            weight: batch.weight.as_ref().map(|weight| weight.shape().clone()),
            ..inputs
        })
    }

    /// The shapes of a batch that is predicted.
    pub(super) fn of_inputs(setup: &Setup, x: &[HostTensor]) -> Result<Self> {
        let model = &setup.model;
        let expected = model.inputs();
        if x.len() != expected.len() {
            return Err(Error::user(format!(
                "a batch has {} inputs (x), but the model `{}` takes {}",
                x.len(),
                model.name(),
                expected.len()
            )));
        }
        let rows = x.first().and_then(|x| x.dims().first().copied());
        for (x, (name, shape)) in x.iter().zip(expected) {
            let given = x.dims().split_first();
            if given.is_none_or(|(&given, dims)| Some(given) != rows || dims != shape.dims) {
                return Err(Error::user(format!(
                    "input `{name}` of the model takes examples of dims {:?} (and as many rows as the other inputs), but the batch has {}; reshape the data, or change the model's input",
                    shape.dims,
                    x.shape()
                )));
            }
        }
        if rows == Some(0) {
            return Err(Error::user("a batch has no rows; leave it out"));
        }
        Ok(Self {
            x: shapes(x),
            y: Vec::new(),
            weight: None,
        })
    }
}

/// Refuses classes that the model has no output for: the loss would be NaN and say nothing of why.
pub(super) fn check_labels(setup: &Setup, batch: &Batch) -> Result<()> {
    for &(target, classes) in &setup.classes {
        let Some(y) = batch.y.get(target) else {
            continue;
        };
        let labels = y.to_f64();
        let bad = labels
            .iter()
            .position(|&label| !(label > -1.0 && label < classes as f64));
        if let Some(at) = bad {
            let row = batch.first + (at / (labels.len() / batch.rows()).max(1)) as u64;
            return Err(Error::user(format!(
                "the class {} of example {row} of the epoch is not among the {classes} of the model's output, 0 to {}; correct the labels, or give the last layer more units",
                labels[at],
                classes - 1
            )));
        }
    }
    Ok(())
}

/// The batch filled up to `rows` rows, which weigh nothing.
pub(super) fn padded(batch: &Batch, rows: usize) -> Batch {
    let fill = |tensors: &[HostTensor]| tensors.iter().map(|t| filled(t, rows)).collect();
    Batch {
        x: fill(&batch.x),
        y: fill(&batch.y),
        weight: batch.weight.as_ref().map(|weight| weight.pad_rows(rows)),
        first: batch.first,
    }
}

/// The tensor with its last row repeated up to `rows` rows: a row of zeros may be none that a model can take.
pub(super) fn filled(tensor: &HostTensor, rows: usize) -> HostTensor {
    let (given, row) = (tensor.rows(), tensor.row_bytes());
    if given >= rows {
        return tensor.clone();
    }
    let mut shape = tensor.shape().clone();
    shape.dims[0] = rows;
    let mut bytes = AlignedBytes::zeroed(shape.byte_len());
    let (copied, repeated) = bytes.as_mut_slice().split_at_mut(given * row);
    copied.copy_from_slice(tensor.bytes());
    for slot in repeated.chunks_exact_mut(row.max(1)) {
        slot.copy_from_slice(&tensor.bytes()[(given - 1) * row..]);
    }
    HostTensor::from_aligned(shape, bytes)
}

/// Copies the tensors of a batch to a device: x, y, weight.
pub(super) fn put(engine: &Engine, batch: &Batch) -> Result<Vec<Buffer>> {
    let tensors = batch.x.iter().chain(&batch.y).chain(&batch.weight);
    tensors.map(|tensor| engine.put(0, tensor)).collect()
}

fn shapes(tensors: &[HostTensor]) -> Vec<Shape> {
    tensors
        .iter()
        .map(|tensor| tensor.shape().clone())
        .collect()
}
