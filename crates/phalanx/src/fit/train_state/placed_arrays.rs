//! Single arrays of the state, put on their devices and read from them.

use phalanx_graph::{HostTensor, Shape};
use phalanx_pjrt::Buffer;

use super::TrainState;
use crate::Result;
use crate::fit::pipeline::StageId;

impl TrainState {
    /// The value of an array, the same for all replicas; waits for the steps begun. Within a window of accumulated batches all processes
    /// must ask for its sums together.
    pub(in crate::fit) fn get(&self, index: usize, shape: &Shape) -> Result<HostTensor> {
        if let Some(servers) = self.placement.servers() {
            return servers.array(index);
        }
        if self.window.positions.contains(&index) {
            return self.whole_sum(index, shape);
        }
        let arrays = self.arrays()?.iter().map(|arrays| &arrays[index]);
        let arrays: Vec<&Buffer> = arrays.collect();
        self.read(&arrays, index, shape)
    }

    /// What devices hold of an array.
    pub(in crate::fit) fn read(
        &self,
        arrays: &[&Buffer],
        index: usize,
        shape: &Shape,
    ) -> Result<HostTensor> {
        let sharding = &self.shardings[index];
        self.placement.read_parameter(arrays, shape, sharding)
    }

    /// An array on the devices that hold it. Of a sum the first replica of all processes has all and the others nothing, until they add
    /// to it.
    pub(super) fn placed(&self, index: usize, value: &HostTensor) -> Result<Vec<Buffer>> {
        let (sharding, StageId(stage)) = (&self.shardings[index], self.stage_of_array[index]);
        let placement = &self.placement;
        if !self.window.positions.contains(&index) {
            return match index < self.variables {
                true => placement.place_parameter(value, sharding, stage),
                false => placement.place_slot(value, sharding, stage),
            };
        }
        let is_first = placement.world().is_none_or(|world| world.is_chief());
        let zeros = HostTensor::zeros(value.shape().clone());
        let replicas = placement.devices().iter().enumerate();
        let values = replicas.map(|(replica, &device)| match is_first && replica == 0 {
            true => placement.engine().put(device, value),
            false => placement.engine().put(device, &zeros),
        });
        values.collect()
    }
}
