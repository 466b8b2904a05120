//! What a training does when another process is lost: it goes on from the last step that all of its processes have made.
//!
//! A step is a transaction: one whose exchange failed has changed nothing, on whatever process, and so has every step in flight behind
//! it. Processes can therefore differ by what one of them had finished when the exchange broke. They meet again, say how far they are,
//! and all take the state of the one that is furthest: its arrays, the sums of the epoch, the counters, and its position in the data,
//! from which every process finds its rows by arithmetic. A process that is new takes it as well. So a recovery is a checkpoint
//! that goes over the network instead of a disk, and no step before the one in flight is lost. Compiled programs stay.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use super::compiled_model::CompiledModel;
use super::divergence::Comparison;
use super::reports::stopped_error;
use super::saving::write_alone;
use super::workers::{StopVote, reader};
use super::{Fit, History, Trainer};
use crate::checkpoint::TrainingState;
use crate::data::{Position, TrainingData};
use crate::replicas::{Failure, World};
use crate::{Error, Result};

/// More steps than are ever in flight.
const MOST: usize = 32;
/// So many generations in a row that end without a step end the training: the next one would, too.
const MOST_IDLE: u32 = 10;
/// What a process says of its progress has the number of its `fit` in front, and behind the steps of that, counted from 1; 0 is said by a
/// process that has not begun with it.
const STEP_BITS: u32 = 40;

/// The positions in the data of the last steps that a training can go back to: after each step, or where windows of accumulated batches
/// begin.
#[derive(Default)]
pub(super) struct StepLog {
    /// The batches that the device had counted before the first step, skipped ones left out.
    first: i64,
    /// Steps begun in this `fit`, also by generations of processes before this one: who was away knows how far it was.
    steps: i64,
    /// Numbers of steps, with the position after each.
    positions: VecDeque<(i64, Position)>,
}

impl StepLog {
    /// A log that begins after this number of steps, where the device has counted this number of batches.
    pub(super) fn new(steps: u64, counted: i64, position: &Position) -> Self {
        let steps = i64::try_from(steps).unwrap_or(i64::MAX);
        Self {
            first: counted - steps,
            steps,
            positions: VecDeque::from([(steps, position.clone())]),
        }
    }

    /// Another step was begun, which ends at this position; whether the training can go back to it.
    pub(super) fn begun(&mut self, position: &Position, is_begin: bool) {
        self.steps += 1;
        if is_begin {
            self.settled(position);
        }
    }

    /// The training can go back to the last step begun, after which it goes on at this position.
    pub(super) fn settled(&mut self, position: &Position) {
        if self.positions.back().map(|(steps, _)| *steps) == Some(self.steps) {
            self.positions.pop_back();
        }
        self.positions.push_back((self.steps, position.clone()));
        if self.positions.len() > MOST {
            self.positions.pop_front();
        }
    }

    /// The state went back to an earlier one, at which the device has counted this number of batches, and the data go on at this position.
    pub(super) fn rolled_back(&mut self, counted: i64, position: &Position) {
        self.first = counted - self.steps;
        self.positions = VecDeque::from([(self.steps, position.clone())]);
    }

    /// Whether there is a step that the training can go back to.
    fn has_begun(&self) -> bool {
        !self.positions.is_empty()
    }

    /// The number of steps of this `fit` that the device has made when it has counted this number of batches, and the position after them.
    pub(super) fn at(&self, counted: i64) -> Option<(u64, &Position)> {
        let steps = counted - self.first;
        let mut positions = self.positions.iter();
        let (steps, position) = positions.find(|(other, _)| *other == steps)?;
        Some((u64::try_from(*steps).ok()?, position))
    }
}

/// A loss that the training has not gone on from yet.
pub(super) struct Interruption {
    since: Instant,
    failure: Option<Failure>,
}

/// A `fit`, which is begun again after each loss of another process.
pub(super) struct Attempts {
    pub(super) fit: Fit,
    /// The processes that train together, and the number of this `fit` among all that they make.
    world: Option<(Arc<World>, u64)>,
    /// Whether this process has the state that the next attempt begins with.
    joined: Result<()>,
    /// How far this process is until an attempt has begun with its steps.
    progress: u64,
    /// The step that the last generation has begun with, and how many in a row have ended there.
    idle: (i64, u32),
}

impl Attempts {
    /// The first attempt; `None` where this process has come late and the others are in another `fit` already.
    pub(super) fn begin(trainer: &mut Trainer, fit: Fit) -> Option<Self> {
        let mut attempts = Self {
            fit,
            world: None,
            joined: Ok(()),
            progress: 0,
            idle: (-1, 0),
        };
        trainer.progress.steps_before = 0;
        // The steps of a `fit` before are none to go back to.
        trainer.progress.step_log = StepLog::default();
        if let Some(world) = trainer.compiled.placement.world().cloned() {
            let number = world.begin_fit();
            attempts.progress = number << STEP_BITS;
            if world.is_catching_up() {
                if is_later(&world, number) {
                    return None;
                }
                attempts.joined = attempts.take_over(trainer, &world, number);
            }
            attempts.world = Some((world, number));
        }
        Some(attempts)
    }

    /// This process' part of the data, where there are others; from here on more of them may come.
    pub(super) fn own_part(
        &mut self,
        data: &dyn TrainingData,
    ) -> Result<Option<Box<dyn TrainingData>>> {
        std::mem::replace(&mut self.joined, Ok(()))?;
        let Some((world, _)) = &self.world else {
            return Ok(None);
        };
        world.admit(true, self.fit.stop.as_ref())?;
        data.for_worker(reader(world)).map(Some)
    }

    /// What an attempt has ended with; `None` after the loss of another process, when there is to be one more.
    pub(super) fn end(
        &mut self,
        trainer: &mut Trainer,
        trained: Result<History>,
    ) -> Result<Option<History>> {
        let Some((world, number)) = self.world.clone() else {
            return match trainer.placement().servers() {
                // It ends the job.
                Some(servers) => servers.or_fail(trained),
                None => trained,
            }
            .map(Some);
        };
        let error = match trained {
            Ok(history) => return Ok(Some(history)),
            Err(error) => error,
        };
        let Some(failure) = world.recoverable(&error) else {
            if self.fit.is_stop_asked()
                && let Some(stopped) = self.end_alone(trainer, &world, number)
            {
                return Err(stopped);
            }
            // The others would wait for this process until their deadline; a stop ends all after the same step, and they may save together then.
            if !matches!(error, Error::Stopped(_)) {
                world.abort(&error.to_string());
            }
            // Steps begun that ran on would exchange values with the processes of a strategy that comes after this one; those of a group
            // that has ended soon fail.
            let _ = trainer.compiled.state.iterations();
            return Err(error);
        };
        let last = failure.to_string();
        let met = self.meet_again(trainer, &world, number, failure);
        if met.is_ok() && is_later(&world, number) {
            // The others went on without this process and are done here: it is as one that comes new to what they do now.
            world.goes_on_catching_up();
            return Ok(Some(trainer.progress.history.clone()));
        }
        self.joined = met.and_then(|()| self.take_over(trainer, &world, number));
        if let Some(stopped) = self.end_alone(trainer, &world, number) {
            return Err(stopped);
        }
        let worker = world.worker();
        let Some(step) = self.stuck_at(trainer.iterations()) else {
            return Ok(None);
        };
        let error = format!(
            "worker {worker}: the last {MOST_IDLE} generations of workers have made no step after step {step}, the last one since {last}; see the logs of all workers for what ends them"
        );
        world.abort(&error);
        Err(Error::Cluster(error))
    }

    /// Where the others go on without this process: saves what it has, and returns the error of a stop where one is asked for.
    fn end_alone(&self, trainer: &mut Trainer, world: &World, number: u64) -> Option<Error> {
        if !world.is_left_behind() || world.is_catching_up() {
            return None;
        }
        // Before that it may not have read what it goes on from, which a save would replace.
        if trainer.progress.step_log.has_begun() || self.progress > number << STEP_BITS {
            save_alone(trainer, world, &self.fit);
        }
        let is_asked = self.fit.is_stop_asked();
        is_asked.then(|| stopped_error(trainer.iterations(), trainer.position()))
    }

    /// Goes back to the last step made, and meets the others.
    fn meet_again(
        &mut self,
        trainer: &mut Trainer,
        world: &World,
        number: u64,
        failure: Failure,
    ) -> Result<()> {
        let worker = world.worker();
        trainer.engine().notice(&format!(
            "worker {worker}: {failure}; the others meet again and go on from the last step"
        ));
        let interruption = trainer.interruption.get_or_insert_with(|| Interruption {
            since: Instant::now(),
            failure: None,
        });
        interruption.failure = Some(failure);
        let is_behind = world.is_catching_up();
        let progress = match is_behind {
            // It has come late, and those whose state it was to take may all be gone. Then the first training of the program begins as it
            // would have without it: nothing came before that this process has left out.
            true => (number == 1).then_some(number << STEP_BITS),
            false => {
                if trainer.progress.step_log.has_begun() {
                    self.progress = (number << STEP_BITS) + 1 + rewind(trainer)?;
                }
                Some(self.progress)
            }
        };
        trainer.progress.step_log = StepLog::default();
        world.meet_again(progress, self.fit.stop.as_ref())?;
        if is_behind {
            if world.source().is_none() {
                return Err(Error::Cluster(format!(
                    "worker {worker} came late to training number {number} of the program, and all workers that were in it are gone; start all workers again"
                )));
            }
            world.goes_on_catching_up();
        }
        Ok(())
    }

    /// Takes the state of the process that is furthest; where none has begun, all begin with the state of the first.
    fn take_over(&mut self, trainer: &mut Trainer, world: &World, number: u64) -> Result<()> {
        world.await_comers(self.fit.stop.as_ref())?;
        trainer.compiled.fit_to_world()?;
        trainer.stop_vote = StopVote::default();
        trainer.comparison = Comparison::default();
        let Some((source, progress)) = world.source() else {
            return Ok(());
        };
        let begun = number << STEP_BITS;
        if progress >> STEP_BITS != number {
            return Err(Error::Bug(format!(
                "worker {source} is in training number {} of the program and this one in number {number}",
                progress >> STEP_BITS
            )));
        }
        trainer.progress.steps_before = progress.saturating_sub(begun + 1);
        if progress == begun && !self.fit.resume {
            // All begin with the variables that the `fit` before has left, not with its last step's.
            trainer.replaced.last = None;
        }
        let is_source = source == world.worker();
        let own = match is_source {
            true => state_bytes(trainer)?,
            false => Vec::new(),
        };
        let state = world.broadcast_from(source, own)?;
        if !is_source {
            set_state_bytes(trainer, &state)?;
        }
        self.progress = progress;
        world.has_caught_up();
        if progress == begun {
            return Ok(());
        }
        self.fit.resume = true;
        for path in self.fit.all_callbacks().places_to_go_on_from() {
            // This training wrote it, though perhaps not this process.
            trainer.own_checkpoints.add(&path);
        }
        Ok(())
    }

    /// The step after which too many generations have made none, if so.
    fn stuck_at(&mut self, step: i64) -> Option<i64> {
        let (last, idle) = self.idle;
        self.idle = (step, if step == last { idle + 1 } else { 0 });
        (self.idle.1 >= MOST_IDLE).then_some(step)
    }
}

impl Interruption {
    /// Tells that the training goes on, once the first step after a loss is made.
    pub(super) fn report_end(self, model: &CompiledModel, world: &World) {
        let Self { since, failure } = self;
        let failure = failure.map_or(String::new(), |failure| {
            format!(" after the loss of worker {}", failure.worker)
        });
        model.engine().notice(&format!(
            "worker {}: generation {} of {} workers goes on from step {}, {:.3} s{failure}",
            world.worker(),
            world.generation(),
            world.workers(),
            model.iterations,
            since.elapsed().as_secs_f64(),
        ));
    }
}

/// Writes the last step, which the process that writes checkpoints has whole, before it ends without the others.
fn save_alone(trainer: &mut Trainer, world: &World, fit: &Fit) {
    if !world.is_chief() {
        return;
    }
    let worker = world.worker();
    for path in fit.all_callbacks().places_to_go_on_from() {
        let (shown, step) = (path.display(), trainer.iterations());
        let line = match write_alone(trainer, fit, &path) {
            Ok(()) => format!("worker {worker}: step {step} is in `{shown}`"),
            Err(error) => format!("warning: worker {worker}: step {step} is not saved: {error}"),
        };
        trainer.engine().notice(&line);
    }
}

/// Goes back to the last step that the device has made, or to the begin of its window of accumulated batches; returns the number of
/// that step in this `fit`.
fn rewind(trainer: &mut Trainer) -> Result<u64> {
    let counted = trainer.compiled.rewind()?;
    trainer.progress.rewind(counted)
}

fn state_bytes(trainer: &Trainer) -> Result<Vec<u8>> {
    let mut files = trainer.training_state()?.to_bytes()?;
    let programs = [
        trainer.compiled.train.agreed(),
        trainer.compiled.test.agreed(),
    ];
    let programs = serde_json::to_vec(&programs)
        .map_err(|error| Error::Bug(format!("names of programs: {error}")))?;
    files.push((PROGRAMS.to_owned(), programs));
    Ok(pack(&files))
}

fn set_state_bytes(trainer: &mut Trainer, bytes: &[u8]) -> Result<()> {
    let damaged = || Error::Cluster("the state of another worker is damaged".into());
    let files = unpack(bytes).ok_or_else(damaged)?;
    let state = TrainingState::from_bytes(&files)?;
    let programs = files.iter().find(|(name, _)| *name == PROGRAMS);
    let programs = programs.map(|(_, bytes)| serde_json::from_slice::<Agreed>(bytes));
    let Some(Ok([train, test])) = programs else {
        return Err(damaged());
    };
    trainer.set_training_state(&state)?;
    trainer.compiled.train.set_agreed(train);
    trainer.compiled.test.set_agreed(test);
    Ok(())
}

const PROGRAMS: &str = "programs";
/// The programs of training and of test steps that processes have agreed on, by their keys.
type Agreed = [BTreeMap<String, u64>; 2];

/// Whether the others are in a later training of the program than this one.
fn is_later(world: &World, number: u64) -> bool {
    let source = world.source();
    source.is_some_and(|(_, progress)| progress >> STEP_BITS > number)
}

/// Named bytes, one after the other: the length of each name and of its bytes (u64), then both.
fn pack(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut packed = Vec::new();
    for (name, bytes) in files {
        packed.extend_from_slice(&(name.len() as u64).to_le_bytes());
        packed.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
        packed.extend_from_slice(name.as_bytes());
        packed.extend_from_slice(bytes);
    }
    packed
}

/// What was packed; none where the lengths do not fit.
fn unpack(mut packed: &[u8]) -> Option<Vec<(&str, &[u8])>> {
    let mut files = Vec::new();
    while !packed.is_empty() {
        let (lengths, rest) = packed.split_at_checked(16)?;
        let length = |at: usize| {
            let bytes = lengths.get(at..at + 8)?.try_into().ok()?;
            usize::try_from(u64::from_le_bytes(bytes)).ok()
        };
        let (name, rest) = rest.split_at_checked(length(0)?)?;
        let (bytes, rest) = rest.split_at_checked(length(8)?)?;
        files.push((std::str::from_utf8(name).ok()?, bytes));
        packed = rest;
    }
    Some(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_comes_back_and_a_part_of_it_does_not() {
        let files = vec![("a".to_owned(), vec![1, 2]), ("b".to_owned(), Vec::new())];
        let packed = pack(&files);
        let whole = unpack(&packed).unwrap();
        assert_eq!(whole, [("a", &[1, 2][..]), ("b", &[][..])]);
        let first = 16 + 1 + 2;
        for cut in (1..packed.len()).filter(|cut| *cut != first) {
            assert_eq!(unpack(&packed[..cut]), None, "{cut}");
        }
    }

    #[test]
    fn generations_without_a_step_come_to_an_end() {
        let mut attempts = Attempts {
            fit: Fit::epochs(1),
            world: None,
            joined: Ok(()),
            progress: 0,
            idle: (-1, 0),
        };
        let mut ends = |step, times| (0..times).filter_map(|_| attempts.stuck_at(step)).collect();
        let none: Vec<i64> = Vec::new();
        assert_eq!((ends(3, 10), ends(4, 10)), (none.clone(), none));
        assert_eq!(ends(4, 1), [4]);
    }

    #[test]
    fn the_log_finds_the_position_of_each_of_the_last_steps() {
        let at = |epoch| Position::start(epoch);
        let mut log = StepLog::new(0, 10, &at(0));
        for epoch in 1..=40 {
            log.begun(&at(epoch), true);
        }
        assert_eq!(log.at(50), Some((40, &at(40))));
        assert_eq!(log.at(42), Some((32, &at(32))));
        assert_eq!((log.at(10), log.at(51)), (None, None));
        log.settled(&at(99));
        assert_eq!(log.at(50), Some((40, &at(99))));
    }

    #[test]
    fn the_next_generation_counts_on() {
        let at = |epoch| Position::start(epoch);
        let mut log = StepLog::new(1000, 1010, &at(0));
        assert_eq!(log.at(1010), Some((1000, &at(0))));
        log.begun(&at(1), true);
        assert_eq!(log.at(1011), Some((1001, &at(1))));
        assert_eq!(log.at(11), None);
    }

    #[test]
    fn positions_follow_the_device_after_it_went_back() {
        let at = |epoch| Position::start(epoch);
        let mut log = StepLog::new(0, 10, &at(0));
        (1..=8).for_each(|epoch| log.begun(&at(epoch), true));
        // The state of 13 batches was restored after 18; the data are not read again.
        log.rolled_back(13, &at(8));
        assert_eq!(log.at(13), Some((8, &at(8))));
        log.begun(&at(9), true);
        assert_eq!(log.at(14), Some((9, &at(9))));
        assert_eq!((log.at(12), log.at(18)), (None, None));
    }
}
