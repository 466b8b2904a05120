//! Training, evaluation and prediction where variables are on parameter servers: in pieces of work that the servers hand out.
//!
//! Every worker runs the same program and asks for work: a batch, or its part of one where workers step together. It pulls the values,
//! computes, pushes, and says that it is done, with the sums of the batch; the sums of an epoch are of what was applied. A worker
//! that comes late goes through what is over in no time, since the servers answer with its results.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use phalanx_ps::{Phase, PhaseKind, Work};

use super::batch::{check_values, put, tensors};
use super::compiled_model::CompiledModel;
use super::epoch_totals::EpochTotals;
use super::history::{InputReport, Logs};
use super::numbered_batches::{NumberedBatches, Piece, other_length};
use super::reports::input_of;
use super::step_cache::StepKey;
use super::step_program::{BatchShape, StepBuilder};
use super::step_times::StepPart;
use super::train_loop::FitRun;
use super::train_state::BegunGradient;
use super::{Fit, Trainer};
use crate::data::{AutoShardPolicy, Batch, Position, WorkerPart};
use crate::engine::Engine;
use crate::optim::WindowPart;
use crate::replicas::{BatchPartition, Placement};
use crate::servers::{PulledValues, Pushed, Servers};
use crate::{Error, Result};

/// Workers that train on the batches of an epoch, which the servers hand out.
struct ServerTraining<'r, 'd> {
    model: &'r mut CompiledModel,
    servers: &'r Arc<Servers>,
    batches: &'r mut NumberedBatches<'d>,
    fit: &'r Fit,
    /// The number of the `fit` among all that the program makes, and the epoch.
    number: (u64, u64),
    /// The number of batches after which this worker has said that the data end.
    told_end: Option<u64>,
}

impl ServerTraining<'_, '_> {
    /// Trains on some batches of an epoch, with all workers.
    fn train_on(&mut self, items: std::ops::Range<usize>) -> Result<Phase> {
        let ((number, epoch), servers) = (self.number, self.servers);
        let phase = format!("fit {number} epoch {epoch} from {}", items.start);
        servers.enter(
            &phase,
            PhaseKind::Train,
            items.start as u64..items.end as u64,
        )?;
        let mut is_stop_told = false;
        let mut begun: Option<BegunPiece> = None;
        let over = loop {
            if self.fit.is_stop_asked() && !is_stop_told {
                is_stop_told = true;
                servers.stop()?;
            }
            self.model.clock.enter(StepPart::Exchange);
            let next = match &begun {
                None => Some(servers.next(&phase)?),
                Some(begun) => servers.next_beside(&phase, &begun.work)?,
            };
            let next = match next {
                Some(Ok(work)) => self.begin_work(&phase, work, begun.is_some())?,
                // What is begun others have done in the meantime.
                Some(Err(over)) => break over,
                None => None,
            };
            let done = match servers.exchange().overlaps {
                true => std::mem::replace(&mut begun, next),
                false => next,
            };
            if let Some(piece) = done {
                self.end_work(&phase, &piece)?;
            }
        };
        self.compare_data(&phase, &over, items.end)?;
        self.model.clock.enter(StepPart::Callbacks);
        self.model.iterations = self.model.state.iterations()?;
        Ok(over)
    }

    /// Refuses to go on where the workers have read other data in a phase.
    fn compare_data(&mut self, phase: &str, over: &Phase, end: usize) -> Result<()> {
        let is_whole = !over.stopped && over.end < end as u64;
        let Some(checksum) = self.batches.checksum_at(over.end, is_whole)? else {
            return Ok(());
        };
        self.servers.compare(
            // A job that stopped there and is started again comes to another end.
            &format!(
                "what was read of the stream in `{phase}` up to batch {}",
                over.end
            ),
            &format!("checksum {checksum:08x}"),
        )
    }

    /// Begins a piece of work, unless it has nothing to compute; `is_beside` says that another is begun.
    fn begin_work(
        &mut self,
        phase: &str,
        work: Work,
        is_beside: bool,
    ) -> Result<Option<BegunPiece>> {
        let (model, servers) = (&mut *self.model, self.servers);
        model.clock.enter(StepPart::Input);
        let piece = match self.batches.get(&work)? {
            Ok(piece) => piece,
            Err(count) => return self.end_data(phase, &work, count).map(|()| None),
        };
        if piece.0.x.is_empty() {
            servers.done(phase, &work, (0.0, 0.0), 0, &[])?;
            return Ok(None);
        }
        let full = self.batches.most_rows().div_ceil(work.parts);
        let begun = begin_piece(model, servers, work, piece, full)?;
        Ok(Some(BegunPiece { is_beside, ..begun }))
    }

    /// Pushes what a piece of work has computed, and says that it is done.
    fn end_work(&mut self, phase: &str, begun: &BegunPiece) -> Result<()> {
        let (model, servers) = (&mut *self.model, self.servers);
        let (totals, staleness) = end_piece(model, servers, begun)?;
        let rows = begun.rows_of_tables(servers);
        let numbers = totals.iter().chain(&rows);
        let bytes: Vec<u8> = numbers.flat_map(|x| x.to_le_bytes()).collect();
        servers.done(
            phase,
            &begun.work,
            (model.setup.epoch_totals.weight(&totals), begun.rows),
            staleness,
            &bytes,
        )
    }

    /// The data end after this number of batches, before a piece of work.
    fn end_data(&mut self, phase: &str, work: &Work, count: u64) -> Result<()> {
        if self.told_end == Some(count) {
            return Err(other_length(count, work.item + 1));
        }
        self.told_end = Some(count);
        self.servers.no_more(phase, count)
    }
}

/// A piece of work whose gradient devices may still compute.
struct BegunPiece {
    work: Work,
    /// What it was begun with.
    values: PulledValues,
    /// The rows of tables that the batch names.
    named: Vec<Vec<u64>>,
    /// How many of them this worker had.
    cached: u64,
    gradient: BegunGradient,
    rows: f64,
    /// Whether another piece of work of this worker was begun before and not pushed.
    is_beside: bool,
}

impl BegunPiece {
    /// How many rows of tables came from this worker's cache and from servers, where it has a cache.
    fn rows_of_tables(&self, servers: &Servers) -> Vec<f64> {
        let named: usize = self.named.iter().map(Vec::len).sum();
        match servers.cache_bound() {
            Some(_) => vec![self.cached as f64, named as f64 - self.cached as f64],
            None => Vec::new(),
        }
    }
}

/// Begins to compute the gradient of a batch, or of the part of one that is padded to the rows of a `full` one, with the newest values.
fn begin_piece(
    model: &mut CompiledModel,
    servers: &Servers,
    work: Work,
    (mut batch, part): Piece,
    full: usize,
) -> Result<BegunPiece> {
    check_values(&model.setup, &batch)?;
    let partition = piece_partition(&model.placement, (&batch, part), full);
    let (partition, shape) = model.shaped_for(&batch, partition, false)?;
    let padded = partition.padded_rows() * partition.replicas();
    let key = compile_piece(model, shape, &batch, padded)?;
    model.clock.enter(StepPart::Exchange);
    let values = servers.values_of_step()?;
    let (mut named, mut cached) = (Vec::new(), 0);
    model.state.take_values(&values)?;
    if !model.setup.tables.is_empty() {
        let rows = |named: &[Vec<u64>]| servers.rows_of_step(work.clock, named);
        let looked_up = model.look_up(rows, &batch.x, padded)?;
        (batch.x, named, cached) = (looked_up.x, looked_up.named, looked_up.cached);
    }
    model.clock.enter(StepPart::Transfer);
    let device_batch = put(
        &model.placement,
        tensors(&batch),
        &partition,
        key.shape.filled,
    )?;
    // Random numbers follow the number of the step, which is the batch's own where workers are apart.
    let number = match servers.mode().backup_workers() {
        Some(_) => values.iterations,
        None => servers.step_of(work.id)?,
    };
    let (step, setup) = (model.train.get(&key)?, &model.setup);
    let gradient = (model.state).begin_on_servers(setup, step, number, &device_batch)?;
    Ok(BegunPiece {
        work,
        values,
        named,
        cached,
        gradient,
        rows: batch.rows() as f64,
        is_beside: false,
    })
}

/// Pushes the gradient of a piece of work when it is there: the sums of the batch, and by how many updates of others it was behind.
fn end_piece(
    model: &mut CompiledModel,
    servers: &Servers,
    begun: &BegunPiece,
) -> Result<(Vec<f64>, u64)> {
    model.clock.enter(StepPart::Compute);
    let (tensors, totals) = model.state.end_on_servers(&model.setup, &begun.gradient)?;
    if let Some(step) = EpochTotals::first_non_finite(&totals) {
        return Err(model.divergence_error(step));
    }
    model.clock.enter(StepPart::Exchange);
    let sent = &begun.gradient.sent;
    let pushed = Pushed {
        connected: &sent.connected,
        changed: &sent.changed,
        tensors: &tensors,
        named: &begun.named,
        takes_turns: false,
    };
    let behind = servers.push(&begun.work, &begun.values, &pushed)?;
    model.clock.step_done();
    model.iterations = begun.values.iterations + 1;
    // This worker's own push before it.
    Ok((totals, behind.saturating_sub(u64::from(begun.is_beside))))
}

impl Trainer {
    /// A step on a batch as the piece of work of a scheduled function; the results are those before its update.
    pub(crate) fn push_batch(
        &mut self,
        servers: &Servers,
        work: &Work,
        batch: &Batch,
    ) -> Result<Logs> {
        let model = &mut self.compiled;
        model.setup.objective.require_loss("train")?;
        if batch.rows() == 0 {
            return Err(Error::user("a batch without rows; leave it out"));
        }
        let piece = (batch.clone(), None);
        let begun = begin_piece(model, servers, work.clone(), piece, batch.rows())?;
        let (totals, _) = end_piece(model, servers, &begun)?;
        Ok(model.setup.logs(&totals, f64::NAN))
    }
}

/// Compiles the step of batches like this one, unless it is there.
fn compile_piece(
    model: &mut CompiledModel,
    shape: BatchShape,
    batch: &Batch,
    padded: usize,
) -> Result<StepKey> {
    let key = StepKey {
        shape,
        parts: vec![WindowPart::Counted],
    };
    if model.train.has(&key) {
        return Ok(key);
    }
    model.clock.enter(StepPart::Compile);
    let by_rows = model.setup_for(&batch.x, padded);
    let traced = StepBuilder::new(&by_rows).train_steps(&key.shape, &key.parts)?;
    let (placement, setup) = (&model.placement, &model.setup);
    model
        .train
        .insert(placement, setup, "train_step", &key, traced)?;
    Ok(key)
}

/// The sums of the epoch at the position.
fn sums_so_far(trainer: &Trainer) -> Result<Vec<f64>> {
    let (state, setup) = (&trainer.compiled.state, &trainer.compiled.setup);
    match trainer.progress.is_mid_epoch {
        true => state.read_epoch_totals(setup),
        false => Ok(vec![0.0; setup.epoch_totals.len]),
    }
}

/// Sets the sums of the epoch on the devices.
pub(super) fn set_sums(model: &mut CompiledModel, sums: &[f64]) -> Result<()> {
    let totals = model
        .state
        .place_epoch_totals(&model.setup, &[sums.to_vec()])?;
    model.state.set_epoch_totals(totals);
    Ok(())
}

/// The epoch of the position, and how many of its batches are done.
fn start_of_epoch(position: &Position, size: usize) -> Result<(u64, usize)> {
    let Position { epoch, segments } = position;
    match &segments[..] {
        [] => Ok((*epoch, 0)),
        [one] if one.batch == size && (one.workers == 1 || one.policy == AutoShardPolicy::Data) => {
            Ok((*epoch, one.steps))
        }
        _ => Err(Error::user(
            "the epoch was begun with batches of another size or other shares of the data, which parameter servers do not go on with; go on from a checkpoint between epochs",
        )),
    }
}

/// How far pushes were behind, as logs and as a line.
fn report_staleness(engine: &Engine, servers: &Servers, over: &Phase, logs: &mut Logs) {
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
        engine.notice(&format!(
            "updates of others behind which pushes were: {}",
            bars.join(", ")
        ));
    }
}

/// How the rows of a part of a batch are divided over the replicas of this process.
fn piece_partition(
    placement: &Placement,
    (batch, part): (&Batch, Option<WorkerPart>),
    full: usize,
) -> BatchPartition {
    let replicas = placement.local_replicas();
    let first = part.map_or(0, |part| part.first_row);
    BatchPartition::equal(batch.rows(), replicas)
        .padded_to(full.div_ceil(replicas))
        .after(first)
}

impl FitRun<'_> {
    /// The rest of the epoch at the position, of which it is known how many steps it has.
    pub(super) fn train_epoch_with_servers(
        &mut self,
        servers: &Arc<Servers>,
        steps: Option<usize>,
    ) -> Result<(Logs, usize, InputReport)> {
        let data = self.data;
        let (epoch, before) = start_of_epoch(&self.trainer.progress.position, data.batch_size())?;
        let batches = &mut NumberedBatches::new(data, epoch);
        let most = self.fit.steps_per_epoch.unwrap_or(usize::MAX);
        let end = steps.unwrap_or(most).min(most).max(before);
        let mut sums = sums_so_far(self.trainer)?;
        let (start, skipped) = (Instant::now(), data.skipped());
        let (mut whole, mut done) = (Phase::default(), before);
        let mut rows = Vec::new();
        loop {
            let (trainer, fit) = (&mut *self.trainer, &*self.fit);
            let due = trainer.callbacks.batches_until_due();
            let until = due.map_or(end, |more| end.min(done + more));
            let mut training = ServerTraining {
                model: &mut trainer.compiled,
                servers,
                batches,
                fit,
                number: (trainer.progress.fit_number, epoch),
                told_end: None,
            };
            let over = training.train_on(done..until)?;
            add_rows(&mut rows, over.sums.get(sums.len()..).unwrap_or_default());
            sums = joined(sums, &over.sums);
            add_staleness(&mut whole, &over);
            if over.end > 0 && (over.stopped || due.is_some()) {
                (trainer.progress).hold_at(batches.position_after(over.end));
                set_sums(&mut trainer.compiled, &sums)?;
            }
            if over.stopped {
                self.save_interrupted()?;
                return Err(self.stopped());
            }
            let reached = usize::try_from(over.end).unwrap_or(usize::MAX);
            let is_last = until >= end || reached < until;
            if due.is_some() {
                self.at_stop(done..reached)?;
            }
            done = reached;
            if is_last || self.wants_stop() {
                break;
            }
        }
        let trainer = &mut *self.trainer;
        set_sums(&mut trainer.compiled, &sums)?;
        let input = input_of(data, Vec::new(), Duration::ZERO, start.elapsed(), skipped);
        let setup = &trainer.compiled.setup;
        if before == 0 && !setup.epoch_totals.has_weight(&sums) {
            return Err(setup.empty_epoch_error(done, input.skipped));
        }
        let mut logs = setup.logs(&sums, f64::NAN);
        report_staleness(trainer.engine(), servers, &whole, &mut logs);
        report_rows(&rows, &mut logs);
        Ok((logs, done, input))
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

/// Adds how far pushes of a part of an epoch were behind.
fn add_staleness(whole: &mut Phase, part: &Phase) {
    let mut counts: BTreeMap<u64, u64> = whole.staleness.iter().copied().collect();
    for (behind, count) in &part.staleness {
        *counts.entry(*behind).or_insert(0) += count;
    }
    whole.staleness = counts.into_iter().collect();
    whole.dropped += part.dropped;
}

/// Adds numbers of rows, which follow the sums of batches where workers keep rows.
fn add_rows(rows: &mut Vec<f64>, more: &[f64]) {
    rows.resize(rows.len().max(more.len()), 0.0);
    for (all, count) in rows.iter_mut().zip(more) {
        *all += count;
    }
}

/// How many rows of tables workers had and pulled, as logs.
fn report_rows(rows: &[f64], logs: &mut Logs) {
    for (name, count) in ["rows_cached", "rows_pulled"].into_iter().zip(rows) {
        logs.push(name, *count);
    }
}

/// Sums, and the sums before.
pub(super) fn joined(mut before: Vec<f64>, sums: &[f64]) -> Vec<f64> {
    for (all, sum) in before.iter_mut().zip(sums) {
        *all += sum;
    }
    before
}
