//! The machine in a line, for results that are kept.

use std::fs::read_to_string;

/// Processor, how many of them, memory, the load of the last minute, and the system.
pub(super) fn description() -> String {
    let field = |path: &str, key: &str| {
        let text = read_to_string(path).ok()?;
        let line = text.lines().find(|line| line.starts_with(key))?.to_owned();
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let processor =
        field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown processor".into());
    let count = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let memory = field("/proc/meminfo", "MemTotal")
        .and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
    let memory = memory.map_or(String::new(), |kib| {
        format!(", {} GiB of memory", (kib + (1 << 19)) >> 20)
    });
    let load = load().map_or(String::new(), |load| format!(", load {load}"));
    format!(
        "{count} of {processor}{memory}{load}, {} {}; every framework has two processors",
        std::env::consts::OS,
        std::env::consts::ARCH
    )
}

/// The load of the last minute.
pub(super) fn load() -> Option<String> {
    let text = read_to_string("/proc/loadavg").ok()?;
    Some(text.split(' ').next()?.to_owned())
}
