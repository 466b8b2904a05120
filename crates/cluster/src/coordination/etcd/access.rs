//! What an etcd is shown, certificates and a user's password, and what its refusals mean.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use rustls::sign::CertifiedKey;
use rustls::{AlertDescription, CertificateError};
use serde_json::Value;
use ureq::Agent;
use ureq::http::StatusCode;
use ureq::tls::{
    Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, TlsProvider, parse_pem,
};

use crate::{ClusterError, EtcdTls, EtcdUser};

/// Why a call to etcd has no answer.
#[derive(Debug)]
pub(in super::super) struct NoAnswer {
    pub(super) why: String,
    pub(super) until: Until,
}

/// What must come before another try can succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Until {
    /// Somebody changes a setting of this process or of etcd.
    Changed,
    /// Nothing but time.
    Later,
    /// A token for the user of this process.
    Token,
}

impl NoAnswer {
    pub(super) fn now(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            until: Until::Later,
        }
    }

    pub(super) fn lasting(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            until: Until::Changed,
        }
    }

    /// Whether trying again is in vain.
    pub(super) fn lasts(&self) -> bool {
        self.until == Until::Changed
    }

    /// Why this worker has to wait, or the error that it cannot meet the others.
    pub(in super::super) fn later(self, worker: usize) -> Result<String, ClusterError> {
        match self.lasts() {
            false => Ok(self.why),
            true => Err(ClusterError::User(format!(
                "worker {worker} cannot meet the others: {}",
                self.why
            ))),
        }
    }
}

/// An agent whose calls take no longer than this.
pub(super) fn agent(within: Duration, tls: Option<&TlsConfig>) -> Agent {
    let config = Agent::config_builder()
        .proxy(None)
        .http_status_as_error(false)
        // A password is for who was named alone.
        .max_redirects(0)
        .timeout_global(Some(within));
    match tls {
        Some(tls) => config.tls_config(tls.clone()).build().new_agent(),
        None => config.build().new_agent(),
    }
}

/// What connections are made with. The error is why files cannot be used.
pub(super) fn tls_config(tls: &EtcdTls) -> Result<TlsConfig, NoAnswer> {
    let authorities = certificates(&tls.authorities, "PHALANX_ETCD_CA")?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .unversioned_rustls_crypto_provider(Arc::clone(&provider))
        .root_certs(RootCerts::new_with_certs(&authorities));
    if let Some((certificate, key)) = &tls.client {
        const NAME: &str = "PHALANX_ETCD_KEY";
        let chain = certificates(certificate, "PHALANX_ETCD_CERTIFICATE")?;
        let pem = read(key, NAME)?;
        let own = PrivateKeyDer::from_pem_slice(&pem).map_err(|why| unusable(key, NAME, &why))?;
        let ders = chain.iter().map(|one| one.der().to_vec().into());
        CertifiedKey::from_der(ders.collect(), own, &provider)
            .map_err(|error| NoAnswer::lasting(of_tls(&error, tls)))?;
        let key = PrivateKey::from_pem(&pem).map_err(|why| unusable(key, NAME, &why))?;
        config = config.client_cert(Some(ClientCert::new_with_certs(&chain, key)));
    }
    Ok(config.build())
}

fn certificates(path: &Path, variable: &str) -> Result<Vec<Certificate<'static>>, NoAnswer> {
    let pem = read(path, variable)?;
    let mut found = Vec::new();
    for item in parse_pem(&pem) {
        if let PemItem::Certificate(certificate) =
            item.map_err(|why| unusable(path, variable, &why))?
        {
            found.push(certificate);
        }
    }
    match found.is_empty() {
        true => Err(unusable(path, variable, &"it has no certificate")),
        false => Ok(found),
    }
}

/// A user's password, without the end of its line.
pub(super) fn password(user: &EtcdUser) -> Result<String, NoAnswer> {
    const NAME: &str = "PHALANX_ETCD_PASSWORD_FILE";
    let path = &user.password_file;
    let text = String::from_utf8(read(path, NAME)?)
        .map_err(|_| unusable(path, NAME, &"it is not UTF-8"))?;
    match text.lines().next() {
        Some(password) if !password.is_empty() => Ok(password.to_owned()),
        _ => Err(unusable(path, NAME, &"its first line is empty")),
    }
}

fn read(path: &Path, variable: &str) -> Result<Vec<u8>, NoAnswer> {
    std::fs::read(path).map_err(|why| unusable(path, variable, &why))
}

fn unusable(path: &Path, variable: &str, why: &dyn std::fmt::Display) -> NoAnswer {
    NoAnswer::lasting(format!(
        "the file {}, which {variable} names, cannot be used: {why}",
        path.display()
    ))
}

/// What a call that failed before an answer came to.
pub(super) fn of_connection(error: &ureq::Error, tls: Option<&EtcdTls>) -> NoAnswer {
    match (rustls_error(error), tls) {
        (Some(inner), Some(tls)) if is_about_certificates(inner) => {
            NoAnswer::lasting(of_tls(inner, tls))
        }
        _ => NoAnswer::now(format!("{error}{}", hint(error, tls.is_some()))),
    }
}

fn rustls_error(error: &ureq::Error) -> Option<&rustls::Error> {
    match error {
        ureq::Error::Rustls(inner) => Some(inner),
        ureq::Error::Io(error) => error.get_ref().and_then(|inner| inner.downcast_ref()),
        _ => None,
    }
}

/// Whether a file must be changed, here or there; the rest may be a connection that was cut.
fn is_about_certificates(error: &rustls::Error) -> bool {
    use AlertDescription as Alert;
    match error {
        rustls::Error::InvalidCertificate(_) | rustls::Error::InconsistentKeys(_) => true,
        rustls::Error::AlertReceived(alert) => matches!(
            alert,
            Alert::NoCertificate
                | Alert::BadCertificate
                | Alert::UnsupportedCertificate
                | Alert::CertificateRevoked
                | Alert::CertificateExpired
                | Alert::CertificateUnknown
                | Alert::CertificateRequired
                | Alert::UnknownCA
                | Alert::AccessDenied
        ),
        _ => false,
    }
}

/// A server closes at once what speaks TLS where it does not, or answers by no TLS, and the other way round; one that is just dying closes,
/// too.
fn hint(error: &ureq::Error, by_tls: bool) -> &'static str {
    let is_closed = matches!(error, ureq::Error::Io(error) if is_end(error));
    let is_no_tls = matches!(rustls_error(error), Some(rustls::Error::InvalidMessage(_)));
    match is_closed || is_no_tls {
        true if by_tls => "; where it takes no TLS, write etcd:// in place of etcds://",
        true => "; where it takes TLS, write etcds:// in place of etcd://",
        false => "",
    }
}

fn is_end(error: &io::Error) -> bool {
    let ends = [
        ErrorKind::UnexpectedEof,
        ErrorKind::ConnectionReset,
        ErrorKind::ConnectionAborted,
        ErrorKind::BrokenPipe,
    ];
    ends.contains(&error.kind())
}

/// Why there is no connection by TLS, and what to do.
fn of_tls(error: &rustls::Error, tls: &EtcdTls) -> String {
    let next = match error {
        rustls::Error::InvalidCertificate(why) => of_certificate(why, tls),
        rustls::Error::InconsistentKeys(_) => {
            "PHALANX_ETCD_KEY must name the key of the certificate of PHALANX_ETCD_CERTIFICATE"
                .into()
        }
        rustls::Error::AlertReceived(alert) => return of_alert(*alert, tls),
        _ => "see its log".into(),
    };
    format!("no connection by TLS ({error}): {next}")
}

fn of_certificate(why: &CertificateError, tls: &EtcdTls) -> String {
    match why {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => format!(
            "no authority in {} has signed its certificate; PHALANX_ETCD_CA must name the file of who has",
            tls.authorities.display()
        ),
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "its certificate has expired; renew it, or set this machine's clock".into()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "its certificate is not valid yet; set this machine's clock".into()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "its certificate is for other names than the one in PHALANX_RENDEZVOUS; use one of those".into()
        }
        _ => "have its certificate made anew".into(),
    }
}

/// What etcd says to the certificate of this process.
fn of_alert(alert: AlertDescription, tls: &EtcdTls) -> String {
    match &tls.client {
        None => format!(
            "it ends the connection ({alert:?}): it wants a certificate of its clients, which PHALANX_ETCD_CERTIFICATE and PHALANX_ETCD_KEY are to name"
        ),
        Some((certificate, _)) => format!(
            "it refuses the certificate of this process in {} ({alert:?}): it must be signed by an authority that etcd trusts (--trusted-ca-file), not be expired, and be for clients",
            certificate.display()
        ),
    }
}

/// What an answer that is an error means: its code is gRPC's.
pub(super) fn of_status(status: StatusCode, text: &str, user: Option<&EtcdUser>) -> NoAnswer {
    let answer: Value = serde_json::from_str(text).unwrap_or_default();
    let said = [&answer["message"], &answer["error"]];
    let said = said
        .iter()
        .find_map(|said| said.as_str())
        .unwrap_or(text.trim());
    let is_about_token = [
        "user name is empty",
        "invalid auth token",
        "auth store is old",
    ];
    if is_about_token.iter().any(|part| said.contains(part)) {
        return match user {
            Some(_) => NoAnswer {
                until: Until::Token,
                ..NoAnswer::now(format!("{status} {said}"))
            },
            None => NoAnswer::lasting(format!(
                "it wants a user ({said}): PHALANX_ETCD_USER names the user, PHALANX_ETCD_PASSWORD_FILE the file of the password"
            )),
        };
    }
    if said.starts_with("CommonName of client") {
        return NoAnswer::lasting(
            "its JSON gateway takes no client's certificate that has a common name (CN), which would be no user there; have one made without, such as by `-subj /O=trainers`, for PHALANX_ETCD_CERTIFICATE",
        );
    }
    match answer["code"].as_u64() {
        Some(INVALID) if said.contains("authentication failed") => NoAnswer::lasting(format!(
            "it does not know the user {} with this password; correct PHALANX_ETCD_USER or the file that PHALANX_ETCD_PASSWORD_FILE names",
            named(user)
        )),
        Some(DENIED) => NoAnswer::lasting(format!(
            "it refuses the user {} ({said}); grant that user a role with `etcdctl role grant-permission ROLE --prefix=true readwrite /phalanx/`",
            named(user)
        )),
        Some(INVALID | UNIMPLEMENTED | UNAUTHENTICATED) => {
            NoAnswer::lasting(format!("{status} {said}"))
        }
        // Among them a lease that has ended, which this process renews.
        Some(_) => NoAnswer::now(format!("{status} {said}")),
        None if status.is_client_error() && !matches!(status.as_u16(), 408 | 429) => {
            NoAnswer::lasting(format!(
                "it answers {status} ({}), as no etcd of 3.4 or newer does by this address; see the port, and whether it takes TLS (etcds://)",
                said.lines().next().unwrap_or_default()
            ))
        }
        None => NoAnswer::now(format!("{status} {said}")),
    }
}

fn named(user: Option<&EtcdUser>) -> String {
    user.map_or_else(|| "nobody".into(), |user| format!("{:?}", user.name))
}

const INVALID: u64 = 3;
const DENIED: u64 = 7;
const UNIMPLEMENTED: u64 = 12;
const UNAUTHENTICATED: u64 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_was_cut_is_tried_again_and_a_certificate_is_not() {
        let tls = EtcdTls {
            authorities: "ca.pem".into(),
            client: None,
        };
        let until = |error: rustls::Error| {
            let wrapped = io::Error::new(ErrorKind::InvalidData, error.clone());
            let of = |error| of_connection(&error, Some(&tls)).until;
            let direct = of(ureq::Error::Rustls(error));
            assert_eq!(of(ureq::Error::Io(wrapped)), direct);
            direct
        };
        for error in [
            rustls::Error::AlertReceived(AlertDescription::InternalError),
            rustls::Error::AlertReceived(AlertDescription::CloseNotify),
            rustls::Error::DecryptError,
            rustls::Error::HandshakeNotComplete,
            rustls::Error::FailedToGetCurrentTime,
        ] {
            assert_eq!(until(error.clone()), Until::Later, "{error}");
        }
        for error in [
            rustls::Error::AlertReceived(AlertDescription::CertificateRequired),
            rustls::Error::AlertReceived(AlertDescription::UnknownCA),
            rustls::Error::InvalidCertificate(CertificateError::Expired),
            rustls::Error::InconsistentKeys(rustls::InconsistentKeys::KeyMismatch),
        ] {
            assert_eq!(until(error.clone()), Until::Changed, "{error}");
        }
    }

    #[test]
    fn whoever_closes_at_once_may_take_tls_or_none() {
        for kind in [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe] {
            let error = ureq::Error::Io(kind.into());
            assert!(hint(&error, true).ends_with("write etcd:// in place of etcds://"));
            assert!(hint(&error, false).ends_with("write etcds:// in place of etcd://"));
        }
        let refused = ureq::Error::Io(ErrorKind::ConnectionRefused.into());
        assert_eq!(hint(&refused, true), "");
    }

    #[test]
    fn what_time_cures_is_told_from_what_must_be_changed() {
        let user = EtcdUser {
            name: "me".into(),
            password_file: "none".into(),
        };
        let until = |status, text: &str, user| {
            of_status(StatusCode::from_u16(status).unwrap(), text, user).until
        };
        for (status, text, expected) in [
            (
                404,
                r#"{"error":"etcdserver: requested lease not found","code":5}"#,
                Until::Later,
            ),
            (
                429,
                r#"{"error":"etcdserver: too many requests","code":8}"#,
                Until::Later,
            ),
            (429, "slow down", Until::Later),
            (408, "", Until::Later),
            (
                503,
                r#"{"error":"etcdserver: no leader","code":14}"#,
                Until::Later,
            ),
            (502, "<html>", Until::Later),
            (
                400,
                r#"{"error":"etcdserver: too many operations in txn request","code":3}"#,
                Until::Changed,
            ),
            (
                403,
                r#"{"error":"etcdserver: permission denied","code":7}"#,
                Until::Changed,
            ),
            (404, "404 page not found", Until::Changed),
            (
                400,
                "Client sent an HTTP request to an HTTPS server.",
                Until::Changed,
            ),
            (
                501,
                r#"{"error":"Method Not Allowed","code":12}"#,
                Until::Changed,
            ),
        ] {
            assert_eq!(until(status, text, None), expected, "{status} {text}");
        }
        for text in [
            r#"{"error":"etcdserver: user name is empty","code":3}"#,
            r#"{"error":"etcdserver: invalid auth token","code":16}"#,
            r#"{"error":"etcdserver: revision of auth store is old","code":3}"#,
        ] {
            assert_eq!(until(400, text, Some(&user)), Until::Token, "{text}");
            assert_eq!(until(400, text, None), Until::Changed, "{text}");
        }
    }
}
