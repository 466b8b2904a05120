//! The time of each replica for its part of a step, and which replica is a straggler.

use std::fmt;
use std::time::{Duration, Instant};

use phalanx_graph::Program;

use super::Trainer;
use super::batch::{put, tensors};
use super::compiled_model::CompiledModel;
use super::divided_batch::DividedBatch;
use super::forward_backward::ForwardPass;
use super::in_flight::InFlight;
use super::options::Watch;
use super::step_program::{BatchShape, StepBuilder};
use super::train_state::slices;
use crate::data::Batch;
use crate::optim::WindowPart;
use crate::replicas::{Layout, Placement};
use crate::{Error, Result};

/// How long each replica takes for its part of a batch, without waiting for the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaTimes {
    /// By replica.
    pub replicas: Vec<ReplicaTime>,
    /// Whether a smaller share takes less time: not where layers exchange values between replicas.
    pub shares_count: bool,
}

/// How long one replica takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaTime {
    /// The device's name, as in `gpu:1`.
    pub device: String,
    /// Examples of its part.
    pub rows: usize,
    /// The median over the steps.
    pub median: Duration,
}

/// A replica that takes this many times the median of all replicas is a straggler.
const STRAGGLER_RATIO: f64 = 1.2;
/// It must also take this much more than the median: replicas are launched one after another, at some microseconds each.
const LAUNCH_OVERHEAD: Duration = Duration::from_micros(100);

impl ReplicaTimes {
    /// The slowest replica, if it takes more than 1.2 times the median.
    #[must_use]
    pub fn straggler(&self) -> Option<usize> {
        let usual = self.usual()?;
        let replicas = self.replicas.iter().enumerate();
        let (slowest, time) = replicas.max_by_key(|(_, r)| r.median)?;
        let straggles =
            time.median > usual.mul_f64(STRAGGLER_RATIO) && time.median > usual + LAUNCH_OVERHEAD;
        straggles.then_some(slowest)
    }

    /// The median time.
    fn usual(&self) -> Option<Duration> {
        let mut times: Vec<Duration> = self.replicas.iter().map(|r| r.median).collect();
        times.sort();
        times.get(times.len().checked_sub(1)? / 2).copied()
    }

    /// Shares in proportion to the speeds of the replicas, which add up to the examples of the batch: as
    /// [`shares`](crate::strategy::MirroredStrategy::shares) they make all replicas take the same time. `None` where smaller shares take no
    /// less time, a replica had no example, or one is so slow that it would get none.
    #[must_use]
    pub fn shares(&self) -> Option<Vec<u32>> {
        let speed = |r: &ReplicaTime| r.rows as f64 / r.median.as_secs_f64().max(1e-9);
        let total: f64 = self.replicas.iter().map(speed).sum();
        let rows: usize = self.replicas.iter().map(|r| r.rows).sum();
        let share = |r: &ReplicaTime| (rows as f64 * speed(r) / total).round() as u32;
        let shares: Vec<u32> = self.replicas.iter().map(share).collect();
        let each =
            self.replicas.iter().all(|r| r.rows > 0) && shares.iter().all(|&share| share > 0);
        (self.shares_count && each && !shares.is_empty()).then_some(shares)
    }

    /// The smaller of two times of each replica, so that a moment of other work on a device makes no straggler.
    fn least(mut self, other: &Self) -> Self {
        for (time, other) in self.replicas.iter_mut().zip(&other.replicas) {
            time.median = time.median.min(other.median);
        }
        self
    }

    /// What a user should know, if a replica keeps the others waiting.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        let (slow, usual) = (self.straggler()?, self.usual()?);
        let ReplicaTime { device, median, .. } = &self.replicas[slow];
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let shared = self.shares().map_or_else(String::new, |shares| {
            format!("give it less with the shares {shares:?}, ")
        });
        Some(format!(
            "replica {slow} ({device}) keeps the others waiting: its part of a step takes {:.3} ms, the others' {:.3} ms; {shared}see what else uses the device, or leave it out",
            ms(*median),
            ms(usual)
        ))
    }
}

/// A line a replica, and one that names the straggler.
impl fmt::Display for ReplicaTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (replica, time) in self.replicas.iter().enumerate() {
            let (device, rows, ms) = (&time.device, time.rows, time.median.as_secs_f64() * 1e3);
            writeln!(
                f,
                "replica {replica}  {device:<8} {rows:>6} examples {ms:>10.3} ms"
            )?;
        }
        let warning = self.warning();
        f.write_str(
            warning
                .as_deref()
                .unwrap_or("no replica keeps the others waiting"),
        )
    }
}

/// Decides at the end of an epoch whether to time the replicas, and notices a straggler.
///
/// Timings cost time, so with `Auto` the training between two timings takes [`OVERHEAD_RATIO`] times as long as a timing.
/// All fits of a trainer count together: many short ones deserve as much as one long one.
#[derive(Default)]
pub(super) struct StragglerMonitor {
    watch: Watch,
    /// A timing failed with `Auto`, so none is tried again.
    has_failed: bool,
    /// The first full batch of the epoch.
    sample: Option<Batch>,
    /// What the last timing cost.
    cost: Option<Duration>,
    /// The longest time that a step took to begin before the first timing, when its program was compiled.
    compiling: Duration,
    /// The time and the number of steps trained since the last timing.
    trained: Duration,
    steps: u32,
}

/// Training takes at least this many times as long as the timings in it.
const OVERHEAD_RATIO: u32 = 50;
/// The least that compiling is assumed to take.
const LEAST_COMPILE_TIME: Duration = Duration::from_secs(2);
/// StepExecutable that make a timing.
const TIMED_RUNS: usize = 5;

impl StragglerMonitor {
    /// A fit begins; only replicas with their own copy of the variables are timed.
    pub(super) fn begin(&mut self, watch: Watch, placement: &Placement) {
        let is_copied = placement.replicas() > 1 && placement.layout().is_replicated();
        // Times of one process say nothing of the others, and its replicas cannot step without them.
        let is_alone = placement.world().is_none() && placement.servers().is_none();
        self.watch_replicas(if is_copied && is_alone {
            watch
        } else {
            Watch::Never
        });
    }

    fn watch_replicas(&mut self, watch: Watch) {
        self.watch = match watch {
            Watch::Auto if self.has_failed => Watch::Never,
            watch => watch,
        };
        self.sample = None;
    }

    /// Notes a step that was begun on a batch, and the first full batch of `full` rows as a sample for timings.
    pub(super) fn record_step(&mut self, batch: &Batch, full: usize, took: Duration) {
        self.compiling = self.compiling.max(took);
        self.steps = self.steps.saturating_add(1);
        if self.watch != Watch::Never && self.sample.is_none() && batch.rows() == full {
            self.sample = Some(batch.clone());
        }
    }

    /// Notes the time that a timing took.
    fn timed(&mut self, cost: Duration) {
        (self.cost, self.trained, self.steps) = (Some(cost), Duration::ZERO, 0);
    }

    /// What a timing costs: what the last one took, or, before the first, an estimate from the steps for two series of runs.
    fn timing_cost(&self) -> Duration {
        let step = self.trained / self.steps.max(1);
        let first = || self.compiling.max(LEAST_COMPILE_TIME) + step * (2 * TIMED_RUNS as u32);
        self.cost.unwrap_or_else(first)
    }

    /// Whether to time the replicas now, after an epoch that took this long.
    fn is_due(&mut self, took: Duration) -> bool {
        self.trained += took;
        match self.watch {
            Watch::Never => false,
            Watch::EveryEpoch => true,
            Watch::Auto => self.trained >= self.timing_cost() * OVERHEAD_RATIO,
        }
    }

    /// Times the replicas at the end of an epoch that took this long, if a timing is due.
    ///
    /// # Errors
    /// When they cannot be timed and [`Watch::EveryEpoch`] asked for it; with `Auto` a notice says so once, for training
    /// does not depend on it.
    pub(super) fn time_replicas_if_due(
        &mut self,
        model: &CompiledModel,
        took: Duration,
    ) -> Result<Option<ReplicaTimes>> {
        let sample = self.sample.take();
        let is_due = self.is_due(took);
        let Some(sample) = sample.filter(|_| is_due) else {
            return Ok(None);
        };
        let start = Instant::now();
        let timed = time_replicas_twice(model, &sample);
        self.timed(start.elapsed());
        match timed {
            Err(error) if self.watch == Watch::Auto => {
                self.has_failed = true;
                self.watch = Watch::Never;
                model.engine().notice(&format!(
                    "warning: the replicas cannot be timed, and are not again: {error}"
                ));
                Ok(None)
            }
            timed => timed.map(Some),
        }
    }
}

impl Trainer {
    /// The time that the program of a training step takes by itself: the median of `steps` runs on a batch that is on the
    /// device already, each waited for. The steps train.
    ///
    /// What a step takes longer than this is the loop's.
    ///
    /// # Errors
    /// As [`fit`](Self::fit).
    pub fn device_time(&mut self, batch: &Batch, steps: usize) -> Result<Duration> {
        self.train_on_batch(batch)?;
        let (partition, shape) = self.compiled.part(batch, batch.rows())?;
        let model = &mut self.compiled;
        let on_devices = put(&model.placement, tensors(batch), &partition, shape.filled)?;
        let mut times = Vec::with_capacity(steps);
        let batch = DividedBatch {
            batch: batch.clone(),
            partition,
            shape,
        };
        let batch = std::slice::from_ref(&batch);
        for _ in 0..steps.max(1) {
            let key = model.compile_steps(batch, &mut InFlight::default())?;
            let start = Instant::now();
            let done = model.begin_steps(&key, &on_devices)?;
            model.engine().wait(&done, 1)?;
            times.push(start.elapsed());
        }
        model.results(0.0)?;
        times.sort();
        Ok(times[times.len() / 2])
    }

    /// How long each replica takes for its part of a step on this batch, computing all at once but not waiting for one
    /// another: the median of `steps` runs. Nothing is trained.
    ///
    /// # Errors
    /// As [`fit`](Self::fit).
    pub fn replica_times(&self, batch: &Batch, steps: usize) -> Result<ReplicaTimes> {
        replica_times(&self.compiled, batch, steps)
    }
}

fn replica_times(model: &CompiledModel, batch: &Batch, steps: usize) -> Result<ReplicaTimes> {
    model.setup.objective.require_loss("time the replicas")?;
    if matches!(
        model.placement.layout(),
        Layout::Sharded(_) | Layout::Pipelined(_)
    ) {
        return Err(Error::user(
            "only replicas can be timed one by one, and this strategy divides one model over its devices; use `device_time`",
        ));
    }
    let placement = &model.placement;
    let partition = placement.partition(batch.rows(), batch.rows());
    let whole = BatchShape::of(&model.setup, batch)?;
    let shape = whole.part(
        &partition,
        !partition.is_even(),
        model.setup.branches_by_size(),
    );
    let compiled = placement.compile("replica_step", &replica_step(model, &shape)?)?;
    let batch = put(placement, tensors(batch), &partition, shape.filled)?;
    let copies = model.state.copies_of_all(&model.setup)?;
    // Fresh totals: an epoch may go on after this with its own.
    let totals = model.state.zeros(&model.setup)?;
    let lists = model.state.arguments(copies.as_deref(), &totals, &batch)?;
    let engine = model.placement.engine();
    let mut times = vec![Vec::with_capacity(steps); partition.replicas()];
    for _ in 0..steps.max(1) {
        let start = Instant::now();
        let (_, done) = compiled.run(&slices(&lists))?;
        let each = engine.wait_each(&done, start)?;
        for (times, took) in times.iter_mut().zip(each) {
            times.push(took);
        }
    }
    let replicas = times.iter_mut().enumerate().map(|(replica, times)| {
        times.sort();
        ReplicaTime {
            device: model.placement.device_name(replica),
            rows: partition.rows(replica),
            median: times[times.len() / 2],
        }
    });
    Ok(ReplicaTimes {
        replicas: replicas.collect(),
        shares_count: ForwardPass::new(&model.setup)
            .layer_communication()
            .is_none(),
    })
}

/// The step of one replica by itself as a program of all: none waits for another, nor does what layers exchange.
fn replica_step(model: &CompiledModel, shape: &BatchShape) -> Result<Program> {
    let setup = model.setup.for_single_replica();
    let step = StepBuilder::new(&setup).train_steps(shape, &[WindowPart::Counted])?;
    let mut program = step.program.simplified();
    // The state goes on from where it is.
    program.donated.clear();
    program.replicas = model.placement.replicas();
    Ok(program)
}

/// Times a few runs; a straggler is timed twice before it is reported.
fn time_replicas_twice(model: &CompiledModel, sample: &Batch) -> Result<ReplicaTimes> {
    let first = replica_times(model, sample, TIMED_RUNS)?;
    if first.straggler().is_none() {
        return Ok(first);
    }
    Ok(replica_times(model, sample, TIMED_RUNS)?.least(&first))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use phalanx_graph::op::{Node, Op, ReduceOp};
    use phalanx_graph::{HostTensor, Tensor};

    use super::*;
    use crate::data::Dataset;
    use crate::engine::{Engine, EngineOptions};
    use crate::fit::{Compile, Fit, Progress};
    use crate::losses::MeanSquaredError;
    use crate::nn::{Cx, Dense, Layer, Sequential};

    fn times(milliseconds: &[u64]) -> ReplicaTimes {
        let replica = |(index, &ms): (usize, &u64)| ReplicaTime {
            device: format!("gpu:{index}"),
            rows: 16,
            median: Duration::from_millis(ms),
        };
        ReplicaTimes {
            replicas: milliseconds.iter().enumerate().map(replica).collect(),
            shares_count: true,
        }
    }

    #[test]
    fn a_training_times_its_replicas_when_it_is_asked_or_long() {
        let options = EngineOptions {
            cpu_devices: 2,
            ..EngineOptions::default()
        };
        let engine = Engine::new(&options).unwrap();
        let x = HostTensor::new([6, 1], &[0.0f32, 1.0, 2.0, 3.0, 4.0, 5.0]);
        let data = Dataset::from_arrays(x.clone(), x).unwrap().batch(4);
        let timed = |placement: &Placement, watch| {
            let model = Sequential::new([1]).add(Dense::new(1)).build().unwrap();
            let compile = Compile {
                loss: MeanSquaredError.into(),
                ..Compile::default()
            };
            let mut trainer = Trainer::new(placement, model, None, compile).unwrap();
            let fit = Fit::epochs(2).watch_replicas(watch);
            let history = trainer.fit(&data, fit.progress(Progress::Silent)).unwrap();
            let weight = trainer.variables().unwrap()[0].1.f32s()[0];
            (history, weight)
        };
        let two = Placement::all(&engine);
        let (often, weight) = timed(&two, Watch::EveryEpoch);
        for epoch in &often.epochs {
            let times = epoch.replica_times.as_ref().unwrap();
            let devices: Vec<&str> = times.replicas.iter().map(|r| &*r.device).collect();
            assert_eq!(devices, ["cpu:0", "cpu:1"]);
            assert!(
                times
                    .replicas
                    .iter()
                    .all(|r| r.rows == 2 && !r.median.is_zero())
            );
        }
        // Nothing is trained by it, and what is short is not worth it.
        let (seldom, same) = timed(&two, Watch::Auto);
        assert_eq!(weight, same);
        assert!(
            seldom
                .epochs
                .iter()
                .all(|epoch| epoch.replica_times.is_none())
        );
        assert_eq!(seldom.epochs[1].logs, often.epochs[1].logs);
        let (alone, _) = timed(&Placement::first(&engine), Watch::EveryEpoch);
        assert!(
            alone
                .epochs
                .iter()
                .all(|epoch| epoch.replica_times.is_none())
        );
    }

    /// Rows that a layer sums over replicas by itself.
    #[derive(Debug)]
    struct Exchanging;

    impl Layer for Exchanging {
        fn kind(&self) -> &'static str {
            "exchanging"
        }
        fn config(&self) -> serde_json::Value {
            serde_json::json!({})
        }
        fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
            let own = cx.layer("inner", &Dense::new(1), inputs);
            own.all_reduce(ReduceOp::Sum)
                .all_gather(0)
                .slice_dim(0, 0, own.dim(0))
        }
    }

    /// A training of `Exchanging` on two devices with a batch for it, and what it tells.
    fn exchanging() -> (Trainer, Batch, Arc<Mutex<Vec<String>>>) {
        let told = Arc::new(Mutex::new(Vec::new()));
        let notices = Arc::clone(&told);
        let options = EngineOptions {
            cpu_devices: 2,
            notice: Arc::new(move |line| notices.lock().unwrap().push(line.to_owned())),
            ..EngineOptions::default()
        };
        let placement = Placement::all(&Engine::new(&options).unwrap());
        let model = Sequential::new([1]).add(Exchanging).build().unwrap();
        let compile = Compile {
            loss: MeanSquaredError.into(),
            ..Compile::default()
        };
        let trainer = Trainer::new(&placement, model, None, compile).unwrap();
        let x = HostTensor::new([4, 1], &[0.0f32, 1.0, 2.0, 3.0]);
        let batch = Batch {
            x: vec![x.clone()],
            y: vec![x],
            weight: None,
            first: 0,
        };
        (trainer, batch, told)
    }

    #[test]
    fn timing_disturbs_nothing_and_waits_for_no_one() {
        let (mut trainer, batch, _) = exchanging();
        let partition = trainer.compiled.placement.partition(4, 4);
        let shape = BatchShape::of(&trainer.compiled.setup, &batch)
            .unwrap()
            .part(&partition, false, false);
        let program = replica_step(&trainer.compiled, &shape).unwrap();
        let exchanges =
            |node: &Node| matches!(node.op, Op::AllReduce { .. } | Op::AllGather { .. });
        assert!(!program.nodes.iter().any(exchanges));
        assert_eq!(program.replicas, 2);
        // In the middle of an epoch.
        trainer.train_on_batch(&batch).unwrap();
        let sums = |trainer: &Trainer| {
            trainer
                .compiled
                .state
                .read_epoch_totals(&trainer.compiled.setup)
                .unwrap()
        };
        let (before, position) = (sums(&trainer), trainer.progress.is_mid_epoch);
        assert_eq!(trainer.replica_times(&batch, 1).unwrap().replicas.len(), 2);
        assert!(before.iter().any(|sum| *sum != 0.0));
        assert_eq!(
            (sums(&trainer), trainer.progress.is_mid_epoch),
            (before, position)
        );
    }

    #[test]
    fn a_sample_that_cannot_be_timed_is_told_once() {
        let (mut trainer, batch, told) = exchanging();
        let mut fails = |watch| {
            trainer.stragglers.begin(watch, &trainer.compiled.placement);
            let none = Batch {
                x: Vec::new(),
                ..batch.clone()
            };
            trainer
                .stragglers
                .record_step(&none, none.rows(), Duration::ZERO);
            trainer
                .stragglers
                .time_replicas_if_due(&trainer.compiled, Duration::from_secs(9999))
        };
        told.lock().unwrap().clear();
        assert!(fails(Watch::EveryEpoch).is_err() && told.lock().unwrap().is_empty());
        for _ in 0..2 {
            assert_eq!(fails(Watch::Auto).unwrap(), None);
        }
        let told = told.lock().unwrap();
        assert!(
            told.len() == 1 && told[0].contains("cannot be timed"),
            "{told:?}"
        );
    }

    #[test]
    fn timings_are_a_small_part_of_the_training() {
        let seconds = Duration::from_secs;
        let mut auto = StragglerMonitor::default();
        auto.watch_replicas(Watch::Auto);
        let batch = Batch {
            x: Vec::new(),
            y: Vec::new(),
            weight: None,
            first: 0,
        };
        // A program that took 3 seconds to compile, and is run at most ten times: each of 1,000 steps takes 150 ms at least.
        auto.record_step(&batch, 8, seconds(3));
        (1..1000).for_each(|_| auto.record_step(&batch, 8, Duration::ZERO));
        let mut due = Vec::new();
        // Three short fits.
        for took in [155, 100, 50] {
            auto.watch_replicas(Watch::Auto);
            due.push(auto.is_due(seconds(took)));
        }
        assert_eq!(due, [false, false, true]);
        auto.timed(seconds(1));
        let due = [40, 20].map(|took| auto.is_due(seconds(took)));
        assert_eq!(due, [false, true]);
        auto.watch_replicas(Watch::Never);
        assert!(!auto.is_due(seconds(9999)));
        auto.record_step(&batch, 0, seconds(1));
        assert!(auto.sample.is_none(), "no batch is kept for nothing");
        auto.watch_replicas(Watch::EveryEpoch);
        assert!(auto.is_due(seconds(1)));
    }

    #[test]
    fn what_a_device_did_for_a_moment_makes_no_straggler() {
        let both = times(&[10, 30]).least(&times(&[11, 10]));
        assert_eq!(both, times(&[10, 10]));
        assert_eq!(
            times(&[10, 30]).least(&times(&[11, 31])).straggler(),
            Some(1)
        );
    }

    #[test]
    fn the_straggler_is_the_one_that_others_wait_for() {
        assert_eq!(times(&[]).straggler(), None);
        assert_eq!(times(&[10]).straggler(), None);
        assert_eq!(times(&[10, 11, 10, 11]).straggler(), None);
        assert_eq!(times(&[10, 25]).straggler(), Some(1));
        assert_eq!(times(&[100, 119, 100]).straggler(), None);
        assert_eq!(times(&[100, 121, 100]).straggler(), Some(1));
        let mut short = times(&[1, 2]);
        short.replicas.iter_mut().for_each(|r| r.median /= 100);
        assert_eq!(short.straggler(), None);
        assert_eq!(times(&[10, 25, 10, 11]).straggler(), Some(1));
        let text = times(&[10, 25]).to_string();
        assert!(
            text.contains("replica 1  gpu:1        16 examples     25.000 ms"),
            "{text}"
        );
        assert!(
            text.ends_with("leave it out") && text.contains("replica 1 (gpu:1) keeps the others waiting: its part of a step takes 25.000 ms, the others' 10.000 ms; give it less with the shares [23, 9], see"),
            "{text}"
        );
        let mut fixed = times(&[10, 25]);
        fixed.shares_count = false;
        assert!(fixed.to_string().contains("10.000 ms; see what else"));
    }

    #[test]
    fn shares_are_in_proportion_to_speeds() {
        assert_eq!(times(&[10, 10]).shares(), Some(vec![16, 16]));
        assert_eq!(times(&[10, 30, 30]).shares(), Some(vec![29, 10, 10]));
        let mut unequal = times(&[10, 30]);
        unequal.replicas[1].rows = 48;
        assert_eq!(unequal.shares(), Some(vec![32, 32]));
        assert_eq!(times(&[1, 900]).shares(), None, "it would get nothing");
        assert_eq!(times(&[]).shares(), None);
        unequal.replicas[1].rows = 0;
        assert_eq!(unequal.shares(), None);
    }
}
