//! Exchanges of processes that have several replicas each.

use std::sync::mpsc::channel;
use std::thread;

use half::bf16;
use phalanx_collectives::CommunicatorOptions;

use super::*;

/// 2^-8 is half of the last bit of 1: added to it by itself it is lost.
#[test]
fn sums_of_16_bit_numbers_are_rounded_once_in_a_process() {
    let small = 2f32.powi(-8);
    let of_workers = [[1.0, small, small, small], [0.0; 4]];
    let group = Communicator::in_memory(2, &CommunicatorOptions::default()).unwrap();
    let sums: Vec<f32> = thread::scope(|scope| {
        let exchanged = |(communicator, values): (Communicator, [f32; 4])| {
            scope.spawn(move || {
                let exchange = CommunicatorExchange {
                    communicator,
                    local_replicas: values.len(),
                    deadline: Duration::from_secs(60),
                };
                let memory = |value| {
                    let bits = bf16::from_f32(value).to_bits();
                    let mut memory = exchange.memory(2);
                    memory.bytes_mut().copy_from_slice(&bits.to_le_bytes());
                    memory
                };
                let (sender, receiver) = channel();
                exchange.start(ExchangeRequest {
                    number: 0,
                    op: ExchangeOp::Sum,
                    element: ElementType::Bf16,
                    replicas: values.map(memory).into(),
                    done: Box::new(move |sum| sender.send(sum).unwrap()),
                });
                let sum = receiver.recv().unwrap().unwrap();
                let bits = sum.bytes().try_into().unwrap();
                bf16::from_bits(u16::from_le_bytes(bits)).to_f32()
            })
        };
        let running: Vec<_> = group.into_iter().zip(of_workers).map(exchanged).collect();
        let sums = running.into_iter().map(|worker| worker.join().unwrap());
        sums.collect()
    });
    assert_eq!(sums, [1.015625; 2]);
}
