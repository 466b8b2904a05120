//! HTTP for `object_store` by ureq, which is here already and needs no C compiler (decision 40). Its calls block: each call of a bucket has
//! a thread.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use object_store::client::{
    ClientConfigKey, ClientOptions, HttpClient, HttpConnector, HttpError, HttpErrorKind,
    HttpRequest, HttpResponse, HttpService,
};
use ureq::http::{Method, Request, Uri};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, TlsProvider, parse_pem};
use ureq::{Agent, Error, RequestExt, Timeout};

use crate::CERTIFICATE_VARIABLES;

/// Bytes that a server has no more time for: as many as are read at once.
const FREE: usize = 32 << 20;
/// More than any answer has: parts of objects and lists of names.
const MOST_ANSWERED: u64 = 1 << 30;
const CONNECT: Duration = Duration::from_secs(10);

/// Where systems keep the certificates that they trust, after what the variables name.
const CERTIFICATES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Makes clients that give up when nothing comes or goes for this time.
#[derive(Debug)]
pub(super) struct Connector {
    pub(super) silence: Duration,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let allows_http = options.get_config_value(&ClientConfigKey::AllowHttp);
        let agent = agent().map_err(|message| object_store::Error::Generic {
            store: "TLS",
            source: message.into(),
        })?;
        Ok(HttpClient::new(Client {
            agent,
            silence: self.silence,
            allows_http: allows_http.as_deref() == Some("true"),
        }))
    }
}

fn agent() -> Result<Agent, String> {
    let tls = TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .root_certs(RootCerts::new_with_certs(&certificates()?))
        .build();
    let config = Agent::config_builder()
        .tls_config(tls)
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .timeout_resolve(Some(CONNECT))
        .timeout_connect(Some(CONNECT))
        .user_agent(concat!("phalanx/", env!("CARGO_PKG_VERSION")));
    Ok(config.build().into())
}

/// The certificates that the user or the system trusts; none where there are none, which a server's certificate then shows.
fn certificates() -> Result<Vec<Certificate<'static>>, String> {
    let named = CERTIFICATE_VARIABLES
        .iter()
        .find_map(|name| Some((*name, std::env::var_os(name)?)));
    let pem = match named {
        Some((name, path)) => std::fs::read(&path)
            .map_err(|error| format!("{name} names certificates that cannot be read: {error}"))?,
        None => (CERTIFICATES
            .iter()
            .find_map(|path| std::fs::read(path).ok()))
        .unwrap_or_default(),
    };
    let certificate = |item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    };
    Ok(parse_pem(&pem).filter_map(certificate).collect())
}

#[derive(Debug)]
struct Client {
    agent: Agent,
    silence: Duration,
    allows_http: bool,
}

impl HttpService for Client {
    fn call<'own, 'call>(
        &'own self,
        request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'call>>
    where
        'own: 'call,
        Self: 'call,
    {
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            // Not copied: it may be most of a model.
            let body = body.collect().await?.to_bytes();
            self.send(Request::from_parts(parts, &body[..]))
        })
    }
}

impl Client {
    fn send(&self, request: Request<&[u8]>) -> Result<HttpResponse, HttpError> {
        let is_here = is_of_this_machine(request.uri());
        if !is_here && !self.allows_http && request.uri().scheme_str() != Some("https") {
            return Err(HttpError::new(HttpErrorKind::Unknown, Plain));
        }
        let beyond = request.body().len().saturating_sub(FREE) >> 20;
        let for_answer = self.silence + Duration::from_secs(beyond as u64);
        // Only these have a body; of the others ureq wants to know that they have none.
        let has_body = [Method::PUT, Method::POST].contains(request.method());
        let response = match has_body {
            true => self.run(request, for_answer, is_here),
            false => self.run(request.map(|_| ()), for_answer, is_here),
        };
        let (parts, mut body) = response.map_err(failed)?.into_parts();
        let read = body.with_config().limit(MOST_ANSWERED).read_to_vec();
        Ok(HttpResponse::from_parts(
            parts,
            read.map_err(failed)?.into(),
        ))
    }

    fn run<B: ureq::AsSendBody>(
        &self,
        request: Request<B>,
        for_answer: Duration,
        is_here: bool,
    ) -> Result<ureq::http::Response<ureq::Body>, Error> {
        let request = request.with_agent(&self.agent).configure();
        let request = request
            .timeout_per_write(Some(self.silence))
            .timeout_per_read(Some(for_answer));
        match is_here {
            true => request.proxy(None).run(),
            false => request.run(),
        }
    }
}

/// The error of a server without TLS.
#[derive(Debug)]
struct Plain;

impl std::fmt::Display for Plain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "the server's address begins with http://, by which everybody on the way reads and changes what is sent; give one with https://, or set AWS_ALLOW_HTTP=true (S3) or GOOGLE_ALLOW_HTTP=true"
        )
    }
}

impl std::error::Error for Plain {}

fn is_of_this_machine(uri: &Uri) -> bool {
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let address = host.parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// Which errors are tried again is decided by their kind.
fn failed(error: Error) -> HttpError {
    use std::io::ErrorKind as Io;
    let kind = match &error {
        Error::Timeout(Timeout::Connect | Timeout::Resolve)
        | Error::HostNotFound
        | Error::ConnectionFailed => HttpErrorKind::Connect,
        Error::Timeout(_) => HttpErrorKind::Timeout,
        Error::Io(error) if error.kind() == Io::ConnectionRefused => HttpErrorKind::Connect,
        Error::Io(error) if error.kind() == Io::InvalidData => HttpErrorKind::Unknown,
        Error::Io(_) | Error::Protocol(_) => HttpErrorKind::Interrupted,
        _ => HttpErrorKind::Unknown,
    };
    HttpError::new(kind, error)
}
