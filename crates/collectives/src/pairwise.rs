//! The all-reduce of large arrays over TCP: each rank reduces its share, and hands it to all.

use std::ops::Range;

use crate::arena::HEADER;
use crate::element::{Element, ReduceOp};
use crate::error::CollectiveError;
use crate::reduce::{Reduction, reduce};
use crate::shared::Array;
use crate::shares::share;
use crate::state::Wait;
use crate::sums::Sums;
use crate::tcp::{BLOCK, Links, Plan, compare, run};

/// Arrays of this number of bytes or more are divided over all connections.
const DIVIDED: usize = 1 << 20;

impl Links {
    /// Each rank reduces its share of what the contributors have (all, or one), and hands it to all.
    pub(crate) fn pairwise(
        &mut self,
        array: Array,
        element: Element,
        op: ReduceOp,
        contributor: Option<usize>,
        distribute: bool,
        wait: &mut Wait<'_>,
    ) -> Result<(), CollectiveError> {
        let connections = self.streams[(self.rank + 1) % self.size].len();
        let lanes = if array.length < DIVIDED {
            1
        } else {
            connections
        };
        let peers: Vec<usize> = self.peers().collect();
        let mut staging = std::mem::take(&mut self.staging);
        staging.resize(lanes * peers.len() * BLOCK, 0);
        let elements = array.length / element.size();
        let plan = |(lane, staging): (usize, &mut [u8])| {
            let bytes = |rank| {
                let all = share(elements, self.size, rank);
                let part = share(all.len(), lanes, lane);
                (all.start + part.start) * element.size()..(all.start + part.end) * element.size()
            };
            let mut plan = Pairwise {
                array,
                element,
                op,
                rank: self.rank,
                size: self.size,
                contributor,
                distribute,
                header: wait.header.encode(),
                shares: (0..self.size).map(bytes).collect(),
                inboxes: peers.iter().map(|_| [0; HEADER]).collect(),
                arrived: vec![0; peers.len()],
                peers: peers.clone(),
                staging: staging.as_mut_ptr(),
                reduced: 0,
            };
            plan.reduce();
            plan
        };
        let parts = staging.chunks_mut((peers.len() * BLOCK).max(1)).take(lanes);
        let mut plans = Lanes(parts.enumerate().map(plan).collect());
        let mut flows = self.flows(lanes);
        let done = run(&mut flows, &mut plans, wait);
        let mut sums = Sums::of(&flows, self.size);
        self.staging = staging;
        done?;
        self.compare_sums(&mut sums, wait)
    }
}

/// The same for each connection between two ranks, over a part of each share; flows are in the order of ranks, then of connections.
struct Lanes(Vec<Pairwise>);

impl Lanes {
    fn lane(&self, flow: usize) -> (usize, usize) {
        (flow % self.0.len(), flow / self.0.len())
    }
}

impl Plan for Lanes {
    fn outgoing(&mut self, flow: usize, sent: usize) -> (*const u8, usize) {
        let (lane, flow) = self.lane(flow);
        self.0[lane].outgoing(flow, sent)
    }

    fn incoming(&mut self, flow: usize, received: usize) -> (*mut u8, usize) {
        let (lane, flow) = self.lane(flow);
        self.0[lane].incoming(flow, received)
    }

    fn arrived(
        &mut self,
        flow: usize,
        received: usize,
        wait: &Wait<'_>,
    ) -> Result<(), CollectiveError> {
        let (lane, flow) = self.lane(flow);
        self.0[lane].arrived(flow, received, wait)
    }

    fn is_done(&self, flow: usize, sent: usize, received: usize) -> bool {
        let (lane, flow) = self.lane(flow);
        self.0[lane].is_done(flow, sent, received)
    }
}

/// The reduction of large arrays. To each rank goes a header, then this rank's elements of that rank's share, then the results of this
/// rank's share as they get ready; the same comes from each.
struct Pairwise {
    array: Array,
    element: Element,
    op: ReduceOp,
    rank: usize,
    size: usize,
    /// The only rank that has elements to reduce; all have when there is none.
    contributor: Option<usize>,
    /// Whether results are handed to all.
    distribute: bool,
    header: [u8; HEADER],
    /// The bytes of each rank's share.
    shares: Vec<Range<usize>>,
    /// The rank at the other end of each flow.
    peers: Vec<usize>,
    inboxes: Vec<[u8; HEADER]>,
    /// Bytes received in each flow.
    arrived: Vec<usize>,
    /// A block for each flow.
    staging: *mut u8,
    /// Bytes of this rank's share that have been reduced.
    reduced: usize,
}

impl Pairwise {
    fn contributes(&self, rank: usize) -> bool {
        self.contributor
            .is_none_or(|contributor| contributor == rank)
    }

    /// Bytes to be reduced that one rank gets from another.
    fn addends(&self, from: usize, to: usize) -> usize {
        if self.contributes(from) {
            self.shares[to].len()
        } else {
            0
        }
    }

    /// Bytes of results that one rank gets from another; the only contributor has them.
    fn results(&self, from: usize, to: usize) -> usize {
        let wanted = self.distribute && self.contributor != Some(to);
        if wanted { self.shares[from].len() } else { 0 }
    }

    fn own(&self) -> Range<usize> {
        self.shares[self.rank].clone()
    }

    /// The end of the block that is reduced next.
    fn block_end(&self) -> usize {
        (self.reduced + BLOCK).min(self.own().len())
    }

    /// Reduces the blocks of which all elements are there.
    fn reduce(&mut self) {
        while self.reduced < self.own().len() {
            let end = self.block_end();
            let is_there = |(&peer, &arrived): (&usize, &usize)| {
                !self.contributes(peer) || arrived >= HEADER + end
            };
            if !self.peers.iter().zip(&self.arrived).all(is_there) {
                return;
            }
            self.reduce_block(end);
            self.reduced = end;
        }
    }

    fn reduce_block(&self, end: usize) {
        let at = self.own().start + self.reduced;
        // SAFETY: within the array.
        let out = unsafe { self.array.pointer.add(at) };
        let input = |rank: usize| {
            if rank == self.rank {
                return out.cast_const();
            }
            let flow = (rank + self.size - self.rank) % self.size - 1;
            // SAFETY: each flow has a block of the staging memory.
            unsafe { self.staging.add(flow * BLOCK).cast_const() }
        };
        let ranks = (0..self.size).filter(|&rank| self.contributes(rank));
        let inputs: Vec<*const u8> = ranks.map(input).collect();
        // SAFETY: all inputs have the block, and nothing is received into the staging memory meanwhile.
        unsafe {
            reduce(Reduction {
                element: self.element,
                op: self.op,
                partial: None,
                inputs: &inputs,
                out,
                elements: (end - self.reduced) / self.element.size(),
                last: true,
                ranks: self.size,
            });
        }
    }
}

impl Plan for Pairwise {
    fn outgoing(&mut self, flow: usize, sent: usize) -> (*const u8, usize) {
        let Some(at) = sent.checked_sub(HEADER) else {
            let rest = &self.header[sent..];
            return (rest.as_ptr(), rest.len());
        };
        let peer = self.peers[flow];
        let addends = self.addends(self.rank, peer);
        let (start, length) = match at.checked_sub(addends) {
            None => (self.shares[peer].start + at, addends - at),
            Some(_) if self.results(self.rank, peer) == 0 => (0, 0),
            Some(at) => (self.own().start + at, self.reduced - at),
        };
        // SAFETY: within the array.
        (unsafe { self.array.pointer.add(start) }, length)
    }

    fn incoming(&mut self, flow: usize, received: usize) -> (*mut u8, usize) {
        if received < HEADER {
            let rest = &mut self.inboxes[flow][received..];
            return (rest.as_mut_ptr(), rest.len());
        }
        let (at, peer) = (received - HEADER, self.peers[flow]);
        let addends = self.addends(peer, self.rank);
        match at.checked_sub(addends) {
            None => {
                let start = flow * BLOCK + (at - self.reduced).min(BLOCK);
                // SAFETY: within the flow's block of the staging memory, of which `reduced` is the start.
                (unsafe { self.staging.add(start) }, self.block_end() - at)
            }
            Some(at) => {
                // SAFETY: within the array.
                let to = unsafe { self.array.pointer.add(self.shares[peer].start + at) };
                (to, self.results(peer, self.rank) - at)
            }
        }
    }

    fn arrived(
        &mut self,
        flow: usize,
        received: usize,
        wait: &Wait<'_>,
    ) -> Result<(), CollectiveError> {
        let before = std::mem::replace(&mut self.arrived[flow], received);
        if before < HEADER && received >= HEADER {
            compare(&self.inboxes[flow], self.peers[flow], wait)?;
        }
        self.reduce();
        Ok(())
    }

    fn is_done(&self, flow: usize, sent: usize, received: usize) -> bool {
        let peer = self.peers[flow];
        sent == HEADER + self.addends(self.rank, peer) + self.results(self.rank, peer)
            && received == HEADER + self.addends(peer, self.rank) + self.results(peer, self.rank)
    }
}
