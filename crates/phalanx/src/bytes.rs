//! Sizes in bytes and counts as text.

/// A size with three digits, such as `1.23 GiB`.
pub(crate) fn format_bytes(bytes: u64) -> String {
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

/// How many there are of something, such as `1 worker`.
pub(crate) fn counted(count: usize, noun: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_sizes() {
        assert_eq!(format_bytes(12), "12 B");
        assert_eq!(format_bytes(1536), "1.50 KiB");
        assert_eq!(format_bytes(64 << 30), "64.0 GiB");
        assert_eq!(format_bytes(u64::MAX), "16777216 TiB");
    }
}
