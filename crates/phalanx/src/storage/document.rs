//! JSON documents with a format and a version, read from untrusted files.
//!
//! The text is checked before it is parsed: a parser keeps the last of several fields of the same name, and needs far more memory than
//! the text.

use std::collections::HashSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::{brief, problem};
use crate::Result;
use crate::config::suggest;

/// Ten thousand layers, the most a model has, take half of it.
pub(crate) const MAX_BYTES: usize = 8 << 20;
pub(crate) const MAX_VALUES: usize = 1 << 19;

/// A kind of file: an object with its format, the version of that, and the version of phalanx that wrote it.
#[derive(Debug)]
pub(crate) struct Document {
    /// The field `format`.
    pub(crate) format: &'static str,
    /// The field `version`, which grows when readers of the old version could not read the new one.
    pub(crate) version: u64,
    /// The names of all fields.
    pub(crate) fields: &'static [&'static str],
    /// What the file belongs to.
    pub(crate) what: &'static str,
    /// What the user should do about a damaged file.
    pub(crate) again: &'static str,
}

impl Document {
    /// Reads a file of this version; `name` is the file in errors.
    pub(crate) fn read(&self, name: &str, text: &[u8]) -> Result<Map<String, Value>> {
        let fields = self.parse(name, text)?;
        self.check_format(name, &fields)?;
        let known = |field: &&String| self.fields.contains(&field.as_str());
        if let Some(field) = fields.keys().find(|field| !known(field)) {
            let hint = suggest(field, self.fields.iter().copied());
            let message = format!("is no field of version {}; {hint}", self.version);
            let place = format!("field `{}`", brief(field));
            return Err(problem(name, &place, message));
        }
        Ok(fields)
    }

    /// Whether the file has this format, of any version.
    pub(crate) fn is_ours(&self, text: &[u8]) -> bool {
        self.parse("", text)
            .is_ok_and(|fields| self.has_format(&fields))
    }

    fn has_format(&self, fields: &Map<String, Value>) -> bool {
        fields
            .get("format")
            .is_some_and(|format| format == self.format)
    }

    pub(crate) fn parse(&self, name: &str, text: &[u8]) -> Result<Map<String, Value>> {
        let (what, again) = (self.what, self.again);
        if text.len() > MAX_BYTES {
            let message = format!(
                "more than {MAX_BYTES} bytes, which no {what} has; check that it is the right directory"
            );
            return Err(problem(name, "size", message));
        }
        if text.is_empty() {
            return Err(problem(name, "size", format!("the file is empty; {again}")));
        }
        let broken = |error: serde_json::Error| {
            let place = format!("line {}, column {}", error.line(), error.column());
            let cause = match error.is_eof() {
                true => "the file ends in the middle".to_owned(),
                false => format!("expected the JSON of a {what}: {error}"),
            };
            problem(name, &place, format!("{cause}; {again}"))
        };
        check(text, MAX_VALUES).map_err(broken)?;
        match serde_json::from_slice(text).map_err(broken)? {
            Value::Object(fields) => Ok(fields),
            _ => {
                let message = format!(
                    "expected an object with the fields {}; check that it is the right directory",
                    self.fields.join(", ")
                );
                Err(problem(name, "line 1", message))
            }
        }
    }

    fn check_format(&self, name: &str, fields: &Map<String, Value>) -> Result<()> {
        let Self {
            format,
            version,
            again,
            ..
        } = self;
        let got = |field| fields.get(field).map_or("nothing".to_owned(), shown);
        if !self.has_format(fields) {
            let got = got("format");
            let message = format!(
                "expected {format:?}, got {got}: it was not written by phalanx; check that it is the right directory"
            );
            return Err(problem(name, "format", message));
        }
        let message = match fields.get("version").and_then(Value::as_u64) {
            Some(found) if found == *version => return Ok(()),
            Some(later) if later > *version => {
                let writer = fields
                    .get("phalanx")
                    .map_or("of a later version".to_owned(), shown);
                let ours = env!("CARGO_PKG_VERSION");
                format!(
                    "expected up to {version}, got {later}: phalanx {writer} wrote it, and this is phalanx {ours}; update phalanx"
                )
            }
            _ => format!("expected {version}, got {}; {again}", got("version")),
        };
        Err(problem(name, "version", message))
    }
}

/// A short text for a value.
fn shown(value: &Value) -> String {
    const LONGEST: usize = 60;
    match value {
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        Value::String(text) if text.len() > LONGEST => {
            format!("a text of {} bytes", text.len())
        }
        other => other.to_string(),
    }
}

/// How many values an object counts as, beside its fields: about its size in memory.
const OBJECT: usize = 5;

/// Checks that no object has two fields of the same name, and that there are at most `most` values; an object counts as [`OBJECT`] of
/// them.
pub(crate) fn check(text: &[u8], most: usize) -> serde_json::Result<()> {
    let mut reader = serde_json::Deserializer::from_slice(text);
    let mut checker = Checker { most, left: most };
    checker.deserialize(&mut reader)?;
    reader.end()
}

struct Checker {
    most: usize,
    left: usize,
}

impl Checker {
    fn count<E: serde::de::Error>(&mut self, values: usize) -> std::result::Result<(), E> {
        let most = self.most;
        self.left = self
            .left
            .checked_sub(values)
            .ok_or_else(|| E::custom(format!("more than {most} values")))?;
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for &mut Checker {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> std::result::Result<(), D::Error> {
        self.count(1)?;
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for &mut Checker {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<(), A::Error> {
        self.count(OBJECT - 1)?;
        let mut fields = HashSet::new();
        while let Some(field) = map.next_key::<String>()? {
            map.next_value_seed(&mut *self)?;
            if let Some(twice) = fields.replace(field) {
                let start: String = twice.chars().take(60).collect();
                return Err(A::Error::custom(format!("`{start}` is there twice")));
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> std::result::Result<(), A::Error> {
        while items.next_element_seed(&mut *self)?.is_some() {}
        Ok(())
    }

    fn visit_unit<E>(self) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> std::result::Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn fields_of_one_name_are_found_at_every_depth() {
        let fine = br#"{"a": [{"b": 1}, {"b": null}], "c": {"a": true, "d": -1.5, "e": "x"}}"#;
        check(fine, 30).unwrap();
        let twice = br#"{"a": [{"b": 1, "\u0062": 2}]}"#;
        let error = check(twice, 20).unwrap_err().to_string();
        assert!(error.starts_with("`b` is there twice"), "{error}");
    }

    #[test]
    fn values_are_counted() {
        check(b"[1, [2], {\"a\": 3}]", 10).unwrap();
        let error = check(b"[1, [2], {\"a\": 3}]", 9).unwrap_err().to_string();
        assert!(error.starts_with("more than 9 values"), "{error}");
        check(b"1 2", 5).unwrap_err();
    }
}
