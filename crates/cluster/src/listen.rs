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
        if self.worker > 0 || self.rendezvous.etcd.is_some() {
            let resolved = (host.as_str(), self.rendezvous.address.port).to_socket_addrs();
            return reaching(host, resolved.into_iter().flatten()).unwrap_or(ANY);
        }
        match own_interface(host) {
            Some(ip) if TcpListener::bind((ip, 0)).is_ok() => ip,
            _ => ANY,
        }
    }
}

/// The IP address of the interface that reaches a host, which has these addresses; `None` if that cannot be told here. Where it is this
/// machine, whose own name some systems give a loopback address, it is the one that leads to other networks.
fn reaching(host: &str, mut resolved: impl Iterator<Item = SocketAddr>) -> Option<IpAddr> {
    let ip = resolved.find_map(towards)?;
    match ip.is_loopback() && !is_only_here(host) {
        true => outwards(),
        false => Some(ip),
    }
}

/// Whether the address of a host is this machine's alone since it was asked for so.
fn is_only_here(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok()
}

/// The IP address of the interface that reaches an address: the system is asked which it would take, and nothing is sent.
fn towards(to: SocketAddr) -> Option<IpAddr> {
    let any: SocketAddr = match to {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => ([0_u16; 8], 0).into(),
    };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(to).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// The IP address of the interface that leads to other networks: to an address that is nobody's.
fn outwards() -> Option<IpAddr> {
    towards(([192, 0, 2, 1], 9).into())
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
    let ip = (host, 0).to_socket_addrs().ok()?.next()?.ip();
    (!ip.is_loopback() || is_only_here(host)).then_some(ip)
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
    outwards().map_or(name, |ip| ip.to_string())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_machines_are_told_no_loopback_address_for_the_name_of_this_one() {
        let here = |host: &str, to: [u8; 4]| reaching(host, [(to, 2222).into()].into_iter());
        let loopback = Some(Ipv4Addr::LOCALHOST.into());
        assert_eq!(here("localhost", [127, 0, 0, 1]), loopback);
        assert_eq!(here("127.0.0.1", [127, 0, 0, 1]), loopback);
        // As Debian has it in /etc/hosts. Without a network there is no other.
        let told = here("node1", [127, 0, 1, 1]);
        assert_eq!(told, outwards());
        assert!(told.is_none_or(|ip| !ip.is_loopback()), "{told:?}");
    }
}
