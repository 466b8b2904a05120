//! Workers that meet in a real etcd, which is killed and started again.
#![cfg(feature = "etcd")]

mod access;
mod server;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use phalanx_cluster::coordination::rewritten_log_entry;
use phalanx_cluster::{
    ClusterError, Coordinator, EtcdCluster, JoinRequest, Membership, Rendezvous, Timing,
    membership_from_env,
};
use phalanx_proof::Secret;
use server::Etcd;

const SOON: Duration = Duration::from_secs(60);
const TIMING: Timing = Timing {
    heartbeat: Duration::from_millis(200),
    lease: Duration::from_secs(6),
};

/// Where nobody is to be lost, however slow the machine is.
const PATIENT: Timing = Timing {
    lease: Duration::from_secs(30),
    ..TIMING
};

fn membership(url: &str, job: &str, workers: usize, worker: usize) -> Membership {
    membership_with(url, job, workers, worker, &[])
}

fn membership_with(
    url: &str,
    job: &str,
    workers: usize,
    worker: usize,
    more: &[(&str, String)],
) -> Membership {
    let variables = [
        ("RANK", worker.to_string()),
        ("WORLD_SIZE", workers.to_string()),
        ("MASTER_ADDR", "nowhere.invalid".into()),
        ("MASTER_PORT", "1".into()),
        ("PHALANX_RENDEZVOUS", url.into()),
        ("PHALANX_JOB_ID", job.into()),
    ];
    let variables = variables.into_iter().chain(more.iter().cloned());
    let found = membership_from_env(&variables.collect());
    found.unwrap().unwrap()
}

fn join(membership: &Membership, secret: &str) -> Result<Coordinator, ClusterError> {
    join_with(membership, secret, TIMING)
}

fn join_with(
    membership: &Membership,
    secret: &str,
    timing: Timing,
) -> Result<Coordinator, ClusterError> {
    let port = 1000 + membership.worker as u16;
    let data = SocketAddr::from(([127, 0, 0, 1], port));
    let request = JoinRequest::new("1", data).deadline(SOON).timing(timing);
    let joined = Coordinator::join(membership, request.secret(Secret::new(secret)));
    let (coordinator, roster) = joined?;
    let ports: Vec<u16> = roster.addresses.iter().map(SocketAddr::port).collect();
    let expected: Vec<u16> = (0..membership.workers as u16).map(|w| 1000 + w).collect();
    assert_eq!(ports, expected);
    Ok(coordinator)
}

/// What each of some workers returns.
fn on_workers<T: Send>(
    url: &str,
    job: &str,
    workers: usize,
    work: impl Fn(usize, Coordinator) -> T + Sync,
) -> Vec<T> {
    on_workers_with(url, job, workers, TIMING, work)
}

fn on_workers_with<T: Send>(
    url: &str,
    job: &str,
    workers: usize,
    timing: Timing,
    work: impl Fn(usize, Coordinator) -> T + Sync,
) -> Vec<T> {
    thread::scope(|scope| {
        let start = |worker| {
            let work = &work;
            scope.spawn(move || {
                let membership = membership(url, job, workers, worker);
                let coordinator = join_with(&membership, "s", timing).unwrap();
                work(worker, coordinator)
            })
        };
        let all: Vec<_> = (0..workers).map(start).collect();
        all.into_iter()
            .map(|worker| worker.join().unwrap())
            .collect()
    })
}

/// What each of two workers does once etcd is back: they exchange, nobody has failed, and they leave.
fn go_on(worker: usize, coordinator: &Coordinator) {
    let all = coordinator.exchange("after", vec![worker as u8], SOON);
    assert_eq!(all.unwrap(), [[0], [1]]);
    assert_eq!(coordinator.first_failure(), None);
    coordinator.leave(SOON).unwrap();
}

/// The seeds of the fuzz target, by what it asserts.
#[test]
fn entries_of_the_log_are_read_as_they_are_written() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/etcd_log");
    let mut seeds = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        let written = rewritten_log_entry(&bytes, "log/1", None);
        assert_eq!(written.as_ref(), Some(&bytes));
        for end in 0..bytes.len() {
            let _ = rewritten_log_entry(&bytes[..end], "log/1", None);
            assert_eq!(
                rewritten_log_entry(&bytes[..end], "log/1", Some(b"s")),
                None
            );
        }
        assert_eq!(rewritten_log_entry(&bytes, "log/1", Some(b"s")), None);
        seeds += 1;
    }
    assert_eq!(seeds, 3);
}

#[test]
fn workers_meet_exchange_and_leave_nothing_behind() {
    let Some(etcd) = Etcd::start("meet") else {
        return;
    };
    for _ in 0..2 {
        on_workers_with(&etcd.url(), "meet", 3, PATIENT, |worker, coordinator| {
            for round in 0..3_u8 {
                let all = coordinator.exchange("x", vec![worker as u8, round], SOON);
                assert_eq!(all.unwrap(), [[0, round], [1, round], [2, round]]);
            }
            if worker == 1 {
                coordinator.set("key", b"value".to_vec()).unwrap();
            }
            assert_eq!(coordinator.get("key", SOON).unwrap(), b"value");
            // etcd takes 1 MiB with what is around it, and no more than its limit.
            let long = coordinator.exchange("long", vec![worker as u8; 1 << 20], SOON);
            assert_eq!(long.unwrap()[2], vec![2; 1 << 20]);
            let error = coordinator.set("long", vec![0; 2 << 20]).unwrap_err();
            assert!(matches!(error, ClusterError::User(_)), "{error}");
            let late = coordinator.get("none", Duration::from_millis(300));
            // A busy machine may answer too late that it is not set.
            use ClusterError::{Late, NotSet};
            assert!(matches!(late, Err(NotSet { .. } | Late { .. })), "{late:?}");
            let agreed = coordinator.agree_equal("program", &(worker / 2).to_string(), SOON);
            assert!(matches!(
                agreed,
                Err(ClusterError::Differs { worker: 2, .. })
            ));
            coordinator.leave(SOON).unwrap();
        });
    }
}

#[test]
fn an_etcd_that_is_killed_and_comes_back_loses_nothing() {
    let Some(etcd) = Etcd::start("restart") else {
        return;
    };
    let url = etcd.url();
    let etcd = std::sync::Mutex::new(etcd);
    on_workers(&url, "restart", 2, |worker, coordinator| {
        coordinator.barrier("before", SOON).unwrap();
        if worker == 0 {
            let mut etcd = etcd.lock().unwrap();
            etcd.kill();
            // Longer than the lease: silence of etcd is nobody's failure.
            thread::sleep(TIMING.lease + Duration::from_millis(500));
            assert!(etcd.start_again());
        }
        go_on(worker, &coordinator);
    });
}

#[test]
fn an_etcd_that_does_not_answer_for_a_while_is_nobodys_failure() {
    // It makes leases of at least one and a half elections: longer than it is silent.
    let flags = &[
        "--election-timeout",
        "10000",
        "--heartbeat-interval",
        "1000",
    ];
    let Some(mut members) = Etcd::start_members("silent", 1, flags) else {
        return;
    };
    let etcd = members.remove(0);
    let timing = Timing {
        lease: Duration::from_secs(1),
        ..TIMING
    };
    on_workers_with(&etcd.url(), "silent", 2, timing, |worker, coordinator| {
        coordinator.barrier("before", SOON).unwrap();
        if worker == 0 {
            etcd.signal("-STOP");
            // Not refused, as by one that is gone: calls wait, and nothing else is done meanwhile.
            thread::sleep(4 * timing.lease);
            etcd.signal("-CONT");
        }
        go_on(worker, &coordinator);
    });
}

/// The place of the member that leads; waits until one does.
fn leader(members: &[Etcd]) -> usize {
    let start = Instant::now();
    loop {
        let leads = |member: &Etcd| member.process.is_some() && member.leads() == Some(true);
        if let Some(leader) = members.iter().position(leads) {
            return leader;
        }
        assert!(start.elapsed() < SOON, "no member of etcd leads");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn the_leader_of_three_members_is_killed_and_nothing_is_lost() {
    let Some(members) = Etcd::start_members("leader", 3, &[]) else {
        return;
    };
    leader(&members);
    let addresses: Vec<String> = members
        .iter()
        .map(|member| format!("127.0.0.1:{}", member.client_port()))
        .collect();
    let url = format!("etcd://{}", addresses.join(","));
    let members = std::sync::Mutex::new(members);
    on_workers_with(&url, "leader", 3, PATIENT, |worker, coordinator| {
        for round in 0..2_u8 {
            coordinator
                .barrier(&format!("before {round}"), SOON)
                .unwrap();
            if worker == 0 {
                let mut members = members.lock().unwrap();
                let leader = leader(&members);
                members[leader].kill();
                coordinator
                    .set(&format!("killed {round}"), vec![round])
                    .unwrap();
                drop(members);
            }
            // All others, while etcd has no leader.
            let all = coordinator.exchange("after", vec![worker as u8, round], SOON);
            assert_eq!(all.unwrap(), [[0, round], [1, round], [2, round]]);
            let killed = coordinator.get(&format!("killed {round}"), SOON);
            assert_eq!(killed.unwrap(), [round]);
            if worker == 0 {
                let mut members = members.lock().unwrap();
                let dead = members.iter().position(|member| member.process.is_none());
                assert!(members[dead.unwrap()].start_again());
            }
        }
        assert_eq!(coordinator.first_failure(), None);
        coordinator.leave(SOON).unwrap();
    });
}

#[test]
fn a_failure_is_heard_by_all_and_the_next_run_is_another() {
    let Some(etcd) = Etcd::start("failure") else {
        return;
    };
    let url = etcd.url();
    on_workers_with(&url, "failure", 2, PATIENT, |worker, coordinator| {
        if worker == 1 {
            coordinator.report_failure("no data");
        }
        let error = coordinator.barrier("end", SOON).unwrap_err().to_string();
        assert!(error.contains("worker 1 no data"), "{error}");
    });
    on_workers_with(&url, "failure", 2, PATIENT, |_, coordinator| {
        coordinator.barrier("again", SOON).unwrap();
        coordinator.leave(SOON).unwrap();
    });
}

/// A worker that is a process, with this variable set to where etcd is; nothing otherwise.
#[test]
fn a_worker() {
    let Ok(url) = std::env::var("ETCD_TEST_URL") else {
        return;
    };
    let coordinator = join(&membership(&url, "killed", 2, 1), "s").unwrap();
    coordinator.barrier("there", SOON).unwrap();
    thread::sleep(Duration::from_secs(50));
}

#[test]
fn a_killed_process_is_named_when_its_lease_ends() {
    let Some(etcd) = Etcd::start("killed") else {
        return;
    };
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_worker"])
        .env("ETCD_TEST_URL", etcd.url())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let coordinator = join(&membership(&etcd.url(), "killed", 2, 0), "s").unwrap();
    coordinator.barrier("there", SOON).unwrap();
    process.kill().unwrap();
    process.wait().unwrap();
    let start = Instant::now();
    let error = coordinator.barrier("never", SOON).unwrap_err().to_string();
    assert!(
        error.contains("worker 1 is gone: its process is gone, or cut off from etcd"),
        "{error}"
    );
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
}

#[test]
fn who_does_not_know_the_secret_is_not_heard() {
    let Some(etcd) = Etcd::start("secret") else {
        return;
    };
    let url = etcd.url();
    thread::scope(|scope| {
        let stranger = scope.spawn(|| {
            let membership = membership(&url, "secret", 2, 1);
            let data = SocketAddr::from(([127, 0, 0, 1], 1));
            let request = JoinRequest::new("1", data).timing(TIMING);
            let request = request
                .secret(Secret::new("other"))
                .deadline(Duration::from_secs(3));
            Coordinator::join(&membership, request).err().unwrap()
        });
        let first = scope.spawn(|| join(&membership(&url, "secret", 2, 0), "s").unwrap());
        stranger.join().unwrap();
        let second = join(&membership(&url, "secret", 2, 1), "s").unwrap();
        let first = first.join().unwrap();
        scope.spawn(move || first.leave(SOON).unwrap());
        second.leave(SOON).unwrap();
    });
}

#[test]
fn addresses_of_etcd_are_read() {
    let cluster = EtcdCluster::at("a:1,b:2").unwrap();
    assert_eq!(cluster.members().len(), 2);
    let rendezvous = Rendezvous::at_etcd(cluster);
    assert_eq!(rendezvous.to_string(), "etcd at a:1");
    assert!(EtcdCluster::at("").is_err());
}
