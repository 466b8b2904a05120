//! Durations as job files write them.

use std::time::Duration;

/// The duration of a text such as `3600s` or `1.5s`, as Google's interfaces write them.
pub(super) fn seconds(text: &str) -> Option<Duration> {
    let number: f64 = text.strip_suffix('s')?.parse().ok()?;
    Duration::try_from_secs_f64(number).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_written() {
        assert_eq!(seconds("3600s"), Some(Duration::from_secs(3600)));
        assert_eq!(seconds("0.5s"), Some(Duration::from_millis(500)));
        for wrong in ["", "s", "1", "1m", "-1s", "nans", "infs"] {
            assert_eq!(seconds(wrong), None, "{wrong}");
        }
    }
}
