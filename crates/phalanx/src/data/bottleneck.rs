//! Whether training waits for its data.

use std::fmt;
use std::time::Duration;

use super::StageTime;

/// How long devices waited for batches, and which stage of the input was slowest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InputBottleneck {
    /// The share of the time, from 0 to 1, in which devices were idle because no batch was ready.
    ///
    /// Less than the time the consumer waited ([`StageTime`] `next`), since steps begun before may still run meanwhile.
    pub waited: f64,
    /// The stage that was busy longest.
    pub slowest: &'static str,
}

/// Below this share the input is not the bottleneck.
const NOTABLE: f64 = 0.02;

impl InputBottleneck {
    /// From the times of the stages ([`BatchIter::stage_times`](super::BatchIter::stage_times)), and how long of `elapsed` idle
    /// devices waited for a batch.
    #[must_use]
    pub fn of(times: &[StageTime], waited: Duration, elapsed: Duration) -> Self {
        let slowest = times.iter().max_by_key(|time| time.busy);
        Self {
            waited: (waited.as_secs_f64() / elapsed.as_secs_f64().max(1e-9)).min(1.0),
            slowest: slowest.map_or("examples", |time| time.stage),
        }
    }
}

impl InputBottleneck {
    /// Whether devices waited long enough to mention.
    #[must_use]
    pub fn is_notable(&self) -> bool {
        self.waited >= NOTABLE
    }
}

impl fmt::Display for InputBottleneck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_notable() {
            return f.write_str("not input-bound");
        }
        let percent = (self.waited * 100.0).round();
        write!(
            f,
            "input-bound by {percent}% (slowest stage: {})",
            self.slowest
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_waiting_is_named() {
        let time = |stage, busy, wait| StageTime {
            stage,
            batches: 5,
            examples: 0,
            bytes: 0,
            busy: Duration::from_millis(busy),
            wait: Duration::from_millis(wait),
        };
        let times = [
            time("examples", 100, 0),
            time("map", 700, 0),
            time("prefetch", 0, 900),
            time("next", 0, 600),
        ];
        let waited = Duration::from_millis(250);
        let bottleneck = InputBottleneck::of(&times, waited, Duration::from_secs(1));
        assert_eq!(
            bottleneck.to_string(),
            "input-bound by 25% (slowest stage: map)"
        );
        assert_eq!(
            InputBottleneck::of(&times, waited, Duration::from_secs(100)).to_string(),
            "not input-bound"
        );
        assert_eq!(
            InputBottleneck::of(&[], Duration::ZERO, Duration::ZERO).waited,
            0.0
        );
    }
}
