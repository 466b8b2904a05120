//! Workers as threads, over TCP and in memory: joining, meeting, agreeing, failing, leaving.

mod generations;
mod joining;

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use phalanx_cluster::coordination::{Hello, Reply, Request, Seat, encode};
use phalanx_cluster::launch::ReservedPorts;
use phalanx_cluster::{
    Address, ClusterError, Coordinator, JoinRequest, Membership, Roster, Timing,
};

const SECOND: Duration = Duration::from_secs(1);
/// Nothing in these tests takes so long unless it hangs.
const LONG: Duration = Duration::from_secs(60);
const FAST: Timing = Timing {
    heartbeat: Duration::from_millis(100),
    lease: Duration::from_secs(2),
};

/// A port where the coordinator of a test listens; nobody else is given it until the tests end.
fn free_port() -> u16 {
    Box::leak(Box::new(ReservedPorts::new(1, None).unwrap())).of_workers()[0]
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
    joined(workers, |worker| member(workers, worker, port))
}

/// Coordinators of workers whose places these are, once all have joined.
fn joined(workers: usize, place: impl Fn(usize) -> Membership) -> Vec<Coordinator> {
    let all = (0..workers).map(|worker| (place(worker), request(worker)));
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

#[test]
fn those_who_have_not_left_in_time_are_named_to_those_who_have() {
    both(2, |all| {
        let late = all[0].leave(Duration::from_millis(50)).unwrap_err();
        let ClusterError::Late { missing, .. } = late else {
            panic!("{late}");
        };
        let workers: Vec<usize> = missing.iter().map(|missing| missing.worker).collect();
        assert_eq!(workers, [1]);
        all[1].leave(LONG).unwrap();
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

/// The bytes of all go to all in one message.
#[test]
fn more_bytes_than_all_can_be_sent_are_refused_and_harm_nobody() {
    both(2, |all| {
        let errors = at_once(&all, |one| {
            let bytes = vec![0; 33 << 20];
            one.exchange("large", bytes, LONG).unwrap_err()
        });
        for error in errors {
            assert!(matches!(error, ClusterError::User(_)), "{error}");
        }
        let error = all[0].set("large", vec![0; 64 << 20]).unwrap_err();
        assert!(error.to_string().contains("for small values"), "{error}");
        at_once(&all, |one| one.barrier("b", LONG).unwrap());
    });
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
        within_ms: 60_000,
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
    let until = Instant::now() + LONG;
    let mut stopped = loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => break stream,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        thread::sleep(Duration::from_millis(5));
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
