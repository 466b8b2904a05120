//! Who may join, and what those hear who may not or wait in vain.

use std::io::Write;
use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use phalanx_cluster::{Address, Coordinator, JoinRequest};
use phalanx_proof::Secret;

use crate::{FAST, Joined, LONG, at_once, data, free_port, join_all, member, request};

#[test]
fn a_missing_worker_is_named_with_where_it_should_be() {
    let port = free_port();
    let elsewhere = Address::new("127.0.0.1", free_port());
    let mut membership = member(3, 0, port);
    membership.addresses = Some(vec![
        Address::new("127.0.0.1", port),
        Address::new("127.0.0.1", port),
        elsewhere.clone(),
    ]);
    let soon = Duration::from_secs(6);
    let joined = join_all(vec![
        (membership, request(0).deadline(soon)),
        (member(3, 1, port), request(1)),
    ]);
    let error = joined[0].as_ref().err().unwrap().to_string();
    for part in [
        "1 of 3 workers",
        "6 s",
        &format!("worker 2 at {elsewhere}: it has not connected, and connection refused"),
    ] {
        assert!(error.contains(part), "no {part:?} in {error}");
    }
    let error = joined[1].as_ref().err().unwrap().to_string();
    assert!(
        error.starts_with("worker 2 did not join within 6 s"),
        "{error}"
    );
}

#[test]
fn without_a_coordinator_the_deadline_and_the_reason_are_told() {
    let soon = Duration::from_secs(6);
    let alone = |membership| {
        Coordinator::join(&membership, request(1).deadline(soon))
            .err()
            .unwrap()
            .to_string()
    };
    let error = alone(member(2, 1, free_port()));
    assert!(
        error.contains("worker 0 at 127.0.0.1") && error.contains("connection refused"),
        "{error}"
    );
    let mut unknown = member(2, 1, 1);
    unknown.rendezvous.address.host = "no-such-host.invalid".into();
    let error = alone(unknown);
    assert!(
        error.contains("\"no-such-host.invalid\" is not known"),
        "{error}"
    );
}

#[test]
fn what_is_no_coordinator_is_told_from_one() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream
                .unwrap()
                .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let soon = Duration::from_secs(6);
    let error = Coordinator::join(&member(2, 1, port), request(1).deadline(soon))
        .err()
        .unwrap();
    assert!(
        error
            .to_string()
            .contains("does not speak Phalanx' protocol"),
        "{error}"
    );
}

#[test]
fn another_version_or_another_number_of_workers_ends_all() {
    for (other, counted, part) in [
        ("2.0", 2, "has version 2.0, the others have 1.0"),
        ("1.0", 3, "counts 3 workers, the coordinator counts 2"),
    ] {
        let port = free_port();
        let different = JoinRequest::new(other, data(1)).timing(FAST).deadline(LONG);
        let joined = join_all(vec![
            (member(2, 0, port), request(0)),
            (member(counted, 1, port), different),
        ]);
        for joined in joined {
            let error = joined.err().unwrap();
            assert!(
                error.to_string().starts_with(&format!("worker 1 {part}")),
                "{error}"
            );
        }
    }
}

#[test]
fn a_second_process_with_a_number_is_refused_and_the_first_goes_on() {
    let port = free_port();
    let twice = vec![
        (member(3, 1, port), request(1)),
        (member(3, 1, port), request(1)),
    ];
    let hosts = thread::spawn(move || Coordinator::join(&member(3, 0, port), request(0)));
    let threads: Vec<_> = twice
        .into_iter()
        .map(|(membership, request)| thread::spawn(move || Coordinator::join(&membership, request)))
        .collect();
    // One of them is refused after two leases; then the last comes.
    while !threads.iter().any(thread::JoinHandle::is_finished) {
        thread::sleep(Duration::from_millis(20));
    }
    let last = Coordinator::join(&member(3, 2, port), request(2));
    let results: Vec<Joined> = threads
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .collect();
    assert_eq!(results.iter().filter(|joined| joined.is_ok()).count(), 1);
    let error = results
        .iter()
        .find_map(|joined| joined.as_ref().err())
        .unwrap()
        .to_string();
    assert!(error.contains("another process is worker 1"), "{error}");
    assert!(last.is_ok() && hosts.join().unwrap().is_ok());
}

/// Two trainings whose calculated ports are the same.
#[test]
fn jobs_with_the_same_ports_do_not_mix() {
    let port = free_port();
    let of_job = |job: &str, worker| {
        let mut membership = member(2, worker, port);
        membership.rendezvous.spare_ports = 3;
        membership.job = job.into();
        (membership, request(worker))
    };
    let all = vec![
        of_job("a", 0),
        of_job("b", 1),
        of_job("a", 1),
        of_job("b", 0),
    ];
    let joined: Vec<_> = join_all(all)
        .into_iter()
        .map(|joined| joined.unwrap().0)
        .collect();
    for (at, job) in [(0, "a"), (2, "a"), (1, "b"), (3, "b")] {
        let one = joined[at].clone();
        thread::spawn(move || one.set("job", job.into()));
    }
    for (at, job) in [(0, "a"), (2, "a"), (1, "b"), (3, "b")] {
        assert_eq!(joined[at].get("job", LONG).unwrap(), job.as_bytes());
    }
}

#[test]
fn only_those_with_the_secret_join_and_the_others_hear_why() {
    let port = free_port();
    let with = |worker, secret: &str| {
        (
            member(2, worker, port),
            request(worker).secret(Secret::new(secret)),
        )
    };
    let all = join_all(vec![with(0, "a"), with(1, "a")]);
    let all: Vec<_> = all.into_iter().map(|joined| joined.unwrap().0).collect();
    at_once(&all, |one| one.barrier("b", LONG).unwrap());
    at_once(&all, |one| one.leave(LONG).unwrap());

    let soon = Duration::from_secs(6);
    for (first, second, part) in [
        (Some("a"), Some("b"), "it may have another secret"),
        (Some("a"), None, "it has a secret and this worker none"),
        (None, Some("a"), "it has no secret and this worker one"),
    ] {
        let port = free_port();
        let with = |worker, secret: Option<&str>| {
            let request = request(worker).deadline(soon);
            let request = match secret {
                Some(secret) => request.secret(Secret::new(secret)),
                None => request,
            };
            (member(2, worker, port), request)
        };
        let joined = join_all(vec![with(0, first), with(1, second)]);
        assert!(joined[0].is_err());
        let error = joined[1].as_ref().err().unwrap().to_string();
        assert!(error.contains(part), "no {part:?} in {error}");
    }
}
