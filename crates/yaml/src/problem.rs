//! What is wrong with a file, and where.

use std::fmt;

/// A place in a file, both counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The line.
    pub line: usize,
    /// The column, in characters.
    pub column: usize,
}

impl Position {
    /// The start of a file.
    pub const START: Self = Self { line: 1, column: 1 };
}

/// One mistake: where, what was found and expected, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where it is.
    pub at: Position,
    /// What was found and what was expected.
    pub message: String,
    /// What to do.
    pub next: String,
}

impl Problem {
    /// A mistake.
    #[must_use]
    pub fn new(at: Position, message: impl Into<String>, next: impl Into<String>) -> Self {
        Self {
            at,
            message: message.into(),
            next: next.into(),
        }
    }
}

/// All mistakes found in one file, in its order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems {
    /// The file, as the user named it.
    pub file: String,
    /// The mistakes; never empty.
    pub list: Vec<Problem>,
}

impl Problems {
    /// More than this many are not shown.
    const SHOWN: usize = 20;

    /// The mistakes of a file, which are put in its order.
    #[must_use]
    pub fn new(file: &str, mut list: Vec<Problem>) -> Self {
        list.sort_by_key(|problem| problem.at);
        Self {
            file: file.to_owned(),
            list,
        }
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.list.iter().take(Self::SHOWN).enumerate() {
            let Position { line, column } = problem.at;
            let end = if index == 0 { "" } else { "\n" };
            write!(
                f,
                "{end}{}:{line}:{column}: {}; {}",
                self.file, problem.message, problem.next
            )?;
        }
        match self.list.len().saturating_sub(Self::SHOWN) {
            0 => Ok(()),
            more => write!(f, "\n{}: and {more} more", self.file),
        }
    }
}

impl std::error::Error for Problems {}

/// ``did you mean `..`?`` where a name is near, else the names there are.
#[must_use]
pub fn suggest(name: &str, known: &[&str]) -> String {
    match nearest(name, known) {
        Some(found) => format!("did you mean `{found}`?"),
        None if known.is_empty() => "it takes none".to_owned(),
        None => format!("known are {}", known.join(", ")),
    }
}

/// The known name that a name is probably meant to be, if one is near.
#[must_use]
pub fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    // The search takes time with the length of the name.
    if name.len() > 64 {
        return None;
    }
    let longer = |candidate: &&&str| candidate.len() > 2 && name.starts_with(**candidate);
    if let Some(begun) = known.iter().find(longer) {
        return Some(begun);
    }
    let name = name.to_lowercase();
    let distance = |candidate: &str| strsim::osa_distance(&name, &candidate.to_lowercase());
    let within = |longest: fn(&str) -> usize| {
        let near = known.iter().map(|known| (distance(known), *known));
        let near = near.filter(|(distance, candidate)| *distance <= longest(candidate));
        near.min_by_key(|(distance, _)| *distance)
            .map(|(_, candidate)| candidate)
    };
    let begun = || {
        let begins = |known: &&&str| name.len() > 2 && known.to_lowercase().starts_with(&name);
        known.iter().find(begins).copied()
    };
    let found = within(|_| 2).or_else(begun);
    found.or_else(|| within(|candidate| candidate.len().max(4) / 2))
}

/// Text of the user's for a message: quoted, escaped, and cut where it is long.
#[must_use]
pub fn shown(text: &str) -> String {
    const LONGEST: usize = 40;
    let cut: String = text.chars().take(LONGEST).collect();
    let dots = if cut.len() < text.len() { ".." } else { "" };
    format!("{cut:?}{dots}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_suggested_and_far_ones_listed() {
        let known = ["epochs", "batch_size", "seed"];
        assert_eq!(suggest("epohcs", &known), "did you mean `epochs`?");
        assert_eq!(suggest("Batchsize", &known), "did you mean `batch_size`?");
        assert_eq!(
            suggest("optimiser_of_choice", &known),
            "known are epochs, batch_size, seed"
        );
        assert_eq!(
            suggest(&"x".repeat(1 << 20), &known),
            "known are epochs, batch_size, seed"
        );
    }

    #[test]
    fn problems_come_in_the_order_of_the_file_and_end() {
        let problem = |line| {
            Problem::new(
                Position { line, column: 1 },
                format!("wrong {line}"),
                "fix it",
            )
        };
        let text = Problems::new("a.yaml", (1..=30).rev().map(problem).collect()).to_string();
        assert!(
            text.starts_with("a.yaml:1:1: wrong 1; fix it\na.yaml:2:1: wrong 2;"),
            "{text}"
        );
        assert!(
            text.ends_with("wrong 20; fix it\na.yaml: and 10 more"),
            "{text}"
        );
    }
}
