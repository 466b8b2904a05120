//! Numbers for words and ids.

use std::collections::HashMap;
use std::hash::Hash;

use crate::hash::{fnv1a, mixed};
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
/// assert_eq!((words.index("b"), words.index("a"), words.index("c")), (2, 3, 1));
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

    /// The vocabulary of the keys of some data, the most frequent first and equally frequent ones in their order; at
    /// most as many as make [`size`](Self::size) `limit`.
    ///
    /// Unlike Keras, which puts equally frequent ones in the reverse order of the alphabet, as [`TextVectorizer`](super::TextVectorizer)
    /// does.
    #[must_use]
    pub fn adapt(data: impl IntoIterator<Item = K>, limit: Option<usize>) -> Self {
        let mut counts: HashMap<K, (usize, usize)> = HashMap::new();
        for key in data {
            let place = counts.len();
            counts.entry(key).or_insert((0, place)).0 += 1;
        }
        let mut counted: Vec<(K, (usize, usize))> = counts.into_iter().collect();
        counted.sort_by_key(|&(_, (count, place))| (usize::MAX - count, place));
        let room = limit
            .unwrap_or(i32::MAX as usize)
            .saturating_sub(Self::FIRST as usize);
        counted.truncate(room);
        Self::of(counted.into_iter().map(|(key, _)| key).collect())
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

/// A number below `buckets` for any word or id, the same on every machine and in every version; 0 for 0 buckets.
///
/// FNV-1a of the bytes with the mixing of `SplitMix64`; Keras' `Hashing` uses another hash.
#[must_use]
pub fn hash_bucket(key: impl AsRef<[u8]>, buckets: u32) -> i32 {
    let bits = mixed(fnv1a(key.as_ref()));
    let bucket = bits.checked_rem(u64::from(buckets)).unwrap_or(0);
    i32::try_from(bucket).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frequent_come_first_and_ties_as_they_came() {
        let ids = Vocabulary::adapt([7i64, 9, 9, 5, 7, 3], None);
        assert_eq!(ids.keys(), [7, 9, 5, 3]);
        assert_eq!((ids.index(&7), ids.index(&3), ids.index(&4)), (2, 5, 1));
        assert_eq!(
            (ids.key(1), ids.key(2), ids.key(6), ids.key(-5)),
            (None, Some(&7), None, None)
        );
        assert_eq!(Vocabulary::adapt([1i64, 2, 3], Some(1)).size(), 2);
        let again = Vocabulary::new(ids.keys().iter().copied()).unwrap();
        assert_eq!(again, ids);
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
        // Pinned: models that were trained on the numbers depend on them.
        assert_eq!(["a", "b", ""].map(|key| hash_bucket(key, 1000)), PINNED);
        assert_eq!(hash_bucket("a", 0), 0);
    }

    const PINNED: [i32; 3] = [736, 821, 203];
}
