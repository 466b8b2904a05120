//! What NVIDIA's driver tells of the GPUs of a training, as tags for TensorBoard.

use phalanx_pjrt::{GpuUse, NvidiaGpus};

use crate::replicas::Placement;

const MIB: f64 = (1 << 20) as f64;

/// Which GPUs of NVIDIA this process computes on, by their numbers in it; none on other devices.
fn nvidia_gpus(placement: &Placement) -> Vec<usize> {
    let client = placement.engine().client();
    if client.platform() != "cuda" {
        return Vec::new();
    }
    let devices = placement.devices().iter();
    let numbers = devices.filter_map(|&device| {
        let device = client.devices().get(device)?;
        usize::try_from(device.local_hardware_id).ok()
    });
    let mut numbers: Vec<usize> = numbers.collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// A function that tells what the GPUs of this process do when it is called. It opens the driver's library with its first call; where
/// there are no such GPUs, or no driver, it tells nothing.
pub(super) fn gpu_tags(placement: &Placement) -> impl FnMut() -> Vec<(String, f64)> + use<> {
    let gpus = nvidia_gpus(placement);
    let mut opened = None;
    move || {
        if gpus.is_empty() {
            return Vec::new();
        }
        let open = || {
            let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
            NvidiaGpus::open(&gpus, visible.as_deref())
        };
        let opened = opened.get_or_insert_with(open).as_ref();
        let uses = opened.map(NvidiaGpus::sample).unwrap_or_default();
        uses.iter().flat_map(tags).collect()
    }
}

/// The tags of one GPU.
fn tags(told: &GpuUse) -> impl Iterator<Item = (String, f64)> + use<> {
    let memory = told.memory_used.map(|bytes| bytes as f64 / MIB);
    let values = [
        ("percent", told.busy_percent),
        ("memory_access_percent", told.memory_access_percent),
        ("memory_mib", memory),
        ("power_watts", told.power_watts),
    ];
    let gpu = told.gpu;
    let told = values.into_iter();
    told.filter_map(move |(name, value)| Some((format!("system/gpu_{gpu}_{name}"), value?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Engine;

    #[test]
    fn what_is_told_has_a_tag_and_the_rest_none() {
        let mut told = GpuUse::default();
        told.gpu = 3;
        assert_eq!(tags(&told).count(), 0);
        told.busy_percent = Some(71.0);
        told.memory_access_percent = Some(31.0);
        told.memory_used = Some(3 << 30);
        told.power_watts = Some(250.5);
        let expected = [
            ("system/gpu_3_percent", 71.0),
            ("system/gpu_3_memory_access_percent", 31.0),
            ("system/gpu_3_memory_mib", 3072.0),
            ("system/gpu_3_power_watts", 250.5),
        ];
        let expected = expected.map(|(tag, value)| (tag.to_owned(), value));
        assert_eq!(tags(&told).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_training_on_processors_asks_no_driver() {
        let engine = Engine::cpu().unwrap();
        assert_eq!(nvidia_gpus(&Placement::all(&engine)), [0_usize; 0]);
        assert_eq!(gpu_tags(&Placement::all(&engine))(), []);
    }
}
