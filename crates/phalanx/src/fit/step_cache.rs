//! Compiled steps by the shape of their batch.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use phalanx_graph::{Prepared, Shape};

use super::pipeline::PipelineStep;
use super::setup::Setup;
use super::step_program::{BatchShape, SentToServers, StepKind, StepProgram};
use crate::engine::Compiled;
use crate::optim::WindowPart;
use crate::replicas::{Placement, SAME_PROGRAM, World, differs};
use crate::{Error, Result};

/// How a compiled step runs, with the same cases as [`StepKind`].
pub(super) enum StepExecutable {
    /// One program on all devices, which replaces the `changed` arrays of the state.
    InPlace {
        compiled: Compiled,
        changed: Vec<usize>,
    },
    /// One program on all devices, which changes nothing. It takes what `prepare` makes of the variables after its own parameters.
    ReadOnly {
        compiled: Compiled,
        prepare: Option<Compiled>,
    },
    /// One program on the devices that compute. What it sends, of these shapes, `apply` takes on the parameter device,
    /// where it replaces the `changed` arrays.
    ParameterDevice {
        compiled: Compiled,
        apply: Compiled,
        sent: Vec<Shape>,
        changed: Vec<usize>,
    },
    /// A program for each stage.
    Pipelined(Box<PipelineStep>),
    /// One program, whose first outputs are sent to parameter servers.
    Servers {
        compiled: Compiled,
        sent: Arc<SentToServers>,
    },
}

impl StepExecutable {
    fn compile(
        placement: &Placement,
        setup: &Setup,
        name: &str,
        traced: StepProgram,
    ) -> Result<Self> {
        let program = &traced.program;
        Ok(match traced.kind {
            StepKind::InPlace { changed } => Self::InPlace {
                compiled: placement.compile(name, program)?,
                changed,
            },
            StepKind::ReadOnly { variables } => match placement.prepared(program, variables)? {
                None => Self::ReadOnly {
                    compiled: placement.compile(name, program)?,
                    prepare: None,
                },
                Some(Prepared { once, each_time }) => Self::ReadOnly {
                    compiled: placement.compile(name, &each_time)?,
                    prepare: Some(placement.compile("prepare_step", &once)?),
                },
            },
            StepKind::ParameterDevice {
                apply,
                sent,
                changed,
            } => Self::ParameterDevice {
                compiled: placement.compile(name, program)?,
                apply: placement.compile_apply(&apply)?,
                sent,
                changed,
            },
            StepKind::Servers(sent) => Self::Servers {
                compiled: placement.compile(name, program)?,
                sent: Arc::new(sent),
            },
            StepKind::Pipelined(programs) => {
                let plan = setup.layout.stage_plan();
                let plan = plan.ok_or_else(|| Error::Bug("stages without a plan".into()))?;
                let step = PipelineStep::compile(placement, plan, name, program, &programs)?;
                Self::Pipelined(Box::new(step))
            }
        })
    }

    /// The program of what the step takes that depends on the variables alone.
    pub(super) const fn preparation(&self) -> Option<&Compiled> {
        match self {
            Self::ReadOnly { prepare, .. } => prepare.as_ref(),
            _ => None,
        }
    }

    /// The program of the devices that compute.
    pub(super) fn single_program(&self) -> Result<&Compiled> {
        match self {
            Self::InPlace { compiled, .. }
            | Self::ReadOnly { compiled, .. }
            | Self::ParameterDevice { compiled, .. }
            | Self::Servers { compiled, .. } => Ok(compiled),
            Self::Pipelined(_) => Err(Error::Bug("a step in stages is no one program".into())),
        }
    }

    /// Whether it exchanges values with other processes.
    pub(super) fn exchanges(&self) -> bool {
        self.single_program().is_ok_and(Compiled::exchanges)
    }
}

/// What a compiled program is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StepKey {
    /// The shapes of each batch.
    pub(super) shape: BatchShape,
    /// Of each training step that the program makes, which part of a window of accumulated batches it is; none of one that changes
    /// nothing: a test, a prediction, gradients.
    pub(super) parts: Vec<WindowPart>,
}

impl StepKey {
    /// A program of one batch that does not train.
    pub(super) const fn without_update(shape: BatchShape) -> Self {
        Self {
            shape,
            parts: Vec::new(),
        }
    }
}

/// The compiled programs of one kind of step: training with its gradients, test or prediction.
#[derive(Default)]
pub(super) struct StepCache {
    steps: Vec<(StepKey, StepExecutable)>,
    /// What other processes have for each key, by which equal programs are known.
    agreed: BTreeMap<String, u64>,
    /// Whether the user was told what replicas exchange.
    has_told_exchange: bool,
    /// The variables of which the user was told that the loss does not depend on them.
    told_disconnected: BTreeSet<String>,
}

/// What is said when a step is compiled for one more shape, as the `count`th: at the eighth, and whenever they have doubled.
fn many_programs(name: &str, count: usize) -> Option<String> {
    const MANY: usize = 8;
    (count >= MANY && count.is_power_of_two()).then(|| {
        format!(
            "warning: `{name}` is now compiled for {count} shapes of batches, and training waits for each; give batches fewer shapes: `drop_remainder`, `pad` with a larger `multiple`, or buckets that are padded to their boundary"
        )
    })
}

impl StepCache {
    /// Whether the program is compiled.
    pub(super) fn has(&self, key: &StepKey) -> bool {
        self.steps.iter().any(|(other, _)| other == key)
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Whether one of the programs exchanges values with other processes.
    pub(super) fn exchanges(&self) -> bool {
        self.steps.iter().any(|(_, step)| step.exchanges())
    }

    /// Compiles the program.
    pub(super) fn insert(
        &mut self,
        placement: &Placement,
        setup: &Setup,
        name: &str,
        key: &StepKey,
        traced: StepProgram,
    ) -> Result<()> {
        self.notice(placement, &traced);
        let alike = self
            .steps
            .iter()
            .filter(|(other, _)| other.parts == key.parts);
        if let Some(warning) = many_programs(name, alike.count() + 1) {
            placement.engine().notice(&warning);
        }
        let step = StepExecutable::compile(placement, setup, name, traced)?;
        if let (
            Some(world),
            StepExecutable::InPlace { compiled, .. } | StepExecutable::ReadOnly { compiled, .. },
        ) = (placement.world(), &step)
            && name != "predict_step"
        {
            self.agree(world, name, key, compiled.fingerprint())?;
        }
        self.steps.push((key.clone(), step));
        Ok(())
    }

    /// Refuses a program that another process has otherwise. All compile a program at the same time, or a process that came later compares
    /// it with what it was told of those that the others have had before.
    fn agree(&mut self, world: &World, name: &str, key: &StepKey, program: u64) -> Result<()> {
        let what = format!("`{name}`");
        let text = |program: u64| format!("program {program:016x}");
        let key = format!("{key:?}");
        match self.agreed.get(&key) {
            Some(theirs) if *theirs == program => {}
            Some(theirs) => {
                let (here, ours) = (world.worker(), text(program));
                let there = usize::from(here == 0);
                return Err(differs(
                    &what,
                    (here, &ours),
                    (there, &text(*theirs)),
                    SAME_PROGRAM,
                ));
            }
            None => world.agree(&what, &text(program))?,
        }
        if !world.is_catching_up() {
            self.agreed.insert(key, program);
        }
        Ok(())
    }

    /// What all processes have for each key.
    pub(super) const fn agreed(&self) -> &BTreeMap<String, u64> {
        &self.agreed
    }

    /// Sets what the other processes have. A step that they do not have is forgotten: they will compare it when they compile it, with
    /// all that compile it then.
    pub(super) fn set_agreed(&mut self, agreed: BTreeMap<String, u64>) {
        self.steps
            .retain(|(key, _)| agreed.contains_key(&format!("{key:?}")));
        self.agreed = agreed;
    }

    /// Forgets all programs, but not what the user was told.
    pub(super) fn clear(&mut self) {
        *self = Self {
            told_disconnected: std::mem::take(&mut self.told_disconnected),
            ..Self::default()
        };
    }

    /// The compiled program.
    pub(super) fn get(&self, key: &StepKey) -> Result<&StepExecutable> {
        let found = self.steps.iter().find(|(other, _)| other == key);
        let found = found.map(|(_, step)| step);
        found.ok_or_else(|| Error::Bug("a step that was not compiled".into()))
    }

    /// FLOPs of a training step: the most that one of the programs has. None of stages, which are no one program.
    pub(super) fn flops_of_step(&self) -> Option<f64> {
        let of = |(key, step): &(StepKey, StepExecutable)| {
            let flops = step.single_program().ok()?.flops();
            (!key.parts.is_empty()).then(|| flops as f64 / key.parts.len() as f64)
        };
        self.steps.iter().filter_map(of).max_by(f64::total_cmp)
    }

    /// Tells the user what tracing has found out, once for all programs.
    fn notice(&mut self, placement: &Placement, traced: &StepProgram) {
        for variable in &traced.disconnected {
            if self.told_disconnected.insert(variable.clone()) {
                placement.engine().notice(&format!(
                    "warning: the loss does not depend on variable `{variable}`, so it is not trained; freeze its layer if that is meant"
                ));
            }
        }
        if let (Some(exchange), false) = (&traced.exchange, self.has_told_exchange) {
            placement.engine().notice(exchange);
            self.has_told_exchange = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_shapes_are_told_ever_more_seldom() {
        let told: Vec<usize> = (1..=64)
            .filter(|&count| many_programs("train_step", count).is_some())
            .collect();
        assert_eq!(told, [8, 16, 32, 64]);
    }
}
