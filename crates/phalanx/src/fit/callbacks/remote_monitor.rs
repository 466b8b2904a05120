//! Results of epochs sent to a server.

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Callback, CallbackContext};
use crate::config::{Component, Described, Field, Kind, setters};
use crate::fit::{EpochLogs, http};
use crate::{Error, Result};

/// Sends the results of each epoch to a server by HTTP: Keras' `RemoteMonitor`, which the training waits for.
///
/// Here a thread sends them, and results that come while 64 are waiting are dropped. A server that does not answer costs
/// nothing but a notice. Results that are not numbers are `null`. Addresses are `http://`: nothing is encrypted.
#[derive(Debug, Serialize, Deserialize)]
pub struct RemoteMonitor {
    root: String,
    path: String,
    field: String,
    send_as_json: bool,
    #[serde(skip)]
    sender: Option<Sender>,
}

/// The way to the thread that sends.
#[derive(Debug)]
struct Sender {
    bodies: SyncSender<String>,
    failures: Receiver<String>,
}

/// Results that wait to be sent.
const MOST_WAITING: usize = 64;
/// How long a server may take for each answer, and the training for the last results.
const PATIENCE: Duration = Duration::from_secs(5);

impl Described for RemoteMonitor {
    const COMPONENT: Component = Component {
        name: "remote_monitor",
        doc: "sends the results of each epoch to a server, without waiting for it",
        fields: &[
            Field::optional("root", Kind::Text, "the address of the server"),
            Field::optional("path", Kind::Text, "what follows the address"),
            Field::optional(
                "field",
                Kind::Text,
                "the field of the form that has the JSON",
            ),
            Field::optional(
                "send_as_json",
                Kind::Bool,
                "whether the JSON is sent as it is in place of a form",
            ),
        ],
    };
}

impl Default for RemoteMonitor {
    /// Keras' defaults: a server on this machine.
    fn default() -> Self {
        Self::new("http://localhost:9000")
    }
}

impl Clone for RemoteMonitor {
    /// The settings: each has a thread of its own.
    fn clone(&self) -> Self {
        Self {
            root: self.root.clone(),
            path: self.path.clone(),
            field: self.field.clone(),
            send_as_json: self.send_as_json,
            sender: None,
        }
    }
}

impl RemoteMonitor {
    /// Sends to the server at this address, to Keras' path.
    #[must_use]
    pub fn new(root: impl Into<String>) -> Self {
        Self {
            root: root.into(),
            path: "/publish/epoch/end/".to_owned(),
            field: "data".to_owned(),
            send_as_json: false,
            sender: None,
        }
    }

    /// The host with its port, and the path.
    fn target(&self) -> Result<(String, String)> {
        let address = format!("{}{}", self.root, self.path);
        let rest = address.strip_prefix("http://");
        let rest = rest.filter(|rest| rest.bytes().all(|byte| byte.is_ascii_graphic()));
        let Some(rest) = rest else {
            return Err(Error::user(format!(
                "{}: the address is `{address}`, expected one such as `http://localhost:9000/publish/`",
                self.kind()
            )));
        };
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let host = match host.contains(':') {
            true => host.to_owned(),
            false => format!("{host}:80"),
        };
        Ok((host, if path.is_empty() { "/" } else { path }.to_owned()))
    }

    fn body(&self, done: &EpochLogs) -> String {
        let mut fields = Map::new();
        fields.insert("epoch".to_owned(), done.epoch.into());
        let logs = done.logs.iter();
        fields.extend(logs.map(|(name, value)| (name.to_owned(), value.into())));
        let json = Value::Object(fields).to_string();
        match self.send_as_json {
            true => json,
            false => format!("{}={}", encoded(&self.field), encoded(&json)),
        }
    }

    /// Waits for what is not sent yet.
    fn finish(&mut self) {
        let Some(Sender { bodies, failures }) = self.sender.take() else {
            return;
        };
        drop(bodies);
        let begun = Instant::now();
        // The thread ends it, when all is sent.
        while failures
            .recv_timeout(PATIENCE.saturating_sub(begun.elapsed()))
            .is_ok()
        {}
    }

    fn start(&mut self) -> Result<()> {
        let (host, path) = self.target()?;
        let kind = match self.send_as_json {
            true => "application/json",
            false => "application/x-www-form-urlencoded",
        };
        let (bodies, waiting) = sync_channel::<String>(MOST_WAITING);
        let (failed, failures) = sync_channel(1);
        std::thread::spawn(move || {
            for body in waiting {
                if let Err(error) = post(&host, &path, kind, &body) {
                    // One is enough to know of it.
                    let _ = failed.try_send(format!("{host}: {error}"));
                }
            }
        });
        self.sender = Some(Sender { bodies, failures });
        Ok(())
    }
}

setters!(RemoteMonitor {
    /// What follows the address; `/publish/epoch/end/` by default.
    path: String,
    /// The field of the form that has the JSON; `data` by default.
    field: String,
    /// Whether the JSON is sent as it is in place of a form.
    send_as_json: bool,
});

impl Callback for RemoteMonitor {
    fn kind(&self) -> &'static str {
        Self::COMPONENT.name
    }

    fn on_train_begin(&mut self, cx: &mut CallbackContext<'_>) -> Result<()> {
        match cx.is_chief() {
            true => self.start(),
            false => self.target().map(drop),
        }
    }

    fn on_epoch_end(&mut self, done: &mut EpochLogs, cx: &mut CallbackContext<'_>) -> Result<()> {
        let body = self.body(done);
        let Some(sender) = &self.sender else {
            return Ok(());
        };
        if matches!(sender.bodies.try_send(body), Err(TrySendError::Full(_))) {
            cx.notice(
                "warning: remote_monitor drops the results of an epoch, as the server is slow",
            );
        }
        if let Ok(failure) = sender.failures.try_recv() {
            cx.notice(&format!(
                "warning: remote_monitor could not reach {failure}"
            ));
        }
        Ok(())
    }

    fn on_train_end(&mut self, _: &mut CallbackContext<'_>) -> Result<()> {
        self.finish();
        Ok(())
    }

    fn on_interrupted(&mut self, _: &mut CallbackContext<'_>) -> Result<()> {
        self.finish();
        Ok(())
    }
}

fn post(host: &str, path: &str, kind: &str, body: &str) -> std::io::Result<()> {
    let length = body.len();
    let text = format!(
        "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    let status = http::ask(host, &text, "HTTP/1.1 200".len(), PATIENCE)?;
    match status.get(9) {
        Some(b'2' | b'3') => Ok(()),
        _ => Err(std::io::Error::other(
            String::from_utf8_lossy(&status).into_owned(),
        )),
    }
}

/// As forms have it.
fn encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                encoded.push(char::from(byte));
            }
            b' ' => encoded.push('+'),
            _ => encoded += &format!("%{byte:02X}"),
        }
    }
    encoded
}
