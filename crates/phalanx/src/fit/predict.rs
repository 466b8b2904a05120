//! Prediction, which changes nothing.

use phalanx_graph::{AlignedBytes, HostTensor, Shape};
use phalanx_pjrt::Buffer;
use phalanx_ps::PhaseKind;

use super::Trainer;
use super::batch::{check_indices, put};
use super::callback_calls::OwnHooks;
use super::callbacks::{IntoCallback, SharedCallback};
use super::compiled_model::CompiledModel;
use super::evaluate::{check_finite, padded_partition};
use super::reports::{warn_lost, warn_skipped};
use super::step_cache::StepKey;
use super::step_program::{BatchShape, StepBuilder};
use super::workers::reader;
use crate::data::{AutoShardPolicy, Batches, TrainingData};
use crate::replicas::{BatchPartition, World};
use crate::servers::Servers;
use crate::{Error, Result};

impl Trainer {
    /// The outputs of the model for all examples, in their order: one tensor `[examples, ..]` per output.
    ///
    /// Where several processes train together all must call this, with the same data, and all get the whole result.
    ///
    /// # Errors
    /// When the data do not fit the model or are endless, a source fails, or the device does.
    pub fn predict(&mut self, batches: &Batches) -> Result<Vec<HostTensor>> {
        self.predict_with(batches, std::iter::empty::<SharedCallback>())
    }

    /// The same with the hooks of these callbacks around it and around its batches: the `callbacks` of Keras' `predict`. On parameter
    /// servers, where workers take batches in turns, the hooks of batches are not called.
    ///
    /// # Errors
    /// As [`predict`](Self::predict), or when a callback fails.
    pub fn predict_with(
        &mut self,
        batches: &Batches,
        callbacks: impl IntoIterator<Item: IntoCallback>,
    ) -> Result<Vec<HostTensor>> {
        check_finite(batches, "predict")?;
        let mut hooks = OwnHooks::new(callbacks, batches);
        self.keeping_variables(|trainer| {
            hooks.call(trainer, &mut |callback, cx| callback.on_predict_begin(cx))?;
            let outputs = Prediction {
                trainer,
                batches,
                hooks: &mut hooks,
            }
            .run()?;
            hooks.call(trainer, &mut |callback, cx| callback.on_predict_end(cx))?;
            Ok(outputs)
        })
    }

    /// The outputs of the model for one batch of inputs.
    ///
    /// # Errors
    /// As [`predict`](Self::predict). Where layers exchange values with other processes, an error of one ends the group: the others get it, and
    /// later calls that exchange anything fail in all.
    pub fn predict_on_batch(&mut self, x: &[HostTensor]) -> Result<Vec<HostTensor>> {
        let model = &mut self.compiled;
        model.check_lengths(None)?;
        let predicted = model.predict_batch(x);
        match model.placement.world() {
            Some(world) if predicted.is_err() && model.predictions_exchange() => {
                world.or_fail(predicted)
            }
            _ => predicted,
        }
    }
}

/// A prediction for all examples of some data, while it runs.
struct Prediction<'t> {
    trainer: &'t mut Trainer,
    batches: &'t Batches,
    hooks: &'t mut OwnHooks,
}

impl Prediction<'_> {
    fn run(mut self) -> Result<Vec<HostTensor>> {
        self.trainer.compiled.check_lengths(Some(self.batches))?;
        let placement = &self.trainer.compiled.placement;
        if let Some(servers) = placement.servers().cloned() {
            return servers.or_fail(self.with_servers(&servers));
        }
        match placement.world().cloned() {
            Some(world) => {
                world.check_takes_part()?;
                world.during("predicts", || self.in_world(&world))
            }
            None => self.here(self.batches).map(|(outputs, _)| outputs),
        }
    }

    /// The outputs for all examples, of which each process computes its rows of each batch.
    fn in_world(&mut self, world: &World) -> Result<Vec<HostTensor>> {
        let batches = self.batches;
        let own = match batches.worker().count {
            1 => batches.shard(reader(world), AutoShardPolicy::Data)?,
            _ => batches.sharded_for(reader(world))?,
        };
        let (outputs, counts) = world.or_fail(self.here(&own))?;
        let counts: Vec<f64> = counts.iter().map(|&count| count as f64).collect();
        let counts = world.all_gather_rows(&[counts])?;
        let join = |output: &HostTensor| {
            let all = world.all_gather(output.bytes())?;
            Ok(in_input_order(output.shape(), &all, &counts))
        };
        outputs.iter().map(join).collect()
    }

    /// The outputs for the examples of these batches, and the number of examples of each batch.
    fn here(&mut self, batches: &Batches) -> Result<(Vec<HostTensor>, Vec<usize>)> {
        let (trainer, hooks) = (&mut *self.trainer, &mut *self.hooks);
        let mut counts = Vec::new();
        warn_lost(trainer.engine(), &batches.dataset().lost());
        let before = batches.dataset().skipped();
        let mut parts = Vec::new();
        let mut waiting: Option<PendingPrediction> = None;
        let is_alone = trainer.placement().world().is_none();
        let read = batches.read_ahead().iter(0, 0);
        let read = read.passing_over_empty(is_alone).with_full_rows();
        for (number, batch) in read.enumerate() {
            let (batch, full) = batch?;
            hooks.call(trainer, &mut |callback, cx| {
                callback.on_predict_batch_begin(number, cx)
            })?;
            let model = &mut trainer.compiled;
            counts.push(batch.rows());
            let begun = model.start_prediction(&batch.x, batch.first, full)?;
            // The outputs of the step before are read while this one runs.
            if let Some(before) = waiting.replace(begun) {
                parts.extend(model.read_outputs(&before)?);
            }
            hooks.call(trainer, &mut |callback, cx| {
                callback.on_predict_batch_end(number, cx)
            })?;
        }
        let model = &trainer.compiled;
        if let Some(last) = waiting {
            parts.extend(model.read_outputs(&last)?);
        }
        let skipped = batches.dataset().skipped() - before + batches.in_no_bucket();
        warn_skipped(model.engine(), skipped, "prediction");
        Ok((model.concatenate_outputs(parts)?, counts))
    }

    /// The outputs for all examples, whose batches the workers take in turns.
    fn with_servers(&mut self, servers: &Servers) -> Result<Vec<HostTensor>> {
        let (model, batches) = (&mut self.trainer.compiled, self.batches);
        let phase = format!("predict {}", servers.count("predict"));
        let items = batches.len().unwrap_or(0) as u64;
        servers.enter(&phase, PhaseKind::Collect, 0..items)?;
        let mut is_pulled = false;
        let over = loop {
            let work = match servers.next(&phase)? {
                Ok(work) => work,
                Err(over) => break over,
            };
            if !std::mem::replace(&mut is_pulled, true) {
                model.state.pull()?;
            }
            let batch = batches.get(0, work.item as usize)?;
            let mut bytes = Vec::new();
            if !batch.x.is_empty() {
                let full = batches.most_rows();
                let begun = model.start_prediction(&batch.x, batch.first, full)?;
                let outputs = model.concatenate_outputs(model.read_outputs(&begun)?)?;
                bytes.extend((batch.rows() as u64).to_le_bytes());
                outputs
                    .iter()
                    .for_each(|output| bytes.extend_from_slice(output.bytes()));
            }
            servers.done(&phase, &work, (0.0, 0.0), 0, &bytes)?;
        };
        outputs_of(model, &servers.items(&phase, over.items)?)
    }
}

impl CompiledModel {
    /// The outputs for one batch of inputs.
    fn predict_batch(&mut self, x: &[HostTensor]) -> Result<Vec<HostTensor>> {
        let begun = self.start_prediction(x, 0, x.first().map_or(0, HostTensor::rows))?;
        let outputs = self.concatenate_outputs(self.read_outputs(&begun)?)?;
        // A program whose exchange failed goes on with zeros.
        if let (Some(world), true) = (self.placement.world(), begun.exchanges) {
            world.check()?;
        }
        Ok(outputs)
    }

    /// Whether other processes wait for a prediction of this one: its programs say it, or the one that it would have for a row.
    fn predictions_exchange(&self) -> bool {
        if !self.predict.is_empty() {
            return self.predict.exchanges();
        }
        let row = |(_, mut shape): (&str, Shape)| {
            shape.dims.insert(0, 1);
            HostTensor::zeros(shape)
        };
        let x: Vec<HostTensor> = self.setup.model.inputs().map(row).collect();
        let divided = self.divided_inputs(&x, 1);
        let traced =
            divided.and_then(|(_, shape)| StepBuilder::new(&self.setup).predict_step(&shape));
        traced.is_ok_and(|step| step.program.simplified().communication().is_some())
    }

    /// Which rows of a batch are whose, and the shapes of a part; a full batch has this number of rows.
    fn divided_inputs(
        &self,
        x: &[HostTensor],
        full: usize,
    ) -> Result<(BatchPartition, BatchShape)> {
        let whole = BatchShape::of_inputs(&self.setup, x)?;
        let partition = padded_partition(&self.placement, x[0].rows(), full);
        let shape = whole.part(&partition, false, self.setup.branches_by_size());
        Ok((partition, shape))
    }

    /// Begins to predict for a batch whose first example has this number; a full one has this number of rows.
    fn start_prediction(
        &mut self,
        x: &[HostTensor],
        first: u64,
        full: usize,
    ) -> Result<PendingPrediction> {
        let (partition, shape) = self.divided_inputs(x, full)?;
        check_indices(&self.setup, x, first)?;
        let padded = partition.padded_rows() * partition.replicas();
        let key = StepKey::without_update(shape);
        if !self.predict.has(&key) {
            let by_rows = self.setup_for(x, padded);
            let traced = StepBuilder::new(&by_rows).predict_step(&key.shape)?;
            let (placement, setup) = (&self.placement, &self.setup);
            self.predict
                .insert(placement, setup, "predict_step", &key, traced)?;
        }
        let exchanges = self.predict.get(&key)?.exchanges();
        if let (Some(world), true) = (self.placement.world(), exchanges) {
            world.check_takes_part()?;
        }
        let own = self.with_rows(x, padded)?;
        let x = own.as_deref().unwrap_or(x);
        let x = put(&self.placement, x.iter(), &partition, key.shape.filled)?;
        let step = self.predict.get(&key)?;
        let outputs = self.state.predict(&self.setup, step, &x)?;
        Ok(PendingPrediction {
            outputs,
            partition,
            exchanges,
        })
    }

    /// The shape of an example of each output; where inputs have open dims it is what the program has made.
    fn output_shapes(&self, predicted: &PendingPrediction) -> Result<Vec<Shape>> {
        let mut shapes = self.setup.model.outputs();
        if self.setup.model.open_dims() > 0 {
            for (shape, output) in shapes.iter_mut().zip(&predicted.outputs[0]) {
                let dims = output
                    .dims()
                    .map_err(|error| Error::Device(error.to_string()))?;
                let dims = dims.iter().skip(1);
                shape.dims = dims.map(|&dim| usize::try_from(dim).unwrap_or(0)).collect();
            }
        }
        Ok(shapes)
    }

    /// The outputs of each replica for its examples.
    fn read_outputs(&self, predicted: &PendingPrediction) -> Result<Vec<Vec<HostTensor>>> {
        let partition = &predicted.partition;
        let shapes = self.output_shapes(predicted)?;
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

    /// Each output of the model over all parts. A single part is the whole: outputs may be large, and a copy takes as long
    /// as a tenth of a Transformer.
    fn concatenate_outputs(&self, mut parts: Vec<Vec<HostTensor>>) -> Result<Vec<HostTensor>> {
        if parts.len() == 1 {
            return Ok(parts.remove(0));
        }
        let mut outputs = self.setup.model.outputs();
        let whole = |(index, shape): (usize, &mut Shape)| {
            let parts = || parts.iter().map(|part| &part[index]);
            if let Some(first) = parts().next() {
                shape.dims = first.dims()[1..].to_vec();
            }
            match parts().find(|part| part.dims()[1..] != shape.dims) {
                None => Ok(concatenated(shape, parts())),
                Some(other) => Err(Error::User(format!(
                    "output {index} is {:?} for examples of one batch and {:?} for those of another, so there is no one tensor for all; pad all batches to one length, or call `predict_on_batch` for each",
                    shape.dims,
                    &other.dims()[1..]
                ))),
            }
        };
        outputs.iter_mut().enumerate().map(whole).collect()
    }
}

/// A prediction begun.
struct PendingPrediction {
    /// Of each replica.
    outputs: Vec<Vec<Buffer>>,
    partition: BatchPartition,
    /// Whether it exchanges values with other processes.
    exchanges: bool,
}

/// The outputs of all items: of each the number of its rows, then the rows of each output.
fn outputs_of(model: &CompiledModel, items: &[Vec<u8>]) -> Result<Vec<HostTensor>> {
    let mut parts = Vec::new();
    for item in items {
        let Some((rows, mut rest)) = item.split_first_chunk::<8>() else {
            continue;
        };
        let rows = u64::from_le_bytes(*rows) as usize;
        let mut outputs = Vec::new();
        for shape in model.setup.model.outputs() {
            let shape = Shape::new(shape.dtype, [&[rows], &shape.dims[..]].concat());
            let split = rest.split_at_checked(shape.byte_len());
            let (own, others) = split.unwrap_or((rest, &[]));
            let tensor = HostTensor::from_bytes(shape, own);
            let short =
                || Error::Cluster("another worker sent fewer predictions than it has rows".into());
            outputs.push(tensor.ok_or_else(short)?);
            rest = others;
        }
        parts.push(outputs);
    }
    model.concatenate_outputs(parts)
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

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use phalanx_collectives::{Communicator, CommunicatorOptions};
    use phalanx_graph::op::ReduceOp;

    use super::*;
    use crate::engine::{Engine, EngineOptions, KernelsMode};
    use crate::nn::{Cx, Layer};
    use crate::prelude::*;

    const TIMEOUT: Duration = Duration::from_secs(120);

    /// The sum over all workers, after as many products of matrices as the input says.
    #[derive(Debug)]
    struct LateSum;

    impl Layer for LateSum {
        fn kind(&self) -> &'static str {
            "late_sum"
        }
        fn config(&self) -> serde_json::Value {
            serde_json::json!({})
        }
        fn call(&self, _: &mut Cx, inputs: &[Tensor]) -> Tensor {
            let rounds = inputs[0].sum(&[0, 1]);
            let matrix = rounds.like(0.005).broadcast_to(&[200, 200]);
            let left = rounds.graph().while_loop(
                &[&rounds, &matrix],
                |values| values[0].greater(&values[0].like(0.0)),
                |values| vec![&values[0] - 1.0, values[1].matmul(&values[1])],
            );
            (&inputs[0] + left[1].sum(&[0, 1]) * 0.0).all_reduce(ReduceOp::Sum)
        }
    }

    /// Results do not say it: the CPU runs one program after the other, whatever is waited for.
    fn predict_twice(communicator: Communicator) {
        let options = EngineOptions {
            kernels: KernelsMode::Off,
            cpu_devices: 1,
            compile_cache: false,
            ..EngineOptions::default()
        };
        let engine = Engine::new(&options).unwrap();
        let strategy = MultiWorkerMirroredStrategy::on(&engine, communicator, TIMEOUT).unwrap();
        let model = Sequential::new([1]).add(LateSum).build().unwrap();
        let compile = Compile {
            loss: MeanSquaredError.into(),
            ..Compile::default()
        };
        let mut trainer = strategy.compile(model, compile).unwrap();
        let model = &mut trainer.compiled;
        let mut begin = |rounds: f32, first| {
            let x = [HostTensor::new([1, 1], &[rounds])];
            model.start_prediction(&x, first, 1).unwrap()
        };
        let (before, after) = (begin(500.0, 0), begin(1.0, 1));
        let is_done = before.outputs[0][0].ready().unwrap().is_ready().unwrap();
        for (begun, sum) in [(before, 1000.0), (after, 2.0)] {
            let found = trainer.compiled.read_outputs(&begun).unwrap();
            assert_eq!(found[0][0].to_f64(), [sum]);
        }
        assert!(is_done);
    }

    #[test]
    fn a_prediction_that_exchanges_values_begins_when_the_one_before_is_done() {
        let options = CommunicatorOptions {
            timeout: TIMEOUT,
            ..CommunicatorOptions::default()
        };
        let group = Communicator::in_memory(2, &options).unwrap();
        thread::scope(|scope| {
            for communicator in group {
                scope.spawn(|| predict_twice(communicator));
            }
        });
    }
}
