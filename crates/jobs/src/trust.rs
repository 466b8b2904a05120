//! Whom the commands trust when the daemon serves by TLS: the authorities of a file that the user gives, or the daemon's own certificate.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::CertificateError;
use rustls::crypto::ring::default_provider;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, TlsProvider, parse_pem};

use crate::failure::Failure;

/// The variable that names the file of --ca.
pub(crate) const VARIABLE: &str = "PHALANX_JOBS_CA";

/// Trusts the certificates of a file, and nobody else.
///
/// # Errors
/// The file cannot be read or has no certificate.
pub(crate) fn only(path: &Path) -> Result<TlsConfig, Failure> {
    let unreadable = |why: &dyn std::fmt::Display| {
        Failure::not_ready(format!(
            "the certificates in {} cannot be used: {why}; give --ca the file, in PEM format, of who has signed the daemon's certificate",
            path.display()
        ))
    };
    let pem = std::fs::read(path).map_err(|error| unreadable(&error))?;
    let mut trusted: Vec<Certificate<'static>> = Vec::new();
    for item in parse_pem(&pem) {
        if let PemItem::Certificate(certificate) = item.map_err(|error| unreadable(&error))? {
            trusted.push(certificate);
        }
    }
    if trusted.is_empty() {
        return Err(unreadable(&"it has no certificate"));
    }
    Ok(TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .unversioned_rustls_crypto_provider(Arc::new(default_provider()))
        .root_certs(RootCerts::new_with_certs(&trusted))
        .build())
}

/// Why a daemon that answers is not trusted, and what to do; `None` for errors of another kind.
pub(crate) fn refusal(error: &ureq::Error) -> Option<String> {
    let inner = match error {
        ureq::Error::Rustls(inner) => inner,
        ureq::Error::Io(error) => of_io(error)?,
        _ => return None,
    };
    // All else, such as an answer without TLS, is none of a daemon's.
    let rustls::Error::InvalidCertificate(why) = inner else {
        return None;
    };
    let next = match why {
        CertificateError::UnknownIssuer => "give --ca the file of who has signed it",
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "have it name this address, or start the daemon with --host and a name that it has"
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "start the daemon with a new one"
        }
        CertificateError::Other(_) => {
            "one that has signed itself must not be an authority: make it with `openssl req -x509 -addext basicConstraints=critical,CA:FALSE ..`"
        }
        _ => "correct the daemon's --tls-certificate, or give --ca the file of who has signed it",
    };
    Some(format!(
        "the daemon's certificate is not trusted: {inner}; {next}"
    ))
}

fn of_io(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}
