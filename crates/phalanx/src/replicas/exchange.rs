//! The exchanges of compiled programs, carried by the communicator of a session.

use std::time::Duration;

use phalanx_collectives::{AllReduce, Buffer, Communicator, Element, ReduceOp};
use phalanx_kernels::{Exchange, ExchangeMemory, ExchangeOp, ExchangeRequest};
use phalanx_pjrt::ElementType;

/// Exchanges of compiled programs, carried by a communicator.
pub(super) struct CommunicatorExchange {
    pub(super) communicator: Communicator,
    pub(super) local_replicas: usize,
    pub(super) deadline: Duration,
}

struct Memory(Buffer);

impl ExchangeMemory for Memory {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl Exchange for CommunicatorExchange {
    fn first_replica(&self) -> u32 {
        (self.communicator.rank() * self.local_replicas) as u32
    }

    fn memory(&self, bytes: usize) -> Box<dyn ExchangeMemory> {
        Box::new(Memory(self.communicator.buffer(bytes)))
    }

    fn start(&self, request: ExchangeRequest) {
        let ExchangeRequest {
            op,
            element,
            replicas,
            done,
            ..
        } = request;
        let ticket = self.communicator.reserve_tickets(1);
        let Some(element) = element_of(element) else {
            self.communicator
                .abort("an exchange of an element type that cannot be sent");
            return done(None);
        };
        let parts: Vec<&[u8]> = replicas.iter().map(|memory| memory.bytes()).collect();
        if op == ExchangeOp::Gather {
            let joined = Buffer::from(&parts.concat()[..]);
            let joined_by_all = move |all: Result<Vec<Vec<u8>>, _>| {
                let all = all.ok().map(|all| Buffer::from(&all.concat()[..]));
                done(all.map(|all| Box::new(Memory(all)) as Box<dyn ExchangeMemory>));
            };
            let done = Box::new(joined_by_all);
            return self
                .communicator
                .start_all_gather(ticket, joined, element, done);
        }
        let op = match op {
            ExchangeOp::Sum => ReduceOp::Sum,
            ExchangeOp::Max => ReduceOp::Max,
            ExchangeOp::Min | ExchangeOp::Gather => ReduceOp::Min,
        };
        let mut buffer = self.communicator.buffer(parts[0].len());
        phalanx_collectives::combine(element, op, &parts, &mut buffer);
        let request = AllReduce {
            buffer,
            element,
            op,
        };
        let reduced = move |result: Result<Buffer, _>| {
            let memory = result.ok().map(Memory);
            done(memory.map(|memory| Box::new(memory) as Box<dyn ExchangeMemory>));
        };
        self.communicator
            .start_all_reduce(ticket, request, Box::new(reduced));
    }

    fn deadline(&self) -> Duration {
        self.deadline
    }
}

fn element_of(element: ElementType) -> Option<Element> {
    Some(match element {
        ElementType::Pred => Element::Bool,
        ElementType::I8 => Element::I8,
        ElementType::I32 => Element::I32,
        ElementType::I64 => Element::I64,
        ElementType::U8 => Element::U8,
        ElementType::U32 => Element::U32,
        ElementType::U64 => Element::U64,
        ElementType::F16 => Element::F16,
        ElementType::F32 => Element::F32,
        ElementType::F64 => Element::F64,
        ElementType::Bf16 => Element::Bf16,
        _ => return None,
    })
}

#[cfg(test)]
#[path = "exchange_tests.rs"]
mod tests;
