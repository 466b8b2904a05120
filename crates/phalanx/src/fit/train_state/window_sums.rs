//! Sums over a window of batches, of which each replica of each process has a part, and the begins that a training goes back to when a
//! process is lost with its part. See decision 39.

use std::collections::VecDeque;

use phalanx_graph::{HostTensor, Shape};
use phalanx_pjrt::Buffer;

use super::TrainState;
use crate::fit::setup::Setup;
use crate::optim::WindowPart;
use crate::{Error, Result};

/// More begins than steps that are ever in flight.
const MOST: usize = 16;

/// What every process knows of the sums over all replicas of all processes.
#[derive(Default)]
enum Whole {
    /// They are zeros, as where a window begins.
    #[default]
    Zero,
    /// They were exchanged, or taken from a checkpoint.
    Known(Vec<HostTensor>),
    /// Each process knows its own part alone.
    Spread,
}

impl Whole {
    fn of(sums: Vec<HostTensor>) -> Self {
        let is_zero = |sum: &HostTensor| sum.bytes().iter().all(|byte| *byte == 0);
        match sums.iter().all(is_zero) {
            true => Self::Zero,
            false => Self::Known(sums),
        }
    }
}

/// The arrays of a state of which each replica has its own part of a sum.
#[derive(Default)]
pub(super) struct WindowSums {
    /// Their positions; the other arrays are equal on all replicas.
    pub(super) positions: Vec<usize>,
    whole: Whole,
    /// The last begins, the oldest first. The host is ahead of the device, and a device stays at the step whose exchange fails.
    begins: VecDeque<Begin>,
}

/// A state whose sums every process knows as a whole, so that each can go back to it without those that were lost.
struct Begin {
    /// The batches counted.
    counted: i64,
    whole: Whole,
    /// What steps within the window replace beside the sums, by positions, and the epoch totals; lists of each replica.
    arrays: Vec<Vec<(usize, Buffer)>>,
    totals: Vec<Buffer>,
}

impl WindowSums {
    pub(super) fn at(positions: Vec<usize>) -> Self {
        Self {
            positions,
            ..Self::default()
        }
    }

    /// Other arrays are summed now.
    pub(super) fn rebuild(&mut self, positions: Vec<usize>) {
        self.positions = positions;
        self.begins.clear();
        if let Whole::Known(_) = self.whole {
            self.whole = Whole::Spread;
        }
    }

    /// The sums are those that `at` has of their positions.
    pub(super) fn set(&mut self, at: impl FnMut(usize) -> Option<HostTensor>) {
        self.whole = Whole::of(self.positions.iter().copied().filter_map(at).collect());
        self.begins.clear();
    }
}

impl TrainState {
    /// Whether processes have parts of sums which the others do not know.
    fn has_parts(&self) -> bool {
        self.placement.world().is_some() && !self.window.positions.is_empty()
    }

    /// Whether a training could go on from this state after the loss of a process: none has a part of a sum that the others do not know.
    pub(in crate::fit) const fn is_begin(&self) -> bool {
        !matches!(self.window.whole, Whole::Spread)
    }

    /// Leaves a begin, if this is one, with a step after this number of batches; whether it is one.
    pub(super) fn leave_begin(&mut self, counted: i64) -> bool {
        if !self.has_parts() || !self.is_begin() {
            return false;
        }
        let window = &mut self.window;
        window.begins.push_back(Begin {
            counted,
            whole: std::mem::replace(&mut window.whole, Whole::Spread),
            arrays: Vec::new(),
            totals: Vec::new(),
        });
        if window.begins.len() > MOST {
            window.begins.pop_front();
        }
        true
    }

    /// Keeps what the first step of a window has replaced: it has not overwritten it.
    pub(super) fn keep_begin(&mut self, arrays: Vec<Vec<(usize, Buffer)>>, totals: Vec<Buffer>) {
        if let Some(begin) = self.window.begins.back_mut() {
            (begin.arrays, begin.totals) = (arrays, totals);
        }
    }

    /// A step was begun that is this part of a window.
    pub(super) fn stepped(&mut self, part: WindowPart) {
        if part == WindowPart::Last {
            self.window.whole = Whole::Zero;
        }
    }

    /// Adds up what each replica of each process has of the sums, so that this is a begin; all processes call it after the same step,
    /// when none is in flight.
    pub(in crate::fit) fn exchange_sums(&mut self, setup: &Setup) -> Result<()> {
        if !self.has_parts() || self.is_begin() {
            return Ok(());
        }
        let sums = self.whole_sums(setup)?;
        self.place_whole_sums(setup, sums)
    }

    /// Goes back to the last begin that the device has come to.
    pub(in crate::fit) fn rewind(&mut self, setup: &Setup) -> Result<()> {
        let (counted, steps) = (self.iterations()?, setup.window().steps());
        let Some(steps) = steps.filter(|_| self.has_parts()) else {
            return Ok(());
        };
        let begins = std::mem::take(&mut self.window.begins);
        if counted.unsigned_abs().is_multiple_of(steps) {
            self.window.whole = Whole::Zero;
            return Ok(());
        }
        let mut made = begins.into_iter().filter(|begin| begin.counted <= counted);
        let Some(begin) = made.next_back() else {
            return match self.is_begin() {
                true => Ok(()),
                false => Err(Error::Bug(format!(
                    "the device has counted {counted} batches, and the begin of their window is not known"
                ))),
            };
        };
        self.window.whole = begin.whole;
        for (arrays, kept) in self.arrays.iter_mut().zip(begin.arrays) {
            kept.into_iter()
                .for_each(|(index, array)| arrays[index] = array);
        }
        if !begin.totals.is_empty() {
            self.totals = begin.totals;
        }
        Ok(())
    }

    /// The gradients accumulated over all replicas of all processes, whether or not each has a part of them.
    pub(in crate::fit) fn whole_sums(&self, setup: &Setup) -> Result<Vec<HostTensor>> {
        let arrays = setup.state.arrays();
        let accumulated = setup.state.accumulated().into_iter();
        accumulated
            .map(|index| self.get(index, &arrays[index].1))
            .collect()
    }

    /// Places what [`whole_sums`](Self::whole_sums) returned for the processes and replicas that there are now.
    pub(in crate::fit) fn place_whole_sums(
        &mut self,
        setup: &Setup,
        sums: Vec<HostTensor>,
    ) -> Result<()> {
        self.window.positions = setup.local_sums();
        self.window.begins.clear();
        for (index, sum) in setup.state.accumulated().into_iter().zip(&sums) {
            let placed = self.placed(index, sum)?;
            for (arrays, array) in self.arrays.iter_mut().zip(placed) {
                arrays[index] = array;
            }
        }
        self.window.whole = Whole::of(sums);
        Ok(())
    }

    /// A sum over all replicas of all processes. Where it is not known all processes must ask for it.
    pub(super) fn whole_sum(&self, index: usize, shape: &Shape) -> Result<HostTensor> {
        let world = self.placement.world();
        match (&self.window.whole, world) {
            (Whole::Zero, Some(_)) => return Ok(HostTensor::zeros(shape.clone())),
            (Whole::Known(sums), Some(_)) => {
                let mut known = self.window.positions.iter().zip(sums);
                let found = known.find(|(position, _)| **position == index);
                let found = found.map(|(_, sum)| sum.clone());
                return found.ok_or_else(|| Error::Bug("a sum that is not known".into()));
            }
            (Whole::Spread, _) | (_, None) => {}
        }
        let mut sum = vec![0.0; shape.len()];
        for arrays in self.arrays()? {
            let part = self.read(&[&arrays[index]], index, shape)?.to_f64();
            sum.iter_mut()
                .zip(part)
                .for_each(|(sum, part)| *sum += part);
        }
        if let Some(world) = world {
            world.sum(&mut sum)?;
        }
        Ok(HostTensor::new(shape.dims.clone(), &sum).convert(shape.dtype))
    }
}
