//! How long each replica takes for its part of a step, alone.

use std::fmt;
use std::time::{Duration, Instant};

use super::Trainer;
use super::batch::{put, tensors};
use super::options::Watch;
use super::run::slices;
use super::step::BatchShape;
use crate::data::Batch;
use crate::{Error, Result};

/// How long each replica takes for its part of a batch, without waiting for the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaTimes {
    /// By replica.
    pub replicas: Vec<ReplicaTime>,
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

/// So many times the median of all replicas make a straggler.
const STRAGGLES: f64 = 1.2;
/// And so much more: replicas are launched one after another, which takes some microseconds each.
const LAUNCH: Duration = Duration::from_micros(100);

impl ReplicaTimes {
    /// The replica that the others wait for, if one takes 1.2 times as long as half of them at least.
    #[must_use]
    pub fn straggler(&self) -> Option<usize> {
        let usual = self.usual()?;
        let replicas = self.replicas.iter().enumerate();
        let (slowest, time) = replicas.max_by_key(|(_, r)| r.median)?;
        let straggles = time.median > usual.mul_f64(STRAGGLES) && time.median > usual + LAUNCH;
        straggles.then_some(slowest)
    }

    /// How long half of the replicas take at most.
    fn usual(&self) -> Option<Duration> {
        let mut times: Vec<Duration> = self.replicas.iter().map(|r| r.median).collect();
        times.sort();
        times.get(times.len().checked_sub(1)? / 2).copied()
    }

    /// The less of two times of each: what else a device did for a moment makes no straggler.
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
        Some(format!(
            "replica {slow} ({device}) keeps the others waiting: its part of a step takes {:.3} ms, the others' {:.3} ms; see what else uses the device, or leave it out",
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

/// Times the replicas at the ends of epochs, and remembers what it costs.
pub(super) struct Watcher {
    watch: Watch,
    /// The first full batch of the epoch.
    sample: Option<Batch>,
    /// What a timing costs.
    cost: Duration,
    /// How long was trained since the last.
    trained: Duration,
    /// The straggler that was told last.
    told: Option<usize>,
}

/// Training takes so many times as long as the timings in it.
const PRICE: u32 = 50;
/// What the first timing is taken to cost at least: its program is compiled.
const COMPILING: Duration = Duration::from_secs(2);
/// Runs that make a timing.
const RUNS: usize = 5;

impl Watcher {
    pub(super) fn new(watch: Watch) -> Self {
        Self {
            watch,
            sample: None,
            cost: COMPILING,
            trained: Duration::ZERO,
            told: None,
        }
    }

    /// A step on a batch was begun, of which a full one has `full` rows; the first took as long as its program to compile.
    pub(super) fn see(&mut self, batch: &Batch, full: usize, took: Duration) {
        self.cost = self.cost.max(took);
        if self.watch != Watch::Never && self.sample.is_none() && batch.rows() == full {
            self.sample = Some(batch.clone());
        }
    }

    /// What to tell of these times: a straggler that was not told before.
    pub(super) fn news(&mut self, times: &ReplicaTimes) -> Option<String> {
        let before = std::mem::replace(&mut self.told, times.straggler());
        times.warning().filter(|_| before != self.told)
    }

    /// Whether it is time after an epoch of so long.
    fn is_due(&mut self, took: Duration) -> bool {
        self.trained += took;
        match self.watch {
            Watch::Never => false,
            Watch::EveryEpoch => true,
            Watch::Auto => self.trained >= self.cost * PRICE,
        }
    }
}

impl Trainer {
    /// How long each replica takes for its part of a step on this batch, computing all at once but not waiting for one
    /// another: the median of `steps` runs. Nothing is trained.
    ///
    /// # Errors
    /// As [`fit`](Self::fit).
    pub fn replica_times(&mut self, batch: &Batch, steps: usize) -> Result<ReplicaTimes> {
        self.needs_loss("time the replicas")?;
        if self.placement().division().is_some() || self.placement().stages().is_some() {
            return Err(Error::user(
                "only replicas can be timed one by one, and this strategy divides one model over its devices; use `device_time`",
            ));
        }
        let placement = self.placement();
        let split = placement.split(batch.rows(), batch.rows());
        let shape = BatchShape::of(&self.setup, batch)?.part(&split, !split.is_even());
        let mut program = self.setup.alone().train_step(&shape)?.program;
        // The state goes on from where it is.
        program.donated.clear();
        program.replicas = placement.replicas();
        let compiled = placement.compile("replica_step", &program)?;
        let batch = put(placement, tensors(batch), &split, shape.filled)?;
        self.state.clear_tally(&self.setup)?;
        self.is_mid_epoch = false;
        let copies = self.state.copies_of_all(&self.setup)?;
        let lists = self.state.arguments(copies.as_deref(), &batch)?;
        let engine = self.placement.engine();
        let mut times = vec![Vec::with_capacity(steps); split.replicas()];
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
                device: self.placement.device_name(replica),
                rows: split.count(replica),
                median: times[times.len() / 2],
            }
        });
        Ok(ReplicaTimes {
            replicas: replicas.collect(),
        })
    }

    /// The times of the replicas at the end of an epoch of so long, if it is time for them.
    ///
    /// One that keeps the others waiting is timed twice before it is told. What cannot be timed, for lack of memory say, is
    /// not: the training does not depend on it.
    pub(super) fn watched(
        &mut self,
        watcher: &mut Watcher,
        took: Duration,
    ) -> Option<ReplicaTimes> {
        let sample = watcher.sample.take();
        let is_copied = self.placement().replicas() > 1 && self.placement().parameters().is_none();
        if !is_copied || !watcher.is_due(took) {
            return None;
        }
        let start = Instant::now();
        let sample = sample?;
        let mut timed = self.replica_times(&sample, RUNS);
        if let Ok(first) = &timed
            && first.straggler().is_some()
        {
            let second = self.replica_times(&sample, RUNS);
            timed = second.map(|second| second.least(first));
        }
        (watcher.cost, watcher.trained) = (start.elapsed(), Duration::ZERO);
        match timed {
            Ok(times) => Some(times),
            Err(_) => {
                watcher.watch = Watch::Never;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use phalanx_graph::HostTensor;

    use super::*;
    use crate::data::Dataset;
    use crate::engine::{Engine, EngineOptions};
    use crate::fit::{Compile, Fit, Progress};
    use crate::losses::MeanSquaredError;
    use crate::nn::{Dense, Sequential};
    use crate::replicas::Placement;

    fn times(milliseconds: &[u64]) -> ReplicaTimes {
        let replica = |(index, &ms): (usize, &u64)| ReplicaTime {
            device: format!("gpu:{index}"),
            rows: 16,
            median: Duration::from_millis(ms),
        };
        ReplicaTimes {
            replicas: milliseconds.iter().enumerate().map(replica).collect(),
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

    #[test]
    fn a_straggler_is_told_once() {
        let mut watcher = Watcher::new(Watch::Auto);
        let told = [[10, 10], [10, 30], [10, 31], [30, 10], [10, 10], [30, 10]]
            .map(|both| watcher.news(&times(&both)).is_some());
        assert_eq!(told, [false, true, false, true, false, true]);
    }

    #[test]
    fn timings_are_a_small_part_of_the_training() {
        let seconds = Duration::from_secs;
        let mut auto = Watcher::new(Watch::Auto);
        let batch = Batch {
            x: Vec::new(),
            y: Vec::new(),
            weight: None,
            first: 0,
        };
        // A program that took 3 seconds to compile.
        auto.see(&batch, 8, seconds(3));
        let due = [140, 20].map(|took| auto.is_due(seconds(took)));
        assert_eq!(due, [false, true]);
        (auto.cost, auto.trained) = (seconds(1), Duration::ZERO);
        let due = [40, 20].map(|took| auto.is_due(seconds(took)));
        assert_eq!(due, [false, true]);
        assert!(!Watcher::new(Watch::Never).is_due(seconds(9999)));
        assert!(Watcher::new(Watch::EveryEpoch).is_due(seconds(1)));
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
            text.ends_with("leave it out") && text.contains("replica 1 (gpu:1) keeps the others waiting: its part of a step takes 25.000 ms, the others' 10.000 ms"),
            "{text}"
        );
    }
}
