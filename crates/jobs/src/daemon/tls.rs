//! Connections by TLS: a certificate and its key from files, and handshakes beside each other, so that a slow one keeps nobody waiting.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::Listener;
use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::connections::{Connection, Connections};
use crate::failure::Failure;

/// How long a client may take to shake hands.
const HANDSHAKE: Duration = Duration::from_secs(30);
/// Connections that have shaken hands and wait to be served.
const WAITING: usize = 64;

/// Reads a certificate, with those between it and its authority, and its key.
///
/// # Errors
/// A file cannot be read or has no such thing, or the key is another certificate's.
pub(super) fn config(certificate: &Path, key: &Path) -> Result<Arc<ServerConfig>, Failure> {
    let unreadable = |option: &str, path: &Path, why: &dyn std::fmt::Display| {
        Failure::not_ready(format!(
            "{option} names {}, which cannot be used: {why}; expected a file in PEM format",
            path.display()
        ))
    };
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_file_iter(certificate)
        .map_err(|error| unreadable("--tls-certificate", certificate, &error))?
        .collect();
    let certificates =
        certificates.map_err(|error| unreadable("--tls-certificate", certificate, &error))?;
    if certificates.is_empty() {
        return Err(unreadable(
            "--tls-certificate",
            certificate,
            &"it has no certificate",
        ));
    }
    let secret =
        PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable("--tls-key", key, &error))?;
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| {
            builder
                .with_no_client_auth()
                .with_single_cert(certificates, secret)
        });
    let config = config.map_err(|error| {
        Failure::not_ready(format!(
            "the certificate {} and the key {} cannot be used together: {error}; give the key that the certificate was made for",
            certificate.display(),
            key.display()
        ))
    })?;
    Ok(Arc::new(config))
}

/// Accepts connections, each once its client has shaken hands.
pub(super) struct TlsListener {
    address: SocketAddr,
    accepted: mpsc::Receiver<(TlsStream<Connection>, SocketAddr)>,
}

impl TlsListener {
    /// Accepts from here on, on a task of the runtime, until this is dropped.
    pub(super) fn new(listener: Connections, config: Arc<ServerConfig>) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let (send, accepted) = mpsc::channel(WAITING);
        tokio::spawn(accept_all(listener, TlsAcceptor::from(config), send));
        Ok(Self { address, accepted })
    }
}

async fn accept_all(
    mut listener: Connections,
    acceptor: TlsAcceptor,
    send: mpsc::Sender<(TlsStream<Connection>, SocketAddr)>,
) {
    loop {
        let (stream, from) = tokio::select! {
            accepted = listener.accept() => accepted,
            () = send.closed() => return,
        };
        let (acceptor, send) = (acceptor.clone(), send.clone());
        tokio::spawn(async move {
            // Who does not speak TLS, or does not trust the certificate, goes away.
            if let Ok(Ok(stream)) = timeout(HANDSHAKE, acceptor.accept(stream)).await {
                let _ = send.send((stream, from)).await;
            }
        });
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<Connection>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.accepted.recv().await {
            Some(accepted) => accepted,
            // The task ends after this listener only.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}
