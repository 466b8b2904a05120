//! What several processes compare of the data that each of them was given, before they train on its parts.
//!
//! Each reads its part by arithmetic and never sees another's, so that data in another order would be read twice or never without
//! anybody's notice. The order is compared by where examples come from, and the contents in the sources: functions of the user
//! (`map`) are not called, since they may have effects, or a randomness of their own.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{AutoShardPolicy, Batches, Dataset, Example};
use crate::Result;

/// How many places of an epoch, and how many examples of a source, are looked at.
const PLACES: usize = 32;
pub(super) const EXAMPLES: usize = 8;
/// Arrays of fewer bytes are compared as a whole.
const WHOLE: usize = 64 << 20;

/// Names of what is compared, and what this process has.
pub(crate) type Facts = Vec<(String, String)>;

impl Batches {
    /// What all processes must have alike of these batches; `which` are they, such as `training`.
    pub(crate) fn facts(&self, which: &str, epoch: u64) -> Facts {
        let count = |count: Option<usize>| count.map_or("no end".to_owned(), |n| n.to_string());
        let named = |what: &str, value: String| (what.replace('%', which), value);
        let mut facts = Facts::new();
        if self.shard_policy() != AutoShardPolicy::Off {
            let examples = count(self.dataset().len());
            facts.push(named("the number of % examples", examples));
        }
        let size = match self.segment().buckets {
            Some(sum) => format!("{} at most, by lengths of checksum {sum:08x}", self.size()),
            None => self.size().to_string(),
        };
        facts.push(named("the size of % batches", size));
        facts.push(named("the number of % batches", count(self.len())));
        if self.shard_policy() != AutoShardPolicy::Off {
            let order = format!("checksum {:08x}", self.order(epoch));
            facts.push(named("the order of the % examples", order));
        }
        // Whoever reads whole files may have these alone.
        if self.shard_policy() == AutoShardPolicy::Data {
            let contents = format!("checksum {:08x}", self.dataset().contents());
            facts.push(named("what is in the % examples", contents));
        }
        facts
    }

    /// A checksum of where the examples of some batches come from.
    fn order(&self, epoch: u64) -> u32 {
        let (size, len) = (self.size(), self.dataset().len().unwrap_or(usize::MAX));
        let places = spread(self.len().unwrap_or(PLACES), PLACES).flat_map(|batch| {
            let (epoch, index) = self.locate(epoch, batch).unwrap_or_default();
            let first = index.saturating_mul(size);
            let places = match &self.plan {
                Some(plan) => self.places_of(plan, epoch, index),
                None => [first, first.saturating_add(size / 2)],
            };
            places.map(|place| (epoch, place))
        });
        let within = places.filter(|(_, place)| *place < len);
        within.fold(0, |sum, (epoch, place)| {
            self.dataset().origin(sum, epoch, place)
        })
    }
}

impl Dataset {
    /// Adds where an example comes from to a checksum: through all stages down to the place in a source.
    pub(super) fn origin(&self, sum: u32, epoch: u64, index: usize) -> u32 {
        let origin = self.stage().origin(sum, epoch, index);
        // Such as of an endless dataset that is shuffled: reading it says why.
        origin.unwrap_or(sum)
    }

    /// A checksum of what the sources hold, as far as that is quickly read.
    pub(super) fn contents(&self) -> u32 {
        self.stage().contents()
    }
}

/// Adds the place in a source to a checksum.
pub(super) fn of_place(sum: u32, epoch: u64, index: usize) -> u32 {
    let sum = crc32c::crc32c_append(sum, &epoch.to_le_bytes());
    crc32c::crc32c_append(sum, &(index as u64).to_le_bytes())
}

/// Adds an example to a checksum.
pub(super) fn of_example(sum: u32, example: &Example) -> u32 {
    let tensors = example.x.iter().chain(&example.y);
    let tensors = tensors.fold(sum, |sum, tensor| {
        crc32c::crc32c_append(sum, tensor.bytes())
    });
    let weight = example.weight.unwrap_or(1.0);
    crc32c::crc32c_append(tensors, &weight.to_bits().to_le_bytes())
}

/// A checksum of some of `len` items. One that cannot be read counts as such: training on it says why.
pub(super) fn of_some(len: usize, add: impl Fn(u32, usize) -> Result<u32>) -> u32 {
    spread(len, EXAMPLES).fold(len as u32, |sum, i| {
        let added = catch_unwind(AssertUnwindSafe(|| add(sum, i)));
        added.ok().and_then(Result::ok).unwrap_or(!sum)
    })
}

/// Whether one of some of `len` examples has a weight.
pub(super) fn some_weighs(len: usize, get: impl Fn(usize) -> Result<Example>) -> bool {
    spread(len, EXAMPLES).any(|i| {
        let example = catch_unwind(AssertUnwindSafe(|| get(i)));
        let example = example.ok().and_then(Result::ok);
        example.is_some_and(|example| example.weight.is_some())
    })
}

/// The rows of an array, or some of them where they are many: the bytes of each.
pub(super) fn of_rows(sum: u32, bytes: &[u8], row_bytes: usize) -> u32 {
    if bytes.len() <= WHOLE {
        return crc32c::crc32c_append(sum, bytes);
    }
    let rows = spread(bytes.len() / row_bytes.max(1), 1024);
    rows.fold(sum, |sum, row| {
        crc32c::crc32c_append(sum, &bytes[row * row_bytes..][..row_bytes])
    })
}

/// Up to `count` of the indices below `len`, the first and the last among them.
pub(super) fn spread(len: usize, count: usize) -> impl Iterator<Item = usize> {
    let count = count.min(len);
    (0..count).map(move |at| match at {
        0 => 0,
        at => (at as u128 * (len - 1) as u128 / (count - 1) as u128) as usize,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use phalanx_graph::HostTensor;

    use super::super::Worker;
    use super::*;

    fn count_to(len: usize) -> Dataset {
        let values: Vec<i32> = (0..len as i32).collect();
        Dataset::from_arrays(HostTensor::new([len], &values), Vec::new()).unwrap()
    }

    /// What differs between two.
    fn differing(a: &Batches, b: &Batches) -> Vec<String> {
        let (a, b) = (a.facts("training", 2), b.facts("training", 2));
        let pairs = a.into_iter().zip(b);
        pairs
            .filter(|(a, b)| a != b)
            .map(|(a, _)| a.0.replace("the ", "").replace("training ", ""))
            .collect()
    }

    #[test]
    fn indices_are_spread_from_the_first_to_the_last() {
        let of = |len, count| spread(len, count).collect::<Vec<_>>();
        assert_eq!(of(0, 3), [0; 0]);
        assert_eq!(of(1, 3), [0]);
        assert_eq!(of(3, 8), [0, 1, 2]);
        assert_eq!(of(10, 4), [0, 3, 6, 9]);
    }

    #[test]
    fn each_difference_of_the_data_is_named() {
        let of = |data: &Dataset| data.batch(8);
        let data = count_to(100);
        let ours = of(&data.shuffle(3));
        assert_eq!(differing(&ours, &of(&data.shuffle(3))), [""; 0]);
        assert_eq!(
            differing(&ours, &of(&data.shuffle(4))),
            ["order of examples"]
        );
        assert_eq!(differing(&ours, &of(&data)), ["order of examples"]);
        let batch = data.shuffle(3).batch(16);
        let of_batch = differing(&ours, &batch);
        assert_eq!(of_batch[..2], ["size of batches", "number of batches"]);
        let fewer = differing(&ours, &of(&count_to(99).shuffle(3)));
        assert_eq!(fewer[0], "number of examples");
        let mut values: Vec<i32> = (0..100).collect();
        values[57] = 1;
        let other = Dataset::from_arrays(HostTensor::new([100], &values), Vec::new()).unwrap();
        assert_eq!(
            differing(&ours, &of(&other.shuffle(3))),
            ["what is in examples"]
        );
        let own = |rank| data.filter(move |e| e.x[0].values::<i32>().unwrap()[0] % 2 == rank);
        let by_hand = differing(&of(&own(0).unwrap()), &of(&own(1).unwrap()));
        assert_eq!(by_hand, ["order of examples"]);
        let zipped = |seed| of(&data.zip(&data.shuffle(seed)).cache().unwrap());
        assert_eq!(differing(&zipped(1), &zipped(2)), ["order of examples"]);
        let endless = |seed| of(&data.shuffle(seed).repeat_forever());
        assert_eq!(differing(&endless(1), &endless(1)), [""; 0]);
        assert_eq!(differing(&endless(1), &endless(2)), ["order of examples"]);
    }

    #[test]
    fn data_that_are_divided_already_may_differ_and_functions_are_not_called() {
        let part = |rank| {
            let own = count_to(40).skip(rank * 20).take(20).batch(8);
            own.shard(Worker::new(rank, 2), AutoShardPolicy::Off)
                .unwrap()
        };
        assert_eq!(differing(&part(0), &part(1)), [""; 0]);
        let calls = std::sync::Arc::new(AtomicUsize::new(0));
        let counted = std::sync::Arc::clone(&calls);
        let mapped = count_to(40).map(move |example| {
            counted.fetch_add(1, Ordering::Relaxed);
            Ok(example)
        });
        mapped.batch(8).facts("training", 0);
        assert_eq!(calls.load(Ordering::Relaxed), 0);
    }
}
