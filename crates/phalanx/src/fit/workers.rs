//! What the processes that train together do as one: read data, write files, stop.

use std::time::{Duration, Instant};

use super::in_flight::InFlight;
use super::step_times::StepPart;
use super::{Fit, Trainer};
use crate::Result;
use crate::data::{TrainingData, Worker};
use crate::replicas::{Placement, World};

/// The time between two votes that the first process aims at.
const INTERVAL: Duration = Duration::from_millis(500);
/// The most steps between two votes.
const MOST_STEPS: u64 = 1024;
/// The most where a vote costs little of the time, so that a worker which becomes slow is found within 20 steps.
const USUAL_STEPS: u64 = 8;
/// The same where a worker is suspected to be slow.
const FEW_STEPS: u64 = 4;
/// A vote is due sooner where the steps since the last one took this many times as long as it: whoever is asked to stop when steps have
/// become much slower is to be heard all the same.
const WORTH: f64 = 100.0;
/// The most steps are [`USUAL_STEPS`] where they take this many times as long as a vote.
const CHEAP: f64 = 50.0;

/// This process as a reader of data.
pub(super) fn reader(world: &World) -> Worker {
    Worker {
        index: world.worker(),
        count: world.workers(),
        replicas: world.local_replicas(),
    }
}

/// Writes files in the first of the processes that train together; the others wait for it.
pub(super) fn on_chief(
    placement: &Placement,
    what: &str,
    write: impl FnOnce() -> Result<()>,
) -> Result<()> {
    if let Some(servers) = placement.servers() {
        // By the name of the place, so that a worker that comes later knows what was written before it came.
        let place = format!("{what}/{}", servers.count(what));
        return servers.once(&place, write);
    }
    let Some(world) = placement.world() else {
        return write();
    };
    if world.is_catching_up() {
        // The others are further, and so is what they wrote.
        return Ok(());
    }
    let written = if world.is_chief() { write() } else { Ok(()) };
    if world.is_left_behind() {
        return written;
    }
    if let Err(error) = &written {
        world.abort(&error.to_string());
        return written;
    }
    let call = match what {
        "save" => "saves the model",
        "weights" => "saves weights",
        "removal" => "ends `fit`",
        "the trace" => "writes a trace",
        _ => "writes a checkpoint",
    };
    world.during(call, || world.barrier())
}

/// Waits for all steps of an epoch, in every process: none goes on to the next epoch before all have made the last step of this one.
pub(super) fn finish_together(placement: &Placement, flight: &mut InFlight) -> Result<()> {
    flight.finish(placement.engine())?;
    match placement.world() {
        Some(world) => world.during("ends an epoch of `fit`", || {
            world.check().and_then(|()| world.barrier())
        }),
        None => Ok(()),
    }
}

/// Compares what the processes have read of an epoch, where each was to read the same.
pub(super) fn agree_on_examples(placement: &Placement, checksum: u32) -> Result<()> {
    let Some(world) = placement.world() else {
        return Ok(());
    };
    let what = "what was read of the stream in an epoch";
    world.agree(what, &format!("checksum {checksum:08x}"))
}

impl Trainer {
    /// Whether the training is to end now, which several processes ask each other about once in a while.
    pub(super) fn is_stop_agreed(&mut self, fit: &Fit, flight: &mut InFlight) -> Result<bool> {
        let model = &mut self.compiled;
        let Some(world) = model.placement.world().cloned() else {
            // With parameter servers all end after the same batch, in the phase of an epoch.
            return Ok(model.placement.servers().is_none() && fit.is_stop_asked());
        };
        if !self.stop_vote.is_due(model.iterations) {
            return Ok(false);
        }
        flight.finish(model.engine())?;
        world.check()?;
        if let Some(interruption) = self.interruption.take() {
            interruption.report_end(model, &world);
        }
        model.clock.enter(StepPart::Exchange);
        let (step, own_time) = (model.iterations, self.own_time());
        let ballot = Ballot {
            wants_stop: fit.is_stop_asked(),
            own_time,
            is_next_soon: self.slow_workers.has_suspects(),
        };
        let votes = self.stop_vote.hold(&world, &ballot, step)?;
        self.tell_slow_workers(&world, (votes.steps, &votes.own_times));
        self.compiled.clock.enter(StepPart::Callbacks);
        Ok(votes.want_stop)
    }

    /// Refuses to train unless all processes begin at the same place with the same settings and data, from where their steps are counted;
    /// the first epoch.
    pub(super) fn agree_on_start(
        &mut self,
        first: usize,
        fit: &Fit,
        data: &dyn TrainingData,
    ) -> Result<usize> {
        if let Some(servers) = self.compiled.placement.servers().cloned() {
            return self.begin_with_servers(&servers, first);
        }
        let (model, progress) = (&mut self.compiled, &mut self.progress);
        if model.placement.world().is_none() {
            return Ok(first);
        }
        progress.begin_step_log(model.counted_batches()?);
        self.agree_with_workers((first, fit), data)?;
        self.exchange_sums()?;
        Ok(first)
    }

    /// Makes the last step begun, which is done, one that the training can go back to: gradients that processes have accumulated are
    /// exchanged.
    pub(super) fn exchange_sums(&mut self) -> Result<()> {
        self.compiled.exchange_sums()?;
        self.progress.step_log.settled(&self.progress.position);
        Ok(())
    }
}

/// The next vote: after which step, an answer that is equal in every process.
///
/// A vote waits for all steps begun, so there is not one at every step, but one about every half second, or sooner where it costs no more
/// than a hundredth of the time. How many steps that is the first process measures, and says it with its vote: no two processes decide by
/// their own clocks.
#[derive(Default)]
pub(super) struct StopVote {
    /// The number of steps after which the next vote is held.
    due: i64,
    /// When the last vote was held, and after which step.
    last: Option<(Instant, i64)>,
    /// How long one takes, at the least.
    cost: Duration,
}

impl StopVote {
    /// Whether a vote is held after this step. A step count below the last vote's belongs to another training.
    pub(super) fn is_due(&self, step: i64) -> bool {
        step >= self.due || self.last.is_some_and(|(_, last)| step < last)
    }

    /// What all processes say; no step may be in flight.
    fn hold(&mut self, world: &World, ballot: &Ballot, step: i64) -> Result<Votes> {
        let steps = self.steps_to_next(step, ballot.is_next_soon);
        let vote = ballot.encode(steps);
        let begun = Instant::now();
        let votes = world.all_gather(&vote)?;
        // Who waits for a slower process would wait for it in the next step, and one vote that was late says little.
        let most = match self.cost {
            Duration::ZERO => Duration::MAX,
            cost => cost * 5 / 4,
        };
        self.cost = begun.elapsed().min(most);
        let chief = votes.first().and_then(|vote| number(vote, 1));
        let steps = chief.unwrap_or(1).clamp(1, MOST_STEPS);
        let last = self.last.replace((Instant::now(), step));
        self.due = step.saturating_add_unsigned(steps);
        let own_time = |vote: &Vec<u8>| number(vote, 9).filter(|&nanoseconds| nanoseconds > 0);
        Ok(Votes {
            want_stop: votes.iter().any(|vote| vote.first() == Some(&1)),
            steps: last.map_or(0, |(_, last)| step.saturating_sub(last).unsigned_abs()),
            own_times: (votes.iter())
                .map(|vote| own_time(vote).map(Duration::from_nanos))
                .collect(),
        })
    }

    /// The number of steps that take about `INTERVAL`, or as long as makes a vote worth its cost, by the pace since the last vote; fewer
    /// where a vote is cheap.
    fn steps_to_next(&self, step: i64, is_soon: bool) -> u64 {
        let Some((at, last)) = self.last else {
            return 1;
        };
        let taken = step.saturating_sub(last).max(1) as f64;
        let each = at.elapsed().as_secs_f64() / taken;
        let steps_in = |time: Duration| (time.as_secs_f64() / each.max(1e-6)) as u64;
        let interval = INTERVAL.min(self.cost.mul_f64(WORTH));
        let few = if is_soon { FEW_STEPS } else { USUAL_STEPS };
        steps_in(interval).min(steps_in(self.cost.mul_f64(CHEAP)).max(few))
    }
}

/// What a process says in a vote.
struct Ballot {
    wants_stop: bool,
    /// Its own time for a step.
    own_time: Option<Duration>,
    /// Whether the next vote is to come soon.
    is_next_soon: bool,
}

impl Ballot {
    /// The vote as the others get it, with the steps until the next.
    fn encode(&self, steps: u64) -> Vec<u8> {
        let own_time = self.own_time.map_or(0, |time| time.as_nanos().max(1));
        let own_time = u64::try_from(own_time).unwrap_or(u64::MAX);
        let mut vote = vec![u8::from(self.wants_stop)];
        vote.extend([steps, own_time].into_iter().flat_map(u64::to_le_bytes));
        vote
    }
}

/// What all processes have said in a vote.
struct Votes {
    want_stop: bool,
    /// The steps since the last vote; 0 where there was none.
    steps: u64,
    /// The own time of each for a step, where it has made one since the last vote.
    own_times: Vec<Option<Duration>>,
}

/// The number at this place of a vote.
fn number(vote: &[u8], at: usize) -> Option<u64> {
    let bytes = vote.get(at..at + 8)?;
    bytes.try_into().ok().map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn votes_are_as_frequent_as_they_are_cheap() {
        let at = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
        let steps = |taken, cost| {
            let (last, due) = (Some((at, 0)), 0);
            StopVote { due, last, cost }.steps_to_next(taken, false)
        };
        let near = |found: u64, expected: u64| found.abs_diff(expected) <= expected / 10;
        // A thousand steps a second.
        assert_eq!(steps(1000, Duration::from_micros(100)), USUAL_STEPS);
        assert!(near(steps(1000, Duration::from_millis(1)), 50));
        assert!(near(steps(1000, Duration::from_secs(1)), 500));
        // Twenty a second, and less where a worker is suspected to be slow.
        assert_eq!(steps(20, Duration::from_millis(3)), 5);
        let (due, last, cost) = (0, Some((at, 0)), Duration::from_millis(3));
        assert_eq!(StopVote { due, last, cost }.steps_to_next(20, true), 4);
        // One each ten seconds is asked at every step.
        assert_eq!(steps(0, Duration::from_secs(1)), 0);
    }
}
