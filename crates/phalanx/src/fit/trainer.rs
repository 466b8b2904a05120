//! A trainer: a model on its devices, and the parts that train it.

use phalanx_graph::{HostTensor, Program};

use super::Fit;
use super::callback_calls::KeptStates;
use super::callbacks::{CallbackStates, Callbacks, KeptEpochs};
use super::checkpoint::OwnCheckpoints;
use super::compile::Compile;
use super::compiled_model::CompiledModel;
use super::divergence::Comparison;
use super::divided_batch::DividedBatch;
use super::end_of_fit::ReplacedVariables;
use super::history::{History, Logs};
use super::in_flight::InFlight;
use super::recovery::Interruption;
use super::replica_times::StragglerMonitor;
use super::saving::CheckpointWriter;
use super::slow_workers::SlowWorkers;
use super::step_program::StepBuilder;
use super::tensorboard::Events;
use super::trace::StepTrace;
use super::training_progress::TrainingProgress;
use super::workers::StopVote;
use crate::data::{Batch, Position, TrainingData};
use crate::engine::Engine;
use crate::nn::Model;
use crate::replicas::Placement;
use crate::{Error, Result};

/// A model with its values on a device, and what it is trained with.
///
/// Its methods are what programs call. What they do is done by its parts: the model runs steps, the progress knows how far the
/// training is, and each of the others has one thing that a `fit` does around its steps.
pub struct Trainer {
    pub(super) compiled: CompiledModel,
    pub(super) progress: TrainingProgress,
    pub(super) replaced: ReplacedVariables,
    /// The callbacks of the `fit` that runs.
    pub(super) callbacks: Callbacks,
    /// What callbacks remember of the last `fit`, or of the checkpoint that was restored.
    pub(super) callback_states: CallbackStates,
    /// Variables of epochs that servers have gone past and this process goes through again.
    pub(super) kept_epochs: KeptEpochs,
    /// What a `fit` that fails goes back to, where its callbacks have done a part of what they do at one place.
    pub(super) kept_states: Option<KeptStates>,
    pub(super) own_checkpoints: OwnCheckpoints,
    pub(super) writer: CheckpointWriter,
    pub(super) events: Events,
    pub(super) trace: StepTrace,
    pub(super) stragglers: StragglerMonitor,
    pub(super) slow_workers: SlowWorkers,
    pub(super) stop_vote: StopVote,
    pub(super) comparison: Comparison,
    pub(super) interruption: Option<Interruption>,
}

impl Trainer {
    pub(crate) fn new(
        placement: &Placement,
        model: Model,
        values: Option<Vec<HostTensor>>,
        compile: Compile,
    ) -> Result<Self> {
        Ok(Self {
            compiled: CompiledModel::new(placement, model, values, compile)?,
            progress: TrainingProgress::new(),
            replaced: ReplacedVariables::default(),
            callbacks: Callbacks::default(),
            callback_states: CallbackStates::new(),
            kept_epochs: KeptEpochs::default(),
            kept_states: None,
            own_checkpoints: OwnCheckpoints::default(),
            writer: CheckpointWriter::default(),
            events: Events::default(),
            trace: StepTrace::default(),
            stragglers: StragglerMonitor::default(),
            slow_workers: SlowWorkers::default(),
            stop_vote: StopVote::default(),
            comparison: Comparison::default(),
            interruption: None,
        })
    }

    /// The model.
    #[must_use]
    pub const fn model(&self) -> &Model {
        &self.compiled.setup.model
    }

    /// The devices it runs on.
    #[must_use]
    pub const fn engine(&self) -> &Engine {
        self.compiled.placement.engine()
    }

    /// Where its replicas run.
    #[must_use]
    pub const fn placement(&self) -> &Placement {
        &self.compiled.placement
    }

    /// Where the last `fit` is in its data: what [`Fit::position`](super::Fit::position) goes on from, also after an error.
    #[must_use]
    pub const fn position(&self) -> &Position {
        &self.progress.position
    }

    /// Whether [`fit`](Self::fit) would go on with these data where it [resumes](super::Fit::resume), before anything is written of a
    /// training that goes on; a `fit` that begins anew takes any.
    ///
    /// # Errors
    /// What the numbers of an example mean has changed, or within an epoch the number of examples or the settings of the data.
    pub fn check_resume(&self, data: &dyn TrainingData, fit: &Fit) -> Result<()> {
        self.progress.check_resume(data, fit)
    }

    /// One training step on one batch; the results are of that batch alone, before its update. So they are in Keras 3.15; early versions of
    /// Keras 3 gave means over all calls since `reset_metrics`.
    ///
    /// In several processes each gives its own rows of the batch, as many as the others, in the order of the workers.
    ///
    /// # Errors
    /// As [`fit`](Self::fit); when another process gives a batch of other shapes, which ends nothing. Of several processes an error of one in the
    /// step ends the group: the others get it, and later calls that exchange anything fail in all. It is refused where variables are on
    /// parameter servers, and before `fit` in a process that has come in the place of a lost one.
    pub fn train_on_batch(&mut self, batch: &Batch) -> Result<Logs> {
        self.compiled.setup.objective.require_loss("train")?;
        if self.placement().servers().is_some() {
            return Err(Error::user(
                "a batch is trained on by `fit` where variables are on parameter servers",
            ));
        }
        self.compiled.check_lengths(None)?;
        self.agree_on_batch(batch)?;
        let trained = self.step_on(batch);
        self.compiled.placement.or_fail_together(trained)?;
        self.compiled.results(0.0)
    }

    /// Makes a training step on a batch, with totals of its own.
    fn step_on(&mut self, batch: &Batch) -> Result<()> {
        let (model, flight) = (&mut self.compiled, &mut InFlight::default());
        let (partition, shape) = model.part(batch, batch.rows())?;
        let world = model.placement.world();
        let before = world.map_or(0, |world| world.worker() * batch.rows());
        let batch = DividedBatch {
            batch: batch.clone(),
            partition: partition.after(before),
            shape,
        };
        let batches = &[batch];
        let key = model.compile_steps(batches, flight)?;
        // A batch that is refused leaves what a `fit` goes on from.
        model.reset_epoch_totals()?;
        self.progress.is_mid_epoch = false;
        self.replaced.last = None;
        model.run_steps(&key, batches, flight)?;
        flight.finish(model.engine())
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
        self.compiled.setup.objective.require_loss("train")?;
        let (_, shape) = self.compiled.part(batch, batch.rows())?;
        let setup = &self.compiled.setup;
        let part = setup.window().last_part();
        Ok(StepBuilder::new(setup)
            .train_steps(&shape, &[part])?
            .program)
    }

    /// Batches of training seen so far, those that a dynamic [`LossScale`](super::LossScale) skipped left out.
    #[must_use]
    pub const fn iterations(&self) -> i64 {
        self.compiled.iterations
    }

    /// The results of the epochs done so far, those before a checkpoint that was restored among them.
    #[must_use]
    pub const fn history(&self) -> &History {
        &self.progress.history
    }

    /// The learning rate of the next step.
    ///
    /// # Errors
    /// When the device fails.
    pub fn learning_rate(&self) -> Result<f64> {
        self.compiled.learning_rate()
    }

    /// Changes the learning rate of the steps to come.
    ///
    /// # Errors
    /// When the optimizer follows a schedule, or the rate is negative or not a number.
    pub fn set_learning_rate(&mut self, rate: f64) -> Result<()> {
        self.compiled.set_learning_rate(rate)
    }
}

impl std::fmt::Debug for Trainer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (model, iterations) = (self.compiled.setup.model.name(), self.compiled.iterations);
        write!(
            f,
            "Trainer of `{model}` after {iterations} steps on {:?}",
            self.engine()
        )
    }
}
