//! Numbers for words and ids.

use std::collections::HashMap;
use std::hash::Hash;

use crate::farmhash::fingerprint64;
use crate::{Error, Result};

/// A number for each of a set of words or ids, as tables of embeddings need them: 0 stands for padding, 1 for whatever
/// is not in the vocabulary, keys count from 2.
///
/// Keras' `StringLookup` and `IntegerLookup` with a mask token and one index for the unknown.
///
/// ```
/// use phalanx::data::Vocabulary;
///
/// let words = Vocabulary::adapt(["b", "a", "b", "c"], Some(4));
/// assert_eq!((words.index("b"), words.index("c"), words.index("a")), (2, 3, 1));
/// assert_eq!((words.size(), words.key(2)), (4, Some(&"b")));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vocabulary<K: Eq + Hash> {
    keys: Vec<K>,
    indices: HashMap<K, i32>,
}

impl<K: Clone + Eq + Hash> Vocabulary<K> {
    /// The number of padding.
    pub const PADDING: i32 = 0;
    /// The number of what is not in the vocabulary.
    pub const UNKNOWN: i32 = 1;
    const FIRST: i32 = 2;

    /// The vocabulary of keys in their order.
    ///
    /// # Errors
    /// When a key is there twice, or there are more than i32 counts.
    pub fn new(keys: impl IntoIterator<Item = K>) -> Result<Self> {
        let keys: Vec<K> = keys.into_iter().collect();
        if i32::try_from(keys.len()).is_err() {
            let count = keys.len();
            return Err(Error::user(format!(
                "a vocabulary of {count} keys is too large for i32 indices; hash them instead"
            )));
        }
        let made = Self::of(keys);
        let (keys, known) = (made.keys.len(), made.indices.len());
        if keys == known {
            return Ok(made);
        }
        Err(Error::user(format!(
            "a vocabulary of {keys} keys has {known} different ones; give each once"
        )))
    }

    /// The vocabulary of the keys of some data, the most frequent first and equally frequent ones in descending order, as Keras has them; at
    /// most as many as make [`size`](Self::size) `limit`.
    #[must_use]
    pub fn adapt(data: impl IntoIterator<Item = K>, limit: Option<usize>) -> Self
    where
        K: Ord,
    {
        Self::adapt_frequent(data, limit, 1)
    }

    /// As [`adapt`](Self::adapt), of the keys that are there `least` times or more, which Keras does not ask for.
    #[must_use]
    pub fn adapt_frequent(
        data: impl IntoIterator<Item = K>,
        limit: Option<usize>,
        least: u64,
    ) -> Self
    where
        K: Ord,
    {
        let mut counts: HashMap<K, u64> = HashMap::new();
        for key in data {
            *counts.entry(key).or_default() += 1;
        }
        counts.retain(|_, count| *count >= least);
        let mut keys = most_frequent(counts);
        let room = limit
            .unwrap_or(i32::MAX as usize)
            .saturating_sub(Self::FIRST as usize);
        keys.truncate(room);
        Self::of(keys)
    }

    fn of(keys: Vec<K>) -> Self {
        let numbered = keys.iter().cloned().zip(Self::FIRST..);
        let indices = numbered.collect();
        Self { keys, indices }
    }

    /// The number of a key, [`UNKNOWN`](Self::UNKNOWN) for one that is not there.
    #[must_use]
    pub fn index<Q>(&self, key: &Q) -> i32
    where
        K: std::borrow::Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        self.indices.get(key).copied().unwrap_or(Self::UNKNOWN)
    }

    /// The key of a number; `None` for padding, the unknown, and numbers without a key.
    #[must_use]
    pub fn key(&self, index: i32) -> Option<&K> {
        let place = index.checked_sub(Self::FIRST)?;
        self.keys.get(usize::try_from(place).ok()?)
    }

    /// The keys in the order of their numbers.
    #[must_use]
    pub fn keys(&self) -> &[K] {
        &self.keys
    }

    /// How many numbers there are, padding and the unknown among them: the `input_dim` of an embedding.
    #[must_use]
    pub fn size(&self) -> usize {
        self.keys.len() + Self::FIRST as usize
    }
}

/// Keys by how often they are there, the most frequent first and equally frequent ones in descending order.
pub(super) fn most_frequent<K: Ord>(counts: HashMap<K, u64>) -> Vec<K> {
    let counted = counts.into_iter().map(|(key, count)| (count, key));
    let mut counted: Vec<(u64, K)> = counted.collect();
    counted.sort_unstable_by(|one, other| other.cmp(one));
    counted.into_iter().map(|(_, key)| key).collect()
}

/// A number below `buckets` for any word or id, the same on every machine and in every version; 0 for 0 buckets.
///
/// FarmHash's 64-bit fingerprint of the bytes, as Keras' `Hashing` without `salt` has it; of a number, which Keras hashes as decimal text,
/// [`nn::Hashing`](crate::nn::Hashing) makes the same within a model.
///
/// ```
/// use phalanx::data::hash_bucket;
///
/// assert_eq!([hash_bucket("A", 3), hash_bucket("B", 3), hash_bucket("C", 3)], [1, 0, 1]);
/// ```
#[must_use]
pub fn hash_bucket(key: impl AsRef<[u8]>, buckets: u32) -> i32 {
    let bucket = fingerprint64(key.as_ref())
        .checked_rem(u64::from(buckets))
        .unwrap_or(0);
    i32::try_from(bucket).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frequent_come_first_and_ties_in_descending_order() {
        let ids = Vocabulary::adapt([7i64, 9, 9, 5, 7, 3], None);
        assert_eq!(ids.keys(), [9, 7, 5, 3]);
        assert_eq!((ids.index(&9), ids.index(&3), ids.index(&4)), (2, 5, 1));
        assert_eq!(
            (ids.key(1), ids.key(2), ids.key(6), ids.key(-5)),
            (None, Some(&9), None, None)
        );
        let often = |least| Vocabulary::adapt_frequent([1i64, 2, 1, 3, 3, 3], None, least);
        assert_eq!(often(2).keys(), [3, 1]);
        assert_eq!(often(4).size(), 2);
        assert_eq!(Vocabulary::adapt([1i64, 2, 3], Some(1)).size(), 2);
        let again = Vocabulary::new(ids.keys().iter().copied()).unwrap();
        assert_eq!(again, ids);
    }

    #[test]
    fn names_have_keras_numbers() {
        let file = "../../tests/golden/keras/categories.json";
        let golden: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        let records = golden["records"].as_array().unwrap().iter();
        let records = records.filter(|record| record["names"].is_array());
        let mut count = 0;
        for record in records {
            let texts = |field: &str| -> Vec<String> {
                serde_json::from_value(record[field].clone()).unwrap()
            };
            // Keras numbers neither the mask nor what it calls unknown.
            let named = |name: &String| !name.is_empty() && name != "[UNK]";
            let names = texts("names").into_iter().filter(named);
            let limit = record["max_tokens"].as_u64().map(|limit| limit as usize);
            let found = Vocabulary::adapt(names, limit);
            assert_eq!(found.keys(), texts("vocabulary"), "{}", record["name"]);
            let number = |name: &String| match name.is_empty() {
                true => Vocabulary::<String>::PADDING,
                false => found.index(name),
            };
            let numbers: Vec<i32> = texts("asked").iter().map(number).collect();
            assert_eq!(serde_json::json!(numbers), record["numbers"]["data"]);
            count += 1;
        }
        assert_eq!(count, 5);
    }

    #[test]
    fn a_key_twice_is_refused() {
        let error = Vocabulary::new(["a", "b", "a"]).unwrap_err().to_string();
        assert_eq!(
            error,
            "a vocabulary of 3 keys has 2 different ones; give each once"
        );
    }

    #[test]
    fn hashes_are_spread_and_stay() {
        let mut counts = [0; 16];
        for number in 0..16_000 {
            let bucket = hash_bucket(format!("user {number}"), 16);
            counts[usize::try_from(bucket).unwrap()] += 1;
        }
        assert!(
            counts.iter().all(|count| (850..1150).contains(count)),
            "{counts:?}"
        );
        assert_eq!(hash_bucket("a", 0), 0);
    }
}
