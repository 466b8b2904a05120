//! Names of jobs, which become names of folders, processes and pods.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The name of a job: a letter, then letters, digits, `_` and `-`, 128 at most. AI Platform has no `-`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct JobName(String);

/// Why a text is no name of a job.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{shown:?} is no name of a job; begin with a letter and use letters, digits, _ and - only, 128 at most"
)]
pub struct NameError {
    shown: String,
}

impl JobName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name as Kubernetes and DNS take it: lower case, `-` for `_`, 40 characters and a checksum where that loses something.
    #[must_use]
    pub fn dns(&self) -> String {
        let lower = self.0.to_ascii_lowercase().replace('_', "-");
        if lower == self.0 && lower.len() <= 40 && !lower.ends_with('-') {
            return lower;
        }
        let start: String = lower.chars().take(40).collect();
        let sum = crc32c::crc32c(self.0.as_bytes());
        format!("{}-{sum:08x}", start.trim_end_matches('-'))
    }
}

impl FromStr for JobName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let mut characters = text.chars();
        let first = characters.next().is_some_and(|c| c.is_ascii_alphabetic());
        let rest = characters.all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
        if first && rest && text.len() <= 128 {
            return Ok(Self(text.to_owned()));
        }
        let shown = text.chars().take(40).collect();
        Err(NameError { shown })
    }
}

impl TryFrom<String> for JobName {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        text.parse()
    }
}

impl From<JobName> for String {
    fn from(name: JobName) -> Self {
        name.0
    }
}

impl fmt::Display for JobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_be_something_else_are_refused() {
        for name in ["a", "demo", "Rnn_2-b", &"x".repeat(128)] {
            assert_eq!(name.parse::<JobName>().unwrap().as_str(), name);
        }
        for name in [
            "",
            "1a",
            "_a",
            "-a",
            ".",
            "..",
            "a/b",
            "a b",
            "a\0",
            "a\n",
            "../x",
            "a;b",
            "é",
            "a.b",
            &"x".repeat(129),
        ] {
            assert!(name.parse::<JobName>().is_err(), "{name:?}");
        }
    }

    #[test]
    fn names_of_pods_differ_where_names_of_jobs_do() {
        let dns = |name: &str| name.parse::<JobName>().unwrap().dns();
        assert_eq!(dns("demo"), "demo");
        assert_ne!(dns("Demo"), "demo");
        assert_ne!(dns("a_b"), dns("a-b"));
        assert_ne!(dns(&"x".repeat(100)), dns(&"x".repeat(101)));
        assert!(dns(&"X_".repeat(60)).len() <= 49);
        assert!(!dns("a-").ends_with('-'));
    }
}
