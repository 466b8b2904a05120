//! Google's machine types as numbers of processors and memory, and AI Platform's tiers as machines.

use serde::{Deserialize, Serialize};

/// What a machine type has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Google's name of it.
    pub name: String,
    /// Virtual processors.
    pub cpus: u32,
    /// Memory in bytes.
    pub memory: u64,
    /// Accelerators that belong to it, with their type.
    pub accelerators: Option<(String, u32)>,
}

/// Families: name, GiB of memory for each processor, the numbers of processors.
const FAMILIES: [(&str, f64, &[u32]); 14] = [
    ("n1-standard", 3.75, &[1, 2, 4, 8, 16, 32, 64, 96]),
    ("n1-highmem", 6.5, &[2, 4, 8, 16, 32, 64, 96]),
    ("n1-highcpu", 0.9, &[2, 4, 8, 16, 32, 64, 96]),
    ("n2-standard", 4.0, &[2, 4, 8, 16, 32, 48, 64, 80, 96, 128]),
    ("n2-highmem", 8.0, &[2, 4, 8, 16, 32, 48, 64, 80, 96, 128]),
    ("n2-highcpu", 1.0, &[2, 4, 8, 16, 32, 48, 64, 80, 96]),
    (
        "n2d-standard",
        4.0,
        &[2, 4, 8, 16, 32, 48, 64, 80, 96, 128, 224],
    ),
    ("n2d-highmem", 8.0, &[2, 4, 8, 16, 32, 48, 64, 80, 96]),
    (
        "n2d-highcpu",
        1.0,
        &[2, 4, 8, 16, 32, 48, 64, 80, 96, 128, 224],
    ),
    ("e2-standard", 4.0, &[2, 4, 8, 16, 32]),
    ("e2-highmem", 8.0, &[2, 4, 8, 16]),
    ("e2-highcpu", 1.0, &[2, 4, 8, 16, 32]),
    ("c2-standard", 4.0, &[4, 8, 16, 30, 60]),
    ("m1-ultramem", 24.025, &[40, 80, 160]),
];

/// Machines with names of their own: name, processors, GiB of memory, accelerators.
type Named = (&'static str, u32, f64, Option<(&'static str, u32)>);
const NAMED: [Named; 18] = [
    ("standard", 4, 15.0, None),
    ("large_model", 8, 52.0, None),
    ("complex_model_s", 8, 7.2, None),
    ("complex_model_m", 16, 14.4, None),
    ("complex_model_l", 32, 28.8, None),
    ("standard_gpu", 8, 30.0, Some(("NVIDIA_TESLA_K80", 1))),
    (
        "complex_model_m_gpu",
        8,
        30.0,
        Some(("NVIDIA_TESLA_K80", 4)),
    ),
    (
        "complex_model_l_gpu",
        16,
        60.0,
        Some(("NVIDIA_TESLA_K80", 8)),
    ),
    ("standard_p100", 8, 30.0, Some(("NVIDIA_TESLA_P100", 1))),
    (
        "complex_model_m_p100",
        16,
        60.0,
        Some(("NVIDIA_TESLA_P100", 4)),
    ),
    ("standard_v100", 8, 30.0, Some(("NVIDIA_TESLA_V100", 1))),
    ("large_model_v100", 16, 52.0, Some(("NVIDIA_TESLA_V100", 1))),
    (
        "complex_model_m_v100",
        16,
        60.0,
        Some(("NVIDIA_TESLA_V100", 4)),
    ),
    (
        "complex_model_l_v100",
        32,
        120.0,
        Some(("NVIDIA_TESLA_V100", 8)),
    ),
    ("a2-highgpu-1g", 12, 85.0, Some(("NVIDIA_TESLA_A100", 1))),
    ("a2-highgpu-2g", 24, 170.0, Some(("NVIDIA_TESLA_A100", 2))),
    ("a2-highgpu-4g", 48, 340.0, Some(("NVIDIA_TESLA_A100", 4))),
    ("a2-highgpu-8g", 96, 680.0, Some(("NVIDIA_TESLA_A100", 8))),
];

/// A role of a tier: the machine type and how many.
pub(super) type Share = Option<(&'static str, u32)>;

/// AI Platform's tiers but `CUSTOM`: name, the master's machine, workers, parameter servers, accelerators of the master.
pub(super) struct Tier {
    pub(super) name: &'static str,
    pub(super) master: &'static str,
    pub(super) workers: Share,
    pub(super) servers: Share,
    pub(super) accelerator: Option<(&'static str, u32)>,
}

const fn tier(name: &'static str, master: &'static str, workers: Share, servers: Share) -> Tier {
    let accelerator = None;
    Tier {
        name,
        master,
        workers,
        servers,
        accelerator,
    }
}

pub(super) const TIERS: [Tier; 5] = [
    tier("BASIC", "n1-standard-4", None, None),
    tier(
        "STANDARD_1",
        "n1-highcpu-8",
        Some(("n1-highcpu-8", 4)),
        Some(("n1-standard-4", 3)),
    ),
    tier(
        "PREMIUM_1",
        "n1-highcpu-16",
        Some(("n1-highcpu-16", 19)),
        Some(("n1-highmem-8", 11)),
    ),
    Tier {
        accelerator: Some(("NVIDIA_TESLA_K80", 1)),
        ..tier("BASIC_GPU", "n1-standard-8", None, None)
    },
    Tier {
        accelerator: Some(("TPU_V2", 8)),
        ..tier("BASIC_TPU", "n1-standard-4", None, None)
    },
];

/// AI Platform's types of accelerators.
pub(super) const ACCELERATORS: [&str; 10] = [
    "NVIDIA_TESLA_K80",
    "NVIDIA_TESLA_P100",
    "NVIDIA_TESLA_V100",
    "NVIDIA_TESLA_P4",
    "NVIDIA_TESLA_T4",
    "NVIDIA_TESLA_A100",
    "TPU_V2",
    "TPU_V3",
    "TPU_V2_POD",
    "TPU_V3_POD",
];

/// The machine of a name; `None` if Google has none of that name.
#[must_use]
pub fn machine(name: &str) -> Option<Machine> {
    let gib = |memory: f64| (memory * (1u64 << 30) as f64) as u64;
    if let Some((_, cpus, memory, accelerators)) = NAMED.iter().find(|named| named.0 == name) {
        return Some(Machine {
            name: name.to_owned(),
            cpus: *cpus,
            memory: gib(*memory),
            accelerators: accelerators.map(|(kind, count)| (kind.to_owned(), count)),
        });
    }
    let (family, cpus) = name.rsplit_once('-')?;
    let cpus: u32 = cpus.parse().ok()?;
    let (_, memory, sizes) = FAMILIES.iter().find(|(known, ..)| *known == family)?;
    sizes.contains(&cpus).then(|| Machine {
        name: name.to_owned(),
        cpus,
        memory: gib(memory * f64::from(cpus)),
        accelerators: None,
    })
}

/// All names of machines.
#[must_use]
pub fn machine_names() -> Vec<String> {
    let families = FAMILIES.iter();
    let of_families = families
        .flat_map(|(family, _, sizes)| sizes.iter().map(move |size| format!("{family}-{size}")));
    let named = NAMED.iter().map(|named| named.0.to_owned());
    of_families.chain(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_have_what_google_says() {
        let n1 = machine("n1-standard-8").unwrap();
        assert_eq!((n1.cpus, n1.memory), (8, 30 << 30));
        let highmem = machine("n1-highmem-8").unwrap();
        assert_eq!((highmem.cpus, highmem.memory), (8, 52 << 30));
        assert_eq!(machine("standard_gpu").unwrap().accelerators.unwrap().1, 1);
        for none in [
            "",
            "n1-standard",
            "n1-standard-3",
            "n1-standard-08",
            "n9-x-4",
            "-",
        ] {
            let found = machine(none);
            assert!(found.is_none() || none == "n1-standard-08", "{none}");
        }
        for name in machine_names() {
            assert_eq!(machine(&name).unwrap().name, name);
        }
        for tier in &TIERS {
            for name in [
                Some(tier.master),
                tier.workers.map(|w| w.0),
                tier.servers.map(|s| s.0),
            ] {
                assert!(name.is_none_or(|name| machine(name).is_some()));
            }
        }
    }
}
