//! Reductions of large arrays in the order of ranks, by messages of MPI.
//!
//! Each rank reduces a share of the elements: it receives that share of all other arrays, adds in the order of ranks, and sends the results
//! to all. Shares go in blocks, so that one block is added while the next are under way and what is added is still in the cache. A block
//! of results is received into the array only when what lay there has been sent.

use std::ffi::c_int;
use std::ops::Range;

use super::MpiLinks;
use super::abi::{MpiHandle, NO_REQUEST};
use super::large::pieces;
use super::progress::is_done;
use crate::element::{Element, ReduceOp};
use crate::error::CollectiveError;
use crate::reduce::{Reduction, reduce};
use crate::shared::Array;
use crate::shares::share;
use crate::state::Wait;

/// Bytes of a block, of two ranks and of more: each costs a message there and back before its bytes, but a rank keeps a block of each other.
const BLOCKS: [usize; 2] = [512 << 10, 256 << 10];
/// Counts and distances of MPI are 32-bit numbers: larger arrays go in pieces.
const PIECE: usize = 1 << 30;
/// Blocks to be added that are under way at a time.
const AHEAD: usize = 4;

/// One reduction under way.
struct Blocks {
    array: Array,
    element: Element,
    op: ReduceOp,
    distribute: bool,
    /// The bytes of each rank's share.
    shares: Vec<Range<usize>>,
    /// Bytes of a block, and how many the longest share has.
    block: usize,
    blocks: usize,
    /// Blocks of which the elements have been asked for, and blocks that have been reduced.
    begun: usize,
    reduced: usize,
    /// By block, of those that are begun and not reduced: what is received to be added.
    receives: Vec<Vec<MpiHandle>>,
    /// What is sent to be added, with its rank and block.
    sends: Vec<(usize, usize, MpiHandle)>,
    /// Results on their way, in and out.
    results: Vec<MpiHandle>,
}

impl MpiLinks {
    /// Each rank reduces its share of all arrays in the order of ranks, and hands it to all.
    pub(super) fn ordered(
        &mut self,
        array: Array,
        element: Element,
        op: ReduceOp,
        distribute: bool,
        wait: &mut Wait<'_>,
    ) -> Result<(), CollectiveError> {
        // Where there are several pieces all are handed to all: each is divided anew.
        let distribute = distribute || array.length > PIECE;
        for piece in pieces(array.length, PIECE) {
            let part = Array {
                // SAFETY: within the array.
                pointer: unsafe { array.pointer.add(piece.start) },
                length: piece.len(),
                ..array
            };
            wait.progress();
            let mut blocks = self.blocks(part, element, op, distribute);
            self.until(piece.len(), wait, |links| links.go_on(&mut blocks, wait))?;
        }
        Ok(())
    }

    fn blocks(&mut self, array: Array, element: Element, op: ReduceOp, distribute: bool) -> Blocks {
        let size = self.mpi.size();
        let elements = array.length / element.size();
        let bytes = |rank| {
            let share = share(elements, size, rank);
            share.start * element.size()..share.end * element.size()
        };
        let shares: Vec<Range<usize>> = (0..size).map(bytes).collect();
        let longest = shares.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
        let block = BLOCKS[usize::from(size > 2)];
        self.memory.staging.resize(AHEAD * size * block, 0);
        Blocks {
            array,
            element,
            op,
            distribute,
            shares,
            block,
            blocks: longest.div_ceil(block),
            begun: 0,
            reduced: 0,
            receives: (0..AHEAD).map(|_| Vec::with_capacity(size)).collect(),
            sends: Vec::new(),
            results: Vec::new(),
        }
    }

    /// Does all that can be done now; whether that was the last. The deadline moves with each block that has come or gone.
    fn go_on(&mut self, plan: &mut Blocks, wait: &Wait<'_>) -> Result<bool, CollectiveError> {
        while plan.begun < plan.blocks && plan.begun < plan.reduced + AHEAD {
            self.begin(plan)?;
        }
        while plan.reduced < plan.begun {
            let mut there = true;
            for request in &mut plan.receives[plan.reduced % AHEAD] {
                there &= is_done(self.mpi, request)?;
            }
            if !there {
                break;
            }
            self.reduce_block(plan)?;
            wait.progress();
        }
        for index in (0..plan.sends.len()).rev() {
            let (rank, block, mut request) = plan.sends[index];
            let sent = is_done(self.mpi, &mut request)?;
            plan.sends[index].2 = request;
            if sent {
                plan.sends.swap_remove(index);
                wait.progress();
                self.receive_results(plan, rank, block)?;
            }
        }
        for index in (0..plan.results.len()).rev() {
            if is_done(self.mpi, &mut plan.results[index])? {
                plan.results.swap_remove(index);
                wait.progress();
            }
        }
        Ok(plan.reduced == plan.blocks && plan.sends.is_empty() && plan.results.is_empty())
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.mpi.rank();
        (0..self.mpi.size()).filter(move |&rank| rank != own)
    }

    /// Asks for the next block of this rank's share, and sends the same block of the other shares.
    fn begin(&mut self, plan: &mut Blocks) -> Result<(), CollectiveError> {
        let block = plan.begun;
        let own = plan.part(self.mpi.rank(), block);
        for rank in self.others() {
            let part = plan.part(rank, block);
            if !own.is_empty() {
                let to = self.slot(plan, rank, block);
                let request = self.receive(to, own.len(), rank, 2 * block)?;
                plan.receives[block % AHEAD].push(request);
            }
            if !part.is_empty() {
                let request = self.send(plan.at(&part), part.len(), rank, 2 * block)?;
                plan.sends.push((rank, block, request));
            }
        }
        plan.begun += 1;
        Ok(())
    }

    /// Where the block of another rank arrives.
    fn slot(&mut self, plan: &Blocks, rank: usize, block: usize) -> *mut u8 {
        let place = (block % AHEAD) * self.mpi.size() + rank;
        // SAFETY: within the staging memory, which has as many blocks.
        unsafe { self.memory.staging.as_mut_ptr().add(place * plan.block) }
    }

    fn reduce_block(&mut self, plan: &mut Blocks) -> Result<(), CollectiveError> {
        let (block, own) = (plan.reduced, self.mpi.rank());
        let part = plan.part(own, block);
        let out = plan.at(&part);
        let ranks = self.mpi.size();
        let input = |rank| match rank == own {
            true => out.cast_const(),
            false => self.slot(plan, rank, block).cast_const(),
        };
        let inputs: Vec<*const u8> = (0..ranks).map(input).collect();
        // SAFETY: all inputs have the block, and nothing is received there meanwhile.
        unsafe {
            reduce(Reduction {
                element: plan.element,
                op: plan.op,
                partial: None,
                inputs: &inputs,
                out,
                elements: part.len() / plan.element.size(),
                last: true,
                ranks,
            });
        }
        plan.receives[block % AHEAD].clear();
        plan.reduced += 1;
        if plan.distribute && !part.is_empty() {
            for rank in self.others() {
                let request = self.send(out, part.len(), rank, 2 * block + 1)?;
                plan.results.push(request);
            }
        }
        Ok(())
    }

    fn receive_results(
        &mut self,
        plan: &mut Blocks,
        rank: usize,
        block: usize,
    ) -> Result<(), CollectiveError> {
        if plan.distribute {
            let part = plan.part(rank, block);
            let request = self.receive(plan.at(&part), part.len(), rank, 2 * block + 1)?;
            plan.results.push(request);
        }
        Ok(())
    }

    fn send(
        &self,
        from: *mut u8,
        bytes: usize,
        rank: usize,
        number: usize,
    ) -> Result<MpiHandle, CollectiveError> {
        let (api, comm) = (self.mpi.api, self.comm);
        let begin = |[count, rank, tag]: [c_int; 3], request: &mut MpiHandle| {
            // SAFETY: the memory has the bytes, and lives until the request is done, or for ever.
            unsafe { (api.isend)(from.cast(), count, api.abi.byte, rank, tag, comm, request) }
        };
        self.begin_message("MPI_Isend", [bytes, rank, number], begin)
    }

    fn receive(
        &self,
        to: *mut u8,
        bytes: usize,
        rank: usize,
        number: usize,
    ) -> Result<MpiHandle, CollectiveError> {
        let (api, comm) = (self.mpi.api, self.comm);
        let begin = |[count, rank, tag]: [c_int; 3], request: &mut MpiHandle| {
            // SAFETY: as in `send`.
            unsafe { (api.irecv)(to.cast(), count, api.abi.byte, rank, tag, comm, request) }
        };
        self.begin_message("MPI_Irecv", [bytes, rank, number], begin)
    }

    /// Begins a message of some bytes to or from a rank, by its number in this exchange.
    fn begin_message(
        &self,
        name: &'static str,
        [bytes, rank, number]: [usize; 3],
        begin: impl FnOnce([c_int; 3], &mut MpiHandle) -> c_int,
    ) -> Result<MpiHandle, CollectiveError> {
        let mut request = NO_REQUEST;
        let tag = FIRST_TAG + number as c_int;
        let code = begin([bytes as c_int, rank as c_int, tag], &mut request);
        self.mpi.api.check(name, code)?;
        Ok(request)
    }
}

/// The tag of the first block; headers have the one before. Every library has tags up to 32767, and a piece has at most 4096 blocks.
const FIRST_TAG: c_int = 1;

impl Blocks {
    /// The bytes of a block of a rank's share; none beyond its end.
    fn part(&self, rank: usize, block: usize) -> Range<usize> {
        let share = &self.shares[rank];
        let start = (share.start + block * self.block).min(share.end);
        start..(start + self.block).min(share.end)
    }

    fn at(&self, part: &Range<usize>) -> *mut u8 {
        // SAFETY: a part is within the array.
        unsafe { self.array.pointer.add(part.start) }
    }
}
