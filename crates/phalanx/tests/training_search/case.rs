//! A training as it was drawn.

use phalanx::checkpoint::TrainingState;
use phalanx::nn::Model;
use phalanx::prelude::*;

use crate::draw::Draw;
use crate::models::{self, Drawn};
use crate::outcome::Outcome;
use crate::random::Random;
use crate::rows::{Rows, Target};
use crate::settings::{self, Callbacks};

/// Model, data, settings.
#[derive(Debug)]
pub(crate) struct Case<'a> {
    pub(crate) draw: &'a Draw,
    pub(crate) model: Model,
    pub(crate) rows: Rows,
    pub(crate) batch: usize,
    pub(crate) batches: Batches,
    pub(crate) held_out: Batches,
    pub(crate) rows_held_out: Rows,
    pub(crate) compile: Compile,
    pub(crate) callbacks: Callbacks,
    pub(crate) epochs: usize,
}

impl<'a> Case<'a> {
    pub(crate) fn drawn(draw: &'a Draw) -> phalanx::Result<Self> {
        let Drawn {
            model,
            feeds,
            targets,
        } = models::model(draw)?;
        let compile = settings::compile(draw, &targets)?;
        let mut random = draw.random("sizes");
        let batch = random.from(3, 6);
        // Two shapes of batches or one.
        let count = batch * random.from(2, 3) + [0, random.from(1, batch - 1)][random.from(0, 1)];
        let rows = Rows::drawn(draw, "rows", count, &feeds, &targets);
        let held_out = Rows::drawn(draw, "rows held out", batch + 2, &feeds, &targets);
        let mut data = rows.dataset();
        if draw.has("class weights", 0.2) && matches!(targets[..], [Target::Class(_)]) {
            data = data.class_weights(ClassWeights::new([(0, 2.0), (1, 0.5), (2, 0.0)])?);
        }
        if draw.has("shuffle", 0.5) {
            data = data.shuffle(random.bits() % 100);
        }
        let mut batches = rows.batches(&data, batch);
        if draw.has("epochs across data", 0.15) {
            batches = rows.with_weights(data.repeat_forever().batch(batch).epochs_of(2));
        }
        Ok(Self {
            draw,
            model,
            rows,
            batch,
            batches,
            held_out: held_out.batches(&held_out.dataset(), batch),
            rows_held_out: held_out,
            compile,
            callbacks: Callbacks::drawn(draw),
            epochs: random.from(2, 4),
        })
    }

    pub(crate) fn trainer(&self, strategy: &impl Strategy) -> phalanx::Result<Trainer> {
        strategy.compile(self.model.clone(), self.compile.clone())
    }

    /// The `fit` of this training, with callbacks that know of no other.
    pub(crate) fn fit(&self) -> phalanx::Result<Fit> {
        let mut fit = Fit::epochs(self.epochs).progress(Progress::Silent);
        if self.draw.has("validation", 0.6) {
            fit = fit.validation(&self.held_out);
            if self.draw.has("rare validation", 0.2) {
                fit = fit.validation_freq(2);
            }
        }
        if self.draw.has("best epoch is kept", 0.15) {
            fit = fit.keep_best("loss");
        }
        for callback in self.callbacks.made()? {
            fit = fit.callback(callback);
        }
        Ok(fit)
    }

    /// All that the trainer leaves behind a `fit`.
    pub(crate) fn outcome(
        &self,
        trainer: &mut Trainer,
        history: &History,
    ) -> phalanx::Result<Outcome> {
        let mut outcome = Outcome::default();
        outcome.add_state(trainer)?;
        outcome.add_history(history);
        outcome.add_tests(trainer, &self.held_out)?;
        Ok(outcome)
    }

    pub(crate) fn trained(&self, strategy: &impl Strategy) -> phalanx::Result<Outcome> {
        self.trained_as(strategy, self.model.clone(), self.compile.clone())
    }

    /// The same of another form of the model, or with other settings.
    pub(crate) fn trained_as(
        &self,
        strategy: &impl Strategy,
        model: Model,
        compile: Compile,
    ) -> phalanx::Result<Outcome> {
        let mut trainer = strategy.compile(model, compile)?;
        let history = trainer.fit(&self.batches, self.fit()?)?;
        self.outcome(&mut trainer, &history)
    }
}

/// Gives the trainer this state with variables that are changed in their last bits, by this share.
pub(crate) fn perturb(
    trainer: &mut Trainer,
    state: &TrainingState,
    share: f64,
    seed: u64,
) -> phalanx::Result<()> {
    trainer.set_training_state(state)?;
    let mut random = Random::of(seed, 1);
    let changed = trainer.variables()?.into_iter().map(|(name, value)| {
        let numbers = value.to_f64();
        let largest = numbers.iter().fold(0.01, |most: f64, x| most.max(x.abs()));
        let numbers = numbers
            .iter()
            .map(|x| x + share * largest * random.of_list(&[-1.0, 1.0]));
        let numbers: Vec<f64> = numbers.collect();
        let is_float = value.dtype() == DType::F32;
        let changed = HostTensor::from_f64(value.shape().clone(), &numbers);
        (name, if is_float { changed } else { value })
    });
    let changed: Vec<_> = changed.collect();
    trainer.set_variables(&changed)
}
