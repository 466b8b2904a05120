//! Batches made ahead on a thread.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;

use super::Batch;
use super::batches::Maker;
use crate::{Error, Result};

/// A thread that fills a bounded queue, and the reader's end of the queue.
///
/// The thread ends when the epoch does, after an error, or when the reader is gone; dropping this joins it.
pub(super) struct Prefetched {
    queue: Option<Receiver<Result<Batch>>>,
    thread: Option<JoinHandle<()>>,
    failed_start: Option<Error>,
}

impl Prefetched {
    pub(super) fn start(maker: Maker, depth: usize) -> Self {
        let (sender, queue) = sync_channel(depth);
        let clocks = Arc::clone(&maker.clocks);
        let fill = move || {
            for batch in maker {
                let failed = batch.is_err();
                let sent = clocks.ahead.time(|| sender.send(batch));
                if failed || sent.is_err() {
                    return;
                }
            }
        };
        let started = std::thread::Builder::new()
            .name("phalanx-prefetch".into())
            .spawn(fill);
        let (thread, failed_start) = match started {
            Ok(thread) => (Some(thread), None),
            Err(error) => (None, Some(no_thread(&error))),
        };
        Self {
            queue: Some(queue),
            thread,
            failed_start,
        }
    }

    pub(super) fn next(&mut self) -> Option<Result<Batch>> {
        if let Some(error) = self.failed_start.take() {
            return Some(Err(error));
        }
        self.queue.as_ref()?.recv().ok().or_else(|| self.end())
    }

    /// Nothing at the end of the epoch, an error when the thread died.
    fn end(&mut self) -> Option<Result<Batch>> {
        let died = self.thread.take()?.join().is_err();
        died.then(|| {
            Err(Error::Bug(
                "the prefetch thread panicked outside of the stages".into(),
            ))
        })
    }
}

impl Drop for Prefetched {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn no_thread(error: &std::io::Error) -> Error {
    Error::User(format!(
        "cannot start a thread to prefetch: {error}; raise the limit on threads, or use prefetch(0)"
    ))
}
