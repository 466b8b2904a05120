//! What a server does with pushes: each is applied at most once, in one order, which the log keeps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::message::{Commit, Part, PushKey};
use crate::{PsError, Shard};

/// What holds the values of a server's shards and computes their updates.
///
/// Texts and bytes come from workers as they are; what they mean is between them and the implementation. Equal calls in equal order
/// must give equal values: that is how a server comes back from its log.
pub trait Values: Send {
    /// Takes the first values.
    ///
    /// # Errors
    /// The description or the bytes are wrong, or the device fails.
    fn create(&mut self, description: &str, bytes: &[u8]) -> Result<(), String>;

    /// The present values, all or what was asked for; several workers may be sent the same bytes.
    ///
    /// # Errors
    /// The device fails.
    fn pull(&mut self, what: &str, wanted: &[u8]) -> Result<Arc<Vec<u8>>, String>;

    /// The weighted mean of gradients that were pushed: what they are, and the bytes.
    ///
    /// # Errors
    /// They do not fit together.
    fn mean(&mut self, parts: &[(Part, &str, &[u8])]) -> Result<(String, Vec<u8>), String>;

    /// Updates the values by a gradient, multiplied by a factor for each array where factors are given.
    ///
    /// # Errors
    /// The gradient does not fit, or the device fails.
    fn apply(&mut self, what: &str, gradient: &[u8], factors: Option<&[f64]>)
    -> Result<(), String>;

    /// The squared norm of a gradient by array.
    ///
    /// # Errors
    /// The gradient does not fit, or the device fails.
    fn squares(&mut self, what: &str, gradient: &[u8]) -> Result<Vec<f64>, String>;

    /// Anything else, such as setting a value.
    ///
    /// # Errors
    /// It is not understood, or the device fails.
    fn act(&mut self, what: &str, bytes: &[u8]) -> Result<Vec<u8>, String>;

    /// All of it, for [`load`](Self::load).
    ///
    /// # Errors
    /// The device fails.
    fn save(&mut self) -> Result<Vec<u8>, String>;

    /// What was saved.
    ///
    /// # Errors
    /// The bytes are none of ours, or the device fails.
    fn load(&mut self, bytes: &[u8]) -> Result<(), String>;

    /// Where the shards of this server lie, for messages; empty where that means nothing.
    fn shards(&self) -> &[Shard] {
        &[]
    }
}

/// What became of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PushOutcome {
    /// The number of updates after it.
    pub version: u64,
    /// The number of updates before it.
    pub applied_at: u64,
    /// Whether it had been applied before.
    pub duplicate: bool,
}

/// A gradient that waits for its step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Staged {
    version: Option<u64>,
    what: String,
    #[serde(skip)]
    bytes: Vec<u8>,
}

/// Squared norms by array.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Norms(#[serde(with = "crate::numbers")] Vec<f64>);

/// Which pieces of work were applied: all below a number, and some above.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Applied {
    below: u64,
    above: BTreeSet<u64>,
}

impl Applied {
    fn has(&self, work: u64) -> bool {
        work < self.below || self.above.contains(&work)
    }

    /// Forgets what nobody will ask of again.
    fn forget_below(&mut self, work: u64) {
        if work > self.below {
            self.below = work;
            self.above = self.above.split_off(&work);
        }
    }
}

/// What a server knows of the updates of its shards.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Shards {
    version: u64,
    /// How often values were changed by other things than updates.
    revision: u64,
    applied: Applied,
    staged: BTreeMap<u64, Staged>,
    /// The latest process of each worker's number.
    incarnations: BTreeMap<usize, u64>,
    has_values: bool,
    /// The squared norms of the step that was asked for last, and its version: a worker that hears of a step may ask after another
    /// has had it applied.
    #[serde(with = "crate::numbers")]
    squares: Option<(u64, Vec<f64>)>,
    /// The squared norms of gradients that are steps by themselves, by piece of work: who comes in the place of a worker that was lost
    /// when one server had applied its gradient clips by what that server has applied.
    #[serde(default)]
    norms: BTreeMap<u64, Norms>,
}

impl Shards {
    /// Whether there are values.
    #[must_use]
    pub const fn has_values(&self) -> bool {
        self.has_values
    }

    /// The number of updates so far.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// The version and revision of the values.
    #[must_use]
    pub const fn stamp(&self) -> (u64, u64) {
        (self.version, self.revision)
    }

    /// Does something else with the values.
    ///
    /// # Errors
    /// As [`Values::act`].
    pub fn act(
        &mut self,
        what: &str,
        bytes: &[u8],
        values: &mut dyn Values,
    ) -> Result<Vec<u8>, PsError> {
        let answer = values.act(what, bytes).map_err(PsError::Values)?;
        self.revision += 1;
        Ok(answer)
    }

    /// Whether a worker's process is later than all that were there.
    pub(crate) fn is_new(&self, worker: usize, incarnation: u64) -> bool {
        let latest = self.incarnations.get(&worker);
        latest.is_none_or(|latest| *latest < incarnation)
    }

    /// A worker's process is there: older ones of its number push no more.
    pub fn hello(&mut self, worker: usize, incarnation: u64) {
        let latest = self.incarnations.entry(worker).or_insert(incarnation);
        *latest = (*latest).max(incarnation);
    }

    /// Takes the first values; whether they were taken, since there were none.
    ///
    /// # Errors
    /// As [`Values::create`].
    pub fn create(
        &mut self,
        description: &str,
        bytes: &[u8],
        values: &mut dyn Values,
    ) -> Result<bool, PsError> {
        if self.has_values {
            return Ok(false);
        }
        values.create(description, bytes).map_err(PsError::Values)?;
        self.has_values = true;
        Ok(true)
    }

    /// Applies a gradient as an update by itself.
    ///
    /// # Errors
    /// It is of a process whose place another has taken, or does not fit.
    pub fn push(
        &mut self,
        key: &PushKey,
        what: &str,
        bytes: &[u8],
        factors: Option<&[f64]>,
        values: &mut dyn Values,
    ) -> Result<PushOutcome, PsError> {
        self.check(key)?;
        if self.applied.has(key.work) {
            return Ok(self.outcome(true));
        }
        values
            .apply(what, bytes, factors)
            .map_err(PsError::Values)?;
        self.staged.remove(&key.work);
        Ok(self.count(key.work))
    }

    /// Keeps a gradient until its step is decided; whether it comes too late. The first of two of one piece of work stays.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn stage(
        &mut self,
        key: &PushKey,
        version: Option<u64>,
        what: &str,
        bytes: Vec<u8>,
    ) -> Result<bool, PsError> {
        self.check(key)?;
        let is_late = version.is_some_and(|version| version < self.version);
        if is_late || self.applied.has(key.work) {
            return Ok(true);
        }
        let staged = Staged {
            version,
            what: what.to_owned(),
            bytes,
        };
        match version {
            // Servers must agree on which of two they take, and only the first one can be known to be on all of them.
            Some(_) => {
                self.staged.entry(key.work).or_insert(staged);
            }
            // Nothing was decided yet on this one, so the process that is alive has the say.
            None => {
                self.staged.insert(key.work, staged);
            }
        }
        Ok(false)
    }

    /// Keeps the squared norms of a gradient that is a step by itself.
    pub(crate) fn keep_norms(&mut self, work: u64, squares: &[f64]) {
        self.norms.insert(work, Norms(squares.to_vec()));
    }

    /// The squared norms of the gradient of a piece of work that was applied.
    pub(crate) fn norms(&self, work: u64) -> Vec<f64> {
        let norms = self.norms.get(&work).cloned();
        norms.unwrap_or_default().0
    }

    /// Applies the gradient that is kept of a piece of work.
    ///
    /// # Errors
    /// There is none, or as [`push`](Self::push).
    pub fn apply(
        &mut self,
        key: &PushKey,
        factors: Option<&[f64]>,
        values: &mut dyn Values,
    ) -> Result<PushOutcome, PsError> {
        self.check(key)?;
        if self.applied.has(key.work) {
            return Ok(self.outcome(true));
        }
        let Some(staged) = self.staged.remove(&key.work) else {
            return Err(missing(key.work));
        };
        let applied = values.apply(&staged.what, &staged.bytes, factors);
        applied.map_err(PsError::Values)?;
        Ok(self.count(key.work))
    }

    /// The squared norms of what the parts of a step have in the mean, by array, and whether they are news. None of a step that all
    /// servers have applied, and one after it: nobody needs them, and its parts are gone.
    ///
    /// # Errors
    /// A part is not there, or does not fit.
    pub fn squares(
        &mut self,
        version: u64,
        parts: &[Part],
        values: &mut dyn Values,
    ) -> Result<(bool, Vec<f64>), PsError> {
        if let Some((of, squares)) = &self.squares
            && *of == version
        {
            return Ok((false, squares.clone()));
        }
        if version < self.version {
            return Ok((false, Vec::new()));
        }
        let squares = match self.mean(parts, values)? {
            Some((what, bytes)) => values.squares(&what, &bytes).map_err(PsError::Values)?,
            None => Vec::new(),
        };
        self.squares = Some((version, squares.clone()));
        Ok((true, squares))
    }

    /// Applies a step, unless it was; whether it was applied now.
    ///
    /// # Errors
    /// A part of it or a step before it is not there, or does not fit.
    pub fn commit(&mut self, commit: &Commit, values: &mut dyn Values) -> Result<bool, PsError> {
        if commit.version < self.version {
            return Ok(false);
        }
        if commit.version > self.version {
            return Err(PsError::Lost(format!(
                "the server has {} updates, and hears of update {}: it has lost some; start the job again",
                self.version, commit.version
            )));
        }
        if let Some((what, bytes)) = self.mean(&commit.parts, values)? {
            let applied = values.apply(&what, &bytes, commit.factors.as_deref());
            applied.map_err(PsError::Values)?;
        }
        for part in &commit.parts {
            self.applied.above.insert(part.work);
        }
        self.version += 1;
        let version = self.version;
        self.staged
            .retain(|_, staged| staged.version.is_none_or(|of| of >= version));
        Ok(true)
    }

    /// The mean of the parts of a step; nothing where none of them had an example.
    fn mean(
        &self,
        parts: &[Part],
        values: &mut dyn Values,
    ) -> Result<Option<(String, Vec<u8>)>, PsError> {
        let mut found = Vec::with_capacity(parts.len());
        for part in parts {
            match self.staged.get(&part.work) {
                Some(staged) => found.push((*part, &staged.what[..], &staged.bytes[..])),
                // All its examples were corrupt, so there is no gradient.
                None if part.rows == 0.0 && part.weight == 0.0 => {}
                None => return Err(missing(part.work)),
            }
        }
        if found.is_empty() {
            return Ok(None);
        }
        values.mean(&found).map(Some).map_err(PsError::Values)
    }

    fn check(&mut self, key: &PushKey) -> Result<(), PsError> {
        self.applied.forget_below(key.done_below);
        self.norms = self.norms.split_off(&key.done_below);
        let latest = self.incarnations.get(&key.worker).copied().unwrap_or(0);
        if key.incarnation < latest {
            return Err(PsError::Lost(format!(
                "another process ({latest}) is worker {} now, and what this one ({}) pushes does not count",
                key.worker, key.incarnation
            )));
        }
        Ok(())
    }

    fn count(&mut self, work: u64) -> PushOutcome {
        self.applied.above.insert(work);
        self.version += 1;
        PushOutcome {
            applied_at: self.version - 1,
            ..self.outcome(false)
        }
    }

    const fn outcome(&self, duplicate: bool) -> PushOutcome {
        PushOutcome {
            version: self.version,
            applied_at: self.version,
            duplicate,
        }
    }

    /// The bytes of what is kept, in order, for a snapshot.
    pub(crate) fn staged_bytes(&self) -> impl Iterator<Item = &[u8]> {
        self.staged.values().map(|staged| &staged.bytes[..])
    }

    /// Puts the bytes back.
    pub(crate) fn set_staged_bytes(&mut self, mut bytes: impl Iterator<Item = Vec<u8>>) {
        for staged in self.staged.values_mut() {
            staged.bytes = bytes.next().unwrap_or_default();
        }
    }
}

fn missing(work: u64) -> PsError {
    PsError::Lost(format!(
        "the server does not have the gradient of piece of work {work} that it is asked to apply; start the job again"
    ))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Values whose squared norm is the number of bytes of a gradient.
    pub(crate) struct Bytes;

    impl Values for Bytes {
        fn create(&mut self, _: &str, _: &[u8]) -> Result<(), String> {
            Ok(())
        }
        fn pull(&mut self, _: &str, _: &[u8]) -> Result<Arc<Vec<u8>>, String> {
            Ok(Arc::default())
        }
        fn mean(&mut self, parts: &[(Part, &str, &[u8])]) -> Result<(String, Vec<u8>), String> {
            let all = parts.iter().flat_map(|(_, _, bytes)| bytes.to_vec());
            Ok((String::new(), all.collect()))
        }
        fn apply(&mut self, _: &str, _: &[u8], _: Option<&[f64]>) -> Result<(), String> {
            Ok(())
        }
        fn squares(&mut self, _: &str, gradient: &[u8]) -> Result<Vec<f64>, String> {
            Ok(vec![gradient.len() as f64])
        }
        fn act(&mut self, _: &str, _: &[u8]) -> Result<Vec<u8>, String> {
            Ok(Vec::new())
        }
        fn save(&mut self) -> Result<Vec<u8>, String> {
            Ok(Vec::new())
        }
        fn load(&mut self, _: &[u8]) -> Result<(), String> {
            Ok(())
        }
    }

    /// A slow worker that steps with others, which do not wait for it, asks of the step that it heard of last.
    #[test]
    fn squares_of_a_step_that_others_have_left_behind_are_not_needed() {
        let mut shards = Shards::default();
        let mut commits = Vec::new();
        for version in 0..2 {
            let key = PushKey {
                work: version,
                worker: 0,
                incarnation: 1,
                done_below: version,
            };
            shards.stage(&key, Some(version), "", vec![0; 3]).unwrap();
            let part = Part {
                work: version,
                weight: 1.0,
                rows: 1.0,
            };
            let squares = shards.squares(version, &[part], &mut Bytes).unwrap();
            assert_eq!(squares, (true, vec![3.0]));
            let commit = Commit {
                version,
                parts: vec![part],
                factors: Some(vec![1.0]),
            };
            assert!(shards.commit(&commit, &mut Bytes).unwrap());
            commits.push(commit);
        }
        let late = &commits[0];
        let squares = shards.squares(0, &late.parts, &mut Bytes).unwrap();
        assert_eq!(squares, (false, Vec::new()));
        assert!(!shards.commit(late, &mut Bytes).unwrap());
    }

    /// Workers that step together push nothing of a batch whose examples are all corrupt.
    #[test]
    fn a_step_without_examples_changes_nothing_and_counts() {
        let mut shards = Shards::default();
        let part = |rows| Part {
            work: 0,
            weight: rows,
            rows,
        };
        let commit = |rows| Commit {
            version: 0,
            parts: vec![part(rows)],
            factors: None,
        };
        let squares = shards.squares(0, &[part(0.0)], &mut Bytes).unwrap();
        assert_eq!(squares, (true, Vec::new()));
        let missing = shards.commit(&commit(1.0), &mut Bytes).unwrap_err();
        assert!(missing.to_string().contains("piece of work 0"), "{missing}");
        assert!(shards.commit(&commit(0.0), &mut Bytes).unwrap());
        assert_eq!(shards.version(), 1);
    }
}
