//! Event files that TensorBoard reads, with the tags of Keras' `TensorBoard` callback.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use phalanx_graph::HostTensor;
use phalanx_summary::{
    EventWriter, GraphNode, HParam, Histogram, SessionStatus, SummaryError, SystemMonitor,
};

use super::compiled_model::CompiledModel;
use super::gpu_tags::gpu_tags;
use super::history::{EpochLogs, Logs};
use super::in_flight::InFlight;
use super::weight_images::weight_images;
use super::{Fit, StepPart, TensorBoard};
use crate::nn::Model;
use crate::{Error, Result};

/// The time between two lines about the machine.
const SYSTEM_INTERVAL: Duration = Duration::from_secs(10);

/// What a `fit` writes for TensorBoard, in one of the processes that train together.
#[derive(Default)]
pub(super) struct Events {
    /// In the first process.
    files: Option<EventFiles>,
    /// The number of steps after which results are read, in every process: reading them is done together.
    every: Option<u64>,
    /// Of how many epochs one has its gradients computed, in every process: that is done together, too.
    gradients_freq: Option<usize>,
    /// The gradients of the epoch, in the first process.
    gradients: Vec<(String, HostTensor)>,
    /// The number of steps done, for the thread that writes about the machine.
    step: Arc<AtomicI64>,
    monitor: Option<SystemMonitor>,
}

/// The event files of the first process.
struct EventFiles {
    settings: TensorBoard,
    /// Its first epoch and its first step counted from 1, or those at which files were begun anew.
    first: (i64, i64),
    train: Option<EventWriter>,
    /// Begun with the first result for each, as Keras does.
    validation: Option<EventWriter>,
    train_steps: Option<EventWriter>,
    validation_steps: Option<EventWriter>,
    session: Option<EventWriter>,
    /// When results within an epoch were last written, and after which step.
    last: (Instant, i64),
    /// Whether the last that was to be written could not be.
    is_refused: bool,
}

impl EventFiles {
    /// The files of a training that begins with an epoch after some steps.
    fn new(settings: &TensorBoard, first: (i64, i64)) -> Self {
        Self {
            settings: settings.clone(),
            first,
            train: None,
            validation: None,
            train_steps: None,
            validation_steps: None,
            session: None,
            last: (Instant::now(), first.1),
            is_refused: false,
        }
    }

    /// Writes what is known before the first step.
    fn begin(&mut self, model: &Model) -> Result<()> {
        let train = begun(&mut self.train, &self.settings, "train", self.first.0)?;
        if self.settings.write_graph {
            train.graph(&graph(model)).map_err(io)?;
            train.flush().map_err(io)?;
        }
        self.begin_session()
    }

    /// Writes the settings of the training, if there are any.
    fn begin_session(&mut self) -> Result<()> {
        if self.settings.settings.is_empty() {
            return Ok(());
        }
        let mut file = EventWriter::create(&self.settings.folder).map_err(io)?;
        let settings = self.settings.settings.iter();
        let settings: Vec<(&str, HParam)> = settings
            .map(|(name, value)| (name.as_str(), value.clone()))
            .collect();
        let group = self.settings.folder.display().to_string();
        file.hparams_start(&group, &settings).map_err(io)?;
        file.flush().map_err(io)?;
        self.session = Some(file);
        Ok(())
    }

    /// Writes the results of an epoch that ended with this step, so that others can read them when it is done.
    fn write(&mut self, done: &EpochLogs, steps: i64, learning_rate: f64) -> Result<()> {
        let results = done.logs.iter();
        let (tested, mut trained): (Vec<_>, Vec<_>) =
            results.partition(|(name, _)| name.starts_with(Logs::VALIDATION));
        if done.logs.get(Logs::LEARNING_RATE).is_none() {
            trained.push((Logs::LEARNING_RATE, learning_rate));
        }
        if self.settings.write_steps_per_second {
            trained.push((
                "steps_per_second",
                done.steps as f64 / done.seconds.max(1e-9),
            ));
        }
        let epoch = step(done.epoch);
        let trained = trained
            .into_iter()
            .map(|(name, value)| (format!("epoch_{name}"), value));
        let file = begun(&mut self.train, &self.settings, "train", self.first.0)?;
        write(file, epoch, trained.chain(times(done)))?;
        if tested.is_empty() {
            return Ok(());
        }
        let tested = tested.into_iter();
        let tested = tested.map(|(name, value)| (&name[Logs::VALIDATION.len()..], value));
        let of_epoch = tested
            .clone()
            .map(|(name, value)| (format!("epoch_{name}"), value));
        let file = begun(
            &mut self.validation,
            &self.settings,
            "validation",
            self.first.0,
        )?;
        write(file, epoch, of_epoch)?;
        if self.settings.every().is_none() {
            return Ok(());
        }
        let of_steps =
            tested.map(|(name, value)| (format!("evaluation_{name}_vs_iterations"), value));
        let (settings, first) = (&self.settings, self.first.1);
        let file = begun(
            &mut self.validation_steps,
            settings,
            "validation_steps",
            first,
        )?;
        write(file, steps, of_steps)
    }

    /// Writes the results of an epoch so far.
    fn write_batch(&mut self, logs: &Logs, steps: i64) -> Result<()> {
        let mut results: Vec<(String, f64)> = logs
            .iter()
            .map(|(name, value)| (format!("batch_{name}"), value))
            .collect();
        if self.settings.write_steps_per_second {
            let (at, before) = self.last;
            let rate = (steps - before) as f64 / at.elapsed().as_secs_f64().max(1e-9);
            results.push(("batch_steps_per_second".into(), rate));
        }
        self.last = (Instant::now(), steps);
        let (settings, first) = (&self.settings, self.first.1);
        let file = begun(&mut self.train_steps, settings, "train_steps", first)?;
        write(file, steps, results.into_iter())
    }

    /// Writes variables as histograms, and as images; and gradients as histograms.
    fn write_variables(
        &mut self,
        epoch: usize,
        values: &[(String, HostTensor)],
        gradients: &[(String, HostTensor)],
    ) -> Result<()> {
        let epoch = step(epoch);
        let file = begun(&mut self.train, &self.settings, "train", self.first.0)?;
        for (name, gradient) in gradients {
            let (tag, histogram) = (format!("{name}/gradient"), histogram(gradient));
            file.histogram(&tag, &histogram, epoch).map_err(io)?;
        }
        for (name, value) in values {
            let (tag, histogram) = (format!("{name}/histogram"), histogram(value));
            file.histogram(&tag, &histogram, epoch).map_err(io)?;
            if !self.settings.write_images {
                continue;
            }
            let images = weight_images(value);
            if !images.is_empty() {
                let tag = format!("{name}/image");
                file.images(&tag, &images, epoch).map_err(io)?;
            }
        }
        file.flush().map_err(io)
    }

    /// Takes note of what became of writing before an epoch and a step, counted from 1: training does not depend on it, so what cannot be
    /// written is left out with a warning, and what comes later is written to files of its own, for the last record of these may be
    /// half there.
    fn go_on(
        &mut self,
        written: Result<()>,
        next: (i64, i64),
        notice: impl Fn(&str),
    ) -> Result<()> {
        let was_refused = std::mem::replace(&mut self.is_refused, written.is_err());
        let Err(error) = written else {
            return Ok(());
        };
        if !matches!(error, Error::Io { .. }) {
            return Err(error);
        }
        if !was_refused {
            notice(&format!(
                "warning: nothing is written for TensorBoard until it can be again: {error}"
            ));
        }
        self.first = next;
        (self.train, self.validation) = (None, None);
        (self.train_steps, self.validation_steps) = (None, None);
        Ok(())
    }
}

fn histogram(value: &HostTensor) -> Histogram {
    let numbers: Vec<f32> = value.to_f64().iter().map(|&x| x as f32).collect();
    Histogram::of(&numbers)
}

/// Where the time went, in milliseconds of a step.
fn times(done: &EpochLogs) -> Vec<(String, f64)> {
    let Some(times) = done.times.filter(|times| times.steps > 0) else {
        return Vec::new();
    };
    let each = |time: Duration| time.as_secs_f64() * 1e3 / times.steps as f64;
    let parts = StepPart::ALL.map(|part| (part.name(), each(times.of(part))));
    let all = parts.into_iter().chain([("total", each(times.total()))]);
    all.map(|(name, value)| (format!("step_time_ms/{name}"), value))
        .collect()
}

/// The model as the Graphs tab draws it.
fn graph(model: &Model) -> Vec<GraphNode> {
    let sizes = |dims: Vec<usize>| {
        let own = dims.into_iter().map(Some);
        [None].into_iter().chain(own).collect()
    };
    let nodes = model.diagram().into_iter();
    nodes
        .map(|node| GraphNode {
            name: node.name,
            op: node.kind,
            inputs: node.inputs,
            shapes: node.shapes.into_iter().map(sizes).collect(),
            settings: Vec::new(),
        })
        .collect()
}

/// An event file of a run that hides what a training before left there of a step and later ones.
fn run(folder: &Path, first: i64) -> Result<EventWriter> {
    let mut file = EventWriter::create(folder).map_err(io)?;
    let begun = file.session_start(first).and_then(|()| file.flush());
    begun.map_err(|error| {
        // There would be one for each epoch while the disk is full.
        let _ = std::fs::remove_file(file.path());
        io(error)
    })?;
    Ok(file)
}

/// The event file of a run, begun where it is not yet.
fn begun<'a>(
    file: &'a mut Option<EventWriter>,
    settings: &TensorBoard,
    name: &str,
    first: i64,
) -> Result<&'a mut EventWriter> {
    Ok(match file {
        Some(file) => file,
        none => none.insert(run(&settings.folder.join(name), first)?),
    })
}

fn write(
    file: &mut EventWriter,
    step: i64,
    results: impl Iterator<Item = (String, f64)>,
) -> Result<()> {
    for (tag, value) in results {
        file.scalar(&tag, value as f32, step).map_err(io)?;
    }
    file.flush().map_err(io)
}

fn is_disk_full(error: &Error) -> bool {
    let full = std::io::ErrorKind::StorageFull;
    matches!(error, Error::Io { source, .. } if source.kind() == full)
}

/// The step of an epoch is its number, from 0.
fn step(epoch: usize) -> i64 {
    i64::try_from(epoch).unwrap_or(i64::MAX)
}

pub(super) fn io(error: SummaryError) -> Error {
    match error {
        SummaryError::Io {
            path,
            action,
            source,
        } => Error::Io {
            path,
            action,
            source,
        },
        other => Error::Bug(other.to_string()),
    }
}

impl Events {
    /// Begins the event files of a training that begins with epoch `first`, if any are asked for.
    pub(super) fn begin(model: &CompiledModel, fit: &Fit, first: usize) -> Result<Self> {
        let settings = fit.tensorboard.as_ref();
        let every = settings.and_then(TensorBoard::every);
        let with_gradients = |settings: &&TensorBoard| settings.write_grads;
        let gradients_freq = settings.filter(with_gradients);
        let gradients_freq = gradients_freq.map(|settings| settings.histogram_freq);
        let gradients_freq = gradients_freq.filter(|&freq| freq > 0);
        if let Some(world) = model.placement.world() {
            let every = every.map_or("each epoch".into(), |steps| format!("{steps} steps"));
            world.agree("`update_freq` of TensorBoard", &every)?;
            let freq = gradients_freq.map_or("no epoch".into(), |freq| format!("{freq} epochs"));
            world.agree("`write_grads` of TensorBoard", &freq)?;
        }
        if gradients_freq.is_some() && !model.has_gradients() {
            return Err(Error::user(
                "gradients are not written where variables are on parameter servers or in stages; leave out `write_grads`",
            ));
        }
        if every.is_some() && model.placement.servers().is_some() {
            return Err(Error::user(
                "results within an epoch are not written where variables are on parameter servers; leave out `update_freq`",
            ));
        }
        let mut events = Self {
            every,
            gradients_freq,
            step: Arc::new(AtomicI64::new(model.iterations)),
            ..Self::default()
        };
        if let Some(settings) = settings {
            if model.placement.is_chief() {
                // Results after the steps done stay; those of the epoch to come do not.
                let first = (step(first), model.iterations.saturating_add(1));
                let mut files = EventFiles::new(settings, first);
                match files.begin(&model.setup.model) {
                    Err(error) if !is_disk_full(&error) => return Err(error),
                    begun => files.go_on(begun, first, |line| model.engine().notice(line))?,
                }
                events.files = Some(files);
            }
            events.monitor = monitor(model, settings, &events.step);
        }
        Ok(events)
    }

    /// Writes the results so far after a step, where it is time for it.
    pub(super) fn write_batch(
        &mut self,
        model: &mut CompiledModel,
        (epoch, steps): (u64, usize),
        flight: &mut InFlight,
    ) -> Result<()> {
        self.step.store(model.iterations, Ordering::Relaxed);
        let is_due = |every: u64| model.has_passed(every, steps);
        if !self.every.is_some_and(is_due) {
            return Ok(());
        }
        flight.finish(model.placement.engine())?;
        let logs = model.results(0.0)?;
        let steps = model.iterations;
        let engine = model.placement.engine();
        let epoch = usize::try_from(epoch).unwrap_or(usize::MAX);
        self.files.as_mut().map_or(Ok(()), |files| {
            let written = files.write_batch(&logs, steps);
            let next = (step(epoch), steps.saturating_add(1));
            files.go_on(written, next, |line| engine.notice(line))
        })
    }

    /// Whether the gradients of this epoch are to be computed.
    pub(super) fn wants_gradients(&self, epoch: usize) -> bool {
        self.gradients_freq
            .is_some_and(|freq| epoch.is_multiple_of(freq))
    }

    /// Takes the gradients of the epoch, which are written at its end.
    pub(super) fn take_gradients(&mut self, gradients: Vec<(String, HostTensor)>) {
        if self.files.is_some() {
            self.gradients = gradients;
        }
    }

    /// Writes the results of an epoch, if there are event files.
    pub(super) fn write_epoch(&mut self, model: &CompiledModel, done: &EpochLogs) -> Result<()> {
        let Some(files) = &self.files else {
            return Ok(());
        };
        let wants_variables = files.settings.wants_histograms(done.epoch);
        let (rate, steps) = (model.learning_rate()?, model.iterations);
        let variables = wants_variables.then(|| model.variables()).transpose()?;
        let engine = model.placement.engine();
        let gradients = std::mem::take(&mut self.gradients);
        let Some(files) = &mut self.files else {
            return Ok(());
        };
        let written = files.write(done, steps, rate).and_then(|()| {
            let values = variables.as_ref();
            values.map_or(Ok(()), |values| {
                files.write_variables(done.epoch, values, &gradients)
            })
        });
        let next = (step(done.epoch) + 1, steps.saturating_add(1));
        files.go_on(written, next, |line| engine.notice(line))
    }

    /// Ends the event files of a training. TensorBoard keeps the first end of a session that it reads, and a training that an error ends may
    /// go on in the same files, so only the last end is written, as Keras does.
    pub(super) fn end(&mut self, has_succeeded: bool) {
        let events = std::mem::take(self);
        if let Some(mut session) = events.files.and_then(|files| files.session) {
            let ended = match has_succeeded {
                true => session.hparams_end(SessionStatus::Succeeded),
                false => Ok(()),
            };
            // The training is over, whatever becomes of this.
            let _ = ended.and_then(|()| session.flush());
        }
    }
}

/// Writes about the machine of this process, where that is asked for. Training does not depend on it.
fn monitor(
    model: &CompiledModel,
    settings: &TensorBoard,
    step: &Arc<AtomicI64>,
) -> Option<SystemMonitor> {
    if !settings.write_system {
        return None;
    }
    let worker = model.placement.worker();
    let folder = settings.folder.join(format!("worker-{worker}"));
    let started = run(&folder, model.iterations).and_then(|file| {
        let gpus = gpu_tags(&model.placement);
        let started = SystemMonitor::start(file, SYSTEM_INTERVAL, Arc::clone(step), gpus);
        started.map_err(|error| Error::Device(format!("no thread: {error}")))
    });
    let told = started.inspect_err(|error| {
        let line = format!("warning: worker {worker} does not write what it uses: {error}");
        model.engine().notice(&line);
    });
    told.ok()
}
