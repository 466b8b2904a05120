//! Sizes of memory and files, as people write and read them.

use std::fmt;
use std::str::FromStr;

use crate::shown;

/// A number of bytes above 0: `8GiB`, `500 MB`, `1024`. `K`, `M`, `G` and `T` count by 1024, as `Ki` to `Ti` do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes(pub u64);

/// Names of units and their bytes; the first are those that are written.
const UNITS: [(&str, u64); 17] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("K", 1 << 10),
    ("M", 1 << 20),
    ("G", 1 << 30),
    ("T", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "expected a size above 0 such as 8GiB, 500MB or 1073741824, got {}",
                shown(text)
            )
        };
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.');
        let (number, unit) = text.split_at(end.unwrap_or(text.len()));
        let unit = match unit.trim() {
            "" => "B",
            unit => unit,
        };
        let known = UNITS
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(unit));
        let (_, factor) = known.ok_or_else(wrong)?;
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let bytes = number * *factor as f64;
        if !(1.0..9e18).contains(&bytes) {
            return Err(wrong());
        }
        Ok(Self(bytes as u64))
    }
}

/// Three digits and a unit: `1.23 GiB`.
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let written = UNITS[..5].iter().rev();
        // Not `1023.7 MiB`, which has four.
        let found = written
            .copied()
            .find(|(_, unit)| self.0 as f64 >= *unit as f64 * 0.9765);
        let (name, unit) = found.unwrap_or(UNITS[0]);
        let size = self.0 as f64 / unit as f64;
        let decimals = match size {
            _ if unit == 1 => 0,
            size if size < 9.995 => 2,
            size if size < 99.95 => 1,
            _ => 0,
        };
        f.pad(&format!("{size:.decimals$} {name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        let read = |text: &str| text.parse::<Bytes>().map(|bytes| bytes.0);
        assert_eq!(read("8GiB"), Ok(8 << 30));
        assert_eq!(read("1.5 kib"), Ok(1536));
        assert_eq!(read("500MB"), Ok(500_000_000));
        assert_eq!(read("1.5Gi"), Ok(3 << 29));
        assert_eq!(read("512M"), Ok(512 << 20));
        assert_eq!(read("2T"), Ok(2 << 40));
        assert_eq!(read("12"), Ok(12));
        for wrong in [
            "",
            "GiB",
            "8 lots",
            "-1",
            "0",
            "1..5G",
            "nan",
            "infGiB",
            "1e300GiB",
            "99999999999TiB",
            "8GiB8",
        ] {
            assert!(read(wrong).unwrap_err().contains("such as 8GiB"), "{wrong}");
        }
    }

    #[test]
    fn sizes_are_written() {
        assert_eq!(Bytes(12).to_string(), "12 B");
        assert_eq!(Bytes(1536).to_string(), "1.50 KiB");
        assert_eq!(Bytes((1 << 30) - 1).to_string(), "1.00 GiB");
        assert_eq!(Bytes(u64::MAX).to_string(), "16777216 TiB");
    }
}
