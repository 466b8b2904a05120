//! Memory of one rank that the other ranks of its machine can read: an arena.
//!
//! Invariant: only its owner writes an arena; peers map it for reading. So a process that was frozen and wakes up in a group that has
//! gone on without it cannot change a byte of anybody's arrays.
//!
//! An arena is a memfd: it has no name, so that nothing is left behind when a process is killed. Peers open it through `/proc` and
//! compare a random token at its start. It is sparse: its size is address space, which takes memory only where it was written.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};

use phalanx_proof::draw;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::{Resource, getrlimit};

use crate::error::CollectiveError;
use crate::sync::lock;

/// Bytes of address space of an arena; arrays that do not fit are on the heap and are copied.
const SIZE: usize = 1 << 35;
/// The longest message that goes through a slot instead of an array.
pub(crate) const SLOT: usize = 64 << 10;
/// Where the headers of the last two exchanges are.
const HEADERS: usize = 1024;
/// Where slots, and after them arrays, begin.
const SLOTS: usize = 4096;
const ARRAYS: usize = SLOTS + 2 * SLOT;
/// Arrays begin at multiples of this.
const PAGE: usize = 4096;
pub(crate) const TOKEN: usize = 16;
/// Bytes of a header; see `frame`.
pub(crate) const HEADER: usize = 64;

/// What lies at the start of an arena.
#[repr(C, align(64))]
pub(crate) struct Page {
    token: [u8; TOKEN],
    /// Counts the steps of this rank in its exchanges; others wait for it. See `shared`.
    pub(crate) clock: Line<AtomicU32>,
    /// Whether this rank sleeps until another's clock moves on.
    pub(crate) sleeps: Line<AtomicU32>,
}

/// A value with a cache line of its own.
#[repr(C, align(64))]
pub(crate) struct Line<T>(pub(crate) T);

/// An arena in this process's address space: this rank's own, or a peer's for reading.
pub(crate) struct Arena {
    base: NonNull<u8>,
    size: usize,
    /// What peers open; `None` for arenas of ranks in one process, and for a peer's.
    file: Option<OwnedFd>,
    pub(crate) token: [u8; TOKEN],
    free: Mutex<FreeRanges>,
}

// SAFETY: the memory is written by its owning rank alone, between the marks that `shared` describes; the list has a lock.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// An arena that ranks of this process share as it is.
    pub(crate) fn in_process() -> Result<Self, CollectiveError> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the system's choice.
        let mapped = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                SIZE,
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
            )
        };
        let base = mapped.map_err(|error| CollectiveError::local("map memory", error))?;
        Self::new(base.cast(), SIZE, None)
    }

    /// An arena that peers open by [`Arena::path`].
    pub(crate) fn create() -> Result<Self, CollectiveError> {
        // To make a file longer than the limit is a signal that ends the process.
        let limit = getrlimit(Resource::Fsize).current;
        if let Some(limit) = limit.filter(|limit| *limit < SIZE as u64) {
            let reason = format!(
                "files may have {limit} bytes (ulimit -f), and it has {SIZE}, of which only what is written takes memory; raise the limit, or choose TCP"
            );
            return Err(CollectiveError::local("make shared memory", reason));
        }
        let failed = |error| CollectiveError::local("make shared memory", error);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("phalanx-collectives", flags).map_err(failed)?;
        rustix::fs::fchmod(&file, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)
            .map_err(failed)?;
        rustix::fs::ftruncate(&file, SIZE as u64).map_err(failed)?;
        // Nobody can cut pages off under those who have mapped them.
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals).map_err(failed)?;
        let base = map(&file, ProtFlags::READ | ProtFlags::WRITE).map_err(failed)?;
        Self::new(base, SIZE, Some(file))
    }

    fn new(base: *mut u8, size: usize, file: Option<OwnedFd>) -> Result<Self, CollectiveError> {
        let base =
            NonNull::new(base).ok_or_else(|| CollectiveError::local("map memory", "null"))?;
        let arena = Self {
            base,
            size,
            file,
            token: draw().map_err(|error| CollectiveError::local("draw a token", error))?,
            free: Mutex::new(FreeRanges::new(ARRAYS, size - ARRAYS)),
        };
        // SAFETY: the page is ours, and nobody else knows of it yet.
        unsafe { (*arena.page_pointer()).token = arena.token };
        Ok(arena)
    }

    /// What a peer opens: process and descriptor.
    pub(crate) fn descriptor(&self) -> Option<i32> {
        self.file.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Opens the arena of another process for reading.
    pub(crate) fn open(pid: u32, descriptor: i32, token: [u8; TOKEN]) -> Result<Self, String> {
        let path = format!("/proc/{pid}/fd/{descriptor}");
        let file = File::open(&path).map_err(|error| format!("{path}: {error}"))?;
        let seals = rustix::fs::fcntl_get_seals(&file).map_err(|error| error.to_string())?;
        let size = file.metadata().map_err(|error| error.to_string())?.len();
        if !seals.contains(SealFlags::SHRINK) || size != SIZE as u64 {
            return Err(format!("{path} is not an arena"));
        }
        let base = map(&file, ProtFlags::READ).map_err(|error| error.to_string())?;
        let arena = Self {
            base: NonNull::new(base).ok_or("null")?,
            size: SIZE,
            file: None,
            token,
            free: Mutex::new(FreeRanges::default()),
        };
        if arena.page().token != token {
            return Err(format!("{path} is another process's"));
        }
        Ok(arena)
    }

    fn page_pointer(&self) -> *mut Page {
        self.base.as_ptr().cast()
    }

    /// The page of marks. Its token does not change after creation, and marks are atomic.
    pub(crate) fn page(&self) -> &Page {
        // SAFETY: the page lives as long as the arena.
        unsafe { &*self.page_pointer() }
    }

    /// The header of the exchange with this number.
    pub(crate) fn header(&self, number: u32) -> *mut [u8; HEADER] {
        self.at(HEADERS + number as usize % 2 * HEADER).cast()
    }

    /// The slot of the exchange with this number.
    pub(crate) fn slot(&self, number: u32) -> *mut u8 {
        self.at(SLOTS + number as usize % 2 * SLOT)
    }

    /// The address at an offset, which is within the arena.
    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.size, "offset {offset} is outside the arena");
        // SAFETY: within the mapping.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// Whether a peer may have an array there.
    pub(crate) fn holds(&self, offset: u64, length: usize) -> bool {
        usize::try_from(offset)
            .ok()
            .and_then(|offset| offset.checked_add(length))
            .is_some_and(|end| end <= self.size)
    }

    /// Address space for an array; `None` when there is none left.
    pub(crate) fn allocate(&self, bytes: usize) -> Option<usize> {
        lock(&self.free).take(bytes.max(1).next_multiple_of(PAGE))
    }

    fn release(&self, offset: usize, bytes: usize) {
        lock(&self.free).put(offset, bytes.max(1).next_multiple_of(PAGE));
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing that borrows it lives longer. A failure leaves it mapped, which harms nobody.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.size) };
    }
}

fn map(file: impl std::os::fd::AsFd, access: ProtFlags) -> rustix::io::Result<*mut u8> {
    let flags = MapFlags::SHARED | MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address of the system's choice.
    let mapped = unsafe { rustix::mm::mmap(std::ptr::null_mut(), SIZE, access, flags, file, 0) };
    mapped.map(<*mut _>::cast)
}

/// Free address space by offset; neighbours are joined.
#[derive(Default)]
struct FreeRanges(BTreeMap<usize, usize>);

impl FreeRanges {
    fn new(offset: usize, bytes: usize) -> Self {
        Self(BTreeMap::from([(offset, bytes)]))
    }

    fn take(&mut self, bytes: usize) -> Option<usize> {
        let fits = |&(_, &free): &(&usize, &usize)| free >= bytes;
        let (&offset, &free) = self.0.iter().find(fits)?;
        self.0.remove(&offset);
        if free > bytes {
            self.0.insert(offset + bytes, free - bytes);
        }
        Some(offset)
    }

    fn put(&mut self, mut offset: usize, mut bytes: usize) {
        if let Some(next) = self.0.remove(&(offset + bytes)) {
            bytes += next;
        }
        if let Some((&before, &free)) = self.0.range(..offset).next_back()
            && before + free == offset
        {
            self.0.remove(&before);
            offset = before;
            bytes += free;
        }
        self.0.insert(offset, bytes);
    }
}

/// Memory for an array, owned: in this rank's arena where there is one, so that ranks of this machine read it where it is.
///
/// It dereferences to its bytes. New ones hold anything.
pub struct Buffer {
    memory: Memory,
    length: usize,
    /// Whether others may still use the memory: then it is not used again.
    is_left: bool,
}

enum Memory {
    Arena { arena: Arc<Arena>, offset: usize },
    Heap { pointer: NonNull<u8> },
}

// SAFETY: the memory is the buffer's own; peers use it only while an exchange holds the buffer, and after one that failed it has other
// memory (`leave`).
unsafe impl Send for Buffer {}
// SAFETY: shared references only read.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Zeros on the heap, at a multiple of 64 bytes.
    #[must_use]
    pub fn on_heap(length: usize) -> Self {
        let layout = heap_layout(length);
        // SAFETY: the layout has a size.
        let pointer = unsafe { std::alloc::alloc_zeroed(layout) };
        let pointer = NonNull::new(pointer);
        let pointer = pointer.unwrap_or_else(|| std::alloc::handle_alloc_error(layout));
        Self {
            memory: Memory::Heap { pointer },
            length,
            is_left: false,
        }
    }

    /// In the arena, or on the heap when it is full.
    pub(crate) fn in_arena(arena: &Arc<Arena>, length: usize) -> Self {
        match arena.allocate(length) {
            Some(offset) => Self {
                memory: Memory::Arena {
                    arena: Arc::clone(arena),
                    offset,
                },
                length,
                is_left: false,
            },
            None => Self::on_heap(length),
        }
    }

    pub(crate) fn pointer(&self) -> *mut u8 {
        match &self.memory {
            Memory::Arena { arena, offset } => arena.at(*offset),
            Memory::Heap { pointer } => pointer.as_ptr(),
        }
    }

    /// Takes other memory, of zeros: an exchange of this buffer has failed, and ranks that have not heard of that, or MPI, may still use
    /// what it had.
    pub(crate) fn leave(&mut self) {
        let mut left = std::mem::replace(self, Self::on_heap(self.length));
        // An arena goes with the last who has it; memory of the heap stays.
        left.is_left = true;
    }

    /// Where it lies in this arena, if it does.
    pub(crate) fn offset_in(&self, arena: &Arc<Arena>) -> Option<usize> {
        match &self.memory {
            Memory::Arena { arena: own, offset } if Arc::ptr_eq(own, arena) => Some(*offset),
            _ => None,
        }
    }
}

impl From<&[u8]> for Buffer {
    fn from(bytes: &[u8]) -> Self {
        let mut buffer = Self::on_heap(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer
    }
}

fn heap_layout(length: usize) -> std::alloc::Layout {
    std::alloc::Layout::from_size_align(length.max(1), 64).expect("a length is below 2^63")
}

impl std::ops::Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the memory has the length, is initialised by the system, and nobody writes it while the buffer is borrowed.
        unsafe { std::slice::from_raw_parts(self.pointer(), self.length) }
    }
}

impl std::ops::DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; peers use the memory only while an exchange holds the buffer.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(), self.length) }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let place = match self.memory {
            Memory::Arena { .. } => "shared",
            Memory::Heap { .. } => "heap",
        };
        write!(f, "Buffer({} bytes, {place})", self.length)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.is_left {
            return;
        }
        match &self.memory {
            Memory::Arena { arena, offset } => arena.release(*offset, self.length),
            // SAFETY: allocated with this layout.
            Memory::Heap { pointer } => unsafe {
                std::alloc::dealloc(pointer.as_ptr(), heap_layout(self.length));
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_ranges_join_their_neighbours() {
        let mut free = FreeRanges::new(0, 100);
        let taken: Vec<_> = (0..5).map(|_| free.take(20).unwrap()).collect();
        assert_eq!(taken, [0, 20, 40, 60, 80]);
        assert_eq!(free.take(1), None);
        for offset in [20, 60, 40, 0, 80] {
            free.put(offset, 20);
        }
        assert_eq!(free.0, BTreeMap::from([(0, 100)]));
    }

    #[test]
    fn a_peer_reads_what_the_owner_writes_and_a_stranger_is_refused() {
        let own = Arc::new(Arena::create().unwrap());
        let (pid, descriptor) = (std::process::id(), own.descriptor().unwrap());
        let peer = Arena::open(pid, descriptor, own.token).unwrap();
        let mut buffer = Buffer::in_arena(&own, 5);
        buffer.copy_from_slice(b"hello");
        let offset = buffer.offset_in(&own).unwrap();
        // SAFETY: the array is there, and nobody writes it.
        let seen = unsafe { std::slice::from_raw_parts(peer.at(offset), 5) };
        assert_eq!(seen, b"hello");
        assert!(Arena::open(pid, descriptor, [0; TOKEN]).is_err());
        assert!(Arena::open(pid, 0, own.token).is_err());
    }
}
