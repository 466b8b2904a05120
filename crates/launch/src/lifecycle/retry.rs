//! Whether a failed attempt is tried again, by exit code.
//!
//! 1, 2 and 3 say that trying again would not help: the training failed, it was told something wrong, the machine is not ready. 75
//! says that a peer or the infrastructure was lost, and is tried again as often as the job allows. 143 is a training that was told to end
//! and saved before it did: that costs nothing of the job's budget. 42, TensorFlow's word for the same, counts as 143.

use std::time::Duration;

use phalanx_cluster::launch::TRY_AGAIN;

use super::TaskEnd;

/// What attempts before have cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Budget {
    /// Losses so far.
    pub losses: u32,
    /// Preemptions so far.
    pub preemptions: u32,
}

/// What to do after a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Try again after a while.
    Again(Duration),
    /// It would not help, or has been tried often enough.
    Over,
}

/// A job that is preempted more often than this is not getting on.
const MOST_PREEMPTIONS: u32 = 100;
/// A job that was preempted more often may be one that ends in this way by itself.
const PREEMPTIONS_AT_ONCE: u32 = 5;
/// The longest wait before another attempt.
const LONGEST: Duration = Duration::from_secs(60);

/// What follows from the end of the task that failed first. `budget` is charged.
pub fn verdict(end: TaskEnd, restarts: u32, budget: &mut Budget) -> Verdict {
    match end.how().exit_code() {
        143 | 42 if budget.preemptions < MOST_PREEMPTIONS => {
            let wait = pause(budget.preemptions, PREEMPTIONS_AT_ONCE);
            budget.preemptions += 1;
            Verdict::Again(wait)
        }
        TRY_AGAIN if budget.losses < restarts => {
            // At once the first time: a lost peer is no sign of a fault that stays.
            let wait = pause(budget.losses, 1);
            budget.losses += 1;
            Verdict::Again(wait)
        }
        _ => Verdict::Over,
    }
}

/// Whether tasks are started again after such an end, as often as they may be.
#[must_use]
pub fn is_tried_again(end: TaskEnd) -> bool {
    verdict(end, 1, &mut Budget::default()) != Verdict::Over
}

/// How long to wait after this number of ends of the same kind: not at all after the first ones, then twice as long each time.
fn pause(before: u32, at_once: u32) -> Duration {
    match before.checked_sub(at_once) {
        None => Duration::ZERO,
        Some(more) => Duration::from_secs(1 << more.min(6)).min(LONGEST),
    }
}
