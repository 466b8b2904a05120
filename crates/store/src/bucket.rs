//! A bucket: what can be asked of it, and when that gives up.

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use crate::{ObjectUrl, StoreError};

#[cfg(feature = "cloud")]
use crate::remote::Remote;

/// Variables that name a file with the certificates to trust, the first that is set.
pub const CERTIFICATE_VARIABLES: [&str; 2] = ["AWS_CA_BUNDLE", "SSL_CERT_FILE"];

/// When calls give up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// For how long after its first failure a call is tried again, when the server is busy or cannot be reached.
    pub retry: Duration,
    /// For how long a server may take and send nothing before a try is given up. For the answer to what was sent it has a second more for each MiB
    /// beyond the first 32.
    pub silence: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            retry: Duration::from_secs(120),
            silence: Duration::from_secs(60),
        }
    }
}

impl Limits {
    /// The limits with the time for tries of PHALANX_STORE_RETRY, in seconds, where that is set.
    ///
    /// # Errors
    /// When it is set to anything but a number from 1 to 3600.
    pub fn from_env() -> Result<Self, StoreError> {
        let limits = Self::default();
        let Ok(text) = std::env::var("PHALANX_STORE_RETRY") else {
            return Ok(limits);
        };
        match text.parse() {
            Ok(seconds @ 1..=3600) => Ok(Self {
                retry: Duration::from_secs(seconds),
                ..limits
            }),
            _ => Err(StoreError::Url(
                "PHALANX_STORE_RETRY: expected whole seconds from 1 to 3600, for which calls to a store are tried again".to_owned(),
            )),
        }
    }
}

/// What is known of an object by its name alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its name below the URL that was listed; empty for what has the URL itself.
    pub name: String,
    /// Its bytes.
    pub size: u64,
    /// When it was written, by the server's clock.
    pub modified: SystemTime,
}

impl Object {
    /// The objects of a listing without the empty ones by which some programs mark folders.
    #[must_use]
    pub fn without_markers(listed: Vec<Self>) -> Vec<Self> {
        let folders: HashSet<String> = listed
            .iter()
            .flat_map(|object| {
                let ends = object.name.match_indices('/');
                ends.map(|(end, _)| object.name[..end].to_owned())
            })
            .collect();
        let is_file = |object: &Self| {
            object.size > 0 || !(object.name.is_empty() || folders.contains(&object.name))
        };
        listed.into_iter().filter(is_file).collect()
    }
}

/// How much of an object is asked for at once.
const PART: u64 = 32 << 20;

/// A bucket that can be used. Every call waits for its answer, and gives up when its [`Limits`] say so.
#[derive(Debug)]
pub struct Bucket {
    #[cfg(feature = "cloud")]
    remote: Remote,
    #[cfg(not(feature = "cloud"))]
    remote: std::convert::Infallible,
}

impl Bucket {
    /// The bytes of an object of this size, in parts of at most 32 MiB, each of which is asked for when it is taken. A part that is shorter, since
    /// the object was changed meanwhile, is an error.
    pub fn parts<'own>(
        &'own self,
        url: &'own ObjectUrl,
        size: u64,
    ) -> impl Iterator<Item = Result<Vec<u8>, StoreError>> + 'own {
        let mut done = 0;
        std::iter::from_fn(move || {
            let (start, end) = (done, size.min(done + PART));
            done = end;
            (start < end).then(|| self.part(url, start, end))
        })
    }

    fn part(&self, url: &ObjectUrl, start: u64, end: u64) -> Result<Vec<u8>, StoreError> {
        let bytes = self.read(url, start, end)?;
        if bytes.len() as u64 == end - start {
            return Ok(bytes);
        }
        Err(StoreError::Refused {
            action: "read",
            url: url.to_string(),
            reason: "it was changed while it was read; start again when it is complete".to_owned(),
        })
    }
}

#[cfg(feature = "cloud")]
impl Bucket {
    /// Finds the credentials and the server for the bucket of a URL in the environment. Nothing is asked of the bucket yet.
    ///
    /// # Errors
    /// When there are no credentials or the environment contradicts itself.
    pub fn open(url: &ObjectUrl, limits: Limits) -> Result<Self, StoreError> {
        let remote = Remote::open(url, limits)?;
        Ok(Self { remote })
    }

    /// Writes an object, whole or not at all, in the place of one that is there.
    ///
    /// # Errors
    /// When the server refuses, is out of reach for too long, or the object has more than 5 GiB.
    pub fn put(&self, url: &ObjectUrl, contents: Vec<u8>) -> Result<(), StoreError> {
        self.remote.put(url, contents)
    }

    /// The bytes of an object from `start` to before `end`, fewer where it ends earlier.
    ///
    /// # Errors
    /// [`StoreError::Missing`] where it is not there.
    pub fn read(&self, url: &ObjectUrl, start: u64, end: u64) -> Result<Vec<u8>, StoreError> {
        self.remote.read(url, start, end)
    }

    /// What is known of an object.
    ///
    /// # Errors
    /// [`StoreError::Missing`] where it is not there.
    pub fn stat(&self, url: &ObjectUrl) -> Result<Object, StoreError> {
        self.remote.stat(url)
    }

    /// All objects under a URL, in the order of their names.
    ///
    /// # Errors
    /// When there is no such bucket, or it may not be listed.
    pub fn list(&self, url: &ObjectUrl) -> Result<Vec<Object>, StoreError> {
        self.remote.list(url)
    }

    /// Removes an object; one that is not there is no error.
    ///
    /// # Errors
    /// When it may not be removed.
    pub fn remove(&self, url: &ObjectUrl) -> Result<(), StoreError> {
        self.remote.remove(url)
    }
}

#[cfg(not(feature = "cloud"))]
#[allow(
    missing_docs,
    reason = "as with the feature, which the documentation is built with"
)]
#[allow(clippy::missing_errors_doc, reason = "as above")]
impl Bucket {
    pub fn open(url: &ObjectUrl, _: Limits) -> Result<Self, StoreError> {
        Err(StoreError::Refused {
            action: "use",
            url: url.to_string(),
            reason: "this program was built without the feature `cloud`, by which it would talk to S3 and Google Cloud Storage; build it with `cargo build --release --features cloud`, or, to read alone, mount the bucket (s3fs, gcsfuse, rclone mount) and name its folder".to_owned(),
        })
    }

    pub fn put(&self, _: &ObjectUrl, _: Vec<u8>) -> Result<(), StoreError> {
        match self.remote {}
    }

    pub fn read(&self, _: &ObjectUrl, _: u64, _: u64) -> Result<Vec<u8>, StoreError> {
        match self.remote {}
    }

    pub fn stat(&self, _: &ObjectUrl) -> Result<Object, StoreError> {
        match self.remote {}
    }

    pub fn list(&self, _: &ObjectUrl) -> Result<Vec<Object>, StoreError> {
        match self.remote {}
    }

    pub fn remove(&self, _: &ObjectUrl) -> Result<(), StoreError> {
        match self.remote {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_folders_are_no_files() {
        let object = |(name, size): (&str, u64)| Object {
            name: name.to_owned(),
            size,
            modified: SystemTime::UNIX_EPOCH,
        };
        let listed = [("", 0), ("a", 0), ("a/b", 3), ("c", 0)].map(object);
        let kept = Object::without_markers(listed.into());
        assert_eq!(kept, [("a/b", 3), ("c", 0)].map(object));
    }

    #[cfg(not(feature = "cloud"))]
    #[test]
    fn without_the_feature_the_refusal_names_it() {
        let url = ObjectUrl::parse("s3://bucket/x").unwrap();
        let error = Bucket::open(&url, Limits::default())
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with(
                "cannot use s3://bucket/x: this program was built without the feature `cloud`"
            ),
            "{error}"
        );
    }
}
