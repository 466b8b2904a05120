//! What searches are asked for by variables of the environment.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::commit_number;

/// The whole number that a variable has, if it is set.
///
/// # Panics
/// It is set to something else.
#[must_use]
pub fn asked_number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{variable}: expected a whole number, got {text:?}")))
}

/// The seed of a search: `PHALANX_FUZZ_SEED`, else another one for each commit, so that a commit that passed passes again and
/// whoever looks into a failure has the same cases; outside a repository the clock's.
#[must_use]
pub fn search_seed() -> u64 {
    let of_commit = || commit_number().map(u64::from);
    let asked = asked_number("PHALANX_FUZZ_SEED").or_else(of_commit);
    asked.unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        now.unwrap_or_default().as_secs()
    })
}
