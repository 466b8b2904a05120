//! What several processes compare before the first step: that each was given the same `fit` and the same data.
//!
//! What only one of them does, such as a checkpoint or a validation, the others would not take part in; and whoever reads other data
//! than the others trains on other examples than those it has a part of.

use super::callbacks::ACT_TOGETHER;
use super::{Fit, Trainer};
use crate::Result;
use crate::data::{Batch, Facts, HostTensor, Position, TrainingData};

/// What to do about settings that differ.
const SAME_FIT: &str = "run the same program with the same settings on all workers, and give all of them the same `Fit`: the first one alone writes files and shows progress";
/// What to do about data that differ.
const SAME_DATA: &str = "give every worker all of the data, in one order: each trains on its part of every batch; data that you have divided yourself are given as `batches.shard(worker, AutoShardPolicy::Off)`";
/// What to do about batches that differ.
const SAME_ROWS: &str = "give every worker as many rows of a batch as the others, of the same shape, and weights to all of them or to none";

impl Trainer {
    /// Refuses a batch by hand of other shapes than the other processes'. Their programs may all be compiled, so that nothing else tells.
    pub(super) fn agree_on_batch(&self, batch: &Batch) -> Result<()> {
        let Some(world) = self.compiled.placement.world() else {
            return Ok(());
        };
        world.check_takes_part()?;
        let shapes = |tensors: &[HostTensor]| {
            let shapes = tensors.iter().map(|tensor| tensor.shape().to_string());
            shapes.collect::<Vec<_>>().join(", ")
        };
        let weight = batch.weight.as_ref();
        let facts = owned([
            ("the shape of the inputs", shapes(&batch.x)),
            ("the shape of the targets", shapes(&batch.y)),
            (
                "the shape of the weights",
                weight.map_or("none".to_owned(), |weight| weight.shape().to_string()),
            ),
        ]);
        world.agree_on(&facts, SAME_ROWS)
    }

    /// Refuses to train unless all processes begin at the same place, with the same settings and the same data.
    pub(super) fn agree_with_workers(
        &self,
        (first, fit): (usize, &Fit),
        data: &dyn TrainingData,
    ) -> Result<()> {
        let Some(world) = self.compiled.placement.world() else {
            return Ok(());
        };
        self.compiled.check_lengths(data.by_index())?;
        if let Some(batches) = fit.to_validate()? {
            self.compiled.check_lengths(Some(&batches))?;
        }
        if world.is_catching_up() {
            return Ok(());
        }
        let place = place(self.compiled.iterations, &self.progress.position);
        let mut settings = vec![("where the training begins".to_owned(), place)];
        settings.extend(self.settings(first, fit)?);
        world.agree_on(&settings, SAME_FIT)?;
        world.agree_on(&self.data_facts(fit, data)?, SAME_DATA)
    }

    /// The settings by which the processes would do other things.
    fn settings(&self, first: usize, fit: &Fit) -> Result<Facts> {
        let checkpoint = match (&fit.checkpoint, fit.save_freq) {
            (None, _) => "none".to_owned(),
            (Some(_), None) => "one after each epoch".to_owned(),
            (Some(_), Some(freq)) => format!("one every {freq} batches"),
        };
        let validation = match &fit.validation {
            None => "none".to_owned(),
            Some(_) => format!("one every {} epochs", fit.validation_freq),
        };
        let behind = fit.save_behind.map_or("no", |_| "yes");
        let compared = fit
            .comparison
            .map_or("as often as it costs nothing".to_owned(), |steps| {
                format!("every {steps} steps")
            });
        let acting = fit.all_callbacks().names();
        let acting: Vec<String> = (acting.into_iter())
            .filter(|name| acts_together(name))
            .collect();
        let acting = match acting.is_empty() {
            true => "none".to_owned(),
            false => acting.join(", "),
        };
        let own = [
            ("the checkpoint of `fit`", checkpoint),
            ("the validation", validation),
            ("`save_behind`", behind.to_owned()),
            ("the list of callbacks", acting),
            ("`watch_replicas`", format!("{:?}", fit.watch)),
            ("how often workers are compared", compared),
            (
                "the learning rate",
                (self.learning_rate()? as f32).to_string(),
            ),
            ("the seed", self.compiled.state.seed()?.to_string()),
        ];
        let mut facts = owned(length_of(first, fit));
        facts.extend(owned(own));
        Ok(facts)
    }

    fn data_facts(&self, fit: &Fit, data: &dyn TrainingData) -> Result<Facts> {
        let settings = settings_of_data(fit).unwrap_or_else(|| "none".to_owned());
        let mut facts = self.training_facts(data);
        facts.extend(owned([("the settings of the data", settings)]));
        if let Some(batches) = fit.to_validate()? {
            facts.extend(batches.facts("validation", 0));
        }
        Ok(facts)
    }

    /// What all processes must have alike of the data that are trained on.
    pub(super) fn training_facts(&self, data: &dyn TrainingData) -> Facts {
        match data.by_index() {
            Some(batches) => batches.facts("training", self.progress.position.epoch),
            // What is read of a stream is compared after each epoch.
            None => owned([(
                "the size of training batches",
                data.batch_size().to_string(),
            )]),
        }
    }
}

/// How long a `fit` trains.
pub(super) fn length_of(first: usize, fit: &Fit) -> [(&'static str, String); 3] {
    [
        ("the first epoch", (first + 1).to_string()),
        ("the number of epochs", fit.epochs.to_string()),
        ("`steps_per_epoch`", or_none(fit.steps_per_epoch)),
    ]
}

/// What the caller says of how its data were made.
pub(super) fn settings_of_data(fit: &Fit) -> Option<String> {
    let settings = fit.data_settings?;
    Some(format!("checksum {settings:08x}"))
}

pub(super) fn or_none(number: Option<usize>) -> String {
    number.map_or("none".to_owned(), |number| number.to_string())
}

/// Whether all processes do what a callback of this name does, which may end in a number.
fn acts_together(name: &str) -> bool {
    ACT_TOGETHER.iter().any(|kind| name.starts_with(kind))
}

pub(super) fn owned<const N: usize>(facts: [(&str, String); N]) -> Facts {
    let owned = facts.map(|(name, value)| (name.to_owned(), value));
    owned.into()
}

fn place(step: i64, position: &Position) -> String {
    let (epoch, batches) = (position.epoch + 1, position.trained());
    match batches {
        0 => format!("step {step}, at the begin of epoch {epoch}"),
        _ => format!("step {step}, after {batches} batches of epoch {epoch}"),
    }
}
