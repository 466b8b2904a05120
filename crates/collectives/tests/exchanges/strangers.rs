//! Who takes part in a group: ranks of its job and generation that know its secret, and nobody else.
//!
//! PHALANX_TEST_TRIALS says how often each kind of stranger comes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use phalanx_collectives::{
    CollectiveError, Communicator, CommunicatorOptions, Element, ReduceOp, Transport,
};
use phalanx_proof::Secret;

use crate::groups::{Kind, connect, each, group, listeners, options};

/// Bytes that a rank says before it is believed: a hello and a proof.
const HELLO: usize = 168;
const PROOF: usize = 32;
const GENERATION: u64 = 3;

fn of_job() -> CommunicatorOptions {
    CommunicatorOptions {
        secret: Some(Secret::new("of the job")),
        generation: GENERATION,
        transport: Transport::Tcp,
        ..options()
    }
}

fn trials() -> usize {
    std::env::var("PHALANX_TEST_TRIALS").map_or(1, |text| text.parse().unwrap())
}

/// A rank that is refused, which it must say at once.
fn impostor(address: SocketAddr, change: fn(&mut CommunicatorOptions)) -> CollectiveError {
    let own = TcpListener::bind("127.0.0.1:0").unwrap();
    let addresses = [address, own.local_addr().unwrap()];
    let mut options = of_job();
    change(&mut options);
    let start = Instant::now();
    let error = Communicator::connect(1, &addresses, &own, &options).unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(10), "{error}");
    error
}

/// What comes to a rank by TCP that is no rank: says these bytes, the last of them after an answer. What it got until it was left.
fn talk(address: SocketAddr, first: &[u8], then: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    // It may be left before all is said.
    let _ = stream.write_all(first);
    let mut answer = [0; HELLO + PROOF + 1];
    let mut got = stream.read(&mut answer).unwrap_or(0);
    let _ = stream.write_all(then);
    while let Ok(more @ 1..) = stream.read(&mut answer[got..]) {
        got += more;
    }
    answer[..got].to_vec()
}

/// Has a group of the same job, secret and generation meet through a proxy, which keeps what rank 1 says first on its first connection.
fn overheard() -> Vec<u8> {
    let (listeners, addresses) = listeners(2);
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    let through = [proxy.local_addr().unwrap(), addresses[1]];
    let to = addresses[0];
    let listening = thread::spawn(move || {
        let (mut from, _) = proxy.accept().unwrap();
        let mut heard = vec![0; HELLO];
        from.read_exact(&mut heard).unwrap();
        let mut stream = TcpStream::connect(to).unwrap();
        stream.write_all(&heard).unwrap();
        let (mut back, mut forth) = (stream.try_clone().unwrap(), from.try_clone().unwrap());
        thread::spawn(move || std::io::copy(&mut back, &mut forth));
        let mut proof = vec![0; PROOF];
        from.read_exact(&mut proof).unwrap();
        [heard, proof].concat()
    });
    let short = CommunicatorOptions {
        join_timeout: Duration::from_secs(2),
        ..of_job()
    };
    thread::scope(|scope| {
        let ranks = listeners.iter().enumerate().map(|(rank, listener)| {
            let addresses = if rank == 0 { &addresses[..] } else { &through };
            let options = &short;
            // The proxy passes on one connection alone, and the group is not made.
            scope.spawn(move || Communicator::connect(rank, addresses, listener, options).err())
        });
        for rank in ranks.collect::<Vec<_>>() {
            drop(rank.join().unwrap());
        }
    });
    listening.join().unwrap()
}

/// Strangers of every kind come as rank 1 to the address of rank 0; each is told that it is none, or is left. How many came.
fn strangers(address: SocketAddr, recorded: &[u8]) -> usize {
    type Kind = (fn(&mut CommunicatorOptions), fn(&CollectiveError) -> bool);
    let impostors: [Kind; 4] = [
        (
            |o| o.secret = None,
            |e| matches!(e, CollectiveError::WrongJob { rank: 0, .. }),
        ),
        (
            |o| o.secret = Some(Secret::new("guessed")),
            |e| matches!(e, CollectiveError::WrongJob { rank: 0, .. }),
        ),
        (
            |o| o.job = "other".into(),
            |e| matches!(e, CollectiveError::WrongJob { rank: 0, .. }),
        ),
        (
            |o| o.generation = GENERATION - 1,
            |e| matches!(e, CollectiveError::WrongGeneration { rank: 0, .. }),
        ),
    ];
    for (change, is_expected) in impostors {
        let error = impostor(address, change);
        assert!(is_expected(&error), "{error}");
    }
    let (hello, proof) = recorded.split_at(HELLO);
    let plain: [(&[u8], &[u8]); 6] = [
        (b"GET / HTTP/1.1\r\nHost: rank\r\n\r\n", b""),
        // A hello of TLS.
        (&[22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3], &[0; 512]),
        (&[0; HELLO], &[0; PROOF]),
        // One that was right, with no proof, another, and its own, which was to another number.
        (hello, b""),
        (hello, &[7; PROOF]),
        (hello, proof),
    ];
    for (first, then) in plain {
        // Without a proof nothing but a verdict, a hello and a proof is told.
        assert!(talk(address, first, then).len() <= HELLO + PROOF + 1);
    }
    impostors.len() + plain.len()
}

#[test]
fn strangers_of_every_kind_are_refused_and_the_rightful_rank_comes_after_them() {
    let recorded = overheard();
    let (listeners, addresses) = listeners(2);
    let mut come = 0;
    let ranks: Vec<_> = thread::scope(|scope| {
        let of = |rank: usize| {
            let (addresses, listener) = (&addresses, &listeners[rank]);
            let options = CommunicatorOptions {
                join_timeout: Duration::from_secs(60) * (trials() as u32 + 1),
                ..of_job()
            };
            scope.spawn(move || Communicator::connect(rank, addresses, listener, &options))
        };
        let first = of(0);
        for _ in 0..trials() {
            come += strangers(addresses[0], &recorded);
        }
        assert!(!first.is_finished(), "a stranger was taken for rank 1");
        let all = [first, of(1)];
        all.map(|rank| rank.join().unwrap().unwrap()).into()
    });
    let sums = each(&ranks, |rank| {
        let mut bytes = 2_f32.to_le_bytes();
        rank.all_reduce(&mut bytes, Element::F32, ReduceOp::Sum)
            .unwrap();
        f32::from_le_bytes(bytes)
    });
    assert_eq!(sums, [4.0, 4.0]);
    println!("{come} strangers, none was let in");
}

#[test]
fn a_first_rank_that_does_not_know_the_secret_is_not_believed() {
    let ranks = connect(2, |rank| CommunicatorOptions {
        secret: Some(Secret::new(if rank == 0 {
            "guessed"
        } else {
            "of the job"
        })),
        join_timeout: Duration::from_secs(4),
        ..of_job()
    });
    let error = ranks[1].as_ref().unwrap_err();
    assert!(
        matches!(error, CollectiveError::WrongJob { rank: 0, .. }),
        "{error}"
    );
    assert!(ranks[0].is_err());
}

/// The least time of an all-reduce of 1 MiB between two ranks by TCP.
fn least_time(group: &[Communicator]) -> Duration {
    let times = each(group, |rank| {
        let mut buffer = vec![0; 1 << 20];
        let mut once = || {
            let start = Instant::now();
            rank.all_reduce(&mut buffer, Element::F32, ReduceOp::Sum)
                .unwrap();
            start.elapsed()
        };
        (0..10).map(|_| once()).min().unwrap()
    });
    times.into_iter().max().unwrap()
}

#[test]
fn ranks_that_are_proven_exchange_as_fast_as_others() {
    let without = CommunicatorOptions {
        secret: None,
        ..of_job()
    };
    let (mut least, mut made) = ([Duration::MAX; 2], [Duration::MAX; 2]);
    // In turns, each with groups of its own: others use the machine too, and one group may lie worse on its processors than another.
    for _ in 0..3 * trials() {
        for (at, options) in [of_job(), without.clone()].iter().enumerate() {
            let start = Instant::now();
            let group = group(Kind::Tcp, 2, options);
            made[at] = start.elapsed().min(made[at]);
            least[at] = (0..3)
                .map(|_| least_time(&group))
                .min()
                .unwrap()
                .min(least[at]);
        }
    }
    let [secured, plain] = least;
    let cost = secured.as_secs_f64() / plain.as_secs_f64() - 1.0;
    println!(
        "1 MiB by TCP: {secured:?} with a secret, {plain:?} without ({:+.1} %); a group is made in {:?} and {:?}",
        100.0 * cost,
        made[0],
        made[1]
    );
    // A proof of every byte would take ten times as long.
    assert!(cost < 2.0, "{secured:?} of {plain:?}");
}
