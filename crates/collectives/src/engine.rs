//! Carries out an exchange by the algorithm that the table gives.

use std::sync::Arc;

use crate::algorithms::{AlgorithmTable, Layout};
use crate::arena::{Buffer, SLOT};
use crate::element::{Element, ReduceOp};
use crate::error::CollectiveError;
use crate::frame::{Call, Header};
use crate::mpi::MpiLinks;
use crate::options::{Algorithm, CommunicatorOptions};
use crate::reduce::{Bf16, F16, narrow, widen};
use crate::shared::{Array, Shared};
use crate::shares::share;
use crate::state::{State, Wait};
use crate::tcp::Links;

type Arrays = Vec<Vec<u8>>;

pub(crate) struct Engine {
    state: Arc<State>,
    /// The ranks of this machine.
    shared: Option<Shared>,
    /// Connections to all others.
    links: Option<Links>,
    /// All ranks, through MPI, instead of both.
    mpi: Option<MpiLinks>,
    table: AlgorithmTable,
    wire: Option<Element>,
}

impl Engine {
    pub(crate) fn new(
        state: Arc<State>,
        shared: Option<Shared>,
        links: Option<Links>,
        options: &CommunicatorOptions,
    ) -> Self {
        let local = shared.as_ref().map_or(1, |shared| shared.ranks.len());
        let layout = Layout {
            ranks: state.size,
            shared: local == state.size,
            machines: state.size / local,
        };
        Self {
            table: AlgorithmTable::new(layout, options.algorithm),
            wire: options.wire,
            state,
            shared,
            links,
            mpi: None,
        }
    }

    /// Exchanges all of which MPI carries.
    pub(crate) fn over_mpi(
        state: Arc<State>,
        mpi: MpiLinks,
        options: &CommunicatorOptions,
    ) -> Self {
        Self {
            table: AlgorithmTable::of_mpi(&mpi.name(), state.size, options.algorithm),
            wire: options.wire,
            state,
            shared: None,
            links: None,
            mpi: Some(mpi),
        }
    }

    /// Whether others may still use an array whose exchange has failed: MPI, or ranks that read it where it is.
    pub(crate) fn may_still_use(&self, array: &Array) -> bool {
        self.mpi.is_some() || array.offset.is_some()
    }

    pub(crate) fn table(&self) -> &AlgorithmTable {
        &self.table
    }

    /// Does an exchange. If it fails, the communicator has failed.
    pub(crate) fn run(
        &mut self,
        ticket: u64,
        call: Call,
        element: Element,
        array: Array,
    ) -> Result<Arrays, CollectiveError> {
        let state = Arc::clone(&self.state);
        let done = state.check().and_then(|()| match (call, self.wire) {
            (Call::AllReduce(op), Some(wire))
                if element == Element::F32 && is_sum(op) && state.size > 1 =>
            {
                self.all_reduce_narrow(ticket, op, wire, array)
            }
            _ => self.exchange(ticket, call, element, array),
        });
        done.map_err(|error| state.fail(error))
    }

    /// Sums f32 elements that travel as 16-bit floats: each is rounded, the sum is made in f32 and rounded.
    fn all_reduce_narrow(
        &mut self,
        ticket: u64,
        op: ReduceOp,
        wire: Element,
        array: Array,
    ) -> Result<Arrays, CollectiveError> {
        let elements = array.length / 4;
        let mut buffer = match &self.shared {
            Some(shared) => Buffer::in_arena(shared.own(), elements * 2),
            None => Buffer::on_heap(elements * 2),
        };
        let offset = self
            .shared
            .as_ref()
            .and_then(|shared| buffer.offset_in(shared.own()));
        let narrowed = Array {
            pointer: buffer.pointer(),
            length: elements * 2,
            offset,
            is_lent: false,
        };
        let (from, to) = (array.pointer, narrowed.pointer);
        // SAFETY: both arrays are this exchange's and have the length.
        unsafe {
            match wire {
                Element::Bf16 => narrow::<Bf16>(from, to, elements),
                _ => narrow::<F16>(from, to, elements),
            }
        }
        let done = self.exchange(ticket, Call::AllReduce(op), wire, narrowed);
        if done.is_err() && self.may_still_use(&narrowed) {
            buffer.leave();
        }
        done?;
        // SAFETY: as above.
        unsafe {
            match wire {
                Element::Bf16 => widen::<Bf16>(to, from, elements),
                _ => widen::<F16>(to, from, elements),
            }
        }
        Ok(Arrays::new())
    }

    fn exchange(
        &mut self,
        ticket: u64,
        call: Call,
        element: Element,
        array: Array,
    ) -> Result<Arrays, CollectiveError> {
        let state = Arc::clone(&self.state);
        let header = Header {
            generation: state.generation,
            ticket,
            call,
            element,
            length: array.length as u64,
            offset: 0,
            from: state.rank as u32,
            payload: 0,
        };
        let mut wait = Wait::new(&state, &header);
        let algorithm = self.table.choose(array.length);
        if let Some(mpi) = &mut self.mpi {
            return mpi.exchange(call, element, array, algorithm, &mut wait);
        }
        match (&mut self.shared, &mut self.links) {
            (Some(shared), _) if shared.ranks.len() == state.size => {
                in_shared_memory(shared, call, element, array, algorithm, &mut wait)
            }
            (shared, Some(links)) if algorithm == Algorithm::Ring && state.size > 1 => match call {
                Call::AllReduce(op) => {
                    links.ring(shared.as_mut(), array, element, op, &mut wait)?;
                    Ok(Arrays::new())
                }
                _ => links.exchange(call, element, array, algorithm, &mut wait),
            },
            (_, Some(links)) => links.exchange(call, element, array, algorithm, &mut wait),
            _ => Err(CollectiveError::local(
                "exchange",
                "this rank has no connections",
            )),
        }
    }
}

fn is_sum(op: ReduceOp) -> bool {
    matches!(op, ReduceOp::Sum | ReduceOp::Mean)
}

fn in_shared_memory(
    shared: &mut Shared,
    call: Call,
    element: Element,
    array: Array,
    algorithm: Algorithm,
    wait: &mut Wait<'_>,
) -> Result<Arrays, CollectiveError> {
    let elements = array.length / element.size();
    let small = array.length <= SLOT && matches!(algorithm, Algorithm::Direct | Algorithm::Auto);
    match call {
        Call::AllReduce(op) if small => {
            shared.reduce_small(array, element, op, 0..elements, wait)?;
        }
        Call::AllReduce(op) => shared.reduce_large(array, element, op, true, wait)?,
        Call::ReduceScatter(op) if small => {
            let range = share(elements, shared.ranks.len(), shared.me);
            shared.reduce_small(array, element, op, range, wait)?;
        }
        Call::ReduceScatter(op) => shared.reduce_large(array, element, op, false, wait)?,
        Call::Broadcast(root) if small => shared.broadcast_small(array, root, wait)?,
        Call::Broadcast(root) => shared.broadcast_large(array, root, wait)?,
        Call::AllGather => return shared.all_gather(array, wait),
        Call::Barrier => shared.barrier(wait)?,
    }
    Ok(Arrays::new())
}
