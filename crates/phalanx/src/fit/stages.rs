//! Programs in stages: compiled, and run for the parts of a batch one behind the other.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use phalanx_graph::{DType, HostTensor, Program, Shape, Value};
use phalanx_pjrt::Buffer;

use super::pipeline::{PipelinePrograms, PipelineUpdate, StagePlan, UpdateInput};
use super::step::StepProgram;
use crate::engine::{CompileRequest, Compiled, Done, Engine};
use crate::replicas::Placement;
use crate::{Error, Result};

/// A program in stages. Its values are numbered: parameters, then what goes from piece to piece.
struct StagedProgram {
    pieces: Vec<CompiledStage>,
    /// The numbers of the outputs.
    outputs: Vec<usize>,
    shapes: Vec<Shape>,
    /// Parameters that the next part gets from an output, by their numbers.
    carried: Vec<(usize, usize)>,
}

/// A piece of a program on its device, and the numbers of what it takes and makes.
struct CompiledStage {
    compiled: Compiled,
    device: usize,
    inputs: Vec<usize>,
    outputs: Vec<usize>,
}

/// A step in stages, ready to run.
pub(super) struct PipelineStep {
    pass: StagedProgram,
    /// Sums up the weights of all parts, and where these are in its parameters.
    weight_program: Option<(StagedProgram, Vec<usize>)>,
    /// What sums of gradients begin with, by their parameters, and the devices they are on.
    zeros: Vec<(usize, usize, Buffer)>,
    /// The update, where it is a training step.
    update: Option<CompiledUpdate>,
}

/// The update of a step in stages.
struct CompiledUpdate {
    /// Whether the gradients of each stage are finite, where a step may be skipped.
    flags: Vec<UpdatePart>,
    /// Replaces parameters of the pass: the state, and the totals where a step may be skipped.
    apply: Vec<UpdatePart>,
    /// Where the parameters of the latter come from.
    inputs: Vec<UpdateInput>,
}

/// What a stage makes of a program's outputs, and what these replace, or which they are.
struct UpdatePart {
    stage: CompiledStage,
    makes: Vec<usize>,
}

impl PipelineStep {
    pub(super) fn compile(
        placement: &Placement,
        plan: &StagePlan,
        name: &str,
        traced: &StepProgram,
    ) -> Result<Self> {
        let none = PipelinePrograms {
            forward: traced.program.outputs.len(),
            carried: Vec::new(),
            sums: Vec::new(),
            weight_program: None,
            update: None,
        };
        let extra = traced.staged.as_ref().unwrap_or(&none);
        let mut pass =
            StagedProgram::compile(placement, plan, name, &traced.program, extra.forward)?;
        let carried = extra.carried.iter();
        pass.carried = carried
            .map(|&(from, to)| (from, pass.outputs[to]))
            .collect();
        let weight_program = extra.weight_program.as_ref().map(|(program, places)| {
            let count = program.outputs.len();
            let mut weight_program =
                StagedProgram::compile(placement, plan, "weigh_step", program, count)?;
            let outputs = weight_program.outputs.iter().copied();
            weight_program.carried = places.iter().copied().zip(outputs).collect();
            Ok::<_, Error>((weight_program, places.clone()))
        });
        let zeros = extra.sums.iter().map(|(number, shape, stage)| {
            let device = placement.devices()[*stage];
            let zeros = placement
                .engine()
                .put(device, &HostTensor::zeros(shape.clone()))?;
            Ok((*number, device, zeros))
        });
        Ok(Self {
            weight_program: weight_program.transpose()?,
            zeros: zeros.collect::<Result<_>>()?,
            update: (extra.update.as_ref())
                .map(|update| CompiledUpdate::compile(placement, update))
                .transpose()?,
            pass,
        })
    }
}

impl CompiledUpdate {
    fn compile(placement: &Placement, update: &PipelineUpdate) -> Result<Self> {
        let flags = update.flags.as_ref().map(|(program, stages)| {
            let outputs: Vec<(usize, usize)> = stages.iter().copied().enumerate().collect();
            compile_parts(placement, "finite_step", program, &outputs)
        });
        Ok(Self {
            flags: flags.transpose()?.unwrap_or_default(),
            apply: compile_parts(placement, "apply_step", &update.program, &update.replaced)?,
            inputs: update.inputs.clone(),
        })
    }
}

/// The part of each stage that makes something: `outputs` has what each output is, and its stage.
fn compile_parts(
    placement: &Placement,
    name: &str,
    whole: &Program,
    outputs: &[(usize, usize)],
) -> Result<Vec<UpdatePart>> {
    let mut parts = Vec::new();
    for (stage, &device) in placement.devices().iter().enumerate() {
        let own: Vec<usize> = (0..outputs.len())
            .filter(|&at| outputs[at].1 == stage)
            .collect();
        if own.is_empty() {
            continue;
        }
        let mut program = whole.clone();
        program.donated.clear();
        program.outputs = own.iter().map(|&at| whole.outputs[at].clone()).collect();
        program.output_shardings.truncate(own.len());
        let program = program.simplified();
        let mut piece = program.pieces(1, |_, _| 0).remove(0);
        let number = |value: &Value| parameter(&program, *value);
        let inputs: Vec<usize> = piece.inputs.iter().filter_map(number).collect();
        let of_output = |(_, value): &(String, Value)| {
            let mut made = piece.outputs.iter();
            made.position(|output| output == value)
        };
        let made: Option<Vec<usize>> = program.outputs.iter().map(of_output).collect();
        let made = made.ok_or_else(|| Error::Bug("an update that does nothing".into()))?;
        // Of a new value the output, and of the old one the parameter.
        for &(old, new) in &whole.donated {
            let new = own.iter().position(|&at| at == new).map(|at| made[at]);
            let old = inputs.iter().position(|&input| input == old);
            piece.program.donated.extend(old.zip(new));
        }
        let engine = placement.engine();
        let compiled = engine.compile(CompileRequest::new(name, &piece.program).on(&[device]))?;
        parts.push(UpdatePart {
            stage: CompiledStage {
                compiled,
                device,
                inputs,
                outputs: made,
            },
            makes: own.iter().map(|&at| outputs[at].0).collect(),
        });
    }
    Ok(parts)
}

/// The number of the parameter that a value is.
fn parameter(program: &Program, value: Value) -> Option<usize> {
    let mut parameters = program.parameters.iter();
    parameters.position(|parameter| parameter.node == value.node)
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
        let earliest = plan.earliest(&program, forward);
        let count = match forward == program.outputs.len() {
            true => plan.stages,
            false => 2 * plan.stages,
        };
        let pieces = program.pieces(count, |index, _| earliest[index]);
        let mut shapes: Vec<Shape> = (program.parameters.iter())
            .map(|parameter| parameter.shape.clone())
            .collect();
        let nodes = program.parameters.iter().enumerate();
        let mut numbers: HashMap<Value, usize> = nodes
            .map(|(number, parameter)| {
                (
                    Value {
                        node: parameter.node,
                        output: 0,
                    },
                    number,
                )
            })
            .collect();
        let mut stages = Vec::new();
        for (at, piece) in pieces.iter().enumerate() {
            for value in &piece.outputs {
                numbers.insert(*value, shapes.len());
                shapes.push(program.shape(*value).clone());
            }
            let device = placement.devices()[at.min(2 * plan.stages - 1 - at)];
            let number = |value: &Value| numbers[value];
            stages.push(CompiledStage {
                compiled: placement.engine().compile(
                    CompileRequest::new(&format!("{name}_{at}"), &piece.program)
                        .on(&[device])
                        .with_other_devices(plan.stages - 1),
                )?,
                device,
                inputs: piece.inputs.iter().map(number).collect(),
                outputs: piece.outputs.iter().map(number).collect(),
            });
        }
        let outputs = program.outputs.iter().map(|(_, value)| numbers[value]);
        Ok(Self {
            outputs: outputs.collect(),
            pieces: stages,
            shapes,
            carried: Vec::new(),
        })
    }
}

/// A buffer, of a step or of somebody else.
enum StageBuffer<'a> {
    Owned(Buffer),
    Borrowed(&'a Buffer),
}

impl StageBuffer<'_> {
    const fn buffer(&self) -> &Buffer {
        match self {
            Self::Owned(buffer) => buffer,
            Self::Borrowed(buffer) => buffer,
        }
    }
}

/// The same value on the devices that have it.
type Copies<'a> = Rc<RefCell<Vec<(usize, Rc<StageBuffer<'a>>)>>>;

fn only<'a>(device: usize, held: StageBuffer<'a>) -> Copies<'a> {
    Rc::new(RefCell::new(vec![(device, Rc::new(held))]))
}

/// What is known of a run: values of all parts, and of each part.
struct PipelineRun<'a> {
    engine: &'a Engine,
    staged: &'a StagedProgram,
    shared: HashMap<usize, Copies<'a>>,
    parts: Vec<HashMap<usize, Copies<'a>>>,
    done: Option<Done>,
}

impl<'a> PipelineRun<'a> {
    /// Runs all pieces for all parts: on each device a part waits for the one before it alone.
    fn run(&mut self, stages: usize) -> Result<()> {
        let parts = self.parts.len();
        for direction in 0..self.staged.pieces.len() / stages {
            for tick in 0..parts + stages - 1 {
                for stage in 0..stages.min(tick + 1) {
                    let part = tick - stage;
                    if part < parts {
                        self.piece(direction * stages + stage, part)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn piece(&mut self, piece: usize, part: usize) -> Result<()> {
        let stage = &self.staged.pieces[piece];
        if !stage.outputs.is_empty() {
            self.compute(stage, part)?;
        }
        if piece + 1 == self.staged.pieces.len() {
            // What goes on to the next part is shared.
            let staged = self.staged;
            let is_carried = |number| staged.carried.iter().any(|(_, from)| *from == number);
            let is_result = |number| staged.outputs.contains(&number) && !is_carried(number);
            self.parts[part].retain(|number, _| is_result(*number));
        }
        Ok(())
    }

    fn compute(&mut self, stage: &'a CompiledStage, part: usize) -> Result<()> {
        let inputs = stage.inputs.iter();
        let inputs: Vec<Rc<StageBuffer<'a>>> = inputs
            .map(|&number| self.fetch(part, number, stage.device))
            .collect::<Result<_>>()?;
        let buffers: Vec<&Buffer> = inputs.iter().map(|held| held.buffer()).collect();
        let (outputs, done) = stage.compiled.run(&[&buffers])?;
        for (&number, output) in stage.outputs.iter().zip(outputs.into_iter().flatten()) {
            let made = only(stage.device, StageBuffer::Owned(output));
            for (to, from) in &self.staged.carried {
                if *from == number {
                    self.shared.insert(*to, Rc::clone(&made));
                }
            }
            self.parts[part].insert(number, made);
        }
        self.done = Some(done);
        Ok(())
    }

    /// A value of a part on a device; of what all parts share, as it is when the part first needs it.
    fn fetch(&mut self, part: usize, number: usize, device: usize) -> Result<Rc<StageBuffer<'a>>> {
        let copies = match self.parts[part].get(&number) {
            Some(copies) => Rc::clone(copies),
            None => {
                let shared = self.shared.get(&number).cloned();
                let shared = shared.ok_or_else(|| Error::Bug(format!("no value {number}")))?;
                self.parts[part].insert(number, Rc::clone(&shared));
                shared
            }
        };
        on_device(self.engine, &copies, &self.staged.shapes[number], device)
    }
}

/// A value on a device, copied there when it is not.
fn on_device<'a>(
    engine: &Engine,
    copies: &Copies<'a>,
    shape: &Shape,
    device: usize,
) -> Result<Rc<StageBuffer<'a>>> {
    let mut copies = copies.borrow_mut();
    if let Some((_, held)) = copies.iter().find(|(other, _)| *other == device) {
        return Ok(Rc::clone(held));
    }
    let copy = engine.copy(engine, copies[0].1.buffer(), shape, device)?;
    let copy = Rc::new(StageBuffer::Owned(copy));
    copies.push((device, Rc::clone(&copy)));
    Ok(copy)
}

/// The buffer of a value that nobody else holds any more.
fn into_buffer(copies: Copies<'_>) -> Result<Buffer> {
    let shared = || Error::Bug("a result of a stage is still in use".into());
    let list = Rc::try_unwrap(copies).map_err(|_| shared())?.into_inner();
    let (_, first) = list.into_iter().next().ok_or_else(shared)?;
    match Rc::try_unwrap(first) {
        Ok(StageBuffer::Owned(buffer)) => Ok(buffer),
        _ => Err(shared()),
    }
}

/// The arrays of a training in stages, lent for a run.
pub(super) struct BorrowedState<'a> {
    pub(super) placement: &'a Placement,
    pub(super) plan: &'a StagePlan,
    /// The stage of each array.
    pub(super) stage_of_array: &'a [usize],
    /// The first parameters of the program.
    pub(super) arrays: Vec<&'a Buffer>,
    /// What follows: totals and seed, say, with the numbers of their devices.
    pub(super) more: Vec<(usize, &'a Buffer)>,
    /// What follows, of each part.
    pub(super) parts: &'a [Vec<Buffer>],
}

/// New values of a training in stages.
pub(super) struct PipelineOutputs {
    pub(super) totals: Buffer,
    pub(super) arrays: NewArrays,
    pub(super) done: Done,
}

/// New arrays of the state, by position.
type NewArrays = HashMap<usize, Buffer>;

impl UpdatePart {
    fn run(&self, inputs: &[Rc<StageBuffer<'_>>]) -> Result<(NewArrays, Done)> {
        let buffers: Vec<&Buffer> = inputs.iter().map(|held| held.buffer()).collect();
        let (outputs, done) = self.stage.compiled.run(&[&buffers])?;
        let outputs = outputs.into_iter().flatten();
        let mut outputs: Vec<Option<Buffer>> = outputs.map(Some).collect();
        let made = self.makes.iter().zip(&self.stage.outputs);
        let made = made.map(|(&what, &output)| {
            let new = outputs[output].take();
            Ok((
                what,
                new.ok_or_else(|| Error::Bug("one new value for two".into()))?,
            ))
        });
        Ok((made.collect::<Result<_>>()?, done))
    }
}

impl<'a> BorrowedState<'a> {
    fn run(&self, staged: &'a StagedProgram) -> PipelineRun<'a> {
        let devices = self.placement.devices();
        let arrays = self.arrays.iter().zip(self.stage_of_array);
        let arrays = arrays.map(|(&array, &stage)| (devices[stage], array));
        let shared = arrays.chain(self.more.iter().copied()).enumerate();
        let shared: HashMap<usize, Copies<'a>> = shared
            .map(|(number, (device, buffer))| (number, only(device, StageBuffer::Borrowed(buffer))))
            .collect();
        let first = shared.len();
        let part = |part: &'a Vec<Buffer>| {
            let values = part.iter().enumerate();
            let value =
                |(at, buffer)| (first + at, only(devices[0], StageBuffer::Borrowed(buffer)));
            values.map(value).collect()
        };
        PipelineRun {
            engine: self.placement.engine(),
            staged,
            shared,
            parts: self.parts.iter().map(part).collect(),
            done: None,
        }
    }

    /// Forward, backward, update.
    pub(super) fn train(&self, step: &'a PipelineStep) -> Result<PipelineOutputs> {
        let mut run = self.run(&step.pass);
        if let Some((weight_program, places)) = &step.weight_program {
            run.shared.extend(self.weights(weight_program, places)?);
        }
        for (number, device, zeros) in &step.zeros {
            let zeros = only(*device, StageBuffer::Borrowed(zeros));
            run.shared.insert(*number, zeros);
        }
        let before = run.shared.clone();
        run.run(self.plan.stages)?;
        // The values of the parts are given back; what they left is shared.
        let (mut shared, done) = (run.shared, run.done);
        run.parts.clear();
        let missing = || Error::Bug("a step in stages leaves too little".into());
        let (mut replaced, updated) = match &step.update {
            Some(update) => self.update(step, update, &before, &shared)?,
            None => (NewArrays::new(), None),
        };
        let count = self.arrays.len();
        for &(number, _) in &step.pass.carried {
            if number <= count && !replaced.contains_key(&number) {
                let carried = shared.remove(&number).ok_or_else(missing)?;
                replaced.insert(number, into_buffer(carried)?);
            }
        }
        Ok(PipelineOutputs {
            totals: replaced.remove(&count).ok_or_else(missing)?,
            arrays: replaced,
            done: updated.or(done).ok_or_else(missing)?,
        })
    }

    /// The weights of all parts, by the parameters that they are.
    fn weights(
        &self,
        weight_program: &'a StagedProgram,
        places: &[usize],
    ) -> Result<HashMap<usize, Copies<'a>>> {
        let (engine, home) = (self.placement.engine(), self.placement.devices()[0]);
        let mut run = self.run(weight_program);
        for &place in places {
            let zero = HostTensor::zeros(weight_program.shapes[place].clone());
            let zero = StageBuffer::Owned(engine.put(home, &zero)?);
            run.shared.insert(place, only(home, zero));
        }
        run.run(self.plan.stages)?;
        run.shared.retain(|number, _| places.contains(number));
        Ok(run.shared)
    }

    /// The update of all stages, from what was shared before the first part and what is after the last: what they need is
    /// brought to them before the first of them gives up the old state.
    fn update(
        &self,
        step: &'a PipelineStep,
        update: &'a CompiledUpdate,
        before: &HashMap<usize, Copies<'a>>,
        after: &HashMap<usize, Copies<'a>>,
    ) -> Result<(NewArrays, Option<Done>)> {
        let (engine, shapes) = (self.placement.engine(), &step.pass.shapes);
        let mut flags: HashMap<usize, Copies<'a>> = HashMap::new();
        for part in &update.flags {
            let sums = part.stage.inputs.iter().map(|&sum| {
                let number = step.zeros[sum].0;
                on_device(engine, &after[&number], &shapes[number], part.stage.device)
            });
            let sums = sums.collect::<Result<Vec<_>>>()?;
            let (made, _) = part.run(&sums)?;
            let device = part.stage.device;
            flags.extend(
                (made.into_iter()).map(|(at, flag)| (at, only(device, StageBuffer::Owned(flag)))),
            );
        }
        let flag = Shape::scalar(DType::Bool);
        let fetch = |input: usize, device: usize| {
            let (copies, shape) = match update.inputs[input] {
                UpdateInput::Before(number) => (&before[&number], &shapes[number]),
                UpdateInput::After(number) => (&after[&number], &shapes[number]),
                UpdateInput::Flag(at) => (&flags[&at], &flag),
            };
            on_device(engine, copies, shape, device)
        };
        let mut needed: Vec<Vec<Rc<StageBuffer<'a>>>> = Vec::new();
        for UpdatePart { stage, .. } in &update.apply {
            let inputs = stage.inputs.iter();
            let held = inputs.map(|&input| fetch(input, stage.device));
            needed.push(held.collect::<Result<_>>()?);
        }
        let (mut arrays, mut last) = (NewArrays::new(), None);
        for (part, held) in update.apply.iter().zip(&needed).rev() {
            let (made, done) = part.run(held)?;
            arrays.extend(made);
            last = Some(done);
        }
        Ok((arrays, last))
    }

    /// Forward, with the totals going from part to part.
    pub(super) fn test(&self, step: &'a PipelineStep) -> Result<(Buffer, Done)> {
        let mut run = self.run(&step.pass);
        if let Some((weight_program, places)) = &step.weight_program {
            run.shared.extend(self.weights(weight_program, places)?);
        }
        run.run(self.plan.stages)?;
        let PipelineRun {
            mut shared,
            parts,
            done,
            ..
        } = run;
        drop(parts);
        let none = || Error::Bug("a test in stages without a result".into());
        let totals = shared.remove(&self.arrays.len()).ok_or_else(none)?;
        Ok((into_buffer(totals)?, done.ok_or_else(none)?))
    }

    /// Forward: the outputs of each part.
    pub(super) fn predict(&self, step: &'a PipelineStep) -> Result<Vec<Vec<Buffer>>> {
        let mut run = self.run(&step.pass);
        run.run(self.plan.stages)?;
        let PipelineRun { parts, .. } = run;
        let outputs = &step.pass.outputs;
        let part = |mut values: HashMap<usize, Copies<'a>>| {
            let outputs = outputs.iter().map(|number| {
                let missing = || Error::Bug("an output of no stage".into());
                into_buffer(values.remove(number).ok_or_else(missing)?)
            });
            outputs.collect()
        };
        parts.into_iter().map(part).collect()
    }
}
