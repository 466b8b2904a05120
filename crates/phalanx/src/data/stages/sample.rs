//! `sample`: examples drawn with replacement, each as often as it weighs.
//!
//! Draw `i` of an epoch is a number that follows from (seed, epoch, i), and names the example within whose part of the sum of all weights it
//! falls: a binary search in the sums up to each example. So any worker can read any draw, and resuming needs no state.

use std::slice::from_ref;

use super::{Location, Stage, gather_located};
use crate::data::buffer_pool::BufferPool;
use crate::data::random_key::random_key;
use crate::data::{Batch, Dataset};
use crate::hash::{fraction, splitmix64};
use crate::{Error, Result};

struct Sampled {
    input: Dataset,
    draws: WeightSums,
    count: usize,
    /// Of the seed, so that what is drawn after this by the same seed does not go with what was drawn here.
    key: u64,
}

/// Where the part of each example of the sum of all weights ends.
#[derive(Debug)]
struct WeightSums {
    ends: Vec<f64>,
    /// The last example that has a weight: rounding leads no further.
    last: usize,
}

impl Dataset {
    /// `count` examples in each epoch, drawn anew from (seed, epoch) with replacement, each as often as its weight is of the sum of all: `PyTorch`'s
    /// `WeightedRandomSampler`, for classes of which there are few. `weights` has a number for each example, in their order here.
    ///
    /// An example that is drawn twice in an epoch is one example twice, so that what is [drawn at random](Self::map_random) after this differs.
    /// Losses count examples alike; to weigh what is there once use [`class_weights`](Self::class_weights).
    ///
    /// ```
    /// use phalanx::data::{Dataset, HostTensor};
    ///
    /// let labels = [0, 0, 0, 0, 0, 0, 0, 1];
    /// let data = Dataset::from_arrays([HostTensor::new([8], &[0.0f32; 8])], [HostTensor::new([8], &labels)])?;
    /// // As many of one class as of the other.
    /// let weights = labels.map(|label| [1.0 / 7.0, 1.0][label as usize]);
    /// let even = data.sample(&weights, 1000, 42)?;
    /// let ones = (0..1000).map(|i| even.get(0, i).map(|example| example.y[0].to_f64()[0]));
    /// let ones: f64 = ones.sum::<phalanx::Result<f64>>()?;
    /// assert!((450.0..550.0).contains(&ones));
    /// # phalanx::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// There is not one weight for each example, one is below 0 or not finite, or all are 0; the dataset has no end, or is shuffled, so that the
    /// weights would be of other examples in each epoch.
    pub fn sample(&self, weights: &[f64], count: usize, seed: u64) -> Result<Self> {
        if self.stage().shuffles() {
            return Err(Error::user(
                "the examples to sample from are in another order in each epoch, so that the weights are not theirs; leave out shuffle before sample, \
                 which draws in an order of its own",
            ));
        }
        let draws = WeightSums::new(self.len(), weights)?;
        Ok(Self::of(Sampled {
            input: self.clone(),
            draws,
            count,
            key: splitmix64(seed),
        }))
    }
}

impl Stage for Sampled {
    fn inputs(&self) -> &[Dataset] {
        from_ref(&self.input)
    }

    fn len(&self) -> Option<usize> {
        Some(self.count)
    }

    fn locate(&self, epoch: u64, i: usize) -> Result<Location> {
        let index = self.draws.locate(random_key(self.key, epoch, i as u64));
        Ok(Location {
            input: 0,
            epoch,
            index,
        })
    }

    fn gather(&self, epoch: u64, indices: &[usize], pool: &BufferPool) -> Result<Batch> {
        gather_located(self, epoch, indices, pool)
    }

    /// No window is sure to have an example: the whole epoch.
    fn coverage_window(&self) -> usize {
        self.count
    }

    fn shuffles(&self) -> bool {
        true
    }

    fn repeats(&self) -> bool {
        true
    }
}

impl WeightSums {
    fn new(len: Option<usize>, weights: &[f64]) -> Result<Self> {
        let Some(len) = len else {
            return Err(Error::user(
                "cannot sample an endless dataset, of which there is no weight for each example; put sample before repeat_forever",
            ));
        };
        if weights.len() != len {
            return Err(Error::User(format!(
                "sample was given {} weights for {len} examples; give one for each, in the order of the examples",
                weights.len()
            )));
        }
        let is_wrong = |weight: &f64| !weight.is_finite() || *weight < 0.0;
        if let Some(at) = weights.iter().position(is_wrong) {
            return Err(Error::User(format!(
                "weight {at} of sample is {}, expected a finite number from 0 up",
                weights[at]
            )));
        }
        // Each as a part of the greatest, so that the sum is finite.
        let greatest = weights.iter().copied().fold(0.0, f64::max);
        let Some(last) = weights.iter().rposition(|weight| *weight / greatest > 0.0) else {
            return Err(Error::user(
                "all weights of sample are 0; give at least one example a weight above 0",
            ));
        };
        let mut sum = 0.0;
        let ends = weights.iter().map(|weight| {
            sum += weight / greatest;
            sum
        });
        Ok(Self {
            ends: ends.collect(),
            last,
        })
    }

    /// The example that a random number names.
    fn locate(&self, random: u64) -> usize {
        let at = fraction(random) * self.ends[self.last];
        self.ends.partition_point(|end| *end <= at).min(self.last)
    }
}

#[cfg(test)]
mod tests {
    use phalanx_graph::HostTensor;

    use super::*;

    fn numbers(len: usize) -> Dataset {
        let numbers: Vec<f32> = (0..len).map(|i| i as f32).collect();
        let numbers = HostTensor::new([len], &numbers);
        Dataset::from_arrays([numbers.clone()], [numbers]).unwrap()
    }

    fn drawn(data: &Dataset, epoch: u64) -> Vec<usize> {
        let all = 0..data.len().unwrap();
        all.map(|i| data.get(epoch, i).unwrap().x[0].f32s()[0] as usize)
            .collect()
    }

    #[test]
    fn examples_are_drawn_as_often_as_they_weigh() {
        let weights = [0.0, 1.0, 0.0, 5.0, 1e-300, 2.0, 0.0];
        let data = numbers(7).sample(&weights, 80_000, 3).unwrap();
        let mut counts = [0usize; 7];
        for at in drawn(&data, 0) {
            counts[at] += 1;
        }
        for (at, weight) in weights.iter().enumerate() {
            let expected = weight / 8.0 * 80_000.0;
            let deviation = (expected * (1.0 - weight / 8.0)).sqrt();
            assert!(
                (counts[at] as f64 - expected).abs() <= 5.0 * deviation,
                "{at}: {counts:?}"
            );
        }
    }

    /// Pinned: a change here changes the order of every user's data.
    #[test]
    fn draws_follow_from_seed_and_epoch_alone() {
        let data = numbers(4).sample(&[1.0, 2.0, 3.0, 4.0], 12, 7).unwrap();
        assert_eq!(drawn(&data, 0), [1, 0, 1, 3, 1, 3, 1, 1, 2, 2, 2, 0]);
        assert_ne!(drawn(&data, 0), drawn(&data, 1));
        let batch = data.batch(5).get(0, 1).unwrap();
        let one_by_one: Vec<f32> = drawn(&data, 0)[5..10].iter().map(|&i| i as f32).collect();
        assert_eq!(batch.x[0].f32s(), one_by_one);
    }

    #[test]
    fn an_example_that_is_drawn_again_is_changed_otherwise() {
        let one = numbers(1).sample(&[1.0], 8, 0).unwrap();
        let keyed = one.map_random(0, |key, mut example| {
            example.x = vec![HostTensor::new([], &[(key >> 40) as f32])];
            Ok(example)
        });
        let mut keys = drawn(&keyed, 0);
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 8);
    }

    #[test]
    fn the_ends_of_the_range_of_random_numbers_name_examples_with_a_weight() {
        let draws = WeightSums::new(Some(4), &[0.0, f64::MAX, f64::MAX, 0.0]).unwrap();
        assert_eq!([draws.locate(0), draws.locate(u64::MAX)], [1, 2]);
    }

    #[test]
    fn weights_that_say_nothing_are_refused() {
        let refused = |weights: &[f64]| match numbers(2).sample(weights, 4, 0) {
            Err(error) => error.to_string(),
            Ok(_) => panic!("{weights:?} were taken"),
        };
        assert!(refused(&[1.0]).contains("1 weights for 2 examples"));
        assert!(refused(&[1.0, -1.0]).contains("weight 1 of sample is -1"));
        assert!(refused(&[f64::NAN, 1.0]).contains("weight 0 of sample is NaN"));
        assert!(refused(&[0.0, 0.0]).contains("all weights of sample are 0"));
        let endless = numbers(2).repeat_forever().sample(&[1.0, 1.0], 4, 0);
        assert!(endless.err().unwrap().to_string().contains("endless"));
        let shuffled = numbers(2).shuffle(1).sample(&[1.0, 1.0], 4, 0);
        assert!(
            shuffled
                .err()
                .unwrap()
                .to_string()
                .contains("leave out shuffle")
        );
    }
}
