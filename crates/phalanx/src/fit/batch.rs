//! Batches from the host: checked against the model, padded, put on the device.

use phalanx_graph::{HostTensor, Shape};
use phalanx_pjrt::Buffer;

use super::step::{BatchShape, Setup};
use crate::data::Batch;
use crate::engine::Engine;
use crate::losses::Loss;
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
        let columns = batch.y.iter().map(|y| ("y", y));
        let columns = columns.chain(batch.weight.iter().map(|weight| ("weight", weight)));
        for (name, tensor) in columns {
            if tensor.dims().first() != Some(&rows) {
                return Err(Error::user(format!(
                    "a batch has {rows} rows in x, but {name} is {}; give one for each example",
                    tensor.shape()
                )));
            }
        }
        Ok(Self {
            y: shapes(&batch.y),
            weighted: batch.weight.is_some(),
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
            weighted: false,
        })
    }
}

/// Refuses classes that the model has no output for: the loss would be NaN and say nothing of why.
pub(super) fn check_labels(setup: &Setup, batch: &Batch) -> Result<()> {
    for term in &setup.losses.terms {
        let Loss::SparseCategoricalCrossentropy(_) = term.loss else {
            continue;
        };
        let classes = setup.model.outputs()[term.output].dims.last().copied();
        let position = setup
            .targets
            .iter()
            .position(|&target| target == term.output);
        let (Some(classes), Some(y)) = (classes, position.and_then(|p| batch.y.get(p))) else {
            continue;
        };
        let Some(labels) = y.values::<i32>() else {
            continue;
        };
        let bad = labels
            .iter()
            .position(|&label| label < 0 || label as usize >= classes);
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

/// The batch with zero rows appended up to `rows`.
pub(super) fn padded(batch: &Batch, rows: usize) -> Batch {
    let pad = |tensors: &[HostTensor]| tensors.iter().map(|t| t.pad_rows(rows)).collect();
    Batch {
        x: pad(&batch.x),
        y: pad(&batch.y),
        weight: batch.weight.as_ref().map(|weight| weight.pad_rows(rows)),
        first: batch.first,
    }
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
