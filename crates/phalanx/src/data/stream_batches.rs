//! Batches of a stream, made on a thread where they are prefetched.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;

use super::stage_stats::StageStats;
use super::{AutoShardPolicy, Batch, Position, Segment, StageTime, Stream};
use crate::{Error, Result};

/// A stream in batches; see [`Stream::batch`].
#[derive(Clone, Debug)]
pub struct StreamBatches {
    stream: Stream,
    size: usize,
    ahead: usize,
}

impl StreamBatches {
    pub(super) const fn new(stream: Stream, size: usize) -> Self {
        Self {
            stream,
            size,
            ahead: 0,
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

    /// The batches of an epoch from a position on; the stream is read from its start, and what was read before is dropped.
    ///
    /// # Errors
    /// When the position is of another batch size or of several workers, or the batch size is 0.
    pub fn iter_at(&self, position: &Position) -> Result<StreamIter> {
        let steps = match position.segments[..] {
            _ if self.size == 0 => {
                return Err(Error::user(
                    "batch size is 0, expected at least 1; choose the number of examples per step",
                ));
            }
            [] => 0,
            [segment] if self.segment(segment.steps) == segment => segment.steps,
            _ => {
                return Err(Error::user(
                    "the position is of other data than this stream: another batch size, or several workers; \
                     start at the next epoch",
                ));
            }
        };
        Ok(StreamIter::start(self, position.epoch, steps))
    }

    const fn segment(&self, steps: usize) -> Segment {
        Segment {
            policy: AutoShardPolicy::Off,
            workers: 1,
            replicas: 1,
            batch: self.size,
            steps,
            left_out: 0,
        }
    }
}

/// The batches of an epoch of a stream, in order.
pub struct StreamIter {
    origin: Option<StreamOrigin>,
    stage_stats: Arc<StageStats>,
    epoch: u64,
    segment: Segment,
}

enum StreamOrigin {
    Here(Box<dyn Iterator<Item = Result<Batch>> + Send>),
    Thread(Receiver<Result<Batch>>, JoinHandle<()>),
}

/// The batches after the first `steps`; an error among the skipped ones is returned.
fn after(
    mut made: impl Iterator<Item = Result<Batch>> + Send + 'static,
    steps: usize,
) -> impl Iterator<Item = Result<Batch>> + Send {
    let mut left = steps;
    std::iter::from_fn(move || {
        while left > 0 {
            left -= 1;
            match made.next()? {
                Ok(_) => {}
                wrong => return Some(wrong),
            }
        }
        made.next()
    })
}

impl StreamIter {
    fn start(batches: &StreamBatches, epoch: u64, steps: usize) -> Self {
        let stage_stats = Arc::new(StageStats::new(0));
        let clock = Arc::clone(&stage_stats);
        let mut made = after(batches.stream.batches(epoch, batches.size), steps).fuse();
        let made = std::iter::from_fn(move || clock.examples(|| made.next()));
        Self {
            origin: Some(Self::origin(Box::new(made), batches.ahead, &stage_stats)),
            stage_stats,
            epoch,
            segment: batches.segment(steps),
        }
    }

    fn origin(
        made: Box<dyn Iterator<Item = Result<Batch>> + Send>,
        ahead: usize,
        stage_stats: &Arc<StageStats>,
    ) -> StreamOrigin {
        if ahead == 0 {
            return StreamOrigin::Here(made);
        }
        let (sender, receiver) = sync_channel(ahead);
        let stage_stats = Arc::clone(stage_stats);
        let thread = std::thread::spawn(move || {
            for batch in made {
                // The reader is gone: nothing more to do.
                if stage_stats.ahead.time(|| sender.send(batch)).is_err() {
                    return;
                }
            }
        });
        StreamOrigin::Thread(receiver, thread)
    }

    /// The position after the batches that were handed out: what [`StreamBatches::iter_at`] goes on from.
    #[must_use]
    pub fn position(&self) -> Position {
        Position {
            epoch: self.epoch,
            segments: vec![self.segment],
        }
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
        let origin = self.origin.as_mut()?;
        let batch = self.stage_stats.next.time(|| match origin {
            StreamOrigin::Here(made) => made.next(),
            StreamOrigin::Thread(receiver, _) => receiver.recv().ok(),
        });
        match &batch {
            Some(Ok(_)) => self.segment.steps += 1,
            Some(Err(_)) => self.origin = None,
            None => return self.end(),
        }
        batch
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
        let position = Position {
            segments: vec![count(7).batch(3).segment(1)],
            ..Position::default()
        };
        let error = count(7).batch(2).iter_at(&position).unwrap_err();
        assert!(error.to_string().contains("another batch size"), "{error}");
        assert!(count(7).batch(0).iter_at(&Position::start(0)).is_err());
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
