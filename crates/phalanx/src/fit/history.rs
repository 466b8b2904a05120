//! The logs of a step, and of each epoch.

use std::fmt;
use std::ops::Index;

use serde_json::{Value, json};

use super::progress::short;
use super::{ReplicaTimes, SlowWorker, StepTimes};
use crate::data::{InputBottleneck, StageTime};

/// Results by name, in the order of the logs: `loss`, losses of outputs, metrics, then those that begin with `val_`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Logs(Vec<(String, f64)>);

impl Logs {
    /// What names of results of a validation begin with.
    pub(super) const VALIDATION: &str = "val_";

    /// The result that callbacks which change the rate log.
    pub(super) const LEARNING_RATE: &str = "learning_rate";

    /// The result of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<f64> {
        let found = self.0.iter().find(|(other, _)| other == name);
        found.map(|&(_, value)| value)
    }

    /// Names and results.
    #[must_use]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, f64)> {
        self.0.iter().map(|(name, value)| (name.as_str(), *value))
    }

    /// The results as a JSON object; those that are not finite are null.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let values = self
            .iter()
            .map(|(name, value)| (name.to_owned(), json!(value)));
        Value::Object(values.collect())
    }

    /// Sets the result of a name, which is added at the end where there is none.
    pub fn set(&mut self, name: &str, value: f64) {
        match self.0.iter_mut().find(|(other, _)| other == name) {
            Some((_, old)) => *old = value,
            None => self.push(name, value),
        }
    }

    pub(super) fn push(&mut self, name: impl Into<String>, value: f64) {
        self.0.push((name.into(), value));
    }

    /// Adds results of a validation.
    pub(super) fn extend_validation(&mut self, validation: &Self) {
        for (name, value) in validation.iter() {
            self.push(format!("{}{name}", Self::VALIDATION), value);
        }
    }
}

impl FromIterator<(String, f64)> for Logs {
    fn from_iter<T: IntoIterator<Item = (String, f64)>>(logs: T) -> Self {
        Self(logs.into_iter().collect())
    }
}

impl Index<&str> for Logs {
    type Output = f64;

    /// # Panics
    /// When there is no result of this name; [`get`](Logs::get) does not.
    fn index(&self, name: &str) -> &f64 {
        let found = self.0.iter().find(|(other, _)| other == name);
        let names = || {
            self.iter()
                .map(|(name, _)| name)
                .collect::<Vec<_>>()
                .join(", ")
        };
        found.map_or_else(
            || panic!("no `{name}` among the logs: {}", names()),
            |(_, value)| value,
        )
    }
}

impl fmt::Display for Logs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, value)) in self.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{name} {}", number(value))?;
        }
        Ok(())
    }
}

/// Four digits after the point, or powers of ten where those would say nothing.
fn number(value: f64) -> String {
    let size = value.abs();
    if size != 0.0 && !(1e-3..1e6).contains(&size) {
        return format!("{value:.4e}");
    }
    format!("{value:.4}")
}

/// The results of an epoch.
#[derive(Clone, Debug, PartialEq)]
pub struct EpochLogs {
    /// Number of the epoch, from 0.
    pub epoch: usize,
    /// Its results.
    pub logs: Logs,
    /// Training steps done.
    pub steps: usize,
    /// How long it took, validation included.
    pub seconds: f64,
    /// How fast it trained; none for epochs of a checkpoint.
    pub throughput: Option<Throughput>,
    /// What reading the data cost, and whether training waited for it.
    pub input: InputReport,
    /// How long each replica took for a step by itself, where that was [measured](super::Fit::watch_replicas).
    pub replica_times: Option<ReplicaTimes>,
    /// Workers that kept the others waiting at some time of it, as they were when that was [found](super::Fit::watch_replicas).
    pub slow_workers: Vec<SlowWorker>,
    /// Where the time since the results of the epoch before went; none for epochs of a checkpoint.
    pub times: Option<StepTimes>,
    /// What training waits for most and what to do about it, if it waits for more than computation.
    pub verdict: Option<String>,
}

/// How fast the steps of an epoch were, in the time that neither compilation nor validation took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Throughput {
    /// Training steps a second.
    pub steps_per_second: f64,
    /// Examples a second, over all replicas and workers.
    pub examples_per_second: f64,
    /// FLOPs a second, over all replicas and workers, by the [count](phalanx_graph::Cost) of the program of a step, in which a loop
    /// without a known end counts once. Divided by the peak of the devices this is the model FLOPs utilisation. None of stages.
    pub flops_per_second: Option<f64>,
}

impl Throughput {
    /// Of some steps with their examples, each of this number of FLOPs, in a number of seconds; none where there was no step or no time.
    pub(super) fn of(
        steps: usize,
        examples: usize,
        flops_each: Option<f64>,
        seconds: f64,
    ) -> Option<Self> {
        let examples_per_second = examples as f64 / seconds;
        (steps > 0 && seconds > 0.0).then(|| Self {
            steps_per_second: steps as f64 / seconds,
            examples_per_second,
            flops_per_second: flops_each.map(|flops| flops * examples_per_second),
        })
    }

    /// For the line of an epoch.
    pub(super) fn shown(&self) -> String {
        let short = |number: f64| match number >= 100.0 {
            true => format!("{number:.0}"),
            false => short(number),
        };
        // Of a model that computes hardly anything they say nothing.
        let flops = self.flops_per_second.filter(|flops| *flops >= 1e7);
        let flops = flops.map(|flops| format!(", {} GFLOP/s", short(flops / 1e9)));
        let examples = short(self.examples_per_second);
        format!("{examples} examples/s{}", flops.unwrap_or_default())
    }

    /// Its numbers by their names.
    #[must_use]
    pub fn to_json(self) -> Value {
        json!({
            "steps_per_second": self.steps_per_second,
            "examples_per_second": self.examples_per_second,
            "flops_per_second": self.flops_per_second,
        })
    }
}

/// What reading the data of an epoch cost.
#[derive(Clone, Debug, PartialEq)]
pub struct InputReport {
    /// Whether training waited for its data.
    pub bottleneck: InputBottleneck,
    /// Each stage of the input, in the order of the data.
    pub stages: Vec<StageTime>,
    /// Examples left out because they are corrupt.
    pub skipped: u64,
    /// Examples of the validation left out because they are corrupt.
    pub validation_skipped: u64,
    /// Bytes of the files behind a corrupt place, in which nothing could be found.
    pub lost_bytes: u64,
}

/// What a `fit` did, epoch by epoch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// The epochs done.
    pub epochs: Vec<EpochLogs>,
}

impl History {
    /// The results of this name, of the epochs that have one.
    #[must_use]
    pub fn of(&self, name: &str) -> Vec<f64> {
        let values = self.epochs.iter().map(|epoch| epoch.logs.get(name));
        values.flatten().collect()
    }

    /// The results of the last epoch.
    #[must_use]
    pub fn last(&self) -> Option<&Logs> {
        self.epochs.last().map(|epoch| &epoch.logs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speed_is_told_in_few_digits_and_only_where_there_is_one() {
        let of = |examples, flops| Throughput::of(4, examples, flops, 0.5).unwrap();
        let fast = of(61_728, Some(2.5e6));
        assert_eq!(fast.steps_per_second, 8.0);
        assert_eq!(fast.examples_per_second, 123_456.0);
        assert_eq!(fast.flops_per_second, Some(2.5e6 * 123_456.0));
        assert_eq!(fast.shown(), "123456 examples/s, 309 GFLOP/s");
        assert_eq!(of(7, None).shown(), "14 examples/s");
        assert_eq!(of(7, Some(1e5)).shown(), "14 examples/s");
        assert_eq!(of(7, Some(1e6)).shown(), "14 examples/s, 0.014 GFLOP/s");
        assert_eq!(Throughput::of(0, 0, None, 1.0), None);
        assert_eq!(Throughput::of(1, 8, None, 0.0), None);
        assert_eq!(Throughput::of(1, 8, None, -0.1), None);
    }

    #[test]
    fn numbers_are_short_but_say_something() {
        let shown = |value| number(value);
        assert_eq!(shown(0.123_456), "0.1235");
        assert_eq!(shown(0.0), "0.0000");
        assert_eq!(shown(-0.000_012_3), "-1.2300e-5");
        assert_eq!(shown(12_345_678.0), "1.2346e7");
        assert_eq!(shown(f64::NAN), "NaN");
    }

    #[test]
    fn logs_are_found_by_name() {
        let mut logs = Logs::default();
        logs.push("loss", 0.5);
        let mut both = logs.clone();
        both.extend_validation(&logs);
        assert_eq!(both.to_string(), "loss 0.5000, val_loss 0.5000");
        assert_eq!((both["val_loss"], both.get("accuracy")), (0.5, None));
    }
}
