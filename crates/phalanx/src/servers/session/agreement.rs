//! What the workers of a job agree on, under keys whose first bytes stay.

use std::time::{Duration, Instant};

use phalanx_ps::{Reply, Request};

use super::{ASK_WITHIN, Servers, unexpected};
use crate::{Error, Result};

impl Servers {
    /// Refuses to go on unless every worker has the same value as the first.
    pub(super) fn agree(&self, what: &str, value: &str) -> Result<()> {
        let key = format!("equal/{what}");
        if self.is_chief() {
            let request = Request::Put { key: key.clone() };
            self.ask(&request, value.as_bytes())?;
        }
        let first = self.get(&key)?;
        if first == value.as_bytes() {
            return Ok(());
        }
        Err(Error::Cluster(format!(
            "{what} of worker {} differs from the first worker's; start all with the same program and settings",
            self.worker()
        )))
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
            self.check_patience(start, &[0], &format!("it has not come to `{key}`"))?;
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
