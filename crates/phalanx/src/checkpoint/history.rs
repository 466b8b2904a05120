//! `history.jsonl`: the results of the epochs done.

use serde::{Deserialize, Serialize};

use super::manifest::MOST;
use crate::storage::problem;
use crate::{Error, Result};

/// The results of an epoch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EpochRecord {
    pub(crate) epoch: usize,
    pub(crate) steps: usize,
    pub(crate) seconds: JsonFloat,
    /// Examples left out because they are corrupt.
    pub(crate) skipped: u64,
    pub(crate) validation_skipped: u64,
    /// Bytes behind a corrupt place, in which nothing could be found.
    pub(crate) lost_bytes: u64,
    /// The share of the time that training waited for its data, and the slowest stage of those.
    pub(crate) waited: JsonFloat,
    pub(crate) slowest: String,
    pub(crate) logs: Vec<(String, JsonFloat)>,
}

/// A number that JSON may not have a way to write; written to the last bit.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(from = "Written", into = "Written")]
pub(crate) struct JsonFloat(pub(crate) f64);

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    Finite(f64),
    Other(Special),
}

#[derive(Serialize, Deserialize)]
enum Special {
    #[serde(rename = "NaN")]
    NotANumber,
    #[serde(rename = "inf")]
    Infinity,
    #[serde(rename = "-inf")]
    NegativeInfinity,
}

impl From<JsonFloat> for Written {
    fn from(JsonFloat(value): JsonFloat) -> Self {
        match value {
            _ if value.is_nan() => Self::Other(Special::NotANumber),
            f64::INFINITY => Self::Other(Special::Infinity),
            f64::NEG_INFINITY => Self::Other(Special::NegativeInfinity),
            _ => Self::Finite(value),
        }
    }
}

impl From<Written> for JsonFloat {
    fn from(written: Written) -> Self {
        Self(match written {
            Written::Finite(value) => value,
            Written::Other(Special::NotANumber) => f64::NAN,
            Written::Other(Special::Infinity) => f64::INFINITY,
            Written::Other(Special::NegativeInfinity) => f64::NEG_INFINITY,
        })
    }
}

/// By bits, so that what is not a number is like itself.
impl PartialEq for JsonFloat {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

/// The file.
pub(super) fn write(history: &[EpochRecord]) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    for record in history {
        let line = serde_json::to_vec(record);
        text.extend(line.map_err(|error| Error::Bug(format!("history: {error}")))?);
        text.push(b'\n');
    }
    Ok(text)
}

/// The epochs of the file; `name` is the file in errors.
pub(super) fn read(name: &str, text: &[u8]) -> Result<Vec<EpochRecord>> {
    let lines = text.split_inclusive(|&byte| byte == b'\n').enumerate();
    lines
        .map(|(index, line)| {
            let wrong = |error: &str| {
                let place = format!("line {}", index + 1);
                let again = super::manifest::DOCUMENT.again;
                let message = format!("expected the results of an epoch: {error}; {again}");
                problem(name, &place, message)
            };
            let record: EpochRecord =
                serde_json::from_slice(line).map_err(|error| wrong(&error.to_string()))?;
            match record.epoch as u64 > MOST {
                true => Err(wrong("the number of the epoch is too large")),
                false => Ok(record),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_compared_by_bits() {
        let same = |a, b| JsonFloat(a) == JsonFloat(b);
        assert!(same(f64::NAN, f64::NAN) && same(0.1, 0.1));
        for (a, b) in [(0.1, 0.2), (0.0, -0.0), (f64::NAN, f64::INFINITY)] {
            assert!(!same(a, b), "{a} {b}");
        }
    }

    #[test]
    fn every_number_comes_back() {
        let values = [
            0.1 + 0.2,
            -0.0,
            1e300,
            5e-324,
            f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
        ];
        let record = EpochRecord {
            epoch: 3,
            steps: 10,
            seconds: JsonFloat(0.25),
            skipped: u64::MAX,
            validation_skipped: 1,
            lost_bytes: 2,
            waited: JsonFloat(f64::NAN),
            slowest: "map".to_owned(),
            logs: values
                .map(|value| (format!("l{value}"), JsonFloat(value)))
                .to_vec(),
        };
        let records = [record.clone(), record];
        let text = write(&records).unwrap();
        assert_eq!(read("history.jsonl", &text).unwrap(), records);
        let late = EpochRecord {
            epoch: usize::MAX,
            ..records[0].clone()
        };
        assert!(read("h", &write(&[late]).unwrap()).is_err());
        let error = read("h", &text[..text.len() - 9]).unwrap_err().to_string();
        assert!(
            error.starts_with("h: line 2: expected the results of an epoch: "),
            "{error}"
        );
    }
}
