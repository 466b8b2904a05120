//! Batches of a stream, made on a thread where they are prefetched.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;

use super::position::merged;
use super::stage_stats::StageStats;
use super::stream_reader::{StreamPart, StreamReader};
use super::{AutoShardPolicy, Batch, Position, Segment, StageTime, Stream, Worker, WorkerPart};
use crate::{Error, Result};

/// A stream in batches; see [`Stream::batch`].
#[derive(Clone, Debug)]
pub struct StreamBatches {
    stream: Stream,
    size: usize,
    ahead: usize,
    worker: Worker,
}

impl StreamBatches {
    pub(super) const fn new(stream: Stream, size: usize) -> Self {
        Self {
            stream,
            size,
            ahead: 0,
            worker: Worker::new(0, 1),
        }
    }

    /// Number of examples in a full batch.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size
    }

    /// Makes up to `depth` batches ahead, on a thread that the iterator starts; with 0 each is made when it is asked for.
    #[must_use]
    pub fn prefetch(&self, depth: usize) -> Self {
        Self {
            ahead: depth,
            ..self.clone()
        }
    }

    /// One worker's rows of each batch. It reads the whole stream, which must be the same on all workers.
    ///
    /// # Errors
    /// When the worker's index is out of range, or these batches are of another worker already.
    pub fn shard(&self, worker: Worker) -> Result<Self> {
        worker.check()?;
        if self.worker.count > 1 && self.worker != worker {
            return Err(Error::User(format!(
                "the stream is sharded for {}, and this process is {worker}; leave the sharding to the strategy, or shard for that worker",
                self.worker
            )));
        }
        Ok(Self {
            worker,
            ..self.clone()
        })
    }

    /// The batches of an epoch from a position on, reached by any number of workers and any batch size; the stream is read from its
    /// start, and what was read before is dropped.
    ///
    /// # Errors
    /// When the position has impossible numbers or is of data sharded by file, or the batch size is 0.
    pub fn iter_at(&self, position: &Position) -> Result<StreamIter> {
        if self.size == 0 {
            return Err(Error::user(
                "batch size is 0, expected at least 1; choose the number of examples per step",
            ));
        }
        position.check()?;
        let segments = &position.segments[..];
        if let Some(other) = segments.iter().find(|segment| !is_of_stream(segment)) {
            return Err(Error::User(format!(
                "the position is of other data than this stream: {other}; start at the next epoch"
            )));
        }
        let (past, steps, left_out) = match segments.split_last() {
            Some((last, past)) if last.batch == self.size => (past, last.steps, last.left_out),
            _ => (segments, 0, 0),
        };
        let mut iter = StreamIter::start(self, position.epoch, past, steps);
        iter.segment.left_out = left_out;
        Ok(iter)
    }

    /// A segment of this many steps.
    const fn segment(&self, steps: usize) -> Segment {
        Segment {
            policy: AutoShardPolicy::Data,
            workers: self.worker.count,
            replicas: self.worker.replicas,
            batch: self.size,
            steps,
            left_out: 0,
            buckets: None,
        }
    }
}

/// Whether the steps of a segment took whole global batches from the front.
fn is_of_stream(segment: &Segment) -> bool {
    match segment.policy {
        AutoShardPolicy::Data => true,
        // What checkpoints said of streams before several workers could read one.
        AutoShardPolicy::Off => segment.workers == 1,
        AutoShardPolicy::Auto | AutoShardPolicy::File => false,
    }
}

/// The batches of an epoch of a stream, in order.
pub struct StreamIter {
    origin: Option<StreamOrigin>,
    stage_stats: Arc<StageStats>,
    epoch: u64,
    past: Vec<Segment>,
    segment: Segment,
    /// How the batch handed out last lies in its global batch.
    part: Option<WorkerPart>,
    checksum: u32,
    /// Whether a batch without rows is no step, as it is where several workers take each step together.
    pub(super) passes_over_empty: bool,
}

enum StreamOrigin {
    Here(Box<dyn Iterator<Item = Result<StreamPart>> + Send>),
    Thread(Receiver<Result<StreamPart>>, JoinHandle<()>),
}

impl StreamIter {
    fn start(batches: &StreamBatches, epoch: u64, past: &[Segment], steps: usize) -> Self {
        let stage_stats = Arc::new(StageStats::new(0));
        let clock = Arc::clone(&stage_stats);
        let before = past.iter().map(Segment::examples);
        let skipped = before
            .fold(0, usize::saturating_add)
            .saturating_add(steps.saturating_mul(batches.size));
        let (stream, size, worker) = (&batches.stream, batches.size, batches.worker);
        let mut made = StreamReader::new(stream, epoch, size, worker, (skipped, steps)).fuse();
        let made = std::iter::from_fn(move || clock.examples(|| made.next()));
        Self {
            origin: Some(Self::origin(Box::new(made), batches.ahead, &stage_stats)),
            stage_stats,
            epoch,
            past: merged(past),
            segment: batches.segment(steps),
            part: None,
            checksum: 0,
            passes_over_empty: false,
        }
    }

    fn origin(
        made: Box<dyn Iterator<Item = Result<StreamPart>> + Send>,
        ahead: usize,
        stage_stats: &Arc<StageStats>,
    ) -> StreamOrigin {
        if ahead == 0 {
            return StreamOrigin::Here(made);
        }
        let (sender, receiver) = sync_channel(ahead);
        let stage_stats = Arc::clone(stage_stats);
        let thread = std::thread::spawn(move || {
            for part in made {
                // The reader is gone: nothing more to do.
                if !stage_stats.ahead.time(|| sender.send(part).is_ok()) {
                    return;
                }
            }
        });
        StreamOrigin::Thread(receiver, thread)
    }

    /// The position after the batches that were handed out: what [`StreamBatches::iter_at`] goes on from.
    #[must_use]
    pub fn position(&self) -> Position {
        let segments = self.past.iter().copied().chain([self.segment]);
        Position {
            epoch: self.epoch,
            segments: segments.collect(),
        }
    }

    /// How the rows of the batch handed out last lie in its global batch; `None` where batches are whole.
    pub(crate) const fn worker_part(&self) -> Option<WorkerPart> {
        self.part
    }

    /// A checksum of all examples of the epoch up to the batch handed out last, equal on all workers.
    pub(crate) const fn checksum(&self) -> u32 {
        self.checksum
    }

    /// What each stage has cost so far.
    #[must_use]
    pub fn stage_times(&self) -> Vec<StageTime> {
        self.stage_stats.times()
    }

    /// The end of the epoch; an error where the thread did not reach it.
    fn end(&mut self) -> Option<Result<Batch>> {
        let Some(StreamOrigin::Thread(_, thread)) = self.origin.take() else {
            return None;
        };
        thread.join().err().map(|_| {
            Err(Error::user(
                "a stage of the stream panicked; correct it, or let it return an error",
            ))
        })
    }
}

impl Iterator for StreamIter {
    type Item = Result<Batch>;

    fn next(&mut self) -> Option<Result<Batch>> {
        loop {
            let origin = self.origin.as_mut()?;
            let part = self.stage_stats.next.time(|| match origin {
                StreamOrigin::Here(made) => made.next(),
                StreamOrigin::Thread(receiver, _) => receiver.recv().ok(),
            });
            match part {
                Some(Ok(part)) => {
                    self.segment.steps += 1;
                    (self.part, self.checksum) = (part.part, part.checksum);
                    if part.batch.rows() > 0 || !self.passes_over_empty {
                        return Some(Ok(part.batch));
                    }
                    self.segment.left_out += 1;
                }
                Some(Err(error)) => {
                    self.origin = None;
                    return Some(Err(error));
                }
                None => return self.end(),
            }
        }
    }
}

impl std::fmt::Debug for StreamIter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StreamIter {:?}", self.stage_stats.times())
    }
}

#[cfg(test)]
mod tests {
    use phalanx_graph::HostTensor;

    use super::*;
    use crate::data::{Example, TrainingData};

    fn count(to: i32) -> Stream {
        Stream::new(move |_| {
            (0..to).map(|i| {
                assert!(i < 100, "too far");
                Ok(Example {
                    x: vec![HostTensor::scalar(i)],
                    ..Example::default()
                })
            })
        })
    }

    fn values(iter: impl Iterator<Item = Result<Batch>>) -> Vec<Vec<i32>> {
        iter.map(|batch| batch.unwrap().x[0].values().unwrap())
            .collect()
    }

    #[test]
    fn a_stream_goes_on_where_it_was_left() {
        for depth in [0, 1, 3] {
            let batches = count(7).batch(2).prefetch(depth);
            let data: &dyn TrainingData = &batches;
            let mut iter = data.batches_from(&Position::start(5)).unwrap();
            assert_eq!(values(iter.by_ref().take(2)), [[0, 1], [2, 3]]);
            let position = iter.data_position();
            let rest = data.batches_from(&position).unwrap();
            assert_eq!(values(rest), [vec![4, 5], vec![6]]);
            assert_eq!(values(iter), [vec![4, 5], vec![6]]);
            let times = data.batches_from(&position).unwrap();
            assert_eq!(times.stage_times().len(), 3);
        }
        assert!(count(7).batch(0).iter_at(&Position::start(0)).is_err());
    }

    #[test]
    fn the_parts_of_workers_are_the_batches_whoever_read_before() {
        let whole: Vec<i32> = (0..17).collect();
        for (count_before, size_before, steps) in [(1, 5, 0), (1, 5, 2), (3, 5, 2), (2, 4, 3)] {
            let before = Worker::new(0, count_before);
            let read = count(17).batch(size_before).shard(before).unwrap();
            let mut iter = read.iter_at(&Position::start(1)).unwrap();
            iter.by_ref()
                .take(steps)
                .for_each(|batch| drop(batch.unwrap()));
            let position = iter.position();
            for workers in 2..=4 {
                let part = |index| {
                    let worker = Worker::new(index, workers);
                    count(17).batch(5).prefetch(1).shard(worker).unwrap()
                };
                let parts: Vec<StreamBatches> = (0..workers).map(part).collect();
                let mut readers: Vec<StreamIter> = parts
                    .iter()
                    .map(|part| part.iter_at(&position).unwrap())
                    .collect();
                let mut at = steps * size_before;
                while at < whole.len() {
                    let mut rows = Vec::new();
                    for reader in &mut readers {
                        let batch = reader.next().unwrap().unwrap();
                        let part = reader.worker_part().unwrap();
                        assert_eq!((batch.first, part.first_row), (at as u64, rows.len()));
                        assert_eq!(part.is_even, workers == 5);
                        assert_eq!(batch.x[0].dims().len(), 1);
                        rows.extend(batch.x[0].values::<i32>().unwrap());
                    }
                    assert_eq!(rows, whole[at..(at + 5).min(17)]);
                    at += 5;
                }
                let sums: Vec<_> = readers.iter().map(StreamIter::checksum).collect();
                assert!(sums.iter().all(|sum| *sum == sums[0]), "{sums:?}");
                assert!(readers.iter_mut().all(|reader| reader.next().is_none()));
                // From where a part has got to, one worker goes on with whole batches.
                let last = count(17).batch(5).iter_at(&readers[0].position()).unwrap();
                assert_eq!(values(last).len(), 0);
            }
        }
        let even = count(8).batch(4).shard(Worker::new(1, 2)).unwrap();
        let mut even = even.iter_at(&Position::start(0)).unwrap();
        assert_eq!(values(even.by_ref().take(1)), [[2, 3]]);
        assert!(even.worker_part().unwrap().is_even);
    }

    #[test]
    fn batches_that_were_passed_over_stay_passed_over() {
        let batches = count(9).batch(1).shard(Worker::new(0, 2)).unwrap();
        let mut iter = batches.iter_at(&Position::start(0)).unwrap();
        iter.passes_over_empty = true;
        let first = values(iter.by_ref().take(2)).concat();
        let position = iter.position();
        let mut again = batches.iter_at(&position).unwrap();
        assert_eq!(again.position(), position);
        again.passes_over_empty = true;
        let second = values(again.by_ref().take(2)).concat();
        assert_eq!(again.position().trained(), 4);
        let more = values(iter.take(2)).concat();
        assert_eq!((first.len(), second), (2, more));
    }

    #[test]
    fn positions_of_other_data_and_other_workers_are_refused() {
        let file = Segment {
            policy: AutoShardPolicy::File,
            ..count(7).batch(3).segment(1)
        };
        let position = Position {
            segments: vec![file],
            ..Position::default()
        };
        let error = count(7).batch(2).iter_at(&position).unwrap_err();
        assert!(
            error.to_string().contains("other data than this stream"),
            "{error}"
        );
        let first = count(7).batch(2).shard(Worker::new(0, 2)).unwrap();
        let error = first.shard(Worker::new(1, 2)).unwrap_err().to_string();
        assert!(error.contains("is sharded for"), "{error}");
        assert!(first.shard(Worker::new(0, 2)).is_ok());
        assert!(count(7).batch(2).shard(Worker::new(2, 2)).is_err());
    }

    #[test]
    fn weights_of_some_examples_are_weights_of_all_parts() {
        let weighted = count(4).map(|example| {
            let is_first = example.x[0].to_f64() == [0.0];
            let weight = is_first.then_some(0.5);
            Ok(Example { weight, ..example })
        });
        let weights = |index| {
            let part = weighted.batch(4).shard(Worker::new(index, 2)).unwrap();
            let batch = part.iter_at(&Position::start(0)).unwrap().next().unwrap();
            batch.unwrap().weight.unwrap().values::<f32>().unwrap()
        };
        assert_eq!([weights(0), weights(1)], [[0.5, 1.0], [1.0, 1.0]]);
    }

    #[test]
    fn a_reader_that_stops_and_a_stage_that_panics_end_the_thread() {
        let batches = count(100).batch(1).prefetch(2);
        let iter = batches.iter_at(&Position::start(0)).unwrap();
        assert_eq!(values(iter.take(3)).len(), 3);
        let iter = count(101).batch(1).prefetch(2);
        let last = iter.iter_at(&Position::start(0)).unwrap().last();
        let error = last.unwrap().unwrap_err().to_string();
        assert!(error.contains("panicked"), "{error}");
    }
}
