//! A trace of some steps: what the host of each process does and when its devices run, in the form of Chrome's `chrome://tracing` and of
//! Perfetto, or in the one of TensorBoard's profiler plug-in.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use phalanx_summary::{HostProfile, ProfileLine, ProfileSpan, write_profile};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::compiled_model::CompiledModel;
use super::in_flight::InFlight;
use super::step_times::StepPart;
use super::tensorboard::io;
use super::workers::on_chief;
use crate::{Error, Result};

/// Which steps are traced, and where the trace goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TracePlan {
    pub(super) output: TraceOutput,
    /// The number of steps before the first of the trace, and the number of its steps.
    pub(super) after: u64,
    pub(super) steps: u64,
}

/// Where a trace goes, and in what form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TraceOutput {
    /// A file of Chrome's form.
    Chrome(PathBuf),
    /// The folder of a TensorBoard run, for the profiler plug-in.
    Profile(PathBuf),
}

/// The spans of the steps that are being traced.
#[derive(Debug)]
pub(super) struct TraceRecorder {
    /// When all processes began.
    start: Instant,
    step: i64,
    spans: Vec<Span>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Span {
    name: String,
    track: usize,
    step: i64,
    begin: Duration,
    length: Duration,
}

/// What a process has seen.
#[derive(Debug, Serialize, Deserialize)]
struct WorkerTrace {
    worker: usize,
    spans: Vec<Span>,
}

/// The tracks of a process.
const HOST: usize = 0;
const DEVICES: usize = 1;
const TRACKS: [&str; 2] = ["host", "devices"];

impl TraceRecorder {
    pub(super) const fn new(start: Instant, step: i64) -> Self {
        Self {
            start,
            step,
            spans: Vec::new(),
        }
    }

    /// Adds what the host did; what took no time is left out.
    pub(super) fn host(&mut self, part: StepPart, begin: Instant, end: Instant) {
        self.add(part.name(), HOST, begin, end);
    }

    fn add(&mut self, name: &str, track: usize, begin: Instant, end: Instant) {
        let (begin, end) = (begin.max(self.start), end.max(self.start));
        if end > begin {
            self.spans.push(Span {
                name: name.to_owned(),
                track,
                step: self.step,
                begin: begin - self.start,
                length: end - begin,
            });
        }
    }
}

impl WorkerTrace {
    /// The events of Chrome's form.
    fn events(&self) -> Vec<Value> {
        let pid = self.worker;
        let name = |what: &str, track: usize, name: &str| json!({"ph": "M", "name": what, "pid": pid, "tid": track, "args": {"name": name}});
        let mut events = vec![name("process_name", HOST, &format!("worker {pid}"))];
        let tracks = TRACKS.iter().enumerate();
        events.extend(tracks.map(|(track, of)| name("thread_name", track, of)));
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        events.extend(self.spans.iter().map(|span| {
            json!({"ph": "X", "name": span.name, "cat": "phalanx", "pid": pid, "tid": span.track,
                "ts": micros(span.begin), "dur": micros(span.length), "args": {"step": span.step}})
        }));
        events
    }

    /// The same for the profiler plug-in.
    fn profile(&self) -> HostProfile {
        let line = |(track, name): (usize, &&str)| {
            let spans = self.spans.iter().filter(|span| span.track == track);
            let spans = spans.map(|span| ProfileSpan {
                name: span.name.clone(),
                begin: span.begin,
                length: span.length,
                step: span.step,
            });
            ProfileLine {
                name: (*name).to_owned(),
                spans: spans.collect(),
            }
        };
        HostProfile {
            host: format!("worker-{}", self.worker),
            lines: TRACKS.iter().enumerate().map(line).collect(),
        }
    }
}

/// When a trace begins and ends.
#[derive(Debug, Default)]
pub(super) struct StepTrace {
    /// What is not written yet.
    plan: Option<TracePlan>,
    /// Steps of this `fit`.
    steps: u64,
    /// The number of steps after which a trace that has begun ends.
    ends: Option<u64>,
}

impl StepTrace {
    /// Of a `fit` that begins.
    pub(super) fn new(plan: Option<TracePlan>) -> Self {
        Self {
            plan,
            ..Self::default()
        }
    }

    /// Begins or ends the trace after an execution, where it is time for it; in every process after the same one. What begins or ends within
    /// an execution does so after it.
    pub(super) fn after_steps(
        &mut self,
        (model, steps): (&mut CompiledModel, usize),
        flight: &mut InFlight,
    ) -> Result<()> {
        let Some(plan) = &self.plan else {
            return Ok(());
        };
        self.steps += steps as u64;
        if let Some(recorder) = &mut model.clock.recorder {
            recorder.step = model.iterations;
        }
        match self.ends {
            None if self.steps >= plan.after => {
                self.ends = Some(self.steps + plan.steps);
                begin_trace(model, flight)
            }
            Some(end) if self.steps >= end => {
                let output = plan.output.clone();
                self.plan = None;
                end_trace(&output, model, flight)
            }
            _ => Ok(()),
        }
    }

    /// Ends with the training: what was to be traced and was not over is not written, which `model` tells where there is nothing else to
    /// tell.
    pub(super) fn end(&mut self, model: &mut CompiledModel, has_succeeded: bool) {
        model.clock.recorder = None;
        model.clock.devices().take_spans(false);
        let steps = self.steps;
        if let (Some(plan), true, true) =
            (self.plan.take(), has_succeeded, model.placement.is_chief())
        {
            model.engine().notice(&format!(
                "note: no trace was written: it is of {} steps after {}, and the training had {steps}",
                plan.steps, plan.after
            ));
        }
    }
}

/// All processes begin together, so that their clocks have one origin.
fn begin_trace(model: &mut CompiledModel, flight: &mut InFlight) -> Result<()> {
    flight.finish(model.placement.engine())?;
    if let Some(world) = model.placement.world() {
        world.barrier()?;
    }
    let start = Instant::now();
    model.clock.enter(StepPart::Callbacks);
    model.clock.devices().take_spans(true);
    model.clock.recorder = Some(TraceRecorder::new(start, model.iterations));
    Ok(())
}

/// The first process writes what all have seen.
fn end_trace(output: &TraceOutput, model: &mut CompiledModel, flight: &mut InFlight) -> Result<()> {
    flight.finish(model.placement.engine())?;
    model.clock.enter(StepPart::Callbacks);
    let Some(mut recorder) = model.clock.recorder.take() else {
        return Ok(());
    };
    for (begin, end) in model.clock.devices().take_spans(false) {
        recorder.add("step", DEVICES, begin, end);
    }
    let own = WorkerTrace {
        worker: model.placement.world().map_or(0, |world| world.worker()),
        spans: recorder.spans,
    };
    let bug = |error: serde_json::Error| Error::Bug(format!("a trace: {error}"));
    let own = serde_json::to_vec(&own).map_err(bug)?;
    let all = match model.placement.world() {
        Some(world) => world.all_gather(&own)?,
        None => vec![own],
    };
    let all = all.iter().map(|bytes| serde_json::from_slice(bytes));
    let all: Vec<WorkerTrace> = all.collect::<std::result::Result<_, _>>().map_err(bug)?;
    let last = model.iterations;
    on_chief(&model.placement, "the trace", || match output {
        TraceOutput::Chrome(path) => write_chrome(path, &all),
        TraceOutput::Profile(run) => {
            let hosts: Vec<HostProfile> = all.iter().map(WorkerTrace::profile).collect();
            let written = write_profile(run, &format!("step-{last}"), &hosts);
            written.map(drop).map_err(io)
        }
    })
}

/// Writes the events of all processes as one trace.
fn write_chrome(path: &Path, all: &[WorkerTrace]) -> Result<()> {
    let events: Vec<Value> = all.iter().flat_map(WorkerTrace::events).collect();
    let trace = json!({"displayTimeUnit": "ms", "traceEvents": events});
    let made = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    let written = made.and_then(|()| std::fs::write(path, trace.to_string()));
    written.map_err(|source| Error::Io {
        path: path.to_owned(),
        action: "write",
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_events_from_the_common_start_on() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut recorder = TraceRecorder::new(at(10), 7);
        recorder.host(StepPart::Input, at(5), at(12));
        recorder.host(StepPart::Transfer, at(12), at(12));
        recorder.host(StepPart::Transfer, at(3), at(9));
        recorder.add("step", DEVICES, at(12), at(15));
        let trace = WorkerTrace {
            worker: 2,
            spans: recorder.spans,
        };
        let events = trace.events();
        assert_eq!(events.len(), 3 + 2);
        assert_eq!(events[0]["args"]["name"], "worker 2");
        let input = json!({"ph": "X", "name": "input", "cat": "phalanx", "pid": 2, "tid": 0, "ts": 0.0, "dur": 2000.0, "args": {"step": 7}});
        assert_eq!(events[3], input);
        assert_eq!(
            (&events[4]["ts"], &events[4]["tid"]),
            (&json!(2000.0), &json!(1))
        );
        let profile = trace.profile();
        let lines = profile.lines.iter();
        let lines: Vec<_> = lines.map(|line| (&*line.name, line.spans.len())).collect();
        assert_eq!(lines, [("host", 1), ("devices", 1)]);
    }
}
