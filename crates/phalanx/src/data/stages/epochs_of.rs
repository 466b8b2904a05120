//! `epochs_of`: epochs of any length, each going on where the one before ended.

use super::Reindex;
use crate::Result;
use crate::data::Batches;

/// Epochs of `n` batches of the input, whose own epochs follow one another without a gap.
#[derive(Clone, Copy)]
struct EpochsOf(usize);

impl Batches {
    /// Epochs of `steps` batches that go on where the one before ended, as Keras' `steps_per_epoch` has them: fewer than the data
    /// have, or more. When all batches were read, the next epoch of the data begins, in its own order.
    ///
    /// ```
    /// use phalanx::data::{Dataset, HostTensor};
    ///
    /// let x = HostTensor::new([5], &[0i32, 1, 2, 3, 4]);
    /// let batches = Dataset::from_arrays(x, Vec::new())?.batch(1).epochs_of(3);
    /// let epoch = |epoch| batches.iter(epoch, 0).map(|batch| batch.unwrap().x[0].values().unwrap()[0]);
    /// assert_eq!(epoch(0).collect::<Vec<i32>>(), [0, 1, 2]);
    /// assert_eq!(epoch(1).collect::<Vec<i32>>(), [3, 4, 0]);
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    #[must_use]
    pub fn epochs_of(&self, steps: usize) -> Self {
        self.reindexed(EpochsOf(steps))
    }
}

impl Reindex for EpochsOf {
    fn len(&self, input: Option<usize>) -> Option<usize> {
        match input {
            Some(0) => Some(0),
            _ => Some(self.0),
        }
    }

    fn locate(&self, input: Option<usize>, epoch: u64, i: usize) -> Result<(u64, usize)> {
        let read = u128::from(epoch) * self.0 as u128 + i as u128;
        let index = |index: u128| usize::try_from(index).unwrap_or(usize::MAX);
        Ok(match input.map(|len| len as u128) {
            None | Some(0) => (0, index(read)),
            Some(len) => ((read / len) as u64, index(read % len)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{AutoShardPolicy, Dataset, HostTensor, Worker};

    fn count_to(len: usize) -> Dataset {
        let values: Vec<i32> = (0..len as i32).collect();
        Dataset::from_arrays(HostTensor::new([len], &values), Vec::new()).unwrap()
    }

    /// The examples of this number of epochs, one after the other.
    fn read(batches: &Batches, epochs: u64) -> Vec<i32> {
        let epochs = (0..epochs).flat_map(|epoch| batches.iter(epoch, 0));
        let rows = epochs.map(|batch| batch.unwrap().x[0].values::<i32>().unwrap());
        rows.flatten().collect()
    }

    #[test]
    fn epochs_follow_one_another_without_a_gap() {
        let ten = count_to(10);
        for steps in [1, 2, 3, 5, 7] {
            // Batches of 4, 4 and 2.
            for batches in [ten.batch(4), ten.shuffle(3).batch(4)] {
                let epochs = batches.epochs_of(steps);
                assert_eq!(epochs.len(), Some(steps));
                let expected = read(&batches, steps as u64);
                assert_eq!(read(&epochs, 3), expected, "{steps} steps");
            }
            let endless = ten.repeat_forever().batch(4).epochs_of(steps);
            let expected: Vec<i32> = (0..4 * 5 * steps as i32).map(|i| i % 10).collect();
            assert_eq!(read(&endless, 5), expected, "{steps} steps of endless data");
        }
        assert_eq!(count_to(0).batch(2).epochs_of(5).len(), Some(0));
        let far = ten.batch(4).epochs_of(usize::MAX);
        assert!(far.get(u64::MAX, 0).is_ok());
    }

    #[test]
    fn workers_together_read_the_same() {
        let batches = count_to(10).shuffle(1).batch(4).epochs_of(2);
        let workers: Vec<Batches> = (0..2)
            .map(|index| {
                let worker = Worker::new(index, 2);
                batches.shard(worker, AutoShardPolicy::Data).unwrap()
            })
            .collect();
        let mut own: Vec<i32> = workers.iter().flat_map(|part| read(part, 3)).collect();
        let mut whole = read(&batches, 3);
        own.sort_unstable();
        whole.sort_unstable();
        assert_eq!(own, whole);
    }
}
