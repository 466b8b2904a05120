//! Evaluation, which changes nothing.

use phalanx_pjrt::Buffer;
use phalanx_ps::PhaseKind;

use super::Trainer;
use super::batch::{check_values, put, tensors};
use super::callback_calls::{OwnHooks, at_test};
use super::callbacks::{IntoCallback, SharedCallback};
use super::compiled_model::CompiledModel;
use super::history::Logs;
use super::in_flight::InFlight;
use super::options::check_batch_size;
use super::reports::{warn_lost, warn_skipped};
use super::servers::joined;
use super::step_cache::StepKey;
use super::step_program::{BatchShape, StepBuilder};
use super::workers::reader;
use crate::data::{Batch, Batches, TrainingData};
use crate::replicas::{BatchPartition, Placement};
use crate::servers::Servers;
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
    /// Where several processes train together all must call this, with the same data, and all get the whole result.
    ///
    /// # Errors
    /// When the data do not fit the model, are endless or have no weight, a source fails, or the device does. Of several processes an error of
    /// one while the batches go by, a callback's too, ends the group: the others get it, and later calls that exchange anything fail in all.
    pub fn evaluate(&mut self, batches: &Batches) -> Result<Logs> {
        self.evaluate_with(batches, std::iter::empty::<SharedCallback>())
    }

    /// The same with the hooks of these callbacks around it and around its batches: the `callbacks` of Keras' `evaluate`. On parameter
    /// servers, where workers take batches in turns, the hooks of batches are not called. What callbacks ask for beside, such as the end
    /// of a training, is nothing here.
    ///
    /// # Errors
    /// As [`evaluate`](Self::evaluate), or when a callback fails.
    pub fn evaluate_with(
        &mut self,
        batches: &Batches,
        callbacks: impl IntoIterator<Item: IntoCallback>,
    ) -> Result<Logs> {
        self.compiled.setup.objective.require_loss("evaluate")?;
        check_finite(batches, "evaluate")?;
        warn_lost(self.engine(), &batches.dataset().lost());
        let mut hooks = OwnHooks::new(callbacks, batches);
        self.keeping_variables(|trainer| {
            hooks.call(trainer, &mut |callback, cx| callback.on_test_begin(cx))?;
            let mut watch = |trainer: &mut Self, at| hooks.call(trainer, &mut at_test(at));
            let (logs, skipped) = Evaluation::of(trainer, &mut watch).run(batches)?;
            warn_skipped(trainer.engine(), skipped, "evaluation");
            hooks.call(trainer, &mut |callback, cx| callback.on_test_end(&logs, cx))?;
            Ok(logs)
        })
    }

    /// Loss and metrics of one batch alone, without training; of other calls nothing is in them, as for
    /// [`train_on_batch`](Self::train_on_batch).
    ///
    /// # Errors
    /// As [`evaluate`](Self::evaluate); when another process gives a batch of other shapes, which ends nothing. Any other error of one process of
    /// several ends the group for later calls, as there.
    pub fn test_on_batch(&mut self, batch: &Batch) -> Result<Logs> {
        self.compiled.setup.objective.require_loss("evaluate")?;
        self.compiled.check_lengths(None)?;
        self.agree_on_batch(batch)?;
        let whole = [Ok((batch.clone(), batch.rows()))];
        let totals = Evaluation::of(self, &mut |_, _| Ok(())).totals(whole)?;
        Ok(self.compiled.setup.logs(&totals, 0.0))
    }
}

/// An evaluation while it runs.
pub(super) struct Evaluation<'t, 'w, 'c> {
    pub(super) trainer: &'t mut Trainer,
    pub(super) watch: &'w mut TestWatch<'c>,
}

impl<'t, 'w, 'c> Evaluation<'t, 'w, 'c> {
    fn of(trainer: &'t mut Trainer, watch: &'w mut TestWatch<'c>) -> Self {
        Self { trainer, watch }
    }

    /// Loss and metrics, and how many examples were left out.
    pub(super) fn run(self, batches: &Batches) -> Result<(Logs, u64)> {
        self.trainer.compiled.check_lengths(Some(batches))?;
        match self.trainer.placement().world().cloned() {
            Some(world) => {
                world.check_takes_part()?;
                world.during("evaluates", || self.run_part(batches))
            }
            None => self.run_part(batches),
        }
    }

    fn run_part(mut self, batches: &Batches) -> Result<(Logs, u64)> {
        let own;
        let batches = match self.trainer.placement().world() {
            Some(world) => {
                own = batches.sharded_for(reader(world))?;
                &own
            }
            None => batches,
        };
        let before = batches.dataset().skipped();
        let totals = match self.trainer.placement().servers().cloned() {
            Some(servers) => servers.or_fail(self.totals_with_servers(&servers, batches))?,
            None => {
                let is_alone = self.trainer.placement().world().is_none();
                let read = batches.read_ahead().iter(0, 0);
                self.totals(read.passing_over_empty(is_alone).with_full_rows())?
            }
        };
        let skipped = batches.dataset().skipped() - before + batches.in_no_bucket();
        let setup = &self.trainer.compiled.setup;
        if !setup.epoch_totals.has_weight(&totals) {
            let next = setup.what_to_check();
            return Err(Error::User(format!(
                "cannot evaluate: no example has a weight above 0, and {skipped} are corrupt and left out; {next}"
            )));
        }
        Ok((setup.logs(&totals, 0.0), skipped))
    }

    /// The totals of batches, each with the number of rows of a full one like it.
    fn totals(
        &mut self,
        batches: impl IntoIterator<Item = Result<(Batch, usize)>>,
    ) -> Result<Vec<f64>> {
        let own = self.own_totals(batches);
        let model = &self.trainer.compiled;
        let own = model.placement.or_fail_together(own)?;
        model.state.merge_replicas(&model.setup, &own)
    }

    /// The totals of each replica of this process.
    fn own_totals(
        &mut self,
        batches: impl IntoIterator<Item = Result<(Batch, usize)>>,
    ) -> Result<Vec<Buffer>> {
        let model = &self.trainer.compiled;
        let mut totals = model.state.zeros(&model.setup)?;
        let mut flight = InFlight::default();
        for (number, batch) in batches.into_iter().enumerate() {
            let (batch, size) = batch?;
            (self.watch)(self.trainer, TestPlace::Begin(number))?;
            totals = self
                .trainer
                .compiled
                .test_step(&batch, size, &totals, &mut flight)?;
            (self.watch)(self.trainer, TestPlace::End(number))?;
        }
        flight.finish(self.trainer.engine())?;
        Ok(totals)
    }

    /// The totals of an evaluation whose batches the workers take in turns.
    fn totals_with_servers(&mut self, servers: &Servers, batches: &Batches) -> Result<Vec<f64>> {
        let phase = &format!("evaluate {}", servers.count("evaluate"));
        let items = batches.len().unwrap_or(0) as u64;
        let len = self.trainer.compiled.setup.epoch_totals.len;
        servers.enter(phase, PhaseKind::Sum, 0..items)?;
        let mut is_pulled = false;
        loop {
            let work = match servers.next(phase)? {
                Ok(work) => work,
                Err(over) => return Ok(joined(vec![0.0; len], &over.sums)),
            };
            if !std::mem::replace(&mut is_pulled, true) {
                self.trainer.compiled.state.pull()?;
            }
            let batch = batches.get(0, work.item as usize)?;
            let totals = match batch.x.is_empty() {
                true => vec![0.0; len],
                false => {
                    // The hooks of callbacks are for batches in their order.
                    let trainer = &mut *self.trainer;
                    Evaluation::of(trainer, &mut |_, _| Ok(()))
                        .totals([Ok((batch, batches.most_rows()))])?
                }
            };
            let bytes: Vec<u8> = totals.iter().flat_map(|x| x.to_le_bytes()).collect();
            servers.done(phase, &work, (0.0, 0.0), 0, &bytes)?;
        }
    }
}

impl CompiledModel {
    /// Adds a batch to the totals of a test.
    fn test_step(
        &mut self,
        batch: &Batch,
        full: usize,
        totals: &[Buffer],
        flight: &mut InFlight,
    ) -> Result<Vec<Buffer>> {
        let whole = BatchShape::of(&self.setup, batch)?;
        check_values(&self.setup, batch)?;
        let partition = padded_partition(&self.placement, batch.rows(), full);
        // One program serves all batches; with uneven shares, full batches have another.
        let shape = whole.part(&partition, true, self.setup.branches_by_size());
        let padded = partition.padded_rows() * partition.replicas();
        let key = StepKey::without_update(shape);
        if !self.test.has(&key) {
            // Processes compare their programs, which no running step may disturb.
            flight.finish(self.placement.engine())?;
            let setup = self.setup_for(&batch.x, padded);
            let traced = StepBuilder::new(&setup).test_step(&key.shape)?;
            let (placement, setup) = (&self.placement, &self.setup);
            self.test
                .insert(placement, setup, "test_step", &key, traced)?;
        }
        let own;
        let mut batch = batch;
        if let Some(x) = self.with_rows(&batch.x, padded)? {
            own = Batch { x, ..batch.clone() };
            batch = &own;
        }
        let batch = put(&self.placement, tensors(batch), &partition, true)?;
        let step = self.test.get(&key)?;
        let (totals, done) = self.state.test(&self.setup, step, totals, &batch)?;
        flight.push(self.placement.engine(), done, 1)?;
        Ok(totals)
    }
}

/// How `rows` rows are divided over the replicas of this process, when a full batch has `full` rows in all processes.
pub(super) fn padded_partition(placement: &Placement, rows: usize, full: usize) -> BatchPartition {
    match placement.world() {
        Some(_) => placement.worker_partition(rows, full, false),
        None => placement.padded_partition(rows, full),
    }
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
