//! Ports for workers that nobody else is given in the meantime.
//!
//! A socket that is bound and does not listen keeps its port from being handed out, and does not keep a worker from listening there:
//! both allow the reuse of addresses, as servers do.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;

use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt,
};

use super::LaunchError;

/// Ports of 127.0.0.1 that are kept until this is dropped.
#[derive(Debug)]
pub struct Reserved {
    ports: Vec<u16>,
    _sockets: Vec<OwnedFd>,
}

impl Reserved {
    /// A port for each worker, the first one `first` if it is given.
    ///
    /// # Errors
    /// No port is free, or not the one that was asked for.
    pub fn new(workers: usize, first: Option<u16>) -> Result<Self, LaunchError> {
        let reserve = |worker| {
            let port = first.filter(|_| worker == 0).unwrap_or(0);
            reserve(port).map_err(|source| LaunchError::Port { port, source })
        };
        let reserved: Vec<_> = (0..workers).map(reserve).collect::<Result<_, _>>()?;
        let (ports, sockets) = reserved.into_iter().unzip();
        Ok(Self {
            ports,
            _sockets: sockets,
        })
    }

    /// The ports, by worker.
    #[must_use]
    pub fn of_workers(&self) -> &[u16] {
        &self.ports
    }
}

fn reserve(port: u16) -> io::Result<(u16, OwnedFd)> {
    let socket = socket_with(
        AddressFamily::INET,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(
        &socket,
        &SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)),
    )?;
    let bound = SocketAddr::try_from(getsockname(&socket)?)?;
    Ok((bound.port(), socket))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::net::TcpListener;

    #[test]
    fn reserved_ports_are_handed_out_to_nobody_and_their_owners_can_listen() {
        let jobs: Vec<_> = (0..100).map(|_| Reserved::new(4, None).unwrap()).collect();
        let ports: Vec<u16> = jobs.iter().flat_map(|job| job.ports.clone()).collect();
        assert_eq!(ports.iter().collect::<BTreeSet<_>>().len(), 400);
        let others: Vec<_> = (0..400)
            .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
            .collect();
        for other in &others {
            assert!(!ports.contains(&other.local_addr().unwrap().port()));
        }
        for port in ports {
            TcpListener::bind(("127.0.0.1", port)).unwrap();
        }
    }

    #[test]
    fn a_port_that_is_taken_is_an_error() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let error = Reserved::new(2, Some(port)).err().unwrap();
        assert!(matches!(error, LaunchError::Port { port: of, .. } if of == port));
    }
}
