//! An etcd in which workers meet, and what it is shown.

use std::path::PathBuf;

use crate::{Address, AddressError};

/// An etcd cluster: where it is, and by what it knows this process.
///
/// Holds the names of files alone; they are read when they are used, a password anew for each token, so that it may change meanwhile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdCluster {
    /// At least one.
    members: Vec<Address>,
    /// Files for connections by TLS; none for plain HTTP.
    pub tls: Option<EtcdTls>,
    /// The user, where etcd's authentication is enabled.
    pub user: Option<EtcdUser>,
}

/// The files of connections by TLS, all in PEM format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdTls {
    /// The certificates of those who may have signed the members' certificates; nobody else is trusted.
    pub authorities: PathBuf,
    /// This process' certificate with those up to an authority that etcd trusts, and its private key.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// A user of etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdUser {
    /// The name.
    pub name: String,
    /// The file whose first line is the password.
    pub password_file: PathBuf,
}

impl EtcdCluster {
    /// Members by their addresses, `host:2379,other:2379`, reached by plain HTTP without a user.
    ///
    /// # Errors
    /// What is wrong with an address.
    pub fn at(members: &str) -> Result<Self, AddressError> {
        if members.contains('@') {
            return Err(AddressError::User);
        }
        let members = members.trim_end_matches('/').split(',');
        Ok(Self {
            members: members.map(str::parse).collect::<Result<_, _>>()?,
            tls: None,
            user: None,
        })
    }

    /// Some of its members, at least one.
    #[must_use]
    pub fn members(&self) -> &[Address] {
        &self.members
    }
}
