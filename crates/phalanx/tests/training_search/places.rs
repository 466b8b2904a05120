//! Where a training runs.

use phalanx::prelude::*;
use phalanx::replicas::{CrossDeviceOps, Reduction};

use crate::draw::Draw;
use crate::four_devices::quick_engine;

fn names(devices: usize) -> Vec<String> {
    (0..devices).map(|device| format!("cpu:{device}")).collect()
}

/// One device.
pub(crate) fn one() -> Box<dyn Strategy> {
    Box::new(OneDeviceStrategy::on(quick_engine()))
}

/// Replicas in one process, with the words for them.
pub(crate) fn replicas(draw: &Draw) -> phalanx::Result<(Box<dyn Strategy>, String)> {
    let mut random = draw.random("place");
    let ops = random.of_list(&[
        CrossDeviceOps::AllReduce,
        CrossDeviceOps::HierarchicalCopyAllReduce,
        CrossDeviceOps::ReductionToOneDevice,
    ]);
    let pack = random.of_list(&[16, 64, 1 << 20]);
    let count = random.from(2, 4);
    let is_central = draw.has("central storage", 0.2);
    let shares = draw.has("unequal shares", 0.3);
    let words = format!(
        "{count} replicas, central {is_central}, shares {shares}, {ops:?}, packs of {pack}"
    );
    let reduction = Reduction::new().cross_device_ops(ops).bytes_per_pack(pack);
    if is_central {
        let strategy = CentralStorageStrategy::on(quick_engine()).parameter_device("cpu:3")?;
        let strategy = strategy.compute_devices(names(count))?;
        return Ok((Box::new(strategy.reduction(reduction)), words));
    }
    let strategy = MirroredStrategy::on(quick_engine()).devices(names(count))?;
    let strategy = strategy.reduction(reduction);
    if shares {
        let shares = &[3, 1, 2, 1][..count];
        return Ok((Box::new(strategy.shares(shares)?), words));
    }
    Ok((Box::new(strategy), words))
}

/// A mesh or a pipeline.
pub(crate) fn divided(draw: &Draw) -> phalanx::Result<(Box<dyn Strategy>, String)> {
    if draw.has("pipeline", 0.5) {
        let strategy = PipelineStrategy::on(quick_engine(), 2, 1)?;
        return Ok((Box::new(strategy), "a pipeline of 2".into()));
    }
    let mesh = Mesh::new([("data", 2), ("model", 2)]);
    let strategy = MeshStrategy::on(quick_engine(), &mesh)?;
    Ok((Box::new(strategy), "a mesh of 2 x 2".into()))
}
