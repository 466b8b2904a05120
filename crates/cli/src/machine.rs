//! What this machine offers: processors, memory, control-group limits, disks.

use std::fs;
use std::path::{Path, PathBuf};

/// A snapshot of the machine, as far as it can be read.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Machine {
    /// Model of the first processor.
    pub(crate) processor: String,
    /// Vector instructions that XLA makes use of.
    pub(crate) features: Vec<&'static str>,
    /// Processors this process may run on.
    pub(crate) cores: usize,
    /// Processors' worth of time that the control group grants.
    pub(crate) quota: Option<f64>,
    /// Bytes of memory of the machine, and those available now.
    pub(crate) memory: Option<(u64, u64)>,
    /// Most bytes the control group may use, and those it uses.
    pub(crate) memory_limit: Option<(u64, u64)>,
}

impl Machine {
    /// Reads `/proc` and `/sys` below `root`.
    pub(crate) fn read(root: &Path) -> Self {
        let text = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let groups = text("proc/self/cgroup");
        Self {
            processor: processor(&text("proc/cpuinfo")),
            features: features(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            quota: quota(root, &groups),
            memory: memory(&text("proc/meminfo")),
            memory_limit: memory_limit(root, &groups),
        }
    }
}

/// Bytes in a unit a person reads: `1.5 GiB`.
pub(crate) fn bytes(count: u64) -> String {
    let units = [
        (1u64 << 40, "TiB"),
        (1 << 30, "GiB"),
        (1 << 20, "MiB"),
        (1 << 10, "KiB"),
    ];
    match units.iter().find(|(size, _)| count >= *size) {
        Some((size, unit)) => format!("{:.1} {unit}", count as f64 / *size as f64),
        None => format!("{count} B"),
    }
}

/// Free bytes, for this user, of the disk that holds a path or the nearest folder above it that exists.
pub(crate) fn free_space(path: &Path) -> Option<u64> {
    let here = path.ancestors().find(|path| path.exists())?;
    let stats = rustix::fs::statvfs(here).ok()?;
    Some(stats.f_bavail.saturating_mul(stats.f_frsize))
}

/// Bytes of all files below a folder; links are not followed.
pub(crate) fn size_of(folder: &Path) -> u64 {
    let mut total = 0;
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(metadata) if metadata.is_dir() => folders.push(entry.path()),
                Ok(metadata) => total += metadata.len(),
                Err(_) => {}
            }
        }
    }
    total
}

fn processor(cpuinfo: &str) -> String {
    let model = cpuinfo.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == "model name").then(|| value.trim().to_owned())
    });
    model.unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

#[cfg(target_arch = "x86_64")]
fn features() -> Vec<&'static str> {
    let known = [
        ("avx2", is_x86_feature_detected!("avx2")),
        ("fma", is_x86_feature_detected!("fma")),
        ("avx512f", is_x86_feature_detected!("avx512f")),
        ("avx512bf16", is_x86_feature_detected!("avx512bf16")),
    ];
    known
        .into_iter()
        .filter(|(_, has)| *has)
        .map(|(name, _)| name)
        .collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn features() -> Vec<&'static str> {
    Vec::new()
}

fn memory(meminfo: &str) -> Option<(u64, u64)> {
    let kibibytes = |name: &str| -> Option<u64> {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse().ok()
    };
    Some((
        kibibytes("MemTotal:")?.checked_mul(1024)?,
        kibibytes("MemAvailable:")?.checked_mul(1024)?,
    ))
}

/// The tightest processor limit of the control groups this process is in, version 2 or 1.
fn quota(root: &Path, groups: &str) -> Option<f64> {
    let two = folders(root, groups, "").into_iter().filter_map(|folder| {
        let text = fs::read_to_string(folder.join("cpu.max")).ok()?;
        let (quota, period) = text.trim().split_once(' ')?;
        Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
    });
    let one = folders(root, groups, "cpu")
        .into_iter()
        .filter_map(|folder| {
            let quota = number(&folder.join("cpu.cfs_quota_us"))?;
            Some(quota / number(&folder.join("cpu.cfs_period_us"))?)
        });
    two.chain(one)
        .filter(|cores| cores.is_finite() && *cores > 0.0)
        .min_by(f64::total_cmp)
}

/// The tightest memory limit, with the use of that group.
fn memory_limit(root: &Path, groups: &str) -> Option<(u64, u64)> {
    let read = |folder: &Path, limit: &str, usage: &str| -> Option<(u64, u64)> {
        let limit = number(&folder.join(limit))? as u64;
        // Version 1 says "none" with a number near 2^63.
        (limit < 1 << 60).then(|| (limit, number(&folder.join(usage)).unwrap_or(0.0) as u64))
    };
    let two = folders(root, groups, "");
    let one = folders(root, groups, "memory");
    let two = two
        .iter()
        .filter_map(|folder| read(folder, "memory.max", "memory.current"));
    let one = one
        .iter()
        .filter_map(|folder| read(folder, "memory.limit_in_bytes", "memory.usage_in_bytes"));
    two.chain(one).min()
}

fn number(file: &Path) -> Option<f64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// The folder of this process's group for a controller (empty: version 2), and those above it.
fn folders(root: &Path, groups: &str, controller: &str) -> Vec<PathBuf> {
    let group = groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        controllers
            .split(',')
            .any(|name| name == controller)
            .then_some(path)
    });
    let Some(group) = group else {
        return Vec::new();
    };
    let mount = root.join("sys/fs/cgroup").join(controller);
    let own = mount.join(group.trim_start_matches('/'));
    // A path that leaves the mount ("/../..") belongs to another namespace.
    let own = if group.contains("..") {
        mount.clone()
    } else {
        own
    };
    own.ancestors()
        .take_while(|folder| folder.starts_with(&mount))
        .map(Path::to_path_buf)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(name: &str, files: &[(&str, &str)]) -> PathBuf {
        let root =
            std::env::temp_dir().join(format!("phalanx-machine-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn limits_of_both_versions_are_read_and_the_tightest_counts() {
        let two = tree(
            "two",
            &[
                ("proc/self/cgroup", "0::/job/step\n"),
                ("sys/fs/cgroup/job/cpu.max", "150000 100000\n"),
                ("sys/fs/cgroup/job/step/cpu.max", "max 100000\n"),
                ("sys/fs/cgroup/job/memory.max", "1073741824\n"),
                ("sys/fs/cgroup/job/memory.current", "1000\n"),
                ("sys/fs/cgroup/job/step/memory.max", "max\n"),
            ],
        );
        let one = tree(
            "one",
            &[
                ("proc/self/cgroup", "4:memory:/a\n3:cpu,cpuacct:/a\n"),
                ("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "50000\n"),
                ("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n"),
                ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"),
                ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
                (
                    "sys/fs/cgroup/memory/a/memory.limit_in_bytes",
                    "9223372036854771712\n",
                ),
            ],
        );
        let (first, second) = (Machine::read(&two), Machine::read(&one));
        assert_eq!(
            (first.quota, first.memory_limit),
            (Some(1.5), Some((1 << 30, 1000)))
        );
        assert_eq!((second.quota, second.memory_limit), (Some(0.5), None));
        fs::remove_dir_all(two).unwrap();
        fs::remove_dir_all(one).unwrap();
    }

    #[test]
    fn memory_and_processor_are_read() {
        assert_eq!(
            memory("MemTotal:   100 kB\nMemFree: 1 kB\nMemAvailable:  50 kB\n"),
            Some((102_400, 51_200))
        );
        assert_eq!(memory("MemTotal: many kB\n"), None);
        assert_eq!(
            processor("vendor_id : x\nmodel name\t: A CPU @ 2 GHz\n"),
            "A CPU @ 2 GHz"
        );
    }

    #[test]
    fn bytes_are_readable() {
        assert_eq!(bytes(1000), "1000 B");
        assert_eq!(bytes(3 << 29), "1.5 GiB");
    }
}
