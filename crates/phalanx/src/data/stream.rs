//! Examples that come one after the other and cannot be asked for by index.

use std::collections::VecDeque;
use std::sync::Arc;

use super::random_key::random_key;
use super::stream_reader::StreamReader;
use super::{Batch, Dataset, Example, StreamBatches, Worker};
use crate::{Error, Result};

/// The examples of one epoch, in their order.
pub type Examples = Box<dyn Iterator<Item = Result<Example>> + Send>;

/// The most bytes of examples that wait in the window of a shuffle.
const MAX_WINDOW_BYTES: usize = 1 << 30;

type Open = dyn Fn(u64) -> Examples + Send + Sync;

/// A sequence of examples that is read from its start: a socket, a generator, a format without an index.
///
/// It has no length and resumes by reading from the start again, and every worker reads all of it; data that can be read by index
/// belong in a [`Dataset`].
#[derive(Clone)]
pub struct Stream {
    open: Arc<Open>,
}

impl Stream {
    /// The examples that `open` returns for each epoch; it must return the same for the same epoch if a run is to be
    /// reproducible, and on each of several workers, which compare checksums of what they have read after an epoch.
    pub fn new<I>(open: impl Fn(u64) -> I + Send + Sync + 'static) -> Self
    where
        I: Iterator<Item = Result<Example>> + Send + 'static,
    {
        Self {
            open: Arc::new(move |epoch| Box::new(open(epoch))),
        }
    }

    /// The examples of an epoch; ends after an error.
    #[must_use]
    pub fn iter(&self, epoch: u64) -> Examples {
        let mut examples = (self.open)(epoch).fuse();
        let mut failed = false;
        Box::new(std::iter::from_fn(move || {
            let next = if failed { None } else { examples.next() };
            failed |= matches!(next, Some(Err(_)));
            next
        }))
    }

    fn over<I>(&self, stage: impl Fn(u64, Examples) -> I + Send + Sync + 'static) -> Self
    where
        I: Iterator<Item = Result<Example>> + Send + 'static,
    {
        let input = self.clone();
        Self::new(move |epoch| stage(epoch, input.iter(epoch)))
    }

    /// A function applied to each example.
    #[must_use]
    pub fn map(&self, map: impl Fn(Example) -> Result<Example> + Send + Sync + 'static) -> Self {
        let map = Arc::new(map);
        self.over(move |_, examples| {
            let map = Arc::clone(&map);
            examples.map(move |example| map(example?))
        })
    }

    /// The examples that `keep` is true for.
    #[must_use]
    pub fn filter(&self, keep: impl Fn(&Example) -> bool + Send + Sync + 'static) -> Self {
        let keep = Arc::new(keep);
        self.over(move |_, examples| {
            let keep = Arc::clone(&keep);
            examples.filter(move |example| example.as_ref().map_or(true, |example| keep(example)))
        })
    }

    /// The first `count` examples.
    #[must_use]
    pub fn take(&self, count: usize) -> Self {
        self.over(move |_, examples| examples.take(count))
    }

    /// All but the first `count` examples.
    #[must_use]
    pub fn skip(&self, count: usize) -> Self {
        self.over(move |_, examples| {
            let mut left = count;
            // An error is not passed over: nothing comes after it.
            examples.skip_while(move |example| {
                let is_skipped = left > 0 && example.is_ok();
                left = left.saturating_sub(1);
                is_skipped
            })
        })
    }

    /// The examples `count` times over; repetition r of epoch e is epoch e * count + r of what comes before.
    #[must_use]
    pub fn repeat(&self, count: u64) -> Self {
        let input = self.clone();
        Self::new(move |epoch| {
            let input = input.clone();
            (0..count).flat_map(move |r| input.iter(epoch.wrapping_mul(count).wrapping_add(r)))
        })
    }

    /// Hands out a random one of `window` examples that were read ahead, drawn from (seed, epoch), as `tf.data`'s `shuffle`.
    ///
    /// The order is only as random as the window is large, and the window holds at most 1 GiB of examples; [`Dataset::shuffle`] is a full
    /// permutation and takes no memory.
    #[must_use]
    pub fn shuffle(&self, window: usize, seed: u64) -> Self {
        self.shuffle_within(window, seed, MAX_WINDOW_BYTES)
    }

    fn shuffle_within(&self, window: usize, seed: u64, most_bytes: usize) -> Self {
        self.over(move |epoch, mut examples| {
            let (mut held, mut bytes, mut drawn) = (Vec::new(), 0, 0);
            std::iter::from_fn(move || {
                while held.is_empty() || held.len() < window && bytes < most_bytes {
                    match examples.next() {
                        Some(Ok(example)) => {
                            bytes += example.byte_len();
                            held.push(example);
                        }
                        Some(error) => return Some(error),
                        None => break,
                    }
                }
                let len = held.len() as u64;
                let at = random_key(seed, epoch, drawn).checked_rem(len)?;
                drawn += 1;
                let example = held.swap_remove(at as usize);
                bytes -= example.byte_len();
                Some(Ok(example))
            })
        })
    }

    /// Blocks of `block` examples of each stream in turn, until the last has ended.
    #[must_use]
    pub fn interleave(inputs: &[Self], block: usize) -> Self {
        let (inputs, block) = (inputs.to_vec(), block.max(1));
        Self::new(move |epoch| {
            let mut open: VecDeque<Examples> =
                inputs.iter().map(|input| input.iter(epoch)).collect();
            let mut given = 0;
            std::iter::from_fn(move || {
                loop {
                    if given == block {
                        open.rotate_left(1);
                        given = 0;
                    }
                    if let Some(example) = open.front_mut()?.next() {
                        given += 1;
                        return Some(example);
                    }
                    open.pop_front();
                    given = 0;
                }
            })
        })
    }

    /// Batches of `size` examples, to train on; the last of an epoch may have fewer.
    #[must_use]
    pub fn batch(&self, size: usize) -> StreamBatches {
        StreamBatches::new(self.clone(), size)
    }

    /// Batches of `size` examples of an epoch; the last may have fewer.
    pub fn batches(
        &self,
        epoch: u64,
        size: usize,
    ) -> impl Iterator<Item = Result<Batch>> + Send + use<> {
        let whole = Worker::new(0, 1);
        StreamReader::new(self, epoch, size, whole, (0, 0)).map(|part| Ok(part?.batch))
    }

    /// Epoch 0 read into memory, which makes it a dataset.
    ///
    /// # Errors
    /// When an example fails, or there are more than `most`.
    pub fn collect(&self, most: usize) -> Result<Dataset> {
        let examples: Vec<Example> = self
            .iter(0)
            .take(most.saturating_add(1))
            .collect::<Result<_>>()?;
        if examples.len() > most {
            return Err(Error::User(format!(
                "the stream has more than {most} examples; take some of them, or allow more"
            )));
        }
        Ok(Dataset::from_source(Collected(examples)))
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Stream")
    }
}

struct Collected(Vec<Example>);

impl super::Source for Collected {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, i: usize) -> Result<Example> {
        Ok(self.0[i].clone())
    }
}

#[cfg(test)]
mod tests {
    use phalanx_graph::HostTensor;

    use super::*;

    fn count(range: std::ops::Range<i32>) -> Stream {
        Stream::new(move |_| {
            range.clone().map(|i| {
                Ok(Example {
                    x: vec![HostTensor::scalar(i)],
                    ..Example::default()
                })
            })
        })
    }

    fn values(stream: &Stream, epoch: u64) -> Vec<i32> {
        let value = |example: Result<Example>| example.unwrap().x[0].values::<i32>().unwrap()[0];
        stream.iter(epoch).map(value).collect()
    }

    #[test]
    fn an_error_is_not_skipped() {
        let broken = count(0..10).map(|example| match example.x[0].to_f64()[0] {
            2.0 => Err(Error::user("broken")),
            _ => Ok(example),
        });
        assert_eq!(values(&broken.skip(3).take(0), 0), [0; 0]);
        assert!(broken.skip(5).iter(0).next().unwrap().is_err());
        let both = Stream::interleave(&[count(0..2), broken.skip(5)], 1);
        assert!(both.iter(0).any(|example| example.is_err()));
    }

    #[test]
    fn stages_do_what_they_say() {
        let even = count(0..10).filter(|example| example.x[0].to_f64()[0] % 2.0 == 0.0);
        assert_eq!(values(&even.skip(1).take(3), 0), [2, 4, 6]);
        assert_eq!(values(&count(0..2).repeat(2), 0), [0, 1, 0, 1]);
        let inputs = [count(0..3), count(10..11), count(20..25)];
        assert_eq!(
            values(&Stream::interleave(&inputs, 2), 0),
            [0, 1, 10, 20, 21, 2, 22, 23, 24]
        );
        let rows: Vec<_> = count(0..5)
            .batches(0, 2)
            .map(|batch| batch.map(|b| (b.first, b.rows())).unwrap())
            .collect();
        assert_eq!(rows, [(0, 2), (2, 2), (4, 1)]);
        assert_eq!(count(0..5).collect(5).unwrap().len(), Some(5));
        assert!(count(0..5).collect(4).is_err());
        let failing = count(0..5).map(|_| Err(Error::user("no")));
        assert_eq!(failing.iter(0).count(), 1);
    }

    #[test]
    fn a_window_keeps_examples_near_and_loses_none() {
        let shuffled = count(0..100).shuffle(10, 7);
        let order = values(&shuffled, 0);
        assert_ne!(order, values(&shuffled, 1));
        assert_eq!(order, values(&shuffled, 0));
        assert!(
            order
                .iter()
                .enumerate()
                .all(|(at, &value)| value < at as i32 + 10)
        );
        let mut sorted = order;
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..100));
    }

    #[test]
    fn a_window_holds_no_more_bytes_than_it_may() {
        // An example has 4 bytes: 5 of them are held, whatever the window.
        let order = values(&count(0..100).shuffle_within(50, 7, 20), 0);
        let near = |(at, &value): (usize, &i32)| value < at as i32 + 5;
        assert!(order.iter().enumerate().all(near), "{order:?}");
        assert!(
            order
                .iter()
                .enumerate()
                .any(|(at, &value)| value > at as i32 + 2)
        );
        let mut sorted = order;
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..100));
    }
}
