//! Where the time of a training goes: always on, at the cost of a few readings of the clock for a step.
//!
//! Each moment of the training counts once: while a device runs a step, as computation; while all devices are idle, as what the
//! host does meanwhile. So the parts add up to the time that passed, and a part is what training would be faster without.

use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::input_wait::InputWait;
use super::trace::TraceRecorder;
use crate::Result;
use crate::engine::PendingRun;
use crate::replicas::Placement;

/// What the time of a training goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StepPart {
    /// Devices are idle because no batch is ready.
    Input,
    /// A batch is checked, divided over the replicas and copied to their devices.
    Transfer,
    /// Devices run steps.
    Compute,
    /// Replicas wait for values of other processes, and for what these do before they agree to go on.
    Exchange,
    /// Programs are compiled, before the first step.
    Compile,
    /// The validation of an epoch.
    Validation,
    /// A checkpoint is written while training waits.
    Checkpoint,
    /// Results are read, shown and written, and functions called with them.
    Callbacks,
}

impl StepPart {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Input,
        Self::Transfer,
        Self::Compute,
        Self::Exchange,
        Self::Compile,
        Self::Validation,
        Self::Checkpoint,
        Self::Callbacks,
    ];

    /// Its name in logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Transfer => "transfer",
            Self::Compute => "compute",
            Self::Exchange => "exchange",
            Self::Compile => "compile",
            Self::Validation => "validation",
            Self::Checkpoint => "checkpoint",
            Self::Callbacks => "callbacks",
        }
    }
}

/// Where the time since the results of the epoch before went. What comes after the results of an epoch, such as
/// its checkpoint, counts in the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTimes {
    /// Training steps in that time.
    pub steps: usize,
    /// When the counting of it ended, and of the next began.
    until: Option<Instant>,
    parts: [Duration; StepPart::ALL.len()],
}

/// Below this share of the time a remedy is not worth a word.
const NOTABLE: f64 = 0.05;
/// Nor is one that would save less than this.
const WORTH_SAVING: Duration = Duration::from_millis(50);

impl StepTimes {
    /// The time that went to a part.
    #[must_use]
    pub const fn of(&self, part: StepPart) -> Duration {
        self.parts[part as usize]
    }

    /// When the counting ended and the next began: the parts of the next add up to what passed from here to there. None where nothing was
    /// counted.
    #[must_use]
    pub const fn until(&self) -> Option<Instant> {
        self.until
    }

    /// All of the time.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.parts.iter().sum()
    }

    /// The share of a part, from 0 to 1, in the time without compilation.
    #[must_use]
    pub fn share(&self, part: StepPart) -> f64 {
        let whole = self.total().saturating_sub(self.of(StepPart::Compile));
        self.of(part).as_secs_f64() / whole.as_secs_f64().max(1e-9)
    }

    /// The part that training waits for most, unless that is hardly worth a word: never computation, which is what a training is
    /// for, nor validation.
    #[must_use]
    pub fn bound(&self) -> Option<StepPart> {
        let waits = [
            StepPart::Input,
            StepPart::Transfer,
            StepPart::Exchange,
            StepPart::Checkpoint,
            StepPart::Callbacks,
        ];
        let most = waits.into_iter().max_by_key(|&part| self.of(part))?;
        (self.share(most) >= NOTABLE && self.of(most) >= WORTH_SAVING).then_some(most)
    }

    /// Seconds by the names of parts, and the steps.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let parts = StepPart::ALL.map(|part| {
            let seconds = self.of(part).as_secs_f64();
            (part.name().to_owned(), json!(seconds))
        });
        let mut object: Map<String, Value> = parts.into_iter().collect();
        object.insert("seconds".into(), json!(self.total().as_secs_f64()));
        object.insert("steps".into(), json!(self.steps));
        Value::Object(object)
    }
}

/// Counts the time of a trainer by what it goes to.
pub(super) struct StepClock {
    devices: InputWait,
    current: StepPart,
    since: Instant,
    steps: usize,
    parts: [Duration; StepPart::ALL.len()],
    /// What replicas had waited for other processes when the counting began.
    exchanged: Duration,
    /// What a trace is made of, while there is one.
    pub(super) recorder: Option<TraceRecorder>,
}

impl Default for StepClock {
    fn default() -> Self {
        Self::at(Instant::now())
    }
}

impl StepClock {
    fn at(now: Instant) -> Self {
        Self {
            devices: InputWait::default(),
            current: StepPart::Callbacks,
            since: now,
            steps: 0,
            parts: Default::default(),
            exchanged: Duration::ZERO,
            recorder: None,
        }
    }

    /// What devices do.
    pub(super) const fn devices(&self) -> &InputWait {
        &self.devices
    }

    /// From now on time goes to this part; returns the part before.
    pub(super) fn enter(&mut self, part: StepPart) -> StepPart {
        self.enter_at(part, Instant::now())
    }

    fn enter_at(&mut self, part: StepPart, now: Instant) -> StepPart {
        let passed = now.saturating_duration_since(self.since);
        let idle = self.devices.between(self.since, now).min(passed);
        self.parts[self.current as usize] += idle;
        self.parts[StepPart::Compute as usize] += passed - idle;
        if let Some(recorder) = &mut self.recorder {
            recorder.host(self.current, self.since, now);
        }
        self.since = now;
        std::mem::replace(&mut self.current, part)
    }

    /// Steps were begun that are one program.
    pub(super) fn steps_begun(&mut self, done: &PendingRun, steps: usize) -> Result<()> {
        // A time during which a step begins would count as a whole as computation.
        self.enter(StepPart::Compute);
        self.steps += steps;
        self.devices.begin(done)
    }

    /// A step was made, whose computation was waited for.
    pub(super) const fn step_done(&mut self) {
        self.steps += 1;
    }

    /// The time of a part so far.
    pub(super) const fn of(&self, part: StepPart) -> Duration {
        self.parts[part as usize]
    }

    /// What was counted since the last time; `exchanged` is what a replica has waited for other processes in its life.
    pub(super) fn take(&mut self, exchanged: Duration) -> StepTimes {
        self.take_at(exchanged, Instant::now())
    }

    fn take_at(&mut self, exchanged: Duration, now: Instant) -> StepTimes {
        self.enter_at(self.current, now);
        let mut parts = std::mem::take(&mut self.parts);
        // What a step waits for within its program is part of the time that devices run it.
        let waited = exchanged.saturating_sub(self.exchanged);
        let waited = waited.min(parts[StepPart::Compute as usize]);
        parts[StepPart::Compute as usize] -= waited;
        parts[StepPart::Exchange as usize] += waited;
        self.exchanged = exchanged;
        StepTimes {
            steps: std::mem::take(&mut self.steps),
            until: Some(now),
            parts,
        }
    }
}

/// How long a replica of this process has waited for other processes within its steps.
pub(super) fn exchange_wait(placement: &Placement) -> Duration {
    let world = placement.world();
    world.map_or(Duration::ZERO, |world| world.exchange_wait())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{InputBottleneck, StageTime};
    use crate::fit::InputReport;

    /// A training by a clock that a test moves.
    struct Played {
        clock: StepClock,
        now: Instant,
        began: Instant,
    }

    impl Played {
        fn new() -> Self {
            let now = Instant::now();
            let clock = StepClock::at(now);
            Self {
                clock,
                now,
                began: now,
            }
        }

        fn spend(&mut self, part: StepPart, milliseconds: u64) {
            self.clock.enter_at(part, self.now);
            self.now += Duration::from_millis(milliseconds);
        }

        /// A step that takes devices this time, while the host goes on at once.
        fn step(&mut self, milliseconds: u64) -> Instant {
            self.clock.enter_at(StepPart::Compute, self.now);
            self.clock.steps += 1;
            self.clock.devices.began(1);
            self.now + Duration::from_millis(milliseconds)
        }

        fn times(mut self, exchanged: u64) -> StepTimes {
            let exchanged = Duration::from_millis(exchanged);
            let times = self.clock.take_at(exchanged, self.now);
            let wall = self.now - self.began;
            assert_eq!(times.total(), wall, "the parts add up");
            times
        }
    }

    /// Ten steps in which the host does these things one after another.
    fn steps(each: &[(StepPart, u64)], exchanged: u64) -> StepTimes {
        let mut played = Played::new();
        for _ in 0..10 {
            for &(part, milliseconds) in each {
                played.spend(part, milliseconds);
            }
            let done = played.step(20);
            played.now = done;
            played.clock.devices.ended(done);
        }
        played.times(exchanged)
    }

    fn input(busy: u64) -> InputReport {
        let stage = |stage, busy, bytes| StageTime {
            stage,
            batches: 10,
            examples: 0,
            bytes,
            busy: Duration::from_millis(busy),
            wait: Duration::ZERO,
        };
        let stages = vec![
            stage("examples", 0, 0),
            stage("map", busy, 10 << 20),
            stage("next", 0, 0),
        ];
        InputReport {
            bottleneck: InputBottleneck::of(&stages, Duration::ZERO, Duration::ZERO),
            stages,
            skipped: 0,
            validation_skipped: 0,
            lost_bytes: 0,
        }
    }

    #[test]
    fn five_slow_pipelines_get_the_right_verdict() {
        use StepPart::{Callbacks, Checkpoint, Exchange, Input, Transfer};
        let verdict = |each: &[(StepPart, u64)], exchanged, busy| {
            let times = steps(each, exchanged);
            (
                times.bound(),
                times.verdict(&input(busy), 2).unwrap_or_default(),
            )
        };
        let (part, told) = verdict(&[(Input, 9), (Transfer, 1)], 0, 300);
        assert_eq!(part, Some(Input));
        assert_eq!(
            told,
            "input-bound by 30 %: making the batches (slowest stage: map) needs 1.4 processors to keep up, of 2; make them on more threads (`Batches::autotune`), or keep what does not change (`Dataset::cache`)"
        );
        let (_, told) = verdict(&[(Input, 9), (Transfer, 1)], 0, 3000);
        assert!(
            told.contains("needs 14.3 processors to keep up, of 2; keep what does not change"),
            "{told}"
        );
        let (_, told) = verdict(&[(Input, 9)], 0, 3);
        assert!(told.contains("although no stage is busy"), "{told}");
        let (part, told) = verdict(&[(Input, 1), (Transfer, 10)], 0, 0);
        assert_eq!(part, Some(Transfer));
        assert!(
            told.starts_with(
                "transfer-bound by 32 %: copying 1.00 MiB a step to the devices takes 10.0 ms;"
            ),
            "{told}"
        );
        let (part, told) = verdict(&[(Input, 1), (Transfer, 1)], 100, 0);
        assert_eq!(part, Some(Exchange));
        assert!(
            told.starts_with("exchange-bound by 45 %: a step waits 10.0 ms"),
            "{told}"
        );
        let (part, told) = verdict(&[(Transfer, 1), (Checkpoint, 9)], 0, 0);
        assert_eq!(part, Some(Checkpoint));
        assert!(
            told.starts_with("checkpoint-bound by 30 %: 0.1 s of 0.3 s"),
            "{told}"
        );
        let (part, told) = verdict(&[(Transfer, 1), (Callbacks, 9)], 0, 0);
        assert_eq!(part, Some(Callbacks));
        assert!(told.starts_with("callback-bound by 30 %"), "{told}");
        assert_eq!(
            verdict(&[(Input, 1), (Transfer, 1)], 0, 0),
            (None, String::new())
        );
    }

    #[test]
    fn what_the_host_does_while_devices_compute_is_computation() {
        let mut played = Played::new();
        let done = played.step(20);
        played.spend(StepPart::Input, 5);
        played.spend(StepPart::Transfer, 5);
        // The device is done after 20 of these 30 milliseconds.
        played.clock.enter_at(StepPart::Input, played.now);
        played.now = done + Duration::from_millis(10);
        played.clock.devices.ended(done);
        let times = played.times(0);
        assert_eq!(times.of(StepPart::Compute), Duration::from_millis(20));
        assert_eq!(times.of(StepPart::Input), Duration::from_millis(10));
        assert_eq!(times.of(StepPart::Transfer), Duration::ZERO);
    }

    #[test]
    fn what_is_taken_is_counted_anew() {
        let mut played = Played::new();
        played.spend(StepPart::Compile, 50);
        let waited = Duration::from_millis(30);
        let first = played.clock.take_at(waited, played.now);
        assert_eq!(first.of(StepPart::Compile), Duration::from_millis(50));
        assert_eq!(first.bound(), None, "compilation is no wait");
        let done = played.step(20);
        played.now = done;
        played.clock.devices.ended(done);
        let second = played
            .clock
            .take_at(waited + Duration::from_millis(5), done);
        assert_eq!(second.of(StepPart::Compile), Duration::ZERO);
        assert_eq!(second.of(StepPart::Exchange), Duration::from_millis(5));
        assert_eq!(second.of(StepPart::Compute), Duration::from_millis(15));
        assert_eq!(second.steps, 1);
    }
}
