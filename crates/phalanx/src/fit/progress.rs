//! What a user sees while training runs.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};

use super::{EpochLogs, InputReport, Logs, ReplicaTimes, SlowWorker, StepPart, Throughput};
use crate::data::StageTime;

/// How progress is shown, on standard output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Progress {
    /// A bar on a terminal, plain lines elsewhere.
    #[default]
    Auto,
    /// A bar that is drawn again and again, and a line for each epoch.
    Bar,
    /// A line for each epoch.
    Plain,
    /// A JSON object a line: `{"event": "start", ..}`, `{"event": "epoch", ..}`, at most one `{"event": "progress", ..}` a second, and
    /// `{"event": "stop", ..}` where a callback ends the training.
    Json,
    /// Nothing.
    Silent,
}

/// Shows the progress of one `fit`.
pub(super) struct ProgressReporter {
    mode: Progress,
    epochs: usize,
    steps: Option<usize>,
    epoch: usize,
    bar: ProgressBar,
    started: Instant,
    /// Epochs that ended.
    ended: usize,
    /// When to look at the results next.
    due: Instant,
    /// What training was last told to wait for.
    told: Option<StepPart>,
    /// The straggler that was told last.
    straggler: Option<usize>,
    /// The workers of the last epoch that kept others waiting.
    slow_workers: Vec<SlowWorker>,
}

impl ProgressReporter {
    pub(super) fn new(progress: Progress, epochs: usize) -> Self {
        let mode = match progress {
            Progress::Auto if std::io::stdout().is_terminal() => Progress::Bar,
            Progress::Auto => Progress::Plain,
            other => other,
        };
        Self {
            mode,
            epochs,
            steps: None,
            epoch: 0,
            bar: ProgressBar::hidden(),
            started: Instant::now(),
            ended: 0,
            due: Instant::now(),
            told: None,
            straggler: None,
            slow_workers: Vec::new(),
        }
    }

    /// Says what begins.
    pub(super) fn start(&self, line: &str) {
        match self.mode {
            Progress::Silent => {}
            Progress::Json => print_line(&json!({"event": "start", "on": line}).to_string()),
            _ => print_line(line),
        }
    }

    /// An epoch begins, of `steps` steps where that is known.
    pub(super) fn begin(&mut self, epoch: usize, steps: Option<usize>) {
        (self.epoch, self.steps) = (epoch, steps);
        self.started = Instant::now();
        self.due = self.started + self.interval();
        if self.mode == Progress::Bar {
            let style = ProgressStyle::with_template(template(
                std::env::var_os("NO_COLOR").is_none(),
                steps.is_some(),
            ));
            self.bar = ProgressBar::with_draw_target(
                self.steps.map(|steps| steps as u64),
                ProgressDrawTarget::stdout(),
            )
            .with_prefix(format!("{}/{}", epoch + 1, self.epochs))
            .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            self.bar.tick();
        }
    }

    /// Whether somebody wants to see results now: they cost a wait for the device.
    pub(super) fn is_due(&self) -> bool {
        Instant::now() >= self.due
    }

    /// Shows the results so far of an epoch, and the learning rate of the next step.
    pub(super) fn step(&mut self, steps: usize, logs: &Logs, rate: f64) {
        self.due = Instant::now() + self.interval();
        match self.mode {
            Progress::Bar => {
                self.bar.set_position(steps as u64);
                self.bar
                    .set_message(format!("{logs}, rate {}", short(rate)));
            }
            Progress::Json => {
                let done = json!({"event": "progress", "epoch": self.epoch + 1, "step": steps, "steps": self.steps, "learning_rate": logged_rate(rate), "logs": logs.to_json()});
                print_line(&done.to_string());
            }
            _ => {}
        }
    }

    /// Shows the results of an epoch, and the learning rate of the next step.
    pub(super) fn end(&mut self, epoch: &EpochLogs, rate: f64) {
        self.bar.finish_and_clear();
        self.ended += 1;
        let EpochLogs {
            logs,
            steps,
            seconds,
            input,
            throughput,
            ..
        } = epoch;
        match self.mode {
            Progress::Json => {
                let done = json!({"event": "epoch", "epoch": epoch.epoch + 1, "epochs": self.epochs, "steps": steps, "seconds": seconds, "throughput": throughput.map(Throughput::to_json), "learning_rate": logged_rate(rate), "logs": logs.to_json(), "input": of_input(input), "times": epoch.times.map(|times| times.to_json()), "verdict": epoch.verdict});
                print_line(&done.to_string());
            }
            Progress::Silent => {}
            _ => {
                print_line(&format!(
                    "epoch {}/{}: {logs} ({steps} steps, {}, {} a step{}; next rate {}{}{})",
                    epoch.epoch + 1,
                    self.epochs,
                    duration(*seconds),
                    duration(step_seconds(*seconds, *steps, *throughput)),
                    throughput.map_or_else(String::new, |speed| format!(", {}", speed.shown())),
                    short(rate),
                    self.time_left(epoch),
                    remarks(epoch),
                ));
                self.advise(epoch);
            }
        }
    }

    /// Says to programs why the training was ended after this step; people read it in a notice.
    pub(super) fn stop(&self, step: i64, reason: &str) {
        self.bar.finish_and_clear();
        if self.mode == Progress::Json {
            let told = json!({"event": "stop", "step": step, "reason": reason});
            print_line(&told.to_string());
        }
    }

    /// Says what would make training faster, once for each thing it waits for.
    fn advise(&mut self, epoch: &EpochLogs) {
        let bound = epoch.times.and_then(|times| times.bound());
        if let (Some(verdict), true) = (&epoch.verdict, bound != self.told) {
            self.told = bound;
            print_line(verdict);
        }
    }

    /// Says which replica keeps the others waiting, if that was not said before.
    pub(super) fn straggler(&mut self, times: &ReplicaTimes) {
        let Some(warning) = self.new_straggler(times) else {
            return;
        };
        match self.mode {
            Progress::Silent => {}
            Progress::Json => {
                let seconds = times.replicas.iter().map(|r| r.median.as_secs_f64());
                let seconds: Vec<f64> = seconds.collect();
                let told = json!({"event": "straggler", "epoch": self.epoch + 1, "replica": times.straggler(), "seconds": seconds, "message": warning});
                print_line(&told.to_string());
            }
            _ => print_line(&warning),
        }
    }

    /// Says to programs which workers kept the others waiting, once each; people have read it in a notice.
    pub(super) fn slow_workers(&mut self, slow: &[SlowWorker]) {
        let events = self.new_slow_workers(slow);
        if self.mode == Progress::Json {
            events
                .iter()
                .for_each(|event| print_line(&event.to_string()));
        }
    }

    fn new_slow_workers(&mut self, slow: &[SlowWorker]) -> Vec<Value> {
        let before = std::mem::replace(&mut self.slow_workers, slow.to_vec());
        let new = slow.iter().filter(|slow| !before.contains(slow));
        let event = |slow: &SlowWorker| {
            let mut event = slow.to_json();
            event["event"] = "straggler".into();
            event["epoch"] = (self.epoch + 1).into();
            event["message"] = slow.to_string().into();
            event
        };
        new.map(event).collect()
    }

    fn new_straggler(&mut self, times: &ReplicaTimes) -> Option<String> {
        let before = std::mem::replace(&mut self.straggler, times.straggler());
        times.warning().filter(|_| before != self.straggler)
    }

    /// How long the epochs to come take if they take as long as this one, where that is worth saying.
    fn time_left(&self, epoch: &EpochLogs) -> String {
        let left = self.epochs.saturating_sub(epoch.epoch + 1) as f64 * epoch.seconds;
        // The first epoch of a run compiles too: that of the second is the first to go by.
        match left >= 10.0 && self.ended > 1 {
            true => format!("; {} left", clock(left)),
            false => String::new(),
        }
    }

    fn interval(&self) -> Duration {
        Duration::from_millis(match self.mode {
            Progress::Bar => 200,
            _ => 1000,
        })
    }
}

/// How long a step of an epoch took, without compilation and validation where that is known.
fn step_seconds(seconds: f64, steps: usize, throughput: Option<Throughput>) -> f64 {
    let of_epoch = seconds / steps.max(1) as f64;
    throughput.map_or(of_epoch, |speed| 1.0 / speed.steps_per_second)
}

/// What a user should know about the data, if anything.
fn remarks(epoch: &EpochLogs) -> String {
    let mut remarks = String::new();
    if let Some(verdict) = &epoch.verdict {
        let (bound, _) = verdict.split_once(':').unwrap_or((verdict, ""));
        remarks += &format!("; {bound}");
    }
    let input = &epoch.input;
    if input.skipped > 0 {
        remarks += &format!("; {} corrupt examples left out", input.skipped);
    }
    if input.validation_skipped > 0 {
        let count = input.validation_skipped;
        remarks += &format!("; {count} corrupt examples left out of the validation");
    }
    if input.lost_bytes > 0 {
        let count = input.lost_bytes;
        remarks += &format!("; {count} bytes of corrupt files left out");
    }
    remarks
}

fn of_input(input: &InputReport) -> Value {
    let stage = |time: &StageTime| {
        json!({"stage": time.stage, "batches": time.batches, "examples": time.examples, "bytes": time.bytes,
            "busy": time.busy.as_secs_f64(), "wait": time.wait.as_secs_f64()})
    };
    let stages: Vec<Value> = input.stages.iter().map(stage).collect();
    json!({"waited": input.bottleneck.waited, "slowest": input.bottleneck.slowest, "skipped": input.skipped,
        "validation_skipped": input.validation_skipped, "lost_bytes": input.lost_bytes, "stages": stages})
}

/// How a bar is drawn: with rate and time left.
const fn template(is_coloured: bool, has_end: bool) -> &'static str {
    match (is_coloured, has_end) {
        (true, true) => {
            "epoch {prefix} {bar:24.cyan} {pos}/{len} {per_sec:.green} {eta:.green} left {msg}"
        }
        (false, true) => "epoch {prefix} {bar:24} {pos}/{len} {per_sec} {eta} left {msg}",
        (_, false) => "epoch {prefix} {spinner} {pos} {per_sec} {msg}",
    }
}

/// A learning rate in the digits that f32 has, for logs: 0.001 and not 0.0010000000474974513.
pub(super) fn logged_rate(rate: f64) -> f64 {
    format!("{rate:.6e}").parse().unwrap_or(rate)
}

/// A rate in a few digits: `0.001`, `2.5e-6`.
pub(super) fn short(rate: f64) -> String {
    // Rates are f32 on the device: 0.001 and not 0.0010000000474974513.
    let rate = rate as f32;
    let digits = format!("{rate:.3e}");
    let (mantissa, exponent) = digits.split_once('e').unwrap_or((&digits, "0"));
    let mantissa = mantissa.trim_end_matches('0').trim_end_matches('.');
    match exponent.parse() {
        Ok(-4..=3) => format!("{mantissa}e{exponent}")
            .parse::<f64>()
            .map_or(digits.clone(), |rate| rate.to_string()),
        _ => format!("{mantissa}e{exponent}"),
    }
}

/// Hours, minutes and seconds.
fn clock(seconds: f64) -> String {
    let seconds = seconds.round() as u64;
    match (seconds / 3600, seconds / 60 % 60) {
        (0, 0) => format!("{seconds} s"),
        (0, minutes) => format!("{minutes} min {} s", seconds % 60),
        (hours, minutes) => format!("{hours} h {minutes} min"),
    }
}

/// A reader that is gone (a closed pipe) does not end the training.
fn print_line(line: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

fn duration(seconds: f64) -> String {
    match seconds {
        s if s >= 100.0 => format!("{s:.0} s"),
        s if s >= 1.0 => format!("{s:.1} s"),
        s if s >= 1e-3 => format!("{:.1} ms", s * 1e3),
        s => format!("{:.0} us", s * 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fit::ReplicaTime;

    #[test]
    fn rates_and_times_are_short() {
        let rates = [0.001, f64::from(0.001f32), 0.5, 2.5e-6, 0.0, 1.0, 12_345.0].map(short);
        assert_eq!(
            rates,
            ["0.001", "0.001", "0.5", "2.5e-6", "0", "1", "1.234e4"]
        );
        let times = [12.4, 75.0, 7260.0].map(clock);
        assert_eq!(times, ["12 s", "1 min 15 s", "2 h 1 min"]);
    }

    #[test]
    fn a_step_has_no_share_of_compilation_and_validation() {
        let throughput = Throughput::of(4, 64, None, 2.0);
        assert_eq!(step_seconds(8.0, 4, throughput), 0.5);
        assert_eq!(step_seconds(8.0, 4, None), 2.0);
    }

    #[test]
    fn a_straggler_is_told_once() {
        let times = |both: [u64; 2]| ReplicaTimes {
            replicas: Vec::from(both.map(|ms| ReplicaTime {
                device: "gpu:0".to_owned(),
                rows: 16,
                median: Duration::from_millis(ms),
            })),
            shares_count: true,
        };
        let mut reporter = ProgressReporter::new(Progress::Silent, 1);
        let told = [[10, 10], [10, 30], [10, 31], [30, 10], [10, 10], [30, 10]];
        let is_new = told.map(|both| reporter.new_straggler(&times(both)).is_some());
        assert_eq!(is_new, [false, true, false, true, false, true]);
    }

    #[test]
    fn a_slow_worker_is_told_once() {
        let slow = |worker| SlowWorker {
            worker,
            workers: 4,
            address: "10.0.0.2:4711".parse().ok(),
            time: Duration::from_millis(105),
            others: Duration::from_millis(10),
        };
        let mut reporter = ProgressReporter::new(Progress::Silent, 9);
        let mut told = |slow: &[SlowWorker]| reporter.new_slow_workers(slow);
        let message = "worker 2 of 4 (10.0.0.2:4711) keeps the others waiting: its part of a step takes 105.0 ms, the others' 10.0 ms; see what else uses its machine and how fast it reads its data, or leave it out";
        let event = json!({"event": "straggler", "epoch": 1, "worker": 2, "address": "10.0.0.2:4711", "seconds": 0.105, "others": 0.01, "message": message});
        assert_eq!(told(&[slow(2)]), std::slice::from_ref(&event));
        assert_eq!(told(&[slow(2)]), [Value::Null; 0]);
        let both = told(&[slow(2), slow(0)]);
        assert_eq!((both.len(), &both[0]["worker"]), (1, &json!(0)));
        assert_eq!(told(&[]), [Value::Null; 0]);
        assert_eq!(told(&[slow(2)]), [event]);
    }

    #[test]
    fn bars_are_drawn_with_rate_and_time_left() {
        for coloured in [false, true] {
            let text = template(coloured, true);
            assert!(text.contains("{per_sec") && text.contains("{eta"));
            assert_eq!(text.contains("cyan"), coloured);
            assert!(ProgressStyle::with_template(text).is_ok());
            assert!(ProgressStyle::with_template(template(coloured, false)).is_ok());
        }
    }
}
