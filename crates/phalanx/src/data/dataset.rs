//! Datasets: a length and a function from (epoch, index) to an example, built in stages.

use std::fmt;
use std::sync::Arc;

use super::batch_builder::BatchBuilder;
use super::buffer_pool::BufferPool;
use super::length_buckets::TensorDims;
use super::pad::Sequences;
use super::shard::whole_files;
use super::stages::{Sharded, Stage};
use super::{Batch, Batches, Example, LostBytes, Pad, Worker};
use crate::{Error, Result};

/// Examples by index: cheap to clone, immutable, and the same for the same epoch and index.
///
/// Every stage gives a new dataset and leaves the old one as it was.
#[derive(Clone)]
pub struct Dataset {
    stage: Arc<dyn Stage>,
}

impl Dataset {
    pub(super) fn of(stage: impl Stage + 'static) -> Self {
        Self {
            stage: Arc::new(stage),
        }
    }

    pub(super) fn stage(&self) -> &dyn Stage {
        &*self.stage
    }

    /// Whether the order changes with the epoch.
    pub(crate) fn shuffles(&self) -> bool {
        self.stage().shuffles()
    }

    /// The first `count` examples and the rest.
    ///
    /// # Errors
    /// When there are fewer examples, or a shuffle comes before: its order changes with the epoch, so examples
    /// would cross from one part to the other.
    pub fn split_at(&self, count: usize) -> Result<(Self, Self)> {
        if self.shuffles() {
            return Err(Error::user(
                "cannot split a shuffled dataset: the order changes each epoch, so examples would cross between the parts; \
                 split first, then shuffle the part that trains",
            ));
        }
        match self.len() {
            Some(len) if len < count => Err(Error::User(format!(
                "cannot split at example {count}: the dataset has {len}; choose a number from 0 to {len}"
            ))),
            _ => Ok((self.take(count), self.skip(count))),
        }
    }

    /// The examples to train on and, from the end, those to validate on: `fraction` of them, as Keras'
    /// `validation_split` (the training part has the floor of `len * (1 - fraction)`).
    ///
    /// # Errors
    /// When the dataset is shuffled, repeated or endless, the fraction is not between 0 and 1, or a part would be empty.
    pub fn validation_split(&self, fraction: f64) -> Result<(Self, Self)> {
        let (Some(len), false) = (self.len(), self.stage().repeats()) else {
            return Err(Error::user(
                "cannot split a repeated dataset: examples would be in both parts; split first, then repeat",
            ));
        };
        let train = (len as f64 * (1.0 - fraction)).floor();
        if !(fraction > 0.0 && fraction < 1.0 && train >= 1.0 && train < len as f64) {
            return Err(Error::User(format!(
                "validation split {fraction} of {len} examples leaves a part empty; choose a fraction between 0 and 1 \
                 that leaves an example on each side"
            )));
        }
        self.split_at(train as usize)
    }

    /// Groups of `size` consecutive examples (the *global* batch); the last of an epoch may have fewer. They stay in order: to train, call
    /// [`shuffle`](Self::shuffle) before.
    #[must_use]
    pub fn batch(&self, size: usize) -> Batches {
        Batches::new(self.clone(), size)
    }

    /// Number of examples in an epoch, `None` when endless.
    #[must_use]
    pub fn len(&self) -> Option<usize> {
        self.stage.len()
    }

    /// Whether an epoch has no example.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// Example `i` of an epoch.
    ///
    /// # Errors
    /// When `i` is past the end, a source or map stage fails, or the example is corrupt and left out.
    pub fn get(&self, epoch: u64, i: usize) -> Result<Example> {
        match self.len() {
            Some(len) if i >= len => Err(Error::User(format!(
                "example {i} asked of {len}; ask for an index below {len}"
            ))),
            _ => self.read(epoch, i)?.ok_or_else(|| {
                Error::User(format!(
                    "example {i} is corrupt and left out; ask for another, or remove skip_corrupt to see why"
                ))
            }),
        }
    }

    /// How often a `skip_corrupt` stage has left out an example so far; counted each time the example is read.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.stage.skipped()
    }

    /// Whether corrupt examples are left out, here or before.
    #[must_use]
    pub fn skips_corrupt(&self) -> bool {
        self.stage.skips_corrupt()
    }

    /// The bytes of files that were left out when they were opened, since nothing says where the next item starts.
    #[must_use]
    pub fn lost(&self) -> Vec<LostBytes> {
        self.stage.lost()
    }
}

/// What stages and batches ask of a dataset.
impl Dataset {
    /// Example `i`, or nothing where it is corrupt and left out.
    pub(super) fn read(&self, epoch: u64, i: usize) -> Result<Option<Example>> {
        self.stage.read(epoch, i, 1)
    }

    /// As [`read`](Self::read); an example that is left out counts as `count` skipped.
    pub(super) fn read_counting_skips(
        &self,
        epoch: u64,
        i: usize,
        count: u64,
    ) -> Result<Option<Example>> {
        self.stage.read(epoch, i, count)
    }

    /// Which example of the data example `i` is, independent of order and worker: an epoch of the source and a number.
    pub(super) fn identity(&self, epoch: u64, i: usize) -> Result<(u64, u64)> {
        self.stage.identity(epoch, i)
    }

    /// The examples at `indices` of an epoch, stacked: straight from the source where no stage needs single examples.
    pub(super) fn gather(&self, epoch: u64, indices: &[usize], pool: &BufferPool) -> Result<Batch> {
        self.stage.gather(epoch, indices, pool)
    }

    /// The examples at `indices` of an epoch, padded and stacked.
    pub(super) fn gather_padded(
        &self,
        epoch: u64,
        indices: &[usize],
        (pad, sequences): (&Pad, &Sequences),
        pool: &BufferPool,
    ) -> Result<Batch> {
        let mut examples = self.read_all(epoch, indices)?;
        pad.apply(&mut examples, sequences)?;
        stacked(&examples, pool)
    }

    /// The examples at `indices` of an epoch, padded to these dims and stacked.
    pub(super) fn gather_padded_to(
        &self,
        epoch: u64,
        indices: &[usize],
        (pad, dims): (&Pad, &TensorDims),
        pool: &BufferPool,
    ) -> Result<Batch> {
        let mut examples = self.read_all(epoch, indices)?;
        pad.apply_to(&mut examples, dims)?;
        stacked(&examples, pool)
    }

    /// The examples at `indices` that are not left out.
    fn read_all(&self, epoch: u64, indices: &[usize]) -> Result<Vec<Example>> {
        let read = indices.iter();
        read.filter_map(|&i| self.read(epoch, i).transpose())
            .collect()
    }

    /// Window length guaranteed to contain every example at least once.
    pub(super) fn coverage_window(&self) -> usize {
        let window = self.stage.coverage_window();
        window.min(self.len().unwrap_or(usize::MAX))
    }

    /// The same stages over the files of one worker.
    pub(super) fn shard_by_file(&self, worker: Worker) -> Sharded {
        match self.stage.per_file() {
            Some(files) => whole_files(self, &files, worker),
            None => self.stage.shard_by_file(worker),
        }
    }
}

fn stacked(examples: &[Example], pool: &BufferPool) -> Result<Batch> {
    let mut stack = BatchBuilder::new(examples.len(), pool);
    examples
        .iter()
        .try_for_each(|example| stack.push(example))?;
    Ok(stack.finish())
}

impl fmt::Debug for Dataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.len() {
            Some(len) => write!(f, "Dataset of {len} examples"),
            None => f.write_str("endless Dataset"),
        }
    }
}

#[cfg(test)]
mod tests {
    use phalanx_graph::HostTensor;

    use super::super::buffer_pool::BufferPool;
    use super::super::{ClassWeights, CsvOptions, Source};
    use super::*;

    fn count_to(len: usize) -> Dataset {
        let values: Vec<i32> = (0..len as i32).collect();
        Dataset::from_arrays(HostTensor::new([len], &values), Vec::new()).unwrap()
    }

    fn value(example: &Example) -> i32 {
        example.x[0].values::<i32>().unwrap()[0]
    }

    /// The examples of an epoch, the first `most` of an endless one, read both ways.
    fn values(dataset: &Dataset, epoch: u64, most: usize) -> Vec<i32> {
        let len = dataset.len().unwrap_or(most);
        let singly: Vec<i32> = (0..len)
            .map(|i| value(&dataset.get(epoch, i).unwrap()))
            .collect();
        if len > 0 {
            let together = dataset
                .gather(epoch, &(0..len).collect::<Vec<_>>(), &BufferPool::default())
                .unwrap();
            assert_eq!(
                together.x[0].values::<i32>().unwrap(),
                singly,
                "gather and get differ"
            );
        }
        singly
    }

    fn sorted(mut values: Vec<i32>) -> Vec<i32> {
        values.sort_unstable();
        values
    }

    #[test]
    fn stages_apply_in_written_order() {
        let ten = count_to(10);
        assert_eq!(values(&ten.take(3), 0, 0), [0, 1, 2]);
        assert_eq!(values(&ten.skip(7), 0, 0), [7, 8, 9]);
        assert_eq!(values(&ten.skip(20), 0, 0), [0; 0]);
        assert_eq!(values(&ten.take(2).repeat(2), 0, 0), [0, 1, 0, 1]);
        assert_eq!(values(&ten.repeat(2).skip(9).take(2), 0, 0), [9, 0]);
        assert_eq!(values(&ten.take(2).repeat_forever(), 0, 5), [0, 1, 0, 1, 0]);
        let joined = ten.take(2).concatenate(&ten.skip(8)).unwrap();
        assert_eq!(values(&joined, 0, 0), [0, 1, 8, 9]);
        assert_eq!(
            joined.gather(0, &[2, 3], &BufferPool::default()).unwrap().x[0]
                .values::<i32>()
                .unwrap(),
            [8, 9]
        );
        assert_eq!(values(&ten.skip(20).repeat_forever(), 0, 5), [0; 0]);
        let doubled = ten.map(|mut example| {
            example.x[0] = HostTensor::scalar(2 * value(&example));
            Ok(example)
        });
        assert_eq!(values(&doubled.take(3), 0, 0), [0, 2, 4]);
        assert_eq!(
            format!("{ten:?} {:?}", ten.repeat_forever()),
            "Dataset of 10 examples endless Dataset"
        );
    }

    #[test]
    fn examples_of_batches_come_back_in_their_order() {
        let ten = count_to(10);
        let again = ten.batch(4).unbatch().unwrap();
        assert_eq!(values(&again, 0, 0), values(&ten, 0, 0));
        let whole = ten.batch(4).drop_remainder().unbatch().unwrap();
        assert_eq!(values(&whole, 0, 0), [0, 1, 2, 3, 4, 5, 6, 7]);
        let changed = ten.batch(4).map(Ok);
        assert!(changed.unbatch().is_err());
    }

    #[test]
    fn take_after_shuffle_takes_the_shuffled_ones() {
        let shuffled = count_to(10).shuffle(3);
        assert_eq!(
            values(&shuffled.take(4), 1, 0),
            values(&shuffled, 1, 0)[..4]
        );
        assert_eq!(
            sorted(values(&count_to(10).take(4).shuffle(3), 1, 0)),
            [0, 1, 2, 3]
        );
    }

    #[test]
    fn each_epoch_and_repetition_has_its_own_order() {
        let shuffled = count_to(50).shuffle(1);
        assert_ne!(values(&shuffled, 0, 0), values(&shuffled, 1, 0));
        assert_ne!(
            values(&shuffled, 0, 0),
            values(&count_to(50).shuffle(2), 0, 0)
        );
        for repeated in [shuffled.repeat(2), shuffled.repeat_forever().take(100)] {
            let both = values(&repeated, 0, 0);
            let (first, second) = both.split_at(50);
            assert_ne!(first, second);
            assert_eq!(sorted(first.to_vec()), sorted(second.to_vec()));
            assert_ne!(first, &values(&repeated, 1, 0)[..50]);
        }
        let last_of_first_epoch = values(&shuffled.repeat(2), 0, 0)[50..].to_vec();
        assert_ne!(last_of_first_epoch, values(&shuffled.repeat(2), 1, 0)[..50]);
    }

    #[test]
    fn splits_are_checked() {
        let ten = count_to(10);
        let (train, test) = ten.split_at(7).unwrap();
        assert_eq!((train.len(), test.len()), (Some(7), Some(3)));
        assert_eq!(values(&test, 0, 0), [7, 8, 9]);
        let (train, validation) = ten.validation_split(0.25).unwrap();
        assert_eq!(
            (train.len(), values(&validation, 0, 0)),
            (Some(7), vec![7, 8, 9])
        );
        let refused = [
            (ten.split_at(11), "the dataset has 10"),
            (
                ten.shuffle(0).take(5).split_at(3),
                "split first, then shuffle",
            ),
            (
                ten.shuffle(0).validation_split(0.5),
                "split first, then shuffle",
            ),
            (
                ten.repeat(2).validation_split(0.5),
                "split first, then repeat",
            ),
            (
                ten.repeat_forever().validation_split(0.5),
                "split first, then repeat",
            ),
            (ten.validation_split(0.0), "choose a fraction"),
            (ten.validation_split(1.0), "choose a fraction"),
            (ten.validation_split(f64::NAN), "choose a fraction"),
            (count_to(1).validation_split(0.5), "leaves a part empty"),
        ];
        for (split, expected) in refused {
            let error = split.unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn mistakes_are_errors() {
        let ten = count_to(10);
        let weights = HostTensor::new([10], &[1.0f32; 10]);
        let errors = [
            ten.get(0, 10).unwrap_err(),
            ten.repeat_forever().shuffle(0).get(0, 0).unwrap_err(),
            ten.repeat_forever().concatenate(&ten).unwrap_err(),
            ten.take(5).with_weights(&weights).unwrap_err(),
            Dataset::from_csv("no/such/file.csv", &CsvOptions::default()).unwrap_err(),
        ];
        let expected = [
            "example 10 asked of 10",
            "put shuffle before repeat_forever",
            "put repeat_forever after concatenate",
            "right after from_arrays",
            "cannot open no/such/file.csv",
        ];
        for (error, expected) in errors.iter().zip(expected) {
            assert!(error.to_string().contains(expected), "{error}");
        }
        assert_eq!(
            ten.with_weights(&weights)
                .unwrap()
                .get(0, 1)
                .unwrap()
                .weight,
            Some(1.0)
        );
    }

    #[test]
    fn class_weights_agree_singly_and_in_batches() {
        let y = HostTensor::new([4], &[0i32, 1, 0, 2]);
        let data = Dataset::from_arrays(HostTensor::new([4], &[0i32; 4]), y).unwrap();
        let weighted = data.class_weights(ClassWeights::new([(0, 3.0), (2, 0.5)]).unwrap());
        let together = weighted
            .gather(0, &[0, 1, 2, 3], &BufferPool::default())
            .unwrap()
            .weight
            .unwrap()
            .f32s();
        let singly: Vec<f32> = (0..4)
            .map(|i| weighted.get(0, i).unwrap().weight.unwrap())
            .collect();
        assert_eq!((&together, &singly), (&vec![3.0, 1.0, 3.0, 0.5], &together));
    }

    #[test]
    fn users_sources_are_read() {
        struct Squares;
        impl Source for Squares {
            fn len(&self) -> usize {
                4
            }
            fn get(&self, i: usize) -> Result<Example> {
                let x = vec![HostTensor::scalar((i * i) as i32)];
                Ok(Example {
                    x,
                    y: Vec::new(),
                    weight: None,
                })
            }
        }
        assert_eq!(values(&Dataset::from_source(Squares), 0, 0), [0, 1, 4, 9]);
    }
}
