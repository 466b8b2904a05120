//! Batches from the host: checked against the model, padded, put on the device.

use std::cell::LazyCell;

use phalanx_graph::{AlignedBytes, DType, HostTensor, Shape};
use phalanx_pjrt::Buffer;

use super::example_weights::check_weights;
use super::setup::{Setup, StepLayout};
use super::step_program::BatchShape;
use crate::data::Batch;
use crate::losses::Ctc;
use crate::replicas::{BatchPartition, Layout, MeshLayout, Placement};
use crate::{Error, Result};

impl BatchShape {
    /// The shapes of a batch that trains or tests a model.
    ///
    /// # Errors
    /// When inputs or targets are too few or too many, have other dims than the model's, or differ in their rows.
    pub(super) fn of(setup: &Setup, batch: &Batch) -> Result<Self> {
        let inputs = Self::of_inputs(setup, &batch.x)?;
        let rows = batch.rows();
        if batch.y.len() != setup.objective.targets.len() {
            return Err(Error::user(format!(
                "a batch has {} targets (y), but {} outputs of the model have a loss or a metric; give one for each",
                batch.y.len(),
                setup.objective.targets.len()
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
        for (index, (x, (name, shape))) in x.iter().zip(expected).enumerate() {
            let given = x.dims().split_first();
            let fits = |(&given, dims): (&usize, &[usize])| {
                Some(given) == rows && model.takes(index, dims)
            };
            if !given.is_some_and(fits) {
                return Err(Error::user(format!(
                    "input `{name}` of the model takes examples of dims {:?} (and as many rows as the other inputs), but the batch has {}; reshape the data, or change the model's input",
                    shape.dims,
                    x.shape()
                )));
            }
        }
        // In a step of several processes one may have no rows.
        let is_alone = setup.workers == 1 && !matches!(setup.layout, StepLayout::Servers);
        if rows == Some(0) && is_alone {
            return Err(Error::user("a batch has no rows; leave it out"));
        }
        Ok(Self {
            x: shapes(x),
            y: Vec::new(),
            weight: None,
            filled: false,
            sizes: Vec::new(),
        })
    }

    /// The shapes of one replica's part, whose last rows may be padding. With `by_size` the program gets a branch for each
    /// size of a part, where the partition has fixed sizes.
    pub(super) fn part(&self, partition: &BatchPartition, filled: bool, by_size: bool) -> Self {
        let mut part = self.clone();
        part.sizes = if by_size {
            partition.sizes()
        } else {
            Vec::new()
        };
        part.filled = filled || !part.sizes.is_empty();
        part.set_rows(partition.padded_rows());
        part
    }

    /// The same with another number of rows.
    pub(super) fn set_rows(&mut self, rows: usize) {
        for shape in self.x.iter_mut().chain(&mut self.y).chain(&mut self.weight) {
            shape.dims[0] = rows;
        }
    }
}

/// Refuses indices that a layer has no row for, classes that the model has no output for, and targets that are no shares
/// where the loss takes shares: the loss would be NaN, or fall below 0, without a reason.
pub(super) fn check_values(setup: &Setup, batch: &Batch) -> Result<()> {
    check_weights(batch)?;
    check_indices(setup, &batch.x, batch.first)?;
    check_labels(setup, batch)?;
    check_label_lengths(setup, batch)?;
    check_shares(setup, batch)?;
    check_counted(setup, batch)
}

/// Refuses indices that a layer has no row for. `first` is the number of the first example, for messages.
pub(super) fn check_indices(setup: &Setup, x: &[HostTensor], first: u64) -> Result<()> {
    for index in setup.model.index_inputs() {
        let Some(x) = x.get(index.input) else {
            continue;
        };
        if are_rows(x, index.count, index.padding) {
            continue;
        }
        let values = x.to_f64();
        let (layer, setting, count) = (index.layer, index.setting, index.count);
        let padding = index.padding.map(f64::from);
        let is_bad = |value: f64| !is_number_of(value, count) && Some(value) != padding;
        if let Some(at) = values.iter().position(|&value| is_bad(value)) {
            let (value, row) = (values[at], first + row_of(at, x));
            let why = if value.fract() == 0.0 {
                format!(
                    "is not among the {count} of the layer `{layer}`, 0 to {}; correct the data, or give the layer a larger `{setting}`",
                    count - 1
                )
            } else {
                format!(
                    "is no whole number, and the layer `{layer}` takes the numbers 0 to {}; give indices, or leave the layer out where the data are features",
                    count - 1
                )
            };
            return Err(Error::User(format!(
                "the index {value} of example {row} of the epoch {why}"
            )));
        }
    }
    Ok(())
}

/// Whether these are i32 and a layer has a row for each: what a batch of good indices costs is one pass.
fn are_rows(x: &HostTensor, count: usize, padding: Option<i32>) -> bool {
    let below = u32::try_from(count).unwrap_or(u32::MAX).min(1 << 31);
    let is_row = |index: i32| index.cast_unsigned() < below || Some(index) == padding;
    let indices = x.bytes().as_chunks().0.iter();
    let indices = indices.map(|bytes| i32::from_ne_bytes(*bytes));
    x.dtype() == DType::I32 && indices.fold(true, |all, index| all & is_row(index))
}

/// Refuses classes that the model has no output for: the loss would be NaN without a reason. What has no weight counts nothing.
fn check_labels(setup: &Setup, batch: &Batch) -> Result<()> {
    for known in &setup.objective.classes {
        let (target, classes) = (known.target, known.classes);
        let left_out = known.left_out.map(|class| class as f64);
        let Some(y) = batch.y.get(target) else {
            continue;
        };
        let labels = y.to_f64();
        let has_weight = weighted_values(setup, batch, target);
        let is_bad = |&(at, &label): &(usize, &f64)| {
            !is_number_of(label, classes) && left_out != Some(label) && has_weight(at, label)
        };
        if let Some((at, &label)) = labels.iter().enumerate().find(is_bad) {
            let row = batch.first + row_of(at, y);
            let why = if label.fract() == 0.0 {
                format!(
                    "is not among the {classes} of the model's output, 0 to {}; correct the labels, or give the last layer more units",
                    classes - 1
                )
            } else {
                format!(
                    "is no whole number; give the numbers of the model's {classes} classes, 0 to {}, or a loss for real numbers",
                    classes - 1
                )
            };
            let remedy = setup.objective.padding_remedy(target);
            return Err(Error::User(format!(
                "the class {label} of example {row} of the epoch {why}{remedy}"
            )));
        }
    }
    Ok(())
}

/// Refuses labels that do not fit into the steps of the model's output: the loss would be infinite. Where an example has another
/// length than the model's, its steps are not known here.
fn check_label_lengths(setup: &Setup, batch: &Batch) -> Result<()> {
    let labels = &setup.objective.labels;
    let mut inputs = batch.x.iter().zip(setup.model.inputs());
    if labels.is_empty() || inputs.any(|(x, (_, shape))| x.dims().get(1..) != Some(&shape.dims)) {
        return Ok(());
    }
    for &(target, steps) in labels {
        let Some((y, &[_, each])) = batch.y.get(target).map(|y| (y, y.dims())) else {
            continue;
        };
        let labels = y.to_f64();
        let has_weight = weighted_values(setup, batch, target);
        let is_bad = |&(row, labels): &(usize, &[f64])| {
            Ctc::steps_of(labels) > steps && has_weight(row * each, 0.0)
        };
        if let Some((row, labels)) = labels.chunks(each.max(1)).enumerate().find(is_bad) {
            let (row, needed) = (batch.first + row as u64, Ctc::steps_of(labels));
            return Err(Error::User(format!(
                "the labels of example {row} of the epoch need {needed} steps, one each and one more between two that are equal, but the model's output has {steps}; give it the weight 0, shorter labels, or more steps"
            )));
        }
    }
    Ok(())
}

/// Refuses classes that the model has no output for where a metric counts them that the loss passes over: it would count them as wrong, or
/// not at all. What has no weight counts nothing where the metric is one of the weighted ones, and otherwise as much as all else.
fn check_counted(setup: &Setup, batch: &Batch) -> Result<()> {
    for counted in &setup.objective.counted {
        let Some(y) = batch.y.get(counted.target) else {
            continue;
        };
        let (rows, classes) = (&counted.rows[..], counted.classes);
        let each = y.dims().get(1..).unwrap_or_default();
        let one_each = each == rows || each.split_last() == Some((&1, rows));
        let is_refused = counted.refused && (counted.weighted || batch.weight.is_none());
        if classes < 2 || !one_each || is_refused {
            continue;
        }
        let labels = y.to_f64();
        let has_weight = weighted_values(setup, batch, counted.target);
        let counts = |at, label| match counted.weighted {
            true => has_weight(at, label),
            false => !setup.objective.may_be_padding(counted.target, label),
        };
        let is_bad = |&(at, &label): &(usize, &f64)| {
            !is_number_of(label, classes)
                && counted.left_out.map(|class| class as f64) != Some(label)
                && counts(at, label)
        };
        if let Some((at, label)) = labels.iter().enumerate().find(is_bad) {
            let (metric, row) = (&counted.metric, batch.first + row_of(at, y));
            let remedy = setup.objective.padding_remedy(counted.target);
            let or = match counted.weighted {
                true => "or",
                false => "or make the metric one of `weighted_metrics` and give",
            };
            return Err(Error::User(format!(
                "the class {label} of example {row} of the epoch is not among the {classes} that the metric `{metric}` counts, 0 to {}; correct the labels, give the last layer more units, {or} the example the weight 0{remedy}",
                classes - 1
            )));
        }
    }
    Ok(())
}

/// Whether the value at a place of a target has a weight: its own where weights are of places, else its example's. A value that
/// stands for a padded place has none.
fn weighted_values<'a>(
    setup: &'a Setup,
    batch: &'a Batch,
    target: usize,
) -> impl Fn(usize, f64) -> bool + 'a {
    let (weight, y) = (batch.weight.as_ref(), &batch.y[target]);
    let values: usize = y.dims().iter().product();
    // Of few batches anything is asked.
    let weights = LazyCell::new(move || {
        let weight = weight?;
        let mut dims = weight.dims();
        while let Some((&1, rest)) = dims.split_last() {
            dims = rest;
        }
        Some(match y.dims().starts_with(dims) {
            true => weight.to_f64(),
            false => example_weights(weight),
        })
    });
    move |at, value| {
        let of = |weights: &Vec<f64>| {
            weights
                .get(at / (values / weights.len().max(1)).max(1))
                .copied()
        };
        weights.as_ref().and_then(of) != Some(0.0) && !setup.objective.may_be_padding(target, value)
    }
}

/// Refuses targets below 0 or above 1 where the loss takes shares: it would fall without end. What has no weight counts
/// nothing, and what is not a number is found by the loss.
fn check_shares(setup: &Setup, batch: &Batch) -> Result<()> {
    for (target, loss) in &setup.objective.shares {
        let Some(y) = batch.y.get(*target) else {
            continue;
        };
        let shares = y.to_f64();
        let has_weight = weighted_values(setup, batch, *target);
        let is_bad = |&(at, &share): &(usize, &f64)| {
            (share - 0.5).abs() > 0.5 + ROUNDING && has_weight(at, share)
        };
        if let Some((at, share)) = shares.iter().enumerate().find(is_bad) {
            let row = batch.first + row_of(at, y);
            let remedy = setup.objective.padding_remedy(*target);
            return Err(Error::User(format!(
                "the target {share} of example {row} of the epoch is not from 0 to 1, as `{loss}` needs it; correct the targets, or for classes 0, 1, 2 .. train with `sparse_categorical_crossentropy` and an output for each class{remedy}"
            )));
        }
    }
    Ok(())
}

/// How far rounding may take a share out of 0 to 1, as where examples were mixed.
pub(super) const ROUNDING: f64 = 1e-3;

/// Whether a value is one of the numbers 0 to `count` - 1.
fn is_number_of(value: f64, count: usize) -> bool {
    value >= 0.0 && value < count as f64 && value.fract() == 0.0
}

/// The row of the value at a place of a tensor.
pub(super) fn row_of(at: usize, tensor: &HostTensor) -> u64 {
    let values: usize = tensor.dims().iter().skip(1).product();
    (at / values.max(1)) as u64
}

/// The largest weight of each example; none is below 0.
fn example_weights(weights: &HostTensor) -> Vec<f64> {
    let each: usize = weights.dims().iter().skip(1).product();
    let values = weights.to_f64();
    let rows = values.chunks(each.max(1));
    rows.map(|row| row.iter().copied().fold(0.0, f64::max))
        .collect()
}

/// A replica's rows of a tensor, padded with copies of the last one: a model might not accept rows of zeros.
pub(super) fn part(tensor: &HostTensor, partition: &BatchPartition, replica: usize) -> HostTensor {
    let (start, count) = (partition.first_row(replica), partition.rows(replica));
    filled(tensor, start, count, partition.padded_rows())
}

/// `count` rows of a tensor from `start` on, padded to `each` rows with copies of the last one.
pub(crate) fn filled(tensor: &HostTensor, start: usize, count: usize, each: usize) -> HostTensor {
    let rows = tensor.rows();
    if count == each {
        return tensor.slice_rows(start, start + count);
    }
    if let Some(row) = tensor.stand_in() {
        // Zeros might be what a layer makes infinite, and nothing times that is no number.
        return filled(&row, 0, 0, each);
    }
    if rows == 0 {
        // A worker of which nobody knows an example has only the shape of a row.
        let mut shape = tensor.shape().clone();
        shape.dims[0] = each;
        return HostTensor::zeros(shape);
    }
    // A replica without examples computes on an arbitrary row, which weighs nothing.
    let start = start.min(rows - 1);
    let row = tensor.row_bytes();
    let given = &tensor.bytes()[start * row..(start + count.max(1)) * row];
    let mut shape = tensor.shape().clone();
    shape.dims[0] = each;
    let mut bytes = AlignedBytes::zeroed(shape.byte_len());
    let (copied, repeated) = bytes.as_mut_slice().split_at_mut(given.len());
    copied.copy_from_slice(given);
    for slot in repeated.chunks_exact_mut(row.max(1)) {
        slot.copy_from_slice(&given[given.len() - row..]);
    }
    HostTensor::from_aligned(shape, bytes)
}

/// Copies each replica's part of tensors to its device: a list for each replica. Where its arrays may be padded, the number
/// of its examples and the position of the first come before them.
pub(super) fn put<'a>(
    placement: &Placement,
    tensors: impl Iterator<Item = &'a HostTensor> + Clone,
    partition: &BatchPartition,
    filled: bool,
) -> Result<Vec<Vec<Buffer>>> {
    let engine = placement.engine();
    let device_of = |part: usize| match placement.layout() {
        // All micro-batches begin on the first device.
        Layout::Pipelined(_) => placement.devices()[0],
        _ => placement.devices()[part],
    };
    if let Layout::Sharded(mesh) = placement.layout() {
        return put_on_mesh(placement, mesh, tensors, partition, filled);
    }
    let replica = |replica: usize| {
        let device = device_of(replica);
        let mut buffers = Vec::new();
        if filled {
            let (count, start) = (partition.rows(replica), partition.global_first_row(replica));
            buffers.push(engine.put(device, &HostTensor::scalar(count as i32))?);
            buffers.push(engine.put(device, &HostTensor::scalar(start as u32))?);
        }
        for tensor in tensors.clone() {
            buffers.push(engine.put(device, &part(tensor, partition, replica))?);
        }
        Ok(buffers)
    };
    (0..partition.replicas()).map(replica).collect()
}

/// The same for a mesh: a list of shards for each device.
fn put_on_mesh<'a>(
    placement: &Placement,
    mesh_layout: &MeshLayout,
    tensors: impl Iterator<Item = &'a HostTensor>,
    partition: &BatchPartition,
    filled: bool,
) -> Result<Vec<Vec<Buffer>>> {
    let (rows, first) = (partition.rows(0) as i32, partition.first_row(0) as u32);
    let counts = [HostTensor::scalar(rows), HostTensor::scalar(first)];
    let counts = counts.into_iter().filter(|_| filled);
    let mut lists: Vec<Vec<Buffer>> = placement.devices().iter().map(|_| Vec::new()).collect();
    for tensor in counts.chain(tensors.map(|tensor| part(tensor, partition, 0))) {
        let sharding = mesh_layout.of_batch(tensor.dims().len());
        let parts = placement.divide(&tensor, &sharding)?;
        for (list, part) in lists.iter_mut().zip(parts) {
            list.push(part);
        }
    }
    Ok(lists)
}

/// The tensors of a batch, in the order of the parameters of a program.
pub(super) fn tensors(batch: &Batch) -> impl Iterator<Item = &HostTensor> + Clone {
    batch.x.iter().chain(&batch.y).chain(&batch.weight)
}

fn shapes(tensors: &[HostTensor]) -> Vec<Shape> {
    tensors
        .iter()
        .map(|tensor| tensor.shape().clone())
        .collect()
}
