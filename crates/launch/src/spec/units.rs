//! Sizes and durations as job files write them.

use std::time::Duration;

const UNITS: [(&str, u64); 9] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("kB", 1000),
    ("GB", 1_000_000_000),
];

/// The bytes that a text such as `512MiB`, `2Gi` or `4GB` names; `None` if it names none.
#[must_use]
pub fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    if let Ok(bytes) = text.parse() {
        return Some(bytes);
    }
    let mb = [("MB", 1_000_000), ("B", 1)];
    let units = UNITS.iter().chain(&mb);
    let (number, unit) = units
        .filter_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit)))
        .next()?;
    let number: f64 = number.trim().parse().ok()?;
    let bytes = number * unit as f64;
    (bytes.is_finite() && (0.0..1e18).contains(&bytes)).then_some(bytes as u64)
}

/// Bytes as people read them.
#[must_use]
pub fn bytes(bytes: u64) -> String {
    let units = [("TiB", 1u64 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20)];
    match units.iter().find(|(_, unit)| bytes >= *unit) {
        Some((name, unit)) => format!("{:.1} {name}", bytes as f64 / *unit as f64),
        None => format!("{bytes} bytes"),
    }
}

/// The duration of a text such as `3600s` or `1.5s`, as Google's interfaces write them.
pub(super) fn seconds(text: &str) -> Option<Duration> {
    let number: f64 = text.strip_suffix('s')?.parse().ok()?;
    Duration::try_from_secs_f64(number).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_durations_are_read_as_written() {
        assert_eq!(parse_bytes("512MiB"), Some(512 << 20));
        assert_eq!(parse_bytes("1.5Gi"), Some(3 << 29));
        assert_eq!(parse_bytes("2GB"), Some(2_000_000_000));
        assert_eq!(parse_bytes("7"), Some(7));
        for wrong in [
            "", "GiB", "-1GiB", "nanMiB", "infGiB", "1e300GiB", "1 parsec",
        ] {
            assert_eq!(parse_bytes(wrong), None, "{wrong}");
        }
        assert_eq!(seconds("3600s"), Some(Duration::from_secs(3600)));
        assert_eq!(seconds("0.5s"), Some(Duration::from_millis(500)));
        for wrong in ["", "s", "1", "1m", "-1s", "nans", "infs"] {
            assert_eq!(seconds(wrong), None, "{wrong}");
        }
    }
}
