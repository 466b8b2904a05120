//! The calls of a bucket, by the crate `object_store`.

mod credentials;
mod http;
mod reason;

use std::fmt;
use std::future::Future;
use std::panic::resume_unwind;
use std::thread;

use futures_util::TryStreamExt;
use object_store::path::Path;
use object_store::{
    BackoffConfig, GetOptions, ObjectMeta, ObjectStore, ObjectStoreExt, RetryConfig,
};
use tokio::runtime::Runtime;

use crate::{Limits, Object, ObjectUrl, StoreError};

/// The most bytes that S3 and Google Cloud Storage take in one request.
const MOST: usize = 5 << 30;

pub(crate) struct Remote {
    store: Box<dyn ObjectStore>,
    runtime: Runtime,
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the store's own: it may show credentials.
        f.debug_struct("Remote").finish_non_exhaustive()
    }
}

impl Remote {
    pub(crate) fn open(url: &ObjectUrl, limits: Limits) -> Result<Self, StoreError> {
        let refused = |reason: String| StoreError::Refused {
            action: "use",
            url: url.of_bucket(),
            reason,
        };
        let store = credentials::store(url, retry(limits), limits.attempt).map_err(refused)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .map_err(|error| refused(format!("this machine starts no timer: {error}")))?;
        Ok(Self { store, runtime })
    }

    pub(crate) fn put(&self, url: &ObjectUrl, contents: Vec<u8>) -> Result<(), StoreError> {
        if contents.len() > MOST {
            let reason = format!(
                "it has {} bytes, and an object written in one request has at most {MOST}; train with a strategy that divides the model, or write to a folder",
                contents.len()
            );
            return Err(refused("write", url, reason));
        }
        let path = path(url)?;
        self.run("write", url, self.store.put(&path, contents.into()))?;
        Ok(())
    }

    pub(crate) fn read(
        &self,
        url: &ObjectUrl,
        start: u64,
        end: u64,
    ) -> Result<Vec<u8>, StoreError> {
        let path = path(url)?;
        let bytes = self.run("read", url, self.store.get_range(&path, start..end))?;
        Ok(bytes.into())
    }

    pub(crate) fn stat(&self, url: &ObjectUrl) -> Result<Object, StoreError> {
        let path = path(url)?;
        let meta = self.run("read", url, self.meta(&path))?;
        Ok(Object {
            name: String::new(),
            size: meta.size,
            modified: meta.last_modified.into(),
        })
    }

    /// What comes with the first byte: not every server has the call for the head alone. An empty object has none.
    async fn meta(&self, path: &Path) -> object_store::Result<ObjectMeta> {
        let first = GetOptions::new().with_range(Some(0..1));
        match self.store.get_opts(path, first).await {
            Err(error) if reason::is_without_part(&error) => Ok(self.store.get(path).await?.meta),
            answer => Ok(answer?.meta),
        }
    }

    pub(crate) fn list(&self, url: &ObjectUrl) -> Result<Vec<Object>, StoreError> {
        let folder = path(url)?;
        let found = self.store.list(Some(&folder)).try_collect::<Vec<_>>();
        let found = match self.run("list", url, found) {
            // A prefix of nothing, where the server does not give an empty list.
            Err(StoreError::Missing { .. }) => Vec::new(),
            found => found?,
        };
        let prefix = format!("{folder}/");
        let named = |meta: ObjectMeta| {
            let name = meta.location.as_ref().strip_prefix(&prefix)?.to_owned();
            Some(Object {
                name,
                size: meta.size,
                modified: meta.last_modified.into(),
            })
        };
        let mut objects: Vec<Object> = found.into_iter().filter_map(named).collect();
        objects.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(objects)
    }

    pub(crate) fn remove(&self, url: &ObjectUrl) -> Result<(), StoreError> {
        let path = path(url)?;
        match self.run("remove", url, self.store.delete(&path)) {
            Err(StoreError::Missing { .. }) => Ok(()),
            removed => removed,
        }
    }

    /// The result of a call, which runs on a thread of its own: the caller may be on a thread of a runtime, which must not wait.
    fn run<T: Send>(
        &self,
        action: &'static str,
        url: &ObjectUrl,
        call: impl Future<Output = object_store::Result<T>> + Send,
    ) -> Result<T, StoreError> {
        let result = thread::scope(|scope| {
            let thread = thread::Builder::new().name("store".to_owned());
            let started = thread.spawn_scoped(scope, || self.runtime.block_on(call));
            started.map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
        });
        let result = result.map_err(|error| {
            refused(
                action,
                url,
                format!("this machine starts no thread: {error}"),
            )
        })?;
        result.map_err(|error| reason::explained(action, url, &error))
    }
}

fn refused(action: &'static str, url: &ObjectUrl, reason: String) -> StoreError {
    StoreError::Refused {
        action,
        url: url.to_string(),
        reason,
    }
}

/// Tries last as long as there is time for them: their number says nothing.
fn retry(limits: Limits) -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig::default(),
        max_retries: usize::MAX,
        retry_timeout: limits.retry,
    }
}

fn path(url: &ObjectUrl) -> Result<Path, StoreError> {
    Path::parse(url.key()).map_err(|_| {
        StoreError::Url(format!(
            "`{url}` is no name of an object; use letters, digits, `-`, `_`, `.`"
        ))
    })
}
