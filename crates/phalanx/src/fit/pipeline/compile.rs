//! Pieces of programs, each compiled for the device of its stage.

use std::collections::HashMap;

use phalanx_graph::{HostTensor, Program, Shape, Value};
use phalanx_pjrt::Buffer;

use super::trace::{PipelinePrograms, PipelineUpdate, UpdateInput};
use super::{DeviceId, StageId, StagePlan, ValueId};
use crate::engine::{CompileRequest, Compiled};
use crate::replicas::Placement;
use crate::{Error, Result};

/// A step in stages, ready to run.
pub(in crate::fit) struct PipelineStep {
    pub(super) micro_batch: StagedProgram,
    pub(super) weights: Option<CompiledWeights>,
    /// What the sums of gradients begin with, a parameter of the step each.
    pub(super) zeros: Vec<Zeros>,
    /// The update, where it is a training step.
    pub(super) update: Option<CompiledUpdate>,
}

/// A program in stages.
pub(super) struct StagedProgram {
    /// In the order in which a micro-batch goes through them: forward from the first stage to the last, then back.
    pub(super) pieces: Vec<CompiledPiece>,
    pub(super) outputs: Vec<ValueId>,
    /// By [`ValueId`].
    shapes: Vec<Shape>,
    /// Parameters that the next micro-batch takes from a value of this one.
    pub(super) carried: Vec<Carry>,
}

/// A parameter of the next micro-batch, and the value of this one that it is.
#[derive(Clone, Copy)]
pub(super) struct Carry {
    pub(super) into: ValueId,
    pub(super) from: ValueId,
}

/// A piece of a program on the device of its stage, and which values it takes and makes.
pub(super) struct CompiledPiece {
    pub(super) compiled: Compiled,
    pub(super) device: DeviceId,
    pub(super) inputs: Vec<ValueId>,
    pub(super) outputs: Vec<ValueId>,
}

/// The program that sums the weights of all micro-batches.
pub(super) struct CompiledWeights {
    pub(super) program: StagedProgram,
    /// Which parameters are the sums, in this program and in the step.
    pub(super) sums: Vec<ValueId>,
}

/// Zeros on the device of a stage.
pub(super) struct Zeros {
    pub(super) value: ValueId,
    pub(super) device: DeviceId,
    pub(super) buffer: Buffer,
}

/// The update of a step in stages.
pub(super) struct CompiledUpdate {
    /// Whether the gradients of each stage are finite, where a step may be skipped.
    pub(super) finite: Vec<UpdatePart<usize>>,
    /// Replaces parameters of the step: the state, and the epoch totals where a step may be skipped.
    pub(super) apply: Vec<UpdatePart<ValueId>>,
    /// Where the parameters of `apply` come from.
    pub(super) inputs: Vec<UpdateInput>,
}

/// One stage's part of an update program.
pub(super) struct UpdatePart<T> {
    pub(super) compiled: Compiled,
    pub(super) device: DeviceId,
    /// Positions among the parameters of the whole program.
    pub(super) inputs: Vec<usize>,
    /// What the part makes, and at which position of its outputs.
    pub(super) makes: Vec<(T, usize)>,
}

impl PipelineStep {
    pub(in crate::fit) fn compile(
        placement: &Placement,
        plan: &StagePlan,
        name: &str,
        program: &Program,
        programs: &PipelinePrograms,
    ) -> Result<Self> {
        let forward = programs.forward_outputs;
        let mut micro_batch = StagedProgram::compile(placement, plan, name, program, forward)?;
        let carried = programs.carried.iter();
        micro_batch.carried = carried
            .map(|carried| Carry {
                into: carried.into,
                from: micro_batch.outputs[carried.output],
            })
            .collect();
        micro_batch.check_carried(program, plan.stages)?;
        let weights = programs.weights.as_ref().map(|weights| {
            let program = &weights.program;
            let forward = program.outputs.len();
            let mut program =
                StagedProgram::compile(placement, plan, "weigh_step", program, forward)?;
            let sums = weights.sums.iter().zip(&program.outputs);
            program.carried = sums.map(|(&into, &from)| Carry { into, from }).collect();
            Ok::<_, Error>(CompiledWeights {
                program,
                sums: weights.sums.clone(),
            })
        });
        let zeros = programs.gradient_sums.iter().map(|sum| {
            let device = device_of(placement, sum.stage);
            let zeros = HostTensor::zeros(sum.shape.clone());
            Ok(Zeros {
                value: sum.value,
                buffer: placement.engine().put(device.0, &zeros)?,
                device,
            })
        });
        let update = programs.update.as_ref();
        Ok(Self {
            weights: weights.transpose()?,
            zeros: zeros.collect::<Result<_>>()?,
            update: update
                .map(|update| CompiledUpdate::compile(placement, update))
                .transpose()?,
            micro_batch,
        })
    }
}

/// The device of a stage.
pub(super) fn device_of(placement: &Placement, stage: StageId) -> DeviceId {
    DeviceId(placement.devices()[stage.0])
}

impl StagedProgram {
    fn compile(
        placement: &Placement,
        plan: &StagePlan,
        name: &str,
        program: &Program,
        forward: usize,
    ) -> Result<Self> {
        let program = program.simplified();
        let earliest = plan.earliest_pieces(&program, forward);
        let has_backward = forward != program.outputs.len();
        let count = match has_backward {
            false => plan.stages,
            true => 2 * plan.stages,
        };
        let pieces = program.pieces(count, |index, _| earliest[index]);
        let parameters = program.parameters.iter();
        let mut shapes: Vec<Shape> = parameters.map(|p| p.shape.clone()).collect();
        let parameters = program.parameters.iter().enumerate();
        let mut ids: HashMap<Value, ValueId> = parameters
            .map(|(id, parameter)| (output_of(parameter.node), ValueId(id)))
            .collect();
        let mut compiled = Vec::new();
        for (at, piece) in pieces.iter().enumerate() {
            for value in &piece.outputs {
                ids.insert(*value, ValueId(shapes.len()));
                shapes.push(program.shape(*value).clone());
            }
            let device = device_of(placement, plan.stage_of_piece(at));
            let id = |value: &Value| ids[value];
            compiled.push(CompiledPiece {
                compiled: placement.engine().compile(
                    CompileRequest::new(&format!("{name}_{at}"), &piece.program)
                        .on(&[device.0])
                        .with_other_devices(plan.stages - 1),
                )?,
                device,
                inputs: piece.inputs.iter().map(id).collect(),
                outputs: piece.outputs.iter().map(id).collect(),
            });
        }
        let outputs = program.outputs.iter().map(|(_, value)| ids[value]);
        Ok(Self {
            outputs: outputs.collect(),
            pieces: compiled,
            shapes,
            carried: Vec::new(),
        })
    }

    /// Refuses state that one stage reads and a later one replaces: the next micro-batch reads it before it is there.
    fn check_carried(&self, program: &Program, stages: usize) -> Result<()> {
        let forward = &self.pieces[..stages.min(self.pieces.len())];
        for carry in &self.carried {
            let read = forward
                .iter()
                .position(|piece| piece.inputs.contains(&carry.into));
            let made = forward
                .iter()
                .position(|piece| piece.outputs.contains(&carry.from));
            if let (Some(read), Some(made)) = (read, made)
                && read != made
            {
                let name = &program.parameters[carry.into.0].name;
                return Err(Error::User(format!(
                    "`{name}` is read in stage {read} of the pipeline and replaced in stage {made}: a layer that keeps state is called in both, and what the micro-batches before have left would be lost; call it within one stage, or let the next stage begin elsewhere (`starting_at`)"
                )));
            }
        }
        Ok(())
    }

    pub(super) fn shape(&self, id: ValueId) -> &Shape {
        &self.shapes[id.0]
    }

    /// Whether the next micro-batch takes this value.
    pub(super) fn carries(&self, id: ValueId) -> bool {
        self.carried.iter().any(|carry| carry.from == id)
    }
}

/// The first output of a node.
const fn output_of(node: usize) -> Value {
    Value { node, output: 0 }
}

impl CompiledUpdate {
    fn compile(placement: &Placement, update: &PipelineUpdate) -> Result<Self> {
        let finite = update.finite.as_ref().map(|finite| {
            let outputs: Vec<(usize, StageId)> =
                finite.stages.iter().copied().enumerate().collect();
            compile_parts(placement, "finite_step", &finite.program, &outputs)
        });
        Ok(Self {
            finite: finite.transpose()?.unwrap_or_default(),
            apply: compile_parts(placement, "apply_step", &update.program, &update.replaced)?,
            inputs: update.inputs.clone(),
        })
    }
}

/// The parts of a program by the stages of its outputs; `outputs` says what each output is, and its stage.
fn compile_parts<T: Copy>(
    placement: &Placement,
    name: &str,
    whole: &Program,
    outputs: &[(T, StageId)],
) -> Result<Vec<UpdatePart<T>>> {
    let mut parts = Vec::new();
    for stage in (0..placement.devices().len()).map(StageId) {
        let own = (0..outputs.len()).filter(|&at| outputs[at].1 == stage);
        let own: Vec<usize> = own.collect();
        if !own.is_empty() {
            parts.push(compile_part(placement, name, whole, outputs, stage, &own)?);
        }
    }
    Ok(parts)
}

/// The part of a stage, which makes the outputs at the positions `own`.
fn compile_part<T: Copy>(
    placement: &Placement,
    name: &str,
    whole: &Program,
    outputs: &[(T, StageId)],
    stage: StageId,
    own: &[usize],
) -> Result<UpdatePart<T>> {
    let mut program = whole.clone();
    program.donated.clear();
    program.outputs = own.iter().map(|&at| whole.outputs[at].clone()).collect();
    program.output_shardings.truncate(own.len());
    let program = program.simplified();
    let mut piece = program.pieces(1, |_, _| 0).remove(0);
    let position = |value: &Value| {
        let mut parameters = program.parameters.iter();
        parameters.position(|parameter| parameter.node == value.node)
    };
    let inputs: Vec<usize> = piece.inputs.iter().filter_map(position).collect();
    let of_output = |(_, value): &(String, Value)| {
        let mut made = piece.outputs.iter();
        made.position(|output| output == value)
    };
    let made: Option<Vec<usize>> = program.outputs.iter().map(of_output).collect();
    let made = made.ok_or_else(|| Error::Bug("an update that does nothing".into()))?;
    // The whole program's donations in the numbers of this part: of an old value the input, of a new one the output.
    for &(old, new) in &whole.donated {
        let new = own.iter().position(|&at| at == new).map(|at| made[at]);
        let old = inputs.iter().position(|&input| input == old);
        piece.program.donated.extend(old.zip(new));
    }
    let device = device_of(placement, stage);
    let request = CompileRequest::new(name, &piece.program);
    let compiled = placement.engine().compile(request.on(&[device.0]))?;
    let makes = own.iter().zip(made);
    Ok(UpdatePart {
        compiled,
        device,
        inputs,
        makes: makes.map(|(&at, output)| (outputs[at].0, output)).collect(),
    })
}
