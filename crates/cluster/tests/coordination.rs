//! Workers as threads, over TCP and in memory: joining, meeting, agreeing, failing, leaving.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use phalanx_cluster::coordination::{Hello, Host, Reply, Request, Seat, Settings, encode};
use phalanx_cluster::{
    Address, ClusterError, Coordinator, JoinRequest, Membership, OutsideCoordinator, Recovery,
    Roster, Timing,
};

const SECOND: Duration = Duration::from_secs(1);
/// Nothing in these tests takes so long unless it hangs.
const LONG: Duration = Duration::from_secs(60);
const FAST: Timing = Timing {
    heartbeat: Duration::from_millis(100),
    lease: Duration::from_secs(2),
};

/// A port that is free: the coordinator of a test listens there, never at a fixed one.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

fn member(workers: usize, worker: usize, port: u16) -> Membership {
    Membership::new(workers, worker, Address::new("127.0.0.1", port))
}

fn data(worker: usize) -> SocketAddr {
    ([127, 0, 0, 1], 1000 + worker as u16).into()
}

fn seat(worker: usize) -> Seat {
    Seat {
        worker,
        address: data(worker),
        progress: None,
    }
}

fn request(worker: usize) -> JoinRequest {
    JoinRequest::new("1.0", data(worker))
        .timing(FAST)
        .deadline(LONG)
}

type Joined = Result<(Coordinator, Roster), ClusterError>;

/// Joins memberships at the same time, each with its request.
fn join_all(all: Vec<(Membership, JoinRequest)>) -> Vec<Joined> {
    let start =
        |(membership, request)| thread::spawn(move || Coordinator::join(&membership, request));
    let threads: Vec<_> = all.into_iter().map(start).collect();
    threads
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .collect()
}

/// Coordinators that joined over TCP.
fn over_tcp(workers: usize) -> Vec<Coordinator> {
    let port = free_port();
    let all = (0..workers).map(|worker| (member(workers, worker, port), request(worker)));
    join_all(all.collect())
        .into_iter()
        .map(|joined| joined.unwrap().0)
        .collect()
}

/// The same test over TCP and in memory.
fn both(workers: usize, test: impl Fn(Vec<Coordinator>)) {
    test(Coordinator::in_memory_with(workers, FAST));
    test(over_tcp(workers));
}

/// What all workers get from a call, made at the same time.
fn at_once<T: Send>(all: &[Coordinator], call: impl Fn(&Coordinator) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let call = &call;
        let threads: Vec<_> = all
            .iter()
            .map(|one| scope.spawn(move || call(one)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}

#[test]
fn workers_join_in_any_order_and_learn_all_addresses() {
    for first in 0..3 {
        let port = free_port();
        let (sender, joined) = channel();
        for at in 0..3 {
            let worker = (first + at) % 3;
            let sender = sender.clone();
            thread::spawn(move || {
                sender.send((
                    worker,
                    Coordinator::join(&member(3, worker, port), request(worker)),
                ))
            });
            thread::sleep(Duration::from_millis(30));
        }
        let mut handles = Vec::new();
        for _ in 0..3 {
            let (worker, joined) = joined.recv_timeout(LONG).unwrap();
            let (coordinator, roster) = joined.unwrap();
            assert_eq!(roster.addresses, [data(0), data(1), data(2)]);
            assert_eq!((coordinator.worker(), coordinator.workers()), (worker, 3));
            handles.push(coordinator);
        }
        let left = at_once(&handles, |one| one.leave(LONG));
        assert_eq!(left, vec![Ok(()); 3]);
    }
}

#[test]
fn one_worker_needs_nobody() {
    let (coordinator, roster) = Coordinator::join(&member(1, 0, 1), request(0)).unwrap();
    assert_eq!(roster.addresses, [data(0)]);
    coordinator.barrier("alone", LONG).unwrap();
    coordinator.leave(LONG).unwrap();
}

#[test]
fn bytes_of_all_reach_all_in_order_and_names_can_be_used_again() {
    both(3, |all| {
        for round in 0..20_u8 {
            let bytes = |one: &Coordinator| vec![round; one.worker()];
            let got = at_once(&all, |one| one.exchange("x", bytes(one), LONG).unwrap());
            let expected: Vec<_> = all.iter().map(bytes).collect();
            assert_eq!(got, vec![expected; 3]);
        }
    });
}

#[test]
fn a_barrier_holds_until_the_last_has_come() {
    both(2, |all| {
        let (sender, passed) = channel();
        let waiting = all[0].clone();
        thread::spawn(move || sender.send(waiting.barrier("b", LONG)));
        assert!(passed.recv_timeout(Duration::from_millis(100)).is_err());
        all[1].barrier("b", LONG).unwrap();
        passed.recv_timeout(LONG).unwrap().unwrap();
    });
}

#[test]
fn a_late_worker_is_named_to_all_who_wait() {
    both(3, |all| {
        let within = SECOND;
        let late = at_once(&all[..2], |one| one.barrier("step 7", within).unwrap_err());
        for error in late {
            let ClusterError::Late { name, missing, .. } = &error else {
                panic!("{error}");
            };
            assert_eq!(
                (name.as_str(), missing.len(), missing[0].worker),
                ("step 7", 1, 2)
            );
            assert!(error.to_string().contains("worker 2: alive "), "{error}");
        }
    });
}

#[test]
fn keys_are_waited_for() {
    both(2, |all| {
        let reader = all[1].clone();
        let got = thread::spawn(move || reader.get("id", LONG));
        all[0].set("id", b"first".to_vec()).unwrap();
        assert_eq!(got.join().unwrap().unwrap(), b"first");
        all[1].set("id", b"second".to_vec()).unwrap();
        assert_eq!(all[0].get("id", LONG).unwrap(), b"second");
        let error = all[0].get("other", Duration::from_millis(50)).unwrap_err();
        assert!(matches!(error, ClusterError::NotSet { .. }), "{error}");
    });
}

#[test]
fn the_worker_that_differs_is_named_to_all() {
    both(3, |all| {
        at_once(&all, |one| one.agree_equal("program", "abc", LONG).unwrap());
        for odd in 0..3 {
            let value = |one: &Coordinator| if one.worker() == odd { "xyz" } else { "abc" };
            for error in at_once(&all, |one| {
                one.agree_equal("program", value(one), LONG).unwrap_err()
            }) {
                let expected = ClusterError::Differs {
                    name: "program".into(),
                    worker: odd,
                    expected: "abc".into(),
                    got: "xyz".into(),
                };
                assert_eq!(error, expected);
            }
        }
    });
    // With two there is no majority: what the chief has is expected.
    both(2, |all| {
        let value = |one: &Coordinator| one.worker().to_string();
        for error in at_once(&all, |one| {
            one.agree_equal("data", &value(one), LONG).unwrap_err()
        }) {
            assert!(
                matches!(error, ClusterError::Differs { worker: 1, .. }),
                "{error}"
            );
        }
    });
}

#[test]
fn the_first_failure_reaches_everybody_who_waits_or_asks_later() {
    both(3, |all| {
        let (sender, called) = channel();
        for one in &all {
            let sender = sender.clone();
            one.on_failure(move |failure| sender.send(failure.clone()).unwrap());
        }
        let waiting = all[0].clone();
        let waiting = thread::spawn(move || waiting.barrier("never", LONG));
        all[2].report_failure("has no data left: /x is empty");
        all[1].report_failure("too late");
        let expected = "worker 2 has no data left: /x is empty";
        let error = waiting.join().unwrap().unwrap_err();
        assert!(error.to_string().starts_with(expected), "{error}");
        for _ in 0..3 {
            assert_eq!(called.recv_timeout(LONG).unwrap().to_string(), expected);
        }
        for one in &all {
            assert_eq!(one.first_failure().unwrap().to_string(), expected);
            assert!(matches!(
                one.barrier("b", LONG),
                Err(ClusterError::Failed { .. })
            ));
        }
    });
}

#[test]
fn a_process_that_ends_is_a_failure_at_once_and_leaving_is_none() {
    both(3, |mut all| {
        let start = Instant::now();
        drop(all.pop());
        for error in at_once(&all, |one| one.barrier("b", LONG).unwrap_err()) {
            assert!(error.to_string().starts_with("worker 2 is gone"), "{error}");
        }
        assert!(start.elapsed() < LONG / 2);
    });
    both(2, |all| {
        at_once(&all, |one| one.leave(LONG).unwrap());
        assert!(all.iter().all(|one| one.first_failure().is_none()));
        assert!(all[0].barrier("b", SECOND).is_err());
    });
}

#[test]
fn the_end_of_worker_0_is_seen_by_the_others() {
    let mut all = over_tcp(3);
    drop(all.remove(0));
    for error in at_once(&all, |one| one.barrier("b", LONG).unwrap_err()) {
        assert!(error.to_string().starts_with("worker 0 is gone"), "{error}");
    }
}

#[test]
fn a_worker_that_left_is_named_to_those_who_go_on() {
    both(2, |all| {
        let leaving = all[1].clone();
        let leaving = thread::spawn(move || leaving.leave(LONG));
        let error = loop {
            // Until it has left nobody else comes either.
            match all[0].barrier("step 9", Duration::from_millis(50)) {
                Err(ClusterError::Late { .. }) => {}
                other => break other.unwrap_err(),
            }
        };
        assert_eq!(
            error,
            ClusterError::Left {
                worker: 1,
                name: "step 9".into()
            }
        );
        all[0].leave(LONG).unwrap();
        leaving.join().unwrap().unwrap();
    });
}

/// What one worker hears of another's end counts only if nothing is heard of that one itself.
#[test]
fn a_lost_connection_is_blamed_on_the_one_that_was_lost() {
    both(3, |all| {
        all[0].report_lost(2, "the data connection was reset");
        let error = all[1].barrier("b", LONG).unwrap_err().to_string();
        let expected = "worker 2 was lost by worker 0: the data connection was reset";
        assert!(error.starts_with(expected), "{error}");
    });
    both(3, |all| {
        let reporting = all[0].clone();
        let reporting = thread::spawn(move || reporting.report_lost(1, "reset"));
        all[2].report_failure("out of memory");
        reporting.join().unwrap();
        let error = all[1].barrier("b", LONG).unwrap_err().to_string();
        assert!(error.starts_with("worker 2 out of memory"), "{error}");
    });
}

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
    let soon = Duration::from_millis(1500);
    let joined = join_all(vec![
        (membership, request(0).deadline(soon)),
        (member(3, 1, port), request(1)),
    ]);
    let error = joined[0].as_ref().err().unwrap().to_string();
    for part in [
        "1 of 3 workers",
        "1.5 s",
        &format!("worker 2 at {elsewhere}: it has not connected, and connection refused"),
    ] {
        assert!(error.contains(part), "no {part:?} in {error}");
    }
    let error = joined[1].as_ref().err().unwrap().to_string();
    assert!(
        error.starts_with("worker 2 did not join within 1.5 s"),
        "{error}"
    );
}

#[test]
fn without_a_coordinator_the_deadline_and_the_reason_are_told() {
    let soon = Duration::from_millis(1500);
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
    let soon = Duration::from_millis(1500);
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

/// What a worker says that then stops (SIGSTOP, a dead machine): its connection stays and nothing comes.
fn hello(worker: usize, workers: usize) -> Vec<u8> {
    let hello = Hello {
        job: String::new(),
        version: "1.0".into(),
        worker,
        workers,
        incarnation: 1,
        nonce: 0,
        generation: 0,
        progress: None,
        group: 0,
        data_address: data(worker),
    };
    encode(&Request::Hello(hello), &[]).unwrap()
}

#[test]
fn a_worker_that_stops_is_named_after_the_lease() {
    let port = free_port();
    let joining = (0..2).map(|worker| {
        thread::spawn(move || {
            Coordinator::join(&member(3, worker, port), request(worker))
                .unwrap()
                .0
        })
    });
    let joining: Vec<_> = joining.collect();
    let mut stopped = loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => break stream,
            Err(_) => thread::sleep(Duration::from_millis(5)),
        }
    };
    stopped.write_all(&hello(2, 3)).unwrap();
    let all: Vec<_> = joining
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .collect();
    for error in at_once(&all, |one| one.barrier("b", LONG).unwrap_err()) {
        let error = error.to_string();
        assert!(
            error.starts_with("worker 2 has not been heard of for "),
            "{error}"
        );
    }
}

#[test]
fn a_coordinator_that_stops_is_named_after_the_lease() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let welcome = Reply::Welcome {
        generation: 3,
        seats: [0, 1].map(seat).into(),
        lease_ms: 600,
    };
    let (sender, accepted) = channel();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let challenge = Reply::Challenge {
            nonce: 1,
            sealed: false,
        };
        stream.write_all(&encode(&challenge, &[]).unwrap()).unwrap();
        stream.write_all(&encode(&welcome, &[]).unwrap()).unwrap();
        // Kept open.
        sender.send(stream)
    });
    let (one, roster) = Coordinator::join(&member(2, 1, port), request(1)).unwrap();
    assert_eq!((roster.generation, one.generation()), (3, 3));
    let error = one.barrier("b", LONG).unwrap_err().to_string();
    assert!(
        error.starts_with("worker 0 has not answered for 0."),
        "{error}"
    );
    drop(accepted);
}

#[test]
fn only_those_with_the_secret_join_and_the_others_hear_why() {
    let port = free_port();
    let with = |worker, secret: &str| (member(2, worker, port), request(worker).secret(secret));
    let all = join_all(vec![with(0, "a"), with(1, "a")]);
    let all: Vec<_> = all.into_iter().map(|joined| joined.unwrap().0).collect();
    at_once(&all, |one| one.barrier("b", LONG).unwrap());
    at_once(&all, |one| one.leave(LONG).unwrap());

    let soon = Duration::from_millis(1500);
    for (first, second, part) in [
        (Some("a"), Some("b"), "it may have another secret"),
        (Some("a"), None, "it has a secret and this worker none"),
        (None, Some("a"), "it has no secret and this worker one"),
    ] {
        let port = free_port();
        let with = |worker, secret: Option<&str>| {
            let request = request(worker).deadline(soon);
            let request = match secret {
                Some(secret) => request.secret(secret),
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

/// A service as a launcher has it, for workers that may be replaced.
fn host(workers: usize, least: usize) -> (Host, Arc<Mutex<Vec<String>>>) {
    let told = Arc::<Mutex<Vec<String>>>::default();
    let tell = Arc::clone(&told);
    let settings = Settings {
        workers,
        job: String::new(),
        version: String::new(),
        generation: 1,
        lease: FAST.lease,
        join_within: LONG,
        recovery: Some(Recovery {
            within: LONG,
            least,
        }),
    };
    let tell = move |line: &str| tell.lock().unwrap().push(line.to_owned());
    (
        Host::start(settings, Some(b"secret".to_vec()), tell).unwrap(),
        told,
    )
}

fn hosted(host: &Host, workers: usize, worker: usize) -> Membership {
    let mut membership = member(workers, worker, host.address().port());
    membership.launcher = Some(OutsideCoordinator {
        secret: b"secret".to_vec(),
    });
    membership
}

#[test]
fn survivors_and_a_replacement_meet_in_the_next_generation() {
    let (host, _) = host(3, 3);
    let place = |worker| hosted(&host, 3, worker);
    let all = (0..3).map(|worker| (place(worker), request(worker)));
    let mut all: Vec<_> = join_all(all.collect())
        .into_iter()
        .map(|joined| joined.unwrap().0)
        .collect();
    // The first worker, too.
    drop(all.remove(0));
    let failed = at_once(&all, |one| one.barrier("b", LONG).unwrap_err());
    for error in failed {
        let ClusterError::Failed { failure } = error else {
            panic!("{error}");
        };
        assert_eq!((failure.worker, failure.next), (0, Some(2)));
    }
    let new = place(0);
    let new = thread::spawn(move || Coordinator::join(&new, request(0)).unwrap());
    let again = thread::scope(|scope| {
        let again = |(at, one): (usize, &Coordinator)| {
            let (one, place) = (one.clone(), place(at + 1));
            let request = request(at + 1).progress(Some(7 + at as u64));
            scope.spawn(move || one.rejoin(&place, request).unwrap())
        };
        let threads: Vec<_> = all.iter().enumerate().map(again).collect();
        let again: Vec<_> = threads.into_iter().map(|one| one.join().unwrap()).collect();
        again
    });
    let (first, roster) = new.join().unwrap();
    assert_eq!(roster.progress, [None, Some(7), Some(8)]);
    assert_eq!((roster.generation, roster.source()), (2, Some(2)));
    assert_eq!(roster.addresses, [data(0), data(1), data(2)]);
    let mut members = vec![first];
    for (one, other) in again {
        assert_eq!(other, roster);
        members.push(one);
    }
    at_once(&members, |one| one.barrier("b", LONG).unwrap());
    assert_eq!(host.lost().len(), 1);
    at_once(&members, |one| one.leave(LONG).unwrap());
}

/// A process that was stopped for longer than the lease, whose place another has when it goes on.
#[test]
fn a_worker_whose_place_is_taken_is_refused_and_changes_nothing() {
    let (host, told) = host(2, 2);
    let place = |worker| hosted(&host, 2, worker);
    let all = (0..2).map(|worker| (place(worker), request(worker)));
    let mut all: Vec<_> = join_all(all.collect())
        .into_iter()
        .map(|joined| joined.unwrap().0)
        .collect();
    let zombie = all.pop().unwrap();
    let one = all.pop().unwrap();
    one.report_lost(1, "does not answer");
    assert!(one.barrier("b", LONG).is_err());
    let (back, new) = (place(0), place(1));
    let new = thread::spawn(move || Coordinator::join(&new, request(1)).unwrap());
    let (one, _) = one.rejoin(&back, request(0).progress(Some(5))).unwrap();
    let (new, _) = new.join().unwrap();
    // It does not know yet, and what it says is not heard by the others.
    let late = zombie.set("key", b"stale".to_vec()).unwrap_err();
    assert!(late.to_string().contains("was lost by worker 0"), "{late}");
    let refused = zombie.rejoin(&place(1), request(1).progress(Some(4)));
    let refused = refused.err().unwrap();
    assert!(
        matches!(&refused, ClusterError::Refused { worker: 1, why, .. } if why.contains("in generation 2")),
        "{refused}"
    );
    let none = one.get("key", Duration::from_millis(50));
    assert!(matches!(none, Err(ClusterError::NotSet { .. })), "{none:?}");
    at_once(&[one, new], |one| one.leave(LONG).unwrap());
    let told = told.lock().unwrap().join("\n");
    assert!(
        told.contains("worker 1 from 127.0.0.1 was refused: it is one of generation 1"),
        "{told}"
    );
}

#[test]
fn strangers_are_refused_by_name_and_the_refusal_is_told() {
    let (host, told) = host(1, 1);
    let (one, _) = Coordinator::join(&hosted(&host, 1, 0), request(0)).unwrap();
    let soon = || request(0).deadline(Duration::from_millis(1500));
    let mut other_job = hosted(&host, 1, 0);
    other_job.job = "other".into();
    let error = Coordinator::join(&other_job, soon()).err().unwrap();
    assert!(error.to_string().contains("of job"), "{error}");
    let mut other_secret = hosted(&host, 1, 0);
    other_secret.launcher = Some(OutsideCoordinator {
        secret: b"guessed".to_vec(),
    });
    let error = Coordinator::join(&other_secret, soon()).err().unwrap();
    assert!(error.to_string().contains("another secret"), "{error}");
    // What was said before the challenge of this connection is no answer to it.
    let mut stream = TcpStream::connect(host.address()).unwrap();
    stream.write_all(&hello(0, 1)).unwrap();
    stream.write_all(&[0; 32]).unwrap();
    let start = Instant::now();
    let refusals = || told.lock().unwrap().join("\n");
    while refusals().matches("does not know the job's secret").count() < 1
        || !refusals().contains("of job \"other\"")
    {
        assert!(start.elapsed() < LONG, "{}", refusals());
        thread::sleep(Duration::from_millis(10));
    }
    one.barrier("b", LONG).unwrap();
    one.leave(LONG).unwrap();
}

#[test]
fn fewer_go_on_when_one_is_given_up_and_more_when_it_comes_back() {
    let (host, _) = host(2, 1);
    let place = |worker| hosted(&host, 2, worker);
    let all = (0..2).map(|worker| (place(worker), request(worker)));
    let mut all: Vec<_> = join_all(all.collect())
        .into_iter()
        .map(|joined| joined.unwrap().0)
        .collect();
    drop(all.remove(0));
    let one = all.remove(0);
    assert!(one.barrier("b", LONG).is_err());
    host.give_up(0);
    let (one, roster) = one.rejoin(&place(1), request(1).progress(Some(3))).unwrap();
    assert_eq!((roster.workers, one.workers()), (vec![1], 1));
    one.barrier("alone", LONG).unwrap();
    let back = place(0);
    let back = thread::spawn(move || Coordinator::join(&back, request(0)).unwrap());
    let start = Instant::now();
    while one.first_failure().is_none() {
        assert!(start.elapsed() < LONG);
        thread::sleep(Duration::from_millis(10));
    }
    let (one, roster) = one.rejoin(&place(1), request(1).progress(Some(9))).unwrap();
    assert_eq!(roster.workers, [0, 1]);
    assert_eq!(roster.source(), Some(1));
    let (back, _) = back.join().unwrap();
    at_once(&[one, back], |one| one.leave(LONG).unwrap());
}
