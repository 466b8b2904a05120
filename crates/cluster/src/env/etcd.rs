//! Where workers meet by PHALANX_RENDEZVOUS, and what an etcd there is shown.

use std::path::PathBuf;

use super::variables::Reader;
use super::{EnvError, Said};
use crate::{AddressError, EtcdCluster, EtcdTls, EtcdUser, Rendezvous};

const RENDEZVOUS: &str = "PHALANX_RENDEZVOUS";
const CA: &str = "PHALANX_ETCD_CA";
const CERTIFICATE: &str = "PHALANX_ETCD_CERTIFICATE";
const KEY: &str = "PHALANX_ETCD_KEY";
const USER: &str = "PHALANX_ETCD_USER";
const PASSWORD_FILE: &str = "PHALANX_ETCD_PASSWORD_FILE";

impl<'a> Reader<'a> {
    /// Where workers meet, if a variable says so.
    pub(super) fn rendezvous(&mut self) -> Result<Option<Rendezvous>, EnvError> {
        let Some(value) = self.text(RENDEZVOUS, "where workers meet") else {
            return Ok(None);
        };
        let refused = |why| refused(value, why);
        let (members, by_tls) = match value.split_once("://") {
            Some(("etcd", members)) => (members, false),
            Some(("etcds", members)) => (members, true),
            _ => {
                let address = value.parse().map_err(refused)?;
                return Ok(Some(Rendezvous::at(address)));
            }
        };
        let mut cluster = EtcdCluster::at(members).map_err(refused)?;
        cluster.tls = self.etcd_tls(value, by_tls)?;
        cluster.user = self.etcd_user()?;
        Ok(Some(Rendezvous::at_etcd(cluster)))
    }

    fn etcd_tls(&mut self, rendezvous: &str, by_tls: bool) -> Result<Option<EtcdTls>, EnvError> {
        if !by_tls {
            return match [CA, CERTIFICATE, KEY].iter().find(|name| self.has(name)) {
                None => Ok(None),
                Some(name) => Err(EnvError::Contradiction {
                    first: Box::new(Said::new(name, self.silent(name).unwrap_or_default())),
                    second: Box::new(Said::new(RENDEZVOUS, rendezvous)),
                    why: "files of TLS, and an address without TLS".into(),
                    next: "write etcds:// for TLS, or unset the variables of its files".into(),
                }),
            };
        }
        let authorities = self.text(CA, "whose signature etcd's certificate must have");
        let authorities = authorities.ok_or_else(|| EnvError::Missing {
            missing: CA.into(),
            because: format!("{RENDEZVOUS} asks for TLS"),
            next: "set it to the file, in PEM format, of who has signed etcd's certificates".into(),
        })?;
        let client = self.both(
            (CERTIFICATE, "this process' certificate, for etcd"),
            (KEY, "the private key of that certificate"),
        )?;
        Ok(Some(EtcdTls {
            authorities: authorities.into(),
            client: client.map(|[certificate, key]| (certificate.into(), PathBuf::from(key))),
        }))
    }

    fn etcd_user(&mut self) -> Result<Option<EtcdUser>, EnvError> {
        let both = self.both(
            (USER, "the user of etcd"),
            (PASSWORD_FILE, "the file with that user's password"),
        )?;
        Ok(both.map(|[name, file]| EtcdUser {
            name: name.to_owned(),
            password_file: file.into(),
        }))
    }

    /// Two variables of which neither is set without the other, each with its meaning.
    fn both(
        &mut self,
        first: (&'static str, &'static str),
        second: (&'static str, &'static str),
    ) -> Result<Option<[&'a str; 2]>, EnvError> {
        let values = [first, second].map(|(name, meaning)| self.text(name, meaning));
        let (missing, is_set) = match values {
            [Some(first), Some(second)] => return Ok(Some([first, second])),
            [None, None] => return Ok(None),
            [Some(_), None] => (second.0, first.0),
            [None, Some(_)] => (first.0, second.0),
        };
        Err(EnvError::Missing {
            missing: missing.into(),
            because: format!("{is_set} is set"),
            next: "set both, or none of them".into(),
        })
    }
}

/// The error that the value of PHALANX_RENDEZVOUS is.
fn refused(value: &str, why: AddressError) -> EnvError {
    let got = match value.contains('@') {
        // A password does not belong into a log.
        true => format!("a value with `@` ({why})"),
        false => format!("{value:?} ({why})"),
    };
    EnvError::Value {
        variable: RENDEZVOUS,
        place: String::new(),
        got,
        expected: "an address such as node1:2222, etcd://host:2379, or etcds://host:2379 for TLS"
            .into(),
        next: "correct it".into(),
    }
}
