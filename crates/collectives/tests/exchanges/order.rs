//! Exchanges that are handed over, in any order.

use std::sync::mpsc::channel;
use std::time::Duration;

use phalanx_collectives::{AllReduce, Communicator, Element, ReduceOp};

use crate::groups::{Kind, each, group, options};

const LONG: Duration = Duration::from_secs(60);

fn request(rank: &Communicator, value: f32, count: usize) -> AllReduce {
    let mut buffer = rank.buffer(count * 4);
    buffer
        .chunks_exact_mut(4)
        .for_each(|part| part.copy_from_slice(&value.to_le_bytes()));
    AllReduce {
        buffer,
        element: Element::F32,
        op: ReduceOp::Sum,
    }
}

#[test]
fn ranks_that_start_in_different_orders_match_by_ticket() {
    for kind in [Kind::InMemory, Kind::Shared, Kind::Tcp] {
        let group = group(kind, 3, &options());
        each(&group, |rank| {
            let (send, receive) = channel();
            for round in 0..5 {
                let first = rank.reserve_tickets(4);
                for step in 0..4 {
                    // Another order on each rank and in each round.
                    let ticket = (step * 3 + rank.rank() as u64 + round) % 4;
                    let value = (ticket + 1) as f32 * 10f32.powi(rank.rank() as i32);
                    let send = send.clone();
                    rank.start_all_reduce(
                        first + ticket,
                        request(rank, value, 1000 * ticket as usize + 1),
                        Box::new(move |result| send.send((ticket, result.unwrap())).unwrap()),
                    );
                }
                for expected in 0..4 {
                    let (ticket, buffer) = receive.recv_timeout(LONG).unwrap();
                    assert_eq!(ticket, expected);
                    let sum = 111.0 * (ticket + 1) as f32;
                    assert!(buffer.chunks_exact(4).all(|part| part == sum.to_le_bytes()));
                    assert_eq!(buffer.len(), 4 * (1000 * ticket as usize + 1));
                }
                // A blocking call takes its turn among them.
                rank.barrier().unwrap();
            }
        });
    }
}

#[test]
fn blocking_calls_wait_for_the_tickets_before_theirs() {
    let group = group(Kind::InMemory, 2, &options());
    each(&group, |rank| {
        let ticket = rank.reserve_tickets(1);
        let (send, receive) = channel();
        std::thread::scope(|scope| {
            let late = scope.spawn(|| {
                let mut data = 1f32.to_le_bytes();
                rank.all_reduce(&mut data, Element::F32, ReduceOp::Sum)
                    .unwrap();
                f32::from_le_bytes(data)
            });
            std::thread::sleep(Duration::from_millis(20));
            assert!(!late.is_finished());
            rank.start_all_reduce(
                ticket,
                request(rank, 4.0, 1),
                Box::new(move |result| send.send(result.unwrap()).unwrap()),
            );
            assert_eq!(late.join().unwrap(), 2.0);
        });
        assert_eq!(receive.recv_timeout(LONG).unwrap()[..], 8f32.to_le_bytes());
    });
}

#[test]
fn gathers_are_handed_over_too() {
    let group = group(Kind::Tcp, 2, &options());
    each(&group, |rank| {
        let (send, receive) = channel();
        let mut buffer = rank.buffer(1 + rank.rank());
        buffer.fill(rank.rank() as u8);
        let ticket = rank.reserve_tickets(1);
        let done = Box::new(move |result| send.send(result).unwrap());
        rank.start_all_gather(ticket, buffer, Element::U8, done);
        let gathered = receive.recv_timeout(LONG).unwrap().unwrap();
        assert_eq!(gathered, [vec![0], vec![1, 1]]);
    });
}
