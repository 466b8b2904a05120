//! Where the arrays of a training lie on servers, and their bytes there.

use phalanx_graph::{AlignedBytes, HostTensor, Shape};
use phalanx_ps::{Partitioner, Shard, VariableSpec, place};

use super::contents::{GradientSpec, Held, HeldArray};
use super::narrow::{Wire, is_narrow, narrow, widen};
use super::table::{HeldTable, TableRows, read_values, value_bytes};
use crate::optim::{Optimizer, ParamSpec, SlotSpec};

use crate::{Error, Result};

/// The arrays of a training, and where they lie.
pub(crate) struct StateLayout {
    variables: Vec<ParamSpec>,
    slots: Vec<SlotSpec>,
    /// By their positions among the variables.
    trained: Vec<usize>,
    optimizer: Optimizer,
    shards: Vec<Shard>,
    pub(super) held: Vec<Held>,
    /// Variables that are tables of rows, and what they are.
    tables: Vec<(usize, HeldTable)>,
    /// The shards of each server, by their positions.
    on_server: Vec<Vec<usize>>,
}

/// A gradient, by the positions of variables.
pub(crate) struct Pushed<'a> {
    pub(crate) connected: &'a [usize],
    pub(crate) changed: &'a [usize],
    /// Of each of these.
    pub(crate) tensors: &'a [HostTensor],
    /// The rows of tables that the batch names; of each table the gradient among the tensors begins with theirs.
    pub(crate) named: &'a [Vec<u64>],
    /// Whether other losses may reach the other variables.
    pub(crate) takes_turns: bool,
}

impl StateLayout {
    /// Places the arrays of a training on servers.
    pub(crate) fn new(
        variables: Vec<ParamSpec>,
        slots: Vec<SlotSpec>,
        trained: Vec<usize>,
        optimizer: &Optimizer,
        (partitioner, servers): (&Partitioner, usize),
        tables: Vec<(usize, HeldTable)>,
    ) -> Self {
        let slots_of = |variable: usize| {
            let param = trained.iter().position(|&index| index == variable);
            let of_it = |slot: &&SlotSpec| param.is_some() && slot.param == param;
            slots.iter().filter(of_it).count()
        };
        let specs = variables.iter().enumerate();
        let specs = specs.map(|(index, variable)| VariableSpec {
            // TableRows of tables lie on all servers alike.
            dims: match tables.iter().any(|(table, _)| *table == index) {
                true => vec![0],
                false => variable.shape.dims.clone(),
            },
            element_bytes: variable.shape.dtype.size(),
            slots: slots_of(index),
            // Other updates of a row depend on other rows.
            can_be_cut: optimizer.is_elementwise(variable) && variable.is_kept_by_elements(),
        });
        let mut shards = place(&specs.collect::<Vec<_>>(), partitioner, servers);
        shards.retain(|shard| tables.iter().all(|(table, _)| *table != shard.variable));
        let on_server: Vec<Vec<usize>> = (0..servers)
            .map(|server| {
                let all = shards.iter().enumerate();
                let own = all.filter(|(_, shard)| shard.server == server);
                own.map(|(at, _)| at).collect()
            })
            .collect();
        let mut layout = Self {
            variables,
            slots,
            trained,
            optimizer: optimizer.clone(),
            shards,
            held: Vec::new(),
            tables,
            on_server,
        };
        let held = |server: &Vec<usize>| Held {
            arrays: server.iter().map(|&at| layout.held_array(at)).collect(),
            tables: layout
                .tables
                .iter()
                .map(|(_, table)| table.clone())
                .collect(),
            optimizer: (optimizer.kind().to_owned(), optimizer.config()),
            replicas: optimizer.replicas(),
        };
        layout.held = layout.on_server.iter().map(held).collect();
        layout
    }

    fn held_array(&self, at: usize) -> HeldArray {
        let Shard {
            variable,
            part,
            rows,
            ..
        } = self.shards[at];
        let spec = &self.variables[variable];
        let ParamSpec { name, shape, .. } = spec;
        let is_cut = self
            .shards
            .iter()
            .filter(|s| s.variable == variable)
            .count()
            > 1;
        let mut dims = shape.dims.clone();
        if let Some(first) = dims.first_mut() {
            *first = rows;
        }
        HeldArray {
            name: match is_cut {
                true => format!("{name}/part_{part}"),
                false => name.clone(),
            },
            part_of: is_cut.then(|| name.clone()),
            dtype: shape.dtype.name().to_owned(),
            dims,
            is_trained: self.trained.contains(&variable),
            decays: self.optimizer.options().decays(spec),
            constraint: spec.constraint.clone(),
        }
    }

    /// The bytes of a shard in a tensor of its variable's size.
    fn range(&self, at: usize, shape: &Shape) -> std::ops::Range<usize> {
        let shard = &self.shards[at];
        let rows = shape.dims.first().copied().unwrap_or(1).max(1);
        let row = shape.byte_len() / rows;
        shard.first_row * row..(shard.first_row + shard.rows) * row
    }

    /// The bytes that a server has of a slot: of a shard, or the whole. A slot of other dims than its variable's is of a variable
    /// that is not cut.
    fn slot_range(&self, slot: usize, at: Option<usize>) -> std::ops::Range<usize> {
        let shape = &self.slots[slot].shape;
        let is_alike =
            |at: &usize| self.variables[self.shards[*at].variable].shape.dims == shape.dims;
        match at.filter(is_alike) {
            Some(at) => self.range(at, shape),
            None => 0..shape.byte_len(),
        }
    }

    /// The state of a server, of a whole state: variables, slots, iterations.
    pub(super) fn state_of(&self, server: usize, state: &[HostTensor]) -> Vec<u8> {
        let mut bytes = state
            .last()
            .map(|last| last.bytes().to_vec())
            .unwrap_or_default();
        for &at in &self.on_server[server] {
            let tensor = &state[self.shards[at].variable];
            bytes.extend_from_slice(&tensor.bytes()[self.range(at, tensor.shape())]);
        }
        for (slot, at) in self.slots_of(server) {
            let tensor = &state[self.variables.len() + slot];
            bytes.extend_from_slice(&tensor.bytes()[self.slot_range(slot, at)]);
        }
        bytes
    }

    /// The slots that a server has, in the order of its optimizer: the slot of the whole, and the shard that it is of.
    fn slots_of(&self, server: usize) -> Vec<(usize, Option<usize>)> {
        let all = || self.slots.iter().enumerate();
        let own = all().filter(|(_, slot)| slot.param.is_none());
        let mut slots: Vec<_> = own.map(|(index, _)| (index, None)).collect();
        for &at in &self.on_server[server] {
            let variable = self.shards[at].variable;
            let param = self.trained.iter().position(|&index| index == variable);
            let of_it = all().filter(|(_, slot)| param.is_some() && slot.param == param);
            slots.extend(of_it.map(|(index, _)| (index, Some(at))));
        }
        slots
    }

    /// The whole values, of the bytes of each server, in which arrays are as they travel.
    pub(super) fn values(&self, bytes: &[Vec<u8>], wire: Wire) -> Result<(i64, Vec<HostTensor>)> {
        let shapes = self.value_shapes();
        let mut whole: Vec<Option<AlignedBytes>> = shapes.iter().map(|_| None).collect();
        let mut iterations = 0;
        for (server, bytes) in bytes.iter().enumerate() {
            let mut rest = Rest(bytes);
            let count: [u8; 8] = rest.take(8)?.try_into().map_err(|_| short())?;
            if server == 0 {
                iterations = i64::from_le_bytes(count);
            }
            for (&at, array) in self.on_server[server].iter().zip(&self.held[server].arrays) {
                let variable = self.shards[at].variable;
                let range = self.range(at, &self.variables[variable].shape);
                let (bytes, length) = (&mut whole[variable], shapes[variable].byte_len());
                if array.is_narrow(wire) {
                    let part = rest.take(range.len() / 2)?;
                    let bytes = bytes.get_or_insert_with(|| AlignedBytes::zeroed(length));
                    widen(part, &mut bytes.as_mut_slice()[range]);
                    continue;
                }
                let part = rest.take(range.len())?;
                if part.len() == length {
                    *bytes = Some(AlignedBytes::copied(part));
                    continue;
                }
                let bytes = bytes.get_or_insert_with(|| AlignedBytes::zeroed(length));
                bytes.as_mut_slice()[range].copy_from_slice(part);
            }
        }
        let tensor = |(shape, bytes): (Shape, Option<AlignedBytes>)| match bytes {
            Some(bytes) => HostTensor::from_aligned(shape, bytes),
            None => HostTensor::zeros(shape),
        };
        Ok((
            iterations,
            shapes.into_iter().zip(whole).map(tensor).collect(),
        ))
    }

    /// The shapes of the variables; of a table a row that stands for it.
    fn value_shapes(&self) -> Vec<Shape> {
        let shapes = self.variables.iter().map(|spec| spec.shape.clone());
        let mut shapes: Vec<Shape> = shapes.collect();
        for (variable, _) in &self.tables {
            shapes[*variable].dims[0] = 1;
        }
        shapes
    }

    /// Whether an array of the whole state is among the values, as a whole.
    pub(super) fn is_in_values(&self, index: usize) -> bool {
        index < self.variables.len() && self.tables.iter().all(|(table, _)| *table != index)
    }

    /// Slots of the whole, such as the learning rate, of which each server has a copy: their positions in the whole state, and shapes.
    pub(super) fn common_slots(&self) -> impl Iterator<Item = (usize, Shape)> {
        let slots = self.slots.iter().enumerate();
        let common = slots.filter(|(_, slot)| slot.param.is_none());
        common.map(|(index, slot)| (self.variables.len() + index, slot.shape.clone()))
    }

    pub(super) fn has_tables(&self) -> bool {
        !self.tables.is_empty()
    }

    pub(super) fn width(&self, table: usize) -> usize {
        self.tables[table].1.width
    }

    /// The slots of a table, by their positions, in the order of the optimizer.
    fn slots_of_table(&self, variable: usize) -> Vec<usize> {
        let param = self.trained.iter().position(|&index| index == variable);
        let slots = self.slots.iter().enumerate();
        let own = slots.filter(|(_, slot)| param.is_some() && slot.param == param);
        own.map(|(index, _)| index).collect()
    }

    /// Puts tables in their places in a whole state, of the rows that each server has changed.
    pub(super) fn fill_tables(&self, state: &mut [HostTensor], changed: &[Vec<u8>]) -> Result<()> {
        let mut rests: Vec<&[u8]> = changed.iter().map(|bytes| &bytes[..]).collect();
        for (variable, table) in &self.tables {
            let shape = Shape::f32([table.rows, table.width]);
            let first = table.initializer.values(&shape, table.seed, &table.name);
            let slots = self.slots_of_table(*variable);
            let mut arrays = vec![(*variable, first.values::<f32>().unwrap_or_default())];
            for (slot, fill) in slots.iter().zip(&table.fills) {
                let index = self.variables.len() + slot;
                arrays.push((index, vec![*fill as f32; shape.len()]));
            }
            for rest in &mut rests {
                let read = TableRows::read(rest, table.whole_width());
                let (rows, others) = read.map_err(Error::Cluster)?;
                *rest = others;
                let each = rows.values.chunks_exact(table.whole_width());
                for (number, whole) in rows.numbers.iter().zip(each) {
                    let at = *number as usize * table.width;
                    for ((_, array), part) in arrays.iter_mut().zip(whole.chunks(table.width)) {
                        array[at..at + table.width].copy_from_slice(part);
                    }
                }
            }
            for (index, array) in arrays {
                state[index] = HostTensor::new(shape.dims.clone(), &array);
            }
        }
        Ok(())
    }

    /// Of each server the rows of tables in a whole state that are not as they would first be.
    pub(super) fn rows_of(&self, state: &[HostTensor]) -> Vec<Vec<u8>> {
        let servers = self.on_server.len();
        let mut bytes = vec![Vec::new(); servers];
        for (variable, table) in &self.tables {
            let slots = self.slots_of_table(*variable).into_iter();
            let indices = slots.map(|slot| self.variables.len() + slot);
            let arrays = std::iter::once(*variable).chain(indices);
            let arrays: Vec<Vec<f32>> = arrays
                .map(|index| state[index].values().unwrap_or_default())
                .collect();
            let mut rows = vec![TableRows::default(); servers];
            let mut first = vec![0.0; table.width];
            let made = table.first_rows();
            for number in 0..table.rows {
                let at = number * table.width..(number + 1) * table.width;
                let Some(own) = arrays[0].get(at.clone()) else {
                    // A row that stands for the table, whose rows are as they first are.
                    break;
                };
                if let Some(made) = &made {
                    made.fill(number as u64, &mut first);
                }
                let is_first = own == first
                    && arrays[1..]
                        .iter()
                        .zip(&table.fills)
                        .all(|(slot, fill)| slot[at.clone()].iter().all(|x| *x == *fill as f32));
                if is_first {
                    continue;
                }
                let rows = &mut rows[number % servers];
                rows.numbers.push(number as u64);
                for array in &arrays {
                    rows.values.extend_from_slice(&array[at.clone()]);
                }
            }
            for (bytes, rows) in bytes.iter_mut().zip(&rows) {
                rows.write(bytes);
            }
        }
        bytes
    }

    /// Which rows of tables each server is asked for.
    pub(super) fn asked(&self, named: &[Vec<u64>]) -> Vec<Vec<u8>> {
        let servers = self.on_server.len();
        let mut bytes = vec![Vec::new(); servers];
        for numbers in named {
            let mut rows = vec![TableRows::default(); servers];
            for number in numbers {
                rows[*number as usize % servers].numbers.push(*number);
            }
            for (bytes, rows) in bytes.iter_mut().zip(&rows) {
                rows.write(bytes);
            }
        }
        bytes
    }

    /// The rows that were asked for, in the order that they were named in, of the answers of all servers.
    pub(super) fn answered(
        &self,
        named: &[Vec<u64>],
        answers: &[Vec<u8>],
        wire: Wire,
    ) -> Result<Vec<Vec<f32>>> {
        let mut rests: Vec<Rest<'_>> = answers.iter().map(|bytes| Rest(bytes)).collect();
        let mut tables = Vec::with_capacity(named.len());
        for (table, numbers) in named.iter().enumerate() {
            let width = self.width(table);
            let mut values = Vec::with_capacity(numbers.len() * width);
            for number in numbers {
                let server = *number as usize % rests.len();
                let row = rests[server].take(value_bytes(wire) * width)?;
                values.extend(read_values(row, wire));
            }
            tables.push(values);
        }
        Ok(tables)
    }

    /// The whole state, of the states of each server; tables are filled in later.
    pub(super) fn state(&self, bytes: &[Vec<u8>]) -> Result<Vec<HostTensor>> {
        let (iterations, mut state) = self.values(bytes, Wire::Same)?;
        let of_table = |slot: &SlotSpec| {
            let variable = slot.param.map(|param| self.trained[param]);
            variable.is_some_and(|of| self.tables.iter().any(|(table, _)| *table == of))
        };
        let shape_of = |slot: &SlotSpec| match of_table(slot) {
            true => Shape::f32([1]),
            false => slot.shape.clone(),
        };
        let shapes: Vec<Shape> = self.slots.iter().map(shape_of).collect();
        let zeroed = |shape: &Shape| AlignedBytes::zeroed(shape.byte_len());
        let mut slots: Vec<AlignedBytes> = shapes.iter().map(zeroed).collect();
        for (server, bytes) in bytes.iter().enumerate() {
            let arrays = &self.held[server].value_shapes();
            let before = arrays.iter().map(Shape::byte_len).sum();
            let mut rest = Rest(bytes);
            rest.take(before)?;
            for (slot, at) in self.slots_of(server) {
                let range = self.slot_range(slot, at);
                let part = rest.take(range.len())?;
                slots[slot].as_mut_slice()[range].copy_from_slice(part);
            }
        }
        let tensors = shapes.into_iter().zip(slots);
        state.extend(tensors.map(|(shape, bytes)| HostTensor::from_aligned(shape, bytes)));
        state.push(HostTensor::scalar(iterations));
        Ok(state)
    }

    /// What a server gets of a gradient, as it travels.
    pub(super) fn gradient_of(
        &self,
        server: usize,
        pushed: &Pushed<'_>,
        wire: Wire,
    ) -> (GradientSpec, Vec<u8>) {
        let mut spec = GradientSpec {
            wire,
            takes_turns: pushed.takes_turns,
            ..GradientSpec::default()
        };
        let length = pushed.tensors.iter().map(|tensor| tensor.bytes().len());
        let mut bytes = Vec::with_capacity(length.sum());
        let (gradients, others) = pushed.tensors.split_at(pushed.connected.len());
        let lists = [
            (pushed.connected, gradients, &mut spec.connected, wire),
            (pushed.changed, others, &mut spec.changed, Wire::Same),
        ];
        for (variables, tensors, positions, wire) in lists {
            for (position, &at) in self.on_server[server].iter().enumerate() {
                let variable = self.shards[at].variable;
                let Some(of) = variables.iter().position(|&index| index == variable) else {
                    continue;
                };
                positions.push(position);
                let tensor = &tensors[of];
                let own = &tensor.bytes()[self.range(at, tensor.shape())];
                match is_narrow(tensor.dtype(), wire) {
                    true => narrow(own, &mut bytes),
                    false => bytes.extend_from_slice(own),
                }
            }
        }
        for (table, (variable, held)) in self.tables.iter().enumerate() {
            let Some(of) = pushed.connected.iter().position(|index| index == variable) else {
                continue;
            };
            spec.tables.push(table);
            let gradient: Vec<f32> = gradients[of].values().unwrap_or_default();
            let servers = self.on_server.len();
            let mut rows = TableRows::default();
            let each = pushed.named[table]
                .iter()
                .zip(gradient.chunks_exact(held.width));
            for (number, values) in each {
                if *number as usize % servers == server {
                    rows.numbers.push(*number);
                    rows.values.extend_from_slice(values);
                }
            }
            rows.write_as(wire, &mut bytes);
        }
        (spec, bytes)
    }

    /// By what each server multiplies the gradient of each of its arrays so that norms are no larger than the optimizer allows.
    pub(super) fn factors(&self, squares: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let variables: Vec<Vec<usize>> = (self.on_server.iter())
            .map(|server| server.iter().map(|&at| self.shards[at].variable).collect())
            .collect();
        let options = self.optimizer.options();
        let mut of_variable = vec![0.0; self.variables.len()];
        let each = variables.iter().zip(squares);
        for (variable, square) in each.flat_map(|(v, s)| v.iter().zip(s)) {
            of_variable[*variable] += square;
        }
        let total: f64 = of_variable.iter().sum();
        let factor = |square: f64, limit: f64| {
            let norm = square.sqrt();
            // An infinite norm makes the gradient NaN, so that it is seen.
            if norm.is_finite() {
                limit / norm.max(limit)
            } else {
                f64::NAN
            }
        };
        let of = |variable: &usize| match (options.clipnorm, options.global_clipnorm) {
            (Some(limit), _) => factor(of_variable[*variable], limit),
            (None, Some(limit)) => factor(total, limit),
            (None, None) => 1.0,
        };
        variables
            .iter()
            .map(|own| own.iter().map(of).collect())
            .collect()
    }

    pub(super) fn clips(&self) -> bool {
        let options = self.optimizer.options();
        options.clipnorm.is_some() || options.global_clipnorm.is_some()
    }
}

/// Bytes that are taken one after the other.
pub(super) struct Rest<'a>(pub(super) &'a [u8]);

impl<'a> Rest<'a> {
    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (own, rest) = self.0.split_at_checked(count).ok_or_else(short)?;
        self.0 = rest;
        Ok(own)
    }
}

fn short() -> Error {
    Error::Cluster(
        "a parameter server sent fewer values than the model has; start all with the same program"
            .into(),
    )
}
