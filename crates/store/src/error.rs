//! What can be wrong with a URL or an object, in texts without secrets.

/// Why something in a bucket could not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The URL is none, or names nothing that can be used.
    #[error("{0}")]
    Url(String),
    /// The object is not there.
    #[error("{url} is not there")]
    Missing {
        /// The object.
        url: String,
    },
    /// The server, the network or this machine refused: it says which bucket, why, and what to do.
    #[error("cannot {action} {url}: {reason}")]
    Refused {
        /// The verb of the refused operation: `read`, `list`.
        action: &'static str,
        /// The bucket or object.
        url: String,
        /// Why, and what to do.
        reason: String,
    },
}
