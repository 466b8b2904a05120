//! Names of inputs and layers.

use std::collections::HashMap;

use crate::{Error, Result};

/// The names of a model: given ones, which must differ, and automatic ones, `dense`, `dense_1`, .., as in Keras.
#[derive(Default)]
pub(super) struct Names {
    /// How many automatic names each name was the start of.
    taken: HashMap<String, usize>,
}

impl Names {
    /// Takes the names that were given, before automatic ones are made.
    pub(super) fn reserve<'a>(
        &mut self,
        given: impl Iterator<Item = Option<&'a str>>,
    ) -> Result<()> {
        for name in given.flatten() {
            check_name(name)?;
            if self.taken.insert(name.to_owned(), 0).is_some() {
                return Err(Error::user(format!(
                    "two layers or inputs are named `{name}`; give one of them another name, or share the layer"
                )));
            }
        }
        Ok(())
    }

    /// The given name, or the first free one of `automatic`, `automatic_1`, ..
    pub(super) fn settle(&mut self, given: Option<&str>, automatic: &str) -> String {
        if let Some(name) = given {
            return name.to_owned();
        }
        let mut number = self.taken.get(automatic).copied().unwrap_or(0);
        loop {
            let name = match number {
                0 => automatic.to_owned(),
                _ => format!("{automatic}_{number}"),
            };
            number += 1;
            if !self.taken.contains_key(&name) {
                self.taken.insert(name.clone(), 0);
                self.taken.insert(automatic.to_owned(), number);
                return name;
            }
        }
    }
}

/// Checks that a name can be a part of a path.
pub(super) fn check_name(name: &str) -> Result<()> {
    let length = name.chars().count();
    let plain = !name.contains('/') && !name.chars().any(char::is_control);
    if (1..=100).contains(&length) && plain {
        return Ok(());
    }
    let shown: String = name.chars().take(40).collect();
    Err(Error::user(format!(
        "`name` {shown:?} is no name: expected 1 to 100 characters, without `/`"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn automatic_names_count_and_avoid_given_ones() {
        let mut names = Names::default();
        names.reserve([Some("dense_1"), None].into_iter()).unwrap();
        let settled: Vec<String> = (0..3).map(|_| names.settle(None, "dense")).collect();
        assert_eq!(settled, ["dense", "dense_2", "dense_3"]);
        assert_eq!(names.settle(None, "dense_1"), "dense_1_1");
    }

    #[test]
    fn bad_names_are_refused() {
        for name in ["", "a/b", "a\nb", &"x".repeat(101)] {
            assert!(
                Names::default().reserve([Some(name)].into_iter()).is_err(),
                "{name}"
            );
        }
        let twice = Names::default().reserve([Some("a"), Some("a")].into_iter());
        assert!(
            twice
                .unwrap_err()
                .to_string()
                .starts_with("two layers or inputs are named `a`")
        );
    }
}
