//! Objects in buckets of S3 and Google Cloud Storage: their URLs, and reading, writing, listing and removing them.
//!
//! A [`Bucket`] has five calls, each of which waits for its answer, tries again when the server is busy or the connection breaks, and
//! gives up when that does not help. What is kept under which names, and when it is complete, is for those who use it.
//!
//! Without the feature `cloud` URLs are read, and [`Bucket::open`] refuses all of them with a text that names the feature.
#![forbid(unsafe_code)]

mod bucket;
mod error;
#[cfg(feature = "cloud")]
mod remote;
mod url;

pub use bucket::{Bucket, CERTIFICATE_VARIABLES, Limits, Object};
pub use error::StoreError;
pub use url::{ObjectUrl, Scheme};
