//! What a user sees while training runs.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Map, Value, json};

use super::{EpochLogs, Input, Logs, ReplicaTimes};
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
    /// A JSON object a line: `{"event": "start", ..}`, `{"event": "epoch", ..}`, and at most one `{"event": "progress", ..}` a second.
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
    /// When to look at the results next.
    due: Instant,
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
            due: Instant::now(),
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
            let template = "epoch {prefix} {bar:24} {pos}/{len} {msg}";
            let style = ProgressStyle::with_template(template);
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

    pub(super) fn step(&mut self, steps: usize, logs: &Logs) {
        self.due = Instant::now() + self.interval();
        match self.mode {
            Progress::Bar => {
                self.bar.set_position(steps as u64);
                self.bar.set_message(logs.to_string());
            }
            Progress::Json => {
                let done = json!({"event": "progress", "epoch": self.epoch + 1, "step": steps, "steps": self.steps, "logs": values(logs)});
                print_line(&done.to_string());
            }
            _ => {}
        }
    }

    pub(super) fn end(&mut self, epoch: &EpochLogs) {
        self.bar.finish_and_clear();
        let EpochLogs {
            logs,
            steps,
            seconds,
            input,
            ..
        } = epoch;
        match self.mode {
            Progress::Json => {
                let done = json!({"event": "epoch", "epoch": epoch.epoch + 1, "epochs": self.epochs, "steps": steps, "seconds": seconds, "logs": values(logs), "input": of_input(input)});
                print_line(&done.to_string());
            }
            Progress::Silent => {}
            _ => print_line(&format!(
                "epoch {}/{}: {logs} ({steps} steps, {}, {} a step{})",
                epoch.epoch + 1,
                self.epochs,
                duration(*seconds),
                duration(seconds / (*steps).max(1) as f64),
                remarks(input),
            )),
        }
    }

    /// Says which replica keeps the others waiting.
    pub(super) fn straggler(&self, times: &ReplicaTimes, warning: &str) {
        match self.mode {
            Progress::Silent => {}
            Progress::Json => {
                let seconds = times.replicas.iter().map(|r| r.median.as_secs_f64());
                let seconds: Vec<f64> = seconds.collect();
                let told = json!({"event": "straggler", "epoch": self.epoch + 1, "replica": times.straggler(), "seconds": seconds, "message": warning});
                print_line(&told.to_string());
            }
            _ => print_line(warning),
        }
    }

    fn interval(&self) -> Duration {
        Duration::from_millis(match self.mode {
            Progress::Bar => 200,
            _ => 1000,
        })
    }
}

/// What a user should know about the data, if anything.
fn remarks(input: &Input) -> String {
    let mut remarks = String::new();
    if input.bottleneck.is_notable() {
        remarks += &format!("; {}", input.bottleneck);
    }
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

fn of_input(input: &Input) -> Value {
    let stage = |time: &StageTime| {
        json!({"stage": time.stage, "batches": time.batches, "examples": time.examples, "bytes": time.bytes,
            "busy": time.busy.as_secs_f64(), "wait": time.wait.as_secs_f64()})
    };
    let stages: Vec<Value> = input.stages.iter().map(stage).collect();
    json!({"waited": input.bottleneck.waited, "slowest": input.bottleneck.slowest, "skipped": input.skipped,
        "validation_skipped": input.validation_skipped, "lost_bytes": input.lost_bytes, "stages": stages})
}

fn values(logs: &Logs) -> Value {
    let values = logs
        .iter()
        .map(|(name, value)| (name.to_owned(), json!(value)));
    Value::Object(values.collect::<Map<_, _>>())
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
