//! On which interfaces workers listen: those at which others reach them, and no more.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};

use crate::{Address, Membership};

impl Membership {
    /// A listener for data of other workers, on the interface that reaches the coordinator. The port is the one that TF_CONFIG has
    /// for this worker, where it is free, since others may be closed between machines; worker 0's is the coordinator's, and its
    /// data listener has any.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn data_listener(&self) -> io::Result<TcpListener> {
        let own = self
            .addresses
            .as_ref()
            .and_then(|addresses| addresses.get(self.worker));
        let port = match own {
            Some(address) if self.worker > 0 => address.port,
            _ => 0,
        };
        let interface = self.interface();
        TcpListener::bind((interface, port)).or_else(|_| TcpListener::bind((interface, 0)))
    }

    /// A listener at the address that TF_CONFIG has for this task: one that others look for there.
    ///
    /// # Errors
    /// TF_CONFIG has none, or the system refuses it.
    pub fn task_listener(&self) -> io::Result<TcpListener> {
        let cluster = self.cluster.as_ref();
        let address = cluster.and_then(|cluster| cluster.address(self.task));
        bind(address.ok_or(ErrorKind::AddrNotAvailable)?)
    }

    /// The IP address of the interface that reaches the coordinator; unspecified where that is not known.
    fn interface(&self) -> IpAddr {
        let host = &self.rendezvous.address.host;
        if self.worker > 0 || !self.rendezvous.etcd.is_empty() {
            let here = |to: SocketAddr| {
                let any: SocketAddr = match to {
                    SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
                    SocketAddr::V6(_) => ([0_u16; 8], 0).into(),
                };
                let socket = UdpSocket::bind(any).ok()?;
                // Sends nothing: it asks the system which interface it would take.
                socket.connect(to).ok()?;
                Some(socket.local_addr().ok()?.ip())
            };
            let resolved = (host.as_str(), self.rendezvous.address.port).to_socket_addrs();
            return resolved
                .ok()
                .and_then(|mut all| all.find_map(here))
                .unwrap_or(ANY);
        }
        match own_interface(host) {
            Some(ip) if TcpListener::bind((ip, 0)).is_ok() => ip,
            _ => ANY,
        }
    }
}

const ANY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// Listens where others look for this machine by its name: at the address of the name, or at all where this machine does not have
/// that (behind a translation of addresses).
pub(crate) fn bind(address: &Address) -> io::Result<TcpListener> {
    let Some(ip) = own_interface(&address.host) else {
        return TcpListener::bind((ANY, address.port));
    };
    match TcpListener::bind((ip, address.port)) {
        Err(error) if error.kind() == ErrorKind::AddrNotAvailable => {
            TcpListener::bind((ANY, address.port))
        }
        bound => bound,
    }
}

/// The address that a name of this machine has for others; `None` if that cannot be told here: some systems give a machine's own
/// name a loopback address, which others do not see.
fn own_interface(host: &str) -> Option<IpAddr> {
    let literal: Option<IpAddr> = host.parse().ok();
    if literal.is_some() {
        return literal;
    }
    let ip = (host, 0).to_socket_addrs().ok()?.next()?.ip();
    (!ip.is_loopback() || host == "localhost").then_some(ip)
}

/// How other machines reach this one, as far as it can tell: its name where that is an address of its own, else the address of the
/// interface that leads to other networks.
#[must_use]
pub fn own_host() -> String {
    let name = rustix::system::uname();
    let name = name.nodename().to_string_lossy().into_owned();
    if own_interface(&name).is_some() {
        return name;
    }
    // An address that is nobody's, to which nothing is sent.
    let outwards = || {
        let socket = UdpSocket::bind((ANY, 0)).ok()?;
        socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
        Some(socket.local_addr().ok()?.ip().to_string())
    };
    outwards().unwrap_or(name)
}

/// An address to connect to from this machine.
pub(crate) fn as_seen_from_here(mut address: SocketAddr) -> SocketAddr {
    fill_in(&mut address, Ipv4Addr::LOCALHOST.into());
    address
}

/// Replaces an unspecified IP address.
pub(crate) fn fill_in(address: &mut SocketAddr, ip: IpAddr) {
    if address.ip().is_unspecified() {
        address.set_ip(ip);
    }
}
