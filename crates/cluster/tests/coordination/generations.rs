//! What follows the loss of a worker, where a launcher has the service.

use std::io::Write;
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use phalanx_cluster::coordination::{Host, Settings};
use phalanx_cluster::{ClusterError, Coordinator, Membership, OutsideCoordinator, Recovery};
use phalanx_proof::Secret;

use crate::{FAST, LONG, at_once, data, hello, joined, member, request};

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
        join_within: None,
        recovery: Some(Recovery {
            within: LONG,
            least,
        }),
    };
    let tell = move |line: &str| tell.lock().unwrap().push(line.to_owned());
    (
        Host::start(settings, Some(Secret::new("secret")), tell).unwrap(),
        told,
    )
}

fn hosted(host: &Host, workers: usize, worker: usize) -> Membership {
    let mut membership = member(workers, worker, host.address().port());
    membership.launcher = Some(OutsideCoordinator {
        secret: Secret::new("secret"),
        recover_within: None,
    });
    membership
}

#[test]
fn survivors_and_a_replacement_meet_in_the_next_generation() {
    let (host, _) = host(3, 3);
    let place = |worker| hosted(&host, 3, worker);
    let mut all = joined(3, place);
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
    let mut all = joined(2, place);
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
    let soon = || request(0).deadline(Duration::from_secs(6));
    let mut other_job = hosted(&host, 1, 0);
    other_job.job = "other".into();
    let error = Coordinator::join(&other_job, soon()).err().unwrap();
    assert!(error.to_string().contains("of job"), "{error}");
    let mut other_secret = hosted(&host, 1, 0);
    other_secret.launcher = Some(OutsideCoordinator {
        secret: Secret::new("guessed"),
        recover_within: None,
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
    let mut all = joined(2, place);
    drop(all.remove(0));
    let one = all.remove(0);
    assert!(one.barrier("b", LONG).is_err());
    host.give_up(0);
    let (one, roster) = one.rejoin(&place(1), request(1).progress(Some(3))).unwrap();
    assert_eq!((roster.workers, one.workers()), (vec![1], 1));
    one.barrier("alone", LONG).unwrap();
    one.admit(true, None).unwrap();
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
