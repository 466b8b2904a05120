//! A trace of some steps: what the host of each process does and when its devices run, in the form of Chrome's `chrome://tracing` and of
//! Perfetto.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::compiled_model::CompiledModel;
use super::in_flight::InFlight;
use super::step_times::StepPart;
use super::workers::on_chief;
use crate::{Error, Result};

/// Which steps are traced, and where the trace goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TracePlan {
    /// The file.
    pub(super) path: PathBuf,
    /// The number of steps before the first of the trace, and the number of its steps.
    pub(super) after: u64,
    pub(super) steps: u64,
}

/// The spans of the steps that are being traced.
#[derive(Debug)]
pub(super) struct TraceRecorder {
    /// When all processes began.
    start: Instant,
    step: i64,
    spans: Vec<Span>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Span {
    name: &'static str,
    track: u32,
    step: i64,
    begin: Duration,
    length: Duration,
}

/// The tracks of a process.
const HOST: u32 = 0;
const DEVICES: u32 = 1;

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

    fn add(&mut self, name: &'static str, track: u32, begin: Instant, end: Instant) {
        let (begin, end) = (begin.max(self.start), end.max(self.start));
        if end > begin {
            self.spans.push(Span {
                name,
                track,
                step: self.step,
                begin: begin - self.start,
                length: end - begin,
            });
        }
    }

    /// The events of a process.
    fn events(&self, worker: usize) -> Vec<Value> {
        let name = |what: &str, track: u32, name: &str| json!({"ph": "M", "name": what, "pid": worker, "tid": track, "args": {"name": name}});
        let mut events = vec![
            name("process_name", HOST, &format!("worker {worker}")),
            name("thread_name", HOST, "host"),
            name("thread_name", DEVICES, "devices"),
        ];
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        events.extend(self.spans.iter().map(|span| {
            json!({"ph": "X", "name": span.name, "cat": "phalanx", "pid": worker, "tid": span.track,
                "ts": micros(span.begin), "dur": micros(span.length), "args": {"step": span.step}})
        }));
        events
    }
}

/// When a trace begins and ends.
#[derive(Debug, Default)]
pub(super) struct StepTrace {
    /// Steps of this `fit`.
    steps: u64,
}

impl StepTrace {
    /// Begins or ends the trace after a step, where it is time for it; in every process after the same step.
    pub(super) fn after_steps(
        &mut self,
        plan: Option<&TracePlan>,
        (model, steps): (&mut CompiledModel, usize),
        flight: &mut InFlight,
    ) -> Result<()> {
        let Some(plan) = plan else {
            return Ok(());
        };
        let before = self.steps;
        self.steps += steps as u64;
        let has_come_to = |step: u64| before < step && step <= self.steps;
        if let Some(recorder) = &mut model.clock.recorder {
            recorder.step = model.iterations;
        }
        if has_come_to(plan.after) {
            return begin_trace(model, flight);
        }
        if has_come_to(plan.after + plan.steps) {
            return end_trace(&plan.path, model, flight);
        }
        Ok(())
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
fn end_trace(path: &Path, model: &mut CompiledModel, flight: &mut InFlight) -> Result<()> {
    flight.finish(model.placement.engine())?;
    model.clock.enter(StepPart::Callbacks);
    let Some(mut recorder) = model.clock.recorder.take() else {
        return Ok(());
    };
    for (begin, end) in model.clock.devices().take_spans(false) {
        recorder.add("step", DEVICES, begin, end);
    }
    let worker = model.placement.world().map_or(0, |world| world.worker());
    let own = Value::from(recorder.events(worker)).to_string();
    let all = match model.placement.world() {
        Some(world) => world.all_gather(own.as_bytes())?,
        None => vec![own.into_bytes()],
    };
    on_chief(&model.placement, "the trace", || write(path, &all))
}

/// Writes the events of all processes as one trace.
fn write(path: &Path, all: &[Vec<u8>]) -> Result<()> {
    let mut events = Vec::new();
    for bytes in all {
        let of_one: Vec<Value> = serde_json::from_slice(bytes)
            .map_err(|error| Error::Bug(format!("a trace that cannot be read: {error}")))?;
        events.extend(of_one);
    }
    let trace = json!({"displayTimeUnit": "ms", "traceEvents": events});
    std::fs::write(path, trace.to_string()).map_err(|source| Error::Io {
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
        let events = recorder.events(2);
        assert_eq!(events.len(), 3 + 2);
        assert_eq!(events[0]["args"]["name"], "worker 2");
        let input = json!({"ph": "X", "name": "input", "cat": "phalanx", "pid": 2, "tid": 0, "ts": 0.0, "dur": 2000.0, "args": {"step": 7}});
        assert_eq!(events[3], input);
        assert_eq!(
            (&events[4]["ts"], &events[4]["tid"]),
            (&json!(2000.0), &json!(1))
        );
    }
}
