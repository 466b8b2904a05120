//! Why an exchange failed: who, what, and what to do.

use std::time::Duration;

/// Why an exchange failed. The first failure of a communicator is final: all its later calls get the same error at once.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CollectiveError {
    /// The process of a rank ended, or the connection to it did.
    #[error(
        "rank {rank} at {address} is gone ({detail}); see its log for why, then start the group anew"
    )]
    PeerLost {
        /// The rank that is gone.
        rank: usize,
        /// Where it listened.
        address: String,
        /// What was seen.
        detail: String,
    },
    /// Ranks that are alive, as far as can be seen, did not do their part within the deadline.
    #[error("waited {seconds:.1} s for rank {ranks:?} in {what}; a rank that is slow, stuck or did not get there holds up all others: see its log, or raise the timeout", ranks = Ranks(ranks))]
    Timeout {
        /// The ranks waited for; only this one where the call before was never started here.
        ranks: Vec<usize>,
        /// The exchange, with its ticket.
        what: String,
        /// How long was waited.
        seconds: f64,
    },
    /// A rank exchanges something else than this one.
    #[error(
        "rank {rank} came with {got} where this rank has {expected}; all ranks must make the same calls in the same order"
    )]
    Mismatch {
        /// The other rank.
        rank: usize,
        /// What this rank has.
        expected: String,
        /// What the other has.
        got: String,
    },
    /// A rank has had its last exchange, and this one has more.
    #[error(
        "rank {rank} left the group after its last exchange; all ranks must make the same calls in the same order"
    )]
    Left {
        /// The rank that has left.
        rank: usize,
    },
    /// Bytes on the way were damaged, or are not ours at all.
    #[error("what rank {rank} sent is damaged: {detail}")]
    Corrupt {
        /// The sender.
        rank: usize,
        /// What does not fit.
        detail: String,
    },
    /// A rank ended the group's work.
    #[error("rank {by} ended the exchanges of the group: {reason}")]
    Aborted {
        /// Who ended it.
        by: usize,
        /// Whom it blames: ranks that it lost or waited for.
        blamed: Vec<usize>,
        /// Why.
        reason: String,
    },
    /// The other end belongs to another job.
    #[error(
        "rank {rank} at {address} belongs to another job than {job:?}, or has another secret; check the addresses"
    )]
    WrongJob {
        /// The rank asked for.
        rank: usize,
        /// Where it was asked for.
        address: String,
        /// The job of this rank.
        job: String,
    },
    /// The other end belongs to another generation of this job.
    #[error(
        "rank {rank} at {address} is in generation {got}, this rank in {expected}; the older of both must meet the others again"
    )]
    WrongGeneration {
        /// The rank asked for.
        rank: usize,
        /// Where it was asked for.
        address: String,
        /// This rank's generation.
        expected: u64,
        /// The other's.
        got: u64,
    },
    /// A rank could not be reached in time when the group was made.
    #[error("rank {rank} at {address} could not be reached within {seconds:.1} s: {detail}", seconds = waited.as_secs_f64())]
    Unreachable {
        /// The rank.
        rank: usize,
        /// Its address.
        address: String,
        /// How long it was tried.
        waited: Duration,
        /// What was seen last.
        detail: String,
    },
    /// What was asked for makes no sense, on no rank.
    #[error("cannot exchange {what}")]
    Unsupported {
        /// What.
        what: String,
    },
    /// The operating system refused something of this rank's own.
    #[error("cannot {what}: {reason}")]
    Local {
        /// What was tried.
        what: String,
        /// The system's answer.
        reason: String,
    },
}

struct Ranks<'a>(&'a [usize]);

impl std::fmt::Debug for Ranks<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<String> = self.0.iter().map(usize::to_string).collect();
        f.write_str(&names.join(", "))
    }
}

impl CollectiveError {
    /// The ranks that are to blame, as far as this rank knows; empty where it is nobody or itself.
    #[must_use]
    pub fn blamed(&self) -> Vec<usize> {
        match self {
            Self::PeerLost { rank, .. }
            | Self::Mismatch { rank, .. }
            | Self::Left { rank }
            | Self::Corrupt { rank, .. }
            | Self::WrongJob { rank, .. }
            | Self::WrongGeneration { rank, .. }
            | Self::Unreachable { rank, .. } => vec![*rank],
            Self::Timeout { ranks, .. } => ranks.clone(),
            Self::Aborted { blamed, .. } => blamed.clone(),
            Self::Unsupported { .. } | Self::Local { .. } => Vec::new(),
        }
    }

    /// Whether ranks that are alive make other calls than each other: making them again would lead to the same.
    #[must_use]
    pub const fn is_of_other_calls(&self) -> bool {
        matches!(self, Self::Mismatch { .. } | Self::Left { .. })
    }

    /// What other ranks hear from the one that found it.
    pub(crate) fn as_told_by(&self, rank: usize) -> Self {
        match self {
            Self::Aborted { .. } => self.clone(),
            // Nobody is lost, and which of two is wrong neither knows.
            Self::Mismatch { .. } => Self::Aborted {
                by: rank,
                blamed: Vec::new(),
                reason: self.to_string(),
            },
            other => Self::Aborted {
                by: rank,
                blamed: other.blamed(),
                reason: other.to_string(),
            },
        }
    }

    pub(crate) fn local(what: impl Into<String>, reason: impl std::fmt::Display) -> Self {
        Self::Local {
            what: what.into(),
            reason: reason.to_string(),
        }
    }
}
