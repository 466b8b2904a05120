//! A trainer: a model on its devices, and one step of its training.

use phalanx_graph::{HostTensor, Program};
use phalanx_pjrt::Buffer;

use super::batch::{check_values, put, tensors};
use super::callbacks::{CallbackStates, Callbacks};
use super::checkpoint::OwnCheckpoints;
use super::compile::Compile;
use super::divergence::Comparison;
use super::epoch_totals::EpochTotals;
use super::history::{History, Logs};
use super::in_flight::InFlight;
use super::loss_scale::LossScale;
use super::recovery::{Interruption, StepLog};
use super::replica_times::StragglerMonitor;
use super::saving::CheckpointWriter;
use super::setup::{Setup, StepLayout};
use super::step::BatchShape;
use super::step_cache::StepCache;
use super::step_times::{StepClock, StepPart};
use super::tensorboard::Events;
use super::train_state::TrainState;
use super::verify::ReplicaVerifier;
use super::workers::StopVote;
use crate::checkpoint::NamedTensors;
use crate::data::{Batch, Position, TrainingData, WorkerPart};
use crate::engine::{Engine, PendingRun};
use crate::nn::Model;
use crate::optim::{Optimizer, WindowPart};
use crate::replicas::{BatchPartition, Placement};
use crate::{Error, Result};

/// A model with its values on a device, and what it is trained with.
pub struct Trainer {
    pub(super) placement: Placement,
    pub(super) setup: Setup,
    pub(super) state: TrainState,
    verifier: Option<ReplicaVerifier>,
    pub(super) train: StepCache,
    /// The training steps that do not end a window of accumulated batches, where replicas add those by themselves.
    inner: StepCache,
    pub(super) test: StepCache,
    /// Steps skipped before the epoch totals were last reset.
    pub(super) skipped_before: f64,
    pub(super) predict: StepCache,
    /// Training batches seen: the host's copy of the count on the device, which leaves out skipped steps.
    pub(super) iterations: i64,
    /// The position of the last `fit` in its data, and whether the epoch totals hold the sums of that epoch so far.
    pub(super) position: Position,
    pub(super) is_mid_epoch: bool,
    /// The number of examples of that data, where it is known, and the checksum of their settings.
    pub(super) examples: Option<u64>,
    pub(super) data_settings: Option<u32>,
    pub(super) history: History,
    /// The variables after the last step, where the end of a `fit` has replaced them and nothing has changed them since.
    pub(super) last_variables: Option<NamedTensors>,
    /// The callbacks of the `fit` that runs.
    pub(super) callbacks: Callbacks,
    /// Whether a callback looks for losses that are not numbers, which are errors otherwise.
    pub(super) watches_bad_steps: bool,
    /// Whether moving averages are in the place of the variables, and these in theirs.
    pub(super) uses_averages: bool,
    /// What callbacks remember of the last `fit`, or of the checkpoint that was restored.
    pub(super) callback_states: CallbackStates,
    pub(super) own_checkpoints: OwnCheckpoints,
    pub(super) writer: CheckpointWriter,
    pub(super) clock: StepClock,
    pub(super) events: Events,
    /// Steps of this `fit`, as its trace counts them.
    pub(super) traced: u64,
    pub(super) stragglers: StragglerMonitor,
    pub(super) stop_vote: StopVote,
    pub(super) comparison: Comparison,
    pub(super) step_log: StepLog,
    pub(super) interruption: Option<Interruption>,
    /// The number of the last `fit`, for the names of its phases.
    pub(super) fit_number: u64,
}

impl Trainer {
    pub(crate) fn new(
        placement: &Placement,
        model: Model,
        values: Option<Vec<HostTensor>>,
        compile: Compile,
    ) -> Result<Self> {
        let seed = compile.seed;
        let setup = Setup::on(placement, model, compile)?;
        Ok(Self {
            state: TrainState::new(placement, &setup, values, seed)?,
            verifier: None,
            placement: placement.clone(),
            setup,
            train: StepCache::default(),
            inner: StepCache::default(),
            test: StepCache::default(),
            skipped_before: 0.0,
            predict: StepCache::default(),
            iterations: 0,
            position: Position::start(0),
            is_mid_epoch: false,
            examples: None,
            data_settings: None,
            history: History::default(),
            last_variables: None,
            callbacks: Callbacks::default(),
            watches_bad_steps: false,
            uses_averages: false,
            callback_states: CallbackStates::new(),
            own_checkpoints: OwnCheckpoints::default(),
            writer: CheckpointWriter::default(),
            clock: StepClock::default(),
            events: Events::default(),
            traced: 0,
            stragglers: StragglerMonitor::default(),
            stop_vote: StopVote::default(),
            comparison: Comparison::default(),
            step_log: StepLog::default(),
            interruption: None,
            fit_number: 0,
        })
    }

    /// The model.
    #[must_use]
    pub const fn model(&self) -> &Model {
        &self.setup.model
    }

    /// The devices it runs on.
    #[must_use]
    pub const fn engine(&self) -> &Engine {
        self.placement.engine()
    }

    /// Where its replicas run.
    #[must_use]
    pub const fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Where the last `fit` is in its data: what [`Fit::position`](super::Fit::position) goes on from, also after an error.
    #[must_use]
    pub const fn position(&self) -> &Position {
        &self.position
    }

    /// One training step on one batch; the results are those before its update.
    ///
    /// # Errors
    /// As [`fit`](Self::fit).
    pub fn train_on_batch(&mut self, batch: &Batch) -> Result<Logs> {
        self.require_loss("train")?;
        self.reset_epoch_totals()?;
        self.last_variables = None;
        let (partition, shape) = self.part(batch, batch.rows())?;
        self.step(batch, &partition, &shape, &mut InFlight::default())?;
        self.results(0.0)
    }

    /// The program of a training step on batches of this shape, to look at: as it is before it is simplified and compiled.
    ///
    /// Each replica gives it the variables, what the optimizer carries, the batches seen, the sums of the epoch, the
    /// seed, and its rows of the batch; before these, where rows may be there only to fill up, how many are not, and the
    /// number of the first. Where replicas accumulate gradients it is the step that ends in an update.
    /// [`Program::donated`] says which outputs replace which of them.
    ///
    /// # Errors
    /// When the batch does not fit the model.
    pub fn training_program(&self, batch: &Batch) -> Result<Program> {
        self.require_loss("train")?;
        let (_, shape) = self.part(batch, batch.rows())?;
        let part = self.setup.last_part();
        Ok(self.setup.train_step(&shape, part)?.program)
    }

    /// Batches of training seen so far, those that a dynamic [`LossScale`](super::LossScale) skipped left out.
    #[must_use]
    pub const fn iterations(&self) -> i64 {
        self.iterations
    }

    /// The learning rate of the next step.
    ///
    /// # Errors
    /// When the device fails.
    pub fn learning_rate(&self) -> Result<f64> {
        match self.scalar_slot(Optimizer::LEARNING_RATE)? {
            Some(rate) => Ok(rate),
            None => Ok(self
                .setup
                .optimizer
                .learning_rate()
                .value(self.iterations.unsigned_abs())),
        }
    }

    /// Changes the learning rate of the steps to come.
    ///
    /// # Errors
    /// When the optimizer follows a schedule, or the rate is negative or not a number.
    pub fn set_learning_rate(&mut self, rate: f64) -> Result<()> {
        let Some(slot) = self.scalar_slot_index(Optimizer::LEARNING_RATE) else {
            return Err(Error::user(
                "the learning rate follows a schedule and cannot be set; compile with a constant rate instead",
            ));
        };
        if !(rate.is_finite() && rate >= 0.0) {
            return Err(Error::user(format!(
                "the learning rate must be a number of at least 0, got {rate}"
            )));
        }
        let index = self.setup.model.variables().len() + slot;
        self.state.set(index, &HostTensor::scalar(rate as f32))
    }

    pub(super) fn require_loss(&self, doing: &str) -> Result<()> {
        self.setup.require_loss(doing)
    }

    pub(super) fn reset_epoch_totals(&mut self) -> Result<()> {
        self.state.reset_epoch_totals(&self.setup)?;
        self.skipped_before = self.skipped_steps()?;
        self.is_mid_epoch = false;
        Ok(())
    }

    /// Begins one training step on a batch.
    pub(super) fn step(
        &mut self,
        batch: &Batch,
        partition: &BatchPartition,
        shape: &BatchShape,
        flight: &mut InFlight,
    ) -> Result<()> {
        check_values(&self.setup, batch)?;
        self.compile_step(shape, flight)?;
        let batch = put(&self.placement, tensors(batch), partition, shape.filled)?;
        self.clock.enter(StepPart::Compute);
        let done = self.begin_step(shape, &batch)?;
        self.clock.step_begun(&done)?;
        flight.push(self.placement.engine(), done)?;
        self.verify()
    }

    /// Compiles the next step, for batches of this shape, if it is not yet.
    pub(super) fn compile_step(&mut self, shape: &BatchShape, flight: &mut InFlight) -> Result<()> {
        let part = self.setup.window_part(self.iterations);
        let steps = match part {
            WindowPart::Counted | WindowPart::Last => &self.train,
            WindowPart::Inner => &self.inner,
        };
        if steps.has(shape) {
            return Ok(());
        }
        // Processes compare their programs, which no running step may disturb.
        flight.finish(self.placement.engine())?;
        let before = self.clock.enter(StepPart::Compile);
        let mut traced = self.setup.train_step(shape, part)?;
        if self.inner.has(shape) {
            // Told when the window began.
            traced.disconnected.clear();
        }
        let (steps, name) = match part {
            WindowPart::Counted | WindowPart::Last => (&mut self.train, "train_step"),
            WindowPart::Inner => (&mut self.inner, "inner_step"),
        };
        steps.insert(&self.placement, &self.setup, name, shape, traced)?;
        self.clock.enter(before);
        Ok(())
    }

    /// Begins the next step, which is compiled, on a batch that is on the devices.
    pub(super) fn begin_step(
        &mut self,
        shape: &BatchShape,
        batch: &[Vec<Buffer>],
    ) -> Result<PendingRun> {
        let steps = match self.setup.window_part(self.iterations) {
            WindowPart::Counted | WindowPart::Last => &self.train,
            WindowPart::Inner => &self.inner,
        };
        let done = self.state.train(&self.setup, steps.get(shape)?, batch)?;
        // Skipped steps are found out in `results`.
        self.iterations += 1;
        Ok(done)
    }

    /// Compares the replicas every `verify_every` steps.
    fn verify(&mut self) -> Result<()> {
        let Some(every) = self.placement.verify_every() else {
            return Ok(());
        };
        let is_copied =
            self.placement.local_replicas() > 1 && self.placement.layout().is_replicated();
        if !is_copied || !self.iterations.unsigned_abs().is_multiple_of(every) {
            return Ok(());
        }
        let verifier = match self.verifier.take() {
            Some(verifier) => verifier,
            None => ReplicaVerifier::new(&self.placement, &self.setup)?,
        };
        verifier.verify(&self.placement, &self.state, self.iterations)?;
        self.verifier = Some(verifier);
        Ok(())
    }

    /// Which rows of a batch of the data are whose, and the shapes of a part.
    ///
    /// Where any batch may have lost examples, all that have are filled up: a program for each number of rows would be
    /// compiled otherwise.
    pub(super) fn part_of(
        &self,
        batch: &Batch,
        data: &dyn TrainingData,
        part: Option<WorkerPart>,
    ) -> Result<(BatchPartition, BatchShape)> {
        if let Some(WorkerPart { first_row, is_even }) = part {
            let is_even = is_even && !data.skips_corrupt();
            let (rows, full) = (batch.rows(), data.batch_size());
            let partition = self.placement.worker_partition(rows, full, is_even);
            return self.shaped_for(batch, partition.after(first_row), is_even);
        }
        if !data.skips_corrupt() {
            return self.part(batch, data.most_rows());
        }
        let partition = self
            .placement
            .padded_partition(batch.rows(), data.most_rows());
        self.shaped(batch, partition)
    }

    /// The partition of a batch of `full` rows or fewer, and the shapes of each replica's part.
    pub(super) fn part(&self, batch: &Batch, full: usize) -> Result<(BatchPartition, BatchShape)> {
        let partition = self.placement.partition(batch.rows(), full);
        self.shaped(batch, partition)
    }

    fn shaped(
        &self,
        batch: &Batch,
        partition: BatchPartition,
    ) -> Result<(BatchPartition, BatchShape)> {
        let is_even = partition.is_even();
        self.shaped_for(batch, partition, is_even)
    }

    /// As [`shaped`](Self::shaped), with arrays that may be padded unless `is_even`.
    pub(super) fn shaped_for(
        &self,
        batch: &Batch,
        partition: BatchPartition,
        is_even: bool,
    ) -> Result<(BatchPartition, BatchShape)> {
        let whole = BatchShape::of(&self.setup, batch)?;
        // Micro-batches get their position among the rows of the batch the same way as padded parts do.
        let is_cut =
            matches!(self.setup.layout, StepLayout::Pipelined(_)) && partition.replicas() > 1;
        let shape = whole.part(
            &partition,
            is_cut || !is_even,
            self.setup.branches_by_size(),
        );
        Ok((partition, shape))
    }

    /// Whether the loss scale has skipped a step since the totals began.
    pub(super) fn has_skipped(&self) -> Result<bool> {
        Ok(self.skipped_steps()? > self.skipped_before)
    }

    /// The results so far, the loss `none` where nothing has weight; an error when the loss of some step was not a number.
    pub(super) fn results(&mut self, none: f64) -> Result<Logs> {
        if let Some(world) = self.placement.world() {
            world.check()?;
        }
        let totals = self.state.read_epoch_totals(&self.setup)?;
        self.iterations = self.state.iterations()?;
        if let Some(step) = EpochTotals::first_non_finite(&totals)
            && !self.watches_bad_steps
        {
            return Err(self.divergence_error(step));
        }
        let none = if self.has_skipped()? { f64::NAN } else { none };
        let mut logs = self.logs(&totals, none);
        for name in [LossScale::SCALE, LossScale::SKIPPED_STEPS] {
            if let Some(value) = self.scalar_slot(name)? {
                logs.push(name, value);
            }
        }
        Ok(logs)
    }

    /// Changes which layers are trainable: programs are traced again, and the slots of variables that stay trained are kept.
    pub(super) fn update_trainable<T>(
        &mut self,
        change: impl FnOnce(&mut Model) -> Result<T>,
    ) -> Result<T> {
        let mut model = self.setup.model.clone();
        let result = change(&mut model)?;
        let setup = self.setup.with_model(model);
        self.state.rebuild_slots(&self.setup, &setup)?;
        self.setup = setup;
        // Frozen layers have no penalties, in tests neither.
        (self.train, self.test) = (StepCache::default(), StepCache::default());
        self.inner = StepCache::default();
        self.verifier = None;
        Ok(result)
    }

    /// Steps that the loss scale has skipped since the training began.
    pub(super) fn skipped_steps(&self) -> Result<f64> {
        Ok(self.scalar_slot(LossScale::SKIPPED_STEPS)?.unwrap_or(0.0))
    }

    /// The value of a scalar slot, by its name: [`Optimizer::LEARNING_RATE`] or one of [`LossScale`].
    fn scalar_slot(&self, name: &str) -> Result<Option<f64>> {
        let Some(slot) = self.scalar_slot_index(name) else {
            return Ok(None);
        };
        let index = self.setup.model.variables().len() + slot;
        let value = self.state.get(index, &self.setup.state.slots[slot].shape)?;
        Ok(value.to_f64().first().copied())
    }

    /// The position of the slot of this name that belongs to no variable.
    fn scalar_slot_index(&self, name: &str) -> Option<usize> {
        let mut slots = self.setup.state.slots.iter();
        slots.position(|slot| slot.param.is_none() && slot.name == name)
    }

    pub(super) fn divergence_error(&self, step: u64) -> Error {
        let rate = self
            .learning_rate()
            .map_or(String::new(), |rate| format!(" (now {rate})"));
        if !self.setup.loss_scale.slots().is_empty() {
            return Error::Training(format!(
                "the loss or gradients of step {step} (counted from 0) are infinite or not numbers even with a loss scale of 1; try a lower learning rate{rate}, Policy::MixedBfloat16 or Policy::Float32, and check the data for values that are not numbers or too large for half precision"
            ));
        }
        Error::Training(format!(
            "the loss of step {step} (counted from 0) is infinite or not a number, and what was learned is lost with it; try a lower learning rate{rate} or gradient clipping (`clipnorm`), and check the data for values that are not numbers and targets outside the range of the loss"
        ))
    }

    /// Losses are `none` where nothing has weight.
    pub(super) fn logs(&self, totals: &[f64], none: f64) -> Logs {
        let (loss, terms, results) =
            self.setup
                .epoch_totals
                .read(totals, &self.setup.objective.metrics, none);
        let mut logs = Logs::default();
        logs.push("loss", loss);
        let outputs = self.setup.model.output_names();
        for (term, value) in self.setup.objective.losses.terms.iter().zip(terms) {
            logs.push(format!("{}_loss", outputs[term.output]), value);
        }
        for (metric, value) in self.setup.objective.metrics.iter().zip(results) {
            logs.push(&metric.name, value);
        }
        logs
    }
}

impl std::fmt::Debug for Trainer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (model, iterations) = (self.setup.model.name(), self.iterations);
        write!(
            f,
            "Trainer of `{model}` after {iterations} steps on {:?}",
            self.engine()
        )
    }
}
