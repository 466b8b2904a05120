//! The NVIDIA GPUs of this machine, by the names that CUDA_VISIBLE_DEVICES takes.

use std::fs;

/// The variable that says which GPUs a program sees.
pub const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// The GPUs that a value of CUDA_VISIBLE_DEVICES names, each once and none after `-1`; without a value the numbers of all that NVIDIA's
/// driver has.
#[must_use]
pub fn visible_gpus(variable: Option<&str>) -> Vec<String> {
    let Some(list) = variable else {
        let folders = fs::read_dir("/proc/driver/nvidia/gpus");
        let count = folders.map_or(0, Iterator::count);
        return (0..count).map(|gpu| gpu.to_string()).collect();
    };
    let names = list.split(',').map(str::trim);
    let mut gpus: Vec<String> = Vec::new();
    for name in names.take_while(|name| *name != "-1") {
        if !name.is_empty() && gpus.iter().all(|gpu| gpu != name) {
            gpus.push(name.to_owned());
        }
    }
    gpus
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
            ("-1", &[]),
            ("", &[]),
        ] {
            assert_eq!(visible_gpus(Some(list)), gpus, "{list}");
        }
    }
}
