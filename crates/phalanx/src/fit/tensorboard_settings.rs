//! What is written for TensorBoard.

use std::path::{Path, PathBuf};

use phalanx_summary::HParam;

use super::trace::{TraceOutput, TracePlan};

/// What is written for TensorBoard: the arguments of Keras' `TensorBoard` callback, without embeddings.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorBoard {
    pub(super) folder: PathBuf,
    pub(super) histogram_freq: usize,
    pub(super) write_graph: bool,
    pub(super) write_images: bool,
    pub(super) write_grads: bool,
    pub(super) write_steps_per_second: bool,
    pub(super) update_freq: UpdateFreq,
    pub(super) write_system: bool,
    /// The first and the last step, counted from 1.
    pub(super) profile_batch: Option<(usize, usize)>,
    pub(super) settings: Vec<(String, HParam)>,
}

/// When results of the epoch so far are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UpdateFreq {
    /// Not before its end.
    #[default]
    Epoch,
    /// Also after each time this number of steps, 1 or more. Each time training waits for the device.
    Steps(usize),
}

impl TensorBoard {
    /// Writes to this folder the results of each epoch, the graph of the model, and what the process uses of its machine.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            histogram_freq: 0,
            write_graph: true,
            write_images: false,
            write_grads: false,
            write_steps_per_second: false,
            update_freq: UpdateFreq::Epoch,
            write_system: true,
            profile_batch: None,
            settings: Vec::new(),
        }
    }

    /// Writes a histogram of each variable after every `epochs` epochs, the first included; 0 is never, the default.
    #[must_use]
    pub const fn histogram_freq(mut self, epochs: usize) -> Self {
        self.histogram_freq = epochs;
        self
    }

    /// Whether the graph of the model is written, which the Graphs tab draws; by default it is.
    #[must_use]
    pub const fn write_graph(mut self, is_written: bool) -> Self {
        self.write_graph = is_written;
        self
    }

    /// Whether variables that can be seen as images are written as such, together with the histograms.
    #[must_use]
    pub const fn write_images(mut self, are_written: bool) -> Self {
        self.write_images = are_written;
        self
    }

    /// Whether gradients are written together with the histograms of variables, as histograms of their own (`dense/kernel/gradient`): of
    /// the loss over the first batch of the epoch, of all replicas and processes, before its step and before the optimizer clips them.
    /// An epoch that goes on in its middle has none. It costs a forward and a backward pass in each epoch whose histograms are written.
    ///
    /// A training whose variables are on parameter servers or in stages is refused.
    #[must_use]
    pub const fn write_grads(mut self, are_written: bool) -> Self {
        self.write_grads = are_written;
        self
    }

    /// Whether the steps of a second are written: `epoch_steps_per_second`, and `batch_steps_per_second` where
    /// [`update_freq`](Self::update_freq) is not the epoch.
    #[must_use]
    pub const fn write_steps_per_second(mut self, are_written: bool) -> Self {
        self.write_steps_per_second = are_written;
        self
    }

    /// When results of the epoch so far are written, as `batch_loss` and so on. They are in the run `train_steps`, and results of
    /// validations by the number of steps (`evaluation_loss_vs_iterations`) in `validation_steps`, where Keras has them in `train` and
    /// `validation`: a training that goes on replaces what follows its first step there and what follows its first epoch here. A training
    /// whose variables are on parameter servers is refused, but for [`UpdateFreq::Epoch`].
    #[must_use]
    pub const fn update_freq(mut self, freq: UpdateFreq) -> Self {
        self.update_freq = freq;
        self
    }

    /// Whether each process writes what it uses of its machine every ten seconds, in a run of its own (`worker-0`); by default it does.
    #[must_use]
    pub const fn write_system(mut self, is_written: bool) -> Self {
        self.write_system = is_written;
        self
    }

    /// Profiles these steps of the `fit`, counted from 1, for TensorBoard's profiler plug-in: what the host of each process does and when
    /// its devices run steps. `first` is at least 2, since the first step compiles. As [`Fit::trace`](super::Fit::trace), of which there is
    /// none then, not with parameter servers.
    #[must_use]
    pub const fn profile_batch(mut self, first: usize, last: usize) -> Self {
        let first = if first < 2 { 2 } else { first };
        self.profile_batch = Some((first, if last < first { first } else { last }));
        self
    }

    /// Settings of the training, which the HParams tab shows beside the results.
    #[must_use]
    pub fn settings(mut self, settings: impl IntoIterator<Item = (String, HParam)>) -> Self {
        self.settings = settings.into_iter().collect();
        self
    }

    /// The trace for the profiler plug-in, if there is to be one.
    pub(super) fn profile(&self) -> Option<TracePlan> {
        let (first, last) = self.profile_batch?;
        Some(TracePlan {
            output: TraceOutput::Profile(self.folder.join("train")),
            after: first as u64 - 1,
            steps: (last - first) as u64 + 1,
        })
    }

    /// Whether histograms are written of this epoch.
    pub(super) const fn wants_histograms(&self, epoch: usize) -> bool {
        self.histogram_freq > 0 && epoch.is_multiple_of(self.histogram_freq)
    }

    /// The number of steps after which results are written, if they are within an epoch.
    pub(super) const fn every(&self) -> Option<u64> {
        match self.update_freq {
            UpdateFreq::Epoch | UpdateFreq::Steps(0) => None,
            UpdateFreq::Steps(steps) => Some(steps as u64),
        }
    }
}

impl From<&str> for TensorBoard {
    fn from(folder: &str) -> Self {
        Self::new(folder)
    }
}

impl From<String> for TensorBoard {
    fn from(folder: String) -> Self {
        Self::new(folder)
    }
}

impl From<&Path> for TensorBoard {
    fn from(folder: &Path) -> Self {
        Self::new(folder)
    }
}

impl From<PathBuf> for TensorBoard {
    fn from(folder: PathBuf) -> Self {
        Self::new(folder)
    }
}

impl From<&PathBuf> for TensorBoard {
    fn from(folder: &PathBuf) -> Self {
        Self::new(folder)
    }
}
