//! Paths with the number of the epoch and logs in them: `ckpt_{epoch:02d}-{val_loss:.2f}`.

use std::path::{Path, PathBuf};

use super::python_format::{FormatSpec, Number};
use crate::fit::Logs;
use crate::storage::store::is_url;

/// A path with places for numbers, as Python's `str.format` has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PathPattern(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Number { name: String, spec: FormatSpec },
}

impl PathPattern {
    /// Reads a pattern, or says what is wrong with it.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let (mut plain, mut rest) = (String::new(), text.chars());
        while let Some(next) = rest.next() {
            let is_doubled = rest.as_str().starts_with(next);
            match next {
                '{' | '}' if is_doubled => {
                    rest.next();
                    plain.push(next);
                }
                '}' => return Err("it has a `}` without a `{` before it".to_owned()),
                '{' => {
                    let Some((inside, after)) = rest.as_str().split_once('}') else {
                        return Err("it has a `{` without a `}` behind it".to_owned());
                    };
                    rest = after.chars();
                    parts.push(Part::Text(std::mem::take(&mut plain)));
                    parts.push(number(inside)?);
                }
                other => plain.push(other),
            }
        }
        parts.push(Part::Text(plain));
        Ok(Self(parts))
    }

    /// The names of the numbers.
    fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|part| match part {
            Part::Number { name, .. } => Some(&**name),
            Part::Text(_) => None,
        })
    }

    /// The path of an epoch, and of a batch where it is one; both are counted from 1 in it. An error says what is missing.
    pub(super) fn path(
        &self,
        epoch: usize,
        batch: Option<usize>,
        logs: &Logs,
    ) -> Result<PathBuf, String> {
        let whole = |count: usize| Number::Whole(i64::try_from(count).unwrap_or(i64::MAX));
        let mut path = String::new();
        for part in &self.0 {
            match part {
                Part::Text(text) => path.push_str(text),
                Part::Number { name, spec } => {
                    let value = match (&**name, batch) {
                        ("epoch", _) => Some(whole(epoch + 1)),
                        ("batch", Some(batch)) => Some(whole(batch + 1)),
                        _ => logs.get(name).map(Number::Real),
                    };
                    let value = value.ok_or_else(|| format!("there is no `{name}`"))?;
                    let written = spec.write(value);
                    path.push_str(&written.map_err(|why| format!("`{name}`: {why}"))?);
                }
            }
        }
        Ok(path.into())
    }

    /// Whether a path of it can be this one with a dot and a number behind it, as older checkpoints are called beside it.
    pub(super) fn is_older_of(&self, checkpoint: &Path) -> bool {
        // As short as a number can be, and longer than where one is filled up.
        [0, 123_456_789].into_iter().any(|count: u32| {
            let numbers = self
                .names()
                .map(|name| (name.to_owned(), f64::from(count) + 1.0));
            let (numbers, count) = (numbers.collect(), count as usize);
            let path = self.path(count, Some(count), &numbers);
            path.is_ok_and(|path| !is_url(checkpoint) && is_numbered(checkpoint, &path))
        })
    }
}

/// Whether a path is another one in the same folder with a dot and digits behind it.
fn is_numbered(checkpoint: &Path, path: &Path) -> bool {
    let place = |path: &Path| {
        let path = std::path::absolute(path).ok()?;
        let name = path.file_name()?.to_str()?.to_owned();
        Some((path.parent()?.to_path_buf(), name))
    };
    let (Some((folder, name)), Some((other, numbered))) = (place(checkpoint), place(path)) else {
        return false;
    };
    let number = numbered.strip_prefix(&format!("{name}."));
    let is_number = |number: &str| number.bytes().all(|byte| byte.is_ascii_digit());
    folder == other && number.is_some_and(|number| !number.is_empty() && is_number(number))
}

fn number(inside: &str) -> Result<Part, String> {
    let (name, spec) = inside.split_once(':').unwrap_or((inside, ""));
    if name.is_empty() || name.contains(['{', '!', '[', '.']) {
        return Err(format!("`{{{inside}}}` names no log, `epoch` or `batch`"));
    }
    let spec = FormatSpec::parse(spec).map_err(|why| format!("`{{{inside}}}` has {why}"))?;
    Ok(Part::Number {
        name: name.to_owned(),
        spec,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_older_checkpoints_are_found() {
        let is_older = |text: &str, checkpoint: &str| {
            let pattern = PathPattern::parse(text).unwrap();
            pattern.is_older_of(checkpoint.as_ref())
        };
        for text in [
            "runs/ckpt.{epoch}",
            "./runs/ckpt.{epoch:02d}",
            "runs/ckpt.{epoch:4d}",
            "runs/ckpt.{epoch}{batch}",
            "runs/ckpt.{val_loss:.0f}",
            "runs/ckpt.1",
        ] {
            assert!(is_older(text, "runs/ckpt"), "{text}");
            assert!(!is_older(text, "other/ckpt"), "{text}");
            assert!(!is_older(text, "runs/ckpt.1"), "{text}");
        }
        for text in [
            "runs/ckpt",
            "runs/ckpt.{val_loss:.2f}",
            "runs/ckpt.{epoch}.safetensors",
            "runs/ckpt_{epoch}",
            "runs/ckpt{epoch}",
            "runs/ckpt.best",
        ] {
            assert!(!is_older(text, "runs/ckpt"), "{text}");
        }
        assert!(!is_older("s3://b/ckpt.{epoch}", "s3://b/ckpt"));
    }

    #[test]
    fn epochs_batches_and_logs_have_their_places() {
        let logs: Logs = [("val_loss".to_owned(), 0.456)].into_iter().collect();
        let path = |text: &str, batch| {
            let path = PathPattern::parse(text).and_then(|pattern| pattern.path(4, batch, &logs));
            path.map(|path| path.display().to_string())
        };
        assert_eq!(
            path("a/ckpt_{epoch:02d}-{val_loss:.2f}", None).unwrap(),
            "a/ckpt_05-0.46"
        );
        assert_eq!(path("{epoch}_{batch:03d}", Some(11)).unwrap(), "5_012");
        assert_eq!(path("{{x}}", None).unwrap(), "{x}");
        for wrong in [
            "{batch}",
            "{loss}",
            "{epoch",
            "epoch}",
            "{}",
            "{epoch:q}",
            "{val_loss:d}",
        ] {
            assert!(path(wrong, None).is_err(), "{wrong}");
        }
    }
}
