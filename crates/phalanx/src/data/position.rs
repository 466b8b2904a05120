//! Where training is in the data, and how to go on from there, also with another number of workers.
//!
//! While workers and batch size stay the same, the position is a number of steps. When they change within an epoch, the
//! examples nobody has read yet are divided again, and the position gets another segment: what was read under the old
//! division, then what was read since. To go on, the segments are replayed by arithmetic alone: each cuts what it read off
//! the data (`Sharding::rest`), and what is left is sharded for the workers there are now. Every segment but one by file takes
//! examples from the front of what was left, so any number of them can be merged into two ([`merged`]), and a position stays
//! small however often the workers change.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::shard::{Sharding, all_have_read};
use super::{AutoShardPolicy, BatchIter, Batches, Worker};
use crate::{Error, Result};

/// A position in an epoch: which steps were taken, under how many workers.
///
/// It has one segment for the steps since the number of workers or the batch size last changed within the epoch, and at most
/// three for all steps before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "UncheckedPosition")]
pub struct Position {
    /// The epoch, from 0.
    pub epoch: u64,
    /// What was read of it so far.
    pub segments: Vec<Segment>,
}

/// Steps of an epoch that were taken in one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// How the data were divided: `File`, `Data` or `Off`.
    pub policy: AutoShardPolicy,
    /// Number of workers.
    pub workers: usize,
    /// Replicas of each worker.
    pub replicas: usize,
    /// The global batch.
    pub batch: usize,
    /// Steps taken.
    pub steps: usize,
    /// How many of these steps were not trained on because all their examples were corrupt and left out.
    #[serde(default)]
    pub left_out: usize,
    /// A checksum of which examples are in which batch, where batches are by length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buckets: Option<u32>,
}

impl fmt::Display for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { steps, batch, .. } = self;
        let (workers, replicas) = (self.workers, self.replicas);
        write!(
            f,
            "{steps} steps of {batch} examples, workers: {workers}, replicas of each: {replicas}, divided by the policy {}",
            self.policy
        )
    }
}

/// The most workers, and the most replicas of a worker.
const MAX_WORKERS: usize = 1 << 20;
/// The most examples that the steps of a segment may have.
const MAX_EXAMPLES: usize = 1 << 56;
/// The most segments: more than there ever are.
const MAX_SEGMENTS: usize = 16;

/// A position as it is written, which may be anything.
#[derive(Deserialize)]
struct UncheckedPosition {
    epoch: u64,
    segments: Vec<Segment>,
}

impl TryFrom<UncheckedPosition> for Position {
    type Error = Error;

    fn try_from(UncheckedPosition { epoch, segments }: UncheckedPosition) -> Result<Self> {
        let position = Self { epoch, segments };
        position.check().map(|()| position)
    }
}

impl Segment {
    /// Whether `next` differs only in its steps.
    fn goes_on(&self, next: &Self) -> bool {
        Self {
            steps: next.steps,
            left_out: next.left_out,
            ..*self
        } == *next
    }

    /// Whether its numbers are possible at all.
    fn is_possible(&self) -> bool {
        let some = 1..=MAX_WORKERS;
        let examples = self.batch.checked_mul(self.steps);
        some.contains(&self.workers)
            && some.contains(&self.replicas)
            && self.batch.max(self.steps) <= MAX_EXAMPLES
            && examples.is_some_and(|examples| examples <= MAX_EXAMPLES)
            && self.left_out <= self.steps
    }

    /// Number of examples that nobody needs to read any more, where the data are not sharded by file.
    pub(super) fn examples(&self) -> usize {
        if self.policy != AutoShardPolicy::Off {
            return self.steps.saturating_mul(self.batch);
        }
        all_have_read(self.workers, self.replicas, self.batch, self.steps)
    }
}

impl Position {
    /// The start of an epoch.
    #[must_use]
    pub const fn start(epoch: u64) -> Self {
        let segments = Vec::new();
        Self { epoch, segments }
    }

    /// Number of batches that were trained on, without the ones left out for having no rows.
    pub(crate) fn trained(&self) -> usize {
        let each = self.segments.iter();
        each.map(|segment| segment.steps.saturating_sub(segment.left_out))
            .fold(0, usize::saturating_add)
    }

    pub(super) fn check(&self) -> Result<()> {
        let wrong = (self.segments.iter().enumerate()).find(|(_, segment)| !segment.is_possible());
        if let Some((k, segment)) = wrong {
            return Err(Error::User(format!(
                "segment {k} of the position has {segment}, expected 1 to {MAX_WORKERS} workers and replicas, and at most \
                 {MAX_EXAMPLES} examples in its steps; the file is damaged, start at the next epoch"
            )));
        }
        match self.segments.len() {
            count if count > MAX_SEGMENTS => Err(Error::User(format!(
                "the position has {count} segments, expected at most {MAX_SEGMENTS}; the file is damaged, start at the next epoch"
            ))),
            _ => Ok(()),
        }
    }
}

impl Batches {
    /// The batches from a position on, reached by any number of workers: exactly the examples that nobody has read yet.
    ///
    /// With the same workers and batch size the order of the interrupted epoch is kept; otherwise the remaining examples are
    /// sharded again, by position.
    ///
    /// # Errors
    /// When the position is of other data or has impossible numbers, or the workers have changed and a stage after `batch` changes
    /// the order.
    pub fn iter_at(&self, position: &Position) -> Result<BatchIter> {
        position.check()?;
        let (past, step, left_out) = match position.segments.split_last() {
            Some((last, past)) if self.takes_over(last, past) => (past, last.steps, last.left_out),
            _ => (&position.segments[..], 0, 0),
        };
        let batches = self.after(past)?;
        let mut iter = batches.iter(position.epoch, step);
        iter.past = merged(past);
        iter.segment.left_out = left_out;
        Ok(iter)
    }

    /// Whether the last segment can simply be continued: the workers are the same, or both read slices of the same global
    /// batches.
    fn takes_over(&self, last: &Segment, past: &[Segment]) -> bool {
        let mut now = self.segment();
        if !past.is_empty() {
            now.policy = rest_policy(now.policy);
        }
        let by_position = |segment: &Segment| segment.policy == AutoShardPolicy::Data;
        last.goes_on(&now)
            || by_position(last)
                && by_position(&now)
                && last.batch == now.batch
                && last.buckets == now.buckets
    }

    /// A segment of no steps that says how these batches are sharded.
    pub(super) fn segment(&self) -> Segment {
        let Sharding { worker, policy, .. } = &self.sharding;
        Segment {
            policy: *policy,
            workers: worker.count,
            replicas: worker.replicas,
            batch: self.size(),
            steps: 0,
            left_out: 0,
            buckets: self
                .plan
                .as_ref()
                .map(|plan| plan.checksum(self.drop_remainder)),
        }
    }

    /// The batches of the examples that the segments have left unread.
    fn after(&self, past: &[Segment]) -> Result<Self> {
        if past.is_empty() {
            return Ok(self.clone());
        }
        if self.plan.is_some() || past.iter().any(|segment| segment.buckets.is_some()) {
            return Err(Error::user(
                "cannot go on within the epoch with other batches by length than before: they have other examples; give it the data and buckets of before, or start at the next epoch",
            ));
        }
        if self.reorders() {
            return Err(Error::user(
                "cannot go on within the epoch with other workers or another batch: take, skip or repeat after batch count batches; \
                 put them before batch, or start at the next epoch",
            ));
        }
        if self.pad.is_some() {
            // Later epochs know what is found here, which is to be of all examples.
            self.sequences();
        }
        let mut rest = self.clone();
        for (k, segment) in past.iter().enumerate() {
            let worker = Worker {
                index: 0,
                count: segment.workers,
                replicas: segment.replicas,
            };
            if k > 0 && segment.policy == AutoShardPolicy::File {
                return Err(Error::User(format!(
                    "segment {k} of the position is not one of these batches: {segment}; start at the next epoch"
                )));
            }
            let sharding = Sharding::new(&rest.input, worker, segment.policy)?;
            if sharding.policy != segment.policy {
                return Err(Error::user(
                    "the position is of data in more files than there are now; start at the next epoch",
                ));
            }
            let whole = rest.input.len();
            rest.input = sharding.rest(&rest.input, segment.batch, segment.steps)?;
            let cut = whole.zip(rest.input.len()).map(|(all, left)| all - left);
            let cut = cut.unwrap_or_else(|| segment.examples()) as u64;
            rest.before = rest.before.saturating_add(cut);
        }
        let policy = rest_policy(self.sharding.policy);
        rest.sharding = Sharding::new(&rest.input, self.sharding.worker, policy)?;
        Ok(rest)
    }
}

/// The policy for the rest of an epoch, which is no longer made of whole files.
const fn rest_policy(policy: AutoShardPolicy) -> AutoShardPolicy {
    match policy {
        AutoShardPolicy::Off => AutoShardPolicy::Off,
        _ => AutoShardPolicy::Data,
    }
}

/// The same number of steps and the same examples in at most three segments.
///
/// The segment by file, of which there is at most one and which comes first, is kept. Each other one took a number of examples
/// from the front of what was left, so only their sums matter: `examples` in `steps` steps become two segments whose batches
/// are the floor and the ceiling of `examples / steps`.
pub(super) fn merged(past: &[Segment]) -> Vec<Segment> {
    let files = past
        .iter()
        .take_while(|segment| segment.policy == AutoShardPolicy::File);
    let (files, rest) = past.split_at(files.count());
    let steps = rest
        .iter()
        .fold(0usize, |sum, segment| sum.saturating_add(segment.steps));
    let examples = rest.iter().fold(0usize, |sum, segment| {
        sum.saturating_add(segment.examples())
    });
    let mut left_out = rest.iter().map(|segment| segment.left_out).sum::<usize>();
    let (batch, more) = match steps {
        0 => (0, 0),
        _ => (examples / steps, examples % steps),
    };
    let of = |batch, steps| Segment {
        policy: AutoShardPolicy::Data,
        workers: 1,
        replicas: 1,
        batch,
        steps,
        left_out: 0,
        buckets: None,
    };
    let mut two = [of(batch + 1, more), of(batch, steps - more)];
    for segment in &mut two {
        segment.left_out = left_out.min(segment.steps);
        left_out -= segment.left_out;
    }
    let two = two.into_iter().filter(|segment| segment.steps > 0);
    files.iter().copied().chain(two).collect()
}
