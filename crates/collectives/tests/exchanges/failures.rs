//! What fails, how fast it is heard of, and who is named.

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use phalanx_cluster::launch::ReservedPorts;
use phalanx_collectives::{
    AllReduce, CollectiveError, Communicator, CommunicatorOptions, Element, ReduceOp,
};
use phalanx_proof::Secret;

use crate::groups::{Kind, connect, each, group, listeners, options};

const KINDS: [Kind; 3] = [Kind::InMemory, Kind::Shared, Kind::Tcp];
/// Well below every timeout of these tests that is not meant to pass.
const AT_ONCE: Duration = Duration::from_secs(15);

fn sum(rank: &Communicator, count: usize) -> Result<(), CollectiveError> {
    rank.all_reduce(&mut vec![0; count * 4], Element::F32, ReduceOp::Sum)
}

#[test]
fn another_length_type_or_reduction_is_a_mismatch_on_all_ranks() {
    type Call = fn(&Communicator) -> Result<(), CollectiveError>;
    let others: [Call; 5] = [
        |rank| sum(rank, 11),
        |rank| sum(rank, 100_000),
        |rank| rank.all_reduce(&mut [0; 40], Element::I32, ReduceOp::Sum),
        |rank| rank.all_reduce(&mut [0; 40], Element::F32, ReduceOp::Max),
        Communicator::barrier,
    ];
    for kind in KINDS {
        for other in others {
            let group = group(kind, 3, &options());
            let errors = each(&group, |rank| match rank.rank() {
                1 => other(rank).unwrap_err(),
                _ => sum(rank, 10).unwrap_err(),
            });
            let found = errors
                .iter()
                .filter(|e| matches!(e, CollectiveError::Mismatch { .. }));
            assert!(found.count() >= 1, "{kind:?} {errors:?}");
            for (rank, error) in errors.iter().enumerate() {
                let text = error.to_string();
                assert!(
                    text.contains("all-reduce of 40 bytes of f32 (sum), ticket 0"),
                    "{text}"
                );
                // Whoever hears of it from another rank has lost nobody.
                let is_own = error.is_of_other_calls();
                assert_eq!(error.blamed().is_empty(), !is_own, "{kind:?} {error:?}");
                assert!(
                    !is_own || rank == 1 || error.blamed() == [1],
                    "{kind:?} {error:?}"
                );
            }
        }
    }
}

#[test]
fn a_rank_that_leaves_or_fails_is_named_at_once() {
    for kind in KINDS {
        let mut group = group(kind, 3, &options());
        each(&group, |rank| sum(rank, 1000).unwrap());
        drop(group.remove(1));
        let start = Instant::now();
        let errors = each(&group, |rank| sum(rank, 1000).unwrap_err());
        assert!(start.elapsed() < AT_ONCE, "{kind:?}");
        for error in errors {
            assert_eq!(error.blamed(), [1], "{kind:?} {error}");
        }
        assert_eq!(group[0].failure().unwrap().blamed(), [1]);
    }
}

#[test]
fn a_rank_that_does_not_come_is_named_after_the_timeout() {
    let options = CommunicatorOptions {
        timeout: Duration::from_secs(4),
        ..options()
    };
    for kind in KINDS {
        for count in [10, 100_000] {
            let group = group(kind, 3, &options);
            let errors = each(&group[..2], |rank| sum(rank, count).unwrap_err());
            let timeouts = errors
                .iter()
                .filter(|e| matches!(e, CollectiveError::Timeout { .. }));
            assert!(timeouts.count() >= 1, "{errors:?}");
            for error in &errors {
                assert_eq!(error.blamed(), [2], "{kind:?} {error}");
                assert!(error.to_string().contains("all-reduce"), "{error}");
            }
            // The late one hears of it at once, at the latest in the call after the one for which all others' elements were there.
            let late = (0..2).find_map(|_| sum(&group[2], count).err()).unwrap();
            assert_eq!(late.blamed(), [2], "{kind:?} {late}");
        }
    }
}

#[test]
fn a_rank_of_another_machine_is_named_by_all_ranks_of_this_one() {
    // Ranks may begin to wait a quarter of it apart.
    let options = CommunicatorOptions {
        timeout: Duration::from_secs(8),
        ..options()
    };
    let group = group(Kind::Machines(2), 4, &options);
    assert!(group[0].algorithms().to_string().contains("ring"));
    let errors = each(&group[..3], |rank| sum(rank, 100_000).unwrap_err());
    for error in errors {
        assert_eq!(error.blamed(), [3], "{error}");
    }
}

#[test]
fn an_abort_answers_waiting_and_coming_calls_everywhere() {
    for kind in KINDS {
        let group = group(kind, 3, &options());
        let (send, receive) = channel();
        let start = Instant::now();
        each(&group, |rank| {
            let ticket = rank.reserve_tickets(2);
            if rank.rank() == 2 {
                std::thread::sleep(Duration::from_millis(30));
                rank.abort("enough");
            } else {
                for ticket in [ticket, ticket + 1] {
                    let send = send.clone();
                    let request = AllReduce {
                        buffer: rank.buffer(64),
                        element: Element::F32,
                        op: ReduceOp::Sum,
                    };
                    rank.start_all_reduce(
                        ticket,
                        request,
                        Box::new(move |r| send.send(r.err()).unwrap()),
                    );
                }
            }
        });
        for _ in 0..4 {
            let error = receive.recv_timeout(AT_ONCE).unwrap().unwrap();
            assert!(
                matches!(&error, CollectiveError::Aborted { by: 2, reason, .. } if reason == "enough"),
                "{kind:?} {error}"
            );
        }
        for rank in &group {
            assert!(matches!(
                sum(rank, 1),
                Err(CollectiveError::Aborted { by: 2, .. })
            ));
        }
        assert!(start.elapsed() < AT_ONCE, "{kind:?}");
    }
}

#[test]
fn a_ticket_that_nobody_starts_or_two_start_is_an_error() {
    let options = CommunicatorOptions {
        timeout: Duration::from_millis(10),
        ..options()
    };
    let group = group(Kind::InMemory, 1, &options);
    let _ = group[0].reserve_tickets(1);
    let error = sum(&group[0], 1).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("ticket 0, which was reserved and never started"),
        "{error}"
    );

    let group = Communicator::in_memory(2, &crate::groups::options()).unwrap();
    let (send, receive) = channel();
    let request = || AllReduce {
        buffer: group[0].buffer(4),
        element: Element::F32,
        op: ReduceOp::Sum,
    };
    for _ in 0..2 {
        let send = send.clone();
        group[0].start_all_reduce(5, request(), Box::new(move |r| send.send(r.err()).unwrap()));
    }
    for _ in 0..2 {
        let error = receive.recv_timeout(AT_ONCE).unwrap().unwrap();
        assert!(
            error.to_string().contains("two arrays under ticket 5"),
            "{error}"
        );
    }
}

#[test]
fn what_makes_no_sense_is_refused_and_harms_nobody() {
    let group = group(Kind::InMemory, 2, &options());
    each(&group, |rank| {
        let wrong = [
            rank.all_reduce(&mut [0; 4], Element::Bool, ReduceOp::Sum),
            rank.all_reduce(&mut [0; 4], Element::I32, ReduceOp::Mean),
            rank.all_reduce(&mut [0; 4], Element::F32, ReduceOp::And),
            rank.all_reduce(&mut [0; 5], Element::F32, ReduceOp::Sum),
            rank.broadcast(2, &mut []),
        ];
        for wrong in wrong {
            assert!(matches!(wrong, Err(CollectiveError::Unsupported { .. })));
        }
        sum(rank, 3).unwrap();
    });
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addresses = [listener.local_addr().unwrap()];
    let wide = CommunicatorOptions {
        wire: Some(Element::F32),
        ..options()
    };
    let in_memory = Communicator::in_memory(2, &wide).map(drop);
    let connected = Communicator::connect(0, &addresses, &listener, &wide).map(drop);
    for wrong in [in_memory, connected] {
        assert!(matches!(wrong, Err(CollectiveError::Unsupported { .. })));
    }
}

#[test]
fn ranks_of_other_jobs_generations_and_options_are_refused() {
    let short = || CommunicatorOptions {
        join_timeout: Duration::from_secs(4),
        ..options()
    };
    type Case = (fn(&mut CommunicatorOptions), fn(&CollectiveError) -> bool);
    let cases: [Case; 4] = [
        (
            |o| o.job = "other".into(),
            |e| matches!(e, CollectiveError::WrongJob { rank: 0, .. }),
        ),
        (
            |o| o.secret = Some(Secret::new("guess")),
            |e| matches!(e, CollectiveError::WrongJob { rank: 0, .. }),
        ),
        (
            |o| o.generation = 7,
            |e| {
                matches!(
                    e,
                    CollectiveError::WrongGeneration {
                        rank: 0,
                        expected: 7,
                        got: 0,
                        ..
                    }
                )
            },
        ),
        (
            |o| o.wire = Some(Element::Bf16),
            |e| matches!(e, CollectiveError::Mismatch { rank: 0, .. }),
        ),
    ];
    for (change, is_expected) in cases {
        let results = connect(2, |rank| {
            let mut options = short();
            if rank == 1 {
                change(&mut options);
            }
            options
        });
        assert!(
            is_expected(results[1].as_ref().unwrap_err()),
            "{:?}",
            results[1]
        );
        let waited = results[0].as_ref().unwrap_err();
        assert!(
            matches!(waited, CollectiveError::Unreachable { rank: 1, .. }),
            "{waited}"
        );
    }
}

#[test]
fn a_buffer_of_a_failed_exchange_has_memory_of_its_own() {
    for kind in [Kind::InMemory, Kind::Shared] {
        let group = group(kind, 2, &options());
        let mut buffer = group[0].buffer(1 << 20);
        buffer.fill(1);
        let before = buffer.as_ptr();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                group[1].abort("a test");
            });
            let failed = group[0].all_reduce_buffer(&mut buffer, Element::F32, ReduceOp::Sum);
            assert!(failed.is_err(), "{kind:?}");
        });
        // The other rank may still read what was there.
        assert_ne!(buffer.as_ptr(), before, "{kind:?}");
        assert_eq!(buffer.len(), 1 << 20);
        buffer.fill(2);
    }
}

/// A stranger who says a byte now and then, as long as anybody listens.
fn mumble(address: SocketAddr) {
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    std::thread::spawn(move || {
        while stream.write_all(b"P").is_ok() {
            std::thread::sleep(Duration::from_millis(200));
        }
    });
}

#[test]
fn strangers_who_speak_slowly_hold_up_no_group() {
    let options = CommunicatorOptions {
        secret: Some(Secret::new("of the job")),
        ..options()
    };
    let (listeners, addresses) = listeners(2);
    for _ in 0..8 {
        mumble(addresses[0]);
    }
    let start = Instant::now();
    let group: Vec<_> = std::thread::scope(|scope| {
        let ranks = listeners.iter().enumerate().map(|(rank, listener)| {
            let (addresses, options) = (&addresses, &options);
            scope.spawn(move || Communicator::connect(rank, addresses, listener, options).unwrap())
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    // Each of them alone would be heard for three seconds.
    assert!(start.elapsed() < Duration::from_secs(10));
    each(&group, |rank| sum(rank, 10).unwrap());
}

#[test]
fn who_is_not_there_and_who_is_a_stranger_keep_nobody_for_ever() {
    let options = CommunicatorOptions {
        join_timeout: Duration::from_millis(1500),
        ..options()
    };
    let (mut listeners, mut addresses) = listeners(2);
    let nobody = ReservedPorts::new(1, None).unwrap();
    addresses[0] = ([127, 0, 0, 1], nobody.of_workers()[0]).into();
    let listener = listeners.remove(1);
    let error = Communicator::connect(1, &addresses, &listener, &options).unwrap_err();
    assert!(
        matches!(error, CollectiveError::Unreachable { rank: 0, .. }),
        "{error}"
    );
    assert!(error.to_string().contains("refused"), "{error}");

    // A stranger talks to rank 0 first; the group is made all the same.
    let stranger = |address| {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        Write::write_all(&mut stream, &[b'x'; 400]).unwrap();
    };
    let (listeners, addresses) = crate::groups::listeners(2);
    stranger(addresses[0]);
    let group: Vec<_> = std::thread::scope(|scope| {
        let ranks: Vec<_> = listeners
            .into_iter()
            .enumerate()
            .map(|(rank, listener)| {
                let addresses = &addresses;
                scope.spawn(move || {
                    Communicator::connect(rank, addresses, &listener, &crate::groups::options())
                        .unwrap()
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    each(&group, |rank| sum(rank, 10).unwrap());
}
