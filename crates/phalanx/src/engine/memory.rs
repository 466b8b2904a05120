//! Whether a program fits: XLA on CPU finds out too late, when the system ends the process.

use std::fs;

use phalanx_pjrt::Client;

use super::Compiled;
use crate::{Error, Result};

/// Refuses a program that needs more memory than its devices have free.
pub(super) fn check(client: &Client, compiled: &Compiled, replicas: usize) -> Result<()> {
    let Some(needed) = compiled.memory() else {
        return Ok(());
    };
    let (total, free, what) = if client.platform() == "cpu" {
        let total = needed.saturating_mul(replicas as u64);
        (total, host_free(), "the memory of this machine")
    } else {
        (needed, device_limit(client), "the memory of the device")
    };
    match free {
        Some(free) if total > free => Err(Error::Device(format!(
            "out of memory: {} needs {}, {what} has {} free; use a smaller batch or model, or a device with more memory",
            compiled.name,
            human(total),
            human(free)
        ))),
        _ => Ok(()),
    }
}

fn device_limit(client: &Client) -> Option<u64> {
    let stats = client.memory_stats(0).ok()?;
    u64::try_from(stats.limit?).ok()
}

/// Memory that this process may still take: what the system has, or what its control group leaves.
fn host_free() -> Option<u64> {
    let available = available(&fs::read_to_string("/proc/meminfo").ok()?)?;
    let read = |name: &str| {
        let text = fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok()?;
        text.trim().parse::<u64>().ok()
    };
    let group = read("memory.max").zip(read("memory.current"));
    let left = group.map_or(u64::MAX, |(limit, used)| limit.saturating_sub(used));
    Some(available.min(left))
}

fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes = line.trim().strip_suffix("kB")?.trim();
    Some(kilobytes.parse::<u64>().ok()? * 1024)
}

/// A size with three digits: `1.23 GiB`.
pub(crate) fn human(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut size = bytes as f64;
    let mut unit = 0;
    while size >= 1000.0 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{bytes} B"),
        _ => format!("{size:.*} {}", decimals(size), UNITS[unit]),
    }
}

const fn decimals(size: f64) -> usize {
    if size < 10.0 {
        2
    } else if size < 100.0 {
        1
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_is_available() {
        let text = "MemTotal:       100 kB\nMemAvailable:    64 kB\n";
        assert_eq!(available(text), Some(65536));
        assert_eq!(available("MemTotal: 1 kB\n"), None);
    }

    #[test]
    fn writes_sizes() {
        assert_eq!(human(12), "12 B");
        assert_eq!(human(1536), "1.50 KiB");
        assert_eq!(human(64 << 30), "64.0 GiB");
        assert_eq!(human(u64::MAX), "16777216 TiB");
    }
}
