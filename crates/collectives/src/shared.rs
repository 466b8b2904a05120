//! Exchanges in shared memory.
//!
//! Each rank has an arena that only it writes, with a clock in it: a number that it moves on when it has got to a step. Steps of an
//! exchange are counted in the same way on all ranks, so that "rank 2 has got to step n" is one comparison.
//!
//! An exchange begins with a header and, for small arrays, the elements in a slot; then the clock moves on. There are two headers and
//! two slots, used in turn: who begins exchange n + 2 has seen everybody begin exchange n + 1, hence leave exchange n. So small
//! exchanges need no second meeting. In large ones each rank reduces its share, block by block, out of everybody's arrays, which lie in
//! the arenas, into its own, and moves its clock on after each block; who sees that copies the block. In the end all wait until all
//! have copied, since arrays are changed after that.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::thread::futex;

use crate::arena::{Arena, Buffer, SLOT};
use crate::element::{Element, ReduceOp};
use crate::error::CollectiveError;
use crate::frame::Header;
use crate::reduce::{Reduction, reduce};
use crate::shares::share;
use crate::spin::{LOOKS, Patience};
use crate::state::{GLANCE, Wait};

/// Bytes reduced between two moves of the clock.
const BLOCK: usize = 256 << 10;
/// The ranks of one machine.
pub(crate) struct Shared {
    /// Their ranks in the group, ascending.
    pub(crate) ranks: Vec<usize>,
    /// Which of them this is.
    pub(crate) me: usize,
    /// Their arenas, in the same order.
    arenas: Vec<Arc<Arena>>,
    /// Exchanges so far.
    number: u32,
    /// This rank's clock.
    clock: u32,
    /// Headers of the others in the current exchange.
    headers: Vec<Header>,
}

/// An array of this rank.
#[derive(Clone, Copy)]
pub(crate) struct Array {
    pub(crate) pointer: *mut u8,
    pub(crate) length: usize,
    /// Where it is in this rank's arena, if it is.
    pub(crate) offset: Option<usize>,
    /// Whether it belongs to whoever waits for the exchange, so that it may be gone once that has failed.
    pub(crate) is_lent: bool,
}

// SAFETY: whoever makes one keeps the memory for the exchange alone.
unsafe impl Send for Array {}

impl Shared {
    pub(crate) fn new(ranks: Vec<usize>, me: usize, arenas: Vec<Arc<Arena>>) -> Self {
        Self {
            ranks,
            me,
            arenas,
            number: 0,
            clock: 0,
            headers: Vec::new(),
        }
    }

    /// This rank's arena.
    pub(crate) fn own(&self) -> &Arc<Arena> {
        &self.arenas[self.me]
    }

    /// Reduces arrays that fit in a slot, into `out`.
    pub(crate) fn reduce_small(
        &mut self,
        array: Array,
        element: Element,
        op: ReduceOp,
        range: Range<usize>,
        wait: &mut Wait<'_>,
    ) -> Result<(), CollectiveError> {
        self.begin_small(array, wait)?;
        let start = range.start * element.size();
        let slots = self.arenas.iter().map(|arena| arena.slot(self.number));
        // SAFETY: the range is within the array, which is no longer than a slot.
        let inputs: Vec<*const u8> = slots
            .map(|slot| unsafe { slot.add(start).cast_const() })
            .collect();
        // SAFETY: all have written their slots before their clocks moved, and leave them alone until the exchange after the next.
        unsafe {
            reduce(Reduction {
                element,
                op,
                partial: None,
                inputs: &inputs,
                out: array.pointer.add(start),
                elements: range.len(),
                last: true,
                ranks: self.ranks.len(),
            });
        }
        self.number = self.number.wrapping_add(1);
        Ok(())
    }

    /// Copies the array of one rank, which fits in a slot, to all.
    pub(crate) fn broadcast_small(
        &mut self,
        array: Array,
        root: usize,
        wait: &mut Wait<'_>,
    ) -> Result<(), CollectiveError> {
        self.begin_small(array, wait)?;
        let from = self.arenas[root].slot(self.number);
        if root != self.me {
            // SAFETY: the root has written its slot; the array is as long as the root's.
            unsafe { std::ptr::copy_nonoverlapping(from, array.pointer, array.length) };
        }
        self.number = self.number.wrapping_add(1);
        Ok(())
    }

    fn begin_small(&mut self, array: Array, wait: &mut Wait<'_>) -> Result<(), CollectiveError> {
        debug_assert!(array.length <= SLOT);
        // SAFETY: nobody reads this slot any more: see the invariant at the top.
        unsafe {
            std::ptr::copy_nonoverlapping(
                array.pointer,
                self.own().slot(self.number),
                array.length,
            );
        }
        self.meet(0, wait)
    }

    /// Writes the header, waits for the others and compares theirs.
    fn meet(&mut self, offset: usize, wait: &mut Wait<'_>) -> Result<(), CollectiveError> {
        let header = Header {
            offset: offset as u64,
            ..*wait.header
        };
        // SAFETY: nobody reads this header any more: see the invariant at the top.
        unsafe { self.own().header(self.number).write(header.encode()) };
        let target = self.tick();
        self.headers.clear();
        for member in 0..self.ranks.len() {
            if member == self.me {
                self.headers.push(header);
                continue;
            }
            self.wait_for(member, target, wait)?;
            // SAFETY: the rank has written its header, and leaves it alone until the exchange after the next.
            let bytes = unsafe { self.arenas[member].header(self.number).read() };
            let other = wait.compare(self.ranks[member], &bytes)?;
            self.headers.push(other);
        }
        Ok(())
    }

    /// Reduces large arrays; afterwards each rank has the sums of its share, and of all shares if they are distributed.
    pub(crate) fn reduce_large(
        &mut self,
        array: Array,
        element: Element,
        op: ReduceOp,
        distribute: bool,
        wait: &mut Wait<'_>,
    ) -> Result<(), CollectiveError> {
        let exchange = self.begin_large(array, element, wait)?;
        let first = self.clock;
        let mut copied = vec![0; self.ranks.len()];
        for block in 0..exchange.blocks {
            wait.state.check()?;
            let range = exchange.block(self.me, block);
            // SAFETY: all arrays have the length, by the headers, and this block of them is this rank's to reduce.
            unsafe { exchange.reduce(range, op) };
            self.tick();
            if distribute {
                self.copy_blocks(&exchange, first, &mut copied, None)?;
            }
        }
        if distribute {
            self.copy_blocks(&exchange, first, &mut copied, Some(&mut *wait))?;
        }
        self.finish(wait)
    }

    /// Copies the blocks that others have reduced: those that are there, or all, with waiting.
    fn copy_blocks(
        &self,
        exchange: &LargeExchange,
        first: u32,
        copied: &mut [usize],
        mut wait: Option<&mut Wait<'_>>,
    ) -> Result<(), CollectiveError> {
        // Each rank begins with its successor, so that not all read the same array.
        for step in 1..self.ranks.len() {
            let member = (self.me + step) % self.ranks.len();
            while copied[member] < exchange.blocks {
                let target = first.wrapping_add(copied[member] as u32 + 1);
                match &mut wait {
                    Some(wait) => self.wait_for(member, target, wait)?,
                    None if !self.has_reached(member, target) => break,
                    None => {}
                }
                let range = exchange.block(member, copied[member]);
                // SAFETY: the other rank has reduced this block, and reads it no more in this rank's array.
                unsafe { exchange.take(member, range) };
                copied[member] += 1;
            }
        }
        Ok(())
    }

    /// Begins an exchange of large arrays: all ranks have come, and their arrays can be read.
    pub(crate) fn begin_large(
        &mut self,
        array: Array,
        element: Element,
        wait: &mut Wait<'_>,
    ) -> Result<LargeExchange, CollectiveError> {
        let copy = self.readable(array)?;
        let mut exchange = LargeExchange::new(self, array, copy, element);
        exchange.publish();
        self.meet(exchange.offset, wait)?;
        exchange.arrays = self.arrays(array.length)?;
        // Own elements are read where the caller has them.
        exchange.arrays[self.me] = array.pointer;
        Ok(exchange)
    }

    /// Ends an exchange in which each rank has made the results of its share by other means: all copy the others' results.
    pub(crate) fn end_large(
        &mut self,
        exchange: &LargeExchange,
        wait: &mut Wait<'_>,
    ) -> Result<(), CollectiveError> {
        let bytes = |member| exchange.bytes(share(exchange.elements, exchange.members, member));
        exchange.share_copy(bytes(self.me));
        let target = self.tick();
        for member in (0..self.ranks.len()).filter(|&member| member != self.me) {
            self.wait_for(member, target, wait)?;
            // SAFETY: the other rank has made its share, and reads it no more in this rank's array.
            unsafe { exchange.take(member, bytes(member)) };
        }
        self.finish(wait)
    }

    /// Copies a large array of one rank to all.
    pub(crate) fn broadcast_large(
        &mut self,
        array: Array,
        root: usize,
        wait: &mut Wait<'_>,
    ) -> Result<(), CollectiveError> {
        let copy = if root == self.me {
            self.readable(array)?
        } else {
            None
        };
        let offset = copy
            .as_ref()
            .map_or(array.offset, |copy| copy.offset_in(self.own()));
        if let Some(copy) = &copy {
            // SAFETY: the copy is new and as long as the array.
            unsafe { std::ptr::copy_nonoverlapping(array.pointer, copy.pointer(), array.length) };
        }
        self.meet(offset.unwrap_or(0), wait)?;
        if root != self.me {
            let from = self.array(root, array.length)?;
            // SAFETY: the array of the root has the length, by the headers, and stays as it is until all have copied.
            unsafe { std::ptr::copy_nonoverlapping(from, array.pointer, array.length) };
        }
        self.finish(wait)
    }

    /// The arrays of all ranks, which may differ in length.
    pub(crate) fn all_gather(
        &mut self,
        array: Array,
        wait: &mut Wait<'_>,
    ) -> Result<Vec<Vec<u8>>, CollectiveError> {
        let copy = if array.length > SLOT {
            self.readable(array)?
        } else {
            None
        };
        let offset = match &copy {
            Some(copy) => copy.offset_in(self.own()),
            None => array.offset,
        };
        let slot = self.own().slot(self.number);
        let to = copy.as_ref().map_or(slot, Buffer::pointer);
        if array.length <= SLOT || copy.is_some() {
            // SAFETY: the slot is free by the invariant at the top; the copy is new and as long as the array.
            unsafe { std::ptr::copy_nonoverlapping(array.pointer, to, array.length) };
        }
        self.meet(offset.unwrap_or(0), wait)?;
        let gathered = (0..self.ranks.len()).map(|member| self.gathered(member));
        let gathered = gathered.collect::<Result<_, _>>()?;
        if self
            .headers
            .iter()
            .any(|header| header.length > SLOT as u64)
        {
            self.finish(wait)?;
        } else {
            self.number = self.number.wrapping_add(1);
        }
        Ok(gathered)
    }

    fn gathered(&self, member: usize) -> Result<Vec<u8>, CollectiveError> {
        let length = self.headers[member].length as usize;
        let from = if length <= SLOT {
            self.arenas[member].slot(self.number).cast_const()
        } else {
            self.array(member, length)?
        };
        let mut to = Vec::with_capacity(length);
        // SAFETY: the array is there, by its header, and the vector has room for it.
        unsafe {
            std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), length);
            to.set_len(length);
        }
        Ok(to)
    }

    /// Waits for all, and nothing else.
    pub(crate) fn barrier(&mut self, wait: &mut Wait<'_>) -> Result<(), CollectiveError> {
        self.meet(0, wait)?;
        self.number = self.number.wrapping_add(1);
        Ok(())
    }

    /// Ends a large exchange: waits until all have read what they need.
    fn finish(&mut self, wait: &mut Wait<'_>) -> Result<(), CollectiveError> {
        let target = self.tick();
        for member in 0..self.ranks.len() {
            self.wait_for(member, target, wait)?;
        }
        self.number = self.number.wrapping_add(1);
        Ok(())
    }

    /// A place in the arena for an array that is not there.
    fn readable(&self, array: Array) -> Result<Option<Buffer>, CollectiveError> {
        if array.offset.is_some() {
            return Ok(None);
        }
        let copy = Buffer::in_arena(self.own(), array.length);
        if copy.offset_in(self.own()).is_none() {
            return Err(CollectiveError::local(
                format!("share {} bytes of memory", array.length),
                "the buffers of this communicator fill its address space; drop some",
            ));
        }
        Ok(Some(copy))
    }

    fn arrays(&self, length: usize) -> Result<Vec<*const u8>, CollectiveError> {
        let members = 0..self.ranks.len();
        members.map(|member| self.array(member, length)).collect()
    }

    /// Where the array of a rank lies, by its header.
    fn array(&self, member: usize, length: usize) -> Result<*const u8, CollectiveError> {
        let (arena, offset) = (&self.arenas[member], self.headers[member].offset);
        if !arena.holds(offset, length) {
            return Err(CollectiveError::Corrupt {
                rank: self.ranks[member],
                detail: format!("its array of {length} bytes at {offset} is outside its memory"),
            });
        }
        Ok(arena.at(offset as usize))
    }

    /// Moves the clock on, and wakes those who sleep.
    fn tick(&mut self) -> u32 {
        self.clock = self.clock.wrapping_add(1);
        let clock = &self.own().page().clock.0;
        // A full barrier between this and the look at who sleeps: who goes to sleep does the same in the other order.
        clock.swap(self.clock, Ordering::SeqCst);
        let sleeps = |arena: &Arc<Arena>| arena.page().sleeps.0.load(Ordering::SeqCst) != 0;
        let others = self.arenas.iter().enumerate();
        if others
            .into_iter()
            .any(|(member, arena)| member != self.me && sleeps(arena))
        {
            // Who is not woken looks again after a glance.
            let _ = futex::wake(clock, futex::Flags::empty(), i32::MAX as u32);
        }
        self.clock
    }

    fn has_reached(&self, member: usize, target: u32) -> bool {
        let clock = self.arenas[member].page().clock.0.load(Ordering::Acquire);
        clock.wrapping_sub(target) as i32 >= 0
    }

    fn wait_for(
        &self,
        member: usize,
        target: u32,
        wait: &mut Wait<'_>,
    ) -> Result<(), CollectiveError> {
        if self.has_reached(member, target) || self.spin(member, target) {
            return Ok(());
        }
        wait.progress();
        let sleeps = &self.own().page().sleeps.0;
        sleeps.store(1, Ordering::SeqCst);
        let waited = self.sleep(member, target, wait);
        sleeps.store(0, Ordering::SeqCst);
        waited
    }

    /// Looks until it is time to sleep.
    fn spin(&self, member: usize, target: u32) -> bool {
        let mut patience = Patience::default();
        while patience.lasts() {
            for _ in 0..LOOKS {
                if self.has_reached(member, target) {
                    return true;
                }
                std::hint::spin_loop();
            }
        }
        false
    }

    fn sleep(&self, member: usize, target: u32, wait: &Wait<'_>) -> Result<(), CollectiveError> {
        let clock = &self.arenas[member].page().clock.0;
        loop {
            let seen = clock.load(Ordering::SeqCst);
            if seen.wrapping_sub(target) as i32 >= 0 {
                return Ok(());
            }
            // Read before the clock, so that what a rank did before it left counts.
            let rank = self.ranks[member];
            if wait.state.has_left(rank) && !self.has_reached(member, target) {
                return Err(wait.state.lost(rank, ""));
            }
            let left = wait.left(|| self.missing(target))?;
            let nap = left.min(GLANCE);
            let nap = futex::Timespec {
                tv_sec: 0,
                tv_nsec: i64::from(nap.subsec_nanos()),
            };
            // Woken, timed out, interrupted or too late: the loop looks.
            let _ = futex::wait(clock, futex::Flags::empty(), seen, Some(&nap));
        }
    }

    /// The ranks that have not got to a step.
    fn missing(&self, target: u32) -> Vec<usize> {
        let members = 0..self.ranks.len();
        let missing = members.filter(|&member| !self.has_reached(member, target));
        missing.map(|member| self.ranks[member]).collect()
    }
}

/// The reduction of large arrays.
pub(crate) struct LargeExchange {
    array: Array,
    /// The array of each rank of this machine.
    pub(crate) arrays: Vec<*const u8>,
    /// What others read where the array itself is not shared.
    copy: Option<Buffer>,
    offset: usize,
    element: Element,
    elements: usize,
    members: usize,
    me: usize,
    /// Blocks of each share; a short share has empty ones.
    blocks: usize,
}

impl LargeExchange {
    fn new(shared: &Shared, array: Array, copy: Option<Buffer>, element: Element) -> Self {
        let members = shared.ranks.len();
        let elements = array.length / element.size();
        let longest = share(elements, members, 0).len();
        let offset = match &copy {
            Some(copy) => copy.offset_in(shared.own()),
            None => array.offset,
        };
        Self {
            array,
            arrays: Vec::new(),
            copy,
            offset: offset.unwrap_or(0),
            element,
            elements,
            members,
            me: shared.me,
            blocks: longest.div_ceil(BLOCK / element.size()),
        }
    }

    /// Copies what others read, where the array itself is not shared.
    fn publish(&self) {
        let own = self.bytes(share(self.elements, self.members, self.me));
        self.share_copy(0..own.start);
        self.share_copy(own.end..self.array.length);
    }

    /// Brings bytes of the copy, if there is one, to what they are in the array.
    fn share_copy(&self, bytes: Range<usize>) {
        let Some(copy) = &self.copy else {
            return;
        };
        // SAFETY: the copy is as long as the array, and nobody reads these bytes of it yet.
        unsafe {
            let from = self.array.pointer.add(bytes.start);
            std::ptr::copy_nonoverlapping(from, copy.pointer().add(bytes.start), bytes.len());
        }
    }

    fn bytes(&self, elements: Range<usize>) -> Range<usize> {
        let size = self.element.size();
        elements.start * size..elements.end * size
    }

    /// The bytes of a block of a rank's share.
    fn block(&self, member: usize, block: usize) -> Range<usize> {
        let share = self.bytes(share(self.elements, self.members, member));
        let start = (share.start + block * BLOCK).min(share.end);
        start..(start + BLOCK).min(share.end)
    }

    /// # Safety
    /// The block is within the arrays and of this rank's share.
    unsafe fn reduce(&self, block: Range<usize>, op: ReduceOp) {
        // SAFETY: the caller's promise.
        unsafe {
            let inputs = self.arrays.iter().map(|array| array.add(block.start));
            let inputs: Vec<*const u8> = inputs.collect();
            reduce(Reduction {
                element: self.element,
                op,
                partial: None,
                inputs: &inputs,
                out: self.array.pointer.add(block.start),
                elements: block.len() / self.element.size(),
                last: true,
                ranks: self.members,
            });
        }
        self.share_copy(block);
    }

    /// # Safety
    /// The bytes are within both arrays, and their rank has reduced them.
    unsafe fn take(&self, member: usize, bytes: Range<usize>) {
        // SAFETY: the caller's promise.
        unsafe {
            let to = self.array.pointer.add(bytes.start);
            std::ptr::copy_nonoverlapping(self.arrays[member].add(bytes.start), to, bytes.len());
        }
    }
}
