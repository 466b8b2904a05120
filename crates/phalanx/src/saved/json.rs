//! JSON of unknown origin: checked before it is read, because readers keep the last of several fields of one name
//! and take far more memory than the text.

use std::collections::HashSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// What an object counts for beside its fields: about what it takes in memory.
const OBJECT: usize = 5;

/// Checks that no object has two fields of one name, and that there are not more values than `most`, of which an
/// object counts as [`OBJECT`].
pub(super) fn check(text: &[u8], most: usize) -> serde_json::Result<()> {
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
    fn count<E: Error>(&mut self, values: usize) -> Result<(), E> {
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

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        self.count(1)?;
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for &mut Checker {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
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

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element_seed(&mut *self)?.is_some() {}
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
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
