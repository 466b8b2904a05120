//! Tables on parameter servers: of a batch the rows that it names, and the batch with their places among these.

use std::collections::HashMap;

use phalanx_graph::{DType, HostTensor};

use super::compiled_model::CompiledModel;
use super::setup::Setup;
use crate::nn::{Model, Table};
use crate::optim::{Optimizer, ParamSpec};
use crate::servers::{HeldTable, PulledRows};
use crate::{Error, Result};

/// Inputs whose indices count the rows that were named.
pub(super) struct LookedUp {
    pub(super) x: Vec<HostTensor>,
    /// Of each table the rows, each once.
    pub(super) named: Vec<Vec<u64>>,
    /// How many of them this worker had.
    pub(super) cached: u64,
}

impl CompiledModel {
    /// Brings the rows of tables that inputs name to the devices, as `rows` gives them; `padded` is the number of examples of the program.
    pub(super) fn look_up(
        &mut self,
        rows: impl FnOnce(&[Vec<u64>]) -> Result<PulledRows>,
        x: &[HostTensor],
        padded: usize,
    ) -> Result<LookedUp> {
        let capacities = capacities(&self.setup, x, padded);
        let mut looked_up = LookedUp {
            x: x.to_vec(),
            named: Vec::new(),
            cached: 0,
        };
        for (table, &capacity) in self.setup.tables.iter().zip(&capacities) {
            looked_up.name(table, capacity)?;
        }
        let PulledRows { values, cached } = rows(&looked_up.named)?;
        looked_up.cached = cached;
        for (at, mut values) in values.into_iter().enumerate() {
            let Table {
                variable, width, ..
            } = self.setup.tables[at];
            values.resize(capacities[at] * width, 0.0);
            let values = HostTensor::new([capacities[at], width], &values);
            self.state.put_rows(variable, &values)?;
        }
        Ok(looked_up)
    }

    /// Brings rows to the devices where variables are on parameter servers by rows, and gives the inputs that count them.
    pub(super) fn with_rows(
        &mut self,
        x: &[HostTensor],
        padded: usize,
    ) -> Result<Option<Vec<HostTensor>>> {
        if self.setup.tables.is_empty() {
            return Ok(None);
        }
        let servers = self.placement.servers().cloned();
        let servers = servers.ok_or_else(|| Error::Bug("tables without servers".into()))?;
        let rows = |named: &[Vec<u64>]| {
            let (values, cached) = (servers.rows(named)?, 0);
            Ok(PulledRows { values, cached })
        };
        Ok(Some(self.look_up(rows, x, padded)?.x))
    }

    /// What programs of batches like this one are made of: tables of as many rows as it can name.
    pub(super) fn setup_for(&self, x: &[HostTensor], padded: usize) -> Setup {
        match self.setup.tables.is_empty() {
            true => self.setup.clone(),
            false => self.setup.for_rows(&capacities(&self.setup, x, padded)),
        }
    }
}

/// The tables of at least this number of bytes of which a step needs some rows alone.
pub(super) fn tables_by_rows(model: &Model, optimizer: &Optimizer, bytes: usize) -> Vec<Table> {
    let is_by_rows = |table: &Table| {
        let variable = &model.variables()[table.variable];
        let rows = variable.initializer.rows([table.rows, table.width], 0, "");
        variable.shape.byte_len() >= bytes
            && variable.shape.dtype == DType::F32
            && rows.is_some()
            && optimizer.is_by_rows(&ParamSpec::of(variable))
    };
    let mut tables = model.tables();
    tables.retain(is_by_rows);
    tables
}

/// The tables as servers get to know them, with first rows of this seed.
pub(super) fn held_tables(setup: &Setup, seed: u64) -> Vec<(usize, HeldTable)> {
    let held = |table: &Table| {
        let variable = &setup.model.variables()[table.variable];
        let param = setup
            .state
            .trained
            .iter()
            .position(|&v| v == table.variable);
        let slots = setup.state.slots.iter();
        let own = slots.filter(|slot| param.is_some() && slot.param == param);
        let held = HeldTable {
            name: variable.name.clone(),
            rows: table.rows,
            width: table.width,
            initializer: variable.initializer,
            seed,
            decays: setup.optimizer.options().decays(&ParamSpec::of(variable)),
            fills: own.map(|slot| slot.fill).collect(),
        };
        (table.variable, held)
    };
    setup.tables.iter().map(held).collect()
}

/// How many rows a batch of this number of examples can name, of each table.
fn capacities(setup: &Setup, x: &[HostTensor], padded: usize) -> Vec<usize> {
    let capacity = |table: &Table| {
        let each = |input: &usize| x[*input].shape().dims[1..].iter().product::<usize>();
        let indices: usize = table.inputs.iter().map(each).sum();
        (indices * padded).clamp(1, table.rows)
    };
    setup.tables.iter().map(capacity).collect()
}

impl LookedUp {
    /// Numbers the rows of a table that its inputs name.
    fn name(&mut self, table: &Table, capacity: usize) -> Result<()> {
        let mut places: HashMap<u64, usize> = HashMap::new();
        let mut named = Vec::new();
        for &input in &table.inputs {
            let tensor = &self.x[input];
            let place = |index: f64| {
                // As the layer has it: what is no row is NaN.
                let row = index.trunc();
                if !(0.0..table.rows as f64).contains(&row) {
                    return table.rows as f64;
                }
                let next = named.len();
                let place = *places.entry(row as u64).or_insert_with(|| {
                    named.push(row as u64);
                    next
                });
                place as f64
            };
            let places: Vec<f64> = tensor.to_f64().into_iter().map(place).collect();
            let dims = tensor.shape().dims.clone();
            self.x[input] = HostTensor::new(dims, &places).convert(tensor.dtype());
        }
        if named.len() > capacity {
            let (rows, variable) = (named.len(), table.variable);
            return Err(Error::Bug(format!(
                "a batch names {rows} rows of variable {variable}, and its program has {capacity}"
            )));
        }
        self.named.push(named);
        Ok(())
    }
}
