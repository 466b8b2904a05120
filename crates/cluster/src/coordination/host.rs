//! The coordination service in a process that is no worker, such as the launcher: it outlives all of them.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use phalanx_proof::Secret;

use super::event::Settings;
use super::generations::Lost;
use super::link::Link;
use super::service::Service;
use super::{ClusterError, Failure};

/// A coordination service on this machine, for as long as this lives.
pub struct Host {
    service: Service,
    address: SocketAddr,
    /// A service ends with its last connection: this one is its host's.
    connection: Link,
}

impl Host {
    /// Starts a service at a port of 127.0.0.1 that is free; `tell` hears who was refused.
    ///
    /// # Errors
    /// The system refuses a port or a thread.
    pub fn start(
        settings: Settings,
        secret: Option<Secret>,
        tell: impl FnMut(&str) + Send + 'static,
    ) -> Result<Self, ClusterError> {
        let refused = |error: std::io::Error| ClusterError::CannotListen {
            at: "127.0.0.1".into(),
            why: error.to_string(),
        };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let service = Service::start(settings, secret, Box::new(tell))?;
        let connection = service.connect();
        service.listen(listener)?;
        Ok(Self {
            service,
            address,
            connection,
        })
    }

    /// Where workers reach it.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Workers that were lost, in order, one for each generation that ended and was followed by another.
    #[must_use]
    pub fn lost(&self) -> Vec<Lost> {
        self.service.status().lost
    }

    /// The failure that ended the training of all, if one did.
    #[must_use]
    pub fn failure(&self) -> Option<Failure> {
        self.service.status().failure
    }

    /// Whether all workers have met here once: they are of a program that goes on without one of them.
    #[must_use]
    pub fn has_met(&self) -> bool {
        self.service.status().has_met
    }

    /// Says that a worker will not be started again: the others need not wait for it.
    pub fn give_up(&self, worker: usize) {
        self.service.give_up(worker);
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.connection.outgoing.close();
    }
}
