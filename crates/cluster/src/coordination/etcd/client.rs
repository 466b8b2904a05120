//! The few calls of etcd that are needed, through its JSON gateway: HTTP, in 0.5 to 0.9 ms a call.

use std::io::{BufRead, BufReader};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use ureq::typestate::WithBody;
use ureq::{Agent, RequestBuilder};

use super::access::{NoAnswer, Until, agent, of_connection, of_status, password, tls_config};
use crate::EtcdCluster;

/// How long a call may take.
const CALL_WITHIN: Duration = Duration::from_secs(2);
/// How long a watch is kept, so that one whose connection died without a word is opened again.
const WATCH_FOR: Duration = Duration::from_secs(10);

/// The members of an etcd cluster, and the keys of one job.
pub(super) struct Etcd {
    cluster: EtcdCluster,
    /// Of the cluster's members.
    urls: Vec<String>,
    /// The member that answered last.
    preferred: AtomicUsize,
    agents: Mutex<Agents>,
    /// What etcd gave for the user's password; none before it is asked for.
    token: Mutex<Option<String>>,
    prefix: String,
}

/// What makes connections, by TLS with the files as they were read last.
#[derive(Clone)]
struct Agents {
    calls: Agent,
    watches: Agent,
}

impl Agents {
    fn new(cluster: &EtcdCluster) -> Result<Self, NoAnswer> {
        let tls = cluster.tls.as_ref().map(tls_config).transpose()?;
        Ok(Self {
            calls: agent(CALL_WITHIN, tls.as_ref()),
            watches: agent(WATCH_FOR, tls.as_ref()),
        })
    }
}

/// A key with its value.
pub(super) struct Entry {
    /// Without the job's prefix.
    pub(super) key: String,
    pub(super) value: Vec<u8>,
    /// The revision of etcd that wrote it.
    pub(super) revision: i64,
    pub(super) is_deleted: bool,
}

/// What is there under some keys, in the order of writing.
pub(super) struct KeyList {
    pub(super) entries: Vec<Entry>,
    pub(super) revision: i64,
}

impl Etcd {
    /// The keys in a folder of this cluster. The error is why files of TLS cannot be used.
    pub(super) fn new(cluster: &EtcdCluster, folder: &str) -> Result<Self, NoAnswer> {
        let scheme = cluster.tls.as_ref().map_or("http", |_| "https");
        let urls = cluster.members().iter();
        Ok(Self {
            cluster: cluster.clone(),
            urls: urls.map(|at| format!("{scheme}://{at}")).collect(),
            preferred: AtomicUsize::new(0),
            agents: Mutex::new(Agents::new(cluster)?),
            token: Mutex::default(),
            prefix: format!("/phalanx/{folder}/"),
        })
    }

    /// A lease of this length; etcd may make it longer.
    pub(super) fn grant(&self, length: Duration) -> Result<i64, NoAnswer> {
        let seconds = length.as_secs_f64().ceil().max(1.0) as i64;
        let answer = self.call("lease/grant", &json!({ "TTL": seconds }))?;
        let lease = number(&answer["ID"]);
        lease.ok_or_else(|| NoAnswer::now(format!("it grants no lease: {answer}")))
    }

    /// Whether the lease is still there, and now for its full length.
    pub(super) fn keep(&self, lease: i64) -> Result<bool, NoAnswer> {
        let answer = self.call("lease/keepalive", &json!({ "ID": lease.to_string() }))?;
        Ok(number(&answer["result"]["TTL"]).is_some_and(|left| left > 0))
    }

    /// Ends a lease, and the keys that hang on it.
    pub(super) fn revoke(&self, lease: i64) -> Result<(), NoAnswer> {
        let body = json!({ "ID": lease.to_string() });
        self.call("lease/revoke", &body).map(drop)
    }

    /// A put, for [`Etcd::transact`].
    pub(super) fn put(&self, key: &str, value: &[u8], lease: i64) -> Value {
        json!({ "requestPut": {
            "key": self.encoded(key), "value": STANDARD.encode(value), "lease": lease.to_string(),
        }})
    }

    /// The deletion of all keys that begin so, for [`Etcd::transact`].
    pub(super) fn delete(&self, start: &str) -> Value {
        let [key, range_end] = self.range(start);
        json!({ "requestDeleteRange": { "key": key, "range_end": range_end } })
    }

    /// The condition that a key was written last by this revision, or is not there for 0.
    pub(super) fn is_of(&self, key: &str, revision: i64) -> Value {
        json!({
            "key": self.encoded(key), "target": "MOD", "result": "EQUAL",
            "mod_revision": revision.to_string(),
        })
    }

    /// The condition that a key is there.
    pub(super) fn is_there(&self, key: &str) -> Value {
        json!({
            "key": self.encoded(key), "target": "VERSION", "result": "GREATER", "version": "0",
        })
    }

    /// A key, if it is there.
    pub(super) fn get(&self, key: &str) -> Result<Option<Entry>, NoAnswer> {
        let answer = self.call("kv/range", &json!({ "key": self.encoded(key) }))?;
        Ok(self.entry(&answer["kvs"][0], false))
    }

    /// Does all of this if all conditions hold: the revision of it, or none.
    pub(super) fn transact(
        &self,
        conditions: &[Value],
        changes: &[Value],
    ) -> Result<Option<i64>, NoAnswer> {
        let body = json!({ "compare": conditions, "success": changes, "failure": [] });
        let answer = self.call("kv/txn", &body)?;
        let done = answer["succeeded"].as_bool().unwrap_or(false);
        Ok(done.then(|| revision(&answer)))
    }

    /// The keys that begin so and were written from this revision on; without values where only keys are wanted.
    pub(super) fn list(
        &self,
        start: &str,
        from: i64,
        keys_only: bool,
    ) -> Result<KeyList, NoAnswer> {
        let [key, range_end] = self.range(start);
        let answer = self.call(
            "kv/range",
            &json!({
                "key": key, "range_end": range_end, "sort_target": "MOD", "sort_order": "ASCEND",
                "min_mod_revision": from.to_string(), "keys_only": keys_only,
            }),
        )?;
        let all = answer["kvs"].as_array().into_iter().flatten();
        Ok(KeyList {
            entries: all.filter_map(|kv| self.entry(kv, false)).collect(),
            revision: revision(&answer),
        })
    }

    /// Hands over what is written under keys that begin so after a revision, for some seconds or until the connection ends. Ends
    /// early when `take` says so.
    pub(super) fn watch(&self, start: &str, after: i64, mut take: impl FnMut(Entry) -> bool) {
        let [key, range_end] = self.range(start);
        let body = json!({ "create_request": {
            "key": key, "range_end": range_end, "start_revision": (after + 1).to_string(),
        }});
        let url = &self.urls[self.preferred.load(Ordering::Relaxed)];
        let sent = self
            .request(&self.agents().watches, &format!("{url}/v3/watch"))
            .send(body.to_string());
        let Ok(response) = sent else { return };
        // A failure is the end of the time, or of the connection.
        for line in BufReader::new(response.into_body().into_reader()).lines() {
            let Ok(line) = line else { return };
            let Ok(event) = serde_json::from_str::<Value>(&line) else {
                return;
            };
            for event in event["result"]["events"].as_array().into_iter().flatten() {
                let is_deleted = event["type"] == "DELETE";
                if let Some(entry) = self.entry(&event["kv"], is_deleted)
                    && !take(entry)
                {
                    return;
                }
            }
        }
    }

    /// Calls the member that answered last, then the others; with a new token where etcd wants one.
    fn call(&self, path: &str, body: &Value) -> Result<Value, NoAnswer> {
        match self.call_any(path, body) {
            Err(no_answer) if no_answer.until == Until::Token => {
                self.authenticate()?;
                self.call_any(path, body)
            }
            other => other,
        }
    }

    fn call_any(&self, path: &str, body: &Value) -> Result<Value, NoAnswer> {
        let body = body.to_string();
        let (first, count) = (self.preferred.load(Ordering::Relaxed), self.urls.len());
        let mut problems = Vec::new();
        for index in (0..count).map(|step| (first + step) % count) {
            let url = &self.urls[index];
            match self.call_with_files(&format!("{url}/v3/{path}"), &body) {
                Ok(answer) => {
                    self.preferred.store(index, Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(problem) => problems.push((url, problem)),
            }
        }
        // A member that only does not answer now may take what another refuses.
        let until = problems.iter().map(|(_, problem)| problem.until).max();
        let why = problems
            .iter()
            .map(|(url, problem)| format!("{url}: {}", problem.why));
        Err(NoAnswer {
            why: format!("etcd at {}", why.collect::<Vec<_>>().join("; ")),
            until: until.unwrap_or(Until::Later),
        })
    }

    /// Calls a member, once more with files that are read again where it refuses: certificates are renewed, perhaps during a training.
    fn call_with_files(&self, url: &str, body: &str) -> Result<Value, NoAnswer> {
        match self.call_at(url, body) {
            Err(no_answer) if no_answer.lasts() && self.cluster.tls.is_some() => {
                // They may just be written, one after the other.
                let agents = Agents::new(&self.cluster).map_err(|unread| {
                    NoAnswer::now(format!("{}; {}", no_answer.why, unread.why))
                })?;
                *self.agents.lock().unwrap_or_else(PoisonError::into_inner) = agents;
                self.call_at(url, body)
            }
            other => other,
        }
    }

    fn agents(&self) -> Agents {
        let agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        agents.clone()
    }

    fn call_at(&self, url: &str, body: &str) -> Result<Value, NoAnswer> {
        let failed = |error| of_connection(&error, self.cluster.tls.as_ref());
        let request = self.request(&self.agents().calls, url);
        let mut response = request.send(body).map_err(failed)?;
        let text = response.body_mut().with_config().limit(MOST_BYTES);
        let text = text.read_to_string().map_err(failed)?;
        if !response.status().is_success() {
            return Err(of_status(
                response.status(),
                &text,
                self.cluster.user.as_ref(),
            ));
        }
        // Answers of streaming calls are one to a line.
        let first = text.lines().next().unwrap_or_default();
        let answer: Value = serde_json::from_str(first)
            .map_err(|error| NoAnswer::now(format!("it is no etcd: {error}")))?;
        match answer["error"].is_null() {
            true => Ok(answer),
            false => {
                let error = answer["error"].to_string();
                Err(of_status(
                    response.status(),
                    &error,
                    self.cluster.user.as_ref(),
                ))
            }
        }
    }

    fn request(&self, agent: &Agent, url: &str) -> RequestBuilder<WithBody> {
        let token = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        match &*token {
            Some(token) => agent.post(url).header("Authorization", token),
            None => agent.post(url),
        }
    }

    /// Has etcd give a token for the user's password. Tokens end with the process that gave them, and after minutes without a call.
    fn authenticate(&self) -> Result<(), NoAnswer> {
        let Some(user) = &self.cluster.user else {
            return Ok(());
        };
        let body = json!({ "name": user.name, "password": password(user)? });
        // With one that is not valid any more, it would be refused.
        self.set_token(None);
        let answer = self.call_any("auth/authenticate", &body)?;
        self.set_token(answer["token"].as_str().map(str::to_owned));
        Ok(())
    }

    fn set_token(&self, token: Option<String>) {
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = token;
    }

    fn encoded(&self, key: &str) -> String {
        STANDARD.encode(format!("{}{key}", self.prefix))
    }

    /// The first key that begins so, and the first after all of them: all keys are ASCII.
    fn range(&self, start: &str) -> [String; 2] {
        let end = format!("{}{start}\u{7f}", self.prefix);
        [self.encoded(start), STANDARD.encode(end)]
    }

    fn entry(&self, kv: &Value, is_deleted: bool) -> Option<Entry> {
        let decoded = |name: &str| STANDARD.decode(kv[name].as_str().unwrap_or_default());
        let key = String::from_utf8(decoded("key").ok()?).ok()?;
        Some(Entry {
            key: key.strip_prefix(&self.prefix)?.to_owned(),
            value: decoded("value").ok()?,
            revision: number(&kv["mod_revision"])?,
            is_deleted,
        })
    }
}

/// The longest answer: the log of a long training.
const MOST_BYTES: u64 = 1 << 30;

/// The gateway writes 64-bit numbers as text.
fn number(value: &Value) -> Option<i64> {
    match value {
        Value::String(text) => text.parse().ok(),
        other => other.as_i64(),
    }
}

fn revision(answer: &Value) -> i64 {
    number(&answer["header"]["revision"]).unwrap_or(0)
}
