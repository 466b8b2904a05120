//! What the workers of a job agree on, under keys whose first bytes stay: also with a process that comes later, or in the place of
//! another.

use std::time::{Duration, Instant};

use phalanx_ps::{Reply, Request};

use super::{ASK_WITHIN, Servers, unexpected};
use crate::{Error, Result};

/// The most characters of a value that an error shows.
const MOST_SHOWN: usize = 80;

impl Servers {
    /// Refuses to go on unless this worker has the same facts (names, each with what it has) as the first, and the first as the one before it in a job that goes on;
    /// `place` is where in the program they are compared.
    pub(crate) fn agree_on(&self, place: &str, facts: &[(String, String)]) -> Result<()> {
        let bug = |error: serde_json::Error| Error::Bug(format!("facts of a worker: {error}"));
        let own = serde_json::to_vec(facts).map_err(bug)?;
        let first = self.of_chief(place, &own)?;
        if first == own {
            return Ok(());
        }
        let first: Vec<(String, String)> = serde_json::from_slice(&first).map_err(bug)?;
        let (what, here, there) = first_difference(facts, &first);
        let (here, there) = excerpts(&here, &there);
        Err(Error::User(match self.is_chief() {
            false => format!(
                "{what} differs between workers: worker {} has {here}, the first worker {there}; start all with the same program, settings and data",
                self.worker()
            ),
            true => format!(
                "{what} is {here} in this training, and in the one whose state the parameter servers keep it is {there}; start with the same program, settings and data to go on, or remove the servers' folder to begin anew"
            ),
        }))
    }

    /// Refuses to go on unless a value is the one that another worker has brought first.
    pub(crate) fn compare(&self, what: &str, value: &str) -> Result<()> {
        let key = format!("compared/{what}");
        self.ask(&Request::Put { key: key.clone() }, value.as_bytes())?;
        if self.get(&key)? == value.as_bytes() {
            return Ok(());
        }
        Err(Error::User(format!(
            "{what} differs between worker {} and others; start all with the same program, settings and data",
            self.worker()
        )))
    }

    /// The bytes that the first worker puts under a key: this process's, where it is the first to come there.
    pub(crate) fn of_chief(&self, key: &str, own: &[u8]) -> Result<Vec<u8>> {
        let key = format!("chief/{key}");
        if self.is_chief() {
            self.ask(&Request::Put { key: key.clone() }, own)?;
        }
        self.get(&key)
    }

    /// How many updates the values had with which the job began its first training or scheduled its first function; `own` is how many they
    /// have, which the first worker is asked for.
    pub(crate) fn first_step(&self, own: impl FnOnce() -> Result<i64>) -> Result<i64> {
        if let Some(first) = self.first_step.get() {
            return Ok(*first);
        }
        let own = match self.is_chief() {
            true => own()?,
            false => 0,
        };
        let first = self.of_chief("first step", &own.to_le_bytes())?;
        let first = <[u8; 8]>::try_from(&first[..]);
        let first = first.map_err(|_| Error::Bug("the number of a first step".into()))?;
        Ok(*self.first_step.get_or_init(|| i64::from_le_bytes(first)))
    }

    /// The number that the random numbers of a piece of work follow where workers are apart: pieces of work are counted from the begin of
    /// the job, which may go on from a checkpoint.
    pub(crate) fn step_of(&self, work: u64) -> Result<i64> {
        let first = self.first_step(|| self.updates())?;
        Ok(first.saturating_add_unsigned(work))
    }

    /// Does something in the first worker, once in the life of the job; the others wait for it.
    pub(crate) fn once(&self, key: &str, action: impl FnOnce() -> Result<()>) -> Result<()> {
        let key = format!("once/{key}");
        if !self.is_chief() {
            return self.get(&key).map(drop);
        }
        if self.try_get(&key, Duration::ZERO)?.is_some() {
            return Ok(());
        }
        action()?;
        self.ask(&Request::Put { key }, &[]).map(drop)
    }

    fn get(&self, key: &str) -> Result<Vec<u8>> {
        let start = Instant::now();
        loop {
            if let Some(bytes) = self.try_get(key, ASK_WITHIN)? {
                return Ok(bytes);
            }
            let (_, place) = key.split_once('/').unwrap_or_default();
            self.check_patience(start, &[0], &format!("it has not come to `{place}`"))?;
        }
    }

    fn try_get(&self, key: &str, within: Duration) -> Result<Option<Vec<u8>>> {
        let key = key.to_owned();
        let within_ms = within.as_millis() as u64;
        match self.ask(&Request::Get { key, within_ms }, &[])? {
            (Reply::Done, bytes) => Ok(Some(bytes)),
            (Reply::NotYet { .. }, _) => Ok(None),
            (other, _) => Err(unexpected(&other)),
        }
    }
}

/// The first fact that differs: its name, and both values.
fn first_difference(
    ours: &[(String, String)],
    theirs: &[(String, String)],
) -> (String, String, String) {
    let value = |facts: &[(String, String)], name: &str| {
        let found = facts.iter().find(|(other, _)| other == name);
        found.map_or("none".to_owned(), |(_, value)| value.clone())
    };
    let names = ours.iter().chain(theirs).map(|(name, _)| name);
    let both = names.map(|name| (name.clone(), value(ours, name), value(theirs, name)));
    let mut differing = both.filter(|(_, here, there)| here != there);
    differing.next().unwrap_or_default()
}

/// Two values, shortened to what is around their first difference.
fn excerpts(here: &str, there: &str) -> (String, String) {
    let pairs = here.chars().zip(there.chars());
    let same = pairs.take_while(|(here, there)| here == there).count();
    let from = same.saturating_sub(MOST_SHOWN / 2);
    let shown = |value: &str| {
        if value.chars().count() <= MOST_SHOWN {
            return value.to_owned();
        }
        let part: String = value.chars().skip(from).take(MOST_SHOWN).collect();
        format!("`..{part}..`")
    };
    (shown(here), shown(there))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_named_and_long_values_are_shortened() {
        let facts = |layer: &str, seed: &str| -> Vec<(String, String)> {
            let named = |name: &str, value: &str| (name.to_owned(), value.to_owned());
            vec![named("layer 0", layer), named("the seed", seed)]
        };
        let (what, here, there) = first_difference(&facts("a", "1"), &facts("a", "2"));
        assert_eq!([&what[..], &here, &there], ["the seed", "1", "2"]);
        let (what, here, there) = first_difference(&facts("a", "1"), &[]);
        assert_eq!([&what[..], &here, &there], ["layer 0", "a", "none"]);
        let long = "x".repeat(200);
        let (here, there) = excerpts(&format!("{long}1{long}"), &format!("{long}2{long}"));
        assert!(here.len() < 100 && here.contains("xx1xx"), "{here}");
        assert!(there.contains("xx2xx"), "{there}");
    }
}
