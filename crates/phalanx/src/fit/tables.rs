//! Tables on parameter servers: of a batch the rows that it names, and the batch with their places among these.

use std::collections::HashMap;

use phalanx_graph::HostTensor;

use super::compiled_model::CompiledModel;
use super::setup::Setup;
use crate::nn::Table;
use crate::servers::Servers;
use crate::{Error, Result};

/// Inputs whose indices count the rows that were named.
pub(super) struct LookedUp {
    pub(super) x: Vec<HostTensor>,
    /// Of each table the rows, each once.
    pub(super) named: Vec<Vec<u64>>,
}

impl CompiledModel {
    /// Brings the rows of tables that inputs name to the devices; `padded` is the number of examples of the program.
    pub(super) fn look_up(
        &mut self,
        servers: &Servers,
        x: &[HostTensor],
        padded: usize,
    ) -> Result<LookedUp> {
        let capacities = capacities(&self.setup, x, padded);
        let mut looked_up = LookedUp {
            x: x.to_vec(),
            named: Vec::new(),
        };
        for (table, &capacity) in self.setup.tables.iter().zip(&capacities) {
            looked_up.name(table, capacity)?;
        }
        let rows = servers.rows(&looked_up.named)?;
        for (at, mut values) in rows.into_iter().enumerate() {
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
        Ok(Some(self.look_up(&servers, x, padded)?.x))
    }

    /// What programs of batches like this one are made of: tables of as many rows as it can name.
    pub(super) fn setup_for(&self, x: &[HostTensor], padded: usize) -> Setup {
        match self.setup.tables.is_empty() {
            true => self.setup.clone(),
            false => self.setup.for_rows(&capacities(&self.setup, x, padded)),
        }
    }
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
