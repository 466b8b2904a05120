//! Training, evaluation and prediction where variables are on parameter servers: in pieces of work that the servers hand out.
//!
//! Every worker runs the same program and asks for work: a batch, or its part of one where workers step together. It pulls the values,
//! computes, pushes, and says that it is done, with the sums of the batch; the sums of an epoch are of what was applied. A worker
//! that comes late goes through what is over in no time, since the servers answer with its results.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use phalanx_graph::{HostTensor, Shape};
use phalanx_ps::{Phase, PhaseKind, Work};

use super::batch::{check_indices, check_values, put, tensors};
use super::epoch_totals::EpochTotals;
use super::history::{InputReport, Logs};
use super::reports::{empty_epoch_error, input_of, stopped_error};
use super::step::BatchShape;
use super::step_cache::StepExecutable;
use super::step_times::StepPart;
use super::train_loop::FitRun;
use super::{Fit, Trainer};
use crate::data::{AutoShardPolicy, Batch, Batches, Position, TrainingData, Worker, WorkerPart};
use crate::optim::WindowPart;
use crate::replicas::BatchPartition;
use crate::servers::{Pushed, Servers};
use crate::{Error, Result};

impl Trainer {
    /// Tells parameter servers, where there are some, of an error that ends the job.
    pub(super) fn or_fail_on_servers<T>(&self, result: Result<T>) -> Result<T> {
        match self.placement.servers() {
            Some(servers) => servers.or_fail(result),
            None => result,
        }
    }

    /// Goes on where the first worker does, and names the phases of this `fit`.
    pub(super) fn begin_with_servers(&mut self, servers: &Servers, first: usize) -> Result<usize> {
        self.fit_number = servers.count("fit");
        let bug = |error: serde_json::Error| Error::Bug(format!("a position: {error}"));
        let own = serde_json::to_vec(&(first, &self.position)).map_err(bug)?;
        let chief = servers.of_chief(&format!("fit {}", self.fit_number), &own)?;
        let (first, position): (usize, Position) = serde_json::from_slice(&chief).map_err(bug)?;
        self.is_mid_epoch &= self.position == position;
        self.position = position;
        Ok(first)
    }

    /// After which batch of an epoch the workers stop together next, for something that is due between two batches.
    fn next_stop(&self, done: usize) -> Option<usize> {
        self.callbacks.batches_until_due().map(|more| done + more)
    }

    /// Trains on some batches of an epoch, with all workers.
    fn train_until(
        &mut self,
        servers: &Arc<Servers>,
        batches: &Batches,
        fit: &Fit,
        (epoch, items): (u64, std::ops::Range<usize>),
    ) -> Result<Phase> {
        let phase = format!("fit {} epoch {epoch} from {}", self.fit_number, items.start);
        servers.enter(
            &phase,
            PhaseKind::Train,
            items.start as u64..items.end as u64,
        )?;
        let mut is_stop_told = false;
        let over = loop {
            if fit.is_stop_asked() && !is_stop_told {
                is_stop_told = true;
                servers.stop()?;
            }
            self.clock.enter(StepPart::Exchange);
            match servers.next(&phase)? {
                Ok(work) => self.train_piece(servers, &phase, batches, epoch, &work)?,
                Err(over) => break over,
            }
        };
        self.clock.enter(StepPart::Callbacks);
        self.iterations = self.state.iterations()?;
        Ok(over)
    }

    fn set_sums(&mut self, sums: &[f64]) -> Result<()> {
        let totals = self
            .state
            .place_epoch_totals(&self.setup, &[sums.to_vec()])?;
        self.state.set_epoch_totals(totals);
        Ok(())
    }

    /// Takes its place after some batches of the epoch, for a checkpoint.
    fn hold_at(&mut self, batches: &Batches, done: u64, sums: &[f64]) -> Result<()> {
        let done = usize::try_from(done).unwrap_or(usize::MAX);
        let epoch = self.position.epoch;
        self.position = batches.prefetch(0).iter(epoch, done).position();
        self.is_mid_epoch = true;
        self.set_sums(sums)
    }

    /// The epoch of the position, and how many of its batches are done.
    fn start_of_epoch(&self, batches: &Batches) -> Result<(u64, usize)> {
        let Position { epoch, segments } = &self.position;
        match &segments[..] {
            [] => Ok((*epoch, 0)),
            [one]
                if one.batch == batches.size()
                    && (one.workers == 1 || one.policy == AutoShardPolicy::Data) =>
            {
                Ok((*epoch, one.steps))
            }
            _ => Err(Error::user(
                "the epoch was begun with batches of another size or other shares of the data, which parameter servers do not go on with; go on from a checkpoint between epochs",
            )),
        }
    }

    /// How far pushes were behind, as logs and as a line.
    fn report_staleness(&self, servers: &Servers, over: &Phase, logs: &mut Logs) {
        let pushes: u64 = over.staleness.iter().map(|(_, count)| count).sum();
        let behind: u64 = over.staleness.iter().map(|(by, count)| by * count).sum();
        let most = over.staleness.last().map_or(0, |(by, _)| *by);
        logs.push("staleness", behind as f64 / pushes.max(1) as f64);
        logs.push("staleness_max", most as f64);
        if servers
            .mode()
            .backup_workers()
            .is_some_and(|backup| backup > 0)
        {
            logs.push("dropped", over.dropped as f64);
        }
        if servers.is_chief() && most > 0 {
            let bars = over
                .staleness
                .iter()
                .map(|(by, count)| format!("{by}: {count}"));
            let bars: Vec<String> = bars.collect();
            self.engine().notice(&format!(
                "updates of others behind which pushes were: {}",
                bars.join(", ")
            ));
        }
    }

    /// One piece of work of a training.
    fn train_piece(
        &mut self,
        servers: &Servers,
        phase: &str,
        batches: &Batches,
        epoch: u64,
        work: &Work,
    ) -> Result<()> {
        self.clock.enter(StepPart::Input);
        let (mut batch, part) = piece_of(batches, epoch, work)?;
        if batch.x.is_empty() {
            return servers.done(phase, work, (0.0, 0.0), 0, &[]);
        }
        check_values(&self.setup, &batch)?;
        let partition = self.piece_partition(&batch, batches.most_rows(), work.parts, part);
        let (partition, shape) = self.shaped_for(&batch, partition, false)?;
        let padded = partition.padded_rows() * partition.replicas();
        self.compile_piece(&shape, &batch, padded)?;
        self.clock.enter(StepPart::Exchange);
        let values = servers.values()?;
        let mut named = Vec::new();
        self.state.take_values(&values)?;
        if !self.setup.tables.is_empty() {
            let looked_up = self.look_up(servers, &batch.x, padded)?;
            (batch.x, named) = (looked_up.x, looked_up.named);
        }
        self.clock.enter(StepPart::Transfer);
        let device_batch = put(&self.placement, tensors(&batch), &partition, shape.filled)?;
        // Random numbers follow the number of the step, which is the batch's own where workers are apart.
        let number = match servers.mode().backup_workers() {
            Some(_) => values.iterations,
            None => i64::try_from(work.id).unwrap_or(i64::MAX),
        };
        self.clock.enter(StepPart::Compute);
        let step = self.train.get(&shape)?;
        let (tensors, totals) = self
            .state
            .compute(&self.setup, step, number, &device_batch)?;
        if let Some(step) = EpochTotals::first_non_finite(&totals) {
            return Err(self.divergence_error(step));
        }
        self.clock.enter(StepPart::Exchange);
        let StepExecutable::Servers { sent, .. } = step else {
            return Err(Error::Bug("a step that is not for servers".into()));
        };
        let pushed = Pushed {
            connected: &sent.connected,
            changed: &sent.changed,
            tensors: &tensors,
            weight: totals[1],
            rows: batch.rows() as f64,
            totals: &totals,
            named: &named,
        };
        servers.push(phase, work, &values, &pushed)?;
        self.clock.step_done();
        self.iterations = values.iterations + 1;
        Ok(())
    }

    /// Compiles the step of batches like this one, unless it is there.
    fn compile_piece(&mut self, shape: &BatchShape, batch: &Batch, padded: usize) -> Result<()> {
        if self.train.has(shape) {
            return Ok(());
        }
        self.clock.enter(StepPart::Compile);
        let traced = self.setup_for(&batch.x, padded);
        let traced = traced.train_step(shape, WindowPart::Counted)?;
        let (placement, setup) = (&self.placement, &self.setup);
        self.train
            .insert(placement, setup, "train_step", shape, traced)
    }

    /// How the rows of a part of a batch are divided over the replicas of this process.
    fn piece_partition(
        &self,
        batch: &Batch,
        full: usize,
        parts: usize,
        part: Option<WorkerPart>,
    ) -> BatchPartition {
        let replicas = self.placement.local_replicas();
        let first = part.map_or(0, |part| part.first_row);
        BatchPartition::equal(batch.rows(), replicas)
            .padded_to(full.div_ceil(parts * replicas))
            .after(first)
    }

    /// The totals of an evaluation whose batches the workers take in turns.
    pub(super) fn evaluate_with_servers(
        &mut self,
        servers: &Servers,
        batches: &Batches,
    ) -> Result<Vec<f64>> {
        let phase = &format!("evaluate {}", servers.count("evaluate"));
        let items = batches.len().unwrap_or(0) as u64;
        servers.enter(phase, PhaseKind::Sum, 0..items)?;
        let mut is_pulled = false;
        loop {
            let work = match servers.next(phase)? {
                Ok(work) => work,
                Err(over) => return Ok(joined(None, &over.sums, self.setup.epoch_totals.len)),
            };
            if !std::mem::replace(&mut is_pulled, true) {
                self.state.pull()?;
            }
            let batch = batches.get(0, work.item as usize)?;
            let totals = match batch.x.is_empty() {
                true => vec![0.0; self.setup.epoch_totals.len],
                false => {
                    self.run_test_steps([Ok(batch)], batches.most_rows(), &mut |_, _| Ok(()))?
                }
            };
            let bytes: Vec<u8> = totals.iter().flat_map(|x| x.to_le_bytes()).collect();
            servers.done(phase, &work, (0.0, 0.0), 0, &bytes)?;
        }
    }

    /// The outputs for all examples, whose batches the workers take in turns.
    pub(super) fn predict_with_servers(
        &mut self,
        servers: &Servers,
        batches: &Batches,
    ) -> Result<Vec<HostTensor>> {
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
                self.state.pull()?;
            }
            let batch = batches.get(0, work.item as usize)?;
            let mut bytes = Vec::new();
            if !batch.x.is_empty() {
                check_indices(&self.setup, &batch.x, batch.first)?;
                let begun = self.start_prediction(&batch.x, batches.most_rows())?;
                let outputs = self.concatenate_outputs(&self.read_outputs(&begun)?);
                bytes.extend((batch.rows() as u64).to_le_bytes());
                outputs
                    .iter()
                    .for_each(|output| bytes.extend_from_slice(output.bytes()));
            }
            servers.done(&phase, &work, (0.0, 0.0), 0, &bytes)?;
        };
        self.outputs_of(&servers.items(&phase, over.items)?)
    }

    /// The outputs of all items: of each the number of its rows, then the rows of each output.
    fn outputs_of(&self, items: &[Vec<u8>]) -> Result<Vec<HostTensor>> {
        let mut parts = Vec::new();
        for item in items {
            let Some((rows, mut rest)) = item.split_first_chunk::<8>() else {
                continue;
            };
            let rows = u64::from_le_bytes(*rows) as usize;
            let mut outputs = Vec::new();
            for shape in self.setup.model.outputs() {
                let shape = Shape::new(shape.dtype, [&[rows], &shape.dims[..]].concat());
                let split = rest.split_at_checked(shape.byte_len());
                let (own, others) = split.unwrap_or((rest, &[]));
                let tensor = HostTensor::from_bytes(shape, own);
                let short = || {
                    Error::Cluster("another worker sent fewer predictions than it has rows".into())
                };
                outputs.push(tensor.ok_or_else(short)?);
                rest = others;
            }
            parts.push(outputs);
        }
        Ok(self.concatenate_outputs(&parts))
    }
}

impl FitRun<'_> {
    /// The rest of the epoch at the position, of which it is known how many steps it has.
    pub(super) fn train_epoch_with_servers(
        &mut self,
        servers: &Arc<Servers>,
        steps: Option<usize>,
    ) -> Result<(Logs, usize, InputReport)> {
        let data = self.data;
        let batches = data.by_index().ok_or_else(|| {
            Error::user("workers of parameter servers take batches by their number, and a stream has none; make a Dataset of the data")
        })?;
        let (epoch, before) = self.trainer.start_of_epoch(batches)?;
        let most = self.fit.steps_per_epoch.unwrap_or(usize::MAX);
        let end = steps.unwrap_or(most).min(most).max(before);
        let len = self.trainer.setup.epoch_totals.len;
        let mut sums = match self.trainer.is_mid_epoch {
            true => self.trainer.state.read_epoch_totals(&self.trainer.setup)?,
            false => vec![0.0; len],
        };
        let (start, skipped) = (Instant::now(), data.skipped());
        let (mut whole, mut done) = (Phase::default(), before);
        loop {
            let (trainer, fit) = (&mut *self.trainer, &*self.fit);
            let stop = trainer.next_stop(done);
            let until = stop.map_or(end, |stop| stop.min(end));
            let over = trainer.train_until(servers, batches, fit, (epoch, done..until))?;
            sums = joined(Some(sums), &over.sums, len);
            add_staleness(&mut whole, &over);
            if over.stopped || stop.is_some() {
                trainer.hold_at(batches, over.end, &sums)?;
            }
            if over.stopped {
                self.save_interrupted()?;
                let trainer = &self.trainer;
                return Err(stopped_error(trainer.iterations, &trainer.position));
            }
            if stop.is_some() {
                self.at_stop(done..until)?;
            }
            done = until;
            if done >= end {
                break;
            }
        }
        let trainer = &mut *self.trainer;
        trainer.set_sums(&sums)?;
        let (stages, starved) = (Vec::new(), Default::default());
        let input = input_of(data, stages, starved, start.elapsed(), skipped);
        if before == 0 && !EpochTotals::has_weight(&sums) {
            return Err(empty_epoch_error(end, input.skipped));
        }
        let mut logs = trainer.logs(&sums, f64::NAN);
        trainer.report_staleness(servers, &whole, &mut logs);
        Ok((logs, end, input))
    }

    /// Does what is due after some batches of an epoch; nobody trains meanwhile.
    fn at_stop(&mut self, items: std::ops::Range<usize>) -> Result<()> {
        for batch in items {
            self.call(|callback, cx| callback.on_train_batch_begin(batch, cx))?;
            self.call(|callback, cx| callback.on_train_batch_end(batch, cx))?;
        }
        self.save_wished()
    }
}

/// The batch of a piece of work, and where its rows are in the whole.
fn piece_of(batches: &Batches, epoch: u64, work: &Work) -> Result<(Batch, Option<WorkerPart>)> {
    let item = usize::try_from(work.item).unwrap_or(usize::MAX);
    if work.parts == 1 {
        return Ok((batches.get(epoch, item)?, None));
    }
    let worker = Worker {
        index: work.part,
        count: work.parts,
        replicas: 1,
    };
    let own = batches.shard(worker, AutoShardPolicy::Data)?;
    let part = own.worker_part(epoch, item)?;
    Ok((own.get(epoch, item)?, part))
}

/// Adds how far pushes of a part of an epoch were behind.
fn add_staleness(whole: &mut Phase, part: &Phase) {
    let mut counts: BTreeMap<u64, u64> = whole.staleness.iter().copied().collect();
    for (behind, count) in &part.staleness {
        *counts.entry(*behind).or_insert(0) += count;
    }
    whole.staleness = counts.into_iter().collect();
    whole.dropped += part.dropped;
}

/// Sums, and the sums before.
fn joined(before: Option<Vec<f64>>, sums: &[f64], len: usize) -> Vec<f64> {
    let mut all = before.unwrap_or_else(|| vec![0.0; len]);
    for (all, sum) in all.iter_mut().zip(sums) {
        *all += sum;
    }
    all
}
