//! Single arrays of the state, put on their devices and read from them.

use phalanx_graph::{HostTensor, Shape};
use phalanx_pjrt::Buffer;

use super::TrainState;
use crate::Result;
use crate::fit::pipeline::StageId;

impl TrainState {
    /// The value of an array, the same for all replicas; waits for the steps begun.
    pub(in crate::fit) fn get(&self, index: usize, shape: &Shape) -> Result<HostTensor> {
        if let Some(servers) = self.placement.servers() {
            return Ok(servers.state()?[index].clone());
        }
        let arrays = self.arrays()?.iter().map(|arrays| &arrays[index]);
        let arrays: Vec<&Buffer> = arrays.collect();
        let read = |arrays: &[&Buffer]| {
            let sharding = &self.shardings[index];
            self.placement.read_parameter(arrays, shape, sharding)
        };
        if !self.local_sums.contains(&index) {
            return read(&arrays);
        }
        let mut sum = vec![0.0; shape.len()];
        for array in &arrays {
            let part = read(&[array])?.to_f64();
            sum.iter_mut()
                .zip(part)
                .for_each(|(sum, part)| *sum += part);
        }
        Ok(HostTensor::new(shape.dims.clone(), &sum).convert(shape.dtype))
    }

    /// An array on the devices that hold it. Of a sum the first replica has all and the others nothing, until they add to it.
    pub(super) fn placed(&self, index: usize, value: &HostTensor) -> Result<Vec<Buffer>> {
        let (sharding, StageId(stage)) = (&self.shardings[index], self.stage_of_array[index]);
        let placement = &self.placement;
        if !self.local_sums.contains(&index) {
            return placement.place_parameter(value, sharding, stage);
        }
        let zeros = HostTensor::zeros(value.shape().clone());
        let replicas = placement.devices().iter().enumerate();
        let values = replicas.map(|(replica, &device)| match replica {
            0 => placement.engine().put(device, value),
            _ => placement.engine().put(device, &zeros),
        });
        values.collect()
    }
}
