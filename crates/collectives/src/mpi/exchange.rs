//! One exchange by MPI.

use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::ops::Range;

use super::Mpi;
use super::abi::{MpiHandle, NO_REQUEST};
use crate::arena::{Buffer, HEADER};
use crate::element::{Element, ReduceOp};
use crate::error::CollectiveError;
use crate::frame::{Call, Header};
use crate::options::Algorithm;
use crate::reduce::{Reduction, reduce};
use crate::shared::Array;
use crate::shares::share;
use crate::state::{State, Wait};

/// The longest array that travels with the header, in bytes.
pub(crate) const INLINE: usize = 8 << 10;
/// The most ranks of which each sends its header to all others; beyond it they are gathered.
const DIRECT_RANKS: usize = 8;
const TAG: c_int = 0;

/// A rank's way to the others through MPI.
pub(crate) struct MpiLinks {
    pub(super) mpi: &'static Mpi,
    pub(super) comm: MpiHandle,
    /// Kept for ever when an exchange failed: the library may still use it.
    pub(super) memory: ManuallyDrop<ExchangeMemory>,
    in_flight: bool,
}

/// Memory of this rank's own that exchanges use.
pub(super) struct ExchangeMemory {
    /// A header, and a small array.
    pub(super) outbox: Vec<u8>,
    /// The same of each rank.
    pub(super) inboxes: Vec<Vec<u8>>,
    pub(super) gathered: Vec<u8>,
    pub(super) staging: Vec<u8>,
    pub(super) counts: [Vec<c_int>; 2],
    pub(super) requests: Vec<MpiHandle>,
}

/// Whether in a group of this size each rank sends its header to all others.
const fn is_direct(ranks: usize) -> bool {
    ranks <= DIRECT_RANKS
}

/// Whether an array of this length travels with the header, out of memory of ours.
const fn is_inline(length: usize, ranks: usize) -> bool {
    is_direct(ranks) && length <= INLINE
}

/// Whether the library may use an array of this length itself: small ones it has in our own memory, but in a gather, where another
/// rank's may be large.
const fn uses_array(call: Call, length: usize, ranks: usize) -> bool {
    length > 0 && (matches!(call, Call::AllGather) || !is_inline(length, ranks))
}

impl MpiLinks {
    /// A communicator of its own over all processes, which all must make at the same time.
    pub(crate) fn new(mpi: &'static Mpi, state: &State) -> Result<Self, CollectiveError> {
        let size = mpi.size();
        let direct = is_direct(size);
        let inbox = || vec![0; if direct { HEADER + INLINE } else { 0 }];
        let memory = ExchangeMemory {
            outbox: vec![0; HEADER + INLINE],
            inboxes: (0..size).map(|_| inbox()).collect(),
            gathered: vec![0; if direct { 0 } else { HEADER * size }],
            staging: Vec::new(),
            counts: Default::default(),
            requests: Vec::with_capacity(2 * size),
        };
        let mut links = Self {
            mpi,
            comm: NO_REQUEST,
            memory: ManuallyDrop::new(memory),
            in_flight: true,
        };
        let (api, abi) = (mpi.api, &mpi.api.abi);
        let mut request = NO_REQUEST;
        // On the heap: the library writes it when it is done, which may be after a failure.
        let comm = Box::leak(Box::new(NO_REQUEST));
        // SAFETY: both pointers are to memory that lives on.
        let code = unsafe { (api.comm_idup)(abi.world, comm, &mut request) };
        api.check("MPI_Comm_idup", code)?;
        links.memory.requests.push(request);
        let header = Header {
            generation: state.generation,
            ticket: 0,
            call: Call::Barrier,
            element: Element::U8,
            length: 0,
            offset: 0,
            from: state.rank as u32,
            payload: 0,
        };
        links.complete(0, &Wait::new(state, &header))?;
        links.comm = *comm;
        // SAFETY: a communicator and a handler of the library.
        let code = unsafe { (api.comm_set_errhandler)(links.comm, abi.errors_return) };
        api.check("MPI_Comm_set_errhandler", code)?;
        links.in_flight = false;
        Ok(links)
    }

    pub(crate) fn name(&self) -> String {
        self.mpi.name()
    }

    /// Does an exchange. Where it fails the array must live on, unless `is_lent` says that it does not: then a copy is used.
    pub(crate) fn exchange(
        &mut self,
        call: Call,
        element: Element,
        array: Array,
        algorithm: Algorithm,
        wait: &mut Wait<'_>,
    ) -> Result<Vec<Vec<u8>>, CollectiveError> {
        self.in_flight = true;
        let done = if array.is_lent && uses_array(call, array.length, self.mpi.size()) {
            self.exchange_copy(call, element, array, algorithm, wait)
        } else {
            self.exchange_in_place(call, element, array, algorithm, wait)
        };
        self.in_flight = done.is_err();
        done
    }

    fn exchange_copy(
        &mut self,
        call: Call,
        element: Element,
        array: Array,
        algorithm: Algorithm,
        wait: &mut Wait<'_>,
    ) -> Result<Vec<Vec<u8>>, CollectiveError> {
        let copy = ManuallyDrop::new(Buffer::on_heap(array.length));
        let inner = Array {
            pointer: copy.pointer(),
            is_lent: false,
            ..array
        };
        // SAFETY: both have the length and do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(array.pointer, inner.pointer, array.length) };
        let done = self.exchange_in_place(call, element, inner, algorithm, wait)?;
        if call != Call::AllGather {
            // SAFETY: as above; gathers alone are given memory that may only be read.
            unsafe { std::ptr::copy_nonoverlapping(inner.pointer, array.pointer, array.length) };
        }
        drop(ManuallyDrop::into_inner(copy));
        Ok(done)
    }

    fn exchange_in_place(
        &mut self,
        call: Call,
        element: Element,
        array: Array,
        algorithm: Algorithm,
        wait: &mut Wait<'_>,
    ) -> Result<Vec<Vec<u8>>, CollectiveError> {
        let lengths = self.meet(array, wait)?;
        let is_here = self.is_direct() && lengths.iter().all(|&length| length <= INLINE);
        let (rank, size) = (self.mpi.rank(), self.mpi.size());
        let elements = array.length / element.size();
        match call {
            Call::Barrier => {}
            Call::AllGather if is_here => return Ok(self.inline(&lengths)),
            Call::AllGather => return self.gather(array, &lengths, wait),
            Call::AllReduce(op) if is_here => self.reduce_inline(array, element, op, 0..elements),
            Call::ReduceScatter(op) if is_here => {
                self.reduce_inline(array, element, op, share(elements, size, rank));
            }
            Call::Broadcast(root) if is_here => {
                let from = self.payload(root, array.length).as_ptr();
                // SAFETY: both have the length; the inbox is ours.
                unsafe { std::ptr::copy_nonoverlapping(from, array.pointer, array.length) };
            }
            Call::Broadcast(root) => self.broadcast(array, root, wait)?,
            Call::AllReduce(op) => match self.native(element, op) {
                Some(kind) if algorithm == Algorithm::Library => {
                    self.library_sum(array, element, kind, wait)?;
                    if op == ReduceOp::Mean {
                        self.divide(array, element);
                    }
                }
                _ => self.ordered(array, element, op, true, wait)?,
            },
            Call::ReduceScatter(op) => self.ordered(array, element, op, false, wait)?,
        }
        Ok(Vec::new())
    }

    fn is_direct(&self) -> bool {
        is_direct(self.mpi.size())
    }

    /// Hears what all ranks are about to do, with their small arrays: the length of each rank's array.
    fn meet(&mut self, array: Array, wait: &Wait<'_>) -> Result<Vec<usize>, CollectiveError> {
        let (rank, size) = (self.mpi.rank(), self.mpi.size());
        let small = match is_inline(array.length, size) {
            true => array.length,
            false => 0,
        };
        let memory = &mut *self.memory;
        memory.outbox[..HEADER].copy_from_slice(&wait.header.encode());
        // SAFETY: the array has the length, and the outbox has room for it.
        unsafe {
            let to = memory.outbox.as_mut_ptr().add(HEADER);
            std::ptr::copy_nonoverlapping(array.pointer, to, small);
        }
        if self.is_direct() {
            self.meet_directly(HEADER + small, wait)?;
        } else {
            self.meet_by_gather(wait)?;
        }
        let header = |other: usize| {
            if other == rank {
                return Ok(array.length);
            }
            let bytes = match self.is_direct() {
                true => &self.memory.inboxes[other][..],
                false => &self.memory.gathered[other * HEADER..],
            };
            let header = crate::tcp::compare(bytes, other, wait)?;
            Ok(header.length as usize)
        };
        (0..size).map(header).collect()
    }

    fn meet_directly(&mut self, bytes: usize, wait: &Wait<'_>) -> Result<(), CollectiveError> {
        let (api, abi, comm) = (self.mpi.api, &self.mpi.api.abi, self.comm);
        let rank = self.mpi.rank();
        let memory = &mut *self.memory;
        let others = memory.inboxes.iter_mut().enumerate();
        for (other, inbox) in others.filter(|(other, _)| *other != rank) {
            let (mut receive, mut send) = (NO_REQUEST, NO_REQUEST);
            let (to, room) = (inbox.as_mut_ptr().cast(), inbox.len() as c_int);
            let (from, bytes) = (memory.outbox.as_ptr().cast(), bytes as c_int);
            let other = other as c_int;
            // SAFETY: the memory lives until the requests are done, or for ever.
            unsafe {
                let code = (api.irecv)(to, room, abi.byte, other, TAG, comm, &mut receive);
                api.check("MPI_Irecv", code)?;
                let code = (api.isend)(from, bytes, abi.byte, other, TAG, comm, &mut send);
                api.check("MPI_Isend", code)?;
            }
            memory.requests.push(receive);
            memory.requests.push(send);
        }
        self.complete(0, wait)
    }

    fn meet_by_gather(&mut self, wait: &Wait<'_>) -> Result<(), CollectiveError> {
        let (api, abi, comm) = (self.mpi.api, &self.mpi.api.abi, self.comm);
        let memory = &mut *self.memory;
        let (from, to) = (memory.outbox.as_ptr(), memory.gathered.as_mut_ptr());
        let (count, mut request) = (HEADER as c_int, NO_REQUEST);
        // SAFETY: as in `meet_directly`; there is room for a header of each rank.
        let code = unsafe {
            let (from, to) = (from.cast(), to.cast());
            (api.iallgather)(
                from,
                count,
                abi.byte,
                to,
                count,
                abi.byte,
                comm,
                &mut request,
            )
        };
        api.check("MPI_Iallgather", code)?;
        memory.requests.push(request);
        self.complete(0, wait)
    }

    /// The small array that a rank sent with its header.
    fn payload(&self, rank: usize, length: usize) -> &[u8] {
        let message = match rank == self.mpi.rank() {
            true => &self.memory.outbox,
            false => &self.memory.inboxes[rank],
        };
        &message[HEADER..HEADER + length]
    }

    fn inline(&self, lengths: &[usize]) -> Vec<Vec<u8>> {
        let all = lengths.iter().enumerate();
        all.map(|(rank, &length)| self.payload(rank, length).to_vec())
            .collect()
    }

    fn reduce_inline(&self, array: Array, element: Element, op: ReduceOp, range: Range<usize>) {
        let ranks = self.mpi.size();
        let start = range.start * element.size();
        let input = |rank| self.payload(rank, array.length)[start..].as_ptr();
        let inputs: Vec<*const u8> = (0..ranks).map(input).collect();
        // SAFETY: the range is within the array, whose length all have; the messages are ours.
        unsafe {
            reduce(Reduction {
                element,
                op,
                partial: None,
                inputs: &inputs,
                out: array.pointer.add(start),
                elements: range.len(),
                last: true,
                ranks,
            });
        }
    }
}

impl Drop for MpiLinks {
    fn drop(&mut self) {
        if !self.in_flight {
            // SAFETY: no request is active, and it is not used again.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lent array that the library uses is copied: it may be freed where the exchange fails.
    #[test]
    fn the_library_uses_arrays_that_do_not_travel_with_the_header() {
        let sum = Call::AllReduce(ReduceOp::Sum);
        assert!(!uses_array(sum, INLINE, DIRECT_RANKS));
        assert!(uses_array(sum, INLINE + 1, 2));
        assert!(uses_array(sum, 4, DIRECT_RANKS + 1));
        assert!(uses_array(Call::Broadcast(0), 4, DIRECT_RANKS + 1));
        assert!(uses_array(Call::AllGather, 4, 2));
        assert!(!uses_array(Call::Barrier, 0, DIRECT_RANKS + 1));
    }
}
