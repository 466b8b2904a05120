//! What limits the speed of a training, and what to do about it.

use std::time::Duration;

use super::history::InputReport;
use super::step_times::{StepPart, StepTimes};
use crate::bytes::format_bytes;

impl StepTimes {
    /// What training waits for most, by which share, and what to do: `input-bound by 31 %: ..`. None where computation is what takes
    /// the time. `processors` is how many this process may use.
    #[must_use]
    pub fn verdict(&self, input: &InputReport, processors: usize) -> Option<String> {
        let part = self.bound()?;
        let percent = (self.share(part) * 100.0).round();
        Some(match part {
            StepPart::Input => format!(
                "input-bound by {percent} %: {}",
                self.input_remedy(input, processors)
            ),
            StepPart::Transfer => format!(
                "transfer-bound by {percent} %: copying {} a step to the devices takes {}; give smaller types (bytes of images instead of floats, and divide in the model) or larger batches of fewer bytes an example",
                format_bytes(self.step_bytes(input)),
                milliseconds(self.step_part(StepPart::Transfer))
            ),
            StepPart::Exchange => format!(
                "exchange-bound by {percent} %: a step waits {} for the other workers; raise the batch or accumulate gradients, so that there are fewer exchanges for an example, use a faster network, or see whether another worker is slower",
                milliseconds(self.step_part(StepPart::Exchange))
            ),
            StepPart::Checkpoint => format!(
                "checkpoint-bound by {percent} %: {} of {} went to writing checkpoints; write fewer (`save_freq`) or to a faster disk",
                seconds(self.of(StepPart::Checkpoint)),
                seconds(self.total())
            ),
            _ => format!(
                "callback-bound by {percent} %: {} of {} went to what is called and written after steps and epochs; do less there, or less often",
                seconds(self.of(StepPart::Callbacks)),
                seconds(self.total())
            ),
        })
    }

    /// What makes batches too slowly. Stages that need more processors than there are must do less; others can run on more
    /// threads.
    fn input_remedy(&self, input: &InputReport, processors: usize) -> String {
        let busy: Duration = input.stages.iter().map(|stage| stage.busy).sum();
        let rest = self.total().saturating_sub(self.of(StepPart::Input));
        let rest = rest.saturating_sub(self.of(StepPart::Compile));
        let needed = busy.as_secs_f64() / rest.as_secs_f64().max(1e-9);
        let slowest = input.bottleneck.slowest;
        if needed <= 0.1 {
            return "the data come late although no stage is busy: read larger pieces, or from a faster disk".into();
        }
        let needs = format!(
            "making the batches (slowest stage: {slowest}) needs {needed:.1} processors to keep up, of {processors}"
        );
        if needed <= processors as f64 * 0.9 {
            return format!(
                "{needs}; make them on more threads (`Batches::autotune`), or keep what does not change (`Dataset::cache`)"
            );
        }
        format!(
            "{needs}; keep what does not change (`Dataset::cache`), store smaller or already resized data, or divide the work over more machines"
        )
    }

    /// Bytes of a batch.
    fn step_bytes(&self, input: &InputReport) -> u64 {
        let made = input.stages.iter().rev().find(|stage| stage.bytes > 0);
        made.map_or(0, |stage| stage.bytes / stage.batches.max(1))
    }

    fn step_part(&self, part: StepPart) -> Duration {
        self.of(part) / u32::try_from(self.steps.max(1)).unwrap_or(u32::MAX)
    }
}

fn milliseconds(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
