//! Compiled steps by the shape of their batch.

use phalanx_graph::Shape;

use super::stages::PipelineStep;
use super::step::{BatchShape, Setup, StepProgram};
use crate::engine::Compiled;
use crate::replicas::Placement;
use crate::{Error, Result};

/// A compiled step for batches of one shape.
pub(super) struct CompiledStep {
    shape: BatchShape,
    pub(super) executable: StepExecutable,
    pub(super) changed: Vec<usize>,
}

/// How a step runs.
pub(super) enum StepExecutable {
    /// As one program of all devices.
    Replicated(Compiled),
    /// As one, and another that replaces the state on the device of the variables, with the shapes of what it is sent.
    ParameterDevice(Compiled, Compiled, Vec<Shape>),
    /// In stages.
    Pipelined(Box<PipelineStep>),
}

impl StepExecutable {
    fn compile(
        placement: &Placement,
        setup: &Setup,
        name: &str,
        traced: &StepProgram,
    ) -> Result<Self> {
        if let Some(plan) = &setup.plan {
            let step = PipelineStep::compile(placement, plan, name, traced)?;
            return Ok(Self::Pipelined(Box::new(step)));
        }
        let compiled = placement.compile(name, &traced.program)?;
        Ok(match &traced.apply {
            None => Self::Replicated(compiled),
            Some(apply) => {
                let apply = placement.compile_apply(apply)?;
                Self::ParameterDevice(compiled, apply, traced.sent.clone())
            }
        })
    }

    /// The one program of the devices.
    pub(super) fn single_program(&self) -> Result<&Compiled> {
        match self {
            Self::Replicated(compiled) | Self::ParameterDevice(compiled, _, _) => Ok(compiled),
            Self::Pipelined(_) => Err(Error::Bug("a step in stages is no one program".into())),
        }
    }
}

/// The compiled programs of one kind of step, by the shape of the batch.
#[derive(Default)]
pub(super) struct StepCache(Vec<CompiledStep>);

impl StepCache {
    /// The step for batches of this shape, compiled when it is the first of them.
    pub(super) fn get(
        &mut self,
        placement: &Placement,
        setup: &Setup,
        name: &str,
        shape: &BatchShape,
        trace: impl FnOnce() -> Result<StepProgram>,
    ) -> Result<&CompiledStep> {
        let found = self.0.iter().position(|step| step.shape == *shape);
        let index = match found {
            Some(index) => index,
            None => {
                let traced = trace()?;
                for variable in &traced.disconnected {
                    placement.engine().notice(&format!(
                        "warning: the loss does not depend on variable `{variable}`, so it is not trained; freeze its layer if that is meant"
                    ));
                }
                if let (Some(exchange), true) = (&traced.exchange, self.0.is_empty()) {
                    let line = format!("replicas add in each step {exchange}");
                    placement.engine().notice(&line);
                }
                self.0.push(CompiledStep {
                    shape: shape.clone(),
                    executable: StepExecutable::compile(placement, setup, name, &traced)?,
                    changed: traced.changed,
                });
                self.0.len() - 1
            }
        };
        Ok(&self.0[index])
    }
}
