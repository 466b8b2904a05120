//! Whether a program fits into memory: XLA:CPU does not check, and the system would end the process.

use std::fs;

use phalanx_pjrt::Client;

use super::Compiled;
use crate::bytes::format_bytes;
use crate::{Error, Result};

/// Refuses a program that needs more memory than its devices have free.
pub(super) fn check(client: &Client, compiled: &Compiled, devices: usize) -> Result<()> {
    let Ok(memory) = compiled.executable.memory_stats() else {
        return Ok(());
    };
    let bytes = |bytes: i64| u64::try_from(bytes).unwrap_or(0);
    let (total, free, what) = if client.platform() == "cpu" {
        // The arguments lie in the memory already.
        let more = bytes(memory.total().saturating_sub(memory.arguments));
        let total = more.saturating_mul(devices as u64);
        (total, host_free(), "the memory of this machine")
    } else {
        let total = bytes(memory.total());
        (total, device_limit(client), "the memory of the device")
    };
    match free {
        Some(free) if total > free => Err(Error::Device(format!(
            "out of memory: {} needs {}, {what} has {} free; use a smaller batch or model, or a device with more memory",
            compiled.name,
            format_bytes(total),
            format_bytes(free)
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
    let cached = fs::read_to_string("/sys/fs/cgroup/memory.stat");
    let cached = cached
        .ok()
        .and_then(|text| inactive_file(&text))
        .unwrap_or(0);
    let group = read("memory.max").zip(read("memory.current"));
    let left = group.map_or(u64::MAX, |(limit, used)| {
        limit.saturating_sub(used.saturating_sub(cached))
    });
    Some(available.min(left))
}

/// Bytes of file cache that the system gives up when memory is short.
fn inactive_file(stat: &str) -> Option<u64> {
    let line = stat
        .lines()
        .find_map(|line| line.strip_prefix("inactive_file "))?;
    line.trim().parse().ok()
}

fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes = line.trim().strip_suffix("kB")?.trim();
    Some(kilobytes.parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_is_available() {
        let text = "MemTotal:       100 kB\nMemAvailable:    64 kB\n";
        assert_eq!(available(text), Some(65536));
        assert_eq!(available("MemTotal: 1 kB\n"), None);
        assert_eq!(inactive_file("anon 1\ninactive_file 4096\n"), Some(4096));
    }
}
