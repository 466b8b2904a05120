//! Datasets: a length and a function from (epoch, index) to an example, built in stages.

use std::fmt;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use phalanx_graph::HostTensor;

use super::concat_files::concat_rows;
use super::csv::csv_arrays;
use super::formats::{ParsedRecords, files_of};
use super::images::Images;
use super::interleave::Interleaving;
use super::order::Order;
use super::source::Arrays;
use super::subset::Subset;
use super::{
    Batches, ClassWeights, CsvColumns, CsvOptions, EncodedImage, Example, LostBytes, Records,
    Source,
};
use crate::image::ImagePipeline;
use crate::{Error, Result};

/// Examples by index: cheap to clone, immutable, and the same for the same epoch and index.
///
/// Every stage gives a new dataset and leaves the old one as it was.
#[derive(Clone)]
pub struct Dataset {
    node: Arc<Node>,
}

/// A function of a random key and an example.
type MapExample = dyn Fn(u64, Example) -> Result<Example> + Send + Sync;

pub(super) enum Node {
    Arrays(Arrays),
    Source(Box<dyn Source>),
    Images(Images),
    Ordered {
        input: Dataset,
        order: Order,
    },
    Map {
        input: Dataset,
        seed: u64,
        map: Arc<MapExample>,
    },
    ClassWeights {
        input: Dataset,
        weights: ClassWeights,
    },
    /// Some of the examples, in their order.
    Subset {
        input: Dataset,
        subset: Subset,
    },
    /// Each example of one of the inputs.
    Interleaved {
        inputs: Vec<Dataset>,
        interleaving: Interleaving,
    },
    /// Each example of the tensors of all inputs.
    Zip {
        inputs: Vec<Dataset>,
    },
    /// Kept once read; `None` where it is corrupt.
    Cached {
        input: Dataset,
        examples: Vec<OnceLock<Option<Example>>>,
        /// How often one was asked for that is known to be corrupt.
        skipped: AtomicU64,
    },
    /// Without examples that cannot be read for what the data hold.
    SkipCorrupt {
        input: Dataset,
        skipped: Arc<AtomicU64>,
    },
    Concatenate {
        first: Dataset,
        first_len: usize,
        second: Dataset,
    },
}

impl Dataset {
    /// Arrays in memory: inputs and outputs with examples along the first dim, one tensor or several each.
    ///
    /// The outputs may be an empty `Vec`. The bytes are shared, not copied.
    ///
    /// # Errors
    /// When there is no input, or the arrays differ in their first dim.
    pub fn from_arrays(
        x: impl Into<Vec<HostTensor>>,
        y: impl Into<Vec<HostTensor>>,
    ) -> Result<Self> {
        Ok(Self::of(Node::Arrays(Arrays::new(x.into(), y.into())?)))
    }

    /// A user's own source.
    #[must_use]
    pub fn from_source(source: impl Source) -> Self {
        Self::of(Node::Source(Box::new(source)))
    }

    /// CSV files by path or pattern, plain or compressed with gzip, read into memory one after the other.
    ///
    /// # Errors
    /// When a pattern names no file, a file cannot be read or has other columns than the first or in another order, the files have more rows
    /// together than the options allow, or as [`parse_csv`](super::parse_csv).
    pub fn from_csv(path: impl AsRef<Path>, options: &CsvOptions) -> Result<Self> {
        Self::from_csv_with(path, options, &mut CsvColumns::default())
    }

    /// As [`from_csv`](Self::from_csv), of the columns of the files that were read with the same `columns` before.
    ///
    /// # Errors
    /// As [`from_csv`](Self::from_csv).
    pub fn from_csv_with(
        path: impl AsRef<Path>,
        options: &CsvOptions,
        columns: &mut CsvColumns,
    ) -> Result<Self> {
        let (mut parts, mut rows) = (Vec::new(), 0);
        for path in files_of(path.as_ref())? {
            let file = File::open(&path).map_err(|source| Error::Io {
                path: path.clone(),
                action: "open",
                source,
            })?;
            let name = path.to_string_lossy().into_owned();
            let (names, arrays) = csv_arrays(file, &name, options)?;
            columns.see(&name, names)?;
            rows += arrays[0].rows();
            if rows > options.max_rows {
                return Err(Error::User(format!(
                    "{name} and the files before it have more than {} rows; narrow the pattern, or raise max_rows",
                    options.max_rows
                )));
            }
            parts.push((name, arrays));
        }
        let mut arrays = concat_rows(parts)?;
        let y = arrays.split_off(1);
        Self::from_arrays(arrays, y)
    }

    /// The items of a format, each made an example by `parse`.
    ///
    /// An error of `parse` about the item gets the file and the place of the item.
    #[must_use]
    pub fn from_records<R: Records>(
        records: R,
        parse: impl Fn(R::Item) -> Result<Example> + Send + Sync + 'static,
    ) -> Self {
        Self::from_source(ParsedRecords::new(records, parse))
    }

    /// Images in the form of their files, each made an f32 example `[height, width, channels]` with its class as an i32
    /// scalar; what is random in the plan is drawn from (seed, epoch, index of the image).
    ///
    /// # Errors
    /// When a number of the plan makes no sense.
    pub fn from_images(
        images: impl Records<Item = EncodedImage>,
        plan: &ImagePipeline,
        seed: u64,
    ) -> Result<Self> {
        Ok(Self::of(Node::Images(Images::new(images, plan, seed)?)))
    }

    pub(super) fn of(node: Node) -> Self {
        Self {
            node: Arc::new(node),
        }
    }

    pub(super) fn node(&self) -> &Node {
        &self.node
    }

    pub(super) fn ordered(&self, order: Order) -> Self {
        let input = self.clone();
        Self::of(Node::Ordered { input, order })
    }

    /// The same arrays with a weight per example, a float tensor `[examples]`.
    ///
    /// # Errors
    /// When this dataset is not fresh from arrays or CSV, or the weights do not fit it.
    pub fn with_weights(&self, weights: &HostTensor) -> Result<Self> {
        match &*self.node {
            Node::Arrays(arrays) => Ok(Self::of(Node::Arrays(arrays.with_weights(weights)?))),
            _ => Err(Error::user(
                "sample weights belong to arrays; call with_weights right after from_arrays or from_csv, \
                 or set the weight of each example in a map stage",
            )),
        }
    }

    /// The sample weights multiplied by a weight per class (Keras' `class_weight`); see [`ClassWeights`].
    #[must_use]
    pub fn class_weights(&self, weights: ClassWeights) -> Self {
        let input = self.clone();
        Self::of(Node::ClassWeights { input, weights })
    }

    /// All examples in an order drawn from (seed, epoch): a full permutation, new in every epoch.
    ///
    /// Unlike `tf.data` there is no buffer size: the order is as random for sorted files, and takes no memory.
    /// Reading an endless dataset through it is an error: shuffle before `repeat_forever`.
    #[must_use]
    pub fn shuffle(&self, seed: u64) -> Self {
        self.ordered(Order::Shuffle(seed))
    }

    /// A function applied to each example; a panic inside becomes an error of the batch.
    #[must_use]
    pub fn map(&self, map: impl Fn(Example) -> Result<Example> + Send + Sync + 'static) -> Self {
        self.map_random(0, move |_, example| map(example))
    }

    /// A function applied to each example with a random key that is drawn from (seed, epoch, example): the same
    /// randomness for the same example of the data, whatever its place in the order, and whatever batch, thread or worker
    /// makes it. After a filter, a shuffle or by file an example is the one of the source; after `interleave`, `mix`, `zip`
    /// and `cache` it is its place in their output, which no worker changes.
    #[must_use]
    pub fn map_random(
        &self,
        seed: u64,
        map: impl Fn(u64, Example) -> Result<Example> + Send + Sync + 'static,
    ) -> Self {
        let (input, map) = (self.clone(), Arc::new(map));
        Self::of(Node::Map { input, seed, map })
    }

    /// The examples that `keep` is true for, found now by reading all of them once.
    ///
    /// Unlike `tf.data` the length is known, so what comes after can be shuffled, split and sharded as ever.
    ///
    /// # Errors
    /// When an example cannot be read, or the dataset is shuffled, repeated or endless: filter first.
    pub fn filter(&self, keep: impl Fn(&Example) -> bool) -> Result<Self> {
        let moves = |order: &Order| matches!(order, Order::Shuffle(_) | Order::Repeat(_));
        let (Some(len), false) = (self.len(), self.has(&moves)) else {
            return Err(Error::user(
                "cannot filter a shuffled or repeated dataset: which examples stay must not depend on the epoch; \
                 filter first, then shuffle and repeat",
            ));
        };
        let mut subset = Subset::default();
        for i in 0..len {
            if self.read(0, i)?.is_some_and(|example| keep(&example)) {
                subset.push(i..i + 1);
            }
        }
        Ok(self.subset(subset))
    }

    pub(super) fn subset(&self, subset: Subset) -> Self {
        let input = self.clone();
        Self::of(Node::Subset { input, subset })
    }

    /// One dataset of several of equal standing: blocks of `block` consecutive examples from each in turn, until
    /// the last has ended (`tf.data`'s `interleave` with all inputs in the cycle).
    ///
    /// # Errors
    /// When there is no input, one is endless, or `block` is 0.
    pub fn interleave(inputs: &[Self], block: usize) -> Result<Self> {
        let lens: Vec<_> = inputs.iter().map(Self::len).collect();
        let (inputs, interleaving) = (inputs.to_vec(), Interleaving::blocks(&lens, block)?);
        Ok(Self::of(Node::Interleaved {
            inputs,
            interleaving,
        }))
    }

    /// Several datasets mixed in proportion to whole weights, spread evenly, until one of them has no more
    /// (`tf.data`'s `sample_from_datasets` with `stop_on_empty_dataset`, but without chance).
    ///
    /// Put `repeat_forever` on those that are to be read more than once an epoch, `shuffle` before it.
    ///
    /// # Errors
    /// When there is no input, or a weight is 0 or very large.
    pub fn mix(inputs: &[(Self, u32)]) -> Result<Self> {
        let weighted: Vec<_> = inputs
            .iter()
            .map(|(input, weight)| (input.len(), *weight))
            .collect();
        let interleaving = Interleaving::weighted(&weighted)?;
        let inputs = inputs.iter().map(|(input, _)| input.clone()).collect();
        Ok(Self::of(Node::Interleaved {
            inputs,
            interleaving,
        }))
    }

    /// Examples with the inputs and the outputs of both, as long as the shorter one; sample weights multiply.
    #[must_use]
    pub fn zip(&self, other: &Self) -> Self {
        let inputs = vec![self.clone(), other.clone()];
        Self::of(Node::Zip { inputs })
    }

    /// Examples kept in memory once they were read, as they are in epoch 0.
    ///
    /// Put random stages after it: what comes before is the same in every epoch from here on.
    ///
    /// # Errors
    /// When the dataset is endless.
    pub fn cache(&self) -> Result<Self> {
        let Some(len) = self.len() else {
            return Err(Error::user(
                "cannot cache an endless dataset; put cache before repeat_forever",
            ));
        };
        let examples = (0..len).map(|_| OnceLock::new()).collect();
        let (input, skipped) = (self.clone(), AtomicU64::new(0));
        Ok(Self::of(Node::Cached {
            input,
            examples,
            skipped,
        }))
    }

    /// Corrupt data ([`Error::Data`]) before this stage are left out and counted: a batch has fewer rows then.
    ///
    /// Positions stay as they are, so sharding and resuming are exact. Without this stage the first one is an error.
    #[must_use]
    pub fn skip_corrupt(&self) -> Self {
        let input = self.clone();
        let skipped = Arc::new(AtomicU64::new(0));
        Self::of(Node::SkipCorrupt { input, skipped })
    }

    /// How often a `skip_corrupt` stage has left out an example so far; once for each time it was read.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        match &*self.node {
            Node::SkipCorrupt { input, skipped } => {
                skipped.load(Ordering::Relaxed) + input.skipped()
            }
            Node::Cached { input, skipped, .. } => {
                skipped.load(Ordering::Relaxed) + input.skipped()
            }
            _ => self.inputs().into_iter().map(Self::skipped).sum(),
        }
    }

    /// Whether corrupt examples are left out, here or before.
    #[must_use]
    pub fn skips_corrupt(&self) -> bool {
        matches!(&*self.node, Node::SkipCorrupt { .. })
            || self.inputs().into_iter().any(Self::skips_corrupt)
    }

    /// What of the files was left out when they were opened, since nothing says where the next item starts.
    #[must_use]
    pub fn lost(&self) -> Vec<LostBytes> {
        match &*self.node {
            Node::Source(source) => source.lost(),
            Node::Images(images) => images.lost(),
            _ => self.inputs().into_iter().flat_map(Self::lost).collect(),
        }
    }

    /// The datasets that this one is made of.
    fn inputs(&self) -> Vec<&Self> {
        match &*self.node {
            Node::Arrays(_) | Node::Source(_) | Node::Images(_) => Vec::new(),
            Node::Ordered { input, .. }
            | Node::Map { input, .. }
            | Node::ClassWeights { input, .. }
            | Node::Subset { input, .. }
            | Node::Cached { input, .. }
            | Node::SkipCorrupt { input, .. } => vec![input],
            Node::Interleaved { inputs, .. } | Node::Zip { inputs } => inputs.iter().collect(),
            Node::Concatenate { first, second, .. } => vec![first, second],
        }
    }

    /// The first `count` examples, or all if there are fewer.
    #[must_use]
    pub fn take(&self, count: usize) -> Self {
        self.ordered(Order::Take(count))
    }

    /// All but the first `count` examples.
    #[must_use]
    pub fn skip(&self, count: usize) -> Self {
        self.ordered(Order::Skip(count))
    }

    /// The examples `count` times over; a shuffle before it gives each repetition its own order.
    #[must_use]
    pub fn repeat(&self, count: usize) -> Self {
        self.ordered(Order::Repeat(Some(count)))
    }

    /// The examples over and over without end.
    #[must_use]
    pub fn repeat_forever(&self) -> Self {
        self.ordered(Order::Repeat(None))
    }

    /// The examples of this dataset, then those of `next`.
    ///
    /// # Errors
    /// When this dataset is endless, so that `next` would never be reached.
    pub fn concatenate(&self, next: &Self) -> Result<Self> {
        let Some(first_len) = self.len() else {
            return Err(Error::user(
                "cannot concatenate after an endless dataset: the second would never be read; \
                 put repeat_forever after concatenate",
            ));
        };
        let (first, second) = (self.clone(), next.clone());
        Ok(Self::of(Node::Concatenate {
            first,
            first_len,
            second,
        }))
    }

    /// The first `count` examples and the rest.
    ///
    /// # Errors
    /// When there are fewer examples, or a shuffle comes before: its order changes with the epoch, so examples
    /// would cross from one part to the other.
    pub fn split_at(&self, count: usize) -> Result<(Self, Self)> {
        if self.has(&|order| matches!(order, Order::Shuffle(_))) {
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
        let (Some(len), false) = (
            self.len(),
            self.has(&|order| matches!(order, Order::Repeat(_))),
        ) else {
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

    /// Groups of `size` consecutive examples (the *global* batch); the last of an epoch may have fewer.
    #[must_use]
    pub fn batch(&self, size: usize) -> Batches {
        Batches::new(self.clone(), size)
    }

    /// Number of examples in an epoch, `None` when endless.
    #[must_use]
    pub fn len(&self) -> Option<usize> {
        match &*self.node {
            Node::Arrays(arrays) => Some(arrays.len()),
            Node::Source(source) => Some(source.len()),
            Node::Images(images) => Some(images.len()),
            Node::Ordered { input, order } => order.len(input.len()),
            Node::Map { input, .. }
            | Node::ClassWeights { input, .. }
            | Node::SkipCorrupt { input, .. } => input.len(),
            Node::Subset { subset, .. } => Some(subset.len()),
            Node::Interleaved { interleaving, .. } => interleaving.len(),
            Node::Zip { inputs } => inputs.iter().filter_map(Self::len).min(),
            Node::Cached { examples, .. } => Some(examples.len()),
            Node::Concatenate {
                first_len, second, ..
            } => Some(first_len.saturating_add(second.len()?)),
        }
    }

    /// Of so many examples in a row, each of the data is one, however often and in whatever order they come.
    pub(super) fn coverage_window(&self) -> usize {
        let each = || self.inputs().into_iter().map(Self::coverage_window);
        let inputs = match &*self.node {
            // Those of one repetition may all be in front of the row, and of the next behind it.
            Node::Ordered {
                input,
                order: Order::Repeat(_),
            } => input.coverage_window().saturating_mul(2),
            Node::Concatenate { .. } => each().fold(0, usize::saturating_add),
            Node::Interleaved { interleaving, .. } => {
                interleaving.coverage_window(&each().collect::<Vec<_>>())
            }
            _ => each().max().unwrap_or(usize::MAX),
        };
        inputs.min(self.len().unwrap_or(usize::MAX))
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

    fn has(&self, wanted: &dyn Fn(&Order) -> bool) -> bool {
        let here = matches!(&*self.node, Node::Ordered { order, .. } if wanted(order));
        here || self.inputs().iter().any(|input| input.has(wanted))
    }
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
    use super::super::buffer_pool::BufferPool;
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
