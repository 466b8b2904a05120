//! Times as filters give them.

use std::time::UNIX_EPOCH;

/// Milliseconds since 1970 of a time: as RFC 3339 writes it (`2026-11-22T12:00:00+02:00`), without an offset in UTC, a date alone (its
/// beginning in UTC), or a period from now as ISO 8601 writes it, such as `-P1D`, a day ago.
///
/// # Errors
/// It is none of these.
pub(super) fn milliseconds(text: &str, now: u64) -> Result<i64, String> {
    let after = |period: i64| i64::try_from(now).ok()?.checked_add(period);
    let found = period(text).map_or_else(|| absolute(text), after);
    found.ok_or_else(|| {
        format!(
            "{text:?} is no time; expected one such as 2026-11-22, 2026-11-22T12:00:00Z, 2026-11-22T12:00:00+02:00, or -P1D for a day ago (-PT6H: six hours)"
        )
    })
}

fn absolute(text: &str) -> Option<i64> {
    let (date, time) = match text.split_at_checked(10)? {
        (date, "") => (date, "00:00:00"),
        (date, rest) => (date, rest.strip_prefix(['T', 't', ' '])?),
    };
    let (time, offset) = match time.find(['Z', 'z', '+', '-']) {
        Some(at) => time.split_at(at),
        None => (time, "Z"),
    };
    let seconds = if time.len() == 5 { ":00" } else { "" };
    let utc = humantime::parse_rfc3339(&format!("{date}T{time}{seconds}Z")).ok()?;
    let since = utc.duration_since(UNIX_EPOCH).ok()?.as_millis();
    Some(i64::try_from(since).ok()? - minutes(offset)? * 60_000)
}

/// The minutes of an offset from UTC: `Z`, `+02:00` or `-0330`.
fn minutes(offset: &str) -> Option<i64> {
    if ["Z", "z"].contains(&offset) {
        return Some(0);
    }
    let (sign, rest) = match offset.split_at_checked(1)? {
        ("+", rest) => (1, rest),
        ("-", rest) => (-1, rest),
        _ => return None,
    };
    let digits = rest.replacen(':', "", 1);
    if digits.len() != 4 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: i64 = digits.parse().ok()?;
    let (hours, minutes) = (number / 100, number % 100);
    (hours < 24 && minutes < 60).then_some(sign * (hours * 60 + minutes))
}

/// The milliseconds of `-P1DT6H` and its like: weeks, days, hours, minutes and seconds.
fn period(text: &str) -> Option<i64> {
    let (sign, text) = match text.strip_prefix('-') {
        Some(text) => (-1, text),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let mut rest = text.strip_prefix('P').filter(|rest| !rest.is_empty())?;
    let (mut all, mut of_day) = (0_i64, false);
    while !rest.is_empty() {
        if let Some(time) = rest.strip_prefix('T').filter(|time| !time.is_empty()) {
            (rest, of_day) = (time, true);
        }
        let end = rest.find(|c: char| !c.is_ascii_digit())?;
        let (number, unit) = rest.split_at(end);
        let seconds = match (unit.chars().next()?, of_day) {
            ('W', false) => 7 * 86_400,
            ('D', false) => 86_400,
            ('H', true) => 3600,
            ('M', true) => 60,
            ('S', true) => 1,
            _ => return None,
        };
        let number: u32 = number.parse().ok()?;
        all = i64::from(number)
            .checked_mul(seconds * 1000)?
            .checked_add(all)?;
        rest = &unit[1..];
    }
    Some(sign * all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_in_all_their_spellings() {
        let noon = milliseconds("2026-11-22T12:00:00Z", 0).unwrap();
        let hour = 3_600_000;
        for (text, expected) in [
            ("2026-11-22T12:00:00.250Z", noon + 250),
            ("2026-11-22T12:00:00.25", noon + 250),
            ("2026-11-22T12:00:00+02:00", noon - 2 * hour),
            ("2026-11-22 12:00:00-0330", noon + 3 * hour + hour / 2),
            ("2026-11-22 12:00", noon),
            ("2026-11-22", noon - 12 * hour),
            ("-P1D", 10 * 24 * hour - 24 * hour),
            ("-P1W2DT6H", 10 * 24 * hour - 9 * 24 * hour - 6 * hour),
            ("PT90M30S", 10 * 24 * hour + 90 * 60_000 + 30_000),
        ] {
            let now = 10 * 24 * hour as u64;
            assert_eq!(milliseconds(text, now), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_time_is_told() {
        for text in [
            "",
            "2026",
            "2026-13-01",
            "2026-11-22T25:00",
            "2026-11-22X10:00",
            "2026-11-22T10:00:00+2",
            "2026-11-22T10:00:00+02:0",
            "today",
            "P",
            "-P",
            "PT",
            "P1",
            "P1M",
            "P1H",
            "-PD",
            "P99999999999D",
            "P4294967295W4294967295W4294967295W4294967295W",
            "2026-11-2\u{e4}",
            "2026-11-22T10:00:00+99:00",
        ] {
            let error = milliseconds(text, 0).unwrap_err();
            assert!(error.contains("is no time"), "{text}: {error}");
        }
    }
}
