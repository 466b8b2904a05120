//! Whether a schedule of the program has the rates in a graph that it has on the host.

use phalanx_graph::{DType, Graph, HostTensor, Shape};

use crate::engine::{CompileRequest, Engine};
use crate::schedules::Schedule;
use crate::{Error, Result};

/// How far the two formulas may be apart: f32 rounds a long one.
const TOLERANCE: f64 = 1e-3;
/// What rounding leaves of a rate of 0, as a share of the largest.
const ROUNDING: f64 = 1e-6;
/// Steps at which they are compared: few, and none where a rate usually jumps.
const COMPARED: [u64; 7] = [0, 1, 3, 7, 97, 997, 9_973];

/// Refuses a schedule whose steps would have other rates than logs and callbacks say. Ours have tests.
pub(super) fn check_rates(schedule: &Schedule, engine: &Engine) -> Result<()> {
    if !matches!(schedule, Schedule::Custom(_)) {
        return Ok(());
    }
    let scalar = Shape::scalar(DType::F32);
    let graph = Graph::new();
    let step = graph.parameter("step", Shape::scalar(DType::I64));
    let program = graph.finish(&[("rate", &schedule.trace(&step))])?;
    let compiled = engine.compile(CompileRequest::new("learning_rate", &program).on(&[0]))?;
    let values = COMPARED.map(|step| schedule.value(step).abs());
    let finite = values.into_iter().filter(|value| is_finite(*value));
    let largest = finite.fold(0.0, f64::max);
    for step in COMPARED {
        let argument = engine.put(0, &HostTensor::scalar(step as i64))?;
        let rates = compiled.run(&[&[&argument]])?.0;
        let traced = engine.get(&rates[0][0], &scalar)?.to_f64()[0];
        let value = schedule.value(step);
        // A training may end before the rate is none.
        let is_same = match is_finite(value) {
            true => (traced - value).abs() <= TOLERANCE * value.abs() + ROUNDING * largest,
            false => !traced.is_finite(),
        };
        if !is_same {
            let (kind, traced) = (schedule.kind(), traced as f32);
            return Err(Error::user(format!(
                "{kind}: at step {step} `trace` gives the rate {traced}, and `value` gives {value}; make both the same formula"
            )));
        }
    }
    Ok(())
}

/// Whether it is a number in a graph.
const fn is_finite(rate: f64) -> bool {
    (rate as f32).is_finite()
}
