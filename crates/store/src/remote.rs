//! The calls of a bucket, by the crate `object_store`.

mod credentials;
mod http;
mod reason;

use std::fmt;
use std::future::Future;
use std::panic::resume_unwind;
use std::thread;
use std::time::{Duration, Instant};

use futures_util::TryStreamExt;
use object_store::path::Path;
use object_store::{
    BackoffConfig, GetOptions, ObjectMeta, ObjectStore, ObjectStoreExt, PutPayload, RetryConfig,
};
use tokio::runtime::Runtime;

use crate::{Limits, Object, ObjectUrl, StoreError};

/// The most bytes that S3 and Google Cloud Storage take in one request.
const MOST: usize = 5 << 30;
/// For this long `object_store` itself asks again for what is refused: of a list of many pages for the one page.
const MOMENT: Duration = Duration::from_millis(300);
/// The pause before a call is made again, and the longest one, after several.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

pub(crate) struct Remote {
    store: Box<dyn ObjectStore>,
    retry: Duration,
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
        let store = credentials::store(url, for_a_moment(), limits.silence).map_err(refused)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .map_err(|error| refused(format!("this machine starts no timer: {error}")))?;
        Ok(Self {
            store,
            retry: limits.retry,
            runtime,
        })
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
        let contents = PutPayload::from(contents);
        self.run("write", url, || self.store.put(&path, contents.clone()))?;
        Ok(())
    }

    pub(crate) fn read(
        &self,
        url: &ObjectUrl,
        start: u64,
        end: u64,
    ) -> Result<Vec<u8>, StoreError> {
        let path = path(url)?;
        let bytes = self.run("read", url, || self.store.get_range(&path, start..end))?;
        Ok(bytes.into())
    }

    pub(crate) fn stat(&self, url: &ObjectUrl) -> Result<Object, StoreError> {
        let path = path(url)?;
        let meta = self.run("read", url, || self.meta(&path))?;
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
        let all = || self.store.list(Some(&folder)).try_collect::<Vec<_>>();
        let found = match self.run("list", url, all) {
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
        match self.run("remove", url, || self.store.delete(&path)) {
            Err(StoreError::Missing { .. }) => Ok(()),
            removed => removed,
        }
    }

    /// The result of a call, which runs on a thread of its own: the caller may be on a thread of a runtime, which must not wait.
    fn run<T: Send, C: Future<Output = object_store::Result<T>>>(
        &self,
        action: &'static str,
        url: &ObjectUrl,
        call: impl Fn() -> C + Send,
    ) -> Result<T, StoreError> {
        let result = thread::scope(|scope| {
            let thread = thread::Builder::new().name("store".to_owned());
            let started = thread.spawn_scoped(scope, || self.runtime.block_on(self.answer(call)));
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

    /// Makes a call again while what it fails of may pass, for as long as the limits say after its first failure: a call may be longer than that, and is
    /// tried again nevertheless. Each has a signature of its own, which servers take for minutes.
    async fn answer<T, C: Future<Output = object_store::Result<T>>>(
        &self,
        call: impl Fn() -> C,
    ) -> object_store::Result<T> {
        let (mut failed, mut pause) = (None, FIRST_PAUSE);
        loop {
            let error = match call().await {
                Err(error) if reason::may_pass(&error) => error,
                answer => return answer,
            };
            let first = failed.get_or_insert_with(Instant::now);
            if first.elapsed() + pause > self.retry {
                return Err(error);
            }
            tokio::time::sleep(pause).await;
            pause = LONGEST_PAUSE.min(pause * 2);
        }
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
fn for_a_moment() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig::default(),
        max_retries: usize::MAX,
        retry_timeout: MOMENT,
    }
}

fn path(url: &ObjectUrl) -> Result<Path, StoreError> {
    Path::parse(url.key()).map_err(|_| {
        StoreError::Url(format!(
            "`{url}` is no name of an object; use letters, digits, `-`, `_`, `.`"
        ))
    })
}
