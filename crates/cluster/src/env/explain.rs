//! What was read, what it means, and what follows.

use std::fmt;

use super::variables::{Reader, Variable, Variables, may_have_password};
use super::{EnvError, decide};
use crate::Membership;

/// How a process found its place in the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// The variables that were looked at and are set, in order of precedence.
    pub variables: Vec<Variable>,
    /// What was passed over, and why.
    pub notes: Vec<String>,
    /// What follows; `None` without a cluster: one worker.
    pub outcome: Result<Option<Membership>, EnvError>,
}

/// Reads the variables and says what follows from them and how.
#[must_use]
pub fn explain(variables: &Variables) -> Explanation {
    let mut reader = Reader::new(variables);
    let outcome = decide(&mut reader);
    Explanation {
        outcome,
        variables: reader.read,
        notes: reader.notes,
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut source = None;
        for variable in &self.variables {
            if source != Some(variable.source) {
                source = Some(variable.source);
                match variable.source {
                    Some(source) => writeln!(f, "{source}:")?,
                    None => writeln!(f, "phalanx:")?,
                }
            }
            match may_have_password(&variable.value) {
                true => writeln!(f, "  {} is set", variable.name)?,
                false => writeln!(f, "  {}={}", variable.name, variable.value)?,
            }
            writeln!(f, "      {}", variable.meaning)?;
        }
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        match &self.outcome {
            Ok(Some(membership)) => write!(f, "{}", Told(membership)),
            Ok(None) => write!(
                f,
                "this process is the only worker: no variable speaks of a cluster"
            ),
            Err(error) => write!(f, "contradictory or incomplete: {error}"),
        }
    }
}

/// A membership in full.
struct Told<'a>(&'a Membership);

impl fmt::Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let membership = self.0;
        write!(f, "this process is {membership}")?;
        if membership.is_chief() {
            write!(f, "; it is the chief, which saves and logs")?;
        }
        if let Some(local) = membership.local {
            write!(
                f,
                "\n  on this machine: process {} of {}",
                local.rank, local.size
            )?;
        }
        if let Some(addresses) = &membership.addresses {
            let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
            write!(f, "\n  workers: {}", addresses.join(", "))?;
        }
        match membership.job.as_str() {
            "" => Ok(()),
            job => write!(f, "\n  job: {job}"),
        }
    }
}
