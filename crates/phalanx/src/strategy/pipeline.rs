//! One model in stages on several devices.

use super::Strategy;
use crate::engine::{Engine, EngineOptions};
use crate::replicas::{Placement, select_devices};
use crate::{Error, Result};

/// Trains one model whose layers are on several devices, one stage of consecutive layers on each, so that a model may be
/// larger than a device.
///
/// A batch is cut into micro-batches that flow through the stages one after another, forward and then backward
/// (Huang et al., "GPipe", 2019): while a stage computes on one, the stage before computes on the next. Gradients are
/// summed over the micro-batches, and one update follows. Results equal one device with the whole batch,
/// dropout included, whether the batch divides or not, but for batch normalization: it takes the statistics of each
/// micro-batch, and moves its moving statistics once for each.
///
/// Each stage keeps its variables and the optimizer's slots for them on its device. An optimizer that looks at all
/// gradients at once (`global_clipnorm`) lets each device have a copy of them for the update. With a dynamic loss
/// scale each says whether its own are finite, of all micro-batches, before any of them updates.
#[derive(Clone, Debug)]
pub struct PipelineStrategy {
    placement: Placement,
}

impl PipelineStrategy {
    /// A pipeline of `stages` stages, each on a device of this machine, with `micro_batches` micro-batches for each batch.
    /// The CPU is divided into a device for each stage.
    ///
    /// # Errors
    /// When one of the numbers is 0, or the devices do not start; see [`Engine::new`].
    pub fn new(stages: usize, micro_batches: usize) -> Result<Self> {
        let options = EngineOptions {
            cpu_devices: stages,
            ..EngineOptions::default()
        };
        Self::on(&Engine::new(&options)?, stages, micro_batches)
    }

    /// A pipeline on the first `stages` devices of an engine that runs already, with `micro_batches` micro-batches for each
    /// batch.
    ///
    /// # Errors
    /// When one of the numbers is 0, or there are fewer devices than stages.
    pub fn on(engine: &Engine, stages: usize, micro_batches: usize) -> Result<Self> {
        let there = engine.devices();
        if stages == 0 || micro_batches == 0 || stages > there {
            return Err(Error::user(format!(
                "a pipeline of {stages} stages with {micro_batches} micro-batches on {there} devices; expected 1 or more of each, and a device for each stage (`EngineOptions::cpu_devices` divides the CPU into more)"
            )));
        }
        let devices: Vec<usize> = (0..stages).collect();
        let placement = Placement::on(engine, &devices)?.in_stages(micro_batches);
        Ok(Self { placement })
    }

    /// On the devices of these names, stage by stage.
    ///
    /// # Errors
    /// When a device is not there, is named twice, or there is not one for each stage.
    pub fn devices<N: AsRef<str>>(self, names: impl IntoIterator<Item = N>) -> Result<Self> {
        let devices = select_devices(self.placement.engine(), names)?;
        let stages = self.placement.devices().len();
        if devices.len() != stages {
            return Err(Error::user(format!(
                "{} devices are named for {stages} stages; name one for each",
                devices.len()
            )));
        }
        let placement = self.placement.on_devices(&devices)?;
        Ok(Self { placement })
    }

    /// With these layers, by name, as the first of the second stage, of the third, and so on. By default stages are
    /// cut so that their variables take about the same memory.
    #[must_use]
    pub fn starting_at<N: Into<String>>(self, layers: impl IntoIterator<Item = N>) -> Self {
        let starts = layers.into_iter().map(Into::into).collect();
        Self {
            placement: self.placement.with_stage_starts(starts),
        }
    }
}

impl Strategy for PipelineStrategy {
    fn placement(&self) -> &Placement {
        &self.placement
    }
}
