//! Evaluation and prediction, which change nothing.

use phalanx_graph::{AlignedBytes, HostTensor, Shape};
use phalanx_pjrt::Buffer;

use super::Trainer;
use super::batch::{check_indices, check_values, put, tensors};
use super::epoch_totals::EpochTotals;
use super::history::Logs;
use super::in_flight::InFlight;
use super::options::check_batch_size;
use super::step::BatchShape;
use super::workers::reader;
use crate::data::{AutoShardPolicy, Batch, Batches, TrainingData};
use crate::replicas::{BatchPartition, World};
use crate::{Error, Result};

/// Where in a test its watch is called: around each batch, counted from 0.
#[derive(Clone, Copy, Debug)]
pub(super) enum TestPlace {
    Begin(usize),
    End(usize),
}

/// What is called on the way of a test; an error ends it.
pub(super) type TestWatch<'w> = dyn FnMut(&mut Trainer, TestPlace) -> Result<()> + 'w;

impl Trainer {
    /// Loss and metrics over batches, without training: dropout off, moving statistics used. A notice says what corrupt data
    /// were left out.
    ///
    /// The last batch may have fewer examples; results do not depend on how the examples are cut into batches.
    ///
    /// # Errors
    /// When the data do not fit the model, are endless or have no weight, a source fails, or the device does.
    pub fn evaluate(&mut self, batches: &Batches) -> Result<Logs> {
        self.require_loss("evaluate")?;
        check_finite(batches, "evaluate")?;
        self.warn_lost(&batches.dataset().lost());
        let (logs, skipped) = self.evaluate_with_skipped(batches, &mut |_, _| Ok(()))?;
        self.warn_skipped(skipped, "evaluation");
        Ok(logs)
    }

    /// Loss and metrics, and how many examples were left out.
    pub(super) fn evaluate_with_skipped(
        &mut self,
        batches: &Batches,
        watch: &mut TestWatch<'_>,
    ) -> Result<(Logs, u64)> {
        let own;
        let batches = match self.placement.world() {
            Some(world) => {
                own = batches.sharded_for(reader(world))?;
                &own
            }
            None => batches,
        };
        let before = batches.dataset().skipped();
        let totals = match self.placement.servers().cloned() {
            Some(servers) => self.evaluate_with_servers(&servers, batches)?,
            None => self.run_test_steps(batches.iter(0, 0), batches.most_rows(), watch)?,
        };
        let skipped = batches.dataset().skipped() - before;
        if !EpochTotals::has_weight(&totals) {
            return Err(Error::User(format!(
                "cannot evaluate: no example has a weight above 0, and {skipped} are corrupt and left out; check the data and the weights"
            )));
        }
        Ok((self.logs(&totals, 0.0), skipped))
    }

    fn warn_skipped(&self, count: u64, what: &str) {
        if count > 0 {
            let line = format!("warning: {count} corrupt examples left out of the {what}");
            self.engine().notice(&line);
        }
    }

    /// Loss and metrics of one batch, without training.
    ///
    /// # Errors
    /// As [`evaluate`](Self::evaluate).
    pub fn test_on_batch(&mut self, batch: &Batch) -> Result<Logs> {
        self.require_loss("evaluate")?;
        let totals = self.run_test_steps([Ok(batch.clone())], batch.rows(), &mut |_, _| Ok(()))?;
        Ok(self.logs(&totals, 0.0))
    }

    /// The outputs of the model for all examples, in their order: one tensor `[examples, ..]` per output.
    ///
    /// # Errors
    /// When the data do not fit the model or are endless, a source fails, or the device does.
    pub fn predict(&mut self, batches: &Batches) -> Result<Vec<HostTensor>> {
        check_finite(batches, "predict")?;
        if let Some(servers) = self.placement.servers().cloned() {
            return self.predict_with_servers(&servers, batches);
        }
        match self.placement.world().cloned() {
            Some(world) => self.predict_in(&world, batches),
            None => self.predict_here(batches).map(|(outputs, _)| outputs),
        }
    }

    /// The outputs for all examples, of which each process computes its rows of each batch.
    fn predict_in(&mut self, world: &World, batches: &Batches) -> Result<Vec<HostTensor>> {
        let own = match batches.worker().count {
            1 => batches.shard(reader(world), AutoShardPolicy::Data)?,
            _ => batches.sharded_for(reader(world))?,
        };
        let predicted = self.predict_here(&own);
        let (outputs, counts) = predicted.inspect_err(|error| world.abort(&error.to_string()))?;
        let counts: Vec<f64> = counts.iter().map(|&count| count as f64).collect();
        let counts = world.all_gather_rows(&[counts])?;
        let join = |output: &HostTensor| {
            let all = world.all_gather(output.bytes())?;
            Ok(in_input_order(output.shape(), &all, &counts))
        };
        outputs.iter().map(join).collect()
    }

    /// The outputs for the examples of these batches, and the number of examples of each batch.
    fn predict_here(&mut self, batches: &Batches) -> Result<(Vec<HostTensor>, Vec<usize>)> {
        let mut counts = Vec::new();
        self.warn_lost(&batches.dataset().lost());
        let before = batches.dataset().skipped();
        let mut parts = Vec::new();
        let mut waiting: Option<PendingPrediction> = None;
        for batch in batches.iter(0, 0) {
            let batch = batch?;
            counts.push(batch.rows());
            check_indices(&self.setup, &batch.x, batch.first)?;
            let begun = self.start_prediction(&batch.x, batches.most_rows())?;
            // The outputs of the step before are read while this one runs.
            if let Some(before) = waiting.replace(begun) {
                parts.extend(self.read_outputs(&before)?);
            }
        }
        if let Some(last) = waiting {
            parts.extend(self.read_outputs(&last)?);
        }
        self.warn_skipped(batches.dataset().skipped() - before, "prediction");
        Ok((self.concatenate_outputs(&parts), counts))
    }

    /// The outputs of the model for one batch of inputs.
    ///
    /// # Errors
    /// As [`predict`](Self::predict).
    pub fn predict_on_batch(&mut self, x: &[HostTensor]) -> Result<Vec<HostTensor>> {
        let rows = x.first().map_or(0, HostTensor::rows);
        check_indices(&self.setup, x, 0)?;
        let begun = self.start_prediction(x, rows)?;
        Ok(self.concatenate_outputs(&self.read_outputs(&begun)?))
    }

    /// The totals of batches of `size` rows or fewer.
    pub(super) fn run_test_steps(
        &mut self,
        batches: impl IntoIterator<Item = Result<Batch>>,
        size: usize,
        watch: &mut TestWatch<'_>,
    ) -> Result<Vec<f64>> {
        let mut totals = self.state.zeros(&self.setup)?;
        let mut flight = InFlight::default();
        for (number, batch) in batches.into_iter().enumerate() {
            let batch = batch?;
            watch(self, TestPlace::Begin(number))?;
            totals = self.test_step(&batch, size, &totals, &mut flight)?;
            watch(self, TestPlace::End(number))?;
        }
        flight.finish(self.placement.engine())?;
        self.state.merge_replicas(&self.setup, &totals)
    }

    fn test_step(
        &mut self,
        batch: &Batch,
        full: usize,
        totals: &[Buffer],
        flight: &mut InFlight,
    ) -> Result<Vec<Buffer>> {
        let whole = BatchShape::of(&self.setup, batch)?;
        check_values(&self.setup, batch)?;
        let partition = self.padded_partition(batch.rows(), full);
        // One program serves all batches; with uneven shares, full batches have another.
        let shape = whole.part(&partition, true, self.setup.branches_by_size());
        let padded = partition.padded_rows() * partition.replicas();
        if !self.test.has(&shape) {
            // Processes compare their programs, which no running step may disturb.
            flight.finish(self.placement.engine())?;
            let traced = self.setup_for(&batch.x, padded).test_step(&shape)?;
            let (placement, setup) = (&self.placement, &self.setup);
            self.test
                .insert(placement, setup, "test_step", &shape, traced)?;
        }
        let own;
        let mut batch = batch;
        if let Some(x) = self.with_rows(&batch.x, padded)? {
            own = Batch { x, ..batch.clone() };
            batch = &own;
        }
        let batch = put(&self.placement, tensors(batch), &partition, true)?;
        let step = self.test.get(&shape)?;
        let (totals, done) = self.state.test(&self.setup, step, totals, &batch)?;
        flight.push(self.placement.engine(), done)?;
        Ok(totals)
    }

    /// How `rows` rows are divided over the replicas of this process, when a full batch has `full` rows in all processes.
    fn padded_partition(&self, rows: usize, full: usize) -> BatchPartition {
        match self.placement.world() {
            Some(_) => self.placement.worker_partition(rows, full, false),
            None => self.placement.padded_partition(rows, full),
        }
    }

    pub(super) fn start_prediction(
        &mut self,
        x: &[HostTensor],
        full: usize,
    ) -> Result<PendingPrediction> {
        let whole = BatchShape::of_inputs(&self.setup, x)?;
        let partition = self.padded_partition(x[0].rows(), full);
        let shape = whole.part(&partition, false, self.setup.branches_by_size());
        let padded = partition.padded_rows() * partition.replicas();
        if !self.predict.has(&shape) {
            let traced = self.setup_for(x, padded).predict_step(&shape)?;
            let (placement, setup) = (&self.placement, &self.setup);
            self.predict
                .insert(placement, setup, "predict_step", &shape, traced)?;
        }
        let own = self.with_rows(x, padded)?;
        let x = own.as_deref().unwrap_or(x);
        let x = put(&self.placement, x.iter(), &partition, shape.filled)?;
        let step = self.predict.get(&shape)?;
        let outputs = self.state.predict(&self.setup, step, &x)?;
        Ok(PendingPrediction { outputs, partition })
    }

    /// The outputs of each replica for its examples.
    pub(super) fn read_outputs(
        &self,
        predicted: &PendingPrediction,
    ) -> Result<Vec<Vec<HostTensor>>> {
        let partition = &predicted.partition;
        let shapes = self.setup.model.outputs();
        let read = |replica: usize| {
            let outputs = shapes.iter().enumerate().map(|(index, shape)| {
                let mut shape = shape.clone();
                shape.dims.insert(0, partition.padded_rows());
                let parts = predicted.outputs.iter().map(|outputs| &outputs[index]);
                let whole =
                    self.placement
                        .read_output(&parts.collect::<Vec<_>>(), replica, &shape)?;
                let count = partition.rows(replica);
                Ok(if count == partition.padded_rows() {
                    whole
                } else {
                    whole.slice_rows(0, count)
                })
            });
            outputs.collect()
        };
        (0..partition.replicas()).map(read).collect()
    }

    /// Each output of the model over all parts.
    pub(super) fn concatenate_outputs(&self, parts: &[Vec<HostTensor>]) -> Vec<HostTensor> {
        let outputs = self.setup.model.outputs();
        let of = |output| {
            parts
                .iter()
                .map(move |part: &Vec<HostTensor>| &part[output])
        };
        (0..outputs.len())
            .map(|output| concatenated(&outputs[output], of(output)))
            .collect()
    }
}

/// A prediction begun.
pub(super) struct PendingPrediction {
    /// Of each replica.
    outputs: Vec<Vec<Buffer>>,
    partition: BatchPartition,
}

pub(super) fn check_finite(batches: &Batches, doing: &str) -> Result<()> {
    check_batch_size(batches.size())?;
    match batches.len() {
        None => Err(Error::user(format!(
            "cannot {doing} on endless data; take a number of batches"
        ))),
        Some(0) => Err(Error::user(format!(
            "cannot {doing}: the data have no batch"
        ))),
        Some(_) => Ok(()),
    }
}

/// The rows of all workers in the order of the input: batch by batch, and within a batch worker by worker.
fn in_input_order(example: &Shape, workers: &[Vec<u8>], counts: &[Vec<f64>]) -> HostTensor {
    let row = example.byte_len() / example.dims[0].max(1);
    let mut shape = example.clone();
    shape.dims[0] = counts.iter().flatten().sum::<f64>() as usize;
    let row = match row {
        // This worker had no row, and its tensor does not tell how long one is.
        0 => shape.byte_len() / shape.dims[0].max(1),
        row => row,
    };
    let mut bytes = AlignedBytes::zeroed(shape.byte_len());
    let (mut to, mut from) = (0, vec![0; workers.len()]);
    for step in 0..counts[0].len() {
        for (worker, counts) in counts.iter().enumerate() {
            let length = counts[step] as usize * row;
            let rows = &workers[worker][from[worker]..][..length];
            bytes.as_mut_slice()[to..][..length].copy_from_slice(rows);
            (to, from[worker]) = (to + length, from[worker] + length);
        }
    }
    HostTensor::from_aligned(shape, bytes)
}

/// The rows of all parts as one tensor.
fn concatenated<'a>(
    example: &Shape,
    parts: impl Iterator<Item = &'a HostTensor> + Clone,
) -> HostTensor {
    let rows: usize = parts.clone().map(HostTensor::rows).sum();
    let shape = Shape::new(example.dtype, [&[rows], &example.dims[..]].concat());
    let mut bytes = AlignedBytes::zeroed(shape.byte_len());
    let mut at = 0;
    for part in parts {
        let part = part.bytes();
        bytes.as_mut_slice()[at..][..part.len()].copy_from_slice(part);
        at += part.len();
    }
    HostTensor::from_aligned(shape, bytes)
}
