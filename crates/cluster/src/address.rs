//! Hosts with ports, as text.

use std::fmt;
use std::str::FromStr;

/// A host's name or IP address and a port, such as `node1:2222` or `[fe80::1]:2222`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// The name or IP address of the host, IPv6 without brackets.
    pub host: String,
    /// The port, 1 to 65535.
    pub port: u16,
}

impl Address {
    /// The address of a host and a port.
    #[must_use]
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self {
            host: host.into(),
            port,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// What is wrong with the text of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// There is no `:` before a port.
    #[error("the port is missing")]
    NoPort,
    /// Nothing stands before the `:`.
    #[error("the host is missing")]
    NoHost,
    /// What stands behind the `:` is no number from 1 to 65535.
    #[error("the port is not a number from 1 to 65535")]
    Port,
    /// The host has a blank, a `/` or another character that no host has.
    #[error("the host has a character that no host's name has")]
    Host,
    /// A user and a password before the host.
    #[error(
        "a user with a password does not belong into an address, which is shown: PHALANX_ETCD_USER names the user, PHALANX_ETCD_PASSWORD_FILE the file of the password"
    )]
    User,
    /// An IPv6 address without brackets.
    #[error("an IPv6 address must stand in brackets")]
    Brackets,
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, rest) = rest.split_once(']').ok_or(AddressError::Brackets)?;
                (host, rest.strip_prefix(':').ok_or(AddressError::NoPort)?)
            }
            None => text.rsplit_once(':').ok_or(AddressError::NoPort)?,
        };
        let bracketed = text.starts_with('[');
        if host.is_empty() {
            return Err(AddressError::NoHost);
        }
        if !bracketed && host.contains(':') {
            return Err(match host.contains('/') {
                true => AddressError::Host,
                false => AddressError::Brackets,
            });
        }
        if bracketed && host.parse::<std::net::Ipv6Addr>().is_err() || !host.chars().all(of_host) {
            return Err(AddressError::Host);
        }
        if !port.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(AddressError::Port);
        }
        match port.parse() {
            Ok(port @ 1..) => Ok(Self::new(host, port)),
            _ => Err(AddressError::Port),
        }
    }
}

/// Whether a host's name or address may hold a character; names of containers have underscores.
fn of_host(character: char) -> bool {
    character.is_alphanumeric() || matches!(character, '-' | '.' | '_' | ':')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_as_they_are_read() {
        for text in ["node1:2222", "10.0.0.1:1", "[::1]:65535", "my_pod-0.svc:80"] {
            assert_eq!(
                text.parse::<Address>().map(|a| a.to_string()).as_deref(),
                Ok(text)
            );
        }
    }

    #[test]
    fn each_mistake_has_its_own_error() {
        for (text, error) in [
            ("node1", AddressError::NoPort),
            ("", AddressError::NoPort),
            ("[::1]", AddressError::NoPort),
            (":2222", AddressError::NoHost),
            ("node1:", AddressError::Port),
            ("node1:0", AddressError::Port),
            ("node1:65536", AddressError::Port),
            ("node1:+80", AddressError::Port),
            ("::1:2222", AddressError::Brackets),
            ("[::1:2222", AddressError::Brackets),
            ("[node1]:2222", AddressError::Host),
            ("grpc://node1:2222", AddressError::Host),
            ("node 1:2222", AddressError::Host),
        ] {
            assert_eq!(text.parse::<Address>(), Err(error), "{text}");
        }
    }
}
