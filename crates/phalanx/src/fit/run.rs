//! Values on the device and steps in flight.

use std::collections::VecDeque;

use phalanx_graph::{DType, HostTensor, Shape};
use phalanx_pjrt::Buffer;

use super::step::{BatchShape, Setup, StepProgram};
use crate::engine::{Compiled, Done, Engine};
use crate::{Error, Result};

/// A compiled step for batches of one shape.
pub(super) struct Ready {
    shape: BatchShape,
    compiled: Compiled,
    changed: Vec<usize>,
}

/// The compiled programs of one kind of step, by the shape of the batch.
#[derive(Default)]
pub(super) struct Programs(Vec<Ready>);

impl Programs {
    /// The step for batches of this shape, compiled when it is the first of them.
    pub(super) fn get(
        &mut self,
        engine: &Engine,
        name: &str,
        shape: &BatchShape,
        trace: impl FnOnce() -> Result<StepProgram>,
    ) -> Result<&Ready> {
        let found = self.0.iter().position(|ready| ready.shape == *shape);
        let index = match found {
            Some(index) => index,
            None => {
                let traced = trace()?;
                for variable in &traced.disconnected {
                    engine.notice(&format!(
                        "warning: the loss does not depend on variable `{variable}`, so it is not trained; freeze its layer if that is meant"
                    ));
                }
                self.0.push(Ready {
                    shape: shape.clone(),
                    compiled: engine.compile(name, &traced.program)?,
                    changed: traced.changed,
                });
                self.0.len() - 1
            }
        };
        Ok(&self.0[index])
    }
}

/// The arrays of a training: variables, slots, batches seen; and the sums of the epoch.
///
/// A step gives up the arrays it replaces. When it fails they are gone, and `arrays` stays empty.
pub(super) struct State {
    arrays: Vec<Buffer>,
    tally: Vec<Buffer>,
    seed: Buffer,
}

impl State {
    /// The state before the first step; first values of the variables come from the seed when none are given.
    pub(super) fn new(
        engine: &Engine,
        setup: &Setup,
        values: Option<Vec<HostTensor>>,
        seed: u64,
    ) -> Result<Self> {
        let mut host = match values {
            Some(values) => {
                setup.model.check_values(&values)?;
                values
            }
            None => setup.model.init(seed)?,
        };
        let slots = setup.slots.iter();
        host.extend(slots.map(|slot| HostTensor::full(slot.shape.clone(), slot.fill)));
        // An average of no steps is the variable; the optimizer lets the first step replace it.
        for (variable, slot) in setup.averages() {
            host[slot] = host[variable].clone();
        }
        host.push(HostTensor::scalar(0i64));
        let key = [(seed >> 32) as u32, seed as u32];
        Ok(Self {
            arrays: host
                .iter()
                .map(|value| engine.put(0, value))
                .collect::<Result<_>>()?,
            tally: Vec::new(),
            seed: engine.put(0, &HostTensor::new([2], &key))?,
        })
    }

    /// Brings the slots in line with a setup of the same model and optimizer whose trained variables are others: those
    /// of variables that are trained still stay, the others begin anew.
    pub(super) fn resettle(&mut self, engine: &Engine, from: &Setup, to: &Setup) -> Result<()> {
        let variables = from.model.variables().len();
        self.arrays()?;
        let mut made = Vec::new();
        for (index, slot) in to.slots.iter().enumerate() {
            let kept = from.slots.iter().position(|old| old.name == slot.name);
            let averaged = to.averages().into_iter();
            let averaged = averaged.filter(|&(_, average)| average == variables + index);
            let value = match (kept, averaged.map(|(variable, _)| variable).next()) {
                (Some(_), _) => None,
                (None, Some(variable)) => Some(engine.get(&self.arrays[variable], &slot.shape)?),
                (None, None) => Some(HostTensor::full(slot.shape.clone(), slot.fill)),
            };
            let value = value.map(|value| engine.put(0, &value)).transpose()?;
            made.push((kept, value));
        }
        let mut old: Vec<Option<Buffer>> = self.arrays.drain(..).map(Some).collect();
        let mut take = |index: usize| old.get_mut(index).and_then(Option::take);
        let mut arrays: Vec<Option<Buffer>> = (0..variables).map(&mut take).collect();
        for (kept, value) in made {
            arrays.push(value.or_else(|| take(variables + kept?)));
        }
        arrays.push(take(variables + from.slots.len()));
        self.arrays = arrays.into_iter().flatten().collect();
        Ok(())
    }

    /// The variables, slots and batches seen, or why there are none.
    pub(super) fn arrays(&self) -> Result<&[Buffer]> {
        if self.arrays.is_empty() {
            return Err(Error::Training(
                "the values of this trainer were lost in a step that failed; compile the model again, or load a saved one".into(),
            ));
        }
        Ok(&self.arrays)
    }

    /// How many batches the device has counted; waits for the steps begun.
    pub(super) fn iterations(&self, engine: &Engine) -> Result<i64> {
        let count = self.arrays()?.last();
        let count = count.ok_or_else(|| Error::Bug("a state without iterations".into()))?;
        Ok(engine.get(count, &Shape::scalar(DType::I64))?.to_f64()[0] as i64)
    }

    pub(super) fn replace(&mut self, index: usize, value: Buffer) {
        if let Some(array) = self.arrays.get_mut(index) {
            *array = value;
        }
    }

    /// Sets the sums of the epoch to zero.
    pub(super) fn clear_tally(&mut self, engine: &Engine, setup: &Setup) -> Result<()> {
        self.tally = vec![engine.put(0, &HostTensor::zeros(setup.tally.shape()))?];
        Ok(())
    }

    /// The sums of the epoch; waits for the steps begun.
    pub(super) fn read_tally(&self, engine: &Engine, setup: &Setup) -> Result<Vec<f64>> {
        let Some(tally) = self.tally.first() else {
            return Ok(vec![0.0; setup.tally.len]);
        };
        Ok(engine.get(tally, &setup.tally.shape())?.to_f64())
    }

    /// Begins a training step.
    pub(super) fn train(&mut self, ready: &Ready, batch: &[Buffer]) -> Result<Done> {
        self.arrays()?;
        let mut arguments: Vec<&Buffer> = self.arrays.iter().chain(&self.tally).collect();
        arguments.push(&self.seed);
        arguments.extend(batch);
        let run = ready.compiled.run(&[&arguments]);
        let (mut outputs, done) = match run {
            Ok(run) => run,
            Err(error) => {
                self.arrays.clear();
                return Err(error);
            }
        };
        let mut outputs = outputs.remove(0).into_iter();
        for (&index, output) in ready.changed.iter().zip(outputs.by_ref()) {
            self.arrays[index] = output;
        }
        self.tally = outputs.collect();
        Ok(done)
    }

    /// Begins a test step; the sums go on in `tally`.
    pub(super) fn test(
        &self,
        variables: usize,
        ready: &Ready,
        tally: &Buffer,
        rows: &Buffer,
        batch: &[Buffer],
    ) -> Result<(Buffer, Done)> {
        let mut arguments: Vec<&Buffer> = self.arrays()?[..variables].iter().collect();
        arguments.extend([tally, rows]);
        arguments.extend(batch);
        let (mut outputs, done) = ready.compiled.run(&[&arguments])?;
        let tally = outputs.pop().and_then(|mut outputs| outputs.pop());
        let tally = tally.ok_or_else(|| Error::Bug("a test step has no result".into()))?;
        Ok((tally, done))
    }

    /// Begins a prediction.
    pub(super) fn predict(
        &self,
        variables: usize,
        ready: &Ready,
        x: &[Buffer],
    ) -> Result<(Vec<Buffer>, Done)> {
        let mut arguments: Vec<&Buffer> = self.arrays()?[..variables].iter().collect();
        arguments.extend(x);
        let (mut outputs, done) = ready.compiled.run(&[&arguments])?;
        Ok((outputs.pop().unwrap_or_default(), done))
    }
}

/// Steps begun and not known to be done, so many at most that batches do not pile up in memory.
#[derive(Default)]
pub(super) struct InFlight(VecDeque<Done>);

/// So many batches stay in memory at most.
const MOST_IN_FLIGHT: usize = 8;
/// Enough to keep the device busy while the host wakes up and makes the next batch.
const LEAST_IN_FLIGHT: usize = 2;

impl InFlight {
    /// Adds a step; when they are too many, waits once for all but the last few: waking up costs more than a step's
    /// other work on the host.
    pub(super) fn push(&mut self, engine: &Engine, done: Done) -> Result<()> {
        self.0.push_back(done);
        if self.0.len() <= MOST_IN_FLIGHT {
            return Ok(());
        }
        self.wait_for(engine, self.0.len() - LEAST_IN_FLIGHT)
    }

    /// Waits for all of them.
    pub(super) fn finish(&mut self, engine: &Engine) -> Result<()> {
        self.wait_for(engine, self.0.len())
    }

    fn wait_for(&mut self, engine: &Engine, count: usize) -> Result<()> {
        let last = self.0.drain(..count).next_back();
        last.map_or(Ok(()), |done| engine.wait(&done, count))
    }
}
