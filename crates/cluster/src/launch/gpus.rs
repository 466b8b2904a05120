//! The NVIDIA GPUs of this machine, by the names that CUDA_VISIBLE_DEVICES takes.

use std::fs;

/// The variable that says which GPUs a program sees.
pub const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// The number of GPUs that NVIDIA's driver has on this machine; 0 without a driver.
#[must_use]
pub fn driver_gpus() -> usize {
    let folders = fs::read_dir("/proc/driver/nvidia/gpus");
    folders.map_or(0, Iterator::count)
}

/// The GPUs that a value of CUDA_VISIBLE_DEVICES names, each once. As CUDA has it, what names no GPU, such as `-1`, ends the list. Without a value
/// the numbers of all that NVIDIA's driver has.
#[must_use]
pub fn visible_gpus(variable: Option<&str>) -> Vec<String> {
    let Some(list) = variable else {
        return (0..driver_gpus()).map(|gpu| gpu.to_string()).collect();
    };
    let names = list.split(',').map(str::trim);
    let mut gpus: Vec<String> = Vec::new();
    for name in names
        .filter(|name| !name.is_empty())
        .take_while(|name| is_gpu(name))
    {
        if gpus.iter().all(|gpu| gpu != name) {
            gpus.push(name.to_owned());
        }
    }
    gpus
}

/// Whether CUDA_VISIBLE_DEVICES may name a GPU so: by its number or its UUID.
#[must_use]
pub fn is_gpu(name: &str) -> bool {
    let is_number = name.parse::<u32>().is_ok_and(|n| n.to_string() == name);
    is_number || name.starts_with("GPU-") || name.starts_with("MIG-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_those_of_the_variable() {
        for (list, gpus) in [
            ("2, 5,GPU-8f", &["2", "5", "GPU-8f"][..]),
            ("1,0,1,", &["1", "0"]),
            ("3,-1,2", &["3"]),
            ("MIG-1/2,void,2", &["MIG-1/2"]),
            ("all", &[]),
            ("0-3", &[]),
            ("-1", &[]),
            ("", &[]),
        ] {
            assert_eq!(visible_gpus(Some(list)), gpus, "{list}");
        }
    }
}
