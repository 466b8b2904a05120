//! One process' part of the batches of a stream.
//!
//! A stream has no index, so every process reads all of it and keeps its rows of each global batch, as `tf.data` shards a dataset
//! that is no list of files. A step then has the same examples for any number of processes. That holds only if the stream is the same in
//! each of them, so each computes a checksum of what it reads, which they compare after an epoch.

use super::agreement::of_example;
use super::global_batch::slice_of;
use super::stream::Examples;
use super::{Batch, Example, Stream, Worker, WorkerPart};
use crate::Result;

/// The global batches of an epoch of a stream, or one worker's part of each.
pub(super) struct StreamReader {
    examples: Examples,
    size: usize,
    worker: Worker,
    /// Examples that were trained on before.
    to_skip: usize,
    /// The number of the next batch since the workers or the batch size last changed.
    step: usize,
    /// Examples read so far.
    read: usize,
    checksum: u32,
}

/// What a worker gets of a global batch.
pub(super) struct StreamPart {
    pub(super) batch: Batch,
    /// How its rows lie in the global batch; `None` for one worker, which has all.
    pub(super) part: Option<WorkerPart>,
    /// CRC32C of all examples of the epoch up to the end of the global batch.
    pub(super) checksum: u32,
}

impl StreamReader {
    /// The batches of `size` examples after the first `skipped` examples, of which the next has the number `step`.
    pub(super) fn new(
        stream: &Stream,
        epoch: u64,
        size: usize,
        worker: Worker,
        (skipped, step): (usize, usize),
    ) -> Self {
        Self {
            examples: stream.iter(epoch),
            size,
            worker,
            to_skip: skipped,
            step,
            read: 0,
            checksum: 0,
        }
    }

    fn example(&mut self) -> Option<Result<Example>> {
        let example = self.examples.next()?;
        if let Ok(example) = &example {
            self.read += 1;
            self.checksum = of_example(self.checksum, example);
        }
        Some(example)
    }

    fn part_of(&mut self, mut examples: Vec<Example>) -> Result<StreamPart> {
        let Worker {
            count, replicas, ..
        } = self.worker;
        let rows = examples.len();
        let first = (self.read - rows) as u64;
        let (start, own) = slice_of(self.worker, rows, self.step);
        self.step += 1;
        if examples.iter().any(|example| example.weight.is_some()) {
            // Stacking does so too, but does not see the rows of the others.
            let weights = examples.iter_mut().map(|example| &mut example.weight);
            weights.for_each(|weight| *weight = weight.or(Some(1.0)));
        }
        let batch = match own {
            0 => Batch::stack(&examples[..1])?.without_rows(),
            _ => Batch::stack(&examples[start..start + own])?,
        };
        let part = (count > 1).then(|| WorkerPart {
            first_row: start,
            is_even: rows == self.size && rows.is_multiple_of(count * replicas),
        });
        Ok(StreamPart {
            batch: Batch { first, ..batch },
            part,
            checksum: self.checksum,
        })
    }
}

impl Iterator for StreamReader {
    type Item = Result<StreamPart>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.to_skip > 0 {
            if let Err(error) = self.example()? {
                return Some(Err(error));
            }
            self.to_skip -= 1;
        }
        let mut examples = Vec::new();
        while examples.len() < self.size {
            match self.example() {
                Some(Ok(example)) => examples.push(example),
                Some(Err(error)) => return Some(Err(error)),
                None => break,
            }
        }
        (!examples.is_empty()).then(|| self.part_of(examples))
    }
}
