//! Notices of a preemption by who owns the machine, watched for beside a training.
//!
//! # Examples
//! ```no_run
//! use std::sync::Arc;
//! use std::sync::atomic::AtomicBool;
//! use std::time::Duration;
//! use phalanx::fit::Fit;
//! use phalanx::fit::preemption::{GceNotice, PreemptionWatcher};
//! # fn main() -> phalanx::Result<()> {
//! let stop = Arc::new(AtomicBool::new(false));
//! let watcher = PreemptionWatcher::start(GceNotice::new(), Duration::from_secs(1), &stop)?;
//! let fit = Fit::epochs(100).checkpoint("runs/digits/checkpoint").stop_when(&stop);
//! # Ok(()) }
//! ```

use std::io::Error as IoError;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::http;
use crate::{Error, Result};

/// The longest that one question may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// The most that is read of an answer.
const MOST_BYTES: usize = 1 << 16;

/// Says whether a preemption was announced.
pub trait PreemptionNotice: Send + 'static {
    /// Whether it was, asked again and again on a thread of its own.
    ///
    /// # Errors
    /// When it cannot be found out this time; it is asked again.
    fn is_given(&mut self) -> std::io::Result<bool>;
}

/// The metadata server of Google Compute Engine: `instance/preempted`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GceNotice {
    address: String,
}

impl GceNotice {
    /// Asks the server that every machine has.
    #[must_use]
    pub fn new() -> Self {
        Self::at("metadata.google.internal:80")
    }

    /// Asks a server at another host and port.
    #[must_use]
    pub fn at(address: impl Into<String>) -> Self {
        Self {
            address: address.into(),
        }
    }
}

impl Default for GceNotice {
    fn default() -> Self {
        Self::new()
    }
}

impl PreemptionNotice for GceNotice {
    fn is_given(&mut self) -> std::io::Result<bool> {
        let path = "/computeMetadata/v1/instance/preempted";
        let (status, body) = ask(&self.address, "GET", path, "Metadata-Flavor: Google")?;
        match (status, body.trim()) {
            (200, "TRUE") => Ok(true),
            (200, "FALSE") => Ok(false),
            (status, _) => Err(unexpected(status)),
        }
    }
}

/// The metadata service of Amazon EC2 (version 2): `spot/instance-action`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwsNotice {
    address: String,
}

impl AwsNotice {
    /// Asks the service that every machine has.
    #[must_use]
    pub fn new() -> Self {
        Self::at("169.254.169.254:80")
    }

    /// Asks a service at another host and port.
    #[must_use]
    pub fn at(address: impl Into<String>) -> Self {
        Self {
            address: address.into(),
        }
    }
}

impl Default for AwsNotice {
    fn default() -> Self {
        Self::new()
    }
}

impl PreemptionNotice for AwsNotice {
    fn is_given(&mut self) -> std::io::Result<bool> {
        let lifetime = "X-aws-ec2-metadata-token-ttl-seconds: 60";
        let (status, token) = ask(&self.address, "PUT", "/latest/api/token", lifetime)?;
        let is_token = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
        if status != 200 || !is_token {
            return Err(unexpected(status));
        }
        let path = "/latest/meta-data/spot/instance-action";
        let token = format!("X-aws-ec2-metadata-token: {token}");
        match ask(&self.address, "GET", path, &token)?.0 {
            200 => Ok(true),
            // Nothing is announced.
            404 => Ok(false),
            status => Err(unexpected(status)),
        }
    }
}

fn unexpected(status: u16) -> IoError {
    IoError::other(format!(
        "an answer that is not expected, of status {status}"
    ))
}

/// The status and the body of an answer.
fn ask(host: &str, method: &str, path: &str, header: &str) -> std::io::Result<(u16, String)> {
    let text = format!(
        "{method} {path} HTTP/1.0\r\nHost: {host}\r\n{header}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
    let answer = http::ask(host, &text, MOST_BYTES, PATIENCE)?;
    let answer = String::from_utf8_lossy(&answer);
    parsed(&answer).ok_or_else(|| IoError::other("an answer that is no HTTP"))
}

fn parsed(answer: &str) -> Option<(u16, String)> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let mut words = head.strip_prefix("HTTP/1.")?.split_ascii_whitespace();
    let status = words.nth(1)?.parse().ok()?;
    Some((status, body.to_owned()))
}

/// Asks for a notice again and again while it lives, and sets a flag when there is one, for
/// [`Fit::stop_when`](super::Fit::stop_when): of several workers it is enough that one hears of it.
pub struct PreemptionWatcher {
    /// The thread ends when this does.
    running: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    failure: Arc<Mutex<Option<String>>>,
}

impl PreemptionWatcher {
    /// Asks every so often, on a thread.
    ///
    /// # Errors
    /// When there can be no thread.
    pub fn start(
        mut notice: impl PreemptionNotice,
        every: Duration,
        stop: &Arc<AtomicBool>,
    ) -> Result<Self> {
        let (running, ended) = channel();
        let (stop, failure) = (Arc::clone(stop), Arc::new(Mutex::new(None)));
        let last = Arc::clone(&failure);
        let thread = std::thread::Builder::new().name("preemption".to_owned());
        let thread = thread.spawn(move || {
            loop {
                let given = notice.is_given();
                let told = given.as_ref().err().map(ToString::to_string);
                *last.lock().unwrap_or_else(PoisonError::into_inner) = told;
                if given.unwrap_or(false) {
                    stop.store(true, Ordering::Relaxed);
                    return;
                }
                if ended.recv_timeout(every) == Err(RecvTimeoutError::Disconnected) {
                    return;
                }
            }
        });
        let thread = thread.map_err(|source| Error::Io {
            path: PathBuf::new(),
            action: "start the thread that watches for a preemption to",
            source,
        })?;
        Ok(Self {
            running: Some(running),
            thread: Some(thread),
            failure,
        })
    }

    /// Why the last question had no answer, if it had none.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        let failure = self.failure.lock();
        failure.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for PreemptionWatcher {
    fn drop(&mut self) {
        self.running.take();
        if let Some(thread) = self.thread.take() {
            // It has not panicked but for a notice that does.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_and_others_refused() {
        let of = |answer: &str| parsed(answer);
        assert_eq!(
            of("HTTP/1.1 200 OK\r\nA: b\r\n\r\nTRUE"),
            Some((200, "TRUE".to_owned()))
        );
        assert_eq!(of("HTTP/1.0 404\r\n\r\n"), Some((404, String::new())));
        for wrong in [
            "",
            "\r\n\r\n",
            "HTTP/1.1\r\n\r\n",
            "HTTP/1.1 99999 x\r\n\r\n",
            "HTTP/1.1 200 OK",
        ] {
            assert_eq!(of(wrong), None, "{wrong:?}");
        }
    }
}
