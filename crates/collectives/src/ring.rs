//! The all-reduce of large arrays over several machines, each with equally many consecutive ranks that share memory (or with one).
//!
//! On each machine rank `l` of `L` has the `l`-th part of the elements, and exchanges it with the `l`-th ranks of the machines before
//! and after. Partial results go from the first machine to the last: each adds what its ranks have to what comes in. The last has the
//! results, which go round in the same direction: to the first machine, and on to the last but one. In the end the ranks of a machine
//! copy their parts to each other. So elements are reduced in the order of ranks here too, a machine talks to two others only, and over
//! each of its links go twice the bytes of the array, whatever the number of machines.
//!
//! A partial result takes the place of the rank's own elements, which are needed no more, and the result takes the place of the partial
//! result; partial results of 16-bit floats are f32 and have memory of their own.

use std::ops::Range;

use crate::arena::HEADER;
use crate::element::{Element, ReduceOp};
use crate::error::CollectiveError;
use crate::reduce::{Reduction, reduce};
use crate::shared::{Array, Shared};
use crate::shares::share;
use crate::state::Wait;
use crate::sums::Sums;
use crate::tcp::{BLOCK, Links, Plan, compare, run};

impl Links {
    /// All-reduces an array over machines; `shared` has the ranks of this one, if there are others.
    pub(crate) fn ring(
        &mut self,
        mut shared: Option<&mut Shared>,
        array: Array,
        element: Element,
        op: ReduceOp,
        wait: &mut Wait<'_>,
    ) -> Result<(), CollectiveError> {
        let elements = array.length / element.size();
        let Some(shared) = &mut shared else {
            let own = [array.pointer.cast_const()];
            let mut sums = self.pass(&own, array, element, op, 0..elements, wait)?;
            return self.compare_sums(&mut sums, wait);
        };
        let part = share(elements, shared.ranks.len(), shared.me);
        let exchange = shared.begin_large(array, element, wait)?;
        let mut sums = self.pass(&exchange.arrays, array, element, op, part, wait)?;
        shared.end_large(&exchange, wait)?;
        self.compare_sums(&mut sums, wait)
    }

    /// Exchanges a part of the elements with the machines before and after; `inputs` are the arrays of this machine's ranks.
    fn pass(
        &mut self,
        inputs: &[*const u8],
        array: Array,
        element: Element,
        op: ReduceOp,
        part: Range<usize>,
        wait: &mut Wait<'_>,
    ) -> Result<Sums, CollectiveError> {
        let local = inputs.len();
        let (machine, machines) = (self.rank / local, self.size / local);
        let next = (self.rank + local) % self.size;
        let before = (self.rank + self.size - local) % self.size;
        let sum = element.accumulator().size();
        let mut staging = std::mem::take(&mut self.staging);
        let wide = if sum == element.size() {
            0
        } else {
            part.len() * sum
        };
        staging.resize(BLOCK + wide, 0);
        // SAFETY: the part is within the array; the staging memory has a block and, if need be, room for the partial results.
        let (mine, partials) = unsafe {
            let mine = array.pointer.add(part.start * element.size());
            let wide_partials = staging.as_mut_ptr().add(BLOCK);
            (mine, if wide > 0 { wide_partials } else { mine })
        };
        let at_part = |input: &*const u8| {
            // SAFETY: all arrays have the length.
            unsafe { input.add(part.start * element.size()) }
        };
        let mut plan = Ring {
            inputs: inputs.iter().map(at_part).collect(),
            element,
            op,
            ranks: self.size,
            elements: part.len(),
            machine,
            machines,
            before,
            mine,
            partials,
            staging: staging.as_mut_ptr(),
            header: wait.header.encode(),
            inbox: [0; HEADER],
            arrived: 0,
            reduced: 0,
        };
        let peers = if next == before {
            vec![next]
        } else {
            vec![next, before]
        };
        let mut flows = self.flows_to(&peers);
        let done = run(&mut flows, &mut plan, wait);
        let sums = Sums::of(&flows, self.size);
        self.staging = staging;
        done.map(|()| sums)
    }
}

/// What goes to the machine after this one, in the first flow, and comes from the one before, in the last: a header, then partial
/// results, then results.
struct Ring {
    /// The part of the elements of each rank of this machine.
    inputs: Vec<*const u8>,
    element: Element,
    op: ReduceOp,
    ranks: usize,
    elements: usize,
    machine: usize,
    machines: usize,
    /// The rank of the machine before.
    before: usize,
    /// This rank's own part, where the results go.
    mine: *mut u8,
    partials: *mut u8,
    /// A block of partial results that come in.
    staging: *mut u8,
    header: [u8; HEADER],
    inbox: [u8; HEADER],
    /// Bytes received.
    arrived: usize,
    /// Elements of which this machine's partial results, or the results if it is the last, are there.
    reduced: usize,
}

impl Ring {
    fn is_last(&self) -> bool {
        self.machine + 1 == self.machines
    }

    /// Bytes of partial results that come in.
    fn partials_in(&self) -> usize {
        if self.machine > 0 {
            self.elements * self.sum_size()
        } else {
            0
        }
    }

    fn partials_out(&self) -> usize {
        if self.is_last() {
            0
        } else {
            self.elements * self.sum_size()
        }
    }

    fn results_in(&self) -> usize {
        if self.is_last() {
            0
        } else {
            self.elements * self.element.size()
        }
    }

    /// The machine before the last has the results from the other side, and the last made them.
    fn results_out(&self) -> usize {
        if self.machine + 2 == self.machines {
            0
        } else {
            self.elements * self.element.size()
        }
    }

    fn sum_size(&self) -> usize {
        self.element.accumulator().size()
    }

    fn block_end(&self) -> usize {
        (self.reduced + BLOCK / self.sum_size()).min(self.elements)
    }

    /// Bytes of results that are there.
    fn results(&self) -> usize {
        if self.is_last() {
            return self.reduced * self.element.size();
        }
        self.arrived.saturating_sub(HEADER + self.partials_in())
    }

    /// Reduces the next block.
    fn reduce_block(&mut self) {
        let end = self.block_end();
        let out = if self.is_last() {
            // SAFETY: within this rank's part.
            unsafe { self.mine.add(self.reduced * self.element.size()) }
        } else {
            // SAFETY: within the partial results.
            unsafe { self.partials.add(self.reduced * self.sum_size()) }
        };
        let at = self.reduced * self.element.size();
        // SAFETY: within the parts, which are equally long.
        let inputs: Vec<*const u8> = self
            .inputs
            .iter()
            .map(|input| unsafe { input.add(at) })
            .collect();
        // SAFETY: all have the elements of the block. The output is where the own input is, or apart.
        unsafe {
            reduce(Reduction {
                element: self.element,
                op: self.op,
                partial: (self.machine > 0).then_some(self.staging.cast_const()),
                inputs: &inputs,
                out,
                elements: end - self.reduced,
                last: self.is_last(),
                ranks: self.ranks,
            });
        }
        self.reduced = end;
    }
}

impl Plan for Ring {
    fn outgoing(&mut self, flow: usize, sent: usize) -> (*const u8, usize) {
        if flow != 0 {
            return (self.mine, 0);
        }
        let Some(at) = sent.checked_sub(HEADER) else {
            let rest = &self.header[sent..];
            return (rest.as_ptr(), rest.len());
        };
        let partials = self.partials_out();
        if at < partials {
            // The first machine waits for nobody: it reduces what is to be sent next.
            if self.machine == 0 && at == self.reduced * self.sum_size() {
                self.reduce_block();
            }
            // SAFETY: within the partial results.
            let from = unsafe { self.partials.add(at) };
            return (from, self.reduced * self.sum_size() - at);
        }
        let at = at - partials;
        // SAFETY: within this rank's part.
        let from = unsafe { self.mine.add(at) };
        (
            from,
            self.results().min(self.results_out()).saturating_sub(at),
        )
    }

    fn incoming(&mut self, flow: usize, received: usize) -> (*mut u8, usize) {
        if self.machines > 2 && flow == 0 {
            return (self.mine, 0);
        }
        let Some(at) = received.checked_sub(HEADER) else {
            let rest = &mut self.inbox[received..];
            return (rest.as_mut_ptr(), rest.len());
        };
        if at < self.partials_in() {
            let (start, end) = (
                self.reduced * self.sum_size(),
                self.block_end() * self.sum_size(),
            );
            // SAFETY: within the block.
            return (unsafe { self.staging.add(at - start) }, end - at);
        }
        let at = at - self.partials_in();
        // SAFETY: within this rank's part.
        (unsafe { self.mine.add(at) }, self.results_in() - at)
    }

    fn arrived(
        &mut self,
        _flow: usize,
        received: usize,
        wait: &Wait<'_>,
    ) -> Result<(), CollectiveError> {
        let before = std::mem::replace(&mut self.arrived, received);
        if before < HEADER && received >= HEADER {
            compare(&self.inbox, self.before, wait)?;
        }
        let is_there = |ring: &Self| received >= HEADER + ring.block_end() * ring.sum_size();
        if self.machine > 0 && self.reduced < self.elements && is_there(self) {
            self.reduce_block();
        }
        Ok(())
    }

    fn is_done(&self, flow: usize, sent: usize, received: usize) -> bool {
        let all_sent = sent == HEADER + self.partials_out() + self.results_out();
        let all_received = received == HEADER + self.partials_in() + self.results_in();
        match (self.machines > 2, flow) {
            (false, _) => all_sent && all_received,
            (true, 0) => all_sent,
            (true, _) => all_received,
        }
    }
}
