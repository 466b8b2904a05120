//! The values of a server on its device, updated by compiled programs of the optimizer.

use std::ops::Range;
use std::sync::Arc;

use phalanx_graph::{Graph, HostTensor, Program, Shape, Tensor};
use phalanx_pjrt::Buffer;
use phalanx_ps::{Part, Values};

use super::contents::{GradientSpec, Held, divided, joined};
use super::narrow::{Wire, narrow};
use super::table::{self, TableRows, TableStore};
use crate::engine::{CompileRequest, Compiled, Engine};
use crate::optim::{Optimizer, SlotSpec};

use crate::{Error, Result};

/// What a worker asks for: all values, or rows of tables, as they are or as they travel to a step.
pub(super) const VALUES: &str = "";
pub(super) const NARROW_VALUES: &str = "bf16";
pub(super) const ROWS: &str = "rows";
pub(super) const NARROW_ROWS: &str = "rows_bf16";
/// The slots of the whole optimizer.
pub(super) const COMMON_SLOTS: &str = "common_slots";

/// The values that a server holds.
pub(crate) struct HeldValues {
    engine: Engine,
    /// Optimizers of the program, which a description alone does not make.
    given: Vec<Optimizer>,
    held: Option<Holding>,
}

struct Holding {
    held: Held,
    description: String,
    optimizer: Optimizer,
    shapes: Vec<Shape>,
    /// `iterations`, arrays, slots.
    state: Vec<Buffer>,
    programs: Vec<(GradientSpec, bool, Update)>,
    tables: Vec<TableStore>,
    /// Programs that update rows, by table and number of rows.
    row_programs: Vec<((usize, usize), Compiled)>,
    /// The bytes of the values as they were asked for last, until an update changes them.
    pulled: Option<(Wire, Arc<Vec<u8>>)>,
}

/// An update, compiled: which arrays of the state its outputs replace.
struct Update {
    compiled: Compiled,
    changed: Vec<usize>,
}

pub(super) type Answer<T> = std::result::Result<T, String>;

impl HeldValues {
    /// No values yet; they will be on the first device of the engine.
    pub(crate) fn new(engine: &Engine, given: &[Optimizer]) -> Self {
        Self {
            engine: engine.clone(),
            given: given.to_vec(),
            held: None,
        }
    }

    fn holding(&mut self) -> Answer<(&Engine, &mut Holding)> {
        let holding = self.held.as_mut();
        let holding = holding.ok_or("there are no values yet; the first worker brings them")?;
        Ok((&self.engine, holding))
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn spec(what: &str) -> Answer<GradientSpec> {
    serde_json::from_str(what).map_err(|error| format!("a push that is not understood: {error}"))
}

impl Values for HeldValues {
    fn create(&mut self, description: &str, bytes: &[u8]) -> Answer<()> {
        let held: Held = serde_json::from_str(description).map_err(text)?;
        let optimizer = held.optimizer(&self.given).map_err(text)?;
        let state = divided(held.state_shapes(&optimizer), bytes)?;
        let holding = Holding::new(&self.engine, (held, optimizer), description, &state);
        self.held = Some(holding.map_err(text)?);
        Ok(())
    }

    fn pull(&mut self, what: &str, wanted: &[u8]) -> Answer<Arc<Vec<u8>>> {
        let (engine, holding) = self.holding()?;
        match what {
            VALUES => holding.values(engine, Wire::Same).map_err(text),
            NARROW_VALUES => holding.values(engine, Wire::Bf16).map_err(text),
            "state" => holding.state(engine).map_err(text).map(Arc::new),
            COMMON_SLOTS => holding.common_slots(engine).map_err(text).map(Arc::new),
            ROWS => holding.rows(wanted, Wire::Same).map(Arc::new),
            NARROW_ROWS => holding.rows(wanted, Wire::Bf16).map(Arc::new),
            "tables" => Ok(Arc::new(holding.changed_rows())),
            other => Err(format!("nothing is called `{other}` here")),
        }
    }

    fn mean(&mut self, parts: &[(Part, &str, &[u8])]) -> Answer<(String, Vec<u8>)> {
        let (_, holding) = self.holding()?;
        let Some((_, what, _)) = parts.first() else {
            return Err("a step without parts".into());
        };
        if parts.iter().any(|(_, other, _)| other != what) {
            return Err("the parts of a step are gradients of different variables; start all with the same program".into());
        }
        let mut spec = spec(what)?;
        let mean = mean_of(&holding.held, &spec, parts)?;
        // It is added up in the type of the arrays, and stays so.
        spec.wire = Wire::Same;
        Ok((serde_json::to_string(&spec).map_err(text)?, mean))
    }

    fn apply(&mut self, what: &str, gradient: &[u8], factors: Option<&[f64]>) -> Answer<()> {
        let (engine, holding) = self.holding()?;
        let spec = spec(what)?;
        let gradient = holding.held.gradient(&spec, gradient)?;
        // First, since the update of arrays takes what the whole optimizer carries.
        for (&table, rows) in spec.tables.iter().zip(&gradient.rows) {
            holding.apply_rows(engine, table, rows)?;
        }
        let applied = holding.apply(engine, &spec, &gradient.arrays, factors);
        applied.map_err(text)
    }

    fn squares(&mut self, what: &str, gradient: &[u8]) -> Answer<Vec<f64>> {
        let (engine, holding) = self.holding()?;
        let spec = spec(what)?;
        let gradient = holding.held.gradient(&spec, gradient)?;
        let squares = holding.squares(engine, &spec, &gradient.arrays);
        squares.map_err(text)
    }

    fn act(&mut self, what: &str, bytes: &[u8]) -> Answer<Vec<u8>> {
        let (engine, holding) = self.holding()?;
        match what {
            "set_state" => {
                let length = holding.shapes.iter().map(Shape::byte_len).sum();
                let split = bytes.split_at_checked(length);
                let (state, rows) = split.ok_or("a state that ends early")?;
                let state = divided(holding.shapes.iter().cloned(), state)?;
                holding.set(engine, &state).map_err(text)?;
                holding.set_rows(rows)?;
                Ok(Vec::new())
            }
            other => Err(format!("`{other}` is nothing that can be done here")),
        }
    }

    fn save(&mut self) -> Answer<Vec<u8>> {
        let (engine, holding) = self.holding()?;
        let description = holding.description.as_bytes();
        let mut bytes = (description.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(description);
        let state = holding.state(engine).map_err(text)?;
        bytes.extend_from_slice(&state);
        bytes.extend(holding.changed_rows());
        Ok(bytes)
    }

    fn load(&mut self, bytes: &[u8]) -> Answer<()> {
        let wrong = "a snapshot that is none of ours; remove the folder to begin anew";
        let (length, rest) = bytes.split_first_chunk::<8>().ok_or(wrong)?;
        let length = u64::from_le_bytes(*length) as usize;
        let (description, state) = rest.split_at_checked(length).ok_or(wrong)?;
        let description = std::str::from_utf8(description).map_err(text)?;
        let held: Held = serde_json::from_str(description).map_err(text)?;
        let optimizer = held.optimizer(&self.given).map_err(text)?;
        let shapes = held.state_shapes(&optimizer);
        let length = shapes.iter().map(Shape::byte_len).sum();
        let (state, rows) = state.split_at_checked(length).ok_or(wrong)?;
        self.create(description, state)?;
        let (_, holding) = self.holding()?;
        holding.set_rows(rows)
    }
}

impl Holding {
    fn new(
        engine: &Engine,
        (held, optimizer): (Held, Optimizer),
        description: &str,
        state: &[HostTensor],
    ) -> Result<Self> {
        let stores = held.tables.iter().map(TableStore::new);
        let tables: Answer<Vec<TableStore>> = stores.collect();
        let mut holding = Self {
            tables: tables.map_err(Error::Bug)?,
            row_programs: Vec::new(),
            shapes: held.state_shapes(&optimizer),
            optimizer,
            held,
            description: description.to_owned(),
            state: Vec::new(),
            programs: Vec::new(),
            pulled: None,
        };
        holding.set(engine, state)?;
        Ok(holding)
    }

    fn set(&mut self, engine: &Engine, state: &[HostTensor]) -> Result<()> {
        let put = state.iter().map(|tensor| engine.put(0, tensor));
        self.state = put.collect::<Result<_>>()?;
        self.pulled = None;
        Ok(())
    }

    /// The rows that are asked for, table by table.
    fn rows(&self, wanted: &[u8], wire: Wire) -> Answer<Vec<u8>> {
        let mut rest = wanted;
        let mut bytes = Vec::new();
        for table in &self.tables {
            let (rows, others) = TableRows::read(rest, 0)?;
            rest = others;
            table::write_values(&table.get(&rows.numbers)?, wire, &mut bytes);
        }
        Ok(bytes)
    }

    /// All rows that were changed, table by table, with their slots.
    fn changed_rows(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for table in &self.tables {
            table.all().write(&mut bytes);
        }
        bytes
    }

    /// Takes rows with their slots in the place of all that were there.
    fn set_rows(&mut self, bytes: &[u8]) -> Answer<()> {
        let mut rest = bytes;
        for table in &mut self.tables {
            let (rows, others) = TableRows::read(rest, table.held.whole_width())?;
            rest = others;
            table.clear();
            table.set(&rows)?;
        }
        Ok(())
    }

    /// Updates rows of a table by their gradient.
    fn apply_rows(&mut self, engine: &Engine, table: usize, rows: &TableRows) -> Answer<()> {
        if rows.numbers.is_empty() {
            return Ok(());
        }
        let padded = table::padded(rows.numbers.len());
        let key = (table, padded);
        if self.row_programs.iter().all(|(of, _)| *of != key) {
            let held = &self.held.tables[table];
            let program = table::update(&self.optimizer, held, padded).map_err(text)?;
            let request = CompileRequest::new("row_update", &program).on(&[0]);
            let compiled = engine.compile(request).map_err(text)?;
            self.row_programs.push((key, compiled));
        }
        let found = self.row_programs.iter().find(|(of, _)| *of == key);
        let (_, compiled) = found.ok_or("an update of rows is missing")?;
        let common = self.common_range();
        let store = &mut self.tables[table];
        let before = store.gathered(&rows.numbers, padded)?;
        let mut gradient = rows.values.clone();
        gradient.resize(padded * store.held.width, 0.0);
        let gradient = HostTensor::new([padded, store.held.width], &gradient);
        let put = before.iter().chain([&gradient]);
        let put = put.map(|tensor| engine.put(0, tensor));
        let put: Vec<Buffer> = put.collect::<Result<_>>().map_err(text)?;
        let common = &self.state[common];
        let arguments: Vec<&Buffer> = self.state[..1].iter().chain(common).chain(&put).collect();
        let (outputs, done) = compiled.run(&[&arguments]).map_err(text)?;
        let shape = gradient.shape();
        let read = outputs.iter().flatten();
        let read = read.map(|output| engine.get(output, shape));
        let after: Vec<HostTensor> = read.collect::<Result<_>>().map_err(text)?;
        engine.wait(&done, 1).map_err(text)?;
        store.scattered(&rows.numbers, &after)
    }

    fn values(&mut self, engine: &Engine, wire: Wire) -> Result<Arc<Vec<u8>>> {
        if let Some((of, pulled)) = &self.pulled
            && *of == wire
        {
            return Ok(Arc::clone(pulled));
        }
        let mut values = self.bytes(engine, 0..1 + self.held.arrays.len())?;
        if wire != Wire::Same {
            values = self.narrowed(&values, wire);
        }
        let values = Arc::new(values);
        self.pulled = Some((wire, Arc::clone(&values)));
        Ok(values)
    }

    /// Values as they travel to a step.
    fn narrowed(&self, values: &[u8], wire: Wire) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(values.len());
        let (iterations, mut rest) = values.split_at(self.shapes[0].byte_len());
        bytes.extend_from_slice(iterations);
        for array in &self.held.arrays {
            let (own, others) = rest.split_at(array.shape().byte_len());
            match array.is_narrow(wire) {
                true => narrow(own, &mut bytes),
                false => bytes.extend_from_slice(own),
            }
            rest = others;
        }
        bytes
    }

    fn state(&self, engine: &Engine) -> Result<Vec<u8>> {
        self.bytes(engine, 0..self.shapes.len())
    }

    fn common_slots(&self, engine: &Engine) -> Result<Vec<u8>> {
        self.bytes(engine, self.common_range())
    }

    /// The places of slots that belong to no variable, which come before the others.
    fn common_range(&self) -> Range<usize> {
        let slots = self.held.slots(&self.optimizer);
        let count = slots.iter().filter(|slot| slot.param.is_none()).count();
        let first = 1 + self.held.arrays.len();
        first..first + count
    }

    fn bytes(&self, engine: &Engine, arrays: Range<usize>) -> Result<Vec<u8>> {
        if self.state.is_empty() {
            return Err(Error::Training(
                "the values of this server were lost in an update that failed".into(),
            ));
        }
        let shapes = &self.shapes[arrays.clone()];
        let mut bytes = vec![0; shapes.iter().map(Shape::byte_len).sum()];
        let mut rest = &mut bytes[..];
        for (array, shape) in self.state[arrays].iter().zip(shapes) {
            let (own, others) = std::mem::take(&mut rest).split_at_mut(shape.byte_len());
            engine.read(array, shape, own)?;
            rest = others;
        }
        Ok(bytes)
    }

    fn apply(
        &mut self,
        engine: &Engine,
        spec: &GradientSpec,
        gradients: &[HostTensor],
        factors: Option<&[f64]>,
    ) -> Result<()> {
        let known = |(of, scaled, _): &&(GradientSpec, bool, Update)| {
            of == spec && *scaled == factors.is_some()
        };
        if self.programs.iter().find(known).is_none() {
            let (program, changed) = self.trace(spec, factors.is_some())?;
            let request = CompileRequest::new("server_update", &program).on(&[0]);
            let compiled = engine.compile(request)?;
            let update = Update { compiled, changed };
            self.programs
                .push((spec.clone(), factors.is_some(), update));
        }
        let found = self.programs.iter().find(known);
        let (_, _, update) = found.ok_or_else(|| Error::Bug("an update is missing".into()))?;
        let mut received = Vec::with_capacity(gradients.len() + 1);
        for gradient in gradients {
            received.push(engine.put(0, gradient)?);
        }
        if let Some(factors) = factors {
            let factors: Vec<f32> = factors.iter().map(|&factor| factor as f32).collect();
            received.push(engine.put(0, &HostTensor::new([factors.len()], &factors))?);
        }
        let arguments: Vec<&Buffer> = self.state.iter().chain(&received).collect();
        let ran = update.compiled.run(&[&arguments]);
        let (outputs, done) = ran.inspect_err(|_| self.state.clear())?;
        for (&index, output) in update.changed.iter().zip(outputs.into_iter().flatten()) {
            self.state[index] = output;
        }
        self.pulled = None;
        engine.wait(&done, 1)
    }

    /// The squared norm of what the optimizer would clip, by array: of the mean of gradients where it accumulates them.
    fn squares(
        &self,
        engine: &Engine,
        spec: &GradientSpec,
        gradients: &[HostTensor],
    ) -> Result<Vec<f64>> {
        let steps = self.optimizer.options().gradient_accumulation_steps;
        let slots = self.held.slots(&self.optimizer);
        let (trained, _) = self.held.trained();
        let first_slot = 1 + self.held.arrays.len();
        let mut squares = vec![0.0; self.held.arrays.len()];
        for (&index, gradient) in spec.connected.iter().zip(gradients) {
            let mut values = gradient.to_f64();
            let is_sum = |slot: &SlotSpec| {
                let of_it = slot.param.is_some_and(|param| trained[param] == index);
                of_it && slot.name.ends_with("/accumulated_gradient")
            };
            if let (Some(steps), Some(at)) = (steps, slots.iter().position(is_sum)) {
                let array = &self.state[first_slot + at];
                let sums = engine.get(array, &self.shapes[first_slot + at])?.to_f64();
                for (value, sum) in values.iter_mut().zip(sums) {
                    *value = (*value + sum) / steps as f64;
                }
            }
            squares[index] = values.iter().map(|x| x * x).sum();
        }
        Ok(squares)
    }

    /// The program of an update: arguments are the state, the gradients, and the factors where there are any.
    fn trace(&self, spec: &GradientSpec, is_scaled: bool) -> Result<(Program, Vec<usize>)> {
        let graph = Graph::new();
        let state: Vec<Tensor> = (self.shapes.iter())
            .map(|shape| graph.parameter("state", shape.clone()))
            .collect();
        let received = |&index: &usize| {
            let shape = self.held.arrays[index].shape();
            graph.parameter("received", shape)
        };
        let gradients: Vec<Tensor> = spec.connected.iter().map(received).collect();
        let changed: Vec<Tensor> = spec.changed.iter().map(received).collect();
        let factors = is_scaled.then(|| {
            let shape = Shape::f32([self.held.arrays.len()]);
            let all = graph.parameter("factors", shape);
            let of = |(&at, gradient): (&usize, &Tensor)| {
                let factor = all.slice_dim(0, at, at + 1).reshape(&[]);
                factor.convert(gradient.dtype())
            };
            let factors = spec.connected.iter().zip(&gradients).map(of);
            factors.collect::<Vec<Tensor>>()
        });
        let mut after: Vec<Option<Tensor>> = vec![None; state.len()];
        let iterations = &state[0];
        after[0] = Some(iterations + 1.0);
        self.update(spec, &state, (&gradients, factors.as_deref()), &mut after);
        for (&index, value) in spec.changed.iter().zip(&changed) {
            let old = &state[1 + index];
            after[1 + index] = Some(match value.dtype().is_float() {
                true => old + value,
                false => old.maximum(value),
            });
        }
        let replaced: Vec<usize> = (0..after.len()).filter(|&at| after[at].is_some()).collect();
        let outputs: Vec<(&str, &Tensor)> = after
            .iter()
            .flatten()
            .map(|value| ("state", value))
            .collect();
        let mut program = graph.finish(&outputs)?;
        program.donated = replaced.iter().copied().zip(0..).collect();
        Ok((program, replaced))
    }

    /// The optimizer's part of an update.
    fn update(
        &self,
        spec: &GradientSpec,
        state: &[Tensor],
        (gradients, factors): (&[Tensor], Option<&[Tensor]>),
        after: &mut [Option<Tensor>],
    ) {
        let (trained, params) = self.held.trained();
        let positions = spec.connected.iter();
        // Without a gradient an array does not change, or is averaged alone.
        let connected: Vec<usize> = positions
            .filter_map(|index| trained.iter().position(|at| at == index))
            .collect();
        let specs: Vec<_> = connected.iter().map(|&p| params[p].clone()).collect();
        let values: Vec<Tensor> = spec
            .connected
            .iter()
            .map(|&i| state[1 + i].clone())
            .collect();
        let first_slot = 1 + self.held.arrays.len();
        let slots = self.optimizer.slots(&params);
        let is_used = |slot: &usize| match slots[*slot].param {
            Some(param) => connected.contains(&param),
            None => true,
        };
        let used: Vec<usize> = (0..slots.len()).filter(is_used).collect();
        let before: Vec<Tensor> = used
            .iter()
            .map(|&s| state[first_slot + s].clone())
            .collect();
        let applied =
            self.optimizer
                .apply_scaled(&specs, &state[0], &values, gradients, (&before, factors));
        let mut set = |index: usize, value: &Tensor| {
            if state[index].value() != value.value() {
                after[index] = Some(value.clone());
            }
        };
        for (&index, value) in spec.connected.iter().zip(&applied.params) {
            set(1 + index, value);
        }
        for (&slot, value) in used.iter().zip(&applied.slots) {
            set(first_slot + slot, value);
        }
        let averages = self.optimizer.average_slots(&params);
        let averages = averages.into_iter().enumerate();
        for (param, slot) in averages.filter(|(param, _)| !connected.contains(param)) {
            let (index, slot) = (1 + trained[param], first_slot + slot);
            if !spec.takes_turns {
                // It changes only when it is set.
                set(slot, &state[index]);
                continue;
            }
            let before = (&state[index], &state[slot]);
            let (value, average) =
                (self.optimizer).averaged_without_gradient(&params[param], &state[0], before);
            set(index, &value);
            set(slot, &average);
        }
    }
}

/// The mean of parts: of gradients by the weight of their examples, of what layers changed by the number of them; of integers the
/// maximum.
fn mean_of(held: &Held, spec: &GradientSpec, parts: &[(Part, &str, &[u8])]) -> Answer<Vec<u8>> {
    let shapes = held.gradient_shapes(spec);
    let shapes = shapes.ok_or("a gradient of an array that is not here")?;
    let mut divided_parts = Vec::with_capacity(parts.len());
    for (_, _, bytes) in parts {
        divided_parts.push(held.gradient(spec, bytes)?);
    }
    let shares = |of: fn(&Part) -> f64| -> Option<Vec<f64>> {
        let total: f64 = parts.iter().map(|(part, ..)| of(part)).sum();
        let shares = parts.iter().map(|(part, ..)| of(part) / total);
        (total > 0.0).then(|| shares.collect())
    };
    let by_rows = shares(|part| part.rows).unwrap_or_else(|| vec![0.0; parts.len()]);
    // Where no example has a weight, penalties have gradients all the same.
    let by_weight = shares(|part| part.weight).unwrap_or_else(|| by_rows.clone());
    let mut means = Vec::with_capacity(shapes.len());
    for (at, shape) in shapes.iter().enumerate() {
        let shares = match at < spec.connected.len() {
            true => &by_weight,
            false => &by_rows,
        };
        let tensors: Vec<&HostTensor> = divided_parts.iter().map(|part| &part.arrays[at]).collect();
        means.push(mean_of_tensors(shape, &tensors, shares));
    }
    let mut bytes = joined(&means);
    for (at, &table) in spec.tables.iter().enumerate() {
        let rows = divided_parts.iter().zip(&by_weight);
        let rows: Vec<(TableRows, f64)> = rows
            .map(|(part, share)| (part.rows[at].clone(), *share))
            .collect();
        TableRows::merged(&rows, held.tables[table].width).write(&mut bytes);
    }
    Ok(bytes)
}

fn mean_of_tensors(shape: &Shape, tensors: &[&HostTensor], shares: &[f64]) -> HostTensor {
    let shared = || {
        tensors
            .iter()
            .zip(shares)
            .filter(|(_, share)| **share > 0.0)
    };
    // The gradient of one part is itself, to the bit.
    if let (1, Some((tensor, share))) = (shared().count(), shared().next())
        && *share == 1.0
    {
        return (*tensor).clone();
    }
    if !shape.dtype.is_float() {
        let most = |a: Vec<f64>, b: Vec<f64>| a.iter().zip(&b).map(|(a, b)| a.max(*b)).collect();
        let most = tensors.iter().map(|tensor| tensor.to_f64()).reduce(most);
        return HostTensor::from_f64(shape.clone(), &most.unwrap_or_default());
    }
    let mut sums = vec![0f64; shape.len()];
    for (tensor, share) in shared() {
        match tensor.values::<f32>() {
            Some(values) => {
                for (sum, value) in sums.iter_mut().zip(values) {
                    *sum += f64::from(value) * share;
                }
            }
            None => {
                for (sum, value) in sums.iter_mut().zip(tensor.to_f64()) {
                    *sum += value * share;
                }
            }
        }
    }
    HostTensor::from_f64(shape.clone(), &sums)
}

#[cfg(test)]
#[path = "values_tests.rs"]
mod tests;
