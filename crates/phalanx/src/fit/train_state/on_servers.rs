//! The state of a worker whose variables are on parameter servers: copies of their values.

use std::sync::Arc;

use phalanx_graph::HostTensor;
use phalanx_pjrt::Buffer;
use phalanx_ps::Partitioner;

use super::{TrainState, slices};
use crate::fit::setup::Setup;
use crate::fit::step_cache::StepExecutable;
use crate::fit::step_program::SentToServers;
use crate::fit::tables::held_tables;
use crate::optim::ParamSpec;
use crate::servers::{PulledValues, StateLayout};
use crate::{Error, Result};

impl TrainState {
    /// Takes the newest values from the parameter servers, where there are some.
    pub(in crate::fit) fn pull(&mut self) -> Result<()> {
        match self.placement.servers().cloned() {
            Some(servers) => self.take_values(&servers.values()?),
            None => Ok(()),
        }
    }

    /// Puts values of the servers on the devices, in the place of the ones before.
    pub(in crate::fit) fn take_values(&mut self, values: &PulledValues) -> Result<()> {
        if self
            .pulled
            .as_ref()
            .is_some_and(|pulled| values.is_same(pulled))
        {
            return Ok(());
        }
        let devices = self.placement.devices().iter();
        let put = |&device: &usize| {
            let variables = values.variables.iter();
            variables
                .map(|value| self.placement.engine().put(device, value))
                .collect()
        };
        *self.arrays = devices.map(put).collect::<Result<_>>()?;
        self.pulled = Some(values.clone());
        Ok(())
    }

    /// Puts the rows of a table that a batch names in the place of those before.
    pub(in crate::fit) fn put_rows(&mut self, variable: usize, rows: &HostTensor) -> Result<()> {
        let engine = self.placement.engine();
        for (arrays, &device) in self.arrays.iter_mut().zip(self.placement.devices()) {
            arrays[variable] = engine.put(device, rows)?;
        }
        Ok(())
    }

    /// Begins to compute what a batch sends to the servers, and its totals; `number` is the step's.
    pub(in crate::fit) fn begin_on_servers(
        &self,
        setup: &Setup,
        step: &StepExecutable,
        number: i64,
        batch: &[Vec<Buffer>],
    ) -> Result<BegunGradient> {
        let StepExecutable::Servers { compiled, sent } = step else {
            return Err(Error::Bug("a step that is not for servers".into()));
        };
        let number = self.placement.replicate(&HostTensor::scalar(number))?;
        let totals = self.zeros(setup)?;
        let each = self.arrays()?.iter().zip(&number).zip(&totals);
        let each = each.zip(&self.seed).zip(batch);
        let lists: Vec<Vec<&Buffer>> = each
            .map(|((((arrays, number), totals), seed), batch)| {
                let own = arrays.iter().chain([number, totals, seed]);
                own.chain(batch).collect()
            })
            .collect();
        let (mut outputs, _) = compiled.run(&slices(&lists))?;
        let totals = outputs.iter_mut().filter_map(Vec::pop).collect();
        // Gradients are reduced over the replicas of this process, so any of them has them.
        let arrays = std::mem::take(&mut outputs[0]);
        Ok(BegunGradient {
            totals,
            arrays,
            sent: Arc::clone(sent),
        })
    }

    /// Waits for what a batch sends to the servers, and its totals.
    pub(in crate::fit) fn end_on_servers(
        &self,
        setup: &Setup,
        begun: &BegunGradient,
    ) -> Result<(Vec<HostTensor>, Vec<f64>)> {
        let engine = self.placement.engine();
        let tensors = begun.arrays.iter().zip(&begun.sent.shapes);
        let tensors = tensors.map(|(array, shape)| engine.get(array, shape));
        Ok((
            tensors.collect::<Result<_>>()?,
            self.merge_replicas(setup, &begun.totals)?,
        ))
    }
}

/// What a batch sends to the servers, which the devices may still compute.
pub(in crate::fit) struct BegunGradient {
    /// Of each replica.
    totals: Vec<Buffer>,
    arrays: Vec<Buffer>,
    pub(in crate::fit) sent: Arc<SentToServers>,
}

/// Where the arrays of the state lie, of a partitioner and a number of servers.
pub(super) fn layout_on_servers(
    setup: &Setup,
    seed: u64,
) -> impl FnOnce(&Partitioner, usize) -> StateLayout + '_ {
    move |partitioner, servers| {
        let variables = setup.model.variables().iter();
        StateLayout::new(
            variables.map(ParamSpec::of).collect(),
            setup.state.slots.clone(),
            setup.state.trained.clone(),
            &setup.optimizer,
            (partitioner, servers),
            held_tables(setup, seed),
        )
    }
}
