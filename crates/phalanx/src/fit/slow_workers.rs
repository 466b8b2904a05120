//! The time of each worker for its own part of a step, and which worker keeps the others waiting.
//!
//! All workers take the same time for a step, for each waits for the slowest in the exchange. What tells who is slow is the own time: from
//! the end of a step to the end of the next, without what was waited for others meanwhile. It has all that a worker does: batches, steps,
//! callbacks. Workers tell each other the median of their last steps with the votes on whether to go on, which they hold anyway.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::Trainer;
use super::compiled_model::CompiledModel;
use super::options::Watch;
use crate::Result;
use crate::engine::PendingRun;
use crate::replicas::{WaitMeter, World};

/// A worker that kept the others waiting, at the moment when that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowWorker {
    /// Its number.
    pub worker: usize,
    /// Of how many the training was begun with.
    pub workers: usize,
    /// Where the others reach it; none where the group was made by hand.
    pub address: Option<SocketAddr>,
    /// Its own time for a step, without what it waits for others: the median over its last steps.
    pub time: Duration,
    /// The median of the own times of the others.
    pub others: Duration,
}

impl SlowWorker {
    /// The worker with its address.
    fn name(&self) -> String {
        let address = self.address.map(|address| format!(" ({address})"));
        let address = address.unwrap_or_default();
        format!("worker {} of {}{address}", self.worker, self.workers)
    }

    /// Its number, its address, and seconds of its time and the others', as a JSON object.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({
            "worker": self.worker,
            "address": self.address.map(|address| address.to_string()),
            "seconds": self.time.as_secs_f64(),
            "others": self.others.as_secs_f64(),
        })
    }

    /// The notice that it keeps the others waiting no more.
    fn keeps_up(&self) -> String {
        format!(
            "note: {} keeps the others waiting no more: its part of a step takes {:.1} ms, the others' {:.1} ms",
            self.name(),
            self.time.as_secs_f64() * 1e3,
            self.others.as_secs_f64() * 1e3
        )
    }
}

/// What a user should know of it.
impl fmt::Display for SlowWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} keeps the others waiting: its part of a step takes {:.1} ms, the others' {:.1} ms; see what else uses its machine and how fast it reads its data, or leave it out",
            self.name(),
            self.time.as_secs_f64() * 1e3,
            self.others.as_secs_f64() * 1e3
        )
    }
}

/// More times between two votes are not kept.
const MOST_TIMES: usize = 1024;

/// The own times of the steps since they were last asked for.
#[derive(Clone, Debug, Default)]
pub(super) struct OwnTimes(Arc<Mutex<OwnSteps>>);

#[derive(Debug, Default)]
struct OwnSteps {
    /// When the last step ended, and what was waited for others until then.
    since: Option<(Instant, Duration)>,
    times: Vec<Duration>,
}

impl OwnTimes {
    /// The time of the next step begins now: what came before belongs to none.
    pub(super) fn begin(&self, world: &World) {
        self.lock().since = Some((Instant::now(), world.waits().total()));
    }

    /// Takes note of a step that was begun.
    pub(super) fn watch(&self, done: &PendingRun, world: &World) -> Result<()> {
        let (own, waits) = (self.clone(), world.waits().clone());
        let left = Arc::new(AtomicUsize::new(done.runs()));
        done.on_each_done(move || {
            if left.fetch_sub(1, Ordering::AcqRel) == 1 {
                own.ended(Instant::now(), &waits);
            }
        })
    }

    fn ended(&self, now: Instant, waits: &WaitMeter) {
        self.ended_at(now, waits.total());
    }

    fn ended_at(&self, now: Instant, waited: Duration) {
        let mut own = self.lock();
        let since = own.since.replace((now, waited));
        if let Some((begun, before)) = since.filter(|_| own.times.len() < MOST_TIMES) {
            let passed = now.saturating_duration_since(begun);
            let waited = waited.saturating_sub(before);
            own.times.push(passed.saturating_sub(waited));
        }
    }

    /// The median of the times since this was last asked for; none where no step has ended since.
    fn take_median(&self) -> Option<Duration> {
        let mut times = std::mem::take(&mut self.lock().times);
        times.sort_unstable();
        times.get(times.len().checked_sub(1)? / 2).copied()
    }

    fn lock(&self) -> MutexGuard<'_, OwnSteps> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A worker is late where it takes this many times the median of the others,
const LATE: f64 = 2.0;
/// and this much more: so much may the first worker do beside its steps, which shows them.
const LEAST_DELAY: Duration = Duration::from_millis(1);
/// It is no more where it takes less than this many times.
const IN_TIME: f64 = 1.5;
/// In this many votes in a row it must be late before it is named, and in time before that is taken back,
const VOTES: u32 = 3;
/// and must have kept the others waiting for this time in them: nobody is named for a moment of other work on its machine.
const LEAST_LOSS: Duration = Duration::from_millis(500);

/// Decides by the times of all workers which of them keep the others waiting. All workers decide alike.
#[derive(Debug, Default)]
pub(super) struct SlowWorkers {
    watch: Watch,
    generation: u64,
    workers: Vec<Lateness>,
    /// Those that were named in this epoch or were so when it began, with their ranks.
    of_epoch: Vec<(usize, SlowWorker)>,
}

/// What is known of a worker.
#[derive(Clone, Debug, Default)]
struct Lateness {
    /// Votes in a row that speak against what was told of it last.
    votes: u32,
    /// What it has kept the others waiting in them.
    lost: Duration,
    /// Whether it was told to keep the others waiting.
    is_named: bool,
}

/// That a worker keeps the others waiting from now on, or no more.
#[derive(Debug, PartialEq)]
struct Change {
    rank: usize,
    time: Duration,
    others: Duration,
    is_slow: bool,
}

impl SlowWorkers {
    /// A fit begins.
    pub(super) fn begin(&mut self, watch: Watch) {
        self.watch = watch;
        if watch == Watch::Never {
            self.workers.clear();
            self.of_epoch.clear();
        }
    }

    /// Whether somebody seems to be slow, and the next votes are to tell soon.
    pub(super) fn has_suspects(&self) -> bool {
        self.workers.iter().any(|worker| worker.votes > 0)
    }

    /// Those named in the epoch that ends, for its logs.
    pub(super) fn end_epoch(&mut self) -> Vec<SlowWorker> {
        let is_named = |rank: usize| self.workers.get(rank).is_some_and(|it| it.is_named);
        let still = self.of_epoch.iter().filter(|(rank, _)| is_named(*rank));
        let still = still.cloned().collect();
        let named = std::mem::replace(&mut self.of_epoch, still);
        named.into_iter().map(|(_, slow)| slow).collect()
    }

    /// Takes in the times of all workers in the steps since the last vote, by their number; what has changed with it.
    fn take(&mut self, steps: u64, times: &[Option<Duration>]) -> Vec<Change> {
        self.workers.resize_with(times.len(), Lateness::default);
        let mut changes = Vec::new();
        for (rank, worker) in self.workers.iter_mut().enumerate() {
            let (Some(time), Some(others)) = (times[rank], median_but(times, rank)) else {
                continue;
            };
            if worker.takes(steps, time, others) {
                changes.push(Change {
                    rank,
                    time,
                    others,
                    is_slow: worker.is_named,
                });
            }
        }
        changes
    }
}

impl Lateness {
    /// Takes in its time in some steps, and the median of the others'; whether that changes what it is.
    fn takes(&mut self, steps: u64, time: Duration, others: Duration) -> bool {
        let delay = time.saturating_sub(others);
        let is_late = time >= others.mul_f64(LATE) && delay >= LEAST_DELAY;
        let is_in_time = time < others.mul_f64(IN_TIME) || delay < LEAST_DELAY;
        let is_news = if self.is_named { is_in_time } else { is_late };
        if !is_news {
            (self.votes, self.lost) = (0, Duration::ZERO);
            return false;
        }
        self.votes += 1;
        let steps = u32::try_from(steps).unwrap_or(u32::MAX);
        self.lost = self.lost.saturating_add(delay.saturating_mul(steps));
        if self.votes < VOTES || (!self.is_named && self.lost < LEAST_LOSS) {
            return false;
        }
        *self = Self {
            is_named: !self.is_named,
            ..Self::default()
        };
        true
    }
}

/// The median of the times of all but one worker.
fn median_but(times: &[Option<Duration>], rank: usize) -> Option<Duration> {
    let others = times.iter().enumerate().filter(|(other, _)| *other != rank);
    let mut others: Vec<Duration> = others.filter_map(|(_, time)| *time).collect();
    others.sort_unstable();
    let last = others.len().checked_sub(1)?;
    Some((others[last / 2] + others[last.div_ceil(2)]) / 2)
}

impl Trainer {
    /// The own time of this worker for a step since the last vote, where workers are watched.
    pub(super) fn own_time(&self) -> Option<Duration> {
        let median = self.compiled.own_times.take_median();
        median.filter(|_| self.slow_workers.watch != Watch::Never)
    }

    /// Tells who keeps the others waiting from now on, or no more, by the times of all workers in a number of steps: the first worker
    /// tells it, and who it is about.
    pub(super) fn tell_slow_workers(
        &mut self,
        world: &World,
        (steps, times): (u64, &[Option<Duration>]),
    ) {
        let watch = &mut self.slow_workers;
        if watch.generation != world.generation() {
            // Other workers, or others under these numbers.
            watch.generation = world.generation();
            watch.workers.clear();
            watch.of_epoch.clear();
        }
        for change in watch.take(steps, times) {
            let (worker, address) = world.name_of(change.rank);
            let slow = SlowWorker {
                worker,
                workers: world.planned_workers(),
                address,
                time: change.time,
                others: change.others,
            };
            let told = match change.is_slow {
                true => format!("warning: {slow}"),
                false => slow.keeps_up(),
            };
            if change.is_slow {
                watch.of_epoch.retain(|(rank, _)| *rank != change.rank);
                watch.of_epoch.push((change.rank, slow));
            }
            if world.is_chief() || world.worker() == change.rank {
                self.compiled.placement.engine().notice(&told);
            }
        }
    }
}

impl CompiledModel {
    /// What this worker has done until now, such as to compile or to write a checkpoint, belongs to no step.
    pub(super) fn begin_own_times(&self) {
        if let Some(world) = self.placement.world() {
            self.own_times.begin(world);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    /// The workers that each vote changes, with whether they are slow: votes after this number of steps, each with milliseconds by worker.
    fn told<const N: usize>(steps: u64, votes: &[[u64; N]]) -> Vec<Vec<(usize, bool)>> {
        let mut watch = SlowWorkers::default();
        let vote = |times: &[u64; N]| {
            let changes = watch.take(steps, &times.map(|time| Some(ms(time))));
            let told = changes.into_iter();
            told.map(|it| (it.rank, it.is_slow)).collect()
        };
        votes.iter().map(vote).collect()
    }

    #[test]
    fn who_takes_twice_the_median_of_the_others_is_named_once_and_once_when_it_keeps_up() {
        fn check<const N: usize>(slow: [u64; N]) {
            let (even, mut between) = ([10; N], [10; N]);
            between[1] = 17;
            let told = told(
                4,
                &[
                    even, slow, slow, slow, slow, between, even, even, even, even,
                ],
            );
            assert_eq!(told[3], [(1, true)], "{slow:?}");
            assert_eq!(told[8], [(1, false)], "{slow:?}");
            assert_eq!(told.concat().len(), 2, "{slow:?}");
        }
        check([10, 100]);
        check([10, 100, 11]);
        check([10, 100, 9, 12]);
        // Either of two, and two of five.
        assert_eq!(told(9, &[[100, 10]; 4]).concat(), [(0, true)]);
        let two = told(9, &[[100, 10, 10, 10, 90]; 4]).concat();
        assert_eq!(two, [(0, true), (4, true)]);
    }

    #[test]
    fn nobody_is_named_for_little_or_for_a_moment() {
        fn never<const N: usize>(steps: u64, votes: &[[u64; N]]) {
            assert_eq!(told(steps, &votes.repeat(50)).concat(), [], "{votes:?}");
        }
        // All are as slow, or less than twice as slow.
        never(8, &[[100, 100]]);
        never(8, &[[10, 19, 10]]);
        // Two of three are slow: the third is fast.
        never(8, &[[10, 100, 100]]);
        // Never three times in a row, or another each time.
        never(8, &[[10, 500], [10, 500], [10, 10]]);
        never(8, &[[10, 500], [500, 10]]);
        // For less than half a second in all.
        never(50, &[[1, 3], [1, 3], [1, 3], [1, 3], [1, 1]]);
        // Nothing, and nobody to wait.
        never(1024, &[[0, 0]]);
        never(8, &[[700]]);
    }

    #[test]
    fn a_delay_of_less_than_a_millisecond_is_none() {
        let mut worker = Lateness::default();
        let (own, others) = (Duration::from_micros(1300), Duration::from_micros(400));
        assert!((0..10_000).all(|_| !worker.takes(8, own, others)));
        let own = Duration::from_micros(1500);
        let votes = (1..100).find(|_| worker.takes(8, own, others));
        // 1.1 ms each step: half a second after 455.
        assert_eq!(votes, Some(57));
    }

    #[test]
    fn nobody_is_watched_in_a_fit_that_asks_for_it() {
        let mut watch = SlowWorkers::default();
        let times = [Some(ms(10)), Some(ms(500))];
        assert_eq!(
            (0..3).map(|_| watch.take(4, &times).len()).sum::<usize>(),
            1
        );
        let _ = watch.take(4, &[Some(ms(10)), Some(ms(10))]);
        assert!(watch.has_suspects());
        watch.begin(Watch::Never);
        assert!(!watch.has_suspects() && watch.end_epoch().is_empty());
    }

    #[test]
    fn who_has_made_no_step_is_left_out() {
        let mut watch = SlowWorkers::default();
        let times = [Some(ms(10)), None, Some(ms(100))];
        let changes: Vec<Change> = (0..5).flat_map(|_| watch.take(4, &times)).collect();
        assert_eq!(changes.len(), 1);
        assert_eq!((changes[0].rank, changes[0].others), (2, ms(10)));
        assert!(watch.take(4, &[None, None, None]).is_empty());
    }

    #[test]
    fn own_times_leave_out_what_is_waited_and_what_belongs_to_no_step() {
        let (own, start) = (OwnTimes::default(), Instant::now());
        assert_eq!(own.take_median(), None);
        own.ended_at(start, ms(5));
        assert_eq!(own.take_median(), None, "since when is not known");
        for (at, waited) in [(100, 95), (200, 185), (300, 284), (400, 284), (450, 330)] {
            own.ended_at(start + ms(at), ms(waited));
        }
        // 10, 10, 1, 100 and 4.
        assert_eq!(own.take_median(), Some(ms(10)));
        assert_eq!(own.take_median(), None);
        own.ended_at(start + ms(460), ms(330));
        assert_eq!(own.take_median(), Some(ms(10)));
    }
}
