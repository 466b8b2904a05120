//! A byte that changes on its way, behind whatever TCP knows.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use phalanx_collectives::{
    Algorithm, CollectiveError, Communicator, CommunicatorOptions, Element, ReduceOp, Transport,
};

use crate::groups::{each, listeners, options};

const RANKS: usize = 3;
/// Too many for a small exchange, enough for several blocks.
const COUNT: usize = 400_000;

/// Takes connections for a rank, and hands on all that goes over them; once, when it is asked to, with a byte changed in the middle of a
/// large array.
fn stand_in(rank: SocketAddr, changes: Arc<AtomicBool>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for from in listener.incoming().map_while(Result::ok) {
            let to = TcpStream::connect(rank).unwrap();
            for (from, to) in [(&from, &to), (&to, &from)] {
                let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                let changes = Arc::clone(&changes);
                std::thread::spawn(move || hand_on(from, to, &changes));
            }
        }
    });
    address
}

fn hand_on(mut from: TcpStream, mut to: TcpStream, changes: &AtomicBool) {
    let mut bytes = vec![0; 64 << 10];
    let mut before = 0;
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        // Not in the first array, nor in a header or a small message.
        if before > COUNT && count > 1000 && changes.swap(false, Ordering::SeqCst) {
            bytes[count / 2] ^= 0x10;
        }
        before += count;
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// A group whose first rank is behind a stand-in.
fn group(algorithm: Algorithm, changes: &Arc<AtomicBool>) -> Vec<Communicator> {
    let (listeners, mut addresses) = listeners(RANKS);
    addresses[0] = stand_in(addresses[0], Arc::clone(changes));
    let options = CommunicatorOptions {
        transport: Transport::Tcp,
        algorithm,
        timeout: Duration::from_secs(60),
        ..options()
    };
    std::thread::scope(|scope| {
        let ranks = listeners.iter().enumerate().map(|(rank, listener)| {
            let (addresses, options) = (&addresses, &options);
            scope.spawn(move || Communicator::connect(rank, addresses, listener, options))
        });
        let ranks: Vec<_> = ranks.collect();
        let joined = ranks.into_iter().map(|rank| rank.join().unwrap().unwrap());
        joined.collect()
    })
}

fn sum(rank: &Communicator) -> Result<bool, CollectiveError> {
    let values = (0..COUNT).flat_map(|_| (1.0f32 + rank.rank() as f32).to_le_bytes());
    let mut values: Vec<u8> = values.collect();
    rank.all_reduce(&mut values, Element::F32, ReduceOp::Sum)?;
    Ok(values.chunks(4).all(|value| value == 6.0f32.to_le_bytes()))
}

/// The receiver of a changed byte has passed results with it on when it is found, so that all must hear of it: none counts the sums.
#[test]
fn a_changed_byte_of_a_large_array_is_found_by_all_ranks() {
    for algorithm in [Algorithm::Pairwise, Algorithm::Ring] {
        let changes = Arc::new(AtomicBool::new(false));
        let group = group(algorithm, &changes);
        assert!(each(&group, |rank| sum(rank).unwrap()).iter().all(|is| *is));
        changes.store(true, Ordering::SeqCst);
        let ends = each(&group, sum);
        assert!(
            !changes.load(Ordering::SeqCst),
            "{algorithm:?}: no byte changed"
        );
        for end in &ends {
            let error = end.as_ref().expect_err("a sum of changed bytes");
            assert!(
                error.to_string().contains("damaged"),
                "{algorithm:?} {error}"
            );
        }
    }
}
