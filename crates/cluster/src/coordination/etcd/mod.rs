//! Coordination by etcd, which survives every worker and its own restarts.
//!
//! What workers say is appended to a log in etcd, which gives one order to all of it; each worker applies the log to a
//! [`Coordination`] of its own and delivers what follows for its own connections. So all see the same, no worker is special, and one
//! that comes later reads the log from its start.
//!
//! - A connection is a key that hangs on the lease of its process. An entry is written together with the condition that this key is
//!   there: who lost the lease says nothing any more. That a process lives is the lease's business and is not in the log.
//! - Time is what the entries say. One worker, which holds the key `clock/holder` by its lease, writes a tick where something
//!   follows from the time, the end of connections whose key is gone, and now and then what the time is.
//! - A log that ended in a failure, or whose writers are all gone, is of a run that is over: who comes first begins another.

mod access;
mod client;
mod entry;
mod replica;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use phalanx_proof::Secret;
use serde_json::{Value, json};

use super::ClusterError;
use super::event::{Recovery, Settings};
use super::generations::Coordination;
use super::message::millis;
use super::service::{Input, Status, Tell, spawn};
pub(super) use access::NoAnswer;
use client::Etcd;
use replica::{Replica, apply};

/// Between two tries to write to an etcd that does not answer.
const RETRY: Duration = Duration::from_millis(200);

/// Reads an entry of a job's log as workers do, and writes what it says again; none of bytes that say nothing.
///
/// For those who try any bytes: what is read must be what is written of it.
#[must_use]
pub fn rewritten_log_entry(bytes: &[u8], key: &str, secret: Option<&[u8]>) -> Option<Vec<u8>> {
    let secret = secret.map(Secret::new);
    entry::write(
        &entry::read(bytes, key, secret.as_ref())?,
        key,
        secret.as_ref(),
    )
}

/// What this process does as a part of a run.
pub(super) struct Run {
    etcd: Arc<Etcd>,
    secret: Option<Secret>,
    settings: Settings,
    /// The lease of this process: another one after it was silent for longer than it.
    lease: Arc<AtomicI64>,
    /// The revision with which the run began.
    began: i64,
    /// What the time of the job was when this process came.
    time: Duration,
}

impl Run {
    /// Takes part in the run of the job, or begins one. The error is why not yet.
    pub(super) fn enter(
        cluster: &crate::EtcdCluster,
        settings: &Settings,
        secret: Option<Secret>,
    ) -> Result<Self, NoAnswer> {
        let keys = place(&settings.job, secret.as_ref());
        let etcd = Arc::new(Etcd::new(cluster, &keys)?);
        let lease = etcd.grant(settings.lease)?;
        let run = Self::enter_with(&etcd, lease, settings, secret);
        if run.is_err() {
            // Otherwise it ends by itself.
            let _ = etcd.revoke(lease);
        }
        run
    }

    fn enter_with(
        etcd: &Arc<Etcd>,
        lease: i64,
        settings: &Settings,
        secret: Option<Secret>,
    ) -> Result<Self, NoAnswer> {
        let process = etcd.put(&format!("process/{lease}"), b"", lease);
        let found = etcd.get("run")?;
        let began = found.as_ref().map_or(0, |run| run.revision);
        let is_alive = !etcd.list("process/", 0, true)?.entries.is_empty();
        let known = found.filter(|_| is_alive);
        let known = known.and_then(|run| read_settings(&run.value, &settings.job));
        if let Some(known) = known {
            let time = etcd.get(CLOCK)?.and_then(|entry| {
                let millis = entry.value.try_into().ok()?;
                Some(Duration::from_millis(u64::from_le_bytes(millis)))
            });
            let run = Self {
                time: time.unwrap_or_default(),
                etcd: Arc::clone(etcd),
                secret: secret.clone(),
                settings: known,
                lease: Arc::new(AtomicI64::new(lease)),
                began,
            };
            if !run.is_over()? {
                let entered = etcd.transact(&[etcd.is_of("run", began)], &[process])?;
                return entered.map(|_| run).ok_or_else(moved);
            }
        }
        let anew = [
            etcd.delete("log/"),
            etcd.delete("member/"),
            etcd.delete("clock/"),
            etcd.put("run", &write_settings(settings), 0),
            process,
        ];
        let began = etcd.transact(&[etcd.is_of("run", began)], &anew)?;
        Ok(Self {
            time: Duration::ZERO,
            etcd: Arc::clone(etcd),
            secret,
            settings: Settings {
                version: String::new(),
                ..settings.clone()
            },
            lease: Arc::new(AtomicI64::new(lease)),
            began: began.ok_or_else(moved)?,
        })
    }

    /// Whether the log ended in a failure, or all its workers have left.
    fn is_over(&self) -> Result<bool, NoAnswer> {
        let mut replica = Coordination::new(self.settings.clone());
        let mut opened = BTreeSet::new();
        let mut now = Duration::ZERO;
        for entry in self.etcd.list("log/", 0, false)?.entries {
            if let Some(happened) = entry::read(&entry.value, &entry.key, self.secret.as_ref()) {
                now = now.max(happened.at);
                apply(&mut replica, &mut opened, now, happened.event);
            }
        }
        Ok(replica.failure().is_some() || replica.is_over())
    }

    fn lease(&self) -> i64 {
        self.lease.load(Ordering::Acquire)
    }

    pub(super) const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Serves the connections of this process until all are closed.
    pub(super) fn serve(
        self,
        to: &Sender<Input>,
        inputs: &Receiver<Input>,
        status: &Mutex<Status>,
        tell: Tell,
    ) -> Result<(), ClusterError> {
        let ended = Arc::new(AtomicBool::new(false));
        let (etcd, over, log) = (Arc::clone(&self.etcd), Arc::clone(&ended), to.clone());
        spawn("phalanx-etcd-watch", move || {
            follow(&etcd, &over, &log);
        })?;
        let over = Arc::clone(&ended);
        let lease = KeptLease {
            etcd: Arc::clone(&self.etcd),
            began: self.began,
            length: self.settings.lease,
            number: Arc::clone(&self.lease),
        };
        spawn("phalanx-etcd-lease", move || {
            while !over.load(Ordering::Acquire) {
                // An etcd that does not answer now gives every lease its full time when it does again.
                let _ = lease.keep();
                std::thread::sleep(lease.length / 5);
            }
        })?;
        let mut replica = Replica::new(self);
        replica.serve(inputs, status, tell);
        ended.store(true, Ordering::Release);
        replica.clean_up();
        Ok(())
    }
}

/// The lease of this process, kept.
struct KeptLease {
    etcd: Arc<Etcd>,
    began: i64,
    length: Duration,
    number: Arc<AtomicI64>,
}

impl KeptLease {
    /// Keeps it for its full length; where it has ended, because this process slept or was cut off, takes another, with which it comes
    /// back. What hung on the old one is gone: the others have gone on without it.
    fn keep(&self) -> Result<(), NoAnswer> {
        if self.etcd.keep(self.number.load(Ordering::Acquire))? {
            return Ok(());
        }
        let lease = self.etcd.grant(self.length)?;
        let process = self.etcd.put(&format!("process/{lease}"), b"", lease);
        let entered = self
            .etcd
            .transact(&[self.etcd.is_of("run", self.began)], &[process]);
        match entered {
            Ok(Some(_)) => self.number.store(lease, Ordering::Release),
            // The run is over, or it is not known: the next time tells.
            Ok(None) | Err(_) => self.etcd.revoke(lease)?,
        }
        Ok(())
    }
}

/// The folder of keys of a job. Who has another secret has another folder: those two can neither end nor delay each other.
fn place(job: &str, secret: Option<&Secret>) -> String {
    let job = if job.is_empty() { "job" } else { job };
    match entry::print_of_secret(secret) {
        Some(print) => format!("{job}/{print}"),
        None => job.to_owned(),
    }
}

fn moved() -> NoAnswer {
    NoAnswer::now("another worker began a run at the same time")
}

/// What all replicas of a run must have the same.
fn write_settings(settings: &Settings) -> Vec<u8> {
    let recovery = settings
        .recovery
        .map(|recovery| json!({ "within_ms": millis(recovery.within), "least": recovery.least }));
    let value = json!({
        "workers": settings.workers, "generation": settings.generation, "recovery": recovery,
        "lease_ms": millis(settings.lease), "join_within_ms": settings.join_within.map(millis),
    });
    value.to_string().into_bytes()
}

fn read_settings(bytes: &[u8], job: &str) -> Option<Settings> {
    let value: Value = serde_json::from_slice(bytes).ok()?;
    let time = |value: &Value| value.as_u64().map(Duration::from_millis);
    let count = |value: &Value| usize::try_from(value.as_u64()?).ok();
    let recovery = match &value["recovery"] {
        Value::Null => None,
        recovery => Some(Recovery {
            within: time(&recovery["within_ms"])?,
            least: count(&recovery["least"])?,
        }),
    };
    Some(Settings {
        workers: count(&value["workers"])?,
        job: job.to_owned(),
        version: String::new(),
        generation: value["generation"].as_u64()?,
        lease: time(&value["lease_ms"])?,
        join_within: time(&value["join_within_ms"]),
        recovery,
    })
}

/// Hands over the log from its start, and that nobody holds the clock.
fn follow(etcd: &Etcd, ended: &AtomicBool, to: &Sender<Input>) {
    let mut seen = 0;
    while !ended.load(Ordering::Acquire) {
        // Also after a watch ended: it may have missed something, and etcd may have forgotten changes since.
        let listed = match etcd.list("log/", seen + 1, false) {
            Ok(listed) => listed,
            Err(no_answer) => {
                if no_answer.lasts() {
                    // Nobody reads it once the service has ended.
                    let _ = to.send(Input::Unreadable { why: no_answer.why });
                }
                std::thread::sleep(RETRY);
                continue;
            }
        };
        let hand_over = |entry: client::Entry| {
            let sent = match entry.key.starts_with("log/") {
                true => Input::Written {
                    key: entry.key,
                    value: entry.value,
                },
                false => Input::ClockIsFree,
            };
            to.send(sent).is_ok()
        };
        for entry in listed.entries {
            if !hand_over(entry) {
                return;
            }
        }
        seen = listed.revision.max(seen);
        etcd.watch("", seen, |entry| {
            seen = entry.revision.max(seen);
            let is_news = match entry.is_deleted {
                true => entry.key == HOLDER,
                false => entry.key.starts_with("log/"),
            };
            !ended.load(Ordering::Acquire) && (!is_news || hand_over(entry))
        });
        std::thread::sleep(Duration::from_millis(20));
    }
}

const HOLDER: &str = "clock/holder";
const CLOCK: &str = "clock/time";
