//! Values of the replicas of all processes, where several train together.

use phalanx_graph::{AlignedBytes, DType, HostTensor, Shape};

use super::handle::StrategyHandle;
use crate::replicas::World;
use crate::{Error, Result};

/// The values of the replicas of all processes, in the order of replicas. All processes call this with their own.
pub(super) fn of_all_replicas(
    strategy: &StrategyHandle,
    own: Vec<HostTensor>,
) -> Result<Vec<HostTensor>> {
    let Some(world) = strategy.world() else {
        return Ok(own);
    };
    let bytes: Vec<u8> = own.iter().flat_map(encoded).collect();
    let mut all = Vec::with_capacity(strategy.replicas());
    for bytes in world.all_gather(&bytes)? {
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let value = decoded(&mut rest);
            all.push(value.ok_or_else(|| Error::Bug("a value of another process is cut".into()))?);
        }
    }
    Ok(all)
}

/// The first process' value, for all.
pub(super) fn of_first_worker(world: &World, value: &HostTensor) -> Result<HostTensor> {
    let bytes = if world.is_chief() {
        encoded(value)
    } else {
        Vec::new()
    };
    let bytes = world.broadcast_from(0, bytes)?;
    let first = decoded(&mut &bytes[..]);
    first.ok_or_else(|| Error::Bug("a value of the first process is cut".into()))
}

/// Element type, rank, dims and elements.
fn encoded(value: &HostTensor) -> Vec<u8> {
    let dtype = DType::ALL.iter().position(|dtype| *dtype == value.dtype());
    let mut bytes = vec![
        dtype.unwrap_or(DType::ALL.len()) as u8,
        value.dims().len() as u8,
    ];
    bytes.extend(
        value
            .dims()
            .iter()
            .flat_map(|&dim| (dim as u64).to_le_bytes()),
    );
    bytes.extend_from_slice(value.bytes());
    bytes
}

/// The next value, which is taken from the front of the bytes.
fn decoded(bytes: &mut &[u8]) -> Option<HostTensor> {
    let [dtype, rank] = *bytes.split_off(..2)? else {
        return None;
    };
    let dtype = *DType::ALL.get(usize::from(dtype))?;
    let mut dims = Vec::with_capacity(usize::from(rank));
    for _ in 0..rank {
        let dim = bytes.split_off(..8)?.try_into().ok()?;
        dims.push(usize::try_from(u64::from_le_bytes(dim)).ok()?);
    }
    let shape = Shape::new(dtype, dims);
    let elements = bytes.split_off(..shape.byte_len())?;
    let mut aligned = AlignedBytes::zeroed(elements.len());
    aligned.as_mut_slice().copy_from_slice(elements);
    Some(HostTensor::from_aligned(shape, aligned))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_arrive_as_they_were() {
        let values = [
            HostTensor::scalar(7i64),
            HostTensor::new([2, 3], &[1.0f32, -0.0, f32::NAN, 4.0, 5.0, 6.0]),
            HostTensor::new([2], &[true, false]),
            HostTensor::zeros(Shape::new(DType::Bf16, [0, 4])),
        ];
        let bytes: Vec<u8> = values.iter().flat_map(encoded).collect();
        let mut rest = &bytes[..];
        for value in &values {
            let found = decoded(&mut rest).unwrap();
            assert_eq!(found.shape(), value.shape());
            assert_eq!(found.bytes(), value.bytes());
        }
        assert!(rest.is_empty());
        let cut = &bytes[..bytes.len() / 2];
        let mut rest = cut;
        while let Some(value) = decoded(&mut rest) {
            assert!(value.bytes().len() < cut.len());
        }
    }
}
