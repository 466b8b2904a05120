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

use serde::Deserialize;
use serde::de::DeserializeOwned;

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

/// The metadata server of Google Compute Engine: `instance/preempted`, about 30 seconds before a machine of the models Spot and
/// preemptible ends. `PreemptionCheckpointHandler` of TensorFlow asks for `instance/maintenance-event` instead, which comes up to an hour
/// before the machine ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GceNotice {
    address: String,
}

impl GceNotice {
    /// Asks the server that every machine has.
    #[must_use]
    pub fn new() -> Self {
        // Not by its name: where that is not known, resolvers take longer than a question may.
        Self::at("169.254.169.254:80")
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

/// The metadata service of Amazon EC2 (version 2): `spot/instance-action`, two minutes before a Spot machine is terminated or
/// stopped, and as it begins to hibernate.
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
        match ask(&self.address, "GET", path, &token)? {
            (200, body) => read::<InstanceAction>(&body).map(|action| action.ends_machine()),
            // Nothing is announced.
            (404, _) => Ok(false),
            (status, _) => Err(unexpected(status)),
        }
    }
}

#[derive(Deserialize)]
struct InstanceAction {
    action: String,
}

impl InstanceAction {
    fn ends_machine(&self) -> bool {
        ["terminate", "stop", "hibernate"].contains(&self.action.as_str())
    }
}

/// The scheduled events of Microsoft Azure: a `Preempt` of a Spot machine, 30 seconds before, or a `Terminate` of one of a scale set, five
/// minutes before or more. The service begins with the first question, and has its first answer after up to two minutes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AzureNotice {
    address: String,
}

impl AzureNotice {
    /// Asks the server that every machine has.
    #[must_use]
    pub fn new() -> Self {
        Self::at("169.254.169.254:80")
    }

    /// Asks a server at another host and port.
    #[must_use]
    pub fn at(address: impl Into<String>) -> Self {
        Self {
            address: address.into(),
        }
    }

    fn ask(&self, path: &str) -> std::io::Result<String> {
        match ask(&self.address, "GET", path, "Metadata: true")? {
            (200, body) => Ok(body),
            (status, _) => Err(unexpected(status)),
        }
    }
}

impl Default for AzureNotice {
    fn default() -> Self {
        Self::new()
    }
}

impl PreemptionNotice for AzureNotice {
    fn is_given(&mut self) -> std::io::Result<bool> {
        let events = self.ask("/metadata/scheduledevents?api-version=2020-07-01")?;
        let ScheduledEvents { events } = read(&events)?;
        if !events.iter().any(ScheduledEvent::ends_machines) {
            return Ok(false);
        }
        // All machines of a scale set or an availability set hear of each other's events.
        let name = "/metadata/instance/compute/name?api-version=2021-02-01&format=text";
        let name = self.ask(name)?;
        Ok(events.iter().any(|event| event.ends(name.trim())))
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ScheduledEvents {
    events: Vec<ScheduledEvent>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ScheduledEvent {
    event_type: String,
    resources: Vec<String>,
}

impl ScheduledEvent {
    fn ends_machines(&self) -> bool {
        ["Preempt", "Terminate"].contains(&self.event_type.as_str())
    }

    /// Whether it ends the machine of this name; Azure's names are the same in any case.
    fn ends(&self, machine: &str) -> bool {
        let mut machines = self.resources.iter();
        self.ends_machines() && machines.any(|name| name.eq_ignore_ascii_case(machine))
    }
}

/// What a body of JSON says.
fn read<T: DeserializeOwned>(body: &str) -> std::io::Result<T> {
    let refused = |error| IoError::other(format!("an answer that is not expected: {error}"));
    serde_json::from_str(body).map_err(refused)
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

    #[test]
    fn of_scheduled_events_those_that_end_this_machine_count() {
        let ends = |kind: &str, machines: &[&str]| {
            let event = format!(r#"{{"EventType": "{kind}", "Resources": {machines:?}, "X": 1}}"#);
            let text = format!(r#"{{"DocumentIncarnation": 2, "Events": [{event}]}}"#);
            let ScheduledEvents { events } = read(&text).unwrap();
            events.iter().any(|event| event.ends("spot_3"))
        };
        assert!(ends("Preempt", &["spot_3"]) && ends("Terminate", &["spot_1", "SPOT_3"]));
        for (kind, machines) in [
            ("Preempt", &["spot_31"][..]),
            ("Terminate", &[]),
            ("Freeze", &["spot_3"]),
            ("Reboot", &["spot_3"]),
            ("Redeploy", &["spot_3"]),
            ("preempt", &["spot_3"]),
        ] {
            assert!(!ends(kind, machines), "{kind} {machines:?}");
        }
        for wrong in [
            "",
            "null",
            "[]",
            "{}",
            r#"{"Events": [{}]}"#,
            r#"{"Events": [{"EventType": "Preempt""#,
        ] {
            assert!(read::<ScheduledEvents>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_action_that_is_none_of_amazons_ends_nothing() {
        let ends = |text: &str| read::<InstanceAction>(text).map(|action| action.ends_machine());
        for action in ["terminate", "stop", "hibernate"] {
            let text = format!(r#"{{"action": "{action}", "time": "2017-09-18T08:22:00Z"}}"#);
            assert!(ends(&text).unwrap(), "{action}");
        }
        assert!(!ends(r#"{"action": "wave"}"#).unwrap());
        assert!(ends("<html>welcome</html>").is_err() && ends("{}").is_err());
    }
}
