//! How long each replica takes for its part of a step, alone.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use phalanx_pjrt::Buffer;

use super::Trainer;
use super::batch::{put, tensors};
use super::step::BatchShape;
use crate::data::Batch;
use crate::engine::{Compiled, Engine};
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

impl ReplicaTimes {
    /// The replica that the others wait for, if one takes 1.2 times as long as half of them at least.
    #[must_use]
    pub fn straggler(&self) -> Option<usize> {
        let mut times: Vec<Duration> = self.replicas.iter().map(|r| r.median).collect();
        times.sort();
        let usual = *times.get(times.len().checked_sub(1)? / 2)?;
        let slowest = self
            .replicas
            .iter()
            .enumerate()
            .max_by_key(|(_, r)| r.median)?;
        let straggles = slowest.1.median.as_secs_f64() > usual.as_secs_f64() * STRAGGLES;
        straggles.then_some(slowest.0)
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
        let Some(slow) = self.straggler() else {
            return write!(f, "no replica keeps the others waiting");
        };
        let device = &self.replicas[slow].device;
        write!(
            f,
            "replica {slow} ({device}) keeps the others waiting: see what else uses the device, or leave it out"
        )
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
        let split = self.placement().split(batch.rows(), batch.rows());
        let shape = BatchShape::of(&self.setup, batch)?.part(&split, !split.is_even());
        let mut program = self.setup.alone().train_step(&shape)?.program;
        // The state goes on from where it is.
        program.donated.clear();
        let batch = put(self.placement(), tensors(batch), &split, shape.filled)?;
        self.clear_tally()?;
        let (setup, placement) = (&self.setup, self.placement());
        let copies = self.state.copies_of_all(setup)?;
        let lists = self.state.arguments(copies.as_deref(), &batch)?;
        let compile = |&device: &usize| {
            placement
                .engine()
                .compile_on("train_step", &program, &[device])
        };
        let compiled: Vec<Compiled> = placement
            .devices()
            .iter()
            .map(compile)
            .collect::<Result<_>>()?;
        let engine = placement.engine();
        let times: Vec<Result<Duration>> = thread::scope(|scope| {
            let replicas = compiled.iter().zip(&lists);
            let running: Vec<_> = replicas
                .map(|(compiled, list)| scope.spawn(move || median(engine, compiled, list, steps)))
                .collect();
            let joined = running.into_iter().map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|_| Err(Error::Bug("a timing ended early".into())))
            });
            joined.collect()
        });
        let replica = |(replica, median): (usize, Result<Duration>)| {
            Ok(ReplicaTime {
                device: placement.device_name(replica),
                rows: split.count(replica),
                median: median?,
            })
        };
        let replicas = times.into_iter().enumerate().map(replica);
        Ok(ReplicaTimes {
            replicas: replicas.collect::<Result<_>>()?,
        })
    }
}

fn median(
    engine: &Engine,
    compiled: &Compiled,
    arguments: &[&Buffer],
    steps: usize,
) -> Result<Duration> {
    let mut times = Vec::with_capacity(steps);
    for _ in 0..steps.max(1) {
        let start = Instant::now();
        let (_, done) = compiled.run(&[arguments])?;
        engine.wait(&done, 1)?;
        times.push(start.elapsed());
    }
    times.sort();
    Ok(times[times.len() / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn the_straggler_is_the_one_that_others_wait_for() {
        assert_eq!(times(&[]).straggler(), None);
        assert_eq!(times(&[10]).straggler(), None);
        assert_eq!(times(&[10, 11, 10, 11]).straggler(), None);
        assert_eq!(times(&[10, 25]).straggler(), Some(1));
        assert_eq!(times(&[10, 25, 10, 11]).straggler(), Some(1));
        let text = times(&[10, 25]).to_string();
        assert!(
            text.contains("replica 1  gpu:1        16 examples     25.000 ms"),
            "{text}"
        );
        assert!(
            text.ends_with("leave it out") && text.contains("replica 1 (gpu:1) keeps"),
            "{text}"
        );
    }
}
