//! The batches of an epoch by their numbers, for workers that are given any of them.
//!
//! Data by index have them at once. Data that can only be read in order each worker reads from their begin, and keeps what it is given; for
//! a batch before the last one, which another worker had and lost, it reads from the begin again.

use std::collections::BTreeMap;

use phalanx_ps::Work;

use crate::data::{
    AutoShardPolicy, Batch, EpochBatches, Position, Segment, TrainingData, Worker, WorkerPart,
};
use crate::{Error, Result};

/// The batches of an epoch by their numbers.
pub(super) struct NumberedBatches<'d> {
    data: &'d dyn TrainingData,
    epoch: u64,
    /// Of data that are read in order: for each part of how many that was asked for.
    readers: BTreeMap<(usize, usize), OrderedReader>,
}

/// Data that are read in order, or one worker's part of them.
struct OrderedReader {
    batches: Box<dyn EpochBatches>,
    /// The number of the next batch.
    next: usize,
    is_at_end: bool,
}

/// A batch, or the part of one and where its rows are in the whole.
pub(super) type Piece = (Batch, Option<WorkerPart>);

impl<'d> NumberedBatches<'d> {
    pub(super) const fn new(data: &'d dyn TrainingData, epoch: u64) -> Self {
        Self {
            data,
            epoch,
            readers: BTreeMap::new(),
        }
    }

    /// The rows of the largest batch there is.
    pub(super) fn most_rows(&self) -> usize {
        self.data.most_rows()
    }

    /// The batch of a piece of work; where the data end before it, how many there are.
    pub(super) fn get(&mut self, work: &Work) -> Result<std::result::Result<Piece, u64>> {
        let item = usize::try_from(work.item).unwrap_or(usize::MAX);
        let worker = Worker {
            index: work.part,
            count: work.parts,
            replicas: 1,
        };
        let Some(batches) = self.data.by_index() else {
            return self.read(worker, item);
        };
        if work.parts == 1 {
            return Ok(Ok((batches.get(self.epoch, item)?, None)));
        }
        let own = batches.shard(worker, AutoShardPolicy::Data)?;
        let part = own.worker_part(self.epoch, item)?;
        Ok(Ok((own.get(self.epoch, item)?, part)))
    }

    /// Reads on until a batch, or again from the begin.
    fn read(&mut self, worker: Worker, item: usize) -> Result<std::result::Result<Piece, u64>> {
        let key = (worker.index, worker.count);
        let mut reader = match self.readers.remove(&key) {
            Some(reader) if reader.next <= item => reader,
            _ => OrderedReader::open(self.data, worker, self.epoch)?,
        };
        let found = match reader.read_to(item)? {
            Some(batch) => Ok((batch, reader.batches.worker_part()?)),
            None => Err(reader.next as u64),
        };
        self.readers.insert(key, reader);
        Ok(found)
    }

    /// Reads on to the end of an epoch of this number of batches: the checksum of what was read, where this worker has read
    /// anything of data that all workers read. `is_whole` says that the data have no more.
    ///
    /// # Errors
    /// These data have fewer batches, or more than the whole of the others'.
    pub(super) fn checksum_at(&mut self, end: u64, is_whole: bool) -> Result<Option<u32>> {
        let Some(mut first) = self.readers.first_entry() else {
            return Ok(None);
        };
        let (count, reader) = (usize::try_from(end).unwrap_or(usize::MAX), first.get_mut());
        if let Some(last) = count.checked_sub(1)
            && reader.next < count
            && reader.read_to(last)?.is_none()
        {
            return Err(other_length(reader.next as u64, end));
        }
        let checksum = reader.batches.checksum();
        if is_whole && (reader.next > count || reader.read_to(count)?.is_some()) {
            return Err(other_length(reader.next as u64, end));
        }
        Ok(checksum)
    }

    /// The position after this number of batches.
    pub(super) fn position_after(&self, done: u64) -> Position {
        let (epoch, steps) = (self.epoch, usize::try_from(done).unwrap_or(usize::MAX));
        match self.data.by_index() {
            Some(batches) => batches.prefetch(0).iter(epoch, steps).position(),
            None => Position {
                epoch,
                segments: vec![Segment {
                    policy: AutoShardPolicy::Data,
                    workers: 1,
                    replicas: 1,
                    batch: self.data.batch_size(),
                    steps,
                    left_out: 0,
                    buckets: None,
                }],
            },
        }
    }
}

impl OrderedReader {
    fn open(data: &dyn TrainingData, worker: Worker, epoch: u64) -> Result<Self> {
        let begin = Position::start(epoch);
        let batches = match worker.count {
            1 => data.batches_from(&begin)?,
            _ => data.for_worker(worker)?.batches_from(&begin)?,
        };
        Ok(Self {
            batches,
            next: 0,
            is_at_end: false,
        })
    }

    /// The batch of this number; `None` where the data end before it.
    fn read_to(&mut self, item: usize) -> Result<Option<Batch>> {
        let mut read = None;
        while self.next <= item && !self.is_at_end {
            read = self.batches.next().transpose()?;
            match read {
                Some(_) => self.next += 1,
                None => self.is_at_end = true,
            }
        }
        Ok(read)
    }
}

/// The error of data that have another number of batches in another worker.
pub(super) fn other_length(here: u64, there: u64) -> Error {
    Error::User(format!(
        "an epoch of the stream has {here} batches in this worker and {there} in others; a stream must give every worker the same examples: open it by the epoch alone, with seeds that are equal everywhere"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Example, HostTensor, Stream, StreamBatches};

    fn numbers(count: i32) -> StreamBatches {
        let one = |i| Example {
            x: vec![HostTensor::scalar(i)],
            ..Example::default()
        };
        let stream =
            Stream::new(move |epoch| (0..count).map(move |i| Ok(one(100 * epoch as i32 + i))));
        stream.batch(2)
    }

    fn work(item: u64, part: usize, parts: usize) -> Work {
        Work {
            id: 0,
            item,
            part,
            parts,
            done_below: 0,
            version: 0,
            commit: None,
            clock: None,
        }
    }

    /// Each batch, in any order: what was lost by another worker is read from the begin.
    #[test]
    fn any_batch_of_a_stream_is_found_and_so_is_its_end() {
        let data = numbers(7);
        let mut batches = NumberedBatches::new(&data, 1);
        for (item, expected) in [
            (1, Ok(vec![102, 103])),
            (3, Ok(vec![106])),
            (0, Ok(vec![100, 101])),
            (9, Err(4)),
            (4, Err(4)),
            (2, Ok(vec![104, 105])),
        ] {
            let found = batches.get(&work(item, 0, 1)).unwrap();
            let found = found.map(|(batch, _)| batch.x[0].values::<i32>().unwrap());
            assert_eq!(found, expected, "{item}");
        }
        let parts = [(0, vec![104]), (1, vec![105])];
        for (part, expected) in parts {
            let (batch, part) = batches.get(&work(2, part, 2)).unwrap().unwrap();
            assert_eq!(batch.x[0].values::<i32>().unwrap(), expected);
            assert!(part.is_some());
        }
        assert_eq!(batches.position_after(3).trained(), 3);
    }

    #[test]
    fn data_are_compared_to_the_end_of_the_epoch_whatever_was_read_of_them() {
        let data = numbers(7);
        let checksum = |read: &[u64], end: u64| {
            let mut batches = NumberedBatches::new(&data, 0);
            for item in read {
                assert!(batches.get(&work(*item, 0, 1)).unwrap().is_ok());
            }
            batches.checksum_at(end, end == 4)
        };
        assert_eq!(checksum(&[], 4).unwrap(), None);
        let all = checksum(&[3], 4).unwrap().unwrap();
        assert_eq!(checksum(&[2, 0], 4).unwrap(), Some(all));
        let begin = checksum(&[0], 2).unwrap().unwrap();
        assert_ne!(begin, all);
        assert_eq!(checksum(&[1], 2).unwrap(), Some(begin));
        for (count, end) in [(7, 5), (9, 4), (11, 4)] {
            let data = numbers(count);
            let mut batches = NumberedBatches::new(&data, 0);
            assert!(batches.get(&work(0, 0, 1)).unwrap().is_ok());
            let error = batches.checksum_at(end, true).unwrap_err().to_string();
            assert!(error.contains("in others"), "{count}: {error}");
        }
    }
}
