//! What a node can see without the others.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::net::{IpAddr, TcpListener, ToSocketAddrs};
use std::path::Path;

use phalanx_cluster::{Address, EnvError, EtcdCluster, Membership};

use crate::doctor::Check;
use crate::machine::bytes;

/// Which worker this process is.
pub(crate) fn environment(found: Result<Option<&Membership>, &EnvError>) -> Check {
    const NAME: &str = "environment";
    match found {
        Err(error) => Check::fail(
            NAME,
            error.to_string(),
            "correct the variables of this process; `phalanx env --explain` prints all that were read",
        ),
        Ok(None) => Check::fail(
            NAME,
            "no variable of this process speaks of a cluster",
            "start the doctor as you start the training: by phalanx launch, srun, mpirun, or with its TF_CONFIG",
        ),
        Ok(Some(membership)) if !membership.task.kind.trains() => Check::fail(
            NAME,
            format!("{membership} does not train"),
            "start the doctor in place of the workers alone",
        ),
        Ok(Some(membership)) if membership.workers == 1 => Check::warn(
            NAME,
            membership.to_string(),
            "give the number of workers if there should be several",
        ),
        Ok(Some(membership)) => Check::ok(NAME, membership.to_string()),
    }
}

/// The addresses that this process knows, and whose they are.
fn known_addresses(membership: &Membership) -> Vec<(String, Address)> {
    let rendezvous = &membership.rendezvous;
    let mut all: Vec<(String, Address)> = Vec::new();
    let etcd = rendezvous.etcd.iter();
    for member in etcd.flat_map(EtcdCluster::members) {
        all.push(("etcd".into(), member.clone()));
    }
    if rendezvous.etcd.is_none() && rendezvous.is_known() {
        let whose = match membership.launcher {
            Some(_) => "the launcher",
            None => "worker 0",
        };
        all.push((whose.into(), rendezvous.address.clone()));
    }
    let workers = membership.addresses.iter().flatten().enumerate();
    all.extend(workers.map(|(worker, address)| (format!("worker {worker}"), address.clone())));
    all
}

fn resolved(address: &Address) -> io::Result<Vec<IpAddr>> {
    let found = (address.host.as_str(), address.port).to_socket_addrs()?;
    Ok(found.map(|address| address.ip()).collect())
}

/// Whether each host is known by its name, and none has two workers at one port.
pub(crate) fn names(membership: &Membership) -> Check {
    const NAME: &str = "names";
    let all = known_addresses(membership);
    let mut unknown: Vec<String> = Vec::new();
    for (whose, address) in &all {
        if let Err(error) = resolved(address) {
            unknown.push(format!("{whose}'s host {:?} ({error})", address.host));
        }
    }
    unknown.dedup();
    if !unknown.is_empty() {
        return Check::fail(
            NAME,
            format!("not known here: {}", unknown.join(", ")),
            "correct the name in the cluster's description, or make it known to this machine (DNS, /etc/hosts)",
        );
    }
    let loopback = |(_, address): &&(String, Address)| {
        let ips = resolved(address).unwrap_or_default();
        ips.first().is_some_and(IpAddr::is_loopback)
    };
    let (here, elsewhere): (Vec<_>, Vec<_>) = all.iter().partition(loopback);
    match (here.first(), elsewhere.first()) {
        (Some((whose, address)), Some(_)) => Check::warn(
            NAME,
            format!(
                "{whose}'s host {:?} is this machine's loopback address",
                address.host
            ),
            "give the name that other machines know: they look for it on themselves",
        ),
        _ => {
            let hosts: Vec<&str> = all
                .iter()
                .map(|(_, address)| address.host.as_str())
                .collect();
            Check::ok(NAME, format!("known: {}", unique(&hosts).join(", ")))
        }
    }
}

fn unique<'a>(names: &[&'a str]) -> Vec<&'a str> {
    let mut seen: Vec<&str> = Vec::new();
    for name in names {
        if !seen.contains(name) {
            seen.push(name);
        }
    }
    seen
}

/// Whether this process can listen where others look for it.
pub(crate) fn ports(membership: &Membership) -> Check {
    const NAME: &str = "ports";
    let worker = membership.worker;
    let own = membership.addresses.as_ref();
    let own = own.and_then(|addresses| addresses.get(worker)).cloned();
    let coordinates =
        worker == 0 && membership.launcher.is_none() && membership.rendezvous.etcd.is_none();
    let places: Vec<Address> = match coordinates {
        true => membership.rendezvous.addresses().collect(),
        false => own.into_iter().filter(|_| worker > 0).collect(),
    };
    let Some(first) = places.first() else {
        return Check::ok(NAME, "any that is free");
    };
    let mut why = Vec::new();
    for place in &places {
        match listens(place) {
            Ok(()) => return Check::ok(NAME, format!("{place} is free")),
            Err(error) => why.push((place, error)),
        }
    }
    let list = why
        .iter()
        .map(|(place, error)| format!("worker {worker} cannot listen at {place}: {error}"));
    let found = list.collect::<Vec<_>>().join("; ");
    let is_elsewhere = |error: &io::Error| error.kind() == ErrorKind::AddrNotAvailable;
    if why.iter().all(|(_, error)| is_elsewhere(error)) {
        return Check::warn(
            NAME,
            found,
            format!(
                "{} is no address of this machine: start worker {worker} on its own machine, or correct the name unless addresses are translated",
                first.host
            ),
        );
    }
    let next = format!(
        "end what listens there (ss -ltnp 'sport = :{}'), or give another port",
        first.port
    );
    match coordinates {
        true => Check::fail(NAME, found, next),
        // It takes another port, which may be closed between machines.
        false => Check::warn(NAME, found, next),
    }
}

fn listens(place: &Address) -> io::Result<()> {
    let ips = resolved(place)?;
    let first = ips.first().ok_or(ErrorKind::AddrNotAvailable)?;
    TcpListener::bind((*first, place.port)).map(drop)
}

/// Whether a folder takes a file of 1 MiB.
pub(crate) fn folder(name: &'static str, folder: &Path, next: &str) -> Check {
    let probe = folder.join(format!(".phalanx-doctor-{}", std::process::id()));
    let tried = fs::create_dir_all(folder).and_then(|()| {
        let mut file = File::create(&probe)?;
        file.write_all(&[7; 1 << 20])?;
        file.sync_all()
    });
    let _ = fs::remove_file(&probe);
    match tried {
        Ok(()) => Check::ok(name, format!("{} takes files", folder.display())),
        Err(error) => Check::fail(
            name,
            format!(
                "{} does not take a file of {}: {error}",
                folder.display(),
                bytes(1 << 20)
            ),
            next,
        ),
    }
}
