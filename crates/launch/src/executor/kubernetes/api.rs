//! Requests to an API server of Kubernetes.

use std::io::{BufReader, Read};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value as Json;
use ureq::{Agent, Body, http};

use super::access::Access;
use super::objects::CONTAINER;

/// How long the server may take to answer.
const ANSWER: Duration = Duration::from_secs(30);
/// How long it may send nothing of an answer that has begun: a log that grows is asked for again.
const SILENCE: Duration = Duration::from_secs(60);
/// How many objects are asked for at once.
const PAGE: usize = 500;
/// The most bytes of an answer that is read as a whole.
const MOST_BYTES: u64 = 64 << 20;

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    /// The status; 0 where there was no answer.
    pub(super) status: u16,
    /// For a person.
    pub(super) message: String,
}

impl Refusal {
    /// Whether asking again may help.
    pub(super) const fn passes(&self) -> bool {
        matches!(self.status, 0 | 408 | 429 | 500..)
    }

    fn of(message: impl Into<String>) -> Self {
        Self {
            status: 0,
            message: message.into(),
        }
    }
}

/// An API server.
pub(super) struct Api {
    agent: Agent,
    access: Mutex<Access>,
    /// Reads the access again: tokens of clouds are valid for an hour.
    again: Box<dyn Fn() -> Result<Access, String> + Send + Sync>,
    namespace: String,
}

impl Api {
    /// The server that `find` finds, for one namespace: the given one, else the one that the access names.
    pub(super) fn new(
        namespace: Option<&str>,
        find: impl Fn() -> Result<Access, String> + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let access = find()?;
        let namespace = namespace
            .map(str::to_owned)
            .or_else(|| access.namespace.clone());
        Ok(Self {
            agent: agent(&access)?,
            access: Mutex::new(access),
            again: Box::new(find),
            namespace: namespace.unwrap_or_else(|| "default".to_owned()),
        })
    }

    pub(super) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Makes an object. One of its name that is there already is left as it is.
    pub(super) fn create(&self, object: &Json) -> Result<(), Refusal> {
        let kind = object["kind"].as_str().unwrap_or_default();
        let path = match kind {
            "Job" => "jobs",
            "Service" => "services",
            _ => "secrets",
        };
        match self.call("POST", path, "", Some(object)) {
            Err(refusal) if refusal.status != 409 => Err(refusal),
            _ => Ok(()),
        }
    }

    /// The objects of a kind with these labels.
    pub(super) fn list(&self, kind: &str, labels: &str) -> Result<Vec<Json>, Refusal> {
        let first = format!("labelSelector={}&limit={PAGE}", encoded(labels));
        let (mut query, mut all) = (first.clone(), Vec::new());
        loop {
            let mut answer = self.call("GET", kind, &query, None)?;
            let Json::Array(items) = answer["items"].take() else {
                return Err(Refusal::of("it answers without a list of objects"));
            };
            all.extend(items);
            match answer["metadata"]["continue"].as_str() {
                Some(next) if !next.is_empty() => {
                    query = format!("{first}&continue={}", encoded(next));
                }
                _ => return Ok(all),
            }
        }
    }

    /// The pod of a name, if there is one.
    pub(super) fn pod(&self, name: &str) -> Result<Option<Json>, Refusal> {
        match self.call("GET", &format!("pods/{name}"), "", None) {
            Err(refusal) if refusal.status == 404 => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// Removes the objects of a kind with these labels; pods have `grace` to end.
    pub(super) fn delete(
        &self,
        kind: &str,
        labels: &str,
        grace: Option<u64>,
    ) -> Result<(), Refusal> {
        let mut query = format!(
            "labelSelector={}&propagationPolicy=Background",
            encoded(labels)
        );
        if let Some(grace) = grace {
            query.push_str(&format!("&gracePeriodSeconds={grace}"));
        }
        self.call("DELETE", kind, &query, None).map(drop)
    }

    /// Removes one object.
    pub(super) fn delete_one(&self, kind: &str, name: &str) -> Result<(), Refusal> {
        let path = format!("{kind}/{name}");
        match self.call("DELETE", &path, "propagationPolicy=Background", None) {
            Err(refusal) if refusal.status != 404 => Err(refusal),
            _ => Ok(()),
        }
    }

    /// What the task of a pod writes, from its first line, as it grows; each line begins with its time.
    pub(super) fn log(&self, pod: &str) -> Result<BufReader<impl Read>, Refusal> {
        // Clusters may add containers of their own.
        let query = format!("container={CONTAINER}&follow=true&timestamps=true");
        let body = self.send("GET", &format!("pods/{pod}/log"), &query, None)?;
        Ok(BufReader::new(body.into_reader()))
    }

    fn call(
        &self,
        method: &str,
        path: &str,
        query: &str,
        body: Option<&Json>,
    ) -> Result<Json, Refusal> {
        let answer = self.send(method, path, query, body)?;
        let mut text = Vec::new();
        let read = answer.into_reader().take(MOST_BYTES).read_to_end(&mut text);
        read.map_err(|error| Refusal::of(format!("its answer breaks off: {error}")))?;
        serde_json::from_slice(&text)
            .map_err(|error| Refusal::of(format!("its answer is no JSON: {error}")))
    }

    /// Sends a request, and once more with new credentials if those it has are not accepted any more.
    fn send(
        &self,
        method: &str,
        path: &str,
        query: &str,
        body: Option<&Json>,
    ) -> Result<Body, Refusal> {
        let first = self.send_once(method, path, query, body);
        match first {
            Err(refusal) if refusal.status == 401 => {
                let access = (self.again)().map_err(Refusal::of)?;
                *self.access.lock().unwrap_or_else(PoisonError::into_inner) = access;
                self.send_once(method, path, query, body)
            }
            answer => answer,
        }
    }

    fn send_once(
        &self,
        method: &str,
        path: &str,
        query: &str,
        body: Option<&Json>,
    ) -> Result<Body, Refusal> {
        let access = self
            .access
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let group = if path.starts_with("jobs") {
            "apis/batch/v1"
        } else {
            "api/v1"
        };
        let namespace = &self.namespace;
        let mut url = format!("{}/{group}/namespaces/{namespace}/{path}", access.server);
        if !query.is_empty() {
            url = format!("{url}?{query}");
        }
        let mut request = http::Request::builder().method(method).uri(url);
        if let Some(token) = &access.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        let wrong = |error| Refusal::of(format!("the address of the cluster is none: {error}"));
        let answer = match body {
            Some(body) => {
                let request = request.header("Content-Type", "application/json");
                self.agent
                    .run(request.body(body.to_string()).map_err(wrong)?)
            }
            None => self.agent.run(request.body(()).map_err(wrong)?),
        };
        let answer = answer.map_err(|error| {
            Refusal::of(format!(
                "the cluster at {} does not answer: {error}",
                access.server
            ))
        })?;
        let status = answer.status().as_u16();
        let body = answer.into_body();
        if (200..300).contains(&status) {
            return Ok(body);
        }
        Err(refusal(method, path, status, body))
    }
}

/// What a server says against a request: the message of its Status.
fn refusal(method: &str, path: &str, status: u16, body: Body) -> Refusal {
    let mut text = String::new();
    let _ = body.into_reader().take(64 << 10).read_to_string(&mut text);
    let said: Json = serde_json::from_str(&text).unwrap_or_default();
    let said = said["message"].as_str().map_or(text, str::to_owned);
    let message = format!(
        "Kubernetes refuses {method} {path} with {status}: {}",
        said.trim()
    );
    Refusal { status, message }
}

/// A value of a query.
fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let word = |byte: u8| match plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(word).collect()
}

fn agent(access: &Access) -> Result<Agent, String> {
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .timeout_connect(Some(Duration::from_secs(10)))
        .timeout_recv_response(Some(ANSWER))
        .timeout_per_read(Some(SILENCE))
        .proxy(None);
    if !access.server.starts_with("https://") {
        return Ok(config.build().into());
    }
    secure::agent(config, access)
}

#[cfg(feature = "tls")]
mod secure {
    use std::sync::Arc;

    use ureq::Agent;
    use ureq::config::ConfigBuilder;
    use ureq::tls::{
        Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, TlsProvider, parse_pem,
    };
    use ureq::typestate::AgentScope;

    use super::Access;

    /// Where systems keep the certificates that they trust.
    const SYSTEM: [&str; 2] = [
        "/etc/ssl/certs/ca-certificates.crt",
        "/etc/pki/tls/certs/ca-bundle.crt",
    ];

    pub(super) fn agent(
        config: ConfigBuilder<AgentScope>,
        access: &Access,
    ) -> Result<Agent, String> {
        let authority = match &access.authority {
            Some(authority) => authority.clone(),
            None => SYSTEM
                .iter()
                .find_map(|path| std::fs::read(path).ok())
                .unwrap_or_default(),
        };
        let mut tls = TlsConfig::builder()
            .provider(TlsProvider::Rustls)
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .root_certs(RootCerts::new_with_certs(&certificates(&authority)?))
            .disable_verification(access.insecure);
        if let Some((certificate, key)) = &access.client {
            let key = PrivateKey::from_pem(key)
                .map_err(|error| format!("the client's key cannot be read: {error}"))?;
            tls = tls.client_cert(Some(ClientCert::new_with_certs(
                &certificates(certificate)?,
                key,
            )));
        }
        Ok(config.tls_config(tls.build()).build().into())
    }

    fn certificates(pem: &[u8]) -> Result<Vec<Certificate<'static>>, String> {
        let certificate = |item: Result<PemItem<'static>, ureq::Error>| match item {
            Ok(PemItem::Certificate(certificate)) => Some(Ok(certificate)),
            Ok(_) => None,
            Err(error) => Some(Err(format!(
                "a certificate of the cluster cannot be read: {error}"
            ))),
        };
        parse_pem(pem).filter_map(certificate).collect()
    }
}

#[cfg(not(feature = "tls"))]
mod secure {
    use ureq::Agent;
    use ureq::config::ConfigBuilder;
    use ureq::typestate::AgentScope;

    use super::Access;

    pub(super) fn agent(_: ConfigBuilder<AgentScope>, access: &Access) -> Result<Agent, String> {
        Err(format!(
            "this program was built without the feature `tls`, and {} needs it; build it with the feature, or run `kubectl proxy` and name its address in phalanx.kubernetes.server",
            access.server
        ))
    }
}
