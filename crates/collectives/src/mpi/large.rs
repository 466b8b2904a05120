//! Large arrays by the library's own collectives.

use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::ops::Range;

use super::MpiLinks;
use super::abi::{MpiHandle, NO_REQUEST};
use crate::arena::Buffer;
use crate::element::{Element, ReduceOp};
use crate::error::CollectiveError;
use crate::reduce::{Reduction, reduce};
use crate::shared::Array;
use crate::state::Wait;

/// Larger arrays go in pieces: of what the library does itself nothing is seen before its end, and the deadline moves with each piece.
/// Pieces of this size are also added in the processor's cache: 100 MB took two ranks of one machine two thirds of the time of larger ones.
const PIECE: usize = 8 << 20;

impl MpiLinks {
    /// The type by which the library adds these elements as we do; none where it has none, or other rules.
    pub(super) fn native(&self, element: Element, op: ReduceOp) -> Option<MpiHandle> {
        let abi = &self.mpi.api.abi;
        if !matches!(op, ReduceOp::Sum | ReduceOp::Mean) {
            return None;
        }
        match element {
            Element::F32 => Some(abi.f32),
            Element::F64 => Some(abi.f64),
            Element::I32 => Some(abi.i32),
            Element::I64 => Some(abi.i64),
            Element::U32 => Some(abi.u32),
            Element::U64 => Some(abi.u64),
            _ => None,
        }
    }

    pub(super) fn library_sum(
        &mut self,
        array: Array,
        element: Element,
        kind: MpiHandle,
        wait: &mut Wait<'_>,
    ) -> Result<(), CollectiveError> {
        let (api, abi, comm) = (self.mpi.api, &self.mpi.api.abi, self.comm);
        for piece in pieces(array.length, PIECE) {
            let count = (piece.len() / element.size()) as c_int;
            let (in_place, mut request) = (abi.in_place as *const _, NO_REQUEST);
            // SAFETY: within the array, which lives until the request is done, or for ever.
            let code = unsafe {
                let to = array.pointer.add(piece.start).cast();
                (api.iallreduce)(in_place, to, count, kind, abi.sum, comm, &mut request)
            };
            api.check("MPI_Iallreduce", code)?;
            self.memory.requests.push(request);
            wait.progress();
            self.complete(piece.len(), wait)?;
        }
        Ok(())
    }

    pub(super) fn divide(&self, array: Array, element: Element) {
        // SAFETY: in place over the whole array.
        unsafe {
            reduce(Reduction {
                element,
                op: ReduceOp::Mean,
                partial: Some(array.pointer),
                inputs: &[],
                out: array.pointer,
                elements: array.length / element.size(),
                last: true,
                ranks: self.mpi.size(),
            });
        }
    }

    /// Puts each rank's part of the array where it is in the arrays of all.
    fn hand_to_all(
        &mut self,
        array: Array,
        parts: &[Range<usize>],
        wait: &mut Wait<'_>,
    ) -> Result<(), CollectiveError> {
        let (api, abi, comm) = (self.mpi.api, &self.mpi.api.abi, self.comm);
        let bytes = parts.iter().map(ExactSizeIterator::len).sum();
        let memory = &mut *self.memory;
        let length = |part: &Range<usize>| part.len() as c_int;
        let place = |part: &Range<usize>| part.start as c_int;
        memory.counts[0] = parts.iter().map(length).collect();
        memory.counts[1] = parts.iter().map(place).collect();
        let [counts, places] = &memory.counts;
        let (in_place, mut request) = (abi.in_place as *const _, NO_REQUEST);
        // SAFETY: parts are within the array; the counts and the array live until the request is done, or for ever.
        let code = unsafe {
            let to = array.pointer.cast();
            let (counts, places) = (counts.as_ptr(), places.as_ptr());
            (api.iallgatherv)(
                in_place,
                0,
                abi.byte,
                to,
                counts,
                places,
                abi.byte,
                comm,
                &mut request,
            )
        };
        api.check("MPI_Iallgatherv", code)?;
        memory.requests.push(request);
        wait.progress();
        self.complete(bytes, wait)
    }

    /// The arrays of all ranks, of these lengths.
    pub(super) fn gather(
        &mut self,
        array: Array,
        lengths: &[usize],
        wait: &mut Wait<'_>,
    ) -> Result<Vec<Vec<u8>>, CollectiveError> {
        let (rank, size) = (self.mpi.rank(), self.mpi.size());
        let mut all: Vec<Vec<u8>> = lengths
            .iter()
            .map(|&length| Vec::with_capacity(length))
            .collect();
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let step = PIECE / size;
        for start in (0..longest).step_by(step) {
            let part = |&length: &usize| length.saturating_sub(start).min(step);
            let mut end = 0;
            let place = |part: usize| {
                end += part;
                end - part..end
            };
            let parts: Vec<Range<usize>> = lengths.iter().map(part).map(place).collect();
            // Once for each piece, so that what an exchange that fails leaves to the library is not used again.
            let mut joined = ManuallyDrop::new(Buffer::on_heap(end));
            let own = parts[rank].clone();
            // SAFETY: this rank's part is within its array, and in the joined memory.
            unsafe {
                let from = array.pointer.add(start.min(array.length));
                std::ptr::copy_nonoverlapping(from, joined.pointer().add(own.start), own.len());
            }
            let whole = Array {
                pointer: joined.pointer(),
                length: end,
                offset: None,
                is_lent: false,
            };
            self.hand_to_all(whole, &parts, wait)?;
            for (all, part) in all.iter_mut().zip(parts) {
                all.extend_from_slice(&joined[part]);
            }
            // SAFETY: the library is done with it, and it is not used again.
            unsafe { ManuallyDrop::drop(&mut joined) };
        }
        Ok(all)
    }

    pub(super) fn broadcast(
        &mut self,
        array: Array,
        root: usize,
        wait: &mut Wait<'_>,
    ) -> Result<(), CollectiveError> {
        let (api, abi, comm) = (self.mpi.api, &self.mpi.api.abi, self.comm);
        for piece in pieces(array.length, PIECE) {
            let (count, root, mut request) = (piece.len() as c_int, root as c_int, NO_REQUEST);
            // SAFETY: within the array, which lives until the request is done, or for ever.
            let code = unsafe {
                let data = array.pointer.add(piece.start).cast();
                (api.ibcast)(data, count, abi.byte, root, comm, &mut request)
            };
            api.check("MPI_Ibcast", code)?;
            self.memory.requests.push(request);
            wait.progress();
            self.complete(piece.len(), wait)?;
        }
        Ok(())
    }
}

/// The pieces of an array of this length, each of `piece` bytes or fewer.
pub(super) fn pieces(length: usize, piece: usize) -> impl Iterator<Item = Range<usize>> {
    let starts = (0..length).step_by(piece);
    starts.map(move |start| start..(start + piece).min(length))
}
