//! Variables as a value, and a reader that remembers what it looked at.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::{EnvError, Found, Read, Said};
use crate::Source;

/// The variables of a process, as a value. An empty one counts as not set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Variables(BTreeMap<String, String>);

/// Variables that this process was told otherwise.
static DEFINED: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());

impl Variables {
    /// The variables of this process; those that are not Unicode are left out, values of [`define`](Self::define) count before the environment's.
    #[must_use]
    pub fn of_process() -> Self {
        let all = std::env::vars_os();
        let all = all.filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        let defined = DEFINED.lock().unwrap_or_else(PoisonError::into_inner);
        all.chain(defined.clone()).collect()
    }

    /// Has [`of_process`](Self::of_process) give a variable this value from now on, whatever the environment says: for what a command
    /// line says instead.
    pub fn define(name: impl Into<String>, value: impl Into<String>) {
        let mut defined = DEFINED.lock().unwrap_or_else(PoisonError::into_inner);
        defined.insert(name.into(), value.into());
    }

    /// The value of a variable; `None` if it is not set or empty.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        let value = self.0.get(name).map(String::as_str);
        value.filter(|value| !value.is_empty())
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Variables {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Self {
        let pairs = pairs.into_iter();
        Self(
            pairs
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
        )
    }
}

/// A variable that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// What it holds.
    pub value: String,
    /// What that means.
    pub meaning: &'static str,
    /// Whose it is; `None` for our own.
    pub source: Option<Source>,
}

/// Reads variables and remembers which.
pub(super) struct Reader<'a> {
    variables: &'a Variables,
    source: Option<Source>,
    /// What was found, in the order of reading, each variable once.
    pub(super) read: Vec<Variable>,
    /// What the reader should know besides.
    pub(super) notes: Vec<String>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(variables: &'a Variables) -> Self {
        Self {
            variables,
            source: None,
            read: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Reads a source; what is read meanwhile is the source's.
    pub(super) fn of(&mut self, source: Source, read: Read) -> Result<Option<Found>, EnvError> {
        self.source = Some(source);
        let found = read(self);
        self.source = None;
        found
    }

    pub(super) fn note(&mut self, text: String) {
        self.notes.push(text);
    }

    /// Whether a variable is set, without reading it.
    pub(super) fn has(&self, name: &str) -> bool {
        self.variables.get(name).is_some()
    }

    /// A variable that nobody is to be told of.
    pub(super) fn silent(&self, name: &str) -> Option<&'a str> {
        self.variables.get(name)
    }

    pub(super) fn text(&mut self, name: &'static str, meaning: &'static str) -> Option<&'a str> {
        let value = self.variables.get(name)?;
        if !self.read.iter().any(|variable| variable.name == name) {
            self.read.push(Variable {
                name: name.into(),
                value: value.into(),
                meaning,
                source: self.source,
            });
        }
        Some(value)
    }

    pub(super) fn number(
        &mut self,
        name: &'static str,
        meaning: &'static str,
    ) -> Result<Option<usize>, EnvError> {
        let Some(value) = self.text(name, meaning) else {
            return Ok(None);
        };
        match value.trim().parse::<u32>() {
            Ok(number) => Ok(Some(number as usize)),
            Err(_) => Err(wrong(name, value, "a whole number, 0 or more")),
        }
    }

    /// The first variable of a list that is set, with its number.
    pub(super) fn first_number(
        &mut self,
        names: &[&'static str],
        meaning: &'static str,
    ) -> Result<Option<(Said, usize)>, EnvError> {
        let Some(name) = names.iter().find(|name| self.has(name)) else {
            return Ok(None);
        };
        let number = self.number(name, meaning)?;
        Ok(number.map(|number| (Said::new(name, number), number)))
    }

    pub(super) fn port(
        &mut self,
        name: &'static str,
        meaning: &'static str,
    ) -> Result<Option<u16>, EnvError> {
        let Some(value) = self.text(name, meaning) else {
            return Ok(None);
        };
        match value.trim().parse() {
            Ok(port @ 1..) => Ok(Some(port)),
            _ => Err(wrong(name, value, "a port, 1 to 65535")),
        }
    }

    pub(super) fn seconds(
        &mut self,
        name: &'static str,
        meaning: &'static str,
    ) -> Result<Option<Duration>, EnvError> {
        let Some(value) = self.text(name, meaning) else {
            return Ok(None);
        };
        let seconds = value.trim().parse().ok();
        match seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()) {
            Some(time) => Ok(Some(time)),
            None => Err(wrong(name, value, "a number of seconds, 0 or more")),
        }
    }
}

/// Whether a value may have a password in it, as an address with a user does, and is not to be shown.
#[must_use]
pub fn may_have_password(value: &str) -> bool {
    let address = value.split_once("://");
    address.is_some_and(|(_, rest)| rest.contains('@'))
}

/// The error that the value of a variable is.
pub(super) fn wrong(variable: &'static str, value: &str, expected: &str) -> EnvError {
    EnvError::Value {
        variable,
        place: String::new(),
        got: format!("{value:?}"),
        expected: expected.into(),
        next: "correct or unset it".into(),
    }
}

/// The error that a rank is which is not below the number of ranks.
pub(super) fn check_rank(
    rank: &Said,
    number: usize,
    size: &Said,
    count: usize,
) -> Result<(), EnvError> {
    if number < count {
        return Ok(());
    }
    Err(EnvError::Contradiction {
        first: Box::new(rank.clone()),
        second: Box::new(size.clone()),
        why: match count {
            0 => "there is at least one".into(),
            _ => format!("numbers go from 0 to {}", count - 1),
        },
        next: "correct one of them, or let the launcher set both".into(),
    })
}
