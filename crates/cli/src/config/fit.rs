//! How a training file wants the model trained.

use std::path::PathBuf;

use phalanx::fit::TensorBoard;

use super::Located;

/// How to train.
#[derive(Debug, Clone, PartialEq)]
pub struct Fit {
    /// How often every example is seen.
    pub epochs: usize,
    /// Examples a step, over all devices; of each replica, where [`is_per_replica`](Self::is_per_replica).
    pub batch_size: usize,
    /// Whether the batch size is for each replica, whose number is not known yet.
    pub is_per_replica: bool,
    /// Batches of an epoch, where that is not all of the data.
    pub steps_per_epoch: Option<usize>,
    /// Steps of training that are one program.
    pub steps_per_execution: usize,
    /// Whether every epoch has an order of its own.
    pub shuffle: bool,
    /// Decides the initial weights, the order of examples and dropout.
    pub seed: u64,
    /// What is evaluated after each epoch.
    pub validation: Option<Located<Validation>>,
    /// On how many batches of the validation, where that is not all.
    pub validation_steps: Option<Located<usize>>,
    /// After how many epochs there is a validation.
    pub validation_freq: Located<usize>,
    /// The log whose best epoch gives the model that is saved.
    pub keep_best: Option<Located<String>>,
    /// When checkpoints are written, if they are.
    pub save_freq: Option<SaveFreq>,
    /// How many of the last checkpoints stay.
    pub keep_checkpoints: usize,
    /// Whose notice of the end of this machine ends the training with a checkpoint.
    pub preemption_notice: Option<Cloud>,
    /// What is written for TensorBoard, if anything.
    pub tensorboard: Option<TensorBoard>,
    /// Weights of classes; those not listed have 1.
    pub class_weight: Option<Located<Vec<(i64, f32)>>>,
}

impl Fit {
    /// Gives the batch size of the whole step, with this number of replicas.
    pub const fn resolve_batch_size(&mut self, replicas: usize) {
        if self.is_per_replica {
            self.batch_size = self.batch_size.saturating_mul(replicas);
            self.is_per_replica = false;
        }
    }
}

/// When a checkpoint is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SaveFreq {
    /// After each epoch.
    Epoch,
    /// Also after this number of batches of an epoch.
    Batches(usize),
}

/// Whose machine this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cloud {
    /// Google Compute Engine.
    Gce,
    /// Amazon EC2.
    Aws,
    /// Microsoft Azure.
    Azure,
}

impl Cloud {
    pub(super) const NAMES: [&str; 3] = ["gce", "aws", "azure"];
    const ALL: [Self; 3] = [Self::Gce, Self::Aws, Self::Azure];

    /// Its name in a training file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cloud| cloud.name() == name)
    }
}

/// What is evaluated after each epoch.
#[derive(Debug, Clone, PartialEq)]
pub enum Validation {
    /// A fraction of the training rows, from the end; they are not trained on.
    Split(f64),
    /// Files of their own.
    Csv(Vec<Located<PathBuf>>),
    /// The test rows.
    Test,
}
