//! `bucket_by_sequence_length`: batches of examples of similar lengths.
//!
//! The dims of all examples are found once. With the order of an epoch they decide which examples are in which batch, as in `tf.data`:
//! each example goes into the bucket of its length, and a bucket that is full is the next batch. So every worker knows every batch of an
//! epoch and its dims by arithmetic, without a state that reading changes.

use std::sync::{Arc, Mutex, PoisonError};

use phalanx_graph::{DType, HostTensor};

use super::agreement::of_place;
use super::global_batch::slice_of;
use super::stages::permute;
use super::{AutoShardPolicy, Batch, Batches, Dataset, Example, Worker, WorkerPart};
use crate::{Error, Result};

/// Buckets of lengths, for [`Dataset::bucket_by_sequence_length`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LengthBuckets {
    boundaries: Vec<usize>,
    batch_sizes: Vec<usize>,
    seed: Option<u64>,
    to_boundary: bool,
    sequences: Option<Vec<usize>>,
}

impl LengthBuckets {
    /// One bucket more than there are boundaries: bucket `i` has the lengths from `boundaries[i - 1]` up to, but not including,
    /// `boundaries[i]`, in batches of `batch_sizes[i]` examples (the *global* batch).
    ///
    /// # Errors
    /// When boundaries do not rise, or batch sizes are not one more than these, or 0.
    pub fn new(
        boundaries: impl Into<Vec<usize>>,
        batch_sizes: impl Into<Vec<usize>>,
    ) -> Result<Self> {
        let (boundaries, batch_sizes) = (boundaries.into(), batch_sizes.into());
        let rises = boundaries.windows(2).all(|two| two[0] < two[1]);
        if boundaries.is_empty() || !rises || boundaries[0] == 0 {
            return Err(Error::User(format!(
                "the boundaries of lengths are {boundaries:?}, expected rising numbers from 1 on, at least one"
            )));
        }
        if batch_sizes.len() != boundaries.len() + 1 || batch_sizes.contains(&0) {
            return Err(Error::User(format!(
                "{} boundaries make {} buckets, and their batch sizes are {batch_sizes:?}; give each bucket a number from 1 on",
                boundaries.len(),
                boundaries.len() + 1
            )));
        }
        Ok(Self {
            boundaries,
            batch_sizes,
            seed: None,
            to_boundary: false,
            sequences: None,
        })
    }

    /// Takes the examples in an order drawn from (seed, epoch), as [`Dataset::shuffle`] does, and so batches of other examples in another
    /// order in each epoch.
    #[must_use]
    pub const fn shuffle(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Pads to the longest length that a bucket may have, its boundary less 1, and not to the longest of each batch: a program is
    /// compiled for each bucket, not for each length (`pad_to_bucket_boundary`). No length may reach the last boundary.
    #[must_use]
    pub const fn pad_to_boundary(mut self) -> Self {
        self.to_boundary = true;
        self
    }

    /// Says which inputs have the length as their first dim, and that no output has. It matters where all examples happen to be equally
    /// long: else each first dim that is the length in all of them is padded, also of a class or of numbers that are as many by chance.
    #[must_use]
    pub fn sequences(mut self, inputs: impl Into<Vec<usize>>) -> Self {
        self.sequences = Some(inputs.into());
        self
    }

    /// The bucket of a length.
    fn of(&self, length: usize) -> usize {
        self.boundaries.partition_point(|&bound| bound <= length)
    }

    /// The longest length of a bucket, where batches are padded to it.
    fn bound(&self, bucket: usize) -> Option<usize> {
        let bound = self.boundaries.get(bucket).filter(|_| self.to_boundary);
        bound.map(|&bound| (bound - 1).max(1))
    }
}

impl Dataset {
    /// Batches of examples of similar lengths, padded at their end (`tf.data`'s `bucket_by_sequence_length`): fewer padding than in
    /// batches of any lengths. `length` is asked once for each example, which reads all of them now.
    ///
    /// Dims that differ between examples of the data, and first dims that are the length in all of them ([`LengthBuckets::sequences`]), are
    /// padded to the longest of their batch, or to the boundary of the bucket; with what says [`Batches::pad`], by default 0. A batch that no
    /// example fills comes at the end of the epoch, or is left out by [`Batches::drop_remainder`]. Each example comes once in an epoch.
    ///
    /// Predictions are in the order of the batches. All workers have batches of equal dims in a step, so models of inputs of any length
    /// train in several processes too; each reads its rows of every batch. Unlike in `tf.data`, [`LengthBuckets::shuffle`] shuffles, not a stage before, and no batch has the length 0.
    ///
    /// ```
    /// use phalanx::data::{Dataset, Example, HostTensor, LengthBuckets, Stream};
    ///
    /// let text = |length: usize| Example { x: vec![HostTensor::new([length], &vec![1i32; length])], ..Example::default() };
    /// let texts = Stream::new(move |_| [3, 9, 2, 3].into_iter().map(move |length| Ok(text(length)))).collect(4)?;
    /// let buckets = LengthBuckets::new([5], [2, 1])?;
    /// let batches = texts.bucket_by_sequence_length(|example| example.x[0].rows(), &buckets)?;
    /// let dims = |batch: phalanx::Result<phalanx::data::Batch>| Ok(batch?.x[0].dims().to_vec());
    /// let dims: Vec<Vec<usize>> = batches.iter(0, 0).map(dims).collect::<phalanx::Result<_>>()?;
    /// assert_eq!(dims, [[1, 9], [2, 3], [1, 3]]);
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    ///
    /// # Errors
    /// When an example cannot be read, has a length that no bucket may have or tensors unlike the first's, or the dataset is shuffled,
    /// repeated or endless.
    pub fn bucket_by_sequence_length(
        &self,
        length: impl Fn(&Example) -> usize,
        buckets: &LengthBuckets,
    ) -> Result<Batches> {
        let moves = self.stage().shuffles() || self.stage().repeats();
        let (Some(len), false) = (self.len(), moves) else {
            return Err(Error::user(
                "cannot put a shuffled or repeated dataset into buckets: which lengths it has must not depend on the epoch; \
                 shuffle by `LengthBuckets::shuffle`, and repeat the batches",
            ));
        };
        let mut table = DimTable::default();
        let mut lengths = Vec::with_capacity(len);
        for i in 0..len {
            // Counts as 0 skips: what is in no bucket is counted in each epoch and evaluation.
            let example = self.read_counting_skips(0, i, 0)?;
            lengths.push(example.as_ref().map(&length));
            table.push(example.as_ref(), i)?;
        }
        let table = table.of_those_to_pad(&lengths, buckets.sequences.as_deref());
        let plan = BucketPlan::new(buckets.clone(), &lengths, table);
        plan.check_bounds(&lengths)?;
        let largest = buckets.batch_sizes.iter().copied().max().unwrap_or(1);
        Ok(Batches::new(self.clone(), largest).bucketed(plan))
    }
}

/// Which examples are in which batch of an epoch, and what dims batches have.
pub(super) struct BucketPlan {
    buckets: LengthBuckets,
    /// The bucket of each example; none of one that is corrupt and left out.
    of_example: Vec<Option<usize>>,
    /// Number of examples in each bucket.
    counts: Vec<usize>,
    /// A checksum of what decides which examples are in which batch.
    checksum: u32,
    table: DimTable,
    /// The epochs that were asked for last, without remainders or with them.
    orders: Mutex<Vec<(OrderKey, Arc<EpochOrder>)>>,
}

/// An epoch, and whether batches that are not full are left out.
type OrderKey = (u64, bool);

/// The batches of an epoch.
struct EpochOrder {
    /// The examples, batch after batch.
    examples: Vec<usize>,
    /// The first example and the bucket of each batch.
    batches: Vec<(usize, usize)>,
}

impl EpochOrder {
    fn of(&self, batch: usize) -> Option<(&[usize], usize)> {
        let &(start, bucket) = self.batches.get(batch)?;
        let next = self.batches.get(batch + 1);
        let end = next.map_or(self.examples.len(), |&(start, _)| start);
        Some((&self.examples[start..end], bucket))
    }

    fn push(&mut self, bucket: usize, examples: &mut Vec<usize>) {
        self.batches.push((self.examples.len(), bucket));
        self.examples.append(examples);
    }
}

impl BucketPlan {
    fn new(buckets: LengthBuckets, lengths: &[Option<usize>], table: DimTable) -> Self {
        let lengths = lengths.iter();
        let of_example = lengths.map(|length| length.map(|length| buckets.of(length)));
        let of_example: Vec<_> = of_example.collect();
        let mut counts = vec![0; buckets.batch_sizes.len()];
        (of_example.iter().flatten()).for_each(|&bucket| counts[bucket] += 1);
        let (seed, is_shuffled) = (buckets.seed.unwrap_or(0), buckets.seed.is_some());
        let numbers = buckets.boundaries.iter().chain(&buckets.batch_sizes);
        let examples = of_example.iter();
        let examples = examples.map(|bucket| bucket.map_or(0, |bucket| bucket + 1));
        let checksum = numbers.copied().chain(examples).fold(
            of_place(0, seed, usize::from(is_shuffled)),
            |sum, number| of_place(sum, 0, number),
        );
        Self {
            buckets,
            of_example,
            counts,
            checksum,
            table,
            orders: Mutex::default(),
        }
    }

    /// Number of batches in an epoch, the same in all.
    pub(super) fn len(&self, drop_remainder: bool) -> usize {
        let counts = self.counts.iter().zip(&self.buckets.batch_sizes);
        let batches = counts.map(|(&count, &size)| match drop_remainder {
            true => count / size,
            false => count.div_ceil(size),
        });
        batches.sum()
    }

    /// A checksum of what decides which examples are in which batch.
    pub(super) fn checksum(&self, drop_remainder: bool) -> u32 {
        of_place(self.checksum, 0, usize::from(drop_remainder))
    }

    fn order(&self, key: OrderKey) -> Arc<EpochOrder> {
        // A batch ahead may be of the next epoch.
        const KEPT: usize = 2;
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, order)) = orders.iter().find(|(other, _)| *other == key) {
            return Arc::clone(order);
        }
        if orders.len() == KEPT {
            orders.remove(0);
        }
        let order = Arc::new(self.make_order(key));
        orders.push((key, Arc::clone(&order)));
        order
    }

    /// As `tf.data` makes batches: one when its bucket is full; at the end those that are not, by length.
    fn make_order(&self, (epoch, drop_remainder): OrderKey) -> EpochOrder {
        let len = self.of_example.len();
        let mut order = EpochOrder {
            examples: Vec::with_capacity(len),
            batches: Vec::new(),
        };
        let mut open = vec![Vec::new(); self.buckets.batch_sizes.len()];
        for i in 0..len {
            let example = self.buckets.seed.map_or(i, |seed| {
                permute(len as u64, seed, epoch, i as u64) as usize
            });
            let Some(bucket) = self.of_example[example] else {
                continue;
            };
            open[bucket].push(example);
            if open[bucket].len() == self.buckets.batch_sizes[bucket] {
                order.push(bucket, &mut open[bucket]);
            }
        }
        let left = open.iter_mut().enumerate();
        for (bucket, examples) in left.filter(|(_, left)| !drop_remainder && !left.is_empty()) {
            order.push(bucket, examples);
        }
        order
    }

    /// Refuses a dim that is longer than its bucket may have.
    fn check_bounds(&self, lengths: &[Option<usize>]) -> Result<()> {
        if !self.buckets.to_boundary {
            return Ok(());
        }
        for (example, length) in lengths.iter().enumerate() {
            let Some(length) = *length else { continue };
            let bucket = self.buckets.of(length);
            let longest = self.table.longest(example).max(length);
            if self
                .buckets
                .bound(bucket)
                .is_none_or(|bound| longest > bound)
            {
                let most = self.buckets.boundaries.get(bucket);
                let most = most.or(self.buckets.boundaries.last()).unwrap_or(&0);
                return Err(Error::User(format!(
                    "example {example} is {longest} long, and with `pad_to_boundary` its bucket ends below {most}; raise the boundaries, or leave `pad_to_boundary` out"
                )));
            }
        }
        Ok(())
    }

    /// Number of examples that are in no bucket because they are corrupt.
    fn left_out(&self) -> u64 {
        let corrupt = self.of_example.iter().filter(|bucket| bucket.is_none());
        corrupt.count() as u64
    }

    /// The dims that the examples of a batch are padded to.
    fn dims(&self, examples: &[usize], bucket: usize, multiple: usize) -> TensorDims {
        let bound = self.buckets.bound(bucket);
        self.table.padded(examples, |longest| {
            bound.unwrap_or_else(|| longest.max(1).next_multiple_of(multiple.max(1)))
        })
    }
}

/// The dims of each tensor, inputs first.
pub(super) type TensorDims = Vec<Vec<usize>>;

/// The dims of all examples.
#[derive(Default)]
struct DimTable {
    /// The element types and dims of the first example.
    first: Vec<(DType, Vec<usize>)>,
    /// How many of these are inputs.
    inputs: usize,
    /// Which dims the rows of the table have: a tensor and a dim of it.
    columns: Vec<(usize, usize)>,
    sizes: Vec<usize>,
    rows: usize,
}

impl DimTable {
    /// Adds the dims of example `i`, or a row that says nothing.
    fn push(&mut self, example: Option<&Example>, i: usize) -> Result<()> {
        self.rows += 1;
        let Some(example) = example else {
            self.sizes.extend(self.columns.iter().map(|_| 0));
            return Ok(());
        };
        let tensors = || example.x.iter().chain(&example.y);
        if self.first.is_empty() {
            let own = |tensor: &HostTensor| (tensor.dtype(), tensor.dims().to_vec());
            self.first = tensors().map(own).collect();
            self.inputs = example.x.len();
            let tensors = self.first.iter().enumerate();
            let dims = tensors.flat_map(|(t, (_, dims))| (0..dims.len()).map(move |k| (t, k)));
            self.columns = dims.collect();
            // Corrupt ones before it.
            self.sizes = vec![0; (self.rows - 1) * self.columns.len()];
        }
        let like = |(tensor, (dtype, dims)): (&HostTensor, &(DType, Vec<usize>))| {
            tensor.dtype() == *dtype && tensor.dims().len() == dims.len()
        };
        if tensors().count() != self.first.len() || !tensors().zip(&self.first).all(like) {
            let of = |(dtype, dims): &(DType, Vec<usize>)| format!("{dtype}{dims:?}");
            let shown: Vec<String> = tensors().map(|tensor| tensor.shape().to_string()).collect();
            let first: Vec<String> = self.first.iter().map(of).collect();
            return Err(Error::User(format!(
                "example {i} has the tensors {}, and the first {}; padding makes dims longer, bring element types and numbers of dims into line in a map stage",
                shown.join(", "),
                first.join(", ")
            )));
        }
        self.sizes.extend(tensors().flat_map(HostTensor::dims));
        Ok(())
    }

    /// The same with the dims alone that are not the same in all examples, or the length in all, of sequences if these are known.
    fn of_those_to_pad(self, lengths: &[Option<usize>], sequences: Option<&[usize]>) -> Self {
        let width = self.columns.len();
        let may_be_long = |tensor: usize| {
            sequences.is_none_or(|inputs| tensor < self.inputs && inputs.contains(&tensor))
        };
        let is_padded = |&column: &usize| {
            let (tensor, dim) = self.columns[column];
            let first = self.first[tensor].1[dim];
            let sizes = self.sizes.iter().skip(column).step_by(width.max(1));
            // A corrupt example has no size.
            let sizes = sizes.zip(lengths);
            let mut sizes = sizes.filter_map(|(&size, length)| Some((size, (*length)?)));
            let is_length = dim == 0
                && may_be_long(tensor)
                && sizes.clone().all(|(size, length)| size == length);
            is_length || sizes.any(|(size, _)| size != first)
        };
        let kept: Vec<usize> = (0..width).filter(is_padded).collect();
        let rows = (0..self.rows).flat_map(|row| kept.iter().map(move |k| (row, k)));
        Self {
            sizes: rows.map(|(row, k)| self.sizes[row * width + k]).collect(),
            columns: kept.iter().map(|&k| self.columns[k]).collect(),
            ..self
        }
    }

    fn row(&self, example: usize) -> &[usize] {
        &self.sizes[example * self.columns.len()..][..self.columns.len()]
    }

    /// The longest of an example's dims that are padded.
    fn longest(&self, example: usize) -> usize {
        self.row(example).iter().copied().max().unwrap_or(0)
    }

    /// The dims of all tensors where those to pad are what `padded` makes of the longest of these examples.
    fn padded(&self, examples: &[usize], padded: impl Fn(usize) -> usize) -> TensorDims {
        let mut dims: TensorDims = self.first.iter().map(|(_, dims)| dims.clone()).collect();
        for (column, &(tensor, dim)) in self.columns.iter().enumerate() {
            let sizes = examples.iter().map(|&example| self.row(example)[column]);
            dims[tensor][dim] = padded(sizes.max().unwrap_or(0));
        }
        dims
    }
}

/// What batches by length do otherwise than batches of one size.
impl Batches {
    /// Whether batches are by length, and so of equal dims in a step for all workers.
    pub(crate) const fn is_by_length(&self) -> bool {
        self.plan.is_some()
    }

    /// Number of examples that no epoch reads, as they are corrupt and so in no bucket.
    pub(crate) fn in_no_bucket(&self) -> u64 {
        self.plan.as_ref().map_or(0, |plan| plan.left_out())
    }

    /// Number of rows of a full batch like batch `i`, where batches are by length.
    pub(crate) fn full_rows(&self, epoch: u64, i: usize) -> Option<usize> {
        let plan = self.plan.as_ref()?;
        let (epoch, index) = self.locate(epoch, i).ok()?;
        let order = plan.order((epoch, self.drop_remainder));
        let (_, bucket) = order.of(index)?;
        Some(plan.buckets.batch_sizes[bucket])
    }

    /// The position in its epoch of the first example of the batch that `batch` made as this one.
    pub(super) fn first_of(&self, plan: &BucketPlan, epoch: u64, index: usize) -> u64 {
        let order = plan.order((epoch, self.drop_remainder));
        let batch = order.batches.get(index);
        batch.map_or(0, |&(start, _)| start as u64)
    }

    /// Some places of the dataset that a batch has examples of: the first and one in its middle.
    pub(super) fn places_of(&self, plan: &BucketPlan, epoch: u64, index: usize) -> [usize; 2] {
        let order = plan.order((epoch, self.drop_remainder));
        let examples = order.of(index).map_or(&[][..], |(examples, _)| examples);
        [0, examples.len() / 2].map(|k| examples.get(k).copied().unwrap_or(usize::MAX))
    }

    /// This worker's rows of a batch, padded as in all workers.
    pub(super) fn gather_bucketed(&self, plan: &BucketPlan, epoch: u64, i: usize) -> Result<Batch> {
        let order = plan.order((epoch, self.drop_remainder));
        let Some((all, bucket)) = order.of(i) else {
            return Err(Error::Bug(format!(
                "batch {i} of an epoch that ends before"
            )));
        };
        let pad = self.pad.unwrap_or_default();
        let dims = plan.dims(all, bucket, pad.multiple);
        let (start, size) = slice_of(self.worker(), all.len(), i);
        let gather = |examples: &[usize]| {
            let to = (&pad, &dims);
            self.input
                .gather_padded_to(epoch, examples, to, &self.buffer_pool)
        };
        match size {
            0 => Ok(gather(&all[..1])?.without_rows()),
            _ => gather(&all[start..start + size]),
        }
    }

    /// How this worker's rows of a step lie in its batch.
    pub(super) fn bucketed_part(&self, plan: &BucketPlan, epoch: u64, step: usize) -> WorkerPart {
        let order = plan.order((epoch, self.drop_remainder));
        let (rows, full) = order.of(step).map_or((0, 0), |(all, bucket)| {
            (all.len(), plan.buckets.batch_sizes[bucket])
        });
        let worker = self.worker();
        WorkerPart {
            first_row: slice_of(worker, rows, step).0,
            is_even: rows == full && full.is_multiple_of(worker.count * worker.replicas),
        }
    }
}

/// The policy by which batches by length are divided: by position.
pub(super) fn policy(worker: Worker, policy: AutoShardPolicy) -> Result<AutoShardPolicy> {
    match policy {
        AutoShardPolicy::File | AutoShardPolicy::Off if worker.count > 1 => {
            Err(Error::User(format!(
                "cannot shard batches by length with the policy {policy}: which examples are in a batch depends on all of them; choose auto or data"
            )))
        }
        _ => Ok(AutoShardPolicy::Data),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Pad, Position, Source};
    use super::*;

    /// Example i: as many numbers from 100 i on as the list says, and a class.
    #[derive(Clone)]
    struct Sequences(Vec<usize>);

    impl Source for Sequences {
        fn len(&self) -> usize {
            self.0.len()
        }

        fn get(&self, i: usize) -> Result<Example> {
            let numbers: Vec<i32> = (0..self.0[i]).map(|k| (100 * i + k) as i32).collect();
            Ok(Example {
                x: vec![HostTensor::new([numbers.len()], &numbers)],
                y: vec![HostTensor::scalar(i as i32)],
                ..Example::default()
            })
        }
    }

    fn bucketed(lengths: &[usize], buckets: &LengthBuckets) -> Result<Batches> {
        let data = Dataset::from_source(Sequences(lengths.to_vec()));
        data.bucket_by_sequence_length(|example| example.x[0].rows(), buckets)
    }

    /// The rows of the batches of an epoch.
    fn rows(batches: &Batches, epoch: u64) -> Vec<Vec<Vec<i32>>> {
        let of = |batch: Result<Batch>| {
            let batch = batch.unwrap();
            let (width, all) = (batch.x[0].dims()[1], batch.x[0].values::<i32>().unwrap());
            all.chunks(width).map(<[i32]>::to_vec).collect()
        };
        batches.iter(epoch, 0).map(of).collect()
    }

    /// The examples of some batches by their classes.
    fn examples(batches: impl IntoIterator<Item = Result<Batch>>) -> Vec<Vec<i32>> {
        let of = |batch: Result<Batch>| batch.unwrap().y[0].values::<i32>().unwrap();
        batches.into_iter().map(of).collect()
    }

    #[test]
    fn batches_are_those_of_tensorflow() {
        let golden = include_str!("../../../../tests/golden/tensorflow/buckets.json");
        let golden: Vec<serde_json::Value> = serde_json::from_str(golden).unwrap();
        assert_eq!(golden.len(), 5);
        for case in golden {
            let list =
                |key: &str| -> Vec<usize> { serde_json::from_value(case[key].clone()).unwrap() };
            let buckets = LengthBuckets::new(list("boundaries"), list("batch_sizes")).unwrap();
            let buckets = match case["pad_to_boundary"].as_bool().unwrap() {
                true => buckets.pad_to_boundary(),
                false => buckets,
            };
            let batches = bucketed(&list("lengths"), &buckets).unwrap();
            let pad = Pad {
                x: -1.0,
                ..Pad::default()
            };
            let batches = match case["drop_remainder"].as_bool().unwrap() {
                true => batches.drop_remainder().pad(pad),
                false => batches.pad(pad),
            };
            let expected: Vec<Vec<Vec<i32>>> =
                serde_json::from_value(case["batches"].clone()).unwrap();
            assert_eq!(rows(&batches, 0), expected, "{case}");
            assert_eq!(batches.len(), Some(expected.len()));
        }
    }

    #[test]
    fn each_epoch_has_its_order_and_where_batches_begin_is_known() {
        let lengths: Vec<usize> = (0..40).map(|i| 1 + i * 7 % 10).collect();
        let buckets = LengthBuckets::new([4, 8], [6, 4, 3]).unwrap().shuffle(3);
        let batches = bucketed(&lengths, &buckets).unwrap();
        assert_eq!(rows(&batches, 0), rows(&batches, 0));
        assert_ne!(rows(&batches, 0), rows(&batches, 1));
        let mut before = 0;
        for batch in batches.iter(1, 0) {
            let batch = batch.unwrap();
            assert_eq!(batch.first, before);
            before += batch.rows() as u64;
        }
        assert_eq!(before, 40);
        let mut iter = batches.iter(2, 0);
        let full: Vec<_> = std::iter::from_fn(|| {
            let batch = iter.next()?.unwrap();
            Some((batch.x[0].dims()[1], iter.full_rows().unwrap()))
        })
        .collect();
        for (length, full) in full {
            assert_eq!(full, [6, 4, 3][buckets.of(length)], "{length}");
        }
        let multiple = Pad {
            multiple: 4,
            ..Pad::default()
        };
        let dims = |batch: Result<Batch>| batch.unwrap().x[0].dims()[1];
        let padded: Vec<usize> = batches.pad(multiple).iter(0, 0).map(dims).collect();
        assert!(
            padded.iter().all(|length| [4, 8, 12].contains(length)),
            "{padded:?}"
        );
        let tail = examples(batches.skip(5).iter(1, 2));
        assert_eq!(tail, examples(batches.iter(1, 7)));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn workers_have_the_parts_of_batches_of_one_shape_whoever_read_before(
            lengths in prop::collection::vec(0usize..12, 1..50), sizes in prop::collection::vec(1usize..7, 3), seed: Option<u64>,
            to_boundary: bool, drop: bool, workers in prop::collection::vec(1usize..5, 1..4), replicas in 1usize..3, steps in 0usize..4, prefetch in 0usize..3,
        ) {
            let mut buckets = LengthBuckets::new([3, 7], sizes).unwrap();
            if to_boundary {
                buckets = LengthBuckets::new([3, 7, 12], [&buckets.batch_sizes[..], &[1]].concat()).unwrap().pad_to_boundary();
            }
            let buckets = match seed { Some(seed) => buckets.shuffle(seed), None => buckets };
            let whole = bucketed(&lengths, &buckets).unwrap();
            let whole = if drop { whole.drop_remainder() } else { whole };
            let expected: Vec<Batch> = whole.iter(1, 0).map(Result::unwrap).collect();
            if !drop {
                let mut all = examples(whole.iter(1, 0)).concat();
                all.sort_unstable();
                prop_assert!(all.into_iter().eq(0..lengths.len() as i32));
            }
            let (mut done, mut position) = (0, Position::start(1));
            for (turn, &count) in workers.iter().enumerate() {
                let most = if turn + 1 == workers.len() { usize::MAX } else { steps };
                let part = |index| {
                    let worker = Worker { index, count, replicas };
                    whole.prefetch(prefetch).shard(worker, AutoShardPolicy::Auto).unwrap()
                };
                let parts: Vec<Batches> = (0..count).map(part).collect();
                let mut readers: Vec<_> = parts.iter().map(|part| part.iter_at(&position).unwrap()).collect();
                for _ in 0..most {
                    let read: Vec<Batch> = readers.iter_mut().filter_map(Iterator::next).map(Result::unwrap).collect();
                    if read.is_empty() {
                        break;
                    }
                    let whole = &expected[done];
                    prop_assert_eq!(read.len(), count);
                    let mut rows = 0;
                    for (part, reader) in read.iter().zip(&readers) {
                        prop_assert_eq!(&part.x[0].dims()[1..], &whole.x[0].dims()[1..], "all have one shape");
                        prop_assert_eq!(&part.x[0].values::<i32>().unwrap()[..], &whole.x[0].slice_rows(rows, rows + part.rows()).values::<i32>().unwrap()[..]);
                        if let Some(of) = reader.worker_part().unwrap() {
                            prop_assert_eq!(of.first_row, rows);
                            let all = count * replicas;
                            prop_assert_eq!(of.is_even, whole.rows().is_multiple_of(all) && Some(whole.rows()) == reader.full_rows());
                        }
                        rows += part.rows();
                    }
                    prop_assert_eq!(rows, whole.rows());
                    done += 1;
                }
                let text = serde_json::to_string(&readers[0].position()).unwrap();
                position = serde_json::from_str(&text).unwrap();
            }
            prop_assert_eq!(done, expected.len());
        }
    }

    #[test]
    fn a_position_of_other_buckets_is_refused_within_an_epoch() {
        let lengths = [3, 1, 4, 1, 5, 9, 2, 6];
        let of = |sizes: [usize; 2], seed| {
            bucketed(
                &lengths,
                &LengthBuckets::new([4], sizes).unwrap().shuffle(seed),
            )
            .unwrap()
        };
        let first = of([4, 2], 1);
        let mut read = first.iter(0, 0);
        read.next().unwrap().unwrap();
        let position = read.position();
        let others = [
            of([4, 2], 2),
            of([4, 3], 1),
            first.drop_remainder(),
            first.dataset().batch(4),
        ];
        for other in others {
            let error = other.iter_at(&position).unwrap_err().to_string();
            assert!(error.contains("other batches by length"), "{error}");
        }
        let old = Dataset::from_source(Sequences(lengths.to_vec())).batch(4);
        let mut read = old.pad(Pad::default()).iter(0, 0);
        read.next().unwrap().unwrap();
        assert!(first.iter_at(&read.position()).is_err());
        assert_ne!(
            first.facts("training", 0),
            of([4, 2], 2).facts("training", 0)
        );
        assert_eq!(
            first.facts("training", 0),
            of([4, 2], 1).facts("training", 0)
        );
    }

    #[test]
    fn dims_that_differ_are_padded_and_others_stay() {
        let data = Dataset::from_source(Sequences(vec![2, 5, 3])).map(|mut example| {
            let length = example.x[0].rows();
            example.y = vec![
                HostTensor::new([3], &[0.0f32, 1.0, 0.0]),
                HostTensor::new([2, length], &vec![1i32; 2 * length]),
            ];
            Ok(example)
        });
        let buckets = LengthBuckets::new([4, 9], [2, 2, 1]).unwrap();
        let length = |example: &Example| example.x[0].rows();
        let dims = |buckets: &LengthBuckets| {
            let batches = data.bucket_by_sequence_length(length, buckets).unwrap();
            let batch = batches.get(0, 0).unwrap();
            let tensors = batch.x.iter().chain(&batch.y);
            tensors
                .map(|tensor| tensor.dims().to_vec())
                .collect::<Vec<_>>()
        };
        assert_eq!(dims(&buckets), [vec![2, 3], vec![2, 3], vec![2, 2, 3]]);
        let buckets = LengthBuckets::new([5, 9], [2, 2, 1])
            .unwrap()
            .pad_to_boundary();
        assert_eq!(dims(&buckets), [vec![2, 4], vec![2, 3], vec![2, 2, 4]]);
    }

    #[test]
    fn equal_lengths_are_padded_too() {
        let tagged = |lengths: &[usize]| {
            Dataset::from_source(Sequences(lengths.to_vec())).map(|mut example| {
                let length = example.x[0].rows();
                example.x.push(HostTensor::new([2], &[0.5f32, 0.5]));
                example
                    .y
                    .push(HostTensor::new([length], &vec![1i32; length]));
                Ok(example)
            })
        };
        let dims = |lengths: &[usize], buckets: &LengthBuckets, multiple| {
            let length = |example: &Example| example.x[0].rows();
            let batches = tagged(lengths).bucket_by_sequence_length(length, buckets);
            let pad = Pad {
                multiple,
                ..Pad::default()
            };
            let batch = batches.unwrap().pad(pad).get(0, 0).unwrap();
            assert!(batch.x[1].dims() == [lengths.len(), 2] && batch.y[0].dims().len() == 1);
            assert_eq!(batch.x[0].dims(), batch.y[1].dims());
            batch.x[0].dims().to_vec()
        };
        let longest = LengthBuckets::new([5], [2, 2]).unwrap();
        let boundary = LengthBuckets::new([5, 12], [2, 2, 2]).unwrap();
        let boundary = boundary.pad_to_boundary();
        for (lengths, own, even, bound) in [
            (&[0][..], 1, 4, 4),
            (&[3, 3], 3, 4, 4),
            (&[9, 9], 9, 12, 11),
            (&[3], 3, 4, 4),
        ] {
            let count = lengths.len();
            assert_eq!(dims(lengths, &longest, 1), [count, own]);
            assert_eq!(dims(lengths, &longest, 4), [count, even]);
            assert_eq!(dims(lengths, &boundary, 1), [count, bound]);
        }
    }

    fn data_error() -> Error {
        Error::Data {
            source_name: "file".into(),
            place: "record 1".into(),
            message: "corrupt".into(),
        }
    }

    #[test]
    fn corrupt_examples_are_in_no_bucket() {
        let broken = Dataset::from_source(Sequences(vec![1, 2, 3, 4, 5])).map(|example| {
            match example.x[0].rows() {
                1 | 4 => Err(data_error()),
                _ => Ok(example),
            }
        });
        let buckets = LengthBuckets::new([3], [2, 2]).unwrap();
        let length = |example: &Example| example.x[0].rows();
        assert!(broken.bucket_by_sequence_length(length, &buckets).is_err());
        let skipping = broken.skip_corrupt();
        let batches = skipping
            .bucket_by_sequence_length(length, &buckets)
            .unwrap();
        assert_eq!(examples(batches.iter(0, 0)), [vec![2, 4], vec![1]]);
        // They say nothing of dims.
        let tagged = skipping.map(|mut example| {
            example.y = vec![HostTensor::new([2], &[1i32, 0])];
            Ok(example)
        });
        let buckets = LengthBuckets::new([9], [2, 2]).unwrap().pad_to_boundary();
        let batches = tagged.bucket_by_sequence_length(length, &buckets).unwrap();
        let batch = batches.get(0, 0).unwrap();
        assert_eq!(
            (batch.x[0].dims(), batch.y[0].dims()),
            (&[2, 8][..], &[2, 2][..])
        );
        assert_eq!(
            skipping.skipped(),
            0,
            "they count when they are left out of an epoch"
        );
    }

    #[test]
    fn what_no_buckets_can_hold_is_refused() {
        let refused = |result: Result<Batches>, expected: &str| {
            let error = result.unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        let made = |boundaries: &[usize], sizes: &[usize]| {
            bucketed(&[1], &LengthBuckets::new(boundaries, sizes)?)
        };
        refused(made(&[], &[1]), "expected rising numbers");
        refused(made(&[0, 2], &[1, 1, 1]), "expected rising numbers");
        refused(made(&[3, 3], &[1, 1, 1]), "expected rising numbers");
        refused(made(&[3], &[1]), "1 boundaries make 2 buckets");
        refused(made(&[3], &[1, 0]), "give each bucket a number");
        let buckets = LengthBuckets::new([3], [2, 2]).unwrap();
        let long = buckets.clone().pad_to_boundary();
        refused(bucketed(&[1, 2, 9], &long), "example 2 is 9 long");
        refused(bucketed(&[9, 9], &long), "example 0 is 9 long");
        let data = Dataset::from_source(Sequences(vec![1, 2]));
        let by_length = |data: &Dataset| {
            data.bucket_by_sequence_length(|example| example.x[0].rows(), &buckets)
        };
        for moving in [data.shuffle(1), data.repeat(2), data.repeat_forever()] {
            refused(by_length(&moving), "must not depend on the epoch");
        }
        let mixed = data.map(|mut example| {
            if example.x[0].rows() == 2 {
                example.x[0] = HostTensor::new([2, 1], &[1i32, 2]);
            }
            Ok(example)
        });
        refused(by_length(&mixed), "example 1 has the tensors i32[2,1]");
        let growing = data.map_random(1, |key, mut example| {
            example.x[0] = HostTensor::new([(key % 3) as usize], &vec![1i32; (key % 3) as usize]);
            Ok(example)
        });
        let batches = by_length(&growing).unwrap();
        let errors = (0..50).filter_map(|epoch| batches.get(epoch, 0).err());
        let error = errors.map(|error| error.to_string()).next().unwrap();
        assert!(error.contains("it was shorter when"), "{error}");
        for policy in [AutoShardPolicy::File, AutoShardPolicy::Off] {
            let whole = by_length(&data).unwrap();
            refused(
                whole.shard(Worker::new(0, 2), policy),
                "choose auto or data",
            );
        }
        refused(
            by_length(&data).and_then(|batches| batches.unbatch().map(|_| batches)),
            "cannot unbatch",
        );
    }
}
